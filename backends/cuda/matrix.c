/* Quantised weights to the device as they are: e4m3 codes row by row, codes of four bits as the
 * file has them and then packed there. */
#include "backends/cuda/matrix.h"

#include <math.h>
#include <string.h>

#include "backends/cuda/glue.h"
#include "engine/base/assert.h"
#include "engine/model/files/floats.h"

#define BLOCK 128 /* of FP8_BLOCK, both ways; inputs of a chunk of packed codes */

/* ---------------------------------------------------------------- which formats are kept */

static gboolean
is_int4(const oct_weight *w) {
  return w->layout == OCT_LAYOUT_AWQ || w->layout == OCT_LAYOUT_GPTQ ||
         w->layout == OCT_LAYOUT_INT4_PACKED;
}

/* F32 for what is widened. */
static oct_cuda_format
format_of(const oct_weight *w, const char **why) {
  gboolean plain_rows = w->row_step == 1 && w->head_rows == 0;
  *why = NULL;
  if (w->layout == OCT_LAYOUT_FP8)
    return OCT_CUDA_MATRIX_FP8;
  if (w->layout == OCT_LAYOUT_FP8_BLOCK && plain_rows)
    return OCT_CUDA_MATRIX_FP8_BLOCK;
  if (w->layout == OCT_LAYOUT_MXFP4)
    return OCT_CUDA_MATRIX_MXFP4;
  if (is_int4(w) && plain_rows && w->order == NULL)
    return OCT_CUDA_MATRIX_INT4;
  if (w->layout == OCT_LAYOUT_ROWS || w->layout == OCT_LAYOUT_COLUMNS) {
    if (oct_stored_get(w->type)->block > 1)
      *why = "blocks of GGUF have no kernel";
    return OCT_CUDA_MATRIX_F32;
  }
  *why = is_int4(w) && w->order != NULL ? "groups of inputs in another order have no kernel"
                                        : "the layout has no kernel";
  return OCT_CUDA_MATRIX_F32;
}

/* Kernels have scales of integers in float16. */
static gboolean
has_narrow_scales(const oct_cuda_fragment *p) {
  const oct_weight *w = p->weight;
  if (w->codes == NULL || w->scale_type == OCT_STORED_F16)
    return TRUE;
  for (guint64 r = 0; r < p->piece.rows; r++)
    for (guint64 c = 0; c < p->piece.columns; c += w->group) {
      gint zero;
      float scale = oct_weight_scale(w, p->piece.row + r, p->piece.column + c, &zero);
      float narrow = oct_float_from_f16(oct_f16_from_float(scale));
      if (!(fabsf(narrow - scale) <= fabsf(scale) * 0x1p-11f))
        return FALSE;
    }
  return TRUE;
}

/* Whether the fragment begins and ends where scales and words do; NULL when it does. */
static const char *
find_misfit(const oct_cuda_matrix *m, const oct_cuda_fragment *p) {
  const oct_cuda_piece *part = &p->piece;
  if (m->format == OCT_CUDA_MATRIX_FP8)
    return m->columns % 16 == 0 ? NULL : "the width is no multiple of 16";
  if (m->format == OCT_CUDA_MATRIX_FP8_BLOCK) {
    if (m->columns % 16 != 0)
      return "the width is no multiple of 16";
    return part->row % BLOCK == 0 && part->column % BLOCK == 0 && p->at % m->rows % BLOCK == 0
               ? NULL
               : "blocks of 128 are cut";
  }
  guint32 group = m->format == OCT_CUDA_MATRIX_INT4 ? m->group : 32;
  if (m->columns % group != 0 || part->column % group != 0)
    return "the width is no multiple of the group";
  if (p->weight->layout == OCT_LAYOUT_AWQ && (part->row % 8 != 0 || part->rows % 8 != 0))
    return "words of eight rows are cut";
  return m->format == OCT_CUDA_MATRIX_INT4 && !has_narrow_scales(p) ? "scales exceed float16"
                                                                    : NULL;
}

