/* Which tensors a rank holds, and the slice of each weight that is in them. */
#include <string.h>

#include "backends/arithmetic.h"
#include "backends/cuda/model.h"
#include "backends/cuda/partition.h"
#include "engine/base/assert.h"

typedef struct loader {
  oct_cuda_model *m;
  oct_cuda_rank *r;
  const oct_weight_map *map;
  oct_cuda_upload *upload;
  oct_cuda_type type;
  oct_cuda_share place;
} loader;

/* ---------------------------------------------------------------- pieces */

static void *
allocate(const loader *l, guint64 elements, oct_cuda_type type) {
  guint64 bytes = elements * oct_cuda_type_bytes(type);
  l->m->bytes += bytes;
  return oct_cuda_alloc(l->r, bytes, "weights");
}

/* An empty matrix of the activations' type, to be filled by put(). */
static oct_cuda_matrix
matrix(const loader *l, guint64 rows, guint64 columns, guint32 n) {
  return (oct_cuda_matrix){.format =
                               l->type == OCT_CUDA_F32 ? OCT_CUDA_MATRIX_F32 : OCT_CUDA_MATRIX_BF16,
                           .rows = (guint32)rows,
                           .columns = (guint32)columns,
                           .data = allocate(l, rows * columns * n, l->type)};
}

static oct_cuda_piece
part_of(const loader *l, const oct_weight *w) {
  return oct_cuda_piece_of(&l->place, w->kind, w->layer, w->expert, w->rows, w->columns);
}

/* This rank's part of a weight to element `at` of `out`, whose rows are `pitch` apart. */
static void
put(const loader *l, const oct_weight *w, oct_cuda_type type, void *out, guint64 at, gsize pitch) {
  if (l->r->failed || w == NULL || out == NULL)
    return;
  oct_cuda_piece part = part_of(l, w);
  const oct_cuda_slice slice = {.weight = w,
                                .row = part.row,
                                .rows = part.rows,
                                .column = part.column,
                                .columns = part.columns,
                                .type = type,
                                .out = (guint8 *)out + at * oct_cuda_type_bytes(type),
                                .pitch = pitch};
  (void)oct_cuda_upload_slice(l->upload, &slice);
}

static const oct_weight *
find(const loader *l, oct_weight_kind kind, guint32 layer, guint32 expert) {
  return oct_weight_map_get(l->map, kind, layer, expert);
}

/* This rank's part of one weight; rows 0 when there is none. */
static oct_cuda_matrix
take(const loader *l, oct_weight_kind kind, guint32 layer) {
  const oct_weight *w = find(l, kind, layer, 0);
  oct_cuda_piece part = w != NULL ? part_of(l, w) : (oct_cuda_piece){0};
  if (part.rows == 0)
    return (oct_cuda_matrix){0};
  oct_cuda_matrix m = matrix(l, part.rows, part.columns, 1);
  put(l, w, l->type, (void *)(gsize)m.data, 0, part.columns);
  return m;
}

/* A vector, or a small matrix that is used element by element. NULL: there is none. */
static void *
take_vector(const loader *l, oct_weight_kind kind, guint32 layer, oct_cuda_type type) {
  const oct_weight *w = find(l, kind, layer, 0);
  oct_cuda_piece part = w != NULL ? part_of(l, w) : (oct_cuda_piece){0};
  if (part.rows == 0)
    return NULL;
  void *out = allocate(l, part.rows * part.columns, type);
  put(l, w, type, out, 0, part.columns);
  return out;
}

static void *
take_norm(const loader *l, oct_weight_kind kind, guint32 layer) {
  return take_vector(l, kind, layer, l->type);
}

/* ---------------------------------------------------------------- attention */

/* Rows of q, k and v one after another, and of their biases. */
static void
take_qkv(const loader *l, oct_cuda_layer *to) {
  static const oct_weight_kind kinds[] = {OCT_WEIGHT_Q, OCT_WEIGHT_K, OCT_WEIGHT_V};
  static const oct_weight_kind biases[] = {OCT_WEIGHT_Q_BIAS, OCT_WEIGHT_K_BIAS, OCT_WEIGHT_V_BIAS};
  guint64 rows = 0, hidden = l->m->spec->hidden, at = 0;
  for (guint i = 0; i < 3; i++)
    rows += part_of(l, find(l, kinds[i], to->index, 0)).rows;
  to->qkv = matrix(l, rows, hidden, 1);
  gboolean biased = find(l, OCT_WEIGHT_Q_BIAS, to->index, 0) != NULL;
  if (biased)
    to->qkv_bias = allocate(l, rows, l->type);
  for (guint i = 0; i < 3; i++) {
    const oct_weight *w = find(l, kinds[i], to->index, 0);
    put(l, w, l->type, (void *)(gsize)to->qkv.data, at * hidden, hidden);
    if (biased)
      put(l, find(l, biases[i], to->index, 0), l->type, to->qkv_bias, at, 1);
    at += part_of(l, w).rows;
  }
}

