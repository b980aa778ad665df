/* tokenizer.ggml.* of a GGUF file. Token texts are those of the original files: byte-level texts
 * for model "gpt2", U+2581 for spaces and <0x0A> for bytes for "llama" and "t5". */
#include "engine/text/tokenizer-internal.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/error.h"
#include "engine/text/unigram.h"

#define KEY(name) "tokenizer.ggml." name

/* GGUF's token types. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

typedef struct oct_gguf_vocab {
  const oct_checkpoint *checkpoint;
  const oct_meta *tokens, *types, *scores, *merges; /* the last three may be NULL */
  guint32 n;
  gboolean byte_level;
} oct_gguf_vocab;

static gboolean
optional_array(const oct_checkpoint *checkpoint, const char *key, oct_meta_kind element,
               guint64 max, const oct_meta **array, GError **error) {
  *array = NULL;
  if (oct_checkpoint_meta(checkpoint, key) == NULL)
    return TRUE;
  *array = oct_checkpoint_array(checkpoint, key, element, max, error);
  return *array != NULL;
}

static gboolean
read_arrays(oct_gguf_vocab *v, GError **error) {
  v->tokens = oct_checkpoint_array(v->checkpoint, KEY("tokens"), OCT_META_TEXT,
                                   OCT_VOCAB_TOKENS_MAX, error);
  if (v->tokens == NULL)
    return FALSE;
  v->n = (guint32)v->tokens->array.count;
  if (!optional_array(v->checkpoint, KEY("token_type"), OCT_META_INT, OCT_VOCAB_TOKENS_MAX,
                      &v->types, error) ||
      !optional_array(v->checkpoint, KEY("scores"), OCT_META_REAL, OCT_VOCAB_TOKENS_MAX, &v->scores,
                      error) ||
      !optional_array(v->checkpoint, KEY("merges"), OCT_META_TEXT, 4u * OCT_VOCAB_TOKENS_MAX,
                      &v->merges, error))
    return FALSE;
  if ((v->types != NULL && v->types->array.count != v->n) ||
      (v->scores != NULL && v->scores->array.count != v->n)) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT,
                "%s: %u tokens, but another number of types or scores",
                oct_checkpoint_path(v->checkpoint), v->n);
    return FALSE;
  }
  return TRUE;
}

static oct_token_kind
kind_of(gint64 type) {
  switch (type) {
  case TYPE_UNKNOWN:
    return OCT_TOKEN_UNKNOWN;
  case TYPE_CONTROL:
    return OCT_TOKEN_CONTROL;
  case TYPE_USER:
    return OCT_TOKEN_ADDED;
  case TYPE_BYTE:
    return OCT_TOKEN_BYTE;
  default:
    return OCT_TOKEN_NORMAL;
  }
}

static gboolean
add_token(oct_tokenizer *t, const oct_gguf_vocab *v, guint32 id, GByteArray *bytes,
          GError **error) {
  oct_text text = oct_meta_item_text(v->tokens, id);
  oct_token_kind kind = kind_of(v->types == NULL ? TYPE_NORMAL : oct_meta_item_int(v->types, id));
  float score = v->scores == NULL ? 0 : (float)oct_meta_item_real(v->scores, id);
  int byte = v->byte_level ? -1 : oct_byte_token(text.bytes, text.size);
  g_byte_array_set_size(bytes, 0);
  if (kind == OCT_TOKEN_BYTE && byte < 0) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT,
                "token %u is of type byte, but is not written like <0x0A>", id);
    return FALSE;
  }
  if (kind == OCT_TOKEN_BYTE) {
    guint8 one = (guint8)byte;
    g_byte_array_append(bytes, &one, 1);
  } else if (kind != OCT_TOKEN_NORMAL)
    g_byte_array_append(bytes, (const guint8 *)text.bytes, (guint)text.size);
  else if (v->byte_level)
    oct_byte_level_decode(text.bytes, text.size, bytes);
  else
    oct_unmark_spaces(text.bytes, text.size, bytes);
  if (!oct_vocab_set(t->vocab, id, bytes->data, bytes->len, kind, score, error))
    return FALSE;
  gboolean searched = (kind == OCT_TOKEN_CONTROL || kind == OCT_TOKEN_ADDED) && bytes->len > 0;
  return !searched || oct_tokenizer_add_added(t, id, (oct_added){0}, error);
}

