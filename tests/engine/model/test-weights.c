/* Parameter and byte totals against published figures and against the checkpoints they describe. */
#include "tests/engine/model/models.h"

/* What publishers state, in billions: total, and active per token, which some count with the
 * embedding table and some without. `parameters` is exact; it is published as such for Llama and
 * SmolLM2, and follows from the published shapes for the others. Kimi K2's report rounds its 1026
 * up to 1.04 T. Multi-token-prediction layers and vision towers are not counted by either side. */
static const struct published {
  const char *name;
  guint64 parameters;
  double total, total_tolerance, active, active_tolerance;
  gboolean active_with_embedding;
} published[] = {
    {"kimi-k3", 2779484478208, 2779.5, 0.05, 104.19, 0.005, FALSE},
    {"kimi-linear-48b-a3b", 49122681728, 49.1, 0.05, 3.1, 0.05, FALSE},
    {"kimi-k2", 1026408232448, 1040, 15, 32, 0.5, FALSE},
    {"deepseek-v3", 671026419200, 671, 0.5, 37, 0.6, FALSE},
    {"qwen3-30b-a3b", 30532122624, 30.53, 0.005, 3.3, 0.06, TRUE},
    {"qwen3-235b-a22b", 235093634560, 235, 0.5, 22, 0.3, TRUE},
    {"qwen3-32b", 32762123264, 32.8, 0.05, 32.8, 0.05, TRUE},
    {"llama-3.1-8b", 8030261248, 8.03, 0.005, 8.03, 0.005, TRUE},
    {"llama-3.1-70b", 70553706496, 70.55, 0.005, 70.55, 0.005, TRUE},
    {"llama-3.1-405b", 405853388800, 405.85, 0.005, 405.85, 0.005, TRUE},
    {"mixtral-8x7b", 46702792704, 46.7, 0.05, 12.9, 0.05, TRUE},
    {"gpt-oss-120b", 116829156672, 116.8, 0.05, 5.13, 0.005, FALSE},
    {"smollm2-135m", 134515008, 0.1345, 0.0001, 0.1345, 0.0001, FALSE},
};

static void
test_published_totals(void) {
  for (guint i = 0; i < G_N_ELEMENTS(published); i++) {
    g_test_message("%s", published[i].name);
    g_autoptr(oct_model_spec) spec = load_zoo(published[i].name);
    oct_weights weights;
    oct_model_weights(spec, &weights);
    const struct published *p = &published[i];
    guint64 total = oct_weights_total(&weights).parameters;
    g_assert_cmpuint(total, ==, p->parameters);
    g_assert_cmpfloat_with_epsilon((double)total / 1e9, p->total, p->total_tolerance);
    double active = (double)oct_model_active_parameters(spec) / 1e9;
    if (p->active_with_embedding && !spec->tied_embeddings)
      active += (double)weights.embedding.parameters / 1e9;
    g_assert_cmpfloat_with_epsilon(active, p->active, p->active_tolerance);
  }
}

static void
test_kimi_k3_classes(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("kimi-k3");
  oct_weights all, kda, mla, dense;
  oct_model_weights(spec, &all);
  oct_weight_sum total = oct_weights_total(&all);
  g_assert_cmpuint(total.bytes, ==, 1559965606912);
  g_assert_cmpuint(all.experts.parameters, ==, G_GUINT64_CONSTANT(896) * 92 * 33030144);
  g_assert_cmpuint(all.experts.bytes, ==, G_GUINT64_CONSTANT(896) * 92 * 17547264);
  g_assert_cmpuint(all.router.bytes, ==, 92 * (6422528 * 2 + 896 * 4));
  g_assert_cmpuint(all.latent.bytes, ==, G_GUINT64_CONSTANT(92) * 2 * 25690112 * 2);
  g_assert_cmpuint(all.shared_experts.bytes, ==, G_GUINT64_CONSTANT(92) * 132120576 * 2);
  g_assert_cmpuint(all.dense_ffn.parameters, ==, 726663168);
  g_assert_cmpuint(all.embedding.parameters, ==, 1174405120);
  g_assert_cmpuint(all.head.parameters, ==, 1174405120);
  /* Layer norms and the four vectors of attention residuals are norms too: 6 x 7168 a layer. */
  oct_model_layer_weights(spec, 0, &dense);
  g_assert_cmpuint(dense.attention.parameters + dense.norms.parameters, ==, 443740416 + 6 * 7168);
  oct_model_layer_weights(spec, 2, &kda);
  g_assert_cmpuint(kda.attention.parameters + kda.norms.parameters, ==,
                   443740416 + 6 * 7168 + 3584);
  g_assert_cmpuint(kda.router.parameters + kda.latent.parameters + 3584 +
                       kda.shared_experts.parameters,
                   ==, 189927808);
  oct_model_layer_weights(spec, 3, &mla);
  g_assert_cmpuint(mla.attention.parameters + mla.norms.parameters, ==,
                   232196096 + 6 * 7168 + 3584);
}

