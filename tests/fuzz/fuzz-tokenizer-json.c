/* Fuzz target: any bytes as a tokenizer.json, a tokenizer_config.json or a tiktoken file. What is
 * accepted encodes any text without harm, with ids of the vocabulary. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/tokenizer.h"
#include "tests/fuzz/replay.h"

static void
use(const oct_tokenizer *tokenizer) {
  static const char text[] = "Hello,  w\xc3\xb6rld 123\n\xe6\xbc\xa2<s>\xff \xf0\x9f\x98\x80";
  g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  g_autoptr(GError) error = NULL;
  gboolean ok = oct_tokenizer_encode_marked(tokenizer, text, NULL, sizeof text - 1, ids, &error);
  oct_assert(ok == (error == NULL));
  for (guint i = 0; i < ids->len; i++)
    oct_assert(g_array_index(ids, guint32, i) < oct_tokenizer_n_tokens(tokenizer));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *file = size > 0 ? (const char *)data : "";
  g_autoptr(GError) error = NULL, error2 = NULL;
  g_autoptr(oct_tokenizer) json = oct_tokenizer_from_json(file, size, &error);
  oct_assert((json == NULL) == (error != NULL));
  oct_tiktoken_spec spec = {.pre = "kimi-k2", .n_special = 3};
  g_autoptr(oct_tokenizer) tiktoken = oct_tokenizer_from_tiktoken(file, size, &spec, &error2);
  oct_assert((tiktoken == NULL) == (error2 != NULL));
  if (json != NULL)
    use(json);
  if (tiktoken != NULL) {
    (void)!oct_tokenizer_read_config(tiktoken, file, size, NULL);
    use(tiktoken);
  }
  return 0;
}
