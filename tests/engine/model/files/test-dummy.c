/* Random weights: a function of name, seed and place; the same read lazily and from real parts. */
#include <math.h>
#include <string.h>

#include "engine/model/files/model.h"
#include "tests/engine/model/files/golden.h"
#include "tests/engine/model/files/small.h"

static oct_weight_map *
dummy(const oct_model_spec *spec, guint64 seed) {
  g_autoptr(GError) error = NULL;
  oct_weight_map *map = oct_weight_map_new_dummy(spec, seed, &error);
  g_assert_no_error(error);
  return map;
}

static double
deviation(const oct_weight *w) {
  guint64 n = w->rows * w->columns;
  g_autofree float *values = g_new(float, n);
  double sum = 0;
  oct_weight_read(w, 0, w->rows, values);
  for (guint64 i = 0; i < n; i++) {
    g_assert_true(isfinite(values[i]));
    sum += (double)values[i] * (double)values[i];
  }
  return sqrt(sum / (double)n);
}

static void
set_types(oct_model_spec *spec, oct_dtype type) {
  spec->types = (oct_weight_types){type, type, type, type, type, type, type, type, OCT_DTYPE_BF16};
}

static const oct_dtype all_types[] = {
    OCT_DTYPE_F32,       OCT_DTYPE_BF16,  OCT_DTYPE_F16,   OCT_DTYPE_FP8,
    OCT_DTYPE_FP8_BLOCK, OCT_DTYPE_MXFP4, OCT_DTYPE_NVFP4, OCT_DTYPE_INT4_G128,
};
static const oct_layout its_layout[] = {
    OCT_LAYOUT_ROWS,      OCT_LAYOUT_ROWS,  OCT_LAYOUT_ROWS,  OCT_LAYOUT_FP8,
    OCT_LAYOUT_FP8_BLOCK, OCT_LAYOUT_MXFP4, OCT_LAYOUT_NVFP4, OCT_LAYOUT_AWQ,
};

/* Scales as a kernel takes them, of the first and the last row and input. */
static void
scales_are_alike(const oct_weight *a, const oct_weight *b) {
  gint x, y;
  if (a->layout == OCT_LAYOUT_ROWS || a->layout == OCT_LAYOUT_NVFP4)
    return;
  g_assert_cmpfloat(oct_weight_scale(a, 0, 0, &x), ==, oct_weight_scale(b, 0, 0, &y));
  g_assert_cmpint(x, ==, y);
  float last = oct_weight_scale(a, a->rows - 1, a->columns - 1, &x);
  g_assert_cmpfloat(last, >, 0);
  g_assert_cmpfloat(last, ==, oct_weight_scale(b, b->rows - 1, b->columns - 1, &y));
  g_assert_cmpint(x, ==, y);
}

/* In each type: lazily, materialised, and written to a file and mapped again. */
static void
reads_alike(void) {
  for (guint i = 0; i < G_N_ELEMENTS(all_types); i++) {
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_model_spec) spec = small_llama();
    g_autoptr(oct_budget) budget = oct_budget_new("test", 1 << 24);
    set_types(spec, all_types[i]);
    g_autoptr(oct_weight_map) lazy = dummy(spec, 3), real = dummy(spec, 3);
    for (guint k = 0; k < oct_weight_map_n(real); k++) {
      g_assert_true(oct_weight_materialise(real, k, budget, &error));
      g_assert_true(oct_weight_materialise(real, k, budget, &error));
    }
    g_autoptr(writer) w = small_write(real);
    g_autoptr(small_map) filed = small_open(spec, w);
    guint64 bytes = 0;
    for (guint k = 0; k < oct_weight_map_n(lazy); k++) {
      const oct_weight *a = oct_weight_map_at(lazy, k), *b = oct_weight_map_at(real, k);
      const oct_weight *c = oct_weight_map_at(filed->map, k);
      guint64 n = a->rows * a->columns;
      g_autofree float *x = g_new(float, n), *y = g_new(float, n);
      oct_weight_read(a, 0, a->rows, x);
      oct_weight_read(b, 0, b->rows, y);
      assert_same(y, x, n);
      oct_weight_read(c, 0, c->rows, y);
      assert_same(y, x, n);
      oct_weight_read(a, a->rows - 1, 1, y);
      assert_same(y, x + n - a->columns, a->columns);
      scales_are_alike(a, b);
      scales_are_alike(a, c);
      bytes += a->bytes;
    }
    g_assert_cmpint(oct_weight_map_get(lazy, OCT_WEIGHT_Q, 0, 0)->layout, ==, its_layout[i]);
    /* NVFP4's scale per tensor has 4 bytes that the spec does not count. */
    guint64 uncounted = all_types[i] == OCT_DTYPE_NVFP4 ? 9 * 4 : 0;
    g_assert_cmpuint(bytes + uncounted, ==, oct_checkpoint_bytes(filed->checkpoint));
  }
}

static void
is_a_function_of_name_and_seed(void) {
  g_autoptr(oct_model_spec) spec = small_llama();
  g_autoptr(oct_weight_map) a = dummy(spec, 3), b = dummy(spec, 3), c = dummy(spec, 4);
  guint n = oct_weight_map_n(a), alike = 0;
  for (guint i = 0; i < n; i++) {
    float x[256], y[256], z[256];
    oct_weight_read(oct_weight_map_at(a, i), 0, 1, x);
    oct_weight_read(oct_weight_map_at(b, i), 0, 1, y);
    oct_weight_read(oct_weight_map_at(c, i), 0, 1, z);
    guint64 columns = oct_weight_map_at(a, i)->columns;
    assert_same(x, y, columns);
    alike += memcmp(x, z, columns * sizeof *x) == 0;
    for (guint k = 0; k < i; k++) {
      oct_weight_read(oct_weight_map_at(a, k), 0, 1, y);
      if (oct_weight_map_at(a, k)->columns == columns && columns > 1)
        g_assert_cmpint(memcmp(x, y, columns * sizeof *x), !=, 0);
    }
  }
  g_assert_cmpuint(alike, ==, 0);
}

