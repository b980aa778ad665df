/* octet replay: a trace through the real scheduler on a simulated node. */
#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "cli/cli.h"
#include "cli/engine-flags.h"
#include "cli/report-file.h"
#include "cli/trace-flags.h"
#include "engine/base/assert.h"
#include "sim/replay/capacity.h"
#include "sim/replay/jobs.h"
#include "sim/replay/replay.h"
#include "sim/replay/report.h"
#include "traces/gen.h"
#include "traces/presets.h"

#define COMMAND "replay"
/* Traffic from a generator without an end is measured for so long. */
#define ENDLESS_DURATION_NS (600 * G_GINT64_CONSTANT(1000000000))
#define PROGRESS_US         200000
#define CLIENT_RETRIES_MAX  100
#define INTERVAL_MIN_NS     G_GINT64_CONSTANT(1000000)
#define WINDOW_MIN_NS       G_GINT64_CONSTANT(100000000)
#define CLIENT_BACKOFF_NS   G_GINT64_CONSTANT(1000000000)

typedef struct options {
  oct_engine_flags *flags;
  oct_trace_flags trace;
  char *rate, *rate_mode, *duration, *warmup, *slo, *assume, *timeline_interval, *load;
  char *json, *html, *requests, *timeline, *log, *chrome, *chrome_from, *chrome_for;
  char *client_timeout, *client_retries, *client_backoff;
  char *worst_window;
  char **compare, **scenarios, **class_slo;
  GArray *class_slos; /* of oct_class_slo */
  gboolean exact_lengths, find_capacity;
  const char *name; /* of the trace, as the user wrote it */
  oct_dist *dist;
  json_t *beside; /* reports of other runs, to stand beside this one's */
} options;

/* One configuration to run. */
typedef struct variant {
  oct_engine_flags *flags; /* owned */
  char *label;             /* owned */
  oct_replay_config config;
} variant;

typedef struct plan {
  guint n;
  variant variants[OCT_JOBS_MAX];
} plan;

static void
plan_clear(plan *p) {
  for (guint i = 0; i < p->n; i++) {
    oct_engine_flags_free(p->variants[i].flags);
    g_free(p->variants[i].label);
  }
}

/* --- options ---------------------------------------------------------------------------------- */

