/* What ranks give each other: those of a tensor group sums and gathered columns; those with the
 * same place in the tensor groups of all KV domains tokens for experts, and their sums; those that
 * share sequences' tokens out queries, and what they found. Private to backends/cuda.
 *
 * On GPUs of their own they use kernels over each other's memory for small sums and NCCL for the
 * rest, both of which a graph can hold. Ranks that share a GPU meet on the host instead: slow, but
 * any layout runs on any machine.
 */
#ifndef OCT_BACKENDS_CUDA_COMM_H
#define OCT_BACKENDS_CUDA_COMM_H

#include "backends/cuda/rank.h"
#include "kernels/cuda/gather.h"

typedef struct oct_cuda_comm oct_cuda_comm;

/* Which ranks meet. */
typedef enum oct_cuda_circle_kind {
  OCT_CUDA_CIRCLE_TENSOR,
  OCT_CUDA_CIRCLE_DOMAINS,
  OCT_CUDA_CIRCLE_CONTEXT, /* decode_context neighbours of a tensor group */
  OCT_CUDA_CIRCLES
} oct_cuda_circle_kind;

/* What such ranks share; made before their threads, freed after them. */
typedef struct oct_cuda_circle oct_cuda_circle;
oct_cuda_circle *oct_cuda_circle_new(oct_cuda_group *group, oct_cuda_circle_kind kind);
void oct_cuda_circle_free(oct_cuda_circle *circle); /* accepts NULL */
/* From any thread, when the group is broken. At once: kernels that wait for a peer see it and go.
 * Blocking, for NCCL may wait for the devices: whoever waits in NCCL comes back. */
void oct_cuda_circle_release(oct_cuda_circle *circle);
void oct_cuda_circle_abort(oct_cuda_circle *circle);

/* Life cycle, on the rank's thread, all ranks of the circle together. Elements of the largest sum,
 * and of the largest gathered array. NULL: noted. */
oct_cuda_comm *oct_cuda_comm_new(oct_cuda_rank *rank, oct_cuda_circle *circle, gsize sum_elements,
                                 gsize gathered_elements);
void oct_cuda_comm_free(oct_cuda_comm *comm); /* accepts NULL */
/* A rank did not come to a sum: its result is wrong. Any thread. */
gboolean oct_cuda_comm_is_lost(const oct_cuda_comm *comm);
/* Whether its work can be captured. */
gboolean oct_cuda_comm_has_graphs(const oct_cuda_comm *comm);

/* Use; all ranks in the same order, on the rank's compute stream. Sum over ranks of x[n, width] of
 * the activations' type, then as oct_cuda_rms_norm() with a residual: residual += sum, out = norm.
 * Without residual, out, which may be x, is the sum's norm when there is a weight, else the sum. x
 * may be overwritten. parts > 0, of one rank alone and for a residual: x is float32 [parts, n,
 * width], and the sum is that of its parts. */
typedef struct oct_cuda_sum {
  guint32 n, width, parts;
  void *x;
  float *residual;
  const void *weight;
  float eps;
  void *out; /* NULL: no norm is wanted */
  /* Of a circle of one alone: the norm in e4m3 too, as oct_cuda_norm has it; or NULL. */
  void *narrow;
  float *narrow_scale;
} oct_cuda_sum;
gboolean oct_cuda_comm_sum(oct_cuda_comm *comm, const oct_cuda_sum *call);
/* out[n, ranks * width] float32 from each rank's x[n, width]. */
gboolean oct_cuda_comm_gather(oct_cuda_comm *comm, const float *x, guint32 n, guint32 width,
                              float *out);
/* Columns of several arrays from every rank. Its rows of all ranks are at most as many bytes as
 * gathered_elements floats. */
gboolean oct_cuda_comm_gather_parts(oct_cuda_comm *comm, const oct_cuda_gather_parts *call);
/* Use, in any circle. out: `bytes` of every rank, one after another. */
gboolean oct_cuda_comm_gather_runs(oct_cuda_comm *comm, const void *x, gsize bytes, void *out);
/* Of x[ranks, elements] of the activations' type, out[elements]: the sum over ranks of this rank's
 * row. room, as large as x, may be overwritten. */
gboolean oct_cuda_comm_scatter_sums(oct_cuda_comm *comm, const void *x, gsize elements, void *room,
                                    void *out);
/* Of x[ranks, bytes] the rank-th run to each rank: out[ranks, bytes] has what they sent here. */
gboolean oct_cuda_comm_exchange(oct_cuda_comm *comm, const void *x, gsize bytes, void *out);

#endif
