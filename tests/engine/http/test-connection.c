/* Exchanges, answers, limits and ends of one connection, without a socket. */
#include <string.h>

#include "tests/engine/http/rig.h"

#define S       G_GINT64_CONSTANT(1000000000)
#define H       "Host: a\r\n"
#define END     "\r\n"
#define GET(p)  "GET " p " HTTP/1.1\r\n" H
#define POST(p) "POST " p " HTTP/1.1\r\n" H

static void
give(oct_http_rig *r, const char *text) {
  g_assert_cmpuint(oct_http_rig_give(r, text, strlen(text)), ==, strlen(text));
}

static void
expect_events(const oct_http_rig *r, const char *events) {
  g_assert_cmpstr(r->h.events->str, ==, events);
}

static void
expect_wire(const oct_http_rig *r, const char *answers) {
  g_autoptr(GString) text = g_string_new(NULL);
  oct_http_test_read(r->wire->str, r->wire->len, FALSE, text);
  g_assert_cmpstr(text->str, ==, answers);
}

static void
expect_phase(const oct_http_rig *r, oct_http_phase phase) {
  g_assert_cmpint(r->x.phase, ==, phase);
}

/* --- exchanges -------------------------------------------------------------------------------- */

static void
keeps_alive(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, GET("/a") END);
  give(&r, POST("/b") "Content-Length: 2\r\n\r\nhi");
  give(&r, GET("/sse") END GET("/c") END);
  expect_events(&r, "head request head request head request head request");
  expect_wire(&r, "GET /a | POST /b hi | data: 1\n\ndata: 2\n\n | GET /c");
  expect_phase(&r, OCT_HTTP_READING_HEAD);
  g_assert_cmpuint(r.shared.counts.requests, ==, 4);
  oct_http_rig_stop(&r);
}

static void
one_at_a_time(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, GET("/wait") END GET("/b") END);
  expect_events(&r, "head request");
  expect_wire(&r, "");
  oct_http_test_answer(&r.h, "done");
  oct_http_rig_pump(&r);
  expect_wire(&r, "done | GET /b");
  oct_http_rig_stop(&r);
}

static void
waits_until_sent(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  r.window = 20;
  give(&r, GET("/a") END GET("/b") END);
  expect_events(&r, "head request");
  expect_phase(&r, OCT_HTTP_ANSWERED);
  r.window = G_MAXSIZE;
  oct_http_rig_pump(&r);
  expect_wire(&r, "GET /a | GET /b");
  oct_http_rig_stop(&r);
}

static void
reads_ahead_a_little(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  g_autofree char *junk = g_strnfill(3 * OCT_HTTP_AHEAD_BYTES, 'x');
  give(&r, GET("/wait") END);
  g_assert_cmpuint(oct_http_connection_room(&r.x), ==, OCT_HTTP_AHEAD_BYTES);
  g_assert_cmpuint(oct_http_rig_give(&r, junk, strlen(junk)), ==, OCT_HTTP_AHEAD_BYTES);
  g_assert_cmpuint(oct_http_connection_room(&r.x), ==, 0);
  oct_http_test_answer(&r.h, "done");
  oct_http_rig_pump(&r);
  expect_wire(&r, "done");
  g_assert_cmpuint(oct_http_connection_room(&r.x), >, OCT_HTTP_AHEAD_BYTES);
  oct_http_rig_stop(&r);
}

static void
refused_from_head(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  /* Without a body the connection goes on; with one, nobody knows where the next begins. */
  give(&r, GET("/refuse") END);
  expect_phase(&r, OCT_HTTP_READING_HEAD);
  give(&r, POST("/refuse") "Content-Length: 5\r\n\r\nhe");
  expect_phase(&r, OCT_HTTP_LINGERING);
  give(&r, "llo" GET("/b") END);
  expect_wire(&r, "401 | 401");
  expect_events(&r, "head head");
  g_assert_nonnull(strstr(r.wire->str, "Connection: close"));
  oct_http_rig_advance(&r, OCT_HTTP_LINGER_NS);
  expect_phase(&r, OCT_HTTP_LINGERING);
  oct_http_rig_advance(&r, 1);
  expect_phase(&r, OCT_HTTP_OVER);
  oct_http_rig_stop(&r);
}

static void
refused_by_parser(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, POST("/a") "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nx\r\n");
  expect_events(&r, "head gone:refused");
  expect_wire(&r, "400");
  expect_phase(&r, OCT_HTTP_LINGERING);
  g_assert_cmpuint(r.shared.counts.refused, ==, 1);
  oct_http_rig_stop(&r);
}

