/* Reports compared: the same run, a slower one, and other seeds of the same traffic. */
#include <math.h>
#include <string.h>

#include "sim/compare/compare.h"
#include "sim/replay/replay.h"
#include "sim/replay/report.h"

#define SEEDS 24

/* A queue at about 70 % load on mock, as a report. */
static json_t *
run_seed(guint64 seed, gint64 step_ns, guint64 limit) {
  g_autoptr(GError) error = NULL;
  g_autofree char *world = g_strdup_printf("mock:fixed_ns=%" G_GINT64_FORMAT, step_ns);
  g_autofree char *trace = g_strdup_printf(
      "gen:rate=7,input=exponential:100,output=exponential:10,requests=%" G_GUINT64_FORMAT, limit);
  oct_replay_config config;
  oct_replay_config_default(&config);
  config.setup.model = "llama-3.1-8b";
  config.setup.backend = OCT_REPLAY_MOCK;
  config.setup.description = world;
  config.setup.engine.max_num_seqs = 1;
  config.setup.engine.instance.parallel.tensor = 1;
  config.setup.seed = seed;
  config.rows.path = trace;
  config.rows.seed = seed;
  config.exact_lengths = TRUE;
  config.warmup_ns = 0;
  config.detail = TRUE;
  oct_replay_result result;
  g_assert_true(oct_replay_run(&config, &result, &error));
  g_assert_no_error(error);
  json_t *report = oct_replay_json(&config, &result);
  oct_replay_result_clear(&result);
  return report;
}

static guint
n_differ(const json_t *compared) {
  const json_t *t;
  gsize i;
  guint n = 0;
  json_array_foreach(json_object_get(compared, "tests"), i, t) n +=
      json_is_true(json_object_get(t, "differs"));
  return n;
}

static void
test_same(void) {
  json_t *a = run_seed(1, 10000000, 1000);
  json_t *c = oct_compare_make(a, a, NULL);
  g_assert_true(json_is_true(json_object_get(c, "paired")));
  g_assert_cmpuint(json_array_size(json_object_get(c, "tests")), ==, 12);
  g_assert_cmpuint(n_differ(c), ==, 0);
  const json_t *t;
  gsize i;
  json_array_foreach(json_object_get(c, "tests"), i, t) {
    g_assert_cmpfloat(oct_report_number(t, "difference"), ==, 0);
    g_assert_cmpfloat(oct_report_number(t, "p"), ==, 1);
  }
  json_decref(c);
  json_decref(a);
}

/* Steps that take a tenth longer: per token just that, and the queue makes more of it. */
static void
test_slower(void) {
  json_t *a = run_seed(1, 10000000, 1000), *b = run_seed(1, 11000000, 1000);
  json_t *c = oct_compare_make(a, b, NULL);
  g_assert_true(json_is_true(json_object_get(c, "paired")));
  const json_t *t;
  gsize i;
  guint seen = 0;
  json_array_foreach(json_object_get(c, "tests"), i, t) {
    const char *name = json_string_value(json_object_get(t, "name"));
    double relative = oct_report_number(t, "relative");
    if (strcmp(name, "TPOT p50") == 0) {
      g_assert_cmpfloat_with_epsilon(relative, 0.1, 0.01);
      g_assert_true(json_is_true(json_object_get(t, "differs")));
      seen++;
    }
    if (strcmp(name, "E2E mean") == 0) {
      g_assert_cmpfloat(relative, >, 0.1);
      g_assert_true(json_is_true(json_object_get(t, "differs")));
      seen++;
    }
  }
  g_assert_cmpuint(seen, ==, 2);
  json_decref(c);
  json_decref(a);
  json_decref(b);
}

/* Other requests of the same kind are no difference, in most comparisons; and are no pairs. */
static void
test_seeds(void) {
  json_t *reports[SEEDS];
  guint alarms = 0;
  for (guint i = 0; i < SEEDS; i++)
    reports[i] = run_seed(i + 1, 10000000, 1500);
  for (guint i = 0; i + 1 < SEEDS; i += 2) {
    json_t *c = oct_compare_make(reports[i], reports[i + 1], NULL);
    g_assert_true(json_is_false(json_object_get(c, "paired")));
    alarms += n_differ(c) > 0;
    json_decref(c);
  }
  /* Twelve comparisons of which one in twenty may be wrong: three would be once in fifty. */
  g_test_message("%u of %u pairs of seeds differ", alarms, SEEDS / 2);
  g_assert_cmpuint(alarms, <, 3);
  for (guint i = 0; i < SEEDS; i++)
    json_decref(reports[i]);
}

static void
test_too_few(void) {
  g_autoptr(GError) error = NULL;
  json_t *a = run_seed(1, 10000000, 50), *b = run_seed(1, 10000000, 200);
  g_assert_null(oct_compare_make(a, b, &error));
  g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION);
  g_assert_nonnull(strstr(error->message, "are too few, 200 are needed"));
  g_clear_error(&error);
  json_object_del(b, "detail");
  g_assert_null(oct_compare_make(b, b, &error));
  g_assert_nonnull(strstr(error->message, "keeps no requests"));
  json_decref(a);
  json_decref(b);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/compare/a-run-does-not-differ-from-itself", test_same);
  g_test_add_func("/compare/slower-steps-are-found-in-pairs", test_slower);
  g_test_add_func("/compare/other-seeds-are-no-difference", test_seeds);
  g_test_add_func("/compare/too-few-requests-are-refused", test_too_few);
  return g_test_run();
}
