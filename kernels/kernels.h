/* The operators of a forward pass, as plain functions on arrays: what every backend that computes
 * has to compute, stated once. kernels/reference/ has them in C; CUDA kernels are compared with
 * these, operator by operator. Plain C without GLib, no allocation, no state, no threads.
 *
 * Arithmetic. Values are float32, sums are accumulated in float32 (softmax denominators in float64)
 * in an order that depends on the operator's sizes alone. So each row of a result has the same bits
 * whatever else is in the batch, in whichever chunks a prompt came, wherever its pages lie, and
 * however a caller divides rows or heads among threads. The inner loops exist for x86-64 with
 * AVX-512, with AVX2 and FMA, and for any machine, and the first that the processor has is used:
 * results are equal bit by bit on one machine, and differ by rounding between these kinds.
 *
 * Arrays are row-major, [a, b] has b innermost. No argument may overlap an output unless its
 * comment says so. Sizes are the caller's promise: nothing is checked. `scratch` is the caller's,
 * of the size that the operator's comment gives in floats, and never shared between threads.
 */
#ifndef OCT_KERNELS_H
#define OCT_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---------------------------------------------------------------- weights */

typedef enum oct_matrix_format {
  OCT_MATRIX_F32,
  OCT_MATRIX_BF16,
  OCT_MATRIX_ROWS, /* any other storage: read() gives rows as float32 */
} oct_matrix_format;

/* A weight [rows, columns] = [outputs, inputs]; a vector is one row. */
typedef struct oct_matrix {
  oct_matrix_format format;
  uint32_t rows, columns;
  const void *data; /* [rows, columns]; for ROWS whatever read() wants */
  /* ROWS: writes rows [first, first + n) to out[n, columns]. Any thread; equal bits each time. */
  void (*read)(const void *data, uint32_t first, uint32_t n, float *out);
} oct_matrix;

/* Rows [first, first + n) as float32: out[n, columns]. */
void oct_ref_rows(const oct_matrix *matrix, uint32_t first, uint32_t n, float *out);

/* ---------------------------------------------------------------- dense operators */

/* out[n, columns]: row ids[i] of the table, each below its rows. */
void oct_ref_embed(const oct_matrix *table, const uint32_t *ids, uint32_t n, float *out);

/* out = x / sqrt(mean(x^2) + eps) * weight, row by row; x and out [n, width] with rows `stride`
 * apart, out may be x. weight NULL = ones. */
void oct_ref_rms_norm(const float *x, const float *weight, uint32_t n, uint32_t width,
                      size_t stride, float eps, float *out);

#define OCT_REF_MATMUL_ROWS 16 /* rows of a weight that are expanded at a time */

/* y[i, r] = sum over c of x[i, c] w[r, c] (+ bias[r]) for m rows of x and the rows r in
 * [first, first + n) of the weight, written to y + i * y_stride + r - y_first: callers divide r
 * among threads. bias is [rows] or NULL. Scratch: OCT_REF_MATMUL_ROWS * columns. */
typedef struct oct_matmul {
  const oct_matrix *weight;
  const float *bias;
  const float *x;
  size_t x_stride;
  uint32_t m;
  float *y;
  size_t y_stride;
  uint32_t y_first; /* the row that y's first column is for: 0 unless y is for some rows only */
} oct_matmul;
void oct_ref_matmul(const oct_matmul *call, uint32_t first, uint32_t n, float *scratch);

/* The transpose, of rows [first, first + n): y[i, c] = sum over r of x[i, r - first] w[r, c].
 * Scratch as above. */
void oct_ref_matmul_transposed(const oct_matmul *call, uint32_t first, uint32_t n, float *scratch);

/* y += x, n elements. */
void oct_ref_add(float *y, const float *x, size_t n);

typedef enum oct_glu {
  OCT_GLU_SWIGLU,  /* silu(gate) up */
  OCT_GLU_CLAMPED, /* gpt-oss: gate <= limit, |up| <= limit: gate sigmoid(alpha gate) (up + 1) */
  OCT_GLU_SITU,    /* Kimi K3: alpha tanh(gate / alpha) sigmoid(gate) limit tanh(up / limit) */
} oct_glu;

typedef struct oct_glu_params {
  oct_glu kind;
  float alpha, limit; /* CLAMPED: 1.702 and 7 in gpt-oss; SITU: 4 and 25 in Kimi K3 */
} oct_glu_params;

/* out[i] from gate[i * step] and up[i * step]: 1 for arrays, 2 for pairs (up = gate + 1). out
 * may be gate. */
void oct_ref_glu(const oct_glu_params *params, const float *gate, const float *up, size_t step,
                 uint32_t n, float *out);

