/* What of the cuda backend needs no GPU: slots and plans, from records to the bytes that ranks get.
 */
#include <string.h>

#include "backends/cuda/plan.h"
#include "tests/contract/fixture.h"

#define GRAPHS 64

typedef struct bench {
  oct_instance_config config;
  oct_cuda_slots_state slots;
  oct_cuda_plan *plan;
  oct_step_builder *builder;
  guint64 number;
  oct_fault fault;
} bench;

static void
bench_open(bench *b) {
  memset(b, 0, sizeof *b);
  b->config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  oct_cuda_slots_open(&b->slots, &b->config);
  b->plan = oct_cuda_plan_new(&b->config);
  b->builder = oct_step_builder_new();
}

static void
bench_close(bench *b) {
  oct_step_builder_free(b->builder);
  oct_cuda_plan_free(b->plan);
  oct_cuda_slots_close(&b->slots);
}

static void
begin(bench *b) {
  oct_step_begin(b->builder, ++b->number, 1);
}

static gboolean
make(bench *b) {
  static const oct_cuda_padding decodes = {.decodes = GRAPHS};
  return oct_cuda_plan_make(b->plan, &b->slots, oct_step_end(b->builder), &decodes, &b->fault);
}

/* A slot with four pages, 4 x slot and on. */
static oct_slot_open *
open_slot(bench *b, guint32 slot, guint32 prompt) {
  oct_slot_open *o = oct_step_add_open(b->builder);
  o->slot = slot;
  o->prompt_tokens = prompt;
  for (guint32 i = 0; i < 4; i++)
    *oct_step_add_change(b->builder) =
        (oct_page_change){.slot = slot, .index = i, .page = 4 * slot + i};
  return o;
}

static oct_slice *
add_prompt(bench *b, guint32 slot, guint32 n) {
  guint32 *ids, at = oct_step_add_tokens(b->builder, NULL, n, &ids);
  for (guint32 i = 0; i < n; i++)
    ids[i] = 100 * slot + i;
  oct_slice *s = oct_step_add_slice(b->builder);
  s->slot = slot;
  s->source = OCT_SOURCE_IDS;
  s->sample = OCT_SAMPLE_LAST;
  s->n_tokens = n;
  s->tokens = at;
  return s;
}

static oct_slice *
add_decode(bench *b, guint32 slot, guint32 position) {
  oct_slice *s = oct_step_add_slice(b->builder);
  s->slot = slot;
  s->source = OCT_SOURCE_DEVICE;
  s->sample = OCT_SAMPLE_LAST;
  s->n_tokens = 1;
  s->position = position;
  return s;
}

static oct_slice *
add_drafts(bench *b, guint32 slot, guint32 position, const guint32 *drafts, guint32 n) {
  guint32 at = oct_step_add_tokens(b->builder, drafts, n, NULL);
  oct_slice *s = add_decode(b, slot, position);
  s->flags = OCT_SLICE_VERIFY;
  s->sample = OCT_SAMPLE_ALL;
  s->n_tokens = n + 1;
  s->tokens = at;
  return s;
}

static const oct_cuda_seq *
seqs_of(const bench *b) {
  const oct_cuda_domain_plan *d = &b->plan->domains[0];
  return (const oct_cuda_seq *)(gconstpointer)(d->head + d->layout.seqs);
}

static const oct_cuda_sample_row *
rows_of(const bench *b) {
  const oct_cuda_domain_plan *d = &b->plan->domains[0];
  return (const oct_cuda_sample_row *)(gconstpointer)(d->head + d->layout.rows);
}

static const guint32 *
words_of(const bench *b, gsize at) {
  return (const guint32 *)(gconstpointer)(b->plan->domains[0].head + at);
}

/* Prompts of n tokens in slots 0 and 1. */
static void
start_two(bench *b, guint32 n) {
  begin(b);
  for (guint32 i = 0; i < 2; i++) {
    open_slot(b, i, n);
    add_prompt(b, i, n);
  }
  g_assert_true(make(b));
}

/* ---------------------------------------------------------------- heads */

