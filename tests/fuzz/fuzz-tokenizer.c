/* Fuzz target: any bytes as a text. What is encoded decodes to the same bytes; nothing from outside
 * becomes a control token. The first byte picks the tokenizer. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/tokenizer.h"
#include "tests/fuzz/replay.h"

#define N_TOKENIZERS 4

static oct_tokenizer *
tokenizer_of(guint which) {
  static const char *const files[N_TOKENIZERS] = {"llama3.json", "smollm.json", "kimi",
                                                  "gguf-llama.gguf"};
  static oct_tokenizer *tokenizers[N_TOKENIZERS];
  if (tokenizers[which] == NULL) {
    g_autoptr(GError) error = NULL;
    g_autofree char *folder = g_build_filename(OCT_SOURCE_DIR, "tests/golden/text/vocab", NULL);
    if (which == 2) {
      g_autofree char *path = g_build_filename(folder, "kimi.tiktoken", NULL), *file = NULL;
      gsize size;
      oct_tiktoken_spec spec = {
          .pre = "kimi-k2", .n_special = 256, .slice_chars_max = 40, .run_chars_max = 7};
      if (g_file_get_contents(path, &file, &size, &error))
        tokenizers[which] = oct_tokenizer_from_tiktoken(file, size, &spec, &error);
    } else {
      g_autofree char *path = g_build_filename(folder, files[which], NULL);
      tokenizers[which] = oct_tokenizer_open(path, &error);
    }
    oct_assert(error == NULL);
  }
  return tokenizers[which];
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  guint which = data[0] % N_TOKENIZERS;
  const char *text = (const char *)data + 1;
  size--;
  const oct_tokenizer *tokenizer = tokenizer_of(which);
  g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  g_autoptr(GError) error = NULL;
  oct_assert(oct_tokenizer_encode(tokenizer, text, size, ids, &error));
  g_autoptr(GString) back = g_string_new(NULL);
  for (guint i = 0; i < ids->len; i++) {
    guint32 id = g_array_index(ids, guint32, i);
    oct_assert(id < oct_tokenizer_n_tokens(tokenizer) && !oct_tokenizer_is_control(tokenizer, id));
    oct_text bytes = oct_tokenizer_bytes(tokenizer, id);
    g_string_append_len(back, bytes.bytes, (gssize)bytes.size);
  }
  if (which != 3)
    oct_assert(back->len == size && (size == 0 || memcmp(back->str, text, size) == 0));
  /* Marks of any kind: no crash, the same text where a vocabulary has every byte. */
  g_array_set_size(ids, 0);
  oct_assert(oct_tokenizer_encode_marked(tokenizer, text, data, size, ids, &error));
  return 0;
}
