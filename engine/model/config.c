/* From a Hugging Face config.json to a spec: one function per family of architectures, and a table
 * of model_types. Field names and defaults are those of the transformers library; a field without a
 * safe default is required. Fields that change nothing a spec describes are not read.
 */
#include "engine/base/assert.h"
#include "engine/model/fields.h"
#include "engine/model/numerics-reader.h"
#include "engine/model/quant.h"
#include "engine/model/spec.h"
#include "engine/model/tensors.h"

#include <string.h>

#define CONV_KERNEL_MAX 64
#define TOP_K_MAX       1024

/* Reads the fields of a family into a spec whose common fields are set. Errors go to `fields`. */
typedef void (*family_reader)(oct_fields *fields, oct_model_spec *spec);

typedef struct model_family {
  const char *model_type;
  family_reader read;
  const char *nested; /* the object that holds the text model, or NULL */
} model_family;

static guint32
read_width(oct_fields *fields, const char *name) {
  return oct_fields_u32(fields, name, 1, OCT_MODEL_DIM_MAX);
}

/* An error unless n x width (heads x head width, …) is within the limit of a dimension. */
static void
check_product(oct_fields *fields, const char *name, guint64 n, guint64 width) {
  if (n * width > OCT_MODEL_DIM_MAX)
    oct_fields_fail(fields, name, OCT_MODEL_ERROR_FIELD,
                    "and %" G_GUINT64_FORMAT " times %" G_GUINT64_FORMAT
                    " is more than the limit of %d",
                    n, width, OCT_MODEL_DIM_MAX);
}

/* Appends an attention or FFN set and returns its index; one of each kind fits. */
static guint8
add_attention(oct_model_spec *spec, oct_attention_spec attention) {
  oct_assert(spec->n_attention < OCT_ATTENTION_COUNT);
  spec->attention[spec->n_attention] = attention;
  return (guint8)spec->n_attention++;
}

static guint8
add_ffn(oct_model_spec *spec, oct_ffn_spec ffn) {
  oct_assert(spec->n_ffn < OCT_FFN_COUNT);
  spec->ffn[spec->n_ffn] = ffn;
  return (guint8)spec->n_ffn++;
}

/* An error unless hidden_act is `expected`. */
static void
require_activation(oct_fields *fields, const char *expected) {
  const char *found = oct_fields_string_or(fields, "hidden_act", expected);
  if (!g_str_equal(found, expected))
    oct_fields_fail(fields, "hidden_act", OCT_MODEL_ERROR_FIELD, "supported is \"%s\"", expected);
}

/* --- attention with K and V heads ----------------------------------------------------------------
 */

/* Heads and their width. `head_dim` is required for families whose width is not hidden / heads. */
static oct_attention_spec
read_gqa(oct_fields *fields, const oct_model_spec *spec, gboolean needs_head_dim) {
  oct_attention_spec a = {.kind = OCT_ATTENTION_GQA};
  a.n_heads = read_width(fields, "num_attention_heads");
  a.n_kv_heads = read_width(fields, "num_key_value_heads");
  if (oct_fields_failed(fields))
    return a;
  if (a.n_heads % a.n_kv_heads != 0)
    oct_fields_fail(fields, "num_key_value_heads", OCT_MODEL_ERROR_FIELD,
                    "which does not divide the %u attention heads", a.n_heads);
  if (needs_head_dim || oct_fields_has(fields, "head_dim"))
    a.head_dim = read_width(fields, "head_dim");
  else if (spec->hidden % a.n_heads == 0)
    a.head_dim = spec->hidden / a.n_heads;
  else
    oct_fields_fail(fields, "num_attention_heads", OCT_MODEL_ERROR_FIELD,
                    "which does not divide hidden_size %u, and there is no head_dim", spec->hidden);
  check_product(fields, "num_attention_heads", a.n_heads, a.head_dim);
  return a;
}

