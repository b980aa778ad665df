/* What goes wrong on the device, by severity, and what becomes of the requests. */
#include "tests/engine/sched/scene.h"

static void
inject(scene *s, oct_inject kind, guint32 instance, guint64 at) {
  s->fault.script[s->fault.n_script++] = (oct_inject_line){kind, instance, at};
}

/* ---------------------------------------------------------------- steps */

/* A prompt is cancelled while its first step runs; the step fails. What it was to write must not be
 * found by the next one that asks for the same prompt. */
static void
test_cancelled_and_failed(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  inject(&s, OCT_INJECT_STEP, 0, 1);
  s.fault.delay_ns = 2 * MS;
  rig_request *a = scene_ask(&s, 1, 64, 4), *b = scene_ask(&s, 1, 64, 4);
  a->cancel_ns = MS;
  b->params.arrival_ns = 10 * MS;
  scene_run(&s);
  g_assert_cmpint(a->record.reason, ==, OCT_END_CANCELLED);
  g_assert_cmpint(b->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpuint(b->record.cached_tokens, ==, 0);
  scene_clear(&s);
}

/* The step in which three choices fork after a full hit fails. Its copies were not made: choices
 * that had no slice in it, for want of budget, start again as well. */
static void
test_fork_fails(void) {
  scene s;
  scene_init(&s, "hybrid", 64, 0);
  s.config.max_num_batched_tokens = 16;
  s.config.run_ahead = 0;
  rig_request *first = scene_ask(&s, 1, 17, 1), *e = scene_ask(&s, 2, 15, 1);
  rig_request *a = scene_ask(&s, 1, 17, 6);
  e->params.arrival_ns = a->params.arrival_ns = 20 * MS;
  a->params.n = 3;
  inject(&s, OCT_INJECT_STEP, 0, 3);
  s.fault.delay_ns = 2 * MS;
  scene_run(&s);
  g_assert_cmpint(first->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpuint(a->record.cached_tokens, ==, 16);
  g_assert_cmpint(a->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpuint(a->record.output_tokens, ==, 18);
  g_assert_cmpuint(scene_stats(&s)->faults[OCT_SEVERITY_STEP], ==, 1);
  scene_clear(&s);
}

static rig_request *to_cancel;

static void
cancel_from_ended(rig *r, rig_request *q, void *user) {
  (void)user;
  if (q != to_cancel && to_cancel->id != 0 && to_cancel->n_ends == 0)
    g_assert_true(oct_engine_cancel(r->engines[0], to_cancel->id));
}

/* A request fails for good in a step after another of it has been sent back to the queue; its
 * owner, told so, cancels that other one. */
static void
test_cancel_from_ended(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.config.run_ahead = 0;
  s.config.retries_max = 1;
  s.config.policy = "priority";
  rig_request *a = scene_ask(&s, 1, 20, 4), *b = scene_ask(&s, 2, 20, 4);
  b->params.arrival_ns = 2 * MS;
  b->params.priority = -1;
  s.fault.delay_ns = 2 * MS;
  inject(&s, OCT_INJECT_STEP, 0, 1);
  inject(&s, OCT_INJECT_STEP, 0, 2);
  to_cancel = b;
  s.rig.on_ended = cancel_from_ended;
  scene_run(&s);
  g_assert_cmpint(a->record.reason, ==, OCT_END_FAILED);
  g_assert_cmpint(b->record.reason, ==, OCT_END_CANCELLED);
  scene_clear(&s);
}

/* One step's slice fails: its request does, at once, whatever retries are left; the others of the
 * step go on, and nobody is served from what the failed slice wrote. */
static void
test_request_fault(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.config.run_ahead = 0;
  rig_request *a = scene_ask(&s, 1, 48, 4), *b = scene_ask(&s, 1, 48, 4);
  b->params.arrival_ns = 20 * MS;
  inject(&s, OCT_INJECT_REQUEST, 0, 1);
  scene_run(&s);
  g_assert_cmpint(a->record.reason, ==, OCT_END_FAILED);
  g_assert_cmpint(b->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpuint(b->record.cached_tokens, ==, 0);
  scene_clear(&s);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/fault/nothing-of-a-failed-step-is-found-again",
                  test_cancelled_and_failed);
  g_test_add_func("/sched/fault/choices-whose-fork-failed-start-again", test_fork_fails);
  g_test_add_func("/sched/fault/a-listener-may-cancel-another-of-the-failed-step",
                  test_cancel_from_ended);
  g_test_add_func("/sched/fault/what-a-failed-slice-wrote-is-not-found-again", test_request_fault);
  return g_test_run();
}
