/* Fields of a JSON line; internal to traces/. Every error names file, line, field and value.
 *
 * Each getter leaves *out alone and returns TRUE when an optional field is absent or null.
 */
#ifndef OCT_TRACES_JSON_H
#define OCT_TRACES_JSON_H

#include <jansson.h>

#include "traces/parser.h"

/* The line's object; NULL with error when it is not one, repeats a key, or is no JSON. */
json_t *oct_trace_json_line(const oct_trace_parser *parser, const char *line, gsize size,
                            GError **error);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(json_t, json_decref)

/* An integer in [0, max]; a real without fraction counts as one. */
gboolean oct_trace_json_count(const oct_trace_parser *parser, const json_t *object,
                              const char *field, gboolean required, guint64 max, guint64 *out,
                              GError **error);
gboolean oct_trace_json_tokens(const oct_trace_parser *parser, const json_t *object,
                               const char *field, gboolean required, guint32 *out, GError **error);
/* A time in units of unit_ns, in ns. */
gboolean oct_trace_json_time(const oct_trace_parser *parser, const json_t *object,
                             const char *field, gint64 unit_ns, gint64 *out, GError **error);
/* A string; *out borrowed from `object`. */
gboolean oct_trace_json_string(const oct_trace_parser *parser, const json_t *object,
                               const char *field, const char **out, GError **error);
/* A session id: an integer as it is, a string hashed (oct_trace_session_of). */
gboolean oct_trace_json_session(const oct_trace_parser *parser, const json_t *object,
                                const char *field, guint64 *out, GError **error);
/* Appends an array of ids (integers from 0) to row->ids behind the first `used`. */
gboolean oct_trace_json_ids(const oct_trace_parser *parser, const json_t *object, const char *field,
                            oct_trace_row *row, gsize used, guint32 *n_out, GError **error);
/* Sets the error for a field that is present but wrong. */
void oct_trace_json_set_error(GError **error, const oct_trace_parser *parser, const char *field,
                              const json_t *value, const char *what);

#endif
