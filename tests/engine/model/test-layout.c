/* Parallel layouts, stages, layer groups and what one GPU holds. */
#include <string.h>

#include "tests/engine/model/models.h"

static oct_parallel
layout(guint32 tensor, guint32 pipeline, guint32 data, gboolean expert_parallel) {
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = tensor;
  p.pipeline = pipeline;
  p.data = data;
  p.expert_parallel = expert_parallel;
  return p;
}

static double
stage_gigabytes(const oct_model_spec *spec, const oct_parallel *p, guint32 stage) {
  g_autoptr(GError) error = NULL;
  oct_weights weights;
  g_assert_true(oct_parallel_check(spec, p, &error));
  g_assert_no_error(error);
  oct_model_rank_weights(spec, p, stage, &weights);
  return (double)oct_weights_total(&weights).bytes / 1e9;
}

/* The layouts of one 8-GPU node and the gigabytes per GPU that deployments of Kimi K3 report. */
static void
test_kimi_k3_node(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("kimi-k3");
  oct_parallel p = layout(8, 1, 1, FALSE);
  g_assert_cmpfloat_with_epsilon(stage_gigabytes(spec, &p, 0), 195.75, 0.005);
  p.expert_parallel = TRUE;
  g_assert_cmpfloat_with_epsilon(stage_gigabytes(spec, &p, 0), 195.75, 0.005);
  p.expert_parallel = FALSE;
  p.shard_latent = FALSE;
  g_assert_cmpfloat_with_epsilon(stage_gigabytes(spec, &p, 0), 205.1, 0.05);
  p.expert_parallel = TRUE;
  p.replicate_shared = TRUE;
  g_assert_cmpfloat_with_epsilon(stage_gigabytes(spec, &p, 0), 226.4, 0.1);
  p = layout(1, 1, 8, TRUE);
  g_assert_cmpfloat_with_epsilon(stage_gigabytes(spec, &p, 0), 294, 0.5);
  p = layout(4, 1, 1, FALSE);
  g_assert_cmpfloat_with_epsilon(stage_gigabytes(spec, &p, 0), 390.638, 0.005);
  p.pipeline = 2;
  g_assert_cmpfloat_with_epsilon(stage_gigabytes(spec, &p, 0), 195.70, 0.01);
  g_assert_cmpfloat_with_epsilon(stage_gigabytes(spec, &p, 1), 194.94, 0.01);
  p.stage_layers[0] = 48;
  p.stage_layers[1] = 45;
  g_assert_cmpfloat_with_epsilon(stage_gigabytes(spec, &p, 0), 199.86, 0.01);
  g_assert_cmpfloat_with_epsilon(stage_gigabytes(spec, &p, 1), 190.78, 0.01);
}

/* Cache bytes per token in bfloat16, over all layers; half of it in fp8. */
static const struct cache {
  const char *name;
  guint n_groups;
  guint64 token_bytes, state_bytes;
} caches[] = {
    {"kimi-k3", 2, 24 * 576 * 2, 449372160},
    {"kimi-linear-48b-a3b", 2, 7 * 576 * 2, 20 * (32 * 128 * 128 * 4 + 3 * 3 * 4096 * 2)},
    {"kimi-k2", 1, 61 * 576 * 2, 0},
    {"deepseek-v3", 1, 61 * 576 * 2, 0},
    {"qwen3-30b-a3b", 1, 48 * 2 * 4 * 128 * 2, 0},
    {"qwen3-235b-a22b", 1, 94 * 2 * 4 * 128 * 2, 0},
    {"qwen3-32b", 1, 64 * 2 * 8 * 128 * 2, 0},
    {"llama-3.1-8b", 1, 32 * 2 * 8 * 128 * 2, 0},
    {"llama-3.1-70b", 1, 80 * 2 * 8 * 128 * 2, 0},
    {"llama-3.1-405b", 1, 126 * 2 * 8 * 128 * 2, 0},
    {"mixtral-8x7b", 1, 32 * 2 * 8 * 128 * 2, 0},
    {"gpt-oss-120b", 2, 36 * 2 * 8 * 64 * 2, 0},
    {"smollm2-135m", 1, 30 * 2 * 3 * 64 * 2, 0},
};

