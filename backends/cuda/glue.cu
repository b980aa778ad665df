#include "backends/cuda/glue.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "kernels/cuda/codes.cuh"

namespace {

constexpr unsigned THREADS = 256;

unsigned
blocks_for(size_t n, unsigned most) {
  size_t blocks = (n + THREADS - 1) / THREADS;
  return (unsigned)(blocks < most ? blocks : most);
}

__global__ void
change_tables(uint32_t *tables, const oct_glue_change *changes, uint32_t n) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    tables[changes[i].at] = changes[i].page;
}

__global__ void
count_history(uint32_t *counts, const uint32_t *ids, uint32_t n, uint32_t n_prompt) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    if (i < n_prompt)
      atomicOr(&counts[ids[i]], OCT_REF_COUNT_PROMPT);
    else
      atomicAdd(&counts[ids[i]], 1u);
  }
}

__device__ uint64_t
mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/* The sum of four uniform numbers, as engine/model/files/dummy.c. */
__device__ float
normal_at(uint64_t key, uint64_t position) {
  uint64_t bits = mix64(key + position);
  uint32_t sum = (uint32_t)(bits & 0xffff) + (uint32_t)(bits >> 16 & 0xffff) +
                 (uint32_t)(bits >> 32 & 0xffff) + (uint32_t)(bits >> 48);
  return __fmul_rn((float)sum - 131070.0f, 1.7320508f / 65536.0f);
}

__global__ void
make_dummy(const oct_glue_dummy c) {
  size_t total = c.rows * c.n;
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total;
       i += (size_t)gridDim.x * blockDim.x) {
    uint64_t row = i / c.n, column = i % c.n;
    uint64_t position = (c.row + row) * c.columns + c.column + column;
    float value = __fadd_rn(c.mean, __fmul_rn(c.deviation, normal_at(c.key, position)));
    __nv_bfloat16 narrow = __float2bfloat16_rn(value);
    if (c.type == OCT_CUDA_BF16)
      ((__nv_bfloat16 *)c.out)[row * c.pitch + column] = narrow;
    else
      ((float *)c.out)[row * c.pitch + column] = c.stored_bf16 ? __bfloat162float(narrow) : value;
  }
}

/* The largest of the normal-like numbers. */
constexpr float REACH = 3.4641f;

__device__ uint32_t
e2m1_of(float value) {
  float size = fabsf(value);
  uint32_t code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) +
                  (size > 2.5f) + (size >= 3.5f) + (size > 5);
  return code | (__float_as_uint(value) >> 28 & 8);
}

__device__ uint32_t
int4_of(float value) {
  int code = __float2int_rn(value) + 8;
  return (uint32_t)(code < 0 ? 0 : code > 15 ? 15 : code);
}

__global__ void
make_bytes(const oct_glue_dummy_codes c) {
  size_t total = c.rows * c.n;
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total;
       i += (size_t)gridDim.x * blockDim.x) {
    uint64_t row = i / c.n, column = i % c.n;
    float value = normal_at(c.key, (c.row + row) * c.columns + c.column + column);
    ((uint8_t *)c.out)[row * c.pitch + column] =
        __nv_cvt_float_to_fp8(__fmul_rn(value, 448.0f / REACH), __NV_SATFINITE, __NV_E4M3);
  }
}

/* Word `i` of a packed row: chunk, run and place in the run. */
__global__ void
make_words(const oct_glue_dummy_codes c) {
  uint64_t words = (c.n + 127) / 128 * 16, total = c.rows * words;
  for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < total;
       i += (uint64_t)gridDim.x * blockDim.x) {
    uint64_t row = i / words, word = i % words;
    uint32_t packed = 0;
    for (uint32_t k = 0; k < 8; k++) {
      uint64_t column = input_of_pair((uint32_t)word, k / 2) + k % 2;
      float value = normal_at(c.key, (c.row + row) * c.columns + c.column + column);
      uint32_t code = c.kind == OCT_GLUE_E2M1 ? e2m1_of(__fmul_rn(value, 6.0f / REACH))
                                              : int4_of(__fmul_rn(value, 7.5f / REACH));
      packed |= place_code(c.kind == OCT_GLUE_E2M1, column < c.n ? code : 0, k / 2, k % 2);
    }
    ((uint32_t *)c.out)[i] = packed;
  }
}

struct sources {
  const void *x[OCT_CUDA_PEERS_MAX];
};

template <typename T>
__global__ void
sum_arrays(const sources from, uint32_t n_ranks, size_t n, T *out) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
       i += (size_t)gridDim.x * blockDim.x) {
    float sum = 0;
    for (uint32_t r = 0; r < n_ranks; r++)
      sum += (float)((const T *)from.x[r])[i];
    out[i] = (T)sum;
  }
}

template <typename T>
__global__ void
pool_rows(const oct_glue_pool c) {
  uint32_t column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= c.width)
    return;
  double sum = c.begins ? 0 : c.sum[column];
  for (uint32_t i = 0; i < c.n; i++)
    sum += (double)(float)((const T *)c.x)[(size_t)i * c.width + column];
  c.sum[column] = sum;
  if (c.out != NULL)
    c.out[column] = (float)(sum / c.count);
}

} // namespace

