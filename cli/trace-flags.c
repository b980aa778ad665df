#include "cli/trace-flags.h"

#include <math.h>
#include <string.h>

#include "sim/replay/slo.h"
#include "traces/gen.h"
#include "traces/presets.h"

static const char *const keys[OCT_TRACE_FLAGS][3] = {
    {"format", "NAME", "auto, octet, azure, mooncake, timed, bailian, burstgpt or vidur"},
    {"spread", "TICK", "spread arrivals over recorded ticks: auto, or the tick in seconds"},
    {"hash-block-size", "N", "tokens per hash block, when the trace does not show it"},
    {"time-unit", "UNIT", "ns, us, ms or s of numeric times, when not the format's"},
    {"sort-window", "N", "hold up to N rows to put arrivals in order"},
    {"concurrency", "N", "slots, for rows without arrival time"},
    {"limit", "N", "read N requests only"},
};

void
oct_trace_flags_clear(oct_trace_flags *flags) {
  for (int i = 0; i < OCT_TRACE_FLAGS; i++)
    g_free(flags->given[i]);
  g_free(flags->path);
  memset(flags, 0, sizeof *flags);
}

guint
oct_trace_flags_entries(oct_trace_flags *flags, GOptionEntry *entries) {
  for (int i = 0; i < OCT_TRACE_FLAGS; i++)
    entries[i] = (GOptionEntry){keys[i][0],       0,          0,         G_OPTION_ARG_STRING,
                                &flags->given[i], keys[i][2], keys[i][1]};
  return OCT_TRACE_FLAGS;
}

gboolean
oct_cli_bad_option(GError **error, const char *what, const char *value, const char *why) {
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "%s \"%s\": %s", what, value, why);
  return FALSE;
}

gboolean
oct_cli_parse_positive(const char *what, const char *value, double *out, GError **error) {
  char *end;
  *out = g_ascii_strtod(value, &end);
  if (end == value || *end != '\0' || !isfinite(*out) || *out <= 0)
    return oct_cli_bad_option(error, what, value, "must be a number above 0");
  return TRUE;
}

gboolean
oct_cli_parse_rate(const char *what, const char *value, double *out, GError **error) {
  if (!oct_cli_parse_positive(what, value, out, error))
    return FALSE;
  return (*out >= OCT_RATE_MIN && *out <= OCT_RATE_MAX) ||
         oct_cli_bad_option(error, what, value, "must be from 0.000001 to 1000000 a second");
}

/* The trace's path; a preset's name alone is its generator. */
static char *
path_of(const char *argument) {
  if (g_file_test(argument, G_FILE_TEST_EXISTS) || strchr(argument, '/') != NULL)
    return g_strdup(argument);
  const oct_trace_preset *preset;
  for (gsize i = 0; (preset = oct_trace_preset_at(i)) != NULL; i++)
    if (strcmp(preset->name, argument) == 0)
      return g_strdup_printf("gen:%s", argument);
  return g_strdup(argument);
}

/* A generator that would go on for ever gets an end that nobody will see. */
static gboolean
make_endless(oct_trace_flags *f) {
  if (!g_str_has_prefix(f->path, "gen:"))
    return FALSE;
  g_auto(oct_trace_gen_spec) spec;
  oct_trace_gen_spec_init(&spec);
  if (!oct_trace_gen_parse(&spec, f->path + 4, NULL) || spec.n_requests > 0 || spec.duration_s > 0)
    return FALSE;
  f->endless_rate = spec.rate;
  char *path = g_strdup_printf("%s%srequests=1000000000000", f->path, f->path[4] ? "," : "");
  g_free(f->path);
  f->path = path;
  return f->options.limit == 0;
}

gboolean
oct_trace_flags_read(oct_trace_flags *f, const char *argument, GError **error) {
  f->path = path_of(argument);
  oct_trace_options_init(&f->options);
  for (int i = 0; i < OCT_TRACE_FLAGS; i++)
    if (f->given[i] != NULL && !oct_trace_options_set(&f->options, keys[i][0], f->given[i], error))
      return FALSE;
  f->endless = make_endless(f);
  for (int i = 0; i < OCT_TRACE_FLAGS && g_str_has_prefix(f->path, "gen:"); i++)
    if (f->given[i] != NULL && strcmp(keys[i][0], "limit") != 0)
      return oct_cli_bad_option(error, keys[i][0], f->given[i],
                                "is for recorded traces; generated traffic takes "
                                "gen:PRESET,key=value");
  return TRUE;
}