static void
hosts(void) {
  static const char *const names[] = {"Gpu7", NULL};
  static const struct {
    const char *host, *answer;
  } cases[] = {
      {"localhost", "GET /a"},   {"LOCALHOST:8000", "GET /a"}, {"a.localhost", "GET /a"},
      {"127.0.0.1:1", "GET /a"}, {"10.0.0.7", "GET /a"},       {"[::1]:8000", "GET /a"},
      {"gpu7", "GET /a"},        {"gpu7:80", "GET /a"},        {"evil.example", "421"},
      {"gpu77", "421"},          {"xlocalhost", "421"},        {"localhost.evil", "421"},
      {"127.0.0.1.evil", "421"}, {".localhost", "421"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
    oct_http_rig r;
    oct_http_rig_start(&r);
    r.shared.config.hosts = names;
    g_autofree char *request =
        g_strdup_printf("GET /a HTTP/1.1\r\nHost: %s\r\n\r\n", cases[i].host);
    give(&r, request);
    expect_wire(&r, cases[i].answer);
    oct_http_rig_stop(&r);
  }
}

static void
hundred(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, POST("/a") "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  g_assert_cmpstr(r.wire->str, ==, "HTTP/1.1 100 Continue\r\n\r\n");
  give(&r, "hi");
  expect_wire(&r, "POST /a hi");
  oct_http_rig_stop(&r);
  oct_http_rig_start(&r);
  give(&r, POST("/refuse") "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  g_assert_null(strstr(r.wire->str, "100 Continue"));
  expect_wire(&r, "401");
  oct_http_rig_stop(&r);
}

static void
closes_when_asked(void) {
  static const char *const requests[] = {GET("/a") "Connection: close\r\n\r\n",
                                         "GET /a HTTP/1.0\r\n\r\n"};
  for (gsize i = 0; i < G_N_ELEMENTS(requests); i++) {
    oct_http_rig r;
    oct_http_rig_start(&r);
    give(&r, requests[i]);
    expect_wire(&r, "GET /a");
    expect_phase(&r, OCT_HTTP_LINGERING);
    g_assert_nonnull(strstr(r.wire->str, "Connection: close\r\n"));
    oct_http_connection_hung_up(&r.x);
    expect_phase(&r, OCT_HTTP_OVER);
    oct_http_rig_stop(&r);
  }
}

static void
old_clients(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  g_assert_nonnull(strstr(r.wire->str, "Connection: keep-alive\r\n"));
  expect_phase(&r, OCT_HTTP_READING_HEAD);
  g_string_truncate(r.wire, 0);
  /* A stream for 1.0 has no chunks, and ends with the connection. */
  give(&r, "GET /sse HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  expect_wire(&r, "data: 1\n\ndata: 2\n\n");
  g_assert_null(strstr(r.wire->str, "chunked"));
  expect_phase(&r, OCT_HTTP_LINGERING);
  oct_http_rig_stop(&r);
}

static void
heads_have_no_body(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r,
       "HEAD /a HTTP/1.1\r\n" H END "HEAD /sse HTTP/1.1\r\n" H END "HEAD /b HTTP/1.1\r\n" H END);
  expect_events(&r, "head request head request head request");
  g_autoptr(GString) text = g_string_new(NULL);
  oct_http_test_read(r.wire->str, r.wire->len, TRUE, text);
  g_assert_cmpstr(text->str, ==, "200 | 200 | 200");
  g_assert_nonnull(strstr(r.wire->str, "Content-Length: 7\r\n"));
  g_assert_null(strstr(r.wire->str, "data:"));
  oct_http_rig_stop(&r);
}

/* --- answers ---------------------------------------------------------------------------------- */

static void
no_injection(void) {
  const oct_http_field fields[] = {{"X-A", "a\r\nX-B: b\x7f\t\xc3\xa9"}};
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, GET("/wait") END);
  oct_http_exchange *x = oct_http_test_first(&r.h);
  g_ptr_array_remove_index(r.h.open, 0);
  oct_http_respond(x, &(oct_http_reply){.status = 204, .fields = fields, .n_fields = 1});
  oct_http_rig_pump(&r);
  g_assert_nonnull(strstr(r.wire->str, "X-A: a__X-B: b_\t\xc3\xa9\r\n"));
  g_assert_null(strstr(r.wire->str, "\nX-B"));
  g_assert_true(g_str_has_prefix(r.wire->str, "HTTP/1.1 204 No Content\r\n"));
  g_assert_null(strstr(r.wire->str, "Content-Length"));
  expect_phase(&r, OCT_HTTP_READING_HEAD);
  oct_http_rig_stop(&r);
}

static void
error_shape(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, GET("/wait") END);
  oct_http_exchange *x = oct_http_test_first(&r.h);
  g_ptr_array_remove_index(r.h.open, 0);
  oct_http_respond_error(x, 422, "\"\\\n\xc3\xa9");
  oct_http_rig_pump(&r);
  g_assert_true(g_str_has_suffix(r.wire->str,
                                 "\r\n\r\n{\"error\":{\"message\":\"\\\"\\\\\\n\xc3\xa9\",\"type\":"
                                 "\"invalid_request_error\",\"param\":null,\"code\":422}}"));
  oct_http_rig_stop(&r);
}

