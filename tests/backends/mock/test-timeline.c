/* When steps and copies of the mock begin and end. */
#include "backends/mock/mock.h"

#include "engine/base/rng.h"
#include "tests/contract/rig.h"

static oct_world *
new_world(const oct_mock_options *options) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_mock_world_new(options, &error);
  g_assert_no_error(error);
  return world;
}

static oct_instance_config
dense(void) {
  return fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
}

/* Slot `slot` of the dense model starts a sequence with `prompt` tokens, its pages from page 4 x
 * slot on, enough for 64 tokens. */
static void
start_dense(rig *r, guint32 slot, guint32 prompt, guint32 output) {
  rig_slot(r, slot, 100 + slot, prompt, output);
  rig_pages(r, slot, 0, 0, 4, 4 * slot);
}

/* ---------------------------------------------------------------- time */

/* Slots 0 to 3 decode, slot 4 runs prompt chunks that wait for no token. */
#define N_DECODING 4

typedef struct pipe_law {
  guint64 seed;
} pipe_law;

static gint64
pipe_time(const oct_step *step, guint32 stage, void *user) {
  const pipe_law *law = user;
  return 1 + (gint64)(oct_mix64(law->seed ^ step->number * 16 ^ stage) % 1000);
}

/* C[s][n] = max(C[s-1][n] + send, C[s][n-1]) + t, by itself. */
typedef struct reference {
  guint32 n_stages;
  gint64 send_ns, host_ns;
  pipe_law law;
  oct_time end[17];    /* of the last step on each stage */
  oct_time sampled[8]; /* when each slot's last token is known */
} reference;

static void
reference_step(reference *ref, guint64 number, oct_time submit_ns, oct_time token_ns,
               oct_time *start_ns, oct_time *end_ns) {
  oct_time arrive = MAX(submit_ns + ref->host_ns, token_ns);
  for (guint32 s = 0; s < ref->n_stages; s++) {
    oct_step step = {.number = number};
    oct_time begin = MAX(arrive, ref->end[s]);
    if (s == 0)
      *start_ns = begin;
    ref->end[s] = begin + pipe_time(&step, s, &ref->law);
    arrive = ref->end[s] + ref->send_ns;
  }
  *end_ns = ref->end[ref->n_stages - 1];
}

static reference pipe_reference;

static void
pipe_steps(rig *r) {
  reference *ref = &pipe_reference;
  oct_rng rng;
  oct_rng_seed(&rng, ref->law.seed, 1);
  oct_time start[1001], end[1001], now = 0;
  guint32 position[N_DECODING + 1] = {0};
  guint64 done = 0;
  while (done < 1000) {
    while (r->number < 1000 && r->number - done < r->capabilities.depth) {
      guint32 slot = (guint32)oct_rng_below(&rng, N_DECODING + 1);
      oct_time token_ns = ref->sampled[slot];
      rig_begin(r);
      if (position[slot] == 0) {
        rig_slot(r, slot, slot, 3000, 0);
        rig_pages(r, slot, 0, 0, 1, slot);
      }
      if (slot == N_DECODING || position[slot] == 0) {
        rig_prefill(r, slot, position[slot], 2,
                    slot == N_DECODING ? OCT_SAMPLE_NONE : OCT_SAMPLE_LAST);
        position[slot] += 2;
      } else {
        rig_decode(r, slot, position[slot]++);
      }
      rig_submit(r);
      guint64 n = r->number;
      reference_step(ref, n, now, token_ns, &start[n], &end[n]);
      if (slot != N_DECODING)
        ref->sampled[slot] = end[n];
    }
    oct_event event;
    rig_expect(r, OCT_EVENT_STEP_DONE, ++done, &event);
    g_assert_cmpint(event.result->start_ns, ==, start[done]);
    g_assert_cmpint(event.result->end_ns, ==, end[done]);
    g_assert_cmpint(event.time_ns, ==, end[done]);
    gint64 sum = 0;
    for (int i = 0; i < OCT_PART_COUNT; i++)
      sum += event.result->part_ns[i];
    g_assert_cmpint(sum, ==, end[done] - start[done]);
    now = event.time_ns;
  }
}

static void
follows_the_pipeline_recurrence(void) {
  for (guint32 stages = 1; stages <= 4; stages++)
    for (guint32 depth = 1; depth <= stages + 1; depth++) {
      pipe_reference = (reference){.n_stages = stages,
                                   .send_ns = stages * 50,
                                   .host_ns = depth * 100,
                                   .law = {.seed = 77 + stages * 10 + depth}};
      oct_mock_options options;
      oct_mock_options_default(&options);
      options.step_time = pipe_time;
      options.user = &pipe_reference.law;
      options.send_ns = pipe_reference.send_ns;
      options.host_ns = pipe_reference.host_ns;
      oct_parallel parallel = OCT_PARALLEL_DEFAULT;
      parallel.pipeline = stages;
      oct_instance_config config = fixture_config(fixture_dense(), parallel);
      config.block_size = FIXTURE_POSITION;
      config.depth = depth;
      config.check_tags = FALSE;
      rig_run(new_world(&options), &config, pipe_steps);
    }
}

