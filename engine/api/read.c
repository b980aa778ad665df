/* A body into a plan: at once when it is short, else on a text thread, so that one long request
 * does not hold up everybody's streams. */
#include "engine/api/internal.h"

#include <string.h>

typedef struct reading {
  oct_side_job side; /* first: what gone() finds */
  oct_api *api;
  const oct_shape *shape;
  oct_plan_reader read;
  oct_api_model model;
  char *body; /* a copy: the exchange may go */
  gsize size;
  oct_plan plan;
  oct_api_fault fault;
  gboolean worked, good;
} reading;

static void
answer(oct_api *api, oct_http_exchange *x, const oct_shape *shape, oct_plan *plan, gboolean good,
       const oct_api_fault *fault) {
  if (good)
    oct_job_start(api, x, shape, plan);
  else
    oct_api_respond_fault(api, x, fault, shape->anthropic);
}

static void
work(void *user) {
  reading *r = user;
  r->good = r->read(&r->plan, &r->model, r->body, r->size, &r->fault);
  r->worked = TRUE;
}

static void
reading_free(reading *r) {
  oct_plan_clear(&r->plan);
  oct_api_fault_clear(&r->fault);
  g_free(r->body);
  g_free(r);
}

static void
done(void *user) {
  reading *r = user;
  if (r->side.x != NULL && !r->worked) /* the service ends */
    oct_api_refuse(&r->fault, 503, NULL, "the server stops");
  if (r->side.x != NULL)
    answer(r->api, r->side.x, r->shape, &r->plan, r->good, &r->fault);
  reading_free(r);
}

static void
read_elsewhere(oct_api *api, oct_http_exchange *x, const oct_shape *shape, oct_plan_reader read,
               oct_http_slice body) {
  reading *r = g_new0(reading, 1);
  *r = (reading){.side = {.kind = OCT_JOB_SIDE, .x = x},
                 .api = api,
                 .shape = shape,
                 .read = read,
                 .model = oct_api_model_of(api),
                 .body = g_try_malloc(body.size),
                 .size = body.size};
  oct_plan_init(&r->plan);
  GError *error = NULL;
  if (r->body == NULL)
    oct_api_refuse(&r->fault, 503, NULL, "there is no memory for the body");
  else {
    memcpy(r->body, body.bytes, body.size);
    oct_http_exchange_set_user(x, r);
    if (oct_service_offload(api->config.service, work, done, r, &error))
      return;
    oct_http_exchange_set_user(x, NULL);
    oct_api_refuse_error(&r->fault, NULL, error);
  }
  oct_api_respond_fault(api, x, &r->fault, shape->anthropic);
  reading_free(r);
}

void
oct_api_run_plan(oct_api *api, oct_http_exchange *x, const oct_shape *shape, oct_plan_reader read) {
  oct_http_slice body = oct_http_exchange_request(x)->body;
  if (body.size > OCT_API_SHORT_BYTES) {
    read_elsewhere(api, x, shape, read, body);
    return;
  }
  const oct_api_model model = oct_api_model_of(api);
  g_auto(oct_plan) plan;
  g_auto(oct_api_fault) fault = {.status = 0};
  oct_plan_init(&plan);
  gboolean good = read(&plan, &model, body.bytes, body.size, &fault);
  answer(api, x, shape, &plan, good, &fault);
}
