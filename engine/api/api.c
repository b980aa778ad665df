/* Routes: which requests there are, and who may make them.
 *
 * A request's path is brought into one spelling first. Then the key: every path but the open ones
 * needs one, whether a route has it or not. Then the route, its method, and what it says of its
 * body; all of that before a byte of the body is read.
 */
#include "engine/api/internal.h"

#include <string.h>

#include "engine/base/assert.h"

G_DEFINE_QUARK(oct - api - error, oct_api_error)

/* --- routes ------------------------------------------------------------------------------------
 */

typedef struct route {
  const char *path; /* "/…/" at the end: and everything below */
  gboolean post;    /* else GET and HEAD */
  gboolean open;    /* without a key */
  void (*run)(oct_api *api, oct_http_exchange *x, const char *path);
} route;

static void
run_chat(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  oct_api_run_plan(api, x, &oct_chat_shape, oct_chat_read);
}

static void
run_completions(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  oct_api_run_plan(api, x, &oct_completions_shape, oct_completions_read);
}

static void
run_messages(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  oct_api_run_plan(api, x, &oct_messages_shape, oct_messages_read);
}

static void
run_responses(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  oct_api_run_plan(api, x, &oct_responses_shape, oct_responses_read);
}

#define GET  .post = FALSE
#define POST .post = TRUE
static const route routes[] = {
    {"/v1/chat/completions", POST, .run = run_chat},
    {"/v1/completions", POST, .run = run_completions},
    {"/v1/models", GET, .run = oct_api_run_models},
    {"/v1/models/", GET, .run = oct_api_run_model},
    {"/v1/messages", POST, .run = run_messages},
    {"/v1/messages/count_tokens", POST, .run = oct_api_run_count_tokens},
    {"/v1/responses", POST, .run = run_responses},
    {"/v1/embeddings", POST, .run = oct_api_run_embeddings},
    {"/tokenize", POST, .run = oct_api_run_tokenize},
    {"/detokenize", POST, .run = oct_api_run_detokenize},
    {"/tokenizer_info", GET, .run = oct_api_run_tokenizer_info},
    {"/health", GET, .open = TRUE, .run = oct_api_run_health},
    {"/livez", GET, .open = TRUE, .run = oct_api_run_livez},
    {"/readyz", GET, .open = TRUE, .run = oct_api_run_readyz},
    {"/ping", GET, .open = TRUE, .run = oct_api_run_ping},
    {"/ping", POST, .open = TRUE, .run = oct_api_run_ping},
    {"/metrics", GET, .open = TRUE, .run = oct_api_run_metrics},
    {"/version", GET, .run = oct_api_run_version},
    {"/load", GET, .run = oct_api_run_load},
};

static gboolean
fits(const route *r, const char *path) {
  gsize n = strlen(r->path);
  return r->path[n - 1] == '/' ? strncmp(path, r->path, n) == 0 && path[n] != '\0'
                               : g_str_equal(path, r->path);
}

/* NULL with a fault: 404, or 405 with what the path allows. */
static const route *
find_route(const char *path, oct_http_method method, oct_api_fault *fault) {
  gboolean get = FALSE, post = FALSE;
  gboolean posts = method == OCT_HTTP_POST;
  gboolean gets = method == OCT_HTTP_GET || method == OCT_HTTP_HEAD;
  for (gsize i = 0; i < G_N_ELEMENTS(routes); i++) {
    if (!fits(&routes[i], path))
      continue;
    if (routes[i].post ? posts : gets)
      return &routes[i];
    *(routes[i].post ? &post : &get) = TRUE;
  }
  if (!get && !post)
    oct_api_refuse(fault, 404, NULL, "there is no such path");
  else {
    oct_api_refuse(fault, 405, NULL, "the path does not have this method");
    fault->allow = get && post ? "GET, HEAD, POST" : get ? "GET, HEAD" : "POST";
  }
  return NULL;
}

static gboolean
is_open(const char *path) {
  for (gsize i = 0; path != NULL && i < G_N_ELEMENTS(routes); i++)
    if (routes[i].open && g_str_equal(routes[i].path, path))
      return TRUE;
  return FALSE;
}

/* --- what a request's head must be --------------------------------------------------------------
 */

static gboolean
check_key(const oct_api *api, const char *path, const oct_http_request *request,
          oct_api_fault *fault) {
  if (is_open(path) || oct_api_keys_accept(api->keys, request))
    return TRUE;
  oct_api_refuse(fault, 401, NULL, "a valid API key is needed: Authorization: Bearer KEY");
  fault->code = "invalid_api_key";
  return FALSE;
}

