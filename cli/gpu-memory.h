/* Free memory of the GPUs that a layout takes, which CUDA is not asked for: a process that has used
 * a GPU cannot start another that does. The driver tells by its own order and bus ids; which of its
 * GPUs are CUDA's follows from the environment. Nothing stays open: the process may fork then.
 */
#ifndef OCT_CLI_GPU_MEMORY_H
#define OCT_CLI_GPU_MEMORY_H

#include <glib.h>

typedef struct oct_gpu_layout {
  const char *visible; /* CUDA_VISIBLE_DEVICES; NULL: not set */
  const char *order;   /* CUDA_DEVICE_ORDER; NULL: not set */
  guint32 n_ranks;     /* of all replicas: on devices 0, 1, …, beyond the GPUs round by round */
} oct_gpu_layout;

/* Bytes for each rank on the GPU that has least for its ranks, which share what is free. 0: the
 * driver does not tell. Where CUDA may have another order than the driver (by speed, of GPUs of
 * several kinds), the least of all GPUs that may be meant. */
guint64 oct_gpu_memory_free(const oct_gpu_layout *layout);

#endif
