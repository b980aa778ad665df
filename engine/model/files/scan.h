/* A strict reader of JSON text that its caller drives token by token.
 *
 * Headers of safetensors files and shard indexes reach 100 MB and have one known shape, so they are
 * read straight through, without a tree in memory. Nothing recurses. Private to engine/model/files.
 */
#ifndef OCT_MODEL_FILES_SCAN_H
#define OCT_MODEL_FILES_SCAN_H

#include "engine/model/files/tensors.h"

#define OCT_SCAN_DEPTH_MAX 64 /* of a value that is skipped */

typedef struct oct_scan {
  const char *label; /* borrowed; for messages, with the byte where the text is wrong */
  const char *text;
  gsize size, at;
  GError **error; /* never NULL */
} oct_scan;

/* All return FALSE with *error (FORMAT or LIMIT) when the text is not what is asked for. White
 * space before a token is skipped. */
gboolean oct_scan_fail(const oct_scan *scan, int code, const char *format, ...) G_GNUC_PRINTF(3, 4);
/* The punctuation `c`. */
gboolean oct_scan_char(oct_scan *scan, char c) G_GNUC_WARN_UNUSED_RESULT;
/* TRUE when the next token begins with `c`, which stays unread; never an error. */
gboolean oct_scan_next_is(oct_scan *scan, char c);
/* After an element: TRUE in *more at a comma, FALSE at `close`; both are read. */
gboolean oct_scan_more(oct_scan *scan, char close, gboolean *more) G_GNUC_WARN_UNUSED_RESULT;
/* Bytes that the next string takes at most once decoded (its raw length). */
gboolean oct_scan_string_size(oct_scan *scan, gsize *size) G_GNUC_WARN_UNUSED_RESULT;
/* Decodes a string of at most `max` bytes into out[max]; UTF-8 without U+0000. */
gboolean oct_scan_string(oct_scan *scan, char *out, gsize max,
                         gsize *size) G_GNUC_WARN_UNUSED_RESULT;
/* Digits only, without sign, fraction or leading zero. */
gboolean oct_scan_u64(oct_scan *scan, guint64 *value) G_GNUC_WARN_UNUSED_RESULT;
/* Any value. */
gboolean oct_scan_skip(oct_scan *scan) G_GNUC_WARN_UNUSED_RESULT;
/* Nothing but white space is left. */
gboolean oct_scan_end(oct_scan *scan) G_GNUC_WARN_UNUSED_RESULT;

#endif