static void
take_gqa(const loader *l, oct_cuda_layer *to) {
  const oct_attention_spec *a = to->attention;
  to->heads = (guint32)(part_of(l, find(l, OCT_WEIGHT_Q, to->index, 0)).rows / a->head_dim);
  to->kv_heads = (guint32)(part_of(l, find(l, OCT_WEIGHT_K, to->index, 0)).rows / a->head_dim);
  take_qkv(l, to);
  to->o = take(l, OCT_WEIGHT_O, to->index);
  to->q_norm = take_norm(l, OCT_WEIGHT_Q_NORM, to->index);
  to->k_norm = take_norm(l, OCT_WEIGHT_K_NORM, to->index);
  to->sinks = take_vector(l, OCT_WEIGHT_SINKS, to->index, OCT_CUDA_F32);
}

static void
take_mla(const loader *l, oct_cuda_layer *to) {
  const oct_attention_spec *a = to->attention;
  to->kv_heads = 1;
  to->q_a = take(l, OCT_WEIGHT_Q_A, to->index);
  to->q_a_bias = take_norm(l, OCT_WEIGHT_Q_A_BIAS, to->index);
  to->q_a_norm = take_norm(l, OCT_WEIGHT_Q_A_NORM, to->index);
  to->q_b = take(l, a->q_lora > 0 ? OCT_WEIGHT_Q_B : OCT_WEIGHT_Q, to->index);
  to->heads = to->q_b.rows / (a->qk_nope + a->qk_rope);
  to->kv_a = take(l, OCT_WEIGHT_KV_A, to->index);
  to->kv_a_bias = take_norm(l, OCT_WEIGHT_KV_A_BIAS, to->index);
  to->kv_a_norm = take_norm(l, OCT_WEIGHT_KV_A_NORM, to->index);
  to->kv_b = take(l, OCT_WEIGHT_KV_B, to->index);
  to->o = take(l, OCT_WEIGHT_O, to->index);
}

static void
take_kda(const loader *l, oct_cuda_layer *to) {
  const oct_attention_spec *a = to->attention;
  take_qkv(l, to);
  to->heads = to->kv_heads = to->qkv.rows / (3 * a->head_dim);
  to->o = take(l, OCT_WEIGHT_O, to->index);
  to->decay_a = take(l, OCT_WEIGHT_DECAY_A, to->index);
  to->decay_b = take(l, OCT_WEIGHT_DECAY_B, to->index);
  to->beta = take(l, OCT_WEIGHT_BETA, to->index);
  to->gate_a = take(l, OCT_WEIGHT_ATTN_GATE_A, to->index);
  to->gate_b =
      take(l, a->output_gate_rank > 0 ? OCT_WEIGHT_ATTN_GATE_B : OCT_WEIGHT_ATTN_GATE, to->index);
  to->head_norm = take_norm(l, OCT_WEIGHT_HEAD_NORM, to->index);
  to->kda = (oct_kda){.n_heads = to->heads,
                      .width = a->head_dim,
                      .taps = a->conv_kernel,
                      .q_conv = take_vector(l, OCT_WEIGHT_Q_CONV, to->index, OCT_CUDA_F32),
                      .k_conv = take_vector(l, OCT_WEIGHT_K_CONV, to->index, OCT_CUDA_F32),
                      .v_conv = take_vector(l, OCT_WEIGHT_V_CONV, to->index, OCT_CUDA_F32),
                      .a_log = take_vector(l, OCT_WEIGHT_A_LOG, to->index, OCT_CUDA_F32),
                      .dt_bias = take_vector(l, OCT_WEIGHT_DT_BIAS, to->index, OCT_CUDA_F32),
                      .decay_bound = (float)l->m->spec->numerics.decay_bound};
}

/* ---------------------------------------------------------------- feed-forward */

/* Gate over up, and down, of one MLP (or of expert `expert` into the place-th matrix). */
static void
put_mlp(const loader *l, const oct_cuda_ffn *to, oct_weight_kind gate, guint32 layer,
        guint32 expert, guint32 place) {
  guint64 hidden = to->gate_up.columns, size = to->inner * hidden;
  void *both = (void *)(gsize)to->gate_up.data, *down = (void *)(gsize)to->down.data;
  put(l, find(l, gate, layer, expert), l->type, both, 2 * place * size, hidden);
  put(l, find(l, gate + 1, layer, expert), l->type, both, (2 * place + 1) * size, hidden);
  put(l, find(l, gate + 2, layer, expert), l->type, down, place * size, to->inner);
}

