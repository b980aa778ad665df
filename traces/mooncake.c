/* JSONL traces in Mooncake's layout, and those that grew out of it.
 *
 * mooncake  timestamp (ms), input_length, output_length, hash_ids of 512-token prefix blocks
 *           (kvcache-ai/Mooncake FAST25-release/traces), the last block named though partial.
 *           AIPerf adds session_id and delay (ms; ai-dynamo/aiperf, dataset type mooncake_trace):
 *           a row of a session without timestamp follows the session's previous row after delay.
 *           input_length counts the whole prompt of that turn, earlier turns included.
 * timed     the same fields with timestamp in seconds (vllm bench serve --dataset-name timed_trace,
 *           whose --timed-trace-sec-multiplier defaults to seconds). The content does not tell it
 *           from mooncake, so it must be named.
 * bailian   timestamp (s), chat_id, parent_chat_id (-1: root), type, turn, hash_ids of 16-token
 *           blocks (alibaba-edu/qwen-bailian-usagetraces-anon). Its ids hash one block's tokens
 *           each, not the prefix; consumers chain them (traces/blocks.h).
 */
#include "traces/json.h"

/* Fields that every member of the family has. */
static gboolean
parse_common(oct_trace_parser *parser, const json_t *object, oct_trace_row *row, GError **error) {
  oct_trace_request *r = &row->request;
  if (json_object_get(object, "input_length") == NULL &&
      (json_object_get(object, "text_input") != NULL ||
       json_object_get(object, "messages") != NULL || json_object_get(object, "payload") != NULL)) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, "input_length", NULL,
                        "missing: rows of text are not supported, they have no token counts");
    return FALSE;
  }
  return oct_trace_json_tokens(parser, object, "input_length", TRUE, &r->input_tokens, error) &&
         oct_trace_json_tokens(parser, object, "output_length", TRUE, &r->output_tokens, error) &&
         oct_trace_json_time(parser, object, "timestamp", parser->time_unit_ns, &r->arrival_ns,
                             error) &&
         oct_trace_json_ids(parser, object, "hash_ids", row, 0, &r->n_hash_ids, error);
}

static oct_trace_parsed
finish(oct_trace_parser *parser, oct_trace_row *row, GError **error) {
  if (row->request.input_tokens == 0 || row->request.output_tokens == 0)
    return OCT_TRACE_PARSED_SKIPPED;
  return oct_trace_fit_blocks(parser, row, 0, error) ? OCT_TRACE_PARSED_REQUEST
                                                     : OCT_TRACE_PARSED_ERROR;
}

static oct_trace_parsed
parse_mooncake(oct_trace_parser *parser, char *line, gsize size, oct_trace_row *row,
               GError **error) {
  oct_trace_request *r = &row->request;
  g_autoptr(json_t) object = oct_trace_json_line(parser, line, size, error);
  if (object == NULL || !parse_common(parser, object, row, error) ||
      !oct_trace_json_session(parser, object, "session_id", &r->session, error) ||
      !oct_trace_json_time(parser, object, "delay", parser->time_unit_ns, &r->think_ns, error))
    return OCT_TRACE_PARSED_ERROR;
  if (r->arrival_ns >= 0)
    r->think_ns = 0;
  if (r->session != 0)
    row->link = OCT_TRACE_LINK_SESSION;
  return finish(parser, row, error);
}

static oct_trace_parsed
parse_bailian(oct_trace_parser *parser, char *line, gsize size, oct_trace_row *row,
              GError **error) {
  g_autoptr(json_t) object = oct_trace_json_line(parser, line, size, error);
  if (object == NULL || !parse_common(parser, object, row, error) ||
      !oct_trace_json_count(parser, object, "chat_id", TRUE, G_MAXINT64 - 1, &row->chat, error))
    return OCT_TRACE_PARSED_ERROR;
  if (row->request.arrival_ns < 0) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, "timestamp", NULL, "missing");
    return OCT_TRACE_PARSED_ERROR;
  }
  const json_t *parent = json_object_get(object, "parent_chat_id");
  if (parent != NULL && !(json_is_integer(parent) && json_integer_value(parent) == -1)) {
    row->has_parent_chat = !json_is_null(parent);
    if (!oct_trace_json_count(parser, object, "parent_chat_id", FALSE, G_MAXINT64 - 1,
                              &row->parent_chat, error))
      return OCT_TRACE_PARSED_ERROR;
  }
  row->link = OCT_TRACE_LINK_CHAT;
  const char *type = "";
  if (!oct_trace_json_string(parser, object, "type", &type, error))
    return OCT_TRACE_PARSED_ERROR;
  row->request.class_name = oct_trace_class(parser, type, error);
  if (row->request.class_name == NULL)
    return OCT_TRACE_PARSED_ERROR;
  return finish(parser, row, error);
}

const oct_trace_format_ops oct_trace_mooncake_ops = {
    .format = OCT_TRACE_FORMAT_MOONCAKE,
    .name = "mooncake",
    .time_unit_ns = 1000000,
    .block_size = 512,
    .parse = parse_mooncake,
};

const oct_trace_format_ops oct_trace_timed_ops = {
    .format = OCT_TRACE_FORMAT_TIMED,
    .name = "timed",
    .time_unit_ns = 1000000000,
    .block_size = 16,
    .parse = parse_mooncake,
};

const oct_trace_format_ops oct_trace_bailian_ops = {
    .format = OCT_TRACE_FORMAT_BAILIAN,
    .name = "bailian",
    .time_unit_ns = 1000000000,
    .block_size = 16,
    .parse = parse_bailian,
};
