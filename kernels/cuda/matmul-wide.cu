/* Matrix products of many rows of x on Hopper with weights of bf16 and fp8, experts too.
 *
 * A block has 192 weight rows by up to 192 tokens, and goes over the inputs 64 at a time, through a
 * ring of four stages of both operands as bf16. x, gathered where experts want that, and bf16
 * weights come by asynchronous copies; other weights go through registers, where they become bf16
 * with their scales (those of fp8 rows are left to the sums). Three groups of four warps have 64
 * weight rows each, and the tokens as the columns of one or two instructions, of 128 and of 32 or
 * 64, so that few tokens of an expert cost little.
 *
 * Stage i is multiplied while stage i + 1 gets its weights out of registers and stage i + 2 is sent
 * for: its room was that of stage i - 2, which all have multiplied when they meet for stage i.
 */
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/matmul.cuh"

#define GROUPS  3
#define THREADS (128 * GROUPS)
#define ROWS    (64 * GROUPS)
#define TOKENS  192
#define INPUTS  64
#define STAGES  4
#define TOGETHER                                                                                   \
  8 /* token tiles whose blocks follow each other, so that they share weights in the L2 cache */

#define W_BYTES     (ROWS * INPUTS * 2)
#define STAGE_BYTES (W_BYTES + TOKENS * INPUTS * 2)
#define OUT_STRIDE  68 /* floats from token to token of a group's sums in shared memory */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* 16-byte chunks of a 128-byte row, swizzled. */
OCT_DEVICE uint32_t
place(uint32_t row, uint32_t chunk) {
  return row * (INPUTS * 2) + 16 * (chunk ^ (row % 8));
}

OCT_DEVICE void
copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
OCT_DEVICE void
copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

OCT_DEVICE void
store_shared(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

/* What a block has: tokens of its matrix, and weight rows. */
struct work {
  uint32_t expert, slot; /* the expert of this call, and its matrix */
  uint32_t first_token, n_tokens, first_row;
};

template <int F> struct loader {
  static constexpr bool DIRECT = F == KIND_BF16;
  static constexpr int X_COPIES = TOKENS * 8 / THREADS, W_COPIES = ROWS * 8 / THREADS;
  static constexpr int UNITS = ROWS * 4 / THREADS; /* of 16 inputs, through registers */

  const bf16 *x[X_COPIES]; /* the thread's chunk of rows of x; NULL: no such token */
  const char *w;           /* the weight's first row */
  size_t row_bytes;
  uint4 raw[UNITS];
  uint32_t side[UNITS][1];

  __device__ void open(const matmul_args &a, const work &b) {
    row_bytes = weight_row_bytes<F>(a);
    w = (const char *)a.w + ((size_t)b.slot * a.rows + b.first_row) * row_bytes;
#pragma unroll
    for (int i = 0; i < X_COPIES; i++) {
      uint32_t token = i * (THREADS / 8) + threadIdx.x / 8;
      x[i] = NULL;
      if (token < b.n_tokens) {
        size_t row = b.first_token + token;
        if (a.gather)
          row = a.pair_of[row] / a.top_k;
        x[i] = (const bf16 *)a.x + row * a.x_stride + threadIdx.x % 8 * 8;
      }
    }
  }

  /* Sends for stage `step`: inputs from 64 * step on. */
  __device__ void send(const matmul_args &a, const work &b, uint32_t base, uint32_t step) {
    uint32_t room = base + step % STAGES * STAGE_BYTES, chunk = threadIdx.x % 8;
    uint32_t column = step * INPUTS, c = column + chunk * 8;
#pragma unroll
    for (int i = 0; i < X_COPIES; i++)
      if (x[i] != NULL)
        copy_async(room + W_BYTES + place(i * (THREADS / 8) + threadIdx.x / 8, chunk),
                   c < a.columns ? x[i] + column : x[i], c < a.columns);
    if constexpr (DIRECT)
#pragma unroll
      for (int i = 0; i < W_COPIES; i++) {
        uint32_t row = i * (THREADS / 8) + threadIdx.x / 8;
        bool here = c < a.columns && b.first_row + row < a.rows;
        copy_async(room + place(row, chunk), here ? w + row * row_bytes + c * 2 : w, here);
      }
  }

  /* Weights of stage `step` to registers: a unit is 16 codes. */
  __device__ void load(const matmul_args &a, const work &b, uint32_t step) {
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
      uint32_t at = i * THREADS + threadIdx.x, row = at / 4, column = step * INPUTS;
      raw[i] = make_uint4(0, 0, 0, 0);
      side[i][0] = 0;
      if (b.first_row + row >= a.rows || column + 16 * (at % 4) >= a.columns)
        continue;
      raw[i] = *(const uint4 *)(w + row * row_bytes + column + 16 * (at % 4));
      load_side<F>(a, b.slot, b.first_row + row, column, side[i]);
    }
  }

  /* Registers to stage `step`. */
  __device__ void store(uint32_t base, uint32_t step) const {
    uint32_t room = base + step % STAGES * STAGE_BYTES;
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
      uint32_t at = i * THREADS + threadIdx.x, pairs[8];
      expand_plain<F>(raw[i], pairs);
      if constexpr (F == KIND_FP8_BLOCK) {
        __nv_bfloat162 both = __float2bfloat162_rn(__uint_as_float(side[i][0]));
#pragma unroll
        for (int k = 0; k < 8; k++)
          pairs[k] = multiply_pairs(pairs[k], *reinterpret_cast<uint32_t *>(&both));
      }
#pragma unroll
      for (int c = 0; c < 2; c++)
        store_shared(
            room + place(at / 4, 2 * (at % 4) + c),
            make_uint4(pairs[4 * c], pairs[4 * c + 1], pairs[4 * c + 2], pairs[4 * c + 3]));
    }
  }
};

