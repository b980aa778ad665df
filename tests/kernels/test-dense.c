/* Rows, products, norms and gated activations against float64 on random data of odd sizes. */
#include <math.h>
#include <string.h>

#include "tests/kernels/data.h"

static const oct_matrix_format formats[] = {OCT_MATRIX_F32, OCT_MATRIX_BF16, OCT_MATRIX_ROWS};

/* y[m, rows] of x[m, columns] in float64. */
static double *
exact_product(const data_matrix *w, const float *bias, const float *x, gsize x_stride, guint32 m) {
  guint32 rows = w->matrix.rows, columns = w->matrix.columns;
  double *y = g_new0(double, (gsize)m *rows);
  for (guint32 i = 0; i < m; i++)
    for (guint32 r = 0; r < rows; r++) {
      double sum = bias != NULL ? bias[r] : 0;
      for (guint32 c = 0; c < columns; c++)
        sum += (double)x[i * x_stride + c] * w->values[(gsize)r * columns + c];
      y[(gsize)i * rows + r] = sum;
    }
  return y;
}

static void
products_of_odd_sizes(void) {
  static const guint32 sizes[][3] = {/* m, rows, columns */
                                     {1, 1, 1},   {1, 5, 15},   {3, 17, 16},  {2, 4, 33},
                                     {7, 33, 64}, {4, 16, 100}, {13, 61, 577}};
  for (gsize f = 0; f < G_N_ELEMENTS(formats); f++)
    for (gsize s = 0; s < G_N_ELEMENTS(sizes); s++) {
      guint32 m = sizes[s][0], rows = sizes[s][1], columns = sizes[s][2];
      gsize stride = columns + 3;
      g_autoptr(data_matrix) w = data_matrix_new(formats[f], rows, columns, 1);
      g_autofree float *x = data_normal(m * stride, 1), *bias = data_normal(rows, 1);
      g_autofree float *y = g_new0(float, (gsize)m *rows);
      g_autofree float *scratch = g_new(float, OCT_REF_MATMUL_ROWS *columns);
      const float *added = s % 2 == 0 ? bias : NULL;
      oct_matmul call = {.weight = &w->matrix,
                         .bias = added,
                         .x = x,
                         .x_stride = stride,
                         .m = m,
                         .y = y,
                         .y_stride = rows};
      /* In two parts, as two threads would. */
      guint32 first = data_between(0, rows);
      oct_ref_matmul(&call, first, rows - first, scratch);
      oct_ref_matmul(&call, 0, first, scratch);
      g_autofree double *exact = exact_product(w, added, x, stride, m);
      double typical = sqrt(columns + (added != NULL));
      data_expect("matmul", y, exact, (gsize)m * rows, typical, 1e-6);
    }
}

/* A row of the result has the same bits whatever the batch and the division of the weight. */
static void
products_do_not_depend_on_the_batch(void) {
  for (gsize f = 0; f < G_N_ELEMENTS(formats); f++) {
    guint32 m = 11, rows = 37, columns = 75;
    g_autoptr(data_matrix) w = data_matrix_new(formats[f], rows, columns, 1);
    g_autofree float *x = data_normal((gsize)m * columns, 1);
    g_autofree float *together = g_new0(float, m *rows), *alone = g_new0(float, rows);
    g_autofree float *scratch = g_new(float, OCT_REF_MATMUL_ROWS *columns);
    oct_matmul call = {
        .weight = &w->matrix, .x = x, .x_stride = columns, .m = m, .y = together, .y_stride = rows};
    oct_ref_matmul(&call, 0, rows, scratch);
    for (guint32 i = 0; i < m; i++) {
      oct_matmul one = call;
      one.x = x + (gsize)i * columns;
      one.m = 1;
      one.y = alone;
      guint32 part = data_between(1, rows);
      for (guint32 r = 0; r < rows; r += part)
        oct_ref_matmul(&one, r, MIN(part, rows - r), scratch);
      g_assert_cmpmem(alone, rows * sizeof *alone, together + (gsize)i * rows,
                      rows * sizeof *alone);
    }
  }
}

