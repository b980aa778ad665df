/* A vocabulary: the tokens of a tokenizer as byte strings, with what its merge rules say of them.
 *
 * The readers (tokenizer.json, GGUF metadata, tiktoken files) fill one; the algorithms (bpe.h,
 * spm.h) only look things up. Bytes are the bytes of the text: a reader has already undone the
 * disguises of its format (byte-level alphabets, the white-space mark of SentencePiece, <0x0A>).
 * Filled by one thread, constant after that: any thread.
 */
#ifndef OCT_TEXT_VOCAB_H
#define OCT_TEXT_VOCAB_H

#include <glib.h>

#include "engine/model/files/tensors.h"

/* Limits. */
#define OCT_VOCAB_TOKENS_MAX      (1u << 21)
#define OCT_VOCAB_TOKEN_BYTES_MAX 65536u
#define OCT_VOCAB_BYTES_MAX       (256u << 20) /* of all tokens together */

#define OCT_NO_TOKEN G_MAXUINT32

typedef enum oct_token_kind {
  OCT_TOKEN_NONE,    /* an id that no token has */
  OCT_TOKEN_NORMAL,  /* what merges produce; the only kind that oct_vocab_find() finds */
  OCT_TOKEN_BYTE,    /* stands for one byte that no other token covers */
  OCT_TOKEN_ADDED,   /* a whole word beside the merges: white space, <tool_call> */
  OCT_TOKEN_CONTROL, /* structure of prompts: <|im_start|>; not part of the text */
  OCT_TOKEN_UNKNOWN, /* what a character without a token becomes */
} oct_token_kind;

typedef struct oct_merge {
  guint32 rank;   /* lower merges first */
  guint32 result; /* the merged token */
} oct_merge;

typedef struct oct_vocab oct_vocab;

/* Life cycle. Room for ids below `n_tokens` (<= OCT_VOCAB_TOKENS_MAX). */
oct_vocab *oct_vocab_new(guint32 n_tokens);
void oct_vocab_free(oct_vocab *vocab); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_vocab, oct_vocab_free)

/* Fill. An id is set once; the bytes are copied. FALSE with *error (FORMAT, LIMIT): id out of range
 * or set before, a token too long. Of two NORMAL tokens with equal bytes the first set is found. */
gboolean oct_vocab_set(oct_vocab *vocab, guint32 id, const void *bytes, gsize size,
                       oct_token_kind kind, float score, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Changes the kind of a token that is set: a NORMAL one that a later list declares special. */
void oct_vocab_set_kind(oct_vocab *vocab, guint32 id, oct_token_kind kind);
/* Adds a rule that merges two adjacent tokens. The first rule of a pair counts. */
void oct_vocab_add_merge(oct_vocab *vocab, guint32 left, guint32 right, oct_merge merge);

/* Inspect. */
guint32 oct_vocab_n_tokens(const oct_vocab *vocab);
oct_token_kind oct_vocab_kind(const oct_vocab *vocab, guint32 id); /* NONE beyond the last */
oct_text oct_vocab_bytes(const oct_vocab *vocab, guint32 id);      /* empty when NONE */
float oct_vocab_score(const oct_vocab *vocab, guint32 id);
gsize oct_vocab_longest(const oct_vocab *vocab); /* bytes of the longest NORMAL token */
/* The NORMAL token with these bytes, else OCT_NO_TOKEN. */
guint32 oct_vocab_find(const oct_vocab *vocab, const void *bytes, gsize size);
/* The token for one byte: the BYTE token, else the NORMAL token of that byte, else OCT_NO_TOKEN. */
guint32 oct_vocab_byte(const oct_vocab *vocab, guint8 byte);
/* NULL when the pair does not merge. */
const oct_merge *oct_vocab_merge(const oct_vocab *vocab, guint32 left, guint32 right);

#endif
