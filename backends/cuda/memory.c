#include "backends/cuda/memory.h"

#include <string.h>

#include "engine/base/assert.h"

#define ALIGNMENT 256

static gsize
round_up(gsize bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Of keys, values and latents. */
static oct_cuda_type
cache_type(const oct_cuda_rank *r) {
  gboolean narrow = r->group->config->kv_dtype == OCT_DTYPE_FP8 && !r->group->options->float32;
  return narrow ? OCT_CUDA_FP8 : oct_cuda_rank_type(r);
}

static void
add_layer(oct_cuda_memory *m, const oct_cuda_layer *l) {
  const oct_attention_spec *a = l->attention;
  oct_cuda_pool *p = &m->pools[l->group];
  gsize element = oct_cuda_type_bytes(cache_type(m->rank));
  gsize tokens = m->rank->group->config->block_size;
  if (a->kind == OCT_ATTENTION_KDA) {
    gsize channels = (gsize)l->heads * a->head_dim;
    element = oct_cuda_type_bytes(oct_cuda_rank_type(m->rank));
    p->state = TRUE;
    p->conv_offset = round_up(channels * a->head_dim * sizeof(float));
    p->layer_bytes =
        p->conv_offset + round_up(3 * (gsize)(a->conv_kernel - 1) * channels * element);
  } else if (a->kind == OCT_ATTENTION_MLA) {
    p->layer_bytes = round_up(tokens * (a->kv_lora + a->qk_rope) * element);
  } else {
    p->layer_bytes = round_up(2 * tokens * l->kv_heads * a->head_dim * element);
  }
  p->unit_bytes += p->layer_bytes;
  p->keeps = a->kind != OCT_ATTENTION_MLA || m->rank->tensor < m->rank->group->n_context;
}

gboolean
oct_cuda_memory_open(oct_cuda_memory *m, oct_cuda_rank *r, const oct_cuda_model *model,
                     const oct_cuda_memory *first) {
  const oct_memory_plan *plan = &r->group->config->memory;
  memset(m, 0, sizeof *m);
  m->rank = r;
  m->n_groups = plan->n_groups;
  for (guint32 i = 0; i < r->n_layers; i++)
    add_layer(m, &model->layers[i]);
  for (guint32 g = 0; g < m->n_groups && !oct_cuda_has_failed(r); g++) {
    oct_cuda_pool *p = &m->pools[g];
    guint64 n_host = plan->groups[g].n_host;
    if (p->unit_bytes == 0)
      continue;
    p->device = oct_cuda_alloc(r, p->unit_bytes * plan->groups[g].n_device, "pages");
    if (n_host > 0 && !p->keeps)
      p->host = first->pools[g].host;
    else if (n_host > 0)
      p->host = oct_cuda_alloc_pinned(r, p->unit_bytes * n_host, "the host tier");
  }
  return !oct_cuda_has_failed(r);
}

oct_cuda_kv
oct_cuda_memory_layer(const oct_cuda_memory *m, const oct_cuda_layer *l) {
  const oct_cuda_pool *p = &m->pools[l->group];
  const oct_attention_spec *a = l->attention;
  gboolean latent = a->kind == OCT_ATTENTION_MLA;
  return (oct_cuda_kv){.type = cache_type(m->rank),
                       .base = p->device + l->place * p->layer_bytes,
                       .page_bytes = p->unit_bytes,
                       .page_tokens = m->rank->group->config->block_size,
                       .n_heads = l->kv_heads,
                       .width = latent ? a->kv_lora + a->qk_rope : a->head_dim,
                       .has_values = !latent,
                       .k_scale = l->k_scale,
                       .v_scale = l->v_scale};
}

oct_cuda_states
oct_cuda_memory_states(const oct_cuda_memory *m, const oct_cuda_layer *l) {
  const oct_cuda_pool *p = &m->pools[l->group];
  guint8 *base = p->device + l->place * p->layer_bytes;
  return (oct_cuda_states){.states = (float *)(gpointer)base,
                           .state_stride = p->unit_bytes / sizeof(float),
                           .conv = base + p->conv_offset,
                           .conv_stride =
                               p->unit_bytes / oct_cuda_type_bytes(oct_cuda_rank_type(m->rank))};
}

gboolean
oct_cuda_memory_copy(const oct_cuda_memory *m, const oct_cuda_memory *peer, const oct_copy *c,
                     cudaStream_t stream) {
  const oct_cuda_pool *p = &m->pools[c->group];
  gboolean to_host = c->to_tier == OCT_TIER_HOST;
  if (c->domain != m->rank->domain || p->unit_bytes == 0 || (to_host && !p->keeps))
    return TRUE;
  const guint8 *from = (c->from_tier == OCT_TIER_HOST ? p->host : p->device);
  guint8 *to = to_host ? p->host : p->device;
  if (peer != NULL) {
    oct_assert(peer->pools[c->group].unit_bytes == p->unit_bytes);
    from = peer->pools[c->group].device;
  }
  oct_assert(from != NULL && to != NULL);
  return oct_cuda_note(m->rank,
                       cudaMemcpyAsync(to + c->to * p->unit_bytes, from + c->from * p->unit_bytes,
                                       p->unit_bytes, cudaMemcpyDefault, stream),
                       "a copy of a page");
}
