/* A piece is an array of symbols linked by index; merging extends the left symbol over the right.
 * A heap entry names its left symbol and the size of both together. Symbols only grow, so an entry
 * is still true exactly when the pair at that place has that size. */
#include "engine/text/bpe.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/error.h"

typedef struct oct_symbol {
  guint32 start, size; /* bytes of the piece; size 0: merged away */
  guint32 token;       /* OCT_NO_TOKEN: none covers it */
  guint32 previous, next;
} oct_symbol;

#define NO_SYMBOL G_MAXUINT32

typedef struct oct_candidate {
  guint64 key;    /* rank in the high half, left symbol in the low: one comparison orders both */
  guint32 size;   /* of both symbols */
  guint32 result; /* the merged token */
} oct_candidate;

struct oct_bpe_scratch {
  GArray *symbols;
  GArray *heap;
};

oct_bpe_scratch *
oct_bpe_scratch_new(void) {
  oct_bpe_scratch *scratch = g_new(oct_bpe_scratch, 1);
  scratch->symbols = g_array_new(FALSE, FALSE, sizeof(oct_symbol));
  scratch->heap = g_array_new(FALSE, FALSE, sizeof(oct_candidate));
  return scratch;
}

void
oct_bpe_scratch_free(oct_bpe_scratch *scratch) {
  if (scratch == NULL)
    return;
  g_array_unref(scratch->symbols);
  g_array_unref(scratch->heap);
  g_free(scratch);
}

gsize
oct_utf8_size(const char *text, gsize size) {
  gunichar c = g_utf8_get_char_validated(text, (gssize)MIN(size, 4u));
  if (c == 0 || (c & 0x80000000u) != 0)
    return 1;
  return (gsize)g_unichar_to_utf8(c, NULL);
}

/* --- the heap ------------------------------------------------------------------------------- */