static void
replay_entries(GOptionEntry *e, options *o) {
  const GOptionEntry own[] = {
      {"rate", 0, 0, G_OPTION_ARG_STRING, &o->rate,
       "session starts per second, in place of the trace's", "R"},
      {"rate-mode", 0, 0, G_OPTION_ARG_STRING, &o->rate_mode,
       "compress: the same sessions closer together; superpose: copies on top of each other", "M"},
      {"duration", 0, 0, G_OPTION_ARG_STRING, &o->duration,
       "measure what arrives until then; load goes on until it has ended", "TIME"},
      {"warmup", 0, 0, G_OPTION_ARG_STRING, &o->warmup,
       "measure what arrives from then on; default: max(5 mean residence times, 10 %)", "TIME"},
      {"slo", 0, 0, G_OPTION_ARG_STRING, &o->slo, "objectives: ttft_p99=2s,tpot_p99=50ms,e2e=30s …",
       "LIST"},
      {"class-slo", 0, 0, G_OPTION_ARG_STRING_ARRAY, &o->class_slo,
       "objectives of a class of requests, in place of --slo: NAME:LIST; may be repeated",
       "NAME:LIST"},
      {"worst-window", 0, 0, G_OPTION_ARG_STRING, &o->worst_window,
       "tell of the worst stretch of so long, and of that with most traffic", "TIME"},
      {"exact-lengths", 0, 0, G_OPTION_ARG_NONE, &o->exact_lengths,
       "tell the scheduler the true output lengths, as ignore_eos benchmarks do", NULL},
      {"assume-max-tokens", 0, 0, G_OPTION_ARG_STRING, &o->assume,
       "max_tokens of requests that do not state it: N, true*2, lognormal:MEAN:P99 …", "DIST"},
      {"find-capacity", 0, 0, G_OPTION_ARG_NONE, &o->find_capacity,
       "find the highest rate that is served, then report the run at --load of it", NULL},
      {"load", 0, 0, G_OPTION_ARG_STRING, &o->load, "share of the capacity found (0.7)", "X"},
      {"compare", 0, 0, G_OPTION_ARG_STRING_ARRAY, &o->compare,
       "beside it: this configuration with these flags too, or the report in a file of --json; may "
       "be "
       "repeated",
       "FLAGS|FILE"},
      {"scenario", 0, 0, G_OPTION_ARG_FILENAME_ARRAY, &o->scenarios,
       "what happens on the way: throttled or lost GPUs, slow links, other arrivals … "
       "(doc/scenarios.md); may be repeated",
       "FILE"},
      {"client-timeout", 0, 0, G_OPTION_ARG_STRING, &o->client_timeout,
       "clients give up after so long", "TIME"},
      {"client-retries", 0, 0, G_OPTION_ARG_STRING, &o->client_retries,
       "and send again so often, also when they were refused as busy (0)", "N"},
      {"client-backoff", 0, 0, G_OPTION_ARG_STRING, &o->client_backoff,
       "after a pause, twice as long each time (1s)", "TIME"},
      {"json", 0, 0, G_OPTION_ARG_FILENAME, &o->json, "write the report as JSON, - for stdout",
       "FILE"},
      {"html", 0, 0, G_OPTION_ARG_FILENAME, &o->html, "write the report as a page with plots",
       "FILE"},
      {"requests", 0, 0, G_OPTION_ARG_FILENAME, &o->requests, "write a JSON line per request",
       "FILE"},
      {"timeline", 0, 0, G_OPTION_ARG_FILENAME, &o->timeline, "write a CSV row per interval",
       "FILE"},
      {"timeline-interval", 0, 0, G_OPTION_ARG_STRING, &o->timeline_interval, "its rows (1s)",
       "TIME"},
      {"log", 0, 0, G_OPTION_ARG_FILENAME, &o->log, "write the event log", "FILE"},
      {"chrome-trace", 0, 0, G_OPTION_ARG_FILENAME, &o->chrome,
       "write steps, copies and requests for Perfetto or chrome://tracing", "FILE"},
      {"chrome-from", 0, 0, G_OPTION_ARG_STRING, &o->chrome_from, "where it begins (0s)", "TIME"},
      {"chrome-for", 0, 0, G_OPTION_ARG_STRING, &o->chrome_for, "how much it holds (10s)", "TIME"},
      G_OPTION_ENTRY_NULL,
  };
  memcpy(e, own, sizeof own);
}
#define OWN_ENTRIES 26

static void
all_entries(GOptionEntry *entries, options *o) {
  guint n = oct_engine_flags_entries(o->flags, entries);
  n += oct_trace_flags_entries(&o->trace, entries + n);
  replay_entries(entries + n, o);
}

static gboolean
read_trace_options(options *o, GError **error) {
  if (o->assume != NULL && (o->dist = oct_dist_parse(o->assume, error)) == NULL)
    return FALSE;
  if (o->dist != NULL && o->exact_lengths)
    return oct_cli_bad_option(error, "assume-max-tokens", o->assume,
                              "has no meaning with --exact-lengths");
  return oct_trace_flags_read(&o->trace, o->name, error);
}

static gboolean
fill_client(const options *o, oct_client *client, GError **error) {
  guint64 retries = 0;
  if (o->client_timeout != NULL &&
      !oct_duration_parse("client-timeout", o->client_timeout, TRUE, &client->timeout_ns, error))
    return FALSE;
  if (o->client_retries != NULL &&
      !g_ascii_string_to_unsigned(o->client_retries, 10, 0, CLIENT_RETRIES_MAX, &retries, NULL))
    return oct_cli_bad_option(error, "client-retries", o->client_retries,
                              "must be a whole number from 0 to 100");
  client->retries = (guint32)retries;
  client->backoff_ns = CLIENT_BACKOFF_NS;
  if (o->client_backoff != NULL && retries == 0)
    return oct_cli_bad_option(error, "client-backoff", o->client_backoff,
                              "has no meaning without --client-retries");
  return o->client_backoff == NULL ||
         oct_duration_parse("client-backoff", o->client_backoff, FALSE, &client->backoff_ns, error);
}

/* "NAME:LIST" of each --class-slo. */
static gboolean
read_class_slos(options *o, GError **error) {
  o->class_slos = g_array_new(FALSE, FALSE, sizeof(oct_class_slo));
  for (char **text = o->class_slo; text != NULL && *text != NULL; text++) {
    oct_class_slo own = {.class_name = *text};
    char *colon = strchr(*text, ':');
    if (colon == NULL || colon == *text)
      return oct_cli_bad_option(error, "class-slo", *text, "must be NAME:LIST");
    oct_slo_init(&own.slo);
    if (!oct_slo_parse(&own.slo, colon + 1, error))
      return FALSE;
    *colon = '\0'; /* the name ends here */
    g_array_append_val(o->class_slos, own);
  }
  return TRUE;
}

