/* From the dialects in which published patterns are written to PCRE2's, and the published
 * pre-tokenizers by name. The named patterns are those of the models' own tokenizer files. */
#include "engine/text/split.h"

#include <string.h>

#include "engine/text/error.h"

/* Unicode's White_Space; PCRE2's \s has U+180E besides. */
#define WHITE                                                                                      \
  "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"          \
  "\\x{205f}\\x{3000}"

typedef struct oct_reader {
  const char *at, *end;
} oct_reader;

/* \p{Han} is the script in Oniguruma and Rust, and its extensions too in PCRE2. One- and two-letter
 * names are general categories, the same everywhere. */
static void
copy_property(oct_reader *in, GString *out) {
  const char *open = in->at + 2;
  const char *close =
      in->at + 2 < in->end && in->at[2] == '{' ? memchr(open, '}', (gsize)(in->end - open)) : NULL;
  if (close == NULL) {
    g_string_append_len(out, in->at, 2);
    in->at += 2;
    return;
  }
  const char *name = open + 1;
  gsize size = (gsize)(close - name);
  const char *equals = memchr(name, '=', size);
  g_string_append_len(out, in->at, 2);
  if (equals != NULL)
    g_string_append_printf(out, "{sc:%.*s}", (int)(close - equals - 1), equals + 1);
  else if (size > 2 && name[0] != '^')
    g_string_append_printf(out, "{sc:%.*s}", (int)size, name);
  else
    g_string_append_len(out, open, close + 1 - open);
  in->at = close + 1;
}

static gboolean
copy_escape(oct_reader *in, gboolean in_class, GString *out, GError **error) {
  if (in->end - in->at < 2) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT, "the pattern ends in a backslash");
    return FALSE;
  }
  char c = in->at[1];
  if (c == 'p' || c == 'P')
    copy_property(in, out);
  else if (c == 's') {
    g_string_append(out, in_class ? WHITE : "[" WHITE "]");
    in->at += 2;
  } else if (c == 'S' && !in_class) {
    g_string_append(out, "[^" WHITE "]");
    in->at += 2;
  } else {
    g_string_append_len(out, in->at, 2);
    in->at += 2;
  }
  return TRUE;
}

/* Copies a class that begins at in->at, up to its end or up to &&; no classes inside. */
static gboolean
copy_class(oct_reader *in, GString *out, gboolean *intersected, GError **error) {
  const char *begin = in->at;
  g_string_append_c(out, *in->at++);
  if (in->at < in->end && *in->at == '^')
    g_string_append_c(out, *in->at++);
  if (in->at < in->end && *in->at == ']')
    g_string_append_c(out, *in->at++);
  *intersected = FALSE;
  while (in->at < in->end && *in->at != ']') {
    if (*in->at == '\\') {
      if (!copy_escape(in, TRUE, out, error))
        return FALSE;
    } else if (in->end - in->at >= 2 && in->at[0] == '&' && in->at[1] == '&') {
      *intersected = TRUE;
      g_string_append_c(out, ']');
      in->at += 2;
      return TRUE;
    } else if (*in->at == '[' && !(in->end - in->at >= 2 && in->at[1] == ':')) {
      g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_UNSUPPORTED,
                  "the pattern has a set inside a set, at '%.*s'", (int)MIN(in->end - begin, 40),
                  begin);
      return FALSE;
    } else
      g_string_append_c(out, *in->at++);
  }
  if (in->at == in->end) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT, "the pattern lacks a ]");
    return FALSE;
  }
  g_string_append_c(out, *in->at++);
  return TRUE;
}

