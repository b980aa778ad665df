#include "sim/plan/bound.h"

#include <math.h>
#include <string.h>

#include "sim/cost/cost.h"

/* The sample's quantile is one of 2,000 rows: two percent lower is safe for the whole stream. */
#define QUANTILE_SLACK 0.02
/* A step may take so much of the limit on the time per token: prefills take their part too. */
#define GUESS_STEP_SHARE 0.8

typedef struct priced {
  const oct_setup *setup;
  const oct_plan_workload *workload;
  oct_cost *cost;
  guint32 stages, domains, window;
} priced;

/* ---------------------------------------------------------------- shapes */

static void
decode_shape(const priced *p, guint32 batch, double context, oct_step_shape *shape) {
  memset(shape, 0, sizeof *shape);
  shape->n_domains = p->domains;
  const oct_slice slice = {.n_tokens = 1, .sample = OCT_SAMPLE_LAST};
  for (guint32 i = 0; i < batch; i++)
    oct_domain_shape_add(&shape->domains[i % p->domains], &slice, (guint32)context, p->window);
}

/* One prompt, or as many of the mean length as a step takes, in each of `domains`. */
static double
prefill_shape(const priced *p, guint32 length, guint32 budget, guint32 domains,
              oct_step_shape *shape) {
  memset(shape, 0, sizeof *shape);
  shape->n_domains = p->domains;
  guint32 tokens = MAX(1, MIN(length, budget)), n = MAX(1, budget / tokens);
  const oct_slice slice = {
      .n_tokens = tokens, .sample = OCT_SAMPLE_LAST, .flags = OCT_SLICE_PREFILL};
  for (guint32 d = 0; d < domains; d++)
    for (guint32 i = 0; i < n; i++)
      oct_domain_shape_add(&shape->domains[d], &slice, 0, p->window);
  return (double)tokens * n * domains;
}

static double
priced_seconds(const priced *p, const oct_step_shape *shape) {
  oct_step_price price;
  gint64 ns = 0;
  oct_cost_step(p->cost, shape, &price);
  for (guint32 i = 0; i < price.n_stages; i++)
    ns += price.stages[i].ns + price.stages[i].send_ns;
  return (double)ns / 1e9;
}

static double
floor_seconds(const priced *p, const oct_step_shape *shape) {
  /* An imitated engine whose steps take less than their price may get below the floor. */
  const double factor = p->setup->options.engine_preset.step_time;
  return (double)oct_cost_floor_ns(p->cost, shape) / 1e9 * (factor > 0 ? MIN(1, factor) : 1);
}

/* Tokens that a sequence can have of a step at most. */
static double
tokens_a_step(const priced *p) {
  const oct_speculation *s = &p->setup->engine.speculation;
  return s->method == OCT_DRAFT_NONE ? 1 : 1.0 + s->n_tokens;
}

/* ---------------------------------------------------------------- objectives */

/* What no request of the objective's share can beat: of its prompt, its tokens. */
static double
objective_floor(const priced *p, const oct_slo_item *item, double gap_s) {
  const oct_plan_workload *w = p->workload;
  double share = item->is_mean ? 0 : item->percent / 100 - QUANTILE_SLACK;
  if (share < 0)
    share = 0;
  switch (item->latency) {
  case OCT_LATENCY_ITL: /* tokens of one step have no time between them */
    return tokens_a_step(p) > 1 ? 0 : gap_s;
  case OCT_LATENCY_TPOT:
    return gap_s;
  case OCT_LATENCY_E2E:
    return gap_s * (oct_plan_quantile(w->outputs, w->n, share) - 1.0);
  case OCT_LATENCY_TTFT: {
    oct_step_shape shape;
    guint32 length = oct_plan_quantile(w->inputs, w->n, share);
    if (w->has_prefix_ids && p->setup->engine.prefix_caching)
      length = 1;
    prefill_shape(p, length, length, 1, &shape);
    return floor_seconds(p, &shape) / p->stages;
  }
  case OCT_LATENCY_QUEUE:
  case OCT_LATENCY_COUNT:
    break;
  }
  return 0;
}

