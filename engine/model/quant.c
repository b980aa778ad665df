/* How checkpoints say which weights are quantized.
 *
 *   fp8                  DeepSeek and Qwen: e4m3, weight_block_size [128, 128] or one scale per
 * tensor compressed-tensors   config_groups with format, bits and group size; `ignore` names what
 * is left mxfp4                gpt-oss: the experts only awq, gptq            4 bit in groups of
 * 128 modelopt             NVFP4 or FP8, `ignore` as above
 *
 * A spec has one type per class of weight. A scheme covers attention, dense FFN, experts and shared
 * experts; router, latent projections, embedding and head stay in the checkpoint's own type in
 * every published checkpoint. `ignore` and modules_to_not_convert take classes out again. Their
 * entries are module names, globs or regular expressions; they are searched for the name of a
 * class's module and never run as patterns. Entries that name single layers must together name all
 * layers that have the class, because a spec cannot say "attention of layer 3 only".
 */
#include "engine/model/quant.h"

#include <string.h>

#include "engine/base/assert.h"

/* Entries of an ignore list: at most every module of every layer. */
#define IGNORE_MAX 65536

typedef enum quant_class {
  QUANT_ATTENTION,
  QUANT_DENSE,
  QUANT_EXPERT,
  QUANT_SHARED,
  QUANT_CLASSES
} quant_class;

static const char *const class_names[QUANT_CLASSES] = {"attention", "dense FFN", "expert",
                                                       "shared expert"};

/* What an ignore list takes out of each class. */
typedef struct ignored {
  gboolean whole[QUANT_CLASSES];
  guint8 layers[QUANT_CLASSES][OCT_MODEL_LAYERS_MAX];
} ignored;

/* A set of classes. */
typedef guint quant_classes;
#define QUANT_BIT(class) (1u << (class))

/* The classes that an entry's text speaks of; none for a module that no scheme covers anyway
 * (router, norm, head, vision tower…). More specific names are looked for first. */
static quant_classes
entry_classes(const char *entry) {
  if (strstr(entry, "vision") != NULL || strstr(entry, "visual") != NULL ||
      strstr(entry, "mm_projector") != NULL || strstr(entry, "norm") != NULL ||
      strstr(entry, "shared_expert_gate") != NULL)
    return 0;
  if (strstr(entry, "self_attn") != NULL || strstr(entry, "attention") != NULL)
    return QUANT_BIT(QUANT_ATTENTION);
  if (strstr(entry, "shared_expert") != NULL)
    return QUANT_BIT(QUANT_SHARED);
  if (strstr(entry, "experts") != NULL)
    return QUANT_BIT(QUANT_EXPERT);
  if (g_str_has_suffix(entry, "mlp") || g_str_has_suffix(entry, "mlp.*") ||
      g_str_has_suffix(entry, "mlp*"))
    return QUANT_BIT(QUANT_DENSE) | QUANT_BIT(QUANT_EXPERT) | QUANT_BIT(QUANT_SHARED);
  if (strstr(entry, "mlp") != NULL && strstr(entry, "_proj") != NULL)
    return QUANT_BIT(QUANT_DENSE);
  return 0;
}

/* The number behind "layers." (also written "layers\\."), or -1 when the entry names no layer. */
static gint
entry_layer(const char *entry) {
  const char *at = strstr(entry, "layers");
  if (at == NULL)
    return -1;
  at += strlen("layers");
  while (*at == '\\' || *at == '.')
    at++;
  if (!g_ascii_isdigit(*at))
    return -1;
  guint64 layer = g_ascii_strtoull(at, NULL, 10);
  return layer < OCT_MODEL_LAYERS_MAX ? (gint)layer : -1;
}

