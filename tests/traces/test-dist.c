/* Distributions: what their text means, and that draws follow it. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <glib.h>
#include <glib/gstdio.h>

#include "tests/stats.h"
#include "tests/traces/fixture.h"
#include "traces/dist.h"

#define DRAWS 20000

static oct_dist *
parse(const char *text) {
  GError *error = NULL;
  oct_dist *dist = oct_dist_parse(text, &error);
  g_assert_no_error(error);
  g_assert_cmpstr(oct_dist_text(dist), ==, text);
  return dist;
}

static double *
draws(const oct_dist *dist) {
  oct_rng rng;
  oct_rng_seed(&rng, 11, 3);
  double *sample = g_new(double, DRAWS);
  for (gsize i = 0; i < DRAWS; i++)
    sample[i] = oct_dist_draw(dist, &rng);
  return sample;
}

static double
mean_of(const double *sample) {
  double sum = 0;
  for (gsize i = 0; i < DRAWS; i++)
    sum += sample[i];
  return sum / DRAWS;
}

static void
test_fixed(void) {
  g_autoptr(oct_dist) a = parse("7"), b = parse("fixed:7");
  oct_rng rng;
  oct_rng_seed(&rng, 1, 1);
  g_assert_cmpuint(oct_dist_draw_tokens(a, &rng, 0), ==, 7);
  g_assert_cmpuint(oct_dist_draw_tokens(b, &rng, 0), ==, 7);
  g_assert_cmpfloat(oct_dist_mean(a), ==, 7);
}

static void
test_uniform(void) {
  g_autoptr(oct_dist) dist = parse("uniform:3:12");
  oct_rng rng;
  oct_rng_seed(&rng, 5, 0);
  guint64 seen[10] = {0};
  for (int i = 0; i < DRAWS; i++) {
    guint32 tokens = oct_dist_draw_tokens(dist, &rng, 0);
    g_assert_cmpuint(tokens, >=, 3);
    g_assert_cmpuint(tokens, <=, 12);
    seen[tokens - 3]++;
  }
  g_assert_cmpfloat(oct_test_chi2_tail(oct_test_chi2_equal(seen, 10), 9), >, 0.001);
}

static void
test_lognormal(void) {
  /* A third number above the mean is the 99th percentile, else sigma. */
  g_autoptr(oct_dist) dist = parse("lognormal:1200:sigma=0.8");
  g_autoptr(oct_dist) bare = parse("lognormal:1200:0.8");
  g_autofree double *sample = draws(dist), *again = draws(bare);
  g_assert_cmpfloat_with_epsilon(mean_of(sample), 1200, 1200 * 0.03);
  g_assert_cmpmem(sample, DRAWS * sizeof *sample, again, DRAWS * sizeof *again);
  for (gsize i = 0; i < DRAWS; i++)
    sample[i] = log(sample[i]);
  g_assert_cmpfloat(oct_test_ks(sample, DRAWS, oct_test_cdf_normal, log(1200) - 0.32, 0.8), <,
                    1.95);
  g_autoptr(oct_dist) p99 = parse("lognormal:1000:5000");
  g_autofree double *tail = draws(p99);
  gsize above = 0;
  for (gsize i = 0; i < DRAWS; i++)
    above += tail[i] > 5000;
  g_assert_cmpfloat_with_epsilon((double)above / DRAWS, 0.01, 0.0025);
  g_assert_cmpfloat_with_epsilon(mean_of(tail), 1000, 40);
}

static void
test_exponential_geometric(void) {
  g_autoptr(oct_dist) exponential = parse("exponential:30"), geometric = parse("geometric:4");
  g_autofree double *sample = draws(exponential), *turns = draws(geometric);
  g_assert_cmpfloat(oct_test_ks(sample, DRAWS, oct_test_cdf_exponential, 30, 0), <, 1.95);
  gsize ones = 0;
  for (gsize i = 0; i < DRAWS; i++) {
    g_assert_cmpfloat(turns[i], >=, 1);
    g_assert_cmpfloat(turns[i], ==, floor(turns[i]));
    ones += turns[i] == 1;
  }
  g_assert_cmpfloat_with_epsilon((double)ones / DRAWS, 0.25, 0.012);
  g_assert_cmpfloat_with_epsilon(mean_of(turns), 4, 0.12);
  g_autoptr(oct_dist) one = parse("geometric:1");
  oct_rng rng;
  oct_rng_seed(&rng, 1, 1);
  g_assert_cmpfloat(oct_dist_draw(one, &rng), ==, 1);
}

static void
test_quantiles(void) {
  g_autoptr(oct_dist) dist = parse("quantiles:0=10,0.5=20,1=100");
  g_assert_cmpfloat(oct_dist_mean(dist), ==, 37.5);
  g_autofree double *sample = draws(dist);
  /* Back through the table the draws must be uniform. */
  for (gsize i = 0; i < DRAWS; i++)
    sample[i] = sample[i] < 20 ? (sample[i] - 10) / 20 : 0.5 + (sample[i] - 20) / 160;
  g_assert_cmpfloat(oct_test_ks(sample, DRAWS, oct_test_cdf_uniform, 0, 1), <, 1.95);
  /* A jump in the table is never drawn from its inside. */
  g_autoptr(oct_dist) atom = parse("quantiles:0=5,0.5=5,0.5=9,1=9");
  g_autofree double *two = draws(atom);
  for (gsize i = 0; i < DRAWS; i++)
    g_assert_true(two[i] == 5 || two[i] == 9);
}

