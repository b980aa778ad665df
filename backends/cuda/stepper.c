/* A rank from its opening to the logits of a step. */
#include <string.h>

#include "backends/cuda/residency.h"
#include "backends/cuda/stepper-internal.h"
#include "engine/base/assert.h"

#define LOGIT_ROWS_MIN 64
#define LOGIT_ROWS_MAX 512

/* ---------------------------------------------------------------- opening */

static void *
take(oct_cuda_stepper *s, gsize n, gsize bytes, const char *what) {
  return oct_cuda_alloc(&s->rank, (guint64)n * bytes, what);
}

static void
make_inputs(oct_cuda_stepper *s) {
  s->n_inputs = s->rank.group->n_stages > 1 ? s->options.ring : 1;
  s->inputs = g_new0(oct_cuda_inputs, s->n_inputs);
  gsize slots = s->config->max_slots, tokens = s->max_tokens;
  for (guint32 i = 0; i < s->n_inputs; i++) {
    oct_cuda_inputs *in = &s->inputs[i];
    in->head = take(s, 1, s->head_bytes, "a step's record");
    in->batch.ids = take(s, tokens, sizeof(guint32), "a batch");
    in->batch.token_position = take(s, tokens, sizeof(guint32), "a batch");
    in->batch.token_seq = take(s, tokens, sizeof(guint32), "a batch");
    in->batch.seq_first = take(s, slots + 1, sizeof(guint32), "a batch");
    in->batch.seq_start = take(s, slots, sizeof(guint32), "a batch");
    in->batch.seq_slot = take(s, slots, sizeof(guint32), "a batch");
    in->span = take(s, oct_cuda_span_bytes(tokens), 1, "sampled tokens");
    in->tokens = (guint32 *)(in->span + 1);
    in->accepted = take(s, slots, sizeof(guint32), "sampled tokens");
  }
}

static void
make_places(oct_cuda_stepper *s) {
  s->places = g_new0(oct_cuda_place, s->options.ring);
  gsize slots = s->config->max_slots;
  for (guint32 i = 0; i < s->options.ring; i++) {
    oct_cuda_place *p = &s->places[i];
    p->head = oct_cuda_alloc_pinned(&s->rank, s->head_bytes, "a step's record");
    p->masks = oct_cuda_alloc_pinned(&s->rank, slots * s->words * sizeof *p->masks, "masks");
    p->output.span =
        oct_cuda_alloc_pinned(&s->rank, oct_cuda_span_bytes(s->max_tokens), "sampled tokens");
    p->output.tokens = (guint32 *)(p->output.span + 1);
    p->done = oct_cuda_event_new(&s->rank);
    gsize n_counts;
    if (oct_cuda_forward_counts(s->forward, &n_counts) != NULL)
      p->output.counts =
          oct_cuda_alloc_pinned(&s->rank, n_counts * sizeof(guint32), "expert counts");
    p->output.most_experts = (guint32)(n_counts / s->rank.n_layers);
  }
}

static void
make_buffers(oct_cuda_stepper *s) {
  gsize slots = s->config->max_slots;
  s->slots.last_token = take(s, slots, sizeof(guint32), "slots");
  s->slots.length = take(s, slots, sizeof(guint32), "slots");
  s->tables = take(s, s->options.slots->n_entries, sizeof *s->tables, "page tables");
  for (guint32 g = 0; g < s->options.slots->n_groups; g++)
    s->pass.tables[g] = (oct_cuda_tables){.pages = s->tables + s->options.slots->firsts[g],
                                          .stride = s->options.slots->strides[g]};
  if (!s->rank.is_last)
    return;
  s->counts = g_new0(guint32 *, slots);
  s->biases = take(s, slots * OCT_BIASES_MAX, sizeof *s->biases, "biases of logits");
  s->stops = take(s, slots * OCT_CUDA_STOPS_MAX, sizeof *s->stops, "suppressed tokens");
  s->masks = take(s, slots * s->words, sizeof *s->masks, "masks");
  s->sample_workspace =
      take(s, oct_cuda_sample_workspace(s->logit_rows, s->config->spec->vocab), 1, "sampling");
  s->logits_ready = oct_cuda_event_new(&s->rank);
}

