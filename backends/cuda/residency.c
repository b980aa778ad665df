#include "backends/cuda/residency.h"

#include <string.h>

#include "engine/base/assert.h"

/* What a product has of an expert: codes, or scales. */
typedef struct run {
  guint8 *device;
  gsize bytes; /* of one matrix */
} run;

struct oct_cuda_residency {
  oct_cuda_rank *rank;
  const oct_model_spec *spec;
  guint32 width;   /* entries of a layer in the map */
  guint32 n_moe;   /* layers with experts on this rank */
  guint32 n_slots; /* of a layer on the device */
  guint32 n_scratch;
  oct_cuda_ffn experts; /* as in all layers; rows 0 until the first was taken */
  guint32 first_expert, n_experts;
  run runs[OCT_CUDA_EXPERT_RUNS];
  guint32 n_runs;
  guint32 *places; /* [layers of the rank]: which of those with experts */
  guint8 **hosts;  /* [n_moe, OCT_CUDA_EXPERT_RUNS]: of all experts of the layer */
  guint32 *map;    /* on the device */
  guint32 *where;  /* [n_experts] on the device */
};

guint32
oct_cuda_residency_width(const oct_model_spec *spec) {
  guint32 width = 0;
  for (guint32 i = 0; i < spec->n_ffn; i++)
    width = MAX(width, spec->ffn[i].n_experts);
  return width;
}

/* ---------------------------------------------------------------- life cycle */

oct_cuda_residency *
oct_cuda_residency_new(oct_cuda_rank *r, const oct_model_spec *spec) {
  if (r->group->config->memory.n_expert_slots == 0)
    return NULL;
  oct_cuda_residency *s = g_new0(oct_cuda_residency, 1);
  s->rank = r;
  s->spec = spec;
  s->width = oct_cuda_residency_width(spec);
  s->n_slots = r->group->config->memory.n_expert_slots;
  s->places = g_new0(guint32, r->n_layers);
  for (guint32 i = 0; i < r->n_layers; i++) {
    s->places[i] = s->n_moe;
    s->n_moe += spec->ffn[spec->layers[r->first_layer + i].ffn].n_experts > 0;
  }
  s->hosts = g_new0(guint8 *, (gsize)s->n_moe * OCT_CUDA_EXPERT_RUNS);
  gsize entries = (gsize)spec->n_layers * s->width;
  s->map = oct_cuda_alloc(r, entries * sizeof *s->map, "the map of experts");
  if (s->map != NULL)
    (void)oct_cuda_note(r, cudaMemsetAsync(s->map, 0xff, entries * sizeof *s->map, r->copy_in),
                        "the map of experts");
  return s;
}

void
oct_cuda_residency_free(oct_cuda_residency *s) {
  if (s == NULL)
    return;
  /* The memory is the rank's. */
  g_free(s->places);
  g_free(s->hosts);
  g_free(s);
}

static void
add_run(oct_cuda_residency *s, gsize bytes, const char *what) {
  run *r = &s->runs[s->n_runs++];
  guint32 n = s->n_moe * s->n_slots + s->n_scratch;
  r->bytes = bytes;
  r->device = oct_cuda_alloc(s->rank, (guint64)n * bytes, what);
}

static guint64
n_batched(const oct_cuda_residency *s) {
  const oct_instance_config *c = s->rank->group->config;
  guint64 tokens = MAX(c->max_batched_tokens, c->max_slots);
  return c->parallel.expert_parallel ? tokens * c->parallel.data : tokens;
}

/* Of the first layer: all have the same. */
static gboolean
make_pool(oct_cuda_residency *s, const oct_cuda_layer *l) {
  const oct_cuda_ffn *f = &l->experts;
  s->experts = *f;
  s->first_expert = l->first_expert;
  s->n_experts = l->n_experts;
  /* As many as a step can use: while slots change hands hardly one may be mapped. */
  s->n_scratch = (guint32)MIN(n_batched(s) * l->ffn_spec->top_k, l->n_experts);
  add_run(s, oct_cuda_matrix_bytes(&f->gate_up), "expert slots");
  add_run(s, oct_cuda_matrix_bytes(&f->down), "expert slots");
  if (f->gate_up.scales != NULL && oct_cuda_matrix_scale_bytes(&f->gate_up) > 0) {
    add_run(s, oct_cuda_matrix_scale_bytes(&f->gate_up), "scales of expert slots");
    add_run(s, oct_cuda_matrix_scale_bytes(&f->down), "scales of expert slots");
  }
  s->where = oct_cuda_alloc(s->rank, s->n_experts * sizeof *s->where, "where experts are");
  return !oct_cuda_has_failed(s->rank);
}

