/* MXFP4 experts of this engine.
 *
 * The kernel turns an expert's weights into BF16 once for each pass over them, and a pass serves as
 * many tokens as it has columns: how many is chosen for the whole launch, for little more than the
 * mean of tokens an expert. An expert that more tokens chose takes several passes, which the L2
 * cache serves, but arithmetic does not get cheaper. So arithmetic is passes x (columns + what
 * turning costs, as columns), whatever of the columns has tokens; and the passes follow from how
 * popular each expert is: tokens of an expert are taken as Poisson's.
 */
#include <math.h>

#include "engine/base/assert.h"
#include "sim/cost/internal.h"

/* Of the kernel's forms for weights of four bits (kernels/cuda/matmul-codes.cu). */
static const guint32 widths[] = {4, 8, 16, 32, 48, 64, 96, 128, 160};
#define WIDTHS G_N_ELEMENTS(widths)

/* Means of a table: 2^(FIRST + i / STEPS). */
#define STEPS     8
#define FIRST     (-10)
#define LAST      12
#define POINTS    ((LAST - FIRST) * STEPS + 1)
#define EXACT_MAX 64.0 /* means beyond are taken as normal */

struct oct_own_passes {
  const oct_routing *routing;
  double *log_share;           /* [n_experts], to the base 2; NULL: all alike */
  float table[WIDTHS][POINTS]; /* passes of an expert, by its mean tokens */
};

/* The sum over k of the chance that more than k x width tokens chose an expert. */
static double
expected_passes(double mean, double width) {
  double passes = 0;
  if (mean > EXACT_MAX) {
    for (double k = 0; k * width < mean + 8 * sqrt(mean); k++)
      passes += 0.5 * erfc((k * width + 0.5 - mean) / sqrt(2 * mean));
    return passes;
  }
  double chance = exp(-mean), below = chance;
  for (double n = 1; n < mean + 10 * sqrt(mean) + 10; n++) {
    /* `below`: of fewer than n. */
    if (fmod(n - 1, width) < 0.5)
      passes += 1 - below;
    chance *= mean / n;
    below += chance;
  }
  return passes;
}

oct_own_passes *
oct_own_passes_new(const oct_routing *routing) {
  oct_own_passes *p = g_new0(oct_own_passes, 1);
  p->routing = routing;
  if (!routing->uniform && !routing->balanced) {
    p->log_share = g_new(double, routing->n_experts);
    for (guint32 i = 0; i < routing->n_experts; i++)
      p->log_share[i] = routing->share[i] > 0 ? log2(routing->share[i]) : -INFINITY;
  }
  for (gsize w = 0; w < WIDTHS; w++)
    for (guint32 i = 0; i < POINTS; i++)
      p->table[w][i] = (float)expected_passes(exp2(FIRST + (double)i / STEPS), widths[w]);
  return p;
}

void
oct_own_passes_free(oct_own_passes *p) {
  g_free(p->log_share);
  g_free(p);
}

static double
passes_of(const oct_own_passes *p, gsize width, double log_mean) {
  const double at = (log_mean - FIRST) * STEPS;
  if (at <= 0) /* hardly ever more than one token */
    return exp2(log_mean);
  if (at >= POINTS - 1)
    return exp2(log_mean) / widths[width] + 0.5;
  const guint32 i = (guint32)at;
  const double a = (double)p->table[width][i], b = (double)p->table[width][i + 1];
  return a + (b - a) * (at - i);
}

/* As the launcher chooses: the columns that take least for somewhat more than the mean. */
static gsize
width_for(double mean, double turned) {
  const double tokens = mean + 1.5 * sqrt(mean);
  double least = INFINITY;
  gsize best = 0;
  for (gsize w = 0; w < WIDTHS; w++) {
    const double cost = ceil(tokens / widths[w]) * (widths[w] + turned);
    if (cost < least) {
      least = cost;
      best = w;
    }
  }
  return best;
}

/* Columns of all passes on the heaviest rank, those that turning costs among them. */
static double
columns_of(const oct_own_passes *p, const oct_moe_shape *s, double turned) {
  const oct_routing *r = p->routing;
  const double tokens = s->all_pairs / r->top_k;
  const gsize w = width_for(s->all_pairs / r->n_experts, turned);
  const double distinct = oct_routing_distinct(r, tokens);
  double passes = 0;
  if (r->balanced)
    passes = distinct * ceil(s->all_pairs / MAX(distinct, 1) / widths[w] - 1e-9);
  else if (p->log_share == NULL)
    passes = r->n_experts * passes_of(p, w, log2(s->all_pairs / r->n_experts));
  else
    for (guint32 i = 0; i < r->n_experts; i++)
      passes += isinf(p->log_share[i]) ? 0 : passes_of(p, w, p->log_share[i] + log2(tokens));
  /* At least one of each expert that is touched there. */
  return MAX(passes / MAX(distinct, 1), 1) * s->distinct * (widths[w] + turned);
}

oct_price
oct_price_own_experts(const oct_profile *profile, const oct_own_passes *passes,
                      const oct_moe_shape *s) {
  const oct_own_experts *k = &profile->own_kernels.mxfp4_experts;
  const double bytes = s->distinct * s->expert_bytes + s->pairs * (4 * s->outer + 6 * s->inner);
  const double spent = 6 * columns_of(passes, s, k->turned) * s->outer * s->inner;
  oct_price price = oct_price_own(profile, k->fixed_s, bytes, k->hbm, spent, k->peak);
  price.flops = 6 * s->pairs * s->outer * s->inner;
  return price;
}
