#include "engine/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/base/error.h"

/* The buffer always has room for one more line: it is written out when less is left. */
#define BUFFER_BYTES (4 * OCT_LOG_LINE_BYTES_MAX)

/* A fixed key: digests of different runs are compared with each other. */
static const oct_hash_key digest_key = {0x6f63746574206c6fu, 0x6720646967657374u};

struct oct_log {
  int fd; /* -1: digest only */
  gboolean owns_fd;
  guint64 n_lines;
  oct_hash128 digest;
  gsize line;    /* where in the buffer the open line begins */
  gsize used;    /* where it ends */
  gboolean cut;  /* the open line did not fit */
  GError *error; /* the first one */
  char buffer[BUFFER_BYTES];
};

static oct_log *
log_new(int fd, gboolean owns_fd) {
  oct_log *log = g_new(oct_log, 1);
  memset(log, 0, offsetof(oct_log, buffer));
  log->fd = fd;
  log->owns_fd = owns_fd;
  return log;
}

oct_log *
oct_log_new_digest(void) {
  return log_new(-1, FALSE);
}

oct_log *
oct_log_new_fd(int fd) {
  oct_assert(fd >= 0);
  return log_new(fd, FALSE);
}

oct_log *
oct_log_new_file(const char *path, GError **error) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) {
    g_set_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_IO, "%s: %s", path, g_strerror(errno));
    return NULL;
  }
  return log_new(fd, TRUE);
}

/* Writes the buffer out; no line is open. */
static void
flush(oct_log *log) {
  gsize written = 0;
  while (log->fd >= 0 && !log->error && written < log->line) {
    ssize_t n = write(log->fd, log->buffer + written, log->line - written);
    if (n >= 0)
      written += (gsize)n;
    else if (errno != EINTR)
      g_set_error(&log->error, OCT_BASE_ERROR, OCT_BASE_ERROR_IO, "event log: %s",
                  g_strerror(errno));
  }
  log->used = 0;
  log->line = 0;
}

static void
append(oct_log *log, const char *bytes, gsize size) {
  /* One byte is left for the newline. */
  if (log->cut || log->used - log->line + size >= OCT_LOG_LINE_BYTES_MAX) {
    log->cut = TRUE;
    return;
  }
  memcpy(log->buffer + log->used, bytes, size);
  log->used += size;
}

void
oct_log_text(oct_log *log, const char *text) {
  append(log, text, strlen(text));
}

void
oct_log_i64(oct_log *log, gint64 value) {
  char digits[24], *end = digits + sizeof digits, *p = end;
  guint64 rest = value < 0 ? 0 - (guint64)value : (guint64)value;
  do
    *--p = (char)('0' + rest % 10);
  while ((rest /= 10) != 0);
  if (value < 0)
    *--p = '-';
  append(log, p, (gsize)(end - p));
}

void
oct_log_hex(oct_log *log, guint64 value) {
  char digits[16];
  for (guint i = 0; i < 16; i++)
    digits[i] = "0123456789abcdef"[(value >> (60 - 4 * i)) & 15];
  append(log, digits, sizeof digits);
}

void
oct_log_printf(oct_log *log, const char *format, ...) {
  oct_assert(log->used == log->line && !log->cut);
  va_list arguments;
  va_start(arguments, format);
  int n = vsnprintf(log->buffer + log->used, OCT_LOG_LINE_BYTES_MAX, format, arguments);
  va_end(arguments);
  oct_assert(n >= 0);
  if ((gsize)n < OCT_LOG_LINE_BYTES_MAX)
    log->used += (gsize)n;
  else
    log->cut = TRUE;
  oct_log_end(log);
}

void
oct_log_end(oct_log *log) {
  if (log->cut) {
    if (!log->error)
      g_set_error(&log->error, OCT_BASE_ERROR, OCT_BASE_ERROR_LIMIT,
                  "event log: line %" G_GUINT64_FORMAT " is above the limit of %u bytes",
                  log->n_lines + 1, OCT_LOG_LINE_BYTES_MAX);
    log->used = log->line;
    log->cut = FALSE;
  }
  log->buffer[log->used++] = '\n';
  log->digest =
      oct_hash128_chain(digest_key, log->digest, log->buffer + log->line, log->used - log->line);
  log->line = log->used;
  log->n_lines++;
  if (BUFFER_BYTES - log->used < OCT_LOG_LINE_BYTES_MAX)
    flush(log);
}

gboolean
oct_log_close(oct_log *log, GError **error) {
  oct_assert(log->used == log->line);
  flush(log);
  if (log->owns_fd && close(log->fd) < 0 && !log->error)
    g_set_error(&log->error, OCT_BASE_ERROR, OCT_BASE_ERROR_IO, "event log: %s", g_strerror(errno));
  gboolean done = log->error == NULL;
  if (!done)
    g_propagate_error(error, g_steal_pointer(&log->error));
  g_free(log);
  return done;
}

void
oct_log_free(oct_log *log) {
  if (!log)
    return;
  g_autoptr(GError) ignored = NULL;
  if (!oct_log_close(log, &ignored))
    return;
}

oct_hash128
oct_log_digest(const oct_log *log) {
  return log->digest;
}

guint64
oct_log_lines(const oct_log *log) {
  return log->n_lines;
}
