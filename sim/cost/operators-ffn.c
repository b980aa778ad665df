/* The operators of feed-forward layers: dense, routed experts, and routed experts on a latent.
 *
 * Routed experts are priced over a grid of token counts when a cost is made: what they touch
 * depends on nothing but the number of tokens. */
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/split.h"
#include "sim/cost/internal.h"

#define BF16        2.0
#define GRID_EXACT  64      /* every number of tokens up to here … */
#define GRID_OCTAVE 32      /* … then so many per doubling … */
#define GRID_LAST   1048576 /* … up to here */

static double
divide_up(double a, double b) {
  return ceil(a / b);
}

gboolean
oct_cost_has_own_experts(const oct_cost *cost) {
  return cost->options.moe_kernel == OCT_MOE_KERNEL_OWN &&
         cost->spec->types.expert == OCT_DTYPE_MXFP4;
}

gboolean
oct_cost_is_joint(const oct_cost *cost, guint f) {
  return cost->spec->ffn[f].kind != OCT_FFN_DENSE && cost->parallel.expert_parallel &&
         cost->parallel.data > 1;
}

/* ---------------------------------------------------------------- routed experts over the grid */

static guint32
first_layer_of(const oct_model_spec *spec, guint f) {
  for (guint32 layer = 0; layer < spec->n_layers; layer++)
    if (spec->layers[layer].ffn == f)
      return layer;
  oct_assert_failed(__FILE__, __LINE__, "every FFN kind has a layer");
}

/* What the experts of one rank are, before tokens are known. */
static oct_moe_shape
expert_shape(const oct_cost *cost, guint f) {
  const oct_model_spec *spec = cost->spec;
  const oct_ffn_spec *ffn = &spec->ffn[f];
  const double width_ranks = cost->parallel.expert_parallel ? 1 : cost->parallel.tensor;
  const double bytes = (double)oct_model_expert(spec, first_layer_of(spec, f)).bytes;
  return (oct_moe_shape){
      .outer = ffn->kind == OCT_FFN_LATENT_MOE ? ffn->latent : spec->hidden,
      .inner = divide_up(ffn->moe_intermediate, width_ranks),
      .expert_bytes = bytes / width_ranks,
  };
}

static gboolean
is_k3_shape(const oct_model_spec *spec, const oct_ffn_spec *ffn) {
  return spec->types.expert == OCT_DTYPE_MXFP4 && ffn->kind == OCT_FFN_LATENT_MOE &&
         ffn->latent == 3584 && ffn->moe_intermediate == 3072 && ffn->n_experts == 896 &&
         ffn->top_k == 16;
}

/* Which measured table prices this FFN; OCT_MOE_TABLE_COUNT = none, the fitted model does. */
static oct_moe_table
table_of(const oct_cost *cost, guint f) {
  const oct_profile *profile = cost->profile;
  gboolean target = cost->options.moe_kernel == OCT_MOE_KERNEL_TARGET;
  if (!target && is_k3_shape(cost->spec, &cost->spec->ffn[f]) &&
      oct_price_moe_has_table(profile, OCT_MOE_K3_W4A16))
    return OCT_MOE_K3_W4A16;
  if (target && cost->spec->types.expert == OCT_DTYPE_MXFP4 &&
      oct_price_moe_has_table(profile, OCT_MOE_E384_W4A8))
    return OCT_MOE_E384_W4A8;
  return OCT_MOE_TABLE_COUNT;
}

static double
grid_tokens(guint32 i) {
  if (i < GRID_EXACT)
    return i + 1;
  guint32 octave = (i - GRID_EXACT) / GRID_OCTAVE, step = (i - GRID_EXACT) % GRID_OCTAVE;
  return ldexp(GRID_EXACT, (int)octave) * (1 + (step + 1.0) / GRID_OCTAVE);
}

