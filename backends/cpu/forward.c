/* The loop over layers, and what all of them share: products, norms, working memory. */
#include "backends/cpu/forward-internal.h"

#include <string.h>

#include "engine/base/assert.h"

/* ---------------------------------------------------------------- products */

typedef struct product_loop {
  oct_cpu_forward *f;
  const oct_forward_product *products;
  guint32 n;
} product_loop;

static guint32
blocks_of(const oct_forward_product *p) {
  return (p->call.weight->rows + OCT_FORWARD_ROWS - 1) / OCT_FORWARD_ROWS;
}

static void
product_item(void *context, guint32 item, guint32 thread) {
  const product_loop *loop = context;
  const oct_forward_product *p = loop->products;
  for (; item >= blocks_of(p); p++)
    item -= blocks_of(p);
  guint32 first = item * OCT_FORWARD_ROWS;
  guint32 n = MIN(OCT_FORWARD_ROWS, p->call.weight->rows - first);
  oct_ref_matmul(&p->call, first, n, loop->f->scratch[thread]);
  for (guint32 i = 0; p->add_to != NULL && i < p->call.m; i++)
    oct_ref_add(p->add_to + i * p->add_stride + first, p->call.y + i * p->call.y_stride + first, n);
}

void
oct_forward_tell_inputs(const oct_cpu_forward *f, const oct_matrix *matrix, const float *x,
                        gsize stride, guint32 n) {
  if (f->inputs != NULL)
    f->inputs(f->inputs_user, matrix, x, stride, n);
}

void
oct_forward_products(oct_cpu_forward *f, const oct_forward_product *products, guint32 n) {
  product_loop loop = {f, products, n};
  guint32 items = 0;
  for (guint32 i = 0; i < n; i++) {
    const oct_matmul *call = &products[i].call;
    items += blocks_of(&products[i]);
    oct_forward_tell_inputs(f, call->weight, call->x, call->x_stride, call->m);
  }
  oct_team_run(f->team, product_item, &loop, items);
}

oct_forward_product
oct_forward_product_of(const oct_cpu_forward *f, const oct_matrix *weight, const float *bias,
                       const float *x, float *y) {
  return (oct_forward_product){.call = {.weight = weight,
                                        .bias = bias,
                                        .x = x,
                                        .x_stride = weight->columns,
                                        .m = f->m,
                                        .y = y,
                                        .y_stride = weight->rows}};
}

/* ---------------------------------------------------------------- norms */

typedef struct norm_loop {
  const float *x, *weight;
  guint32 width;
  gsize stride;
  float eps;
  float *out;
} norm_loop;

static void
norm_item(void *context, guint32 item, guint32 thread) {
  const norm_loop *n = context;
  (void)thread;
  oct_ref_rms_norm(n->x + item * n->stride, n->weight, 1, n->width, n->stride, n->eps,
                   n->out + item * n->stride);
}

void
oct_forward_norm(oct_cpu_forward *f, const float *x, const float *weight, guint32 width,
                 gsize stride, float eps, float *out) {
  norm_loop loop = {x, weight, width, stride, eps, out};
  if (f->m >= 8)
    oct_team_run(f->team, norm_item, &loop, f->m);
  else
    oct_ref_rms_norm(x, weight, f->m, width, stride, eps, out);
}

/* ---------------------------------------------------------------- dense feed-forward */

typedef struct mlp_loop {
  oct_cpu_forward *f;
  const oct_mlp *mlp;
} mlp_loop;

