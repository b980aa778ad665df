#include "tests/kernels/cuda/weights.h"

#include <math.h>
#include <string.h>

#include "kernels/reference/vector.h"

void
weight_clear(weight *w) {
  g_free(w->values);
}

/* Codes of four bits, two a byte, and scales: random, so that every code occurs. n matrices. */
static void
make_codes(const oct_cuda_queue *queue, weight *w, gsize n) {
  static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  oct_cuda_matrix *m = &w->matrix;
  gboolean is_mx = m->format == OCT_CUDA_MATRIX_MXFP4;
  gsize columns = m->columns, rows = n * m->rows, step = is_mx ? 32 : m->group;
  gsize chunks = (columns + 127) / 128, each = 128 / step;
  g_autofree guint8 *codes = g_malloc(rows * columns / 2);
  g_autofree guint8 *exponents = g_malloc0(n * chunks * m->rows * 4);
  g_autofree guint32 *words = g_new0(guint32, n * chunks * m->rows * each);
  for (gsize i = 0; i < rows * columns / 2; i++)
    codes[i] = (guint8)g_test_rand_int();
  for (gsize i = 0; i < rows * columns; i += step) {
    gsize row = i / columns, c = i % columns, e = row / m->rows, r = row % m->rows;
    gsize at = ((e * chunks + c / 128) * m->rows + r) * each + c % 128 / step;
    guint8 exponent = exponents[at] = (guint8)g_test_rand_int_range(118, 131);
    guint32 zero = (guint32)g_test_rand_int_range(0, 16); /* a scale of 2^-7 to 2^-3 */
    guint32 half = (guint32)(0x2000 + g_test_rand_int_range(0, 0x1000));
    if (!is_mx)
      words[at] = half | zero << 16;
    for (gsize k = i; k < i + step; k++) {
      guint8 code = codes[k / 2] >> (k % 2 * 4) & 15;
      w->values[k] = is_mx ? ldexpf(code & 8 ? -e2m1[code & 7] : e2m1[code & 7], exponent - 127)
                           : ((float)code - (float)zero) *
                                 ldexpf(1 + (float)(half & 0x3ff) / 1024, (int)(half >> 10) - 15);
    }
  }
  const oct_cuda_packing packing = {.kind = OCT_CUDA_CODES_ROWS,
                                    .floats = is_mx,
                                    .rows = (guint32)rows,
                                    .columns = m->columns,
                                    .codes = device_copy(codes, rows * columns / 2),
                                    .stride = columns / 2,
                                    .data = device_room(n * oct_cuda_matrix_bytes(m))};
  device_check(oct_cuda_pack(queue, &packing));
  m->data = packing.data;
  m->scales = is_mx ? device_copy(exponents, n * oct_cuda_matrix_scale_bytes(m))
                    : device_copy(words, n * oct_cuda_matrix_scale_bytes(m));
}

static void
make_fp8(weight *w, gsize n) {
  gsize rows = w->matrix.rows, columns = w->matrix.columns;
  gboolean blocks = w->matrix.format == OCT_CUDA_MATRIX_FP8_BLOCK;
  gsize across = blocks ? (columns + 127) / 128 : 1, down = blocks ? (rows + 127) / 128 : rows;
  g_autofree float *scales = g_new(float, n *across *down);
  for (gsize i = 0; i < n * across * down; i++)
    scales[i] = (float)g_test_rand_double_range(0.01, 0.1);
  w->matrix.data = device_put(OCT_CUDA_FP8, w->values, n * rows * columns);
  w->matrix.scales = device_copy(scales, n * across * down * sizeof *scales);
  for (gsize i = 0; i < n * rows * columns; i++) {
    gsize r = i / columns % rows, c = i % columns;
    gsize at = blocks ? r / 128 * across + c / 128 : r;
    w->values[i] *= scales[i / (rows * columns) * across * down + at];
  }
}

const weight_variant weight_variants[WEIGHT_VARIANTS] = {
    {OCT_CUDA_MATRIX_F32, 0},       {OCT_CUDA_MATRIX_BF16, 0},  {OCT_CUDA_MATRIX_FP8, 0},
    {OCT_CUDA_MATRIX_FP8_BLOCK, 0}, {OCT_CUDA_MATRIX_MXFP4, 0}, {OCT_CUDA_MATRIX_INT4, 128},
    {OCT_CUDA_MATRIX_INT4, 64},     {OCT_CUDA_MATRIX_INT4, 32}};

