/* The weight tensors of each kind of layer, in the order of the checkpoints. */
#include "engine/model/tensors.h"

#include "engine/base/assert.h"

static void
add(oct_tensor_list *list, oct_tensor tensor) {
  oct_assert(list->n < OCT_TENSORS_MAX);
  if (tensor.rows == 0 || tensor.columns == 0)
    return;
  if (tensor.count == 0)
    tensor.count = 1;
  if (tensor.units == 0)
    tensor.units = tensor.axis == OCT_SPLIT_COLUMNS ? tensor.columns : tensor.rows;
  list->tensors[list->n++] = tensor;
}

/* A matrix of `class`, split along `axis` in `units` pieces. */
static void
matrix(oct_tensor_list *list, oct_weight_kind kind, oct_tensor_class class, oct_dtype type,
       guint64 rows, guint64 columns, oct_split_axis axis, guint64 units) {
  add(list, (oct_tensor){.kind = kind,
                         .class = class,
                         .type = type,
                         .rows = rows,
                         .columns = columns,
                         .axis = axis,
                         .units = units});
}

/* A vector that every rank holds whole. */
static void
vector(oct_tensor_list *list, oct_weight_kind kind, oct_dtype type, guint64 n) {
  add(list,
      (oct_tensor){.kind = kind, .class = OCT_TENSOR_NORM, .type = type, .rows = n, .columns = 1});
}

/* A vector with a part per head. */
static void
head_vector(oct_tensor_list *list, oct_weight_kind kind, oct_dtype type, guint64 n, guint64 columns,
            guint64 heads) {
  matrix(list, kind, OCT_TENSOR_NORM, type, n, columns, OCT_SPLIT_ROWS, heads);
}

/* A projection to a low rank, which every rank needs whole: split only with shard_latent. */
static void
low_rank(oct_tensor_list *list, oct_weight_kind kind, oct_dtype type, guint64 rows,
         guint64 columns) {
  add(list, (oct_tensor){.kind = kind,
                         .class = OCT_TENSOR_ATTENTION,
                         .type = type,
                         .rows = rows,
                         .columns = columns,
                         .axis = OCT_SPLIT_ROWS,
                         .rule = OCT_SPLIT_LATENT});
}

static void
gqa_tensors(const oct_model_spec *spec, const oct_attention_spec *a, oct_tensor_list *list) {
  oct_dtype type = spec->types.attention, base = spec->types.base;
  guint64 hidden = spec->hidden, heads = a->n_heads, kv_heads = a->n_kv_heads;
  guint64 q = heads * a->head_dim, kv = kv_heads * a->head_dim;
  matrix(list, OCT_WEIGHT_Q, OCT_TENSOR_ATTENTION, type, q, hidden, OCT_SPLIT_ROWS, heads);
  matrix(list, OCT_WEIGHT_K, OCT_TENSOR_ATTENTION, type, kv, hidden, OCT_SPLIT_ROWS, kv_heads);
  matrix(list, OCT_WEIGHT_V, OCT_TENSOR_ATTENTION, type, kv, hidden, OCT_SPLIT_ROWS, kv_heads);
  matrix(list, OCT_WEIGHT_O, OCT_TENSOR_ATTENTION, type, hidden, q, OCT_SPLIT_COLUMNS, heads);
  if (a->qkv_bias) {
    head_vector(list, OCT_WEIGHT_Q_BIAS, base, q, 1, heads);
    head_vector(list, OCT_WEIGHT_K_BIAS, base, kv, 1, kv_heads);
    head_vector(list, OCT_WEIGHT_V_BIAS, base, kv, 1, kv_heads);
  }
  if (a->o_bias)
    vector(list, OCT_WEIGHT_O_BIAS, base, hidden);
  if (a->qk_norm) {
    vector(list, OCT_WEIGHT_Q_NORM, base, a->head_dim);
    vector(list, OCT_WEIGHT_K_NORM, base, a->head_dim);
  }
  if (a->sinks)
    head_vector(list, OCT_WEIGHT_SINKS, base, heads, 1, heads);
}

