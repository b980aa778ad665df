#include "tests/engine/http/handler.h"

#include <string.h>

#include "engine/base/assert.h"
#include "tests/engine/http/http-drive.h"
#include "tests/engine/http/probes.h"

/* What an exchange may be told next: its user pointer. */
static char told_head[] = "head", told_request[] = "request";

static void
note(oct_http_test_handler *h, const char *event) {
  g_string_append_printf(h->events, "%s%s", h->events->len > 0 ? " " : "", event);
}

static gboolean
is_below(const oct_http_request *r, const char *prefix) {
  return r->path.size >= strlen(prefix) && memcmp(r->path.bytes, prefix, strlen(prefix)) == 0;
}

static void
on_head(void *user, oct_http_exchange *x) {
  oct_http_test_handler *h = user;
  note(h, "head");
  oct_assert(oct_http_exchange_user(x) == NULL);
  oct_http_exchange_set_user(x, told_head);
  if (is_below(oct_http_exchange_request(x), "/refuse"))
    oct_http_respond_error(x, 401, "no key");
  else
    g_ptr_array_add(h->open, x);
}

static void
respond(oct_http_exchange *x, const char *text) {
  oct_http_respond(
      x,
      &(oct_http_reply){.status = 200, .content_type = "text/plain", .body = {text, strlen(text)}});
}

static void
on_request(void *user, oct_http_exchange *x) {
  oct_http_test_handler *h = user;
  const oct_http_request *r = oct_http_exchange_request(x);
  const oct_http_reply stream = {.status = 200, .content_type = "text/event-stream"};
  note(h, "request");
  oct_assert(oct_http_exchange_user(x) == told_head);
  oct_http_exchange_set_user(x, told_request);
  if (is_below(r, "/wait"))
    return;
  if (is_below(r, "/stream")) {
    oct_http_stream_begin(x, &stream);
    return;
  }
  oct_assert(g_ptr_array_remove(h->open, x));
  if (is_below(r, "/sse")) {
    oct_http_stream_begin(x, &stream);
    (void)!oct_http_stream_write(x, "data: 1\n\n", 9);
    (void)!oct_http_stream_write(x, "data: 2\n\n", 9);
    oct_http_stream_end(x);
    return;
  }
  g_autoptr(GString) text = g_string_new(NULL);
  oct_http_drive_describe(r, text);
  if (r->body.bytes != NULL)
    g_string_append_c(text, ' ');
  g_string_append_len(text, r->body.bytes, (gssize)r->body.size);
  oct_http_respond(x, &(oct_http_reply){.status = 200,
                                        .content_type = "text/plain",
                                        .body = {text->str, text->len}});
}

static void
on_gone(void *user, oct_http_exchange *x, oct_http_gone why) {
  static const char *const names[] = {"left", "stalled", "timeout", "refused", "memory", "aborted"};
  oct_http_test_handler *h = user;
  oct_assert(oct_http_exchange_request(x)->path.size > 0);
  oct_assert(g_ptr_array_remove(h->open, x));
  oct_assert(why < G_N_ELEMENTS(names));
  note(h, "gone:");
  g_string_append(h->events, names[why]);
}

static gint64
clock_now(void *user) {
  return ((oct_http_test_handler *)user)->now_ns;
}

void
oct_http_test_handler_init(oct_http_test_handler *h) {
  *h = (oct_http_test_handler){g_string_new(NULL), g_ptr_array_new(), 1000};
}

void
oct_http_test_handler_clear(oct_http_test_handler *h) {
  oct_assert(h->open->len == 0);
  g_string_free(h->events, TRUE);
  g_ptr_array_unref(h->open);
}

oct_http_server_config
oct_http_test_config(oct_http_test_handler *h, oct_budget *budget) {
  oct_http_server_limits limits = oct_http_server_limits_standard();
  limits.request.body_bytes = OCT_HTTP_PROBE_BODY_MAX;
  return (oct_http_server_config){
      .limits = limits,
      .handler = {on_head, on_request, on_gone},
      .user = h,
      .budget = budget,
      .now_ns = clock_now,
      .clock = h,
      .id_seed = 1,
  };
}

oct_http_exchange *
oct_http_test_first(const oct_http_test_handler *h) {
  oct_assert(h->open->len > 0);
  return g_ptr_array_index(h->open, 0);
}

