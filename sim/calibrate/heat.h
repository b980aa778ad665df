/* How much slower a GPU is that has just computed much: the law of sim/cost/heat.h, from rounds of
 * steps with prompts and of decodes behind them. */
#ifndef OCT_SIM_CALIBRATE_HEAT_H
#define OCT_SIM_CALIBRATE_HEAT_H

#include "sim/calibrate/drive.h"
#include "sim/cost/heat.h"

#define OCT_HEAT_ROUND_MAX  64
#define OCT_HEAT_ROUNDS_MAX 5

/* The steps of a round, in nanoseconds: `rest` decodes, then `busy` steps with prompts. */
typedef struct oct_heat_round {
  guint32 rest, busy;
  gint64 times[OCT_HEAT_ROUND_MAX];
} oct_heat_round;

/* Rounds of the same two steps, which differ in how many there are of each; the arithmetic of both
 * in flops of one GPU. */
typedef struct oct_heat_rounds {
  oct_heat_round rounds[OCT_HEAT_ROUNDS_MAX];
  guint n; /* 0: none could be driven */
  double decode_flops, prompt_flops;
} oct_heat_rounds;

/* The law under which both kinds of step would be of one length each but for the heat, by least
 * squares over all rounds. FALSE: the times show no heat (less than one percent), *law is zeroed.
 */
gboolean oct_calibrate_heat_fit(const oct_heat_rounds *rounds, oct_heat_law *law);

/* Drives rounds of long and of short rests, as loads have them. FALSE with *error when a step
 * fails; none when the instance is too small for them, or has several stages. */
gboolean oct_calibrate_heat(oct_drive *drive, const oct_drive_options *options,
                            const oct_cost *cost, guint32 context, oct_heat_rounds *rounds,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What a step, priced `price`, takes over its price when it comes again and again between `rest`
 * steps of so many seconds each, whose load is `rest_load`. */
double oct_calibrate_heat_factor(const oct_heat_law *law, const oct_step_price *price,
                                 double measured_s, double rest_s, double rest_load);

#endif
