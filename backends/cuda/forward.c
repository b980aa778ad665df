/* The loop over layers, logits, and working memory. */
#include "backends/cuda/forward-internal.h"

#include <string.h>

/* ---------------------------------------------------------------- products */

/* Tokens from which inputs are rounded to fp8, where that is asked for: below them a product is
 * bound by reading its weight. */
#define FP8_TOKENS 65

static gboolean
takes_narrow(const oct_cuda_forward *f, const oct_cuda_matrix *weight, guint32 m) {
  return f->room.narrow != NULL && weight->format == OCT_CUDA_MATRIX_FP8 && m >= FP8_TOKENS &&
         (f->rank->queue.flags & OCT_CUDA_FIXED_ORDER) == 0;
}

/* The product's inputs in fp8, when it takes them so. */
static void
narrow_inputs(oct_cuda_forward *f, oct_cuda_matmul *call) {
  oct_cuda_room *r = &f->room;
  if (!takes_narrow(f, &call->weight, call->m))
    return;
  const oct_cuda_quantise quantise = {.type = call->x_type,
                                      .n = call->m,
                                      .width = call->weight.columns,
                                      .x = call->x,
                                      .x_stride = call->x_stride,
                                      .scale = r->narrow_scale,
                                      .out = r->narrow};
  if (!f->is_narrow || call->x != r->normed) {
    (void)oct_cuda_note(f->rank, oct_cuda_quantise_fp8(&f->rank->queue, &quantise), "fp8 inputs");
    f->is_narrow = FALSE;
  }
  call->x_type = OCT_CUDA_FP8;
  call->x = r->narrow;
  call->x_stride = call->weight.columns;
  call->x_scale = r->narrow_scale;
}

void
oct_cuda_forward_multiply(oct_cuda_forward *f, const oct_cuda_product *p, guint32 m) {
  oct_cuda_matmul call = {.weight = *p->weight,
                          .x_type = f->type,
                          .y_type = p->y_type,
                          .m = m,
                          .x = p->x,
                          .x_stride = p->x_stride,
                          .bias = p->bias,
                          .y = p->y,
                          .y_stride = p->y_stride};
  narrow_inputs(f, &call);
  (void)oct_cuda_note(f->rank, oct_cuda_multiply(&f->rank->queue, f->rank->blas, &call),
                      "a matrix product");
}

gboolean
oct_cuda_forward_gated(oct_cuda_forward *f, const oct_cuda_matrix *weight, const void *x, void *y) {
  const oct_cuda_matmul call = {.weight = *weight,
                                .x_type = f->type,
                                .y_type = f->type,
                                .m = f->m,
                                .x = x,
                                .x_stride = weight->columns,
                                .glu = &f->model->glu,
                                .y = y,
                                .y_stride = weight->rows / 2};
  if (takes_narrow(f, weight, f->m))
    return FALSE;
  oct_cuda_path path = oct_cuda_matmul_path(&f->rank->queue, &call);
  return (path == OCT_CUDA_PATH_CODES || path == OCT_CUDA_PATH_NARROW) &&
         oct_cuda_note(f->rank, oct_cuda_multiply(&f->rank->queue, f->rank->blas, &call),
                       "a gated product");
}

void
oct_cuda_forward_project(oct_cuda_forward *f, const oct_cuda_matrix *weight, const void *bias,
                         const void *x, void *y) {
  const oct_cuda_product product = {.weight = weight,
                                    .bias = bias,
                                    .x = x,
                                    .x_stride = weight->columns,
                                    .y = y,
                                    .y_stride = weight->rows,
                                    .y_type = f->type};
  oct_cuda_forward_multiply(f, &product, f->m);
}

/* Parts of a product's inputs; 0: it is made whole. Of few weight rows cuBLASLt shares the inputs
 * out by itself, and sums up in a kernel more, which the norm behind spares. By steps on an H200:
 * of more rows of x, long inputs alone. */
