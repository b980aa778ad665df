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
  r->tokenizer = text_tokenizer("qwen2");
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
  oct_api_free(r->api);
  fake_service_free(r->service);
  oct_chat_renderer_free(r->renderer);
  oct_tokenizer_free(r->tokenizer);
  oct_budget_free(r->budget);
  g_string_free(r->log, TRUE);
  g_free(r);
}

void
rig_reply_clear(rig_reply *reply) {
  g_free(reply->head);
  g_free(reply->body);
}

/* --- one exchange ------------------------------------------------------------------------------
 */

/* Reads chunks into `out`; FALSE while the last one is not there. */
static gboolean
dechunk(const char *at, GString *out) {
  for (;;) {
    char *end;
    guint64 n = g_ascii_strtoull(at, &end, 16);
    if (end == at || !g_str_has_prefix(end, "\r\n") || strlen(end + 2) < n + 2)
      return FALSE;
    if (n == 0)
      return TRUE;
    g_string_append_len(out, end + 2, (gssize)n);
    at = end + 2 + n + 2;
  }
}

/* FALSE while the answer is not whole. */
static gboolean
read_reply(const GString *bytes, gboolean closed, gboolean to_head, rig_reply *reply) {
  const char *end = strstr(bytes->str, "\r\n\r\n");
  if (end == NULL)
    return FALSE;
  g_autoptr(GString) body = g_string_new(NULL);
  g_autofree char *head = g_strndup(bytes->str, (gsize)(end - bytes->str));
  g_autofree char *low = g_ascii_strdown(head, -1);
  const char *length = strstr(low, "\r\ncontent-length:");
  if (to_head) /* has no body */
    g_string_truncate(body, 0);
  else if (strstr(low, "\r\ntransfer-encoding: chunked") != NULL) {
    if (!dechunk(end + 4, body))
      return FALSE;
  } else {
    g_string_append(body, end + 4);
    gsize want =
        length == NULL ? 0 : (gsize)g_ascii_strtoull(strchr(length + 2, ':') + 1 + 1, NULL, 10);
    if (length != NULL ? body->len < want : !closed)
      return FALSE;
  }
  *reply = (rig_reply){.status = (guint)g_ascii_strtoull(head + strlen("HTTP/1.1 "), NULL, 10),
                       .head = g_steal_pointer(&head),
                       .body = g_string_free(g_steal_pointer(&body), FALSE)};
  return TRUE;
}

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
    if (read_reply(got, closed, g_str_has_prefix(bytes, "HEAD "), &reply))
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

rig_reply
rig_post_with(rig *r, const char *path, const char *fields, const char *body) {
  g_autofree char *bytes =
      g_strdup_printf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n%s"
                      "Content-Length: %zu\r\n\r\n%s",
                      path, fields != NULL ? fields : "", strlen(body), body);
  return rig_send(r, bytes);
}

char *
rig_quote(const char *text) {
  char *quoted = g_strdup(text);
  return g_strdelimit(quoted, "'", '"');
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

/* --- reading answers ---------------------------------------------------------------------------
 */

const json_t *
rig_at(const json_t *value, const char *path) {
  g_auto(GStrv) parts = g_strsplit(path, ".", -1);
  for (guint i = 0; value != NULL && parts[i] != NULL; i++)
    value = json_is_array(value)
                ? json_array_get(value, (gsize)g_ascii_strtoull(parts[i], NULL, 10))
                : json_object_get(value, parts[i]);
  return value;
}

const char *
rig_text(const json_t *value, const char *path) {
  return json_string_value(rig_at(value, path));
}

gint64
rig_int(const json_t *value, const char *path) {
  const json_t *found = rig_at(value, path);
  g_assert_true(json_is_integer(found));
  return json_integer_value(found);
}

json_t *
rig_frames(const char *body) {
  json_t *frames = json_array();
  g_auto(GStrv) parts = g_strsplit(body, "\n\n", -1);
  gboolean done = FALSE;
  for (guint i = 0; parts[i] != NULL && parts[i][0] != '\0'; i++) {
    g_assert_false(done);
    if (parts[i][0] == ':')
      continue;
    g_assert_true(g_str_has_prefix(parts[i], "data: "));
    done = g_str_equal(parts[i], "data: [DONE]");
    if (done)
      continue;
    json_t *frame = json_loads(parts[i] + strlen("data: "), JSON_REJECT_DUPLICATES, NULL);
    g_assert_nonnull(frame);
    json_array_append_new(frames, frame);
  }
  g_assert_true(done);
  return frames;
}

char *
rig_join(const json_t *frames, const char *path) {
  GString *out = g_string_new(NULL);
  for (gsize i = 0; i < json_array_size(frames); i++) {
    const char *text = rig_text(json_array_get(frames, i), path);
    g_string_append(out, text != NULL ? text : "");
  }
  return g_string_free(out, FALSE);
}
