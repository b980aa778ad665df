/* Where the time of a decode step goes, how many users a layout serves, and why no more.
 *
 * The operators of a step (oct_cost_operators()) are summed by what they belong to; what no
 * resource binds (launches, latencies) is "launch", all of a collective is "collectives", and the
 * send between two stages too. The batch is raised one sequence at a time, so that the batch at
 * which another resource takes over is exact.
 */
#ifndef OCT_SIM_REPLAY_STEP_PARTS_H
#define OCT_SIM_REPLAY_STEP_PARTS_H

#include "sim/replay/replay.h"

#define OCT_STEP_PARTS_BATCH_MAX 2048u

/* {batch_most, context_tokens, user_tokens, input_tokens, kernels, rows: [{batch, step_s, bound_by,
 * parts_s: {…}, bound_s: {…}}], takes_over: [{batch, bound_by}], users: {…}} of one engine; null
 * without a node. doc/replay.md describes the fields. Owned. */
json_t *oct_step_parts_json(const oct_replay_config *config, const oct_replay_result *result);

#endif
