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
    g_assert_true(oct_engine_cancel(r->engines[0], to_cancel->id, r->now));
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

/* ---------------------------------------------------------------- the instance */

static guint32 reopened;

static gboolean
count_opened(rig *r, const oct_event *event, void *user) {
  (void)r;
  (void)user;
  reopened += event->kind == OCT_EVENT_OPENED;
  return TRUE;
}

/* A lost instance is reopened and everybody's tokens are what they would have been. */
static void
test_loss(void) {
  static const oct_inject kinds[] = {OCT_INJECT_INSTANCE, OCT_INJECT_DEVICE};
  scene plain;
  scene_init(&plain, "hybrid", 64, 16);
  for (guint i = 0; i < 4; i++)
    (void)scene_ask(&plain, i, 30 + 7 * i, 12);
  scene_run(&plain);
  for (guint k = 0; k < G_N_ELEMENTS(kinds); k++)
    for (guint64 at = 1; at < 12; at += 3) {
      scene s;
      scene_init(&s, "hybrid", 64, 16);
      inject(&s, kinds[k], 1, at);
      inject(&s, kinds[k], 2, 2);
      for (guint i = 0; i < 4; i++)
        (void)scene_ask(&s, i, 30 + 7 * i, 12);
      reopened = 0;
      s.rig.on_event = count_opened;
      scene_run(&s);
      for (guint i = 0; i < 4; i++) {
        const rig_request *q = rig_request_at(&s.rig, i);
        g_assert_cmpint(q->record.reason, ==, OCT_END_LENGTH);
        g_assert_true(scene_same_tokens(q, rig_request_at(&plain.rig, i)));
      }
      g_assert_cmpuint(reopened, ==, 3);
      g_assert_cmpint(scene_stats(&s)->state, ==, OCT_ENGINE_SERVING);
      scene_clear(&s);
    }
  scene_clear(&plain);
}

/* A request that takes the instance down each time it runs fails after its retries; the one that
 * waits behind it is served by the next instance. */
static void
test_poison(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.config.max_num_seqs = 1;
  for (guint32 i = 1; i <= s.config.retries_max + 1; i++)
    inject(&s, OCT_INJECT_INSTANCE, i, 1);
  rig_request *a = scene_ask(&s, 1, 20, 4), *b = scene_ask(&s, 2, 20, 4);
  scene_run(&s);
  g_assert_cmpint(a->record.reason, ==, OCT_END_FAILED);
  g_assert_cmpint(b->record.reason, ==, OCT_END_LENGTH);
  scene_clear(&s);
}

static gboolean asked;

static void
ask_when_dead(rig *r, void *user) {
  scene *s = user;
  oct_engine *e = r->engines[0];
  if (e->state != OCT_ENGINE_DEAD || asked)
    return;
  asked = TRUE;
  g_assert_cmpstr(oct_engine_down_reason(e), !=, "");
  oct_request_params p = rig_request_at(&s->rig, 0)->params;
  oct_request_id id = 0;
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_engine_submit(e, &p, &id, &error));
  g_assert_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_DOWN);
}

/* An instance none of whose steps ever ends well is given up after a bounded number of openings:
 * what waits fails, what comes is refused. */
static void
test_given_up(void) {
  static const oct_inject kinds[] = {OCT_INJECT_INSTANCE, OCT_INJECT_NUMBER, OCT_INJECT_HANG};
  for (guint k = 0; k < G_N_ELEMENTS(kinds); k++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    s.config.max_num_seqs = 1;
    s.config.step_deadline_ns = 100 * MS;
    inject(&s, kinds[k], 0, 1);
    for (guint i = 0; i < 3; i++)
      (void)scene_ask(&s, i, 20, 4);
    asked = FALSE;
    reopened = 0;
    s.rig.on_turn = ask_when_dead;
    s.rig.on_event = count_opened;
    s.rig.user = &s;
    scene_run(&s);
    for (guint i = 0; i < 3; i++)
      g_assert_cmpint(rig_request_at(&s.rig, i)->record.reason, ==, OCT_END_FAILED);
    g_assert_true(asked);
    g_assert_cmpuint(reopened, ==, s.config.retries_max + 2);
    scene_clear(&s);
  }
}

/* Opening fails, once or twice, then works; or never does. */
static void
test_opening(void) {
  for (guint32 failures = 0; failures < 7; failures++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    s.mock.n_phases = 2;
    s.mock.phases[0] = (oct_mock_phase){"weights", 50 * MS};
    s.mock.phases[1] = (oct_mock_phase){"graphs", 10 * MS};
    s.mock.n_open_failures = failures;
    rig_request *a = scene_ask(&s, 1, 20, 4);
    scene_run(&s);
    if (failures <= s.config.retries_max + 1) {
      g_assert_cmpint(a->record.reason, ==, OCT_END_LENGTH);
      g_assert_cmpint(a->record.admitted_ns, ==, 60 * MS * (failures + 1));
      g_assert_cmpint(scene_stats(&s)->state, ==, OCT_ENGINE_SERVING);
    } else {
      g_assert_cmpint(a->record.reason, ==, OCT_END_FAILED);
      g_assert_cmpint(scene_stats(&s)->state, ==, OCT_ENGINE_DEAD);
    }
    scene_clear(&s);
  }
}

