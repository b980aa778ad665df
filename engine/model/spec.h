/* What a model is, as data: every layer's attention and feed-forward kind, their dimensions and how
 * their weights are stored. The scheduler derives memory from it, sim/cost derives operators and
 * their price, the backends derive kernels. Nothing else in Octet knows a model's name.
 *
 * A spec comes from a Hugging Face config.json (oct_model_spec_load(), engine/model/config.c), from
 * the zoo, which is a folder of such files, or from a GGUF file (engine/model/files/gguf-spec.c).
 * Sizes are elements unless the name ends in _bytes. A spec never changes once loaded: any thread
 * may read it.
 */
#ifndef OCT_MODEL_SPEC_H
#define OCT_MODEL_SPEC_H

#include <glib.h>

#include "engine/model/numerics.h"

/* Limits: what a config may ask for at most. Beyond them loading fails with an error that names the
 * field, the value and the limit. */
#define OCT_MODEL_LAYERS_MAX     512
#define OCT_MODEL_GROUPS_MAX     8
#define OCT_MODEL_DIM_MAX        (1 << 24) /* any width, also heads x head width and vocabulary */
#define OCT_MODEL_EXPERTS_MAX    65536
#define OCT_MODEL_PARAMETERS_MAX (G_GUINT64_CONSTANT(1) << 53) /* of the whole model */
#define OCT_MODEL_EOS_MAX        8
#define OCT_MODEL_TOKEN_NONE     G_MAXUINT32 /* a model without such a token */
#define OCT_PARALLEL_STAGES_MAX  16
#define OCT_PARALLEL_WORLD_MAX   4096

/* Storage of a weight or of KV. Block formats count their scales in oct_storage_bytes(). */
typedef enum oct_dtype {
  OCT_DTYPE_NONE, /* not set; never the type of a real tensor */
  OCT_DTYPE_F32,
  OCT_DTYPE_BF16,
  OCT_DTYPE_F16,
  OCT_DTYPE_FP8,       /* e4m3, one scale per tensor */
  OCT_DTYPE_FP8_BLOCK, /* e4m3, float32 scale per 128 x 128 block (DeepSeek) */
  OCT_DTYPE_MXFP4,     /* 4 bit, one e8m0 byte per 32 inputs */
  OCT_DTYPE_NVFP4,     /* 4 bit, one e4m3 byte per 16 inputs */
  OCT_DTYPE_INT4_G128, /* AWQ / GPTQ: 4 bit, f16 scale and 4-bit zero per 128 inputs */
  OCT_DTYPE_INT4_G64,  /* the same per 64 */
  OCT_DTYPE_INT4_G32,
  /* GGUF's blocks of 32 and of 256 inputs: engine/model/files/formats.h. */
  OCT_DTYPE_Q4_0,
  OCT_DTYPE_Q4_1,
  OCT_DTYPE_Q5_0,
  OCT_DTYPE_Q5_1,
  OCT_DTYPE_Q8_0,
  OCT_DTYPE_Q4_K,
  OCT_DTYPE_Q5_K,
  OCT_DTYPE_Q6_K,
  OCT_DTYPE_COUNT
} oct_dtype;

const char *oct_dtype_name(oct_dtype type); /* "bfloat16", "fp8", "mxfp4"…; static */
/* Inputs that share a scale in the 4-bit integer types, 0 for any other. */
guint32 oct_dtype_int4_group(oct_dtype type);
/* Bytes of a [rows, columns] weight in `type` as checkpoints store it: the codes of every element
 * (two 4-bit codes per byte, each row padded to a whole byte), and a scale for every block that a
 * row or tile begins, the last one even when partial. 0 columns or rows give 0. */
guint64 oct_storage_bytes(oct_dtype type, guint64 rows, guint64 columns);

typedef enum oct_attention_kind {
  OCT_ATTENTION_GQA,    /* K and V per KV head; MHA and MQA are special cases */
  OCT_ATTENTION_WINDOW, /* GQA that sees only the last `window` tokens */
  OCT_ATTENTION_MLA,    /* one latent of kv_lora + rope per token, the same on every TP rank */
  OCT_ATTENTION_KDA,    /* fixed-size recurrent state per sequence (Kimi delta attention) */
  OCT_ATTENTION_COUNT
} oct_attention_kind;

