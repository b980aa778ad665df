/* Matrix products of few rows of x, which are bound by reading the weight: it goes from memory to
 * registers once, 16 bytes a lane, and takes the wide side of the matrix instruction, the rows of x
 * the narrow one (8 to a tile).
 *
 * A block has 16 rows of the weight; its warps share out the inputs in runs of four chunks and add
 * up at the end in the order of warps. With E elements in 16 bytes a chunk is 4 E inputs, of which
 * lane (g, t) has [E t, + E) of rows g and g + 8: the order of inputs within a sum is free, so they
 * serve as the operand's elements of consecutive steps. Each warp keeps DEPTH chunks on their way;
 * the first are asked for before the predecessors have ended, as weights do not depend on them. */
#include "kernels/cuda/matmul.cuh"

#define WARPS 8
#define ROWS  16
#define DEPTH 4 /* chunks on their way, and in a run */

template <int F, int NT> struct skinny {
  static constexpr int E = format_traits<F>::E, GROUP = format_traits<F>::GROUP;
  static constexpr int STEPS = E / 4, CHUNK = 4 * E;

  uint4 w[DEPTH][2];
  float acc[NT][4];
  const char *rows[2]; /* of the weight: g and g + 8 */
  bool valid[2];
  size_t row[2]; /* over all experts */
  uint32_t g, t, warp, first_row, expert;

  __device__ void open(const matmul_args &a, uint32_t e) {
    g = threadIdx.x % 32 / 4;
    t = threadIdx.x % 4;
    warp = threadIdx.x / 32;
    first_row = blockIdx.x * ROWS;
    expert = e;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint32_t r = first_row + g + 8 * i;
      valid[i] = r < a.rows;
      row[i] = (size_t)e * a.rows + (valid[i] ? r : a.rows - 1);
      rows[i] = (const char *)a.w + row[i] * weight_row_bytes<F>(a) + 16 * t;
    }
  }

  /* The warp's n-th chunk: where it begins. */
  __device__ uint32_t column_of(uint32_t n) const {
    return (n / DEPTH * (DEPTH * WARPS) + warp * DEPTH + n % DEPTH) * CHUNK;
  }

  __device__ void load(const matmul_args &a, uint32_t n, uint4 (&to)[2]) {
    uint32_t column = column_of(n);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      to[i] = make_uint4(0, 0, 0, 0);
      if (valid[i] && column + E * t < a.columns)
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[i].x), "=r"(to[i].y), "=r"(to[i].z), "=r"(to[i].w)
                     : "l"(rows[i] + (size_t)(column / CHUNK) * 64));
    }
  }

  __device__ void start(const matmul_args &a) {
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
      load(a, i, w[i]);
#pragma unroll
    for (int n = 0; n < NT; n++)
      acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
  }

  /* x[n] is the row of x for token 8 n + g of the tile, NULL beyond the last. */
  __device__ void multiply(const matmul_args &a, const bf16 *const (&x)[NT], uint32_t column,
                           const uint4 (&raw)[2]) {
    uint32_t low[E / 2], high[E / 2], at = column + E * t;
    bool here = at < a.columns;
    uint32_t safe = here ? at : 0;
    expand_weights<F>(raw[0], load_beside<F>(a, row[0], safe), low);
    expand_weights<F>(raw[1], load_beside<F>(a, row[1], safe), high);
    float sums[NT][4];
#pragma unroll
    for (int n = 0; n < NT; n++) {
      float(&d)[4] = GROUP > 0 ? sums[n] : acc[n];
      if (GROUP > 0)
        d[0] = d[1] = d[2] = d[3] = 0;
      uint4 pairs[E / 8];
#pragma unroll
      for (int i = 0; i < E / 8; i++)
        pairs[i] =
            here && x[n] != NULL ? *(const uint4 *)(x[n] + at + 8 * i) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        uint4 p = pairs[s / 2];
        mma<bf16>(d, low[2 * s], high[2 * s], low[2 * s + 1], high[2 * s + 1],
                  s % 2 == 0 ? p.x : p.z, s % 2 == 0 ? p.y : p.w);
      }
    }
    if constexpr (GROUP > 0) {
      float scale[2];
#pragma unroll
      for (int i = 0; i < 2; i++)
        scale[i] = column < a.columns && valid[i]
                       ? load_group_scale<F>(a, expert, first_row + g + 8 * i, column)
                       : 0;
#pragma unroll
      for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          acc[n][i] += scale[i / 2] * sums[n][i];
    }
  }

  __device__ void run(const matmul_args &a, const bf16 *const (&x)[NT]) {
    for (uint32_t base = 0; column_of(base) < a.columns; base += DEPTH)
#pragma unroll
      for (int i = 0; i < DEPTH; i++) {
        uint4 now[2] = {w[i][0], w[i][1]};
        load(a, base + DEPTH + i, w[i]);
        multiply(a, x, column_of(base + i), now);
      }
  }

  /* Adds up the warps and writes: tokens [0, n) of the tile. */
  __device__ void finish(const matmul_args &a, float *room, size_t first_token, uint32_t n,
                         const bf16 *bias) {
    constexpr uint32_t TOKENS = 8 * NT;
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
      for (int k = 0; k < 4; k++)
        room[(warp * TOKENS + 8 * i + 2 * t + k % 2) * (ROWS + 1) + g + 8 * (k / 2)] = acc[i][k];
    __syncthreads();
    float scale = load_scale<F>(a, expert);
    for (uint32_t i = threadIdx.x; i < n * ROWS; i += 32 * WARPS) {
      uint32_t token = i / ROWS, r = i % ROWS;
      float sum = 0;
#pragma unroll
      for (int v = 0; v < WARPS; v++)
        sum += room[(v * TOKENS + token) * (ROWS + 1) + r];
      if (first_row + r < a.rows)
        store_sum(a, first_token + token, first_row + r, sum * scale, bias);
    }
  }
};

