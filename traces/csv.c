/* CSV traces: a header line names the columns, further columns are ignored.
 *
 * azure     TIMESTAMP,ContextTokens,GeneratedTokens (Azure/AzurePublicDataset). 2023 writes dates
 *           with 7 decimals and no zone, 2024 with 0 or 6 decimals and "+00:00".
 * burstgpt  Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,Total tokens,
 *           Log Type (HPMLL/BurstGPT): seconds from an arbitrary origin. Rows with 0 response
 * tokens are failed requests. The class is "Model/Log Type". vidur
 * arrived_at,num_prefill_tokens,num_decode_tokens (microsoft/vidur), seconds. Without arrived_at
 * (its length-only files) the rows are a closed loop.
 */
#include <string.h>

#include "traces/parser.h"

enum { COLUMN_TIME, COLUMN_INPUT, COLUMN_OUTPUT, COLUMN_SESSION, COLUMN_MODEL, COLUMN_KIND };

/* Cuts `line` into parser->fields in place; "" inside quotes is a quote. */
static gboolean
split(oct_trace_parser *parser, char *line, GError **error) {
  char *from = line;
  parser->n_fields = 0;
  for (;;) {
    if (parser->n_fields == OCT_TRACE_COLUMNS_MAX) {
      oct_trace_set_error(error, parser, OCT_TRACE_ERROR_LIMIT, NULL, NULL,
                          "more than %d columns, the limit", OCT_TRACE_COLUMNS_MAX);
      return FALSE;
    }
    char *to = from;
    parser->fields[parser->n_fields++] = from;
    if (*from == '"') {
      for (from++; *from != 0 && (*from != '"' || from[1] == '"'); from++) {
        from += *from == '"';
        *to++ = *from;
      }
      if (*from != '"' || (from[1] != ',' && from[1] != 0)) {
        oct_trace_set_error(error, parser, OCT_TRACE_ERROR_SYNTAX, NULL, NULL,
                            "column %" G_GSIZE_FORMAT ": the quotes do not close",
                            parser->n_fields);
        return FALSE;
      }
      from++;
    } else {
      from += strcspn(from, ",");
      to = from;
    }
    gboolean last = *from == 0;
    *to = 0;
    if (last)
      return TRUE;
    from++;
  }
}

static int
column_of(const oct_trace_parser *parser, const char *name) {
  for (gsize i = 0; i < parser->n_fields; i++)
    if (strcmp(g_strstrip(parser->fields[i]), name) == 0)
      return (int)i;
  return -1;
}

gboolean
oct_trace_csv_has(const char *line, const char *names) {
  g_auto(GStrv) wanted = g_strsplit(names, "|", -1);
  g_auto(GStrv) columns = g_strsplit(line, ",", OCT_TRACE_COLUMNS_MAX);
  for (gsize i = 0; columns[i] != NULL; i++) {
    g_strstrip(columns[i]);
    gsize n = strlen(columns[i]);
    if (n >= 2 && columns[i][0] == '"' && columns[i][n - 1] == '"') {
      memmove(columns[i], columns[i] + 1, n - 2);
      columns[i][n - 2] = 0;
    }
  }
  for (gsize i = 0; wanted[i] != NULL; i++)
    if (!g_strv_contains((const char *const *)columns, wanted[i]))
      return FALSE;
  return TRUE;
}

/* Reads the header: places of `names` (NULL: not wanted), the first `n_required` must be there. */
static gboolean
read_header(oct_trace_parser *parser, char *line, const char *const *names, gsize n_names,
            guint32 required, GError **error) {
  if (!split(parser, line, error))
    return FALSE;
  for (gsize i = 0; i < n_names; i++) {
    parser->columns[i] = names[i] != NULL ? column_of(parser, names[i]) : -1;
    if (parser->columns[i] < 0 && (required & (1u << i)) != 0) {
      oct_trace_set_error(error, parser, OCT_TRACE_ERROR_SYNTAX, names[i], NULL,
                          "the header has no such column");
      return FALSE;
    }
  }
  parser->has_header = TRUE;
  return TRUE;
}

/* The text of a column; "" when the header lacks it, NULL with error when the row does. */
static const char *
field(const oct_trace_parser *parser, int column, const char *name, GError **error) {
  if (parser->columns[column] < 0)
    return "";
  if ((gsize)parser->columns[column] >= parser->n_fields) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_SYNTAX, name, NULL,
                        "missing: the row has %" G_GSIZE_FORMAT " columns", parser->n_fields);
    return NULL;
  }
  return g_strstrip(parser->fields[parser->columns[column]]);
}

