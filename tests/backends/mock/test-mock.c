#include "backends/mock/mock.h"

#include <string.h>

#include "tests/contract/rig.h"

/* Counting needs the C library's own allocator. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OCT_TEST_SANITIZED
#endif
#endif
#if !defined(OCT_TEST_SANITIZED) && !defined(__SANITIZE_ADDRESS__) &&                              \
    !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define OCT_TEST_COUNTS_ALLOCATIONS
#endif

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

static oct_instance_config
hybrid(void) {
  return fixture_config(fixture_hybrid(), OCT_PARALLEL_DEFAULT);
}

/* Slot `slot` of the dense model starts a sequence with `prompt` tokens, its pages from page 4 x
 * slot on, enough for 64 tokens. */
static void
start_dense(rig *r, guint32 slot, guint32 prompt, guint32 output) {
  rig_slot(r, slot, 100 + slot, prompt, output);
  rig_pages(r, slot, 0, 0, 4, 4 * slot);
}

/* ---------------------------------------------------------------- tokens */

static void
decode_to_the_end(rig *r) {
  oct_event event;
  rig_begin(r);
  start_dense(r, 0, 20, 5);
  rig_prefill(r, 0, 0, 20, OCT_SAMPLE_LAST);
  rig_submit(r);
  for (guint32 i = 0; i < 5; i++) {
    rig_expect(r, OCT_EVENT_STEP_DONE, r->number, &event);
    guint32 n;
    const guint32 *token = rig_accepted(&event, 0, &n);
    g_assert_cmpuint(n, ==, 1);
    if (i < 4)
      g_assert_cmpuint(token[0], ==, oct_mock_token(r->world, r->instance, 100, 0, 20 + i));
    else
      g_assert_cmpuint(token[0], ==, FIXTURE_EOS);
    rig_begin(r);
    rig_decode(r, 0, 20 + i);
    rig_submit(r);
  }
  /* The sixth rode along after the end. */
  rig_expect(r, OCT_EVENT_STEP_DONE, r->number, &event);
}

static void
ends_where_the_oracle_says(void) {
  oct_instance_config config = dense();
  rig_run(new_world(NULL), &config, decode_to_the_end);
}

static void
many_tokens(rig *r) {
  guint32 seen = 0;
  for (guint32 key = 0; key < 20; key++)
    for (guint32 p = 0; p < 4000; p++) {
      guint32 token = oct_mock_token(r->world, r->instance, key, 0, p);
      g_assert_cmpuint(token, <, FIXTURE_VOCAB);
      g_assert_cmpuint(token, !=, FIXTURE_EOS);
      seen += token == 7;
    }
  /* 80,000 draws out of 999: about 80 of each. */
  g_assert_cmpuint(seen, >, 40);
  g_assert_cmpuint(seen, <, 130);
}

static void
never_samples_an_end_by_chance(void) {
  oct_instance_config config = dense();
  rig_run(new_world(NULL), &config, many_tokens);
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

/* ---------------------------------------------------------------- drafts */

static oct_mock_options accept_options;

static guint32
verify_four(rig *r, const guint32 *drafts) {
  oct_event event;
  prefill(r, 0, 20);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 0, NULL);
  rig_begin(r);
  rig_verify(r, 0, 20, drafts, 4);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 0, &event);
  guint32 n;
  rig_accepted(&event, 0, &n);
  return n;
}

static void
compared_drafts(rig *r) {
  for (guint32 right = 0; right < 4; right++) {
    guint32 drafts[3];
    for (guint32 i = 0; i < 3; i++) {
      drafts[i] = oct_mock_token(r->world, r->instance, 100, 0, 21 + i);
      if (i == right)
        drafts[i] = drafts[i] == 5 ? 6 : 5;
    }
    g_assert_cmpuint(verify_four(r, drafts), ==, right + 1);
  }
}

static void
scripted_drafts(rig *r) {
  const guint32 drafts[3] = {5, 6, 7};
  g_assert_cmpuint(verify_four(r, drafts), ==, 2);
  g_assert_cmpuint(verify_four(r, drafts), ==, 4);
  g_assert_cmpuint(verify_four(r, drafts), ==, 2);
}

