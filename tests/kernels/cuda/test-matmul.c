/* Matrix products of every format on every path. */
#include <string.h>

#include "kernels/reference/vector.h"
#include "tests/kernels/cuda/weights.h"

typedef struct matmul_case {
  weight_variant variant;
  oct_cuda_path path;
  oct_cuda_type y_type;
  guint32 m, rows, columns;
  gboolean bias, accumulate, gated;
} matmul_case;

static void
check(const oct_cuda_queue *queue, const matmul_case *c) {
  g_auto(weight) w = {0};
  oct_cuda_format format = c->variant.format;
  weight_make(queue, &w, c->variant, 1, c->rows, c->columns);
  oct_cuda_type type = format == OCT_CUDA_MATRIX_F32 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
  gsize x_size = (gsize)c->m * c->columns, y_size = (gsize)c->m * c->rows;
  const oct_glu_params glu = {.kind = OCT_GLU_SWIGLU};
  g_autofree float *x = data_normal(x_size, 1), *bias = data_normal(c->rows, 5);
  g_autofree float *before = data_normal(y_size, 5), *want = g_new0(float, y_size);
  void *d_bias = device_put(type, bias, c->rows), *y = device_room_of(c->y_type, y_size);
  if (c->accumulate)
    y = device_put(c->y_type, before, y_size);
  oct_cuda_matmul call = {.weight = w.matrix,
                          .accumulate = c->accumulate,
                          .path = c->path,
                          .x_type = type,
                          .y_type = c->y_type,
                          .m = c->m,
                          .x = device_put(type, x, x_size),
                          .x_stride = c->columns,
                          .bias = c->bias ? d_bias : NULL,
                          .glu = c->gated ? &glu : NULL,
                          .y = y,
                          .y_stride = c->gated ? c->rows / 2 : c->rows};
  device_check(oct_cuda_multiply(queue, device_blas(), &call));
  weight_multiply(&w, 0, x, c->m, c->bias ? bias : NULL, want, c->gated ? 2 : 1);
  guint32 rows = c->gated ? c->rows / 2 : c->rows;
  if (c->gated)
    weight_activate(&glu, c->m, c->rows, want);
  y_size = (gsize)c->m * rows;
  if (c->accumulate)
    oct_ref_add(want, before, y_size);
  g_autofree float *out = device_get(c->y_type, y, y_size);
  weight_keep_some(want, c->m, rows);
  y_size = weight_keep_some(out, c->m, rows);
  g_autofree char *name =
      g_strdup_printf("format %d/%u path %d y %d, %u x %u x %u", format, c->variant.group, c->path,
                      c->y_type, c->m, c->rows, c->columns);
  device_expect(name, out, want, y_size,
                weight_limit(c->y_type, c->variant, c->path, c->m,
                             c->path != OCT_CUDA_PATH_SKINNY && c->path != OCT_CUDA_PATH_STREAM &&
                                 (c->path != OCT_CUDA_PATH_CODES || c->m > 32)));
}

static void
test_blas(void) {
  static const guint32 sizes[][3] = {{1, 72, 72}, {33, 320, 72}, {7, 20, 40}, {200, 130, 264}};
  for (guint s = 0; s < G_N_ELEMENTS(sizes); s++)
    for (guint k = 0; k < 12; k++) {
      const oct_cuda_queue *queue = device_queue(0);
      if (queue == NULL)
        return;
      g_assert_nonnull(device_blas());
      check(queue, &(matmul_case){weight_variants[k % 3 == 0 ? 0 : 1], OCT_CUDA_PATH_BLAS,
                                  k % 3 == 1 ? OCT_CUDA_BF16 : OCT_CUDA_F32, sizes[s][0],
                                  sizes[s][1], sizes[s][2], k / 3 % 2 == 1, k / 6 == 1, FALSE});
    }
}

static void
test_own(void) {
  static const oct_cuda_path paths[] = {OCT_CUDA_PATH_SKINNY, OCT_CUDA_PATH_TILE};
  static const guint32 rows[] = {1, 8, 13, 31, 64, 150};
  for (guint f = 1; f < WEIGHT_VARIANTS; f++)
    for (guint p = 0; p < 2; p++)
      for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
        if (queue == NULL)
          return;
        if ((p == 0 && rows[i] > 64) || (device_quick() && i % 3 == 1))
          continue;
        guint32 columns = f == 1 ? 72 : weight_variants[f].group == 128 ? 384 : 320;
        columns += 1024 * (i % 2);
        check(queue, &(matmul_case){weight_variants[f], paths[p],
                                    i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_F32, rows[i],
                                    77 + 128 * i, columns, i % 3 == 1, i % 3 == 2, FALSE});
      }
}

