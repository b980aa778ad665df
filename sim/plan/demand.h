/* How much traffic a plan is for: today's mean rate, times growth, times the peak over the mean.
 *
 * A peak is stationary traffic at the rate of the worst stretch for as long as the search likes: a
 * system that serves it serves the stretch itself, which ends. So the answer is on the safe side.
 */
#ifndef OCT_SIM_PLAN_DEMAND_H
#define OCT_SIM_PLAN_DEMAND_H

#include <jansson.h>

#include "sim/plan/workload.h"

typedef struct oct_plan_asked {
  double rate;      /* session starts per second in the mean; 0 = the trace's own */
  double growth;    /* times that; 0 = 1 */
  double peak;      /* of the day's busiest time over its mean; 0 = 1 */
  gint64 window_ns; /* the peak is that of the trace's worst stretch of this length; 0 = not */
} oct_plan_asked;

typedef struct oct_plan_demand {
  double mean_rate, growth, peak; /* growth and peak 1 and more, or less */
  double rate;                    /* what is to be served: their product */
  gint64 window_ns;               /* 0 = the peak was given */
  double window_from_s;           /* where the worst stretch begins */
  double window_starts;           /* of it: session starts per second over their mean */
} oct_plan_demand;

/* Whether anything but a rate was asked for. */
gboolean oct_plan_asks_more(const oct_plan_asked *asked);
/* FALSE with *error: the trace's rate is not known, or it has no end to look for a stretch in. */
gboolean oct_plan_demand_find(const oct_plan_asked *asked, const oct_rows_options *rows,
                              const oct_plan_workload *workload, oct_plan_demand *demand,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Owned. */
json_t *oct_plan_demand_json(const oct_plan_demand *demand);

#endif
