#include "engine/model/files/quantise.h"

#include <math.h>

#include "engine/base/assert.h"
#include "engine/model/files/floats.h"

#define FP8_BLOCK 128
#define MX_BLOCK  32
#define WORD      8
/* Parts of its range that a group of 4-bit integers is tried with: 1, 0.97… 0.7. */
#define SHRINKS     10
#define SHRINK_STEP 0.03f

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

/* How a group is coded: its scale as float16 stores it and as a float, and its zero. */
typedef struct int4_range {
  guint16 scale;
  float step;
  gint zero;
} int4_range;

/* A range that is widened to hold 0, and shrunk to a part of that. */
static int4_range
range_of(const float *values, guint64 n, float part) {
  float least = 0, most = 0;
  for (guint64 i = 0; i < n; i++) {
    least = fminf(least, values[i]);
    most = fmaxf(most, values[i]);
  }
  int4_range r;
  float exact = fminf(part * (most - least) / 15, 65504);
  r.scale = MAX(oct_f16_from_float(exact), 1); /* never 0: the smallest float16 */
  r.step = oct_float_from_f16(r.scale);
  r.zero = (gint)CLAMP(lrintf(-part * least / r.step), 0, 15);
  return r;
}

/* Adding and taking off 1.5 x 2^23 rounds a small number to an integer, ties to even. */
static gint
code_of(float value, const int4_range *r) {
  float steps = fmaxf(fminf(value / r->step, 32), -32);
  float rounded = (steps + 0x1.8p23f) - 0x1.8p23f;
  return CLAMP((gint)rounded + r->zero, 0, 15);
}

static double
cost_of(const float *values, const float *importance, guint64 n, const int4_range *r) {
  double cost = 0;
  for (guint64 i = 0; i < n; i++) {
    float off = (float)(code_of(values[i], r) - r->zero) * r->step - values[i];
    cost += (double)(importance[i] * off * off);
  }
  return cost;
}

static int4_range
best_range(const float *values, const float *importance, guint64 n) {
  int4_range best = range_of(values, n, 1);
  if (importance == NULL)
    return best;
  double least = cost_of(values, importance, n, &best);
  for (guint i = 1; i <= SHRINKS; i++) {
    int4_range r = range_of(values, n, 1 - SHRINK_STEP * (float)i);
    double cost = cost_of(values, importance, n, &r);
    if (cost < least) {
      least = cost;
      best = r;
    }
  }
  return best;
}

double
oct_quant_awq_cost(const float *values, const float *importance, guint64 n) {
  int4_range r = range_of(values, n, 1);
  return cost_of(values, importance, n, &r);
}

void
oct_quant_awq(const float *values, const float *importance, guint64 first_row, guint64 rows,
              guint64 columns, guint64 group, guint32 *codes, guint32 *zeros, guint16 *scales) {
  oct_assert(rows % WORD == 0 && first_row % WORD == 0 && first_row < rows);
  oct_assert(group > 0 && columns % group == 0);
  guint64 stride = rows / WORD, word = first_row / WORD;
  for (guint64 k = 0; k < columns; k++)
    codes[k * stride + word] = 0;
  for (guint64 g = 0; g < columns / group; g++) {
    const float *costs = importance != NULL ? importance + g * group : NULL;
    guint32 zero_word = 0;
    for (guint j = 0; j < WORD; j++) {
      const float *in = values + j * columns + g * group;
      guint shift = 4u * awq_place[j];
      int4_range r = best_range(in, costs, group);
      zero_word |= (guint32)r.zero << shift;
      scales[g * rows + first_row + j] = r.scale;
      for (guint64 k = 0; k < group; k++)
        codes[(g * group + k) * stride + word] |= (guint32)code_of(in[k], &r) << shift;
    }
    zeros[g * stride + word] = zero_word;
  }
}