void
oct_moe_grid_fill(oct_cost *cost, guint f) {
  const oct_profile *profile = cost->profile;
  const oct_routing *routing = &cost->routing[f];
  const gboolean own = oct_cost_has_own_experts(cost);
  const oct_moe_table table = table_of(cost, f);
  const double expert_time = cost->options.expert_time > 0 ? cost->options.expert_time : 1;
  const gboolean by_expert = cost->parallel.expert_parallel && cost->expert_ranks > 1;
  const oct_math math = oct_price_math(profile, cost->spec->types.expert);
  double bandwidth = profile->moe_fit[math].bandwidth;
  /* The best that is reached is no slower than what is measured. */
  if (cost->options.moe_kernel == OCT_MOE_KERNEL_TARGET)
    bandwidth = MAX(bandwidth, profile->efficiency.hbm_moe_expert);
  oct_moe_shape shape = expert_shape(cost, f);
  oct_moe_grid *grid = g_new0(oct_moe_grid, 1);
  g_autofree oct_moe_view *view = g_new0(oct_moe_view, 1);
  g_autoptr(oct_own_passes) passes = own ? oct_own_passes_new(routing) : NULL;
  if (table != OCT_MOE_TABLE_COUNT)
    oct_moe_view_init(view, profile, table, by_expert ? OCT_MOE_EP8 : OCT_MOE_TP8);
  for (guint32 i = 0; i < OCT_COST_GRID_MAX; i++) {
    double tokens = grid_tokens(i);
    if (tokens > GRID_LAST)
      break;
    shape.all_pairs = tokens * routing->top_k;
    shape.distinct = oct_routing_heaviest(routing, tokens);
    shape.pairs = MAX(oct_routing_pairs(routing, tokens), shape.distinct);
    oct_price *price = &grid->price[i];
    *price = own                            ? oct_price_own_experts(profile, passes, &shape)
             : table != OCT_MOE_TABLE_COUNT ? oct_price_moe_table(view, &shape)
                                            : oct_price_moe(profile, math, bandwidth, &shape);
    if (!own && table == OCT_MOE_TABLE_COUNT)
      oct_timed_correct_experts(profile, cost->spec->types.expert,
                                (guint32[4]){routing->n_experts, routing->top_k,
                                             (guint32)shape.outer, (guint32)shape.inner},
                                bandwidth, shape.pairs / routing->top_k, price);
    price->seconds *= expert_time;
    price->fixed_s *= expert_time;
    /* More tokens never take less time, whatever the noise of a table. */
    if (i > 0)
      price->seconds = MAX(price->seconds, grid->price[i - 1].seconds);
    grid->tokens[i] = (float)tokens;
    grid->distinct[i] = shape.distinct;
    grid->n = i + 1;
  }
  cost->moe[f] = grid;
}

static double
between(double a, double b, double t) {
  return a + (b - a) * t;
}

oct_price
oct_moe_grid_at(const oct_moe_grid *grid, double tokens, double *distinct) {
  const guint32 last = grid->n - 1;
  guint32 low = 0, high = last;
  if (tokens <= GRID_EXACT)
    low = tokens >= 1 ? (guint32)tokens - 1 : 0;
  else
    while (high - low > 1) {
      guint32 middle = (low + high) / 2;
      if ((double)grid->tokens[middle] <= tokens)
        low = middle;
      else
        high = middle;
    }
  const guint32 next = MIN(low + 1, last);
  const double width = (double)grid->tokens[next] - (double)grid->tokens[low];
  const double t = width > 0 ? (tokens - (double)grid->tokens[low]) / width : 0;
  const oct_price *a = &grid->price[low], *b = &grid->price[next];
  *distinct = between(grid->distinct[low], grid->distinct[next], MIN(t, 1));
  return (oct_price){.seconds = between(a->seconds, b->seconds, t),
                     .fixed_s = between(a->fixed_s, b->fixed_s, t),
                     .flops = between(a->flops, b->flops, t),
                     .hbm_bytes = between(a->hbm_bytes, b->hbm_bytes, t),
                     .part = a->part};
}

/* ---------------------------------------------------------------- layers */

