/* What is lost by taking a step as a whole: the same step, once as one job of a few groups and once
 * layer by layer, beside the same traffic. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backends/simgrid/flows.h"
#include "sim/cost/cost.h"
#include "tests/backends/simgrid/child.h"

#define GPUS 4

typedef struct traffic {
  const char *what;
  double hbm_factor;  /* of the memory's capacity that is left */
  double send_part;   /* a KV send over NVLink for this part of the step alone */
  double copy_part;   /* copies from both sockets to every GPU */
  double first, last; /* the send lives in this part of the step; last 0 = from the start on */
} traffic;

typedef struct job {
  const char *profile, *model;
  guint32 tokens;
  gboolean prefill;
  const traffic *beside;
  gboolean fine;
} job;

typedef struct world {
  oct_profile *profile;
  oct_platform *platform;
  oct_solver *solver;
  oct_timers timers;
  oct_flows *flows;
  oct_time now, ended;
  oct_stage_price price;
  guint n_layers, layer;
  gboolean fine;
  const traffic *beside;
  oct_job step, others[8];
  oct_timer begins[8];
} world;

static oct_bundle *
over(world *w, guint (*route)(const oct_platform *, guint)) {
  guint16 routes[GPUS];
  for (guint i = 0; i < GPUS; i++)
    routes[i] = (guint16)route(w->platform, i);
  return oct_flows_bundle(w->flows, routes, GPUS);
}

static oct_bundle *
ring(world *w) {
  guint16 routes[GPUS];
  for (guint i = 0; i < GPUS; i++)
    routes[i] = (guint16)oct_platform_route_peer(w->platform, i, (i + 1) % GPUS);
  return oct_flows_bundle(w->flows, routes, GPUS);
}

static void
load_price(world *w, const job *j) {
  static oct_step_shape shape;
  static oct_step_price price;
  g_autoptr(GError) error = NULL;
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  oct_cost_options options = OCT_COST_OPTIONS_DEFAULT;
  p.tensor = GPUS;
  oct_model_spec *spec = oct_model_spec_load(j->model, NULL, &error);
  g_assert_no_error(error);
  oct_cost *cost = oct_cost_new(spec, &p, NULL, w->profile, &options, &error);
  g_assert_no_error(error);
  shape.n_domains = 1;
  oct_slice slice = {.n_tokens = j->prefill ? j->tokens : 1, .sample = OCT_SAMPLE_LAST};
  slice.flags = j->prefill ? OCT_SLICE_PREFILL : 0;
  for (guint32 i = 0; i < (j->prefill ? 1 : j->tokens); i++)
    oct_domain_shape_add(&shape.domains[0], &slice, 2000, 0);
  oct_cost_step(cost, &shape, &price);
  w->price = price.stages[0];
  w->n_layers = spec->n_layers;
  oct_cost_free(cost);
  oct_model_spec_free(spec);
}

/* The job of part [from, to) of all layers. */
static void
fill(world *w, guint from, guint to) {
  oct_job *s = &w->step;
  s->n_groups = OCT_COST_GROUPS;
  for (guint g = 0; g < OCT_COST_GROUPS; g++) {
    const oct_cost_group *all = &w->price.groups[g];
    gint64 ns = all->ns * to / w->n_layers - all->ns * from / w->n_layers;
    double part = all->ns > 0 ? (double)ns / (double)all->ns : 0;
    s->groups[g] = (oct_job_group){.ns = ns};
    s->groups[g].amount[0] = g == OCT_PART_COMPUTE ? (double)ns : 0;
    s->groups[g].amount[1] = MIN(all->hbm_bytes * part, oct_bundle_limit(s->bundles[1], ns));
    s->groups[g].amount[2] = MIN(all->nvlink_bytes * part, oct_bundle_limit(s->bundles[2], ns));
  }
}

static void
step_ended(oct_job *ended) {
  world *w = ended->owner;
  w->ended = w->now;
  if (!w->fine || ++w->layer == w->n_layers)
    return;
  fill(w, w->layer, w->layer + 1);
  oct_flows_start(w->flows, ended);
}

static void
other_ended(oct_job *ended G_GNUC_UNUSED) {
}

static void
other_begins(oct_timer *timer) {
  oct_job *other = timer->owner;
  world *w = other->owner;
  oct_flows_start(w->flows, other);
}

/* Traffic i: over one route for `part` of the step's time alone. */
static void
beside(world *w, guint i, guint route, double begin, double part) {
  const oct_route *path = oct_platform_route(w->platform, route);
  guint16 routes[1] = {(guint16)route};
  oct_job *other = &w->others[i];
  gint64 ns = (gint64)((double)w->price.ns * part);
  *other = (oct_job){.owner = w, .done = other_ended, .n_groups = 1};
  other->bundles[0] = oct_flows_bundle(w->flows, routes, 1);
  other->groups[0] = (oct_job_group){.ns = ns, .amount = {path->bytes_per_s * 1e-9 * (double)ns}};
  w->begins[i] = (oct_timer){.fire = other_begins, .owner = other};
  oct_timers_arm(&w->timers, &w->begins[i], (oct_time)((double)w->price.ns * begin));
}

