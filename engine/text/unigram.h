/* Unigram segmentation (SentencePiece): of all ways to cut a text into tokens, the one with the
 * highest sum of scores. A character that no token covers costs the lowest score less 10. Work is
 * bounded by bytes × the longest token.
 */
#ifndef OCT_TEXT_UNIGRAM_H
#define OCT_TEXT_UNIGRAM_H

#include "engine/text/bpe.h"

/* Tokens longer than this are refused by the readers of unigram vocabularies. */
#define OCT_UNIGRAM_TOKEN_BYTES_MAX 1024u

/* Appends the ids of `piece`. `score_unknown`: of a character without a token.
 * rules->byte_fallback, unknown and fuse_unknown are as for oct_bpe_encode(). FALSE with *error
 * (LIMIT) when the piece is longer than OCT_BPE_PIECE_BYTES_MAX. */
gboolean oct_unigram_encode(const oct_vocab *vocab, const oct_bpe_rules *rules,
                            double score_unknown, const char *piece, gsize size, GArray *ids,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
