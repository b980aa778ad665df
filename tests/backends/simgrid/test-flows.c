/* Jobs alone and in SimGrid's solver: prices, sharing, order, accounting. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backends/simgrid/flows.h"
#include "engine/base/rng.h"
#include "tests/backends/simgrid/child.h"

#define SEED 20261129

typedef struct rig {
  oct_profile *profile;
  oct_platform *platform;
  oct_solver *solver;
  oct_timers timers;
  oct_flows *flows;
  oct_time now;
  void (*body)(struct rig *rig);
  gint64 *out;
} rig;

/* A job of a test, with what is needed to start it at a time. */
typedef struct task {
  oct_job job;
  oct_timer timer;
  rig *rig;
  oct_time end_ns; /* -1 = not ended */
} task;

static void
task_ended(oct_job *job) {
  task *t = job->owner;
  t->end_ns = t->rig->now;
}

static void
task_begins(oct_timer *timer) {
  task *t = timer->owner;
  oct_flows_start(t->rig->flows, &t->job);
}

static void
add_task(rig *r, task *t, oct_time at_ns) {
  t->rig = r;
  t->end_ns = -1;
  t->job.owner = t;
  t->job.done = task_ended;
  t->timer.owner = t;
  t->timer.fire = task_begins;
  oct_timers_arm(&r->timers, &t->timer, at_ns);
}

/* Runs until nothing is left, or until a time. */
static void
run_until(rig *r, oct_time until) {
  for (;;) {
    oct_time next = oct_timers_next(&r->timers), now;
    if (oct_solver_live(r->solver) > 0) {
      oct_job *job = oct_solver_wait(r->solver, MIN(next, until), &now);
      g_assert_cmpint(now, >=, r->now);
      r->now = now;
      if (job != NULL) {
        oct_flows_group_ended(r->flows, job);
        continue;
      }
    }
    if (next > until || next == OCT_TIME_NEVER)
      break;
    r->now = next;
    oct_timer *timer = oct_timers_take(&r->timers);
    timer->fire(timer);
  }
  if (until != OCT_TIME_NEVER)
    r->now = until;
}

static void
run_all(rig *r) {
  run_until(r, OCT_TIME_NEVER);
}

typedef struct setup {
  const char *profile;
  gboolean exact;
  void (*body)(rig *rig);
} setup;

static int
in_actor(void *arg) {
  rig *r = arg;
  r->body(r);
  return 7;
}

static void
in_child(gpointer arg, gpointer out) {
  const setup *s = arg;
  g_autoptr(GError) error = NULL;
  rig r = {.body = s->body, .out = out};
  r.profile = oct_profile_load(s->profile, NULL, NULL, &error);
  g_assert_no_error(error);
  r.platform = oct_platform_new(r.profile, &error);
  g_assert_no_error(error);
  r.solver = oct_solver_new(r.platform, 64, &error);
  g_assert_no_error(error);
  r.flows = oct_flows_new(r.platform, r.solver, &r.timers, &r.now, s->exact);
  g_assert_cmpint(oct_solver_run(r.solver, in_actor, &r), ==, 7);
  oct_flows_free(r.flows);
  oct_solver_free(r.solver);
  oct_timers_clear(&r.timers);
  oct_platform_free(r.platform);
  oct_profile_free(r.profile);
}

static void
run_rig(const char *profile, gboolean exact, void (*body)(rig *rig), gint64 *out, gsize n_out) {
  setup s = {profile, exact, body};
  child_run(in_child, &s, out, n_out * sizeof *out);
}

static oct_bundle *
bundle(rig *r, guint route) {
  guint16 routes[1] = {(guint16)route};
  return oct_flows_bundle(r->flows, routes, 1);
}

static oct_bundle *
hbm_of_all(rig *r) {
  guint16 routes[OCT_PROFILE_GPUS_MAX];
  guint n = oct_platform_gpus(r->platform);
  for (guint i = 0; i < n; i++)
    routes[i] = (guint16)oct_platform_route_hbm(r->platform, i);
  return oct_flows_bundle(r->flows, routes, n);
}

/* A copy's job: all of the link for as long as its bytes take. */
static void
fill_copy(rig *r, task *t, guint route, double bytes) {
  const oct_route *path = oct_platform_route(r->platform, route);
  t->job.n_groups = 1;
  t->job.bundles[0] = bundle(r, route);
  t->job.groups[0].ns = (gint64)(bytes / path->bytes_per_s * 1e9 + 0.5);
  t->job.groups[0].amount[0] = bytes;
}

