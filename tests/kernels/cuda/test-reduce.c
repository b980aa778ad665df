/* All-reduce over peers' memory, ranks being streams of one GPU: kernels of all of them have to run
 * at a time. A tool may make launches wait for each other: in quick mode everything that a rank
 * waits for is there before it begins, and sums are of what was there. */
#include "kernels/cuda/gather.h"
#include "tests/kernels/cuda/device.h"

#include <string.h>

typedef struct reduce_case {
  guint32 ranks, n, width;
  oct_cuda_type type, residual;
  oct_cuda_reduce_way way;
  gboolean has_residual, has_norm;
} reduce_case;

typedef struct rank {
  oct_cuda_peers peers;
  oct_cuda_queue queue;
  oct_cuda_all_reduce call;
  float *x, *residual;
} rank;

#define BUFFER_BYTES (8u << 20)

static void
open_ranks(const oct_cuda_queue *queue, rank *ranks, guint32 n, guint32 *failed) {
  oct_cuda_peers peers = {.n = n,
                          .buffer_bytes = BUFFER_BYTES,
                          .failed = failed,
                          .timeout_cycles = G_GUINT64_CONSTANT(4000000000)};
  for (guint32 r = 0; r < n; r++) {
    peers.buffers[r] = device_room(BUFFER_BYTES);
    peers.signals[r] = device_room(OCT_CUDA_SIGNAL_BYTES);
    g_assert_cmpint(cudaMemset(peers.signals[r], 0, OCT_CUDA_SIGNAL_BYTES), ==, cudaSuccess);
    g_assert_cmpint(cudaMemset(peers.buffers[r], 0, 2 * OCT_CUDA_PACKET_BYTES), ==, cudaSuccess);
  }
  for (guint32 r = 0; r < n; r++) {
    ranks[r].peers = peers;
    ranks[r].peers.rank = r;
    ranks[r].queue = *queue;
    g_assert_cmpint(cudaStreamCreateWithFlags(&ranks[r].queue.stream, cudaStreamNonBlocking), ==,
                    cudaSuccess);
  }
}

/* The next call of all ranks is `call`, from 0. */
static void
set_calls(const rank *ranks, guint32 n, guint64 call) {
  for (guint32 r = 0; r < n; r++)
    g_assert_cmpint(cudaMemcpy(ranks->peers.signals[r] + OCT_CUDA_SIGNAL_CALLS, &call, sizeof call,
                               cudaMemcpyHostToDevice),
                    ==, cudaSuccess);
  g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
}

/* All flags, far ahead of any call's number, and packets of the call `call`, from all to all. */
static void
forestall(const rank *ranks, guint32 n, guint32 call) {
  guint32 number = call | 1;
  gsize words = 2 * OCT_CUDA_PACKET_BYTES / 4;
  g_autofree guint32 *packets = g_new(guint32, words);
  for (gsize i = 0; i < words; i++)
    packets[i] = number;
  for (guint32 r = 0; r < n; r++) {
    g_assert_cmpint(cudaMemcpy(ranks->peers.buffers[r], packets, words * 4, cudaMemcpyHostToDevice),
                    ==, cudaSuccess);
    /* Not the numbers of calls, which are behind the flags. */
    g_assert_cmpint(
        cudaMemset(ranks->peers.signals[r], 0x3f, OCT_CUDA_SIGNAL_CALLS * sizeof(guint64)), ==,
        cudaSuccess);
  }
}

