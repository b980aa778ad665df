/* A recorded run of one engine on one GPU: 300 requests of ShareGPT at 10 per second on vLLM
 * 0.19.0, Llama-3.1-8B, an RTX 4090 whose KV cache held 2,588 blocks of 16 tokens (casys-kaist/
 * LLMServingSim, MIT): each request's times and a row of gauges per second.
 *
 * Three constants of the step's price are fitted, and only to what ended in the first 60 s: the
 * fraction of the memory bandwidth, the fraction of the arithmetic peak, and the time between two
 * steps. Everything else is the datasheet and constants of other machines (fits/hopper.ini). Scored
 * is what came later.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <glib/gstdio.h>

#include "engine/sched/policy.h"
#include "sim/replay/jobs.h"
#include "sim/replay/replay.h"
#include "sim/validate/report.h"
#include "sim/validate/simplex.h"
#include "sim/validate/validate.h"
#include "sim/validate/measured.h"
#include "traces/trace.h"

/* The same requests as block ids of their prompts: which blocks are equal is not in the record. */
#define PREFIXES          "sharegpt300_llama31_hash16.jsonl"
#define FIT_END_S         60.0
#define BLOCKS            2588
#define BLOCK_TOKENS      16
#define BATCHED_TOKENS    2048
#define SEQUENCES         256
#define MODEL_LEN         32768
#define REQUESTS_MAX      4096
#define SECONDS_MAX       4096
#define EVALUATIONS       90
#define EVALUATIONS_QUICK 40
#define N_CONSTANTS       3
#define AIM               0.05

typedef struct request {
  guint input, output;
  double arrival_s, queued_s, first_s, last_s;
} request;

typedef struct second {
  double running, waiting, kv; /* kv: 0 … 1 */
} second;

/* Of the record, and of a simulated run. */
typedef struct history {
  guint n_requests, n_seconds;
  request requests[REQUESTS_MAX];
  second seconds[SECONDS_MAX]; /* [t] at t + 1 s */
  guint64 preemptions_later;
} history;

typedef struct run {
  const oct_validate_options *options;
  history *record, *simulated;
  char *folder, *trace; /* owned: scratch files */
  gboolean has_prefixes;
  double request_in_s;
  double constants[N_CONSTANTS];
  guint evaluations;
  GError *failed;
} run;

/* ---------------------------------------------------------------- reading */

static gboolean
read_request(char **cells, gpointer user, GError **error) {
  history *h = user;
  double v[6];
  for (guint i = 0; i < G_N_ELEMENTS(v); i++) {
    v[i] = oct_measured_number(cells[i]);
    if (!isfinite(v[i]) || h->n_requests == REQUESTS_MAX) {
      g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA,
                  "'%s' is no number, or more than %d requests", cells[i], REQUESTS_MAX);
      return FALSE;
    }
  }
  h->requests[h->n_requests++] = (request){(guint)v[0], (guint)v[1], v[2], v[3], v[4], v[5]};
  return TRUE;
}

static gboolean
read_second(char **cells, gpointer user, GError **error) {
  history *h = user;
  (void)error;
  if (h->n_seconds < SECONDS_MAX)
    h->seconds[h->n_seconds++] =
        (second){oct_measured_number(cells[0]), oct_measured_number(cells[1]),
                 oct_measured_number(cells[2]) / 100};
  return TRUE;
}

static int
compare_arrivals(const void *a, const void *b) {
  double x = ((const request *)a)->arrival_s, y = ((const request *)b)->arrival_s;
  return (x > y) - (x < y);
}

