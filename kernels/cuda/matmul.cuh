/* What the matrix product kernels share: their arguments, and weights of every format as bf16
 * operands of matrix instructions. */
#ifndef OCT_KERNELS_CUDA_MATMUL_CUH
#define OCT_KERNELS_CUDA_MATMUL_CUH

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/barrier.cuh"

struct matmul_args {
  const void *w, *scales;
  uint32_t group;         /* of INT4 */
  uint32_t rows, columns; /* outputs, inputs */
  size_t w_stride;        /* elements between rows, of BF16 and F32 */
  const void *x;
  size_t x_stride;
  const void *bias; /* of x's type */
  void *y;
  size_t y_stride;
  uint32_t m;
  bool y_is_float, accumulate;
  const oct_glu_params *glu; /* or NULL; read on the host */
  /* The plain kernel's alone: several products, and the weight read as [columns, rows]. Distances
   * are in elements; with experts w_batch is that of their matrices and the others are 0. */
  uint32_t batch;
  size_t x_batch, w_batch, y_batch;
  bool transposed;
  /* Experts: rows [starts[e], starts[e + 1]) of y are expert e's. */
  const uint32_t *starts, *slots, *pair_of;
  uint32_t n_experts, top_k;
  uint32_t likely; /* rows that they have when all ranks' experts are chosen alike; of m at most */
  uint32_t n_matrices; /* one after another at w */
  bool gather;         /* x's row of row r is pair_of[r] / top_k */
};

/* ---------------------------------------------------------------- formats */

/* What kernels are made for: formats, and INT4 by its groups. */
enum {
  KIND_BF16 = OCT_CUDA_MATRIX_BF16,
  KIND_FP8 = OCT_CUDA_MATRIX_FP8,
  KIND_FP8_BLOCK = OCT_CUDA_MATRIX_FP8_BLOCK,
  KIND_MXFP4 = OCT_CUDA_MATRIX_MXFP4,
  KIND_INT4_128 = OCT_CUDA_MATRIX_INT4,
  KIND_INT4_64,
  KIND_INT4_32,
};

/* Calls a template with the kind of a format; F32 has none. */
#define OCT_BY_KIND(format_value, group_value, F, ...)                                             \
  ((format_value) == OCT_CUDA_MATRIX_BF16                                                          \
       ? [&] { constexpr int F = KIND_BF16; return __VA_ARGS__; }()                                \
   : (format_value) == OCT_CUDA_MATRIX_FP8                                                         \
       ? [&] { constexpr int F = KIND_FP8; return __VA_ARGS__; }()                                 \
   : (format_value) == OCT_CUDA_MATRIX_FP8_BLOCK                                                   \
       ? [&] { constexpr int F = KIND_FP8_BLOCK; return __VA_ARGS__; }()                           \
   : (format_value) == OCT_CUDA_MATRIX_MXFP4                                                       \
       ? [&] { constexpr int F = KIND_MXFP4; return __VA_ARGS__; }()                               \
   : (format_value) != OCT_CUDA_MATRIX_INT4 ? OCT_CUDA_UNSUPPORTED                                 \
   : (group_value) == 128 ? [&] { constexpr int F = KIND_INT4_128; return __VA_ARGS__; }()         \
   : (group_value) == 64  ? [&] { constexpr int F = KIND_INT4_64; return __VA_ARGS__; }()          \
   : (group_value) == 32  ? [&] { constexpr int F = KIND_INT4_32; return __VA_ARGS__; }()          \
                          : OCT_CUDA_UNSUPPORTED)

/* The same for those that are not packed. */
#define OCT_BY_PLAIN_KIND(format_value, F, ...)                                                    \
  ((format_value) == OCT_CUDA_MATRIX_BF16                                                          \
       ? [&] { constexpr int F = KIND_BF16; return __VA_ARGS__; }()                                \
   : (format_value) == OCT_CUDA_MATRIX_FP8                                                         \
       ? [&] { constexpr int F = KIND_FP8; return __VA_ARGS__; }()                                 \
   : (format_value) == OCT_CUDA_MATRIX_FP8_BLOCK                                                   \
       ? [&] { constexpr int F = KIND_FP8_BLOCK; return __VA_ARGS__; }()                           \
       : OCT_CUDA_UNSUPPORTED)

/* E: elements in 16 bytes. SIDES: words beside them that scales are in. */
template <int F> struct kind_traits {
  static constexpr bool INT4 = F >= KIND_INT4_128, PACKED = F >= KIND_MXFP4;
  static constexpr int E = F == KIND_BF16 ? 8 : PACKED ? 32 : 16;
  static constexpr int SIDES = F == KIND_INT4_32 ? 4 : F == KIND_INT4_64 ? 2 : 1;
};

/* Inputs that rows of packed codes are filled up to. */
OCT_DEVICE size_t
packed_columns(uint32_t columns) {
  return (columns + 127) / 128 * 128;
}

