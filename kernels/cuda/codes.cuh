/* Where packed words have their codes of four bits: see oct_cuda_matrix. */
#ifndef OCT_KERNELS_CUDA_CODES_CUH
#define OCT_KERNELS_CUDA_CODES_CUH

#include <stdint.h>

/* The input of word `word` of a packed row that is the first of its pair `pair`, of four. */
static __host__ __device__ __forceinline__ uint32_t
input_of_pair(uint32_t word, uint32_t pair) {
  return word / 16 * 128 + word % 4 * 32 + pair * 8 + word / 4 % 4 * 2;
}

/* The code of input 2 `pair` + `second` in its place. Of e2m1 the sign is so many bits above the
 * rest that most pairs come into the places that bf16 has for them by one shift. */
static __host__ __device__ __forceinline__ uint32_t
place_code(bool is_float, uint32_t code, uint32_t pair, uint32_t second) {
  uint32_t size_at = pair == 0 ? 6 : pair == 1 ? 3 : pair == 2 ? 0 : 9;
  uint32_t sign_at = pair == 0 ? 15 : pair == 1 ? 12 : pair == 2 ? 14 : 13;
  uint32_t placed = is_float ? (code & 7) << size_at | code >> 3 << sign_at : code << 4 * pair;
  return placed << 16 * second;
}

#endif
