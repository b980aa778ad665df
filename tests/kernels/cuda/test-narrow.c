/* Products of few rows on Hopper, and that a row of a product in a fixed order has the same bits
 * whatever else is multiplied. */
#include <string.h>

#include "tests/kernels/cuda/device.h"

/* NULL: skipped. */
static const oct_cuda_queue *
hopper(guint32 flags) {
  const oct_cuda_queue *queue = device_queue(flags);
  if (queue == NULL || queue->capability == 90)
    return queue;
  g_test_skip("no Hopper GPU");
  return NULL;
}

/* y[m, rows] = x w^T of float32. */
static void
multiply_twin(float *w, guint32 rows, guint32 columns, const float *x, guint32 m, float *y) {
  g_autofree float *scratch = g_new(float, (gsize)OCT_REF_MATMUL_ROWS *columns);
  const oct_matrix matrix = {.format = OCT_MATRIX_F32, .rows = rows, .columns = columns, .data = w};
  const oct_matmul twin = {
      .weight = &matrix, .x = x, .x_stride = columns, .m = m, .y = y, .y_stride = rows};
  oct_ref_matmul(&twin, 0, rows, scratch);
}

typedef struct plain_case {
  guint32 m, rows, columns;
  oct_cuda_type y_type;
  gboolean bias, accumulate, gap; /* gap: rows are apart */
} plain_case;

static void
check_plain(const oct_cuda_queue *queue, const plain_case *c) {
  gsize stride = c->gap ? c->columns + 8 : c->columns, y_stride = c->gap ? c->rows + 16 : c->rows;
  gsize x_size = (gsize)c->m * stride, y_size = (gsize)c->m * y_stride;
  g_autofree float *w = data_normal((gsize)c->rows * c->columns, 1), *x = data_normal(x_size, 1);
  g_autofree float *bias = data_normal(c->rows, 5), *before = data_normal(y_size, 5);
  g_autofree float *dense = g_new(float, (gsize)c->m * c->columns);
  g_autofree float *want = g_new(float, (gsize)c->m * c->rows);
  oct_cuda_matmul call = {
      .weight = {.format = OCT_CUDA_MATRIX_BF16, .rows = c->rows, .columns = c->columns},
      .accumulate = c->accumulate,
      .path = OCT_CUDA_PATH_NARROW,
      .x_type = OCT_CUDA_BF16,
      .y_type = c->y_type,
      .m = c->m,
      .x_stride = stride,
      .y = device_put(c->y_type, before, y_size),
      .y_stride = y_stride};
  call.weight.data = device_put(OCT_CUDA_BF16, w, (gsize)c->rows * c->columns);
  call.x = device_put(OCT_CUDA_BF16, x, x_size);
  void *d_bias = device_put(OCT_CUDA_BF16, bias, c->rows);
  call.bias = c->bias ? d_bias : NULL;
  device_check(oct_cuda_multiply(queue, NULL, &call));
  for (guint32 i = 0; i < c->m; i++)
    memcpy(dense + (gsize)i * c->columns, x + i * stride, c->columns * sizeof *x);
  multiply_twin(w, c->rows, c->columns, dense, c->m, want);
  g_autofree float *y = device_get(c->y_type, call.y, y_size);
  for (guint32 i = 0; i < c->m; i++)
    for (guint32 r = 0; r < y_stride; r++) {
      float was = before[i * y_stride + r];
      if (r >= c->rows) {
        g_assert_cmpfloat(y[i * y_stride + r], ==, was);
        continue;
      }
      float *to = &want[(gsize)i * c->rows + r];
      *to += (c->bias ? bias[r] : 0) + (c->accumulate ? was : 0);
      y[(gsize)i * c->rows + r] = y[i * y_stride + r];
    }
  g_autofree char *name = g_strdup_printf("%u x %u x %u", c->m, c->rows, c->columns);
  device_expect(name, y, want, (gsize)c->m * c->rows, c->y_type == OCT_CUDA_F32 ? 2e-5 : 4e-3);
}

/* Every height of a tile, rows and inputs that end within a box, more rows of x than a block has.
 */
