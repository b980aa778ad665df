#include "engine/http/timers.h"

#include "engine/base/rng.h"

#define N 500

static void
first_is_the_earliest(void) {
  g_autoptr(oct_budget) budget = oct_budget_new("timers", 1 << 20);
  oct_http_timers timers = {.budget = budget};
  static oct_http_timer all[N];
  oct_rng rng;
  oct_rng_seed(&rng, 1, 0);
  for (int round = 0; round < 20000; round++) {
    oct_http_timer *timer = &all[oct_rng_below(&rng, N)];
    if (oct_rng_below(&rng, 3) == 0) {
      oct_http_timers_remove(&timers, timer);
    } else {
      g_assert_true(oct_http_timers_reserve(&timers, NULL));
      oct_http_timers_set(&timers, timer, (gint64)oct_rng_below(&rng, 1000));
    }
    const oct_http_timer *first = oct_http_timers_first(&timers);
    gint64 earliest = G_MAXINT64;
    gsize n = 0;
    for (int i = 0; i < N; i++)
      if (all[i].place > 0) {
        earliest = MIN(earliest, all[i].at_ns);
        n++;
      }
    g_assert_cmpuint(timers.n, ==, n);
    g_assert_cmpint(first != NULL ? first->at_ns : G_MAXINT64, ==, earliest);
  }
  oct_http_timers_clear(&timers);
  g_assert_cmpuint(oct_budget_used(budget), ==, 0);
}

static void
no_memory(void) {
  g_autoptr(oct_budget) budget = oct_budget_new("timers", 100);
  oct_http_timers timers = {.budget = budget};
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_http_timers_reserve(&timers, &error));
  g_assert_nonnull(error);
  g_assert_null(oct_http_timers_first(&timers));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/http/timers/first-is-the-earliest", first_is_the_earliest);
  g_test_add_func("/http/timers/without-memory-say-so", no_memory);
  return g_test_run();
}