typedef enum oct_ffn_kind {
  OCT_FFN_DENSE,
  OCT_FFN_MOE,        /* routed experts on the hidden state (+ shared experts) */
  OCT_FFN_LATENT_MOE, /* routed experts on a down-projected latent (Kimi K3) */
  OCT_FFN_COUNT
} oct_ffn_kind;

typedef enum oct_activation {
  OCT_ACTIVATION_SWIGLU,
  OCT_ACTIVATION_SWIGLU_CLAMPED, /* gpt-oss */
  OCT_ACTIVATION_SITU,           /* Kimi K3 */
} oct_activation;

/* All attention dimensions of a model: one set per kind that it uses. */
typedef struct oct_attention_spec {
  oct_attention_kind kind;
  guint32 n_heads;
  guint32 n_kv_heads;        /* GQA, WINDOW */
  guint32 head_dim;          /* GQA, WINDOW: of q, k, v; KDA: key and value width of a head */
  guint32 window;            /* WINDOW: tokens seen, the current one included */
  guint32 q_lora, kv_lora;   /* MLA: 0 q_lora = direct q projection */
  guint32 qk_nope, qk_rope;  /* MLA head parts */
  guint32 v_head;            /* MLA value width of a head */
  guint32 conv_kernel;       /* KDA: short convolution taps; its state holds taps - 1 inputs */
  guint32 gate_rank;         /* KDA: rank of the decay gate's two projections (f_a, f_b) */
  guint32 output_gate_rank;  /* KDA: 0 = full-rank output gate, else low rank */
  guint32 decay_padding;     /* KDA: A_log is stored for heads rounded up to a multiple of this */
  gboolean output_gate;      /* MLA: Kimi K3's sigmoid gate on the attention output */
  gboolean qkv_bias, o_bias; /* qwen2, gpt-oss */
  gboolean qk_norm;          /* qwen3 */
  gboolean sinks;            /* gpt-oss: one learned sink logit per head */
} oct_attention_spec;

typedef struct oct_ffn_spec {
  oct_ffn_kind kind;
  guint32 intermediate;        /* DENSE: inner width */
  guint32 n_experts, top_k;    /* MOE kinds */
  guint32 moe_intermediate;    /* inner width of one routed expert */
  guint32 shared_intermediate; /* inner width of all shared experts together; 0 = none */
  guint32 latent;              /* LATENT_MOE: width the routed experts work on, else 0 */
  gboolean latent_norm;
  gboolean router_bias; /* selection bias, float32 [n_experts] */
  gboolean expert_bias; /* gpt-oss: biases on expert projections and router */
  gboolean shared_gate; /* qwen2-moe: a sigmoid gate on the shared expert */
  float routed_scaling;
} oct_ffn_spec;

typedef struct oct_layer_spec {
  guint8 attention; /* index into model.attention[] */
  guint8 ffn;       /* index into model.ffn[] */
} oct_layer_spec;

/* How each class of weight is stored. `base` is the checkpoint's own type: of norms and biases, and
 * of every class that no quantization covers. KDA's small vectors and the router's selection bias
 * are float32 in every checkpoint. */
typedef struct oct_weight_types {
  oct_dtype attention, dense_ffn, expert, shared_expert, router, latent, embedding, head, base;
} oct_weight_types;

