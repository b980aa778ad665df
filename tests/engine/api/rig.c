#include "tests/engine/api/rig.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/engine/text/text-golden.h"

#define TURNS_MAX 20000

static gint64
now_ns(void *clock) {
  rig *r = clock;
  return r->service->now_ns;
}

static gint64
unix_s(void *clock) {
  (void)clock;
  return 1700000000;
}

static void
log_line(void *user, const char *line) {
  rig *r = user;
  g_string_append_printf(r->log, "%s\n", line);
}

rig *
rig_new(const rig_options *options) {
  static const rig_options none = {.chat = NULL};
  static const char *const names[] = {"tiny", "org/tiny"};
  rig *r = g_new0(rig, 1);
  g_autoptr(GError) error = NULL;
  if (options == NULL)
    options = &none;
  r->log = g_string_new(NULL);
  r->budget = oct_budget_new("requests", 256 << 20);
  r->tokenizer = text_tokenizer(g_strcmp0(options->chat, "kimi-k3") == 0 ? "kimi" : "qwen2");
  r->renderer =
      oct_chat_renderer_new(r->tokenizer, options->chat ? options->chat : "chatml", &error);
  g_assert_no_error(error);
  r->service = fake_service_new(r->tokenizer, options->context > 0 ? options->context : 512);
  const oct_api_config config = {.service = r->service,
                                 .names = names,
                                 .n_names = G_N_ELEMENTS(names),
                                 .renderer = options->no_chat ? NULL : r->renderer,
                                 .no_chat = "there is no chat here",
                                 .family =
                                     oct_api_parse_family(oct_chat_renderer_family(r->renderer)),
                                 .n_tokens = RIG_TOKENS,
                                 .keys = options->keys,
                                 .n_keys = options->n_keys,
                                 .version = "1.2.3",
                                 .unix_s = unix_s,
                                 .now_ns = now_ns,
                                 .clock = r,
                                 .id_key = {1, 2},
                                 .pooling = options->pooling,
                                 .tokenizer_info = options->tokenizer_info,
                                 .always_usage = options->always_usage,
                                 .always_metrics = options->always_metrics,
                                 .log = log_line,
                                 .user = r};
  r->api = oct_api_new(&config, &error);
  g_assert_no_error(error);
  const oct_http_server_config server = {.limits = oct_http_server_limits_standard(),
                                         .handler = oct_api_handler(),
                                         .user = r->api,
                                         .budget = r->budget,
                                         .now_ns = now_ns,
                                         .clock = r,
                                         .id_seed = 7};
  r->server = oct_http_server_new(&server, &error);
  g_assert_no_error(error);
  return r;
}

void
rig_free(rig *r) {
  if (r == NULL)
    return;
  oct_http_server_free(r->server);
  fake_service_free(r->service);
  oct_api_free(r->api);
  oct_chat_renderer_free(r->renderer);
  oct_tokenizer_free(r->tokenizer);
  oct_budget_free(r->budget);
  g_string_free(r->log, TRUE);
  g_free(r);
}

/* --- one exchange ------------------------------------------------------------------------------
 */

rig_reply
rig_send(rig *r, const char *bytes) {
  int ends[2];
  g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), ==, 0);
  oct_http_server_adopt(r->server, ends[0]);
  g_autoptr(GString) got = g_string_new(NULL);
  rig_reply reply = {.status = 0};
  gsize sent = 0, size = strlen(bytes);
  gboolean closed = FALSE;
  for (guint i = 0; i < TURNS_MAX; i++) {
    if (sent < size) {
      gssize n = send(ends[1], bytes + sent, size - sent, MSG_NOSIGNAL);
      sent = n > 0 ? sent + (gsize)n : errno == EAGAIN ? sent : size;
    }
    oct_http_server_turn(r->server);
    fake_service_step(r->service);
    oct_api_turn(r->api);
    oct_http_server_turn(r->server);
    char buffer[65536];
    gssize n = recv(ends[1], buffer, sizeof buffer, 0);
    if (n > 0)
      g_string_append_len(got, buffer, n);
    closed = closed || n == 0;
    if (rig_read_reply(got, closed, g_str_has_prefix(bytes, "HEAD "), &reply))
      break;
    if (closed)
      break;
  }
  close(ends[1]);
  oct_http_server_turn(r->server);
  if (reply.status == 0)
    g_error("no whole answer: %s", got->str);
  return reply;
}

static char *
post_bytes(const char *path, const char *fields, const char *body) {
  return g_strdup_printf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n%s"
                         "Content-Length: %zu\r\n\r\n%s",
                         path, fields != NULL ? fields : "", strlen(body), body);
}

void
rig_leave(rig *r, const char *path, const char *body, guint steps, rig_leaving how) {
  int ends[2];
  g_autofree char *quoted = rig_quote(body);
  g_autofree char *bytes = post_bytes(path, NULL, quoted);
  g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), ==, 0);
  oct_http_server_adopt(r->server, ends[0]);
  for (gsize sent = 0, size = strlen(bytes); sent < size;) {
    gssize n = send(ends[1], bytes + sent, size - sent, 0);
    sent += n > 0 ? (gsize)n : 0;
    oct_http_server_turn(r->server);
  }
  oct_http_server_turn(r->server);
  for (guint i = 0; i < steps; i++) {
    fake_service_step(r->service);
    oct_http_server_turn(r->server);
  }
  if (how == RIG_HALF_CLOSES)
    shutdown(ends[1], SHUT_WR);
  else if (how == RIG_CLOSES)
    close(ends[1]);
  else
    oct_http_server_abort(r->server);
  oct_http_server_turn(r->server);
  oct_http_server_turn(r->server);
  if (how != RIG_CLOSES)
    close(ends[1]);
  oct_http_server_turn(r->server);
}

rig_reply
rig_post_with(rig *r, const char *path, const char *fields, const char *body) {
  g_autofree char *bytes = post_bytes(path, fields, body);
  return rig_send(r, bytes);
}

rig_reply
rig_post(rig *r, const char *path, const char *body) {
  g_autofree char *quoted = rig_quote(body);
  return rig_post_with(r, path, NULL, quoted);
}

rig_reply
rig_get(rig *r, const char *path) {
  g_autofree char *bytes = g_strdup_printf("GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path);
  return rig_send(r, bytes);
}

json_t *
rig_json(rig *r, guint status, const char *path, const char *body) {
  g_auto(rig_reply) reply = body != NULL ? rig_post(r, path, body) : rig_get(r, path);
  if (reply.status != status)
    g_error("%s %s: %u %s", path, body != NULL ? body : "", reply.status, reply.body);
  json_t *value = json_loads(reply.body, JSON_REJECT_DUPLICATES, NULL);
  if (value == NULL)
    g_error("%s: the answer is not JSON: %s", body, reply.body);
  return value;
}

void
rig_refuses(rig *r, const char *path, const char *body, guint status, const char *param) {
  json_t *answer = rig_json(r, status, path, body);
  const char *said = rig_text(answer, "error.param");
  if (g_strcmp0(said, param) != 0)
    g_error("%s: param is %s: %s", body, said != NULL ? said : "null",
            rig_text(answer, "error.message"));
  g_assert_nonnull(rig_text(answer, "error.message"));
  g_assert_nonnull(rig_text(answer, "error.type"));
  json_decref(answer);
}
