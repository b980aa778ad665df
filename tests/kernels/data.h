/* Random arrays and comparison for tests of operators. Numbers come from GLib's test generator,
 * which prints its seed and takes --seed. */
#ifndef OCT_TESTS_KERNELS_DATA_H
#define OCT_TESTS_KERNELS_DATA_H

#include <glib.h>

#include "kernels/kernels.h"

/* n standard normal numbers times `scale`; owned. */
float *data_normal(gsize n, double scale);
/* A matrix in the given format. Its exact values are to[rows * columns]. ROWS stores float32 bits
 * turned over, so that only read() can tell. Everything is owned by the matrix's data. */
typedef struct data_matrix {
  oct_matrix matrix;
  float *values;
  void *storage;
} data_matrix;
data_matrix *data_matrix_new(oct_matrix_format format, guint32 rows, guint32 columns, double scale);
void data_matrix_free(data_matrix *m);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(data_matrix, data_matrix_free)

/* Prints |a - b| / |b| over n elements under the name, and fails when it is above `limit`.
 * `typical` is the root mean square that such results have, and |b| counts for no less than that: a
 * result of few elements can be all but zero, a sum whose terms happen to cancel, while its
 * rounding error is that of the terms, and no limit holds relative to it. 0 where nothing cancels.
 */
void data_expect(const char *name, const float *a, const double *b, gsize n, double typical,
                 double limit);

guint32 data_between(guint32 low, guint32 high); /* both included */
/* A page table of n entries out of n_pages, all different, in random order; owned. */
guint32 *data_pages(guint32 n, guint32 n_pages);

#endif