/* The id that answers carry. Owned. */
static char *
id_of(const char *header) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  g_autofree char *request = g_strdup_printf(GET("/wait") "%s" END, header);
  give(&r, request);
  char *id = g_strdup(oct_http_exchange_id(oct_http_test_first(&r.h)));
  oct_http_test_answer(&r.h, "");
  oct_http_rig_pump(&r);
  g_autofree char *line = g_strdup_printf("X-Request-Id: %s\r\n", id);
  g_assert_nonnull(strstr(r.wire->str, line));
  oct_http_rig_stop(&r);
  return id;
}

static void
request_ids(void) {
  g_autofree char *at_limit = g_strnfill(OCT_HTTP_ID_BYTES_MAX, 'a');
  g_autofree char *limit_header = g_strdup_printf("x-request-id: %s\r\n", at_limit);
  g_autofree char *above_header = g_strdup_printf("X-Request-Id: %sa\r\n", at_limit);
  g_autofree char *taken = id_of("X-Request-ID: abc-1.2_3\r\n"), *longest = id_of(limit_header);
  g_autofree char *above = id_of(above_header), *made = id_of("");
  g_autofree char *odd = id_of("X-Request-Id: a b\r\n"), *empty = id_of("X-Request-Id:\r\n");
  g_assert_cmpstr(taken, ==, "abc-1.2_3");
  g_assert_cmpstr(longest, ==, at_limit);
  g_assert_cmpuint(strlen(made), ==, 32);
  /* The same counter and seed make the same id. */
  g_assert_cmpstr(above, ==, made);
  g_assert_cmpstr(odd, ==, made);
  g_assert_cmpstr(empty, ==, made);
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, GET("/wait") END);
  oct_http_test_answer(&r.h, "");
  oct_http_rig_pump(&r);
  give(&r, GET("/wait") END);
  g_assert_cmpstr(oct_http_exchange_id(oct_http_test_first(&r.h)), !=, made);
  /* The refusal of a head that was never whole has none. */
  oct_http_test_answer(&r.h, "");
  oct_http_rig_pump(&r);
  g_string_truncate(r.wire, 0);
  give(&r, "\n");
  expect_wire(&r, "400");
  g_assert_null(strstr(r.wire->str, "X-Request-Id"));
  oct_http_rig_stop(&r);
}

static void
stream_pieces(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, GET("/stream") END);
  oct_http_exchange *x = oct_http_test_first(&r.h);
  g_assert_true(oct_http_stream_write(x, "one", 3));
  g_assert_true(oct_http_stream_write(x, "", 0));
  g_assert_true(oct_http_stream_write(x, "two", 3));
  oct_http_rig_pump(&r);
  g_assert_true(g_str_has_suffix(r.wire->str, "\r\n\r\n3\r\none\r\n3\r\ntwo\r\n"));
  oct_http_test_end(&r.h);
  oct_http_rig_pump(&r);
  expect_wire(&r, "onetwo");
  expect_phase(&r, OCT_HTTP_READING_HEAD);
  oct_http_rig_stop(&r);
}

static void
nothing_allocated(void) {
  char event[200];
  memset(event, 'e', sizeof event);
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, GET("/stream") END);
  oct_http_exchange *x = oct_http_test_first(&r.h);
  for (int i = 0; i < 1000; i++) {
    g_assert_true(oct_http_stream_write(x, event, sizeof event));
    if (i % 3 == 0)
      oct_http_rig_pump(&r);
    if (i == 10)
      oct_budget_fail_at(r.budget, 1);
  }
  oct_http_rig_pump(&r);
  /* It is still armed: nothing was asked for. */
  g_assert_null(oct_budget_alloc(r.budget, 1, 1, NULL));
  oct_http_rig_stop(&r);
}

