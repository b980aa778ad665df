/* Prompts of the lengths that a trace states, in a request's JSON.
 *
 * Content follows the trace: where it names blocks of a prompt, equal names become equal tokens, so
 * that prefixes are shared on the server as they were when the trace was recorded; the rest is a
 * request's own. As token ids lengths are exact. As text, one word of a list of short English
 * words stands for a token: most tokenizers make one token of each, none promises it, and the
 * answer's usage says what it was.
 *
 * Pure functions; any thread.
 */
#ifndef OCT_CLIENT_PROMPT_H
#define OCT_CLIENT_PROMPT_H

#include <glib.h>

#include "traces/trace.h"

#define OCT_PROMPT_BLOCK 16u /* tokens that are drawn together where the trace names no blocks */

typedef struct oct_prompt_options {
  gboolean as_text;
  guint32 first_id, n_ids; /* token ids are drawn from [first_id, first_id + n_ids); n_ids >= 1 */
  guint64 seed;            /* other seeds, other content: nothing is in the server's cache */
} oct_prompt_options;

/* Appends an array of ids, or a string: row->input_tokens of them. `salt` tells copies of a trace
 * apart (oct_rows_next()). */
void oct_prompt_append(GString *out, const oct_trace_request *row, guint64 salt,
                       const oct_prompt_options *options);

#endif
