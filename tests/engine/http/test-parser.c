#include "engine/http/parser.h"

#include <string.h>

#include "engine/base/error.h"
#include "engine/base/limits.h"
#include "tests/engine/http/http-drive.h"

#define HOST "Host: a\r\n"

/* --- limits: just below, at and above --------------------------------------------------------- */

static const oct_http_limits small = {
    .request_line_bytes = 40,
    .header_bytes = 60,
    .headers = 3,
    .body_bytes = 100,
    .chunks = 4,
    .extension_bytes = 8,
};

/* Whole, and byte by byte; what is too long for that, in small pieces. */
static void
gives(const oct_http_limits *limits, const char *text, gsize size, const char *expected) {
  for (int bytewise = 0; bytewise < 2; bytewise++) {
    g_autoptr(GString) out = g_string_new(NULL);
    gsize piece = size < 1 << 20 ? 1 : 4093;
    oct_http_drive(limits, text, size, bytewise ? piece : size, piece, FALSE, out);
    g_assert_cmpstr(out->str, ==, expected);
  }
}

/* A text is the format with n letters in the place of its '@'. */
static void
filled(const oct_http_limits *limits, const char *format, gsize n, const char *expected) {
  g_autofree char *filler = g_strnfill(n, 'x');
  char **parts = g_strsplit(format, "@", 2);
  g_autofree char *text = g_strconcat(parts[0], filler, parts[1], NULL);
  g_strfreev(parts);
  gives(limits, text, strlen(text), expected);
}

/* The same with a limit that the filler of n letters just meets: one less, as many, one more. */
static void
edge(const oct_http_limits *limits, const char *format, gsize n, const char *status) {
  for (gsize letters = n - 1; letters <= n + 1; letters++)
    filled(limits, format, letters, letters > n ? status : "GET /");
}

static void
header_limits(void) {
  const oct_http_limits standard = oct_http_limits_standard();
  g_assert_cmpuint(standard.request_line_bytes, ==, 8 << 10);
  g_assert_cmpuint(standard.header_bytes, ==, 32 << 10);
  g_assert_cmpuint(standard.headers, ==, 64);
  const oct_http_limits *both[] = {&small, &standard};
  for (int i = 0; i < 2; i++) {
    const oct_http_limits *limits = both[i];
    /* "Host: a", "X: " and three CR LF are 16 bytes. */
    edge(limits, "GET / HTTP/1.1\r\n" HOST "X: @\r\n\r\n", limits->header_bytes - 16, "431");
    for (gsize n = limits->headers - 1; n <= limits->headers + 1; n++) {
      g_autoptr(GString) text = g_string_new("GET / HTTP/1.1\r\n" HOST);
      for (gsize k = 1; k < n; k++)
        g_string_append(text, "A:\r\n");
      g_string_append(text, "\r\n");
      gives(limits, text->str, text->len, n > limits->headers ? "431" : "GET /");
    }
  }
}

static void
request_line_limit(void) {
  const oct_http_limits standard = oct_http_limits_standard();
  const oct_http_limits *both[] = {&small, &standard};
  for (int i = 0; i < 2; i++)
    for (gsize n = both[i]->request_line_bytes - 1; n <= both[i]->request_line_bytes + 1; n++) {
      g_autofree char *filler = g_strnfill(n - strlen("GET / HTTP/1.1"), 'x');
      g_autofree char *text = g_strdup_printf("GET /%s HTTP/1.1\r\n" HOST "\r\n", filler);
      g_autofree char *served = g_strdup_printf("GET /%s", filler);
      gives(both[i], text, strlen(text), n > both[i]->request_line_bytes ? "414" : served);
    }
  /* A line that never ends is refused at the limit. */
  filled(&small, "GET /@", small.request_line_bytes - 5, "head");
  filled(&small, "GET /@", small.request_line_bytes - 4, "414");
}

static void
body_limit(void) {
  const oct_http_limits standard = oct_http_limits_standard();
  g_assert_cmpuint(standard.body_bytes, ==, 8 << 20);
  const oct_http_limits *both[] = {&small, &standard};
  for (int i = 0; i < 2; i++)
    for (gsize n = both[i]->body_bytes - 1; n <= both[i]->body_bytes + 1; n++) {
      gboolean over = n > both[i]->body_bytes;
      g_autofree char *body = g_strnfill(n, 'x');
      g_autofree char *text = g_strdup_printf(
          "POST / HTTP/1.1\r\n" HOST "Content-Length: %" G_GSIZE_FORMAT "\r\n\r\n%s", n, body);
      g_autofree char *served = g_strdup_printf("POST / %s", body);
      gives(both[i], text, strlen(text), over ? "413" : served);
      /* In one chunk: its framing counts. */
      gsize framing = strlen("\r\n\r\n0\r\n\r\n") + (i == 0 ? 2 : 6);
      g_autofree char *chunked = g_strdup_printf(
          "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n%" G_GINT64_MODIFIER
          "x\r\n%s\r\n0\r\n\r\n",
          n - framing, body + framing);
      g_autofree char *served_chunked = g_strdup_printf("POST / %s", body + framing);
      gives(both[i], chunked, strlen(chunked), over ? "413" : served_chunked);
    }
}

