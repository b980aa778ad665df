/* Fuzz target: any bytes as a stream of server-sent events. The same events come however the bytes
 * are cut, here by sizes that the stream's own bytes give, and whichever way its lines end; none
 * has a carriage return or goes on past its end.
 */
#include <string.h>

#include "client/sse.h"
#include "engine/base/assert.h"
#include "tests/fuzz/replay.h"

typedef struct told {
  GString *text;
  guint n, stop_at; /* events; the one that is the last, 0: none is */
} told;

static gboolean
tell(void *user, const char *type, const char *data, gsize n) {
  told *t = user;
  oct_assert(data[n] == '\0' && memchr(data, '\r', n) == NULL);
  oct_assert(strpbrk(type, "\r\n") == NULL);
  g_string_append_printf(t->text, "%s %zu ", type, n);
  g_string_append_len(t->text, data, (gssize)n);
  return ++t->n != t->stop_at;
}

/* Each piece in memory of its own size, so that sanitizers see a read past its end. */
static char *
read_in_pieces(const uint8_t *data, size_t size, gsize largest, guint stop_at) {
  told t = {.text = g_string_new(NULL), .stop_at = stop_at};
  g_autoptr(oct_sse) sse = oct_sse_new(tell, &t);
  oct_sse_status status = OCT_SSE_GO_ON;
  for (gsize at = 0, n; at < size; at += n) {
    n = MIN(largest > size ? size : 1 + data[at] % largest, size - at);
    g_autofree char *piece = g_memdup2(data + at, n);
    status = oct_sse_feed(sse, piece, n);
    oct_assert(status == (stop_at > 0 && t.n == stop_at ? OCT_SSE_STOPPED : OCT_SSE_GO_ON));
  }
  oct_assert(stop_at == 0 || t.n <= stop_at);
  return g_string_free(t.text, FALSE);
}

/* With a line feed at the end of each line. */
static GByteArray *
with_line_feeds(const uint8_t *data, size_t size) {
  GByteArray *out = g_byte_array_new();
  for (gsize i = 0; i < size; i++) {
    if (data[i] == '\n' && i > 0 && data[i - 1] == '\r')
      continue;
    guint8 byte = data[i] == '\r' ? '\n' : data[i];
    g_byte_array_append(out, &byte, 1);
  }
  return out;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  guint stop_at = size > 0 ? data[0] % 4 : 0;
  g_autofree char *whole = read_in_pieces(data, size, G_MAXSIZE, stop_at);
  for (gsize largest = 1; largest <= 17; largest += 8) {
    g_autofree char *cut = read_in_pieces(data, size, largest, stop_at);
    oct_assert(strcmp(cut, whole) == 0);
  }
  g_autoptr(GByteArray) plain = with_line_feeds(data, size);
  g_autofree char *same = read_in_pieces(plain->data, plain->len, G_MAXSIZE, stop_at);
  oct_assert(strcmp(same, whole) == 0);
  return 0;
}
