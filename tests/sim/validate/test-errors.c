/* The file of errors is what validate writes, and what reports and texts say of errors is the file.
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include <glib/gstdio.h>

#include "sim/errors.h"
#include "sim/profile.h"
#include "sim/replay/replay.h"
#include "sim/validate/errors-file.h"
#include "sim/validate/report.h"

/* ---------------------------------------------------------------- the file */

static json_t *
report_of(const char *name, double got) {
  json_t *part = oct_validate_part(name);
  oct_validate_aim(part, "an aim, mean", 0.1, got);
  oct_validate_aim(part, "not measured", 0.1, NAN);
  oct_validate_count(part, "rows", 12);
  oct_validate_percent(part, "p90", 0.3012);
  return oct_validate_report(json_pack("[o]", part));
}

static GKeyFile *
keys_of(const char *path) {
  GKeyFile *keys = g_key_file_new();
  g_assert_true(g_key_file_load_from_file(keys, path, G_KEY_FILE_NONE, NULL));
  return keys;
}

/* The file that reports quote. */
static GKeyFile *
quoted(void) {
  g_autofree char *path =
      g_build_filename(oct_profile_dirs()[0], OCT_PROFILE_FITS, OCT_ERRORS_FILE, NULL);
  return keys_of(path);
}

static double
figure(const char *path, const char *group, const char *key) {
  g_autoptr(GKeyFile) keys = keys_of(path);
  g_autoptr(GError) error = NULL;
  double value = g_key_file_get_double(keys, group, key, &error);
  return error == NULL ? value : NAN;
}

