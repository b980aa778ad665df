/* A file as a whole, of a size that has a limit.
 *
 * What a user names may be a device or a pipe that never ends: no more than the limit is read, and
 * a byte beyond it is an error. A pipe that ends in time is read like a file. May block; any thread
 * that may.
 */
#ifndef OCT_ENGINE_BASE_FILE_H
#define OCT_ENGINE_BASE_FILE_H

#include <glib.h>

/* *text is owned and ends in a NUL that *size does not count; `size` may be NULL. FALSE with
 * OCT_BASE_ERROR_IO (why it cannot be read) or OCT_BASE_ERROR_LIMIT; the message does not name the
 * file, which callers do in their own way. */
gboolean oct_file_read(const char *path, gsize limit, char **text, gsize *size,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
