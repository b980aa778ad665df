/* x in MXFP8, and its products with weights in MXFP4 by the tensor memory of 10.x. */
#include "kernels/cuda/scaled.h"

#include <math.h>
#include <string.h>

#include "tests/kernels/cuda/device.h"

/* x[n, width] as the twin has it in MXFP8, and scales[chunks, n, 4]. */
static void
quantise_twin(const float *x, guint32 n, guint32 width, float *out, guint8 *scales) {
  guint32 blocks = width / 32;
  g_autofree guint8 *row = g_new(guint8, blocks);
  for (guint32 i = 0; i < n; i++) {
    oct_ref_quantise_mx(x + (gsize)i * width, width, out + (gsize)i * width, row);
    for (guint32 b = 0; b < (width + 127) / 128 * 4; b++)
      scales[((gsize)(b / 4) * n + i) * 4 + b % 4] = b < blocks ? row[b] : 0;
  }
}

static float *
make_inputs(guint32 n, guint32 width) {
  float *x = data_normal((gsize)n * width, 3);
  /* Blocks of zeros, of one size to the edge of what e4m3 has, of what is nearly nothing. */
  for (guint32 i = 0; i < n; i++)
    for (guint32 c = 0; c < width; c++) {
      guint32 kind = (i + c / 32) % 7;
      float *v = &x[(gsize)i * width + c];
      *v = kind == 0   ? 0
           : kind == 1 ? ldexpf(447 + (float)(c % 4), -5)
           : kind == 2 ? *v * 1e-30f
                       : *v;
    }
  return x;
}

static void
test_quantise(void) {
  static const guint32 widths[] = {32, 96, 128, 416, 3584};
  for (guint k = 0; k < 2 * G_N_ELEMENTS(widths); k++) {
    const oct_cuda_queue *queue = device_queue(0);
    if (queue == NULL)
      return;
    guint32 n = 9, width = widths[k / 2], chunks = (width + 127) / 128;
    oct_cuda_type type = k % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_F32;
    g_autofree float *x = make_inputs(n, width), *want = g_new(float, n *width);
    g_autofree guint8 *scales = g_malloc(chunks * n * 4), *got = g_malloc(chunks * n * 4);
    oct_cuda_quantise_mx call = {.type = type,
                                 .n = n,
                                 .width = width,
                                 .x = device_put(type, x, (gsize)n * width),
                                 .x_stride = width,
                                 .out = device_room((gsize)n * width),
                                 .scales = device_room(chunks * n * 4)};
    device_check(oct_cuda_quantise_mx_rows(queue, &call));
    quantise_twin(x, n, width, want, scales);
    device_read(got, call.scales, chunks * n * 4);
    g_assert_cmpmem(got, chunks * n * 4, scales, chunks * n * 4);
    g_autofree float *out = device_get(OCT_CUDA_FP8, call.out, (gsize)n * width);
    for (guint32 i = 0; i < n; i++)
      for (guint32 c = 0; c < width; c++) {
        gsize at = (gsize)i * width + c;
        float scaled = ldexpf(out[at], scales[((gsize)(c / 128) * n + i) * 4 + c % 128 / 32] - 127);
        g_assert_cmpfloat(scaled, ==, want[at]);
      }
  }
}

/* Codes and scales of n matrices, at random, and their values. */
static oct_cuda_matrix
make_weight(guint32 n, guint32 rows, guint32 columns, float *values) {
  static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  guint32 chunks = (columns + 127) / 128;
  oct_cuda_matrix m = {.format = OCT_CUDA_MATRIX_MXFP4_ROWS, .rows = rows, .columns = columns};
  g_assert_cmpuint(oct_cuda_matrix_bytes(&m), ==, (gsize)rows * chunks * 64);
  gsize size = n * oct_cuda_matrix_bytes(&m), sides = n * oct_cuda_matrix_scale_bytes(&m);
  g_autofree guint8 *codes = g_malloc0(size), *scales = g_malloc0(sides);
  for (gsize i = 0; i < (gsize)n * rows; i++)
    for (guint32 c = 0; c < columns; c++) {
      gsize at = ((i / rows * chunks + c / 128) * rows + i % rows) * 4 + c % 128 / 32;
      guint8 code = (guint8)g_test_rand_int_range(0, 16);
      if (c % 32 == 0)
        scales[at] = (guint8)g_test_rand_int_range(118, 131);
      codes[i * chunks * 64 + c / 2] |= (guint8)(code << 4 * (c % 2));
      float size_of = e2m1[code & 7];
      values[i * columns + c] = ldexpf(code & 8 ? -size_of : size_of, scales[at] - 127);
    }
  m.data = device_copy(codes, size);
  m.scales = device_copy(scales, sides);
  return m;
}

static void
multiply_twin(const float *w, guint32 rows, guint32 columns, const float *x, float *y) {
  const oct_matrix matrix = {.format = OCT_MATRIX_F32, .rows = rows, .columns = columns, .data = w};
  const oct_matmul twin = {
      .weight = &matrix, .x = x, .x_stride = columns, .m = 1, .y = y, .y_stride = rows};
  g_autofree float *scratch = g_new(float, OCT_REF_MATMUL_ROWS *columns);
  oct_ref_matmul(&twin, 0, rows, scratch);
}

