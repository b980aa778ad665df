/* Whole replays, from options to their report: in child processes, because simgrid has one world in
 * each. */
#include "config.h"

#include "sim/replay/replay.h"

#include <math.h>
#include <string.h>

#include "sim/replay/capacity.h"
#include "sim/replay/jobs.h"
#include "sim/replay/report.h"

static json_t *
run_job(void *user, guint index, GError **error) {
  const oct_replay_config *config = (const oct_replay_config *)user + index;
  oct_replay_result result;
  if (!oct_replay_run(config, &result, error))
    return NULL;
  json_t *report = oct_replay_json(config, &result);
  oct_replay_result_clear(&result);
  return report;
}

static void
run_all(oct_replay_config *configs, guint n, json_t **reports) {
  g_autoptr(GError) error = NULL;
  gboolean good = oct_jobs_run(n, run_job, configs, NULL, reports, &error);
  g_assert_no_error(error);
  g_assert_true(good);
}

static void
config_for(oct_replay_config *c, const char *trace, const char *model, const char *node) {
  oct_replay_config_default(c);
  c->rows.path = trace;
  c->setup.model = model;
  c->setup.node = node;
  c->setup.backend = node != NULL ? OCT_REPLAY_SIMGRID : OCT_REPLAY_MOCK;
}

/* All of two reports but how they were made. */
static void
assert_equal(json_t *a, json_t *b) {
  json_t *both[2] = {a, b};
  for (int i = 0; i < 2; i++) {
    json_object_del(both[i], "run");
    json_object_del(json_object_get(both[i], "configuration"), "simulation");
  }
  const char *key;
  json_t *value;
  json_object_foreach(a, key, value) {
    if (json_equal(value, json_object_get(b, key)))
      continue;
    g_autofree char *left = json_dumps(value, JSON_ENCODE_ANY);
    g_autofree char *right = json_dumps(json_object_get(b, key), JSON_ENCODE_ANY);
    g_error("%s differs: %.300s … %.300s", key, left, right);
  }
  g_assert_cmpuint(json_object_size(a), ==, json_object_size(b));
}

/* The whole report, not the log alone, is the same when every step is stepped. */
static void
test_forward(gconstpointer data) {
  oct_replay_config configs[4];
  json_t *reports[4];
  const char *node = data;
#ifndef HAVE_SIMGRID
  if (node != NULL) {
    g_test_skip("SimGrid is not built in");
    return;
  }
#endif
  for (int i = 0; i < 4; i++)
    config_for(&configs[i], "gen:chat-150,rate=6,requests=1500", "llama-3.1-8b", node);
  configs[1].setup.engine.no_forward = TRUE;
  configs[3].setup.unchecked = TRUE;
  run_all(configs, 4, reports);
  g_assert_cmpfloat(oct_report_number(reports[0], "run.forwarded_steps"), >, 1000);
  g_assert_cmpfloat(oct_report_number(reports[1], "run.forwarded_steps"), ==, 0);
  assert_equal(reports[0], reports[1]);
  assert_equal(reports[0], reports[2]); /* and once more, the same */
  assert_equal(reports[0], reports[3]); /* whether pages are watched or not */
  for (int i = 0; i < 4; i++)
    json_decref(reports[i]);
}

static void
test_figures(void) {
  oct_replay_config c;
  json_t *r;
  config_for(&c, "gen:rate=20,input=100,output=50,requests=2000", "llama-3.1-8b", NULL);
  g_assert_true(oct_slo_parse(&c.slo, "ttft_p99=1s,tpot_p50=1us", NULL));
  run_all(&c, 1, &r);
  g_assert_cmpfloat_with_epsilon(oct_report_number(r, "throughput.offered_requests_per_s"), 20, 2);
  g_assert_cmpfloat_with_epsilon(oct_report_number(r, "throughput.requests_per_s"), 20, 2);
  double in = oct_report_number(r, "throughput.input_tokens_per_s");
  double out = oct_report_number(r, "throughput.output_tokens_per_s");
  g_assert_cmpfloat_with_epsilon(in / out, 2, 0.1);
  g_assert_cmpfloat(oct_report_number(r, "verdict.offered_tokens_per_s"), >, 0.9 * in);
  g_assert_cmpstr(json_string_value(oct_report_at(r, "verdict.verdict")), ==, "stable");
  const json_t *list = oct_report_at(r, "slo.objectives");
  g_assert_true(json_is_true(json_object_get(json_array_get(list, 0), "met")));
  g_assert_true(json_is_false(json_object_get(json_array_get(list, 1), "met")));
  g_assert_true(json_is_false(oct_report_at(r, "slo.met")));
  g_assert_cmpfloat(oct_report_number(r, "slo.attainment"), ==, 0);
  g_assert_cmpfloat(oct_report_number(r, "requests.good"), ==, 0);
  g_assert_null(oct_report_at(r, "scheduler.prefix_hit_share"));
  g_assert_null(oct_report_at(r, "latency_s.at_s"));
  double parts = 0;
  static const char *const names[] = {"compute", "memory", "collective", "fixed", "copy", "wait"};
  for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autofree char *path = g_strdup_printf("steps.parts.%s", names[i]);
    parts += oct_report_number(r, path);
  }
  g_assert_cmpfloat_with_epsilon(parts, 1, 1e-9);
  json_decref(r);
}

