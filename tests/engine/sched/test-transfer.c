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

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/transfer/a-choice-does-not-leave-in-the-step-of-its-fork",
                  test_fresh_choice);
  return g_test_run();
}
