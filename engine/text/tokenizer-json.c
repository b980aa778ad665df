/* Hugging Face's tokenizer.json: normalizer, pre_tokenizer, model, added_tokens, post_processor and
 * decoder. What is not understood is refused by its name: a tokenizer that is almost right gives
 * wrong tokens silently.
 */
#include "engine/text/tokenizer-internal.h"

#include <jansson.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/error.h"
#include "engine/text/unigram.h"

#define NESTING_MAX 64u /* of Sequences, all together */

typedef struct oct_json_reader {
  oct_tokenizer *t;
  const json_t *model;
  gboolean byte_level; /* tokens are written in GPT-2's alphabet */
  gboolean marked;     /* spaces are written as U+2581 */
  gboolean by_regex;   /* a step cuts the text: a leading space must come before it */
} oct_json_reader;

static gboolean
unsupported(GError **error, const char *what, const char *value) {
  g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_UNSUPPORTED,
              "tokenizer.json: %s '%s' is not supported", what, value);
  return FALSE;
}

static gboolean
malformed(GError **error, const char *what) {
  g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT, "tokenizer.json: %s", what);
  return FALSE;
}

static const char *
type_of(const json_t *object) {
  const char *type = json_string_value(json_object_get(object, "type"));
  return type == NULL ? "" : type;
}

static gboolean
is_true(const json_t *object, const char *key, gboolean standard) {
  const json_t *value = json_object_get(object, key);
  return value == NULL ? standard : json_is_true(value);
}

/* Calls `each` on every part of a Sequence, or on the object itself; null has none. */
typedef gboolean (*oct_json_each)(oct_json_reader *r, const json_t *part, GError **error);
static gboolean
for_each(oct_json_reader *r, const json_t *object, const char *list, oct_json_each each,
         GError **error) {
  if (object == NULL || json_is_null(object))
    return TRUE;
  g_autoptr(GPtrArray) open = g_ptr_array_new();
  g_ptr_array_add(open, (gpointer)object);
  for (guint seen = 0; open->len > 0; seen++) {
    if (seen > NESTING_MAX)
      return malformed(error, "too many parts in a Sequence");
    const json_t *part = g_ptr_array_steal_index(open, open->len - 1);
    if (!g_str_equal(type_of(part), "Sequence")) {
      if (!each(r, part, error))
        return FALSE;
      continue;
    }
    const json_t *parts = json_object_get(part, list);
    if (json_array_size(parts) > NESTING_MAX)
      return malformed(error, "too many parts in a Sequence");
    for (gsize i = json_array_size(parts); i > 0; i--)
      g_ptr_array_add(open, json_array_get(parts, i - 1));
  }
  return TRUE;
}

/* --- normalizer ------------------------------------------------------------------------------ */

static gboolean
read_normalizer(oct_json_reader *r, const json_t *part, GError **error) {
  static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
  const char *type = type_of(part);
  for (guint i = 0; i < G_N_ELEMENTS(forms); i++)
    if (g_str_equal(type, forms[i])) {
      oct_normalizer_add(r->t->normalizer, (oct_normal_kind)(OCT_NORMAL_NFC + i), NULL, NULL);
      return TRUE;
    }
  if (g_str_equal(type, "Prepend")) {
    const char *prepend = json_string_value(json_object_get(part, "prepend"));
    if (prepend == NULL)
      return malformed(error, "normalizer Prepend lacks its text");
    g_autoptr(GByteArray) text = g_byte_array_new();
    oct_unmark_spaces(prepend, strlen(prepend) + 1, text);
    oct_normalizer_add(r->t->normalizer, OCT_NORMAL_PREPEND, NULL, (const char *)text->data);
    return TRUE;
  }
  if (g_str_equal(type, "Replace")) {
    const char *from =
        json_string_value(json_object_get(json_object_get(part, "pattern"), "String"));
    const char *to = json_string_value(json_object_get(part, "content"));
    if (from == NULL || *from == 0 || to == NULL)
      return unsupported(error, "normalizer", "Replace with a regular expression");
    /* Tokens are kept with their spaces, so the mark is undone instead of made. */
    if (g_str_equal(from, " ") && g_str_equal(to, "\xe2\x96\x81")) {
      r->marked = TRUE;
      oct_normalizer_add(r->t->normalizer, OCT_NORMAL_REPLACE, to, from);
    } else
      oct_normalizer_add(r->t->normalizer, OCT_NORMAL_REPLACE, from, to);
    return TRUE;
  }
  return unsupported(error, "normalizer", type);
}