int
oct_glue_pool_rows(cudaStream_t stream, const oct_glue_pool *call) {
  unsigned blocks = (call->width + THREADS - 1) / THREADS;
  if (call->type == OCT_CUDA_F32)
    pool_rows<float><<<blocks, THREADS, 0, stream>>>(*call);
  else
    pool_rows<__nv_bfloat16><<<blocks, THREADS, 0, stream>>>(*call);
  return cudaGetLastError();
}

int
oct_glue_tables(cudaStream_t stream, uint32_t *tables, const oct_glue_change *changes, uint32_t n) {
  if (n > 0)
    change_tables<<<blocks_for(n, 64), THREADS, 0, stream>>>(tables, changes, n);
  return cudaGetLastError();
}

/* n words of 16 bytes, then `rest` of 4. */
static __global__ void
move_words(uint4 *to, const uint4 *from, uint32_t n, uint32_t rest) {
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    to[i] = from[i];
  if (i < rest)
    ((uint32_t *)(to + n))[i] = ((const uint32_t *)(from + n))[i];
}

int
oct_glue_move(cudaStream_t stream, void *to, const void *from, size_t bytes) {
  bool even = ((uintptr_t)to | (uintptr_t)from) % sizeof(uint4) == 0;
  uint32_t n = even ? (uint32_t)(bytes / sizeof(uint4)) : 0;
  uint32_t rest = (uint32_t)(bytes / sizeof(uint32_t)) - 4 * n, most = n > rest ? n : rest;
  if (most > 0)
    move_words<<<(most + THREADS - 1) / THREADS, THREADS, 0, stream>>>(
        (uint4 *)to, (const uint4 *)from, n, rest);
  return cudaGetLastError();
}

int
oct_glue_counts(cudaStream_t stream, uint32_t *counts, uint32_t vocab, const uint32_t *ids,
                uint32_t n, uint32_t n_prompt) {
  cudaError_t cleared = cudaMemsetAsync(counts, 0, vocab * sizeof *counts, stream);
  if (cleared != cudaSuccess)
    return cleared;
  if (n > 0)
    count_history<<<blocks_for(n, 64), THREADS, 0, stream>>>(counts, ids, n, n_prompt);
  return cudaGetLastError();
}

int
oct_glue_make_dummy(cudaStream_t stream, const oct_glue_dummy *call) {
  if (call->rows > 0 && call->n > 0)
    make_dummy<<<blocks_for(call->rows * call->n, 4096), THREADS, 0, stream>>>(*call);
  return cudaGetLastError();
}

int
oct_glue_make_codes(cudaStream_t stream, const oct_glue_dummy_codes *call) {
  size_t n = call->rows * call->n;
  if (n > 0 && call->kind == OCT_GLUE_E4M3)
    make_bytes<<<blocks_for(n, 4096), THREADS, 0, stream>>>(*call);
  else if (n > 0)
    make_words<<<blocks_for(n / 8 + 1, 4096), THREADS, 0, stream>>>(*call);
  return cudaGetLastError();
}

int
oct_glue_sum(cudaStream_t stream, oct_cuda_type type, const void *const *x, uint32_t n_ranks,
             size_t n, void *out) {
  sources from = {};
  for (uint32_t r = 0; r < n_ranks; r++)
    from.x[r] = x[r];
  if (n > 0 && type == OCT_CUDA_F32)
    sum_arrays<<<blocks_for(n, 1024), THREADS, 0, stream>>>(from, n_ranks, n, (float *)out);
  else if (n > 0)
    sum_arrays<<<blocks_for(n, 1024), THREADS, 0, stream>>>(from, n_ranks, n, (__nv_bfloat16 *)out);
  return cudaGetLastError();
}

static __global__ void
stamp(uint64_t *at) {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  *at = now;
}

int
oct_glue_stamp(cudaStream_t stream, uint64_t *at) {
  stamp<<<1, 1, 0, stream>>>(at);
  return cudaGetLastError();
}

static __global__ void
scale_array(float *x, const float *y, size_t n) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
       i += (size_t)gridDim.x * blockDim.x)
    x[i] *= y[i];
}

int
oct_glue_scale(cudaStream_t stream, float *x, const float *y, size_t n) {
  if (n > 0)
    scale_array<<<blocks_for(n, 1024), THREADS, 0, stream>>>(x, y, n);
  return cudaGetLastError();
}

/* ---------------------------------------------------------------- faults for tests */

static __global__ void
go_wrong(long long hang_ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  for (now = start; (long long)(now - start) < hang_ns;)
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  if (hang_ns == 0)
    *(volatile int *)16 = 1;
}

int
oct_glue_fault(struct CUstream_st *stream, int64_t hang_ns) {
  go_wrong<<<1, 1, 0, stream>>>(hang_ns);
  return (int)cudaGetLastError();
}
