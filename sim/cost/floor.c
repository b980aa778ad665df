/* The roofline floor of a step: what no kernel can beat. It is computed from the model's weights
 * and the shape, not from the operators, so that it can catch a mistake in them.
 *
 * Bytes: every weight of the rank that the step uses, once (of routed experts those that are
 * touched, on the heaviest rank), keys and values once per slice, recurrent state read and written.
 * Flops: two per weight and token, and attention by query-key pairs, each over the datasheet peak
 * of its type.
 */
#include <math.h>

#include "engine/base/assert.h"
#include "sim/cost/internal.h"

/* The heaviest domain's tokens, rows and slices; each maximum on its own is a bound of every price.
 */
typedef struct step_most {
  double tokens, all_tokens, rows;
} step_most;

static step_most
most_of(const oct_step_shape *shape) {
  step_most m = {0};
  for (guint32 d = 0; d < shape->n_domains; d++) {
    const oct_domain_shape *s = &shape->domains[d];
    double tokens = (double)oct_domain_tokens(s);
    m.all_tokens += tokens;
    m.tokens = MAX(m.tokens, tokens);
    m.rows = MAX(m.rows, s->sample_rows);
  }
  return m;
}

static guint32
count_layers(const oct_cost *cost, guint32 stage, guint attention, guint ffn) {
  guint32 n = 0;
  const oct_stage_plan *plan = &cost->stages[stage];
  for (guint32 layer = plan->first; layer < plan->first + plan->count; layer++)
    n += (attention == G_MAXUINT || cost->spec->layers[layer].attention == attention) &&
         (ffn == G_MAXUINT || cost->spec->layers[layer].ffn == ffn);
  return n;
}

static double
expert_rank_bytes(const oct_cost *cost, guint f) {
  for (guint32 layer = 0; layer < cost->spec->n_layers; layer++)
    if (cost->spec->layers[layer].ffn == f) {
      double ranks = cost->parallel.expert_parallel ? 1 : cost->parallel.tensor;
      return (double)oct_model_expert(cost->spec, layer).bytes / ranks;
    }
  return 0;
}

/* Norms and other vectors are as the rank has them: a norm of hidden states is wanted by all. */
void
oct_cost_even_weights(const oct_model_spec *spec, const oct_parallel *parallel, guint32 stage,
                      oct_weights *out) {
  oct_parallel whole = *parallel;
  oct_weights rank;
  whole.tensor = whole.decode_context = 1;
  oct_model_rank_weights(spec, parallel, stage, &rank);
  oct_model_rank_weights(spec, &whole, stage, out);
  oct_weight_sum *const sums[] = {&out->attention,      &out->dense_ffn, &out->experts,
                                  &out->shared_experts, &out->router,    &out->latent,
                                  &out->embedding,      &out->head};
  for (gsize i = 0; i < G_N_ELEMENTS(sums); i++) {
    sums[i]->parameters /= parallel->tensor;
    sums[i]->bytes /= parallel->tensor;
  }
  out->norms = rank.norms;
}

/* Weights that every step reads: all but the embedding table and the routed experts. */
static oct_weights
fixed_weights(const oct_cost *cost, guint32 stage, const step_most *most) {
  oct_weights w;
  const gboolean last = stage == cost->n_stages - 1;
  if (cost->options.even_floor)
    oct_cost_even_weights(cost->spec, &cost->parallel, stage, &w);
  else
    oct_model_rank_weights(cost->spec, &cost->parallel, stage, &w);
  if (last && cost->spec->tied_embeddings && w.head.bytes == 0)
    w.head = w.embedding;
  w.embedding = w.experts = (oct_weight_sum){0};
  if (most->rows <= 0)
    w.head = (oct_weight_sum){0};
  return w;
}

/* KV of the groups of pages, and state read and written, of one domain. */
static void
cache_bytes(const oct_cost *cost, guint32 stage, const oct_domain_shape *s, double *kv,
            double *state) {
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(cost->spec, cost->options.kv_dtype, groups);
  *kv = *state = 0;
  for (guint g = 0; g < n; g++) {
    const gboolean window = groups[g].kind == OCT_ATTENTION_WINDOW;
    guint64 context = window ? s->decode_window_context + s->prefill_window_context
                             : s->decode_context + s->prefill_context;
    *kv += (double)context * (double)oct_model_rank_token_bytes(cost->spec, &cost->parallel, stage,
                                                                cost->options.kv_dtype, g);
    *state += 2.0 * ((double)s->n_decode + s->n_prefill) *
              (double)oct_model_rank_state_bytes(cost->spec, &cost->parallel, stage, g);
  }
}

void
oct_cost_floor_split(const oct_cost *cost, const oct_step_shape *shape, guint32 stage,
                     oct_cost_floor_parts *parts) {
  const step_most most = most_of(shape);
  oct_assert(stage < cost->n_stages);
  *parts = (oct_cost_floor_parts){0};
  if (most.all_tokens <= 0)
    return;
  const oct_weights w = fixed_weights(cost, stage, &most);
  parts->weights = (double)oct_weights_total(&w).bytes;
  for (guint f = 0; f < cost->spec->n_ffn; f++) {
    const oct_routing *routing = &cost->routing[f];
    if (routing->n_experts == 0)
      continue;
    double bytes = count_layers(cost, stage, G_MAXUINT, f) * expert_rank_bytes(cost, f);
    parts->experts +=
        bytes *
        oct_routing_heaviest(routing, oct_cost_is_joint(cost, f) ? most.all_tokens : most.tokens);
    parts->experts_least += bytes * routing->top_k / MAX(1, routing->ranks);
  }
  for (guint32 d = 0; d < shape->n_domains; d++) {
    double kv, state;
    cache_bytes(cost, stage, &shape->domains[d], &kv, &state);
    if (kv + state > parts->kv + parts->state) {
      parts->kv = kv;
      parts->state = state;
    }
  }
}