/* --- pre_tokenizer --------------------------------------------------------------------------- */

static gboolean
add_step(oct_json_reader *r, const char *pattern, gboolean literal, oct_split_mode mode,
         gboolean invert, GError **error) {
  r->by_regex = TRUE;
  return oct_splitter_add(r->t->splitter, pattern, strlen(pattern), literal, mode, invert, error);
}

static gboolean
read_mode(const json_t *part, oct_split_mode *mode, GError **error) {
  static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"};
  const char *name = json_string_value(json_object_get(part, "behavior"));
  for (guint i = 0; name != NULL && i < G_N_ELEMENTS(names); i++)
    if (g_str_equal(name, names[i])) {
      *mode = (oct_split_mode)i;
      return TRUE;
    }
  return unsupported(error, "behavior", name == NULL ? "" : name);
}

static gboolean
read_split(oct_json_reader *r, const json_t *part, GError **error) {
  const json_t *pattern = json_object_get(part, "pattern");
  const char *regex = json_string_value(json_object_get(pattern, "Regex"));
  const char *literal = json_string_value(json_object_get(pattern, "String"));
  oct_split_mode mode;
  if (regex == NULL && literal == NULL)
    return malformed(error, "pre_tokenizer Split lacks its pattern");
  return read_mode(part, &mode, error) &&
         add_step(r, regex != NULL ? regex : literal, regex == NULL, mode,
                  is_true(part, "invert", FALSE), error);
}

static gboolean
read_byte_level(oct_json_reader *r, const json_t *part, GError **error) {
  r->byte_level = TRUE;
  if (is_true(part, "add_prefix_space", TRUE)) {
    if (r->by_regex)
      return unsupported(error, "add_prefix_space", "after another pre_tokenizer");
    oct_normalizer_add(r->t->normalizer, OCT_NORMAL_SPACE, NULL, NULL);
  }
  return !is_true(part, "use_regex", TRUE) || oct_splitter_add_named(r->t->splitter, "gpt2", error);
}

static gboolean
read_metaspace(oct_json_reader *r, const json_t *part, GError **error) {
  const char *mark = json_string_value(json_object_get(part, "replacement"));
  const char *scheme = json_string_value(json_object_get(part, "prepend_scheme"));
  if (scheme == NULL)
    scheme = is_true(part, "add_prefix_space", TRUE) ? "always" : "never";
  if (mark == NULL || !g_str_equal(mark, "\xe2\x96\x81"))
    return unsupported(error, "Metaspace with replacement", mark == NULL ? "" : mark);
  if (r->by_regex)
    return unsupported(error, "Metaspace", "after another pre_tokenizer");
  r->marked = TRUE;
  oct_normalizer_add(r->t->normalizer, OCT_NORMAL_REPLACE, mark, " ");
  if (g_str_equal(scheme, "always"))
    oct_normalizer_add(r->t->normalizer, OCT_NORMAL_SPACE, NULL, NULL);
  else if (g_str_equal(scheme, "first"))
    oct_normalizer_add(r->t->normalizer, OCT_NORMAL_FIRST_SPACE, NULL, NULL);
  else if (!g_str_equal(scheme, "never"))
    return unsupported(error, "prepend_scheme", scheme);
  return !is_true(part, "split", TRUE) ||
         add_step(r, " ", TRUE, OCT_SPLIT_MERGED_NEXT, FALSE, error);
}

