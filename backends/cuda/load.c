/* Which tensors a rank holds, and the slice of each weight that is in them. */
#include <string.h>

#include "backends/arithmetic.h"
#include "backends/cuda/model.h"
#include "engine/base/assert.h"

typedef struct loader {
  oct_cuda_model *m;
  oct_cuda_rank *r;
  const oct_weight_map *map;
  oct_cuda_upload *upload;
  oct_cuda_type type;
  guint32 tensor, n_tensor;
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

typedef struct range {
  guint64 first, n;
} range;

static range
all_of(guint64 n) {
  return (range){0, n};
}

/* This rank's part of n: equal parts, or copies of single units when there are fewer than ranks.
 * `unit` elements each. */
static range
part_of(const loader *l, guint64 units, guint64 unit) {
  if (units >= l->n_tensor)
    return (range){units / l->n_tensor * l->tensor * unit, units / l->n_tensor * unit};
  return (range){units * l->tensor / l->n_tensor * unit, unit};
}

/* Rows and columns of a weight to element `at` of `out`, whose rows are `pitch` apart. */
static void
put(const loader *l, const oct_weight *w, range rows, range columns, oct_cuda_type type, void *out,
    guint64 at, gsize pitch) {
  if (l->r->failed || w == NULL || out == NULL)
    return;
  oct_assert(rows.first + rows.n <= w->rows && columns.first + columns.n <= w->columns);
  const oct_cuda_slice slice = {.weight = w,
                                .row = rows.first,
                                .rows = rows.n,
                                .column = columns.first,
                                .columns = columns.n,
                                .type = type,
                                .out = (guint8 *)out + at * oct_cuda_type_bytes(type),
                                .pitch = pitch};
  (void)oct_cuda_upload_slice(l->upload, &slice);
}

static const oct_weight *
find(const loader *l, oct_weight_kind kind, guint32 layer, guint32 expert) {
  return oct_weight_map_get(l->map, kind, layer, expert);
}

/* A matrix of some rows and columns of one weight; rows 0 when the model has none. */
static oct_cuda_matrix
take(const loader *l, oct_weight_kind kind, guint32 layer, range rows, range columns) {
  const oct_weight *w = find(l, kind, layer, 0);
  if (w == NULL)
    return (oct_cuda_matrix){0};
  oct_cuda_matrix m = matrix(l, rows.n, columns.n, 1);
  put(l, w, rows, columns, l->type, (void *)(gsize)m.data, 0, columns.n);
  return m;
}

static oct_cuda_matrix
take_all(const loader *l, oct_weight_kind kind, guint32 layer) {
  const oct_weight *w = find(l, kind, layer, 0);
  if (w == NULL)
    return (oct_cuda_matrix){0};
  return take(l, kind, layer, all_of(w->rows), all_of(w->columns));
}

/* A vector, or a small matrix that is used element by element. NULL: the model has none. */
static void *
take_vector(const loader *l, oct_weight_kind kind, guint32 layer, range rows, oct_cuda_type type) {
  const oct_weight *w = find(l, kind, layer, 0);
  if (w == NULL)
    return NULL;
  void *out = allocate(l, rows.n * w->columns, type);
  put(l, w, rows, all_of(w->columns), type, out, 0, w->columns);
  return out;
}

static void *
take_norm(const loader *l, oct_weight_kind kind, guint32 layer) {
  const oct_weight *w = find(l, kind, layer, 0);
  return w != NULL ? take_vector(l, kind, layer, all_of(w->rows), l->type) : NULL;
}

/* Biases that are added once: by the first rank, whose part goes into a sum over ranks. */
static void *
take_sum_bias(const loader *l, oct_weight_kind kind, guint32 layer) {
  return l->tensor == 0 ? take_norm(l, kind, layer) : NULL;
}

/* ---------------------------------------------------------------- attention */

/* Rows of q, k and v one after another, and of their biases. */
static void
take_qkv(const loader *l, oct_cuda_layer *to, range q, range kv) {
  static const oct_weight_kind kinds[] = {OCT_WEIGHT_Q, OCT_WEIGHT_K, OCT_WEIGHT_V};
  static const oct_weight_kind biases[] = {OCT_WEIGHT_Q_BIAS, OCT_WEIGHT_K_BIAS, OCT_WEIGHT_V_BIAS};
  guint64 rows = q.n + 2 * kv.n, hidden = l->m->spec->hidden, at = 0;
  to->qkv = matrix(l, rows, hidden, 1);
  gboolean biased = find(l, OCT_WEIGHT_Q_BIAS, to->index, 0) != NULL;
  if (biased)
    to->qkv_bias = allocate(l, rows, l->type);
  for (guint i = 0; i < 3; i++) {
    range part = i == 0 ? q : kv;
    put(l, find(l, kinds[i], to->index, 0), part, all_of(hidden), l->type,
        (void *)(gsize)to->qkv.data, at * hidden, hidden);
    if (biased)
      put(l, find(l, biases[i], to->index, 0), part, all_of(1), l->type, to->qkv_bias, at, 1);
    at += part.n;
  }
}

static void
take_gqa(const loader *l, oct_cuda_layer *to) {
  const oct_attention_spec *a = to->attention;
  range q = part_of(l, a->n_heads, a->head_dim), kv = part_of(l, a->n_kv_heads, a->head_dim);
  to->heads = (guint32)(q.n / a->head_dim);
  to->kv_heads = (guint32)(kv.n / a->head_dim);
  take_qkv(l, to, q, kv);
  to->o = take(l, OCT_WEIGHT_O, to->index, all_of(l->m->spec->hidden), q);
  to->q_norm = take_norm(l, OCT_WEIGHT_Q_NORM, to->index);
  to->k_norm = take_norm(l, OCT_WEIGHT_K_NORM, to->index);
  to->sinks = take_vector(l, OCT_WEIGHT_SINKS, to->index, part_of(l, a->n_heads, 1), OCT_CUDA_F32);
}

static void
take_mla(const loader *l, oct_cuda_layer *to) {
  const oct_attention_spec *a = to->attention;
  range q = part_of(l, a->n_heads, a->qk_nope + a->qk_rope);
  range kv = part_of(l, a->n_heads, a->qk_nope + a->v_head);
  to->heads = (guint32)(q.n / (a->qk_nope + a->qk_rope));
  to->kv_heads = 1;
  to->q_a = take_all(l, OCT_WEIGHT_Q_A, to->index);
  to->q_a_bias = take_norm(l, OCT_WEIGHT_Q_A_BIAS, to->index);
  to->q_a_norm = take_norm(l, OCT_WEIGHT_Q_A_NORM, to->index);
  to->q_b = a->q_lora > 0 ? take(l, OCT_WEIGHT_Q_B, to->index, q, all_of(a->q_lora))
                          : take(l, OCT_WEIGHT_Q, to->index, q, all_of(l->m->spec->hidden));
  to->kv_a = take_all(l, OCT_WEIGHT_KV_A, to->index);
  to->kv_a_bias = take_norm(l, OCT_WEIGHT_KV_A_BIAS, to->index);
  to->kv_a_norm = take_norm(l, OCT_WEIGHT_KV_A_NORM, to->index);
  to->kv_b = take(l, OCT_WEIGHT_KV_B, to->index, kv, all_of(a->kv_lora));
  to->o = take(l, OCT_WEIGHT_O, to->index, all_of(l->m->spec->hidden),
               part_of(l, a->n_heads, a->v_head));
}

static void
take_kda(const loader *l, oct_cuda_layer *to) {
  const oct_attention_spec *a = to->attention;
  range c = part_of(l, a->n_heads, a->head_dim), heads = part_of(l, a->n_heads, 1);
  to->heads = to->kv_heads = (guint32)heads.n;
  take_qkv(l, to, c, c);
  to->o = take(l, OCT_WEIGHT_O, to->index, all_of(l->m->spec->hidden), c);
  to->decay_a = take_all(l, OCT_WEIGHT_DECAY_A, to->index);
  to->decay_b = take(l, OCT_WEIGHT_DECAY_B, to->index, c, all_of(a->gate_rank));
  to->beta = take(l, OCT_WEIGHT_BETA, to->index, heads, all_of(l->m->spec->hidden));
  to->gate_a = take_all(l, OCT_WEIGHT_ATTN_GATE_A, to->index);
  to->gate_b = a->output_gate_rank > 0
                   ? take(l, OCT_WEIGHT_ATTN_GATE_B, to->index, c, all_of(a->output_gate_rank))
                   : take(l, OCT_WEIGHT_ATTN_GATE, to->index, c, all_of(l->m->spec->hidden));
  to->head_norm = take_norm(l, OCT_WEIGHT_HEAD_NORM, to->index);
  to->kda = (oct_kda){.n_heads = to->heads,
                      .width = a->head_dim,
                      .taps = a->conv_kernel,
                      .q_conv = take_vector(l, OCT_WEIGHT_Q_CONV, to->index, c, OCT_CUDA_F32),
                      .k_conv = take_vector(l, OCT_WEIGHT_K_CONV, to->index, c, OCT_CUDA_F32),
                      .v_conv = take_vector(l, OCT_WEIGHT_V_CONV, to->index, c, OCT_CUDA_F32),
                      .a_log = take_vector(l, OCT_WEIGHT_A_LOG, to->index, heads, OCT_CUDA_F32),
                      .dt_bias = take_vector(l, OCT_WEIGHT_DT_BIAS, to->index, c, OCT_CUDA_F32),
                      .decay_bound = (float)l->m->spec->numerics.decay_bound};
}

/* ---------------------------------------------------------------- feed-forward */

/* Gate over up, and down, of one MLP (or of expert `expert` into the place-th matrix). */
static void
put_mlp(const loader *l, const oct_cuda_ffn *to, oct_weight_kind gate, guint32 layer,
        guint32 expert, guint32 place, range inner) {
  guint64 hidden = to->gate_up.columns, first = (guint64)place * 2 * inner.n * hidden;
  void *both = (void *)(gsize)to->gate_up.data, *down = (void *)(gsize)to->down.data;
  put(l, find(l, gate, layer, expert), inner, all_of(hidden), l->type, both, first, hidden);
  put(l, find(l, gate + 1, layer, expert), inner, all_of(hidden), l->type, both,
      first + inner.n * hidden, hidden);
  put(l, find(l, gate + 2, layer, expert), all_of(hidden), inner, l->type, down,
      (guint64)place * hidden * inner.n, inner.n);
}

static oct_cuda_ffn
make_ffn(const loader *l, guint64 inner, guint32 n) {
  guint64 hidden = l->m->spec->hidden;
  return (oct_cuda_ffn){.gate_up = matrix(l, 2 * inner, hidden, n),
                        .down = matrix(l, hidden, inner, n),
                        .inner = (guint32)inner};
}

static void
take_expert_biases(const loader *l, oct_cuda_layer *to, range inner) {
  guint64 hidden = l->m->spec->hidden;
  if (find(l, OCT_WEIGHT_EXPERT_GATE_BIAS, to->index, to->first_expert) == NULL)
    return;
  gboolean whole = l->tensor == 0 || inner.n == to->ffn_spec->moe_intermediate;
  to->gate_up_bias = allocate(l, to->n_experts * 2 * inner.n, l->type);
  to->down_bias = allocate(l, to->n_experts * hidden, l->type);
  for (guint32 i = 0; i < to->n_experts; i++) {
    guint32 e = to->first_expert + i;
    guint64 at = (guint64)i * 2 * inner.n;
    put(l, find(l, OCT_WEIGHT_EXPERT_GATE_BIAS, to->index, e), inner, all_of(1), l->type,
        to->gate_up_bias, at, 1);
    put(l, find(l, OCT_WEIGHT_EXPERT_UP_BIAS, to->index, e), inner, all_of(1), l->type,
        to->gate_up_bias, at + inner.n, 1);
    if (whole) /* else it stays zero: the sum over ranks has it once */
      put(l, find(l, OCT_WEIGHT_EXPERT_DOWN_BIAS, to->index, e), all_of(hidden), all_of(1), l->type,
          to->down_bias, i * hidden, 1);
  }
}

static void
take_moe(const loader *l, oct_cuda_layer *to) {
  const oct_ffn_spec *f = to->ffn_spec;
  gboolean whole = l->r->group->config->parallel.expert_parallel;
  range experts = whole ? part_of(l, f->n_experts, 1) : all_of(f->n_experts);
  range inner = whole ? all_of(f->moe_intermediate) : part_of(l, f->moe_intermediate, 1);
  to->first_expert = (guint32)experts.first;
  to->n_experts = (guint32)experts.n;
  to->router = take_all(l, OCT_WEIGHT_ROUTER, to->index);
  to->router_bias = take_norm(l, OCT_WEIGHT_ROUTER_BIAS, to->index);
  to->score_bias =
      take_vector(l, OCT_WEIGHT_ROUTER_SCORE_BIAS, to->index, all_of(f->n_experts), OCT_CUDA_F32);
  to->experts = make_ffn(l, inner.n, to->n_experts);
  for (guint32 i = 0; i < to->n_experts; i++)
    put_mlp(l, &to->experts, OCT_WEIGHT_EXPERT_GATE, to->index, to->first_expert + i, i, inner);
  take_expert_biases(l, to, inner);
  if (f->shared_intermediate == 0)
    return;
  range shared = part_of(l, f->shared_intermediate, 1);
  to->shared = make_ffn(l, shared.n, 1);
  put_mlp(l, &to->shared, OCT_WEIGHT_SHARED_GATE, to->index, 0, 0, shared);
  if (find(l, OCT_WEIGHT_SHARED_SWITCH, to->index, 0) == NULL)
    return;
  /* A vector [hidden, 1] that is a product's one row. */
  to->shared_switch = matrix(l, 1, l->m->spec->hidden, 1);
  put(l, find(l, OCT_WEIGHT_SHARED_SWITCH, to->index, 0), all_of(l->m->spec->hidden), all_of(1),
      l->type, (void *)(gsize)to->shared_switch.data, 0, 1);
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
  to->o_bias = take_sum_bias(l, OCT_WEIGHT_O_BIAS, to->index);
  if (to->ffn_spec->kind != OCT_FFN_DENSE) {
    take_moe(l, to);
    return;
  }
  range inner = part_of(l, to->ffn_spec->intermediate, 1);
  to->dense = make_ffn(l, inner.n, 1);
  put_mlp(l, &to->dense, OCT_WEIGHT_GATE, to->index, 0, 0, inner);
}

/* The embedding is on the first stage, the head on the last; tied ones are one tensor where both
 * are whole on a rank. */
static void
take_ends(loader *l) {
  oct_cuda_model *m = l->m;
  const oct_model_spec *spec = m->spec;
  if (l->r->is_first)
    m->embedding = take_all(l, OCT_WEIGHT_EMBEDDING, 0);
  if (!l->r->is_last)
    return;
  m->final_norm = take_norm(l, OCT_WEIGHT_FINAL_NORM, 0);
  m->head_rows = (spec->vocab + l->n_tensor - 1) / l->n_tensor;
  if (spec->tied_embeddings && l->n_tensor == 1 && l->r->is_first) {
    m->head = m->embedding;
    return;
  }
  const oct_weight *w =
      find(l, spec->tied_embeddings ? OCT_WEIGHT_EMBEDDING : OCT_WEIGHT_HEAD, 0, 0);
  guint64 first = MIN((guint64)m->head_rows * l->tensor, spec->vocab);
  range rows = {first, MIN(m->head_rows, spec->vocab - first)};
  m->head = matrix(l, m->head_rows, spec->hidden, 1);
  put(l, w, rows, all_of(spec->hidden), l->type, (void *)(gsize)m->head.data, 0, spec->hidden);
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
              .tensor = r->tensor,
              .n_tensor = r->group->n_tensor};
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
