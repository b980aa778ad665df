/* Experts of the shadow: which are loaded where, and which a step's tokens use.
 *
 * A device slot for an expert goes through: free -> being written by a copy -> loaded -> mapped (a
 * step's record says that the expert is there) -> unmapped, and free again when the last step that
 * could read it has ended. Routing is a hash of (sequence, position, layer): uniform, skewed, or by
 * how often each expert was chosen elsewhere.
 */
#include "backends/shadow-internal.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"

#define TOP_K_MAX 64
#define TRIES_MAX 256 /* draws for one token and layer */

static const oct_ffn_spec *
layer_ffn(const oct_shadow *s, guint32 layer) {
  const oct_model_spec *spec = s->config.spec;
  return &spec->ffn[spec->layers[layer].ffn];
}

/* Sums of a layer's counts, so that the last of its experts has 1; all 0 where nothing counts. */
static void
add_chances(oct_shadow *s, guint32 layer) {
  const double *counts = &s->options.expert_counts[(gsize)layer * s->n_layer_experts];
  double *chance = &s->expert_chance[(gsize)layer * s->n_layer_experts], sum = 0, so_far = 0;
  guint32 n = layer_ffn(s, layer)->n_experts;
  for (guint32 e = 0; e < n; e++)
    sum += counts[e];
  for (guint32 e = 0; e < n && sum > 0; e++) {
    so_far += counts[e];
    chance[e] = so_far / sum;
  }
}

void
shadow_experts_new(oct_shadow *s) {
  const oct_model_spec *spec = s->config.spec;
  const oct_parallel *p = &s->config.parallel;
  if (!s->config.report_experts && s->config.memory.n_expert_slots == 0)
    return;
  for (guint32 l = 0; l < spec->n_layers; l++)
    s->n_layer_experts = MAX(s->n_layer_experts, layer_ffn(s, l)->n_experts);
  s->n_expert_ranks = p->expert_parallel ? p->tensor * p->data : 1;
  s->expert_use = g_new0(guint32, s->n_layer_experts);
  if (s->options.expert_counts != NULL && s->options.n_count_layers == spec->n_layers &&
      s->options.n_count_experts == s->n_layer_experts) {
    s->expert_chance = g_new0(double, (gsize)spec->n_layers * s->n_layer_experts);
    for (guint32 l = 0; l < spec->n_layers; l++)
      add_chances(s, l);
  }
  if (s->config.memory.n_expert_slots == 0)
    return;
  gsize n_map = (gsize)spec->n_layers * s->n_layer_experts;
  s->expert_at = g_new(guint32, n_map);
  memset(s->expert_at, 0xff, n_map * sizeof *s->expert_at);
  gsize n_slots = (gsize)spec->n_layers * s->n_expert_ranks * s->config.memory.n_expert_slots;
  s->expert_slots = g_new0(expert_slot, n_slots);
  for (gsize i = 0; i < n_slots; i++)
    s->expert_slots[i].loaded = s->expert_slots[i].mapped = OCT_NO_INDEX;
}

void
shadow_experts_free(oct_shadow *s) {
  g_free(s->expert_use);
  g_free(s->expert_chance);
  g_free(s->expert_at);
  g_free(s->expert_slots);
}

/* The device slot `index` of the rank that has `expert`. */
static expert_slot *
slot_for(const oct_shadow *s, guint32 layer, guint32 expert, guint32 index) {
  guint32 per_rank = (layer_ffn(s, layer)->n_experts + s->n_expert_ranks - 1) / s->n_expert_ranks;
  guint32 rank = expert / per_rank;
  return &s->expert_slots[((gsize)layer * s->n_expert_ranks + rank) *
                              s->config.memory.n_expert_slots +
                          index];
}

gboolean
shadow_apply_experts(oct_shadow *s, const oct_step *step, oct_fault *fault) {
  const oct_expert_change *changes = oct_step_experts(step);
  for (guint32 i = 0; i < step->n_experts; i++) {
    const oct_expert_change *c = &changes[i];
    if (s->expert_at == NULL)
      return shadow_breach(fault, step->number, "expert change %u, but every expert is resident",
                           i);
    guint32 *at = &s->expert_at[(gsize)c->layer * s->n_layer_experts + c->expert];
    if (*at != OCT_NO_INDEX) {
      expert_slot *old = slot_for(s, c->layer, c->expert, *at);
      old->mapped = OCT_NO_INDEX;
      old->freed_at = step->number;
    }
    *at = c->slot;
    if (c->slot == OCT_NO_INDEX)
      continue;
    expert_slot *e = slot_for(s, c->layer, c->expert, c->slot);
    if (e->mapped != OCT_NO_INDEX)
      return shadow_breach(fault, step->number, "layer %u slot %u is mapped to expert %u, not %u",
                           c->layer, c->slot, e->mapped, c->expert);
    if (e->loaded != c->expert || e->writing > 0)
      return shadow_breach(fault, step->number, "layer %u slot %u does not hold expert %u yet",
                           c->layer, c->slot, c->expert);
    e->mapped = c->expert;
  }
  return TRUE;
}

