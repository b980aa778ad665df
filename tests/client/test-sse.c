/* Events are the same however their bytes are cut. */
#include <string.h>

#include "client/sse.h"

static gboolean
collect(void *user, const char *type, const char *data, gsize n) {
  GString *out = user;
  g_assert_cmpuint(n, ==, strlen(data));
  g_string_append_printf(out, "%s|%s;", type, data);
  return strcmp(data, "stop") != 0;
}

/* What is read of `bytes`, cut into pieces of `cut`. */
static char *
read_all(const char *bytes, gsize cut, oct_sse_status *status) {
  GString *out = g_string_new(NULL);
  g_autoptr(oct_sse) sse = oct_sse_new(collect, out);
  gsize n = strlen(bytes);
  *status = OCT_SSE_GO_ON;
  for (gsize at = 0; at < n; at += cut)
    *status = oct_sse_feed(sse, bytes + at, MIN(cut, n - at));
  return g_string_free(out, FALSE);
}

static const struct {
  const char *name, *bytes, *events;
} rows[] = {
    {"one", "data: a\n\n", "|a;"},
    {"without-blank", "data:a\n\n", "|a;"},
    {"one-blank-only", "data:  a\n\n", "| a;"},
    {"several", "data: a\n\ndata: b\n\n", "|a;|b;"},
    {"lines-are-joined", "data: a\ndata: b\n\n", "|a\nb;"},
    {"empty-data", "data\n\ndata:\n\n", "|;|;"},
    {"cr-lf", "data: a\r\n\r\ndata: b\r\n\r\n", "|a;|b;"},
    {"cr", "data: a\r\rdata: b\r\r", "|a;|b;"},
    {"mixed-ends", "data: a\n\r\ndata: b\r\ndata: c\r\r\n", "|a;|b\nc;"},
    {"types", "event: ping\ndata: {}\n\ndata: x\n\n", "ping|{};|x;"},
    {"type-alone", "event: ping\n\ndata: x\n\n", "|x;"},
    {"comments", ": keep-alive\n\n: a\ndata: x\n\n", "|x;"},
    {"other-fields", "id: 1\nretry: 5\nfoo\ndata: x\n\n", "|x;"},
    {"mark-at-the-start",
     "\xef\xbb\xbf"
     "data: x\n\n",
     "|x;"},
    {"no-end", "data: x\n\ndata: y\n", "|x;"},
    {"stopped", "data: stop\n\ndata: y\n\n", "|stop;"},
};

static void
test_row(gconstpointer data) {
  gsize i = GPOINTER_TO_SIZE(data);
  for (gsize cut = 1; cut <= strlen(rows[i].bytes); cut++) {
    oct_sse_status status;
    g_autofree char *got = read_all(rows[i].bytes, cut, &status);
    g_assert_cmpstr(got, ==, rows[i].events);
    g_assert_cmpint(status, ==,
                    strstr(rows[i].events, "stop") != NULL ? OCT_SSE_STOPPED : OCT_SSE_GO_ON);
  }
}

/* The limit counts an event's data and the line that is being read. */
static void
test_limit(gconstpointer data) {
  gboolean above = GPOINTER_TO_INT(data);
  g_autoptr(GString) out = g_string_new(NULL);
  g_autoptr(oct_sse) sse = oct_sse_new(collect, out);
  gsize n = OCT_SSE_EVENT_BYTES_MAX - strlen("data:") + (gsize)above;
  g_autofree char *long_text = g_strnfill(n, 'x');
  oct_sse_status status = oct_sse_feed(sse, "data:", 5);
  status = oct_sse_feed(sse, long_text, n);
  if (status == OCT_SSE_GO_ON)
    status = oct_sse_feed(sse, "\n\n", 2);
  g_assert_cmpint(status, ==, above ? OCT_SSE_TOO_LONG : OCT_SSE_GO_ON);
  g_assert_cmpuint(out->len, ==, above ? 0 : n + 2);
  g_assert_cmpint(oct_sse_feed(sse, "data: a\n\n", 9), ==, status);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autofree char *path = g_strconcat("/sse/", rows[i].name, NULL);
    g_test_add_data_func(path, GSIZE_TO_POINTER(i), test_row);
  }
  g_test_add_data_func("/sse/longest-event", GINT_TO_POINTER(0), test_limit);
  g_test_add_data_func("/sse/event-too-long", GINT_TO_POINTER(1), test_limit);
  return g_test_run();
}
