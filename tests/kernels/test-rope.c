/* Rotary positions against formulas of their own in float64. */
#include <math.h>
#include <string.h>

#include "tests/kernels/data.h"

static const double two_pi = 6.283185307179586;

/* Scaled frequency of pair i, written down from the papers' definitions. */
static double
exact_frequency(const oct_rope *r, guint32 i) {
  double plain = 1 / pow(r->theta, 2.0 * i / r->dim), wavelength = two_pi / plain;
  if (r->kind == OCT_ROPE_LINEAR)
    return plain / r->factor;
  if (r->kind == OCT_ROPE_LLAMA3) {
    double longest = r->original_positions / r->low_freq_factor;
    double shortest = r->original_positions / r->high_freq_factor;
    if (wavelength < shortest)
      return plain;
    if (wavelength > longest)
      return plain / r->factor;
    double s = (r->original_positions / wavelength - r->low_freq_factor) /
               (r->high_freq_factor - r->low_freq_factor);
    return plain * (s + (1 - s) / r->factor);
  }
  if (r->kind == OCT_ROPE_YARN) {
    double bound[2], betas[2] = {r->beta_fast, r->beta_slow};
    for (int b = 0; b < 2; b++)
      bound[b] =
          0.5 * r->dim * (log(r->original_positions) - log(betas[b]) - log(two_pi)) / log(r->theta);
    if (r->truncate) {
      bound[0] = floor(bound[0]);
      bound[1] = ceil(bound[1]);
    }
    bound[0] = MAX(bound[0], 0);
    bound[1] = MIN(bound[1], r->dim - 1.0);
    double t = (i - bound[0]) / (bound[0] == bound[1] ? 0.001 : bound[1] - bound[0]);
    t = CLAMP(t, 0, 1);
    return plain * ((1 - t) + t / r->factor);
  }
  return plain;
}

static const oct_rope kinds[] = {
    {.kind = OCT_ROPE_PLAIN, .dim = 16, .theta = 10000},
    {.kind = OCT_ROPE_PLAIN, .dim = 6, .theta = 500000, .interleaved = true},
    {.kind = OCT_ROPE_LINEAR, .dim = 10, .theta = 10000, .factor = 4},
    {.kind = OCT_ROPE_LLAMA3,
     .dim = 64,
     .theta = 500000,
     .factor = 8,
     .original_positions = 8192,
     .low_freq_factor = 1,
     .high_freq_factor = 4},
    {.kind = OCT_ROPE_YARN,
     .dim = 64,
     .theta = 10000,
     .factor = 40,
     .original_positions = 4096,
     .beta_fast = 32,
     .beta_slow = 1,
     .truncate = true,
     .attention_factor = 1,
     .interleaved = true},
    {.kind = OCT_ROPE_YARN,
     .dim = 64,
     .theta = 150000,
     .factor = 32,
     .original_positions = 4096,
     .beta_fast = 32,
     .beta_slow = 1,
     .truncate = false,
     .attention_factor = 1.3465735902799727},
    {.kind = OCT_ROPE_YARN, /* a context so short that the ramp is empty */
     .dim = 8,
     .theta = 10000,
     .factor = 4,
     .original_positions = 2,
     .beta_fast = 32,
     .beta_slow = 1,
     .truncate = true,
     .attention_factor = 1},
};

static void
frequencies(void) {
  for (gsize k = 0; k < G_N_ELEMENTS(kinds); k++) {
    guint32 half = kinds[k].dim / 2;
    g_autofree float *got = g_new(float, half);
    g_autofree double *exact = g_new(double, half);
    oct_ref_rope_frequencies(&kinds[k], got);
    for (guint32 i = 0; i < half; i++) {
      exact[i] = exact_frequency(&kinds[k], i);
      g_assert_cmpfloat(fabs(got[i] / exact[i] - 1), <=, 1e-6);
    }
    data_expect("frequencies", got, exact, half, 0, 1e-7);
  }
}

static void
rotations(void) {
  for (gsize k = 0; k < G_N_ELEMENTS(kinds); k++) {
    const oct_rope *r = &kinds[k];
    guint32 half = r->dim / 2, n = 3, position = data_between(0, 1000);
    gsize stride = r->dim + data_between(0, 7);
    double factor = r->kind == OCT_ROPE_YARN ? r->attention_factor : 1;
    g_autofree float *inverse = g_new(float, half), *angles = g_new(float, r->dim);
    g_autofree float *x = data_normal(n * stride, 1);
    g_autofree double *exact = g_new(double, n *stride);
    oct_ref_rope_frequencies(r, inverse);
    oct_ref_rope_angles(r, inverse, position, angles);
    for (gsize i = 0; i < n * stride; i++)
      exact[i] = x[i];
    for (guint32 h = 0; h < n; h++)
      for (guint32 i = 0; i < half; i++) {
        gsize a = h * stride + (r->interleaved ? 2 * i : i), b = a + (r->interleaved ? 1 : half);
        double angle = position * (double)inverse[i], p = exact[a], q = exact[b];
        exact[a] = factor * (p * cos(angle) - q * sin(angle));
        exact[b] = factor * (q * cos(angle) + p * sin(angle));
      }
    oct_ref_rope(r, angles, n, stride, x);
    /* The angle itself is a float32, as where the models come from. */
    data_expect("rotation", x, exact, n * stride, 0, 1e-4);
  }
}

/* Scores depend on the distance of two tokens alone: what rotary positions are for. */
static void
only_distances_count(void) {
  const oct_rope *r = &kinds[0];
  g_autofree float *inverse = g_new(float, r->dim / 2), *angles = g_new(float, r->dim);
  g_autofree float *q = data_normal(r->dim, 1), *k = data_normal(r->dim, 1);
  double score[2] = {0};
  oct_ref_rope_frequencies(r, inverse);
  for (guint32 round = 0; round < 2; round++) {
    g_autofree float *a = g_memdup2(q, r->dim * sizeof *q), *b = g_memdup2(k, r->dim * sizeof *k);
    oct_ref_rope_angles(r, inverse, 5 + 100 * round, angles);
    oct_ref_rope(r, angles, 1, r->dim, a);
    oct_ref_rope_angles(r, inverse, 17 + 100 * round, angles);
    oct_ref_rope(r, angles, 1, r->dim, b);
    for (guint32 i = 0; i < r->dim; i++)
      score[round] += (double)a[i] * b[i];
  }
  g_assert_cmpfloat(fabs(score[0] - score[1]), <, 1e-4);
}

static void
yarn_temperature(void) {
  g_assert_cmpfloat(oct_ref_yarn_mscale(1, 1), ==, 1);
  g_assert_cmpfloat(oct_ref_yarn_mscale(0.5, 1), ==, 1);
  g_assert_cmpfloat(fabs(oct_ref_yarn_mscale(40, 1) - 1.3688879454113936), <, 1e-12);
  g_assert_cmpfloat(fabs(oct_ref_yarn_mscale(40, 0.707) - 1.2608037774058553), <, 1e-12);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/kernels/rope/frequencies", frequencies);
  g_test_add_func("/kernels/rope/rotations", rotations);
  g_test_add_func("/kernels/rope/only-distances-count", only_distances_count);
  g_test_add_func("/kernels/rope/yarn-temperature", yarn_temperature);
  return g_test_run();
}
