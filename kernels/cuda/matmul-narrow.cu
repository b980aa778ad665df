/* Products of few rows of x with bfloat16 weights on Hopper, in one order of inputs whatever x has;
 * of parts of the inputs, each to a place of its own, too.
 *
 * A block has N weight rows, or a number of such tiles, and up to 64 rows of x. The inputs of both
 * come by the tensor copy engine, 64 at a time, through a ring in shared memory. One thread of each
 * of two warps sends for them: for weights before the predecessors have ended, as they do not
 * depend on them, and for x when they have. Four warps multiply by wgmma, the rows of x on its side
 * of 64 and the weight's on the other: what stands in place of rows of x that there are not is
 * never looked at. Of gates and ups a tile has as many rows each, and ends with their activation.
 */
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/matmul.cuh"

#define CONSUMERS    128
#define SENDERS      2
#define THREADS      (CONSUMERS + 32 * SENDERS)
#define THREADS_MOST 640
#define TOKENS       64
#define INPUTS       64 /* of a box */
#define ROW_BYTES    (INPUTS * 2)
#define STAGES_MAX   16
/* With a fixed order: the ring, and as much of the weight on its way to the L2 cache behind it. */
#define FIXED_RING  (160u << 10)
#define FIXED_AHEAD (64u << 10)
/* Otherwise products stand beside their neighbours on a multiprocessor, one of each. */
#define RING       (100u << 10)
#define RING_PARTS (116u << 10) /* so much that two of them do not fit */
/* Threads' registers that keep two others apart. */
#define HALF_REGISTERS 32768

struct narrow_args {
  matmul_args a;
  oct_glu_params glu;
  uint32_t rows;                /* of a half */
  uint32_t tiles, items;        /* of N rows; times parts of the inputs */
  uint32_t steps;               /* stages of a tile */
  uint32_t stages, stage_bytes; /* of the ring */
  uint32_t x_rows;              /* of a box of x */
  uint32_t room_at;             /* of a gated tile's sums, behind the ring's beginning */
  uint32_t ahead;               /* stages behind the ring that are on their way to the L2 cache */
  bool once;                    /* nothing else is to leave the L2 cache for the weight */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

typedef stage_ring<STAGES_MAX> ring;

OCT_DEVICE void
prefetch_box(const CUtensorMap *map, int c0, int c1) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(c0),
               "r"(c1)
               : "memory");
}

/* A box of what is read once. */
OCT_DEVICE void
copy_box_once(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0, int c1) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
               ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
               "l"(map), "r"(barrier), "r"(c0), "r"(c1), "l"(policy)
               : "memory");
}

/* ---------------------------------------------------------------- copies */