static void
test_cache(void) {
  for (guint i = 0; i < G_N_ELEMENTS(caches); i++) {
    g_test_message("%s", caches[i].name);
    g_autoptr(oct_model_spec) spec = load_zoo(caches[i].name);
    oct_layer_group bf16[OCT_MODEL_GROUPS_MAX], fp8[OCT_MODEL_GROUPS_MAX];
    guint n = oct_model_groups(spec, OCT_DTYPE_BF16, bf16);
    g_assert_cmpuint(n, ==, caches[i].n_groups);
    g_assert_cmpuint(oct_model_groups(spec, OCT_DTYPE_FP8, fp8), ==, n);
    guint64 token_bytes = 0, state_bytes = 0;
    guint32 layers = 0;
    for (guint g = 0; g < n; g++) {
      g_assert_cmpuint(bf16[g].token_bytes, ==, 2 * fp8[g].token_bytes);
      g_assert_cmpuint(bf16[g].state_bytes, ==, fp8[g].state_bytes);
      token_bytes += bf16[g].token_bytes;
      state_bytes += bf16[g].state_bytes;
      layers += bf16[g].n_layers;
    }
    g_assert_cmpuint(token_bytes, ==, caches[i].token_bytes);
    g_assert_cmpuint(state_bytes, ==, caches[i].state_bytes);
    g_assert_cmpuint(layers, ==, spec->n_layers);
  }
}

static void
test_kimi_k3_groups(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("kimi-k3");
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_model_groups(spec, OCT_DTYPE_FP8, groups);
  g_assert_cmpint(groups[0].kind, ==, OCT_ATTENTION_KDA);
  g_assert_cmpuint(groups[0].n_layers, ==, 69);
  g_assert_cmpuint(groups[0].state_bytes, ==, 449372160);
  g_assert_cmpuint(groups[0].token_bytes, ==, 0);
  g_assert_cmpint(groups[1].kind, ==, OCT_ATTENTION_MLA);
  g_assert_cmpuint(groups[1].n_layers, ==, 24);
  g_assert_cmpuint(groups[1].token_bytes, ==, 13824);
  g_assert_cmpuint(groups[1].state_bytes, ==, 0);
  for (guint32 l = 0; l < 93; l++) {
    gboolean mla = l % 4 == 3 || l == 92;
    oct_attention_kind kind = spec->attention[spec->layers[l].attention].kind;
    g_assert_cmpint(kind, ==, mla ? OCT_ATTENTION_MLA : OCT_ATTENTION_KDA);
  }
}

static void
test_window_groups(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("gpt-oss-120b");
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  g_assert_cmpuint(oct_model_groups(spec, OCT_DTYPE_BF16, groups), ==, 2);
  g_assert_cmpint(groups[0].kind, ==, OCT_ATTENTION_WINDOW);
  g_assert_cmpuint(groups[0].window, ==, 128);
  g_assert_cmpuint(groups[0].n_layers, ==, 18);
  g_assert_cmpint(groups[1].kind, ==, OCT_ATTENTION_GQA);
  g_assert_cmpuint(groups[1].window, ==, 0);
  g_assert_cmpuint(groups[1].n_layers, ==, 18);
}

static void
test_rank_cache(void) {
  g_autoptr(oct_model_spec) k3 = load_zoo("kimi-k3");
  oct_parallel p = layout(8, 1, 1, FALSE);
  /* The latent is the same on every rank; the state is split by head. */
  g_assert_cmpuint(oct_model_rank_token_bytes(k3, &p, 0, OCT_DTYPE_BF16, 1), ==, 27648);
  g_assert_cmpuint(oct_model_rank_token_bytes(k3, &p, 0, OCT_DTYPE_BF16, 0), ==, 0);
  g_assert_cmpuint(oct_model_rank_state_bytes(k3, &p, 0, 0), ==, 449372160 / 8);
  g_assert_cmpuint(oct_model_rank_state_bytes(k3, &p, 0, 1), ==, 0);
  p.decode_context = 8;
  g_assert_cmpuint(oct_model_rank_token_bytes(k3, &p, 0, OCT_DTYPE_BF16, 1), ==, 27648 / 8);
  g_assert_cmpuint(oct_model_rank_state_bytes(k3, &p, 0, 0), ==, 449372160 / 8);
  /* Stages hold their own layers' cache: 11 and 13 of the MLA layers. */
  p = layout(4, 2, 1, FALSE);
  g_assert_cmpuint(oct_model_rank_token_bytes(k3, &p, 0, OCT_DTYPE_FP8, 1), ==, 11 * 576);
  g_assert_cmpuint(oct_model_rank_token_bytes(k3, &p, 1, OCT_DTYPE_FP8, 1), ==, 13 * 576);
  g_assert_cmpuint(oct_model_rank_state_bytes(k3, &p, 0, 0) +
                       oct_model_rank_state_bytes(k3, &p, 1, 0),
                   ==, 449372160 / 4);
}

