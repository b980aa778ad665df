#include "engine/api/json-out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"

/* Length of the character at `at`, 0 when the bytes there are none. */
static gsize
character_size(const guint8 *at, gsize rest) {
  static const guint32 least[] = {0, 0, 0x80, 0x800, 0x10000};
  gsize size = at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;
  if (size == 0 || size > rest)
    return 0;
  guint32 value = at[0] & (0xffu >> (size + 1));
  for (gsize i = 1; i < size; i++) {
    if ((at[i] & 0xc0) != 0x80)
      return 0;
    value = value << 6 | (at[i] & 0x3f);
  }
  gboolean surrogate = value >= 0xd800 && value < 0xe000;
  return value < least[size] || value > 0x10ffff || surrogate ? 0 : size;
}

static void
escape_one(GString *out, guint8 c) {
  static const char hex[] = "0123456789abcdef";
  switch (c) {
  case '"':
    g_string_append_len(out, "\\\"", 2);
    break;
  case '\\':
    g_string_append_len(out, "\\\\", 2);
    break;
  case '\n':
    g_string_append_len(out, "\\n", 2);
    break;
  case '\r':
    g_string_append_len(out, "\\r", 2);
    break;
  case '\t':
    g_string_append_len(out, "\\t", 2);
    break;
  default:
    g_string_append_len(out, "\\u00", 4);
    g_string_append_c(out, hex[c >> 4]);
    g_string_append_c(out, hex[c & 15]);
  }
}

void
oct_out_escape(GString *out, const char *text, gsize size) {
  const guint8 *bytes = (const guint8 *)text;
  gsize begin = 0; /* of what is to be written as it is */
  for (gsize i = 0; i < size;) {
    guint8 c = bytes[i];
    gsize n = c < 0x80 ? 1 : character_size(bytes + i, size - i);
    if (n > 0 && c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) {
      i += n;
      continue;
    }
    g_string_append_len(out, text + begin, (gssize)(i - begin));
    if (n == 0)
      g_string_append(out, "\xef\xbf\xbd");
    else
      escape_one(out, c);
    begin = ++i;
  }
  g_string_append_len(out, text + begin, (gssize)(size - begin));
}

/* A value begins: the comma before it. */
static void
before(oct_out *json) {
  guint64 bit = G_GUINT64_CONSTANT(1) << json->depth;
  if (!json->after_key && json->filled & bit)
    g_string_append_c(json->out, ',');
  json->filled |= bit;
  json->after_key = FALSE;
}

void
oct_out_open(oct_out *json, char bracket) {
  oct_assert(json->depth < OCT_OUT_DEPTH_MAX);
  before(json);
  g_string_append_c(json->out, bracket);
  json->depth++;
  json->filled &= ~(G_GUINT64_CONSTANT(1) << json->depth);
}

void
oct_out_close(oct_out *json, char bracket) {
  oct_assert(json->depth > 0 && !json->after_key);
  g_string_append_c(json->out, bracket);
  json->depth--;
}

void
oct_out_key(oct_out *json, const char *key) {
  oct_out_key_text(json, key, strlen(key));
}

void
oct_out_key_text(oct_out *json, const char *key, gsize size) {
  oct_out_text(json, key, size);
  g_string_append_c(json->out, ':');
  json->after_key = TRUE;
}

void
oct_out_text(oct_out *json, const char *text, gsize size) {
  before(json);
  g_string_append_c(json->out, '"');
  oct_out_escape(json->out, text, size);
  g_string_append_c(json->out, '"');
}

void
oct_out_string(oct_out *json, const char *text) {
  if (text == NULL)
    oct_out_null(json);
  else
    oct_out_text(json, text, strlen(text));
}

void
oct_out_uint(oct_out *json, guint64 value) {
  char digits[24];
  gsize at = sizeof digits;
  do
    digits[--at] = (char)('0' + value % 10);
  while ((value /= 10) > 0);
  oct_out_raw(json, digits + at, sizeof digits - at);
}

void
oct_out_int(oct_out *json, gint64 value) {
  if (value >= 0) {
    oct_out_uint(json, (guint64)value);
    return;
  }
  before(json);
  g_string_append_c(json->out, '-');
  json->after_key = TRUE; /* the digits go on with the sign */
  oct_out_uint(json, 0 - (guint64)value);
}

void
oct_out_bool(oct_out *json, gboolean value) {
  oct_out_raw(json, value ? "true" : "false", value ? 4 : 5);
}

void
oct_out_null(oct_out *json) {
  oct_out_raw(json, "null", 4);
}

void
oct_out_double(oct_out *json, double value) {
  if (!isfinite(value)) {
    oct_out_null(json);
    return;
  }
  char digits[G_ASCII_DTOSTR_BUF_SIZE];
  static const char *const formats[] = {"%.6g", "%.15g", "%.16g", "%.17g"};
  for (gsize i = 0; i < G_N_ELEMENTS(formats); i++) {
    g_ascii_formatd(digits, sizeof digits, formats[i], value);
    if (g_ascii_strtod(digits, NULL) == value)
      break;
  }
  oct_out_raw(json, digits, strlen(digits));
}

void
oct_out_float(oct_out *json, float value) {
  if (!isfinite(value)) {
    oct_out_null(json);
    return;
  }
  char digits[G_ASCII_DTOSTR_BUF_SIZE];
  static const char *const formats[] = {"%.6g", "%.7g", "%.8g", "%.9g"};
  for (gsize i = 0; i < G_N_ELEMENTS(formats); i++) {
    g_ascii_formatd(digits, sizeof digits, formats[i], (double)value);
    if ((float)g_ascii_strtod(digits, NULL) == value)
      break;
  }
  oct_out_raw(json, digits, strlen(digits));
}

void
oct_out_raw(oct_out *json, const char *text, gsize size) {
  before(json);
  g_string_append_len(json->out, text, (gssize)size);
}

void
oct_out_put_string(oct_out *json, const char *key, const char *text) {
  oct_out_key(json, key);
  oct_out_string(json, text);
}

void
oct_out_put_text(oct_out *json, const char *key, const char *text, gsize size) {
  oct_out_key(json, key);
  oct_out_text(json, text, size);
}

void
oct_out_put_int(oct_out *json, const char *key, gint64 value) {
  oct_out_key(json, key);
  oct_out_int(json, value);
}

void
oct_out_put_bool(oct_out *json, const char *key, gboolean value) {
  oct_out_key(json, key);
  oct_out_bool(json, value);
}

void
oct_out_put_null(oct_out *json, const char *key) {
  oct_out_key(json, key);
  oct_out_null(json);
}

void
oct_out_put_double(oct_out *json, const char *key, double value) {
  oct_out_key(json, key);
  oct_out_double(json, value);
}

void
oct_out_put_empty(oct_out *json, const char *key, const char *brackets) {
  oct_out_key(json, key);
  oct_out_raw(json, brackets, 2);
}