/* Floats of the largest array that the ranks of a tensor group gather: logits, or what goes to
 * experts that work on a latent. */
static gsize
gathered_of(const oct_cuda_stepper *s) {
  gsize floats = s->rank.is_last ? (gsize)s->logit_rows * s->model.head_rows : 0;
  for (guint32 i = 0; i < s->rank.n_layers; i++) {
    oct_cuda_latent_row row =
        oct_cuda_latent_row_of(&s->model.layers[i], oct_cuda_rank_type(&s->rank));
    floats = MAX(floats, (gsize)s->max_tokens * row.bytes / sizeof(float));
  }
  return floats * s->rank.group->n_tensor;
}

static gboolean
make_forward(oct_cuda_stepper *s) {
  guint32 hidden = s->model.spec->hidden;
  gsize gathered = gathered_of(s);
  for (guint i = 0; i < OCT_CUDA_CIRCLES; i++) {
    gboolean tensor = i == OCT_CUDA_CIRCLE_TENSOR;
    if (s->options.circles[i] == NULL)
      continue;
    s->comms[i] =
        oct_cuda_comm_new(&s->rank, s->options.circles[i],
                          tensor ? (gsize)s->max_tokens * hidden : 0, tensor ? gathered : 0);
    if (s->comms[i] == NULL)
      return FALSE;
  }
  const oct_cuda_forward_options options = {.rank = &s->rank,
                                            .model = &s->model,
                                            .memory = &s->memory,
                                            .comms = s->comms,
                                            .max_tokens = s->max_tokens,
                                            .max_seqs = s->config->max_slots,
                                            .max_context = s->options.slots->max_context,
                                            .logit_rows = s->logit_rows,
                                            .count_experts = s->config->report_experts};
  s->forward = oct_cuda_forward_new(&options);
  return s->forward != NULL;
}

/* The first ranks of a tensor group, of each part of the tokens one, have their memory before the
 * others look at it. */
static gboolean
make_memory(oct_cuda_stepper *s) {
  guint32 tensor = s->rank.tensor, part = tensor % s->rank.group->n_context;
  oct_cuda_stepper *first = s->options.steppers[s->rank.index - tensor + part];
  gboolean is_first = tensor == part;
  if (is_first && !oct_cuda_memory_open(&s->memory, &s->rank, &s->model, NULL))
    return FALSE;
  if (!oct_cuda_group_meet(s->rank.group))
    return FALSE;
  return is_first || oct_cuda_memory_open(&s->memory, &s->rank, &s->model, &first->memory);
}

oct_cuda_stepper *
oct_cuda_stepper_new(const oct_cuda_stepper_options *options) {
  oct_cuda_stepper *s = g_new0(oct_cuda_stepper, 1);
  s->options = *options;
  s->config = options->group->config;
  return s;
}

/* Start-up lines for what took so long: weights on every rank, the rest on the first, which goes
 * through what all do. */
static void
tell_weights(const oct_cuda_stepper *s, gint64 *since_us) {
  gint64 now = g_get_monotonic_time();
  double seconds = (double)MAX(now - *since_us, 1) * 1e-6;
  g_message("cuda: rank %u: %.2f GB of weights in %.1f s, %.2f GB/s", s->rank.index,
            (double)s->model.bytes * 1e-9, seconds, (double)s->model.bytes * 1e-9 / seconds);
  *since_us = now;
}

static void
tell_phase(const oct_cuda_stepper *s, const char *what, guint64 bytes, gint64 *since_us) {
  gint64 now = g_get_monotonic_time();
  g_log(G_LOG_DOMAIN, s->rank.index == 0 ? G_LOG_LEVEL_MESSAGE : G_LOG_LEVEL_INFO,
        "cuda: rank %u: %s: %.2f GiB in %.3f s", s->rank.index, what, (double)bytes / (1u << 30),
        (double)(now - *since_us) * 1e-6);
  *since_us = now;
}

