/* The cpu world. Private to backends/cpu. */
#ifndef OCT_BACKENDS_CPU_WORLD_H
#define OCT_BACKENDS_CPU_WORLD_H

#include <pthread.h>
#include <time.h>

#include "backends/cpu/instance.h"

typedef struct oct_cpu_world {
  oct_world base;
  oct_cpu_options options;
  char *model;
  GPtrArray *instances; /* [id - 1]; NULL when gone */
  guint32 n_open;
  oct_time now_ns; /* virtual clock */
  struct timespec epoch;
  pthread_mutex_t lock;
  pthread_cond_t changed; /* something for next() */
  gboolean woken, lost, fault_due;
  guint32 fault_instance;
  oct_fault fault, told; /* told: what an event points to */
} oct_cpu_world;

oct_time oct_cpu_world_now(const oct_cpu_world *world);
/* The engine has broken the contract: the world ends. With the lock held. */
void oct_cpu_world_lose(oct_cpu_world *world, guint32 instance, const oct_fault *fault);

#endif