static void
read_ignored(oct_fields *fields, const char *name, ignored *out) {
  const json_t *list = oct_fields_array_or(fields, name, IGNORE_MAX);
  for (gsize i = 0; list != NULL && i < json_array_size(list); i++) {
    const char *entry = oct_fields_element_string(fields, name, list, i);
    quant_classes classes = entry_classes(entry);
    gint layer = entry_layer(entry);
    for (guint class = 0; class < QUANT_CLASSES; class ++) {
      if ((classes & QUANT_BIT(class)) == 0)
        continue;
      if (layer < 0)
        out->whole[class] = TRUE;
      else
        out->layers[class][layer] = 1;
    }
  }
}

static gboolean
layer_has_class(const oct_model_spec *spec, guint32 layer, quant_class class) {
  const oct_ffn_spec *f = &spec->ffn[spec->layers[layer].ffn];
  switch (class) {
  case QUANT_ATTENTION:
    return TRUE;
  case QUANT_DENSE:
    return f->kind == OCT_FFN_DENSE;
  case QUANT_EXPERT:
    return f->kind != OCT_FFN_DENSE;
  case QUANT_SHARED:
    return f->kind != OCT_FFN_DENSE && f->shared_intermediate > 0;
  case QUANT_CLASSES:
    break;
  }
  oct_assert_failed(__FILE__, __LINE__, "a quantized class");
}

/* TRUE when the class stays unquantized in every layer. */
static gboolean
class_is_ignored(oct_fields *fields, const char *name, const oct_model_spec *spec,
                 const ignored *skip, quant_class class) {
  if (skip->whole[class])
    return TRUE;
  guint n = 0, n_named = 0;
  for (guint32 layer = 0; layer < spec->n_layers; layer++)
    if (layer_has_class(spec, layer, class)) {
      n++;
      n_named += skip->layers[class][layer];
    }
  if (n_named == 0)
    return FALSE;
  if (n_named < n)
    oct_fields_fail(fields, name, OCT_MODEL_ERROR_FIELD,
                    "which keeps the %s weights of %u of %u layers unquantized: all or none are "
                    "supported",
                    class_names[class], n_named, n);
  return TRUE;
}

static void
apply(oct_fields *fields, const char *name, const ignored *skip, oct_dtype type,
      oct_model_spec *spec) {
  oct_dtype *types[QUANT_CLASSES] = {&spec->types.attention, &spec->types.dense_ffn,
                                     &spec->types.expert, &spec->types.shared_expert};
  for (guint class = 0; class < QUANT_CLASSES; class ++)
    if (!class_is_ignored(fields, name, spec, skip, (quant_class) class))
      *types[class] = type;
}

/* TRUE for an array [128, 128]; anything else is an error. */
static void
require_blocks_of_128(oct_fields *fields, const char *name, const json_t *block) {
  if (json_array_size(block) != 2 ||
      oct_fields_element_u32(fields, name, block, 0, 1, OCT_MODEL_DIM_MAX) != 128 ||
      oct_fields_element_u32(fields, name, block, 1, 1, OCT_MODEL_DIM_MAX) != 128)
    oct_fields_fail(fields, name, OCT_MODEL_ERROR_FIELD, "supported is [128,128]");
}

static oct_dtype
read_fp8(oct_fields *fields) {
  const char *format = oct_fields_string_or(fields, "fmt", "e4m3");
  if (!g_str_equal(format, "e4m3"))
    oct_fields_fail(fields, "fmt", OCT_MODEL_ERROR_FIELD, "supported is \"e4m3\"");
  const json_t *block = oct_fields_array_or(fields, "weight_block_size", 2);
  if (block == NULL)
    return OCT_DTYPE_FP8;
  require_blocks_of_128(fields, "weight_block_size", block);
  return OCT_DTYPE_FP8_BLOCK;
}

/* NONE: no such type. */
static oct_dtype
int4_of(guint32 group) {
  static const oct_dtype types[] = {OCT_DTYPE_INT4_G128, OCT_DTYPE_INT4_G64, OCT_DTYPE_INT4_G32};
  for (guint i = 0; i < G_N_ELEMENTS(types); i++)
    if (oct_dtype_int4_group(types[i]) == group)
      return types[i];
  return OCT_DTYPE_NONE;
}

