/* What the kernels of delta attention share: the gates, and how a call's parts are handed on. */
#ifndef OCT_KERNELS_CUDA_KDA_CUH
#define OCT_KERNELS_CUDA_KDA_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/kda.h"

#define KDA_WIDTH    128 /* of the fast kernels */
#define KDA_TAPS     4
#define KDA_NORM_EPS 1e-6f

OCT_DEVICE float
softplus(float x) {
  return x > 20 ? x : log1pf(expf(x));
}

/* The logarithm of a channel's decay; rate is exp(a_log) of its head. */
OCT_DEVICE float
kda_log_decay(const oct_kda &kda, float rate, float z) {
  return kda.decay_bound == 0 ? -rate * softplus(z) : kda.decay_bound * sigmoidf(rate * z);
}

/* The state slot of a sequence. */
OCT_DEVICE size_t
kda_slot(const oct_cuda_kda &a, const oct_cuda_batch &b, uint32_t seq) {
  return a.state_of[(size_t)b.seq_slot[seq] * a.state_of_stride];
}

/* ---------------------------------------------------------------- the kernels' launchers */

/* Sequences [0, n_decode) of the call, their outputs normed when there is a norm. */
int oct_kda_decode(const oct_cuda_queue *queue, const oct_cuda_kda *call);
/* All sequences, of any number of tokens each, likewise. */
int oct_kda_decode_runs(const oct_cuda_queue *queue, const oct_cuda_kda *call);

#endif
