/* Matrix products of few rows of x on Hopper, weights of bf16 and fp8, bound by reading the weight.
 *
 * One block a multiprocessor, which has some tiles of weight rows, so high that the blocks have
 * almost equally many rows. Blocks go through all tiles side by side: so an expert that takes
 * several passes is read from memory once, and those of many tokens, which cost more, are
 * everybody's. A tile's inputs come in units of four chunks, 64 bytes of each row, by the copy
 * engine into a ring that is most of the shared memory: weights are sent for before the
 * predecessors have ended, as they do not depend on them, and x follows when they have. So a
 * product begins with a ring full of weights.
 *
 * Eight warps multiply with mma.sync, weight rows on its wide side and the rows of x on the narrow
 * one, 8 to a tile: as many such tiles as the expert has tokens for. A warp has 16 rows and a share
 * of each unit's chunks; shares are added when a tile ends. Lane (g, t) takes of rows g and g + 8
 * the 16 bytes t of a chunk, and as inputs within a sum may come in any order, these are its
 * elements of consecutive steps, as matmul-skinny.cu has it.
 */
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/matmul.cuh"

#define WARPS      8 /* that multiply */
#define CONSUMERS  (32 * WARPS)
#define THREADS    (CONSUMERS + 32)
#define CHUNKS     4 /* of a unit */
#define STAGES_MAX 32
#define RING_BYTES (180u << 10)
#define M_MAX      32
/* Rows of a tile at most, all halves together: what the warps have. */
#define ROWS_MAX (16 * WARPS)

template <int F, int NT> struct shape {
  using traits = kind_traits<F>;
  static constexpr uint32_t EACH = 4 * traits::E;   /* inputs of a chunk */
  static constexpr uint32_t INPUTS = CHUNKS * EACH; /* of a unit */
  /* Rows of x are apart so that two of them are in different banks. */
  static constexpr uint32_t X_PITCH = INPUTS * 2 + 64, X_BYTES = 8 * NT * X_PITCH;
  static constexpr int ROOM = WARPS * 8 * NT * 17; /* floats: the warps' sums of a tile */
};

