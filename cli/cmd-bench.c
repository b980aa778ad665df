/* octet bench: load for a server over HTTP, reported as a replay is. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <jansson.h>

#include "cli/cli.h"
#include "cli/report-file.h"
#include "cli/server-flags.h"
#include "cli/trace-flags.h"
#include "client/load.h"
#include "client/report.h"
#include "sim/replay/report.h"

#define COMMAND         "bench"
#define DEFAULT_PROMPTS "1000"
#define DEFAULT_INPUT   1024
#define DEFAULT_OUTPUT  128
#define DEFAULT_FIRST   100   /* below are special tokens in many vocabularies */
#define DEFAULT_IDS     15900 /* up to 16,000: in the vocabulary of nearly every model */
#define READY_NS        (5 * G_GINT64_CONSTANT(1000000000))

typedef struct options {
  oct_server_flags server;
  oct_trace_flags trace;
  char *endpoint, *rate, *burstiness, *arrivals, *num_prompts;
  char *input_len, *output_len, *range_ratio, *prefix_len;
  char *max_concurrency, *time_scale, *duration, *warmup, *num_warmups, *seed;
  char *slo, *goodput, *percentile_metrics, *json, *requests, *label, *ready, *token_range, *extra;
  char **compare;
  gboolean text, ignore_eos, server_metrics;
  const char *url, *name;
  char *made; /* the generator that the flags describe; owned */
} options;

/* What the options come to. */
typedef struct bench {
  oct_load_config load;
  oct_rows_options rows;
  json_t *extra, *beside; /* owned */
  char **only;            /* owned; NULL = all */
  double own_rate, time_scale;
  gint64 ready_ns;
} bench;

static volatile sig_atomic_t stopped;

/* --- options ---------------------------------------------------------------------------------- */

#define TEXT(name, member, help, value)                                                            \
  { name, 0, 0, G_OPTION_ARG_STRING, &o->member, help, value }
#define HIDDEN(name, member)                                                                       \
  { name, 0, G_OPTION_FLAG_HIDDEN, G_OPTION_ARG_STRING, &o->member, NULL, NULL }
#define FLAG(name, member, help)                                                                   \
  { name, 0, 0, G_OPTION_ARG_NONE, &o->member, help, NULL }

#define LOAD_ENTRIES 16
static guint
load_entries(GOptionEntry *e, options *o) {
  const GOptionEntry own[LOAD_ENTRIES] = {
      TEXT("rate", rate, "sessions per second; inf (the default without TRACE): all at once", "R"),
      HIDDEN("request-rate", rate),
      TEXT("arrivals", arrivals, "poisson (default), gamma, constant or weibull", "LAW"),
      TEXT("burstiness", burstiness, "gamma arrivals of this shape: 1 is Poisson, below burstier",
           "K"),
      TEXT("num-prompts", num_prompts, "requests to send (" DEFAULT_PROMPTS ", or all of TRACE)",
           "N"),
      TEXT("random-input-len", input_len, "prompt tokens of each (1024)", "N"),
      TEXT("random-output-len", output_len, "tokens asked for by each (128)", "N"),
      TEXT("random-range-ratio", range_ratio, "lengths from (1 - X) to (1 + X) of these (0)", "X"),
      TEXT("random-prefix-len", prefix_len, "a prefix that all share, in front of the prompts (0)",
           "N"),
      TEXT("max-concurrency", max_concurrency,
           "requests that may be out at once; without TRACE and --rate: a closed loop of N", "N"),
      TEXT("time-scale", time_scale, "times of the trace times X: 0.5 is twice as fast", "X"),
      TEXT("duration", duration, "send nothing after that", "TIME"),
      TEXT("warmup", warmup, "measure from then on; default: max(5 mean residence times, 10 %)",
           "TIME"),
      TEXT("num-warmups", num_warmups, "requests before, which count for nothing (0)", "N"),
      TEXT("seed", seed, "of arrivals, lengths and contents (1)", "N"),
      TEXT("slo", slo, "objectives: ttft_p99=2s,tpot_p99=50ms,e2e=30s …", "LIST"),
  };
  memcpy(e, own, sizeof own);
  return LOAD_ENTRIES;
}

