#include "engine/model/files/names.h"

#include <string.h>

#include "engine/base/assert.h"

#define LAYER "model.layers.%l."
#define ATTN  LAYER "self_attn."
#define MLP   LAYER "mlp."
#define MOE   LAYER "block_sparse_moe."
#define BLK   "blk.%l."

/* Rows of the tables below. */
#define WEIGHT(...)                                                                                \
  {                                                                                                \
    .part = OCT_NAME_WEIGHT, .single = { __VA_ARGS__ }                                             \
  }
#define BIAS(...)                                                                                  \
  {                                                                                                \
    .part = OCT_NAME_BIAS, .single = { __VA_ARGS__ }                                               \
  }
#define BARE(...)                                                                                  \
  {                                                                                                \
    .part = OCT_NAME_BARE, .single = { __VA_ARGS__ }                                               \
  }
#define STACK(its_part, its_stack, its_name, ...)                                                  \
  { .part = its_part, .single = {__VA_ARGS__}, .stack = its_stack, .stacked = its_name }

/* Hugging Face. Two families of names for mixtures: mlp (Qwen, DeepSeek) and block_sparse_moe
 * (Mixtral, Kimi), whose experts say w1, w3, w2 for gate, up, down. gpt-oss stacks its experts. */
static const oct_name_row hugging_face[OCT_WEIGHT_KINDS] = {
    [OCT_WEIGHT_EMBEDDING] = WEIGHT("model.embed_tokens"),
    [OCT_WEIGHT_FINAL_NORM] = WEIGHT("model.norm"),
    [OCT_WEIGHT_FINAL_RES_NORM] = WEIGHT("model.output_attn_res_norm"),
    [OCT_WEIGHT_FINAL_RES_PROJ] = WEIGHT("model.output_attn_res_proj"),
    [OCT_WEIGHT_HEAD] = WEIGHT("lm_head"),
    [OCT_WEIGHT_ATTN_NORM] = WEIGHT(LAYER "input_layernorm"),
    [OCT_WEIGHT_ATTN_RES_NORM] = WEIGHT(LAYER "self_attention_res_norm"),
    [OCT_WEIGHT_ATTN_RES_PROJ] = WEIGHT(LAYER "self_attention_res_proj"),
    [OCT_WEIGHT_FFN_NORM] = WEIGHT(LAYER "post_attention_layernorm"),
    [OCT_WEIGHT_FFN_RES_NORM] = WEIGHT(LAYER "mlp_res_norm"),
    [OCT_WEIGHT_FFN_RES_PROJ] = WEIGHT(LAYER "mlp_res_proj"),
    [OCT_WEIGHT_Q] = WEIGHT(ATTN "q_proj"),
    [OCT_WEIGHT_K] = WEIGHT(ATTN "k_proj"),
    [OCT_WEIGHT_V] = WEIGHT(ATTN "v_proj"),
    [OCT_WEIGHT_O] = WEIGHT(ATTN "o_proj"),
    [OCT_WEIGHT_Q_BIAS] = BIAS(ATTN "q_proj"),
    [OCT_WEIGHT_K_BIAS] = BIAS(ATTN "k_proj"),
    [OCT_WEIGHT_V_BIAS] = BIAS(ATTN "v_proj"),
    [OCT_WEIGHT_O_BIAS] = BIAS(ATTN "o_proj"),
    [OCT_WEIGHT_Q_NORM] = WEIGHT(ATTN "q_norm"),
    [OCT_WEIGHT_K_NORM] = WEIGHT(ATTN "k_norm"),
    [OCT_WEIGHT_SINKS] = BARE(ATTN "sinks"),
    [OCT_WEIGHT_Q_A] = WEIGHT(ATTN "q_a_proj"),
    [OCT_WEIGHT_Q_A_NORM] = WEIGHT(ATTN "q_a_layernorm"),
    [OCT_WEIGHT_Q_A_BIAS] = BIAS(ATTN "q_a_proj"),
    [OCT_WEIGHT_Q_B] = WEIGHT(ATTN "q_b_proj"),
    [OCT_WEIGHT_KV_A] = WEIGHT(ATTN "kv_a_proj_with_mqa"),
    [OCT_WEIGHT_KV_A_NORM] = WEIGHT(ATTN "kv_a_layernorm"),
    [OCT_WEIGHT_KV_A_BIAS] = BIAS(ATTN "kv_a_proj_with_mqa"),
    [OCT_WEIGHT_KV_B] = WEIGHT(ATTN "kv_b_proj"),
    [OCT_WEIGHT_ATTN_GATE] = WEIGHT(ATTN "g_proj"),
    [OCT_WEIGHT_Q_CONV] = WEIGHT(ATTN "q_conv1d"),
    [OCT_WEIGHT_K_CONV] = WEIGHT(ATTN "k_conv1d"),
    [OCT_WEIGHT_V_CONV] = WEIGHT(ATTN "v_conv1d"),
    [OCT_WEIGHT_DECAY_A] = WEIGHT(ATTN "f_a_proj"),
    [OCT_WEIGHT_DECAY_B] = WEIGHT(ATTN "f_b_proj"),
    [OCT_WEIGHT_BETA] = WEIGHT(ATTN "b_proj"),
    [OCT_WEIGHT_ATTN_GATE_A] = WEIGHT(ATTN "g_a_proj"),
    [OCT_WEIGHT_ATTN_GATE_B] = WEIGHT(ATTN "g_b_proj"),
    [OCT_WEIGHT_A_LOG] = BARE(ATTN "A_log"),
    [OCT_WEIGHT_DT_BIAS] = BARE(ATTN "dt_bias"),
    [OCT_WEIGHT_HEAD_NORM] = WEIGHT(ATTN "o_norm"),
    [OCT_WEIGHT_GATE] = WEIGHT(MLP "gate_proj", MOE "gate_proj"),
    [OCT_WEIGHT_UP] = WEIGHT(MLP "up_proj", MOE "up_proj"),
    [OCT_WEIGHT_DOWN] = WEIGHT(MLP "down_proj", MOE "down_proj"),
    [OCT_WEIGHT_ROUTER] = WEIGHT(MLP "gate", MOE "gate", MLP "router"),
    [OCT_WEIGHT_ROUTER_SCORE_BIAS] =
        BARE(MLP "gate.e_score_correction_bias", MOE "gate.e_score_correction_bias"),
    [OCT_WEIGHT_ROUTER_BIAS] = BIAS(MLP "router"),
    [OCT_WEIGHT_LATENT_DOWN] = WEIGHT(MOE "routed_expert_down_proj", MLP "routed_expert_down_proj"),
    [OCT_WEIGHT_LATENT_UP] = WEIGHT(MOE "routed_expert_up_proj", MLP "routed_expert_up_proj"),
    [OCT_WEIGHT_LATENT_NORM] = WEIGHT(MOE "routed_expert_norm", MLP "routed_expert_norm"),
    [OCT_WEIGHT_SHARED_GATE] =
        WEIGHT(MLP "shared_experts.gate_proj", MOE "shared_experts.gate_proj",
               MLP "shared_expert.gate_proj"),
    [OCT_WEIGHT_SHARED_UP] = WEIGHT(MLP "shared_experts.up_proj", MOE "shared_experts.up_proj",
                                    MLP "shared_expert.up_proj"),
    [OCT_WEIGHT_SHARED_DOWN] =
        WEIGHT(MLP "shared_experts.down_proj", MOE "shared_experts.down_proj",
               MLP "shared_expert.down_proj"),
    [OCT_WEIGHT_SHARED_SWITCH] = WEIGHT(MLP "shared_expert_gate"),
    [OCT_WEIGHT_EXPERT_GATE] =
        STACK(OCT_NAME_WEIGHT, OCT_STACK_EVEN, MLP "experts.gate_up_proj",
              MLP "experts.%e.gate_proj", MOE "experts.%e.w1", MOE "experts.%e.gate_proj"),
    [OCT_WEIGHT_EXPERT_UP] =
        STACK(OCT_NAME_WEIGHT, OCT_STACK_ODD, MLP "experts.gate_up_proj", MLP "experts.%e.up_proj",
              MOE "experts.%e.w3", MOE "experts.%e.up_proj"),
    [OCT_WEIGHT_EXPERT_DOWN] =
        STACK(OCT_NAME_WEIGHT, OCT_STACK_WHOLE, MLP "experts.down_proj", MLP "experts.%e.down_proj",
              MOE "experts.%e.w2", MOE "experts.%e.down_proj"),
    [OCT_WEIGHT_EXPERT_GATE_BIAS] =
        STACK(OCT_NAME_BARE, OCT_STACK_EVEN, MLP "experts.gate_up_proj_bias", NULL),
    [OCT_WEIGHT_EXPERT_UP_BIAS] =
        STACK(OCT_NAME_BARE, OCT_STACK_ODD, MLP "experts.gate_up_proj_bias", NULL),
    [OCT_WEIGHT_EXPERT_DOWN_BIAS] =
        STACK(OCT_NAME_BARE, OCT_STACK_WHOLE, MLP "experts.down_proj_bias", NULL),
};

