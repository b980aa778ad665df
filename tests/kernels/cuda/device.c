#include "tests/kernels/cuda/device.h"

#include <math.h>
#include <stdio.h>

#include "kernels/cuda/launches.h"

static GPtrArray *owned;
static oct_cuda_launches launches;
static oct_cuda_blas *blas;
static void *blas_workspace;

static void
well(cudaError_t error) {
  g_assert_cmpstr(cudaGetErrorString(error), ==, "no error");
}

gboolean
device_quick(void) {
  return g_getenv("OCT_CUDA_QUICK") != NULL;
}

void
device_tell_launches(const oct_cuda_launches *of) {
  const char *path = g_getenv("OCT_CUDA_LAUNCHES");
  if (path == NULL)
    return;
  FILE *file = fopen(path, "a");
  g_assert_nonnull(file);
  g_assert_cmpuint(of->n, <, OCT_CUDA_KERNELS_MAX);
  for (guint32 i = 0; i < of->n; i++)
    fprintf(file, "%s\n", of->of[i].name);
  g_assert_cmpint(fclose(file), ==, 0);
}

static void
write_launches(void) {
  device_tell_launches(&launches);
}

/* A queue on the default stream whose launches are counted. */
static void
open_queue(oct_cuda_queue *queue, guint32 flags) {
  static gboolean told;
  if (!told && g_getenv("OCT_CUDA_LAUNCHES") != NULL)
    g_assert_cmpint(atexit(write_launches), ==, 0);
  told = TRUE;
  device_check(oct_cuda_queue_init(queue, NULL, flags));
  queue->launches = &launches;
}

const oct_cuda_queue *
device_queue(guint32 flags) {
  static oct_cuda_queue queue;
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
    g_test_skip("no GPU");
    return NULL;
  }
  device_clear();
  open_queue(&queue, flags);
  return &queue;
}

oct_cuda_blas *
device_blas(void) {
  if (blas == NULL) {
    well(cudaMalloc(&blas_workspace, OCT_CUDA_BLAS_WORKSPACE));
    blas = oct_cuda_blas_new(blas_workspace, OCT_CUDA_BLAS_WORKSPACE);
  }
  return blas;
}

void *
device_room(gsize n) {
  void *room = NULL;
  if (owned == NULL)
    owned = g_ptr_array_new();
  well(cudaMalloc(&room, MAX(n, 16)));
  well(cudaMemset(room, 0xff, MAX(n, 16)));
  g_ptr_array_add(owned, room);
  return room;
}

void *
device_zeros(gsize n) {
  void *room = device_room(n);
  well(cudaMemset(room, 0, MAX(n, 16)));
  return room;
}

void *
device_copy(const void *from, gsize n) {
  void *room = device_room(n);
  well(cudaMemcpy(room, from, n, cudaMemcpyHostToDevice));
  return room;
}

void *
device_room_of(oct_cuda_type type, gsize n) {
  return device_room(n * oct_cuda_type_bytes(type));
}

void *
device_put(oct_cuda_type type, float *x, gsize n) {
  oct_cuda_queue queue;
  open_queue(&queue, 0);
  void *plain = device_copy(x, n * sizeof *x), *to = device_room_of(type, n);
  device_check(oct_cuda_convert(&queue, OCT_CUDA_F32, plain, type, to, n));
  device_check(oct_cuda_convert(&queue, type, to, OCT_CUDA_F32, plain, n));
  device_read(x, plain, n * sizeof *x);
  return to;
}

void
device_read(void *to, const void *from, gsize n) {
  well(cudaDeviceSynchronize());
  well(cudaMemcpy(to, from, n, cudaMemcpyDeviceToHost));
}

float *
device_get(oct_cuda_type type, const void *from, gsize n) {
  /* What other streams make of `from` is ready before this one reads it. */
  well(cudaDeviceSynchronize());
  oct_cuda_queue queue;
  open_queue(&queue, 0);
  float *x = g_new(float, MAX(n, 1));
  void *plain = device_room(n * sizeof *x);
  device_check(oct_cuda_convert(&queue, type, from, OCT_CUDA_F32, plain, n));
  device_read(x, plain, n * sizeof *x);
  return x;
}

void
device_clear(void) {
  for (guint i = 0; owned != NULL && i < owned->len; i++)
    well(cudaFree(owned->pdata[i]));
  g_clear_pointer(&owned, g_ptr_array_unref);
}

void
device_check(int error) {
  g_assert_cmpstr(oct_cuda_error_text(error), ==, "no error");
}

void
device_expect(const char *name, const float *a, const float *b, gsize n, double limit) {
  device_expect_sums(name, a, b, n, 0, limit);
}

void
device_expect_sums(const char *name, const float *a, const float *b, gsize n, double typical,
                   double limit) {
  double difference = 0, size = 0;
  for (gsize i = 0; i < n; i++) {
    difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    size += (double)b[i] * b[i];
  }
  size = MAX(size, (double)n * typical * typical);
  double error = sqrt(difference / (size > 0 ? size : 1));
  g_test_message("%s: relative L2 error %.3g, limit %.3g", name, error, limit);
  if (!(error <= limit))
    g_test_fail_printf("%s: relative L2 error %.3g over %.3g", name, error, limit);
}

/* ---------------------------------------------------------------- batches */

