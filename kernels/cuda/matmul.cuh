/* What the matrix product kernels share: their arguments, and weights of every format as bf16
 * operands of matrix instructions. */
#ifndef OCT_KERNELS_CUDA_MATMUL_CUH
#define OCT_KERNELS_CUDA_MATMUL_CUH

#include "kernels/cuda/attend.cuh"

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

/* E: elements in 16 bytes. GROUP: inputs that share a scale which is applied to sums, 0 = none. */
template <int F> struct format_traits;
template <> struct format_traits<OCT_CUDA_MATRIX_BF16> { static constexpr int E = 8, GROUP = 0; };
template <> struct format_traits<OCT_CUDA_MATRIX_FP8> { static constexpr int E = 16, GROUP = 0; };
template <> struct format_traits<OCT_CUDA_MATRIX_FP8_BLOCK> {
  static constexpr int E = 16, GROUP = 128;
};
template <> struct format_traits<OCT_CUDA_MATRIX_MXFP4> { static constexpr int E = 32, GROUP = 0; };
template <> struct format_traits<OCT_CUDA_MATRIX_INT4> {
  static constexpr int E = 32, GROUP = 128;
};

OCT_DEVICE uint32_t
multiply_pairs(uint32_t x, uint32_t y) {
  __nv_bfloat162 z =
      __hmul2(*reinterpret_cast<__nv_bfloat162 *>(&x), *reinterpret_cast<__nv_bfloat162 *>(&y));
  return *reinterpret_cast<uint32_t *>(&z);
}

/* Four e4m3 as pairs of bf16: exponent and mantissa moved into place are the value times 2^-120,
 * subnormals too. */
OCT_DEVICE void
expand_fp8(uint32_t codes, uint32_t *pairs) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t t = __byte_perm(codes, 0, i == 0 ? 0x1404 : 0x3424);
    pairs[i] = multiply_pairs((t & 0x80008000u) | ((t & 0x7f007f00u) >> 4), 0x7b807b80u);
  }
}

/* Eight e2m1, the first lowest, as pairs of bf16; the value times 2^-126 is what is in place. */
OCT_DEVICE void
expand_fp4(uint32_t codes, uint32_t scale, uint32_t *pairs) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t two = codes >> (8 * i);
    uint32_t t = (two & 0xf) | (two & 0xf0) << 12;
    t = (t & 0x00080008u) << 12 | (t & 0x00070007u) << 6;
    pairs[i] = multiply_pairs(multiply_pairs(t, 0x7e807e80u), scale);
  }
}

/* Eight 4-bit integers less `zero`, which is 128 + zero as a pair of bf16. */
OCT_DEVICE void
expand_int4(uint32_t codes, uint32_t zero, uint32_t *pairs) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t two = codes >> (8 * i);
    uint32_t t = (two & 0xf) | (two & 0xf0) << 12 | 0x43004300u;
    __nv_bfloat162 d = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&t),
                               *reinterpret_cast<__nv_bfloat162 *>(&zero));
    pairs[i] = *reinterpret_cast<uint32_t *>(&d);
  }
}

/* A power of two by its e8m0 code, as a pair of bf16. */
OCT_DEVICE uint32_t
pair_of_e8m0(uint8_t code) {
  uint32_t x = code == 0 ? 0x0040u : (uint32_t)code << 7;
  return x | x << 16;
}

/* What a row's 16 bytes need beside them: a scale or a zero, as a pair of bf16. */
template <int F>
OCT_DEVICE uint32_t
load_beside(const matmul_args &a, size_t row, uint32_t column) {
  if constexpr (F == OCT_CUDA_MATRIX_MXFP4)
    return pair_of_e8m0(((const uint8_t *)a.scales)[row * (a.columns / 32) + column / 32]);
  if constexpr (F == OCT_CUDA_MATRIX_INT4) {
    uint32_t zero = 0x4300u | a.zeros[row * (a.columns / 128) + column / 128];
    return zero | zero << 16;
  }
  return 0;
}

/* 16 bytes of weights to E / 2 pairs. */
template <int F>
OCT_DEVICE void
expand_weights(uint4 raw, uint32_t beside, uint32_t (&pairs)[format_traits<F>::E / 2]) {
  const uint32_t from[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; i++)
    if constexpr (F == OCT_CUDA_MATRIX_BF16)
      pairs[i] = from[i];
    else if constexpr (F == OCT_CUDA_MATRIX_MXFP4)
      expand_fp4(from[i], beside, pairs + 4 * i);
    else if constexpr (F == OCT_CUDA_MATRIX_INT4)
      expand_int4(from[i], beside, pairs + 4 * i);
    else
      expand_fp8(from[i], pairs + 2 * i);
}

/* The scale of a group of inputs, for sums. `row` counts over all experts' rows. */
template <int F>
OCT_DEVICE float
load_group_scale(const matmul_args &a, size_t expert, uint32_t row, uint32_t column) {
  if constexpr (F == OCT_CUDA_MATRIX_INT4)
    return __half2float(
        ((const half *)a.scales)[(expert * a.rows + row) * (a.columns / 128) + column / 128]);
  if constexpr (F == OCT_CUDA_MATRIX_FP8_BLOCK) {
    size_t across = (a.columns + 127) / 128, down = (a.rows + 127) / 128;
    return ((const float *)a.scales)[(expert * down + row / 128) * across + column / 128];
  }
  return 1;
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
