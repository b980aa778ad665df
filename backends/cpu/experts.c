/* Feed-forward with experts. The tile's token-expert pairs are sorted by expert; each expert's
 * pairs are one batch, its rows divided among the threads; then every token adds up its own pairs
 * in the order of its choice, so that a sum does not depend on what else chose the expert. */
#include "backends/cpu/forward-internal.h"

#include <math.h>
#include <string.h>

typedef struct expert_loop {
  oct_cpu_forward *f;
  const oct_cpu_layer *l;
  guint32 n_used; /* experts with pairs */
  guint32 *used;  /* [n_used] */
  guint32 blocks; /* of rows per expert */
} expert_loop;

/* ---------------------------------------------------------------- routing */

static void
route_item(void *context, guint32 i, guint32 thread) {
  const expert_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  oct_routing routing = oct_cpu_model_routing(f->model, loop->l);
  gsize at = (gsize)i * routing.top_k;
  oct_ref_route(&routing, f->room.logits + (gsize)i * routing.n_experts, f->room.experts + at,
                f->room.weights + at, f->scratch[thread]);
}

/* Sorts the pairs by expert and gathers their inputs, rows of x[m, width]. */
static void
sort_pairs(oct_cpu_forward *f, const oct_cpu_layer *l, guint32 layer, const float *x) {
  const oct_forward_room *r = &f->room;
  guint32 n = l->ffn->n_experts, pairs = f->m * l->ffn->top_k;
  gsize width = oct_cpu_model_expert_width(f->model, l);
  memset(r->starts, 0, (n + 1) * sizeof *r->starts);
  for (guint32 p = 0; p < pairs; p++) {
    r->starts[r->experts[p] + 1]++;
    if (f->counts[layer] != NULL)
      f->counts[layer][r->experts[p]]++;
  }
  for (guint32 e = 0; e < n; e++)
    r->starts[e + 1] += r->starts[e];
  for (guint32 p = 0; p < pairs; p++) {
    /* starts[e] runs ahead while the pairs are placed, and is set back below. */
    r->pair_of[p] = r->starts[r->experts[p]]++;
    memcpy(r->pair_x + r->pair_of[p] * width, x + p / l->ffn->top_k * width, width * sizeof(float));
  }
  for (guint32 e = n; e > 0; e--)
    r->starts[e] = r->starts[e - 1];
  r->starts[0] = 0;
}

/* ---------------------------------------------------------------- experts */

static void
expert_gate_up_item(void *context, guint32 item, guint32 thread) {
  const expert_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  guint32 e = loop->used[item / loop->blocks], first = item % loop->blocks * OCT_FORWARD_ROWS;
  oct_mlp mlp = oct_cpu_model_expert(f->model, loop->l, e);
  guint32 start = f->room.starts[e], m = f->room.starts[e + 1] - start;
  guint32 n = MIN(OCT_FORWARD_ROWS, mlp.inner - first);
  gsize stride = 2 * (gsize)mlp.inner;
  float *inner = f->room.inner + start * stride;
  oct_matmul call = {.weight = mlp.gate,
                     .bias = mlp.gate_bias,
                     .x = f->room.pair_x + (gsize)start * mlp.outer,
                     .x_stride = mlp.outer,
                     .m = m,
                     .y = inner,
                     .y_stride = stride};
  oct_ref_matmul(&call, first, n, f->scratch[thread]);
  call.weight = mlp.up;
  call.bias = mlp.up_bias;
  call.y = inner + mlp.inner;
  oct_ref_matmul(&call, first, n, f->scratch[thread]);
  for (guint32 i = 0; i < m; i++) {
    float *gate = inner + i * stride + first;
    oct_ref_glu(&mlp.glu, gate, gate + mlp.inner, 1, n, gate);
  }
}

static void
expert_down_item(void *context, guint32 item, guint32 thread) {
  const expert_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  guint32 e = loop->used[item / loop->blocks], first = item % loop->blocks * OCT_FORWARD_ROWS;
  oct_mlp mlp = oct_cpu_model_expert(f->model, loop->l, e);
  guint32 start = f->room.starts[e], m = f->room.starts[e + 1] - start;
  gsize stride = 2 * (gsize)mlp.inner;
  const oct_matmul call = {.weight = mlp.down,
                           .bias = mlp.down_bias,
                           .x = f->room.inner + start * stride,
                           .x_stride = stride,
                           .m = m,
                           .y = f->room.pair_y + (gsize)start * mlp.outer,
                           .y_stride = mlp.outer};
  oct_ref_matmul(&call, first, MIN(OCT_FORWARD_ROWS, mlp.outer - first), f->scratch[thread]);
}

/* The weighted sum of a token's experts goes on top of the stream, or to room.latent. */
static void
add_pairs_item(void *context, guint32 i, guint32 thread) {
  const expert_loop *loop = context;
  const oct_forward_room *r = &loop->f->room;
  gboolean latent = loop->l->ffn->kind == OCT_FFN_LATENT_MOE;
  gsize width = oct_cpu_model_expert_width(loop->f->model, loop->l);
  guint32 top_k = loop->l->ffn->top_k;
  float *sum = latent ? r->latent + i * width : loop->f->scratch[thread];
  memset(sum, 0, width * sizeof *sum);
  for (guint32 k = 0; k < top_k; k++) {
    const float *y = r->pair_y + r->pair_of[i * top_k + k] * width;
    float weight = r->weights[i * top_k + k];
    for (gsize c = 0; c < width; c++)
      sum[c] += weight * y[c];
  }
  if (!latent)
    oct_ref_add(r->x + i * width, sum, width);
}

