/* The parts of the forward pass. Private to backends/cpu. */
#ifndef OCT_BACKENDS_CPU_FORWARD_INTERNAL_H
#define OCT_BACKENDS_CPU_FORWARD_INTERNAL_H

#include "backends/cpu/forward.h"

/* Rows of a weight that a thread takes at a time. */
#define OCT_FORWARD_ROWS 32

/* Working memory of one tile of m tokens; each array has rows for OCT_FORWARD_TILE tokens, or for
 * as many token-expert pairs. */
typedef struct oct_forward_room {
  float *x;      /* [m, hidden]: the residual stream */
  float *blocks; /* [blocks, m, hidden]: attention residuals: the stream before each block */
  float *source; /* [m, hidden]: attention residuals: what a sub-layer reads */
  float *normed; /* [m, hidden] */
  float *q, *k, *v;
  float *mixed;  /* what attention gives, before the output projection */
  float *low;    /* low-rank inputs of projections; MLA: absorbed queries; experts' latent */
  float *latent; /* MLA: latent outputs; KDA: decays; then the output gate; sum over experts */
  float *beta;   /* KDA: [m, heads] */
  float *inner;  /* [m or pairs, 2 x inner width] */
  float *angles; /* [m, rope.dim] */
  float *logits; /* routers: [m, experts] */
  float *pair_x, *pair_y; /* [pairs, width that experts work on] */
  float *weights;         /* [pairs], by token */
  guint32 *experts;       /* [pairs], by token */
  guint32 *pair_of;       /* [pairs], by token: where in pair_x and pair_y */
  guint32 *starts;        /* [experts + 1]: pairs of an expert */
} oct_forward_room;

struct oct_cpu_forward {
  oct_cpu_forward_options options;
  const oct_cpu_model *model;
  const oct_cpu_memory *memory;
  oct_team *team;
  guint32 tile;
  oct_forward_room room;
  GPtrArray *owned;
  float **scratch;  /* [threads] */
  guint32 **counts; /* [layers]: experts used, NULL for dense layers */
  oct_cpu_forward_watch watch;
  void *watch_user;
  oct_cpu_forward_part attention, feed;
  void *parts_user;
  oct_cpu_forward_inputs inputs;
  void *inputs_user;
  /* The tile being run. */
  const oct_cpu_view *views;
  const oct_cpu_token *tokens;
  guint32 m;
  guint32 n_blocks; /* rows of room.blocks so far */
};

/* Products over the tile's m tokens, their rows divided among the threads together. add_to (may be
 * NULL) has `add_stride` and takes the results on top of what it holds. */
typedef struct oct_forward_product {
  oct_matmul call;
  float *add_to;
  gsize add_stride;
} oct_forward_product;
void oct_forward_products(oct_cpu_forward *f, const oct_forward_product *products, guint32 n);
/* One product from x to y with rows `columns` and `rows` of the weight apart. */
oct_forward_product oct_forward_product_of(const oct_cpu_forward *f, const oct_matrix *weight,
                                           const float *bias, const float *x, float *y);

/* Tells who wants to know what comes into a matrix. */
void oct_forward_tell_inputs(const oct_cpu_forward *f, const oct_matrix *matrix, const float *x,
                             gsize stride, guint32 n);

/* RMS norm of the tile's rows. */
void oct_forward_norm(oct_cpu_forward *f, const float *x, const float *weight, guint32 width,
                      gsize stride, float eps, float *out);

/* Attention of one layer: from room.normed, added to room.x. */
void oct_forward_attention(oct_cpu_forward *f, guint32 layer);
void oct_forward_latent(oct_cpu_forward *f, guint32 layer);
void oct_forward_delta(oct_cpu_forward *f, guint32 layer);
/* Feed-forward of one layer: from room.normed, added to room.x. */
void oct_forward_dense(oct_cpu_forward *f, const oct_mlp *mlp, float *add_to);
void oct_forward_experts(oct_cpu_forward *f, guint32 layer);
/* Its parts: routing by room.normed; routed experts of x[m, width that they work on], whose sum is
 * added to room.x, or is in room.latent; shared experts. */
void oct_forward_routed(oct_cpu_forward *f, guint32 layer, const float *x);
void oct_forward_shared(oct_cpu_forward *f, guint32 layer);
/* Attention of whichever kind the layer has. */
void oct_forward_attend(oct_cpu_forward *f, guint32 layer);

/* Floats of scratch per thread that the parts need. */
gsize oct_forward_attention_scratch(const oct_cpu_forward *f);

#endif