/* fixed 100, token 10, sequence 5, context 2: a prompt of 20 tokens takes 100 + 200 + 5 + 40. */
static oct_mock_options
table_options(void) {
  oct_mock_options options;
  oct_mock_options_default(&options);
  options.fixed_ns = 100;
  options.token_ns = 10;
  options.sequence_ns = 5;
  options.context_ns = 2;
  options.copy_page_ns = 1000;
  options.copy_state_ns = 3000;
  return options;
}

static void
prefill(rig *r, guint32 slot, guint32 n) {
  rig_begin(r);
  start_dense(r, slot, n, 0);
  rig_prefill(r, slot, 0, n, OCT_SAMPLE_LAST);
}

static void
expect_times(rig *r, oct_time start_ns, oct_time end_ns) {
  oct_event event;
  rig_expect(r, OCT_EVENT_STEP_DONE, 0, &event);
  g_assert_cmpint(event.result->start_ns, ==, start_ns);
  g_assert_cmpint(event.result->end_ns, ==, end_ns);
}

static void
table_steps(rig *r) {
  prefill(r, 0, 20);
  rig_submit(r);
  expect_times(r, 0, 345);
  /* A copy to the device before the step's kernels; one to the host after them. */
  rig_begin(r);
  rig_decode(r, 0, 20);
  rig_copy(r, OCT_COPY_PAGE, OCT_COPY_AFTER, 0, 0, 3)->to_tier = OCT_TIER_HOST;
  rig_submit(r);
  gint64 decode = 100 + 10 + 5 + 2 * 21;
  expect_times(r, 345, 345 + decode);
  rig_begin(r);
  rig_decode(r, 0, 21);
  rig_submit(r);
  /* It waits for what is after the step before it. */
  expect_times(r, 345 + decode + 1000, 345 + 2 * decode + 2 + 1000);
  oct_time at = 345 + 2 * decode + 1002;
  rig_begin(r);
  rig_decode(r, 0, 22);
  rig_copy(r, OCT_COPY_PAGE, OCT_COPY_BEFORE, 0, 3, 40)->from_tier = OCT_TIER_HOST;
  rig_submit(r);
  expect_times(r, at + 1000, at + 1000 + decode + 4);
  at += 1000 + decode + 4;
  /* Copies within the device take the step's own stream. */
  rig_begin(r);
  rig_decode(r, 0, 23);
  rig_copy(r, OCT_COPY_PAGE, OCT_COPY_BEFORE, 0, 0, 41);
  rig_copy(r, OCT_COPY_PAGE, OCT_COPY_BEFORE, 0, 0, 42);
  rig_submit(r);
  oct_event event;
  rig_expect(r, OCT_EVENT_STEP_DONE, 0, &event);
  g_assert_cmpint(event.result->end_ns - event.result->start_ns, ==, 2000 + decode + 6);
  g_assert_cmpint(event.result->part_ns[OCT_PART_COPY], ==, 2000);
  g_assert_cmpint(event.result->part_ns[OCT_PART_FIXED], ==, 100);
  g_assert_cmpint(event.result->part_ns[OCT_PART_COMPUTE], ==, 10);
  g_assert_cmpint(event.result->part_ns[OCT_PART_MEMORY], ==, 5 + 2 * 24);
  g_assert_cmpint(event.result->part_ns[OCT_PART_WAIT], ==, 0);
}

static void
takes_times_from_its_table(void) {
  oct_mock_options options = table_options();
  oct_instance_config config = dense();
  rig_run(new_world(&options), &config, table_steps);
}

static void
beside(rig *r, guint64 ticket, oct_tier from_tier, guint32 from, oct_tier to_tier, guint32 to) {
  oct_copy c = {.kind = OCT_COPY_PAGE,
                .order = OCT_COPY_BESIDE,
                .from_tier = (guint8)from_tier,
                .to_tier = (guint8)to_tier,
                .from = from,
                .to = to};
  g_autoptr(GError) error = NULL;
  g_assert_cmpint(oct_world_copy(r->world, r->instance, ticket, &c, 1, &error), ==, OCT_SUBMIT_OK);
  g_assert_no_error(error);
}

static void
expect_copy(rig *r, guint64 ticket, oct_time at) {
  oct_event event;
  rig_expect(r, OCT_EVENT_COPY_DONE, ticket, &event);
  g_assert_cmpint(event.time_ns, ==, at);
}

