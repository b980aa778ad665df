/* The price of a step: making one (plan of the stages, groups of ranks, tables), and using it.
 *
 * A stage runs its layers one after another, so its time is a sum over kinds of layers, each times
 * how often the stage has it. What depends only on a number of tokens is tabulated for small
 * numbers; what depends on contexts is priced live. With several KV domains every layer waits for
 * the heaviest: the sum takes, per kind, the domain that takes longest.
 */
#include "sim/cost/cost.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/cost/heat.h"
#include "sim/cost/internal.h"

#define TABLE_MAX         1024
#define ROUTING_ALPHA_MAX 4.0

G_DEFINE_QUARK(oct - cost - error - quark, oct_cost_error)

const char *
oct_moe_kernel_name(oct_moe_kernel kernel) {
  static const char *const names[OCT_MOE_KERNEL_COUNT] = {"measured", "target", "own"};
  oct_assert(kernel < OCT_MOE_KERNEL_COUNT);
  return names[kernel];
}

gboolean
oct_moe_kernel_parse(const char *name, oct_moe_kernel *kernel) {
  for (int k = 0; k < OCT_MOE_KERNEL_COUNT; k++)
    if (strcmp(name, oct_moe_kernel_name((oct_moe_kernel)k)) == 0) {
      *kernel = (oct_moe_kernel)k;
      return TRUE;
    }
  return FALSE;
}

/* ---------------------------------------------------------------- making one */

static gboolean
check_options(const oct_cost_options *options, GError **error) {
  if (options->kv_dtype != OCT_DTYPE_BF16 && options->kv_dtype != OCT_DTYPE_FP8) {
    g_set_error(error, OCT_COST_ERROR, OCT_COST_ERROR_UNSUPPORTED,
                "KV of type %s cannot be priced: bfloat16 and fp8 can",
                oct_dtype_name(options->kv_dtype));
    return FALSE;
  }
  if (!(options->routing_alpha >= 0 && options->routing_alpha <= ROUTING_ALPHA_MAX)) {
    g_set_error(error, OCT_COST_ERROR, OCT_COST_ERROR_UNSUPPORTED,
                "routing exponent %g is not within 0 and %g", options->routing_alpha,
                ROUTING_ALPHA_MAX);
    return FALSE;
  }
  if (!(options->scale >= 0 && options->scale <= OCT_COST_SCALE_MAX)) {
    g_set_error(error, OCT_COST_ERROR, OCT_COST_ERROR_UNSUPPORTED,
                "step costs times %g: the factor must be within 0 and %g", options->scale,
                OCT_COST_SCALE_MAX);
    return FALSE;
  }
  return TRUE;
}

static gboolean
is_share(double value) {
  return value > 0 && value <= 1;
}

static gboolean
check_own_kernels(const oct_profile *profile, const oct_cost_options *options, GError **error) {
  const oct_profile_own_kernels *k = &profile->own_kernels;
  if (options->moe_kernel != OCT_MOE_KERNEL_OWN ||
      (is_share(k->kda.decode_hbm) && is_share(k->kda.prefill_peak) &&
       is_share(k->mla.decode_fp8_hbm) && is_share(k->mla.decode_bf16_hbm) &&
       is_share(k->mla.decode_peak) && is_share(k->mla.decode_short_peak) &&
       is_share(k->mxfp4_experts.hbm) && is_share(k->mxfp4_experts.peak) &&
       is_share(k->pairs.hbm) && is_share(k->mix.hbm)))
    return TRUE;
  g_set_error(error, OCT_COST_ERROR, OCT_COST_ERROR_UNSUPPORTED,
              "profile %s has no group [own_kernels] with fractions above 0 and at most 1: own "
              "kernels cannot be priced",
              profile->name);
  return FALSE;
}

