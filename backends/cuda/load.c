/* Which tensors a rank holds, and the slice of each weight that is in them. */
#include <string.h>

#include "backends/arithmetic.h"
#include "backends/cuda/matrix.h"
#include "backends/cuda/residency.h"
#include "engine/base/assert.h"
#include "engine/model/files/cache.h"

/* Rows of a product's results begin where other products can read them: at 16 bytes. */
#define STACK_STEP 8

/* Quantised weights that are widened: what to say of them when all are loaded. */
typedef struct widened {
  guint n;
  guint64 stored, bytes;
  const char *layout, *why; /* of the first */
} widened;

typedef struct loader {
  oct_cuda_model *m;
  oct_cuda_rank *r;
  const oct_weight_map *map;
  const oct_checkpoint *checkpoint; /* NULL: made-up weights */
  oct_cuda_upload *upload;
  oct_cuda_type type;
  oct_cuda_share place;
  widened *widened;
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
plain_matrix(const loader *l, guint64 rows, guint64 columns, guint32 n) {
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
  if (oct_cuda_has_failed(l->r) || w == NULL || out == NULL)
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

/* ---------------------------------------------------------------- matrices of several weights */

/* The part of a weight as rows of a matrix from `at` on; none when it has no rows here. */
static void
add_fragment(const loader *l, GArray *fragments, const oct_weight *w, guint64 at) {
  oct_cuda_fragment fragment = {.weight = w, .piece = part_of(l, w), .at = at};
  if (fragment.piece.rows > 0)
    g_array_append_val(fragments, fragment);
}

static void
note_widened(const loader *l, const oct_weight *w, guint64 stored, guint64 bytes, const char *why) {
  widened *all = l->widened;
  if (all->n++ == 0) {
    all->layout = oct_layout_name(w->layout);
    all->why = why;
  }
  all->stored += stored;
  all->bytes += bytes;
}

/* n matrices one after another, of the fragments: as they are stored where kernels take that and
 * `keep`, else of the activations' type. */
static oct_cuda_matrix
build(const loader *l, guint64 rows, guint64 columns, guint32 n, const GArray *fragments,
      gboolean keep) {
  oct_cuda_matrix m = {.rows = (guint32)rows, .columns = (guint32)columns};
  const oct_cuda_fragment *all = (const oct_cuda_fragment *)(gpointer)fragments->data;
  const char *why = NULL;
  if (fragments->len == 0 || oct_cuda_has_failed(l->r))
    return m;
  if (keep && l->type == OCT_CUDA_BF16 && oct_cuda_matrix_keeps(&m, all, fragments->len, &why)) {
    gsize data = n * oct_cuda_matrix_bytes(&m), scales = n * oct_cuda_matrix_scale_bytes(&m);
    l->m->bytes += data + scales;
    m.data = oct_cuda_alloc(l->r, data, "weights");
    m.scales = oct_cuda_alloc(l->r, scales, "scales of weights");
    gboolean sent = !oct_cuda_has_failed(l->r);
    for (guint i = 0; i < fragments->len && sent; i++)
      sent = oct_cuda_upload_fragment(l->upload, &m, &all[i]);
    return m;
  }
  if (!keep && all[0].weight->layout > OCT_LAYOUT_COLUMNS && l->type == OCT_CUDA_BF16)
    why = "its product by columns has no kernel";
  m = plain_matrix(l, rows, columns, n);
  guint64 stored = 0;
  for (guint i = 0; i < fragments->len; i++) {
    stored += oct_cuda_piece_bytes(all[i].weight, &all[i].piece);
    put(l, all[i].weight, l->type, (void *)(gsize)m.data, all[i].at * columns, columns);
  }
  if (why != NULL)
    note_widened(l, all[0].weight, stored, n * oct_cuda_matrix_bytes(&m), why);
  return m;
}

static oct_cuda_matrix
take_as(const loader *l, oct_weight_kind kind, guint32 layer, gboolean keep) {
  const oct_weight *w = find(l, kind, layer, 0);
  oct_cuda_piece part = w != NULL ? part_of(l, w) : (oct_cuda_piece){0};
  if (part.rows == 0)
    return (oct_cuda_matrix){0};
  g_autoptr(GArray) fragments = g_array_new(FALSE, FALSE, sizeof(oct_cuda_fragment));
  add_fragment(l, fragments, w, 0);
  return build(l, part.rows, part.columns, 1, fragments, keep);
}

/* This rank's part of one weight; rows 0 when there is none. */
static oct_cuda_matrix
take(const loader *l, oct_weight_kind kind, guint32 layer) {
  return take_as(l, kind, layer, TRUE);
}

/* The same for what is not only multiplied with rows: a table, a matrix that is read as columns. */
static oct_cuda_matrix
take_plain(const loader *l, oct_weight_kind kind, guint32 layer) {
  return take_as(l, kind, layer, FALSE);
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

/* Rows of several weights one after another: at[i] is where those of kinds[i] begin, each at a
 * multiple of `step`. Rows in between are zeros; a kind that the model lacks has none. */
static oct_cuda_matrix
take_stack(const loader *l, const oct_weight_kind *kinds, guint n, guint32 layer, guint32 step,
           guint32 *at) {
  g_autoptr(GArray) fragments = g_array_new(FALSE, FALSE, sizeof(oct_cuda_fragment));
  guint64 rows = 0;
  for (guint i = 0; i < n; i++) {
    const oct_weight *w = find(l, kinds[i], layer, 0);
    at[i] = (guint32)rows;
    if (w == NULL)
      continue;
    add_fragment(l, fragments, w, rows);
    rows = (rows + part_of(l, w).rows + step - 1) / step * step;
  }
  return build(l, rows, l->m->spec->hidden, 1, fragments, TRUE);
}

/* Rows of q, k and v one after another, and of their biases. */
static void
take_qkv(const loader *l, oct_cuda_layer *to) {
  static const oct_weight_kind kinds[] = {OCT_WEIGHT_Q, OCT_WEIGHT_K, OCT_WEIGHT_V};
  static const oct_weight_kind biases[] = {OCT_WEIGHT_Q_BIAS, OCT_WEIGHT_K_BIAS, OCT_WEIGHT_V_BIAS};
  guint32 at[3];
  to->qkv = take_stack(l, kinds, 3, to->index, 1, at);
  if (find(l, OCT_WEIGHT_Q_BIAS, to->index, 0) == NULL)
    return;
  to->qkv_bias = allocate(l, to->qkv.rows, l->type);
  for (guint i = 0; i < 3; i++)
    put(l, find(l, biases[i], to->index, 0), l->type, to->qkv_bias, at[i], 1);
}

static float *
send_scales(const loader *l, const float *scales, guint32 n) {
  float *out = allocate(l, n, OCT_CUDA_F32);
  if (out != NULL && !oct_cuda_upload_bytes(l->upload, out, scales, n * sizeof *out))
    return NULL;
  return out;
}

/* Those of the cache, of this rank's heads of n_heads from `first` on. */
static void
take_scales(const loader *l, oct_cuda_layer *to, guint32 n_heads, guint32 first) {
  g_autoptr(GError) error = NULL;
  g_autofree float *k = g_new(float, n_heads), *v = g_new(float, n_heads);
  gboolean found = FALSE;
  if (l->checkpoint == NULL || l->r->group->config->kv_dtype != OCT_DTYPE_FP8 ||
      l->r->group->options->float32 || oct_cuda_has_failed(l->r))
    return;
  if (!oct_cache_scales(l->checkpoint, to->index, n_heads, k, v, &found, &error)) {
    oct_cuda_fail(l->r, error->message);
  } else if (found) {
    to->k_scale = send_scales(l, k + first, to->kv_heads);
    to->v_scale = send_scales(l, v + first, to->kv_heads);
  }
}

static void
take_gqa(const loader *l, oct_cuda_layer *to) {
  const oct_attention_spec *a = to->attention;
  to->heads = (guint32)(part_of(l, find(l, OCT_WEIGHT_Q, to->index, 0)).rows / a->head_dim);
  oct_cuda_piece keys = part_of(l, find(l, OCT_WEIGHT_K, to->index, 0));
  to->kv_heads = (guint32)(keys.rows / a->head_dim);
  take_scales(l, to, a->n_kv_heads, (guint32)(keys.row / a->head_dim));
  take_qkv(l, to);
  to->o = take(l, OCT_WEIGHT_O, to->index);
  to->q_norm = take_norm(l, OCT_WEIGHT_Q_NORM, to->index);
  to->k_norm = take_norm(l, OCT_WEIGHT_K_NORM, to->index);
  to->sinks = take_vector(l, OCT_WEIGHT_SINKS, to->index, OCT_CUDA_F32);
}

/* Biases of the first and the last of what reads the input; NULL: the model has none. */
static void *
take_mla_bias(const loader *l, const oct_cuda_layer *to) {
  const oct_weight *q = find(l, OCT_WEIGHT_Q_A_BIAS, to->index, 0),
                   *latents = find(l, OCT_WEIGHT_KV_A_BIAS, to->index, 0);
  if (q == NULL && latents == NULL)
    return NULL;
  void *bias = allocate(l, to->input.rows, l->type);
  put(l, q, l->type, bias, to->mla_rows[OCT_CUDA_MLA_QUERIES], 1);
  put(l, latents, l->type, bias, to->mla_rows[OCT_CUDA_MLA_LATENTS], 1);
  return bias;
}

/* All that reads the layer's input is one matrix. Latents are last: their number of rows alone may
 * be no multiple of a block of scales. */
static void
take_mla(const loader *l, oct_cuda_layer *to) {
  const oct_attention_spec *a = to->attention;
  const oct_weight_kind q = a->q_lora > 0 ? OCT_WEIGHT_Q_B : OCT_WEIGHT_Q;
  const oct_weight_kind kinds[] = {a->q_lora > 0 ? OCT_WEIGHT_Q_A : OCT_WEIGHT_Q,
                                   OCT_WEIGHT_ATTN_GATE, OCT_WEIGHT_KV_A};
  to->kv_heads = 1;
  to->heads = (guint32)(part_of(l, find(l, q, to->index, 0)).rows / (a->qk_nope + a->qk_rope));
  take_scales(l, to, 1, 0);
  to->input = take_stack(l, kinds, G_N_ELEMENTS(kinds), to->index, STACK_STEP, to->mla_rows);
  to->input_bias = take_mla_bias(l, to);
  to->q_a_norm = take_norm(l, OCT_WEIGHT_Q_A_NORM, to->index);
  if (a->q_lora > 0)
    to->q_b = take(l, OCT_WEIGHT_Q_B, to->index);
  to->kv_a_norm = take_norm(l, OCT_WEIGHT_KV_A_NORM, to->index);
  to->kv_b = take_plain(l, OCT_WEIGHT_KV_B, to->index);
  to->o = take(l, OCT_WEIGHT_O, to->index);
}

/* All that reads the layer's input is one matrix. */
static void
take_kda(const loader *l, oct_cuda_layer *to) {
  const oct_attention_spec *a = to->attention;
  gboolean is_low = a->output_gate_rank > 0;
  const oct_weight_kind kinds[] = {
      OCT_WEIGHT_Q,       OCT_WEIGHT_K,
      OCT_WEIGHT_V,       is_low ? OCT_WEIGHT_ATTN_GATE_A : OCT_WEIGHT_ATTN_GATE,
      OCT_WEIGHT_DECAY_A, OCT_WEIGHT_BETA};
  to->heads = (guint32)(part_of(l, find(l, OCT_WEIGHT_Q, to->index, 0)).rows / a->head_dim);
  to->kv_heads = to->heads;
  to->qkv = take_stack(l, kinds, G_N_ELEMENTS(kinds), to->index, STACK_STEP, to->kda_rows);
  to->o = take(l, OCT_WEIGHT_O, to->index);
  to->decay_b = take(l, OCT_WEIGHT_DECAY_B, to->index);
  if (is_low)
    to->gate_b = take(l, OCT_WEIGHT_ATTN_GATE_B, to->index);
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

/* n MLPs, gate over up and down each, from expert `first` on, that read and give `outer` elements.
 * `gate` is the first of the three kinds. */
static oct_cuda_ffn
take_ffn(const loader *l, oct_weight_kind gate, guint32 layer, guint32 first, guint32 n,
         guint64 outer) {
  guint64 inner = part_of(l, find(l, gate, layer, first)).rows;
  g_autoptr(GArray) both = g_array_new(FALSE, FALSE, sizeof(oct_cuda_fragment));
  g_autoptr(GArray) down = g_array_new(FALSE, FALSE, sizeof(oct_cuda_fragment));
  for (guint32 i = 0; i < n; i++) {
    add_fragment(l, both, find(l, gate, layer, first + i), 2 * i * inner);
    add_fragment(l, both, find(l, gate + 1, layer, first + i), (2 * (guint64)i + 1) * inner);
    add_fragment(l, down, find(l, gate + 2, layer, first + i), i * outer);
  }
  return (oct_cuda_ffn){.gate_up = build(l, 2 * inner, outer, n, both, TRUE),
                        .down = build(l, outer, inner, n, down, TRUE),
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

/* Projections to what experts work on and back, of which a rank has rows, or all. */
static void
take_latent(const loader *l, oct_cuda_layer *to) {
  const oct_weight *up = find(l, OCT_WEIGHT_LATENT_UP, to->index, 0);
  to->latent_down = take(l, OCT_WEIGHT_LATENT_DOWN, to->index);
  to->latent_up = take(l, OCT_WEIGHT_LATENT_UP, to->index);
  to->latent_up_row = (guint32)part_of(l, up).row;
  to->latent_norm = take_norm(l, OCT_WEIGHT_LATENT_NORM, to->index);
}

static void
take_moe(const loader *l, oct_cuda_layer *to) {
  const oct_ffn_spec *f = to->ffn_spec;
  count_experts(l, to);
  to->router = take(l, OCT_WEIGHT_ROUTER, to->index);
  to->router_bias = take_norm(l, OCT_WEIGHT_ROUTER_BIAS, to->index);
  to->score_bias = take_vector(l, OCT_WEIGHT_ROUTER_SCORE_BIAS, to->index, OCT_CUDA_F32);
  guint64 hidden = l->m->spec->hidden, outer = f->latent > 0 ? f->latent : hidden;
  to->experts =
      take_ffn(l, OCT_WEIGHT_EXPERT_GATE, to->index, to->first_expert, to->n_experts, outer);
  if (l->m->residency != NULL && !oct_cuda_residency_take(l->m->residency, to))
    return;
  take_expert_biases(l, to);
  if (f->kind == OCT_FFN_LATENT_MOE)
    take_latent(l, to);
  if (f->shared_intermediate == 0)
    return;
  to->shared = take_ffn(l, OCT_WEIGHT_SHARED_GATE, to->index, 0, 1, hidden);
  if (find(l, OCT_WEIGHT_SHARED_SWITCH, to->index, 0) == NULL)
    return;
  /* A vector [hidden, 1] that is a product's one row. */
  to->shared_switch = plain_matrix(l, 1, l->m->spec->hidden, 1);
  put(l, find(l, OCT_WEIGHT_SHARED_SWITCH, to->index, 0), l->type,
      (void *)(gsize)to->shared_switch.data, 0, 1);
}

/* ---------------------------------------------------------------- the model */

/* A norm's weight times a projection to one number, which is all that a mix of residuals needs of
 * the two. NULL: there are none. */
static float *
take_score(const loader *l, oct_weight_kind norm, guint32 layer) {
  float *score = take_vector(l, norm, layer, OCT_CUDA_F32);
  const float *projection = take_vector(l, norm + 1, layer, OCT_CUDA_F32);
  if (score != NULL && projection != NULL)
    (void)oct_cuda_note(l->r, oct_glue_scale(l->r->copy_in, score, projection, l->m->spec->hidden),
                        "scores of residuals");
  return score;
}

static void
take_layer(const loader *l, oct_cuda_layer *to) {
  to->attn_norm = take_norm(l, OCT_WEIGHT_ATTN_NORM, to->index);
  to->ffn_norm = take_norm(l, OCT_WEIGHT_FFN_NORM, to->index);
  to->attn_score = take_score(l, OCT_WEIGHT_ATTN_RES_NORM, to->index);
  to->ffn_score = take_score(l, OCT_WEIGHT_FFN_RES_NORM, to->index);
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
  to->dense = take_ffn(l, OCT_WEIGHT_GATE, to->index, 0, 1, l->m->spec->hidden);
}

/* This rank's part of the vocabulary. */
static oct_cuda_matrix
take_vocabulary(const loader *l, const oct_weight *w, gboolean keep) {
  g_autoptr(GArray) fragments = g_array_new(FALSE, FALSE, sizeof(oct_cuda_fragment));
  add_fragment(l, fragments, w, 0);
  return build(l, l->m->head_rows, l->m->spec->hidden, 1, fragments, keep);
}

/* The embedding is on the first stage, the head on the last; tied ones are one tensor where both
 * are on a rank. */
static void
take_ends(loader *l) {
  oct_cuda_model *m = l->m;
  const oct_model_spec *spec = m->spec;
  guint32 n_tensor = l->place.parallel->tensor;
  m->head_rows = (spec->vocab + n_tensor - 1) / n_tensor;
  if (l->r->is_first)
    m->embedding = take_vocabulary(l, find(l, OCT_WEIGHT_EMBEDDING, 0, 0), FALSE);
  if (!l->r->is_last)
    return;
  m->final_norm = take_norm(l, OCT_WEIGHT_FINAL_NORM, 0);
  m->final_score = take_score(l, OCT_WEIGHT_FINAL_RES_NORM, 0);
  if (spec->tied_embeddings && l->r->is_first) {
    m->head = m->embedding;
    return;
  }
  oct_weight w = *find(l, spec->tied_embeddings ? OCT_WEIGHT_EMBEDDING : OCT_WEIGHT_HEAD, 0, 0);
  w.kind = OCT_WEIGHT_HEAD;
  m->head = take_vocabulary(l, &w, TRUE);
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
  if (!oct_cuda_upload_bytes(l->upload, m->angles, angles, n * sizeof *angles))
    m->angles = NULL;
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
  widened all = {0};
  loader l = {.m = m,
              .r = r,
              .widened = &all,
              .map = source->map,
              .checkpoint = source->files != NULL ? source->files->checkpoint : NULL,
              .type = oct_cuda_rank_type(r),
              .place = oct_cuda_share_of(source->spec, &r->group->config->parallel, r->index)};
  m->glu = oct_arithmetic_glu(m->spec);
  m->latent_scale = oct_arithmetic_latent_scale(m->spec);
  m->latent_eps = oct_arithmetic_latent_eps(m->spec);
  place_layers(m);
  m->residency = oct_cuda_residency_new(r, m->spec);
  l.upload = oct_cuda_upload_new(r);
  if (l.upload == NULL)
    return FALSE;
  take_ends(&l);
  make_angles(&l, positions);
  for (guint32 i = 0; i < r->n_layers && !oct_cuda_has_failed(r); i++) {
    take_layer(&l, &m->layers[i]);
    if (progress != NULL && !progress(user, (i + 1.0) / r->n_layers))
      oct_cuda_fail(r, "loading was stopped");
  }
  gboolean sent = oct_cuda_upload_finish(l.upload);
  oct_cuda_upload_free(l.upload);
  g_info("cuda: rank %u: %.2f GiB of weights", r->index, (double)m->bytes / (1u << 30));
  if (all.n > 0)
    g_message("cuda: rank %u: %u weights are widened to bfloat16, %.2f GiB from %.2f, as the first "
              "(%s): %s",
              r->index, all.n, (double)all.bytes / (1u << 30), (double)all.stored / (1u << 30),
              all.layout, all.why);
  return sent && !oct_cuda_has_failed(r);
}

void
oct_cuda_model_clear(oct_cuda_model *m) {
  g_clear_pointer(&m->residency, oct_cuda_residency_free);
  g_clear_pointer(&m->layers, g_free);
}
