/* The server over real sockets, in the test's time. Nothing here waits for a clock: what a turn
 * does not see at once is polled for, with a bound that only a failure reaches. */
#include "config.h"

#include "engine/http/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/engine/http/handler.h"
#include "tests/engine/http/probes.h"

#define S         G_GINT64_CONSTANT(1000000000)
#define H         "Host: a\r\n"
#define END       "\r\n"
#define GET(p)    "GET " p " HTTP/1.1\r\n" H
#define POST(p)   "POST " p " HTTP/1.1\r\n" H
#define POLLS_MAX 5000 /* of a millisecond each */
#define SHORT_MAX 400  /* bytes of a probe that is also sent byte by byte */
#define SLOW      1500
#define STALLED   50

typedef struct rig {
  oct_http_test_handler h;
  oct_budget *budget;
  oct_http_server_config config;
  oct_http_server *server;
  guint16 port;
} rig;

static void
start_config(rig *r) {
  g_autoptr(GError) error = NULL;
  r->server = oct_http_server_new(&r->config, &error);
  g_assert_no_error(error);
  g_assert_true(oct_http_server_listen(r->server, "127.0.0.1", 0, &r->port, &error));
  g_assert_no_error(error);
}

static void
prepare(rig *r) {
  memset(r, 0, sizeof *r);
  oct_http_test_handler_init(&r->h);
  r->budget = oct_budget_new("server", 256 << 20);
  r->config = oct_http_test_config(&r->h, r->budget);
}

static void
start(rig *r) {
  prepare(r);
  start_config(r);
}

static void
stop(rig *r) {
  oct_http_server_free(r->server);
  g_assert_cmpuint(oct_budget_used(r->budget), ==, 0);
  oct_budget_free(r->budget);
  oct_http_test_handler_clear(&r->h);
}

static gboolean
is_readable(int fd, int ms) {
  struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
  return poll(&poll_fd, 1, ms) > 0;
}

/* Turns until there is nothing to do. */
static void
turn(rig *r) {
  do
    oct_http_server_turn(r->server);
  while (is_readable(oct_http_server_fd(r->server), 0) ||
         oct_http_server_deadline(r->server) <= r->h.now_ns);
}

static void
advance(rig *r, gint64 ns) {
  r->h.now_ns += ns;
  turn(r);
}

static int
dial(const rig *r) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(r->port)};
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  g_assert_cmpint(fd, >=, 0);
  g_assert_cmpint(connect(fd, (struct sockaddr *)&at, sizeof at), ==, 0);
  g_assert_cmpint(fcntl(fd, F_SETFL, O_NONBLOCK), ==, 0);
  /* Else a byte waits until the one before it is acknowledged. */
  const int on = 1;
  g_assert_cmpint(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), ==, 0);
  return fd;
}

/* What has come; TRUE at the end of the connection, or a reset. */
static gboolean
hear(int fd, GString *into) {
  char bytes[65536];
  for (;;) {
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN))
      return TRUE;
    if (n < 0)
      return FALSE;
    g_string_append_len(into, bytes, n);
  }
}

/* Turns until the condition holds. */
#define UNTIL(r, condition)                                                                        \
  do {                                                                                             \
    int polls = 0;                                                                                 \
    for (turn(r); !(condition) && polls < POLLS_MAX; polls++, turn(r))                             \
      (void)is_readable(oct_http_server_fd((r)->server), 1);                                       \
    g_assert_true(condition);                                                                      \
  } while (0)

static gboolean
has_event(const rig *r, const char *events) {
  return g_str_equal(r->h.events->str, events);
}

static guint
open_connections(const rig *r) {
  return oct_http_server_counts(r->server).connections;
}

static void
say(rig *r, int fd, const char *text) {
  g_assert_cmpint(send(fd, text, strlen(text), MSG_NOSIGNAL), ==, (ssize_t)strlen(text));
  turn(r);
}

/* Turns until the client has read these answers. */
static void
expect_answers(rig *r, int fd, const char *answers) {
  g_autoptr(GString) wire = g_string_new(NULL);
  g_autoptr(GString) text = g_string_new(NULL);
  for (int polls = 0; polls < POLLS_MAX && !g_str_equal(text->str, answers); polls++) {
    turn(r);
    if (!is_readable(fd, 1))
      continue;
    gboolean ended = hear(fd, wire);
    g_string_truncate(text, 0);
    oct_http_test_read(wire->str, wire->len, FALSE, text);
    if (ended)
      break;
  }
  g_assert_cmpstr(text->str, ==, answers);
}

