/* Scores, the search, and the fit of laws to rows whose constants are known. */
#include <math.h>
#include <string.h>

#include <glib/gstdio.h>

#include "sim/validate/fit-file.h"
#include "sim/validate/report.h"
#include "sim/validate/simplex.h"
#include "sim/validate/validate.h"

static void
scores(void) {
  g_auto(oct_score) score = {0};
  g_assert_true(isnan(oct_score_mean(&score)));
  static const double predicted[] = {90, 100, 120, 100, 140};
  for (guint i = 0; i < G_N_ELEMENTS(predicted); i++)
    oct_score_add(&score, predicted[i], 100);
  g_assert_cmpuint(oct_score_n(&score), ==, 5);
  g_assert_cmpfloat_with_epsilon(oct_score_mean(&score), 0.14, 1e-12);
  g_assert_cmpfloat_with_epsilon(oct_score_quantile(&score, 0.5), 0.1, 1e-12);
  g_assert_cmpfloat_with_epsilon(oct_score_quantile(&score, 0.9), 0.4, 1e-12);
  g_assert_cmpfloat_with_epsilon(oct_score_bias(&score), 0, 1e-12);
}

static double
valley(const double *x, gpointer user) {
  guint *n = user;
  (*n)++;
  double a = 1 - 4 * x[0], b = 4 * x[1] - 16 * x[0] * x[0];
  return a * a + 100 * b * b + 1;
}

/* Rosenbrock's valley, whose lowest point is at (1, 1) of its own scale. */
static void
finds_the_lowest_point(void) {
  static const double low[2] = {0, 0}, high[2] = {1, 1};
  double x[2] = {0.9, 0.1};
  guint n = 0;
  oct_simplex_options options = {
      .n = 2, .low = low, .high = high, .step = 0.2, .evaluations_max = 5000};
  double value = oct_simplex(&options, valley, &n, x);
  g_assert_cmpuint(n, <=, 5000 + 4);
  g_assert_cmpfloat_with_epsilon(value, 1, 1e-4);
  g_assert_cmpfloat_with_epsilon(x[0], 0.25, 1e-2);
  g_assert_cmpfloat_with_epsilon(x[1], 0.25, 1e-2);
}

static double
slope(const double *x, gpointer user) {
  (void)user;
  return x[0] + x[1];
}

static void
stays_within_bounds(void) {
  static const double low[2] = {0.2, 0.3}, high[2] = {1, 1};
  double x[2] = {0.7, 0.8};
  oct_simplex_options options = {
      .n = 2, .low = low, .high = high, .step = 0.2, .evaluations_max = 2000};
  oct_simplex(&options, slope, NULL, x);
  g_assert_cmpfloat_with_epsilon(x[0], 0.2, 1e-3);
  g_assert_cmpfloat_with_epsilon(x[1], 0.3, 1e-3);
}

/* Rows made by a law are explained by its fit, and one fold's rows by the others'. */
static void
a_fit_explains_what_the_law_made(void) {
  g_autoptr(GError) error = NULL;
  g_auto(oct_law_rows) rows = {{0}};
  oct_profile *profiles[OCT_MEASURED_SYSTEMS];
  g_assert_true(oct_fit_profiles_load(profiles, &error));
  for (guint id = 0; id < OCT_LAW_COUNT; id++)
    rows.of[id] = g_array_new(FALSE, FALSE, sizeof(oct_law_row));
  for (guint i = 0; i < 400; i++) {
    oct_law_row row = {.system = i % 2 == 0 ? 1 : 0, .fold = (guint8)(i / 20 % OCT_LAW_FOLDS)};
    row.u.gemm.m = ldexp(1, (int)(i % 15));
    row.u.gemm.n = 1024 * (1 + i / 20);
    row.u.gemm.k = 2048 * (1 + i / 20 % 4);
    row.measured_s =
        oct_law_get(OCT_LAW_GEMM_BF16)->price_s(profiles[row.system], OCT_LAW_GEMM_BF16, &row);
    g_array_append_val(rows.of[OCT_LAW_GEMM_BF16], row);
  }
  const oct_law_choice others = {1 << 1, 0, FALSE}, own = {1 << 1, 0, TRUE};
  g_assert_cmpuint(oct_law_count(&rows, OCT_LAW_GEMM_BF16, &own), >, 0);
  g_assert_cmpuint(oct_law_count(&rows, OCT_LAW_GEMM_BF16, &own) +
                       oct_law_count(&rows, OCT_LAW_GEMM_BF16, &others),
                   ==, 200);
  double constants[OCT_LAW_CONSTANTS_MAX];
  double seen = oct_law_fit(&rows, OCT_LAW_GEMM_BF16, &others, profiles, 20000, constants);
  g_auto(oct_score) score = {0};
  oct_law_set(profiles[1], OCT_LAW_GEMM_BF16, constants);
  oct_law_score(&rows, OCT_LAW_GEMM_BF16, &own, -1, profiles, &score);
  g_test_message("seen %.2f %%, left out %.2f %%", 100 * seen, 100 * oct_score_mean(&score));
  g_assert_cmpfloat(seen, <, 0.02);
  g_assert_cmpfloat(oct_score_mean(&score), <, 0.03);
  oct_fit_profiles_free(profiles);
}