static void
chunk_limits(void) {
  const oct_http_limits standard = oct_http_limits_standard();
  g_assert_cmpuint(standard.chunks, ==, 65536);
  g_assert_cmpuint(standard.extension_bytes, ==, 256);
  const oct_http_limits *both[] = {&small, &standard};
  for (int i = 0; i < 2; i++) {
    for (gsize n = both[i]->chunks - 1; n <= both[i]->chunks + 1; n++) {
      g_autoptr(GString) text =
          g_string_new("POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
      g_autoptr(GString) served = g_string_new("POST / ");
      for (gsize k = 0; k < n; k++) {
        g_string_append(text, "1\r\nx\r\n");
        g_string_append_c(served, 'x');
      }
      g_string_append(text, "0\r\n\r\n");
      gives(both[i], text->str, text->len, n > both[i]->chunks ? "413" : served->str);
    }
    /* Two extensions share the limit. */
    for (gsize n = both[i]->extension_bytes - 1; n <= both[i]->extension_bytes + 1; n++) {
      g_autofree char *extension = g_strnfill(n - 4, 'x');
      g_autofree char *text =
          g_strdup_printf("POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
                          "2;ab\r\nhi\r\n0;%s\r\n\r\n",
                          extension);
      gives(both[i], text, strlen(text), n > both[i]->extension_bytes ? "400" : "POST / hi");
    }
  }
}

/* --- use -------------------------------------------------------------------------------------- */

#define PAIR                                                                                       \
  "POST /a?b=c HTTP/1.1\r\nHost: Name:80\r\nX-Y:  z  \r\nExpect: 100-continue\r\n"                 \
  "Content-Length: 5\r\n\r\nhelloGET /d HTTP/1.0\r\nConnection: a, Keep-Alive\r\n\r\n"

static gboolean
is(const oct_http_slice *slice, const char *text) {
  return slice != NULL && slice->size == strlen(text) &&
         memcmp(slice->bytes, text, slice->size) == 0;
}

static void
stops_where_it_should(void) {
  g_autoptr(oct_budget) budget = oct_budget_new("requests", 1 << 20);
  g_autoptr(GError) error = NULL;
  oct_http_limits limits = oct_http_limits_standard();
  oct_http_parser *parser = oct_http_parser_new(&limits, budget, &error);
  g_assert_no_error(error);
  static const char text[] = PAIR;
  const gsize size = sizeof text - 1, head = (gsize)(strstr(text, "hello") - text);
  gsize used, at = head;
  g_assert_cmpint(oct_http_parser_feed(parser, text, size, &used), ==, OCT_HTTP_IN_BODY);
  g_assert_cmpuint(used, ==, head);
  const oct_http_request *r = oct_http_parser_request(parser);
  g_assert_true(r->expect_continue && r->keep_alive && !r->chunked);
  g_assert_cmpuint(r->content_length, ==, 5);
  g_assert_cmpuint(r->body.size, ==, 0);
  g_assert_cmpuint(r->n_headers, ==, 4);
  g_assert_true(is(&r->path, "/a") && is(&r->query, "b=c") && is(&r->host, "Name:80"));
  g_assert_true(is(oct_http_request_header(r, "x-y"), "z"));
  g_assert_null(oct_http_request_header(r, "x-"));
  g_assert_cmpint(oct_http_parser_feed(parser, text + at, size - at, &used), ==, OCT_HTTP_DONE);
  g_assert_cmpuint(used, ==, 5);
  g_assert_true(is(&r->body, "hello"));
  at += 5;
  /* The next request stays unread, however often it is offered. */
  g_assert_cmpint(oct_http_parser_feed(parser, text + at, size - at, &used), ==, OCT_HTTP_DONE);
  g_assert_cmpuint(used, ==, 0);
  g_assert_true(is(&r->body, "hello"));
  oct_http_parser_next(parser);
  g_assert_cmpint(oct_http_parser_state(parser), ==, OCT_HTTP_IN_HEAD);
  g_assert_cmpint(oct_http_parser_feed(parser, text + at, size - at, &used), ==, OCT_HTTP_DONE);
  g_assert_cmpuint(used, ==, size - at);
  r = oct_http_parser_request(parser);
  g_assert_true(is(&r->path, "/d") && r->query.bytes == NULL && r->host.bytes == NULL);
  g_assert_true(r->keep_alive && !r->expect_continue && r->body.size == 0 && r->minor == 0);
  g_assert_cmpuint(r->n_headers, ==, 1);
  oct_http_parser_free(parser);
  g_assert_cmpuint(oct_budget_used(budget), ==, 0);
}

static void
connection(void) {
  static const struct {
    const char *head;
    gboolean keep_alive;
  } rows[] = {
      {"GET / HTTP/1.1\r\n" HOST "\r\n", TRUE},
      {"GET / HTTP/1.1\r\n" HOST "Connection: x,  CLOSE ,y\r\n\r\n", FALSE},
      {"GET / HTTP/1.1\r\n" HOST "Connection: closed\r\n\r\n", TRUE},
      {"GET / HTTP/1.1\r\n" HOST "Connection: keep-alive\r\nConnection: close\r\n\r\n", FALSE},
      {"GET / HTTP/1.0\r\n\r\n", FALSE},
      {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", TRUE},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autoptr(GString) out = g_string_new(NULL);
    oct_http_limits limits = oct_http_limits_standard();
    gsize n = strlen(rows[i].head);
    oct_http_drive(&limits, rows[i].head, n, n, 1, TRUE, out);
    g_assert_nonnull(strstr(out->str, rows[i].keep_alive ? "keep=1" : "keep=0"));
  }
}

static void
hosts(void) {
  static const struct {
    const char *host;
    gboolean valid;
  } rows[] = {
      {"a.example", TRUE},
      {"A_b-c.d.", TRUE},
      {"127.0.0.1:65535", TRUE},
      {"[::1]", TRUE},
      {"[fe80::1%eth0]", FALSE},
      {"[::1", FALSE},
      {"[1]", FALSE},
      {"[1:2]", FALSE},
      {"[::1]x", FALSE},
      {"a:", FALSE},
      {"a:65536", FALSE},
      {"a:000080", FALSE},
      {"a:8o", FALSE},
      {"a:80:80", FALSE},
      {"a b", FALSE},
      {":80", FALSE},
      {"a,b", FALSE},
      {"a%2eb", FALSE},
      {"\xc3\xa9", FALSE},
      {"[]", FALSE},
      {"a?b", FALSE},
  };
  oct_http_limits limits = oct_http_limits_standard();
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autofree char *text = g_strdup_printf("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", rows[i].host);
    gives(&limits, text, strlen(text), rows[i].valid ? "GET /" : "400");
    g_autofree char *absolute = g_strdup_printf("GET http://%s/ HTTP/1.0\r\n\r\n", rows[i].host);
    if (strchr(rows[i].host, '?') == NULL)
      gives(&limits, absolute, strlen(absolute), rows[i].valid ? "GET /" : "400");
  }
}

/* Each NUL, control character and DEL, in name, value and request line. */
static void
control_characters(void) {
  oct_http_limits limits = oct_http_limits_standard();
  for (int c = 0; c < 256; c++) {
    gboolean control = (c < 32 && c != '\t') || c == 127;
    char value[] = "GET / HTTP/1.1\r\nHost: a\r\nX: a_b\r\n\r\n";
    *strchr(value, '_') = (char)c;
    gives(&limits, value, sizeof value - 1, control ? "400" : "GET /");
    char target[] = "GET /^b HTTP/1.1\r\nHost: a\r\n\r\n";
    gboolean graph = c > 32 && c < 127 && c != '#' && c != '\\' && c != '%';
    *strchr(target, '^') = (char)c;
    g_autofree char *served = c == '?' ? g_strdup("GET /?b") : g_strdup_printf("GET /%cb", c);
    gives(&limits, target, sizeof target - 1, graph ? served : "400");
  }
}

/* --- cost ------------------------------------------------------------------------------------- */

/* Text that repeats a unit n times between a beginning and an end. */
static guint64
work(const char *begin, const char *unit, gsize n, const char *end, gsize piece) {
  g_autoptr(GString) text = g_string_new(begin);
  for (gsize i = 0; i < n; i++)
    g_string_append(text, unit);
  g_string_append(text, end);
  g_autoptr(GString) out = g_string_new(NULL);
  oct_http_limits limits = oct_http_limits_standard();
  limits.headers = 4096;
  limits.header_bytes = limits.request_line_bytes = 1 << 20;
  guint64 done = oct_http_drive(&limits, text->str, text->len, piece, piece, FALSE, out);
  g_assert_null(strstr(out->str, "4"));
  /* Each byte is looked at a few times: no factor hides in the ratio. */
  g_assert_cmpuint(done, <=, 8 * text->len + 4096);
  return done;
}

static void
linear(void) {
  static const struct {
    const char *begin, *unit, *end;
    gsize n;
  } rows[] = {
      {"GET /", "x", " HTTP/1.1\r\nHost: a\r\n\r\n", 100000},
      {"GET /?", "%20", " HTTP/1.1\r\nHost: a\r\n\r\n", 30000},
      {"GET / HTTP/1.1\r\nHost: a\r\nX:", " ", "\r\n\r\n", 100000},
      {"GET / HTTP/1.1\r\nHost: a\r\nConnection:", ",", "\r\n\r\n", 100000},
      {"GET / HTTP/1.1\r\nHost: a\r\n", "X: yz\r\n", "\r\n", 2000},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n",
       "0\r\n\r\n", 20000},
      {"", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "", 2000},
  };
  static const gsize pieces[] = {1, 7, 1 << 30};
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
    for (gsize k = 0; k < G_N_ELEMENTS(pieces); k++) {
      guint64 once = work(rows[i].begin, rows[i].unit, rows[i].n, rows[i].end, pieces[k]);
      guint64 twice = work(rows[i].begin, rows[i].unit, 2 * rows[i].n, rows[i].end, pieces[k]);
      g_test_message("row %" G_GSIZE_FORMAT ": %" G_GUINT64_FORMAT " then %" G_GUINT64_FORMAT, i,
                     once, twice);
      g_assert_cmpuint(2 * twice, <, 5 * once);
    }
}

