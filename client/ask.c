/* Bytes to events (client/sse.h), events to JSON, JSON to pieces. Only the first choice is looked
 * at: whoever asks here asks for one. */
#include "client/ask.h"

#include <math.h>
#include <string.h>

#include <jansson.h>

#include "client/sse.h"

#define ERROR_BODY_MAX 65536u

struct oct_ask {
  oct_client *client;
  oct_exchange *exchange;
  oct_question question; /* without its body */
  oct_sse *sse;
  GString *body; /* of an answer that is no stream */
  gboolean is_stream, done;
  gint64 now_ns; /* of the bytes that are read */
  guint32 counted_tokens;
  char message[OCT_ASK_MESSAGE_MAX];
  oct_ask_end end;
};

/* ---------------------------------------------------------------- JSON */

static const char *
text_at(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  return json_is_string(value) ? json_string_value(value) : "";
}

static gboolean
has_text(const json_t *object, const char *name) {
  return json_string_length(json_object_get(object, name)) > 0;
}

static guint32
count_at(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;
  return (guint32)CLAMP(n, 0, (json_int_t)G_MAXINT32);
}

static void
put_message(char *message, const char *text) {
  g_strlcpy(message, text, OCT_ASK_MESSAGE_MAX);
  /* It may have been cut within a character. */
  const char *end;
  if (!g_utf8_validate(message, -1, &end))
    message[end - message] = '\0';
}

/* The message of an error object in any of its shapes; NULL when there is none. */
static const char *
error_of(const json_t *root) {
  const json_t *error = json_object_get(root, "error");
  if (json_is_string(error))
    return json_string_value(error);
  if (json_is_object(error) && *text_at(error, "message") != '\0')
    return text_at(error, "message");
  if (json_is_object(error))
    return "an error without a message";
  static const char *const names[] = {"message", "detail"};
  for (gsize i = 0; i < G_N_ELEMENTS(names); i++)
    if (*text_at(root, names[i]) != '\0' && json_object_get(root, "choices") == NULL)
      return text_at(root, names[i]);
  return NULL;
}

void
oct_ask_error_text(const char *body, gsize n, char *message) {
  json_t *root = json_loadb(body, n, JSON_ALLOW_NUL, NULL);
  const char *text = root != NULL ? error_of(root) : NULL;
  g_autofree char *raw = g_utf8_make_valid(body, (gssize)MIN(n, OCT_ASK_MESSAGE_MAX - 1));
  put_message(message, text != NULL ? text : g_strstrip(raw));
  json_decref(root);
}

/* ---------------------------------------------------------------- a chunk */

