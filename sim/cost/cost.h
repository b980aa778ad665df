/* The price of a step: how long its kernels take on each pipeline stage, and what they move.
 *
 * From the model spec and the parallel plan this module lists a step's operators (GEMMs by m, n, k
 * and type; attention by query-key pairs and KV tokens; MoE by distinct experts touched;
 * collectives by bytes; launches) and prices each alone from the node profile. Kernels are serial:
 * a stage's time is the SUM of its operators' times. The sum is kept in groups by what binds each
 * operator, because the simulator lets only the group that uses a contended resource slow down.
 *
 * A step is described by its *shape*: sums over its slices, chosen so that a step of decodes is
 * advanced by one token in O(1) and priced in O(kinds of layers).
 *
 * An oct_cost never changes: any thread may use it. Pricing allocates nothing.
 * sim/cost/README.md explains the price of each operator; doc/simulation.md has its measured error.
 */
#ifndef OCT_SIM_COST_H
#define OCT_SIM_COST_H

#include <glib.h>

#include "engine/backend.h"
#include "engine/model/spec.h"
#include "sim/profile.h"

#define OCT_COST_STAGES_MAX 16
/* Groups of a stage: OCT_PART_COMPUTE, _MEMORY, _COLLECTIVE, _FIXED, _COPY (expert misses read from
 * the host), in this order. */
#define OCT_COST_GROUPS (OCT_PART_COPY + 1)

#define OCT_COST_ERROR (oct_cost_error_quark())
GQuark oct_cost_error_quark(void);
typedef enum oct_cost_error {
  OCT_COST_ERROR_LAYOUT,      /* devices that the node does not have, or an illegal plan */
  OCT_COST_ERROR_UNSUPPORTED, /* a storage type or collective that the profile cannot price */
} oct_cost_error;

/* ---------------------------------------------------------------- shapes */

/* One KV domain's part of a step, as sums over its slices.
 *
 * A slice with OCT_SLICE_PREFILL is a prefill slice; every other one is a decode slice, also with
 * more than one token (verify). A token at position p attends p + 1 tokens, itself included. */
typedef struct oct_domain_shape {
  guint32 n_decode;      /* decode slices */
  guint32 n_prefill;     /* prefill slices */
  guint32 decode_tokens; /* tokens of decode slices; = n_decode unless some verify */
  guint32 prefill_tokens;
  guint32 sample_rows; /* positions whose logits are wanted */
  /* Sliding windows: decode slices that do not fill the window yet, and how many tokens the one
   * that is closest may advance before it does. Meaningless (0) for a model without windows. */
  guint32 below_window;
  guint32 until_window;
  guint64 decode_context; /* KV tokens read by decode slices: position + n_tokens each */
  guint64 decode_pairs; /* query-key pairs of decode slices; = decode_context unless some verify */
  guint64 prefill_context; /* KV tokens read by prefill slices: position + n_tokens each */
  guint64 prefill_pairs;   /* query-key pairs of prefill slices (causal) */
  /* The same with contexts clipped to the model's window; equal to the above without one. */
  guint64 decode_window_context, decode_window_pairs;
  guint64 prefill_window_context, prefill_window_pairs;
} oct_domain_shape;

enum {
  OCT_SHAPE_EAGER = 1 << 0, /* kernels are launched one by one even if a graph would fit */
};

typedef struct oct_step_shape {
  guint32 n_domains;
  guint32 flags; /* OCT_SHAPE_… */
  /* Expert weights read from host memory by the heaviest rank of each stage; 0 = all resident. */
  double expert_miss_bytes[OCT_COST_STAGES_MAX];
  oct_domain_shape domains[OCT_STEP_DOMAINS_MAX];
} oct_step_shape;

/* The sliding window of a model (its widest WINDOW attention), 0 when it has none: what the helpers
 * below take. */
guint32 oct_cost_window(const oct_model_spec *spec);

/* Sum of min(i, window) for i = first + 1 … first + n: pairs of n causal queries from position
 * first. */
static inline guint64
oct_shape_pairs(guint64 first, guint64 n, guint64 window) {
  guint64 open = n; /* queries that see fewer than `window` tokens */
  if (window > 0)
    open = first >= window ? 0 : MIN(n, window - first);
  return open * first + open * (open + 1) / 2 + (n - open) * window;
}

/* Adds one slice, whose position must be a number (not OCT_POSITION_AFTER): `position` is passed
 * apart because the caller resolved it. `window` from oct_cost_window(). */
