/* What the page of a replay draws beyond its figures: distributions, the course of the run, the
 * load of the node's resources over time, its topology, a stretch of steps, a sample of requests.
 * doc/replay.md describes the fields.
 */
#ifndef OCT_SIM_REPLAY_DETAIL_H
#define OCT_SIM_REPLAY_DETAIL_H

#include "sim/replay/replay.h"

/* Owned. */
json_t *oct_detail_json(const oct_replay_result *result);

#endif
