/* Activation-aware scaling (AWQ): input channels that carry much are made larger in the weights
 * before these are rounded, and what writes these channels is made smaller by as much, so that the
 * model computes the same.
 *
 * A channel's factor is (mean size of its input)^r, normalised; r is searched in [0, 1) for the
 * least error of the matrices that read the channel, weighted with the mean squares of their
 * inputs. Pairs of writer and readers, where both are plain matrices or norms:
 *
 *   attention norm -> q, k, v       FFN norm -> gate, up (dense)
 *   v -> o (the query heads of a KV head share a factor)       up -> down (dense, shared, experts)
 *
 * Other matrices (latent and delta attention, gate and up of experts) are left as they are.
 */
#ifndef OCT_MODEL_QUANTISE_SCALING_H
#define OCT_MODEL_QUANTISE_SCALING_H

#include "engine/model/quantise/inputs.h"

typedef struct oct_scaling oct_scaling;

/* Life cycle. Searches for every weight of the map, which is borrowed with the spec; groups of
 * `group` inputs share a scale. Reads all weights and takes a while: `progress` (may be NULL) is
 * told a fraction. */
oct_scaling *oct_scaling_new(const oct_model_spec *spec, const oct_weight_map *map,
                             const oct_inputs *inputs, guint32 group,
                             void (*progress)(void *user, double fraction), void *user);
void oct_scaling_free(oct_scaling *scaling); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_scaling, oct_scaling_free)

/* Inspect. Factors [columns] that a weight's inputs are multiplied with, and [rows] that its rows
 * are divided by; NULL: all 1. Borrowed. */
const float *oct_scaling_inputs(const oct_scaling *scaling, const oct_weight *weight);
const float *oct_scaling_outputs(const oct_scaling *scaling, const oct_weight *weight);

#endif