/* Call `call`, from 0, by every rank, compared with the sum in the order of ranks. */
static void
run_case(rank *ranks, const reduce_case *c, guint32 call) {
  gsize size = (gsize)c->n * c->width;
  g_autofree float *weight = data_normal(c->width, 1), *sum = g_new0(float, size);
  g_autofree float *residual = data_normal(size, 1), *want = g_new(float, size);
  void *d_weight = device_put(c->type, weight, c->width);
  for (guint32 r = 0; r < c->ranks; r++) {
    g_autofree float *x = data_normal(size, 1);
    ranks[r].call = (oct_cuda_all_reduce){
        .type = c->type,
        .residual_type = c->residual,
        .n = c->n,
        .width = c->width,
        .x = device_put(c->type, x, size),
        .residual = c->has_residual ? device_put(c->residual, residual, size) : NULL,
        .weight = c->has_norm ? d_weight : NULL,
        .eps = 1e-5f,
        .out = device_room_of(c->type, size),
        .way = c->way};
    oct_ref_add(sum, x, size);
  }
  g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
  if (device_quick()) {
    forestall(ranks, c->ranks, call);
    /* The ranks' streams do not wait for the default one. */
    g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
  }
  for (guint32 r = 0; r < c->ranks; r++)
    device_check(oct_cuda_all_reduce_norm(&ranks[r].queue, &ranks[r].peers, &ranks[r].call));
  g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
  if (device_quick())
    return;
  memcpy(want, sum, size * sizeof *sum);
  if (c->has_residual)
    oct_ref_add(want, residual, size);
  if (c->has_norm)
    oct_ref_rms_norm(want, weight, c->n, c->width, c->width, 1e-5f, want);
  g_autofree float *first = NULL;
  for (guint32 r = 0; r < c->ranks; r++) {
    g_autofree float *out = device_get(c->type, ranks[r].call.out, size);
    device_expect("all-reduce", out, want, size, c->type == OCT_CUDA_F32 ? 1e-5 : 6e-3);
    if (first == NULL)
      first = g_memdup2(out, size * sizeof *out);
    g_assert_cmpmem(out, size * sizeof *out, first, size * sizeof *out);
  }
}

static void
test_reduce(void) {
  static const reduce_case cases[] = {
      {2, 1, 4096, OCT_CUDA_BF16, OCT_CUDA_BF16, OCT_CUDA_REDUCE_ONE_SHOT, TRUE, TRUE},
      {2, 8, 64, OCT_CUDA_BF16, OCT_CUDA_F32, OCT_CUDA_REDUCE_ONE_SHOT, TRUE, TRUE},
      {2, 1, 8192, OCT_CUDA_BF16, OCT_CUDA_F32, OCT_CUDA_REDUCE_PACKETS, TRUE, TRUE},
      {2, 3, 72, OCT_CUDA_F32, OCT_CUDA_F32, OCT_CUDA_REDUCE_ONE_SHOT, FALSE, FALSE},
      {2, 7, 8192, OCT_CUDA_BF16, OCT_CUDA_F32, OCT_CUDA_REDUCE_TWO_SHOT, TRUE, TRUE},
      {2, 5, 72, OCT_CUDA_F32, OCT_CUDA_F32, OCT_CUDA_REDUCE_PACKETS, FALSE, FALSE},
      {2, 2, 7168, OCT_CUDA_F32, OCT_CUDA_F32, OCT_CUDA_REDUCE_PACKETS, TRUE, TRUE},
      {2, 1, 72, OCT_CUDA_F32, OCT_CUDA_F32, OCT_CUDA_REDUCE_TWO_SHOT, FALSE, FALSE},
      {2, 40, 512, OCT_CUDA_BF16, OCT_CUDA_BF16, OCT_CUDA_REDUCE_TWO_SHOT, FALSE, FALSE},
      {2, 2, 3584, OCT_CUDA_BF16, OCT_CUDA_BF16, OCT_CUDA_REDUCE_PACKETS, FALSE, TRUE},
      {2, 9, 3584, OCT_CUDA_BF16, OCT_CUDA_BF16, OCT_CUDA_REDUCE_ONE_SHOT, FALSE, TRUE},
      {2, 5, 72, OCT_CUDA_F32, OCT_CUDA_F32, OCT_CUDA_REDUCE_TWO_SHOT, FALSE, TRUE}};
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  for (guint32 n = 2; n <= 4; n += 2) {
    queue = device_queue(0);
    rank ranks[4] = {0};
    guint32 zero = 0, *failed = device_copy(&zero, sizeof zero), seen;
    open_ranks(queue, ranks, n, failed);
    /* Several times: both halves of the buffers come round, with calls of other sizes between. */
    for (guint i = 0; i < 3 * G_N_ELEMENTS(cases); i++) {
      reduce_case c = cases[i % G_N_ELEMENTS(cases)];
      c.ranks = n;
      run_case(ranks, &c, i);
    }
    device_read(&seen, failed, sizeof seen);
    g_assert_cmpuint(seen, ==, 0);
    for (guint32 r = 0; r < n; r++)
      cudaStreamDestroy(ranks[r].queue.stream);
  }
}

