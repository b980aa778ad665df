/* What the matrix product kernels share: their arguments, and weights of every format as bf16
 * operands of matrix instructions. */
#ifndef OCT_KERNELS_CUDA_MATMUL_CUH
#define OCT_KERNELS_CUDA_MATMUL_CUH

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/barrier.cuh"

struct matmul_args {
  const void *w, *scales;
  const uint8_t *zeros;
  uint32_t rows, columns; /* outputs, inputs */
  size_t w_stride;        /* elements between rows, of BF16 and F32 */
  const void *x;
  size_t x_stride;
  const void *bias; /* of x's type */
  void *y;
  size_t y_stride;
  uint32_t m;
  bool y_is_float, accumulate;
  /* The plain kernel's alone: several products, and the weight read as [columns, rows]. Distances
   * are in elements; with experts w_batch is that of their matrices and the others are 0. */
  uint32_t batch;
  size_t x_batch, w_batch, y_batch;
  bool transposed;
  /* Experts: rows [starts[e], starts[e + 1]) of y are expert e's. */
  const uint32_t *starts, *slots, *pair_of;
  uint32_t n_experts, top_k;
  bool gather; /* x's row of row r is pair_of[r] / top_k */
};

/* ---------------------------------------------------------------- formats */

/* E: elements in 16 bytes. GROUP: inputs that share a scale which is applied to sums, 0 = none.
 * SHUFFLED: pairs come in another order than columns are in, shuffle_inputs()'s. */
template <int F> struct format_traits;
template <> struct format_traits<OCT_CUDA_MATRIX_BF16> {
  static constexpr int E = 8, GROUP = 0;
  static constexpr bool SHUFFLED = false;
};
template <> struct format_traits<OCT_CUDA_MATRIX_FP8> {
  static constexpr int E = 16, GROUP = 0;
  static constexpr bool SHUFFLED = false;
};
template <> struct format_traits<OCT_CUDA_MATRIX_FP8_BLOCK> {
  static constexpr int E = 16, GROUP = 128;
  static constexpr bool SHUFFLED = false;
};
template <> struct format_traits<OCT_CUDA_MATRIX_MXFP4> {
  static constexpr int E = 32, GROUP = 0;
  static constexpr bool SHUFFLED = true;
};
template <> struct format_traits<OCT_CUDA_MATRIX_INT4> {
  static constexpr int E = 32, GROUP = 128;
  static constexpr bool SHUFFLED = true;
};

/* Eight codes of four bits as pairs of bf16, in the order 0 and 4, 1 and 5, 2 and 6, 3 and 7.
 *
 * e2m1: sign, exponent and mantissa in place are the value times 2^-126; `scale` is a pair of
 * powers of two, and `rest` what it lacks, 0 = nothing. */
OCT_DEVICE void
expand_fp4(uint32_t codes, uint32_t scale, uint32_t rest, uint32_t *pairs) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t sign = codes << (12 - 4 * i) & 0x80008000u;
    uint32_t size = (i < 2 ? codes << (6 - 4 * i) : codes >> (4 * i - 6)) & 0x01c001c0u;
    pairs[i] = multiply_pairs(sign | size, scale);
    if (rest != 0)
      pairs[i] = multiply_pairs(pairs[i], rest);
  }
}

/* Integers less `zero`, which is 128 + zero as a pair of bf16. */
OCT_DEVICE void
expand_int4(uint32_t codes, uint32_t zero, uint32_t *pairs) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t t = (codes >> (4 * i) & 0x000f000fu) | 0x43004300u;
    __nv_bfloat162 d = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&t),
                               *reinterpret_cast<__nv_bfloat162 *>(&zero));
    pairs[i] = *reinterpret_cast<uint32_t *>(&d);
  }
}

/* What 16 bytes of a row need beside them, as it is stored: an e8m0 byte, a scale and a zero, or
 * the scale of a block. `row` is within the matrix of `expert`. */
template <int F>
OCT_DEVICE uint32_t
load_side(const matmul_args &a, size_t expert, uint32_t row, uint32_t column) {
  size_t all = expert * a.rows + row;
  if constexpr (F == OCT_CUDA_MATRIX_MXFP4)
    return ((const uint8_t *)a.scales)[all * (a.columns / 32) + column / 32];
  if constexpr (F == OCT_CUDA_MATRIX_INT4) {
    size_t at = all * (a.columns / 128) + column / 128;
    return ((const uint16_t *)a.scales)[at] | (uint32_t)a.zeros[at] << 16;
  }
  if constexpr (F == OCT_CUDA_MATRIX_FP8_BLOCK) {
    size_t across = (a.columns + 127) / 128, down = (a.rows + 127) / 128;
    return ((const uint32_t *)a.scales)[(expert * down + row / 128) * across + column / 128];
  }
  return 0;
}

/* 16 bytes of weights to E / 2 pairs. */
template <int F>
OCT_DEVICE void
expand_weights(uint4 raw, uint32_t side, uint32_t (&pairs)[format_traits<F>::E / 2]) {
  const uint32_t from[4] = {raw.x, raw.y, raw.z, raw.w};
  if constexpr (F == OCT_CUDA_MATRIX_BF16) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      pairs[i] = from[i];
  } else if constexpr (F == OCT_CUDA_MATRIX_MXFP4) {
    /* 2^(side - 127) times 2^126, as one bf16 up to 2^127. */
    uint32_t exponent = side + 126 < 254 ? side + 126 : 254, rest = side + 126 - exponent;
    uint32_t scale = exponent << 7, more = rest > 0 ? (rest + 127) << 7 : 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
      expand_fp4(from[i], scale | scale << 16, more | more << 16, pairs + 4 * i);
  } else if constexpr (F == OCT_CUDA_MATRIX_INT4) {
    uint32_t zero = 0x4300u | side >> 16;
#pragma unroll
    for (int i = 0; i < 4; i++)
      expand_int4(from[i], zero | zero << 16, pairs + 4 * i);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++)
      expand_fp8(from[i], pairs + 2 * i);
  }
}

/* Eight consecutive elements of x in the order of shuffled weights. */
OCT_DEVICE uint4
shuffle_inputs(uint4 x) {
  return make_uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
                    __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632));
}

/* The scale of a group of inputs, for sums. */
template <int F>
OCT_DEVICE float
group_scale(uint32_t side) {
  if constexpr (F == OCT_CUDA_MATRIX_INT4)
    return __half2float(__ushort_as_half((unsigned short)side));
  return __uint_as_float(side);
}

/* The scale of a whole matrix. */
template <int F>
OCT_DEVICE float
load_scale(const matmul_args &a, size_t expert) {
  return F == OCT_CUDA_MATRIX_FP8 && a.scales != NULL ? ((const float *)a.scales)[expert] : 1;
}

/* Bytes from row to row. */
template <int F>
OCT_DEVICE size_t
weight_row_bytes(const matmul_args &a) {
  if constexpr (F == OCT_CUDA_MATRIX_BF16)
    return a.w_stride * 2;
  return F == OCT_CUDA_MATRIX_FP8 || F == OCT_CUDA_MATRIX_FP8_BLOCK ? a.columns : a.columns / 2;
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

/* ---------------------------------------------------------------- the kernels' launchers */

/* Whether 16-byte loads serve: columns, strides, alignment. */
bool oct_matmul_is_even(const matmul_args &args, oct_cuda_format format);
int oct_matmul_skinny(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &args);
int oct_matmul_tile(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &args);
/* Anything, slowly: float32 and bf16 weights of odd sizes. */
int oct_matmul_plain(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &args);

#endif
