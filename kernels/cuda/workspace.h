/* Workspaces of attention. Parts of contexts that blocks share out go there, and plans keep to what
 * there is: fewer shares, fewer splits; in a fixed order, where parts are what they are, fewer
 * sequences at a time. So what oct_cuda_*_workspace() says for the largest call does for every
 * smaller one. */
#ifndef OCT_KERNELS_CUDA_WORKSPACE_H
#define OCT_KERNELS_CUDA_WORKSPACE_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Plans would like no more for parts; in a fixed order one sequence's may be more. */
#define OCT_CUDA_PARTS_BYTES ((size_t)64 << 20)
#define OCT_CUDA_FIXED_BYTES ((size_t)256 << 20)

/* Bytes that a call uses of its workspace_bytes; SIZE_MAX: they do not do. Needs no pointers. */
size_t oct_cuda_attention_used(const oct_cuda_queue *queue, const oct_cuda_attention *call);
size_t oct_cuda_mla_used(const oct_cuda_queue *queue, const oct_cuda_mla *call);
size_t oct_cuda_context_used(const oct_cuda_queue *queue, const oct_cuda_context_attention *call);

#ifdef __cplusplus
}
#endif

#endif
