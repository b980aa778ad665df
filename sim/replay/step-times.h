/* What a decode step costs at a few batch sizes, with the measured and the target expert kernels.
 */
#ifndef OCT_SIM_REPLAY_STEP_TIMES_H
#define OCT_SIM_REPLAY_STEP_TIMES_H

#include "sim/replay/replay.h"

/* {context_tokens, rows: [{batch, measured_s, target_s, floor_s}]}, for batches 1, 8, 32, 64, 128,
 * 256 and the run's mean of sequences a step, every sequence at the run's mean context; null
 * without a node. target_s is null for a model without experts. Owned. */
json_t *oct_step_times_json(const oct_replay_result *result);

#endif
