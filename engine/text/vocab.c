/* Two open-addressing tables over flat arrays: byte string to id, and pair of ids to merge. Keys of
 * the first are hashed with SipHash, so that a crafted vocabulary cannot make look-ups slow. */
#include "engine/text/vocab.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/hash.h"
#include "engine/base/rng.h"
#include "engine/text/error.h"

typedef struct oct_token {
  guint32 start; /* in the arena */
  guint32 size;
  float score;
  guint8 kind;
} oct_token;

typedef struct oct_pair {
  guint32 left, right;
  oct_merge merge; /* result OCT_NO_TOKEN: a free place */
} oct_pair;

struct oct_vocab {
  oct_token *tokens;
  guint32 n_tokens;
  GByteArray *arena;
  guint32 *by_bytes; /* ids; OCT_NO_TOKEN: free */
  guint32 by_bytes_mask;
  guint32 bytes[256]; /* tokens of kind BYTE */
  oct_pair *pairs;
  guint64 pairs_mask; /* 0: no table */
  guint64 n_pairs;
  gsize longest;
};

static const oct_hash_key vocab_key = {0x6f637465742f7465, 0x78742f766f636162};

oct_vocab *
oct_vocab_new(guint32 n_tokens) {
  oct_assert(n_tokens <= OCT_VOCAB_TOKENS_MAX);
  oct_vocab *vocab = g_new0(oct_vocab, 1);
  vocab->tokens = g_new0(oct_token, MAX(n_tokens, 1u));
  vocab->n_tokens = n_tokens;
  vocab->arena = g_byte_array_new();
  guint32 places = 16;
  while (places < n_tokens * 2u)
    places *= 2;
  vocab->by_bytes = g_new(guint32, places);
  memset(vocab->by_bytes, 0xff, places * sizeof *vocab->by_bytes);
  vocab->by_bytes_mask = places - 1;
  memset(vocab->bytes, 0xff, sizeof vocab->bytes);
  return vocab;
}

void
oct_vocab_free(oct_vocab *vocab) {
  if (vocab == NULL)
    return;
  g_free(vocab->tokens);
  g_byte_array_unref(vocab->arena);
  g_free(vocab->by_bytes);
  g_free(vocab->pairs);
  g_free(vocab);
}

/* Where `bytes` is in the table, or the free place where it would go. */
static guint32
find_place(const oct_vocab *vocab, const void *bytes, gsize size) {
  guint32 at = (guint32)oct_hash64(vocab_key, bytes, size) & vocab->by_bytes_mask;
  for (;; at = (at + 1) & vocab->by_bytes_mask) {
    guint32 id = vocab->by_bytes[at];
    if (id == OCT_NO_TOKEN)
      return at;
    const oct_token *token = &vocab->tokens[id];
    if (token->size == size && memcmp(vocab->arena->data + token->start, bytes, size) == 0)
      return at;
  }
}

gboolean
oct_vocab_set(oct_vocab *vocab, guint32 id, const void *bytes, gsize size, oct_token_kind kind,
              float score, GError **error) {
  oct_assert(kind != OCT_TOKEN_NONE);
  if (id >= vocab->n_tokens || vocab->tokens[id].kind != OCT_TOKEN_NONE) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT, "token id %u %s", id,
                id >= vocab->n_tokens ? "is beyond the vocabulary" : "is there twice");
    return FALSE;
  }
  if (size > OCT_VOCAB_TOKEN_BYTES_MAX || size > OCT_VOCAB_BYTES_MAX - vocab->arena->len) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                "token %u has %" G_GSIZE_FORMAT " bytes: at most %u each and %u in all", id, size,
                OCT_VOCAB_TOKEN_BYTES_MAX, OCT_VOCAB_BYTES_MAX);
    return FALSE;
  }
  oct_token *token = &vocab->tokens[id];
  token->start = vocab->arena->len;
  token->size = (guint32)size;
  token->score = score;
  token->kind = (guint8)kind;
  if (size > 0)
    g_byte_array_append(vocab->arena, bytes, (guint)size);
  if (kind == OCT_TOKEN_BYTE && size == 1)
    vocab->bytes[*(const guint8 *)bytes] = id;
  if (kind == OCT_TOKEN_NORMAL && size > 0) {
    guint32 place = find_place(vocab, bytes, size);
    if (vocab->by_bytes[place] == OCT_NO_TOKEN)
      vocab->by_bytes[place] = id;
    vocab->longest = MAX(vocab->longest, size);
  }
  return TRUE;
}

