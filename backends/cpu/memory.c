#include "backends/cpu/memory.h"

#include <string.h>

#include "engine/base/assert.h"

typedef struct group {
  gsize unit_bytes, layer_bytes;
  gboolean state;
} group;

struct oct_cpu_memory {
  const oct_cpu_model *model;
  oct_kv_format format;
  guint32 n_domains, n_groups, page_tokens;
  group groups[OCT_MODEL_GROUPS_MAX];
  guint8 **pools; /* [domain][group][tier] */
};

static guint8 **
pool_at(const oct_cpu_memory *m, guint32 domain, guint32 g, oct_tier tier) {
  oct_assert(domain < m->n_domains && g < m->n_groups);
  return &m->pools[(domain * m->n_groups + g) * 2 + tier];
}

/* The cache of a layer, without its place in memory. */
static oct_kv_layer
layer_shape(const oct_cpu_memory *m, const oct_attention_spec *a) {
  oct_kv_layer kv = {.format = m->format, .page_tokens = m->page_tokens};
  if (a->kind == OCT_ATTENTION_MLA) {
    kv.n_heads = 1;
    kv.width = a->kv_lora + a->qk_rope;
  } else {
    kv.n_heads = a->n_kv_heads;
    kv.width = a->head_dim;
    kv.has_values = true;
  }
  return kv;
}

static void
set_group(oct_cpu_memory *m, const oct_cpu_layer *l) {
  group *g = &m->groups[l->group];
  if (l->attention->kind == OCT_ATTENTION_KDA) {
    oct_kda kda = oct_cpu_model_kda(m->model, l);
    g->state = TRUE;
    g->layer_bytes = oct_ref_kda_state_floats(&kda) * sizeof(float);
  } else {
    oct_kv_layer kv = layer_shape(m, l->attention);
    g->layer_bytes = oct_ref_kv_page_bytes(&kv);
  }
  /* Each layer begins where a vector may. */
  g->layer_bytes = (g->layer_bytes + 63) / 64 * 64;
  g->unit_bytes += g->layer_bytes;
}

static gboolean
allocate(oct_cpu_memory *m, const oct_instance_config *c, GError **error) {
  for (guint32 d = 0; d < m->n_domains; d++)
    for (guint32 g = 0; g < m->n_groups; g++)
      for (guint tier = 0; tier < 2; tier++) {
        const oct_pool_plan *plan = &c->memory.groups[g];
        gsize n = tier == OCT_TIER_DEVICE ? plan->n_device : plan->n_host, bytes;
        guint8 *pool = NULL;
        if (g_size_checked_mul(&bytes, n, m->groups[g].unit_bytes))
          pool = g_try_malloc0(MAX(bytes, 1));
        *pool_at(m, d, g, (oct_tier)tier) = pool;
        if (pool != NULL)
          continue;
        g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                    "memory.groups[%u].%s is %" G_GSIZE_FORMAT " of %" G_GSIZE_FORMAT
                    " bytes: this machine has not got the memory",
                    g, tier == OCT_TIER_DEVICE ? "n_device" : "n_host", n, m->groups[g].unit_bytes);
        return FALSE;
      }
  return TRUE;
}

oct_cpu_memory *
oct_cpu_memory_new(const oct_instance_config *config, const oct_cpu_model *model,
                   oct_kv_format format, GError **error) {
  g_autoptr(oct_cpu_memory) m = g_new0(oct_cpu_memory, 1);
  m->model = model;
  m->format = format;
  m->n_domains = config->parallel.data;
  m->n_groups = config->memory.n_groups;
  m->page_tokens = config->block_size * config->parallel.decode_context;
  for (guint32 l = 0; l < model->spec->n_layers; l++)
    set_group(m, &model->layers[l]);
  m->pools = g_new0(guint8 *, (gsize)m->n_domains * m->n_groups * 2);
  return allocate(m, config, error) ? g_steal_pointer(&m) : NULL;
}

void
oct_cpu_memory_free(oct_cpu_memory *m) {
  if (m == NULL)
    return;
  for (gsize i = 0; m->pools != NULL && i < (gsize)m->n_domains * m->n_groups * 2; i++)
    g_free(m->pools[i]);
  g_free(m->pools);
  g_free(m);
}

oct_kv_layer
oct_cpu_memory_layer(const oct_cpu_memory *m, guint32 domain, guint32 layer) {
  const oct_cpu_layer *l = &m->model->layers[layer];
  const group *g = &m->groups[l->group];
  oct_kv_layer kv = layer_shape(m, l->attention);
  kv.base = *pool_at(m, domain, l->group, OCT_TIER_DEVICE) + l->place * g->layer_bytes;
  kv.page_stride = g->unit_bytes;
  return kv;
}

float *
oct_cpu_memory_state(const oct_cpu_memory *m, guint32 domain, guint32 layer, guint32 slot) {
  const oct_cpu_layer *l = &m->model->layers[layer];
  const group *g = &m->groups[l->group];
  oct_assert(g->state);
  guint8 *pool = *pool_at(m, domain, l->group, OCT_TIER_DEVICE);
  return (float *)(void *)(pool + slot * g->unit_bytes + l->place * g->layer_bytes);
}

guint8 *
oct_cpu_memory_item(const oct_cpu_memory *m, guint32 domain, guint32 g, oct_tier tier,
                    guint32 item) {
  return *pool_at(m, domain, g, tier) + item * m->groups[g].unit_bytes;
}

void
oct_cpu_memory_copy(const oct_cpu_memory *m, const oct_copy *c) {
  memcpy(oct_cpu_memory_item(m, c->domain, c->group, (oct_tier)c->to_tier, c->to),
         oct_cpu_memory_item(m, c->domain, c->group, (oct_tier)c->from_tier, c->from),
         m->groups[c->group].unit_bytes);
}

void
oct_cpu_memory_pull(const oct_cpu_memory *m, const oct_cpu_memory *peer, guint32 peer_domain,
                    const oct_copy *c) {
  oct_assert(m->groups[c->group].unit_bytes == peer->groups[c->group].unit_bytes);
  memcpy(oct_cpu_memory_item(m, c->domain, c->group, OCT_TIER_DEVICE, c->to),
         oct_cpu_memory_item(peer, peer_domain, c->group, OCT_TIER_DEVICE, c->from),
         m->groups[c->group].unit_bytes);
}

gsize
oct_cpu_memory_unit_bytes(const oct_cpu_memory *m, guint32 g) {
  return m->groups[g].unit_bytes;
}

guint32
oct_cpu_memory_page_tokens(const oct_cpu_memory *m) {
  return m->page_tokens;
}