/* A token count; "12.0" is 12, as data frames write it. */
static gboolean
tokens(const oct_trace_parser *parser, int column, const char *name, guint32 *out, GError **error) {
  const char *text = field(parser, column, name, error);
  if (text == NULL)
    return FALSE;
  char *end = NULL;
  guint64 number = g_ascii_isdigit(text[0]) ? g_ascii_strtoull(text, &end, 10) : 0;
  if (end != NULL && *end == '.')
    end += 1 + strspn(end + 1, "0");
  if (end == NULL || *end != 0 || number > OCT_TRACE_TOKENS_MAX) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, name, text,
                        "must be a whole number from 0 to %u", OCT_TRACE_TOKENS_MAX);
    return FALSE;
  }
  *out = (guint32)number;
  return TRUE;
}

static gboolean
seconds(const oct_trace_parser *parser, const char *name, gint64 *out, GError **error) {
  const char *text = field(parser, COLUMN_TIME, name, error);
  if (text == NULL)
    return FALSE;
  if (!oct_trace_parse_time(text, parser->time_unit_ns, out)) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, name, text,
                        "must be a time from 0 to 73 years");
    return FALSE;
  }
  return TRUE;
}

static oct_trace_parsed
finish(const oct_trace_row *row) {
  return row->request.input_tokens == 0 || row->request.output_tokens == 0
             ? OCT_TRACE_PARSED_SKIPPED
             : OCT_TRACE_PARSED_REQUEST;
}

/* --- azure ------------------------------------------------------------------------------------ */

/* `n` digits at *text, in [low, high]; -1 when they are not. */
static int
digits(const char **text, int n, int low, int high) {
  int value = 0;
  for (int i = 0; i < n; i++, (*text)++) {
    if (!g_ascii_isdigit(**text))
      return -1;
    value = value * 10 + (**text - '0');
  }
  return value >= low && value <= high ? value : -1;
}

static gboolean
skip(const char **text, const char *any_of) {
  if (**text == 0 || strchr(any_of, **text) == NULL)
    return FALSE;
  (*text)++;
  return TRUE;
}

/* Days from 1970-01-01 in the Gregorian calendar (Howard Hinnant's days_from_civil). */
static gint64
days_of(int year, int month, int day) {
  gint64 y = month <= 2 ? year - 1 : year;
  gint64 era = y / 400, of_era = y - era * 400;
  gint64 of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static gboolean
parse_zone(const char **text, gint64 *offset_s) {
  *offset_s = 0;
  if (**text == 0 || (**text == 'Z' && skip(text, "Z")))
    return TRUE;
  gboolean west = **text == '-';
  if (!skip(text, "+-"))
    return FALSE;
  int hours = digits(text, 2, 0, 23);
  skip(text, ":");
  int minutes = digits(text, 2, 0, 59);
  if (hours < 0 || minutes < 0)
    return FALSE;
  *offset_s = (hours * 60 + minutes) * (west ? -60 : 60);
  return TRUE;
}

/* YYYY-MM-DD HH:MM:SS[.f…][zone], in ns since 1970. Digits past the ninth are dropped. */
static gboolean
parse_date(const char *text, gint64 *out) {
  int year = digits(&text, 4, 1970, 2199);
  gboolean good = skip(&text, "-");
  int month = digits(&text, 2, 1, 12);
  good &= skip(&text, "-");
  int day = digits(&text, 2, 1, 31);
  good &= skip(&text, " T");
  int hour = digits(&text, 2, 0, 23);
  good &= skip(&text, ":");
  int minute = digits(&text, 2, 0, 59);
  good &= skip(&text, ":");
  int second = digits(&text, 2, 0, 60);
  if (!good || year < 0 || month < 0 || day < 0 || hour < 0 || minute < 0 || second < 0)
    return FALSE;
  gint64 ns = 0, scale = 100000000, offset_s = 0;
  if (*text == '.') {
    text++;
    if (!g_ascii_isdigit(*text))
      return FALSE;
    for (; g_ascii_isdigit(*text); text++, scale /= 10)
      ns += (*text - '0') * scale;
  }
  if (!parse_zone(&text, &offset_s) || *text != 0 ||
      day > g_date_get_days_in_month((GDateMonth)month, (GDateYear)year))
    return FALSE;
  gint64 s = days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - offset_s;
  *out = s * 1000000000 + ns;
  return s >= 0;
}

static oct_trace_parsed
parse_azure(oct_trace_parser *parser, char *line, gsize size, oct_trace_row *row, GError **error) {
  static const char *const names[] = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};
  (void)size;
  if (!parser->has_header)
    return read_header(parser, line, names, 3, 7, error) ? OCT_TRACE_PARSED_OTHER
                                                         : OCT_TRACE_PARSED_ERROR;
  oct_trace_request *r = &row->request;
  const char *text;
  if (!split(parser, line, error) ||
      (text = field(parser, COLUMN_TIME, "TIMESTAMP", error)) == NULL)
    return OCT_TRACE_PARSED_ERROR;
  if (!parse_date(text, &r->arrival_ns)) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, "TIMESTAMP", text,
                        "must be a date from 1970 to 2199, YYYY-MM-DD HH:MM:SS.ffffff");
    return OCT_TRACE_PARSED_ERROR;
  }
  if (!tokens(parser, COLUMN_INPUT, names[1], &r->input_tokens, error) ||
      !tokens(parser, COLUMN_OUTPUT, names[2], &r->output_tokens, error))
    return OCT_TRACE_PARSED_ERROR;
  return finish(row);
}