static void
judge_objectives(const priced *p, const oct_slo *slo, oct_plan_bound *out) {
  oct_step_shape shape;
  decode_shape(p, 1, p->workload->inputs[0], &shape);
  double gap_s = floor_seconds(p, &shape) / tokens_a_step(p);
  for (guint i = 0; i < slo->n_items && !out->misses; i++) {
    const oct_slo_item *item = &slo->items[i];
    double least = objective_floor(p, item, gap_s), limit = (double)item->limit_ns / 1e9;
    if (least <= limit)
      continue;
    out->misses = TRUE;
    g_snprintf(out->why, sizeof out->why, "%s is at least %.3g s by the roofline, limit %.3g s",
               item->name, least, limit);
  }
}

/* ---------------------------------------------------------------- rates */

static guint32
prompt_tokens(const priced *p) {
  const oct_plan_workload *w = p->workload;
  if (w->has_prefix_ids && p->setup->engine.prefix_caching)
    return 0;
  return (guint32)w->mean_input;
}

/* Sequences that a step can have: by the flag. */
static guint32
batch_max(const priced *p) {
  return MAX(1, p->setup->engine.max_num_seqs) * p->domains;
}

static double
most_rate(const priced *p) {
  const oct_plan_workload *w = p->workload;
  oct_step_shape shape;
  guint32 batch = batch_max(p);
  decode_shape(p, batch, w->decode_context, &shape);
  double decode = w->mean_output * floor_seconds(p, &shape) / batch / tokens_a_step(p);
  double prompt = 0;
  if (prompt_tokens(p) > 0) {
    double tokens = prefill_shape(p, prompt_tokens(p), p->setup->engine.max_num_batched_tokens,
                                  p->domains, &shape);
    prompt = w->mean_input * floor_seconds(p, &shape) / tokens;
  }
  double request_s = MAX(decode, prompt) / p->stages;
  return p->setup->options.n_replicas / (request_s * w->requests_per_start);
}

static double
token_limit(const oct_slo *slo) {
  double limit = G_MAXDOUBLE;
  for (guint i = 0; i < slo->n_items; i++)
    if (slo->items[i].latency == OCT_LATENCY_TPOT || slo->items[i].latency == OCT_LATENCY_ITL)
      limit = MIN(limit, (double)slo->items[i].limit_ns / 1e9);
  return limit;
}

/* A token of a prompt, in steps full of prompts. Domains of one step wait for each other, and their
 * prompts seldom come together: something between one domain's and all of them at once. */
static double
prompt_token_seconds(const priced *p, guint32 prompt) {
  oct_step_shape shape;
  guint32 together = (guint32)(sqrt(p->domains) + 0.5);
  double tokens =
      prefill_shape(p, prompt, p->setup->engine.max_num_batched_tokens, together, &shape);
  return priced_seconds(p, &shape) / tokens;
}

static double
guess_rate(const priced *p, const oct_slo *slo) {
  const oct_plan_workload *w = p->workload;
  const double limit = token_limit(slo) * GUESS_STEP_SHARE;
  const double host_s = (double)p->setup->profile->engine.step_host_ns / 1e9;
  oct_step_shape shape;
  /* With a pipeline the sequences are spread over as many steps as it has stages. */
  double most = (double)batch_max(p) / p->stages;
  double held = w->mean_input + w->mean_output / 2;
  if (p->setup->has_ledger && p->setup->ledger.cache_tokens > 0)
    most = MIN(most, (double)p->setup->ledger.cache_tokens * p->domains / held / p->stages);
  const guint32 prompt = MAX(prompt_tokens(p), 1);
  /* Nor do prompts fill the stages of a pipeline one behind the other without gaps. */
  const double prefill_s = prompt * prompt_token_seconds(p, prompt) / sqrt(p->stages);
  double batch = MAX(1, floor(most)), step_s;
  for (;; batch = floor(batch * 0.8)) {
    decode_shape(p, (guint32)batch, w->decode_context, &shape);
    step_s = priced_seconds(p, &shape) + host_s;
    /* For each output token of all that run a share of a prompt comes between its gaps. */
    double gap_s = step_s + prefill_s * batch * p->stages / w->mean_output;
    if (gap_s <= limit || batch <= 1)
      break;
  }
  double request_s = w->mean_output * step_s / (batch * p->stages) + prefill_s;
  return p->setup->options.n_replicas / (request_s * w->requests_per_start);
}

