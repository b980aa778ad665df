#include "sim/plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/plan/plan-json.h"
#include "sim/plan/race.h"

void
oct_plan_options_default(oct_plan_options *o) {
  memset(o, 0, sizeof *o);
  o->identity = "";
  o->nodes_max = 1;
  o->full_seconds = 600;
  o->coarse_requests = 2000;
  o->seeds = OCT_PLAN_SEEDS;
  o->parallel = 2;
}

static oct_plan_layout *
layout_at(const oct_plan_race *race, guint i) {
  return &g_array_index(race->layouts, oct_plan_layout, i);
}

/* ---------------------------------------------------------------- an order of layouts */

typedef struct ranked {
  guint layout;
  double score;
} ranked;

/* The best first; of equals the one that was listed first. */
static int
by_score(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  if (x->score != y->score)
    return x->score > y->score ? -1 : 1;
  return (x->layout > y->layout) - (x->layout < y->layout);
}

/* Layouts that were simulated, in their order. Where no rate is wanted an engine stands here once,
 * with the replicas that score best: fewer of them are no other choice. */
static guint
rank_simulated(const oct_plan_race *race, ranked *order) {
  g_autofree gboolean *seen = g_new0(gboolean, race->layouts->len + 1);
  guint n = 0, kept = 0;
  for (guint i = 0; i < race->layouts->len; i++)
    if (!isnan(race->coarse[i]))
      order[n++] = (ranked){i, oct_plan_score(race->options, layout_at(race, i), race->coarse[i])};
  qsort(order, n, sizeof *order, by_score);
  for (guint i = 0; i < n; i++) {
    const guint engine = layout_at(race, order[i].layout)->engine;
    if (seen[engine] && !(race->options->wanted > 0))
      continue;
    seen[engine] = TRUE;
    order[kept++] = order[i];
  }
  return kept;
}

/* The score that a layout has to beat: of the third best so far; -infinity before there are three.
 */
static double
bar_of(const oct_plan_race *race) {
  g_autofree ranked *order = g_new0(ranked, race->layouts->len + 1);
  guint n = rank_simulated(race, order);
  return n >= OCT_PLAN_FINALS ? order[OCT_PLAN_FINALS - 1].score : -INFINITY;
}

/* Whether the layout still has a chance; else its fate and why. */
static gboolean
is_in_the_race(const oct_plan_race *race, oct_plan_layout *l, double bar) {
  const oct_plan_options *o = race->options;
  if (oct_plan_nodes(o, l->bound.rate_most) == 0) {
    l->fate = OCT_PLAN_FATE_BOUNDED;
    l->why = g_strdup_printf("at most %.4g/s a node by the roofline: too many nodes for %.4g/s",
                             l->bound.rate_most, o->wanted);
  } else if (oct_plan_score(o, l, l->bound.rate_most) < bar) {
    l->fate = OCT_PLAN_FATE_BOUNDED;
    l->why = g_strdup_printf("at most %.4g/s by the roofline: three others are better",
                             l->bound.rate_most);
  } else if (l->bound.rate_most < G_MAXDOUBLE && /* without a node there is no estimate */
             oct_plan_score(o, l, l->bound.rate_guess / OCT_PLAN_OUTPACED) < bar) {
    l->fate = OCT_PLAN_FATE_OUTPACED;
    l->why =
        g_strdup_printf("priced at %.4g/s: not simulated, three others are better than a third "
                        "more than that",
                        l->bound.rate_guess);
  } else {
    return TRUE;
  }
  return FALSE;
}

/* ---------------------------------------------------------------- coarse */

#define COARSE_WIDEN 1.15
#define FULL_WIDEN   1.03 /* of the first stream: from the coarse rate */
#define NEXT_WIDEN   1.02 /* of the others: from above the first's */
#define CHANGE_WIDEN 1.06
#define WHOLE_SLACK  1.06 /* what two coarse searches may differ by */