static gboolean
read_record(run *r, GError **error) {
  static const char *const requests[] = {"input_tokens",  "output_tokens", "arrival_s", "queued_s",
                                         "first_token_s", "last_token_s",  NULL};
  static const char *const seconds[] = {"running", "waiting", "kv_cache_pct", NULL};
  history *h = r->record;
  if (!oct_measured_read(r->options->data, "lss_rtx4090_llama-3.1-8b_vllm_requests.csv", requests,
                         read_request, h, error) ||
      !oct_measured_read(r->options->data, "lss_rtx4090_llama-3.1-8b_vllm_timeseries.csv", seconds,
                         read_second, h, error))
    return FALSE;
  if (h->n_requests < 2 || h->n_seconds < 2) {
    g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA,
                "the record of the RTX 4090 is empty");
    return FALSE;
  }
  qsort(h->requests, h->n_requests, sizeof *h->requests, compare_arrivals);
  double *waits = g_new(double, h->n_requests);
  guint n = 0;
  for (guint i = 0; i < h->n_requests; i++)
    if (h->requests[i].queued_s <= FIT_END_S)
      waits[n++] = MAX(0, h->requests[i].queued_s - h->requests[i].arrival_s);
  r->request_in_s = oct_quantile(waits, n, 0.5);
  g_free(waits);
  return TRUE;
}

/* The file of PREFIXES in the folder of recordings or in `traces` beside it; NULL without error:
 * there is none. */
static oct_trace *
open_prefixes(const run *r, GError **error) {
  const char *const folders[] = {".", "../traces"};
  for (gsize i = 0; i < G_N_ELEMENTS(folders); i++) {
    g_autofree char *path = g_build_filename(r->options->data, folders[i], PREFIXES, NULL);
    oct_trace_options options;
    oct_trace_options_init(&options);
    options.block_size = BLOCK_TOKENS;
    if (g_file_test(path, G_FILE_TEST_EXISTS))
      return oct_trace_open(path, &options, error);
  }
  return NULL;
}

/* Appends what the prompt of request `index` shares with others; the file has them in the record's
 * order. */
static gboolean
add_prefix(const run *r, oct_trace *prefixes, guint index, GString *text, GError **error) {
  const request *q = &r->record->requests[index];
  oct_trace_request row;
  g_autoptr(GError) failed = NULL;
  gboolean there = oct_trace_next(prefixes, &row, &failed);
  if (failed != NULL) {
    g_propagate_error(error, g_steal_pointer(&failed));
    return FALSE;
  }
  if (!there || row.input_tokens != q->input) {
    g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA,
                PREFIXES ": row %u is not the record's request of %u tokens", index + 1, q->input);
    return FALSE;
  }
  g_string_append_printf(text, ",\"block_size\":%d,\"hash_ids\":[", BLOCK_TOKENS);
  for (guint32 k = 0; k < row.n_hash_ids; k++)
    g_string_append_printf(text, "%s%" G_GUINT64_FORMAT, k > 0 ? "," : "", row.hash_ids[k]);
  g_string_append_c(text, ']');
  return TRUE;
}

/* The record's requests as a trace in the scratch folder. */
static gboolean
write_trace(run *r, GError **error) {
  g_autoptr(GString) text = g_string_new("{\"octet_trace\":1,\"source\":\"rtx4090\"}\n");
  g_autoptr(GError) failed = NULL;
  g_autoptr(oct_trace) prefixes = open_prefixes(r, &failed);
  if (failed != NULL) {
    g_propagate_error(error, g_steal_pointer(&failed));
    return FALSE;
  }
  r->has_prefixes = prefixes != NULL;
  r->folder = g_dir_make_tmp("octet-record-XXXXXX", error);
  if (r->folder == NULL)
    return FALSE;
  r->trace = g_build_filename(r->folder, "trace.jsonl", NULL);
  for (guint i = 0; i < r->record->n_requests; i++) {
    const request *q = &r->record->requests[i];
    g_string_append_printf(text, "{\"arrival_us\":%.3f,\"input_tokens\":%u,\"output_tokens\":%u",
                           q->arrival_s * 1e6, q->input, q->output);
    if (r->has_prefixes && !add_prefix(r, prefixes, i, text, error))
      return FALSE;
    g_string_append(text, "}\n");
  }
  return g_file_set_contents(r->trace, text->str, (gssize)text->len, error);
}

/* ---------------------------------------------------------------- a run */

/* The profile with the two fractions: decode reads weights and KV at one, products and prefill
 * attention compute at the other. */
