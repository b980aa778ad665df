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
          oct_split how = oct_weight_split(tensor->kind, tensor->ffn, &p);
          gboolean replicated = how == OCT_SPLIT_WHOLE || how == OCT_SPLIT_FIRST;
          if (tensor->kind == OCT_WEIGHT_A_LOG)
            whole = tensor->attention->n_heads;
          g_assert_cmpuint(part * (replicated ? 1 : p.tensor), ==, whole);
        }
      }
}

/* What a layout's switches split, and what no layout does. */
static void
test_splits(void) {
  g_autoptr(oct_model_spec) k3 = load_zoo("kimi-k3");
  g_autoptr(oct_model_spec) v3 = load_zoo("deepseek-v3");
  const oct_ffn_spec *latent = &k3->ffn[k3->layers[5].ffn], *plain = &v3->ffn[v3->layers[5].ffn];
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = 8;
  for (guint whole = 0; whole < 2; whole++) {
    p.shard_latent = whole == 0;
    const guint64 ranks = whole == 0 ? 8 : 1;
    g_assert_cmpuint(oct_split_rows(OCT_WEIGHT_ROUTER, latent, &p, 896), ==, 896 / ranks);
    g_assert_cmpuint(oct_split_rows(OCT_WEIGHT_LATENT_DOWN, latent, &p, 3584), ==, 3584 / ranks);
    g_assert_cmpuint(oct_split_rows(OCT_WEIGHT_LATENT_UP, latent, &p, 7168), ==, 7168 / ranks);
    g_assert_cmpuint(oct_split_rows(OCT_WEIGHT_ROUTER, plain, &p, 256), ==, 256);
    g_assert_cmpuint(oct_split_rows(OCT_WEIGHT_Q_A, latent, &p, 1536), ==, 1536);
    g_assert_cmpuint(oct_split_rows(OCT_WEIGHT_KV_A, latent, &p, 576), ==, 576);
    g_assert_cmpuint(oct_split_rows(OCT_WEIGHT_DECAY_A, latent, &p, 128), ==, 128);
    g_assert_cmpuint(oct_split_rows(OCT_WEIGHT_EMBEDDING, NULL, &p, 163840), ==, 20480);
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
    else if (list.tensors[i].kind != OCT_WEIGHT_A_LOG) /* what pads it is nobody's */
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
    if (tensor->kind == OCT_WEIGHT_EXPERT_DOWN)
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
  g_test_add_func("/model/tensors/what-is-split-goes-by-layout-and-layer", test_splits);
  g_test_add_func("/model/tensors/experts-spread-over-all-domains", test_expert_parallel);
  g_test_add_func("/model/tensors/partial-blocks-keep-their-scale", test_partial_blocks);
  g_test_add_func("/model/tensors/embedding-and-head", test_ends);
  return g_test_run();
}
