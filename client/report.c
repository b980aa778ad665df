#include "client/report.h"

#include "config.h"

#include <math.h>
#include <string.h>

#include "sim/replay/measured-json.h"
#include "sim/replay/replay.h"
#include "sim/replay/report.h"

/* A client that works for this share of the time cannot be told from a slow server. */
#define BUSY_SHARE_MAX 0.8

/* ---------------------------------------------------------------- what ran */

static json_t *
configuration_json(const oct_bench_facts *f) {
  const oct_load_config *c = f->config;
  gboolean as_text = c->prompt.as_text || c->endpoint == OCT_LOAD_CHAT;
  json_t *out = json_object();
  json_object_set_new(out, "model", oct_json_text(f->model));
  json_object_set_new(out, "node", json_null());
  json_object_set_new(out, "backend", oct_json_text("http"));
  json_object_set_new(out, "url", oct_json_text(f->url));
  json_object_set_new(out, "endpoint", oct_json_text(oct_load_path(c->endpoint)));
  json_object_set_new(out, "prompts", oct_json_text(as_text ? "words" : "token ids"));
  json_object_set_new(out, "ignore_eos", json_boolean(c->ignore_eos));
  json_object_set_new(out, "max_concurrency",
                      c->max_concurrency > 0 ? oct_json_count(c->max_concurrency) : json_null());
  json_object_set_new(out, "warmup_requests", oct_json_count(c->n_warmups));
  json_object_set_new(out, "time_scale", oct_json_real(f->time_scale));
  json_object_set_new(out, "seed", oct_json_count(f->seed));
  return out;
}

/* ---------------------------------------------------------------- what the client saw */

static json_t *
view_json(const oct_measured *m, gboolean is_server) {
  json_t *out = json_object();
  static const oct_latency shown[] = {OCT_LATENCY_QUEUE, OCT_LATENCY_TTFT, OCT_LATENCY_TPOT,
                                      OCT_LATENCY_E2E};
  for (gsize i = 0; i < G_N_ELEMENTS(shown); i++)
    if (is_server || shown[i] == OCT_LATENCY_TTFT || shown[i] == OCT_LATENCY_E2E)
      json_object_set_new(out, oct_latency_name(shown[i]),
                          oct_json_distribution(m->latency[shown[i]], 1e9));
  return out;
}

static json_t *
errors_json(const oct_load_result *r) {
  json_t *list = json_array();
  for (guint i = 0; i < r->errors->len; i++) {
    const oct_load_error *e = &g_array_index(r->errors, oct_load_error, i);
    json_t *item = json_object();
    json_object_set_new(item, "kind", oct_json_text(oct_failure_name(e->failure)));
    json_object_set_new(item, "status",
                        e->status > 0 ? oct_json_count((guint64)e->status) : json_null());
    json_object_set_new(item, "count", oct_json_count(e->count));
    json_object_set_new(item, "first", oct_json_text(e->first));
    json_array_append_new(list, item);
  }
  return list;
}

static json_t *
client_json(const oct_load_result *r) {
  json_t *out = json_object();
  json_object_set_new(out, "from_send", view_json(&r->from_sent, FALSE));
  json_object_set_new(out, "send_late",
                      oct_json_distribution(r->from_sent.latency[OCT_LATENCY_QUEUE], 1e9));
  json_object_set_new(out, "server", r->has_server ? view_json(&r->server, TRUE) : json_null());
  json_object_set_new(out, "errors", errors_json(r));
  json_object_set_new(out, "interrupted", json_boolean(r->interrupted));
  json_object_set_new(out, "unfinished", oct_json_count(r->unfinished));
  json_object_set_new(out, "short_answers", oct_json_count(r->short_answers));
  json_object_set_new(out, "chunks", oct_json_count(r->pieces));
  json_object_set_new(out, "tokens_per_chunk",
                      oct_json_share((double)r->piece_tokens, (double)r->pieces_with_usage));
  json_object_set_new(out, "usage_share",
                      oct_json_share((double)r->answers_with_usage, (double)r->answers));
  json_object_set_new(out, "cached_tokens", oct_json_count(r->cached_tokens));
  json_object_set_new(out, "busy_share", oct_json_real(r->busy_share));
  json_object_set_new(out, "warmed_up_s", oct_json_seconds(r->warmed_up_ns));
  return out;
}

static json_t *
gauges_json(const oct_measured *m) {
  double sum[2] = {0}, most[2] = {0};
  guint n = m->end_sample - m->first_sample;
  for (guint i = m->first_sample; i < m->end_sample; i++) {
    const double at[2] = {m->samples[i].running, m->samples[i].waiting};
    for (int k = 0; k < 2; k++) {
      sum[k] += at[k];
      most[k] = MAX(most[k], at[k]);
    }
  }
  static const char *const names[2] = {"running", "waiting"};
  json_t *out = json_object();
  for (int k = 0; k < 2; k++)
    json_object_set_new(out, names[k],
                        n == 0 ? json_null()
                               : json_pack("{s:f, s:i}", "mean", sum[k] / n, "max", (int)most[k]));
  return out;
}

