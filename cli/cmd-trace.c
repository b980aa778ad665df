/* octet trace: makes, converts and describes request traces. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "cli/cli.h"
#include "engine/base/assert.h"
#include "traces/gen.h"
#include "traces/presets.h"
#include "traces/stats.h"
#include "traces/trace.h"
#include "traces/write.h"

#define SHARES_SHOWN 10u
#define GEN_KEYS_MAX 48u

/* Options of every reader of a trace: the keys of oct_trace_options_set(). */
enum { READER_KEYS = 7 };
static const char *const reader_keys[READER_KEYS][3] = {
    {"format", "NAME", "auto, octet, azure, mooncake, timed, bailian, burstgpt or vidur"},
    {"spread", "TICK", "spread arrivals over recorded ticks: auto, or the tick in seconds"},
    {"hash-block-size", "N", "tokens per hash block, when the trace does not show it"},
    {"time-unit", "UNIT", "ns, us, ms or s of numeric times, when not the format's"},
    {"sort-window", "N", "hold up to N rows to put arrivals in order"},
    {"concurrency", "N", "slots, for rows without arrival time"},
    {"limit", "N", "read N requests only"},
};

/* --- for people ------------------------------------------------------------------------------- */

static void
print_lengths(const char *what, const oct_hist *hist) {
  if (oct_hist_count(hist) == 0)
    return;
  printf("%-14s %10.1f", what, oct_hist_mean(hist));
  static const double percents[] = {0, 50, 90, 95, 99, 100};
  for (gsize i = 0; i < G_N_ELEMENTS(percents); i++)
    printf(" %9" G_GINT64_FORMAT, oct_hist_percentile(hist, percents[i]));
  printf("\n");
}

static void
print_arrivals(const oct_trace_facts *f, const oct_trace_summary *s) {
  if (s->n_timed > 0)
    printf("arrivals       %" G_GUINT64_FORMAT " over %.3f s: %.3f per second, at most %.0f in one "
           "second, %.2f per second in one minute\n",
           s->n_timed, s->span_s, s->rate, s->peak_1s, s->peak_60s);
  if (!isnan(s->gap_cv))
    printf("gaps           mean %.6f s, coefficient of variation %.2f (Poisson: 1)\n",
           s->gap_mean_s, s->gap_cv);
  if (f->quantised)
    printf("               recorded in ticks of %.1f s or more (%" G_GUINT64_FORMAT
           " different times)%s\n",
           (double)f->tick_ns / 1e9, f->n_distinct_arrivals,
           f->spread ? "" : ": a literal replay is bursts; --spread auto spreads them");
  if (f->spread)
    printf("               arrivals are spread evenly over their recorded ticks\n");
  if (f->has_closed_loop && f->concurrency > 0)
    printf("closed loop    %u slots\n", f->concurrency);
  else if (f->has_closed_loop)
    printf("closed loop    slots not stated (--concurrency)\n");
  if (s->n_sessions > 0)
    printf("sessions       %" G_GUINT64_FORMAT ", %.2f requests each; %" G_GUINT64_FORMAT
           " requests wait for the turn before\n",
           s->n_sessions, (double)s->n_requests / (double)s->n_sessions, s->n_dependents);
}

static void
print_prefixes(const oct_trace_facts *f, const oct_trace_summary *s) {
  if (!f->has_hash_ids) {
    printf("prefix reuse   not modelled: the trace has lengths only\n");
    return;
  }
  g_autofree char *size =
      f->block_size > 0 ? g_strdup_printf("%u tokens", f->block_size) : g_strdup("varying size");
  double blocks = MAX((double)s->n_blocks, 1), tokens = (double)s->input_tokens;
  printf("prefix blocks  of %s%s: %" G_GUINT64_FORMAT " in prompts, %" G_GUINT64_FORMAT
         " distinct\n",
         size, f->block_size_inferred ? " (inferred)" : "", s->n_blocks, s->n_distinct_blocks);
  printf("               a cache that forgets nothing hits %.1f %% of them (%.1f %% of prompt "
         "tokens)\n",
         100 * (double)s->n_hit_blocks / blocks, 100 * (double)s->hit_tokens / tokens);
  if (s->hit_tokens_outputs > s->hit_tokens)
    printf("               and %.1f %% (%.1f %%) when it keeps outputs too\n",
           100 * (double)s->n_hit_blocks_outputs / blocks,
           100 * (double)s->hit_tokens_outputs / tokens);
}