static void
test_kv_heads(void) {
  g_autoptr(oct_model_spec) llama = load_zoo("llama-3.1-70b");
  oct_parallel p = layout(8, 1, 1, FALSE);
  g_assert_cmpuint(oct_model_rank_token_bytes(llama, &p, 0, OCT_DTYPE_BF16, 0), ==, 327680 / 8);
  /* 16 ranks share 8 KV heads: each still holds a whole one, and its projections. */
  p.tensor = 16;
  g_assert_cmpuint(oct_model_rank_token_bytes(llama, &p, 0, OCT_DTYPE_BF16, 0), ==, 327680 / 8);
  oct_weights rank;
  oct_model_rank_weights(llama, &p, 0, &rank);
  guint64 q_and_o = 2 * 512, k_and_v = 2 * 128;
  g_assert_cmpuint(rank.attention.parameters, ==, 80 * 8192 * (q_and_o + k_and_v));
  /* Two copies of each head can share out its tokens. */
  p.decode_context = 2;
  g_assert_true(oct_parallel_check(llama, &p, NULL));
  g_assert_cmpuint(oct_model_rank_token_bytes(llama, &p, 0, OCT_DTYPE_BF16, 0), ==, 327680 / 16);
}

static void
test_stages(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("kimi-k3");
  oct_parallel p = layout(1, 4, 1, FALSE);
  const guint32 even[] = {24, 23, 23, 23}, given[] = {12, 36, 36, 9};
  guint32 first, count, next = 0;
  for (guint32 stage = 0; stage < 4; stage++, next = first + count) {
    oct_parallel_stage(spec, &p, stage, &first, &count);
    g_assert_cmpuint(first, ==, next);
    g_assert_cmpuint(count, ==, even[stage]);
  }
  g_assert_cmpuint(next, ==, 93);
  memcpy(p.stage_layers, given, sizeof given);
  g_assert_true(oct_parallel_check(spec, &p, NULL));
  next = 0;
  for (guint32 stage = 0; stage < 4; stage++, next = first + count) {
    oct_parallel_stage(spec, &p, stage, &first, &count);
    g_assert_cmpuint(first, ==, next);
    g_assert_cmpuint(count, ==, given[stage]);
  }
  g_assert_cmpuint(next, ==, 93);
}

static void
expect_illegal(const oct_model_spec *spec, const oct_parallel *p, const char *part) {
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_parallel_check(spec, p, &error));
  g_assert_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_LAYOUT);
  if (strstr(error->message, part) == NULL)
    g_error("'%s' does not contain '%s'", error->message, part);
}