/* --- probes ----------------------------------------------------------------------------------- */

/* Sends as much as the server takes, in pieces, and hears what it says meanwhile. */
static void
talk(rig *r, int fd, const GString *bytes, gsize piece, GString *wire) {
  gboolean ended = FALSE;
  int full = 0;
  for (gsize at = 0; at < bytes->len && !ended && full < POLLS_MAX;) {
    ssize_t n = send(fd, bytes->str + at, MIN(piece, bytes->len - at), MSG_NOSIGNAL);
    ended = n < 0 && errno != EAGAIN;
    full = n < 0 && !ended ? full + 1 : 0;
    at += n > 0 ? (gsize)n : 0;
    turn(r);
    ended = hear(fd, wire) || ended;
  }
  turn(r);
  hear(fd, wire);
}

static void
probe_pieces(const oct_http_probe *probe, gsize piece) {
  rig r;
  start(&r);
  g_autoptr(GString) bytes = oct_http_probe_spell(probe);
  g_autoptr(GString) wire = g_string_new(NULL);
  g_autoptr(GString) text = g_string_new(NULL);
  gboolean heads = g_str_has_prefix(probe->bytes, "HEAD ");
  gboolean waits = g_str_equal(probe->expected, "head") || g_str_equal(probe->expected, "body");
  const char *expected = waits ? "" : heads ? "200" : probe->expected;
  int fd = dial(&r);
  talk(&r, fd, bytes, MIN(piece, bytes->len), wire);
  for (int polls = 0; polls < POLLS_MAX; polls++) {
    g_string_truncate(text, 0);
    oct_http_test_read(wire->str, wire->len, heads, text);
    if (g_str_equal(text->str, expected))
      break;
    (void)is_readable(oct_http_server_fd(r.server), 1);
    turn(&r);
    hear(fd, wire);
  }
  g_assert_cmpstr(text->str, ==, expected);
  close(fd);
  UNTIL(&r, open_connections(&r) == 0);
  stop(&r);
}

static void
probe_one(gconstpointer data) {
  const oct_http_probe *probe = data;
  probe_pieces(probe, G_MAXSIZE);
  if (probe->unit == NULL && probe->size <= SHORT_MAX)
    probe_pieces(probe, 1);
}

/* --- clients that leave ----------------------------------------------------------------------- */

typedef enum leaving { FIN, RST, HALF, LEAVINGS } leaving;

static void
leave(int fd, leaving how) {
  const struct linger at_once = {1, 0};
  if (how == RST)
    g_assert_cmpint(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), ==, 0);
  if (how == HALF)
    g_assert_cmpint(shutdown(fd, SHUT_WR), ==, 0);
  else
    close(fd);
}

/* No moment passes: it is the end itself that is seen. */
static void
left_in_each_state(void) {
  static const struct {
    const char *request, *before, *after;
  } states[] = {
      {POST("/wait") "Content-Length: 9\r\n\r\nhe", "head", "head gone:left"},
      {GET("/wait") END, "head request", "head request gone:left"},
      {POST("/wait") "Content-Length: 2\r\n\r\nhe", "head request", "head request gone:left"},
      {GET("/stream") END, "head request", "head request gone:left"},
      {GET("/wait") END GET("/b") END, "head request", "head request gone:left"},
      {GET("/stream") END GET("/b") END, "head request", "head request gone:left"},
  };
  for (gsize s = 0; s < G_N_ELEMENTS(states); s++)
    for (leaving how = 0; how < LEAVINGS; how++) {
      rig r;
      start(&r);
      int fd = dial(&r);
      say(&r, fd, states[s].request);
      UNTIL(&r, has_event(&r, states[s].before));
      leave(fd, how);
      UNTIL(&r, has_event(&r, states[s].after));
      UNTIL(&r, open_connections(&r) == 0);
      if (how == HALF)
        close(fd);
      stop(&r);
    }
}

