/* The host tier through the engine: preemption by offload, reload, spill, and cancel at each stage.
 * mock looks at every copy: what it reads must be there, what it writes must be free. */
#include "tests/engine/sched/scene.h"

/* A choice that has just been forked cannot leave in the same step: the step's copies are still to
 * write what it holds. */
static void
test_fresh_choice(void) {
  for (guint32 pages = 8; pages <= 12; pages++)
    for (guint32 n = 2; n <= 5; n++) {
      scene s;
      scene_init(&s, "hybrid", pages, 32);
      s.config.run_ahead = 0; /* nothing drains, so that somebody has to leave */
      rig_request *t = scene_ask(&s, 1, 33, 10), *b = scene_ask(&s, 2, 40, 30);
      t->params.n = n;
      scene_run(&s);
      g_assert_true(t->refused || t->record.reason == OCT_END_LENGTH);
      g_assert_cmpint(b->record.reason, ==, OCT_END_LENGTH);
      scene_clear(&s);
    }
}

static void
without_ids(rig_request *q) {
  g_free((guint32 *)(void *)(guintptr)q->params.prompt_ids);
  q->params.prompt_ids = NULL;
}

/* A cache of more pages than a transfer may have copies does not go to the host, and does not come
 * from there: it is computed again. Nobody else notices. */
static void
test_large_transfer(void) {
  scene s;
  scene_init(&s, "hybrid", 66300, 150000);
  s.config.carry_ids = s.config.instance.check_tags = FALSE;
  s.config.instance.block_size = 1;
  s.config.max_model_len = 100000;
  s.config.max_num_batched_tokens = 70000;
  s.rig.check = FALSE;
  rig_request *small = scene_ask(&s, 1, 50, 300), *large = scene_ask(&s, 2, 66000, 290);
  large->params.arrival_ns = 5 * MS;
  without_ids(small);
  without_ids(large);

  scene_run(&s);
  g_assert_cmpint(small->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpint(large->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpuint(large->record.preemptions, >, 0);
  g_assert_cmpuint(scene_stats(&s)->offloads, ==, 0);
  g_assert_cmpuint(scene_stats(&s)->lost, ==, 0);
  scene_clear(&s);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/transfer/a-choice-does-not-leave-in-the-step-of-its-fork",
                  test_fresh_choice);
  g_test_add_func("/sched/transfer/a-cache-too-large-for-a-transfer-is-computed",
                  test_large_transfer);
  return g_test_run();
}
