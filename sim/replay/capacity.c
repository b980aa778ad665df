#include "sim/replay/capacity.h"

#include <math.h>
#include <string.h>

#include "sim/replay/jobs.h"
#include "sim/replay/report.h"

typedef struct search {
  const oct_capacity_options *options;
  double rates[OCT_JOBS_PARALLEL]; /* of the jobs that run */
  double length;                   /* of probes, in durations: doubled when one cannot be judged */
  gboolean is_final;               /* the run that writes the files which were asked for */
  json_t *probes;
} search;

/* ---------------------------------------------------------------- probes */

static json_t *
run_probe(void *user, guint index, GError **error) {
  search *s = user;
  oct_replay_config config = s->options->config;
  oct_replay_result result;
  config.rows.rate = s->rates[index];
  config.rows.mode = OCT_RATE_COMPRESS;
  config.duration_ns = (oct_time)((double)config.duration_ns * s->length);
  if (!s->is_final)
    config.requests_path = config.timeline_path = config.log_path = NULL;
  config.progress = NULL;
  if (!oct_replay_run(&config, &result, error))
    return NULL;
  json_t *report = oct_replay_json(&config, &result);
  oct_replay_result_clear(&result);
  return report;
}

static gboolean
is_served(const json_t *report) {
  const json_t *verdict = oct_report_at(report, "verdict.verdict");
  const json_t *met = oct_report_at(report, "slo.met");
  /* "Stable" forgives more growth than a capacity may hide. */
  if (oct_report_number(report, "verdict.unserved_share") > OCT_UNSERVED_SATURATED)
    return FALSE;
  return strcmp(json_string_value(verdict), oct_verdict_name(OCT_VERDICT_STABLE)) == 0 &&
         (met == NULL || json_is_true(met));
}

static gboolean
is_undecided(const json_t *report) {
  const json_t *verdict = oct_report_at(report, "verdict.verdict");
  return strcmp(json_string_value(verdict), oct_verdict_name(OCT_VERDICT_UNDECIDED)) == 0;
}

static void
note(search *s, double rate, const json_t *report) {
  static const struct {
    const char *name, *path;
  } copied[] = {{"verdict", "verdict.verdict"},
                {"unserved_share", "verdict.unserved_share"},
                {"requests_per_s", "throughput.requests_per_s"},
                {"output_tokens_per_s", "throughput.output_tokens_per_s"},
                {"ttft_p99_s", "latency_s.ttft.p99"},
                {"tpot_p99_s", "latency_s.tpot.p99"},
                {"slo_met", "slo.met"},
                {"span_s", "window.span_s"}};
  json_t *probe = json_object();
  json_object_set_new(probe, "rate", json_real(rate));
  json_object_set_new(probe, "served", json_boolean(is_served(report)));
  for (gsize i = 0; i < G_N_ELEMENTS(copied); i++) {
    const json_t *value = oct_report_at(report, copied[i].path);
    json_object_set_new(probe, copied[i].name, value != NULL ? json_deep_copy(value) : json_null());
  }
  json_array_append_new(s->probes, probe);
  if (s->options->told != NULL)
    s->options->told(s->options->user, probe);
}

/* Runs n <= OCT_JOBS_PARALLEL rates; what is undecided again, longer. reports[] owned. */
static gboolean
probe(search *s, guint n, const double *rates, json_t **reports, GError **error) {
  memcpy(s->rates, rates, n * sizeof *rates);
  if (!oct_jobs_run(n, run_probe, s, NULL, reports, error))
    return FALSE;
  for (guint i = 0; i < n; i++) {
    note(s, rates[i], reports[i]);
    while (is_undecided(reports[i]) && s->options->config.duration_ns > 0 &&
           2 * s->length <= OCT_CAPACITY_LENGTH_MAX) {
      json_t *again = NULL;
      s->rates[0] = rates[i];
      s->length *= 2;
      if (!oct_jobs_run(1, run_probe, s, NULL, &again, error)) {
        for (guint k = 0; k < n; k++)
          json_decref(reports[k]);
        return FALSE;
      }
      json_decref(reports[i]);
      reports[i] = again;
      note(s, rates[i], again);
    }
  }
  return TRUE;
}

/* One rate: whether it is served, and its report when `report` is not NULL (owned). */
static gboolean
probe_one(search *s, double rate, gboolean *served, json_t **report, GError **error) {
  json_t *got;
  if (!probe(s, 1, &rate, &got, error))
    return FALSE;
  *served = is_served(got);
  if (report != NULL)
    *report = got;
  else
    json_decref(got);
  return TRUE;
}

