/* Searches in children, and what they found on disk: each that ends is written down at once, whole
 * or not at all, so that a plan that is interrupted goes on where it was. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/plan/probe.h"
#include "sim/plan/race.h"
#include "sim/plan/search.h"
#include "sim/replay/jobs.h"

#define FULL_TOLERANCE    0.02
#define FULL_STRETCH_MAX  4
#define STRETCH_SHORT_MAX 16

/* ---------------------------------------------------------------- the state's file */

/* What must be equal for results to be of use: the traffic, the objectives and the horizons.
 * Layouts are told by the key of each job. */
static char *
key_of(const oct_plan_options *o) {
  const oct_replay_config *c = o->base;
  GString *text = g_string_new(OCT_PLAN_SCHEMA);
  g_string_append_printf(
      text, "|%s|%s|%" G_GUINT64_FORMAT "|%d|%g|%" G_GUINT64_FORMAT "|%" G_GUINT64_FORMAT,
      PACKAGE_VERSION, c->rows.path, c->rows.trace != NULL ? c->rows.trace->limit : 0,
      c->exact_lengths, o->full_seconds, o->coarse_requests, c->rows.seed);
  g_string_append_printf(text, "|%s", o->identity);
  for (guint i = 0; i < c->slo.n_items; i++)
    g_string_append_printf(text, "|%s=%" G_GINT64_FORMAT, c->slo.items[i].name,
                           c->slo.items[i].limit_ns);
  return g_string_free(text, FALSE);
}

gboolean
oct_plan_open_state(oct_plan_race *race, GError **error) {
  const char *path = race->options->state_path;
  g_autofree char *key = key_of(race->options);
  if (path != NULL && g_file_test(path, G_FILE_TEST_EXISTS)) {
    json_error_t why;
    race->state = json_load_file(path, 0, &why);
    const char *found = json_string_value(json_object_get(race->state, "key"));
    if (g_strcmp0(found, key) == 0 && json_is_object(json_object_get(race->state, "done")))
      return TRUE;
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "state %s: %s", path,
                found != NULL ? "belongs to another trace, objective, horizon or version"
                              : "is no state of a plan");
    return FALSE;
  }
  race->state = json_pack("{s:s, s:{}}", "key", key, "done");
  return TRUE;
}

static gboolean
save_state(const oct_plan_race *race, GError **error) {
  const char *path = race->options->state_path;
  if (path == NULL)
    return TRUE;
  char *text = json_dumps(race->state, JSON_COMPACT | JSON_REAL_PRECISION(17));
  gboolean good = g_file_set_contents(path, text, -1, error);
  free(text);
  return good;
}

/* The whole of a job: layout with its knobs, stream, horizon and change. */
static char *
job_key(const oct_plan_race *race, const oct_plan_job *job) {
  const oct_plan_layout *l = &g_array_index(race->layouts, oct_plan_layout, job->layout);
  const oct_setup_options *o = &l->options;
  return g_strdup_printf(
      "%s on %s: %s|tokens %u seqs %u|seed %u|%s|%s|from %.9g by %.4g to %.9g over %.9g", o->model,
      o->node != NULL ? o->node : "mock", l->label, o->engine.max_num_batched_tokens,
      o->engine.max_num_seqs, job->seed,
      job->together  ? "together"
      : job->healthy ? "healthy"
      : job->full    ? "full"
                     : "coarse",
      job->change.name, job->guess, job->widen, job->least, job->horizon_rate);
}

/* ---------------------------------------------------------------- in the child */

static json_t *
probe_rate(void *user, double rate, double stretch, GError **error) {
  return oct_plan_probe_run(user, rate, stretch, error);
}

typedef struct batch {
  oct_plan_race *race;
  const oct_plan_job *jobs;
  guint n, n_done;
  oct_plan_prepare_fn prepare; /* NULL = none waits */
  void *user;
  gboolean *taken;
  json_t **found;   /* [n]: of those that ran; owned */
  json_t **results; /* [n]: borrowed from the state */
  const char *phase;
  GError *error; /* of the state's file */
} batch;

/* A run that begins empty and ends before it has settled serves too much, and the more so the more
 * requests stay in the engine: a coarse one lasts so many mean residence times, up to so many times
 * the requests that were asked for. */
#define COARSE_RESIDENCES 5
#define COARSE_LONGER_MAX 8

/* Of one engine. */
static guint64
coarse_requests(const oct_plan_race *race, const oct_plan_layout *l, double rate) {
  const oct_plan_workload *w = &race->workload;
  const double asked = (double)race->options->coarse_requests;
  const double requests = rate / l->run.n_replicas * w->requests_per_start;
  const double wanted = requests * oct_plan_layout_residence_s(l, w, rate) * COARSE_RESIDENCES;
  return (guint64)CLAMP(wanted, asked, asked * COARSE_LONGER_MAX);
}

/* Nearly all that arrived in the horizon has ended so many mean residence times later. */
#define AFTER_RESIDENCES 4

/* How many requests of the replicas that are simulated. */
static void
set_horizon(const oct_plan_race *race, const oct_replay_config *config, const oct_plan_job *job,
            oct_plan_probe *probe) {
  const oct_plan_layout *l = &g_array_index(race->layouts, oct_plan_layout, job->layout);
  const guint64 n = config->setup.n_replicas, all = race->workload.n_total;
  guint64 wanted = all;
  if (!job->full)
    wanted = coarse_requests(race, l, job->horizon_rate > 0 ? job->horizon_rate : job->guess) *
             (probe->alone != NULL ? 1 : n);
  if (all > 0)
    wanted = MIN(wanted, probe->alone != NULL ? all / n : all);
  probe->requests = wanted;
}