/* MXFP8 of x[n], n a multiple of 32: the exponent, + 127, of the least power of two by which the
 * largest of every 32 is at most 448 (-127 at least) to scales[n / 32], and each x as e4m3 over
 * that power rounds it, times it again, to out[n]. */
void oct_ref_quantise_mx(const float *x, size_t n, float *out, uint8_t *scales);

/* Attention residuals of one token (Kimi K3): out[width] is the sum of the n sources, each times
 * the softmax over i of score_i = sum over d of rms_norm(source_i, norm)[d] proj[d]. The weights of
 * the sum go to weights[n]. out may be a source. Scratch: 2 * width. */
typedef struct oct_residual_mix {
  const float *norm, *proj; /* [width] */
  uint32_t width;
  float eps;
} oct_residual_mix;
void oct_ref_residual_mix(const oct_residual_mix *mix, const float *const *sources, uint32_t n,
                          float *out, float *weights, float *scratch);

/* ---------------------------------------------------------------- rotary positions */

typedef enum oct_rope_kind {
  OCT_ROPE_PLAIN,
  OCT_ROPE_LINEAR, /* positions divided by factor */
  OCT_ROPE_LLAMA3, /* long wavelengths divided by factor */
  OCT_ROPE_YARN,   /* between interpolation and extrapolation by wavelength */
} oct_rope_kind;

typedef struct oct_rope {
  oct_rope_kind kind;
  bool interleaved; /* pairs are (2i, 2i + 1), else (i, i + dim / 2) */
  uint32_t dim;     /* even: elements of a head that are rotated */
  double theta;
  double factor;
  double original_positions;                /* LLAMA3, YARN: context of pre-training */
  double low_freq_factor, high_freq_factor; /* LLAMA3 */
  double beta_fast, beta_slow;              /* YARN: 32 and 1 in most configs */
  bool truncate;                            /* YARN: bounds of the ramp are whole dimensions */
  double attention_factor;                  /* YARN: multiplies cosines and sines */
} oct_rope;

/* YaRN's temperature: 1 for scale <= 1, else 0.1 mscale ln(scale) + 1. */
double oct_ref_yarn_mscale(double scale, double mscale);

/* Inverse frequencies: out[dim / 2]. */
void oct_ref_rope_frequencies(const oct_rope *rope, float *out);
/* Cosines then sines of one position: out[dim]. */
void oct_ref_rope_angles(const oct_rope *rope, const float *frequencies, uint32_t position,
                         float *out);
/* Rotates the first `dim` elements of n heads, `stride` apart, in place. */
void oct_ref_rope(const oct_rope *rope, const float *angles, uint32_t n, size_t stride,
                  float *heads);

/* ---------------------------------------------------------------- paged key-value cache */

typedef enum oct_kv_format { OCT_KV_F32, OCT_KV_BF16 } oct_kv_format;

/* One layer of a page pool. A page of this layer is K[heads, tokens, width] then V likewise for
 * grouped-query attention, or the rows [tokens, width] of the latent attention (heads 1, no V). */
typedef struct oct_kv_layer {
  oct_kv_format format;
  void *base;         /* this layer's part of page 0 */
  size_t page_stride; /* bytes from a page to the next */
  uint32_t page_tokens, n_heads, width;
  bool has_values;
} oct_kv_layer;

size_t oct_ref_kv_element_bytes(oct_kv_format format);
/* Bytes of one page of the layer. */
size_t oct_ref_kv_page_bytes(const oct_kv_layer *layer);
/* Stores a token: k (and v) [heads, width] at `position`, whose page is pages[position / tokens].
 */
void oct_ref_kv_store(const oct_kv_layer *layer, const uint32_t *pages, uint32_t position,
                      const float *k, const float *v);

/* ---------------------------------------------------------------- attention */

typedef struct oct_attention {
  oct_kv_layer kv;
  uint32_t n_heads;   /* a multiple of kv.n_heads */
  uint32_t window;    /* tokens seen, the current one included; 0 = all */
  float scale;        /* of scores */
  const float *sinks; /* [n_heads] logits that take part in the softmax only, or NULL */
} oct_attention;

/* Grouped-query attention of one token at `position` over the cache's tokens up to itself, which
 * are stored, for the query heads of KV heads [first, first + n): q and out [n_heads, width].
 * Scratch: group * (position + 1) + 2 * page_tokens * width, group = n_heads / kv.n_heads. */
void oct_ref_attention(const oct_attention *call, const uint32_t *pages, uint32_t position,
                       uint32_t first, uint32_t n, const float *q, float *out, float *scratch);

