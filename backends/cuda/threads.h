/* Work on memory that several threads share out: one that waits for the disk, or for pages to be
 * mapped, does not hold the others up. Private to backends/cuda. */
#ifndef OCT_BACKENDS_CUDA_THREADS_H
#define OCT_BACKENDS_CUDA_THREADS_H

#include <glib.h>

/* Of n units of work, [first, first + n). On any thread. */
typedef void (*oct_cuda_fill)(gpointer user, guint64 first, guint64 n);

#define OCT_CUDA_FILL_THREADS 16
/* fill() over n units in equal runs, by at most `most` threads (up to OCT_CUDA_FILL_THREADS, and as
 * many as there are processors), of which the caller is one. They have its affinity and memory
 * policy. Returns when all is done; where no thread is to be had the caller does its run. */
void oct_cuda_share_out(oct_cuda_fill fill, gpointer user, guint64 n, guint64 most);

#endif