static void
drafts_by_chance(rig *r) {
  const guint32 drafts[3] = {5, 6, 7};
  guint32 count[5] = {0};
  for (guint32 key = 0; key < 1000; key++) {
    rig_begin(r);
    rig_slot(r, 0, key, 20, 0);
    rig_pages(r, 0, 0, 0, 4, 0);
    rig_prefill(r, 0, 0, 20, OCT_SAMPLE_LAST);
    rig_submit(r);
    rig_expect(r, OCT_EVENT_STEP_DONE, 0, NULL);
    rig_begin(r);
    rig_verify(r, 0, 20, drafts, 4);
    rig_submit(r);
    oct_event event;
    guint32 n;
    rig_expect(r, OCT_EVENT_STEP_DONE, 0, &event);
    rig_accepted(&event, 0, &n);
    count[n]++;
  }
  /* Of 1000 slices with a chance of 0.5: 500, 250, 125, 125, each within five deviations. */
  g_assert_cmpuint(count[1], >, 420);
  g_assert_cmpuint(count[1], <, 580);
  g_assert_cmpuint(count[2], >, 180);
  g_assert_cmpuint(count[2], <, 320);
  g_assert_cmpuint(count[4], >, 70);
  g_assert_cmpuint(count[4], <, 180);
}

static void
accepts_drafts_by_its_law(void) {
  oct_instance_config config = dense();
  rig_run(new_world(NULL), &config, compared_drafts);
  oct_mock_options_default(&accept_options);
  accept_options.shadow.n_accept_script = 2;
  accept_options.shadow.accept_script[0] = 2;
  accept_options.shadow.accept_script[1] = 9; /* cut to the slice */
  rig_run(new_world(&accept_options), &config, scripted_drafts);
  oct_mock_options_default(&accept_options);
  accept_options.shadow.accept_rate = 0.5;
  rig_run(new_world(&accept_options), &config, drafts_by_chance);
}

/* ---------------------------------------------------------------- experts */

static guint32 n_hot;        /* uses of the first quarter of the experts */
static guint32 different[8]; /* experts of a layer that were used */

static void
routed_steps(rig *r) {
  oct_event event;
  rig_begin(r);
  rig_slot(r, 0, 1, 200, 0);
  rig_state(r, 0, FIXTURE_STATE, 0);
  rig_pages(r, 0, FIXTURE_PAGES, 0, 13, 0);
  rig_pages(r, 0, FIXTURE_WINDOW, 0, 13, 0);
  rig_prefill(r, 0, 0, 200, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 0, &event);
  guint32 per_layer[8] = {0}, missed = 0, distinct = 0;
  n_hot = 0;
  memset(different, 0, sizeof different);
  for (guint32 i = 0; i < event.result->n_experts; i++) {
    const oct_expert_use *use = &oct_result_experts(event.result)[i];
    g_assert_cmpuint(use->expert, <, FIXTURE_EXPERTS);
    g_assert_cmpuint(use->tokens, >, 0);
    per_layer[use->layer] += use->tokens;
    missed += use->missed;
    distinct++;
    different[use->layer]++;
    n_hot += use->expert < FIXTURE_EXPERTS / 4 ? use->tokens : 0;
  }
  g_assert_cmpuint(per_layer[0], ==, 0); /* dense */
  for (guint32 l = 1; l < 8; l++)
    g_assert_cmpuint(per_layer[l], ==, 400); /* two experts for each token */
  /* Nothing is resident when the instance has slots and none was loaded. */
  g_assert_cmpuint(missed, ==, r->config.memory.n_expert_slots > 0 ? distinct : 0);
  g_assert_cmpint(event.result->part_ns[OCT_PART_COPY], ==, (gint64)missed * 10000);
}