static gboolean
fill_times(const options *o, oct_replay_config *c, GError **error) {
  if (o->duration != NULL &&
      !oct_duration_parse("duration", o->duration, TRUE, &c->duration_ns, error))
    return FALSE;
  if (o->trace.endless && o->trace.endless_rate > OCT_RATE_MAX)
    return oct_cli_bad_option(error, "trace", o->name,
                              "above 1000000 sessions a second it must have an end (requests=N)");
  if (o->duration == NULL && o->trace.endless)
    c->duration_ns = ENDLESS_DURATION_NS;
  if (o->warmup != NULL && !oct_duration_parse("warmup", o->warmup, FALSE, &c->warmup_ns, error))
    return FALSE;
  if (o->warmup != NULL && c->duration_ns > 0 && c->warmup_ns >= c->duration_ns)
    return oct_cli_bad_option(error, "warmup", o->warmup, "leaves nothing of the duration");
  if (o->chrome_from != NULL &&
      !oct_duration_parse("chrome-from", o->chrome_from, FALSE, &c->chrome_from_ns, error))
    return FALSE;
  if (o->chrome_for != NULL &&
      !oct_duration_parse("chrome-for", o->chrome_for, TRUE, &c->chrome_for_ns, error))
    return FALSE;
  if (o->timeline_interval == NULL)
    return TRUE;
  return oct_duration_parse("timeline-interval", o->timeline_interval, TRUE, &c->timeline_ns,
                            error) &&
         (c->timeline_ns >= INTERVAL_MIN_NS ||
          oct_cli_bad_option(error, "timeline-interval", o->timeline_interval,
                             "must be at least 1ms"));
}

/* Files that would overwrite each other, and names that promise what is not done. */
static gboolean
check_files(const options *o, GError **error) {
  const struct {
    const char *flag, *path;
  } files[] = {{"json", o->json},         {"html", o->html}, {"requests", o->requests},
               {"timeline", o->timeline}, {"log", o->log},   {"chrome-trace", o->chrome}};
  for (gsize i = 0; i < G_N_ELEMENTS(files); i++) {
    if (files[i].path == NULL)
      continue;
    if (*files[i].path == '\0')
      return oct_cli_bad_option(error, files[i].flag, "", "is no name of a file");
    if (i > 0 && strcmp(files[i].path, "-") == 0)
      return oct_cli_bad_option(error, files[i].flag, "-",
                                "only --json can write to standard output");
    for (gsize k = 0; k < i; k++)
      if (files[k].path != NULL && strcmp(files[i].path, files[k].path) == 0)
        return oct_cli_bad_option(error, files[i].flag, files[i].path,
                                  "is written by another option too");
  }
  return TRUE;
}

/* Options that mean nothing without another. */
static gboolean
check_pairs(const options *o, GError **error) {
  if (o->rate_mode != NULL && o->rate == NULL && !o->find_capacity)
    return oct_cli_bad_option(error, "rate-mode", o->rate_mode,
                              "has no meaning without --rate or --find-capacity");
  if (o->load != NULL && !o->find_capacity)
    return oct_cli_bad_option(error, "load", o->load, "has no meaning without --find-capacity");
  if (o->timeline_interval != NULL && o->timeline == NULL)
    return oct_cli_bad_option(error, "timeline-interval", o->timeline_interval,
                              "has no meaning without --timeline");
  const char *window = o->chrome_from != NULL ? o->chrome_from : o->chrome_for;
  if (window != NULL && o->chrome == NULL)
    return oct_cli_bad_option(error, o->chrome_from != NULL ? "chrome-from" : "chrome-for", window,
                              "has no meaning without --chrome-trace");
  return check_files(o, error);
}

