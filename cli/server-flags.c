#include "cli/server-flags.h"

#include <string.h>

#include <jansson.h>

#include "cli/trace-flags.h"
#include "sim/replay/slo.h"

#define RETRY_NS  (100 * G_GINT64_CONSTANT(1000000))
#define NS_PER_MS G_GINT64_CONSTANT(1000000)

void
oct_server_flags_clear(oct_server_flags *flags) {
  g_free(flags->model);
  g_free(flags->api_key);
  g_free(flags->timeout);
  g_strfreev(flags->headers);
  memset(flags, 0, sizeof *flags);
}

guint
oct_server_flags_entries(oct_server_flags *flags, GOptionEntry *entries) {
  const GOptionEntry own[OCT_SERVER_FLAGS] = {
      {"model", 0, 0, G_OPTION_ARG_STRING, &flags->model,
       "the model to ask for; default: the first that the server names", "NAME"},
      {"api-key", 0, 0, G_OPTION_ARG_STRING, &flags->api_key,
       "sent as a bearer token; default: $OPENAI_API_KEY", "KEY"},
      {"header", 0, 0, G_OPTION_ARG_STRING_ARRAY, &flags->headers,
       "one more header of every request; may be repeated", "NAME: VALUE"},
      {"request-timeout", 0, 0, G_OPTION_ARG_STRING, &flags->timeout,
       "a request that takes longer has failed; default: none does", "TIME"},
  };
  memcpy(entries, own, sizeof own);
  return OCT_SERVER_FLAGS;
}

oct_client *
oct_server_open(const oct_server_flags *flags, const char *url, GError **error) {
  oct_client_options o;
  gint64 timeout_ns = 0;
  oct_client_options_default(&o);
  if (flags->timeout != NULL &&
      !oct_duration_parse("request-timeout", flags->timeout, TRUE, &timeout_ns, error))
    return NULL;
  o.url = url;
  o.api_key = flags->api_key != NULL ? flags->api_key : g_getenv("OPENAI_API_KEY");
  o.headers = (const char *const *)flags->headers;
  o.total_timeout_ms = (guint32)MIN((timeout_ns + NS_PER_MS - 1) / NS_PER_MS, G_MAXINT32);
  return oct_client_new(&o, error);
}

/* The id of the first model in an answer of /v1/models; owned, NULL when there is none. */
static char *
first_model(const char *body) {
  json_t *root = json_loads(body, 0, NULL);
  const json_t *model = json_array_get(json_object_get(root, "data"), 0);
  const json_t *id = json_object_get(model, "id");
  char *name = json_is_string(id) ? g_strdup(json_string_value(id)) : NULL;
  json_decref(root);
  return name;
}

char *
oct_server_wait(const oct_server_flags *flags, oct_client *client, gint64 until_ns,
                GError **error) {
  for (;;) {
    g_autoptr(GError) why = NULL;
    g_autofree char *body =
        oct_client_get(client, "/v1/models", MAX(until_ns, oct_client_now_ns() + RETRY_NS), &why);
    if (body != NULL && flags->model == NULL) {
      char *name = first_model(body);
      if (name == NULL)
        g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER,
                    "%s/v1/models names no model; --model does", oct_client_url(client));
      return name;
    }
    if (body != NULL)
      return g_strdup(flags->model);
    gint64 now = oct_client_now_ns();
    if (now >= until_ns) {
      g_propagate_error(error, g_steal_pointer(&why));
      return NULL;
    }
    for (gint64 next = now + RETRY_NS; oct_client_now_ns() < next;)
      oct_client_poll(client, next);
  }
}
