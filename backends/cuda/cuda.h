/* The cuda backend: steps on NVIDIA GPUs, with the kernels of kernels/cuda, cuBLASLt and NCCL.
 *
 * One thread per rank enqueues that rank's work; nothing of it waits for the device but where a
 * step waits for its masks. A step's tokens stay on the device for the next one, which is enqueued
 * before they are read. doc of the parts: README.md.
 */
#ifndef OCT_BACKENDS_CUDA_H
#define OCT_BACKENDS_CUDA_H

#include "engine/backend.h"
#include "engine/model/files/tensors.h"

#define OCT_CUDA_DEVICES_MAX 64

/* When the halves of a step's layers began, by the clock of the first rank's device in ns: at[2 l]
 * the attention of its layer l, at[2 l + 1] the feed-forward, at[2 n_layers] what follows. To be
 * read while no step runs. A stamp is a kernel of its own: it takes some time, and no kernel begins
 * while the one before a stamp ends. */
typedef struct oct_cuda_stamps {
  guint32 n_layers;
  const guint64 *at; /* [2 n_layers + 1]; the instance's, from its opening to its closing */
} oct_cuda_stamps;

typedef struct oct_cuda_options {
  const char *model; /* a checkpoint that is what an instance's spec says; copied. NULL: weights
                        made up from `seed` in the shapes of the spec */
  oct_load_format format;
  guint64 seed;
  gboolean float32;     /* weights, activations and cache in float32; else bfloat16 */
  gboolean fixed_order; /* a row's bits do not depend on the batch: --batch-invariant */
  gboolean fp8_inputs;  /* products of many tokens with fp8 weights round their inputs to fp8 */
  guint32 overlap;      /* in steps of up to so many tokens a kernel begins while the one before it
                           ends */
  guint32 expand;      /* new tokens of a sequence from which latent attention makes keys and values
                          of its context; 0: it works on the latents always, as with fixed_order */
  guint32 expand_keys; /* of so many positions at a time, rounded up to whole pages */
  gboolean nvls;       /* NVLink multicast for NCCL, which is off otherwise */
  guint32 devices;     /* of the world; 0 = the GPUs there are. Beyond them they are taken round
                          by round: ranks that share a GPU, for tests of layouts */
  gint64 deadline_ns;  /* of every wait for a device */
  struct oct_cuda_launches *launches; /* counts of kernels (kernels/cuda/launch.h); NULL = none.
                                         Borrowed until the world is freed */
  oct_cuda_stamps *stamps;            /* NULL = none. Borrowed until the world is freed */
  /* The process ends when a lost instance is closed, and after an opening has failed on a device
   * that it cannot use any more. What is wrong with a device often stays with
   * the process that used it, so a worker ends, and another takes its place (backends/remote). */
  gboolean exit_on_loss;
  /* For tests of what becomes of a device that fails: in step fault_step (0 = never) rank
   * fault_rank writes where no memory is, or with fault_hang stands still for twice the deadline.
   */
  guint64 fault_step;
  gboolean fault_open; /* in every opening, too */
  guint32 fault_rank;
  gboolean fault_hang;
} oct_cuda_options;

void oct_cuda_options_default(
    oct_cuda_options *options); /* all the GPUs, seed 1, 30 s, overlap in
                                   steps of 64 tokens, expand 256, 8192 at a time */

/* GPUs that CUDA shows to the process. FALSE with *error DEVICE, which says why there is none. */
gboolean oct_cuda_count_gpus(guint32 *n, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A new world; options NULL = default. NULL with *error: CONFIG names the option that is wrong,
 * DEVICE says why there is no GPU (no driver, none found, or Octet was built without CUDA). Opens
 * no device before an instance does, beyond asking the driver how many there are. */
oct_world *oct_cuda_world_new(const oct_cuda_options *options,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
