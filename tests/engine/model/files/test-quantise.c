/* Quantisers: what they write is read back within the error that their header promises. */
#include "engine/model/files/quantise.h"

#include <math.h>
#include <string.h>

#include "engine/base/rng.h"
#include "engine/model/files/dequant.h"
#include "engine/model/files/floats.h"

/* Weights of several laws: normal, all of one sign, tiny, huge, a few outliers, constant, zero. */
enum { LAWS = 8 };

static void
fill(guint law, float *values, gsize n) {
  oct_rng rng;
  oct_rng_seed(&rng, 7, law);
  for (gsize i = 0; i < n; i++) {
    double x = oct_rng_normal(&rng);
    const double laws[LAWS] = {0.02 * x,
                               1 + fabs(x),
                               -fabs(x) * 1e-3,
                               1e-6 * x,
                               500 * x,
                               oct_rng_below(&rng, 50) == 0 ? 30 * x : 0.01 * x,
                               0.75,
                               0};
    values[i] = (float)laws[law];
  }
}

static double
largest(const float *values, gsize n) {
  double most = 0;
  for (gsize i = 0; i < n; i++)
    most = fmax(most, fabs((double)values[i]));
  return most;
}

static void
fp8(void) {
  enum { N = 1000 };
  for (guint law = 0; law < LAWS; law++) {
    float values[N], back[N];
    guint8 codes[N];
    fill(law, values, N);
    float scale = oct_quant_fp8_scale(values, N);
    oct_quant_fp8(values, scale, N, codes);
    oct_dequant_fp8(codes, scale, N, back);
    for (gsize i = 0; i < N; i++) {
      double steps = fabs((double)values[i] / (double)scale);
      double allowed = (double)scale * fmax(0x1p-10, steps * 0x1p-4) * (1 + 1e-6);
      g_assert_cmpfloat(fabs((double)back[i] - (double)values[i]), <=, allowed);
    }
    g_assert_cmpfloat_with_epsilon(largest(back, N), largest(values, N),
                                   largest(values, N) * 1e-6 + 1e-30);
  }
}

static void
fp8_bands(void) {
  enum { ROWS = 128, COLUMNS = 300, BLOCKS = 3 };
  g_autofree float *values = g_new(float, ROWS *COLUMNS);
  g_autofree guint8 *codes = g_new(guint8, ROWS * COLUMNS);
  float scales[BLOCKS], back[COLUMNS];
  fill(5, values, (gsize)ROWS * COLUMNS);
  oct_quant_fp8_band(values, ROWS, COLUMNS, codes, scales);
  for (gsize row = 0; row < ROWS; row++) {
    oct_dequant_fp8_blocks(codes + row * COLUMNS, scales, COLUMNS, back);
    for (gsize i = 0; i < COLUMNS; i++) {
      double value = (double)values[row * COLUMNS + i], scale = (double)scales[i / 128];
      double allowed = scale * fmax(0x1p-10, fabs(value / scale) * 0x1p-4) * (1 + 1e-6);
      g_assert_cmpfloat(fabs((double)back[i] - value), <=, allowed);
    }
  }
  /* Each block's own largest value is what its scale makes 448. */
  for (gsize block = 0; block < BLOCKS; block++) {
    double most = 0;
    for (gsize row = 0; row < ROWS; row++)
      most = fmax(most,
                  largest(values + row * COLUMNS + block * 128, MIN(128, COLUMNS - block * 128)));
    g_assert_cmpfloat_with_epsilon((double)scales[block] * 448, most, most * 1e-6 + 1e-30);
  }
}

static void
mxfp4(void) {
  enum { N = 32 * 31 };
  for (guint law = 0; law < LAWS; law++) {
    float values[N], back[N];
    guint8 codes[N / 2], scales[N / 32];
    fill(law, values, N);
    oct_quant_mxfp4(values, N, codes, scales);
    oct_dequant_mxfp4(codes, scales, N, back);
    for (gsize i = 0; i < N; i++) {
      double most = largest(values + i / 32 * 32, 32);
      double step = (double)oct_float_from_e8m0(scales[i / 32]);
      double off = fabs((double)back[i] - (double)values[i]);
      g_assert_cmpfloat(off, <=, most / 4 * (1 + 1e-6));
      if (fabs((double)values[i]) <= 6 * step)
        g_assert_cmpfloat(off, <=, step * (1 + 1e-6)); /* the widest step is 2 scales */
    }
  }
}

