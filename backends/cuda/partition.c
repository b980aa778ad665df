#include "backends/cuda/partition.h"

#include "engine/base/assert.h"

/* What is divided over the ranks of a tensor group. */
typedef enum split {
  WHOLE,     /* nothing: every rank has it */
  FIRST,     /* nothing: the first rank has it */
  HEAD_ROWS, /* rows by attention head */
  KV_ROWS,   /* rows by KV head */
  HEAD_COLUMNS,
  ROWS, /* rows in equal parts, */
  COLUMNS,
  LATENT_ROWS, /* ROWS with shard_latent, else WHOLE */
  VOCABULARY,  /* rows in equal parts rounded up: the last has fewer */
  EXPERT_ROWS, /* whole experts, or rows of each */
  EXPERT_COLUMNS,
  EXPERT_FIRST, /* whole experts, or the first rank has it */
} split;

/* Other kinds are WHOLE, which is 0. */
static const guint8 splits[OCT_WEIGHT_KINDS] = {
    [OCT_WEIGHT_HEAD] = VOCABULARY,
    [OCT_WEIGHT_Q] = HEAD_ROWS,
    [OCT_WEIGHT_Q_BIAS] = HEAD_ROWS,
    [OCT_WEIGHT_Q_B] = HEAD_ROWS,
    [OCT_WEIGHT_KV_B] = HEAD_ROWS,
    [OCT_WEIGHT_ATTN_GATE] = HEAD_ROWS,
    [OCT_WEIGHT_ATTN_GATE_B] = HEAD_ROWS,
    [OCT_WEIGHT_Q_CONV] = HEAD_ROWS,
    [OCT_WEIGHT_K_CONV] = HEAD_ROWS,
    [OCT_WEIGHT_V_CONV] = HEAD_ROWS,
    [OCT_WEIGHT_DECAY_B] = HEAD_ROWS,
    [OCT_WEIGHT_BETA] = HEAD_ROWS,
    [OCT_WEIGHT_A_LOG] = HEAD_ROWS,
    [OCT_WEIGHT_DT_BIAS] = HEAD_ROWS,
    [OCT_WEIGHT_SINKS] = HEAD_ROWS,
    [OCT_WEIGHT_K] = KV_ROWS,
    [OCT_WEIGHT_V] = KV_ROWS,
    [OCT_WEIGHT_K_BIAS] = KV_ROWS,
    [OCT_WEIGHT_V_BIAS] = KV_ROWS,
    [OCT_WEIGHT_O] = HEAD_COLUMNS,
    [OCT_WEIGHT_O_BIAS] = FIRST,
    [OCT_WEIGHT_GATE] = ROWS,
    [OCT_WEIGHT_UP] = ROWS,
    [OCT_WEIGHT_SHARED_GATE] = ROWS,
    [OCT_WEIGHT_SHARED_UP] = ROWS,
    [OCT_WEIGHT_LATENT_DOWN] = LATENT_ROWS,
    [OCT_WEIGHT_LATENT_UP] = ROWS,
    [OCT_WEIGHT_DOWN] = COLUMNS,
    [OCT_WEIGHT_SHARED_DOWN] = COLUMNS,
    [OCT_WEIGHT_EXPERT_GATE] = EXPERT_ROWS,
    [OCT_WEIGHT_EXPERT_UP] = EXPERT_ROWS,
    [OCT_WEIGHT_EXPERT_GATE_BIAS] = EXPERT_ROWS,
    [OCT_WEIGHT_EXPERT_UP_BIAS] = EXPERT_ROWS,
    [OCT_WEIGHT_EXPERT_DOWN] = EXPERT_COLUMNS,
    [OCT_WEIGHT_EXPERT_DOWN_BIAS] = EXPERT_FIRST,
};

oct_cuda_share
oct_cuda_share_of(const oct_model_spec *spec, const oct_parallel *parallel, guint32 index) {
  oct_assert(index < oct_parallel_world(parallel));
  return (oct_cuda_share){.spec = spec,
                          .parallel = parallel,
                          .stage = index / (parallel->data * parallel->tensor),
                          .domain = index / parallel->tensor % parallel->data,
                          .tensor = index % parallel->tensor};
}

