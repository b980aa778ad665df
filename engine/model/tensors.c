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
matrix(oct_tensor_list *list, oct_tensor_class class, oct_dtype type, guint64 rows, guint64 columns,
       oct_split_axis axis, guint64 units) {
  add(list, (oct_tensor){.class = class,
                         .type = type,
                         .rows = rows,
                         .columns = columns,
                         .axis = axis,
                         .units = units});
}

/* A vector that every rank holds whole. */
static void
vector(oct_tensor_list *list, oct_dtype type, guint64 n) {
  add(list, (oct_tensor){.class = OCT_TENSOR_NORM, .type = type, .rows = n, .columns = 1});
}

/* A vector with a part per head. */
static void
head_vector(oct_tensor_list *list, oct_dtype type, guint64 n, guint64 columns, guint64 heads) {
  matrix(list, OCT_TENSOR_NORM, type, n, columns, OCT_SPLIT_ROWS, heads);
}

/* A projection to a low rank, which every rank needs whole: split only with shard_latent. */
static void
low_rank(oct_tensor_list *list, oct_dtype type, guint64 rows, guint64 columns) {
  add(list, (oct_tensor){.class = OCT_TENSOR_ATTENTION,
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
  matrix(list, OCT_TENSOR_ATTENTION, type, q, hidden, OCT_SPLIT_ROWS, heads);
  matrix(list, OCT_TENSOR_ATTENTION, type, kv, hidden, OCT_SPLIT_ROWS, kv_heads);
  matrix(list, OCT_TENSOR_ATTENTION, type, kv, hidden, OCT_SPLIT_ROWS, kv_heads);
  matrix(list, OCT_TENSOR_ATTENTION, type, hidden, q, OCT_SPLIT_COLUMNS, heads);
  if (a->qkv_bias) {
    head_vector(list, base, q, 1, heads);
    head_vector(list, base, kv, 1, kv_heads);
    head_vector(list, base, kv, 1, kv_heads);
  }
  if (a->o_bias)
    vector(list, base, hidden);
  if (a->qk_norm) {
    vector(list, base, a->head_dim);
    vector(list, base, a->head_dim);
  }
  if (a->sinks)
    head_vector(list, base, heads, 1, heads);
}

static void
mla_tensors(const oct_model_spec *spec, const oct_attention_spec *a, oct_tensor_list *list) {
  oct_dtype type = spec->types.attention, base = spec->types.base;
  guint64 hidden = spec->hidden, heads = a->n_heads;
  guint64 q = heads * (a->qk_nope + a->qk_rope), v = heads * a->v_head;
  if (a->q_lora > 0) {
    low_rank(list, type, a->q_lora, hidden);
    vector(list, base, a->q_lora);
    matrix(list, OCT_TENSOR_ATTENTION, type, q, a->q_lora, OCT_SPLIT_ROWS, heads);
  } else {
    matrix(list, OCT_TENSOR_ATTENTION, type, q, hidden, OCT_SPLIT_ROWS, heads);
  }
  low_rank(list, type, (guint64)a->kv_lora + a->qk_rope, hidden);
  vector(list, base, a->kv_lora);
  matrix(list, OCT_TENSOR_ATTENTION, type, heads * (a->qk_nope + a->v_head), a->kv_lora,
         OCT_SPLIT_ROWS, heads);
  if (a->output_gate)
    matrix(list, OCT_TENSOR_ATTENTION, type, v, hidden, OCT_SPLIT_ROWS, heads);
  matrix(list, OCT_TENSOR_ATTENTION, type, hidden, v, OCT_SPLIT_COLUMNS, heads);
  if (a->qkv_bias) {
    vector(list, base, a->q_lora);
    vector(list, base, (guint64)a->kv_lora + a->qk_rope);
  }
  if (a->o_bias)
    vector(list, base, hidden);
}

static void
kda_tensors(const oct_model_spec *spec, const oct_attention_spec *a, oct_tensor_list *list) {
  oct_dtype type = spec->types.attention;
  guint64 hidden = spec->hidden, heads = a->n_heads, width = heads * a->head_dim;
  for (guint i = 0; i < 3; i++) /* q, k, v */
    matrix(list, OCT_TENSOR_ATTENTION, type, width, hidden, OCT_SPLIT_ROWS, heads);
  for (guint i = 0; i < 3; i++)
    head_vector(list, OCT_DTYPE_F32, width, a->conv_kernel, heads);
  low_rank(list, type, a->gate_rank, hidden);
  matrix(list, OCT_TENSOR_ATTENTION, type, width, a->gate_rank, OCT_SPLIT_ROWS, heads);
  matrix(list, OCT_TENSOR_ATTENTION, type, heads, hidden, OCT_SPLIT_ROWS, heads); /* beta */
  if (a->output_gate_rank > 0) {
    low_rank(list, type, a->output_gate_rank, hidden);
    matrix(list, OCT_TENSOR_ATTENTION, type, width, a->output_gate_rank, OCT_SPLIT_ROWS, heads);
  } else {
    matrix(list, OCT_TENSOR_ATTENTION, type, width, hidden, OCT_SPLIT_ROWS, heads);
  }
  matrix(list, OCT_TENSOR_ATTENTION, type, hidden, width, OCT_SPLIT_COLUMNS, heads);
  /* A_log, with its padding; dt_bias; the norm of a head's output. */
  guint64 padding = MAX(a->decay_padding, 1);
  head_vector(list, OCT_DTYPE_F32, (heads + padding - 1) / padding * padding, 1, 0);
  head_vector(list, OCT_DTYPE_F32, width, 1, heads);
  vector(list, OCT_DTYPE_F32, a->head_dim);
}

/* Gate, up and down of a gated MLP of inner width `inner` on inputs of width `outer`. */
static void
mlp_tensors(oct_tensor_list *list, oct_tensor shape, guint64 inner, guint64 outer) {
  shape.rows = inner;
  shape.columns = outer;
  shape.axis = OCT_SPLIT_ROWS;
  add(list, shape);
  add(list, shape);
  shape.rows = outer;
  shape.columns = inner;
  shape.axis = OCT_SPLIT_COLUMNS;
  add(list, shape);
}

static void
expert_tensors(const oct_model_spec *spec, const oct_ffn_spec *f, oct_tensor_list *list) {
  guint64 outer = f->kind == OCT_FFN_LATENT_MOE ? f->latent : spec->hidden;
  oct_tensor expert = {.class = OCT_TENSOR_EXPERT,
                       .type = spec->types.expert,
                       .count = f->n_experts,
                       .rule = OCT_SPLIT_EXPERT};
  mlp_tensors(list, expert, f->moe_intermediate, outer);
  if (!f->expert_bias)
    return;
  expert.type = spec->types.base;
  expert.columns = 1;
  expert.rows = 2 * (guint64)f->moe_intermediate;
  expert.axis = OCT_SPLIT_ROWS;
  add(list, expert);
  expert.rows = outer;
  expert.axis = OCT_SPLIT_NONE;
  add(list, expert);
}

static void
moe_tensors(const oct_model_spec *spec, const oct_ffn_spec *f, oct_tensor_list *list) {
  oct_tensor router = {.class = OCT_TENSOR_ROUTER,
                       .type = spec->types.router,
                       .rows = f->n_experts,
                       .columns = spec->hidden,
                       .axis = OCT_SPLIT_ROWS,
                       .rule = OCT_SPLIT_LATENT};
  add(list, router);
  router.columns = 1;
  if (f->router_bias) {
    router.type = OCT_DTYPE_F32;
    add(list, router);
  }
  if (f->expert_bias) {
    router.type = spec->types.base;
    add(list, router);
  }
  if (f->kind == OCT_FFN_LATENT_MOE) {
    oct_tensor latent = {.class = OCT_TENSOR_LATENT,
                         .type = spec->types.latent,
                         .rows = f->latent,
                         .columns = spec->hidden,
                         .axis = OCT_SPLIT_ROWS,
                         .rule = OCT_SPLIT_LATENT};
    add(list, latent);
    latent.rows = spec->hidden;
    latent.columns = f->latent;
    add(list, latent);
    if (f->latent_norm)
      vector(list, spec->types.base, f->latent);
  }
  if (f->shared_intermediate > 0) {
    oct_tensor shared = {
        .class = OCT_TENSOR_SHARED, .type = spec->types.shared_expert, .rule = OCT_SPLIT_SHARED};
    mlp_tensors(list, shared, f->shared_intermediate, spec->hidden);
    if (f->shared_gate)
      vector(list, spec->types.base, spec->hidden);
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
  guint vectors = spec->attn_res_block > 0 ? 6 : 2;
  for (guint i = 0; i < vectors; i++)
    vector(list, spec->types.base, spec->hidden);
  if (a->kind == OCT_ATTENTION_MLA)
    mla_tensors(spec, a, list);
  else if (a->kind == OCT_ATTENTION_KDA)
    kda_tensors(spec, a, list);
  else
    gqa_tensors(spec, a, list);
  if (f->kind == OCT_FFN_DENSE)
    mlp_tensors(list, (oct_tensor){.class = OCT_TENSOR_DENSE, .type = spec->types.dense_ffn},
                f->intermediate, spec->hidden);
  else
    moe_tensors(spec, f, list);
}

void
oct_tensors_before(const oct_model_spec *spec, oct_tensor_list *list) {
  list->n = 0;
  matrix(list, OCT_TENSOR_EMBEDDING, spec->types.embedding, spec->vocab, spec->hidden,
         OCT_SPLIT_ROWS, 0);
}

void
oct_tensors_after(const oct_model_spec *spec, gboolean own_head, oct_tensor_list *list) {
  list->n = 0;
  vector(list, spec->types.base, spec->hidden);
  if (spec->attn_res_block > 0) {
    vector(list, spec->types.base, spec->hidden);
    vector(list, spec->types.base, spec->hidden);
  }
  if (!spec->tied_embeddings || own_head)
    matrix(list, OCT_TENSOR_HEAD, spec->types.head, spec->vocab, spec->hidden, OCT_SPLIT_ROWS, 0);
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
