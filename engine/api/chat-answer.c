/* POST /v1/chat/completions: the answer, as chunks and whole. */
#include "engine/api/internal.h"

#include <string.h>

/* --- chunks ----------------------------------------------------------------------------------- */

static oct_out
open_delta(oct_choice *c) {
  oct_out json = oct_chunk_open(c->job);
  oct_out_open(&json, '[');
  oct_out_open(&json, '{');
  oct_out_put_int(&json, "index", c->index);
  oct_out_key(&json, "delta");
  oct_out_open(&json, '{');
  return json;
}

/* Closes what open_delta() opened. Log probabilities and ids come with the next text there is. */
static void
close_delta(oct_choice *c, oct_out *json, const char *finish_reason) {
  oct_out_close(json, '}');
  if (c->logprobs != NULL && c->logprobs->len > 0)
    oct_choice_put_chat_logprobs(c, json);
  else
    oct_out_put_null(json, "logprobs");
  oct_out_put_string(json, "finish_reason", finish_reason);
  if (finish_reason != NULL)
    oct_choice_put_stop_reason(c, json);
  oct_choice_put_ids(c, finish_reason != NULL, json);
  oct_out_close(json, '}');
  oct_out_close(json, ']');
  oct_chunk_close(c->job, json);
}

static void
begin(oct_job *job) {
  for (guint i = 0; i < job->n_choices; i++) {
    oct_out json = open_delta(&job->choices[i]);
    oct_out_put_string(&json, "role", "assistant");
    oct_out_put_string(&json, "content", "");
    close_delta(&job->choices[i], &json, NULL);
  }
}

static void
put_call_delta(oct_out *json, guint index, const oct_call *begins, const char *arguments,
               gsize size) {
  oct_out_key(json, "tool_calls");
  oct_out_open(json, '[');
  oct_out_open(json, '{');
  oct_out_put_int(json, "index", index);
  if (begins != NULL) {
    oct_out_put_string(json, "id", begins->id);
    oct_out_put_string(json, "type", "function");
  }
  oct_out_key(json, "function");
  oct_out_open(json, '{');
  if (begins != NULL)
    oct_out_put_string(json, "name", begins->name);
  oct_out_put_text(json, "arguments", arguments, size);
  oct_out_close(json, '}');
  oct_out_close(json, '}');
  oct_out_close(json, ']');
}

static void
event(oct_choice *c, const oct_parse_event *e) {
  if (e->kind == OCT_PARSE_CALL_END)
    return;
  oct_out json = open_delta(c);
  switch (e->kind) {
  case OCT_PARSE_CONTENT:
    oct_out_put_text(&json, "content", e->text, e->size);
    break;
  case OCT_PARSE_REASONING:
    oct_out_put_text(&json, "reasoning_content", e->text, e->size);
    break;
  case OCT_PARSE_CALL:
    put_call_delta(&json, e->call, g_ptr_array_index(c->calls, c->calls->len - 1), "", 0);
    break;
  case OCT_PARSE_ARGUMENTS:
    put_call_delta(&json, e->call, NULL, e->text, e->size);
    break;
  case OCT_PARSE_CALL_END:
  default:
    break;
  }
  close_delta(c, &json, NULL);
}

static void
finish(oct_choice *c) {
  oct_out json = open_delta(c);
  close_delta(c, &json, oct_choice_finish_reason(c));
}

/* --- whole -------------------------------------------------------------------------------------
 */

static void
put_calls(const oct_choice *c, oct_out *json) {
  oct_out_key(json, "tool_calls");
  oct_out_open(json, '[');
  for (guint i = 0; i < c->calls->len; i++) {
    const oct_call *call = g_ptr_array_index(c->calls, i);
    oct_out_open(json, '{');
    oct_out_put_string(json, "id", call->id);
    oct_out_put_string(json, "type", "function");
    oct_out_key(json, "function");
    oct_out_open(json, '{');
    oct_out_put_string(json, "name", call->name);
    oct_out_put_text(json, "arguments", call->arguments->str, call->arguments->len);
    oct_out_close(json, '}');
    oct_out_close(json, '}');
  }
  oct_out_close(json, ']');
}

static void
put_message(const oct_choice *c, oct_out *json) {
  oct_out_key(json, "message");
  oct_out_open(json, '{');
  oct_out_put_string(json, "role", "assistant");
  if (c->content->len > 0 || c->calls->len == 0)
    oct_out_put_text(json, "content", c->content->str, c->content->len);
  else
    oct_out_put_null(json, "content");
  oct_out_put_null(json, "refusal");
  if (c->reasoning->len > 0)
    oct_out_put_text(json, "reasoning_content", c->reasoning->str, c->reasoning->len);
  if (c->calls->len > 0)
    put_calls(c, json);
  oct_out_close(json, '}');
}

static void
put_choice(oct_choice *c, oct_out *json) {
  oct_out_open(json, '{');
  oct_out_put_int(json, "index", c->index);
  put_message(c, json);
  oct_choice_put_chat_logprobs(c, json);
  oct_out_put_string(json, "finish_reason", oct_choice_finish_reason(c));
  oct_choice_put_stop_reason(c, json);
  oct_choice_put_ids(c, TRUE, json);
  oct_choice_put_prompt_logprobs(c, json);
  oct_out_close(json, '}');
}

static void
whole(oct_job *job) {
  oct_out json = oct_answer_open(job);
  for (guint i = 0; i < job->n_choices; i++)
    put_choice(&job->choices[i], &json);
  oct_answer_close(job, &json);
}

const oct_shape oct_chat_shape = {.begin = begin,
                                  .event = event,
                                  .finish = finish,
                                  .end = oct_chunk_end,
                                  .fail = oct_chunk_fail,
                                  .whole = whole,
                                  .chat_logprobs = TRUE,
                                  .id_prefix = "chatcmpl-",
                                  .object = "chat.completion",
                                  .chunk = "chat.completion.chunk"};
