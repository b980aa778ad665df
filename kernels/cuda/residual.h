/* Attention residuals: what a sub-layer reads is a mix of the stream and of what it was before each
 * block of layers. Launchers under launch.h's rules. */
#ifndef OCT_KERNELS_CUDA_RESIDUAL_H
#define OCT_KERNELS_CUDA_RESIDUAL_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OCT_CUDA_MIX_BLOCKS_MAX 31

/* One step of the stream, row by row of n: p = residual + x; p = residual when x is NULL; p = x
 * when the stream `begins`, and residual is not read. Then p is stored: to residual, or, when keep
 * is not NULL, rounded to keep, and residual is left as it is: the next call begins. Then
 *
 *   V = blocks 0 .. n_blocks - 1, p              (p is not rounded here)
 *   score_i = sum over d of V_i[d] score[d] / sqrt(mean of V_i^2 + eps)
 *   mix = sum over i of softmax(score)_i V_i      (n_blocks 0: p)
 *   out = mix / sqrt(mean of mix^2 + norm_eps) * norm
 *
 * which is oct_ref_residual_mix() and a norm, with score = its norm's weight times proj. out NULL:
 * only the first step. Every source is read once where the width is a multiple of 8 up to 16384 and
 * there are at most 8 blocks; up to OCT_CUDA_MIX_BLOCKS_MAX and of any width, more slowly. keep may
 * be the row behind the blocks that are mixed; out may be x. */
typedef struct oct_cuda_residual_mix {
  oct_cuda_type type; /* of x, blocks, norm, out, keep */
  uint32_t n, width, n_blocks;
  bool begins;
  const void *x;       /* [n, width] */
  float *residual;     /* [n, width] */
  const void *blocks;  /* block i: [n, width] at blocks + i * block_stride */
  size_t block_stride; /* elements, at least n * width */
  const float *score;  /* [width]; not read without blocks */
  float eps;
  const void *norm; /* [width]; NULL = ones */
  float norm_eps;
  void *out;  /* [n, width] */
  void *keep; /* [n, width] */
} oct_cuda_residual_mix;
int oct_cuda_residual_mix_rows(const oct_cuda_queue *queue, const oct_cuda_residual_mix *call);

#ifdef __cplusplus
}
#endif

#endif