/* More pipelined bytes than the server reads ahead, and then the end. */
static void
left_behind_pipelined_bytes(void) {
  g_autofree char *junk = g_strnfill(20000, 'x');
  for (leaving how = 0; how < LEAVINGS; how++) {
    rig r;
    start(&r);
    int fd = dial(&r);
    say(&r, fd, GET("/stream") END);
    say(&r, fd, junk);
    UNTIL(&r, has_event(&r, "head request"));
    leave(fd, how);
    UNTIL(&r, has_event(&r, "head request gone:left"));
    if (how == HALF)
      close(fd);
    stop(&r);
  }
}

/* An end could not get through a full window, so that a client that fills it is cut. */
static void
floods_behind_a_request(void) {
  rig r;
  start(&r);
  g_autoptr(GString) junk = g_string_new(NULL);
  g_autoptr(GString) wire = g_string_new(NULL);
  for (int i = 0; i < 200000; i++)
    g_string_append_c(junk, 'x');
  int fd = dial(&r);
  say(&r, fd, GET("/wait") END);
  talk(&r, fd, junk, 1000, wire);
  UNTIL(&r, has_event(&r, "head request gone:left"));
  close(fd);
  stop(&r);
}

/* A refusal reaches a client that closes its half before it reads, and no reset follows. */
static void
refusal_is_read(void) {
  rig r;
  start(&r);
  char bytes[4096];
  ssize_t n, all = 0;
  int fd = dial(&r);
  say(&r, fd, POST("/refuse") "Content-Length: 9\r\n\r\nhe");
  UNTIL(&r, oct_http_server_counts(r.server).exchanges == 0);
  turn(&r);
  leave(fd, HALF);
  UNTIL(&r, open_connections(&r) == 0);
  g_assert_true(is_readable(fd, 1000));
  while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
    all += n;
  g_assert_cmpint(n, ==, 0);
  g_assert_cmpint(all, >, 100);
  close(fd);
  stop(&r);
}

static void
stalled_readers(void) {
  rig r;
  start(&r);
  int fds[STALLED];
  for (int i = 0; i < STALLED; i++) {
    fds[i] = dial(&r);
    say(&r, fds[i], GET("/stream") END);
  }
  UNTIL(&r, r.h.open->len == STALLED);
  char piece[4096];
  memset(piece, 'x', sizeof piece);
  /* What the kernels of both sides hold is bounded; beyond it the queue's limit cuts. */
  gsize written = 0;
  for (; written < (16 << 20) && r.h.open->len > 0; written += sizeof piece) {
    for (guint i = 0; i < r.h.open->len; i++)
      (void)!oct_http_stream_write(g_ptr_array_index(r.h.open, i), piece, sizeof piece);
    turn(&r);
  }
  g_assert_cmpuint(r.h.open->len, ==, 0);
  oct_http_counts counts = oct_http_server_counts(r.server);
  g_assert_cmpuint(counts.gone[OCT_HTTP_GONE_STALLED], ==, STALLED);
  g_assert_cmpuint(counts.connections, ==, 0);
  g_test_message("cut after %" G_GSIZE_FORMAT " bytes each, %" G_GSIZE_FORMAT " bytes held",
                 written, oct_budget_peak(r.budget));
  g_assert_cmpuint(oct_budget_peak(r.budget), <, STALLED * (640u << 10));
  /* The kernels would hold far more of a send buffer that grows. */
  g_assert_cmpuint(written, <, 4u << 20);
  g_autoptr(GString) metrics = g_string_new(NULL);
  oct_http_server_write_metrics(r.server, metrics);
  g_assert_nonnull(strstr(metrics->str, "\noctet:http_gone_total{reason=\"stalled\"} 50\n"));
  g_assert_nonnull(strstr(metrics->str, "\noctet:http_requests_total 50\n"));
  for (int i = 0; i < STALLED; i++)
    close(fds[i]);
  stop(&r);
}

/* --- clients that are slow -------------------------------------------------------------------- */

