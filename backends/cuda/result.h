/* A step's result from its plan and what its ranks left in pinned memory. Private to backends/cuda.
 */
#ifndef OCT_BACKENDS_CUDA_RESULT_H
#define OCT_BACKENDS_CUDA_RESULT_H

#include "backends/cuda/stepper.h"

/* What to read, by rank: outputs[stage * n_domains + domain] of the first rank of each tensor
 * group, with the stage's layers. */
typedef struct oct_cuda_reading {
  const oct_instance_config *config;
  const oct_cuda_plan *plan;
  const oct_cuda_output *const *outputs;
  guint32 n_stages, n_domains;
} oct_cuda_reading;

/* The result, times zero, in *buffer of *room bytes, grown when needed. Slots learn what was
 * accepted; slices whose logits were no numbers, or whose mask left nothing, are appended to
 * failed (guint32). */
oct_step_result *oct_cuda_result_make(const oct_cuda_reading *reading, oct_cuda_slots_state *slots,
                                      GArray *failed, guint8 **buffer, gsize *room);

#endif