/* Parts of a step sum to it; what binds changes with the batch; users are what the tightest bound
 * leaves. */
static void
test_step_parts(void) {
#ifndef HAVE_SIMGRID
  g_test_skip("SimGrid is not built in");
#else
  for (int own = 0; own < 2; own++) {
    oct_replay_config c;
    json_t *r;
    gsize i;
    const json_t *row, *part;
    const char *key;
    config_for(&c, "gen:rate=1,input=1000,output=100,requests=60", "kimi-k3", "b300-hgx8");
    c.setup.moe_kernel = own ? OCT_MOE_KERNEL_OWN : OCT_MOE_KERNEL_MEASURED;
    g_assert_true(oct_slo_parse(&c.slo, "tpot_p99=60ms", NULL));
    run_all(&c, 1, &r);
    double before = 0;
    json_array_foreach(oct_report_at(r, "step_parts.rows"), i, row) {
      double sum = 0, step_s = oct_report_number(row, "step_s");
      json_object_foreach(json_object_get((json_t *)row, "parts_s"), key, part) sum +=
          json_number_value(part);
      g_assert_cmpfloat_with_epsilon(sum, step_s, 1e-6 * step_s);
      g_assert_cmpfloat(oct_report_number(row, "parts_s.kda"), >, 0);
      g_assert_cmpfloat(oct_report_number(row, "parts_s.mla"), >, 0);
      g_assert_cmpfloat(step_s, >, before);
      before = step_s;
    }
    const json_t *turn = json_array_get(oct_report_at(r, "step_parts.takes_over"), 0);
    g_assert_cmpfloat(oct_report_number(turn, "batch"), ==, 1);
    const double users = oct_report_number(r, "step_parts.users.users");
    const double by_time = oct_report_number(r, "step_parts.users.by_time_per_token");
    g_assert_cmpfloat(by_time, >=, 1);
    g_assert_cmpfloat(users, ==,
                      MIN(by_time, oct_report_number(r, "step_parts.users.by_max_num_seqs")));
    g_assert_cmpfloat(oct_report_number(r, "step_parts.users.by_kv_pages"), >, users);
    json_decref(r);
  }
#endif
}

static void
test_node(void) {
#ifndef HAVE_SIMGRID
  g_test_skip("SimGrid is not built in");
#else
  oct_replay_config c;
  json_t *r;
  config_for(&c, "gen:rate=1,input=1000,output=100,requests=60", "kimi-k3", "b300-hgx8");
  run_all(&c, 1, &r);
  gsize i;
  const json_t *resource, *row;
  gboolean hbm = FALSE;
  json_array_foreach(oct_report_at(r, "resources"), i, resource) {
    double use = oct_report_number(resource, "utilisation");
    g_assert_cmpfloat(use, >=, 0);
    g_assert_cmpfloat(use, <=, 1);
    if (strcmp(json_string_value(json_object_get(resource, "name")), "gpu3-hbm") == 0)
      hbm = use > 0.01;
  }
  g_assert_true(hbm);
  g_assert_cmpuint(json_array_size(oct_report_at(r, "step_times.rows")), ==, 7);
  double before = 0;
  json_array_foreach(oct_report_at(r, "step_times.rows"), i, row) {
    double measured = oct_report_number(row, "measured_s"),
           floor = oct_report_number(row, "floor_s");
    g_assert_cmpfloat(measured, >, floor);
    g_assert_cmpfloat(oct_report_number(row, "target_s"), >, floor);
    if (i < 6)
      g_assert_cmpfloat(measured, >, before);
    before = measured;
  }
  g_assert_cmpfloat(oct_report_number(r, "use.state_used.max"), >, 0);
  g_assert_cmpfloat(oct_report_number(r, "steps.busy_share"), >, 0.1);
  json_decref(r);
#endif
}

