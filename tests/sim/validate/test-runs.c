/* Whole runs against what others measured: today's errors do not grow. Quick samples; bounds are
 * what was measured, rounded up. */
#include "config.h"

#include <math.h>

#include "sim/validate/report.h"
#include "sim/validate/silicon.h"
#include "tests/sim/validate/recordings.h"

static gboolean
has_simgrid_or_skip(void) {
#ifdef HAVE_SIMGRID
  return TRUE;
#else
  g_test_skip("SimGrid is not built in");
  return FALSE;
#endif
}

static void
published(void) {
  g_autofree char *folder = has_simgrid_or_skip() ? recordings_or_skip() : NULL;
  if (folder == NULL)
    return;
  g_autoptr(GError) error = NULL;
  oct_validate_options options = {.data = folder, .quick = TRUE, .rows = 8, .seed = 1, .jobs = 2};
  json_t *part = oct_validate_silicon(&options, &error);
  g_assert_no_error(error);
  recordings_judge(part, "TPOT on systems not fitted, median", 0.06);
  g_assert_cmpuint(json_array_size(json_object_get(part, "rows")), >, 20);
  json_decref(part);
}

static void
recorded(void) {
  g_autofree char *folder = has_simgrid_or_skip() ? recordings_or_skip() : NULL;
  if (folder == NULL)
    return;
  g_autoptr(GError) error = NULL;
  oct_validate_options options = {.data = folder, .seed = 1, .jobs = 1};
  json_t *part = oct_validate_record(&options, &error);
  g_assert_no_error(error);
  recordings_equal_quoted(part, 6);
  json_decref(part);
}

/* The record in `to`, with all that happened after 60 s drawn out: request_id, input_tokens,
 * output_tokens, arrival_s, queued_s, scheduled_s, first_token_s, last_token_s. */
static void
draw_out(const char *from, const char *to) {
  static const char *const names[] = {"lss_rtx4090_llama-3.1-8b_vllm_requests.csv",
                                      "lss_rtx4090_llama-3.1-8b_vllm_timeseries.csv",
                                      "../traces/sharegpt300_llama31_hash16.jsonl"};
  g_autoptr(GError) error = NULL;
  for (guint f = 0; f < G_N_ELEMENTS(names); f++) {
    g_autofree char *source = g_build_filename(from, names[f], NULL);
    g_autofree char *base = g_path_get_basename(names[f]);
    g_autofree char *target = g_build_filename(to, base, NULL);
    g_autofree char *text = NULL;
    if (f == 2 && !g_file_test(source, G_FILE_TEST_EXISTS))
      break;
    g_assert_true(g_file_get_contents(source, &text, NULL, &error));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (guint i = 1; f == 0 && lines[i] != NULL && *lines[i] != '\0'; i++) {
      g_auto(GStrv) cells = g_strsplit(lines[i], ",", -1);
      for (guint c = 6; c < 8; c++) {
        double at = g_ascii_strtod(cells[c], NULL);
        g_free(cells[c]);
        cells[c] = g_strdup_printf("%.6f", at > 60 ? 60 + 1.3 * (at - 60) : at);
      }
      g_free(lines[i]);
      lines[i] = g_strjoinv(",", cells);
    }
    g_free(text);
    text = g_strjoinv("\n", lines);
    g_assert_true(g_file_set_contents(target, text, -1, &error));
  }
}

static void
the_future_is_not_fitted(void) {
  g_autofree char *folder = has_simgrid_or_skip() ? recordings_or_skip() : NULL;
  if (folder == NULL)
    return;
  g_autoptr(GError) error = NULL;
  g_autofree char *other = g_dir_make_tmp("octet-future-XXXXXX", &error);
  draw_out(folder, other);
  const char *const folders[] = {folder, other};
  json_t *parts[2];
  double ttft[2];
  for (guint i = 0; i < 2; i++) {
    oct_validate_options options = {.data = folders[i], .quick = TRUE, .seed = 1, .jobs = 1};
    parts[i] = oct_validate_record(&options, &error);
    g_assert_no_error(error);
    ttft[i] = oct_validate_got(parts[i], "later requests, mean TTFT s");
  }
  g_assert_true(
      json_equal(json_object_get(parts[0], "constants"), json_object_get(parts[1], "constants")));
  g_assert_cmpfloat(fabs(ttft[0] - ttft[1]), >, 0.05);
  json_decref(parts[0]);
  json_decref(parts[1]);
}

/* ---------------------------------------------------------------- what needs no recordings */