static guint32
parts_of(const oct_cuda_forward *f, const oct_cuda_matmul *call) {
  guint32 rows = call->weight.rows, columns = call->weight.columns;
  gboolean is_large = oct_cuda_matrix_bytes(&call->weight) >= OCT_FORWARD_PARTS_BYTES;
  gboolean is_low = rows <= 64 * f->rank->queue.sm_count / OCT_FORWARD_PARTS;
  gboolean pays = is_large && is_low && (call->m <= 32 || columns >= 2 * rows);
  if (f->room.parts == NULL || call->m > OCT_FORWARD_PARTS_TOKENS || call->bias != NULL ||
      call->weight.format != OCT_CUDA_MATRIX_BF16 || columns % (8 * OCT_FORWARD_PARTS) != 0 ||
      !pays)
    return 0;
  return oct_cuda_matmul_path(&f->rank->queue, call) == OCT_CUDA_PATH_BLAS ? OCT_FORWARD_PARTS : 0;
}

void
oct_cuda_forward_project_back(oct_cuda_forward *f, const oct_cuda_matrix *weight, const void *bias,
                              const void *x) {
  oct_cuda_matmul call = {.weight = *weight,
                          .x_type = f->type,
                          .y_type = OCT_CUDA_F32,
                          .m = f->m,
                          .bias = bias,
                          .x = x,
                          .x_stride = weight->columns,
                          .y = f->room.parts,
                          .y_stride = weight->rows};
  f->n_parts = parts_of(f, &call);
  if (f->n_parts == 0) {
    oct_cuda_forward_project(f, weight, bias, x, f->room.y);
    return;
  }
  call.w_stride = weight->columns;
  call.weight.columns /= f->n_parts;
  call.batch = f->n_parts;
  call.w_batch = call.x_batch = call.weight.columns;
  call.y_batch = (gsize)f->m * weight->rows;
  (void)oct_cuda_note(f->rank, oct_cuda_multiply(&f->rank->queue, f->rank->blas, &call),
                      "a product in parts");
}

/* ---------------------------------------------------------------- layers */

/* The one product that reads the norm in front of a half of a layer, or NULL. */
static const oct_cuda_matrix *
reader_of_attention(const oct_cuda_layer *l) {
  oct_attention_kind kind = l->attention->kind;
  return kind == OCT_ATTENTION_MLA || kind == OCT_ATTENTION_KDA ? NULL : &l->qkv;
}
static const oct_cuda_matrix *
reader_of_feed(const oct_cuda_layer *l) {
  return l->ffn_spec->kind == OCT_FFN_DENSE ? &l->dense.gate_up : NULL;
}

/* The sum of y over the ranks goes to the residual stream; its norm to room.normed, and in fp8 to
 * room.narrow where `reader`, or NULL, takes it so. */
static void
add_and_norm(oct_cuda_forward *f, const void *weight, const oct_cuda_matrix *reader) {
  f->is_narrow = f->rank->group->n_tensor == 1 && reader != NULL && takes_narrow(f, reader, f->m);
  const oct_cuda_sum sum = {.n = f->m,
                            .width = f->model->spec->hidden,
                            .parts = f->n_parts,
                            .x = f->n_parts > 0 ? (void *)f->room.parts : f->room.y,
                            .residual = f->room.residual,
                            .weight = weight,
                            .eps = (float)f->model->spec->rms_norm_eps,
                            .out = weight != NULL ? f->room.normed : NULL,
                            .narrow = f->is_narrow ? f->room.narrow : NULL,
                            .narrow_scale = f->room.narrow_scale};
  (void)oct_cuda_comm_sum(f->options.comms[OCT_CUDA_CIRCLE_TENSOR], &sum);
  f->n_parts = 0;
}

void
oct_cuda_forward_attend(oct_cuda_forward *f, const oct_cuda_layer *l) {
  if (l->attention->kind == OCT_ATTENTION_MLA)
    oct_cuda_forward_latent(f, l);
  else if (l->attention->kind == OCT_ATTENTION_KDA)
    oct_cuda_forward_delta(f, l);
  else
    oct_cuda_forward_attention(f, l);
}