static gboolean
check_devices(const oct_cost *cost, const guint16 *devices, GError **error) {
  gboolean used[OCT_PROFILE_GPUS_MAX] = {FALSE};
  const guint32 world = oct_parallel_world(&cost->parallel), count = cost->profile->gpu.count;
  if (world > count) {
    g_set_error(error, OCT_COST_ERROR, OCT_COST_ERROR_LAYOUT, "%u ranks, but %s has %u GPUs", world,
                cost->profile->name, count);
    return FALSE;
  }
  for (guint32 r = 0; r < world; r++) {
    if (devices[r] >= count || used[devices[r]]) {
      g_set_error(error, OCT_COST_ERROR, OCT_COST_ERROR_LAYOUT, "rank %u on GPU %u, which %s", r,
                  devices[r], devices[r] >= count ? "the node does not have" : "is taken");
      return FALSE;
    }
    used[devices[r]] = TRUE;
  }
  return TRUE;
}

/* Attention residuals: how many vectors the mixes of a stage read, and what goes to the next one.
 */
static void
plan_mixes(const oct_model_spec *spec, oct_stage_plan *stage, gboolean last) {
  const guint32 block = spec->attn_res_block;
  stage->send_vectors = last ? 0 : 1;
  if (block == 0)
    return;
  guint64 sources = 0;
  for (guint32 layer = stage->first; layer < stage->first + stage->count; layer++)
    sources += (layer + block - 1) / block + 1 + layer / block + 2;
  stage->n_mixes = 2 * stage->count;
  if (last) {
    sources += (spec->n_layers + block - 1) / block + 1;
    stage->n_mixes++;
  } else {
    stage->send_vectors += (stage->first + stage->count + block - 1) / block;
  }
  stage->mix_sources = (double)sources / stage->n_mixes;
}

static void
plan_stages(oct_cost *cost) {
  const oct_model_spec *spec = cost->spec;
  cost->n_stages = cost->parallel.pipeline;
  for (guint32 s = 0; s < cost->n_stages; s++) {
    oct_stage_plan *stage = &cost->stages[s];
    oct_parallel_stage(spec, &cost->parallel, s, &stage->first, &stage->count);
    for (guint32 layer = stage->first; layer < stage->first + stage->count; layer++) {
      stage->n_attention[spec->layers[layer].attention]++;
      stage->n_ffn[spec->layers[layer].ffn]++;
    }
    plan_mixes(spec, stage, s == cost->n_stages - 1);
  }
}

/* The slowest of the groups of `n` consecutive ranks from `first` on, `groups` of them. */
static gboolean
add_groups(const oct_cost *cost, const guint16 *devices, guint32 first, guint32 n, guint32 groups,
           oct_group *worst, GError **error) {
  for (guint32 g = 0; g < groups; g++) {
    oct_group group;
    if (!oct_group_init(&group, cost->profile, devices + first + g * n, n, error))
      return FALSE;
    *worst = worst->n == 0 ? group : oct_group_worse(worst, &group);
  }
  return TRUE;
}

static gboolean
plan_groups(oct_cost *cost, const guint16 *devices, GError **error) {
  const oct_parallel *p = &cost->parallel;
  const guint32 stage_ranks = p->tensor * p->data;
  for (guint32 s = 0; s < p->pipeline; s++) {
    const guint32 first = s * stage_ranks;
    if (!add_groups(cost, devices, first, p->tensor, p->data, &cost->tensor, error) ||
        !add_groups(cost, devices, first, p->decode_context, stage_ranks / p->decode_context,
                    &cost->context, error) ||
        (cost->expert_ranks > 1 && p->data > 1 &&
         !add_groups(cost, devices, first, stage_ranks, 1, &cost->expert, error)))
      return FALSE;
    for (guint32 r = 0; s > 0 && r < stage_ranks; r++) {
      const guint16 pair[2] = {devices[first - stage_ranks + r], devices[first + r]};
      if (!add_groups(cost, pair, 0, 2, 1, &cost->send, error))
        return FALSE;
    }
  }
  if (!cost->tensor.spans && !cost->context.spans && !cost->expert.spans)
    return TRUE;
  g_set_error(error, OCT_COST_ERROR, OCT_COST_ERROR_UNSUPPORTED,
              "ranks that exchange in every layer are in several nodes of %s, whose collectives "
              "were not measured: tensor and expert parallelism within a node, stages, replicas "
              "and pools across nodes",
              cost->profile->name);
  return FALSE;
}