static void
dense(oct_sink *sink, const oct_ffn_spec *ffn, double tokens) {
  const oct_cost *cost = sink->cost;
  const oct_model_spec *spec = cost->spec;
  const double inner = divide_up(ffn->intermediate, cost->parallel.tensor);
  oct_sink_gemm(sink, "ffn.gate_up", spec->types.dense_ffn, tokens, 2 * inner, spec->hidden);
  oct_sink_rows(sink, "ffn.activation", OCT_TIMED_ACTIVATION, (guint32)inner, 0, 0,
                tokens * inner * 3 * BF16);
  oct_sink_gemm(sink, "ffn.down", spec->types.dense_ffn, tokens, spec->hidden, inner);
  oct_sink_collective(sink, "ffn.all_reduce", &cost->tensor, OCT_COLLECTIVE_ALL_REDUCE,
                      tokens * spec->hidden * BF16);
}

/* Shared experts: split over the ranks by width, or whole with the tokens split. */
typedef struct shared_part {
  double tokens, inner;
} shared_part;

static shared_part
shared_of(const oct_cost *cost, const oct_ffn_spec *ffn, double tokens) {
  const double tp = cost->parallel.tensor;
  if (cost->parallel.replicate_shared)
    return (shared_part){divide_up(tokens, tp), ffn->shared_intermediate};
  return (shared_part){tokens, divide_up(ffn->shared_intermediate, tp)};
}

static void
shared_rest(oct_sink *sink, const oct_ffn_spec *ffn, double tokens) {
  const oct_model_spec *spec = sink->cost->spec;
  if (ffn->shared_intermediate == 0)
    return;
  shared_part part = shared_of(sink->cost, ffn, tokens);
  oct_sink_rows(sink, "moe.shared_activation", OCT_TIMED_ACTIVATION, (guint32)part.inner, 0, 0,
                part.tokens * part.inner * 3 * BF16);
  oct_sink_gemm(sink, "moe.shared_down", spec->types.shared_expert, part.tokens, spec->hidden,
                part.inner);
}

/* Experts with what brings tokens to them: `width` elements per token go out and come back. */
static void
experts(oct_sink *sink, guint f, double tokens, double all_tokens, double width) {
  const oct_cost *cost = sink->cost;
  const oct_ffn_spec *ffn = &cost->spec->ffn[f];
  const gboolean joint = oct_cost_is_joint(cost, f);
  const double own = divide_up(tokens, cost->parallel.tensor);
  double distinct;
  if (joint) {
    oct_price out = oct_price_dispatch(cost->profile, &cost->expert, own, width, ffn->top_k, FALSE,
                                       sink->graph);
    oct_sink_add(sink, "moe.dispatch", &out, own, width, ffn->top_k);
  }
  double routed = joint ? all_tokens : tokens;
  oct_price price = oct_moe_grid_at(cost->moe[f], routed, &distinct);
  oct_sink_add(sink, "moe.experts", &price, routed, round(distinct), ffn->moe_intermediate);
  if (joint) {
    oct_price back =
        oct_price_dispatch(cost->profile, &cost->expert, own, width, ffn->top_k, TRUE, sink->graph);
    oct_sink_add(sink, "moe.combine", &back, own, width, ffn->top_k);
  }
}

/* Which experts each token goes to. Own kernels: with sorting pairs by them and adding up, in
 * float32, what they give of `width`; else these belong to the experts' price. */
static void
choose(oct_sink *sink, const oct_ffn_spec *ffn, double tokens, double width) {
  const oct_profile *profile = sink->cost->profile;
  const oct_own_rows *own = &profile->own_kernels.pairs;
  const double logits = tokens * ffn->n_experts * 4.0, pairs = tokens * ffn->top_k;
  if (!oct_cost_has_own_experts(sink->cost)) {
    oct_sink_rows(sink, "moe.top_k", OCT_TIMED_ROUTE, ffn->n_experts, ffn->top_k, 0, logits);
    return;
  }
  const double bytes = logits + pairs * (12 + 4 * width) + tokens * width * BF16;
  oct_price price = oct_price_own(profile, own->fixed_s, bytes, own->hbm, 0, 1);
  oct_sink_add(sink, "moe.pairs", &price, tokens, ffn->n_experts, ffn->top_k);
}