/* Everything of a configuration but its engine. */
static gboolean
fill_config(const options *o, oct_replay_config *c, GError **error) {
  oct_replay_config_default(c);
  c->rows.path = o->trace.path;
  c->trace_name = o->name;
  c->rows.trace = &o->trace.options;
  c->concurrency = o->trace.options.concurrency;
  c->exact_lengths = o->exact_lengths;
  c->assume_max_tokens = o->dist;
  c->requests_path = o->requests;
  c->timeline_path = o->timeline;
  c->log_path = o->log;
  c->chrome_path = o->chrome;
  c->detail = c->picture = o->json != NULL || o->html != NULL;
  c->setup.scenarios = o->scenarios;
  c->class_slos = (const oct_class_slo *)(const void *)o->class_slos->data;
  c->n_class_slos = o->class_slos->len;
  if (!fill_client(o, &c->client, error))
    return FALSE;
  if (o->worst_window != NULL &&
      !oct_duration_parse("worst-window", o->worst_window, TRUE, &c->worst_window_ns, error))
    return FALSE;
  if (o->worst_window != NULL && c->worst_window_ns < WINDOW_MIN_NS)
    return oct_cli_bad_option(error, "worst-window", o->worst_window, "must be at least 100ms");
  if (o->rate_mode != NULL && strcmp(o->rate_mode, "superpose") == 0)
    c->rows.mode = OCT_RATE_SUPERPOSE;
  else if (o->rate_mode != NULL && strcmp(o->rate_mode, "compress") != 0)
    return oct_cli_bad_option(error, "rate-mode", o->rate_mode, "must be compress or superpose");
  if (o->slo != NULL && !oct_slo_parse(&c->slo, o->slo, error))
    return FALSE;
  return fill_times(o, c, error);
}

/* --- configurations --------------------------------------------------------------------------- */

static gboolean
add_variant(plan *p, const options *o, oct_engine_flags *flags, guint number, const char *rate,
            const char *label, GError **error) {
  g_autoptr(GString) text = g_string_new(label);
  variant *v = &p->variants[p->n];
  if (p->n == OCT_JOBS_MAX)
    return oct_cli_bad_option(error, COMMAND, label, "too many configurations");
  *v = (variant){.flags = oct_engine_flags_copy(flags, NULL)};
  p->n++;
  if (!fill_config(o, &v->config, error) ||
      !oct_engine_flags_apply(v->flags, number, &v->config.setup, text, NULL, error))
    return FALSE;
  /* A seed that is given draws another trace too; else the generator's own stands. */
  oct_setup_options standard;
  oct_setup_options_default(&standard);
  if (v->config.setup.seed != standard.seed)
    v->config.rows.seed = v->config.setup.seed;
  if (rate != NULL && !oct_cli_parse_rate("rate", rate, &v->config.rows.rate, error))
    return FALSE;
  if (rate != NULL && strchr(o->rate, ',') != NULL)
    g_string_append_printf(text, "%srate %s", text->len > 0 ? ", " : "", rate);
  v->label = g_string_free(g_steal_pointer(&text), FALSE);
  v->config.label = v->label;
  if (v->config.setup.model == NULL)
    return oct_cli_bad_option(error, "model", "", "which model? (--model)");
  return TRUE;
}

/* Every combination of the values given. */
static gboolean
add_product(plan *p, const options *o, GError **error) {
  guint n = oct_engine_flags_variants(o->flags, error);
  if (n == 0)
    return FALSE;
  g_auto(GStrv) rates = g_strsplit(o->rate != NULL ? o->rate : "", ",", -1);
  guint n_rates = MAX(1, g_strv_length(rates));
  if (o->rate != NULL && rates[0] == NULL)
    return oct_cli_bad_option(error, "rate", o->rate, "must be a number above 0");
  for (guint r = 0; r < n_rates; r++)
    for (guint i = 0; i < n; i++)
      if (!add_variant(p, o, o->flags, i, o->rate != NULL ? rates[r] : NULL, "", error))
        return FALSE;
  if (p->n == 1)
    p->variants[0].config.label = NULL;
  return TRUE;
}

