/* One replica's share of the traffic, and what it says of all of them. */
#include "config.h"

#include "sim/plan/dealer.h"
#include "sim/plan/probe.h"

#include "engine/base/rng.h"
#include "sim/replay/jobs.h"

#define REPLICAS 4
#define ARRIVALS 40000

static void
test_turns(void) {
  g_autoptr(oct_plan_dealer) d = oct_plan_dealer_new(REPLICAS, 0, 0);
  for (guint i = 0; i < 40; i++) {
    const oct_trace_request row = {
        .arrival_ns = i * 1000000, .input_tokens = 1 + i % 7, .output_tokens = 1 + i % 5};
    g_assert_cmpint(oct_plan_dealer_deal(d, &row), ==, i % REPLICAS == 0);
  }
}

/* A second prompt does not go where the first is still computed, nor a third. */
static void
test_prompts(void) {
  g_autoptr(oct_plan_dealer) d = oct_plan_dealer_new(2, 1e-3, 1e-2);
  const oct_trace_request first = {.arrival_ns = 0, .input_tokens = 1000, .output_tokens = 10};
  const oct_trace_request brief = {.arrival_ns = 1000000, .input_tokens = 10, .output_tokens = 10};
  g_assert_true(oct_plan_dealer_deal(d, &first));
  for (int i = 0; i < 5; i++)
    g_assert_false(oct_plan_dealer_deal(d, &brief));
  /* All is over long after. */
  const oct_trace_request late = {
      .arrival_ns = G_GINT64_CONSTANT(60000000000), .input_tokens = 10, .output_tokens = 10};
  gboolean a = oct_plan_dealer_deal(d, &late), b = oct_plan_dealer_deal(d, &late);
  g_assert_true(a != b);
}

/* How far the number of sequences in the first replica is from an even part of all of them: mean of
 * squares, by turns or by load, under Poisson arrivals of very unequal lengths. */
static double
unevenness(gboolean by_load, guint *n_kept) {
  g_autoptr(oct_plan_dealer) d =
      oct_plan_dealer_new(REPLICAS, by_load ? 1e-9 : 0, by_load ? 0.01 : 0);
  g_autoptr(GArray) ends = g_array_new(FALSE, FALSE, sizeof(double));
  g_autoptr(GArray) mine = g_array_new(FALSE, FALSE, sizeof(gboolean));
  oct_rng rng;
  oct_rng_seed(&rng, 7, 0);
  double now = 0, sum = 0;
  guint n = 0, from = 0;
  *n_kept = 0;
  for (guint i = 0; i < ARRIVALS; i++) {
    now += oct_rng_exponential(&rng, 0.02);
    const guint32 out = (guint32)(1 + oct_rng_exponential(&rng, 400));
    const oct_trace_request row = {
        .arrival_ns = (gint64)(now * 1e9), .input_tokens = 1, .output_tokens = out};
    const gboolean kept = oct_plan_dealer_deal(d, &row);
    const double end = now + out * 0.01;
    *n_kept += kept;
    g_array_append_val(ends, end);
    g_array_append_val(mine, kept);
    if (i % 50 != 49)
      continue;
    double all = 0, own = 0;
    from = i > 5000 ? i - 5000 : 0; /* longer than any of them takes */
    for (guint k = from; k <= i; k++)
      if (g_array_index(ends, double, k) > now) {
        all++;
        own += g_array_index(mine, gboolean, k);
      }
    sum += (own - all / REPLICAS) * (own - all / REPLICAS);
    n++;
  }
  return sum / n;
}

static void
test_even(void) {
  guint turns, load;
  double by_turns = unevenness(FALSE, &turns), by_load = unevenness(TRUE, &load);
  g_test_message("mean square distance %g by turns, %g by load", by_turns, by_load);
  g_assert_cmpuint(turns, ==, ARRIVALS / REPLICAS);
  g_assert_cmpfloat_with_epsilon(load, ARRIVALS / REPLICAS, 0.02 * ARRIVALS / REPLICAS);
  g_assert_cmpfloat(by_load, <, 0.1 * by_turns);
}

#ifdef HAVE_SIMGRID
typedef struct pair {
  oct_plan_probe probes[2];
  double rate;
} pair;

static json_t *
run_probe(void *user, guint index, GError **error) {
  const pair *p = user;
  return oct_plan_probe_run(&p->probes[index], p->rate, 1, error);
}
#endif

/* Eight engines behind the router, and one of them for all: the same tokens per second and, at a
 * rate that is served with room, the same latencies. */
static void
test_stands_for_all(void) {
#ifndef HAVE_SIMGRID
  g_test_skip("SimGrid is not built in");
#else
  g_autoptr(GError) error = NULL;
  oct_replay_config c;
  oct_plan_workload w;
  oct_setup setup;
  oct_plan_bound bound;
  json_t *found[2];
  oct_replay_config_default(&c);
  c.rows.path = "gen:chat-150,rate=1,input=200,output=60";
  g_assert_true(oct_slo_parse(&c.slo, "ttft_p99=2s,tpot_p99=50ms", NULL));
  c.setup.model = "llama-3.1-8b";
  c.setup.node = "h200-hgx8";
  c.setup.n_replicas = 8;
  c.setup.engine.instance.parallel.tensor = 1;
  g_assert_true(oct_plan_workload_read(&c.rows, TRUE, &w, &error));
  g_assert_true(oct_setup_make(&c.setup, &setup, &error));
  g_assert_true(oct_plan_bound_of(&setup, &c.slo, &w, &bound, &error));
  pair p = {.rate = 100};
  for (int i = 0; i < 2; i++)
    p.probes[i] = (oct_plan_probe){.config = &c, .requests_per_start = 1, .seconds = 60};
  p.probes[1].alone = &bound.pace;
  p.probes[1].workload = &w;
  g_assert_true(oct_jobs_run(2, run_probe, &p, NULL, found, &error));
  g_assert_no_error(error);
  g_assert_cmpint(json_integer_value(json_object_get(found[0], "simulated")), ==, 8);
  g_assert_cmpint(json_integer_value(json_object_get(found[1], "simulated")), ==, 1);
  static const struct {
    const char *name;
    double off;
  } figures[] = {{"output_tokens_per_s", 0.05},
                 {"ttft_p50_s", 0.1},
                 {"tpot_p50_s", 0.05},
                 {"tpot_p99_s", 0.15}};
  for (gsize i = 0; i < G_N_ELEMENTS(figures); i++) {
    double all = json_number_value(json_object_get(found[0], figures[i].name));
    double one = json_number_value(json_object_get(found[1], figures[i].name));
    g_test_message("%s: all %g, one %g", figures[i].name, all, one);
    g_assert_cmpfloat_with_epsilon(one, all, figures[i].off * all);
  }
  json_decref(found[0]);
  json_decref(found[1]);
  oct_setup_clear(&setup);
  oct_plan_workload_clear(&w);
#endif
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/plan/dealer/without-times-sessions-go-by-turns", test_turns);
  g_test_add_func("/plan/dealer/a-prompt-goes-where-none-is-computed", test_prompts);
  g_test_add_func("/plan/dealer/by-load-is-more-even-than-by-turns", test_even);
  g_test_add_func("/plan/dealer/one-replica-stands-for-all", test_stands_for_all);
  return g_test_run();
}
