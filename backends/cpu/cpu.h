/* The cpu backend: real tokens from real weights, with the operators of kernels/reference on this
 * machine's processors. For trying a model out without a GPU, and the oracle that CUDA kernels are
 * compared with.
 *
 * One thread per instance runs its steps in order, with a team of helpers; another makes its BESIDE
 * copies. "Device" memory and the host tier are both this machine's. Parallel layouts are taken and
 * change nothing: ranks and stages are computed together, KV domains have their own pools. A
 * sequence's tokens depend on nothing but its tokens, parameters and seed, bit by bit on one kind
 * of processor (kernels/kernels.h).
 *
 * With a virtual clock there are no threads but the team's: steps are computed inside next(), and
 * take the time that the options say. For tests, whose course is then the same each time.
 */
#ifndef OCT_BACKENDS_CPU_H
#define OCT_BACKENDS_CPU_H

#include "backends/cpu/model.h"
#include "engine/backend.h"

typedef struct oct_cpu_options {
  const char *model; /* a checkpoint that is what an instance's spec says; copied. NULL: weights
                        made up from `seed` in the shapes of the spec */
  oct_load_format format;
  guint64 seed;
  guint32 threads;         /* of an instance; 0 = one per processor */
  oct_kv_format kv;        /* how keys and values are kept, whatever the instance's kv_dtype says */
  oct_cpu_weights weights; /* where matrices are, and as what */
  gboolean expanded_latents; /* latent attention in the expanded form */
  oct_clock_kind clock;
  /* Virtual clock: time of a step over all stages, and of each page or state copied beside. */
  gint64 fixed_ns, token_ns, copy_ns;
} oct_cpu_options;

/* Real clock, float32 cache, one thread per processor, seed 1; virtual: 1 ms + 10 us per token,
 * 10 us per copy. */
void oct_cpu_options_default(oct_cpu_options *options);

/* A new world; options NULL = default. NULL with *error (CONFIG) names the option that is wrong.
 * The checkpoint is opened with each instance. */
oct_world *oct_cpu_world_new(const oct_cpu_options *options,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
