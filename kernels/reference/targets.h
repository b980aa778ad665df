/* Kinds of processors for which inner loops are compiled one by one, and which of them this is.
 * Private to kernels/reference. */
#ifndef OCT_KERNELS_REFERENCE_TARGETS_H
#define OCT_KERNELS_REFERENCE_TARGETS_H

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef enum oct_target {
  OCT_TARGET_IS_ANY,
  OCT_TARGET_IS_AVX2, /* with FMA */
  OCT_TARGET_IS_AVX512,
} oct_target;

#ifdef __x86_64__
#define OCT_TARGET_AVX2   __attribute__((target("avx2,fma")))
#define OCT_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))

static inline oct_target
oct_ref_target(void) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return OCT_TARGET_IS_AVX512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return OCT_TARGET_IS_AVX2;
  return OCT_TARGET_IS_ANY;
}
#else
static inline oct_target
oct_ref_target(void) {
  return OCT_TARGET_IS_ANY;
}
#endif

#endif
