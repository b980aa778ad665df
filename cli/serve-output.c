#include "cli/serve-output.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/spool.h"
#include "engine/obs/metrics.h"
#include "traces/write.h"

#define FLUSH_MS 200

struct oct_serve_output {
  oct_spool *log, *record; /* record NULL: none */
  /* the record's thread's */
  oct_trace_writer *writer;
  guint64 n_rows;
  GError *error; /* the first; later rows are not written */
  _Atomic guint64 n_failed;
};

/* --- the log ---------------------------------------------------------------------------------- */

static void
write_bytes(const char *bytes, gsize size) {
  while (size > 0) {
    gssize n = write(STDERR_FILENO, bytes, size);
    if (n < 0 && errno != EINTR)
      return; /* nobody to tell */
    bytes += MAX(n, 0);
    size -= (gsize)MAX(n, 0);
  }
}

static void
write_line(void *user, void *item) {
  (void)user;
  write_bytes(item, strlen(item));
}

static void
tell_lines(void *user, guint64 n) {
  (void)user;
  g_autofree char *line =
      g_strdup_printf("octet: %" G_GUINT64_FORMAT
                      " lines are missing here: they came faster than they were taken\n",
                      n);
  write_bytes(line, strlen(line));
}

void
oct_serve_output_say(oct_serve_output *o, const char *line) {
  char *whole = g_strdup_printf("octet: %s\n", line);
  (void)oct_spool_push(o->log, whole, strlen(whole));
}

/* --- the record ------------------------------------------------------------------------------- */

static void
free_row(void *item) {
  oct_service_row *row = item;
  g_free((gpointer)row->hash_ids);
  g_free((gpointer)row->output_hash_ids);
  g_free(row);
}

static void
write_row(void *user, void *item) {
  oct_serve_output *o = user;
  const oct_service_row *row = item;
  const oct_trace_request request = {
      .arrival_ns = row->arrival_ns,
      .input_tokens = row->input_tokens,
      .output_tokens = row->output_tokens,
      .max_tokens = row->max_tokens,
      .block_size = row->block_size,
      .n_hash_ids = row->n_hash_ids,
      .hash_ids = row->hash_ids,
      .n_output_hash_ids = row->n_output_hash_ids,
      .output_hash_ids = row->output_hash_ids,
      .priority = row->priority,
      .index = o->n_rows,
      .class_name = "",
  };
  if (o->error == NULL && oct_trace_writer_write(o->writer, &request, &o->error)) {
    o->n_rows++;
    return;
  }
  if (atomic_fetch_add(&o->n_failed, 1) > 0)
    return;
  g_autofree char *line =
      g_strdup_printf("octet: record: %s; nothing more is recorded\n", o->error->message);
  write_bytes(line, strlen(line));
}

static void
tell_rows(void *user, guint64 n) {
  (void)user;
  g_autofree char *line =
      g_strdup_printf("octet: record: %" G_GUINT64_FORMAT
                      " requests are missing: they came faster than they were written\n",
                      n);
  write_bytes(line, strlen(line));
}

void
oct_serve_output_row(oct_serve_output *o, const oct_service_row *row) {
  gsize n = row->n_hash_ids * sizeof *row->hash_ids;
  gsize n_output = row->n_output_hash_ids * sizeof *row->output_hash_ids;
  oct_service_row *copy = g_memdup2(row, sizeof *row);
  copy->hash_ids = g_memdup2(row->hash_ids, n);
  copy->output_hash_ids = g_memdup2(row->output_hash_ids, n_output);
  (void)oct_spool_push(o->record, copy, sizeof *copy + n + n_output);
}

gboolean
oct_serve_output_records(const oct_serve_output *o) {
  return o->record != NULL;
}

/* --- life cycle ------------------------------------------------------------------------------- */

static gboolean
open_record(oct_serve_output *o, const char *path, GError **error) {
  const oct_spool_config config = {.name = "octet-record",
                                   .items_max = OCT_OUTPUT_ROWS_MAX,
                                   .bytes_max = OCT_OUTPUT_BYTES_MAX,
                                   .write = write_row,
                                   .dropped = tell_rows,
                                   .discard = free_row,
                                   .user = o};
  o->writer = oct_trace_writer_open(path, NULL, error);
  if (o->writer != NULL)
    o->record = oct_spool_new(&config, error);
  return o->record != NULL;
}

oct_serve_output *
oct_serve_output_open(const char *record, GError **error) {
  const oct_spool_config log = {.name = "octet-log",
                                .items_max = OCT_OUTPUT_LINES_MAX,
                                .bytes_max = OCT_OUTPUT_BYTES_MAX,
                                .write = write_line,
                                .dropped = tell_lines,
                                .discard = g_free};
  oct_serve_output *o = g_new0(oct_serve_output, 1);
  o->log = oct_spool_new(&log, error);
  if (o->log != NULL && (record == NULL || open_record(o, record, error)))
    return o;
  oct_spool_free(o->log);
  oct_trace_writer_abort(o->writer);
  g_free(o);
  return NULL;
}

/* FALSE: not within so many ms. */
static gboolean
wait_for(const oct_spool *spool, guint ms) {
  for (guint waited = 0; !oct_spool_is_idle(spool); waited++) {
    if (waited >= ms)
      return FALSE;
    g_usleep(1000);
  }
  return TRUE;
}

gboolean
oct_serve_output_close(oct_serve_output *o, GError **error) {
  if (o == NULL)
    return TRUE;
  oct_spool_end(o->log);
  if (o->record != NULL)
    oct_spool_end(o->record);
  if (!wait_for(o->log, OCT_OUTPUT_PATIENCE_MS) ||
      (o->record != NULL && !wait_for(o->record, OCT_OUTPUT_PATIENCE_MS)))
    return FALSE;
  oct_spool_free(o->log);
  oct_spool_free(o->record);
  gboolean failed = o->error != NULL;
  if (failed)
    oct_trace_writer_abort(o->writer);
  else if (o->writer != NULL)
    failed = !oct_trace_writer_close(o->writer, &o->error);
  if (failed)
    g_propagate_error(error, o->error);
  g_free(o);
  return TRUE;
}

void
oct_serve_output_flush(oct_serve_output *o) {
  (void)wait_for(o->log, FLUSH_MS);
}

/* --- metrics ---------------------------------------------------------------------------------- */

static void
write_one(GString *out, const char *name, const char *help, guint64 value) {
  oct_metrics_family(out, name, OCT_METRIC_COUNTER, help);
  oct_metrics_sample(out, name, "", (double)value);
}

void
oct_serve_output_write_metrics(const oct_serve_output *o, GString *out) {
  write_one(out, "octet:log_lines_dropped_total", "Lines of the log that found no room.",
            oct_spool_dropped(o->log));
  if (o->record != NULL)
    write_one(out, "octet:record_rows_dropped_total", "Requests that are not in the record.",
              oct_spool_dropped(o->record) + atomic_load(&o->n_failed));
}
