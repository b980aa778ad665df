/* config.json of every architecture, and what is refused: each field missing, of a wrong type, out
 * of range; text that is cut, changed, or not JSON at all.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/rng.h"
#include "tests/engine/model/models.h"

/* The fields that each architecture requires as integers of at least 1, and where they are. */
static const struct architecture {
  const char *model;
  const char *object; /* NULL: the top; "a.b" nested */
  const char *required[16];
} architectures[] = {
    {"llama-3.1-8b",
     NULL,
     {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
      "num_key_value_heads", "intermediate_size", "max_position_embeddings"}},
    {"qwen3-32b",
     NULL,
     {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
      "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings"}},
    {"qwen3-30b-a3b",
     NULL,
     {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
      "num_key_value_heads", "head_dim", "num_experts", "num_experts_per_tok",
      "moe_intermediate_size", "max_position_embeddings"}},
    {"mixtral-8x7b",
     NULL,
     {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
      "num_key_value_heads", "num_local_experts", "num_experts_per_tok", "intermediate_size",
      "max_position_embeddings"}},
    {"deepseek-v3",
     NULL,
     {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "kv_lora_rank",
      "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts",
      "num_experts_per_tok", "moe_intermediate_size", "intermediate_size",
      "max_position_embeddings"}},
    {"gpt-oss-120b",
     NULL,
     {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
      "num_key_value_heads", "head_dim", "sliding_window", "num_local_experts",
      "num_experts_per_tok", "intermediate_size", "max_position_embeddings"}},
    {"kimi-linear-48b-a3b",
     NULL,
     {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "kv_lora_rank",
      "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_experts", "num_experts_per_token",
      "moe_intermediate_size", "intermediate_size"}},
    {"kimi-linear-48b-a3b",
     "linear_attn_config",
     {"num_heads", "head_dim", "short_conv_kernel_size"}},
    {"kimi-k3",
     "text_config",
     {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "kv_lora_rank",
      "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_experts", "num_experts_per_token",
      "moe_intermediate_size", "intermediate_size", "routed_expert_hidden_size",
      "attn_res_block_size", "max_position_embeddings"}},
    {"kimi-k3",
     "text_config.linear_attn_config",
     {"num_heads", "head_dim", "short_conv_kernel_size"}},
};

/* The object "a.b" of a config; the config itself for NULL. */
static json_t *
object_at(json_t *json, const char *path) {
  g_auto(GStrv) parts = g_strsplit(path != NULL ? path : "", ".", -1);
  for (char **part = parts; *part != NULL; part++)
    json = json_object_get(json, *part);
  g_assert_true(json_is_object(json));
  return json;
}

/* Calls `check` with a fresh config, the object that holds the field, and the field's path. */
typedef void (*field_check)(json_t *config, json_t *object, const char *name, const char *path);

static void
for_each_field(field_check check) {
  for (guint i = 0; i < G_N_ELEMENTS(architectures); i++) {
    const struct architecture *a = &architectures[i];
    g_autofree char *prefix = a->object != NULL ? g_strconcat(a->object, ".", NULL) : g_strdup("");
    g_test_message("%s %s", a->model, prefix);
    for (guint f = 0; f < G_N_ELEMENTS(a->required) && a->required[f] != NULL; f++) {
      g_autofree char *path = g_strconcat("field ", prefix, a->required[f], NULL);
      json_t *config = zoo_json(a->model);
      json_t *object = object_at(config, a->object);
      g_assert_nonnull(json_object_get(object, a->required[f]));
      check(config, object, a->required[f], path);
      json_decref(config);
    }
  }
}

static void
check_missing(json_t *config, json_t *object, const char *name, const char *path) {
  g_autofree char *message = g_strconcat(path, " is missing", NULL);
  json_object_set_new(object, name, json_null());
  expect_refused(config, OCT_MODEL_ERROR_FIELD, message);
  json_object_del(object, name);
  expect_refused(config, OCT_MODEL_ERROR_FIELD, message);
}

static void
test_missing(void) {
  for_each_field(check_missing);
}

