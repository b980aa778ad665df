#include "backends/dump.h"

static const char *
pick(const char *const *names, guint n, guint i) {
  return i < n ? names[i] : "?";
}

const char *
oct_event_name(oct_event_kind kind) {
  static const char *const names[] = {"TIMER",     "WAKE",        "OPEN_PROGRESS",
                                      "OPENED",    "OPEN_FAILED", "STEP_DONE",
                                      "COPY_DONE", "MASK_WANTED", "FAULT"};
  return pick(names, G_N_ELEMENTS(names), kind);
}

const char *
oct_severity_name(oct_severity severity) {
  static const char *const names[] = {"REQUEST", "STEP", "INSTANCE", "FATAL"};
  return pick(names, G_N_ELEMENTS(names), severity);
}

static const char *
attention_name(oct_attention_kind kind) {
  static const char *const names[] = {"gqa pages", "window pages", "mla pages", "state"};
  return pick(names, G_N_ELEMENTS(names), kind);
}

void
oct_dump_config(GString *out, const oct_instance_config *config) {
  const oct_parallel *p = &config->parallel;
  g_string_append_printf(out, "%s: tensor %u, pipeline %u, data %u, decode context %u%s\n",
                         config->spec->name, p->tensor, p->pipeline, p->data, p->decode_context,
                         p->expert_parallel ? ", expert parallel" : "");
  g_string_append(out, "  devices");
  for (guint32 r = 0; r < oct_parallel_world(p); r++)
    g_string_append_printf(out, " %u", config->devices[r]);
  g_string_append_printf(out, "\n  depth %u, %u slots, %u tokens a step, blocks of %u, kv %s%s%s\n",
                         config->depth, config->max_slots, config->max_batched_tokens,
                         config->block_size, oct_dtype_name(config->kv_dtype),
                         config->check_tags ? ", tags" : "",
                         config->report_experts ? ", experts reported" : "");
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(config->spec, config->kv_dtype, groups);
  for (guint g = 0; g < n; g++) {
    g_string_append_printf(out, "  group %u: %s, %u layers", g, attention_name(groups[g].kind),
                           groups[g].n_layers);
    if (groups[g].window > 0)
      g_string_append_printf(out, " of window %u", groups[g].window);
    g_string_append_printf(out, "; pool of %u, %u on the host\n", config->memory.groups[g].n_device,
                           config->memory.groups[g].n_host);
  }
  if (config->memory.n_expert_slots > 0)
    g_string_append_printf(out, "  %u expert slots per layer and rank\n",
                           config->memory.n_expert_slots);
}

/* ---------------------------------------------------------------- steps */

/* ids [first, first + n) of the record, as far as they are there. */
static void
dump_step_ids(GString *out, const oct_step *step, guint32 first, guint32 n) {
  for (guint32 i = 0; i < n && first < step->n_tokens && i < step->n_tokens - first; i++)
    g_string_append_printf(out, " %u", oct_step_tokens(step)[first + i]);
}

static void
dump_ids(GString *out, const guint32 *ids, guint32 n) {
  for (guint32 i = 0; i < n; i++)
    g_string_append_printf(out, " %u", ids[i]);
}

