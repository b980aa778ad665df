/* Experts that are not on the device: what a batch needs of them is brought from pinned host memory
 * between routing and the products. Launchers under launch.h's rules. */
#ifndef OCT_KERNELS_CUDA_FETCH_H
#define OCT_KERNELS_CUDA_FETCH_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Matrices one after another on the device, `bytes` apart (a multiple of 4), and those of all local
 * experts of one layer in pinned memory of the host, likewise. */
typedef struct oct_cuda_expert_run {
  const void *host;
  void *device;
  size_t bytes;
} oct_cuda_expert_run;
#define OCT_CUDA_EXPERT_RUNS 4 /* data and scales, of two products */

/* For oct_cuda_expert_matmul.slots: where[e] is the matrix of each local expert that has rows
 * (starts, of oct_cuda_sort_pairs()), 0 of the others. That is first + map[e] for those whose map
 * has a slot; each of the others, in order, takes the next matrix from `scratch` on and is copied
 * there. There are scratch matrices for all local experts without a slot that can have rows. */
typedef struct oct_cuda_fetch {
  uint32_t n_local; /* at most OCT_CUDA_EXPERTS_MAX */
  const uint32_t *starts;
  const uint32_t *map; /* [n_local]; OCT_CUDA_NONE: no slot */
  uint32_t first, scratch;
  uint32_t *where; /* [n_local] */
  uint32_t n_runs;
  oct_cuda_expert_run runs[OCT_CUDA_EXPERT_RUNS];
} oct_cuda_fetch;
int oct_cuda_fetch_experts(const oct_cuda_queue *queue, const oct_cuda_fetch *call);

#ifdef __cplusplus
}
#endif

#endif
