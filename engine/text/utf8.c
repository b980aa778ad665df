#include "engine/text/utf8.h"

#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

/* Size that a character with this first byte has, 0 for a byte that begins none. */
static guint
size_of(guint8 first) {
  if (first < 0x80)
    return 1;
  if (first >= 0xc2 && first <= 0xdf)
    return 2;
  if (first >= 0xe0 && first <= 0xef)
    return 3;
  return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

/* Whether `byte` may stand at place `at` (1 …) after `first`: no overlong forms, no surrogates,
 * nothing above U+10FFFF. */
static gboolean
may_follow(guint8 first, guint at, guint8 byte) {
  guint8 low = 0x80, high = 0xbf;
  if (at == 1) {
    low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : low;
    high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : high;
  }
  return byte >= low && byte <= high;
}

void
oct_utf8_push(oct_utf8 *state, const char *bytes, gsize size, GString *out) {
  for (gsize i = 0; i < size; i++) {
    guint8 byte = (guint8)bytes[i];
    if (state->n > 0 && !may_follow(state->bytes[0], state->n, byte)) {
      g_string_append(out, REPLACEMENT);
      state->n = 0;
    }
    if (state->n == 0 && size_of(byte) == 0) {
      g_string_append(out, REPLACEMENT);
      continue;
    }
    state->bytes[state->n++] = byte;
    if (state->n == size_of(state->bytes[0])) {
      g_string_append_len(out, (const char *)state->bytes, state->n);
      state->n = 0;
    }
  }
}

void
oct_utf8_finish(oct_utf8 *state, GString *out) {
  if (state->n > 0)
    g_string_append(out, REPLACEMENT);
  state->n = 0;
}