/* So many rows that a block has several tiles of them. */
static void
test_tall(void) {
  for (guint f = 1; f < WEIGHT_VARIANTS; f += device_quick() ? 4 : 1) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
    if (queue == NULL)
      return;
    check(queue, &(matmul_case){weight_variants[f], OCT_CUDA_PATH_SKINNY, OCT_CUDA_F32,
                                device_quick() ? 1 : 3, 14001, 384, TRUE, FALSE, FALSE});
  }
}

/* Few rows on Hopper: blocks with one tile and with several, warps that share the inputs and that
 * do not, rows and inputs that end within a tile; gates and ups. */
static void
test_stream(void) {
  static const guint32 sizes[][2] = {{128, 64},   {72, 96},     {1000, 544}, {2112, 1056},
                                     {200, 4096}, {17000, 288}, {40000, 192}};
  static const guint32 rows[] = {1, 5, 8, 16, 27, 32};
  for (guint f = 1; f < WEIGHT_PLAIN; f++)
    for (guint s = 0; s < G_N_ELEMENTS(sizes); s++)
      for (guint i = s < 3 ? 0 : (f + s) % 3; i < G_N_ELEMENTS(rows); i += s < 3 ? 1 : 3) {
        const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
        if (queue == NULL)
          return;
        if (queue->capability != 90) {
          g_test_skip("no Hopper GPU");
          return;
        }
        if (device_quick() && (s >= 3 || i % 2 == 0))
          continue;
        guint32 group = MAX(weight_variants[f].group, f == 1 ? 32 : 64);
        guint32 columns = (sizes[s][1] + group - 1) / group * group;
        check(queue,
              &(matmul_case){weight_variants[f], OCT_CUDA_PATH_STREAM,
                             (s + i) % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_F32, rows[i], sizes[s][0],
                             columns, i % 3 == 1, i % 3 == 2 && i % 2 == 0, i % 2 == 1});
      }
}

/* Inputs that do not fill their chunks are refused. This needs no GPU. */
static void
test_open_chunks(void) {
  static const struct {
    oct_cuda_format format;
    guint32 columns;
  } cases[] = {{OCT_CUDA_MATRIX_BF16, 72},
               {OCT_CUDA_MATRIX_BF16, 104},
               {OCT_CUDA_MATRIX_FP8, 80},
               {OCT_CUDA_MATRIX_FP8, 96}};
  const oct_cuda_queue queue = {.sm_count = 132, .capability = 90, .shared_bytes = 227 << 10};
  const oct_cuda_pairs pairs = {.n = 1, .top_k = 1, .n_experts = 1, .n_local = 1};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    const oct_cuda_matrix w = {.format = cases[i].format, .rows = 64, .columns = cases[i].columns};
    const oct_cuda_matmul one = {.weight = w,
                                 .path = OCT_CUDA_PATH_STREAM,
                                 .x_type = OCT_CUDA_BF16,
                                 .y_type = OCT_CUDA_BF16,
                                 .m = 1,
                                 .x_stride = w.columns,
                                 .y_stride = w.rows};
    const oct_cuda_expert_matmul of_experts = {.type = OCT_CUDA_BF16,
                                               .y_type = OCT_CUDA_BF16,
                                               .path = OCT_CUDA_PATH_STREAM,
                                               .weight = w,
                                               .pairs = &pairs,
                                               .x_stride = w.columns,
                                               .y_stride = w.rows};
    g_assert_cmpint(oct_cuda_multiply(&queue, NULL, &one), ==, OCT_CUDA_UNSUPPORTED);
    g_assert_cmpint(oct_cuda_expert_multiply(&queue, &of_experts), ==, OCT_CUDA_UNSUPPORTED);
  }
}

