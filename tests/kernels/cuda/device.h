/* The GPU that kernels are tested on: arrays up and down, and comparison with the plain-C twins.
 * Without a GPU every test is skipped. Memory lives until the test ends (device_clear()). */
#ifndef OCT_TESTS_KERNELS_CUDA_DEVICE_H
#define OCT_TESTS_KERNELS_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.h"
#include "tests/kernels/data.h"

/* A test's queue on the default stream of device 0; NULL after g_test_skip("no GPU"). Frees what
 * earlier tests have left. What is launched on it is counted: when OCT_CUDA_LAUNCHES names a file,
 * the names of all kernels that ran are appended to it at the end. */
const oct_cuda_queue *device_queue(guint32 flags);
/* Of a queue that a test has for itself: its kernels' names go to that file, too. */
void device_tell_launches(const struct oct_cuda_launches *launches);
/* OCT_CUDA_QUICK is set: a tool watches every access, so that kernels are slow, and makes them wait
 * for each other. Sizes of which others are no different are left out. */
gboolean device_quick(void);
/* cuBLASLt with its workspace, made once; NULL where it is not installed. */
oct_cuda_blas *device_blas(void);

/* Bytes on the device: n of them, all 0xff (no numbers) or a copy of `from`. */
void *device_room(gsize n);
void *device_zeros(gsize n);
void *device_copy(const void *from, gsize n);
/* x as `type` on the device; x becomes what the type holds of it. */
void *device_put(oct_cuda_type type, float *x, gsize n);
/* A room of n elements of `type`. */
void *device_room_of(oct_cuda_type type, gsize n);
/* Back: waits for the device. Owned. */
float *device_get(oct_cuda_type type, const void *from, gsize n);
void device_read(void *to, const void *from, gsize n);
void device_clear(void);

/* Fails the test unless the launcher returned OK and the device is well. */
void device_check(int error);
/* |a - b| / |b| over n elements, printed under the name; fails above the limit and for NaN. */
void device_expect(const char *name, const float *a, const float *b, gsize n, double limit);
/* The same of few sums, all of which may all but cancel: |b| counts for no less than that of so
 * many of root mean square `typical`, as data_expect() has it. */
void device_expect_sums(const char *name, const float *a, const float *b, gsize n, double typical,
                        double limit);

/* What rounding to e4m3 leaves at most of random numbers with one scale a row or head. Numbers in
 * [2^e, 2^(e+1)) lie 2^(e-3) apart: the error is even within 2^(e-4), its root mean square 2^(e-4)
 * / sqrt(3), and numbers that lie evenly in there have sqrt(7/3) 2^e: 2.36e-2. Normal ones are
 * denser at the binade's beginning: 2.65e-2, with a norm's weights too, in a model and on the GPU.
 * Seven rows of 8 to 333 numbers scatter around that: 3.14e-2 was the most of 740,000 draws.
 * Rounding to bf16 before, 2^-9 / sqrt(3) at most, adds 0.1 % of it. */
#define DEVICE_FP8_ERROR 3.2e-2

/* Sequences of a batch. */
typedef struct device_seq {
  guint32 n_tokens, position;
} device_seq;

/* A batch of n sequences in slots of random order, padded by `pad_tokens` and `pad_seqs`, made by
 * oct_cuda_prepare_batch(). */
typedef struct device_batch {
  oct_cuda_batch batch;
  guint32 n_seqs, n_tokens, n_slots; /* without padding */
  guint32 *slots;                    /* [n_seqs] */
  guint32 *seq_of, *position_of;     /* [n_tokens] */
} device_batch;
device_batch *device_batch_new(const oct_cuda_queue *queue, const device_seq *seqs, guint32 n,
                               guint32 pad_tokens, guint32 pad_seqs);
void device_batch_free(device_batch *batch);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(device_batch, device_batch_free)

/* Page tables of the batch's slots over a pool of random order. Pages are a sequence's own up to
 * one behind its last token, further entries are any. */
typedef struct device_pages {
  oct_cuda_tables tables;
  guint32 *host, stride, n_pages, page_tokens;
  guint32 spare; /* a page that no sequence has */
} device_pages;
device_pages *device_pages_new(const device_batch *batch, guint32 page_tokens);
void device_pages_free(device_pages *pages);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(device_pages, device_pages_free)
/* The table of sequence s, on the host. */
const guint32 *device_pages_of(const device_pages *pages, const device_batch *batch, guint32 s);
/* Rows of tokens that no sequence has are no numbers: of a pool [page, runs, page's tokens, width].
 */
void device_poison(const device_pages *pages, const device_batch *batch, guint32 runs,
                   guint32 width, float *pool);
/* Entries of pages wholly below the window of a sequence's first token: the spare page, which is
 * poisoned, and one that is nowhere, in turn. After device_poison(). */
void device_close_window(device_pages *pages, const device_batch *batch, guint32 window);

#endif