/* What a fixed order takes: some rows at a time, whose bits are the same however many there are. */
static void
test_fixed(void) {
  enum { N = 9, WIDTH = 3584 };
  const gsize size = N * WIDTH;
  if (device_queue(0) == NULL)
    return;
  if (device_quick()) {
    g_test_skip("ranks do not run at a time");
    return;
  }
  for (guint32 n = 2; n <= 4; n += 2) {
    const oct_cuda_queue *queue = device_queue(0);
    rank ranks[4] = {0};
    guint32 zero = 0, *failed = device_copy(&zero, sizeof zero), rows = 4000;
    g_autofree float *weight = data_normal(WIDTH, 1), *residual = data_normal(size, 1);
    float *first[2] = {NULL, NULL};
    void *d_weight = device_put(OCT_CUDA_BF16, weight, WIDTH), *x[4];
    open_ranks(queue, ranks, n, failed);
    for (guint32 r = 0; r < n; r++) {
      g_autofree float *own = data_normal(size, 1);
      x[r] = device_put(OCT_CUDA_BF16, own, size);
    }
    for (guint way = OCT_CUDA_REDUCE_PACKETS; way <= OCT_CUDA_REDUCE_ONE_SHOT; way++) {
      for (guint32 r = 0; r < n; r++)
        ranks[r].call = (oct_cuda_all_reduce){.type = OCT_CUDA_BF16,
                                              .residual_type = OCT_CUDA_F32,
                                              .n = way == OCT_CUDA_REDUCE_PACKETS ? 2 : N,
                                              .width = WIDTH,
                                              .x = x[r],
                                              .residual = device_put(OCT_CUDA_F32, residual, size),
                                              .weight = d_weight,
                                              .eps = 1e-5f,
                                              .out = device_room_of(OCT_CUDA_BF16, size),
                                              .way = way};
      g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
      for (guint32 r = 0; r < n; r++)
        device_check(oct_cuda_all_reduce_norm(&ranks[r].queue, &ranks[r].peers, &ranks[r].call));
      g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
      for (guint32 r = 0; r < n; r++) {
        float *got[] = {device_get(OCT_CUDA_BF16, ranks[r].call.out, 2 * WIDTH),
                        device_get(OCT_CUDA_F32, ranks[r].call.residual, 2 * WIDTH)};
        for (guint i = 0; i < 2; i++) {
          if (first[i] == NULL)
            first[i] = g_memdup2(got[i], 2 * WIDTH * sizeof(float));
          g_assert_cmpmem(got[i], 2 * WIDTH * sizeof(float), first[i], 2 * WIDTH * sizeof(float));
          g_free(got[i]);
        }
      }
    }
    g_free(first[0]);
    g_free(first[1]);
    g_assert_cmpint(oct_cuda_all_reduce_fixed(&ranks[0].peers, &rows, 2 * WIDTH), ==,
                    OCT_CUDA_REDUCE_ONE_SHOT);
    g_assert_cmpuint(rows, >, 0);
    g_assert_cmpuint(rows, <, 4000);
    for (guint32 r = 0; r < n; r++)
      cudaStreamDestroy(ranks[r].queue.stream);
  }
}

