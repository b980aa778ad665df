/* Tests of tests: t against tables, how often runs that do not differ are called different, and
 * whether a shift that is there is found. */
#include <math.h>

#include "engine/base/rng.h"
#include "sim/compare/significance.h"

#define REQUESTS 2000
#define PAIRS    1500
#define FEWEST   500 /* of the sizes that false alarms are counted for */

/* From tables of Student's distribution. */
static void
test_student(void) {
  const struct {
    double freedom, p, t;
  } rows[] = {{1, 0.05, 12.7062},
              {5, 0.05, 2.5706},
              {19, 0.05, 2.0930},
              {19, 0.01, 2.8609},
              {120, 0.05, 1.9799}};
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_assert_cmpfloat_with_epsilon(oct_student_quantile(rows[i].p, rows[i].freedom), rows[i].t,
                                   1e-3);
    g_assert_cmpfloat_with_epsilon(oct_student_tail(rows[i].t, rows[i].freedom), rows[i].p, 1e-4);
  }
  g_assert_cmpfloat(oct_student_tail(0, 7), ==, 1);
  g_assert_cmpfloat_with_epsilon(oct_student_tail(1, 1), 0.5, 1e-12); /* Cauchy */
}

static void
test_holm(void) {
  const double p[] = {0.01, 0.04, 0.03, 0.005};
  double adjusted[4];
  oct_compare_holm(p, 4, adjusted);
  g_assert_cmpfloat_with_epsilon(adjusted[3], 0.02, 1e-12);
  g_assert_cmpfloat_with_epsilon(adjusted[0], 0.03, 1e-12);
  g_assert_cmpfloat_with_epsilon(adjusted[2], 0.06, 1e-12);
  g_assert_cmpfloat_with_epsilon(adjusted[1], 0.06, 1e-12);
}

/* Waiting times: skewed, and each near those before it, with a memory of about 20 requests. */
static void
draw_some(oct_rng *rng, guint n, double *values, const double *common) {
  const double memory = 0.95;
  double x = oct_rng_normal(rng);
  for (guint i = 0; i < n; i++) {
    x = memory * x + sqrt(1 - memory * memory) * oct_rng_normal(rng);
    values[i] = exp(0.5 * x + (common != NULL ? 0.5 * common[i] : 0));
  }
}

static void
draw(oct_rng *rng, double *values, const double *common) {
  draw_some(rng, REQUESTS, values, common);
}

/* Of PAIRS pairs of runs of n requests without a difference, the share that is called different at
 * 5 %. */
static double
false_alarms(guint n, gboolean paired, oct_statistic statistic, guint64 seed) {
  g_autofree double *a = g_new(double, n), *b = g_new(double, n), *common = g_new(double, n);
  oct_rng rng;
  guint alarms = 0;
  oct_rng_seed(&rng, seed, 1);
  for (guint k = 0; k < PAIRS; k++) {
    oct_difference d;
    for (guint i = 0; i < n && paired; i++)
      common[i] = oct_rng_normal(&rng);
    draw_some(&rng, n, a, paired ? common : NULL);
    draw_some(&rng, n, b, paired ? common : NULL);
    g_assert_true(paired ? oct_compare_paired(a, b, n, statistic, &d)
                         : oct_compare_unpaired(a, n, b, n, statistic, &d));
    g_assert_true(isfinite(d.p) && d.low <= d.difference && d.difference <= d.high);
    alarms += d.p < OCT_COMPARE_ALPHA;
  }
  return (double)alarms / PAIRS;
}

/* About alpha, whatever the statistic, from 1,000 requests on; of 500 twice that in a p99. With
 * 1,500 pairs its own error is 0.6 %. */
static void
test_false_alarms(void) {
  static const guint sizes[] = {OCT_COMPARE_VALUES_MIN, FEWEST, 1000, REQUESTS};
  for (gsize k = 0; k < G_N_ELEMENTS(sizes); k++)
    for (int paired = 0; paired < 2; paired++)
      for (int s = 0; s < OCT_STATISTIC_COUNT; s++) {
        double share = false_alarms(sizes[k], paired, (oct_statistic)s, 7);
        g_test_message("%u requests, %s %s: %.1f %% of pairs without a difference are called "
                       "different",
                       sizes[k], paired ? "paired" : "unpaired",
                       oct_statistic_name((oct_statistic)s), 100 * share);
        g_assert_cmpfloat(share, >, 0.02);
        g_assert_cmpfloat(share, <, sizes[k] < FEWEST ? 0.17 : sizes[k] < 1000 ? 0.12 : 0.09);
      }
}

