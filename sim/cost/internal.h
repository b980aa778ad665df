/* Inside the price: single kernels, routing, collectives, and the operators of each kind of layer.
 * Only sim/cost includes this. All times are seconds; all sizes are of one GPU. */
#ifndef OCT_SIM_COST_INTERNAL_H
#define OCT_SIM_COST_INTERNAL_H

#include "sim/cost/cost.h"

/* Points of the grid over which routed experts are priced. */
#define OCT_COST_GRID_MAX 640

/* ---------------------------------------------------------------- one kernel */

/* A kernel's price. `fixed_s` is what no resource binds (launch, synchronisation, latency):
 * contention does not stretch it. The rest of `seconds` is bound by `part`. */
typedef struct oct_price {
  double seconds, fixed_s;
  double flops, hbm_bytes, nvlink_bytes, host_bytes;
  guint32 part;
} oct_price;

/* The arithmetic that a weight type runs with on this GPU, and bytes of one activation element. */
oct_math oct_price_math(const oct_profile *profile, oct_dtype type);
/* m x k times k x n; weight_bytes = storage of the k x n weights. */
oct_price oct_price_gemm(const oct_profile *profile, oct_math math, double m, double n, double k,
                         double weight_bytes);
oct_price oct_price_attention(const oct_profile *profile, const oct_attention_shape *shape);
/* A memory-bound kernel: norms, activations, gathers, recurrent state. */
/* An own kernel: the larger of its two floors at the fractions that it reaches, and fixed_s. */
oct_price oct_price_own(const oct_profile *profile, double fixed_s, double bytes, double hbm,
                        double flops, double peak);
oct_price oct_price_memory(const oct_profile *profile, double bytes, double flops);

/* The attention model alone, without what was measured. */
oct_price oct_price_attention_model(const oct_profile *profile, const oct_attention_shape *shape);

/* ---------------------------------------------------------------- measured on the machine */

/* The table of this kind and type whose shape is nearest; NULL: none of them. Borrowed. */
const oct_timed *oct_timed_find(const oct_profile *profile, oct_timed_kind kind, oct_dtype type,
                                const guint32 *shape);
/* Seconds between a table's points; *x and *y are moved into its axes. */
double oct_timed_at(const oct_timed *table, double *x, double *y);
/* A product with weights of a type: measured where it can be, else oct_price_gemm(). */
oct_price oct_price_product(const oct_profile *profile, oct_dtype type, double m, double n,
                            double k, double weight_bytes);
/* A memory-bound kernel that tables may have: `bytes` as the operators count them. */
oct_price oct_price_rows(const oct_profile *profile, oct_timed_kind kind, const guint32 *shape,
                         double bytes);
void oct_timed_correct_attention(const oct_profile *profile, const oct_attention_shape *shape,
                                 oct_price *price);
/* shape: experts, top-k, outer and inner width on this rank; `tokens`: pairs of this rank over
 * top-k. */
void oct_timed_correct_experts(const oct_profile *profile, oct_dtype type, const guint32 shape[4],
                               double bandwidth, double tokens, oct_price *price);

oct_price oct_price_moe(const oct_profile *profile, oct_math math, double bandwidth,
                        const oct_moe_shape *shape);
/* From measured tables: `spread` is how their ranks share experts. */
gboolean oct_price_moe_has_table(const oct_profile *profile, oct_moe_table table);

/* A table prepared for look-up: distinct experts of each routing at each number of tokens. */
typedef struct oct_moe_view {
  const oct_profile *profile; /* borrowed */
  oct_moe_table table;
  oct_moe_spread spread;
  guint32 n;
  double tokens[OCT_PROFILE_POINTS_MAX];
  double distinct[OCT_MOE_ROUTING_COUNT][OCT_PROFILE_POINTS_MAX];
  double seconds[OCT_MOE_ROUTING_COUNT][OCT_PROFILE_POINTS_MAX];
} oct_moe_view;
void oct_moe_view_init(oct_moe_view *view, const oct_profile *profile, oct_moe_table table,
                       oct_moe_spread spread);
oct_price oct_price_moe_table(const oct_moe_view *view, const oct_moe_shape *shape);

/* ---------------------------------------------------------------- collectives */

/* GPUs that exchange. Topologies without a switch are as fast as their slowest hop. */
typedef struct oct_group {
  guint32 n;
  double hop_bytes_per_s, hop_s; /* of the slowest hop round the ring */
  gboolean spans;                /* several nodes: over their NICs */
} oct_group;