static void
check_range(json_t *config, json_t *object, const char *name, const char *path) {
  const json_int_t values[] = {
      0,         -1,        -2147483648LL,        4294967296LL, 4294967295LL,
      1LL << 31, 1LL << 62, 9223372036854775807LL};
  for (guint i = 0; i < G_N_ELEMENTS(values); i++) {
    g_autofree char *message =
        g_strdup_printf("%s is %" JSON_INTEGER_FORMAT ", allowed are 1 to ", path, values[i]);
    json_object_set_new(object, name, json_integer(values[i]));
    expect_refused(config, OCT_MODEL_ERROR_FIELD, message);
  }
}

static void
test_range(void) {
  for_each_field(check_range);
}

static void
check_types(json_t *config, json_t *object, const char *name, const char *path) {
  const struct {
    const char *json, *shown;
  } values[] = {{"64.0", "64.0"}, {"\"64\"", "\"64\""}, {"true", "true"},
                {"[]", "[]"},     {"[64]", "[64]"},     {"{\"a\":1}", "{\"a\":1}"}};
  for (guint i = 0; i < G_N_ELEMENTS(values); i++) {
    g_autofree char *message =
        g_strdup_printf("%s is %s, expected an integer", path, values[i].shown);
    json_object_set_new(object, name, json_loads(values[i].json, JSON_DECODE_ANY, NULL));
    expect_refused(config, OCT_MODEL_ERROR_PARSE, message);
  }
}

static void
test_types(void) {
  for_each_field(check_types);
}

/* Numbers that a JSON reader cannot even hold name the field too. */
static void
check_unreadable(json_t *config, json_t *object, const char *name, const char *path) {
  const char *const values[] = {"9223372036854775808", "-9223372036854775809",
                                "99999999999999999999999999", "1e999", "NaN"};
  (void)path;
  json_object_set_new(object, name, json_string("@"));
  char *text = json_dumps(config, 0);
  g_autofree char *field = g_strconcat("in field ", name, NULL);
  for (guint i = 0; i < G_N_ELEMENTS(values); i++) {
    g_autoptr(GString) changed = g_string_new(text);
    g_autoptr(GError) error = NULL;
    g_assert_cmpuint(g_string_replace(changed, "\"@\"", values[i], 0), ==, 1);
    g_assert_null(oct_model_spec_parse("test", changed->str, changed->len, &error));
    g_assert_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_PARSE);
    if (strstr(error->message, field) == NULL || strstr(error->message, values[i]) == NULL)
      g_error("'%s' names no '%s' or no '%s'", error->message, field, values[i]);
  }
  free(text);
}

static void
test_unreadable(void) {
  for_each_field(check_unreadable);
}

