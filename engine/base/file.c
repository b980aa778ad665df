/* Files of limited size. Room grows with what has come, so that a generous limit costs nothing. */
#include "engine/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "engine/base/error.h"

#define CHUNK ((gsize)1 << 16)

/* Appends what there is, to one byte more than the limit. The errno of a failure, or 0. */
static int
read_all(int fd, gsize limit, GByteArray *bytes) {
  while (bytes->len <= limit) {
    const guint had = bytes->len;
    g_byte_array_set_size(bytes, had + (guint)MIN(CHUNK, limit + 1 - had));
    const gssize n = read(fd, bytes->data + had, bytes->len - had);
    const int failed = n < 0 ? errno : 0;
    g_byte_array_set_size(bytes, had + (guint)MAX(n, 0));
    if (n == 0 || (failed != 0 && failed != EINTR))
      return failed;
  }
  return 0;
}

gboolean
oct_file_read(const char *path, gsize limit, char **text, gsize *size, GError **error) {
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  int failed = fd < 0 ? errno : read_all(fd, limit, bytes);
  if (fd >= 0)
    close(fd);
  if (failed != 0) {
    g_set_error_literal(error, OCT_BASE_ERROR, OCT_BASE_ERROR_IO, g_strerror(failed));
    return FALSE;
  }
  if (bytes->len > limit) {
    g_set_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_LIMIT,
                "more bytes than the limit of %" G_GSIZE_FORMAT, limit);
    return FALSE;
  }
  if (size != NULL)
    *size = bytes->len;
  g_byte_array_append(bytes, (const guint8 *)"", 1);
  *text = (char *)g_byte_array_free(g_steal_pointer(&bytes), FALSE);
  return TRUE;
}