static char *
write_profile(const run *r, const oct_profile *base, GError **error) {
  const oct_gemm_fit *g = &base->gemm_fit[OCT_MATH_BF16];
  const oct_decode_fit *d = &base->decode_fit;
  const oct_prefill_fit *p = &base->prefill_fit;
  const double bandwidth = r->constants[0], peak = r->constants[1];
  char *path = g_build_filename(r->folder, "node.ini", NULL);
  g_autofree char *text = g_strdup_printf(
      "[profile]\nschema=1\nname=rtx4090-fitted\nbase=rtx4090\n[gemm_fit]\n"
      "bfloat16=%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;\n[attention_fit]\n"
      "decode=%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;\n"
      "prefill=%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;%.17g;\n",
      peak, bandwidth, g->fixed_s, g->per_k_s, g->split_s, g->single_row_s, g->hot, g->hot_s,
      g->wave_rounding, g->quantise, d->fixed_s, d->wave_s, bandwidth, d->overlap, d->l2_share,
      d->l2_time, d->split_s, d->split_context, d->wave_rounding, p->fixed_s,
      MIN(1, peak * p->peak / g->peak), p->pairs_per_token, p->wave_s, p->bandwidth, p->hot,
      p->hot_s, p->serial);
  if (g_file_set_contents(path, text, -1, error))
    return path;
  g_free(path);
  return NULL;
}

typedef struct collector {
  const run *r;
  json_t *requests; /* [first_s, last_s] by index */
} collector;

static void
collect(void *user, guint64 index, const oct_outcome *o) {
  collector *c = user;
  double arrival_s = (double)o->arrival_ns / 1e9;
  json_array_set_new(c->requests, index,
                     json_pack("[f,f]", arrival_s + (double)o->value_ns[OCT_LATENCY_TTFT] / 1e9,
                               arrival_s + (double)o->value_ns[OCT_LATENCY_E2E] / 1e9));
}

static gboolean
read_gauges(char **cells, gpointer user, GError **error) {
  json_t *list = user;
  (void)error;
  json_array_append_new(
      list, json_pack("[f,f,f,f]", oct_measured_number(cells[0]), oct_measured_number(cells[1]),
                      oct_measured_number(cells[2]), oct_measured_number(cells[3])));
  return TRUE;
}

static void
fill_setup(const run *r, const char *node, oct_setup_options *o) {
  oct_setup_options_default(o);
  o->model = "llama-3.1-8b";
  o->node = node;
  o->engine.policy = oct_policy_find("vllm-v1")->name;
  o->engine.preemption = OCT_PREEMPT_RECOMPUTE;
  o->engine.run_ahead = 0;
  o->engine.max_num_seqs = SEQUENCES;
  o->engine.max_num_batched_tokens = BATCHED_TOKENS;
  o->engine.max_model_len = MODEL_LEN;
  o->engine.instance.parallel.tensor = 1;
  o->num_gpu_blocks_override = BLOCKS;
  g_strlcpy(o->engine_preset.name, "record", sizeof o->engine_preset.name);
  o->engine_preset.has_host = TRUE;
  o->engine_preset.host = (oct_engine_times){.step_host_ns = oct_cost_ns(r->constants[2]),
                                             .request_in_ns = oct_cost_ns(r->request_in_s),
                                             .graph_max_batch = 512};
}

/* In a child: {"requests":[[first, last]…], "seconds":[[running, waiting, kv, preemptions]…]}. */
static json_t *
simulate(void *user, guint index, GError **error) {
  static const char *const gauges[] = {"running", "waiting", "kv_used", "preemptions", NULL};
  const run *r = user;
  (void)index;
  g_autoptr(oct_profile) base = oct_profile_load("rtx4090", NULL, NULL, error);
  g_autofree char *node = base != NULL ? write_profile(r, base, error) : NULL;
  if (node == NULL)
    return NULL;
  g_autofree char *timeline = g_build_filename(r->folder, "timeline.csv", NULL);
  collector c = {r, json_array()};
  json_t *seconds = json_array();
  oct_replay_config config;
  oct_replay_result result;
  oct_replay_config_default(&config);
  fill_setup(r, node, &config.setup);
  config.rows.path = r->trace;
  config.exact_lengths = TRUE;
  config.warmup_ns = 0;
  config.timeline_path = timeline;
  config.outcome = collect;
  config.user = &c;
  for (guint i = 0; i < r->record->n_requests; i++)
    json_array_append_new(c.requests, json_null());
  gboolean good = oct_replay_run(&config, &result, error);
  if (good)
    oct_replay_result_clear(&result);
  good = good && oct_measured_read(r->folder, "timeline.csv", gauges, read_gauges, seconds, error);
  g_unlink(timeline);
  g_unlink(node);
  if (good)
    return json_pack("{s:o,s:o}", "requests", c.requests, "seconds", seconds);
  json_decref(c.requests);
  json_decref(seconds);
  return NULL;
}