/* Multi-head latent attention. The cache has per token the latent [kv_lora], normed, and the shared
 * rotated key [rope]; kv_b is [heads * (nope + value), kv_lora], per head key rows, then value
 * rows. */
typedef struct oct_mla {
  oct_kv_layer kv; /* width kv_lora + rope */
  uint32_t n_heads, kv_lora, nope, rope, value;
  float scale;
  const oct_matrix *kv_b;
} oct_mla;

/* The absorbed form works on latents throughout. One token, heads [first, first + n): absorbed
 * queries [n_heads, kv_lora + rope] (from oct_ref_mla_absorb()) to latent outputs
 * [n_heads, kv_lora]. Scratch: n * (position + 1) + page_tokens * width. */
void oct_ref_mla_latent(const oct_mla *call, const uint32_t *pages, uint32_t position,
                        uint32_t first, uint32_t n, const float *q, float *out, float *scratch);
/* q[m, heads, nope + rope] to absorbed[m, heads, kv_lora + rope], for head h of all m tokens.
 * Scratch: OCT_REF_MATMUL_ROWS * kv_lora. */
void oct_ref_mla_absorb(const oct_mla *call, uint32_t h, uint32_t m, const float *q,
                        float *absorbed, float *scratch);
/* latent[m, heads, kv_lora] to out[m, heads, value], for head h. Scratch as above. */
void oct_ref_mla_values(const oct_mla *call, uint32_t h, uint32_t m, const float *latent,
                        float *out, float *scratch);
/* The expanded form makes keys and values of every token seen: q[heads, nope + rope] of one token
 * to out[heads, value], head h. Scratch: (position + 1) * (1 + nope + value) +
 * (nope + value) * kv_lora + page_tokens * width. */
void oct_ref_mla_expanded(const oct_mla *call, const uint32_t *pages, uint32_t position, uint32_t h,
                          const float *q, float *out, float *scratch);

/* ---------------------------------------------------------------- delta attention */

/* Kimi delta attention: a recurrent state instead of a cache. One layer's weights; C = heads *
 * width channels. */
typedef struct oct_kda {
  uint32_t n_heads, width, taps;
  const float *q_conv, *k_conv, *v_conv; /* [C, taps], the last tap for the current token */
  const float *a_log;                    /* [n_heads] */
  const float *dt_bias;                  /* [C] */
  float decay_bound; /* 0: log decay -exp(a_log) softplus(z); else bound * sigmoid(exp(a_log) z) */
} oct_kda;

/* Floats of one sequence's state in a layer: [heads, width, width] of keys by values, then the last
 * taps - 1 inputs of the three convolutions, [3, taps - 1, C], the oldest first. All zero before
 * the first token. */
size_t oct_ref_kda_state_floats(const oct_kda *kda);

/* The projections of one token; z is what dt_bias is added to, beta a logit per head. */
typedef struct oct_kda_token {
  const float *q, *k, *v, *z; /* [C] */
  const float *beta;          /* [n_heads] */
} oct_kda_token;

/* Its parts, of n channels or of one head. The convolution takes x[n] after the taps - 1 inputs
 * before it, the oldest first and `stride` apart, moves these on by one, and applies SiLU. */
void oct_ref_short_conv(const float *weight, uint32_t taps, float *inputs, size_t stride,
                        const float *x, uint32_t n, float *out);
float oct_ref_kda_log_decay(float decay_bound, float a_log, float z);
/* q, k and v after the convolution, of which q and k are normed and scaled here, and log decays
 * per key channel, all [width]; beta is a logit. state[width, width] is that of the head. Scratch:
 * 4 * width. */
typedef struct oct_kda_head {
  const float *q, *k, *v, *log_decay;
  float beta;
} oct_kda_head;
void oct_ref_kda_recur(const oct_kda_head *head, uint32_t width, float *state, float *out,
                       float *scratch);

/* The same of up to OCT_REF_KDA_CHUNK tokens at once: the form that prompts are computed in where
 * products of matrices are cheap. Equal to the recurrence but for rounding. Token i's arrays begin
 * `stride` after those of i - 1; beta[i * beta_stride]. Scratch: 4 * n * width. */
#define OCT_REF_KDA_CHUNK 16
typedef struct oct_kda_chunk {
  oct_kda_head first;
  const float *beta; /* in place of first.beta */
  size_t stride, beta_stride;
  uint32_t n;
} oct_kda_chunk;
void oct_ref_kda_chunk(const oct_kda_chunk *chunk, uint32_t width, float *state, float *out,
                       float *scratch);

