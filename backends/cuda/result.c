#include "backends/cuda/result.h"

#include <string.h>

/* What became of a slice. */
typedef struct outcome {
  guint32 n_accepted;
  gboolean failed, dead; /* dead: the slot's sequence failed earlier, and gives anything */
} outcome;

typedef struct reader {
  const oct_cuda_reading *in;
  oct_cuda_slots_state *slots;
  outcome *outcomes; /* [slices] */
  /* The arrays of the result, and how far they are filled. */
  oct_slice_result *slices;
  guint32 *tokens;
  oct_logprob *logprobs;
  float *floats;
  guint32 n_tokens, n_logprobs, n_floats;
} reader;

static const oct_slice *
slice_of(const reader *r, guint32 i) {
  return &oct_step_slices(r->in->plan->step)[i];
}

/* Of the last stage, in the slice's domain. */
static const oct_cuda_output *
output_of(const reader *r, guint32 i) {
  return r->in->outputs[(r->in->n_stages - 1) * r->in->n_domains + slice_of(r, i)->domain];
}

/* The row of the slice's k-th sampled token. */
static guint32
sampled_row(const oct_cuda_part *part, guint32 k) {
  return k < part->n_extra ? part->first_extra + k : part->first_row + k - part->n_extra;
}

/* ---------------------------------------------------------------- what was accepted */

/* The draft that stands behind the slice's k-th token. */
static guint32
draft_after(const reader *r, const oct_slice *s, guint32 k) {
  guint32 skip = s->source == OCT_SOURCE_DEVICE ? 1 : 0;
  return oct_step_tokens(r->in->plan->step)[s->tokens + k + 1 - skip];
}

static outcome
accept(const reader *r, guint32 i) {
  const oct_slice *s = slice_of(r, i);
  const oct_cuda_part *part = &r->in->plan->parts[i];
  const guint32 *tokens = output_of(r, i)->tokens;
  guint32 n = part->n_extra + part->n_rows, k = 0;
  outcome o = {.dead = r->slots->slots[part->slot].failed_epoch == part->epoch};
  if (o.dead || n == 0) {
    o.n_accepted = n > 0 ? 1 : 0;
    return o;
  }
  for (; k < n; k++) {
    guint32 token = tokens[sampled_row(part, k)];
    if (token == OCT_REF_NO_TOKEN) {
      o.failed = TRUE;
      break;
    }
    if (part->verify && k + 1 < n && token != draft_after(r, s, k)) {
      k++;
      break;
    }
  }
  o.n_accepted = o.failed ? 0 : k;
  return o;
}

static void
settle(const reader *r, guint32 i) {
  const oct_cuda_plan *plan = r->in->plan;
  const oct_cuda_part *part = &plan->parts[i];
  const outcome *o = &r->outcomes[i];
  if (o->failed)
    r->slots->slots[part->slot].failed_epoch = part->epoch;
  guint32 kept = part->verify && !o->failed ? o->n_accepted : part->n_tokens;
  oct_cuda_slots_settle(r->slots, part->slot, part->epoch, plan->step->number, part->position,
                        kept);
}

/* ---------------------------------------------------------------- experts */

static gboolean
was_missed(const reader *r, guint32 layer, guint32 expert) {
  const guint64 *resident = r->in->plan->resident;
  gsize at = (gsize)layer * r->slots->n_layer_experts + expert;
  return resident != NULL && (resident[at / 64] >> at % 64 & 1) == 0;
}

static guint32
each_expert(const reader *r, oct_expert_use *to) {
  const oct_instance_config *c = r->in->config;
  guint32 n = 0;
  for (guint32 stage = 0; stage < r->in->n_stages; stage++) {
    guint32 first, count;
    oct_parallel_stage(c->spec, &c->parallel, stage, &first, &count);
    for (guint32 l = 0; l < count; l++)
      for (guint32 e = 0; e < c->spec->ffn[c->spec->layers[first + l].ffn].n_experts; e++) {
        guint32 tokens = 0;
        for (guint32 d = 0; d < r->in->n_domains; d++) {
          const oct_cuda_output *o = r->in->outputs[stage * r->in->n_domains + d];
          gboolean joint = c->parallel.expert_parallel && r->in->n_domains > 1;
          gboolean ran = o->counts != NULL && (joint || r->in->plan->domains[d].n_tokens > 0);
          tokens += ran ? o->counts[(gsize)l * o->most_experts + e] : 0;
        }
        if (tokens > 0 && to != NULL)
          to[n] = (oct_expert_use){.layer = (guint16)(first + l),
                                   .expert = e,
                                   .tokens = tokens,
                                   .missed = was_missed(r, first + l, e)};
        n += tokens > 0;
      }
  }
  return n;
}

/* ---------------------------------------------------------------- the record */

