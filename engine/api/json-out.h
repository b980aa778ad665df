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
#define OCT_OUT_DEPTH_MAX 63u

/* Where a writer stands: plain data. `out` is borrowed and appended to. */
typedef struct oct_out {
  GString *out;
  guint depth;
  gboolean after_key;
  guint64 filled; /* bit d: the array or object of depth d has an item */
} oct_out;

#define OCT_OUT_INIT(string)                                                                       \
  { .out = (string) }

/* Containers. `close` asserts that one is open. */
void oct_out_open(oct_out *json, char bracket); /* '{' or '[' */
void oct_out_close(oct_out *json, char bracket);
void oct_out_key(oct_out *json, const char *key);
void oct_out_key_text(oct_out *json, const char *key, gsize size);

/* Values: of an array, behind a key, or alone. */
void oct_out_text(oct_out *json, const char *text, gsize size);
void oct_out_string(oct_out *json, const char *text); /* NULL writes null */
void oct_out_int(oct_out *json, gint64 value);
void oct_out_uint(oct_out *json, guint64 value);
void oct_out_bool(oct_out *json, gboolean value);
void oct_out_null(oct_out *json);
/* The shortest digits that read back as the same number; what is not finite is null. */
void oct_out_double(oct_out *json, double value);
void oct_out_float(oct_out *json, float value);
/* JSON that was written before. */
void oct_out_raw(oct_out *json, const char *text, gsize size);

/* A key and its value. */
void oct_out_put_string(oct_out *json, const char *key, const char *text);
void oct_out_put_text(oct_out *json, const char *key, const char *text, gsize size);
void oct_out_put_int(oct_out *json, const char *key, gint64 value);
void oct_out_put_bool(oct_out *json, const char *key, gboolean value);
void oct_out_put_null(oct_out *json, const char *key);
void oct_out_put_double(oct_out *json, const char *key, double value);
void oct_out_put_empty(oct_out *json, const char *key, const char *brackets); /* "[]", "{}" */

/* Appends text as it stands between quotes. */
void oct_out_escape(GString *out, const char *text, gsize size);

#endif
