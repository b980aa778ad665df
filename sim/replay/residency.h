/* Experts that are not all on the device: reading a recorded popularity, and what came of the
 * cache. */
#ifndef OCT_SIM_REPLAY_RESIDENCY_H
#define OCT_SIM_REPLAY_RESIDENCY_H

#include "sim/replay/replay.h"

/* Reads a histogram as engine/model/expert-counts.h has it. Owned; NULL with *error that has file,
 * line and value. */
double *oct_residency_read(const char *path, const oct_model_spec *spec,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* {slots_per_layer, experts_per_layer, hit_share, pair_hit_share, loads, loaded_bytes,
 * loaded_bytes_per_s, evictions, break_even_batch}; null when every expert is resident. Owned. */
json_t *oct_residency_json(const oct_replay_result *result);

#endif
