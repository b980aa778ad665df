/* Exchanges with a server whose answers are canned: good ones, and every way to fail. */
#include <string.h>
#include <unistd.h>

#include "client/http.h"
#include "tests/client/canned.h"

#define LONG_NS (G_GINT64_CONSTANT(20000000000)) /* a test that waits so long has failed */

typedef struct caught {
  GString *body;
  char *type, *message;
  guint pieces, done;
  int status;
  oct_failure failure;
  guint stop_after; /* pieces; 0 = never */
} caught;

static gboolean
on_head(void *user, int status, const char *type) {
  caught *c = user;
  c->status = status;
  c->type = g_strdup(type);
  return TRUE;
}

static gboolean
on_data(void *user, const char *bytes, gsize n, gint64 now_ns) {
  caught *c = user;
  g_assert_cmpint(now_ns, >, 0);
  g_string_append_len(c->body, bytes, (gssize)n);
  c->pieces++;
  return c->pieces != c->stop_after;
}

static void
on_done(void *user, const oct_exchange_end *end) {
  caught *c = user;
  c->done++;
  c->status = end->status;
  c->failure = end->failure;
  c->message = g_strdup(end->message);
  g_assert_cmpint(end->ended_ns, >=, end->started_ns);
}

static oct_exchange *
ask(oct_client *client, caught *c, const char *body) {
  c->body = g_string_new(NULL);
  return oct_client_start(client, &(oct_call){.path = "/v1/x",
                                              .body = g_strdup(body),
                                              .body_bytes = body != NULL ? strlen(body) : 0,
                                              .user = c,
                                              .head = on_head,
                                              .data = on_data,
                                              .done = on_done});
}

static void
wait_for(oct_client *client, const caught *c) {
  gint64 end = oct_client_now_ns() + LONG_NS;
  while (c->done == 0 && oct_client_now_ns() < end)
    oct_client_poll(client, end);
  g_assert_cmpuint(c->done, ==, 1);
}

static void
drop(caught *c) {
  g_string_free(c->body, TRUE);
  g_free(c->type);
  g_free(c->message);
  memset(c, 0, sizeof *c);
}

static oct_client *
new_client(const char *url) {
  oct_client_options o;
  oct_client_options_default(&o);
  o.url = url;
  g_autoptr(GError) error = NULL;
  oct_client *client = oct_client_new(&o, &error);
  g_assert_no_error(error);
  return client;
}

/* ---------------------------------------------------------------- answers */

typedef struct row {
  const char *name;
  canned_step steps[CANNED_STEPS_MAX];
  oct_failure failure;
  int status;
  const char *body;
} row;

#define CHUNKED "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
#define SEND(text)                                                                                 \
  { CANNED_SEND, text }
#define PAUSE                                                                                      \
  { CANNED_PAUSE, NULL }
#define CLOSE                                                                                      \
  { CANNED_CLOSE, NULL }
#define RESET                                                                                      \
  { CANNED_RESET, NULL }

static const row rows[] = {
    {"length", {SEND("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")}, 0, 200, "hello"},
    {"chunks", {SEND(CHUNKED "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n")}, 0, 200, "hello"},
    {"chunks-cut-anywhere",
     {SEND(CHUNKED "2"), PAUSE, SEND("\r\nh"), PAUSE, SEND("e\r\n3\r"), PAUSE,
      SEND("\nllo\r\n0\r\n"), PAUSE, SEND("\r\n")},
     0,
     200,
     "hello"},
    {"chunk-extension", {SEND(CHUNKED "5;a=b\r\nhello\r\n0\r\n\r\n")}, 0, 200, "hello"},
    {"until-close",
     {SEND("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"), CLOSE},
     0,
     200,
     "hello"},
    {"no-body", {SEND("HTTP/1.1 204 No Content\r\n\r\n")}, 0, 204, ""},
    {"status", {SEND("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno")}, 0, 404, "no"},
    {"continue-first",
     {SEND("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")},
     0,
     200,
     "ok"},
    {"truncated-chunk", {SEND(CHUNKED "5\r\nhel"), CLOSE}, OCT_FAILURE_TRUNCATED, 200, "hel"},
    {"no-last-chunk", {SEND(CHUNKED "5\r\nhello\r\n"), CLOSE}, OCT_FAILURE_TRUNCATED, 200, "hello"},
    {"truncated-length",
     {SEND("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"), CLOSE},
     OCT_FAILURE_TRUNCATED,
     200,
     "hello"},
    {"malformed-chunk", {SEND(CHUNKED "zz\r\nhello\r\n"), CLOSE}, OCT_FAILURE_PROTOCOL, 200, ""},
    {"not-http", {SEND("220 smtp ready\r\n"), CLOSE}, OCT_FAILURE_PROTOCOL, 0, ""},
    {"closed-unanswered", {CLOSE}, OCT_FAILURE_EMPTY, 0, ""},
    {"reset-unanswered", {RESET}, OCT_FAILURE_RESET, 0, ""},
    {"reset-in-body",
     {SEND(CHUNKED "5\r\nhello\r\n"), PAUSE, RESET},
     OCT_FAILURE_RESET,
     200,
     "hello"},
};

