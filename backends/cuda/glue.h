/* Small kernels that serve the backend's own bookkeeping on the device; the operators of models are
 * in kernels/cuda. Launchers as there: they enqueue on a stream and return a cudaError_t. Private
 * to backends/cuda.
 */
#ifndef OCT_BACKENDS_CUDA_GLUE_H
#define OCT_BACKENDS_CUDA_GLUE_H

#include "kernels/cuda/peers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An entry of the page tables: tables[at] = page. Entries for one place agree. */
typedef struct oct_glue_change {
  uint32_t at, page;
} oct_glue_change;
int oct_glue_tables(struct CUstream_st *stream, uint32_t *tables, const oct_glue_change *changes,
                    uint32_t n);

/* Copies `bytes`, a multiple of 4, between device and pinned memory, quicker where both ends are
 * aligned to 16: little at a time goes quicker by a kernel than by a copy engine, which the stream
 * has to wait for twice, and behind the copies of pages that it has. */
#define OCT_GLUE_MOVE_MOST (1u << 20)
int oct_glue_move(struct CUstream_st *stream, void *to, const void *from, size_t bytes);

/* counts[vocab] becomes those of a history: ids[0, n), of which the first n_prompt are the prompt's
 * (OCT_REF_COUNT_PROMPT). */
int oct_glue_counts(struct CUstream_st *stream, uint32_t *counts, uint32_t vocab,
                    const uint32_t *ids, uint32_t n, uint32_t n_prompt);

/* Made-up weights: elements [row + i, column + j] of a matrix with `columns` columns, i < rows, j <
 * n, to out + i * pitch + j: the numbers that engine/model/files makes on the host for `key`, as
 * bfloat16 when that is how they are stored. */
typedef struct oct_glue_dummy {
  uint64_t key;
  float mean, deviation;
  bool stored_bf16;
  uint64_t columns, row, column;
  uint64_t rows, n;
  oct_cuda_type type; /* F32 or BF16 */
  void *out;
  size_t pitch; /* elements */
} oct_glue_dummy;
int oct_glue_make_dummy(struct CUstream_st *stream, const oct_glue_dummy *call);

/* For tests: a kernel that writes where no memory is, or with hang_ns > 0 does nothing for so long.
 */
int oct_glue_fault(struct CUstream_st *stream, int64_t hang_ns);

/* The codes of made-up quantised weights, as above: e4m3 to bytes with `pitch` of them to a row;
 * e2m1, or integers whose zero is 8, to packed rows (oct_cuda_matrix). */
typedef enum oct_glue_codes { OCT_GLUE_E4M3, OCT_GLUE_E2M1, OCT_GLUE_INT4 } oct_glue_codes;
typedef struct oct_glue_dummy_codes {
  uint64_t key;
  oct_glue_codes kind;
  uint64_t columns, row, column;
  uint64_t rows, n;
  void *out;
  size_t pitch;
} oct_glue_dummy_codes;
int oct_glue_make_codes(struct CUstream_st *stream, const oct_glue_dummy_codes *call);

/* out[n] = sum of x[r][n] over n_ranks arrays (at most OCT_CUDA_PEERS_MAX), in their order; out is
 * none of them. */
int oct_glue_sum(struct CUstream_st *stream, oct_cuda_type type, const void *const *x,
                 uint32_t n_ranks, size_t n, void *out);

/* *at gets the device's clock in ns. */
int oct_glue_stamp(struct CUstream_st *stream, uint64_t *at);

/* x[n] *= y[n]. */
int oct_glue_scale(struct CUstream_st *stream, float *x, const float *y, size_t n);

/* A mean over a sequence's tokens: sum[width] (from zero when `begins`) += rows [0, n) of x, in
 * their order, and out = sum / count unless out is NULL. */
typedef struct oct_glue_pool {
  oct_cuda_type type; /* F32 or BF16 */
  const void *x;
  uint32_t n, width;
  double *sum;
  bool begins;
  uint32_t count;
  float *out;
} oct_glue_pool;
int oct_glue_pool_rows(struct CUstream_st *stream, const oct_glue_pool *call);

#ifdef __cplusplus
}
#endif

#endif
