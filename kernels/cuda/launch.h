/* The operators of a forward pass on an NVIDIA GPU: launchers in plain C.
 *
 * Rules of every launcher, unless its comment says otherwise
 * - It enqueues work on queue->stream and returns; it allocates nothing, on the host or the device,
 *   waits for nothing, and can be captured in a graph. Arguments are read before it returns; what
 *   device pointers in them point to is read when the work runs. Launchers of different queues may
 *   be called from different threads; the current device is the queue's.
 * - Pointers are device memory, 16-byte aligned, and so are rows when their stride is a multiple of
 *   16 bytes; other strides are served by slower paths. Strides of arrays are in elements, `_bytes`
 *   in bytes. Arrays are row-major, [a, b] has b innermost. No output may overlap an input unless
 *   the comment says so.
 * - It returns 0, OCT_CUDA_UNSUPPORTED when it has no kernel for the sizes or types (nothing was
 *   enqueued), or a cudaError_t (> 0); oct_cuda_error_text() names all three. Zero rows or tokens
 *   are fine and enqueue nothing.
 * - Arithmetic is kernels.h's: sums in float32 (softmax denominators too), rounded to the output's
 *   type once. An activation is `type`: F32 or BF16, the same for all activations of a call.
 * - With OCT_CUDA_FIXED_ORDER in queue->flags, each row of a result has the same bits whatever else
 *   is in the batch, and whether its token comes alone or in a run: fixed tiles, splits, order.
 * - With OCT_CUDA_OVERLAP, a kernel may begin while its predecessor ends (programmatic dependent
 *   launch): every kernel here waits for its predecessors before it reads what they write, or
 *   writes at all.
 *
 * No type of the toolkit is named here: a stream is its opaque struct.
 */
#ifndef OCT_KERNELS_CUDA_LAUNCH_H
#define OCT_KERNELS_CUDA_LAUNCH_H

#include "kernels/cuda/launches.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OCT_CUDA_OK          0
#define OCT_CUDA_UNSUPPORTED (-1)
#define OCT_CUDA_BLAS        (-2) /* cuBLASLt refused; oct_cuda_blas_status() has its number */
#define OCT_CUDA_NONE        UINT32_MAX /* no token, slot, row … */

const char *oct_cuda_error_text(int error); /* static */

struct CUstream_st;

enum {
  OCT_CUDA_FIXED_ORDER = 1 << 0,
  OCT_CUDA_OVERLAP = 1 << 1,
};

/* Where work goes, and what is known of the device. */
typedef struct oct_cuda_queue {
  struct CUstream_st *stream;
  oct_cuda_launches *launches; /* NULL: nobody counts */
  uint32_t flags;
  uint32_t sm_count;     /* multiprocessors */
  uint32_t capability;   /* 90 for Hopper, 100, 103 … */
  uint32_t shared_bytes; /* of a block at most */
} oct_cuda_queue;

/* Fills in all fields for the current device; `launches` becomes NULL. Once per device and queue,
 * before any launcher; not in a capture. */
int oct_cuda_queue_init(oct_cuda_queue *queue, struct CUstream_st *stream, uint32_t flags);

typedef enum oct_cuda_type {
  OCT_CUDA_F32,
  OCT_CUDA_BF16,
  OCT_CUDA_FP8, /* e4m3 */
} oct_cuda_type;

size_t oct_cuda_type_bytes(oct_cuda_type type);

/* ---------------------------------------------------------------- the batch of a step */

/* Sequences of a step as the host knows them. */
typedef struct oct_cuda_seq {
  uint32_t slot;
  uint32_t first, n_tokens; /* its tokens are [first, first + n_tokens) of the batch, in order */
  uint32_t position;        /* of its first token; OCT_CUDA_NONE: slots.length[slot] */
  uint32_t ids;             /* its ids begin at ids[ids] */
  uint32_t from_slot;       /* 1: the first token is slots.last_token[slot], ids has the others */
} oct_cuda_seq;

/* What sequence slots hold between steps. */
typedef struct oct_cuda_slots {
  uint32_t *last_token; /* [n_slots] accepted last */
  uint32_t *length;     /* [n_slots] position of last_token: where the next step begins */
} oct_cuda_slots;

/* The batch as kernels read it, made by oct_cuda_prepare(). n_tokens and n_seqs are what a graph
 * was captured for; those that a step lacks are padding: token_seq OCT_CUDA_NONE, id and position
 * 0, no tokens in the sequence. Kernels skip padding tokens where they would write to a cache, and
 * write zeros to their rows of attention outputs. */
