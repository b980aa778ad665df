/* One rank: a GPU with its streams, its memory, and the thread that works for it. Private to
 * backends/cuda.
 *
 * Calls that can go wrong are noted: the first failure stays, and breaks the group. Work that is
 * enqueued after a failure is harmless, so callers look at oct_cuda_has_failed() now and then, not
 * after each call.
 */
#ifndef OCT_BACKENDS_CUDA_RANK_H
#define OCT_BACKENDS_CUDA_RANK_H

#include <cuda_runtime_api.h>

#include "backends/cuda/group.h"
#include "kernels/cuda/launch.h"

typedef struct oct_cuda_rank {
  oct_cuda_group *group;
  guint32 index, stage, domain, tensor;
  guint32 device;             /* of the world */
  int gpu;                    /* CUDA's number */
  gboolean failed;            /* atomic: oct_cuda_has_failed() */
  gboolean is_last, is_first; /* stage */
  guint32 first_layer, n_layers;
  char bus_id[32];
  gint numa_node; /* bound to it; -1: not bound */
  cudaStream_t compute, copy_in, copy_out;
  oct_cuda_queue queue;
  oct_cuda_blas *blas;
  guint64 used;        /* bytes of device memory that were asked for */
  guint64 free_before; /* bytes that the driver had free before */
  GPtrArray *blocks, *pinned;
  GArray *large; /* large blocks of pinned memory */
} oct_cuda_rank;

/* Life cycle. On the thread that will work for it, which stays with its device. FALSE: noted. */
gboolean oct_cuda_rank_open(oct_cuda_rank *rank, oct_cuda_group *group,
                            guint32 index) G_GNUC_WARN_UNUSED_RESULT;
/* On the same thread, before it is closed; also of a rank that could not be opened. Whether
 * nothing of it runs any more: waits for that, 5 s at most, whatever has failed. */
gboolean oct_cuda_rank_rest(oct_cuda_rank *rank) G_GNUC_WARN_UNUSED_RESULT;
/* On the same thread. Gives back all memory, unless something may still use it (give_back FALSE):
 * then it stays with the process. FALSE: the device answers every call with an error. */
gboolean oct_cuda_rank_close(oct_cuda_rank *rank, gboolean give_back) G_GNUC_WARN_UNUSED_RESULT;

/* Use. `result` is a cudaError_t or what a launcher returns; `what` names the call. TRUE: it went
 * well. */
gboolean oct_cuda_note(oct_cuda_rank *rank, int result, const char *what);
void oct_cuda_fail(oct_cuda_rank *rank, const char *message);
/* On the rank's thread or any other: the world looks at what it has enqueued. */
static inline gboolean
oct_cuda_has_failed(const oct_cuda_rank *rank) {
  return __atomic_load_n(&rank->failed, __ATOMIC_RELAXED);
}
/* Device memory, or pinned memory of this machine, aligned to 256 bytes, until the rank is closed;
 * zeroed. NULL: noted, and the message says for what. 0 bytes give a valid pointer. */
void *oct_cuda_alloc(oct_cuda_rank *rank, guint64 bytes, const char *what);
void *oct_cuda_alloc_pinned(oct_cuda_rank *rank, guint64 bytes, const char *what);
void *oct_cuda_alloc_pinned_unset(oct_cuda_rank *rank, guint64 bytes,
                                  const char *what); /* not zeroed */
/* Gives one block back, which nothing enqueued later uses. Freeing waits for the device, and knows
 * no deadline: so what was enqueued is waited for first, and a block that it may not give back
 * stays the rank's until that is closed. */
void oct_cuda_release(oct_cuda_rank *rank, void *block);
cudaEvent_t oct_cuda_event_new(oct_cuda_rank *rank);
/* Until the event, which was recorded, has come: FALSE when it failed, the deadline passed, or the
 * group is broken. */
gboolean oct_cuda_wait(oct_cuda_rank *rank, cudaEvent_t event,
                       const char *what) G_GNUC_WARN_UNUSED_RESULT;
/* Until the stream has done all it has. */
gboolean oct_cuda_drain(oct_cuda_rank *rank, cudaStream_t stream,
                        const char *what) G_GNUC_WARN_UNUSED_RESULT;
/* So many cycles of the GPU's clock are at least that time. 0: noted. */
guint64 oct_cuda_rank_cycles(oct_cuda_rank *rank, gint64 ns);
/* The type of activations. */
oct_cuda_type oct_cuda_rank_type(const oct_cuda_rank *rank);

#endif
