/* Grouped products of block-scaled operands by Blackwell's tcgen05: x in MXFP8, weights in MXFP4,
 * both as they are stored, with the scales of every 32 inputs applied by the tensor cores.
 *
 * A block has 128 weight rows, which are the instruction's rows, by N rows of x, its columns, for
 * one expert (or the one weight). It goes over the inputs 128 at a time through a ring of stages:
 * one warp copies both operands (codes of four bits are spread to a byte each by the copy), another
 * puts the scales into the order that tensor memory wants them in, a third copies those there and
 * multiplies, and four warps take the sums from tensor memory to y.
 */
#include "kernels/cuda/scaled.h"

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/matmul.cuh"

#define THREADS 256
#define ROWS    128
#define INPUTS  128
#define STAGES  6

#define W_BYTES     (ROWS * INPUTS) /* a code has a byte */
#define SCALE_BYTES 512             /* of 128 rows */

/* Warps of a block. */
enum { WARP_COPIES, WARP_SCALES, WARP_MULTIPLIES, WARP_ALLOCATES, WARP_SUMS /* and three more */ };

#if defined(__CUDA_ARCH_FEAT_SM103_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL) ||                  \
    (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ / 10 == 100)
#define HAS_TENSOR_MEMORY 1
#endif

template <int N> struct stage {
  static constexpr uint32_t X_BYTES = N * INPUTS, X_AT = W_BYTES, W_SCALES_AT = X_AT + X_BYTES,
                            X_SCALES_AT = W_SCALES_AT + SCALE_BYTES,
                            BYTES = X_SCALES_AT + SCALE_BYTES; /* a multiple of 1024 */
  /* Columns of tensor memory: sums, then scales; a power of two of them is taken. */
  static constexpr uint32_t W_SCALES = N, X_SCALES = N + 4, COLUMNS = N < 32 ? 32 : 2 * N;
};

#ifdef HAS_TENSOR_MEMORY

/* ---------------------------------------------------------------- instructions */

/* Rows of 128 bytes in groups of 8 that are 1024 bytes apart, swizzled. */
OCT_DEVICE uint64_t
operand(uint32_t address) {
  return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 46 |
         (uint64_t)2 << 61;
}

/* 32 rows of 16 bytes, not swizzled: groups of 8 are 128 bytes apart. */
OCT_DEVICE uint64_t
scale_rows(uint32_t address) {
  return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(128 >> 4) << 16 |
         (uint64_t)(128 >> 4) << 32 | (uint64_t)1 << 46;
}

/* What a product is of: e2m1 by e4m3 into float32, N columns, 128 rows, scales e8m0 from byte `k`
 * of their words. */
template <int N>
OCT_DEVICE uint32_t
instruction(uint32_t k) {
  return k << 4 | 5u << 7 | 0u << 10 | (uint32_t)(N / 8) << 17 | 1u << 23 | (128u / 16) << 24 |
         k << 29;
}

OCT_DEVICE void
multiply_scaled(uint32_t sums, uint64_t w, uint64_t x, uint32_t what, uint32_t w_scales,
                uint32_t x_scales, int adds) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %6, 0;\n"
      "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32 [%0], %1, %2, %3, [%4], "
      "[%5], p;\n"
      "}\n" ::"r"(sums),
      "l"(w), "l"(x), "r"(what), "r"(w_scales), "r"(x_scales), "r"(adds)
      : "memory");
}

OCT_DEVICE void
copy_scales(uint32_t to, uint64_t from) {
  asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(from) : "memory");
}

/* An arrival when all products so far are done. */
OCT_DEVICE void
arrive_after_products(uint32_t barrier) {
  asm volatile(
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
      : "memory");
}

template <int COLUMNS>
OCT_DEVICE void
take_memory(uint32_t place) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;\n"
               "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::"r"(place),
               "n"(COLUMNS)
               : "memory");
}
template <int COLUMNS>
OCT_DEVICE void
give_memory(uint32_t at) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(at), "n"(COLUMNS));
}

/* Eight columns of the warp's 32 lanes. */
OCT_DEVICE void
load_sums(uint32_t from, uint32_t (&v)[8]) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];\n"
               "tcgen05.wait::ld.sync.aligned;"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]),
                 "=r"(v[7])
               : "r"(from)
               : "memory");
}

