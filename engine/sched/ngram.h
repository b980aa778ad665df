/* Prompt lookup: what followed when the last tokens of a text were last there is proposed again.
 *
 * An index holds, of each run of `min` tokens of one sequence, where it last ended, and from there
 * where it ended before. A proposal looks at the latest few of these places, takes the one that
 * agrees furthest back (up to `max` tokens; of equals the latest), and copies what follows it;
 * where that reaches the end of the text it goes on with what it has copied, so that a text that
 * repeats itself goes on repeating. Tokens are compared, never hashes alone. One step for each
 * token that the text grew by, whatever its length; 12 bytes a token. Deterministic. One thread.
 */
#ifndef OCT_SCHED_NGRAM_H
#define OCT_SCHED_NGRAM_H

#include <glib.h>

#define OCT_NGRAM_MAX 32 /* tokens compared */

typedef struct oct_ngram oct_ngram;

/* 1 <= min <= max <= OCT_NGRAM_MAX. */
oct_ngram *oct_ngram_new(guint32 min, guint32 max);
void oct_ngram_free(oct_ngram *index); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_ngram, oct_ngram_free)

/* Proposes up to n_drafts tokens to follow ids[n_ids]; returns how many: n_drafts, or 0 when the
 * last `min` tokens were nowhere before. The ids of earlier calls must be a prefix of these. */
guint32 oct_ngram_propose(oct_ngram *index, const guint32 *ids, guint32 n_ids, guint32 n_drafts,
                          guint32 *drafts);

#endif