static gboolean
read_pre_tokenizer(oct_json_reader *r, const json_t *part, GError **error) {
  const char *type = type_of(part);
  oct_split_mode mode;
  if (g_str_equal(type, "ByteLevel"))
    return read_byte_level(r, part, error);
  if (g_str_equal(type, "Split"))
    return read_split(r, part, error);
  if (g_str_equal(type, "Metaspace"))
    return read_metaspace(r, part, error);
  if (g_str_equal(type, "Digits"))
    return add_step(r, is_true(part, "individual_digits", FALSE) ? "\\p{N}" : "\\p{N}+", FALSE,
                    OCT_SPLIT_ISOLATED, FALSE, error);
  if (g_str_equal(type, "WhitespaceSplit"))
    return add_step(r, "\\s", FALSE, OCT_SPLIT_REMOVED, FALSE, error);
  if (g_str_equal(type, "Whitespace"))
    return add_step(r, "\\w+|[^\\w\\s]+", FALSE, OCT_SPLIT_REMOVED, TRUE, error);
  if (g_str_equal(type, "Punctuation"))
    return read_mode(part, &mode, error) &&
           add_step(r, "[!-/:-@\\[-`{-~\\p{P}]", FALSE, mode, FALSE, error);
  return unsupported(error, "pre_tokenizer", type);
}

/* --- model ----------------------------------------------------------------------------------- */

/* The bytes of a token's text. */
static void
undisguise(const oct_json_reader *r, const char *text, gsize size, GByteArray *bytes) {
  g_byte_array_set_size(bytes, 0);
  if (r->byte_level)
    oct_byte_level_decode(text, size, bytes);
  else if (r->marked)
    oct_unmark_spaces(text, size, bytes);
  else
    g_byte_array_append(bytes, (const guint8 *)text, (guint)size);
}

static gboolean
set_token(oct_json_reader *r, guint32 id, const char *text, gsize size, float score,
          GByteArray *bytes, GError **error) {
  int byte = r->t->rules.byte_fallback ? oct_byte_token(text, size) : -1;
  undisguise(r, text, size, bytes);
  if (byte >= 0) {
    guint8 one = (guint8)byte;
    g_byte_array_set_size(bytes, 0);
    g_byte_array_append(bytes, &one, 1);
  }
  return oct_vocab_set(r->t->vocab, id, bytes->data, bytes->len,
                       byte >= 0 ? OCT_TOKEN_BYTE : OCT_TOKEN_NORMAL, score, error);
}

static gboolean
token_id(const json_t *value, guint32 *id) {
  json_int_t n = json_is_integer(value) ? json_integer_value(value) : -1;
  *id = n < 0 || n >= OCT_VOCAB_TOKENS_MAX ? OCT_NO_TOKEN : (guint32)n;
  return *id != OCT_NO_TOKEN;
}

static gboolean
read_vocab(oct_json_reader *r, GError **error) {
  json_t *vocab = json_object_get(r->model, "vocab"), *value;
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  const char *text;
  gsize size;
  json_object_keylen_foreach(vocab, text, size, value) {
    guint32 id;
    if (!token_id(value, &id))
      return malformed(error, "a token's id is not a number within the limit");
    if (!set_token(r, id, text, size, 0, bytes, error))
      return FALSE;
  }
  return TRUE;
}

/* Ids by the text in the file: merges are written in it. */
static gboolean
find_text(const json_t *vocab, const char *text, gsize size, guint32 *id) {
  return token_id(json_object_getn(vocab, text, size), id);
}

