#include "tests/backends/cuda/ranks.h"

#include <string.h>

#include "backends/arithmetic.h"
#include "backends/cpu/forward-internal.h"

#define SEED  5
#define BLOCK 16

typedef struct rank {
  oct_cuda_share place;
  oct_model_spec spec; /* its share of the widths */
  oct_cpu_model model;
  oct_cpu_memory *memory;
  oct_cpu_forward *forward;
  guint64 floats;
} rank;

struct ranks {
  const oct_model_spec *spec;
  const oct_parallel *parallel;
  oct_cpu_model *whole;
  oct_cpu_memory *memory;
  oct_cpu_forward *forward;
  oct_team *team;
  rank *all;
  guint32 n, n_stage; /* ranks; of a stage */
  guint32 *pages;
  float *latent, *sum; /* experts' latents, and the sum of what they give */
};

/* ---------------------------------------------------------------- a rank's weights */

static void *
own(rank *r, gsize floats) {
  float *memory = g_new0(float, floats);
  g_ptr_array_add(r->model.owned, memory);
  return memory;
}

/* A part of a weight, as float32. */
static float *
read_part(rank *r, const oct_weight *w, const oct_cuda_piece *part) {
  float *out = own(r, part->rows * part->columns);
  g_autofree float *rows = g_new(float, part->rows * w->columns);
  oct_weight_read(w, part->row, part->rows, rows);
  for (guint64 i = 0; i < part->rows; i++)
    memcpy(out + i * part->columns, rows + i * w->columns + part->column,
           part->columns * sizeof *out);
  r->floats += part->rows * part->columns;
  return out;
}

static oct_matrix
matrix_of(const oct_cuda_piece *part, const float *data) {
  return (oct_matrix){.format = OCT_MATRIX_F32,
                      .rows = (guint32)part->rows,
                      .columns = (guint32)part->columns,
                      .data = data};
}

/* Experts that other ranks have give nothing here. */
static void
make_experts(rank *r, oct_cpu_layer *l) {
  guint32 n = l->ffn->n_experts, inner = l->ffn->moe_intermediate;
  guint32 width = oct_cpu_model_expert_width(&r->model, l);
  const float *zeros = own(r, (gsize)inner * width);
  oct_matrix **matrices[] = {&l->experts.gate, &l->experts.up, &l->experts.down};
  const float ***biases[] = {&l->experts.gate_bias, &l->experts.up_bias, &l->experts.down_bias};
  for (guint i = 0; i < 3; i++) {
    *matrices[i] = g_new0(oct_matrix, n);
    *biases[i] = g_new0(const float *, n);
    g_ptr_array_add(r->model.owned, *matrices[i]);
    g_ptr_array_add(r->model.owned, (void *)*biases[i]);
    for (guint32 e = 0; e < n; e++)
      (*matrices[i])[e] =
          matrix_of(&(oct_cuda_piece){0, i < 2 ? inner : width, 0, i < 2 ? width : inner}, zeros);
  }
}

static void
take_expert(rank *r, oct_cpu_layer *l, const oct_weight *w, const oct_cuda_piece *part,
            const float *data) {
  oct_matrix *matrices[] = {l->experts.gate, l->experts.up, l->experts.down};
  const float **biases[] = {l->experts.gate_bias, l->experts.up_bias, l->experts.down_bias};
  guint at = w->kind - OCT_WEIGHT_EXPERT_GATE;
  (void)r;
  if (at >= 3) {
    biases[at - 3][w->expert] = data;
    return;
  }
  oct_matrix *to = &matrices[at][w->expert];
  g_assert_cmpuint(to->rows, ==, part->rows);
  g_assert_cmpuint(to->columns, ==, part->columns);
  *to = matrix_of(part, data);
}

static gboolean
is_vector(const oct_weight *w) {
  return w->columns == 1 || (w->kind >= OCT_WEIGHT_Q_CONV && w->kind <= OCT_WEIGHT_V_CONV);
}

