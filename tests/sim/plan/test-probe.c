/* Runs on a single server whose waiting times queueing theory knows: one sequence at a time, one
 * token each, 10 ms a step. Poisson arrivals: M/D/1, mean wait rho D / 2(1 - rho). */
#include "sim/plan/probe.h"

#include "sim/plan/search.h"

#define TRAFFIC "gen:chat-150,rate=1,input=1,output=1"
#define SERVICE "mock:fixed_ns=10000000,token_ns=0,sequence_ns=0"

static void
one_server(oct_replay_config *c, const char *slo) {
  g_autoptr(GError) error = NULL;
  oct_replay_config_default(c);
  c->setup.model = "llama-3.1-8b";
  c->setup.backend = OCT_REPLAY_MOCK;
  c->setup.description = SERVICE;
  c->setup.engine.instance.parallel.tensor = 1;
  c->setup.engine.max_num_seqs = 1;
  c->setup.engine.max_num_batched_tokens = 1;
  c->setup.engine.run_ahead = 0;
  c->setup.num_gpu_blocks_override = 256; /* more only take time */
  c->setup.engine.submit_lead_ns = 0;
  c->rows.path = TRAFFIC;
  c->exact_lengths = TRUE;
  g_assert_true(oct_slo_parse(&c->slo, slo, &error));
}

static json_t *
run(void *user, double rate, double stretch, GError **error) {
  return oct_plan_probe_run(user, rate, stretch, error);
}

/* Time in the system 20 ms = 10 + 10 of waiting: rho = 2/3, 66.7 a second. */
static void
test_capacity(void) {
  oct_replay_config c;
  one_server(&c, "ttft_mean=20ms");
  oct_plan_probe probe = {.config = &c, .requests_per_start = 1, .seconds = 600, .strict = TRUE};
  const oct_plan_search_options o = {
      .probe = run, .user = &probe, .guess = 20, .widen = 1.3, .tolerance = 0.02, .stretch_max = 4};
  g_autoptr(GError) error = NULL;
  json_t *found = oct_plan_search(&o, &error);
  g_assert_no_error(error);
  double low = json_number_value(json_object_get(found, "rate"));
  double high = json_number_value(json_object_get(found, "too_high"));
  g_test_message("%g to %g", low, high);
  g_assert_cmpfloat(low, <, 200.0 / 3 * 1.03);
  g_assert_cmpfloat(high, >, 200.0 / 3 / 1.03);
  json_decref(found);
}

/* An objective that never binds leaves the service rate, 100 a second, by the backlog's slope. */
static void
test_saturation(void) {
  oct_replay_config c;
  one_server(&c, "ttft_mean=1h");
  oct_plan_probe probe = {.config = &c, .requests_per_start = 1, .seconds = 300, .strict = TRUE};
  json_t *under = oct_plan_probe_run(&probe, 80, 1, NULL);
  json_t *over = oct_plan_probe_run(&probe, 115, 1, NULL);
  g_assert_true(json_is_true(json_object_get(under, "served")));
  g_assert_cmpstr(json_string_value(json_object_get(over, "verdict")), ==, "saturated");
  g_assert_false(json_is_true(json_object_get(over, "served")));
  json_decref(under);
  json_decref(over);
}

/* Giving up is a matter of time alone. */
static void
test_abort(void) {
  guint n_cut = 0, n_served = 0;
  oct_replay_config c;
  one_server(&c, "ttft_p99=60ms");
  for (double rate = 40; rate < 120; rate += 5) {
    oct_plan_probe probe = {.config = &c, .requests_per_start = 1, .seconds = 60};
    json_t *brief = oct_plan_probe_run(&probe, rate, 1, NULL);
    probe.no_abort = TRUE;
    json_t *whole = oct_plan_probe_run(&probe, rate, 1, NULL);
    gboolean cut = json_is_true(json_object_get(brief, "cut_short"));
    g_assert_false(json_is_true(json_object_get(whole, "cut_short")));
    g_assert_cmpint(json_is_true(json_object_get(brief, "served")), ==,
                    json_is_true(json_object_get(whole, "served")));
    if (cut)
      g_assert_false(json_is_true(json_object_get(whole, "slo_met")));
    else
      g_assert_true(json_equal(brief, whole));
    n_cut += cut;
    n_served += json_is_true(json_object_get(whole, "served"));
    json_decref(brief);
    json_decref(whole);
  }
  g_assert_cmpuint(n_cut, >=, 3);
  g_assert_cmpuint(n_served, >=, 3);
}

/* Outputs of 10 tokens, half as long again: what a what-if changes arrives at the engine. */
static void
test_changes(void) {
  oct_replay_config c;
  one_server(&c, "ttft_mean=1h");
  c.rows.path = "gen:chat-150,rate=1,input=1,output=10";
  oct_plan_probe probe = {.config = &c, .requests_per_start = 1, .seconds = 200};
  json_t *plain = oct_plan_probe_run(&probe, 4, 1, NULL);
  c.rows.output_scale = 1.5;
  json_t *longer = oct_plan_probe_run(&probe, 4, 1, NULL);
  double ratio = json_number_value(json_object_get(longer, "output_tokens_per_s")) /
                 json_number_value(json_object_get(plain, "output_tokens_per_s"));
  g_assert_cmpfloat_with_epsilon(ratio, 1.5, 0.05);
  json_decref(plain);
  json_decref(longer);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/plan/probe/m-d-1-has-its-known-capacity", test_capacity);
  g_test_add_func("/plan/probe/a-backlog-that-grows-is-not-served", test_saturation);
  g_test_add_func("/plan/probe/giving-up-changes-no-verdict", test_abort);
  g_test_add_func("/plan/probe/longer-outputs-are-served", test_changes);
  return g_test_run();
}
