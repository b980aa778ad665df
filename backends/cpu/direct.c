#include "backends/cpu/direct.h"

#include "backends/cpu/forward.h"
#include "engine/backend.h"
#include "engine/base/assert.h"

#define PAGE_TOKENS 16

struct oct_cpu_direct {
  oct_model_spec *spec;
  oct_instance_config config;
  oct_cpu_model *model;
  oct_cpu_memory *memory;
  oct_team *team;
  oct_cpu_forward *forward;
  guint32 context, n; /* n: tokens of the last text */
  guint32 *pages;     /* 0, 1, 2…: the table of every group */
  oct_cpu_view view;
  oct_cpu_token *tokens; /* [context] */
  float *hidden;         /* [context, hidden] */
  oct_inputs *inputs;
  GHashTable *weights; /* of const oct_matrix * to const oct_weight *; NULL before collect() */
};

static gboolean
make_room(oct_cpu_direct *d, guint32 threads, oct_kv_format kv, GError **error) {
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint32 n_pages = (d->context + PAGE_TOKENS - 1) / PAGE_TOKENS;
  d->config = (oct_instance_config){
      .spec = d->spec, .parallel = OCT_PARALLEL_DEFAULT, .block_size = PAGE_TOKENS};
  d->config.memory.n_groups = oct_model_groups(d->spec, OCT_DTYPE_BF16, groups);
  d->pages = g_new(guint32, n_pages);
  for (guint32 i = 0; i < n_pages; i++)
    d->pages[i] = i;
  for (guint32 g = 0; g < d->config.memory.n_groups; g++) {
    d->config.memory.groups[g].n_device = n_pages;
    d->view.tables[g] = d->pages;
  }
  d->memory = oct_cpu_memory_new(&d->config, d->model, kv, error);
  if (d->memory == NULL)
    return FALSE;
  d->team = oct_team_new(threads);
  const oct_cpu_forward_options forward = {.model = d->model,
                                           .memory = d->memory,
                                           .team = d->team,
                                           .max_tokens = d->context,
                                           .max_context = d->context,
                                           .expanded_latents = TRUE};
  d->forward = oct_cpu_forward_new(&forward, error);
  if (d->forward == NULL)
    return FALSE;
  d->tokens = g_new(oct_cpu_token, d->context);
  d->hidden = g_try_new(float, (gsize)d->context * d->spec->hidden);
  if (d->hidden != NULL)
    return TRUE;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
              "no memory for the hidden states of %u tokens", d->context);
  return FALSE;
}

oct_cpu_direct *
oct_cpu_direct_new(const oct_cpu_direct_options *o, GError **error) {
  oct_assert(o->context >= 1 && o->context <= OCT_CPU_DIRECT_CONTEXT_MAX);
  g_autoptr(oct_cpu_direct) d = g_new0(oct_cpu_direct, 1);
  d->context = o->context;
  g_autoptr(oct_checkpoint) checkpoint = oct_checkpoint_open(o->path, o->format, error);
  if (checkpoint == NULL)
    return NULL;
  d->spec = oct_model_spec_of(checkpoint, error);
  if (d->spec == NULL)
    return NULL;
  const oct_cpu_model_options model = {.path = o->path, .format = o->format, .spec = d->spec};
  d->model = oct_cpu_model_load(&model, NULL, NULL, error);
  if (d->model == NULL || !make_room(d, o->threads, o->kv, error))
    return NULL;
  return g_steal_pointer(&d);
}

void
oct_cpu_direct_free(oct_cpu_direct *d) {
  if (d == NULL)
    return;
  if (d->weights != NULL)
    g_hash_table_unref(d->weights);
  oct_cpu_forward_free(d->forward);
  oct_team_free(d->team);
  oct_cpu_memory_free(d->memory);
  oct_cpu_model_free(d->model);
  oct_model_spec_free(d->spec);
  g_free(d->pages);
  g_free(d->tokens);
  g_free(d->hidden);
  g_free(d);
}

void
oct_cpu_direct_run(oct_cpu_direct *d, const guint32 *ids, guint32 n) {
  oct_assert(n >= 1 && n <= d->context);
  for (guint32 i = 0; i < n; i++) {
    oct_assert(ids[i] < d->spec->vocab);
    d->tokens[i] = (oct_cpu_token){.id = ids[i], .position = i, .row = i};
  }
  gboolean done = oct_cpu_forward_run(d->forward, &d->view, d->tokens, n, NULL, d->hidden);
  oct_assert(done);
  d->n = n;
}

void
oct_cpu_direct_logits(oct_cpu_direct *d, guint32 first, guint32 n, float *out) {
  oct_assert(first <= d->n && n <= d->n - first);
  oct_cpu_forward_logits(d->forward, d->hidden + (gsize)first * d->spec->hidden, n, out);
}

/* ---------------------------------------------------------------- calibration */

static void
add_weight(oct_cpu_direct *d, const oct_matrix *matrix, oct_weight_kind kind, guint32 layer,
           guint32 expert) {
  const oct_weight *w = oct_weight_map_get(d->model->map, kind, layer, expert);
  if (w != NULL && matrix->rows > 0)
    g_hash_table_insert(d->weights, (gpointer)matrix, (gpointer)w);
}

static void
list_weights(oct_cpu_direct *d) {
  d->weights = g_hash_table_new(NULL, NULL);
  for (guint32 layer = 0; layer < d->spec->n_layers; layer++) {
    const oct_cpu_layer *l = &d->model->layers[layer];
    for (guint kind = OCT_WEIGHT_ATTN_NORM; kind < OCT_WEIGHT_EXPERT_GATE; kind++)
      add_weight(d, &l->matrices[kind], (oct_weight_kind)kind, layer, 0);
    for (guint32 e = 0; l->experts.gate != NULL && e < l->ffn->n_experts; e++) {
      add_weight(d, &l->experts.gate[e], OCT_WEIGHT_EXPERT_GATE, layer, e);
      add_weight(d, &l->experts.down[e], OCT_WEIGHT_EXPERT_DOWN, layer, e);
    }
  }
}

static void
on_inputs(void *user, const oct_matrix *matrix, const float *x, gsize stride, guint32 n) {
  const oct_cpu_direct *d = user;
  const oct_weight *w = g_hash_table_lookup(d->weights, matrix);
  if (w != NULL)
    oct_inputs_add(d->inputs, w, x, stride, n);
}

void
oct_cpu_direct_collect(oct_cpu_direct *d, oct_inputs *inputs) {
  if (d->weights == NULL)
    list_weights(d);
  d->inputs = inputs;
  oct_cpu_forward_set_inputs(d->forward, inputs != NULL ? on_inputs : NULL, d);
}

const oct_cpu_model *
oct_cpu_direct_model(const oct_cpu_direct *d) {
  return d->model;
}