typedef struct oct_model_spec {
  char *name;         /* zoo name, or the config's folder or file name */
  char *architecture; /* the config's model_type, e.g. "qwen3_moe" */
  guint32 vocab, hidden, n_layers, max_position;
  guint32 bos_token; /* OCT_MODEL_TOKEN_NONE when the config has none */
  guint32 n_eos_tokens, eos_tokens[OCT_MODEL_EOS_MAX];
  gboolean tied_embeddings;
  oct_activation activation;
  double rms_norm_eps;
  double rope_theta;      /* 0: no rotary positions (Kimi-Linear, Kimi K3) */
  guint32 attn_res_block; /* Kimi K3: layers per attention-residual block, 0 = none */
  guint32 n_attention, n_ffn;
  oct_attention_spec attention[OCT_ATTENTION_COUNT];
  oct_ffn_spec ffn[OCT_FFN_COUNT];
  oct_layer_spec *layers; /* [n_layers], owned */
  oct_numerics numerics;  /* for backends that compute tokens */
  oct_weight_types types;
  gboolean gptq_v2; /* GPTQ: 4-bit zeros are stored as they are, not less one */
} oct_model_spec;

#define OCT_MODEL_ERROR (oct_model_error_quark())
GQuark oct_model_error_quark(void);
typedef enum oct_model_error {
  OCT_MODEL_ERROR_NOT_FOUND,    /* no such zoo name or file */
  OCT_MODEL_ERROR_PARSE,        /* not JSON, or wrong types */
  OCT_MODEL_ERROR_FIELD,        /* a field is missing or out of range: named in the message */
  OCT_MODEL_ERROR_ARCHITECTURE, /* a model_type that Octet does not know */
  OCT_MODEL_ERROR_LAYOUT,       /* an illegal parallel layout: the reason is in the message */
} oct_model_error;

/* Life cycle.
 * `name` is a zoo name, a config.json, a .gguf file, or a folder that holds one. Zoo files are
 * looked for in `zoo_dir` (NULL: the built-in folder list, which oct_model_zoo_dirs() tells).
 * "NAME+FORMAT" is the same model with its weights of attention, feed-forwards and experts in
 * another type: fp8, fp8-block128, mxfp4, nvfp4, int4-g128, int4-g64 or int4-g32. (Checkpoints say
 * themselves what they hold; this is for made-up weights and plans.) "NAME+8layers" is the model's
 * first 8 layers between its embedding and head, "NAME+8layers+FORMAT" both.
 * Returns an owned spec, or NULL with *error. */