/* What experts on a latent read: a projection of the stream, in room.low. */
static const float *
project_latent(oct_cpu_forward *f, const oct_cpu_layer *l) {
  oct_forward_product down = oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_LATENT_DOWN], NULL,
                                                    f->room.normed, f->room.low);
  oct_forward_products(f, &down, 1);
  return f->room.low;
}

/* The experts' sum, in room.latent and complete, through its norm and back on the stream. */
static void
add_latent(oct_cpu_forward *f, const oct_cpu_layer *l) {
  guint32 width = l->ffn->latent;
  float *sum = f->room.latent;
  if (l->ffn->latent_norm)
    oct_forward_norm(f, sum, l->vectors[OCT_WEIGHT_LATENT_NORM], width, width,
                     (float)f->model->spec->rms_norm_eps, sum);
  oct_forward_product up =
      oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_LATENT_UP], NULL, sum, f->room.mixed);
  up.add_to = f->room.x;
  up.add_stride = f->model->spec->hidden;
  oct_forward_products(f, &up, 1);
}

/* qwen2-moe: a sigmoid of one product scales what the shared expert gives. */
static void
add_switched(oct_cpu_forward *f, const float *gate, const float *y) {
  guint32 hidden = f->model->spec->hidden;
  const oct_matrix row = {.format = OCT_MATRIX_F32, .rows = 1, .columns = hidden, .data = gate};
  for (guint32 i = 0; i < f->m; i++) {
    float logit, *x = f->room.x + (gsize)i * hidden;
    oct_matmul call = {.weight = &row,
                       .x = f->room.normed + (gsize)i * hidden,
                       .x_stride = hidden,
                       .m = 1,
                       .y = &logit,
                       .y_stride = 1};
    oct_ref_matmul(&call, 0, 1, f->scratch[0]);
    float factor = 1 / (1 + expf(-logit));
    for (guint32 c = 0; c < hidden; c++)
      x[c] += factor * y[(gsize)i * hidden + c];
  }
}

/* What comes into the experts' gates, or into their down projections. */
static void
tell_inputs(const expert_loop *loop, gboolean down) {
  const oct_cpu_forward *f = loop->f;
  for (guint32 i = 0; f->inputs != NULL && i < loop->n_used; i++) {
    guint32 e = loop->used[i], start = f->room.starts[e], n = f->room.starts[e + 1] - start;
    oct_mlp mlp = oct_cpu_model_expert(f->model, loop->l, e);
    gsize stride = down ? 2 * (gsize)mlp.inner : mlp.outer;
    const float *x = down ? f->room.inner : f->room.pair_x;
    oct_forward_tell_inputs(f, down ? mlp.down : mlp.gate, x + start * stride, stride, n);
  }
}

void
oct_forward_routed(oct_cpu_forward *f, guint32 layer, const float *x) {
  const oct_cpu_layer *l = &f->model->layers[layer];
  const oct_forward_room *r = &f->room;
  expert_loop loop = {.f = f, .l = l};
  oct_forward_product router = oct_forward_product_of(
      f, &l->matrices[OCT_WEIGHT_ROUTER], l->vectors[OCT_WEIGHT_ROUTER_BIAS], r->normed, r->logits);
  oct_forward_products(f, &router, 1);
  oct_team_run(f->team, route_item, &loop, f->m);
  sort_pairs(f, l, layer, x);
  /* The experts that have pairs, listed over the chosen ones, which are not needed any more. */
  loop.used = r->experts;
  for (guint32 e = 0; e < l->ffn->n_experts; e++)
    if (r->starts[e + 1] > r->starts[e])
      loop.used[loop.n_used++] = e;
  tell_inputs(&loop, FALSE);
  loop.blocks = (l->ffn->moe_intermediate + OCT_FORWARD_ROWS - 1) / OCT_FORWARD_ROWS;
  oct_team_run(f->team, expert_gate_up_item, &loop, loop.n_used * loop.blocks);
  tell_inputs(&loop, TRUE);
  loop.blocks = (oct_cpu_model_expert_width(f->model, l) + OCT_FORWARD_ROWS - 1) / OCT_FORWARD_ROWS;
  oct_team_run(f->team, expert_down_item, &loop, loop.n_used * loop.blocks);
  oct_team_run(f->team, add_pairs_item, &loop, f->m);
}

void
oct_forward_shared(oct_cpu_forward *f, guint32 layer) {
  const oct_cpu_layer *l = &f->model->layers[layer];
  if (l->ffn->shared_intermediate == 0)
    return;
  oct_mlp shared = oct_cpu_model_shared(f->model, l);
  const float *gate = l->vectors[OCT_WEIGHT_SHARED_SWITCH];
  oct_forward_dense(f, &shared, gate == NULL ? f->room.x : NULL);
  if (gate != NULL)
    add_switched(f, gate, f->room.mixed);
}

void
oct_forward_experts(oct_cpu_forward *f, guint32 layer) {
  const oct_cpu_layer *l = &f->model->layers[layer];
  gboolean latent = l->ffn->kind == OCT_FFN_LATENT_MOE;
  oct_forward_routed(f, layer, latent ? project_latent(f, l) : f->room.normed);
  if (latent)
    add_latent(f, l);
  oct_forward_shared(f, layer);
}
