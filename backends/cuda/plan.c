#include "backends/cuda/plan.h"

#include <string.h>

#include "engine/base/assert.h"

#define GRAPH_STEP 8 /* sizes above it are multiples; below powers of two */

guint32
oct_cuda_graph_size(guint32 n, guint32 most) {
  guint32 size = 1;
  while (size < n && size < GRAPH_STEP)
    size *= 2;
  guint32 step = n > 128 ? 4 * GRAPH_STEP : n > 32 ? 2 * GRAPH_STEP : GRAPH_STEP;
  if (size < n)
    size = (n + step - 1) / step * step;
  return n > 0 && size <= most ? size : 0;
}

guint32
oct_cuda_graph_tokens(guint32 n, guint32 most) {
  guint32 step = 16;
  while (n > 16 * step)
    step *= 2;
  guint32 size = (n + step - 1) / step * step;
  return n > 0 && size <= most ? size : 0;
}

static gsize
place(gsize *end, gsize bytes) {
  gsize at = *end;
  *end += (bytes + 15) / 16 * 16;
  return at;
}

oct_cuda_layout
oct_cuda_layout_of(guint32 n_seqs, guint32 n_rows, guint32 n_ids) {
  oct_cuda_layout l;
  gsize end = 0;
  l.count = place(&end, sizeof(guint32));
  l.seqs = place(&end, n_seqs * sizeof(oct_cuda_seq));
  l.rows = place(&end, n_rows * sizeof(oct_cuda_sample_row));
  l.seq_rows = place(&end, (n_seqs + 1) * sizeof(guint32));
  l.picks = place(&end, n_rows * sizeof(guint32));
  l.given = place(&end, n_rows * sizeof(guint32));
  l.ids = place(&end, n_ids * sizeof(guint32));
  l.bytes = end;
  return l;
}

/* ---------------------------------------------------------------- life cycle */

oct_cuda_plan *
oct_cuda_plan_new(const oct_instance_config *config) {
  oct_cuda_plan *p = g_new0(oct_cuda_plan, 1);
  p->n_domains = config->parallel.data;
  p->parts = g_new0(oct_cuda_part, config->max_slots);
  p->domains = g_new0(oct_cuda_domain_plan, p->n_domains);
  for (guint32 d = 0; d < p->n_domains; d++) {
    p->domains[d].changes = g_array_new(FALSE, FALSE, sizeof(oct_glue_change));
    p->domains[d].experts = g_array_new(FALSE, FALSE, sizeof(oct_glue_change));
    p->domains[d].openings = g_array_new(FALSE, FALSE, sizeof(oct_cuda_opening));
    p->domains[d].prompts = g_array_new(FALSE, FALSE, sizeof(oct_cuda_prompt));
  }
  return p;
}

void
oct_cuda_plan_free(oct_cuda_plan *p) {
  if (p == NULL)
    return;
  for (guint32 d = 0; d < p->n_domains; d++) {
    g_array_unref(p->domains[d].changes);
    g_array_unref(p->domains[d].experts);
    g_array_unref(p->domains[d].openings);
    g_array_unref(p->domains[d].prompts);
    g_free(p->domains[d].head);
    g_free(p->domains[d].tail);
  }
  g_free(p->domains);
  g_free(p->parts);
  g_free(p->resident);
  g_free(p);
}

/* ---------------------------------------------------------------- what is applied before */

/* Tables end as the host's: several changes of one place agree. */
static void
add_changes(const oct_cuda_plan *p, const oct_cuda_slots_state *slots) {
  const oct_page_change *changes = oct_step_changes(p->step);
  for (guint32 i = 0; i < p->step->n_changes; i++) {
    const oct_page_change *c = &changes[i];
    const oct_cuda_slot *s = &slots->slots[c->slot];
    if (c->op != OCT_PAGE_SET || !s->open)
      continue;
    gsize at = slots->firsts[c->group] + c->slot * slots->strides[c->group] + c->index;
    const oct_glue_change change = {(guint32)at, s->tables[c->group].pages[c->index]};
    g_array_append_val(p->domains[s->domain].changes, change);
  }
}