/* Everything at once: the rate is that of the whole run. */
static void
test_at_once(void) {
  oct_replay_config c;
  json_t *r;
  config_for(&c, "gen:rate=inf,input=100,output=50,requests=400", "llama-3.1-8b", NULL);
  run_all(&c, 1, &r);
  double span = oct_report_number(r, "window.span_s");
  g_assert_cmpfloat_with_epsilon(oct_report_number(r, "throughput.whole_run.requests_per_s"),
                                 400 / span, 1e-6);
  g_assert_cmpfloat_with_epsilon(oct_report_number(r, "throughput.whole_run.output_tokens_per_s"),
                                 400 * 50 / span, 1e-6);
  /* And so are all other figures. */
  g_assert_true(json_is_true(oct_report_at(r, "window.extended")));
  g_assert_cmpfloat(oct_report_number(r, "window.end_s"), ==, span);
  g_assert_cmpfloat_with_epsilon(oct_report_number(r, "throughput.output_tokens_per_s"),
                                 400 * 50 / span, 1e-6);
  g_assert_cmpfloat(oct_report_number(r, "requests.measured"), ==, 400);
  g_assert_cmpfloat(oct_report_number(r, "latency_s.itl.count"), ==, 400 * 49);
  json_decref(r);
}

/* The recorded hour, where it is. */
static void
test_recorded(void) {
  const char *shared = g_getenv("OCT_SHARED");
  g_autofree char *path = shared != NULL
                              ? g_build_filename(shared, "traces", "azure2023_conv.csv", NULL)
                              : g_test_build_filename(G_TEST_DIST, "..", "..", "shared", "traces",
                                                      "azure2023_conv.csv", NULL);
  if (!g_file_test(path, G_FILE_TEST_EXISTS)) {
    g_test_skip("no azure2023_conv.csv");
    return;
  }
  oct_replay_config c;
  json_t *r;
  config_for(&c, path, "llama-3.1-8b", NULL);
  run_all(&c, 1, &r);
  g_assert_cmpfloat(oct_report_number(r, "trace.requests_sent"), ==, 19366);
  g_assert_cmpfloat_with_epsilon(oct_report_number(r, "window.load_end_s"), 3502, 2);
  json_decref(r);
}

/* One server of 10 ms a request serves 100 a second, and no more. */
static void
test_capacity(void) {
  oct_capacity_options o = {.own_rate = 250, .load = 0.5};
  g_autoptr(GError) error = NULL;
  config_for(&o.config, "gen:rate=250,input=1,output=1,requests=1000000", "llama-3.1-8b", NULL);
  o.config.setup.description = "mock:fixed_ns=10000000,token_ns=0,sequence_ns=0";
  o.config.setup.engine.max_num_seqs = 1;
  o.config.setup.engine.max_num_batched_tokens = 512;
  o.config.exact_lengths = TRUE;
  o.config.duration_ns = 100000000000;
  json_t *found = oct_capacity_find(&o, &error);
  g_assert_no_error(error);
  double rate = oct_report_number(found, "rate");
  g_test_message("found %.2f per second", rate);
  g_assert_cmpfloat(rate, >, 95);
  g_assert_cmpfloat(rate, <, 100.5);
  g_assert_cmpfloat(oct_report_number(found, "too_high"), <=, 1.021 * rate);
  g_assert_cmpfloat_with_epsilon(oct_report_number(found, "own_ratio"), 250 / rate, 1e-9);
  g_assert_cmpstr(json_string_value(oct_report_at(found, "at_own_rate.verdict.verdict")), ==,
                  "saturated");
  g_assert_cmpfloat_with_epsilon(
      oct_report_number(found, "at_load.throughput.offered_requests_per_s"), rate / 2, 3);
  json_decref(found);
}

/* With an objective it is the highest rate that meets it: waits grow long before the server is
 * full. */
