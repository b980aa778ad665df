/* Helpers of the formats: errors, classes, numbers, and the size of hash blocks. */
#include "traces/parser.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "engine/base/hash.h"

#define VALUE_SHOWN_MAX 80

oct_trace_row *
oct_trace_row_new(void) {
  oct_trace_row *row = g_new0(oct_trace_row, 1);
  row->request.class_name = "";
  return row;
}

void
oct_trace_row_free(oct_trace_row *row) {
  if (row == NULL)
    return;
  g_free(row->ids);
  g_free(row);
}

void
oct_trace_row_reserve(oct_trace_row *row, gsize n) {
  if (n <= row->ids_capacity)
    return;
  row->ids_capacity = MAX(n, row->ids_capacity * 2);
  row->ids = g_renew(guint64, row->ids, row->ids_capacity);
}

/* Printable and short: values come from files that may hold anything. */
static char *
shown(const char *value) {
  GString *text = g_string_new(NULL);
  for (const char *c = value; *c != 0; c++) {
    if (text->len >= VALUE_SHOWN_MAX) {
      g_string_append(text, "…");
      break;
    }
    if (g_ascii_isprint(*c))
      g_string_append_c(text, *c);
    else
      g_string_append_printf(text, "\\x%02x", (guchar)*c);
  }
  return g_string_free(text, FALSE);
}

void
oct_trace_set_error(GError **error, const oct_trace_parser *parser, oct_trace_error code,
                    const char *field, const char *value, const char *format, ...) {
  va_list args;
  va_start(args, format);
  g_autofree char *what = g_strdup_vprintf(format, args);
  va_end(args);
  g_autofree char *safe = value != NULL ? shown(value) : NULL;
  g_set_error(error, OCT_TRACE_ERROR, code, "%s:%" G_GUINT64_FORMAT "%s%s%s%s%s: %s", parser->name,
              parser->line, field != NULL ? ": field \"" : "", field != NULL ? field : "",
              field != NULL ? "\"" : "", safe != NULL ? ": value " : "", safe != NULL ? safe : "",
              what);
}

const char *
oct_trace_class(oct_trace_parser *parser, const char *name, GError **error) {
  if (name[0] == 0)
    return "";
  const char *known = g_hash_table_lookup(parser->classes, name);
  if (known != NULL)
    return known;
  if (strlen(name) > OCT_TRACE_CLASS_BYTES_MAX) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_LIMIT, "class", name,
                        "longer than %u bytes, the limit", OCT_TRACE_CLASS_BYTES_MAX);
    return NULL;
  }
  if (!g_utf8_validate(name, -1, NULL)) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, "class", name, "must be UTF-8");
    return NULL;
  }
  if (g_hash_table_size(parser->classes) >= OCT_TRACE_CLASSES_MAX) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_LIMIT, "class", name,
                        "more than %u distinct classes, the limit", OCT_TRACE_CLASSES_MAX);
    return NULL;
  }
  char *copy = g_strdup(name);
  g_hash_table_add(parser->classes, copy);
  return copy;
}

guint64
oct_trace_session_of(const char *text) {
  if (text[0] == 0)
    return 0;
  static const oct_hash_key key = {0x6f63742d74726163u, 0x652d73657373696fu};
  /* JSON integers have 63 bits. */
  guint64 hash = oct_hash64(key, text, strlen(text)) & G_MAXINT64;
  return hash != 0 ? hash : 1;
}

/* One digit more of `*value` in base 10; FALSE past the limit of times. */
static gboolean
append_digit(gint64 *value, char digit) {
  return !__builtin_mul_overflow(*value, 10, value) &&
         !__builtin_add_overflow(*value, digit - '0', value);
}

static gboolean
parse_float_time(const char *text, gint64 unit_ns, gint64 *out) {
  char *end = NULL;
  double value = g_ascii_strtod(text, &end) * (double)unit_ns;
  if (end == text || *end != 0 || !isfinite(value) || value < 0 ||
      value > (double)OCT_TRACE_TIME_MAX_NS)
    return FALSE;
  *out = llround(value);
  return TRUE;
}