/* [A&&[^B]] is any of A that is not of B. */
static gboolean
copy_set(oct_reader *in, GString *out, GError **error) {
  g_autoptr(GString) first = g_string_new(NULL), second = g_string_new(NULL);
  gboolean intersected, again = FALSE;
  if (!copy_class(in, first, &intersected, error))
    return FALSE;
  if (!intersected) {
    g_string_append_len(out, first->str, (gssize)first->len);
    return TRUE;
  }
  if (in->end - in->at < 2 || in->at[0] != '[' || in->at[1] != '^' ||
      !copy_class(in, second, &again, error) || again || in->at == in->end || *in->at != ']') {
    if (error == NULL || *error == NULL)
      g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_UNSUPPORTED,
                  "the pattern intersects sets other than as [A&&[^B]]");
    return FALSE;
  }
  in->at++;
  g_string_erase(second, 1, 1); /* its ^ */
  g_string_append_printf(out, "(?:(?!%s)%s)", second->str, first->str);
  return TRUE;
}

char *
oct_split_translate(const char *pattern, gsize size, GError **error) {
  if (size > OCT_SPLIT_PATTERN_BYTES_MAX || !g_utf8_validate_len(pattern, size, NULL)) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT,
                "a pattern of %" G_GSIZE_FORMAT " bytes that is too long or not UTF-8", size);
    return NULL;
  }
  g_autoptr(GString) out = g_string_new(NULL);
  oct_reader in = {pattern, pattern + size};
  while (in.at < in.end) {
    gboolean ok = TRUE;
    if (*in.at == '\\')
      ok = copy_escape(&in, FALSE, out, error);
    else if (*in.at == '[')
      ok = copy_set(&in, out, error);
    else
      g_string_append_c(out, *in.at++);
    if (!ok)
      return NULL;
  }
  return g_string_free(g_steal_pointer(&out), FALSE);
}

/* --- published pre-tokenizers --------------------------------------------------------------- */

#define TAIL           "|\\s+(?!\\S)|\\s+"
#define GPT2           "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+" TAIL
#define CONTRACTIONS   "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define PUNCTUATION    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
#define CL100K(digits) CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits PUNCTUATION TAIL
#define UPPER          "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER          "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define CASED(upper, lower)                                                                        \
  "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" upper       \
  "+" lower "*" CONTRACTIONS "?|\\p{N}{1,3}"
#define NO_HAN(set) "[" set "&&[^\\p{Han}]]"

static const struct {
  const char *names; /* between spaces */
  const char *steps[4];
} published[] = {
    {" gpt-2 gpt2 mpt olmo jais phi-2 ", {GPT2}},
    {" default ",
     {"[\\p{P}\\$\\+<=>\\^~\\|]+",
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|"
      " ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)",
      "\\p{N}+", "[0-9][0-9][0-9]"}},
    {" llama-bpe llama3 llama-v3 falcon3 dbrx smaug-bpe pixtral ", {CL100K("\\p{N}{1,3}")}},
    {" qwen2 qwen qwen3 stablelm2 hunyuan deepseek-r1-qwen ", {CL100K("\\p{N}")}},
    {" smollm starcoder refact command-r codeshell ", {"\\p{N}", GPT2}},
    {" deepseek-v3 ",
     {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
      "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+" TAIL}},
    {" gpt-4o llama4 o200k ",
     {CASED("[" UPPER "]", "[" LOWER "]") "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" TAIL}},
    {" kimi-k2 kimi-k3 ", {"[\\p{Han}]+|" CASED(NO_HAN(UPPER), NO_HAN(LOWER)) PUNCTUATION TAIL}},
};

gboolean
oct_splitter_add_named(oct_splitter *splitter, const char *name, GError **error) {
  g_autofree char *wanted = g_strdup_printf(" %s ", name);
  for (guint i = 0; i < G_N_ELEMENTS(published); i++) {
    if (strchr(name, ' ') != NULL || strstr(published[i].names, wanted) == NULL)
      continue;
    for (guint s = 0; s < 4 && published[i].steps[s] != NULL; s++)
      if (!oct_splitter_add(splitter, published[i].steps[s], strlen(published[i].steps[s]), FALSE,
                            OCT_SPLIT_ISOLATED, FALSE, error))
        return FALSE;
    return TRUE;
  }
  g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_UNSUPPORTED,
              "pre-tokenizer '%s' is not one of those that Octet knows", name);
  return FALSE;
}