/* One weight, and experts with few and many rows of x, through their slots. */
static void
check_products(const oct_cuda_queue *queue, guint32 tokens, guint32 n_experts, guint32 rows,
               guint32 columns, oct_cuda_type y_type) {
  guint32 top_k = n_experts > 0 ? 2 : 1, m = tokens * top_k, chunks = (columns + 127) / 128;
  guint32 n = MAX(n_experts, 1);
  g_autofree float *x = make_inputs(tokens, columns),
                   *values = g_new(float, (gsize)n *rows *columns);
  g_autofree float *rounded = g_new(float, (gsize)tokens *columns),
                   *want = g_new(float, (gsize)m *rows);
  g_autofree guint8 *scales = g_malloc((gsize)chunks * tokens * 4);
  g_autofree guint32 *experts = g_new0(guint32, m), *slots = data_pages(n, n);
  g_autofree guint32 *starts = g_new0(guint32, n + 1), *pair_of = g_new0(guint32, m);
  for (guint32 i = 0; i < m && n_experts > 0; i += top_k) {
    g_autofree guint32 *some = data_pages(top_k, n_experts);
    memcpy(experts + i, some, top_k * sizeof *some);
  }
  oct_cuda_pairs pairs = {.n = tokens,
                          .top_k = top_k,
                          .n_experts = n_experts,
                          .n_local = n_experts,
                          .experts = device_copy(experts, m * 4),
                          .starts = device_room((n + 1) * 4),
                          .pair_of = device_room(m * 4),
                          .row_of = device_room(m * 4)};
  if (n_experts > 0) {
    device_check(oct_cuda_sort_pairs(queue, &pairs));
    device_read(starts, pairs.starts, (n + 1) * 4);
    device_read(pair_of, pairs.pair_of, m * 4);
  } else {
    starts[1] = m;
    for (guint32 i = 0; i < m; i++)
      pair_of[i] = i;
  }
  oct_cuda_quantise_mx quantise = {.type = OCT_CUDA_BF16,
                                   .n = m,
                                   .width = columns,
                                   .pairs = n_experts > 0 ? &pairs : NULL,
                                   .x = device_put(OCT_CUDA_BF16, x, (gsize)tokens * columns),
                                   .x_stride = columns,
                                   .out = device_room((gsize)m * columns),
                                   .scales = device_room((gsize)chunks * m * 4)};
  device_check(oct_cuda_quantise_mx_rows(queue, &quantise));
  quantise_twin(x, tokens, columns, rounded, scales);
  oct_cuda_scaled_matmul call = {.weight = make_weight(n, rows, columns, values),
                                 .slots = n_experts > 0 ? device_copy(slots, n * 4) : NULL,
                                 .n_matrices = n,
                                 .pairs = quantise.pairs,
                                 .m = m,
                                 .x = quantise.out,
                                 .x_scales = quantise.scales,
                                 .y_type = y_type,
                                 .y = device_room_of(y_type, (gsize)m * rows),
                                 .y_stride = rows};
  device_check(oct_cuda_scaled_multiply(queue, &call));
  for (guint32 e = 0; e < n; e++)
    for (guint32 r = starts[e]; r < starts[e + 1]; r++)
      multiply_twin(values + (gsize)(n_experts > 0 ? slots[e] : 0) * rows * columns, rows, columns,
                    rounded + (gsize)(pair_of[r] / top_k) * columns, want + (gsize)r * rows);
  g_autofree float *out = device_get(y_type, call.y, (gsize)m * rows);
  device_expect("scaled", out, want, (gsize)m * rows, y_type == OCT_CUDA_F32 ? 1e-5 : 4e-3);
}

static void
test_products(void) {
  static const guint32 cases[][4] = {/* tokens, experts, rows, columns */
                                     {1, 0, 128, 128},  {13, 0, 200, 416}, {70, 0, 384, 1024},
                                     {300, 0, 72, 96},  {1, 8, 128, 256},  {9, 40, 140, 416},
                                     {90, 8, 256, 384}, {400, 6, 108, 640}};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(cases); i++) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
    const guint32 *c = cases[i / 2];
    if (queue == NULL)
      return;
    const oct_cuda_matrix weight = {
        .format = OCT_CUDA_MATRIX_MXFP4_ROWS, .rows = c[2], .columns = c[3]};
    if (!oct_cuda_scaled_can(queue, &weight)) {
      g_test_skip("no GPU with tensor memory (10.x)");
      return;
    }
    check_products(queue, c[0], c[1], c[2], c[3], i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_F32);
  }
}

/* Elsewhere it is not built, and says so. */
static void
test_elsewhere(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  oct_cuda_queue other = *queue;
  const oct_cuda_scaled_matmul call = {
      .weight = {.format = OCT_CUDA_MATRIX_MXFP4_ROWS, .rows = 128, .columns = 128},
      .m = 1,
      .y_type = OCT_CUDA_BF16};
  for (guint32 capability = 80; capability <= 120; capability += 10) {
    other.capability = capability;
    if (capability != 100)
      g_assert_cmpint(oct_cuda_scaled_multiply(&other, &call), ==, OCT_CUDA_UNSUPPORTED);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/scaled/quantises-blocks-as-the-twin", test_quantise);
  g_test_add_func("/cuda/scaled/multiplies-by-tensor-memory", test_products);
  g_test_add_func("/cuda/scaled/is-refused-elsewhere", test_elsewhere);
  return g_test_run();
}