template <int F, int NT>
static __global__ void
__launch_bounds__(32 * WARPS, NT <= 2 ? 2 : 1) multiply_skinny(matmul_args a) {
  extern __shared__ float room[];
  skinny<F, NT> s;
  s.open(a, 0);
  s.start(a);
  await_predecessors();
  admit_successor();
  const bf16 *x[NT];
#pragma unroll
  for (int n = 0; n < NT; n++)
    x[n] = 8 * n + s.g < a.m ? (const bf16 *)a.x + (8 * n + s.g) * a.x_stride : NULL;
  s.run(a, x);
  s.finish(a, room, 0, a.m, (const bf16 *)a.bias);
}

/* Experts: a block per 16 rows of an expert goes through its tokens tile by tile. */
template <int F, int NT>
static __global__ void
__launch_bounds__(32 * WARPS, NT <= 2 ? 2 : 1) multiply_skinny_experts(matmul_args a) {
  extern __shared__ float room[];
  await_predecessors();
  admit_successor();
  uint32_t e = blockIdx.y, first = a.starts[e], end = a.starts[e + 1];
  const bf16 *bias = a.bias != NULL ? (const bf16 *)a.bias + (size_t)e * a.rows : NULL;
  skinny<F, NT> s;
  if (first < end)
    s.open(a, a.slots != NULL ? a.slots[e] : e);
  for (; first < end; first += 8 * NT) {
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
    s.start(a);
    s.run(a, x);
    s.finish(a, room, first, n, bias);
    __syncthreads();
  }
}

/* ---------------------------------------------------------------- launch */

template <int F, int NT>
static int
launch_skinny(const oct_cuda_queue *queue, const matmul_args &a) {
  size_t shared = (size_t)WARPS * 8 * NT * (ROWS + 1) * sizeof(float);
  dim3 grid(ceil_div(a.rows, ROWS), a.starts != NULL ? a.n_experts : 1);
  if (a.starts != NULL)
    return launch_large(queue, multiply_skinny_experts<F, NT>, grid, dim3(32 * WARPS), shared, a);
  return launch_large(queue, multiply_skinny<F, NT>, grid, dim3(32 * WARPS), shared, a);
}

template <int F>
static int
by_tokens(const oct_cuda_queue *queue, const matmul_args &a) {
  uint32_t m = a.starts != NULL ? ceil_div(a.m, a.n_experts) : a.m;
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
  switch (format) {
  case OCT_CUDA_MATRIX_BF16:
    return by_tokens<OCT_CUDA_MATRIX_BF16>(queue, a);
  case OCT_CUDA_MATRIX_FP8:
    return by_tokens<OCT_CUDA_MATRIX_FP8>(queue, a);
  case OCT_CUDA_MATRIX_FP8_BLOCK:
    return by_tokens<OCT_CUDA_MATRIX_FP8_BLOCK>(queue, a);
  case OCT_CUDA_MATRIX_MXFP4:
    return by_tokens<OCT_CUDA_MATRIX_MXFP4>(queue, a);
  case OCT_CUDA_MATRIX_INT4:
    return by_tokens<OCT_CUDA_MATRIX_INT4>(queue, a);
  case OCT_CUDA_MATRIX_F32:
    break;
  }
  return OCT_CUDA_UNSUPPORTED;
}
