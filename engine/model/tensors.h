/* The list of a model's weight tensors, with class, type and shape.
 *
 * Every figure about weights (totals, per layer, per rank, per expert, active) is a sum over this
 * one list, so that they cannot disagree. Shapes follow the published checkpoints: [rows, columns]
 * = [outputs, inputs]. Private to engine/model.
 */
#ifndef OCT_MODEL_TENSORS_H
#define OCT_MODEL_TENSORS_H

#include "engine/model/split.h"

/* Most tensors of one layer. A tensor with a count stands for that many equal ones (experts). */
#define OCT_TENSORS_MAX 64

typedef enum oct_tensor_class {
  OCT_TENSOR_ATTENTION,
  OCT_TENSOR_DENSE,
  OCT_TENSOR_EXPERT,
  OCT_TENSOR_SHARED,
  OCT_TENSOR_ROUTER,
  OCT_TENSOR_LATENT,
  OCT_TENSOR_NORM,
  OCT_TENSOR_EMBEDDING,
  OCT_TENSOR_HEAD,
  OCT_TENSOR_CLASSES
} oct_tensor_class;

typedef struct oct_tensor {
  oct_weight_kind kind;
  oct_tensor_class class;
  oct_dtype type;
  guint64 rows, columns, count;
  const oct_attention_spec *attention; /* of the layer, borrowed; NULL: outside of layers */
  const oct_ffn_spec *ffn;
} oct_tensor;

/* A list. */
typedef struct oct_tensor_list {
  guint n;
  const oct_attention_spec *attention; /* of the layer, borrowed; NULL: of no layer */
  const oct_ffn_spec *ffn;
  oct_tensor tensors[OCT_TENSORS_MAX];
} oct_tensor_list;

/* Fills the list with the tensors of layer `layer`. */
void oct_tensors_layer(const oct_model_spec *spec, guint32 layer, oct_tensor_list *list);
/* Fills the list with what comes before the first layer (the embedding) or after the last one
 * (final norm, head). `own_head`: count a tied head as a tensor of its own. */
void oct_tensors_before(const oct_model_spec *spec, oct_tensor_list *list);
void oct_tensors_after(const oct_model_spec *spec, gboolean own_head, oct_tensor_list *list);

/* Parameters and bytes of a tensor, all `count` of them: whole, or one rank's part. */
oct_weight_sum oct_tensor_sum(const oct_tensor *tensor);
oct_weight_sum oct_tensor_rank_sum(const oct_tensor *tensor, const oct_parallel *parallel);

#endif
