/* The machine round the kernels: copies over PCIe and between GPUs, launches, waiting. */
#include "kernels/bench/machine.h"
#include "kernels/cuda/fetch.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPEATS  15
#define LAUNCHES 200

static double
now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int
compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double
median(double *values, int n) {
  qsort(values, n, sizeof *values, compare);
  return values[n / 2];
}

/* ---------------------------------------------------------------- the card */

void
bench_card_read(bench_card *card) {
  struct cudaDeviceProp p;
  int driver = 0, device = 0;
  memset(card, 0, sizeof *card);
  bench_check((int)cudaGetDevice(&device), "device");
  bench_check((int)cudaGetDeviceProperties(&p, device), "device");
  cudaDriverGetVersion(&driver);
  cudaGetDeviceCount(&card->count);
  snprintf(card->name, sizeof card->name, "%.63s", p.name);
  card->capability = (uint32_t)(p.major * 10 + p.minor);
  card->sm_count = (uint32_t)p.multiProcessorCount;
  card->l2_bytes = p.l2CacheSize;
  card->memory_bytes = (double)p.totalGlobalMem;
  card->cuda_version = driver;
}

/* ---------------------------------------------------------------- copies */

/* Median seconds of a copy that is waited for. */
static double
time_copy(cudaStream_t stream, void *to, const void *from, size_t bytes) {
  double times[REPEATS];
  for (int i = -2; i < REPEATS; i++) {
    double began = now_s();
    bench_check((int)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copy");
    bench_check((int)cudaStreamSynchronize(stream), "copy");
    if (i >= 0)
      times[i] = now_s() - began;
  }
  return median(times, REPEATS);
}

/* Both directions at once: bytes of both by the time until both have ended. */
static double
duplex_rate(char *device, char *host, size_t bytes) {
  cudaStream_t in, out;
  double times[5];
  bench_check((int)cudaStreamCreateWithFlags(&in, cudaStreamNonBlocking), "stream");
  bench_check((int)cudaStreamCreateWithFlags(&out, cudaStreamNonBlocking), "stream");
  for (int i = -1; i < 5; i++) {
    double began = now_s();
    cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, in);
    cudaMemcpyAsync(host + bytes, device + bytes, bytes, cudaMemcpyDeviceToHost, out);
    bench_check((int)cudaStreamSynchronize(in), "copy");
    bench_check((int)cudaStreamSynchronize(out), "copy");
    if (i >= 0)
      times[i] = now_s() - began;
  }
  cudaStreamDestroy(in);
  cudaStreamDestroy(out);
  return 2 * (double)bytes / median(times, 5);
}

/* Pinned memory as experts of 16 MiB, all of which a kernel brings to the device. */
static double
kernel_read_rate(const bench *b, char *device, const char *host, size_t bytes) {
  enum { EXPERTS = 16, RUNS = 5 };
  uint32_t starts[EXPERTS + 1], map[EXPERTS];
  for (uint32_t i = 0; i <= EXPERTS; i++)
    starts[i] = i;
  memset(map, 0xff, sizeof map);
  const oct_cuda_fetch call = {
      .n_local = EXPERTS,
      .starts = bench_copy(starts, sizeof starts),
      .map = bench_copy(map, sizeof map),
      .where = bench_room(sizeof map),
      .n_runs = 1,
      .runs = {{.host = host, .device = device, .bytes = bytes / EXPERTS}}};
  double times[RUNS];
  for (int i = -1; i < RUNS; i++) {
    double began = now_s();
    bench_check(oct_cuda_fetch_experts(&b->queue, &call), "experts");
    bench_check((int)cudaStreamSynchronize(b->queue.stream), "experts");
    if (i >= 0)
      times[i] = now_s() - began;
  }
  return (double)bytes / median(times, RUNS);
}

void
bench_copies_run(const bench *b, bench_copies *out) {
  const size_t large = (size_t)256 << 20;
  memset(out, 0, sizeof *out);
  char *device = bench_room(2 * large), *host = NULL, *pageable = malloc(large);
  bench_check((int)cudaMallocHost((void **)&host, 2 * large), "pinned memory");
  if (pageable == NULL)
    bench_check((int)cudaErrorMemoryAllocation, "host memory");
  memset(host, 1, 2 * large);
  memset(pageable, 1, large);
  for (unsigned i = 0; i < BENCH_COPY_SIZES; i++) {
    size_t bytes = (size_t)4096 << (2 * i);
    out->bytes[i] = (double)bytes;
    out->h2d_s[i] = time_copy(b->queue.stream, device, host, bytes);
    out->d2h_s[i] = time_copy(b->queue.stream, host, device, bytes);
  }
  out->h2d_rate = out->bytes[BENCH_COPY_SIZES - 1] / out->h2d_s[BENCH_COPY_SIZES - 1];
  out->d2h_rate = out->bytes[BENCH_COPY_SIZES - 1] / out->d2h_s[BENCH_COPY_SIZES - 1];
  out->pageable_rate = (double)large / time_copy(b->queue.stream, device, pageable, large);
  out->duplex_rate = duplex_rate(device, host, large);
  out->device_copy_rate =
      2 * (double)large / time_copy(b->queue.stream, device, device + large, large);
  out->kernel_read_rate = kernel_read_rate(b, device, host, large);
  free(pageable);
  cudaFreeHost(host);
  bench_free_all();
}

