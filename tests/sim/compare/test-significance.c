/* Tests of tests: t against tables, how often runs that do not differ are called different, and
 * whether a shift that is there is found. */
#include <math.h>

#include "engine/base/rng.h"
#include "sim/compare/significance.h"

#define REQUESTS 2000
#define PAIRS    1500
/* The memory of 20 requests that draw_some has is that of a queue that holds half as many. */
#define IN_SYSTEM 10

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
    const oct_compare_sample left = {a, n, IN_SYSTEM}, right = {b, n, IN_SYSTEM};
    g_assert_true(paired ? oct_compare_paired(a, b, n, IN_SYSTEM, statistic, &d)
                         : oct_compare_unpaired(&left, &right, statistic, &d));
    g_assert_true(isfinite(d.p) && d.low <= d.difference && d.difference <= d.high);
    alarms += d.p < OCT_COMPARE_ALPHA;
  }
  return (double)alarms / PAIRS;
}

/* At most about alpha, whatever the statistic. With 1,500 pairs its own error is 0.6 %. */
static void
test_false_alarms(void) {
  static const guint sizes[] = {OCT_COMPARE_VALUES_MIN, 500, 1000, REQUESTS};
  for (gsize k = 0; k < G_N_ELEMENTS(sizes); k++)
    for (int paired = 0; paired < 2; paired++)
      for (int s = 0; s < OCT_STATISTIC_COUNT; s++) {
        double share = false_alarms(sizes[k], paired, (oct_statistic)s, 7);
        g_test_message("%u requests, %s %s: %.1f %% of pairs without a difference are called "
                       "different",
                       sizes[k], paired ? "paired" : "unpaired",
                       oct_statistic_name((oct_statistic)s), 100 * share);
        g_assert_cmpfloat(share, >, 0.002);
        g_assert_cmpfloat(share, <, 0.07);
      }
}

/* Blocks are long against what is in the system, and few rather than short. */
static void
test_blocks(void) {
  g_assert_cmpuint(oct_compare_blocks(4096, 0, FALSE), ==, OCT_COMPARE_BLOCKS_MAX);
  g_assert_cmpuint(oct_compare_blocks(3000, 60, FALSE), ==, 10);
  g_assert_cmpuint(oct_compare_blocks(3000, 100, FALSE), ==, 6);
  g_assert_cmpuint(oct_compare_blocks(360, 40, FALSE), ==, OCT_COMPARE_BLOCKS_MIN);
  g_assert_cmpuint(oct_compare_blocks(360, 40, TRUE), ==, OCT_COMPARE_BLOCKS_MIN_PAIRS);
  g_assert_cmpfloat(oct_compare_inflation(3000, 0, 10), ==, 1);
  /* Of little memory: blocks' means are nearly independent; else more is missing. */
  g_assert_cmpfloat_with_epsilon(oct_compare_inflation(3000, 0.01, 10), 1, 1e-3);
  double before = 1;
  for (double in_system = 1; in_system <= 1e6; in_system *= 2) {
    double inflation = oct_compare_inflation(3000, in_system, 10);
    g_assert_true(isfinite(inflation));
    g_assert_cmpfloat(inflation, >=, before);
    before = inflation;
  }
  g_assert_cmpfloat(before, >, 3);
}

/* The variance of a mean of N correlated values, from blocks and inflated, is the true one.
 */
static void
test_inflation(void) {
  enum { N = 400, RUNS = 2000 };
  const double memory = 0.95;
  g_autofree double *means = g_new(double, RUNS);
  oct_rng rng;
  double seen = 0, of_means = 0, mean = 0;
  const guint blocks = oct_compare_blocks(N, IN_SYSTEM, FALSE);
  oct_rng_seed(&rng, 23, 1);
  for (guint k = 0; k < RUNS; k++) {
    double x = oct_rng_normal(&rng), sum[OCT_COMPARE_BLOCKS_MAX] = {0}, whole = 0;
    for (guint i = 0; i < N; i++) {
      x = memory * x + sqrt(1 - memory * memory) * oct_rng_normal(&rng);
      sum[i * blocks / N] += x / (N / blocks);
      whole += x / N;
    }
    for (guint b = 0; b < blocks; b++)
      seen += (sum[b] - whole) * (sum[b] - whole) / (blocks - 1) / blocks / RUNS;
    means[k] = whole;
    mean += whole / RUNS;
  }
  for (guint k = 0; k < RUNS; k++)
    of_means += (means[k] - mean) * (means[k] - mean) / (RUNS - 1);
  g_test_message("of means %.4f, of blocks %.4f, inflated %.4f", of_means, seen,
                 seen * oct_compare_inflation(N, IN_SYSTEM, blocks));
  g_assert_cmpfloat(of_means / seen, >, 1.2);
  g_assert_cmpfloat_with_epsilon(of_means / seen / oct_compare_inflation(N, IN_SYSTEM, blocks), 1,
                                 0.15);
}

