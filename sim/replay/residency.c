#include "sim/replay/residency.h"

#include "engine/model/expert-counts.h"

double *
oct_residency_read(const char *path, const oct_model_spec *spec, GError **error) {
  g_autoptr(GError) reason = NULL;
  double *counts = oct_expert_counts_read(path, spec, &reason);
  if (counts == NULL)
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "expert-warmup: %s",
                reason->message);
  return counts;
}

/* The first stage's GPU, as the ledger sees it. */
static guint32
break_even(const oct_replay_result *r, double hit_share) {
  const oct_setup *s = &r->setup;
  const oct_parallel *p = &s->engine.instance.parallel;
  guint32 first, count, layer = OCT_NO_INDEX;
  oct_expert_balance b = {.hit_share = hit_share};
  oct_weights weights;
  oct_parallel_stage(s->spec, p, 0, &first, &count);
  for (guint32 l = first; l < first + count; l++) {
    if (s->spec->ffn[s->spec->layers[l].ffn].n_experts == 0)
      continue;
    b.n_layers++;
    layer = layer == OCT_NO_INDEX ? l : layer;
  }
  if (layer == OCT_NO_INDEX)
    return OCT_EXPERT_BATCH_MAX;
  double ranks = p->tensor * p->data;
  const oct_ffn_spec *ffn = &s->spec->ffn[s->spec->layers[layer].ffn];
  oct_model_rank_weights(s->spec, p, 0, &weights);
  b.n_experts = s->ledger.rank_experts;
  b.n_resident = s->ledger.plan.n_expert_slots;
  b.top_k = p->expert_parallel ? ffn->top_k / ranks : ffn->top_k;
  b.expert_bytes =
      (double)oct_model_expert(s->spec, layer).bytes / (p->expert_parallel ? 1 : p->tensor);
  b.other_bytes = (double)(oct_weights_total(&weights).bytes - weights.experts.bytes);
  b.memory_bytes_per_s = s->profile->gpu.hbm_bytes_per_s * s->profile->efficiency.hbm_read;
  b.link_bytes_per_s = s->profile->pcie.h2d_bytes_per_s;
  return oct_experts_break_even(&b);
}

json_t *
oct_residency_json(const oct_replay_result *r) {
  const oct_setup *s = &r->setup;
  const oct_expert_stats *a = &r->drive.measured.at_from.stats.experts;
  const oct_expert_stats *b = &r->drive.measured.at_end.stats.experts;
  guint32 slots = s->engine.instance.memory.n_expert_slots;
  if (slots == 0 || !s->has_ledger)
    return json_null();
  double seconds = (double)(r->drive.measured.end_ns - r->drive.measured.from_ns) / 1e9;
  double uses = (double)(b->uses - a->uses), pairs = (double)(b->used_pairs - a->used_pairs);
  double bytes = (double)(b->loaded_bytes - a->loaded_bytes);
  double share = pairs > 0 ? (double)(b->hit_pairs - a->hit_pairs) / pairs : 0;
  json_t *out = json_object();
  json_object_set_new(out, "slots_per_layer", json_integer(slots));
  json_object_set_new(out, "experts_per_layer", json_integer(s->ledger.rank_experts));
  json_object_set_new(out, "hit_share",
                      uses > 0 ? json_real((double)(b->hits - a->hits) / uses) : json_null());
  json_object_set_new(out, "pair_hit_share", pairs > 0 ? json_real(share) : json_null());
  json_object_set_new(out, "loads", json_integer((json_int_t)(b->loads - a->loads)));
  json_object_set_new(out, "loaded_bytes", json_real(bytes));
  json_object_set_new(out, "loaded_bytes_per_s",
                      seconds > 0 ? json_real(bytes / seconds) : json_null());
  json_object_set_new(out, "evictions", json_integer((json_int_t)(b->evictions - a->evictions)));
  json_object_set_new(out, "break_even_batch", json_integer(break_even(r, share)));
  return out;
}
