/* Teacher-forced validation: exactly the steps that a real engine ran, priced by the cost model.
 *
 * The log is the record backend's (backends/record/step-log.h; `octet serve --record-steps`). Only
 * prices are compared, nothing is scheduled: an error is the cost model's and the profile's alone.
 */
#ifndef OCT_SIM_VALIDATE_STEPS_H
#define OCT_SIM_VALIDATE_STEPS_H

#include <jansson.h>

#include "sim/cost/heat.h"

typedef struct oct_steps_validation {
  const char *log;   /* path */
  const char *model; /* as oct_model_spec_load() takes it */
  const char *node;  /* profile's name or file */
  guint32 skip;      /* steps of each instance that warm it up: not scored */
  /* Kernels that the prices are of, and the popularity of experts that the steps saw: a file of
   * engine/model/expert-counts.h, NULL = uniform. */
  oct_moe_kernel moe_kernel;
  const char *routing_file;
} oct_steps_validation;

/* A part of sim/validate/report.h with the errors by kind of step, the idle time between steps and
 * the aims. Layout, KV type and graphs are those that the log names. Owned; NULL with *error
 * (OCT_VALIDATE_ERROR_DATA for a log that is none, and what loading model and profile says). */
json_t *oct_validate_steps(const oct_steps_validation *validation,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
