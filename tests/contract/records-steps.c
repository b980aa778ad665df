/* What a step can say: mixes, stages, domains, drafts, adapters, several instances. */
#include "tests/contract/records.h"

static oct_instance_config
dense(void) {
  return fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
}

static oct_instance_config
pipe2(void) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.pipeline = 2;
  oct_instance_config config = fixture_config(fixture_dense(), parallel);
  config.depth = 3; /* two stages and a run-ahead of one */
  return config;
}

static oct_instance_config
data2(void) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.data = 2;
  return fixture_config(fixture_dense(), parallel);
}

static oct_instance_config
context8(void) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.tensor = parallel.decode_context = 8;
  return fixture_config(fixture_latent(), parallel);
}

/* A sequence on the dense model: `pages` pages from `first_page` on, and its prompt in one chunk.
 */
static void
prompt(rig *r, guint32 slot, guint64 key, guint32 n, guint32 output, guint32 first_page,
       guint32 n_pages) {
  rig_slot(r, slot, key, n, output);
  rig_pages(r, slot, 0, 0, n_pages, first_page);
  rig_prefill(r, slot, 0, n, OCT_SAMPLE_LAST);
}

static void
mixed_step(rig *r) {
  oct_event event;
  guint32 n;
  rig_open(r);
  rig_begin(r);
  prompt(r, 0, 0xa, 6, 0, 0, 1);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  /* A decode, the first chunk of a long prompt, and a whole short one with sampling parameters. */
  rig_begin(r);
  rig_decode(r, 0, 6);
  rig_slot(r, 1, 0xb, 24, 0);
  rig_pages(r, 1, 0, 0, 1, 4);
  rig_prefill(r, 1, 0, 10, OCT_SAMPLE_NONE);
  oct_slot_open *open = rig_slot(r, 2, 0xc, 5, 3);
  open->seed = 77;
  open->temperature = 0.5f;
  open->top_k = 40;
  open->top_p = 0.875f;
  open->frequency_penalty = 0.25f;
  open->history = oct_step_add_tokens(r->builder, &g_array_index(r->ids[2], guint32, 0), 5, NULL);
  open->n_history = 5;
  rig_pages(r, 2, 0, 0, 1, 5);
  rig_prefill(r, 2, 0, 5, OCT_SAMPLE_LAST)->n_logprobs = 2;
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  static const guint32 wanted[3] = {1, 0, 1};
  for (guint32 i = 0; i < 3; i++) {
    rig_accepted(&event, i, &n);
    g_assert_cmpuint(n, ==, wanted[i]);
  }
  g_assert_cmpuint(event.result->n_logprobs, ==, 3);
  rig_close(r);
}

static void
scored_prompt(rig *r) {
  static const oct_token_bias biases[] = {{401, -100}, {7, 2.5f}};
  static const guint32 stops[] = {FIXTURE_EOS, 830};
  oct_event event;
  rig_open(r);
  rig_begin(r);
  oct_slot_open *open = rig_slot(r, 0, 0xa, 6, 0);
  open->biases = oct_step_add_biases(r->builder, biases, 2);
  open->n_biases = 2;
  open->stops = oct_step_add_tokens(r->builder, stops, 2, NULL);
  open->n_stops = 2;
  open->min_tokens = 3;
  rig_pages(r, 0, 0, 0, 1, 0);
  rig_score(r, 0, 0, 3, OCT_SAMPLE_NONE, 1);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  g_assert_cmpuint(event.result->n_logprobs, ==, 3 * 2);
  rig_begin(r);
  rig_score(r, 0, 3, 3, OCT_SAMPLE_LAST, 1)->n_logprobs = 2;
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  g_assert_cmpuint(event.result->n_logprobs, ==, 2 * 2 + 3);
  rig_close(r);
}

static void
pooled_prompt(rig *r) {
  oct_event event;
  rig_open(r);
  rig_begin(r);
  prompt(r, 0, 0xa, 6, 0, 0, 1);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  rig_begin(r);
  rig_decode(r, 0, 6);
  rig_slot(r, 1, 0xb, 12, 0);
  rig_pages(r, 1, 0, 0, 1, 4);
  rig_prefill(r, 1, 0, 8, OCT_SAMPLE_NONE)->pooling = OCT_POOLING_MEAN;
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  g_assert_cmpuint(event.result->n_floats, ==, 0);
  rig_begin(r);
  oct_slice *s = rig_prefill(r, 1, 8, 4, OCT_SAMPLE_NONE);
  s->pooling = OCT_POOLING_MEAN;
  s->flags |= OCT_SLICE_POOLED;
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 3, &event);
  g_assert_cmpuint(event.result->n_floats, ==, r->config.spec->hidden);
  rig_close(r);
}

static void
pipeline_run_ahead(rig *r) {
  oct_event event;
  rig_open(r);
  /* Two batches fill the stages; the third step runs ahead of the first one's tokens. */
  rig_begin(r);
  prompt(r, 0, 0xa, 6, 0, 0, 1);
  rig_submit(r);
  rig_begin(r);
  prompt(r, 1, 0xb, 6, 0, 1, 1);
  rig_submit(r);
  rig_begin(r);
  rig_decode(r, 0, OCT_POSITION_AFTER);
  rig_submit(r);
  rig_begin(r);
  rig_decode(r, 1, OCT_POSITION_AFTER);
  const oct_step *step = rig_end(r);
  g_assert_cmpint(oct_world_submit(r->world, r->instance, step, NULL), ==, OCT_SUBMIT_FULL);
  g_string_append(r->log, "submit to instance 1: step 4: FULL\n");
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  oct_time first_end = event.result->end_ns;
  rig_begin(r);
  r->number = 4; /* the number is not spent */
  oct_step_begin(r->builder, 4, 1);
  rig_decode(r, 1, OCT_POSITION_AFTER);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  g_assert_cmpint(event.result->start_ns, <, first_end); /* on the other stage, meanwhile */
  rig_expect(r, OCT_EVENT_STEP_DONE, 3, &event);
  g_assert_cmpint(event.result->start_ns, >=, first_end); /* it needed the first one's token */
  rig_expect(r, OCT_EVENT_STEP_DONE, 4, &event);
  rig_close(r);
}

