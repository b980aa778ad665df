/* Claims against what no kernel can beat: sim/cost's roofline floor of the model's exact bytes and
 * operations on the node's datasheet rates. One token per sequence and step, no speculation.
 *
 * Two floors differ for a mixture of experts. At any routing every token of a step chooses the same
 * experts: nothing can be faster, so a claim beyond it is impossible. Under uniform routing a step
 * touches as many as independent tokens do: a claim beyond that contradicts the usual. */
#include <math.h>
#include <string.h>

#include "sim/audit/internal.h"

/* A step of `batch` decodes at a mean context. */
typedef struct step_floor {
  oct_cost_floor_parts parts;            /* bytes, summed over stages */
  double least_s, uniform_s;             /* over all stages */
  double least_stage_s, uniform_stage_s; /* the slowest stage */
} step_floor;

static void
decode_shape(const oct_audit_group *g, const oct_cost *cost, guint64 batch, double context,
             oct_step_shape *shape) {
  const guint32 window = oct_cost_window(g->spec);
  const guint32 domains = g->parallel.data;
  memset(shape, 0, sizeof *shape);
  (void)cost;
  shape->n_domains = domains;
  for (guint32 d = 0; d < domains; d++) {
    guint64 n = batch / domains + (d < batch % domains);
    oct_domain_shape *s = &shape->domains[d];
    s->n_decode = s->decode_tokens = s->sample_rows = (guint32)n;
    s->decode_context = s->decode_pairs = (guint64)((double)n * context);
    s->decode_window_context = s->decode_window_pairs =
        window > 0 ? (guint64)((double)n * MIN(context, window)) : s->decode_context;
  }
}

static void
floor_of(const oct_audit_group *g, const oct_cost *cost, guint32 stages, guint64 batch,
         double context, step_floor *f) {
  const double rate = g->profile->gpu.hbm_bytes_per_s;
  oct_step_shape shape;
  decode_shape(g, cost, MAX(1, batch), context, &shape);
  *f = (step_floor){0};
  for (guint32 s = 0; s < stages; s++) {
    oct_cost_floor_parts p;
    oct_cost_floor_split(cost, &shape, s, &p);
    double cache = p.state + p.kv, flops_s = oct_cost_floor_flops_s(cost, &shape, s);
    double least = p.weights + p.experts_least + cache, usual = p.weights + p.experts + cache;
    double least_s = MAX(least / rate, flops_s), usual_s = MAX(usual / rate, flops_s);
    f->parts.weights += p.weights;
    f->parts.experts += p.experts;
    f->parts.experts_least += p.experts_least;
    f->parts.state += p.state;
    f->parts.kv += p.kv;
    f->least_s += least_s;
    f->uniform_s += usual_s;
    f->least_stage_s = MAX(f->least_stage_s, least_s);
    f->uniform_stage_s = MAX(f->uniform_stage_s, usual_s);
  }
}

/* Tokens a second that `batch` sequences of one instance can have at most: all in one step, or cut
 * into as many as keep the stages busy. */
static double
most_tokens(const oct_audit_group *g, const oct_cost *cost, guint32 stages, double batch,
            double context, gboolean uniform) {
  double most = 0;
  for (guint32 m = 1; m <= stages; m++) {
    step_floor f;
    floor_of(g, cost, stages, (guint64)(batch / m), context, &f);
    double through = uniform ? f.uniform_s : f.least_s;
    double stage = m * (uniform ? f.uniform_stage_s : f.least_stage_s);
    most = MAX(most, batch / MAX(through, stage));
  }
  return most;
}

static double
replicas_of(const oct_audit_group *g) {
  return oct_audit_has(g, OCT_AUDIT_REPLICAS) ? g->values[OCT_AUDIT_REPLICAS] : 1;
}

/* Tokens that a sequence has before it on average while it decodes. */
static double
decode_context(const oct_audit_group *g) {
  double input = oct_audit_has(g, OCT_AUDIT_INPUT) ? g->values[OCT_AUDIT_INPUT] : 1;
  double output = oct_audit_has(g, OCT_AUDIT_OUTPUT) ? g->values[OCT_AUDIT_OUTPUT] : 1;
  return input + output / 2;
}

static char *
seconds(double value) {
  return oct_quantity_format(value, &oct_dimension_seconds);
}

static char *
bytes(double value) {
  return oct_quantity_format(value, &oct_dimension_bytes);
}