/* application/json, and other types of that kind, whatever their parameters. */
static gboolean
is_json_type(oct_http_slice type) {
  const char *end = memchr(type.bytes, ';', type.size);
  gsize n = end != NULL ? (gsize)(end - type.bytes) : type.size;
  while (n > 0 && g_ascii_isspace(type.bytes[n - 1]))
    n--;
  return oct_http_slice_is((oct_http_slice){type.bytes, n}, "application/json") ||
         (n > 5 && g_ascii_strncasecmp(type.bytes + n - 5, "+json", 5) == 0);
}

static gboolean
check_body(const route *r, const oct_http_request *request, oct_api_fault *fault) {
  const oct_http_slice *type = oct_http_request_header(request, "content-type");
  const oct_http_slice *coding = oct_http_request_header(request, "content-encoding");
  if (coding != NULL && coding->size > 0 && !oct_http_slice_is(*coding, "identity"))
    return oct_api_refuse(fault, 415, NULL, "the body has a Content-Encoding: send it as it is");
  return !r->post || r->open || type == NULL || is_json_type(*type) ||
         oct_api_refuse(fault, 415, NULL,
                        "the body must be JSON and say so: Content-Type: application/json");
}

/* No route reads the query; a key that comes twice means two things to two readers all the same. */
static gboolean
check_query(oct_http_slice query, oct_api_fault *fault) {
  g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  for (gsize at = 0; query.bytes != NULL && at < query.size;) {
    const char *part = query.bytes + at, *end = memchr(part, '&', query.size - at);
    gsize size = end != NULL ? (gsize)(end - part) : query.size - at;
    const char *equals = memchr(part, '=', size);
    gsize n = equals != NULL ? (gsize)(equals - part) : size;
    if (n > 0 && !g_hash_table_add(seen, g_strndup(part, n)))
      return oct_api_refuse(fault, 400, NULL, "the query has a key twice");
    at += size + 1;
  }
  return TRUE;
}

static const route *
admit(const oct_api *api, const oct_http_request *request, char **path, oct_api_fault *fault) {
  *path = oct_api_path(request->path);
  if (!check_key(api, *path, request, fault))
    return NULL;
  if (*path == NULL) {
    oct_api_refuse(fault, 404, NULL, "there is no such path");
    return NULL;
  }
  const route *r = find_route(*path, request->method, fault);
  return r != NULL && check_body(r, request, fault) && check_query(request->query, fault) ? r
                                                                                          : NULL;
}

/* Anthropic's clients read its errors: of its own routes, and of whatever they ask for. */
static gboolean
speaks_anthropic(const char *path, const oct_http_request *request) {
  return (path != NULL && g_str_has_prefix(path, "/v1/messages")) ||
         oct_http_request_header(request, "anthropic-version") != NULL;
}

static void
on_head(void *user, oct_http_exchange *x) {
  oct_api *api = user;
  const oct_http_request *request = oct_http_exchange_request(x);
  g_autofree char *path = NULL;
  g_auto(oct_api_fault) fault = {.status = 0};
  if (admit(api, request, &path, &fault) == NULL)
    oct_api_respond_fault(api, x, &fault, speaks_anthropic(path, request));
}

static void
on_request(void *user, oct_http_exchange *x) {
  oct_api *api = user;
  g_autofree char *path = NULL;
  g_auto(oct_api_fault) fault = {.status = 0};
  const route *r = admit(api, oct_http_exchange_request(x), &path, &fault);
  oct_assert(r != NULL); /* as in on_head() */
  r->run(api, x, path);
}

static void
on_gone(void *user, oct_http_exchange *x, oct_http_gone why) {
  oct_api *api = user;
  const oct_job_kind *kind = oct_http_exchange_user(x);
  (void)why;
  if (kind != NULL && *kind == OCT_JOB_GENERATES) {
    oct_job_gone(oct_http_exchange_user(x));
    return;
  }
  if (kind != NULL)
    ((oct_side_job *)oct_http_exchange_user(x))->x = NULL;
  oct_api_log(api, x, 499);
}

oct_http_handler
oct_api_handler(void) {
  return (oct_http_handler){.head = on_head, .request = on_request, .gone = on_gone};
}

/* --- silent streams ----------------------------------------------------------------------------
 */

gint64
oct_api_deadline(const oct_api *api) {
  return g_queue_is_empty((GQueue *)&api->streams) ? G_MAXINT64 : api->look_ns;
}

