/* Reading a weight's rows as float32, whatever its layout. */
#include "engine/base/assert.h"
#include "engine/model/files/dequant.h"
#include "engine/model/files/dummy.h"
#include "engine/model/files/floats.h"
#include "engine/model/files/map.h"

const char *
oct_layout_name(oct_layout layout) {
  static const char *const names[OCT_LAYOUT_COUNT] = {
      [OCT_LAYOUT_ROWS] = "rows",
      [OCT_LAYOUT_COLUMNS] = "columns",
      [OCT_LAYOUT_FP8] = "fp8",
      [OCT_LAYOUT_FP8_BLOCK] = "fp8-block",
      [OCT_LAYOUT_MXFP4] = "mxfp4",
      [OCT_LAYOUT_NVFP4] = "nvfp4",
      [OCT_LAYOUT_AWQ] = "awq",
      [OCT_LAYOUT_GPTQ] = "gptq",
      [OCT_LAYOUT_INT4_PACKED] = "int4-packed",
  };
  oct_assert((guint)layout < OCT_LAYOUT_COUNT);
  return names[layout];
}

guint64
oct_weight_stored_row(const oct_weight *w, guint64 row) {
  oct_assert(row < w->rows);
  if (w->head_rows > 0) {
    guint64 half = w->head_rows / 2, head = row / w->head_rows, j = row % w->head_rows;
    row = head * w->head_rows + (j < half ? 2 * j : 2 * (j - half) + 1);
  }
  return row * w->row_step;
}

guint64
oct_weight_row_bytes(const oct_weight *w) {
  guint64 bytes = 0;
  switch (w->layout) {
  case OCT_LAYOUT_ROWS:
  case OCT_LAYOUT_FP8:
  case OCT_LAYOUT_FP8_BLOCK:
    if (!oct_stored_bytes(w->type, w->columns, &bytes))
      break;
    return bytes;
  case OCT_LAYOUT_MXFP4:
  case OCT_LAYOUT_NVFP4:
  case OCT_LAYOUT_INT4_PACKED:
    return w->columns / 2;
  case OCT_LAYOUT_COLUMNS:
  case OCT_LAYOUT_AWQ:
  case OCT_LAYOUT_GPTQ:
  case OCT_LAYOUT_COUNT:
    break;
  }
  oct_assert_failed(__FILE__, __LINE__, "the layout has whole rows");
}

static float
scale_at(const oct_weight *w, guint64 position) {
  float value;
  guint bytes = oct_stored_get(w->scale_type)->bytes;
  oct_dequant_row(w->scale_type, w->scales + position * bytes, 1, &value);
  return value;
}

static void
read_fp8_block(const oct_weight *w, guint64 stored, float *out) {
  guint64 blocks = (w->columns + 127) / 128;
  const guint8 *codes = w->codes + stored * w->columns;
  for (guint64 block = 0; block < blocks; block++) {
    float scale = scale_at(w, stored / 128 * blocks + block);
    guint64 n = MIN(128, w->columns - block * 128);
    oct_dequant_fp8(codes + block * 128, scale, n, out + block * 128);
  }
}

/* One row of a layout with whole rows. */
static void
read_row(const oct_weight *w, guint64 row, float *out) {
  guint64 stored = oct_weight_stored_row(w, row), n = w->columns;
  const guint8 *codes = w->codes + stored * oct_weight_row_bytes(w);
  if (w->layout == OCT_LAYOUT_ROWS)
    oct_dequant_row(w->type, codes, n, out);
  else if (w->layout == OCT_LAYOUT_FP8)
    oct_dequant_fp8(codes, scale_at(w, w->row_scales ? stored : 0), n, out);
  else if (w->layout == OCT_LAYOUT_FP8_BLOCK)
    read_fp8_block(w, stored, out);
  else if (w->layout == OCT_LAYOUT_MXFP4)
    oct_dequant_mxfp4(codes, w->scales + stored * ((n + 31) / 32), n, out);
  else
    oct_dequant_nvfp4(codes, w->scales + stored * ((n + 15) / 16), w->divisor, w->factor, n, out);
}

