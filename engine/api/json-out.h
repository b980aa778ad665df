/* Writes JSON into a GString, with the commas where they belong.
 *
 * Text is checked on the way out: what is not UTF-8 becomes U+FFFD, so that an answer is JSON
 * whatever went into it. Control characters, quotes and backslashes are escaped, the rest is
 * written as it is. Nothing is allocated but the GString's own growth. One thread at a time each.
 */
#ifndef OCT_API_JSON_OUT_H
#define OCT_API_JSON_OUT_H

#include <glib.h>

/* Values inside values; more is asserted against. */
#define OCT_JSON_OUT_DEPTH_MAX 63u

/* Where a writer stands: plain data. `out` is borrowed and appended to. */
typedef struct oct_json {
  GString *out;
  guint depth;
  gboolean after_key;
  guint64 filled; /* bit d: the array or object of depth d has an item */
} oct_json;

#define OCT_JSON_INIT(string)                                                                      \
  { .out = (string) }

/* Containers. `close` asserts that one is open. */
void oct_json_open(oct_json *json, char bracket); /* '{' or '[' */
void oct_json_close(oct_json *json, char bracket);
void oct_json_key(oct_json *json, const char *key);

/* Values: of an array, behind a key, or alone. */
void oct_json_text(oct_json *json, const char *text, gsize size);
void oct_json_string(oct_json *json, const char *text); /* NULL writes null */
void oct_json_int(oct_json *json, gint64 value);
void oct_json_uint(oct_json *json, guint64 value);
void oct_json_bool(oct_json *json, gboolean value);
void oct_json_null(oct_json *json);
/* The shortest digits that read back as the same number; what is not finite is null. */
void oct_json_double(oct_json *json, double value);
void oct_json_float(oct_json *json, float value);
/* JSON that was written before. */
void oct_json_raw(oct_json *json, const char *text, gsize size);

/* A key and its value. */
void oct_json_put_string(oct_json *json, const char *key, const char *text);
void oct_json_put_text(oct_json *json, const char *key, const char *text, gsize size);
void oct_json_put_int(oct_json *json, const char *key, gint64 value);
void oct_json_put_bool(oct_json *json, const char *key, gboolean value);
void oct_json_put_null(oct_json *json, const char *key);
void oct_json_put_double(oct_json *json, const char *key, double value);
void oct_json_put_empty(oct_json *json, const char *key, const char *brackets); /* "[]", "{}" */

/* Appends text as it stands between quotes. */
void oct_json_escape(GString *out, const char *text, gsize size);

#endif
