/* The operators of each kind of layer: names, shapes and prices, in the order in which they run.
 * Ranks of a tensor-parallel group do the same work, so one rank is listed.
 *
 * Kernels that engines fuse are listed once: residual add with norm, rotary embedding with the
 * cache write, activation with its product. The projections of one input are one GEMM.
 */
#include <math.h>

#include "engine/base/assert.h"
#include "sim/cost/internal.h"

#define BF16 2.0
/* Arithmetic of Kimi delta attention: decay, correction, update and read of a head's state, per
 * token and state element; and the share of the peak that chunked prefill kernels reach (assumed).
 */
#define KDA_FLOPS_PER_ELEMENT 7.0
#define KDA_PREFILL_PEAK      0.1

static double
divide_up(double a, double b) {
  return ceil(a / b);
}

/* ---------------------------------------------------------------- attention without its kernel */

static void
gqa_layer(oct_sink *sink, const oct_attention_spec *a, double tokens) {
  const oct_model_spec *spec = sink->cost->spec;
  const double tp = sink->cost->parallel.tensor, head = a->head_dim;
  const double heads = divide_up(a->n_heads, tp), kv_heads = divide_up(a->n_kv_heads, tp);
  const oct_dtype type = spec->types.attention;
  oct_sink_gemm(sink, "gqa.qkv", type, tokens, (heads + 2 * kv_heads) * head, spec->hidden);
  if (sink->cost->options.whole_norms) {
    const double bytes = tokens * (heads + kv_heads) * head * BF16;
    oct_sink_memory(sink, "gqa.qk_squares", bytes);
    oct_sink_collective(sink, "gqa.qk_all_reduce", &sink->cost->tensor, OCT_COLLECTIVE_ALL_REDUCE,
                        tokens * 2 * 4.0);
    oct_sink_memory(sink, "gqa.qk_norm", 2 * bytes);
  }
  oct_sink_rows(sink, "gqa.rotary_cache", OCT_TIMED_ROTATE, (guint32)heads, (guint32)kv_heads,
                a->head_dim, tokens * (heads + 2 * kv_heads) * head * 2 * BF16);
  oct_sink_gemm(sink, "gqa.o", type, tokens, spec->hidden, heads * head);
}

/* The projections to low ranks are whole (engine/model/split.h). */
static void
mla_layer(oct_sink *sink, const oct_attention_spec *a, double tokens) {
  const oct_cost *cost = sink->cost;
  const oct_model_spec *spec = cost->spec;
  const double heads = divide_up(a->n_heads, cost->parallel.tensor);
  const double q = heads * (a->qk_nope + a->qk_rope), latent = (double)a->kv_lora + a->qk_rope;
  const oct_dtype type = spec->types.attention;
  const double low = a->q_lora + latent;
  double gate = a->output_gate ? heads * a->v_head : 0;
  oct_sink_gemm(sink, "mla.q_a_kv_a_gate", type, tokens, low + gate + (a->q_lora == 0 ? q : 0),
                spec->hidden);
  oct_sink_memory(sink, "mla.norm_cache", tokens * low * 2 * BF16);
  if (a->q_lora > 0)
    oct_sink_gemm(sink, "mla.q_b", type, tokens, q, a->q_lora);
  if (a->output_gate)
    oct_sink_memory(sink, "mla.gate", tokens * heads * a->v_head * 3 * BF16);
  oct_sink_gemm(sink, "mla.o", type, tokens, spec->hidden, heads * a->v_head);
}

static void
kda_layer(oct_sink *sink, const oct_attention_spec *a, double tokens) {
  const oct_model_spec *spec = sink->cost->spec;
  const double tp = sink->cost->parallel.tensor, heads = divide_up(a->n_heads, tp);
  const double width = heads * a->head_dim;
  const oct_dtype type = spec->types.attention;
  /* q, k, v, a full-rank gate, and beta; the low-rank factors are whole. */
  double gate = a->output_gate_rank > 0 ? 0 : width;
  oct_sink_gemm(sink, "kda.qkvg", type, tokens, 3 * width + gate, spec->hidden);
  oct_sink_gemm(sink, "kda.low_rank", type, tokens, a->gate_rank + a->output_gate_rank + heads,
                spec->hidden);
  oct_sink_gemm(sink, "kda.decay", type, tokens, width, a->gate_rank);
  if (a->output_gate_rank > 0)
    oct_sink_gemm(sink, "kda.gate", type, tokens, width, a->output_gate_rank);
  oct_sink_memory(sink, "kda.norm_gate", tokens * width * 3 * BF16);
  oct_sink_gemm(sink, "kda.o", type, tokens, spec->hidden, width);
}