device_batch *
device_batch_new(const oct_cuda_queue *queue, const device_seq *seqs, guint32 n, guint32 pad_tokens,
                 guint32 pad_seqs) {
  device_batch *b = g_new0(device_batch, 1);
  g_autofree oct_cuda_seq *records = g_new0(oct_cuda_seq, MAX(n, 1));
  b->n_seqs = n;
  b->n_slots = 2 * n + 3;
  b->slots = data_pages(n, b->n_slots);
  for (guint32 s = 0; s < n; s++) {
    records[s] = (oct_cuda_seq){.slot = b->slots[s],
                                .first = b->n_tokens,
                                .n_tokens = seqs[s].n_tokens,
                                .position = seqs[s].position,
                                .ids = b->n_tokens};
    b->n_tokens += seqs[s].n_tokens;
  }
  b->seq_of = g_new(guint32, MAX(b->n_tokens, 1));
  b->position_of = g_new(guint32, MAX(b->n_tokens, 1));
  for (guint32 s = 0, i = 0; s < n; s++)
    for (guint32 k = 0; k < seqs[s].n_tokens; k++, i++) {
      b->seq_of[i] = s;
      b->position_of[i] = seqs[s].position + k;
    }
  guint32 tokens = b->n_tokens + pad_tokens;
  b->batch = (oct_cuda_batch){.n_tokens = tokens,
                              .n_seqs = n + pad_seqs,
                              .ids = device_room(tokens * sizeof(guint32)),
                              .token_position = device_room(tokens * sizeof(guint32)),
                              .token_seq = device_room(tokens * sizeof(guint32)),
                              .seq_first = device_room((n + pad_seqs + 1) * sizeof(guint32)),
                              .seq_start = device_room((n + pad_seqs) * sizeof(guint32)),
                              .seq_slot = device_room((n + pad_seqs) * sizeof(guint32))};
  g_autofree guint32 *ids = g_new0(guint32, MAX(b->n_tokens, 1));
  g_autofree guint32 *zeros = g_new0(guint32, b->n_slots);
  oct_cuda_prepare call = {.batch = &b->batch,
                           .seqs = device_copy(records, n * sizeof *records),
                           .count = device_copy(&n, sizeof n),
                           .ids = device_copy(ids, b->n_tokens * sizeof *ids),
                           .slots = {.last_token = device_copy(zeros, b->n_slots * sizeof *zeros),
                                     .length = device_copy(zeros, b->n_slots * sizeof *zeros)}};
  device_check(oct_cuda_prepare_batch(queue, &call));
  return b;
}

void
device_batch_free(device_batch *b) {
  g_free(b->slots);
  g_free(b->seq_of);
  g_free(b->position_of);
  g_free(b);
}

device_pages *
device_pages_new(const device_batch *b, guint32 page_tokens) {
  device_pages *p = g_new0(device_pages, 1);
  g_autofree guint32 *ends = g_new0(guint32, MAX(b->n_seqs, 1));
  guint32 most = 0, n = 0, used = 0;
  for (guint32 i = 0; i < b->n_tokens; i++)
    ends[b->seq_of[i]] = MAX(ends[b->seq_of[i]], b->position_of[i] / page_tokens + 2);
  for (guint32 s = 0; s < b->n_seqs; s++) {
    most = MAX(most, ends[s]);
    used += ends[s];
  }
  p->page_tokens = page_tokens;
  p->stride = most + 1;
  p->n_pages = used + 5;
  gsize n_entries = (gsize)b->n_slots * p->stride;
  g_autofree guint32 *order = data_pages(p->n_pages, p->n_pages);
  p->host = g_new(guint32, n_entries);
  p->spare = order[used];
  for (gsize i = 0; i < n_entries; i++)
    p->host[i] = order[used + i % 5];
  for (guint32 s = 0; s < b->n_seqs; s++)
    for (guint32 i = 0; i < ends[s]; i++)
      p->host[(gsize)b->slots[s] * p->stride + i] = order[n++];
  p->tables = (oct_cuda_tables){.pages = device_copy(p->host, n_entries * sizeof *p->host),
                                .stride = p->stride};
  return p;
}

void
device_pages_free(device_pages *p) {
  g_free(p->host);
  g_free(p);
}

const guint32 *
device_pages_of(const device_pages *p, const device_batch *b, guint32 s) {
  return p->host + (gsize)b->slots[s] * p->stride;
}

void
device_poison(const device_pages *p, const device_batch *b, guint32 runs, guint32 width,
              float *pool) {
  gsize tokens = p->page_tokens, rows = (gsize)p->n_pages * runs * tokens;
  g_autofree guint8 *used = g_new0(guint8, p->n_pages * tokens);
  for (guint32 i = 0; i < b->n_tokens; i++) {
    const guint32 *pages = device_pages_of(p, b, b->seq_of[i]);
    gboolean is_last = i + 1 == b->n_tokens || b->seq_of[i + 1] != b->seq_of[i];
    for (guint32 at = 0; is_last && at <= b->position_of[i]; at++)
      used[pages[at / tokens] * tokens + at % tokens] = 1;
  }
  for (gsize r = 0; r < rows; r++)
    for (guint32 d = 0; d < width && !used[r / tokens / runs * tokens + r % tokens]; d++)
      pool[r * width + d] = NAN;
}

void
device_close_window(device_pages *p, const device_batch *b, guint32 window) {
  for (guint32 i = 0; i < b->n_tokens && window != 0; i++) {
    gboolean is_first = i == 0 || b->seq_of[i - 1] != b->seq_of[i];
    guint32 seen = b->position_of[i] + 1, *pages = p->host;
    pages += (gsize)b->slots[b->seq_of[i]] * p->stride;
    for (guint32 k = 0; is_first && seen > window && k < (seen - window) / p->page_tokens; k++)
      pages[k] = k % 2 == 0 ? p->spare : 1u << 30;
  }
  gsize n_entries = (gsize)b->n_slots * p->stride;
  p->tables.pages = device_copy(p->host, n_entries * sizeof *p->host);
}