/* Taking requests for independent would be wrong most of the time: the reason for blocks. */
static void
test_naive(void) {
  g_autofree double *a = g_new(double, REQUESTS), *b = g_new(double, REQUESTS);
  oct_rng rng;
  guint alarms = 0;
  oct_rng_seed(&rng, 11, 1);
  for (guint k = 0; k < 200; k++) {
    double sum[2] = {0}, squares[2] = {0};
    draw(&rng, a, NULL);
    draw(&rng, b, NULL);
    for (guint i = 0; i < REQUESTS; i++) {
      sum[0] += a[i];
      sum[1] += b[i];
      squares[0] += a[i] * a[i];
      squares[1] += b[i] * b[i];
    }
    double variance = 0;
    for (int r = 0; r < 2; r++)
      variance += (squares[r] - sum[r] * sum[r] / REQUESTS) / (REQUESTS - 1) / REQUESTS;
    alarms += oct_student_tail((sum[1] - sum[0]) / REQUESTS / sqrt(variance), 2 * REQUESTS) < 0.05;
  }
  g_assert_cmpuint(alarms, >, 100);
}

/* Ten percent more, in pairs: found; the interval holds the truth. */
static void
test_shift(void) {
  g_autofree double *a = g_new(double, REQUESTS), *b = g_new(double, REQUESTS);
  oct_rng rng;
  oct_rng_seed(&rng, 13, 1);
  draw(&rng, a, NULL);
  for (guint i = 0; i < REQUESTS; i++)
    b[i] = 1.1 * a[i];
  for (int s = 0; s < OCT_STATISTIC_COUNT; s++) {
    oct_difference d;
    g_assert_true(oct_compare_paired(a, b, REQUESTS, (oct_statistic)s, &d));
    g_assert_cmpfloat(d.p, <, 0.01);
    g_assert_cmpfloat_with_epsilon(d.relative, 0.1, 1e-9);
    g_assert_cmpfloat(d.low, >, 0);
    g_assert_cmpfloat(d.above, ==, 1);
  }
}

static void
test_equal(void) {
  g_autofree double *a = g_new(double, REQUESTS);
  oct_rng rng;
  oct_difference d;
  oct_rng_seed(&rng, 17, 1);
  draw(&rng, a, NULL);
  for (int s = 0; s < OCT_STATISTIC_COUNT; s++) {
    g_assert_true(oct_compare_paired(a, a, REQUESTS, (oct_statistic)s, &d));
    g_assert_cmpfloat(d.difference, ==, 0);
    g_assert_cmpfloat(d.p, ==, 1);
    g_assert_cmpfloat(d.above, ==, 0.5);
    g_assert_true(oct_compare_unpaired(a, REQUESTS, a, REQUESTS, (oct_statistic)s, &d));
    g_assert_cmpfloat(d.p, ==, 1);
    g_assert_cmpfloat_with_epsilon(d.above, 0.5, 1e-12);
  }
}

/* U of a sample by counting pairs, with ties. */
static void
test_above(void) {
  double a[OCT_COMPARE_VALUES_MIN], b[OCT_COMPARE_VALUES_MIN], wins = 0;
  const guint n = OCT_COMPARE_VALUES_MIN;
  oct_rng rng;
  oct_difference d;
  oct_rng_seed(&rng, 19, 1);
  for (guint i = 0; i < n; i++) {
    a[i] = floor(10 * oct_rng_uniform(&rng));
    b[i] = floor(12 * oct_rng_uniform(&rng));
  }
  for (guint i = 0; i < n; i++)
    for (guint k = 0; k < n; k++)
      wins += b[k] > a[i] ? 1 : b[k] < a[i] ? 0 : 0.5;
  g_assert_true(oct_compare_unpaired(a, n, b, n, OCT_STATISTIC_MEAN, &d));
  g_assert_cmpfloat_with_epsilon(d.above, wins / n / n, 1e-12);
  g_assert_false(oct_compare_unpaired(a, n - 1, b, n, OCT_STATISTIC_MEAN, &d));
  g_assert_false(oct_compare_paired(a, b, n - 1, OCT_STATISTIC_MEAN, &d));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/compare/significance/students-t-is-that-of-the-tables", test_student);
  g_test_add_func("/compare/significance/holm-adjusts-as-published", test_holm);
  g_test_add_func("/compare/significance/false-alarms-come-about-as-often-as-stated",
                  test_false_alarms);
  g_test_add_func("/compare/significance/single-requests-are-no-independent-sample", test_naive);
  g_test_add_func("/compare/significance/a-shift-of-a-tenth-is-found", test_shift);
  g_test_add_func("/compare/significance/equal-runs-do-not-differ", test_equal);
  g_test_add_func("/compare/significance/above-is-mann-whitneys-u", test_above);
  return g_test_run();
}
