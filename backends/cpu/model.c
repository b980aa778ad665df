#include "backends/cpu/model.h"

#include <string.h>
#include <sys/mman.h>

#include "backends/arithmetic.h"
#include "engine/backend.h"
#include "engine/base/assert.h"
#include "kernels/reference/blocks.h"

#define TELL_BYTES 1000000000u /* of made-up weights that it is told of before */

static gboolean refuse(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean
refuse(GError **error, const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (error != NULL)
    *error = g_error_new_valist(OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, format, args);
  va_end(args);
  return FALSE;
}

/* ---------------------------------------------------------------- weights */

/* Whether the operators have a fast reader for what the file stores. */
static gboolean
find_blocks(const oct_weight *w, oct_block_format *format) {
  static const oct_stored_type stored[OCT_BLOCK_FORMATS] = {
      [OCT_BLOCK_Q4_0] = OCT_STORED_Q4_0, [OCT_BLOCK_Q4_1] = OCT_STORED_Q4_1,
      [OCT_BLOCK_Q5_0] = OCT_STORED_Q5_0, [OCT_BLOCK_Q5_1] = OCT_STORED_Q5_1,
      [OCT_BLOCK_Q8_0] = OCT_STORED_Q8_0, [OCT_BLOCK_Q4_K] = OCT_STORED_Q4_K,
      [OCT_BLOCK_Q5_K] = OCT_STORED_Q5_K, [OCT_BLOCK_Q6_K] = OCT_STORED_Q6_K};
  if (w->codes == NULL || w->layout != OCT_LAYOUT_ROWS)
    return FALSE;
  for (guint i = 0; i < OCT_BLOCK_FORMATS; i++)
    if (stored[i] == w->type) {
      *format = (oct_block_format)i;
      return TRUE;
    }
  return FALSE;
}

static void
read_rows(const void *data, uint32_t first, uint32_t n, float *out) {
  const oct_weight *w = data;
  oct_block_format format;
  if (!find_blocks(w, &format)) {
    oct_weight_read(w, first, n, out);
    return;
  }
  gsize row_bytes = oct_weight_row_bytes(w), blocks = w->columns / oct_ref_block_weights(format);
  if (w->row_step == 1 && w->head_rows == 0) { /* one run */
    oct_ref_expand_blocks(format, w->codes + first * row_bytes, n * blocks, out);
    return;
  }
  for (guint32 i = 0; i < n; i++)
    oct_ref_expand_blocks(format, w->codes + oct_weight_stored_row(w, first + i) * row_bytes,
                          blocks, out + (gsize)i * w->columns);
}

/* Memory of the model's own, which a config decides about: not g_malloc(). */
static void *
own(oct_cpu_model *m, gsize bytes, GError **error) {
  void *memory = g_try_malloc(MAX(bytes, 1));
  if (memory == NULL) {
    refuse(error, "%s: no memory for %" G_GSIZE_FORMAT " bytes of weights", m->spec->name, bytes);
    return NULL;
  }
  m->bytes += bytes;
  g_ptr_array_add(m->owned, memory);
  return memory;
}

static gboolean
expand(oct_cpu_model *m, const oct_weight *w, const float **out, GError **error) {
  float *values = own(m, w->rows * w->columns * sizeof *values, error);
  if (values == NULL)
    return FALSE;
  oct_weight_read(w, 0, w->rows, values);
  *out = values;
  return TRUE;
}

/* Whether the file holds the rows as the operators take them. */
static gboolean
is_plain(const oct_weight *w, oct_stored_type type) {
  return w->codes != NULL && w->layout == OCT_LAYOUT_ROWS && w->type == type && w->row_step == 1 &&
         w->head_rows == 0;
}

/* Rows of a copy begin where a vector may. */
static gsize
copy_bytes(const oct_weight *w) {
  return (w->rows * oct_weight_row_bytes(w) + 63) / 64 * 64;
}

static gboolean
may_copy(const oct_weight *w) {
  return w->codes != NULL && w->layout == OCT_LAYOUT_ROWS && w->columns > 1;
}

/* Room for copies of all weights that can be copied. Large pages are asked for, not needed. */
static gboolean
map_pages(oct_cpu_model *m, GError **error) {
  for (guint i = 0; i < oct_weight_map_n(m->map); i++)
    if (may_copy(oct_weight_map_at(m->map, i)))
      m->pages_bytes += copy_bytes(oct_weight_map_at(m->map, i));
  if (m->pages_bytes == 0)
    return TRUE;
  void *pages =
      mmap(NULL, m->pages_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED)
    return refuse(error, "%s: no memory for a copy of %" G_GSIZE_FORMAT " bytes of weights",
                  m->spec->name, m->pages_bytes);
#ifdef MADV_HUGEPAGE
  (void)madvise(pages, m->pages_bytes, MADV_HUGEPAGE);
#endif
  m->pages = pages;
  m->bytes += m->pages_bytes;
  return TRUE;
}

/* The weight with its rows copied, in their logical order. Owned by the model. */
static const oct_weight *
copy_rows(oct_cpu_model *m, const oct_weight *w) {
  gsize row_bytes = oct_weight_row_bytes(w);
  guint8 *to = m->pages + m->pages_used;
  m->pages_used += copy_bytes(w);
  oct_assert(m->pages_used <= m->pages_bytes);
  for (guint64 r = 0; r < w->rows; r++)
    memcpy(to + r * row_bytes, w->codes + oct_weight_stored_row(w, r) * row_bytes, row_bytes);
  oct_weight *copy = g_memdup2(w, sizeof *w);
  g_ptr_array_add(m->owned, copy);
  copy->codes = to;
  copy->row_step = 1;
  copy->head_rows = 0;
  return copy;
}

static gboolean
take_matrix(oct_cpu_model *m, const oct_weight *w, oct_cpu_weights how, oct_matrix *matrix,
            GError **error) {
  *matrix = (oct_matrix){.rows = (guint32)w->rows, .columns = (guint32)w->columns};
  if (how == OCT_CPU_WEIGHTS_COPIED && may_copy(w))
    w = copy_rows(m, w);
  if (is_plain(w, OCT_STORED_F32) || is_plain(w, OCT_STORED_BF16)) {
    matrix->format = w->type == OCT_STORED_F32 ? OCT_MATRIX_F32 : OCT_MATRIX_BF16;
    matrix->data = w->codes;
    return TRUE;
  }
  if (how == OCT_CPU_WEIGHTS_FLOAT32) {
    const float *values;
    if (!expand(m, w, &values, error))
      return FALSE;
    matrix->data = values;
    return TRUE;
  }
  matrix->format = OCT_MATRIX_ROWS;
  matrix->data = w;
  matrix->read = read_rows;
  return TRUE;
}

/* Kinds that are used element by element. */
static gboolean
is_vector(oct_weight_kind kind, const oct_weight *w) {
  return w->columns == 1 || kind == OCT_WEIGHT_Q_CONV || kind == OCT_WEIGHT_K_CONV ||
         kind == OCT_WEIGHT_V_CONV;
}

static gboolean
take_expert(oct_cpu_model *m, oct_cpu_layer *l, const oct_weight *w, oct_cpu_weights how,
            GError **error) {
  oct_cpu_experts *e = &l->experts;
  if (e->gate == NULL) {
    guint32 n = l->ffn->n_experts;
    oct_matrix **matrices[] = {&e->gate, &e->up, &e->down};
    const float ***biases[] = {&e->gate_bias, &e->up_bias, &e->down_bias};
    for (gsize i = 0; i < 3; i++) {
      *matrices[i] = g_new0(oct_matrix, n);
      *biases[i] = g_new0(const float *, n);
      g_ptr_array_add(m->owned, *matrices[i]);
      g_ptr_array_add(m->owned, (void *)*biases[i]);
    }
  }
  switch ((int)w->kind) {
  case OCT_WEIGHT_EXPERT_GATE:
    return take_matrix(m, w, how, &e->gate[w->expert], error);
  case OCT_WEIGHT_EXPERT_UP:
    return take_matrix(m, w, how, &e->up[w->expert], error);
  case OCT_WEIGHT_EXPERT_DOWN:
    return take_matrix(m, w, how, &e->down[w->expert], error);
  case OCT_WEIGHT_EXPERT_GATE_BIAS:
    return expand(m, w, &e->gate_bias[w->expert], error);
  case OCT_WEIGHT_EXPERT_UP_BIAS:
    return expand(m, w, &e->up_bias[w->expert], error);
  default:
    oct_assert(w->kind == OCT_WEIGHT_EXPERT_DOWN_BIAS);
    return expand(m, w, &e->down_bias[w->expert], error);
  }
}

static gboolean
take_weight(oct_cpu_model *m, const oct_weight *w, oct_cpu_weights how, GError **error) {
  oct_cpu_layer *l = &m->layers[w->layer];
  if (w->kind == OCT_WEIGHT_EMBEDDING)
    return take_matrix(m, w, how, &m->embedding, error);
  if (w->kind == OCT_WEIGHT_HEAD)
    return take_matrix(m, w, how, &m->head, error);
  if (w->kind == OCT_WEIGHT_FINAL_NORM)
    return expand(m, w, &m->final_norm, error);
  if (w->kind == OCT_WEIGHT_FINAL_RES_NORM)
    return expand(m, w, &m->final_res_norm, error);
  if (w->kind == OCT_WEIGHT_FINAL_RES_PROJ)
    return expand(m, w, &m->final_res_proj, error);
  if (w->kind >= OCT_WEIGHT_EXPERT_GATE)
    return take_expert(m, l, w, how, error);
  if (is_vector(w->kind, w))
    return expand(m, w, &l->vectors[w->kind], error);
  return take_matrix(m, w, how, &l->matrices[w->kind], error);
}

static gboolean
materialise(oct_cpu_model *m, guint i, GError **error) {
  GError *why = NULL;
  if (oct_weight_materialise(m->map, i, m->budget, &why))
    return TRUE;
  refuse(error, "%s", why->message);
  g_error_free(why);
  return FALSE;
}

static gboolean
take_weights(oct_cpu_model *m, oct_cpu_weights how,
             gboolean (*progress)(void *user, double fraction), void *user, GError **error) {
  guint n = oct_weight_map_n(m->map);
  if (how == OCT_CPU_WEIGHTS_COPIED && !map_pages(m, error))
    return FALSE;
  for (guint i = 0; i < n; i++) {
    /* Made-up numbers are slow to make: they are made once, and stored as the spec says. */
    if (m->files == NULL && !materialise(m, i, error))
      return FALSE;
    if (!take_weight(m, oct_weight_map_at(m->map, i), how, error))
      return FALSE;
    if (progress != NULL && i % 32 == 0 && !progress(user, (double)i / n))
      return refuse(error, "loading was stopped");
  }
  if (m->head.rows == 0)
    m->head = m->embedding;
  return TRUE;
}

/* ---------------------------------------------------------------- life cycle */

static gboolean
set_frequencies(oct_cpu_model *m, GError **error) {
  m->rope_frequencies = own(m, m->rope.dim / 2 * sizeof(float), error);
  return m->rope_frequencies != NULL &&
         oct_arithmetic_frequencies(m->spec, m->map, m->rope_frequencies, error);
}

static void
set_layers(oct_cpu_model *m) {
  guint32 counts[OCT_MODEL_GROUPS_MAX] = {0};
  m->layers = g_new0(oct_cpu_layer, m->spec->n_layers);
  for (guint32 i = 0; i < m->spec->n_layers; i++) {
    oct_cpu_layer *l = &m->layers[i];
    l->attention = &m->spec->attention[m->spec->layers[i].attention];
    l->ffn = &m->spec->ffn[m->spec->layers[i].ffn];
    l->group = oct_arithmetic_group(m->spec, i);
    l->place = counts[l->group]++;
  }
}

static gboolean
open_weights(oct_cpu_model *m, const oct_cpu_model_options *o, GError **error) {
  GError *why = NULL;
  if (o->path != NULL) {
    g_autoptr(oct_map_report) report = oct_map_report_new();
    m->files = oct_model_files_open(o->path, NULL, o->format, o->seed, report, &why);
    if (m->files != NULL) {
      g_autofree char *line = oct_map_report_skipped_line(report);
      if (line != NULL)
        g_message("cpu: %s", line);
      m->spec = m->files->spec;
      m->map = m->files->map;
    }
  } else {
    m->spec = o->spec;
    m->budget = oct_budget_new("made-up weights", G_MAXSIZE);
    m->map = oct_weight_map_new_dummy(o->spec, o->seed, &why);
  }
  if (why == NULL)
    return TRUE;
  refuse(error, "%s", why->message);
  g_error_free(why);
  return FALSE;
}

/* Made-up weights have their own memory anyway. */
static oct_cpu_weights
choose(const oct_cpu_model *m, const oct_cpu_model_options *o) {
  if (o->weights != OCT_CPU_WEIGHTS_AUTO)
    return o->weights;
  return m->files != NULL && oct_checkpoint_bytes(m->files->checkpoint) <= OCT_CPU_COPY_MAX
             ? OCT_CPU_WEIGHTS_COPIED
             : OCT_CPU_WEIGHTS_MAPPED;
}

/* Made-up weights are slow to make, and of those of a large model nothing else is heard for
 * minutes.
 */
static void
tell_making(const oct_cpu_model *m) {
  const guint64 bytes = oct_cpu_model_stored(m);
  if (m->files == NULL && bytes >= TELL_BYTES)
    g_message("cpu: making up %.2f GB of weights", (double)bytes * 1e-9);
}

oct_cpu_model *
oct_cpu_model_load(const oct_cpu_model_options *o,
                   gboolean (*progress)(void *user, double fraction), void *user, GError **error) {
  g_autoptr(oct_cpu_model) m = g_new0(oct_cpu_model, 1);
  m->owned = g_ptr_array_new_with_free_func(g_free);
  if (!open_weights(m, o, error) || !oct_arithmetic_check(m->spec, error) ||
      !oct_arithmetic_check_same(m->spec, o->spec, error))
    return NULL;
  set_layers(m);
  m->glu = oct_arithmetic_glu(m->spec);
  m->latent_scale = oct_arithmetic_latent_scale(m->spec);
  m->rope = oct_arithmetic_rope(m->spec);
  m->how = choose(m, o);
  tell_making(m);
  if (!set_frequencies(m, error) || !take_weights(m, m->how, progress, user, error))
    return NULL;
  m->bytes += m->budget != NULL ? oct_budget_used(m->budget) : 0;
  return g_steal_pointer(&m);
}

guint64
oct_cpu_model_stored(const oct_cpu_model *m) {
  guint64 bytes = 0;
  for (guint i = 0; i < oct_weight_map_n(m->map); i++)
    bytes += oct_weight_map_at(m->map, i)->bytes;
  return bytes;
}

void
oct_cpu_model_free(oct_cpu_model *m) {
  if (m == NULL)
    return;
  if (m->files != NULL)
    oct_model_files_close(m->files);
  else
    oct_weight_map_free(m->map);
  oct_budget_free(m->budget);
  if (m->pages != NULL)
    munmap(m->pages, m->pages_bytes);
  g_free(m->layers);
  g_ptr_array_unref(m->owned);
  g_free(m);
}

/* ---------------------------------------------------------------- parts */

oct_kda
oct_cpu_model_kda(const oct_cpu_model *m, const oct_cpu_layer *l) {
  return (oct_kda){.n_heads = l->attention->n_heads,
                   .width = l->attention->head_dim,
                   .taps = l->attention->conv_kernel,
                   .q_conv = l->vectors[OCT_WEIGHT_Q_CONV],
                   .k_conv = l->vectors[OCT_WEIGHT_K_CONV],
                   .v_conv = l->vectors[OCT_WEIGHT_V_CONV],
                   .a_log = l->vectors[OCT_WEIGHT_A_LOG],
                   .dt_bias = l->vectors[OCT_WEIGHT_DT_BIAS],
                   .decay_bound = (float)m->spec->numerics.decay_bound};
}

guint32
oct_cpu_model_expert_width(const oct_cpu_model *m, const oct_cpu_layer *l) {
  return l->ffn->kind == OCT_FFN_LATENT_MOE ? l->ffn->latent : m->spec->hidden;
}

oct_routing
oct_cpu_model_routing(const oct_cpu_model *m, const oct_cpu_layer *l) {
  return oct_arithmetic_routing(m->spec, l->ffn, l->vectors[OCT_WEIGHT_ROUTER_SCORE_BIAS]);
}

static oct_mlp
mlp(const oct_cpu_model *m, const oct_matrix *gate, const oct_matrix *up, const oct_matrix *down) {
  return (oct_mlp){.gate = gate,
                   .up = up,
                   .down = down,
                   .glu = m->glu,
                   .inner = gate->rows,
                   .outer = gate->columns};
}

oct_mlp
oct_cpu_model_expert(const oct_cpu_model *m, const oct_cpu_layer *l, guint32 expert) {
  const oct_cpu_experts *e = &l->experts;
  oct_mlp one = mlp(m, &e->gate[expert], &e->up[expert], &e->down[expert]);
  one.gate_bias = e->gate_bias[expert];
  one.up_bias = e->up_bias[expert];
  one.down_bias = e->down_bias[expert];
  return one;
}

oct_mlp
oct_cpu_model_dense(const oct_cpu_model *m, const oct_cpu_layer *l) {
  return mlp(m, &l->matrices[OCT_WEIGHT_GATE], &l->matrices[OCT_WEIGHT_UP],
             &l->matrices[OCT_WEIGHT_DOWN]);
}

oct_mlp
oct_cpu_model_shared(const oct_cpu_model *m, const oct_cpu_layer *l) {
  return mlp(m, &l->matrices[OCT_WEIGHT_SHARED_GATE], &l->matrices[OCT_WEIGHT_SHARED_UP],
             &l->matrices[OCT_WEIGHT_SHARED_DOWN]);
}
