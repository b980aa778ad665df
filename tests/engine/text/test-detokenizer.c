#include <string.h>

#include "engine/text/detokenizer.h"
#include "tests/engine/text/text-golden.h"

/* A vocabulary of the 256 bytes, and one control token 256. */
static oct_tokenizer *
bytes_tokenizer(void) {
  g_autoptr(GString) file = g_string_new(NULL);
  for (guint i = 0; i < 256; i++) {
    guint8 byte = (guint8)i;
    g_autofree char *base64 = g_base64_encode(&byte, 1);
    g_string_append_printf(file, "%s %u\n", base64, i);
  }
  static const char *const names[] = {"<|end|>"};
  oct_tiktoken_spec spec = {.pre = "gpt2", .n_special = 1, .names = names};
  g_autoptr(GError) error = NULL;
  oct_tokenizer *tokenizer = oct_tokenizer_from_tiktoken(file->str, file->len, &spec, &error);
  g_assert_no_error(error);
  return tokenizer;
}

/* One token at a time; every piece must be whole characters. */
static char *
stream(const oct_tokenizer *tokenizer, const guint32 *ids, gsize n, gboolean skip) {
  g_autoptr(oct_detokenizer) d = oct_detokenizer_new(tokenizer, skip, TRUE);
  g_autoptr(GString) all = g_string_new(NULL), piece = g_string_new(NULL);
  for (gsize i = 0; i <= n; i++) {
    g_string_truncate(piece, 0);
    if (i < n)
      oct_detokenizer_push(d, ids[i], piece);
    else
      oct_detokenizer_finish(d, piece);
    g_assert_true(g_utf8_validate_len(piece->str, piece->len, NULL));
    g_string_append_len(all, piece->str, (gssize)piece->len);
  }
  g_string_truncate(piece, 0);
  oct_detokenizer_finish(d, piece);
  g_assert_cmpuint(piece->len, ==, 0);
  return g_string_free(g_steal_pointer(&all), FALSE);
}

static char *
stream_bytes(const char *bytes) {
  g_autoptr(oct_tokenizer) tokenizer = bytes_tokenizer();
  guint32 ids[64];
  gsize n = strlen(bytes);
  for (gsize i = 0; i < n; i++)
    ids[i] = (guint8)bytes[i];
  return stream(tokenizer, ids, n, FALSE);
}