/* FALSE with *error when the profile cannot price a group of this size. */
gboolean oct_group_init(oct_group *group, const oct_profile *profile, const guint16 *gpus,
                        guint32 n, GError **error);
/* The slower of two groups, for layouts in which they differ. */
oct_group oct_group_worse(const oct_group *a, const oct_group *b);
oct_price oct_price_collective(const oct_profile *profile, const oct_group *group,
                               oct_collective op, double bytes, gboolean graph);
/* Dispatch and combine of experts: `tokens` per GPU, `width` elements of each, to top_k experts. */
oct_price oct_price_dispatch(const oct_profile *profile, const oct_group *group, double tokens,
                             double width, double top_k, gboolean combine, gboolean graph);
/* One GPU to another: a pipeline send. */
double oct_price_send(const oct_profile *profile, const oct_group *pair, double bytes);

/* ---------------------------------------------------------------- routing */

/* Which experts tokens choose: independent draws with a popularity per expert. */
typedef struct oct_routing {
  guint32 n_experts, top_k, ranks;
  gboolean uniform, balanced;
  double *log_miss; /* [n_experts] log of the chance that one token does not choose it; experts of a
                       rank stand together */
  double *share;    /* [n_experts] the chance that it does */
} oct_routing;

void oct_routing_init(oct_routing *routing, guint32 n_experts, guint32 top_k, guint32 ranks,
                      double alpha);
/* The same by measured popularities weight[n_experts], at least one of them above 0. */
void oct_routing_init_measured(oct_routing *routing, guint32 n_experts, guint32 top_k,
                               guint32 ranks, const double *weight);
/* Every expert as often as any other, in turn. */
void oct_routing_init_balanced(oct_routing *routing, guint32 n_experts, guint32 top_k,
                               guint32 ranks);
void oct_routing_clear(oct_routing *routing);
/* Expected distinct experts of n tokens: in all, or on the heaviest rank. */
double oct_routing_distinct(const oct_routing *routing, double tokens);
double oct_routing_heaviest(const oct_routing *routing, double tokens);
/* Expected token-expert pairs on the heaviest rank. */
double oct_routing_pairs(const oct_routing *routing, double tokens);
/* Chances that follow rank^-alpha, scaled so that their sum is top_k and none is above 1. */
void oct_routing_shares(double *share, guint32 n_experts, guint32 top_k, double alpha);

/* ---------------------------------------------------------------- own experts */

/* Passes of this engine's kernel over experts' weights; the routing is borrowed. */
typedef struct oct_own_passes oct_own_passes;
oct_own_passes *oct_own_passes_new(const oct_routing *routing);
void oct_own_passes_free(oct_own_passes *passes);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_own_passes, oct_own_passes_free)
oct_price oct_price_own_experts(const oct_profile *profile, const oct_own_passes *passes,
                                const oct_moe_shape *shape);

/* ---------------------------------------------------------------- a cost */

/* Sums of operators by the part that binds them. */
#define OCT_SUM_PARTS OCT_COST_GROUPS
typedef struct oct_sum {
  double seconds[OCT_SUM_PARTS];
  double flops[OCT_SUM_PARTS];
  double hbm_bytes[OCT_SUM_PARTS];
  double nvlink_bytes, host_bytes;
} oct_sum;

double oct_sum_seconds(const oct_sum *sum);
void oct_sum_add(oct_sum *sum, const oct_sum *part, double count);

/* Components of a step: each depends on one number of tokens or rows and can be tabulated. */
enum {
  OCT_COMPONENT_ATTENTION = 0, /* + index of the attention kind: all but the attention kernel */
  OCT_COMPONENT_DECODE = OCT_ATTENTION_COUNT, /* + likewise: what decode adds */
  OCT_COMPONENT_FFN = OCT_COMPONENT_DECODE + OCT_ATTENTION_COUNT,
  OCT_COMPONENT_EMBEDDING = OCT_COMPONENT_FFN + OCT_FFN_COUNT,
  OCT_COMPONENT_HEAD,
  OCT_COMPONENT_COUNT
};

/* Price of routed experts over the number of tokens: exact at the grid's points, linear between. */
typedef struct oct_moe_grid {
  guint32 n;
  float tokens[OCT_COST_GRID_MAX];
  oct_price price[OCT_COST_GRID_MAX];
  double distinct[OCT_COST_GRID_MAX];
} oct_moe_grid;

