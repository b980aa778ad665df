/* What a plan compares: rates with their intervals, and layouts by a goal. Pure functions. */
#ifndef OCT_SIM_PLAN_SCORE_H
#define OCT_SIM_PLAN_SCORE_H

#include "sim/plan/plan.h"

/* A mean over independent streams. */
typedef struct oct_plan_estimate {
  guint n;
  double mean, half; /* of the interval of 95 %; NAN for n = 1 */
} oct_plan_estimate;

oct_plan_estimate oct_plan_estimate_of(const double *values, guint n);

/* Nodes of `layout` that serve `wanted` when one serves `rate`; 0 = more than nodes_max. */
guint32 oct_plan_nodes(const oct_plan_options *options, double rate);
/* Higher is better: by the goal, of a layout of which one node serves `rate`. A rate of 0, or too
 * many nodes, is -infinity. Never falls when the rate rises. */
double oct_plan_score(const oct_plan_options *options, const oct_plan_layout *layout, double rate);
/* The same where one node has lost a GPU and serves `rate`, and all others `others`; NAN = as much.
 */
guint32 oct_plan_nodes_with(const oct_plan_options *options, double rate, double others);
double oct_plan_score_with(const oct_plan_options *options, const oct_plan_layout *layout,
                           double rate, double others);

#endif