static void
slow_heads(void) {
  static const char head[] = GET("/b");
  rig r;
  start(&r);
  g_autofree int *fds = g_new(int, SLOW);
  struct rlimit files;
  g_assert_cmpint(getrlimit(RLIMIT_NOFILE, &files), ==, 0);
  files.rlim_cur = files.rlim_max;
  if (files.rlim_max < 2 * SLOW + 100) {
    g_test_skip("fewer descriptors than two for each client");
    stop(&r);
    return;
  }
  g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &files), ==, 0);
  for (int i = 0; i < SLOW; i++) {
    fds[i] = dial(&r);
    if (i % 64 == 0)
      turn(&r);
  }
  UNTIL(&r, open_connections(&r) == SLOW);
  for (int at = 0; at < 5; at++) {
    for (int i = 0; i < SLOW; i++)
      g_assert_cmpint(send(fds[i], head + at, 1, MSG_NOSIGNAL), ==, 1);
    int good = dial(&r);
    say(&r, good, GET("/a") "Connection: close\r\n\r\n");
    expect_answers(&r, good, "GET /a");
    close(good);
    UNTIL(&r, open_connections(&r) == SLOW);
    advance(&r, 2 * S);
  }
  g_assert_cmpuint(open_connections(&r), ==, SLOW);
  advance(&r, 1);
  expect_answers(&r, fds[0], "408");
  g_assert_cmpuint(oct_http_server_counts(r.server).refused, ==, SLOW);
  /* They neither read nor leave: two seconds later they are gone as well. */
  advance(&r, 2 * S + 1);
  g_assert_cmpuint(open_connections(&r), ==, 0);
  for (int i = 0; i < SLOW; i++)
    close(fds[i]);
  stop(&r);
}

/* --- numbers of connections ------------------------------------------------------------------- */

static void
connection_limit(void) {
  rig r;
  prepare(&r);
  r.config.limits.connections = 3;
  start_config(&r);
  int fds[4];
  for (int i = 0; i < 4; i++)
    fds[i] = dial(&r);
  UNTIL(&r, oct_http_server_counts(r.server).turned_away == 1);
  g_assert_cmpuint(open_connections(&r), ==, 3);
  g_autoptr(GString) wire = g_string_new(NULL);
  UNTIL(&r, hear(fds[3], wire));
  g_assert_true(g_str_has_prefix(wire->str, "HTTP/1.1 503 "));
  say(&r, fds[2], GET("/a") END);
  expect_answers(&r, fds[2], "GET /a");
  close(fds[0]);
  close(fds[3]);
  UNTIL(&r, open_connections(&r) == 2);
  fds[0] = dial(&r);
  say(&r, fds[0], GET("/b") END);
  expect_answers(&r, fds[0], "GET /b");
  for (int i = 0; i < 3; i++)
    close(fds[i]);
  stop(&r);
}

static void
address_limit(void) {
  rig r;
  prepare(&r);
  r.config.limits.connections_per_address = 2;
  start_config(&r);
  int fds[3];
  for (int i = 0; i < 3; i++)
    fds[i] = dial(&r);
  UNTIL(&r, oct_http_server_counts(r.server).turned_away == 1);
  g_assert_cmpuint(open_connections(&r), ==, 2);
  close(fds[0]);
  UNTIL(&r, open_connections(&r) == 1);
  fds[0] = dial(&r);
  UNTIL(&r, open_connections(&r) == 2);
  for (int i = 0; i < 3; i++)
    close(fds[i]);
  stop(&r);
}

/* Descriptors run out: who comes is turned away, who is there is served, and later all is well. */
static void
no_descriptors(void) {
  rig r;
  start(&r);
  int first = dial(&r), other = dial(&r), fds[64], n = 0;
  UNTIL(&r, open_connections(&r) == 2);
  struct rlimit files, few;
  g_assert_cmpint(getrlimit(RLIMIT_NOFILE, &files), ==, 0);
  int waiting = dial(&r), another = dial(&r);
  while (n < 64 && (fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
    n++;
  few = files;
  few.rlim_cur = (rlim_t)fds[n - 1] + 1;
  g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &few), ==, 0);
  UNTIL(&r, oct_http_server_counts(r.server).turned_away == 2);
  say(&r, first, GET("/a") END);
  expect_answers(&r, first, "GET /a");
  g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &files), ==, 0);
  while (n > 0)
    close(fds[--n]);
  int late = dial(&r);
  say(&r, late, GET("/b") END);
  expect_answers(&r, late, "GET /b");
  close(first);
  close(other);
  close(waiting);
  close(another);
  close(late);
  stop(&r);
}