static const char *
experts_or_not(const oct_audit_group *g, const char *with) {
  for (guint i = 0; i < g->spec->n_ffn; i++)
    if (g->spec->ffn[i].n_experts > 0)
      return with;
  return "";
}

/* ---------------------------------------------------------------- latency */

static void
check_tokens_latency(oct_audit_group *g, oct_audit_key key, double tokens) {
  if (!oct_audit_owns(g, key))
    return;
  step_floor one;
  floor_of(g, g->cost, g->parallel.pipeline, 1, decode_context(g), &one);
  const double hbm = g->profile->gpu.hbm_bytes_per_s;
  double weights = one.parts.weights + one.parts.experts_least;
  double least = one.least_s * tokens;
  gboolean good = least <= g->values[key];
  g_autofree char *read = bytes(weights), *step = seconds(weights / hbm);
  g_autofree char *bare = seconds(weights / hbm * tokens), *all = seconds(least);
  g_autofree char *said = oct_audit_format(key, g->values[key]);
  g_autofree char *rate = oct_quantity_format(hbm, &oct_dimension_bytes_per_s);
  oct_audit_note(g, g->entries[key], "bandwidth",
                 good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_IMPOSSIBLE,
                 "a step reads at least %s of weights%s%s: %s at %s; %.0f %s at least %s, "
                 "with their cache %s; claimed are %s",
                 read, g->parallel.pipeline > 1 ? " on the GPUs that a token passes" : " on a GPU",
                 experts_or_not(g, ", at any routing"), step, rate, tokens,
                 tokens > 1 ? "tokens take" : "token takes", bare, all, said);
}

/* A prompt's arithmetic on all GPUs of an instance. */
static double
prefill_seconds(const oct_audit_group *g, double tokens) {
  oct_step_shape shape = {.n_domains = 1};
  oct_slice slice = {
      .n_tokens = (guint32)tokens, .flags = OCT_SLICE_PREFILL, .sample = OCT_SAMPLE_LAST};
  double least = 0;
  oct_domain_shape_add(&shape.domains[0], &slice, 0, oct_cost_window(g->spec));
  for (guint32 s = 0; s < g->parallel.pipeline; s++)
    least += oct_cost_floor_flops_s(g->cost, &shape, s);
  return least;
}

static void
check_first_token(oct_audit_group *g, oct_audit_key key) {
  if (!oct_audit_owns(g, key) || !oct_audit_has(g, OCT_AUDIT_INPUT))
    return;
  double least = prefill_seconds(g, g->values[OCT_AUDIT_INPUT]);
  gboolean good = least <= g->values[key];
  g_autofree char *all = seconds(least), *said = oct_audit_format(key, g->values[key]);
  oct_audit_note(g, g->entries[key], "arithmetic",
                 good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_IMPOSSIBLE,
                 "a prompt of %.0f tokens takes at least %s at the GPUs' peak, claimed are %s",
                 g->values[OCT_AUDIT_INPUT], all, said);
}

/* ---------------------------------------------------------------- throughput */

static void
check_rate_of(oct_audit_group *g, oct_audit_key key, const oct_cost *cost, guint32 stages,
              const char *layout) {
  double users = g->values[OCT_AUDIT_CONCURRENCY], replicas = replicas_of(g);
  double batch = users / replicas, context = decode_context(g), claimed = g->values[key];
  const double rate = g->profile->gpu.hbm_bytes_per_s;
  step_floor f;
  floor_of(g, cost, stages, (guint64)batch, context, &f);
  double least = replicas * most_tokens(g, cost, stages, batch, context, FALSE);
  double usual = replicas * most_tokens(g, cost, stages, batch, context, TRUE);
  g_autofree char *least_step = seconds(f.least_s), *usual_step = seconds(f.uniform_s);
  g_autofree char *least_text = oct_audit_format(key, least);
  g_autofree char *usual_text = oct_audit_format(key, usual);
  g_autofree char *said = oct_audit_format(key, claimed);
  g_autofree char *any =
      g_strdup_printf("%sweights %.1f, state %.1f, KV %.1f", experts_or_not(g, "at any routing "),
                      1e3 * (f.parts.weights + f.parts.experts_least) / rate,
                      1e3 * f.parts.state / rate, 1e3 * f.parts.kv / rate);
  oct_audit_note(g, g->entries[key], "bandwidth",
                 claimed <= least ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_IMPOSSIBLE,
                 "%s, a step of %.0f takes at least %s (ms: %s): at most %s, claimed are %s",
                 layout, batch, least_step, any, least_text, said);
  if (*experts_or_not(g, "x") == '\0')
    return;
  oct_audit_note(g, g->entries[key], "bandwidth, uniform routing",
                 claimed <= usual ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
                 "%s, a step of %.0f takes at least %s (ms: weights %.1f, state %.1f, KV %.1f): at "
                 "most %s, claimed are %s",
                 layout, batch, usual_step, 1e3 * (f.parts.weights + f.parts.experts) / rate,
                 1e3 * f.parts.state / rate, 1e3 * f.parts.kv / rate, usual_text, said);
}