static void
mla_tensors(const oct_model_spec *spec, const oct_attention_spec *a, oct_tensor_list *list) {
  oct_dtype type = spec->types.attention, base = spec->types.base;
  guint64 hidden = spec->hidden, heads = a->n_heads;
  guint64 q = heads * (a->qk_nope + a->qk_rope), v = heads * a->v_head;
  if (a->q_lora > 0) {
    low_rank(list, OCT_WEIGHT_Q_A, type, a->q_lora, hidden);
    vector(list, OCT_WEIGHT_Q_A_NORM, base, a->q_lora);
    matrix(list, OCT_WEIGHT_Q_B, OCT_TENSOR_ATTENTION, type, q, a->q_lora, OCT_SPLIT_ROWS, heads);
  } else {
    matrix(list, OCT_WEIGHT_Q, OCT_TENSOR_ATTENTION, type, q, hidden, OCT_SPLIT_ROWS, heads);
  }
  low_rank(list, OCT_WEIGHT_KV_A, type, (guint64)a->kv_lora + a->qk_rope, hidden);
  vector(list, OCT_WEIGHT_KV_A_NORM, base, a->kv_lora);
  matrix(list, OCT_WEIGHT_KV_B, OCT_TENSOR_ATTENTION, type, heads * (a->qk_nope + a->v_head),
         a->kv_lora, OCT_SPLIT_ROWS, heads);
  if (a->output_gate)
    matrix(list, OCT_WEIGHT_ATTN_GATE, OCT_TENSOR_ATTENTION, type, v, hidden, OCT_SPLIT_ROWS,
           heads);
  matrix(list, OCT_WEIGHT_O, OCT_TENSOR_ATTENTION, type, hidden, v, OCT_SPLIT_COLUMNS, heads);
  if (a->qkv_bias) {
    vector(list, OCT_WEIGHT_Q_A_BIAS, base, a->q_lora);
    vector(list, OCT_WEIGHT_KV_A_BIAS, base, (guint64)a->kv_lora + a->qk_rope);
  }
  if (a->o_bias)
    vector(list, OCT_WEIGHT_O_BIAS, base, hidden);
}

static void
kda_tensors(const oct_model_spec *spec, const oct_attention_spec *a, oct_tensor_list *list) {
  oct_dtype type = spec->types.attention;
  guint64 hidden = spec->hidden, heads = a->n_heads, width = heads * a->head_dim;
  for (guint i = 0; i < 3; i++) /* q, k, v */
    matrix(list, OCT_WEIGHT_Q + i, OCT_TENSOR_ATTENTION, type, width, hidden, OCT_SPLIT_ROWS,
           heads);
  for (guint i = 0; i < 3; i++)
    head_vector(list, OCT_WEIGHT_Q_CONV + i, OCT_DTYPE_F32, width, a->conv_kernel, heads);
  low_rank(list, OCT_WEIGHT_DECAY_A, type, a->gate_rank, hidden);
  matrix(list, OCT_WEIGHT_DECAY_B, OCT_TENSOR_ATTENTION, type, width, a->gate_rank, OCT_SPLIT_ROWS,
         heads);
  matrix(list, OCT_WEIGHT_BETA, OCT_TENSOR_ATTENTION, type, heads, hidden, OCT_SPLIT_ROWS,
         heads); /* beta */
  if (a->output_gate_rank > 0) {
    low_rank(list, OCT_WEIGHT_ATTN_GATE_A, type, a->output_gate_rank, hidden);
    matrix(list, OCT_WEIGHT_ATTN_GATE_B, OCT_TENSOR_ATTENTION, type, width, a->output_gate_rank,
           OCT_SPLIT_ROWS, heads);
  } else {
    matrix(list, OCT_WEIGHT_ATTN_GATE, OCT_TENSOR_ATTENTION, type, width, hidden, OCT_SPLIT_ROWS,
           heads);
  }
  matrix(list, OCT_WEIGHT_O, OCT_TENSOR_ATTENTION, type, hidden, width, OCT_SPLIT_COLUMNS, heads);
  /* A_log, with its padding; dt_bias; the norm of a head's output. */
  guint64 padding = MAX(a->decay_padding, 1);
  head_vector(list, OCT_WEIGHT_A_LOG, OCT_DTYPE_F32, (heads + padding - 1) / padding * padding, 1,
              0);
  head_vector(list, OCT_WEIGHT_DT_BIAS, OCT_DTYPE_F32, width, 1, heads);
  vector(list, OCT_WEIGHT_HEAD_NORM, OCT_DTYPE_F32, a->head_dim);
}

