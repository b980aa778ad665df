/* Products of few rows of x with bfloat16 weights on Hopper, in one order of inputs whatever x has.
 *
 * A block has N weight rows, or a number of such tiles, and up to 64 rows of x. The inputs of both
 * come by the tensor copy engine, 64 at a time, through a ring in shared memory. One thread sends
 * for them: for weights before the predecessors have ended, as they do not depend on them, and for
 * x when they have. Four warps multiply by wgmma, the rows of x on its side of 64 and the weight's
 * on the other: what stands in place of rows of x that there are not is never looked at.
 */
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/matmul.cuh"

#define CONSUMERS   128
#define THREADS     (CONSUMERS + 32)
#define TOKENS      64
#define INPUTS      64 /* of a box */
#define ROW_BYTES   (INPUTS * 2)
#define STAGES_MAX  16
#define RING_BYTES  (160u << 10)
#define AHEAD_BYTES (64u << 10) /* of the weight, on their way to the L2 cache */
/* Rows of x that an instruction reads beyond those that are there. */
#define BEYOND (TOKENS * ROW_BYTES)

struct narrow_args {
  matmul_args a;
  uint32_t tiles;               /* of N rows */
  uint32_t steps;               /* stages of a tile */
  uint32_t stages, stage_bytes; /* of the ring */
  uint32_t x_rows;              /* of a box of x */
  uint32_t ahead;               /* stages behind the ring that are on their way to the L2 cache */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct ring {
  uint32_t base, barriers; /* shared addresses */

  __device__ uint32_t full(uint32_t s) const {
    return barriers + 8 * s;
  }
  __device__ uint32_t empty(uint32_t s) const {
    return barriers + 8 * (STAGES_MAX + s);
  }
};

OCT_DEVICE void
prefetch_box(const CUtensorMap *map, int c0, int c1) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(c0),
               "r"(c1)
               : "memory");
}

/* ---------------------------------------------------------------- copies */

/* One thread: the block's stages in order. */
template <int N, int BOXES> struct sender {
  const narrow_args &s;
  const ring &r;
  const CUtensorMap *w_map, *x_map;

  struct place {
    uint32_t tile, k, stage;
  };

  __device__ bool has(const place &p) const {
    return p.tile < s.tiles;
  }
  __device__ void advance(place &p) const {
    if (++p.k == s.steps) {
      p.k = 0;
      p.tile += gridDim.x;
    }
    if (++p.stage == s.stages)
      p.stage = 0;
  }

  __device__ void send_weights(const place &p) const {
    uint32_t box = N * ROW_BYTES, x_box = s.x_rows * ROW_BYTES;
    uint32_t room = r.base + p.stage * s.stage_bytes + BOXES * x_box;
    barrier_expect(r.full(p.stage), BOXES * (box + x_box));
    for (uint32_t b = 0; b < BOXES; b++)
      copy_box(room + b * box, w_map, r.full(p.stage), (int)((p.k * BOXES + b) * INPUTS),
               (int)(p.tile * N));
  }
  __device__ void send_inputs(const place &p) const {
    uint32_t x_box = s.x_rows * ROW_BYTES, room = r.base + p.stage * s.stage_bytes;
    for (uint32_t b = 0; b < BOXES; b++)
      copy_box(room + b * x_box, x_map, r.full(p.stage), (int)((p.k * BOXES + b) * INPUTS),
               (int)(blockIdx.y * TOKENS));
  }
  __device__ void prefetch(const place &p) const {
    for (uint32_t b = 0; b < BOXES; b++)
      prefetch_box(w_map, (int)((p.k * BOXES + b) * INPUTS), (int)(p.tile * N));
  }

  /* Weights that are sent for are on their way into the L2 cache before: more of them than the ring
   * has room for. */
  __device__ void run() const {
    place weights = {blockIdx.x, 0, 0}, inputs = weights;
    uint32_t n = 0;
    for (; n < s.stages && has(weights); n++, advance(weights))
      send_weights(weights);
    place next = weights;
    for (uint32_t i = 0; i < s.ahead && has(next); i++, advance(next))
      prefetch(next);
    await_predecessors();
    for (uint32_t i = 0; i < n; i++, advance(inputs))
      send_inputs(inputs);
    uint32_t parity = 0; /* of the emptying of the stage that is filled again */
    for (; has(weights); advance(weights)) {
      if (has(next)) {
        prefetch(next);
        advance(next);
      }
      barrier_wait(r.empty(weights.stage), parity);
      send_weights(weights);
      send_inputs(weights);
      if (weights.stage + 1 == s.stages)
        parity ^= 1;
    }
  }
};