static double
used(rig *r, const char *name) {
  oct_flows_use use;
  oct_flows_usage(r->flows, (guint)oct_platform_find(r->platform, name), &use);
  g_assert_cmpfloat(use.moved, <=, use.could * (1 + 1e-9));
  return use.moved;
}

static void
check_usage(rig *r) {
  for (guint i = 0; i < oct_platform_resource_count(r->platform); i++)
    (void)used(r, oct_platform_resource(r->platform, i)->name);
}

/* ---------------------------------------------------------------- prices */

static void
alone_body(rig *r) {
  oct_rng rng;
  oct_bundle *hbm = hbm_of_all(r), *sm = bundle(r, oct_platform_route_sm(r->platform, 0));
  oct_rng_seed(&rng, SEED, 1);
  for (guint i = 0; i < 1000; i++) {
    task t = {.job = {.n_groups = 4}};
    gint64 sum = 0;
    t.job.bundles[0] = hbm;
    t.job.bundles[1] = sm;
    for (guint g = 0; g < 4; g++) {
      gint64 ns = (gint64)oct_rng_below(&rng, g == 2 ? 3 : 5000000);
      t.job.groups[g].ns = ns;
      t.job.groups[g].amount[0] = oct_bundle_limit(hbm, ns) * oct_rng_uniform(&rng);
      t.job.groups[g].amount[1] = g == 0 ? (double)ns : 0;
      sum += ns;
    }
    oct_time begin = r->now + (gint64)oct_rng_below(&rng, 1000000);
    add_task(r, &t, begin);
    run_all(r);
    g_assert_cmpint(t.end_ns - begin, ==, sum);
    gint64 spent = 0;
    for (guint g = 0; g < 4; g++) {
      g_assert_cmpint(ABS(t.job.spent_ns[g] - t.job.groups[g].ns), <=, 1);
      spent += t.job.spent_ns[g];
    }
    g_assert_cmpint(spent, ==, sum);
  }
  check_usage(r);
  r->out[0] = (gint64)oct_solver_started(r->solver);
}

static void
test_alone(void) {
  gint64 started;
  run_rig("b300-hgx8", FALSE, alone_body, &started, 1);
  g_assert_cmpint(started, ==, 0);
}

static void
test_alone_exact(void) {
  gint64 started;
  run_rig("b300-hgx8", TRUE, alone_body, &started, 1);
  g_assert_cmpint(started, >, 2500);
}

/* ---------------------------------------------------------------- sharing */

static void
two_flows_body(rig *r) {
  task a = {0}, b = {0};
  guint route = oct_platform_route_h2d(r->platform, 0, 0);
  fill_copy(r, &a, route, 577e6); /* 10 ms */
  fill_copy(r, &b, route, 577e6);
  add_task(r, &a, 1000);
  add_task(r, &b, 1000);
  run_all(r);
  g_assert_cmpint(ABS(a.end_ns - 20001000), <=, 1);
  g_assert_cmpint(ABS(b.end_ns - 20001000), <=, 1);
  g_assert_cmpfloat_with_epsilon(used(r, "gpu0-pcie-down"), 2 * 577e6, 1);
  g_assert_cmpfloat_with_epsilon(used(r, "dram0"), 2 * 577e6, 1);
  g_assert_cmpfloat_with_epsilon(used(r, "gpu1-pcie-down"), 0, 1);
  oct_flows_use use;
  gint64 delayed = 0;
  for (guint i = 0; i < oct_platform_resource_count(r->platform); i++) {
    oct_flows_usage(r->flows, i, &use);
    delayed += use.delayed_ns;
  }
  g_assert_cmpint(ABS(delayed - 20000000), <=, 2);
}

static void
test_two_flows(void) {
  run_rig("b300-hgx8", FALSE, two_flows_body, NULL, 0);
}

static void
fits_body(rig *r) {
  task kernel = {.job = {.n_groups = 1}}, copies[8] = {0};
  kernel.job.bundles[0] = hbm_of_all(r);
  kernel.job.groups[0].ns = 20000000;
  kernel.job.groups[0].amount[0] = 0.9 * oct_bundle_limit(kernel.job.bundles[0], 20000000);
  add_task(r, &kernel, 0);
  for (guint i = 0; i < 8; i++) {
    guint socket = oct_platform_gpu_socket(r->platform, i);
    fill_copy(r, &copies[i], oct_platform_route_h2d(r->platform, socket, i), 577e6);
    add_task(r, &copies[i], 5000000);
  }
  run_all(r);
  g_assert_cmpint(kernel.end_ns, ==, 20000000);
  for (guint i = 0; i < 8; i++)
    g_assert_cmpint(copies[i].end_ns, ==, 15000000);
  check_usage(r);
  r->out[0] = (gint64)oct_solver_started(r->solver);
}

