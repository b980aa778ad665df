/* Attention of each kind: projections, norms, rotation, the cache, and the output projection. */
#include "backends/arithmetic.h"
#include "backends/cpu/forward-internal.h"

#include <math.h>
#include <string.h>

/* Heads of latent attention that one thread takes together: each reads the latents once. */
#define LATENT_HEADS 4

gsize
oct_forward_attention_scratch(const oct_cpu_forward *f) {
  gsize most = 0, context = f->options.max_context;
  gsize page = oct_cpu_memory_page_tokens(f->memory);
  for (guint32 i = 0; i < f->model->spec->n_attention; i++) {
    const oct_attention_spec *a = &f->model->spec->attention[i];
    gsize floats = 0;
    if (a->kind == OCT_ATTENTION_MLA) {
      gsize width = a->kv_lora + a->qk_rope, both = a->qk_nope + a->v_head;
      floats = LATENT_HEADS * context + MAX(page, OCT_REF_MATMUL_ROWS) * width;
      if (f->options.expanded_latents)
        floats = MAX(floats, context * (1 + both) + both * a->kv_lora + page * width);
    } else if (a->kind == OCT_ATTENTION_KDA) {
      floats = 8 * (gsize)a->head_dim;
    } else {
      floats = a->n_heads / a->n_kv_heads * context + 2 * page * a->head_dim;
    }
    most = MAX(most, floats);
  }
  return most;
}

/* Rotates n heads of width `stride` at `heads`, of token i of the tile. */
static void
rotate(const oct_cpu_forward *f, guint32 i, guint32 n, gsize stride, float *heads) {
  const oct_rope *rope = &f->model->rope;
  if (rope->dim > 0)
    oct_ref_rope(rope, f->room.angles + (gsize)i * rope->dim, n, stride, heads);
}

static void
project_out(oct_cpu_forward *f, const oct_cpu_layer *l) {
  oct_forward_product out = oct_forward_product_of(
      f, &l->matrices[OCT_WEIGHT_O], l->vectors[OCT_WEIGHT_O_BIAS], f->room.mixed, f->room.normed);
  out.add_to = f->room.x;
  out.add_stride = f->model->spec->hidden;
  oct_forward_products(f, &out, 1);
}

/* A full-rank gate on what attention gives, by way of room.latent. */
static void
gate_out(oct_cpu_forward *f, const oct_cpu_layer *l) {
  const oct_matrix *weight = &l->matrices[OCT_WEIGHT_ATTN_GATE];
  oct_forward_product gate =
      oct_forward_product_of(f, weight, NULL, f->room.normed, f->room.latent);
  oct_forward_products(f, &gate, 1);
  oct_ref_sigmoid_gate(f->room.mixed, f->room.latent, (gsize)f->m * weight->rows);
}

/* ---------------------------------------------------------------- grouped-query attention */

typedef struct attention_loop {
  oct_cpu_forward *f;
  const oct_cpu_layer *l;
  guint32 layer;
} attention_loop;

static oct_attention
attention_call(const attention_loop *loop, guint32 domain) {
  const oct_attention_spec *a = loop->l->attention;
  return (oct_attention){.kv = oct_cpu_memory_layer(loop->f->memory, domain, loop->layer),
                         .n_heads = a->n_heads,
                         .window = a->kind == OCT_ATTENTION_WINDOW ? a->window : 0,
                         .scale = (float)(1 / sqrt(a->head_dim)),
                         .sinks = loop->l->vectors[OCT_WEIGHT_SINKS]};
}