static gboolean
run_once(run *r, GError **error) {
  json_t *found;
  history *h = r->simulated;
  gsize i;
  json_t *one;
  if (!oct_jobs_run(1, simulate, r, NULL, &found, error))
    return FALSE;
  memset(h, 0, sizeof *h);
  json_array_foreach(json_object_get(found, "requests"), i, one) {
    request *q = &h->requests[h->n_requests++];
    *q = r->record->requests[i];
    q->first_s = json_number_value(json_array_get(one, 0));
    q->last_s = json_number_value(json_array_get(one, 1));
  }
  json_array_foreach(json_object_get(found, "seconds"), i, one) {
    if (h->n_seconds == SECONDS_MAX)
      break;
    h->seconds[h->n_seconds++] = (second){json_number_value(json_array_get(one, 0)),
                                          json_number_value(json_array_get(one, 1)),
                                          json_number_value(json_array_get(one, 2))};
    if (i + 1 > (gsize)FIT_END_S)
      h->preemptions_later += (guint64)json_number_value(json_array_get(one, 3));
  }
  json_decref(found);
  return TRUE;
}

/* ---------------------------------------------------------------- the fit */

/* Mean relative error of the time to each first token before the end of the fit, and of each whole
 * generation that ended before it. */
static double
early_error(const run *r) {
  double sum = 0;
  guint n = 0;
  for (guint i = 0; i < r->record->n_requests; i++) {
    const request *a = &r->record->requests[i], *b = &r->simulated->requests[i];
    if (a->first_s <= FIT_END_S) {
      sum += fabs((b->first_s - a->first_s) / (a->first_s - a->arrival_s));
      n++;
    }
    if (a->last_s <= FIT_END_S && a->output > 1) {
      sum += fabs((b->last_s - b->first_s) / (a->last_s - a->first_s) - 1);
      n++;
    }
  }
  return n > 0 ? sum / n : INFINITY;
}

static double
try_constants(const double *x, gpointer user) {
  run *r = user;
  memcpy(r->constants, x, sizeof r->constants);
  if (r->options->told != NULL)
    r->options->told(r->options->user, "fits of the record", r->evaluations, EVALUATIONS);
  r->evaluations++;
  if (r->failed != NULL || !run_once(r, r->failed == NULL ? &r->failed : NULL))
    return G_MAXDOUBLE;
  return early_error(r);
}

static gboolean
fit(run *r, double *seen, GError **error) {
  static const double low[N_CONSTANTS] = {0.5, 0.3, 0}, high[N_CONSTANTS] = {1, 1, 5e-3};
  double x[N_CONSTANTS] = {0.85, 0.8, 1e-3};
  oct_simplex_options options = {.n = N_CONSTANTS,
                                 .low = low,
                                 .high = high,
                                 .step = 0.15,
                                 .evaluations_max =
                                     r->options->quick ? EVALUATIONS_QUICK : EVALUATIONS};
  *seen = oct_simplex(&options, try_constants, r, x);
  if (r->failed != NULL) {
    g_propagate_error(error, g_steal_pointer(&r->failed));
    return FALSE;
  }
  memcpy(r->constants, x, sizeof x);
  return run_once(r, error);
}

/* ---------------------------------------------------------------- scores */

typedef double (*figure_fn)(const request *q);

