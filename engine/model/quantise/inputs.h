/* What a model's matrices see: for each input channel of each of them the mean size and the mean
 * square of what came in while a text was computed. Quantisation weighs its errors with them.
 *
 * gate and up of an MLP have one input: what is asked of up is what came into gate. One thread at a
 * time.
 */
#ifndef OCT_MODEL_QUANTISE_INPUTS_H
#define OCT_MODEL_QUANTISE_INPUTS_H

#include "engine/model/files/map.h"

typedef struct oct_inputs oct_inputs;

/* Life cycle. The map is borrowed. */
oct_inputs *oct_inputs_new(const oct_weight_map *map);
void oct_inputs_free(oct_inputs *inputs); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_inputs, oct_inputs_free)

/* Use: n rows [n, columns], `stride` apart, came into a weight of the map. */
void oct_inputs_add(oct_inputs *inputs, const oct_weight *weight, const float *x, gsize stride,
                    guint32 n);

/* Inspect. Rows that came into a weight; 0: there is nothing to know. */
guint64 oct_inputs_rows(const oct_inputs *inputs, const oct_weight *weight);
/* out[columns]: means of |x| and of x^2 over the rows, which are more than 0 (asserted). */
void oct_inputs_sizes(const oct_inputs *inputs, const oct_weight *weight, float *out);
void oct_inputs_squares(const oct_inputs *inputs, const oct_weight *weight, float *out);

#endif