static void
transposed_products(void) {
  for (gsize f = 0; f < G_N_ELEMENTS(formats); f++) {
    guint32 m = 3, rows = 57, columns = 83, first = data_between(0, 20);
    guint32 n = data_between(1, rows - first);
    g_autoptr(data_matrix) w = data_matrix_new(formats[f], rows, columns, 1);
    g_autofree float *x = data_normal((gsize)m * n, 1), *y = data_normal((gsize)m * columns, 1);
    g_autofree float *scratch = g_new(float, OCT_REF_MATMUL_ROWS *columns);
    oct_matmul call = {
        .weight = &w->matrix, .x = x, .x_stride = n, .m = m, .y = y, .y_stride = columns};
    oct_ref_matmul_transposed(&call, first, n, scratch);
    g_autofree double *exact = g_new0(double, (gsize)m *columns);
    for (guint32 i = 0; i < m; i++)
      for (guint32 r = 0; r < n; r++)
        for (guint32 c = 0; c < columns; c++)
          exact[(gsize)i * columns + c] +=
              (double)x[(gsize)i * n + r] * w->values[(gsize)(first + r) * columns + c];
    data_expect("matmul transposed", y, exact, (gsize)m * columns, sqrt(n), 1e-6);
  }
}

static void
embeddings_are_rows(void) {
  for (gsize f = 0; f < G_N_ELEMENTS(formats); f++) {
    guint32 rows = 29, columns = 43, ids[] = {28, 0, 7, 7};
    g_autoptr(data_matrix) w = data_matrix_new(formats[f], rows, columns, 1);
    g_autofree float *out = g_new0(float, G_N_ELEMENTS(ids) * columns);
    oct_ref_embed(&w->matrix, ids, G_N_ELEMENTS(ids), out);
    for (gsize i = 0; i < G_N_ELEMENTS(ids); i++)
      g_assert_cmpmem(out + i * columns, columns * sizeof *out, w->values + ids[i] * columns,
                      columns * sizeof *out);
  }
}

static void
norms(void) {
  for (int round = 0; round < 8; round++) {
    guint32 n = data_between(1, 5), width = data_between(1, 200);
    gsize stride = width + data_between(0, 9);
    float eps = round % 2 == 0 ? 1e-5f : 1e-6f;
    /* Small numbers, so that eps matters. */
    g_autofree float *x = data_normal(n * stride, 0.003), *weight = data_normal(width, 1);
    const float *used = round % 4 == 3 ? NULL : weight;
    g_autofree float *got = g_new0(float, (gsize)n *width);
    g_autofree double *exact = g_new0(double, (gsize)n *width);
    for (guint32 i = 0; i < n; i++) {
      double sum = 0;
      for (guint32 c = 0; c < width; c++)
        sum += (double)x[i * stride + c] * x[i * stride + c];
      for (guint32 c = 0; c < width; c++)
        exact[(gsize)i * width + c] =
            x[i * stride + c] / sqrt(sum / width + eps) * (used != NULL ? used[c] : 1);
    }
    oct_ref_rms_norm(x, used, n, width, stride, eps, x); /* in place */
    for (guint32 i = 0; i < n; i++)
      memcpy(got + (gsize)i * width, x + i * stride, width * sizeof *x);
    data_expect("rms norm", got, exact, (gsize)n * width, 0, 1e-6);
  }
}

static double
exact_glu(const oct_glu_params *p, double gate, double up) {
  if (p->kind == OCT_GLU_SWIGLU)
    return gate / (1 + exp(-gate)) * up;
  gate = MIN(gate, p->limit);
  up = CLAMP(up, -p->limit, p->limit);
  return gate / (1 + exp(-p->alpha * gate)) * (up + 1);
}

static const oct_glu_params glus[] = {{.kind = OCT_GLU_SWIGLU},
                                      {.kind = OCT_GLU_CLAMPED, .alpha = 1.702f, .limit = 7}};

static void
gated_activations(void) {
  for (gsize k = 0; k < G_N_ELEMENTS(glus); k++)
    for (gsize step = 1; step <= 2; step++) {
      guint32 n = data_between(1, 300);
      g_autofree float *x = data_normal(2 * n, 6); /* wide enough for the clamps */
      const float *gate = x, *up = step == 2 ? x + 1 : x + n;
      g_autofree double *exact = g_new(double, n);
      for (guint32 i = 0; i < n; i++)
        exact[i] = exact_glu(&glus[k], gate[i * step], up[i * step]);
      oct_ref_glu(&glus[k], gate, up, step, n, x); /* in place */
      data_expect("glu", x, exact, n, 1, 1e-6);
    }
}

