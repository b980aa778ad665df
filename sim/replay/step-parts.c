#include "sim/replay/step-parts.h"

#include <math.h>
#include <string.h>

#include "sim/cost/cost.h"
#include "sim/replay/step-times.h"

#define OPERATORS_MAX 512

typedef enum part {
  PART_KDA,
  PART_MLA,
  PART_ATTENTION, /* of other kinds */
  PART_MOE,
  PART_DENSE,
  PART_OTHER, /* norms, mixes, embedding, head */
  PART_COLLECTIVES,
  PART_LAUNCH,
  PART_COUNT
} part;

static const char *const part_names[PART_COUNT] = {"kda",   "mla",   "attention",   "moe",
                                                   "dense", "other", "collectives", "launch"};
static const char *const bound_names[OCT_COST_GROUPS] = {"compute", "HBM", "links", "launches",
                                                         "host link"};

typedef struct split {
  double parts[PART_COUNT], bound[OCT_COST_GROUPS], step_s;
  double prompt_s, token_s; /* a prompt beside it; the step, and what prompts take of the time */
} split;

static part
part_of(const oct_cost_operator *o) {
  static const struct {
    const char *prefix;
    part part;
  } kinds[] = {{"kda.", PART_KDA},  {"mla.", PART_MLA},          {"gqa.", PART_ATTENTION},
               {"dcp.", PART_MLA},  {"window.", PART_ATTENTION}, {"moe.", PART_MOE},
               {"ffn.", PART_DENSE}};
  if (o->part == OCT_PART_COLLECTIVE)
    return PART_COLLECTIVES;
  for (gsize i = 0; i < G_N_ELEMENTS(kinds); i++)
    if (g_str_has_prefix(o->name, kinds[i].prefix))
      return kinds[i].part;
  return PART_OTHER;
}

/* By what binds it. */
static void
split_by_bound(const oct_cost *cost, const oct_step_shape *shape, split *out) {
  oct_step_price price;
  memset(out, 0, sizeof *out);
  oct_cost_step(cost, shape, &price);
  for (guint32 s = 0; s < price.n_stages; s++) {
    const oct_stage_price *stage = &price.stages[s];
    out->step_s += (double)(stage->ns + stage->send_ns) / 1e9;
    out->parts[PART_COLLECTIVES] += (double)stage->send_ns / 1e9;
    out->bound[OCT_PART_COLLECTIVE] += (double)stage->send_ns / 1e9;
    for (int g = 0; g < OCT_COST_GROUPS; g++)
      out->bound[g] += (double)stage->groups[g].ns / 1e9;
  }
}

/* By what its operators belong to, which takes longer. */
static void
split_by_part(const oct_cost *cost, const oct_step_shape *shape, split *out) {
  g_autofree oct_cost_operator *list = g_new(oct_cost_operator, OPERATORS_MAX);
  const guint n = MIN(oct_cost_operators(cost, shape, list, OPERATORS_MAX), OPERATORS_MAX);
  for (guint i = 0; i < n; i++) {
    const oct_cost_operator *o = &list[i];
    const part p = part_of(o);
    const double fixed_s = p == PART_COLLECTIVES ? 0 : o->fixed_s * o->count;
    out->parts[PART_LAUNCH] += fixed_s;
    out->parts[p] += o->seconds * o->count - fixed_s;
  }
}

static guint
largest(const split *s) {
  guint best = 0;
  for (guint g = 1; g < OCT_COST_GROUPS; g++)
    if (s->bound[g] > s->bound[best])
      best = g;
  return best;
}

static json_t *
row_json(guint32 batch, const split *s) {
  json_t *parts = json_object(), *bound = json_object();
  for (int p = 0; p < PART_COUNT; p++)
    json_object_set_new(parts, part_names[p], json_real(s->parts[p]));
  for (int g = 0; g < OCT_COST_GROUPS; g++)
    json_object_set_new(bound, bound_names[g], json_real(s->bound[g]));
  return json_pack("{s:I, s:f, s:f, s:f, s:s, s:o, s:o}", "batch", (json_int_t)batch, "step_s",
                   s->step_s, "prompt_s", s->prompt_s, "token_s", s->token_s, "bound_by",
                   bound_names[largest(s)], "parts_s", parts, "bound_s", bound);
}

/* ---------------------------------------------------------------- users */

/* Users that are in one engine at once, each with `tokens` at most. */
typedef struct room {
  double pages, states; /* INFINITY: the model has none */
} room;

static room
room_of(const oct_setup *s, double tokens) {
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  const guint n = oct_model_groups(s->spec, s->engine.instance.kv_dtype, groups);
  const double domains = s->engine.instance.parallel.data;
  room r = {INFINITY, INFINITY};
  if (s->has_ledger && s->ledger.cache_tokens > 0 && tokens > 0)
    r.pages = floor((double)s->ledger.cache_tokens / tokens) * domains;
  for (guint g = 0; g < n; g++)
    if (groups[g].kind == OCT_ATTENTION_KDA)
      r.states = s->engine.instance.memory.groups[g].n_device * domains;
  return r;
}

/* The tightest limit on the time between two tokens; INFINITY = none. */
static double
token_limit(const oct_slo *slo) {
  double limit = INFINITY;
  for (guint i = 0; i < slo->n_items; i++)
    if (slo->items[i].latency == OCT_LATENCY_TPOT || slo->items[i].latency == OCT_LATENCY_ITL)
      limit = MIN(limit, (double)slo->items[i].limit_ns / 1e9);
  return limit;
}