/* "left right", each as in the list of tokens. */
static gboolean
add_merges(oct_tokenizer *t, const oct_gguf_vocab *v, GError **error) {
  g_autoptr(GByteArray) pair = g_byte_array_new();
  for (guint64 i = 0; v->merges != NULL && i < v->merges->array.count; i++) {
    oct_text text = oct_meta_item_text(v->merges, i);
    const char *space = text.size < 2 ? NULL : memchr(text.bytes + 1, ' ', text.size - 1);
    if (space == NULL) {
      g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT,
                  "merge %" G_GUINT64_FORMAT " is not two texts", i);
      return FALSE;
    }
    gsize left_size = (gsize)(space - text.bytes);
    g_byte_array_set_size(pair, 0);
    oct_byte_level_decode(text.bytes, left_size, pair);
    guint middle = pair->len;
    oct_byte_level_decode(space + 1, text.size - left_size - 1, pair);
    guint32 left = oct_vocab_find(t->vocab, pair->data, middle);
    guint32 right = oct_vocab_find(t->vocab, pair->data + middle, pair->len - middle);
    guint32 result = oct_vocab_find(t->vocab, pair->data, pair->len);
    /* A merge of tokens that the vocabulary lacks can never apply. */
    if (left != OCT_NO_TOKEN && right != OCT_NO_TOKEN && result != OCT_NO_TOKEN)
      oct_vocab_add_merge(t->vocab, left, right, (oct_merge){(guint32)i, result});
  }
  return TRUE;
}

static gboolean
flag(const oct_checkpoint *checkpoint, const char *key, gboolean standard, gboolean *value,
     GError **error) {
  *value = standard;
  return oct_checkpoint_meta(checkpoint, key) == NULL ||
         oct_checkpoint_boolean(checkpoint, key, value, error);
}

static gboolean
add_roles(oct_tokenizer *t, const oct_checkpoint *checkpoint, gboolean adds_bos, GError **error) {
  static const struct {
    const char *key;
    oct_token_role role;
  } keys[] = {{KEY("bos_token_id"), OCT_ROLE_BOS},
              {KEY("eos_token_id"), OCT_ROLE_EOS},
              {KEY("eot_token_id"), OCT_ROLE_EOT},
              {KEY("padding_token_id"), OCT_ROLE_PAD},
              {KEY("unknown_token_id"), OCT_ROLE_UNKNOWN}};
  for (guint i = 0; i < G_N_ELEMENTS(keys); i++) {
    guint64 id;
    if (oct_checkpoint_meta(checkpoint, keys[i].key) == NULL)
      continue;
    if (!oct_checkpoint_uint(checkpoint, keys[i].key, 0, oct_tokenizer_n_tokens(t) - 1u, &id,
                             error))
      return FALSE;
    oct_tokenizer_set_role(t, keys[i].role, (guint32)id);
  }
  gboolean bos, eos;
  if (!flag(checkpoint, KEY("add_bos_token"), adds_bos, &bos, error) ||
      !flag(checkpoint, KEY("add_eos_token"), FALSE, &eos, error))
    return FALSE;
  if (bos && t->roles[OCT_ROLE_BOS] != OCT_NO_TOKEN)
    g_array_append_val(t->before, t->roles[OCT_ROLE_BOS]);
  if (eos && t->roles[OCT_ROLE_EOS] != OCT_NO_TOKEN)
    g_array_append_val(t->after, t->roles[OCT_ROLE_EOS]);
  /* A byte that a byte-level vocabulary lacks is dropped: its unknown token is a control token,
   * which text from outside must not give. */
  if (t->rules.order == OCT_BPE_BY_SCORE)
    t->rules.unknown = t->roles[OCT_ROLE_UNKNOWN];
  oct_text chat;
  if (oct_checkpoint_meta(checkpoint, "tokenizer.chat_template") != NULL) {
    if (!oct_checkpoint_text(checkpoint, "tokenizer.chat_template", &chat, error))
      return FALSE;
    t->chat_template = g_strndup(chat.bytes, chat.size);
  }
  return TRUE;
}