/* A word of four bits a code to pairs of bf16, the first input of each in the lower half.
 *
 * e2m1 (codes.cuh has their places): sign, exponent and mantissa in place are the value times
 * 2^-126, which a scale brings back; what one bf16 of that lacks are FP4_SHIFT powers of two, that
 * sums get. */
#define FP4_SHIFT 32

/* Two bf16 of the scale of word j of a chunk. */
OCT_DEVICE uint32_t
fp4_scale(uint32_t side, int j) {
  constexpr uint32_t ADDED = (126 - FP4_SHIFT) << 7;
  return __byte_perm(side, 0, 0x4040 + 0x0101 * j) * 128 + (ADDED << 16 | ADDED);
}

OCT_DEVICE void
expand_fp4(uint32_t codes, uint32_t scale, uint32_t *pairs) {
  constexpr uint32_t SIGN = 0x80008000u, SIZE = 0x01c001c0u;
  pairs[0] = multiply_pairs((codes << 6 & SIZE) | (codes << 9 & SIGN), scale);
  pairs[1] = multiply_pairs((codes << 3 & SIZE) | (codes << 8 & SIGN), scale);
  pairs[2] = multiply_pairs((codes >> 2 & SIZE) | (codes << 1 & SIGN), scale);
  pairs[3] = multiply_pairs((codes >> 5 & SIZE) | (codes & SIGN), scale);
}

/* Integers less a zero. */
OCT_DEVICE void
expand_int4(uint32_t codes, uint32_t side, uint32_t *pairs) {
  uint32_t zero = 0x43004300u | side >> 16 | (side & 0xffff0000u);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t t = (codes >> (4 * i) & 0x000f000fu) | 0x43004300u;
    __nv_bfloat162 d = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&t),
                               *reinterpret_cast<__nv_bfloat162 *>(&zero));
    pairs[i] = *reinterpret_cast<uint32_t *>(&d);
  }
}

/* The word that has the scales of word j of a chunk. */
template <int F>
OCT_DEVICE uint32_t
side_of_word(const uint32_t (&side)[kind_traits<F>::SIDES], int j) {
  return side[j * kind_traits<F>::SIDES / 4];
}

/* A word of a chunk, j of four: unscaled integers, or values times 2^-FP4_SHIFT. */
template <int F>
OCT_DEVICE void
expand_word(uint32_t codes, const uint32_t (&side)[kind_traits<F>::SIDES], int j, uint32_t *pairs) {
  if constexpr (F == KIND_MXFP4)
    expand_fp4(codes, fp4_scale(side[0], j), pairs);
  else
    expand_int4(codes, side_of_word<F>(side, j), pairs);
}

OCT_DEVICE float
int4_scale(uint32_t side) {
  return __half2float(__ushort_as_half((unsigned short)side));
}

/* The same with integers scaled, the scale and the product rounded to bf16. */
template <int F>
OCT_DEVICE void
expand_scaled(uint32_t codes, const uint32_t (&side)[kind_traits<F>::SIDES], int j,
              uint32_t *pairs) {
  expand_word<F>(codes, side, j, pairs);
  if constexpr (kind_traits<F>::INT4) {
    __nv_bfloat162 both = __float2bfloat162_rn(int4_scale(side_of_word<F>(side, j)));
    uint32_t scale = *reinterpret_cast<uint32_t *>(&both);
#pragma unroll
    for (int i = 0; i < 4; i++)
      pairs[i] = multiply_pairs(pairs[i], scale);
  }
}

/* What is beside 16 bytes of a row from input `column` on. `row` is within the matrix of `expert`.
 */
template <int F>
OCT_DEVICE void
load_side(const matmul_args &a, size_t expert, uint32_t row, uint32_t column,
          uint32_t (&side)[kind_traits<F>::SIDES]) {
  constexpr int S = kind_traits<F>::SIDES;
  if constexpr (kind_traits<F>::PACKED) {
    size_t chunks = packed_columns(a.columns) / 128, chunk = column / 128;
    const uint32_t *from =
        (const uint32_t *)a.scales + ((expert * chunks + chunk) * a.rows + row) * S;
    if constexpr (S == 1)
      side[0] = from[0];
    else {
      vec<uint32_t, S> v = *reinterpret_cast<const vec<uint32_t, S> *>(from);
#pragma unroll
      for (int i = 0; i < S; i++)
        side[i] = v.at[i];
    }
  } else if constexpr (F == KIND_FP8_BLOCK) {
    size_t across = (a.columns + 127) / 128, down = (a.rows + 127) / 128;
    side[0] = ((const uint32_t *)a.scales)[(expert * down + row / 128) * across + column / 128];
  } else {
    side[0] = 0;
  }
}

/* 16 bytes of plain weights to E / 2 pairs. */
template <int F>
OCT_DEVICE void
expand_plain(uint4 raw, uint32_t (&pairs)[kind_traits<F>::E / 2]) {
  const uint32_t from[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if constexpr (F == KIND_BF16)
      pairs[i] = from[i];
    else
      expand_fp8(from[i], pairs + 2 * i);
  }
}