OCT_DEVICE void
after_sync() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}
OCT_DEVICE void
before_sync() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

/* ---------------------------------------------------------------- the block's warps */

struct ring : stage_ring<STAGES> {
  __device__ uint32_t done() const {
    return other(0);
  }
};

template <int N>
OCT_DEVICE void
copy_operands(const matmul_args &a, const ring &r, const job &j, uint32_t first_row,
              const CUtensorMap *weights, const CUtensorMap *inputs) {
  uint32_t steps = (a.columns + INPUTS - 1) / INPUTS;
  for (uint32_t i = 0; i < steps; i++) {
    uint32_t s = i % STAGES, room = r.base + s * stage<N>::BYTES;
    if (i >= STAGES)
      barrier_wait(r.empty(s), (i / STAGES - 1) % 2);
    barrier_expect(r.full(s),
                   W_BYTES / 2 + stage<N>::X_BYTES); /* without what codes are spread by */
    copy_box(room, weights, r.full(s), (int)(i * INPUTS), (int)(j.slot * a.rows + first_row));
    copy_box(room + stage<N>::X_AT, inputs, r.full(s), (int)(i * INPUTS), (int)j.first_token);
  }
}

/* A warp: words of up to 128 rows, each with the scales of 128 inputs, so that row r is word r / 32
 * of 16 bytes r % 32. */
OCT_DEVICE void
place_scales(uint32_t to, const uint32_t *from, uint32_t n) {
  uint32_t lane = threadIdx.x % 32, v[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; i++)
    v[i] = 32 * i + lane < n ? from[32 * i + lane] : 0;
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + 16 * lane), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

template <int N>
OCT_DEVICE void
copy_all_scales(const matmul_args &a, const uint32_t *x_scales, const ring &r, const job &j,
                uint32_t first_row) {
  uint32_t steps = (a.columns + INPUTS - 1) / INPUTS;
  const uint32_t *w_scales = (const uint32_t *)a.scales + (size_t)j.slot * steps * a.rows;
  for (uint32_t i = 0; i < steps; i++) {
    uint32_t s = i % STAGES, room = r.base + s * stage<N>::BYTES;
    if (i >= STAGES)
      barrier_wait(r.empty(s), (i / STAGES - 1) % 2);
    place_scales(room + stage<N>::W_SCALES_AT, w_scales + (size_t)i * a.rows + first_row,
                 min((uint32_t)ROWS, a.rows - first_row));
    place_scales(room + stage<N>::X_SCALES_AT, x_scales + (size_t)i * a.m + j.first_token,
                 j.n_tokens);
    fence_async();
    arrive_by_warp(r.full(s));
  }
}

/* One thread. */
template <int N>
OCT_DEVICE void
multiply(const matmul_args &a, const ring &r, uint32_t memory) {
  uint32_t steps = (a.columns + INPUTS - 1) / INPUTS;
  for (uint32_t i = 0; i < steps; i++) {
    uint32_t s = i % STAGES, room = r.base + s * stage<N>::BYTES;
    barrier_wait(r.full(s), i / STAGES % 2);
    after_sync();
    copy_scales(memory + stage<N>::W_SCALES, scale_rows(room + stage<N>::W_SCALES_AT));
    copy_scales(memory + stage<N>::X_SCALES, scale_rows(room + stage<N>::X_SCALES_AT));
#pragma unroll
    for (uint32_t k = 0; k < INPUTS / 32; k++)
      multiply_scaled(memory, operand(room + 32 * k), operand(room + stage<N>::X_AT + 32 * k),
                      instruction<N>(k), memory + stage<N>::W_SCALES, memory + stage<N>::X_SCALES,
                      i > 0 || k > 0);
    arrive_after_products(r.empty(s));
  }
  arrive_after_products(r.done());
}

/* Four warps: a lane has a weight row. */
template <int N>
OCT_DEVICE void
store_sums(const matmul_args &a, const ring &r, const job &j, uint32_t first_row, uint32_t memory) {
  uint32_t quarter = threadIdx.x / 32 % 4, row = first_row + 32 * quarter + threadIdx.x % 32;
  const bf16 *bias = a.bias != NULL ? (const bf16 *)a.bias + (size_t)j.expert * a.rows : NULL;
  barrier_wait(r.done(), 0);
  after_sync();
  for (uint32_t first = 0; first < j.n_tokens; first += 8) {
    uint32_t v[8];
    load_sums(memory + (32 * quarter << 16) + first, v);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
      if (first + i < j.n_tokens && row < a.rows)
        store_sum(a, j.first_token + first + i, row, __uint_as_float(v[i]), bias);
  }
  before_sync();
}

