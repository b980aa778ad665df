/* Plain types, 8-bit floats, and GGUF's blocks of 32. */
#include "engine/model/files/dequant.h"

#include "engine/base/assert.h"
#include "engine/model/files/floats.h"
#include "engine/model/files/kquant.h"

#define FP8_BLOCK 128
/* Loops run over this many elements at a time, because compilers vectorise a loop whose length they
 * know, and then over what is left. */
#define RUN 32

/* --- plain types ---------------------------------------------------------------------------------
 */

static void
row_f64(const guint8 *restrict in, gsize n, float *restrict out) {
  for (gsize i = 0; i < n; i++) {
    double value;
    memcpy(&value, in + i * sizeof value, sizeof value);
    out[i] = (float)value;
  }
}

static void
row_f16(const guint8 *restrict in, gsize n, float *restrict out) {
  gsize i = 0;
  for (; i + RUN <= n; i += RUN)
    for (gsize k = i; k < i + RUN; k++)
      out[k] = oct_float_from_f16(oct_load_u16(in + 2 * k));
  for (; i < n; i++)
    out[i] = oct_float_from_f16(oct_load_u16(in + 2 * i));
}

static void
row_bf16(const guint8 *restrict in, gsize n, float *restrict out) {
  gsize i = 0;
  for (; i + RUN <= n; i += RUN)
    for (gsize k = i; k < i + RUN; k++)
      out[k] = oct_float_from_bf16(oct_load_u16(in + 2 * k));
  for (; i < n; i++)
    out[i] = oct_float_from_bf16(oct_load_u16(in + 2 * i));
}

static void
row_e4m3(const guint8 *restrict in, gsize n, float *restrict out) {
  gsize i = 0;
  for (; i + RUN <= n; i += RUN)
    for (gsize k = i; k < i + RUN; k++)
      out[k] = oct_float_from_e4m3(in[k]);
  for (; i < n; i++)
    out[i] = oct_float_from_e4m3(in[i]);
}

static void
row_e5m2(const guint8 *restrict in, gsize n, float *restrict out) {
  gsize i = 0;
  for (; i + RUN <= n; i += RUN)
    for (gsize k = i; k < i + RUN; k++)
      out[k] = oct_float_from_e5m2(in[k]);
  for (; i < n; i++)
    out[i] = oct_float_from_e5m2(in[i]);
}

static void
row_e8m0(const guint8 *restrict in, gsize n, float *restrict out) {
  gsize i = 0;
  for (; i + RUN <= n; i += RUN)
    for (gsize k = i; k < i + RUN; k++)
      out[k] = oct_float_from_e8m0(in[k]);
  for (; i < n; i++)
    out[i] = oct_float_from_e8m0(in[i]);
}

/* --- blocks of 32: lower halves of the bytes are elements 0 … 15, upper halves 16 … 31 -----------
 */

/* Q4_0: f16 d, 16 bytes: d x (q - 8). */
static void
block_q4_0(const guint8 *restrict in, float *restrict out) {
  float d = oct_float_from_f16(oct_load_u16(in));
  const guint8 *q = in + 2;
  for (guint i = 0; i < 16; i++) {
    out[i] = d * (float)((gint)(q[i] & 15) - 8);
    out[i + 16] = d * (float)((gint)(q[i] >> 4) - 8);
  }
}

/* Q4_1: f16 d, f16 m, 16 bytes: d x q + m. */
static void
block_q4_1(const guint8 *restrict in, float *restrict out) {
  float d = oct_float_from_f16(oct_load_u16(in)), m = oct_float_from_f16(oct_load_u16(in + 2));
  const guint8 *q = in + 4;
  for (guint i = 0; i < 16; i++) {
    out[i] = d * (float)(q[i] & 15) + m;
    out[i + 16] = d * (float)(q[i] >> 4) + m;
  }
}

/* The fifth bits of Q5_0 and Q5_1 stand in one word: bit i belongs to element i. */
static guint
fifth_bit(guint32 bits, guint i) {
  return (bits >> i & 1) << 4;
}

/* Q5_0: f16 d, u32 fifth bits, 16 bytes: d x (q - 16). */
static void
block_q5_0(const guint8 *restrict in, float *restrict out) {
  float d = oct_float_from_f16(oct_load_u16(in));
  guint32 high = oct_load_u32(in + 2);
  const guint8 *q = in + 6;
  for (guint i = 0; i < 16; i++) {
    out[i] = d * (float)((gint)((q[i] & 15) | fifth_bit(high, i)) - 16);
    out[i + 16] = d * (float)((gint)((q[i] >> 4) | fifth_bit(high, i + 16)) - 16);
  }
}

/* Q5_1: f16 d, f16 m, u32 fifth bits, 16 bytes: d x q + m. */
static void
block_q5_1(const guint8 *restrict in, float *restrict out) {
  float d = oct_float_from_f16(oct_load_u16(in)), m = oct_float_from_f16(oct_load_u16(in + 2));
  guint32 high = oct_load_u32(in + 4);
  const guint8 *q = in + 8;
  for (guint i = 0; i < 16; i++) {
    out[i] = d * (float)((q[i] & 15) | fifth_bit(high, i)) + m;
    out[i + 16] = d * (float)((q[i] >> 4) | fifth_bit(high, i + 16)) + m;
  }
}

