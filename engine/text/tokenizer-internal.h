/* What the readers of the tokenizer's files fill. Only tokenizer*.c include this. */
#ifndef OCT_TEXT_TOKENIZER_INTERNAL_H
#define OCT_TEXT_TOKENIZER_INTERNAL_H

#include "engine/text/bpe.h"
#include "engine/text/normalize.h"
#include "engine/text/split.h"
#include "engine/text/tokenizer.h"
#include "engine/text/trie.h"

typedef struct oct_added {
  gboolean lstrip, rstrip; /* swallows white space before, after */
  gboolean single_word;    /* only between characters that are not of a word */
  gboolean ordinary;       /* white space: matched in text from outside too */
} oct_added;

struct oct_tokenizer {
  oct_vocab *vocab;
  gboolean unigram; /* else BPE */
  double score_unknown;
  oct_bpe_rules rules;
  oct_normalizer *normalizer;
  oct_splitter *splitter;
  gboolean strips_space;
  guint32 slice_chars_max, run_chars_max;
  oct_trie *added;         /* texts of added tokens to ids */
  GHashTable *added_rules; /* id to oct_added, only for those with a rule; never walked */
  gboolean any_ordinary;
  GArray *before, *after, *ends; /* guint32 */
  guint32 roles[OCT_ROLE_COUNT];
  char *chat_template;
  GHashTable *templates; /* name to text; never walked */
};

/* With a vocabulary for ids below n_tokens, no rules, no roles. */
oct_tokenizer *oct_tokenizer_new(guint32 n_tokens);
/* Makes the token `id`, which is set, one that is searched for in texts. Takes nothing. */
gboolean oct_tokenizer_add_added(oct_tokenizer *tokenizer, guint32 id, oct_added rules,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_tokenizer_set_role(oct_tokenizer *tokenizer, oct_token_role role, guint32 id);
void oct_tokenizer_add_end(oct_tokenizer *tokenizer, guint32 id);

/* The byte that a character of GPT-2's byte-level alphabet stands for, -1 for any other. */
int oct_byte_level(gunichar c);
/* A token of a byte-level vocabulary as the bytes it stands for; text with other characters in it
 * is left as it is. Appends to `out`. */
void oct_byte_level_decode(const char *text, gsize size, GByteArray *out);
/* The byte of "<0x0A>", -1 for any other text. */
int oct_byte_token(const char *text, gsize size);
/* Appends `text` with each U+2581 as a space. */
void oct_unmark_spaces(const char *text, gsize size, GByteArray *out);

#endif