static inline void
oct_domain_shape_add(oct_domain_shape *shape, const oct_slice *slice, guint32 position,
                     guint32 window) {
  const guint32 n = slice->n_tokens;
  const guint64 context = (guint64)position + n;
  /* Nearly every slice of a long run: its one token sees its whole context. */
  if (n == 1 && window == 0 && slice->flags == 0) {
    shape->sample_rows += slice->sample != OCT_SAMPLE_NONE;
    shape->n_decode++;
    shape->decode_tokens++;
    shape->decode_context += context;
    shape->decode_pairs += context;
    shape->decode_window_context += context;
    shape->decode_window_pairs += context;
    return;
  }
  const guint64 pairs = oct_shape_pairs(position, n, 0);
  /* The n tokens together read the last window + n - 1 tokens. */
  const guint64 clipped = window > 0 ? MIN(context, (guint64)window + n - 1) : context;
  const guint64 clipped_pairs = oct_shape_pairs(position, n, window);
  shape->sample_rows +=
      slice->sample == OCT_SAMPLE_ALL ? n : (slice->sample == OCT_SAMPLE_LAST ? 1 : 0);
  if (slice->flags & OCT_SLICE_PREFILL) {
    shape->n_prefill++;
    shape->prefill_tokens += n;
    shape->prefill_context += context;
    shape->prefill_pairs += pairs;
    shape->prefill_window_context += clipped;
    shape->prefill_window_pairs += clipped_pairs;
    return;
  }
  shape->n_decode++;
  shape->decode_tokens += n;
  shape->decode_context += context;
  shape->decode_pairs += pairs;
  shape->decode_window_context += clipped;
  shape->decode_window_pairs += clipped_pairs;
  if (window > 0 && context < window) {
    guint32 left = window - (guint32)context;
    if (shape->below_window == 0 || left < shape->until_window)
      shape->until_window = left;
    shape->below_window++;
  }
}

/* Whether the domain is nothing but one-token decodes, which oct_domain_shape_advance() needs. */
static inline gboolean
oct_domain_shape_is_decode(const oct_domain_shape *shape) {
  return shape->n_prefill == 0 && shape->decode_tokens == shape->n_decode;
}

/* Advances every slice of a pure decode shape by one token. Returns FALSE when, from then on, a
 * slice fills its window: the shape is right, but it must be summed afresh from its slices before
 * it is advanced again. (Each sequence does that once in its life; never without windows.) */
static inline gboolean
oct_domain_shape_advance(oct_domain_shape *shape, guint32 window) {
  shape->decode_context += shape->n_decode;
  shape->decode_pairs += shape->n_decode;
  if (window == 0) {
    shape->decode_window_context = shape->decode_context;
    shape->decode_window_pairs = shape->decode_pairs;
    return TRUE;
  }
  if (shape->below_window == 0)
    return TRUE;
  shape->decode_window_context += shape->below_window;
  shape->decode_window_pairs += shape->below_window;
  return --shape->until_window > 0;
}

/* ---------------------------------------------------------------- prices */

/* What one group of operators takes and moves, on the heaviest rank of the stage. */
typedef struct oct_cost_group {
  gint64 ns;
  double flops;        /* per GPU */
  double hbm_bytes;    /* per GPU, read + written */
  double nvlink_bytes; /* per GPU and direction */
  double host_bytes;   /* per GPU, host to device over PCIe */
} oct_cost_group;

typedef struct oct_stage_price {
  gint64 ns; /* = the sum of groups[].ns */
  oct_cost_group groups[OCT_COST_GROUPS];
  /* To the next stage, 0 for the last: bytes that each rank sends, and the time alone. */
  double send_bytes;
  gint64 send_ns;
} oct_stage_price;

typedef struct oct_step_price {
  guint32 n_stages;
  gboolean graph; /* priced as one CUDA graph per stage */
  oct_stage_price stages[OCT_COST_STAGES_MAX];
} oct_step_price;

typedef enum oct_moe_kernel {
  OCT_MOE_KERNEL_MEASURED, /* the profile's table of the model's own shape where there is one */
  OCT_MOE_KERNEL_TARGET,   /* what the best measured kernel reaches, scaled by bytes */
  /* This engine's own, by the profile's [own_kernels]: MXFP4 experts, and delta and latent
   * attention with them. */
  OCT_MOE_KERNEL_OWN,
  OCT_MOE_KERNEL_COUNT
} oct_moe_kernel;
const char *oct_moe_kernel_name(oct_moe_kernel kernel); /* "measured" …; static */
/* FALSE, and *kernel as it was: no kernel has the name. */
gboolean oct_moe_kernel_parse(const char *name, oct_moe_kernel *kernel) G_GNUC_WARN_UNUSED_RESULT;

