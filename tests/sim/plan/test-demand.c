/* The worst stretch of a trace, against one that is looked for by hand. */
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

#include "engine/base/rng.h"
#include "sim/plan/demand.h"

#define N 500

typedef struct row {
  double s;
  guint tokens;
} row;

/* A trace with a rush in its third quarter; its path, owned. */
static char *
write_trace(const char *folder, row *rows) {
  char *path = g_build_filename(folder, "rush.jsonl", NULL);
  g_autoptr(GString) text = g_string_new("{\"octet_trace\":1}\n");
  oct_rng rng;
  double now = 0;
  oct_rng_seed(&rng, 5, 1);
  for (guint i = 0; i < N; i++) {
    now += oct_rng_exponential(&rng, i > 300 && i < 400 ? 0.2 : 1);
    /* Microseconds: what is written is what is compared. */
    rows[i] = (row){floor(now * 1e6) / 1e6, 10 + (guint)(90 * oct_rng_uniform(&rng))};
    g_string_append_printf(text,
                           "{\"arrival_us\": %.0f, \"input_tokens\": %u, "
                           "\"output_tokens\": 5}\n",
                           rows[i].s * 1e6, rows[i].tokens);
  }
  g_assert_true(g_file_set_contents(path, text->str, -1, NULL));
  return path;
}

static void
test_worst(void) {
  row rows[N];
  g_autoptr(GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp("octet-demand-XXXXXX", NULL);
  g_autofree char *path = write_trace(folder, rows);
  const oct_rows_options options = {.path = path};
  oct_plan_workload workload;
  oct_plan_demand d;
  g_assert_true(oct_plan_workload_read(&options, FALSE, &workload, &error));
  g_assert_no_error(error);
  const oct_plan_asked asked = {.growth = 2, .window_ns = 10 * G_GINT64_CONSTANT(1000000000)};
  g_assert_true(oct_plan_demand_find(&asked, &options, &workload, &d, &error));
  g_assert_no_error(error);
  double most = 0, total = 0, starts = 0;
  for (guint i = 0; i < N; i++) {
    double tokens = 0, n = 0;
    total += rows[i].tokens + 5;
    for (guint k = 0; k <= i; k++)
      if (rows[k].s > rows[i].s - 10) {
        tokens += rows[k].tokens + 5;
        n++;
      }
    if (tokens > most) {
      most = tokens;
      starts = n;
    }
  }
  double parts = (rows[N - 1].s - rows[0].s) / 10;
  g_assert_cmpfloat_with_epsilon(d.peak, most * parts / total, 1e-6);
  g_assert_cmpfloat_with_epsilon(d.window_starts, starts * parts / N, 1e-6);
  g_assert_cmpfloat(d.peak, >, 2);
  g_assert_cmpfloat_with_epsilon(d.rate, workload.own_rate * 2 * d.peak, 1e-9);
  oct_plan_workload_clear(&workload);
  (void)g_remove(path);
  (void)g_rmdir(folder);
}

static void
test_refused(void) {
  row rows[N];
  g_autoptr(GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp("octet-demand-XXXXXX", NULL);
  g_autofree char *path = write_trace(folder, rows);
  oct_rows_options options = {.path = path};
  oct_plan_workload workload = {.n_total = N, .own_rate = 1};
  oct_plan_demand d;
  oct_plan_asked asked = {.window_ns = 3600 * G_GINT64_CONSTANT(1000000000)};
  g_assert_false(oct_plan_demand_find(&asked, &options, &workload, &d, &error));
  g_assert_nonnull(strstr(error->message, "shorter than that"));
  g_clear_error(&error);
  workload.n_total = 0;
  g_assert_false(oct_plan_demand_find(&asked, &options, &workload, &d, &error));
  g_assert_nonnull(strstr(error->message, "without an end"));
  asked = (oct_plan_asked){0};
  g_assert_true(oct_plan_demand_find(&asked, &options, &workload, &d, NULL));
  g_assert_cmpfloat(d.rate, ==, 0);
  (void)g_remove(path);
  (void)g_rmdir(folder);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/plan/demand/the-worst-stretch-is-found", test_worst);
  g_test_add_func("/plan/demand/a-stretch-that-is-not-there-is-refused", test_refused);
  return g_test_run();
}