static void
plan_experts(oct_cost *cost) {
  for (guint32 f = 0; f < cost->spec->n_ffn; f++) {
    const oct_ffn_spec *ffn = &cost->spec->ffn[f];
    if (ffn->kind == OCT_FFN_DENSE)
      continue;
    const oct_cost_options *o = &cost->options;
    if (o->routing_balanced)
      oct_routing_init_balanced(&cost->routing[f], ffn->n_experts, ffn->top_k, cost->expert_ranks);
    else if (o->routing_weights != NULL && o->n_routing_weights == ffn->n_experts)
      oct_routing_init_measured(&cost->routing[f], ffn->n_experts, ffn->top_k, cost->expert_ranks,
                                o->routing_weights);
    else
      oct_routing_init(&cost->routing[f], ffn->n_experts, ffn->top_k, cost->expert_ranks,
                       o->routing_alpha);
    oct_moe_grid_fill(cost, f);
  }
}

/* ---------------------------------------------------------------- components */

static void
component(oct_sink *sink, guint c, double tokens) {
  if (c < OCT_COMPONENT_DECODE)
    oct_operators_attention(sink, c - OCT_COMPONENT_ATTENTION, tokens);
  else if (c < OCT_COMPONENT_FFN)
    oct_operators_decode(sink, c - OCT_COMPONENT_DECODE, tokens);
  else if (c < OCT_COMPONENT_EMBEDDING)
    oct_operators_ffn(sink, c - OCT_COMPONENT_FFN, tokens, tokens);
  else if (c == OCT_COMPONENT_EMBEDDING)
    oct_operators_embedding(sink, tokens);
  else
    oct_operators_head(sink, tokens);
}

static gboolean
is_tabulated(const oct_cost *cost, guint c) {
  if (c < OCT_COMPONENT_DECODE)
    return c - OCT_COMPONENT_ATTENTION < cost->spec->n_attention;
  if (c < OCT_COMPONENT_FFN)
    return c - OCT_COMPONENT_DECODE < cost->spec->n_attention;
  if (c < OCT_COMPONENT_EMBEDDING)
    return c - OCT_COMPONENT_FFN < cost->spec->n_ffn &&
           !oct_cost_is_joint(cost, c - OCT_COMPONENT_FFN);
  return TRUE;
}

static void
fill_tables(oct_cost *cost) {
  const guint32 batch = cost->profile->engine.graph_max_batch;
  cost->table_graph = !cost->options.eager && batch > 0;
  const guint32 n = cost->table_graph ? MIN(batch, TABLE_MAX) : TABLE_MAX;
  for (guint c = 0; c < OCT_COMPONENT_COUNT; c++) {
    if (!is_tabulated(cost, c))
      continue;
    cost->table[c] = g_new0(oct_sum, n + 1);
    for (guint32 tokens = 1; tokens <= n; tokens++) {
      oct_sink sink = {
          .cost = cost, .graph = cost->table_graph, .sum = &cost->table[c][tokens], .count = 1};
      component(&sink, c, tokens);
    }
  }
  cost->n_table = n;
}

/* Adds `count` times a component, from the table if it may be. */
static void
add_component(oct_sink *sink, guint c, double tokens, guint32 count) {
  const oct_cost *cost = sink->cost;
  if (count == 0 || tokens <= 0)
    return;
  if (sink->list == NULL && tokens <= cost->n_table && sink->graph == cost->table_graph &&
      cost->table[c] != NULL) {
    oct_sum_add(sink->sum, &cost->table[c][(guint32)tokens], count);
    return;
  }
  sink->count = count;
  component(sink, c, tokens);
}

