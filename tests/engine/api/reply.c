#include "tests/engine/api/reply.h"

#include <string.h>

void
rig_reply_clear(rig_reply *reply) {
  g_free(reply->head);
  g_free(reply->body);
}

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

gboolean
rig_read_reply(const GString *bytes, gboolean closed, gboolean to_head, rig_reply *reply) {
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

char *
rig_quote(const char *text) {
  char *quoted = g_strdup(text);
  return g_strdelimit(quoted, "'", '"');
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
