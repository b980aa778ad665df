#include "tests/engine/http/http-drive.h"

#include "engine/base/assert.h"

static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};

static void
add(GString *out, const char *before, oct_http_slice slice) {
  if (slice.bytes != NULL) {
    g_string_append(out, before);
    g_string_append_len(out, slice.bytes, (gssize)slice.size);
  }
}

void
oct_http_drive_describe(const oct_http_request *request, GString *out) {
  g_string_append(out, methods[request->method]);
  add(out, " ", request->path);
  add(out, "?", request->query);
}

static void
add_details(const oct_http_request *r, GString *out) {
  g_string_append_printf(out, " 1.%u keep=%d expect=%d chunked=%d length=%" G_GSIZE_FORMAT,
                         r->minor, r->keep_alive, r->expect_continue, r->chunked,
                         r->content_length);
  add(out, " host=", r->host);
  for (guint i = 0; i < r->n_headers; i++) {
    add(out, "\n", r->headers[i].name);
    add(out, "=", r->headers[i].value);
  }
}

/* What the parser says at the end of the bytes, or of a request. */
static void
add_item(const oct_http_parser *parser, gboolean details, GString *out) {
  static const char *const waits[] = {"head", "body"};
  oct_http_state state = oct_http_parser_state(parser);
  oct_http_verdict verdict = oct_http_parser_verdict(parser);
  if (state == OCT_HTTP_DONE) {
    const oct_http_request *request = oct_http_parser_request(parser);
    oct_assert(verdict.status == 0 && verdict.close == !request->keep_alive);
    oct_http_drive_describe(request, out);
    add(out, " ", request->body);
    if (details)
      add_details(request, out);
  } else if (state == OCT_HTTP_REFUSED) {
    oct_assert(verdict.status >= 400 && verdict.reason != NULL && verdict.close);
    g_string_append_printf(out, "%u", verdict.status);
    if (details)
      g_string_append_printf(out, " %s", verdict.reason);
  } else
    g_string_append(out, waits[state]);
}

guint64
oct_http_drive(const oct_http_limits *limits, const void *bytes, gsize size, gsize first,
               gsize piece, gboolean details, GString *out) {
  g_autoptr(oct_budget) budget = oct_budget_new("requests", 1 << 26);
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_http_parser) parser = oct_http_parser_new(limits, budget, &error);
  oct_assert(error == NULL);
  const char *from = bytes;
  gsize at = 0, fence = first;
  gboolean fresh = TRUE;
  oct_http_state state = OCT_HTTP_IN_HEAD;
  while (at < size && state != OCT_HTTP_REFUSED) {
    if (at == fence)
      fence += piece;
    gsize used, n = MIN(fence, size) - at;
    /* A copy of exactly these bytes: a sanitizer sees any read past them. */
    g_autofree char *copy = g_memdup2(from + at, n);
    state = oct_http_parser_feed(parser, copy, n, &used);
    oct_assert(used <= n && (used == n || state != OCT_HTTP_IN_HEAD));
    at += used;
    fresh = FALSE;
    if (state == OCT_HTTP_DONE) {
      add_item(parser, details, out);
      oct_http_parser_next(parser);
      fresh = TRUE;
      if (at < size)
        g_string_append(out, " | ");
    }
  }
  if (!fresh)
    add_item(parser, details, out);
  if (details)
    g_string_append_printf(out, " @%" G_GSIZE_FORMAT, at);
  guint64 work = oct_http_parser_work(parser);
  g_clear_pointer(&parser, oct_http_parser_free);
  oct_assert(oct_budget_used(budget) == 0);
  return work;
}
