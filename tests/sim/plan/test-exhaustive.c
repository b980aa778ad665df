/* A plan's search against trying everything: replays of every layout, with all its replicas behind
 * the router, on a grid of rates of 5 %, with the plan's seeds. The plan's best rate is the grid's
 * within its own interval and a step of the grid, its fewest GPUs and its cheapest are the grid's.
 */
#include "config.h"

#include "sim/plan/plan.h"

#include <math.h>

#include "sim/replay/jobs.h"
#include "sim/replay/report.h"

#define TRAFFIC   "gen:chat-150,rate=1,input=400,output=40"
#define SLO       "ttft_p99=100ms,tpot_p99=16ms"
#define SECONDS   10.0
#define SEEDS     3
#define GPUS      2
#define STEP      1.05
#define LOWEST    50.0 /* sessions a second */
#define RATES     28   /* to 187 a second */
#define PRICE     2.0
#define STRETCHES 3 /* once, twice, four times the horizon */

#ifdef HAVE_SIMGRID
/* Every way to use one or two GPUs. */
static const struct {
  const char *label;
  guint32 tensor, pipeline, data, replicas;
} layouts[] = {{"TP1 x1", 1, 1, 1, 1},
               {"TP1 x2", 1, 1, 1, 2},
               {"TP2 x1", 2, 1, 1, 1},
               {"TP1 DP2 x1", 1, 1, 2, 1},
               {"TP1 PP2 x1", 1, 2, 1, 1}};
#define LAYOUTS G_N_ELEMENTS(layouts)

static void
base_config(oct_replay_config *c) {
  oct_replay_config_default(c);
  c->rows.path = TRAFFIC;
  c->setup.seed = 1;
  c->setup.model = "llama-3.1-8b";
  c->setup.node = "h200-hgx8";
  c->setup.engine.max_num_seqs = 64;
  g_assert_true(oct_slo_parse(&c->slo, SLO, NULL));
}

/* ---------------------------------------------------------------- everything */

/* doc/plan.md 2: whether the layout serves the rate, -1 = cannot be told from a run so long. */
static int
judge(const oct_replay_config *config, const oct_replay_result *r) {
  const oct_measured *m = &r->drive.measured;
  json_t *report = oct_replay_brief_json(config, r);
  const double turned_away = (double)(m->requests - m->fates[OCT_FATE_ANSWERED]);
  const gboolean met = json_is_true(oct_report_at(report, "slo.met"));
  const double unserved = oct_report_number(report, "verdict.unserved_share");
  json_decref(report);
  if (!met || m->requests == 0 || turned_away > 0.005 * (double)m->requests)
    return 0;
  if (m->verdict == OCT_VERDICT_UNDECIDED)
    return -1;
  return m->verdict == OCT_VERDICT_STABLE && !(unserved > 0.005);
}

typedef struct grid_run {
  guint layout, seed, rate, stretch;
} grid_run;

static double
rate_at(guint i) {
  return LOWEST * pow(STEP, i);
}

static json_t *
run_one(void *user, guint index, GError **error) {
  const grid_run *run = &((const grid_run *)user)[index];
  oct_replay_config c;
  base_config(&c);
  oct_parallel *p = &c.setup.engine.instance.parallel;
  p->tensor = layouts[run->layout].tensor;
  p->pipeline = layouts[run->layout].pipeline;
  p->data = layouts[run->layout].data;
  c.setup.n_replicas = layouts[run->layout].replicas;
  c.setup.seed += run->seed;
  c.rows.seed = c.setup.seed;
  c.rows.rate = rate_at(run->rate);
  const double seconds = SECONDS * (1u << run->stretch);
  c.duration_ns = (oct_time)(seconds * 1e9);
  c.warmup_ns = (oct_time)(seconds * 0.25 * 1e9);
  oct_trace_options trace;
  oct_trace_options_init(&trace);
  trace.limit = G_MAXUINT64;
  c.rows.trace = &trace;
  c.rows.kept_max = (guint64)(seconds * c.rows.rate * 1.25) + 200;
  oct_replay_result result;
  if (!oct_replay_run(&c, &result, error))
    return NULL;
  const int served = judge(&c, &result);
  oct_replay_result_clear(&result);
  return json_integer(served);
}

/* The highest rate of the grid that is served, for each layout and seed; 0 = none. */
static void
try_everything(double best[LAYOUTS][SEEDS]) {
  g_autofree grid_run *runs = g_new0(grid_run, LAYOUTS * SEEDS * RATES);
  g_autofree int *served = g_new0(int, LAYOUTS *SEEDS *RATES);
  for (guint i = 0; i < LAYOUTS * SEEDS * RATES; i++) {
    runs[i] = (grid_run){.layout = i / RATES / SEEDS, .seed = i / RATES % SEEDS, .rate = i % RATES};
    served[i] = -1;
  }
  for (guint stretch = 0; stretch < STRETCHES; stretch++)
    for (guint first = 0; first < LAYOUTS * SEEDS * RATES;) {
      grid_run some[OCT_JOBS_MAX];
      guint which[OCT_JOBS_MAX], n = 0;
      json_t *found[OCT_JOBS_MAX];
      g_autoptr(GError) error = NULL;
      for (; first < LAYOUTS * SEEDS * RATES && n < OCT_JOBS_MAX; first++)
        if (served[first] < 0) {
          runs[first].stretch = stretch;
          some[n] = runs[first];
          which[n++] = first;
        }
      (void)!oct_jobs_run(n, run_one, some, NULL, found, &error);
      g_assert_no_error(error);
      for (guint k = 0; k < n; k++) {
        served[which[k]] = (int)json_integer_value(found[k]);
        json_decref(found[k]);
      }
    }
  for (guint i = 0; i < LAYOUTS * SEEDS * RATES; i++) {
    double *rate = &best[runs[i].layout][runs[i].seed];
    *rate = MAX(*rate, served[i] == 1 ? rate_at(runs[i].rate) : 0);
  }
}

