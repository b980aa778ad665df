/* Whole steps against the sum of their kernels: the last part of a calibration. */
#ifndef OCT_SIM_CALIBRATE_STEPS_H
#define OCT_SIM_CALIBRATE_STEPS_H

#include "sim/calibrate/calibration.h"
#include "sim/calibrate/drive.h"
#include "sim/calibrate/heat.h"

#define OCT_STEP_TIMINGS_MAX 144

/* Which ratio a step takes part in. */
typedef enum oct_step_curve {
  OCT_STEP_CHECK, /* none: it is a check of them */
  OCT_STEP_EAGER,
  OCT_STEP_GRAPH,
  OCT_STEP_GRAPH_SHORT, /* decodes of the short context */
  OCT_STEP_VERIFY,      /* of drafts */
  OCT_STEP_MIXED,       /* prompts beside decodes */
} oct_step_curve;

/* A step that was timed, and its price. */
typedef struct oct_step_timing {
  oct_drive_step step;
  gboolean graph;
  oct_step_curve curve;
  gint64 measured_ns;
  /* By the profile that was given, without ratios of steps, but as warm as the chip was. */
  gint64 priced_ns;
} oct_step_timing;

typedef struct oct_step_timings {
  guint32 n;
  oct_step_timing timings[OCT_STEP_TIMINGS_MAX];
  guint32 context, short_context; /* of decodes that take part */
  guint32 graph_max_batch;        /* as the world told */
  oct_heat_trial load;
  oct_heat_law heat; /* of that; zeroed: the chip shows none */
  double open_s;     /* until the instance was there */
} oct_step_timings;

typedef struct oct_steps_options {
  oct_drive_options drive;
  guint32 context; /* of decodes; an eighth of it is short */
  guint32 repeats; /* of each step */
} oct_steps_options;

/* Opens an instance on `world` (borrowed, not running), computes prompts in all of its slots and
 * times a load of prompts and decodes, decodes by batch, prompts and mixed steps by tokens. Prices
 * are those of `profile`. FALSE with *error. */
gboolean oct_calibrate_steps(oct_world *world, const oct_steps_options *options,
                             const oct_profile *profile, oct_step_timings *out,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Into [step_ratio] and [heat]; nothing where there are too few. */
void oct_calibrate_set_ratios(oct_calibration *calibration, const oct_step_timings *timings);
/* The ratio that a step of `timing` takes part in, at its number of tokens: 1 without any. */
double oct_calibrate_ratio_of(const oct_step_timings *timings, const oct_step_timing *timing);

#endif