/* Fields whose rule is not "an integer of at least 1". */
static void
test_rules(void) {
  const struct {
    const char *model, *object, *field, *value;
    int code;
    const char *part;
  } cases[] = {
      {"llama-3.1-8b", NULL, "rms_norm_eps", "0", OCT_MODEL_ERROR_FIELD, "rms_norm_eps is 0"},
      {"llama-3.1-8b", NULL, "rms_norm_eps", "-1e-5", OCT_MODEL_ERROR_FIELD, "rms_norm_eps is -"},
      {"llama-3.1-8b", NULL, "rms_norm_eps", "\"x\"", OCT_MODEL_ERROR_PARSE, "expected a number"},
      {"llama-3.1-8b", NULL, "rms_norm_eps", "null", OCT_MODEL_ERROR_FIELD, "is missing"},
      {"llama-3.1-8b", NULL, "rope_theta", "0", OCT_MODEL_ERROR_FIELD, "rope_theta is 0"},
      {"llama-3.1-8b", NULL, "hidden_act", "\"gelu\"", OCT_MODEL_ERROR_FIELD, "\"silu\""},
      {"llama-3.1-8b", NULL, "mlp_bias", "true", OCT_MODEL_ERROR_FIELD, "mlp_bias is true"},
      {"llama-3.1-8b", NULL, "tie_word_embeddings", "1", OCT_MODEL_ERROR_PARSE, "true or false"},
      {"llama-3.1-8b", NULL, "torch_dtype", "\"int8\"", OCT_MODEL_ERROR_FIELD, "torch_dtype"},
      {"llama-3.1-8b", NULL, "bos_token_id", "128256", OCT_MODEL_ERROR_FIELD, "0 to 128255"},
      {"llama-3.1-8b", NULL, "eos_token_id", "[1, -1]", OCT_MODEL_ERROR_FIELD, "eos_token_id[1]"},
      {"llama-3.1-8b", NULL, "eos_token_id", "\"</s>\"", OCT_MODEL_ERROR_PARSE, "eos_token_id"},
      {"llama-3.1-8b", NULL, "eos_token_id", "[1,1,1,1,1,1,1,1,1]", OCT_MODEL_ERROR_FIELD,
       "at most 8"},
      {"llama-3.1-8b", NULL, "num_key_value_heads", "5", OCT_MODEL_ERROR_FIELD,
       "does not divide the 32 attention heads"},
      {"llama-3.1-8b", NULL, "num_attention_heads", "24", OCT_MODEL_ERROR_FIELD,
       "does not divide hidden_size 4096"},
      {"llama-3.1-8b", NULL, "num_attention_heads", "8388608", OCT_MODEL_ERROR_FIELD,
       "does not divide hidden_size"},
      {"qwen3-32b", NULL, "head_dim", "16777216", OCT_MODEL_ERROR_FIELD, "the limit of 16777216"},
      {"qwen3-32b", NULL, "layer_types", "[\"full_attention\"]", OCT_MODEL_ERROR_FIELD,
       "1 elements for 64 layers"},
      {"qwen3-30b-a3b", NULL, "num_experts_per_tok", "129", OCT_MODEL_ERROR_FIELD,
       "there are only 128 experts"},
      {"qwen3-30b-a3b", NULL, "decoder_sparse_step", "0", OCT_MODEL_ERROR_FIELD,
       "decoder_sparse_step is 0"},
      {"qwen3-30b-a3b", NULL, "mlp_only_layers", "[48]", OCT_MODEL_ERROR_FIELD,
       "mlp_only_layers[0] is 48, allowed are 0 to 47"},
      {"gpt-oss-120b", NULL, "layer_types", "[\"odd\"]", OCT_MODEL_ERROR_FIELD, "layer_types"},
      {"deepseek-v3", NULL, "routed_scaling_factor", "null", OCT_MODEL_ERROR_FIELD, "is missing"},
      {"deepseek-v3", NULL, "first_k_dense_replace", "null", OCT_MODEL_ERROR_FIELD, "is missing"},
      {"deepseek-v3", NULL, "moe_layer_freq", "0", OCT_MODEL_ERROR_FIELD, "moe_layer_freq is 0"},
      {"deepseek-v3", NULL, "q_lora_rank", "0", OCT_MODEL_ERROR_FIELD, "q_lora_rank is 0"},
      {"deepseek-v3", NULL, "n_shared_experts", "65536", OCT_MODEL_ERROR_FIELD,
       "65536 times 2048 is more than the limit"},
      {"kimi-k3", NULL, "text_config", "null", OCT_MODEL_ERROR_FIELD, "text_config is missing"},
      {"kimi-k3", NULL, "text_config", "7", OCT_MODEL_ERROR_PARSE, "expected an object"},
      {"kimi-k3", "text_config", "hidden_act", "\"silu\"", OCT_MODEL_ERROR_FIELD, "\"situ\""},
      {"kimi-k3", "text_config", "linear_attn_config", "null", OCT_MODEL_ERROR_FIELD,
       "text_config.linear_attn_config is missing"},
      {"kimi-k3", "text_config.linear_attn_config", "kda_layers", "null", OCT_MODEL_ERROR_FIELD,
       "kda_layers is missing"},
      {"kimi-k3", "text_config.linear_attn_config", "kda_layers", "[1, 4]", OCT_MODEL_ERROR_FIELD,
       "names layer 4 a second time"},
      {"kimi-k3", "text_config.linear_attn_config", "kda_layers", "[1, 2]", OCT_MODEL_ERROR_FIELD,
       "names layer 3"},
      {"kimi-k3", "text_config.linear_attn_config", "kda_layers", "[0]", OCT_MODEL_ERROR_FIELD,
       "kda_layers[0] is 0, allowed are 1 to 93"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    json_t *config = zoo_json(cases[i].model);
    json_t *value = json_loads(cases[i].value, JSON_DECODE_ANY, NULL);
    g_test_message("%s %s %s", cases[i].model, cases[i].field, cases[i].value);
    g_assert_nonnull(value);
    json_object_set_new(object_at(config, cases[i].object), cases[i].field, value);
    expect_refused(config, cases[i].code, cases[i].part);
    json_decref(config);
  }
}

static void
test_architecture(void) {
  json_t *config = zoo_json("llama-3.1-8b");
  json_object_set_new(config, "model_type", json_string("gpt_neox"));
  expect_refused(config, OCT_MODEL_ERROR_ARCHITECTURE,
                 "field model_type is \"gpt_neox\", an unknown architecture; known are llama, ");
  json_object_set_new(config, "model_type", json_integer(3));
  expect_refused(config, OCT_MODEL_ERROR_PARSE, "model_type is 3, expected a string");
  json_object_del(config, "model_type");
  expect_refused(config, OCT_MODEL_ERROR_FIELD, "field model_type is missing");
  json_decref(config);
}

/* Each field at its limit, all at once: refused as a whole before any sum can overflow. */
static void
test_too_large(void) {
  json_t *config = zoo_json("qwen3-30b-a3b");
  json_object_set_new(config, "hidden_size", json_integer(OCT_MODEL_DIM_MAX));
  json_object_set_new(config, "moe_intermediate_size", json_integer(OCT_MODEL_DIM_MAX));
  json_object_set_new(config, "num_experts", json_integer(OCT_MODEL_EXPERTS_MAX));
  json_object_set_new(config, "num_hidden_layers", json_integer(OCT_MODEL_LAYERS_MAX));
  expect_refused(config, OCT_MODEL_ERROR_FIELD, "parameters, more than the limit of 9.01e+15");
  json_decref(config);
}

/* "NAME+FORMAT" changes what schemes of quantisation cover, and nothing else. */
static void
test_formats(void) {
  static const oct_dtype types[] = {OCT_DTYPE_FP8,     OCT_DTYPE_FP8_BLOCK, OCT_DTYPE_MXFP4,
                                    OCT_DTYPE_NVFP4,   OCT_DTYPE_INT4_G128, OCT_DTYPE_INT4_G64,
                                    OCT_DTYPE_INT4_G32};
  for (guint i = 0; i < G_N_ELEMENTS(types); i++) {
    g_autofree char *name = g_strconcat("qwen3-30b-a3b+", oct_dtype_name(types[i]), NULL);
    g_autoptr(oct_model_spec) spec = load_zoo(name);
    g_assert_cmpstr(spec->name, ==, name);
    g_assert_cmpint(spec->types.attention, ==, types[i]);
    g_assert_cmpint(spec->types.dense_ffn, ==, types[i]);
    g_assert_cmpint(spec->types.expert, ==, types[i]);
    g_assert_cmpint(spec->types.router, ==, OCT_DTYPE_BF16);
    g_assert_cmpint(spec->types.head, ==, OCT_DTYPE_BF16);
  }
  static const char *const refused[] = {"qwen3-30b-a3b+fp9", "qwen3-30b-a3b+", "+fp8",
                                        "qwen3-30b-a3b+fp8+fp8"};
  for (guint i = 0; i < G_N_ELEMENTS(refused); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_model_spec_load(refused[i], NULL, &error));
    g_assert_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_NOT_FOUND);
  }
}