static void
test_sizes(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("llama-3.1-8b");
  const struct {
    oct_parallel p;
    const char *part;
  } cases[] = {
      {layout(0, 1, 1, FALSE), "tensor parallel size 0: allowed are 1 to 4096"},
      {layout(4097, 1, 1, FALSE), "tensor parallel size 4097"},
      {layout(1, 0, 1, FALSE), "pipeline parallel size 0: allowed are 1 to 16"},
      {layout(1, 17, 1, FALSE), "pipeline parallel size 17"},
      {layout(1, 1, 0, FALSE), "data parallel size 0"},
      {layout(G_MAXUINT32, 1, 1, FALSE), "tensor parallel size 4294967295"},
      {layout(4096, 16, 4096, FALSE), "268435456 ranks, at most 4096"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++)
    expect_illegal(spec, &cases[i].p, cases[i].part);
  oct_parallel p = layout(8, 1, 1, FALSE);
  p.decode_context = 0;
  expect_illegal(spec, &p, "decode context parallel size 0");
  g_autoptr(oct_model_spec) small = load_small("llama");
  p = layout(1, 4, 1, FALSE);
  expect_illegal(small, &p, "pipeline parallel size 4: llama has only 3 layers");
}

static void
test_stage_lists(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("kimi-k3");
  oct_parallel p = layout(1, 2, 1, FALSE);
  p.stage_layers[0] = 48;
  expect_illegal(spec, &p, "stage 1 of 2 has no layers");
  p.stage_layers[1] = 44;
  expect_illegal(spec, &p, "92 layers together, kimi-k3 has 93");
  p.stage_layers[1] = 44;
  p.stage_layers[2] = 1;
  expect_illegal(spec, &p, "layers are given for stages beyond the pipeline parallel size 2");
  p.stage_layers[0] = p.stage_layers[1] = G_MAXUINT32;
  p.stage_layers[2] = 0;
  expect_illegal(spec, &p, "8589934590 layers together");
}

static void
test_divisibility(void) {
  g_autoptr(oct_model_spec) k3 = load_zoo("kimi-k3");
  g_autoptr(oct_model_spec) smol = load_zoo("smollm2-135m");
  g_autoptr(oct_model_spec) qwen = load_zoo("qwen3-30b-a3b");
  g_autoptr(oct_model_spec) llama = load_zoo("llama-3.1-8b");
  oct_parallel p = layout(5, 1, 1, FALSE);
  expect_illegal(k3, &p, "tensor parallel size 5 does not divide the 96 attention heads");
  p = layout(9, 1, 1, FALSE);
  expect_illegal(smol, &p, "tensor parallel size 9 does not divide the dense FFN width 1536");
  g_autoptr(oct_model_spec) small = load_small("llama-tied-rope3");
  p = layout(9, 1, 1, FALSE);
  expect_illegal(small, &p, "tensor parallel size 9 does not divide the dense FFN width 160");
  p = layout(2, 1, 3, TRUE);
  expect_illegal(qwen, &p, "over 6 ranks (tensor 2 x data 3) does not divide the 128 experts");
  p = layout(8, 1, 1, TRUE);
  expect_illegal(llama, &p, "llama-3.1-8b has no experts");
  p = layout(8, 1, 1, FALSE);
  p.replicate_shared = TRUE;
  expect_illegal(llama, &p, "llama-3.1-8b has no shared experts");
  expect_illegal(qwen, &p, "has no shared experts");
  g_assert_true(oct_parallel_check(k3, &p, NULL));
  p.replicate_shared = FALSE;
  p.shard_latent = FALSE;
  expect_illegal(llama, &p, "llama-3.1-8b has no experts that work on a latent");
  g_assert_true(oct_parallel_check(k3, &p, NULL));
  p = layout(2, 1, 1, FALSE);
  p.shard_latent = FALSE;
  expect_illegal(qwen, &p, "has no experts that work on a latent");
  p = layout(3, 1, 1, FALSE);
  expect_illegal(k3, &p, "3 does not divide the latent of 3584, the router of 896 experts");
  p.shard_latent = FALSE;
  g_assert_true(oct_parallel_check(k3, &p, NULL));
}

static void
test_kv_divisibility(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("llama-3.1-8b");
  /* 12 heads and 8 KV heads on 6 ranks: 6 neither divides 8 nor is a multiple of it. */
  spec->attention[0].n_heads = 12;
  oct_parallel p = layout(6, 1, 1, FALSE);
  expect_illegal(spec, &p, "tensor parallel size 6 neither divides the 8 KV heads");
}

static void
test_decode_context(void) {
  g_autoptr(oct_model_spec) k3 = load_zoo("kimi-k3");
  g_autoptr(oct_model_spec) llama = load_zoo("llama-3.1-8b");
  oct_parallel p = layout(8, 1, 1, FALSE);
  p.decode_context = 3;
  expect_illegal(k3, &p, "decode context parallel size 3 does not divide tensor parallel size 8");
  p.decode_context = 8;
  g_assert_true(oct_parallel_check(k3, &p, NULL));
  p.decode_context = 2;
  expect_illegal(llama, &p, "each KV head is on 1 rank, which it must divide");
}

/* A float8 scale covers 128 x 128 elements: a rank's part must be whole blocks. */
static void
test_blocks(void) {
  g_autoptr(oct_model_spec) v3 = load_zoo("deepseek-v3");
  oct_parallel p = layout(8, 1, 1, FALSE);
  g_assert_true(oct_parallel_check(v3, &p, NULL));
  p.tensor = 32;
  expect_illegal(v3, &p, "leaves 576 of the dense FFN width 18432 on a rank, not a multiple of");
  p.tensor = 128;
  expect_illegal(v3, &p, "leaves 192 of the attention width 24576 on a rank");
  /* MXFP4 kernels pad: gpt-oss runs with 8 ranks although 2880 / 8 = 360 is not whole blocks. */
  g_autoptr(oct_model_spec) oss = load_zoo("gpt-oss-120b");
  p = layout(8, 1, 1, FALSE);
  g_assert_true(oct_parallel_check(oss, &p, NULL));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/model/layout/kimi-k3-fills-a-node-as-reported", test_kimi_k3_node);
  g_test_add_func("/model/layout/cache-bytes-per-token-and-sequence", test_cache);
  g_test_add_func("/model/layout/kimi-k3-has-kda-and-mla-groups", test_kimi_k3_groups);
  g_test_add_func("/model/layout/gpt-oss-alternates-windows", test_window_groups);
  g_test_add_func("/model/layout/rank-cache-by-kind", test_rank_cache);
  g_test_add_func("/model/layout/kv-heads-replicate-past-their-number", test_kv_heads);
  g_test_add_func("/model/layout/stages-cover-all-layers", test_stages);
  g_test_add_func("/model/layout/refuses-sizes-out-of-range", test_sizes);
  g_test_add_func("/model/layout/refuses-stage-lists-that-do-not-add-up", test_stage_lists);
  g_test_add_func("/model/layout/refuses-what-does-not-divide", test_divisibility);
  g_test_add_func("/model/layout/refuses-kv-heads-that-do-not-fit", test_kv_divisibility);
  g_test_add_func("/model/layout/decode-context-needs-copies", test_decode_context);
  g_test_add_func("/model/layout/scales-do-not-straddle-ranks", test_blocks);
  return g_test_run();
}