/* The scale of a row's sums. */
template <int F>
OCT_DEVICE float
row_scale(const matmul_args &a, size_t expert, uint32_t row) {
  if constexpr (F == KIND_FP8)
    return ((const float *)a.scales)[expert * a.rows + row];
  return F == KIND_MXFP4 ? (float)(1ull << FP4_SHIFT) : 1;
}

/* Bytes from row to row. */
template <int F>
OCT_DEVICE size_t
weight_row_bytes(const matmul_args &a) {
  if constexpr (F == KIND_BF16)
    return a.w_stride * 2;
  return kind_traits<F>::PACKED ? packed_columns(a.columns) / 2 : a.columns;
}

/* y[row of the token][r] of a sum. */
OCT_DEVICE void
store_sum(const matmul_args &a, size_t token, uint32_t r, float sum, const bf16 *bias) {
  if (bias != NULL)
    sum += to_float(bias[r]);
  size_t at = token * a.y_stride + r;
  if (a.y_is_float) {
    float *y = (float *)a.y + at;
    *y = a.accumulate ? *y + sum : sum;
  } else {
    bf16 *y = (bf16 *)a.y + at;
    *y = from_float<bf16>(a.accumulate ? to_float(*y) + sum : sum);
  }
}

/* ---------------------------------------------------------------- experts */

/* What a tile is a part of: an expert's matrix, and some of its tokens. */
struct job {
  uint32_t expert, slot; /* of this call, and its matrix */
  uint32_t first_token, n_tokens;
};

/* The number of groups of at most `most` tokens that experts have, and of the nth its job (when job
 * is not NULL); every warp finds it. */
OCT_DEVICE uint32_t
find_job(const matmul_args &a, uint32_t most, uint32_t nth, job *found) {
  uint32_t lane = threadIdx.x % 32, all = 0;
  for (uint32_t base = 0; base < a.n_experts; base += 32) {
    uint32_t e = base + lane, from = 0, count = 0;
    if (e < a.n_experts) {
      from = a.starts[e];
      count = a.starts[e + 1] - from;
    }
    uint32_t groups = (count + most - 1) / most, end = groups;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      uint32_t before = __shfl_up_sync(0xffffffffu, end, d);
      end += lane >= d ? before : 0;
    }
    end += all;
    uint32_t who = __ballot_sync(0xffffffffu, nth < end);
    if (found != NULL && who != 0) {
      int l = __ffs((int)who) - 1;
      uint32_t turn = nth - __shfl_sync(0xffffffffu, end - groups, l);
      count = __shfl_sync(0xffffffffu, count, l) - turn * most;
      found->expert = base + (uint32_t)l;
      found->slot = a.slots != NULL ? a.slots[found->expert] : found->expert;
      found->first_token = __shfl_sync(0xffffffffu, from, l) + turn * most;
      found->n_tokens = min(count, most);
      return 0;
    }
    all = __shfl_sync(0xffffffffu, end, 31);
  }
  return all;
}

/* ---------------------------------------------------------------- shared memory */

OCT_DEVICE uint4
load_shared(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from));
  return v;
}
OCT_DEVICE uint32_t
load_shared_word(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
  return v;
}

/* ---------------------------------------------------------------- the kernels' launchers */

/* Whether 16-byte loads serve: columns, strides, alignment. */
bool oct_matmul_is_even(const matmul_args &args, oct_cuda_format format);
int oct_matmul_skinny(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &args);
int oct_matmul_tile(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &args);
/* Few rows on Hopper, experts too; columns by 32 of bf16, by 64 of fp8. */
bool oct_matmul_stream_can(const oct_cuda_queue *queue, oct_cuda_format format,
                           const matmul_args &args);
int oct_matmul_stream(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &args);
/* Weights of eight and four bits on Hopper, any number of rows, experts too. */
bool oct_matmul_codes_can(const oct_cuda_queue *queue, oct_cuda_format format,
                          const matmul_args &args);
int oct_matmul_codes(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &args);
/* BF16 on Hopper, best for few rows. */
bool oct_matmul_narrow_can(const oct_cuda_queue *queue, oct_cuda_format format,
                           const matmul_args &args);
/* Whether nearly all multiprocessors have something to do, and each once. */
bool oct_matmul_narrow_fills(const oct_cuda_queue *queue, const matmul_args &args);
int oct_matmul_narrow(const oct_cuda_queue *queue, const matmul_args &args);
/* Many rows on Hopper, experts too. */
bool oct_matmul_wide_can(const oct_cuda_queue *queue, oct_cuda_format format,
                         const matmul_args &args);
int oct_matmul_wide(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &args);
/* Anything, slowly: float32 and bf16 weights of odd sizes. */
int oct_matmul_plain(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &args);

#endif
