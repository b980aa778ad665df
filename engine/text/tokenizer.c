/* Encoding, in order: added tokens cut the text into sections; a section's invalid bytes are set
 * apart; what is left is normalised, cut into pieces, and each piece is merged.
 */
#include "engine/text/tokenizer-internal.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/error.h"
#include "engine/text/unigram.h"

static void
free_added(gpointer added) {
  g_free(added);
}

oct_tokenizer *
oct_tokenizer_new(guint32 n_tokens) {
  oct_tokenizer *t = g_new0(oct_tokenizer, 1);
  t->vocab = oct_vocab_new(n_tokens);
  t->rules.unknown = OCT_NO_TOKEN;
  t->normalizer = oct_normalizer_new();
  t->splitter = oct_splitter_new();
  t->added = oct_trie_new();
  t->added_rules = g_hash_table_new_full(g_direct_hash, g_direct_equal, NULL, free_added);
  t->before = g_array_new(FALSE, FALSE, sizeof(guint32));
  t->after = g_array_new(FALSE, FALSE, sizeof(guint32));
  t->ends = g_array_new(FALSE, FALSE, sizeof(guint32));
  for (guint i = 0; i < OCT_ROLE_COUNT; i++)
    t->roles[i] = OCT_NO_TOKEN;
  t->templates = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
  return t;
}

void
oct_tokenizer_free(oct_tokenizer *t) {
  if (t == NULL)
    return;
  oct_vocab_free(t->vocab);
  oct_normalizer_free(t->normalizer);
  oct_splitter_free(t->splitter);
  oct_trie_free(t->added);
  g_hash_table_unref(t->added_rules);
  g_array_unref(t->before);
  g_array_unref(t->after);
  g_array_unref(t->ends);
  g_free(t->chat_template);
  g_hash_table_unref(t->templates);
  g_free(t);
}

/* --- what readers share ---------------------------------------------------------------------- */

gboolean
oct_tokenizer_add_added(oct_tokenizer *t, guint32 id, oct_added rules, GError **error) {
  oct_text text = oct_vocab_bytes(t->vocab, id);
  if (text.size == 0 || text.size > OCT_TOKENIZER_ADDED_BYTES_MAX) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                "added token %u has %" G_GSIZE_FORMAT " bytes: 1 to %u are possible", id, text.size,
                OCT_TOKENIZER_ADDED_BYTES_MAX);
    return FALSE;
  }
  rules.ordinary = oct_vocab_kind(t->vocab, id) != OCT_TOKEN_CONTROL;
  for (gsize i = 0; i < text.size && rules.ordinary; i++)
    rules.ordinary = g_ascii_isspace(text.bytes[i]);
  if (oct_trie_add(t->added, text.bytes, text.size, id) != id)
    return TRUE; /* the text has an id already */
  t->any_ordinary = t->any_ordinary || rules.ordinary;
  if (rules.lstrip || rules.rstrip || rules.single_word || rules.ordinary)
    g_hash_table_insert(t->added_rules, GUINT_TO_POINTER(id), g_memdup2(&rules, sizeof rules));
  return TRUE;
}

void
oct_tokenizer_set_role(oct_tokenizer *t, oct_token_role role, guint32 id) {
  t->roles[role] = id;
  if (role == OCT_ROLE_EOS || role == OCT_ROLE_EOT)
    oct_tokenizer_add_end(t, id);
}

void
oct_tokenizer_add_end(oct_tokenizer *t, guint32 id) {
  guint at = 0;
  while (at < t->ends->len && g_array_index(t->ends, guint32, at) < id)
    at++;
  if (at == t->ends->len || g_array_index(t->ends, guint32, at) != id)
    g_array_insert_val(t->ends, at, id);
}

