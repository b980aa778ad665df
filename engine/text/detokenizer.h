/* Token ids to text, one at a time, as they are generated.
 *
 * Only whole characters come out, each once. The concatenation of what all calls give is the same
 * however the calls are made: a stream and a whole answer are equal by construction. A tail that
 * never became a character comes out at the end as one U+FFFD (engine/text/utf8.h). One thread at a
 * time each.
 */
#ifndef OCT_TEXT_DETOKENIZER_H
#define OCT_TEXT_DETOKENIZER_H

#include "engine/text/tokenizer.h"

typedef struct oct_detokenizer oct_detokenizer;

/* Life cycle. `tokenizer` is borrowed and outlives it. `skip_control`: control tokens give no text
 * (skip_special_tokens). `begins`: the first token begins a text, rather than going on after a
 * prompt; then SentencePiece's leading space is taken off. */
oct_detokenizer *oct_detokenizer_new(const oct_tokenizer *tokenizer, gboolean skip_control,
                                     gboolean begins);
void oct_detokenizer_free(oct_detokenizer *detokenizer); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_detokenizer, oct_detokenizer_free)

/* Of control tokens that are skipped those whose text is one of `texts` give it all the same: what
 * a parser looks for. Borrowed, and outlives the detokenizer; NULL with n 0. */
void oct_detokenizer_keep(oct_detokenizer *detokenizer, const char *const *texts, guint n);

/* Says what stands before the first token. A prompt may end within a character; when the first
 * tokens complete it, the whole character comes out, and when they do not, nothing of the prompt
 * does. */
void oct_detokenizer_after(oct_detokenizer *detokenizer, const guint32 *prompt, gsize n);

/* Use. Appends the characters that the token completes. Ids that no token has give nothing. */
void oct_detokenizer_push(oct_detokenizer *detokenizer, guint32 id, GString *out);
/* Appends U+FFFD when a character was left unfinished. Later calls give nothing more. */
void oct_detokenizer_finish(oct_detokenizer *detokenizer, GString *out);

/* All at once: the text of n ids that begin a text, appended to `out`. */
void oct_detokenize(const oct_tokenizer *tokenizer, const guint32 *ids, gsize n,
                    gboolean skip_control, GString *out);

#endif