/* What is announced costs nothing before it comes. */
static void
memory_follows_bytes(void) {
  g_autoptr(oct_budget) budget = oct_budget_new("requests", 16 << 10);
  g_autoptr(GError) error = NULL;
  oct_http_limits limits = oct_http_limits_standard();
  g_autoptr(oct_http_parser) parser = oct_http_parser_new(&limits, budget, &error);
  g_assert_no_error(error);
  const char *text = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n\r\n";
  gsize used, n = strlen(text);
  g_assert_cmpint(oct_http_parser_feed(parser, text, n, &used), ==, OCT_HTTP_IN_BODY);
  g_assert_cmpint(oct_http_parser_feed(parser, text, n, &used), ==, OCT_HTTP_IN_BODY);
  g_assert_cmpuint(oct_budget_used(budget), <, 8 << 10);
  g_autofree char *rest = g_strnfill(64 << 10, 'x');
  g_assert_cmpint(oct_http_parser_feed(parser, rest, 64 << 10, &used), ==, OCT_HTTP_REFUSED);
  g_assert_cmpuint(oct_http_parser_verdict(parser).status, ==, 503);
  g_assert_true(oct_http_parser_verdict(parser).close);
  g_clear_pointer(&parser, oct_http_parser_free);
  g_assert_cmpuint(oct_budget_used(budget), ==, 0);
}

