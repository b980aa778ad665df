/* Fuzz target: any bytes as a safetensors file, or, when they begin with '{', as the index of
 * shards (whose folder does not exist). What is accepted is read whole, as the weights of two small
 * models too, whatever storage the tensors claim. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/files/internal.h"
#include "tests/fuzz/replay.h"
#include "tests/fuzz/weights.h"

static const char llama[] =
    "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":32,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"
    "\"vocab_size\":8,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5}";
static const char gpt_oss[] =
    "{\"model_type\":\"gpt_oss\",\"hidden_size\":32,\"intermediate_size\":32,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"
    "\"vocab_size\":8,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"sliding_window\":16,"
    "\"num_local_experts\":2,\"num_experts_per_tok\":1}";

static void
run_index(const guint8 *data, size_t size) {
  g_autoptr(GError) error = NULL;
  oct_checkpoint checkpoint = {.format = OCT_LOAD_SAFETENSORS,
                               .budget = oct_budget_new("fuzz", 1 << 26)};
  oct_text text = {(const char *)data, size};
  oct_assert(!oct_shards_read(&checkpoint, "index", "/nonexistent", text, &error));
  oct_assert(error != NULL);
  oct_budget_free(checkpoint.budget);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static oct_model_spec *specs[2];
  if (specs[0] == NULL) {
    specs[0] = oct_model_spec_parse("llama", llama, strlen(llama), NULL);
    specs[1] = oct_model_spec_parse("gpt-oss", gpt_oss, strlen(gpt_oss), NULL);
    oct_assert(specs[0] != NULL && specs[1] != NULL);
  }
  if (size > 0 && data[0] == '{') {
    run_index(data, size);
    return 0;
  }
  if (size == 0 || (size >= 4 && memcmp(data, "GGUF", 4) == 0))
    return 0;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_checkpoint) checkpoint = oct_checkpoint_open_bytes("fuzz", data, size, &error);
  oct_assert((checkpoint == NULL) == (error != NULL));
  if (checkpoint == NULL)
    return 0;
  fuzz_checkpoint(checkpoint, data, size);
  for (unsigned i = 0; i < 2; i++)
    fuzz_weights(specs[i], checkpoint);
  return 0;
}
