/* The price laws as a profile has them, against the profile's own row of products and against whole
 * decode steps that others measured. Errors of single kernels are tests/sim/validate's. The
 * recordings are not part of the project: without them it skips.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/cost/internal.h"
#include "tests/sim/cost/fixture.h"

static const struct {
  const char *recorded, *node;
} systems[] = {{"h100_sxm", "h100-hgx8"},
               {"h200_sxm", "h200-hgx8"},
               {"b200_sxm", "b200-hgx8"},
               {"b300_sxm", "b300-hgx8"}};
#define N_SYSTEMS G_N_ELEMENTS(systems)

/* ---------------------------------------------------------------- reading */

#define COLUMNS_MAX 48

/* Calls fn for each row with its cells in the order of `columns`. */
typedef void (*row_fn)(char **cells, gpointer data);

static gboolean
read_csv(const char *name, const char *const *columns, row_fn fn, gpointer data) {
  g_autofree char *relative = g_build_filename("groundtruth", name, NULL);
  g_autofree char *path = shared_or_skip(relative);
  if (path == NULL)
    return FALSE;
  g_autofree char *text = NULL;
  g_autoptr(GError) error = NULL;
  g_file_get_contents(path, &text, NULL, &error);
  g_assert_no_error(error);
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  g_auto(GStrv) header = g_strsplit(g_strstrip(lines[0]), ",", COLUMNS_MAX);
  guint at[COLUMNS_MAX], n = g_strv_length((char **)columns);
  for (guint c = 0; c < n; c++) {
    for (at[c] = 0; header[at[c]] != NULL && strcmp(header[at[c]], columns[c]) != 0;)
      at[c]++;
    g_assert_nonnull(header[at[c]]);
  }
  for (guint i = 1; lines[i] != NULL; i++) {
    g_auto(GStrv) parts = g_strsplit(g_strstrip(lines[i]), ",", COLUMNS_MAX);
    char *cells[COLUMNS_MAX];
    if (g_strv_length(parts) < g_strv_length(header))
      continue;
    for (guint c = 0; c < n; c++)
      cells[c] = parts[at[c]];
    fn(cells, data);
  }
  return TRUE;
}

static guint
system_of(const char *recorded) {
  guint s = 0;
  while (s < N_SYSTEMS && strcmp(systems[s].recorded, recorded) != 0)
    s++;
  return s;
}

static double
number(const char *cell) {
  return g_ascii_strtod(cell, NULL);
}

/* ---------------------------------------------------------------- errors */

typedef struct error_list {
  GArray *seen, *held; /* double: |predicted / measured - 1| */
} error_list;

static void
error_add(error_list *list, gboolean held, double predicted, double measured) {
  double error = fabs(predicted / measured - 1);
  if (list->seen == NULL) {
    list->seen = g_array_new(FALSE, FALSE, sizeof error);
    list->held = g_array_new(FALSE, FALSE, sizeof error);
  }
  if (held)
    g_array_append_val(list->held, error);
  else
    g_array_append_val(list->seen, error);
}