static void
dump_open(GString *out, const oct_step *step, const oct_slot_open *o) {
  g_string_append_printf(out, "  open slot %u: domain %u key %#" G_GINT64_MODIFIER "x prompt %u",
                         o->slot, o->domain, o->key, o->prompt_tokens);
  if (o->oracle_tokens != 0)
    g_string_append_printf(out, " oracle %u eos %u", o->oracle_tokens, o->eos_token);
  if (o->seed != 0)
    g_string_append_printf(out, " seed %#" G_GINT64_MODIFIER "x", o->seed);
  if (o->temperature != 0)
    g_string_append_printf(out, " temperature %g", (double)o->temperature);
  if (o->top_k != -1)
    g_string_append_printf(out, " top_k %d", o->top_k);
  if (o->top_p != 1)
    g_string_append_printf(out, " top_p %g", (double)o->top_p);
  if (o->min_p != 0)
    g_string_append_printf(out, " min_p %g", (double)o->min_p);
  if (o->repetition_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0)
    g_string_append_printf(out, " penalties %g %g %g", (double)o->repetition_penalty,
                           (double)o->presence_penalty, (double)o->frequency_penalty);
  if (o->n_history > 0) {
    g_string_append(out, " history");
    dump_step_ids(out, step, o->history, o->n_history);
  }
  if (o->n_biases > 0)
    g_string_append(out, " biases");
  for (guint32 i = 0; i < o->n_biases && o->biases < step->n_biases; i++)
    if (i < step->n_biases - o->biases)
      g_string_append_printf(out, " %u:%+g", oct_step_biases(step)[o->biases + i].token,
                             (double)oct_step_biases(step)[o->biases + i].bias);
  if (o->n_stops > 0) {
    g_string_append_printf(out, " at least %u without", o->min_tokens);
    dump_step_ids(out, step, o->stops, o->n_stops);
  }
  g_string_append_c(out, '\n');
}

static void
dump_position(GString *out, const char *what, guint32 position) {
  if (position == OCT_POSITION_AFTER)
    g_string_append_printf(out, " %s AFTER", what);
  else if (position != OCT_NO_INDEX)
    g_string_append_printf(out, " %s %u", what, position);
}

static void
dump_slice(GString *out, const oct_step *step, guint32 i) {
  static const char *const samples[] = {"none", "last", "all"};
  const oct_slice *s = &oct_step_slices(step)[i];
  g_string_append_printf(out, "    slice %u: slot %u", i, s->slot);
  dump_position(out, "position", s->position);
  g_string_append_printf(out, " tokens %u", s->n_tokens);
  /* AFTER and "no state" are one value: without state the position is what says AFTER. */
  if (s->state_position != OCT_NO_INDEX)
    dump_position(out, "state", s->state_position);
  g_string_append_printf(out, " sample %s", pick(samples, G_N_ELEMENTS(samples), s->sample));
  if ((s->flags & OCT_SLICE_PREFILL) != 0)
    g_string_append(out, " PREFILL");
  if ((s->flags & OCT_SLICE_VERIFY) != 0)
    g_string_append(out, " VERIFY");
  if ((s->flags & OCT_SLICE_NEEDS_MASK) != 0)
    g_string_append(out, " NEEDS_MASK");
  if (s->n_logprobs > 0)
    g_string_append_printf(out, " logprobs %u", s->n_logprobs);
  if (s->n_prompt_logprobs > 0)
    g_string_append_printf(out, " prompt logprobs %u", s->n_prompt_logprobs);
  if (s->pooling != OCT_POOLING_NONE)
    g_string_append_printf(out, " pooling %s", s->pooling == OCT_POOLING_LAST ? "last" : "mean");
  if ((s->flags & OCT_SLICE_POOLED) != 0)
    g_string_append(out, " POOLED");
  if (s->adapter != 0)
    g_string_append_printf(out, " adapter %u", s->adapter);
  if (s->tag != 0)
    g_string_append_printf(out, " tag %016" G_GINT64_MODIFIER "x", s->tag);
  g_string_append(out, "\n      from");
  if (s->source == OCT_SOURCE_IDS) {
    g_string_append_printf(out, " ids[%u]:", s->tokens);
    dump_step_ids(out, step, s->tokens, oct_slice_ids(s));
  } else if (s->source == OCT_SOURCE_DEVICE) {
    g_string_append(out, " the device");
    if (s->n_tokens > 1) {
      g_string_append_printf(out, ", drafts ids[%u]:", s->tokens);
      dump_step_ids(out, step, s->tokens, s->n_tokens - 1);
    }
  } else {
    g_string_append(out, " nowhere: content is not carried");
  }
  g_string_append_c(out, '\n');
}

