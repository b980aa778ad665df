#include "client/talk.h"

#include <stdlib.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/assert.h"

struct oct_talk {
  json_t *messages; /* without the system message */
  char *system;     /* "" = none */
};

oct_talk *
oct_talk_new(void) {
  oct_talk *talk = g_new0(oct_talk, 1);
  talk->messages = json_array();
  talk->system = g_strdup("");
  return talk;
}

void
oct_talk_free(oct_talk *talk) {
  if (talk == NULL)
    return;
  json_decref(talk->messages);
  g_free(talk->system);
  g_free(talk);
}

/* JSON holds text only: bytes that are none become U+FFFD. */
static json_t *
message(const char *role, const char *text) {
  g_autofree char *valid = g_utf8_make_valid(text, -1);
  return json_pack("{s:s, s:s}", "role", role, "content", valid);
}

void
oct_talk_set_system(oct_talk *talk, const char *text) {
  char *copy = g_strdup(text);
  g_free(talk->system);
  talk->system = copy;
}

void
oct_talk_add(oct_talk *talk, const char *role, const char *text) {
  json_array_append_new(talk->messages, message(role, text));
}

void
oct_talk_drop_last(oct_talk *talk) {
  gsize n = json_array_size(talk->messages);
  oct_assert(n > 0);
  json_array_remove(talk->messages, n - 1);
}

void
oct_talk_reset(oct_talk *talk) {
  json_array_clear(talk->messages);
}

/* All messages, the system's first. */
static json_t *
all_messages(const oct_talk *talk) {
  json_t *list = json_array();
  if (*talk->system != '\0')
    json_array_append_new(list, message("system", talk->system));
  json_array_extend(list, talk->messages);
  return list;
}

char *
oct_talk_body(const oct_talk *talk, const char *model, guint32 max_tokens, double temperature,
              gsize *n) {
  json_t *root = json_pack("{s:s, s:b, s:{s:b}, s:o}", "model", model, "stream", 1,
                           "stream_options", "include_usage", 1, "messages", all_messages(talk));
  oct_assert(root != NULL);
  if (max_tokens > 0)
    json_object_set_new(root, "max_tokens", json_integer(max_tokens));
  if (temperature >= 0)
    json_object_set_new(root, "temperature", json_real(temperature));
  char *text = json_dumps(root, JSON_COMPACT), *copy = g_strdup(text);
  free(text);
  json_decref(root);
  *n = strlen(copy);
  return copy;
}

gboolean
oct_talk_save(const oct_talk *talk, const char *model, const char *path, GError **error) {
  json_t *root = json_pack("{s:s, s:o}", "model", model, "messages", all_messages(talk));
  char *text = json_dumps(root, JSON_INDENT(1));
  /* Into the file that is there, never in its place: it may be a link or a device. */
  FILE *file = fopen(path, "we");
  gboolean good = file != NULL && fputs(text, file) != EOF;
  int why = errno;
  if (file != NULL && fclose(file) != 0 && good) {
    good = FALSE;
    why = errno;
  }
  if (!good)
    g_set_error(error, G_FILE_ERROR, (gint)g_file_error_from_errno(why), "%s: cannot write: %s",
                path, g_strerror(why));
  free(text);
  json_decref(root);
  return good;
}

guint
oct_talk_n_messages(const oct_talk *talk) {
  return (guint)json_array_size(talk->messages) + (*talk->system != '\0');
}