/* Columns of two arrays of every rank, in calls that take turns with sums. */
static void
run_gather(rank *ranks, guint32 n_ranks, guint32 n, guint32 narrow, guint32 wide) {
  gsize row = (narrow * 2 + 15) / 16 * 16 + (wide * 4 + 15) / 16 * 16;
  guint32 at = (narrow * 2 + 15) / 16 * 16;
  guint16 *halves[4];
  float *floats[4], *first = g_new(float, (gsize)n *wide *n_ranks);
  const void *sources[4];
  oct_cuda_gather_parts calls[4];
  guint16 *want = g_new(guint16, (gsize)n * narrow * n_ranks);
  for (guint32 r = 0; r < n_ranks; r++) {
    g_autofree guint8 *x = g_malloc0(n * row);
    for (guint32 i = 0; i < n; i++) {
      guint16 *a = (guint16 *)(gpointer)(x + i * row);
      float *b = (float *)(gpointer)(x + i * row + at);
      for (guint32 c = 0; c < narrow; c++)
        a[c] = want[((gsize)i * n_ranks + r) * narrow + c] = (guint16)(r * 4001 + i * 101 + c);
      for (guint32 c = 0; c < wide; c++)
        b[c] = first[((gsize)i * n_ranks + r) * wide + c] = (float)(r * 5003 + i * 37 + c);
    }
    sources[r] = device_copy(x, n * row);
    halves[r] = device_room((gsize)n * narrow * n_ranks * 2);
    floats[r] = device_room((gsize)n * wide * n_ranks * 4);
    calls[r] =
        (oct_cuda_gather_parts){.n = n,
                                .row_bytes = (guint32)row,
                                .x = sources[r],
                                .n_pieces = 2,
                                .pieces = {{0, narrow * 2, halves[r], (gsize)narrow * n_ranks * 2},
                                           {at, wide * 4, floats[r], (gsize)wide * n_ranks * 4}}};
  }
  g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
  for (guint32 r = 0; r < n_ranks; r++) {
    g_assert_true(oct_cuda_gather_can(&ranks[r].peers, n, (guint32)row));
    device_check(oct_cuda_gather_columns(&ranks[r].queue, &ranks[r].peers, &calls[r]));
  }
  g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
  g_autofree guint16 *a = g_new(guint16, (gsize)n * narrow * n_ranks);
  g_autofree float *b = g_new(float, (gsize)n *wide *n_ranks);
  for (guint32 r = 0; r < n_ranks + 1; r++) {
    if (r == n_ranks) { /* the same from rows that are all here */
      g_assert_cmpint(cudaMemset(halves[0], 0, (gsize)n * narrow * n_ranks * 2), ==, cudaSuccess);
      g_assert_cmpint(cudaMemset(floats[0], 0, (gsize)n * wide * n_ranks * 4), ==, cudaSuccess);
      g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
      device_check(oct_cuda_gather_place(&ranks[0].queue, sources, n_ranks, &calls[0]));
      g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
    }
    device_read(a, halves[r % n_ranks], (gsize)n * narrow * n_ranks * 2);
    device_read(b, floats[r % n_ranks], (gsize)n * wide * n_ranks * 4);
    g_assert_cmpmem(a, (gsize)n * narrow * n_ranks * 2, want, (gsize)n * narrow * n_ranks * 2);
    g_assert_cmpmem(b, (gsize)n * wide * n_ranks * 4, first, (gsize)n * wide * n_ranks * 4);
  }
  g_free(first);
  g_free(want);
}

static void
test_gather(void) {
  static const reduce_case sum = {
      2, 5, 72, OCT_CUDA_F32, OCT_CUDA_F32, OCT_CUDA_REDUCE_PACKETS, FALSE, FALSE};
  static const guint32 sizes[][3] = {{1, 448, 112}, {7, 16, 2},    {48, 448, 112}, {200, 448, 112},
                                     {3, 6, 1},     {900, 32, 16}, {1, 448, 112}};
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  if (device_quick()) {
    g_test_skip("ranks have to run at a time");
    return;
  }
  for (guint32 n = 2; n <= 4; n += 2) {
    queue = device_queue(0);
    rank ranks[4] = {0};
    guint32 zero = 0, *failed = device_copy(&zero, sizeof zero), seen;
    open_ranks(queue, ranks, n, failed);
    for (guint i = 0; i < 2 * G_N_ELEMENTS(sizes); i++) {
      const guint32 *s = sizes[i % G_N_ELEMENTS(sizes)];
      run_gather(ranks, n, s[0], s[1], s[2]);
      reduce_case c = sum;
      c.ranks = n;
      run_case(ranks, &c, 2 * i + 1);
    }
    device_read(&seen, failed, sizeof seen);
    g_assert_cmpuint(seen, ==, 0);
    for (guint32 r = 0; r < n; r++)
      cudaStreamDestroy(ranks[r].queue.stream);
  }
}

/* Calls with numbers `begin`, begin + 1, …: blocks that have done nothing for long or ever come in
 * again, by each way. */
