/* quantization_config: which classes get which type, and what is refused. */
#include <string.h>

#include "tests/engine/model/models.h"

/* The model with its quantization_config replaced by `quant`, JSON text. */
static json_t *
quantized(const char *model, const char *quant) {
  json_t *config = zoo_json(model), *value = json_loads(quant, 0, NULL);
  g_assert_nonnull(value);
  json_t *text = json_object_get(config, "text_config");
  json_object_set_new(text != NULL ? text : config, "quantization_config", value);
  return config;
}

static oct_weight_types
types_of(const char *model, const char *quant) {
  g_autoptr(GError) error = NULL;
  json_t *config = quantized(model, quant);
  g_autoptr(oct_model_spec) spec = parse_json(config, &error);
  g_assert_no_error(error);
  json_decref(config);
  return spec->types;
}

/* Attention, dense FFN, expert and shared expert are as given, the rest bfloat16. */
static void
expect_types(oct_weight_types types, oct_dtype attention, oct_dtype dense, oct_dtype expert,
             oct_dtype shared) {
  g_assert_cmpint(types.attention, ==, attention);
  g_assert_cmpint(types.dense_ffn, ==, dense);
  g_assert_cmpint(types.expert, ==, expert);
  g_assert_cmpint(types.shared_expert, ==, shared);
  g_assert_cmpint(types.router, ==, OCT_DTYPE_BF16);
  g_assert_cmpint(types.latent, ==, OCT_DTYPE_BF16);
  g_assert_cmpint(types.embedding, ==, OCT_DTYPE_BF16);
  g_assert_cmpint(types.head, ==, OCT_DTYPE_BF16);
  g_assert_cmpint(types.base, ==, OCT_DTYPE_BF16);
}

#define BF16 OCT_DTYPE_BF16

static void
test_zoo(void) {
  g_autoptr(oct_model_spec) k3 = load_zoo("kimi-k3");
  expect_types(k3->types, BF16, BF16, OCT_DTYPE_MXFP4, BF16);
  g_autoptr(oct_model_spec) oss = load_zoo("gpt-oss-120b");
  expect_types(oss->types, BF16, BF16, OCT_DTYPE_MXFP4, BF16);
  g_autoptr(oct_model_spec) v3 = load_zoo("deepseek-v3");
  expect_types(v3->types, OCT_DTYPE_FP8_BLOCK, OCT_DTYPE_FP8_BLOCK, OCT_DTYPE_FP8_BLOCK,
               OCT_DTYPE_FP8_BLOCK);
  g_autoptr(oct_model_spec) llama = load_zoo("llama-3.1-8b");
  expect_types(llama->types, BF16, BF16, BF16, BF16);
}

static void
test_base_type(void) {
  json_t *config = zoo_json("llama-3.1-8b");
  json_object_set_new(config, "torch_dtype", json_string("float16"));
  g_autoptr(oct_model_spec) half = parse_json(config, NULL);
  g_assert_cmpint(half->types.head, ==, OCT_DTYPE_F16);
  json_object_set_new(config, "dtype", json_string("float32"));
  g_autoptr(oct_model_spec) full = parse_json(config, NULL);
  g_assert_cmpint(full->types.attention, ==, OCT_DTYPE_F32);
  json_decref(config);
}

#define CT_WEIGHTS(format, weights)                                                                \
  "{\"quant_method\": \"compressed-tensors\", \"format\": \"" format                               \
  "\", \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": " weights         \
  "}}, \"ignore\": [\"lm_head\"]}"

