/* What commands that run a trace have in common: its flags, and how its argument is understood.
 */
#ifndef OCT_CLI_TRACE_FLAGS_H
#define OCT_CLI_TRACE_FLAGS_H

#include <glib.h>

#include "traces/trace.h"

#define OCT_TRACE_FLAGS 7

/* Plain data that starts as zero; texts are owned. */
typedef struct oct_trace_flags {
  char *given[OCT_TRACE_FLAGS]; /* as the user wrote them */
  char *path;                   /* as oct_trace_open() takes it */
  oct_trace_options options;
  double endless_rate; /* its session starts per second; 0 when it has an end */
  gboolean endless;    /* generated traffic without an end: somebody must say when it is enough */
} oct_trace_flags;

void oct_trace_flags_clear(oct_trace_flags *flags);
/* Writes OCT_TRACE_FLAGS entries; they write into `flags`. */
guint oct_trace_flags_entries(oct_trace_flags *flags, GOptionEntry *entries);
/* From `argument` (a file, -, a preset's name, gen:…) and what was given to path, options and
 * endless. FALSE with *error: flag, value, reason. */
gboolean oct_trace_flags_read(oct_trace_flags *flags, const char *argument,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* FALSE with *error (OCT_REPLAY_ERROR_OPTION): what "value": why. */
gboolean oct_cli_bad_option(GError **error, const char *what, const char *value, const char *why);
/* A finite number above 0. */
gboolean oct_cli_parse_positive(const char *what, const char *value, double *out,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same, of sessions a second: above OCT_RATE_MAX arrivals fall on one instant, below
 * OCT_RATE_MIN a handful of them passes the clock's range. */
#define OCT_RATE_MIN 1e-6
#define OCT_RATE_MAX 1e6
gboolean oct_cli_parse_rate(const char *what, const char *value, double *out,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
