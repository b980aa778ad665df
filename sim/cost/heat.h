/* What a GPU has just computed slows down what it computes next: products draw more power than the
 * card may take, its clock falls some tens of milliseconds later, and comes back as slowly.
 *
 * The law ([heat] of a profile, measured by octet calibrate) has one state, a level between 0 and 1
 * that follows the load with a time constant, as a power limit follows its average. A step's load
 * is its arithmetic over what whole prompts reach. What the level has above a threshold slows the
 * chip down: a step's price is that of a cold chip times 1 + slope x the mean of that excess while
 * it runs, 1 at the highest level. The slope of steps with prompts is larger than that of decodes,
 * which wait for memory.
 *
 * Prices without a law, and those of oct_cost_step(), are of a cold chip. Nothing is allocated; a
 * state belongs to whoever runs the steps of one pipeline stage.
 */
#ifndef OCT_SIM_COST_HEAT_H
#define OCT_SIM_COST_HEAT_H

#include "sim/cost/cost.h"

/* Zeroed: cold. */
typedef struct oct_heat {
  double level;
  gint64 at_ns; /* when it was that */
} oct_heat;

/* Whether the profile has the law. */
static inline gboolean
oct_heat_is_known(const oct_heat_law *law) {
  return law->time_constant_s > 0;
}

/* A stage's arithmetic, of one GPU; and the load that so much is over `seconds`, 0 to 1. */
double oct_heat_flops(const oct_stage_price *price);
double oct_heat_load(const oct_heat_law *law, double flops, double seconds);
/* 1 + slope x excess: of a step in a graph, or of one with prompts and that load. */
double oct_heat_factor(const oct_heat_law *law, gboolean graph, double load, double excess);

/* The level `seconds` later under a load, and in *excess (may be NULL) the mean until then of what
 * it has above the threshold, 1 at the highest level. */
double oct_heat_after(const oct_heat_law *law, double level, double load, double seconds,
                      double *excess);

/* Multiplies a stage's cold price by its factor when it begins at begin_ns; copies from the host
 * are left as they are. The level is then that of its end. */
void oct_heat_price(const oct_heat_law *law, oct_heat *heat, gint64 begin_ns, gboolean graph,
                    oct_stage_price *price);
/* The factor alone, for a stage whose real times are known: the level becomes that of end_ns. */
double oct_heat_pass(const oct_heat_law *law, oct_heat *heat, gint64 begin_ns, gint64 end_ns,
                     gboolean graph, const oct_stage_price *price);

#endif