/* Every allocation fails once; nothing leaks, nothing is half done. */
static void
memory_fails(void) {
  guint failures = 0, refusals = 0;
  for (guint64 nth = 1; nth < 12; nth++) {
    g_autoptr(oct_budget) budget = oct_budget_new("requests", 1 << 20);
    oct_budget_fail_at(budget, nth);
    g_autoptr(GError) error = NULL;
    oct_http_limits limits = oct_http_limits_standard();
    oct_http_parser *parser = oct_http_parser_new(&limits, budget, &error);
    if (parser == NULL) {
      g_assert_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_MEMORY);
      failures++;
      continue;
    }
    static const char text[] = PAIR;
    gsize used = 0;
    for (gsize at = 0; at < sizeof text - 1; at += used) {
      oct_http_state state = oct_http_parser_feed(parser, text + at, sizeof text - 1 - at, &used);
      if (state == OCT_HTTP_REFUSED) {
        g_assert_cmpuint(oct_http_parser_verdict(parser).status, ==, 503);
        refusals++;
        break;
      }
      if (state == OCT_HTTP_DONE)
        oct_http_parser_next(parser);
    }
    oct_http_parser_free(parser);
    g_assert_cmpuint(oct_budget_used(budget), ==, 0);
  }
  g_assert_cmpuint(failures, ==, 3);
  g_assert_cmpuint(refusals, ==, 2);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/http/parser/headers-just-below-at-and-above-their-limits", header_limits);
  g_test_add_func("/http/parser/request-line-just-below-at-and-above", request_line_limit);
  g_test_add_func("/http/parser/body-just-below-at-and-above", body_limit);
  g_test_add_func("/http/parser/chunks-just-below-at-and-above", chunk_limits);
  g_test_add_func("/http/parser/stops-behind-head-and-request", stops_where_it_should);
  g_test_add_func("/http/parser/connection-stays-or-closes", connection);
  g_test_add_func("/http/parser/hosts-are-names-or-addresses", hosts);
  g_test_add_func("/http/parser/refuses-every-control-character", control_characters);
  g_test_add_func("/http/parser/work-is-linear", linear);
  g_test_add_func("/http/parser/memory-follows-bytes-not-announcements", memory_follows_bytes);
  g_test_add_func("/http/parser/every-allocation-may-fail", memory_fails);
  return g_test_run();
}