/* ---------------------------------------------------------------- products */

template <int N, int BOXES> struct multiplier {
  const narrow_args &s;
  const ring &r;
  uint32_t stage, parity;
  float d[N / 2];

  __device__ void release(uint32_t which) const {
    if (threadIdx.x % 32 == 0)
      barrier_arrive(r.empty(which));
  }

  /* The descriptors are of one warp, so that they are made once. */
  __device__ void multiply(bool adds) {
    uint32_t x_box = s.x_rows * ROW_BYTES;
    uint32_t room = __shfl_sync(0xffffffffu, r.base + stage * s.stage_bytes, 0);
    uint64_t x = swizzled_matrix(room, 0), w = swizzled_matrix(room + BOXES * x_box, 0);
    wgmma_begin();
#pragma unroll
    for (uint32_t b = 0; b < BOXES; b++)
#pragma unroll
      for (uint32_t i = 0; i < INPUTS / 16; i++)
        wgmma_product(d, x + b * (x_box >> 4) + 2 * i, w + b * (N * ROW_BYTES >> 4) + 2 * i,
                      adds || b > 0 || i > 0);
    wgmma_commit();
  }

  __device__ void run_tile() {
    uint32_t before = 0;
    for (uint32_t k = 0; k < s.steps; k++) {
      barrier_wait(r.full(stage), parity);
      multiply(k > 0);
      if (k > 0) {
        wgmma_wait<1>();
        release(before);
      }
      before = stage;
      if (++stage == s.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    wgmma_wait<0>();
    keep_behind(d);
    release(before);
  }

  /* Elements 8 j + 2 t and the next of a row of x: the sums of half h of the registers. */
  __device__ void finish(uint32_t tile) const {
    const bf16 *bias = (const bf16 *)s.a.bias;
    uint32_t lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t token = blockIdx.y * TOKENS + threadIdx.x / 32 * 16 + lane / 4 + 8 * h;
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        uint32_t column = tile * N + 8 * j + 2 * t;
        if (token >= s.a.m || column >= s.a.rows)
          continue;
        const float v[2] = {d[4 * j + 2 * h], d[4 * j + 2 * h + 1]};
        if (s.a.y_is_float || s.a.accumulate || bias != NULL) {
          store_sum(s.a, token, column, v[0], bias);
          store_sum(s.a, token, column + 1, v[1], bias);
        } else {
          store_floats<bf16, 2>((bf16 *)s.a.y + token * s.a.y_stride + column, v);
        }
      }
    }
  }
};

#endif

template <int N, int BOXES>
static __global__ void
__launch_bounds__(THREADS, 1) multiply_narrow(const __grid_constant__ narrow_args s,
                                              const __grid_constant__ CUtensorMap w_map,
                                              const __grid_constant__ CUtensorMap x_map) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char shared[];
  __shared__ __align__(8) uint64_t barriers[2 * STAGES_MAX];
  admit_successor();
  const ring r = {(shared_address(shared) + 1023) & ~1023u, shared_address(barriers)};
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < s.stages; i++) {
      barrier_init(r.full(i), 1);
      barrier_init(r.empty(i), CONSUMERS / 32);
    }
    fence_async();
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    if (threadIdx.x == CONSUMERS)
      sender<N, BOXES>{s, r, &w_map, &x_map}.run();
    return;
  }
  await_predecessors();
  multiplier<N, BOXES> m = {s, r, 0, 0, {}};
  for (uint32_t tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
    m.run_tile();
    m.finish(tile);
  }