static void
stream_steps(rig *r) {
  prefill(r, 0, 20);
  rig_submit(r);
  /* Both directions go on at once, each FIFO; a copy of what the step writes waits for it. */
  beside(r, 1, OCT_TIER_HOST, 5, OCT_TIER_DEVICE, 50);
  beside(r, 2, OCT_TIER_HOST, 6, OCT_TIER_DEVICE, 51);
  beside(r, 3, OCT_TIER_DEVICE, 60, OCT_TIER_HOST, 7);
  beside(r, 4, OCT_TIER_DEVICE, 1, OCT_TIER_HOST, 8);  /* the prompt's second page */
  beside(r, 5, OCT_TIER_HOST, 8, OCT_TIER_DEVICE, 52); /* what the fourth brings */
  expect_times(r, 0, 345);
  expect_copy(r, 1, 1000);
  expect_copy(r, 3, 1000);
  expect_copy(r, 2, 2000);
  expect_copy(r, 4, 2000);
  expect_copy(r, 5, 3000);
}

static void
copies_queue_per_direction(void) {
  oct_mock_options options = table_options();
  oct_instance_config config = dense();
  rig_run(new_world(&options), &config, stream_steps);
}

static void
late_writer(rig *r) {
  prefill(r, 0, 20);
  rig_submit(r);
  beside(r, 1, OCT_TIER_DEVICE, 1, OCT_TIER_HOST, 8);
  expect_times(r, 0, 345);
  expect_copy(r, 1, 1345);
}

static void
copy_waits_for_its_writer(void) {
  oct_mock_options options = table_options();
  oct_instance_config config = dense();
  rig_run(new_world(&options), &config, late_writer);
}

static void
allow(rig *r, guint64 number, guint32 slice, guint32 token) {
  guint64 bits[(FIXTURE_VOCAB + 63) / 64] = {0};
  bits[token / 64] = (guint64)1 << (token % 64);
  g_autoptr(GError) error = NULL;
  g_assert_true(
      oct_world_mask(r->world, r->instance, number, slice, bits, G_N_ELEMENTS(bits), &error));
  g_assert_no_error(error);
}

static void
masked_steps(rig *r) {
  oct_event event;
  prefill(r, 0, 20);
  start_dense(r, 1, 20, 0);
  rig_prefill(r, 1, 0, 20, OCT_SAMPLE_LAST)->flags |= OCT_SLICE_NEEDS_MASK;
  rig_submit(r);
  gint64 first = 100 + 400 + 10 + 80;
  beside(r, 1, OCT_TIER_HOST, 5, OCT_TIER_DEVICE, 50); /* not held up by the mask */
  rig_begin(r);
  rig_decode(r, 0, 20);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_MASK_WANTED, 1, &event);
  g_assert_cmpint(event.time_ns, ==, first);
  g_assert_cmpuint(event.slice, ==, 1);
  expect_copy(r, 1, 1000);
  g_assert_true(rig_next(r, 5000, &event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "TIMER");
  allow(r, 1, 1, 123);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  g_assert_cmpint(event.time_ns, ==, 5000);
  g_assert_cmpint(event.result->part_ns[OCT_PART_WAIT], ==, 5000 - first);
  guint32 n;
  g_assert_cmpuint(rig_accepted(&event, 1, &n)[0], ==, 123);
  /* Sampling held the stage; the next step begins behind it. */
  expect_times(r, 5000, 5000 + 100 + 10 + 5 + 42);
}

static void
late_mask_holds_back_sampling(void) {
  oct_mock_options options = table_options();
  oct_instance_config config = dense();
  rig_run(new_world(&options), &config, masked_steps);
}

static void
idle_domain_steps(rig *r) {
  /* Domain 1 (slots 16 and up) has nothing: the other's time counts. */
  prefill(r, 0, 20);
  rig_submit(r);
  expect_times(r, 0, 345);
  rig_begin(r);
  rig_decode(r, 0, 20);
  rig_slot(r, 16, 5, 30, 0);
  rig_pages(r, 16, 0, 0, 2, 0);
  rig_prefill(r, 16, 0, 30, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_times(r, 345, 345 + 100 + 300 + 5 + 60);
}

static void
slowest_domain_sets_the_time(void) {
  oct_mock_options options = table_options();
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.data = 2;
  oct_instance_config config = fixture_config(fixture_dense(), parallel);
  rig_run(new_world(&options), &config, idle_domain_steps);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/mock/time/follows-the-pipeline-recurrence", follows_the_pipeline_recurrence);
  g_test_add_func("/mock/time/comes-from-the-table", takes_times_from_its_table);
  g_test_add_func("/mock/time/slowest-domain-sets-it", slowest_domain_sets_the_time);
  g_test_add_func("/mock/time/late-mask-holds-back-sampling", late_mask_holds_back_sampling);
  g_test_add_func("/mock/copies/queue-per-direction", copies_queue_per_direction);
  g_test_add_func("/mock/copies/wait-for-their-writer", copy_waits_for_its_writer);
  return g_test_run();
}
