/* Experts from host memory, read by the multiprocessors: what is needed is known to the device
 * alone, and a graph can have it. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/fetch.h"

#define FETCH_THREADS 512
#define FETCH_BLOCKS  64 /* they keep 2 MiB under way, a link's rate times its delay many times */
#define FETCH_WORDS   4  /* of 16 bytes that a thread has under way */
#define FETCH_CHUNK   (16 * FETCH_WORDS * FETCH_THREADS)

/* The local experts that have rows and no slot, in order, by one warp of every block. */
OCT_DEVICE uint32_t
list_missing(const oct_cuda_fetch &a, uint16_t *missing, uint32_t lane) {
  uint32_t n = 0;
  for (uint32_t base = 0; base < a.n_local; base += 32) {
    uint32_t e = base + lane, slot = e < a.n_local ? a.map[e] : 0, where = 0;
    bool used = e < a.n_local && a.starts[e + 1] > a.starts[e];
    bool lacks = used && slot == OCT_CUDA_NONE;
    uint32_t who = __ballot_sync(0xffffffffu, lacks);
    uint32_t place = n + __popc(who & ((1u << lane) - 1));
    if (lacks)
      missing[place] = (uint16_t)e;
    if (used)
      where = lacks ? a.scratch + place : a.first + slot;
    if (blockIdx.x == 0 && e < a.n_local)
      a.where[e] = where;
    n += __popc(who);
  }
  return n;
}

/* Chunk `chunk` of a matrix. */
OCT_DEVICE void
copy_chunk(char *to, const char *from, size_t bytes, size_t chunk) {
  size_t begin = chunk * FETCH_CHUNK, left = bytes - begin;
  if (bytes % 16 != 0) {
    for (size_t i = 4 * threadIdx.x; i < FETCH_CHUNK && i < left; i += 4 * FETCH_THREADS)
      *(uint32_t *)(to + begin + i) = *(const uint32_t *)(from + begin + i);
    return;
  }
  uint4 words[FETCH_WORDS];
#pragma unroll
  for (int i = 0; i < FETCH_WORDS; i++)
    if (16 * (i * FETCH_THREADS + threadIdx.x) < left)
      words[i] = *(const uint4 *)(from + begin + 16 * (i * FETCH_THREADS + threadIdx.x));
#pragma unroll
  for (int i = 0; i < FETCH_WORDS; i++)
    if (16 * (i * FETCH_THREADS + threadIdx.x) < left)
      *(uint4 *)(to + begin + 16 * (i * FETCH_THREADS + threadIdx.x)) = words[i];
}

static __global__ void
__launch_bounds__(FETCH_THREADS) fetch_experts(oct_cuda_fetch a) {
  __shared__ uint16_t missing[OCT_CUDA_EXPERTS_MAX];
  __shared__ uint32_t n_missing;
  admit_successor();
  await_predecessors();
  if (threadIdx.x < 32) {
    uint32_t n = list_missing(a, missing, threadIdx.x);
    if (threadIdx.x == 0)
      n_missing = n;
  }
  __syncthreads();
  uint32_t n = n_missing;
  size_t at = blockIdx.x; /* all chunks of all matrices of a run, then those of the next */
  for (uint32_t r = 0; r < a.n_runs; r++) {
    const oct_cuda_expert_run &run = a.runs[r];
    size_t chunks = (run.bytes + FETCH_CHUNK - 1) / FETCH_CHUNK;
    for (; at < n * chunks; at += gridDim.x) {
      uint32_t i = (uint32_t)(at / chunks);
      copy_chunk((char *)run.device + (a.scratch + i) * run.bytes,
                 (const char *)run.host + missing[i] * run.bytes, run.bytes, at % chunks);
    }
    at -= n * chunks;
  }
}

int
oct_cuda_fetch_experts(const oct_cuda_queue *queue, const oct_cuda_fetch *call) {
  if (call->n_local > OCT_CUDA_EXPERTS_MAX || call->n_runs > OCT_CUDA_EXPERT_RUNS)
    return OCT_CUDA_UNSUPPORTED;
  for (uint32_t r = 0; r < call->n_runs; r++)
    if (call->runs[r].bytes % 4 != 0)
      return OCT_CUDA_UNSUPPORTED;
  return launch(queue, fetch_experts, dim3(FETCH_BLOCKS), dim3(FETCH_THREADS), 0, *call);
}
