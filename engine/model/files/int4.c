/* 4-bit integers in the layouts of AWQ, GPTQ and compressed-tensors. Words hold eight codes; the
 * first two keep a word's codes along different dimensions than a row, so AWQ's rows are
 * read in runs of up to eight that share words. */
#include "engine/base/assert.h"
#include "engine/model/files/dequant.h"
#include "engine/model/files/floats.h"

#define WORD 8 /* codes of a word */

/* The place of output r % 8 in an AWQ word, whose places 0 … 7 hold outputs 0, 2, 4, 6, 1, 3, 5, 7.
 */
static const guint8 awq_place[WORD] = {0, 4, 1, 5, 2, 6, 3, 7};

static float
scale_at(const oct_int4 *w, guint64 row, guint64 group) {
  guint64 groups = w->columns / w->group;
  guint64 at = w->layout == OCT_INT4_PACKED ? row * groups + group : group * w->rows + row;
  const guint8 *bytes = w->scales;
  if (w->scale_type == OCT_STORED_F16)
    return oct_float_from_f16(oct_load_u16(bytes + 2 * at));
  if (w->scale_type == OCT_STORED_BF16)
    return oct_float_from_bf16(oct_load_u16(bytes + 2 * at));
  oct_assert(w->scale_type == OCT_STORED_F32);
  return oct_float_of_bits(oct_load_u32(bytes + 4 * at));
}

static gint
zero_at(const oct_int4 *w, guint64 row, guint64 group) {
  guint64 groups = w->columns / w->group;
  if (w->zeros == NULL)
    return 8;
  guint64 word = w->layout == OCT_INT4_PACKED ? row / WORD * groups + group
                                              : group * (w->rows / WORD) + row / WORD;
  guint place = w->layout == OCT_INT4_AWQ ? awq_place[row % WORD] : (guint)(row % WORD);
  return (gint)((w->zeros[word] >> 4 * place & 15) + w->zero_offset);
}

float
oct_int4_group(const oct_int4 *w, guint64 row, guint64 group, gint *zero) {
  *zero = zero_at(w, row, group);
  return scale_at(w, row, group);
}

static guint64
group_of(const oct_int4 *w, guint64 column) {
  return w->order != NULL ? (guint64)w->order[column] : column / w->group;
}

/* `n` rows from `first` on, all in one column of words (AWQ): each word is read once. */
static void
awq_rows(const oct_int4 *w, guint64 first, guint64 n, float *restrict out) {
  guint64 stride = w->rows / WORD;
  const guint32 *words = w->codes + first / WORD;
  oct_assert(n <= WORD - first % WORD && w->order == NULL);
  for (guint64 start = 0; start < w->columns; start += w->group)
    for (guint64 j = 0; j < n; j++) {
      float scale = scale_at(w, first + j, start / w->group), *o = out + j * w->columns;
      gint zero = zero_at(w, first + j, start / w->group);
      guint shift = 4u * awq_place[(first + j) % WORD];
      for (guint64 k = start; k < start + w->group; k++)
        o[k] = (float)((gint)(words[k * stride] >> shift & 15) - zero) * scale;
    }
}

/* The eight columns of a word, which share a scale. */
static void
spread_word(guint32 word, gint zero, float scale, float *restrict out) {
  for (guint j = 0; j < WORD; j++)
    out[j] = (float)((gint)(word >> 4 * j & 15) - zero) * scale;
}

/* Eight codes of a word belong to eight neighbouring columns of one row (GPTQ, compressed-tensors).
 */
static void
column_words_row(const oct_int4 *w, guint64 row, float *restrict out) {
  gboolean packed = w->layout == OCT_INT4_PACKED;
  guint64 stride = packed ? 1 : w->rows;
  const guint32 *words = w->codes + (packed ? row * (w->columns / WORD) : row);
  if (w->order == NULL && w->group % WORD == 0) {
    for (guint64 k = 0; k < w->columns; k += WORD) {
      guint64 group = k / w->group;
      spread_word(words[k / WORD * stride], zero_at(w, row, group), scale_at(w, row, group),
                  out + k);
    }
    return;
  }
  for (guint64 k = 0; k < w->columns; k++) {
    guint64 group = group_of(w, k);
    gint code = (gint)(words[k / WORD * stride] >> 4 * (k % WORD) & 15);
    out[k] = (float)(code - zero_at(w, row, group)) * scale_at(w, row, group);
  }
}

void
oct_dequant_int4(const oct_int4 *weight, guint64 first_row, guint64 n_rows, float *out) {
  oct_assert(weight->columns % WORD == 0);
  oct_assert(weight->rows % WORD == 0 || weight->layout == OCT_INT4_PACKED);
  oct_assert(weight->group > 0 && weight->columns % weight->group == 0);
  oct_assert(first_row <= weight->rows && n_rows <= weight->rows - first_row);
  for (guint64 row = first_row, end = first_row + n_rows, n; row < end; row += n) {
    float *rows = out + (row - first_row) * weight->columns;
    n = 1;
    if (weight->layout == OCT_INT4_AWQ) {
      n = MIN(WORD - row % WORD, end - row);
      awq_rows(weight, row, n, rows);
    } else {
      column_words_row(weight, row, rows);
    }
  }
}
