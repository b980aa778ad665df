/* What tests of models of production shapes share. */
#ifndef OCT_TESTS_BACKENDS_CUDA_WIDE_H
#define OCT_TESTS_BACKENDS_CUDA_WIDE_H

#include "engine/backend.h"

/* Kimi K3 with everything that it has: heads as published but 16 of them, 16 experts of which 4
 * take a token, 13 layers in blocks of 4. `dense` is the width of its dense feed-forward. Arrays of
 * the spec are shared by all that are made, for ever. From one thread. */
oct_model_spec wide_k3(guint32 vocab, guint32 hidden, guint32 dense, guint32 latent);

/* The world's next event, which must be `wanted`; a fault is told. */
void wide_next(oct_world *world, oct_event *event, oct_event_kind wanted);

/* Which experts a step's tokens chose. */
guint64 wide_hash_choices(const oct_step_result *result);

#endif