/* Norms and rotates q and k of a token, and stores k and v. */
static void
store_item(void *context, guint32 i, guint32 thread) {
  const attention_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  const oct_attention_spec *a = loop->l->attention;
  const oct_cpu_token *token = &f->tokens[i];
  const oct_cpu_view *view = &f->views[token->view];
  (void)thread;
  guint32 width = a->head_dim;
  float *q = f->room.q + (gsize)i * a->n_heads * width;
  float *k = f->room.k + (gsize)i * a->n_kv_heads * width;
  float *v = f->room.v + (gsize)i * a->n_kv_heads * width;
  if (a->qk_norm) {
    float eps = (float)f->model->spec->rms_norm_eps;
    oct_ref_rms_norm(q, loop->l->vectors[OCT_WEIGHT_Q_NORM], a->n_heads, width, width, eps, q);
    oct_ref_rms_norm(k, loop->l->vectors[OCT_WEIGHT_K_NORM], a->n_kv_heads, width, width, eps, k);
  }
  rotate(f, i, a->n_heads, width, q);
  rotate(f, i, a->n_kv_heads, width, k);
  oct_kv_layer kv = oct_cpu_memory_layer(f->memory, view->domain, loop->layer);
  oct_ref_kv_store(&kv, view->tables[loop->l->group], token->position, k, v);
}

static void
attend_item(void *context, guint32 item, guint32 thread) {
  const attention_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  const oct_attention_spec *a = loop->l->attention;
  /* The last tokens see most: they come first, so that threads end together. */
  guint32 i = f->m - 1 - item / a->n_kv_heads, head = item % a->n_kv_heads;
  const oct_cpu_token *token = &f->tokens[i];
  const oct_cpu_view *view = &f->views[token->view];
  oct_attention call = attention_call(loop, view->domain);
  gsize at = (gsize)i * a->n_heads * a->head_dim;
  oct_ref_attention(&call, view->tables[loop->l->group], token->position, head, 1, f->room.q + at,
                    f->room.mixed + at, f->scratch[thread]);
}

void
oct_forward_attention(oct_cpu_forward *f, guint32 layer) {
  const oct_cpu_layer *l = &f->model->layers[layer];
  const oct_forward_room *r = &f->room;
  attention_loop loop = {f, l, layer};
  const oct_forward_product in[] = {
      oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_Q], l->vectors[OCT_WEIGHT_Q_BIAS],
                             r->normed, r->q),
      oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_K], l->vectors[OCT_WEIGHT_K_BIAS],
                             r->normed, r->k),
      oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_V], l->vectors[OCT_WEIGHT_V_BIAS],
                             r->normed, r->v)};
  oct_forward_products(f, in, G_N_ELEMENTS(in));
  oct_team_run(f->team, store_item, &loop, f->m);
  oct_team_run(f->team, attend_item, &loop, f->m * l->attention->n_kv_heads);
  project_out(f, l);
}

/* ---------------------------------------------------------------- latent attention */

static oct_mla
latent_call(const attention_loop *loop, guint32 domain) {
  const oct_attention_spec *a = loop->l->attention;
  return (oct_mla){.kv = oct_cpu_memory_layer(loop->f->memory, domain, loop->layer),
                   .n_heads = a->n_heads,
                   .kv_lora = a->kv_lora,
                   .nope = a->qk_nope,
                   .rope = a->qk_rope,
                   .value = a->v_head,
                   .scale = loop->f->model->latent_scale,
                   .kv_b = &loop->l->matrices[OCT_WEIGHT_KV_B]};
}

static void
store_latent_item(void *context, guint32 i, guint32 thread) {
  const attention_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  const oct_attention_spec *a = loop->l->attention;
  const oct_cpu_token *token = &f->tokens[i];
  const oct_cpu_view *view = &f->views[token->view];
  (void)thread;
  float *q = f->room.q + (gsize)i * a->n_heads * (a->qk_nope + a->qk_rope);
  float *k = f->room.k + (gsize)i * (a->kv_lora + a->qk_rope);
  rotate(f, i, a->n_heads, a->qk_nope + a->qk_rope, q + a->qk_nope);
  rotate(f, i, 1, a->qk_rope, k + a->kv_lora);
  oct_kv_layer kv = oct_cpu_memory_layer(f->memory, view->domain, loop->layer);
  oct_ref_kv_store(&kv, view->tables[loop->l->group], token->position, k, NULL);
}

static void
absorb_item(void *context, guint32 head, guint32 thread) {
  const attention_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  oct_mla call = latent_call(loop, 0);
  oct_ref_mla_absorb(&call, head, f->m, f->room.q, f->room.low, f->scratch[thread]);
}

static void
values_item(void *context, guint32 head, guint32 thread) {
  const attention_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  oct_mla call = latent_call(loop, 0);
  oct_ref_mla_values(&call, head, f->m, f->room.latent, f->room.mixed, f->scratch[thread]);
}

