/* Experts brought from host memory: which matrix each is in, and what is in it. */
#include "kernels/cuda/fetch.h"
#include "tests/kernels/cuda/device.h"

#include <string.h>

typedef struct fetch_case {
  guint32 n_local, n_slots, first, percent_used; /* first: matrices before the layer's slots */
  gsize bytes[OCT_CUDA_EXPERT_RUNS];             /* 0: no more runs */
} fetch_case;

typedef struct fetch_rig {
  const fetch_case *c;
  oct_cuda_fetch call;
  guint32 *starts, *map;
  guint8 *host[OCT_CUDA_EXPERT_RUNS];
  guint32 n_matrices;
} fetch_rig;

/* Some experts have rows, some of them a slot; which, changes. */
static void
draw(fetch_rig *r) {
  const fetch_case *c = r->c;
  g_autofree guint32 *slots = data_pages(c->n_slots, c->n_slots);
  guint32 at = 0;
  for (guint32 e = 0; e < c->n_local; e++) {
    r->starts[e] = at;
    at += data_between(1, 100) <= c->percent_used ? data_between(1, 3) : 0;
    r->map[e] = OCT_CUDA_NONE;
  }
  r->starts[c->n_local] = at;
  for (guint32 s = 0; s < c->n_slots; s++) {
    guint32 e = data_between(0, c->n_local - 1);
    if (r->map[e] == OCT_CUDA_NONE)
      r->map[e] = slots[s];
  }
  g_assert_cmpint(
      cudaMemcpy((void *)r->call.starts, r->starts, (c->n_local + 1) * 4, cudaMemcpyDefault), ==,
      cudaSuccess);
  g_assert_cmpint(cudaMemcpy((void *)r->call.map, r->map, c->n_local * 4, cudaMemcpyDefault), ==,
                  cudaSuccess);
}

static void
open_rig(fetch_rig *r, const fetch_case *c) {
  r->c = c;
  r->n_matrices = c->first + c->n_slots + c->n_local;
  r->starts = g_new(guint32, c->n_local + 1);
  r->map = g_new(guint32, c->n_local);
  r->call = (oct_cuda_fetch){.n_local = c->n_local,
                             .starts = device_room((c->n_local + 1) * 4),
                             .map = device_room(c->n_local * 4),
                             .first = c->first,
                             .scratch = c->first + c->n_slots,
                             .where = device_room(c->n_local * 4)};
  for (guint i = 0; i < OCT_CUDA_EXPERT_RUNS && c->bytes[i] > 0; i++, r->call.n_runs++) {
    gsize all = c->n_local * c->bytes[i];
    void *pinned = NULL;
    g_assert_cmpint(cudaHostAlloc(&pinned, all, cudaHostAllocPortable), ==, cudaSuccess);
    r->host[i] = pinned;
    for (gsize k = 0; k < all; k++)
      r->host[i][k] = (guint8)data_between(0, 254);
    r->call.runs[i] =
        (oct_cuda_expert_run){pinned, device_room(r->n_matrices * c->bytes[i]), c->bytes[i]};
  }
}

/* Used experts without a slot are in scratch matrices in order; nothing else was written. */
static void
check_rig(fetch_rig *r) {
  const fetch_case *c = r->c;
  g_autofree guint32 *where = g_new(guint32, c->n_local);
  guint32 next = r->call.scratch;
  device_read(where, r->call.where, c->n_local * 4);
  for (guint i = 0; i < r->call.n_runs; i++) {
    gsize bytes = c->bytes[i];
    g_autofree guint8 *got = g_malloc(r->n_matrices * bytes), *want = g_malloc(bytes);
    device_read(got, r->call.runs[i].device, r->n_matrices * bytes);
    memset(want, 0xff, bytes);
    next = r->call.scratch;
    for (guint32 m = 0; m < next; m++)
      g_assert_cmpmem(got + m * bytes, bytes, want, bytes);
    for (guint32 e = 0; e < c->n_local; e++)
      if (r->starts[e + 1] > r->starts[e] && r->map[e] == OCT_CUDA_NONE)
        g_assert_cmpmem(got + next++ * bytes, bytes, r->host[i] + e * bytes, bytes);
  }
  next = r->call.scratch;
  for (guint32 e = 0; e < c->n_local; e++) {
    gboolean used = r->starts[e + 1] > r->starts[e], lacks = used && r->map[e] == OCT_CUDA_NONE;
    g_assert_cmpuint(where[e], ==, lacks ? next : used ? c->first + r->map[e] : 0);
    next += lacks;
  }
}

static void
close_rig(fetch_rig *r) {
  for (guint i = 0; i < r->call.n_runs; i++)
    g_assert_cmpint(cudaFreeHost(r->host[i]), ==, cudaSuccess);
  g_free(r->starts);
  g_free(r->map);
}

static void
brings_what_is_missing(void) {
  static const fetch_case cases[] = {{8, 3, 5, 60, {65536, 132, 40000, 4}},
                                     {1, 0, 0, 100, {32768}},
                                     {64, 64, 0, 50, {1024, 2048}},
                                     {128, 32, 96, 80, {73728, 36864}},
                                     {896, 224, 10, 30, {1040, 68}},
                                     {33, 1, 7, 100, {100020, 16, 48}},
                                     {40, 10, 3, 0, {4096}}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
    if (queue == NULL)
      return;
    fetch_rig r = {0};
    open_rig(&r, &cases[i]);
    draw(&r);
    device_check(oct_cuda_fetch_experts(queue, &r.call));
    check_rig(&r);
    close_rig(&r);
  }
}

/* One graph serves steps that lack other experts. */
static void
a_graph_sees_the_map_of_its_time(void) {
  static const fetch_case c = {100, 40, 4, 70, {20480, 320}};
  const oct_cuda_queue *plain = device_queue(0);
  if (plain == NULL)
    return;
  fetch_rig r = {0};
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  oct_cuda_queue queue;
  open_rig(&r, &c);
  g_assert_cmpint(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), ==, cudaSuccess);
  device_check(oct_cuda_queue_init(&queue, stream, OCT_CUDA_OVERLAP));
  g_assert_cmpint(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), ==,
                  cudaSuccess);
  device_check(oct_cuda_fetch_experts(&queue, &r.call));
  g_assert_cmpint(cudaStreamEndCapture(stream, &graph), ==, cudaSuccess);
  g_assert_cmpint(cudaGraphInstantiate(&exec, graph, 0), ==, cudaSuccess);
  for (guint i = 0; i < 3; i++) {
    draw(&r);
    g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
    g_assert_cmpint(cudaGraphLaunch(exec, stream), ==, cudaSuccess);
    check_rig(&r);
  }
  g_assert_cmpint(cudaGraphExecDestroy(exec), ==, cudaSuccess);
  g_assert_cmpint(cudaGraphDestroy(graph), ==, cudaSuccess);
  g_assert_cmpint(cudaStreamDestroy(stream), ==, cudaSuccess);
  close_rig(&r);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/fetch/brings-what-is-missing", brings_what_is_missing);
  g_test_add_func("/cuda/fetch/a-graph-sees-the-map-of-its-time", a_graph_sees_the_map_of_its_time);
  return g_test_run();
}