static void
test_methods(void) {
  const struct {
    const char *quant;
    oct_dtype type;
  } cases[] = {
      {"{\"quant_method\": \"fp8\"}", OCT_DTYPE_FP8},
      {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}", OCT_DTYPE_FP8_BLOCK},
      {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128, \"version\": \"gemm\"}",
       OCT_DTYPE_INT4_G128},
      {"{\"quant_method\": \"awq\", \"w_bit\": 4, \"q_group_size\": 128}", OCT_DTYPE_INT4_G128},
      {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, \"desc_act\": true}",
       OCT_DTYPE_INT4_G128},
      {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}", OCT_DTYPE_NVFP4},
      {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\"}", OCT_DTYPE_FP8},
      {CT_WEIGHTS("float-quantized", "{\"num_bits\": 8, \"type\": \"float\"}"), OCT_DTYPE_FP8},
      {CT_WEIGHTS("float-quantized",
                  "{\"num_bits\": 8, \"type\": \"float\", \"block_structure\": [128, 128]}"),
       OCT_DTYPE_FP8_BLOCK},
      {CT_WEIGHTS("mxfp4-pack-quantized",
                  "{\"num_bits\": 4, \"type\": \"float\", \"group_size\": 32}"),
       OCT_DTYPE_MXFP4},
      {CT_WEIGHTS("nvfp4-pack-quantized",
                  "{\"num_bits\": 4, \"type\": \"float\", \"group_size\": 16}"),
       OCT_DTYPE_NVFP4},
      {CT_WEIGHTS("pack-quantized", "{\"num_bits\": 4, \"type\": \"int\", \"group_size\": 128}"),
       OCT_DTYPE_INT4_G128},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_test_message("%s", cases[i].quant);
    expect_types(types_of("llama-3.1-8b", cases[i].quant), cases[i].type, cases[i].type,
                 cases[i].type, cases[i].type);
  }
}

#define FP8_IGNORE(list) "{\"quant_method\": \"fp8\", \"modules_to_not_convert\": [" list "]}"

static void
test_ignored(void) {
  const oct_dtype q = OCT_DTYPE_FP8;
  /* Names that no scheme covers change nothing. */
  expect_types(types_of("qwen3-30b-a3b",
                        FP8_IGNORE("\"lm_head\", \"model.layers.0.mlp.gate\","
                                   "\"model.layers.0.input_layernorm\", \"model.embed_tokens\"")),
               q, q, q, q);
  expect_types(types_of("deepseek-v3", FP8_IGNORE("\"re:.*self_attn.*\"")), BF16, q, q, q);
  expect_types(types_of("deepseek-v3", FP8_IGNORE("\"re:.*shared_experts.*\"")), q, q, q, BF16);
  expect_types(types_of("deepseek-v3", FP8_IGNORE("\"model.layers.*.mlp.experts\"")), q, q, BF16,
               q);
  expect_types(types_of("deepseek-v3", FP8_IGNORE("\"re:.*mlp\\\\.(gate|up|down)_proj.*\"")), q,
               BF16, q, q);
  expect_types(types_of("deepseek-v3", FP8_IGNORE("\"re:.*mlp.*\"")), q, BF16, BF16, BF16);
  expect_types(types_of("deepseek-v3", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\","
                                       "\"ignore\": [\"re:.*self_attn.*\", \"lm_head\"]}"),
               BF16, OCT_DTYPE_NVFP4, OCT_DTYPE_NVFP4, OCT_DTYPE_NVFP4);
}

/* Dense layers 0, 1, 2 named one by one are the whole class; without one of them they are not. */
static void
test_ignored_by_layer(void) {
  const oct_dtype q = OCT_DTYPE_FP8;
  expect_types(types_of("deepseek-v3", FP8_IGNORE("\"model.layers.0.mlp.down_proj\","
                                                  "\"model.layers.1.mlp.down_proj\","
                                                  "\"model.layers.2.mlp.down_proj\"")),
               q, BF16, q, q);
  json_t *config = quantized("deepseek-v3", FP8_IGNORE("\"model.layers.0.mlp.down_proj\","
                                                       "\"re:.*layers\\\\.2\\\\.mlp.down_proj\""));
  expect_refused(config, OCT_MODEL_ERROR_FIELD, "dense FFN weights of 2 of 3 layers");
  json_decref(config);
}

static void
test_targets(void) {
  expect_types(
      types_of("deepseek-v3",
               "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"format\":"
               "\"mxfp4-pack-quantized\", \"targets\": [\"re:.*mlp.experts.*\"], \"weights\":"
               "{\"num_bits\": 4, \"type\": \"float\", \"group_size\": 32}}}}"),
      BF16, BF16, OCT_DTYPE_MXFP4, BF16);
}

