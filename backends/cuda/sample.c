/* The second half of a step: from logits to tokens, vectors and what the host reads. */
#include <string.h>

#include "backends/cuda/stepper-internal.h"

/* ---------------------------------------------------------------- masks */

static gboolean
send_masks(oct_cuda_stepper *s, const oct_cuda_plan *plan, const oct_cuda_domain_plan *d,
           oct_cuda_place *p, const guint64 *const *masks) {
  if (d->n_masks == 0)
    return TRUE;
  for (guint32 i = 0; i < plan->n_parts; i++) {
    const oct_cuda_part *part = &plan->parts[i];
    if (part->mask == OCT_NO_INDEX || oct_step_slices(plan->step)[i].domain != s->rank.domain)
      continue;
    guint64 *to = p->masks + (gsize)part->mask * s->words;
    memcpy(to, masks[i], s->words * sizeof *to);
  }
  return oct_cuda_stepper_move(s, s->masks, p->masks,
                               (gsize)d->n_masks * s->words * sizeof *s->masks, "masks");
}

/* ---------------------------------------------------------------- rows of logits */

static gboolean
grow_logprobs(oct_cuda_stepper *s, const oct_cuda_domain_plan *d, oct_cuda_place *p) {
  gsize entries = (gsize)d->n_rows * (1 + d->most_logprobs);
  if (d->most_logprobs == 0)
    return TRUE;
  if (entries > p->logprobs_room) {
    oct_cuda_release(&s->rank, p->output.logprobs);
    p->logprobs_room = 2 * entries;
    p->output.logprobs =
        oct_cuda_alloc_pinned(&s->rank, p->logprobs_room * sizeof *p->output.logprobs, "logprobs");
  }
  if (entries > s->logprobs_room) {
    oct_cuda_release(&s->rank, s->logprobs); /* once the steps before this one have ended */
    s->logprobs_room = 2 * entries;
    s->logprobs = oct_cuda_alloc(&s->rank, s->logprobs_room * sizeof *s->logprobs, "logprobs");
  }
  return !oct_cuda_has_failed(&s->rank);
}

/* Rows [first, first + n), whose logits are there: sampled, or given by the prompt; then scored. */
static gboolean
take_rows(oct_cuda_stepper *s, const oct_cuda_domain_plan *d, const oct_cuda_inputs *in,
          guint32 first, guint32 n) {
  gsize stride;
  const float *logits = oct_cuda_forward_logits_at(s->forward, &stride);
  guint32 sampled = first < d->n_sampled ? MIN(n, d->n_sampled - first) : 0;
  const oct_cuda_sample sample = {.n = sampled,
                                  .vocab = s->config->spec->vocab,
                                  .logits = logits,
                                  .stride = stride,
                                  .batch = &in->batch,
                                  .rows = in->rows + first,
                                  .tokens = in->tokens + first,
                                  .workspace = s->sample_workspace};
  if (sampled > 0 &&
      !oct_cuda_note(&s->rank, oct_cuda_sample_rows(&s->rank.queue, &sample), "sampling"))
    return FALSE;
  const guint32 *given = (const guint32 *)(gconstpointer)(in->head + d->layout.given);
  if (sampled < n &&
      !oct_cuda_stepper_move(s, in->tokens + first + sampled, given + first + sampled,
                             (n - sampled) * sizeof *given, "scored tokens"))
    return FALSE;
  if (d->most_logprobs == 0)
    return TRUE;
  const oct_cuda_logprobs logprobs = {.n = n,
                                      .vocab = s->config->spec->vocab,
                                      .most = d->most_logprobs,
                                      .logits = logits,
                                      .stride = stride,
                                      .rows = in->rows + first,
                                      .tokens = in->tokens + first,
                                      .out = s->logprobs + (gsize)first * (1 + d->most_logprobs)};
  return oct_cuda_note(&s->rank, oct_cuda_logprobs_rows(&s->rank.queue, &logprobs), "logprobs");
}

static gboolean
sample(oct_cuda_stepper *s, const oct_cuda_domain_plan *d, const oct_cuda_inputs *in) {
  const guint32 *picks = (const guint32 *)(gconstpointer)(in->head + d->layout.picks);
  for (guint32 first = 0; first < d->n_rows; first += s->logit_rows) {
    guint32 n = MIN(s->logit_rows, d->n_rows - first);
    if (first > 0)
      oct_cuda_forward_logits(s->forward, picks + first, n);
    if (oct_cuda_has_failed(&s->rank) || !take_rows(s, d, in, first, n))
      return FALSE;
  }
  const oct_cuda_accept accept = {.batch = &in->batch,
                                  .rows = in->rows,
                                  .seq_rows = in->seq_rows,
                                  .tokens = in->tokens,
                                  .vocab = s->config->spec->vocab,
                                  .accepted = in->accepted,
                                  .slots = s->slots,
                                  .stamp = &in->span->end};
  return oct_cuda_note(&s->rank, oct_cuda_accept_tokens(&s->rank.queue, &accept), "tokens");
}

/* ---------------------------------------------------------------- vectors */

