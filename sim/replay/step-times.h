/* What a decode step costs at a few batch sizes, with the measured and the target expert kernels.
 */
#ifndef OCT_SIM_REPLAY_STEP_TIMES_H
#define OCT_SIM_REPLAY_STEP_TIMES_H

#include "sim/replay/replay.h"

/* What requests of the run are in the mean. */
typedef struct oct_step_context {
  guint32 input, output;
  guint32 context; /* where a sequence is while it decodes: prompt and half of the output */
  guint32 batch;   /* sequences a step */
} oct_step_context;

/* FALSE: there is no node, or nothing was answered. */
gboolean oct_step_times_context(const oct_replay_result *result, oct_step_context *context);
/* Prices of the setup with another kernel for experts; owned, NULL where it cannot be priced. */
oct_cost *oct_step_times_cost(const oct_setup *setup, oct_moe_kernel kernel);

/* {context_tokens, rows: [{batch, measured_s, target_s, own_s, floor_s}]}, for batches 1, 8, 32,
 * 64, 128, 256 and the run's mean of sequences a step, every sequence at the run's mean context;
 * null without a node. target_s is null for a model without experts, own_s unless this engine's own
 * kernels are priced. Owned. */
json_t *oct_step_times_json(const oct_replay_result *result);

#endif