gboolean
oct_cuda_matrix_keeps(oct_cuda_matrix *m, const oct_cuda_fragment *fragments, guint n,
                      const char **why) {
  oct_assert(n > 0);
  const char *other;
  oct_cuda_format format = format_of(fragments[0].weight, why);
  if (format == OCT_CUDA_MATRIX_F32)
    return FALSE;
  oct_cuda_matrix kept = *m;
  kept.format = format;
  kept.group = format == OCT_CUDA_MATRIX_INT4 ? fragments[0].weight->group : 0;
  if (kept.group != 0 && kept.group != 32 && kept.group != 64 && kept.group != 128)
    *why = "the group is not 32, 64 or 128";
  for (guint i = 0; i < n && *why == NULL; i++) {
    const oct_weight *w = fragments[i].weight;
    if (format_of(w, &other) != format || (kept.group != 0 && w->group != kept.group))
      *why = "weights of one product have several formats";
    else
      *why = find_misfit(&kept, &fragments[i]);
  }
  if (*why == NULL)
    *m = kept;
  return *why == NULL;
}

/* ---------------------------------------------------------------- scales */

static guint32
words_of(const oct_cuda_matrix *m) {
  return m->format == OCT_CUDA_MATRIX_INT4 ? BLOCK / m->group : 1;
}

oct_cuda_scale_run
oct_cuda_scale_run_of(const oct_cuda_matrix *m, const oct_cuda_fragment *p, guint64 first,
                      guint64 n) {
  guint64 which = (p->at + first) / m->rows, row = (p->at + first) % m->rows;
  gsize base = which * oct_cuda_matrix_scale_bytes(m), chunks = (m->columns + BLOCK - 1) / BLOCK;
  if (m->format == OCT_CUDA_MATRIX_FP8)
    return (oct_cuda_scale_run){base + row * sizeof(float), n * sizeof(float), 1, 0};
  if (m->format == OCT_CUDA_MATRIX_FP8_BLOCK)
    return (oct_cuda_scale_run){base + row / BLOCK * chunks * sizeof(float),
                                (n + BLOCK - 1) / BLOCK * chunks * sizeof(float), 1, 0};
  gsize each = words_of(m) * sizeof(guint32);
  return (oct_cuda_scale_run){base + row * each, n * each, chunks, m->rows * each};
}

/* One word of a row: four e8m0 bytes, or a group's scale and zero; zeros beyond the last input. */
static guint32
side_word(const oct_cuda_matrix *m, const oct_cuda_fragment *p, guint64 row, guint64 column) {
  gint zero;
  guint32 word = 0;
  if (m->format == OCT_CUDA_MATRIX_INT4) {
    if (column >= m->columns)
      return 0;
    float scale = oct_weight_scale(p->weight, p->piece.row + row, p->piece.column + column, &zero);
    return oct_f16_from_float(scale) | (guint32)zero << 16;
  }
  for (guint i = 0; i < 4 && column + 32 * i < m->columns; i++) {
    float scale =
        oct_weight_scale(p->weight, p->piece.row + row, p->piece.column + column + 32 * i, &zero);
    word |= (oct_bits_of_float(scale) >> 23 & 0xff) << 8 * i;
  }
  return word;
}

static void
fill_words(const oct_cuda_matrix *m, const oct_cuda_fragment *p, guint64 first, guint64 n,
           guint32 *out) {
  guint32 words = words_of(m), step = BLOCK / words;
  for (guint64 column = 0; column < m->columns; column += BLOCK)
    for (guint64 row = 0; row < n; row++)
      for (guint32 k = 0; k < words; k++, out++) {
        gboolean again = p->weight->codes == NULL && row > 0; /* made-up scales are all alike */
        *out = again ? out[-(gssize)words] : side_word(m, p, first + row, column + k * step);
      }
}