void
oct_cuda_forward_feed(oct_cuda_forward *f, const oct_cuda_layer *l) {
  if (l->ffn_spec->kind == OCT_FFN_DENSE)
    oct_cuda_forward_dense(f, &l->dense);
  else if (l->ffn_spec->kind == OCT_FFN_LATENT_MOE)
    oct_cuda_forward_latent_experts(f, l);
  else
    oct_cuda_forward_experts(f, l);
}

void
oct_cuda_forward_mark(oct_cuda_forward *f, guint32 half) {
  if (f->room.stamps != NULL)
    (void)oct_cuda_note(f->rank, oct_glue_stamp(f->rank->compute, f->room.stamps + half),
                        "a stamp");
}

/* `next`: the layer behind it, or NULL; next_norm is what follows. */
static void
run_layer(oct_cuda_forward *f, const oct_cuda_layer *l, const oct_cuda_layer *next,
          const void *next_norm) {
  guint32 half = 2 * (l->index - f->rank->first_layer);
  oct_cuda_forward_mark(f, half);
  oct_cuda_forward_attend(f, l);
  add_and_norm(f, l->ffn_norm, reader_of_feed(l));
  oct_cuda_forward_mark(f, half + 1);
  oct_cuda_forward_feed(f, l);
  add_and_norm(f, next_norm, next != NULL ? reader_of_attention(next) : NULL);
}

/* Of several ranks each has the rows of some ids, and zeros of others: the sum is the stream, whose
 * first norm comes with it. */
static void
embed(oct_cuda_forward *f) {
  gboolean alone = f->rank->group->n_tensor == 1;
  const oct_cuda_matrix *table = &f->model->embedding;
  const oct_cuda_embed call = {.table_type = f->type,
                               .type = alone ? OCT_CUDA_F32 : f->type,
                               .table = table->data,
                               .rows = table->data != NULL ? table->rows : 0,
                               .width = f->model->spec->hidden,
                               .ids = f->pass->batch->ids,
                               .n = f->m,
                               .out = alone ? (void *)f->room.residual : f->room.y};
  gsize bytes = (gsize)f->m * call.width * sizeof *f->room.residual;
  (void)oct_cuda_note(f->rank,
                      oct_cuda_embed_part(&f->rank->queue, &call, f->rank->tensor * table->rows),
                      "embeddings");
  if (alone)
    return;
  (void)oct_cuda_note(f->rank, cudaMemsetAsync(f->room.residual, 0, bytes, f->rank->compute),
                      "embeddings");
  add_and_norm(f, f->model->layers[0].attn_norm, NULL);
}

static void
first_norm(oct_cuda_forward *f) {
  guint32 hidden = f->model->spec->hidden;
  const oct_cuda_norm norm = {.type = f->type,
                              .residual_type = OCT_CUDA_F32,
                              .n = f->m,
                              .width = hidden,
                              .residual = f->room.residual,
                              .residual_stride = hidden,
                              .weight = f->model->layers[0].attn_norm,
                              .eps = (float)f->model->spec->rms_norm_eps,
                              .out = f->room.normed,
                              .out_stride = hidden};
  (void)oct_cuda_note(f->rank, oct_cuda_rms_norm(&f->rank->queue, &norm), "a norm");
}

static void
place_tokens(oct_cuda_forward *f) {
  const oct_cuda_group *g = f->rank->group;
  (void)oct_cuda_note(
      f->rank,
      oct_cuda_context_places(&f->rank->queue, f->pass->batch, g->config->block_size, g->n_context,
                              f->rank->tensor % g->n_context, f->room.place, f->room.visible),
      "tokens' places");
}