/* The base with the flags of one --compare. */
static gboolean
add_compared(plan *p, const options *o, const char *text, GError **error) {
  g_autofree char *line = g_strdup_printf("%s %s", COMMAND, text);
  g_auto(GStrv) argv = NULL;
  int argc;
  if (!g_shell_parse_argv(line, &argc, &argv, error))
    return FALSE;
  g_autoptr(oct_engine_flags) given = oct_engine_flags_new();
  GOptionEntry entries[OCT_ENGINE_FLAGS_MAX] = {0};
  oct_engine_flags_entries(given, entries);
  g_autoptr(GOptionContext) context = g_option_context_new(NULL);
  g_option_context_add_main_entries(context, entries, NULL);
  g_option_context_set_help_enabled(context, FALSE);
  /* Parsing moves the words about: it gets an array of its own. */
  g_autofree char **words = g_memdup2(argv, ((gsize)argc + 1) * sizeof *argv);
  oct_engine_flags_expand(given, argc, words);
  if (!g_option_context_parse(context, &argc, &words, error))
    return FALSE;
  if (argc > 1)
    return oct_cli_bad_option(error, "compare", words[1], "is no flag of an engine");
  g_autoptr(oct_engine_flags) flags = oct_engine_flags_copy(o->flags, given);
  if (oct_engine_flags_variants(flags, error) != 1) {
    if (*error == NULL)
      oct_cli_bad_option(error, "compare", text,
                         "a list of values and --compare do not go together");
    return FALSE;
  }
  return add_variant(p, o, flags, 0, o->rate, text, error);
}

/* Reads the reports that --compare names. TRUE in *others: it has flags too. */
static gboolean
read_beside(options *o, gboolean *others, GError **error) {
  o->beside = json_array();
  *others = FALSE;
  for (char **text = o->compare; text != NULL && *text != NULL; text++) {
    *others |= !oct_report_file_is_one(*text);
    if (oct_report_file_is_one(*text) && !oct_report_file_read(*text, o->beside, error))
      return FALSE;
  }
  return TRUE;
}

static gboolean
make_plan(plan *p, options *o, GError **error) {
  gboolean others;
  if (!read_beside(o, &others, error))
    return FALSE;
  if (!others)
    return add_product(p, o, error);
  if (o->rate != NULL && strchr(o->rate, ',') != NULL)
    return oct_cli_bad_option(error, "rate", o->rate,
                              "a list of values and --compare do not go together");
  guint n = oct_engine_flags_variants(o->flags, error);
  if (n > 1)
    return oct_cli_bad_option(error, "compare", o->compare[0],
                              "a list of values and --compare do not go together");
  if (n == 0 || !add_variant(p, o, o->flags, 0, o->rate, "base", error))
    return FALSE;
  for (char **text = o->compare; *text != NULL; text++)
    if (!oct_report_file_is_one(*text) && !add_compared(p, o, *text, error))
      return FALSE;
  return TRUE;
}

/* --- progress --------------------------------------------------------------------------------- */

typedef struct progress {
  gboolean shown;
  gint64 started_us, told_us;
} progress;

static gboolean
is_time(progress *p) {
  gint64 now = g_get_monotonic_time();
  if (now - p->told_us < PROGRESS_US)
    return FALSE;
  p->told_us = now;
  p->shown = TRUE;
  return TRUE;
}

static void
show_progress(void *user, const oct_drive_progress *at) {
  progress *p = user;
  if (!is_time(p))
    return;
  double wall = (double)(p->told_us - p->started_us) / 1e6, virtual = (double)at->now_ns / 1e9;
  fprintf(stderr, "\r%s s simulated, %s requests sent, %s answered, %.0f x real time\033[K",
          oct_report_count(floor(virtual)), oct_report_count((double)at->sent),
          oct_report_count((double)at->ended), virtual / wall);
}

static void
show_done(void *user, guint n_done) {
  progress *p = user;
  p->shown = TRUE;
  fprintf(stderr, "\r%u configurations done\033[K", n_done);
}

static void
end_progress(progress *p) {
  if (p->shown)
    fputs("\r\033[K", stderr);
}

/* --- running ---------------------------------------------------------------------------------- */

static json_t *
run_one(void *user, guint index, GError **error) {
  const plan *p = user;
  const oct_replay_config *config = &p->variants[index].config;
  oct_replay_result result;
  if (!oct_replay_run(config, &result, error))
    return NULL;
  json_t *report = oct_replay_json(config, &result);
  oct_replay_result_clear(&result);
  return report;
}

/* The table for people, unless JSON takes standard output; and the JSON. Takes `report`. */
static gboolean
hand_out(const options *o, json_t *report, void (*print)(FILE *, const json_t *), GError **error) {
  gboolean good = TRUE;
  if (o->json == NULL || strcmp(o->json, "-") != 0)
    print(stdout, report);
  if (o->json != NULL)
    good = oct_report_file_write(o->json, report, error);
  if (good && o->html != NULL)
    good = oct_report_file_write_html(o->html, report, error);
  json_decref(report);
  return good;
}

