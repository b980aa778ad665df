/* The reader of Octet's own JSONL; traces/write.h has the fields and their meaning. */
#include "traces/json.h"

static gboolean
parse_header(oct_trace_parser *parser, const json_t *object, GError **error) {
  guint64 version = 0, concurrency = 0;
  if (parser->has_header || parser->n_rows > 0) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_SYNTAX, "octet_trace", NULL,
                        "a header is the first line or absent");
    return FALSE;
  }
  parser->has_header = TRUE;
  if (!oct_trace_json_count(parser, object, "octet_trace", TRUE, G_MAXINT64, &version, error) ||
      !oct_trace_json_tokens(parser, object, "block_size", FALSE, &parser->header_block_size,
                             error) ||
      !oct_trace_json_count(parser, object, "concurrency", FALSE, G_MAXINT32, &concurrency, error))
    return FALSE;
  if (version != 1) {
    oct_trace_json_set_error(error, parser, "octet_trace", json_object_get(object, "octet_trace"),
                             "only version 1 is known");
    return FALSE;
  }
  const json_t *spread = json_object_get(object, "spread");
  if (spread != NULL && !json_is_boolean(spread)) {
    oct_trace_json_set_error(error, parser, "spread", spread, "must be true or false");
    return FALSE;
  }
  parser->facts->spread |= json_is_true(spread);
  if (parser->options->concurrency == 0)
    parser->facts->concurrency = (guint32)concurrency;
  return TRUE;
}

static gboolean
parse_link(oct_trace_parser *parser, const json_t *object, oct_trace_row *row, GError **error) {
  oct_trace_request *r = &row->request;
  guint64 parent = G_MAXUINT64;
  if (!oct_trace_json_session(parser, object, "session", &r->session, error) ||
      !oct_trace_json_count(parser, object, "parent", FALSE, G_MAXINT64, &parent, error))
    return FALSE;
  if (parent == G_MAXUINT64)
    return TRUE;
  if (parent >= parser->n_rows) {
    g_autofree char *what = g_strdup_printf("must be one of the %" G_GUINT64_FORMAT
                                            " requests before this one, counted from 0",
                                            parser->n_rows);
    oct_trace_json_set_error(error, parser, "parent", json_object_get(object, "parent"), what);
    return FALSE;
  }
  if (parser->options->sort_window > 0) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_OPTION, "parent", NULL,
                        "rows that name parents by number cannot be sorted");
    return FALSE;
  }
  r->parent = parent + 1;
  row->link = OCT_TRACE_LINK_INDEX;
  return TRUE;
}

static gboolean
parse_service(oct_trace_parser *parser, const json_t *object, oct_trace_request *r,
              GError **error) {
  const char *name = "";
  if (!oct_trace_json_string(parser, object, "class", &name, error))
    return FALSE;
  r->class_name = oct_trace_class(parser, name, error);
  if (r->class_name == NULL)
    return FALSE;
  const json_t *priority = json_object_get(object, "priority");
  if (priority == NULL || json_is_null(priority))
    return TRUE;
  if (!json_is_integer(priority) || json_integer_value(priority) < G_MININT32 ||
      json_integer_value(priority) > G_MAXINT32) {
    oct_trace_json_set_error(error, parser, "priority", priority, "must be a 32-bit integer");
    return FALSE;
  }
  r->priority = (gint32)json_integer_value(priority);
  return TRUE;
}

static gboolean
check_lengths(const oct_trace_parser *parser, const oct_trace_request *r, GError **error) {
  const char *field = NULL;
  if (r->input_tokens == 0)
    field = "input_tokens";
  else if (r->output_tokens == 0)
    field = "output_tokens";
  if (field != NULL)
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, field, "0", "must be at least 1");
  return field == NULL;
}

static oct_trace_parsed
parse_octet(oct_trace_parser *parser, char *line, gsize size, oct_trace_row *row, GError **error) {
  oct_trace_request *r = &row->request;
  g_autoptr(json_t) object = oct_trace_json_line(parser, line, size, error);
  if (object == NULL)
    return OCT_TRACE_PARSED_ERROR;
  if (json_object_get(object, "octet_trace") != NULL)
    return parse_header(parser, object, error) ? OCT_TRACE_PARSED_OTHER : OCT_TRACE_PARSED_ERROR;
  guint32 block_size = parser->header_block_size;
  if (!oct_trace_json_time(parser, object, "arrival_us", parser->time_unit_ns, &r->arrival_ns,
                           error) ||
      !oct_trace_json_time(parser, object, "think_us", parser->time_unit_ns, &r->think_ns, error) ||
      !oct_trace_json_tokens(parser, object, "input_tokens", TRUE, &r->input_tokens, error) ||
      !oct_trace_json_tokens(parser, object, "output_tokens", TRUE, &r->output_tokens, error) ||
      !oct_trace_json_tokens(parser, object, "max_tokens", FALSE, &r->max_tokens, error) ||
      !oct_trace_json_tokens(parser, object, "block_size", FALSE, &block_size, error) ||
      !oct_trace_json_ids(parser, object, "hash_ids", row, 0, &r->n_hash_ids, error) ||
      !oct_trace_json_ids(parser, object, "output_hash_ids", row, r->n_hash_ids,
                          &r->n_output_hash_ids, error) ||
      !check_lengths(parser, r, error) || !parse_link(parser, object, row, error) ||
      !parse_service(parser, object, r, error) ||
      !oct_trace_fit_blocks(parser, row, block_size, error))
    return OCT_TRACE_PARSED_ERROR;
  return OCT_TRACE_PARSED_REQUEST;
}

const oct_trace_format_ops oct_trace_octet_ops = {
    .format = OCT_TRACE_FORMAT_OCTET,
    .name = "octet",
    .time_unit_ns = 1000,
    .parse = parse_octet,
};