static void
take(rank *r, const oct_weight *w, oct_weight_kind kind) {
  oct_cpu_layer *l = &r->model.layers[w->layer];
  oct_cuda_piece part =
      oct_cuda_piece_of(&r->place, kind, w->layer, w->expert, w->rows, w->columns);
  if (part.rows == 0)
    return;
  g_assert_cmpuint(part.row + part.rows, <=, w->rows);
  g_assert_cmpuint(part.column + part.columns, <=, w->columns);
  const float *data = read_part(r, w, &part);
  if (kind == OCT_WEIGHT_EMBEDDING)
    r->model.embedding = matrix_of(&part, data);
  else if (kind == OCT_WEIGHT_HEAD)
    r->model.head = matrix_of(&part, data);
  else if (kind < OCT_WEIGHT_ATTN_NORM)
    return; /* what follows the last layer is the same everywhere */
  else if (kind >= OCT_WEIGHT_EXPERT_GATE)
    take_expert(r, l, w, &part, data);
  else if (is_vector(w))
    l->vectors[kind] = data;
  else
    l->matrices[kind] = matrix_of(&part, data);
}

/* ---------------------------------------------------------------- a rank */

/* The widths that a rank computes with. */
static void
share_spec(rank *r, const oct_model_spec *spec, const oct_parallel *p) {
  r->spec = *spec;
  for (guint32 i = 0; i < spec->n_attention; i++) {
    r->spec.attention[i].n_heads /= p->tensor;
    r->spec.attention[i].n_kv_heads = MAX(spec->attention[i].n_kv_heads / p->tensor, 1);
  }
  for (guint32 i = 0; i < spec->n_ffn; i++) {
    oct_ffn_spec *f = &r->spec.ffn[i];
    f->intermediate /= p->tensor;
    f->shared_intermediate /= p->tensor;
    f->moe_intermediate /= p->expert_parallel ? 1 : p->tensor;
  }
}

static void
make_layers(rank *r, const oct_cpu_model *whole) {
  r->model = (oct_cpu_model){.spec = &r->spec,
                             .rope = whole->rope,
                             .rope_frequencies = whole->rope_frequencies,
                             .glu = whole->glu,
                             .latent_scale = whole->latent_scale};
  r->model.owned = g_ptr_array_new_with_free_func(g_free);
  r->model.layers = g_new0(oct_cpu_layer, r->spec.n_layers);
  for (guint32 i = 0; i < r->spec.n_layers; i++) {
    oct_cpu_layer *l = &r->model.layers[i];
    *l = (oct_cpu_layer){.attention = &r->spec.attention[r->spec.layers[i].attention],
                         .ffn = &r->spec.ffn[r->spec.layers[i].ffn],
                         .group = whole->layers[i].group,
                         .place = whole->layers[i].place};
    if (l->ffn->kind != OCT_FFN_DENSE)
      make_experts(r, l);
  }
}

static oct_cpu_forward *
forward_of(ranks *s, const oct_cpu_model *model, guint32 context, oct_cpu_memory **memory) {
  g_autoptr(GError) error = NULL;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_instance_config config = {
      .spec = model->spec, .parallel = OCT_PARALLEL_DEFAULT, .block_size = BLOCK};
  config.memory.n_groups = oct_model_groups(s->spec, OCT_DTYPE_BF16, groups);
  for (guint32 g = 0; g < config.memory.n_groups; g++)
    config.memory.groups[g].n_device = (context + BLOCK - 1) / BLOCK;
  *memory = oct_cpu_memory_new(&config, model, OCT_KV_F32, &error);
  g_assert_no_error(error);
  const oct_cpu_forward_options options = {.model = model,
                                           .memory = *memory,
                                           .team = s->team,
                                           .max_tokens = context,
                                           .max_context = context};
  oct_cpu_forward *f = oct_cpu_forward_new(&options, &error);
  g_assert_no_error(error);
  return f;
}

static void
open_rank(ranks *s, guint32 index, guint32 context) {
  rank *r = &s->all[index];
  r->place = oct_cuda_share_of(s->spec, s->parallel, index);
  share_spec(r, s->spec, s->parallel);
  make_layers(r, s->whole);
  for (guint i = 0; i < oct_weight_map_n(s->whole->map); i++) {
    const oct_weight *w = oct_weight_map_at(s->whole->map, i);
    take(r, w, w->kind);
    if (w->kind == OCT_WEIGHT_EMBEDDING && s->spec->tied_embeddings)
      take(r, w, OCT_WEIGHT_HEAD);
  }
  r->forward = forward_of(s, &r->model, context, &r->memory);
}