void
oct_operators_attention(oct_sink *sink, guint a, double tokens) {
  const oct_cost *cost = sink->cost;
  const oct_attention_spec *attention = &cost->spec->attention[a];
  oct_sink_norm(sink, tokens);
  if (attention->kind == OCT_ATTENTION_MLA)
    mla_layer(sink, attention, tokens);
  else if (attention->kind == OCT_ATTENTION_KDA)
    kda_layer(sink, attention, tokens);
  else
    gqa_layer(sink, attention, tokens);
  oct_sink_collective(sink, "attention.all_reduce", &cost->tensor, OCT_COLLECTIVE_ALL_REDUCE,
                      tokens * cost->spec->hidden * BF16);
}

/* ---------------------------------------------------------------- attention kernels */

/* Decode on the MLA latent: queries and outputs absorb the up-projection. With DCP the queries go
 * to every rank of the group, and partial outputs come back to be merged. */
void
oct_operators_decode(oct_sink *sink, guint a, double tokens) {
  const oct_cost *cost = sink->cost;
  const oct_attention_spec *attention = &cost->spec->attention[a];
  const double dcp = cost->parallel.decode_context;
  const double heads = divide_up(attention->n_heads, cost->parallel.tensor);
  double key = attention->head_dim, value = attention->head_dim;
  if (attention->kind == OCT_ATTENTION_KDA || tokens <= 0)
    return;
  if (attention->kind == OCT_ATTENTION_MLA) {
    const oct_dtype type = cost->spec->types.attention;
    key = (double)attention->kv_lora + attention->qk_rope;
    value = attention->kv_lora;
    oct_sink_gemm(sink, "mla.absorb_q", type, tokens, heads * value, attention->qk_nope);
    oct_sink_gemm(sink, "mla.absorb_v", type, tokens, heads * attention->v_head, value);
  }
  if (dcp > 1) {
    oct_sink_collective(sink, "dcp.gather_q", &cost->context, OCT_COLLECTIVE_ALL_GATHER,
                        tokens * heads * dcp * key * BF16);
    oct_sink_collective(sink, "dcp.merge", &cost->context, OCT_COLLECTIVE_ALL_TO_ALL,
                        tokens * heads * dcp * (value + 2) * BF16);
  }
}

/* What one rank of a DCP group computes: its share of the tokens for the heads of the whole group.
 */
typedef struct context_part {
  double heads, kv_heads;
  guint64 context, pairs;
} context_part;

static context_part
part_of_context(const oct_cost *cost, const oct_attention_spec *a, guint64 context, guint64 pairs) {
  const guint32 dcp = cost->parallel.decode_context;
  context_part part = {.heads = divide_up(a->n_heads, cost->parallel.tensor),
                       .kv_heads = divide_up(MAX(a->n_kv_heads, 1), cost->parallel.tensor),
                       .context = (context + dcp - 1) / dcp,
                       .pairs = (pairs + dcp - 1) / dcp};
  part.heads *= dcp;
  return part;
}

static gboolean
is_own(const oct_cost *cost) {
  return cost->options.moe_kernel == OCT_MOE_KERNEL_OWN;
}

/* The latent of every sequence once, and the arithmetic of the heads as they are. */
static oct_price
own_latent_decode(const oct_profile *profile, const oct_attention_shape *s) {
  const oct_own_mla *own = &profile->own_kernels.mla;
  const double width = (double)s->key_dim + s->value_dim;
  const double bytes = (double)s->context * s->key_dim * s->kv_element_bytes +
                       (double)s->tokens * s->n_heads * width * BF16;
  const gboolean is_short = s->n_heads > OCT_OWN_MLA_FEW_HEADS &&
                            s->context <= (guint64)s->n_sequences * OCT_OWN_MLA_SHORT_CONTEXT;
  return oct_price_own(profile, own->decode_fixed_s, bytes,
                       s->kv_element_bytes == 1 ? own->decode_fp8_hbm : own->decode_bf16_hbm,
                       2 * width * (double)s->pairs * s->n_heads,
                       is_short ? own->decode_short_peak : own->decode_peak);
}

static void
attention_kernel(oct_sink *sink, const char *name, const oct_attention_shape *shape) {
  const oct_profile *profile = sink->cost->profile;
  const gboolean own = is_own(sink->cost) && shape->mla && !shape->prefill;
  oct_price price = own ? own_latent_decode(profile, shape) : oct_price_attention(profile, shape);
  oct_sink_add(sink, name, &price, (double)shape->tokens, shape->n_heads, (double)shape->context);
}

static guint32
kv_element_bytes(const oct_cost *cost) {
  return cost->options.kv_dtype == OCT_DTYPE_FP8 ? 1 : 2;
}