static void
idle_domain(rig *r) {
  oct_event event;
  rig_open(r);
  rig_begin(r);
  prompt(r, 16, 0xa, 6, 0, 0, 1); /* slots 16 and up are domain 1's */
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  g_assert_cmpuint(event.result->n_slices, ==, 1);
  rig_begin(r);
  prompt(r, 0, 0xb, 4, 0, 0, 1); /* page 0 of domain 0 */
  rig_decode(r, 16, 6);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  g_assert_cmpuint(event.result->n_slices, ==, 2);
  rig_close(r);
}

static void
context_page(rig *r) {
  oct_event event;
  rig_open(r);
  /* Blocks of 16 tokens on each of 8 ranks: a page holds 128. */
  rig_begin(r);
  prompt(r, 0, 0xa, 130, 0, 7, 2);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  rig_begin(r);
  rig_decode(r, 0, 130);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  /* A prefix hit is whole pages: 128 tokens of this prompt, not 130. */
  rig_begin(r);
  rig_slot(r, 1, 0xa, 132, 0);
  rig_pages(r, 1, 0, 0, 1, 7);
  rig_pages(r, 1, 0, 1, 1, 9);
  rig_prefill(r, 1, 128, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 3, &event);
  rig_close(r);
}

static void
verify_four(rig *r) {
  static const guint32 fixed[3] = {501, 502, 503};
  oct_event event;
  guint32 n;
  rig_open(r);
  rig_begin(r);
  prompt(r, 0, 0xa, 6, 0, 0, 1);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  rig_begin(r);
  rig_verify(r, 0, 6, fixed, 4); /* the token on the device and three drafts */
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  const guint32 *tokens = rig_accepted(&event, 0, &n);
  g_assert_cmpuint(n, ==, 2);
  g_assert_cmpuint(tokens[0], ==, 501); /* the first draft was right, the second was not */
  g_assert_cmpuint(tokens[1], !=, 502);
  rig_begin(r);
  rig_decode(r, 0, OCT_POSITION_AFTER); /* = 8 */
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 3, &event);
  rig_begin(r);
  rig_decode(r, 0, 9);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 4, &event);
  rig_close(r);
}

static void
adapter(rig *r) {
  oct_event event;
  guint32 n;
  rig_open(r);
  /* Two sequences with one prompt; the second is under adapter 3, in every slice of it. */
  rig_begin(r);
  prompt(r, 0, 0xa, 6, 0, 0, 1);
  prompt(r, 1, 0xa, 6, 0, 1, 1);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  rig_begin(r);
  rig_decode(r, 0, 6);
  rig_decode(r, 1, 6)->adapter = 3;
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  g_assert_cmpuint(rig_accepted(&event, 0, &n)[0], !=, rig_accepted(&event, 1, &n)[0]);
  rig_close(r);
}

static void
two_instances(rig *r) {
  oct_event event;
  rig other;
  rig_open(r);
  rig_init(&other, r->world, &r->config);
  other.log = r->log;
  rig_open(&other);
  rig_begin(r);
  prompt(r, 0, 0xa, 6, 0, 0, 1);
  rig_submit(r);
  rig_begin(&other);
  prompt(&other, 0, 0xb, 8, 0, 0, 1);
  rig_submit(&other);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  rig_begin(r);
  rig_decode(r, 0, 6);
  rig_submit(r);
  rig_expect(&other, OCT_EVENT_STEP_DONE, 1, &event);
  rig_begin(&other);
  rig_decode(&other, 0, 8);
  rig_submit(&other);
  rig_close(&other); /* with a step in flight, of which nothing is heard */
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  g_assert_false(oct_world_next(r->world, OCT_TIME_NEVER, &event));
  rig_clear(&other);
  rig_close(r);
}

/* 1 us a step, 100 ns a token, 10 ns a sequence; drafts: two of four are accepted. */
#define TABLE "fixed_ns=1000,token_ns=100,sequence_ns=10,copy_page_ns=500,copy_state_ns=700"

const record_case record_cases_steps[] = {
    {"mixed-step", "mock:" TABLE, dense, mixed_step},
    {"scored-prompt", "mock:" TABLE, dense, scored_prompt},
    {"pooled-prompt", "mock:" TABLE, dense, pooled_prompt},
    {"pipeline-run-ahead", "mock:send_ns=50," TABLE, pipe2, pipeline_run_ahead},
    {"idle-domain", "mock:" TABLE, data2, idle_domain},
    {"decode-context-page", "mock:" TABLE, context8, context_page},
    {"verify-four-accept-two", "mock:accept_script=2," TABLE, dense, verify_four},
    {"adapter", "mock:" TABLE, dense, adapter},
    {"two-instances", "mock:" TABLE, dense, two_instances},
    {NULL, NULL, NULL, NULL}};