static void
test_capacity_slo(void) {
  oct_capacity_options o = {.own_rate = 250, .load = 0.5};
  g_autoptr(GError) error = NULL;
  config_for(&o.config, "gen:rate=250,input=1,output=1,requests=1000000", "llama-3.1-8b", NULL);
  o.config.setup.description = "mock:fixed_ns=10000000,token_ns=0,sequence_ns=0";
  o.config.setup.engine.max_num_seqs = 1;
  o.config.setup.engine.max_num_batched_tokens = 512;
  o.config.exact_lengths = TRUE;
  o.config.duration_ns = 100000000000;
  g_assert_true(oct_slo_parse(&o.config.slo, "ttft_p99=50ms", &error));
  json_t *found = oct_capacity_find(&o, &error);
  g_assert_no_error(error);
  double rate = oct_report_number(found, "rate");
  g_test_message("found %.2f per second", rate);
  g_assert_cmpfloat(rate, >, 50);
  g_assert_cmpfloat(rate, <, 90);
  gsize i;
  const json_t *probe;
  json_array_foreach(json_object_get(found, "probes"), i, probe) {
    gboolean served = json_is_true(json_object_get(probe, "served"));
    g_assert_true(!served || oct_report_number(probe, "ttft_p99_s") <= 0.05);
  }
  g_assert_cmpfloat(oct_report_number(found, "at_load.latency_s.ttft.p99"), <, 0.05);
  json_decref(found);
}

/* ---------------------------------------------------------------- numbers for people */

static void
test_numbers(void) {
  static const struct {
    double value;
    const char *text;
  } times[] = {
      {0, "0 s"},           {1e-9, "0.00 us"},      {1.5e-6, "1.50 us"}, {9.994e-6, "9.99 us"},
      {99.96e-6, "100 us"}, {0.0012345, "1.23 ms"}, {0.99996, "1.00 s"}, {59.94, "59.9 s"},
      {1234.5, "1234 s"},   {36000, "10.0 h"},      {NAN, "-"},          {-0.02, "-20.0 ms"}};
  for (gsize i = 0; i < G_N_ELEMENTS(times); i++)
    g_assert_cmpstr(oct_report_seconds(times[i].value), ==, times[i].text);
  static const struct {
    double value;
    const char *text;
  } counts[] = {{0, "0"},
                {7, "7"},
                {0.5, "0.50"},
                {12.34, "12.3"},
                {999, "999"},
                {1000, "1,000"},
                {1234567, "1,234,567"},
                {-1234, "-1,234"},
                {99.97, "100"},
                {123456.7, "123,457"},
                {NAN, "-"}};
  for (gsize i = 0; i < G_N_ELEMENTS(counts); i++)
    g_assert_cmpstr(oct_report_count(counts[i].value), ==, counts[i].text);
  g_assert_cmpstr(oct_report_share(0.5), ==, "50.0%");
  g_assert_cmpstr(oct_report_share(0.01234), ==, "1.23%");
  g_assert_cmpstr(oct_report_share(NAN), ==, "-");
}

static void
test_failure(void) {
  oct_replay_config c;
  oct_replay_result result;
  g_autoptr(GError) error = NULL;
  config_for(&c, "/nonexistent/trace.csv", "llama-3.1-8b", NULL);
  g_assert_false(oct_replay_run(&c, &result, &error));
  g_assert_nonnull(strstr(error->message, "/nonexistent/trace.csv"));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_data_func("/replay/replay/fast-forward-gives-the-same-report-on-mock", NULL,
                       test_forward);
  g_test_add_data_func("/replay/replay/fast-forward-gives-the-same-report-on-simgrid", "h200x1",
                       test_forward);
  g_test_add_func("/replay/replay/figures-agree-with-the-load", test_figures);
  g_test_add_func("/replay/replay/a-step-is-its-parts", test_step_parts);
  g_test_add_func("/replay/replay/a-node-has-uses-and-step-times-above-the-floor", test_node);
  g_test_add_func("/replay/replay/load-sent-at-once-has-the-rate-of-the-whole-run", test_at_once);
  g_test_add_func("/replay/replay/a-recorded-trace-is-replayed", test_recorded);
  g_test_add_func("/replay/replay/the-capacity-of-one-server-is-found", test_capacity);
  g_test_add_func("/replay/replay/a-capacity-meets-its-objectives", test_capacity_slo);
  g_test_add_func("/replay/replay/numbers-are-short", test_numbers);
  g_test_add_func("/replay/replay/a-missing-trace-is-an-error", test_failure);
  return g_test_run();
}