#define REPORT_ENTRIES 15
static guint
report_entries(GOptionEntry *e, options *o) {
  const GOptionEntry own[REPORT_ENTRIES] = {
      TEXT("goodput", goodput, "the same in vLLM's way: ttft:2000,tpot:50 (ms, each request)",
           "LIST"),
      TEXT("endpoint", endpoint, "completions (default) or chat", "NAME"),
      FLAG("text", text, "prompts of words in place of token ids; chat always has them"),
      TEXT("token-range", token_range, "token ids of prompts are in [FIRST, END) (100:16000)",
           "FIRST:END"),
      FLAG("ignore-eos", ignore_eos, "ask for as many tokens as stated, whatever the model says"),
      TEXT("extra-body", extra, "fields for each request, as a JSON object", "JSON"),
      FLAG("server-metrics", server_metrics, "ask the server for its own times (return_metrics)"),
      TEXT("ready-check-timeout", ready, "wait so long for the server (5s)", "TIME"),
      HIDDEN("ready-check-timeout-sec", ready),
      TEXT("json", json, "write the report as JSON, - for stdout", "FILE"),
      HIDDEN("save-result", json),
      TEXT("requests", requests, "write a JSON line per request", "FILE"),
      TEXT("percentile-metrics", percentile_metrics,
           "latencies to print: ttft,tpot,itl,e2e,queue,longest_gap; the JSON has all", "LIST"),
      {"compare", 0, 0, G_OPTION_ARG_STRING_ARRAY, &o->compare,
       "print beside it the report in a file of --json, of bench or replay; may be repeated",
       "FILE"},
      TEXT("label", label, "its name in a comparison", "NAME"),
  };
  memcpy(e, own, sizeof own);
  return REPORT_ENTRIES;
}

