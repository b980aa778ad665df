/* Answers: heads, bodies, chunks, and the errors of the server itself, appended to the connection's
 * output. Nothing of a request is written into an answer but a request id that is a token. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/http/connection.h"
#include "engine/http/head.h"

static const struct {
  guint status;
  const char *reason;
} reasons[] = {
    {100, "Continue"},
    {200, "OK"},
    {202, "Accepted"},
    {204, "No Content"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {411, "Length Required"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {421, "Misdirected Request"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {499, "Client Closed Request"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

static const char *
reason_of(guint status) {
  for (gsize i = 0; i < G_N_ELEMENTS(reasons); i++)
    if (reasons[i].status == status)
      return reasons[i].reason;
  return "Other";
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* Without memory there is no answer: the connection is cut. */
static void
put(oct_http_exchange *x, const void *bytes, gsize size) {
  if (x->doomed)
    return;
  if (x->out.used == x->out.at)
    x->progress_ns = x->shared->config.now_ns(x->shared->config.clock);
  if (!oct_http_queue_append(&x->out, x->shared->config.budget, bytes, size)) {
    x->doomed = TRUE;
    x->doom = OCT_HTTP_GONE_MEMORY;
  }
}

static void
put_text(oct_http_exchange *x, const char *text) {
  put(x, text, strlen(text));
}

/* A header's value cannot end its line, whatever it holds. */
static void
put_value(oct_http_exchange *x, const char *value) {
  char piece[64];
  gsize n = 0;
  for (; *value != '\0'; value++) {
    gboolean control = (guchar)*value < ' ' || *value == 0x7f;
    piece[n++] = control && *value != '\t' ? '_' : *value;
    if (n == sizeof piece) {
      put(x, piece, n);
      n = 0;
    }
  }
  put(x, piece, n);
}

static void
put_field(oct_http_exchange *x, const char *name, const char *value) {
  put_text(x, name);
  put(x, ": ", 2);
  put_value(x, value);
  put(x, "\r\n", 2);
}

static void
put_chunk(oct_http_exchange *x, const void *bytes, gsize size) {
  char line[24];
  int n = g_snprintf(line, sizeof line, "%" G_GSIZE_MODIFIER "x\r\n", size);
  put(x, line, (gsize)n);
  put(x, bytes, size);
  put(x, "\r\n", 2);
}

/* --- heads ------------------------------------------------------------------------------------ */

static gboolean
has_body(guint status) {
  return status != 204 && status != 304;
}

static gboolean
may_set(const char *name) {
  static const char *const own[] = {"Content-Length", "Transfer-Encoding", "Connection",
                                    "Content-Type", "X-Request-Id"};
  for (gsize i = 0; i < G_N_ELEMENTS(own); i++)
    if (g_ascii_strcasecmp(name, own[i]) == 0)
      return FALSE;
  for (const char *c = name; *c != '\0'; c++)
    if (!oct_http_is_token(*c))
      return FALSE;
  return *name != '\0';
}

/* `length` is NULL for an answer that does not say where it ends. */
static void
put_head(oct_http_exchange *x, const oct_http_reply *reply, const gsize *length) {
  char line[64];
  oct_assert(reply->status >= 200 && reply->status <= 599);
  g_snprintf(line, sizeof line, "HTTP/1.1 %u %s\r\n", reply->status, reason_of(reply->status));
  put_text(x, line);
  if (reply->content_type != NULL)
    put_field(x, "Content-Type", reply->content_type);
  if (length != NULL && has_body(reply->status)) {
    g_snprintf(line, sizeof line, "%" G_GSIZE_FORMAT, *length);
    put_field(x, "Content-Length", line);
  }
  if (x->chunked)
    put_text(x, "Transfer-Encoding: chunked\r\n");
  if (x->id[0] != '\0')
    put_field(x, "X-Request-Id", x->id);
  for (guint i = 0; i < reply->n_fields; i++) {
    oct_assert(may_set(reply->fields[i].name));
    put_field(x, reply->fields[i].name, reply->fields[i].value);
  }
  if (x->close)
    put_text(x, "Connection: close\r\n");
  else if (oct_http_parser_request(x->parser)->minor == 0)
    put_text(x, "Connection: keep-alive\r\n");
  put(x, "\r\n", 2);
}