static gboolean
read_merge(oct_json_reader *r, const json_t *vocab, const json_t *merge, guint32 rank,
           GString *pair, GError **error) {
  gsize left_size, size;
  g_string_truncate(pair, 0);
  if (json_is_string(merge)) {
    const char *text = json_string_value(merge),
               *space = strchr(text[0] == 0 ? text : text + 1, ' ');
    if (space == NULL)
      return malformed(error, "a merge is not two texts");
    left_size = (gsize)(space - text);
    g_string_append_len(pair, text, (gssize)left_size);
    g_string_append(pair, space + 1);
  } else {
    const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b))
      return malformed(error, "a merge is not two texts");
    left_size = json_string_length(a);
    g_string_append_len(pair, json_string_value(a), (gssize)left_size);
    g_string_append_len(pair, json_string_value(b), (gssize)json_string_length(b));
  }
  size = pair->len;
  guint32 left, right, result;
  if (!find_text(vocab, pair->str, left_size, &left) ||
      !find_text(vocab, pair->str + left_size, size - left_size, &right) ||
      !find_text(vocab, pair->str, size, &result))
    return malformed(error, "a merge names a token that the vocabulary lacks");
  oct_vocab_add_merge(r->t->vocab, left, right, (oct_merge){rank, result});
  return TRUE;
}

