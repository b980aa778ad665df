/* The weight tensors of each kind of layer, in the order of the checkpoints, and how each kind is
 * spread over ranks. */
#include "engine/model/tensors.h"

#include "engine/base/assert.h"

/* What depends on the layout, or on the layer. */
enum {
  LATENT_ROWS = OCT_SPLIT_EXPERTS + 1, /* rows, or all without shard_latent */
  ROUTER_ROWS,                         /* likewise where experts work on a latent, else all */
  SHARED_ROWS,                         /* rows, or all with replicate_shared */
  SHARED_COLUMNS,
  EXPERT_ROWS, /* whole experts with expert_parallel, or rows of each */
  EXPERT_COLUMNS,
  EXPERT_FIRST,
};

/* Projections of a low rank, of which every rank needs all, are whole: reading them costs less than
 * exchanging what they give. Of Kimi K3 at TP8 q_a and kv_a are 30 MB a layer, 3.4 us less to read
 * on a B300 when they are split (7.7e12 B/s), and the gates of delta attention 1.8 MB, 0.2 us; one
 * more exchange takes 4 us. What experts' latents and their router give is exchanged together, and
 * both are 64 MB: 7.3 us less. Without latents nothing is exchanged there, and a router is 1 to 4
 * MB. */
static const guint8 splits[OCT_WEIGHT_KINDS] = {
    [OCT_WEIGHT_EMBEDDING] = OCT_SPLIT_VOCABULARY,
    [OCT_WEIGHT_HEAD] = OCT_SPLIT_VOCABULARY,
    [OCT_WEIGHT_Q] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_Q_BIAS] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_Q_B] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_KV_B] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_ATTN_GATE] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_ATTN_GATE_B] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_Q_CONV] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_K_CONV] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_V_CONV] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_DECAY_B] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_BETA] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_A_LOG] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_DT_BIAS] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_SINKS] = OCT_SPLIT_HEAD_ROWS,
    [OCT_WEIGHT_K] = OCT_SPLIT_KV_ROWS,
    [OCT_WEIGHT_V] = OCT_SPLIT_KV_ROWS,
    [OCT_WEIGHT_K_BIAS] = OCT_SPLIT_KV_ROWS,
    [OCT_WEIGHT_V_BIAS] = OCT_SPLIT_KV_ROWS,
    [OCT_WEIGHT_O] = OCT_SPLIT_HEAD_COLUMNS,
    [OCT_WEIGHT_O_BIAS] = OCT_SPLIT_FIRST,
    [OCT_WEIGHT_GATE] = OCT_SPLIT_ROWS,
    [OCT_WEIGHT_UP] = OCT_SPLIT_ROWS,
    [OCT_WEIGHT_DOWN] = OCT_SPLIT_COLUMNS,
    [OCT_WEIGHT_ROUTER] = ROUTER_ROWS,
    [OCT_WEIGHT_ROUTER_BIAS] = ROUTER_ROWS,
    [OCT_WEIGHT_LATENT_DOWN] = LATENT_ROWS,
    [OCT_WEIGHT_LATENT_UP] = LATENT_ROWS,
    [OCT_WEIGHT_SHARED_GATE] = SHARED_ROWS,
    [OCT_WEIGHT_SHARED_UP] = SHARED_ROWS,
    [OCT_WEIGHT_SHARED_DOWN] = SHARED_COLUMNS,
    [OCT_WEIGHT_EXPERT_GATE] = EXPERT_ROWS,
    [OCT_WEIGHT_EXPERT_UP] = EXPERT_ROWS,
    [OCT_WEIGHT_EXPERT_DOWN] = EXPERT_COLUMNS,
    [OCT_WEIGHT_EXPERT_GATE_BIAS] = EXPERT_ROWS,
    [OCT_WEIGHT_EXPERT_UP_BIAS] = EXPERT_ROWS,
    [OCT_WEIGHT_EXPERT_DOWN_BIAS] = EXPERT_FIRST,
};

