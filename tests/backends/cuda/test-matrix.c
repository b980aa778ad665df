/* Which quantised weights keep their format, and the scales of their parts as kernels read them. No
 * device is needed. */
#include <string.h>

#include "backends/cuda/matrix.h"
#include "engine/model/files/floats.h"

#define ROWS    256
#define COLUMNS 512

/* A weight of some rows and columns whose scales are all different. */
typedef struct made {
  oct_weight weight;
  guint8 *codes, *scales;
  guint32 *zeros;
} made;

static void
made_clear(made *m) {
  g_free(m->codes);
  g_free(m->scales);
  g_free(m->zeros);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(made, made_clear)

static void
make(made *m, oct_layout layout, guint32 group) {
  m->codes = g_malloc0(ROWS * COLUMNS);
  m->scales = g_malloc0(ROWS * COLUMNS);
  m->zeros = g_new0(guint32, ROWS * COLUMNS / 8);
  m->weight = (oct_weight){.kind = OCT_WEIGHT_DOWN,
                           .layout = layout,
                           .rows = ROWS,
                           .columns = COLUMNS,
                           .codes = m->codes,
                           .scales = m->scales,
                           .zeros = m->zeros,
                           .scale_type = OCT_STORED_F32,
                           .group = group,
                           .row_scales = TRUE,
                           .row_step = 1};
  if (group > 0)
    m->weight.scale_type = OCT_STORED_F16;
  for (guint i = 0; i < ROWS * COLUMNS / 8; i++)
    m->zeros[i] = (guint32)(i * 0x9e3779b1u);
  for (guint i = 0; i < ROWS * COLUMNS / 32; i++) {
    float value = 0.01f + (float)i * 1e-6f;
    guint16 half = (guint16)(0x1800 + i % 0x2000);
    if (layout == OCT_LAYOUT_MXFP4)
      m->scales[i] = (guint8)(100 + i % 50);
    else if (group > 0)
      memcpy(m->scales + i * sizeof half, &half, sizeof half);
    else
      memcpy(m->scales + i * sizeof value, &value, sizeof value);
  }
}

static oct_cuda_fragment
part(const made *m, guint64 row, guint64 rows, guint64 column, guint64 columns, guint64 at) {
  return (oct_cuda_fragment){&m->weight, {row, rows, column, columns}, at};
}

/* The scale and zero that a kernel finds for a row and input of the matrix. */
static float
kernel_scale(const oct_cuda_matrix *m, const guint8 *scales, guint64 row, guint64 column,
             gint *zero) {
  gsize chunks = (m->columns + 127) / 128, words = m->group > 0 ? 128 / m->group : 0;
  *zero = 0;
  if (m->format == OCT_CUDA_MATRIX_MXFP4)
    return oct_float_from_e8m0(scales[(column / 128 * m->rows + row) * 4 + column % 128 / 32]);
  if (m->format == OCT_CUDA_MATRIX_INT4) {
    guint32 word = oct_load_u32(
        scales + ((column / 128 * m->rows + row) * words + column % 128 / m->group) * 4);
    *zero = (gint)(word >> 16);
    return oct_float_from_f16((guint16)word);
  }
  gsize at = m->format == OCT_CUDA_MATRIX_FP8 ? row : row / 128 * chunks + column / 128;
  return oct_float_of_bits(oct_load_u32(scales + at * 4));
}

/* Two parts of a weight, of the second half of its columns: below, then above, in the second of two
 * matrices. */
static void
check_scales(oct_layout layout, guint32 group, oct_cuda_format format) {
  g_auto(made) m = {0};
  make(&m, layout, group);
  const oct_cuda_fragment parts[] = {part(&m, 128, 128, COLUMNS / 2, COLUMNS / 2, ROWS),
                                     part(&m, 0, 128, COLUMNS / 2, COLUMNS / 2, ROWS + 128)};
  oct_cuda_matrix matrix = {.rows = ROWS, .columns = COLUMNS / 2};
  const char *why = "";
  g_assert_true(oct_cuda_matrix_keeps(&matrix, parts, 2, &why));
  g_assert_null(why);
  g_assert_cmpint(matrix.format, ==, format);
  g_assert_cmpuint(matrix.group, ==, group);
  gsize one = oct_cuda_matrix_scale_bytes(&matrix);
  g_autofree guint8 *all = g_malloc0(2 * one), *run_bytes = g_malloc0(one);
  for (guint i = 0; i < 2; i++) {
    /* In two runs of rows, as a small staging buffer would have it. */
    for (guint64 first = 0; first < 128; first += format == OCT_CUDA_MATRIX_FP8_BLOCK ? 128 : 64) {
      guint64 n = format == OCT_CUDA_MATRIX_FP8_BLOCK ? 128 : 64;
      oct_cuda_scale_run run = oct_cuda_scale_run_of(&matrix, &parts[i], first, n);
      oct_cuda_fragment_scales(&matrix, &parts[i], first, n, run_bytes);
      for (gsize k = 0; k < run.height; k++)
        memcpy(all + run.offset + k * run.pitch, run_bytes + k * run.bytes, run.bytes);
    }
  }
  for (guint64 row = 0; row < ROWS; row++)
    for (guint64 column = 0; column < COLUMNS / 2; column += 32) {
      gint zero, wanted_zero;
      float scale = kernel_scale(&matrix, all + one, row, column, &zero);
      float wanted =
          oct_weight_scale(&m.weight, (row + 128) % ROWS, COLUMNS / 2 + column, &wanted_zero);
      g_assert_cmpfloat(scale, ==, wanted);
      g_assert_cmpint(zero, ==, wanted_zero);
    }
}

static void
test_scales(void) {
  check_scales(OCT_LAYOUT_FP8, 0, OCT_CUDA_MATRIX_FP8);
  check_scales(OCT_LAYOUT_FP8_BLOCK, 0, OCT_CUDA_MATRIX_FP8_BLOCK);
  check_scales(OCT_LAYOUT_MXFP4, 0, OCT_CUDA_MATRIX_MXFP4);
  static const guint32 groups[] = {32, 64, 128};
  for (guint i = 0; i < G_N_ELEMENTS(groups); i++) {
    check_scales(OCT_LAYOUT_AWQ, groups[i], OCT_CUDA_MATRIX_INT4);
    check_scales(OCT_LAYOUT_GPTQ, groups[i], OCT_CUDA_MATRIX_INT4);
    check_scales(OCT_LAYOUT_INT4_PACKED, groups[i], OCT_CUDA_MATRIX_INT4);
  }
}

/* A part that is widened, and why. */
static void
expect_widened(const oct_cuda_fragment *parts, guint n, guint32 columns, const char *text) {
  oct_cuda_matrix matrix = {.rows = ROWS, .columns = columns};
  const char *why = "";
  g_assert_false(oct_cuda_matrix_keeps(&matrix, parts, n, &why));
  if (text == NULL)
    g_assert_null(why);
  else
    g_assert_cmpstr(why, ==, text);
  g_assert_cmpint(matrix.format, ==, OCT_CUDA_MATRIX_F32);
}

static void
test_widened(void) {
  static const gint32 order[COLUMNS];
  g_auto(made) block = {0}, awq = {0}, mx = {0}, gptq = {0}, other = {0};
  make(&block, OCT_LAYOUT_FP8_BLOCK, 0);
  make(&awq, OCT_LAYOUT_AWQ, 128);
  make(&mx, OCT_LAYOUT_MXFP4, 0);
  make(&gptq, OCT_LAYOUT_GPTQ, 128);
  make(&other, OCT_LAYOUT_AWQ, 64);
  const oct_cuda_fragment cut[] = {part(&block, 64, 64, 0, COLUMNS, 0),
                                   part(&block, 0, 128, 64, 128, 0),
                                   part(&block, 0, 128, 0, COLUMNS, 64)};
  for (guint i = 0; i < G_N_ELEMENTS(cut); i++)
    expect_widened(&cut[i], 1, (guint32)cut[i].piece.columns, "blocks of 128 are cut");
  const oct_cuda_fragment group = part(&awq, 0, ROWS, 64, 128, 0);
  expect_widened(&group, 1, 128, "the width is no multiple of the group");
  const oct_cuda_fragment narrow = part(&mx, 0, ROWS, 16, 32, 0);
  expect_widened(&narrow, 1, 32, "the width is no multiple of the group");
  const oct_cuda_fragment words = part(&awq, 4, 8, 0, COLUMNS, 0);
  expect_widened(&words, 1, COLUMNS, "words of eight rows are cut");
  const oct_cuda_fragment mixed[] = {part(&awq, 0, ROWS, 0, COLUMNS, 0),
                                     part(&other, 0, ROWS, 0, COLUMNS, ROWS)};
  expect_widened(mixed, 2, COLUMNS, "weights of one product have several formats");
  gptq.weight.order = order;
  const oct_cuda_fragment shuffled = part(&gptq, 0, ROWS, 0, COLUMNS, 0);
  expect_widened(&shuffled, 1, COLUMNS, "groups of inputs in another order have no kernel");
}

/* Weights that are stored plain are not told of. */
static void
test_plain(void) {
  g_auto(made) plain = {0}, nv = {0};
  make(&plain, OCT_LAYOUT_ROWS, 0);
  plain.weight.type = OCT_STORED_BF16;
  make(&nv, OCT_LAYOUT_NVFP4, 0);
  const oct_cuda_fragment whole = part(&plain, 0, ROWS, 0, COLUMNS, 0);
  expect_widened(&whole, 1, COLUMNS, NULL);
  plain.weight.type = OCT_STORED_Q8_0;
  expect_widened(&whole, 1, COLUMNS, "blocks of GGUF have no kernel");
  const oct_cuda_fragment four = part(&nv, 0, ROWS, 0, COLUMNS, 0);
  expect_widened(&four, 1, COLUMNS, "the layout has no kernel");
}

/* Scales that float16 cannot hold, of a checkpoint that has them wider. */
static void
test_scale_range(void) {
  g_auto(made) m = {0};
  make(&m, OCT_LAYOUT_INT4_PACKED, 128);
  m.weight.scale_type = OCT_STORED_F32;
  for (guint i = 0; i < ROWS * COLUMNS / 128; i++) {
    float value = 0.01f;
    memcpy(m.scales + i * sizeof value, &value, sizeof value);
  }
  const oct_cuda_fragment whole = part(&m, 0, ROWS, 0, COLUMNS, 0);
  oct_cuda_matrix matrix = {.rows = ROWS, .columns = COLUMNS};
  const char *why;
  g_assert_true(oct_cuda_matrix_keeps(&matrix, &whole, 1, &why));
  float tiny = 1e-7f;
  memcpy(m.scales + 40, &tiny, sizeof tiny);
  expect_widened(&whole, 1, COLUMNS, "scales exceed float16");
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/matrix/scales-of-parts-are-where-kernels-read-them", test_scales);
  g_test_add_func("/cuda/matrix/parts-that-cut-scales-are-widened", test_widened);
  g_test_add_func("/cuda/matrix/plain-weights-are-not-told-of", test_plain);
  g_test_add_func("/cuda/matrix/scales-beyond-float16-are-widened", test_scale_range);
  return g_test_run();
}
