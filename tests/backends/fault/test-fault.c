#include "backends/fault/fault.h"

#include <string.h>

#include "backends/mock/mock.h"
#include "tests/contract/rig.h"

static oct_mock_options mock_options;
static oct_fault_options options;

/* A script of one line over a mock whose steps take 1000 ns. */
static void
script(oct_inject kind, guint64 at) {
  oct_mock_options_default(&mock_options);
  mock_options.fixed_ns = 1000;
  mock_options.token_ns = mock_options.sequence_ns = 0;
  mock_options.copy_page_ns = 500;
  oct_fault_options_default(&options);
  options.n_script = 1;
  options.script[0] = (oct_inject_line){.kind = kind, .at = at};
  options.delay_ns = 300;
  options.late_ns = 50000;
}

static oct_world *
new_world(void) {
  g_autoptr(GError) error = NULL;
  oct_world *inner = oct_mock_world_new(&mock_options, &error);
  g_assert_no_error(error);
  oct_world *world = oct_fault_world_new(inner, &options, &error);
  g_assert_no_error(error);
  return world;
}

static void
run(void (*fn)(rig *r)) {
  oct_instance_config config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  config.depth = 3;
  rig_run(new_world(), &config, fn);
}

/* Slot i runs a prompt of 8 tokens with pages 4 i and on. */
static void
prefill(rig *r, guint32 slot) {
  rig_slot(r, slot, 100 + slot, 8, 0);
  rig_pages(r, slot, 0, 0, 2, 4 * slot);
  rig_prefill(r, slot, 0, 8, OCT_SAMPLE_LAST);
}

static void
submit_prefill(rig *r, guint32 slot) {
  rig_begin(r);
  prefill(r, slot);
  rig_submit(r);
}

static void
submit_decode(rig *r, guint32 slot, guint32 position) {
  rig_begin(r);
  rig_decode(r, slot, position);
  rig_submit(r);
}

static void
expect_fault(rig *r, oct_severity severity, guint64 number, oct_event *event) {
  rig_expect(r, OCT_EVENT_FAULT, 0, event);
  g_assert_cmpint(event->fault->severity, ==, severity);
  g_assert_cmpuint(event->fault->number, ==, number);
  g_assert_true(g_str_has_prefix(event->fault->message, "injected: "));
}

static void
expect_rest(rig *r) {
  oct_event event;
  g_assert_false(rig_next(r, OCT_TIME_NEVER, &event));
}

static guint64
count(const rig *r, oct_inject kind) {
  return oct_fault_world_count(r->world, kind);
}

/* ---------------------------------------------------------------- requests and steps */

static void
request_steps(rig *r) {
  oct_event event;
  rig_begin(r);
  prefill(r, 0);
  prefill(r, 1);
  rig_submit(r);
  expect_fault(r, OCT_SEVERITY_REQUEST, 1, &event);
  guint32 bad = event.fault->slice, n;
  g_assert_cmpuint(bad, <, 2);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  const oct_slice_result *s = oct_result_slices(event.result);
  g_assert_cmpuint(s[bad].flags, ==, OCT_RESULT_FAILED);
  g_assert_cmpuint(s[bad].n_accepted, ==, 0);
  g_assert_cmpuint(s[1 - bad].flags, ==, 0);
  guint32 token = rig_accepted(&event, 1 - bad, &n)[0];
  g_assert_cmpuint(n, ==, 1);
  g_assert_cmpuint(token, !=, 0);
  /* The other goes on; the failed one's slot can be taken again. */
  rig_begin(r);
  rig_decode(r, 1 - bad, 8);
  prefill(r, 2);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, NULL);
  g_assert_cmpuint(count(r, OCT_INJECT_REQUEST), ==, 1);
}

static void
request_fails_alone(void) {
  script(OCT_INJECT_REQUEST, 1);
  run(request_steps);
}

