/* What a request is refused or ended with: a status and the error object of the OpenAI API.
 *
 * Messages name the field, the value and the limit, never anything internal. A fault without a
 * status is no fault. One owner each; any thread.
 */
#ifndef OCT_API_FAULT_H
#define OCT_API_FAULT_H

#include <glib.h>

typedef struct oct_api_fault {
  guint status;     /* 0: none. 400, 401, 403, 404, 405, 413, 415, 429, 500, 503 */
  const char *code; /* "invalid_api_key", "model_not_found" …; static; NULL: null */
  char *param;      /* the field, as in "messages[2].content"; owned; NULL: null */
  char *message;    /* owned */
  guint retry_after_s;
  const char *allow; /* 405: the methods of the route; static */
} oct_api_fault;

/* Sets a fault where there is none (asserted), and returns FALSE, for `return oct_api_refuse(…)`.
 * `param` may be NULL and is copied. */
gboolean oct_api_refuse(oct_api_fault *fault, guint status, const char *param, const char *format,
                        ...) G_GNUC_PRINTF(4, 5);
/* The same from an error of the text or engine layers; takes `error`. Errors that a client's input
 * causes are 400, a full queue 429, an engine that is down 503, anything else 500. */
gboolean oct_api_refuse_error(oct_api_fault *fault, const char *param, GError *error);
void oct_api_fault_clear(oct_api_fault *fault);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(oct_api_fault, oct_api_fault_clear)

/* The OpenAI API's type of error for a status: "invalid_request_error" …; static. */
const char *oct_api_fault_type(const oct_api_fault *fault);
/* Appends {"error":{"message","type","param","code"}}. */
void oct_api_fault_write(const oct_api_fault *fault, GString *out);
/* The same in Anthropic's shape: {"type":"error","error":{"type","message"},"request_id"}. */
void oct_api_fault_write_anthropic(const oct_api_fault *fault, const char *request_id,
                                   GString *out);

#endif
