/* What tests of models of production shapes share. */
#ifndef OCT_TESTS_BACKENDS_CUDA_WIDE_H
#define OCT_TESTS_BACKENDS_CUDA_WIDE_H

#include "engine/backend.h"

/* What its caller adds an attention and a feed-forward to, one of each until it says otherwise: all
 * in bfloat16, 4096 positions. `name` and `layers` are borrowed. */
oct_model_spec wide_base(char *name, guint32 vocab, guint32 hidden, oct_layer_spec *layers,
                         guint32 n_layers);

/* 16 experts of which 4 take a token, and shared ones `shared` wide (0: none). */
oct_ffn_spec wide_experts(guint32 shared);

/* Kimi K3 with everything that it has: heads as published but 16 of them, 16 experts of which 4
 * take a token, 13 layers in blocks of 4. `dense` is the width of its dense feed-forward. Arrays of
 * the spec are shared by all that are made, for ever. From one thread. */
oct_model_spec wide_k3(guint32 vocab, guint32 hidden, guint32 dense, guint32 latent);

/* The world's next event, which must be `wanted`; a fault is told. */
void wide_next(oct_world *world, oct_event *event, oct_event_kind wanted);

/* Which experts a step's tokens chose. */
guint64 wide_hash_choices(const oct_step_result *result);

#endif