/* The sums of 64 weight rows: of 128 tokens when there are more than 64, and of the rest. */
struct sums {
  float wide[64], narrow[32];

  __device__ void multiply(uint32_t w, uint32_t x, uint32_t n, bool adds) {
    bool is_wide = n > 64;
    uint32_t rest = is_wide ? (n > 128 ? n - 128 : 0) : n, from = is_wide ? 128 * 128 : 0;
    if (is_wide) {
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < INPUTS / 16; k++)
        wgmma_product(wide, swizzled_matrix(w + 32 * k, 0), swizzled_matrix(x + 32 * k, 0),
                      adds || k > 0);
    }
    if (rest > 32) {
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < INPUTS / 16; k++)
        wgmma_product(narrow, swizzled_matrix(w + 32 * k, 0), swizzled_matrix(x + from + 32 * k, 0),
                      adds || k > 0);
    } else if (rest > 0) {
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < INPUTS / 16; k++)
        wgmma_product(*reinterpret_cast<float(*)[16]>(narrow), swizzled_matrix(w + 32 * k, 0),
                      swizzled_matrix(x + from + 32 * k, 0), adds || k > 0);
    }
    wgmma_commit();
  }

  /* To rows of tokens in shared memory. */
  __device__ void spill(float *room, uint32_t n) const {
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    uint32_t first = n > 64 ? 128 : 0;
    if (n > 64)
#pragma unroll
      for (int i = 0; i < 64; i++)
        room[(i / 4 * 8 + lane % 4 * 2 + i % 2) * OUT_STRIDE + row + i % 4 / 2 * 8] = wide[i];
    if (n > 128 || n <= 64)
#pragma unroll
      for (int i = 0; i < 32; i++)
        room[(first + i / 4 * 8 + lane % 4 * 2 + i % 2) * OUT_STRIDE + row + i % 4 / 2 * 8] =
            narrow[i];
  }
};

/* A group's 64 rows of all tokens to memory, eight rows at a time. */
template <int F>
OCT_DEVICE void
write_rows(const matmul_args &a, const work &b, const float *room, const bf16 *bias) {
  uint32_t row = b.first_row + threadIdx.x / 128 * 64 + threadIdx.x % 8 * 8;
  bool is_whole = row + 8 <= a.rows && a.y_stride % 8 == 0 && !a.accumulate;
  float scale[8], more[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    scale[i] = row + i < a.rows ? row_scale<F>(a, b.slot, row + i) : 0;
    more[i] = bias != NULL && row + i < a.rows ? to_float(bias[row + i]) : 0;
  }
  for (uint32_t token = threadIdx.x % 128 / 8; token < b.n_tokens; token += 16) {
    const float *from = room + token * OUT_STRIDE + threadIdx.x % 8 * 8;
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
      v[i] = from[i] * scale[i] + more[i];
    size_t at = (size_t)(b.first_token + token) * a.y_stride + row;
    if (!is_whole) {
      for (int i = 0; i < 8 && row + i < a.rows; i++)
        store_sum(a, b.first_token + token, row + i, v[i], NULL);
    } else if (a.y_is_float) {
      store_floats<float, 4>((float *)a.y + at, *reinterpret_cast<float(*)[4]>(v));
      store_floats<float, 4>((float *)a.y + at + 4, *reinterpret_cast<float(*)[4]>(v + 4));
    } else {
      store_floats<bf16, 8>((bf16 *)a.y + at, v);
    }
  }
}

/* The expert and tokens of tile `tile` of all experts' tiles, found by every warp; false: there is
 * none. */
