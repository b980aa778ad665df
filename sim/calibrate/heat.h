/* How much slower a GPU is that has just computed much: the law of sim/cost/heat.h, from rounds of
 * steps with prompts and of decodes behind them. */
#ifndef OCT_SIM_CALIBRATE_HEAT_H
#define OCT_SIM_CALIBRATE_HEAT_H

#include "sim/calibrate/drive.h"
#include "sim/cost/heat.h"

#define OCT_HEAT_ROUND_MAX 64

/* The steps of a round, in nanoseconds: `rest` decodes, then `busy` steps with prompts. The
 * arithmetic of each in flops of one GPU. */
typedef struct oct_heat_round {
  guint32 rest, busy;
  gint64 times[OCT_HEAT_ROUND_MAX];
  double decode_flops, prompt_flops;
} oct_heat_round;

/* The law under which both kinds of step would be of one length each but for the heat, by least
 * squares. FALSE: the times show no heat (less than one percent), *law is zeroed. */
gboolean oct_calibrate_heat_fit(const oct_heat_round *round, oct_heat_law *law);

/* Drives the rounds and fits. FALSE with *error when a step fails; a zeroed *law when there is no
 * heat, or the instance is too small to show it. */
gboolean oct_calibrate_heat(oct_drive *drive, const oct_drive_options *options,
                            const oct_cost *cost, guint32 context, oct_heat_law *law,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What a step, priced `price`, takes over its price when it comes again and again between `rest`
 * steps of so many seconds each, whose load is `rest_load`. */
double oct_calibrate_heat_factor(const oct_heat_law *law, const oct_step_price *price,
                                 double measured_s, double rest_s, double rest_load);

#endif