/* Longest gaps of a run: most are of their own, and now and then one long step hits all who are
 * there, 40 of them alike. Steps have a few lengths, each within microseconds of the same. */
static void
draw_gaps(oct_rng *rng, guint n, double *values) {
  static const double lengths_s[] = {0.530, 0.660, 0.828};
  for (guint i = 0; i < n; i++)
    values[i] = 0.2 + 0.1 * oct_rng_uniform(rng);
  for (guint at = 0; at < n; at += 5 + (guint)(40 * oct_rng_uniform(rng))) {
    double hit = lengths_s[(int)(2.2 * oct_rng_uniform(rng))] + 1e-5 * oct_rng_uniform(rng);
    for (guint i = at; i < MIN(n, at + 40); i++)
      values[i] = MAX(values[i], hit);
  }
}

/* Percentiles of such gaps sit on plateaus: leaving out a block moves none of them. */
static void
test_plateaus(void) {
  enum { N = 400, RUNS = 1000 };
  double a[N], b[N];
  oct_rng rng;
  guint alarms[OCT_STATISTIC_COUNT] = {0}, any = 0;
  oct_rng_seed(&rng, 29, 1);
  for (guint k = 0; k < RUNS; k++) {
    double p[OCT_STATISTIC_COUNT], adjusted[OCT_STATISTIC_COUNT];
    gboolean differs = FALSE;
    draw_gaps(&rng, N, a);
    draw_gaps(&rng, N, b);
    const oct_compare_sample left = {a, N, 20}, right = {b, N, 20};
    oct_difference d[OCT_STATISTIC_COUNT];
    for (int s = 0; s < OCT_STATISTIC_COUNT; s++) {
      g_assert_true(oct_compare_unpaired(&left, &right, (oct_statistic)s, &d[s]));
      g_assert_cmpfloat(d[s].p, >, 0);
      p[s] = d[s].p;
    }
    oct_compare_holm(p, OCT_STATISTIC_COUNT, adjusted);
    for (int s = 0; s < OCT_STATISTIC_COUNT; s++) {
      gboolean alarm = adjusted[s] < OCT_COMPARE_ALPHA && !d[s].equal;
      alarms[s] += alarm;
      differs = differs || alarm;
    }
    any += differs;
  }
  g_test_message("of %d pairs: mean %u, p50 %u, p99 %u, any %u", RUNS, alarms[0], alarms[1],
                 alarms[2], any);
  g_assert_cmpuint(any, <=, RUNS / 20);
}