typedef struct oct_stage_plan {
  guint32 first, count;
  guint32 n_attention[OCT_ATTENTION_COUNT], n_ffn[OCT_FFN_COUNT];
  guint32 n_mixes;      /* attention-residual mixes, 0 without them */
  double mix_sources;   /* vectors that one reads, on average */
  guint32 send_vectors; /* hidden vectors per token sent to the next stage */
} oct_stage_plan;

struct oct_cost {
  const oct_model_spec *spec;
  const oct_profile *profile;
  oct_parallel parallel;
  oct_cost_options options;
  guint32 n_stages;
  oct_stage_plan stages[OCT_COST_STAGES_MAX];
  oct_group tensor, context, expert, send;
  guint32 expert_ranks; /* that share the experts by whole ones; 1 = each domain by width */
  oct_routing routing[OCT_FFN_COUNT];
  oct_moe_grid *moe[OCT_FFN_COUNT];
  /* Sums of the components for 1 … n_table tokens, with graphs if table_graph. table[component] is
   * NULL where the model has none, and where it depends on more than one number. */
  guint32 n_table;
  gboolean table_graph;
  oct_sum *table[OCT_COMPONENT_COUNT];
  /* Whole stages without their attention kernels, for a step of one domain that is nothing but
   * one-token decodes, each sampled. */
  oct_sum *decode_table[OCT_COST_STAGES_MAX];
};

/* Where operators go: into a sum, or into a list, or both. */
typedef struct oct_sink {
  const oct_cost *cost;
  gboolean graph;
  oct_sum *sum;
  oct_cost_operator *list;
  guint max, n;
  guint32 stage, count; /* of the operators that come next */
  gboolean beside;      /* they run beside others: what no resource binds takes no time */
} oct_sink;

void oct_sink_add(oct_sink *sink, const char *name, const oct_price *price, double m, double n,
                  double k);
/* A GEMM with n x k weights of `type` (or of so many bytes), a memory-bound kernel, a collective.
 */
void oct_sink_gemm(oct_sink *sink, const char *name, oct_dtype type, double m, double n, double k);
void oct_sink_gemm_bytes(oct_sink *sink, const char *name, oct_dtype type, double m, double n,
                         double k, double weight_bytes);
void oct_sink_memory(oct_sink *sink, const char *name, double bytes);
void oct_sink_rows(oct_sink *sink, const char *name, oct_timed_kind kind, guint32 a, guint32 b,
                   guint32 c, double bytes);
void oct_sink_collective(oct_sink *sink, const char *name, const oct_group *group,
                         oct_collective op, double bytes);
/* Norm of a layer's input; with attention residuals the mix, a component of its own, has done it.
 */
void oct_sink_norm(oct_sink *sink, double tokens);

/* ---------------------------------------------------------------- operators (operators*.c) */

/* All but the attention kernels of one layer with attention kind `a`, for `tokens` of a domain. */
void oct_operators_attention(oct_sink *sink, guint a, double tokens);
/* What decode adds to that for `tokens` of decode slices, contexts aside. */
void oct_operators_decode(oct_sink *sink, guint a, double tokens);
/* The attention or state kernels of one layer: they depend on contexts. */
void oct_operators_context(oct_sink *sink, guint a, const oct_domain_shape *shape);
/* One FFN; `tokens` of the domain, `all_tokens` of every domain. */
void oct_operators_ffn(oct_sink *sink, guint f, double tokens, double all_tokens);
void oct_operators_embedding(oct_sink *sink, double tokens);
void oct_operators_head(oct_sink *sink, double rows);
/* One attention-residual mix on stage `stage`. */
void oct_operators_mix(oct_sink *sink, guint32 stage, double tokens);

/* Whether experts are priced as this engine's own MXFP4 kernels. */
gboolean oct_cost_has_own_experts(const oct_cost *cost);
/* Whether FFN `f` runs over all domains at once (experts shared between them). */
gboolean oct_cost_is_joint(const oct_cost *cost, guint f);
oct_price oct_moe_grid_at(const oct_moe_grid *grid, double tokens, double *distinct);
void oct_moe_grid_fill(oct_cost *cost, guint f);
guint64 oct_domain_tokens(const oct_domain_shape *shape);

#endif
