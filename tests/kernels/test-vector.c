/* The inner loops of every kind of processor that this one has, which the operators choose from:
 * each against float64. The source is included to reach them all. */
#include "kernels/reference/vector.c"

#include <math.h>

#include "tests/kernels/data.h"

static const struct {
  const char *name;
  const vector_ops *ops;
} kinds[] = {{"any", &ops_any},
#ifdef __x86_64__
             {"avx2", &ops_avx2},
             {"avx512", &ops_avx512}
#endif
};

static gboolean
is_there(const vector_ops *of) {
#ifdef __x86_64__
  if (of == &ops_avx512)
    return ops() == &ops_avx512;
  if (of == &ops_avx2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return of == &ops_any;
}

static void
check_dots(const vector_ops *of, const char *name) {
  guint32 m = data_between(1, 9), n = data_between(1, 9), k = data_between(1, 130);
  gsize xs = k + data_between(0, 5), ws = k + data_between(0, 5), ys = n + data_between(0, 5);
  g_autofree float *x = data_normal(m * xs, 1), *w = data_normal(n * ws, 1);
  g_autofree float *y = g_new0(float, m *ys), *packed = g_new(float, m *n);
  g_autofree double *exact = g_new0(double, m *n);
  of->dots(x, xs, m, w, ws, n, k, y, ys);
  for (guint32 i = 0; i < m; i++)
    for (guint32 j = 0; j < n; j++) {
      packed[i * n + j] = y[i * ys + j];
      for (guint32 c = 0; c < k; c++)
        exact[i * n + j] += (double)x[i * xs + c] * w[j * ws + c];
      float alone;
      of->dots(x + i * xs, xs, 1, w + j * ws, ws, 1, k, &alone, 1);
      g_assert_cmpmem(&alone, sizeof alone, &y[i * ys + j], sizeof alone);
    }
  data_expect(name, packed, exact, m * n, sqrt(k), 1e-6);
}

static void
check_combine(const vector_ops *of, const char *name) {
  guint32 m = data_between(1, 4), n = data_between(1, 40), width = data_between(1, 150);
  gsize row = width + data_between(0, 5);
  g_autofree float *p = data_normal(m * n, 1), *rows = data_normal(n * row, 1);
  g_autofree float *y = data_normal(m * width, 1), *parts = g_memdup2(y, m * width * sizeof *y);
  g_autofree double *exact = g_new0(double, m *width);
  for (guint32 i = 0; i < m; i++)
    for (guint32 c = 0; c < width; c++) {
      exact[i * width + c] = y[i * width + c];
      for (guint32 j = 0; j < n; j++)
        exact[i * width + c] += (double)p[i * n + j] * rows[j * row + c];
    }
  of->combine(p, n, m, rows, row, n, width, y, width);
  data_expect(name, y, exact, m * width, sqrt(n + 1), 1e-6);
  /* A sum that is continued has the same bits as one that is not. */
  guint32 cut = data_between(0, n);
  of->combine(p, n, m, rows, row, cut, width, parts, width);
  of->combine(p + cut, n, m, rows + cut * row, row, n - cut, width, parts, width);
  g_assert_cmpmem(parts, m * width * sizeof *y, y, m * width * sizeof *y);
}

static void
check_expand(const vector_ops *of) {
  guint32 n = data_between(1, 100);
  g_autofree guint16 *codes = g_new(guint16, n);
  g_autofree float *out = g_new(float, n);
  for (guint32 i = 0; i < n; i++)
    codes[i] = (guint16)g_test_rand_int();
  of->expand_bf16(codes, n, out);
  for (guint32 i = 0; i < n; i++) {
    guint32 bits;
    memcpy(&bits, &out[i], sizeof bits);
    g_assert_cmphex(bits, ==, (guint32)codes[i] << 16);
  }
}

static void
inner_loops(gconstpointer data) {
  const guint kind = GPOINTER_TO_UINT(data);
  if (!is_there(kinds[kind].ops)) {
    g_test_skip("this processor lacks it");
    return;
  }
  for (int round = 0; round < 20; round++) {
    check_dots(kinds[kind].ops, "dots");
    check_combine(kinds[kind].ops, "combine");
    check_expand(kinds[kind].ops);
  }
}

static void
bfloat16_rounds_to_even(void) {
  static const struct {
    guint32 bits;
    guint16 code;
  } cases[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},
               {0x3f808001, 0x3f81}, {0x7f7fffff, 0x7f80}, {0xff800000, 0xff80},
               {0x7f800001, 0x7fc0}, {0x80000000, 0x8000}};
  for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
    float value;
    memcpy(&value, &cases[i].bits, sizeof value);
    g_assert_cmphex(oct_ref_to_bf16(value), ==, cases[i].code);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (guint i = 0; i < G_N_ELEMENTS(kinds); i++) {
    g_autofree char *path = g_strdup_printf("/kernels/vector/inner-loops-%s", kinds[i].name);
    g_test_add_data_func(path, GUINT_TO_POINTER(i), inner_loops);
  }
  g_test_add_func("/kernels/vector/bfloat16-rounds-to-even", bfloat16_rounds_to_even);
  return g_test_run();
}
