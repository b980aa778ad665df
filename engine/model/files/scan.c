#include "engine/model/files/scan.h"

#include <string.h>

gboolean
oct_scan_fail(const oct_scan *scan, int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *message = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  if (*scan->error == NULL)
    g_set_error(scan->error, OCT_FILES_ERROR, code, "%s: byte %" G_GSIZE_FORMAT " of the JSON: %s",
                scan->label, scan->at, message);
  return FALSE;
}

static void
skip_space(oct_scan *scan) {
  while (scan->at < scan->size && strchr(" \t\r\n", scan->text[scan->at]) != NULL &&
         scan->text[scan->at] != '\0')
    scan->at++;
}

gboolean
oct_scan_next_is(oct_scan *scan, char c) {
  skip_space(scan);
  return scan->at < scan->size && scan->text[scan->at] == c;
}

gboolean
oct_scan_char(oct_scan *scan, char c) {
  if (!oct_scan_next_is(scan, c))
    return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "wanted is '%c'", c);
  scan->at++;
  return TRUE;
}

gboolean
oct_scan_more(oct_scan *scan, char close, gboolean *more) {
  *more = oct_scan_next_is(scan, ',');
  if (!*more && !oct_scan_next_is(scan, close))
    return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "wanted is ',' or '%c'", close);
  scan->at++;
  return TRUE;
}

/* --- strings -------------------------------------------------------------------------------------
 */

gboolean
oct_scan_string_size(oct_scan *scan, gsize *size) {
  if (!oct_scan_next_is(scan, '"'))
    return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "wanted is a string");
  for (gsize at = scan->at + 1; at < scan->size; at++) {
    if (scan->text[at] == '"') {
      *size = at - scan->at - 1;
      return TRUE;
    }
    if (scan->text[at] == '\\')
      at++;
  }
  return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "a string that does not end");
}

/* Four hexadecimal digits at *at of the raw text, or -1. */
static gint32
hex4(const char *text, gsize size, gsize at) {
  gint32 value = 0;
  if (size < 4 || at > size - 4)
    return -1;
  for (gsize i = at; i < at + 4; i++) {
    int digit = g_ascii_xdigit_value(text[i]);
    if (digit < 0)
      return -1;
    value = value << 4 | digit;
  }
  return value;
}

/* Decodes the escape whose backslash is at *at, moves *at behind it, and returns its character; 0
 * on failure. */
static gunichar
unescape(const char *text, gsize size, gsize *at) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  char c = *at + 1 < size ? text[*at + 1] : '\0';
  const char *simple = c != '\0' ? strchr(from, c) : NULL;
  *at += 2;
  if (simple != NULL)
    return (gunichar)to[simple - from];
  if (c != 'u')
    return 0;
  gint32 unit = hex4(text, size, *at), low;
  *at += 4;
  if (unit < 0xd800 || unit > 0xdfff)
    return unit > 0 ? (gunichar)unit : 0;
  /* A surrogate pair. */
  if (unit > 0xdbff || *at + 2 > size || text[*at] != '\\' || text[*at + 1] != 'u')
    return 0;
  low = hex4(text, size, *at + 2);
  *at += 6;
  if (low < 0xdc00 || low > 0xdfff)
    return 0;
  return 0x10000 + (((gunichar)unit - 0xd800) << 10 | ((gunichar)low - 0xdc00));
}

gboolean
oct_scan_string(oct_scan *scan, char *out, gsize max, gsize *size) {
  gsize raw_size, n = 0;
  if (!oct_scan_string_size(scan, &raw_size))
    return FALSE;
  const char *raw = scan->text + scan->at + 1;
  for (gsize at = 0; at < raw_size;) {
    char encoded[8] = {raw[at]};
    gsize length = 1;
    if ((guchar)raw[at] < 0x20)
      return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "a string with a control character");
    if (raw[at] == '\\') {
      gunichar character = unescape(raw, raw_size, &at);
      if (character == 0)
        return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "a string with a broken escape");
      length = (gsize)g_unichar_to_utf8(character, encoded);
    } else {
      at++;
    }
    if (length > max - n)
      return oct_scan_fail(scan, OCT_FILES_ERROR_LIMIT,
                           "a string of more than %" G_GSIZE_FORMAT " bytes", max);
    memcpy(out + n, encoded, length);
    n += length;
  }
  if (!g_utf8_validate_len(out, n, NULL))
    return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "a string that is not UTF-8");
  scan->at += raw_size + 2;
  *size = n;
  return TRUE;
}