/* Every domain's ranks have a map of all experts. */
static void
add_expert_changes(oct_cuda_plan *p, const oct_cuda_slots_state *slots) {
  if (slots->resident == NULL)
    return;
  for (guint32 i = 0; i < p->step->n_experts; i++) {
    const oct_expert_change *c = &oct_step_experts(p->step)[i];
    gsize at = (gsize)c->layer * slots->n_layer_experts + c->expert;
    const oct_glue_change change = {(guint32)at, slots->expert_at[at]};
    for (guint32 d = 0; d < p->n_domains; d++)
      g_array_append_val(p->domains[d].experts, change);
  }
  if (p->resident == NULL)
    p->resident = g_new(guint64, slots->n_words);
  memcpy(p->resident, slots->resident, slots->n_words * sizeof *p->resident);
}

static guint8 *
grow(guint8 **memory, gsize *room, gsize bytes) {
  if (bytes > *room) {
    *room = MAX(bytes, 2 * *room);
    g_free(*memory);
    *memory = g_malloc(*room);
  }
  return *memory;
}

static gboolean
brings_something(const oct_slot_open *o, const oct_cuda_slot *s) {
  return s->penalties || o->n_biases > 0 || o->n_stops > 0;
}

static void
write_opening(const oct_step *step, const oct_slot_open *o, const oct_cuda_opening *opening,
              guint8 *tail) {
  oct_logit_bias *biases = (oct_logit_bias *)(gpointer)(tail + opening->biases);
  if (opening->n_ids > 0)
    memcpy(tail + opening->ids, oct_step_tokens(step) + o->history,
           opening->n_ids * sizeof(guint32));
  for (guint32 i = 0; i < o->n_biases; i++) {
    const oct_token_bias *b = &oct_step_biases(step)[o->biases + i];
    biases[i] = (oct_logit_bias){b->token, b->bias};
  }
  if (opening->n_stops > 0)
    memcpy(tail + opening->stops, oct_step_tokens(step) + o->stops,
           opening->n_stops * sizeof(guint32));
}

static void
write_tail(oct_cuda_domain_plan *d, guint32 domain, const oct_step *step,
           const oct_cuda_slots_state *slots) {
  gsize end = 0, changes = d->changes->len * sizeof(oct_glue_change);
  gsize experts = d->experts->len * sizeof(oct_glue_change);
  (void)place(&end, changes);
  d->experts_at = place(&end, experts);
  for (guint32 i = 0; i < step->n_opens; i++) {
    const oct_slot_open *o = &oct_step_opens(step)[i];
    const oct_cuda_slot *s = &slots->slots[o->slot];
    if (o->domain != domain || !brings_something(o, s))
      continue;
    oct_cuda_opening opening = {.slot = o->slot,
                                .penalties = s->penalties,
                                .n_ids = s->penalties ? o->n_history : 0,
                                .n_prompt = MIN(o->n_history, o->prompt_tokens),
                                .n_biases = o->n_biases,
                                .n_stops = o->n_stops};
    opening.ids = place(&end, opening.n_ids * sizeof(guint32));
    opening.biases = place(&end, opening.n_biases * sizeof(oct_logit_bias));
    opening.stops = place(&end, opening.n_stops * sizeof(guint32));
    g_array_append_val(d->openings, opening);
  }
  d->tail_bytes = end;
  guint8 *tail = grow(&d->tail, &d->tail_room, end);
  if (changes > 0)
    memcpy(tail, d->changes->data, changes);
  if (experts > 0)
    memcpy(tail + d->experts_at, d->experts->data, experts);
  guint next = 0;
  for (guint32 i = 0; i < step->n_opens && next < d->openings->len; i++) {
    const oct_slot_open *o = &oct_step_opens(step)[i];
    const oct_cuda_opening *opening = &g_array_index(d->openings, oct_cuda_opening, next);
    if (o->slot != opening->slot)
      continue;
    write_opening(step, o, opening, tail);
    next++;
  }
}

/* ---------------------------------------------------------------- slices */

static gboolean
is_eos(const oct_model_spec *spec, guint32 token) {
  for (guint32 i = 0; i < spec->n_eos_tokens; i++)
    if (spec->eos_tokens[i] == token)
      return TRUE;
  return FALSE;
}

/* How many tokens of the slice are run. Nothing is accepted after an end of sequence, so drafts
 * from one on are left out. With penalties each token depends on those before it: no drafts. */
static guint32
tokens_to_run(const oct_cuda_slots_state *slots, const oct_step *step, const oct_slice *s) {
  if ((s->flags & OCT_SLICE_VERIFY) == 0)
    return s->n_tokens;
  if (slots->slots[s->slot].penalties)
    return 1;
  guint32 skip = s->source == OCT_SOURCE_DEVICE ? 1 : 0;
  for (guint32 i = 1; i < s->n_tokens; i++)
    if (is_eos(slots->config->spec, oct_step_tokens(step)[s->tokens + i - skip]))
      return i;
  return s->n_tokens;
}

