/* A tokenizer that needs no files: what `mock` speaks when it is given no model.
 *
 * Text is encoded as its bytes, one token each: any text, one id a byte. The rest of the vocabulary
 * is ChatML's control tokens and English words with a space before them, which encoding never
 * gives: a backend that draws tokens evenly writes words, with a stray byte now and then.
 */
#ifndef OCT_TEXT_TOKENIZER_BYTES_H
#define OCT_TEXT_TOKENIZER_BYTES_H

#include "engine/text/tokenizer.h"

#define OCT_BYTES_VOCAB 16384u /* ids; a model that goes with it has as many */

/* Bytes are ids 0 … 255; <|im_end|> ends a generation. */
oct_tokenizer *oct_tokenizer_new_bytes(void);

#endif
