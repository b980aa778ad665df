#include "config.h"

#include "sim/plan/plan-json.h"

#include <math.h>
#include <string.h>

#include "sim/plan/probe.h"
#include "sim/replay/measured-json.h"

static const oct_plan_layout *
layout_at(const oct_plan_race *race, guint i) {
  return &g_array_index(race->layouts, oct_plan_layout, i);
}

static const char *
trace_of(const oct_plan_race *race) {
  const oct_replay_config *c = race->options->base;
  return c->trace_name != NULL ? c->trace_name : c->rows.path;
}

static double
number(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

static json_t *
copy_of(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  return value != NULL ? json_deep_copy(value) : json_null();
}

/* ---------------------------------------------------------------- layouts */

/* The roofline's rate; null = it has none. */
static json_t *
floor_json(const oct_plan_layout *l) {
  return l->bound.rate_most < G_MAXDOUBLE ? json_real(l->bound.rate_most) : json_null();
}

static json_t *
layout_json(const oct_plan_race *race, guint i) {
  const oct_plan_layout *l = layout_at(race, i);
  const json_t *at = race->coarse_at[i];
  const gboolean legal = l->fate != OCT_PLAN_FATE_ILLEGAL;
  json_t *out = json_pack("{s:s, s:o, s:i, s:s, s:o}", "label", l->label, "node",
                          oct_json_text(l->options.node), "gpus", (int)l->gpus, "fate",
                          oct_plan_fate_name(l->fate), "why", oct_json_text(l->why));
  json_object_set_new(out, "floor_rate", legal ? floor_json(l) : json_null());
  json_object_set_new(out, "priced_rate", legal ? json_real(l->bound.rate_guess) : json_null());
  json_object_set_new(out, "coarse_rate", oct_json_real(race->coarse[i]));
  json_object_set_new(out, "ttft_p99_s", copy_of(at, "ttft_p99_s"));
  json_object_set_new(out, "tpot_p99_s", copy_of(at, "tpot_p99_s"));
  return out;
}

/* Its place among the finals, and after them. */
static guint
place_of(const oct_plan_final *finals, guint n, guint layout) {
  guint place = 0;
  while (place < n && finals[place].layout != layout)
    place++;
  return place;
}

/* Rates of one engine's replicas are one rate times a ratio: equal but for rounding. */
#define SAME_RATE 1e-9

/* Of layouts that were simulated: more rate per GPU, less TTFT, less TPOT; what nobody beats in
 * all. Of equals the best final stands for all, or else the first in the list. */
static json_t *
front_json(const oct_plan_race *race, const oct_plan_final *finals, guint n) {
  json_t *front = json_array();
  for (guint i = 0; i < race->layouts->len; i++) {
    const json_t *at = race->coarse_at[i];
    gboolean beaten = !(race->coarse[i] > 0);
    double mine = race->coarse[i] / layout_at(race, i)->gpus;
    double ttft = number(at, "ttft_p99_s"), tpot = number(at, "tpot_p99_s");
    for (guint k = 0; k < race->layouts->len && !beaten; k++) {
      const json_t *other = race->coarse_at[k];
      if (k == i || !(race->coarse[k] > 0))
        continue;
      double rate = race->coarse[k] / layout_at(race, k)->gpus;
      double first = number(other, "ttft_p99_s"), gap = number(other, "tpot_p99_s");
      gboolean no_worse = rate >= mine * (1 - SAME_RATE) && !(first > ttft) && !(gap > tpot);
      gboolean better = rate > mine * (1 + SAME_RATE) || first < ttft || gap < tpot;
      const guint place = place_of(finals, n, i), others = place_of(finals, n, k);
      beaten = no_worse && (better || others < place || (others == place && k < i));
    }
    if (!beaten)
      json_array_append_new(
          front, json_pack("{s:s, s:o, s:i, s:f, s:o, s:o}", "label", layout_at(race, i)->label,
                           "node", oct_json_text(layout_at(race, i)->options.node), "gpus",
                           (int)layout_at(race, i)->gpus, "rate_per_gpu", mine, "ttft_p99_s",
                           copy_of(at, "ttft_p99_s"), "tpot_p99_s", copy_of(at, "tpot_p99_s")));
  }
  return front;
}

/* ---------------------------------------------------------------- finals */

/* Dollars, or whatever the price is in, per million output tokens at the rate that is served. */
static double
token_price(const oct_plan_race *race, const oct_plan_final *f, guint32 nodes,
            double tokens_per_s) {
  const oct_plan_options *o = race->options;
  const oct_plan_layout *l = layout_at(race, f->layout);
  if (o->gpu_hour_prices == NULL || nodes == 0)
    return NAN;
  /* GPUs for a peak are paid for all day, tokens come at the mean. */
  double mean = race->demand.rate > 0 ? race->demand.mean_rate * race->demand.growth : o->wanted;
  double used = mean > 0 ? mean / f->rate.mean : nodes;
  double hourly = o->gpu_hour_prices[l->variant] * l->gpus * nodes;
  return hourly / 3600 / (tokens_per_s * used) * 1e6;
}

/* Output tokens a second at the final's rate: as measured, or, where the run had not settled and
 * those that were still in it are missing, as many as the rate brings. */
static double
tokens_at_rate(const oct_plan_race *race, const oct_plan_final *f, double measured,
               gboolean settled) {
  const oct_plan_workload *w = &race->workload;
  return settled ? measured : f->rate.mean * w->requests_per_start * w->mean_output;
}

static guint32
nodes_of(const oct_plan_race *race, const oct_plan_final *f) {
  return oct_plan_nodes_with(race->options, f->rate.mean, f->healthy);
}

/* All of it but the assumptions, which are told once. */
static json_t *
search_json(const json_t *search) {
  static const char *const names[] = {"rate", "too_high", "probes", "at", "unjudged"};
  json_t *out = json_object();
  for (gsize i = 0; i < G_N_ELEMENTS(names); i++)
    json_object_set_new(out, names[i], copy_of(search, names[i]));
  return out;
}

static json_t *
final_json(const oct_plan_race *race, const oct_plan_final *f) {
  static const char *const means[] = {"ttft_p50_s", "ttft_p99_s",          "tpot_p50_s",
                                      "tpot_p99_s", "output_tokens_per_s", "prefix_hit_share"};
  const oct_plan_layout *l = layout_at(race, f->layout);
  const guint32 nodes = nodes_of(race, f);
  json_t *seeds = json_array();
  json_int_t least = G_MAXINT64;
  gboolean short_warmup = FALSE;
  double sums[G_N_ELEMENTS(means)] = {0};
  for (guint k = 0; k < f->rate.n; k++) {
    const json_t *search = f->searches[k], *at = json_object_get(search, "at");
    json_array_append_new(seeds, search_json(search));
    least = MIN(least, json_integer_value(json_object_get(at, "measured")));
    short_warmup |= json_is_true(json_object_get(at, "warmup_short"));
    for (gsize i = 0; i < G_N_ELEMENTS(means); i++)
      sums[i] += number(at, means[i]) / f->rate.n;
  }
  json_t *out =
      json_pack("{s:s, s:o, s:i, s:i, s:i, s:f, s:o, s:i, s:I, s:b, s:b}", "label", l->label,
                "node", oct_json_text(l->options.node), "gpus_per_node", (int)l->gpus, "replicas",
                (int)l->options.n_replicas, "nodes", (int)nodes, "rate", f->rate.mean, "rate_half",
                oct_json_real(f->rate.half), "n", (int)f->rate.n, "requests_least", least,
                "p99_thin", least < OCT_PLAN_P99_REQUESTS, "warmup_short", short_warmup);
  for (gsize i = 0; i < G_N_ELEMENTS(means); i++)
    json_object_set_new(out, means[i], oct_json_real(sums[i]));
  json_object_set_new(out, "simulated_replicas",
                      json_integer(l->alone ? 1 : (json_int_t)l->run.n_replicas));
  json_object_set_new(out, "after_loss", oct_json_text(l->after_loss));
  json_object_set_new(out, "healthy_rate", oct_json_real(f->healthy));
  json_object_set_new(out, "judged", json_boolean(f->unjudged == NULL));
  json_object_set_new(out, "floor_rate", floor_json(l));
  json_object_set_new(out, "rate_per_gpu", json_real(f->rate.mean / l->gpus));
  const double tokens_per_s = tokens_at_rate(race, f, sums[4], !short_warmup);
  json_object_set_new(out, "price_per_million_tokens",
                      oct_json_real(token_price(race, f, nodes, tokens_per_s)));
  /* Sure to serve what is wanted: also at the lower end of the interval. */
  double low = f->rate.mean - (isfinite(f->rate.half) ? f->rate.half : 0);
  double others = isnan(f->healthy) ? low : f->healthy;
  json_object_set_new(out, "wanted_is_sure",
                      race->options->wanted > 0
                          ? json_boolean(low + others * (nodes - 1.0) >= race->options->wanted)
                          : json_null());
  json_object_set_new(out, "seeds", seeds);
  return out;
}

/* How much more there has to be of the trace, to tell of a load at which a request stays so long.
 */
static void
add_wanted_length(GString *text, const oct_plan_race *race, const oct_plan_layout *l,
                  const json_t *at) {
  const double windows = OCT_METRICS_RESIDENCES / (1 - OCT_PLAN_WARMUP_SHARE);
  if (race->workload.n_total == 0) {
    g_string_append_printf(text, ". A --duration of more than %.3g s tells",
                           windows * number(at, "residence_mean_s"));
    return;
  }
  const double rate = l->bound.rate_guess;
  const double residence_s = oct_plan_layout_residence_s(l, &race->workload, rate);
  if (residence_s > 0)
    g_string_append_printf(text,
                           ". At the %.4g/s that steps are priced for it would have to have about "
                           "%.0f requests, and has %" G_GUINT64_FORMAT,
                           rate, rate * race->workload.requests_per_start * residence_s * windows,
                           race->workload.n_total);
  g_string_append(text, ". A longer trace tells, or generated traffic with lengths like its own "
                        "(--input, --output)");
}

static char *
why_unjudged(const oct_plan_race *race, guint layout, const json_t *search) {
  const oct_plan_layout *l = layout_at(race, layout);
  const json_t *at = json_object_get(search, "unjudged");
  GString *text = g_string_new(NULL);
  g_string_printf(text,
                  "%s at %.4g/s: %s %s %.3g s, %.3g s of it measured, while a request stays %.3g s "
                  "in the mean: ",
                  l->label, number(at, "rate"), trace_of(race),
                  race->workload.n_total == 0 ? "was simulated for" : "lasts",
                  number(at, "seconds"), number(at, "window_s"), number(at, "residence_mean_s"));
  if (json_is_true(json_object_get(at, "too_short")))
    g_string_append_printf(text, "%d mean residence times are needed to tell that a load is served",
                           OCT_METRICS_RESIDENCES);
  else
    g_string_append(text, "too few to tell whether the backlog grows");
  const double rate = number(search, "rate");
  if (rate > 0)
    g_string_append_printf(text, ". %.4g/s is served; how much more is not known", rate);
  add_wanted_length(text, race, l, at);
  if (race->options->wanted <= 0 && rate > 0)
    g_string_append(text, ", or --rate with a rate that is no higher than what is served");
  return g_string_free(text, FALSE);
}

char *
oct_plan_no_verdict(const oct_plan_race *race, const oct_plan_final *finals, guint n) {
  for (guint i = 0; i < n; i++)
    if (finals[i].unjudged != NULL)
      return why_unjudged(race, finals[i].layout, finals[i].unjudged);
  for (guint i = 0; i < race->layouts->len && n == 0; i++) {
    const json_t *at = json_object_get(race->searches[i], "unjudged");
    if (json_is_true(json_object_get(at, "too_short")) && !(number(race->searches[i], "rate") > 0))
      return why_unjudged(race, race->searched_as[i], race->searches[i]);
  }
  return NULL;
}

/* ---------------------------------------------------------------- what-ifs */

/* What a final's other nodes serve, which have all GPUs, when a change makes `rate` of its rate. */
static double
changed_healthy(const oct_plan_final *f, double rate) {
  return f->healthy * rate / f->rate.mean;
}

static json_t *
whatifs_json(const oct_plan_race *race, const oct_plan_final *finals, guint n_finals,
             const oct_plan_whatifs *w) {
  const oct_plan_options *o = race->options;
  json_t *list = json_array();
  double low = n_finals > 0 ? finals[0].rate.mean : NAN, high = low;
  guint32 fewest = G_MAXUINT32, most = 0;
  gboolean flips = FALSE, apart = TRUE, enough = TRUE;
  for (guint c = 0; c < w->n && w->n_layouts > 0; c++) {
    const oct_plan_layout *best = layout_at(race, finals[0].layout);
    double rate = w->rates[c][0];
    double others = changed_healthy(&finals[0], rate);
    guint32 gpus = oct_plan_nodes_with(o, rate, others) * best->gpus;
    gboolean flip = FALSE;
    json_t *item = json_pack("{s:s, s:f, s:o}", "change", w->changes[c].name, "rate", rate, "gpus",
                             gpus > 0 ? json_integer(gpus) : json_null());
    if (w->n_layouts > 1) {
      const oct_plan_layout *next = layout_at(race, finals[1].layout);
      flip = oct_plan_score_with(o, next, w->rates[c][1],
                                 changed_healthy(&finals[1], w->rates[c][1])) >
             oct_plan_score_with(o, best, rate, others);
      json_object_set_new(item, "runner_up_rate", oct_json_real(w->rates[c][1]));
      /* Prices of two layouts may also be wrong in opposite directions. */
      if (w->changes[c].cost_scale > 1)
        apart = oct_plan_score_with(o, best, rate, others) > finals[1].score;
    }
    json_object_set_new(item, "flips", json_boolean(flip));
    json_array_append_new(list, item);
    flips |= flip;
    enough &= gpus > 0;
    low = MIN(low, rate);
    high = MAX(high, rate);
    fewest = gpus > 0 ? MIN(fewest, gpus) : fewest;
    most = MAX(most, gpus);
  }
  json_t *together = w->together != NULL ? json_deep_copy(w->together) : json_null();
  return json_pack(
      "{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:b, s:f, s:o}", "together", together, "changes",
      list, "rate_low", oct_json_real(low), "rate_high", oct_json_real(high), "gpus_fewest",
      most > 0 ? json_integer(fewest) : json_null(), "gpus_most",
      most > 0 ? json_integer(most) : json_null(), "nodes_suffice", enough, "flips", flips, "apart",
      apart, "cost_error", o->cost_error, "cost_error_from", oct_json_text(o->cost_error_from));
}

/* ---------------------------------------------------------------- the whole */

static json_t *
question_json(const oct_plan_race *race) {
  static const char *const goals[] = {"highest rate", "fewest GPUs", "cheapest per token"};
  const oct_plan_options *o = race->options;
  json_t *slo = json_array();
  for (guint i = 0; i < o->base->slo.n_items; i++)
    json_array_append_new(slo,
                          json_pack("{s:s, s:o}", "name", o->base->slo.items[i].name, "limit_s",
                                    oct_json_seconds(o->base->slo.items[i].limit_ns)));
  return json_pack("{s:s, s:o, s:s, s:o, s:f, s:f, s:f, s:f, s:o, s:i}", "goal", goals[o->goal],
                   "wanted_rate", o->wanted > 0 ? json_real(o->wanted) : json_null(), "trace",
                   trace_of(race), "slo", slo, "mean_input_tokens", race->workload.mean_input,
                   "mean_output_tokens", race->workload.mean_output, "requests_per_start",
                   race->workload.requests_per_start, "own_rate", race->workload.own_rate, "model",
                   oct_json_text(o->variants[0].options.model), "nodes_max", (int)o->nodes_max);
}

/* The longest load of a final's searches, which go on where their horizon is too short. */
static json_t *
longest_json(const oct_plan_final *finals, guint n) {
  double most = 0;
  for (guint f = 0; f < n; f++)
    for (guint k = 0; k < finals[f].rate.n; k++) {
      const double at = number(json_object_get(finals[f].searches[k], "at"), "seconds");
      const double over = number(json_object_get(finals[f].searches[k], "unjudged"), "seconds");
      most = fmax(most, fmax(at, over)); /* either may be NAN */
    }
  return most > 0 ? json_real(most) : json_null();
}

static json_t *
method_json(const oct_plan_race *race, const oct_plan_final *finals, guint n) {
  const oct_plan_options *o = race->options;
  guint counts[OCT_PLAN_FATE_COUNT] = {0};
  for (guint i = 0; i < race->layouts->len; i++)
    counts[layout_at(race, i)->fate]++;
  json_t *fates = json_object();
  for (int f = 0; f < OCT_PLAN_FATE_COUNT; f++)
    json_object_set_new(fates, oct_plan_fate_name((oct_plan_fate)f), json_integer(counts[f]));
  guint64 total = race->workload.n_total;
  guint64 coarse = total > 0 ? MIN(total, o->coarse_requests) : o->coarse_requests;
  return json_pack("{s:o, s:I, s:f, s:o, s:o, s:o, s:i, s:b, s:I}", "layouts", fates,
                   "coarse_requests", (json_int_t)coarse, "coarse_tolerance",
                   OCT_PLAN_COARSE_TOLERANCE, "full_seconds",
                   total > 0 ? json_null() : json_real(o->full_seconds), "full_seconds_most",
                   total > 0 ? json_null() : longest_json(finals, n), "full_requests",
                   total > 0 ? json_integer((json_int_t)total) : json_null(), "seeds",
                   (int)(race->workload.generated ? o->seeds : 1), "one_stream",
                   !race->workload.generated, "runs", (json_int_t)race->probes);
}

/* With how long the first final lasts: up to which multiple of the mean rate. Where the nodes that
 * are allowed do not suffice, all of them. */
static json_t *
demand_json(const oct_plan_race *race, const oct_plan_final *finals, guint n) {
  const oct_plan_demand *d = &race->demand;
  json_t *out = oct_plan_demand_json(d);
  guint32 nodes = n > 0 ? nodes_of(race, &finals[0]) : 0;
  if (nodes == 0)
    nodes = race->options->nodes_max;
  double serves = n > 0 ? finals[0].rate.mean * nodes : NAN;
  if (n > 0 && finals[0].healthy > 0)
    serves = finals[0].rate.mean + finals[0].healthy * (nodes - 1.0);
  json_object_set_new(out, "lasts_until_growth", oct_json_real(serves / (d->mean_rate * d->peak)));
  return out;
}

/* Those of the first final's first stream; the others differ in the number of requests. */
static json_t *
assumptions_json(const oct_plan_final *finals, guint n) {
  return n > 0 ? copy_of(finals[0].searches[0], "assumptions") : json_null();
}

json_t *
oct_plan_json(const oct_plan_race *race, const oct_plan_final *finals, guint n_finals,
              const oct_plan_whatifs *whatifs, const char *no_verdict) {
  json_t *layouts = json_array(), *list = json_array();
  const guint n_sure = no_verdict == NULL ? n_finals : 0;
  for (guint i = 0; i < race->layouts->len; i++)
    json_array_append_new(layouts, layout_json(race, i));
  for (guint i = 0; i < n_finals; i++)
    json_array_append_new(list, final_json(race, &finals[i]));
  g_autofree char *command =
      n_sure > 0 ? oct_plan_serve_command(layout_at(race, finals[0].layout)) : NULL;
  const oct_dtype type =
      n_sure > 0 ? layout_at(race, finals[0].layout)->options.weight_type : OCT_DTYPE_NONE;
  g_autofree char *needs =
      type != OCT_DTYPE_NONE
          ? g_strdup_printf("a checkpoint whose weights are %s: a server has them as they are "
                            "stored, octet convert writes another type",
                            oct_dtype_name(type))
          : NULL;
  json_t *demand = race->demand.rate > 0 && oct_plan_asks_more(&race->options->asked)
                       ? demand_json(race, finals, n_sure)
                       : json_null();
  return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "schema",
                   OCT_PLAN_SCHEMA, "octet", PACKAGE_VERSION, "no_verdict",
                   oct_json_text(no_verdict), "question", question_json(race), "demand", demand,
                   "method", method_json(race, finals, n_finals), "finals", list, "what_if",
                   whatifs_json(race, finals, n_sure, whatifs), "assumptions",
                   assumptions_json(finals, n_finals), "pareto",
                   n_sure > 0 ? front_json(race, finals, n_finals) : json_array(), "serve",
                   oct_json_text(command), "serve_needs", oct_json_text(needs), "layouts", layouts);
}