static gboolean
pool_part(oct_cuda_stepper *s, const oct_cuda_part *part, const oct_slice *slice, guint32 first) {
  oct_cuda_type type = oct_cuda_rank_type(&s->rank);
  gsize width = s->model.spec->hidden, element = oct_cuda_type_bytes(type);
  const guint8 *x = oct_cuda_forward_normed(s->forward);
  float *out = part->pooled != OCT_NO_INDEX ? s->pooled + part->pooled * width : NULL;
  if (slice->pooling == OCT_POOLING_LAST)
    return out == NULL ||
           oct_cuda_note(&s->rank,
                         oct_cuda_convert(&s->rank.queue, type,
                                          x + (first + part->n_tokens - 1) * width * element,
                                          OCT_CUDA_F32, out, width),
                         "a pooled vector");
  const oct_glue_pool pool = {.type = type,
                              .x = x + first * width * element,
                              .n = part->n_tokens,
                              .width = (guint32)width,
                              .sum = s->sums + part->slot * width,
                              .begins = part->position == 0,
                              .count = part->position + part->n_tokens,
                              .out = out};
  return oct_cuda_note(&s->rank, oct_glue_pool_rows(s->rank.compute, &pool), "a pooled vector");
}

static gboolean
pool(oct_cuda_stepper *s, const oct_cuda_plan *plan, const oct_cuda_domain_plan *d) {
  const oct_cuda_seq *seqs = (const oct_cuda_seq *)(gconstpointer)(d->head + d->layout.seqs);
  for (guint32 i = 0; i < plan->n_parts; i++) {
    const oct_slice *slice = &oct_step_slices(plan->step)[i];
    const oct_cuda_part *part = &plan->parts[i];
    if (slice->domain != s->rank.domain || slice->pooling == OCT_POOLING_NONE)
      continue;
    gsize vectors = (gsize)s->config->max_slots * s->model.spec->hidden;
    if (s->sums == NULL) {
      s->sums = oct_cuda_alloc(&s->rank, vectors * sizeof *s->sums, "pooled vectors");
      s->pooled = oct_cuda_alloc(&s->rank, vectors * sizeof *s->pooled, "pooled vectors");
    }
    if (oct_cuda_has_failed(&s->rank) || !pool_part(s, part, slice, seqs[part->seq].first))
      return FALSE;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- to the host */

static gboolean
fetch(oct_cuda_stepper *s, void *to, const void *from, gsize bytes) {
  return oct_cuda_stepper_move(s, to, from, bytes, "a step's result");
}

static gboolean
fetch_pooled(oct_cuda_stepper *s, const oct_cuda_domain_plan *d, oct_cuda_place *p) {
  gsize width = s->model.spec->hidden;
  if (d->n_pooled == 0)
    return TRUE;
  if (p->output.pooled == NULL)
    p->output.pooled = oct_cuda_alloc_pinned(
        &s->rank, (gsize)s->config->max_slots * width * sizeof(float), "pooled vectors");
  return !oct_cuda_has_failed(&s->rank) &&
         fetch(s, p->output.pooled, s->pooled, d->n_pooled * width * sizeof(float));
}

/* The first rank of a tensor group speaks for all. */
static gboolean
fetch_all(oct_cuda_stepper *s, const oct_cuda_domain_plan *d, const oct_cuda_inputs *in,
          oct_cuda_place *p) {
  gsize n_counts;
  const guint32 *counts = oct_cuda_forward_counts(s->forward, &n_counts);
  gboolean joint = s->rank.group->joint; /* the first domain counts for all */
  if (s->rank.tensor != 0 || (d->n_tokens == 0 && !joint))
    return TRUE;
  if (counts != NULL && !fetch(s, p->output.counts, counts, n_counts * sizeof *counts))
    return FALSE;
  if (!s->rank.is_last || d->n_tokens == 0)
    return TRUE;
  gsize entries = d->most_logprobs > 0 ? (gsize)d->n_rows * (1 + d->most_logprobs) : 0;
  return fetch(s, p->output.span, in->span, oct_cuda_span_bytes(d->n_rows)) &&
         fetch(s, p->output.logprobs, s->logprobs, entries * sizeof *s->logprobs) &&
         fetch_pooled(s, d, p);
}

gboolean
oct_cuda_stepper_finish(oct_cuda_stepper *s, const oct_cuda_plan *plan, guint32 at,
                        const guint64 *const *masks) {
  const oct_cuda_domain_plan *d = &plan->domains[s->rank.domain];
  oct_cuda_place *p = &s->places[at];
  oct_cuda_inputs *in = oct_cuda_stepper_inputs(s, at);
  if (s->rank.is_last && d->n_tokens > 0 &&
      (!send_masks(s, plan, d, p, masks) || !grow_logprobs(s, d, p) || !sample(s, d, in) ||
       !pool(s, plan, d)))
    return FALSE;
  if (s->rank.is_last && d->n_rows > 0 && s->rank.stage > 0 &&
      !oct_cuda_mail_send_tokens(s->options.mail, s, plan->step->number, at, d->n_rows))
    return FALSE;
  return fetch_all(s, d, in, p) && oct_cuda_stepper_make_copies(s, plan->step, OCT_COPY_AFTER) &&
         oct_cuda_note(&s->rank, cudaEventRecord(p->done, s->rank.compute), "an event");
}

gboolean
oct_cuda_stepper_has_ended(oct_cuda_stepper *s, guint32 at) {
  cudaError_t state = cudaEventQuery(s->places[at].done);
  if (state == cudaErrorNotReady)
    return FALSE;
  if (oct_cuda_comm_is_lost(s->comms[OCT_CUDA_CIRCLE_TENSOR])) {
    oct_cuda_fail(&s->rank, "a rank did not come to a sum");
    return FALSE;
  }
  return oct_cuda_note(&s->rank, state, "a step");
}

const oct_cuda_output *
oct_cuda_stepper_output(const oct_cuda_stepper *s, guint32 at) {
  return &s->places[at].output;
}
