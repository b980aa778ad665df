/* Rows are built in one string buffer and written with stdio; text is escaped by jansson. */
#include "traces/write.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/assert.h"

struct oct_trace_writer {
  FILE *file;
  char *name;
  const oct_trace *source;
  GString *row;
  guint32 header_block_size;
  guint64 n_rows;
};

oct_trace_writer *
oct_trace_writer_open(const char *path, const oct_trace *source, GError **error) {
  gboolean is_stdout = strcmp(path, "-") == 0;
  FILE *file = is_stdout ? stdout : fopen(path, "we");
  if (file == NULL) {
    int why = errno;
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_IO, "%s: cannot write: %s", path,
                g_strerror(why));
    return NULL;
  }
  oct_trace_writer *writer = g_new0(oct_trace_writer, 1);
  writer->file = file;
  writer->name = g_strdup(is_stdout ? "standard output" : path);
  writer->source = source;
  writer->row = g_string_new(NULL);
  return writer;
}

static void
append_text(GString *row, const char *field, const char *text) {
  json_t *string = json_string(text);
  char *escaped = string != NULL ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
  if (escaped != NULL)
    g_string_append_printf(row, ",\"%s\":%s", field, escaped);
  free(escaped);
  json_decref(string);
}

static void
append_time(GString *row, const char *field, gint64 ns) {
  g_string_append_printf(row, "\"%s\":%" G_GINT64_FORMAT, field, ns / 1000);
  if (ns % 1000 != 0)
    g_string_append_printf(row, ".%03d", (int)(ns % 1000));
}

/* FALSE when an id has more than 63 bits. */
static gboolean
append_ids(GString *row, const char *field, const guint64 *ids, gsize n) {
  if (n == 0)
    return TRUE;
  g_string_append_printf(row, ",\"%s\":[", field);
  for (gsize i = 0; i < n; i++) {
    char digits[24];
    int length =
        g_snprintf(digits, sizeof digits, "%s%" G_GUINT64_FORMAT, i > 0 ? "," : "", ids[i]);
    if (ids[i] > G_MAXINT64)
      return FALSE;
    g_string_append_len(row, digits, length);
  }
  g_string_append_c(row, ']');
  return TRUE;
}

static void
format_header(oct_trace_writer *writer, const oct_trace_request *first) {
  static const oct_trace_facts none;
  const oct_trace *source = writer->source;
  const oct_trace_facts *facts = source != NULL ? oct_trace_get_facts(source) : &none;
  GString *row = writer->row;
  g_string_assign(row, "{\"octet_trace\":1");
  /* The rows of a source nearly always agree; one that does not says its own. */
  writer->header_block_size = first->block_size > 0 ? first->block_size : facts->block_size;
  if (writer->header_block_size > 0)
    g_string_append_printf(row, ",\"block_size\":%u", writer->header_block_size);
  if (facts->concurrency > 0)
    g_string_append_printf(row, ",\"concurrency\":%u", facts->concurrency);
  if (facts->spread)
    g_string_append(row, ",\"spread\":true");
  g_autofree char *base =
      g_path_get_basename(source != NULL ? oct_trace_get_name(source) : "recorded");
  append_text(row, "source", base);
  g_string_append(row, "}\n");
}

static gboolean
format_row(oct_trace_writer *writer, const oct_trace_request *r) {
  GString *row = writer->row;
  g_string_append_c(row, '{');
  if (r->arrival_ns >= 0) {
    append_time(row, "arrival_us", r->arrival_ns);
    g_string_append_c(row, ',');
  }
  g_string_append_printf(row, "\"input_tokens\":%u,\"output_tokens\":%u", r->input_tokens,
                         r->output_tokens);
  if (r->max_tokens > 0)
    g_string_append_printf(row, ",\"max_tokens\":%u", r->max_tokens);
  gboolean good = append_ids(row, "hash_ids", r->hash_ids, r->n_hash_ids) &&
                  append_ids(row, "output_hash_ids", r->output_hash_ids, r->n_output_hash_ids);
  if (r->block_size > 0 && r->block_size != writer->header_block_size)
    g_string_append_printf(row, ",\"block_size\":%u", r->block_size);
  if (r->session > 0)
    g_string_append_printf(row, ",\"session\":%" G_GUINT64_FORMAT, r->session);
  if (r->parent > 0)
    g_string_append_printf(row, ",\"parent\":%" G_GUINT64_FORMAT, r->parent - 1);
  if (r->think_ns > 0) {
    g_string_append_c(row, ',');
    append_time(row, "think_us", r->think_ns);
  }
  if (r->priority != 0)
    g_string_append_printf(row, ",\"priority\":%d", r->priority);
  if (r->class_name[0] != 0)
    append_text(row, "class", r->class_name);
  g_string_append(row, "}\n");
  return good && r->session <= G_MAXINT64;
}

static gboolean
fail(const oct_trace_writer *writer, GError **error) {
  int why = errno;
  g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_IO, "%s: cannot write: %s", writer->name,
              g_strerror(why));
  return FALSE;
}

gboolean
oct_trace_writer_write(oct_trace_writer *writer, const oct_trace_request *r, GError **error) {
  oct_assert(r->index == writer->n_rows);
  g_string_truncate(writer->row, 0);
  if (writer->n_rows++ == 0)
    format_header(writer, r);
  if (!format_row(writer, r) || writer->row->len > OCT_TRACE_LINE_BYTES_MAX) {
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_LIMIT,
                "%s: request %" G_GUINT64_FORMAT " cannot be written: its line has %" G_GSIZE_FORMAT
                " bytes (limit %u), its ids and session must be below 2^63",
                writer->name, r->index, writer->row->len, OCT_TRACE_LINE_BYTES_MAX);
    return FALSE;
  }
  if (fwrite(writer->row->str, 1, writer->row->len, writer->file) != writer->row->len)
    return fail(writer, error);
  return TRUE;
}

gboolean
oct_trace_writer_close(oct_trace_writer *writer, GError **error) {
  gboolean good = fflush(writer->file) == 0;
  if (!good)
    fail(writer, error);
  if (writer->file != stdout && fclose(writer->file) != 0 && good)
    good = fail(writer, error);
  writer->file = stdout; /* closed, or not ours */
  oct_trace_writer_abort(writer);
  return good;
}

void
oct_trace_writer_abort(oct_trace_writer *writer) {
  if (writer == NULL)
    return;
  if (writer->file != stdout)
    fclose(writer->file);
  g_string_free(writer->row, TRUE);
  g_free(writer->name);
  g_free(writer);
}