static gboolean
parse_count(const char *what, const char *value, guint64 low, guint64 high, guint64 *out,
            GError **error) {
  g_autoptr(GError) why = NULL;
  if (value == NULL || g_ascii_string_to_unsigned(value, 10, low, high, out, &why))
    return TRUE;
  g_autofree char *wanted = g_strdup_printf(
      "must be a whole number from %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT, low, high);
  return oct_cli_bad_option(error, what, value, wanted);
}

/* --- traffic that the flags describe ---------------------------------------------------------- */

/* "uniform:LOW:HIGH" round `given`, or `given` itself. */
static char *
length_of(const char *what, const char *given, guint64 standard, double ratio, GError **error) {
  guint64 n = standard;
  if (!parse_count(what, given, 1, OCT_TRACE_TOKENS_MAX / 2, &n, error))
    return NULL;
  if (ratio == 0)
    return g_strdup_printf("%" G_GUINT64_FORMAT, n);
  guint64 low = (guint64)MAX(1, floor((double)n * (1 - ratio)));
  return g_strdup_printf("uniform:%" G_GUINT64_FORMAT ":%.0f", low, ceil((double)n * (1 + ratio)));
}

static gboolean
parse_ratio(const options *o, double *ratio, GError **error) {
  char *end;
  *ratio = o->range_ratio != NULL ? g_ascii_strtod(o->range_ratio, &end) : 0;
  if (o->range_ratio != NULL &&
      (end == o->range_ratio || *end != '\0' || !(*ratio >= 0 && *ratio < 1)))
    return oct_cli_bad_option(error, "random-range-ratio", o->range_ratio,
                              "must be at least 0 and below 1");
  return TRUE;
}

static void
append_arrivals(GString *spec, const options *o) {
  gboolean is_closed = o->rate == NULL && o->max_concurrency != NULL;
  if (is_closed)
    g_string_append_printf(spec, ",arrivals=closed,concurrency=%s", o->max_concurrency);
  else
    g_string_append_printf(spec, ",rate=%s", o->rate != NULL ? o->rate : "inf");
  if (o->burstiness != NULL)
    g_string_append_printf(spec, ",arrivals=gamma,burstiness=%s", o->burstiness);
  else if (o->arrivals != NULL)
    g_string_append_printf(spec, ",arrivals=%s", o->arrivals);
}

/* The generator's spec, as oct_trace_open() takes it. */
static gboolean
make_traffic(options *o, guint64 seed, GError **error) {
  double ratio;
  guint64 prefix = 0;
  if (!parse_ratio(o, &ratio, error) ||
      !parse_count("random-prefix-len", o->prefix_len, 0, OCT_TRACE_TOKENS_MAX / 2, &prefix, error))
    return FALSE;
  g_autofree char *input = length_of("random-input-len", o->input_len, DEFAULT_INPUT, ratio, error);
  g_autofree char *output =
      input == NULL ? NULL
                    : length_of("random-output-len", o->output_len, DEFAULT_OUTPUT, ratio, error);
  if (output == NULL)
    return FALSE;
  g_autoptr(GString) spec = g_string_new(NULL);
  g_string_append_printf(spec, "gen:seed=%" G_GUINT64_FORMAT ",input=%s,output=%s", seed, input,
                         output);
  if (o->num_prompts != NULL || o->duration == NULL)
    g_string_append_printf(spec, ",requests=%s",
                           o->num_prompts != NULL ? o->num_prompts : DEFAULT_PROMPTS);
  if (prefix > 0)
    g_string_append_printf(spec, ",prefix-tokens=%" G_GUINT64_FORMAT ",prefix-count=1", prefix);
  append_arrivals(spec, o);
  o->made = g_string_free(g_steal_pointer(&spec), FALSE);
  o->name = "random";
  return TRUE;
}

/* Flags that describe traffic say nothing of a trace's. */
static gboolean
check_trace_alone(const options *o, GError **error) {
  const char *const given[][2] = {{"arrivals", o->arrivals},
                                  {"burstiness", o->burstiness},
                                  {"random-input-len", o->input_len},
                                  {"random-output-len", o->output_len},
                                  {"random-prefix-len", o->prefix_len},
                                  {"random-range-ratio", o->range_ratio}};
  for (gsize i = 0; i < G_N_ELEMENTS(given); i++)
    if (given[i][1] != NULL)
      return oct_cli_bad_option(error, given[i][0], given[i][1],
                                "has no meaning with a trace, which states its own");
  return TRUE;
}

static gboolean
read_rates(const options *o, bench *b, GError **error) {
  b->time_scale = 1;
  if (o->time_scale != NULL &&
      !oct_cli_parse_positive("time-scale", o->time_scale, &b->time_scale, error))
    return FALSE;
  if (o->time_scale != NULL && (o->made != NULL || o->rate != NULL))
    return oct_cli_bad_option(error, "time-scale", o->time_scale,
                              "is for a trace's own times, without --rate");
  if (o->made != NULL) {
    /* What makes no sense together is wrong usage, found before the server is asked. */
    g_autoptr(oct_rows) rows = oct_rows_open(&b->rows, error);
    return rows != NULL;
  }
  if (o->rate != NULL && !oct_cli_parse_rate("rate", o->rate, &b->rows.rate, error))
    return FALSE;
  if (o->time_scale == NULL)
    return TRUE;
  if (!oct_rows_find_own_rate(&b->rows, &b->own_rate, error))
    return FALSE;
  b->rows.rate = b->own_rate / b->time_scale;
  return TRUE;
}

static gboolean
read_traffic(options *o, bench *b, guint64 seed, GError **error) {
  if (o->name == NULL ? !make_traffic(o, seed, error) : !check_trace_alone(o, error))
    return FALSE;
  if (!oct_trace_flags_read(&o->trace, o->made != NULL ? o->made : o->name, error))
    return FALSE;
  guint64 limit = o->trace.options.limit;
  if (o->trace.endless && limit == 0 && o->num_prompts == NULL && o->duration == NULL)
    o->num_prompts = g_strdup(DEFAULT_PROMPTS);
  if (!parse_count("num-prompts", o->num_prompts, 1, G_MAXINT64, &limit, error))
    return FALSE;
  o->trace.options.limit = limit;
  b->rows = (oct_rows_options){.path = o->trace.path, .trace = &o->trace.options};
  if (o->seed != NULL)
    b->rows.seed = seed;
  b->load.concurrency = o->trace.options.concurrency;
  return read_rates(o, b, error);
}

/* --- the rest of the options ------------------------------------------------------------------ */

/* "ttft:2000,tpot:50" in ms, as vLLM has it. */
static gboolean
read_goodput(const options *o, oct_slo *slo, GError **error) {
  g_autoptr(GString) text = g_string_new(o->slo);
  g_auto(GStrv) parts = g_strsplit_set(o->goodput != NULL ? o->goodput : "", ", ", -1);
  for (char **part = parts; *part != NULL; part++) {
    char *colon = strchr(*part, ':');
    if (**part == '\0')
      continue;
    if (colon == NULL)
      return oct_cli_bad_option(error, "goodput", *part, "must be METRIC:MILLISECONDS");
    *colon = '\0';
    g_string_append_printf(text, "%s%s=%sms", text->len > 0 ? "," : "",
                           strcmp(*part, "e2el") == 0 ? "e2e" : *part, colon + 1);
  }
  return text->len == 0 || oct_slo_parse(slo, text->str, error);
}

static gboolean
read_endpoint(const options *o, oct_load_config *c, GError **error) {
  const char *text = o->endpoint != NULL ? o->endpoint : "completions";
  text = g_str_has_prefix(text, "/v1/") ? text + 4 : text;
  c->endpoint = OCT_LOAD_COMPLETIONS;
  if (strcmp(text, "chat") == 0 || strcmp(text, "chat/completions") == 0)
    c->endpoint = OCT_LOAD_CHAT;
  else if (strcmp(text, "completions") != 0)
    return oct_cli_bad_option(error, "endpoint", o->endpoint, "must be completions or chat");
  return TRUE;
}

static gboolean
read_prompts(const options *o, oct_load_config *c, guint64 seed, GError **error) {
  guint64 first = DEFAULT_FIRST, end = DEFAULT_FIRST + DEFAULT_IDS;
  c->prompt.seed = seed;
  c->prompt.as_text = o->text;
  if (o->token_range != NULL) {
    g_auto(GStrv) parts = g_strsplit(o->token_range, ":", 2);
    if (g_strv_length(parts) != 2 ||
        !g_ascii_string_to_unsigned(parts[0], 10, 0, G_MAXINT32, &first, NULL) ||
        !g_ascii_string_to_unsigned(parts[1], 10, first + 1, G_MAXINT32, &end, NULL))
      return oct_cli_bad_option(error, "token-range", o->token_range,
                                "must be FIRST:END with FIRST below END");
    if (o->text || c->endpoint == OCT_LOAD_CHAT)
      return oct_cli_bad_option(error, "token-range", o->token_range,
                                "has no meaning with words, which --text and chat send");
  }
  c->prompt.first_id = (guint32)first;
  c->prompt.n_ids = (guint32)(end - first);
  return TRUE;
}

static gboolean
read_extra(const options *o, bench *b, GError **error) {
  json_error_t where;
  b->extra =
      o->extra != NULL ? json_loads(o->extra, JSON_REJECT_DUPLICATES, &where) : json_object();
  if (!json_is_object(b->extra))
    return oct_cli_bad_option(error, "extra-body", o->extra, "must be a JSON object");
  if (o->server_metrics)
    json_object_set_new(b->extra, "return_metrics", json_true());
  b->load.extra = b->extra;
  return TRUE;
}

/* vLLM's time-out is a number of seconds. */
static gboolean
read_ready(const options *o, bench *b, GError **error) {
  b->ready_ns = READY_NS;
  if (o->ready == NULL)
    return TRUE;
  gboolean bare = *o->ready != '\0' && strspn(o->ready, "0123456789.") == strlen(o->ready);
  g_autofree char *text = g_strconcat(o->ready, bare ? "s" : "", NULL);
  return oct_duration_parse("ready-check-timeout", text, FALSE, &b->ready_ns, error);
}

static gboolean
read_times(const options *o, oct_load_config *c, GError **error) {
  c->warmup_ns = -1;
  if (o->duration != NULL &&
      !oct_duration_parse("duration", o->duration, TRUE, &c->duration_ns, error))
    return FALSE;
  if (o->warmup != NULL && !oct_duration_parse("warmup", o->warmup, FALSE, &c->warmup_ns, error))
    return FALSE;
  if (o->warmup != NULL && c->duration_ns > 0 && c->warmup_ns >= c->duration_ns)
    return oct_cli_bad_option(error, "warmup", o->warmup, "leaves nothing of the duration");
  return TRUE;
}

static gboolean
read_metric_names(const options *o, bench *b, GError **error) {
  static const char *const names[] = {"ttft", "tpot", "itl", "e2e", "queue", "longest_gap", NULL};
  if (o->percentile_metrics == NULL)
    return TRUE;
  b->only = g_strsplit(o->percentile_metrics, ",", -1);
  for (char **name = b->only; *name != NULL; name++) {
    if (strcmp(*name, "e2el") == 0)
      (*name)[3] = '\0'; /* vLLM's name */
    if (!g_strv_contains(names, *name))
      return oct_cli_bad_option(error, "percentile-metrics", *name,
                                "must be of ttft,tpot,itl,e2e,queue,longest_gap");
  }
  return TRUE;
}

static gboolean
read_options(options *o, bench *b, GError **error) {
  oct_load_config *c = &b->load;
  guint64 seed = 1, most = 0, warmups = 0;
  oct_slo_init(&c->slo);
  if (!parse_count("seed", o->seed, 0, G_MAXINT64, &seed, error) ||
      !parse_count("max-concurrency", o->max_concurrency, 1, 1u << 20, &most, error) ||
      !parse_count("num-warmups", o->num_warmups, 0, 1u << 20, &warmups, error))
    return FALSE;
  c->max_concurrency = (guint32)most;
  c->n_warmups = (guint32)warmups;
  c->ignore_eos = o->ignore_eos;
  c->stop = &stopped;
  b->beside = json_array();
  for (char **file = o->compare; file != NULL && *file != NULL; file++)
    if (!oct_report_file_read(*file, b->beside, error))
      return FALSE;
  return read_traffic(o, b, seed, error) && read_goodput(o, &c->slo, error) &&
         read_endpoint(o, c, error) && read_prompts(o, c, seed, error) && read_extra(o, b, error) &&
         read_ready(o, b, error) && read_times(o, c, error) && read_metric_names(o, b, error) &&
         oct_report_file_check(o->json, error);
}

/* --- running ---------------------------------------------------------------------------------- */

/* The first signal ends the load, and what was measured is reported; the second ends octet. */
static void
on_signal(int number) {
  static gint64 first_ns; /* of no other use: signals are blocked meanwhile */
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  gint64 now_ns = (gint64)time.tv_sec * 1000000000 + time.tv_nsec;
  if (stopped != 0 && now_ns - first_ns >= OCT_CLI_ECHO_NS)
    _exit(128 + number);
  if (stopped == 0)
    first_ns = now_ns;
  stopped = 1;
}

static void
catch_signals(void) {
  struct sigaction action = {.sa_handler = on_signal};
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGINT);
  sigaddset(&action.sa_mask, SIGTERM);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

/* As many connections as the system allows. */
static void
raise_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
  }
}

