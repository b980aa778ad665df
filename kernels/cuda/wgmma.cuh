/* Hopper's matrix instruction in widths that fit any number of heads: 64 rows by N columns of 16
 * inputs, of bf16 (both operands in shared memory) or half (a in registers), or of 32 inputs of
 * eight bits. sm_90a's alone. */
#ifndef OCT_KERNELS_CUDA_WGMMA_CUH
#define OCT_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/hopper.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* rows(): a with inputs innermost. columns(): a with rows innermost. half_rows(): a in registers.
 * b has inputs innermost. d += a b, or d = a b where `adds` is 0. */
template <int N> struct wgmma;

/* clang-format off */
/* R registers of d; the operands behind them are number R and on. */
#define OCT_WGMMA(N, R, R1, R2, R3, R4, R5)                                                        \
  template <> struct wgmma<N> {                                                                    \
    static __device__ __forceinline__ void rows(float (&d)[R], uint64_t a, uint64_t b, int adds) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R2 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" OCT_D##R           \
                   "}, %" #R ", %" #R1 ", p, 1, 1, 0, 0;\n}\n"                                     \
                   : OCT_O##R##_0                                                                  \
                   : "l"(a), "l"(b), "r"(adds));                                                   \
    }                                                                                              \
    static __device__ __forceinline__ void columns(float (&d)[R], uint64_t a, uint64_t b,          \
                                                   int adds) {                                     \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R2 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" OCT_D##R           \
                   "}, %" #R ", %" #R1 ", p, 1, 1, 1, 0;\n}\n"                                     \
                   : OCT_O##R##_0                                                                  \
                   : "l"(a), "l"(b), "r"(adds));                                                   \
    }                                                                                              \
    static __device__ __forceinline__ void half_rows(float (&d)[R], const uint32_t (&a)[4],        \
                                                     uint64_t b, int adds) {                       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R5 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" OCT_D##R             \
                   "}, {%" #R ", %" #R1 ", %" #R2 ", %" #R3 "}, %" #R4 ", p, 1, 1, 0;\n}\n"        \
                   : OCT_O##R##_0                                                                  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));               \
    }                                                                                              \
  };
OCT_WGMMA(16, 8, 9, 10, 11, 12, 13)
OCT_WGMMA(32, 16, 17, 18, 19, 20, 21)
OCT_WGMMA(48, 24, 25, 26, 27, 28, 29)
OCT_WGMMA(64, 32, 33, 34, 35, 36, 37)
#undef OCT_WGMMA

/* e4m3 by e4m3, both in shared memory with inputs innermost. An instruction adds its products and
 * d within about 2^-13 of the largest of them. */
OCT_DEVICE void
wgmma_codes(float (&d)[16], uint64_t a, uint64_t b, int adds) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {" OCT_D16
               "}, %16, %17, p, 1, 1;\n}\n"
               : OCT_O16_0
               : "l"(a), "l"(b), "r"(adds));
}

/* The same of e4m3 in registers by e4m3, or e5m2, in shared memory. */
#define OCT_WGMMA(NAME, TYPE)                                                                      \
  OCT_DEVICE void NAME(float (&d)[8], const uint32_t (&a)[4], uint64_t b, int adds) {              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3." TYPE " {" OCT_D8               \
                 "}, {%8, %9, %10, %11}, %12, p, 1, 1;\n}\n"                                       \
                 : OCT_O8_0                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                 \
  }
OCT_WGMMA(wgmma_high, "e4m3")
OCT_WGMMA(wgmma_low, "e5m2")
#undef OCT_WGMMA
/* clang-format on */

#endif
#endif