static void
tell_copy(const bench *b, const char *what, double bytes, double seconds) {
  printf("%-56s %9.2f us  %6.0f GB/s\n", what, seconds * 1e6, bytes / seconds * 1e-9);
  if (b->csv != NULL)
    fprintf(b->csv, "\"%s\",%.3f,%.0f,0,0,link\n", what, seconds * 1e6, bytes);
}

void
bench_host_copies(bench *b) {
  const double large = (double)(256 << 20);
  bench_copies c;
  char name[64];
  bench_copies_run(b, &c);
  for (unsigned i = 0; i < BENCH_COPY_SIZES; i++) {
    snprintf(name, sizeof name, "copy to the device, %.0f bytes", c.bytes[i]);
    tell_copy(b, name, c.bytes[i], c.h2d_s[i]);
    snprintf(name, sizeof name, "copy to the host, %.0f bytes", c.bytes[i]);
    tell_copy(b, name, c.bytes[i], c.d2h_s[i]);
  }
  tell_copy(b, "copies both ways, 256 MiB each", 2 * large, 2 * large / c.duplex_rate);
  tell_copy(b, "pageable memory to the device, 256 MiB", large, large / c.pageable_rate);
  tell_copy(b, "16 experts of 16 MiB read by the kernel that fetches them", large,
            large / c.kernel_read_rate);
}

bool
bench_peer_run(const bench *b, int peer, bench_peer *out) {
  const size_t large = (size_t)256 << 20;
  int here = 0, can = 0;
  void *there = NULL;
  memset(out, 0, sizeof *out);
  bench_check((int)cudaGetDevice(&here), "device");
  if (cudaDeviceCanAccessPeer(&can, here, peer) != cudaSuccess || !can)
    return false;
  cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled)
    return false;
  (void)cudaGetLastError();
  bench_check((int)cudaSetDevice(peer), "device");
  bench_check((int)cudaMalloc(&there, large), "memory");
  bench_check((int)cudaSetDevice(here), "device");
  void *own = bench_room(large);
  out->latency_s = time_copy(b->queue.stream, there, own, 4096);
  out->rate = (double)large / time_copy(b->queue.stream, there, own, large);
  bench_free_all();
  cudaFree(there);
  return true;
}

/* ---------------------------------------------------------------- launches */

static void
launch_one(const bench *b, char *room) {
  bench_check(bench_fill_bytes(&b->queue, room, 16, 0, 1, 1), "launch");
}

/* Seconds of a graph of n smallest kernels: enqueued and waited for. */
static double
time_empty_graph(const bench *b, char *room, int n) {
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  double times[REPEATS];
  bench_check((int)cudaStreamBeginCapture(b->queue.stream, cudaStreamCaptureModeThreadLocal),
              "capture");
  for (int i = 0; i < n; i++)
    launch_one(b, room);
  bench_check((int)cudaStreamEndCapture(b->queue.stream, &graph), "capture");
  bench_check((int)cudaGraphInstantiate(&ready, graph, 0), "graph");
  for (int i = -2; i < REPEATS; i++) {
    double began = now_s();
    cudaGraphLaunch(ready, b->queue.stream);
    bench_check((int)cudaStreamSynchronize(b->queue.stream), "graph");
    if (i >= 0)
      times[i] = now_s() - began;
  }
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  return median(times, REPEATS);
}

void
bench_launches_run(const bench *b, bench_launches *out) {
  char *room = bench_room(4096);
  double enqueue[REPEATS], pipelined[REPEATS], sync[REPEATS], wait[REPEATS];
  cudaEvent_t event;
  bench_check((int)cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  for (int i = -1; i < REPEATS; i++) {
    double began = now_s();
    for (int k = 0; k < LAUNCHES; k++)
      launch_one(b, room);
    double enqueued = now_s();
    bench_check((int)cudaStreamSynchronize(b->queue.stream), "launch");
    double ended = now_s();
    if (i >= 0) {
      enqueue[i] = (enqueued - began) / LAUNCHES;
      pipelined[i] = (ended - began) / LAUNCHES;
    }
  }
  for (int i = -1; i < REPEATS; i++) {
    double began = now_s();
    launch_one(b, room);
    bench_check((int)cudaStreamSynchronize(b->queue.stream), "launch");
    double ended = now_s();
    cudaEventRecord(event, b->queue.stream);
    bench_check((int)cudaEventSynchronize(event), "event");
    if (i >= 0) {
      sync[i] = ended - began;
      wait[i] = now_s() - ended;
    }
  }
  cudaEventDestroy(event);
  out->enqueue_s = median(enqueue, REPEATS);
  out->pipelined_s = median(pipelined, REPEATS);
  out->launch_and_sync_s = median(sync, REPEATS);
  out->event_sync_s = median(wait, REPEATS);
  double one = time_empty_graph(b, room, 1), many = time_empty_graph(b, room, 1 + LAUNCHES);
  out->graph_node_s = (many - one) / LAUNCHES;
  out->graph_launch_s = one - out->graph_node_s;
  bench_free_all();
}