static void
test_hist(void) {
  g_autofree char *path = NULL;
  int fd = g_file_open_tmp("octet-hist-XXXXXX", &path, NULL);
  const char *text = "# value weight\n100 1\n200,2 # twice\n\n300\t0\n400 1\n";
  g_assert_cmpint(write(fd, text, strlen(text)), ==, (gssize)strlen(text));
  close(fd);
  g_autofree char *spec = g_strdup_printf("hist:%s", path);
  g_autoptr(oct_dist) dist = parse(spec);
  g_assert_cmpfloat_with_epsilon(oct_dist_mean(dist), 225, 1e-9);
  g_autofree double *sample = draws(dist);
  gsize n[5] = {0};
  for (gsize i = 0; i < DRAWS; i++)
    n[(gsize)sample[i] / 100]++;
  g_assert_cmpuint(n[3], ==, 0);
  g_assert_cmpfloat_with_epsilon((double)n[2] / DRAWS, 0.5, 0.012);
  g_unlink(path);
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_dist_parse(spec, &error));
  g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_IO);
}

static void
test_hist_refuses(void) {
  static const char *const bad[] = {"10", "10 -1", "10 x", "10 1 1", "nan 1", "5 0\n6 0", ""};
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
    g_autofree char *path = NULL;
    int fd = g_file_open_tmp("octet-hist-XXXXXX", &path, NULL);
    g_assert_cmpint(write(fd, bad[i], strlen(bad[i])), ==, (gssize)strlen(bad[i]));
    close(fd);
    g_autofree char *spec = g_strdup_printf("hist:%s", path);
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_dist_parse(spec, &error));
    g_assert_nonnull(strstr(error->message, path));
    g_unlink(path);
  }
}

static void
test_true(void) {
  g_autoptr(oct_dist) same = parse("true"), half_more = parse("true*1.5:max=100");
  oct_rng rng;
  oct_rng_seed(&rng, 1, 1);
  g_assert_true(oct_dist_is_true(same));
  g_assert_cmpuint(oct_dist_draw_tokens(same, &rng, 37), ==, 37);
  g_assert_cmpuint(oct_dist_draw_tokens(half_more, &rng, 37), ==, 56);
  g_assert_cmpuint(oct_dist_draw_tokens(half_more, &rng, 99), ==, 100);
}

static void
test_clamps(void) {
  g_autoptr(oct_dist) dist = parse("lognormal:1000:sigma=2:min=50:max=3000");
  oct_rng rng;
  oct_rng_seed(&rng, 9, 9);
  for (int i = 0; i < DRAWS; i++) {
    guint32 tokens = oct_dist_draw_tokens(dist, &rng, 0);
    g_assert_cmpuint(tokens, >=, 50);
    g_assert_cmpuint(tokens, <=, 3000);
  }
  g_autoptr(oct_dist) small = parse("exponential:0.01");
  g_assert_cmpuint(oct_dist_draw_tokens(small, &rng, 0), ==, 1);
  g_autoptr(oct_dist) large = parse("1e30");
  g_assert_cmpuint(oct_dist_draw_tokens(large, &rng, 0), ==, OCT_TRACE_TOKENS_MAX);
}

static void
test_refuses(void) {
  static const char *const bad[] = {
      "",
      "x",
      "-1",
      "nan",
      "inf",
      "fixed",
      "fixed:",
      "fixed:-2",
      "uniform:5",
      "uniform:6:5",
      "uniform:0.5:2",
      "uniform:0:1e300",
      "exponential:0",
      "lognormal:100",
      "lognormal:0:5",
      "lognormal:100:1e9",
      "lognormal:100:p99=50",
      "lognormal:100:sigma=-1",
      "geometric:0.5",
      "quantiles:0=1",
      "quantiles:0=1,1=0",
      "quantiles:0=1,0.5=2",
      "quantiles:0.1=1,1=2",
      "quantiles:0=1,1",
      "hist",
      "hist:",
      "true*0.5",
      "true*x",
      "truex",
      "5:min=9:max=8",
      "5:max=x",
      "5:6",
  };
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_dist) dist = oct_dist_parse(bad[i], &error);
    if (dist != NULL)
      g_error("\"%s\" was taken", bad[i]);
    g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION);
    g_assert_nonnull(strstr(error->message, bad[i]));
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/traces/dist/fixed-is-one-number", test_fixed);
  g_test_add_func("/traces/dist/uniform-is-even-with-both-ends", test_uniform);
  g_test_add_func("/traces/dist/lognormal-has-its-mean-and-its-sigma-or-p99", test_lognormal);
  g_test_add_func("/traces/dist/exponential-and-geometric-follow-their-laws",
                  test_exponential_geometric);
  g_test_add_func("/traces/dist/quantiles-are-met", test_quantiles);
  g_test_add_func("/traces/dist/histograms-keep-their-weights", test_hist);
  g_test_add_func("/traces/dist/refuses-a-histogram-by-file-and-line", test_hist_refuses);
  g_test_add_func("/traces/dist/true-multiplies-the-true-length", test_true);
  g_test_add_func("/traces/dist/draws-stay-within-their-limits", test_clamps);
  g_test_add_func("/traces/dist/refuses-text-that-makes-no-sense", test_refuses);
  return g_test_run();
}
