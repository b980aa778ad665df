/* The API behind a real HTTP server on a socket pair, in front of the fake service: what a client
 * sends and what it gets back. Time is the test's. */
#ifndef OCT_TESTS_API_RIG_H
#define OCT_TESTS_API_RIG_H

#include <jansson.h>

#include "engine/api/api.h"
#include "tests/engine/api/fake-service.h"

#define RIG_TOKENS 4096 /* what the API takes for the vocabulary; the tokenizer has fewer */

typedef struct rig {
  oct_budget *budget;
  oct_tokenizer *tokenizer;
  oct_chat_renderer *renderer;
  oct_service *service;
  oct_http_server *server;
  oct_api *api;
  GString *log;
} rig;

typedef struct rig_options {
  const char *chat;        /* family of the renderer; NULL: chatml */
  const char *const *keys; /* [n_keys] */
  guint n_keys;
  guint32 context; /* 0: 512 */
  oct_api_pooling pooling;
  gboolean no_chat, tokenizer_info, always_usage, always_metrics;
} rig_options;

typedef struct rig_reply {
  guint status;
  char *head; /* with the status line */
  char *body; /* without chunks */
} rig_reply;

rig *rig_new(const rig_options *options); /* NULL: none */
void rig_free(rig *r);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(rig, rig_free)
void rig_reply_clear(rig_reply *reply);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(rig_reply, rig_reply_clear)

/* Sends a request as it stands and reads its answer, running everything until there is one. */
rig_reply rig_send(rig *r, const char *bytes);
/* With Host, Content-Type and Content-Length; `fields`: more header lines, or NULL. */
rig_reply rig_post_with(rig *r, const char *path, const char *fields, const char *body);
rig_reply rig_post(rig *r, const char *path, const char *body);
rig_reply rig_get(rig *r, const char *path);
/* The answer's body as JSON, of this status (asserted). Owned. */
json_t *rig_json(rig *r, guint status, const char *path, const char *body);
/* A body written with ' for " — for requests in C strings. Owned. */
char *rig_quote(const char *text);
/* Asserts that the request is refused so, with error.param (NULL: null). */
void rig_refuses(rig *r, const char *path, const char *body, guint status, const char *param);

/* The value at a path such as "choices.0.message.content"; NULL when there is none. */
const json_t *rig_at(const json_t *value, const char *path);
const char *rig_text(const json_t *value, const char *path);
gint64 rig_int(const json_t *value, const char *path);

/* The data frames of a stream, without [DONE], which is asserted to be the last and the only. */
json_t *rig_frames(const char *body);
/* All strings at `path` of the frames, one behind the other. Owned. */
char *rig_join(const json_t *frames, const char *path);

#endif