/* awq: {"bits" or "w_bit": 4, "group_size" or "q_group_size": 128, "version": "gemm"}; gptq: bits,
 * group_size and checkpoint_format, whose second version stores zeros as they are. */
static oct_dtype
read_int4(oct_fields *fields, gboolean awq, oct_model_spec *spec) {
  const char *bits = oct_fields_has(fields, "w_bit") ? "w_bit" : "bits";
  const char *group = oct_fields_has(fields, "q_group_size") ? "q_group_size" : "group_size";
  if (oct_fields_u32(fields, bits, 1, 64) != 4)
    oct_fields_fail(fields, bits, OCT_MODEL_ERROR_FIELD, "supported is 4");
  oct_dtype type = int4_of(oct_fields_u32(fields, group, 1, OCT_MODEL_DIM_MAX));
  if (type == OCT_DTYPE_NONE)
    oct_fields_fail(fields, group, OCT_MODEL_ERROR_FIELD, "supported are 128, 64 and 32");
  const char *field = awq ? "version" : "checkpoint_format", *plain = awq ? "gemm" : "gptq";
  const char *version = oct_fields_string_or(fields, field, plain);
  spec->gptq_v2 = !awq && g_str_equal(version, "gptq_v2");
  if (g_ascii_strcasecmp(version, plain) != 0 && !spec->gptq_v2)
    oct_fields_fail(fields, field, OCT_MODEL_ERROR_FIELD, "supported is \"%s\"%s", plain,
                    awq ? "" : " and \"gptq_v2\"");
  return type;
}

/* `weights` of a compressed-tensors group: 4-bit float in groups of 32 (mxfp4) or 16 (nvfp4), 4-bit
 * integer in groups of 128, or 8-bit float per tensor, per channel or in blocks. */
static oct_dtype
read_group_weights(oct_fields *weights, const char *format) {
  guint32 bits = oct_fields_u32(weights, "num_bits", 1, 64);
  const char *type = oct_fields_string_or(weights, "type", "int");
  gboolean is_float = g_str_equal(type, "float");
  if (bits == 8 && is_float) {
    const json_t *block = oct_fields_array_or(weights, "block_structure", 2);
    if (block == NULL)
      return OCT_DTYPE_FP8;
    require_blocks_of_128(weights, "block_structure", block);
    return OCT_DTYPE_FP8_BLOCK;
  }
  if (bits != 4) {
    oct_fields_fail(weights, "num_bits", OCT_MODEL_ERROR_FIELD,
                    "of type %s: supported are 4-bit and 8-bit float, and 4-bit integer",
                    is_float ? "float" : "integer");
    return OCT_DTYPE_NONE;
  }
  guint32 size = oct_fields_u32(weights, "group_size", 1, OCT_MODEL_DIM_MAX);
  gboolean mx = g_str_has_prefix(format, "mxfp4"), nv = g_str_has_prefix(format, "nvfp4");
  if (!is_float) {
    oct_dtype grouped = int4_of(size);
    if (grouped == OCT_DTYPE_NONE)
      oct_fields_fail(weights, "group_size", OCT_MODEL_ERROR_FIELD, "supported are 128, 64 and 32");
    return grouped;
  }
  guint32 expected = mx ? 32 : 16;
  if (!mx && !nv)
    oct_fields_fail(weights, "type", OCT_MODEL_ERROR_FIELD,
                    "format %s: supported are mxfp4-pack-quantized and nvfp4-pack-quantized",
                    format);
  else if (size != expected)
    oct_fields_fail(weights, "group_size", OCT_MODEL_ERROR_FIELD, "supported is %u", expected);
  return mx ? OCT_DTYPE_MXFP4 : OCT_DTYPE_NVFP4;
}

