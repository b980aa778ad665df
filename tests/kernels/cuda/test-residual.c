/* Attention residuals against the reference's mix and norm. */
#include "kernels/cuda/residual.h"
#include "tests/kernels/cuda/device.h"

#include <string.h>

#define EPS      1e-5f
#define NORM_EPS 2e-5f

typedef struct mix_case {
  guint32 n, width, n_blocks;
  gboolean has_x, begins, keeps, in_place;
} mix_case;

static double
limit_of(oct_cuda_type type) {
  return type == OCT_CUDA_F32 ? 1e-5 : 4e-3;
}

/* out[n, width] of the stream p and of blocks[n_blocks][n, width]. */
static void
want_mix(const mix_case *c, const float *blocks, const float *p, const float *score,
         const float *norm, float *out) {
  g_autofree float *ones = g_new(float, c->width), *scratch = g_new(float, 2 * (gsize)c->width);
  float weights[OCT_CUDA_MIX_BLOCKS_MAX + 1];
  const float *sources[OCT_CUDA_MIX_BLOCKS_MAX + 1];
  gsize size = (gsize)c->n * c->width;
  for (guint32 i = 0; i < c->width; i++)
    ones[i] = 1;
  const oct_residual_mix mix = {ones, score, c->width, EPS};
  for (guint32 row = 0; row < c->n; row++) {
    gsize at = (gsize)row * c->width;
    for (guint32 s = 0; s < c->n_blocks; s++)
      sources[s] = blocks + s * size + at;
    sources[c->n_blocks] = p + at;
    oct_ref_residual_mix(&mix, sources, c->n_blocks + 1, out + at, weights, scratch);
    oct_ref_rms_norm(out + at, norm, 1, c->width, c->width, NORM_EPS, out + at);
  }
}

static void
check_mix(const oct_cuda_queue *queue, oct_cuda_type type, const mix_case *c) {
  gsize size = (gsize)c->n * c->width, all = c->n_blocks * size;
  g_autofree float *x = data_normal(size, 1), *p = data_normal(size, 2);
  g_autofree float *blocks = data_normal(all, 3), *score = data_normal(c->width, 0.05);
  g_autofree float *norm = data_normal(c->width, 1), *want = g_new(float, size);
  g_autofree float *before = g_memdup2(p, size * sizeof *p);
  /* Room for one block more, which may be kept there. */
  g_autofree float *room = g_new0(float, all + size);
  memcpy(room, blocks, all * sizeof *room);
  char *sources = device_put(type, room, all + size);
  memcpy(blocks, room, all * sizeof *room);
  oct_cuda_residual_mix call = {.type = type,
                                .n = c->n,
                                .width = c->width,
                                .n_blocks = c->n_blocks,
                                .begins = c->begins,
                                .x = c->has_x ? device_put(type, x, size) : NULL,
                                .residual = device_copy(p, size * sizeof *p),
                                .blocks = sources,
                                .block_stride = size,
                                .score = device_copy(score, c->width * sizeof *score),
                                .eps = EPS,
                                .norm = device_put(type, norm, c->width),
                                .norm_eps = NORM_EPS,
                                .out = device_room_of(type, size)};
  if (c->in_place)
    call.out = (void *)call.x;
  if (c->keeps)
    call.keep = sources + all * oct_cuda_type_bytes(type);
  device_check(oct_cuda_residual_mix_rows(queue, &call));
  for (gsize i = 0; i < size; i++)
    p[i] = (c->begins ? 0 : p[i]) + (c->has_x ? x[i] : 0);
  want_mix(c, blocks, p, score, norm, want);
  g_autofree float *out = device_get(type, call.out, size);
  g_autofree float *stream = device_get(OCT_CUDA_F32, call.residual, size);
  device_expect("mix", out, want, size, limit_of(type));
  device_expect("stream", stream, c->keeps ? before : p, size, 1e-7);
  if (c->keeps) {
    g_autofree float *kept = device_get(type, call.keep, size);
    device_expect("kept", kept, p, size, limit_of(type));
  }
}

static void
mixes_as_the_reference(void) {
  static const mix_case cases[] = {
      {3, 7168, 8, TRUE, FALSE, FALSE, FALSE}, {1, 7168, 8, TRUE, FALSE, FALSE, TRUE},
      {2, 7168, 7, TRUE, FALSE, TRUE, FALSE},  {5, 7168, 1, TRUE, TRUE, FALSE, FALSE},
      {4, 7168, 0, FALSE, FALSE, TRUE, FALSE}, {30, 2304, 5, TRUE, FALSE, FALSE, FALSE},
      {7, 8, 3, TRUE, FALSE, FALSE, FALSE},    {9, 264, 2, TRUE, TRUE, FALSE, TRUE},
      {2, 16384, 6, TRUE, FALSE, TRUE, FALSE}, {3, 2056, 4, FALSE, FALSE, FALSE, FALSE},
      {5, 77, 8, TRUE, FALSE, FALSE, FALSE},   {3, 1001, 3, TRUE, TRUE, FALSE, TRUE},
      {4, 512, 9, TRUE, FALSE, TRUE, FALSE},   {2, 72, 31, TRUE, FALSE, FALSE, FALSE},
      {6, 33, 0, TRUE, FALSE, TRUE, FALSE},    {1, 20000, 2, TRUE, FALSE, FALSE, FALSE}};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(cases); i++) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
    if (queue == NULL)
      return;
    check_mix(queue, i % 2 == 0 ? OCT_CUDA_F32 : OCT_CUDA_BF16, &cases[i / 2]);
  }
}