/* Elements of a stored column lie together; a row takes one of each. */
static void
read_columns(const oct_weight *w, guint64 first, guint64 n, float *out) {
  guint bytes = oct_stored_get(w->type)->bytes;
  for (guint64 row = first; row < first + n; row++) {
    const guint8 *codes = w->codes + oct_weight_stored_row(w, row) * bytes;
    for (guint64 k = 0; k < w->columns; k++)
      oct_dequant_row(w->type, codes + k * w->row_pitch * bytes, 1, out++);
  }
}

static oct_int4
int4_of(const oct_weight *w) {
  return (oct_int4){
      .layout = w->layout == OCT_LAYOUT_AWQ    ? OCT_INT4_AWQ
                : w->layout == OCT_LAYOUT_GPTQ ? OCT_INT4_GPTQ
                                               : OCT_INT4_PACKED,
      .rows = w->rows,
      .columns = w->columns,
      .group = w->group,
      .codes = (const guint32 *)(gconstpointer)w->codes,
      .zeros = w->zeros,
      .scales = w->scales,
      .scale_type = w->scale_type,
      .zero_offset = w->zero_offset,
      .order = w->order,
  };
}

static void
read_int4(const oct_weight *w, guint64 first, guint64 n, float *out) {
  oct_int4 int4 = int4_of(w);
  oct_dequant_int4(&int4, first, n, out);
}

float
oct_weight_scale(const oct_weight *w, guint64 row, guint64 column, gint *zero) {
  oct_assert(row < w->rows && column < w->columns && w->order == NULL);
  *zero = 0;
  if (w->codes == NULL)
    return oct_dummy_scale(w, zero);
  if (w->layout == OCT_LAYOUT_FP8)
    return scale_at(w, w->row_scales ? oct_weight_stored_row(w, row) : 0);
  if (w->layout == OCT_LAYOUT_FP8_BLOCK)
    return scale_at(w, oct_weight_stored_row(w, row) / 128 * ((w->columns + 127) / 128) +
                           column / 128);
  if (w->layout == OCT_LAYOUT_MXFP4)
    return oct_float_from_e8m0(
        w->scales[oct_weight_stored_row(w, row) * ((w->columns + 31) / 32) + column / 32]);
  oct_assert(w->group > 0);
  oct_int4 int4 = int4_of(w);
  return oct_int4_group(&int4, row, column / w->group, zero);
}

void
oct_weight_read(const oct_weight *w, guint64 first, guint64 n, float *out) {
  oct_assert(first <= w->rows && n <= w->rows - first);
  if (w->codes == NULL) {
    oct_dummy_read(w, first, n, out);
    return;
  }
  switch (w->layout) {
  case OCT_LAYOUT_COLUMNS:
    read_columns(w, first, n, out);
    return;
  case OCT_LAYOUT_AWQ:
  case OCT_LAYOUT_GPTQ:
  case OCT_LAYOUT_INT4_PACKED:
    read_int4(w, first, n, out);
    return;
  case OCT_LAYOUT_ROWS:
    if (w->row_step == 1 && w->head_rows == 0) { /* one run */
      oct_dequant_row(w->type, w->codes + first * oct_weight_row_bytes(w), n * w->columns, out);
      return;
    }
    break;
  case OCT_LAYOUT_FP8:
  case OCT_LAYOUT_FP8_BLOCK:
  case OCT_LAYOUT_MXFP4:
  case OCT_LAYOUT_NVFP4:
    break;
  case OCT_LAYOUT_COUNT:
    oct_assert_failed(__FILE__, __LINE__, "a layout");
  }
  for (guint64 i = 0; i < n; i++)
    read_row(w, first + i, out + i * w->columns);
}
