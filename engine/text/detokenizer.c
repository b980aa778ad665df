#include "engine/text/detokenizer.h"

#include <string.h>

#include "engine/text/utf8.h"

struct oct_detokenizer {
  const oct_tokenizer *tokenizer;
  oct_utf8 state;
  gboolean skip_control;
  gboolean strip;       /* the next text loses a leading space */
  gboolean from_prompt; /* what waits in `state` is the prompt's alone */
  const char *const *kept;
  guint n_kept;
};

oct_detokenizer *
oct_detokenizer_new(const oct_tokenizer *tokenizer, gboolean skip_control, gboolean begins) {
  oct_detokenizer *d = g_new0(oct_detokenizer, 1);
  d->tokenizer = tokenizer;
  d->skip_control = skip_control;
  d->strip = begins && oct_tokenizer_strips_space(tokenizer);
  return d;
}

void
oct_detokenizer_free(oct_detokenizer *d) {
  g_free(d);
}

void
oct_detokenizer_keep(oct_detokenizer *d, const char *const *texts, guint n) {
  d->kept = texts;
  d->n_kept = n;
}

static gboolean
is_skipped(const oct_detokenizer *d, guint32 id) {
  if (!d->skip_control || !oct_tokenizer_is_control(d->tokenizer, id))
    return FALSE;
  oct_text text = oct_tokenizer_bytes(d->tokenizer, id);
  for (guint i = 0; i < d->n_kept; i++)
    if (strlen(d->kept[i]) == text.size && memcmp(d->kept[i], text.bytes, text.size) == 0)
      return FALSE;
  return TRUE;
}

void
oct_detokenizer_after(oct_detokenizer *d, const guint32 *prompt, gsize n) {
  g_autoptr(GString) dropped = g_string_new(NULL);
  /* A character has at most four bytes, and a token at least one, but empty tokens count for none:
   * the tail is read from the last token that ends a character. */
  gsize begin = n, bytes = 0;
  while (begin > 0 && bytes < 8)
    bytes += oct_tokenizer_bytes(d->tokenizer, prompt[--begin]).size;
  for (gsize i = begin; i < n; i++) {
    oct_text text = oct_tokenizer_bytes(d->tokenizer, prompt[i]);
    gsize skip = text.size > 8 ? text.size - 8 : 0;
    oct_utf8_push(&d->state, text.bytes + skip, text.size - skip, dropped);
    g_string_truncate(dropped, 0);
  }
  d->from_prompt = d->state.n > 0;
}

void
oct_detokenizer_push(oct_detokenizer *d, guint32 id, GString *out) {
  if (is_skipped(d, id))
    return;
  oct_text text = oct_tokenizer_bytes(d->tokenizer, id);
  if (text.size == 0)
    return;
  if (d->strip && text.bytes[0] == ' ')
    text.bytes++, text.size--;
  d->strip = FALSE;
  if (d->from_prompt && text.size > 0) {
    /* Only a continuation completes what the prompt began. */
    if (((guint8)text.bytes[0] & 0xc0) != 0x80)
      d->state.n = 0;
    d->from_prompt = FALSE;
  }
  oct_utf8_push(&d->state, text.bytes, text.size, out);
}

void
oct_detokenizer_finish(oct_detokenizer *d, GString *out) {
  if (d->from_prompt)
    d->state.n = 0;
  d->from_prompt = FALSE;
  oct_utf8_finish(&d->state, out);
}

void
oct_detokenize(const oct_tokenizer *tokenizer, const guint32 *ids, gsize n, gboolean skip_control,
               GString *out) {
  g_autoptr(oct_detokenizer) d = oct_detokenizer_new(tokenizer, skip_control, TRUE);
  for (gsize i = 0; i < n; i++)
    oct_detokenizer_push(d, ids[i], out);
  oct_detokenizer_finish(d, out);
}