/* Some rows of gate and up, and their activation. */
static void
gate_up_item(void *context, guint32 item, guint32 thread) {
  const mlp_loop *loop = context;
  const oct_mlp *mlp = loop->mlp;
  const oct_forward_room *room = &loop->f->room;
  guint32 first = item * OCT_FORWARD_ROWS, n = MIN(OCT_FORWARD_ROWS, mlp->inner - first);
  gsize stride = 2 * (gsize)mlp->inner;
  oct_matmul call = {.weight = mlp->gate,
                     .bias = mlp->gate_bias,
                     .x = room->normed,
                     .x_stride = mlp->outer,
                     .m = loop->f->m,
                     .y = room->inner,
                     .y_stride = stride};
  oct_ref_matmul(&call, first, n, loop->f->scratch[thread]);
  call.weight = mlp->up;
  call.bias = mlp->up_bias;
  call.y = room->inner + mlp->inner;
  oct_ref_matmul(&call, first, n, loop->f->scratch[thread]);
  for (guint32 i = 0; i < loop->f->m; i++) {
    float *gate = room->inner + i * stride + first;
    oct_ref_glu(&mlp->glu, gate, gate + mlp->inner, 1, n, gate);
  }
}

void
oct_forward_dense(oct_cpu_forward *f, const oct_mlp *mlp, float *add_to) {
  mlp_loop loop = {f, mlp};
  oct_forward_tell_inputs(f, mlp->gate, f->room.normed, mlp->outer, f->m);
  oct_team_run(f->team, gate_up_item, &loop,
               (mlp->inner + OCT_FORWARD_ROWS - 1) / OCT_FORWARD_ROWS);
  oct_forward_product down =
      oct_forward_product_of(f, mlp->down, mlp->down_bias, f->room.inner, f->room.mixed);
  down.call.x_stride = 2 * (gsize)mlp->inner;
  down.add_to = add_to;
  down.add_stride = mlp->outer;
  oct_forward_products(f, &down, 1);
}

/* ---------------------------------------------------------------- attention residuals */

typedef struct mix_loop {
  oct_cpu_forward *f;
  oct_residual_mix mix;
} mix_loop;

static guint32
blocks_max(const oct_model_spec *spec) {
  return spec->attn_res_block > 0
             ? (spec->n_layers + spec->attn_res_block - 1) / spec->attn_res_block
             : 0;
}

static void
mix_item(void *context, guint32 i, guint32 thread) {
  const mix_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  gsize width = loop->mix.width, at = i * width;
  const float *sources[OCT_MODEL_LAYERS_MAX + 1];
  guint32 n = 0;
  for (; n < f->n_blocks; n++)
    sources[n] = f->room.blocks + n * (gsize)f->tile * width + at;
  sources[n++] = f->room.x + at;
  float *scratch = f->scratch[thread];
  oct_ref_residual_mix(&loop->mix, sources, n, f->room.source + at, scratch + 2 * width, scratch);
}

/* What the next sub-layer reads: a mix of the stream and of what it was before each block, or the
 * stream itself. */
static const float *
read_stream(oct_cpu_forward *f, const float *norm, const float *proj) {
  const oct_model_spec *spec = f->model->spec;
  if (f->n_blocks == 0)
    return f->room.x;
  mix_loop loop = {f, {norm, proj, spec->hidden, (float)spec->rms_norm_eps}};
  oct_team_run(f->team, mix_item, &loop, f->m);
  return f->room.source;
}

/* A block begins: the stream so far is kept, and a new one starts from nothing. */
static void
begin_block(oct_cpu_forward *f) {
  gsize bytes = (gsize)f->m * f->model->spec->hidden * sizeof(float);
  gsize at = (gsize)f->n_blocks++ * f->tile * f->model->spec->hidden;
  memcpy(f->room.blocks + at, f->room.x, bytes);
  memset(f->room.x, 0, bytes);
}

/* ---------------------------------------------------------------- layers */

void
oct_forward_attend(oct_cpu_forward *f, guint32 layer) {
  oct_attention_kind kind = f->model->layers[layer].attention->kind;
  if (kind == OCT_ATTENTION_MLA)
    oct_forward_latent(f, layer);
  else if (kind == OCT_ATTENTION_KDA)
    oct_forward_delta(f, layer);
  else
    oct_forward_attention(f, layer);
}

static void
attend_here(void *user, oct_cpu_forward *f, guint32 layer) {
  (void)user;
  oct_forward_attend(f, layer);
}

