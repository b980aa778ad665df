/* Matrix products by tiles of fixed size: every format, any number of rows, experts too. A row's
 * sum runs over the inputs in one order, whatever the other rows are.
 *
 * A block has 128 rows of x by 64 rows of the weight. Tiles of 64 inputs come through registers
 * into shared memory, weights as bf16, while the tiles before them are multiplied. */
#include "kernels/cuda/matmul.cuh"

#define WARPS   8
#define THREADS (32 * WARPS)
#define TOKENS  128
#define ROWS    64
#define INPUTS  64

#define X_BYTES (TOKENS * INPUTS * 2)
#define W_BYTES (ROWS * INPUTS * 2)

/* 16-byte chunks of a 128-byte row, swizzled. */
OCT_DEVICE uint32_t
place(uint32_t row, uint32_t chunk) {
  return row * (INPUTS * 2) + 16 * (chunk ^ (row % 8));
}

OCT_DEVICE void
store_shared(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w));
}

OCT_DEVICE void
store_pair(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v));
}

/* Of a weight row a tile has 64 inputs: of packed codes two words of each of a chunk's four runs,
 * else runs of 16 bytes. */
template <int F> struct tiler {
  using traits = kind_traits<F>;
  static constexpr int E = traits::PACKED ? 16 : traits::E;
  static constexpr bool SCALED = F == KIND_FP8_BLOCK; /* sums of 128 inputs are */
  static constexpr int RUNS = INPUTS / E, LOADS = (ROWS * RUNS + THREADS - 1) / THREADS;

  uint4 x[TOKENS * INPUTS / 8 / THREADS], w[LOADS];
  uint32_t side[LOADS][traits::SIDES];
  float acc[4][2][4], sums[4][2][4]; /* tiles of 16 weight rows by 8 tokens; sums: of a group */
  const char *base;
  size_t expert;
  uint32_t first_row, first_token, n_tokens; /* of the block; tokens count within its matrix */

  __device__ const bf16 *row_of(const matmul_args &a, uint32_t token) const {
    size_t row = first_token + token;
    if (a.gather)
      row = a.pair_of[row] / a.top_k;
    return (const bf16 *)a.x + row * a.x_stride;
  }

  __device__ void load(const matmul_args &a, uint32_t column) {
#pragma unroll
    for (int i = 0; i < TOKENS * INPUTS / 8 / THREADS; i++) {
      uint32_t at = i * THREADS + threadIdx.x, token = at / 8, c = column + at % 8 * 8;
      x[i] = make_uint4(0, 0, 0, 0);
      if (token < n_tokens && c < a.columns)
        x[i] = *(const uint4 *)(row_of(a, token) + c);
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++)
      load_weights(a, column, i * THREADS + threadIdx.x, w[i], side[i]);
  }

  __device__ void load_weights(const matmul_args &a, uint32_t column, uint32_t at, uint4 &v,
                               uint32_t (&beside)[traits::SIDES]) {
    uint32_t r = first_row + at / RUNS, c = column + at % RUNS * E;
    v = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < traits::SIDES; k++)
      beside[k] = 0;
    if (at >= ROWS * RUNS || r >= a.rows || (traits::PACKED ? column : c) >= a.columns)
      return;
    const char *row = base + (expert * a.rows + r) * weight_row_bytes<F>(a);
    if constexpr (traits::PACKED) {
      uint2 two = *(const uint2 *)(row + (size_t)(column / 128) * 64 + at % RUNS * 16 +
                                   column % 128 / 64 * 8);
      v.x = two.x;
      v.y = two.y;
    } else {
      v = *(const uint4 *)(row + (size_t)(c / E) * 16);
    }
    load_side<F>(a, expert, r, column, beside);
  }

  /* `half` of a chunk of 128 inputs. */
  __device__ void store(uint32_t room, int half) {
#pragma unroll
    for (int i = 0; i < TOKENS * INPUTS / 8 / THREADS; i++) {
      uint32_t at = i * THREADS + threadIdx.x;
      store_shared(room + place(at / 8, at % 8), x[i]);
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      uint32_t at = i * THREADS + threadIdx.x, pairs[E / 2];
      if (at >= ROWS * RUNS)
        break;
      if constexpr (traits::PACKED) {
        if (half == 0) {
          expand_scaled<F>(w[i].x, side[i], 0, pairs);
          expand_scaled<F>(w[i].y, side[i], 1, pairs + 4);
        } else {
          expand_scaled<F>(w[i].x, side[i], 2, pairs);
          expand_scaled<F>(w[i].y, side[i], 3, pairs + 4);
        }
      } else {
        expand_plain<F>(w[i], pairs);
      }
      if constexpr (traits::PACKED)
#pragma unroll
        for (int c = 0; c < 8; c++)
          store_pair(room + X_BYTES + place(at / RUNS, c) + 4 * (at % RUNS), pairs[c]);
      else
#pragma unroll
        for (int c = 0; c < E / 8; c++)
          store_shared(
              room + X_BYTES + place(at / RUNS, at % RUNS * (E / 8) + c),
              make_uint4(pairs[4 * c], pairs[4 * c + 1], pairs[4 * c + 2], pairs[4 * c + 3]));
    }
  }

  /* A warp has 64 weight rows by 16 tokens. */
  __device__ void multiply(uint32_t room) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int k = 0; k < INPUTS / 16; k++) {
      uint32_t b[4];
      load_matrices(b, room + place(16 * warp + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int r = 0; r < 4; r++) {
        uint32_t m[4];
        load_matrices(m, room + X_BYTES + place(16 * r + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < 2; n++)
          mma<bf16>(SCALED ? sums[r][n] : acc[r][n], m[0], m[1], m[2], m[3], b[2 * n],
                    b[2 * n + 1]);
      }
    }
  }

  /* After a group's inputs: their sums, scaled, to the whole. */
  __device__ void add_group(const matmul_args &a, uint32_t column) {
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        uint32_t row = first_row + 16 * r + threadIdx.x % 32 / 4 + 8 * h;
        uint32_t beside[traits::SIDES] = {};
        if (row < a.rows)
          load_side<F>(a, expert, row, column, beside);
        float scale = __uint_as_float(beside[0]);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; i++) {
            acc[r][n][i] += scale * sums[r][n][i];
            sums[r][n][i] = 0;
          }
      }
  }

  __device__ void run(const matmul_args &a, uint32_t room) {
    load(a, 0);
    for (uint32_t column = 0; column < a.columns; column += INPUTS) {
      store(room, column / INPUTS % 2);
      __syncthreads();
      load(a, column + INPUTS);
      multiply(room);
      if constexpr (SCALED)
        if ((column + INPUTS) % 128 == 0 || column + INPUTS >= a.columns)
          add_group(a, column);
      __syncthreads();
    }
  }

  __device__ void finish(const matmul_args &a, const bf16 *bias) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          uint32_t row = first_row + 16 * r + lane / 4 + i / 2 * 8;
          uint32_t token = 16 * warp + 8 * n + lane % 4 * 2 + i % 2;
          if (row < a.rows && token < n_tokens)
            store_sum(a, first_token + token, row, acc[r][n][i] * row_scale<F>(a, expert, row),
                      bias);
        }
  }
};