static void
latent_item(void *context, guint32 item, guint32 thread) {
  const attention_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  const oct_attention_spec *a = loop->l->attention;
  guint32 parts = (a->n_heads + LATENT_HEADS - 1) / LATENT_HEADS;
  guint32 i = f->m - 1 - item / parts, first = item % parts * LATENT_HEADS;
  const oct_cpu_token *token = &f->tokens[i];
  const oct_cpu_view *view = &f->views[token->view];
  oct_mla call = latent_call(loop, view->domain);
  oct_ref_mla_latent(&call, view->tables[loop->l->group], token->position, first,
                     MIN(LATENT_HEADS, a->n_heads - first),
                     f->room.low + (gsize)i * a->n_heads * (a->kv_lora + a->qk_rope),
                     f->room.latent + (gsize)i * a->n_heads * a->kv_lora, f->scratch[thread]);
}

static void
expanded_item(void *context, guint32 item, guint32 thread) {
  const attention_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  const oct_attention_spec *a = loop->l->attention;
  guint32 i = f->m - 1 - item / a->n_heads, head = item % a->n_heads;
  const oct_cpu_token *token = &f->tokens[i];
  const oct_cpu_view *view = &f->views[token->view];
  oct_mla call = latent_call(loop, view->domain);
  oct_ref_mla_expanded(&call, view->tables[loop->l->group], token->position, head,
                       f->room.q + (gsize)i * a->n_heads * (a->qk_nope + a->qk_rope),
                       f->room.mixed + (gsize)i * a->n_heads * a->v_head, f->scratch[thread]);
}

/* Queries, directly or through a low rank with a norm of its own. */
static void
project_latent_queries(oct_cpu_forward *f, const oct_cpu_layer *l) {
  const oct_forward_room *r = &f->room;
  guint32 lora = l->attention->q_lora;
  oct_forward_product in[] = {
      oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_KV_A], l->vectors[OCT_WEIGHT_KV_A_BIAS],
                             r->normed, r->k),
      lora > 0 ? oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_Q_A],
                                        l->vectors[OCT_WEIGHT_Q_A_BIAS], r->normed, r->low)
               : oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_Q], NULL, r->normed, r->q)};
  oct_forward_products(f, in, G_N_ELEMENTS(in));
  if (lora == 0)
    return;
  oct_forward_norm(f, r->low, l->vectors[OCT_WEIGHT_Q_A_NORM], lora, lora,
                   oct_arithmetic_latent_eps(f->model->spec), r->low);
  oct_forward_product out =
      oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_Q_B], NULL, r->low, r->q);
  oct_forward_products(f, &out, 1);
}

void
oct_forward_latent(oct_cpu_forward *f, guint32 layer) {
  const oct_cpu_layer *l = &f->model->layers[layer];
  const oct_attention_spec *a = l->attention;
  attention_loop loop = {f, l, layer};
  project_latent_queries(f, l);
  oct_forward_norm(f, f->room.k, l->vectors[OCT_WEIGHT_KV_A_NORM], a->kv_lora,
                   (gsize)a->kv_lora + a->qk_rope, oct_arithmetic_latent_eps(f->model->spec),
                   f->room.k);
  oct_team_run(f->team, store_latent_item, &loop, f->m);
  if (f->options.expanded_latents) {
    oct_team_run(f->team, expanded_item, &loop, f->m * a->n_heads);
  } else {
    oct_team_run(f->team, absorb_item, &loop, a->n_heads);
    oct_team_run(f->team, latent_item, &loop,
                 f->m * ((a->n_heads + LATENT_HEADS - 1) / LATENT_HEADS));
    oct_team_run(f->team, values_item, &loop, a->n_heads);
  }
  if (a->output_gate)
    gate_out(f, l);
  project_out(f, l);
}

/* ---------------------------------------------------------------- delta attention */