/* --- numbers and the rest ------------------------------------------------------------------------
 */

gboolean
oct_scan_u64(oct_scan *scan, guint64 *value) {
  guint64 number = 0;
  skip_space(scan);
  gsize start = scan->at, at = start;
  for (; at < scan->size && g_ascii_isdigit(scan->text[at]); at++) {
    guint digit = (guint)(scan->text[at] - '0');
    if (!g_uint64_checked_mul(&number, number, 10) || !g_uint64_checked_add(&number, number, digit))
      return oct_scan_fail(scan, OCT_FILES_ERROR_LIMIT, "a number of more than 64 bits");
  }
  gboolean leading_zero = at - start > 1 && scan->text[start] == '0';
  gboolean goes_on =
      at < scan->size && strchr(".eE", scan->text[at]) != NULL && scan->text[at] != '\0';
  if (at == start || leading_zero || goes_on)
    return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "wanted is a whole number of at least 0");
  scan->at = at;
  *value = number;
  return TRUE;
}

/* A number or a literal; only its characters are checked. */
static gboolean
skip_word(oct_scan *scan) {
  gsize start = scan->at;
  while (scan->at < scan->size &&
         (g_ascii_isalnum(scan->text[scan->at]) || strchr("+-.", scan->text[scan->at]) != NULL) &&
         scan->text[scan->at] != '\0')
    scan->at++;
  return scan->at > start || oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "wanted is a value");
}

static gboolean
skip_string(oct_scan *scan) {
  gsize size;
  if (!oct_scan_string_size(scan, &size))
    return FALSE;
  scan->at += size + 2;
  return TRUE;
}

/* Reads a key and its colon when the innermost open bracket is an object's. */
static gboolean
skip_key(oct_scan *scan, guint64 objects) {
  return (objects & 1) == 0 || (skip_string(scan) && oct_scan_char(scan, ':'));
}

/* Closes brackets and reads a comma, up to where the next value begins; *depth becomes 0 when there
 * is none. The lowest bit of *objects tells whether the innermost bracket is an object's. */
static gboolean
skip_after_value(oct_scan *scan, guint *depth, guint64 *objects) {
  gboolean more = FALSE;
  while (*depth > 0 && !more) {
    if (!oct_scan_more(scan, (*objects & 1) != 0 ? '}' : ']', &more))
      return FALSE;
    if (!more) {
      *objects >>= 1;
      (*depth)--;
    }
  }
  return !more || skip_key(scan, *objects);
}

gboolean
oct_scan_skip(oct_scan *scan) {
  guint64 objects = 0;
  guint depth = 0;
  do {
    gboolean object = oct_scan_next_is(scan, '{');
    if (object || oct_scan_next_is(scan, '[')) {
      if (depth == OCT_SCAN_DEPTH_MAX)
        return oct_scan_fail(scan, OCT_FILES_ERROR_LIMIT, "more than %d levels",
                             OCT_SCAN_DEPTH_MAX);
      scan->at++;
      depth++;
      objects = objects << 1 | (object ? 1 : 0);
      if (!oct_scan_next_is(scan, object ? '}' : ']')) {
        if (!skip_key(scan, objects))
          return FALSE;
        continue;
      }
      scan->at++;
      objects >>= 1;
      depth--;
    } else if (!(oct_scan_next_is(scan, '"') ? skip_string(scan) : skip_word(scan))) {
      return FALSE;
    }
    if (!skip_after_value(scan, &depth, &objects))
      return FALSE;
  } while (depth > 0);
  return TRUE;
}

gboolean
oct_scan_end(oct_scan *scan) {
  skip_space(scan);
  return scan->at == scan->size ||
         oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "something follows the end");
}