gboolean
shadow_expert_copy_begin(oct_shadow *s, guint64 number, const oct_copy *c, oct_fault *fault) {
  if (s->expert_slots == NULL)
    return shadow_breach(fault, number, "expert copy, but every expert is resident");
  expert_slot *e = slot_for(s, c->group, c->from, c->to);
  if (s->options.check_leases && (e->mapped != OCT_NO_INDEX || e->writing > 0))
    return shadow_breach(fault, number, "expert copy to layer %u slot %u, which is %s", c->group,
                         c->to, e->writing > 0 ? "being written" : "mapped");
  if (s->options.check_leases && e->freed_at > s->last_done + 1)
    return shadow_breach(fault, number,
                         "expert copy to layer %u slot %u, read by steps up to %" G_GUINT64_FORMAT,
                         c->group, c->to, e->freed_at - 1);
  e->loaded = OCT_NO_INDEX;
  e->writing++;
  return TRUE;
}

void
shadow_expert_copy_end(oct_shadow *s, const oct_copy *c, gboolean failed) {
  expert_slot *e = slot_for(s, c->group, c->from, c->to);
  oct_assert(e->writing > 0);
  e->writing--;
  e->loaded = failed ? OCT_NO_INDEX : c->from;
}

/* ---------------------------------------------------------------- routing */

/* The first of n experts whose sum of chances is above u. */
static guint32
find_chance(const double *chance, guint32 n, double u) {
  guint32 low = 0, high = n - 1;
  while (low < high) {
    guint32 middle = (low + high) / 2;
    if (chance[middle] > u)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/* The j-th try at an expert for one token in one layer. */
static guint32
draw_expert(const oct_shadow *s, guint64 token_hash, guint32 layer, guint32 j, guint32 n) {
  guint64 x = oct_mix64(token_hash ^ ((guint64)layer << 32 | j));
  const double *chance =
      s->expert_chance != NULL ? &s->expert_chance[(gsize)layer * s->n_layer_experts] : NULL;
  if (chance != NULL && chance[n - 1] > 0)
    return find_chance(chance, n, (double)(x >> 11) * 0x1p-53);
  if (s->options.expert_skew <= 0)
    return (guint32)(((x >> 32) * n) >> 32);
  double u = (double)(x >> 11) * 0x1p-53;
  return (guint32)((double)n * pow(u, 1 + s->options.expert_skew));
}

static gboolean
is_chosen(const guint32 *chosen, guint32 n, guint32 expert) {
  for (guint32 i = 0; i < n; i++)
    if (chosen[i] == expert)
      return TRUE;
  return FALSE;
}

static void
route_token(oct_shadow *s, guint64 token_hash, guint32 layer) {
  const oct_ffn_spec *ffn = layer_ffn(s, layer);
  guint32 chosen[TOP_K_MAX], top_k = MIN(MIN(ffn->top_k, TOP_K_MAX), ffn->n_experts);
  guint32 tries = 0;
  for (guint32 n = 0; n < top_k; n++) {
    guint32 e = draw_expert(s, token_hash, layer, tries++, ffn->n_experts);
    while (is_chosen(chosen, n, e) && tries < TRIES_MAX)
      e = draw_expert(s, token_hash, layer, tries++, ffn->n_experts);
    /* A strong skew hardly ever draws a new one: then it is the next that is free. */
    while (is_chosen(chosen, n, e))
      e = (e + 1) % ffn->n_experts;
    chosen[n] = e;
    s->expert_use[e]++;
  }
}

static void
add_use(oct_shadow *s, step_entry *entry, guint32 layer, guint32 expert, gboolean missed) {
  if (entry->step.n_experts == entry->experts_room) {
    entry->experts_room = MAX(64, 2 * entry->experts_room);
    entry->step.experts = g_renew(oct_expert_use, entry->step.experts, entry->experts_room);
  }
  entry->step.experts[entry->step.n_experts++] = (oct_expert_use){
      .layer = (guint16)layer, .expert = expert, .tokens = s->expert_use[expert], .missed = missed};
}

void
shadow_route(oct_shadow *s, step_entry *entry) {
  const oct_model_spec *spec = s->config.spec;
  if (s->expert_use == NULL)
    return;
  for (guint32 stage = 0; stage < s->config.parallel.pipeline; stage++) {
    guint32 first, count;
    oct_parallel_stage(spec, &s->config.parallel, stage, &first, &count);
    for (guint32 layer = first; layer < first + count; layer++) {
      guint32 n_experts = layer_ffn(s, layer)->n_experts;
      if (n_experts == 0)
        continue;
      memset(s->expert_use, 0, n_experts * sizeof *s->expert_use);
      for (guint32 i = 0; i < entry->step.n_slices; i++) {
        const oct_shadow_slice *sl = &entry->step.slices[i];
        for (guint32 k = 0; k < sl->n_tokens; k++)
          route_token(s, oct_mix64(sl->key ^ s->options.seed) + sl->position + k, layer);
      }
      for (guint32 e = 0; e < n_experts; e++) {
        if (s->expert_use[e] == 0)
          continue;
        gboolean missed = s->expert_at != NULL &&
                          s->expert_at[(gsize)layer * s->n_layer_experts + e] == OCT_NO_INDEX;
        entry->step.missed[stage] += missed;
        add_use(s, entry, layer, e, missed);
      }
    }
  }
}