/* "NAME+8layers" is the beginning of a model; what only later layers have is not in it. */
static void
test_layers(void) {
  g_autoptr(oct_model_spec) whole = load_zoo("kimi-k3");
  g_autoptr(oct_model_spec) some = load_zoo("kimi-k3+8layers");
  g_assert_cmpstr(some->name, ==, "kimi-k3+8layers");
  g_assert_cmpuint(some->n_layers, ==, 8);
  g_assert_cmpuint(some->vocab, ==, whole->vocab);
  g_assert_cmpint(some->types.expert, ==, OCT_DTYPE_MXFP4);
  for (guint32 l = 0; l < 8; l++) {
    g_assert_cmpint(some->attention[some->layers[l].attention].kind, ==,
                    whole->attention[whole->layers[l].attention].kind);
    g_assert_cmpint(some->ffn[some->layers[l].ffn].kind, ==, whole->ffn[whole->layers[l].ffn].kind);
  }
  g_autoptr(oct_model_spec) one = load_zoo("kimi-k3+1layers+fp8");
  g_assert_cmpstr(one->name, ==, "kimi-k3+1layers+fp8");
  g_assert_cmpuint(one->n_attention, ==, 1);
  g_assert_cmpuint(one->n_ffn, ==, 1);
  g_assert_false(oct_model_has_experts(one));
  g_assert_cmpint(one->types.dense_ffn, ==, OCT_DTYPE_FP8);
  static const char *const refused[] = {"kimi-k3+0layers", "kimi-k3+layers", "kimi-k3+8layer",
                                        "kimi-k3+8layers+8layers", "kimi-k3+fp8+8layers"};
  for (guint i = 0; i < G_N_ELEMENTS(refused); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_model_spec_load(refused[i], NULL, &error));
    g_assert_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_NOT_FOUND);
    g_assert_nonnull(strstr(error->message, "is neither +Nlayers, N from 1 to 512, nor"));
  }
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_model_spec_load("kimi-k3+94layers", NULL, &error));
  g_assert_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_FIELD);
  g_assert_nonnull(strstr(error->message, "94 layers are wanted, it has 93"));
}

