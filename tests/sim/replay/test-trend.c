/* The slope of a backlog and the verdict on it. */
#include "sim/replay/trend.h"

#include "engine/base/rng.h"

#define N 512

static void
test_line(void) {
  double x[N], y[N];
  for (int i = 0; i < N; i++) {
    x[i] = 10 + 0.5 * i;
    y[i] = 100 + 3 * x[i];
  }
  oct_trend t = oct_trend_of(x, y, N);
  g_assert_cmpuint(t.n_batches, ==, OCT_TREND_BATCHES_MAX);
  g_assert_cmpfloat_with_epsilon(t.slope, 3, 1e-9);
  g_assert_cmpfloat_with_epsilon(t.low, 3, 1e-6);
  g_assert_cmpfloat_with_epsilon(t.high, 3, 1e-6);
  g_assert_cmpint(oct_trend_verdict(&t, 100), ==, OCT_VERDICT_SATURATED);
  g_assert_cmpint(oct_trend_verdict(&t, 3 / OCT_UNSERVED_SATURATED * 1.01), ==,
                  OCT_VERDICT_STABLE); /* grows, but it does not matter */
}

/* Of 400 samples of noise about a constant, the interval misses it in about 5 %. */
static void
test_interval(void) {
  guint missed = 0;
  oct_rng rng;
  oct_rng_seed(&rng, 4, 4);
  for (guint run = 0; run < 400; run++) {
    double x[N], y[N];
    for (int i = 0; i < N; i++) {
      x[i] = i;
      y[i] = 1000 + 0.25 * i + 50 * oct_rng_normal(&rng);
    }
    oct_trend t = oct_trend_of(x, y, N);
    missed += t.low > 0.25 || t.high < 0.25;
  }
  g_test_message("the true slope was outside of %u of 400 intervals of 95 %%", missed);
  g_assert_cmpuint(missed, >=, 8); /* 20 +- 3 x 4.4 */
  g_assert_cmpuint(missed, <=, 34);
}

static void
test_short(void) {
  const double x[] = {0, 1, 2, 3, 4, 5, 6}, y[] = {0, 1, 2, 3, 4, 5, 6};
  oct_trend t = oct_trend_of(x, y, 7);
  g_assert_cmpuint(t.n_batches, ==, 0);
  g_assert_cmpint(oct_trend_verdict(&t, 1), ==, OCT_VERDICT_UNDECIDED);
  const double same[16] = {0};
  t = oct_trend_of(same, same, 16);
  g_assert_cmpuint(t.n_batches, ==, 0);
}

static void
test_undecided(void) {
  const oct_trend wide = {.n_batches = 16, .slope = 1, .low = -10, .high = 12};
  g_assert_cmpint(oct_trend_verdict(&wide, 100), ==, OCT_VERDICT_UNDECIDED);
  g_assert_cmpint(oct_trend_verdict(&wide, 1000), ==, OCT_VERDICT_STABLE);
  g_assert_cmpint(oct_trend_verdict(&wide, 0), ==, OCT_VERDICT_UNDECIDED);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/replay/trend/a-line-is-found-exactly", test_line);
  g_test_add_func("/replay/trend/the-interval-holds-the-slope-in-95-percent", test_interval);
  g_test_add_func("/replay/trend/few-samples-say-nothing", test_short);
  g_test_add_func("/replay/trend/a-wide-interval-is-undecided-where-it-matters", test_undecided);
  return g_test_run();
}