/* Behind an answer to a request that is not whole, nobody knows where the next one begins. */
static void
choose_close(oct_http_exchange *x) {
  x->close = oct_http_parser_state(x->parser) != OCT_HTTP_DONE ||
             !oct_http_parser_request(x->parser)->keep_alive || x->shared->draining;
}

static void
end(oct_http_exchange *x) {
  oct_http_connection_enter(x, OCT_HTTP_ANSWERED);
  x->shared->wake(x);
}

/* --- answers ---------------------------------------------------------------------------------- */

void
oct_http_respond(oct_http_exchange *x, const oct_http_reply *reply) {
  oct_assert(oct_http_connection_is_open(x) && x->phase != OCT_HTTP_STREAMING);
  choose_close(x);
  put_head(x, reply, &reply->body.size);
  if (oct_http_parser_request(x->parser)->method != OCT_HTTP_HEAD && has_body(reply->status))
    put(x, reply->body.bytes, reply->body.size);
  end(x);
}

void
oct_http_stream_begin(oct_http_exchange *x, const oct_http_reply *reply) {
  oct_assert(oct_http_connection_is_open(x) && x->phase != OCT_HTTP_STREAMING);
  oct_assert(has_body(reply->status));
  const oct_http_request *request = oct_http_parser_request(x->parser);
  choose_close(x);
  x->mute = request->method == OCT_HTTP_HEAD;
  x->chunked = request->minor > 0;
  x->close |= !x->chunked && !x->mute;
  put_head(x, reply, NULL);
  oct_http_connection_enter(x, OCT_HTTP_STREAMING);
  x->shared->wake(x);
  (void)!oct_http_stream_write(x, reply->body.bytes, reply->body.size);
}

gboolean
oct_http_stream_write(oct_http_exchange *x, const void *bytes, gsize size) {
  oct_assert(x->phase == OCT_HTTP_STREAMING);
  if (x->doomed)
    return FALSE;
  if (size == 0 || x->mute)
    return TRUE;
  if (x->chunked)
    put_chunk(x, bytes, size);
  else
    put(x, bytes, size);
  gsize max = x->shared->config.limits.queue_bytes;
  if (!x->doomed && x->out.used - x->out.at > max)
    x->shared->push(x);
  if (!x->doomed && x->out.used - x->out.at > max) {
    x->doomed = TRUE;
    x->doom = OCT_HTTP_GONE_STALLED;
  }
  x->shared->wake(x);
  return !x->doomed;
}

void
oct_http_stream_end(oct_http_exchange *x) {
  oct_assert(x->phase == OCT_HTTP_STREAMING);
  if (x->chunked && !x->mute)
    put(x, "0\r\n\r\n", 5);
  end(x);
}

/* --- errors ----------------------------------------------------------------------------------- */

/* Owned, by free(). */
static char *
error_body(guint status, const char *message) {
  json_t *body = json_pack("{s:{s:s, s:s, s:n, s:i}}", "error", "message", message, "type",
                           status < 500 ? "invalid_request_error" : "server_error", "param", "code",
                           (int)status);
  char *text = json_dumps(body, JSON_COMPACT);
  json_decref(body);
  return text;
}

void
oct_http_respond_error(oct_http_exchange *x, guint status, const char *message) {
  char *body = error_body(status, message);
  oct_assert(body != NULL); /* not UTF-8 */
  oct_http_respond(x, &(oct_http_reply){.status = status,
                                        .content_type = "application/json",
                                        .body = {body, strlen(body)}});
  free(body);
}

void
oct_http_answer_refusal(oct_http_exchange *x, guint status, const char *reason) {
  char *body = error_body(status, reason);
  gsize size = strlen(body);
  x->chunked = FALSE;
  x->close = TRUE;
  put_head(
      x,
      &(oct_http_reply){.status = status, .content_type = "application/json", .body = {body, size}},
      &size);
  put(x, body, size);
  free(body);
  oct_http_connection_enter(x, OCT_HTTP_CLOSING);
  x->shared->wake(x);
}

void
oct_http_answer_continue(oct_http_exchange *x) {
  put_text(x, "HTTP/1.1 100 Continue\r\n\r\n");
  x->shared->wake(x);
}
