/* Where packed words have their codes of four bits: see oct_cuda_matrix. */
#ifndef OCT_KERNELS_CUDA_CODES_CUH
#define OCT_KERNELS_CUDA_CODES_CUH

#include <stdint.h>

/* The input of word `word` of a packed row that is the first of its pair `pair`, of four. */
static __host__ __device__ __forceinline__ uint32_t
input_of_pair(uint32_t word, uint32_t pair) {
  return word / 16 * 128 + word % 4 * 32 + pair * 8 + word / 4 % 4 * 2;
}

/* The code of input 2 `pair` + `second` in its place. Of e2m1 a byte has two: their sizes, and
 * above them their signs, so that a shift and a mask or two give four of them as e5m2. */
static __host__ __device__ __forceinline__ uint32_t
place_code(bool is_float, uint32_t code, uint32_t pair, uint32_t second) {
  uint32_t byte = pair / 2 * 8, size_at = byte + pair % 2 * 3, sign_at = byte + 6 + pair % 2;
  uint32_t placed = is_float ? (code & 7) << size_at | code >> 3 << sign_at : code << 4 * pair;
  return placed << 16 * second;
}

#endif