/* Many rows on Hopper: tiles of tokens of every kind, rows and inputs that end within a tile. */
static void
test_wide(void) {
  static const guint32 rows[] = {1, 33, 64, 65, 130, 190, 192, 500};
  for (guint f = 1; f < WEIGHT_PLAIN; f++)
    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
      const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
      if (queue == NULL)
        return;
      if (queue->capability != 90) {
        g_test_skip("no Hopper GPU");
        return;
      }
      if (device_quick() && i % 2 == 1)
        continue;
      guint32 columns = f == 1 ? 72 : weight_variants[f].group == 128 ? 384 : 320;
      check(queue, &(matmul_case){weight_variants[f], OCT_CUDA_PATH_WIDE,
                                  i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_F32, rows[i],
                                  i % 3 == 0 ? 203 : 400, columns + 640 * (i % 2), i % 3 == 1,
                                  i % 3 == 2, FALSE});
    }
}

/* Weights of eight and four bits on Hopper: every width of the instruction, blocks with one tile
 * and with several, clusters that share the inputs, rows and inputs that end within a tile; gates
 * and ups; several groups of tokens. */
static void
test_codes(void) {
  static const guint32 sizes[][2] = {{128, 64},    {72, 96},     {1000, 544},  {200, 4096},
                                     {2112, 1056}, {4096, 2048}, {17000, 288}, {40000, 192}};
  static const guint32 rows[] = {1, 8, 13, 31, 45, 64, 90, 128, 155, 300};
  for (guint f = 2; f < WEIGHT_VARIANTS; f++)
    for (guint s = 0; s < G_N_ELEMENTS(sizes); s++)
      for (guint i = s < 3 ? 0 : (f + s) % 4; i < G_N_ELEMENTS(rows); i += s < 3 ? 1 : 4) {
        const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
        if (queue == NULL)
          return;
        if (queue->capability != 90) {
          g_test_skip("no Hopper GPU");
          return;
        }
        if (device_quick() && (s >= 3 || (s + i) % 2 == 0))
          continue;
        guint32 group = MAX(weight_variants[f].group, f < WEIGHT_PLAIN ? 16 : 32);
        guint32 columns = (sizes[s][1] + group - 1) / group * group;
        check(queue,
              &(matmul_case){weight_variants[f], OCT_CUDA_PATH_CODES,
                             (s + i) % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_F32, rows[i], sizes[s][0],
                             columns, i % 3 == 1, i % 3 == 2 && i % 2 == 0, i % 2 == 1});
      }
}

/* float32 and widths that are no multiple of a vector, on the own paths. */
static void
test_odd(void) {
  for (guint k = 0; k < 4; k++) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_FIXED_ORDER);
    if (queue == NULL)
      return;
    check(queue, &(matmul_case){weight_variants[k / 2], OCT_CUDA_PATH_AUTO,
                                k == 3 ? OCT_CUDA_BF16 : OCT_CUDA_F32, 5 + 40 * k, 33, 41 + k,
                                k == 1, k == 2, FALSE});
  }
}

/* Latent attention's absorption: per head the transpose of some rows, and the plain product. */
static void
test_batched(void) {
  for (guint k = 0; k < 8; k++) {
    const oct_cuda_queue *queue = device_queue(k / 4 == 0 ? 0 : OCT_CUDA_FIXED_ORDER);
    if (queue == NULL)
      return;
    guint32 heads = 4, inner = 24, lora = 32, m = 9;
    gboolean turned = k % 2 == 1;
    oct_cuda_type type = k / 2 % 2 == 1 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
    guint32 in = turned ? inner : lora, to = turned ? lora : inner;
    g_auto(weight) w = {0};
    weight_make(queue, &w, weight_variants[type == OCT_CUDA_F32 ? 0 : 1], heads, inner, lora);
    gsize x_size = (gsize)m * heads * in, y_size = (gsize)m * heads * to;
    g_autofree float *x = data_normal(x_size, 1), *want = g_new0(float, y_size);
    oct_cuda_matmul call = {.weight = w.matrix,
                            .transposed = turned,
                            .x_type = type,
                            .y_type = type,
                            .m = m,
                            .x = device_put(type, x, x_size),
                            .x_stride = (gsize)heads * in,
                            .y = device_room_of(type, y_size),
                            .y_stride = (gsize)heads * to,
                            .batch = heads,
                            .x_batch = in,
                            .w_batch = (gsize)inner * lora,
                            .y_batch = to};
    device_check(oct_cuda_multiply(queue, device_blas(), &call));
    for (guint32 i = 0; i < m; i++)
      for (guint32 h = 0; h < heads; h++)
        for (guint32 r = 0; r < inner; r++)
          for (guint32 c = 0; c < lora; c++) {
            gsize row = (gsize)i * heads + h;
            want[row * to + (turned ? c : r)] +=
                x[row * in + (turned ? r : c)] * w.values[((gsize)h * inner + r) * lora + c];
          }
    g_autofree float *out = device_get(type, call.y, y_size);
    device_expect(turned ? "transposed" : "batched", out, want, y_size,
                  type == OCT_CUDA_F32 ? 1e-5 : 3e-3);
  }
}

