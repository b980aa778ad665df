/* Guided requests: masks are asked for as soon as they can be known and no later, steps go on ahead
 * of them, and whoever does not answer stops nobody else for long. */
#include "tests/engine/sched/scene.h"

static rig_request *
ask_guided(scene *s, guint64 family, guint32 prompt, guint32 tokens) {
  rig_request *q = scene_ask(s, family, prompt, tokens);
  q->params.guided = TRUE;
  return q;
}

static gint64
never(rig *r, const rig_request *q, guint32 choice, guint32 n_output) {
  (void)r, (void)q, (void)choice;
  return n_output < 3 ? 0 : -1;
}

/* Every token is asked for once and obeys its mask (the rig looks at each), and the step after is
 * submitted before the mask can be known: masks cost no time. */
static void
step_ahead_stays_on(void) {
  oct_time took[3] = {0};
  for (guint32 tenths = 0; tenths <= 10; tenths += tenths == 0 ? 1 : 9) {
    scene s;
    scene_init(&s, "llama", 400, 0);
    s.config.max_num_batched_tokens = 256;
    oct_time last = 0;
    for (guint32 i = 0; i < 10; i++)
      (void)(i < tenths ? ask_guided(&s, i, 20, 60) : scene_ask(&s, i, 20, 60));
    scene_run(&s);
    guint ahead = 0, guided = 0;
    for (guint i = 0; i < s.steps->len; i++)
      ahead += scene_step_at(&s, i)->unfinished == 2;
    for (guint i = 0; i < 10; i++) {
      const rig_request *q = rig_request_at(&s.rig, i);
      g_assert_cmpint(q->record.reason, ==, OCT_END_LENGTH);
      g_assert_cmpuint(q->n_asked, ==, q->params.guided ? 60 : 0);
      guided += q->params.guided;
      last = MAX(last, q->record.ended_ns);
    }
    g_assert_cmpuint(scene_stats(&s)->masks, ==, 60 * guided);
    g_assert_cmpuint(scene_stats(&s)->late_masks, ==, 0);
    g_assert_cmpuint(ahead, >, 50);
    took[tenths == 0 ? 0 : tenths == 1 ? 1 : 2] = last;
    scene_clear(&s);
  }
  g_assert_cmpint(took[1], ==, took[0]);
  g_assert_cmpint(took[2], ==, took[0]);
}

static gint64
half_a_step(rig *r, const rig_request *q, guint32 choice, guint32 n_output) {
  (void)r, (void)q, (void)choice, (void)n_output;
  return MS / 2;
}

static gint64
two_steps(rig *r, const rig_request *q, guint32 choice, guint32 n_output) {
  (void)r, (void)q, (void)choice, (void)n_output;
  return 2 * MS;
}

/* A mask has the whole step's time: in half of it nothing is late. One that takes longer than the
 * step makes it wait for the rest, and all in it. */
static void
answers_have_the_time_of_a_step(void) {
  for (int slow = 0; slow < 2; slow++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    s.rig.answer_ns = slow ? two_steps : half_a_step;
    rig_request *q = ask_guided(&s, 1, 20, 20), *other = scene_ask(&s, 2, 20, 20);
    scene_run(&s);
    g_assert_cmpuint(q->record.output_tokens, ==, 20);
    g_assert_cmpuint(other->record.output_tokens, ==, 20);
    g_assert_cmpuint(scene_stats(&s)->late_masks, ==, slow ? 20 : 0);
    g_assert_true(slow == (q->record.ended_ns > 39 * MS));
    g_assert_true(slow == (scene_stats(&s)->part_ns[OCT_PART_WAIT] > 0));
    scene_clear(&s);
  }
}

/* The owner never answers: the device waits until the mask's deadline and no longer, the request
 * fails, those in its steps end as they would. */