/* A step that never ends is found by its deadline, measured from when it could begin. */
static void
test_hang(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.config.step_deadline_ns = 200 * MS;
  inject(&s, OCT_INJECT_HANG, 1, 3);
  rig_request *a = scene_ask(&s, 1, 20, 8);
  scene_run(&s);
  g_assert_cmpint(a->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpint(a->record.longest_gap_ns, >=, 200 * MS);
  g_assert_cmpint(a->record.longest_gap_ns, <, 220 * MS);
  scene_clear(&s);
}

/* So is a copy, and opening that tells of nothing. */
static void
test_copy_hangs(void) {
  scene s;
  scene_init(&s, "llama", 12, 64);
  s.config.step_deadline_ns = 200 * MS;
  inject(&s, OCT_INJECT_COPY_LATE, 1, 2);
  s.fault.late_ns = G_GINT64_CONSTANT(1000000000000);
  for (guint i = 0; i < 4; i++)
    (void)scene_ask(&s, i, 60, 40);
  scene_run(&s);
  g_assert_cmpuint(scene_stats(&s)->lost, ==, 1);
  for (guint i = 0; i < 4; i++) {
    const rig_request *q = rig_request_at(&s.rig, i);
    g_assert_cmpint(q->record.reason, ==, OCT_END_LENGTH);
    g_assert_cmpint(q->record.ended_ns, <, 1000 * MS);
  }
  scene_clear(&s);
}

static void
test_opening_hangs(void) {
  for (int tells = 0; tells < 2; tells++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    s.config.open_deadline_ns = 300 * MS;
    s.mock.n_phases = tells ? 4 : 1;
    for (guint i = 0; i < s.mock.n_phases; i++)
      s.mock.phases[i] = (oct_mock_phase){"weights", tells ? 250 * MS : 1000 * MS};
    rig_request *a = scene_ask(&s, 1, 20, 4);
    scene_run(&s);
    g_assert_cmpint(a->record.reason, ==, tells ? OCT_END_LENGTH : OCT_END_FAILED);
    if (!tells)
      g_assert_cmpint(a->record.ended_ns, ==, 300 * MS * (s.config.retries_max + 2));
    scene_clear(&s);
  }
}

/* The world is lost: nobody waits for ever. */
static void
test_fatal(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.config.max_num_seqs = 1;
  s.rig.fatal = TRUE;
  inject(&s, OCT_INJECT_FATAL, 0, 4);
  for (guint i = 0; i < 3; i++)
    (void)scene_ask(&s, i, 20, 20);
  asked = FALSE;
  s.rig.on_turn = ask_when_dead;
  s.rig.user = &s;
  scene_run(&s);
  for (guint i = 0; i < 3; i++)
    g_assert_cmpint(rig_request_at(&s.rig, i)->record.reason, ==, OCT_END_FAILED);
  g_assert_cmpint(scene_stats(&s)->state, ==, OCT_ENGINE_DEAD);
  g_assert_true(asked);
  scene_clear(&s);
}

/* A copy that ends twice, or that nobody asked for. */
static void
test_ticket(void) {
  scene s;
  scene_init(&s, "llama", 12, 64);
  inject(&s, OCT_INJECT_TICKET, 1, 1);
  for (guint i = 0; i < 4; i++)
    (void)scene_ask(&s, i, 60, 40);
  scene_run(&s);
  for (guint i = 0; i < 4; i++)
    g_assert_cmpint(rig_request_at(&s.rig, i)->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpuint(scene_stats(&s)->offloaded_pages, >, 0);
  scene_clear(&s);
}

enum { NO_TOKEN, TWO_TOKENS, FAR_TOKEN, FEW_SLICES, SPOILS };

static gboolean
spoil(rig *r, const oct_event *event, void *user) {
  (void)r;
  if (event->kind != OCT_EVENT_STEP_DONE || event->instance != 1 || event->number != 3)
    return TRUE;
  oct_step_result *result = (oct_step_result *)event->result;
  oct_slice_result *slice = (oct_slice_result *)oct_result_slices(result);
  switch (*(int *)user) {
  case NO_TOKEN:
    slice->n_accepted = 0;
    break;
  case TWO_TOKENS:
    slice->n_accepted = 2;
    break;
  case FAR_TOKEN:
    slice->tokens = result->n_tokens;
    break;
  default:
    result->n_slices = 0;
  }
  return TRUE;
}

/* A result that is not one of its step: the instance cannot be trusted. */
static void
test_spoilt_result(void) {
  for (int how = 0; how < SPOILS; how++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    rig_request *a = scene_ask(&s, 1, 20, 8), *b = scene_ask(&s, 2, 20, 8);
    s.rig.on_event = spoil;
    s.rig.user = &how;
    scene_run(&s);
    g_assert_cmpint(a->record.reason, ==, OCT_END_LENGTH);
    g_assert_cmpint(b->record.reason, ==, OCT_END_LENGTH);
    g_assert_cmpuint(a->record.recomputed_tokens, >=, 20);
    scene_clear(&s);
  }
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
  g_test_add_func("/sched/fault/a-lost-instance-is-reopened-and-changes-no-token", test_loss);
  g_test_add_func("/sched/fault/a-request-that-kills-instances-fails-alone", test_poison);
  g_test_add_func("/sched/fault/an-instance-that-never-works-is-given-up", test_given_up);
  g_test_add_func("/sched/fault/opening-is-tried-again", test_opening);
  g_test_add_func("/sched/fault/a-hang-is-found-by-the-deadline", test_hang);
  g_test_add_func("/sched/fault/a-copy-that-hangs-is-found-too", test_copy_hangs);
  g_test_add_func("/sched/fault/opening-that-tells-nothing-is-found-too", test_opening_hangs);
  g_test_add_func("/sched/fault/a-lost-world-fails-everybody", test_fatal);
  g_test_add_func("/sched/fault/a-copy-that-nobody-asked-for-loses-the-instance", test_ticket);
  g_test_add_func("/sched/fault/a-result-that-does-not-fit-loses-the-instance", test_spoilt_result);
  return g_test_run();
}