static split
split_of(const oct_cuda_share *p, oct_weight_kind kind) {
  split how = (split)splits[kind];
  if (how == LATENT_ROWS)
    how = p->parallel->shard_latent ? ROWS : WHOLE;
  return how;
}

/* ---------------------------------------------------------------- ranges */

typedef struct range {
  guint64 first, n;
} range;

/* Part `rank` of `ranks` of n elements in `units`: equal parts, or copies of single units when
 * there are fewer than ranks. What is behind the units (padding) is nobody's. */
static range
equal_part(guint64 n, guint64 units, guint32 rank, guint32 ranks) {
  guint64 unit = n / units;
  if (units >= ranks)
    return (range){units / ranks * rank * unit, units / ranks * unit};
  return (range){units * rank / ranks * unit, unit};
}

static guint64
units_of(const oct_cuda_share *p, guint32 layer, split how) {
  const oct_attention_spec *a = &p->spec->attention[p->spec->layers[layer].attention];
  gboolean few = how == KV_ROWS && a->kind != OCT_ATTENTION_KDA && a->kind != OCT_ATTENTION_MLA;
  return few ? a->n_kv_heads : a->n_heads;
}

/* A stage's layers; of what is before and after them, the first and the last stage. */
static gboolean
is_here(const oct_cuda_share *p, oct_weight_kind kind, guint32 layer) {
  guint32 first, n;
  if (kind == OCT_WEIGHT_EMBEDDING)
    return p->stage == 0;
  if (kind < OCT_WEIGHT_ATTN_NORM)
    return p->stage + 1 == p->parallel->pipeline;
  oct_parallel_stage(p->spec, p->parallel, p->stage, &first, &n);
  return layer >= first && layer < first + n;
}

/* Whole experts: over all ranks of the stage. */
static gboolean
has_expert(const oct_cuda_share *p, guint32 layer, guint32 expert) {
  guint32 n = p->spec->ffn[p->spec->layers[layer].ffn].n_experts;
  guint32 ranks = p->parallel->tensor * p->parallel->data;
  range mine = equal_part(n, n, p->domain * p->parallel->tensor + p->tensor, ranks);
  return expert >= mine.first && expert < mine.first + mine.n;
}

static range
vocabulary_part(const oct_cuda_share *p, guint64 rows) {
  guint64 each = (rows + p->parallel->tensor - 1) / p->parallel->tensor;
  guint64 first = MIN(each * p->tensor, rows);
  return (range){first, MIN(each, rows - first)};
}

static oct_cuda_piece
expert_part(const oct_cuda_share *p, split how, guint32 layer, guint32 expert, guint64 rows,
            guint64 columns) {
  oct_cuda_piece none = {0}, all = {0, rows, 0, columns};
  guint32 ranks = p->parallel->tensor;
  if (p->parallel->expert_parallel)
    return has_expert(p, layer, expert) ? all : none;
  if (how == EXPERT_FIRST)
    return p->tensor == 0 ? all : none;
  gboolean by_rows = how == EXPERT_ROWS;
  guint64 n = by_rows ? rows : columns;
  range r = equal_part(n, n, p->tensor, ranks);
  return by_rows ? (oct_cuda_piece){r.first, r.n, 0, columns}
                 : (oct_cuda_piece){0, rows, r.first, r.n};
}

