/* Operators that pass over memory once: embeddings, norms, activations, sums, conversions. */
#include "tests/kernels/cuda/device.h"

#include <math.h>

#include "kernels/reference/vector.h"

static const oct_cuda_type activations[] = {OCT_CUDA_F32, OCT_CUDA_BF16};

static double
limit_of(oct_cuda_type type) {
  return type == OCT_CUDA_F32 ? 1e-5 : 4e-3;
}

static void
test_convert(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  gsize n = 1000;
  g_autofree float *x = data_normal(n, 3);
  g_autofree float *rounded = g_memdup2(x, n * sizeof *x);
  device_put(OCT_CUDA_BF16, rounded, n);
  for (gsize i = 0; i < n; i++)
    g_assert_cmpfloat(rounded[i], ==, oct_ref_from_bf16(oct_ref_to_bf16(x[i])));
  float codes[] = {0.3f, 1000, -449, 0.001953125f, 17.5f, -0.0009f};
  const float e4m3[] = {0.3125f, 448, -448, 0.001953125f, 18, 0};
  device_put(OCT_CUDA_FP8, codes, G_N_ELEMENTS(codes));
  for (gsize i = 0; i < G_N_ELEMENTS(codes); i++)
    g_assert_cmpfloat(codes[i], ==, e4m3[i]);
}

static void
test_embed(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  static const guint32 widths[] = {1, 72, 333, 4096};
  for (guint w = 0; w < G_N_ELEMENTS(widths); w++) {
    guint32 rows = 50, width = widths[w], n = 17, ids[17];
    g_autofree float *table = data_normal((gsize)rows * width, 1);
    for (guint32 i = 0; i < n; i++)
      ids[i] = data_between(0, rows - 1);
    oct_cuda_embed call = {.table_type = OCT_CUDA_BF16,
                           .type = OCT_CUDA_F32,
                           .table = device_put(OCT_CUDA_BF16, table, (gsize)rows * width),
                           .rows = rows,
                           .width = width,
                           .ids = device_copy(ids, sizeof ids),
                           .n = n,
                           .out = device_room_of(OCT_CUDA_F32, (gsize)n * width)};
    device_check(oct_cuda_embed_rows(queue, &call));
    g_autofree float *out = device_get(OCT_CUDA_F32, call.out, (gsize)n * width);
    for (guint32 i = 0; i < n; i++)
      for (guint32 c = 0; c < width; c++)
        g_assert_cmpfloat(out[i * width + c], ==, table[ids[i] * width + c]);
  }
}

/* parts > 0: what is added comes in so many of float32, whose sum is rounded nowhere before the
 * norm. */
static void
check_norm(const oct_cuda_queue *queue, oct_cuda_type type, oct_cuda_type residual, guint32 parts,
           guint32 width) {
  guint32 n = 5, arrays = MAX(parts, 1);
  gsize size = (gsize)n * width;
  g_autofree float *x = data_normal(arrays * size, 1), *r = data_normal(size, 2);
  g_autofree float *weight = data_normal(width, 1), *want = g_new(float, size);
  oct_cuda_norm call = {.type = type,
                        .residual_type = residual,
                        .n = n,
                        .width = width,
                        .x = device_put(parts > 0 ? OCT_CUDA_F32 : type, x, arrays * size),
                        .x_stride = parts > 0 ? 0 : width,
                        .parts = parts,
                        .residual = device_put(residual, r, size),
                        .residual_stride = width,
                        .weight = device_put(type, weight, width),
                        .eps = 1e-5f,
                        .out = device_room_of(type, size),
                        .out_stride = width};
  device_check(oct_cuda_rms_norm(queue, &call));
  for (guint32 p = 1; p < parts; p++)
    oct_ref_add(x, x + p * size, size);
  oct_ref_add(r, x, size);
  oct_ref_rms_norm(r, weight, n, width, width, 1e-5f, want);
  g_autofree float *out = device_get(type, call.out, size);
  g_autofree float *sum = device_get(residual, call.residual, size);
  device_expect(parts > 0 ? "norm of parts" : "norm", out, want, size, limit_of(type));
  device_expect("residual", sum, r, size, limit_of(residual));
}

static void
test_norm(void) {
  const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
  if (queue == NULL)
    return;
  static const guint32 widths[] = {8, 20, 72, 333, 4096, 5000, 16384};
  for (guint w = 0; w < G_N_ELEMENTS(widths); w++)
    for (guint t = 0; t < 2; t++)
      for (guint r = 0; r < 2; r++)
        check_norm(queue, activations[t], activations[r], 0, widths[w]);
}

