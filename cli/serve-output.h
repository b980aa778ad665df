/* What `octet serve` writes besides answers: the log on standard error and the record of --record.
 * Each is written by a thread of its own: a disk that is slow or full and a pipe that nobody reads
 * cost lines, which are counted (metrics) and told of, and never hold up a client. */
#ifndef OCT_CLI_SERVE_OUTPUT_H
#define OCT_CLI_SERVE_OUTPUT_H

#include "engine/serve/service.h"

#define OCT_OUTPUT_LINES_MAX   8192u
#define OCT_OUTPUT_ROWS_MAX    4096u
#define OCT_OUTPUT_BYTES_MAX   ((gsize)32 << 20) /* that wait, of each */
#define OCT_OUTPUT_PATIENCE_MS 1000              /* for what is left when the server ends */

typedef struct oct_serve_output oct_serve_output;

/* Life cycle. `record`: a file, opened here; NULL: none. */
oct_serve_output *oct_serve_output_open(const char *record,
                                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Waits for what is left, OCT_OUTPUT_PATIENCE_MS at most. FALSE: a writer hangs, and its thread is
 * left behind: leave by _exit(). Otherwise *error is set when the record is not whole. Accepts
 * NULL. */
gboolean oct_serve_output_close(oct_serve_output *output, GError **error);

/* One thread. A line for the log, without newline; and rows of the record. */
void oct_serve_output_say(oct_serve_output *output, const char *line);
void oct_serve_output_row(oct_serve_output *output, const oct_service_row *row);
gboolean oct_serve_output_records(const oct_serve_output *output);
/* Before an exit at once: waits for lines, a moment at most. */
void oct_serve_output_flush(oct_serve_output *output);
void oct_serve_output_write_metrics(const oct_serve_output *output, GString *out);

#endif