static int
compare(gconstpointer a, gconstpointer b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double
mean_of(const GArray *errors) {
  double sum = 0;
  for (guint i = 0; i < errors->len; i++)
    sum += g_array_index(errors, double, i);
  return errors->len > 0 ? sum / errors->len : 0;
}

static double
quantile(GArray *errors, double q) {
  g_array_sort(errors, compare);
  return errors->len > 0 ? g_array_index(errors, double, (guint)(q * (errors->len - 1) + 0.5)) : 0;
}

/* Prints a line and fails if a mean is above its bound, in percent. */
static void
judge(const char *what, const char *system, error_list *list, double bound, double held_bound) {
  g_assert_nonnull(list->seen);
  g_test_message("%-18s %-9s %5u rows: mean %5.1f median %5.1f p90 %5.1f %%   held out %4u: mean "
                 "%5.1f median %5.1f p90 %5.1f %%",
                 what, system, list->seen->len, 100 * mean_of(list->seen),
                 100 * quantile(list->seen, 0.5), 100 * quantile(list->seen, 0.9), list->held->len,
                 100 * mean_of(list->held), 100 * quantile(list->held, 0.5),
                 100 * quantile(list->held, 0.9));
  g_assert_cmpuint(list->seen->len, >, 5);
  g_assert_cmpfloat(100 * mean_of(list->seen), <=, bound);
  g_assert_cmpfloat(100 * mean_of(list->held), <=, held_bound);
  g_array_unref(list->seen);
  g_array_unref(list->held);
}

/* ---------------------------------------------------------------- GEMM */

static void
load_profiles(oct_profile **profiles) {
  for (guint s = 0; s < N_SYSTEMS; s++) {
    g_autoptr(GError) error = NULL;
    profiles[s] = oct_profile_load(systems[s].node, NULL, NULL, &error);
    g_assert_no_error(error);
  }
}

static void
free_profiles(oct_profile **profiles) {
  for (guint s = 0; s < N_SYSTEMS; s++)
    oct_profile_free(profiles[s]);
}

/* The profile's own row of 8192 x 8192 products, which has TensorRT-LLM's kernels too where they
 * are quicker. It needs no recording. */
static void
gemm_row_of_profile(void) {
  oct_profile *profiles[N_SYSTEMS];
  load_profiles(profiles);
  for (guint s = 0; s < N_SYSTEMS; s++)
    for (int m = 0; m < OCT_MATH_COUNT; m++) {
      const oct_curve *row = &profiles[s]->gemm_8192[m];
      error_list errors = {0};
      for (guint32 i = 0; i < row->n; i++)
        error_add(&errors, FALSE,
                  oct_cost_gemm_ns(profiles[s], (oct_math)m, (guint64)row->x[i], 8192, 8192),
                  row->y[i] * 1e9);
      g_autofree char *what = g_strconcat("8192 x 8192 ", oct_math_name((oct_math)m), NULL);
      if (row->n > 0)
        judge(what, systems[s].node, &errors, 14, 0);
    }
  free_profiles(profiles);
}

/* ---------------------------------------------------------------- whole steps */

/* A decode step of Llama-3.1-70B in FP8 against vLLM's measured time per output token at a
 * concurrency of 4 and 8 (few prefills disturb it then). Nothing was fitted to these. */
typedef struct step_data {
  GArray *ratios;
} step_data;

static void
step_row(char **cells, gpointer user) {
  step_data *data = user;
  guint s = system_of(cells[1]);
  guint32 batch = (guint32)number(cells[6]), isl = (guint32)number(cells[4]);
  if (s == N_SYSTEMS || strcmp(cells[0], "vllm") != 0 || strcmp(cells[3], "fp8") != 0 ||
      strcmp(cells[2], "meta-llama/Llama-3.1-70B") != 0 || isl != 1024 ||
      (batch != 4 && batch != 8))
    return;
  g_auto(rig) r = {0};
  rig_load(&r, "llama-3.1-70b", systems[s].node);
  r.spec->types.attention = r.spec->types.dense_ffn = OCT_DTYPE_FP8;
  r.parallel.tensor = (guint32)number(cells[7]);
  rig_make(&r);
  oct_step_shape shape;
  shape_decode(&shape, batch, isl + (guint32)number(cells[5]) / 2, 0);
  double ratio = (double)step_ns(&r, &shape) * 1e-6 / number(cells[8]);
  g_test_message("llama-3.1-70b fp8 %s x %u, batch %u: step %.2f ms, measured TPOT %s ms: %.2f",
                 systems[s].node, r.parallel.tensor, batch, (double)step_ns(&r, &shape) * 1e-6,
                 cells[8], ratio);
  g_array_append_val(data->ratios, ratio);
}

static void
steps(void) {
  static const char *const columns[] = {"backend", "system",     "model_path", "precision", "isl",
                                        "osl",     "batch_size", "tp_size",    "tpot_ms",   NULL};
  step_data data = {.ratios = g_array_new(FALSE, FALSE, sizeof(double))};
  if (read_csv("aic_silicon_e2e.csv", columns, step_row, &data)) {
    g_assert_cmpuint(data.ratios->len, >, 20);
    double median = quantile(data.ratios, 0.5);
    double low = quantile(data.ratios, 0), high = quantile(data.ratios, 1);
    g_test_message("predicted / measured: lowest %.2f, median %.2f, highest %.2f", low, median,
                   high);
    g_assert_cmpfloat_with_epsilon(median, 1, 0.03);
    g_assert_cmpfloat(low, >, 0.87);
    g_assert_cmpfloat(high, <, 1.13);
  }
  g_array_unref(data.ratios);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/cost/fit/gemm-agrees-with-the-profiles-own-row", gemm_row_of_profile);
  g_test_add_func("/sim/cost/fit/decode-steps-are-near-measured-time-per-token", steps);
  return g_test_run();
}