static void
sequences_of_one_token_come_first(void) {
  bench b;
  bench_open(&b);
  start_two(&b, 6);
  begin(&b);
  open_slot(&b, 2, 5);
  add_prompt(&b, 2, 5);
  add_decode(&b, 1, OCT_POSITION_AFTER);
  g_assert_true(make(&b));
  const oct_cuda_domain_plan *d = &b.plan->domains[0];
  g_assert_cmpuint(d->n_seqs, ==, 2);
  g_assert_cmpuint(d->n_decode, ==, 1);
  g_assert_cmpuint(d->n_tokens, ==, 6);
  g_assert_cmpuint(d->padded.n_tokens, ==, 0);
  g_assert_cmpuint(seqs_of(&b)[0].slot, ==, 1);
  g_assert_cmpuint(seqs_of(&b)[0].position, ==, 6);
  g_assert_cmpuint(seqs_of(&b)[0].from_slot, ==, 1);
  g_assert_cmpuint(seqs_of(&b)[1].slot, ==, 2);
  g_assert_cmpuint(seqs_of(&b)[1].first, ==, 1);
  g_assert_cmpuint(words_of(&b, d->layout.ids)[4], ==, 204);
  /* Row 0 is the decode's, row 1 the prompt's last token. */
  g_assert_cmpuint(words_of(&b, d->layout.picks)[0], ==, 0);
  g_assert_cmpuint(words_of(&b, d->layout.picks)[1], ==, 5);
  g_assert_cmpuint(b.plan->parts[0].first_row, ==, 1);
  g_assert_cmpuint(b.plan->parts[1].first_row, ==, 0);
  g_assert_cmpuint(b.plan->feeds_on, ==, 1);
  bench_close(&b);
}

static void
rows_come_in_three_runs(void) {
  bench b;
  bench_open(&b);
  begin(&b);
  open_slot(&b, 0, 6);
  add_prompt(&b, 0, 6)->n_prompt_logprobs = 2;
  open_slot(&b, 1, 4);
  add_prompt(&b, 1, 4)->sample = OCT_SAMPLE_ALL;
  g_assert_true(make(&b));
  const oct_cuda_domain_plan *d = &b.plan->domains[0];
  const guint32 *picks = words_of(&b, d->layout.picks), *given = words_of(&b, d->layout.given);
  static const guint32 wanted[] = {5, 9, 6, 7, 8, 0, 1, 2, 3, 4};
  g_assert_cmpuint(d->n_accepting, ==, 2);
  g_assert_cmpuint(d->n_sampled, ==, 5);
  g_assert_cmpuint(d->n_rows, ==, 10);
  g_assert_cmpmem(picks, sizeof wanted, wanted, sizeof wanted);
  for (guint32 i = 0; i < 5; i++)
    g_assert_cmpuint(given[5 + i], ==, i + 1);
  g_assert_cmpuint(rows_of(&b)[5].n_logprobs, ==, 2);
  g_assert_cmpuint(words_of(&b, d->layout.seq_rows)[2], ==, 2);
  bench_close(&b);
}

static void
decodes_are_padded_to_a_graph(void) {
  bench b;
  bench_open(&b);
  begin(&b);
  for (guint32 i = 0; i < 9; i++) {
    open_slot(&b, i, 3);
    add_prompt(&b, i, 3);
  }
  g_assert_true(make(&b));
  begin(&b);
  for (guint32 i = 0; i < 9; i++)
    add_decode(&b, i, 3);
  g_assert_true(make(&b));
  const oct_cuda_domain_plan *d = &b.plan->domains[0];
  g_assert_cmpuint(d->padded.n_tokens, ==, 16);
  g_assert_cmpuint(d->padded.n_seqs, ==, 16);
  g_assert_cmpuint(d->padded.n_rows, ==, 16);
  g_assert_true(d->plain);
  g_assert_cmpuint(words_of(&b, d->layout.count)[0], ==, 9);
  g_assert_cmpuint(rows_of(&b)[8].seq, ==, 8);
  g_assert_cmpuint(rows_of(&b)[9].seq, ==, OCT_CUDA_NONE);
  g_assert_cmpuint(words_of(&b, d->layout.seq_rows)[16], ==, 9);
  bench_close(&b);
}