static void
routes_tokens_to_experts(void) {
  oct_instance_config config = hybrid();
  config.report_experts = TRUE;
  oct_mock_options options;
  oct_mock_options_default(&options);
  rig_run(new_world(&options), &config, routed_steps);
  /* 2800 uses: a quarter is 700, give or take. */
  g_assert_cmpuint(n_hot, >, 550);
  g_assert_cmpuint(n_hot, <, 850);
  options.shadow.expert_skew = 1; /* the first quarter gets half */
  config.memory.n_expert_slots = 4;
  rig_run(new_world(&options), &config, routed_steps);
  g_assert_cmpuint(n_hot, >, 1200);
  /* Counted elsewhere: the first quarter was never chosen. In one layer nobody counted. */
  double counts[8 * FIXTURE_EXPERTS];
  for (guint32 i = 0; i < G_N_ELEMENTS(counts); i++)
    counts[i] = i % FIXTURE_EXPERTS < FIXTURE_EXPERTS / 4 || i / FIXTURE_EXPERTS == 3 ? 0 : 5;
  options.shadow.expert_counts = counts;
  options.shadow.n_count_layers = 8;
  options.shadow.n_count_experts = FIXTURE_EXPERTS;
  rig_run(new_world(&options), &config, routed_steps);
  g_assert_cmpuint(n_hot, >, 120); /* half of that layer's 400 uses, and none of the other six's */
  g_assert_cmpuint(n_hot, <, 280);
  g_assert_cmpuint(different[3], >, FIXTURE_EXPERTS / 2); /* drawn like without counts */
  options.shadow.n_count_layers = 7;                      /* of another model */
  rig_run(new_world(&options), &config, routed_steps);
  g_assert_cmpuint(n_hot, >, 1200);
}

/* ---------------------------------------------------------------- fast-forward */

#define STRETCH_STEPS 60

typedef struct step_log {
  oct_time start, end;
  guint32 tokens[3];
} step_log;

static step_log stepped[STRETCH_STEPS + 1], forwarded[STRETCH_STEPS + 1];
static guint32 n_forwarded;

static const guint32 stretch_outputs[3] = {12, 30, 0};

/* Decodes of the sequences that go on after n_out tokens each; their ends are known beforehand. */
static void
submit_decodes(rig *r, guint32 n_out) {
  rig_begin(r);
  for (guint32 i = 0; i < 3; i++)
    if (stretch_outputs[i] == 0 || n_out < stretch_outputs[i])
      rig_decode(r, i, 4 + n_out - 1);
  r->n_flights = 0;
  rig_submit(r);
}

/* Three sequences that end after 12 and 30 tokens and never. Each step is submitted 10 ns after the
 * one before its predecessor has ended, while its predecessor runs. */
static void
stretch(rig *r, gboolean use_forward, step_log *log) {
  oct_event event;
  n_forwarded = 0;
  rig_begin(r);
  for (guint32 i = 0; i < 3; i++) {
    rig_slot(r, i, 100 + i, 4, stretch_outputs[i]);
    rig_pages(r, i, 0, 0, 1, i);
    rig_prefill(r, i, 0, 4, OCT_SAMPLE_LAST);
  }
  rig_submit(r);
  for (guint32 done = 0; done < STRETCH_STEPS;) {
    oct_forward ask = {.limit_ns = OCT_TIME_NEVER, .submit_ns = r->world->now_ns + 10};
    oct_forwarded retired;
    if (use_forward && oct_world_forward(r->world, r->instance, &ask, &retired)) {
      log[++done] = (step_log){.start = retired.start_ns, .end = retired.end_ns};
      r->number++;
      n_forwarded++;
      continue;
    }
    g_assert_true(oct_world_next(r->world, ask.submit_ns, &event));
    g_assert_cmpint(event.kind, ==, OCT_EVENT_TIMER);
    submit_decodes(r, done + 1);
    g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
    g_assert_cmpint(event.kind, ==, OCT_EVENT_STEP_DONE);
    g_assert_cmpuint(event.number, ==, ++done);
    log[done] = (step_log){.start = event.result->start_ns, .end = event.result->end_ns};
    for (guint32 i = 0, slice = 0; i < 3; i++)
      if (stretch_outputs[i] == 0 || done <= stretch_outputs[i])
        log[done].tokens[i] = oct_result_tokens(event.result)[slice++];
  }
}

static void
stretch_by_steps(rig *r) {
  g_assert_true(r->capabilities.forward);
  stretch(r, FALSE, stepped);
}