/* Rows of logits that the slice wants. */
static void
count_rows(oct_cuda_part *part, const oct_slice *s) {
  part->n_scored = oct_slice_scored(s);
  part->n_rows = s->sample == OCT_SAMPLE_NONE ? 0 : part->verify ? part->n_tokens : 1;
  part->n_extra = s->sample == OCT_SAMPLE_ALL && !part->verify ? part->n_tokens - 1 : 0;
}

/* Where latent attention stops working on the latents of a part's context. */
static gboolean
is_expanded(const oct_cuda_part *part, const oct_cuda_padding *padding) {
  return padding->expand > 0 && part->n_tokens > 1 && part->n_tokens >= padding->expand &&
         part->position != OCT_NO_INDEX;
}

/* Position and checks of a slice, and its share of the domain's sizes. */
static gboolean
resolve_part(oct_cuda_plan *p, oct_cuda_slots_state *slots, guint32 i, oct_fault *fault) {
  const oct_slice *s = &oct_step_slices(p->step)[i];
  const oct_cuda_slot *slot = &slots->slots[s->slot];
  oct_cuda_part *part = &p->parts[i];
  oct_cuda_domain_plan *d = &p->domains[s->domain];
  guint32 end;
  *part = (oct_cuda_part){.slice = i, .slot = s->slot, .mask = OCT_NO_INDEX};
  part->n_tokens = tokens_to_run(slots, p->step, s);
  part->verify = (s->flags & OCT_SLICE_VERIFY) != 0;
  if (!oct_cuda_slots_resolve(slots, p->step, s, part->n_tokens, &part->position, &end, fault))
    return FALSE;
  part->epoch = slot->epoch;
  part->pooled = (s->flags & OCT_SLICE_POOLED) != 0 ? d->n_pooled++ : OCT_NO_INDEX;
  count_rows(part, s);
  if (s->source == OCT_SOURCE_DEVICE || part->position == OCT_NO_INDEX)
    p->feeds_on = MAX(p->feeds_on, slot->last_step);
  d->n_seqs++;
  d->n_tokens += part->n_tokens;
  d->n_decode += part->n_tokens == 1;
  d->n_accepting += part->n_rows;
  d->n_sampled += part->n_rows + part->n_extra;
  d->n_rows += part->n_rows + part->n_extra + part->n_scored;
  d->max_queries = MAX(d->max_queries, part->n_tokens);
  d->max_context = MAX(d->max_context, end);
  d->most_logprobs = MAX(d->most_logprobs, MAX(s->n_logprobs, s->n_prompt_logprobs));
  return TRUE;
}

/* What is being written to a domain's head. */
typedef struct writer {
  const oct_cuda_plan *p;
  const oct_cuda_slots_state *slots;
  oct_cuda_domain_plan *d;
  oct_cuda_seq *seqs;
  oct_cuda_sample_row *rows;
  guint32 *seq_rows, *picks, *given, *ids;
  guint32 n_seqs, n_tokens, n_rows, n_extra, n_scored;
} writer;

/* A row of logits of token `token`. */
static void
write_row(writer *w, const oct_cuda_part *part, const oct_slice *s, guint32 row, guint32 token) {
  const oct_cuda_slot *slot = &w->slots->slots[s->slot];
  w->picks[row] = token;
  w->rows[row] = (oct_cuda_sample_row){
      .sampling = slot->sampling, .seq = part->seq, .token = token, .n_logprobs = s->n_logprobs};
  if (slot->penalties)
    w->rows[row].counts = (uint32_t *)((gsize)s->slot + 1);
  if (part->mask != OCT_NO_INDEX)
    w->rows[row].mask = (const uint64_t *)((gsize)part->mask + 1);
  w->rows[row].n_biases = slot->n_biases;
  if (slot->n_biases > 0)
    w->rows[row].biases = (const oct_logit_bias *)((gsize)s->slot + 1);
  /* The row samples the token behind `token`. */
  guint32 position = part->position + token + 1 - w->n_tokens;
  gboolean known = part->position != OCT_NO_INDEX;
  if (slot->n_stops > 0 && known && position - slot->prompt_tokens < slot->min_tokens) {
    w->rows[row].n_suppressed = slot->n_stops;
    w->rows[row].suppressed = (const uint32_t *)((gsize)s->slot + 1);
  }
}