static void
feed_here(void *user, oct_cpu_forward *f, guint32 layer) {
  const oct_cpu_layer *l = &f->model->layers[layer];
  (void)user;
  if (l->ffn->kind == OCT_FFN_DENSE) {
    oct_mlp mlp = oct_cpu_model_dense(f->model, l);
    oct_forward_dense(f, &mlp, f->room.x);
  } else {
    oct_forward_experts(f, layer);
  }
}

static void
run_layer(oct_cpu_forward *f, guint32 layer) {
  const oct_cpu_layer *l = &f->model->layers[layer];
  guint32 hidden = f->model->spec->hidden, block = f->model->spec->attn_res_block;
  float eps = (float)f->model->spec->rms_norm_eps;
  const float *stream =
      read_stream(f, l->vectors[OCT_WEIGHT_ATTN_RES_NORM], l->vectors[OCT_WEIGHT_ATTN_RES_PROJ]);
  oct_forward_norm(f, stream, l->vectors[OCT_WEIGHT_ATTN_NORM], hidden, hidden, eps,
                   f->room.normed);
  if (block > 0 && layer % block == 0)
    begin_block(f);
  f->attention(f->parts_user, f, layer);
  stream = read_stream(f, l->vectors[OCT_WEIGHT_FFN_RES_NORM], l->vectors[OCT_WEIGHT_FFN_RES_PROJ]);
  oct_forward_norm(f, stream, l->vectors[OCT_WEIGHT_FFN_NORM], hidden, hidden, eps, f->room.normed);
  f->feed(f->parts_user, f, layer);
}

static void
watch(oct_cpu_forward *f, guint32 layer, guint32 first, const float *x) {
  if (f->watch != NULL)
    f->watch(f->watch_user, layer, first, f->m, x);
}

static void
start_tile(oct_cpu_forward *f) {
  const oct_cpu_model *model = f->model;
  f->n_blocks = 0;
  for (guint32 i = 0; i < f->m; i++) {
    oct_ref_embed(&model->embedding, &f->tokens[i].id, 1,
                  f->room.x + (gsize)i * model->spec->hidden);
    if (model->rope.dim > 0)
      oct_ref_rope_angles(&model->rope, model->rope_frequencies, f->tokens[i].position,
                          f->room.angles + (gsize)i * model->rope.dim);
  }
}

static void
finish_tile(oct_cpu_forward *f, guint32 first, float *hidden) {
  guint32 width = f->model->spec->hidden;
  const float *stream = read_stream(f, f->model->final_res_norm, f->model->final_res_proj);
  oct_forward_norm(f, stream, f->model->final_norm, width, width,
                   (float)f->model->spec->rms_norm_eps, f->room.normed);
  watch(f, f->model->spec->n_layers + 1, first, f->room.normed);
  for (guint32 i = 0; i < f->m; i++)
    if (f->tokens[i].row != OCT_NO_INDEX)
      memcpy(hidden + (gsize)f->tokens[i].row * width, f->room.normed + (gsize)i * width,
             width * sizeof *hidden);
}

gboolean
oct_cpu_forward_run(oct_cpu_forward *f, const oct_cpu_view *views, const oct_cpu_token *tokens,
                    guint32 n, const gboolean *stop, float *hidden) {
  f->views = views;
  for (guint32 first = 0; first < n; first += f->m) {
    f->tokens = tokens + first;
    f->m = MIN(n - first, f->tile);
    start_tile(f);
    watch(f, 0, first, f->room.x);
    for (guint32 layer = 0; layer < f->model->spec->n_layers; layer++) {
      if (stop != NULL && __atomic_load_n(stop, __ATOMIC_ACQUIRE))
        return FALSE;
      run_layer(f, layer);
      watch(f, layer + 1, first, f->room.x);
    }
    finish_tile(f, first, hidden);
  }
  return TRUE;
}

void
oct_cpu_forward_logits(oct_cpu_forward *f, const float *hidden, guint32 n, float *logits) {
  f->m = n;
  oct_forward_product head = oct_forward_product_of(f, &f->model->head, NULL, hidden, logits);
  oct_forward_products(f, &head, 1);
}