static void
test_families(void) {
  g_autoptr(oct_model_spec) k3 = load_zoo("kimi-k3");
  g_assert_cmpstr(k3->name, ==, "kimi-k3");
  g_assert_cmpstr(k3->architecture, ==, "kimi_k3");
  g_assert_cmpint(k3->activation, ==, OCT_ACTIVATION_SITU);
  g_assert_cmpuint(k3->attn_res_block, ==, 12);
  g_assert_cmpuint(k3->max_position, ==, 1048576);
  g_assert_cmpuint(k3->bos_token, ==, 163584);
  g_assert_cmpuint(k3->n_eos_tokens, ==, 1);
  g_assert_cmpuint(k3->eos_tokens[0], ==, 163586);
  g_assert_cmpfloat(k3->rope_theta, ==, 0);
  g_assert_cmpuint(k3->attention[0].output_gate_rank, ==, 0);
  g_assert_true(k3->attention[1].output_gate);
  g_assert_cmpint(k3->ffn[0].kind, ==, OCT_FFN_DENSE);
  g_assert_cmpint(k3->ffn[1].kind, ==, OCT_FFN_LATENT_MOE);
  g_assert_cmpuint(k3->ffn[1].shared_intermediate, ==, 6144);
  g_assert_cmpuint(k3->layers[0].ffn, ==, 0);
  g_assert_cmpuint(k3->layers[1].ffn, ==, 1);

  g_autoptr(oct_model_spec) linear = load_zoo("kimi-linear-48b-a3b");
  g_assert_cmpuint(linear->attention[0].output_gate_rank, ==, 128);
  g_assert_cmpuint(linear->attention[1].q_lora, ==, 0);
  g_assert_false(linear->attention[1].output_gate);
  g_assert_cmpuint(linear->max_position, ==, 1048576);
  g_assert_cmpint(linear->ffn[1].kind, ==, OCT_FFN_MOE);

  g_autoptr(oct_model_spec) llama = load_zoo("llama-3.1-8b");
  g_assert_cmpuint(llama->attention[0].head_dim, ==, 128);
  g_assert_cmpuint(llama->n_eos_tokens, ==, 3);
  g_assert_cmpuint(llama->eos_tokens[2], ==, 128009);
  g_assert_cmpfloat(llama->rope_theta, ==, 500000);
  g_assert_false(llama->tied_embeddings);

  g_autoptr(oct_model_spec) oss = load_zoo("gpt-oss-120b");
  g_assert_cmpuint(oss->bos_token, ==, OCT_MODEL_TOKEN_NONE);
  g_assert_cmpint(oss->activation, ==, OCT_ACTIVATION_SWIGLU_CLAMPED);
  g_assert_true(oss->attention[0].sinks && oss->attention[0].qkv_bias && oss->attention[0].o_bias);

  g_autoptr(oct_model_spec) v3 = load_zoo("deepseek-v3");
  g_assert_cmpint(v3->ffn[v3->layers[2].ffn].kind, ==, OCT_FFN_DENSE);
  g_assert_cmpint(v3->ffn[v3->layers[3].ffn].kind, ==, OCT_FFN_MOE);
  g_assert_cmpfloat_with_epsilon(v3->ffn[v3->layers[3].ffn].routed_scaling, 2.5, 1e-6);
}

