/* Kernels against measured tables: today's errors do not grow. Bounds are what was measured,
 * rounded up; aims that are missed are in doc/simulation.md. */
#include "sim/validate/fit-file.h"
#include "sim/validate/report.h"
#include "tests/sim/validate/recordings.h"

static void
operators(void) {
  static const struct {
    const char *what;
    double bound;
  } bounds[] = {
      {"table, GEMM BF16, mean", 0.068},          {"table, GEMM FP8, mean", 0.085},
      {"table, decode attention, mean", 0.053},   {"table, all-reduce above 1 MiB, mean", 0.075},
      {"transfer, GEMM BF16, mean", 0.093},       {"transfer, GEMM FP8, mean", 0.17},
      {"transfer, decode attention, mean", 0.46}, {"transfer, all-reduce above 1 MiB, mean", 0.19},
  };
  g_autofree char *folder = recordings_or_skip();
  if (folder == NULL)
    return;
  g_autoptr(GError) error = NULL;
  oct_validate_options options = {.data = folder, .jobs = 1};
  json_t *part = oct_validate_operators(&options, &error);
  g_assert_no_error(error);
  for (gsize i = 0; i < G_N_ELEMENTS(bounds); i++)
    recordings_judge(part, bounds[i].what, bounds[i].bound);
  json_decref(part);
}

/* The files beside the profiles are what the command makes of the recordings: a law whose committed
 * constants are worse than a fit's was edited by hand, or was not fitted again. */
static void
committed(void) {
  static const char *const names[OCT_MEASURED_SYSTEMS] = {"h100", "h200", "b200", "b300"};
  g_autofree char *folder = recordings_or_skip();
  if (folder == NULL)
    return;
  g_autoptr(GError) error = NULL;
  g_auto(oct_law_rows) rows = {{0}};
  oct_profile *fitted[OCT_MEASURED_SYSTEMS], *profiles[OCT_MEASURED_SYSTEMS];
  g_assert_true(oct_law_rows_read(&rows, folder, &error));
  g_assert_true(oct_fit_profiles_load(fitted, &error));
  g_assert_true(oct_fit_profiles_load(profiles, &error));
  for (guint s = 0; s < OCT_MEASURED_SYSTEMS; s++) {
    g_assert_true(oct_fit_file_apply(names[s], profiles[s], &error));
    for (guint id = 0; id < OCT_LAW_COUNT; id++) {
      const oct_law_choice own = {1u << s, -1, FALSE};
      double constants[OCT_LAW_CONSTANTS_MAX];
      g_auto(oct_score) score = {0};
      if (oct_law_count(&rows, id, &own) == 0)
        continue;
      double error_now = oct_law_fit(&rows, id, &own, fitted, 20000, constants);
      oct_law_score(&rows, id, &own, -1, profiles, &score);
      g_test_message("%s %s: %.2f %%, a fit %.2f %%", names[s], oct_law_get(id)->name,
                     100 * oct_score_mean(&score), 100 * error_now);
      g_assert_cmpfloat(oct_score_mean(&score), <, 1.03 * error_now);
    }
  }
  oct_fit_profiles_free(fitted);
  oct_fit_profiles_free(profiles);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/validate/operators/errors-do-not-grow", operators);
  g_test_add_func("/sim/validate/operators/committed-constants-are-a-fits", committed);
  return g_test_run();
}
