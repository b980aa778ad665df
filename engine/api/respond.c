/* Answers that are known at once. */
#include "engine/api/internal.h"

#include <string.h>

void
oct_api_log(oct_api *api, const oct_http_exchange *x, guint status) {
  if (api->config.log == NULL)
    return;
  static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
  const oct_http_request *request = oct_http_exchange_request(x);
  gint64 took_ns = api->config.now_ns(api->config.clock) - oct_http_exchange_started_ns(x);
  gsize size = MIN(request->path.size, 128);
  g_autofree char *line = g_strdup_printf(
      "%s %s %s %.*s %u %.1f ms", oct_http_exchange_id(x), oct_http_exchange_peer(x),
      methods[request->method], (int)size, request->path.bytes, status, (double)took_ns / 1e6);
  api->config.log(api->config.user, line);
}

void
oct_api_respond(oct_api *api, oct_http_exchange *x, const oct_http_reply *reply) {
  oct_api_log(api, x, reply->status);
  oct_http_respond(x, reply);
}

oct_out
oct_api_body(oct_api *api) {
  g_string_truncate(api->scratch, 0);
  return (oct_out)OCT_OUT_INIT(api->scratch);
}

void
oct_api_respond_json(oct_api *api, oct_http_exchange *x, guint status, const GString *body) {
  const oct_http_reply reply = {
      .status = status, .content_type = "application/json", .body = {body->str, body->len}};
  oct_api_respond(api, x, &reply);
}

void
oct_api_respond_fault(oct_api *api, oct_http_exchange *x, const oct_api_fault *fault,
                      gboolean anthropic) {
  oct_http_field fields[3];
  guint n = 0;
  char seconds[16];
  if (fault->retry_after_s > 0) {
    g_snprintf(seconds, sizeof seconds, "%u", fault->retry_after_s);
    fields[n++] = (oct_http_field){"Retry-After", seconds};
  }
  if (fault->allow != NULL)
    fields[n++] = (oct_http_field){"Allow", fault->allow};
  if (fault->status == 401)
    fields[n++] = (oct_http_field){"WWW-Authenticate", "Bearer"};
  g_string_truncate(api->scratch, 0);
  if (anthropic)
    oct_api_fault_write_anthropic(fault, oct_http_exchange_id(x), api->scratch);
  else
    oct_api_fault_write(fault, api->scratch);
  const oct_http_reply reply = {.status = fault->status,
                                .content_type = "application/json",
                                .fields = fields,
                                .n_fields = n,
                                .body = {api->scratch->str, api->scratch->len}};
  oct_api_respond(api, x, &reply);
}