static json_t *
one_run(const oct_plan_probe *probe, double rate, GError **error) {
  json_t *at = oct_plan_probe_run(probe, rate, 1, error);
  if (at == NULL)
    return NULL;
  const gboolean served = json_is_true(json_object_get(at, "served"));
  return json_pack("{s:f, s:o, s:i, s:o}", "rate", served ? rate : 0, "too_high",
                   served ? json_null() : json_real(rate), "probes", 1, "at", at);
}

/* Assumptions are of the search: out of the runs that it shows. */
static json_t *
told_once(json_t *found) {
  static const char *const names[] = {"unjudged", "at"};
  for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
    json_t *run = json_object_get(found, names[i]), *texts = json_object_get(run, "assumptions");
    if (texts == NULL)
      continue;
    json_object_set(found, "assumptions", texts);
    json_object_del(run, "assumptions");
  }
  return found;
}

static json_t *
run_search(void *user, guint index, GError **error) {
  const batch *b = user;
  const oct_plan_race *race = b->race;
  const oct_plan_options *o = race->options;
  const oct_plan_job *job = &b->jobs[index];
  const oct_plan_layout *l = &g_array_index(race->layouts, oct_plan_layout, job->layout);
  oct_replay_config config = *o->base;
  config.setup = job->healthy ? l->options : l->run;
  config.setup.seed = o->base->setup.seed + job->seed;
  config.setup.cost_scale = job->change.cost_scale;
  config.rows.output_scale = job->change.output_scale;
  config.rows.prefix_share = job->change.prefix_share;
  if (race->workload.generated)
    config.rows.seed = (config.rows.seed > 0 ? config.rows.seed : o->base->setup.seed) + job->seed;
  oct_plan_probe probe = {.config = &config,
                          .requests_per_start = race->workload.requests_per_start,
                          .seconds = o->full_seconds,
                          .strict = job->full,
                          .assumptions = job->full && job->seed == 0,
                          .alone = l->alone && !job->together ? &l->bound.pace : NULL,
                          .workload = &race->workload};
  set_horizon(race, &config, job, &probe);
  probe.after_s = AFTER_RESIDENCES * oct_plan_layout_residence_s(l, &race->workload, job->guess);
  if (job->together)
    return one_run(&probe, job->guess, error);
  const gboolean more = race->workload.n_total == 0; /* of the traffic */
  const oct_plan_search_options search = {.probe = probe_rate,
                                          .user = &probe,
                                          .guess = job->guess,
                                          .least = job->least,
                                          .widen = job->widen,
                                          .tolerance = job->full ? FULL_TOLERANCE
                                                                 : OCT_PLAN_COARSE_TOLERANCE,
                                          .stretch_max = job->full && more ? FULL_STRETCH_MAX : 1,
                                          .stretch_short_max = more ? STRETCH_SHORT_MAX : 1};
  return told_once(oct_plan_search(&search, error));
}

/* ---------------------------------------------------------------- in the parent */

/* Takes job i; whether the state has it. */
static gboolean
take_known(batch *b, guint i) {
  g_autofree char *key = job_key(b->race, &b->jobs[i]);
  b->taken[i] = TRUE;
  b->results[i] = json_object_get(json_object_get(b->race->state, "done"), key);
  b->n_done += b->results[i] != NULL;
  return b->results[i] != NULL;
}

/* The first job that may begin and is not in the state. */
static guint
pick(void *user) {
  batch *b = user;
  gboolean more; /* one that is in the state may let others begin */
  do {
    more = FALSE;
    for (guint i = 0; i < b->n; i++) {
      if (b->taken[i] || (b->prepare != NULL && !b->prepare(b->user, i)))
        continue;
      if (!take_known(b, i))
        return i;
      more = TRUE;
    }
  } while (more);
  return OCT_JOBS_NONE;
}

static void
job_done(void *user, guint i) {
  batch *b = user;
  g_autofree char *key = job_key(b->race, &b->jobs[i]);
  json_object_set(json_object_get(b->race->state, "done"), key, b->found[i]);
  b->results[i] = b->found[i];
  b->n_done++;
  if (b->error == NULL)
    (void)!save_state(b->race, &b->error);
  if (b->race->options->told != NULL)
    b->race->options->told(b->race->options->user, &(oct_plan_progress){b->phase, b->n_done, b->n});
}

gboolean
oct_plan_run_ready(oct_plan_race *race, const char *phase, const oct_plan_job *jobs, guint n,
                   oct_plan_prepare_fn prepare, void *user, json_t **results, GError **error) {
  g_autofree gboolean *taken = g_new0(gboolean, n + 1);
  g_autofree json_t **found = g_new0(json_t *, n + 1);
  batch b = {.race = race,
             .jobs = jobs,
             .n = n,
             .prepare = prepare,
             .user = user,
             .taken = taken,
             .found = found,
             .results = results,
             .phase = phase};
  memset(results, 0, n * sizeof *results);
  if (!oct_jobs_run_picked(race->options->parallel, n, pick, run_search, &b, job_done, found,
                           error)) {
    g_clear_error(&b.error);
    return FALSE;
  }
  for (guint i = 0; i < n; i++) {
    oct_assert(results[i] != NULL);
    race->probes += (guint64)json_integer_value(json_object_get(results[i], "probes"));
    json_decref(found[i]); /* the state has it */
  }
  if (b.error == NULL)
    return TRUE;
  g_propagate_error(error, b.error);
  return FALSE;
}

gboolean
oct_plan_run_jobs(oct_plan_race *race, const char *phase, const oct_plan_job *jobs, guint n,
                  json_t **results, GError **error) {
  return oct_plan_run_ready(race, phase, jobs, n, NULL, NULL, results, error);
}
