/* Kimi delta attention on an NVIDIA GPU: a launcher under launch.h's rules. */
#ifndef OCT_KERNELS_CUDA_KDA_H
#define OCT_KERNELS_CUDA_KDA_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* oct_ref_kda() for a batch: every sequence's tokens into its state, in order; out[n_tokens, C]. A
 * sequence whose first token has position 0 starts from zeros. q, k, v, z are rows of C of `type`
 * (z NULL = zeros), beta of n_heads; kda's pointers are device float32. A state slot: recurrent
 * part float32 [heads, width, width] at states + slot * state_stride floats, convolution inputs
 * [3, taps - 1, C] of conv_type at conv + slot * conv_stride elements. state_of[slot of the
 * sequence * state_of_stride] is the state slot. A head's state, 4 width + 32 floats beside it, has
 * to have room in a block's shared memory: widths of more than 239 have none on Hopper.
 *
 * norm not NULL: out = rms norm of each head (weight `norm` [width] of `type`, norm_eps) *
 * sigmoid(gate), gate rows of C or NULL (sigmoid of zero), as oct_cuda_gated_rms_norm().
 *
 * Which kernel runs: with width 128 and 4 taps, sequences [0, n_decode), of at most one token, take
 * the DECODE kernel: everything in one launch, the state read and written once. The others take the
 * CHUNKED kernels where the workspace suffices: 16 tokens at a time on tensor cores. They are off
 * from the recurrence by relative 3.6e-3 (outputs, their own rounding in it) and 2.5e-3 (states) in
 * BF16, and by 7e-6 in F32, whose operands are pairs of bfloat16. All else is RECURRENT: any width
 * and number of taps, one token after another in float32. With a fixed order DECODE takes all
 * sequences of width 128, one token after another. */
typedef struct oct_cuda_kda {
  oct_cuda_type type, conv_type;
  const oct_cuda_batch *batch;
  uint32_t n_decode;
  oct_kda kda;
  float *states;
  size_t state_stride;
  void *conv;
  size_t conv_stride;
  const uint32_t *state_of;
  size_t state_of_stride;
  const void *q, *k, *v, *z, *beta;
  size_t q_stride, k_stride, v_stride, z_stride, beta_stride;
  const void *norm, *gate;
  size_t gate_stride;
  float norm_eps;
  void *out;
  size_t out_stride;
  void *workspace; /* one queue's at a time */
  size_t workspace_bytes;
} oct_cuda_kda;
/* Bytes of workspace for the CHUNKED kernels, at most OCT_CUDA_KDA_WORKSPACE and a chunk of all
 * heads; 0: they would not run. Needs no pointers but batch, of which n_tokens and n_seqs are read.
 */
#define OCT_CUDA_KDA_WORKSPACE ((size_t)256 << 20)
size_t oct_cuda_kda_workspace(const oct_cuda_queue *queue, const oct_cuda_kda *call);
int oct_cuda_kda_run(const oct_cuda_queue *queue, const oct_cuda_kda *call);

#ifdef __cplusplus
}
#endif

#endif