/* Which layers see a window only, in mask[n_layers]: `layer_types` where given. Else all layers
 * from `first` on when `by_default`. */
static void
read_windowed_layers(oct_fields *fields, const oct_model_spec *spec, gboolean by_default,
                     guint32 first, gboolean *mask) {
  const json_t *types = oct_fields_array_or(fields, "layer_types", OCT_MODEL_LAYERS_MAX);
  if (types != NULL && json_array_size(types) != spec->n_layers)
    oct_fields_fail(fields, "layer_types", OCT_MODEL_ERROR_FIELD,
                    "which has %" G_GSIZE_FORMAT " elements for %u layers", json_array_size(types),
                    spec->n_layers);
  for (guint32 layer = 0; layer < spec->n_layers && !oct_fields_failed(fields); layer++) {
    mask[layer] = by_default && layer >= first;
    if (types == NULL)
      continue;
    const char *type = oct_fields_element_string(fields, "layer_types", types, layer);
    mask[layer] = g_str_equal(type, "sliding_attention");
    if (!mask[layer] && !g_str_equal(type, "full_attention"))
      oct_fields_fail(fields, "layer_types", OCT_MODEL_ERROR_FIELD,
                      "element %u: supported are \"full_attention\" and \"sliding_attention\"",
                      layer);
  }
}

/* Adds `full` and, for the layers of mask[], the same with a window, in order of appearance. */
static void
add_windowed(oct_fields *fields, oct_model_spec *spec, const oct_attention_spec *full,
             const gboolean *mask) {
  guint8 plain = G_MAXUINT8, windowed = G_MAXUINT8;
  for (guint32 layer = 0; layer < spec->n_layers && !oct_fields_failed(fields); layer++) {
    guint8 *set = mask[layer] ? &windowed : &plain;
    if (*set == G_MAXUINT8) {
      oct_attention_spec attention = *full;
      if (mask[layer]) {
        attention.kind = OCT_ATTENTION_WINDOW;
        attention.window = read_width(fields, "sliding_window");
      }
      *set = add_attention(spec, attention);
    }
    spec->layers[layer].attention = *set;
  }
}

/* --- dense models --------------------------------------------------------------------------------
 */

static void
read_dense_ffn(oct_fields *fields, oct_model_spec *spec) {
  require_activation(fields, "silu");
  if (oct_fields_bool_or(fields, "mlp_bias", FALSE))
    oct_fields_fail(fields, "mlp_bias", OCT_MODEL_ERROR_FIELD, "supported is false");
  add_ffn(spec, (oct_ffn_spec){.kind = OCT_FFN_DENSE,
                               .intermediate = read_width(fields, "intermediate_size")});
}

static void
read_llama(oct_fields *fields, oct_model_spec *spec) {
  oct_attention_spec a = read_gqa(fields, spec, FALSE);
  a.qkv_bias = a.o_bias = oct_fields_bool_or(fields, "attention_bias", FALSE);
  add_attention(spec, a);
  read_dense_ffn(fields, spec);
}

/* Qwen's windows are off unless use_sliding_window, and then begin at layer max_window_layers. */
static void
read_qwen_attention(oct_fields *fields, oct_model_spec *spec, const oct_attention_spec *a) {
  gboolean mask[OCT_MODEL_LAYERS_MAX] = {0};
  gboolean windows = oct_fields_bool_or(fields, "use_sliding_window", FALSE);
  guint32 first = oct_fields_u32_or(fields, "max_window_layers", 0, OCT_MODEL_LAYERS_MAX, 28);
  read_windowed_layers(fields, spec, windows, first, mask);
  add_windowed(fields, spec, a, mask);
}

static void
read_qwen2(oct_fields *fields, oct_model_spec *spec) {
  oct_attention_spec a = read_gqa(fields, spec, FALSE);
  a.qkv_bias = TRUE;
  read_qwen_attention(fields, spec, &a);
  read_dense_ffn(fields, spec);
}