/* ---------------------------------------------------------------- working memory */

/* The most of each kind of row over all layers, in floats. */
typedef struct widths {
  gsize q, k, v, mixed, low, latent, beta, inner, columns, experts, top_k, pair, pair_inner;
} widths;

static void
at_least(gsize *to, gsize value) {
  *to = MAX(*to, value);
}

static void
attention_widths(widths *w, const oct_attention_spec *a) {
  gsize heads = a->n_heads;
  if (a->kind == OCT_ATTENTION_MLA) {
    at_least(&w->q, heads * (a->qk_nope + a->qk_rope));
    at_least(&w->k, (gsize)a->kv_lora + a->qk_rope);
    at_least(&w->low, MAX(a->q_lora, heads * (a->kv_lora + a->qk_rope)));
    at_least(&w->latent, heads * MAX(a->kv_lora, a->v_head));
    at_least(&w->mixed, heads * a->v_head);
    return;
  }
  at_least(&w->q, heads * a->head_dim);
  at_least(&w->mixed, heads * a->head_dim);
  at_least(&w->k, (a->kind == OCT_ATTENTION_KDA ? heads : a->n_kv_heads) * a->head_dim);
  at_least(&w->v, (a->kind == OCT_ATTENTION_KDA ? heads : a->n_kv_heads) * a->head_dim);
  if (a->kind == OCT_ATTENTION_KDA) {
    at_least(&w->low, MAX(a->gate_rank, a->output_gate_rank));
    at_least(&w->latent, heads * a->head_dim);
    at_least(&w->beta, heads);
  }
}

static widths
measure(const oct_cpu_model *m) {
  widths w = {.mixed = m->spec->hidden};
  for (guint32 i = 0; i < m->spec->n_attention; i++)
    attention_widths(&w, &m->spec->attention[i]);
  for (guint32 i = 0; i < m->spec->n_ffn; i++) {
    const oct_ffn_spec *ffn = &m->spec->ffn[i];
    at_least(&w.inner, 2 * (gsize)MAX(ffn->intermediate, ffn->shared_intermediate));
    at_least(&w.pair_inner, 2 * (gsize)ffn->moe_intermediate);
    at_least(&w.low, ffn->latent);
    at_least(&w.latent, ffn->latent);
    at_least(&w.experts, ffn->n_experts);
    at_least(&w.top_k, ffn->top_k);
  }
  for (guint32 l = 0; l < m->spec->n_layers; l++) {
    for (guint k = 0; k < OCT_WEIGHT_KINDS; k++)
      at_least(&w.columns, m->layers[l].matrices[k].columns);
    at_least(&w.columns, m->layers[l].ffn->moe_intermediate);
    at_least(&w.pair, oct_cpu_model_expert_width(m, &m->layers[l]));
  }
  at_least(&w.columns, m->spec->hidden);
  return w;
}

static void *
take(oct_cpu_forward *f, gsize rows, gsize floats, gboolean *ok) {
  gsize bytes;
  void *memory = NULL;
  if (g_size_checked_mul(&bytes, rows, floats) && g_size_checked_mul(&bytes, bytes, sizeof(float)))
    memory = g_try_malloc(MAX(bytes, 1));
  if (memory != NULL)
    g_ptr_array_add(f->owned, memory);
  *ok &= memory != NULL;
  return memory;
}