static gboolean
read_bpe(oct_json_reader *r, GError **error) {
  static const char *const refused[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  for (guint i = 0; i < G_N_ELEMENTS(refused); i++) {
    const char *text = json_string_value(json_object_get(r->model, refused[i]));
    if (text != NULL && *text != 0)
      return unsupported(error, refused[i], text);
  }
  if (json_is_number(json_object_get(r->model, "dropout")))
    return unsupported(error, "model BPE with", "dropout");
  const json_t *vocab = json_object_get(r->model, "vocab");
  const json_t *merges = json_object_get(r->model, "merges");
  oct_bpe_rules *rules = &r->t->rules;
  rules->order = OCT_BPE_BY_MERGES;
  rules->chars = !r->byte_level;
  rules->byte_fallback = is_true(r->model, "byte_fallback", FALSE);
  rules->whole_first = is_true(r->model, "ignore_merges", FALSE);
  rules->fuse_unknown = is_true(r->model, "fuse_unk", FALSE);
  const char *unknown = json_string_value(json_object_get(r->model, "unk_token"));
  if (unknown != NULL)
    find_text(vocab, unknown, strlen(unknown), &rules->unknown);
  if (!json_is_object(vocab) || !json_is_array(merges))
    return malformed(error, "model BPE lacks vocab or merges");
  if (!read_vocab(r, error))
    return FALSE;
  g_autoptr(GString) pair = g_string_new(NULL);
  for (gsize i = 0; i < json_array_size(merges); i++)
    if (i > G_MAXUINT32 ||
        !read_merge(r, vocab, json_array_get(merges, i), (guint32)i, pair, error))
      return FALSE;
  return TRUE;
}

static gboolean
read_unigram(oct_json_reader *r, GError **error) {
  const json_t *vocab = json_object_get(r->model, "vocab");
  oct_tokenizer *t = r->t;
  t->unigram = TRUE;
  t->rules.chars = TRUE;
  t->rules.byte_fallback = is_true(r->model, "byte_fallback", FALSE);
  t->rules.fuse_unknown = TRUE;
  double lowest = 0;
  guint32 unknown = OCT_NO_TOKEN;
  if (!json_is_array(vocab))
    return malformed(error, "the vocabulary of a Unigram model is no list");
  const json_t *unk_id = json_object_get(r->model, "unk_id");
  if (json_is_integer(unk_id)) {
    token_id(unk_id, &unknown);
    if (unknown >= json_array_size(vocab)) {
      g_autofree char *what =
          g_strdup_printf("unk_id %" JSON_INTEGER_FORMAT " is not in the vocabulary of %zu tokens",
                          json_integer_value(unk_id), json_array_size(vocab));
      return malformed(error, what);
    }
  }
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  for (gsize i = 0; i < json_array_size(vocab); i++) {
    const json_t *entry = json_array_get(vocab, i), *text = json_array_get(entry, 0);
    double score = json_number_value(json_array_get(entry, 1));
    if (!json_is_string(text) || !json_is_number(json_array_get(entry, 1)))
      return malformed(error, "an entry of a Unigram vocabulary is not a text and a score");
    if (!set_token(r, (guint32)i, json_string_value(text), json_string_length(text), (float)score,
                   bytes, error))
      return FALSE;
    lowest = MIN(lowest, score);
  }
  if (unknown != OCT_NO_TOKEN) {
    oct_vocab_set_kind(t->vocab, unknown, OCT_TOKEN_UNKNOWN);
    t->rules.unknown = unknown;
  }
  if (oct_vocab_longest(t->vocab) > OCT_UNIGRAM_TOKEN_BYTES_MAX)
    return malformed(error, "a token of a Unigram vocabulary is too long");
  t->score_unknown = lowest - 10;
  return TRUE;
}

/* --- the rest -------------------------------------------------------------------------------- */

/* Ids needed: one more than the largest, FALSE when one is beyond the limit. */
static gboolean
count_ids(const json_t *model, const json_t *added, guint32 *n, GError **error) {
  json_t *vocab = json_object_get(model, "vocab"), *value;
  const char *key;
  guint32 id;
  *n = (guint32)MIN(json_array_size(vocab), (gsize)OCT_VOCAB_TOKENS_MAX);
  json_object_foreach(vocab, key, value) {
    if (!token_id(value, &id))
      return malformed(error, "a token's id is not a number within the limit");
    *n = MAX(*n, id + 1);
  }
  for (gsize i = 0; i < json_array_size(added); i++) {
    if (!token_id(json_object_get(json_array_get(added, i), "id"), &id))
      return malformed(error, "an added token's id is not a number within the limit");
    *n = MAX(*n, id + 1);
  }
  return TRUE;
}

static gboolean
read_added(oct_json_reader *r, const json_t *added, GError **error) {
  for (gsize i = 0; i < json_array_size(added); i++) {
    const json_t *entry = json_array_get(added, i), *content = json_object_get(entry, "content");
    guint32 id;
    if (!json_is_string(content) || !token_id(json_object_get(entry, "id"), &id))
      return malformed(error, "an added token lacks id or content");
    oct_token_kind kind = is_true(entry, "special", FALSE) ? OCT_TOKEN_CONTROL : OCT_TOKEN_ADDED;
    if (oct_vocab_kind(r->t->vocab, id) == OCT_TOKEN_NONE) {
      if (!oct_vocab_set(r->t->vocab, id, json_string_value(content), json_string_length(content),
                         kind, 0, error))
        return FALSE;
    } else if (oct_vocab_kind(r->t->vocab, id) != OCT_TOKEN_UNKNOWN || kind == OCT_TOKEN_CONTROL)
      oct_vocab_set_kind(r->t->vocab, id, kind);
    oct_added rules = {.lstrip = is_true(entry, "lstrip", FALSE),
                       .rstrip = is_true(entry, "rstrip", FALSE),
                       .single_word = is_true(entry, "single_word", FALSE)};
    if (!oct_tokenizer_add_added(r->t, id, rules, error))
      return FALSE;
  }
  return TRUE;
}

static gboolean
read_post_processor(oct_json_reader *r, const json_t *part, GError **error) {
  if (g_str_equal(type_of(part), "ByteLevel"))
    return TRUE;
  if (!g_str_equal(type_of(part), "TemplateProcessing"))
    return unsupported(error, "post_processor", type_of(part));
  const json_t *single = json_object_get(part, "single");
  const json_t *special = json_object_get(part, "special_tokens");
  GArray *list = r->t->before;
  for (gsize i = 0; i < json_array_size(single); i++) {
    const json_t *item = json_array_get(single, i);
    if (json_object_get(item, "Sequence") != NULL) {
      list = r->t->after;
      continue;
    }
    const char *name =
        json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
    const json_t *ids =
        name == NULL ? NULL : json_object_get(json_object_get(special, name), "ids");
    for (gsize k = 0; k < json_array_size(ids); k++) {
      guint32 id;
      if (!token_id(json_array_get(ids, k), &id) || id >= oct_vocab_n_tokens(r->t->vocab))
        return malformed(error, "post_processor names an id that no token has");
      g_array_append_val(list, id);
    }
    if (json_array_size(ids) == 0)
      return malformed(error, "post_processor names a token that it does not describe");
  }
  return TRUE;
}

static gboolean
read_decoder(oct_json_reader *r, const json_t *part, GError **error) {
  const char *type = type_of(part);
  if (g_str_equal(type, "ByteLevel") || g_str_equal(type, "ByteFallback") ||
      g_str_equal(type, "Fuse"))
    return TRUE;
  if (g_str_equal(type, "Replace")) {
    const char *from =
        json_string_value(json_object_get(json_object_get(part, "pattern"), "String"));
    const char *to = json_string_value(json_object_get(part, "content"));
    if (from != NULL && to != NULL && g_str_equal(from, "\xe2\x96\x81") && g_str_equal(to, " "))
      return TRUE;
    return unsupported(error, "decoder", "Replace of other than U+2581");
  }
  if (g_str_equal(type, "Strip")) {
    const char *content = json_string_value(json_object_get(part, "content"));
    if (content == NULL || !g_str_equal(content, " ") ||
        json_integer_value(json_object_get(part, "start")) != 1 ||
        json_integer_value(json_object_get(part, "stop")) != 0)
      return unsupported(error, "decoder", "Strip of other than one leading space");
    r->t->strips_space = TRUE;
    return TRUE;
  }
  if (g_str_equal(type, "Metaspace")) {
    const char *scheme = json_string_value(json_object_get(part, "prepend_scheme"));
    r->t->strips_space =
        scheme != NULL ? !g_str_equal(scheme, "never") : is_true(part, "add_prefix_space", TRUE);
    return TRUE;
  }
  return unsupported(error, "decoder", type);
}

static gboolean
read_all(oct_json_reader *r, const json_t *root, GError **error) {
  const char *type = type_of(r->model);
  const json_t *decoder = json_object_get(root, "decoder");
  /* Files of the first version name no type for BPE. */
  gboolean bpe =
      g_str_equal(type, "BPE") || (*type == 0 && json_object_get(r->model, "merges") != NULL);
  if (!bpe && !g_str_equal(type, "Unigram"))
    return unsupported(error, "model", type);
  if (!for_each(r, json_object_get(root, "normalizer"), "normalizers", read_normalizer, error) ||
      !for_each(r, json_object_get(root, "pre_tokenizer"), "pretokenizers", read_pre_tokenizer,
                error))
    return FALSE;
  r->byte_level = r->byte_level || g_str_equal(type_of(decoder), "ByteLevel");
  return (bpe ? read_bpe(r, error) : read_unigram(r, error)) &&
         read_added(r, json_object_get(root, "added_tokens"), error) &&
         for_each(r, json_object_get(root, "post_processor"), "processors", read_post_processor,
                  error) &&
         for_each(r, decoder, "decoders", read_decoder, error);
}

oct_tokenizer *
oct_tokenizer_from_json(const char *json, gsize size, GError **error) {
  json_error_t problem;
  json_t *root = size > OCT_TOKENIZER_FILE_MAX
                     ? NULL
                     : json_loadb(json, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &problem);
  if (root == NULL) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT,
                "tokenizer.json of %" G_GSIZE_FORMAT " bytes: %s", size,
                size > OCT_TOKENIZER_FILE_MAX ? "too large" : problem.text);
    return NULL;
  }
  oct_json_reader r = {.model = json_object_get(root, "model")};
  guint32 n = 0;
  if (count_ids(r.model, json_object_get(root, "added_tokens"), &n, error)) {
    r.t = oct_tokenizer_new(n);
    if (!read_all(&r, root, error))
      g_clear_pointer(&r.t, oct_tokenizer_free);
  }
  json_decref(root);
  return r.t;
}