/* Weights, pools, communicators, working memory: each needs what comes before. */
static gboolean
open_parts(oct_cuda_stepper *s) {
  gint64 since = g_get_monotonic_time();
  if (!oct_cuda_rank_open(&s->rank, s->options.group, s->options.index))
    return FALSE;
  tell_phase(s, "device", 0, &since);
  if (!oct_cuda_model_load(&s->model, &s->rank, s->options.source, s->options.slots->max_context,
                           s->options.progress, s->options.user))
    return FALSE;
  tell_weights(s, &since);
  guint64 used = s->rank.used;
  if (!make_memory(s))
    return FALSE;
  tell_phase(s, "pages and states", s->rank.used - used, &since);
  used = s->rank.used;
  if (!make_forward(s))
    return FALSE;
  make_inputs(s);
  make_places(s);
  make_buffers(s);
  if (oct_cuda_has_failed(&s->rank) || !oct_cuda_mail_join(s->options.mail, s))
    return FALSE;
  tell_phase(s, "communicators and working memory", s->rank.used - used, &since);
  return TRUE;
}

/* What the options ask for in a step, or in the opening (0), so that a test sees what comes of it.
 */
static gboolean
go_wrong(oct_cuda_stepper *s, guint64 number) {
  const oct_cuda_options *o = s->rank.group->options;
  gboolean now = number == 0 ? o->fault_open : o->fault_step == number;
  if (!now || o->fault_rank != s->rank.index)
    return TRUE;
  gint64 hang_ns = o->fault_hang ? 2 * o->deadline_ns : 0;
  return oct_cuda_note(&s->rank, oct_glue_fault(s->rank.compute, hang_ns), "a fault");
}

gboolean
oct_cuda_stepper_open(oct_cuda_stepper *s) {
  const oct_instance_config *c = s->config;
  s->max_tokens = MAX(c->max_batched_tokens, c->max_slots);
  s->logit_rows = MIN(s->max_tokens, CLAMP(c->max_slots, LOGIT_ROWS_MIN, LOGIT_ROWS_MAX));
  s->words = (c->spec->vocab + 63) / 64;
  s->head_bytes = oct_cuda_layout_of(c->max_slots, s->max_tokens, s->max_tokens).bytes;
  if (!open_parts(s))
    return FALSE;
  gint64 since = g_get_monotonic_time();
  s->eager = c->eager;
  /* Domains would have to choose the same shape. */
  if (s->rank.group->n_stages == 1 && !s->rank.group->joint &&
      oct_cuda_comm_has_graphs(s->comms[OCT_CUDA_CIRCLE_TENSOR]))
    s->padding =
        (oct_cuda_padding){.decodes = MIN(MIN(c->max_slots, OCT_CUDA_GRAPH_MOST), s->logit_rows),
                           .tokens = MIN(s->max_tokens, OCT_CUDA_GRAPH_TOKENS),
                           .rows = s->logit_rows,
                           .seqs = c->max_slots};
  if (oct_cuda_forward_expands(s->forward))
    s->padding.expand = s->rank.group->options->expand;
  if (!go_wrong(s, 0) || !oct_cuda_stepper_warm_graphs(s) ||
      !oct_cuda_drain(&s->rank, s->rank.compute, "the first graphs"))
    return FALSE;
  tell_phase(s, "graphs", 0, &since);
  return TRUE;
}

gboolean
oct_cuda_stepper_rest(oct_cuda_stepper *s) {
  return oct_cuda_rank_rest(&s->rank);
}