static void
test_fits(void) {
  gint64 started;
  run_rig("b300-hgx8", FALSE, fits_body, &started, 1);
  g_assert_cmpint(started, ==, 0);
  run_rig("b300-hgx8", TRUE, fits_body, &started, 1);
  g_assert_cmpint(started, ==, 9);
}

/* A kernel that fills the HBM and a copy: the copy keeps its rate, the kernel gets the rest. */
static void
hbm_body(rig *r) {
  task kernel = {.job = {.n_groups = 2}}, copy = {0};
  double per_ns = r->profile->gpu.hbm_bytes_per_s * 1e-9,
         copy_per_ns = r->profile->pcie.h2d_bytes_per_s * 1e-9;
  kernel.job.bundles[0] = hbm_of_all(r);
  kernel.job.groups[0].ns = 4000000; /* arithmetic: moves nothing */
  kernel.job.groups[1].ns = 6000000;
  kernel.job.groups[1].amount[0] = per_ns * 6e6;
  fill_copy(r, &copy, oct_platform_route_h2d(r->platform, 0, 3), copy_per_ns * 50e6);
  add_task(r, &copy, 0);
  add_task(r, &kernel, 10000000);
  run_all(r);
  double wanted = 4e6 + 6e6 * per_ns / (per_ns - copy_per_ns);
  g_assert_cmpint(ABS(kernel.end_ns - 10000000 - (gint64)wanted), <=, 2);
  g_assert_cmpint(ABS(copy.end_ns - 50000000), <=, 1);
  g_assert_cmpint(kernel.job.spent_ns[0], >=, 3999990);
  g_assert_cmpint(kernel.job.spent_ns[0], <=, 4000010);
}

static void
test_hbm(void) {
  run_rig("b300-hgx8", FALSE, hbm_body, NULL, 0);
  run_rig("b300-hgx8", TRUE, hbm_body, NULL, 0);
}

/* ---------------------------------------------------------------- both ways agree */

#define MANY 300

/* Copies over random routes at random times, some of which contend. */
static void
many_body(rig *r) {
  static task tasks[MANY];
  oct_rng rng;
  oct_rng_seed(&rng, SEED, 2);
  memset(tasks, 0, sizeof tasks);
  oct_time at = 0;
  for (guint i = 0; i < MANY; i++) {
    guint gpu = (guint)oct_rng_below(&rng, 8), socket = (guint)oct_rng_below(&rng, 2), route;
    if (oct_rng_below(&rng, 2) == 0)
      route = oct_platform_route_h2d(r->platform, socket, gpu);
    else
      route = oct_platform_route_d2h(r->platform, gpu, socket);
    fill_copy(r, &tasks[i], route, 1e6 + oct_rng_exponential(&rng, 50e6));
    at += (oct_time)oct_rng_exponential(&rng, 400e3);
    add_task(r, &tasks[i], at);
  }
  run_all(r);
  for (guint i = 0; i < MANY; i++) {
    g_assert_cmpint(tasks[i].end_ns, >=, tasks[i].job.start_ns + tasks[i].job.ns);
    r->out[i] = tasks[i].end_ns;
  }
  check_usage(r);
  r->out[MANY] = (gint64)oct_solver_started(r->solver);
}

static void
test_agree(void) {
  static gint64 coarse[MANY + 1], exact[MANY + 1], again[MANY + 1];
  static const char *const profiles[] = {"b300-hgx8", "pairs-4rc"};
  for (guint p = 0; p < 2; p++) {
    run_rig(profiles[p], FALSE, many_body, coarse, MANY + 1);
    run_rig(profiles[p], FALSE, many_body, again, MANY + 1);
    run_rig(profiles[p], TRUE, many_body, exact, MANY + 1);
    g_assert_cmpmem(coarse, sizeof coarse, again, sizeof again);
    g_assert_cmpint(exact[MANY], >=, MANY);
    g_assert_cmpint(coarse[MANY], <, exact[MANY]);
    g_assert_cmpint(coarse[MANY], >, 0);
    gint64 worst = 0;
    for (guint i = 0; i < MANY; i++)
      worst = MAX(worst, ABS(coarse[i] - exact[i]));
    printf("# %s: %d copies, %d of them in the solver; largest difference %d ns\n", profiles[p],
           MANY, (int)coarse[MANY], (int)worst);
    g_assert_cmpint(worst, <=, 2);
  }
}

/* ---------------------------------------------------------------- halving a link */

