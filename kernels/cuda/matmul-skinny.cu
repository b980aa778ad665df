/* Matrix products of few rows of x, which are bound by reading the weight: it goes from memory to
 * registers once, 16 bytes a lane, and takes the wide side of the matrix instruction, the rows of x
 * the narrow one (8 to a tile).
 *
 * The blocks that the card runs at a time share out the weight's rows evenly and go through their
 * own 16 at a time; warps share out the inputs in runs of DEPTH chunks and add up after each tile
 * in the order of warps. With E elements in 16 bytes a chunk is 4 E inputs, of which lane (g, t)
 * has [E t, + E) of rows g and g + 8, or of packed codes four pairs of each 32: the order of inputs
 * within a sum is free, so they serve as the operand's elements of consecutive steps. Each warp
 * keeps DEPTH chunks on their way, across tiles; the first are asked for before the predecessors
 * have ended, and more are sent for to the L2 cache, as weights do not depend on them. */
#include "kernels/cuda/matmul.cuh"

#define WARPS          8
#define ROWS           16
#define PREFETCH_BYTES 65536 /* of a block's rows */

/* The rows [begin, end) of a block, in tiles. */
struct row_range {
  uint32_t begin, end;
};

template <int F, int NT> struct skinny {
  using traits = kind_traits<F>;
  /* Chunks on their way, and in a run: as registers allow. */
  static constexpr int DEPTH = F == KIND_BF16 && NT == 1                         ? 6
                               : traits::PACKED && (NT > 1 || traits::SIDES > 1) ? 2
                                                                                 : 4;
  static constexpr int E = traits::E, CHUNK = 4 * E, ROOM_FLOATS = WARPS * 8 * NT * (ROWS + 1);

  uint4 w[DEPTH][2];
  uint32_t side[DEPTH][2][traits::SIDES];
  float acc[NT][4];
  row_range range;
  const char *base, *from[2]; /* of the expert's matrix; of rows that are loaded */
  size_t row_bytes, expert;
  uint32_t first_row, load_row; /* of the tile that is multiplied, and of that which is loaded */
  uint32_t g, t, warp, rounds;

  __device__ void open(const matmul_args &a, row_range rows, size_t e) {
    g = threadIdx.x % 32 / 4;
    t = threadIdx.x % 4;
    warp = threadIdx.x / 32;
    range = rows;
    expert = e;
    row_bytes = weight_row_bytes<F>(a);
    base = (const char *)a.w + e * a.rows * row_bytes;
    first_row = load_row = rows.begin;
    rounds = (a.columns + CHUNK * DEPTH * WARPS - 1) / (CHUNK * DEPTH * WARPS);
  }

  /* Where chunk i of the warp's round begins. */
  __device__ uint32_t column_of(uint32_t round, uint32_t i) const {
    return ((round * WARPS + warp) * DEPTH + i) * CHUNK;
  }

  /* Where the lane's part of rows g and g + 8 of the tile that is loaded begins. */
  __device__ void aim() {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t row = load_row + g + 8 * h;
      from[h] = row < range.end ? base + row * row_bytes + 16 * t : NULL;
    }
  }

  __device__ void load(const matmul_args &a, uint32_t round, uint32_t i) {
    uint32_t column = column_of(round, i);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      w[i][h] = make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int k = 0; k < traits::SIDES; k++)
        side[i][h][k] = 0;
      if (from[h] == NULL || column + (traits::PACKED ? 0 : E * t) >= a.columns)
        continue;
      asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w[i][h].x), "=r"(w[i][h].y), "=r"(w[i][h].z), "=r"(w[i][h].w)
                   : "l"(from[h] + column / CHUNK * 64));
      load_side<F>(a, expert, load_row + g + 8 * h, column + E * t, side[i][h]);
    }
  }

  __device__ void start(const matmul_args &a) {
    aim();
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
      load(a, 0, i);
  }

  /* Rows behind those that are loaded already, to the L2 cache. */
  __device__ void prefetch() const {
#if __CUDA_ARCH__ >= 900
    uint32_t row = range.begin + threadIdx.x;
    if (row < range.end && threadIdx.x * row_bytes < PREFETCH_BYTES && row_bytes % 16 == 0)
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(base + row * row_bytes),
                   "r"((uint32_t)row_bytes));