gboolean
oct_cuda_stepper_close(oct_cuda_stepper *s, gboolean give_back) {
  oct_cuda_stepper_free_graphs(s);
  if (give_back) /* it waits for the device */
    oct_cuda_forward_free(s->forward);
  for (guint i = 0; i < OCT_CUDA_CIRCLES; i++)
    oct_cuda_comm_free(s->comms[i]);
  for (guint32 i = 0; s->places != NULL && i < s->options.ring; i++)
    if (s->places[i].done != NULL)
      (void)cudaEventDestroy(s->places[i].done);
  if (s->logits_ready != NULL)
    (void)cudaEventDestroy(s->logits_ready);
  gboolean usable = oct_cuda_rank_close(&s->rank, give_back);
  oct_cuda_model_clear(&s->model);
  g_free(s->counts);
  g_free(s->inputs);
  g_free(s->places);
  g_free(s);
  return usable;
}

/* ---------------------------------------------------------------- what a step brings */

oct_cuda_inputs *
oct_cuda_stepper_inputs(oct_cuda_stepper *s, guint32 at) {
  return &s->inputs[at % s->n_inputs];
}

gboolean
oct_cuda_stepper_move(oct_cuda_stepper *s, void *to, const void *from, gsize bytes,
                      const char *what) {
  cudaStream_t stream = s->rank.compute;
  if (bytes > OCT_GLUE_MOVE_MOST || bytes % sizeof(guint32) != 0)
    return oct_cuda_note(&s->rank, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream),
                         what);
  return oct_cuda_note(&s->rank, oct_glue_move(stream, to, from, bytes), what);
}

/* Bytes of the tail, which the slot goes on needing. */
static gboolean
keep(oct_cuda_stepper *s, void *to, gsize at, gsize bytes) {
  return oct_cuda_stepper_move(s, to, s->tail + at, bytes, "what a slot is opened with");
}

/* Counts of a slot's penalties, its biases, and tokens that are suppressed at first. */
static gboolean
open_slot(oct_cuda_stepper *s, const oct_cuda_opening *o) {
  guint32 vocab = s->config->spec->vocab;
  const guint32 *ids = (const guint32 *)(gconstpointer)(s->tail + o->ids);
  if (o->penalties && s->counts[o->slot] == NULL)
    s->counts[o->slot] = take(s, vocab, sizeof(guint32), "counts of penalties");
  if (oct_cuda_has_failed(&s->rank))
    return FALSE;
  if (o->penalties && !oct_cuda_note(&s->rank,
                                     oct_glue_counts(s->rank.compute, s->counts[o->slot], vocab,
                                                     ids, o->n_ids, o->n_prompt),
                                     "counts of penalties"))
    return FALSE;
  return keep(s, s->biases + (gsize)o->slot * OCT_BIASES_MAX, o->biases,
              o->n_biases * sizeof *s->biases) &&
         keep(s, s->stops + (gsize)o->slot * OCT_CUDA_STOPS_MAX, o->stops,
              o->n_stops * sizeof *s->stops);
}

/* Room for the largest tail so far: it stops growing. */
static gboolean
grow_tail(oct_cuda_stepper *s, oct_cuda_place *p, gsize bytes) {
  if (bytes > p->tail_room) {
    oct_cuda_release(&s->rank, p->tail);
    p->tail_room = 2 * bytes;
    p->tail = oct_cuda_alloc_pinned(&s->rank, p->tail_room, "page changes");
  }
  if (bytes > s->tail_room) {
    oct_cuda_release(&s->rank, s->tail); /* once the steps before this one have read it */
    s->tail_room = 2 * bytes;
    s->tail = take(s, s->tail_room, 1, "page changes");
  }
  return !oct_cuda_has_failed(&s->rank);
}

