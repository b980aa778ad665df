/* Routed experts priced from measured tables.
 *
 * A table was measured for one model's shape on 8 ranks, over the number of tokens, under three
 * routings: round robin ("balanced"), which touches min(E, k x tokens) experts, and two power laws,
 * which touch fewer. Looking only at tokens would take round robin's 896 experts for the 613 that
 * 64 tokens of uniform routing touch; looking only at experts would miss that the kernel changes
 * its tiling with the number of tokens. So at each measured number of tokens the time is
 * interpolated linearly over distinct experts between the three routings, and then between numbers
 * of tokens.
 *
 * Another model's shape is mapped on the table's: experts by bytes, tokens by arithmetic.
 */
#include <math.h>

#include "engine/base/assert.h"
#include "sim/cost/internal.h"

/* The shapes that the tables were measured with. */
static const struct {
  double n_experts, top_k, outer, inner, bits;
  oct_math math;
} shapes[OCT_MOE_TABLE_COUNT] = {
    [OCT_MOE_K3_W4A16] = {896, 16, 3584, 3072, 4.25, OCT_MATH_BF16},
    [OCT_MOE_E384_W4A8] = {384, 6, 7168, 3072, 4.25, OCT_MATH_FP8},
};
#define TABLE_RANKS 8.0

static const double exponents[OCT_MOE_ROUTING_COUNT] = {
    [OCT_MOE_POWER_1P01] = 1.01, [OCT_MOE_POWER_1P2] = 1.2};

gboolean
oct_price_moe_has_table(const oct_profile *profile, oct_moe_table table) {
  return profile->moe[table][OCT_MOE_TP8][OCT_MOE_BALANCED].n > 0;
}

void
oct_moe_view_init(oct_moe_view *view, const oct_profile *profile, oct_moe_table table,
                  oct_moe_spread spread) {
  const oct_curve *grid = &profile->moe[table][spread][OCT_MOE_BALANCED];
  const double n_experts = shapes[table].n_experts, top_k = shapes[table].top_k;
  oct_assert(grid->n > 1);
  *view = (oct_moe_view){.profile = profile, .table = table, .spread = spread, .n = grid->n};
  for (int r = 0; r < OCT_MOE_ROUTING_COUNT; r++) {
    const oct_curve *curve = &profile->moe[table][spread][r];
    oct_routing routing;
    oct_routing_init(&routing, (guint32)n_experts, (guint32)top_k, 1, exponents[r]);
    for (guint32 i = 0; i < view->n; i++) {
      view->tokens[i] = curve->x[i];
      view->distinct[r][i] = r == OCT_MOE_BALANCED ? MIN(n_experts, top_k * curve->x[i])
                                                   : oct_routing_distinct(&routing, curve->x[i]);
    }
    oct_routing_clear(&routing);
    /* More tokens never take less time: single slow measurements are cut off. */
    double least = INFINITY;
    for (guint32 i = view->n; i-- > 0;) {
      least = MIN(least, curve->y[i]);
      view->seconds[r][i] = least;
    }
  }
}

/* Time at grid point i with `distinct` experts: linear between the routings, flat outside them. */
static double
time_at(const oct_moe_view *view, guint32 i, double distinct) {
  /* From most to fewest experts: balanced, 1.01, 1.2. */
  for (int r = 0; r + 1 < OCT_MOE_ROUTING_COUNT; r++) {
    const double more = view->distinct[r][i], fewer = view->distinct[r + 1][i];
    if (distinct >= more)
      return view->seconds[r][i];
    if (distinct > fewer)
      return view->seconds[r + 1][i] +
             (view->seconds[r][i] - view->seconds[r + 1][i]) * (distinct - fewer) / (more - fewer);
  }
  return view->seconds[OCT_MOE_ROUTING_COUNT - 1][i];
}

static double
table_seconds(const oct_moe_view *view, double tokens, double distinct) {
  const guint32 last = view->n - 1;
  if (tokens <= view->tokens[0])
    return time_at(view, 0, distinct);
  if (tokens >= view->tokens[last])
    return time_at(view, last, distinct) * tokens / view->tokens[last];
  guint32 i = 0;
  while (view->tokens[i + 1] < tokens)
    i++;
  double a = time_at(view, i, distinct), b = time_at(view, i + 1, distinct);
  return a + (b - a) * (tokens - view->tokens[i]) / (view->tokens[i + 1] - view->tokens[i]);
}

oct_price
oct_price_moe_table(const oct_moe_view *view, const oct_moe_shape *s) {
  const oct_profile *profile = view->profile;
  const oct_moe_table table = view->table;
  const oct_moe_spread spread = view->spread;
  if (s->distinct <= 0)
    return (oct_price){.part = OCT_PART_MEMORY};
  const double hbm = profile->gpu.hbm_bytes_per_s, n_experts = shapes[table].n_experts;
  const double outer = shapes[table].outer, inner = shapes[table].inner;
  const double peak = profile->gpu.flops[shapes[table].math];
  /* On one of the table's ranks: bytes of an expert (its share of the width, or whole), flops of a
   * token, experts. */
  const double share = spread == OCT_MOE_TP8 ? 1 / TABLE_RANKS : 1;
  const double expert_bytes = 3 * outer * inner * shapes[table].bits / 8 * share;
  const double token_flops = shapes[table].top_k * 6 * outer * inner / TABLE_RANKS;
  const double weights = s->distinct * s->expert_bytes;
  const double flops = 6 * s->pairs * s->outer * s->inner;
  double distinct = weights / expert_bytes; /* of the rank … */
  if (spread == OCT_MOE_EP8)
    distinct *= TABLE_RANKS; /* … and of all ranks, as the table counts */
  double tokens = MAX(flops / token_flops, 1);
  double seconds = table_seconds(view, tokens, MIN(distinct, n_experts));
  /* Bytes beyond all of the table's experts are read at the rate that its kernel reaches. */
  if (distinct > n_experts)
    seconds +=
        (distinct - n_experts) / distinct * weights / (profile->efficiency.hbm_moe_expert * hbm);
  /* What is left at one token, when its experts have been read, is not bound by anything. */
  const double first_bytes = shapes[table].top_k / (spread == OCT_MOE_EP8 ? TABLE_RANKS : 1);
  double fixed_s = view->seconds[OCT_MOE_BALANCED][0] - first_bytes * expert_bytes / hbm;
  double activations = s->pairs * (4 * s->outer + 6 * s->inner);
  double bytes = weights + activations;
  double compute_s = flops / peak, memory_s = bytes / hbm;
  seconds = MAX(seconds, MAX(compute_s, memory_s));
  return (oct_price){.seconds = seconds,
                     .fixed_s = CLAMP(fixed_s, 0, seconds - MAX(compute_s, memory_s)),
                     .flops = flops,
                     .hbm_bytes = bytes,
                     .part = compute_s > memory_s ? OCT_PART_COMPUTE : OCT_PART_MEMORY};
}