static void fill_decode_tables(oct_cost *cost);

/* ---------------------------------------------------------------- life cycle */

oct_cost *
oct_cost_new(const oct_model_spec *spec, const oct_parallel *parallel, const guint16 *devices,
             const oct_profile *profile, const oct_cost_options *options, GError **error) {
  guint16 identity[OCT_PROFILE_GPUS_MAX];
  for (guint16 i = 0; i < OCT_PROFILE_GPUS_MAX; i++)
    identity[i] = i;
  g_autoptr(GError) reason = NULL;
  if (!oct_parallel_check(spec, parallel, &reason)) {
    g_set_error(error, OCT_COST_ERROR, OCT_COST_ERROR_LAYOUT, "%s", reason->message);
    return NULL;
  }
  g_autoptr(oct_cost) cost = g_new0(oct_cost, 1);
  cost->spec = spec;
  cost->profile = profile;
  cost->parallel = *parallel;
  cost->options = *options;
  cost->options.routing_weights =
      g_memdup2(options->routing_weights, options->n_routing_weights * sizeof(double));
  cost->expert_ranks = parallel->expert_parallel ? parallel->tensor * parallel->data : 1;
  if (devices == NULL)
    devices = identity;
  if (!check_options(options, error) || !check_own_kernels(profile, options, error) ||
      !check_devices(cost, devices, error))
    return NULL;
  plan_stages(cost);
  if (!plan_groups(cost, devices, error))
    return NULL;
  plan_experts(cost);
  fill_tables(cost);
  fill_decode_tables(cost);
  return g_steal_pointer(&cost);
}

void
oct_cost_free(oct_cost *cost) {
  if (cost == NULL)
    return;
  for (guint f = 0; f < OCT_FFN_COUNT; f++) {
    oct_routing_clear(&cost->routing[f]);
    g_free(cost->moe[f]);
  }
  for (guint c = 0; c < OCT_COMPONENT_COUNT; c++)
    g_free(cost->table[c]);
  for (guint32 s = 0; s < OCT_COST_STAGES_MAX; s++)
    g_free(cost->decode_table[s]);
  g_free((double *)cost->options.routing_weights);
  g_free(cost);
}

/* ---------------------------------------------------------------- a step */

guint64
oct_domain_tokens(const oct_domain_shape *shape) {
  return (guint64)shape->decode_tokens + shape->prefill_tokens;
}

guint32
oct_cost_window(const oct_model_spec *spec) {
  guint32 window = 0;
  for (guint32 a = 0; a < spec->n_attention; a++)
    if (spec->attention[a].kind == OCT_ATTENTION_WINDOW)
      window = MAX(window, spec->attention[a].window);
  return window;
}

/* What all domains have together, and the most that one has. */
typedef struct step_totals {
  guint64 all_tokens, tokens, rows;
  guint64 n_decode, decode_context; /* of all domains */
  gboolean decode;                  /* no domain prefills */
  gboolean verifies;                /* some decodes have several tokens */
} step_totals;

static step_totals
totals_of(const oct_step_shape *shape) {
  step_totals t = {.decode = TRUE};
  oct_assert(shape->n_domains <= OCT_STEP_DOMAINS_MAX);
  for (guint32 d = 0; d < shape->n_domains; d++) {
    const oct_domain_shape *domain = &shape->domains[d];
    guint64 tokens = oct_domain_tokens(domain);
    t.all_tokens += tokens;
    t.tokens = MAX(t.tokens, tokens);
    t.rows = MAX(t.rows, domain->sample_rows);
    t.n_decode += domain->n_decode;
    t.decode_context += domain->decode_context;
    t.decode &= domain->n_prefill == 0;
    t.verifies |= domain->decode_tokens > domain->n_decode;
  }
  return t;
}

static gboolean
is_graph(const oct_cost *cost, const oct_step_shape *shape, const step_totals *t) {
  return t->decode && t->tokens > 0 && !cost->options.eager &&
         t->tokens <= cost->profile->engine.graph_max_batch && !(shape->flags & OCT_SHAPE_EAGER);
}