static gboolean
apply_tail(oct_cuda_stepper *s, const oct_cuda_domain_plan *d, oct_cuda_place *p) {
  if (d->tail_bytes == 0)
    return TRUE;
  if (!grow_tail(s, p, d->tail_bytes))
    return FALSE;
  memcpy(p->tail, d->tail, d->tail_bytes);
  const oct_glue_change *changes = (const oct_glue_change *)(gconstpointer)s->tail;
  if (!oct_cuda_stepper_move(s, s->tail, p->tail, d->tail_bytes, "page changes") ||
      !oct_cuda_note(&s->rank,
                     oct_glue_tables(s->rank.compute, s->tables, changes, d->changes->len),
                     "page tables"))
    return FALSE;
  const oct_glue_change *experts =
      (const oct_glue_change *)(gconstpointer)(s->tail + d->experts_at);
  if (d->experts->len > 0 &&
      !oct_cuda_note(&s->rank,
                     oct_glue_tables(s->rank.compute, oct_cuda_residency_map(s->model.residency),
                                     experts, d->experts->len),
                     "the map of experts"))
    return FALSE;
  for (guint i = 0; s->rank.is_last && i < d->openings->len; i++)
    if (!open_slot(s, &g_array_index(d->openings, oct_cuda_opening, i)))
      return FALSE;
  return TRUE;
}

/* The head with this rank's pointers in it. */
static gboolean
send_head(oct_cuda_stepper *s, const oct_cuda_domain_plan *d, oct_cuda_place *p,
          oct_cuda_inputs *in) {
  oct_assert(d->layout.bytes <= s->head_bytes);
  memcpy(p->head, d->head, d->layout.bytes);
  oct_cuda_sample_row *rows = (oct_cuda_sample_row *)(gpointer)(p->head + d->layout.rows);
  for (guint32 i = 0; i < d->n_rows; i++) {
    oct_cuda_sample_row *row = &rows[i];
    gsize counts = (gsize)row->counts, mask = (gsize)row->mask, biases = (gsize)row->biases,
          stops = (gsize)row->suppressed;
    gboolean last = s->rank.is_last;
    row->counts = counts > 0 && last ? s->counts[counts - 1] : NULL;
    row->mask = mask > 0 && last ? s->masks + (mask - 1) * s->words : NULL;
    row->biases = biases > 0 && last ? s->biases + (biases - 1) * OCT_BIASES_MAX : NULL;
    row->suppressed = stops > 0 && last ? s->stops + (stops - 1) * OCT_CUDA_STOPS_MAX : NULL;
  }
  return oct_cuda_stepper_move(s, in->head, p->head, d->layout.bytes, "a step's record");
}

/* A page, a state or an expert. */
static gboolean
make_copy(oct_cuda_stepper *s, const oct_cuda_memory *peer, const oct_copy *copy,
          cudaStream_t stream) {
  if (copy->kind == OCT_COPY_EXPERT)
    return oct_cuda_residency_copy(s->model.residency, copy, stream);
  return oct_cuda_memory_copy(&s->memory, peer, copy, stream);
}

gboolean
oct_cuda_stepper_make_copies(oct_cuda_stepper *s, const oct_step *step, oct_copy_order order) {
  const oct_copy *copies = oct_step_copies(step);
  for (guint32 i = 0; i < step->n_copies; i++)
    if (copies[i].order == order && !make_copy(s, NULL, &copies[i], s->rank.compute))
      return FALSE;
  return TRUE;
}

/* ---------------------------------------------------------------- tokens of earlier steps */

/* A stage that is not the last takes in what the last one sampled in a step, whose inputs it still
 * has. */
static gboolean
take_in(oct_cuda_stepper *s, guint64 number) {
  guint32 at = (guint32)(number % s->options.ring);
  oct_cuda_inputs *in = oct_cuda_stepper_inputs(s, at);
  const guint32 *tokens = oct_cuda_mail_tokens(s->options.mail, s, number, at);
  if (tokens == NULL)
    return FALSE;
  const oct_cuda_accept call = {.batch = &in->batch,
                                .rows = in->rows,
                                .seq_rows = in->seq_rows,
                                .tokens = tokens,
                                .vocab = s->config->spec->vocab,
                                .accepted = in->accepted,
                                .slots = s->slots};
  return oct_cuda_note(&s->rank, oct_cuda_accept_tokens(&s->rank.queue, &call), "tokens");
}