/* Two plateaus without any spread, microseconds apart or far: no chance can be judged. */
static void
test_no_variance(void) {
  double a[OCT_COMPARE_VALUES_MIN], b[OCT_COMPARE_VALUES_MIN];
  const guint n = OCT_COMPARE_VALUES_MIN;
  const oct_compare_sample left = {a, n, 1}, right = {b, n, 1};
  oct_difference d;
  static const double moves_s[] = {1e-5, 0.1};
  for (gsize k = 0; k < G_N_ELEMENTS(moves_s); k++)
    for (int s = 0; s < OCT_STATISTIC_COUNT; s++) {
      for (guint i = 0; i < n; i++) {
        a[i] = 0.828;
        b[i] = 0.828 + moves_s[k];
      }
      g_assert_true(oct_compare_unpaired(&left, &right, (oct_statistic)s, &d));
      g_assert_cmpfloat(d.p, ==, 1);
      g_assert_cmpfloat(d.low, <=, 0);
      g_assert_cmpfloat(d.high, >=, 2 * 0.99 * moves_s[k]);
      g_assert_cmpint(d.equal, ==, moves_s[k] < 1e-4);
      /* The same requests, each later by just as much: that is no chance. */
      g_assert_true(oct_compare_paired(a, b, n, 1, (oct_statistic)s, &d));
      g_assert_cmpfloat(d.p, <, 1e-6);
      g_assert_cmpint(d.equal, ==, moves_s[k] < 1e-4);
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

/* Ten percent longer, of other requests: found in most pairs of runs, and of the percentiles too.
 */
static void
test_unpaired_shift(void) {
  enum { RUNS = 200 };
  g_autofree double *a = g_new(double, REQUESTS), *b = g_new(double, REQUESTS);
  oct_rng rng;
  guint found[OCT_STATISTIC_COUNT] = {0};
  oct_rng_seed(&rng, 31, 1);
  for (guint k = 0; k < RUNS; k++) {
    draw(&rng, a, NULL);
    draw(&rng, b, NULL);
    /* Times per token: a tenth of the spread of waiting times about a level. */
    for (guint i = 0; i < REQUESTS; i++) {
      a[i] = 1 + 0.1 * a[i];
      b[i] = 1.1 * (1 + 0.1 * b[i]);
    }
    const oct_compare_sample left = {a, REQUESTS, IN_SYSTEM}, right = {b, REQUESTS, IN_SYSTEM};
    for (int s = 0; s < OCT_STATISTIC_COUNT; s++) {
      oct_difference d;
      g_assert_true(oct_compare_unpaired(&left, &right, (oct_statistic)s, &d));
      /* As it must be to be the smallest of twelve. */
      found[s] += d.p < OCT_COMPARE_ALPHA / 12;
    }
  }
  g_test_message("of %d shifts: mean %u, p50 %u, p99 %u", RUNS, found[0], found[1], found[2]);
  g_assert_cmpuint(found[OCT_STATISTIC_MEAN], >, RUNS * 9 / 10);
  g_assert_cmpuint(found[OCT_STATISTIC_P50], >, RUNS * 9 / 10);
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
    g_assert_true(oct_compare_paired(a, b, REQUESTS, IN_SYSTEM, (oct_statistic)s, &d));
    g_assert_cmpfloat(d.p, <, 0.01);
    g_assert_cmpfloat_with_epsilon(d.relative, 0.1, 1e-9);
    g_assert_cmpfloat(d.low, >, 0);
    g_assert_cmpfloat(d.above, ==, 1);
    g_assert_true(oct_compare_paired(b, a, REQUESTS, IN_SYSTEM, (oct_statistic)s, &d));
    g_assert_cmpfloat(d.above, ==, 0);
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
    g_assert_true(oct_compare_paired(a, a, REQUESTS, IN_SYSTEM, (oct_statistic)s, &d));
    g_assert_cmpfloat(d.difference, ==, 0);
    g_assert_cmpfloat(d.p, ==, 1);
    g_assert_cmpfloat(d.above, ==, 0.5);
    const oct_compare_sample sample = {a, REQUESTS, IN_SYSTEM};
    g_assert_true(oct_compare_unpaired(&sample, &sample, (oct_statistic)s, &d));
    g_assert_true(d.equal);
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
  oct_compare_sample left = {a, n, 1};
  const oct_compare_sample right = {b, n, 1};
  g_assert_true(oct_compare_unpaired(&left, &right, OCT_STATISTIC_MEAN, &d));
  g_assert_cmpfloat_with_epsilon(d.above, wins / n / n, 1e-12);
  left.n = n - 1;
  g_assert_false(oct_compare_unpaired(&left, &right, OCT_STATISTIC_MEAN, &d));
  g_assert_false(oct_compare_paired(a, b, n - 1, 1, OCT_STATISTIC_MEAN, &d));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/compare/significance/students-t-is-that-of-the-tables", test_student);
  g_test_add_func("/compare/significance/holm-adjusts-as-published", test_holm);
  g_test_add_func("/compare/significance/false-alarms-are-no-more-than-stated", test_false_alarms);
  g_test_add_func("/compare/significance/blocks-are-long-against-what-is-in-the-system",
                  test_blocks);
  g_test_add_func("/compare/significance/inflated-variance-of-blocks-is-that-of-means",
                  test_inflation);
  g_test_add_func("/compare/significance/percentiles-on-plateaus-are-no-difference", test_plateaus);
  g_test_add_func("/compare/significance/without-variance-no-chance-is-judged", test_no_variance);
  g_test_add_func("/compare/significance/single-requests-are-no-independent-sample", test_naive);
  g_test_add_func("/compare/significance/a-shift-of-a-tenth-is-found", test_shift);
  g_test_add_func("/compare/significance/a-shift-of-other-requests-is-found", test_unpaired_shift);
  g_test_add_func("/compare/significance/equal-runs-do-not-differ", test_equal);
  g_test_add_func("/compare/significance/above-is-mann-whitneys-u", test_above);
  return g_test_run();
}