static void
test_norm_of_parts(void) {
  const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
  if (queue == NULL)
    return;
  static const guint32 widths[] = {8, 20, 333, 4096, 5000};
  for (guint w = 0; w < G_N_ELEMENTS(widths); w++)
    for (guint t = 0; t < 2; t++)
      for (guint32 parts = 1; parts <= 4; parts++)
        check_norm(queue, activations[t], OCT_CUDA_F32, parts, widths[w]);
}

/* Heads of a row, in place, without residual. */
static void
test_norm_heads(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  for (guint t = 0; t < 2; t++) {
    guint32 n = 7, heads = 5, width = 24;
    gsize size = (gsize)n * heads * width;
    g_autofree float *x = data_normal(size, 1), *weight = data_normal(width, 1);
    void *d = device_put(activations[t], x, size);
    oct_cuda_norm call = {.type = activations[t],
                          .n = n,
                          .heads = heads,
                          .width = width,
                          .x = d,
                          .x_stride = (gsize)heads * width,
                          .weight = device_put(activations[t], weight, width),
                          .eps = 1e-6f,
                          .out = d,
                          .out_stride = (gsize)heads * width};
    device_check(oct_cuda_rms_norm(queue, &call));
    oct_ref_rms_norm(x, weight, n * heads, width, width, 1e-6f, x);
    g_autofree float *out = device_get(activations[t], d, size);
    device_expect("norm of heads", out, x, size, limit_of(activations[t]));
  }
}

static void
check_glu(const oct_cuda_queue *queue, oct_cuda_type type, oct_glu_params params, gboolean pairs,
          guint32 inner) {
  guint32 n = 6;
  gsize size = (gsize)n * 2 * inner;
  g_autofree float *x = data_normal(size, 3), *want = g_new(float, size / 2);
  oct_cuda_glu call = {.type = type,
                       .params = params,
                       .pairs = pairs,
                       .n = n,
                       .inner = inner,
                       .x = device_put(type, x, size),
                       .x_stride = 2 * inner,
                       .out = device_room_of(type, size / 2),
                       .out_stride = inner};
  device_check(oct_cuda_glu_rows(queue, &call));
  for (guint32 i = 0; i < n; i++)
    oct_ref_glu(&params, x + (gsize)i * 2 * inner, x + (gsize)i * 2 * inner + (pairs ? 1 : inner),
                pairs ? 2 : 1, inner, want + (gsize)i * inner);
  g_autofree float *out = device_get(type, call.out, size / 2);
  device_expect("glu", out, want, size / 2, limit_of(type));
}

static void
test_glu(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  static const oct_glu_params kinds[] = {{.kind = OCT_GLU_SWIGLU},
                                         {.kind = OCT_GLU_CLAMPED, .alpha = 1.702f, .limit = 4},
                                         {.kind = OCT_GLU_SITU, .alpha = 4, .limit = 25}};
  static const guint32 widths[] = {3, 48, 1000};
  for (guint k = 0; k < G_N_ELEMENTS(kinds); k++)
    for (guint w = 0; w < G_N_ELEMENTS(widths); w++)
      for (guint t = 0; t < 2; t++)
        for (guint pairs = 0; pairs < 2; pairs++)
          check_glu(queue, activations[t], kinds[k], pairs, widths[w]);
}

static void
test_add(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  guint32 n = 9, width = 77;
  gsize size = (gsize)n * width;
  g_autofree float *x = data_normal(size, 1), *y = data_normal(size, 1);
  g_autofree float *bias = data_normal(width, 1), *gate = data_normal(n, 1);
  oct_cuda_add call = {.type = OCT_CUDA_BF16,
                       .y_type = OCT_CUDA_F32,
                       .n = n,
                       .width = width,
                       .bias = device_put(OCT_CUDA_BF16, bias, width),
                       .y = device_put(OCT_CUDA_F32, y, size),
                       .y_stride = width};
  device_check(oct_cuda_add_rows(queue, &call));
  call.x = device_put(OCT_CUDA_BF16, x, size);
  call.x_stride = width;
  call.row_gate = device_put(OCT_CUDA_F32, gate, n);
  device_check(oct_cuda_add_rows(queue, &call));
  for (gsize i = 0; i < size; i++)
    y[i] += bias[i % width] + x[i] / (1 + expf(-gate[i / width]));
  g_autofree float *out = device_get(OCT_CUDA_F32, call.y, size);
  device_expect("sum", out, y, size, 1e-6);
}

