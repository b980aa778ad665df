/* Fuzz target: lines of stop strings, an empty line, a text. Any cut of the text ends at the same
 * place with the same text, and what is held back is the beginning of a stop string. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/stop.h"
#include "tests/fuzz/replay.h"

static int
run(const oct_stop_set *set, const char *text, gsize size, gsize piece, GString *out) {
  oct_stop_matcher matcher = {0};
  int found = -1;
  for (gsize at = 0; at < size && found < 0; at += piece)
    found = oct_stop_push(set, &matcher, text + at, MIN(piece, size - at), TRUE, FALSE, out);
  if (found < 0)
    oct_stop_finish(&matcher, out);
  oct_stop_clear(&matcher);
  return found;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  g_autofree char *input = g_strndup(size > 0 ? (const char *)data : "", size);
  char *text = strstr(input, "\n\n");
  if (text == NULL)
    return 0;
  *text = 0;
  text += 2;
  g_auto(GStrv) lines = g_strsplit(input, "\n", 20);
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_stop_set) set =
      oct_stop_set_new((const char *const *)lines, g_strv_length(lines), &error);
  oct_assert((set == NULL) == (error != NULL));
  if (set == NULL)
    return 0;
  gsize n = strlen(text);
  g_autoptr(GString) whole = g_string_new(NULL);
  int found = run(set, text, n, n > 0 ? n : 1, whole);
  for (gsize piece = 1; piece < 6; piece++) {
    g_autoptr(GString) out = g_string_new(NULL);
    oct_assert(run(set, text, n, piece, out) == found);
    oct_assert(g_string_equal(out, whole));
  }
  oct_assert(memcmp(whole->str, text, whole->len) == 0);
  for (guint i = 0; lines[i] != NULL; i++)
    oct_assert(strstr(whole->str, lines[i]) == NULL);
  return 0;
}