static void
no_answer_fails_its_own_request(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.rig.answer_ns = never;
  s.config.mask_deadline_ns = 30 * MS;
  s.config.step_deadline_ns = 10 * MS; /* shorter: the device has not hung */
  rig_request *q = ask_guided(&s, 1, 20, 20), *other = scene_ask(&s, 2, 20, 20);
  scene_run(&s);
  g_assert_cmpint(q->record.reason, ==, OCT_END_FAILED);
  g_assert_cmpuint(q->record.output_tokens, ==, 3);
  g_assert_cmpint(other->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpint(other->record.longest_gap_ns, >=, 30 * MS);
  g_assert_cmpint(other->record.longest_gap_ns, <, 33 * MS);
  g_assert_cmpuint(scene_stats(&s)->lost, ==, 0);
  scene_clear(&s);
}

/* Cancelled while the device waits for its mask: the step ends at once. */
static void
a_cancelled_request_stops_nobody(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.rig.answer_ns = never;
  rig_request *q = ask_guided(&s, 1, 20, 20), *other = scene_ask(&s, 2, 20, 20);
  q->cancel_ns = 20 * MS;
  scene_run(&s);
  g_assert_cmpint(q->record.reason, ==, OCT_END_CANCELLED);
  g_assert_cmpuint(scene_stats(&s)->late_masks, ==, 1);
  g_assert_cmpint(other->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpint(other->record.longest_gap_ns, <, 20 * MS);
  g_assert_cmpint(other->record.ended_ns, <, 45 * MS);
  scene_clear(&s);
}

/* The choices of a prompt each have their own masks. */
static void
choices_are_guided_each(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.rig.answer_ns = half_a_step;
  rig_request *q = ask_guided(&s, 1, 20, 12);
  q->params.n = 4;
  scene_run(&s);
  g_assert_cmpuint(q->record.output_tokens, ==, 48);
  g_assert_cmpuint(q->n_asked, ==, 48);
  scene_clear(&s);
}

static void
run_guided(scene *s, guint32 pages, guint32 host, const oct_inject_line *script) {
  scene_init(s, "llama", pages, host);
  s->rig.answer_ns = half_a_step;
  if (script != NULL) {
    s->fault.script[0] = *script;
    s->fault.n_script = 1;
  }
  for (guint32 i = 0; i < 4; i++)
    (void)ask_guided(s, i, 40, 60);
  scene_run(s);
}

/* Preempted to the host and by recomputation, run again after a failed step and on another
 * instance: the same tokens, each under its mask, as if nothing had been. */
static void
what_is_computed_again_is_masked_again(void) {
  static const oct_inject_line scripts[] = {{.kind = OCT_INJECT_STEP, .at = 9},
                                            {.kind = OCT_INJECT_INSTANCE, .instance = 1, .at = 9}};
  scene easy, s[4];
  run_guided(&easy, 400, 0, NULL);
  run_guided(&s[0], 16, 0, NULL);
  run_guided(&s[1], 16, 64, NULL);
  run_guided(&s[2], 400, 0, &scripts[0]);
  run_guided(&s[3], 400, 0, &scripts[1]);
  g_assert_cmpuint(scene_stats(&s[0])->preemptions, >, 0);
  g_assert_cmpuint(scene_stats(&s[1])->offloads, >, 0);
  g_assert_cmpuint(scene_stats(&s[2])->faults[OCT_SEVERITY_STEP], >, 0);
  g_assert_cmpuint(scene_stats(&s[3])->lost, ==, 1);
  for (int k = 0; k < 4; k++) {
    for (guint i = 0; i < 4; i++) {
      const rig_request *q = rig_request_at(&s[k].rig, i);
      g_assert_cmpint(q->record.reason, ==, OCT_END_LENGTH);
      g_assert_true(scene_same_tokens(q, rig_request_at(&easy.rig, i)));
    }
    scene_clear(&s[k]);
  }
  scene_clear(&easy);
}

/* ---------------------------------------------------------------- answers out of place */

static guint64 *mask_of; /* all of the vocabulary, or nothing */

static gint64
answer_wrongly(rig *r, const rig_request *q, guint32 choice, guint32 n_output) {
  oct_engine *e = r->engines[0];
  guint32 words = (r->configs[0].instance.spec->vocab + 63) / 64;
  g_assert_false(oct_engine_mask(e, q->id + 1, choice, n_output, mask_of, words, r->now));
  g_assert_false(oct_engine_mask(e, q->id, choice + 1, n_output, mask_of, words, r->now));
  g_assert_false(oct_engine_mask(e, q->id, choice, n_output + 1, mask_of, words, r->now));
  if (n_output < 4)
    return 0; /* the rig's */
  mask_of[0] = 0;
  g_assert_true(oct_engine_mask(e, q->id, choice, n_output, mask_of, words, r->now));
  g_assert_false(oct_engine_mask(e, q->id, choice, n_output, mask_of, words, r->now));
  return -1;
}

static void
wrong_answers_are_told_and_nothing_allowed_fails(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  mask_of = g_new0(guint64, (s.spec->vocab + 63) / 64);
  mask_of[0] = 1;
  s.rig.answer_ns = answer_wrongly;
  rig_request *q = ask_guided(&s, 1, 20, 20), *other = scene_ask(&s, 2, 20, 20);
  scene_run(&s);
  g_assert_cmpint(q->record.reason, ==, OCT_END_FAILED);
  g_assert_cmpuint(q->record.output_tokens, ==, 4);
  g_assert_cmpint(other->record.reason, ==, OCT_END_LENGTH);
  scene_clear(&s);
  g_free(mask_of);
}

static void
a_backend_without_masks_is_told(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.mock.no_masks = TRUE;
  rig_request *early = ask_guided(&s, 1, 20, 20), *late = ask_guided(&s, 1, 20, 20);
  rig_request *other = scene_ask(&s, 2, 20, 20);
  late->params.arrival_ns = 5 * MS;
  scene_run(&s);
  g_assert_cmpint(early->record.reason, ==, OCT_END_FAILED); /* before it was known */
  g_assert_true(late->refused);
  g_assert_nonnull(g_strstr_len(late->refusal, -1, "masks"));
  g_assert_cmpint(other->record.reason, ==, OCT_END_LENGTH);
  scene_clear(&s);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/guided/step-ahead-stays-on", step_ahead_stays_on);
  g_test_add_func("/sched/guided/answers-have-the-time-of-a-step", answers_have_the_time_of_a_step);
  g_test_add_func("/sched/guided/no-answer-fails-its-own-request", no_answer_fails_its_own_request);
  g_test_add_func("/sched/guided/a-cancelled-request-stops-nobody",
                  a_cancelled_request_stops_nobody);
  g_test_add_func("/sched/guided/choices-are-guided-each", choices_are_guided_each);
  g_test_add_func("/sched/guided/what-is-computed-again-is-masked-again",
                  what_is_computed_again_is_masked_again);
  g_test_add_func("/sched/guided/wrong-answers-are-told-and-nothing-allowed-fails",
                  wrong_answers_are_told_and_nothing_allowed_fails);
  g_test_add_func("/sched/guided/a-backend-without-masks-is-told", a_backend_without_masks_is_told);
  return g_test_run();
}