gboolean
oct_trace_parse_time(const char *text, gint64 unit_ns, gint64 *out) {
  if (!g_ascii_isdigit(text[0]) && !(text[0] == '.' && g_ascii_isdigit(text[1])))
    return FALSE;
  if (text[strspn(text, "0123456789.")] != 0)
    return parse_float_time(text, unit_ns, out);
  gint64 whole = 0, fraction = 0, scale = unit_ns;
  const char *c = text;
  for (; g_ascii_isdigit(*c); c++)
    if (!append_digit(&whole, *c))
      return FALSE;
  if (*c == '.')
    for (c++; g_ascii_isdigit(*c); c++) {
      /* scale / 10 is exact while the unit has tenths; the first digit below 1 ns rounds. */
      if (scale == 1 && *c >= '5')
        fraction++;
      if (scale <= 1) {
        scale = 0;
        continue;
      }
      scale /= 10;
      fraction += (*c - '0') * scale;
    }
  if (*c != 0 || __builtin_mul_overflow(whole, unit_ns, &whole) ||
      __builtin_add_overflow(whole, fraction, out) || *out > OCT_TRACE_TIME_MAX_NS)
    return FALSE;
  return TRUE;
}

/* Whether n blocks of b tokens are what a prompt of `tokens` has, its rest named or left out. */
static gboolean
fits(guint32 tokens, guint32 n, guint32 b) {
  guint32 whole = tokens / b;
  return n == whole || (tokens % b != 0 && n == whole + 1);
}

static gboolean
infer_block_size(oct_trace_parser *parser, const oct_trace_request *r, GError **error) {
  static const guint32 sizes[] = {512, 16, 32, 64, 128, 256, 1024, 2048, 4096};
  guint32 usual = parser->ops->block_size;
  if (fits(r->input_tokens, r->n_hash_ids, usual)) {
    parser->inferred_block_size = usual;
    return TRUE;
  }
  for (gsize i = 0; i < G_N_ELEMENTS(sizes); i++)
    if (fits(r->input_tokens, r->n_hash_ids, sizes[i])) {
      parser->inferred_block_size = sizes[i];
      return TRUE;
    }
  g_autofree char *count = g_strdup_printf("%u ids", r->n_hash_ids);
  oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, "hash_ids", count,
                      "no usual block size gives that many for %u input tokens: state it "
                      "(--hash-block-size)",
                      r->input_tokens);
  return FALSE;
}

gboolean
oct_trace_fit_blocks(oct_trace_parser *parser, oct_trace_row *row, guint32 stated, GError **error) {
  oct_trace_request *r = &row->request;
  if (parser->options->block_size > 0)
    stated = parser->options->block_size;
  if (r->n_hash_ids == 0 && r->n_output_hash_ids == 0) {
    r->block_size = 0;
    return TRUE;
  }
  if (stated == 0 && parser->ops->block_size == 0) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, "block_size", NULL,
                        "missing, though the row has hash_ids");
    return FALSE;
  }
  gboolean infer = stated == 0;
  if (infer && parser->inferred_block_size == 0 && !infer_block_size(parser, r, error))
    return FALSE;
  r->block_size = infer ? parser->inferred_block_size : stated;
  g_autofree char *count = g_strdup_printf("%u ids", r->n_hash_ids);
  if (infer && !fits(r->input_tokens, r->n_hash_ids, r->block_size)) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, "hash_ids", count,
                        "does not go with %u input tokens and the %u tokens per block of the rows "
                        "before: state the size (--hash-block-size)",
                        r->input_tokens, r->block_size);
    return FALSE;
  }
  guint64 blocks = ((guint64)r->input_tokens + r->block_size - 1) / r->block_size;
  if (r->n_hash_ids > blocks) {
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, "hash_ids", count,
                        "%u input tokens have only %" G_GUINT64_FORMAT " blocks of %u",
                        r->input_tokens, blocks, r->block_size);
    return FALSE;
  }
  guint64 total = (guint64)r->input_tokens + r->output_tokens;
  guint64 output_blocks =
      (total + r->block_size - 1) / r->block_size - r->input_tokens / r->block_size;
  if (r->n_output_hash_ids > output_blocks) {
    g_autofree char *outputs = g_strdup_printf("%u ids", r->n_output_hash_ids);
    oct_trace_set_error(error, parser, OCT_TRACE_ERROR_VALUE, "output_hash_ids", outputs,
                        "%u output tokens after %u touch only %" G_GUINT64_FORMAT " blocks of %u",
                        r->output_tokens, r->input_tokens, output_blocks, r->block_size);
    return FALSE;
  }
  return TRUE;
}
