/* A capacity plan: which layout, what rate, how sure. `octet plan` is the command; doc/plan.md
 * describes the method and every field of the report.
 *
 *   1. Every layout of every variant of the knobs is built; what cannot be is illegal, with the
 *      reason. The roofline bounds the rest (bound.h).
 *   2. Coarse: in waves of OCT_PLAN_WAVE layouts, best estimate first, the highest rate under the
 *      objectives is bracketed on `coarse_requests` requests of an engine, first seed. Between
 * waves a layout is dropped that cannot reach the third best even at the roofline (bounded), or
 * whose priced estimate is less than OCT_PLAN_OUTPACED of what it would take (outpaced).
 *   3. Final: the best three on the full horizon, every seed a search of its own; the rate is the
 *      mean over seeds with Student's interval of 95 %.
 *   4. The best two again, coarse, with step costs, output lengths and prefix hits changed.
 *
 * Waves, seeds and searches are the same however many children run at once, and whether the plan
 * was interrupted and taken up again: equal options give equal plans.
 */
#ifndef OCT_SIM_PLAN_PLAN_H
#define OCT_SIM_PLAN_PLAN_H

#include <jansson.h>

#include "sim/plan/demand.h"
#include "sim/plan/layout.h"
#include "sim/replay/replay.h"

#define OCT_PLAN_SCHEMA "octet-plan-1"
#define OCT_PLAN_WAVE   4
#define OCT_PLAN_FINALS 3
#define OCT_PLAN_SEEDS  5
/* Coarse rates that were simulated were at most 1.3 times their estimate, full runs of Kimi K3 1.4
 * times (doc/plan.md 3): a layout that is left out may be the better one by a little. */
#define OCT_PLAN_OUTPACED 0.75
/* Between the highest rate that a coarse search found to be served and the lowest that is not. */
#define OCT_PLAN_COARSE_TOLERANCE 0.06
/* A p99 that rests on fewer requests is said to. */
#define OCT_PLAN_P99_REQUESTS 10000

typedef enum oct_plan_goal {
  OCT_PLAN_GOAL_RATE, /* the highest rate */
  OCT_PLAN_GOAL_GPUS, /* the fewest GPUs that serve `wanted` */
  OCT_PLAN_GOAL_COST, /* the cheapest per million output tokens */
} oct_plan_goal;

typedef struct oct_plan_progress {
  const char *phase; /* static */
  guint done, total; /* jobs of the phase */
} oct_plan_progress;

/* Plain data, all borrowed. */
typedef struct oct_plan_options {
  const oct_replay_config *base; /* trace, objectives, lengths; its setup's seed */
  gboolean endless;              /* the trace has no end */
  guint n_variants;
  const oct_plan_variant *variants;
  const double *gpu_hour_prices; /* [n_variants]; NULL = none */
  oct_plan_goal goal;
  double wanted; /* session starts per second; 0 = as many as can be; of `asked` when that
                    asks more than a rate */
  oct_plan_asked asked;
  guint32 gpus_max;    /* of a node; 0 = all */
  guint32 nodes_max;   /* alike, behind a router; 1 and more */
  double full_seconds; /* horizon of finals; a trace with an end has its own */
  guint64 coarse_requests;
  guint seeds;       /* of finals; a recorded trace has one stream */
  double cost_error; /* step costs are wrong by such a share (90th percentile); 0 = not tried */
  const char *cost_error_from; /* where that figure is from */
  guint parallel;              /* children at once */
  const char *identity;        /* all else that results depend on, as the user said it */
  const char *state_path;      /* NULL = an interrupted search is lost */
  void (*told)(void *user, const oct_plan_progress *progress); /* may be NULL */
  void *user;
} oct_plan_options;

void oct_plan_options_default(oct_plan_options *options);

/* The plan as JSON; owned. NULL with *error. */
json_t *oct_plan_make(const oct_plan_options *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* For people, at most 100 columns wide. `all` = layouts of every fate, else a few of each. */
void oct_plan_print(FILE *out, const json_t *plan, gboolean all);

#endif
