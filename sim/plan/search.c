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
  double low, high;     /* served, not served; 0 = not known */
  guint n_probes;
  json_t *at;
} search;

static json_t *
run_probe(void *user, guint index, GError **error) {
  const search *s = user;
  (void)index;
  return s->options->probe(s->options->user, s->rate, s->stretch, error);
}

/* Moves one end of the bracket to `rate`. */
static gboolean
probe(search *s, double rate, GError **error) {
  json_t *answer = NULL;
  s->rate = rate;
  for (s->stretch = 1;; s->stretch *= 2) {
    json_decref(answer);
    answer = NULL;
    s->n_probes++;
    if (!oct_jobs_run_at_once(1, 1, run_probe, s, NULL, &answer, error))
      return FALSE;
    if (!json_is_true(json_object_get(answer, "undecided")) ||
        2 * s->stretch > s->options->stretch_max)
      break;
  }
  if (json_is_true(json_object_get(answer, "served"))) {
    s->low = rate;
    json_decref(s->at);
    s->at = answer;
  } else {
    s->high = rate;
    json_decref(answer);
  }
  return TRUE;
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
  search s = {.options = options};
  if (!find(&s, error)) {
    json_decref(s.at);
    return NULL;
  }
  return json_pack("{s:f, s:o, s:I, s:o}", "rate", s.low, "too_high",
                   s.high > 0 ? json_real(s.high) : json_null(), "probes", (json_int_t)s.n_probes,
                   "at", s.at != NULL ? s.at : json_null());
}