/* Step 2 fails; 3 was submitted behind it; 1 before it and 4 after its fault are as ever. */
static void
failed_steps(rig *r) {
  oct_event event;
  gboolean retryable = options.script[0].kind == OCT_INJECT_STEP;
  submit_prefill(r, 0);
  submit_prefill(r, 1);
  submit_decode(r, 1, 8);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  g_assert_cmpint(event.time_ns, ==, 1000);
  expect_fault(r, OCT_SEVERITY_STEP, 2, &event);
  g_assert_cmpint(event.time_ns, ==, 1000); /* due at 300, but steps end in order */
  g_assert_cmpuint(event.fault->retryable, ==, retryable);
  expect_fault(r, OCT_SEVERITY_STEP, 3, &event);
  g_assert_cmpuint(event.fault->retryable, ==, 1);
  /* Slot 1 has nothing of it: its prompt is run again, in the same pages. */
  r->n_flights = 0;
  submit_decode(r, 0, 8);
  rig_expect(r, OCT_EVENT_STEP_DONE, 4, &event);
  g_assert_cmpint(event.time_ns, ==, 2000);
  submit_prefill(r, 1);
  submit_decode(r, 1, 8);
  rig_expect(r, OCT_EVENT_STEP_DONE, 5, &event);
  rig_expect(r, OCT_EVENT_STEP_DONE, 6, &event);
  g_assert_cmpuint(count(r, options.script[0].kind), ==, 1);
}

static void
failed_step_did_nothing(void) {
  script(OCT_INJECT_STEP, 2);
  run(failed_steps);
  script(OCT_INJECT_STEP_FINAL, 2);
  run(failed_steps);
}

static void
malformed_failing_step(rig *r) {
  g_autoptr(GError) error = NULL;
  rig_begin(r);
  prefill(r, 0);
  const oct_step *step = rig_end(r);
  g_autofree oct_step *bad = g_memdup2(step, step->bytes);
  bad->reserved = 1;
  g_assert_cmpint(oct_world_submit(r->world, r->instance, bad, &error), ==, OCT_SUBMIT_REFUSED);
  g_assert_nonnull(strstr(error->message, "step.reserved"));
  g_clear_error(&error);
  bad->reserved = 0;
  bad->number = 2;
  g_assert_cmpint(oct_world_submit(r->world, r->instance, bad, &error), ==, OCT_SUBMIT_REFUSED);
  g_assert_nonnull(strstr(error->message, "step.number is 2, must be 1"));
  g_assert_cmpuint(count(r, OCT_INJECT_STEP), ==, 0);
}

static void
failing_step_is_checked(void) {
  script(OCT_INJECT_STEP, 1);
  run(malformed_failing_step);
}

/* ---------------------------------------------------------------- losses */

static void
lost_instance(rig *r) {
  oct_event event;
  gboolean device = options.script[0].kind == OCT_INJECT_DEVICE;
  submit_prefill(r, 0);
  submit_prefill(r, 1);
  rig_next(r, OCT_TIME_NEVER, &event);
  if (event.kind == OCT_EVENT_STEP_DONE)
    rig_next(r, OCT_TIME_NEVER, &event);
  g_assert_cmpint(event.kind, ==, OCT_EVENT_FAULT);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_INSTANCE);
  g_assert_cmpuint(event.fault->device, ==, device ? 0 : OCT_NO_INDEX);
  g_autoptr(GError) error = NULL;
  rig_begin(r);
  prefill(r, 2);
  g_assert_cmpint(oct_world_submit(r->world, r->instance, rig_end(r), &error), ==,
                  OCT_SUBMIT_REFUSED);
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
  expect_rest(r);
  rig_close(r);
  rig_open(r);
  submit_prefill(r, 0);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, NULL);
}

static void
instance_is_lost_and_reopened(void) {
  /* Some seeds lose it at once, others at the step's end. */
  for (guint64 seed = 1; seed <= 4; seed++) {
    script(OCT_INJECT_INSTANCE, 2);
    options.script[0].instance = 1;
    options.seed = seed;
    run(lost_instance);
    script(OCT_INJECT_DEVICE, 2);
    options.script[0].instance = 1;
    options.seed = seed;
    run(lost_instance);
  }
}