static gboolean
give_up(GError **error, const char *why, double rate) {
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "find-capacity: %s (%g per second)",
              why, rate);
  return FALSE;
}

/* ---------------------------------------------------------------- the search */

/* From the own rate up to one that is not served; *own becomes the first report. */
static gboolean
overload(search *s, double *low, double *high, double *guess, json_t **own, GError **error) {
  double rate = s->options->own_rate;
  for (guint round = 0; round < OCT_CAPACITY_ROUNDS; round++, rate *= 2) {
    gboolean served;
    json_t *report;
    if (!probe_one(s, rate, &served, &report, error))
      return FALSE;
    double done = oct_report_number(report, "throughput.requests_per_s");
    if (round == 0)
      *own = report;
    else
      json_decref(report);
    if (served) {
      *low = rate;
      continue;
    }
    *high = rate;
    *guess = done;
    return TRUE;
  }
  return give_up(error, "no rate overloads it", rate);
}

/* Makes *low served and *high not, close to the guess where it can be. */
static gboolean
bracket(search *s, double *low, double *high, double guess, GError **error) {
  double low_try = 0.7 * guess, high_try = 1.1 * guess;
  for (guint round = 0; round < OCT_CAPACITY_ROUNDS; round++, low_try /= 2) {
    gboolean served;
    if (*low > 0 && low_try <= *low)
      break;
    if (!(low_try > 0))
      return give_up(error, "an overloaded run completed nothing", *high);
    if (!probe_one(s, low_try, &served, NULL, error))
      return FALSE;
    if (served) {
      *low = low_try;
      break;
    }
    *high = MIN(*high, low_try);
    high_try = G_MAXDOUBLE;
    if (round + 1 == OCT_CAPACITY_ROUNDS)
      return give_up(error, "no rate is served", low_try);
  }
  if (high_try > *low && high_try < *high) {
    gboolean served;
    if (!probe_one(s, high_try, &served, NULL, error))
      return FALSE;
    *(served ? low : high) = high_try;
  }
  return TRUE;
}

static gboolean
narrow(search *s, double *low, double *high, GError **error) {
  for (guint round = 0; *high / *low > 1 + OCT_CAPACITY_TOLERANCE; round++) {
    if (round == OCT_CAPACITY_ROUNDS)
      return give_up(error, "the bracket does not close", *low);
    double step = cbrt(*high / *low);
    double rates[2] = {*low * step, *low * step * step};
    json_t *reports[2];
    if (!probe(s, 2, rates, reports, error))
      return FALSE;
    gboolean first = is_served(reports[0]), second = is_served(reports[1]);
    json_decref(reports[0]);
    json_decref(reports[1]);
    /* Noise can make the lower one fail alone: the lower end counts. */
    if (!first)
      *high = rates[0];
    else if (!second)
      *high = rates[1];
    if (first)
      *low = second ? rates[1] : rates[0];
  }
  return TRUE;
}

static gboolean
find(search *s, json_t *out, GError **error) {
  double low = 0, high = 0, guess = 0;
  json_t *own = NULL;
  gboolean good = overload(s, &low, &high, &guess, &own, error) &&
                  bracket(s, &low, &high, guess, error) && narrow(s, &low, &high, error);
  if (own != NULL)
    json_object_set_new(out, "at_own_rate", own);
  if (!good)
    return FALSE;
  json_object_set_new(out, "rate", json_real(low));
  json_object_set_new(out, "too_high", json_real(high));
  json_object_set_new(out, "own_rate", json_real(s->options->own_rate));
  json_object_set_new(out, "own_ratio", json_real(s->options->own_rate / low));
  gboolean served;
  json_t *report;
  s->is_final = TRUE;
  if (!probe_one(s, low * s->options->load, &served, &report, error))
    return FALSE;
  json_object_set_new(out, "load", json_real(s->options->load));
  json_object_set_new(out, "at_load", report);
  return TRUE;
}

json_t *
oct_capacity_find(const oct_capacity_options *options, GError **error) {
  search s = {.options = options, .length = 1, .probes = json_array()};
  json_t *out = json_object();
  json_object_set_new(out, "schema", json_string("octet-capacity-1"));
  json_object_set_new(out, "criterion",
                      json_string(options->config.slo.n_items > 0
                                      ? "the highest rate that is stable and meets the objectives"
                                      : "the highest rate that is stable"));
  gboolean good = find(&s, out, error);
  json_object_set_new(out, "probes", s.probes);
  if (good)
    return out;
  json_decref(out);
  return NULL;
}
