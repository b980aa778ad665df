/* The weights of a model by what they are for. The list of tensors (engine/model/tensors.h) says
 * which of them a layer has and their shapes; the map of a checkpoint (engine/model/files/map.h)
 * finds them in its files.
 *
 * Shapes are [outputs, inputs]; vectors are [n, 1]. H: hidden width, D: width of an attention head,
 * E: experts.
 */
#ifndef OCT_MODEL_KINDS_H
#define OCT_MODEL_KINDS_H

typedef enum oct_weight_kind {
  /* Of the model: before and after the layers. */
  OCT_WEIGHT_EMBEDDING,      /* [vocabulary, H] */
  OCT_WEIGHT_FINAL_NORM,     /* [H] */
  OCT_WEIGHT_FINAL_RES_NORM, /* attention residuals (Kimi K3): [H] */
  OCT_WEIGHT_FINAL_RES_PROJ, /* [H] */
  OCT_WEIGHT_HEAD,           /* [vocabulary, H]; tied models have none */
  /* Of a layer. */
  OCT_WEIGHT_ATTN_NORM, /* [H] */
  OCT_WEIGHT_ATTN_RES_NORM,
  OCT_WEIGHT_ATTN_RES_PROJ,
  OCT_WEIGHT_FFN_NORM,
  OCT_WEIGHT_FFN_RES_NORM,
  OCT_WEIGHT_FFN_RES_PROJ,
  OCT_WEIGHT_Q, /* GQA, KDA, and MLA without a low rank for q */
  OCT_WEIGHT_K,
  OCT_WEIGHT_V,
  OCT_WEIGHT_O,
  OCT_WEIGHT_Q_BIAS,
  OCT_WEIGHT_K_BIAS,
  OCT_WEIGHT_V_BIAS,
  OCT_WEIGHT_O_BIAS,
  OCT_WEIGHT_Q_NORM, /* [D] */
  OCT_WEIGHT_K_NORM,
  OCT_WEIGHT_SINKS, /* [heads] */
  OCT_WEIGHT_Q_A,   /* MLA: [q_lora, H] */
  OCT_WEIGHT_Q_A_NORM,
  OCT_WEIGHT_Q_A_BIAS,
  OCT_WEIGHT_Q_B,  /* [heads x (nope + rope), q_lora] */
  OCT_WEIGHT_KV_A, /* [kv_lora + rope, H] */
  OCT_WEIGHT_KV_A_NORM,
  OCT_WEIGHT_KV_A_BIAS,
  OCT_WEIGHT_KV_B,      /* [heads x (nope + v), kv_lora] */
  OCT_WEIGHT_ATTN_GATE, /* output gate of K3's MLA, and of KDA at full rank */
  OCT_WEIGHT_Q_CONV,    /* KDA: [heads x D, taps] */
  OCT_WEIGHT_K_CONV,
  OCT_WEIGHT_V_CONV,
  OCT_WEIGHT_DECAY_A, /* [gate rank, H] */
  OCT_WEIGHT_DECAY_B, /* [heads x D, gate rank] */
  OCT_WEIGHT_BETA,    /* [heads, H] */
  OCT_WEIGHT_ATTN_GATE_A,
  OCT_WEIGHT_ATTN_GATE_B,
  OCT_WEIGHT_A_LOG,     /* [heads, padded]: what is behind the heads is not used */
  OCT_WEIGHT_DT_BIAS,   /* [heads x D] */
  OCT_WEIGHT_HEAD_NORM, /* [D] */
  OCT_WEIGHT_GATE,      /* dense FFN; GATE, UP and DOWN of each kind of FFN follow one another */
  OCT_WEIGHT_UP,
  OCT_WEIGHT_DOWN,
  OCT_WEIGHT_ROUTER,            /* [E, H] */
  OCT_WEIGHT_ROUTER_SCORE_BIAS, /* [E]: selects, is not part of an expert's weight */
  OCT_WEIGHT_ROUTER_BIAS,       /* [E]: gpt-oss, part of the logits */
  OCT_WEIGHT_LATENT_DOWN,
  OCT_WEIGHT_LATENT_UP,
  OCT_WEIGHT_LATENT_NORM,
  OCT_WEIGHT_SHARED_GATE,
  OCT_WEIGHT_SHARED_UP,
  OCT_WEIGHT_SHARED_DOWN,
  OCT_WEIGHT_SHARED_SWITCH, /* qwen2-moe: [H], a sigmoid on the shared expert */
  /* Of an expert of a layer. */
  OCT_WEIGHT_EXPERT_GATE,
  OCT_WEIGHT_EXPERT_UP,
  OCT_WEIGHT_EXPERT_DOWN,
  OCT_WEIGHT_EXPERT_GATE_BIAS,
  OCT_WEIGHT_EXPERT_UP_BIAS,
  OCT_WEIGHT_EXPERT_DOWN_BIAS,
  OCT_WEIGHT_KINDS
} oct_weight_kind;

/* "q", "expert down"…: static. Defined in engine/model/tensors.c. */
const char *oct_weight_kind_name(oct_weight_kind kind);

#endif