/* --- limits ----------------------------------------------------------------------------------- */

static void
header_time(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  for (int i = 0; i < 5; i++) {
    give(&r, i == 0 ? "GET " : "/");
    oct_http_rig_advance(&r, 2 * S);
  }
  expect_phase(&r, OCT_HTTP_READING_HEAD);
  oct_http_rig_advance(&r, 1);
  expect_wire(&r, "408");
  expect_events(&r, "");
  oct_http_rig_stop(&r);
  oct_http_rig_start(&r);
  oct_http_rig_advance(&r, 10 * S);
  expect_phase(&r, OCT_HTTP_READING_HEAD);
  oct_http_rig_advance(&r, 1); /* who says nothing hears nothing */
  expect_phase(&r, OCT_HTTP_OVER);
  expect_wire(&r, "");
  oct_http_rig_stop(&r);
}

static void
idle_time(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, GET("/a") END);
  oct_http_rig_advance(&r, 900 * S);
  expect_phase(&r, OCT_HTTP_READING_HEAD);
  give(&r, "G"); /* the header's time begins here */
  oct_http_rig_advance(&r, 10 * S);
  give(&r, "ET /b HTTP/1.1\r\n" H END);
  expect_wire(&r, "GET /a | GET /b");
  oct_http_rig_advance(&r, 900 * S + 1);
  expect_phase(&r, OCT_HTTP_OVER);
  oct_http_rig_stop(&r);
}

static void
body_idle(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  r.shared.config.limits.body_rate = 1;
  g_autofree char *much = g_strnfill(1000, 'x');
  give(&r, POST("/a") "Content-Length: 1002\r\n\r\n");
  give(&r, much);
  oct_http_rig_advance(&r, 10 * S);
  expect_phase(&r, OCT_HTTP_READING_BODY);
  give(&r, "y");
  oct_http_rig_advance(&r, 10 * S);
  expect_phase(&r, OCT_HTTP_READING_BODY);
  oct_http_rig_advance(&r, 1);
  expect_events(&r, "head gone:timeout");
  expect_wire(&r, "408");
  oct_http_rig_stop(&r);
}

static void
body_rate(void) {
  g_autofree char *second = g_strnfill(1024, 'x');
  oct_http_rig r;
  oct_http_rig_start(&r);
  /* Nothing is asked of the first five seconds; then it is the average that counts. */
  give(&r, POST("/a") "Content-Length: 100000\r\n\r\n");
  oct_http_rig_advance(&r, 5 * S);
  expect_phase(&r, OCT_HTTP_READING_BODY);
  for (int i = 0; i < 7; i++)
    give(&r, second);
  oct_http_rig_advance(&r, 2 * S);
  expect_phase(&r, OCT_HTTP_READING_BODY);
  for (int i = 0; i < 20; i++) {
    give(&r, second);
    oct_http_rig_advance(&r, S);
  }
  expect_phase(&r, OCT_HTTP_READING_BODY);
  oct_http_rig_advance(&r, 1);
  expect_events(&r, "head gone:timeout");
  expect_wire(&r, "408");
  oct_http_rig_stop(&r);
}

static void
body_without_haste(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, POST("/a") "Content-Length: 100000\r\n\r\n");
  oct_http_rig_advance(&r, 5 * S + 1);
  expect_events(&r, "head gone:timeout");
  oct_http_rig_stop(&r);
}

/* A stream whose client does not read, with so many bytes in its queue. */
static oct_http_exchange *
fill_queue(oct_http_rig *r, gsize size) {
  g_autofree char *piece = g_strnfill(65536, 'x');
  give(r, GET("/stream") END);
  oct_http_exchange *x = oct_http_test_first(&r->h);
  r->window = 0;
  for (int i = 0; i < 3; i++)
    g_assert_true(oct_http_stream_write(x, piece, 65536));
  gsize rest = size - oct_http_connection_pending(&r->x).size;
  g_assert_true(oct_http_stream_write(x, piece, rest - 6 - 2)); /* "ffe5\r\n", "\r\n" */
  g_assert_cmpuint(oct_http_connection_pending(&r->x).size, ==, size);
  return x;
}