static gboolean
make_room(oct_cpu_forward *f, GError **error) {
  widths w = measure(f->model);
  oct_forward_room *r = &f->room;
  gsize m = f->tile, pairs = m * w.top_k, hidden = f->model->spec->hidden;
  gboolean ok = TRUE;
  r->x = take(f, m, hidden, &ok);
  if (f->model->spec->attn_res_block > 0) {
    r->blocks = take(f, blocks_max(f->model->spec), m * hidden, &ok);
    r->source = take(f, m, hidden, &ok);
  }
  r->normed = take(f, m, hidden, &ok);
  r->q = take(f, m, w.q, &ok);
  r->k = take(f, m, w.k, &ok);
  r->v = take(f, m, w.v, &ok);
  r->mixed = take(f, m, w.mixed, &ok);
  r->low = take(f, m, w.low, &ok);
  r->latent = take(f, m, w.latent, &ok);
  r->beta = take(f, m, w.beta, &ok);
  r->inner = take(f, 1, MAX(m * w.inner, pairs * w.pair_inner), &ok);
  r->angles = take(f, m, f->model->rope.dim, &ok);
  r->logits = take(f, m, w.experts, &ok);
  r->pair_x = take(f, pairs, w.pair, &ok);
  r->pair_y = take(f, pairs, w.pair, &ok);
  r->weights = take(f, pairs, 1, &ok);
  r->experts = take(f, pairs, 1, &ok);
  r->pair_of = take(f, pairs, 1, &ok);
  r->starts = take(f, w.experts + 1, 1, &ok);
  gsize scratch = OCT_REF_MATMUL_ROWS * w.columns;
  at_least(&scratch, oct_forward_attention_scratch(f));
  at_least(&scratch, 3 * w.experts);
  at_least(&scratch, 2 * hidden + blocks_max(f->model->spec) + 1);
  guint32 n = oct_team_threads(f->team);
  f->scratch = g_new0(float *, n);
  for (guint32 i = 0; i < n; i++)
    f->scratch[i] = take(f, 1, scratch, &ok);
  if (!ok)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "no memory for a forward pass of %u tokens in a context of %u", f->tile,
                f->options.max_context);
  return ok;
}

oct_cpu_forward *
oct_cpu_forward_new(const oct_cpu_forward_options *options, GError **error) {
  g_autoptr(oct_cpu_forward) f = g_new0(oct_cpu_forward, 1);
  f->options = *options;
  f->model = options->model;
  f->memory = options->memory;
  f->team = options->team;
  oct_cpu_forward_set_parts(f, attend_here, feed_here, NULL);
  f->tile = MIN(options->max_tokens, OCT_FORWARD_TILE);
  f->owned = g_ptr_array_new_with_free_func(g_free);
  if (!make_room(f, error))
    return NULL;
  guint32 n_layers = f->model->spec->n_layers;
  f->counts = g_new0(guint32 *, n_layers);
  for (guint32 i = 0; options->count_experts && i < n_layers; i++)
    if (f->model->layers[i].ffn->n_experts > 0)
      f->counts[i] = g_new0(guint32, f->model->layers[i].ffn->n_experts);
  return g_steal_pointer(&f);
}

void
oct_cpu_forward_free(oct_cpu_forward *f) {
  if (f == NULL)
    return;
  for (guint32 i = 0; f->counts != NULL && i < f->model->spec->n_layers; i++)
    g_free(f->counts[i]);
  g_free(f->counts);
  g_free(f->scratch);
  g_ptr_array_unref(f->owned);
  g_free(f);
}

const guint32 *
oct_cpu_forward_experts(const oct_cpu_forward *f, guint32 layer) {
  return f->counts[layer];
}

void
oct_cpu_forward_clear_experts(oct_cpu_forward *f) {
  for (guint32 i = 0; i < f->model->spec->n_layers; i++)
    if (f->counts[i] != NULL)
      memset(f->counts[i], 0, f->model->layers[i].ffn->n_experts * sizeof *f->counts[i]);
}

void
oct_cpu_forward_set_watch(oct_cpu_forward *f, oct_cpu_forward_watch fn, void *user) {
  f->watch = fn;
  f->watch_user = user;
}

void
oct_cpu_forward_set_inputs(oct_cpu_forward *f, oct_cpu_forward_inputs fn, void *user) {
  f->inputs = fn;
  f->inputs_user = user;
}

void
oct_cpu_forward_set_parts(oct_cpu_forward *f, oct_cpu_forward_part attention,
                          oct_cpu_forward_part feed, void *user) {
  f->attention = attention;
  f->feed = feed;
  f->parts_user = user;
}