void
oct_cuda_forward_run(oct_cuda_forward *f, const oct_cuda_pass *pass) {
  f->pass = pass;
  f->m = pass->batch->n_tokens;
  f->is_narrow = FALSE;
  if (f->room.counts != NULL)
    (void)oct_cuda_note(
        f->rank,
        cudaMemsetAsync(f->room.counts, 0,
                        (gsize)f->rank->n_layers * f->most_experts * sizeof *f->room.counts,
                        f->rank->compute),
        "expert counts");
  if (f->n_join > 1)
    oct_cuda_forward_join(f);
  if (f->room.place != NULL)
    place_tokens(f);
  if (f->rank->is_first)
    embed(f);
  if (f->room.snapshots != NULL) {
    oct_cuda_forward_run_residuals(f);
    return;
  }
  if (!f->rank->is_first || f->rank->group->n_tensor == 1)
    first_norm(f);
  for (guint32 i = 0; i < f->rank->n_layers && !oct_cuda_has_failed(f->rank); i++) {
    const oct_cuda_layer *l = &f->model->layers[i];
    const oct_cuda_layer *next = i + 1 < f->rank->n_layers ? l + 1 : NULL;
    run_layer(f, l, next, next != NULL ? next->attn_norm : f->model->final_norm);
  }
  oct_cuda_forward_mark(f, 2 * f->rank->n_layers);
}

void
oct_cuda_forward_logits(oct_cuda_forward *f, const guint32 *rows, guint32 n) {
  guint32 hidden = f->model->spec->hidden, mine = f->model->head_rows;
  void *x = f->room.normed;
  gboolean alone = f->rank->group->n_tensor == 1;
  if (rows != NULL) {
    const oct_cuda_gather gather = {.type = f->type,
                                    .n = n,
                                    .width = hidden,
                                    .rows = rows,
                                    .x = f->room.normed,
                                    .x_stride = hidden,
                                    .out = f->room.picked,
                                    .out_stride = hidden};
    (void)oct_cuda_note(f->rank, oct_cuda_gather_rows(&f->rank->queue, &gather), "sampled rows");
    x = f->room.picked;
  }
  const oct_cuda_product head = {.weight = &f->model->head,
                                 .x = x,
                                 .x_stride = hidden,
                                 .y = alone ? f->room.logits : f->room.part,
                                 .y_stride = mine,
                                 .y_type = OCT_CUDA_F32};
  oct_cuda_forward_multiply(f, &head, n);
  if (!alone)
    (void)oct_cuda_comm_gather(f->options.comms[OCT_CUDA_CIRCLE_TENSOR], f->room.part, n, mine,
                               f->room.logits);
}

/* ---------------------------------------------------------------- working memory */

/* The most of each kind of row over the rank's layers, in elements. */
typedef struct widths {
  gsize latent_row, kv, rest, qkv, latents, low, gate, open, mixed, inner, pair_inner, pair_outer,
      experts, top_k, latent;
} widths;

static void
at_least(gsize *to, gsize value) {
  *to = MAX(*to, value);
}

static void
measure_attention(widths *w, const oct_cuda_layer *l) {
  const oct_attention_spec *a = l->attention;
  gsize heads = l->heads;
  if (a->kind == OCT_ATTENTION_MLA) {
    at_least(&w->qkv, heads * (a->qk_nope + a->qk_rope));
    at_least(&w->latents, l->input.rows);
    at_least(&w->low, MAX(a->q_lora, heads * (a->kv_lora + a->qk_rope)));
    at_least(&w->gate, heads * a->kv_lora);
    at_least(&w->mixed, heads * a->v_head);
    return;
  }
  at_least(&w->qkv, l->qkv.rows);
  at_least(&w->mixed, heads * a->head_dim);
  if (a->kind == OCT_ATTENTION_KDA) {
    at_least(&w->gate, heads * a->head_dim);
    at_least(&w->open, l->gate_b.rows);
  }
}

static widths
measure(const oct_cuda_forward *f) {
  widths w = {0};
  for (guint32 i = 0; i < f->rank->n_layers; i++) {
    const oct_cuda_layer *l = &f->model->layers[i];
    measure_attention(&w, l);
    at_least(&w.kv, oct_cuda_forward_expanded_room(f, l).kv);
    at_least(&w.rest, oct_cuda_forward_expanded_room(f, l).rest);
    at_least(&w.inner, MAX(l->dense.inner, l->shared.inner));
    at_least(&w.pair_inner, l->experts.inner);
    at_least(&w.pair_outer, l->experts.gate_up.columns);
    at_least(&w.latent, l->ffn_spec->latent);
    at_least(&w.latent_row, oct_cuda_latent_row_of(l, f->type).bytes);
    at_least(&w.low, l->ffn_spec->latent);
    at_least(&w.experts, l->ffn_spec->n_experts);
    at_least(&w.top_k, l->ffn_spec->top_k);
  }
  return w;
}