/* As an independent program computes them (SipHash of "layer 0 q", splitmix64's finaliser, four
 * 16-bit parts): a change of the numbers is a change of every dummy run. */
static void
stays_the_same(void) {
  g_autoptr(oct_model_spec) spec = small_llama();
  g_autoptr(oct_weight_map) map = dummy(spec, 1);
  float q[256];
  oct_weight_read(oct_weight_map_get(map, OCT_WEIGHT_Q, 0, 0), 23, 1, q);
  const float wanted[] = {0.049072265625f, -0.1103515625f,   0.0322265625f,   0.054931640625f,
                          0.010009765625f, -0.037841796875f, -0.04345703125f, -0.053466796875f};
  assert_same(q, wanted, G_N_ELEMENTS(wanted));
}

/* Outputs of a projection are as large as its inputs; norms are near 1. */
static void
is_scaled(void) {
  for (guint i = 0; i < G_N_ELEMENTS(all_types); i++) {
    g_autoptr(oct_model_spec) spec = small_llama();
    set_types(spec, all_types[i]);
    g_autoptr(oct_weight_map) map = dummy(spec, 9);
    double up = deviation(oct_weight_map_get(map, OCT_WEIGHT_UP, 0, 0)) * 16; /* sqrt(256) */
    /* MXFP4's scale is a power of two. */
    double spread = all_types[i] == OCT_DTYPE_MXFP4 ? 1.5 : 1.1;
    g_assert_cmpfloat(up, >, 1 / spread);
    g_assert_cmpfloat(up, <, spread);
    double norm = deviation(oct_weight_map_get(map, OCT_WEIGHT_ATTN_NORM, 0, 0));
    g_assert_cmpfloat(norm, >, 0.95);
    g_assert_cmpfloat(norm, <, 1.05);
  }
}

/* The largest number is the largest code: next to none are cut. */
static void
is_not_cut(void) {
  g_autoptr(oct_model_spec) spec = small_llama();
  set_types(spec, OCT_DTYPE_FP8);
  g_autoptr(oct_weight_map) map = dummy(spec, 9);
  const oct_weight *up = oct_weight_map_get(map, OCT_WEIGHT_UP, 0, 0);
  guint64 n = up->rows * up->columns, n_largest = 0;
  g_autofree float *values = g_new(float, n);
  float largest = 0;
  oct_weight_read(up, 0, up->rows, values);
  for (guint64 i = 0; i < n; i++)
    largest = fmaxf(largest, fabsf(values[i]));
  for (guint64 i = 0; i < n; i++)
    n_largest += fabsf(values[i]) == largest;
  g_assert_cmpuint(n_largest, <=, n / 1000);
}

/* Every model of the zoo, whose weights take the bytes that the spec says but for whole-tensor
 * scales; a few rows of each kind are numbers. */
static void
zoo(void) {
  g_auto(GStrv) names = oct_model_zoo_names(NULL);
  for (char **name = names; *name != NULL; name++) {
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_model_files) files =
        oct_model_files_open(*name, NULL, OCT_LOAD_DUMMY, 1, NULL, &error);
    g_assert_no_error(error);
    g_assert_null(files->checkpoint);
    guint64 parameters = 0;
    gboolean seen[OCT_WEIGHT_KINDS] = {0};
    for (guint i = 0; i < oct_weight_map_n(files->map); i++) {
      const oct_weight *w = oct_weight_map_at(files->map, i);
      parameters += w->rows * w->columns;
      if (seen[w->kind])
        continue;
      seen[w->kind] = TRUE;
      g_autofree float *row = g_new(float, w->columns);
      oct_weight_read(w, w->rows / 2, 1, row);
      for (guint64 k = 0; k < w->columns; k++)
        g_assert_true(isfinite(row[k]));
    }
    oct_weights weights;
    oct_model_weights(files->spec, &weights);
    g_assert_cmpuint(parameters, ==, oct_weights_total(&weights).parameters);
  }
}

static void
refuses_without_memory(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_spec) spec = small_llama();
  g_autoptr(oct_budget) budget = oct_budget_new("weights", 100);
  g_autoptr(oct_weight_map) map = dummy(spec, 1);
  g_assert_false(oct_weight_materialise(map, 0, budget, &error));
  g_assert_nonnull(strstr(error->message, "weights:"));
  g_assert_null(oct_weight_map_at(map, 0)->codes);
}

static void
formats(void) {
  oct_load_format format;
  const char *const names[] = {"auto", "safetensors", "gguf", "dummy"};
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    g_assert_true(oct_load_format_parse(names[i], &format));
    g_assert_cmpuint(format, ==, i);
  }
  g_assert_false(oct_load_format_parse("Auto", &format));
  g_assert_false(oct_load_format_parse("", &format));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/dummy/reads-alike-lazily-materialised-and-from-a-file", reads_alike);
  g_test_add_func("/dummy/is-a-function-of-name-and-seed", is_a_function_of_name_and_seed);
  g_test_add_func("/dummy/stays-the-same", stays_the_same);
  g_test_add_func("/dummy/is-scaled-to-keep-activations-as-large", is_scaled);
  g_test_add_func("/dummy/is-not-cut-at-the-largest-code", is_not_cut);
  g_test_add_func("/dummy/makes-every-model-of-the-zoo", zoo);
  g_test_add_func("/dummy/refuses-without-memory", refuses_without_memory);
  g_test_add_func("/dummy/load-formats-have-names", formats);
  return g_test_run();
}