/* Separate and interleaved gate and up give the same; both against float64. */
static void
gated_layers(void) {
  for (gsize k = 0; k < G_N_ELEMENTS(glus); k++) {
    guint32 m = data_between(1, 6), inner = data_between(1, 50), outer = data_between(1, 70);
    g_autoptr(data_matrix) both = data_matrix_new(OCT_MATRIX_BF16, 2 * inner, outer, 0.3);
    g_autoptr(data_matrix) down = data_matrix_new(OCT_MATRIX_F32, outer, inner, 0.3);
    g_autofree float *gate = g_new(float, (gsize)inner *outer),
                     *up = g_new(float, (gsize)inner *outer);
    g_autofree float *both_bias = data_normal(2 * inner, 1), *down_bias = data_normal(outer, 1);
    g_autofree float *gate_bias = g_new(float, inner), *up_bias = g_new(float, inner);
    for (guint32 i = 0; i < inner; i++) {
      memcpy(gate + (gsize)i * outer, both->values + (gsize)2 * i * outer, outer * sizeof *gate);
      memcpy(up + (gsize)i * outer, both->values + (gsize)(2 * i + 1) * outer, outer * sizeof *up);
      gate_bias[i] = both_bias[2 * i];
      up_bias[i] = both_bias[2 * i + 1];
    }
    oct_matrix gates = {OCT_MATRIX_F32, inner, outer, gate, NULL};
    oct_matrix ups = {OCT_MATRIX_F32, inner, outer, up, NULL};
    oct_mlp paired = {.gate_up = &both->matrix,
                      .gate_up_bias = both_bias,
                      .down = &down->matrix,
                      .down_bias = down_bias,
                      .glu = glus[k],
                      .inner = inner,
                      .outer = outer};
    oct_mlp parted = paired;
    parted.gate_up = NULL;
    parted.gate = &gates;
    parted.up = &ups;
    parted.gate_bias = gate_bias;
    parted.up_bias = up_bias;
    g_autofree float *x = data_normal((gsize)m * outer, 1);
    g_autofree float *a = g_new(float, (gsize)m *outer), *b = g_new(float, (gsize)m *outer);
    g_autofree float *scratch =
        g_new(float, (gsize)m * 2 * inner + OCT_REF_MATMUL_ROWS * MAX(inner, outer));
    oct_ref_mlp(&paired, x, m, a, scratch);
    oct_ref_mlp(&parted, x, m, b, scratch);
    g_assert_cmpmem(a, (gsize)m * outer * sizeof *a, b, (gsize)m * outer * sizeof *b);
    g_autofree double *exact = g_new(double, (gsize)m *outer), *hidden = g_new(double, inner);
    for (guint32 i = 0; i < m; i++) {
      for (guint32 j = 0; j < inner; j++) {
        double g = gate_bias[j], u = up_bias[j];
        for (guint32 c = 0; c < outer; c++) {
          g += (double)x[(gsize)i * outer + c] * gate[(gsize)j * outer + c];
          u += (double)x[(gsize)i * outer + c] * up[(gsize)j * outer + c];
        }
        hidden[j] = exact_glu(&glus[k], g, u);
      }
      for (guint32 c = 0; c < outer; c++) {
        double sum = down_bias[c];
        for (guint32 j = 0; j < inner; j++)
          sum += hidden[j] * down->values[(gsize)c * inner + j];
        exact[(gsize)i * outer + c] = sum;
      }
    }
    data_expect("mlp", a, exact, (gsize)m * outer, 1, 1e-6); /* the bias alone has 1 */
  }
}

static void
addition(void) {
  guint32 n = data_between(1, 99);
  g_autofree float *x = data_normal(n, 1), *y = data_normal(n, 1);
  g_autofree float *sum = g_new(float, n);
  for (guint32 i = 0; i < n; i++)
    sum[i] = x[i] + y[i];
  oct_ref_add(y, x, n);
  g_assert_cmpmem(y, n * sizeof *y, sum, n * sizeof *sum);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/kernels/dense/products-of-odd-sizes", products_of_odd_sizes);
  g_test_add_func("/kernels/dense/products-do-not-depend-on-the-batch",
                  products_do_not_depend_on_the_batch);
  g_test_add_func("/kernels/dense/transposed-products", transposed_products);
  g_test_add_func("/kernels/dense/embeddings-are-rows", embeddings_are_rows);
  g_test_add_func("/kernels/dense/norms", norms);
  g_test_add_func("/kernels/dense/gated-activations", gated_activations);
  g_test_add_func("/kernels/dense/gated-layers", gated_layers);
  g_test_add_func("/kernels/dense/addition", addition);
  return g_test_run();
}
