/* What there is, and how it does: models, health, load, metrics. */
#include "engine/api/internal.h"

#include <string.h>

/* --- models ------------------------------------------------------------------------------------
 */

static void
put_model(const oct_api *api, const char *name, oct_out *json) {
  oct_out_open(json, '{');
  oct_out_put_string(json, "id", name);
  oct_out_put_string(json, "object", "model");
  oct_out_put_int(json, "created", api->started_s);
  oct_out_put_string(json, "owned_by", "octet");
  oct_out_put_string(json, "root", api->root);
  oct_out_put_null(json, "parent");
  oct_out_put_int(json, "max_model_len", oct_service_max_model_len(api->config.service));
  oct_out_close(json, '}');
}

void
oct_api_run_models(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  oct_out json = oct_api_body(api);
  oct_out_open(&json, '{');
  oct_out_put_string(&json, "object", "list");
  oct_out_key(&json, "data");
  oct_out_open(&json, '[');
  for (guint i = 0; i < api->config.n_names; i++)
    put_model(api, api->names[i], &json);
  oct_out_close(&json, ']');
  oct_out_close(&json, '}');
  oct_api_respond_json(api, x, 200, api->scratch);
}

void
oct_api_run_model(oct_api *api, oct_http_exchange *x, const char *path) {
  const char *name = path + strlen("/v1/models/");
  const oct_api_model model = oct_api_model_of(api);
  g_auto(oct_plan) plan;
  g_auto(oct_api_fault) fault = {.status = 0};
  /* A name that is a file's path has lost its first '/' in the one spelling of paths. */
  for (guint i = 0; i < model.n_names; i++)
    if (model.names[i][0] == '/' && g_str_equal(model.names[i] + 1, name))
      name = model.names[i];
  oct_plan_init(&plan);
  if (!oct_plan_model(&plan, &model, name, &fault)) {
    oct_api_respond_fault(api, x, &fault, FALSE);
    return;
  }
  oct_out json = oct_api_body(api);
  put_model(api, plan.model, &json);
  oct_api_respond_json(api, x, 200, api->scratch);
}

/* --- health ------------------------------------------------------------------------------------
 */

/* 503 with Retry-After when `well` is FALSE. */
static void
respond_state(oct_api *api, oct_http_exchange *x, gboolean well, const GString *body) {
  const oct_http_field retry = {"Retry-After", "1"};
  const oct_http_reply reply = {.status = well ? 200 : 503,
                                .content_type = "application/json",
                                .fields = &retry,
                                .n_fields = well ? 0 : 1,
                                .body = {body->str, body->len}};
  oct_api_respond(api, x, &reply);
}

static void
put_status(const oct_service_status *status, oct_out *json) {
  oct_out_put_string(json, "status", oct_health_name(status->health));
  if (status->reason[0] != '\0')
    oct_out_put_string(json, "reason", status->reason);
}

void
oct_api_run_health(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  oct_service_status status;
  oct_service_get_status(api->config.service, &status);
  oct_out json = oct_api_body(api);
  oct_out_open(&json, '{');
  put_status(&status, &json);
  oct_out_put_int(&json, "running", status.running);
  oct_out_put_int(&json, "waiting", status.waiting);
  oct_out_put_double(&json, "progress_age_s", (double)status.progress_age_ns / 1e9);
  if (status.health == OCT_HEALTH_OPENING)
    oct_out_put_double(&json, "opened", status.opened);
  oct_out_close(&json, '}');
  respond_state(api, x, status.health == OCT_HEALTH_OK || status.health == OCT_HEALTH_BUSY,
                api->scratch);
}

/* This answer is made by the loop that it speaks of. */
void
oct_api_run_livez(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  oct_out json = oct_api_body(api);
  oct_out_open(&json, '{');
  oct_out_put_string(&json, "status", "ok");
  oct_out_close(&json, '}');
  respond_state(api, x, TRUE, api->scratch);
}

void
oct_api_run_readyz(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  oct_service_status status;
  oct_service_get_status(api->config.service, &status);
  oct_out json = oct_api_body(api);
  oct_out_open(&json, '{');
  oct_out_put_bool(&json, "ready", status.ready);
  put_status(&status, &json);
  oct_out_close(&json, '}');
  respond_state(api, x, status.ready, api->scratch);
}

void
oct_api_run_ping(oct_api *api, oct_http_exchange *x, const char *path) {
  oct_api_run_health(api, x, path);
}

/* --- the rest ----------------------------------------------------------------------------------
 */

void
oct_api_run_version(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  oct_out json = oct_api_body(api);
  oct_out_open(&json, '{');
  oct_out_put_string(&json, "version", api->version);
  oct_out_close(&json, '}');
  oct_api_respond_json(api, x, 200, api->scratch);
}

void
oct_api_run_load(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  oct_out json = oct_api_body(api);
  oct_out_open(&json, '{');
  oct_out_put_int(&json, "server_load", api->generating);
  oct_out_close(&json, '}');
  oct_api_respond_json(api, x, 200, api->scratch);
}

void
oct_api_run_metrics(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  g_string_truncate(api->scratch, 0);
  oct_service_write_metrics(api->config.service, api->scratch);
  if (api->config.metrics != NULL)
    api->config.metrics(api->config.user, api->scratch);
  const oct_http_reply reply = {.status = 200,
                                .content_type = "text/plain; version=0.0.4; charset=utf-8",
                                .body = {api->scratch->str, api->scratch->len}};
  oct_api_respond(api, x, &reply);
}