/* Takes the classes that a group does not target out. "Linear" targets all. */
static void
read_targets(oct_fields *group, ignored *skip) {
  const json_t *targets = oct_fields_array_or(group, "targets", IGNORE_MAX);
  quant_classes classes = targets == NULL ? ~0u : 0;
  for (gsize i = 0; targets != NULL && i < json_array_size(targets); i++) {
    const char *target = oct_fields_element_string(group, "targets", targets, i);
    classes |= g_str_equal(target, "Linear") ? ~0u : entry_classes(target);
  }
  for (guint class = 0; class < QUANT_CLASSES; class ++)
    if ((classes & QUANT_BIT(class)) == 0)
      skip->whole[class] = TRUE;
}

static oct_dtype
read_compressed_tensors(oct_fields *fields, ignored *skip) {
  oct_fields groups, group, weights;
  if (!oct_fields_object(fields, "config_groups", &groups))
    return OCT_DTYPE_NONE;
  const char *name = json_object_iter_key(json_object_iter((json_t *)groups.object));
  if (name == NULL || json_object_size(groups.object) != 1) {
    oct_fields_fail(fields, "config_groups", OCT_MODEL_ERROR_FIELD,
                    "%" G_GSIZE_FORMAT " groups: exactly one is supported",
                    json_object_size(groups.object));
    return OCT_DTYPE_NONE;
  }
  if (!oct_fields_object(&groups, name, &group) || !oct_fields_object(&group, "weights", &weights))
    return OCT_DTYPE_NONE;
  read_targets(&group, skip);
  const char *outer = oct_fields_string_or(fields, "format", "");
  return read_group_weights(&weights, oct_fields_string_or(&group, "format", outer));
}

static oct_dtype
read_modelopt(oct_fields *fields) {
  const char *algorithm = oct_fields_string(fields, "quant_algo");
  if (g_str_equal(algorithm, "NVFP4"))
    return OCT_DTYPE_NVFP4;
  if (!g_str_equal(algorithm, "FP8"))
    oct_fields_fail(fields, "quant_algo", OCT_MODEL_ERROR_FIELD,
                    "supported are \"NVFP4\" and \"FP8\"");
  return OCT_DTYPE_FP8;
}

void
oct_quant_read(oct_fields *fields, oct_dtype base, oct_model_spec *spec) {
  spec->types = (oct_weight_types){base, base, base, base, base, base, base, base, base};
  oct_fields quant;
  const char *name =
      oct_fields_has(fields, "compression_config") ? "compression_config" : "quantization_config";
  if (!oct_fields_object_or(fields, name, &quant))
    return;
  const char *method = oct_fields_string(&quant, "quant_method");
  const char *list = "modules_to_not_convert";
  oct_dtype type = OCT_DTYPE_NONE;
  ignored skip = {0};
  if (g_str_equal(method, "fp8")) {
    type = read_fp8(&quant);
  } else if (g_str_equal(method, "awq") || g_str_equal(method, "gptq")) {
    type = read_int4(&quant, g_str_equal(method, "awq"), spec);
  } else if (g_str_equal(method, "mxfp4")) {
    type = OCT_DTYPE_MXFP4;
    skip.whole[QUANT_ATTENTION] = skip.whole[QUANT_DENSE] = skip.whole[QUANT_SHARED] = TRUE;
  } else if (g_str_equal(method, "compressed-tensors")) {
    type = read_compressed_tensors(&quant, &skip);
    list = "ignore";
  } else if (g_str_equal(method, "modelopt")) {
    type = read_modelopt(&quant);
    list = "ignore";
  } else {
    oct_fields_fail(&quant, "quant_method", OCT_MODEL_ERROR_FIELD,
                    "supported are fp8, compressed-tensors, mxfp4, awq, gptq and modelopt");
  }
  read_ignored(&quant, list, &skip);
  if (!oct_fields_failed(&quant))
    apply(&quant, list, &skip, type, spec);
}
