/* What `octet serve` costs and adds, end to end: the program itself on the mock backend in a
 * process of its own, clients over TCP in this one. The server's CPU time is that of its whole
 * process, the engine and the mock included, between the moments when every stream runs and when
 * the first ends. OCT_OCTET names the program (./octet), OCT_SMOLLM2 SmolLM2-135M-Instruct's GGUF
 * file for its tokenizer; without it every byte is a token. doc/bench.md says what the figures are.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <glib.h>

#include "engine/base/assert.h"

#define STREAMS_MAX 1000
#define TOKENS      150 /* of a stream */
#define EDGE        10  /* events at both ends of a stream that are not measured */
#define STEP_NS     G_GINT64_CONSTANT(20000000)
#define WORDS       "([a-z]+ )+"
#define REQUESTS    5000 /* of one token */
#define CALLERS     32   /* connections that ask for them */
#define PROBES      1000 /* of health */

/* ---------------------------------------------------------------- the server */

typedef struct server {
  pid_t pid;
  clockid_t clock;
  guint16 port;
} server;

static gint64
read_clock(clockid_t which) {
  struct timespec t = {0};
  clock_gettime(which, &t);
  return (gint64)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void
fail(const char *what) {
  fprintf(stderr, "bench-serving: %s\n", what);
  exit(1);
}

static void
start(server *s, const char *backend) {
  const char *program = g_getenv("OCT_OCTET"), *model = g_getenv("OCT_SMOLLM2");
  int out[2];
  const char *argv[] = {program != NULL ? program : "./octet",
                        "serve",
                        "--backend",
                        backend,
                        "--port",
                        "0",
                        "--disable-access-log",
                        "--max-num-seqs",
                        "1024",
                        "--max-num-batched-tokens",
                        "8192",
                        "--stalled-after",
                        "1",
                        NULL,
                        NULL};
  if (model != NULL && *model != '\0')
    argv[13] = model;
  oct_assert(pipe(out) == 0);
  s->pid = fork();
  oct_assert(s->pid >= 0);
  if (s->pid == 0) {
    dup2(out[1], STDOUT_FILENO);
    close(out[0]);
    if (freopen("/dev/null", "w", stderr) != NULL)
      execv(argv[0], (char **)(gpointer)argv);
    _exit(127);
  }
  close(out[1]);
  FILE *said = fdopen(out[0], "r");
  char line[512];
  const char *at = NULL;
  while (at == NULL && fgets(line, sizeof line, said) != NULL)
    at = strstr(line, "http://127.0.0.1:");
  if (at == NULL)
    fail("the server does not start; is OCT_OCTET the program?");
  s->port = (guint16)strtoul(at + strlen("http://127.0.0.1:"), NULL, 10);
  fclose(said);
  oct_assert(clock_getcpuclockid(s->pid, &s->clock) == 0);
}

static double
peak_mib(const server *s) {
  g_autofree char *path = g_strdup_printf("/proc/%d/status", (int)s->pid);
  g_autofree char *text = NULL;
  if (!g_file_get_contents(path, &text, NULL, NULL))
    return 0;
  const char *at = strstr(text, "VmHWM:");
  return at != NULL ? g_ascii_strtod(at + strlen("VmHWM:"), NULL) / 1024 : 0;
}

static void
stop(const server *s) {
  int status;
  kill(s->pid, SIGKILL); /* one that hangs would take its time */
  (void)waitpid(s->pid, &status, 0);
}

/* ---------------------------------------------------------------- clients */

typedef struct client {
  int fd;
  guint events;
  gint64 last_ns;
  char before; /* the last byte of the read before */
} client;

static int
dial(const server *s) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(s->port)};
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) != 0)
    fail("cannot connect");
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

static void
post(int fd, const char *fields) {
  g_autofree char *body = g_strdup_printf("{\"prompt\":[10,11,12],%s}", fields);
  g_autofree char *request =
      g_strdup_printf("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                      "%zu\r\nContent-Type: application/json\r\n\r\n%s",
                      strlen(body), body);
  if (send(fd, request, strlen(request), MSG_NOSIGNAL) != (gssize)strlen(request))
    fail("cannot send");
}

static int
watch(const client *clients, guint n) {
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  for (guint i = 0; i < n; i++) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
    oct_assert(epoll_ctl(epoll, EPOLL_CTL_ADD, clients[i].fd, &event) == 0);
  }
  return epoll;
}

