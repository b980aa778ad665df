/* The options of a reader from text, so that every command names them alike. */
#include <math.h>
#include <string.h>

#include "traces/trace.h"

void
oct_trace_options_init(oct_trace_options *options) {
  memset(options, 0, sizeof *options);
}

static gboolean
fail(GError **error, const char *key, const char *value, const char *what) {
  g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION, "%s: value \"%s\": %s", key, value,
              what);
  return FALSE;
}

static gboolean
set_spread(oct_trace_options *options, const char *value, GError **error) {
  char *end = NULL;
  double s = 0;
  if (strcmp(value, "auto") != 0) {
    s = g_ascii_strtod(value, &end);
    if (end == value || *end != 0 || !(s >= 1e-9 && s <= 1e6))
      return fail(error, "spread", value, "must be auto or the tick in seconds, up to 1e6");
  }
  options->spread = TRUE;
  options->spread_tick_ns = llround(s * 1e9);
  return TRUE;
}

static gboolean
set_unit(oct_trace_options *options, const char *value, GError **error) {
  static const char *const names[] = {"ns", "us", "ms", "s"};
  gint64 unit_ns = 1;
  for (gsize i = 0; i < G_N_ELEMENTS(names); i++, unit_ns *= 1000)
    if (strcmp(value, names[i]) == 0) {
      options->time_unit_ns = unit_ns;
      return TRUE;
    }
  return fail(error, "time-unit", value, "must be ns, us, ms or s");
}

gboolean
oct_trace_options_set(oct_trace_options *options, const char *key, const char *value,
                      GError **error) {
  if (strcmp(key, "format") == 0)
    return oct_trace_format_from_name(value, &options->format, error);
  if (strcmp(key, "spread") == 0)
    return set_spread(options, value, error);
  if (strcmp(key, "time-unit") == 0)
    return set_unit(options, value, error);
  const struct {
    const char *key;
    guint64 max;
    guint32 *small; /* NULL: options->limit */
  } counts[] = {
      {"hash-block-size", OCT_TRACE_TOKENS_MAX, &options->block_size},
      {"sort-window", OCT_TRACE_WINDOW_MAX, &options->sort_window},
      {"concurrency", G_MAXINT32, &options->concurrency},
      {"limit", G_MAXINT64, NULL},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(counts); i++) {
    if (strcmp(key, counts[i].key) != 0)
      continue;
    guint64 number = 0;
    if (!g_ascii_string_to_unsigned(value, 10, 1, counts[i].max, &number, NULL)) {
      g_autofree char *what =
          g_strdup_printf("must be a whole number from 1 to %" G_GUINT64_FORMAT, counts[i].max);
      return fail(error, key, value, what);
    }
    if (counts[i].small != NULL)
      *counts[i].small = (guint32)number;
    else
      options->limit = number;
    return TRUE;
  }
  return fail(error, key, value, "a reader of traces has no such option");
}