static double
ttft_of(const request *q) {
  return q->first_s - q->arrival_s;
}

static double
tpot_of(const request *q) {
  return q->output > 1 ? (q->last_s - q->first_s) / (q->output - 1) : NAN;
}

static double
latency_of(const request *q) {
  return q->last_s - q->arrival_s;
}

/* Of requests whose first token came after the fit: [n], and each one's error into `score`. */
static guint
later_figures(const run *r, figure_fn figure, double *measured, double *predicted,
              oct_score *score) {
  guint n = 0;
  for (guint i = 0; i < r->record->n_requests; i++) {
    const request *a = &r->record->requests[i], *b = &r->simulated->requests[i];
    if (a->first_s <= FIT_END_S || !isfinite(figure(a)))
      continue;
    measured[n] = figure(a);
    predicted[n++] = figure(b);
    oct_score_add(score, figure(b), figure(a));
  }
  return n;
}

static double
mean_of(const double *values, guint n) {
  double sum = 0;
  for (guint i = 0; i < n; i++)
    sum += values[i];
  return n > 0 ? sum / n : NAN;
}

static void
add_figure(json_t *table, const char *name, const char *which, double measured, double predicted) {
  json_t *row = oct_validate_row(table);
  oct_validate_text(row, "%s", name);
  oct_validate_text(row, "%s", which);
  oct_validate_text(row, "%.4g", measured);
  oct_validate_text(row, "%.4g", predicted);
  oct_validate_number(row, 100 * (predicted / measured - 1));
}

static void
score_requests(run *r, json_t *part, json_t *table) {
  static const struct {
    const char *name;
    figure_fn figure;
  } figures[] = {{"TTFT s", ttft_of}, {"TPOT s", tpot_of}, {"latency s", latency_of}};
  g_autofree double *measured = g_new(double, REQUESTS_MAX);
  g_autofree double *predicted = g_new(double, REQUESTS_MAX);
  for (gsize f = 0; f < G_N_ELEMENTS(figures); f++) {
    static const double quantiles[] = {0.5, 0.9, 0.99};
    static const char *const names[] = {"p50", "p90", "p99"};
    g_auto(oct_score) score = {0};
    guint n = later_figures(r, figures[f].figure, measured, predicted, &score);
    double a = mean_of(measured, n), b = mean_of(predicted, n);
    add_figure(table, figures[f].name, "mean", a, b);
    for (gsize q = 0; q < G_N_ELEMENTS(quantiles); q++)
      add_figure(table, figures[f].name, names[q], oct_quantile(measured, n, quantiles[q]),
                 oct_quantile(predicted, n, quantiles[q]));
    g_autofree char *what = g_strdup_printf("later requests, mean %s", figures[f].name);
    oct_validate_aim(part, what, AIM, fabs(b / a - 1));
    oct_validate_note(table, "%s, request by request: median error %.1f %%, p90 %.1f %% (%u).",
                      figures[f].name, 100 * oct_score_quantile(&score, 0.5),
                      100 * oct_score_quantile(&score, 0.9), n);
  }
}

/* Mean distance of two gauges after the fit over their measured mean. */
static double
curve_error(const run *r, gsize offset) {
  double distance = 0, sum = 0;
  const guint n = MIN(r->record->n_seconds, r->simulated->n_seconds);
  for (guint t = (guint)FIT_END_S; t < n; t++) {
    double a = *(double *)G_STRUCT_MEMBER_P(&r->record->seconds[t], offset);
    double b = *(double *)G_STRUCT_MEMBER_P(&r->simulated->seconds[t], offset);
    distance += fabs(a - b);
    sum += a;
  }
  return sum > 0 ? distance / sum : NAN;
}

/* After the last arrival a request can only come to wait because it was preempted: by how much the
 * number of waiting ones rose from second to second. */
static double
rises(const history *h) {
  double sum = 0;
  for (guint t = (guint)FIT_END_S; t + 1 < h->n_seconds; t++)
    sum += MAX(0, h->seconds[t + 1].waiting - h->seconds[t].waiting);
  return sum;
}