#endif

template <int N>
static __global__ void
__launch_bounds__(THREADS, 1)
    multiply_block_scaled(const __grid_constant__ matmul_args a, const uint32_t *x_scales,
                          const __grid_constant__ CUtensorMap weights,
                          const __grid_constant__ CUtensorMap inputs) {
#ifdef HAS_TENSOR_MEMORY
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) uint64_t barriers[2 * STAGES + 1];
  __shared__ uint32_t memory_at;
  admit_successor();
  await_predecessors();
  uint32_t warp = threadIdx.x / 32, down = (a.rows + ROWS - 1) / ROWS;
  uint32_t first_row = blockIdx.x % down * ROWS, nth = blockIdx.x / down;
  job j = {0, 0, nth * N, min((uint32_t)N, a.m - nth * N)};
  if (a.starts != NULL) {
    j.n_tokens = 0;
    (void)find_job(a, N, nth, &j);
    if (j.n_tokens == 0)
      return;
  }
  const ring r = {(shared_address(shared) + 1023) & ~1023u, shared_address(barriers)};
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < STAGES; s++) {
      barrier_init(r.full(s), 1 + arrivals_of(1));
      barrier_init(r.empty(s), 1);
    }
    barrier_init(r.done(), 1);
    fence_async();
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (warp == WARP_ALLOCATES)
    take_memory<stage<N>::COLUMNS>(shared_address(&memory_at));
  before_sync();
  __syncthreads();
  after_sync();
  uint32_t memory = memory_at;
  if (warp == WARP_COPIES && threadIdx.x % 32 == 0)
    copy_operands<N>(a, r, j, first_row, &weights, &inputs);
  else if (warp == WARP_SCALES)
    copy_all_scales<N>(a, x_scales, r, j, first_row);
  else if (warp == WARP_MULTIPLIES && threadIdx.x % 32 == 0)
    multiply<N>(a, r, memory);
  else if (warp >= WARP_SUMS)
    store_sums<N>(a, r, j, first_row, memory);
  __syncthreads();
  if (warp == WARP_ALLOCATES)
    give_memory<stage<N>::COLUMNS>(memory);
#endif
}

/* ---------------------------------------------------------------- launch */

template <int N>
static int
launch_scaled(const oct_cuda_queue *queue, const matmul_args &a, const uint32_t *x_scales) {
  uint32_t padded = round_up(a.columns, 128);
  CUtensorMap weights = {}, inputs = {};
  if (!make_map(&weights, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B, a.w,
                {padded, (uint64_t)a.rows * a.n_matrices}, {padded / 2}, {INPUTS, ROWS}) ||
      !make_map(&inputs, CU_TENSOR_MAP_DATA_TYPE_UINT8, a.x, {a.columns, a.m}, {a.columns},
                {INPUTS, N}))
    return OCT_CUDA_UNSUPPORTED;
  uint32_t tiles = ceil_div(a.m, N);
  if (a.starts != NULL)
    tiles = a.m / N + (a.n_experts < a.m ? a.n_experts : a.m);
  return launch_large(queue, multiply_block_scaled<N>, dim3(ceil_div(a.rows, ROWS) * tiles),
                      dim3(THREADS), (size_t)STAGES * stage<N>::BYTES + 1024, a, x_scales, weights,
                      inputs);
}

bool
oct_cuda_scaled_can(const oct_cuda_queue *queue, const oct_cuda_matrix *weight) {
  return queue->capability / 10 == 10 && weight->columns % 32 == 0;
}

