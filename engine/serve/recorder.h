/* The traffic as rows of a trace: arrival, lengths, and what the prompts share, as hashes.
 *
 * A row comes for each choice of a generation that has sampled anything, when it and all that came
 * before it have ended: rows are in the order of arrival. Hashes are of the token ids up to and
 * with each block, with a key: equal prefixes have equal ids, and nothing can be read from them.
 */
#ifndef OCT_SERVE_RECORDER_H
#define OCT_SERVE_RECORDER_H

#include "engine/serve/internal.h"

/* Rows held back for one that is older; beyond, they come before it, and a reader has to sort. */
#define OCT_RECORDER_HELD_MAX 65536u

oct_recorder *oct_recorder_new(const oct_service_config *config);
/* Writes what is held. Accepts NULL. */
void oct_recorder_free(oct_recorder *recorder);
void oct_recorder_ended(oct_recorder *recorder, const oct_generation *generation);

#endif