gboolean
oct_cost_is_graph(const oct_cost *cost, const oct_step_shape *shape) {
  step_totals t = totals_of(shape);
  return is_graph(cost, shape, &t);
}

static void
add_attention_of(oct_sink *sink, guint a, const oct_domain_shape *domain, guint32 count) {
  add_component(sink, OCT_COMPONENT_ATTENTION + a, (double)oct_domain_tokens(domain), count);
  add_component(sink, OCT_COMPONENT_DECODE + a, domain->decode_tokens, count);
  sink->count = count;
  oct_operators_context(sink, a, domain);
}

/* The layers with attention kind `a`: of the domain that takes longest. */
static void
add_attention(oct_sink *sink, guint a, const oct_step_shape *shape, guint32 count) {
  guint32 heaviest = 0;
  double longest = -1;
  for (guint32 d = 0; shape->n_domains > 1 && d < shape->n_domains; d++) {
    oct_sum sum = {0};
    oct_sink one = {.cost = sink->cost, .graph = sink->graph, .sum = &sum};
    add_attention_of(&one, a, &shape->domains[d], 1);
    double seconds = oct_sum_seconds(&sum);
    if (seconds > longest) {
      longest = seconds;
      heaviest = d;
    }
  }
  add_attention_of(sink, a, &shape->domains[heaviest], count);
}

/* What a stage does besides its attention layers: launch, embedding, FFNs, mixes, head. */
static void
walk_rest(oct_sink *sink, guint32 s, const step_totals *t) {
  const oct_cost *cost = sink->cost;
  const oct_stage_plan *stage = &cost->stages[s];
  const double tokens = (double)t->tokens;
  if (sink->graph) {
    oct_price launch = {.seconds = cost->profile->launch.graph_launch_s,
                        .fixed_s = cost->profile->launch.graph_launch_s,
                        .part = OCT_PART_FIXED};
    sink->count = 1;
    oct_sink_add(sink, "graph.launch", &launch, 0, 0, 0);
  }
  if (s == 0)
    add_component(sink, OCT_COMPONENT_EMBEDDING, tokens, 1);
  for (guint f = 0; f < cost->spec->n_ffn; f++) {
    if (!oct_cost_is_joint(cost, f)) {
      add_component(sink, OCT_COMPONENT_FFN + f, tokens, stage->n_ffn[f]);
    } else if (stage->n_ffn[f] > 0) {
      sink->count = stage->n_ffn[f];
      oct_operators_ffn(sink, f, tokens, (double)t->all_tokens);
    }
  }
  oct_operators_mix(sink, s, tokens);
  if (s == cost->n_stages - 1)
    add_component(sink, OCT_COMPONENT_HEAD, (double)t->rows, 1);
}

double
oct_cost_miss_bytes(const oct_cost *cost, guint32 stage, guint32 missed) {
  const oct_parallel *p = &cost->parallel;
  const oct_stage_plan *plan = &cost->stages[stage];
  const guint32 ranks = p->expert_parallel ? p->tensor * p->data : p->tensor;
  double bytes = 0;
  for (guint32 l = plan->first; l < plan->first + plan->count && bytes <= 0; l++)
    bytes = (double)oct_model_expert(cost->spec, l).bytes;
  return p->expert_parallel ? (double)((missed + ranks - 1) / ranks) * bytes
                            : (double)missed * bytes / ranks;
}

static void
walk_misses(oct_sink *sink, double bytes) {
  const oct_profile *profile = sink->cost->profile;
  if (!(bytes > 0))
    return;
  oct_price copy = {.seconds = oct_profile_copy_s(profile, TRUE, bytes / profile->pcie.kernel_read),
                    .host_bytes = bytes,
                    .part = OCT_PART_COPY};
  sink->count = 1;
  oct_sink_add(sink, "moe.expert_miss", &copy, 0, 0, 0);
}

