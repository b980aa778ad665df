#include "sim/cost/heat.h"

#include <math.h>

#define COLD 1e-4 /* what is left below it is nothing */

double
oct_heat_flops(const oct_stage_price *price) {
  double flops = 0;
  for (guint g = 0; g < OCT_COST_GROUPS; g++)
    flops += price->groups[g].flops;
  return flops;
}

double
oct_heat_load(const oct_heat_law *law, double flops, double seconds) {
  return seconds > 0 ? MIN(1, flops / (seconds * law->flops_per_s)) : 0;
}

double
oct_heat_factor(const oct_heat_law *law, gboolean graph, double load, double excess) {
  const double slope = graph ? law->decodes : law->decodes + (law->prompts - law->decodes) * load;
  return 1 + slope * excess;
}

/* The mean over t time constants of max(0, h - threshold), where h goes from `level` towards the
 * load and `left` of the way is left in the end. */
static double
mean_excess(const oct_heat_law *law, double level, double load, double t, double left) {
  const double over = level - law->threshold, far = load - law->threshold;
  const double end = far + (over - far) * left;
  double from = 0, until = t, before = 1, after = left;
  if (over <= 0 && end <= 0)
    return 0;
  if (over < 0 || end < 0) { /* it crosses the threshold on the way */
    const double share = far / (far - over), at = -log(share);
    if (over < 0) {
      from = at;
      before = share;
    } else {
      until = at;
      after = share;
    }
  }
  return (far * (until - from) + (over - far) * (before - after)) / (t * (1 - law->threshold));
}

double
oct_heat_after(const oct_heat_law *law, double level, double load, double seconds, double *excess) {
  const double t = seconds / law->time_constant_s, left = exp(-t);
  if (excess != NULL)
    *excess = t > 0 ? mean_excess(law, level, load, t, left)
                    : MAX(0, level - law->threshold) / (1 - law->threshold);
  return load + (level - load) * left;
}

/* The level at begin_ns, after nothing was computed since. */
static double
level_at(const oct_heat_law *law, const oct_heat *heat, gint64 begin_ns) {
  if (heat->level < COLD)
    return 0;
  const double idle_s = (double)MAX(0, begin_ns - heat->at_ns) * 1e-9;
  return idle_s > 0 ? oct_heat_after(law, heat->level, 0, idle_s, NULL) : heat->level;
}

void
oct_heat_price(const oct_heat_law *law, oct_heat *heat, gint64 begin_ns, gboolean graph,
               oct_stage_price *price) {
  const double cold_s = (double)price->ns * 1e-9, before = level_at(law, heat, begin_ns);
  const double load = oct_heat_load(law, oct_heat_flops(price), cold_s);
  double excess, factor = 1;
  for (guint i = 0; i < 2; i++) { /* over the step as long as it gets */
    heat->level = oct_heat_after(law, before, load, cold_s * factor, &excess);
    factor = oct_heat_factor(law, graph, load, excess);
  }
  price->ns = 0;
  for (guint g = 0; g < OCT_COST_GROUPS; g++) {
    if (g != OCT_PART_COPY)
      price->groups[g].ns = oct_cost_ns((double)price->groups[g].ns * 1e-9 * factor);
    price->ns += price->groups[g].ns;
  }
  heat->at_ns = begin_ns + price->ns;
}

double
oct_heat_pass(const oct_heat_law *law, oct_heat *heat, gint64 begin_ns, gint64 end_ns,
              gboolean graph, const oct_stage_price *price) {
  const double seconds = (double)(end_ns - begin_ns) * 1e-9;
  const double load = oct_heat_load(law, oct_heat_flops(price), (double)price->ns * 1e-9);
  double excess;
  heat->level = oct_heat_after(law, level_at(law, heat, begin_ns), load, seconds, &excess);
  heat->at_ns = end_ns;
  return oct_heat_factor(law, graph, load, excess);
}
