#include "engine/base/hist.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/rng.h"

static const double percents[] = {0, 0.001, 1, 10, 50, 90, 95, 99, 99.9, 99.99, 99.9999, 100};

static int
compare(const void *a, const void *b) {
  gint64 x = *(const gint64 *)a, y = *(const gint64 *)b;
  return (x > y) - (x < y);
}

/* Rank by counting, in long double: the smallest value with at least p % at or below it. */
static gint64
nearest_rank(const gint64 *sorted, gsize n, double percent) {
  gsize rank = 1;
  while (rank < n && (long double)rank * 100 + 1e-9L < (long double)percent * (long double)n)
    rank++;
  return sorted[rank - 1];
}

static void
check_against_sorting(gint64 *values, gsize n) {
  g_autoptr(oct_hist) hist = oct_hist_new();
  unsigned __int128 sum = 0;
  for (gsize i = 0; i < n; i++) {
    oct_hist_add(hist, values[i]);
    sum += (guint64)values[i];
  }
  qsort(values, n, sizeof *values, compare);
  g_assert_cmpuint(oct_hist_count(hist), ==, n);
  g_assert_cmpint(oct_hist_min(hist), ==, values[0]);
  g_assert_cmpint(oct_hist_max(hist), ==, values[n - 1]);
  g_assert_cmpfloat(oct_hist_mean(hist), ==, (double)sum / (double)n);
  for (gsize i = 0; i < G_N_ELEMENTS(percents); i++) {
    gint64 wanted = nearest_rank(values, n, percents[i]);
    gint64 got = oct_hist_percentile(hist, percents[i]);
    if (wanted < 1024)
      g_assert_cmpint(got, ==, wanted);
    else
      g_assert_cmpfloat(fabs((double)got / (double)wanted - 1), <=, 0.001);
  }
}

/* Log-uniform over all 63 bits, so that every octave is met. */
static void
within_a_thousandth(void) {
  static const gsize sizes[] = {1, 2, 3, 99, 100, 101, 1000, 20000};
  oct_rng rng;
  oct_rng_seed(&rng, 11, 0);
  for (gsize s = 0; s < G_N_ELEMENTS(sizes); s++) {
    g_autofree gint64 *values = g_new(gint64, sizes[s]);
    for (gsize i = 0; i < sizes[s]; i++)
      values[i] = (gint64)(oct_rng_u64(&rng) >> (1 + oct_rng_below(&rng, 63)));
    check_against_sorting(values, sizes[s]);
  }
}

static void
small_values_exact(void) {
  g_autofree gint64 *values = g_new(gint64, 5000);
  oct_rng rng;
  oct_rng_seed(&rng, 12, 0);
  for (gsize i = 0; i < 5000; i++)
    values[i] = (gint64)oct_rng_below(&rng, 1024);
  check_against_sorting(values, 5000);
}

/* The first and last value of every bucket of every octave find the bucket that holds them. */
static void
buckets_tile_the_range(void) {
  g_autoptr(oct_hist) hist = oct_hist_new();
  for (guint shift = 0; shift < 63; shift++)
    for (gint64 step = -1; step <= 1; step++)
      oct_hist_add(hist, (G_GINT64_CONSTANT(1) << shift) + step);
  oct_hist_add(hist, G_MAXINT64);
  guint cursor = 0;
  guint64 seen = 0;
  gint64 after = -1;
  oct_hist_bucket bucket;
  while (oct_hist_next(hist, &cursor, &bucket)) {
    g_assert_cmpint(bucket.low, >, after);
    g_assert_cmpint(bucket.high, >=, bucket.low);
    g_assert_true(bucket.low < 1024 ? bucket.high == bucket.low
                                    : bucket.high - bucket.low < bucket.low / 512);
    after = bucket.high;
    seen += bucket.count;
  }
  g_assert_cmpint(after, ==, G_MAXINT64);
  g_assert_cmpuint(seen, ==, oct_hist_count(hist));
  for (guint shift = 10; shift < 63; shift++) {
    gint64 edge = G_GINT64_CONSTANT(1) << shift;
    for (gint64 value = edge - 1; value <= edge; value++) {
      oct_hist_reset(hist);
      oct_hist_add(hist, value);
      cursor = 0;
      g_assert_true(oct_hist_next(hist, &cursor, &bucket));
      g_assert_true(bucket.low <= value && value <= bucket.high);
      g_assert_false(oct_hist_next(hist, &cursor, &bucket));
    }
  }
}