static guint halved; /* resource + 1; 0 = none */

static void
halved_body(rig *r) {
  if (halved > 0)
    oct_flows_scale(r->flows, halved - 1, 0.5);
  task kernel = {.job = {.n_groups = 2}}, copies[4] = {0};
  kernel.job.bundles[0] = hbm_of_all(r);
  kernel.job.bundles[1] = bundle(r, oct_platform_route_peer(r->platform, 0, 1));
  kernel.job.groups[0] = (oct_job_group){.ns = 5000000};
  kernel.job.groups[0].amount[0] = 0.9 * oct_bundle_limit(kernel.job.bundles[0], 5000000);
  kernel.job.groups[1] = (oct_job_group){.ns = 5000000};
  kernel.job.groups[1].amount[1] = 0.7 * oct_bundle_limit(kernel.job.bundles[1], 5000000);
  add_task(r, &kernel, 0);
  for (guint i = 0; i < 4; i++) {
    guint route = i % 2 == 0 ? oct_platform_route_h2d(r->platform, 0, i)
                             : oct_platform_route_d2h(r->platform, i, 1);
    fill_copy(r, &copies[i], route, 1e8);
    add_task(r, &copies[i], 1000000);
  }
  run_all(r);
  r->out[0] = kernel.end_ns;
  for (guint i = 0; i < 4; i++)
    r->out[1 + i] = copies[i].end_ns;
  check_usage(r);
}

static void
test_halved(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) profile = oct_profile_load("pairs-4rc", NULL, NULL, &error);
  g_assert_no_error(error);
  g_autoptr(oct_platform) platform = oct_platform_new(profile, &error);
  gint64 whole[5], less[5];
  guint slowed = 0;
  halved = 0;
  run_rig("pairs-4rc", FALSE, halved_body, whole, 5);
  for (guint i = 0; i < oct_platform_resource_count(platform); i++) {
    halved = i + 1;
    run_rig("pairs-4rc", FALSE, halved_body, less, 5);
    /* A flow on a halved link may leave more of another link to others: only its users are
     * compared, which are the kernel for HBM, SM and NVLink, and all copies for PCIe. */
    oct_resource_kind kind = oct_platform_resource(platform, i)->kind;
    gint64 was = 0, is = 0;
    for (guint k = kind <= OCT_RESOURCE_NV_DOWN ? 0 : 1; k < (kind <= OCT_RESOURCE_NV_DOWN ? 1 : 5);
         k++) {
      was = MAX(was, whole[k]);
      is = MAX(is, less[k]);
    }
    g_assert_cmpint(is, >=, was - 1);
    slowed += is > was + 1000;
  }
  g_assert_cmpuint(slowed, >=, 10);
}

/* ---------------------------------------------------------------- changes in mid-flight */

static void
scale_body(rig *r) {
  task t = {.job = {.n_groups = 1}};
  guint sm = (guint)oct_platform_find(r->platform, "gpu0-sm");
  t.job.bundles[0] = bundle(r, oct_platform_route_sm(r->platform, 0));
  t.job.groups[0] = (oct_job_group){.ns = 10000000, .amount = {10000000}};
  add_task(r, &t, 0);
  run_until(r, 4000000);
  oct_flows_scale(r->flows, sm, 0.5);
  run_until(r, 8000000);
  oct_flows_scale(r->flows, sm, 1);
  run_all(r);
  g_assert_cmpint(ABS(t.end_ns - 12000000), <=, 1); /* 4 + 2 of 4 + 4 */
  check_usage(r);
}

static void
test_scale(void) {
  run_rig("b300-hgx8", FALSE, scale_body, NULL, 0);
  run_rig("b300-hgx8", TRUE, scale_body, NULL, 0);
}

static void
cancel_body(rig *r) {
  task a = {0}, b = {0};
  guint route = oct_platform_route_h2d(r->platform, 0, 0);
  fill_copy(r, &a, route, 577e6);
  fill_copy(r, &b, route, 577e6);
  add_task(r, &a, 0);
  add_task(r, &b, 0);
  run_until(r, 4000000);
  oct_flows_cancel(r->flows, &a.job);
  oct_flows_cancel(r->flows, &a.job);
  run_all(r);
  g_assert_cmpint(a.end_ns, ==, -1);
  g_assert_cmpint(ABS(b.end_ns - 12000000), <=, 1); /* 2 of 4 done, 8 left */
  g_assert_cmpfloat_with_epsilon(used(r, "dram0"), 577e6 * 1.2, 100);
}