/* Takes one token into the state of heads [first, first + n) and writes their outputs to out[C],
 * not normed. Tokens of a sequence come one after another. Scratch: 8 * width. */
void oct_ref_kda(const oct_kda *kda, float *state, const oct_kda_token *token, uint32_t first,
                 uint32_t n, float *out, float *scratch);

/* x *= sigmoid(gate), n elements. */
void oct_ref_sigmoid_gate(float *x, const float *gate, size_t n);

/* ---------------------------------------------------------------- experts */

typedef enum oct_router { OCT_ROUTER_SOFTMAX, OCT_ROUTER_SIGMOID } oct_router;

typedef struct oct_routing {
  oct_router score;
  uint32_t n_experts, top_k;
  uint32_t n_groups, top_groups; /* 0 or 1 groups = none; a group counts by its two best */
  bool renormalise;              /* weights of the chosen add up to 1 */
  float scaling;                 /* multiplies the weights */
  const float *bias;             /* [n_experts], added to scores for the choice alone; or NULL */
} oct_routing;

/* One token: the top_k experts (n_experts at most) by score, the better first and of equals the
 * lower, and their weights. None is taken twice: scores that are no numbers come behind all
 * others, the lower expert first. Scratch: 2 * n_experts + n_groups. */
void oct_ref_route(const oct_routing *routing, const float *logits, uint32_t *experts,
                   float *weights, float *scratch);

/* A gated MLP. gate_up NULL: gate and up are separate matrices [inner, outer]; else one matrix with
 * rows gate, up, gate, up … [2 inner, outer], and its bias likewise. Biases may be NULL. */
typedef struct oct_mlp {
  const oct_matrix *gate, *up, *gate_up, *down;
  const float *gate_bias, *up_bias, *gate_up_bias, *down_bias;
  oct_glu_params glu;
  uint32_t inner, outer;
} oct_mlp;

/* out[m, outer] of x[m, outer], by one thread. Scratch: m * 2 * inner + OCT_REF_MATMUL_ROWS *
 * max(inner, outer). */
void oct_ref_mlp(const oct_mlp *mlp, const float *x, uint32_t m, float *out, float *scratch);

/* ---------------------------------------------------------------- sampling */

typedef struct oct_sampling {
  float temperature; /* below 1e-5: greedy */
  float top_p;       /* 1 = off */
  float min_p;       /* 0 = off */
  float repetition;  /* 1 = off; divides positive logits of seen tokens, multiplies negative ones */
  float presence, frequency; /* 0 = off; of tokens in the output */
  int32_t top_k;             /* <= 0 = off */
  uint64_t seed;
} oct_sampling;

typedef struct oct_token_logprob {
  uint32_t token;
  float logprob;
} oct_token_logprob;

typedef struct oct_logit_bias {
  uint32_t token;
  float bias;
} oct_logit_bias;

#define OCT_REF_NO_TOKEN     UINT32_MAX
#define OCT_REF_COUNT_PROMPT 0x80000000u /* in a count: the token is in the prompt */

/* What the token at `position` is sampled from. */
typedef struct oct_sample_input {
  const float *logits; /* [vocab] */
  uint32_t vocab;
  uint32_t position;      /* of the token that is sampled */
  const uint32_t *counts; /* [vocab]: times in the output, and OCT_REF_COUNT_PROMPT; or NULL */
  const uint64_t *mask;   /* allowed tokens, bit by bit; or NULL */
  const oct_logit_bias *biases; /* [n_biases] */
  uint32_t n_biases;
  const uint32_t *suppressed; /* [n_suppressed]: not sampled, unless nothing else is left */
  uint32_t n_suppressed;
} oct_sample_input;

/* The token: a function of its arguments alone, so a seeded request samples the same tokens in any
 * batch. In this order: biases, mask, suppression, penalties, temperature, min-p, top-k, top-p,
 * each on what the one before left, then a draw by a number in [0, 1) made of seed and position.
 * Equal logits: the lower token first. OCT_REF_NO_TOKEN when a logit is not a number or infinite,
 * or nothing is left. scratch[vocab]. */
uint32_t oct_ref_sample(const oct_sampling *sampling, const oct_sample_input *input,
                        oct_token_logprob *scratch);
/* The number in [0, 1), 53 bits. */
double oct_ref_sample_uniform(uint64_t seed, uint32_t position);

/* Natural logarithms of the softmax of the logits as the model gave them: `token` first, then the n
 * likeliest others, the likeliest first, of equals the lower. out[1 + n], n < vocab. */
void oct_ref_logprobs(const float *logits, uint32_t vocab, uint32_t token, uint32_t n,
                      oct_token_logprob *out);

#endif