/* Spellings of transformers 5, and fields that are left out or null. */
static void
test_small(void) {
  g_autoptr(oct_model_spec) moe = load_small("qwen3-moe");
  g_assert_cmpint(moe->ffn[moe->layers[0].ffn].kind, ==, OCT_FFN_MOE);
  g_assert_cmpint(moe->ffn[moe->layers[1].ffn].kind, ==, OCT_FFN_DENSE);
  g_assert_cmpuint(moe->ffn[moe->layers[0].ffn].n_experts, ==, 8);
  g_assert_cmpuint(moe->attention[0].head_dim, ==, 32);
  g_assert_true(moe->attention[0].qk_norm);
  g_assert_cmpfloat(moe->rope_theta, ==, 10000);
  g_autoptr(oct_model_spec) mixtral = load_small("mixtral");
  g_assert_cmpuint(mixtral->attention[0].head_dim, ==, 16);
  g_autoptr(oct_model_spec) qwen2 = load_small("qwen2-bias");
  g_assert_true(qwen2->attention[0].qkv_bias && !qwen2->attention[0].o_bias);
  g_assert_true(qwen2->tied_embeddings);
  g_autoptr(oct_model_spec) linear = load_small("tiny-linear");
  g_assert_cmpuint(linear->attention[0].n_heads, ==, 3);
  g_assert_cmpuint(linear->attention[1].n_heads, ==, 4);
}

/* A window on all layers, on the later ones, and by list. */
static void
test_windows(void) {
  json_t *config = zoo_json("mixtral-8x7b");
  json_object_set_new(config, "sliding_window", json_integer(4096));
  g_autoptr(oct_model_spec) mixtral = parse_json(config, NULL);
  g_assert_cmpuint(mixtral->n_attention, ==, 1);
  g_assert_cmpint(mixtral->attention[0].kind, ==, OCT_ATTENTION_WINDOW);
  g_assert_cmpuint(mixtral->attention[0].window, ==, 4096);
  json_decref(config);

  config = zoo_json("qwen3-32b");
  json_object_set_new(config, "use_sliding_window", json_true());
  json_object_set_new(config, "max_window_layers", json_integer(60));
  expect_refused(config, OCT_MODEL_ERROR_FIELD, "field sliding_window is missing");
  json_object_set_new(config, "sliding_window", json_integer(512));
  g_autoptr(oct_model_spec) qwen = parse_json(config, NULL);
  g_assert_cmpuint(qwen->n_attention, ==, 2);
  g_assert_cmpint(qwen->attention[qwen->layers[59].attention].kind, ==, OCT_ATTENTION_GQA);
  g_assert_cmpint(qwen->attention[qwen->layers[60].attention].kind, ==, OCT_ATTENTION_WINDOW);
  json_decref(config);

  config = zoo_json("gpt-oss-120b");
  json_object_del(config, "layer_types");
  g_autoptr(oct_model_spec) alternating = parse_json(config, NULL);
  g_autoptr(oct_model_spec) listed = load_zoo("gpt-oss-120b");
  g_assert_cmpint(alternating->attention[0].kind, ==, OCT_ATTENTION_WINDOW);
  g_assert_cmpmem(alternating->layers, 36 * sizeof *listed->layers, listed->layers,
                  36 * sizeof *listed->layers);
  json_decref(config);
}