/* One thread of each of the sending warps: every SENDERSth of the block's stages, in order. */
template <int N, int BOXES, int HALVES> struct sender {
  static constexpr uint32_t BOX = N * ROW_BYTES;
  const narrow_args &s;
  const ring &r;
  const CUtensorMap *w_map, *x_map;

  struct place {
    uint32_t item, k, stage;
  };

  __device__ bool has(const place &p) const {
    return p.item < s.items;
  }
  __device__ void advance(place &p, uint32_t by) const {
    for (p.k += by; p.k >= s.steps; p.k -= s.steps)
      p.item += gridDim.x;
    p.stage += by;
    if (p.stage >= s.stages)
      p.stage -= s.stages;
  }

  __device__ void send_weights(const place &p) const {
    uint32_t x_box = s.x_rows * ROW_BYTES;
    uint32_t room = r.base + p.stage * s.stage_bytes + BOXES * x_box;
    uint32_t part = s.items > s.tiles ? p.item / s.tiles : 0, tile = p.item - part * s.tiles;
    barrier_expect(r.full(p.stage), BOXES * (HALVES * BOX + x_box));
#pragma unroll
    for (uint32_t b = 0; b < BOXES; b++)
#pragma unroll
      for (uint32_t h = 0; h < HALVES; h++) {
        int c0 = (int)(part * s.a.w_batch + (p.k * BOXES + b) * INPUTS);
        int c1 = (int)(h * s.rows + tile * N);
        if (s.once)
          copy_box_once(room + (h * BOXES + b) * BOX, w_map, r.full(p.stage), c0, c1);
        else
          copy_box(room + (h * BOXES + b) * BOX, w_map, r.full(p.stage), c0, c1);
      }
  }
  __device__ void send_inputs(const place &p) const {
    uint32_t x_box = s.x_rows * ROW_BYTES, room = r.base + p.stage * s.stage_bytes;
    uint32_t part = s.items > s.tiles ? p.item / s.tiles : 0;
#pragma unroll
    for (uint32_t b = 0; b < BOXES; b++)
      copy_box(room + b * x_box, x_map, r.full(p.stage),
               (int)(part * s.a.x_batch + (p.k * BOXES + b) * INPUTS), (int)(blockIdx.y * TOKENS));
  }
  __device__ void prefetch(const place &p) const {
    uint32_t part = s.items > s.tiles ? p.item / s.tiles : 0, tile = p.item - part * s.tiles;
    for (uint32_t b = 0; b < BOXES; b++)
      for (uint32_t h = 0; h < HALVES; h++)
        prefetch_box(w_map, (int)(part * s.a.w_batch + (p.k * BOXES + b) * INPUTS),
                     (int)(h * s.rows + tile * N));
  }

  /* Weights that are sent for are on their way into the L2 cache before: more of them than the ring
   * has room for. */
  __device__ void run(uint32_t which) const {
    constexpr uint32_t by = SENDERS;
    place weights = {blockIdx.x, 0, 0};
    advance(weights, which);
    place inputs = weights;
    uint32_t n = which;
    for (; n < s.stages && has(weights); n += by, advance(weights, by))
      send_weights(weights);
    place next = weights;
    for (uint32_t i = which; i < s.ahead && has(next); i += by, advance(next, by))
      prefetch(next);
    await_predecessors();
    for (uint32_t i = which; i < n; i += by, advance(inputs, by))
      send_inputs(inputs);
    uint32_t parity = 0; /* of the emptying of the stage that is filled again */
    while (has(weights)) {
      if (s.ahead > 0 && has(next)) {
        prefetch(next);
        advance(next, by);
      }
      barrier_wait(r.empty(weights.stage), parity);
      send_weights(weights);
      send_inputs(weights);
      uint32_t stage = weights.stage;
      advance(weights, by);
      if (weights.stage <= stage)
        parity ^= 1;
    }
  }
};

/* ---------------------------------------------------------------- products */

template <int N, int BOXES, int HALVES> struct multiplier {
  static constexpr uint32_t BOX = N * ROW_BYTES;
  const narrow_args &s;
  const ring &r;
  uint32_t stage, parity;
  float d[HALVES][N / 2];

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
#pragma unroll
        for (uint32_t h = 0; h < HALVES; h++)
          wgmma_product(d[h], x + b * (x_box >> 4) + 2 * i,
                        w + (h * BOXES + b) * (BOX >> 4) + 2 * i, adds || b > 0 || i > 0);
    wgmma_commit();
  }

  /* A stage is free as soon as it is multiplied: what waits for memory has time for that, and there
   * are few stages. */
  __device__ void run_tile() {
    for (uint32_t k = 0; k < s.steps; k++) {
      barrier_wait(r.full(stage), parity);
      multiply(k > 0);
      wgmma_wait<0>();
#pragma unroll
      for (int h = 0; h < HALVES; h++)
        keep_behind(d[h]);
      if (arrives_for_warp(threadIdx.x % 32))
        barrier_arrive(r.empty(stage));
      if (++stage == s.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  /* All consumers: gates and ups, by way of shared memory, to what the activation makes of them. A
   * loop over them is few instructions; run once, they come from memory, as unrolled ones would. */
  __device__ void finish_gated(uint32_t tile, float *room) const {
    constexpr uint32_t PITCH = 2 * N + 8; /* rows are in different banks */
    uint32_t lane = threadIdx.x % 32, first = blockIdx.y * TOKENS;
    uint32_t tokens = min(s.a.m - first, (uint32_t)TOKENS);
    named_barrier(1, CONSUMERS);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t token = threadIdx.x / 32 * 16 + lane / 4 + 8 * half;
      if (token >= tokens)
        continue;
#pragma unroll
      for (int h = 0; h < HALVES; h++)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
          *(float2 *)(room + token * PITCH + h * N + 8 * j + 2 * (lane % 4)) =
              make_float2(d[h][4 * j + 2 * half], d[h][4 * j + 2 * half + 1]);
    }
    named_barrier(1, CONSUMERS);
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < tokens * (N / 2); i += CONSUMERS) {
      uint32_t token = i / (N / 2), c = i % (N / 2) * 2, column = tile * N + c;
      if (column >= s.rows)
        continue;
      float2 gate = *(const float2 *)(room + token * PITCH + c);
      float2 up = *(const float2 *)(room + token * PITCH + N + c);
      const float v[2] = {glu(s.glu, gate.x, up.x), glu(s.glu, gate.y, up.y)};
      size_t at = (first + token) * s.a.y_stride + column;
      if (s.a.y_is_float)
        store_floats<float, 2>((float *)s.a.y + at, v);
      else
        store_floats<bf16, 2>((bf16 *)s.a.y + at, v);
    }
  }

  /* Elements 8 j + 2 t and the next of a row of x. */
  __device__ void finish(uint32_t item) const {
    const bf16 *bias = (const bf16 *)s.a.bias;
    uint32_t lane = threadIdx.x % 32, t = lane % 4;
    uint32_t tile = item % s.tiles;
    size_t part = item / s.tiles * s.a.y_batch;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t token = blockIdx.y * TOKENS + threadIdx.x / 32 * 16 + lane / 4 + 8 * half;
      if (token >= s.a.m)
        continue;
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        uint32_t column = tile * N + 8 * j + 2 * t;
        if (column >= s.rows)
          continue;
        const float v[2] = {d[0][4 * j + 2 * half], d[0][4 * j + 2 * half + 1]};
        if (s.a.accumulate || bias != NULL) {
          store_sum(s.a, token, column, v[0], bias);
          store_sum(s.a, token, column + 1, v[1], bias);
        } else if (s.a.y_is_float) {
          store_floats<float, 2>((float *)s.a.y + part + token * s.a.y_stride + column, v);
        } else {
          store_floats<bf16, 2>((bf16 *)s.a.y + token * s.a.y_stride + column, v);
        }
      }
    }
  }
};

