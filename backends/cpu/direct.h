/* A model run directly, without a world or an engine: one text at a time, from its first token, for
 * evaluation and calibration. The arithmetic is that of the backend. One thread at a time, with a
 * team of helpers.
 */
#ifndef OCT_BACKENDS_CPU_DIRECT_H
#define OCT_BACKENDS_CPU_DIRECT_H

#include "backends/cpu/model.h"
#include "engine/model/quantise/inputs.h"

#define OCT_CPU_DIRECT_CONTEXT_MAX (1u << 20)

typedef struct oct_cpu_direct oct_cpu_direct;

typedef struct oct_cpu_direct_options {
  const char *path; /* a checkpoint */
  oct_load_format format;
  oct_kv_format kv;
  guint32 threads; /* 1 … OCT_TEAM_THREADS_MAX */
  guint32 context; /* tokens of a text at most: 1 … OCT_CPU_DIRECT_CONTEXT_MAX */
} oct_cpu_direct_options;

/* Life cycle. Blocks on the disk. NULL with *error: the checkpoint cannot be read or computed, or
 * there is no memory for the context. */
oct_cpu_direct *oct_cpu_direct_new(const oct_cpu_direct_options *options,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_cpu_direct_free(oct_cpu_direct *direct); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_cpu_direct, oct_cpu_direct_free)

/* Use. Computes a text of n ids, each below the vocabulary (asserted); 1 <= n <= context. */
void oct_cpu_direct_run(oct_cpu_direct *direct, const guint32 *ids, guint32 n);
/* out[n, vocabulary] of positions first … first + n - 1 of the last text. */
void oct_cpu_direct_logits(oct_cpu_direct *direct, guint32 first, guint32 n, float *out);
/* From here on, what comes into the model's weights is added to `inputs`, which are of its map;
 * NULL: no more. */
void oct_cpu_direct_collect(oct_cpu_direct *direct, oct_inputs *inputs);

/* Inspect. */
const oct_cpu_model *oct_cpu_direct_model(const oct_cpu_direct *direct);

#endif