static gboolean
run_single(const options *o, plan *p, GError **error) {
  progress at = {.started_us = g_get_monotonic_time()};
  if (isatty(STDERR_FILENO)) {
    p->variants[0].config.progress = show_progress;
    p->variants[0].config.user = &at;
  }
  json_t *report = run_one(p, 0, error);
  end_progress(&at);
  if (report == NULL)
    return FALSE;
  if (json_array_size(o->beside) == 0)
    return hand_out(o, report, oct_report_print, error);
  json_t *list = json_array();
  json_array_append_new(list, report);
  json_array_extend(list, o->beside);
  return hand_out(o, oct_report_file_comparison(list), oct_report_file_print_comparison, error);
}

/* Whether every configuration can be built: the last of many must not fail after the others ran. */
static gboolean
check_setups(const plan *p, GError **error) {
  for (guint i = 0; i < p->n; i++) {
    oct_setup setup;
    if (!oct_setup_make(&p->variants[i].config.setup, &setup, error)) {
      g_prefix_error(error, "%s: ", p->variants[i].label);
      return FALSE;
    }
    oct_setup_clear(&setup);
  }
  return TRUE;
}

static gboolean
run_several(const options *o, plan *p, GError **error) {
  progress at = {0};
  json_t *reports[OCT_JOBS_MAX];
  if (o->requests != NULL || o->timeline != NULL || o->log != NULL || o->chrome != NULL)
    return oct_cli_bad_option(error, COMMAND, "--requests, --timeline, --log, --chrome-trace",
                              "are of one configuration");
  if (!check_setups(p, error))
    return FALSE;
  gboolean good =
      oct_jobs_run(p->n, run_one, p, isatty(STDERR_FILENO) ? show_done : NULL, reports, error);
  end_progress(&at);
  if (!good)
    return FALSE;
  json_t *list = json_array();
  for (guint i = 0; i < p->n; i++)
    json_array_append_new(list, reports[i]);
  json_array_extend(list, o->beside);
  return hand_out(o, oct_report_file_comparison(list), oct_report_file_print_comparison, error);
}

/* --- capacity --------------------------------------------------------------------------------- */

static void
print_probe(FILE *out, const json_t *probe) {
  const json_t *verdict = oct_report_at(probe, "verdict");
  fprintf(out, "  %10s %12s %12s %14s %12s %12s  %s\n",
          oct_report_count(oct_report_number(probe, "rate")),
          verdict != NULL ? json_string_value(verdict) : "-",
          oct_report_count(oct_report_number(probe, "requests_per_s")),
          oct_report_count(oct_report_number(probe, "output_tokens_per_s")),
          oct_report_seconds(oct_report_number(probe, "ttft_p99_s")),
          oct_report_seconds(oct_report_number(probe, "tpot_p99_s")),
          json_is_true(json_object_get(probe, "served"))     ? "served"
          : json_is_false(json_object_get(probe, "slo_met")) ? "misses the SLO"
                                                             : "");
}

static void
print_capacity(FILE *out, const json_t *report) {
  gsize i;
  const json_t *probe;
  fprintf(out, "  %10s %12s %12s %14s %12s %12s\n", "rate /s", "verdict", "requests/s",
          "out tokens/s", "TTFT p99", "TPOT p99");
  json_array_foreach(json_object_get(report, "probes"), i, probe) print_probe(out, probe);
  double rate = oct_report_number(report, "rate"), own = oct_report_number(report, "own_rate");
  fprintf(out, "\ncapacity: %s sessions/s (%s is too high): %s\n", oct_report_count(rate),
          oct_report_count(oct_report_number(report, "too_high")),
          json_string_value(json_object_get(report, "criterion")));
  fprintf(out, "the trace's own %s sessions/s are %.2f times that: %s\n\n", oct_report_count(own),
          oct_report_number(report, "own_ratio"),
          json_string_value(oct_report_at(report, "at_own_rate.verdict.verdict")));
  fprintf(out, "at %.0f %% of it:\n\n", 100 * oct_report_number(report, "load"));
  oct_report_print(out, json_object_get(report, "at_load"));
}

static void
show_probe(void *user, const json_t *probe) {
  progress *p = user;
  p->shown = TRUE;
  fprintf(stderr, "\rat %s per second: %s\033[K",
          oct_report_count(oct_report_number(probe, "rate")),
          json_string_value(json_object_get(probe, "verdict")));
}