typedef struct oct_cuda_batch {
  uint32_t n_tokens, n_seqs;
  uint32_t *ids;            /* [n_tokens] */
  uint32_t *token_position; /* [n_tokens] */
  uint32_t *token_seq;      /* [n_tokens] */
  uint32_t *seq_first;      /* [n_seqs + 1] first token; the last entry is the end */
  uint32_t *seq_start;      /* [n_seqs] position of the first token */
  uint32_t *seq_slot;       /* [n_seqs] */
} oct_cuda_batch;

/* Makes the batch from seqs[count[0]] and ids, both on the device, count[0] <= batch.n_seqs;
 * sequences follow each other without gaps in the batch's tokens. */
typedef struct oct_cuda_prepare {
  const oct_cuda_batch *batch;
  const oct_cuda_seq *seqs;
  const uint32_t *count; /* [1] */
  const uint32_t *ids;
  oct_cuda_slots slots;
  uint64_t *stamp; /* gets the device's clock in ns, as the step begins; or NULL */
} oct_cuda_prepare;
int oct_cuda_prepare_batch(const oct_cuda_queue *queue, const oct_cuda_prepare *call);

/* ---------------------------------------------------------------- dense operators */

/* out[n, width] of type `type`: rows ids[i] of table [rows, width] of type table_type; an id that
 * is not below `rows` gives zeros. */
typedef struct oct_cuda_embed {
  oct_cuda_type table_type, type;
  const void *table;
  uint32_t rows, width;
  const uint32_t *ids;
  uint32_t n;
  void *out;
} oct_cuda_embed;
int oct_cuda_embed_rows(const oct_cuda_queue *queue, const oct_cuda_embed *call);

/* residual += x (when x is not NULL), then out = residual / rms(residual) * weight (when out is not
 * NULL), row by row. x and out are `type`, residual is residual_type; the sum is not rounded before
 * the norm. Without residual, out = norm of x, and out may be x. n rows; heads > 1 norms `heads`
 * runs of `width` elements in each row, one after another. weight: `type`, [width], NULL = ones.
 * narrow, or NULL: out in e4m3 as well, as oct_cuda_quantise_fp8() makes it of out, with
 * narrow_scale; heads 0 or 1.
 * parts > 0: x is float32 [parts, n, heads x width], dense, and what is added is the sum of its
 * parts in their order: a product whose inputs were shared out, say. */
typedef struct oct_cuda_norm {
  oct_cuda_type type, residual_type;
  uint32_t n, heads, width; /* heads 0 = 1 */
  const void *x;
  size_t x_stride; /* from row to row; not of parts */
  uint32_t parts;  /* 0: x is one array of `type` */
  void *residual;
  size_t residual_stride;
  const void *weight;
  float eps;
  void *out;
  size_t out_stride;
  void *narrow;        /* [n, width] */
  float *narrow_scale; /* [n] */
} oct_cuda_norm;
int oct_cuda_rms_norm(const oct_cuda_queue *queue, const oct_cuda_norm *call);

/* out[i, c] = glu(gate, up), c < inner. Not pairs: gate = x[i, c], up = x[i, inner + c]; pairs:
 * x[i, 2c] and x[i, 2c + 1]. n_device, when not NULL, is a number of rows on the device: rows from
 * it on are skipped. */
typedef struct oct_cuda_glu {
  oct_cuda_type type;
  oct_glu_params params;
  bool pairs;
  uint32_t n, inner;
  const uint32_t *n_device;
  const void *x;
  size_t x_stride;
  void *out;
  size_t out_stride;
} oct_cuda_glu;
int oct_cuda_glu_rows(const oct_cuda_queue *queue, const oct_cuda_glu *call);

/* y[i, c] += bias[c], or y[i, c] += x[i, c] when x is not NULL (bias is then ignored), or with
 * row_gate also given y[i, c] += sigmoid(row_gate[i]) x[i, c] (float32 logits, qwen2-moe's switch).
 * y has y_type, x and bias have `type`. */
typedef struct oct_cuda_add {
  oct_cuda_type type, y_type;
  uint32_t n, width;
  const void *bias, *x;
  size_t x_stride;
  const float *row_gate;
  void *y;
  size_t y_stride;
} oct_cuda_add;
int oct_cuda_add_rows(const oct_cuda_queue *queue, const oct_cuda_add *call);

/* out[i] = x[rows[i]], n rows of `width` elements; rows[i] OCT_CUDA_NONE gives zeros. */
typedef struct oct_cuda_gather {
  oct_cuda_type type;
  uint32_t n, width;
  const uint32_t *rows;
  const void *x;
  size_t x_stride;
  void *out;
  size_t out_stride;
} oct_cuda_gather;
int oct_cuda_gather_rows(const oct_cuda_queue *queue, const oct_cuda_gather *call);

