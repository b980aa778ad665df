/* One run of a plan: a layout at a rate, and whether it serves it.
 *
 * A rate is served when every objective is met, no more than a few requests in a thousand are
 * turned away, and the backlog does not grow: by a strict probe it is stable (oct_trend_verdict(),
 * batch means at 95 %), by a coarse one, whose horizon is too short to be sure, it is not
 * saturated. Neither says anything in a window that is too short for the time that requests stay,
 * OCT_METRICS_RESIDENCES of it in a strict probe, one in a coarse one; or in which nothing arrived.
 *
 * The run is given up as soon as so many requests of its window have missed an objective that the
 * rest cannot mend it. The verdict is the one that the full run would have had: a percentile over
 * at most N requests is missed when more than N - ceil(N p) are above the limit, and N is not more
 * than the rows that are allowed, less those that came before the window. Only misses beyond the
 * histogram's resolution count.
 */
#ifndef OCT_SIM_PLAN_PROBE_H
#define OCT_SIM_PLAN_PROBE_H

#include "sim/plan/bound.h"
#include "sim/replay/replay.h"

/* The window begins after this share of the horizon. */
#define OCT_PLAN_WARMUP_SHARE 0.25

typedef struct oct_plan_probe {
  const oct_replay_config *config; /* borrowed; rate, times and callbacks are replaced */
  double requests_per_start;
  double seconds;   /* horizon: load that arrives in so long is judged */
  guint64 requests; /* the horizon in requests instead, whatever the rate; 0 = `seconds` */
  /* Load goes on so long behind the horizon, for what arrived in it to end under; at most, and
   * where that is 0, a quarter of the horizon. */
  double after_s;
  /* Replicas share nothing and are alike: one of them is simulated, with the sessions that the
   * router would send it by these estimates (dealer.h), and `requests` are its own. NULL: all of
   * them behind the router. */
  const oct_plan_pace *alone;
  const oct_plan_workload *workload; /* with `alone` */
  gboolean strict;
  gboolean assumptions; /* tells what was assumed */
  gboolean no_abort;    /* run to the end in any case */
} oct_plan_probe;

/* Runs it in this process: one with simgrid per process. Rates and tokens are of all replicas,
 * "measured" of those that were simulated. {"rate", "seconds", "window_s", "residence_mean_s",
 * "too_short", "served", "undecided", "verdict", "cut_short", "slo_met", "measured",
 * "requests_per_s", "output_tokens_per_s", "input_tokens_per_s", "ttft_p99_s", "ttft_p50_s",
 * "tpot_p99_s", "tpot_p50_s", "unserved_share", "prefix_hit_share", "warmup_short", "simulated"
 * replicas}, and "assumptions" (replay.h) where they are asked for; owned. NULL with *error. */
json_t *oct_plan_probe_run(const oct_plan_probe *probe, double rate, double stretch,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
