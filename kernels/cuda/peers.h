/* All-reduce over the memory of GPUs that map each other's: launchers under launch.h's rules. */
#ifndef OCT_KERNELS_CUDA_PEERS_H
#define OCT_KERNELS_CUDA_PEERS_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OCT_CUDA_PEERS_MAX 8

/* One rank's view of a group of GPUs that map each other's memory. buffers[r]: rank r's exchange
 * buffer of buffer_bytes, the first 2 * OCT_CUDA_PACKET_BYTES of it zeroed once before the first
 * use; signals[r]: its OCT_CUDA_SIGNAL_BYTES, zeroed likewise. Every rank makes the same calls in
 * the same order; a graph may replay them. signals[rank][OCT_CUDA_SIGNAL_CALLS] says how many
 * they were. A rank that never comes makes the others wait for timeout_cycles, then they set
 * *failed (host-visible) to 1 and go on with wrong sums; so they do when the host sets it. */
#define OCT_CUDA_SIGNAL_BYTES 131072
#define OCT_CUDA_SIGNAL_CALLS 14336
#define OCT_CUDA_PACKET_BYTES ((size_t)1 << 20)
typedef struct oct_cuda_peers {
  uint32_t rank, n;
  void *buffers[OCT_CUDA_PEERS_MAX];
  size_t buffer_bytes;
  uint64_t *signals[OCT_CUDA_PEERS_MAX];
  uint32_t *failed;
  uint64_t timeout_cycles; /* 0 = none */
} oct_cuda_peers;

/* How a sum is made. PACKETS: each 8 bytes carry 4 of data and the number of the call, so that
 * nothing is fenced; the shortest wait and twice the bytes. ONE_SHOT: rows to everybody, then a
 * flag. TWO_SHOT: each row to one rank, which gives its sum to everybody. NONE: not by these
 * kernels. */
typedef enum oct_cuda_reduce_way {
  OCT_CUDA_REDUCE_NONE,
  OCT_CUDA_REDUCE_PACKETS,
  OCT_CUDA_REDUCE_ONE_SHOT,
  OCT_CUDA_REDUCE_TWO_SHOT,
} oct_cuda_reduce_way;
/* The fastest that fits the buffers for n rows of row_bytes; NONE: NCCL is. */
oct_cuda_reduce_way oct_cuda_all_reduce_way(const oct_cuda_peers *peers, uint32_t n,
                                            size_t row_bytes);

/* With a fixed order, of *n rows or as many of them as go at a time: PACKETS or ONE_SHOT, which
 * round a sum once and have the same bits; NONE: neither has room for a row. */
oct_cuda_reduce_way oct_cuda_all_reduce_fixed(const oct_cuda_peers *peers, uint32_t *n,
                                              size_t row_bytes);

/* Sum over ranks of x[n, width] of `type`, in the order of ranks, the same bits on every rank. Then
 * as oct_cuda_rms_norm(): residual += sum and out = norm, when residual is not NULL. Without
 * residual out may be x, and is the sum's norm when there is a weight, else the sum. Rows are
 * dense. */
typedef struct oct_cuda_all_reduce {
  oct_cuda_type type, residual_type;
  uint32_t n, width;
  const void *x;
  void *residual;
  const void *weight;
  float eps;
  void *out;
  oct_cuda_reduce_way way; /* other than NONE */
} oct_cuda_all_reduce;
int oct_cuda_all_reduce_norm(const oct_cuda_queue *queue, const oct_cuda_peers *peers,
                             const oct_cuda_all_reduce *call);

#ifdef __cplusplus
}
#endif

#endif
