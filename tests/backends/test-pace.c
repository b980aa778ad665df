/* Virtual time held back to real time. The machine may be late, never early: what is claimed is
 * that nothing comes before its time, and that the inner clock keeps its own times. */
#include <time.h>

#include "backends/mock/mock.h"
#include "backends/pace/pace.h"
#include "backends/registry.h"
#include "engine/base/worker.h"

static gint64
wall_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (gint64)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int
two_timers(oct_world *world, void *arg) {
  gint64 begin = *(gint64 *)arg;
  oct_event event;
  for (oct_time until = 3000000; until <= 6000000; until += 3000000) {
    g_assert_true(oct_world_next(world, until, &event));
    g_assert_cmpint(event.kind, ==, OCT_EVENT_TIMER);
    g_assert_cmpint(event.time_ns, ==, until);
    g_assert_cmpint(wall_ns() - begin, >=, until);
  }
  return 7;
}

static void
test_timers(void) {
  gint64 begin = wall_ns();
  oct_world *world = oct_pace_world_new(oct_mock_world_new(NULL, NULL), NULL);
  g_assert_cmpint(world->ops->clock, ==, OCT_CLOCK_REAL);
  g_assert_cmpint(oct_world_run(world, two_timers, &begin), ==, 7);
  oct_world_free(world);
}

static void
wake_it(void *world) {
  oct_world_wake(world);
}

static int
wait_for_ever(oct_world *world, void *arg) {
  oct_event event;
  (void)arg;
  g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_WAKE);
  return 0;
}

static void
test_wake(void) {
  oct_world *world = oct_pace_world_new(oct_mock_world_new(NULL, NULL), NULL);
  g_autoptr(oct_worker) other = oct_worker_new("waker", wake_it, world, NULL);
  oct_world_run(world, wait_for_ever, NULL);
  g_clear_pointer(&other, oct_worker_free);
  oct_world_free(world);
}

static void
test_real_is_refused(void) {
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_backend_world_new("pace@mock:clock=real", &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/pace/timers-are-never-early", test_timers);
  g_test_add_func("/pace/wakes-from-another-thread", test_wake);
  g_test_add_func("/pace/a-real-clock-is-refused", test_real_is_refused);
  return g_test_run();
}