/* --- burstgpt --------------------------------------------------------------------------------- */

static oct_trace_parsed
parse_burstgpt(oct_trace_parser *parser, char *line, gsize size, oct_trace_row *row,
               GError **error) {
  static const char *const names[] = {"Timestamp",  "Request tokens", "Response tokens",
                                      "Session ID", "Model",          "Log Type"};
  (void)size;
  if (!parser->has_header)
    return read_header(parser, line, names, 6, 7, error) ? OCT_TRACE_PARSED_OTHER
                                                         : OCT_TRACE_PARSED_ERROR;
  oct_trace_request *r = &row->request;
  const char *session, *model, *kind;
  if (!split(parser, line, error) || !seconds(parser, names[0], &r->arrival_ns, error) ||
      !tokens(parser, COLUMN_INPUT, names[1], &r->input_tokens, error) ||
      !tokens(parser, COLUMN_OUTPUT, names[2], &r->output_tokens, error) ||
      (session = field(parser, COLUMN_SESSION, names[3], error)) == NULL ||
      (model = field(parser, COLUMN_MODEL, names[4], error)) == NULL ||
      (kind = field(parser, COLUMN_KIND, names[5], error)) == NULL)
    return OCT_TRACE_PARSED_ERROR;
  r->session = oct_trace_session_of(session);
  if (r->session != 0)
    row->link = OCT_TRACE_LINK_SESSION;
  g_autofree char *name = g_strconcat(model, model[0] != 0 && kind[0] != 0 ? "/" : "", kind, NULL);
  r->class_name = oct_trace_class(parser, name, error);
  return r->class_name != NULL ? finish(row) : OCT_TRACE_PARSED_ERROR;
}

/* --- vidur ------------------------------------------------------------------------------------ */

static oct_trace_parsed
parse_vidur(oct_trace_parser *parser, char *line, gsize size, oct_trace_row *row, GError **error) {
  static const char *const names[] = {"arrived_at", "num_prefill_tokens", "num_decode_tokens"};
  (void)size;
  if (!parser->has_header)
    return read_header(parser, line, names, 3, 6, error) ? OCT_TRACE_PARSED_OTHER
                                                         : OCT_TRACE_PARSED_ERROR;
  oct_trace_request *r = &row->request;
  if (!split(parser, line, error) ||
      (parser->columns[COLUMN_TIME] >= 0 && !seconds(parser, names[0], &r->arrival_ns, error)) ||
      !tokens(parser, COLUMN_INPUT, names[1], &r->input_tokens, error) ||
      !tokens(parser, COLUMN_OUTPUT, names[2], &r->output_tokens, error))
    return OCT_TRACE_PARSED_ERROR;
  return finish(row);
}

const oct_trace_format_ops oct_trace_azure_ops = {
    .format = OCT_TRACE_FORMAT_AZURE,
    .name = "azure",
    .time_unit_ns = 1000000000,
    .rebase = TRUE,
    .csv = TRUE,
    .parse = parse_azure,
};

const oct_trace_format_ops oct_trace_burstgpt_ops = {
    .format = OCT_TRACE_FORMAT_BURSTGPT,
    .name = "burstgpt",
    .time_unit_ns = 1000000000,
    .rebase = TRUE,
    .csv = TRUE,
    .parse = parse_burstgpt,
};

const oct_trace_format_ops oct_trace_vidur_ops = {
    .format = OCT_TRACE_FORMAT_VIDUR,
    .name = "vidur",
    .time_unit_ns = 1000000000,
    .csv = TRUE,
    .parse = parse_vidur,
};