int
oct_cuda_scaled_multiply(const oct_cuda_queue *queue, const oct_cuda_scaled_matmul *call) {
  const oct_cuda_pairs *pairs = call->pairs;
  if (!oct_cuda_scaled_can(queue, &call->weight) ||
      call->weight.format != OCT_CUDA_MATRIX_MXFP4_ROWS || !is_activation(call->y_type))
    return OCT_CUDA_UNSUPPORTED;
  matmul_args a = {};
  a.w = call->weight.data;
  a.scales = call->weight.scales;
  a.rows = call->weight.rows;
  a.columns = call->weight.columns;
  a.x = call->x;
  a.bias = call->bias;
  a.y = call->y;
  a.y_stride = call->y_stride;
  a.y_is_float = call->y_type == OCT_CUDA_F32;
  a.m = call->m;
  a.n_matrices = 1;
  if (pairs != NULL) {
    a.starts = pairs->starts;
    a.slots = call->slots;
    a.n_experts = pairs->n_local;
    a.n_matrices = call->slots != NULL ? call->n_matrices : pairs->n_local;
  }
  if (a.m == 0 || (pairs != NULL && a.n_experts == 0))
    return OCT_CUDA_OK;
  uint32_t m = pairs != NULL ? 2 * ceil_div(a.m, a.n_experts) : a.m;
  const uint32_t *x_scales = (const uint32_t *)call->x_scales;
  if (m <= 16)
    return launch_scaled<16>(queue, a, x_scales);
  return m <= 64 ? launch_scaled<64>(queue, a, x_scales) : launch_scaled<128>(queue, a, x_scales);
}

/* ---------------------------------------------------------------- x in eight bits */

/* A thread has a block of 32 inputs, or of inputs beyond the width. */
template <typename T>
static __global__ void
quantise_mx(oct_cuda_quantise_mx a, oct_cuda_pairs pairs) {
  admit_successor();
  await_predecessors();
  uint32_t blocks = (a.width + 127) / 128 * 4, b = blockIdx.y * blockDim.x + threadIdx.x;
  uint32_t row = blockIdx.x, from = row;
  if (b >= blocks)
    return;
  if (a.pairs != NULL) {
    if (row >= pairs.starts[pairs.n_local])
      return;
    from = pairs.pair_of[row] / pairs.top_k;
  }
  uint8_t *scale = a.scales + ((size_t)(b / 4) * a.n + row) * 4 + b % 4;
  if (32 * b >= a.width) {
    *scale = 0;
    return;
  }
  constexpr int E = 16 / sizeof(T);
  const T *x = (const T *)a.x + from * a.x_stride + 32 * b;
  float v[32], most = 0;
#pragma unroll
  for (int i = 0; i < 32; i += E)
    load_floats<T, E>(x + i, *reinterpret_cast<float(*)[E]>(v + i));
#pragma unroll
  for (int i = 0; i < 32; i++)
    most = fmaxf(most, fabsf(v[i]));
  /* most <= 1.75 * 2^(exponent - 127 + 8): one more where its mantissa is above 1.75. */
  uint32_t bits = __float_as_uint(most), power = bits >> 23;
  power += (bits & 0x7fffff) > 0x600000;
  uint32_t exponent = power > 8 ? min(power - 8, 254u) : 0;
  /* 2^(127 - exponent), which may be beyond float32's normal range: in two steps. */
  float half = __uint_as_float((127 + (127 - (int)exponent) / 2) << 23);
  float rest = __uint_as_float((127 + (127 - (int)exponent) - (127 - (int)exponent) / 2) << 23);
  fp8 *out = (fp8 *)a.out + (size_t)row * a.width + 32 * b;
#pragma unroll
  for (int i = 0; i < 32; i++)
    v[i] = v[i] * half * rest;
#pragma unroll
  for (int i = 0; i < 32; i += 16)
    store_floats<fp8, 16>(out + i, *reinterpret_cast<float(*)[16]>(v + i));
  *scale = (uint8_t)exponent;
}

int
oct_cuda_quantise_mx_rows(const oct_cuda_queue *queue, const oct_cuda_quantise_mx *call) {
  size_t each = call->type == OCT_CUDA_F32 ? 4 : 8;
  if (call->n == 0 || call->width == 0)
    return OCT_CUDA_OK;
  if (call->width % 32 != 0 || call->x_stride % each != 0)
    return OCT_CUDA_UNSUPPORTED;
  uint32_t blocks = round_up(call->width, 128) / 32;
  oct_cuda_pairs pairs = {};
  if (call->pairs != NULL)
    pairs = *call->pairs;
  return OCT_BY_TYPE(call->type, T,
                     launch(queue, quantise_mx<T>, dim3(call->n, ceil_div(blocks, 128)), dim3(128),
                            0, *call, pairs));
}