static void
gqa_context(oct_sink *sink, const oct_attention_spec *a, const oct_domain_shape *s) {
  const oct_cost *cost = sink->cost;
  const gboolean window = a->kind == OCT_ATTENTION_WINDOW;
  oct_attention_shape shape = {
      .key_dim = a->head_dim, .value_dim = a->head_dim, .kv_element_bytes = kv_element_bytes(cost)};
  if (s->n_decode > 0) {
    context_part part =
        part_of_context(cost, a, window ? s->decode_window_context : s->decode_context,
                        window ? s->decode_window_pairs : s->decode_pairs);
    shape.n_sequences = s->n_decode;
    shape.n_heads = (guint32)part.heads;
    shape.n_kv_heads = (guint32)part.kv_heads;
    shape.tokens = s->decode_tokens;
    shape.context = part.context;
    shape.pairs = part.pairs;
    attention_kernel(sink, window ? "window.decode" : "gqa.decode", &shape);
  }
  if (s->n_prefill > 0) {
    shape.prefill = TRUE;
    shape.n_sequences = s->n_prefill;
    shape.n_heads = (guint32)divide_up(a->n_heads, cost->parallel.tensor);
    shape.n_kv_heads = (guint32)divide_up(a->n_kv_heads, cost->parallel.tensor);
    shape.tokens = s->prefill_tokens;
    shape.context = window ? s->prefill_window_context : s->prefill_context;
    shape.pairs = window ? s->prefill_window_pairs : s->prefill_pairs;
    if (cost->parallel.decode_context > 1)
      oct_sink_collective(sink, "dcp.gather_kv", &cost->context, OCT_COLLECTIVE_ALL_GATHER,
                          (double)shape.context * shape.n_kv_heads * 2 * a->head_dim *
                              kv_element_bytes(cost));
    attention_kernel(sink, window ? "window.prefill" : "gqa.prefill", &shape);
  }
}

/* Decode works on the latent; prefill expands it to keys and values per head. */
static void
mla_context(oct_sink *sink, const oct_attention_spec *a, const oct_domain_shape *s) {
  const oct_cost *cost = sink->cost;
  const double heads = divide_up(a->n_heads, cost->parallel.tensor);
  const oct_dtype type = cost->spec->types.attention;
  const guint32 latent = a->kv_lora + a->qk_rope;
  oct_attention_shape shape = {.mla = TRUE, .kv_element_bytes = kv_element_bytes(cost)};
  if (s->n_decode > 0) {
    context_part part = part_of_context(cost, a, s->decode_context, s->decode_pairs);
    shape.n_sequences = s->n_decode;
    shape.n_heads = (guint32)part.heads;
    shape.n_kv_heads = 1;
    shape.key_dim = latent;
    shape.value_dim = a->kv_lora;
    shape.tokens = s->decode_tokens;
    shape.context = part.context;
    shape.pairs = part.pairs;
    attention_kernel(sink, "mla.decode", &shape);
  }
  if (s->n_prefill > 0) {
    shape = (oct_attention_shape){.prefill = TRUE,
                                  .n_sequences = s->n_prefill,
                                  .n_heads = (guint32)heads,
                                  .n_kv_heads = (guint32)heads,
                                  .key_dim = a->qk_nope + a->qk_rope,
                                  .value_dim = a->v_head,
                                  .kv_element_bytes = 2,
                                  .tokens = s->prefill_tokens,
                                  .context = s->prefill_context,
                                  .pairs = s->prefill_pairs};
    if (cost->parallel.decode_context > 1)
      oct_sink_collective(sink, "dcp.gather_kv", &cost->context, OCT_COLLECTIVE_ALL_GATHER,
                          (double)s->prefill_context * latent * kv_element_bytes(cost));
    oct_sink_gemm(sink, "mla.expand", type, (double)s->prefill_context,
                  heads * (a->qk_nope + a->v_head), a->kv_lora);
    attention_kernel(sink, "mla.prefill", &shape);
  }
}

