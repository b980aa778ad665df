#include "engine/model/files/quantise.h"

#include <math.h>

#include "engine/base/assert.h"
#include "engine/model/files/floats.h"

#define FP8_BLOCK 128
#define MX_BLOCK  32
#define WORD      8

/* --- FP8 -----------------------------------------------------------------------------------------
 */

static float
largest(const float *values, gsize n) {
  float most = 0;
  for (gsize i = 0; i < n; i++)
    most = fmaxf(most, fabsf(values[i]));
  return most;
}

static float
scale_of(float most) {
  float scale = most / OCT_E4M3_MAX;
  return scale > 0 ? scale : 1; /* values below 448 x the smallest float32 become zero */
}

float
oct_quant_fp8_scale(const float *values, gsize n) {
  return scale_of(largest(values, n));
}

void
oct_quant_fp8(const float *restrict values, float scale, gsize n, guint8 *restrict codes) {
  for (gsize i = 0; i < n; i++)
    codes[i] = oct_e4m3_from_float(values[i] / scale);
}

void
oct_quant_fp8_band(const float *values, gsize n_rows, gsize columns, guint8 *codes, float *scales) {
  oct_assert(n_rows <= FP8_BLOCK);
  for (gsize first = 0; first < columns; first += FP8_BLOCK) {
    gsize n = MIN(FP8_BLOCK, columns - first);
    float most = 0;
    for (gsize row = 0; row < n_rows; row++)
      most = fmaxf(most, largest(values + row * columns + first, n));
    float scale = scales[first / FP8_BLOCK] = scale_of(most);
    for (gsize row = 0; row < n_rows; row++)
      oct_quant_fp8(values + row * columns + first, scale, n, codes + row * columns + first);
  }
}

/* --- MXFP4 ---------------------------------------------------------------------------------------
 */

/* Codes of n values under a scale, one per byte, and their squared error. */
static double
mx_codes(const float *values, gsize n, guint8 exponent, guint8 *codes) {
  float scale = oct_float_from_e8m0(exponent);
  double error = 0;
  for (gsize i = 0; i < n; i++) {
    codes[i] = (guint8)oct_e2m1_from_float(values[i] / scale);
    double off = (double)values[i] - (double)(scale * oct_float_from_e2m1(codes[i]));
    error += off * off;
  }
  return error;
}

/* floor(log2(most)) - 2, as an e8m0 byte. */
static guint8
mx_exponent(float most) {
  int exponent;
  if (most == 0)
    return 127;
  (void)frexpf(most, &exponent); /* most = m x 2^exponent, m in [0.5, 1) */
  return (guint8)CLAMP(exponent - 1 - 2 + 127, 0, 253);
}

void
oct_quant_mxfp4(const float *values, gsize n, guint8 *codes, guint8 *scales) {
  oct_assert(n % 2 == 0);
  for (gsize first = 0; first < n; first += MX_BLOCK) {
    guint8 chosen[MX_BLOCK], other[MX_BLOCK];
    gsize count = MIN(MX_BLOCK, n - first);
    guint8 exponent = mx_exponent(largest(values + first, count));
    double error = mx_codes(values + first, count, exponent, chosen);
    if (mx_codes(values + first, count, exponent + 1, other) < error) {
      memcpy(chosen, other, sizeof chosen);
      exponent++;
    }
    scales[first / MX_BLOCK] = exponent;
    for (gsize i = 0; i < count; i += 2)
      codes[(first + i) / 2] = (guint8)(chosen[i] | chosen[i + 1] << 4);
  }
}

/* --- AWQ -----------------------------------------------------------------------------------------
 */

/* Output j of eight stands at this place of a word. */
static const guint8 awq_place[WORD] = {0, 4, 1, 5, 2, 6, 3, 7};

/* Scale (as float16 stores it) and zero of a group whose range is widened to hold 0. */
static void
int4_range(const float *values, guint64 n, guint16 *scale, guint *zero) {
  float least = 0, most = 0;
  for (guint64 i = 0; i < n; i++) {
    least = fminf(least, values[i]);
    most = fmaxf(most, values[i]);
  }
  float exact = fminf((most - least) / 15, 65504);
  *scale = MAX(oct_f16_from_float(exact), 1); /* never 0: the smallest float16 */
  *zero = (guint)CLAMP(lrintf(-least / oct_float_from_f16(*scale)), 0, 15);
}

void
oct_quant_awq(const float *values, guint64 first_row, guint64 rows, guint64 columns, guint64 group,
              guint32 *codes, guint32 *zeros, guint16 *scales) {
  oct_assert(rows % WORD == 0 && first_row % WORD == 0 && first_row < rows);
  oct_assert(group > 0 && columns % group == 0);
  guint64 stride = rows / WORD, word = first_row / WORD;
  for (guint64 k = 0; k < columns; k++)
    codes[k * stride + word] = 0;
  for (guint64 g = 0; g < columns / group; g++) {
    guint32 zero_word = 0;
    for (guint j = 0; j < WORD; j++) {
      const float *in = values + j * columns + g * group;
      guint16 scale;
      guint zero, shift = 4u * awq_place[j];
      int4_range(in, group, &scale, &zero);
      float step = oct_float_from_f16(scale);
      zero_word |= zero << shift;
      scales[g * rows + first_row + j] = scale;
      for (guint64 k = 0; k < group; k++) {
        float steps = fmaxf(fminf(in[k] / step, 32), -32);
        guint code = (guint)CLAMP(lrintf(steps) + (long)zero, 0, 15);
        codes[(g * group + k) * stride + word] |= code << shift;
      }
    }
    zeros[g * stride + word] = zero_word;
  }
}