static void
lost_world(rig *r) {
  oct_event event;
  submit_prefill(r, 0);
  expect_fault(r, OCT_SEVERITY_FATAL, 0, &event);
  expect_rest(r);
  rig_close(r);
  g_autoptr(GError) error = NULL;
  guint32 instance;
  g_assert_false(oct_world_open(r->world, &r->config, &instance, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
}

static void
world_is_lost(void) {
  for (guint64 seed = 1; seed <= 4; seed++) {
    script(OCT_INJECT_FATAL, 1);
    options.seed = seed;
    run(lost_world);
  }
}

/* ---------------------------------------------------------------- time */

static void
late_steps(rig *r) {
  oct_event event;
  oct_time late = options.script[0].kind == OCT_INJECT_DELAY ? 300 : 50000;
  submit_prefill(r, 0);
  submit_prefill(r, 1);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  g_assert_cmpint(event.time_ns, ==, 1000 + late);
  g_assert_cmpint(event.result->end_ns, ==, 1000);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  g_assert_cmpint(event.time_ns, ==, MAX(2000, 1000 + late));
}

static void
late_step_keeps_order(void) {
  script(OCT_INJECT_DELAY, 1);
  run(late_steps);
  script(OCT_INJECT_LATE, 1);
  run(late_steps);
}

static void
closed_while_late(rig *r) {
  oct_event event;
  submit_prefill(r, 0);
  g_assert_true(rig_next(r, 2000, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_TIMER);
  rig_close(r);
  expect_rest(r);
}

static void
late_event_dies_with_its_instance(void) {
  script(OCT_INJECT_LATE, 1);
  run(closed_while_late);
}

static void
hung_steps(rig *r) {
  oct_event event;
  submit_prefill(r, 0);
  submit_prefill(r, 1);
  submit_decode(r, 0, 8);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  g_assert_true(rig_next(r, 1000000, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_TIMER);
  expect_rest(r);
  r->n_flights = 0;
  rig_close(r);
  rig_open(r);
  submit_prefill(r, 0);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
}

static void
hung_step_never_ends(void) {
  script(OCT_INJECT_HANG, 2);
  options.script[0].instance = 1;
  run(hung_steps);
}

/* ---------------------------------------------------------------- breaches by the backend */

static void
unknown_number(rig *r) {
  oct_event event;
  submit_prefill(r, 0);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1001, &event);
  g_assert_cmpuint(event.result->n_slices, ==, 0);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
}

static void
tells_of_steps_that_never_were(void) {
  script(OCT_INJECT_NUMBER, 1);
  run(unknown_number);
}

static void
full_steps(rig *r) {
  oct_event event;
  g_autoptr(GError) error = NULL;
  submit_prefill(r, 0); /* nothing is unfinished: FULL would never be undone */
  rig_begin(r);
  prefill(r, 1);
  const oct_step *step = rig_end(r);
  g_assert_cmpint(oct_world_submit(r->world, r->instance, step, &error), ==, OCT_SUBMIT_FULL);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  g_assert_cmpint(oct_world_submit(r->world, r->instance, step, &error), ==, OCT_SUBMIT_OK);
  rig_next(r, OCT_TIME_NEVER, &event);
  g_assert_cmpuint(event.number, ==, 2);
}

static void
answers_full_once(void) {
  script(OCT_INJECT_FULL, 2);
  run(full_steps);
}

/* ---------------------------------------------------------------- copies and openings */

static void
copy_out(rig *r, guint64 ticket) {
  oct_copy c = {.kind = OCT_COPY_PAGE, .order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST};
  c.to = (guint32)ticket;
  g_autoptr(GError) error = NULL;
  g_assert_cmpint(oct_world_copy(r->world, r->instance, ticket, &c, 1, &error), ==, OCT_SUBMIT_OK);
}

static void
expect_copy(rig *r, guint64 ticket, oct_time at, guint32 failed) {
  oct_event event;
  rig_expect(r, OCT_EVENT_COPY_DONE, ticket, &event);
  g_assert_cmpint(event.time_ns, ==, at);
  g_assert_cmpuint(event.failed, ==, failed);
}

static void
failed_copies(rig *r) {
  copy_out(r, 1);
  copy_out(r, 2);
  expect_copy(r, 2, 300, 1);
  expect_copy(r, 1, 500, 0);
}

static void
copy_fails(void) {
  script(OCT_INJECT_COPY, 2);
  run(failed_copies);
}

static void
late_copies(rig *r) {
  copy_out(r, 1);
  copy_out(r, 2);
  expect_copy(r, 2, 1000, 0);
  expect_copy(r, 1, 50500, 0);
}

static void
copy_is_late(void) {
  script(OCT_INJECT_COPY_LATE, 1);
  run(late_copies);
}

static oct_submit
pull(rig *r, const rig *peer, guint64 ticket, GError **error) {
  oct_copy c = {.kind = OCT_COPY_PAGE, .order = OCT_COPY_BESIDE, .to = (guint32)ticket};
  return oct_world_pull(r->world, r->instance, peer->instance, 0, ticket, &c, 1, error);
}

/* Copies and pulls are counted together. */
static void
failed_pulls(rig *r) {
  rig peer;
  rig_init(&peer, r->world, &r->config);
  rig_open(&peer);
  copy_out(r, 1);
  g_assert_cmpint(pull(r, &peer, 2, NULL), ==, OCT_SUBMIT_OK);
  g_assert_cmpint(pull(r, &peer, 3, NULL), ==, OCT_SUBMIT_OK);
  expect_copy(r, 2, 300, 1);
  expect_copy(r, 1, 500, 0);
  expect_copy(r, 3, 500, 0);
  g_assert_cmpuint(count(r, OCT_INJECT_COPY), ==, 1);
  rig_close(&peer);
  rig_clear(&peer);
}

static void
pull_fails(void) {
  script(OCT_INJECT_COPY, 2);
  run(failed_pulls);
}

/* The peer is lost while it is pulled from: as far as the engine knows nothing came. */
static void
pull_from_the_lost(rig *r) {
  oct_event event;
  rig peer;
  rig_init(&peer, r->world, &r->config);
  rig_open(&peer);
  g_assert_cmpint(pull(r, &peer, 1, NULL), ==, OCT_SUBMIT_OK);
  submit_prefill(&peer, 1);
  expect_fault(&peer, OCT_SEVERITY_INSTANCE, 0, &event);
  g_autoptr(GError) error = NULL;
  g_assert_cmpint(pull(r, &peer, 2, &error), ==, OCT_SUBMIT_REFUSED);
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
  expect_copy(r, 1, 5000, 1);
  rig_close(&peer);
  rig_clear(&peer);
  submit_prefill(r, 0); /* this one is as ever */
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, NULL);
}

static void
lost_peer_fails_a_pull(void) {
  for (guint64 seed = 1; seed <= 4; seed++) { /* losses at once and at the step's end */
    script(OCT_INJECT_INSTANCE, 1);
    options.script[0].instance = 2;
    options.seed = seed;
    mock_options.copy_page_ns = 5000;
    run(pull_from_the_lost);
  }
}

static void
unknown_ticket(rig *r) {
  copy_out(r, 1);
  expect_copy(r, 1 | (guint64)1 << 63, 0, 0);
  expect_copy(r, 1, 500, 0);
}

static void
tells_of_copies_that_never_were(void) {
  script(OCT_INJECT_TICKET, 1);
  run(unknown_ticket);
}

static void
failed_open(rig *r) {
  oct_event event;
  g_autoptr(GError) error = NULL;
  g_assert_true(oct_world_open(r->world, &r->config, &r->instance, &error));
  rig_expect(r, OCT_EVENT_OPEN_FAILED, 0, &event);
  g_assert_cmpint(event.time_ns, ==, 300);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_INSTANCE);
  rig_open(r);
  submit_prefill(r, 0);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, NULL);
}

