/* What the kernel benchmarks and `octet calibrate` share: buffers of random numbers, timing by
 * graphs, the operators that can be timed, and the table.
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

#include "kernels/cuda/peers.h"

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
  bool quiet;       /* nothing is printed */
  int passes;       /* 0 = 15 */
  int long_passes;  /* where one takes more than 20 ms; 0 = passes */
  void *workspace;  /* of blas */
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

/* Named in messages: "bench-cuda" unless set. */
extern const char *bench_program;

/* The current device: its queue and cuBLASLt (b->blas NULL: cannot be used). */
void bench_open(bench *b);
void bench_close(bench *b);
/* Its limits: reading 4 GiB of random bytes, bf16 products of random matrices of side 8192 (0: they
 * cannot be made); then those in fp8 and float32 too. No memory stays taken. */
void bench_limits(bench *b);
void bench_ceilings(bench *b);

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

/* ---- operators: each makes its inputs, times calls and frees; seconds of a call, negative when
 * there is no kernel for it or b->only leaves it out. */

/* n sequences of n_tokens tokens that end at `context`. */
typedef struct bench_attention_shape {
  const char *name;
  uint32_t heads, kv_heads, width, n, n_tokens, context;
  oct_cuda_type cache;
  uint32_t page_tokens; /* 0 = 16 */
  bool gathers;         /* the workspace has room for larger pages */
} bench_attention_shape;
double bench_attend(bench *b, const bench_attention_shape *shape);
/* Absorbed latent attention 512 + 64, one token of n sequences at `context`. */
double bench_latents(bench *b, uint32_t heads, uint32_t n, uint32_t context, oct_cuda_type cache);
/* m rows times [rows, columns]. */
double bench_product(bench *b, const char *shape, uint32_t m, uint32_t rows, uint32_t columns,
                     oct_cuda_format format, oct_cuda_path path);
double bench_experts(bench *b, uint32_t n, uint32_t n_experts, uint32_t top_k, uint32_t rows,
                     uint32_t columns, oct_cuda_format format);
/* All that routed experts take once tokens have chosen: sorting, gate and up, activation, down,
 * combining; n tokens, uniform choices. *distinct: experts chosen. */
double bench_expert_block(bench *b, uint32_t n, uint32_t n_experts, uint32_t top_k, uint32_t hidden,
                          uint32_t inner, oct_cuda_format format, uint32_t *distinct);
/* Delta attention of n sequences of `each` tokens; chunks: many tokens at once, where there is such
 * a kernel. For one token each, the copy of their states is timed and printed too. */
double bench_delta_tokens(bench *b, uint32_t heads, uint32_t n, uint32_t each, bool chunks);
double bench_norm(bench *b, uint32_t n, uint32_t width);
double bench_glu(bench *b, uint32_t n, uint32_t inner);
double bench_rope(bench *b, uint32_t n, uint32_t heads, uint32_t kv_heads, uint32_t width);
double bench_sample(bench *b, const char *how, uint32_t n, uint32_t vocab, oct_sampling sampling);
double bench_route(bench *b, uint32_t n, uint32_t n_experts, uint32_t top_k);
/* Of n_blocks blocks and the stream, with the norm behind. */
double bench_residual_mix(bench *b, uint32_t n, uint32_t width, uint32_t n_blocks);

/* ---- over GPUs: the first n of the machine. FALSE: there are fewer, or some cannot reach others'
 * memory. Between the two, seconds of a call of `bytes` (a power of two from 1024 to
 * BENCH_COLLECTIVE_MAX: what is summed, what every rank has gathered, what is scattered) in a
 * graph; negative: there is no such kernel, or no NCCL. */
typedef enum bench_collective_kind {
  BENCH_SUM,
  BENCH_SUM_NORM_FUSED, /* residual and norm in the same kernel: not by NCCL */
  BENCH_SUM_NORM,       /* in a kernel behind it */
  BENCH_GATHER,         /* these by NCCL only */
  BENCH_SCATTER,
  BENCH_ALL_TO_ALL,
  BENCH_COLUMNS, /* columns of every rank, whole rows on all: not by NCCL */
} bench_collective_kind;
#define BENCH_COLLECTIVE_MAX ((size_t)64 << 20)
bool bench_group_open(unsigned n);
double bench_collective(bench_collective_kind kind, oct_cuda_reduce_way way, size_t bytes);
void bench_group_close(void);

/* The benchmarks, each of a family. */
void bench_attention(bench *b);
void bench_matmul(bench *b);
void bench_choices(bench *b);
void bench_delta(bench *b);
void bench_codes(bench *b);
void bench_small(bench *b);
void bench_hybrid(bench *b);
void bench_step(bench *b);
void bench_collectives(bench *b);
void bench_host_copies(bench *b); /* in machine.c */

#ifdef __cplusplus
}
#endif

#endif
