/* What the roofline says about a layout before it is simulated.
 *
 * `misses` and `rate_most` are bounds: they rest on oct_cost_floor_ns() (bytes over the memory's
 * datasheet rate, flops over the peak, nothing else), and on these facts of the engine: a token
 * passes all stages in one step of its own, so no gap is shorter than the floor of a step with one
 * sequence; a prompt that is not cached is computed by some stage for at least its floor over the
 * number of stages (chunks overlap on different stages); no step has more sequences than
 * max_num_seqs in each KV domain.
 *
 * `rate_guess` is no bound: it is where a search begins, from priced steps at the largest batch
 * whose step stays below the limit on the time per token.
 */
#ifndef OCT_SIM_PLAN_BOUND_H
#define OCT_SIM_PLAN_BOUND_H

#include "sim/plan/workload.h"
#include "sim/replay/setup.h"
#include "sim/replay/slo.h"

/* Estimated times of an engine, of which there is one a replica: by the number of sequences that
 * decode in it, 1, 2, 4 …; between them linear. */
#define OCT_PLAN_PACES 12

typedef struct oct_plan_pace {
  double prompt_token_s; /* a token of prompts, in steps full of them; 0 = not known */
  double step_s[OCT_PLAN_PACES];
} oct_plan_pace;

/* The time between two tokens of a sequence at `rate` requests per second of the mean lengths:
 * decode steps of as many sequences as are then in it, and what prompts take between them. 0 where
 * nothing is known. */
double oct_plan_pace_token_s(const oct_plan_pace *pace, const oct_plan_workload *workload,
                             double rate);

typedef struct oct_plan_bound {
  gboolean misses;              /* an objective cannot be met at any rate */
  char why[160];                /* which, and its floor */
  double rate_most, rate_guess; /* session starts per second of one node */
  oct_plan_pace pace;
} oct_plan_bound;

/* Without a node (mock) nothing is bounded: rate_most is infinite, rate_guess the trace's own.
 * FALSE with *error when the layout cannot be priced. */
gboolean oct_plan_bound_of(const oct_setup *setup, const oct_slo *slo,
                           const oct_plan_workload *workload, oct_plan_bound *bound,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