static void
open_fails(void) {
  script(OCT_INJECT_OPEN, 1);
  oct_instance_config config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  rig_run_closed(new_world(), &config, failed_open);
}

/* ---------------------------------------------------------------- chance */

static guint64 fates[2];

static void
many_steps(rig *r) {
  oct_event event;
  guint64 seen = 0;
  for (guint32 i = 0; i < 500; i++) {
    submit_prefill(r, i % 8);
    rig_next(r, OCT_TIME_NEVER, &event);
    r->n_flights = 0;
    seen = seen * 31 + event.kind + (guint64)event.time_ns;
  }
  guint64 n = count(r, OCT_INJECT_STEP) + count(r, OCT_INJECT_DELAY);
  /* One in ten: 50 give or take five deviations of 6.7. */
  g_assert_cmpuint(n, >, 16);
  g_assert_cmpuint(n, <, 84);
  g_assert_cmpuint(count(r, OCT_INJECT_STEP), >, 0);
  g_assert_cmpuint(count(r, OCT_INJECT_DELAY), >, 0);
  g_assert_cmpuint(count(r, OCT_INJECT_HANG), ==, 0);
  fates[1] = seen;
}

static void
chance_follows_seed_rate_and_mask(void) {
  script(OCT_INJECT_OPEN, 99);
  options.n_script = 0;
  options.rate = 0.1;
  options.kinds = 1u << OCT_INJECT_STEP | 1u << OCT_INJECT_DELAY;
  run(many_steps);
  fates[0] = fates[1];
  run(many_steps);
  g_assert_cmphex(fates[0], ==, fates[1]);
  options.seed = 2;
  run(many_steps);
  g_assert_cmphex(fates[0], !=, fates[1]);
}

