#include "backends/cuda/partition.h"

#include "engine/base/assert.h"
#include "engine/model/split.h"

oct_cuda_share
oct_cuda_share_of(const oct_model_spec *spec, const oct_parallel *parallel, guint32 index) {
  oct_assert(index < oct_parallel_world(parallel));
  return (oct_cuda_share){.spec = spec,
                          .parallel = parallel,
                          .stage = index / (parallel->data * parallel->tensor),
                          .domain = index / parallel->tensor % parallel->data,
                          .tensor = index % parallel->tensor};
}

/* Weights outside of layers have layer 0's experts, which nothing of them depends on. */
static oct_split
split_of(const oct_cuda_share *p, oct_weight_kind kind, guint32 layer) {
  return oct_weight_split(kind, &p->spec->ffn[p->spec->layers[layer].ffn], p->parallel);
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
units_of(const oct_cuda_share *p, guint32 layer, oct_split how) {
  return oct_split_units(how, &p->spec->attention[p->spec->layers[layer].attention]);
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

oct_cuda_piece
oct_cuda_piece_of(const oct_cuda_share *p, oct_weight_kind kind, guint32 layer, guint32 expert,
                  guint64 rows, guint64 columns) {
  oct_split how = split_of(p, kind, layer);
  guint64 units = units_of(p, layer, how);
  guint32 rank = p->tensor, ranks = p->parallel->tensor;
  range r = {0, rows}, c = {0, columns};
  if (!is_here(p, kind, layer))
    return (oct_cuda_piece){0};
  switch (how) {
  case OCT_SPLIT_FIRST:
    r.n = rank == 0 ? rows : 0;
    break;
  case OCT_SPLIT_HEAD_ROWS:
  case OCT_SPLIT_KV_ROWS:
    /* The decay's vector is padded to more than the heads. */
    r = equal_part(kind == OCT_WEIGHT_A_LOG ? units : rows, units, rank, ranks);
    break;
  case OCT_SPLIT_HEAD_COLUMNS:
    c = equal_part(columns, units, rank, ranks);
    break;
  case OCT_SPLIT_ROWS:
    r = equal_part(rows, rows, rank, ranks);
    break;
  case OCT_SPLIT_COLUMNS:
    c = equal_part(columns, columns, rank, ranks);
    break;
  case OCT_SPLIT_VOCABULARY:
    r = vocabulary_part(p, rows);
    break;
  case OCT_SPLIT_EXPERTS:
    r.n = has_expert(p, layer, expert) ? rows : 0;
    break;
  case OCT_SPLIT_WHOLE:
    break;
  }
  return r.n > 0 ? (oct_cuda_piece){r.first, r.n, c.first, c.n} : (oct_cuda_piece){0};
}

guint32
oct_cuda_piece_copies(const oct_cuda_share *p, oct_weight_kind kind, guint32 layer) {
  guint32 tensor = p->parallel->tensor, data = p->parallel->data;
  oct_split how = split_of(p, kind, layer);
  if (how == OCT_SPLIT_WHOLE)
    return tensor * data;
  if (how == OCT_SPLIT_EXPERTS)
    return 1;
  if (how != OCT_SPLIT_HEAD_ROWS && how != OCT_SPLIT_KV_ROWS)
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