static void
print_shares(const char *what, oct_trace_stats *stats,
             gboolean (*share_at)(oct_trace_stats *, guint, oct_trace_share *)) {
  oct_trace_share share;
  for (guint i = 0; share_at(stats, i, &share); i++) {
    if (i == SHARES_SHOWN) {
      printf("               …\n");
      return;
    }
    const char *label = i == 0 ? what : "";
    if (share.class_name != NULL)
      printf("%-14s %s: %" G_GUINT64_FORMAT "\n", label,
             share.class_name[0] != 0 ? share.class_name : "(none)", share.n_requests);
    else
      printf("%-14s %d: %" G_GUINT64_FORMAT "\n", label, share.priority, share.n_requests);
  }
}

static void
print_info(const oct_trace *trace, oct_trace_stats *stats) {
  const oct_trace_facts *f = oct_trace_get_facts(trace);
  oct_trace_summary s = oct_trace_stats_summary(stats);
  printf("%s: %s, %" G_GUINT64_FORMAT " requests", oct_trace_get_name(trace),
         oct_trace_format_name(f->format), s.n_requests);
  if (f->n_skipped > 0)
    printf(", %" G_GUINT64_FORMAT " rows without input or output left out", f->n_skipped);
  if (f->n_sorted > 0)
    printf(", %" G_GUINT64_FORMAT " put in order", f->n_sorted);
  printf("\n");
  if (s.n_requests == 0)
    return;
  print_arrivals(f, &s);
  printf("%-14s %10s %9s %9s %9s %9s %9s %9s\n", "tokens", "mean", "min", "p50", "p90", "p95",
         "p99", "max");
  print_lengths("  input", s.input);
  print_lengths("  output", s.output);
  print_lengths("  max_tokens", s.max_tokens);
  print_prefixes(f, &s);
  if (f->has_classes)
    print_shares("classes", stats, oct_trace_stats_class);
  if (f->has_priorities)
    print_shares("priorities", stats, oct_trace_stats_priority);
}

/* --- for programs ----------------------------------------------------------------------------- */

static json_t *
count(guint64 value) {
  return json_integer((json_int_t)value);
}

static json_t *
real_or_null(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

static json_t *
json_lengths(const oct_hist *hist) {
  if (oct_hist_count(hist) == 0)
    return json_null();
  json_t *object = json_pack("{s:f}", "mean", oct_hist_mean(hist));
  static const struct {
    const char *name;
    double percent;
  } rows[] = {{"min", 0}, {"p50", 50}, {"p90", 90}, {"p95", 95}, {"p99", 99}, {"max", 100}};
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
    json_object_set_new(object, rows[i].name,
                        json_integer(oct_hist_percentile(hist, rows[i].percent)));
  return object;
}

static json_t *
json_shares(oct_trace_stats *stats,
            gboolean (*share_at)(oct_trace_stats *, guint, oct_trace_share *)) {
  json_t *list = json_array();
  oct_trace_share share;
  for (guint i = 0; share_at(stats, i, &share); i++) {
    json_t *row = json_pack("{s:o}", "requests", count(share.n_requests));
    if (share.class_name != NULL)
      json_object_set_new(row, "class", json_string(share.class_name));
    else
      json_object_set_new(row, "priority", json_integer(share.priority));
    json_array_append_new(list, row);
  }
  return list;
}

static json_t *
json_arrivals(const oct_trace_facts *f, const oct_trace_summary *s) {
  return json_pack("{s:o, s:f, s:f, s:f, s:f, s:o, s:o, s:f, s:b, s:b, s:o, s:b, s:i}", "requests",
                   count(s->n_timed), "span_s", s->span_s, "per_second", s->rate,
                   "most_in_one_second", s->peak_1s, "per_second_in_one_minute", s->peak_60s,
                   "gap_mean_s", real_or_null(s->gap_mean_s), "gap_cv", real_or_null(s->gap_cv),
                   "tick_s", (double)f->tick_ns / 1e9, "quantised", f->quantised, "spread",
                   f->spread, "distinct", count(f->n_distinct_arrivals), "closed_loop",
                   f->has_closed_loop, "concurrency", (int)f->concurrency);
}

static json_t *
json_prefixes(const oct_trace_facts *f, const oct_trace_summary *s) {
  if (!f->has_hash_ids)
    return json_null();
  double blocks = MAX((double)s->n_blocks, 1), tokens = (double)s->input_tokens;
  return json_pack("{s:i, s:b, s:o, s:o, s:f, s:f, s:f, s:f}", "block_size", (int)f->block_size,
                   "inferred", f->block_size_inferred, "blocks", count(s->n_blocks),
                   "distinct_blocks", count(s->n_distinct_blocks), "block_hit_rate",
                   (double)s->n_hit_blocks / blocks, "token_hit_rate",
                   (double)s->hit_tokens / tokens, "block_hit_rate_with_outputs",
                   (double)s->n_hit_blocks_outputs / blocks, "token_hit_rate_with_outputs",
                   (double)s->hit_tokens_outputs / tokens);
}

static json_t *
json_info(const oct_trace *trace, oct_trace_stats *stats) {
  const oct_trace_facts *f = oct_trace_get_facts(trace);
  oct_trace_summary s = oct_trace_stats_summary(stats);
  return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                   "trace", oct_trace_get_name(trace), "format", oct_trace_format_name(f->format),
                   "requests", count(s.n_requests), "skipped_rows", count(f->n_skipped),
                   "sorted_rows", count(f->n_sorted), "arrivals", json_arrivals(f, &s), "sessions",
                   count(s.n_sessions), "dependent_requests", count(s.n_dependents),
                   "total_input_tokens", count(s.input_tokens), "total_output_tokens",
                   count(s.output_tokens), "input_tokens", json_lengths(s.input), "output_tokens",
                   json_lengths(s.output), "max_tokens", json_lengths(s.max_tokens), "prefix",
                   json_prefixes(f, &s), "classes",
                   f->has_classes ? json_shares(stats, oct_trace_stats_class) : json_array());
}