static void
test_refused(void) {
  const struct {
    const char *quant;
    int code;
    const char *part;
  } cases[] = {
      {"{}", OCT_MODEL_ERROR_FIELD, "quantization_config.quant_method is missing"},
      {"{\"quant_method\": 1}", OCT_MODEL_ERROR_PARSE, "quant_method is 1, expected a string"},
      {"{\"quant_method\": \"bitsandbytes\"}", OCT_MODEL_ERROR_FIELD,
       "\"bitsandbytes\", supported"},
      {"{\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}", OCT_MODEL_ERROR_FIELD, "fmt is \"e5m2\""},
      {"{\"quant_method\": \"fp8\", \"weight_block_size\": [64, 128]}", OCT_MODEL_ERROR_FIELD,
       "weight_block_size is [64,128], supported is [128,128]"},
      {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128]}", OCT_MODEL_ERROR_FIELD,
       "weight_block_size is [128]"},
      {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128, \"x\"]}", OCT_MODEL_ERROR_PARSE,
       "weight_block_size[1] is \"x\""},
      {"{\"quant_method\": \"awq\", \"bits\": 8, \"group_size\": 128}", OCT_MODEL_ERROR_FIELD,
       "bits is 8, supported is 4"},
      {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 48}", OCT_MODEL_ERROR_FIELD,
       "group_size is 48, supported are 128, 64 and 32"},
      {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": -1}", OCT_MODEL_ERROR_FIELD,
       "group_size is -1"},
      {"{\"quant_method\": \"gptq\", \"bits\": 4}", OCT_MODEL_ERROR_FIELD, "group_size is missing"},
      {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"W4A8\"}", OCT_MODEL_ERROR_FIELD,
       "quant_algo is \"W4A8\""},
      {"{\"quant_method\": \"compressed-tensors\"}", OCT_MODEL_ERROR_FIELD,
       "config_groups is missing"},
      {"{\"quant_method\": \"compressed-tensors\", \"config_groups\": {}}", OCT_MODEL_ERROR_FIELD,
       "0 groups: exactly one"},
      {"{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"a\": {}, \"b\": {}}}",
       OCT_MODEL_ERROR_FIELD, "2 groups: exactly one"},
      {"{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"a\": {}}}",
       OCT_MODEL_ERROR_FIELD, "config_groups.a.weights is missing"},
      {CT_WEIGHTS("int-quantized", "{\"num_bits\": 8, \"type\": \"int\"}"), OCT_MODEL_ERROR_FIELD,
       "num_bits is 8, of type integer"},
      {CT_WEIGHTS("mxfp4-pack-quantized",
                  "{\"num_bits\": 4, \"type\": \"float\", \"group_size\": 16}"),
       OCT_MODEL_ERROR_FIELD, "group_size is 16, supported is 32"},
      {CT_WEIGHTS("pack-quantized", "{\"num_bits\": 4, \"type\": \"int\", \"group_size\": 48}"),
       OCT_MODEL_ERROR_FIELD, "group_size is 48, supported are 128, 64 and 32"},
      {CT_WEIGHTS("pack-quantized", "{\"num_bits\": 4, \"type\": \"float\", \"group_size\": 32}"),
       OCT_MODEL_ERROR_FIELD, "format pack-quantized: supported are mxfp4"},
      {FP8_IGNORE("7"), OCT_MODEL_ERROR_PARSE, "modules_to_not_convert[0] is 7, expected a string"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_test_message("%s", cases[i].quant);
    json_t *config = quantized("llama-3.1-8b", cases[i].quant);
    expect_refused(config, cases[i].code, cases[i].part);
    json_decref(config);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/model/quant/zoo-models-have-their-types", test_zoo);
  g_test_add_func("/model/quant/base-type-is-the-checkpoints", test_base_type);
  g_test_add_func("/model/quant/methods-give-their-type", test_methods);
  g_test_add_func("/model/quant/ignored-classes-stay", test_ignored);
  g_test_add_func("/model/quant/ignored-layers-must-be-all", test_ignored_by_layer);
  g_test_add_func("/model/quant/targets-name-classes", test_targets);
  g_test_add_func("/model/quant/refuses-what-it-cannot-describe", test_refused);
  return g_test_run();
}