#endif

template <int N, int BOXES, int HALVES>
static __global__ void
__launch_bounds__(HALVES == 1 ? THREADS_MOST : THREADS, 1)
    multiply_narrow(const __grid_constant__ narrow_args s,
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
      barrier_init(r.empty(i), arrivals_of(CONSUMERS / 32));
    }
    fence_async();
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    uint32_t which = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0) - CONSUMERS / 32;
    if (which < SENDERS && is_elected())
      sender<N, BOXES, HALVES>{s, r, &w_map, &x_map}.run(which);
    return;
  }
  await_predecessors();
  multiplier<N, BOXES, HALVES> m = {s, r, 0, 0, {}};
  /* The last tile's sums may take the ring's place. */
  float *room = (float *)(shared + (r.base - shared_address(shared)) + s.room_at);
  for (uint32_t item = blockIdx.x; item < s.items; item += gridDim.x) {
    m.run_tile();
    if constexpr (HALVES == 2)
      m.finish_gated(item, room);
    else
      m.finish(item);
  }
#endif
}

/* ---------------------------------------------------------------- launch */

/* Weight rows of a tile by which the most loaded block has the fewest; of almost equal ones the
 * most, as they read x seldom. */
static uint32_t
choose_height(const oct_cuda_queue *queue, uint32_t rows, uint32_t parts) {
  static const uint32_t heights[] = {128, 112, 96, 64, 48, 32};
  uint32_t best = 0, least = UINT32_MAX;
  for (uint32_t i = 0; i < sizeof heights / sizeof *heights; i++) {
    uint32_t load = ceil_div(ceil_div(rows, heights[i]) * parts, queue->sm_count) * heights[i];
    if (load < least - least / 32) {
      least = load;
      best = heights[i];
    }
  }
  return best;
}

/* Threads beyond those that work: their registers keep another block of the kernel off the same
 * multiprocessor, while others have none, and leave room for one of a neighbour. */
static uint32_t
threads_of(const void *kernel) {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess)
    return THREADS;
  uint32_t threads = round_up(HALF_REGISTERS / round_up(attributes.numRegs, 8) + 1, 32);
  return threads < THREADS ? THREADS : threads < THREADS_MOST ? threads : THREADS_MOST;
}