static gboolean
run_capacity(const options *o, plan *p, GError **error) {
  progress at = {0};
  oct_capacity_options c = {.config = p->variants[0].config, .load = 0.7, .user = &at};
  if (p->n > 1) {
    g_autofree char *given = g_strdup_printf("%u", p->n);
    return oct_cli_bad_option(error, "find-capacity: configurations", given, "it takes one");
  }
  if (o->load != NULL && !oct_cli_parse_positive("load", o->load, &c.load, error))
    return FALSE;
  if (!oct_rows_find_own_rate(&c.config.rows, &c.own_rate, error))
    return FALSE;
  if (c.config.rows.rate > 0)
    c.own_rate = c.config.rows.rate;
  if (isatty(STDERR_FILENO))
    c.told = show_probe;
  json_t *report = oct_capacity_find(&c, error);
  end_progress(&at);
  return report != NULL && hand_out(o, report, print_capacity, error);
}

/* --- the command ------------------------------------------------------------------------------ */

static void
clear_options(options *o) {
  char **const texts[] = {&o->rate,
                          &o->rate_mode,
                          &o->duration,
                          &o->warmup,
                          &o->slo,
                          &o->assume,
                          &o->load,
                          &o->json,
                          &o->html,
                          &o->requests,
                          &o->timeline,
                          &o->log,
                          &o->chrome,
                          &o->timeline_interval,
                          &o->chrome_from,
                          &o->chrome_for,
                          &o->client_timeout,
                          &o->client_retries,
                          &o->client_backoff};
  for (gsize i = 0; i < G_N_ELEMENTS(texts); i++)
    g_free(*texts[i]);
  oct_trace_flags_clear(&o->trace);
  json_decref(o->beside);
  g_strfreev(o->compare);
  g_strfreev(o->scenarios);
  g_strfreev(o->class_slo);
  g_free(o->worst_window);
  g_clear_pointer(&o->class_slos, g_array_unref);
  oct_dist_unref(o->dist);
  oct_engine_flags_free(o->flags);
}

/* Plans and runs; what the user asked wrongly is wrong usage. */
static int
run(options *o) {
  GError *error = NULL;
  plan p = {0};
  int status = OCT_EXIT_OK;
  if (!read_class_slos(o, &error) || !read_trace_options(o, &error) || !make_plan(&p, o, &error) ||
      !check_pairs(o, &error)) {
    status = oct_cli_refuse(COMMAND, "%s", error->message);
    g_error_free(error);
  } else {
    gboolean good = oct_report_file_check(o->json, &error) &&
                    oct_report_file_check_html(o->html, &error) &&
                    (o->find_capacity ? run_capacity(o, &p, &error)
                     : p.n > 1        ? run_several(o, &p, &error)
                                      : run_single(o, &p, &error));
    if (!good && g_error_matches(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION)) {
      status = oct_cli_refuse(COMMAND, "%s", error->message);
      g_error_free(error);
    } else if (!good) {
      status = oct_cli_fail(COMMAND, error);
    }
  }
  plan_clear(&p);
  return status;
}

int
oct_cmd_replay(int argc, char **argv) {
  options o = {.flags = oct_engine_flags_new()};
  GOptionEntry entries[OCT_ENGINE_FLAGS_MAX + OCT_TRACE_FLAGS + OWN_ENTRIES] = {0};
  all_entries(entries, &o);
  g_autofree char *policies = oct_engine_flags_details();
  g_autofree char *details = g_strdup_printf(
      "TRACE is a file in any format that octet trace reads, - for standard input, the name\n"
      "of a preset (chat-150, azure-conv-2023, …) or gen:PRESET,key=value,… for traffic that is\n"
      "generated while it is read (octet trace gen --help has presets and keys).\n"
      "Several values (--policy decode-first,stage-aware) or --compare run configurations side\n"
      "by side. doc/replay.md in the source explains the report.\n\n%s",
      policies);
  const oct_cli_usage usage = {
      .command = COMMAND,
      .arguments = "TRACE",
      .summary = "Replays a request trace through the real scheduler on a simulated node.",
      .details = details,
      .entries = entries,
      .min_arguments = 1,
      .max_arguments = 1,
  };
  /* Large blocks go back to the system when they are freed, and come zeroed without being touched.
   */
  mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  oct_engine_flags_expand(o.flags, argc, argv);
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON) {
    o.name = argv[1];
    status = run(&o);
  }
  clear_options(&o);
  return status;
}