/* ---------------------------------------------------------------- what is assumed, and what is odd
 */

static void note(json_t *list, const char *format, ...) G_GNUC_PRINTF(2, 3);
static void
note(json_t *list, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *text = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  json_array_append_new(list, json_string(text));
}

static json_t *
assumptions_json(const oct_bench_facts *f, const oct_load_result *r) {
  json_t *list = json_array();
  double per_chunk = (double)r->piece_tokens / (double)r->pieces_with_usage;
  if (f->config->prompt.as_text || f->config->endpoint == OCT_LOAD_CHAT)
    note(list, "prompts: words of one token each; usage says what they were");
  if (r->pieces_with_usage > 0)
    note(list, "ITL: gaps between chunks, of %.2f tokens each; TPOT: by the usage's tokens",
         per_chunk);
  else if (r->answers_with_usage == 0)
    note(list, "tokens: one a chunk, no answer had its usage");
  if (f->trace->spread)
    note(list, "arrivals: spread over recorded ticks");
  return list;
}

static json_t *
warnings_json(const oct_bench_facts *f, const oct_load_result *r) {
  json_t *list = json_array();
  if (r->interrupted)
    note(list, "interrupted: %" G_GUINT64_FORMAT " requests were out and are not counted",
         r->unfinished);
  if (r->busy_share > BUSY_SHARE_MAX)
    note(list, "the client itself was busy for %.0f %% of the time: latencies are its too",
         100 * r->busy_share);
  if (r->short_answers > 0)
    note(list, "%" G_GUINT64_FORMAT " answers ended before the trace's length%s", r->short_answers,
         f->config->ignore_eos ? "" : " (--ignore-eos asks for all of it)");
  if (r->answers > 0 && r->pieces == 0)
    note(list,
         "no answer came in chunks: latencies are not known, and tokens count where an answer "
         "ended, so that rates are those of the window's edges; a server without a tokenizer "
         "sends chunks with --extra-body '{\"return_token_ids\":true}'");
  if (r->answers_with_usage < r->answers && r->answers_with_usage > 0)
    note(list, "%" G_GUINT64_FORMAT " answers had no usage", r->answers - r->answers_with_usage);
  return list;
}

static json_t *
run_json(const oct_bench_facts *f, const oct_load_result *r) {
  double wall = (double)r->span_ns / 1e9;
  json_t *out = json_object();
  json_object_set_new(out, "wall_s", oct_json_real(wall));
  json_object_set_new(out, "cpu_s", oct_json_real(f->cpu_s));
  json_object_set_new(out, "peak_rss_bytes", oct_json_count(f->peak_rss_bytes));
  json_object_set_new(out, "requests_per_s", oct_json_share((double)r->sent, wall));
  return out;
}

/* As of a replay, without what only a simulated node knows. */
static json_t *
detail_json(const oct_measured *m) {
  return json_pack("{s:o, s:o, s:n, s:n, s:n, s:n, s:o}", "cdf", oct_cdf_json(m), "course",
                   oct_course_json(m), "batch_sizes", "loads", "topology", "stretch",
                   "kept_requests", oct_kept_json(m));
}

json_t *
oct_bench_json(const oct_bench_facts *f, const oct_load_result *r) {
  const oct_measured *m = &r->from_due;
  const oct_traffic traffic = {.name = f->trace_name,
                               .facts = f->trace,
                               .rate = f->rate,
                               .own_rate = f->own_rate,
                               .rate_mode = f->rate_mode,
                               .sent = r->sent,
                               .closed_loop = r->closed_loop,
                               .concurrency = r->concurrency};
  const oct_whole_run run = {.span_ns = r->span_ns,
                             .load_end_ns = r->load_end_ns,
                             .sent = r->sent,
                             .ended = r->ended,
                             .input_tokens = r->input_tokens,
                             .output_tokens = r->output_tokens,
                             .first_refusal = r->first_refusal};
  json_t *out = json_object();
  json_object_set_new(out, "schema", oct_json_text(OCT_REPLAY_SCHEMA));
  json_object_set_new(out, "octet", oct_json_text(PACKAGE_VERSION));
  json_object_set_new(out, "label", oct_json_text(f->label));
  json_object_set_new(out, "trace", oct_traffic_json(&traffic));
  json_object_set_new(out, "configuration", configuration_json(f));
  json_object_set_new(out, "assumptions", assumptions_json(f, r));
  json_object_set_new(out, "warnings", warnings_json(f, r));
  json_object_set_new(out, "verdict", oct_verdict_json(m));
  json_object_set_new(out, "window", oct_window_json(m, &run));
  json_object_set_new(out, "requests", oct_requests_json(m, &run));
  json_object_set_new(out, "latency_s", oct_latency_json(m));
  json_object_set_new(out, "throughput", oct_throughput_json(m, &run));
  json_object_set_new(out, "slo", oct_slo_json(&f->config->slo, m));
  json_object_set_new(out, "use", gauges_json(m));
  json_object_set_new(out, "series", oct_series_json(m));
  json_object_set_new(out, "client", client_json(r));
  json_object_set_new(out, "detail", detail_json(m));
  /* What only the engine's side knows. */
  static const char *const unknown[] = {"memory", "host_times", "scheduler",
                                        "steps",  "experts",    "step_times"};
  for (gsize i = 0; i < G_N_ELEMENTS(unknown); i++)
    json_object_set_new(out, unknown[i], json_null());
  json_object_set_new(out, "resources", json_array());
  json_object_set_new(out, "run", run_json(f, r));
  return out;
}