/* GPT-2 shows the 188 bytes that print as themselves, and the others, in order, from U+0100. */
int
oct_byte_level(gunichar c) {
  if ((c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
    return (int)c;
  if (c >= 0x100 && c < 0x121)
    return (int)(c - 0x100);
  if (c >= 0x121 && c < 0x143)
    return (int)(c - 0x121 + 0x7f);
  return c == 0x143 ? 0xad : -1;
}

void
oct_byte_level_decode(const char *text, gsize size, GByteArray *out) {
  guint begin = out->len;
  for (gsize at = 0; at < size;) {
    gsize step = oct_utf8_size(text + at, size - at);
    gunichar c = g_utf8_get_char_validated(text + at, (gssize)step);
    int byte = (c & 0x80000000u) != 0 ? -1 : oct_byte_level(c);
    if (byte < 0) {
      g_byte_array_set_size(out, begin);
      g_byte_array_append(out, (const guint8 *)text, (guint)size);
      return;
    }
    guint8 one = (guint8)byte;
    g_byte_array_append(out, &one, 1);
    at += step;
  }
}

int
oct_byte_token(const char *text, gsize size) {
  if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
    return -1;
  int high = g_ascii_xdigit_value(text[3]), low = g_ascii_xdigit_value(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

void
oct_unmark_spaces(const char *text, gsize size, GByteArray *out) {
  static const guint8 space = ' ';
  for (gsize at = 0; at < size;) {
    if (size - at >= 3 && memcmp(text + at, "\xe2\x96\x81", 3) == 0) {
      g_byte_array_append(out, &space, 1);
      at += 3;
    } else
      g_byte_array_append(out, (const guint8 *)text + at++, 1);
  }
}

/* --- encoding -------------------------------------------------------------------------------- */

typedef struct oct_encoding {
  const oct_tokenizer *t;
  const char *text;
  const guint8 *marks; /* NULL: all `mark` */
  guint8 mark;
  gsize size;
  GArray *ids;
  oct_bpe_scratch *bpe;
  oct_split_scratch *split;
  GString *normal;
  GArray *spans;
} oct_encoding;

static gboolean
encode_piece(oct_encoding *e, const char *piece, gsize size, GError **error) {
  const oct_tokenizer *t = e->t;
  if (t->unigram)
    return oct_unigram_encode(t->vocab, &t->rules, t->score_unknown, piece, size, e->ids, error);
  return oct_bpe_encode(t->vocab, &t->rules, e->bpe, piece, size, e->ids, error);
}

/* Valid UTF-8. */
static gboolean
encode_valid(oct_encoding *e, const char *text, gsize size, oct_normal_place place,
             GError **error) {
  g_string_truncate(e->normal, 0);
  g_string_append_len(e->normal, text, (gssize)size);
  oct_normalizer_run(e->t->normalizer, place, e->normal);
  if (e->normal->len >= G_MAXINT32) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                "a text has %" G_GSIZE_FORMAT " bytes after normalisation", e->normal->len);
    return FALSE;
  }
  g_array_set_size(e->spans, 0);
  if (!oct_splitter_run(e->t->splitter, e->split, e->normal->str, e->normal->len, e->spans, error))
    return FALSE;
  for (guint i = 0; i < e->spans->len; i++) {
    oct_span span = g_array_index(e->spans, oct_span, i);
    if (!encode_piece(e, e->normal->str + span.start, span.end - span.start, error))
      return FALSE;
  }
  return TRUE;
}

/* Text between added tokens and cuts: valid runs, and stray bytes each run as a piece. */
static gboolean
encode_section(oct_encoding *e, gsize start, gsize end, GError **error) {
  oct_normal_place place = start == 0 ? OCT_PLACE_TEXT : OCT_PLACE_SECTION;
  while (start < end) {
    const char *stop;
    g_utf8_validate_len(e->text + start, end - start, &stop);
    gsize valid = (gsize)(stop - e->text);
    /* GLib takes U+0000 for the end; it is a character like another. */
    while (valid < end && e->text[valid] == 0) {
      g_utf8_validate_len(e->text + valid + 1, end - valid - 1, &stop);
      valid = (gsize)(stop - e->text);
    }
    if (valid > start && !encode_valid(e, e->text + start, valid - start, place, error))
      return FALSE;
    gsize stray = valid;
    while (stray < end && oct_utf8_size(e->text + stray, end - stray) == 1 &&
           (guint8)e->text[stray] >= 0x80)
      stray++;
    if (stray > valid && !encode_piece(e, e->text + valid, stray - valid, error))
      return FALSE;
    start = stray;
    place = OCT_PLACE_INSIDE;
  }
  return TRUE;
}

/* Kimi's own code cuts a text into slices of so many characters, and a slice where a run of one
 * class (white space, anything else) grows beyond its limit. */
static gboolean
encode_sliced(oct_encoding *e, gsize start, gsize end, GError **error) {
  const oct_tokenizer *t = e->t;
  if (t->slice_chars_max == 0)
    return encode_section(e, start, end, error);
  guint32 chars = 0, run = 0;
  gboolean run_is_space = FALSE;
  gsize begin = start;
  for (gsize at = start; at < end;) {
    gsize step = oct_utf8_size(e->text + at, end - at);
    gunichar c = g_utf8_get_char_validated(e->text + at, (gssize)step);
    gboolean is_space = (c & 0x80000000u) == 0 && (g_unichar_isspace(c) || c == 0x0b || c == 0x85 ||
                                                   (c >= 0x1c && c <= 0x1f));
    run = is_space == run_is_space || chars == 0 ? run + 1 : 1;
    run_is_space = is_space;
    if (chars == t->slice_chars_max || run > t->run_chars_max) {
      if (!encode_section(e, begin, at, error))
        return FALSE;
      begin = at;
      chars = chars == t->slice_chars_max ? 0 : chars;
      run = 1;
    }
    chars++;
    at += step;
  }
  return encode_section(e, begin, end, error);
}

static guint8
mark_at(const oct_encoding *e, gsize at) {
  return e->marks == NULL ? e->mark : e->marks[at];
}

static gboolean
is_word(const oct_encoding *e, gsize at, gboolean before) {
  if (before ? at == 0 : at >= e->size)
    return FALSE;
  const char *p = e->text + at;
  if (before) {
    do
      p--;
    while (p > e->text && ((guint8)*p & 0xc0) == 0x80);
  }
  gunichar c = g_utf8_get_char_validated(p, (gssize)(e->size - (gsize)(p - e->text)));
  return (c & 0x80000000u) == 0 && (g_unichar_isalnum(c) || c == '_');
}

/* The longest added token at `at`; its id and where it ends, else OCT_NO_TOKEN. */
static guint32
match_added(const oct_encoding *e, gsize at, gsize *end, const oct_added **rules) {
  const oct_trie *trie = e->t->added;
  guint32 node = OCT_TRIE_ROOT, best = OCT_NO_TOKEN;
  gboolean outside = FALSE;
  for (gsize i = at; i < e->size; i++) {
    guint8 mark = mark_at(e, i);
    outside = outside || (mark & OCT_MARK_OUTSIDE) != 0;
    if ((outside && !e->t->any_ordinary) || (i > at && (mark & OCT_MARK_CUT) != 0))
      break;
    node = oct_trie_step(trie, node, (guint8)e->text[i]);
    if (node == OCT_TRIE_NONE)
      break;
    guint32 id = oct_trie_nodes(trie)[node].value;
    if (id == OCT_TRIE_NONE)
      continue;
    const oct_added *found = g_hash_table_lookup(e->t->added_rules, GUINT_TO_POINTER(id));
    if (outside && (found == NULL || !found->ordinary))
      continue;
    if (found != NULL && found->single_word && (is_word(e, at, TRUE) || is_word(e, i + 1, FALSE)))
      continue;
    best = id;
    *end = i + 1;
    *rules = found;
  }
  return best;
}

/* Encodes [start, end), which holds no added token, cut at marks. */
static gboolean
encode_cuts(oct_encoding *e, gsize start, gsize end, GError **error) {
  gsize begin = start;
  for (gsize at = start + 1; e->marks != NULL && at < end; at++)
    if ((e->marks[at] & OCT_MARK_CUT) != 0) {
      if (!encode_sliced(e, begin, at, error))
        return FALSE;
      begin = at;
    }
  return begin >= end || encode_sliced(e, begin, end, error);
}

static gboolean
encode_all(oct_encoding *e, GError **error) {
  gsize begin = 0;
  gboolean all_outside = e->marks == NULL && (e->mark & OCT_MARK_OUTSIDE) != 0;
  for (gsize at = 0; at < e->size && !(all_outside && !e->t->any_ordinary);) {
    gsize end = 0;
    const oct_added *rules = NULL;
    guint32 id = match_added(e, at, &end, &rules);
    if (id == OCT_NO_TOKEN) {
      at++;
      continue;
    }
    gsize stop = at;
    while (rules != NULL && rules->lstrip && stop > begin && g_ascii_isspace(e->text[stop - 1]))
      stop--;
    if (!encode_cuts(e, begin, stop, error))
      return FALSE;
    g_array_append_val(e->ids, id);
    while (rules != NULL && rules->rstrip && end < e->size && g_ascii_isspace(e->text[end]))
      end++;
    begin = at = end;
  }
  return encode_cuts(e, begin, e->size, error);
}

static gboolean
encode(oct_encoding *e, GError **error) {
  if (e->size > OCT_TEXT_BYTES_MAX) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                "a text of %" G_GSIZE_FORMAT " bytes: at most %u", e->size, OCT_TEXT_BYTES_MAX);
    return FALSE;
  }
  g_autoptr(oct_bpe_scratch) bpe = oct_bpe_scratch_new();
  g_autoptr(oct_split_scratch) split = oct_split_scratch_new();
  g_autoptr(GString) normal = g_string_new(NULL);
  g_autoptr(GArray) spans = g_array_new(FALSE, FALSE, sizeof(oct_span));
  e->bpe = bpe;
  e->split = split;
  e->normal = normal;
  e->spans = spans;
  guint n = e->ids->len;
  if (encode_all(e, error))
    return TRUE;
  g_array_set_size(e->ids, n);
  return FALSE;
}

