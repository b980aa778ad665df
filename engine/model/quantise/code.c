/* One matrix in a format: band by band, and back. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/files/dequant.h"
#include "engine/model/files/quantise.h"
#include "engine/model/quantise/internal.h"

#define FP8_BLOCK 128
#define MX_BLOCK  32

static guint64
divide_up(guint64 a, guint64 b) {
  return (a + b - 1) / b;
}

static oct_coded_part
part(const char *suffix, oct_stored_type type, guint64 rows, guint64 columns) {
  guint64 bytes = rows * columns * oct_stored_get(type)->bytes;
  return (oct_coded_part){suffix, type, 2, {rows, columns}, bytes};
}

guint
oct_coded_parts(oct_convert_format format, guint32 group, guint64 rows, guint64 columns,
                oct_coded_part parts[OCT_CODED_PARTS_MAX]) {
  switch (format) {
  case OCT_CONVERT_AWQ:
    parts[0] = part(".qweight", OCT_STORED_I32, columns, rows / 8);
    parts[1] = part(".qzeros", OCT_STORED_I32, columns / group, rows / 8);
    parts[2] = part(".scales", OCT_STORED_F16, columns / group, rows);
    return 3;
  case OCT_CONVERT_FP8:
    parts[0] = part(".weight", OCT_STORED_F8_E4M3, rows, columns);
    parts[1] = part(".weight_scale", OCT_STORED_F32, 1, 1);
    parts[1].n_dims = 1;
    return 2;
  case OCT_CONVERT_FP8_BLOCK:
    parts[0] = part(".weight", OCT_STORED_F8_E4M3, rows, columns);
    parts[1] = part(".weight_scale_inv", OCT_STORED_F32, divide_up(rows, FP8_BLOCK),
                    divide_up(columns, FP8_BLOCK));
    return 2;
  case OCT_CONVERT_MXFP4:
    parts[0] = part(".weight_packed", OCT_STORED_U8, rows, columns / 2);
    parts[1] = part(".weight_scale", OCT_STORED_U8, rows, columns / MX_BLOCK);
    return 2;
  case OCT_CONVERT_FORMATS:
    break;
  }
  oct_assert_failed(__FILE__, __LINE__, "a format to convert to");
}

void
oct_coded_scale(const oct_coded *c, float *band, guint64 first, guint64 n) {
  for (guint64 row = 0; row < n; row++, band += c->columns) {
    float divisor = c->outputs != NULL ? c->outputs[first + row] : 1;
    for (guint64 k = 0; k < c->columns && (c->inputs != NULL || c->outputs != NULL); k++)
      band[k] = band[k] * (c->inputs != NULL ? c->inputs[k] : 1) / divisor;
  }
}

static void
unscale(const oct_coded *c, float *back, guint64 first, guint64 n) {
  for (guint64 row = 0; row < n; row++, back += c->columns) {
    float factor = c->outputs != NULL ? c->outputs[first + row] : 1;
    for (guint64 k = 0; k < c->columns && (c->inputs != NULL || c->outputs != NULL); k++)
      back[k] = back[k] * factor / (c->inputs != NULL ? c->inputs[k] : 1);
  }
}

static void
code_awq(oct_coded *c, const float *band, guint64 first, guint64 n, float *back) {
  guint32 *codes = (guint32 *)(gpointer)c->parts[0], *zeros = (guint32 *)(gpointer)c->parts[1];
  for (guint64 row = 0; row < n; row += 8)
    oct_quant_awq(band + row * c->columns, c->importance, first + row, c->rows, c->columns,
                  c->group, codes, zeros, (guint16 *)(gpointer)c->parts[2]);
  const oct_int4 weight = {.layout = OCT_INT4_AWQ,
                           .rows = c->rows,
                           .columns = c->columns,
                           .group = c->group,
                           .codes = codes,
                           .zeros = zeros,
                           .scales = c->parts[2],
                           .scale_type = OCT_STORED_F16};
  oct_dequant_int4(&weight, first, n, back);
}

static void
code_fp8_block(oct_coded *c, const float *band, guint64 first, guint64 n, float *back) {
  guint8 *codes = c->parts[0] + first * c->columns;
  float *scales =
      (float *)(gpointer)c->parts[1] + first / FP8_BLOCK * divide_up(c->columns, FP8_BLOCK);
  oct_quant_fp8_band(band, n, c->columns, codes, scales);
  for (guint64 row = 0; row < n; row++)
    oct_dequant_fp8_blocks(codes + row * c->columns, scales, c->columns, back + row * c->columns);
}

static void
code_mxfp4(oct_coded *c, const float *band, guint64 first, guint64 n, float *back) {
  guint8 *codes = c->parts[0] + first * c->columns / 2;
  guint8 *scales = c->parts[1] + first * (c->columns / MX_BLOCK);
  oct_quant_mxfp4(band, n * c->columns, codes, scales); /* rows are whole blocks */
  oct_dequant_mxfp4(codes, scales, n * c->columns, back);
}

void
oct_coded_band(oct_coded *c, const float *band, guint64 first, guint64 n, float *back) {
  oct_assert(first % OCT_CODED_BAND == 0 && n <= OCT_CODED_BAND);
  switch (c->format) {
  case OCT_CONVERT_AWQ:
    code_awq(c, band, first, n, back);
    break;
  case OCT_CONVERT_FP8:
    oct_quant_fp8(band, c->scale, n * c->columns, c->parts[0] + first * c->columns);
    oct_dequant_fp8(c->parts[0] + first * c->columns, c->scale, n * c->columns, back);
    memcpy(c->parts[1], &c->scale, sizeof c->scale);
    break;
  case OCT_CONVERT_FP8_BLOCK:
    code_fp8_block(c, band, first, n, back);
    break;
  case OCT_CONVERT_MXFP4:
    code_mxfp4(c, band, first, n, back);
    break;
  case OCT_CONVERT_FORMATS:
    oct_assert_failed(__FILE__, __LINE__, "a format to convert to");
  }
  unscale(c, back, first, n);
}