static void
answer_row(void *user, const char *request, guint number, canned_step *steps) {
  const row *r = user;
  (void)request;
  (void)number;
  memcpy(steps, r->steps, sizeof r->steps);
}

static void
test_row(gconstpointer data) {
  const row *r = data;
  row copy = *r;
  g_autoptr(canned) server = canned_new(NULL, answer_row, &copy);
  g_autoptr(oct_client) client = new_client(canned_url(server));
  caught c = {0};
  ask(client, &c, "{}");
  wait_for(client, &c);
  g_assert_cmpstr(oct_failure_name(c.failure), ==, oct_failure_name(r->failure));
  g_assert_cmpint(c.status, ==, r->status);
  g_assert_cmpstr(c.body->str, ==, r->body);
  g_assert_cmpint(*c.message != '\0', ==, r->failure != OCT_FAILURE_NONE);
  g_assert_cmpuint(oct_client_n_open(client), ==, 0);
  drop(&c);
}

/* ---------------------------------------------------------------- what is sent */

/* Answers with the request itself. */
static void
answer_echo(void *user, const char *request, guint number, canned_step *steps) {
  GPtrArray *kept = user;
  (void)number;
  char *text = canned_plain("200 OK", "text/plain", request);
  g_ptr_array_add(kept, text);
  steps[0] = (canned_step){CANNED_SEND, text};
}

static void
test_request(void) {
  g_autoptr(GPtrArray) kept = g_ptr_array_new_with_free_func(g_free);
  g_autoptr(canned) server = canned_new(NULL, answer_echo, kept);
  g_autofree char *url = g_strconcat(canned_url(server), "/deep/v1/", NULL);
  const char *const headers[] = {"X-One: 1", "X-Two: b c", NULL};
  oct_client_options o;
  oct_client_options_default(&o);
  o.url = url;
  o.api_key = "secret";
  o.headers = headers;
  g_autoptr(oct_client) client = oct_client_new(&o, NULL);
  caught c = {0};
  ask(client, &c, "{\"a\":1}");
  wait_for(client, &c);
  g_assert_true(g_str_has_prefix(c.body->str, "POST /deep/v1/x HTTP/1.1\r\n"));
  g_assert_nonnull(strstr(c.body->str, "\r\nAuthorization: Bearer secret\r\n"));
  g_assert_nonnull(strstr(c.body->str, "\r\nX-One: 1\r\n"));
  g_assert_nonnull(strstr(c.body->str, "\r\nX-Two: b c\r\n"));
  g_assert_nonnull(strstr(c.body->str, "\r\nContent-Type: application/json\r\n"));
  g_assert_null(strstr(c.body->str, "Expect"));
  g_assert_true(g_str_has_suffix(c.body->str, "\r\n\r\n{\"a\":1}"));
  g_assert_cmpstr(c.type, ==, "text/plain");
  drop(&c);
  ask(client, &c, NULL);
  wait_for(client, &c);
  g_assert_true(g_str_has_prefix(c.body->str, "GET /deep/v1/x HTTP/1.1\r\n"));
  drop(&c);
  g_assert_cmpuint(canned_n_connections(server), ==, 1); /* kept alive */
}

static void
test_many(void) {
  enum { N = 300 };
  g_autoptr(GPtrArray) kept = g_ptr_array_new_with_free_func(g_free);
  g_autoptr(canned) server = canned_new(NULL, answer_echo, kept);
  g_autoptr(oct_client) client = new_client(canned_url(server));
  static caught all[N];
  for (guint i = 0; i < N; i++) {
    g_autofree char *body = g_strdup_printf("{\"i\":%u}", i);
    ask(client, &all[i], body);
  }
  g_assert_cmpuint(oct_client_n_open(client), ==, N);
  for (guint i = 0; i < N; i++) {
    g_autofree char *body = g_strdup_printf("\r\n\r\n{\"i\":%u}", i);
    wait_for(client, &all[i]);
    g_assert_cmpint(all[i].failure, ==, OCT_FAILURE_NONE);
    g_assert_true(g_str_has_suffix(all[i].body->str, body));
    drop(&all[i]);
  }
  g_assert_cmpuint(canned_n_requests(server), ==, N);
}