static void
score_curves(run *r, json_t *part) {
  static const char *const columns[] = {"after 60 s", "mean distance / mean, %", NULL};
  static const struct {
    const char *name;
    gsize offset;
  } curves[] = {{"running", G_STRUCT_OFFSET(second, running)},
                {"waiting", G_STRUCT_OFFSET(second, waiting)},
                {"KV in use", G_STRUCT_OFFSET(second, kv)}};
  json_t *table = oct_validate_table(part, "Gauges, second by second", columns);
  for (gsize c = 0; c < G_N_ELEMENTS(curves); c++) {
    double error = curve_error(r, curves[c].offset);
    json_t *row = oct_validate_row(table);
    oct_validate_text(row, "%s", curves[c].name);
    oct_validate_number(row, 100 * error);
    g_autofree char *what = g_strdup_printf("curve of %s", curves[c].name);
    oct_validate_aim(part, what, AIM, error);
  }
  oct_validate_note(
      table,
      "Preemptions are not recorded. After the last arrival only they make the number "
      "of waiting requests rise from one second to the next: by %.0f in the record, "
      "by %.0f simulated, where %" G_GUINT64_FORMAT " requests were preempted.",
      rises(r->record), rises(r->simulated), r->simulated->preemptions_later);
}

/* The constants, and both curves second by second, for programs: not printed. */
static void
add_seconds(const run *r, json_t *part) {
  json_object_set_new(part, "constants",
                      json_pack("[f,f,f]", r->constants[0], r->constants[1], r->constants[2]));
  json_t *list = json_array();
  const guint n = MIN(r->record->n_seconds, r->simulated->n_seconds);
  for (guint t = 0; t < n; t++) {
    const second *a = &r->record->seconds[t], *b = &r->simulated->seconds[t];
    json_array_append_new(list, json_pack("{s:i,s:[f,f],s:[f,f],s:[f,f]}", "t", (int)t + 1,
                                          "running", a->running, b->running, "waiting", a->waiting,
                                          b->waiting, "kv", a->kv, b->kv));
  }
  json_object_set_new(part, "seconds_measured_predicted", list);
}

/* ---------------------------------------------------------------- the whole */

static json_t *
make_part(run *r, double seen) {
  static const char *const columns[] = {"figure", "of", "measured", "predicted", "error %", NULL};
  json_t *part = oct_validate_part("trace-record");
  json_t *table = oct_validate_table(
      part, "RTX 4090, vLLM 0.19.0, Llama-3.1-8B: requests whose first token came after 60 s",
      columns);
  score_requests(r, part, table);
  oct_validate_note(
      table,
      "Fitted to what ended in the first 60 s (mean error there %.1f %%, not a "
      "score): bandwidth fraction %.3f, peak fraction %.3f, %.2f ms between steps. "
      "Policy vllm-v1, 2,588 blocks of 16 as recorded, request to queue %.1f ms as "
      "recorded; %s.",
      100 * seen, r->constants[0], r->constants[1], 1e3 * r->constants[2], 1e3 * r->request_in_s,
      r->has_prefixes ? "prefixes shared as " PREFIXES " says"
                      : "prefixes shared by requests are not modelled, for want of " PREFIXES);
  oct_validate_note(table,
                    "LLMServingSim on the same record, profiled on that GPU: mean TTFT +0.6, "
                    "TPOT +0.2, latency +0.5 %% (all requests).");
  score_curves(r, part);
  add_seconds(r, part);
  return part;
}

json_t *
oct_validate_record(const oct_validate_options *options, GError **error) {
  run r = {.options = options, .record = g_new0(history, 1), .simulated = g_new0(history, 1)};
  double seen = 0;
  json_t *part = NULL;
  if (read_record(&r, error) && write_trace(&r, error) && fit(&r, &seen, error))
    part = make_part(&r, seen);
  if (r.trace != NULL)
    g_unlink(r.trace);
  if (r.folder != NULL)
    g_rmdir(r.folder);
  g_free(r.trace);
  g_free(r.folder);
  g_free(r.record);
  g_free(r.simulated);
  return part;
}
