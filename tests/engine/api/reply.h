/* Reading what a server answers, for the tests of the API. */
#ifndef OCT_TESTS_API_REPLY_H
#define OCT_TESTS_API_REPLY_H

#include <glib.h>
#include <jansson.h>

typedef struct rig_reply {
  guint status;
  char *head; /* with the status line */
  char *body; /* without chunks */
} rig_reply;

void rig_reply_clear(rig_reply *reply);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(rig_reply, rig_reply_clear)

/* FALSE while the answer is not whole. `closed`: nothing more comes; `to_head`: it has no body. */
gboolean rig_read_reply(const GString *bytes, gboolean closed, gboolean to_head, rig_reply *reply);
/* A body written with ' for " — for requests in C strings. Owned. */
char *rig_quote(const char *text);
/* The value at a path such as "choices.0.message.content"; NULL when there is none. */
const json_t *rig_at(const json_t *value, const char *path);
const char *rig_text(const json_t *value, const char *path);
gint64 rig_int(const json_t *value, const char *path);

/* The data frames of a stream, without [DONE], which is asserted to be the last and the only. */
json_t *rig_frames(const char *body);
/* All strings at `path` of the frames, one behind the other. Owned. */
char *rig_join(const json_t *frames, const char *path);

#endif