oct_model_spec *oct_model_spec_load(const char *name, const char *zoo_dir,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* From the text of a config.json; `name` labels it in errors and becomes spec->name. */
oct_model_spec *oct_model_spec_parse(const char *name, const char *json, gsize size,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_model_spec_free(oct_model_spec *spec); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_model_spec, oct_model_spec_free)

/* Whether any layer chooses among experts, and whether any keeps a recurrent state. */
gboolean oct_model_has_experts(const oct_model_spec *spec);
gboolean oct_model_has_state(const oct_model_spec *spec);

/* A layer group: the layers whose cache is kept and paged together. The scheduler has one pool of
 * pages (or of state slots) per group. GQA, WINDOW and MLA groups hold pages; a KDA group holds
 * state. */
typedef struct oct_layer_group {
  oct_attention_kind kind;
  guint32 n_layers;
  guint32 window;      /* WINDOW: tokens; else 0 */
  guint64 token_bytes; /* cache bytes per token over all layers and unsharded (0 for state) */
  guint64 state_bytes; /* bytes per sequence over all layers, unsharded (0 for pages) */
  guint8 attention;    /* index into model.attention[] */
} oct_layer_group;

/* Inspect: fills groups[] (in order of first appearance) and returns how many there are. KV is
 * counted in `kv` (BF16 or FP8). KDA state: float32 recurrent part, BF16 convolution part. */
guint oct_model_groups(const oct_model_spec *spec, oct_dtype kv,
                       oct_layer_group groups[OCT_MODEL_GROUPS_MAX]);

/* How a model is spread over ranks. World size = tensor x pipeline x (data, when attention is
 * data-parallel inside one instance). Defaults are 1 and FALSE: start from OCT_PARALLEL_DEFAULT. */
typedef struct oct_parallel {
  guint32 tensor;   /* TP: ranks that share attention heads and dense FFN width */
  guint32 pipeline; /* PP: stages; layers are split as evenly as possible, or as `stage_layers` */
  guint32 data;     /* data-parallel attention: KV domains in this instance */
  guint32 decode_context; /* DCP: ranks of one TP group that share a sequence's KV by token */
  gboolean
      expert_parallel; /* EP: experts whole, over tensor x data ranks; else expert width over TP */
  gboolean shard_latent; /* projections of experts' latents, and their router, sharded too (else
                            replicated); split.h has what else is */
  gboolean replicate_shared; /* shared experts whole on every rank (SGLang's SP-MoE) */
  guint32 stage_layers[OCT_PARALLEL_STAGES_MAX]; /* layers per stage; all 0 = even split, early
                                                    stages take the remainder */
} oct_parallel;

#define OCT_PARALLEL_DEFAULT                                                                       \
  ((oct_parallel){.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE})

/* Ranks of the instance. */
static inline guint32
oct_parallel_world(const oct_parallel *p) {
  return p->tensor * p->pipeline * p->data;
}

/* TRUE if the layout is legal for the model; else FALSE with *error (LAYOUT), which says why: heads
 * not divisible, experts not divisible, more stages than layers, DCP not dividing TP, … KV heads
 * may be fewer than TP when TP is a multiple of them: they are replicated, and counted so. */
gboolean oct_parallel_check(const oct_model_spec *spec, const oct_parallel *parallel,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* First layer and count of stage `stage`. */
void oct_parallel_stage(const oct_model_spec *spec, const oct_parallel *parallel, guint32 stage,
                        guint32 *first, guint32 *count);

/* Parameters and bytes of one class of weight. */
typedef struct oct_weight_sum {
  guint64 parameters, bytes;
} oct_weight_sum;

/* Classes: attention, latent, router and FFN are the matrices (an expert with its biases; the
 * router with its biases); norms are all norms, the other biases, attention sinks, KDA's
 * convolutions and small vectors, and the vectors of attention residuals. */
typedef struct oct_weights {
  oct_weight_sum attention, dense_ffn, experts, shared_experts, router, latent, norms, embedding,
      head;
} oct_weights;

/* Inspect: weights of the whole model, of one layer, and of one rank of a stage. The text model
 * only: towers of other modalities and multi-token-prediction layers are not counted. With tied
 * embeddings the head counts 0, except on the last of several stages, which holds its own copy. All
 * ranks of a stage hold equally much; a width that does not divide is rounded up. */
void oct_model_weights(const oct_model_spec *spec, oct_weights *out);
void oct_model_layer_weights(const oct_model_spec *spec, guint32 layer, oct_weights *out);
void oct_model_rank_weights(const oct_model_spec *spec, const oct_parallel *parallel, guint32 stage,
                            oct_weights *out);
oct_weight_sum oct_weights_total(const oct_weights *weights);
/* Parameters that one token's forward pass touches (top-k experts, no embedding lookup). */
guint64 oct_model_active_parameters(const oct_model_spec *spec);
/* Bytes (biases included) of one routed expert of layer `layer`, and parameters; 0 for a dense
 * layer. */
oct_weight_sum oct_model_expert(const oct_model_spec *spec, guint32 layer);

/* Cache bytes on one rank of a stage: per token of group `group` (of oct_model_groups()) with heads
 * sharded by TP (replicated when fewer), MLA replicated or divided by DCP; and per sequence for
 * state. */
guint64 oct_model_rank_token_bytes(const oct_model_spec *spec, const oct_parallel *parallel,
                                   guint32 stage, oct_dtype kv, guint group);
guint64 oct_model_rank_state_bytes(const oct_model_spec *spec, const oct_parallel *parallel,
                                   guint32 stage, guint group);

/* Folders that the zoo is looked for in, in order: $OCTET_ZOO is not read here (the command line
 * passes a folder), then the source tree's engine/model/zoo and the installed data folder.
 * Borrowed, NULL-terminated. */
const char *const *oct_model_zoo_dirs(void);
/* Names of all models in `zoo_dir` (NULL: in all built-in folders), sorted, each once. Owned,
 * NULL-terminated (g_strfreev()); empty when no folder can be read. */
char **oct_model_zoo_names(const char *zoo_dir) G_GNUC_WARN_UNUSED_RESULT;

#endif