static void
test_cancel(void) {
  run_rig("b300-hgx8", FALSE, cancel_body, NULL, 0);
  run_rig("b300-hgx8", TRUE, cancel_body, NULL, 0);
}

static void
park_body(rig *r) {
  task a = {0}, b = {0};
  guint route = oct_platform_route_h2d(r->platform, 0, 0);
  fill_copy(r, &a, route, 577e6);
  fill_copy(r, &b, route, 577e6);
  add_task(r, &a, 0);
  add_task(r, &b, 0);
  run_until(r, 6000000);
  oct_flows_park(r->flows);
  g_assert_cmpuint(oct_solver_live(r->solver), ==, 0);
  oct_flows_resume(r->flows);
  run_all(r);
  g_assert_cmpint(ABS(a.end_ns - 20000000), <=, 1);
  g_assert_cmpint(ABS(b.end_ns - 20000000), <=, 1);
}

static void
test_park(void) {
  run_rig("b300-hgx8", FALSE, park_body, NULL, 0);
}

/* ---------------------------------------------------------------- ties */

/* Timers, ends and a limit at one time: nothing is lost, whatever comes first. */
static void
ties_body(rig *r) {
  task a = {0}, b = {0}, c = {0};
  guint route = oct_platform_route_h2d(r->platform, 0, 0);
  fill_copy(r, &a, route, 577e6);
  fill_copy(r, &b, route, 577e6);
  fill_copy(r, &c, oct_platform_route_d2h(r->platform, 5, 1), 574e6);
  add_task(r, &a, 0);
  add_task(r, &b, 0);
  add_task(r, &c, 20000000);
  run_until(r, 20000000);
  run_until(r, 20000000);
  g_assert_cmpint(a.end_ns, ==, 20000000);
  g_assert_cmpint(b.end_ns, ==, 20000000);
  run_all(r);
  g_assert_cmpint(c.end_ns, ==, 30000000);
}

static void
test_ties(void) {
  run_rig("b300-hgx8", FALSE, ties_body, NULL, 0);
  run_rig("b300-hgx8", TRUE, ties_body, NULL, 0);
}

/* Ten hours and many small activities later, a job still takes its price. */
static void
late_body(rig *r) {
  guint route = oct_platform_route_h2d(r->platform, 0, 0);
  for (guint i = 0; i < 2000; i++) {
    task t = {0};
    fill_copy(r, &t, route, 1e6 * (1 + i % 7));
    oct_time begin = G_GINT64_CONSTANT(36000000000000) + (oct_time)i * 1234567;
    add_task(r, &t, begin);
    run_all(r);
    g_assert_cmpint(t.end_ns - begin, ==, t.job.ns);
  }
}

static void
test_late(void) {
  run_rig("b300-hgx8", TRUE, late_body, NULL, 0);
}

static void
second_body(gpointer arg G_GNUC_UNUSED, gpointer out G_GNUC_UNUSED) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) profile = oct_profile_load("h200x1", NULL, NULL, &error);
  g_assert_no_error(error);
  g_autoptr(oct_platform) platform = oct_platform_new(profile, &error);
  oct_solver *first = oct_solver_new(platform, 4, &error);
  g_assert_no_error(error);
  oct_solver_free(first);
  g_assert_null(oct_solver_new(platform, 4, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  g_assert_nonnull(strstr(error->message, "child process"));
}

static void
test_second(void) {
  child_run(second_body, NULL, NULL, 0);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/flows/a-job-alone-takes-its-price-without-the-solver", test_alone);
  g_test_add_func("/flows/a-job-alone-takes-its-price-in-the-solver", test_alone_exact);
  g_test_add_func("/flows/two-equal-flows-on-a-link-take-twice-as-long-each", test_two_flows);
  g_test_add_func("/flows/what-fits-beside-each-other-does-not-slow", test_fits);
  g_test_add_func("/flows/a-copy-slows-only-the-group-that-fills-the-memory", test_hbm);
  g_test_add_func("/flows/coarse-and-exact-agree-and-repeat", test_agree);
  g_test_add_func("/flows/halving-a-link-speeds-nobody-on-it", test_halved);
  g_test_add_func("/flows/a-capacity-changes-in-mid-flight", test_scale);
  g_test_add_func("/flows/what-is-cancelled-leaves-its-share", test_cancel);
  g_test_add_func("/flows/what-is-set-aside-between-runs-goes-on", test_park);
  g_test_add_func("/flows/ends-at-one-time-all-come", test_ties);
  g_test_add_func("/flows/a-job-takes-its-price-after-ten-hours", test_late);
  g_test_add_func("/flows/a-second-solver-is-refused", test_second);
  return g_test_run();
}
