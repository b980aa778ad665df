/* Simulated runs of published configurations, in child processes: SimGrid has one world each. */
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/replay/jobs.h"
#include "sim/replay/replay.h"
#include "sim/validate/score.h"
#include "sim/validate/silicon.h"

const guint oct_silicon_k[OCT_SILICON_KS] = {1, 5, 10, 20};
const double oct_silicon_range[OCT_SILICON_RANGES] = {1, 0.8};

/* ---------------------------------------------------------------- one run */

typedef struct means {
  guint first_wave;
  guint64 n[2], n_tpot[2];
  double ttft_s[2], tpot_s[2];
} means;

static void
count_outcome(void *user, guint64 index, const oct_outcome *o) {
  means *m = user;
  const gint64 ttft = o->value_ns[OCT_LATENCY_TTFT], tpot = o->value_ns[OCT_LATENCY_TPOT];
  for (guint w = 0; w < 2; w++) {
    if (w == 1 && index < m->first_wave)
      break;
    if (ttft >= 0) {
      m->n[w]++;
      m->ttft_s[w] += (double)ttft / 1e9;
    }
    if (tpot >= 0) {
      m->n_tpot[w]++;
      m->tpot_s[w] += (double)tpot / 1e9;
    }
  }
}

static char *
load_of(const oct_silicon_row *row, guint load) {
  const guint k = oct_silicon_k[load / OCT_SILICON_RANGES];
  const double range = oct_silicon_range[load % OCT_SILICON_RANGES];
  const guint isl = MAX(1, (guint)(range * row->isl)), osl = MAX(2, (guint)(range * row->osl));
  return g_strdup_printf(
      "gen:arrivals=closed,concurrency=%u,requests=%u,input=uniform:%u:%u,output=uniform:%u:%u",
      row->concurrency, k * row->concurrency, isl, row->isl, osl, row->osl);
}

static json_t *
run_one(const oct_silicon_row *row, guint load, GError **error) {
  g_autofree char *trace = load_of(row, load);
  oct_replay_config config;
  oct_replay_result result;
  means m = {.first_wave = row->concurrency};
  oct_replay_config_default(&config);
  if (!oct_silicon_setup(row, &config.setup, error))
    return NULL;
  config.rows.path = trace;
  config.exact_lengths = TRUE;
  config.warmup_ns = 0;
  config.outcome = count_outcome;
  config.user = &m;
  if (!oct_replay_run(&config, &result, error))
    return NULL;
  oct_replay_result_clear(&result);
  json_t *out = json_array();
  for (guint w = 0; w < 2; w++) {
    json_array_append_new(out, json_real(m.n[w] > 0 ? m.ttft_s[w] / (double)m.n[w] : 0));
    json_array_append_new(out, json_real(m.n_tpot[w] > 0 ? m.tpot_s[w] / (double)m.n_tpot[w] : 0));
  }
  return out;
}

/* ---------------------------------------------------------------- many */

typedef struct job {
  const oct_silicon_row *row;
  guint load;
  GArray *wanted; /* guint: indices into the result */
} job;

typedef struct batch {
  const job *jobs;
} batch;

static json_t *
run_job(void *user, guint index, GError **error) {
  const batch *b = user;
  g_autoptr(GError) reason = NULL;
  json_t *found = run_one(b->jobs[index].row, b->jobs[index].load, &reason);
  (void)error;
  /* One configuration that cannot be built does not end the others. */
  return found != NULL ? found : json_string(reason->message);
}

static void
store(const job *j, const json_t *found, oct_silicon_run *out) {
  for (guint i = 0; i < j->wanted->len; i++) {
    oct_silicon_run *run = &out[g_array_index(j->wanted, guint, i)];
    if (json_is_string(found)) {
      run->failed = g_strdup(json_string_value(found));
      continue;
    }
    for (guint w = 0; w < 2; w++) {
      run->ttft_s[w] = json_number_value(json_array_get(found, 2 * (gsize)w));
      run->tpot_s[w] = json_number_value(json_array_get(found, 2 * (gsize)w + 1));
    }
  }
}

