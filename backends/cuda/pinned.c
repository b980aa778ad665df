#include "backends/cuda/pinned.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include "backends/cuda/threads.h"

#define PAGE       4096u
#define LARGE_PAGE ((gsize)2 << 20)

typedef struct block_of_pages {
  volatile guint8 *at;
  gsize bytes;
} block_of_pages;

/* Large pages [first, first + n), the last of which may be less than one. */
static void
touch(gpointer data, guint64 first, guint64 n) {
  const block_of_pages *b = data;
  gsize end = MIN((first + n) * LARGE_PAGE, b->bytes);
  for (gsize i = first * LARGE_PAGE; i < end; i += PAGE)
    b->at[i] = 0;
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
  block_of_pages pages = {block, bytes};
  oct_cuda_share_out(touch, &pages, (bytes + LARGE_PAGE - 1) / LARGE_PAGE, OCT_CUDA_FILL_THREADS);
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
