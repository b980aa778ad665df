/* Structured output: which tokens may come next, so that an answer fits a pattern or a schema.
 *
 * A constraint is compiled into an automaton over bytes with a stack (for values inside values). It
 * is run over the tree of the vocabulary's tokens: positions that the automaton can be in are made
 * as they are met and kept, with their masks, so a mask is computed once per position and copied
 * after that. Control tokens are never allowed but those that end a generation, when the text may
 * end.
 *
 * The JSON schemas that are understood: type (also a list of types), properties, required,
 * additionalProperties, items, minItems, maxItems, enum, const, minLength, maxLength, pattern,
 * anyOf, allOf of one, $ref to #/$defs/… or #/definitions/…, and the words that only describe
 * (title, description, default, examples, $schema, $id, $comment, deprecated, readOnly, writeOnly).
 * Any other word is refused by name. Properties come in the order of the schema; those that it does
 * not list come only when additionalProperties says so, or when it lists none. Between the parts of
 * a value at most 20 characters of white space.
 *
 * Regular expressions: characters, classes, . and \d \w \s of ASCII and their complements, groups,
 * |, * + ? {m,n}, ^ and $ at the ends; \xHH and \uHHHH; matched against the whole text.
 * Look-around, back-references, lazy quantifiers and Unicode properties are refused.
 *
 * A guide and its states belong to one thread at a time; the vocabulary's tree to any.
 */
#ifndef OCT_TEXT_GUIDE_H
#define OCT_TEXT_GUIDE_H

#include <glib.h>
#include <jansson.h>

#include "engine/text/tokenizer.h"

/* Limits. */
#define OCT_GUIDE_BYTES_MAX     65536u /* of a pattern, of all choices */
#define OCT_GUIDE_STATES_MAX    10000u /* of an automaton */
#define OCT_GUIDE_DEPTH_MAX     64u    /* of groups, of a schema, of an answer's values */
#define OCT_GUIDE_REPEAT_MAX    1000u
#define OCT_GUIDE_POSITIONS_MAX 20000u /* that are kept; beyond, mask and advance fail */
#define OCT_GUIDE_THREADS_MAX   20000u /* ways to read the text so far, of one position */
#define OCT_GUIDE_MASKS_MAX     512u   /* that are kept */

/* The tree of a vocabulary; made once per model. `tokenizer` is borrowed and outlives it. */
typedef struct oct_guide_vocab oct_guide_vocab;
oct_guide_vocab *oct_guide_vocab_new(const oct_tokenizer *tokenizer);
void oct_guide_vocab_free(oct_guide_vocab *vocab); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_guide_vocab, oct_guide_vocab_free)
/* 32-bit words of a mask. */
guint oct_guide_vocab_words(const oct_guide_vocab *vocab);

/* A compiled constraint. `vocab` is borrowed and outlives it. NULL with *error: INPUT (what is
 * wrong or not supported, by name), LIMIT. */
typedef struct oct_guide oct_guide;
oct_guide *oct_guide_new_regex(const oct_guide_vocab *vocab, const char *pattern,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
oct_guide *oct_guide_new_choice(const oct_guide_vocab *vocab, const char *const *choices, guint n,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Any JSON object. */
oct_guide *oct_guide_new_json(const oct_guide_vocab *vocab,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
oct_guide *oct_guide_new_schema(const oct_guide_vocab *vocab, const json_t *schema,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_guide_free(oct_guide *guide); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_guide, oct_guide_free)

/* Where a sequence stands: plain data, 0 before the first token. Copy it to go back. */
typedef struct oct_guide_state {
  guint32 position;
  gboolean ended; /* an end token was taken */
} oct_guide_state;

/* Writes the mask, bit i for token i. FALSE with *error (LIMIT) when the work limit is met, or when
 * no token of the vocabulary can go on. */
gboolean oct_guide_mask(oct_guide *guide, const oct_guide_state *state, guint32 *bits,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Takes a token. FALSE, and the state as it was: the token is not allowed. */
gboolean oct_guide_advance(oct_guide *guide, oct_guide_state *state,
                           guint32 token) G_GNUC_WARN_UNUSED_RESULT;
/* How much of its positions are used up, 0 to 1, by all states that were ever in it: from 1 on mask
 * and advance fail. A guide that many use is to be replaced in time. */
double oct_guide_used(const oct_guide *guide);
/* The text so far is whole. */
gboolean oct_guide_may_end(oct_guide *guide, const oct_guide_state *state);

#endif