static int
inside(void *arg) {
  world *w = arg;
  const traffic *t = w->beside;
  guint n = 0;
  for (guint i = 0; i < GPUS && t->hbm_factor < 1; i++) {
    g_autofree char *name = g_strdup_printf("gpu%u-hbm", i);
    oct_flows_scale(w->flows, (guint)oct_platform_find(w->platform, name), t->hbm_factor);
  }
  if (t->send_part > 0)
    beside(w, n++, oct_platform_route_peer(w->platform, 0, 1), t->first, t->send_part);
  for (guint i = 0; i < GPUS && t->copy_part > 0; i++)
    beside(w, n++, oct_platform_route_h2d(w->platform, 0, i), t->first, t->copy_part);
  w->step = (oct_job){.owner = w, .done = step_ended};
  w->step.bundles[0] = over(w, oct_platform_route_sm);
  w->step.bundles[1] = over(w, oct_platform_route_hbm);
  w->step.bundles[2] = ring(w);
  fill(w, 0, w->fine ? 1 : w->n_layers);
  oct_flows_start(w->flows, &w->step);
  for (;;) {
    oct_time next = oct_timers_next(&w->timers), now;
    if (oct_solver_live(w->solver) > 0) {
      oct_job *ended = oct_solver_wait(w->solver, next, &now);
      w->now = now;
      if (ended != NULL) {
        oct_flows_group_ended(w->flows, ended);
        continue;
      }
    }
    if (next == OCT_TIME_NEVER)
      return 0;
    w->now = next;
    oct_timer *timer = oct_timers_take(&w->timers);
    timer->fire(timer);
  }
}

static void
body(gpointer arg, gpointer out) {
  const job *j = arg;
  g_autoptr(GError) error = NULL;
  static world w;
  w.profile = oct_profile_load(j->profile, NULL, NULL, &error);
  g_assert_no_error(error);
  w.platform = oct_platform_new(w.profile, &error);
  g_assert_no_error(error);
  w.solver = oct_solver_new(w.platform, 32, &error);
  g_assert_no_error(error);
  w.flows = oct_flows_new(w.platform, w.solver, &w.timers, &w.now, FALSE);
  w.fine = j->fine;
  w.beside = j->beside;
  load_price(&w, j);
  g_assert_cmpint(oct_solver_run(w.solver, inside, &w), ==, 0);
  ((gint64 *)out)[0] = w.ended;
  ((gint64 *)out)[1] = w.price.ns;
  oct_flows_free(w.flows);
  oct_solver_free(w.solver);
  oct_timers_clear(&w.timers);
  oct_platform_free(w.platform);
  oct_profile_free(w.profile);
}

static void
test_coarse(void) {
  static const traffic beside[] = {
      {.what = "nothing", .hbm_factor = 1},
      {.what = "a KV send throughout", .hbm_factor = 1, .send_part = 3},
      {.what = "a KV send in the first third", .hbm_factor = 1, .send_part = 0.33},
      {.what = "a KV send in the middle", .hbm_factor = 1, .send_part = 0.3, .first = 0.35},
      {.what = "copies, half the memory rate", .hbm_factor = 0.5, .copy_part = 0.5},
      {.what = "copies from one socket", .hbm_factor = 1, .copy_part = 0.5},
  };
  static const job jobs[] = {
      {.profile = "b300-hgx8", .model = "llama-3.1-70b", .tokens = 64},
      {.profile = "b300-hgx8", .model = "llama-3.1-70b", .tokens = 8192, .prefill = TRUE},
      {.profile = "h200-hgx8", .model = "kimi-linear-48b-a3b", .tokens = 128},
      {.profile = "h200-hgx8", .model = "llama-3.1-70b", .tokens = 4096, .prefill = TRUE},
      {.profile = "pairs-4rc", .model = "llama-3.1-70b", .tokens = 256},
  };
  double worst = 0;
  for (guint i = 0; i < G_N_ELEMENTS(jobs); i++) {
    for (guint k = 0; k < G_N_ELEMENTS(beside); k++) {
      gint64 took[2][2];
      for (guint fine = 0; fine < 2; fine++) {
        job j = jobs[i];
        j.beside = &beside[k];
        j.fine = fine == 1;
        child_run(body, &j, took[fine], sizeof took[fine]);
      }
      double error = (double)(took[0][0] - took[1][0]) / (double)took[1][0];
      printf("# %s %s %u %s, beside %s: alone %.3f, whole %.3f, by layer %.3f ms: %+.2f %%\n",
             jobs[i].profile, jobs[i].model, jobs[i].tokens,
             jobs[i].prefill ? "prompt tokens" : "sequences", beside[k].what,
             (double)took[0][1] * 1e-6, (double)took[0][0] * 1e-6, (double)took[1][0] * 1e-6,
             100 * error);
      if (k == 0)
        g_assert_cmpint(ABS(took[0][0] - took[1][0]), <=, 1);
      worst = MAX(worst, fabs(error));
    }
  }
  g_assert_cmpfloat(worst, <=, 0.01);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/simgrid/coarse/a-whole-step-is-within-1-percent-of-its-layers", test_coarse);
  return g_test_run();
}