static void
test_plain(void) {
  static const guint32 sizes[][2] = {{8, 72},      {200, 64},   {4096, 512},  {6144, 1096},
                                     {4096, 4096}, {8448, 264}, {28672, 128}, {29000, 264},
                                     {33000, 72},  {12600, 136}};
  static const guint32 rows[] = {1, 7, 16, 33, 64, 65, 150};
  for (guint s = 0; s < G_N_ELEMENTS(sizes); s++)
    for (guint i = s % 2; i < G_N_ELEMENTS(rows); i += s == 4 ? 3 : 1) {
      const oct_cuda_queue *queue = hopper(s % 2 == 0 ? OCT_CUDA_OVERLAP : 0);
      if (queue == NULL)
        return;
      if (device_quick() && (s == 4 || rows[i] % 16 == 1))
        continue;
      guint32 columns = device_quick() ? MIN(sizes[s][1], 264) : sizes[s][1];
      check_plain(queue, &(plain_case){rows[i], sizes[s][0], columns,
                                       (s + i) % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_F32, i % 3 == 1,
                                       i % 3 == 2, i % 4 == 1});
    }
}

/* Parts of the inputs, each to a place of its own: as the norm behind them sums up. */
static void
test_parts(void) {
  static const struct {
    guint32 m, rows, columns, parts;
  } cases[] = {{1, 4096, 1024, 2}, {16, 264, 512, 2},  {7, 96, 768, 3},
               {64, 2048, 512, 4}, {33, 4100, 256, 2}, {64, 28672, 256, 2}};
  const oct_cuda_queue *queue = hopper(OCT_CUDA_OVERLAP);
  for (guint i = 0; queue != NULL && i < G_N_ELEMENTS(cases); i++) {
    guint32 m = cases[i].m, rows = cases[i].rows, columns = cases[i].columns, n = cases[i].parts;
    guint32 each = columns / n;
    gsize size = (gsize)m * rows;
    g_autofree float *w = data_normal((gsize)rows * columns, 1);
    g_autofree float *x = data_normal((gsize)m * columns, 1);
    const oct_cuda_matmul call = {
        .weight = {.format = OCT_CUDA_MATRIX_BF16,
                   .rows = rows,
                   .columns = each,
                   .data = device_put(OCT_CUDA_BF16, w, (gsize)rows * columns)},
        .path = OCT_CUDA_PATH_NARROW,
        .x_type = OCT_CUDA_BF16,
        .y_type = OCT_CUDA_F32,
        .m = m,
        .x = device_put(OCT_CUDA_BF16, x, (gsize)m * columns),
        .x_stride = columns,
        .w_stride = columns,
        .y = device_room_of(OCT_CUDA_F32, size * n),
        .y_stride = rows,
        .batch = n,
        .x_batch = each,
        .w_batch = each,
        .y_batch = size};
    device_check(oct_cuda_multiply(queue, NULL, &call));
    g_autofree float *y = device_get(OCT_CUDA_F32, call.y, size * n);
    g_autofree float *want = g_new(float, size), *one = g_new(float, (gsize)rows *each);
    g_autofree float *inputs = g_new(float, (gsize)m *each);
    for (guint32 p = 0; p < n; p++) {
      for (guint32 r = 0; r < rows; r++)
        memcpy(one + (gsize)r * each, w + (gsize)r * columns + p * each, each * sizeof *w);
      for (guint32 r = 0; r < m; r++)
        memcpy(inputs + (gsize)r * each, x + (gsize)r * columns + p * each, each * sizeof *x);
      multiply_twin(one, rows, each, inputs, m, want);
      g_autofree char *name = g_strdup_printf("part %u of %u x %u x %u", p, m, rows, columns);
      device_expect(name, y + p * size, want, size, 2e-5);
    }
  }
}