static void
close_rank(rank *r) {
  oct_cpu_forward_free(r->forward);
  oct_cpu_memory_free(r->memory);
  g_ptr_array_unref(r->model.owned);
  g_free(r->model.layers);
}

/* ---------------------------------------------------------------- a layer by its ranks */

static gboolean
has_layer(const ranks *s, const rank *r, guint32 layer) {
  guint32 first, n;
  oct_parallel_stage(s->spec, s->parallel, r->place.stage, &first, &n);
  return layer >= first && layer < first + n;
}

/* What every rank of the stage reads is the same. */
static void
begin_part(const oct_cpu_forward *f, oct_cpu_forward *part) {
  gsize hidden = f->model->spec->hidden;
  part->views = f->views;
  part->tokens = f->tokens;
  part->m = f->m;
  memcpy(part->room.normed, f->room.normed, f->m * hidden * sizeof(float));
  memcpy(part->room.angles, f->room.angles, (gsize)f->m * f->model->rope.dim * sizeof(float));
  memset(part->room.x, 0, f->m * hidden * sizeof(float));
}

static void
end_part(oct_cpu_forward *f, const oct_cpu_forward *part) {
  oct_ref_add(f->room.x, part->room.x, (gsize)f->m * f->model->spec->hidden);
}

/* A domain's ranks attend for its own sequences: these are the first domain's. */
static void
attend(void *user, oct_cpu_forward *f, guint32 layer) {
  ranks *s = user;
  for (guint32 i = 0; i < s->n; i++) {
    rank *r = &s->all[i];
    if (!has_layer(s, r, layer) || r->place.domain != 0)
      continue;
    begin_part(f, r->forward);
    oct_forward_attend(r->forward, layer);
    end_part(f, r->forward);
  }
}

/* The latents' sum is complete before its norm; every rank has some rows of the way back, or all,
 * of which the first then makes the sum's part. */
static void
feed_latent(const ranks *s, oct_cpu_forward *f, rank *r, guint32 layer) {
  const oct_cpu_layer *l = &r->model.layers[layer];
  guint32 latent = l->ffn->latent, hidden = s->spec->hidden;
  const oct_matrix *up = &l->matrices[OCT_WEIGHT_LATENT_UP];
  oct_cuda_piece part =
      oct_cuda_piece_of(&r->place, OCT_WEIGHT_LATENT_UP, layer, 0, hidden, latent);
  g_autofree float *sum = g_memdup2(s->sum, (gsize)f->m * latent * sizeof *sum);
  g_autofree float *scratch = g_new(float, OCT_REF_MATMUL_ROWS *latent);
  if (up->rows == hidden && r->place.tensor > 0)
    return;
  if (l->ffn->latent_norm)
    oct_ref_rms_norm(sum, l->vectors[OCT_WEIGHT_LATENT_NORM], f->m, latent, latent,
                     (float)s->spec->rms_norm_eps, sum);
  const oct_matmul call = {.weight = up,
                           .x = sum,
                           .x_stride = latent,
                           .m = f->m,
                           .y = r->forward->room.x + part.row,
                           .y_stride = hidden};
  oct_ref_matmul(&call, 0, up->rows, scratch);
}

/* The experts' latents from the first domain's ranks, which have some rows of the projection each,
 * or all. */
static void
project_down(const ranks *s, oct_cpu_forward *f, rank *r, guint32 layer) {
  const oct_matrix *down = &r->model.layers[layer].matrices[OCT_WEIGHT_LATENT_DOWN];
  guint32 latent = f->model->layers[layer].ffn->latent, hidden = s->spec->hidden;
  oct_cuda_piece part =
      oct_cuda_piece_of(&r->place, OCT_WEIGHT_LATENT_DOWN, layer, 0, latent, hidden);
  g_autofree float *scratch = g_new(float, OCT_REF_MATMUL_ROWS *hidden);
  const oct_matmul call = {.weight = down,
                           .x = f->room.normed,
                           .x_stride = hidden,
                           .m = f->m,
                           .y = s->latent + part.row,
                           .y_stride = latent};
  oct_ref_matmul(&call, 0, down->rows, scratch);
}

