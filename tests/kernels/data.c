#include "tests/kernels/data.h"

#include <math.h>
#include <string.h>

#include "engine/base/rng.h"
#include "kernels/reference/vector.h"

/* Box and Muller's pairs, of numbers that are counted from one of GLib's. */
float *
data_normal(gsize n, double scale) {
  float *x = g_new(float, MAX(n, 1));
  guint64 state = (guint64)(guint32)g_test_rand_int() << 32;
  for (gsize i = 0; i < n; i += 2) {
    guint64 bits = oct_mix64(state + i);
    float radius = (float)scale * sqrtf(-2 * logf(((float)(bits >> 40) + 1) / 16777216.0f));
    float angle = 6.2831853f * (float)(bits & 0xffffff) / 16777216.0f;
    x[i] = radius * cosf(angle);
    if (i + 1 < n)
      x[i + 1] = radius * sinf(angle);
  }
  return x;
}

/* A stored form that is no float until it is read: the bits turned over, columns first. */
typedef struct turned {
  guint32 rows, columns;
  guint32 bits[];
} turned;

static void
read_turned(const void *data, uint32_t first, uint32_t n, float *out) {
  const turned *t = data;
  for (guint32 r = 0; r < n; r++)
    for (guint32 c = 0; c < t->columns; c++) {
      guint32 bits = ~t->bits[(gsize)c * t->rows + first + r];
      memcpy(&out[(gsize)r * t->columns + c], &bits, sizeof bits);
    }
}

data_matrix *
data_matrix_new(oct_matrix_format format, guint32 rows, guint32 columns, double scale) {
  data_matrix *m = g_new0(data_matrix, 1);
  gsize n = (gsize)rows * columns;
  m->values = data_normal(n, scale);
  m->matrix = (oct_matrix){.format = format, .rows = rows, .columns = columns};
  if (format == OCT_MATRIX_F32) {
    m->storage = g_memdup2(m->values, n * sizeof(float));
  } else if (format == OCT_MATRIX_BF16) {
    guint16 *codes = m->storage = g_new(guint16, n);
    for (gsize i = 0; i < n; i++) {
      codes[i] = oct_ref_to_bf16(m->values[i]);
      m->values[i] = oct_ref_from_bf16(codes[i]);
    }
  } else {
    turned *t = m->storage = g_malloc(sizeof *t + n * sizeof(guint32));
    t->rows = rows;
    t->columns = columns;
    for (gsize i = 0; i < n; i++) {
      guint32 bits;
      memcpy(&bits, &m->values[i], sizeof bits);
      t->bits[i % columns * rows + i / columns] = ~bits;
    }
    m->matrix.read = read_turned;
  }
  m->matrix.data = m->storage;
  return m;
}

void
data_matrix_free(data_matrix *m) {
  g_free(m->values);
  g_free(m->storage);
  g_free(m);
}

void
data_expect(const char *name, const float *a, const double *b, gsize n, double typical,
            double limit) {
  double difference = 0, size = 0;
  for (gsize i = 0; i < n; i++) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  size = MAX(size, (double)n * typical * typical);
  double error = sqrt(difference / (size > 0 ? size : 1));
  g_test_message("%s: relative L2 %.2e of %" G_GSIZE_FORMAT " elements, limit %.0e", name, error, n,
                 limit);
  g_assert_cmpfloat(error, <=, limit); /* also fails for NaN */
}

guint32
data_between(guint32 low, guint32 high) {
  return (guint32)g_test_rand_int_range((gint32)low, (gint32)high + 1);
}

guint32 *
data_pages(guint32 n, guint32 n_pages) {
  g_assert_cmpuint(n, <=, n_pages);
  guint32 *pages = g_new(guint32, MAX(n_pages, 1));
  for (guint32 i = 0; i < n_pages; i++)
    pages[i] = i;
  for (guint32 i = 0; i < n; i++) {
    guint32 other = data_between(i, n_pages - 1), page = pages[i];
    pages[i] = pages[other];
    pages[other] = page;
  }
  return pages;
}