/* A norm quantises what it gives as the other kernel would, bit by bit. */
static void
test_norm_quantises(void) {
  static const guint32 widths[] = {8, 20, 333, 4096, 16384};
  for (guint k = 0; k < 2 * G_N_ELEMENTS(widths); k++) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
    if (queue == NULL)
      return;
    oct_cuda_type type = activations[k % 2];
    guint32 n = 7, width = widths[k / 2];
    gsize size = (gsize)n * width;
    g_autofree float *x = data_normal(size, 1), *r = data_normal(size, 2);
    g_autofree float *weight = data_normal(width, 1);
    const oct_cuda_norm norm = {.type = type,
                                .residual_type = OCT_CUDA_F32,
                                .n = n,
                                .width = width,
                                .x = device_put(type, x, size),
                                .x_stride = width,
                                .residual = device_put(OCT_CUDA_F32, r, size),
                                .residual_stride = width,
                                .weight = device_put(type, weight, width),
                                .eps = 1e-5f,
                                .out = device_room_of(type, size),
                                .out_stride = width,
                                .narrow = device_room(size),
                                .narrow_scale = device_room(n * sizeof(float))};
    device_check(oct_cuda_rms_norm(queue, &norm));
    oct_cuda_quantise call = {.type = type,
                              .n = n,
                              .width = width,
                              .x = norm.out,
                              .x_stride = width,
                              .scale = device_room(n * sizeof(float)),
                              .out = device_room(size)};
    device_check(oct_cuda_quantise_fp8(queue, &call));
    float scales[2][7];
    g_autofree guint8 *out = g_malloc(size), *want = g_malloc(size);
    device_read(scales[0], norm.narrow_scale, sizeof scales[0]);
    device_read(scales[1], call.scale, sizeof scales[1]);
    device_read(out, norm.narrow, size);
    device_read(want, call.out, size);
    g_assert_cmpmem(scales[0], sizeof scales[0], scales[1], sizeof scales[1]);
    g_assert_cmpmem(out, size, want, size);
    oct_ref_add(r, x, size);
    g_autofree float *twin = g_new(float, size);
    oct_ref_rms_norm(r, weight, n, width, width, 1e-5f, twin);
    g_autofree float *values = device_get(OCT_CUDA_FP8, norm.narrow, size);
    for (gsize i = 0; i < size; i++)
      values[i] *= scales[0][i / width];
    device_expect("quantised norm", values, twin, size, DEVICE_FP8_ERROR);
  }
}

static void
test_quantise(void) {
  static const guint32 widths[] = {130, 4096};
  for (guint k = 0; k < G_N_ELEMENTS(widths); k++) {
    const oct_cuda_queue *queue = device_queue(0);
    if (queue == NULL)
      return;
    guint32 n = 5, width = widths[k];
    gsize size = (gsize)n * width;
    g_autofree float *x = data_normal(size, 2);
    float scales[5];
    oct_cuda_quantise call = {.type = OCT_CUDA_BF16,
                              .n = n,
                              .width = width,
                              .x = device_put(OCT_CUDA_BF16, x, size),
                              .x_stride = width,
                              .scale = device_room(sizeof scales),
                              .out = device_room(size)};
    device_check(oct_cuda_quantise_fp8(queue, &call));
    device_read(scales, call.scale, sizeof scales);
    g_autofree float *out = device_get(OCT_CUDA_FP8, call.out, size);
    for (guint32 i = 0; i < n; i++) {
      float most = 0;
      for (guint32 c = 0; c < width; c++) {
        most = fmaxf(most, fabsf(x[(gsize)i * width + c]));
        out[(gsize)i * width + c] *= scales[i];
      }
      g_assert_cmpfloat_with_epsilon(scales[i], most / 448, most * 1e-7);
    }
    device_expect("fp8", out, x, size, DEVICE_FP8_ERROR);
  }
}

static void
check_gated_norm(const oct_cuda_queue *queue, oct_cuda_type type, guint32 width, guint32 first) {
  guint32 n = 5, heads = 3;
  gsize size = (gsize)n * heads * width, left = (gsize)first * heads * width;
  g_autofree float *x = data_normal(size, 1), *gate = data_normal(size, 1);
  g_autofree float *weight = data_normal(width, 1);
  void *d = device_put(type, x, size);
  oct_cuda_gated_norm call = {.type = type,
                              .n = n,
                              .heads = heads,
                              .width = width,
                              .first = first > 0 ? device_copy(&first, sizeof first) : NULL,
                              .x = d,
                              .gate = device_put(type, gate, size),
                              .weight = device_put(type, weight, width),
                              .x_stride = (gsize)heads * width,
                              .gate_stride = (gsize)heads * width,
                              .eps = 1e-5f,
                              .out = d,
                              .out_stride = (gsize)heads * width};
  device_check(oct_cuda_gated_rms_norm(queue, &call));
  oct_ref_rms_norm(x + left, weight, (n - first) * heads, width, width, 1e-5f, x + left);
  oct_ref_sigmoid_gate(x + left, gate + left, size - left);
  g_autofree float *out = device_get(type, d, size);
  device_expect("gated norm", out + left, x + left, size - left, limit_of(type));
  g_assert_cmpmem(out, left * sizeof *out, x, left * sizeof *x);
}