static oct_attention_spec
read_qwen3_gqa(oct_fields *fields, const oct_model_spec *spec) {
  oct_attention_spec a = read_gqa(fields, spec, TRUE);
  a.qkv_bias = a.o_bias = oct_fields_bool_or(fields, "attention_bias", FALSE);
  a.qk_norm = TRUE;
  return a;
}

static void
read_qwen3(oct_fields *fields, oct_model_spec *spec) {
  oct_attention_spec a = read_qwen3_gqa(fields, spec);
  read_qwen_attention(fields, spec, &a);
  read_dense_ffn(fields, spec);
}

/* --- mixtures of experts
 * -------------------------------------------------------------------------- */

/* Experts, how many of them a token takes, and their width. */
static oct_ffn_spec
read_moe(oct_fields *fields, const char *experts, const char *top_k, const char *width) {
  oct_ffn_spec f = {.kind = OCT_FFN_MOE, .routed_scaling = 1};
  f.n_experts = oct_fields_u32(fields, experts, 1, OCT_MODEL_EXPERTS_MAX);
  f.top_k = oct_fields_u32(fields, top_k, 1, TOP_K_MAX);
  f.moe_intermediate = read_width(fields, width);
  if (!oct_fields_failed(fields) && f.top_k > f.n_experts)
    oct_fields_fail(fields, top_k, OCT_MODEL_ERROR_FIELD, "but there are only %u experts",
                    f.n_experts);
  return f;
}

/* Sets each layer's FFN: dense[] or the experts; reads intermediate_size when a layer is dense. */
static void
add_mixed_ffn(oct_fields *fields, oct_model_spec *spec, const oct_ffn_spec *moe,
              const gboolean *dense) {
  guint8 plain = G_MAXUINT8, sparse = G_MAXUINT8;
  for (guint32 layer = 0; layer < spec->n_layers && !oct_fields_failed(fields); layer++) {
    guint8 *set = dense[layer] ? &plain : &sparse;
    if (*set == G_MAXUINT8 && dense[layer])
      *set = add_ffn(spec, (oct_ffn_spec){.kind = OCT_FFN_DENSE,
                                          .intermediate = read_width(fields, "intermediate_size")});
    else if (*set == G_MAXUINT8)
      *set = add_ffn(spec, *moe);
    spec->layers[layer].ffn = *set;
  }
}

static void
read_mixtral(oct_fields *fields, oct_model_spec *spec) {
  gboolean mask[OCT_MODEL_LAYERS_MAX] = {0};
  oct_attention_spec a = read_gqa(fields, spec, FALSE);
  gboolean windows = oct_fields_has(fields, "sliding_window");
  for (guint32 layer = 0; layer < spec->n_layers; layer++)
    mask[layer] = windows;
  add_windowed(fields, spec, &a, mask);
  require_activation(fields, "silu");
  add_ffn(spec, read_moe(fields, "num_local_experts", "num_experts_per_tok", "intermediate_size"));
}

static void
read_qwen3_moe(oct_fields *fields, oct_model_spec *spec) {
  gboolean dense[OCT_MODEL_LAYERS_MAX] = {0};
  oct_attention_spec a = read_qwen3_gqa(fields, spec);
  read_qwen_attention(fields, spec, &a);
  require_activation(fields, "silu");
  /* transformers 5 writes num_local_experts. */
  const char *experts =
      oct_fields_has(fields, "num_local_experts") ? "num_local_experts" : "num_experts";
  oct_ffn_spec moe = read_moe(fields, experts, "num_experts_per_tok", "moe_intermediate_size");
  guint32 step = oct_fields_u32_or(fields, "decoder_sparse_step", 1, OCT_MODEL_LAYERS_MAX, 1);
  const json_t *only = oct_fields_array_or(fields, "mlp_only_layers", OCT_MODEL_LAYERS_MAX);
  for (guint32 layer = 0; layer < spec->n_layers && !oct_fields_failed(fields); layer++)
    dense[layer] = (layer + 1) % step != 0;
  for (gsize i = 0; only != NULL && i < json_array_size(only) && !oct_fields_failed(fields); i++)
    dense[oct_fields_element_u32(fields, "mlp_only_layers", only, i, 0, spec->n_layers - 1)] = TRUE;
  add_mixed_ffn(fields, spec, &moe, dense);
}