/* The expert and tokens of tile `tile` of all experts' tiles; false: there is none. */
OCT_DEVICE bool
find_tokens(const matmul_args &a, uint32_t tile, uint32_t *expert, uint32_t *first, uint32_t *n) {
  for (uint32_t e = 0; e < a.n_experts; e++) {
    uint32_t from = a.starts[e], count = a.starts[e + 1] - from;
    uint32_t tiles = (count + TOKENS - 1) / TOKENS;
    if (tile < tiles) {
      *expert = e;
      *first = from + tile * TOKENS;
      *n = min((uint32_t)TOKENS, count - tile * TOKENS);
      return true;
    }
    tile -= tiles;
  }
  return false;
}

template <int F>
static __global__ void
__launch_bounds__(THREADS) multiply_tile(matmul_args a) {
  __shared__ __align__(128) unsigned char shared[X_BYTES + W_BYTES];
  admit_successor();
  await_predecessors();
  tiler<F> t = {};
  uint32_t e = 0;
  t.first_row = blockIdx.x * ROWS;
  if (a.starts != NULL) {
    if (!find_tokens(a, blockIdx.y, &e, &t.first_token, &t.n_tokens))
      return;
  } else {
    t.first_token = blockIdx.y * TOKENS;
    t.n_tokens = min((uint32_t)TOKENS, a.m - t.first_token);
  }
  t.base = (const char *)a.w;
  t.expert = a.slots != NULL ? a.slots[e] : e;
  t.run(a, (uint32_t)__cvta_generic_to_shared(shared));
  t.finish(a, a.bias != NULL ? (const bf16 *)a.bias + (size_t)e * a.rows : NULL);
}

