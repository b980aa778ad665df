/* How weights are spread over the ranks of a layout. The table is in engine/model/tensors.c: the
 * memory ledger, the twin and the plan of a load count by it, and backends load by it, so that what
 * is counted is what is held.
 */
#ifndef OCT_MODEL_SPLIT_H
#define OCT_MODEL_SPLIT_H

#include "engine/model/kinds.h"
#include "engine/model/spec.h"

/* What a rank of a tensor group has of a weight. */
typedef enum oct_split {
  OCT_SPLIT_WHOLE,        /* all of it */
  OCT_SPLIT_FIRST,        /* the first rank all of it, the others nothing: what a sum has once */
  OCT_SPLIT_HEAD_ROWS,    /* rows of some attention heads */
  OCT_SPLIT_KV_ROWS,      /* rows of some KV heads; of one, where there are fewer than ranks */
  OCT_SPLIT_HEAD_COLUMNS, /* columns of some attention heads */
  OCT_SPLIT_ROWS,         /* equal parts */
  OCT_SPLIT_COLUMNS,
  OCT_SPLIT_VOCABULARY, /* rows, in equal parts rounded up: the last rank has fewer */
  OCT_SPLIT_EXPERTS,    /* whole experts, over the ranks of all domains */
} oct_split;

/* One of the first group. `ffn`: of the weight's layer; NULL for weights that are no part of one.
 */
oct_split oct_weight_split(oct_weight_kind kind, const oct_ffn_spec *ffn,
                           const oct_parallel *parallel);
/* Pieces that the dimension which is split is not cut finer than: heads; 0: elements. `attention`:
 * of the weight's layer, NULL likewise. */
guint64 oct_split_units(oct_split split, const oct_attention_spec *attention);
/* Rows of `rows` that the busiest rank of the layout has, of a kind that is whole or split into
 * equal parts of rows: no heads, no columns, no experts. */
guint64 oct_split_rows(oct_weight_kind kind, const oct_ffn_spec *ffn, const oct_parallel *parallel,
                       guint64 rows);

#endif