/* y[m, inner] of gates beside ups, whose activation is made with their sums. */
static void
check_gated(const oct_cuda_queue *queue, guint32 m, guint32 inner, guint32 columns,
            oct_cuda_type y_type, const oct_glu_params *glu) {
  guint32 rows = 2 * inner, y_stride = inner + 8;
  g_autofree float *w = data_normal((gsize)rows * columns, 1);
  g_autofree float *x = data_normal((gsize)m * columns, 1);
  g_autofree float *both = g_new(float, (gsize)m *rows), *want = g_new(float, (gsize)m *inner);
  const oct_cuda_matmul call = {
      .weight = {.format = OCT_CUDA_MATRIX_BF16,
                 .rows = rows,
                 .columns = columns,
                 .data = device_put(OCT_CUDA_BF16, w, (gsize)rows * columns)},
      .path = OCT_CUDA_PATH_NARROW,
      .x_type = OCT_CUDA_BF16,
      .y_type = y_type,
      .m = m,
      .x = device_put(OCT_CUDA_BF16, x, (gsize)m * columns),
      .x_stride = columns,
      .glu = glu,
      .y = device_room_of(y_type, (gsize)m * y_stride),
      .y_stride = y_stride};
  device_check(oct_cuda_multiply(queue, NULL, &call));
  multiply_twin(w, rows, columns, x, m, both);
  for (guint32 i = 0; i < m; i++)
    oct_ref_glu(glu, both + (gsize)i * rows, both + (gsize)i * rows + inner, 1, inner,
                want + (gsize)i * inner);
  g_autofree float *y = device_get(y_type, call.y, (gsize)m * y_stride);
  for (guint32 i = 0; i < m; i++)
    memmove(y + (gsize)i * inner, y + (gsize)i * y_stride, inner * sizeof *y);
  g_autofree char *name = g_strdup_printf("gated, %u x 2 x %u x %u", m, inner, columns);
  /* Gates of few may all be below zero, where next to nothing is left of them. */
  device_expect_sums(name, y, want, (gsize)m * inner, 1, y_type == OCT_CUDA_F32 ? 1e-4 : 4e-3);
}

static void
test_gated(void) {
  static const guint32 sizes[][2] = {{6, 72},     {4096, 1096}, {6144, 264}, {8448, 72},
                                     {12600, 72}, {14336, 264}, {16802, 136}};
  static const guint32 rows[] = {1, 16, 33, 64, 70};
  static const oct_glu_params glus[] = {{.kind = OCT_GLU_SWIGLU},
                                        {.kind = OCT_GLU_SITU, .alpha = 4, .limit = 25}};
  for (guint s = 0; s < G_N_ELEMENTS(sizes); s++)
    for (guint i = s % 2; i < G_N_ELEMENTS(rows); i += 2) {
      const oct_cuda_queue *queue = hopper(OCT_CUDA_OVERLAP);
      if (queue == NULL)
        return;
      if (device_quick() && i > 1)
        continue;
      check_gated(queue, rows[i], sizes[s][0], device_quick() ? MIN(sizes[s][1], 136) : sizes[s][1],
                  (s + i) % 3 == 0 ? OCT_CUDA_F32 : OCT_CUDA_BF16, &glus[s % 2]);
    }
}

/* ---------------------------------------------------------------- threads */

#define LAUNCHES 2000

/* Products of m rows on a stream of its own; the first error. */
static gpointer
launch_many(gpointer rows) {
  oct_cuda_queue queue;
  cudaStream_t stream;
  guint32 m = GPOINTER_TO_UINT(rows), columns = 64, width = 64;
  void *room = NULL;
  gsize x = (gsize)m * columns * 2, w = (gsize)width * columns * 2, y = (gsize)m * width * 2;
  int error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error == 0)
    error = oct_cuda_queue_init(&queue, stream, OCT_CUDA_FIXED_ORDER | OCT_CUDA_OVERLAP);
  if (error == 0)
    error = cudaMalloc(&room, x + w + y);
  const oct_cuda_matmul call = {.weight = {.format = OCT_CUDA_MATRIX_BF16,
                                           .rows = width,
                                           .columns = columns,
                                           .data = (char *)room + x},
                                .path = OCT_CUDA_PATH_NARROW,
                                .x_type = OCT_CUDA_BF16,
                                .y_type = OCT_CUDA_BF16,
                                .m = m,
                                .x = room,
                                .x_stride = columns,
                                .y = (char *)room + x + w,
                                .y_stride = width};
  for (guint i = 0; i < LAUNCHES && error == 0; i++)
    error = oct_cuda_multiply(&queue, NULL, &call);
  if (error == 0)
    error = cudaStreamSynchronize(stream);
  (void)cudaFree(room);
  (void)cudaStreamDestroy(stream);
  return GINT_TO_POINTER(error);
}