/* Equal configurations and loads become one job. */
static GArray *
make_jobs(const oct_silicon_row *const *rows, guint n, const guint8 *loads) {
  GArray *jobs = g_array_new(FALSE, FALSE, sizeof(job));
  g_autoptr(GHashTable) known = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  for (guint i = 0; i < n; i++)
    for (guint load = 0; load < OCT_SILICON_LOADS; load++) {
      const oct_silicon_row *r = rows[i];
      if ((loads[i] >> load & 1) == 0)
        continue;
      g_autofree char *key =
          g_strdup_printf("%s,%s,%s,%u,%u,%u,%s,%s,%u,%u,%u,%u,%u", r->backend,
                          oct_silicon_engine(r), r->model, r->system, r->isl, r->osl, r->gemm,
                          r->moe, r->concurrency, r->tp, r->dp, r->moe_ep > 1, load);
      guint at = GPOINTER_TO_UINT(g_hash_table_lookup(known, key));
      if (at == 0) {
        job fresh = {r, load, g_array_new(FALSE, FALSE, sizeof(guint))};
        g_array_append_val(jobs, fresh);
        at = jobs->len;
        g_hash_table_insert(known, g_steal_pointer(&key), GUINT_TO_POINTER(at));
      }
      guint index = i * OCT_SILICON_LOADS + load;
      g_array_append_val(g_array_index(jobs, job, at - 1).wanted, index);
    }
  return jobs;
}

gboolean
oct_silicon_simulate(const oct_silicon_row *const *rows, guint n, const guint8 *loads,
                     const oct_validate_options *options, oct_silicon_run *out, GError **error) {
  GArray *jobs = make_jobs(rows, n, loads);
  json_t *results[OCT_JOBS_MAX];
  gboolean good = TRUE;
  for (guint from = 0; from < jobs->len && good; from += OCT_JOBS_MAX) {
    batch b = {&g_array_index(jobs, job, from)};
    guint count = MIN(OCT_JOBS_MAX, jobs->len - from);
    if (options->told != NULL)
      options->told(options->user, "runs simulated", from, jobs->len);
    good = oct_jobs_run_at_once(options->jobs, count, run_job, &b, NULL, results, error);
    for (guint i = 0; i < count && good; i++) {
      store(&b.jobs[i], results[i], out);
      json_decref(results[i]);
    }
  }
  for (guint i = 0; i < jobs->len; i++)
    g_array_unref(g_array_index(jobs, job, i).wanted);
  g_array_unref(jobs);
  return good;
}

/* ---------------------------------------------------------------- constants of an engine */

/* An error counts at most so much in the mean: rows that another thing is wrong with. */
#define ERROR_MAX 0.5

void
oct_silicon_fit_steps(const double *predicted, const double *measured, guint n,
                      oct_silicon_fit *out) {
  g_autofree double *errors = g_new(double, n + 1);
  double best = INFINITY;
  *out = (oct_silicon_fit){1, 0, NAN};
  for (guint f = 80; f <= 130 && n > 0; f += 2)
    for (guint g = 0; g <= 30; g++) {
      const double factor = f / 100.0, gap_s = g * 1e-4;
      double sum = 0;
      for (guint i = 0; i < n; i++) {
        errors[i] = fabs((factor * predicted[i] + gap_s) / measured[i] - 1);
        sum += MIN(errors[i], ERROR_MAX);
      }
      double median = oct_quantile(errors, n, 0.5), error = median + 0.5 * sum / n;
      if (error < best) {
        best = error;
        *out = (oct_silicon_fit){factor, gap_s, median};
      }
    }
}

/* ---------------------------------------------------------------- prefill alone */

double
oct_silicon_burst_s(const oct_silicon_row *row) {
  oct_setup_options options;
  oct_setup setup;
  if (!oct_silicon_setup(row, &options, NULL) || !oct_setup_make(&options, &setup, NULL))
    return 0;
  oct_cost_options cost_options = OCT_COST_OPTIONS_DEFAULT;
  cost_options.kv_dtype = setup.engine.instance.kv_dtype;
  oct_setup_cost_options(&setup, &cost_options);
  g_autoptr(oct_cost) cost = oct_cost_new(setup.spec, &setup.engine.instance.parallel,
                                          setup.devices, setup.profile, &cost_options, NULL);
  double seconds = 0;
  if (cost != NULL) {
    oct_step_shape shape = {.n_domains = row->dp};
    oct_step_price price;
    const oct_slice slice = {
        .n_tokens = row->isl, .flags = OCT_SLICE_PREFILL, .sample = OCT_SAMPLE_LAST};
    for (guint d = 0; d < row->dp; d++)
      oct_domain_shape_add(&shape.domains[d], &slice, 0, oct_cost_window(setup.spec));
    oct_cost_step(cost, &shape, &price);
    for (guint s = 0; s < price.n_stages; s++)
      seconds += (double)(price.stages[s].ns + price.stages[s].send_ns) / 1e9;
    seconds *= ceil((double)row->concurrency / row->dp);
  }
  oct_setup_clear(&setup);
  return seconds;
}