static void
test_expert(void) {
  g_autoptr(oct_model_spec) k3 = load_zoo("kimi-k3");
  g_assert_cmpuint(oct_model_expert(k3, 0).bytes, ==, 0);
  g_assert_cmpuint(oct_model_expert(k3, 1).parameters, ==, 33030144);
  g_assert_cmpuint(oct_model_expert(k3, 1).bytes, ==, 17547264);
  g_autoptr(oct_model_spec) oss = load_zoo("gpt-oss-120b");
  g_assert_cmpuint(oct_model_expert(oss, 0).parameters, ==, 24891840);
  /* 3 x 2880 rows of 90 blocks of 17 bytes, and bfloat16 biases of 5760 and 2880. */
  g_assert_cmpuint(oct_model_expert(oss, 0).bytes, ==, 3 * 2880 * 90 * 17 + 2 * (5760 + 2880));
  g_autoptr(oct_model_spec) dense = load_zoo("llama-3.1-8b");
  g_assert_cmpuint(oct_model_expert(dense, 5).parameters, ==, 0);
}

/* What the small checkpoints that belong to configs/ hold, summed over their safetensors headers.
 * For the Kimi ones also bytes; the others were written in one type throughout. */
static const struct small {
  const char *name;
  guint64 parameters, bytes;
} smalls[] = {
    {"llama", 170432, 340864},         {"llama-tied-rope3", 168696, 337392},
    {"qwen2-bias", 150336, 300672},    {"qwen3-qknorm", 207488, 414976},
    {"qwen3-moe", 294528, 589056},     {"mixtral", 1555904, 3111808},
    {"deepseek-v3", 307624, 0},        {"kimi-linear", 516688, 0},
    {"tiny-a", 1564408, 2645472},      {"tiny-b", 2166240, 2625312},
    {"tiny-linear", 1213927, 2440828},
};

static void
test_small_checkpoints(void) {
  for (guint i = 0; i < G_N_ELEMENTS(smalls); i++) {
    g_test_message("%s", smalls[i].name);
    g_autoptr(oct_model_spec) spec = load_small(smalls[i].name);
    oct_weights weights;
    oct_model_weights(spec, &weights);
    oct_weight_sum total = oct_weights_total(&weights);
    g_assert_cmpuint(total.parameters, ==, smalls[i].parameters);
    if (smalls[i].bytes > 0)
      g_assert_cmpuint(total.bytes, ==, smalls[i].bytes);
  }
}

static void
test_layers_sum_to_whole(void) {
  for (guint i = 0; i < G_N_ELEMENTS(published); i++) {
    g_autoptr(oct_model_spec) spec = load_zoo(published[i].name);
    oct_weights all, layer;
    oct_weight_sum sum = {0};
    oct_model_weights(spec, &all);
    for (guint32 l = 0; l < spec->n_layers; l++) {
      oct_model_layer_weights(spec, l, &layer);
      sum.parameters += oct_weights_total(&layer).parameters;
      sum.bytes += oct_weights_total(&layer).bytes;
    }
    guint64 final = (spec->attn_res_block > 0 ? 3 : 1) * (guint64)spec->hidden;
    oct_weight_sum total = oct_weights_total(&all);
    g_assert_cmpuint(total.parameters, ==,
                     sum.parameters + all.embedding.parameters + all.head.parameters + final);
    g_assert_cmpuint(total.bytes, ==, sum.bytes + all.embedding.bytes + all.head.bytes + 2 * final);
  }
}

static void
test_one_rank_holds_everything(void) {
  for (guint i = 0; i < G_N_ELEMENTS(published); i++) {
    g_autoptr(oct_model_spec) spec = load_zoo(published[i].name);
    oct_parallel one = OCT_PARALLEL_DEFAULT;
    oct_weights all, rank;
    oct_model_weights(spec, &all);
    oct_model_rank_weights(spec, &one, 0, &rank);
    /* But what pads the decays of KDA's heads. */
    for (guint32 l = 0; l < spec->n_layers; l++) {
      const oct_attention_spec *a = &spec->attention[spec->layers[l].attention];
      guint64 n = a->kind == OCT_ATTENTION_KDA ? a->n_heads % MAX(a->decay_padding, 1) : 0;
      n = n > 0 ? a->decay_padding - n : 0;
      rank.norms.parameters += n;
      rank.norms.bytes += 4 * n;
    }
    g_assert_cmpmem(&all, sizeof all, &rank, sizeof rank);
  }
}

static void
test_tied_head(void) {
  g_autoptr(oct_model_spec) spec = load_zoo("smollm2-135m");
  oct_parallel two = OCT_PARALLEL_DEFAULT;
  oct_weights first, last;
  two.pipeline = 2;
  oct_model_rank_weights(spec, &two, 0, &first);
  oct_model_rank_weights(spec, &two, 1, &last);
  g_assert_cmpuint(first.head.parameters, ==, 0);
  g_assert_cmpuint(last.embedding.parameters, ==, 0);
  g_assert_cmpuint(last.head.parameters, ==, first.embedding.parameters);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/model/weights/zoo-has-published-parameters", test_published_totals);
  g_test_add_func("/model/weights/kimi-k3-classes-are-exact", test_kimi_k3_classes);
  g_test_add_func("/model/weights/expert-counts-scales-and-biases", test_expert);
  g_test_add_func("/model/weights/small-checkpoints-are-exact", test_small_checkpoints);
  g_test_add_func("/model/weights/layers-sum-to-the-whole", test_layers_sum_to_whole);
  g_test_add_func("/model/weights/a-single-rank-holds-everything", test_one_rank_holds_everything);
  g_test_add_func("/model/weights/last-stage-copies-a-tied-head", test_tied_head);
  return g_test_run();
}