oct_split
oct_weight_split(oct_weight_kind kind, const oct_ffn_spec *ffn, const oct_parallel *p) {
  oct_assert((guint)kind < OCT_WEIGHT_KINDS);
  gboolean latent = ffn != NULL && ffn->kind == OCT_FFN_LATENT_MOE;
  switch (splits[kind]) {
  case ROUTER_ROWS:
    return latent && p->shard_latent ? OCT_SPLIT_ROWS : OCT_SPLIT_WHOLE;
  case LATENT_ROWS:
    return p->shard_latent ? OCT_SPLIT_ROWS : OCT_SPLIT_WHOLE;
  case SHARED_ROWS:
    return p->replicate_shared ? OCT_SPLIT_WHOLE : OCT_SPLIT_ROWS;
  case SHARED_COLUMNS:
    return p->replicate_shared ? OCT_SPLIT_WHOLE : OCT_SPLIT_COLUMNS;
  case EXPERT_ROWS:
    return p->expert_parallel ? OCT_SPLIT_EXPERTS : OCT_SPLIT_ROWS;
  case EXPERT_COLUMNS:
    return p->expert_parallel ? OCT_SPLIT_EXPERTS : OCT_SPLIT_COLUMNS;
  case EXPERT_FIRST:
    return p->expert_parallel ? OCT_SPLIT_EXPERTS : OCT_SPLIT_FIRST;
  default:
    return (oct_split)splits[kind];
  }
}

guint64
oct_split_units(oct_split how, const oct_attention_spec *a) {
  gboolean grouped = a != NULL && a->kind != OCT_ATTENTION_KDA && a->kind != OCT_ATTENTION_MLA;
  if (how == OCT_SPLIT_KV_ROWS && grouped)
    return a->n_kv_heads;
  gboolean heads =
      how == OCT_SPLIT_HEAD_ROWS || how == OCT_SPLIT_KV_ROWS || how == OCT_SPLIT_HEAD_COLUMNS;
  return heads && a != NULL ? a->n_heads : 0;
}

static guint64
divide_up(guint64 a, guint64 b) {
  return (a + b - 1) / b;
}

guint64
oct_split_rows(oct_weight_kind kind, const oct_ffn_spec *ffn, const oct_parallel *p, guint64 rows) {
  oct_split how = oct_weight_split(kind, ffn, p);
  gboolean by_rows = how == OCT_SPLIT_ROWS || how == OCT_SPLIT_VOCABULARY;
  oct_assert(by_rows || how == OCT_SPLIT_WHOLE);
  return by_rows ? divide_up(rows, p->tensor) : rows;
}

/* ---------------------------------------------------------------- lists */

static void
add(oct_tensor_list *list, oct_tensor tensor) {
  oct_assert(list->n < OCT_TENSORS_MAX);
  if (tensor.rows == 0 || tensor.columns == 0)
    return;
  if (tensor.count == 0)
    tensor.count = 1;
  tensor.attention = list->attention;
  tensor.ffn = list->ffn;
  list->tensors[list->n++] = tensor;
}

static void
matrix(oct_tensor_list *list, oct_weight_kind kind, oct_tensor_class class, oct_dtype type,
       guint64 rows, guint64 columns) {
  add(list,
      (oct_tensor){.kind = kind, .class = class, .type = type, .rows = rows, .columns = columns});
}

static void
vector(oct_tensor_list *list, oct_weight_kind kind, oct_dtype type, guint64 n) {
  matrix(list, kind, OCT_TENSOR_NORM, type, n, 1);
}

static void
gqa_tensors(const oct_model_spec *spec, const oct_attention_spec *a, oct_tensor_list *list) {
  oct_dtype type = spec->types.attention, base = spec->types.base;
  guint64 hidden = spec->hidden, heads = a->n_heads, kv_heads = a->n_kv_heads;
  guint64 q = heads * a->head_dim, kv = kv_heads * a->head_dim;
  matrix(list, OCT_WEIGHT_Q, OCT_TENSOR_ATTENTION, type, q, hidden);
  matrix(list, OCT_WEIGHT_K, OCT_TENSOR_ATTENTION, type, kv, hidden);
  matrix(list, OCT_WEIGHT_V, OCT_TENSOR_ATTENTION, type, kv, hidden);
  matrix(list, OCT_WEIGHT_O, OCT_TENSOR_ATTENTION, type, hidden, q);
  if (a->qkv_bias) {
    vector(list, OCT_WEIGHT_Q_BIAS, base, q);
    vector(list, OCT_WEIGHT_K_BIAS, base, kv);
    vector(list, OCT_WEIGHT_V_BIAS, base, kv);
  }
  if (a->o_bias)
    vector(list, OCT_WEIGHT_O_BIAS, base, hidden);
  if (a->qk_norm) {
    vector(list, OCT_WEIGHT_Q_NORM, base, a->head_dim);
    vector(list, OCT_WEIGHT_K_NORM, base, a->head_dim);
  }
  if (a->sinks)
    vector(list, OCT_WEIGHT_SINKS, base, heads);
}