/* Several products have no bias, by whatever path. This needs no GPU. */
static void
test_no_bias(void) {
  const oct_cuda_queue queue = {.sm_count = 132, .capability = 90};
  const float bias = 0;
  oct_cuda_matmul call = {.weight = {.format = OCT_CUDA_MATRIX_F32, .rows = 8, .columns = 8},
                          .x_type = OCT_CUDA_F32,
                          .y_type = OCT_CUDA_F32,
                          .m = 1,
                          .bias = &bias,
                          .batch = 2};
  for (call.path = OCT_CUDA_PATH_AUTO; call.path <= OCT_CUDA_PATH_NARROW; call.path++)
    g_assert_cmpint(oct_cuda_multiply(&queue, NULL, &call), ==, OCT_CUDA_UNSUPPORTED);
}

/* Both sides with scales of rows. */
static void
test_fp8_inputs(void) {
  static const guint32 sizes[][3] = {{32, 128, 256}, {77, 144, 1040}, {1, 64, 128}};
  for (guint s = 0; s < G_N_ELEMENTS(sizes); s++) {
    const oct_cuda_queue *queue = device_queue(0);
    if (queue == NULL)
      return;
    if (queue->capability != 90) {
      g_test_skip("no Hopper GPU");
      return;
    }
    guint32 m = sizes[s][0], rows = sizes[s][1], columns = sizes[s][2];
    g_auto(weight) w = {0};
    weight_make(queue, &w, weight_variants[2], 1, rows, columns);
    gsize x_size = (gsize)m * columns, y_size = (gsize)m * rows;
    g_autofree float *x = data_normal(x_size, 10), *want = g_new(float, y_size);
    g_autofree float *scales = g_new(float, m);
    for (guint32 i = 0; i < m; i++)
      scales[i] = (float)g_test_rand_double_range(0.1, 0.5);
    oct_cuda_matmul call = {.weight = w.matrix,
                            .x_type = OCT_CUDA_FP8,
                            .y_type = OCT_CUDA_BF16,
                            .m = m,
                            .x = device_put(OCT_CUDA_FP8, x, x_size),
                            .x_stride = columns,
                            .x_scale = device_copy(scales, m * sizeof *scales),
                            .y = device_room_of(OCT_CUDA_BF16, y_size),
                            .y_stride = rows};
    device_check(oct_cuda_multiply(queue, device_blas(), &call));
    for (gsize i = 0; i < x_size; i++)
      x[i] *= scales[i / columns];
    weight_multiply(&w, 0, x, m, NULL, want, 1);
    g_autofree float *out = device_get(OCT_CUDA_BF16, call.y, y_size);
    device_expect("fp8 by fp8", out, want, y_size, 3e-3);
  }
}

/* With a fixed order a row has the same bits alone and among others. */
static void
test_fixed(void) {
  for (guint f = 1; f < WEIGHT_VARIANTS; f++) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_FIXED_ORDER);
    if (queue == NULL)
      return;
    guint32 m = 140, rows = 70, columns = 512;
    g_auto(weight) w = {0};
    weight_make(queue, &w, weight_variants[f], 1, rows, columns);
    g_autofree float *x = data_normal((gsize)m * columns, 1);
    oct_cuda_matmul call = {.weight = w.matrix,
                            .x_type = OCT_CUDA_BF16,
                            .y_type = OCT_CUDA_F32,
                            .m = m,
                            .x = device_put(OCT_CUDA_BF16, x, (gsize)m * columns),
                            .x_stride = columns,
                            .y = device_room_of(OCT_CUDA_F32, (gsize)m * rows),
                            .y_stride = rows};
    device_check(oct_cuda_multiply(queue, device_blas(), &call));
    g_autofree float *all = device_get(OCT_CUDA_F32, call.y, (gsize)m * rows);
    call.m = 1;
    call.x = (const char *)call.x + (gsize)(m - 1) * columns * 2;
    device_check(oct_cuda_multiply(queue, device_blas(), &call));
    g_autofree float *one = device_get(OCT_CUDA_F32, call.y, rows);
    g_assert_cmpmem(one, rows * 4, all + (gsize)(m - 1) * rows, rows * 4);
  }
}