#endif
  }

  /* Eight inputs of x for token 8 n + g, zeros beyond the last. x[n] is its row, or NULL. */
  __device__ static uint4 inputs_of(const matmul_args &a, const bf16 *x, uint32_t at) {
    return x != NULL && at < a.columns ? *(const uint4 *)(x + at) : make_uint4(0, 0, 0, 0);
  }

  /* The pairs that a packed word has. */
  __device__ static uint4 pairs_of(const matmul_args &a, const bf16 *x, uint32_t at) {
    if (x == NULL || at >= a.columns)
      return make_uint4(0, 0, 0, 0);
    const uint32_t *from = (const uint32_t *)(x + at);
    return make_uint4(from[0], from[4], from[8], from[12]);
  }

  /* d += eight weights of rows g and g + 8 times as many inputs. */
  __device__ static void add_run(float (&d)[4], const uint32_t *low, const uint32_t *high,
                                 uint4 p) {
    mma<bf16>(d, low[0], high[0], low[1], high[1], p.x, p.y);
    mma<bf16>(d, low[2], high[2], low[3], high[3], p.z, p.w);
  }

  __device__ void scale_sums(int n, const float (&sums)[4], float low, float high) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      acc[n][i] += (i < 2 ? low : high) * sums[i];
  }

  __device__ void multiply(const matmul_args &a, const bf16 *const (&x)[NT], uint32_t column,
                           const uint4 (&raw)[2], const uint32_t (&beside)[2][traits::SIDES]) {
    uint32_t low[E / 2], high[E / 2], at = column + E * t;
    expand_plain<F>(raw[0], low);
    expand_plain<F>(raw[1], high);
#pragma unroll
    for (int n = 0; n < NT; n++) {
      float sums[4] = {};
#pragma unroll
      for (int i = 0; i < E / 8; i++)
        add_run(F == KIND_FP8_BLOCK ? sums : acc[n], low + 4 * i, high + 4 * i,
                inputs_of(a, x[n], at + 8 * i));
      if constexpr (F == KIND_FP8_BLOCK)
        scale_sums(n, sums, __uint_as_float(beside[0][0]), __uint_as_float(beside[1][0]));
    }
  }

  /* Packed codes: a word at a time; integers' sums are scaled where a group ends. */
  __device__ void multiply_packed(const matmul_args &a, const bf16 *const (&x)[NT], uint32_t column,
                                  const uint4 (&raw)[2],
                                  const uint32_t (&beside)[2][traits::SIDES]) {
    const uint32_t words[2][4] = {{raw[0].x, raw[0].y, raw[0].z, raw[0].w},
                                  {raw[1].x, raw[1].y, raw[1].z, raw[1].w}};
    float sums[NT][4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      constexpr int EACH = 4 / traits::SIDES; /* words of a group */
      uint32_t low[4], high[4];
      expand_word<F>(words[0][j], beside[0], j, low);
      expand_word<F>(words[1][j], beside[1], j, high);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        uint4 p = pairs_of(a, x[n], column + 32 * j + 2 * t);
        if constexpr (!traits::INT4) {
          add_run(acc[n], low, high, p);
          continue;
        }
        if (j % EACH == 0)
          sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
        add_run(sums[n], low, high, p);
        if (j % EACH == EACH - 1)
          scale_sums(n, sums[n], int4_scale(side_of_word<F>(beside[0], j)),
                     int4_scale(side_of_word<F>(beside[1], j)));
      }
    }
  }

  /* One tile of rows; on the way the first chunks of the next are loaded. */
  __device__ void run_tile(const matmul_args &a, const bf16 *const (&x)[NT]) {
#pragma unroll
    for (int n = 0; n < NT; n++)
      acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
    for (uint32_t round = 0; round < rounds; round++) {
      bool is_last = round + 1 == rounds;
      if (is_last) {
        load_row += ROWS;
        aim();
      }
#pragma unroll
      for (int i = 0; i < DEPTH; i++) {
        uint4 now[2] = {w[i][0], w[i][1]};
        uint32_t beside[2][traits::SIDES];
#pragma unroll
        for (int k = 0; k < traits::SIDES; k++) {
          beside[0][k] = side[i][0][k];
          beside[1][k] = side[i][1][k];
        }
        load(a, is_last ? 0 : round + 1, i);
        if constexpr (traits::PACKED)
          multiply_packed(a, x, column_of(round, i), now, beside);
        else
          multiply(a, x, column_of(round, i), now, beside);
      }
    }
  }

  /* Adds up the warps and writes: tokens [0, n). The room is not that of the tile before. */
  __device__ void finish(const matmul_args &a, float *room, size_t first_token, uint32_t n,
                         const bf16 *bias) {
    constexpr uint32_t TOKENS = 8 * NT;
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
      for (int k = 0; k < 4; k++)
        room[(warp * TOKENS + 8 * i + 2 * t + k % 2) * (ROWS + 1) + g + 8 * (k / 2)] = acc[i][k];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n * ROWS; i += 32 * WARPS) {
      uint32_t token = i / ROWS, r = i % ROWS;
      float sum = 0;
#pragma unroll
      for (int v = 0; v < WARPS; v++)
        sum += room[(v * TOKENS + token) * (ROWS + 1) + r];
      if (first_row + r < range.end)
        store_sum(a, first_token + token, first_row + r,
                  sum * row_scale<F>(a, expert, first_row + r), bias);
    }
    first_row += ROWS;
  }
};

/* Blocks of a multiprocessor: as registers allow. */
constexpr int
blocks_of(int tiles) {
  return tiles > 2 ? 1 : 2;
}