static gboolean
catch_up(oct_cuda_stepper *s, const oct_cuda_plan *plan) {
  guint64 number = plan->step->number;
  /* What this step's place in the ring held is given up: it is taken in before. */
  guint64 oldest = number > s->options.ring ? number - s->options.ring : 0;
  guint64 upto = MAX(plan->feeds_on, oldest);
  for (; s->caught_up < upto; s->caught_up++) {
    const oct_cuda_inputs *in =
        oct_cuda_stepper_inputs(s, (guint32)((s->caught_up + 1) % s->options.ring));
    if (in->n_rows > 0 && !take_in(s, s->caught_up + 1))
      return FALSE;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- the first half */

static void
set_batch(oct_cuda_stepper *s, const oct_cuda_domain_plan *d, oct_cuda_inputs *in) {
  const oct_cuda_shape *shape = &d->padded;
  gboolean padded = shape->n_tokens > 0;
  in->batch.n_tokens = padded ? shape->n_tokens : d->n_tokens;
  in->batch.n_seqs = padded ? shape->n_seqs : d->n_seqs;
  in->rows = (const oct_cuda_sample_row *)(gconstpointer)(in->head + d->layout.rows);
  in->seq_rows = (const guint32 *)(gconstpointer)(in->head + d->layout.seq_rows);
  in->n_rows = d->n_rows;
  s->pass.batch = &in->batch;
  s->pass.n_decode = padded ? shape->n_decode : d->n_decode;
  s->pass.max_queries = d->max_queries;
  if (padded)
    s->pass.max_queries = shape->n_decode == shape->n_seqs ? 1 : shape->n_tokens;
  s->pass.max_context = d->max_context;
  s->pass.prompts = (const oct_cuda_prompt *)(gconstpointer)d->prompts->data;
  s->pass.n_prompts = d->prompts->len;
}

/* Experts take as many rows from every domain: the most that one has. What a domain has less is
 * padding, one sequence of no tokens where it has none. */
static void
join_batch(oct_cuda_stepper *s, const oct_cuda_plan *plan, oct_cuda_inputs *in) {
  for (guint32 i = 0; i < plan->n_domains; i++)
    in->batch.n_tokens = MAX(in->batch.n_tokens, plan->domains[i].n_tokens);
  if (in->batch.n_seqs == 0) {
    in->batch.n_seqs = s->pass.n_decode = 1;
    s->pass.max_queries = s->pass.max_context = 1;
  }
}

void
oct_cuda_stepper_enqueue_forward(oct_cuda_stepper *s, const oct_cuda_domain_plan *d,
                                 oct_cuda_inputs *in) {
  /* Small kernels gain by it; at larger batches it takes from the products. */
  s->rank.queue.flags &= ~(guint32)OCT_CUDA_OVERLAP;
  if (in->batch.n_tokens <= s->rank.group->options->overlap)
    s->rank.queue.flags |= OCT_CUDA_OVERLAP;
  const oct_cuda_prepare prepare = {
      .batch = &in->batch,
      .seqs = (const oct_cuda_seq *)(gconstpointer)(in->head + d->layout.seqs),
      .count = (const guint32 *)(gconstpointer)(in->head + d->layout.count),
      .ids = (const guint32 *)(gconstpointer)(in->head + d->layout.ids),
      .slots = s->slots,
      .stamp = &in->span->begin};
  (void)oct_cuda_note(&s->rank, oct_cuda_prepare_batch(&s->rank.queue, &prepare), "a batch");
  oct_cuda_forward_run(s->forward, &s->pass);
  guint32 rows = MIN(s->logit_rows, MAX(d->n_rows, d->padded.n_rows));
  const guint32 *picks = (const guint32 *)(gconstpointer)(in->head + d->layout.picks);
  if (s->rank.is_last && rows > 0)
    oct_cuda_forward_logits(s->forward, d->plain ? NULL : picks, rows);
}

static gboolean
run(oct_cuda_stepper *s, const oct_cuda_plan *plan, const oct_cuda_domain_plan *d, guint32 at,
    oct_cuda_inputs *in) {
  guint64 number = plan->step->number;
  if (!s->rank.is_first &&
      !oct_cuda_mail_receive(s->options.mail, s, number, at, in->batch.n_tokens))
    return FALSE;
  if (d->padded.n_tokens == 0)
    oct_cuda_stepper_enqueue_forward(s, d, in);
  else if (!oct_cuda_stepper_run_padded(s, d, in))
    return FALSE;
  return s->rank.is_last || oct_cuda_mail_send(s->options.mail, s, number, at, in->batch.n_tokens);
}

gboolean
oct_cuda_stepper_begin(oct_cuda_stepper *s, const oct_cuda_plan *plan, guint32 at) {
  const oct_cuda_domain_plan *d = &plan->domains[s->rank.domain];
  oct_cuda_place *p = &s->places[at];
  oct_cuda_inputs *in = oct_cuda_stepper_inputs(s, at);
  if (!s->rank.is_last && !catch_up(s, plan))
    return FALSE;
  if (!apply_tail(s, d, p) || !oct_cuda_stepper_make_copies(s, plan->step, OCT_COPY_BEFORE) ||
      !send_head(s, d, p, in))
    return FALSE;
  set_batch(s, d, in);
  if (s->rank.group->joint)
    join_batch(s, plan, in);
  if (!go_wrong(s, plan->step->number))
    return FALSE;
  return (in->batch.n_tokens == 0 || run(s, plan, d, at, in)) && !oct_cuda_has_failed(&s->rank);
}

gboolean
oct_cuda_stepper_wait_logits(oct_cuda_stepper *s) {
  return oct_cuda_note(&s->rank, cudaEventRecord(s->logits_ready, s->rank.compute), "an event") &&
         oct_cuda_wait(&s->rank, s->logits_ready, "a step's logits");
}

/* ---------------------------------------------------------------- copies beside steps */

gboolean
oct_cuda_stepper_copy(oct_cuda_stepper *s, const oct_cuda_beside *b) {
  cudaStream_t stream = b->in ? s->rank.copy_in : s->rank.copy_out;
  if (b->after != OCT_NO_INDEX &&
      !oct_cuda_note(&s->rank, cudaStreamWaitEvent(stream, s->places[b->after].done, 0),
                     "an event"))
    return FALSE;
  for (guint32 i = 0; i < b->n; i++)
    if (!make_copy(s, b->peer, &b->copies[i], stream))
      return FALSE;
  return b->done == NULL || oct_cuda_note(&s->rank, cudaEventRecord(b->done, stream), "an event");
}

/* ---------------------------------------------------------------- inspect */

oct_cuda_rank *
oct_cuda_stepper_rank(oct_cuda_stepper *s) {
  return &s->rank;
}

const oct_cuda_memory *
oct_cuda_stepper_memory(const oct_cuda_stepper *s) {
  return &s->memory;
}

guint32
oct_cuda_stepper_graph_most(const oct_cuda_stepper *s) {
  return s->eager ? 0 : s->padding.decodes;
}

const oct_cuda_padding *
oct_cuda_stepper_padding(const oct_cuda_stepper *s) {
  return &s->padding;
}

guint64
oct_cuda_stepper_free_bytes(oct_cuda_stepper *s) {
  gsize left = 0, total = 0;
  int before = 0;
  (void)cudaGetDevice(&before);
  (void)oct_cuda_note(&s->rank, cudaSetDevice(s->rank.gpu), "its device");
  (void)oct_cuda_note(&s->rank, cudaMemGetInfo(&left, &total), "its memory");
  (void)cudaSetDevice(before);
  return left;
}