static void
test_gated_norm(void) {
  static const guint32 widths[] = {40, 64, 77, 128, 200};
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  for (guint i = 0; i < 4 * G_N_ELEMENTS(widths); i++)
    check_gated_norm(queue, activations[i % 2], widths[i / 4], i / 2 % 2 * 2);
}

static void
test_gate(void) {
  static const guint32 widths[] = {3, 136, 12288};
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  for (guint i = 0; i < 2 * G_N_ELEMENTS(widths); i++) {
    guint32 n = 7, width = widths[i / 2];
    gsize size = (gsize)n * width;
    g_autofree float *x = data_normal(size, 1), *gate = data_normal(size, 3);
    const oct_cuda_gate call = {.type = activations[i % 2],
                                .n = n,
                                .width = width,
                                .x = device_put(activations[i % 2], x, size),
                                .gate = device_put(activations[i % 2], gate, size),
                                .x_stride = width,
                                .gate_stride = width};
    device_check(oct_cuda_sigmoid_gate(queue, &call));
    oct_ref_sigmoid_gate(x, gate, size);
    g_autofree float *out = device_get(activations[i % 2], call.x, size);
    device_expect("gate", out, x, size, limit_of(activations[i % 2]));
  }
}

/* SiTU over gates and ups of all sizes, element by element: no rounding hides behind larger ones.
 */
static void
test_situ_everywhere(void) {
  enum { SIDE = 401 };
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  const oct_glu_params situ = {.kind = OCT_GLU_SITU, .alpha = 4, .limit = 25};
  gsize n = (gsize)SIDE * SIDE;
  g_autofree float *x = g_new(float, 2 * n);
  for (gsize i = 0; i < n; i++) {
    float g = ((float)(i / SIDE) - 200) / 200, u = ((float)(i % SIDE) - 200) / 200;
    x[2 * i] = 60 * g * g * g;
    x[2 * i + 1] = 300 * u * u * u;
  }
  const oct_cuda_glu call = {.type = OCT_CUDA_F32,
                             .params = situ,
                             .pairs = true,
                             .n = SIDE,
                             .inner = SIDE,
                             .x = device_copy(x, 2 * n * sizeof *x),
                             .x_stride = 2 * SIDE,
                             .out = device_room_of(OCT_CUDA_F32, n),
                             .out_stride = SIDE};
  device_check(oct_cuda_glu_rows(queue, &call));
  g_autofree float *out = device_get(OCT_CUDA_F32, call.out, n), *want = g_new(float, n);
  oct_ref_glu(&situ, x, x + 1, 2, (guint32)n, want);
  for (gsize i = 0; i < n; i++)
    g_assert_cmpfloat_with_epsilon(out[i], want[i], 1e-30f + 5e-6f * fabsf(want[i]));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/dense/conversions-round-as-the-types-do", test_convert);
  g_test_add_func("/cuda/dense/embeds-rows-of-any-width", test_embed);
  g_test_add_func("/cuda/dense/norms-the-residual-sum", test_norm);
  g_test_add_func("/cuda/dense/norms-heads-in-place", test_norm_heads);
  g_test_add_func("/cuda/dense/sums-up-the-parts-of-what-it-adds", test_norm_of_parts);
  g_test_add_func("/cuda/dense/activates-gates", test_glu);
  g_test_add_func("/cuda/dense/adds-biases-and-gated-rows", test_add);
  g_test_add_func("/cuda/dense/norm-quantises", test_norm_quantises);
  g_test_add_func("/cuda/dense/quantises-each-row-by-its-largest", test_quantise);
  g_test_add_func("/cuda/dense/norms-and-gates-heads", test_gated_norm);
  g_test_add_func("/cuda/dense/gates-rows", test_gate);
  g_test_add_func("/cuda/dense/situ-is-exact-at-every-size", test_situ_everywhere);
  return g_test_run();
}