static double
quantile_us(GArray *gaps, double q) {
  if (gaps->len == 0)
    return 0;
  return (double)g_array_index(gaps, gint64, (guint)(q * (gaps->len - 1))) / 1e3;
}

static int
compare_gaps(gconstpointer a, gconstpointer b) {
  gint64 x = *(const gint64 *)a, y = *(const gint64 *)b;
  return x < y ? -1 : x > y;
}

/* ---------------------------------------------------------------- streams */

typedef struct load {
  guint n, every; /* one stream in `every` is constrained; 0: none */
  client clients[STREAMS_MAX];
  guint n_running, n_far; /* with EDGE events; close to their end */
  guint64 events, from_events;
  gint64 from_cpu, from_ns, to_cpu, to_ns; /* the window; to_ns 0: it is open */
  GArray *gaps;                            /* gint64: between two events of a stream */
} load;

/* Events end in an empty line; a chunk's own line ends are CR LF. */
static guint
count_events(client *c, const char *bytes, gsize size) {
  guint n = 0;
  for (gsize i = 0; i < size; i++) {
    n += bytes[i] == '\n' && c->before == '\n';
    c->before = bytes[i];
  }
  return n;
}

static void
take(load *l, const server *s, client *c, guint n, gint64 now) {
  if (c->events < EDGE && c->events + n >= EDGE && ++l->n_running == l->n) {
    l->from_cpu = read_clock(s->clock);
    l->from_ns = now;
    l->from_events = l->events;
  }
  if (l->n_running == l->n && l->to_ns == 0 && c->last_ns > l->from_ns && n > 0) {
    gint64 gap = now - c->last_ns;
    g_array_append_val(l->gaps, gap);
  }
  c->events += n;
  l->events += n;
  if (c->events >= TOKENS - EDGE && l->to_ns == 0) {
    l->to_cpu = read_clock(s->clock);
    l->to_ns = now;
    l->from_events = l->events - l->from_events;
  }
  if (n > 0)
    c->last_ns = now;
}

static void
run_load(load *l, const server *s) {
  static char bytes[65536];
  static const char fields[] =
      "\"max_tokens\":" G_STRINGIFY(TOKENS) ",\"ignore_eos\":true,\"stream\":true";
  for (guint i = 0; i < l->n; i++) {
    gboolean guided = l->every > 0 && i % l->every == 0;
    g_autofree char *all =
        g_strconcat(fields, guided ? ",\"guided_regex\":\"" WORDS "\"" : "", NULL);
    l->clients[i] = (client){.fd = dial(s)};
    post(l->clients[i].fd, all);
  }
  int epoll = watch(l->clients, l->n);
  for (guint ended = 0; ended < l->n;) {
    struct epoll_event events[256];
    int n = epoll_wait(epoll, events, G_N_ELEMENTS(events), 20000);
    if (n <= 0)
      fail("a stream stands still");
    for (int i = 0; i < n; i++) {
      client *c = &l->clients[events[i].data.u32];
      gssize size = recv(c->fd, bytes, sizeof bytes, 0);
      if (size <= 0)
        fail("a stream was cut");
      take(l, s, c, count_events(c, bytes, (gsize)size), read_clock(CLOCK_MONOTONIC));
      if (size >= 5 && memcmp(bytes + size - 5, "0\r\n\r\n", 5) == 0) {
        ended++;
        close(c->fd);
      }
    }
  }
  close(epoll);
}

static void
run_streams(guint n, guint every, const char *what) {
  g_autofree load *l = g_new0(load, 1);
  server s;
  g_autofree char *backend =
      g_strdup_printf("mock:fixed_ns=%" G_GINT64_FORMAT ",token_ns=0,sequence_ns=0", STEP_NS);
  l->n = n;
  l->every = every;
  l->gaps = g_array_new(FALSE, FALSE, sizeof(gint64));
  start(&s, backend);
  run_load(l, &s);
  for (guint i = 0; i < l->gaps->len; i++)
    g_array_index(l->gaps, gint64, i) -= STEP_NS;
  g_array_sort(l->gaps, compare_gaps);
  printf(
      "serving, %4u streams, %-16s: %.2f us of CPU per event, %6.0f tokens/s of %.0f, added to a "
      "step p50 %.0f us, p99 %.0f us, peak RSS %.0f MiB\n",
      n, what, (double)(l->to_cpu - l->from_cpu) / 1e3 / (double)l->from_events,
      (double)l->from_events * 1e9 / (double)(l->to_ns - l->from_ns),
      (double)n * 1e9 / (double)STEP_NS, quantile_us(l->gaps, 0.5), quantile_us(l->gaps, 0.99),
      peak_mib(&s));
  fflush(stdout);
  stop(&s);
  g_array_unref(l->gaps);
}