static void
read_usage(oct_ask *a, const json_t *usage) {
  if (!json_is_object(usage))
    return;
  a->end.has_usage = TRUE;
  a->end.prompt_tokens = count_at(usage, "prompt_tokens");
  a->end.output_tokens = count_at(usage, "completion_tokens");
  a->end.cached_tokens = count_at(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
}

/* Milliseconds into ns; -1 when the field is not there. */
static gint64
ms_at(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  double ms = json_is_number(value) ? json_number_value(value) : -1;
  return isfinite(ms) && ms >= 0 && ms < 1e12 ? (gint64)(ms * 1e6) : -1;
}

/* vLLM's names. */
static void
read_metrics(oct_ask *a, const json_t *metrics) {
  if (!json_is_object(metrics))
    return;
  oct_ask_server_times *s = &a->end.server;
  s->queue_ns = ms_at(metrics, "queue_time_ms");
  s->ttft_ns = ms_at(metrics, "time_to_first_token_ms");
  gint64 generation = ms_at(metrics, "generation_time_ms");
  s->e2e_ns = s->ttft_ns >= 0 && generation >= 0 ? s->ttft_ns + generation : -1;
}

static void
tell_piece(oct_ask *a, const oct_ask_piece *piece) {
  oct_ask_end *e = &a->end;
  if (e->first_ns < 0)
    e->first_ns = piece->at_ns;
  else
    e->longest_gap_ns = MAX(e->longest_gap_ns, piece->at_ns - e->last_ns);
  e->last_ns = piece->at_ns;
  e->n_pieces++;
  a->counted_tokens += piece->n_tokens;
  if (a->question.piece != NULL)
    a->question.piece(a->question.user, piece);
}

static void
read_choice(oct_ask *a, const json_t *choice) {
  const json_t *delta = json_object_get(choice, "delta");
  const json_t *ids = json_object_get(choice, "token_ids");
  gboolean is_chat = json_is_object(delta);
  oct_ask_piece piece = {.at_ns = a->now_ns, .n_tokens = (guint32)json_array_size(ids)};
  piece.text = is_chat ? text_at(delta, "content") : text_at(choice, "text");
  piece.reasoning = text_at(delta, "reasoning_content");
  if (*piece.reasoning == '\0')
    piece.reasoning = text_at(delta, "reasoning");
  /* By length: a text may begin with U+0000, which ends a string of C. */
  gboolean says = is_chat ? has_text(delta, "content") || has_text(delta, "reasoning_content") ||
                                has_text(delta, "reasoning")
                          : has_text(choice, "text");
  says |= json_array_size(json_object_get(delta, "tool_calls")) > 0;
  const char *reason = text_at(choice, "finish_reason");
  if (*reason != '\0')
    g_strlcpy(a->end.finish_reason, reason, sizeof a->end.finish_reason);
  if (piece.n_tokens == 0 && !says)
    return;
  piece.n_tokens = MAX(piece.n_tokens, 1);
  tell_piece(a, &piece);
}

static gboolean
fail(oct_ask *a, oct_failure failure, const char *message) {
  a->end.failure = failure;
  put_message(a->message, message);
  return FALSE;
}

static gboolean
on_event(void *user, const char *type, const char *data, gsize n) {
  oct_ask *a = user;
  (void)type;
  if (strcmp(data, "[DONE]") == 0) {
    a->done = TRUE;
    return TRUE;
  }
  json_error_t where;
  json_t *root = json_loadb(data, n, JSON_ALLOW_NUL, &where);
  if (!json_is_object(root)) {
    json_decref(root);
    return fail(a, OCT_FAILURE_CONTENT, root == NULL ? where.text : "an event is no JSON object");
  }
  const char *error = error_of(root);
  if (error != NULL) {
    (void)fail(a, OCT_FAILURE_ERROR, error);
  } else {
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    if (choice != NULL)
      read_choice(a, choice);
    read_usage(a, json_object_get(root, "usage"));
    read_metrics(a, json_object_get(root, "metrics"));
  }
  json_decref(root);
  return error == NULL;
}

/* ---------------------------------------------------------------- the exchange */

static gboolean
on_head(void *user, int status, const char *content_type) {
  oct_ask *a = user;
  a->is_stream = status == 200 && g_str_has_prefix(content_type, "text/event-stream");
  if (status == 200 && !a->is_stream)
    a->end.failure = OCT_FAILURE_TYPE; /* the body says more */
  return TRUE;
}

static gboolean
on_data(void *user, const char *bytes, gsize n, gint64 now_ns) {
  oct_ask *a = user;
  a->now_ns = now_ns;
  if (!a->is_stream) {
    g_string_append_len(a->body, bytes, (gssize)MIN(n, ERROR_BODY_MAX - a->body->len));
    return TRUE;
  }
  switch (oct_sse_feed(a->sse, bytes, n)) {
  case OCT_SSE_TOO_LONG:
    return fail(a, OCT_FAILURE_CONTENT, "an event of more than 4 MiB");
  case OCT_SSE_STOPPED:
    return FALSE;
  case OCT_SSE_GO_ON:
    break;
  }
  return TRUE;
}

/* What went wrong, the first of: here, on the way, in the status, in the stream. */
static void
judge(oct_ask *a, const oct_exchange_end *end) {
  if (a->end.failure == OCT_FAILURE_NONE && end->failure != OCT_FAILURE_NONE)
    (void)fail(a, end->failure, end->message);
  else if (a->end.failure == OCT_FAILURE_TYPE || (end->status != 200 && !a->is_stream)) {
    if (end->status != 200)
      a->end.failure = OCT_FAILURE_STATUS;
    oct_ask_error_text(a->body->str, a->body->len, a->message);
  } else if (a->end.failure == OCT_FAILURE_NONE && !a->is_stream)
    (void)fail(a, OCT_FAILURE_TYPE, "an answer without a body");
  else if (a->end.failure == OCT_FAILURE_NONE && !a->done)
    (void)fail(a, OCT_FAILURE_TRUNCATED, "the stream ended before [DONE]");
}

static void
on_done(void *user, const oct_exchange_end *end) {
  oct_ask *a = user;
  judge(a, end);
  a->end.status = end->status;
  a->end.message = a->message;
  a->end.started_ns = end->started_ns;
  a->end.ended_ns = end->ended_ns;
  if (!a->end.has_usage)
    a->end.output_tokens = a->counted_tokens;
  a->question.end(a->question.user, &a->end);
  oct_sse_free(a->sse);
  g_string_free(a->body, TRUE);
  g_free(a);
}

oct_ask *
oct_ask_start(oct_client *client, const oct_question *question) {
  oct_ask *a = g_new0(oct_ask, 1);
  a->client = client;
  a->question = *question;
  a->sse = oct_sse_new(on_event, a);
  a->body = g_string_new(NULL);
  a->end.first_ns = a->end.last_ns = a->end.longest_gap_ns = -1;
  a->end.server = (oct_ask_server_times){-1, -1, -1};
  a->exchange = oct_client_start(client, &(oct_call){.path = question->path,
                                                     .body = question->body,
                                                     .body_bytes = question->body_bytes,
                                                     .wants_stream = TRUE,
                                                     .user = a,
                                                     .head = on_head,
                                                     .data = on_data,
                                                     .done = on_done});
  return a;
}

void
oct_ask_cancel(oct_ask *a) {
  oct_client_cancel(a->client, a->exchange);
}