/* Layers 0 … first_k_dense_replace − 1 are dense, and of the others those that moe_layer_freq does
 * not divide. */
static void
add_deepseek_ffn(oct_fields *fields, oct_model_spec *spec, const oct_ffn_spec *moe) {
  gboolean dense[OCT_MODEL_LAYERS_MAX] = {0};
  guint32 first = oct_fields_u32(fields, "first_k_dense_replace", 0, OCT_MODEL_LAYERS_MAX);
  guint32 step = oct_fields_u32_or(fields, "moe_layer_freq", 1, OCT_MODEL_LAYERS_MAX, 1);
  for (guint32 layer = 0; layer < spec->n_layers && !oct_fields_failed(fields); layer++)
    dense[layer] = layer < first || layer % step != 0;
  add_mixed_ffn(fields, spec, moe, dense);
}

/* Shared experts are one MLP of their joint width. */
static void
read_shared(oct_fields *fields, const char *name, oct_ffn_spec *moe) {
  guint32 shared = oct_fields_u32_or(fields, name, 0, OCT_MODEL_EXPERTS_MAX, 0);
  check_product(fields, name, shared, moe->moe_intermediate);
  if (!oct_fields_failed(fields))
    moe->shared_intermediate = shared * moe->moe_intermediate;
}

static oct_attention_spec
read_mla(oct_fields *fields) {
  oct_attention_spec a = {.kind = OCT_ATTENTION_MLA};
  a.n_heads = read_width(fields, "num_attention_heads");
  a.q_lora = oct_fields_u32_or(fields, "q_lora_rank", 1, OCT_MODEL_DIM_MAX, 0);
  a.kv_lora = read_width(fields, "kv_lora_rank");
  a.qk_nope = read_width(fields, "qk_nope_head_dim");
  a.qk_rope = read_width(fields, "qk_rope_head_dim");
  a.v_head = read_width(fields, "v_head_dim");
  a.qkv_bias = a.o_bias = oct_fields_bool_or(fields, "attention_bias", FALSE);
  if (oct_fields_failed(fields))
    return a;
  guint64 widest = MAX((guint64)a.qk_nope + a.qk_rope, (guint64)a.qk_nope + a.v_head);
  check_product(fields, "num_attention_heads", a.n_heads, widest);
  check_product(fields, "kv_lora_rank", 1, (guint64)a.kv_lora + a.qk_rope);
  return a;
}