/* Three decodes and a prompt of 9 tokens: a gap of one sequence stands between them. */
static void
mixed_steps_are_padded_apart(void) {
  static const oct_cuda_padding padding = {.decodes = GRAPHS, .tokens = 64, .rows = 8, .seqs = 8};
  bench b;
  bench_open(&b);
  begin(&b);
  for (guint32 i = 0; i < 3; i++) {
    open_slot(&b, i, 3);
    add_prompt(&b, i, 3);
  }
  g_assert_true(make(&b));
  begin(&b);
  open_slot(&b, 3, 9);
  add_prompt(&b, 3, 9);
  for (guint32 i = 0; i < 3; i++)
    add_decode(&b, i, 3);
  g_assert_true(oct_cuda_plan_make(b.plan, &b.slots, oct_step_end(b.builder), &padding, &b.fault));
  const oct_cuda_domain_plan *d = &b.plan->domains[0];
  g_assert_cmpuint(d->padded.n_tokens, ==, 16);
  g_assert_cmpuint(d->padded.n_decode, ==, 4);
  g_assert_cmpuint(d->padded.n_seqs, ==, 5);
  g_assert_cmpuint(d->padded.n_rows, ==, 4);
  g_assert_cmpuint(words_of(&b, d->layout.count)[0], ==, 5);
  g_assert_cmpuint(seqs_of(&b)[3].n_tokens, ==, 0);
  g_assert_cmpuint(seqs_of(&b)[3].first, ==, 3);
  g_assert_cmpuint(seqs_of(&b)[4].first, ==, 3);
  g_assert_cmpuint(seqs_of(&b)[4].n_tokens, ==, 9);
  g_assert_cmpuint(b.plan->parts[0].seq, ==, 4);
  g_assert_cmpuint(rows_of(&b)[3].seq, ==, 4);
  static const guint32 rows[] = {0, 1, 2, 3, 3, 4};
  g_assert_cmpmem(words_of(&b, d->layout.seq_rows), sizeof rows, rows, sizeof rows);
  bench_close(&b);
}

static void
steps_beyond_the_largest_graph_are_not_padded(void) {
  static const oct_cuda_padding small = {.decodes = GRAPHS, .tokens = 8, .rows = 8, .seqs = 8};
  bench b;
  bench_open(&b);
  begin(&b);
  open_slot(&b, 0, 9);
  add_prompt(&b, 0, 9);
  g_assert_true(oct_cuda_plan_make(b.plan, &b.slots, oct_step_end(b.builder), &small, &b.fault));
  g_assert_cmpuint(b.plan->domains[0].padded.n_tokens, ==, 0);
  bench_close(&b);
}

/* A decode, a prompt of 3 tokens and one of 9, which comes first in the record: it is the batch's
 * last, and the step is not padded. */
static void
prompts_that_are_expanded_come_last(void) {
  static const oct_cuda_padding padding = {
      .decodes = GRAPHS, .tokens = 64, .rows = 8, .seqs = 8, .expand = 5};
  bench b;
  bench_open(&b);
  begin(&b);
  open_slot(&b, 0, 3);
  add_prompt(&b, 0, 3);
  g_assert_true(make(&b));
  begin(&b);
  open_slot(&b, 1, 9);
  add_prompt(&b, 1, 9);
  open_slot(&b, 2, 3);
  add_prompt(&b, 2, 3);
  add_decode(&b, 0, 3);
  g_assert_true(oct_cuda_plan_make(b.plan, &b.slots, oct_step_end(b.builder), &padding, &b.fault));
  const oct_cuda_domain_plan *d = &b.plan->domains[0];
  g_assert_cmpuint(d->padded.n_tokens, ==, 0);
  g_assert_cmpuint(d->prompts->len, ==, 1);
  const oct_cuda_prompt *prompt = &g_array_index(d->prompts, oct_cuda_prompt, 0);
  g_assert_cmpuint(prompt->first, ==, 4);
  g_assert_cmpuint(prompt->n_tokens, ==, 9);
  g_assert_cmpuint(prompt->position, ==, 0);
  g_assert_cmpuint(prompt->slot, ==, 1);
  g_assert_cmpuint(b.plan->parts[0].seq, ==, 2);
  g_assert_cmpuint(b.plan->parts[1].seq, ==, 1);
  g_assert_cmpuint(b.plan->parts[2].seq, ==, 0);
  /* The next step has none. */
  begin(&b);
  add_decode(&b, 0, 4);
  g_assert_true(oct_cuda_plan_make(b.plan, &b.slots, oct_step_end(b.builder), &padding, &b.fault));
  g_assert_cmpuint(d->prompts->len, ==, 0);
  bench_close(&b);
}

