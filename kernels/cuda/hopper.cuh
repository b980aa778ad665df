/* Hopper's matrix instruction of four warps, and what it needs: descriptors of shared memory,
 * copies by the tensor copy engine. It is sm_90a's alone: for other targets nothing of this is
 * compiled. */
#ifndef OCT_KERNELS_CUDA_HOPPER_CUH
#define OCT_KERNELS_CUDA_HOPPER_CUH

#include <cuda.h>
#include <cudaTypedefs.h>

#include "kernels/cuda/barrier.cuh"

/* ---------------------------------------------------------------- tensor maps */

/* The driver's function that makes tensor maps; NULL where there is none. */
static inline PFN_cuTensorMapEncodeTiled_v12000
find_encoder(void) {
  void *found = NULL;
  cudaDriverEntryPointQueryResult result;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                       &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess)
    return NULL;
  return (PFN_cuTensorMapEncodeTiled_v12000)found;
}

/* Boxes of a tensor of N dimensions, the innermost first; strides in bytes, of all but that. */
template <int N>
static inline bool
make_map(CUtensorMap *map, CUtensorMapDataType type, const void *base, const cuuint64_t (&sizes)[N],
         const cuuint64_t (&strides)[N - 1], const cuuint32_t (&box)[N],
         CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  cuuint32_t steps[N];
  for (int i = 0; i < N; i++)
    steps[i] = 1;
  return encode != NULL &&
         encode(map, type, N, (void *)(uintptr_t)base, sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* ---------------------------------------------------------------- copies */

/* One thread of a warp, all of whose threads ask: who sends copies. A copy's operands are the
 * warp's, and where the compiler does not know that one thread alone has some, it makes of each
 * copy a loop over the warp's threads, of some 200 clocks. */
OCT_DEVICE bool
is_elected() {
#if __CUDA_ARCH__ >= 900
  uint32_t is;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}\n"
               : "=r"(is));
  return is != 0;
#else
  return threadIdx.x % 32 == 0;
#endif
}

