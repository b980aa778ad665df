/* Arrays of which every rank of a group has a part: launchers under launch.h's rules. */
#ifndef OCT_KERNELS_CUDA_GATHER_H
#define OCT_KERNELS_CUDA_GATHER_H

#include "kernels/cuda/peers.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OCT_CUDA_GATHER_PIECES 2

/* Bytes [at, at + bytes) of a rank's rows are columns of out, whose rows are `pitch` bytes apart:
 * rank r's begin at byte r * bytes of each. `at` and row_bytes are multiples of 8, `bytes` and
 * pitch of 4. */
typedef struct oct_cuda_gather_piece {
  uint32_t at, bytes;
  void *out;
  size_t pitch;
} oct_cuda_gather_piece;
/* x[n] rows of row_bytes, dense, on every rank; between pieces anything may be. */
typedef struct oct_cuda_gather_parts {
  uint32_t n, row_bytes;
  const void *x;
  uint32_t n_pieces; /* at most OCT_CUDA_GATHER_PIECES */
  oct_cuda_gather_piece pieces[OCT_CUDA_GATHER_PIECES];
} oct_cuda_gather_parts;

/* Over peers' memory, with the buffers, signals and calls of oct_cuda_all_reduce_norm(); FALSE: it
 * does not fit them, and oct_cuda_gather_columns() gives OCT_CUDA_UNSUPPORTED. All ranks of `peers`
 * make the call, with equal sizes. */
bool oct_cuda_gather_can(const oct_cuda_peers *peers, uint32_t n, uint32_t row_bytes);
int oct_cuda_gather_columns(const oct_cuda_queue *queue, const oct_cuda_peers *peers,
                            const oct_cuda_gather_parts *call);
/* From every rank's x as it lies here: sources[n_ranks], of OCT_CUDA_PEERS_MAX at most; call->x is
 * not read. */
int oct_cuda_gather_place(const oct_cuda_queue *queue, const void *const *sources, uint32_t n_ranks,
                          const oct_cuda_gather_parts *call);

/* As oct_cuda_embed_rows(), of a table that begins with id `first`: others than its `rows` ids give
 * zeros. */
int oct_cuda_embed_part(const oct_cuda_queue *queue, const oct_cuda_embed *call, uint32_t first);

#ifdef __cplusplus
}
#endif

#endif