/* ---------------------------------------------------------------- requests */

/* One at a time on each of so many connections. */
static void
run_requests(void) {
  static const char fields[] = "\"max_tokens\":1,\"ignore_eos\":true";
  client callers[CALLERS];
  char bytes[8192];
  server s;
  start(&s, "mock:fixed_ns=100000,token_ns=0,sequence_ns=0");
  for (guint i = 0; i < CALLERS; i++) {
    callers[i] = (client){.fd = dial(&s)};
    post(callers[i].fd, fields);
  }
  int epoll = watch(callers, CALLERS);
  gint64 begin = read_clock(CLOCK_MONOTONIC), cpu = read_clock(s.clock);
  guint sent = CALLERS;
  for (guint answered = 0; answered < REQUESTS;) {
    struct epoll_event events[CALLERS];
    int n = epoll_wait(epoll, events, CALLERS, 20000);
    for (int i = 0; i < n; i++) {
      int fd = callers[events[i].data.u32].fd;
      gssize size = recv(fd, bytes, sizeof bytes, 0); /* an answer is written at once */
      if (size < 15 || memcmp(bytes, "HTTP/1.1 200 OK", 15) != 0)
        fail("a request was not answered");
      answered++;
      if (sent++ < REQUESTS)
        post(fd, fields);
    }
  }
  printf("serving, one token a request, %u connections: %.0f requests/s, %.1f us of CPU each\n",
         CALLERS, REQUESTS * 1e9 / (double)(read_clock(CLOCK_MONOTONIC) - begin),
         (double)(read_clock(s.clock) - cpu) / 1e3 / REQUESTS);
  fflush(stdout);
  close(epoll);
  for (guint i = 0; i < CALLERS; i++)
    close(callers[i].fd);
  stop(&s);
}

/* ---------------------------------------------------------------- health */

static gboolean
is_stalled(int fd, gint64 *took) {
  static const char request[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  char bytes[4096];
  gint64 from = read_clock(CLOCK_MONOTONIC);
  if (send(fd, request, strlen(request), MSG_NOSIGNAL) != (gssize)strlen(request))
    fail("cannot ask for health");
  gssize size = recv(fd, bytes, sizeof bytes, 0);
  *took = read_clock(CLOCK_MONOTONIC) - from;
  return size > 13 && memcmp(bytes, "HTTP/1.1 503", 12) == 0;
}

static void
run_wedged(void) {
  server s;
  gint64 took;
  g_autoptr(GArray) all = g_array_new(FALSE, FALSE, sizeof(gint64));
  start(&s, "fault:script=hang/3@mock");
  int stream = dial(&s), fd = dial(&s);
  post(stream, "\"max_tokens\":100,\"ignore_eos\":true,\"stream\":true");
  for (gint64 until = read_clock(CLOCK_MONOTONIC) + 30 * G_GINT64_CONSTANT(1000000000);
       !is_stalled(fd, &took);) {
    g_usleep(20000);
    if (read_clock(CLOCK_MONOTONIC) > until)
      fail("the server does not stall");
  }
  for (guint i = 0; i < PROBES; i++) {
    if (!is_stalled(fd, &took))
      fail("the server is well again");
    g_array_append_val(all, took);
  }
  g_array_sort(all, compare_gaps);
  printf(
      "serving, /health while the engine is wedged: p50 %.0f us, p99 %.0f us, longest of %u %.0f "
      "us\n",
      quantile_us(all, 0.5), quantile_us(all, 0.99), PROBES, quantile_us(all, 1));
  fflush(stdout);
  close(stream);
  close(fd);
  stop(&s);
}

int
main(void) {
  struct rlimit files;
  oct_assert(getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &files);
  run_streams(1, 0, "text");
  run_streams(64, 0, "text");
  run_streams(256, 0, "text");
  if (files.rlim_max > STREAMS_MAX + 100)
    run_streams(STREAMS_MAX, 0, "text");
  run_streams(256, 10, "10 % constrained");
  run_streams(256, 1, "all constrained");
  run_requests();
  run_wedged();
  return 0;
}
