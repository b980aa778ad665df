/* The price of one kernel. Formulas and their measured error: README.md here and doc/simulation.md.
 *
 * Every price keeps fractions of the datasheet peak that are at most 1, so that no kernel beats its
 * roofline; and what it adds to that (launch, latency, synchronisation) is kept apart as fixed_s,
 * because contention does not stretch it.
 */
#include <math.h>

#include "engine/base/assert.h"
#include "sim/cost/internal.h"

#define TILE_SMALL 64.0
#define TILE_LARGE 256.0
#define SPLIT      4.0
#define QUERY_TILE 128.0
#define MOE_TILE   128.0
/* Heads that one MLA decode block computes at least: shorter ones are padded. */
#define MLA_HEADS_MIN 16.0
#define MLA_HEADS_MAX 64.0

oct_math
oct_price_math(const oct_profile *profile, oct_dtype type) {
  oct_math math = OCT_MATH_BF16;
  if (type == OCT_DTYPE_FP8)
    math = OCT_MATH_FP8;
  else if (type == OCT_DTYPE_FP8_BLOCK)
    math = OCT_MATH_FP8_BLOCK;
  else if (type == OCT_DTYPE_NVFP4)
    math = OCT_MATH_FP4;
  /* Types without a unit, and 4-bit weights for 16-bit activations, are unpacked to BF16. */
  return profile->gpu.flops[math] > 0 ? math : OCT_MATH_BF16;
}

static double
element_bytes(oct_math math) {
  static const double bytes[OCT_MATH_COUNT] = {2, 1, 1, 0.5625};
  return bytes[math];
}

static double
rounded_waves(double waves, double rounding) {
  return rounding * ceil(waves) + (1 - rounding) * MAX(waves, 1);
}

static double
hot(double seconds, double slowdown, double half_s) {
  return seconds > 0 ? seconds * (1 + slowdown * seconds / (seconds + half_s)) : 0;
}

/* ---------------------------------------------------------------- GEMM */

/* Arithmetic of the best of eight tilings: 64 or 256 rows and columns, k whole or split in four. */
static double
gemm_compute(const oct_profile *profile, const oct_gemm_fit *fit, double peak, double m, double n,
             double k) {
  const double sms = profile->gpu.sm_count, bandwidth = profile->gpu.hbm_bytes_per_s;
  const double flops_per_sm = fit->peak * peak / sms;
  double best = INFINITY;
  for (double rows = TILE_SMALL; rows <= TILE_LARGE; rows += TILE_LARGE - TILE_SMALL)
    for (double columns = TILE_SMALL; columns <= TILE_LARGE; columns += TILE_LARGE - TILE_SMALL) {
      const double tiles = ceil(m / rows) * ceil(n / columns);
      const double tile_s = 2 * rows * columns * k / flops_per_sm;
      double whole = rounded_waves(tiles / sms, fit->wave_rounding) * tile_s + fit->per_k_s * k;
      double split = rounded_waves(tiles * SPLIT / sms, fit->wave_rounding) * tile_s / SPLIT +
                     fit->per_k_s * k / SPLIT + fit->split_s +
                     SPLIT * m * n * 8 / (fit->bandwidth * bandwidth);
      best = MIN(best, MIN(whole, split));
    }
  return hot(best, fit->hot, fit->hot_s);
}

oct_price
oct_price_gemm(const oct_profile *profile, oct_math math, double m, double n, double k,
               double weight_bytes) {
  if (m <= 0 || n <= 0 || k <= 0)
    return (oct_price){.part = OCT_PART_MEMORY};
  const oct_gemm_fit *fit = &profile->gemm_fit[math];
  const double bandwidth = profile->gpu.hbm_bytes_per_s, element = element_bytes(math);
  oct_price price = {.flops = 2 * m * n * k,
                     .hbm_bytes = element * m * k + weight_bytes + 2 * m * n,
                     .fixed_s = fit->fixed_s + (m <= 1 ? fit->single_row_s : 0)};
  double compute = gemm_compute(profile, fit, profile->gpu.flops[math], m, n, k);
  double memory = price.hbm_bytes / (fit->bandwidth * bandwidth);
  price.part = compute > memory ? OCT_PART_COMPUTE : OCT_PART_MEMORY;
  price.seconds = price.fixed_s + MAX(compute, memory);
  if (math != OCT_MATH_BF16) {
    /* The activations come in BF16 and are quantised by a kernel of their own. */
    double bytes = (2 + element) * m * k;
    price.hbm_bytes += bytes;
    price.seconds += bytes / (fit->quantise * bandwidth);
  }
  return price;
}