/* The header's array at `field` begins at *end. */
static void *
place(guint8 *buffer, guint32 *field, gsize bytes, gsize *end) {
  void *at = buffer + *end;
  *field = (guint32)*end;
  *end += (bytes + 7) & ~(gsize)7;
  return at;
}

static void
fill_row(reader *r, guint32 i, guint32 row, guint32 n_others) {
  guint32 most = r->in->plan->domains[slice_of(r, i)->domain].most_logprobs;
  const oct_token_logprob *from = &output_of(r, i)->logprobs[(gsize)row * (1 + most)];
  for (guint32 j = 0; j <= n_others; j++, r->n_logprobs++)
    if (!r->outcomes[i].dead)
      r->logprobs[r->n_logprobs] = (oct_logprob){from[j].token, from[j].logprob};
}

static void
fill_slice(reader *r, guint32 i) {
  const oct_slice *s = slice_of(r, i);
  const oct_cuda_part *part = &r->in->plan->parts[i];
  const outcome *o = &r->outcomes[i];
  gsize width = r->in->config->spec->hidden;
  gboolean scores = !o->failed && oct_slice_logprobs(s, o->n_accepted) > 0;
  gboolean pooled = part->pooled != OCT_NO_INDEX;
  r->slices[i] = (oct_slice_result){.n_accepted = o->n_accepted,
                                    .tokens = r->n_tokens,
                                    .flags = o->failed ? OCT_RESULT_FAILED : 0,
                                    .logprobs = scores ? r->n_logprobs : OCT_NO_INDEX,
                                    .floats = pooled ? r->n_floats : OCT_NO_INDEX};
  for (guint32 k = 0; k < part->n_scored && !o->failed; k++)
    fill_row(r, i, part->first_scored + k, s->n_prompt_logprobs);
  for (guint32 k = 0; k < o->n_accepted; k++) {
    guint32 row = sampled_row(part, k);
    r->tokens[r->n_tokens++] = o->dead ? 0 : output_of(r, i)->tokens[row];
    if (s->n_logprobs > 0)
      fill_row(r, i, row, s->n_logprobs);
  }
  if (pooled) {
    memcpy(r->floats + r->n_floats, output_of(r, i)->pooled + part->pooled * width,
           width * sizeof(float));
    r->n_floats += (guint32)width;
  }
}

static void
take_outcomes(reader *r, GArray *failed, oct_step_result *h) {
  h->n_slices = r->in->plan->n_parts;
  for (guint32 i = 0; i < h->n_slices; i++) {
    outcome *o = &r->outcomes[i];
    *o = accept(r, i);
    settle(r, i);
    if (o->failed)
      g_array_append_val(failed, i);
    h->n_tokens += o->n_accepted;
    h->n_logprobs += o->failed ? 0 : oct_slice_logprobs(slice_of(r, i), o->n_accepted);
    h->n_floats += r->in->plan->parts[i].pooled != OCT_NO_INDEX ? r->in->config->spec->hidden : 0;
  }
}

oct_step_result *
oct_cuda_result_make(const oct_cuda_reading *in, oct_cuda_slots_state *slots, GArray *failed,
                     guint8 **buffer, gsize *room) {
  oct_step_result h = {0};
  g_autofree outcome *outcomes = g_new(outcome, in->plan->n_parts + 1);
  reader r = {.in = in, .slots = slots, .outcomes = outcomes};
  take_outcomes(&r, failed, &h);
  h.n_experts = each_expert(&r, NULL);
  gsize bytes = sizeof h + h.n_slices * sizeof(oct_slice_result) + h.n_tokens * sizeof(guint32) +
                h.n_logprobs * sizeof(oct_logprob) + h.n_experts * sizeof(oct_expert_use) +
                h.n_floats * sizeof(float) + 40;
  if (bytes > *room) {
    *room = 2 * bytes;
    *buffer = g_realloc(*buffer, *room);
  }
  memset(*buffer, 0, bytes);
  gsize end = sizeof h;
  r.slices = place(*buffer, &h.slices, h.n_slices * sizeof(oct_slice_result), &end);
  r.tokens = place(*buffer, &h.tokens, h.n_tokens * sizeof(guint32), &end);
  r.logprobs = place(*buffer, &h.logprobs, h.n_logprobs * sizeof(oct_logprob), &end);
  (void)each_expert(&r, place(*buffer, &h.experts, h.n_experts * sizeof(oct_expert_use), &end));
  r.floats = place(*buffer, &h.floats, h.n_floats * sizeof(float), &end);
  h.bytes = (guint32)end;
  for (guint32 i = 0; i < h.n_slices; i++)
    fill_slice(&r, i);
  memcpy(*buffer, &h, sizeof h);
  return (oct_step_result *)(void *)*buffer;
}
