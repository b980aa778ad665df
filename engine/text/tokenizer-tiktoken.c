/* A tiktoken file: one token a line, base64 and its rank, which is its id. */
#include "engine/text/tokenizer-internal.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/error.h"

static gboolean
bad_line(GError **error, guint64 line, const char *what) {
  g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT,
              "tiktoken file, line %" G_GUINT64_FORMAT ": %s", line, what);
  return FALSE;
}

/* Reads a rank; `end` is the line's end. */
static gboolean
parse_rank(const char *at, const char *end, guint32 *rank) {
  guint64 value = 0;
  if (at == end)
    return FALSE;
  for (; at < end; at++) {
    if (!g_ascii_isdigit(*at))
      return FALSE;
    value = value * 10 + (guint64)(*at - '0');
    if (value >= OCT_VOCAB_TOKENS_MAX)
      return FALSE;
  }
  *rank = (guint32)value;
  return TRUE;
}

typedef gboolean (*oct_each_line)(gpointer data, const guint8 *bytes, gsize size, guint32 rank,
                                  GError **error);

static gboolean
each_line(const char *file, gsize size, oct_each_line each, gpointer data, GError **error) {
  guint64 line = 0;
  const char *at = file, *end = file + size;
  while (at < end) {
    const char *stop = memchr(at, '\n', (gsize)(end - at));
    stop = stop == NULL ? end : stop;
    const char *text_end = stop > at && stop[-1] == '\r' ? stop - 1 : stop;
    line++;
    if (text_end > at) {
      const char *space = memchr(at, ' ', (gsize)(text_end - at));
      guint32 rank;
      gsize n_bytes;
      if (space == NULL || !parse_rank(space + 1, text_end, &rank))
        return bad_line(error, line, "not base64, a space and a rank within the limit");
      g_autofree char *base64 = g_strndup(at, (gsize)(space - at));
      g_autofree guint8 *bytes = g_base64_decode(base64, &n_bytes);
      if (n_bytes == 0)
        return bad_line(error, line, "an empty token");
      if (!each(data, bytes, n_bytes, rank, error))
        return FALSE;
    }
    at = stop + 1;
  }
  return TRUE;
}

static gboolean
count_rank(gpointer data, const guint8 *bytes, gsize size, guint32 rank, GError **error) {
  guint32 *n = data;
  (void)bytes, (void)size, (void)error;
  *n = MAX(*n, rank + 1);
  return TRUE;
}

static gboolean
set_token(gpointer data, const guint8 *bytes, gsize size, guint32 rank, GError **error) {
  oct_tokenizer *t = data;
  return oct_vocab_set(t->vocab, rank, bytes, size, OCT_TOKEN_NORMAL, 0, error);
}

static gboolean
add_specials(oct_tokenizer *t, const oct_tiktoken_spec *spec, guint32 n_base, GError **error) {
  for (guint32 i = 0; i < spec->n_special; i++) {
    g_autofree char *reserved = g_strdup_printf("<|reserved_token_%u|>", n_base + i);
    const char *name = spec->names != NULL && spec->names[i] != NULL ? spec->names[i] : reserved;
    if (!oct_vocab_set(t->vocab, n_base + i, name, strlen(name), OCT_TOKEN_CONTROL, 0, error) ||
        !oct_tokenizer_add_added(t, n_base + i, (oct_added){0}, error))
      return FALSE;
  }
  return TRUE;
}

oct_tokenizer *
oct_tokenizer_from_tiktoken(const char *file, gsize size, const oct_tiktoken_spec *spec,
                            GError **error) {
  guint32 n = 0;
  if (!each_line(file, size, count_rank, &n, error))
    return NULL;
  if (n == 0 || spec->n_special > OCT_VOCAB_TOKENS_MAX - n) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                "a tiktoken file with %u tokens and %u special ones: 1 to %u are possible", n,
                spec->n_special, OCT_VOCAB_TOKENS_MAX);
    return NULL;
  }
  g_autoptr(oct_tokenizer) t = oct_tokenizer_new(n + spec->n_special);
  t->rules.order = OCT_BPE_BY_ID;
  t->rules.whole_first = TRUE;
  t->slice_chars_max = spec->slice_chars_max;
  t->run_chars_max = spec->run_chars_max;
  if (!each_line(file, size, set_token, t, error) ||
      !oct_splitter_add_named(t->splitter, spec->pre, error) || !add_specials(t, spec, n, error))
    return NULL;
  return g_steal_pointer(&t);
}
