#include "backends/cuda/threads.h"

typedef struct part {
  oct_cuda_fill fill;
  gpointer user;
  guint64 first, n;
} part;

static gpointer
fill_part(gpointer data) {
  const part *p = data;
  p->fill(p->user, p->first, p->n);
  return NULL;
}

void
oct_cuda_share_out(oct_cuda_fill fill, gpointer user, guint64 n, guint64 most) {
  part parts[OCT_CUDA_FILL_THREADS];
  GThread *threads[OCT_CUDA_FILL_THREADS];
  guint64 there = MIN(g_get_num_processors(), OCT_CUDA_FILL_THREADS);
  guint n_parts = (guint)MAX(MIN(MIN(most, n), there), 1);
  for (guint i = 0; i < n_parts; i++) {
    guint64 first = n * i / n_parts, end = n * (i + 1) / n_parts;
    parts[i] = (part){fill, user, first, end - first};
    threads[i] = i + 1 < n_parts ? g_thread_try_new("memory", fill_part, &parts[i], NULL) : NULL;
    if (threads[i] == NULL)
      (void)fill_part(&parts[i]);
  }
  for (guint i = 0; i < n_parts; i++)
    if (threads[i] != NULL)
      (void)g_thread_join(threads[i]);
}