struct stream_args {
  matmul_args a;
  oct_glu_params glu;
  uint32_t halves;                    /* 2: gates, and ups as many rows further on */
  uint32_t rows;                      /* of a half in all */
  uint32_t tile_rows, tiles;          /* of a half */
  uint32_t units;                     /* of a tile */
  uint32_t stages, stage_bytes, x_at; /* in a stage: weights, x */
  uint32_t parts; /* that the groups of 16 rows leave of the warps: a unit's chunks are shared */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

typedef stage_ring<STAGES_MAX> ring;

/* The tiles of a block, n of all; the job of one. With experts after the predecessors alone. What
 * is left when each block has as many goes to blocks that are evenly apart: by the first ones it
 * takes longer. */
template <int NT> struct share {
  const stream_args &s;
  uint32_t n, even, last; /* tiles; as each block has; the one behind these */

  __device__ explicit share(const stream_args &args) : s(args) {
    uint32_t all = s.tiles;
    if (s.a.starts != NULL)
      all *= find_job(s.a, 8 * NT, UINT32_MAX, NULL);
    even = all / gridDim.x;
    uint32_t left = all % gridDim.x, before = left * blockIdx.x / gridDim.x;
    n = even + (left * (blockIdx.x + 1) / gridDim.x - before);
    last = even * gridDim.x + before;
  }
  __device__ uint32_t tile_of(uint32_t i) const {
    return i < even ? blockIdx.x + i * gridDim.x : last;
  }
  __device__ job job_of(uint32_t tile) const {
    job found = {0, 0, 0, s.a.m};
    if (s.a.starts != NULL)
      (void)find_job(s.a, 8 * NT, tile / s.tiles, &found);
    return found;
  }
  __device__ uint32_t first_row(uint32_t tile) const {
    return tile % s.tiles * s.tile_rows;
  }
};

/* ---------------------------------------------------------------- copies */

/* One warp: the block's units in order. */
template <int F, int NT> struct fetcher {
  using sizes = shape<F, NT>;
  const stream_args &s;
  const ring &r;
  const share<NT> &mine;
  const CUtensorMap *map;
  job now;
  const bf16 *x; /* the lane's row */

  /* Inputs of x that unit k has. */
  __device__ uint32_t inputs_of(uint32_t k) const {
    return min(sizes::INPUTS, s.a.columns - k * sizes::INPUTS);
  }

  __device__ void open(uint32_t tile) {
    uint32_t token = threadIdx.x % 32;
    now = mine.job_of(tile);
    size_t row = now.first_token + token;
    if (s.a.gather && token < now.n_tokens)
      row = s.a.pair_of[row] / s.a.top_k;
    x = (const bf16 *)s.a.x + row * s.a.x_stride;
  }

  /* One lane. */
  __device__ void send_weights(uint32_t tile, uint32_t k, uint32_t stage) const {
    uint32_t room = r.base + stage * s.stage_bytes, box = s.tile_rows * 64;
    uint32_t first = mine.first_row(tile);
    barrier_expect(r.full(stage), CHUNKS * s.halves * box + now.n_tokens * inputs_of(k) * 2);
    for (uint32_t h = 0; h < s.halves; h++)
#pragma unroll
      for (uint32_t c = 0; c < CHUNKS; c++) {
        uint32_t chunk = k * CHUNKS + c, row = first + h * s.rows;
        copy_box(room + (h * CHUNKS + c) * box, map, r.full(stage), (int)(chunk * 64),
                 (int)(now.slot * s.a.rows + row));
      }
  }

  /* Every lane: its row of x. */
  __device__ void send_inputs(uint32_t k, uint32_t stage) const {
    uint32_t token = threadIdx.x % 32;
    if (token < now.n_tokens)
      copy_bulk(r.base + stage * s.stage_bytes + s.x_at + token * sizes::X_PITCH,
                x + k * sizes::INPUTS, inputs_of(k) * 2, r.full(stage));
  }

  /* Units before i = `early` have their weights already. */
  __device__ void run(uint32_t early) {
    uint32_t stage = 0, turn = 0, i = 0;
    bool leads = threadIdx.x % 32 == 0;
    for (uint32_t nth = 0; nth < mine.n; nth++) {
      uint32_t tile = mine.tile_of(nth);
      open(tile);
      for (uint32_t k = 0; k < s.units; k++, i++) {
        if (i >= s.stages)
          barrier_wait(r.empty(stage), (turn - 1) % 2);
        if (leads && i >= early)
          send_weights(tile, k, stage);
        __syncwarp();
        send_inputs(k, stage);
        if (++stage == s.stages) {
          stage = 0;
          turn++;
        }
      }
    }
  }

  /* What does not depend on predecessors: weights that fill the ring. The number of units. */
  __device__ uint32_t begin() {
    uint32_t n = min(mine.n * s.units, s.stages);
    now = mine.job_of(mine.tile_of(0));
    for (uint32_t i = 0; i < n && threadIdx.x % 32 == 0; i++)
      send_weights(mine.tile_of(i / s.units), i % s.units, i);
    __syncwarp();
    return n;
  }
};

/* ---------------------------------------------------------------- products */

template <int F, int NT> struct multiplier {
  using traits = kind_traits<F>;
  using sizes = shape<F, NT>;
  const stream_args &s;
  uint32_t g, t, half, row, part; /* row: of the half, that of lane group 0 */
  job now;
  uint32_t eights;     /* of tokens that the job has, 1 at least */
  uint32_t tile_first; /* of the tile's rows */
  float acc[NT][4];

  __device__ explicit multiplier(const stream_args &args) : s(args) {
    uint32_t warp = threadIdx.x / 32, groups = WARPS / s.parts, group = warp % groups;
    uint32_t of_half = groups / s.halves;
    g = threadIdx.x % 32 / 4;
    t = threadIdx.x % 4;
    part = warp / groups;
    half = group / of_half;
    row = group % of_half * 16;
  }

  __device__ void open(const share<NT> &mine, uint32_t tile) {
    now = mine.job_of(tile);
    eights = (now.n_tokens + 7) / 8;
    tile_first = mine.first_row(tile);
#pragma unroll
    for (int n = 0; n < NT; n++)
      acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
  }

  /* d += eight weights of rows g and g + 8 times as many inputs of eight tokens. */
  __device__ static void add_run(float (&d)[4], const uint32_t *low, const uint32_t *high,
                                 uint4 p) {
    mma<bf16>(d, low[0], high[0], low[1], high[1], p.x, p.y);
    mma<bf16>(d, low[2], high[2], low[3], high[3], p.z, p.w);
  }
  __device__ void add_scaled(int n, const float (&sums)[4], float low, float high) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      acc[n][i] += (i < 2 ? low : high) * sums[i];
  }