static void
run_from(rank *ranks, guint32 n_ranks, guint64 begin) {
  static const reduce_case cases[] = {
      {0, 3, 512, OCT_CUDA_F32, OCT_CUDA_F32, OCT_CUDA_REDUCE_ONE_SHOT, FALSE, FALSE},
      {0, 2, 512, OCT_CUDA_BF16, OCT_CUDA_F32, OCT_CUDA_REDUCE_PACKETS, TRUE, TRUE},
      {0, 40, 512, OCT_CUDA_F32, OCT_CUDA_F32, OCT_CUDA_REDUCE_TWO_SHOT, FALSE, FALSE},
      {0, 6, 4096, OCT_CUDA_F32, OCT_CUDA_F32, OCT_CUDA_REDUCE_PACKETS, FALSE, FALSE},
      {0, 100, 512, OCT_CUDA_BF16, OCT_CUDA_F32, OCT_CUDA_REDUCE_ONE_SHOT, TRUE, TRUE},
      {0, 900, 64, OCT_CUDA_F32, OCT_CUDA_F32, OCT_CUDA_REDUCE_TWO_SHOT, FALSE, FALSE}};
  set_calls(ranks, n_ranks, begin);
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    reduce_case c = cases[i];
    c.ranks = n_ranks;
    run_case(ranks, &c, (guint32)begin + i);
  }
  run_gather(ranks, n_ranks, 7, 16, 2);
  run_gather(ranks, n_ranks, 400, 448, 112);
}

/* The first sums of 2^25 calls on, and numbers that 26 and 32 bits cannot hold: what flags and
 * packets say then is of no earlier call, nor what they say at first. */
static void
test_late_calls(void) {
  static const guint64 begins[] = {0, 1u << 25, (1u << 26) - 3, 1u << 31, G_MAXUINT32 - 3};
  static const guint64 later[] = {0, 1u << 26, (guint64)1 << 32};
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  if (device_quick()) {
    g_test_skip("ranks have to run at a time");
    return;
  }
  for (guint i = 0; i < 2 * G_N_ELEMENTS(begins); i++) {
    queue = device_queue(0);
    rank ranks[4] = {0};
    guint32 zero = 0, *failed = device_copy(&zero, sizeof zero), seen, n = 2 + i % 2 * 2;
    open_ranks(queue, ranks, n, failed);
    for (guint k = 0; k < G_N_ELEMENTS(later); k++)
      run_from(ranks, n, begins[i / 2] + later[k]);
    device_read(&seen, failed, sizeof seen);
    g_assert_cmpuint(seen, ==, 0);
    for (guint32 r = 0; r < n; r++)
      cudaStreamDestroy(ranks[r].queue.stream);
  }
}

/* A rank that never comes is noticed. */
static void
test_timeout(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  rank ranks[2] = {0};
  guint32 zero = 0, *failed = device_copy(&zero, sizeof zero), seen;
  open_ranks(queue, ranks, 2, failed);
  ranks[0].peers.timeout_cycles = 1000000;
  float x[64] = {1};
  void *d = device_put(OCT_CUDA_F32, x, 64);
  oct_cuda_all_reduce call = {.type = OCT_CUDA_F32, .n = 1, .width = 64, .x = d, .out = d};
  for (call.way = OCT_CUDA_REDUCE_PACKETS; call.way <= OCT_CUDA_REDUCE_TWO_SHOT; call.way++) {
    g_assert_cmpint(cudaMemset(failed, 0, sizeof *failed), ==, cudaSuccess);
    g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
    device_check(oct_cuda_all_reduce_norm(&ranks[0].queue, &ranks[0].peers, &call));
    device_read(&seen, failed, sizeof seen);
    g_assert_cmpuint(seen, ==, 1);
  }
  for (guint32 r = 0; r < 2; r++)
    cudaStreamDestroy(ranks[r].queue.stream);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/reduce/every-rank-has-the-same-sum", test_reduce);
  g_test_add_func("/cuda/reduce/every-rank-has-all-columns", test_gather);
  g_test_add_func("/cuda/reduce/a-fixed-order-has-the-same-bits-of-any-rows", test_fixed);
  g_test_add_func("/cuda/reduce/what-was-left-long-ago-is-not-taken", test_late_calls);
  g_test_add_func("/cuda/reduce/a-missing-rank-is-noticed", test_timeout);
  return g_test_run();
}