/* Q8_0: f16 d, 32 signed bytes. */
static void
block_q8_0(const guint8 *restrict in, float *restrict out) {
  float d = oct_float_from_f16(oct_load_u16(in));
  for (guint i = 0; i < 32; i++)
    out[i] = d * (float)(gint8)in[i + 2];
}

/* GGUF's MXFP4: e8m0 scale, 16 bytes. */
static void
block_mxfp4(const guint8 *restrict in, float *restrict out) {
  float scale = oct_float_from_e8m0(in[0]);
  const guint8 *q = in + 1;
  for (guint i = 0; i < 16; i++) {
    out[i] = scale * oct_float_from_e2m1(q[i] & 15);
    out[i + 16] = scale * oct_float_from_e2m1(q[i] >> 4);
  }
}

typedef void (*block_reader)(const guint8 *restrict in, float *restrict out);

static void
rows_of_blocks(oct_stored_type type, block_reader read, const guint8 *in, gsize n, float *out) {
  const oct_stored_info *info = oct_stored_get(type);
  oct_assert(n % info->block == 0);
  for (gsize i = 0; i < n; i += info->block, in += info->bytes)
    read(in, out + i);
}

void
oct_dequant_row(oct_stored_type type, const void *row, gsize n, float *out) {
  static const block_reader blocks[OCT_STORED_COUNT] = {
      [OCT_STORED_Q4_0] = block_q4_0,     [OCT_STORED_Q4_1] = block_q4_1,
      [OCT_STORED_Q5_0] = block_q5_0,     [OCT_STORED_Q5_1] = block_q5_1,
      [OCT_STORED_Q8_0] = block_q8_0,     [OCT_STORED_MXFP4] = block_mxfp4,
      [OCT_STORED_Q4_K] = oct_block_q4_k, [OCT_STORED_Q5_K] = oct_block_q5_k,
      [OCT_STORED_Q6_K] = oct_block_q6_k,
  };
  static void (*const plain[OCT_STORED_COUNT])(const guint8 *, gsize, float *) = {
      [OCT_STORED_F64] = row_f64,      [OCT_STORED_F16] = row_f16,
      [OCT_STORED_BF16] = row_bf16,    [OCT_STORED_F8_E4M3] = row_e4m3,
      [OCT_STORED_F8_E5M2] = row_e5m2, [OCT_STORED_F8_E8M0] = row_e8m0,
  };
  oct_assert((guint)type < OCT_STORED_COUNT);
  if (type == OCT_STORED_F32 && n > 0)
    memcpy(out, row, n * sizeof *out);
  else if (plain[type] != NULL)
    plain[type](row, n, out);
  else if (blocks[type] != NULL)
    rows_of_blocks(type, blocks[type], row, n, out);
  else
    oct_assert(type == OCT_STORED_F32);
}

/* --- 8-bit floats --------------------------------------------------------------------------------
 */

void
oct_dequant_fp8(const guint8 *restrict codes, float scale, gsize n, float *restrict out) {
  gsize i = 0;
  for (; i + RUN <= n; i += RUN)
    for (gsize k = i; k < i + RUN; k++)
      out[k] = oct_float_from_e4m3(codes[k]) * scale;
  for (; i < n; i++)
    out[i] = oct_float_from_e4m3(codes[i]) * scale;
}

void
oct_dequant_fp8_blocks(const guint8 *codes, const float *scales, gsize n, float *out) {
  for (gsize i = 0; i < n; i += FP8_BLOCK)
    oct_dequant_fp8(codes + i, scales[i / FP8_BLOCK], MIN(FP8_BLOCK, n - i), out + i);
}

/* --- 4-bit floats --------------------------------------------------------------------------------
 */

/* Codes of an even number of elements, times one scale. */
static void
fp4_run(const guint8 *restrict codes, float scale, gsize n, float *restrict out) {
  for (gsize i = 0; i < n / 2; i++) {
    out[2 * i] = scale * oct_float_from_e2m1(codes[i] & 15);
    out[2 * i + 1] = scale * oct_float_from_e2m1(codes[i] >> 4);
  }
}

void
oct_dequant_mxfp4(const guint8 *codes, const guint8 *scales, gsize n, float *out) {
  oct_assert(n % 2 == 0);
  for (gsize i = 0; i < n; i += 32)
    fp4_run(codes + i / 2, oct_float_from_e8m0(scales[i / 32]), MIN(32, n - i), out + i);
}

void
oct_dequant_nvfp4(const guint8 *codes, const guint8 *scales, float divisor, float factor, gsize n,
                  float *out) {
  oct_assert(n % 2 == 0);
  for (gsize i = 0; i < n; i += 16) {
    float scale = oct_float_from_e4m3(scales[i / 16]) / divisor * factor;
    fp4_run(codes + i / 2, scale, MIN(16, n - i), out + i);
  }
}
