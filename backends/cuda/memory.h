/* A rank's pages and states: per layer group a pool on the device and one in pinned memory of this
 * machine. Private to backends/cuda.
 *
 * A page is one run of bytes: for each of the rank's layers of the group K then V of its heads, or
 * the latents of its tokens. A state slot likewise: for each layer its recurrent state in float32,
 * then the convolutions' last inputs in the activations' type. Keys, values and latents are kept in
 * that, too, or in e4m3 when the instance asks for fp8 (not in float32 mode), divided by the scales
 * that the checkpoint has for them.
 * Latents are the same on every rank of a tensor group, or on every decode_context-th: the host
 * tier keeps the first ranks', and all reload from there. A rank's page has block_size tokens.
 */
#ifndef OCT_BACKENDS_CUDA_MEMORY_H
#define OCT_BACKENDS_CUDA_MEMORY_H

#include "backends/cuda/model.h"

typedef struct oct_cuda_pool {
  guint8 *device, *host;         /* host: the pool of another rank when that keeps the pages */
  gboolean keeps;                /* copies to the host are this rank's to make */
  gsize unit_bytes, layer_bytes; /* 0 units: the rank has no layer of the group */
  gboolean state;
  gsize conv_offset; /* state: of the convolution's inputs, within a layer's part */
} oct_cuda_pool;

typedef struct oct_cuda_memory {
  oct_cuda_rank *rank;
  guint32 n_groups;
  oct_cuda_pool pools[OCT_MODEL_GROUPS_MAX];
} oct_cuda_memory;

/* Allocates what the plan says. `first` is the memory of the tensor group's first rank
 * with the same latents, which was opened before; NULL for itself. FALSE: noted. */
gboolean oct_cuda_memory_open(oct_cuda_memory *memory, oct_cuda_rank *rank,
                              const oct_cuda_model *model,
                              const oct_cuda_memory *first) G_GNUC_WARN_UNUSED_RESULT;

/* The cache of a layer, for kernels. */
oct_cuda_kv oct_cuda_memory_layer(const oct_cuda_memory *memory, const oct_cuda_layer *layer);
/* Recurrent states and convolution inputs of a layer's state slot 0, and their distances. */
typedef struct oct_cuda_states {
  float *states;
  gsize state_stride; /* floats */
  void *conv;
  gsize conv_stride; /* elements */
} oct_cuda_states;
oct_cuda_states oct_cuda_memory_states(const oct_cuda_memory *memory, const oct_cuda_layer *layer);

/* Enqueues a copy that oct_copies_check() accepts; or with a peer one that oct_pull_check() does,
 * from the peer's pool, that of the same place in the same layout. FALSE: noted. */
gboolean oct_cuda_memory_copy(const oct_cuda_memory *memory, const oct_cuda_memory *peer,
                              const oct_copy *copy, cudaStream_t stream);

#endif