/* GGUF's names of llama, qwen2, qwen3, qwen3moe and gpt-oss. Old files of mixtures have a tensor
 * per expert. */
static const oct_name_row gguf[OCT_WEIGHT_KINDS] = {
    [OCT_WEIGHT_EMBEDDING] = WEIGHT("token_embd"),
    [OCT_WEIGHT_FINAL_NORM] = WEIGHT("output_norm"),
    [OCT_WEIGHT_HEAD] = WEIGHT("output"),
    [OCT_WEIGHT_ATTN_NORM] = WEIGHT(BLK "attn_norm"),
    [OCT_WEIGHT_FFN_NORM] = WEIGHT(BLK "ffn_norm", BLK "post_attention_norm"),
    [OCT_WEIGHT_Q] = WEIGHT(BLK "attn_q"),
    [OCT_WEIGHT_K] = WEIGHT(BLK "attn_k"),
    [OCT_WEIGHT_V] = WEIGHT(BLK "attn_v"),
    [OCT_WEIGHT_O] = WEIGHT(BLK "attn_output"),
    [OCT_WEIGHT_Q_BIAS] = BIAS(BLK "attn_q"),
    [OCT_WEIGHT_K_BIAS] = BIAS(BLK "attn_k"),
    [OCT_WEIGHT_V_BIAS] = BIAS(BLK "attn_v"),
    [OCT_WEIGHT_O_BIAS] = BIAS(BLK "attn_output"),
    [OCT_WEIGHT_Q_NORM] = WEIGHT(BLK "attn_q_norm"),
    [OCT_WEIGHT_K_NORM] = WEIGHT(BLK "attn_k_norm"),
    [OCT_WEIGHT_SINKS] = WEIGHT(BLK "attn_sinks"),
    [OCT_WEIGHT_GATE] = WEIGHT(BLK "ffn_gate"),
    [OCT_WEIGHT_UP] = WEIGHT(BLK "ffn_up"),
    [OCT_WEIGHT_DOWN] = WEIGHT(BLK "ffn_down"),
    [OCT_WEIGHT_ROUTER] = WEIGHT(BLK "ffn_gate_inp"),
    [OCT_WEIGHT_ROUTER_BIAS] = BIAS(BLK "ffn_gate_inp"),
    [OCT_WEIGHT_EXPERT_GATE] =
        STACK(OCT_NAME_WEIGHT, OCT_STACK_WHOLE, BLK "ffn_gate_exps", BLK "ffn_gate.%e"),
    [OCT_WEIGHT_EXPERT_UP] =
        STACK(OCT_NAME_WEIGHT, OCT_STACK_WHOLE, BLK "ffn_up_exps", BLK "ffn_up.%e"),
    [OCT_WEIGHT_EXPERT_DOWN] =
        STACK(OCT_NAME_WEIGHT, OCT_STACK_WHOLE, BLK "ffn_down_exps", BLK "ffn_down.%e"),
    [OCT_WEIGHT_EXPERT_GATE_BIAS] =
        STACK(OCT_NAME_BIAS, OCT_STACK_WHOLE, BLK "ffn_gate_exps", NULL),
    [OCT_WEIGHT_EXPERT_UP_BIAS] = STACK(OCT_NAME_BIAS, OCT_STACK_WHOLE, BLK "ffn_up_exps", NULL),
    [OCT_WEIGHT_EXPERT_DOWN_BIAS] =
        STACK(OCT_NAME_BIAS, OCT_STACK_WHOLE, BLK "ffn_down_exps", NULL),
};

