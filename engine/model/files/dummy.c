/* Random weights.
 *
 * The standard deviation of a projection is 1 / sqrt(inputs), so that outputs are as large as
 * inputs; norms are near 1, biases small. A number is the sum of four uniform ones (nearly normal,
 * never beyond 3.47 deviations), which needs no library function and so is equal everywhere. */
#include "engine/model/files/dummy.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/hash.h"
#include "engine/base/rng.h"
#include "engine/model/files/dequant.h"
#include "engine/model/files/floats.h"

#define REACH     3.4641f /* the largest of the normal-like numbers: 2 x sqrt(3) */
#define NVFP4_ONE 0x38    /* e4m3's 1 */

/* A normal-like number of deviation 1. */
static float
normal_at(guint64 key, guint64 position) {
  guint64 bits = oct_mix64(key + position);
  guint32 sum = (guint32)(bits & 0xffff) + (guint32)(bits >> 16 & 0xffff) +
                (guint32)(bits >> 32 & 0xffff) + (guint32)(bits >> 48);
  return ((float)sum - 131070.0f) * (1.7320508f / 65536.0f);
}

/* --- laws ----------------------------------------------------------------------------------------
 */

typedef struct law {
  float mean, deviation;
} law;

static gboolean
is_norm(oct_weight_kind kind) {
  return kind == OCT_WEIGHT_FINAL_NORM || kind == OCT_WEIGHT_FINAL_RES_NORM ||
         kind == OCT_WEIGHT_ATTN_NORM || kind == OCT_WEIGHT_ATTN_RES_NORM ||
         kind == OCT_WEIGHT_FFN_NORM || kind == OCT_WEIGHT_FFN_RES_NORM ||
         kind == OCT_WEIGHT_Q_NORM || kind == OCT_WEIGHT_K_NORM || kind == OCT_WEIGHT_Q_A_NORM ||
         kind == OCT_WEIGHT_KV_A_NORM || kind == OCT_WEIGHT_HEAD_NORM ||
         kind == OCT_WEIGHT_LATENT_NORM;
}

static law
law_of(const oct_weight *w, gboolean tied) {
  /* With a mean, deviations are powers of two: the product is exact, and the sum does not depend on
   * whether the compiler contracts both. */
  if (is_norm(w->kind))
    return (law){1, 0.125f};
  if (w->kind == OCT_WEIGHT_A_LOG)
    return (law){1, 0.5f}; /* decay rates of 0.5 to 15 */
  if (w->kind == OCT_WEIGHT_DT_BIAS)
    return (law){-3, 0.5f};
  if (w->kind == OCT_WEIGHT_SINKS)
    return (law){0, 1};
  if (w->kind == OCT_WEIGHT_FINAL_RES_PROJ || w->kind == OCT_WEIGHT_ATTN_RES_PROJ ||
      w->kind == OCT_WEIGHT_FFN_RES_PROJ || w->kind == OCT_WEIGHT_SHARED_SWITCH)
    return (law){0, 1 / sqrtf((float)w->rows)};
  if (w->columns == 1)
    return (law){0, 0.05f}; /* biases */
  if (w->kind == OCT_WEIGHT_EMBEDDING && !tied)
    return (law){0, 1};
  return (law){0, 1 / sqrtf((float)w->columns)};
}

/* --- codes of one element ------------------------------------------------------------------------
 * Codes use the whole range of their type; the scale follows from the deviation. */

static float
plain_value(const oct_weight *w, guint64 position) {
  float spread = w->deviation * normal_at(w->dummy, position);
  return w->mean + spread;
}

static guint8
e4m3_code(const oct_weight *w, guint64 position) {
  return oct_e4m3_from_float(normal_at(w->dummy, position) * (OCT_E4M3_MAX / REACH));
}

static guint
e2m1_code(const oct_weight *w, guint64 position) {
  return oct_e2m1_from_float(normal_at(w->dummy, position) * (OCT_E2M1_MAX / REACH));
}

/* Zero is 8. */
static guint
int4_code(const oct_weight *w, guint64 position) {
  long code = lrintf(normal_at(w->dummy, position) * (7.5f / REACH)) + 8;
  return (guint)CLAMP(code, 0, 15);
}

static float
fp8_scale(const oct_weight *w) {
  return w->deviation * (REACH / OCT_E4M3_MAX);
}