void
oct_vocab_set_kind(oct_vocab *vocab, guint32 id, oct_token_kind kind) {
  oct_assert(id < vocab->n_tokens && vocab->tokens[id].kind != OCT_TOKEN_NONE);
  vocab->tokens[id].kind = (guint8)kind;
}

static guint64
pair_place(const oct_vocab *vocab, guint32 left, guint32 right) {
  guint64 at = oct_mix64((guint64)left << 32 | right) & vocab->pairs_mask;
  while (vocab->pairs[at].merge.result != OCT_NO_TOKEN &&
         (vocab->pairs[at].left != left || vocab->pairs[at].right != right))
    at = (at + 1) & vocab->pairs_mask;
  return at;
}

static void
grow_pairs(oct_vocab *vocab) {
  oct_pair *old = vocab->pairs;
  guint64 old_places = old == NULL ? 0 : vocab->pairs_mask + 1;
  guint64 places = old == NULL ? 1024 : old_places * 2;
  vocab->pairs = g_new(oct_pair, places);
  memset(vocab->pairs, 0xff, places * sizeof *vocab->pairs);
  vocab->pairs_mask = places - 1;
  for (guint64 i = 0; i < old_places; i++)
    if (old[i].merge.result != OCT_NO_TOKEN)
      vocab->pairs[pair_place(vocab, old[i].left, old[i].right)] = old[i];
  g_free(old);
}

void
oct_vocab_add_merge(oct_vocab *vocab, guint32 left, guint32 right, oct_merge merge) {
  oct_assert(MAX(MAX(left, right), merge.result) < vocab->n_tokens);
  if (vocab->pairs == NULL || vocab->n_pairs * 2 >= vocab->pairs_mask)
    grow_pairs(vocab);
  oct_pair *pair = &vocab->pairs[pair_place(vocab, left, right)];
  if (pair->merge.result != OCT_NO_TOKEN)
    return;
  *pair = (oct_pair){.left = left, .right = right, .merge = merge};
  vocab->n_pairs++;
}

guint32
oct_vocab_n_tokens(const oct_vocab *vocab) {
  return vocab->n_tokens;
}

oct_token_kind
oct_vocab_kind(const oct_vocab *vocab, guint32 id) {
  return id < vocab->n_tokens ? (oct_token_kind)vocab->tokens[id].kind : OCT_TOKEN_NONE;
}

oct_text
oct_vocab_bytes(const oct_vocab *vocab, guint32 id) {
  if (id >= vocab->n_tokens || vocab->arena->data == NULL)
    return (oct_text){.bytes = "", .size = 0};
  const oct_token *token = &vocab->tokens[id];
  return (oct_text){.bytes = (const char *)vocab->arena->data + token->start, .size = token->size};
}

float
oct_vocab_score(const oct_vocab *vocab, guint32 id) {
  oct_assert(id < vocab->n_tokens);
  return vocab->tokens[id].score;
}

gsize
oct_vocab_longest(const oct_vocab *vocab) {
  return vocab->longest;
}

guint32
oct_vocab_find(const oct_vocab *vocab, const void *bytes, gsize size) {
  if (size == 0 || size > vocab->longest)
    return OCT_NO_TOKEN;
  guint32 id = vocab->by_bytes[find_place(vocab, bytes, size)];
  return id != OCT_NO_TOKEN && vocab->tokens[id].kind == OCT_TOKEN_NORMAL ? id : OCT_NO_TOKEN;
}

guint32
oct_vocab_byte(const oct_vocab *vocab, guint8 byte) {
  return vocab->bytes[byte] != OCT_NO_TOKEN ? vocab->bytes[byte] : oct_vocab_find(vocab, &byte, 1);
}

const oct_merge *
oct_vocab_merge(const oct_vocab *vocab, guint32 left, guint32 right) {
  if (vocab->pairs == NULL)
    return NULL;
  const oct_pair *pair = &vocab->pairs[pair_place(vocab, left, right)];
  return pair->merge.result != OCT_NO_TOKEN ? &pair->merge : NULL;
}
