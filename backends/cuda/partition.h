/* Which part of each weight a rank holds, and the bytes of its file that it has to read for it.
 * Plain C, built and tested without a GPU. Private to backends/cuda.
 *
 * What is split and how says engine/model/split.h: heads of attention (a KV head on several ranks
 * where there are fewer than ranks), inner widths of feed-forwards, the vocabulary, projections to
 * and from experts' latents with the router beside them. Whole experts go over all ranks of a
 * stage, those of other KV domains included. Everything else (norms, other routers, low-rank
 * projections) is on every rank of its stage, so that no rank waits for it. A bias that goes into a
 * sum over ranks is on the first only.
 */
#ifndef OCT_BACKENDS_CUDA_PARTITION_H
#define OCT_BACKENDS_CUDA_PARTITION_H

#include "engine/model/files/map.h"

/* A rank's place in the layout. */
typedef struct oct_cuda_share {
  const oct_model_spec *spec;   /* borrowed, as is the next */
  const oct_parallel *parallel; /* legal for the spec (oct_parallel_check()) */
  guint32 stage, domain, tensor;
} oct_cuda_share;

/* Rank `index` of oct_parallel_world(): stages, in them domains, in them tensor ranks. */
oct_cuda_share oct_cuda_share_of(const oct_model_spec *spec, const oct_parallel *parallel,
                                 guint32 index);

/* Rows [row, row + rows) and columns [column, column + columns). */
typedef struct oct_cuda_piece {
  guint64 row, rows, column, columns;
} oct_cuda_piece;

/* The part of a weight of rows x columns; rows 0: the rank holds nothing of it. A tied embedding is
 * asked for as HEAD where it is the head. */
oct_cuda_piece oct_cuda_piece_of(const oct_cuda_share *place, oct_weight_kind kind, guint32 layer,
                                 guint32 expert, guint64 rows, guint64 columns);
/* Ranks that hold each element of it: 1, or how often it is copied within the instance. */
guint32 oct_cuda_piece_copies(const oct_cuda_share *place, oct_weight_kind kind, guint32 layer);

/* Bytes of the weight's file that hold the part: codes, and every scale and zero that a code of it
 * needs. Over all parts of a weight they add up to weight->bytes, unless ranks share a scale or the
 * file has one for the whole. */
guint64 oct_cuda_piece_bytes(const oct_weight *weight, const oct_cuda_piece *part);

#endif