/* Room for n MLPs as wide as this rank's part of `gate`. */
static oct_cuda_ffn
make_ffn(const loader *l, const oct_weight *gate, guint32 n) {
  guint64 hidden = l->m->spec->hidden, inner = part_of(l, gate).rows;
  return (oct_cuda_ffn){.gate_up = matrix(l, 2 * inner, hidden, n),
                        .down = matrix(l, hidden, inner, n),
                        .inner = (guint32)inner};
}

static void
take_expert_biases(const loader *l, oct_cuda_layer *to) {
  guint64 hidden = l->m->spec->hidden, inner = to->experts.inner;
  if (find(l, OCT_WEIGHT_EXPERT_GATE_BIAS, to->index, to->first_expert) == NULL)
    return;
  to->gate_up_bias = allocate(l, to->n_experts * 2 * inner, l->type);
  to->down_bias = allocate(l, to->n_experts * hidden, l->type);
  for (guint32 i = 0; i < to->n_experts; i++) {
    guint32 e = to->first_expert + i;
    guint64 at = (guint64)i * 2 * inner;
    put(l, find(l, OCT_WEIGHT_EXPERT_GATE_BIAS, to->index, e), l->type, to->gate_up_bias, at, 1);
    put(l, find(l, OCT_WEIGHT_EXPERT_UP_BIAS, to->index, e), l->type, to->gate_up_bias, at + inner,
        1);
    /* Where this rank has no part it stays zero: the sum over ranks has it once. */
    put(l, find(l, OCT_WEIGHT_EXPERT_DOWN_BIAS, to->index, e), l->type, to->down_bias, i * hidden,
        1);
  }
}

/* The run of experts that this rank has something of. */
static void
count_experts(const loader *l, oct_cuda_layer *to) {
  for (guint32 e = 0; e < to->ffn_spec->n_experts; e++)
    if (part_of(l, find(l, OCT_WEIGHT_EXPERT_GATE, to->index, e)).rows > 0 && to->n_experts++ == 0)
      to->first_expert = e;
}

static void
take_moe(const loader *l, oct_cuda_layer *to) {
  const oct_ffn_spec *f = to->ffn_spec;
  count_experts(l, to);
  to->router = take(l, OCT_WEIGHT_ROUTER, to->index);
  to->router_bias = take_norm(l, OCT_WEIGHT_ROUTER_BIAS, to->index);
  to->score_bias = take_vector(l, OCT_WEIGHT_ROUTER_SCORE_BIAS, to->index, OCT_CUDA_F32);
  to->experts =
      make_ffn(l, find(l, OCT_WEIGHT_EXPERT_GATE, to->index, to->first_expert), to->n_experts);
  for (guint32 i = 0; i < to->n_experts; i++)
    put_mlp(l, &to->experts, OCT_WEIGHT_EXPERT_GATE, to->index, to->first_expert + i, i);
  take_expert_biases(l, to);
  if (f->shared_intermediate == 0)
    return;
  to->shared = make_ffn(l, find(l, OCT_WEIGHT_SHARED_GATE, to->index, 0), 1);
  put_mlp(l, &to->shared, OCT_WEIGHT_SHARED_GATE, to->index, 0, 0);
  if (find(l, OCT_WEIGHT_SHARED_SWITCH, to->index, 0) == NULL)
    return;
  /* A vector [hidden, 1] that is a product's one row. */
  to->shared_switch = matrix(l, 1, l->m->spec->hidden, 1);
  put(l, find(l, OCT_WEIGHT_SHARED_SWITCH, to->index, 0), l->type,
      (void *)(gsize)to->shared_switch.data, 0, 1);
}

/* ---------------------------------------------------------------- the model */

static void
take_layer(const loader *l, oct_cuda_layer *to) {
  to->attn_norm = take_norm(l, OCT_WEIGHT_ATTN_NORM, to->index);
  to->ffn_norm = take_norm(l, OCT_WEIGHT_FFN_NORM, to->index);
  if (to->attention->kind == OCT_ATTENTION_MLA)
    take_mla(l, to);
  else if (to->attention->kind == OCT_ATTENTION_KDA)
    take_kda(l, to);
  else
    take_gqa(l, to);
  to->o_bias = take_norm(l, OCT_WEIGHT_O_BIAS, to->index);
  if (to->ffn_spec->kind != OCT_FFN_DENSE) {
    take_moe(l, to);
    return;
  }
  to->dense = make_ffn(l, find(l, OCT_WEIGHT_GATE, to->index, 0), 1);
  put_mlp(l, &to->dense, OCT_WEIGHT_GATE, to->index, 0, 0);
}