/* ---------------------------------------------------------------- pace */

static void
measure_pace(const priced *p, oct_plan_pace *out) {
  const double host_s = (double)p->setup->profile->engine.step_host_ns / 1e9;
  oct_step_shape shape;
  out->prompt_token_s =
      prompt_token_seconds(p, MAX(1, (guint32)p->workload->mean_input)) / sqrt(p->stages);
  for (guint i = 0; i < OCT_PLAN_PACES; i++) {
    /* A pipeline's sequences are spread over as many steps as it has stages. */
    const guint32 batch = MAX(1, (1u << i) / p->stages);
    decode_shape(p, MIN(batch, batch_max(p)), p->workload->decode_context, &shape);
    out->step_s[i] = priced_seconds(p, &shape) + host_s;
  }
}

static double
step_at(const oct_plan_pace *pace, double n) {
  guint i = 0;
  while (i + 2 < OCT_PLAN_PACES && (double)(1u << (i + 1)) < n)
    i++;
  const double low = (double)(1u << i), share = (MAX(n, 1) - low) / low;
  return pace->step_s[i] + MIN(share, 1) * (pace->step_s[i + 1] - pace->step_s[i]);
}

#define PROMPT_SHARE_MAX 0.9

double
oct_plan_pace_token_s(const oct_plan_pace *pace, const oct_plan_workload *w, double rate) {
  if (!(pace->prompt_token_s > 0))
    return 0;
  const double left = 1 - MIN(rate * w->mean_input * pace->prompt_token_s, PROMPT_SHARE_MAX);
  /* n sequences are in it when rate x outputs x their time per token is n: more give a longer step,
   * so the smallest n is where the iteration from below ends. */
  double n = 1, before = 0;
  for (int i = 0; i < 100 && n > before * 1.001 && n < (1u << (OCT_PLAN_PACES - 1)); i++) {
    before = n;
    n = MAX(1, rate * w->mean_output * step_at(pace, n) / left);
  }
  return step_at(pace, n) / left;
}

gboolean
oct_plan_bound_of(const oct_setup *setup, const oct_slo *slo, const oct_plan_workload *workload,
                  oct_plan_bound *out, GError **error) {
  memset(out, 0, sizeof *out);
  out->rate_most = G_MAXDOUBLE;
  out->rate_guess = workload->own_rate;
  if (setup->profile == NULL || setup->options.backend == OCT_REPLAY_MOCK)
    return TRUE;
  oct_cost_options options = OCT_COST_OPTIONS_DEFAULT;
  options.kv_dtype = setup->engine.instance.kv_dtype;
  options.moe_kernel = setup->options.moe_kernel;
  options.routing_alpha = setup->options.routing_alpha;
  options.routing_balanced = setup->options.routing_balanced;
  options.routing_weights = setup->routing_weights;
  options.n_routing_weights = setup->n_routing_weights;
  oct_setup_cost_options(setup, &options);
  options.eager = setup->engine.instance.eager;
  g_autoptr(oct_cost) cost = oct_cost_new(setup->spec, &setup->engine.instance.parallel,
                                          setup->devices, setup->profile, &options, error);
  if (cost == NULL)
    return FALSE;
  const oct_parallel *parallel = &setup->engine.instance.parallel;
  const priced p = {.setup = setup,
                    .workload = workload,
                    .cost = cost,
                    .stages = parallel->pipeline,
                    .domains = parallel->data,
                    .window = oct_cost_window(setup->spec)};
  judge_objectives(&p, slo, out);
  out->rate_most = most_rate(&p);
  out->rate_guess = MIN(guess_rate(&p, slo), out->rate_most);
  measure_pace(&p, &out->pace);
  return TRUE;
}
