/* Kernels against measured tables: the figures that reports and texts quote are today's, and rows
 * that are scored take no part in what is scored with them. */
#include <math.h>
#include <string.h>

#include "sim/validate/fit-file.h"
#include "sim/validate/report.h"
#include "tests/sim/validate/recordings.h"

/* Of the low-latency kernels that the profile's table is of, by another release: near it. Rows of
 * several nodes are none of a node's. */
static void
exchange_is_near(json_t *part) {
  json_t *tables = json_object_get(part, "tables");
  json_t *rows = json_object_get(json_array_get(tables, json_array_size(tables) - 1), "rows"), *row;
  gsize i;
  guint n = 0;
  json_array_foreach(rows, i, row) {
    n += (guint)json_integer_value(json_array_get(row, 2));
    if (strstr(json_string_value(json_array_get(row, 0)), "low latency") != NULL)
      g_assert_cmpfloat(json_number_value(json_array_get(row, 3)), <, 13);
  }
  g_assert_cmpuint(n, ==, 2 * (17 + 23));
}

static void
operators(void) {
  g_autofree char *folder = recordings_or_skip();
  if (folder == NULL)
    return;
  g_autoptr(GError) error = NULL;
  oct_validate_options options = {.data = folder, .jobs = 1};
  json_t *part = oct_validate_operators(&options, &error);
  g_assert_no_error(error);
  recordings_equal_quoted(part, 8);
  exchange_is_near(part);
  json_decref(part);
}

/* ---------------------------------------------------------------- what a fit sees */

/* Another machine's rows, or the shapes left out, twice as slow: the constants stay what they are.
 */
static void
unseen(void) {
  static const oct_law_id ids[] = {OCT_LAW_GEMM_BF16, OCT_LAW_DECODE, OCT_LAW_MOE_FP8_BLOCK,
                                   OCT_LAW_ALL_REDUCE};
  static const oct_law_choice choices[] = {{1u << 0 | 1u << 1, -1, FALSE}, {1u << 2, 3, FALSE}};
  g_autofree char *folder = recordings_or_skip();
  if (folder == NULL)
    return;
  g_autoptr(GError) error = NULL;
  g_auto(oct_law_rows) rows = {{0}};
  oct_profile *profiles[OCT_MEASURED_SYSTEMS];
  g_assert_true(oct_law_rows_read(&rows, folder, &error));
  g_assert_true(oct_fit_profiles_load(profiles, &error));
  for (gsize i = 0; i < G_N_ELEMENTS(ids); i++)
    for (gsize k = 0; k < G_N_ELEMENTS(choices); k++) {
      double before[OCT_LAW_CONSTANTS_MAX], after[OCT_LAW_CONSTANTS_MAX];
      GArray *list = rows.of[ids[i]];
      guint changed = 0;
      (void)oct_law_fit(&rows, ids[i], &choices[k], profiles, 500, before);
      for (guint r = 0; r < list->len; r++) {
        oct_law_row *row = &g_array_index(list, oct_law_row, r);
        if ((choices[k].systems >> row->system & 1) == 0 || row->fold == choices[k].fold) {
          row->measured_s *= 2;
          changed++;
        }
      }
      g_assert_cmpuint(changed, >, 20);
      (void)oct_law_fit(&rows, ids[i], &choices[k], profiles, 500, after);
      g_assert_cmpmem(before, oct_law_get(ids[i])->n * sizeof *before, after,
                      oct_law_get(ids[i])->n * sizeof *after);
    }
  oct_fit_profiles_free(profiles);
}

/* What a transfer is scored with has nothing of the machine but its datasheet: constants are those
 * of fits/hopper, and no table counts. */
