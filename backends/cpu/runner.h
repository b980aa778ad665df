/* What a step does: slots, tables, copies, the forward pass, sampling, the result. No clock, no
 * events, no threads but the team's; one thread at a time.
 *
 * A step runs in two halves, because a mask may come late: oct_cpu_runner_begin() does everything
 * up to the logits, oct_cpu_runner_finish() samples, when the masks are there.
 */
#ifndef OCT_BACKENDS_CPU_RUNNER_H
#define OCT_BACKENDS_CPU_RUNNER_H

#include "backends/cpu/forward.h"
#include "engine/backend.h"

typedef struct oct_cpu_runner oct_cpu_runner;

typedef struct oct_cpu_runner_options {
  const oct_instance_config *config; /* borrowed */
  const oct_cpu_model *model;        /* borrowed */
  oct_kv_format kv;
  guint32 threads;
  gboolean expanded_latents;
} oct_cpu_runner_options;

/* Life cycle. NULL with *error (CONFIG) without the memory that was planned. */
oct_cpu_runner *oct_cpu_runner_new(const oct_cpu_runner_options *options,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_cpu_runner_free(oct_cpu_runner *runner); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_cpu_runner, oct_cpu_runner_free)

typedef enum oct_cpu_outcome {
  OCT_CPU_DONE,
  OCT_CPU_STOPPED, /* *stop was set */
  OCT_CPU_BREACH,  /* what the engine must never do: *fault says what (FATAL) */
} oct_cpu_outcome;

/* First half of a step that oct_step_check() accepts, and which stays in place until the second
 * half has ended. */
oct_cpu_outcome oct_cpu_runner_begin(oct_cpu_runner *runner, const oct_step *step,
                                     const gboolean *stop, oct_fault *fault);
/* Second half: masks[i] allows tokens of slice i, NULL = no mask. Then makes the AFTER copies. */
void oct_cpu_runner_finish(oct_cpu_runner *runner, const guint64 *const *masks);

/* The result of the last step, times zero, in *buffer of *room bytes, grown when needed. */
oct_step_result *oct_cpu_runner_result(const oct_cpu_runner *runner, guint8 **buffer, gsize *room);
/* Slices of the last step that failed, with *reason (static); NULL array when none. Borrowed. */
const guint32 *oct_cpu_runner_failed(const oct_cpu_runner *runner, guint32 *n, const char **reason);

const oct_cpu_memory *oct_cpu_runner_memory(const oct_cpu_runner *runner);

#endif