static void
queue_limit(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  gsize max = r.shared.config.limits.queue_bytes;
  oct_http_exchange *x = fill_queue(&r, max);
  r.window = 6; /* a piece of one byte takes six: as many go */
  g_assert_true(oct_http_stream_write(x, "x", 1));
  g_assert_cmpuint(oct_http_connection_pending(&r.x).size, ==, max);
  expect_events(&r, "head request");
  oct_http_rig_stop(&r);
  oct_http_rig_start(&r);
  x = fill_queue(&r, max - 5);
  g_assert_false(oct_http_stream_write(x, "x", 1)); /* one above */
  g_assert_false(oct_http_stream_write(x, "x", 1));
  expect_events(&r, "head request");
  oct_http_rig_pump(&r);
  expect_events(&r, "head request gone:stalled");
  expect_phase(&r, OCT_HTTP_OVER);
  g_assert_true(r.x.reset);
  oct_http_rig_stop(&r);
}

static void
ended_while_cut(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, GET("/stream") END);
  g_autofree char *piece = g_strnfill(300000, 'x');
  r.window = 0;
  g_assert_false(oct_http_stream_write(oct_http_test_first(&r.h), piece, 300000));
  oct_http_test_end(&r.h);
  oct_http_rig_pump(&r);
  /* The handler was done: it hears nothing more. */
  expect_events(&r, "head request");
  expect_phase(&r, OCT_HTTP_OVER);
  oct_http_rig_stop(&r);
}

static void
stall_time(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, GET("/stream") END);
  oct_http_rig_advance(&r, 3600 * S); /* a quiet stream is no stall */
  r.window = 2;
  g_assert_true(oct_http_stream_write(oct_http_test_first(&r.h), "hello", 5));
  oct_http_rig_pump(&r);
  oct_http_rig_advance(&r, 30 * S);
  expect_events(&r, "head request");
  r.window = 1; /* a byte that goes starts it again */
  oct_http_rig_pump(&r);
  oct_http_rig_advance(&r, 30 * S);
  expect_events(&r, "head request");
  oct_http_rig_advance(&r, 1);
  expect_events(&r, "head request gone:stalled");
  expect_phase(&r, OCT_HTTP_OVER);
  oct_http_rig_stop(&r);
  oct_http_rig_start(&r);
  r.window = 5; /* a whole answer: the handler is done, the connection is cut */
  give(&r, GET("/a") END);
  oct_http_rig_advance(&r, 30 * S + 1);
  expect_events(&r, "head request");
  expect_phase(&r, OCT_HTTP_OVER);
  oct_http_rig_stop(&r);
}

/* --- ends ------------------------------------------------------------------------------------- */

typedef void (*end_fn)(oct_http_exchange *x);

static void
end_in_each_state(void) {
  static const struct {
    const char *bytes, *events, *phase_events;
  } states[] = {
      {"", "", ""},
      {"GET ", "", ""},
      {POST("/wait") "Content-Length: 5\r\n\r\nhe", "head", "head gone:%s"},
      {POST("/wait") "Content-Length: 2\r\n\r\nhe", "head request", "head request gone:%s"},
      {GET("/wait") END "GET ", "head request", "head request gone:%s"},
      {GET("/stream") END, "head request", "head request gone:%s"},
      {GET("/stream") END GET("/b") END, "head request", "head request gone:%s"},
      {GET("/a") END, "head request", "head request"},
  };
  static const struct {
    end_fn end;
    const char *why;
  } ends[] = {
      {oct_http_connection_hung_up, "left"},
      {oct_http_connection_broken, "left"},
      {oct_http_connection_abort, "aborted"},
  };
  for (gsize s = 0; s < G_N_ELEMENTS(states); s++)
    for (gsize e = 0; e < G_N_ELEMENTS(ends); e++) {
      oct_http_rig r;
      oct_http_rig_start(&r);
      give(&r, states[s].bytes);
      expect_events(&r, states[s].events);
      ends[e].end(&r.x);
      oct_http_rig_pump(&r);
      GString *wanted = g_string_new(states[s].phase_events);
      g_string_replace(wanted, "%s", ends[e].why, 0);
      expect_events(&r, wanted->str);
      expect_phase(&r, OCT_HTTP_OVER);
      g_assert_cmpuint(r.shared.counts.exchanges, ==, 0);
      g_string_free(wanted, TRUE);
      oct_http_rig_stop(&r);
    }
}

static void
half_close_lets_answers_out(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  r.window = 10;
  give(&r, GET("/a") END);
  oct_http_connection_hung_up(&r.x);
  expect_phase(&r, OCT_HTTP_ANSWERED);
  r.window = G_MAXSIZE;
  oct_http_rig_pump(&r);
  expect_wire(&r, "GET /a");
  expect_phase(&r, OCT_HTTP_OVER);
  oct_http_rig_stop(&r);
}