/* The exponent is never worse than the one that the OCP specification names, and often better. */
static void
mxfp4_exponent(void) {
  guint n_better = 0;
  for (guint seed = 0; seed < 200; seed++) {
    float values[32], back[32];
    guint8 codes[16], scale;
    oct_rng rng;
    oct_rng_seed(&rng, seed, 1);
    for (gsize i = 0; i < 32; i++)
      values[i] = (float)oct_rng_normal(&rng);
    oct_quant_mxfp4(values, 32, codes, &scale);
    oct_dequant_mxfp4(codes, &scale, 32, back);
    double plain_scale = exp2(floor(log2(largest(values, 32))) - 2), found = 0, plain = 0;
    for (gsize i = 0; i < 32; i++) {
      double code = (double)oct_float_from_e2m1(
          oct_e2m1_from_float((float)((double)values[i] / plain_scale)));
      plain += pow((double)values[i] - code * plain_scale, 2);
      found += pow((double)values[i] - (double)back[i], 2);
    }
    g_assert_cmpfloat(found, <=, plain * (1 + 1e-9));
    n_better += found < plain * 0.99;
  }
  g_assert_cmpuint(n_better, >, 20);
}

static void
mxfp4_ends(void) {
  float values[2] = {3e38f, -3e38f}, back[2];
  guint8 code, scale;
  oct_quant_mxfp4(values, 2, &code, &scale);
  oct_dequant_mxfp4(&code, &scale, 2, back);
  g_assert_true(fabsf(back[0] - values[0]) <= values[0] / 4 && back[1] == -back[0]);
  values[0] = 1e-45f;
  values[1] = 0;
  oct_quant_mxfp4(values, 2, &code, &scale);
  oct_dequant_mxfp4(&code, &scale, 2, back);
  g_assert_true(back[0] >= 0 && back[0] < 1e-37f && back[1] == 0);
}

static void
awq(void) {
  enum { ROWS = 24, COLUMNS = 384, GROUP = 128, GROUPS = COLUMNS / GROUP };
  g_autofree float *values = g_new(float, ROWS *COLUMNS), *back = g_new(float, ROWS *COLUMNS);
  g_autofree guint32 *codes = g_new(guint32, COLUMNS * ROWS / 8);
  guint32 zeros[GROUPS * ROWS / 8];
  guint16 scales[GROUPS * ROWS];
  for (guint law = 0; law < LAWS; law++) {
    fill(law, values, (gsize)ROWS * COLUMNS);
    memset(codes, 0xff, COLUMNS * ROWS / 8 * sizeof *codes);
    for (gsize row = 0; row < ROWS; row += 8)
      oct_quant_awq(values + row * COLUMNS, NULL, row, ROWS, COLUMNS, GROUP, codes, zeros, scales);
    oct_int4 w = {.layout = OCT_INT4_AWQ,
                  .rows = ROWS,
                  .columns = COLUMNS,
                  .group = GROUP,
                  .codes = codes,
                  .zeros = zeros,
                  .scales = scales,
                  .scale_type = OCT_STORED_F16};
    oct_dequant_int4(&w, 0, ROWS, back);
    for (gsize row = 0; row < ROWS; row++)
      for (gsize i = 0; i < COLUMNS; i++) {
        const float *group = values + row * COLUMNS + i / GROUP * GROUP;
        double least = 0, most = 0;
        for (gsize k = 0; k < GROUP; k++) {
          least = fmin(least, (double)group[k]);
          most = fmax(most, (double)group[k]);
        }
        double scale = (double)oct_float_from_f16(scales[i / GROUP * ROWS + row]);
        double allowed = scale / 2 + fmax(0, most - least - 15 * scale);
        g_assert_cmpfloat(fabs((double)back[row * COLUMNS + i] - (double)values[row * COLUMNS + i]),
                          <=, allowed * (1 + 1e-6));
        g_assert_cmpfloat(scale, <=, (most - least) / 15 * 1.001 + 0x1p-24);
      }
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/quantise/fp8-errs-within-its-bound", fp8);
  g_test_add_func("/quantise/fp8-blocks-err-within-their-bound", fp8_bands);
  g_test_add_func("/quantise/mxfp4-errs-within-its-bound", mxfp4);
  g_test_add_func("/quantise/mxfp4-is-never-worse-than-the-plain-exponent", mxfp4_exponent);
  g_test_add_func("/quantise/mxfp4-reaches-both-ends-of-float32", mxfp4_ends);
  g_test_add_func("/quantise/awq-errs-within-its-bound", awq);
  return g_test_run();
}