void
oct_api_turn(oct_api *api) {
  gint64 now = api->config.now_ns(api->config.clock);
  if (oct_api_deadline(api) > now)
    return;
  for (GList *link = api->streams.head; link != NULL; link = link->next) {
    oct_job *job = link->data;
    if (job->wrote_ns + OCT_API_SILENCE_NS <= now)
      oct_job_keep_alive(job);
  }
  api->look_ns = now + OCT_API_LOOK_NS;
}

/* --- life cycle --------------------------------------------------------------------------------
 */

oct_parse_family
oct_api_parse_family(oct_chat_family family) {
  switch (family) {
  case OCT_CHAT_QWEN25:
  case OCT_CHAT_QWEN3:
    return OCT_PARSE_HERMES;
  case OCT_CHAT_LLAMA3:
    return OCT_PARSE_LLAMA3;
  case OCT_CHAT_MISTRAL:
    return OCT_PARSE_MISTRAL;
  case OCT_CHAT_KIMI_K2:
    return OCT_PARSE_KIMI_K2;
  case OCT_CHAT_KIMI_K3:
    return OCT_PARSE_KIMI_K3;
  case OCT_CHAT_TEMPLATE:
  case OCT_CHAT_CHATML:
  case OCT_CHAT_FAMILY_COUNT:
  default:
    return OCT_PARSE_PLAIN;
  }
}

guint64
oct_api_salt(const oct_api *api, const char *cache_salt) {
  return cache_salt == NULL ? 0 : oct_hash64(api->config.id_key, cache_salt, strlen(cache_salt));
}

oct_api_model
oct_api_model_of(const oct_api *api) {
  const oct_tokenizer *tokenizer = oct_service_tokenizer(api->config.service);
  return (oct_api_model){.names = (const char *const *)api->names,
                         .n_names = api->config.n_names,
                         .tokenizer = tokenizer,
                         .renderer = api->config.renderer,
                         .no_chat = api->no_chat,
                         .family = api->config.family,
                         .n_tokens = api->config.n_tokens > 0 || tokenizer == NULL
                                         ? api->config.n_tokens
                                         : oct_tokenizer_n_tokens(tokenizer),
                         .context = oct_service_max_model_len(api->config.service),
                         .now_s = api->config.unix_s(api->config.clock)};
}

oct_api *
oct_api_new(const oct_api_config *config, GError **error) {
  if (config->n_names == 0 || config->n_names > OCT_API_NAMES_MAX) {
    g_set_error(error, OCT_API_ERROR, OCT_API_ERROR_CONFIG,
                "--served-model-name: %u names, from 1 to %u are possible", config->n_names,
                OCT_API_NAMES_MAX);
    return NULL;
  }
  if (config->n_keys > OCT_API_KEYS_MAX) {
    g_set_error(error, OCT_API_ERROR, OCT_API_ERROR_CONFIG,
                "--api-key: %u keys are above the limit of %u", config->n_keys, OCT_API_KEYS_MAX);
    return NULL;
  }
  for (guint i = 0; i < config->n_keys; i++)
    if (config->keys[i][0] == '\0' || strlen(config->keys[i]) > OCT_API_KEY_MAX) {
      g_set_error(error, OCT_API_ERROR, OCT_API_ERROR_CONFIG,
                  "--api-key: key %u has %" G_GSIZE_FORMAT " bytes, from 1 to %u are possible",
                  i + 1, strlen(config->keys[i]), OCT_API_KEY_MAX);
      return NULL;
    }
  oct_api *api = g_new0(oct_api, 1);
  api->config = *config;
  api->config.keys = NULL; /* only their digests are kept */
  api->keys = oct_api_keys_new(config->keys, config->n_keys);
  api->names = g_new0(char *, config->n_names + 1);
  for (guint i = 0; i < config->n_names; i++)
    api->names[i] = g_strdup(config->names[i]);
  api->root = g_strdup(config->root != NULL ? config->root : config->names[0]);
  api->no_chat = g_strdup(config->no_chat);
  api->version = g_strdup(config->version);
  api->started_s = config->unix_s(config->clock);
  api->scratch = g_string_new(NULL);
  g_queue_init(&api->streams);
  return api;
}

void
oct_api_free(oct_api *api) {
  if (api == NULL)
    return;
  oct_assert(api->generating == 0);
  oct_api_keys_free(api->keys);
  g_strfreev(api->names);
  g_free(api->root);
  g_free(api->no_chat);
  g_free(api->version);
  g_string_free(api->scratch, TRUE);
  g_free(api);
}