static void
show_progress(void *user, const oct_load_progress *at) {
  gboolean *shown = user;
  *shown = TRUE;
  fprintf(stderr, "\r%.0f s: %s sent, %s answered, %s failed, %s out\033[K",
          (double)at->now_ns / 1e9, oct_report_count((double)at->sent),
          oct_report_count((double)at->ended), oct_report_count((double)at->failed),
          oct_report_count((double)at->out));
}

static json_t *
make_report(const options *o, const bench *b, oct_rows *rows, const oct_load_result *result) {
  struct rusage use;
  getrusage(RUSAGE_SELF, &use);
  const oct_bench_facts facts = {
      .label = o->label,
      .url = oct_client_url(b->load.client),
      .model = b->load.model,
      .trace_name = o->name,
      .config = &b->load,
      .trace = oct_rows_facts(rows),
      .rate = b->rows.rate,
      .own_rate = b->own_rate > 0 ? b->own_rate : oct_rows_own_rate(rows),
      .rate_mode = b->rows.mode,
      .time_scale = b->time_scale,
      .seed = b->load.prompt.seed,
      .cpu_s = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
               (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6,
      .peak_rss_bytes = (guint64)use.ru_maxrss * 1024,
  };
  return oct_bench_json(&facts, result);
}

/* Takes `report`. */
static gboolean
hand_out(const options *o, const bench *b, json_t *report, GError **error) {
  gboolean good = TRUE;
  if (o->json == NULL || strcmp(o->json, "-") != 0)
    oct_bench_print(stdout, report, (const char *const *)b->only);
  if (o->json != NULL)
    good = oct_report_file_write(o->json, report, error);
  if (json_array_size(b->beside) > 0 && (o->json == NULL || strcmp(o->json, "-") != 0)) {
    json_array_insert(b->beside, 0, report);
    json_t *comparison = oct_report_file_comparison(json_incref(b->beside));
    fputc('\n', stdout);
    oct_report_file_print_comparison(stdout, comparison);
    json_decref(comparison);
  }
  json_decref(report);
  return good;
}

static gboolean
run_load(const options *o, bench *b, oct_client *client, GError **error) {
  gboolean shown = FALSE;
  g_autoptr(oct_rows) rows = oct_rows_open(&b->rows, error);
  if (rows == NULL)
    return FALSE;
  b->load.client = client;
  b->load.rows = rows;
  if (isatty(STDERR_FILENO)) {
    b->load.progress = show_progress;
    b->load.user = &shown;
  }
  oct_load_result result;
  gboolean good = oct_load_run(&b->load, &result, error);
  if (shown)
    fputs("\r\033[K", stderr);
  if (!good)
    return FALSE;
  json_t *report = make_report(o, b, rows, &result);
  gboolean nobody = result.sent > 0 && result.ended == 0 && !result.interrupted;
  oct_load_result_clear(&result);
  good = hand_out(o, b, report, error);
  if (good && nobody) {
    g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER, "no request was answered");
    return FALSE;
  }
  return good;
}