/* n elements from one type to another; FP8 values are clamped to +-448. */
int oct_cuda_convert(const oct_cuda_queue *queue, oct_cuda_type from_type, const void *from,
                     oct_cuda_type to_type, void *to, size_t n);

/* ---------------------------------------------------------------- matrix products */

typedef enum oct_cuda_format {
  OCT_CUDA_MATRIX_F32,
  OCT_CUDA_MATRIX_BF16,
  OCT_CUDA_MATRIX_FP8,       /* e4m3; scales: float[rows] */
  OCT_CUDA_MATRIX_FP8_BLOCK, /* e4m3; scales: float[ceil(rows / 128), ceil(columns / 128)] */
  OCT_CUDA_MATRIX_MXFP4,     /* e2m1 codes, packed; scales: e8m0 bytes [chunks, rows, 4] */
  OCT_CUDA_MATRIX_INT4,      /* codes of four bits, packed: (code - zero) * scale; scales: words
                                [chunks, rows, 128 / group] of a float16, with the zero above it */
  OCT_CUDA_MATRIX_MXFP4_ROWS, /* MXFP4 with bytes [rows, round_up(columns, 128) / 2] of codes in
                                the order of inputs, low first: for scaled.h alone */
} oct_cuda_format;

/* A weight [rows, columns] = [outputs, inputs], or `n` of them one after another (experts), scales
 * likewise.
 *
 * Packed codes are in chunks of 128 inputs, the last one filled up with zero codes and zero scales.
 * A chunk is 64 bytes, 4 runs of 4 words: word j of run t has the pairs of inputs 32 j + 8 i + 2 t
 * and the next, i < 4, the first in its lower half and the second in its upper; integers' codes are
 * 4 i bits up, e2m1's are spread over the half (codes.cuh). oct_cuda_pack() makes them. Columns of
 * MXFP4 are a multiple of 32, those of INT4 of its group. A scale of MXFP4 is at most 2^33. */
typedef struct oct_cuda_matrix {
  oct_cuda_format format;
  uint32_t rows, columns;
  uint32_t group; /* INT4: inputs that share a scale: 32, 64 or 128 */
  const void *data;
  const void *scales;
} oct_cuda_matrix;

size_t oct_cuda_matrix_bytes(const oct_cuda_matrix *matrix); /* of one's data */
size_t oct_cuda_matrix_scale_bytes(const oct_cuda_matrix *matrix);

/* Codes of four bits as checkpoints store them, to packed rows. */
typedef enum oct_cuda_codes {
  OCT_CUDA_CODES_ROWS, /* bytes [rows, columns / 2], the even column low */
  OCT_CUDA_CODES_AWQ,  /* words [columns, rows / 8]; their places have rows 0 2 4 6 1 3 5 7 */
  OCT_CUDA_CODES_GPTQ, /* words [columns / 8, rows], the first column lowest */
} oct_cuda_codes;
typedef struct oct_cuda_packing {
  oct_cuda_codes kind;
  bool floats;            /* e2m1, not integers */
  uint32_t rows, columns; /* columns, and rows of AWQ, are multiples of 8 */
  const void *codes;
  size_t stride; /* of what is stored in rows, in bytes (ROWS) or words */
  void *data;    /* of the first of the packed rows */
} oct_cuda_packing;
int oct_cuda_pack(const oct_cuda_queue *queue, const oct_cuda_packing *call);

/* cuBLASLt and its plans, one per queue's thread and device. */
typedef struct oct_cuda_blas oct_cuda_blas;

#define OCT_CUDA_BLAS_WORKSPACE (32u << 20) /* bytes that serve every product */

/* Life cycle: the only functions here that allocate (host memory). The workspace is the caller's
 * and is used in the order of one stream. NULL: cuBLASLt cannot be used. */
oct_cuda_blas *oct_cuda_blas_new(void *workspace, size_t workspace_bytes);
void oct_cuda_blas_free(oct_cuda_blas *blas); /* accepts NULL */
/* cublasStatus_t of the last OCT_CUDA_BLAS. */
int oct_cuda_blas_status(const oct_cuda_blas *blas);

typedef enum oct_cuda_path {
  OCT_CUDA_PATH_AUTO,   /* the fastest known */
  OCT_CUDA_PATH_BLAS,   /* cuBLASLt: F32 and BF16 weights; FP8 when x is FP8 */
  OCT_CUDA_PATH_SKINNY, /* own kernel for few rows (m <= 64): every format */
  OCT_CUDA_PATH_TILE,   /* own kernel of fixed tiles: every format; with FIXED_ORDER */
  OCT_CUDA_PATH_STREAM, /* own kernel for few rows (m <= 32) on Hopper: BF16 weights whose columns
                           32 divides, FP8 weights whose columns 64 divides */
  OCT_CUDA_PATH_WIDE,   /* own kernel for many rows on Hopper: BF16 and FP8 weights */
  OCT_CUDA_PATH_CODES,  /* own kernel for any rows on Hopper: weights of eight and four bits */
  OCT_CUDA_PATH_NARROW, /* own kernel for few rows on Hopper: BF16; with FIXED_ORDER up to 64;
                           batch: parts of one weight's inputs, y float32 */
} oct_cuda_path;

