/* Large blocks of pinned memory, made by several threads. Private to backends/cuda.
 *
 * cudaHostAlloc() clears and pins page after page on the thread that asks. Here the pages are large
 * ones where the system has them, several threads (threads.h) touch them, which have the caller's
 * affinity and memory policy, and the driver pins what is there.
 */
#ifndef OCT_BACKENDS_CUDA_PINNED_H
#define OCT_BACKENDS_CUDA_PINNED_H

#include <glib.h>

/* Blocks from this size on are worth it. */
#define OCT_PINNED_LARGE ((gsize)64 << 20)

/* `bytes` of memory, more than 0. Zeroed, on the calling thread's node when it is bound to one; the
 * current device and all others reach it at the same address. NULL: this machine does not do that,
 * or lacks the memory. Owned by the caller, who says how large it was when it is freed, once no
 * device works with it. From any thread with a device. */
void *oct_pinned_new(gsize bytes) G_GNUC_WARN_UNUSED_RESULT;
void oct_pinned_free(void *block, gsize bytes);

#endif