double
oct_cost_gemm_ns(const oct_profile *profile, oct_math math, guint64 m, guint64 n, guint64 k) {
  oct_assert((guint)math < OCT_MATH_COUNT && profile->gpu.flops[math] > 0);
  double weights = element_bytes(math) * (double)n * (double)k;
  return 1e9 * oct_price_gemm(profile, math, (double)m, (double)n, (double)k, weights).seconds;
}

/* ---------------------------------------------------------------- memory-bound kernels */

oct_price
oct_price_memory(const oct_profile *profile, double bytes, double flops) {
  double floor_s = profile->efficiency.kernel_floor_s;
  double bandwidth = profile->efficiency.hbm_copy * profile->gpu.hbm_bytes_per_s;
  return (oct_price){.seconds = floor_s + bytes / bandwidth,
                     .fixed_s = floor_s,
                     .flops = flops,
                     .hbm_bytes = bytes,
                     .part = OCT_PART_MEMORY};
}

double
oct_cost_memory_ns(const oct_profile *profile, double bytes) {
  return 1e9 * oct_price_memory(profile, bytes, 0).seconds;
}

oct_price
oct_price_own(const oct_profile *profile, double fixed_s, double bytes, double hbm, double flops,
              double peak) {
  const double memory_s = bytes / (hbm * profile->gpu.hbm_bytes_per_s);
  const double compute_s = flops > 0 ? flops / (peak * profile->gpu.flops[OCT_MATH_BF16]) : 0;
  return (oct_price){.seconds = fixed_s + MAX(memory_s, compute_s),
                     .fixed_s = fixed_s,
                     .flops = flops,
                     .hbm_bytes = bytes,
                     .part = compute_s > memory_s ? OCT_PART_COMPUTE : OCT_PART_MEMORY};
}

/* ---------------------------------------------------------------- attention */

static oct_price
decode_attention(const oct_profile *profile, const oct_attention_shape *s) {
  const oct_decode_fit *fit = &profile->decode_fit;
  const double n = s->n_sequences, context = (double)s->context, hbm = profile->gpu.hbm_bytes_per_s;
  /* MLA reads one latent for keys and values; its values are the first value_dim of the keys. */
  const double width = s->mla ? s->key_dim : (double)s->key_dim + s->value_dim;
  const double kv_bytes = context * s->n_kv_heads * width * s->kv_element_bytes;
  const double heads = s->mla ? MAX(s->n_heads, MLA_HEADS_MIN) : s->n_heads;
  double bandwidth = fit->bandwidth;
  if (s->mla)
    bandwidth = s->kv_element_bytes == 1 ? profile->efficiency.hbm_attention_mla_fp8
                                         : profile->efficiency.hbm_attention_mla_bf16;
  double blocks = n * (s->mla ? ceil(heads / MLA_HEADS_MAX) : s->n_kv_heads);
  double wave_s = fit->wave_s * rounded_waves(blocks / profile->gpu.sm_count, fit->wave_rounding);
  double memory_s = kv_bytes / (bandwidth * hbm);
  if (s->warm_l2) {
    double in_l2 = CLAMP(2 - kv_bytes / (fit->l2_share * profile->gpu.l2_bytes), 0, 1);
    memory_s *= 1 - in_l2 * (1 - fit->l2_time);
  }
  double flops = 2 * ((double)s->key_dim + s->value_dim) * (double)s->pairs;
  double compute_s =
      flops * heads / (profile->prefill_fit.peak * profile->gpu.flops[OCT_MATH_BF16]);
  double bound_s = MAX(memory_s, compute_s);
  double mean = n > 0 ? context / n : 0;
  oct_price price = {.flops = flops * s->n_heads,
                     .hbm_bytes = kv_bytes + (double)s->tokens * s->n_heads *
                                                 ((double)s->key_dim + s->value_dim) * 2,
                     .fixed_s = fit->fixed_s + fit->split_s * mean / (mean + fit->split_context) +
                                fit->overlap * MIN(wave_s, bound_s) + MAX(0, wave_s - bound_s),
                     .part = compute_s > memory_s ? OCT_PART_COMPUTE : OCT_PART_MEMORY};
  price.seconds = price.fixed_s + bound_s;
  return price;
}

