/* Work that takes time and moves bytes: who runs alone, and who has to share.
 *
 * A *job* is a stage of a step, a queue's copy or a pipeline send: a few groups one after the
 * other, each with its time alone and what it moves over *bundles* of routes. A job's price is
 * exact while no resource is asked for more than it has; then its end is start + price, in integer
 * nanoseconds, and nothing else is computed. So every job carries its largest *demand* on each
 * resource, and the sum over the live jobs is kept. Only where a sum passes the capacity do the
 * jobs that use that resource enter the solver, and they leave it again when the sum has fallen.
 *
 * In the solver a job is bounded by its lane to its own speed alone, so jobs whose demands fit
 * together do not slow each other there either; `exact` sends every job through the solver, and
 * tests compare. The two agree to 1 ns a step, except where a job contends on one resource and
 * crosses another beside jobs that do not: SimGrid's sharing (fair bottleneck) is not strictly
 * max-min there, and gives the contenders slightly other parts when the others are in the solver
 * too (1e-4 and less).
 *
 * In the solver a step's groups are interleaved in rounds, because its layers are: a copy that
 * lives for half of the step meets half of each group.
 */
#ifndef OCT_BACKENDS_SIMGRID_FLOWS_H
#define OCT_BACKENDS_SIMGRID_FLOWS_H

#include "backends/simgrid/solver.h"
#include "backends/simgrid/timers.h"

#define OCT_JOB_BUNDLES 4
#define OCT_JOB_GROUPS  6

/* Routes used alike: every amount goes over each of them. Fixed once made. */
typedef struct oct_bundle {
  guint32 n_routes, n_touched;
  guint16 *routes;
  struct oct_touched {
    guint16 resource;
    guint16 times; /* routes that cross it */
  } * touched;
  double per_ns; /* amount per route that fits, by the nominal capacities */
  double moved;  /* amount per route, over finished work */
} oct_bundle;

typedef struct oct_job_group {
  gint64 ns;                      /* alone */
  double amount[OCT_JOB_BUNDLES]; /* per route of the bundle */
} oct_job_group;

typedef enum oct_job_state { OCT_JOB_IDLE, OCT_JOB_ALONE, OCT_JOB_SHARED } oct_job_state;

typedef struct oct_flows oct_flows;
typedef struct oct_job oct_job;
typedef void (*oct_job_fn)(oct_job *job);

struct oct_job {
  /* Set by the owner while the job is idle. Bundles may be NULL. */
  oct_job_fn done;
  gpointer owner;
  guint32 n_groups;
  oct_job_group groups[OCT_JOB_GROUPS];
  oct_bundle *bundles[OCT_JOB_BUNDLES];
  /* Results: valid in `done`. */
  oct_time start_ns;
  gint64 spent_ns[OCT_JOB_GROUPS]; /* what each group took; the sum is what the job took */

  /* Kept by flows.c. */
  oct_flows *flows;
  oct_job_state state;
  oct_timer timer;              /* ALONE: the end */
  oct_time since_ns;            /* ALONE: since when; SHARED: start of the current group */
  gint64 ns;                    /* sum of the groups */
  double rate[OCT_JOB_BUNDLES]; /* largest amount per ns and route over its groups */
  double left[OCT_JOB_GROUPS];  /* 0..1, as of since_ns */
  double take;                  /* SHARED: part of the current group that is in the solver */
  guint32 group, rounds;        /* SHARED: current group, rounds that begin after this one */
  gboolean whole;               /* SHARED: goes in one round, as nobody contends with it */
  gint32 lane;                  /* SHARED: of the solver; -1 = set aside between runs */
  gint32 worst; /* resource that was asked for most when it entered the solver; -1 */
};

/* Life cycle. All are borrowed; `now_ns` is where the world keeps its time. */
oct_flows *oct_flows_new(const oct_platform *platform, oct_solver *solver, oct_timers *timers,
                         const oct_time *now_ns, gboolean exact);
void oct_flows_free(oct_flows *flows); /* no job lives */

/* A bundle of the flows; freed with them. Of equal routes each counts. */
oct_bundle *oct_flows_bundle(oct_flows *flows, const guint16 *routes, guint n);
/* Adds what `bundle` moved to the totals and frees it: no live job uses it. */
void oct_flows_unbundle(oct_flows *flows, oct_bundle *bundle);
/* The largest amount per route of `bundle` that fits into ns without passing a nominal capacity. */
static inline double
oct_bundle_limit(const oct_bundle *bundle, gint64 ns) {
  return bundle->per_ns * (double)ns;
}

/* Use. Starts an idle job now; `done` is called when it has ended, with the job idle again, never
 * from within start. */
void oct_flows_start(oct_flows *flows, oct_job *job);
void oct_flows_cancel(oct_flows *flows, oct_job *job); /* no effect when idle */
/* The solver says that the job's current group has ended. */
void oct_flows_group_ended(oct_flows *flows, oct_job *job);
/* Sets a resource's capacity to `factor` of the profile's, from now on. */
void oct_flows_scale(oct_flows *flows, guint resource, double factor);

/* Fast-forward of the only live job, which runs alone. book: counts one run of a job's groups,
 * whether it is live or not. again: lets the live job begin afresh now, with the groups that the
 * caller has put in place. drop: makes it idle without counting anything. */
void oct_flows_book(oct_flows *flows, oct_job *job);
void oct_flows_again(oct_flows *flows, oct_job *job);
void oct_flows_drop(oct_flows *flows, oct_job *job);

/* The solver's activities end with the actor: park sets them aside at the end of a run, resume puts
 * them back. */
void oct_flows_park(oct_flows *flows);
void oct_flows_resume(oct_flows *flows);

/* Inspect. */
guint oct_flows_live(const oct_flows *flows);
gboolean oct_flows_exact(const oct_flows *flows);

typedef struct oct_flows_use {
  double moved;      /* amount over finished work */
  double could;      /* what the capacity allowed until now */
  gint64 delayed_ns; /* time by which jobs were late because of this resource */
} oct_flows_use;
void oct_flows_usage(const oct_flows *flows, guint resource, oct_flows_use *use);

#endif
