/* Health while the engine is wedged, over HTTP. The engine's thread is held where it asks for the
 * time, so that it is certain that no answer needed it; the clock is the test's, so that a minute
 * passes at once. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/mock/mock.h"
#include "engine/api/api.h"
#include "engine/base/worker.h"
#include "tests/engine/api/reply.h"
#include "tests/engine/serve/serve-rig.h"

#define SECOND G_GINT64_CONSTANT(1000000000)

typedef struct fixture {
  serve_rig rig;
  pthread_t front;
  oct_bell *news, *held, *release;
  _Atomic gint64 now;
  atomic_bool hold;
  oct_budget *budget;
  oct_http_server *server;
  oct_api *api;
} fixture;

static gint64
now_ns(void *clock) {
  fixture *f = clock;
  if (!pthread_equal(pthread_self(), f->front) && atomic_exchange(&f->hold, FALSE)) {
    oct_bell_ring(f->held);
    oct_bell_wait(f->release);
  }
  return atomic_load(&f->now);
}

static gint64
unix_s(void *clock) {
  (void)clock;
  return 1700000000;
}

static void
notify(void *user) {
  oct_bell_ring(((fixture *)user)->news);
}

static void
open_service(fixture *f) {
  oct_mock_options mock;
  oct_mock_options_default(&mock);
  mock.clock = OCT_CLOCK_REAL;
  mock.fixed_ns = MS;
  serve_rig_init(&f->rig, oct_mock_world_new(&mock, NULL));
  oct_service_config *c = &f->rig.config;
  c->now_ns = now_ns;
  c->clock = f;
  c->notify = notify;
  c->user = f;
  c->log = NULL;
  c->busy_ns = c->stall_ns = 0; /* the standard: 1 s and 30 s */
  f->rig.service = oct_service_new(c, &f->rig.error);
  g_assert_no_error(f->rig.error);
  g_assert_true(oct_service_start(f->rig.service, &f->rig.error));
}

static void
set_up(fixture *f) {
  static const char *const names[] = {"mock"};
  *f = (fixture){.front = pthread_self(),
                 .news = oct_bell_new(),
                 .held = oct_bell_new(),
                 .release = oct_bell_new(),
                 .now = SECOND};
  open_service(f);
  f->budget = oct_budget_new("requests", 1 << 20);
  const oct_api_config api = {.service = f->rig.service,
                              .names = names,
                              .n_names = 1,
                              .no_chat = "none",
                              .version = "1",
                              .unix_s = unix_s,
                              .now_ns = now_ns,
                              .clock = f};
  f->api = oct_api_new(&api, &f->rig.error);
  g_assert_no_error(f->rig.error);
  const oct_http_server_config server = {.limits = oct_http_server_limits_standard(),
                                         .handler = oct_api_handler(),
                                         .user = f->api,
                                         .budget = f->budget,
                                         .now_ns = now_ns,
                                         .clock = f};
  f->server = oct_http_server_new(&server, &f->rig.error);
  g_assert_no_error(f->rig.error);
}

static void
tear_down(fixture *f) {
  oct_http_server_free(f->server);
  oct_service_free(g_steal_pointer(&f->rig.service));
  oct_api_free(f->api);
  oct_budget_free(f->budget);
  serve_rig_clear(&f->rig);
  oct_bell_free(f->news);
  oct_bell_free(f->held);
  oct_bell_free(f->release);
}

/* The status of GET `path`, by turns of the front alone; `part` is in its body. */
static guint
get(fixture *f, const char *path, const char *part) {
  int ends[2];
  g_autoptr(GString) got = g_string_new(NULL);
  g_auto(rig_reply) reply = {0};
  g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), ==, 0);
  oct_http_server_adopt(f->server, ends[0]);
  g_autofree char *bytes = g_strdup_printf("GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path);
  g_assert_cmpint(send(ends[1], bytes, strlen(bytes), 0), ==, (gssize)strlen(bytes));
  while (!rig_read_reply(got, FALSE, FALSE, &reply)) {
    char buffer[4096];
    oct_http_server_turn(f->server);
    gssize n = recv(ends[1], buffer, sizeof buffer, 0);
    g_string_append_len(got, buffer, MAX(n, 0));
  }
  close(ends[1]);
  if (strstr(reply.body, part) == NULL)
    g_error("%s: %s lacks %s", path, reply.body, part);
  return reply.status;
}

static void
test_wedged(void) {
  fixture f;
  set_up(&f);
  serve_ask *a = serve_add(&f.rig, 0, "Hello");
  a->params.sampling.max_tokens = 1000;
  serve_submit(a);
  while (a->n_deltas == 0) {
    oct_bell_wait(f.news);
    oct_service_dispatch(f.rig.service);
  }
  g_assert_cmpuint(get(&f, "/health", "\"status\":\"ok\""), ==, 200);
  g_assert_cmpuint(get(&f, "/readyz", "\"ready\":true"), ==, 200);
  atomic_store(&f.hold, TRUE);
  oct_bell_wait(f.held);

  /* From here on nothing but the front's thread runs. */
  atomic_fetch_add(&f.now, 2 * SECOND);
  g_assert_cmpuint(get(&f, "/health", "\"status\":\"busy\""), ==, 200);
  g_assert_cmpuint(get(&f, "/readyz", "\"ready\":true"), ==, 200);
  atomic_fetch_add(&f.now, 30 * SECOND);
  g_assert_cmpuint(get(&f, "/health", "\"status\":\"stalled\""), ==, 503);
  g_assert_cmpuint(get(&f, "/health", "for 32.0 s"), ==, 503);
  g_assert_cmpuint(get(&f, "/ping", "\"status\":\"stalled\""), ==, 503);
  g_assert_cmpuint(get(&f, "/readyz", "\"ready\":false"), ==, 503);
  g_assert_cmpuint(get(&f, "/livez", "\"status\":\"ok\""), ==, 200);
  g_assert_cmpuint(get(&f, "/metrics",
                       "octet:health{model_name=\"test\",engine=\"0\",state="
                       "\"stalled\"} 1"),
                   ==, 200);
  g_assert_cmpuint(get(&f, "/load", "\"server_load\""), ==, 200);
  g_assert_cmpuint(a->n_ends, ==, 0);

  /* It comes back when the engine does. */
  oct_bell_ring(f.release);
  while (oct_service_active(f.rig.service) > 0) {
    oct_bell_wait(f.news);
    oct_service_dispatch(f.rig.service);
  }
  g_assert_no_error(a->error);
  g_assert_cmpuint(get(&f, "/health", "\"status\":\"ok\""), ==, 200);
  tear_down(&f);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/api/wedged/health-is-told-by-the-front-alone", test_wedged);
  return g_test_run();
}
