/* Lines are collected in a buffer and read when they are whole; the data of an event in another. */
#include "client/sse.h"

#include <string.h>

struct oct_sse {
  oct_sse_fn event;
  void *user;
  GString *line, *type, *data;
  gboolean has_data, after_cr, begun;
  oct_sse_status status;
};

oct_sse *
oct_sse_new(oct_sse_fn event, void *user) {
  oct_sse *sse = g_new0(oct_sse, 1);
  sse->event = event;
  sse->user = user;
  sse->line = g_string_new(NULL);
  sse->type = g_string_new(NULL);
  sse->data = g_string_new(NULL);
  return sse;
}

void
oct_sse_free(oct_sse *sse) {
  if (sse == NULL)
    return;
  g_string_free(sse->line, TRUE);
  g_string_free(sse->type, TRUE);
  g_string_free(sse->data, TRUE);
  g_free(sse);
}

static void
dispatch(oct_sse *sse) {
  if (sse->has_data && !sse->event(sse->user, sse->type->str, sse->data->str, sse->data->len))
    sse->status = OCT_SSE_STOPPED;
  g_string_truncate(sse->type, 0);
  g_string_truncate(sse->data, 0);
  sse->has_data = FALSE;
}

/* The value of a line's field, one space behind the colon left out. */
static const char *
value_of(const char *line, gsize n, gsize name, gsize *length) {
  gsize at = MIN(name + 1, n);
  if (at < n && line[at] == ' ')
    at++;
  *length = n - at;
  return line + at;
}

static void
read_line(oct_sse *sse, const char *line, gsize n) {
  static const char mark[] = "\xef\xbb\xbf";
  if (!sse->begun && n >= 3 && memcmp(line, mark, 3) == 0) {
    line += 3;
    n -= 3;
  }
  sse->begun = TRUE;
  if (n == 0) {
    dispatch(sse);
    return;
  }
  const char *colon = memchr(line, ':', n);
  gsize name = colon != NULL ? (gsize)(colon - line) : n, length;
  const char *value = value_of(line, n, name, &length);
  if (name == 4 && memcmp(line, "data", 4) == 0) {
    if (sse->has_data)
      g_string_append_c(sse->data, '\n');
    g_string_append_len(sse->data, value, (gssize)length);
    sse->has_data = TRUE;
  } else if (name == 5 && memcmp(line, "event", 5) == 0) {
    g_string_truncate(sse->type, 0);
    g_string_append_len(sse->type, value, (gssize)length);
  }
}

/* The first end of a line within n bytes; n when there is none. */
static gsize
find_end(const char *bytes, gsize n) {
  const char *lf = memchr(bytes, '\n', n);
  gsize end = lf != NULL ? (gsize)(lf - bytes) : n;
  const char *cr = memchr(bytes, '\r', end);
  return cr != NULL ? (gsize)(cr - bytes) : end;
}

oct_sse_status
oct_sse_feed(oct_sse *sse, const char *bytes, gsize n) {
  while (n > 0 && sse->status == OCT_SSE_GO_ON) {
    if (sse->after_cr && *bytes == '\n') {
      sse->after_cr = FALSE;
      bytes++;
      n--;
      continue;
    }
    sse->after_cr = FALSE;
    gsize end = find_end(bytes, n);
    if (sse->line->len + sse->data->len + end > OCT_SSE_EVENT_BYTES_MAX) {
      sse->status = OCT_SSE_TOO_LONG;
      break;
    }
    if (end == n) {
      g_string_append_len(sse->line, bytes, (gssize)n);
      break;
    }
    sse->after_cr = bytes[end] == '\r';
    if (sse->line->len == 0) {
      read_line(sse, bytes, end);
    } else {
      g_string_append_len(sse->line, bytes, (gssize)end);
      read_line(sse, sse->line->str, sse->line->len);
      g_string_truncate(sse->line, 0);
    }
    bytes += end + 1;
    n -= end + 1;
  }
  return sse->status;
}