/* ---------------------------------------------------------------- packed codes */

/* The same codes as each kind of checkpoint stores them. */
static void
test_pack(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  guint32 rows = 24, columns = 200;
  oct_cuda_matrix m = {.format = OCT_CUDA_MATRIX_MXFP4, .rows = rows, .columns = columns};
  gsize bytes = oct_cuda_matrix_bytes(&m);
  g_assert_cmpuint(bytes, ==, rows * 128);
  g_autofree guint8 *plain = g_malloc0(rows * columns / 2), *want = g_malloc0(bytes);
  g_autofree guint8 *floats = g_malloc0(bytes);
  g_autofree guint32 *awq = g_new0(guint32, columns * rows / 8);
  g_autofree guint32 *gptq = g_new0(guint32, columns / 8 * rows);
  static const guint8 place[] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (guint32 r = 0; r < rows; r++)
    for (guint32 c = 0; c < columns; c++) {
      guint32 code = g_test_rand_int() & 15, in = c % 128, i = in % 32 / 8, low = i / 2 * 8 + i % 2;
      gsize word = r * 128 + c / 128 * 64 + in % 8 / 2 * 16 + in / 32 * 4;
      plain[(r * columns + c) / 2] |= (guint8)(code << (c % 2 * 4));
      awq[c * (rows / 8) + r / 8] |= code << 4 * place[r % 8];
      gptq[c / 8 * rows + r] |= code << 4 * (c % 8);
      guint16 whole = (guint16)(code << 4 * i);
      guint16 parts = (guint16)((code & 7) << (low + i % 2 * 2) | code >> 3 << (low + 6));
      for (guint k = 0; k < 2; k++) {
        want[word + c % 2 * 2 + k] |= (guint8)(whole >> 8 * k);
        floats[word + c % 2 * 2 + k] |= (guint8)(parts >> 8 * k);
      }
    }
  const oct_cuda_packing calls[] = {
      {OCT_CUDA_CODES_ROWS, FALSE, rows, columns, device_copy(plain, rows * columns / 2),
       columns / 2, device_room(bytes)},
      {OCT_CUDA_CODES_AWQ, FALSE, rows, columns, device_copy(awq, rows * columns / 2), rows / 8,
       device_room(bytes)},
      {OCT_CUDA_CODES_GPTQ, FALSE, rows, columns, device_copy(gptq, rows * columns / 2), rows,
       device_room(bytes)},
      {OCT_CUDA_CODES_ROWS, TRUE, rows, columns, device_copy(plain, rows * columns / 2),
       columns / 2, device_room(bytes)}};
  for (guint i = 0; i < G_N_ELEMENTS(calls); i++) {
    g_autofree guint8 *got = g_malloc(bytes);
    device_check(oct_cuda_pack(queue, &calls[i]));
    device_read(got, calls[i].data, bytes);
    g_assert_cmpmem(got, bytes, calls[i].floats ? floats : want, bytes);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/matmul/cublaslt-of-odd-sizes", test_blas);
  g_test_add_func("/cuda/matmul/own-kernels-of-every-format", test_own);
  g_test_add_func("/cuda/matmul/several-tiles-a-block", test_tall);
  g_test_add_func("/cuda/matmul/few-rows-stream-the-weight", test_stream);
  g_test_add_func("/cuda/matmul/few-rows-fill-their-chunks", test_open_chunks);
  g_test_add_func("/cuda/matmul/many-rows-of-every-format", test_wide);
  g_test_add_func("/cuda/matmul/codes-become-operands-in-registers", test_codes);
  g_test_add_func("/cuda/matmul/sizes-that-no-vector-fits", test_odd);
  g_test_add_func("/cuda/matmul/batched-and-transposed", test_batched);
  g_test_add_func("/cuda/matmul/several-have-no-bias", test_no_bias);
  g_test_add_func("/cuda/matmul/fp8-by-fp8", test_fp8_inputs);
  g_test_add_func("/cuda/matmul/rows-do-not-depend-on-others", test_fixed);
  g_test_add_func("/cuda/matmul/packs-codes-of-every-kind", test_pack);
  return g_test_run();
}
