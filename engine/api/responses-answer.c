/* POST /v1/responses, without state: the answer, as events and whole. */
#include "engine/api/internal.h"

#include <string.h>

/* --- the response object -----------------------------------------------------------------------
 */

/* What the request said of it, as it said it. */
static void
put_field(const oct_job *job, const char *key, const char *standard, oct_out *json) {
  const json_t *value = json_object_get(job->plan.root, key);
  oct_out_key(json, key);
  if (value == NULL || json_is_null(value)) {
    oct_out_raw(json, standard, strlen(standard));
    return;
  }
  char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
  oct_out_raw(json, text, strlen(text));
  free(text);
}

static char *
item_id(const oct_choice *c, const oct_item *item) {
  const char *prefix = item->kind == OCT_PARSE_CALL        ? "fc_"
                       : item->kind == OCT_PARSE_REASONING ? "rs_"
                                                           : "msg_";
  return oct_job_id(c->job, prefix, c->index, 1u << 16 | item->index);
}

static void
put_part(const oct_item *item, gboolean whole, oct_out *json) {
  oct_out_open(json, '{');
  oct_out_put_string(json, "type",
                     item->kind == OCT_PARSE_REASONING ? "reasoning_text" : "output_text");
  oct_out_put_text(json, "text", whole ? item->text->str : "", whole ? item->text->len : 0);
  if (item->kind != OCT_PARSE_REASONING) {
    oct_out_put_empty(json, "annotations", "[]");
    oct_out_put_empty(json, "logprobs", "[]");
  }
  oct_out_close(json, '}');
}

/* `whole`: with what is in it. */
static void
put_item(const oct_choice *c, const oct_item *item, gboolean whole, oct_out *json) {
  g_autofree char *id = item_id(c, item);
  gboolean cut = whole && c->finished && c->finish.reason == OCT_FINISH_LENGTH &&
                 item->index + 1 == c->items->len;
  oct_out_open(json, '{');
  oct_out_put_string(json, "id", id);
  oct_out_put_string(json, "type",
                     item->kind == OCT_PARSE_CALL        ? "function_call"
                     : item->kind == OCT_PARSE_REASONING ? "reasoning"
                                                         : "message");
  oct_out_put_string(json, "status", !whole ? "in_progress" : cut ? "incomplete" : "completed");
  if (item->kind == OCT_PARSE_CALL) {
    oct_out_put_string(json, "call_id", item->call->id);
    oct_out_put_string(json, "name", item->call->name);
    oct_out_put_text(json, "arguments", whole ? item->text->str : "", whole ? item->text->len : 0);
  } else {
    if (item->kind == OCT_PARSE_REASONING)
      oct_out_put_empty(json, "summary", "[]");
    else
      oct_out_put_string(json, "role", "assistant");
    oct_out_key(json, "content");
    oct_out_open(json, '[');
    if (whole)
      put_part(item, TRUE, json);
    oct_out_close(json, ']');
  }
  oct_out_close(json, '}');
}

static void
put_usage(const oct_job *job, oct_out *json) {
  guint64 output = oct_job_output_tokens(job);
  oct_out_key(json, "usage");
  oct_out_open(json, '{');
  oct_out_put_int(json, "input_tokens", (gint64)job->prompt_tokens);
  oct_out_key(json, "input_tokens_details");
  oct_out_open(json, '{');
  oct_out_put_int(json, "cached_tokens", (gint64)job->cached_tokens);
  oct_out_close(json, '}');
  oct_out_put_int(json, "output_tokens", (gint64)output);
  oct_out_key(json, "output_tokens_details");
  oct_out_open(json, '{');
  oct_out_put_int(json, "reasoning_tokens", (gint64)oct_job_reasoning_tokens(job));
  oct_out_close(json, '}');
  oct_out_put_int(json, "total_tokens", (gint64)(job->prompt_tokens + output));
  oct_out_close(json, '}');
}

typedef enum state { STATE_IN_PROGRESS, STATE_ENDED, STATE_FAILED } state;

static const char *
status_of(const oct_job *job, state now) {
  if (now == STATE_ENDED)
    return job->choices[0].finish.reason == OCT_FINISH_LENGTH ? "incomplete" : "completed";
  return now == STATE_FAILED ? "failed" : "in_progress";
}

static void
put_outcome(const oct_job *job, state now, const oct_api_fault *fault, oct_out *json) {
  oct_out_key(json, "error");
  if (fault == NULL)
    oct_out_null(json);
  else {
    oct_out_open(json, '{');
    oct_out_put_string(json, "code", "server_error");
    oct_out_put_string(json, "message", fault->message);
    oct_out_close(json, '}');
  }
  oct_out_key(json, "incomplete_details");
  if (strcmp(status_of(job, now), "incomplete") != 0)
    oct_out_null(json);
  else {
    oct_out_open(json, '{');
    oct_out_put_string(json, "reason", "max_output_tokens");
    oct_out_close(json, '}');
  }
}

