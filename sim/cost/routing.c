/* How many experts n tokens touch.
 *
 * Each token chooses top_k experts; expert i with chance share[i], independently of other tokens.
 * So n tokens touch it with chance 1 - (1 - share)^n, and the expected number of distinct experts
 * is the sum. With uniform shares that is E (1 - (1 - k/E)^n).
 *
 * With whole experts on R ranks a layer takes as long as its heaviest rank. The number of experts
 * touched on a rank is a sum of many independent choices, close to normal; the expected maximum
 * over ranks is integrated numerically from their means and variances. Popularity has nothing to do
 * with where an expert lives: a fixed permutation spreads experts over ranks.
 */
#include <math.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"
#include "sim/cost/internal.h"

#define PERMUTATION_SEED 0x6578706572747321u
#define INTEGRAL_POINTS  64

/* The scale at which the clipped sum is top_k: the sum grows with it, so bisect. */
static void
scale_shares(double *share, guint32 n_experts, guint32 top_k, const double *weight) {
  double low = 0, least = INFINITY;
  guint32 chosen = 0;
  for (guint32 i = 0; i < n_experts; i++)
    if (weight[i] > 0) {
      least = MIN(least, weight[i]);
      chosen++;
    }
  oct_assert(chosen > 0);
  double high = 2 * n_experts / least;
  for (int step = 0; step < 200; step++) {
    double scale = (low + high) / 2, sum = 0;
    for (guint32 i = 0; i < n_experts; i++)
      sum += MIN(1, scale * weight[i]);
    if (sum < MIN(top_k, chosen))
      low = scale;
    else
      high = scale;
  }
  for (guint32 i = 0; i < n_experts; i++)
    share[i] = MIN(1, high * weight[i]);
}

void
oct_routing_shares(double *share, guint32 n_experts, guint32 top_k, double alpha) {
  g_autofree double *weight = g_new(double, n_experts);
  for (guint32 i = 0; i < n_experts; i++)
    weight[i] = pow(i + 1.0, -alpha);
  scale_shares(share, n_experts, top_k, weight);
}

static void
init(oct_routing *routing, guint32 n_experts, guint32 top_k, guint32 ranks) {
  oct_assert(n_experts > 0 && top_k <= n_experts && ranks > 0);
  *routing = (oct_routing){.n_experts = n_experts, .top_k = top_k, .ranks = ranks};
  routing->share = g_new(double, n_experts);
  routing->log_miss = g_new(double, n_experts);
}

/* Spreads experts over ranks, whatever their popularity. */
static void
spread(oct_routing *routing) {
  oct_rng rng;
  oct_rng_seed(&rng, PERMUTATION_SEED, 0);
  for (guint32 i = routing->n_experts - 1; i > 0; i--) {
    guint32 j = (guint32)oct_rng_below(&rng, i + 1);
    double swap = routing->share[i];
    routing->share[i] = routing->share[j];
    routing->share[j] = swap;
  }
  for (guint32 i = 0; i < routing->n_experts; i++)
    routing->log_miss[i] = routing->share[i] < 1 ? log1p(-routing->share[i]) : -INFINITY;
}

void
oct_routing_init(oct_routing *routing, guint32 n_experts, guint32 top_k, guint32 ranks,
                 double alpha) {
  init(routing, n_experts, top_k, ranks);
  routing->uniform = alpha == 0;
  oct_routing_shares(routing->share, n_experts, top_k, alpha);
  spread(routing);
}

void
oct_routing_init_measured(oct_routing *routing, guint32 n_experts, guint32 top_k, guint32 ranks,
                          const double *weight) {
  init(routing, n_experts, top_k, ranks);
  scale_shares(routing->share, n_experts, top_k, weight);
  spread(routing);
}

void
oct_routing_init_balanced(oct_routing *routing, guint32 n_experts, guint32 top_k, guint32 ranks) {
  oct_routing_init(routing, n_experts, top_k, ranks, 0);
  routing->balanced = TRUE;
}

void
oct_routing_clear(oct_routing *routing) {
  g_clear_pointer(&routing->share, g_free);
  g_clear_pointer(&routing->log_miss, g_free);
}

static double
miss(const oct_routing *routing, guint32 expert, double tokens) {
  return tokens > 0 ? exp(tokens * routing->log_miss[expert]) : 1;
}

double
oct_routing_distinct(const oct_routing *routing, double tokens) {
  if (routing->balanced)
    return MIN(routing->n_experts, routing->top_k * tokens);
  if (routing->uniform)
    return routing->n_experts * (1 - miss(routing, 0, tokens));
  double distinct = 0;
  for (guint32 i = 0; i < routing->n_experts; i++)
    distinct += 1 - miss(routing, i, tokens);
  return distinct;
}

/* Expected maximum of independent normals, cut at `most`. */
static double
expected_maximum(const double *mean, const double *deviation, guint32 n, double most) {
  double low = 0, high = 0;
  for (guint32 r = 0; r < n; r++) {
    low = MAX(low, mean[r]); /* the maximum is hardly below the largest mean … */
    high = MAX(high, mean[r] + 6 * deviation[r]);
  }
  double widest = 0;
  for (guint32 r = 0; r < n; r++)
    widest = MAX(widest, deviation[r]);
  low -= 4 * widest;
  double step = (high - low) / INTEGRAL_POINTS, below = 0;
  for (int i = 0; step > 0 && i < INTEGRAL_POINTS; i++) {
    double x = low + (i + 0.5) * step, all = 1;
    for (guint32 r = 0; r < n; r++)
      all *= deviation[r] > 0 ? 0.5 * erfc((mean[r] - x) / (deviation[r] * G_SQRT2))
                              : (x >= mean[r] ? 1 : 0);
    below += all * step;
  }
  return MIN(high - below, most);
}

/* Means and deviations of the ranks, by expert chances given as a function of the expert. */
static double
heaviest(const oct_routing *routing, double tokens, gboolean pairs) {
  const guint32 ranks = routing->ranks;
  const guint32 per_rank = (routing->n_experts + ranks - 1) / ranks;
  g_autofree double *mean = g_new0(double, ranks);
  g_autofree double *deviation = g_new0(double, ranks);
  for (guint32 i = 0; i < routing->n_experts; i++) {
    double p = pairs ? routing->share[i] : 1 - miss(routing, i, tokens);
    double scale = pairs ? tokens : 1;
    mean[i / per_rank] += scale * p;
    deviation[i / per_rank] += scale * p * (1 - p);
  }
  for (guint32 r = 0; r < ranks; r++)
    deviation[r] = sqrt(deviation[r]);
  return expected_maximum(mean, deviation, ranks, pairs ? tokens * routing->top_k : per_rank);
}

double
oct_routing_heaviest(const oct_routing *routing, double tokens) {
  if (routing->ranks == 1 || routing->balanced)
    return oct_routing_distinct(routing, tokens) / routing->ranks;
  return heaviest(routing, tokens, FALSE);
}

double
oct_routing_pairs(const oct_routing *routing, double tokens) {
  if (routing->ranks == 1 || routing->balanced)
    return tokens * routing->top_k / routing->ranks;
  return heaviest(routing, tokens, TRUE);
}
