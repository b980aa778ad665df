/* The API: routes, keys and endpoints between the HTTP server and the service.
 *
 *   bytes -- engine/http --> exchange -- oct_api_handler() --> route --> plan -->
 * oct_service_submit() bytes <-- engine/http -- chunks or a whole answer <-- shape of the endpoint
 * <-- deltas
 *
 * Everything runs in the front's thread. doc/http-api.md lists every endpoint and field.
 */
#ifndef OCT_API_API_H
#define OCT_API_API_H

#include "engine/base/hash.h"
#include "engine/http/server.h"
#include "engine/serve/service.h"
#include "engine/text/chat.h"
#include "engine/text/parse.h"

#define OCT_API_NAMES_MAX 64u /* served names of a model */

#define OCT_API_ERROR (oct_api_error_quark())
GQuark oct_api_error_quark(void);
typedef enum oct_api_error {
  OCT_API_ERROR_CONFIG, /* names, keys or templates that cannot be served */
} oct_api_error;

/* How /v1/embeddings makes one vector of a prompt's. */
typedef enum oct_api_pooling {
  OCT_API_POOL_NONE, /* the endpoint does not exist */
  OCT_API_POOL_LAST,
  OCT_API_POOL_MEAN,
} oct_api_pooling;

/* Borrowed pointers outlive the API. */
typedef struct oct_api_config {
  oct_service *service;     /* borrowed */
  const char *const *names; /* [n_names] --served-model-name: what requests may call the model, the
                               first is what answers call it when a request does not; copied */
  guint n_names;
  const char *root;                  /* where the model is from, for /v1/models; NULL: the name */
  const oct_chat_renderer *renderer; /* borrowed; NULL: no chat, and `no_chat` says why */
  const char *no_chat;               /* copied; may be NULL */
  oct_parse_family family;           /* oct_api_parse_family() */
  guint32 n_tokens;        /* of the model's vocabulary; 0: as many as the tokenizer has */
  const char *const *keys; /* [n_keys] --api-key; only their digests are kept */
  guint n_keys;
  const char *version;           /* of Octet; copied */
  gint64 (*unix_s)(void *clock); /* seconds since 1970: `created`, dates in templates */
  gint64 (*now_ns)(void *clock); /* the server's clock */
  void *clock;
  oct_hash_key id_key; /* ids of tool calls and items are made with it */
  oct_api_pooling pooling;
  gboolean tokenizer_info;    /* --enable-tokenizer-info-endpoint */
  gboolean always_usage;      /* --enable-force-include-usage */
  gboolean always_metrics;    /* --enable-per-request-metrics */
  gboolean no_prompt_details; /* no prompt_tokens_details */
  gint64 timeout_ns;          /* of a generation; 0: none */
  /* A line per request that has been answered or left: id, peer, method, route, status, time. NULL:
   * none. */
  void (*log)(void *user, const char *line);
  /* Appends to /metrics what is not the service's. NULL: nothing. */
  void (*metrics)(void *user, GString *out);
  void *user; /* of log and metrics */
} oct_api_config;

typedef struct oct_api oct_api;

/* Life cycle. NULL with *error: no name, or one that cannot be. */
oct_api *oct_api_new(const oct_api_config *config, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Free the server first, so that every exchange has ended, then the service, so that no text thread
 * is at work for it. Accepts NULL. */
void oct_api_free(oct_api *api);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_api, oct_api_free)

/* What the server calls, with the oct_api as its user. */
oct_http_handler oct_api_handler(void);

/* Keep-alive comments of streams that have been silent, looked for now and then: call turn at
 * deadline or later; G_MAXINT64: never. */
#define OCT_API_SILENCE_NS (5 * G_GINT64_CONSTANT(1000000000))
#define OCT_API_LOOK_NS    G_GINT64_CONSTANT(1000000000)
gint64 oct_api_deadline(const oct_api *api);
void oct_api_turn(oct_api *api);

/* How answers of a model are taken apart whose prompts are of this family. */
oct_parse_family oct_api_parse_family(oct_chat_family family);

#endif