/* Gate (shape.kind), up and down of a gated MLP of inner width `inner` on inputs of width `outer`.
 */
static void
mlp_tensors(oct_tensor_list *list, oct_tensor shape, guint64 inner, guint64 outer) {
  shape.rows = inner;
  shape.columns = outer;
  shape.axis = OCT_SPLIT_ROWS;
  add(list, shape);
  shape.kind++;
  add(list, shape);
  shape.kind++;
  shape.rows = outer;
  shape.columns = inner;
  shape.axis = OCT_SPLIT_COLUMNS;
  add(list, shape);
}

static void
expert_tensors(const oct_model_spec *spec, const oct_ffn_spec *f, oct_tensor_list *list) {
  guint64 outer = f->kind == OCT_FFN_LATENT_MOE ? f->latent : spec->hidden;
  oct_tensor expert = {.kind = OCT_WEIGHT_EXPERT_GATE,
                       .class = OCT_TENSOR_EXPERT,
                       .type = spec->types.expert,
                       .count = f->n_experts,
                       .rule = OCT_SPLIT_EXPERT};
  mlp_tensors(list, expert, f->moe_intermediate, outer);
  if (!f->expert_bias)
    return;
  expert.type = spec->types.base;
  expert.columns = 1;
  expert.rows = f->moe_intermediate;
  expert.axis = OCT_SPLIT_ROWS;
  expert.kind = OCT_WEIGHT_EXPERT_GATE_BIAS;
  add(list, expert);
  expert.kind = OCT_WEIGHT_EXPERT_UP_BIAS;
  add(list, expert);
  expert.kind = OCT_WEIGHT_EXPERT_DOWN_BIAS;
  expert.rows = outer;
  expert.axis = OCT_SPLIT_NONE;
  add(list, expert);
}

static void
moe_tensors(const oct_model_spec *spec, const oct_ffn_spec *f, oct_tensor_list *list) {
  oct_tensor router = {.kind = OCT_WEIGHT_ROUTER,
                       .class = OCT_TENSOR_ROUTER,
                       .type = spec->types.router,
                       .rows = f->n_experts,
                       .columns = spec->hidden,
                       .axis = OCT_SPLIT_ROWS,
                       .rule = OCT_SPLIT_LATENT};
  add(list, router);
  router.columns = 1;
  if (f->router_bias) {
    router.kind = OCT_WEIGHT_ROUTER_SCORE_BIAS;
    router.type = OCT_DTYPE_F32;
    add(list, router);
  }
  if (f->expert_bias) {
    router.kind = OCT_WEIGHT_ROUTER_BIAS;
    router.type = spec->types.base;
    add(list, router);
  }
  if (f->kind == OCT_FFN_LATENT_MOE) {
    oct_tensor latent = {.kind = OCT_WEIGHT_LATENT_DOWN,
                         .class = OCT_TENSOR_LATENT,
                         .type = spec->types.latent,
                         .rows = f->latent,
                         .columns = spec->hidden,
                         .axis = OCT_SPLIT_ROWS,
                         .rule = OCT_SPLIT_LATENT};
    add(list, latent);
    latent.kind = OCT_WEIGHT_LATENT_UP;
    latent.rows = spec->hidden;
    latent.columns = f->latent;
    add(list, latent);
    if (f->latent_norm)
      vector(list, OCT_WEIGHT_LATENT_NORM, spec->types.base, f->latent);
  }
  if (f->shared_intermediate > 0) {
    oct_tensor shared = {.kind = OCT_WEIGHT_SHARED_GATE,
                         .class = OCT_TENSOR_SHARED,
                         .type = spec->types.shared_expert,
                         .rule = OCT_SPLIT_SHARED};
    mlp_tensors(list, shared, f->shared_intermediate, spec->hidden);
    if (f->shared_gate)
      vector(list, OCT_WEIGHT_SHARED_SWITCH, spec->types.base, spec->hidden);
  }
  expert_tensors(spec, f, list);
}

