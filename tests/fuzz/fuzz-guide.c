/* Fuzz target: a regular expression (first byte even) or a JSON schema. What compiles gives masks
 * that advance() keeps to, for as long as its work limit lets it. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/error.h"
#include "engine/text/guide.h"
#include "tests/fuzz/replay.h"

static void
follow(const oct_tokenizer *tokenizer, const oct_guide_vocab *vocab, oct_guide *guide,
       guint8 salt) {
  g_autofree guint32 *bits = g_new(guint32, oct_guide_vocab_words(vocab));
  oct_guide_state state = {0};
  for (guint n = 0; n < 12; n++) {
    g_autoptr(GError) error = NULL;
    if (!oct_guide_mask(guide, &state, bits, &error)) {
      oct_assert(error != NULL && error->domain == OCT_TEXT_ERROR);
      return;
    }
    guint32 id = (salt * 37u + n * 101u) % oct_tokenizer_n_tokens(tokenizer), tries = 0;
    while ((bits[id / 32] >> (id % 32) & 1) == 0 && tries++ < oct_tokenizer_n_tokens(tokenizer))
      id = (id + 1) % oct_tokenizer_n_tokens(tokenizer);
    gboolean allowed = (bits[id / 32] >> (id % 32) & 1) != 0;
    if (!allowed)
      return;
    oct_assert(oct_guide_advance(guide, &state, id));
  }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static oct_tokenizer *tokenizer;
  static oct_guide_vocab *vocab;
  if (tokenizer == NULL) {
    g_autofree char *path =
        g_build_filename(OCT_SOURCE_DIR, "tests/golden/text/vocab/llama3.json", NULL);
    tokenizer = oct_tokenizer_open(path, NULL);
    oct_assert(tokenizer != NULL);
    vocab = oct_guide_vocab_new(tokenizer);
  }
  if (size == 0)
    return 0;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_guide) guide = NULL;
  if (data[0] % 2 == 0) {
    g_autofree char *pattern = g_strndup((const char *)data + 1, size - 1);
    guide = oct_guide_new_regex(vocab, pattern, &error);
  } else {
    json_t *schema = json_loadb((const char *)data + 1, size - 1, JSON_DECODE_ANY, NULL);
    if (schema == NULL)
      return 0;
    guide = oct_guide_new_schema(vocab, schema, &error);
    json_decref(schema);
  }
  oct_assert((guide == NULL) == (error != NULL));
  if (guide != NULL)
    follow(tokenizer, vocab, guide, data[size - 1]);
  return 0;
}
