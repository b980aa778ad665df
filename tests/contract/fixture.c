#include "tests/contract/fixture.h"

static char hybrid_name[] = "hybrid-fixture", dense_name[] = "dense-fixture",
            latent_name[] = "latent-fixture";
static char architecture[] = "fixture";

/* Attention 0: state, 1: latent pages, 2: window; feed-forward 0: dense, 1: experts. */
static oct_layer_spec hybrid_layers[8] = {{0, 0}, {0, 1}, {1, 1}, {2, 1},
                                          {0, 1}, {0, 1}, {1, 1}, {2, 1}};
static oct_layer_spec dense_layers[4] = {{0, 0}, {0, 0}, {0, 0}, {0, 0}};

static const oct_weight_types types = {
    .attention = OCT_DTYPE_BF16,
    .dense_ffn = OCT_DTYPE_BF16,
    .expert = OCT_DTYPE_MXFP4,
    .shared_expert = OCT_DTYPE_BF16,
    .router = OCT_DTYPE_BF16,
    .latent = OCT_DTYPE_BF16,
    .embedding = OCT_DTYPE_BF16,
    .head = OCT_DTYPE_BF16,
    .base = OCT_DTYPE_BF16,
};

const oct_model_spec *
fixture_hybrid(void) {
  static oct_model_spec spec;
  spec = (oct_model_spec){
      .name = hybrid_name,
      .architecture = architecture,
      .vocab = FIXTURE_VOCAB,
      .hidden = 64,
      .n_layers = G_N_ELEMENTS(hybrid_layers),
      .max_position = FIXTURE_POSITION,
      .n_eos_tokens = 1,
      .eos_tokens = {FIXTURE_EOS},
      .rms_norm_eps = 1e-5,
      .n_attention = 3,
      .n_ffn = 2,
      .attention =
          {
              {.kind = OCT_ATTENTION_KDA, .n_heads = 8, .head_dim = 8, .conv_kernel = 4},
              {.kind = OCT_ATTENTION_MLA,
               .n_heads = 8,
               .q_lora = 32,
               .kv_lora = 32,
               .qk_nope = 8,
               .qk_rope = 4,
               .v_head = 8},
              {.kind = OCT_ATTENTION_WINDOW,
               .n_heads = 8,
               .n_kv_heads = 8,
               .head_dim = 8,
               .window = 32},
          },
      .ffn =
          {
              {.kind = OCT_FFN_DENSE, .intermediate = 128},
              {.kind = OCT_FFN_MOE,
               .n_experts = FIXTURE_EXPERTS,
               .top_k = 2,
               .moe_intermediate = 32},
          },
      .layers = hybrid_layers,
      .types = types,
  };
  return &spec;
}

const oct_model_spec *
fixture_dense(void) {
  static oct_model_spec spec;
  spec = (oct_model_spec){
      .name = dense_name,
      .architecture = architecture,
      .vocab = FIXTURE_VOCAB,
      .hidden = 64,
      .n_layers = G_N_ELEMENTS(dense_layers),
      .max_position = FIXTURE_POSITION,
      .n_eos_tokens = 1,
      .eos_tokens = {FIXTURE_EOS},
      .rms_norm_eps = 1e-5,
      .n_attention = 1,
      .n_ffn = 1,
      .attention = {{.kind = OCT_ATTENTION_GQA, .n_heads = 8, .n_kv_heads = 8, .head_dim = 8}},
      .ffn = {{.kind = OCT_FFN_DENSE, .intermediate = 128}},
      .layers = dense_layers,
      .types = types,
  };
  return &spec;
}

const oct_model_spec *
fixture_latent(void) {
  static oct_model_spec spec;
  spec = *fixture_dense();
  spec.name = latent_name;
  spec.attention[0] = fixture_hybrid()->attention[1];
  return &spec;
}

oct_instance_config
fixture_config(const oct_model_spec *spec, oct_parallel parallel) {
  static const guint16 devices[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_instance_config config = {
      .label = spec->name,
      .spec = spec,
      .parallel = parallel,
      .devices = devices,
      .kv_dtype = OCT_DTYPE_BF16,
      .block_size = 16,
      .depth = 2,
      .max_slots = 32,
      .max_batched_tokens = 512,
      .memory = {.n_groups = oct_model_groups(spec, OCT_DTYPE_BF16, groups)},
      .seed = 1,
      .check_tags = TRUE,
  };
  g_assert_cmpuint(oct_parallel_world(&parallel), <=, G_N_ELEMENTS(devices));
  for (guint32 g = 0; g < config.memory.n_groups; g++)
    config.memory.groups[g] = (oct_pool_plan){.n_device = 64, .n_host = 32};
  return config;
}