/* y[i, r] = sum over c of x[i, c] w[r, c] (+ bias[r]) (+ y[i, r] with accumulate), for m rows.
 * x is x_type: F32 (weights F32), BF16 (all weights but F32), or FP8 (weights FP8, with x_scale[m]
 * on the device, of rows). y is y_type: F32 or BF16. bias: F32 for F32 weights, else BF16, or NULL.
 * batch > 1: that many products at the given distances (of w in elements; F32 and BF16 weights
 * only), without a bias. transposed: w is read as [columns, rows], y[i, c] = sum over r of x[i, r]
 * w[r, c], of F32 and BF16 weights, with y of `columns` columns. w_stride 0 = columns, else the
 * distance of rows (F32 and BF16). F32 products are float32 throughout (no tf32).
 * glu (paths STREAM, CODES and NARROW alone, else UNSUPPORTED): rows are gates, then ups, and
 * y[i, r] = glu(gate, up) has rows / 2 columns.
 * The first call with a shape makes its plan (host memory), which is kept: make each shape once
 * before a capture. */
typedef struct oct_cuda_matmul {
  oct_cuda_matrix weight;
  size_t w_stride;
  bool transposed, accumulate;
  oct_cuda_path path;
  oct_cuda_type x_type, y_type;
  uint32_t m;
  const void *x;
  size_t x_stride;
  const float *x_scale;
  const void *bias;
  const oct_glu_params *glu;
  void *y;
  size_t y_stride;
  uint32_t batch; /* 0 = 1 */
  size_t x_batch, w_batch, y_batch;
} oct_cuda_matmul;
int oct_cuda_multiply(const oct_cuda_queue *queue, oct_cuda_blas *blas,
                      const oct_cuda_matmul *call);
/* Which path AUTO takes: for counters. */
oct_cuda_path oct_cuda_matmul_path(const oct_cuda_queue *queue, const oct_cuda_matmul *call);

/* x[n, width] to e4m3, each row over its scale, max |x[i]| / 448 and at least 1e-12. */
typedef struct oct_cuda_quantise {
  oct_cuda_type type;
  uint32_t n, width;
  const void *x;
  size_t x_stride;
  float *scale; /* [n] */
  void *out;    /* [n, width] */
} oct_cuda_quantise;
int oct_cuda_quantise_fp8(const oct_cuda_queue *queue, const oct_cuda_quantise *call);

/* ---------------------------------------------------------------- cache */

/* One layer of a page pool, laid out as oct_kv_layer: a page is K[heads, tokens, width] then V
 * likewise, or the rows [tokens, width] of latent attention (heads 1, no V). page_bytes is the
 * distance of pages and a multiple of 16, as is base; page_tokens is a power of two, 8 to 256. FP8:
 * stored value = value / scale; scales are per head, [n_heads] float32, NULL = ones. */
typedef struct oct_cuda_kv {
  oct_cuda_type type;
  void *base;
  size_t page_bytes;
  uint32_t page_tokens, n_heads, width;
  bool has_values;
  const float *k_scale, *v_scale;
} oct_cuda_kv;

/* Page tables of slots: entry [slot * stride + i] is the page of tokens [i * page_tokens, …).
 * Entries below a window's first live page are not read. */
typedef struct oct_cuda_tables {
  const uint32_t *pages;
  size_t stride;
} oct_cuda_tables;

/* Norms (q_norm, k_norm [width] of `type`, or NULL), rotates and stores a batch's q, k, v: q in
 * place, k and v to the pages. q[n_tokens, n_heads, width], k and v [n_tokens, kv.n_heads, width],
 * rows `*_stride` apart (one buffer of all three is the usual case). angles[positions, rope_dim]:
 * for each position cosines then sines, as oct_ref_rope_angles() makes them; rope_dim 0: none. */
typedef struct oct_cuda_rope_store {
  oct_cuda_type type;
  const oct_cuda_batch *batch;
  oct_cuda_kv kv;
  oct_cuda_tables tables;
  uint32_t n_heads;
  void *q;
  const void *k, *v;
  size_t q_stride, k_stride, v_stride;
  const void *q_norm, *k_norm;
  float eps;
  const float *angles;
  uint32_t rope_dim;
  bool interleaved;
  const uint32_t *place; /* [n_tokens] of each token in the slot's pages, OCT_CUDA_NONE: nowhere;
                             NULL: token_position */
} oct_cuda_rope_store;
int oct_cuda_rope_and_store(const oct_cuda_queue *queue, const oct_cuda_rope_store *call);