static void
read_deepseek(oct_fields *fields, oct_model_spec *spec) {
  add_attention(spec, read_mla(fields));
  require_activation(fields, "silu");
  oct_ffn_spec moe =
      read_moe(fields, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size");
  moe.router_bias = TRUE;
  moe.routed_scaling = (float)oct_fields_real(fields, "routed_scaling_factor", 0, 1e6);
  read_shared(fields, "n_shared_experts", &moe);
  add_deepseek_ffn(fields, spec, &moe);
}

static void
read_gpt_oss(oct_fields *fields, oct_model_spec *spec) {
  gboolean mask[OCT_MODEL_LAYERS_MAX] = {0};
  oct_attention_spec a = read_gqa(fields, spec, TRUE);
  a.qkv_bias = a.o_bias = oct_fields_bool_or(fields, "attention_bias", TRUE);
  a.sinks = TRUE;
  read_windowed_layers(fields, spec, FALSE, 0, mask);
  /* Without layer_types the layers alternate, a window first. */
  if (!oct_fields_has(fields, "layer_types"))
    for (guint32 layer = 0; layer < spec->n_layers; layer += 2)
      mask[layer] = TRUE;
  add_windowed(fields, spec, &a, mask);
  require_activation(fields, "silu");
  spec->activation = OCT_ACTIVATION_SWIGLU_CLAMPED;
  oct_ffn_spec moe =
      read_moe(fields, "num_local_experts", "num_experts_per_tok", "intermediate_size");
  moe.expert_bias = TRUE;
  add_ffn(spec, moe);
}

/* --- Kimi-Linear and Kimi K3
 * ---------------------------------------------------------------------- */

/* Sets `attention` for the layers that the array names, counted from 1; each at most once. */
static void
mark_layers(oct_fields *fields, const char *name, guint8 attention, oct_model_spec *spec,
            gboolean *marked) {
  const json_t *list = oct_fields_array(fields, name, OCT_MODEL_LAYERS_MAX);
  for (gsize i = 0; list != NULL && i < json_array_size(list); i++) {
    guint32 layer = oct_fields_element_u32(fields, name, list, i, 1, spec->n_layers);
    if (oct_fields_failed(fields))
      return;
    if (marked[layer - 1]) {
      oct_fields_fail(fields, name, OCT_MODEL_ERROR_FIELD, "which names layer %u a second time",
                      layer);
      return;
    }
    marked[layer - 1] = TRUE;
    spec->layers[layer - 1].attention = attention;
  }
}

static void
read_kimi_attention(oct_fields *fields, oct_model_spec *spec, gboolean k3) {
  oct_fields linear;
  oct_attention_spec mla = read_mla(fields);
  mla.output_gate = oct_fields_bool_or(fields, "mla_use_output_gate", FALSE);
  if (!oct_fields_object(fields, "linear_attn_config", &linear))
    return;
  oct_attention_spec kda = {.kind = OCT_ATTENTION_KDA};
  kda.n_heads = read_width(&linear, "num_heads");
  kda.head_dim = read_width(&linear, "head_dim");
  kda.conv_kernel = oct_fields_u32(&linear, "short_conv_kernel_size", 1, CONV_KERNEL_MAX);
  kda.gate_rank = kda.head_dim;
  kda.output_gate_rank =
      oct_fields_bool_or(&linear, "use_full_rank_gate", FALSE) ? 0 : kda.head_dim;
  kda.decay_padding = k3 ? 128 : 1;
  check_product(&linear, "num_heads", kda.n_heads, kda.head_dim);
  gboolean marked[OCT_MODEL_LAYERS_MAX] = {0};
  mark_layers(&linear, "kda_layers", add_attention(spec, kda), spec, marked);
  mark_layers(&linear, "full_attn_layers", add_attention(spec, mla), spec, marked);
  for (guint32 layer = 0; layer < spec->n_layers && !oct_fields_failed(fields); layer++)
    if (!marked[layer])
      oct_fields_fail(&linear, "kda_layers", OCT_MODEL_ERROR_FIELD,
                      "and neither it nor full_attn_layers names layer %u", layer + 1);
}

static oct_ffn_spec
read_kimi_moe(oct_fields *fields) {
  oct_ffn_spec moe =
      read_moe(fields, "num_experts", "num_experts_per_token", "moe_intermediate_size");
  moe.router_bias = TRUE;
  moe.routed_scaling = (float)oct_fields_real(fields, "routed_scaling_factor", 0, 1e6);
  read_shared(fields, "num_shared_experts", &moe);
  return moe;
}

static void
read_kimi_linear(oct_fields *fields, oct_model_spec *spec) {
  read_kimi_attention(fields, spec, FALSE);
  require_activation(fields, "silu");
  oct_ffn_spec moe = read_kimi_moe(fields);
  add_deepseek_ffn(fields, spec, &moe);
}

static void
read_kimi_k3(oct_fields *fields, oct_model_spec *spec) {
  read_kimi_attention(fields, spec, TRUE);
  require_activation(fields, "situ");
  spec->activation = OCT_ACTIVATION_SITU;
  spec->attn_res_block = oct_fields_u32(fields, "attn_res_block_size", 1, OCT_MODEL_LAYERS_MAX);
  oct_ffn_spec moe = read_kimi_moe(fields);
  moe.kind = OCT_FFN_LATENT_MOE;
  moe.latent = read_width(fields, "routed_expert_hidden_size");
  moe.latent_norm = oct_fields_bool_or(fields, "latent_moe_use_norm", FALSE);
  add_deepseek_ffn(fields, spec, &moe);
}

static const model_family families[] = {
    {"llama", read_llama, NULL},
    {"qwen2", read_qwen2, NULL},
    {"qwen3", read_qwen3, NULL},
    {"qwen3_moe", read_qwen3_moe, NULL},
    {"mixtral", read_mixtral, NULL},
    {"deepseek_v3", read_deepseek, NULL},
    {"kimi_k2", read_deepseek, NULL},
    {"gpt_oss", read_gpt_oss, NULL},
    {"kimi_linear", read_kimi_linear, NULL},
    {"kimi_k3", read_kimi_k3, "text_config"},
};

/* --- what all families have
 * ----------------------------------------------------------------------- */

/* eos_token_id: absent, one id, or an array of ids. */
static void
read_eos(oct_fields *fields, oct_model_spec *spec) {
  if (!oct_fields_has(fields, "eos_token_id"))
    return;
  if (!json_is_array(json_object_get(fields->object, "eos_token_id"))) {
    spec->n_eos_tokens = 1;
    spec->eos_tokens[0] = oct_fields_u32(fields, "eos_token_id", 0, spec->vocab - 1);
    return;
  }
  const json_t *list = oct_fields_array(fields, "eos_token_id", OCT_MODEL_EOS_MAX);
  for (gsize i = 0; list != NULL && i < json_array_size(list); i++)
    spec->eos_tokens[spec->n_eos_tokens++] =
        oct_fields_element_u32(fields, "eos_token_id", list, i, 0, spec->vocab - 1);
}

/* The checkpoint's type: `dtype`, which older files call torch_dtype. */
static oct_dtype
read_base_type(oct_fields *fields) {
  const char *field = oct_fields_has(fields, "dtype") ? "dtype" : "torch_dtype";
  const char *name = oct_fields_string_or(fields, field, "bfloat16");
  const oct_dtype types[] = {OCT_DTYPE_BF16, OCT_DTYPE_F16, OCT_DTYPE_F32};
  for (guint i = 0; i < G_N_ELEMENTS(types); i++)
    if (g_str_equal(name, oct_dtype_name(types[i])))
      return types[i];
  oct_fields_fail(fields, field, OCT_MODEL_ERROR_FIELD,
                  "supported are \"bfloat16\", \"float16\" and \"float32\"");
  return OCT_DTYPE_BF16;
}

/* rope_theta, which transformers 5 moved into rope_parameters. */
static double
read_rope_theta(oct_fields *fields, gboolean has_rope) {
  oct_fields rope;
  if (!has_rope)
    return 0;
  if (oct_fields_object_or(fields, "rope_parameters", &rope))
    return oct_fields_real(&rope, "rope_theta", 1, 1e12);
  return oct_fields_real_or(fields, "rope_theta", 1, 1e12, 10000);
}

static void
read_common(oct_fields *fields, oct_model_spec *spec) {
  spec->vocab = read_width(fields, "vocab_size");
  spec->hidden = read_width(fields, "hidden_size");
  spec->n_layers = oct_fields_u32(fields, "num_hidden_layers", 1, OCT_MODEL_LAYERS_MAX);
  if (oct_fields_failed(fields))
    return;
  /* Kimi-Linear calls it model_max_length. */
  const char *positions = oct_fields_has(fields, "model_max_length") &&
                                  !oct_fields_has(fields, "max_position_embeddings")
                              ? "model_max_length"
                              : "max_position_embeddings";
  spec->max_position = oct_fields_u32(fields, positions, 1, 1u << 30);
  spec->rms_norm_eps = oct_fields_real(fields, "rms_norm_eps", 1e-20, 1);
  spec->tied_embeddings = oct_fields_bool_or(fields, "tie_word_embeddings", FALSE);
  spec->bos_token =
      oct_fields_u32_or(fields, "bos_token_id", 0, spec->vocab - 1, OCT_MODEL_TOKEN_NONE);
  read_eos(fields, spec);
  spec->layers = g_new0(oct_layer_spec, spec->n_layers);
}

/* Sums in floating point, which cannot overflow, before anything is summed in integers. */
static void
check_parameters(oct_fields *fields, const oct_model_spec *spec) {
  oct_tensor_list list;
  double sum = 2.0 * spec->vocab * spec->hidden;
  for (guint32 layer = 0; layer < spec->n_layers; layer++) {
    oct_tensors_layer(spec, layer, &list);
    for (guint i = 0; i < list.n; i++)
      sum += (double)list.tensors[i].rows * (double)list.tensors[i].columns *
             (double)list.tensors[i].count;
  }
  if (sum > (double)OCT_MODEL_PARAMETERS_MAX)
    oct_fields_fail(fields, "hidden_size", OCT_MODEL_ERROR_FIELD,
                    "and with the other fields makes %.3g parameters, more than the limit of %.3g",
                    sum, (double)OCT_MODEL_PARAMETERS_MAX);
}

static const model_family *
find_family(oct_fields *fields) {
  const char *model_type = oct_fields_string(fields, "model_type");
  if (oct_fields_failed(fields))
    return NULL;
  g_autoptr(GString) known = g_string_new(NULL);
  for (guint i = 0; i < G_N_ELEMENTS(families); i++) {
    if (g_str_equal(model_type, families[i].model_type))
      return &families[i];
    g_string_append_printf(known, "%s%s", i > 0 ? ", " : "", families[i].model_type);
  }
  oct_fields_fail(fields, "model_type", OCT_MODEL_ERROR_ARCHITECTURE,
                  "an unknown architecture; known are %s", known->str);
  return NULL;
}

static void
read_spec(oct_fields *top, oct_model_spec *spec) {
  const model_family *family = find_family(top);
  oct_fields text = *top;
  if (family == NULL || (family->nested != NULL && !oct_fields_object(top, family->nested, &text)))
    return;
  spec->architecture = g_strdup(family->model_type);
  read_common(&text, spec);
  if (oct_fields_failed(top))
    return;
  family->read(&text, spec);
  gboolean has_rope = !oct_fields_bool_or(&text, "mla_use_nope", FALSE);
  spec->rope_theta = read_rope_theta(&text, has_rope);
  oct_numerics_read(&text, spec);
  if (oct_fields_failed(top))
    return;
  /* A nested config may carry the quantization inside or outside. */
  oct_fields *quant =
      family->nested != NULL && !oct_fields_has(&text, "quantization_config") ? top : &text;
  oct_quant_read(quant, read_base_type(&text), spec);
  if (!oct_fields_failed(top))
    check_parameters(&text, spec);
}

oct_model_spec *
oct_model_spec_parse(const char *name, const char *json, gsize size, GError **error) {
  GError *first = NULL;
  json_t *root = oct_fields_parse(name, json, size, &first);
  if (root == NULL) {
    g_propagate_error(error, first);
    return NULL;
  }
  oct_fields top;
  oct_fields_init(&top, name, root, &first);
  oct_model_spec *spec = g_new0(oct_model_spec, 1);
  spec->name = g_strdup(name);
  read_spec(&top, spec);
  json_decref(root);
  if (first != NULL) {
    g_propagate_error(error, first);
    oct_model_spec_free(spec);
    return NULL;
  }
  return spec;
}