static oct_price
prefill_attention(const oct_profile *profile, const oct_attention_shape *s) {
  const oct_prefill_fit *fit = &profile->prefill_fit;
  const double sms = profile->gpu.sm_count, heads = s->n_heads, tokens = (double)s->tokens;
  const double context = (double)s->context, n = s->n_sequences;
  const double width = (double)s->key_dim + s->value_dim;
  const double peak = fit->peak * profile->gpu.flops[OCT_MATH_BF16];
  double flops = 2 * width * heads * (double)s->pairs;
  double compute_s = (flops + 2 * width * heads * fit->pairs_per_token * tokens) / peak;
  /* One tile of queries runs on one SM, along the whole context. */
  double lone_s = QUERY_TILE * (n > 0 ? context / n : 0) * 2 * width / (peak / sms) * fit->serial;
  compute_s = hot(MAX(compute_s, lone_s), fit->hot, fit->hot_s);
  double bytes = tokens * heads * width * 2 + context * s->n_kv_heads * width * s->kv_element_bytes;
  double memory_s = bytes / (fit->bandwidth * profile->gpu.hbm_bytes_per_s);
  oct_price price = {.flops = flops,
                     .hbm_bytes = bytes,
                     .fixed_s =
                         fit->fixed_s + fit->wave_s * heads * (n + tokens / QUERY_TILE) / sms,
                     .part = compute_s > memory_s ? OCT_PART_COMPUTE : OCT_PART_MEMORY};
  price.seconds = price.fixed_s + compute_s + memory_s;
  return price;
}

oct_price
oct_price_attention_model(const oct_profile *profile, const oct_attention_shape *shape) {
  return shape->prefill ? prefill_attention(profile, shape) : decode_attention(profile, shape);
}

oct_price
oct_price_attention(const oct_profile *profile, const oct_attention_shape *shape) {
  if (shape->n_sequences == 0 || shape->tokens == 0)
    return (oct_price){.part = OCT_PART_MEMORY};
  oct_price price = oct_price_attention_model(profile, shape);
  oct_timed_correct_attention(profile, shape, &price);
  return price;
}

double
oct_cost_attention_ns(const oct_profile *profile, const oct_attention_shape *shape) {
  return 1e9 * oct_price_attention(profile, shape).seconds;
}

/* ---------------------------------------------------------------- routed experts */

oct_price
oct_price_moe(const oct_profile *profile, oct_math math, double bandwidth, const oct_moe_shape *s) {
  if (s->distinct <= 0)
    return (oct_price){.part = OCT_PART_MEMORY};
  const oct_moe_fit *fit = &profile->moe_fit[math];
  const double sms = profile->gpu.sm_count, hbm = profile->gpu.hbm_bytes_per_s;
  const double flops_per_sm = fit->peak * profile->gpu.flops[math] / sms;
  const double tiles_per_column = s->distinct * MAX(1, s->pairs / s->distinct / fit->row_tile);
  const double columns[2] = {2 * s->inner, s->outer}, depth[2] = {s->outer, s->inner};
  double compute_s = 0;
  for (int g = 0; g < 2; g++) {
    double waves = tiles_per_column * ceil(columns[g] / MOE_TILE) / sms;
    compute_s += MAX(waves, 1) * 2 * fit->row_tile * MOE_TILE * depth[g] / flops_per_sm +
                 fit->per_k_s * depth[g];
  }
  double weights = s->distinct * s->expert_bytes;
  double activations = s->pairs * (4 * s->outer + 6 * s->inner);
  double memory_s = weights / (bandwidth * hbm);
  oct_price price = {.flops = 6 * s->pairs * s->outer * s->inner,
                     .hbm_bytes = weights + activations,
                     .fixed_s = fit->fixed_s + fit->per_expert_s * s->distinct +
                                fit->per_pair_s * s->all_pairs,
                     .part = compute_s > memory_s ? OCT_PART_COMPUTE : OCT_PART_MEMORY};
  price.seconds = price.fixed_s + MAX(compute_s, memory_s) + activations / (fit->activation * hbm);
  return price;
}

double
oct_cost_moe_ns(const oct_profile *profile, oct_math math, const oct_moe_shape *shape) {
  oct_assert((guint)math < OCT_MATH_COUNT && profile->gpu.flops[math] > 0);
  return 1e9 * oct_price_moe(profile, math, profile->moe_fit[math].bandwidth, shape).seconds;
}
