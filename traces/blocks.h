/* From a trace's hash blocks to the KV pages of an engine.
 *
 * A page id names all content up to and including page p, tokens [0, (p + 1) * page_tokens) of
 * prompt followed by output. Pages of two requests have equal ids exactly when the trace says that
 * this content is equal, so that a prefix index over page ids finds the shared prefixes that the
 * trace records. The ids are chained over the pages for that, which makes formats safe whose block
 * ids hash one block each and not the prefix (bailian).
 *
 * The rule, for page size P and block size B:
 *   - A page is *known* when each token up to its end lies in a named block: in the prompt, in
 * block k < n_hash_ids; in the output, in one of output_hash_ids. Its id mixes that of the page
 * before with, over the blocks that it overlaps in order, (block id, first token in the block, end
 * in the block).
 *   - P = B: one block, one page. P divides B: B / P pages per block, told apart by their place.
 *     B divides P, or neither divides the other: the page mixes several blocks; it is known only
 *     when all of it is, so that up to P - 1 tokens of a shared prefix are lost at its end, as they
 *     are in an engine with pages of P tokens.
 *   - Blocks named though partial (Mooncake's last block) are known up to input_tokens.
 *   - Any other page is *private*: its id comes from request.index and p, unequal to every other
 * but for a chance of 2^-64 per pair. It is the same each time it is asked, so that a recomputed
 *     page gets its id again.
 * Equal ids never come from unequal names, up to the same chance.
 *
 * Plain functions of their arguments; any thread.
 */
#ifndef OCT_TRACES_BLOCKS_H
#define OCT_TRACES_BLOCKS_H

#include <glib.h>

#include "traces/trace.h"

/* The id of page `page`; page_tokens >= 1. Pages past the end of the output are private. Walks the
 * pages before it: ask for many at once. */
guint64 oct_trace_page_id(const oct_trace_request *request, guint64 page, guint32 page_tokens);

/* Ids of pages [first, first + n) into out[n]. */
void oct_trace_page_ids(const oct_trace_request *request, guint64 first, guint64 n,
                        guint32 page_tokens, guint64 *out);

/* How many leading pages are known: pages from this one on are private. */
guint64 oct_trace_known_pages(const oct_trace_request *request, guint32 page_tokens);

/* Leading tokens, of prompt and output, whose content the trace names. */
guint64 oct_trace_known_tokens(const oct_trace_request *request);

#endif