static void
half_characters_wait_for_the_other_half(void) {
  static const struct {
    const char *bytes, *text;
  } cases[] = {
      {"", ""},
      {"a\xc3\xa9z", "aéz"},
      {"\xf0\x9f\x98\x80\xe0\xb8\xaa", "😀ส"},
      {"\xf0\x9f\x98", "\xef\xbf\xbd"},         /* one for a tail */
      {"\xf0\x9f\x98x", "\xef\xbf\xbdx"},       /* … and for one that ended early */
      {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd"}, /* one for each byte that begins nothing */
      {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"}, /* overlong */
      {"\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* surrogate */
      {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xe4\xbd\xe4\xbd\xa0", "\xef\xbf\xbd你"},
      {"\x80", "\xef\xbf\xbd"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autofree char *got = stream_bytes(cases[i].bytes);
    g_assert_cmpstr(got, ==, cases[i].text);
  }
}

/* The golden corpus through every vocabulary: the stream is the text. */
static void
stream_equals_text(gconstpointer name) {
  g_autoptr(oct_tokenizer) tokenizer = text_tokenizer(name);
  g_autoptr(GPtrArray) corpus = text_corpus();
  for (guint i = 0; i < corpus->len; i++) {
    gsize size;
    const char *text = g_bytes_get_data(corpus->pdata[i], &size);
    if (size == 0 || !g_utf8_validate_len(text, size, NULL) ||
        g_strstr_len(text, (gssize)size, "\xe2\x96\x81") != NULL)
      continue;
    g_autoptr(GArray) ids = text_encode(tokenizer, text, size);
    const guint32 *all = (const guint32 *)(const void *)ids->data;
    g_autofree char *got = stream(tokenizer, all, ids->len, TRUE);
    g_autoptr(GString) once = g_string_new(NULL);
    oct_detokenize(tokenizer, all, ids->len, TRUE, once);
    g_assert_cmpstr(got, ==, once->str);
    g_autofree char *expected = g_strndup(text, size);
    g_assert_cmpstr(got, ==, expected);
  }
}

static void
a_prompt_that_ends_in_half_a_character_does_not_leak(void) {
  static const struct {
    const char *prompt, *answer, *text;
  } cases[] = {
      {"secret \xe0\xb8", "\xaa!", "ส!"},          /* completed */
      {"secret \xe0\xb8", "no", "no"},             /* not completed: nothing of it */
      {"secret \xe0\xb8", "", ""},                 /* not even at the end */
      {"secret \xf0\x9f", "\x98", "\xef\xbf\xbd"}, /* begun anew and not finished */
      {"secret \xf0\x9f", "\x98\x80 b", "😀 b"},
      {"secret", "\xaa", "\xef\xbf\xbd"},
      {"", "a", "a"},
  };
  g_autoptr(oct_tokenizer) tokenizer = bytes_tokenizer();
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(oct_detokenizer) d = oct_detokenizer_new(tokenizer, TRUE, FALSE);
    g_autoptr(GString) out = g_string_new(NULL);
    guint32 prompt[32];
    gsize n = strlen(cases[i].prompt);
    for (gsize k = 0; k < n; k++)
      prompt[k] = (guint8)cases[i].prompt[k];
    oct_detokenizer_after(d, prompt, n);
    for (const char *p = cases[i].answer; *p != 0; p++)
      oct_detokenizer_push(d, (guint8)*p, out);
    oct_detokenizer_finish(d, out);
    g_assert_cmpstr(out->str, ==, cases[i].text);
  }
}

static void
control_tokens_are_left_out_on_request(void) {
  g_autoptr(oct_tokenizer) tokenizer = bytes_tokenizer();
  const guint32 ids[] = {'a', 0xc3, 256, 0xa9, 999};
  g_autofree char *without = stream(tokenizer, ids, 5, TRUE);
  g_autofree char *with = stream(tokenizer, ids, 5, FALSE);
  g_assert_cmpstr(without, ==, "aé");
  g_assert_cmpstr(with, ==, "a\xef\xbf\xbd<|end|>\xef\xbf\xbd");
}

static void
the_leading_space_goes_only_at_the_beginning(void) {
  g_autoptr(oct_tokenizer) tokenizer = text_tokenizer("gguf-llama");
  g_autoptr(GArray) ids = text_encode(tokenizer, "the dog", 7);
  const guint32 *all = (const guint32 *)(const void *)ids->data;
  g_autoptr(oct_detokenizer) begins = oct_detokenizer_new(tokenizer, TRUE, TRUE);
  g_autoptr(oct_detokenizer) goes_on = oct_detokenizer_new(tokenizer, TRUE, FALSE);
  g_autoptr(GString) first = g_string_new(NULL), later = g_string_new(NULL);
  for (guint i = 0; i < ids->len; i++) {
    oct_detokenizer_push(begins, all[i], first);
    oct_detokenizer_push(goes_on, all[i], later);
  }
  g_assert_cmpstr(first->str, ==, "the dog");
  g_assert_cmpstr(later->str, ==, " the dog");
}

/* Of control tokens that are skipped, those that a parser looks for are text. */
static void
keeps_what_is_looked_for(void) {
  g_autoptr(oct_tokenizer) tokenizer = bytes_tokenizer();
  static const char *const end[] = {"<|begin|>", "<|end|>"};
  const guint32 ids[] = {'a', 256, 'b'};
  for (guint n = 0; n <= 2; n++) {
    g_autoptr(oct_detokenizer) d = oct_detokenizer_new(tokenizer, TRUE, TRUE);
    g_autoptr(GString) out = g_string_new(NULL);
    oct_detokenizer_keep(d, end, n);
    for (guint i = 0; i < G_N_ELEMENTS(ids); i++)
      oct_detokenizer_push(d, ids[i], out);
    oct_detokenizer_finish(d, out);
    g_assert_cmpstr(out->str, ==, n == 2 ? "a<|end|>b" : "ab");
  }
}

int
main(int argc, char **argv) {
  static const char *const names[] = {"gpt2", "llama3", "kimi", "gguf-llama", "llama2"};
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/text/detokenizer/half-characters-wait-for-the-other-half",
                  half_characters_wait_for_the_other_half);
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autofree char *path = g_strdup_printf("/text/detokenizer/%s/stream-equals-text", names[i]);
    g_test_add_data_func(path, names[i], stream_equals_text);
  }
  g_test_add_func("/text/detokenizer/a-prompt-that-ends-in-half-a-character-does-not-leak",
                  a_prompt_that_ends_in_half_a_character_does_not_leak);
  g_test_add_func("/text/detokenizer/control-tokens-are-left-out-on-request",
                  control_tokens_are_left_out_on_request);
  g_test_add_func("/text/detokenizer/the-leading-space-goes-only-at-the-beginning",
                  the_leading_space_goes_only_at_the_beginning);
  g_test_add_func("/text/detokenizer/control-tokens-that-are-looked-for-are-kept",
                  keeps_what_is_looked_for);
  return g_test_run();
}
