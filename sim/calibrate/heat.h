/* How much slower a GPU is that has just computed much: the law of sim/cost/heat.h, from a load of
 * decodes and of steps with prompts, as rare and as frequent as servers have them. */
#ifndef OCT_SIM_CALIBRATE_HEAT_H
#define OCT_SIM_CALIBRATE_HEAT_H

#include "sim/calibrate/drive.h"
#include "sim/cost/heat.h"

#define OCT_HEAT_LOAD_MAX 480

/* One step of the load, after those before it. */
typedef struct oct_heat_step {
  gboolean prompt; /* beside its decodes */
  double seconds;  /* 0: not known; nothing ran for long before it */
  double priced_s; /* of a cold chip, or any multiple of that: of all steps of its kind the same */
  double flops;    /* of one GPU */
} oct_heat_step;

typedef struct oct_heat_trial {
  guint n; /* 0: none could be driven */
  oct_heat_step steps[OCT_HEAT_LOAD_MAX];
} oct_heat_trial;

/* The law under which each kind of step would take one multiple of its price but for the heat, by
 * least squares. FALSE: the times show no heat (less than one percent), *law is zeroed. */
gboolean oct_calibrate_heat_fit(const oct_heat_trial *load, oct_heat_law *law);

/* Drives the load. FALSE with *error when a step fails; empty when the instance is too small for
 * it, or has several stages. */
gboolean oct_calibrate_heat(oct_drive *drive, const oct_drive_options *options,
                            const oct_cost *cost, guint32 context, oct_heat_trial *load,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What a step, priced `price`, takes over its price when it comes again and again between `rest`
 * steps of so many seconds each, whose load is `rest_load`. */
double oct_calibrate_heat_factor(const oct_heat_law *law, const oct_step_price *price,
                                 double measured_s, double rest_s, double rest_load);

#endif
