/* What all kernels share: types and their conversions, vectors of 16 bytes, reductions, launches.
 */
#ifndef OCT_KERNELS_CUDA_COMMON_CUH
#define OCT_KERNELS_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

typedef __nv_bfloat16 bf16;
typedef __nv_fp8_e4m3 fp8;

#define OCT_DEVICE static __device__ __forceinline__

/* Blocks of a grid's y and z at most; a step may have more tokens and sequences. */
#define OCT_GRID_MOST 65535u

/* As many of `n` as such a grid takes. */
static inline uint32_t
within_grid(size_t n) {
  return n < OCT_GRID_MOST ? (uint32_t)n : OCT_GRID_MOST;
}

/* ---------------------------------------------------------------- types */

template <typename T> OCT_DEVICE float to_float(T x);
template <>
__device__ __forceinline__ float
to_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ float
to_float<bf16>(bf16 x) {
  return __bfloat162float(x);
}
template <>
__device__ __forceinline__ float
to_float<fp8>(fp8 x) {
  return static_cast<float>(x);
}

template <typename T> OCT_DEVICE T from_float(float x);
template <>
__device__ __forceinline__ float
from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bf16
from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ fp8
from_float<fp8>(float x) {
  return fp8(x); /* saturates at 448 */
}

/* N elements that are moved at once. Of arrays no more is known than that they are aligned to 16
 * bytes: where instructions move 32 (10.x), they want an address that is a multiple of that. */
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) vec {
  T at[N];
};

template <typename T, int N>
OCT_DEVICE void
load_floats(const T *from, float (&to)[N]) {
  vec<T, N> v = *reinterpret_cast<const vec<T, N> *>(from);
#pragma unroll
  for (int i = 0; i < N; i++)
    to[i] = to_float(v.at[i]);
}

template <typename T, int N>
OCT_DEVICE void
store_floats(T *to, const float (&from)[N]) {
  vec<T, N> v;
#pragma unroll
  for (int i = 0; i < N; i++)
    v.at[i] = from_float<T>(from[i]);
  *reinterpret_cast<vec<T, N> *>(to) = v;
}

OCT_DEVICE float
sigmoidf(float x) {
  return 1 / (1 + expf(-x));
}

/* tanh within 5e-7 of itself: by its series near 0, where the other form would cancel. */
OCT_DEVICE float
tanh_of(float x) {
  float square = x * x, e = __expf(-2 * fabsf(x));
  float series = x * (1 + square * (-1 / 3.0f + square * (2 / 15.0f - square * (17 / 315.0f))));
  return fabsf(x) < 0.25f ? series : copysignf(__fdividef(1 - e, 1 + e), x);
}

OCT_DEVICE float
glu(const oct_glu_params &p, float gate, float up) {
  if (p.kind == OCT_GLU_SWIGLU)
    return gate * sigmoidf(gate) * up;
  if (p.kind == OCT_GLU_SITU)
    return p.alpha * tanh_of(__fdividef(gate, p.alpha)) * __fdividef(1, 1 + __expf(-gate)) *
           p.limit * tanh_of(__fdividef(up, p.limit));
  gate = fminf(gate, p.limit);
  up = fminf(fmaxf(up, -p.limit), p.limit);
  return gate * sigmoidf(p.alpha * gate) * (up + 1);
}

/* ---------------------------------------------------------------- reductions */

OCT_DEVICE float
warp_sum(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}

OCT_DEVICE float
warp_max(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
  return x;
}

/* Of the whole block; every thread gets it. `room` is 32 floats of shared memory that a second call
 * may use at once. */
OCT_DEVICE float
block_sum(float x, float *room) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  x = warp_sum(x);
  if (warps == 1)
    return x;
  __syncthreads();
  if (lane == 0)
    room[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? room[lane] : 0);
}

OCT_DEVICE float
block_max(float x, float *room) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  x = warp_max(x);
  if (warps == 1)
    return x;
  __syncthreads();
  if (lane == 0)
    room[warp] = x;
  __syncthreads();
  return warp_max(lane < warps ? room[lane] : -INFINITY);
}

/* ---------------------------------------------------------------- launches */

/* Before anything that predecessors write is read, and before anything is written: it waits for the
 * kernel in front to end. Every block does so before it ends, so a kernel ends after all that were
 * before it, and who has waited finds what any of them wrote. */
OCT_DEVICE void
await_predecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The successor's blocks may take what room there is once all blocks of this kernel run: they get
 * ready, and load what no kernel writes, while this one and its predecessors work. */
OCT_DEVICE void
admit_successor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* One more of a kernel; or by its name of a library's function, or of a way that a kernel takes. */
void oct_cuda_count_launch(oct_cuda_launches *launches, const void *function, const char *name);

/* `cluster` blocks along x share their shared memory; 1 = none. */
template <typename... P, typename... A>
static inline int
launch_cluster(const oct_cuda_queue *queue, void (*kernel)(P...), uint32_t cluster, dim3 grid,
               dim3 block, size_t shared, A... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = queue->stream;
  cudaLaunchAttribute attributes[2] = {};
  if ((queue->flags & OCT_CUDA_OVERLAP) != 0 && queue->capability >= 90) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = cluster;
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  config.attrs = attributes;
  if (queue->launches != NULL)
    oct_cuda_count_launch(queue->launches, reinterpret_cast<const void *>(kernel), NULL);
  return (int)cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}

template <typename... P, typename... A>
static inline int
launch(const oct_cuda_queue *queue, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
       A... args) {
  return launch_cluster(queue, kernel, 1, grid, block, shared, args...);
}

/* Lets a function have so many bytes of dynamic shared memory, or more: what it may have never
 * shrinks. The limit is the function's on a device, whoever launches it; launches of other threads,
 * with more of it than this one's, may be on their way. */
int oct_cuda_allow_shared(const void *function, size_t bytes);

/* Lets a kernel have more shared memory than 48 KiB, and clusters of more blocks than 8. */
template <typename... P>
static inline int
allow_large(const oct_cuda_queue *queue, void (*kernel)(P...), uint32_t cluster, size_t shared) {
  const void *function = reinterpret_cast<const void *>(kernel);
  int error = OCT_CUDA_OK;
  if (shared > queue->shared_bytes)
    return OCT_CUDA_UNSUPPORTED;
  if (shared > 48 * 1024)
    error = oct_cuda_allow_shared(function, shared);
  if (error == OCT_CUDA_OK && cluster > 8)
    error = (int)cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  return error;
}

template <typename... P, typename... A>
static inline int
launch_large(const oct_cuda_queue *queue, void (*kernel)(P...), dim3 grid, dim3 block,
             size_t shared, A... args) {
  int error = allow_large(queue, kernel, 1, shared);
  return error != OCT_CUDA_OK ? error : launch(queue, kernel, grid, block, shared, args...);
}

static inline bool
is_activation(oct_cuda_type type) {
  return type == OCT_CUDA_F32 || type == OCT_CUDA_BF16;
}

static inline uint32_t
ceil_div(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

static inline uint32_t
round_up(uint32_t a, uint32_t b) {
  return ceil_div(a, b) * b;
}

/* Calls a template with the activation's type. */
#define OCT_BY_TYPE(type_value, T, ...)                                                            \
  ((type_value) == OCT_CUDA_F32    ? [&] { using T = float; return __VA_ARGS__; }()                \
   : (type_value) == OCT_CUDA_BF16 ? [&] { using T = bf16; return __VA_ARGS__; }()                 \
                                   : OCT_CUDA_UNSUPPORTED)

#endif
