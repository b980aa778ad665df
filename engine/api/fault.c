#include "engine/api/fault.h"

#include "engine/api/json-out.h"
#include "engine/base/assert.h"
#include "engine/serve/service.h"

#define BUSY_RETRY_S 1u

gboolean
oct_api_refuse(oct_api_fault *fault, guint status, const char *param, const char *format, ...) {
  oct_assert(fault->status == 0 && status >= 400);
  va_list arguments;
  va_start(arguments, format);
  *fault = (oct_api_fault){
      .status = status, .param = g_strdup(param), .message = g_strdup_vprintf(format, arguments)};
  va_end(arguments);
  if (status == 429 || status == 503)
    fault->retry_after_s = BUSY_RETRY_S;
  return FALSE;
}

gboolean
oct_api_refuse_error(oct_api_fault *fault, const char *param, GError *error) {
  guint status = oct_service_error_status(error);
  /* What failed inside is for the log, not for the client. */
  const char *failed =
      g_error_matches(error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_FAILED)
          ? "the engine failed while it computed this request, which may be sent again"
          : "internal error";
  oct_api_refuse(fault, status, param, "%s", status == 500 ? failed : error->message);
  if (g_error_matches(error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_TOO_LONG))
    fault->code = "context_length_exceeded";
  g_error_free(error);
  return FALSE;
}

void
oct_api_fault_clear(oct_api_fault *fault) {
  g_free(fault->param);
  g_free(fault->message);
  *fault = (oct_api_fault){.status = 0};
}

const char *
oct_api_fault_type(const oct_api_fault *fault) {
  switch (fault->status) {
  case 401:
    return "authentication_error";
  case 403:
    return "permission_error";
  case 404:
    return "not_found_error";
  case 429:
    return "rate_limit_error";
  case 503:
    return "service_unavailable_error";
  default:
    return fault->status >= 500 ? "server_error" : "invalid_request_error";
  }
}

void
oct_api_fault_write(const oct_api_fault *fault, GString *out) {
  oct_out json = OCT_OUT_INIT(out);
  oct_out_open(&json, '{');
  oct_out_key(&json, "error");
  oct_out_open(&json, '{');
  oct_out_put_string(&json, "message", fault->message);
  oct_out_put_string(&json, "type", oct_api_fault_type(fault));
  oct_out_put_string(&json, "param", fault->param);
  oct_out_put_string(&json, "code", fault->code);
  oct_out_close(&json, '}');
  oct_out_close(&json, '}');
}

static const char *
anthropic_type(const oct_api_fault *fault) {
  switch (fault->status) {
  case 413:
    return "request_too_large";
  case 503:
    return "overloaded_error";
  default:
    return fault->status >= 500 ? "api_error" : oct_api_fault_type(fault);
  }
}

void
oct_api_fault_write_anthropic(const oct_api_fault *fault, const char *request_id, GString *out) {
  oct_out json = OCT_OUT_INIT(out);
  oct_out_open(&json, '{');
  oct_out_put_string(&json, "type", "error");
  oct_out_key(&json, "error");
  oct_out_open(&json, '{');
  oct_out_put_string(&json, "type", anthropic_type(fault));
  oct_out_put_string(&json, "message", fault->message);
  oct_out_close(&json, '}');
  oct_out_put_string(&json, "request_id", request_id);
  oct_out_close(&json, '}');
}
