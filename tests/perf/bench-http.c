/* What the HTTP server costs by itself: CPU time of its thread per event of a stream, at many
 * streams over TCP on this machine, and per request of a connection that is kept. Clients read in
 * the same thread; their time is left out. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/http/server.h"

#define STREAMS_MAX 1000
#define TICKS       200 /* events of each stream */
#define REQUESTS    20000
#define EVENT_BYTES 200

typedef struct bench {
  oct_budget *budget;
  oct_http_server *server;
  guint16 port;
  oct_http_exchange *streams[STREAMS_MAX];
  guint n_streams;
  int clients[STREAMS_MAX];
  gint64 spent_ns; /* within the server */
} bench;

static gint64
read_clock(clockid_t which) {
  struct timespec t;
  clock_gettime(which, &t);
  return (gint64)t.tv_sec * 1000000000 + t.tv_nsec;
}

static gint64
now_ns(void *clock) {
  (void)clock;
  return read_clock(CLOCK_MONOTONIC);
}

static void
on_request(void *user, oct_http_exchange *x) {
  bench *b = user;
  const oct_http_request *r = oct_http_exchange_request(x);
  if (r->path.size > 1) {
    oct_http_stream_begin(x, &(oct_http_reply){.status = 200, .content_type = "text/event-stream"});
    b->streams[b->n_streams++] = x;
  } else {
    oct_http_respond(x, &(oct_http_reply){.status = 200, .body = {"ok", 2}});
  }
}

static void
on_gone(void *user, oct_http_exchange *x, oct_http_gone why) {
  (void)user;
  (void)x;
  oct_assert(why == OCT_HTTP_GONE_ABORTED);
}

static void
turn(bench *b) {
  gint64 from = read_clock(CLOCK_THREAD_CPUTIME_ID);
  oct_http_server_turn(b->server);
  b->spent_ns += read_clock(CLOCK_THREAD_CPUTIME_ID) - from;
}

static int
dial(const bench *b, const char *request) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(b->port)};
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  oct_assert(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
  oct_assert(send(fd, request, strlen(request), 0) == (ssize_t)strlen(request));
  return fd;
}

static void
hear(int fd, int flags) {
  static char bytes[65536];
  (void)!recv(fd, bytes, sizeof bytes, flags);
}

static void
start(bench *b) {
  memset(b, 0, sizeof *b);
  b->budget = oct_budget_new("bench", (gsize)1 << 30);
  const oct_http_server_config config = {
      .limits = oct_http_server_limits_standard(),
      .handler = {NULL, on_request, on_gone},
      .user = b,
      .budget = b->budget,
      .now_ns = now_ns,
  };
  b->server = oct_http_server_new(&config, NULL);
  oct_assert(b->server != NULL &&
             oct_http_server_listen(b->server, "127.0.0.1", 0, &b->port, NULL));
}

static void
stop(bench *b) {
  oct_http_server_free(b->server);
  oct_budget_free(b->budget);
}

static void
run_streams(guint n) {
  static const char request[] = "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n";
  char event[EVENT_BYTES];
  bench b;
  start(&b);
  memset(event, 'e', sizeof event);
  for (guint i = 0; i < n; i++) {
    b.clients[i] = dial(&b, request);
    turn(&b);
  }
  while (b.n_streams < n)
    turn(&b);
  turn(&b);
  gsize memory = oct_budget_used(b.budget);
  b.spent_ns = 0;
  for (int tick = 0; tick < TICKS; tick++) {
    gint64 from = read_clock(CLOCK_THREAD_CPUTIME_ID);
    for (guint i = 0; i < n; i++)
      oct_assert(oct_http_stream_write(b.streams[i], event, sizeof event));
    b.spent_ns += read_clock(CLOCK_THREAD_CPUTIME_ID) - from;
    turn(&b);
    for (guint i = 0; i < n; i++)
      hear(b.clients[i], MSG_DONTWAIT);
  }
  printf("http, %4u streams: %.2f us of CPU per event of %u bytes, %.1f KiB per connection\n", n,
         (double)b.spent_ns / 1e3 / TICKS / n, EVENT_BYTES, (double)memory / 1024 / n);
  for (guint i = 0; i < n; i++)
    close(b.clients[i]);
  for (guint i = 0; i < n; i++)
    oct_http_stream_end(b.streams[i]);
  stop(&b);
}

static void
run_requests(void) {
  static const char request[] = "GET / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
  bench b;
  start(&b);
  int fd = dial(&b, request);
  b.spent_ns = 0;
  for (int i = 0; i < REQUESTS; i++) {
    while (oct_http_server_counts(b.server).requests <= (guint64)i ||
           oct_http_server_deadline(b.server) <= now_ns(NULL))
      turn(&b);
    hear(fd, 0);
    if (i + 1 < REQUESTS)
      oct_assert(send(fd, request, sizeof request - 1, 0) == (ssize_t)sizeof request - 1);
  }
  printf("http, one connection: %.2f us of CPU per request\n", (double)b.spent_ns / 1e3 / REQUESTS);
  close(fd);
  stop(&b);
}

int
main(void) {
  struct rlimit files;
  oct_assert(getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_max < 2 * STREAMS_MAX + 100) {
    printf("http: fewer descriptors than two for each of %d streams\n", STREAMS_MAX);
    return 0;
  }
  run_streams(256);
  run_streams(STREAMS_MAX);
  run_requests();
  return 0;
}