/* --- listening -------------------------------------------------------------------------------- */

static void
refuses_address(const rig *r, const char *address, guint16 port, const char *part) {
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_http_server_listen(r->server, address, port, NULL, &error));
  g_assert_error(error, OCT_HTTP_ERROR, OCT_HTTP_ERROR_ADDRESS);
  g_assert_nonnull(strstr(error->message, address));
  g_assert_nonnull(strstr(error->message, part));
}

static void
addresses(void) {
  rig r;
  start(&r);
  refuses_address(&r, "example.org", 0, "names are not looked up");
  refuses_address(&r, "127.0.0.1", r.port, "Address already in use");
  refuses_address(&r, "192.0.2.1", 0, "cannot listen");
  g_autoptr(GError) error = NULL;
  guint16 port = 0;
  g_assert_true(oct_http_server_listen(r.server, "localhost", 0, &port, &error));
  g_assert_cmpuint(port, !=, 0);
  stop(&r);
}

static int
dial_unix(const char *path) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  g_strlcpy(at.sun_path, path, sizeof at.sun_path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  g_assert_cmpint(connect(fd, (struct sockaddr *)&at, sizeof at), ==, 0);
  return fd;
}

static void
unix_socket(void) {
  rig r;
  start(&r);
  g_autoptr(GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp("octet-http-XXXXXX", &error);
  g_autofree char *path = g_build_filename(folder, "socket", NULL);
  g_assert_true(oct_http_server_listen_unix(r.server, path, &error));
  g_assert_false(oct_http_server_listen_unix(r.server, path, &error)); /* somebody is there */
  g_assert_error(error, OCT_HTTP_ERROR, OCT_HTTP_ERROR_ADDRESS);
  g_clear_error(&error);
  int fd = dial_unix(path);
  say(&r, fd, GET("/wait") END);
  UNTIL(&r, r.h.open->len == 1);
  g_assert_cmpstr(oct_http_exchange_peer(oct_http_test_first(&r.h)), ==, "unix");
  oct_http_test_answer(&r.h, "done");
  expect_answers(&r, fd, "done");
  close(fd);
  oct_http_server_drain(r.server);
  g_assert_false(g_file_test(path, G_FILE_TEST_EXISTS));
  stop(&r);
  /* What a killed server leaves behind does not stand in the way; a file that is no socket does. */
  start(&r);
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  g_strlcpy(at.sun_path, path, sizeof at.sun_path);
  int dead = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  g_assert_cmpint(bind(dead, (struct sockaddr *)&at, sizeof at), ==, 0);
  close(dead);
  g_assert_true(oct_http_server_listen_unix(r.server, path, &error));
  stop(&r);
  start(&r);
  g_assert_true(g_file_set_contents(path, "x", 1, &error));
  g_assert_false(oct_http_server_listen_unix(r.server, path, &error));
  g_assert_true(g_file_test(path, G_FILE_TEST_IS_REGULAR));
  stop(&r);
  unlink(path);
  rmdir(folder);
}

/* --- the server's end ------------------------------------------------------------------------- */

static void
drains(void) {
  rig r;
  start(&r);
  int idle = dial(&r), busy = dial(&r);
  g_autoptr(GString) wire = g_string_new(NULL);
  say(&r, idle, GET("/a") END);
  expect_answers(&r, idle, "GET /a");
  say(&r, busy, GET("/stream") END);
  UNTIL(&r, r.h.open->len == 1);
  oct_http_server_drain(r.server);
  turn(&r);
  UNTIL(&r, hear(idle, wire));
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(r.port)};
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  g_assert_cmpint(connect(fd, (struct sockaddr *)&at, sizeof at), ==, -1);
  close(fd);
  for (int i = 0; i < 100; i++) {
    g_assert_true(oct_http_stream_write(oct_http_test_first(&r.h), "x", 1));
    turn(&r);
  }
  oct_http_test_end(&r.h);
  UNTIL(&r, hear(busy, wire));
  g_autoptr(GString) text = g_string_new(NULL);
  oct_http_test_read(wire->str, wire->len, FALSE, text);
  g_assert_cmpuint(text->len, ==, 100);
  close(idle);
  close(busy);
  UNTIL(&r, open_connections(&r) == 0);
  stop(&r);
}

