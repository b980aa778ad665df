/* Products of two block-scaled operands on Blackwell (10.0 and 10.3), by its tensor memory: x in
 * eight bits, weights in four. launch.h has the rules. */
#ifndef OCT_KERNELS_CUDA_SCALED_H
#define OCT_KERNELS_CUDA_SCALED_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of x to e4m3 in blocks of 32 inputs, each over a power of two: the least by which its
 * largest element is at most 448, or 2^-127. n rows; with pairs (or NULL) the sorted rows of pairs,
 * of which row r has x's row pair_of[r] / top_k (n is then n * top_k of the pairs, and rows beyond
 * starts[n_local] are left alone). width is a multiple of 32. Equals oct_ref_quantise_mx(). */
typedef struct oct_cuda_quantise_mx {
  oct_cuda_type type;
  uint32_t n, width;
  const oct_cuda_pairs *pairs;
  const void *x;
  size_t x_stride;
  void *out;       /* [n, width] e4m3 */
  uint8_t *scales; /* e8m0 [ceil(width / 128), n, 4]; of blocks beyond the width 0 */
} oct_cuda_quantise_mx;
int oct_cuda_quantise_mx_rows(const oct_cuda_queue *queue, const oct_cuda_quantise_mx *call);

/* y[row] = w[expert of row] x[row] (+ bias[expert]) for the sorted rows of pairs, or with pairs
 * NULL of one weight for m rows. weight: MXFP4_ROWS. x and x_scales as oct_cuda_quantise_mx_rows()
 * makes them, of m rows. bias [matrices, rows] of bf16, or NULL. y is y_type. UNSUPPORTED but
 * on 10.x. */
typedef struct oct_cuda_scaled_matmul {
  oct_cuda_matrix weight;
  const uint32_t *slots; /* of a local expert's matrix, or NULL */
  uint32_t n_matrices;   /* with slots */
  const oct_cuda_pairs *pairs;
  uint32_t m;    /* rows of x; with pairs n * top_k of them */
  const void *x; /* [m, columns] */
  const uint8_t *x_scales;
  const void *bias;
  oct_cuda_type y_type;
  void *y;
  size_t y_stride;
} oct_cuda_scaled_matmul;
int oct_cuda_scaled_multiply(const oct_cuda_queue *queue, const oct_cuda_scaled_matmul *call);
/* Whether that has a kernel for a weight of so many columns. */
bool oct_cuda_scaled_can(const oct_cuda_queue *queue, const oct_cuda_matrix *weight);

#ifdef __cplusplus
}
#endif

#endif