static gboolean
set_up_gpt2(oct_tokenizer *t, const oct_gguf_vocab *v, GError **error) {
  oct_text pre = {.bytes = "default", .size = 7};
  if (oct_checkpoint_meta(v->checkpoint, KEY("pre")) != NULL &&
      !oct_checkpoint_text(v->checkpoint, KEY("pre"), &pre, error))
    return FALSE;
  g_autofree char *name = g_strndup(pre.bytes, pre.size);
  if (!oct_splitter_add_named(t->splitter, name, error) || !add_merges(t, v, error))
    return FALSE;
  t->rules.order = OCT_BPE_BY_MERGES;
  t->rules.byte_fallback = TRUE;
  /* Llama 3's tokenizer.json says ignore_merges; GGUF has no key for it. */
  t->rules.whole_first = strncmp(name, "llama", 5) == 0 || g_str_equal(name, "falcon3");
  gboolean space;
  if (!flag(v->checkpoint, KEY("add_space_prefix"), FALSE, &space, error))
    return FALSE;
  if (space)
    oct_normalizer_add(t->normalizer, OCT_NORMAL_SPACE, NULL, NULL);
  return TRUE;
}

/* SentencePiece: spaces are part of tokens, and one goes in front of the text. */
static gboolean
set_up_sentencepiece(oct_tokenizer *t, const oct_gguf_vocab *v, GError **error) {
  gboolean space, single;
  if (!flag(v->checkpoint, KEY("add_space_prefix"), TRUE, &space, error) ||
      !flag(v->checkpoint, KEY("remove_extra_whitespaces"), FALSE, &single, error))
    return FALSE;
  const oct_meta *charsmap = oct_checkpoint_meta(v->checkpoint, KEY("precompiled_charsmap"));
  if (charsmap != NULL && charsmap->kind == OCT_META_ARRAY && charsmap->array.count > 0) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_UNSUPPORTED,
                "%s: " KEY("precompiled_charsmap") " (a compiled normaliser) is not read",
                oct_checkpoint_path(v->checkpoint));
    return FALSE;
  }
  if (single)
    oct_normalizer_add(t->normalizer, OCT_NORMAL_SINGLE_SPACES, NULL, NULL);
  oct_normalizer_add(t->normalizer, OCT_NORMAL_REPLACE, "\xe2\x96\x81", " ");
  if (space)
    oct_normalizer_add(t->normalizer, OCT_NORMAL_PREPEND, NULL, " ");
  t->strips_space = space;
  t->rules.order = OCT_BPE_BY_SCORE;
  t->rules.chars = TRUE;
  t->rules.byte_fallback = TRUE;
  t->rules.fuse_unknown = TRUE;
  return TRUE;
}

static double
lowest_score(const oct_vocab *vocab) {
  double lowest = 0;
  for (guint32 id = 0; id < oct_vocab_n_tokens(vocab); id++)
    if (oct_vocab_kind(vocab, id) == OCT_TOKEN_NORMAL)
      lowest = MIN(lowest, (double)oct_vocab_score(vocab, id));
  return lowest;
}

oct_tokenizer *
oct_tokenizer_from_checkpoint(const oct_checkpoint *checkpoint, GError **error) {
  oct_text model;
  if (!oct_checkpoint_text(checkpoint, KEY("model"), &model, error))
    return NULL;
  g_autofree char *name = g_strndup(model.bytes, model.size);
  gboolean gpt2 = g_str_equal(name, "gpt2"), llama = g_str_equal(name, "llama");
  if (!gpt2 && !llama && !g_str_equal(name, "t5")) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_UNSUPPORTED,
                "%s: tokenizer model '%s' is not gpt2, llama or t5",
                oct_checkpoint_path(checkpoint), name);
    return NULL;
  }
  oct_gguf_vocab v = {.checkpoint = checkpoint, .byte_level = gpt2};
  if (!read_arrays(&v, error))
    return NULL;
  g_autoptr(oct_tokenizer) t = oct_tokenizer_new(v.n);
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  for (guint32 id = 0; id < v.n; id++)
    if (!add_token(t, &v, id, bytes, error))
      return NULL;
  t->unigram = !gpt2 && !llama;
  if (t->unigram && oct_vocab_longest(t->vocab) > OCT_UNIGRAM_TOKEN_BYTES_MAX) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                "a unigram token of %" G_GSIZE_FORMAT " bytes: at most %u",
                oct_vocab_longest(t->vocab), OCT_UNIGRAM_TOKEN_BYTES_MAX);
    return NULL;
  }
  t->score_unknown = t->unigram ? lowest_score(t->vocab) - 10 : 0;
  if (!(gpt2 ? set_up_gpt2(t, &v, error) : set_up_sentencepiece(t, &v, error)) ||
      !add_roles(t, checkpoint, llama || t->rules.whole_first, error))
    return NULL;
  return g_steal_pointer(&t);
}