  /* Inputs of a chunk for token 8 n + g, from input `at` of the chunk on. */
  __device__ uint4 inputs(uint32_t x, int n, uint32_t at) const {
    return load_shared(x + (8 * n + g) * sizes::X_PITCH + at * 2);
  }

  __device__ void plain(const uint4 (&raw)[2], const float (&scale)[2], uint32_t x) {
    uint32_t low[traits::E / 2], high[traits::E / 2];
    expand_plain<F>(raw[0], low);
    expand_plain<F>(raw[1], high);
#pragma unroll
    for (int n = 0; n < NT; n++) {
      if (n > 0 && n >= eights)
        break;
      float sums[4] = {};
#pragma unroll
      for (int i = 0; i < traits::E / 8; i++)
        add_run(F == KIND_FP8_BLOCK ? sums : acc[n], low + 4 * i, high + 4 * i,
                inputs(x, n, traits::E * t + 8 * i));
      if constexpr (F == KIND_FP8_BLOCK)
        add_scaled(n, sums, scale[0], scale[1]);
    }
  }

  /* The scales of fp8 blocks for the thread's rows, of each chunk of unit k. */
  __device__ void load_scales(uint32_t k, float (&scale)[CHUNKS][2]) const {
    uint32_t first = half * s.rows + tile_first + row + g;
    uint32_t across = (s.a.columns + 127) / 128, down = (s.a.rows + 127) / 128;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        uint32_t r = min(first + 8 * h, s.a.rows - 1), b = (k * CHUNKS + c) / 2;
        scale[c][h] =
            ((const float *)
                 s.a.scales)[(now.slot * (size_t)down + r / 128) * across + min(b, across - 1)];
      }
  }

  /* This warp's share of a unit in the ring. */
  __device__ void run_unit(uint32_t room, uint32_t n_chunks, const float (&scale)[CHUNKS][2]) {
    uint32_t box = s.tile_rows * 64, at = half * CHUNKS * box + (row + g) * 64 + 16 * t;
#pragma unroll
    for (uint32_t c = 0; c < CHUNKS; c++) {
      if (c % s.parts != part || c >= n_chunks)
        continue;
      uint32_t from = room + c * box + at, x = room + s.x_at + c * sizes::EACH * 2;
      const uint4 raw[2] = {load_shared(from), load_shared(from + 8 * 64)};
      plain(raw, scale[c], x);
    }
  }

  /* Row r of a half for a token: the sum of the warps that share it. */
  __device__ float sum_of(const float *room, uint32_t which, uint32_t r, uint32_t token) const {
    uint32_t groups = WARPS / s.parts, group = which * (groups / s.halves) + r / 16;
    float sum = 0;
    for (uint32_t p = 0; p < s.parts; p++)
      sum += room[((p * groups + group) * 8 * NT + token) * 17 + r % 16];
    return sum * row_scale<F>(s.a, now.slot, row_of(which, r));
  }
  __device__ uint32_t row_of(uint32_t which, uint32_t r) const {
    return which * s.rows + tile_first + r;
  }

  /* All consumers: what their warps have of a tile to y. The room is not that of the tile before.
   */
  __device__ void finish(float *room) {
    const bf16 *bias =
        s.a.bias != NULL ? (const bf16 *)s.a.bias + (size_t)now.expert * s.a.rows : NULL;
#pragma unroll
    for (int n = 0; n < NT; n++) {
      if (n > 0 && n >= eights)
        break;
#pragma unroll
      for (int i = 0; i < 4; i++)
        room[(threadIdx.x / 32 * 8 * NT + 8 * n + 2 * t + i % 2) * 17 + g + i / 2 * 8] = acc[n][i];
    }
    named_barrier(1, CONSUMERS);
    uint32_t rows = min(s.tile_rows, s.rows - tile_first);
    for (uint32_t i = threadIdx.x; i < now.n_tokens * rows; i += CONSUMERS) {
      uint32_t token = i / rows, r = i % rows;
      float sum = sum_of(room, 0, r, token);
      if (bias != NULL)
        sum += to_float(bias[row_of(0, r)]);
      if (s.halves == 2) {
        float up = sum_of(room, 1, r, token);
        if (bias != NULL)
          up += to_float(bias[row_of(1, r)]);
        sum = glu(s.glu, sum, up);
      }
      store_sum(s.a, now.first_token + token, tile_first + r, sum, NULL);
    }
  }
};