const oct_name_row *
oct_name_row_get(oct_load_format format, oct_weight_kind kind) {
  oct_assert((guint)kind < OCT_WEIGHT_KINDS);
  return format == OCT_LOAD_GGUF ? &gguf[kind] : &hugging_face[kind];
}

gboolean
oct_name_expand(const char *prefix, const char *pattern, guint32 layer, guint32 expert, char *out,
                gsize size) {
  gsize n = strlen(prefix);
  if (n >= size)
    return FALSE;
  memcpy(out, prefix, n);
  for (const char *c = pattern; *c != '\0'; c++) {
    if (*c != '%') {
      if (n + 1 >= size)
        return FALSE;
      out[n++] = *c;
      continue;
    }
    c++;
    oct_assert(*c == 'l' || *c == 'e');
    int digits = g_snprintf(out + n, size - n, "%u", *c == 'l' ? layer : expert);
    if (digits < 0 || (gsize)digits >= size - n)
      return FALSE;
    n += (gsize)digits;
  }
  out[n] = '\0';
  return TRUE;
}

/* The number of the layer that a name begins with after `prefix`, or -1. */
static gint64
layer_of(const char *name, const char *prefix) {
  if (!g_str_has_prefix(name, prefix))
    return -1;
  const char *digits = name + strlen(prefix);
  guint64 layer = 0;
  guint n = 0;
  while (g_ascii_isdigit(digits[n]) && n < 9)
    layer = layer * 10 + (guint64)(digits[n++] - '0');
  return n > 0 && digits[n] == '.' ? (gint64)layer : -1;
}

