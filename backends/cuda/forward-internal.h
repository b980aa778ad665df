/* The parts of the forward pass. Private to backends/cuda. */
#ifndef OCT_BACKENDS_CUDA_FORWARD_INTERNAL_H
#define OCT_BACKENDS_CUDA_FORWARD_INTERNAL_H

#include "backends/cuda/forward.h"

/* Tokens that ranks which share tokens out attend for together. */
#define OCT_FORWARD_CONTEXT 128

/* Parts of the inputs of a product that ends a half of a layer, of up to so many tokens and a
 * weight of so many bytes at least. */
#define OCT_FORWARD_PARTS        2
#define OCT_FORWARD_PARTS_TOKENS 64
#define OCT_FORWARD_PARTS_BYTES  ((gsize)8 << 20)

/* Working memory; each array has rows for max_tokens tokens, or for as many token-expert pairs, of
 * the activations' type unless it says otherwise. */
typedef struct oct_cuda_room {
  float *residual;      /* [tokens, hidden] */
  void *normed;         /* [tokens, hidden] */
  void *snapshots;      /* [snapshots, tokens, hidden]; NULL: no attention residuals */
  void *y;              /* [tokens, hidden]: what attention or a feed-forward adds */
  float *parts;         /* [parts, tokens, hidden]: the same before its sum; NULL: there is none */
  void *qkv;            /* projections; latent attention: queries */
  void *latents;        /* latent attention: what reads its input */
  void *low;            /* low-rank inputs; latent attention: absorbed queries */
  void *gate;           /* delta attention: decays; latent outputs */
  void *open;           /* delta attention: output gates from a low rank */
  void *mixed;          /* what attention gives, before the output projection */
  void *both;           /* [tokens or pairs, 2 x inner] */
  void *inner;          /* [tokens or pairs, inner] */
  float *router;        /* [tokens, experts] */
  float *weights;       /* [pairs] */
  float *shared_switch; /* [tokens] */
  guint32 *experts, *starts, *pair_of, *row_of; /* [pairs], [experts + 1], [pairs], [pairs] */
  void *pair_y;                                 /* [pairs, what experts give] float32 */
  void *latent_sum;     /* [tokens, latent] of experts that work on a latent */
  void *latent_rows;    /* [tokens]: oct_cuda_latent_row; NULL: nothing is exchanged */
  guint32 *own_experts; /* [tokens, top_k] where domains are joint, and experts work on latents */
  float *own_weights;   /* likewise */
  void *joint_x, *joint_y; /* [domains x tokens, hidden]; NULL unless domains are joint */
  guint32 *joint_seq;      /* [domains x tokens] */
  guint32 *counts;         /* [layers, experts] */
  /* Where ranks share tokens out. */
  guint32 *place, *visible; /* [tokens]: oct_cuda_context_places() */
  void *own_q, *context_q;  /* [OCT_FORWARD_CONTEXT, heads, width]; of all ranks */
  float *found, *gathered;  /* [ranks, OCT_FORWARD_CONTEXT, heads, 2 + width of values] */
  void *narrow; /* inputs in fp8 [tokens, widest], and their scales [tokens]; NULL: not done */
  float *narrow_scale;
  guint64 *stamps; /* pinned, [2 x layers + 1]; NULL: nobody asks when */
  void *workspace;
  gsize workspace_bytes;
  void *picked;         /* [logit rows, hidden] */
  float *part, *logits; /* [logit rows, head rows], [logit rows, ranks x head rows] */
} oct_cuda_room;

/* Shared experts of a few tokens run on a stream of their own beside the routed ones. */
typedef struct oct_cuda_beside {
  guint32 most; /* tokens; 0: they run before them */
  cudaStream_t stream;
  cudaEvent_t begin, end;
  oct_cuda_queue queue;
  oct_cuda_blas *blas;
  void *both, *inner; /* as the room's */
} oct_cuda_beside;

struct oct_cuda_forward {
  oct_cuda_forward_options options;
  oct_cuda_rank *rank;
  const oct_cuda_model *model;
  oct_cuda_type type;
  oct_cuda_room room;
  oct_cuda_beside beside;
  guint32 most_experts;
  gsize logits_stride;
  /* The pass that is being enqueued. */
  const oct_cuda_pass *pass;
  guint32 m;           /* its tokens */
  gboolean is_narrow;  /* room.narrow has room.normed of all of them */
  guint32 n_parts;     /* that room.parts has of what is to be added; 0: room.y has it */
  guint32 n_snapshots; /* so far */
  gboolean begins;     /* the stream is empty since the last snapshot */
  guint32 n_join;      /* domains whose tokens experts take together */
};