void
oct_cuda_fragment_scales(const oct_cuda_matrix *m, const oct_cuda_fragment *p, guint64 first,
                         guint64 n, void *out) {
  float *scales = out;
  gint zero;
  if (m->format >= OCT_CUDA_MATRIX_MXFP4) {
    fill_words(m, p, first, n, out);
    return;
  }
  gboolean blocks = m->format == OCT_CUDA_MATRIX_FP8_BLOCK;
  for (guint64 row = 0; row < n; row += blocks ? BLOCK : 1)
    for (guint64 column = 0; column < (blocks ? m->columns : 1); column += BLOCK)
      *scales++ =
          oct_weight_scale(p->weight, p->piece.row + first + row, p->piece.column + column, &zero);
}

/* Rows at a time, a multiple of `step`, that leave room for `bytes` of each in a staging buffer. */
static guint64
band_of(gsize bytes, guint64 step) {
  return MAX(OCT_CUDA_STAGING_BYTES / bytes / step, 1) * step;
}

/* Kernels have exponents of MXFP4 up to 33. */
static gboolean
has_low_scales(oct_cuda_upload *u, const oct_cuda_matrix *m, const oct_weight *w,
               const guint8 *scales, gsize n) {
  guint8 most = 0;
  for (gsize i = 0; i < n && m->format == OCT_CUDA_MATRIX_MXFP4; i++)
    most = MAX(most, scales[i]);
  if (most <= 127 + 33)
    return TRUE;
  g_autofree char *name = oct_weight_name(w);
  g_autofree char *message =
      g_strdup_printf("%s: a scale of 2^%d exceeds the kernels' limit of 2^33", name, most - 127);
  oct_cuda_upload_refuse(u, message);
  return FALSE;
}