/* Latent attention's: latents[n_tokens, lora + rope] are normed over lora (weight `norm`), rotated
 * over rope and stored; of q[n_tokens, n_heads, nope + rope] the rope part is rotated, in place
 * and, when absorbed is not NULL, into absorbed[n_tokens, n_heads, lora + rope] behind lora. */
typedef struct oct_cuda_mla_store {
  oct_cuda_type type;
  const oct_cuda_batch *batch;
  oct_cuda_kv kv; /* width lora + rope */
  oct_cuda_tables tables;
  uint32_t n_heads, lora, nope, rope;
  const void *latents;
  size_t latents_stride;
  void *q;
  size_t q_stride; /* of tokens */
  void *absorbed;
  const void *norm;
  float eps;
  const float *angles; /* NULL: no rotation */
  bool interleaved;
  const uint32_t *place; /* [n_tokens] of each token's latents; NULL: token_position */
} oct_cuda_mla_store;
/* A place OCT_CUDA_NONE: the latents are not stored. */
int oct_cuda_mla_norm_and_store(const oct_cuda_queue *queue, const oct_cuda_mla_store *call);

/* Copies n pages of a pool, from[i] to to[i], page_bytes each of the first `bytes`. */
int oct_cuda_copy_pages(const oct_cuda_queue *queue, void *base, size_t page_bytes, size_t bytes,
                        const uint32_t *from, const uint32_t *to, uint32_t n);

/* ---------------------------------------------------------------- attention */

typedef enum oct_cuda_attention_path {
  OCT_CUDA_ATTENTION_AUTO,
  OCT_CUDA_ATTENTION_PLAIN,  /* any head size and type */
  OCT_CUDA_ATTENTION_DECODE, /* split over the context, heads of a group together on tensor cores */
  OCT_CUDA_ATTENTION_PREFILL, /* tiles of queries on tensor cores */
  OCT_CUDA_ATTENTION_HOPPER,  /* the same by Hopper's instructions: head sizes 64 and 128 */
} oct_cuda_attention_path;

/* Causal grouped-query attention of a batch over its pages, which hold the batch's own tokens.
 * q and out are [n_tokens, n_heads, width], rows of tokens `*_stride` apart. Query token t of a
 * sequence sees the positions (p - window, p], p its position; window 0 = all. Scores are
 * s = soft_cap * tanh(scale * qk / soft_cap) when soft_cap > 0. sinks [n_heads] float32 or NULL.
 * A batch may mix sequences of one token and of many; max_queries is the most tokens of a sequence
 * and max_context the most positions seen (both bounds: a graph's, say). Sequences of one token
 * take the DECODE kernel, the others PREFILL or HOPPER, in two launches when both occur: n_decode
 * says that sequences [0, n_decode) have at most one token (put them first), the rest may have any
 * number. With a fixed order all of them take PREFILL or HOPPER. */
typedef struct oct_cuda_attention {
  oct_cuda_type type;
  oct_cuda_attention_path path;
  const oct_cuda_batch *batch;
  uint32_t n_decode;
  uint32_t max_queries, max_context;
  oct_cuda_kv kv;
  oct_cuda_tables tables;
  uint32_t n_heads, window;
  float scale, soft_cap;
  const float *sinks;
  const void *q;
  void *out;
  size_t q_stride, out_stride;
  /* Not NULL, in a batch of single tokens: the kernel first does oct_cuda_rope_and_store()'s work
   * with this, but for q, which stays as it is; q and batch are the same in both. Only where
   * oct_cuda_attention_can_store() says so; else UNSUPPORTED. */
  const oct_cuda_rope_store *store;
  /* The batch, the tables and the cache but for the batch's own tokens were written by kernels that
   * have ended before the predecessor began: they are read while it runs. So it is where
   * oct_cuda_embed_rows() comes in between, which lets no successor begin before its own
   * predecessors have ended. */
  bool settled;
  void *workspace; /* zeroed once before its first use; one queue's at a time */
  size_t workspace_bytes;
} oct_cuda_attention;
/* Bytes of workspace that do for the call and for any whose sequences, tokens, max_queries and
 * max_context are no more, whatever its n_decode; 0 is possible. Needs no pointers. */
size_t oct_cuda_attention_workspace(const oct_cuda_queue *queue, const oct_cuda_attention *call);
/* Bytes more that let a call copy keys and values of long contexts to larger pages first, which are
 * read faster; 0: it would not. A call does so when its workspace has room for it; bits stay. */