static gboolean
run(options *o, bench *b, GError **error) {
  g_autoptr(oct_client) client = oct_server_open(&o->server, o->url, error);
  if (client == NULL)
    return FALSE;
  g_autofree char *model =
      oct_server_wait(&o->server, client, oct_client_now_ns() + b->ready_ns, error);
  if (model == NULL)
    return FALSE;
  b->load.model = model;
  if (o->requests != NULL && (b->load.requests = fopen(o->requests, "we")) == NULL) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_IO, "%s: cannot write: %s", o->requests,
                g_strerror(errno));
    return FALSE;
  }
  gboolean good = run_load(o, b, client, error);
  if (b->load.requests != NULL && fclose(b->load.requests) != 0 && good) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_IO, "%s: cannot write: %s", o->requests,
                g_strerror(errno));
    return FALSE;
  }
  return good;
}

/* --- the command ------------------------------------------------------------------------------ */

static void
clear_options(options *o) {
  char **const texts[] = {&o->endpoint,    &o->rate,        &o->burstiness, &o->arrivals,
                          &o->num_prompts, &o->input_len,   &o->output_len, &o->range_ratio,
                          &o->prefix_len,  &o->time_scale,  &o->duration,   &o->max_concurrency,
                          &o->warmup,      &o->num_warmups, &o->seed,       &o->slo,
                          &o->goodput,     &o->json,        &o->requests,   &o->percentile_metrics,
                          &o->label,       &o->ready,       &o->extra,      &o->token_range,
                          &o->made};
  for (gsize i = 0; i < G_N_ELEMENTS(texts); i++)
    g_free(*texts[i]);
  g_strfreev(o->compare);
  oct_server_flags_clear(&o->server);
  oct_trace_flags_clear(&o->trace);
}

