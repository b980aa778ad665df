/* Counts of kernels by name. */
#ifndef OCT_KERNELS_CUDA_LAUNCHES_H
#define OCT_KERNELS_CUDA_LAUNCHES_H

#include <stdint.h>
#include <string.h>

/* Which kernels were enqueued, or captured: for tests that a path was taken. Queues may share one;
 * read it when none of them is in use. */
#define OCT_CUDA_KERNELS_MAX 512
typedef struct oct_cuda_launches {
  uint32_t n;
  struct {
    const void *function; /* NULL: a library's, or a way that a kernel takes */
    const char *name;     /* has the kernel's, as the linker sees it, in it */
    uint64_t n;
  } of[OCT_CUDA_KERNELS_MAX];
} oct_cuda_launches;

/* Launches of all kernels whose names contain `part`. */
static inline uint64_t
oct_cuda_launches_of(const oct_cuda_launches *launches, const char *part) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < launches->n; i++)
    n += strstr(launches->of[i].name, part) != NULL ? launches->of[i].n : 0;
  return n;
}

#endif