static void
transfer_is_unseen(void) {
  g_autoptr(GError) error = NULL;
  oct_profile *seen[OCT_MEASURED_SYSTEMS], *unseen_by[OCT_MEASURED_SYSTEMS];
  g_assert_true(oct_fit_profiles_load(seen, &error));
  g_assert_true(oct_fit_profiles_load(unseen_by, &error));
  for (guint s = 0; s < OCT_MEASURED_SYSTEMS; s++) {
    g_assert_true(oct_fit_file_apply(OCT_FIT_TRANSFER, unseen_by[s], &error));
    const oct_profile *p = unseen_by[s], *first = unseen_by[0];
    g_assert_cmpmem(&p->decode_fit, sizeof p->decode_fit, &first->decode_fit,
                    sizeof first->decode_fit);
    g_assert_cmpmem(&p->collective_fit, sizeof p->collective_fit, &first->collective_fit,
                    sizeof first->collective_fit);
    g_assert_cmpmem(&p->gemm_fit[OCT_MATH_FP8], sizeof p->gemm_fit[0],
                    &first->gemm_fit[OCT_MATH_FP8], sizeof first->gemm_fit[0]);
    g_assert_cmpfloat(p->decode_fit.fixed_s, !=, seen[s]->decode_fit.fixed_s);
    /* The collectives' laws are asked, not the tables. */
    const oct_collective op = OCT_COLLECTIVE_ALL_REDUCE;
    const double before = oct_cost_collective_law_s(p, &op, 8, 1 << 20);
    for (guint i = 0; i < OCT_PROFILE_SIZES; i++)
      unseen_by[s]->collectives.nccl[op][i].n = 0;
    g_assert_cmpfloat(oct_cost_collective_law_s(p, &op, 8, 1 << 20), ==, before);
  }
  oct_fit_profiles_free(seen);
  oct_fit_profiles_free(unseen_by);
}

/* The files beside the profiles are what the command makes of the recordings: a law whose committed
 * constants are worse than a fit's was edited by hand, or was not fitted again. */
static void
committed(void) {
  static const struct {
    const char *name;
    guint systems;
  } files[] = {{"h100", 1u << 0},
               {"h200", 1u << 1},
               {"b200", 1u << 2},
               {"b300", 1u << 3},
               {OCT_FIT_TRANSFER, 1u << 0 | 1u << 1}};
  g_autofree char *folder = recordings_or_skip();
  if (folder == NULL)
    return;
  g_autoptr(GError) error = NULL;
  g_auto(oct_law_rows) rows = {{0}};
  oct_profile *fitted[OCT_MEASURED_SYSTEMS], *profiles[OCT_MEASURED_SYSTEMS];
  g_assert_true(oct_law_rows_read(&rows, folder, &error));
  g_assert_true(oct_fit_profiles_load(fitted, &error));
  g_assert_true(oct_fit_profiles_load(profiles, &error));
  for (gsize f = 0; f < G_N_ELEMENTS(files); f++) {
    for (guint s = 0; s < OCT_MEASURED_SYSTEMS; s++)
      g_assert_true(oct_fit_file_apply(files[f].name, profiles[s], &error));
    for (guint id = 0; id < OCT_LAW_COUNT; id++) {
      const oct_law_choice own = {files[f].systems, -1, FALSE};
      double constants[OCT_LAW_CONSTANTS_MAX];
      g_auto(oct_score) score = {0};
      if (oct_law_count(&rows, id, &own) == 0)
        continue;
      if (oct_fit_rows_of(files[f].name, id) != id) {
        g_assert_cmpuint(id, ==, OCT_LAW_MOE_FP8);
        g_assert_cmpmem(&profiles[0]->moe_fit[OCT_MATH_FP8], sizeof *profiles[0]->moe_fit,
                        &profiles[0]->moe_fit[OCT_MATH_FP8_BLOCK], sizeof *profiles[0]->moe_fit);
        continue;
      }
      double error_now = oct_law_fit(&rows, id, &own, fitted, 20000, constants);
      oct_law_score(&rows, id, &own, -1, profiles, &score);
      g_test_message("%s %s: %.2f %%, a fit %.2f %%", files[f].name, oct_law_get(id)->name,
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
  g_test_add_func("/sim/validate/operators/errors-are-those-quoted", operators);
  g_test_add_func("/sim/validate/operators/rows-that-are-scored-are-not-fitted", unseen);
  g_test_add_func("/sim/validate/operators/a-transfer-has-seen-no-table", transfer_is_unseen);
  g_test_add_func("/sim/validate/operators/committed-constants-are-a-fits", committed);
  return g_test_run();
}
