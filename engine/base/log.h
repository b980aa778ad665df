/* The event log: lines of text, written to a file or only digested.
 *
 * Equal runs write equal bytes. A log keeps a running 128-bit digest of its lines, whether or not
 * it writes them, so that two runs are compared without keeping either. Lines are built in a fixed
 * buffer: nothing is allocated after oct_log_new_*(). Errors stick: the first one is returned by
 * oct_log_close(), and later lines are only counted and digested. One thread at a time each.
 *
 *   oct_log_printf(log, "%" G_GINT64_FORMAT " step %u", time_ns, n);      (the newline is added)
 *   oct_log_i64(log, time_ns), oct_log_text(log, " step "), oct_log_i64(log, n), oct_log_end(log);
 *
 * write the same line; the second takes about two thirds of the time (tests/perf/bench-base).
 */
#ifndef OCT_BASE_LOG_H
#define OCT_BASE_LOG_H

#include <glib.h>

#include "engine/base/hash.h"

/* Longest line, its newline included. A longer one is an error (OCT_BASE_ERROR_LIMIT). */
#define OCT_LOG_LINE_BYTES_MAX 16384u

typedef struct oct_log oct_log;

/* Life cycle. */
oct_log *oct_log_new_digest(void);
/* Creates or empties the file. NULL with *error (IO). */
oct_log *oct_log_new_file(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Writes to `fd` from its present position; fd is borrowed until the log is freed. */
oct_log *oct_log_new_fd(int fd);
/* Writes out what is buffered, closes the file, and frees the log, also when it fails. FALSE with
 * *error when any line was lost. No line may be open. */
gboolean oct_log_close(oct_log *log, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same for a log whose errors do not matter. Accepts NULL. */
void oct_log_free(oct_log *log);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_log, oct_log_free)

/* Use. Text holds no newline. printf writes a whole line; the others append to the open line until
 * oct_log_end(). */
void oct_log_printf(oct_log *log, const char *format, ...) G_GNUC_PRINTF(2, 3);
void oct_log_text(oct_log *log, const char *text);
void oct_log_i64(oct_log *log, gint64 value);
void oct_log_hex(oct_log *log, guint64 value); /* 16 digits */
void oct_log_end(oct_log *log);

/* Inspect. The digest covers the ended lines, and does not depend on where they went. */
oct_hash128 oct_log_digest(const oct_log *log);
guint64 oct_log_lines(const oct_log *log);

#endif
