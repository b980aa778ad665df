/* The list of tensors: parts of ranks make up the whole, whatever the layout. */
#include "engine/model/tensors.h"
#include "tests/engine/model/models.h"

static const char *const names[] = {"kimi-k3",      "kimi-linear-48b-a3b", "deepseek-v3",
                                    "gpt-oss-120b", "qwen3-30b-a3b",       "llama-3.1-70b"};

/* Legal layouts split no unit: all ranks together hold each tensor once, or once per rank where it
 * is replicated. KV heads past their number are the exception, and are left out by the sizes here.
 */
static void
test_parts(void) {
  const guint32 tensors[] = {1, 2, 4};
  for (guint n = 0; n < G_N_ELEMENTS(names); n++)
    for (guint t = 0; t < G_N_ELEMENTS(tensors); t++)
      for (guint flags = 0; flags < 8; flags++) {
        g_autoptr(oct_model_spec) spec = load_zoo(names[n]);
        oct_parallel p = OCT_PARALLEL_DEFAULT;
        p.tensor = tensors[t];
        p.expert_parallel = (flags & 1) != 0;
        p.shard_latent = (flags & 2) != 0;
        p.replicate_shared = (flags & 4) != 0;
        oct_tensor_list list;
        oct_tensors_layer(spec, spec->n_layers - 1, &list);
        for (guint i = 0; i < list.n; i++) {
          const oct_tensor *tensor = &list.tensors[i];
          guint64 whole = oct_tensor_sum(tensor).parameters;
          guint64 part = oct_tensor_rank_sum(tensor, &p).parameters;
          gboolean replicated = (tensor->axis == OCT_SPLIT_NONE &&
                                 !(tensor->rule == OCT_SPLIT_EXPERT && p.expert_parallel)) ||
                                (tensor->rule == OCT_SPLIT_LATENT && !p.shard_latent) ||
                                (tensor->rule == OCT_SPLIT_SHARED && p.replicate_shared);
          g_assert_cmpuint(part * (replicated ? 1 : p.tensor), ==, whole);
        }
      }
}

/* Under EP whole experts go to the ranks of all domains, and nothing else is split by data. */
static void
test_expert_parallel(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("kimi-k3");
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = 2;
  p.data = 4;
  p.expert_parallel = TRUE;
  oct_tensor_list list;
  oct_tensors_layer(spec, 10, &list);
  for (guint i = 0; i < list.n; i++) {
    oct_weight_sum whole = oct_tensor_sum(&list.tensors[i]);
    oct_weight_sum part = oct_tensor_rank_sum(&list.tensors[i], &p);
    if (list.tensors[i].class == OCT_TENSOR_EXPERT)
      g_assert_cmpuint(part.bytes * 8, ==, whole.bytes);
    else
      g_assert_cmpuint(part.bytes * 2, >=, whole.bytes);
  }
}

/* gpt-oss on 8 ranks: 360 of 2880 inputs are 11.25 scale blocks, so 12 scales are stored. */
static void
test_partial_blocks(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("gpt-oss-120b");
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = 8;
  oct_tensor_list list;
  oct_tensors_layer(spec, 0, &list);
  for (guint i = 0; i < list.n; i++) {
    const oct_tensor *tensor = &list.tensors[i];
    if (tensor->class == OCT_TENSOR_EXPERT && tensor->axis == OCT_SPLIT_COLUMNS)
      g_assert_cmpuint(oct_tensor_rank_sum(tensor, &p).bytes, ==, 128 * 2880 * (180 + 12));
  }
}

static void
test_ends(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("llama-3.1-8b");
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = 7; /* the vocabulary is rounded up: no rank holds less than it needs */
  oct_tensor_list list;
  oct_tensors_before(spec, &list);
  g_assert_cmpuint(list.n, ==, 1);
  g_assert_cmpuint(oct_tensor_rank_sum(&list.tensors[0], &p).parameters, ==, 18323 * 4096);
  oct_tensors_after(spec, FALSE, &list);
  g_assert_cmpuint(list.n, ==, 2);
  spec->tied_embeddings = TRUE;
  oct_tensors_after(spec, FALSE, &list);
  g_assert_cmpuint(list.n, ==, 1);
  oct_tensors_after(spec, TRUE, &list);
  g_assert_cmpuint(list.n, ==, 2);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/model/tensors/parts-make-up-the-whole", test_parts);
  g_test_add_func("/model/tensors/experts-spread-over-all-domains", test_expert_parallel);
  g_test_add_func("/model/tensors/partial-blocks-keep-their-scale", test_partial_blocks);
  g_test_add_func("/model/tensors/embedding-and-head", test_ends);
  return g_test_run();
}