static void
check_throughput(oct_audit_group *g) {
  g_autofree char *layout =
      g_strdup_printf("TP%u x PP%u", g->parallel.tensor, g->parallel.pipeline);
  if (!oct_audit_has(g, OCT_AUDIT_CONCURRENCY))
    return;
  if (oct_audit_owns(g, OCT_AUDIT_OUTPUT_RATE))
    check_rate_of(g, OCT_AUDIT_OUTPUT_RATE, g->cost, g->parallel.pipeline, layout);
  if (!oct_audit_owns(g, OCT_AUDIT_OUTPUT_RATE_BEFORE))
    return;
  oct_parallel before = g->parallel;
  if (oct_audit_has(g, OCT_AUDIT_TENSOR_BEFORE))
    before.tensor = (guint32)g->values[OCT_AUDIT_TENSOR_BEFORE];
  before.pipeline = oct_audit_has(g, OCT_AUDIT_PIPELINE_BEFORE)
                        ? (guint32)g->values[OCT_AUDIT_PIPELINE_BEFORE]
                        : 1;
  g_autoptr(oct_cost) cost =
      oct_audit_cost(g, &before, oct_audit_kv_dtype(g->words[OCT_AUDIT_KV_TYPE]));
  g_autofree char *label = g_strdup_printf("TP%u x PP%u", before.tensor, before.pipeline);
  if (cost != NULL)
    check_rate_of(g, OCT_AUDIT_OUTPUT_RATE_BEFORE, cost, before.pipeline, label);
}

/* A faster layout is no wonder where the prices of both layouts say so too. */
static void
check_speed_up(oct_audit_group *g) {
  if (!oct_audit_owns(g, OCT_AUDIT_OUTPUT_RATE) ||
      !oct_audit_has(g, OCT_AUDIT_OUTPUT_RATE_BEFORE) || !oct_audit_has(g, OCT_AUDIT_TENSOR_BEFORE))
    return;
  oct_parallel before = g->parallel;
  before.tensor = (guint32)g->values[OCT_AUDIT_TENSOR_BEFORE];
  before.pipeline = oct_audit_has(g, OCT_AUDIT_PIPELINE_BEFORE)
                        ? (guint32)g->values[OCT_AUDIT_PIPELINE_BEFORE]
                        : 1;
  g_autoptr(oct_cost) cost =
      oct_audit_cost(g, &before, oct_audit_kv_dtype(g->words[OCT_AUDIT_KV_TYPE]));
  if (cost == NULL || !oct_audit_has(g, OCT_AUDIT_CONCURRENCY))
    return;
  double batch = g->values[OCT_AUDIT_CONCURRENCY] / replicas_of(g), rate[2];
  const oct_cost *costs[2] = {cost, g->cost};
  for (int i = 0; i < 2; i++) {
    guint32 stages = i == 0 ? before.pipeline : g->parallel.pipeline;
    oct_step_shape shape;
    oct_step_price price;
    gint64 slowest = 0;
    decode_shape(g, costs[i], MAX(1, (guint64)(batch / stages)), decode_context(g), &shape);
    oct_cost_step(costs[i], &shape, &price);
    for (guint32 s = 0; s < price.n_stages; s++)
      slowest = MAX(slowest, price.stages[s].ns + price.stages[s].send_ns);
    rate[i] = floor(batch / stages) / ((double)slowest / 1e9);
  }
  double claimed = g->values[OCT_AUDIT_OUTPUT_RATE] / g->values[OCT_AUDIT_OUTPUT_RATE_BEFORE];
  double priced = rate[1] / rate[0];
  gboolean good = claimed <= priced * 2 && claimed >= priced / 2;
  oct_audit_note(g, g->entries[OCT_AUDIT_OUTPUT_RATE], "speed-up",
                 good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
                 "decode steps are priced at %.0f tok/s in TP%u x PP%u and %.0f tok/s in TP%u x "
                 "PP%u on %s: %.2f times; claimed are %.2f times",
                 rate[0], before.tensor, before.pipeline, rate[1], g->parallel.tensor,
                 g->parallel.pipeline, g->profile->name, priced, claimed);
}