/* The least rate of a layout that is worth the bar: its score never falls when the rate rises. */
static double
least_rate(const oct_plan_race *race, const oct_plan_layout *l, double bar) {
  double low = 0, high = 2 * l->bound.rate_guess;
  if (!isfinite(bar) || oct_plan_score(race->options, l, high) < bar)
    return 0;
  for (int i = 0; i < 60; i++) {
    double middle = (low + high) / 2;
    if (oct_plan_score(race->options, l, middle) < bar)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* What a search of the engine says of layout i, which has `times` the replicas of the layout that
 * it was made for. */
static void
note_coarse(oct_plan_race *race, guint i, const json_t *found, double times) {
  oct_plan_layout *l = layout_at(race, i);
  json_t *at = json_object_get(found, "at");
  race->coarse[i] = json_number_value(json_object_get(found, "rate")) * times;
  race->coarse_at[i] = json_is_object(at) ? at : NULL;
  l->fate = OCT_PLAN_FATE_SIMULATED;
  if (!(race->coarse[i] > 0))
    l->why = g_strdup_printf("simulated, does not serve %.4g/s: looked no further",
                             times * json_number_value(json_object_get(found, "too_high")));
}

/* Takes over what was found of the layout's engine under another number of replicas. FALSE:
 * nothing, or a search that ended above a rate that is still of interest here. */
static gboolean
is_known(oct_plan_race *race, guint i, double least) {
  const oct_plan_layout *l = layout_at(race, i);
  const json_t *found = race->searches[l->engine];
  if (found == NULL)
    return FALSE;
  const oct_plan_layout *made = layout_at(race, race->searched_as[l->engine]);
  const double times = (double)l->run.n_replicas / made->run.n_replicas;
  const double too_high = json_number_value(json_object_get(found, "too_high"));
  if (!(json_number_value(json_object_get(found, "rate")) > 0) && least < too_high * times)
    return FALSE;
  note_coarse(race, i, found, times);
  return TRUE;
}

static gboolean
is_engine_in(const oct_plan_race *race, const oct_plan_job *wave, guint n, guint engine) {
  for (guint k = 0; k < n; k++)
    if (layout_at(race, wave[k].layout)->engine == engine)
      return TRUE;
  return FALSE;
}

#define HANDLED G_MAXUINT

/* The next wave out of `order`, in which what has been dealt with is HANDLED. A layout whose engine
 * is in the wave waits for what comes of that. */
static guint
pick_wave(oct_plan_race *race, ranked *order, guint n_order, oct_plan_job wave[OCT_PLAN_WAVE]) {
  const double bar = bar_of(race);
  guint n = 0;
  for (guint at = 0; at < n_order && n < OCT_PLAN_WAVE; at++) {
    const guint i = order[at].layout;
    if (i == HANDLED)
      continue;
    oct_plan_layout *l = layout_at(race, i);
    if (is_engine_in(race, wave, n, l->engine))
      continue;
    order[at].layout = HANDLED;
    if (!is_in_the_race(race, l, bar))
      continue;
    const double least = least_rate(race, l, bar);
    if (is_known(race, i, least))
      continue;
    wave[n++] = (oct_plan_job){.layout = i,
                               .guess = l->bound.rate_guess,
                               .least = least,
                               .widen = COARSE_WIDEN,
                               .change = {.name = ""}};
  }
  return n;
}

static gboolean
race_coarse(oct_plan_race *race, GError **error) {
  g_autofree ranked *order = g_new0(ranked, race->layouts->len + 1);
  guint n_order = 0, n;
  for (guint i = 0; i < race->layouts->len; i++) {
    const oct_plan_layout *l = layout_at(race, i);
    if (l->fate != OCT_PLAN_FATE_ILLEGAL && l->fate != OCT_PLAN_FATE_BOUNDED)
      order[n_order++] = (ranked){i, oct_plan_score(race->options, l, l->bound.rate_guess)};
  }
  qsort(order, n_order, sizeof *order, by_score);
  oct_plan_job wave[OCT_PLAN_WAVE];
  while ((n = pick_wave(race, order, n_order, wave)) > 0) {
    json_t *found[OCT_PLAN_WAVE];
    if (!oct_plan_run_jobs(race, "coarse", wave, n, found, error))
      return FALSE;
    for (guint k = 0; k < n; k++) {
      const guint engine = layout_at(race, wave[k].layout)->engine;
      race->searches[engine] = found[k];
      race->searched_as[engine] = wave[k].layout;
      note_coarse(race, wave[k].layout, found[k], 1);
    }
  }
  return TRUE;
}

/* ---------------------------------------------------------------- finals */

static guint
pick_finals(oct_plan_race *race, oct_plan_final finals[OCT_PLAN_FINALS]) {
  g_autofree ranked *order = g_new0(ranked, race->layouts->len + 1);
  guint n_order = rank_simulated(race, order), n;
  for (n = 0; n < n_order && n < OCT_PLAN_FINALS && isfinite(order[n].score); n++)
    finals[n] = (oct_plan_final){.layout = order[n].layout};
  return n;
}

/* A single replica that goes on in another layout after a loss: that may serve more than the whole
 * does. (Of several replicas one less never does.) */
static gboolean
is_replanned(const oct_plan_layout *l) {
  return l->after_loss != NULL && l->options.n_replicas == 1;
}

static oct_plan_job
healthy_job(const oct_plan_race *race, guint layout) {
  const oct_plan_layout *l = layout_at(race, layout);
  const double n_left = l->run.n_replicas, n_all = l->options.n_replicas;
  return (oct_plan_job){.layout = layout,
                        .healthy = TRUE,
                        .guess = race->coarse[layout] * n_all / n_left,
                        .widen = COARSE_WIDEN,
                        .change = {.name = ""}};
}

/* Takes out of the race what serves less whole than with one GPU lost, until the finals are of
 * layouts that do not. */
static gboolean
check_whole(oct_plan_race *race, GError **error) {
  g_autofree gboolean *checked = g_new0(gboolean, race->layouts->len + 1);
  for (;;) {
    oct_plan_final finals[OCT_PLAN_FINALS];
    oct_plan_job jobs[OCT_PLAN_FINALS];
    json_t *found[OCT_PLAN_FINALS];
    guint n_jobs = 0, n = pick_finals(race, finals);
    for (guint f = 0; f < n; f++)
      if (is_replanned(layout_at(race, finals[f].layout)) && !checked[finals[f].layout])
        jobs[n_jobs++] = healthy_job(race, finals[f].layout);
    if (n_jobs == 0)
      return TRUE;
    if (!oct_plan_run_jobs(race, "whole", jobs, n_jobs, found, error))
      return FALSE;
    for (guint k = 0; k < n_jobs; k++) {
      const guint i = jobs[k].layout;
      const double whole = json_number_value(json_object_get(found[k], "rate"));
      checked[i] = TRUE;
      if (whole >= race->coarse[i] / WHOLE_SLACK ||
          json_is_object(json_object_get(found[k], "unjudged")))
        continue;
      oct_plan_layout *l = layout_at(race, i);
      l->why =
          g_strdup_printf("whole it serves %.4g/s, less than the %.4g/s of %s with one GPU lost",
                          whole, race->coarse[i], l->after_loss);
      race->coarse[i] = 0;
      race->coarse_at[i] = NULL;
    }
  }
}

static int
by_final_score(const void *a, const void *b) {
  const oct_plan_final *x = a, *y = b;
  if (x->score != y->score)
    return x->score > y->score ? -1 : 1;
  /* Of those that do not serve what is wanted the one that comes nearest. */
  if (isinf(x->score) && x->rate.mean != y->rate.mean)
    return x->rate.mean > y->rate.mean ? -1 : 1;
  return (x->layout > y->layout) - (x->layout < y->layout);
}

/* The searches of all finals, one for each stream: first streams first. */
typedef struct streams {
  guint n_finals, seeds;
  oct_plan_job jobs[OCT_PLAN_FINALS * OCT_PLAN_SEEDS_MAX];
  json_t *found[OCT_PLAN_FINALS * OCT_PLAN_SEEDS_MAX];
} streams;

static guint
stream_job(const streams *s, guint f, guint k) {
  return k == 0 ? f : s->n_finals + f * (s->seeds - 1) + k - 1;
}

static double
stream_rate(const streams *s, guint f, guint k) {
  return json_number_value(json_object_get(s->found[stream_job(s, f, k)], "rate"));
}

/* A final's search on stream k begins at its rate on the first stream, times what the first final
 * made of k: streams that are easy are so for all layouts. And a step above: a rate that is not
 * served costs little, one that is served a whole run. Where either served nothing on the first
 * stream, it begins as the first stream did. */
static gboolean
prepare_stream(void *user, guint i) {
  streams *s = user;
  if (i < s->n_finals)
    return TRUE;
  const guint f = (i - s->n_finals) / (s->seeds - 1), k = 1 + (i - s->n_finals) % (s->seeds - 1);
  if (s->found[stream_job(s, f, 0)] == NULL || s->found[stream_job(s, 0, 0)] == NULL)
    return FALSE;
  const double rate = stream_rate(s, f, 0), first = stream_rate(s, 0, 0);
  if (!(rate > 0) || !(first > 0))
    return TRUE;
  if (f > 0 && s->found[stream_job(s, 0, k)] == NULL)
    return FALSE;
  const double there = f > 0 ? stream_rate(s, 0, k) : 0;
  s->jobs[i].guess = (there > 0 ? rate * there / first : rate) * NEXT_WIDEN;
  s->jobs[i].widen = NEXT_WIDEN;
  return TRUE;
}

static gboolean
run_streams(oct_plan_race *race, oct_plan_final *finals, guint n, guint seeds, GError **error) {
  g_autofree streams *s = g_new0(streams, 1);
  s->n_finals = n;
  s->seeds = seeds;
  for (guint f = 0; f < n; f++)
    for (guint k = 0; k < seeds; k++)
      s->jobs[stream_job(s, f, k)] = (oct_plan_job){.layout = finals[f].layout,
                                                    .seed = k,
                                                    .full = TRUE,
                                                    .guess = race->coarse[finals[f].layout],
                                                    .widen = FULL_WIDEN,
                                                    .change = {.name = ""}};
  if (!oct_plan_run_ready(race, "final", s->jobs, n * seeds, prepare_stream, s, s->found, error))
    return FALSE;
  for (guint f = 0; f < n; f++)
    for (guint k = 0; k < seeds; k++)
      finals[f].searches[k] = s->found[stream_job(s, f, k)];
  return TRUE;
}

/* Whether the search found the highest rate, or one that is enough. */
static gboolean
is_judged(const oct_plan_race *race, const json_t *search) {
  const double rate = json_number_value(json_object_get(search, "rate"));
  return !json_is_object(json_object_get(search, "unjudged")) ||
         (race->options->wanted > 0 && rate >= race->options->wanted);
}

/* Takes out those that are known to serve nothing. */
static guint
keep_served(oct_plan_race *race, oct_plan_final *finals, guint n) {
  guint kept = 0;
  for (guint f = 0; f < n; f++) {
    if (finals[f].rate.mean > 0 || finals[f].unjudged != NULL) {
      finals[kept++] = finals[f];
      continue;
    }
    const json_t *high = json_object_get(finals[f].searches[0], "too_high");
    layout_at(race, finals[f].layout)->why = g_strdup_printf(
        "in full it does not serve %.4g/s: looked no further", json_number_value(high));
  }
  return kept;
}

static gboolean
run_finals(oct_plan_race *race, oct_plan_final *finals, guint n, GError **error) {
  const guint seeds = race->workload.generated ? race->options->seeds : 1;
  oct_assert(seeds >= 1 && seeds <= OCT_PLAN_SEEDS_MAX);
  if (!run_streams(race, finals, n, seeds, error))
    return FALSE;
  for (guint f = 0; f < n; f++) {
    oct_plan_layout *l = layout_at(race, finals[f].layout);
    double rates[OCT_PLAN_SEEDS_MAX], left = 0;
    for (guint k = 0; k < seeds; k++) {
      const json_t *high = json_object_get(finals[f].searches[k], "too_high");
      rates[k] = json_number_value(json_object_get(finals[f].searches[k], "rate"));
      if (finals[f].unjudged == NULL && !is_judged(race, finals[f].searches[k]))
        finals[f].unjudged = finals[f].searches[k];
      if (json_is_number(high))
        left += (json_number_value(high) - rates[k]) / 2 / seeds;
    }
    /* Streams may agree on a rate to within what their searches have left open. */
    finals[f].rate = oct_plan_estimate_of(rates, seeds);
    if (seeds > 1)
      finals[f].rate.half = MAX(finals[f].rate.half, left);
    finals[f].score = oct_plan_score(race->options, l, finals[f].rate.mean);
    l->fate = OCT_PLAN_FATE_FINALIST;
  }
  qsort(finals, n, sizeof *finals, by_final_score);
  return TRUE;
}

/* ---------------------------------------------------------------- without the loss */

/* Coarse: rates so far are those with one GPU lost. Of several nodes one has the loss. */
static gboolean
run_healthy(oct_plan_race *race, oct_plan_final *finals, guint n, GError **error) {
  oct_plan_job jobs[OCT_PLAN_FINALS];
  json_t *found[OCT_PLAN_FINALS];
  for (guint f = 0; f < n; f++) {
    finals[f].healthy = NAN;
    jobs[f] = healthy_job(race, finals[f].layout);
  }
  if (n == 0 || layout_at(race, finals[0].layout)->after_loss == NULL)
    return TRUE;
  if (!oct_plan_run_jobs(race, "without the loss", jobs, n, found, error))
    return FALSE;
  for (guint f = 0; f < n; f++) {
    finals[f].healthy = json_number_value(json_object_get(found[f], "rate"));
    finals[f].score = oct_plan_score_with(race->options, layout_at(race, finals[f].layout),
                                          finals[f].rate.mean, finals[f].healthy);
  }
  qsort(finals, n, sizeof *finals, by_final_score);
  return TRUE;
}

/* ---------------------------------------------------------------- what-ifs */

static guint
list_changes(const oct_plan_race *race, oct_plan_change changes[OCT_PLAN_CHANGES_MAX]) {
  const double e = race->options->cost_error;
  guint n = 0;
  if (e > 0) {
    changes[n++] = (oct_plan_change){.name = "step costs up", .cost_scale = 1 + e};
    changes[n++] = (oct_plan_change){.name = "step costs down", .cost_scale = 1 - e};
  }
  changes[n++] = (oct_plan_change){.name = "outputs 20 % longer", .output_scale = 1.2};
  changes[n++] = (oct_plan_change){.name = "outputs 20 % shorter", .output_scale = 0.8};
  if (race->workload.has_prefix_ids)
    changes[n++] = (oct_plan_change){.name = "a fifth less prefix shared", .prefix_share = 0.8};
  return n;
}

/* Where its search begins. A step that costs more also leaves less of the limit on the gaps;
 * prompts do not grow with outputs. */
static double
changed_guess(double rate, const oct_plan_change *change) {
  if (change->cost_scale > 0)
    rate /= pow(change->cost_scale, 1.5);
  return change->output_scale > 0 ? rate / sqrt(change->output_scale) : rate;
}

static gboolean
stands_for_others(const oct_plan_layout *l) {
  return l->alone && l->run.n_replicas > 1;
}

static oct_plan_job
changed_job(const oct_plan_race *race, guint layout, const oct_plan_change *change) {
  return (oct_plan_job){.layout = layout,
                        .guess = changed_guess(race->coarse[layout], change),
                        .widen = CHANGE_WIDEN,
                        .horizon_rate = race->coarse[layout],
                        .change = *change};
}

/* The first finals again, coarse: what a change does to the coarse rate it does to the full one.
 * Without a change too, over the same horizon: the race's own search may be of another one, and of
 * what another number of replicas was dealt. */
static gboolean
run_changes(oct_plan_race *race, const oct_plan_final *finals, guint n, oct_plan_whatifs *out,
            GError **error) {
  static const oct_plan_change none = {.name = "no change"};
  oct_plan_job jobs[(OCT_PLAN_CHANGES_MAX + 1) * OCT_PLAN_CHANGED + 1];
  json_t *found[G_N_ELEMENTS(jobs)];
  guint n_jobs = 0;
  out->n_layouts = MIN(n, OCT_PLAN_CHANGED);
  out->n = list_changes(race, out->changes);
  const gboolean together = n > 0 && stands_for_others(layout_at(race, finals[0].layout));
  if (together)
    jobs[n_jobs++] = (oct_plan_job){.layout = finals[0].layout,
                                    .together = TRUE,
                                    .guess = finals[0].rate.mean,
                                    .widen = CHANGE_WIDEN,
                                    .change = {.name = ""}};
  const guint base = n_jobs;
  for (guint f = 0; f < out->n_layouts; f++)
    jobs[n_jobs++] = changed_job(race, finals[f].layout, &none);
  for (guint c = 0; c < out->n; c++)
    for (guint f = 0; f < out->n_layouts; f++)
      jobs[n_jobs++] = changed_job(race, finals[f].layout, &out->changes[c]);
  if (!oct_plan_run_jobs(race, "what if", jobs, n_jobs, found, error))
    return FALSE;
  if (together)
    out->together = json_object_get(found[0], "at");
  for (guint c = 0; c < out->n; c++)
    for (guint f = 0; f < out->n_layouts; f++) {
      const json_t *search = found[base + (c + 1) * out->n_layouts + f];
      double rate = json_number_value(json_object_get(search, "rate"));
      double unchanged = json_number_value(json_object_get(found[base + f], "rate"));
      if (!(unchanged > 0))
        unchanged = race->coarse[finals[f].layout];
      out->rates[c][f] = finals[f].rate.mean * rate / unchanged;
    }
  return TRUE;
}

/* ---------------------------------------------------------------- the whole */

/* The first layout whose replicas are the same engine, where one of them stands for all. */
static guint
engine_of(const oct_plan_race *race, guint i) {
  const oct_plan_layout *l = layout_at(race, i);
  for (guint k = 0; k < i && l->alone; k++) {
    const oct_plan_layout *other = layout_at(race, k);
    if (other->alone && other->variant == l->variant &&
        memcmp(&other->run.engine.instance.parallel, &l->run.engine.instance.parallel,
               sizeof(oct_parallel)) == 0) /* of 32-bit fields alone */
      return k;
  }
  return i;
}

static gboolean
make_layouts(oct_plan_race *race, GError **error) {
  const oct_plan_options *o = race->options;
  for (guint v = 0; v < o->n_variants; v++)
    if (!oct_plan_layouts(&o->variants[v], v, o->gpus_max, &o->base->slo, &race->workload,
                          race->layouts, error))
      return FALSE;
  race->coarse = g_new0(double, race->layouts->len + 1);
  race->coarse_at = g_new0(json_t *, race->layouts->len + 1);
  race->searches = g_new0(json_t *, race->layouts->len + 1);
  race->searched_as = g_new0(guint, race->layouts->len + 1);
  for (guint i = 0; i < race->layouts->len; i++) {
    race->coarse[i] = NAN;
    layout_at(race, i)->engine = engine_of(race, i);
  }
  return TRUE;
}

/* What is wanted, when it is not said but follows from the trace. */
static gboolean
settle_demand(oct_plan_race *race, oct_plan_options *options, GError **error) {
  if (!oct_plan_demand_find(&options->asked, &options->base->rows, &race->workload, &race->demand,
                            error))
    return FALSE;
  if (race->demand.rate > 0)
    options->wanted = race->demand.rate;
  return TRUE;
}

static json_t *
make(oct_plan_race *race, oct_plan_options *options, GError **error) {
  oct_plan_final finals[OCT_PLAN_FINALS];
  oct_plan_whatifs whatifs = {0};
  if (!oct_plan_workload_read(&race->options->base->rows, race->options->endless, &race->workload,
                              error) ||
      !settle_demand(race, options, error) || !make_layouts(race, error) ||
      !oct_plan_open_state(race, error) || !race_coarse(race, error) || !check_whole(race, error))
    return NULL;
  guint n = pick_finals(race, finals);
  if (!run_finals(race, finals, n, error))
    return NULL;
  n = keep_served(race, finals, n);
  g_autofree char *no_verdict = oct_plan_no_verdict(race, finals, n);
  const guint n_sure = no_verdict == NULL ? n : 0;
  if (!run_healthy(race, finals, n, error) || !run_changes(race, finals, n_sure, &whatifs, error))
    return NULL;
  return oct_plan_json(race, finals, n, &whatifs, no_verdict);
}

json_t *
oct_plan_make(const oct_plan_options *options, GError **error) {
  oct_assert(options->goal != OCT_PLAN_GOAL_GPUS || options->wanted > 0 ||
             oct_plan_asks_more(&options->asked));
  oct_assert(options->nodes_max >= 1 && options->parallel >= 1);
  oct_plan_options settled = *options;
  oct_plan_race race = {.options = &settled,
                        .layouts = g_array_new(FALSE, TRUE, sizeof(oct_plan_layout))};
  g_array_set_clear_func(race.layouts, oct_plan_layout_clear);
  json_t *plan = make(&race, &settled, error);
  json_decref(race.state);
  g_free(race.coarse);
  g_free(race.coarse_at);
  g_free(race.searches);
  g_free(race.searched_as);
  oct_plan_workload_clear(&race.workload);
  g_array_unref(race.layouts);
  return plan;
}