/* Without an output the stream is only moved on. */
static void
adds_without_an_output(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  gsize size = 3 * 40;
  g_autofree float *x = data_normal(size, 1), *p = data_normal(size, 1);
  const oct_cuda_residual_mix call = {.type = OCT_CUDA_BF16,
                                      .n = 3,
                                      .width = 40,
                                      .x = device_put(OCT_CUDA_BF16, x, size),
                                      .residual = device_copy(p, size * sizeof *p)};
  device_check(oct_cuda_residual_mix_rows(queue, &call));
  oct_ref_add(p, x, size);
  g_autofree float *stream = device_get(OCT_CUDA_F32, call.residual, size);
  g_assert_cmpmem(stream, size * sizeof *stream, p, size * sizeof *p);
}

/* A row's bits do not depend on how many others there are, and a graph gives the same. */
static void
rows_keep_their_bits(void) {
  const oct_cuda_queue *plain = device_queue(0);
  if (plain == NULL)
    return;
  enum { ROWS = 20, WIDTH = 7168, BLOCKS = 8 };
  gsize size = (gsize)ROWS * WIDTH;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  oct_cuda_queue queue;
  g_assert_cmpint(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), ==, cudaSuccess);
  device_check(oct_cuda_queue_init(&queue, stream, OCT_CUDA_OVERLAP | OCT_CUDA_FIXED_ORDER));
  g_autofree float *p = data_normal(size, 1), *blocks = data_normal(BLOCKS * size, 1);
  g_autofree float *score = data_normal(WIDTH, 0.05);
  oct_cuda_residual_mix call = {.type = OCT_CUDA_BF16,
                                .n = ROWS,
                                .width = WIDTH,
                                .n_blocks = BLOCKS,
                                .residual = device_copy(p, size * sizeof *p),
                                .blocks = device_put(OCT_CUDA_BF16, blocks, BLOCKS * size),
                                .block_stride = size,
                                .score = device_copy(score, WIDTH * sizeof *score),
                                .eps = EPS,
                                .norm_eps = NORM_EPS,
                                .out = device_room_of(OCT_CUDA_BF16, size)};
  g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
  device_check(oct_cuda_residual_mix_rows(&queue, &call));
  g_autofree float *many = device_get(OCT_CUDA_BF16, call.out, size);
  call.n = 1;
  call.out = device_room_of(OCT_CUDA_BF16, WIDTH);
  g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
  g_assert_cmpint(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), ==,
                  cudaSuccess);
  device_check(oct_cuda_residual_mix_rows(&queue, &call));
  g_assert_cmpint(cudaStreamEndCapture(stream, &graph), ==, cudaSuccess);
  g_assert_cmpint(cudaGraphInstantiate(&exec, graph, 0), ==, cudaSuccess);
  g_assert_cmpint(cudaGraphLaunch(exec, stream), ==, cudaSuccess);
  g_autofree float *one = device_get(OCT_CUDA_BF16, call.out, WIDTH);
  g_assert_cmpmem(one, WIDTH * sizeof *one, many, WIDTH * sizeof *many);
  g_assert_cmpint(cudaGraphExecDestroy(exec), ==, cudaSuccess);
  g_assert_cmpint(cudaGraphDestroy(graph), ==, cudaSuccess);
  g_assert_cmpint(cudaStreamDestroy(stream), ==, cudaSuccess);
}

static void
refuses_more_blocks_than_it_knows(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  const oct_cuda_residual_mix call = {
      .type = OCT_CUDA_F32, .n = 1, .width = 8, .n_blocks = OCT_CUDA_MIX_BLOCKS_MAX + 1};
  g_assert_cmpint(oct_cuda_residual_mix_rows(queue, &call), ==, OCT_CUDA_UNSUPPORTED);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/residual/mixes-as-the-reference", mixes_as_the_reference);
  g_test_add_func("/cuda/residual/adds-without-an-output", adds_without_an_output);
  g_test_add_func("/cuda/residual/rows-keep-their-bits", rows_keep_their_bits);
  g_test_add_func("/cuda/residual/refuses-more-blocks-than-it-knows",
                  refuses_more_blocks_than_it_knows);
  return g_test_run();
}