/* 99.9 % of 1000 values is the 999th, though 0.999 * 1000 is a little more than 999 in doubles. */
static void
rank_is_exact(void) {
  g_autoptr(oct_hist) hist = oct_hist_new();
  for (gint64 i = 1; i <= 1000; i++)
    oct_hist_add(hist, i);
  g_assert_cmpint(oct_hist_percentile(hist, 99.9), ==, 999);
  g_assert_cmpint(oct_hist_percentile(hist, 99.91), ==, 1000);
  for (guint p = 1; p <= 1000; p++)
    g_assert_cmpint(oct_hist_percentile(hist, p / 10.0), ==, p);
}

static void
merge_equals_one(void) {
  g_autoptr(oct_hist) a = oct_hist_new();
  g_autoptr(oct_hist) b = oct_hist_new();
  g_autoptr(oct_hist) both = oct_hist_new();
  oct_rng rng;
  oct_rng_seed(&rng, 13, 0);
  oct_hist_merge(a, b); /* nothing into nothing */
  g_assert_cmpint(oct_hist_min(a), ==, -1);
  for (int i = 0; i < 3000; i++) {
    gint64 value = (gint64)(oct_rng_u64(&rng) >> 20);
    guint64 times = oct_rng_below(&rng, 4);
    oct_hist_add_times(i % 3 ? a : b, value, times);
    for (guint64 k = 0; k < times; k++)
      oct_hist_add(both, value);
  }
  oct_hist_merge(a, b);
  g_assert_cmpuint(oct_hist_count(a), ==, oct_hist_count(both));
  g_assert_cmpint(oct_hist_min(a), ==, oct_hist_min(both));
  g_assert_cmpint(oct_hist_max(a), ==, oct_hist_max(both));
  g_assert_cmpfloat(oct_hist_mean(a), ==, oct_hist_mean(both));
  for (gsize i = 0; i < G_N_ELEMENTS(percents); i++)
    g_assert_cmpint(oct_hist_percentile(a, percents[i]), ==,
                    oct_hist_percentile(both, percents[i]));
}

static void
merge_into_nothing(void) {
  g_autoptr(oct_hist) empty = oct_hist_new();
  g_autoptr(oct_hist) full = oct_hist_new();
  oct_hist_add(full, 7);
  oct_hist_add(full, 9);
  oct_hist_merge(empty, full);
  g_assert_cmpuint(oct_hist_count(empty), ==, 2);
  g_assert_cmpint(oct_hist_min(empty), ==, 7);
  g_assert_cmpint(oct_hist_max(empty), ==, 9);
  g_assert_cmpint(oct_hist_percentile(empty, 50), ==, 7);
}

/* A sum of 2^40 hours in ns does not fit 64 bits. */
static void
mean_does_not_overflow(void) {
  g_autoptr(oct_hist) hist = oct_hist_new();
  oct_hist_add_times(hist, G_MAXINT64, G_GUINT64_CONSTANT(1) << 40);
  g_assert_cmpfloat(oct_hist_mean(hist), ==, (double)G_MAXINT64);
}

static void
nothing_has_no_percentile(void) {
  g_autoptr(oct_hist) hist = oct_hist_new();
  guint cursor = 0;
  oct_hist_bucket bucket;
  for (int round = 0; round < 2; round++) {
    g_assert_cmpuint(oct_hist_count(hist), ==, 0);
    g_assert_cmpint(oct_hist_percentile(hist, 50), ==, -1);
    g_assert_cmpint(oct_hist_min(hist), ==, -1);
    g_assert_cmpint(oct_hist_max(hist), ==, -1);
    g_assert_true(isnan(oct_hist_mean(hist)));
    g_assert_false(oct_hist_next(hist, &cursor, &bucket));
    oct_hist_add_times(hist, 5, 0);
    if (round == 0) {
      oct_hist_add(hist, 5);
      oct_hist_reset(hist);
      cursor = 0;
    }
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/base/hist/percentiles-are-within-a-thousandth-of-sorting", within_a_thousandth);
  g_test_add_func("/base/hist/values-below-1024-are-exact", small_values_exact);
  g_test_add_func("/base/hist/buckets-tile-the-range", buckets_tile_the_range);
  g_test_add_func("/base/hist/rank-is-computed-in-integers", rank_is_exact);
  g_test_add_func("/base/hist/merge-equals-recording-in-one", merge_equals_one);
  g_test_add_func("/base/hist/merge-into-an-empty-one-copies", merge_into_nothing);
  g_test_add_func("/base/hist/mean-does-not-overflow", mean_does_not_overflow);
  g_test_add_func("/base/hist/an-empty-one-has-no-percentile", nothing_has_no_percentile);
  return g_test_run();
}