static gboolean
is_same(const oct_cuda_matrix *a, const oct_cuda_matrix *b) {
  return a->format == b->format && a->rows == b->rows && a->columns == b->columns &&
         a->group == b->group;
}

/* One run of the layer's experts to pinned memory; what it was loaded to is given back. */
static gboolean
move_out(oct_cuda_residency *s, guint32 place, guint32 i, void *from) {
  oct_cuda_rank *r = s->rank;
  gsize bytes = s->n_experts * s->runs[i].bytes;
  guint8 *host = oct_cuda_alloc_pinned_unset(r, bytes, "experts");
  if (host == NULL)
    return FALSE;
  s->hosts[(gsize)place * OCT_CUDA_EXPERT_RUNS + i] = host;
  gboolean moved =
      oct_cuda_note(r, cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, r->copy_in),
                    "experts to the host") &&
      oct_cuda_drain(r, r->copy_in, "experts to the host");
  oct_cuda_release(r, from);
  return moved;
}

gboolean
oct_cuda_residency_take(oct_cuda_residency *s, oct_cuda_layer *l) {
  oct_cuda_ffn *f = &l->experts;
  if (oct_cuda_has_failed(s->rank) || f->gate_up.rows == 0)
    return !oct_cuda_has_failed(s->rank);
  if (s->experts.gate_up.rows == 0 && !make_pool(s, l))
    return FALSE;
  if (!is_same(&s->experts.gate_up, &f->gate_up) || !is_same(&s->experts.down, &f->down) ||
      s->first_expert != l->first_expert || s->n_experts != l->n_experts) {
    oct_cuda_fail(s->rank, "expert slots: experts of layers differ in shape, format or number");
    return FALSE;
  }
  void *const loaded[OCT_CUDA_EXPERT_RUNS] = {
      (void *)(gsize)f->gate_up.data, (void *)(gsize)f->down.data, (void *)(gsize)f->gate_up.scales,
      (void *)(gsize)f->down.scales};
  guint32 place = s->places[l->index - s->rank->first_layer];
  for (guint32 i = 0; i < s->n_runs; i++)
    if (!move_out(s, place, i, loaded[i]))
      return FALSE;
  f->gate_up.data = s->runs[0].device;
  f->down.data = s->runs[1].device;
  f->gate_up.scales = s->n_runs > 2 ? s->runs[2].device : NULL;
  f->down.scales = s->n_runs > 2 ? s->runs[3].device : NULL;
  return TRUE;
}

/* ---------------------------------------------------------------- use */

guint32 *
oct_cuda_residency_map(const oct_cuda_residency *s) {
  return s->map;
}

gboolean
oct_cuda_residency_copy(const oct_cuda_residency *s, const oct_copy *c, cudaStream_t stream) {
  const oct_cuda_rank *r = s->rank;
  guint32 layer = c->group - r->first_layer, expert = c->from - s->first_expert;
  if (layer >= r->n_layers || expert >= s->n_experts)
    return TRUE;
  guint32 place = s->places[layer];
  oct_assert(c->to < s->n_slots);
  for (guint32 i = 0; i < s->n_runs; i++) {
    const run *of = &s->runs[i];
    const guint8 *from = s->hosts[(gsize)place * OCT_CUDA_EXPERT_RUNS + i] + expert * of->bytes;
    guint8 *to = of->device + ((gsize)place * s->n_slots + c->to) * of->bytes;
    if (!oct_cuda_note(s->rank,
                       cudaMemcpyAsync(to, from, of->bytes, cudaMemcpyHostToDevice, stream),
                       "an expert"))
      return FALSE;
  }
  return TRUE;
}

gboolean
oct_cuda_residency_fetch(const oct_cuda_residency *s, const oct_cuda_layer *l,
                         const guint32 *starts, oct_cuda_expert_matmul *products) {
  guint32 place = s->places[l->index - s->rank->first_layer];
  oct_cuda_fetch call = {.n_local = s->n_experts,
                         .starts = starts,
                         .map = s->map + (gsize)l->index * s->width + s->first_expert,
                         .first = place * s->n_slots,
                         .scratch = s->n_moe * s->n_slots,
                         .where = s->where,
                         .n_runs = s->n_runs};
  for (guint32 i = 0; i < s->n_runs; i++)
    call.runs[i] = (oct_cuda_expert_run){.host = s->hosts[(gsize)place * OCT_CUDA_EXPERT_RUNS + i],
                                         .device = s->runs[i].device,
                                         .bytes = s->runs[i].bytes};
  products->slots = s->where;
  products->n_matrices = s->n_moe * s->n_slots + s->n_scratch;
  return oct_cuda_note(s->rank, oct_cuda_fetch_experts(&s->rank->queue, &call), "experts");
}