#endif
}

/* ---------------------------------------------------------------- launch */

/* Rows of bf16, read in boxes of INPUTS of them by box_rows. */
static bool
make_map(CUtensorMap *map, const void *from, size_t rows, size_t columns, size_t stride,
         uint32_t box_rows) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  const cuuint64_t sizes[2] = {columns, rows}, strides[1] = {stride * 2};
  const cuuint32_t box[2] = {INPUTS, box_rows}, steps[2] = {1, 1};
  return encode != NULL && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)(uintptr_t)from,
                                  sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Weight rows of a tile by which the most loaded block has the fewest; of almost equal ones the
 * most, as they read x seldom. */
static uint32_t
choose_height(const oct_cuda_queue *queue, uint32_t rows) {
  static const uint32_t heights[] = {128, 112, 96, 64, 48, 32};
  uint32_t best = 0, least = UINT32_MAX;
  for (uint32_t i = 0; i < sizeof heights / sizeof *heights; i++) {
    uint32_t load = ceil_div(ceil_div(rows, heights[i]), queue->sm_count) * heights[i];
    if (load < least - least / 32) {
      least = load;
      best = heights[i];
    }
  }
  return best;
}

template <int N>
static int
launch_narrow(const oct_cuda_queue *queue, const matmul_args &a) {
  constexpr int BOXES = N <= 64 ? 2 : 1;
  narrow_args s = {};
  s.a = a;
  s.tiles = ceil_div(a.rows, N);
  s.x_rows = a.m < TOKENS ? round_up(a.m, 8) : TOKENS;
  s.stage_bytes = BOXES * (N + s.x_rows) * ROW_BYTES;
  s.stages = RING_BYTES / s.stage_bytes < STAGES_MAX ? RING_BYTES / s.stage_bytes : STAGES_MAX;
  s.steps = ceil_div(a.columns, BOXES * INPUTS);
  s.ahead = AHEAD_BYTES / (BOXES * N * ROW_BYTES);
  CUtensorMap w_map = {}, x_map = {};
  if (!make_map(&w_map, a.w, a.rows, a.columns, a.w_stride, N) ||
      !make_map(&x_map, a.x, a.m, a.columns, a.x_stride, s.x_rows))
    return OCT_CUDA_UNSUPPORTED;
  uint32_t blocks = ceil_div(s.tiles, ceil_div(s.tiles, queue->sm_count));
  return launch_large(queue, multiply_narrow<N, BOXES>, dim3(blocks, ceil_div(a.m, TOKENS)),
                      dim3(THREADS), RING_BYTES + BEYOND + 1024, s, w_map, x_map);
}

bool
oct_matmul_narrow_can(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  return queue->capability == 90 && format == OCT_CUDA_MATRIX_BF16 && a.batch <= 1 &&
         !a.transposed && a.starts == NULL && oct_matmul_is_even(a, format) && a.rows % 2 == 0 &&
         a.y_stride % 2 == 0 && (uintptr_t)a.y % 8 == 0;
}

int
oct_matmul_narrow(const oct_cuda_queue *queue, const matmul_args &a) {
  switch (choose_height(queue, a.rows)) {
  case 32:
    return launch_narrow<32>(queue, a);
  case 48:
    return launch_narrow<48>(queue, a);
  case 64:
    return launch_narrow<64>(queue, a);
  case 96:
    return launch_narrow<96>(queue, a);
  case 112:
    return launch_narrow<112>(queue, a);
  default:
    return launch_narrow<128>(queue, a);
  }
}
