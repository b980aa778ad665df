/* memmem() */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine/text/normalize.h"

#include <string.h>

#include "engine/base/assert.h"

typedef struct oct_normal_step {
  oct_normal_kind kind;
  char *from, *to;
} oct_normal_step;

struct oct_normalizer {
  GArray *steps; /* oct_normal_step */
};

oct_normalizer *
oct_normalizer_new(void) {
  oct_normalizer *normalizer = g_new(oct_normalizer, 1);
  normalizer->steps = g_array_new(FALSE, FALSE, sizeof(oct_normal_step));
  return normalizer;
}

void
oct_normalizer_free(oct_normalizer *normalizer) {
  if (normalizer == NULL)
    return;
  for (guint i = 0; i < normalizer->steps->len; i++) {
    g_free(g_array_index(normalizer->steps, oct_normal_step, i).from);
    g_free(g_array_index(normalizer->steps, oct_normal_step, i).to);
  }
  g_array_unref(normalizer->steps);
  g_free(normalizer);
}

void
oct_normalizer_add(oct_normalizer *normalizer, oct_normal_kind kind, const char *from,
                   const char *to) {
  oct_assert(kind != OCT_NORMAL_REPLACE || (from != NULL && *from != 0 && to != NULL));
  oct_normal_step step = {kind, g_strdup(from), g_strdup(to)};
  g_array_append_val(normalizer->steps, step);
}

gboolean
oct_normalizer_has(const oct_normalizer *normalizer, oct_normal_kind kind) {
  for (guint i = 0; i < normalizer->steps->len; i++)
    if (g_array_index(normalizer->steps, oct_normal_step, i).kind == kind)
      return TRUE;
  return FALSE;
}

static gboolean
is_ascii(const GString *text) {
  for (gsize i = 0; i < text->len; i++)
    if ((guint8)text->str[i] >= 0x80)
      return FALSE;
  return TRUE;
}

/* GLib ends a text at U+0000, which composes with nothing: the parts between are done apart. */
static void
unicode_form(GString *text, GNormalizeMode mode) {
  if (is_ascii(text))
    return;
  g_autoptr(GString) out = g_string_sized_new(text->len);
  for (gsize at = 0; at <= text->len;) {
    const char *zero = memchr(text->str + at, 0, text->len - at);
    gsize end = zero == NULL ? text->len : (gsize)(zero - text->str);
    g_autofree char *part = g_utf8_normalize(text->str + at, (gssize)(end - at), mode);
    oct_assert(part != NULL);
    g_string_append(out, part);
    if (zero != NULL)
      g_string_append_c(out, 0);
    at = end + 1;
  }
  g_string_truncate(text, 0);
  g_string_append_len(text, out->str, (gssize)out->len);
}

static void
replace(GString *text, const char *from, const char *to) {
  gsize from_size = strlen(from);
  if (memmem(text->str, text->len, from, from_size) == NULL)
    return;
  g_autoptr(GString) out = g_string_sized_new(text->len);
  gsize at = 0;
  for (const char *hit; (hit = memmem(text->str + at, text->len - at, from, from_size)) != NULL;) {
    g_string_append_len(out, text->str + at, hit - text->str - (gssize)at);
    g_string_append(out, to);
    at = (gsize)(hit - text->str) + from_size;
  }
  g_string_append_len(out, text->str + at, (gssize)(text->len - at));
  g_string_truncate(text, 0);
  g_string_append_len(text, out->str, (gssize)out->len);
}

static void
single_spaces(GString *text) {
  gsize to = 0;
  for (gsize i = 0; i < text->len; i++)
    if (text->str[i] != ' ' || (to > 0 && text->str[to - 1] != ' '))
      text->str[to++] = text->str[i];
  while (to > 0 && text->str[to - 1] == ' ')
    to--;
  g_string_truncate(text, to);
}

void
oct_normalizer_run(const oct_normalizer *normalizer, oct_normal_place place, GString *text) {
  for (guint i = 0; i < normalizer->steps->len; i++) {
    const oct_normal_step *step = &g_array_index(normalizer->steps, oct_normal_step, i);
    switch (step->kind) {
    case OCT_NORMAL_NFC:
      unicode_form(text, G_NORMALIZE_NFC);
      break;
    case OCT_NORMAL_NFD:
      unicode_form(text, G_NORMALIZE_NFD);
      break;
    case OCT_NORMAL_NFKC:
      unicode_form(text, G_NORMALIZE_NFKC);
      break;
    case OCT_NORMAL_NFKD:
      unicode_form(text, G_NORMALIZE_NFKD);
      break;
    case OCT_NORMAL_REPLACE:
      replace(text, step->from, step->to);
      break;
    case OCT_NORMAL_PREPEND:
      if (text->len > 0 && place != OCT_PLACE_INSIDE)
        g_string_prepend(text, step->to);
      break;
    case OCT_NORMAL_SPACE:
    case OCT_NORMAL_FIRST_SPACE:
      if (text->len > 0 && text->str[0] != ' ' &&
          place >= (step->kind == OCT_NORMAL_SPACE ? OCT_PLACE_SECTION : OCT_PLACE_TEXT))
        g_string_prepend_c(text, ' ');
      break;
    case OCT_NORMAL_SINGLE_SPACES:
      single_spaces(text);
      break;
    default:
      oct_assert(FALSE);
    }
  }
}