static void
dump_copy(GString *out, const oct_copy *c) {
  static const char *const kinds[] = {"page", "state", "expert"};
  static const char *const orders[] = {"before", "after", "beside"};
  static const char *const tiers[] = {"device", "host"};
  g_string_append_printf(out, "  copy %s, %s: domain %u %s %u, %s %u -> %s %u\n",
                         pick(kinds, G_N_ELEMENTS(kinds), c->kind),
                         pick(orders, G_N_ELEMENTS(orders), c->order), c->domain,
                         c->kind == OCT_COPY_EXPERT ? "layer" : "group", c->group,
                         pick(tiers, G_N_ELEMENTS(tiers), c->from_tier), c->from,
                         pick(tiers, G_N_ELEMENTS(tiers), c->to_tier), c->to);
}

void
oct_dump_copies(GString *out, const oct_copy *copies, guint32 n) {
  for (guint32 i = 0; i < n; i++)
    dump_copy(out, &copies[i]);
}

void
oct_dump_step(GString *out, const oct_step *step) {
  g_string_append_printf(out, "step %" G_GUINT64_FORMAT ": %u bytes, %u slices, %u ids\n",
                         step->number, step->bytes, step->n_slices, step->n_tokens);
  for (guint32 i = 0; i < step->n_opens; i++)
    dump_open(out, step, &oct_step_opens(step)[i]);
  for (guint32 i = 0; i < step->n_changes; i++) {
    const oct_page_change *c = &oct_step_changes(step)[i];
    if (c->op == OCT_PAGE_SET)
      g_string_append_printf(out, "  change slot %u group %u: [%u] = %u\n", c->slot, c->group,
                             c->index, c->page);
    else
      g_string_append_printf(out, "  change slot %u group %u: first live [%u]\n", c->slot, c->group,
                             c->index);
  }
  oct_dump_copies(out, oct_step_copies(step), step->n_copies);
  for (guint32 i = 0; i < step->n_experts; i++) {
    const oct_expert_change *e = &oct_step_experts(step)[i];
    g_string_append_printf(out, "  expert %u of layer %u: ", e->expert, e->layer);
    if (e->slot == OCT_NO_INDEX)
      g_string_append(out, "gone\n");
    else
      g_string_append_printf(out, "in slot %u\n", e->slot);
  }
  for (guint32 d = 0; d < step->n_domains; d++) {
    const oct_domain_part *part = &oct_step_domains(step)[d];
    g_string_append_printf(out, "  domain %u: %u slices, %u tokens\n", d, part->n_slices,
                           part->n_tokens);
    for (guint32 i = part->first_slice;
         i < step->n_slices && i - part->first_slice < part->n_slices; i++)
      dump_slice(out, step, i);
  }
}

/* ---------------------------------------------------------------- events */

/* The first of a pooled vector: which of them are one slice's is for who knows the model. */
static void
dump_pooled(GString *out, const oct_step_result *r, guint32 first) {
  g_string_append(out, "    pooled");
  for (guint32 k = first; k < r->n_floats && k < first + 4; k++)
    g_string_append_printf(out, " %.4f", (double)oct_result_floats(r)[k]);
  g_string_append(out, " …\n");
}