static void
write_scored(writer *w, const oct_cuda_part *part, const oct_slice *s, guint32 i) {
  guint32 row = w->n_scored++;
  w->picks[row] = w->n_tokens + i;
  w->given[row] = oct_step_tokens(w->p->step)[s->tokens + i + 1];
  w->rows[row] = (oct_cuda_sample_row){
      .seq = part->seq, .token = w->n_tokens + i, .n_logprobs = s->n_prompt_logprobs};
}

static void
write_ids(writer *w, const oct_cuda_part *part, const oct_slice *s, oct_cuda_seq *seq) {
  guint32 skip = s->source == OCT_SOURCE_DEVICE ? 1 : 0, n = part->n_tokens - skip;
  seq->from_slot = skip;
  seq->ids = w->d->n_ids;
  if (n > 0)
    memcpy(w->ids + w->d->n_ids, oct_step_tokens(w->p->step) + s->tokens, n * sizeof *w->ids);
  w->d->n_ids += n;
}

static void
write_part(writer *w, oct_cuda_part *part) {
  const oct_slice *s = &oct_step_slices(w->p->step)[part->slice];
  guint32 end = w->n_tokens + part->n_tokens;
  oct_cuda_seq *seq = &w->seqs[w->n_seqs];
  *seq = (oct_cuda_seq){.slot = part->slot,
                        .first = w->n_tokens,
                        .n_tokens = part->n_tokens,
                        .position = part->position};
  write_ids(w, part, s, seq);
  part->seq = w->n_seqs;
  if ((s->flags & OCT_SLICE_NEEDS_MASK) != 0)
    part->mask = w->d->n_masks++;
  part->first_row = w->n_rows;
  for (guint32 i = 0; i < part->n_rows; i++)
    write_row(w, part, s, w->n_rows++, end - part->n_rows + i);
  part->first_extra = w->n_extra;
  for (guint32 i = 0; i < part->n_extra; i++)
    write_row(w, part, s, w->n_extra++, w->n_tokens + i);
  part->first_scored = w->n_scored;
  for (guint32 i = 0; i < part->n_scored; i++)
    write_scored(w, part, s, i);
  w->seq_rows[++w->n_seqs] = w->n_rows;
  w->n_tokens = end;
}

/* What a graph has more places for than the step has content. */
static void
write_padding(writer *w, guint32 seqs, guint32 rows) {
  for (guint32 i = w->n_seqs; i < seqs; i++)
    w->seq_rows[i + 1] = w->n_rows;
  for (guint32 i = w->d->n_rows; i < rows; i++) {
    w->rows[i] = (oct_cuda_sample_row){.seq = OCT_CUDA_NONE};
    w->picks[i] = OCT_CUDA_NONE;
  }
}

/* Decodes come first and are padded for themselves, as attention takes them apart. Others are
 * padded to a power of two. */
static void
pad_mixed(oct_cuda_domain_plan *d, const oct_cuda_padding *padding) {
  guint32 others = d->n_seqs - d->n_decode, room = 1;
  oct_cuda_shape s = {.n_tokens = oct_cuda_graph_tokens(d->n_tokens, padding->tokens),
                      .n_decode = oct_cuda_graph_size(d->n_decode, padding->decodes),
                      .n_rows = oct_cuda_graph_size(d->n_rows, padding->rows)};
  while (room < others)
    room *= 2;
  s.n_seqs = s.n_decode + (others > 0 ? room : 0);
  gboolean fits = s.n_seqs <= padding->seqs && (s.n_decode > 0 || d->n_decode == 0) &&
                  (s.n_rows > 0 || d->n_rows == 0);
  if (s.n_tokens > 0 && fits)
    d->padded = s;
}

static void
choose_shape(oct_cuda_domain_plan *d, const oct_cuda_padding *padding, gboolean expands) {
  d->padded = (oct_cuda_shape){0};
  if (expands)
    return;
  guint32 n = d->plain ? oct_cuda_graph_size(d->n_seqs, padding->decodes) : 0;
  if (n > 0)
    d->padded = (oct_cuda_shape){n, n, n, n};
  else if (!d->plain)
    pad_mixed(d, padding);
}

/* Which of the batch's three runs a part is in: one token, several, several whose context is
 * expanded. */
static guint
round_of(const oct_cuda_part *part, const oct_cuda_padding *padding) {
  return part->n_tokens == 1 ? 0 : is_expanded(part, padding) ? 2 : 1;
}

static void
note_prompt(oct_cuda_domain_plan *d, const oct_cuda_part *part, guint32 first) {
  const oct_cuda_prompt prompt = {first, part->n_tokens, part->position, part->slot};
  g_array_append_val(d->prompts, prompt);
}