static void
a_fit_finds_factor_and_gap(void) {
  double predicted[20], measured[20];
  oct_silicon_fit fit;
  for (guint i = 0; i < G_N_ELEMENTS(predicted); i++) {
    predicted[i] = 0.004 + 0.001 * i;
    measured[i] = 1.1 * predicted[i] + 0.0007;
  }
  measured[3] *= 3; /* one row that another thing is wrong with */
  oct_silicon_fit_steps(predicted, measured, G_N_ELEMENTS(predicted), &fit);
  g_assert_cmpfloat_with_epsilon(fit.factor, 1.1, 1e-9);
  g_assert_cmpfloat_with_epsilon(fit.gap_s, 0.0007, 1e-9);
  g_assert_cmpfloat(fit.median, <, 1e-9);
}

static oct_silicon_row
some_row(void) {
  return (oct_silicon_row){.backend = "vllm",
                           .version = "0.19.0",
                           .model = "meta-llama/Llama-3.1-70B",
                           .precision = "fp8",
                           .gemm = "fp8",
                           .moe = "fp8",
                           .source = "dated-csv",
                           .system = 2,
                           .isl = 1024,
                           .osl = 128,
                           .concurrency = 8,
                           .tp = 4,
                           .dp = 1,
                           .moe_tp = 4,
                           .moe_ep = 1};
}

static void
a_row_is_a_configuration(void) {
  g_autoptr(GError) error = NULL;
  oct_silicon_row row = some_row();
  oct_setup_options options;
  g_assert_null(oct_silicon_unsupported(&row));
  g_assert_cmpstr(oct_silicon_engine(&row), ==, "vllm-0.24");
  g_assert_true(oct_silicon_setup(&row, &options, &error));
  g_assert_cmpstr(options.node, ==, "b200-hgx8");
  g_assert_cmpint(options.weight_type, ==, OCT_DTYPE_FP8);
  g_assert_cmpuint(options.engine.instance.parallel.tensor, ==, 4);
  g_assert_cmpfloat(oct_silicon_burst_s(&row), >, 0.01);
  g_strlcpy(row.version, "0.12.0", sizeof row.version);
  g_assert_cmpstr(oct_silicon_engine(&row), ==, "vllm-0.12");
  row.dp = 4;
  g_assert_nonnull(oct_silicon_unsupported(&row));
  row.dp = 1;
  g_strlcpy(row.model, "zhipuai/GLM-5", sizeof row.model);
  g_assert_nonnull(oct_silicon_unsupported(&row));
}

/* Equal rows are one run; a row that cannot be built says why and does not end the others. */
static void
runs_are_shared_and_refusals_told(void) {
  if (!has_simgrid_or_skip())
    return;
  g_autoptr(GError) error = NULL;
  oct_silicon_row row = some_row(), big = some_row();
  const oct_silicon_row *rows[] = {&row, &row, &big};
  const guint8 loads[] = {1, 1, 1};
  oct_validate_options options = {.jobs = 2};
  g_autofree oct_silicon_run *runs = g_new0(oct_silicon_run, 3 * OCT_SILICON_LOADS);
  big.tp = 1;
  g_strlcpy(big.gemm, "", sizeof big.gemm); /* 141 GB of BF16 on one GPU of 192 fit; on H100 not */
  big.system = 0;
  g_assert_true(oct_silicon_simulate(rows, 3, loads, &options, runs, &error));
  g_assert_no_error(error);
  g_assert_cmpfloat(runs[0].tpot_s[0], >, 0.003);
  g_assert_cmpfloat(runs[0].tpot_s[0], <, 0.03);
  g_assert_cmpfloat(runs[0].tpot_s[0], ==, runs[OCT_SILICON_LOADS].tpot_s[0]);
  g_assert_null(runs[0].failed);
  g_assert_nonnull(runs[(gsize)2 * OCT_SILICON_LOADS].failed);
  g_free(runs[(gsize)2 * OCT_SILICON_LOADS].failed);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/validate/runs/a-fit-finds-factor-and-gap", a_fit_finds_factor_and_gap);
  g_test_add_func("/sim/validate/runs/a-row-is-a-configuration", a_row_is_a_configuration);
  g_test_add_func("/sim/validate/runs/shared-and-refusals-told", runs_are_shared_and_refusals_told);
  g_test_add_func("/sim/validate/runs/published-ones-are-within-bounds", published);
  g_test_add_func("/sim/validate/runs/recorded-one-is-as-quoted", recorded);
  g_test_add_func("/sim/validate/runs/what-came-after-the-fit-is-not-fitted",
                  the_future_is_not_fitted);
  return g_test_run();
}
