#include "backends/cuda/pinned.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#define PAGE        4096u
#define LARGE_PAGE  ((gsize)2 << 20)
#define THREADS_MAX 16

typedef struct run {
  volatile guint8 *at;
  gsize bytes;
} run;

/* A thread has the affinity and the memory policy of the one that made it. */
static gpointer
touch(gpointer data) {
  const run *r = data;
  for (gsize i = 0; i < r->bytes; i += PAGE)
    r->at[i] = 0;
  return NULL;
}

static void
touch_all(guint8 *block, gsize bytes) {
  run runs[THREADS_MAX];
  GThread *threads[THREADS_MAX];
  guint n = MIN(g_get_num_processors(), THREADS_MAX);
  gsize each = (bytes / n + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
  for (guint i = 0; i < n; i++) {
    gsize first = MIN(i * each, bytes);
    runs[i] = (run){block + first, MIN(each, bytes - first)};
    threads[i] = i + 1 < n ? g_thread_try_new("pages", touch, &runs[i], NULL) : NULL;
    if (threads[i] == NULL)
      (void)touch(&runs[i]);
  }
  for (guint i = 0; i < n; i++)
    if (threads[i] != NULL)
      (void)g_thread_join(threads[i]);
}

static gboolean
is_reached_as_it_is(void) {
  int device = 0, can = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&can, cudaDevAttrCanUseHostPointerForRegisteredMem, device) ==
             cudaSuccess &&
         can != 0;
}

void *
oct_pinned_new(gsize bytes) {
  if (!is_reached_as_it_is())
    return NULL;
  void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED)
    return NULL;
  (void)madvise(block, bytes, MADV_HUGEPAGE);
  touch_all(block, bytes);
  if (cudaHostRegister(block, bytes, cudaHostRegisterPortable) == cudaSuccess)
    return block;
  (void)cudaGetLastError();
  (void)munmap(block, bytes);
  return NULL;
}

void
oct_pinned_free(void *block, gsize bytes) {
  (void)cudaHostUnregister(block);
  (void)munmap(block, bytes);
}