size_t oct_cuda_attention_gather(const oct_cuda_queue *queue, const oct_cuda_attention *call);
int oct_cuda_attend(const oct_cuda_queue *queue, const oct_cuda_attention *call);
bool oct_cuda_attention_can_store(const oct_cuda_queue *queue, const oct_cuda_attention *call);
/* Which kernels the call takes, for counters: bits 1 << oct_cuda_attention_path. */
uint32_t oct_cuda_attention_paths(const oct_cuda_queue *queue, const oct_cuda_attention *call);

/* Latent attention in the absorbed form: q[n_tokens, n_heads, lora + rope] to latent outputs
 * out[n_tokens, n_heads, lora], dense rows. Absorption is a batched oct_cuda_multiply() before,
 * with the values' product after. With a fixed order DECODE takes runs of tokens too, each token
 * for itself. */
typedef struct oct_cuda_mla {
  oct_cuda_type type;
  oct_cuda_attention_path path;
  const oct_cuda_batch *batch;
  uint32_t n_decode, max_queries, max_context;
  oct_cuda_kv kv;
  oct_cuda_tables tables;
  uint32_t n_heads, lora, rope;
  float scale;
  const void *q;
  void *out;
  void *workspace;
  size_t workspace_bytes;
} oct_cuda_mla;
/* As oct_cuda_attention_workspace(). */
size_t oct_cuda_mla_workspace(const oct_cuda_queue *queue, const oct_cuda_mla *call);
int oct_cuda_mla_attend(const oct_cuda_queue *queue, const oct_cuda_mla *call);
/* As oct_cuda_attention_paths(): HOPPER and DECODE are kernels for 512 + 64 in bf16, DECODE for any
 * machine; both take prompts too. */
uint32_t oct_cuda_mla_paths(const oct_cuda_queue *queue, const oct_cuda_mla *call);

/* Decode context parallelism: the members of a group each keep page_tokens of every page's members
 * * page_tokens tokens, member 0 the first. Where each token of a batch is in this member's own
 * sequence of tokens (OCT_CUDA_NONE: not here), and how many of that it sees, itself included. */
int oct_cuda_context_places(const oct_cuda_queue *queue, const oct_cuda_batch *batch,
                            uint32_t page_tokens, uint32_t members, uint32_t member,
                            uint32_t *place, uint32_t *visible);
/* Queries of n tokens and of all members' heads, q[members, n, n_heads, kv.width], over the tokens
 * that are here: out[members, n, n_heads, 2 + value_width] float32: a base (-inf: none was seen),
 * the sum of exponentials of scores less it, and the values' sum weighted by them. kv has one head
 * and values as wide as its keys; or none, and the first value_width elements of a key (a latent,
 * for absorbed queries) are the value. */
typedef struct oct_cuda_context_attention {
  oct_cuda_type type;
  oct_cuda_attention_path path; /* AUTO, PLAIN; of latents HOPPER, DECODE; else DECODE */
  uint32_t n, members;
  const uint32_t *token_seq, *visible; /* [n] */
  const uint32_t *seq_slot;
  oct_cuda_kv kv;
  oct_cuda_tables tables;
  uint32_t n_heads, value_width;
  float scale;
  const void *q;
  float *out;
  uint32_t max_visible; /* a bound of visible[]; 0: the plain kernel serves */
  void *workspace;      /* as oct_cuda_attention's; too small: the plain kernel serves */
  size_t workspace_bytes;
} oct_cuda_context_attention;
/* As oct_cuda_attention_workspace() and _paths(). */
size_t oct_cuda_context_workspace(const oct_cuda_queue *queue,
                                  const oct_cuda_context_attention *call);
uint32_t oct_cuda_context_paths(const oct_cuda_queue *queue,
                                const oct_cuda_context_attention *call);
int oct_cuda_context_attend(const oct_cuda_queue *queue, const oct_cuda_context_attention *call);
/* From what every member found of the same rows, parts[members, rows, 2 + value_width]: out[rows,
 * value_width]. */
int oct_cuda_context_merge(const oct_cuda_queue *queue, oct_cuda_type type, const float *parts,
                           uint32_t members, uint32_t rows, uint32_t value_width, void *out);

/* The expanded form, for prompts. Latents of positions [0, n) of one slot to contiguous rows
 * out[n, lora + rope] of `type`; they are multiplied by kv_b to kv[n, n_heads, nope + value]; then
 * queries attend to them: the m tokens of one sequence whose first has position `position`,
 * q[m, n_heads, nope + rope] to out[m, n_heads, value], rows of tokens *_stride apart. */