static void
drains(void) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  give(&r, GET("/wait") END GET("/b") END);
  r.shared.draining = TRUE;
  oct_http_rig_pump(&r);
  expect_phase(&r, OCT_HTTP_ASKED);
  oct_http_test_answer(&r.h, "done");
  oct_http_rig_pump(&r);
  expect_wire(&r, "done");
  expect_events(&r, "head request");
  g_assert_nonnull(strstr(r.wire->str, "Connection: close"));
  expect_phase(&r, OCT_HTTP_LINGERING);
  oct_http_rig_stop(&r);
  oct_http_rig_start(&r);
  give(&r, GET("/a") END);
  r.shared.draining = TRUE;
  oct_http_rig_pump(&r);
  expect_phase(&r, OCT_HTTP_LINGERING);
  oct_http_rig_stop(&r);
}

/* Every allocation fails once: the exchange still ends once, and nothing leaks. */
static void
no_memory(void) {
  static const char requests[] = POST("/stream") "Content-Length: 3\r\n\r\nabc" GET("/wait") END;
  g_autofree char *large = g_strnfill(20000, 'x');
  for (guint64 nth = 1; nth <= 16; nth++) {
    oct_http_rig r;
    oct_http_rig_start(&r);
    oct_budget_fail_at(r.budget, nth);
    oct_http_rig_give(&r, requests, sizeof requests - 1);
    for (int i = 0; i < 2 && r.h.open->len > 0 && r.x.phase == OCT_HTTP_STREAMING; i++) {
      r.window = 0;
      (void)!oct_http_stream_write(oct_http_test_first(&r.h), large, 20000);
      oct_http_rig_pump(&r);
    }
    r.window = G_MAXSIZE;
    oct_http_rig_pump(&r);
    if (r.h.open->len > 0 && r.x.phase == OCT_HTTP_STREAMING)
      oct_http_test_end(&r.h);
    oct_http_rig_pump(&r);
    if (r.h.open->len > 0)
      oct_http_test_answer(&r.h, "b");
    oct_http_rig_pump(&r);
    oct_http_rig_stop(&r);
  }
  oct_http_rig r;
  oct_http_rig_prepare(&r, 100);
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_http_connection_init(&r.x, &r.shared, "test", &error));
  g_assert_nonnull(error);
  oct_budget_free(r.budget);
  oct_http_test_handler_clear(&r.h);
  g_string_free(r.wire, TRUE);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
#define T(name, function) g_test_add_func("/http/connection/" name, function)
  T("serves-one-request-after-the-other", keeps_alive);
  T("a-pipelined-request-waits-for-the-answer-before-it", one_at_a_time);
  T("a-pipelined-request-waits-until-that-is-sent", waits_until_sent);
  T("reads-4-kib-ahead-and-no-more", reads_ahead_a_little);
  T("a-refusal-from-the-head-reads-no-body", refused_from_head);
  T("a-malformed-body-is-gone-and-answered", refused_by_parser);
  T("asks-by-unknown-names-are-misdirected", hosts);
  T("100-continue-goes-out-unless-refused", hundred);
  T("closes-when-the-client-asks", closes_when_asked);
  T("http-1.0-streams-end-with-the-connection", old_clients);
  T("head-requests-get-no-body", heads_have_no_body);
  T("header-values-cannot-split-an-answer", no_injection);
  T("errors-have-openai's-shape", error_shape);
  T("request-ids-are-echoed-when-tokens-else-made", request_ids);
  T("stream-pieces-are-chunks", stream_pieces);
  T("a-stream-allocates-nothing-per-event", nothing_allocated);
  T("a-head-has-10-s-in-all", header_time);
  T("an-idle-connection-has-900-s", idle_time);
  T("a-body-may-rest-10-s", body_idle);
  T("a-body-comes-at-1-kib-per-s-after-5-s", body_rate);
  T("a-body-that-does-not-begin-has-5-s", body_without_haste);
  T("a-stream-queues-256-kib", queue_limit);
  T("a-handler-that-ends-a-cut-stream-hears-no-more", ended_while_cut);
  T("a-reader-may-rest-30-s", stall_time);
  T("an-end-in-each-state-is-told-once", end_in_each_state);
  T("a-half-close-lets-an-answer-out", half_close_lets_answers_out);
  T("a-draining-server-closes-behind-answers", drains);
  T("a-failed-allocation-anywhere-is-survived", no_memory);
#undef T
  return g_test_run();
}