static void *
take(oct_cuda_forward *f, gsize rows, gsize elements, gsize bytes) {
  return oct_cuda_alloc(f->rank, (guint64)rows * elements * bytes, "working memory");
}

static void
make_expert_room(oct_cuda_forward *f, const widths *w) {
  oct_cuda_room *r = &f->room;
  gsize tokens = (gsize)f->options.max_tokens * f->n_join, pairs = tokens * w->top_k,
        element = oct_cuda_type_bytes(f->type), hidden = f->model->spec->hidden;
  if (w->latent > 0)
    r->latent_sum = take(f, f->options.max_tokens, w->latent, element);
  if (w->latent_row > 0)
    r->latent_rows = take(f, f->options.max_tokens, w->latent_row, 1);
  if (f->n_join > 1) {
    r->own_experts = take(f, f->options.max_tokens, w->top_k, sizeof *r->own_experts);
    r->own_weights = take(f, f->options.max_tokens, w->top_k, sizeof *r->own_weights);
    r->joint_x = take(f, tokens, hidden, element);
    r->joint_y = take(f, tokens, hidden, element);
    r->joint_seq = take(f, tokens, 1, sizeof *r->joint_seq);
  }
  r->router = take(f, tokens, w->experts, sizeof *r->router);
  r->weights = take(f, pairs, 1, sizeof *r->weights);
  r->shared_switch = take(f, tokens, 1, sizeof *r->shared_switch);
  r->experts = take(f, pairs, 1, sizeof *r->experts);
  r->starts = take(f, w->experts + 1, 1, sizeof *r->starts);
  r->pair_of = take(f, pairs, 1, sizeof *r->pair_of);
  r->row_of = take(f, pairs, 1, sizeof *r->row_of);
  r->pair_y = take(f, pairs, w->pair_outer, sizeof(float));
  f->most_experts = (guint32)w->experts;
  if (f->options.count_experts)
    r->counts = take(f, f->rank->n_layers, w->experts, sizeof *r->counts);
}

static void
make_context_room(oct_cuda_forward *f) {
  oct_cuda_room *r = &f->room;
  gsize q = 0, found = 0, rows = (gsize)f->rank->group->n_context * OCT_FORWARD_CONTEXT;
  for (guint32 i = 0; i < f->rank->n_layers; i++) {
    const oct_cuda_layer *l = &f->model->layers[i];
    const oct_attention_spec *a = l->attention;
    gboolean latent = a->kind == OCT_ATTENTION_MLA;
    at_least(&q, (gsize)l->heads * (latent ? a->kv_lora + a->qk_rope : a->head_dim));
    at_least(&found, (gsize)l->heads * ((latent ? a->kv_lora : a->head_dim) + 2));
  }
  r->place = take(f, f->options.max_tokens, 1, sizeof *r->place);
  r->visible = take(f, f->options.max_tokens, 1, sizeof *r->visible);
  r->own_q = take(f, OCT_FORWARD_CONTEXT, q, oct_cuda_type_bytes(f->type));
  r->context_q = take(f, rows, q, oct_cuda_type_bytes(f->type));
  r->found = take(f, rows, found, sizeof *r->found);
  r->gathered = take(f, rows, found, sizeof *r->gathered);
}

/* For who asks when the first rank's layers ran. */
static void
make_stamps(oct_cuda_forward *f) {
  oct_cuda_stamps *stamps = f->rank->group->options->stamps;
  if (stamps == NULL || f->rank->index != 0)
    return;
  f->room.stamps = oct_cuda_alloc_pinned(
      f->rank, (2 * (gsize)f->rank->n_layers + 1) * sizeof *f->room.stamps, "stamps");
  *stamps = (oct_cuda_stamps){.n_layers = f->rank->n_layers, .at = f->room.stamps};
}

