#include "sim/plan/search.h"

#include <math.h>

#include "engine/base/assert.h"
#include "sim/replay/jobs.h"

/* Below this share of the guess nobody looks: the layout serves nothing worth having. */
#define LEAST_SHARE (1.0 / 64)
/* The first steps down are alike. A rate that is not served is soon given up, one that is served
 * runs to its end: rather several short steps down than a wide bracket to bisect from below. */
#define EVEN_STEPS 5

typedef struct search {
  const oct_plan_search_options *options;
  double rate, stretch; /* of the probe that runs */
  /* Shorter ones were too short: for a rate beside that one they are so too. */
  double least_stretch;
  double low, high; /* served, not served; 0 = not known */
  guint n_probes;
  json_t *at;       /* the probe at `low`, NULL = none */
  json_t *over;     /* at `high` */
  json_t *doubtful; /* the first that could not be judged, NULL = none */
} search;

static json_t *
run_probe(void *user, guint index, GError **error) {
  const search *s = user;
  (void)index;
  return s->options->probe(s->options->user, s->rate, s->stretch, error);
}

static gboolean
is_doubtful(const json_t *answer) {
  return json_is_true(json_object_get(answer, "too_short")) ||
         json_is_true(json_object_get(answer, "undecided"));
}

/* Moves one end of the bracket to `rate`. */
static gboolean
probe(search *s, double rate, GError **error) {
  json_t *answer = NULL;
  s->rate = rate;
  for (s->stretch = s->least_stretch;; s->stretch *= 2) {
    json_decref(answer);
    answer = NULL;
    s->n_probes++;
    if (!oct_jobs_run_at_once(1, 1, run_probe, s, NULL, &answer, error))
      return FALSE;
    const gboolean is_short = json_is_true(json_object_get(answer, "too_short"));
    if (!is_doubtful(answer))
      break;
    const double most =
        is_short ? s->options->stretch_short_max : s->least_stretch * s->options->stretch_max;
    if (2 * s->stretch > most)
      break;
    if (is_short)
      s->least_stretch = 2 * s->stretch;
  }
  if (s->doubtful == NULL && is_doubtful(answer))
    s->doubtful = json_incref(answer);
  const gboolean served = json_is_true(json_object_get(answer, "served"));
  json_t **end = served ? &s->at : &s->over;
  *(served ? &s->low : &s->high) = rate;
  json_decref(*end);
  *end = answer;
  return TRUE;
}

/* The probe above the rate that was found, where that was too short and says nothing of its rate:
 * the highest that is served is then not known. Where nothing was served, any probe that could not
 * be judged leaves that open. Owned. */
static json_t *
unjudged(const search *s) {
  if (s->low <= 0)
    return s->doubtful != NULL ? json_incref(s->doubtful) : json_null();
  return json_is_true(json_object_get(s->over, "too_short")) ? json_incref(s->over) : json_null();
}

static gboolean
find(search *s, GError **error) {
  const oct_plan_search_options *o = s->options;
  double step = o->widen;
  if (!probe(s, o->guess, error))
    return FALSE;
  /* Outwards, each step wider than the one before. */
  while ((s->low <= 0 || s->high <= 0) && s->n_probes < OCT_PLAN_PROBES_MAX) {
    double rate = s->low > 0 ? s->low * step : s->high / step;
    if (s->low <= 0 && (rate < o->guess * LEAST_SHARE || s->high <= o->least))
      return TRUE;
    if (!probe(s, rate, error))
      return FALSE;
    if (s->low > 0 || s->n_probes > EVEN_STEPS)
      step = MIN(step * o->widen, 4);
  }
  while (s->low > 0 && s->high > 0 && s->high / s->low > 1 + o->tolerance &&
         s->n_probes < OCT_PLAN_PROBES_MAX)
    if (!probe(s, sqrt(s->low * s->high), error))
      return FALSE;
  return TRUE;
}

json_t *
oct_plan_search(const oct_plan_search_options *options, GError **error) {
  oct_assert(options->guess > 0 && options->widen > 1 && options->tolerance > 0);
  search s = {.options = options, .least_stretch = 1};
  if (!find(&s, error)) {
    json_decref(s.at);
    json_decref(s.over);
    json_decref(s.doubtful);
    return NULL;
  }
  json_t *found =
      json_pack("{s:f, s:o, s:I, s:o, s:o}", "rate", s.low, "too_high",
                s.high > 0 ? json_real(s.high) : json_null(), "probes", (json_int_t)s.n_probes,
                "at", s.at != NULL ? s.at : json_null(), "unjudged", unjudged(&s));
  json_decref(s.over);
  json_decref(s.doubtful);
  return found;
}