OCT_DEVICE bool
find_tokens(const matmul_args &a, uint32_t tile, work *b) {
  uint32_t lane = threadIdx.x % 32;
  for (uint32_t base = 0; base < a.n_experts; base += 32) {
    uint32_t e = base + lane, from = 0, count = 0;
    if (e < a.n_experts) {
      from = a.starts[e];
      count = a.starts[e + 1] - from;
    }
    uint32_t tiles = (count + TOKENS - 1) / TOKENS, end = tiles;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      uint32_t before = __shfl_up_sync(0xffffffffu, end, d);
      end += lane >= d ? before : 0;
    }
    uint32_t who = __ballot_sync(0xffffffffu, tile < end);
    if (who != 0) {
      int l = __ffs((int)who) - 1;
      from = __shfl_sync(0xffffffffu, from, l);
      count = __shfl_sync(0xffffffffu, count, l);
      uint32_t nth = tile - __shfl_sync(0xffffffffu, end - tiles, l);
      b->expert = base + (uint32_t)l;
      b->first_token = from + nth * TOKENS;
      b->n_tokens = min((uint32_t)TOKENS, count - nth * TOKENS);
      return true;
    }
    tile -= __shfl_sync(0xffffffffu, end, 31);
  }
  return false;
}

/* Which part the block has; false: none. */
OCT_DEVICE bool
find_work(const matmul_args &a, work *b) {
  uint32_t down = (a.rows + ROWS - 1) / ROWS;
  *b = {};
  if (a.starts != NULL) {
    b->first_row = blockIdx.x % down * ROWS;
    if (!find_tokens(a, blockIdx.x / down, b))
      return false;
    b->slot = a.slots != NULL ? a.slots[b->expert] : b->expert;
    return true;
  }
  uint32_t tiles = (a.m + TOKENS - 1) / TOKENS, group = blockIdx.x / (down * TOGETHER);
  uint32_t n = min((uint32_t)TOGETHER, tiles - group * TOGETHER);
  uint32_t i = blockIdx.x - group * down * TOGETHER;
  b->first_row = i / n * ROWS;
  b->first_token = (group * TOGETHER + i % n) * TOKENS;
  b->n_tokens = min((uint32_t)TOKENS, a.m - b->first_token);
  return true;
}

#endif

template <int F>
static __global__ void
__launch_bounds__(THREADS, 1) multiply_wide(const __grid_constant__ matmul_args a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char shared[];
  admit_successor();
  await_predecessors();
  work b;
  if (!find_work(a, &b))
    return;
  uint32_t base = (shared_address(shared) + 1023) & ~1023u, group = threadIdx.x / 128;
  uint32_t steps = (a.columns + INPUTS - 1) / INPUTS;
  loader<F> l;
  l.open(a, b);
#pragma unroll
  for (uint32_t i = 0; i < STAGES - 2; i++) {
    if (i < steps)
      l.send(a, b, base, i);
    copies_commit();
  }
  if constexpr (!loader<F>::DIRECT) {
    l.load(a, b, 0);
    l.store(base, 0);
    l.load(a, b, 1);
  }
  sums s = {};
  for (uint32_t i = 0; i < steps; i++) {
    copies_wait<STAGES - 3>();
    fence_async();
    __syncthreads();
    uint32_t room = base + i % STAGES * STAGE_BYTES;
    s.multiply(room + group * (64 * INPUTS * 2), room + W_BYTES, b.n_tokens, i > 0);
    wgmma_wait<1>();
    if (i + STAGES - 2 < steps)
      l.send(a, b, base, i + STAGES - 2);
    copies_commit();
    if constexpr (!loader<F>::DIRECT)
      if (i + 1 < steps) {
        l.store(base, i + 1);
        l.load(a, b, i + 2);
      }
  }
  wgmma_wait<0>();
  keep_behind(s.wide);
  keep_behind(s.narrow);
  __syncthreads();
  float *room = (float *)(shared + (base - shared_address(shared))) + group * TOKENS * OUT_STRIDE;
  s.spill(room, b.n_tokens);
  named_barrier(1 + group, 128);
  write_rows<F>(a, b, room,
                a.bias != NULL ? (const bf16 *)a.bias + (size_t)b.expert * a.rows : NULL);
#endif
}

/* ---------------------------------------------------------------- launch */

template <int F>
static int
launch_wide(const oct_cuda_queue *queue, const matmul_args &a) {
  uint32_t tiles = ceil_div(a.m, TOKENS);
  if (a.starts != NULL)
    tiles = a.m / TOKENS + (a.n_experts < a.m ? a.n_experts : a.m);
  return launch_large(queue, multiply_wide<F>, dim3(ceil_div(a.rows, ROWS) * tiles), dim3(THREADS),
                      (size_t)STAGES * STAGE_BYTES + 1024, a);
}

bool
oct_matmul_wide_can(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  return queue->capability == 90 && format != OCT_CUDA_MATRIX_F32 &&
         format < OCT_CUDA_MATRIX_MXFP4 && a.batch <= 1 && !a.transposed &&
         oct_matmul_is_even(a, format) && (uintptr_t)a.y % 16 == 0;
}

int
oct_matmul_wide(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  return OCT_BY_PLAIN_KIND(format, F, launch_wide<F>(queue, a));
}