/* ---------------------------------------------------------------- the plan */

static json_t *
plan_of(oct_plan_goal goal, double wanted) {
  static const double price = PRICE;
  oct_replay_config base;
  oct_plan_options o;
  g_autoptr(GError) error = NULL;
  base_config(&base);
  const oct_plan_variant variant = {.options = base.setup, .label = ""};
  oct_plan_options_default(&o);
  o.base = &base;
  o.endless = TRUE;
  o.n_variants = 1;
  o.variants = &variant;
  o.gpu_hour_prices = &price;
  o.goal = goal;
  o.wanted = wanted;
  o.gpus_max = GPUS;
  o.full_seconds = SECONDS;
  o.coarse_requests = 400;
  o.seeds = SEEDS;
  json_t *plan = oct_plan_make(&o, &error);
  g_assert_no_error(error);
  return plan;
}

static double
number(const json_t *object, const char *name) {
  return json_number_value(json_object_get(object, name));
}

static const json_t *
best_of(const json_t *plan) {
  return json_array_get(json_object_get(plan, "finals"), 0);
}

static guint
layout_named(const json_t *final) {
  for (guint i = 0; i < LAYOUTS; i++)
    if (g_strcmp0(json_string_value(json_object_get(final, "label")), layouts[i].label) == 0)
      return i;
  g_error("the plan has a layout that was not tried: %s",
          json_string_value(json_object_get(final, "label")));
  return 0;
}

static guint32
gpus_of(guint i) {
  return layouts[i].tensor * layouts[i].pipeline * layouts[i].data * layouts[i].replicas;
}

/* The fewest GPUs that serve `wanted` in the mean of all seeds. */
static guint32
fewest(const double mean[LAYOUTS], double wanted) {
  guint32 least = G_MAXUINT32;
  for (guint i = 0; i < LAYOUTS; i++)
    if (mean[i] >= wanted)
      least = MIN(least, gpus_of(i));
  return least;
}
#endif

static void
test_search(void) {
#ifndef HAVE_SIMGRID
  g_test_skip("SimGrid is not built in");
#else
  double all[LAYOUTS][SEEDS] = {{0}}, mean[LAYOUTS] = {0};
  guint best = 0, cheapest = 0;
  try_everything(all);
  for (guint i = 0; i < LAYOUTS; i++) {
    for (guint k = 0; k < SEEDS; k++)
      mean[i] += all[i][k] / SEEDS;
    g_test_message("%s: %.4g /s", layouts[i].label, mean[i]);
    best = mean[i] > mean[best] ? i : best;
    cheapest = mean[i] / gpus_of(i) > mean[cheapest] / gpus_of(cheapest) ? i : cheapest;
  }
  g_assert_cmpfloat(mean[best], >, LOWEST);
  g_assert_cmpfloat(mean[best], <, rate_at(RATES - 1)); /* the grid has its end in it */

  /* The highest rate: its layout's, and no other's is higher by more than the same. */
  json_t *plan = plan_of(OCT_PLAN_GOAL_RATE, 0);
  const json_t *first = best_of(plan);
  const guint chosen = layout_named(first);
  const double rate = number(first, "rate"), half = number(first, "rate_half");
  g_test_message("the plan: %s, %.4g +- %.3g /s", layouts[chosen].label, rate, half);
  g_assert_cmpfloat(fabs(rate - mean[chosen]), <=, half + (STEP - 1) * mean[chosen]);
  g_assert_cmpfloat(mean[best] - rate, <=, half + (STEP - 1) * mean[best]);
  g_assert_cmpfloat(half, <, 0.2 * rate); /* an interval that says something */
  json_decref(plan);

  /* The fewest GPUs, on both sides of what one GPU can. */
  const double few = 0.8 * mean[0], many = 0.5 * (mean[0] + mean[best]);
  const double wanted[] = {few, many};
  for (guint i = 0; i < G_N_ELEMENTS(wanted); i++) {
    plan = plan_of(OCT_PLAN_GOAL_GPUS, wanted[i]);
    g_assert_cmpuint(gpus_of(layout_named(best_of(plan))), ==, fewest(mean, wanted[i]));
    json_decref(plan);
  }
  g_assert_cmpuint(fewest(mean, few), <, fewest(mean, many));

  /* The cheapest per token: as much for the money as the grid's cheapest. */
  plan = plan_of(OCT_PLAN_GOAL_COST, 0);
  first = best_of(plan);
  const double most = mean[cheapest] / gpus_of(cheapest);
  const double got = number(first, "rate") / gpus_of(layout_named(first));
  g_assert_cmpfloat(got, >=,
                    most / STEP - number(first, "rate_half") / gpus_of(layout_named(first)));
  g_assert_cmpfloat_with_epsilon(number(first, "price_per_million_tokens"),
                                 PRICE / 3600 / (got * 40) * 1e6,
                                 0.02 * PRICE / 3600 / (got * 40) * 1e6);
  json_decref(plan);
#endif
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/plan/exhaustive/the-search-finds-what-trying-everything-finds", test_search);
  return g_test_run();
}
