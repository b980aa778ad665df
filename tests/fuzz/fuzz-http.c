/* Fuzz target: a byte that chooses how the rest is cut, and the bytes of a connection. Any cut
 * gives the same requests and the same refusal at the same byte; what is accepted is framed as
 * engine/http/parser.h says; work is linear. */
#include <string.h>

#include "engine/base/assert.h"
#include "tests/engine/http/http-drive.h"
#include "tests/fuzz/replay.h"

/* Small, so that inputs of a few hundred bytes reach them. */
static const oct_http_limits limits = {
    .request_line_bytes = 100,
    .header_bytes = 400,
    .headers = 8,
    .body_bytes = 200,
    .chunks = 6,
    .extension_bytes = 12,
};

static void
same(const uint8_t *bytes, size_t size, gsize first, gsize piece, const GString *whole) {
  g_autoptr(GString) out = g_string_new(NULL);
  oct_http_drive(&limits, bytes, size, first, piece, TRUE, out);
  oct_assert(g_string_equal(out, whole));
}

/* The first request, if it is whole, read by itself: it ends where its framing says. */
static void
check_first(const uint8_t *bytes, size_t size) {
  g_autoptr(oct_budget) budget = oct_budget_new("requests", 1 << 20);
  g_autoptr(oct_http_parser) parser = oct_http_parser_new(&limits, budget, NULL);
  gsize head = 0, used = 0;
  oct_http_state state = oct_http_parser_feed(parser, bytes, size, &head);
  if (state == OCT_HTTP_IN_BODY)
    state = oct_http_parser_feed(parser, bytes + head, size - head, &used);
  if (state == OCT_HTTP_DONE) {
    const oct_http_request *r = oct_http_parser_request(parser);
    oct_assert(head >= 4 && memcmp(bytes + head - 4, "\r\n\r\n", 4) == 0);
    oct_assert(r->n_headers <= limits.headers && r->body.size <= limits.body_bytes);
    oct_assert(r->path.size > 0 && (r->path.bytes[0] == '/' || r->path.bytes[0] == '*'));
    oct_assert(r->minor == 0 || r->host.size > 0);
    const oct_http_slice *length = oct_http_request_header(r, "content-length");
    oct_assert(r->chunked == (oct_http_request_header(r, "transfer-encoding") != NULL));
    oct_assert(!r->chunked || length == NULL);
    if (r->chunked)
      oct_assert(used >= 5 && memcmp(bytes + head + used - 4, "\r\n\r\n", 4) == 0);
    else
      oct_assert(used == r->content_length && r->body.size == used &&
                 (used == 0 || memcmp(r->body.bytes, bytes + head, used) == 0));
    for (guint i = 0; i < r->n_headers; i++)
      oct_assert(r->headers[i].name.size > 0 &&
                 memchr(r->headers[i].value.bytes, '\n', r->headers[i].value.size) == NULL);
  }
  g_clear_pointer(&parser, oct_http_parser_free);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  const uint8_t *bytes = data + 1;
  gsize n = size - 1, choice = data[0];
  g_autoptr(GString) whole = g_string_new(NULL);
  guint64 work = oct_http_drive(&limits, bytes, n, n, 1, TRUE, whole);
  oct_assert(work <= 16 * n + 4096);
  same(bytes, n, 1, 1, whole);
  same(bytes, n, choice % 64, 1 + choice / 4, whole);
  gsize cuts = MIN(n, 300);
  for (gsize first = choice % 4; first < cuts; first += 4)
    same(bytes, n, first, n, whole);
  check_first(bytes, n);
  return 0;
}