static void
stretch_by_forward(rig *r) {
  stretch(r, TRUE, forwarded);
}

static void
forward_equals_stepping(void) {
  oct_mock_options options = table_options();
  options.host_ns = 30;
  oct_instance_config config = dense();
  config.check_tags = FALSE;
  config.block_size = 256;
  rig_run(new_world(&options), &config, stretch_by_steps);
  rig_run(new_world(&options), &config, stretch_by_forward);
  guint32 n_compared = 0;
  for (guint32 n = 1; n <= STRETCH_STEPS; n++) {
    g_assert_cmpint(forwarded[n].end, ==, stepped[n].end);
    g_assert_cmpint(forwarded[n].start, ==, stepped[n].start);
    for (guint32 i = 0; i < 3; i++)
      if (forwarded[n].tokens[i] != 0) {
        g_assert_cmpuint(forwarded[n].tokens[i], ==, stepped[n].tokens[i]);
        n_compared++;
      }
  }
  g_assert_cmpuint(n_forwarded, >, 40);
  g_assert_cmpuint(n_compared, >=, 8);
}

/* ---------------------------------------------------------------- limits and opening */

static void
assert_options_refused(const oct_mock_options *options, const char *what) {
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_mock_world_new(options, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  g_assert_nonnull(strstr(error->message, what));
}

static void
refuses_wrong_options(void) {
  oct_mock_options options;
#define REFUSED(field, value)                                                                      \
  oct_mock_options_default(&options);                                                              \
  options.field = value;                                                                           \
  assert_options_refused(&options, #field)
  REFUSED(fixed_ns, -1);
  REFUSED(token_ns, G_MAXINT64);
  REFUSED(copy_page_ns, -1);
  REFUSED(context_ns, -0.5);
#undef REFUSED
  oct_mock_options_default(&options);
  options.n_phases = OCT_MOCK_PHASES_MAX + 1;
  assert_options_refused(&options, "phases");
}

static void
assert_open_refused(rig *r, const char *what) {
  g_autoptr(GError) error = NULL;
  guint32 instance;
  g_assert_false(oct_world_open(r->world, &r->config, &instance, &error));
  g_assert_nonnull(error);
  g_assert_nonnull(strstr(error->message, what));
}

static void
open_beyond_limits(rig *r) {
  guint16 devices[2] = {0, 4};
  r->config.devices = devices;
  r->config.parallel.tensor = 2;
  assert_open_refused(r, "rank 1 is on device 4, the world has 4");
  r->config.devices = NULL;
  devices[1] = 3;
  r->config.devices = devices;
  r->config.memory.groups[0].n_device = 41;
  assert_open_refused(r, "memory.groups[0].n_device is 41, 40 fit");
  r->config.memory.groups[0].n_device = 40;
  rig_open(r);
  g_assert_cmpuint(r->capabilities.fits[0], ==, 40);
  g_assert_cmpuint(r->capabilities.depth, ==, 1);
  /* 16 tokens of 4 layers x 2 (K, V) x 8 heads x 8 values x 2 bytes, over both ranks. */
  g_assert_cmpuint(r->capabilities.page_bytes[0], ==, 16 * 4 * 2 * 8 * 8 * 2);
}

static void
keeps_its_limits(void) {
  oct_mock_options options;
  oct_mock_options_default(&options);
  options.n_devices = 4;
  options.fits[0] = 40;
  options.depth_max = 1;
  oct_instance_config config = dense();
  rig_run_closed(new_world(&options), &config, open_beyond_limits);
}

static void
open_twice(rig *r) {
  static const struct {
    const char *phase;
    double fraction;
    oct_time time_ns;
  } wanted[2] = {{"weights", 0, 0}, {"graphs", 0.75, 300}};
  for (guint32 i = 0; i < 2; i++) {
    g_autoptr(GError) error = NULL;
    guint32 instance;
    oct_time begin = r->world->now_ns;
    g_assert_true(oct_world_open(r->world, &r->config, &instance, &error));
    g_assert_cmpuint(instance, ==, i + 1);
    oct_event event;
    for (guint32 k = 0; k < 2; k++) {
      g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
      g_assert_cmpint(event.kind, ==, OCT_EVENT_OPEN_PROGRESS);
      g_assert_cmpstr(event.phase, ==, wanted[k].phase);
      g_assert_cmpfloat(event.fraction, ==, wanted[k].fraction);
      g_assert_cmpint(event.time_ns - begin, ==, wanted[k].time_ns);
    }
    g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
    g_assert_cmpint(event.time_ns - begin, ==, 400);
    g_assert_cmpint(event.kind, ==, i == 0 ? OCT_EVENT_OPEN_FAILED : OCT_EVENT_OPENED);
    r->instance = i == 0 ? 0 : instance;
  }
}

static void
opens_in_phases_and_fails_when_told(void) {
  oct_mock_options options;
  oct_mock_options_default(&options);
  options.n_phases = 2;
  options.phases[0] = (oct_mock_phase){"weights", 300};
  options.phases[1] = (oct_mock_phase){"graphs", 100};
  options.n_open_failures = 1;
  oct_instance_config config = dense();
  rig_run_closed(new_world(&options), &config, open_twice);
}

/* ---------------------------------------------------------------- allocation */

static gint64 n_allocations;

#ifdef OCT_TEST_COUNTS_ALLOCATIONS
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
void *malloc(size_t size);
void *calloc(size_t n, size_t size);
void *realloc(void *memory, size_t size);

void *
malloc(size_t size) {
  n_allocations++;
  return __libc_malloc(size);
}

void *
calloc(size_t n, size_t size) {
  n_allocations++;
  return __libc_calloc(n, size);
}

void *
realloc(void *memory, size_t size) {
  n_allocations++;
  return __libc_realloc(memory, size);
}
#endif

/* Prompts, decodes, copies and new sequences in the same slots, over and over. */
static void
steady_steps(rig *r) {
  gint64 before = 0;
  for (guint32 round = 0; round < 40; round++) {
    if (round == 20)
      before = n_allocations;
    for (guint32 slot = 0; slot < 4; slot++) {
      prefill(r, slot, 20);
      rig_submit(r);
      rig_expect(r, OCT_EVENT_STEP_DONE, 0, NULL);
    }
    for (guint32 i = 0; i < 20; i++) {
      rig_begin(r);
      for (guint32 slot = 0; slot < 4; slot++)
        rig_decode(r, slot, 20 + i);
      rig_submit(r);
      beside(r, 1, OCT_TIER_HOST, 5, OCT_TIER_DEVICE, 50);
      rig_expect(r, OCT_EVENT_STEP_DONE, 0, NULL);
      rig_expect(r, OCT_EVENT_COPY_DONE, 0, NULL);
    }
  }
  g_assert_cmpint(n_allocations - before, ==, 0);
}

static void
allocates_nothing_in_the_steady_state(void) {
#ifndef OCT_TEST_COUNTS_ALLOCATIONS
  g_test_skip("the sanitizer has its own allocator");
  return;
#endif
  oct_mock_options options = table_options();
  options.copy_page_ns = 10000;
  oct_instance_config config = dense();
  rig_run(new_world(&options), &config, steady_steps);
  g_assert_cmpint(n_allocations, >, 0);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/mock/tokens/end-where-the-oracle-says", ends_where_the_oracle_says);
  g_test_add_func("/mock/tokens/never-sample-an-end-by-chance", never_samples_an_end_by_chance);
  g_test_add_func("/mock/drafts/are-accepted-by-the-law", accepts_drafts_by_its_law);
  g_test_add_func("/mock/experts/are-used-and-missed", routes_tokens_to_experts);
  g_test_add_func("/mock/forward/equals-stepping", forward_equals_stepping);
  g_test_add_func("/mock/options/wrong-ones-are-refused", refuses_wrong_options);
  g_test_add_func("/mock/open/keeps-its-limits", keeps_its_limits);
  g_test_add_func("/mock/open/goes-through-phases-and-fails-when-told",
                  opens_in_phases_and_fails_when_told);
  g_test_add_func("/mock/step/allocates-nothing-in-the-steady-state",
                  allocates_nothing_in_the_steady_state);
  return g_test_run();
}
