/* POST /v1/messages, Anthropic's API: the answer, as events and whole. */
#include "engine/api/internal.h"

/* The prefix cache is nothing that a client has asked for, or pays less for: input_tokens is the
 * whole prompt, as count_tokens says. */
static void
put_usage(const oct_job *job, oct_out *json) {
  oct_out_key(json, "usage");
  oct_out_open(json, '{');
  oct_out_put_int(json, "input_tokens", (gint64)job->prompt_tokens);
  oct_out_put_int(json, "cache_creation_input_tokens", 0);
  oct_out_put_int(json, "cache_read_input_tokens", 0);
  oct_out_put_int(json, "output_tokens", (gint64)oct_job_output_tokens(job));
  oct_out_close(json, '}');
}

static void
put_stop(const oct_choice *c, oct_out *json) {
  int stop = c->finish.stop_string;
  gboolean at_string = c->finish.reason == OCT_FINISH_STOP && stop >= 0;
  oct_out_put_string(json, "stop_reason",
                     c->finish.reason == OCT_FINISH_LENGTH ? "max_tokens"
                     : at_string                           ? "stop_sequence"
                     : c->calls->len > 0                   ? "tool_use"
                                                           : "end_turn");
  oct_out_put_string(json, "stop_sequence",
                     at_string ? g_ptr_array_index(c->job->plan.sampling.stops, stop) : NULL);
}

static void
put_head(const oct_job *job, oct_out *json) {
  oct_out_put_string(json, "id", job->id);
  oct_out_put_string(json, "type", "message");
  oct_out_put_string(json, "role", "assistant");
  oct_out_put_string(json, "model", job->plan.model);
}

/* A block; `whole` with its text. */
static void
put_block(const oct_item *item, gboolean whole, oct_out *json) {
  const char *text = whole ? item->text->str : "";
  gsize size = whole ? item->text->len : 0;
  oct_out_open(json, '{');
  if (item->kind == OCT_PARSE_CALL) {
    oct_out_put_string(json, "type", "tool_use");
    oct_out_put_string(json, "id", item->call->id);
    oct_out_put_string(json, "name", item->call->name);
    oct_out_key(json, "input");
    if (whole)
      oct_item_put_input(item, json);
    else
      oct_out_raw(json, "{}", 2);
  } else if (item->kind == OCT_PARSE_REASONING) {
    oct_out_put_string(json, "type", "thinking");
    oct_out_put_text(json, "thinking", text, size);
    oct_out_put_string(json, "signature", "");
  } else {
    oct_out_put_string(json, "type", "text");
    oct_out_put_text(json, "text", text, size);
  }
  oct_out_close(json, '}');
}

/* --- events ------------------------------------------------------------------------------------
 */

static void
begin(oct_job *job) {
  oct_out json = oct_event_open(job, "message_start");
  oct_out_key(&json, "message");
  oct_out_open(&json, '{');
  put_head(job, &json);
  oct_out_put_empty(&json, "content", "[]");
  oct_out_put_null(&json, "stop_reason");
  oct_out_put_null(&json, "stop_sequence");
  put_usage(job, &json);
  oct_out_close(&json, '}');
  oct_event_close(job, &json);
}

static void
item_begin(oct_choice *c, const oct_item *item) {
  oct_out json = oct_event_open(c->job, "content_block_start");
  oct_out_put_int(&json, "index", item->index);
  oct_out_key(&json, "content_block");
  put_block(item, FALSE, &json);
  oct_event_close(c->job, &json);
}

static void
item_text(oct_choice *c, const oct_item *item, const char *text, gsize size) {
  static const char *const types[] = {[OCT_PARSE_CONTENT] = "text_delta",
                                      [OCT_PARSE_REASONING] = "thinking_delta",
                                      [OCT_PARSE_CALL] = "input_json_delta"};
  static const char *const keys[] = {[OCT_PARSE_CONTENT] = "text",
                                     [OCT_PARSE_REASONING] = "thinking",
                                     [OCT_PARSE_CALL] = "partial_json"};
  oct_out json = oct_event_open(c->job, "content_block_delta");
  oct_out_put_int(&json, "index", item->index);
  oct_out_key(&json, "delta");
  oct_out_open(&json, '{');
  oct_out_put_string(&json, "type", types[item->kind]);
  oct_out_put_text(&json, keys[item->kind], text, size);
  oct_out_close(&json, '}');
  oct_event_close(c->job, &json);
}

static void
item_end(oct_choice *c, const oct_item *item) {
  oct_out json = oct_event_open(c->job, "content_block_stop");
  oct_out_put_int(&json, "index", item->index);
  oct_event_close(c->job, &json);
}

static void
finish(oct_choice *c) {
  (void)c; /* its usage is not known before the end */
}

static void
end(oct_job *job) {
  oct_out json = oct_event_open(job, "message_delta");
  oct_out_key(&json, "delta");
  oct_out_open(&json, '{');
  put_stop(&job->choices[0], &json);
  oct_out_close(&json, '}');
  put_usage(job, &json);
  oct_event_close(job, &json);
  json = oct_event_open(job, "message_stop");
  oct_event_close(job, &json);
}

static void
fail(oct_job *job, const oct_api_fault *fault) {
  g_string_append(job->out, "event: error\ndata: ");
  oct_api_fault_write_anthropic(fault, oct_http_exchange_id(job->x), job->out);
  g_string_append(job->out, "\n\n");
}

/* --- whole -------------------------------------------------------------------------------------
 */

static void
whole(oct_job *job) {
  const oct_choice *c = &job->choices[0];
  oct_out json = OCT_OUT_INIT(job->out);
  oct_out_open(&json, '{');
  put_head(job, &json);
  oct_out_key(&json, "content");
  oct_out_open(&json, '[');
  for (guint i = 0; i < c->items->len; i++)
    put_block(g_ptr_array_index(c->items, i), TRUE, &json);
  oct_out_close(&json, ']');
  put_stop(c, &json);
  put_usage(job, &json);
  oct_job_put_metrics(job, &json);
  oct_out_close(&json, '}');
}

const oct_shape oct_messages_shape = {.begin = begin,
                                      .item_begin = item_begin,
                                      .item_text = item_text,
                                      .item_end = item_end,
                                      .items = TRUE,
                                      .finish = finish,
                                      .end = end,
                                      .fail = fail,
                                      .whole = whole,
                                      .anthropic = TRUE,
                                      .id_prefix = "msg_"};