/* Every second layer sparse, the odd ones. */
static void
test_sparse_step(void) {
  json_t *config = zoo_json("qwen3-30b-a3b");
  json_object_set_new(config, "decoder_sparse_step", json_integer(2));
  g_autoptr(oct_model_spec) spec = parse_json(config, NULL);
  for (guint32 l = 0; l < spec->n_layers; l++)
    g_assert_cmpint(spec->ffn[spec->layers[l].ffn].kind, ==,
                    l % 2 == 1 ? OCT_FFN_MOE : OCT_FFN_DENSE);
  g_assert_cmpuint(spec->ffn[spec->layers[0].ffn].intermediate, ==, 6144);
  json_object_del(config, "intermediate_size");
  expect_refused(config, OCT_MODEL_ERROR_FIELD, "field intermediate_size is missing");
  json_decref(config);
}

/* Every prefix of a config is refused. */
static void
test_truncated(void) {
  json_t *config = zoo_json("kimi-k3");
  char *text = json_dumps(config, JSON_INDENT(1));
  gsize size = strlen(text);
  for (gsize n = 0; n < size; n++) {
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_model_spec_parse("cut", text, n, &error));
    g_assert_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_PARSE);
    g_assert_nonnull(strstr(error->message, "cut:"));
  }
  free(text);
  json_decref(config);
}

/* A changed byte gives a model within its limits, or an error; all inspectors survive the former.
 */
static void
test_changed(void) {
  oct_rng rng;
  const guint64 seed = 20260701;
  g_test_message("seed %" G_GUINT64_FORMAT, seed);
  oct_rng_seed(&rng, seed, 0);
  for (guint i = 0; i < 4000; i++) {
    json_t *config = zoo_json(architectures[i % G_N_ELEMENTS(architectures)].model);
    char *text = json_dumps(config, 0);
    gsize size = strlen(text);
    g_autoptr(GError) error = NULL;
    for (guint64 change = oct_rng_below(&rng, 3) + 1; change > 0; change--)
      text[oct_rng_below(&rng, size)] = "0123456789-.e\"[]{},:\x80"[oct_rng_below(&rng, 21)];
    g_autoptr(oct_model_spec) spec = oct_model_spec_parse("changed", text, size, &error);
    g_assert_true((spec == NULL) == (error != NULL));
    if (spec != NULL) {
      oct_weights weights;
      oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
      oct_model_weights(spec, &weights);
      g_assert_cmpuint(oct_weights_total(&weights).parameters, <=, OCT_MODEL_PARAMETERS_MAX);
      g_assert_cmpuint(oct_model_groups(spec, OCT_DTYPE_BF16, groups), >=, 1);
      g_assert_cmpuint(oct_model_active_parameters(spec), <=, 2 * OCT_MODEL_PARAMETERS_MAX);
    }
    free(text);
    json_decref(config);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/model/config/a-missing-field-is-named", test_missing);
  g_test_add_func("/model/config/a-value-out-of-range-is-shown", test_range);
  g_test_add_func("/model/config/a-wrong-type-is-shown", test_types);
  g_test_add_func("/model/config/an-unreadable-number-names-its-field", test_unreadable);
  g_test_add_func("/model/config/field-rules-hold", test_rules);
  g_test_add_func("/model/config/an-unknown-architecture-is-named", test_architecture);
  g_test_add_func("/model/config/a-model-too-large-is-refused", test_too_large);
  g_test_add_func("/model/config/zoo-models-have-their-features", test_families);
  g_test_add_func("/model/config/a-name-can-say-the-format-of-weights", test_formats);
  g_test_add_func("/model/config/a-name-can-say-how-many-layers", test_layers);
  g_test_add_func("/model/config/small-models-have-theirs", test_small);
  g_test_add_func("/model/config/windows-by-rule-and-by-list", test_windows);
  g_test_add_func("/model/config/sparse-layers-by-step", test_sparse_step);
  g_test_add_func("/model/config/a-truncated-config-is-refused", test_truncated);
  g_test_add_func("/model/config/a-changed-byte-never-breaks", test_changed);
  return g_test_run();
}