void
oct_http_test_answer(oct_http_test_handler *h, const char *text) {
  oct_http_exchange *x = oct_http_test_first(h);
  g_ptr_array_remove_index(h->open, 0);
  respond(x, text);
}

void
oct_http_test_end(oct_http_test_handler *h) {
  oct_http_exchange *x = oct_http_test_first(h);
  g_ptr_array_remove_index(h->open, 0);
  oct_http_stream_end(x);
}

/* --- reading answers -------------------------------------------------------------------------- */

/* The value of a header in [head, end), NULL without it; asserts that it comes once. Owned. */
static char *
find_header(const char *head, gsize size, const char *name) {
  g_autofree char *text = g_strndup(head, size);
  g_auto(GStrv) lines = g_strsplit(text, "\r\n", -1);
  g_autofree char *prefix = g_strdup_printf("%s: ", name);
  char *value = NULL;
  for (char **line = lines; *line != NULL; line++)
    if (g_ascii_strncasecmp(*line, prefix, strlen(prefix)) == 0) {
      oct_assert(value == NULL);
      value = g_strdup(*line + strlen(prefix));
    }
  return value;
}

/* Decodes chunks; returns the bytes read, 0 when they are not whole. */
static gsize
read_chunks(const char *bytes, gsize size, GString *body) {
  gsize at = 0;
  for (;;) {
    const char *line = g_strstr_len(bytes + at, (gssize)(size - at), "\r\n");
    if (line == NULL)
      return 0;
    char *end;
    gsize n = (gsize)g_ascii_strtoull(bytes + at, &end, 16);
    oct_assert(end == line && end > bytes + at);
    at = (gsize)(line - bytes) + 2;
    if (size - at < n + 2)
      return 0;
    g_string_append_len(body, bytes + at, (gssize)n);
    oct_assert(memcmp(bytes + at + n, "\r\n", 2) == 0);
    at += n + 2;
    if (n == 0)
      return at;
  }
}

/* One answer; returns its size, or `size` when the rest belongs to it or is not whole. */
static gsize
read_answer(const char *bytes, gsize size, gboolean heads, GString *out) {
  const char *end = g_strstr_len(bytes, (gssize)size, "\r\n\r\n");
  if (end == NULL) {
    g_string_append(out, "…");
    return size;
  }
  gsize head = (gsize)(end - bytes) + 4;
  oct_assert(g_str_has_prefix(bytes, "HTTP/1.1 "));
  guint status = (guint)g_ascii_strtoull(bytes + 9, NULL, 10);
  if (status == 100)
    return head;
  g_autofree char *length = find_header(bytes, head, "Content-Length");
  g_autofree char *coding = find_header(bytes, head, "Transfer-Encoding");
  g_autofree char *connection = find_header(bytes, head, "Connection");
  oct_assert(length == NULL || coding == NULL);
  if (out->len > 0)
    g_string_append(out, " | ");
  if (status != 200 || heads)
    g_string_append_printf(out, "%u", status);
  if (heads)
    return head;
  g_autoptr(GString) body = g_string_new(NULL);
  gsize n = size - head;
  gboolean whole = TRUE;
  if (length != NULL) {
    gsize wanted = (gsize)g_ascii_strtoull(length, NULL, 10);
    whole = wanted <= n;
    n = MIN(n, wanted);
    g_string_append_len(body, bytes + head, (gssize)n);
  } else if (coding != NULL) {
    gsize used = read_chunks(bytes + head, n, body);
    whole = used > 0;
    n = whole ? used : n;
  } else {
    oct_assert(connection != NULL && g_str_equal(connection, "close"));
    g_string_append_len(body, bytes + head, (gssize)n);
  }
  if (status == 200)
    g_string_append_len(out, body->str, (gssize)body->len);
  else if (whole)
    oct_assert(strstr(body->str, "{\"error\":{\"message\":\"") != NULL);
  if (!whole)
    g_string_append(out, "…");
  return head + n;
}

void
oct_http_test_read(const char *bytes, gsize size, gboolean heads, GString *out) {
  for (gsize at = 0; at < size;)
    at += read_answer(bytes + at, size - at, heads, out);
}
