/* Octet's own trace format: JSON, one object a line.
 *
 * The first line may be a header:
 *   octet_trace   1, the version
 *   block_size    tokens per hash block of the rows that do not say
 *   concurrency   slots of a closed loop
 *   spread        true: arrivals were spread over recorded ticks
 *   source        text: where the rows come from
 * Every other line is a request; those in brackets may be left out:
 *   [arrival_us]       from the start of the trace, with up to 3 decimals; absent: see below
 *   input_tokens       at least 1
 *   output_tokens      at least 1; the true length
 *   [max_tokens]       what the client allowed
 *   [hash_ids]         of the blocks of the prompt, whole numbers below 2^63
 *   [output_hash_ids]  of the blocks behind, from block floor(input_tokens / block_size) on
 *   [block_size]       tokens per block, when it is not the header's
 *   [session]          number or text
 *   [parent]           the previous turn: its row, requests counted from 0
 *   [think_us]         pause after the parent's end (or, in a closed loop, after the slot is free)
 *   [priority]         lower is served first; 0
 *   [class]            text
 * A row without arrival_us is a dependent turn when it has a parent, else part of a closed loop;
 * traces/trace.h, "Kinds of arrival", says what that means. Unknown fields are ignored.
 */
#ifndef OCT_TRACES_WRITE_H
#define OCT_TRACES_WRITE_H

#include <glib.h>

#include "traces/trace.h"

typedef struct oct_trace_writer oct_trace_writer;

/* Life cycle. `path` "-" is standard output. Facts of `source` (borrowed until close; read when the
 * first row is written) make the header; NULL: the rows come from no trace, and say all. */
oct_trace_writer *oct_trace_writer_open(const char *path, const oct_trace *source,
                                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Use. Rows in the order of their index, from 0 on without gaps. */
gboolean oct_trace_writer_write(oct_trace_writer *writer, const oct_trace_request *request,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Writes what is left; FALSE with error when the file is not complete. Frees the writer. */
gboolean oct_trace_writer_close(oct_trace_writer *writer, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Gives up: frees the writer, leaves what was written. Accepts NULL. */
void oct_trace_writer_abort(oct_trace_writer *writer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_trace_writer, oct_trace_writer_abort)

#endif