static void
aborts(void) {
  rig r;
  start(&r);
  int fds[3];
  for (int i = 0; i < 3; i++) {
    fds[i] = dial(&r);
    say(&r, fds[i], i < 2 ? GET("/stream") END : GET("/wait") END);
  }
  UNTIL(&r, r.h.open->len == 3);
  oct_http_server_abort(r.server);
  g_assert_cmpuint(r.h.open->len, ==, 0);
  g_assert_cmpuint(oct_http_server_counts(r.server).gone[OCT_HTTP_GONE_ABORTED], ==, 3);
  g_assert_cmpuint(open_connections(&r), ==, 0);
  for (int i = 0; i < 3; i++)
    close(fds[i]);
  stop(&r);
}

/* --- turns ------------------------------------------------------------------------------------ */

static void
batches(void) {
  rig r;
  start(&r);
  int fd = dial(&r);
  g_autoptr(GString) wire = g_string_new(NULL);
  say(&r, fd, GET("/stream") END);
  UNTIL(&r, r.h.open->len == 1);
  hear(fd, wire);
  g_assert_cmpint(oct_http_server_deadline(r.server), >, r.h.now_ns);
  for (int i = 0; i < 5; i++)
    g_assert_true(oct_http_stream_write(oct_http_test_first(&r.h), "x", 1));
  /* Written from outside a turn: nothing is sent before it, all of it in it. */
  g_assert_cmpint(oct_http_server_deadline(r.server), <=, r.h.now_ns);
  gsize before = wire->len;
  hear(fd, wire);
  g_assert_cmpuint(wire->len, ==, before);
  oct_http_server_turn(r.server);
  g_assert_true(is_readable(fd, 1000));
  char bytes[100];
  g_assert_cmpint(recv(fd, bytes, sizeof bytes, 0), ==, 5 * 6);
  oct_http_test_end(&r.h);
  turn(&r);
  close(fd);
  UNTIL(&r, open_connections(&r) == 0);
  stop(&r);
}

static void
many_pipelined(void) {
  rig r;
  start(&r);
  g_autoptr(GString) bytes = g_string_new(NULL);
  g_autoptr(GString) wire = g_string_new(NULL);
  g_autoptr(GString) text = g_string_new(NULL);
  for (int i = 0; i < 2000; i++)
    g_string_append(bytes, GET("/a") END);
  int fd = dial(&r);
  talk(&r, fd, bytes, G_MAXSSIZE, wire);
  UNTIL(&r, oct_http_server_counts(r.server).requests == 2000 &&
                oct_http_server_counts(r.server).exchanges == 0);
  hear(fd, wire);
  oct_http_test_read(wire->str, wire->len, FALSE, text);
  g_assert_cmpuint(text->len, ==, 2000 * strlen("GET /a") + 1999 * strlen(" | "));
  close(fd);
  stop(&r);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (gsize i = 0; i < oct_http_n_probes; i++) {
    g_autofree char *path = g_strdup_printf("/http/server/probes/%s", oct_http_probes[i].name);
    g_test_add_data_func(path, &oct_http_probes[i], probe_one);
  }
#define T(name, function) g_test_add_func("/http/server/" name, function)
  T("notices-an-end-in-each-state-at-once", left_in_each_state);
  T("notices-an-end-behind-pipelined-bytes", left_behind_pipelined_bytes);
  T("cuts-a-client-that-fills-the-window", floods_behind_a_request);
  T("a-refusal-is-read-by-a-client-that-closes-its-half", refusal_is_read);
  T("cuts-50-stalled-readers", stalled_readers);
  T("serves-beside-1500-slow-heads-and-closes-them", slow_heads);
  T("turns-away-connections-above-the-limit", connection_limit);
  T("turns-away-connections-of-one-address-above-the-limit", address_limit);
  T("turns-away-when-there-are-no-descriptors", no_descriptors);
  T("says-why-it-cannot-listen", addresses);
  T("listens-at-a-unix-socket", unix_socket);
  T("draining-refuses-newcomers-and-finishes-streams", drains);
  T("aborting-tells-every-exchange", aborts);
  T("a-turn-sends-what-was-written-before-it-at-once", batches);
  T("2000-pipelined-requests-are-answered-in-order", many_pipelined);
#undef T
  return g_test_run();
}