/* A kernel's limit of shared memory is one for all threads, and what a launch needs goes by its
 * rows: engines of one process, one the other's draft model, launch it at the same time. */
static void
test_threads(void) {
  static const guint32 rows[] = {1, 16, 40, 64};
  GThread *threads[G_N_ELEMENTS(rows)];
  if (hopper(0) == NULL)
    return;
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++)
    threads[i] = g_thread_new("launches", launch_many, GUINT_TO_POINTER(rows[i]));
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
    int error = GPOINTER_TO_INT(g_thread_join(threads[i]));
    g_assert_cmpstr(oct_cuda_error_text(error), ==, oct_cuda_error_text(OCT_CUDA_OK));
  }
}

/* ---------------------------------------------------------------- a fixed order */

/* Rows of a product of 400 rows, among the first of so many. */
static void
test_fixed(void) {
  static const guint32 sizes[][2] = {{4096, 4096}, {6144, 1096}, {200, 14336}, {28672, 320}};
  static const guint32 counts[] = {1, 2, 7, 16, 33, 64, 65, 129, 192, 193, 300};
  for (guint s = 0; s < G_N_ELEMENTS(sizes); s++) {
    const oct_cuda_queue *queue = hopper(OCT_CUDA_FIXED_ORDER);
    if (queue == NULL)
      return;
    if (device_quick() && s != 1)
      continue;
    guint32 m = 400, rows = sizes[s][0], columns = sizes[s][1];
    g_autofree float *x = data_normal((gsize)m * columns, 1);
    g_autofree float *w = data_normal((gsize)rows * columns, 1);
    oct_cuda_matmul call = {
        .weight = {.format = OCT_CUDA_MATRIX_BF16, .rows = rows, .columns = columns},
        .x_type = OCT_CUDA_BF16,
        .y_type = OCT_CUDA_F32,
        .m = m,
        .x = device_put(OCT_CUDA_BF16, x, (gsize)m * columns),
        .x_stride = columns,
        .y = device_room_of(OCT_CUDA_F32, (gsize)m * rows),
        .y_stride = rows};
    call.weight.data = device_put(OCT_CUDA_BF16, w, (gsize)rows * columns);
    g_assert_cmpint(oct_cuda_matmul_path(queue, &call), ==, OCT_CUDA_PATH_WIDE);
    device_check(oct_cuda_multiply(queue, NULL, &call));
    g_autofree float *all = device_get(OCT_CUDA_F32, call.y, (gsize)m * rows);
    for (guint i = 0; i < G_N_ELEMENTS(counts); i++) {
      call.m = counts[i];
      g_assert_cmpint(oct_cuda_matmul_path(queue, &call), ==,
                      call.m <= 64 ? OCT_CUDA_PATH_NARROW : OCT_CUDA_PATH_WIDE);
      call.y = device_room_of(OCT_CUDA_F32, (gsize)m * rows);
      device_check(oct_cuda_multiply(queue, NULL, &call));
      g_autofree float *some = device_get(OCT_CUDA_F32, call.y, (gsize)call.m * rows);
      guint32 off = 0;
      for (gsize k = 0; k < (gsize)call.m * rows; k++)
        off += memcmp(&some[k], &all[k], sizeof *some) != 0;
      g_test_message("%u of 400 rows x %u x %u: %u sums differ", call.m, rows, columns, off);
      g_assert_cmpuint(off, ==, 0);
    }
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/narrow/products-of-few-rows", test_plain);
  g_test_add_func("/cuda/narrow/parts-of-the-inputs", test_parts);
  g_test_add_func("/cuda/narrow/gates-beside-ups", test_gated);
  g_test_add_func("/cuda/narrow/threads-launch-with-different-rows", test_threads);
  g_test_add_func("/cuda/narrow/a-fixed-order-has-the-same-bits-for-any-rows", test_fixed);
  return g_test_run();
}
