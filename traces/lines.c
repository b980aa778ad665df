/* A window [start, end) slides over the file; it holds the unread rest of the last chunk and grows
 * only while a line does not fit. */
#include "traces/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "traces/trace.h"

#define CHUNK_BYTES (64u << 10)

struct oct_lines {
  char *name;
  int fd; /* -1: bytes in memory */
  gboolean close_fd;
  const char *data; /* [data_size] of bytes in memory */
  gsize data_size, data_read;
  char *window; /* [capacity]; one byte more is kept for the terminating zero */
  gsize capacity, start, end;
  gboolean at_end;
  guint64 number;
};

static oct_lines *
lines_new(const char *name, int fd) {
  oct_lines *lines = g_new0(oct_lines, 1);
  lines->name = g_strdup(name);
  lines->fd = fd;
  lines->capacity = CHUNK_BYTES;
  lines->window = g_malloc(lines->capacity + 1);
  return lines;
}

oct_lines *
oct_lines_open(const char *path, GError **error) {
  if (strcmp(path, "-") == 0)
    return lines_new("standard input", STDIN_FILENO);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    int why = errno;
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_IO, "%s: cannot open: %s", path,
                g_strerror(why));
    return NULL;
  }
  oct_lines *lines = lines_new(path, fd);
  lines->close_fd = TRUE;
  return lines;
}

oct_lines *
oct_lines_over(const char *name, const void *data, gsize size) {
  oct_lines *lines = lines_new(name, -1);
  lines->data = data;
  lines->data_size = size;
  return lines;
}

void
oct_lines_free(oct_lines *lines) {
  if (lines == NULL)
    return;
  if (lines->close_fd)
    close(lines->fd);
  g_free(lines->window);
  g_free(lines->name);
  g_free(lines);
}

/* Up to `size` further bytes into `to`: their number, 0 at the end, -1 on error (errno). */
static gssize
read_some(oct_lines *lines, char *to, gsize size) {
  if (lines->fd < 0) {
    gsize n = MIN(size, lines->data_size - lines->data_read);
    if (n > 0)
      memcpy(to, lines->data + lines->data_read, n);
    lines->data_read += n;
    return (gssize)n;
  }
  gssize n;
  do
    n = read(lines->fd, to, size);
  while (n < 0 && errno == EINTR);
  return n;
}

/* Makes room behind the window and reads into it. FALSE with error on a failed read. */
static gboolean
fill(oct_lines *lines, GError **error) {
  if (lines->start > 0) {
    memmove(lines->window, lines->window + lines->start, lines->end - lines->start);
    lines->end -= lines->start;
    lines->start = 0;
  }
  if (lines->end == lines->capacity) {
    lines->capacity *= 2;
    lines->window = g_realloc(lines->window, lines->capacity + 1);
  }
  gssize n = read_some(lines, lines->window + lines->end, lines->capacity - lines->end);
  if (n < 0) {
    int why = errno;
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_IO, "%s:%" G_GUINT64_FORMAT ": %s",
                lines->name, lines->number + 1, g_strerror(why));
    return FALSE;
  }
  lines->end += (gsize)n;
  lines->at_end = n == 0;
  return TRUE;
}

static gboolean
check(const oct_lines *lines, const char *line, gsize size, GError **error) {
  const char *zero = memchr(line, 0, size);
  if (zero == NULL)
    return TRUE;
  g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_SYNTAX,
              "%s:%" G_GUINT64_FORMAT ": byte %" G_GSIZE_FORMAT
              " is zero: a binary file is no trace",
              lines->name, lines->number, (gsize)(zero - line) + 1);
  return FALSE;
}

gboolean
oct_lines_next(oct_lines *lines, char **line, gsize *size, GError **error) {
  gsize searched = 0;
  char *newline = NULL;
  for (;;) {
    char *from = lines->window + lines->start;
    gsize held = lines->end - lines->start;
    newline = memchr(from + searched, '\n', held - searched);
    gsize length = newline != NULL ? (gsize)(newline - from) : held;
    if (length > OCT_TRACE_LINE_BYTES_MAX) {
      g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_LIMIT,
                  "%s:%" G_GUINT64_FORMAT ": the line has more than %u bytes, the limit",
                  lines->name, lines->number + 1, OCT_TRACE_LINE_BYTES_MAX);
      return FALSE;
    }
    if (newline != NULL || lines->at_end)
      break;
    searched = held;
    if (!fill(lines, error))
      return FALSE;
  }
  if (newline == NULL && lines->start == lines->end)
    return FALSE;
  char *begin = lines->window + lines->start;
  gsize length = newline != NULL ? (gsize)(newline - begin) : lines->end - lines->start;
  lines->start += length + (newline != NULL);
  lines->number++;
  if (lines->number == 1 && length >= 3 && memcmp(begin, "\xef\xbb\xbf", 3) == 0) {
    begin += 3;
    length -= 3;
  }
  if (length > 0 && begin[length - 1] == '\r')
    length--;
  begin[length] = 0;
  *line = begin;
  *size = length;
  return check(lines, begin, length, error);
}

const char *
oct_lines_name(const oct_lines *lines) {
  return lines->name;
}

guint64
oct_lines_number(const oct_lines *lines) {
  return lines->number;
}
