/* Typed access to the fields of one JSON line (jansson). */
#include "traces/json.h"

#include <math.h>
#include <string.h>

json_t *
oct_trace_json_line(const oct_trace_parser *parser, const char *line, gsize size, GError **error) {
  json_error_t why;
  json_t *value = json_loadb(line, size, JSON_REJECT_DUPLICATES, &why);
  if (value == NULL) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_SYNTAX, NULL, line,
                        "no JSON (column %d: %s)", why.column, why.text);
    return NULL;
  }
  if (!json_is_object(value)) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_SYNTAX, NULL, line,
                        "a JSON object is expected");
    json_decref(value);
    return NULL;
  }
  return value;
}

void
oct_trace_json_set_error(GError **error, const oct_trace_parser *parser, const char *field,
                         const json_t *value, const char *what) {
  char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
  oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, field, text, "%s", what);
  free(text);
}

/* The field; NULL when it is absent or null, with error when it is required. */
static const json_t *
get(const oct_trace_parser *parser, const json_t *object, const char *field, gboolean required,
    GError **error) {
  const json_t *value = json_object_get(object, field);
  if (value != NULL && !json_is_null(value))
    return value;
  if (required)
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, field, NULL, "missing");
  return NULL;
}

/* The value as a whole number from 0; FALSE when it is none. */
static gboolean
whole(const json_t *value, guint64 *out) {
  if (json_is_integer(value) && json_integer_value(value) >= 0) {
    *out = (guint64)json_integer_value(value);
    return TRUE;
  }
  double real = json_is_real(value) ? json_real_value(value) : -1;
  if (!(real >= 0 && real < 0x1p53) || real != floor(real))
    return FALSE;
  *out = (guint64)real;
  return TRUE;
}

gboolean
oct_trace_json_count(const oct_trace_parser *parser, const json_t *object, const char *field,
                     gboolean required, guint64 max, guint64 *out, GError **error) {
  const json_t *value = get(parser, object, field, required, error);
  if (value == NULL)
    return !required;
  guint64 number = 0;
  if (!whole(value, &number) || number > max) {
    g_autofree char *what =
        g_strdup_printf("must be a whole number from 0 to %" G_GUINT64_FORMAT, max);
    oct_trace_json_set_error(error, parser, field, value, what);
    return FALSE;
  }
  *out = number;
  return TRUE;
}

gboolean
oct_trace_json_tokens(const oct_trace_parser *parser, const json_t *object, const char *field,
                      gboolean required, guint32 *out, GError **error) {
  guint64 number = *out;
  if (!oct_trace_json_count(parser, object, field, required, OCT_TRACE_TOKENS_MAX, &number, error))
    return FALSE;
  *out = (guint32)number;
  return TRUE;
}

gboolean
oct_trace_json_time(const oct_trace_parser *parser, const json_t *object, const char *field,
                    gint64 unit_ns, gint64 *out, GError **error) {
  const json_t *value = get(parser, object, field, FALSE, error);
  if (value == NULL)
    return TRUE;
  gint64 time_ns = -1;
  if (json_is_integer(value)) {
    if (__builtin_mul_overflow((gint64)json_integer_value(value), unit_ns, &time_ns))
      time_ns = -1;
  } else if (json_is_real(value)) {
    double ns = json_real_value(value) * (double)unit_ns;
    if (ns >= 0 && ns <= (double)OCT_TRACE_TIME_MAX_NS)
      time_ns = llround(ns);
  }
  if (time_ns < 0 || time_ns > OCT_TRACE_TIME_MAX_NS) {
    oct_trace_json_set_error(error, parser, field, value, "must be a time from 0 to 73 years");
    return FALSE;
  }
  *out = time_ns;
  return TRUE;
}

gboolean
oct_trace_json_string(const oct_trace_parser *parser, const json_t *object, const char *field,
                      const char **out, GError **error) {
  const json_t *value = get(parser, object, field, FALSE, error);
  if (value == NULL)
    return TRUE;
  if (!json_is_string(value)) {
    oct_trace_json_set_error(error, parser, field, value, "must be a string");
    return FALSE;
  }
  *out = json_string_value(value);
  return TRUE;
}

gboolean
oct_trace_json_session(const oct_trace_parser *parser, const json_t *object, const char *field,
                       guint64 *out, GError **error) {
  const json_t *value = get(parser, object, field, FALSE, error);
  if (value == NULL)
    return TRUE;
  if (json_is_string(value)) {
    *out = oct_trace_session_of(json_string_value(value));
    return TRUE;
  }
  return oct_trace_json_count(parser, object, field, FALSE, G_MAXINT64, out, error);
}

gboolean
oct_trace_json_ids(const oct_trace_parser *parser, const json_t *object, const char *field,
                   oct_trace_row *row, gsize used, guint32 *n_out, GError **error) {
  *n_out = 0;
  const json_t *value = get(parser, object, field, FALSE, error);
  if (value == NULL)
    return TRUE;
  if (!json_is_array(value)) {
    oct_trace_json_set_error(error, parser, field, value, "must be an array of ids");
    return FALSE;
  }
  gsize n = json_array_size(value);
  oct_trace_row_reserve(row, used + n);
  for (gsize i = 0; i < n; i++) {
    const json_t *id = json_array_get(value, i);
    if (!whole(id, &row->ids[used + i])) {
      oct_trace_json_set_error(error, parser, field, id, "ids must be whole numbers from 0");
      return FALSE;
    }
  }
  *n_out = (guint32)n; /* a line of 16 MiB has fewer than 2^24 */
  return TRUE;
}