static void
mla_tensors(const oct_model_spec *spec, const oct_attention_spec *a, oct_tensor_list *list) {
  oct_dtype type = spec->types.attention, base = spec->types.base;
  guint64 hidden = spec->hidden, heads = a->n_heads;
  guint64 q = heads * (a->qk_nope + a->qk_rope), v = heads * a->v_head;
  if (a->q_lora > 0) {
    matrix(list, OCT_WEIGHT_Q_A, OCT_TENSOR_ATTENTION, type, a->q_lora, hidden);
    vector(list, OCT_WEIGHT_Q_A_NORM, base, a->q_lora);
    matrix(list, OCT_WEIGHT_Q_B, OCT_TENSOR_ATTENTION, type, q, a->q_lora);
  } else {
    matrix(list, OCT_WEIGHT_Q, OCT_TENSOR_ATTENTION, type, q, hidden);
  }
  matrix(list, OCT_WEIGHT_KV_A, OCT_TENSOR_ATTENTION, type, (guint64)a->kv_lora + a->qk_rope,
         hidden);
  vector(list, OCT_WEIGHT_KV_A_NORM, base, a->kv_lora);
  matrix(list, OCT_WEIGHT_KV_B, OCT_TENSOR_ATTENTION, type, heads * (a->qk_nope + a->v_head),
         a->kv_lora);
  if (a->output_gate)
    matrix(list, OCT_WEIGHT_ATTN_GATE, OCT_TENSOR_ATTENTION, type, v, hidden);
  matrix(list, OCT_WEIGHT_O, OCT_TENSOR_ATTENTION, type, hidden, v);
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
    matrix(list, OCT_WEIGHT_Q + i, OCT_TENSOR_ATTENTION, type, width, hidden);
  for (guint i = 0; i < 3; i++)
    matrix(list, OCT_WEIGHT_Q_CONV + i, OCT_TENSOR_NORM, OCT_DTYPE_F32, width, a->conv_kernel);
  matrix(list, OCT_WEIGHT_DECAY_A, OCT_TENSOR_ATTENTION, type, a->gate_rank, hidden);
  matrix(list, OCT_WEIGHT_DECAY_B, OCT_TENSOR_ATTENTION, type, width, a->gate_rank);
  matrix(list, OCT_WEIGHT_BETA, OCT_TENSOR_ATTENTION, type, heads, hidden); /* beta */
  if (a->output_gate_rank > 0) {
    matrix(list, OCT_WEIGHT_ATTN_GATE_A, OCT_TENSOR_ATTENTION, type, a->output_gate_rank, hidden);
    matrix(list, OCT_WEIGHT_ATTN_GATE_B, OCT_TENSOR_ATTENTION, type, width, a->output_gate_rank);
  } else {
    matrix(list, OCT_WEIGHT_ATTN_GATE, OCT_TENSOR_ATTENTION, type, width, hidden);
  }
  matrix(list, OCT_WEIGHT_O, OCT_TENSOR_ATTENTION, type, hidden, width);
  /* A_log, with its padding; dt_bias; the norm of a head's output. */
  guint64 padding = MAX(a->decay_padding, 1);
  vector(list, OCT_WEIGHT_A_LOG, OCT_DTYPE_F32, divide_up(heads, padding) * padding);
  vector(list, OCT_WEIGHT_DT_BIAS, OCT_DTYPE_F32, width);
  vector(list, OCT_WEIGHT_HEAD_NORM, OCT_DTYPE_F32, a->head_dim);
}

/* Gate (shape.kind), up and down of a gated MLP of inner width `inner` on inputs of width `outer`.
 */
static void
mlp_tensors(oct_tensor_list *list, oct_tensor shape, guint64 inner, guint64 outer) {
  shape.rows = inner;
  shape.columns = outer;
  add(list, shape);
  shape.kind++;
  add(list, shape);
  shape.kind++;
  shape.rows = outer;
  shape.columns = inner;
  add(list, shape);
}