static void
put_response(oct_job *job, state now, const oct_api_fault *fault, oct_out *json) {
  const oct_choice *c = &job->choices[0];
  oct_out_open(json, '{');
  oct_out_put_string(json, "id", job->id);
  oct_out_put_string(json, "object", "response");
  oct_out_put_int(json, "created_at", job->created_s);
  oct_out_put_string(json, "status", status_of(job, now));
  put_outcome(job, now, fault, json);
  put_field(job, "instructions", "null", json);
  put_field(job, "max_output_tokens", "null", json);
  oct_out_put_string(json, "model", job->plan.model);
  oct_out_key(json, "output");
  oct_out_open(json, '[');
  for (guint i = 0; now != STATE_IN_PROGRESS && i < c->items->len; i++)
    put_item(c, g_ptr_array_index(c->items, i), TRUE, json);
  oct_out_close(json, ']');
  oct_out_put_bool(json, "parallel_tool_calls", !job->plan.one_call);
  oct_out_put_null(json, "previous_response_id");
  put_field(job, "reasoning", "{\"effort\":null,\"summary\":null}", json);
  oct_out_put_bool(json, "store", FALSE);
  put_field(job, "temperature", "1", json);
  put_field(job, "text", "{\"format\":{\"type\":\"text\"}}", json);
  put_field(job, "tool_choice", "\"auto\"", json);
  put_field(job, "tools", "[]", json);
  put_field(job, "top_p", "1", json);
  oct_out_put_string(json, "truncation", "disabled");
  if (now == STATE_ENDED)
    put_usage(job, json);
  else
    oct_out_put_null(json, "usage");
  put_field(job, "user", "null", json);
  put_field(job, "metadata", "{}", json);
  oct_out_close(json, '}');
}

/* --- events ------------------------------------------------------------------------------------
 */

static oct_out
open_event(oct_job *job, const char *name) {
  oct_out json = oct_event_open(job, name);
  oct_out_put_int(&json, "sequence_number", job->n_events++);
  return json;
}

static void
response_event(oct_job *job, const char *name, state now, const oct_api_fault *fault) {
  oct_out json = open_event(job, name);
  oct_out_key(&json, "response");
  put_response(job, now, fault, &json);
  oct_event_close(job, &json);
}

static void
begin(oct_job *job) {
  response_event(job, "response.created", STATE_IN_PROGRESS, NULL);
  response_event(job, "response.in_progress", STATE_IN_PROGRESS, NULL);
}

static void
item_event(oct_choice *c, const oct_item *item, const char *name, gboolean whole) {
  oct_out json = open_event(c->job, name);
  oct_out_put_int(&json, "output_index", item->index);
  oct_out_key(&json, "item");
  put_item(c, item, whole, &json);
  oct_event_close(c->job, &json);
}

/* An event of an item's text: its head. */
static oct_out
open_text_event(oct_choice *c, const oct_item *item, const char *name) {
  g_autofree char *id = item_id(c, item);
  oct_out json = open_event(c->job, name);
  oct_out_put_string(&json, "item_id", id);
  oct_out_put_int(&json, "output_index", item->index);
  if (item->kind != OCT_PARSE_CALL)
    oct_out_put_int(&json, "content_index", 0);
  return json;
}

static void
part_event(oct_choice *c, const oct_item *item, const char *name, gboolean whole) {
  oct_out json = open_text_event(c, item, name);
  oct_out_key(&json, "part");
  put_part(item, whole, &json);
  oct_event_close(c->job, &json);
}

static void
item_begin(oct_choice *c, const oct_item *item) {
  item_event(c, item, "response.output_item.added", FALSE);
  if (item->kind != OCT_PARSE_CALL)
    part_event(c, item, "response.content_part.added", FALSE);
}

static void
item_text(oct_choice *c, const oct_item *item, const char *text, gsize size) {
  static const char *const names[] = {[OCT_PARSE_CONTENT] = "response.output_text.delta",
                                      [OCT_PARSE_REASONING] = "response.reasoning_text.delta",
                                      [OCT_PARSE_CALL] = "response.function_call_arguments.delta"};
  oct_out json = open_text_event(c, item, names[item->kind]);
  oct_out_put_text(&json, "delta", text, size);
  if (item->kind == OCT_PARSE_CONTENT)
    oct_out_put_empty(&json, "logprobs", "[]");
  oct_event_close(c->job, &json);
}

static void
item_end(oct_choice *c, const oct_item *item) {
  static const char *const names[] = {[OCT_PARSE_CONTENT] = "response.output_text.done",
                                      [OCT_PARSE_REASONING] = "response.reasoning_text.done",
                                      [OCT_PARSE_CALL] = "response.function_call_arguments.done"};
  oct_out json = open_text_event(c, item, names[item->kind]);
  if (item->kind == OCT_PARSE_CALL)
    oct_out_put_string(&json, "name", item->call->name);
  oct_out_put_text(&json, item->kind == OCT_PARSE_CALL ? "arguments" : "text", item->text->str,
                   item->text->len);
  if (item->kind == OCT_PARSE_CONTENT)
    oct_out_put_empty(&json, "logprobs", "[]");
  oct_event_close(c->job, &json);
  if (item->kind != OCT_PARSE_CALL)
    part_event(c, item, "response.content_part.done", TRUE);
  item_event(c, item, "response.output_item.done", TRUE);
}

static void
finish(oct_choice *c) {
  (void)c; /* its usage is not known before the end */
}

static void
end(oct_job *job) {
  gboolean cut = job->choices[0].finish.reason == OCT_FINISH_LENGTH;
  response_event(job, cut ? "response.incomplete" : "response.completed", STATE_ENDED, NULL);
}

static void
fail(oct_job *job, const oct_api_fault *fault) {
  response_event(job, "response.failed", STATE_FAILED, fault);
}

static void
whole(oct_job *job) {
  oct_out json = OCT_OUT_INIT(job->out);
  put_response(job, STATE_ENDED, NULL, &json);
}

const oct_shape oct_responses_shape = {.begin = begin,
                                       .item_begin = item_begin,
                                       .item_text = item_text,
                                       .item_end = item_end,
                                       .items = TRUE,
                                       .finish = finish,
                                       .end = end,
                                       .fail = fail,
                                       .whole = whole,
                                       .id_prefix = "resp_"};