gboolean
oct_tokenizer_encode(const oct_tokenizer *t, const char *text, gsize size, GArray *ids,
                     GError **error) {
  oct_encoding e = {.t = t, .text = text, .mark = OCT_MARK_OUTSIDE, .size = size, .ids = ids};
  return encode(&e, error);
}

gboolean
oct_tokenizer_encode_marked(const oct_tokenizer *t, const char *text, const guint8 *marks,
                            gsize size, GArray *ids, GError **error) {
  oct_encoding e = {.t = t, .text = text, .marks = marks, .size = size, .ids = ids};
  return encode(&e, error);
}

/* --- inspect --------------------------------------------------------------------------------- */

static const guint32 *
array_of(const GArray *array, guint *n) {
  *n = array->len;
  return (const guint32 *)(const void *)array->data;
}

const guint32 *
oct_tokenizer_before(const oct_tokenizer *t, guint *n) {
  return array_of(t->before, n);
}

const guint32 *
oct_tokenizer_after(const oct_tokenizer *t, guint *n) {
  return array_of(t->after, n);
}

const guint32 *
oct_tokenizer_ends(const oct_tokenizer *t, guint *n) {
  return array_of(t->ends, n);
}

oct_text
oct_tokenizer_bytes(const oct_tokenizer *t, guint32 id) {
  return oct_vocab_bytes(t->vocab, id);
}