/* The power of two next to the exact scale, as an e8m0 byte. */
static guint8
mx_scale(const oct_weight *w) {
  int exponent;
  float half = frexpf(w->deviation * (REACH / OCT_E2M1_MAX), &exponent);
  return (guint8)(exponent - (half < 0.70710678f ? 1 : 0) + 127);
}

static guint16
int4_scale(const oct_weight *w) {
  return oct_f16_from_float(w->deviation * (REACH / 7.5f));
}

float
oct_dummy_scale(const oct_weight *w, gint *zero) {
  oct_assert(w->dummy != 0 && w->layout != OCT_LAYOUT_ROWS);
  *zero = w->layout == OCT_LAYOUT_AWQ ? 8 : 0;
  if (w->layout == OCT_LAYOUT_AWQ)
    return oct_float_from_f16(int4_scale(w));
  if (w->layout == OCT_LAYOUT_MXFP4)
    return oct_float_from_e8m0(mx_scale(w));
  return w->layout == OCT_LAYOUT_NVFP4 ? w->factor : fp8_scale(w);
}

/* --- layouts -------------------------------------------------------------------------------------
 */

static void
choose_layout(oct_weight *w, oct_dtype stored) {
  w->layout = OCT_LAYOUT_ROWS;
  w->type = OCT_STORED_BF16;
  if (stored == OCT_DTYPE_F32) {
    w->type = OCT_STORED_F32;
  } else if (stored == OCT_DTYPE_F16) {
    w->type = OCT_STORED_F16;
  } else if (stored == OCT_DTYPE_FP8 || stored == OCT_DTYPE_FP8_BLOCK) {
    w->layout = stored == OCT_DTYPE_FP8 ? OCT_LAYOUT_FP8 : OCT_LAYOUT_FP8_BLOCK;
    w->type = OCT_STORED_F8_E4M3;
    w->scale_type = OCT_STORED_F32;
  } else if (stored == OCT_DTYPE_MXFP4 && w->columns % 2 == 0) {
    w->layout = OCT_LAYOUT_MXFP4;
    w->type = w->scale_type = OCT_STORED_U8;
  } else if (stored == OCT_DTYPE_NVFP4 && w->columns % 2 == 0) {
    w->layout = OCT_LAYOUT_NVFP4;
    w->type = OCT_STORED_U8;
    w->scale_type = OCT_STORED_F8_E4M3;
  } else if (oct_dtype_int4_group(stored) > 0 && w->columns % oct_dtype_int4_group(stored) == 0 &&
             w->rows % 8 == 0) {
    w->layout = OCT_LAYOUT_AWQ;
    w->type = OCT_STORED_I32;
    w->scale_type = OCT_STORED_F16;
    w->group = oct_dtype_int4_group(stored);
  }
}

void
oct_dummy_init(oct_weight *w, oct_dtype stored, gboolean tied, guint64 seed) {
  g_autofree char *name = oct_weight_name(w);
  law l = law_of(w, tied);
  choose_layout(w, stored);
  w->row_step = 1;
  w->mean = l.mean;
  w->deviation = l.deviation;
  w->divisor = 1;
  w->factor = w->layout == OCT_LAYOUT_NVFP4 ? l.deviation * (REACH / OCT_E2M1_MAX) : 1;
  w->dummy = oct_hash64((oct_hash_key){seed, 0}, name, strlen(name)) | 1;
  oct_dummy_sizes sizes;
  oct_dummy_sizes_get(w, &sizes);
  w->bytes = sizes.codes + sizes.scales + sizes.zeros;
}

void
oct_dummy_sizes_get(const oct_weight *w, oct_dummy_sizes *sizes) {
  guint64 rows = w->rows, columns = w->columns;
  *sizes = (oct_dummy_sizes){0};
  if (w->layout == OCT_LAYOUT_AWQ) {
    guint64 groups = columns / w->group;
    sizes->codes = columns * rows / 2;
    sizes->zeros = groups * rows / 2;
    sizes->scales = groups * rows * 2;
    return;
  }
  sizes->codes = rows * oct_weight_row_bytes(w);
  if (w->layout == OCT_LAYOUT_FP8)
    sizes->scales = sizeof(float);
  else if (w->layout == OCT_LAYOUT_FP8_BLOCK)
    sizes->scales = ((rows + 127) / 128) * ((columns + 127) / 128) * sizeof(float);
  else if (w->layout == OCT_LAYOUT_MXFP4)
    sizes->scales = rows * ((columns + 31) / 32);
  else if (w->layout == OCT_LAYOUT_NVFP4)
    sizes->scales = rows * ((columns + 15) / 16);
}

