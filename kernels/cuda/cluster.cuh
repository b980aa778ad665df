/* Blocks of a cluster: their barrier, and words in each other's shared memory; for architectures
 * from 9.0 on. */
#ifndef OCT_KERNELS_CUDA_CLUSTER_CUH
#define OCT_KERNELS_CUDA_CLUSTER_CUH

#include "kernels/cuda/common.cuh"

/* By all threads of a warp together; what was written before is seen behind the others' wait. */
OCT_DEVICE void
cluster_arrive() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}

OCT_DEVICE void
cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

OCT_DEVICE void
cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}

/* Where *own is in block `rank` of the cluster. */
OCT_DEVICE uint32_t
address_there(const void *own, uint32_t rank) {
  uint32_t at = (uint32_t)__cvta_generic_to_shared(own), there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}

OCT_DEVICE void
store_there(float *own, uint32_t rank, float x) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address_there(own, rank)), "f"(x)
               : "memory");
}

OCT_DEVICE uint32_t
load_there(const uint32_t *own, uint32_t rank) {
  uint32_t x;
  asm volatile("ld.shared::cluster.u32 %0, [%1];"
               : "=r"(x)
               : "r"(address_there(own, rank))
               : "memory");
  return x;
}

OCT_DEVICE float
load_there(const float *own, uint32_t rank) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(x)
               : "r"(address_there(own, rank))
               : "memory");
  return x;
}

/* What a sum over the threads of a cluster needs; each use of one is behind a cluster's barrier
 * that follows the use before. */
#define OCT_CLUSTER_MAX 8
struct cluster_room {
  float warps[32], blocks[OCT_CLUSTER_MAX];
};

/* Over all threads of `blocks` blocks, of which this is `part`, in an order that depends on nothing
 * but their number. */
OCT_DEVICE float
cluster_sum(float x, cluster_room *room, uint32_t blocks, uint32_t part) {
  uint32_t lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
  x = warp_sum(x);
  if (lane == 0)
    room->warps[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x < blocks) {
    float sum = 0;
    for (uint32_t w = 0; w < warps; w++)
      sum += room->warps[w];
    store_there(&room->blocks[part], threadIdx.x, sum);
  }
  __syncwarp();
  cluster_barrier();
  float all = 0;
  for (uint32_t b = 0; b < blocks; b++)
    all += room->blocks[b];
  return all;
}

#endif
