/* Fuzz target: bytes as tokens of a vocabulary of bytes, cut at every place: whole characters come
 * out of every call, and all of them together are the same however the calls were made. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/utf8.h"
#include "tests/fuzz/replay.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size > 4096)
    return 0;
  const char *bytes = size > 0 ? (const char *)data : "";
  oct_utf8 state = {0};
  g_autoptr(GString) whole = g_string_new(NULL), pieces = g_string_new(NULL);
  oct_utf8_push(&state, bytes, size, whole);
  oct_utf8_finish(&state, whole);
  oct_assert(state.n == 0);
  gsize at = 0;
  while (at < size) {
    gsize n = MIN(size - at, (gsize)(data[at] % 5 + 1)), before = pieces->len;
    oct_utf8_push(&state, bytes + at, n, pieces);
    oct_assert(g_utf8_validate_len(pieces->str + before, pieces->len - before, NULL) ||
               memchr(bytes, 0, size) != NULL);
    at += n;
  }
  oct_utf8_finish(&state, pieces);
  oct_assert(whole->len == pieces->len && memcmp(whole->str, pieces->str, whole->len) == 0);
  if (g_utf8_validate_len(bytes, size, NULL))
    oct_assert(whole->len == size && memcmp(whole->str, bytes, size) == 0);
  return 0;
}
