#include "tests/engine/text/text-golden.h"

#include <string.h>

char *
text_golden(const char *name, gsize *size) {
  g_autofree char *path = g_test_build_filename(G_TEST_DIST, "golden", "text", name, NULL);
  g_autoptr(GError) error = NULL;
  char *content;
  g_file_get_contents(path, &content, size, &error);
  g_assert_no_error(error);
  return content;
}

char **
text_golden_lines(const char *name) {
  gsize size;
  g_autofree char *content = text_golden(name, &size);
  if (size > 0 && content[size - 1] == '\n')
    content[size - 1] = 0;
  return g_strsplit(content, "\n", -1);
}

static void
unref_bytes(gpointer bytes) {
  g_bytes_unref(bytes);
}

GPtrArray *
text_corpus(void) {
  GPtrArray *corpus = g_ptr_array_new_with_free_func(unref_bytes);
  g_auto(GStrv) lines = text_golden_lines("corpus.hex");
  for (guint i = 0; lines[i] != NULL; i++) {
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    for (const char *p = lines[i]; *p != 0; p += 2) {
      guint8 byte = (guint8)(g_ascii_xdigit_value(p[0]) * 16 + g_ascii_xdigit_value(p[1]));
      g_byte_array_append(bytes, &byte, 1);
    }
    g_ptr_array_add(corpus, g_bytes_new(bytes->data, bytes->len));
  }
  return corpus;
}

oct_tokenizer *
text_tokenizer(const char *name) {
  g_autoptr(GError) error = NULL;
  oct_tokenizer *tokenizer;
  gsize size;
  if (g_str_equal(name, "kimi")) {
    g_autofree char *file = text_golden("vocab/kimi.tiktoken", &size);
    static const char *const names[8] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
    oct_tiktoken_spec spec = {.pre = "kimi-k2",
                              .n_special = 8,
                              .names = names,
                              .slice_chars_max = 400000,
                              .run_chars_max = 25000};
    tokenizer = oct_tokenizer_from_tiktoken(file, size, &spec, &error);
  } else {
    const char *end = g_str_has_prefix(name, "gguf-") ? "gguf" : "json";
    g_autofree char *file = g_strdup_printf("%s.%s", name, end);
    g_autofree char *path =
        g_test_build_filename(G_TEST_DIST, "golden", "text", "vocab", file, NULL);
    tokenizer = oct_tokenizer_open(path, &error);
  }
  g_assert_no_error(error);
  return tokenizer;
}

char *
text_ids(const GArray *ids) {
  GString *out = g_string_new(NULL);
  for (guint i = 0; i < ids->len; i++)
    g_string_append_printf(out, "%s%u", i > 0 ? " " : "", g_array_index(ids, guint32, i));
  return g_string_free(out, FALSE);
}

GArray *
text_encode(const oct_tokenizer *tokenizer, const void *text, gsize size) {
  g_autoptr(GError) error = NULL;
  GArray *ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  gboolean ok = oct_tokenizer_encode(tokenizer, text, size, ids, &error);
  g_assert_no_error(error);
  g_assert_true(ok);
  return ids;
}

const char *
text_smollm2(void) {
  const char *path = g_getenv("OCT_SMOLLM2");
  if (path != NULL && *path == 0)
    path = NULL;
  if (path == NULL)
    g_test_skip("OCT_SMOLLM2 does not name SmolLM2-135M-Instruct's GGUF file");
  return path;
}
