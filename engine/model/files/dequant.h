/* Stored weights to float32: plain C, one function per format, each a loop that compilers
 * vectorise.
 *
 * Every function is a pure function of its input, so that two machines get equal bits: a value is
 * the format's exact product and sum, rounded to float32 as its comment says. None depends on
 * whether the compiler contracts multiplication and addition, because the products that are added
 * to are exact. NaN codes give NaN. Buffers must not overlap. Sizes and pointers are the caller's
 * promise (engine/model/files/map.h makes it from checked files). Any thread.
 */
#ifndef OCT_MODEL_FILES_DEQUANT_H
#define OCT_MODEL_FILES_DEQUANT_H

#include "engine/model/files/formats.h"

/* n elements, whole blocks, of a type with is_float (asserted). Plain types are exact; F64 and
 * Q6_K's third factor are rounded once; the rest of GGUF's types are exact or rounded once. */
void oct_dequant_row(oct_stored_type type, const void *row, gsize n, float *out);

/* --- 8-bit floats: e4m3 codes times a float32 scale, rounded once --------------------------------
 */

/* One scale for all n codes: per tensor, or per row. */
void oct_dequant_fp8(const guint8 *codes, float scale, gsize n, float *out);
/* DeepSeek's: scales[ceil(n / 128)] of the row's band of 128 rows. */
void oct_dequant_fp8_blocks(const guint8 *codes, const float *scales, gsize n, float *out);

/* --- 4-bit floats, two per byte, the lower half first --------------------------------------------
 */

/* scales[ceil(n / 32)] e8m0; n even. Exact, but for results beyond float32. */
void oct_dequant_mxfp4(const guint8 *codes, const guint8 *scales, gsize n, float *out);
/* scales[ceil(n / 16)] e4m3, each first divided by `divisor` (compressed-tensors'
 * weight_global_scale, else 1) and multiplied with `factor` (modelopt's weight_scale_2, else 1);
 * n even. Rounded once per step. */
void oct_dequant_nvfp4(const guint8 *codes, const guint8 *scales, float divisor, float factor,
                       gsize n, float *out);

/* --- 4-bit integers: (code - zero) x scale, rounded at most once ---------------------------------
 * The three layouts keep [inputs, outputs] or [outputs, inputs] words of eight codes; out is always
 * [n_rows, columns], rows being outputs. */
typedef enum oct_int4_layout {
  OCT_INT4_AWQ, /* codes [columns, rows/8], zeros [groups, rows/8]: halves 0, 2, 4, 6, 1, 3, 5, 7 */
  OCT_INT4_GPTQ,   /* codes [columns/8, rows], zeros [groups, rows/8] */
  OCT_INT4_PACKED, /* compressed-tensors: codes [rows, columns/8], zeros [ceil(rows/8), groups] or
                      NULL */
} oct_int4_layout;

typedef struct oct_int4 {
  oct_int4_layout layout;
  guint64 rows, columns; /* of the weight; columns, and but for PACKED rows, multiples of 8 */
  guint64 group;         /* inputs that share a scale: columns are a multiple */
  const guint32 *codes, *zeros;
  const void *scales;         /* AWQ, GPTQ: [groups, rows]; PACKED: [rows, groups] */
  oct_stored_type scale_type; /* F16, BF16 or F32 */
  guint zero_offset;          /* added to each stored zero: 1 in GPTQ's first format, else 0 */
  const gint32
      *order; /* [columns]: each input's group, below groups; NULL (always for AWQ): in order */
} oct_int4;

void oct_dequant_int4(const oct_int4 *weight, guint64 first_row, guint64 n_rows, float *out);
/* The scale of a row's group, and its zero. */
float oct_int4_group(const oct_int4 *weight, guint64 row, guint64 group, gint *zero);

#endif