static int
plan_and_run(options *o) {
  bench b = {0};
  GError *error = NULL;
  int status = OCT_EXIT_OK;
  gboolean planned = read_options(o, &b, &error);
  gboolean good = planned && run(o, &b, &error);
  if (!good && (!planned || g_error_matches(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION) ||
                g_error_matches(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_OPTION))) {
    status = oct_cli_refuse(COMMAND, "%s", error->message);
    g_error_free(error);
  } else if (!good) {
    status = oct_cli_fail(COMMAND, error);
  }
  json_decref(b.extra);
  json_decref(b.beside);
  g_strfreev(b.only);
  return status;
}

int
oct_cmd_bench(int argc, char **argv) {
  options o = {0};
  GOptionEntry entries[OCT_SERVER_FLAGS + OCT_TRACE_FLAGS + LOAD_ENTRIES + REPORT_ENTRIES + 1] = {
      0};
  guint n = oct_server_flags_entries(&o.server, entries);
  n += load_entries(entries + n, &o);
  n += oct_trace_flags_entries(&o.trace, entries + n);
  report_entries(entries + n, &o);
  const oct_cli_usage usage = {
      .command = COMMAND,
      .arguments = "URL [TRACE]",
      .summary = "Sends load to an OpenAI-compatible server and reports what came of it.",
      .details =
          "URL is http://HOST:PORT[/PREFIX], HOST:PORT or unix:PATH. TRACE is what octet replay\n"
          "takes: a file, the name of a preset or gen:PRESET,key=value,…; its times are kept,\n"
          "whatever the server does, and so are its shared prefixes. Without TRACE requests of\n"
          "random tokens are made (--random-…). Latencies count from the time when a request was\n"
          "due, and are also told from the time when it was sent. Ctrl-C ends the load and\n"
          "reports. doc/bench.md in the source explains the report.",
      .entries = entries,
      .min_arguments = 1,
      .max_arguments = 2,
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON) {
    o.url = argv[1];
    o.name = argc > 2 ? argv[2] : NULL;
    catch_signals();
    raise_limit();
    status = plan_and_run(&o);
  }
  clear_options(&o);
  return status;
}
