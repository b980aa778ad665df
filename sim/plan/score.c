#include "sim/plan/score.h"

#include <math.h>

#include "sim/replay/trend.h"

/* A tie of whole GPUs goes to the layout with more to spare, by less than one GPU. */
#define SPARE_WEIGHT 1e-3

oct_plan_estimate
oct_plan_estimate_of(const double *values, guint n) {
  oct_plan_estimate e = {.n = n, .mean = NAN, .half = NAN};
  double sum = 0, squares = 0;
  for (guint i = 0; i < n; i++)
    sum += values[i];
  if (n == 0)
    return e;
  e.mean = sum / n;
  for (guint i = 0; i < n; i++)
    squares += (values[i] - e.mean) * (values[i] - e.mean);
  if (n > 1)
    e.half = oct_trend_student(n - 1) * sqrt(squares / (n - 1) / n);
  return e;
}

guint32
oct_plan_nodes_with(const oct_plan_options *o, double rate, double others) {
  if (!(rate > 0) || others <= 0)
    return 0;
  if (!(o->wanted > 0))
    return o->nodes_max;
  double nodes = 1 + ceil((o->wanted - rate) / (isnan(others) ? rate : others));
  return nodes <= o->nodes_max ? (guint32)MAX(1, nodes) : 0;
}

guint32
oct_plan_nodes(const oct_plan_options *o, double rate) {
  return oct_plan_nodes_with(o, rate, NAN);
}

double
oct_plan_score(const oct_plan_options *o, const oct_plan_layout *layout, double rate) {
  return oct_plan_score_with(o, layout, rate, NAN);
}

double
oct_plan_score_with(const oct_plan_options *o, const oct_plan_layout *layout, double rate,
                    double others) {
  guint32 nodes = oct_plan_nodes_with(o, rate, others);
  if (nodes == 0)
    return -INFINITY;
  double price = o->gpu_hour_prices != NULL ? o->gpu_hour_prices[layout->variant] : 1;
  switch (o->goal) {
  case OCT_PLAN_GOAL_RATE:
    return rate;
  case OCT_PLAN_GOAL_GPUS: {
    double serves = rate + (isnan(others) ? rate : others) * (nodes - 1.0);
    double spare = MIN(serves / o->wanted, 1e2) / 1e2;
    return SPARE_WEIGHT * spare - (double)layout->gpus * nodes;
  }
  case OCT_PLAN_GOAL_COST:
    /* Of a wanted rate what it costs, used or not; else of each session at full use. */
    if (o->wanted > 0)
      return -(price * layout->gpus * nodes);
    return rate / (price * layout->gpus);
  }
  return -INFINITY;
}