/* ---------------------------------------------------------------- files */

static gboolean
count_row(char **cells, gpointer user, GError **error) {
  double *sum = user;
  (void)error;
  *sum += oct_measured_number(cells[0]);
  return TRUE;
}

static void
refuse(const char *folder, const char *text, const char *const *columns, const char *why) {
  g_autoptr(GError) error = NULL;
  g_autofree char *path = g_build_filename(folder, "t.csv", NULL);
  double sum = 0;
  g_assert_true(g_file_set_contents(path, text, -1, &error));
  g_assert_false(oct_measured_read(folder, "t.csv", columns, count_row, &sum, &error));
  g_assert_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA);
  g_assert_nonnull(strstr(error->message, why));
}

static void
tables_are_read_by_column(void) {
  static const char *const columns[] = {"b", NULL}, *const wrong[] = {"c", NULL};
  g_autoptr(GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp("octet-measured-XXXXXX", &error);
  g_autofree char *path = g_build_filename(folder, "t.csv", NULL);
  double sum = 0;
  g_assert_true(g_file_set_contents(path, "a,b\r\n1,2\r\n\n3,4", -1, &error));
  g_assert_true(oct_measured_read(folder, "t.csv", columns, count_row, &sum, &error));
  g_assert_no_error(error);
  g_assert_cmpfloat(sum, ==, 6);
  refuse(folder, "a,b\n1,2\n", wrong, "no column 'c'");
  refuse(folder, "a,b\n1\n", columns, "t.csv:2: ");
  refuse(folder, "", columns, "no column 'b'");
  g_assert_false(oct_measured_read(folder, "none.csv", columns, count_row, &sum, &error));
  g_assert_nonnull(strstr(error->message, "none.csv"));
  g_assert_cmpint(g_unlink(path), ==, 0);
  g_assert_cmpint(g_rmdir(folder), ==, 0);
}

static void
aims_say_whether_they_are_met(void) {
  json_t *part = oct_validate_part("p");
  oct_validate_aim(part, "a", 0.1, 0.1);
  oct_validate_aim(part, "b", 0.1, 0.11);
  oct_validate_aim(part, "c", 0.1, NAN);
  const json_t *aims = json_object_get(part, "aims");
  static const gboolean met[] = {TRUE, FALSE, FALSE};
  for (gsize i = 0; i < G_N_ELEMENTS(met); i++)
    g_assert_cmpint(json_is_true(json_object_get(json_array_get(aims, i), "met")), ==, met[i]);
  g_assert_cmpfloat_with_epsilon(oct_validate_got(part, "b"), 0.11, 1e-12);
  g_assert_true(isnan(oct_validate_got(part, "c")));
  g_assert_true(isnan(oct_validate_got(part, "d")));
  json_decref(part);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/validate/score/counts-by-rank", scores);
  g_test_add_func("/sim/validate/simplex/finds-the-lowest-point", finds_the_lowest_point);
  g_test_add_func("/sim/validate/simplex/stays-within-bounds", stays_within_bounds);
  g_test_add_func("/sim/validate/laws/a-fit-explains-what-the-law-made",
                  a_fit_explains_what_the_law_made);
  g_test_add_func("/sim/validate/measured/tables-are-read-by-column", tables_are_read_by_column);
  g_test_add_func("/sim/validate/report/aims-say-whether-they-are-met",
                  aims_say_whether_they_are_met);
  return g_test_run();
}