static int
write_json(const char *path, const oct_trace *trace, oct_trace_stats *stats) {
  json_t *report = json_info(trace, stats);
  oct_assert(report != NULL);
  json_object_set_new(report, "priorities", json_shares(stats, oct_trace_stats_priority));
  gboolean is_stdout = strcmp(path, "-") == 0;
  FILE *file = is_stdout ? stdout : fopen(path, "we");
  gboolean good = file != NULL &&
                  json_dumpf(report, file, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0 &&
                  fputc('\n', file) != EOF;
  int why = errno;
  if (file != NULL && !is_stdout && fclose(file) != 0 && good) {
    good = FALSE;
    why = errno;
  }
  json_decref(report);
  if (good)
    return OCT_EXIT_OK;
  return oct_cli_fail("trace", g_error_new(OCT_TRACE_ERROR, OCT_TRACE_ERROR_IO,
                                           "%s: cannot write: %s", path, g_strerror(why)));
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Rows of `trace` to `output` (NULL: nowhere), counted in `stats` (NULL: not). */
static gboolean
pump(oct_trace *trace, const char *output, oct_trace_stats *stats, GError **error) {
  g_autoptr(oct_trace_writer) writer = NULL;
  if (output != NULL && (writer = oct_trace_writer_open(output, trace, error)) == NULL)
    return FALSE;
  oct_trace_request request;
  GError *failed = NULL;
  while (oct_trace_next(trace, &request, &failed)) {
    if (stats != NULL)
      oct_trace_stats_add(stats, &request);
    if (writer != NULL && !oct_trace_writer_write(writer, &request, error))
      return FALSE;
  }
  if (failed != NULL) {
    g_propagate_error(error, failed);
    return FALSE;
  }
  return writer == NULL || oct_trace_writer_close(g_steal_pointer(&writer), error);
}

/* Entries for reader_keys, values to values[], then --json. */
static void
reader_entries(GOptionEntry entries[READER_KEYS + 2], char *values[READER_KEYS], char **json) {
  memset(entries, 0, (READER_KEYS + 2) * sizeof *entries);
  for (int i = 0; i < READER_KEYS; i++)
    entries[i] =
        (GOptionEntry){reader_keys[i][0], 0, 0, G_OPTION_ARG_STRING, &values[i], reader_keys[i][2],
                       reader_keys[i][1]};
  entries[READER_KEYS] = (GOptionEntry){
      "json", 0, 0, G_OPTION_ARG_FILENAME, json, "write what info shows to a file, - for stdout",
      "FILE"};
}

/* Sets the options that were given. A wrong value is wrong usage. */
static int
reader_options(const char *command, char *const values[READER_KEYS], oct_trace_options *options) {
  oct_trace_options_init(options);
  for (int i = 0; i < READER_KEYS; i++) {
    g_autoptr(GError) error = NULL;
    if (values[i] != NULL && !oct_trace_options_set(options, reader_keys[i][0], values[i], &error))
      return oct_cli_refuse(command, "--%s", error->message);
  }
  return OCT_CLI_GO_ON;
}

/* info and convert: reads argv[1], writes argv[2] if there is one. */
static int
read_trace(const oct_cli_usage *usage, int argc, char **argv) {
  char *values[READER_KEYS] = {NULL}, *json = NULL;
  GOptionEntry entries[READER_KEYS + 2];
  oct_cli_usage with_entries = *usage;
  oct_trace_options options;
  GError *error = NULL;
  reader_entries(entries, values, &json);
  with_entries.entries = entries;
  int status = oct_cli_parse(&with_entries, &argc, &argv);
  if (status == OCT_CLI_GO_ON)
    status = reader_options(usage->command, values, &options);
  if (status == OCT_CLI_GO_ON) {
    const char *output = argc > 2 ? argv[2] : NULL;
    g_autoptr(oct_trace_stats) stats = oct_trace_stats_new();
    g_autoptr(oct_trace) trace = oct_trace_open(argv[1], &options, &error);
    if (trace == NULL || !pump(trace, output, stats, &error))
      status = oct_cli_fail(usage->command, error);
    else {
      status = OCT_EXIT_OK;
      if (output == NULL && (json == NULL || strcmp(json, "-") != 0))
        print_info(trace, stats);
      if (json != NULL)
        status = write_json(json, trace, stats);
    }
  }
  for (int i = 0; i < READER_KEYS; i++)
    g_free(values[i]);
  g_free(json);
  return status;
}

static int
run_info(int argc, char **argv) {
  static const oct_cli_usage usage = {
      .command = "trace info",
      .arguments = "TRACE",
      .summary = "Describes a trace: rates, lengths, and how much prefix there is to share.",
      .details =
          "TRACE is a file, - for standard input, or gen:PRESET,key=value,… for traffic\n"
          "that is generated while it is read (octet trace gen --help has presets and keys).",
      .min_arguments = 1,
      .max_arguments = 1,
  };
  return read_trace(&usage, argc, argv);
}

static int
run_convert(int argc, char **argv) {
  static const oct_cli_usage usage = {
      .command = "trace convert",
      .arguments = "TRACE OUTPUT",
      .summary = "Writes a trace in Octet's own format (JSON lines), - for standard output.",
      .details = "traces/README.md in the source describes the format, and those that are read.",
      .min_arguments = 2,
      .max_arguments = 2,
  };
  return read_trace(&usage, argc, argv);
}

/* --- gen -------------------------------------------------------------------------------------- */

typedef struct gen_options {
  char *values[GEN_KEYS_MAX]; /* of oct_trace_gen_key_at(i) */
  char **servegen;            /* the one key that may be repeated */
  char *output, *json;
} gen_options;

static guint
gen_entries(GOptionEntry *entries, gen_options *o) {
  guint n = 0;
  const oct_trace_gen_key *key;
  for (; (key = oct_trace_gen_key_at(n)) != NULL; n++) {
    oct_assert(n < GEN_KEYS_MAX);
    gboolean repeats = strcmp(key->key, "servegen") == 0;
    entries[n] = (GOptionEntry){key->key,
                                0,
                                0,
                                repeats ? G_OPTION_ARG_FILENAME_ARRAY : G_OPTION_ARG_STRING,
                                repeats ? (void *)&o->servegen : (void *)&o->values[n],
                                key->help,
                                key->value_name};
  }
  entries[n] = (GOptionEntry){
      "out", 'o', 0, G_OPTION_ARG_FILENAME, &o->output, "where to write; default: standard output",
      "FILE"};
  entries[n + 1] = (GOptionEntry){"json",   0,
                                  0,        G_OPTION_ARG_FILENAME,
                                  &o->json, "write what info shows of the result to a file",
                                  "FILE"};
  return n;
}

/* The preset, then the options in the order of the key table. */
static gboolean
gen_spec(const gen_options *o, guint n_keys, const char *preset, oct_trace_gen_spec *spec,
         GError **error) {
  if (preset != NULL && !oct_trace_preset_apply(preset, spec, error))
    return FALSE;
  for (guint i = 0; i < n_keys; i++)
    if (o->values[i] != NULL &&
        !oct_trace_gen_set(spec, oct_trace_gen_key_at(i)->key, o->values[i], error))
      return FALSE;
  for (char **file = o->servegen; file != NULL && *file != NULL; file++)
    if (!oct_trace_gen_set(spec, "servegen", *file, error))
      return FALSE;
  return TRUE;
}

static char *
gen_details(void) {
  GString *text = g_string_new("DIST is N, uniform:A:B, exponential:MEAN, lognormal:MEAN:P99, "
                               "geometric:MEAN,\nhist:FILE or quantiles:P=V,…, with :min=V and "
                               ":max=V behind it if wanted.\n\nPresets:\n");
  const oct_trace_preset *preset;
  for (gsize i = 0; (preset = oct_trace_preset_at(i)) != NULL; i++)
    g_string_append_printf(text, "  %s: %s.\n    Source: %s\n", preset->name, preset->about,
                           preset->source);
  return g_string_free(text, FALSE);
}

static int
write_generated(const gen_options *o, const oct_trace_gen_spec *spec) {
  GError *error = NULL;
  const char *output = o->output != NULL ? o->output : "-";
  if (o->json != NULL && strcmp(o->json, "-") == 0 && strcmp(output, "-") == 0)
    return oct_cli_refuse("trace gen", "the trace and --json cannot both go to standard output");
  g_autoptr(oct_trace) trace = oct_trace_gen_open(spec, &error);
  if (trace == NULL) {
    int status = oct_cli_refuse("trace gen", "%s", error->message);
    g_error_free(error);
    return status;
  }
  g_autoptr(oct_trace_stats) stats = o->json != NULL ? oct_trace_stats_new() : NULL;
  if (!pump(trace, output, stats, &error))
    return oct_cli_fail("trace gen", error);
  return o->json != NULL ? write_json(o->json, trace, stats) : OCT_EXIT_OK;
}

static int
run_gen(int argc, char **argv) {
  gen_options o = {.output = NULL};
  GOptionEntry entries[GEN_KEYS_MAX + 3] = {0};
  guint n_keys = gen_entries(entries, &o);
  g_autofree char *details = gen_details();
  const oct_cli_usage usage = {
      .command = "trace gen",
      .arguments = "[PRESET]",
      .summary = "Makes a trace of generated traffic; the same options make the same trace.",
      .details = details,
      .entries = entries,
      .max_arguments = 1,
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON) {
    g_auto(oct_trace_gen_spec) spec;
    g_autoptr(GError) error = NULL;
    oct_trace_gen_spec_init(&spec);
    if (!gen_spec(&o, n_keys, argc > 1 ? argv[1] : NULL, &spec, &error))
      status = oct_cli_refuse("trace gen", "%s", error->message);
    else
      status = write_generated(&o, &spec);
  }
  for (guint i = 0; i < GEN_KEYS_MAX; i++)
    g_free(o.values[i]);
  g_strfreev(o.servegen);
  g_free(o.output);
  g_free(o.json);
  return status;
}

int
oct_cmd_trace(int argc, char **argv) {
  static const struct {
    const char *verb;
    int (*run)(int argc, char **argv);
  } verbs[] = {{"gen", run_gen}, {"convert", run_convert}, {"info", run_info}};
  for (gsize i = 0; argc > 1 && i < G_N_ELEMENTS(verbs); i++)
    if (strcmp(argv[1], verbs[i].verb) == 0)
      return verbs[i].run(argc - 1, argv + 1);
  static const oct_cli_usage usage = {
      .command = "trace",
      .arguments = "gen | convert | info [ARGUMENT…]",
      .summary = "Makes, converts and describes request traces.",
      .details = "  gen       traffic from a preset or from laws of arrivals and lengths\n"
                 "  convert   any known format to Octet's own\n"
                 "  info      counts, rates, lengths, prefix reuse\n\n"
                 "'octet trace gen --help' and so on list the options of each.",
      .min_arguments = 1,
      .max_arguments = -1,
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status != OCT_CLI_GO_ON)
    return status;
  return oct_cli_refuse("trace", "there is no '%s': gen, convert or info", argv[1]);
}