template <int F>
static int
launch_tile(const oct_cuda_queue *queue, const matmul_args &a) {
  uint32_t tiles = a.starts != NULL ? a.m / TOKENS + a.n_experts : ceil_div(a.m, TOKENS);
  return launch(queue, multiply_tile<F>, dim3(ceil_div(a.rows, ROWS), tiles), dim3(THREADS), 0, a);
}

int
oct_matmul_tile(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  if (!oct_matmul_is_even(a, format))
    return OCT_CUDA_UNSUPPORTED;
  return OCT_BY_KIND(format, a.group, F, launch_tile<F>(queue, a));
}

/* ---------------------------------------------------------------- any size */

#define SIDE 16

/* float32 or bf16 of any size and alignment: a block has SIDE x SIDE outputs of one matrix. */
template <typename T>
static __global__ void
multiply_plain(matmul_args a) {
  __shared__ float x[SIDE][SIDE + 1], w[SIDE][SIDE + 1];
  admit_successor();
  await_predecessors();
  uint32_t e = blockIdx.z, first = 0, end = a.m, expert = e, i = threadIdx.y, j = threadIdx.x;
  if (a.starts != NULL) {
    first = a.starts[e];
    end = a.starts[e + 1];
    expert = a.slots != NULL ? a.slots[e] : e;
  }
  const T *from_x = (const T *)a.x + e * a.x_batch;
  const T *from_w = (const T *)a.w + expert * a.w_batch;
  uint32_t row = blockIdx.x * SIDE + j, load_row = blockIdx.x * SIDE + i;
  const T *bias = a.bias != NULL ? (const T *)a.bias + (size_t)e * a.rows : NULL;
  for (uint32_t base = first + blockIdx.y * SIDE; base < end; base += gridDim.y * SIDE) {
    uint32_t token = base + i;
    size_t from = token;
    if (a.gather && token < end)
      from = a.pair_of[token] / a.top_k;
    float sum = 0;
    for (uint32_t column = 0; column < a.columns; column += SIDE) {
      uint32_t c = column + j;
      x[i][j] = token < end && c < a.columns ? to_float(from_x[from * a.x_stride + c]) : 0;
      size_t at = a.transposed ? c * a.w_stride + load_row : load_row * a.w_stride + c;
      w[i][j] = load_row < a.rows && c < a.columns ? to_float(from_w[at]) : 0;
      __syncthreads();
#pragma unroll
      for (int k = 0; k < SIDE; k++)
        sum += x[i][k] * w[j][k];
      __syncthreads();
    }
    if (token >= end || row >= a.rows)
      continue;
    sum += bias != NULL ? to_float(bias[row]) : 0;
    size_t at = e * a.y_batch + token * a.y_stride + row;
    if (a.y_is_float)
      ((float *)a.y)[at] = a.accumulate ? ((float *)a.y)[at] + sum : sum;
    else
      ((bf16 *)a.y)[at] = from_float<bf16>(a.accumulate ? to_float(((bf16 *)a.y)[at]) + sum : sum);
  }
}

int
oct_matmul_plain(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  uint32_t down = ceil_div(a.m, SIDE);
  dim3 grid(ceil_div(a.rows, SIDE), down < 1024 ? down : 1024,
            a.starts != NULL ? a.n_experts : a.batch);
  if (format == OCT_CUDA_MATRIX_F32)
    return launch(queue, multiply_plain<float>, grid, dim3(SIDE, SIDE), 0, a);
  if (format == OCT_CUDA_MATRIX_BF16)
    return launch(queue, multiply_plain<bf16>, grid, dim3(SIDE, SIDE), 0, a);
  return OCT_CUDA_UNSUPPORTED;
}