/* Sequences of no tokens, up to where the others begin. */
static void
write_gap(writer *w, guint32 upto) {
  for (; w->n_seqs < upto; w->seq_rows[++w->n_seqs] = w->n_rows)
    w->seqs[w->n_seqs] = (oct_cuda_seq){.first = w->n_tokens};
}

static gboolean
expands(const oct_cuda_plan *p, guint32 domain, const oct_cuda_padding *padding) {
  for (guint32 i = 0; i < p->n_parts; i++)
    if (oct_step_slices(p->step)[i].domain == domain && round_of(&p->parts[i], padding) == 2)
      return TRUE;
  return FALSE;
}

static void
write_head(oct_cuda_plan *p, const oct_cuda_slots_state *slots, guint32 domain,
           const oct_cuda_padding *padding) {
  oct_cuda_domain_plan *d = &p->domains[domain];
  d->plain = d->n_decode == d->n_seqs && d->n_accepting == d->n_seqs && d->n_rows == d->n_seqs;
  choose_shape(d, padding, expands(p, domain, padding));
  guint32 seqs = MAX(d->padded.n_seqs, d->n_seqs), rows = MAX(d->padded.n_rows, d->n_rows);
  d->layout = oct_cuda_layout_of(seqs, rows, MAX(d->padded.n_tokens, d->n_tokens));
  guint8 *head = grow(&d->head, &d->head_room, d->layout.bytes);
  writer w = {.p = p,
              .slots = slots,
              .d = d,
              .seqs = (oct_cuda_seq *)(gpointer)(head + d->layout.seqs),
              .rows = (oct_cuda_sample_row *)(gpointer)(head + d->layout.rows),
              .seq_rows = (guint32 *)(gpointer)(head + d->layout.seq_rows),
              .picks = (guint32 *)(gpointer)(head + d->layout.picks),
              .given = (guint32 *)(gpointer)(head + d->layout.given),
              .ids = (guint32 *)(gpointer)(head + d->layout.ids),
              .n_extra = d->n_accepting,
              .n_scored = d->n_sampled};
  w.seq_rows[0] = 0;
  /* Sequences of one token first, as attention wants them. */
  for (guint round = 0; round < 3; round++) {
    for (guint32 i = 0; i < p->n_parts; i++) {
      if (oct_step_slices(p->step)[i].domain != domain || round_of(&p->parts[i], padding) != round)
        continue;
      if (round == 2)
        note_prompt(d, &p->parts[i], w.n_tokens);
      write_part(&w, &p->parts[i]);
    }
    if (round == 0 && d->n_seqs > d->n_decode)
      write_gap(&w, d->padded.n_decode);
  }
  *(guint32 *)(gpointer)(head + d->layout.count) = w.n_seqs;
  write_padding(&w, seqs, rows);
}

gboolean
oct_cuda_plan_make(oct_cuda_plan *p, oct_cuda_slots_state *slots, const oct_step *step,
                   const oct_cuda_padding *padding, oct_fault *fault) {
  p->step = step;
  p->n_parts = step->n_slices;
  for (guint32 i = 0; i < p->n_domains; i++) {
    oct_cuda_domain_plan *d = &p->domains[i];
    d->n_seqs = d->n_decode = d->n_tokens = d->n_ids = d->max_queries = d->max_context = 0;
    d->n_rows = d->n_accepting = d->n_sampled = d->most_logprobs = d->n_masks = d->n_pooled = 0;
    g_array_set_size(d->changes, 0);
    g_array_set_size(d->experts, 0);
    g_array_set_size(d->openings, 0);
    g_array_set_size(d->prompts, 0);
  }
  p->feeds_on = 0;
  if (!oct_cuda_slots_apply(slots, step, fault))
    return FALSE;
  for (guint32 i = 0; i < p->n_parts; i++)
    if (!resolve_part(p, slots, i, fault))
      return FALSE;
  add_changes(p, slots);
  add_expert_changes(p, slots);
  for (guint32 i = 0; i < p->n_domains; i++) {
    write_tail(&p->domains[i], i, step, slots);
    write_head(p, slots, i, padding);
  }
  for (guint32 i = 0; i < p->n_parts; i++) {
    const oct_cuda_part *part = &p->parts[i];
    oct_cuda_slots_advance(slots, step, &oct_step_slices(step)[i], part->n_tokens, part->position,
                           part->verify);
  }
  return TRUE;
}