static void
graph_sizes_hold_what_they_are_for(void) {
  for (guint32 n = 1; n <= 2048; n++) {
    guint32 tokens = oct_cuda_graph_tokens(n, 2048);
    g_assert_cmpuint(tokens, >=, n);
    g_assert_cmpuint(tokens, <, n + MAX(16, n / 8));
    g_assert_cmpuint(oct_cuda_graph_tokens(tokens, 2048), ==, tokens);
    g_assert_cmpuint(oct_cuda_graph_tokens(n, tokens - 1), ==, 0);
  }
  for (guint32 n = 1; n <= 512; n++) {
    guint32 size = oct_cuda_graph_size(n, 512);
    g_assert_cmpuint(size, >=, n);
    g_assert_cmpuint(size, <=, MAX(2 * n, 8));
    g_assert_cmpuint(oct_cuda_graph_size(size, 512), ==, size);
    g_assert_cmpuint(oct_cuda_graph_size(n, size - 1), ==, 0);
  }
  g_assert_cmpuint(oct_cuda_graph_size(0, 512), ==, 0);
}

/* ---------------------------------------------------------------- what comes before */

static void
the_last_change_of_a_page_holds(void) {
  bench b;
  bench_open(&b);
  begin(&b);
  open_slot(&b, 3, 5);
  *oct_step_add_change(b.builder) = (oct_page_change){.slot = 3, .index = 1, .page = 60};
  add_prompt(&b, 3, 5);
  g_assert_true(make(&b));
  const GArray *changes = b.plan->domains[0].changes;
  const oct_glue_change *c = &g_array_index(changes, oct_glue_change, 0);
  g_assert_cmpuint(changes->len, ==, 5);
  g_assert_cmpuint(c[1].at, ==, c[4].at);
  g_assert_cmpuint(c[1].page, ==, 60);
  g_assert_cmpuint(c[4].page, ==, 60);
  g_assert_cmpuint(c[2].page, ==, 14);
  bench_close(&b);
}

static void
openings_bring_what_slots_need(void) {
  bench b;
  bench_open(&b);
  begin(&b);
  static const guint32 ids[] = {7, 8, 9}, stops[] = {2, 5};
  static const oct_token_bias biases[] = {{11, -3}};
  oct_slot_open *o = open_slot(&b, 0, 2);
  o->presence_penalty = 1;
  o->min_tokens = 2;
  o->history = oct_step_add_tokens(b.builder, ids, 3, NULL);
  o->n_history = 3;
  o->stops = oct_step_add_tokens(b.builder, stops, 2, NULL);
  o->n_stops = 2;
  o->biases = oct_step_add_biases(b.builder, biases, 1);
  o->n_biases = 1;
  add_prompt(&b, 0, 2);
  g_assert_true(make(&b));
  const oct_cuda_domain_plan *d = &b.plan->domains[0];
  g_assert_cmpuint(d->openings->len, ==, 1);
  const oct_cuda_opening *opening = &g_array_index(d->openings, oct_cuda_opening, 0);
  g_assert_cmpmem(d->tail + opening->ids, 12, ids, 12);
  g_assert_cmpmem(d->tail + opening->stops, 8, stops, 8);
  g_assert_cmpmem(d->tail + opening->biases, 8, biases, 8);
  g_assert_cmpuint(opening->n_prompt, ==, 2);
  /* Two outputs are too early for the stops, the third is not. */
  for (guint32 i = 0; i < 3; i++) {
    g_assert_cmpuint(rows_of(&b)->n_suppressed, ==, i < 2 ? 2 : 0);
    g_assert_cmpuint(rows_of(&b)->n_biases, ==, 1);
    g_assert_nonnull(rows_of(&b)->counts);
    begin(&b);
    add_decode(&b, 0, OCT_POSITION_AFTER);
    g_assert_true(make(&b));
  }
  bench_close(&b);
}

/* ---------------------------------------------------------------- drafts */

static void
drafts_behind_an_end_are_not_run(void) {
  bench b;
  bench_open(&b);
  start_two(&b, 4);
  static const guint32 drafts[] = {50, FIXTURE_EOS, 51};
  begin(&b);
  add_drafts(&b, 0, 4, drafts, 3);
  g_assert_true(make(&b));
  g_assert_cmpuint(b.plan->parts[0].n_tokens, ==, 2);
  g_assert_cmpuint(b.plan->parts[0].n_rows, ==, 2);
  bench_close(&b);
}