void
weight_make(const oct_cuda_queue *queue, weight *w, weight_variant v, guint32 n, guint32 rows,
            guint32 columns) {
  gsize size = (gsize)n * rows * columns;
  w->matrix =
      (oct_cuda_matrix){.format = v.format, .group = v.group, .rows = rows, .columns = columns};
  w->values = v.format >= OCT_CUDA_MATRIX_MXFP4
                  ? g_new(float, size)
                  : data_normal(size, v.format >= OCT_CUDA_MATRIX_FP8 ? 10 : 1);
  if (v.format == OCT_CUDA_MATRIX_F32 || v.format == OCT_CUDA_MATRIX_BF16)
    w->matrix.data =
        device_put(v.format == OCT_CUDA_MATRIX_F32 ? OCT_CUDA_F32 : OCT_CUDA_BF16, w->values, size);
  else if (v.format == OCT_CUDA_MATRIX_FP8 || v.format == OCT_CUDA_MATRIX_FP8_BLOCK)
    make_fp8(w, n);
  else
    make_codes(queue, w, n);
}

/* Rows of a tall weight that the twin multiplies: the first, some in the middle, the last. */
#define SOME 160

static guint32
some_begin(guint32 rows, guint which) {
  return rows <= 3 * SOME ? (which == 0 ? 0 : rows) : (rows - SOME) / 2 * which;
}
static guint32
some_end(guint32 rows, guint which) {
  return rows <= 3 * SOME ? rows : some_begin(rows, which) + SOME;
}

gsize
weight_keep_some(float *y, guint32 m, guint32 rows) {
  gsize n = 0;
  for (guint32 i = 0; i < m; i++)
    for (guint k = 0; k < 3; k++) {
      guint32 from = some_begin(rows, k), size = some_end(rows, k) - from;
      memmove(y + n, y + (gsize)i * rows + from, size * sizeof *y);
      n += size;
    }
  return n;
}

void
weight_multiply(const weight *w, guint32 e, const float *x, guint32 m, const float *bias, float *y,
                guint parts) {
  g_autofree float *scratch = g_new(float, OCT_REF_MATMUL_ROWS * w->matrix.columns);
  gsize size = (gsize)w->matrix.rows * w->matrix.columns;
  const oct_matrix matrix = {.format = OCT_MATRIX_F32,
                             .rows = w->matrix.rows,
                             .columns = w->matrix.columns,
                             .data = w->values + e * size};
  const oct_matmul twin = {.weight = &matrix,
                           .bias = bias,
                           .x = x,
                           .x_stride = w->matrix.columns,
                           .m = m,
                           .y = y,
                           .y_stride = w->matrix.rows};
  guint32 rows = w->matrix.rows / parts;
  for (guint p = 0; p < parts; p++)
    for (guint k = 0; k < 3; k++)
      oct_ref_matmul(&twin, p * rows + some_begin(rows, k), some_end(rows, k) - some_begin(rows, k),
                     scratch);
}

/* `scaled`: scales and scaled weights become bf16. Up to 8 rows (m) by four bits are added by
 * instructions that cut off at 2^-12 or 2^-13 of the largest: a float64 model is off by 0.9e-5 or
 * 2.9e-5 with 32 of e2m1 a sum, 1.2e-4 or 3.2e-4 with 128 integers: four instructions cut off twice
 * the sum, with its zero (rms 8.8, not 6.5). Seen: 3.5e-5; groups of 32, 128: 5.1e-5, 1.7e-4. */
double
weight_limit(oct_cuda_type y, weight_variant v, oct_cuda_path path, guint32 m, gboolean scaled) {
  gboolean is_int = v.format == OCT_CUDA_MATRIX_INT4;
  gboolean halves = m <= 8 && (path == OCT_CUDA_PATH_CODES || path == OCT_CUDA_PATH_AUTO);
  if (scaled && (is_int || v.format == OCT_CUDA_MATRIX_FP8_BLOCK))
    return 8e-3;
  if (y != OCT_CUDA_F32 || v.format == OCT_CUDA_MATRIX_F32)
    return v.format == OCT_CUDA_MATRIX_F32 ? 1e-5 : 4e-3;
  return !halves || v.format < OCT_CUDA_MATRIX_MXFP4 ? 2e-5
         : is_int                                    ? 5e-5 + v.group * 1.6e-6
                                                     : 1e-4;
}

void
weight_activate(const oct_glu_params *glu, guint32 m, guint32 rows, float *y) {
  for (guint32 i = 0; i < m; i++) {
    float *row = y + (gsize)i * rows;
    g_autofree float *out = g_new(float, rows / 2);
    oct_ref_glu(glu, row, row + rows / 2, 1, rows / 2, out);
    memmove(y + (gsize)i * (rows / 2), out, rows / 2 * sizeof *out);
  }
}
