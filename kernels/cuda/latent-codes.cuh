/* Steps of latent-group.cuh that know nothing of tiles: votes, stores of matrices, and e4m3 on its
 * way to the matrix unit.
 *
 * Where e4m3 is multiplied as it is, weights become e4m3 plus e5m2: seven bits, and down to 2^-16
 * three and fewer. */
#ifndef OCT_KERNELS_CUDA_LATENT_CODES_CUH
#define OCT_KERNELS_CUDA_LATENT_CODES_CUH

#include "kernels/cuda/attend.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Whether any of `threads` threads that name the barrier says so. */
OCT_DEVICE bool
vote(uint32_t name, uint32_t threads, bool x) {
  uint32_t any;
  asm volatile("{\n"
               ".reg .pred p, q;\n"
               "setp.ne.u32 p, %1, 0;\n"
               "bar.red.or.pred q, %2, %3, p;\n"
               "selp.u32 %0, 1, 0, q;\n"
               "}\n"
               : "=r"(any)
               : "r"((uint32_t)x), "r"(name), "r"(threads)
               : "memory");
  return any != 0;
}

/* Stores 8 x 8 matrices of 16 bits transposed; lane i gives where column i % 8 of matrix i / 8
 * goes. */
OCT_DEVICE void
store_transposed(uint32_t to, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

/* Weights of a column and two keys to e4m3 (low half) and e5m2 (high half). */
OCT_DEVICE void
split_weights(float x, float y, uint32_t *high, uint32_t *low) {
  __half2 v = __floats2half2_rn(x, y);
  *high = __nv_cvt_halfraw2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
  __half2 rest =
      __hsub2(v, __half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)*high, __NV_E4M3)));
  *low = __nv_cvt_halfraw2_to_fp8x2(rest, __NV_SATFINITE, __NV_E5M2);
}

/* Two dimensions of 32 keys as words of one dimension of four keys: 2t, 2t + 8, 2t + 1, 2t + 9, and
 * those 16 behind. */
OCT_DEVICE void
turn_values(const uint32_t (&raw)[4], uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    a[2 * i] = __byte_perm(raw[2 * i], raw[2 * i + 1], 0x6240);
    a[2 * i + 1] = __byte_perm(raw[2 * i], raw[2 * i + 1], 0x7351);
  }
}

/* Four e4m3 as two words of halves. */
OCT_DEVICE void
widen(uint32_t codes, uint32_t *low, uint32_t *high) {
  asm("{\n"
      ".reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n"
      "}\n"
      : "=r"(*low), "=r"(*high)
      : "r"(codes));
}

/* Four matrices of 8 words of 16 bits by 8 keys to operands of two steps. */
OCT_DEVICE void
widen_keys(const uint32_t (&raw)[4], uint32_t (&a)[2][4]) {
#pragma unroll
  for (int s = 0; s < 2; s++)
#pragma unroll
    for (int i = 0; i < 2; i++)
      widen(raw[2 * s + i], &a[s][i], &a[s][2 + i]);
}

/* Two dimensions of eight keys as a word of each of two dimensions of two keys. */
OCT_DEVICE void
widen_values(const uint32_t (&raw)[4], uint32_t (&a)[2][4]) {
#pragma unroll
  for (int s = 0; s < 2; s++)
#pragma unroll
    for (int i = 0; i < 2; i++)
      widen(__byte_perm(raw[2 * s + i], 0, 0x3120), &a[s][2 * i], &a[s][2 * i + 1]);
}

#endif
#endif