static void
expert_tensors(const oct_model_spec *spec, const oct_ffn_spec *f, oct_tensor_list *list) {
  guint64 outer = f->kind == OCT_FFN_LATENT_MOE ? f->latent : spec->hidden;
  oct_tensor expert = {.kind = OCT_WEIGHT_EXPERT_GATE,
                       .class = OCT_TENSOR_EXPERT,
                       .type = spec->types.expert,
                       .count = f->n_experts};
  mlp_tensors(list, expert, f->moe_intermediate, outer);
  if (!f->expert_bias)
    return;
  expert.type = spec->types.base;
  expert.columns = 1;
  expert.rows = f->moe_intermediate;
  expert.kind = OCT_WEIGHT_EXPERT_GATE_BIAS;
  add(list, expert);
  expert.kind = OCT_WEIGHT_EXPERT_UP_BIAS;
  add(list, expert);
  expert.kind = OCT_WEIGHT_EXPERT_DOWN_BIAS;
  expert.rows = outer;
  add(list, expert);
}

static void
moe_tensors(const oct_model_spec *spec, const oct_ffn_spec *f, oct_tensor_list *list) {
  oct_tensor router = {.kind = OCT_WEIGHT_ROUTER,
                       .class = OCT_TENSOR_ROUTER,
                       .type = spec->types.router,
                       .rows = f->n_experts,
                       .columns = spec->hidden};
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
                         .columns = spec->hidden};
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
                         .type = spec->types.shared_expert};
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
  *list = (oct_tensor_list){.attention = a, .ffn = f};
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
  *list = (oct_tensor_list){0};
  matrix(list, OCT_WEIGHT_EMBEDDING, OCT_TENSOR_EMBEDDING, spec->types.embedding, spec->vocab,
         spec->hidden);
}

void
oct_tensors_after(const oct_model_spec *spec, gboolean own_head, oct_tensor_list *list) {
  *list = (oct_tensor_list){0};
  vector(list, OCT_WEIGHT_FINAL_NORM, spec->types.base, spec->hidden);
  if (spec->attn_res_block > 0) {
    vector(list, OCT_WEIGHT_FINAL_RES_NORM, spec->types.base, spec->hidden);
    vector(list, OCT_WEIGHT_FINAL_RES_PROJ, spec->types.base, spec->hidden);
  }
  if (!spec->tied_embeddings || own_head)
    matrix(list, OCT_WEIGHT_HEAD, OCT_TENSOR_HEAD, spec->types.head, spec->vocab, spec->hidden);
}

oct_weight_sum
oct_tensor_sum(const oct_tensor *tensor) {
  return (oct_weight_sum){
      .parameters = tensor->rows * tensor->columns * tensor->count,
      .bytes = oct_storage_bytes(tensor->type, tensor->rows, tensor->columns) * tensor->count,
  };
}

/* The part of n elements in `units` on the busiest rank: fewer units than ranks leave a whole one
 * on each. */
static guint64
part_of(guint64 n, guint64 units, guint64 ranks) {
  return units > 0 ? divide_up(units, ranks) * (n / units) : divide_up(n, ranks);
}

oct_weight_sum
oct_tensor_rank_sum(const oct_tensor *tensor, const oct_parallel *parallel) {
  oct_tensor part = *tensor;
  guint64 ranks = parallel->tensor;
  oct_split how = oct_weight_split(tensor->kind, tensor->ffn, parallel);
  guint64 units = oct_split_units(how, tensor->attention);
  switch (how) {
  case OCT_SPLIT_HEAD_ROWS:
  case OCT_SPLIT_KV_ROWS:
    if (tensor->kind == OCT_WEIGHT_A_LOG) /* what pads it is nobody's */
      part.rows = units;
    part.rows = part_of(part.rows, units, ranks);
    break;
  case OCT_SPLIT_ROWS:
  case OCT_SPLIT_VOCABULARY:
    part.rows = divide_up(tensor->rows, ranks);
    break;
  case OCT_SPLIT_HEAD_COLUMNS:
  case OCT_SPLIT_COLUMNS:
    part.columns = part_of(tensor->columns, units, ranks);
    break;
  case OCT_SPLIT_EXPERTS:
    part.count = divide_up(tensor->count, ranks * parallel->data);
    break;
  case OCT_SPLIT_WHOLE:
  case OCT_SPLIT_FIRST: /* the busiest is the first */
    break;
  }
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