int oct_cuda_mla_gather(const oct_cuda_queue *queue, const oct_cuda_kv *kv, const uint32_t *pages,
                        uint32_t n, oct_cuda_type type, void *out);
typedef struct oct_cuda_mla_expanded {
  oct_cuda_type type;
  uint32_t n_heads, lora, nope, rope, value;
  uint32_t m, position;
  float scale;
  const void *q, *latents, *kv; /* n = position + m rows */
  size_t q_stride;
  void *out;
  size_t out_stride;
  /* A long context in parts: latents and kv have n_keys rows, of positions first_key and on, at
   * most `position` the first of them (0: all), and state[m, n_heads, 2 + value] float32 carries
   * what parts came to from call to call, in any order: the first begins, the last ends and writes
   * out. NULL: there is one part. */
  uint32_t first_key, n_keys;
  float *state;
  bool begins, ends;
} oct_cuda_mla_expanded;
/* As oct_cuda_attention_paths(): HOPPER takes bf16 of 128 + 64 and 128. */
uint32_t oct_cuda_mla_expanded_paths(const oct_cuda_queue *queue,
                                     const oct_cuda_mla_expanded *call);
int oct_cuda_mla_attend_expanded(const oct_cuda_queue *queue, const oct_cuda_mla_expanded *call);

/* ---------------------------------------------------------------- gated norm of heads */

/* out[i, h] = rms norm of x[i, h] (weight [width], eps) * sigmoid(gate[i, h]), per head; out may be
 * x. gate NULL: sigmoid of zero. first, when not NULL, is on the device: rows below it are left. */
typedef struct oct_cuda_gated_norm {
  oct_cuda_type type;
  uint32_t n, heads, width;
  const uint32_t *first;
  const void *x, *gate, *weight;
  size_t x_stride, gate_stride;
  float eps;
  void *out;
  size_t out_stride;
} oct_cuda_gated_norm;
int oct_cuda_gated_rms_norm(const oct_cuda_queue *queue, const oct_cuda_gated_norm *call);

/* x[i, c] *= sigmoid(gate[i, c]). */
typedef struct oct_cuda_gate {
  oct_cuda_type type;
  uint32_t n, width;
  void *x;
  const void *gate;
  size_t x_stride, gate_stride;
} oct_cuda_gate;
int oct_cuda_sigmoid_gate(const oct_cuda_queue *queue, const oct_cuda_gate *call);

/* ---------------------------------------------------------------- experts */

#define OCT_CUDA_EXPERTS_MAX 1024
#define OCT_CUDA_TOP_K_MAX   32

/* oct_ref_route() for n rows of float32 logits [n, n_experts]; routing.bias is on the device.
 * experts[n, top_k], weights[n, top_k]. token_seq (or NULL): rows with OCT_CUDA_NONE are padding
 * and choose no expert: OCT_CUDA_NONE with weight 0. */
typedef struct oct_cuda_route {
  oct_routing routing;
  uint32_t n;
  const float *logits;
  const uint32_t *token_seq;
  uint32_t *experts;
  float *weights;
} oct_cuda_route;
int oct_cuda_route_tokens(const oct_cuda_queue *queue, const oct_cuda_route *call);

/* Pairs (token, k) sorted by expert. Only experts [first_expert, first_expert + n_local) are this
 * rank's; pairs of others, and of no expert, come nowhere. Pair p = token * top_k + k. */
typedef struct oct_cuda_pairs {
  uint32_t n, top_k, n_experts, first_expert, n_local;
  const uint32_t *experts; /* [n, top_k] */
  uint32_t *starts; /* [n_local + 1] first sorted row of each local expert; the last = pairs here */
  uint32_t *pair_of; /* [n * top_k] sorted row -> pair */
  uint32_t *row_of;  /* [n * top_k] pair -> sorted row, OCT_CUDA_NONE: not here */
  uint32_t *counts;  /* [n_experts] += pairs of each expert of this batch, or NULL */
} oct_cuda_pairs;
int oct_cuda_sort_pairs(const oct_cuda_queue *queue, const oct_cuda_pairs *call);

/* y[row] = w[expert of row] x[..] (+ bias[expert]) for the sorted rows. weight: n_local matrices;
 * slots (or NULL) maps a local expert to its matrix, of n_matrices. gather: x's row of sorted row r
 * is pair_of[r] / top_k (x[n, columns]), else r. bias [n_local, rows] of `type`, or NULL. glu as of
 * oct_cuda_matmul, where oct_cuda_expert_gates() says so, else UNSUPPORTED. */
