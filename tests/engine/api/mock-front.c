#include "tests/engine/api/mock-front.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/text/tokenizer-bytes.h"

static gint64
now_ns(void *clock) {
  return ((front *)clock)->now;
}

static gint64
unix_s(void *clock) {
  (void)clock;
  return 1700000000;
}

static void
open_front(serve_rig *rig, front *f) {
  static const char *const names[] = {"mock"};
  g_autoptr(GError) error = NULL;
  f->budget = oct_budget_new("requests", 64 << 20);
  f->renderer = oct_chat_renderer_new(rig->tokenizer, f->chat, &error);
  g_assert_no_error(error);
  const oct_api_config config = {.service = rig->service,
                                 .names = names,
                                 .n_names = 1,
                                 .renderer = f->renderer,
                                 .family =
                                     oct_api_parse_family(oct_chat_renderer_family(f->renderer)),
                                 .version = "1",
                                 .unix_s = unix_s,
                                 .now_ns = now_ns,
                                 .clock = f};
  f->api = oct_api_new(&config, &error);
  g_assert_no_error(error);
  const oct_http_server_config server = {.limits = oct_http_server_limits_standard(),
                                         .handler = oct_api_handler(),
                                         .user = f->api,
                                         .budget = f->budget,
                                         .now_ns = now_ns,
                                         .clock = f,
                                         .id_seed = 7};
  f->server = oct_http_server_new(&server, &error);
  g_assert_no_error(error);
  for (guint i = 0; i < f->n; i++) {
    int ends[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), ==, 0);
    oct_http_server_adopt(f->server, ends[0]);
    g_autofree char *body = rig_quote(f->bodies[i]);
    g_autofree char *bytes = g_strdup_printf(
        "POST %s HTTP/1.1\r\nHost: a\r\nX-Request-Id: r\r\nContent-Length: %zu\r\n\r\n%s",
        f->paths[i], strlen(body), body);
    g_assert_cmpint(send(ends[1], bytes, strlen(bytes), 0), ==, (gssize)strlen(bytes));
    f->asks[i] = (front_ask){.fd = ends[1], .got = g_string_new(NULL)};
  }
}

static gboolean
each(serve_rig *rig, oct_time now, oct_time *next) {
  front *f = rig->user;
  gboolean more = FALSE;
  f->now = now;
  if (f->api == NULL)
    open_front(rig, f);
  if (f->abort_ns > 0 && now >= f->abort_ns)
    oct_service_set_phase(rig->service, OCT_SERVICE_ABORTED);
  oct_http_server_turn(f->server);
  oct_api_turn(f->api);
  oct_http_server_turn(f->server);
  for (guint i = 0; i < f->n; i++) {
    front_ask *a = &f->asks[i];
    char buffer[65536];
    gssize n;
    while (!a->done && (n = recv(a->fd, buffer, sizeof buffer, 0)) > 0)
      g_string_append_len(a->got, buffer, n);
    a->done = a->done || rig_read_reply(a->got, FALSE, FALSE, &a->reply);
    more = more || !a->done;
  }
  *next = f->abort_ns > now ? f->abort_ns : OCT_TIME_NEVER;
  return more;
}

void
front_run(front *f, oct_world *world, const char *const *paths, const char *const *bodies, guint n,
          const char *chat, oct_time abort_ns) {
  serve_rig rig;
  *f = (front){.paths = paths, .bodies = bodies, .n = n, .chat = chat, .abort_ns = abort_ns};
  serve_rig_init(&rig, world);
  rig.each = each;
  rig.user = f;
  serve_run(&rig);
  g_assert_no_error(rig.error);
  oct_http_server_free(f->server);
  oct_api_free(f->api);
  oct_chat_renderer_free(f->renderer);
  oct_budget_free(f->budget);
  serve_rig_clear(&rig);
  for (guint i = 0; i < n; i++) {
    close(f->asks[i].fd);
    g_string_free(f->asks[i].got, TRUE);
  }
}

void
front_clear(front *f) {
  for (guint i = 0; i < f->n; i++)
    rig_reply_clear(&f->asks[i].reply);
}

json_t *
front_frames(const char *body) {
  json_t *frames = json_array();
  g_auto(GStrv) lines = g_strsplit(body, "\n", -1);
  for (guint i = 0; lines[i] != NULL; i++)
    if (g_str_has_prefix(lines[i], "data: {"))
      json_array_append_new(frames, json_loads(lines[i] + strlen("data: "), 0, NULL));
  return frames;
}