oct_cuda_piece
oct_cuda_piece_of(const oct_cuda_share *p, oct_weight_kind kind, guint32 layer, guint32 expert,
                  guint64 rows, guint64 columns) {
  split how = split_of(p, kind);
  guint32 rank = p->tensor, ranks = p->parallel->tensor;
  range r = {0, rows}, c = {0, columns};
  if (!is_here(p, kind, layer))
    return (oct_cuda_piece){0};
  switch (how) {
  case WHOLE:
    break;
  case FIRST:
    r.n = rank == 0 ? rows : 0;
    break;
  case HEAD_ROWS:
  case KV_ROWS:
    /* The decay's vector is padded to more than the heads. */
    r = equal_part(kind == OCT_WEIGHT_A_LOG ? units_of(p, layer, how) : rows,
                   units_of(p, layer, how), rank, ranks);
    break;
  case HEAD_COLUMNS:
    c = equal_part(columns, units_of(p, layer, how), rank, ranks);
    break;
  case ROWS:
  case LATENT_ROWS:
    r = equal_part(rows, rows, rank, ranks);
    break;
  case COLUMNS:
    c = equal_part(columns, columns, rank, ranks);
    break;
  case VOCABULARY:
    r = vocabulary_part(p, rows);
    break;
  case EXPERT_ROWS:
  case EXPERT_COLUMNS:
  case EXPERT_FIRST:
    return expert_part(p, how, layer, expert, rows, columns);
  }
  return r.n > 0 ? (oct_cuda_piece){r.first, r.n, c.first, c.n} : (oct_cuda_piece){0};
}

guint32
oct_cuda_piece_copies(const oct_cuda_share *p, oct_weight_kind kind, guint32 layer) {
  guint32 tensor = p->parallel->tensor, data = p->parallel->data;
  split how = split_of(p, kind);
  if (how == WHOLE)
    return tensor * data;
  if (how >= EXPERT_ROWS)
    return p->parallel->expert_parallel ? 1 : data;
  if (how != HEAD_ROWS && how != KV_ROWS)
    return data;
  guint64 units = units_of(p, layer, how);
  return data * (guint32)(units < tensor ? tensor / units : 1);
}

/* ---------------------------------------------------------------- bytes */

/* Groups of `group` elements that [first, first + n) touches. */
static guint64
groups_of(guint64 first, guint64 n, guint64 group) {
  return n == 0 ? 0 : (first + n - 1) / group - first / group + 1;
}

/* Four bits a code: columns in words of eight, or rows of AWQ's words. */
static guint64
int4_bytes(const oct_weight *w, const oct_cuda_piece *p) {
  guint64 words = w->layout == OCT_LAYOUT_AWQ ? p->columns * groups_of(p->row, p->rows, 8)
                                              : p->rows * groups_of(p->column, p->columns, 8);
  guint64 groups = groups_of(p->column, p->columns, w->group);
  guint64 scales = groups * p->rows * oct_stored_get(w->scale_type)->bytes;
  gboolean has_zeros = w->zeros != NULL || w->dummy != 0;
  guint64 zeros = has_zeros ? groups * groups_of(p->row, p->rows, 8) * sizeof(guint32) : 0;
  guint64 order = w->order != NULL ? p->columns * sizeof *w->order : 0;
  return words * sizeof(guint32) + scales + zeros + order;
}

guint64
oct_cuda_piece_bytes(const oct_weight *w, const oct_cuda_piece *p) {
  if (p->rows == 0)
    return 0;
  const oct_stored_info *info = oct_stored_get(w->type);
  guint64 plain = p->rows * groups_of(p->column, p->columns, info->block) * info->bytes;
  guint64 scale = w->scales != NULL || w->dummy != 0 ? oct_stored_get(w->scale_type)->bytes : 0;
  switch (w->layout) {
  case OCT_LAYOUT_ROWS:
  case OCT_LAYOUT_COLUMNS:
    return plain;
  case OCT_LAYOUT_FP8:
    return plain + (w->row_scales ? p->rows : 1) * scale;
  case OCT_LAYOUT_FP8_BLOCK:
    return plain + groups_of(p->row, p->rows, 128) * groups_of(p->column, p->columns, 128) * scale;
  case OCT_LAYOUT_MXFP4:
    return p->rows * (groups_of(p->column, p->columns, 2) + groups_of(p->column, p->columns, 32));
  case OCT_LAYOUT_NVFP4:
    return p->rows * (groups_of(p->column, p->columns, 2) + groups_of(p->column, p->columns, 16));
  case OCT_LAYOUT_AWQ:
  case OCT_LAYOUT_GPTQ:
  case OCT_LAYOUT_INT4_PACKED:
    return int4_bytes(w, p);
  case OCT_LAYOUT_COUNT:
    break;
  }
  oct_assert_failed(__FILE__, __LINE__, "a layout of weights");
}
