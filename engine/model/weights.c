/* Sums over the list of tensors (engine/model/tensors.h). */
#include "engine/base/assert.h"
#include "engine/model/spec.h"
#include "engine/model/tensors.h"

static oct_weight_sum *
class_sum(oct_weights *weights, oct_tensor_class class) {
  switch (class) {
  case OCT_TENSOR_ATTENTION:
    return &weights->attention;
  case OCT_TENSOR_DENSE:
    return &weights->dense_ffn;
  case OCT_TENSOR_EXPERT:
    return &weights->experts;
  case OCT_TENSOR_SHARED:
    return &weights->shared_experts;
  case OCT_TENSOR_ROUTER:
    return &weights->router;
  case OCT_TENSOR_LATENT:
    return &weights->latent;
  case OCT_TENSOR_NORM:
    return &weights->norms;
  case OCT_TENSOR_EMBEDDING:
    return &weights->embedding;
  case OCT_TENSOR_HEAD:
    return &weights->head;
  case OCT_TENSOR_CLASSES:
    break;
  }
  oct_assert_failed(__FILE__, __LINE__, "a tensor has a class");
}

/* Adds the list, whole when `parallel` is NULL, else one rank's part. */
static void
add_list(oct_weights *out, const oct_tensor_list *list, const oct_parallel *parallel) {
  for (guint i = 0; i < list->n; i++) {
    const oct_tensor *tensor = &list->tensors[i];
    oct_weight_sum part =
        parallel != NULL ? oct_tensor_rank_sum(tensor, parallel) : oct_tensor_sum(tensor);
    oct_weight_sum *sum = class_sum(out, tensor->class);
    sum->parameters += part.parameters;
    sum->bytes += part.bytes;
  }
}

static void
add_layers(const oct_model_spec *spec, guint32 first, guint32 count, const oct_parallel *parallel,
           oct_weights *out) {
  oct_tensor_list list;
  for (guint32 layer = first; layer < first + count; layer++) {
    oct_tensors_layer(spec, layer, &list);
    add_list(out, &list, parallel);
  }
}

void
oct_model_weights(const oct_model_spec *spec, oct_weights *out) {
  oct_tensor_list list;
  *out = (oct_weights){0};
  oct_tensors_before(spec, &list);
  add_list(out, &list, NULL);
  add_layers(spec, 0, spec->n_layers, NULL, out);
  oct_tensors_after(spec, FALSE, &list);
  add_list(out, &list, NULL);
}

void
oct_model_layer_weights(const oct_model_spec *spec, guint32 layer, oct_weights *out) {
  *out = (oct_weights){0};
  add_layers(spec, layer, 1, NULL, out);
}

void
oct_model_rank_weights(const oct_model_spec *spec, const oct_parallel *parallel, guint32 stage,
                       oct_weights *out) {
  oct_assert(stage < parallel->pipeline);
  oct_tensor_list list;
  guint32 first, count;
  *out = (oct_weights){0};
  if (stage == 0) {
    oct_tensors_before(spec, &list);
    add_list(out, &list, parallel);
  }
  oct_parallel_stage(spec, parallel, stage, &first, &count);
  add_layers(spec, first, count, parallel, out);
  if (stage == parallel->pipeline - 1) {
    oct_tensors_after(spec, parallel->pipeline > 1, &list);
    add_list(out, &list, parallel);
  }
}

oct_weight_sum
oct_weights_total(const oct_weights *weights) {
  const oct_weight_sum *sums[] = {
      &weights->attention,      &weights->dense_ffn, &weights->experts,
      &weights->shared_experts, &weights->router,    &weights->latent,
      &weights->norms,          &weights->embedding, &weights->head,
  };
  oct_weight_sum total = {0};
  for (guint i = 0; i < G_N_ELEMENTS(sums); i++) {
    total.parameters += sums[i]->parameters;
    total.bytes += sums[i]->bytes;
  }
  return total;
}

oct_weight_sum
oct_model_expert(const oct_model_spec *spec, guint32 layer) {
  oct_tensor_list list;
  oct_weight_sum expert = {0};
  oct_tensors_layer(spec, layer, &list);
  for (guint i = 0; i < list.n; i++) {
    oct_tensor one = list.tensors[i];
    if (one.class != OCT_TENSOR_EXPERT)
      continue;
    one.count = 1;
    oct_weight_sum part = oct_tensor_sum(&one);
    expert.parameters += part.parameters;
    expert.bytes += part.bytes;
  }
  return expert;
}

guint64
oct_model_active_parameters(const oct_model_spec *spec) {
  oct_weights all;
  oct_model_weights(spec, &all);
  guint64 active = oct_weights_total(&all).parameters - all.experts.parameters;
  /* The lookup reads one row; a tied head multiplies by the same matrix as a head of its own. */
  if (!spec->tied_embeddings)
    active -= all.embedding.parameters;
  for (guint32 layer = 0; layer < spec->n_layers; layer++)
    active += oct_model_expert(spec, layer).parameters * spec->ffn[spec->layers[layer].ffn].top_k;
  return active;
}