/* A box of a tensor of four dimensions, the innermost first. */
OCT_DEVICE void
copy_box(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
               "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}

/* The same of a matrix. */
OCT_DEVICE void
copy_box(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
               "l"(map), "r"(barrier), "r"(c0), "r"(c1)
               : "memory");
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---------------------------------------------------------------- products */

/* Rows of 128 bytes in groups of 8 that are 1024 bytes apart, swizzled. `leading` is the distance
 * of runs of 64 elements where these are outputs' columns; unused where they are inputs. */
OCT_DEVICE uint64_t
swizzled_matrix(uint32_t address, uint32_t leading) {
  return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
         (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

OCT_DEVICE void
wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

OCT_DEVICE void
wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N>
OCT_DEVICE void
wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Registers of a product: not read before what stands above. */
template <int N>
OCT_DEVICE void
keep_behind(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++)
    asm volatile("" : "+f"(d[i])::"memory");
}

/* clang-format off */
/* Registers of d as operands: R of them, from %0 on. */
#define OCT_D4 "%0, %1, %2, %3"
#define OCT_D8 OCT_D4 ", %4, %5, %6, %7"
#define OCT_D12 OCT_D8 ", %8, %9, %10, %11"
#define OCT_D16 OCT_D12 ", %12, %13, %14, %15"
#define OCT_D24 OCT_D16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define OCT_D32 OCT_D24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define OCT_D48                                                                                    \
  OCT_D32 ", %32, %33, %34, %35, %36, %37, %38, %39"                                               \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define OCT_D56 OCT_D48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define OCT_D64 OCT_D56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define OCT_D80                                                                                    \
  OCT_D64 ", %64, %65, %66, %67, %68, %69, %70, %71"                                               \
  ", %72, %73, %74, %75, %76, %77, %78, %79"
#define OCT_O4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OCT_O8(i) OCT_O4(i), OCT_O4(i + 4)
#define OCT_O4_0 OCT_O4(0)
#define OCT_O8_0 OCT_O8(0)
#define OCT_O16_0 OCT_O8_0, OCT_O8(8)
#define OCT_O24_0 OCT_O16_0, OCT_O8(16)
#define OCT_O32_0 OCT_O24_0, OCT_O8(24)
#define OCT_O48_0 OCT_O32_0, OCT_O8(32), OCT_O8(40)
#define OCT_O56_0 OCT_O48_0, OCT_O8(48)
#define OCT_O64_0 OCT_O56_0, OCT_O8(56)
#define OCT_O80_0 OCT_O64_0, OCT_O8(64), OCT_O8(72)

/* d (+)= a b: 64 rows by as many columns as d has room for, of 16 inputs; both in shared memory,
 * inputs innermost. */
#define OCT_WGMMA(N, R, R1, R2, R3, R4, R5)                                                        \
  OCT_DEVICE void wgmma_product(float (&d)[R], uint64_t a, uint64_t b, int adds) {                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R2 ", 0;\n"                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" OCT_D##R "}, "       \
                 "%" #R ", %" #R1 ", p, 1, 1, 0, 0;\n}\n"                                          \
                 : OCT_O##R##_0                                                                    \
                 : "l"(a), "l"(b), "r"(adds));                                                     \
  }
OCT_WGMMA(32, 16, 17, 18, 19, 20, 21)
OCT_WGMMA(48, 24, 25, 26, 27, 28, 29)
OCT_WGMMA(64, 32, 33, 34, 35, 36, 37)
OCT_WGMMA(96, 48, 49, 50, 51, 52, 53)
OCT_WGMMA(112, 56, 57, 58, 59, 60, 61)
OCT_WGMMA(128, 64, 65, 66, 67, 68, 69)
#undef OCT_WGMMA

/* a in registers, b in shared memory with columns innermost. */
#define OCT_WGMMA(N, R, R1, R2, R3, R4, R5)                                                        \
  OCT_DEVICE void wgmma_values(float (&d)[R], const uint32_t (&a)[4], uint64_t b, int adds) {      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R5 ", 0;\n"                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" OCT_D##R "}, "       \
                 "{%" #R ", %" #R1 ", %" #R2 ", %" #R3 "}, %" #R4 ", p, 1, 1, 1;\n}\n"             \
                 : OCT_O##R##_0                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                 \
  }
OCT_WGMMA(64, 32, 33, 34, 35, 36, 37)
OCT_WGMMA(128, 64, 65, 66, 67, 68, 69)
#undef OCT_WGMMA

/* a in registers, b in shared memory with inputs innermost: the address / 16 of a matrix as
 * swizzled_matrix() describes it. */
#define OCT_WGMMA(N, R, R1, R2, R3, R4, R5)                                                        \
  OCT_DEVICE void wgmma_weights(float (&d)[R], const uint32_t (&a)[4], uint32_t b, int adds) {     \
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %" #R5 ", 0;\n"                   \
                 "mov.b64 b, {%" #R4 ", 0x40000040};\n"                                            \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" OCT_D##R "}, "       \
                 "{%" #R ", %" #R1 ", %" #R2 ", %" #R3 "}, b, p, 1, 1, 0;\n}\n"                    \
                 : OCT_O##R##_0                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(adds));                 \
  }
OCT_WGMMA(8, 4, 5, 6, 7, 8, 9)
OCT_WGMMA(16, 8, 9, 10, 11, 12, 13)
OCT_WGMMA(32, 16, 17, 18, 19, 20, 21)
OCT_WGMMA(48, 24, 25, 26, 27, 28, 29)
OCT_WGMMA(64, 32, 33, 34, 35, 36, 37)
OCT_WGMMA(96, 48, 49, 50, 51, 52, 53)
OCT_WGMMA(128, 64, 65, 66, 67, 68, 69)
OCT_WGMMA(160, 80, 81, 82, 83, 84, 85)
#undef OCT_WGMMA
/* clang-format on */

template <int N>
OCT_DEVICE void
take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
OCT_DEVICE void
give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
#endif