/* The embedding is on the first stage, the head on the last; tied ones are one tensor where both
 * are whole on a rank. */
static void
take_ends(loader *l) {
  oct_cuda_model *m = l->m;
  const oct_model_spec *spec = m->spec;
  if (l->r->is_first)
    m->embedding = take(l, OCT_WEIGHT_EMBEDDING, 0);
  if (!l->r->is_last)
    return;
  m->final_norm = take_norm(l, OCT_WEIGHT_FINAL_NORM, 0);
  guint32 n_tensor = l->place.parallel->tensor;
  m->head_rows = (spec->vocab + n_tensor - 1) / n_tensor;
  if (spec->tied_embeddings && n_tensor == 1 && l->r->is_first) {
    m->head = m->embedding;
    return;
  }
  oct_weight w = *find(l, spec->tied_embeddings ? OCT_WEIGHT_EMBEDDING : OCT_WEIGHT_HEAD, 0, 0);
  w.kind = OCT_WEIGHT_HEAD;
  m->head = matrix(l, m->head_rows, spec->hidden, 1);
  put(l, &w, l->type, (void *)(gsize)m->head.data, 0, spec->hidden);
}

/* Cosines and sines of every position. */
static void
make_angles(loader *l, guint32 positions) {
  oct_cuda_model *m = l->m;
  g_autoptr(GError) error = NULL;
  m->rope = oct_arithmetic_rope(m->spec);
  m->positions = positions;
  if (m->rope.dim == 0)
    return;
  g_autofree float *frequencies = g_new(float, m->rope.dim / 2);
  if (!oct_arithmetic_frequencies(m->spec, l->map, frequencies, &error)) {
    oct_cuda_fail(l->r, error->message);
    return;
  }
  gsize n = (gsize)positions * m->rope.dim;
  g_autofree float *angles = g_try_new(float, n);
  m->angles = angles != NULL ? oct_cuda_alloc(l->r, n * sizeof *angles, "rotary angles") : NULL;
  if (m->angles == NULL)
    return;
  for (guint32 p = 0; p < positions; p++)
    oct_ref_rope_angles(&m->rope, frequencies, p, angles + (gsize)p * m->rope.dim);
  (void)oct_cuda_note(l->r, cudaMemcpy(m->angles, angles, n * sizeof *angles, cudaMemcpyDefault),
                      "rotary angles");
}

static void
place_layers(oct_cuda_model *m) {
  guint32 counts[OCT_MODEL_GROUPS_MAX] = {0};
  m->layers = g_new0(oct_cuda_layer, m->rank->n_layers);
  for (guint32 i = 0; i < m->rank->n_layers; i++) {
    oct_cuda_layer *l = &m->layers[i];
    l->index = m->rank->first_layer + i;
    l->attention = &m->spec->attention[m->spec->layers[l->index].attention];
    l->ffn_spec = &m->spec->ffn[m->spec->layers[l->index].ffn];
    l->group = oct_arithmetic_group(m->spec, l->index);
    l->place = counts[l->group]++;
  }
}

gboolean
oct_cuda_model_load(oct_cuda_model *m, oct_cuda_rank *r, const oct_cuda_source *source,
                    guint32 positions, gboolean (*progress)(void *user, double fraction),
                    void *user) {
  *m = (oct_cuda_model){.rank = r, .spec = source->spec};
  loader l = {.m = m,
              .r = r,
              .map = source->map,
              .type = oct_cuda_rank_type(r),
              .place = oct_cuda_share_of(source->spec, &r->group->config->parallel, r->index)};
  m->glu = oct_arithmetic_glu(m->spec);
  m->latent_scale = oct_arithmetic_latent_scale(m->spec);
  m->latent_eps = oct_arithmetic_latent_eps(m->spec);
  place_layers(m);
  l.upload = oct_cuda_upload_new(r);
  if (l.upload == NULL)
    return FALSE;
  take_ends(&l);
  make_angles(&l, positions);
  for (guint32 i = 0; i < r->n_layers && !r->failed; i++) {
    take_layer(&l, &m->layers[i]);
    if (progress != NULL && !progress(user, (i + 1.0) / r->n_layers))
      oct_cuda_fail(r, "loading was stopped");
  }
  gboolean sent = oct_cuda_upload_finish(l.upload);
  oct_cuda_upload_free(l.upload);
  return sent && !r->failed;
}

void
oct_cuda_model_clear(oct_cuda_model *m) {
  g_clear_pointer(&m->layers, g_free);
}