static void
a_part_replaces_its_own_group_alone(void) {
  g_autoptr(GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp("octet-errors-XXXXXX", &error);
  g_autofree char *path = g_build_filename(folder, "errors.ini", NULL);
  json_t *a = report_of("operators", 0.0651), *b = report_of("silicon", 0.08),
         *c = report_of("operators", 0.0449);
  g_assert_true(oct_errors_file_write(path, a, &error));
  g_assert_true(oct_errors_file_write(path, b, &error));
  g_assert_true(oct_errors_file_write(path, c, &error));
  g_assert_no_error(error);
  g_assert_cmpfloat(figure(path, "operators", "an aim, mean"), ==, 4.5);
  g_assert_cmpfloat(figure(path, "silicon", "an aim, mean"), ==, 8);
  g_assert_cmpfloat(figure(path, "silicon", "rows"), ==, 12);
  g_assert_cmpfloat(figure(path, "silicon", "p90"), ==, 30.1);
  g_assert_true(isnan(figure(path, "silicon", "not measured")));
  g_assert_false(oct_errors_file_write("/dev/null/x/errors.ini", a, &error));
  g_assert_nonnull(error);
  json_decref(a);
  json_decref(b);
  json_decref(c);
  g_assert_cmpint(g_unlink(path), ==, 0);
  g_assert_cmpint(g_rmdir(folder), ==, 0);
}

static void
a_figure_that_is_not_there_is_none(void) {
  g_assert_true(isnan(oct_errors_get("operators", "no such figure")));
  g_assert_true(isnan(oct_errors_get("no such part", "TPOT of dense models, p90")));
}

/* Whole runs take minutes: whether the file is of these constants is told by their digest. */
static void
whole_runs_are_of_these_presets(void) {
  g_autoptr(GKeyFile) keys = quoted();
  g_autoptr(GError) error = NULL;
  g_autofree char *told = g_key_file_get_string(keys, "silicon", OCT_ERRORS_PRESETS, &error);
  g_autofree char *now = oct_errors_presets_sha256();
  g_assert_no_error(error);
  g_assert_cmpstr(told, ==, now);
}

/* ---------------------------------------------------------------- texts */

/* The file below the source tree with every run of blanks and line ends as one blank. */
static char *
text_of(const char *name) {
  g_autofree char *path = g_test_build_filename(G_TEST_DIST, "..", name, NULL);
  g_autofree char *text = NULL;
  g_autoptr(GError) error = NULL;
  g_assert_true(g_file_get_contents(path, &text, NULL, &error));
  g_auto(GStrv) words = g_strsplit_set(text, " \n", -1);
  GString *out = g_string_new(NULL);
  for (guint i = 0; words[i] != NULL; i++)
    if (*words[i] != '\0')
      g_string_append_printf(out, "%s%s", out->len > 0 ? " " : "", words[i]);
  return g_string_free(out, FALSE);
}

static void
says(const char *file, const char *text, const char *wanted) {
  if (strstr(text, wanted) == NULL)
    g_error("%s does not say \"%s\"", file, wanted);
}

/* Every aim stands in the table of doc/simulation.md with the file's figure. */
static void
the_page_on_simulation_has_the_file(void) {
  static const char *const parts[] = {"operators", "silicon", "trace-record"};
  g_autofree char *text = text_of("doc/simulation.md");
  g_autoptr(GKeyFile) keys = quoted();
  g_autoptr(GError) error = NULL;
  guint n = 0;
  for (gsize p = 0; p < G_N_ELEMENTS(parts); p++) {
    g_auto(GStrv) names = g_key_file_get_keys(keys, parts[p], NULL, &error);
    g_assert_no_error(error);
    for (guint i = 0; names[i] != NULL; i++) {
      g_autofree char *value = g_key_file_get_value(keys, parts[p], names[i], NULL);
      g_autofree char *row = g_strdup_printf("| %s | %s |", names[i], value);
      if (strcmp(names[i], OCT_ERRORS_PRESETS) == 0)
        continue;
      says("doc/simulation.md", text, row);
      n++;
    }
  }
  g_assert_cmpuint(n, >=, 20);
}

static void
the_readme_has_the_file(void) {
  g_autofree char *text = text_of("README.md");
  static const char *const hows[] = {"table", "transfer"};
  static const char *const operators[] = {"GEMM BF16", "GEMM FP8", "decode attention",
                                          "all-reduce above 1 MiB"};
  double of[G_N_ELEMENTS(hows)][G_N_ELEMENTS(operators)];
  for (gsize h = 0; h < G_N_ELEMENTS(hows); h++)
    for (gsize o = 0; o < G_N_ELEMENTS(operators); o++) {
      g_autofree char *name = g_strdup_printf("%s, %s, mean", hows[h], operators[o]);
      of[h][o] = oct_errors_get("operators", name);
    }
  g_autofree char *table = g_strdup_printf(
      "a machine whose kernels were measured: products in BF16 %.1f %%, in FP8 %.1f %%, decode "
      "attention %.1f %%, all-reduce above 1 MiB %.1f %%",
      of[0][0], of[0][1], of[0][2], of[0][3]);
  g_autofree char *transfer =
      g_strdup_printf("of one that nobody measured: %.1f, %.1f, %.1f and %.1f %%", of[1][0],
                      of[1][1], of[1][2], of[1][3]);
  g_autofree char *runs =
      g_strdup_printf("published runs %.1f %% in the median",
                      oct_errors_get("silicon", "TPOT on systems not fitted, median"));
  says("README.md", text, table);
  says("README.md", text, transfer);
  says("README.md", text, runs);
}

/* What replay, plan and their pages take as the error of a step's price. */
static void
reports_quote_the_file(void) {
  for (guint experts = 0; experts < 2; experts++) {
    const char *from;
    const double p90 = oct_errors_get("silicon", experts ? "TPOT of models with experts, p90"
                                                         : "TPOT of dense models, p90");
    g_autofree char *share = g_strdup_printf("step costs: %.0f %% is the 90th percentile", p90);
    g_autofree char *rows = g_strdup_printf(
        "%.0f published", oct_errors_get("silicon", experts ? "TPOT of models with experts, rows"
                                                            : "TPOT of dense models, rows"));
    g_assert_cmpfloat(oct_replay_cost_error(experts != 0, &from), ==, p90 / 100);
    g_assert_nonnull(strstr(from, share));
    g_assert_nonnull(strstr(from, rows));
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/validate/errors/a-part-replaces-its-own-group-alone",
                  a_part_replaces_its_own_group_alone);
  g_test_add_func("/sim/validate/errors/a-figure-that-is-not-there-is-none",
                  a_figure_that_is_not_there_is_none);
  g_test_add_func("/sim/validate/errors/whole-runs-are-of-these-presets",
                  whole_runs_are_of_these_presets);
  g_test_add_func("/sim/validate/errors/the-page-on-simulation-has-the-file",
                  the_page_on_simulation_has_the_file);
  g_test_add_func("/sim/validate/errors/the-readme-has-the-file", the_readme_has_the_file);
  g_test_add_func("/sim/validate/errors/reports-quote-the-file", reports_quote_the_file);
  return g_test_run();
}