/* Every operator of a stage, into the sink. */
static void
walk_stage(oct_sink *sink, guint32 s, const oct_step_shape *shape, const step_totals *t) {
  const oct_cost *cost = sink->cost;
  sink->stage = s;
  walk_rest(sink, s, t);
  for (guint a = 0; a < cost->spec->n_attention; a++)
    if (cost->stages[s].n_attention[a] > 0)
      add_attention(sink, a, shape, cost->stages[s].n_attention[a]);
  walk_misses(sink, shape->expert_miss_bytes[s]);
}

/* The same for a step of plain decodes, which is most steps: all but the attention kernels is in a
 * table. */
static void
walk_decode_stage(oct_sink *sink, guint32 s, const oct_step_shape *shape) {
  const oct_cost *cost = sink->cost;
  *sink->sum = cost->decode_table[s][shape->domains[0].n_decode];
  for (guint a = 0; a < cost->spec->n_attention; a++)
    if (cost->stages[s].n_attention[a] > 0) {
      sink->count = cost->stages[s].n_attention[a];
      oct_operators_context(sink, a, &shape->domains[0]);
    }
  walk_misses(sink, shape->expert_miss_bytes[s]);
}

static gboolean
is_in_decode_table(const oct_cost *cost, const oct_step_shape *shape, gboolean graph) {
  const oct_domain_shape *domain = &shape->domains[0];
  return shape->n_domains == 1 && graph == cost->table_graph && domain->n_decode > 0 &&
         domain->n_decode <= cost->n_table && oct_domain_shape_is_decode(domain) &&
         domain->sample_rows == domain->n_decode;
}

static void
fill_decode_tables(oct_cost *cost) {
  for (guint32 s = 0; s < cost->n_stages; s++) {
    cost->decode_table[s] = g_new0(oct_sum, cost->n_table + 1);
    for (guint32 n = 1; n <= cost->n_table; n++) {
      oct_sink sink = {.cost = cost, .graph = cost->table_graph, .sum = &cost->decode_table[s][n]};
      step_totals t = {.all_tokens = n, .tokens = n, .rows = n, .decode = TRUE};
      walk_rest(&sink, s, &t);
      for (guint a = 0; a < cost->spec->n_attention; a++) {
        add_component(&sink, OCT_COMPONENT_ATTENTION + a, n, cost->stages[s].n_attention[a]);
        add_component(&sink, OCT_COMPONENT_DECODE + a, n, cost->stages[s].n_attention[a]);
      }
    }
  }
}

/* What whole steps took over the sum of their kernels, on this machine. */
static double
step_ratio(const oct_cost *cost, gboolean graph, const step_totals *t) {
  const oct_ratio_step step = {.graph = graph,
                               .verifies = t->verifies && t->decode,
                               .mixed = t->n_decode > 0 && !t->decode,
                               .tokens = (double)t->tokens,
                               .context = (double)t->decode_context / (double)MAX(t->n_decode, 1)};
  return oct_step_ratio_of(&cost->profile->step_ratio, &step);
}

/* Seconds by part, times the ratio. What of a part falls below the time in which memory moves its
 * bytes is taken from the fixed part instead: kernels that overlap hide launches, not bytes. */
static void
scale_groups(const oct_cost *cost, const oct_sum *sum, double ratio, double *seconds) {
  double fixed = sum->seconds[OCT_PART_FIXED] * ratio;
  for (guint g = 0; g < OCT_COST_GROUPS; g++) {
    const double floor_s = sum->hbm_bytes[g] / cost->profile->gpu.hbm_bytes_per_s;
    const double scaled = sum->seconds[g] * ratio;
    seconds[g] = MAX(scaled, MIN(sum->seconds[g], floor_s));
    fixed -= g == OCT_PART_FIXED ? 0 : seconds[g] - scaled;
  }
  seconds[OCT_PART_FIXED] = MAX(fixed, 0);
}