/* One head of all tokens of the tile, in order: states of different sequences are apart. */
static void
delta_item(void *context, guint32 head, guint32 thread) {
  const attention_loop *loop = context;
  oct_cpu_forward *f = loop->f;
  oct_kda kda = oct_cpu_model_kda(f->model, loop->l);
  gsize width = (gsize)kda.n_heads * kda.width;
  const oct_forward_room *r = &f->room;
  for (guint32 i = 0; i < f->m; i++) {
    const oct_cpu_view *view = &f->views[f->tokens[i].view];
    float *state =
        oct_cpu_memory_state(f->memory, view->domain, loop->layer, view->tables[loop->l->group][0]);
    const oct_kda_token token = {.q = r->q + i * width,
                                 .k = r->k + i * width,
                                 .v = r->v + i * width,
                                 .z = r->latent + i * width,
                                 .beta = r->beta + (gsize)i * kda.n_heads};
    oct_ref_kda(&kda, state, &token, head, 1, r->mixed + i * width, f->scratch[thread]);
  }
}

/* A sequence's first token finds an empty state, whatever the slot held. */
static void
clear_states(oct_cpu_forward *f, const oct_cpu_layer *l, guint32 layer) {
  oct_kda kda = oct_cpu_model_kda(f->model, l);
  for (guint32 i = 0; i < f->m; i++) {
    const oct_cpu_view *view = &f->views[f->tokens[i].view];
    if (f->tokens[i].position == 0)
      memset(oct_cpu_memory_state(f->memory, view->domain, layer, view->tables[l->group][0]), 0,
             oct_ref_kda_state_floats(&kda) * sizeof(float));
  }
}

/* The output's norm per head, and its gate, whose logits are in room.latent. */
static void
gate_delta(oct_cpu_forward *f, const oct_cpu_layer *l) {
  const oct_attention_spec *a = l->attention;
  gsize width = (gsize)a->n_heads * a->head_dim;
  for (guint32 i = 0; i < f->m; i++) {
    float *row = f->room.mixed + i * width;
    oct_ref_rms_norm(row, l->vectors[OCT_WEIGHT_HEAD_NORM], a->n_heads, a->head_dim, a->head_dim,
                     (float)f->model->spec->rms_norm_eps, row);
    oct_ref_sigmoid_gate(row, f->room.latent + i * width, width);
  }
}

/* A projection through a low rank, into room.latent; zeros when the rank is 0. */
static void
project_low(oct_cpu_forward *f, const oct_attention_spec *a, const oct_matrix *down,
            const oct_matrix *up) {
  if (up->rows == 0) {
    memset(f->room.latent, 0, (gsize)f->m * a->n_heads * a->head_dim * sizeof(float));
    return;
  }
  oct_forward_product in = oct_forward_product_of(f, down, NULL, f->room.normed, f->room.low);
  oct_forward_products(f, &in, 1);
  oct_forward_product out = oct_forward_product_of(f, up, NULL, f->room.low, f->room.latent);
  oct_forward_products(f, &out, 1);
}

void
oct_forward_delta(oct_cpu_forward *f, guint32 layer) {
  const oct_cpu_layer *l = &f->model->layers[layer];
  const oct_forward_room *r = &f->room;
  attention_loop loop = {f, l, layer};
  const oct_forward_product in[] = {
      oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_Q], NULL, r->normed, r->q),
      oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_K], NULL, r->normed, r->k),
      oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_V], NULL, r->normed, r->v),
      oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_BETA], NULL, r->normed, r->beta)};
  oct_forward_products(f, in, G_N_ELEMENTS(in));
  project_low(f, l->attention, &l->matrices[OCT_WEIGHT_DECAY_A], &l->matrices[OCT_WEIGHT_DECAY_B]);
  clear_states(f, l, layer);
  oct_team_run(f->team, delta_item, &loop, l->attention->n_heads);
  if (l->attention->output_gate_rank > 0) {
    project_low(f, l->attention, &l->matrices[OCT_WEIGHT_ATTN_GATE_A],
                &l->matrices[OCT_WEIGHT_ATTN_GATE_B]);
  } else {
    oct_forward_product gate =
        oct_forward_product_of(f, &l->matrices[OCT_WEIGHT_ATTN_GATE], NULL, r->normed, r->latent);
    oct_forward_products(f, &gate, 1);
  }
  gate_delta(f, l);
  project_out(f, l);
}
