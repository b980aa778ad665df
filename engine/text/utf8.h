/* Incremental UTF-8: complete characters out of bytes that come in any pieces.
 *
 * What can never become a character is replaced by U+FFFD, one for each maximal part that begins
 * like one (the practice that Unicode recommends, that of Python's "replace" and of browsers), so
 * the result does not depend on how the bytes were cut. What may still become one waits: at most
 * three bytes. */
#ifndef OCT_TEXT_UTF8_H
#define OCT_TEXT_UTF8_H

#include <glib.h>

typedef struct oct_utf8 {
  guint8 bytes[4]; /* begins a character */
  guint8 n;        /* 0 … 3 */
} oct_utf8;

/* Appends what is complete to `out`. */
void oct_utf8_push(oct_utf8 *state, const char *bytes, gsize size, GString *out);
/* Appends U+FFFD for what waits, and empties the state. */
void oct_utf8_finish(oct_utf8 *state, GString *out);

#endif
