/* What the kernel benchmarks share: buffers of random numbers, timing by graphs, and the table.
 *
 * A benchmark has several sets of inputs, together larger than the L2 cache, and takes them in
 * turn. All calls of a pass are one graph; a figure is the median over passes divided by the calls.
 * Every figure stands beside the limit that this card showed in the same run: reading, or the
 * product of large matrices.
 */
#ifndef OCT_KERNELS_BENCH_BENCH_H
#define OCT_KERNELS_BENCH_BENCH_H

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bench {
  oct_cuda_queue queue;
  oct_cuda_blas *blas;
  double read_rate;                     /* bytes/s, measured */
  double bf16_rate, fp8_rate, f32_rate; /* flop/s, measured */
  FILE *csv;
  const char *only; /* names that contain this; NULL = all */
} bench;

/* One call on set `set`; nonzero: an error. */
typedef int (*bench_call)(const bench *b, void *context, unsigned set);

typedef struct bench_item {
  char name[96];
  double bytes, flops;  /* that a call has to move and do at least */
  double rate;          /* flop/s of its kind of arithmetic; 0 = only bytes count */
  unsigned sets, calls; /* calls of a pass, a multiple of sets */
  bench_call call;
  void *context;
} bench_item;

/* Sets of so many bytes that they pass the L2 cache four times over, at least 1. */
unsigned bench_sets(double bytes);
bool bench_wants(const bench *b, const char *name);
/* Times and prints an item; seconds of a call, negative when it could not run. */
double bench_run(bench *b, const bench_item *item);

/* Device memory; ends the program when there is none. */
void *bench_room(size_t bytes);
/* n random numbers of `type`, roughly normal times scale. */
void *bench_random(const bench *b, oct_cuda_type type, size_t n, float scale);
/* Random bytes, between low and high. */
void *bench_bytes(const bench *b, size_t n, unsigned low, unsigned high);
void *bench_copy(const void *from, size_t bytes);
void bench_free_all(void);
void bench_check(int error, const char *what);

/* In ceiling.cu. */
int bench_fill(const oct_cuda_queue *queue, oct_cuda_type type, void *to, size_t n, float scale,
               uint32_t seed);
int bench_fill_bytes(const oct_cuda_queue *queue, void *to, size_t n, uint32_t low, uint32_t high,
                     uint32_t seed);
int bench_read(const oct_cuda_queue *queue, const void *from, size_t bytes, float *out);

/* The benchmarks, each of a family. */
void bench_attention(bench *b);
void bench_matmul(bench *b);
void bench_small(bench *b);
void bench_step(bench *b);

#ifdef __cplusplus
}
#endif

#endif