typedef struct oct_cost_options {
  oct_dtype kv_dtype; /* BF16 or FP8 */
  oct_moe_kernel moe_kernel;
  double routing_alpha; /* popularity of experts ~ rank^-alpha; 0 = uniform. <= 4 */
  /* In place of it: round robin, which touches as many experts as any routing can; or a measured
   * popularity, any scale, of layers with so many experts (copied). */
  gboolean routing_balanced;
  guint32 n_routing_weights;
  const double *routing_weights; /* [n_routing_weights], NULL = none */
  gboolean eager;                /* no graphs */
  gboolean nccl_only; /* all-reduce by NCCL in graphs too: no kernels of the engine's own */
  /* Shared experts run beside routed ones: their bytes and flops take time, their launches none. */
  gboolean shared_beside;
  /* Queries and keys are normed over the heads of all ranks (MiniMax-M2): two kernels more in each
   * layer, and the sums of squares cross the ranks. */
  gboolean whole_norms;
  /* The floor is of weights in equal parts on all tensor ranks: of any software, where it otherwise
   * is of the parts that this engine's ranks hold (engine/model/split.h). Prices stay. */
  gboolean even_floor;
  gboolean fused_norms; /* norms belong to the all-reduce before them: free where there is one */
  double expert_time;   /* routed experts take so many times their price, at least 0.1; 0 = 1 */
  /* Every stage takes so many times its price, to see what an error of the prices does; 0 = 1.
   * Bytes and flops stay. At most OCT_COST_SCALE_MAX. */
  double scale;
} oct_cost_options;

#define OCT_COST_SCALE_MAX 10.0

#define OCT_COST_OPTIONS_DEFAULT ((oct_cost_options){.kv_dtype = OCT_DTYPE_BF16})

typedef struct oct_cost oct_cost;

/* Life cycle.
 * `spec` and `profile` are borrowed until the cost is freed. devices[oct_parallel_world()] maps
 * rank to GPU of the node and is copied; NULL = rank r on GPU r. Rank numbering: oct_cost_rank().
 * Returns NULL with *error when the layout or a type cannot be priced. Takes a few milliseconds: it
 * prices every small token count beforehand. */
oct_cost *oct_cost_new(const oct_model_spec *spec, const oct_parallel *parallel,
                       const guint16 *devices, const oct_profile *profile,
                       const oct_cost_options *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_cost_free(oct_cost *cost); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_cost, oct_cost_free)

/* Ranks are numbered stage by stage, in a stage domain by domain, in a domain by tensor rank. */
static inline guint32
oct_cost_rank(const oct_parallel *p, guint32 stage, guint32 domain, guint32 tensor) {
  return (stage * p->data + domain) * p->tensor + tensor;
}

/* Use. Prices one step; *out is overwritten (only n_stages stages). With several domains each layer
 * waits for the heaviest. A step without any token costs nothing. Where the profile has a law of
 * heat the price is of a cold chip. */
void oct_cost_step(const oct_cost *cost, const oct_step_shape *shape, oct_step_price *out);

/* What the heaviest rank of `stage` reads from the host when so many of the experts that a step
 * uses there are not on the device: for expert_miss_bytes. */
double oct_cost_miss_bytes(const oct_cost *cost, guint32 stage, guint32 missed);

/* The one rounding from seconds to engine time that every part of the simulation uses: to nearest.
 */
static inline gint64
oct_cost_ns(double seconds) {
  return (gint64)(seconds * 1e9 + 0.5);
}

/* The profile's law of heat (sim/cost/heat.h), NULL when it has none. Borrowed. */
const oct_heat_law *oct_cost_heat(const oct_cost *cost);

/* Host times of the profile's engine preset. */
const oct_engine_times *oct_cost_engine(const oct_cost *cost);
/* Time on the host of a step with n_seqs sequences. */
gint64 oct_cost_step_host_ns(const oct_cost *cost, guint32 n_seqs);
/* Whether a step of this shape runs as a graph. */
gboolean oct_cost_is_graph(const oct_cost *cost, const oct_step_shape *shape);

/* ---------------------------------------------------------------- inspect */

/* One operator of a step: `count` equal launches on stage `stage`, each priced `seconds`. */
typedef struct oct_cost_operator {
  const char *name; /* "kda.qkvg", "moe.experts", "all_reduce" …; static */
  guint32 stage;
  guint32 count;
  guint32 part;    /* OCT_PART_…: what binds it */
  guint64 m, n, k; /* GEMM shape on one GPU; 0 when it is none. MoE: m = tokens, n = distinct
                      experts on the heaviest rank */
  oct_dtype type;  /* of a product's weights, else NONE */
  double flops, hbm_bytes, nvlink_bytes, host_bytes; /* of one launch, per GPU */
  double seconds;                                    /* of one launch, launch cost included */
  double fixed_s; /* the part of `seconds` that no resource binds: it is in the FIXED group */
} oct_cost_operator;

