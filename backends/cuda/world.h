/* The cuda world. Private to backends/cuda. */
#ifndef OCT_BACKENDS_CUDA_WORLD_H
#define OCT_BACKENDS_CUDA_WORLD_H

#include <pthread.h>
#include <time.h>

#include "backends/cuda/instance.h"

typedef struct oct_cuda_world {
  oct_world base;
  oct_cuda_options options;
  char *model;
  guint32 n_gpus;
  GPtrArray *instances; /* [id - 1]; NULL when gone */
  guint32 n_open;
  struct timespec epoch;
  pthread_mutex_t lock;
  pthread_cond_t changed; /* something for next() */
  gboolean woken, lost, fault_due;
  gboolean spoiled; /* atomic: a device cannot be used any more by this process */
  char spoilt_by[160];
  oct_cuda_instance *leaving; /* whose opening has failed, until it is cleared away; or NULL */
  guint32 fault_instance;
  oct_fault fault, told; /* told: what an event points to */
} oct_cuda_world;

oct_time oct_cuda_world_now(const oct_cuda_world *world);
/* Until something changes, or until_ns. With the lock held. */
void oct_cuda_world_wait(oct_cuda_world *world, oct_time until_ns);
/* The engine has broken the contract: the world ends. With the lock held. */
void oct_cuda_world_lose(oct_cuda_world *world, guint32 instance, const oct_fault *fault);

#endif
