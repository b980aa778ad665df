/* How kernels are launched: counts of them by name, and what a captured graph keeps. */
#include "tests/kernels/cuda/device.h"

#define WIDTH 256
#define EDGES 8

/* Two norms, the second of what the first gives, and a counter of kernels. */
static void
run_norms(const oct_cuda_queue *queue, void *x, void *y) {
  const oct_cuda_norm first = {.type = OCT_CUDA_F32,
                               .n = 3,
                               .width = WIDTH,
                               .x = x,
                               .x_stride = WIDTH,
                               .eps = 1e-5f,
                               .out = y,
                               .out_stride = WIDTH};
  oct_cuda_norm second = first;
  second.x = y;
  second.out = x;
  device_check(oct_cuda_rms_norm(queue, &first));
  device_check(oct_cuda_rms_norm(queue, &second));
}

static void
counts_kernels_by_name(void) {
  const oct_cuda_queue *plain = device_queue(0);
  if (plain == NULL)
    return;
  g_autofree oct_cuda_launches *launches = g_new0(oct_cuda_launches, 1);
  oct_cuda_queue queue = *plain;
  queue.launches = launches;
  void *x = device_zeros(3 * WIDTH * sizeof(float)), *y = device_zeros(3 * WIDTH * sizeof(float));
  run_norms(&queue, x, y);
  device_check(oct_cuda_convert(&queue, OCT_CUDA_F32, x, OCT_CUDA_F32, y, 3 * WIDTH));
  run_norms(plain, x, y);
  g_assert_cmpuint(launches->n, ==, 2);
  g_assert_cmpuint(oct_cuda_launches_of(launches, "norm_rows"), ==, 2);
  g_assert_cmpuint(oct_cuda_launches_of(launches, "convert"), ==, 1);
  g_assert_cmpuint(oct_cuda_launches_of(launches, "attend"), ==, 0);
}

/* Programmatic edges of a graph of two kernels that was captured with these flags. */
static guint
programmatic_edges(guint32 flags) {
  oct_cuda_queue queue;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphNode_t from[EDGES], to[EDGES];
  cudaGraphEdgeData data[EDGES];
  gsize n = EDGES;
  guint found = 0;
  void *x = device_zeros(3 * WIDTH * sizeof(float)), *y = device_zeros(3 * WIDTH * sizeof(float));
  g_assert_cmpint(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), ==, cudaSuccess);
  device_check(oct_cuda_queue_init(&queue, stream, flags));
  g_assert_cmpint(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), ==,
                  cudaSuccess);
  run_norms(&queue, x, y);
  g_assert_cmpint(cudaStreamEndCapture(stream, &graph), ==, cudaSuccess);
  g_assert_cmpint(cudaGraphGetEdges(graph, from, to, data, &n), ==, cudaSuccess);
  g_assert_cmpuint(n, ==, 1);
  for (gsize i = 0; i < n; i++)
    found += data[i].type == cudaGraphDependencyTypeProgrammatic;
  g_assert_cmpint(cudaGraphDestroy(graph), ==, cudaSuccess);
  g_assert_cmpint(cudaStreamDestroy(stream), ==, cudaSuccess);
  return found;
}

static void
graphs_keep_early_starts(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  if (queue->capability < 90) {
    g_test_skip("no programmatic launches before 9.0");
    return;
  }
  g_assert_cmpuint(programmatic_edges(OCT_CUDA_OVERLAP), ==, 1);
  g_assert_cmpuint(programmatic_edges(0), ==, 0);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/launch/counts-kernels-by-name", counts_kernels_by_name);
  g_test_add_func("/cuda/launch/graphs-keep-early-starts", graphs_keep_early_starts);
  return g_test_run();
}
