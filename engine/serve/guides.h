/* Structured output: compiled constraints and their masks, all on one text thread.
 *
 * A compiled guide and the states in it belong to one thread, and computing a mask for the first
 * time may take milliseconds, so neither the front nor the engine thread does it. The engine asks
 * for the mask of a choice's next token while the forward pass runs, and is answered through a
 * ring. Guides are kept for the next generation with the same constraint; the masks that they have
 * computed with them.
 *
 *   front:  compile --> compiled --> (submitted to the engine)
 *   engine: tokens, ask --> answer … left
 */
#ifndef OCT_SERVE_GUIDES_H
#define OCT_SERVE_GUIDES_H

#include "engine/serve/internal.h"

#define OCT_GUIDES_KEPT 64 /* compiled, in use or not; beyond, those least recently used go */

/* Life cycle. `tokenizer` is borrowed. The tree of its vocabulary is made with the first compile.
 * `vocab`: ids that the engine's masks cover. */
oct_guides *oct_guides_new(oct_service *service, const oct_tokenizer *tokenizer, guint32 vocab);
gboolean oct_guides_start(oct_guides *guides, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Ends the thread. After it nothing is answered. */
void oct_guides_stop(oct_guides *guides);
void oct_guides_free(oct_guides *guides); /* accepts NULL; stopped, or never started */

/* ---- front. Each takes a reference. */
/* oct_front_compiled() follows from oct_guides_dispatch(). */
void oct_guides_compile(oct_guides *guides, oct_generation *generation);
/* The same generation will not reach an engine. */
void oct_guides_drop(oct_guides *guides, oct_generation *generation);
/* Calls oct_front_compiled(), and oct_front_end_soon() for masks that failed. TRUE: any. */
gboolean oct_guides_dispatch(oct_guides *guides);

/* ---- engine thread */
struct oct_guide_answer {
  oct_generation *generation;
  guint32 choice, n_output, n_words;
  guint64 *bits; /* NULL: there is no mask, end the generation */
};
void oct_guide_answer_clear(oct_guide_answer *answer);

void oct_guides_tokens(oct_guides *guides, oct_generation *generation, guint32 choice,
                       const guint32 *ids, guint32 n);
void oct_guides_ask(oct_guides *guides, oct_generation *generation, guint32 choice,
                    guint32 n_output);
void oct_guides_left(oct_guides *guides, oct_generation *generation);
/* FALSE: no more. */
gboolean oct_guides_answer(oct_guides *guides, oct_guide_answer *answer);
/* Wakes the text thread if there is something for it: nothing is asked before. FALSE: some
 * questions still wait for room. */
gboolean oct_guides_flush(oct_guides *guides);

/* ---- without a thread: does what has been asked. TRUE: there was something. */
gboolean oct_guides_turn(oct_guides *guides);

#endif