const char *
oct_name_skipped(const char *name, guint32 n_layers, gboolean tied) {
  static const struct {
    const char *start, *reason;
  } starts[] = {
      {"vision_tower.", "another modality"}, {"model.vision_tower.", "another modality"},
      {"visual.", "another modality"},       {"model.visual.", "another modality"},
      {"mm_projector.", "another modality"}, {"multi_modal_projector.", "another modality"},
      {"mtp.", "multi-token prediction"},    {"model.mtp.", "multi-token prediction"},
  };
  static const struct {
    const char *end, *reason;
  } ends[] = {
      {".rotary_emb.inv_freq", "computed from the config"},
      {".input_scale", "a scale of activations"},
      {".input_global_scale", "a scale of activations"},
      {".output_scale", "a scale of activations"},
      {".k_scale", "a scale of the cache"},
      {".v_scale", "a scale of the cache"},
      {".q_scale", "a scale of the cache"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(starts); i++)
    if (g_str_has_prefix(name, starts[i].start))
      return starts[i].reason;
  for (guint i = 0; i < G_N_ELEMENTS(ends); i++)
    if (g_str_has_suffix(name, ends[i].end))
      return ends[i].reason;
  if (tied && (g_str_has_prefix(name, "lm_head.") || g_str_equal(name, "output.weight")))
    return "the head is the embedding";
  if (layer_of(name, "model.layers.") >= n_layers || layer_of(name, "blk.") >= n_layers)
    return "multi-token prediction";
  return NULL;
}