template <int F, int NT>
static __global__ void
__launch_bounds__(32 * WARPS, blocks_of(NT)) multiply_skinny(matmul_args a) {
  extern __shared__ float room[];
  admit_successor();
  skinny<F, NT> s;
  s.open(a,
         {(uint32_t)((uint64_t)blockIdx.x * a.rows / gridDim.x),
          (uint32_t)((uint64_t)(blockIdx.x + 1) * a.rows / gridDim.x)},
         0);
  s.start(a);
  s.prefetch();
  admit_successor();
  await_predecessors();
  const bf16 *x[NT];
#pragma unroll
  for (int n = 0; n < NT; n++)
    x[n] = 8 * n + s.g < a.m ? (const bf16 *)a.x + (8 * n + s.g) * a.x_stride : NULL;
  for (uint32_t turn = 0; s.first_row < s.range.end; turn ^= 1) {
    s.run_tile(a, x);
    s.finish(a, room + turn * s.ROOM_FLOATS, 0, a.m, (const bf16 *)a.bias);
  }
}

/* The nth expert that has tokens, OCT_CUDA_NONE when fewer have; every warp finds it. */
OCT_DEVICE uint32_t
find_expert(const matmul_args &a, uint32_t nth) {
  uint32_t lane = threadIdx.x % 32;
  for (uint32_t base = 0; base < a.n_experts; base += 32) {
    uint32_t e = base + lane;
    uint32_t who = __ballot_sync(0xffffffffu, e < a.n_experts && a.starts[e + 1] > a.starts[e]);
    uint32_t n = __popc(who);
    if (nth < n)
      return base + __fns(who, 0, nth + 1);
    nth -= n;
  }
  return OCT_CUDA_NONE;
}

/* Experts: a block has some rows of an expert, for all its tokens, tile by tile. */
template <int F, int NT>
static __global__ void
__launch_bounds__(32 * WARPS, blocks_of(NT)) multiply_skinny_experts(matmul_args a) {
  extern __shared__ float room[];
  admit_successor();
  await_predecessors();
  uint32_t e = find_expert(a, blockIdx.y), turn = 0;
  if (e == OCT_CUDA_NONE)
    return;
  uint32_t first = a.starts[e], end = a.starts[e + 1];
  const bf16 *bias = a.bias != NULL ? (const bf16 *)a.bias + (size_t)e * a.rows : NULL;
  const row_range rows = {(uint32_t)((uint64_t)blockIdx.x * a.rows / gridDim.x),
                          (uint32_t)((uint64_t)(blockIdx.x + 1) * a.rows / gridDim.x)};
  for (; first < end; first += 8 * NT) {
    skinny<F, NT> s;
    s.open(a, rows, a.slots != NULL ? a.slots[e] : e);
    s.start(a);
    uint32_t n = min(8u * NT, end - first);
    const bf16 *x[NT];
#pragma unroll
    for (int i = 0; i < NT; i++) {
      uint32_t token = 8 * i + s.g;
      x[i] = NULL;
      if (token < n) {
        size_t row = a.gather ? a.pair_of[first + token] / a.top_k : first + token;
        x[i] = (const bf16 *)a.x + row * a.x_stride;
      }
    }
    for (; s.first_row < rows.end; turn ^= 1) {
      s.run_tile(a, x);
      s.finish(a, room + turn * s.ROOM_FLOATS, first, n, bias);
    }
  }
}

/* ---------------------------------------------------------------- launch */

template <int F, int NT>
static int
launch_skinny(const oct_cuda_queue *queue, const matmul_args &a) {
  size_t shared = 2 * skinny<F, NT>::ROOM_FLOATS * sizeof(float);
  uint32_t tiles = ceil_div(a.rows, ROWS), slots = queue->sm_count * blocks_of(NT);
  if (a.starts == NULL)
    return launch_large(queue, multiply_skinny<F, NT>, dim3(tiles < slots ? tiles : slots),
                        dim3(32 * WARPS), shared, a);
  /* With few experts at work, one tile a block; with many, what keeps all slots busy. */
  uint32_t busy = a.m < a.n_experts ? a.m : a.n_experts, most = ceil_div(4 * slots, busy);
  return launch_large(queue, multiply_skinny_experts<F, NT>,
                      dim3(tiles < most ? tiles : most, busy), dim3(32 * WARPS), shared, a);
}

template <int F>
static int
by_tokens(const oct_cuda_queue *queue, const matmul_args &a) {
  uint32_t m = a.starts != NULL ? ceil_div(a.likely, a.n_experts) : a.m;
  if (m <= 8)
    return launch_skinny<F, 1>(queue, a);
  if (m <= 16)
    return launch_skinny<F, 2>(queue, a);
  if (m <= 32 || a.starts != NULL)
    return launch_skinny<F, 4>(queue, a);
  return m <= 64 ? launch_skinny<F, 8>(queue, a) : OCT_CUDA_UNSUPPORTED;
}

int
oct_matmul_skinny(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  if (!oct_matmul_is_even(a, format))
    return OCT_CUDA_UNSUPPORTED;
  return OCT_BY_KIND(format, a.group, F, by_tokens<F>(queue, a));
}