static void
moe(oct_sink *sink, guint f, double tokens, double all_tokens) {
  const oct_cost *cost = sink->cost;
  const oct_model_spec *spec = cost->spec;
  const oct_ffn_spec *ffn = &spec->ffn[f];
  oct_sink_gemm(sink, "moe.router", spec->types.router, tokens, ffn->n_experts, spec->hidden);
  choose(sink, ffn, tokens, spec->hidden);
  experts(sink, f, tokens, all_tokens, spec->hidden);
  if (ffn->shared_intermediate > 0) {
    shared_part part = shared_of(cost, ffn, tokens);
    sink->beside = cost->options.shared_beside;
    oct_sink_gemm(sink, "moe.shared_gate_up", spec->types.shared_expert, part.tokens,
                  2 * part.inner, spec->hidden);
    shared_rest(sink, ffn, tokens);
    sink->beside = FALSE;
  }
  /* Partial sums of experts and shared experts; what a dispatch brought back is whole. */
  if (!oct_cost_is_joint(cost, f) ||
      (ffn->shared_intermediate > 0 && !cost->parallel.replicate_shared))
    oct_sink_collective(sink, "moe.all_reduce", &cost->tensor, OCT_COLLECTIVE_ALL_REDUCE,
                        tokens * spec->hidden * BF16);
}

/* One GEMM makes the router's logits, the latent and the shared experts' gate and up. Partial sums
 * of the latent must be complete before its norm, which the all-reduce kernel does; those of the
 * shared experts ride along. */
static void
latent_moe(oct_sink *sink, guint f, double tokens, double all_tokens) {
  const oct_cost *cost = sink->cost;
  const oct_model_spec *spec = cost->spec;
  const oct_ffn_spec *ffn = &spec->ffn[f];
  const oct_parallel *p = &cost->parallel;
  const guint64 latent = oct_split_rows(OCT_WEIGHT_LATENT_DOWN, ffn, p, ffn->latent);
  const guint64 logits = oct_split_rows(OCT_WEIGHT_ROUTER, ffn, p, ffn->n_experts);
  const guint64 up = oct_split_rows(OCT_WEIGHT_LATENT_UP, ffn, p, spec->hidden);
  shared_part part = shared_of(cost, ffn, tokens);
  const guint64 gate_up = 2 * (guint64)part.inner;
  double weights = (double)(oct_storage_bytes(spec->types.latent, latent, spec->hidden) +
                            oct_storage_bytes(spec->types.router, logits, spec->hidden) +
                            oct_storage_bytes(spec->types.shared_expert, gate_up, spec->hidden));
  oct_sink_gemm_bytes(sink, "moe.shared_router_latent", spec->types.latent, tokens,
                      (double)(latent + logits + gate_up), spec->hidden, weights);
  if (latent < ffn->latent)
    oct_sink_collective(sink, "moe.gather_latent", &cost->tensor, OCT_COLLECTIVE_ALL_GATHER,
                        tokens * (ffn->latent * BF16 + ffn->n_experts * 4.0));
  choose(sink, ffn, tokens, ffn->latent);
  experts(sink, f, tokens, all_tokens, ffn->latent);
  shared_rest(sink, ffn, tokens);
  const gboolean joint = oct_cost_is_joint(cost, f), shared = !cost->parallel.replicate_shared;
  double width = (joint ? 0 : ffn->latent) + (shared ? spec->hidden : 0);
  oct_sink_collective(sink, "moe.all_reduce", &cost->tensor, OCT_COLLECTIVE_ALL_REDUCE,
                      tokens * width * BF16);
  oct_sink_gemm(sink, "moe.latent_up", spec->types.latent, tokens, (double)up, ffn->latent);
  if (up < spec->hidden)
    oct_sink_collective(sink, "moe.gather_up", &cost->tensor, OCT_COLLECTIVE_ALL_GATHER,
                        tokens * spec->hidden * BF16);
}

void
oct_operators_ffn(oct_sink *sink, guint f, double tokens, double all_tokens) {
  const oct_ffn_spec *ffn = &sink->cost->spec->ffn[f];
  if (all_tokens <= 0)
    return;
  oct_sink_norm(sink, tokens);
  if (ffn->kind == OCT_FFN_DENSE)
    dense(sink, ffn, tokens);
  else if (ffn->kind == OCT_FFN_MOE)
    moe(sink, f, tokens, all_tokens);
  else
    latent_moe(sink, f, tokens, all_tokens);
}
