/* Byte-pair encoding of one piece of text (what a pre-tokenizer cut out, or a whole text).
 *
 * Symbols begin as bytes or characters; the best adjacent pair merges until none can. Ties go to
 * the leftmost pair. Pairs wait in a heap, entries that have gone stale are dropped when they
 * surface: O(n log n) whatever the text. At most OCT_BPE_SCRATCH_BYTES per byte of the piece are in
 * use.
 */
#ifndef OCT_TEXT_BPE_H
#define OCT_TEXT_BPE_H

#include "engine/text/vocab.h"

/* A longer piece is refused: it bounds the scratch memory. */
#define OCT_BPE_PIECE_BYTES_MAX (4u << 20)
#define OCT_BPE_SCRATCH_BYTES   64u

typedef enum oct_bpe_order {
  OCT_BPE_BY_MERGES, /* the pair with the lowest rank of the vocabulary's merges */
  OCT_BPE_BY_ID,     /* the pair whose concatenation is the token with the lowest id (tiktoken) */
  OCT_BPE_BY_SCORE,  /* … with the highest score (SentencePiece) */
} oct_bpe_order;

typedef struct oct_bpe_rules {
  oct_bpe_order order;
  gboolean chars;       /* symbols begin as characters of UTF-8, else as bytes */
  gboolean whole_first; /* a piece that is a token stays one, without merging */
  gboolean byte_fallback;
  guint32 unknown;       /* for what has no token; OCT_NO_TOKEN: it is dropped */
  gboolean fuse_unknown; /* adjacent unknowns become one */
} oct_bpe_rules;

/* Scratch memory, reused from piece to piece. One thread at a time each. */
typedef struct oct_bpe_scratch oct_bpe_scratch;
oct_bpe_scratch *oct_bpe_scratch_new(void);
void oct_bpe_scratch_free(oct_bpe_scratch *scratch); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_bpe_scratch, oct_bpe_scratch_free)

/* Appends the piece's token ids (guint32) to `ids`. With rules->chars the piece is valid UTF-8 or
 * its stray bytes are symbols of their own. FALSE with *error (LIMIT) for a piece that is too
 * long; `ids` is as it was. */
gboolean oct_bpe_encode(const oct_vocab *vocab, const oct_bpe_rules *rules,
                        oct_bpe_scratch *scratch, const char *piece, gsize size, GArray *ids,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Appends tokens for text that no NORMAL token covers: byte tokens when allowed and there for every
 * byte, else the unknown token. `last_unknown`: whether the token before is such an unknown;
 * updated. */
void oct_bpe_fallback(const oct_vocab *vocab, const oct_bpe_rules *rules, const char *bytes,
                      gsize size, gboolean *last_unknown, GArray *ids);

/* Bytes of the character at `text`: 1 … 4; 1 for a stray byte. size >= 1. */
gsize oct_utf8_size(const char *text, gsize size);

#endif
