/* Weights that keep their format on the device: which do, and how their codes and scales get into a
 * matrix of several weights' parts. Private to backends/cuda.
 */
#ifndef OCT_BACKENDS_CUDA_MATRIX_H
#define OCT_BACKENDS_CUDA_MATRIX_H

#include "backends/cuda/model.h"
#include "backends/cuda/partition.h"

/* A part of a weight that becomes rows [at, at + piece.rows) of a matrix, or of several one after
 * another (experts), counted through. */
typedef struct oct_cuda_fragment {
  const oct_weight *weight; /* borrowed */
  oct_cuda_piece piece;
  guint64 at;
} oct_cuda_fragment;

/* Whether kernels take the fragments as they are stored, all of a matrix (rows and columns are set)
 * alike: then its format and group are set. FALSE: they are to be widened. *why (static) says why
 * quantised weights are, and is NULL for those that are stored plain. No device is needed. */
gboolean oct_cuda_matrix_keeps(oct_cuda_matrix *matrix, const oct_cuda_fragment *fragments, guint n,
                               const char **why) G_GNUC_WARN_UNUSED_RESULT;

/* Scales of a fragment as the matrix has them (oct_cuda_matrix), of its rows [first, first + n), to
 * out: the bytes of oct_cuda_scale_run(). */
void oct_cuda_fragment_scales(const oct_cuda_matrix *matrix, const oct_cuda_fragment *fragment,
                              guint64 first, guint64 n, void *out);
/* Where they go: `height` runs of `bytes`, `pitch` apart, from `offset` of the matrix's scales on.
 */
typedef struct oct_cuda_scale_run {
  gsize offset, bytes, height, pitch;
} oct_cuda_scale_run;
oct_cuda_scale_run oct_cuda_scale_run_of(const oct_cuda_matrix *matrix,
                                         const oct_cuda_fragment *fragment, guint64 first,
                                         guint64 n);

/* Codes and scales of a fragment to the device. FALSE: noted. */
gboolean oct_cuda_upload_fragment(oct_cuda_upload *upload, const oct_cuda_matrix *matrix,
                                  const oct_cuda_fragment *fragment) G_GNUC_WARN_UNUSED_RESULT;

#endif