template <int N, int HALVES>
static int
launch_narrow(const oct_cuda_queue *queue, const matmul_args &a) {
  constexpr int BOXES = N * HALVES <= 64 ? 2 : 1;
  constexpr uint32_t BYTES = BOXES * HALVES * N * ROW_BYTES;
  auto kernel = multiply_narrow<N, BOXES, HALVES>;
  bool fixed = (queue->flags & OCT_CUDA_FIXED_ORDER) != 0;
  narrow_args s = {};
  s.a = a;
  if (a.glu != NULL)
    s.glu = *a.glu;
  s.rows = a.rows / HALVES;
  s.tiles = ceil_div(s.rows, N);
  s.items = s.tiles * a.batch;
  s.x_rows = a.m < TOKENS ? round_up(a.m, 8) : TOKENS;
  s.stage_bytes = BYTES + BOXES * s.x_rows * ROW_BYTES;
  uint32_t stages = (fixed ? FIXED_RING : RING) / s.stage_bytes;
  s.stages = stages < 2 ? 2 : stages < STAGES_MAX ? stages : STAGES_MAX;
  s.steps = ceil_div(a.columns, BOXES * INPUTS);
  s.ahead = fixed ? FIXED_AHEAD / BYTES : 0;
  s.once = !fixed;
  CUtensorMap w_map = {}, x_map = {};
  size_t columns = a.columns + (a.batch - 1) * a.w_batch;
  constexpr CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if (!make_map(&w_map, type, a.w, {columns, a.rows}, {a.w_stride * 2}, {INPUTS, N}) ||
      !make_map(&x_map, type, a.x, {columns, a.m}, {a.x_stride * 2}, {INPUTS, s.x_rows}))
    return OCT_CUDA_UNSUPPORTED;
  uint32_t blocks = ceil_div(s.items, ceil_div(s.items, queue->sm_count)), threads = THREADS;
  size_t shared = (size_t)s.stages * s.stage_bytes + 1024;
  if (HALVES == 2) {
    size_t sums = s.x_rows * (2 * N + 8) * sizeof(float);
    threads = THREADS;
    s.room_at = s.items > blocks ? s.stages * s.stage_bytes : 0;
    shared = shared - 1024 - s.room_at > sums ? shared : s.room_at + sums + 1024;
  }
  if ((a.batch > 1 || HALVES == 2) && shared < RING_PARTS)
    shared = RING_PARTS;
  else if (!fixed && HALVES == 1)
    threads = threads_of(reinterpret_cast<const void *>(kernel));
  return launch_large(queue, kernel, dim3(blocks, ceil_div(a.m, TOKENS)), dim3(threads), shared, s,
                      w_map, x_map);
}

/* Parts are of the inputs of one weight, in whole stages. */
static bool
parts_fit(const matmul_args &a) {
  return a.batch <= 1 ||
         (a.columns % (2 * INPUTS) == 0 && a.w_batch == a.columns && a.x_batch == a.columns &&
          a.y_is_float && !a.accumulate && a.bias == NULL);
}

/* An activation is of whole sums. */
static bool
gate_fits(const matmul_args &a) {
  return a.glu == NULL || (a.rows % 4 == 0 && a.batch <= 1 && !a.accumulate && a.bias == NULL);
}

bool
oct_matmul_narrow_can(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  return queue->capability == 90 && format == OCT_CUDA_MATRIX_BF16 && parts_fit(a) &&
         !a.transposed && a.starts == NULL && oct_matmul_is_even(a, format) && gate_fits(a) &&
         a.rows % 2 == 0 && a.y_stride % 2 == 0 && (uintptr_t)a.y % 8 == 0;
}

static uint32_t
height_of(const oct_cuda_queue *queue, const matmul_args &a) {
  return choose_height(queue, a.glu != NULL ? a.rows / 2 : a.rows, a.batch);
}

bool
oct_matmul_narrow_fills(const oct_cuda_queue *queue, const matmul_args &a) {
  uint32_t rows = a.glu != NULL ? a.rows / 2 : a.rows;
  uint32_t items = a.batch * ceil_div(rows, height_of(queue, a));
  return items <= queue->sm_count && 8 * items >= 7 * queue->sm_count;
}

template <int N>
static int
launch_height(const oct_cuda_queue *queue, const matmul_args &a) {
  return a.glu != NULL ? launch_narrow<N, 2>(queue, a) : launch_narrow<N, 1>(queue, a);
}

int
oct_matmul_narrow(const oct_cuda_queue *queue, const matmul_args &a) {
  switch (height_of(queue, a)) {
  case 32:
    return launch_height<32>(queue, a);
  case 48:
    return launch_height<48>(queue, a);
  case 64:
    return launch_height<64>(queue, a);
  case 96:
    return launch_height<96>(queue, a);
  case 112:
    return launch_height<112>(queue, a);
  default:
    return launch_height<128>(queue, a);
  }
}