void
oct_tensors_layer(const oct_model_spec *spec, guint32 layer, oct_tensor_list *list) {
  oct_assert(layer < spec->n_layers);
  const oct_attention_spec *a = &spec->attention[spec->layers[layer].attention];
  const oct_ffn_spec *f = &spec->ffn[spec->layers[layer].ffn];
  list->n = 0;
  /* Norms before attention and before the FFN; with attention residuals, a norm and a projection
   * vector before each. */
  vector(list, OCT_WEIGHT_ATTN_NORM, spec->types.base, spec->hidden);
  vector(list, OCT_WEIGHT_FFN_NORM, spec->types.base, spec->hidden);
  for (guint i = 0; i < 2 && spec->attn_res_block > 0; i++) {
    vector(list, i == 0 ? OCT_WEIGHT_ATTN_RES_NORM : OCT_WEIGHT_FFN_RES_NORM, spec->types.base,
           spec->hidden);
    vector(list, i == 0 ? OCT_WEIGHT_ATTN_RES_PROJ : OCT_WEIGHT_FFN_RES_PROJ, spec->types.base,
           spec->hidden);
  }
  if (a->kind == OCT_ATTENTION_MLA)
    mla_tensors(spec, a, list);
  else if (a->kind == OCT_ATTENTION_KDA)
    kda_tensors(spec, a, list);
  else
    gqa_tensors(spec, a, list);
  if (f->kind == OCT_FFN_DENSE)
    mlp_tensors(list,
                (oct_tensor){.kind = OCT_WEIGHT_GATE,
                             .class = OCT_TENSOR_DENSE,
                             .type = spec->types.dense_ffn},
                f->intermediate, spec->hidden);
  else
    moe_tensors(spec, f, list);
}

void
oct_tensors_before(const oct_model_spec *spec, oct_tensor_list *list) {
  list->n = 0;
  matrix(list, OCT_WEIGHT_EMBEDDING, OCT_TENSOR_EMBEDDING, spec->types.embedding, spec->vocab,
         spec->hidden, OCT_SPLIT_ROWS, 0);
}

void
oct_tensors_after(const oct_model_spec *spec, gboolean own_head, oct_tensor_list *list) {
  list->n = 0;
  vector(list, OCT_WEIGHT_FINAL_NORM, spec->types.base, spec->hidden);
  if (spec->attn_res_block > 0) {
    vector(list, OCT_WEIGHT_FINAL_RES_NORM, spec->types.base, spec->hidden);
    vector(list, OCT_WEIGHT_FINAL_RES_PROJ, spec->types.base, spec->hidden);
  }
  if (!spec->tied_embeddings || own_head)
    matrix(list, OCT_WEIGHT_HEAD, OCT_TENSOR_HEAD, spec->types.head, spec->vocab, spec->hidden,
           OCT_SPLIT_ROWS, 0);
}

oct_weight_sum
oct_tensor_sum(const oct_tensor *tensor) {
  return (oct_weight_sum){
      .parameters = tensor->rows * tensor->columns * tensor->count,
      .bytes = oct_storage_bytes(tensor->type, tensor->rows, tensor->columns) * tensor->count,
  };
}

static guint64
divide_up(guint64 a, guint64 b) {
  return (a + b - 1) / b;
}

oct_weight_sum
oct_tensor_rank_sum(const oct_tensor *tensor, const oct_parallel *parallel) {
  oct_tensor part = *tensor;
  guint64 ranks = parallel->tensor;
  if (tensor->rule == OCT_SPLIT_EXPERT && parallel->expert_parallel) {
    part.count = divide_up(tensor->count, ranks * parallel->data);
    return oct_tensor_sum(&part);
  }
  if ((tensor->rule == OCT_SPLIT_LATENT && !parallel->shard_latent) ||
      (tensor->rule == OCT_SPLIT_SHARED && parallel->replicate_shared))
    return oct_tensor_sum(&part);
  /* Fewer units than ranks leave a whole unit, replicated, on each: KV heads under a large TP. */
  if (tensor->axis == OCT_SPLIT_ROWS)
    part.rows = divide_up(tensor->units, ranks) * (tensor->rows / tensor->units);
  else if (tensor->axis == OCT_SPLIT_COLUMNS)
    part.columns = divide_up(tensor->units, ranks) * (tensor->columns / tensor->units);
  return oct_tensor_sum(&part);
}