static void
heap_push(GArray *heap, oct_candidate candidate) {
  g_array_append_val(heap, candidate);
  oct_candidate *all = (oct_candidate *)(void *)heap->data;
  guint at = heap->len - 1;
  while (at > 0 && candidate.key < all[(at - 1) / 2].key) {
    all[at] = all[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  all[at] = candidate;
}

static oct_candidate
heap_pop(GArray *heap) {
  oct_candidate *all = (oct_candidate *)(void *)heap->data;
  oct_candidate top = all[0], last = all[heap->len - 1];
  guint n = heap->len - 1, at = 0;
  g_array_set_size(heap, n);
  for (guint child = 1; child < n; child = 2 * at + 1) {
    if (child + 1 < n && all[child + 1].key < all[child].key)
      child++;
    if (last.key <= all[child].key)
      break;
    all[at] = all[child];
    at = child;
  }
  if (n > 0)
    all[at] = last;
  return top;
}

/* --- merging -------------------------------------------------------------------------------- */

/* Maps a score to a rank: a higher score is a lower number. */
static guint32
score_rank(float score) {
  guint32 bits;
  memcpy(&bits, &score, sizeof bits);
  guint32 rising = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return ~rising;
}

static void
consider(const oct_vocab *vocab, const oct_bpe_rules *rules, oct_bpe_scratch *scratch,
         const char *piece, guint32 left) {
  const oct_symbol *symbols = (const oct_symbol *)(void *)scratch->symbols->data;
  const oct_symbol *a = &symbols[left];
  if (a->next == NO_SYMBOL)
    return;
  const oct_symbol *b = &symbols[a->next];
  oct_candidate candidate = {.size = a->size + b->size};
  guint32 rank;
  if (rules->order == OCT_BPE_BY_MERGES) {
    const oct_merge *merge = a->token == OCT_NO_TOKEN || b->token == OCT_NO_TOKEN
                                 ? NULL
                                 : oct_vocab_merge(vocab, a->token, b->token);
    if (merge == NULL)
      return;
    candidate.result = merge->result;
    rank = merge->rank;
  } else {
    candidate.result = oct_vocab_find(vocab, piece + a->start, candidate.size);
    if (candidate.result == OCT_NO_TOKEN)
      return;
    rank = rules->order == OCT_BPE_BY_ID ? candidate.result
                                         : score_rank(oct_vocab_score(vocab, candidate.result));
  }
  candidate.key = (guint64)rank << 32 | left;
  heap_push(scratch->heap, candidate);
}

static void
split_symbols(const oct_vocab *vocab, const oct_bpe_rules *rules, GArray *symbols,
              const char *piece, gsize size) {
  g_array_set_size(symbols, 0);
  for (gsize at = 0; at < size;) {
    gsize step = rules->chars ? oct_utf8_size(piece + at, size - at) : 1;
    guint32 index = symbols->len;
    oct_symbol symbol = {.start = (guint32)at,
                         .size = (guint32)step,
                         .token = rules->chars ? oct_vocab_find(vocab, piece + at, step)
                                               : oct_vocab_byte(vocab, (guint8)piece[at]),
                         .previous = index == 0 ? NO_SYMBOL : index - 1,
                         .next = at + step < size ? index + 1 : NO_SYMBOL};
    g_array_append_val(symbols, symbol);
    at += step;
  }
}

static void
merge_all(const oct_vocab *vocab, const oct_bpe_rules *rules, oct_bpe_scratch *scratch,
          const char *piece) {
  oct_symbol *symbols = (oct_symbol *)(void *)scratch->symbols->data;
  g_array_set_size(scratch->heap, 0);
  for (guint32 i = 0; i + 1 < scratch->symbols->len; i++)
    consider(vocab, rules, scratch, piece, i);
  while (scratch->heap->len > 0) {
    oct_candidate best = heap_pop(scratch->heap);
    guint32 left = (guint32)best.key;
    oct_symbol *a = &symbols[left];
    if (a->size == 0 || a->next == NO_SYMBOL || a->size + symbols[a->next].size != best.size)
      continue;
    oct_symbol *b = &symbols[a->next];
    a->size = best.size;
    a->token = best.result;
    a->next = b->next;
    b->size = 0;
    if (a->next != NO_SYMBOL)
      symbols[a->next].previous = left;
    if (a->previous != NO_SYMBOL)
      consider(vocab, rules, scratch, piece, a->previous);
    consider(vocab, rules, scratch, piece, left);
  }
}

void
oct_bpe_fallback(const oct_vocab *vocab, const oct_bpe_rules *rules, const char *bytes, gsize size,
                 gboolean *last_unknown, GArray *ids) {
  gboolean all = rules->byte_fallback;
  for (gsize i = 0; i < size && all; i++)
    all = oct_vocab_byte(vocab, (guint8)bytes[i]) != OCT_NO_TOKEN;
  if (all) {
    for (gsize i = 0; i < size; i++) {
      guint32 id = oct_vocab_byte(vocab, (guint8)bytes[i]);
      g_array_append_val(ids, id);
    }
    *last_unknown = FALSE;
    return;
  }
  if (rules->unknown != OCT_NO_TOKEN && !(*last_unknown && rules->fuse_unknown))
    g_array_append_val(ids, rules->unknown);
  *last_unknown = TRUE;
}

gboolean
oct_bpe_encode(const oct_vocab *vocab, const oct_bpe_rules *rules, oct_bpe_scratch *scratch,
               const char *piece, gsize size, GArray *ids, GError **error) {
  if (size > OCT_BPE_PIECE_BYTES_MAX) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                "the text has a run of %" G_GSIZE_FORMAT
                " bytes that cannot be cut before merging: at most %u",
                size, OCT_BPE_PIECE_BYTES_MAX);
    return FALSE;
  }
  if (rules->whole_first) {
    guint32 id = oct_vocab_find(vocab, piece, size);
    if (id != OCT_NO_TOKEN) {
      g_array_append_val(ids, id);
      return TRUE;
    }
  }
  split_symbols(vocab, rules, scratch->symbols, piece, size);
  merge_all(vocab, rules, scratch, piece);
  gboolean last_unknown = FALSE;
  const oct_symbol *symbols = (const oct_symbol *)(void *)scratch->symbols->data;
  for (guint32 i = 0; size > 0 && i != NO_SYMBOL; i = symbols[i].next) {
    if (symbols[i].token != OCT_NO_TOKEN) {
      g_array_append_val(ids, symbols[i].token);
      last_unknown = FALSE;
    } else
      oct_bpe_fallback(vocab, rules, piece + symbols[i].start, symbols[i].size, &last_unknown, ids);
  }
  return TRUE;
}