static void
test_unix_socket(void) {
  g_autofree char *folder = g_dir_make_tmp("oct-XXXXXX", NULL);
  g_autofree char *path = g_build_filename(folder, "s", NULL);
  g_autoptr(GPtrArray) kept = g_ptr_array_new_with_free_func(g_free);
  canned *server = canned_new(path, answer_echo, kept);
  oct_client *client = new_client(canned_url(server));
  g_autofree char *body = oct_client_get(client, "/v1/models", oct_client_now_ns() + LONG_NS, NULL);
  g_assert_true(g_str_has_prefix(body, "GET /v1/models HTTP/1.1\r\n"));
  canned_free(server);
  /* Fails at once: nothing else will ever happen. */
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_client_get(client, "/v1/models", G_MAXINT64, &error));
  g_assert_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER);
  g_assert_nonnull(strstr(error->message, "connection refused"));
  oct_client_free(client);
  rmdir(folder);
}

/* ---------------------------------------------------------------- failures of the way there */

static void
test_refused(void) {
  canned *server = canned_new(NULL, answer_echo, NULL);
  g_autofree char *url = g_strdup(canned_url(server));
  canned_free(server);
  g_autoptr(oct_client) client = new_client(url);
  caught c = {0};
  ask(client, &c, "{}");
  wait_for(client, &c);
  g_assert_cmpint(c.failure, ==, OCT_FAILURE_REFUSED);
  drop(&c);
}

static void
test_unknown_host(void) {
  g_autoptr(oct_client) client = new_client("http://no-such-host.invalid");
  caught c = {0};
  ask(client, &c, "{}");
  wait_for(client, &c);
  g_assert_cmpint(c.failure, ==, OCT_FAILURE_RESOLVE);
  drop(&c);
}

static void
answer_hang(void *user, const char *request, guint number, canned_step *steps) {
  (void)request;
  (void)number;
  steps[0] = (canned_step){CANNED_SEND, user != NULL ? CHUNKED "2\r\nhe\r\n" : ""};
  steps[1] = (canned_step){CANNED_HANG, NULL};
}

/* The body that came until the time was over; owned. */
static char *
body_within(const canned *server, guint32 timeout_ms) {
  oct_client_options o;
  oct_client_options_default(&o);
  o.url = canned_url(server);
  o.total_timeout_ms = timeout_ms;
  g_autoptr(oct_client) client = oct_client_new(&o, NULL);
  caught c = {0};
  ask(client, &c, "{}");
  wait_for(client, &c);
  g_assert_cmpint(c.failure, ==, OCT_FAILURE_TIMEOUT);
  char *body = g_strdup(c.body->str);
  drop(&c);
  return body;
}

static void
test_timeout(gconstpointer data) {
  g_autoptr(canned) server = canned_new(NULL, answer_hang, (void *)data);
  guint32 timeout_ms = 30;
  g_autofree char *body = body_within(server, timeout_ms);
  /* On a slow machine the answer may not have begun. */
  while (data != NULL && body[0] == '\0' && timeout_ms < 10000) {
    g_free(body);
    body = body_within(server, timeout_ms *= 3);
  }
  g_assert_cmpstr(body, ==, data != NULL ? "he" : "");
}

static void
test_idle(void) {
  g_autoptr(canned) server = canned_new(NULL, answer_hang, "x");
  oct_client_options o;
  oct_client_options_default(&o);
  o.url = canned_url(server);
  o.idle_timeout_ms = 1;
  g_autoptr(oct_client) client = oct_client_new(&o, NULL);
  caught c = {0};
  ask(client, &c, "{}");
  wait_for(client, &c);
  g_assert_cmpint(c.failure, ==, OCT_FAILURE_TIMEOUT);
  drop(&c);
}

