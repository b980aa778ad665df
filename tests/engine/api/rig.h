/* The API behind a real HTTP server on a socket pair, in front of the fake service: what a client
 * sends and what it gets back. Time is the test's. */
#ifndef OCT_TESTS_API_RIG_H
#define OCT_TESTS_API_RIG_H

#include "engine/api/api.h"
#include "tests/engine/api/fake-service.h"
#include "tests/engine/api/reply.h"

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
  const char *chat; /* family of the renderer; NULL: chatml. Kimi K3 has its own vocabulary */
  const char *const *keys; /* [n_keys] */
  guint n_keys;
  guint32 context; /* 0: 512 */
  oct_api_pooling pooling;
  gboolean no_chat, tokenizer_info, always_usage, always_metrics;
} rig_options;

rig *rig_new(const rig_options *options); /* NULL: none */
void rig_free(rig *r);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(rig, rig_free)

/* Sends a request as it stands and reads its answer, running everything until there is one. */
rig_reply rig_send(rig *r, const char *bytes);
/* With Host, Content-Type and Content-Length; `fields`: more header lines, or NULL. */
rig_reply rig_post_with(rig *r, const char *path, const char *fields, const char *body);
rig_reply rig_post(rig *r, const char *path, const char *body);
rig_reply rig_get(rig *r, const char *path);
/* The answer's body as JSON, of this status (asserted). Owned. */
json_t *rig_json(rig *r, guint status, const char *path, const char *body);
typedef enum rig_leaving { RIG_CLOSES, RIG_HALF_CLOSES, RIG_IS_ABORTED } rig_leaving;
/* Posts a request, lets the service do `steps` things, and leaves without its answer (or the server
 * stops: after that only rig_free()). */
void rig_leave(rig *r, const char *path, const char *body, guint steps, rig_leaving how);
/* Asserts that the request is refused so, with error.param (NULL: null). */
void rig_refuses(rig *r, const char *path, const char *body, guint status, const char *param);

#endif
