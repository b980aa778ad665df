/* The ranks of a layout, simulated on the CPU: each has the parts of the weights that
 * backends/cuda/partition.h gives it and nothing else, and computes them with the reference; what
 * the ranks of a stage give is added up where the backend's all-reduce is.
 */
#ifndef OCT_TESTS_BACKENDS_CUDA_RANKS_H
#define OCT_TESTS_BACKENDS_CUDA_RANKS_H

#include "backends/cpu/forward.h"
#include "backends/cuda/partition.h"

typedef struct ranks ranks;

/* A made-up model of the spec (borrowed), unsharded and as the layout's ranks have it. */
ranks *ranks_new(const oct_model_spec *spec, const oct_parallel *parallel, guint32 context);
void ranks_free(ranks *ranks);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ranks, ranks_free)

/* logits[n, vocabulary] of n ids from position `first` on: unsharded, or by the ranks. Owned. */
float *ranks_logits(ranks *ranks, const guint32 *ids, guint32 first, guint32 n, gboolean sharded);

/* Inspect: floats that rank r holds, and how many KV heads of layer `layer`. */
guint64 ranks_floats(const ranks *ranks, guint32 r);
guint32 ranks_kv_heads(const ranks *ranks, guint32 r, guint32 layer);

#endif