/* y[m, rows] of x[m, columns]; strides in elements. Notes what fails. */
typedef struct oct_cuda_product {
  const oct_cuda_matrix *weight;
  const void *bias, *x;
  gsize x_stride;
  void *y;
  gsize y_stride;
  oct_cuda_type y_type;
} oct_cuda_product;
void oct_cuda_forward_multiply(oct_cuda_forward *f, const oct_cuda_product *product, guint32 m);
/* Gates and ups of the pass's tokens, activated, where one kernel does that; FALSE: it does not. */
gboolean oct_cuda_forward_gated(oct_cuda_forward *f, const oct_cuda_matrix *weight, const void *x,
                                void *y);
/* The usual product: dense rows, results of the activations' type. */
void oct_cuda_forward_project(oct_cuda_forward *f, const oct_cuda_matrix *weight, const void *bias,
                              const void *x, void *y);

/* The last product of either half of a layer, whose result is to be added to the residual stream:
 * to room.y, or in parts whose sum the norm behind it makes. */
void oct_cuda_forward_project_back(oct_cuda_forward *f, const oct_cuda_matrix *weight,
                                   const void *bias, const void *x);

/* Attention of one layer from room.normed to room.y, this rank's part. */
void oct_cuda_forward_attention(oct_cuda_forward *f, const oct_cuda_layer *l);
void oct_cuda_forward_latent(oct_cuda_forward *f, const oct_cuda_layer *l);
void oct_cuda_forward_delta(oct_cuda_forward *f, const oct_cuda_layer *l);
/* Tells that half `half` of the pass's layers begins. */
void oct_cuda_forward_mark(oct_cuda_forward *f, guint32 half);
/* What follows the embedding, or the stage before, in a model with attention residuals. */
void oct_cuda_forward_run_residuals(oct_cuda_forward *f);
/* How many snapshots there are before a layer. */
guint32 oct_cuda_forward_snapshots_before(const oct_cuda_forward *f, guint32 layer);
/* Either half of a layer, from room.normed to this rank's part of room.y. */
void oct_cuda_forward_attend(oct_cuda_forward *f, const oct_cuda_layer *l);
void oct_cuda_forward_feed(oct_cuda_forward *f, const oct_cuda_layer *l);
/* What runs beside: made with the forward pass. */
void oct_cuda_forward_make_beside(oct_cuda_forward *f, gsize shared_inner);
void oct_cuda_forward_clear_beside(oct_cuda_forward *f);
/* Which rows of all domains are padding: before the first experts of a pass. */
void oct_cuda_forward_join(oct_cuda_forward *f);
/* What expanded latents take of the rooms of feed-forwards, bytes: kv of room.both; the gathered
 * latents, and behind them what parts of a context came to, of room.inner. */
typedef struct oct_cuda_expanded_room {
  gsize kv, latents, rest;
} oct_cuda_expanded_room;
oct_cuda_expanded_room oct_cuda_forward_expanded_room(const oct_cuda_forward *f,
                                                      const oct_cuda_layer *l);
/* Bytes of workspace that attention needs at most. */
gsize oct_cuda_forward_attention_workspace(oct_cuda_forward *f);
/* Feed-forward likewise; shared experts', to which others add, is in room.y in any case. */
void oct_cuda_forward_dense(oct_cuda_forward *f, const oct_cuda_ffn *ffn);
void oct_cuda_forward_shared(oct_cuda_forward *f, const oct_cuda_ffn *ffn);
void oct_cuda_forward_experts(oct_cuda_forward *f, const oct_cuda_layer *l);
void oct_cuda_forward_latent_experts(oct_cuda_forward *f, const oct_cuda_layer *l);
/* Their parts: choices of this domain's tokens, or those of all, by logits that are in room.router
 * where ranks have made them together; and for n rows what this rank's experts give, by the choices
 * in room.experts and room.weights. */
typedef struct oct_cuda_rows {
  guint32 n;
  const void *x;
  const guint32 *seq; /* OCT_CUDA_NONE: padding */
} oct_cuda_rows;
void oct_cuda_forward_route(oct_cuda_forward *f, const oct_cuda_layer *l, const oct_cuda_rows *in,
                            guint32 *experts, float *weights);
typedef struct oct_cuda_pair_work {
  const void *x;    /* [n, what experts read] */
  void *out;        /* [n, what they give] */
  gboolean add;     /* to out */
  const void *norm; /* out is the sum's norm; or NULL */
} oct_cuda_pair_work;
void oct_cuda_forward_run_pairs(oct_cuda_forward *f, const oct_cuda_layer *l, guint32 n,
                                const oct_cuda_pair_work *work);

#endif