/* Recurrent state is read and written once per slice, however many tokens it has. */
static void
kda_context(oct_sink *sink, const oct_attention_spec *a, const oct_domain_shape *s) {
  const oct_profile *profile = sink->cost->profile;
  const double heads = divide_up(a->n_heads, sink->cost->parallel.tensor);
  const double width = heads * a->head_dim, elements = width * a->head_dim;
  const double state_bytes = 2 * (elements * 4 + 3 * width * (a->conv_kernel - 1) * BF16);
  const double token_bytes = width * 6 * BF16; /* q, k, v, decay, output */
  const oct_own_kda *own = &profile->own_kernels.kda;
  if (s->n_decode > 0) {
    const double bytes = s->n_decode * state_bytes + s->decode_tokens * token_bytes;
    const double flops = s->decode_tokens * elements * KDA_FLOPS_PER_ELEMENT;
    oct_price price = oct_price_memory(profile, bytes, flops);
    if (is_own(sink->cost)) /* its arithmetic is in float32, beside the tensor cores */
      price = oct_price_own(profile, own->decode_fixed_s, bytes, own->decode_hbm, 0, 1);
    oct_sink_add(sink, "kda.decode", &price, s->decode_tokens, heads, a->head_dim);
  }
  if (s->n_prefill > 0) {
    double flops = s->prefill_tokens * elements * KDA_FLOPS_PER_ELEMENT;
    double bytes = s->n_prefill * state_bytes + s->prefill_tokens * token_bytes;
    oct_price price = oct_price_memory(profile, bytes, flops);
    double compute_s = flops / (KDA_PREFILL_PEAK * profile->gpu.flops[OCT_MATH_BF16]);
    if (is_own(sink->cost)) {
      price = oct_price_own(profile, own->prefill_fixed_s, bytes, own->decode_hbm, flops,
                            own->prefill_peak);
      /* Chunks of one prompt wait for each other, which nothing but fewer tokens shortens. */
      const double each = (double)s->prefill_tokens / s->n_prefill;
      const double wait = own->prefill_fixed_s + each * own->prefill_token_s - price.seconds;
      price.fixed_s += MAX(wait, 0);
      price.seconds += MAX(wait, 0);
    } else if (compute_s > price.seconds - price.fixed_s) {
      price.seconds = price.fixed_s + compute_s;
      price.part = OCT_PART_COMPUTE;
    }
    oct_sink_add(sink, "kda.prefill", &price, s->prefill_tokens, heads, a->head_dim);
  }
}

void
oct_operators_context(oct_sink *sink, guint a, const oct_domain_shape *shape) {
  const oct_attention_spec *attention = &sink->cost->spec->attention[a];
  if (attention->kind == OCT_ATTENTION_MLA)
    mla_context(sink, attention, shape);
  else if (attention->kind == OCT_ATTENTION_KDA)
    kda_context(sink, attention, shape);
  else
    gqa_context(sink, attention, shape);
}

/* ---------------------------------------------------------------- the rest */

void
oct_operators_embedding(oct_sink *sink, double tokens) {
  const oct_cost *cost = sink->cost;
  oct_sink_memory(sink, "embedding", tokens * cost->spec->hidden * 2 * BF16);
  oct_sink_collective(sink, "embedding.all_reduce", &cost->tensor, OCT_COLLECTIVE_ALL_REDUCE,
                      tokens * cost->spec->hidden * BF16);
}

/* Last norm, logits and sampling of the rows that are wanted. */
void
oct_operators_head(oct_sink *sink, double rows) {
  const oct_cost *cost = sink->cost;
  const oct_model_spec *spec = cost->spec;
  if (rows <= 0)
    return;
  double width = divide_up(spec->vocab, cost->parallel.tensor);
  oct_sink_rows(sink, "head.norm", OCT_TIMED_NORM, spec->hidden, 0, 0,
                rows * spec->hidden * 3 * BF16);
  oct_sink_gemm(sink, "head.logits",
                spec->tied_embeddings ? spec->types.embedding : spec->types.head, rows, width,
                spec->hidden);
  oct_sink_collective(sink, "head.gather", &cost->tensor, OCT_COLLECTIVE_ALL_GATHER,
                      rows * spec->vocab * BF16);
  oct_sink_rows(sink, "head.sample", OCT_TIMED_SAMPLE, spec->vocab, 0, 0,
                rows * spec->vocab * 3 * 4.0);
}

/* Attention residuals: a softmax over the block snapshots and the running sum, with the norm that
 * follows. */
void
oct_operators_mix(oct_sink *sink, guint32 stage, double tokens) {
  const oct_stage_plan *plan = &sink->cost->stages[stage];
  const oct_profile *profile = sink->cost->profile;
  const oct_own_rows *own = &profile->own_kernels.mix;
  const double elements = tokens * sink->cost->spec->hidden;
  guint32 count = sink->count;
  sink->count = plan->n_mixes;
  if (plan->n_mixes > 0 && is_own(sink->cost)) {
    /* The running sum is read and written in float32; what is added and what comes out is BF16. */
    const double bytes = elements * ((plan->mix_sources - 1) * BF16 + 2 * 4 + 2 * BF16);
    oct_price price = oct_price_own(profile, own->fixed_s, bytes, own->hbm, 0, 1);
    oct_sink_add(sink, "attn_res.mix", &price, tokens, 0, 0);
  } else if (plan->n_mixes > 0) {
    oct_sink_memory(sink, "attn_res.mix", elements * (plan->mix_sources + 2) * BF16);
  }
  sink->count = count;
}
