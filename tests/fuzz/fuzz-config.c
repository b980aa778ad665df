/* Fuzz target: any bytes as a config.json. A config that is accepted must keep its promises: sums
 * within the limit, groups that cover all layers, ranks that together hold no less than the whole.
 */
#include "engine/base/assert.h"
#include "engine/model/spec.h"
#include "tests/fuzz/replay.h"

/* Bytes that pad A_log in a checkpoint: no rank has them. */
static guint64
padding_bytes(const oct_model_spec *spec) {
  guint64 bytes = 0;
  for (guint32 i = 0; i < spec->n_layers; i++) {
    const oct_attention_spec *a = &spec->attention[spec->layers[i].attention];
    guint64 unit = MAX(a->decay_padding, 1), heads = a->n_heads;
    if (a->kind == OCT_ATTENTION_KDA)
      bytes += ((heads + unit - 1) / unit * unit - heads) * sizeof(float);
  }
  return bytes;
}

static void
inspect(const oct_model_spec *spec) {
  oct_weights all, rank;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_model_weights(spec, &all);
  oct_assert(oct_weights_total(&all).parameters <= OCT_MODEL_PARAMETERS_MAX);
  guint n = oct_model_groups(spec, OCT_DTYPE_BF16, groups);
  guint32 layers = 0;
  for (guint g = 0; g < n; g++)
    layers += groups[g].n_layers;
  oct_assert(layers == spec->n_layers);
  for (guint32 tensor = 1; tensor <= 8; tensor *= 2) {
    oct_parallel parallel = OCT_PARALLEL_DEFAULT;
    parallel.tensor = tensor;
    if (!oct_parallel_check(spec, &parallel, NULL))
      continue;
    oct_model_rank_weights(spec, &parallel, 0, &rank);
    oct_assert(oct_weights_total(&rank).bytes * tensor + padding_bytes(spec) >=
               oct_weights_total(&all).bytes);
    for (guint g = 0; g < n; g++) {
      oct_assert(oct_model_rank_token_bytes(spec, &parallel, 0, OCT_DTYPE_BF16, g) <=
                 groups[g].token_bytes);
      oct_assert(oct_model_rank_state_bytes(spec, &parallel, 0, g) <= groups[g].state_bytes);
    }
  }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_spec) spec =
      oct_model_spec_parse("fuzz", size > 0 ? (const char *)data : "", size, &error);
  oct_assert((spec == NULL) == (error != NULL));
  if (spec != NULL)
    inspect(spec);
  return 0;
}