typedef struct oct_cuda_expert_matmul {
  oct_cuda_type type;   /* of x and bias: F32 with F32 weights, else BF16 */
  oct_cuda_type y_type; /* F32; BF16 too unless `type` is F32 */
  oct_cuda_matrix weight;
  const uint32_t *slots;
  uint32_t n_matrices; /* with slots */
  oct_cuda_path path;  /* not BLAS */
  const oct_cuda_pairs *pairs;
  bool gather;
  const void *bias;
  const oct_glu_params *glu;
  const void *x;
  size_t x_stride;
  void *y;
  size_t y_stride;
} oct_cuda_expert_matmul;
int oct_cuda_expert_multiply(const oct_cuda_queue *queue, const oct_cuda_expert_matmul *call);
/* Whether the call, as it is without glu, may have one. */
bool oct_cuda_expert_gates(const oct_cuda_queue *queue, const oct_cuda_expert_matmul *call);

/* out[t] = sum over k of weights[t, k] y[row_of[t, k]], pairs not here left out, in the order of k;
 * `add`: out[t] += that. y is `type`, out is out_type. With norm ([width] of out_type), out[t] is
 * the rms norm of the sum instead, not rounded in between; widths up to 8192, and no `add`. */
typedef struct oct_cuda_combine {
  oct_cuda_type type, out_type;
  const oct_cuda_pairs *pairs;
  const float *weights;
  uint32_t width;
  const void *y;
  size_t y_stride;
  bool add;
  const void *norm; /* or NULL */
  float norm_eps;
  void *out;
  size_t out_stride;
} oct_cuda_combine;
int oct_cuda_combine_pairs(const oct_cuda_queue *queue, const oct_cuda_combine *call);

/* ---------------------------------------------------------------- sampling */

/* What one row of logits is sampled with; on the device. */
typedef struct oct_cuda_sample_row {
  oct_sampling sampling;
  uint32_t seq;         /* the row belongs to this sequence of the batch; OCT_CUDA_NONE: padding */
  uint32_t token;       /* index in the batch of the token whose logits these are */
  uint32_t *counts;     /* [vocab] as oct_sample_input.counts, or NULL */
  const uint64_t *mask; /* or NULL */
  const oct_logit_bias *biases;
  uint32_t n_biases;
  uint32_t n_logprobs;        /* for oct_cuda_logprobs_rows() */
  const uint32_t *suppressed; /* as oct_sample_input.suppressed */
  uint32_t n_suppressed;
} oct_cuda_sample_row;

/* oct_ref_sample() of n rows of float32 logits: the token at position token_position[row.token] + 1
 * to tokens[n] (OCT_REF_NO_TOKEN likewise, and for padding). Equal to the reference but where two
 * candidates differ by the rounding of a float32 exponential. workspace:
 * oct_cuda_sample_workspace() bytes. */
typedef struct oct_cuda_sample {
  uint32_t n, vocab;
  const float *logits;
  size_t stride;
  const oct_cuda_batch *batch;
  const oct_cuda_sample_row *rows;
  uint32_t *tokens;
  void *workspace;
} oct_cuda_sample;
size_t oct_cuda_sample_workspace(uint32_t n, uint32_t vocab);
int oct_cuda_sample_rows(const oct_cuda_queue *queue, const oct_cuda_sample *call);

/* oct_ref_logprobs() of n rows: out[n, 1 + most], of which row i has 1 + rows[i].n_logprobs entries
 * (n_logprobs <= most <= 128), for the tokens that were sampled. */
typedef struct oct_cuda_logprobs {
  uint32_t n, vocab, most;
  const float *logits;
  size_t stride;
  const oct_cuda_sample_row *rows;
  const uint32_t *tokens;
  oct_token_logprob *out;
} oct_cuda_logprobs;
int oct_cuda_logprobs_rows(const oct_cuda_queue *queue, const oct_cuda_logprobs *call);

/* Takes sampled tokens into the slots. Rows [seq_rows[s], seq_rows[s + 1]) are sequence s's, for
 * its last tokens, in order. Of one row the token is accepted; of more (drafts were verified) rows
 * are accepted up to and with the first whose token is not the batch's next id: accepted[s] of
 * them, 0 without rows or when the first has no token. The slot's last_token and length follow;
 * rows' counts get the accepted tokens. n_seqs entries. */
typedef struct oct_cuda_accept {
  const oct_cuda_batch *batch;
  const oct_cuda_sample_row *rows;
  const uint32_t *seq_rows; /* [n_seqs + 1] */
  const uint32_t *tokens;
  uint32_t vocab;
  uint32_t *accepted; /* [n_seqs] */
  oct_cuda_slots slots;
  uint64_t *stamp; /* gets the device's clock in ns, as the step ends; or NULL */
} oct_cuda_accept;
int oct_cuda_accept_tokens(const oct_cuda_queue *queue, const oct_cuda_accept *call);

#ifdef __cplusplus
}
#endif

#endif