static gboolean
send_scales(oct_cuda_upload *u, const oct_cuda_matrix *m, const oct_cuda_fragment *p) {
  oct_cuda_scale_run one = oct_cuda_scale_run_of(m, p, 0, 1);
  guint64 each = band_of(one.bytes * one.height, BLOCK);
  for (guint64 first = 0; first < p->piece.rows; first += each) {
    guint64 n = MIN(each, p->piece.rows - first);
    oct_cuda_scale_run run = oct_cuda_scale_run_of(m, p, first, n);
    guint8 *staging = oct_cuda_upload_staging(u);
    if (staging == NULL)
      return FALSE;
    oct_cuda_fragment_scales(m, p, first, n, staging);
    if (!has_low_scales(u, m, p->weight, staging, run.bytes * run.height))
      return FALSE;
    guint8 *to = (guint8 *)(gsize)m->scales + run.offset;
    if (!oct_cuda_upload_send(u, to, MAX(run.pitch, run.bytes), run.bytes, run.height))
      return FALSE;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- codes */

static gsize
row_bytes_of(const oct_cuda_matrix *m) {
  return oct_cuda_matrix_bytes(m) / m->rows;
}

static gboolean
make_codes(oct_cuda_upload *u, const oct_cuda_matrix *m, const oct_cuda_fragment *p) {
  const oct_weight *w = p->weight;
  const oct_glue_dummy_codes call = {.key = w->dummy,
                                     .kind = m->format == OCT_CUDA_MATRIX_MXFP4  ? OCT_GLUE_E2M1
                                             : m->format == OCT_CUDA_MATRIX_INT4 ? OCT_GLUE_INT4
                                                                                 : OCT_GLUE_E4M3,
                                     .columns = w->columns,
                                     .row = p->piece.row,
                                     .column = p->piece.column,
                                     .rows = p->piece.rows,
                                     .n = p->piece.columns,
                                     .out = (guint8 *)(gsize)m->data + p->at * row_bytes_of(m),
                                     .pitch = m->columns};
  return oct_cuda_upload_make_codes(u, &call);
}

/* Rows of the file's bytes from `row` on, `bytes` of each from `skip` on. */
typedef struct band {
  const oct_weight *weight;
  guint64 row;
  gsize skip, bytes;
  guint8 *to;
} band;

static void
fill_band(gpointer user, guint64 first, guint64 n) {
  const band *b = user;
  gsize stored = oct_weight_row_bytes(b->weight);
  for (guint64 i = first; i < first + n; i++)
    memcpy(b->to + i * b->bytes,
           b->weight->codes + oct_weight_stored_row(b->weight, b->row + i) * stored + b->skip,
           b->bytes);
}

static void
fill_rows(const oct_weight *w, guint64 row, guint64 n, gsize skip, gsize bytes, guint8 *to) {
  band rows = {w, row, skip, bytes, to};
  oct_cuda_upload_fill(fill_band, &rows, n, n * bytes);
}

static gboolean
send_bytes(oct_cuda_upload *u, const oct_cuda_matrix *m, const oct_cuda_fragment *p) {
  gsize bytes = p->piece.columns;
  guint64 each = band_of(bytes, 1);
  for (guint64 first = 0; first < p->piece.rows; first += each) {
    guint64 n = MIN(each, p->piece.rows - first);
    guint8 *staging = oct_cuda_upload_staging(u);
    if (staging == NULL)
      return FALSE;
    fill_rows(p->weight, p->piece.row + first, n, p->piece.column, bytes, staging);
    if (!oct_cuda_upload_send(u, (guint8 *)(gsize)m->data + (p->at + first) * bytes, bytes, bytes,
                              n))
      return FALSE;
  }
  return TRUE;
}

/* Words of rows [row, row + n) as they are stored, all of the part's columns; the packing says how
 * they stand. */
static void
fill_codes(const oct_cuda_fragment *p, guint64 row, guint64 n, guint8 *to, oct_cuda_packing *call) {
  const oct_weight *w = p->weight;
  const guint32 *words = (const guint32 *)(gconstpointer)w->codes;
  guint64 columns = p->piece.columns, column = p->piece.column, runs, run, stored;
  call->floats = w->layout == OCT_LAYOUT_MXFP4;
  call->rows = (guint32)n;
  call->columns = (guint32)columns;
  if (w->layout != OCT_LAYOUT_AWQ && w->layout != OCT_LAYOUT_GPTQ) {
    call->kind = OCT_CUDA_CODES_ROWS;
    call->stride = columns / 2;
    fill_rows(w, row, n, column / 2, columns / 2, to);
    return;
  }
  gboolean awq = w->layout == OCT_LAYOUT_AWQ;
  call->kind = awq ? OCT_CUDA_CODES_AWQ : OCT_CUDA_CODES_GPTQ;
  stored = awq ? w->rows / 8 : w->rows; /* words of a run in the file, and here */
  run = awq ? n / 8 : n;
  runs = awq ? columns : columns / 8;
  call->stride = run;
  words += (awq ? column : column / 8) * stored + (awq ? row / 8 : row);
  for (guint64 i = 0; i < runs; i++)
    memcpy(to + i * run * sizeof *words, words + i * stored, run * sizeof *words);
}

static gboolean
send_codes(oct_cuda_upload *u, const oct_cuda_matrix *m, const oct_cuda_fragment *p) {
  guint64 each = band_of(p->piece.columns / 2, 8);
  for (guint64 first = 0; first < p->piece.rows; first += each) {
    guint64 n = MIN(each, p->piece.rows - first);
    guint8 *staging = oct_cuda_upload_staging(u);
    if (staging == NULL)
      return FALSE;
    oct_cuda_packing call = {.data = (guint8 *)(gsize)m->data + (p->at + first) * row_bytes_of(m)};
    fill_codes(p, p->piece.row + first, n, staging, &call);
    if (!oct_cuda_upload_pack(u, &call, n * p->piece.columns / 2))
      return FALSE;
  }
  return TRUE;
}

gboolean
oct_cuda_upload_fragment(oct_cuda_upload *u, const oct_cuda_matrix *m, const oct_cuda_fragment *p) {
  gboolean sent = p->weight->codes == NULL            ? make_codes(u, m, p)
                  : m->format < OCT_CUDA_MATRIX_MXFP4 ? send_bytes(u, m, p)
                                                      : send_codes(u, m, p);
  return sent && send_scales(u, m, p);
}