/* Rows of the layer's router as the first domain's ranks have them: what comes of the product with
 * all of them is what the ranks exchange. Owned. */
static float *
join_routers(const ranks *s, guint32 layer) {
  const oct_ffn_spec *ffn = s->whole->layers[layer].ffn;
  gsize width = s->spec->hidden;
  float *all = g_new(float, ffn->n_experts *width);
  guint32 n = 0;
  for (guint32 i = 0; i < s->n && n < ffn->n_experts; i++) {
    const rank *r = &s->all[i];
    const oct_matrix *rows = &r->model.layers[layer].matrices[OCT_WEIGHT_ROUTER];
    if (!has_layer(s, r, layer) || r->place.domain != 0)
      continue;
    memcpy(all + n * width, rows->data, rows->rows * width * sizeof *all);
    n += rows->rows;
  }
  g_assert_cmpuint(n, ==, ffn->n_experts);
  return all;
}

/* Routed experts: of every domain, when they are whole. */
static void
feed_routed(ranks *s, oct_cpu_forward *f, rank *r, guint32 layer) {
  oct_cpu_layer *l = &r->model.layers[layer];
  oct_cpu_forward *part = r->forward;
  if (r->place.domain != 0 && !s->parallel->expert_parallel)
    return;
  begin_part(f, part);
  if (l->ffn->kind != OCT_FFN_LATENT_MOE) {
    oct_forward_routed(part, layer, part->room.normed);
    end_part(f, part);
    return;
  }
  oct_matrix own_rows = l->matrices[OCT_WEIGHT_ROUTER];
  g_autofree float *all = join_routers(s, layer);
  const oct_cuda_piece whole = {0, l->ffn->n_experts, 0, s->spec->hidden};
  l->matrices[OCT_WEIGHT_ROUTER] = matrix_of(&whole, all);
  oct_forward_routed(part, layer, s->latent);
  l->matrices[OCT_WEIGHT_ROUTER] = own_rows;
  oct_ref_add(s->sum, part->room.latent, (gsize)f->m * l->ffn->latent);
}

static void
feed_rest(ranks *s, oct_cpu_forward *f, rank *r, guint32 layer) {
  const oct_cpu_layer *l = &r->model.layers[layer];
  if (r->place.domain != 0)
    return;
  begin_part(f, r->forward);
  if (l->ffn->kind == OCT_FFN_DENSE) {
    oct_mlp mlp = oct_cpu_model_dense(&r->model, l);
    oct_forward_dense(r->forward, &mlp, r->forward->room.x);
  } else {
    if (l->ffn->kind == OCT_FFN_LATENT_MOE)
      feed_latent(s, f, r, layer);
    oct_forward_shared(r->forward, layer);
  }
  end_part(f, r->forward);
}

static void
feed(void *user, oct_cpu_forward *f, guint32 layer) {
  ranks *s = user;
  const oct_ffn_spec *ffn = f->model->layers[layer].ffn;
  memset(s->sum, 0, (gsize)f->m * MAX(ffn->latent, 1) * sizeof *s->sum);
  for (guint32 i = 0; i < s->n && ffn->kind == OCT_FFN_LATENT_MOE; i++)
    if (has_layer(s, &s->all[i], layer) && s->all[i].place.domain == 0)
      project_down(s, f, &s->all[i], layer);
  for (guint32 i = 0; i < s->n && ffn->kind != OCT_FFN_DENSE; i++)
    if (has_layer(s, &s->all[i], layer))
      feed_routed(s, f, &s->all[i], layer);
  for (guint32 i = 0; i < s->n; i++)
    if (has_layer(s, &s->all[i], layer))
      feed_rest(s, f, &s->all[i], layer);
}

/* ---------------------------------------------------------------- use */

