/* Matrix products of every format on every path, and those of experts. */
#include "tests/kernels/cuda/device.h"

#include <math.h>
#include <string.h>

#include "kernels/reference/vector.h"

/* A weight in a format, and its values. */
typedef struct weight {
  oct_cuda_matrix matrix;
  float *values; /* [n, rows, columns] */
} weight;

static void
weight_clear(weight *w) {
  g_free(w->values);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(weight, weight_clear)

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

/* Formats, and the groups of INT4. */
typedef struct variant {
  oct_cuda_format format;
  guint32 group;
} variant;
static const variant variants[] = {{OCT_CUDA_MATRIX_F32, 0},   {OCT_CUDA_MATRIX_BF16, 0},
                                   {OCT_CUDA_MATRIX_FP8, 0},   {OCT_CUDA_MATRIX_FP8_BLOCK, 0},
                                   {OCT_CUDA_MATRIX_MXFP4, 0}, {OCT_CUDA_MATRIX_INT4, 128},
                                   {OCT_CUDA_MATRIX_INT4, 64}, {OCT_CUDA_MATRIX_INT4, 32}};
#define N_VARIANTS G_N_ELEMENTS(variants)
#define N_PLAIN    4 /* the first, that are not packed */

static void
weight_make(const oct_cuda_queue *queue, weight *w, variant v, guint32 n, guint32 rows,
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

/* Of y[m, rows] what the twin makes, to the front; its size. */
static gsize
keep_some(float *y, guint32 m, guint32 rows) {
  gsize n = 0;
  for (guint32 i = 0; i < m; i++)
    for (guint k = 0; k < 3; k++) {
      guint32 from = some_begin(rows, k), size = some_end(rows, k) - from;
      memmove(y + n, y + (gsize)i * rows + from, size * sizeof *y);
      n += size;
    }
  return n;
}

/* y of expert or matrix e, by the twin: some rows of each of its `parts`. */
static void
multiply_twin(const weight *w, guint32 e, const float *x, guint32 m, const float *bias, float *y,
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
static double
limit_of(oct_cuda_type y, variant v, oct_cuda_path path, guint32 m, gboolean scaled) {
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

typedef struct matmul_case {
  variant variant;
  oct_cuda_path path;
  oct_cuda_type y_type;
  guint32 m, rows, columns;
  gboolean bias, accumulate, gated;
} matmul_case;

/* Rows of gates and of ups to what the activation makes of them. */
static void
activate(const oct_glu_params *glu, guint32 m, guint32 rows, float *y) {
  for (guint32 i = 0; i < m; i++) {
    float *row = y + (gsize)i * rows;
    g_autofree float *out = g_new(float, rows / 2);
    oct_ref_glu(glu, row, row + rows / 2, 1, rows / 2, out);
    memmove(y + (gsize)i * (rows / 2), out, rows / 2 * sizeof *out);
  }
}

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
  multiply_twin(&w, 0, x, c->m, c->bias ? bias : NULL, want, c->gated ? 2 : 1);
  guint32 rows = c->gated ? c->rows / 2 : c->rows;
  if (c->gated)
    activate(&glu, c->m, c->rows, want);
  y_size = (gsize)c->m * rows;
  if (c->accumulate)
    oct_ref_add(want, before, y_size);
  g_autofree float *out = device_get(c->y_type, y, y_size);
  keep_some(want, c->m, rows);
  y_size = keep_some(out, c->m, rows);
  g_autofree char *name =
      g_strdup_printf("format %d/%u path %d y %d, %u x %u x %u", format, c->variant.group, c->path,
                      c->y_type, c->m, c->rows, c->columns);
  device_expect(name, out, want, y_size,
                limit_of(c->y_type, c->variant, c->path, c->m,
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
      check(queue, &(matmul_case){variants[k % 3 == 0 ? 0 : 1], OCT_CUDA_PATH_BLAS,
                                  k % 3 == 1 ? OCT_CUDA_BF16 : OCT_CUDA_F32, sizes[s][0],
                                  sizes[s][1], sizes[s][2], k / 3 % 2 == 1, k / 6 == 1, FALSE});
    }
}

static void
test_own(void) {
  static const oct_cuda_path paths[] = {OCT_CUDA_PATH_SKINNY, OCT_CUDA_PATH_TILE};
  static const guint32 rows[] = {1, 8, 13, 31, 64, 150};
  for (guint f = 1; f < N_VARIANTS; f++)
    for (guint p = 0; p < 2; p++)
      for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
        if (queue == NULL)
          return;
        if ((p == 0 && rows[i] > 64) || (device_quick() && i % 3 == 1))
          continue;
        guint32 columns = f == 1 ? 72 : variants[f].group == 128 ? 384 : 320;
        columns += 1024 * (i % 2);
        check(queue,
              &(matmul_case){variants[f], paths[p], i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_F32,
                             rows[i], 77 + 128 * i, columns, i % 3 == 1, i % 3 == 2, FALSE});
      }
}

/* So many rows that a block has several tiles of them. */
static void
test_tall(void) {
  for (guint f = 1; f < N_VARIANTS; f += device_quick() ? 4 : 1) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
    if (queue == NULL)
      return;
    check(queue, &(matmul_case){variants[f], OCT_CUDA_PATH_SKINNY, OCT_CUDA_F32,
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
  for (guint f = 1; f < N_PLAIN; f++)
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
        guint32 group = MAX(variants[f].group, 8);
        guint32 columns = (sizes[s][1] + group - 1) / group * group;
        check(queue,
              &(matmul_case){variants[f], OCT_CUDA_PATH_STREAM,
                             (s + i) % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_F32, rows[i], sizes[s][0],
                             columns, i % 3 == 1, i % 3 == 2 && i % 2 == 0, i % 2 == 1});
      }
}

/* Many rows on Hopper: tiles of tokens of every kind, rows and inputs that end within a tile. */
static void
test_wide(void) {
  static const guint32 rows[] = {1, 33, 64, 65, 130, 190, 192, 500};
  for (guint f = 1; f < N_PLAIN; f++)
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
      guint32 columns = f == 1 ? 72 : variants[f].group == 128 ? 384 : 320;
      check(queue, &(matmul_case){variants[f], OCT_CUDA_PATH_WIDE,
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
  for (guint f = 2; f < N_VARIANTS; f++)
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
        guint32 group = MAX(variants[f].group, f < N_PLAIN ? 16 : 32);
        guint32 columns = (sizes[s][1] + group - 1) / group * group;
        check(queue,
              &(matmul_case){variants[f], OCT_CUDA_PATH_CODES,
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
    check(queue,
          &(matmul_case){variants[k / 2], OCT_CUDA_PATH_AUTO, k == 3 ? OCT_CUDA_BF16 : OCT_CUDA_F32,
                         5 + 40 * k, 33, 41 + k, k == 1, k == 2, FALSE});
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
    weight_make(queue, &w, variants[type == OCT_CUDA_F32 ? 0 : 1], heads, inner, lora);
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
    weight_make(queue, &w, variants[2], 1, rows, columns);
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
    multiply_twin(&w, 0, x, m, NULL, want, 1);
    g_autofree float *out = device_get(OCT_CUDA_BF16, call.y, y_size);
    device_expect("fp8 by fp8", out, want, y_size, 3e-3);
  }
}

/* With a fixed order a row has the same bits alone and among others. */
static void
test_fixed(void) {
  for (guint f = 1; f < N_VARIANTS; f++) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_FIXED_ORDER);
    if (queue == NULL)
      return;
    guint32 m = 140, rows = 70, columns = 512;
    g_auto(weight) w = {0};
    weight_make(queue, &w, variants[f], 1, rows, columns);
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

/* ---------------------------------------------------------------- experts */

typedef struct expert_case {
  variant variant;
  guint32 n, n_experts, top_k, first, local, rows, columns;
  gboolean gather, bias, gated;
  guint n_paths;
  oct_cuda_path paths[5];
} expert_case;

static void
check_experts(const oct_cuda_queue *queue, const expert_case *c) {
  oct_cuda_type type = c->variant.format == OCT_CUDA_MATRIX_F32 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
  guint32 n_pairs = c->n * c->top_k;
  g_autofree guint32 *experts = g_new(guint32, n_pairs);
  for (guint32 i = 0; i < c->n; i++) {
    g_autofree guint32 *some = data_pages(c->top_k, c->n_experts);
    memcpy(experts + (gsize)i * c->top_k, some, c->top_k * sizeof *some);
  }
  oct_cuda_pairs pairs = {.n = c->n,
                          .top_k = c->top_k,
                          .n_experts = c->n_experts,
                          .first_expert = c->first,
                          .n_local = c->local,
                          .experts = device_copy(experts, n_pairs * sizeof *experts),
                          .starts = device_room((c->local + 1) * 4),
                          .pair_of = device_room(n_pairs * 4),
                          .row_of = device_room(n_pairs * 4)};
  device_check(oct_cuda_sort_pairs(queue, &pairs));
  g_auto(weight) w = {0};
  weight_make(queue, &w, c->variant, c->local, c->rows, c->columns);
  guint32 x_rows = c->gather ? c->n : n_pairs;
  g_autofree float *x = data_normal((gsize)x_rows * c->columns, 1);
  g_autofree float *bias = data_normal((gsize)c->local * c->rows, 5);
  void *d_bias = device_put(type, bias, (gsize)c->local * c->rows);
  g_autofree guint32 *slots = data_pages(c->local, c->local);
  oct_cuda_type y_type = c->bias ? OCT_CUDA_F32 : type;
  oct_cuda_expert_matmul call = {.type = type,
                                 .y_type = y_type,
                                 .weight = w.matrix,
                                 .slots = device_copy(slots, c->local * sizeof *slots),
                                 .n_matrices = c->local,
                                 .pairs = &pairs,
                                 .gather = c->gather,
                                 .bias = c->bias ? d_bias : NULL,
                                 .x = device_put(type, x, (gsize)x_rows * c->columns),
                                 .x_stride = c->columns,
                                 .y_stride = c->rows};
  g_autofree guint32 *starts = g_new(guint32, c->local + 1), *pair_of = g_new(guint32, n_pairs);
  device_read(starts, pairs.starts, (c->local + 1) * 4);
  device_read(pair_of, pairs.pair_of, n_pairs * 4);
  guint32 here = starts[c->local];
  g_autofree float *want = g_new(float, (gsize)n_pairs * c->rows + 1);
  for (guint32 e = 0; e < c->local; e++)
    for (guint32 r = starts[e]; r < starts[e + 1]; r++) {
      g_assert_cmpuint(experts[pair_of[r]], ==, c->first + e);
      multiply_twin(&w, slots[e], x + (gsize)(c->gather ? pair_of[r] / c->top_k : r) * c->columns,
                    1, c->bias ? bias + (gsize)e * c->rows : NULL, want + (gsize)r * c->rows, 1);
    }
  const oct_glu_params glu = {.kind = OCT_GLU_SITU, .alpha = 4, .limit = 25};
  gsize rows = c->rows;
  if (c->gated) {
    activate(&glu, here, c->rows, want);
    call.glu = &glu;
    call.y_stride = rows /= 2;
  }
  for (guint i = 0; i < c->n_paths; i++) {
    call.path = c->paths[i];
    call.y = device_room_of(y_type, n_pairs * rows);
    device_check(oct_cuda_expert_multiply(queue, &call));
    g_autofree float *out = device_get(y_type, call.y, n_pairs * rows);
    g_autofree char *name =
        g_strdup_printf("experts, format %d/%u path %d, %u tokens, %u x %u", c->variant.format,
                        c->variant.group, call.path, c->n, c->rows, c->columns);
    device_expect(name, out, want, here * rows, limit_of(y_type, c->variant, call.path, 1, TRUE));
  }
}

static void
test_experts(void) {
  for (guint f = 0; f < N_VARIANTS; f++)
    for (guint k = 0; k < 5; k++) {
      const oct_cuda_queue *queue = device_queue(k == 4 ? OCT_CUDA_FIXED_ORDER : 0);
      if (queue == NULL)
        return;
      static const guint32 tokens[] = {1, 5, 100, 700, 30};
      if (device_quick() && k == 3)
        continue;
      gboolean is_plain = f <= 1;
      check_experts(queue, &(expert_case){variants[f],
                                          tokens[k],
                                          8,
                                          3,
                                          k == 2 ? 2 : 0,
                                          k == 2 ? 4 : 8,
                                          48 + 20 * (k % 2),
                                          is_plain ? 72 : 384,
                                          k % 2 == 0,
                                          k > 2,
                                          FALSE,
                                          1,
                                          {OCT_CUDA_PATH_AUTO}});
    }
}

/* Each own kernel for experts, with few tokens and with more than its tiles take; experts without
 * tokens between others, and many tokens of some. */
static void
test_expert_paths(void) {
  static const guint32 tokens[] = {1, 9, 90, 400};
  for (guint f = 1; f < N_VARIANTS; f++)
    for (guint i = 0; i < G_N_ELEMENTS(tokens); i++) {
      const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
      if (queue == NULL)
        return;
      if (device_quick() && i == 1)
        continue;
      expert_case c = {.variant = variants[f],
                       .n = tokens[i],
                       .n_experts = i == 3 ? 6 : 40,
                       .top_k = 4,
                       .local = i == 3 ? 6 : 40,
                       .rows = i == 1 ? 140 : 108,
                       .columns = i % 2 == 0 ? 384 : 640,
                       .gather = i % 2 == 0,
                       .bias = i == 2,
                       .paths = {OCT_CUDA_PATH_SKINNY, OCT_CUDA_PATH_TILE}};
      c.n_paths = 2;
      if (queue->capability == 90 && f < N_PLAIN) {
        c.paths[c.n_paths++] = OCT_CUDA_PATH_STREAM;
        c.paths[c.n_paths++] = OCT_CUDA_PATH_WIDE;
      }
      if (queue->capability == 90 && f > 1)
        c.paths[c.n_paths++] = OCT_CUDA_PATH_CODES;
      check_experts(queue, &c);
      if (queue->capability != 90 || f < 2)
        continue;
      c.rows = i == 1 ? 136 : 112;
      c.gated = TRUE;
      c.n_paths = 1;
      c.paths[0] = OCT_CUDA_PATH_CODES;
      queue = device_queue(OCT_CUDA_OVERLAP);
      check_experts(queue, &c);
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
  g_test_add_func("/cuda/matmul/many-rows-of-every-format", test_wide);
  g_test_add_func("/cuda/matmul/codes-become-operands-in-registers", test_codes);
  g_test_add_func("/cuda/matmul/sizes-that-no-vector-fits", test_odd);
  g_test_add_func("/cuda/matmul/batched-and-transposed", test_batched);
  g_test_add_func("/cuda/matmul/fp8-by-fp8", test_fp8_inputs);
  g_test_add_func("/cuda/matmul/rows-do-not-depend-on-others", test_fixed);
  g_test_add_func("/cuda/matmul/experts-of-every-format", test_experts);
  g_test_add_func("/cuda/matmul/experts-by-every-kernel", test_expert_paths);
  g_test_add_func("/cuda/matmul/packs-codes-of-every-kind", test_pack);
  return g_test_run();
}