guint32
oct_tokenizer_n_tokens(const oct_tokenizer *t) {
  return oct_vocab_n_tokens(t->vocab);
}

const oct_vocab *
oct_tokenizer_vocab(const oct_tokenizer *t) {
  return t->vocab;
}

gboolean
oct_tokenizer_is_control(const oct_tokenizer *t, guint32 id) {
  return oct_vocab_kind(t->vocab, id) == OCT_TOKEN_CONTROL;
}

guint32
oct_tokenizer_find_added(const oct_tokenizer *t, const char *text) {
  guint32 node = OCT_TRIE_ROOT;
  for (const char *p = text; *p != 0 && node != OCT_TRIE_NONE; p++)
    node = oct_trie_step(t->added, node, (guint8)*p);
  return node == OCT_TRIE_NONE ? OCT_NO_TOKEN : oct_trie_nodes(t->added)[node].value;
}

gboolean
oct_tokenizer_strips_space(const oct_tokenizer *t) {
  return t->strips_space;
}

guint32
oct_tokenizer_role(const oct_tokenizer *t, oct_token_role role) {
  oct_assert(role < OCT_ROLE_COUNT);
  return t->roles[role];
}

const char *
oct_tokenizer_chat_template(const oct_tokenizer *t) {
  return t->chat_template;
}

const char *
oct_tokenizer_named_template(const oct_tokenizer *t, const char *name) {
  return g_hash_table_lookup(t->templates, name);
}
