/* Random weights: numbers that depend on the weight's name, the seed and the place in the weight
 * only, so that any part of any weight can be made at any time. Private to engine/model/files.
 */
#ifndef OCT_MODEL_FILES_DUMMY_H
#define OCT_MODEL_FILES_DUMMY_H

#include "engine/model/files/map.h"

/* Gives a weight whose kind, rows and columns are set the layout of `stored`, the key of its
 * numbers, and its size. The layout's block sizes must fit the columns: else plain bfloat16. */
void oct_dummy_init(oct_weight *weight, oct_dtype stored, gboolean tied, guint64 seed);
/* Rows first … first + n - 1 as float32: what materialised parts would read as. */
void oct_dummy_read(const oct_weight *weight, guint64 first, guint64 n, float *out);
/* Its one scale, and the zero of 4-bit integers. */
float oct_dummy_scale(const oct_weight *weight, gint *zero);
/* Sizes of the parts, and their bytes. */
typedef struct oct_dummy_sizes {
  gsize codes, scales, zeros;
} oct_dummy_sizes;
void oct_dummy_sizes_get(const oct_weight *weight, oct_dummy_sizes *sizes);
void oct_dummy_fill(const oct_weight *weight, guint8 *codes, guint8 *scales, guint32 *zeros);

#endif