ranks *
ranks_new(const oct_model_spec *spec, const oct_parallel *parallel, guint32 context) {
  g_autoptr(GError) error = NULL;
  g_assert_true(oct_parallel_check(spec, parallel, &error));
  ranks *s = g_new0(ranks, 1);
  const oct_cpu_model_options options = {.spec = spec, .seed = SEED};
  s->spec = spec;
  s->parallel = parallel;
  s->team = oct_team_new(1);
  s->whole = oct_cpu_model_load(&options, NULL, NULL, &error);
  g_assert_no_error(error);
  s->forward = forward_of(s, s->whole, context, &s->memory);
  s->n = oct_parallel_world(parallel);
  s->all = g_new0(rank, s->n);
  for (guint32 i = 0; i < s->n; i++)
    open_rank(s, i, context);
  s->pages = g_new(guint32, context);
  for (guint32 i = 0; i < context; i++)
    s->pages[i] = i;
  s->latent = g_new(float, (gsize)context * spec->hidden);
  s->sum = g_new(float, (gsize)context * spec->hidden);
  return s;
}

void
ranks_free(ranks *s) {
  for (guint32 i = 0; i < s->n; i++)
    close_rank(&s->all[i]);
  oct_cpu_forward_free(s->forward);
  oct_cpu_memory_free(s->memory);
  oct_cpu_model_free(s->whole);
  oct_team_free(s->team);
  g_free(s->all);
  g_free(s->pages);
  g_free(s->latent);
  g_free(s->sum);
  g_free(s);
}

/* The head's rows of the last stage's ranks, one after another. */
static void
gather_logits(const ranks *s, const float *hidden, guint32 n, float *logits) {
  guint32 at = 0, width = s->spec->hidden;
  g_autofree float *scratch = g_new(float, OCT_REF_MATMUL_ROWS *width);
  for (guint32 i = 0; i < s->n; i++) {
    const rank *r = &s->all[i];
    const oct_matrix *head = &r->model.head;
    if (head->rows == 0 || r->place.domain != 0)
      continue;
    const oct_matmul call = {.weight = head,
                             .x = hidden,
                             .x_stride = width,
                             .m = n,
                             .y = logits + at,
                             .y_stride = s->spec->vocab};
    oct_ref_matmul(&call, 0, head->rows, scratch);
    at += head->rows;
  }
  g_assert_cmpuint(at, ==, s->spec->vocab);
}

float *
ranks_logits(ranks *s, const guint32 *ids, guint32 first, guint32 n, gboolean sharded) {
  oct_cpu_view view = {0};
  g_autofree oct_cpu_token *tokens = g_new0(oct_cpu_token, n);
  g_autofree float *hidden = g_new(float, (gsize)n * s->spec->hidden);
  float *logits = g_new(float, (gsize)n * s->spec->vocab);
  for (guint g = 0; g < OCT_MODEL_GROUPS_MAX; g++)
    view.tables[g] = s->pages;
  for (guint32 i = 0; i < n; i++)
    tokens[i] = (oct_cpu_token){.id = ids[i], .position = first + i, .row = i};
  if (!sharded) {
    g_assert_true(oct_cpu_forward_run(s->forward, &view, tokens, n, NULL, hidden));
    oct_cpu_forward_logits(s->forward, hidden, n, logits);
    return logits;
  }
  oct_cpu_forward *f = s->forward;
  oct_cpu_forward_part here = f->attention, feed_here = f->feed;
  oct_cpu_forward_set_parts(f, attend, feed, s);
  g_assert_true(oct_cpu_forward_run(f, &view, tokens, n, NULL, hidden));
  oct_cpu_forward_set_parts(f, here, feed_here, NULL);
  gather_logits(s, hidden, n, logits);
  return logits;
}

guint64
ranks_floats(const ranks *s, guint32 r) {
  return s->all[r].floats;
}

guint32
ranks_kv_heads(const ranks *s, guint32 r, guint32 layer) {
  const oct_cpu_layer *l = &s->all[r].model.layers[layer];
  return l->matrices[OCT_WEIGHT_K].rows / l->attention->head_dim;
}
