/* Weights of every format for tests of products, and what the twin makes of them. */
#ifndef OCT_TESTS_KERNELS_CUDA_WEIGHTS_H
#define OCT_TESTS_KERNELS_CUDA_WEIGHTS_H

#include "tests/kernels/cuda/device.h"

/* A weight in a format, and its values. */
typedef struct weight {
  oct_cuda_matrix matrix;
  float *values; /* [n, rows, columns] */
} weight;
void weight_clear(weight *w);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(weight, weight_clear)

/* Formats, and the groups of INT4. */
typedef struct weight_variant {
  oct_cuda_format format;
  guint32 group;
} weight_variant;
#define WEIGHT_VARIANTS 8
#define WEIGHT_PLAIN    4 /* the first, that are not packed */
extern const weight_variant weight_variants[WEIGHT_VARIANTS];

/* n random matrices, one after another. */
void weight_make(const oct_cuda_queue *queue, weight *w, weight_variant v, guint32 n, guint32 rows,
                 guint32 columns);

/* y of expert or matrix e, by the twin: of a tall weight some rows of each of its `parts`, the
 * first, some in the middle, the last. */
void weight_multiply(const weight *w, guint32 e, const float *x, guint32 m, const float *bias,
                     float *y, guint parts);
/* Of y[m, rows] what the twin makes, to the front; its size. */
gsize weight_keep_some(float *y, guint32 m, guint32 rows);
/* Rows of gates and of ups to what the activation makes of them. */
void weight_activate(const oct_glu_params *glu, guint32 m, guint32 rows, float *y);

/* The relative error up to which a product is right. */
double weight_limit(oct_cuda_type y, weight_variant v, oct_cuda_path path, guint32 m,
                    gboolean scaled);

#endif