double
oct_cost_floor_bytes(const oct_cost *cost, const oct_step_shape *shape, guint32 stage) {
  oct_cost_floor_parts parts;
  oct_cost_floor_split(cost, shape, stage, &parts);
  return parts.weights + parts.experts + parts.state + parts.kv;
}

/* ---------------------------------------------------------------- arithmetic */

static double
peak_of(const oct_cost *cost, oct_dtype type) {
  const oct_profile *profile = cost->profile;
  /* 4-bit weights with 8-bit activations run at the 8-bit rate. */
  if (type == OCT_DTYPE_MXFP4 && profile->gpu.flops[OCT_MATH_FP8] > 0)
    return profile->gpu.flops[OCT_MATH_FP8];
  return profile->gpu.flops[oct_price_math(profile, type)];
}

static double
gemm_seconds(const oct_cost *cost, const oct_weight_sum *sum, oct_dtype type, double tokens) {
  return 2 * (double)sum->parameters * tokens / peak_of(cost, type);
}

static double
attention_flops(const oct_cost *cost, guint a, const oct_domain_shape *s) {
  const oct_attention_spec *k = &cost->spec->attention[a];
  const double heads = ceil((double)k->n_heads / cost->parallel.tensor);
  const gboolean window = k->kind == OCT_ATTENTION_WINDOW;
  double decode = (double)(window ? s->decode_window_pairs : s->decode_pairs);
  double prefill = (double)(window ? s->prefill_window_pairs : s->prefill_pairs);
  switch (k->kind) {
  case OCT_ATTENTION_GQA:
  case OCT_ATTENTION_WINDOW:
    return 4.0 * heads * k->head_dim * (decode + prefill);
  case OCT_ATTENTION_MLA:
    return 2.0 * heads *
           (decode * (2.0 * k->kv_lora + k->qk_rope) +
            prefill * ((double)k->qk_nope + k->qk_rope + k->v_head));
  case OCT_ATTENTION_KDA:
  case OCT_ATTENTION_COUNT:
    break;
  }
  return 0;
}

double
oct_cost_floor_flops_s(const oct_cost *cost, const oct_step_shape *shape, guint32 stage) {
  const step_most most = most_of(shape);
  const oct_weights w = fixed_weights(cost, stage, &most);
  const oct_weight_types *types = &cost->spec->types;
  const double tokens = most.tokens;
  const double shared = cost->parallel.replicate_shared ? tokens / cost->parallel.tensor : tokens;
  double seconds = gemm_seconds(cost, &w.attention, types->attention, tokens) +
                   gemm_seconds(cost, &w.dense_ffn, types->dense_ffn, tokens) +
                   gemm_seconds(cost, &w.shared_experts, types->shared_expert, shared) +
                   gemm_seconds(cost, &w.router, types->router, tokens) +
                   gemm_seconds(cost, &w.latent, types->latent, tokens) +
                   gemm_seconds(cost, &w.head, types->head, most.rows);
  for (guint f = 0; f < cost->spec->n_ffn; f++) {
    const oct_routing *routing = &cost->routing[f];
    if (routing->n_experts == 0)
      continue;
    const oct_ffn_spec *ffn = &cost->spec->ffn[f];
    double routed = oct_cost_is_joint(cost, f) ? most.all_tokens : most.tokens;
    double outer = ffn->kind == OCT_FFN_LATENT_MOE ? ffn->latent : cost->spec->hidden;
    double inner = (double)ffn->moe_intermediate /
                   (cost->parallel.expert_parallel ? 1 : cost->parallel.tensor);
    seconds += count_layers(cost, stage, G_MAXUINT, f) * 6 * oct_routing_pairs(routing, routed) *
               outer * inner / peak_of(cost, types->expert);
  }
  double attention = 0;
  for (guint32 d = 0; d < shape->n_domains; d++) {
    double flops = 0;
    for (guint a = 0; a < cost->spec->n_attention; a++)
      flops +=
          count_layers(cost, stage, a, G_MAXUINT) * attention_flops(cost, a, &shape->domains[d]);
    attention = MAX(attention, flops);
  }
  return seconds + attention / cost->profile->gpu.flops[OCT_MATH_BF16];
}

gint64
oct_cost_floor_ns(const oct_cost *cost, const oct_step_shape *shape) {
  double seconds = 0;
  for (guint32 s = 0; s < cost->n_stages; s++) {
    double memory_s = oct_cost_floor_bytes(cost, shape, s) / cost->profile->gpu.hbm_bytes_per_s;
    seconds += memory_s > 0 ? MAX(memory_s, oct_cost_floor_flops_s(cost, shape, s)) : 0;
  }
  return (gint64)(seconds * 1e9);
}