typedef struct found {
  double within;  /* the most sequences whose time per token is within the limit; INFINITY = none */
  guint at_limit; /* what binds the step there */
} found;

static json_t *
users_json(const oct_setup *s, const room *r, const found *f, double limit_s) {
  const double flag = (double)s->engine.max_num_seqs * s->engine.instance.parallel.data;
  const struct {
    const char *name, *why;
    double n;
  } bounds[] = {{"by_kv_pages", "KV memory", r->pages},
                {"by_state_slots", "memory of recurrent state", r->states},
                {"by_max_num_seqs", "max-num-seqs", flag},
                {"by_time_per_token", "the limit on the time per token", f->within}};
  json_t *out = json_object();
  guint least = 0;
  for (guint i = 0; i < G_N_ELEMENTS(bounds); i++) {
    json_object_set_new(out, bounds[i].name,
                        isfinite(bounds[i].n) ? json_real(bounds[i].n) : json_null());
    if (bounds[i].n < bounds[least].n)
      least = i;
  }
  json_object_set_new(out, "limit_s", isfinite(limit_s) ? json_real(limit_s) : json_null());
  json_object_set_new(out, "users", json_real(bounds[least].n * s->options.n_replicas));
  g_autofree char *why =
      least + 1 < G_N_ELEMENTS(bounds)
          ? g_strdup(bounds[least].why)
          : g_strdup_printf(
                "%s, where %s bind%s the step", bounds[least].why, bound_names[f->at_limit],
                f->at_limit == OCT_PART_COLLECTIVE || f->at_limit == OCT_PART_FIXED ? "" : "s");
  json_object_set_new(out, "why", json_string(why));
  return out;
}

/* ---------------------------------------------------------------- the whole */

#define SHOWN_MAX 1024u

static gboolean
is_shown(guint32 batch, guint32 mean) {
  if (batch > SHOWN_MAX)
    return FALSE;
  return batch == mean || batch == 1 || batch == 8 || (batch >= 32 && (batch & (batch - 1)) == 0);
}

/* What a prompt of `tokens` adds to steps of these decodes. */
static double
prompt_seconds(const oct_cost *cost, const oct_setup *s, const oct_step_shape *decodes,
               double decode_s, guint32 tokens) {
  const guint32 most = s->engine.max_num_batched_tokens, window = oct_cost_window(s->spec);
  double seconds = 0;
  for (guint32 done = 0; done < tokens;) {
    const guint32 n = MIN(tokens - done, most);
    const oct_slice slice = {.n_tokens = n, .sample = OCT_SAMPLE_LAST, .flags = OCT_SLICE_PREFILL};
    oct_step_shape shape = *decodes;
    split now;
    oct_domain_shape_add(&shape.domains[0], &slice, done, window);
    split_by_bound(cost, &shape, &now);
    seconds += now.step_s - decode_s;
    done += n;
  }
  return seconds;
}

json_t *
oct_step_parts_json(const oct_replay_config *config, const oct_replay_result *r) {
  const oct_setup *s = &r->setup;
  oct_step_context c;
  if (!oct_step_times_context(r, &c))
    return json_null();
  g_autoptr(oct_cost) cost = oct_step_times_cost(s, s->options.moe_kernel);
  if (cost == NULL)
    return json_null();
  const double limit_s = token_limit(&config->slo);
  const room memory = room_of(s, (double)c.input + c.output);
  const guint32 window = oct_cost_window(s->spec), domains = s->engine.instance.parallel.data;
  const oct_slice slice = {.n_tokens = 1, .sample = OCT_SAMPLE_LAST};
  json_t *rows = json_array(), *takes_over = json_array();
  found f = {.within = isfinite(limit_s) ? 0 : INFINITY};
  guint bound = OCT_COST_GROUPS;
  oct_step_shape shape = {.n_domains = domains};
  for (guint32 batch = 1; batch <= OCT_STEP_PARTS_BATCH_MAX; batch++) {
    split now;
    oct_domain_shape_add(&shape.domains[(batch - 1) % domains], &slice, c.context, window);
    split_by_bound(cost, &shape, &now);
    /* For each token of all there is that part of a prompt. */
    now.prompt_s = prompt_seconds(cost, s, &shape, now.step_s, c.input);
    now.token_s = now.step_s + now.prompt_s * batch / c.output;
    if (is_shown(batch, c.batch)) {
      split_by_part(cost, &shape, &now);
      json_array_append_new(rows, row_json(batch, &now));
    }
    if (largest(&now) != bound) {
      bound = largest(&now);
      json_array_append_new(
          takes_over, json_pack("{s:i, s:s}", "batch", (int)batch, "bound_by", bound_names[bound]));
    }
    if (now.token_s <= limit_s && isfinite(limit_s)) {
      f.within = batch;
      f.at_limit = bound;
    }
  }
  return json_pack("{s:i, s:i, s:i, s:i, s:s, s:o, s:o, s:o}", "batch_most",
                   (int)OCT_STEP_PARTS_BATCH_MAX, "context_tokens", (int)c.context, "user_tokens",
                   (int)(c.input + c.output), "input_tokens", (int)c.input, "kernels",
                   oct_moe_kernel_name(s->options.moe_kernel), "rows", rows, "takes_over",
                   takes_over, "users", users_json(s, &memory, &f, limit_s));
}