template <int F, int NT>
OCT_DEVICE void
multiply(const stream_args &s, const ring &r, const share<NT> &mine, float *room) {
  using sizes = shape<F, NT>;
  multiplier<F, NT> m(s);
  uint32_t stage = 0, turn = 0, which = 0;
  uint32_t all = (s.a.columns + sizes::EACH - 1) / sizes::EACH;
  for (uint32_t nth = 0; nth < mine.n; nth++, which ^= 1) {
    m.open(mine, mine.tile_of(nth));
    for (uint32_t k = 0; k < s.units; k++) {
      float scale[CHUNKS][2] = {};
      if constexpr (F == KIND_FP8_BLOCK)
        m.load_scales(k, scale);
      barrier_wait(r.full(stage), turn % 2);
      m.run_unit(r.base + stage * s.stage_bytes, min((uint32_t)CHUNKS, all - k * CHUNKS), scale);
      arrive_by_warp(r.empty(stage));
      if (++stage == s.stages) {
        stage = 0;
        turn++;
      }
    }
    m.finish(room + which * sizes::ROOM);
  }
}

#endif

template <int F, int NT>
static __global__ void
__launch_bounds__(THREADS, 1) multiply_stream(const __grid_constant__ stream_args s,
                                              const __grid_constant__ CUtensorMap map) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) uint64_t barriers[2 * STAGES_MAX];
  admit_successor();
  const ring r = {shared_address(shared), shared_address(barriers)};
  float *room = (float *)(shared + s.stages * s.stage_bytes);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < s.stages; i++) {
      barrier_init(r.full(i), 1);
      barrier_init(r.empty(i), arrivals_of(WARPS));
    }
  }
  /* Inputs beyond the last meet weights that are zero: they must be numbers. */
  for (uint32_t i = 0; i < s.stages; i++)
    for (uint32_t k = threadIdx.x; k < shape<F, NT>::X_BYTES / 16; k += THREADS)
      *(uint4 *)(shared + i * s.stage_bytes + s.x_at + 16 * k) = make_uint4(0, 0, 0, 0);
  fence_async();
  __syncthreads();
  if (threadIdx.x < CONSUMERS) {
    await_predecessors();
    multiply<F, NT>(s, r, share<NT>(s), room);
  } else if (s.a.starts != NULL) {
    await_predecessors();
    const share<NT> mine(s);
    fetcher<F, NT>{s, r, mine, &map}.run(0);
  } else {
    const share<NT> mine(s);
    fetcher<F, NT> f = {s, r, mine, &map};
    uint32_t early = f.begin();
    await_predecessors();
    f.run(early);
  }
#endif
}

/* ---------------------------------------------------------------- launch */

/* Rows of a tile (of each half) by which the most loaded block has the fewest; of equals the
 * most. */