/* Seconds by part to whole nanoseconds, such that the parts add up to the rounded sum. */
static void
round_groups(const oct_cost *cost, const oct_sum *sum, double ratio, oct_stage_price *out) {
  const double scale = cost->options.scale > 0 ? cost->options.scale : 1;
  double scaled[OCT_COST_GROUPS], seconds = 0;
  gint64 before = 0;
  scale_groups(cost, sum, ratio, scaled);
  for (guint g = 0; g < OCT_COST_GROUPS; g++) {
    seconds += scaled[g];
    gint64 ns = oct_cost_ns(seconds * scale);
    out->groups[g] =
        (oct_cost_group){.ns = ns - before, .flops = sum->flops[g], .hbm_bytes = sum->hbm_bytes[g]};
    before = ns;
  }
  out->groups[OCT_PART_COLLECTIVE].nvlink_bytes = sum->nvlink_bytes;
  out->groups[OCT_PART_COPY].host_bytes = sum->host_bytes;
  out->ns = before;
}

static void
price_send(const oct_cost *cost, guint32 s, double tokens, oct_stage_price *out) {
  out->send_bytes = tokens * cost->spec->hidden * 2.0 * cost->stages[s].send_vectors;
  out->send_ns = oct_cost_ns(oct_price_send(cost->profile, &cost->send, out->send_bytes));
}

void
oct_cost_step(const oct_cost *cost, const oct_step_shape *shape, oct_step_price *out) {
  const step_totals t = totals_of(shape);
  out->n_stages = cost->n_stages;
  out->graph = is_graph(cost, shape, &t);
  const gboolean decode = is_in_decode_table(cost, shape, out->graph);
  const double ratio = step_ratio(cost, out->graph, &t);
  for (guint32 s = 0; s < cost->n_stages; s++) {
    oct_sum sum = {0};
    oct_sink sink = {.cost = cost, .graph = out->graph, .sum = &sum};
    if (decode)
      walk_decode_stage(&sink, s, shape);
    else if (t.all_tokens > 0)
      walk_stage(&sink, s, shape, &t);
    round_groups(cost, &sum, ratio, &out->stages[s]);
    price_send(cost, s, (double)t.tokens, &out->stages[s]);
  }
}

const oct_heat_law *
oct_cost_heat(const oct_cost *cost) {
  return oct_heat_is_known(&cost->profile->heat) ? &cost->profile->heat : NULL;
}

/* ---------------------------------------------------------------- host */

const oct_engine_times *
oct_cost_engine(const oct_cost *cost) {
  return &cost->profile->engine;
}

gint64
oct_cost_step_host_ns(const oct_cost *cost, guint32 n_seqs) {
  const oct_engine_times *engine = &cost->profile->engine;
  return engine->step_host_ns + n_seqs * engine->step_host_per_seq_ns;
}

/* ---------------------------------------------------------------- inspect */

guint
oct_cost_operators(const oct_cost *cost, const oct_step_shape *shape, oct_cost_operator *out,
                   guint max) {
  const step_totals t = totals_of(shape);
  oct_cost_operator none;
  oct_sink sink = {
      .cost = cost, .graph = is_graph(cost, shape, &t), .list = max > 0 ? out : &none, .max = max};
  for (guint32 s = 0; s < cost->n_stages && t.all_tokens > 0; s++)
    walk_stage(&sink, s, shape, &t);
  const double ratio = step_ratio(cost, sink.graph, &t);
  for (guint i = 0; i < MIN(sink.n, max); i++) {
    out[i].seconds *= ratio;
    out[i].fixed_s *= ratio;
  }
  return sink.n;
}

double
oct_cost_distinct_experts(const oct_cost *cost, guint64 tokens, gboolean heaviest_rank) {
  for (guint f = 0; f < cost->spec->n_ffn; f++)
    if (cost->routing[f].n_experts > 0)
      return heaviest_rank ? oct_routing_heaviest(&cost->routing[f], (double)tokens)
                           : oct_routing_distinct(&cost->routing[f], (double)tokens);
  return 0;
}
