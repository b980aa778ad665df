/* Random numbers, and reading at full speed. */
#include "kernels/cuda/common.cuh"

#include "kernels/bench/bench.h"

OCT_DEVICE uint32_t
hash(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (uint32_t)(x >> 32);
}

/* The sum of four uniform numbers, less its mean, to variance 1. */
template <typename T>
static __global__ void
fill(T *to, size_t n, float scale, uint32_t seed) {
  size_t step = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
    uint32_t a = hash(2 * i + ((uint64_t)seed << 40)), b = hash(2 * i + 1 + ((uint64_t)seed << 40));
    float sum = (float)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) / 65536.0f - 2;
    to[i] = from_float<T>(sum * 1.7320508f * scale);
  }
}

static __global__ void
fill_bytes(uint8_t *to, size_t n, uint32_t low, uint32_t high, uint32_t seed) {
  size_t step = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    to[i] = (uint8_t)(low + hash(i + ((uint64_t)seed << 40)) % (high - low + 1));
}

extern "C" int
bench_fill(const oct_cuda_queue *queue, oct_cuda_type type, void *to, size_t n, float scale,
           uint32_t seed) {
  dim3 grid(queue->sm_count * 8), block(256);
  if (type == OCT_CUDA_FP8)
    return launch(queue, fill<fp8>, grid, block, 0, (fp8 *)to, n, scale, seed);
  return OCT_BY_TYPE(type, T, launch(queue, fill<T>, grid, block, 0, (T *)to, n, scale, seed));
}

extern "C" int
bench_fill_bytes(const oct_cuda_queue *queue, void *to, size_t n, uint32_t low, uint32_t high,
                 uint32_t seed) {
  return launch(queue, fill_bytes, dim3(queue->sm_count * 8), dim3(256), 0, (uint8_t *)to, n, low,
                high, seed);
}

static __global__ void
read_all(const uint4 *from, size_t n, float *out) {
  uint32_t sum = 0;
  size_t step = (size_t)gridDim.x * blockDim.x;
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
      v[k] = __ldcs(from + i + k * step);
#pragma unroll
    for (int k = 0; k < 4; k++)
      sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  for (; i < n; i += step)
    sum ^= from[i].x;
  if (sum == 0x12345678u) /* keeps the loads */
    out[0] = 1;
}

extern "C" int
bench_read(const oct_cuda_queue *queue, const void *from, size_t bytes, float *out) {
  return launch(queue, read_all, dim3(queue->sm_count * 16), dim3(512), 0, (const uint4 *)from,
                bytes / 16, out);
}