const char *
oct_weight_kind_name(oct_weight_kind kind) {
  static const char *const names[OCT_WEIGHT_KINDS] = {
      [OCT_WEIGHT_EMBEDDING] = "embedding",
      [OCT_WEIGHT_FINAL_NORM] = "final norm",
      [OCT_WEIGHT_FINAL_RES_NORM] = "final res norm",
      [OCT_WEIGHT_FINAL_RES_PROJ] = "final res proj",
      [OCT_WEIGHT_HEAD] = "head",
      [OCT_WEIGHT_ATTN_NORM] = "attn norm",
      [OCT_WEIGHT_ATTN_RES_NORM] = "attn res norm",
      [OCT_WEIGHT_ATTN_RES_PROJ] = "attn res proj",
      [OCT_WEIGHT_FFN_NORM] = "ffn norm",
      [OCT_WEIGHT_FFN_RES_NORM] = "ffn res norm",
      [OCT_WEIGHT_FFN_RES_PROJ] = "ffn res proj",
      [OCT_WEIGHT_Q] = "q",
      [OCT_WEIGHT_K] = "k",
      [OCT_WEIGHT_V] = "v",
      [OCT_WEIGHT_O] = "o",
      [OCT_WEIGHT_Q_BIAS] = "q bias",
      [OCT_WEIGHT_K_BIAS] = "k bias",
      [OCT_WEIGHT_V_BIAS] = "v bias",
      [OCT_WEIGHT_O_BIAS] = "o bias",
      [OCT_WEIGHT_Q_NORM] = "q norm",
      [OCT_WEIGHT_K_NORM] = "k norm",
      [OCT_WEIGHT_SINKS] = "sinks",
      [OCT_WEIGHT_Q_A] = "q a",
      [OCT_WEIGHT_Q_A_NORM] = "q a norm",
      [OCT_WEIGHT_Q_A_BIAS] = "q a bias",
      [OCT_WEIGHT_Q_B] = "q b",
      [OCT_WEIGHT_KV_A] = "kv a",
      [OCT_WEIGHT_KV_A_NORM] = "kv a norm",
      [OCT_WEIGHT_KV_A_BIAS] = "kv a bias",
      [OCT_WEIGHT_KV_B] = "kv b",
      [OCT_WEIGHT_ATTN_GATE] = "attn gate",
      [OCT_WEIGHT_Q_CONV] = "q conv",
      [OCT_WEIGHT_K_CONV] = "k conv",
      [OCT_WEIGHT_V_CONV] = "v conv",
      [OCT_WEIGHT_DECAY_A] = "decay a",
      [OCT_WEIGHT_DECAY_B] = "decay b",
      [OCT_WEIGHT_BETA] = "beta",
      [OCT_WEIGHT_ATTN_GATE_A] = "attn gate a",
      [OCT_WEIGHT_ATTN_GATE_B] = "attn gate b",
      [OCT_WEIGHT_A_LOG] = "a log",
      [OCT_WEIGHT_DT_BIAS] = "dt bias",
      [OCT_WEIGHT_HEAD_NORM] = "head norm",
      [OCT_WEIGHT_GATE] = "gate",
      [OCT_WEIGHT_UP] = "up",
      [OCT_WEIGHT_DOWN] = "down",
      [OCT_WEIGHT_ROUTER] = "router",
      [OCT_WEIGHT_ROUTER_SCORE_BIAS] = "router score bias",
      [OCT_WEIGHT_ROUTER_BIAS] = "router bias",
      [OCT_WEIGHT_LATENT_DOWN] = "latent down",
      [OCT_WEIGHT_LATENT_UP] = "latent up",
      [OCT_WEIGHT_LATENT_NORM] = "latent norm",
      [OCT_WEIGHT_SHARED_GATE] = "shared gate",
      [OCT_WEIGHT_SHARED_UP] = "shared up",
      [OCT_WEIGHT_SHARED_DOWN] = "shared down",
      [OCT_WEIGHT_SHARED_SWITCH] = "shared switch",
      [OCT_WEIGHT_EXPERT_GATE] = "expert gate",
      [OCT_WEIGHT_EXPERT_UP] = "expert up",
      [OCT_WEIGHT_EXPERT_DOWN] = "expert down",
      [OCT_WEIGHT_EXPERT_GATE_BIAS] = "expert gate bias",
      [OCT_WEIGHT_EXPERT_UP_BIAS] = "expert up bias",
      [OCT_WEIGHT_EXPERT_DOWN_BIAS] = "expert down bias",
  };
  oct_assert((guint)kind < OCT_WEIGHT_KINDS);
  return names[kind];
}