static void
what_follows_drafts_is_the_devices_to_know(void) {
  bench b;
  bench_open(&b);
  start_two(&b, 4);
  static const guint32 drafts[] = {50, 51, 52};
  begin(&b);
  add_drafts(&b, 0, 4, drafts, 3);
  g_assert_true(make(&b));
  begin(&b);
  add_decode(&b, 0, OCT_POSITION_AFTER);
  g_assert_true(make(&b));
  g_assert_cmpuint(b.plan->parts[0].position, ==, OCT_NO_INDEX);
  g_assert_cmpuint(seqs_of(&b)->position, ==, OCT_CUDA_NONE);
  g_assert_cmpuint(b.plan->domains[0].max_context, ==, 9);
  /* Two were accepted; then one more: the position is known again. */
  oct_cuda_slots_settle(&b.slots, 0, 1, 2, 4, 2);
  oct_cuda_slots_settle(&b.slots, 0, 1, 3, OCT_NO_INDEX, 1);
  begin(&b);
  add_decode(&b, 0, OCT_POSITION_AFTER);
  g_assert_true(make(&b));
  g_assert_cmpuint(b.plan->parts[0].position, ==, 7);
  bench_close(&b);
}

static void
penalties_leave_no_drafts(void) {
  bench b;
  bench_open(&b);
  begin(&b);
  open_slot(&b, 0, 3)->frequency_penalty = 0.5f;
  add_prompt(&b, 0, 3);
  g_assert_true(make(&b));
  static const guint32 drafts[] = {50, 51};
  begin(&b);
  add_drafts(&b, 0, 3, drafts, 2);
  g_assert_true(make(&b));
  g_assert_cmpuint(b.plan->parts[0].n_tokens, ==, 1);
  bench_close(&b);
}

/* ---------------------------------------------------------------- breaches */

static void
expect_breach(bench *b, const char *what) {
  g_assert_false(make(b));
  g_assert_cmpint(b->fault.severity, ==, OCT_SEVERITY_FATAL);
  g_test_message("%s", b->fault.message);
  g_assert_nonnull(strstr(b->fault.message, what));
  bench_close(b);
}

static void
breaches_are_found(void) {
  bench b;
  bench_open(&b);
  begin(&b);
  add_prompt(&b, 5, 3);
  expect_breach(&b, "not open");
  bench_open(&b);
  begin(&b);
  open_slot(&b, 0, 70);
  add_prompt(&b, 0, 70);
  expect_breach(&b, "no page 4");
  bench_open(&b);
  begin(&b);
  open_slot(&b, 0, 20);
  *oct_step_add_change(b.builder) = (oct_page_change){.op = OCT_PAGE_FIRST_LIVE, .index = 1};
  add_prompt(&b, 0, 20);
  expect_breach(&b, "given up");
  bench_open(&b);
  begin(&b);
  open_slot(&b, 0, 4);
  add_prompt(&b, 0, 4)->sample = OCT_SAMPLE_NONE;
  g_assert_true(make(&b));
  begin(&b);
  add_decode(&b, 0, 4);
  expect_breach(&b, "no token");
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/plan/sequences-of-one-token-come-first",
                  sequences_of_one_token_come_first);
  g_test_add_func("/cuda/plan/rows-come-in-three-runs", rows_come_in_three_runs);
  g_test_add_func("/cuda/plan/decodes-are-padded-to-a-graph", decodes_are_padded_to_a_graph);
  g_test_add_func("/cuda/plan/mixed-steps-are-padded-apart", mixed_steps_are_padded_apart);
  g_test_add_func("/cuda/plan/steps-beyond-the-largest-graph-are-not-padded",
                  steps_beyond_the_largest_graph_are_not_padded);
  g_test_add_func("/cuda/plan/prompts-that-are-expanded-come-last",
                  prompts_that_are_expanded_come_last);
  g_test_add_func("/cuda/plan/graph-sizes-hold-what-they-are-for",
                  graph_sizes_hold_what_they_are_for);
  g_test_add_func("/cuda/plan/the-last-change-of-a-page-holds", the_last_change_of_a_page_holds);
  g_test_add_func("/cuda/plan/openings-bring-what-slots-need", openings_bring_what_slots_need);
  g_test_add_func("/cuda/plan/drafts-behind-an-end-are-not-run", drafts_behind_an_end_are_not_run);
  g_test_add_func("/cuda/plan/what-follows-drafts-is-the-devices-to-know",
                  what_follows_drafts_is_the_devices_to_know);
  g_test_add_func("/cuda/plan/penalties-leave-no-drafts", penalties_leave_no_drafts);
  g_test_add_func("/cuda/plan/breaches-are-found", breaches_are_found);
  return g_test_run();
}
