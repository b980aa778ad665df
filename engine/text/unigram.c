/* Viterbi from left to right over byte positions that begin a character: best[i] is the best cut of
 * the first i bytes, with the size of its last token. */
#include "engine/text/unigram.h"

#include <math.h>

#include "engine/text/error.h"

typedef struct oct_cut {
  double score;
  guint32 size;  /* of the last token */
  guint32 token; /* OCT_NO_TOKEN: a character that none covers */
} oct_cut;

static void
walk_forward(const oct_vocab *vocab, double score_unknown, const char *piece, gsize size,
             oct_cut *best) {
  for (gsize i = 0; i <= size; i++)
    best[i] = (oct_cut){.score = -INFINITY, .token = OCT_NO_TOKEN};
  best[0].score = 0;
  gsize longest = oct_vocab_longest(vocab);
  for (gsize at = 0, step; at < size; at += step) {
    step = oct_utf8_size(piece + at, size - at);
    gboolean covered = FALSE;
    gsize n;
    for (gsize to = at; to < size && to - at < longest; to += n) {
      n = oct_utf8_size(piece + to, size - to);
      guint32 id = oct_vocab_find(vocab, piece + at, to + n - at);
      if (id == OCT_NO_TOKEN)
        continue;
      covered = covered || to == at;
      double score = best[at].score + (double)oct_vocab_score(vocab, id);
      if (score > best[to + n].score)
        best[to + n] = (oct_cut){score, (guint32)(to + n - at), id};
    }
    if (!covered && best[at].score + score_unknown > best[at + step].score)
      best[at + step] = (oct_cut){best[at].score + score_unknown, (guint32)step, OCT_NO_TOKEN};
  }
}

gboolean
oct_unigram_encode(const oct_vocab *vocab, const oct_bpe_rules *rules, double score_unknown,
                   const char *piece, gsize size, GArray *ids, GError **error) {
  if (size > OCT_BPE_PIECE_BYTES_MAX) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                "the text has a run of %" G_GSIZE_FORMAT " bytes: at most %u", size,
                OCT_BPE_PIECE_BYTES_MAX);
    return FALSE;
  }
  g_autofree oct_cut *best = g_new(oct_cut, size + 1);
  walk_forward(vocab, score_unknown, piece, size, best);
  /* The cuts come out last first: their ends are noted, then walked in order. */
  g_autoptr(GArray) ends = g_array_new(FALSE, FALSE, sizeof(guint32));
  for (gsize at = size; at > 0; at -= best[at].size) {
    guint32 end = (guint32)at;
    g_array_append_val(ends, end);
  }
  gboolean last_unknown = FALSE;
  for (guint i = ends->len; i > 0; i--) {
    const oct_cut *cut = &best[g_array_index(ends, guint32, i - 1)];
    if (cut->token != OCT_NO_TOKEN) {
      g_array_append_val(ids, cut->token);
      last_unknown = FALSE;
    } else
      oct_bpe_fallback(vocab, rules, piece + g_array_index(ends, guint32, i - 1) - cut->size,
                       cut->size, &last_unknown, ids);
  }
  return TRUE;
}
