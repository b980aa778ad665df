/* Pre-tokenization: cuts a text into pieces that are merged on their own.
 *
 * A splitter is a list of steps; each cuts every piece that the steps before left. Patterns are
 * those of published tokenizers, run by PCRE2 with its compiler, in Unicode mode; where their
 * dialect (Oniguruma, Rust) differs, the pattern is rewritten: scripts mean the script and not its
 * extensions, white space is Unicode's, [A&&[^B]] is a look-ahead. No pattern comes from a client.
 * A splitter is constant once built: any thread may run it, each with its own scratch.
 */
#ifndef OCT_TEXT_SPLIT_H
#define OCT_TEXT_SPLIT_H

#include <glib.h>

/* Limits. */
#define OCT_SPLIT_PATTERN_BYTES_MAX 65536u
#define OCT_SPLIT_STEPS_MAX         16u
#define OCT_SPLIT_JIT_STACK_MAX     (64u << 20)  /* bytes */
#define OCT_SPLIT_HEAP_MAX          (256u << 10) /* KiB, of the matcher without compiler */
#define OCT_SPLIT_MATCH_MAX         200000000u   /* PCRE2's count of its inner steps, per match */

/* What becomes of the places that match (Hugging Face's names). */
typedef enum oct_split_mode {
  OCT_SPLIT_ISOLATED,        /* a piece of their own */
  OCT_SPLIT_REMOVED,         /* dropped */
  OCT_SPLIT_MERGED_PREVIOUS, /* end of the piece before */
  OCT_SPLIT_MERGED_NEXT,     /* beginning of the piece after */
  OCT_SPLIT_CONTIGUOUS,      /* adjacent ones are one piece */
} oct_split_mode;

/* A piece: bytes [start, end) of the text. */
typedef struct oct_span {
  guint32 start, end;
} oct_span;

typedef struct oct_splitter oct_splitter;
typedef struct oct_split_scratch oct_split_scratch;

/* Life cycle. Without steps a splitter leaves the text whole. */
oct_splitter *oct_splitter_new(void);
void oct_splitter_free(oct_splitter *splitter); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_splitter, oct_splitter_free)
oct_split_scratch *oct_split_scratch_new(void);
void oct_split_scratch_free(oct_split_scratch *scratch); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_split_scratch, oct_split_scratch_free)

/* Build. `invert`: what does not match counts as the match. `literal`: the pattern is a string.
 * FALSE with *error: FORMAT (PCRE2's message and the place), UNSUPPORTED, LIMIT. */
gboolean oct_splitter_add(oct_splitter *splitter, const char *pattern, gsize size, gboolean literal,
                          oct_split_mode mode, gboolean invert,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Adds the steps of a published pre-tokenizer by the name that GGUF files use: gpt-2, default,
 * llama-bpe, qwen2, smollm, deepseek-v3, gpt-4o, kimi-k2 and their aliases. FALSE with *error
 * (UNSUPPORTED) that names it. */
gboolean oct_splitter_add_named(oct_splitter *splitter, const char *name,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Use. Appends the pieces of [0, size) to `spans` (oct_span), in order, none empty. `text` is valid
 * UTF-8, size < 4 GiB. FALSE with *error (LIMIT) when a match goes beyond the limits. */
gboolean oct_splitter_run(const oct_splitter *splitter, oct_split_scratch *scratch,
                          const char *text, gsize size, GArray *spans,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The pattern as it is compiled; owned. For tests. NULL with *error. */
char *oct_split_translate(const char *pattern, gsize size,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