static uint32_t
choose_rows(uint32_t rows, uint32_t halves, uint32_t blocks) {
  uint32_t best = 8, least = UINT32_MAX;
  for (uint32_t r = 8; r <= ROWS_MAX / halves; r += 8) {
    uint32_t load = ceil_div(ceil_div(rows, r), blocks) * r;
    if (load <= least) {
      least = load;
      best = r;
    }
  }
  return best;
}

template <int F, int NT>
static int
launch_stream(const oct_cuda_queue *queue, const matmul_args &a) {
  using sizes = shape<F, NT>;
  stream_args s = {};
  s.a = a;
  s.halves = a.glu != NULL ? 2 : 1;
  if (a.glu != NULL)
    s.glu = *a.glu;
  s.rows = a.rows / s.halves;
  /* Experts' tiles are many: tall ones, which read x seldom. */
  s.tile_rows = a.starts != NULL ? choose_rows(s.rows, s.halves, 1)
                                 : choose_rows(s.rows, s.halves, queue->sm_count);
  s.tiles = ceil_div(s.rows, s.tile_rows);
  s.units = ceil_div(a.columns, sizes::INPUTS);
  uint32_t groups = 1;
  while (groups < s.halves * ceil_div(s.tile_rows, 16))
    groups *= 2;
  s.parts = WARPS / groups < CHUNKS ? WARPS / groups : CHUNKS;
  s.x_at = round_up(CHUNKS * s.halves * s.tile_rows * 64, 128);
  s.stage_bytes = round_up(s.x_at + sizes::X_BYTES, 128);
  uint32_t stages = RING_BYTES / s.stage_bytes;
  s.stages = stages < STAGES_MAX ? stages : STAGES_MAX;
  size_t bytes = F == KIND_BF16 ? (size_t)a.columns * 2 : a.columns;
  CUtensorMap map = {};
  if (!make_map(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, a.w, {bytes, (uint64_t)a.rows * a.n_matrices},
                {F == KIND_BF16 ? a.w_stride * 2 : bytes}, {64, s.tile_rows},
                CU_TENSOR_MAP_SWIZZLE_NONE))
    return OCT_CUDA_UNSUPPORTED;
  uint32_t busy = a.starts == NULL ? 1 : a.m;
  uint64_t most = (uint64_t)s.tiles * busy;
  uint32_t blocks = most < queue->sm_count ? (uint32_t)most : queue->sm_count;
  /* What a kernel may have is the function's, and threads of several ranks set it: always the same.
   */
  constexpr size_t room = 2 * sizes::ROOM * sizeof(float);
  int error = allow_large(queue, multiply_stream<F, NT>, 1, RING_BYTES + room);
  if (error != OCT_CUDA_OK)
    return error;
  return launch(queue, multiply_stream<F, NT>, dim3(blocks), dim3(THREADS),
                (size_t)s.stages * s.stage_bytes + room, s, map);
}

/* Inputs fill their chunks: where the last one ends early, another token's are left in the ring,
 * which zero weights do not take out when they are no numbers. */
bool
oct_matmul_stream_can(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  return queue->capability == 90 && a.columns % (format == OCT_CUDA_MATRIX_BF16 ? 32 : 64) == 0 &&
         format != OCT_CUDA_MATRIX_F32 && format < OCT_CUDA_MATRIX_MXFP4 &&
         (a.starts != NULL || a.m <= M_MAX) && a.batch <= 1 && !a.transposed &&
         oct_matmul_is_even(a, format) && (a.glu == NULL || a.rows % 8 == 0);
}

int
oct_matmul_stream(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  /* No expert has more tokens than there are. */
  uint32_t m = a.starts != NULL ? a.m / a.top_k : a.m;
  if (m <= 8)
    return OCT_BY_PLAIN_KIND(format, F, launch_stream<F, 1>(queue, a));
  if (m <= 16)
    return OCT_BY_PLAIN_KIND(format, F, launch_stream<F, 2>(queue, a));
  return OCT_BY_PLAIN_KIND(format, F, launch_stream<F, 4>(queue, a));
}