/* ---------------------------------------------------------------- rate of requests */

/* GPUs' arithmetic for prompts and answers, as a share of what they can do. */
static void
check_arithmetic(oct_audit_group *g) {
  if (!oct_audit_owns(g, OCT_AUDIT_RATE) || !oct_audit_has(g, OCT_AUDIT_INPUT) ||
      !oct_audit_has(g, OCT_AUDIT_OUTPUT))
    return;
  double input = g->values[OCT_AUDIT_INPUT], output = g->values[OCT_AUDIT_OUTPUT], decode = 0;
  oct_step_shape shape;
  decode_shape(g, g->cost, 1, decode_context(g), &shape);
  for (guint32 s = 0; s < g->parallel.pipeline; s++)
    decode += oct_cost_floor_flops_s(g->cost, &shape, s);
  /* Stages work at the same time: a request takes its share of each. */
  const double stages = g->parallel.pipeline, load = g->values[OCT_AUDIT_RATE] / replicas_of(g);
  double prompt_s = prefill_seconds(g, input) / stages, answer_s = decode * output / stages;
  g_autofree char *prompt = seconds(prompt_s), *answer = seconds(answer_s);
  g_autofree char *rate = oct_audit_format(OCT_AUDIT_RATE, g->values[OCT_AUDIT_RATE]);
  oct_audit_note(
      g, g->entries[OCT_AUDIT_RATE], "arithmetic",
      load * answer_s <= 1 ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_IMPOSSIBLE,
      "an answer of %.0f tokens takes at least %s of all GPUs at their peak; %s are %.0f "
      "%% of it",
      output, answer, rate, 100 * load * answer_s);
  oct_audit_note(g, g->entries[OCT_AUDIT_RATE], "arithmetic, no prefix hits",
                 load * (prompt_s + answer_s) <= 1 ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
                 "with a prompt of %.0f tokens, %s more: %.0f %%", input, prompt,
                 100 * load * (prompt_s + answer_s));
}

/* Little's law with the shortest possible stay. */
static void
check_stay(oct_audit_group *g) {
  if (!oct_audit_owns(g, OCT_AUDIT_RATE) || !oct_audit_has(g, OCT_AUDIT_CONCURRENCY) ||
      !oct_audit_has(g, OCT_AUDIT_OUTPUT))
    return;
  step_floor one;
  floor_of(g, g->cost, g->parallel.pipeline, 1, decode_context(g), &one);
  double stay = one.least_s * g->values[OCT_AUDIT_OUTPUT], rate = g->values[OCT_AUDIT_RATE];
  double users = g->values[OCT_AUDIT_CONCURRENCY];
  g_autofree char *rate_text = oct_audit_format(OCT_AUDIT_RATE, rate), *stay_text = seconds(stay);
  oct_audit_note(g, g->entries[OCT_AUDIT_RATE], "little's law, shortest stay",
                 rate * stay <= users ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_IMPOSSIBLE,
                 "%s x %s that a request takes at least = %.0f in the system; claimed are %.0f",
                 rate_text, stay_text, rate * stay, users);
}

void
oct_audit_check_floor(oct_audit_group *g) {
  static const oct_audit_key latencies[] = {OCT_AUDIT_LATENCY_MEAN, OCT_AUDIT_LATENCY_P50,
                                            OCT_AUDIT_LATENCY_P99};
  static const oct_audit_key gaps[] = {OCT_AUDIT_TPOT_MEAN, OCT_AUDIT_TPOT_P50, OCT_AUDIT_TPOT_P99};
  static const oct_audit_key firsts[] = {OCT_AUDIT_TTFT_MEAN, OCT_AUDIT_TTFT_P50,
                                         OCT_AUDIT_TTFT_P99};
  if (g->cost == NULL)
    return;
  for (gsize i = 0; i < G_N_ELEMENTS(latencies); i++)
    if (oct_audit_has(g, OCT_AUDIT_OUTPUT))
      check_tokens_latency(g, latencies[i], g->values[OCT_AUDIT_OUTPUT]);
  for (gsize i = 0; i < G_N_ELEMENTS(gaps); i++)
    check_tokens_latency(g, gaps[i], 1);
  for (gsize i = 0; i < G_N_ELEMENTS(firsts); i++)
    check_first_token(g, firsts[i]);
  check_throughput(g);
  check_speed_up(g);
  check_arithmetic(g);
  check_stay(g);
}