static void
make_room(oct_cuda_forward *f) {
  widths w = measure(f);
  oct_cuda_room *r = &f->room;
  gsize tokens = f->options.max_tokens, hidden = f->model->spec->hidden,
        element = oct_cuda_type_bytes(f->type);
  r->residual = take(f, tokens, hidden, sizeof *r->residual);
  r->normed = take(f, tokens, hidden, element);
  if (f->model->spec->attn_res_block > 0) {
    guint32 end = f->rank->first_layer + f->rank->n_layers;
    r->snapshots = take(f, oct_cuda_forward_snapshots_before(f, end), tokens * hidden, element);
  }
  r->y = take(f, tokens, hidden, element);
  if (r->snapshots == NULL && f->rank->group->n_tensor == 1 && f->type == OCT_CUDA_BF16)
    r->parts = take(f, OCT_FORWARD_PARTS * MIN(tokens, OCT_FORWARD_PARTS_TOKENS), hidden,
                    sizeof *r->parts);
  r->qkv = take(f, tokens, w.qkv, element);
  r->latents = take(f, tokens, w.latents, element);
  r->low = take(f, tokens, w.low, element);
  r->gate = take(f, tokens, w.gate, element);
  r->open = take(f, tokens, w.open, element);
  r->mixed = take(f, tokens, w.mixed, element);
  gsize inner = MAX(tokens * w.inner, tokens * f->n_join * w.top_k * w.pair_inner);
  r->both = take(f, MAX(2 * inner * element, w.kv), 1, 1);
  r->inner = take(f, MAX(inner * element, w.rest), 1, 1);
  if (w.experts > 0)
    make_expert_room(f, &w);
  if (w.latent > 0)
    oct_cuda_forward_make_beside(f, w.inner);
  if (f->rank->group->n_context > 1)
    make_context_room(f);
  if (f->rank->group->options->fp8_inputs && f->type == OCT_CUDA_BF16 &&
      f->rank->queue.capability == 90 && f->rank->blas != NULL) {
    r->narrow = take(f, tokens, MAX(MAX(hidden, w.mixed), MAX(w.inner, w.low)), 1);
    r->narrow_scale = take(f, tokens, 1, sizeof *r->narrow_scale);
  }
  make_stamps(f);
  r->workspace_bytes = oct_cuda_forward_attention_workspace(f);
  r->workspace = take(f, r->workspace_bytes, 1, 1);
  if (!f->rank->is_last)
    return;
  gsize rows = f->options.logit_rows, ranks = f->rank->group->n_tensor;
  f->logits_stride = f->model->head_rows * ranks;
  r->picked = take(f, rows, hidden, element);
  r->logits = take(f, rows, f->logits_stride, sizeof *r->logits);
  if (ranks > 1)
    r->part = take(f, rows, f->model->head_rows, sizeof *r->part);
}

oct_cuda_forward *
oct_cuda_forward_new(const oct_cuda_forward_options *options) {
  oct_cuda_forward *f = g_new0(oct_cuda_forward, 1);
  f->options = *options;
  f->rank = options->rank;
  f->model = options->model;
  f->type = oct_cuda_rank_type(f->rank);
  f->n_join = f->options.comms[OCT_CUDA_CIRCLE_DOMAINS] != NULL ? f->rank->group->n_domains : 1;
  make_room(f);
  if (oct_cuda_has_failed(f->rank))
    g_clear_pointer(&f, oct_cuda_forward_free);
  return f;
}

void
oct_cuda_forward_free(oct_cuda_forward *f) {
  if (f != NULL)
    oct_cuda_forward_clear_beside(f);
  g_free(f);
}

float *
oct_cuda_forward_residual(const oct_cuda_forward *f) {
  return f->room.residual;
}

const void *
oct_cuda_forward_normed(const oct_cuda_forward *f) {
  return f->room.normed;
}

const float *
oct_cuda_forward_logits_at(const oct_cuda_forward *f, gsize *stride) {
  *stride = f->logits_stride;
  return f->room.logits;
}

guint32 *
oct_cuda_forward_counts(const oct_cuda_forward *f, gsize *n) {
  *n = (gsize)f->rank->n_layers * f->most_experts;
  return f->room.counts;
}