static void
dump_result(GString *out, const oct_step_result *r) {
  static const char *const parts[OCT_PART_COUNT] = {"compute", "memory", "collective",
                                                    "fixed",   "copy",   "wait"};
  g_string_append_printf(out, ": from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT " ns (",
                         r->start_ns, r->end_ns);
  const char *comma = "";
  for (int i = 0; i < OCT_PART_COUNT; i++)
    if (r->part_ns[i] != 0) {
      g_string_append_printf(out, "%s%s %" G_GINT64_FORMAT, comma, parts[i], r->part_ns[i]);
      comma = ", ";
    }
  g_string_append(out, ")\n");
  for (guint32 i = 0; i < r->n_slices; i++) {
    const oct_slice_result *s = &oct_result_slices(r)[i];
    g_string_append_printf(out, "  slice %u:%s accepted %u:", i,
                           (s->flags & OCT_RESULT_FAILED) != 0 ? " FAILED" : "", s->n_accepted);
    dump_ids(out, oct_result_tokens(r) + s->tokens, s->n_accepted);
    g_string_append_c(out, '\n');
    if (s->floats != OCT_NO_INDEX)
      dump_pooled(out, r, s->floats);
    if (s->logprobs == OCT_NO_INDEX)
      continue;
    /* How many there are per token is what the slice asked for; those of this slice go up to the
     * next one's. */
    guint32 end = r->n_logprobs;
    for (guint32 k = i + 1; k < r->n_slices; k++)
      if (oct_result_slices(r)[k].logprobs != OCT_NO_INDEX) {
        end = oct_result_slices(r)[k].logprobs;
        break;
      }
    g_string_append(out, "    logprobs");
    for (guint32 k = s->logprobs; k < end; k++)
      g_string_append_printf(out, " %u:%.2f", oct_result_logprobs(r)[k].token,
                             (double)oct_result_logprobs(r)[k].logprob);
    g_string_append_c(out, '\n');
  }
  for (guint32 i = 0; i < r->n_experts; i++) {
    const oct_expert_use *e = &oct_result_experts(r)[i];
    g_string_append_printf(out, "  layer %u expert %u: %u tokens%s\n", e->layer, e->expert,
                           e->tokens, e->missed ? ", MISSED" : "");
  }
}

static void
dump_fault(GString *out, const oct_fault *f) {
  g_string_append_printf(out, ": %s", oct_severity_name(f->severity));
  if (f->device != OCT_NO_INDEX)
    g_string_append_printf(out, " device %u", f->device);
  if (f->number != 0)
    g_string_append_printf(out, " step %" G_GUINT64_FORMAT, f->number);
  if (f->severity == OCT_SEVERITY_REQUEST)
    g_string_append_printf(out, " slice %u", f->slice);
  if (f->severity == OCT_SEVERITY_STEP)
    g_string_append(out, f->retryable ? " retryable" : " not retryable");
  g_string_append_printf(out, ", \"%s\"\n", f->message);
}

static void
dump_capabilities(GString *out, const oct_capabilities *c) {
  g_string_append_printf(out, ": depth %u,%s%s%s%s%s%s%s%s clock %s\n", c->depth,
                         c->masks ? " masks" : "", c->speculation ? " speculation" : "",
                         c->adapters ? " adapters" : "", c->expert_slots ? " expert slots" : "",
                         c->host_tier ? " host tier" : "", c->forward ? " forward" : "",
                         c->pooling ? " pooling" : "", c->token_ids ? " token ids" : "",
                         c->clock == OCT_CLOCK_REAL ? "real" : "virtual");
  for (guint32 g = 0; g < c->n_groups; g++)
    g_string_append_printf(out, "  group %u: units of %" G_GUINT64_FORMAT " bytes, %u fit\n", g,
                           c->page_bytes[g], c->fits[g]);
}

void
oct_dump_event(GString *out, const oct_event *event) {
  g_string_append_printf(out, "%" G_GINT64_FORMAT " ns %s", event->time_ns,
                         oct_event_name(event->kind));
  if (event->instance != 0)
    g_string_append_printf(out, " instance %u", event->instance);
  switch (event->kind) {
  case OCT_EVENT_OPEN_PROGRESS:
    g_string_append_printf(out, ": %s, %.2f\n", event->phase, event->fraction);
    break;
  case OCT_EVENT_OPENED:
    dump_capabilities(out, event->capabilities);
    break;
  case OCT_EVENT_STEP_DONE:
    g_string_append_printf(out, " step %" G_GUINT64_FORMAT, event->number);
    dump_result(out, event->result);
    break;
  case OCT_EVENT_COPY_DONE:
    g_string_append_printf(out, " ticket %" G_GUINT64_FORMAT "%s\n", event->number,
                           event->failed ? " FAILED" : "");
    break;
  case OCT_EVENT_MASK_WANTED:
    g_string_append_printf(out, " step %" G_GUINT64_FORMAT " slice %u\n", event->number,
                           event->slice);
    break;
  case OCT_EVENT_OPEN_FAILED:
  case OCT_EVENT_FAULT:
    dump_fault(out, event->fault);
    break;
  case OCT_EVENT_TIMER:
  case OCT_EVENT_WAKE:
    g_string_append_c(out, '\n');
    break;
  }
}