/* --- numbers -------------------------------------------------------------------------------------
 */

/* What element `position` of [rows, columns] reads as: the dequantiser's own arithmetic. */
static float
value_at(const oct_weight *w, guint64 position) {
  switch (w->layout) {
  case OCT_LAYOUT_FP8:
  case OCT_LAYOUT_FP8_BLOCK:
    return oct_float_from_e4m3(e4m3_code(w, position)) * fp8_scale(w);
  case OCT_LAYOUT_MXFP4:
    return oct_float_from_e8m0(mx_scale(w)) * oct_float_from_e2m1(e2m1_code(w, position));
  case OCT_LAYOUT_NVFP4:
    return w->factor * oct_float_from_e2m1(e2m1_code(w, position));
  case OCT_LAYOUT_AWQ:
    return (float)((gint)int4_code(w, position) - 8) * oct_float_from_f16(int4_scale(w));
  case OCT_LAYOUT_ROWS:
    break;
  case OCT_LAYOUT_COLUMNS:
  case OCT_LAYOUT_GPTQ:
  case OCT_LAYOUT_INT4_PACKED:
  case OCT_LAYOUT_COUNT:
    oct_assert_failed(__FILE__, __LINE__, "a layout of dummies");
  }
  float value = plain_value(w, position);
  if (w->type == OCT_STORED_F32)
    return value;
  return w->type == OCT_STORED_F16 ? oct_float_from_f16(oct_f16_from_float(value))
                                   : oct_float_from_bf16(oct_bf16_from_float(value));
}

void
oct_dummy_read(const oct_weight *w, guint64 first, guint64 n, float *out) {
  oct_assert(w->dummy != 0);
  for (guint64 i = 0; i < n * w->columns; i++)
    out[i] = value_at(w, first * w->columns + i);
}

static void
fill_plain(const oct_weight *w, guint8 *codes) {
  for (guint64 i = 0; i < w->rows * w->columns; i++) {
    float value = plain_value(w, i);
    guint16 narrow =
        w->type == OCT_STORED_F16 ? oct_f16_from_float(value) : oct_bf16_from_float(value);
    if (w->type == OCT_STORED_F32)
      memcpy(codes + 4 * i, &value, sizeof value);
    else
      memcpy(codes + 2 * i, &narrow, sizeof narrow);
  }
}

static void
fill_awq(const oct_weight *w, guint32 *codes, guint16 *scales, guint32 *zeros) {
  static const guint8 place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  guint64 words = w->rows / 8, groups = w->columns / w->group;
  for (guint64 k = 0; k < w->columns; k++)
    for (guint64 word = 0; word < words; word++) {
      guint32 packed = 0;
      for (guint j = 0; j < 8; j++)
        packed |= int4_code(w, (word * 8 + j) * w->columns + k) << 4 * place[j];
      codes[k * words + word] = packed;
    }
  for (guint64 i = 0; i < groups * w->rows; i++)
    scales[i] = int4_scale(w);
  for (guint64 i = 0; i < groups * words; i++)
    zeros[i] = 0x88888888;
}

void
oct_dummy_fill(const oct_weight *w, guint8 *codes, guint8 *scales, guint32 *zeros) {
  oct_dummy_sizes sizes;
  oct_dummy_sizes_get(w, &sizes);
  if (w->layout == OCT_LAYOUT_AWQ) {
    fill_awq(w, (guint32 *)(gpointer)codes, (guint16 *)(gpointer)scales, zeros);
  } else if (w->layout == OCT_LAYOUT_ROWS) {
    fill_plain(w, codes);
  } else if (w->layout == OCT_LAYOUT_MXFP4 || w->layout == OCT_LAYOUT_NVFP4) {
    for (guint64 i = 0; i < sizes.codes; i++)
      codes[i] = (guint8)(e2m1_code(w, 2 * i) | e2m1_code(w, 2 * i + 1) << 4);
    memset(scales, w->layout == OCT_LAYOUT_MXFP4 ? mx_scale(w) : NVFP4_ONE, sizes.scales);
  } else {
    float scale = fp8_scale(w);
    for (guint64 i = 0; i < sizes.codes; i++)
      codes[i] = e4m3_code(w, i);
    for (guint64 i = 0; i < sizes.scales; i += sizeof scale)
      memcpy(scales + i, &scale, sizeof scale);
  }
}