static void
names_go_both_ways(void) {
  for (guint kind = 0; kind < OCT_INJECT_COUNT; kind++)
    g_assert_cmpint(oct_inject_from_name(oct_inject_name((oct_inject)kind)), ==, kind);
  g_assert_cmpint(oct_inject_from_name("nothing"), ==, OCT_INJECT_COUNT);
}

static void
refuses_wrong_options(void) {
  oct_fault_options bad[3];
  for (int i = 0; i < 3; i++)
    oct_fault_options_default(&bad[i]);
  bad[0].rate = 1.5;
  bad[1].delay_ns = -1;
  bad[2].kinds = 1u << OCT_INJECT_COUNT;
  for (int i = 0; i < 3; i++) {
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_fault_world_new(oct_mock_world_new(NULL, NULL), &bad[i], &error));
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/fault/request/fails-alone", request_fails_alone);
  g_test_add_func("/fault/step/did-nothing-and-takes-those-behind-it", failed_step_did_nothing);
  g_test_add_func("/fault/step/is-checked-though-it-fails", failing_step_is_checked);
  g_test_add_func("/fault/instance/is-lost-and-reopened", instance_is_lost_and_reopened);
  g_test_add_func("/fault/world/is-lost", world_is_lost);
  g_test_add_func("/fault/late/step-keeps-order", late_step_keeps_order);
  g_test_add_func("/fault/late/event-dies-with-its-instance", late_event_dies_with_its_instance);
  g_test_add_func("/fault/hang/step-never-ends-until-closed", hung_step_never_ends);
  g_test_add_func("/fault/number/is-of-no-step", tells_of_steps_that_never_were);
  g_test_add_func("/fault/full/is-answered-once", answers_full_once);
  g_test_add_func("/fault/copy/fails", copy_fails);
  g_test_add_func("/fault/copy/is-late", copy_is_late);
  g_test_add_func("/fault/pull/fails-like-a-copy", pull_fails);
  g_test_add_func("/fault/pull/fails-when-its-peer-is-lost", lost_peer_fails_a_pull);
  g_test_add_func("/fault/ticket/is-of-no-copy", tells_of_copies_that_never_were);
  g_test_add_func("/fault/open/fails", open_fails);
  g_test_add_func("/fault/chance/follows-seed-rate-and-mask", chance_follows_seed_rate_and_mask);
  g_test_add_func("/fault/options/names-go-both-ways", names_go_both_ways);
  g_test_add_func("/fault/options/wrong-ones-are-refused", refuses_wrong_options);
  return g_test_run();
}
