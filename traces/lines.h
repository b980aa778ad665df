/* Lines of a trace, one at a time, in memory bounded by the longest line.
 *
 * Reads a file, standard input, or bytes in memory. A line ends at "\n" or "\r\n" or the end of the
 * file; a UTF-8 byte order mark at the start is left out. A line longer than
 * OCT_TRACE_LINE_BYTES_MAX, or with a zero byte in it (a binary file), is an error that names file
 * and line.
 */
#ifndef OCT_TRACES_LINES_H
#define OCT_TRACES_LINES_H

#include <glib.h>

typedef struct oct_lines oct_lines;

/* Life cycle. `path` "-" is standard input. `data` is borrowed until oct_lines_free(). */
oct_lines *oct_lines_open(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
oct_lines *oct_lines_over(const char *name, const void *data, gsize size);
void oct_lines_free(oct_lines *lines); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_lines, oct_lines_free)

/* Use. TRUE: *line is the next line, zero-terminated, *size bytes without its end, writable, valid
 * until the next call. FALSE: the end, or an error. */
gboolean oct_lines_next(oct_lines *lines, char **line, gsize *size,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Inspect. */
const char *oct_lines_name(const oct_lines *lines); /* the path, "standard input", or `name` */
guint64 oct_lines_number(const oct_lines *lines); /* of the last line, from 1; 0 before the first */

#endif