static void
test_cancel(void) {
  g_autoptr(canned) server = canned_new(NULL, answer_hang, "x");
  g_autoptr(oct_client) client = new_client(canned_url(server));
  caught c = {0};
  oct_exchange *x = ask(client, &c, "{}");
  while (c.body->len == 0)
    oct_client_poll(client, oct_client_now_ns() + LONG_NS);
  oct_client_cancel(client, x);
  g_assert_cmpuint(c.done, ==, 1);
  g_assert_cmpint(c.failure, ==, OCT_FAILURE_CANCELLED);
  drop(&c);
  /* A callback ends it too. */
  c.stop_after = 1;
  ask(client, &c, "{}");
  wait_for(client, &c);
  g_assert_cmpint(c.failure, ==, OCT_FAILURE_CANCELLED);
  drop(&c);
  /* And freeing the client ends what is out without a word. */
  ask(client, &c, "{}");
  g_clear_pointer(&client, oct_client_free);
  g_assert_cmpuint(c.done, ==, 0);
  drop(&c);
}

/* A kept connection that the server has closed is replaced. */
static void
answer_close_behind(void *user, const char *request, guint number, canned_step *steps) {
  (void)user;
  (void)request;
  (void)number;
  steps[0] = (canned_step){CANNED_SEND, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"};
  steps[1] = (canned_step){CANNED_CLOSE, NULL};
}

static void
test_closed_between(void) {
  g_autoptr(canned) server = canned_new(NULL, answer_close_behind, NULL);
  g_autoptr(oct_client) client = new_client(canned_url(server));
  for (guint i = 0; i < 5; i++) {
    caught c = {0};
    ask(client, &c, "{}");
    wait_for(client, &c);
    g_assert_cmpint(c.failure, ==, OCT_FAILURE_NONE);
    drop(&c);
  }
  g_assert_cmpuint(canned_n_connections(server), ==, 5);
}

/* ---------------------------------------------------------------- addresses */

static void
test_urls(void) {
  static const char *const good[][2] = {
      {"http://h:1", "http://h:1"},
      {"h:8000", "http://h:8000"},
      {"http://h:1/v1", "http://h:1"},
      {"http://h:1/a/v1/", "http://h:1/a"},
      {"http://[::1]:8", "http://[::1]:8"},
      {"https://h/a/", "https://h/a"},
      {"unix:/a/b", "/a/b"},
      {"unix:///a/b", "/a/b"},
      {"localhost", "http://localhost"},
  };
  static const char *const bad[] = {"ftp://h",       "http://",     "http://h:99999", "http://u@h",
                                    "http://h/?a=b", "http://h/#a", "unix:",          ""};
  oct_client_options o;
  oct_client_options_default(&o);
  for (gsize i = 0; i < G_N_ELEMENTS(good); i++) {
    g_autoptr(oct_client) client = new_client(good[i][0]);
    g_assert_cmpstr(oct_client_url(client), ==, good[i][1]);
  }
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
    g_autoptr(GError) error = NULL;
    o.url = bad[i];
    g_assert_null(oct_client_new(&o, &error));
    g_assert_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_OPTION);
  }
}

static void
test_headers(void) {
  static const char *const bad[] = {"none", ": x", "a b: c", "a: b\r\nc: d"};
  oct_client_options o;
  oct_client_options_default(&o);
  o.url = "http://h";
  for (gsize i = 0; i <= G_N_ELEMENTS(bad); i++) {
    const char *const headers[] = {i < G_N_ELEMENTS(bad) ? bad[i] : NULL, NULL};
    g_autoptr(GError) error = NULL;
    o.headers = headers;
    o.api_key = i < G_N_ELEMENTS(bad) ? NULL : "a\nb";
    g_assert_null(oct_client_new(&o, &error));
    g_assert_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_OPTION);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autofree char *path = g_strconcat("/http/answer/", rows[i].name, NULL);
    g_test_add_data_func(path, &rows[i], test_row);
  }
  g_test_add_func("/http/request-is-as-asked", test_request);
  g_test_add_func("/http/many-at-once-are-kept-apart", test_many);
  g_test_add_func("/http/unix-socket", test_unix_socket);
  g_test_add_func("/http/failure/refused", test_refused);
  g_test_add_func("/http/failure/unknown-host", test_unknown_host);
  g_test_add_data_func("/http/failure/timeout-unanswered", NULL, test_timeout);
  g_test_add_data_func("/http/failure/timeout-in-body", "x", test_timeout);
  g_test_add_func("/http/failure/nothing-comes", test_idle);
  g_test_add_func("/http/cancelled-anywhere", test_cancel);
  g_test_add_func("/http/closed-between-requests", test_closed_between);
  g_test_add_func("/http/urls", test_urls);
  g_test_add_func("/http/headers", test_headers);
  return g_test_run();
}
