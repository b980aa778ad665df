#include "engine/text/tokenizer-bytes.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/tokenizer-internal.h"

/* As transformers documents ChatML. */
static const char chatml[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\n' }}{% endif %}";

static const char *const controls[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

static const char *const words[] = {
    " a",     " about", " after",  " all",    " an",    " and",   " any",   " are",   " as",
    " at",    " be",    " been",   " but",    " by",    " can",   " come",  " could", " day",
    " do",    " each",  " even",   " every",  " find",  " first", " for",   " from",  " get",
    " give",  " go",    " good",   " great",  " had",   " has",   " have",  " he",    " her",
    " here",  " him",   " his",    " house",  " how",   " if",    " in",    " into",  " is",
    " it",    " its",   " just",   " know",   " large", " last",  " like",  " line",  " little",
    " long",  " look",  " made",   " make",   " man",   " many",  " may",   " me",    " more",
    " most",  " much",  " must",   " my",     " name",  " never", " new",   " no",    " not",
    " now",   " of",    " on",     " one",    " only",  " or",    " other", " our",   " out",
    " over",  " own",   " part",   " people", " place", " right", " said",  " same",  " say",
    " see",   " she",   " should", " small",  " so",    " some",  " sound", " still", " such",
    " take",  " than",  " that",   " the",    " their", " them",  " then",  " there", " these",
    " they",  " thing", " think",  " this",   " time",  " to",    " two",   " under", " up",
    " us",    " use",   " very",   " was",    " water", " way",   " we",    " well",  " were",
    " what",  " when",  " where",  " which",  " who",   " will",  " with",  " word",  " work",
    " would", " write", " year",   " you",    " your",  ".",      ",",
};

oct_tokenizer *
oct_tokenizer_new_bytes(void) {
  oct_tokenizer *t = oct_tokenizer_new(OCT_BYTES_VOCAB);
  g_autoptr(GError) error = NULL;
  gboolean good = TRUE;
  guint32 id = 0;
  for (; id < 256; id++) {
    guint8 byte = (guint8)id;
    good = good && oct_vocab_set(t->vocab, id, &byte, 1, OCT_TOKEN_NORMAL, 0, &error);
  }
  for (guint i = 0; i < G_N_ELEMENTS(controls); i++, id++)
    good = good &&
           oct_vocab_set(t->vocab, id, controls[i], strlen(controls[i]), OCT_TOKEN_CONTROL, 0,
                         &error) &&
           oct_tokenizer_add_added(t, id, (oct_added){0}, &error);
  oct_tokenizer_set_role(t, OCT_ROLE_EOS, id - 1);
  oct_tokenizer_set_role(t, OCT_ROLE_PAD, 256);
  for (; id < OCT_BYTES_VOCAB; id++) {
    const char *word = words[id % G_N_ELEMENTS(words)];
    good = good && oct_vocab_set(t->vocab, id, word, strlen(word), OCT_TOKEN_NORMAL, 0, &error);
  }
  oct_assert(good); /* nothing of it comes from outside */
  t->chat_template = g_strdup(chatml);
  return t;
}
