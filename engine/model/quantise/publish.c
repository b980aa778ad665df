/* config.json, and the files that go with a checkpoint as they are. */
#include <jansson.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/file.h"
#include "engine/model/fields.h"
#include "engine/model/quantise/internal.h"

/* --- config.json ---------------------------------------------------------------------------------
 */

/* What a GGUF file's keys stand for, with the class that other engines look for. */
static json_t *
config_of_gguf(const oct_model_files *source, GError **error) {
  static const struct {
    const char *model_type, *class;
  } classes[] = {{"llama", "LlamaForCausalLM"},
                 {"mixtral", "MixtralForCausalLM"},
                 {"qwen2", "Qwen2ForCausalLM"},
                 {"qwen3", "Qwen3ForCausalLM"},
                 {"qwen3_moe", "Qwen3MoeForCausalLM"}};
  g_autofree char *text = oct_model_config_from_gguf(source->checkpoint, error);
  if (text == NULL)
    return NULL;
  json_t *config = json_loads(text, 0, NULL);
  const char *type = json_string_value(json_object_get(config, "model_type"));
  for (guint i = 0; i < G_N_ELEMENTS(classes); i++)
    if (g_strcmp0(type, classes[i].model_type) == 0)
      json_object_set_new(config, "architectures", json_pack("[s]", classes[i].class));
  /* Older engines know the name that these fields had before. */
  json_t *rope = json_object_get(config, "rope_parameters");
  json_object_set(config, "rope_theta", json_object_get(rope, "rope_theta"));
  const char *kind = json_string_value(json_object_get(rope, "rope_type"));
  if (g_strcmp0(kind, "default") != 0)
    json_object_set(config, "rope_scaling", rope);
  json_object_del(config, "dtype");
  return config;
}

static json_t *
config_of_file(const oct_model_files *source, GError **error) {
  g_autofree char *folder = g_path_get_dirname(oct_checkpoint_path(source->checkpoint));
  g_autofree char *path = g_build_filename(folder, "config.json", NULL);
  g_autofree char *text = NULL;
  gsize size;
  if (!oct_file_read(path, OCT_FIELDS_BYTES_MAX, &text, &size, error)) {
    g_prefix_error(error, "%s: ", path);
    return NULL;
  }
  json_error_t where;
  json_t *config = json_loadb(text, size, 0, &where);
  if (json_is_object(config))
    return config;
  json_decref(config);
  g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_FORMAT, "%s: not an object of JSON: %s", path,
              where.text);
  return NULL;
}

static json_t *
names_of(const GPtrArray *skipped) {
  json_t *list = json_array();
  for (guint i = 0; i < skipped->len; i++)
    json_array_append_new(list, json_string(g_ptr_array_index(skipped, i)));
  return list;
}

static json_t *
quantization(const oct_convert_options *o, const GPtrArray *skipped) {
  switch (o->format) {
  case OCT_CONVERT_AWQ:
    return json_pack("{s:s, s:i, s:i, s:b, s:s, s:o}", "quant_method", "awq", "bits", 4,
                     "group_size", (int)o->group, "zero_point", 1, "version", "gemm",
                     "modules_to_not_convert", names_of(skipped));
  case OCT_CONVERT_FP8:
    return json_pack("{s:s, s:s, s:s, s:o}", "quant_method", "fp8", "fmt", "e4m3",
                     "activation_scheme", "dynamic", "modules_to_not_convert", names_of(skipped));
  case OCT_CONVERT_FP8_BLOCK:
    return json_pack("{s:s, s:s, s:s, s:[i, i], s:o}", "quant_method", "fp8", "fmt", "e4m3",
                     "activation_scheme", "dynamic", "weight_block_size", 128, 128,
                     "modules_to_not_convert", names_of(skipped));
  case OCT_CONVERT_MXFP4:
    return json_pack("{s:s, s:s, s:s, s:{s:{s:s, s:n, s:[s], s:{s:i, s:s, s:i, s:s, s:s, s:b, "
                     "s:b}}}, s:o, s:n}",
                     "quant_method", "compressed-tensors", "format", "mxfp4-pack-quantized",
                     "quantization_status", "compressed", "config_groups", "group_0", "format",
                     "mxfp4-pack-quantized", "input_activations", "targets", "Linear", "weights",
                     "num_bits", 4, "type", "float", "group_size", 32, "strategy", "group",
                     "scale_dtype", "torch.uint8", "symmetric", 1, "dynamic", 0, "ignore",
                     names_of(skipped), "kv_cache_scheme");
  case OCT_CONVERT_FORMATS:
    break;
  }
  oct_assert_failed(__FILE__, __LINE__, "a format to convert to");
}

gboolean
oct_publish_config(const oct_model_files *source, const oct_convert_options *o,
                   const GPtrArray *skipped, const char *folder, GError **error) {
  gboolean gguf = oct_checkpoint_format(source->checkpoint) == OCT_LOAD_GGUF;
  json_t *config = gguf ? config_of_gguf(source, error) : config_of_file(source, error);
  if (config == NULL)
    return FALSE;
  oct_dtype kept = o->kept != OCT_DTYPE_NONE ? o->kept : gguf ? OCT_DTYPE_BF16 : OCT_DTYPE_NONE;
  if (kept != OCT_DTYPE_NONE) { /* the older name too where the config has it, or has none */
    if (json_object_get(config, "dtype") != NULL)
      json_object_set_new(config, "dtype", json_string(oct_dtype_name(kept)));
    else
      json_object_set_new(config, "torch_dtype", json_string(oct_dtype_name(kept)));
  }
  json_object_del(config, "compression_config");
  json_t *quant = quantization(o, skipped);
  oct_assert(quant != NULL);
  json_object_set_new(config, "quantization_config", quant);
  char *text = json_dumps(config, JSON_INDENT(2));
  g_autofree char *whole = g_strconcat(text, "\n", NULL);
  g_autofree char *path = g_build_filename(folder, "config.json", NULL);
  free(text);
  json_decref(config);
  return g_file_set_contents(path, whole, -1, error);
}

/* --- the rest ------------------------------------------------------------------------------------
 */

gboolean
oct_publish_beside(const oct_model_files *source, const char *folder, GError **error) {
  static const char *const names[] = {"tokenizer.json",
                                      "tokenizer_config.json",
                                      "tokenizer.model",
                                      "tiktoken.model",
                                      "vocab.json",
                                      "merges.txt",
                                      "added_tokens.json",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "special_tokens_map.json",
                                      "generation_config.json"};
  g_autofree char *from = g_path_get_dirname(oct_checkpoint_path(source->checkpoint));
  if (oct_checkpoint_format(source->checkpoint) == OCT_LOAD_GGUF)
    return TRUE;
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autofree char *old = g_build_filename(from, names[i], NULL);
    g_autofree char *new = g_build_filename(folder, names[i], NULL);
    g_autofree char *text = NULL;
    gsize size;
    if (!g_file_test(old, G_FILE_TEST_EXISTS))
      continue;
    if (!g_file_get_contents(old, &text, &size, error) ||
        !g_file_set_contents(new, text, (gssize)size, error))
      return FALSE;
  }
  return TRUE;
}