/* ---------------------------------------------------------------- for people */

static const char *
text_at(const json_t *report, const char *path) {
  const json_t *at = oct_report_at(report, path);
  return json_is_string(at) ? json_string_value(at) : "-";
}

static double
number_at(const json_t *report, const char *path) {
  return oct_report_number(report, path);
}

static void
print_head(FILE *out, const json_t *r) {
  g_autoptr(GString) trace = g_string_new(NULL);
  fprintf(out, "%s at %s%s\n", text_at(r, "configuration.model"), text_at(r, "configuration.url"),
          text_at(r, "configuration.endpoint"));
  g_string_append_printf(
      trace, "%s (%s), %s requests of %s", text_at(r, "trace.name"), text_at(r, "trace.format"),
      oct_report_count(number_at(r, "trace.requests_sent")), text_at(r, "configuration.prompts"));
  if (number_at(r, "trace.rate") > 0)
    g_string_append_printf(trace, ", %s sessions/s (own rate %s)",
                           oct_report_count(number_at(r, "trace.rate")),
                           oct_report_count(number_at(r, "trace.own_rate")));
  if (json_is_true(oct_report_at(r, "trace.closed_loop")))
    g_string_append_printf(trace, ", closed loop of %.0f slots", number_at(r, "trace.concurrency"));
  if (number_at(r, "configuration.max_concurrency") > 0)
    g_string_append_printf(trace, ", at most %.0f at once",
                           number_at(r, "configuration.max_concurrency"));
  g_string_append_printf(trace, ", seed %.0f", number_at(r, "configuration.seed"));
  oct_report_print_wrapped(out, "trace", trace->str);
}

static void
print_views(FILE *out, const json_t *r, const char *const *only) {
  static const char *const rows[][2] = {
      {"queue", "queue"}, {"ttft", "TTFT"}, {"tpot", "TPOT"}, {"e2e", "E2E"}};
  static const char *const views[][2] = {{"client.from_send", "from the send"},
                                         {"client.server", "server's own"}};
  for (gsize v = 0; v < G_N_ELEMENTS(views); v++) {
    const json_t *view = oct_report_at(r, views[v][0]);
    if (view == NULL)
      continue;
    fprintf(out, "%s\n", views[v][1]);
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
      if (oct_report_at(view, rows[i][0]) != NULL &&
          (only == NULL || g_strv_contains(only, rows[i][0])))
        oct_report_print_distribution(out, rows[i][1], oct_report_at(view, rows[i][0]));
    if (v == 0)
      oct_report_print_distribution(out, "sent late", oct_report_at(r, "client.send_late"));
  }
  fputc('\n', out);
}

static void
print_client(FILE *out, const json_t *r) {
  g_autofree char *text = g_strdup_printf(
      "%s chunks of %s tokens; usage in %s of answers, %s cached prompt tokens; with the server "
      "%s (max %s), waiting here %s (max %s); busy %s",
      oct_report_count(number_at(r, "client.chunks")),
      oct_report_count(number_at(r, "client.tokens_per_chunk")),
      oct_report_share(number_at(r, "client.usage_share")),
      oct_report_count(number_at(r, "client.cached_tokens")),
      oct_report_count(number_at(r, "use.running.mean")),
      oct_report_count(number_at(r, "use.running.max")),
      oct_report_count(number_at(r, "use.waiting.mean")),
      oct_report_count(number_at(r, "use.waiting.max")),
      oct_report_share(number_at(r, "client.busy_share")));
  oct_report_print_wrapped(out, "client", text);
  gsize i;
  const json_t *item;
  json_array_foreach(oct_report_at(r, "client.errors"), i, item) {
    g_autofree char *status = number_at(item, "status") > 0
                                  ? g_strdup_printf(" %.0f", number_at(item, "status"))
                                  : g_strdup("");
    g_autofree char *line =
        g_strdup_printf("%s x %s%s: %s", oct_report_count(number_at(item, "count")),
                        text_at(item, "kind"), status, text_at(item, "first"));
    oct_report_print_wrapped(out, i == 0 ? "errors" : "", line);
  }
}

void
oct_bench_print(FILE *out, const json_t *r, const char *const *only) {
  print_head(out, r);
  oct_report_print_verdict(out, r);
  oct_report_print_latency(out, r, only);
  print_views(out, r, only);
  oct_report_print_throughput(out, r);
  print_client(out, r);
  gsize i;
  const json_t *item;
  json_array_foreach(oct_report_at(r, "assumptions"), i, item)
      oct_report_print_wrapped(out, i == 0 ? "assumed" : "", json_string_value(item));
  json_array_foreach(oct_report_at(r, "warnings"), i, item)
      oct_report_print_wrapped(out, "warning", json_string_value(item));
}