/* Fills at most `max` entries and returns how many the step has. Their seconds x count, summed by
 * stage, are the stage's price. */
guint oct_cost_operators(const oct_cost *cost, const oct_step_shape *shape, oct_cost_operator *out,
                         guint max);

/* Roofline floor of a step: on each stage the larger of bytes / hbm_bytes_per_s and flops / peak
 * (by type), launches and links left out; summed over stages. No price is below it. */
gint64 oct_cost_floor_ns(const oct_cost *cost, const oct_step_shape *shape);
/* HBM bytes of the heaviest rank of `stage` that the floor counts: weights once (experts by
 * distinct touched), KV and state. */
double oct_cost_floor_bytes(const oct_cost *cost, const oct_step_shape *shape, guint32 stage);
/* What a rank of the stage holds when each matrix is cut into equal parts for all tensor ranks. */
void oct_cost_even_weights(const oct_model_spec *spec, const oct_parallel *parallel, guint32 stage,
                           oct_weights *out);
/* The same bytes by what they are; their sum but for `experts_least`, which is what the routed
 * experts come to at best: every token chooses the same ones, spread evenly over the ranks. */
typedef struct oct_cost_floor_parts {
  double weights; /* all that every step reads */
  double experts, experts_least;
  double state, kv;
} oct_cost_floor_parts;
void oct_cost_floor_split(const oct_cost *cost, const oct_step_shape *shape, guint32 stage,
                          oct_cost_floor_parts *parts);
/* The arithmetic of the floor alone: seconds of a stage at the datasheet peaks. */
double oct_cost_floor_flops_s(const oct_cost *cost, const oct_step_shape *shape, guint32 stage);

/* Distinct experts touched by `tokens` tokens in one MoE layer, expected: over the model, and on
 * the heaviest of the ranks that share the experts. 0 for a model without experts. */
double oct_cost_distinct_experts(const oct_cost *cost, guint64 tokens, gboolean heaviest_rank);

/* Single operators, for tests against measured tables and for explanations; nanoseconds, not
 * rounded. `n` is the number of GPUs; `graph` replays from a graph. INFINITY: the profile cannot
 * price a group of so many. */
double oct_cost_gemm_ns(const oct_profile *profile, oct_math math, guint64 m, guint64 n, guint64 k);
double oct_cost_collective_ns(const oct_profile *profile, oct_collective op, guint32 n,
                              double bytes, gboolean graph);
/* `tokens` of each GPU, `width` elements of each, to top_k experts on n GPUs, or back (combine). */
double oct_cost_dispatch_ns(const oct_profile *profile, guint32 n, double tokens, double width,
                            double top_k, gboolean combine);
/* By the laws of [collective_fit], also where the profile has tables: `op`, or with NULL an
 * engine's own all-reduce in a graph. Seconds. */
double oct_cost_collective_law_s(const oct_profile *profile, const oct_collective *op, guint32 n,
                                 double bytes);

/* One attention call on one GPU: sums over its sequences. */
typedef struct oct_attention_shape {
  gboolean prefill;
  gboolean mla;
  guint32 n_sequences;
  guint32 n_heads, n_kv_heads; /* of this GPU; MLA: 1 KV head */
  guint32 key_dim, value_dim;  /* per head; MLA absorbed: 576 and 512 */
  guint32 kv_element_bytes;
  gboolean warm_l2; /* a benchmark loop: KV that fits L2 stays there; in a step weights evict it */
  guint64 tokens, context, pairs;
} oct_attention_shape;
double oct_cost_attention_ns(const oct_profile *profile, const oct_attention_shape *shape);

/* One routed-expert block on one rank. */
typedef struct oct_moe_shape {
  double pairs;        /* token-expert pairs on this rank */
  double distinct;     /* experts touched on this rank */
  double all_pairs;    /* pairs of all ranks */
  double outer, inner; /* of an expert on this rank: inner is its share of the width */
  double expert_bytes; /* weights of one expert on this rank */
} oct_moe_shape;
/* By the fitted law, not from a table of the profile. */
double oct_cost_moe_ns(const oct_profile *profile, oct_math math, const oct_moe_shape *shape);
/* A memory-bound kernel that reads and writes so many bytes. */
double oct_cost_memory_ns(const oct_profile *profile, double bytes);

#endif
