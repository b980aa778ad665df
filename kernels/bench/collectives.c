/* Sums over GPUs by size: this project's kernels over peers' memory and NCCL, with and without the
 * residual and norm that follow; gathers, scatters and copies. On 2, 4 and 8 of the GPUs that are
 * there.
 *
 * Every GPU has a graph of the same calls. A figure is the time of the graph that was launched
 * last: the others wait for it in its first call. */
#include "kernels/bench/bench.h"
#include "kernels/cuda/gather.h"

#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH_MAX 8192 /* of a row, as of llama-3.1-70b: 16 KiB */
#define BYTES_MAX ((size_t)64 << 20)
#define PASSES    9

typedef struct gpu {
  oct_cuda_queue queue;
  oct_cuda_peers peers;
  ncclComm_t comm;
  void *x, *out, *weight;
  float *residual;
  cudaEvent_t start, end;
  cudaGraphExec_t graph;
} gpu;

typedef struct point {
  size_t bytes;
  uint32_t rows, width;
  oct_cuda_reduce_way way; /* NONE: NCCL */
  bench_collective_kind kind;
} point;

#define NCCL_CALLS(X)                                                                              \
  X(ncclCommInitAll)                                                                               \
  X(ncclCommDestroy)                                                                               \
  X(ncclGroupStart)                                                                                \
  X(ncclGroupEnd)                                                                                  \
  X(ncclAllReduce)                                                                                 \
  X(ncclAllGather)                                                                                 \
  X(ncclReduceScatter)                                                                             \
  X(ncclSend)                                                                                      \
  X(ncclRecv)
#define FIELD(name) __typeof__(&name) name;
static struct {
  NCCL_CALLS(FIELD)
  bool there;
} nccl;
#undef FIELD

static gpu gpus[OCT_CUDA_PEERS_MAX];
static unsigned n_gpus; /* of the measurement */
static uint32_t *failed;

static void
load_nccl(void) {
  void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL)
    library = dlopen("/usr/local/cuda/lib64/libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  nccl.there = library != NULL;
#define TAKE(name)                                                                                 \
  {                                                                                                \
    void *function = library != NULL ? dlsym(library, #name) : NULL;                               \
    memcpy(&nccl.name, &function, sizeof function);                                                \
    nccl.there = nccl.there && function != NULL;                                                   \
  }
  NCCL_CALLS(TAKE)
#undef TAKE
}

static void
use(unsigned g) {
  bench_check((int)cudaSetDevice((int)g), "device");
}

/* ---------------------------------------------------------------- the group */

/* Room for every way at the largest size. */
static size_t
buffer_bytes(void) {
  return 2 * OCT_CUDA_PACKET_BYTES + 2 * (n_gpus + 1) * BYTES_MAX;
}

static bool
all_reach(unsigned n) {
  for (unsigned a = 0; a < n; a++)
    for (unsigned b = 0; b < n; b++) {
      int can = 1;
      if (a != b)
        bench_check((int)cudaDeviceCanAccessPeer(&can, (int)a, (int)b), "peers");
      if (!can)
        return false;
    }
  return true;
}

static void
open_gpu(unsigned g) {
  struct CUstream_st *stream;
  gpu *me = &gpus[g];
  use(g);
  for (unsigned other = 0; other < n_gpus; other++)
    if (other != g && cudaDeviceEnablePeerAccess((int)other, 0) != cudaSuccess)
      (void)cudaGetLastError(); /* enabled by an earlier group */
  bench_check((int)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  bench_check(oct_cuda_queue_init(&me->queue, stream, OCT_CUDA_OVERLAP), "device");
  bench_check((int)cudaEventCreate(&me->start), "event");
  bench_check((int)cudaEventCreate(&me->end), "event");
  const struct {
    void **room;
    size_t bytes;
  } rooms[] = {{&me->x, BYTES_MAX},
               {&me->out, BYTES_MAX},
               {(void **)&me->residual, 2 * BYTES_MAX},
               {&me->weight, WIDTH_MAX * sizeof(float)},
               {&me->peers.buffers[g], buffer_bytes()},
               {(void **)&me->peers.signals[g], OCT_CUDA_SIGNAL_BYTES}};
  for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
    bench_check((int)cudaMalloc(rooms[i].room, rooms[i].bytes), "memory");
    bench_check((int)cudaMemset(*rooms[i].room, 0, rooms[i].bytes), "memory");
  }
  bench_check((int)cudaDeviceSynchronize(), "device");
  me->peers.rank = g;
  me->peers.n = n_gpus;
  me->peers.buffer_bytes = buffer_bytes();
  me->peers.failed = failed;
  me->peers.timeout_cycles = (uint64_t)10 * 1000 * 1000 * 1000;
}

bool
bench_group_open(unsigned n) {
  int there = 0, numbers[OCT_CUDA_PEERS_MAX];
  ncclComm_t comms[OCT_CUDA_PEERS_MAX];
  bench_check((int)cudaGetDeviceCount(&there), "devices");
  if (n < 2 || n > OCT_CUDA_PEERS_MAX || n > (unsigned)there || !all_reach(n))
    return false;
  /* NVLink multicast stays off, as in the backend. */
  (void)setenv("NCCL_NVLS_ENABLE", "0", 1);
  load_nccl();
  bench_check((int)cudaHostAlloc((void **)&failed, sizeof *failed, cudaHostAllocPortable),
              "memory");
  *failed = 0;
  memset(gpus, 0, sizeof gpus);
  n_gpus = n;
  for (unsigned g = 0; g < n; g++) {
    numbers[g] = (int)g;
    open_gpu(g);
  }
  for (unsigned g = 0; g < n; g++)
    for (unsigned other = 0; other < n; other++) {
      gpus[g].peers.buffers[other] = gpus[other].peers.buffers[other];
      gpus[g].peers.signals[other] = gpus[other].peers.signals[other];
    }
  if (nccl.there)
    bench_check(nccl.ncclCommInitAll(comms, (int)n, numbers), "NCCL");
  for (unsigned g = 0; g < n && nccl.there; g++)
    gpus[g].comm = comms[g];
  use(0);
  return true;
}

void
bench_group_close(void) {
  if (*failed != 0)
    fprintf(stderr, "%s: a GPU did not come to a sum of %u GPUs: their times are wrong\n",
            bench_program, n_gpus);
  cudaFreeHost(failed);
  for (unsigned g = 0; g < n_gpus; g++) {
    use(g);
    if (gpus[g].comm != NULL)
      (void)nccl.ncclCommDestroy(gpus[g].comm);
    cudaEventDestroy(gpus[g].start);
    cudaEventDestroy(gpus[g].end);
    cudaFree(gpus[g].x);
    cudaFree(gpus[g].out);
    cudaFree(gpus[g].residual);
    cudaFree(gpus[g].weight);
    cudaFree(gpus[g].peers.buffers[g]);
    cudaFree(gpus[g].peers.signals[g]);
    cudaStreamDestroy(gpus[g].queue.stream);
  }
  use(0);
}

/* ---------------------------------------------------------------- calls */

/* One call of NCCL on GPU g, within a group. Bytes are of the whole: what is summed, what every
 * rank has gathered, what is scattered. */
static int
call_nccl(gpu *me, const point *p) {
  size_t n = p->bytes / 2, part = n / n_gpus;
  struct CUstream_st *stream = me->queue.stream;
  if (p->kind == BENCH_GATHER)
    return nccl.ncclAllGather(me->x, me->out, part, ncclBfloat16, me->comm, stream);
  if (p->kind == BENCH_SCATTER)
    return nccl.ncclReduceScatter(me->x, me->out, part, ncclBfloat16, ncclSum, me->comm, stream);
  if (p->kind != BENCH_ALL_TO_ALL)
    return nccl.ncclAllReduce(me->x, me->out, n, ncclBfloat16, ncclSum, me->comm, stream);
  int error = 0;
  for (unsigned g = 0; g < n_gpus && error == 0; g++) {
    size_t at = g * part * 2;
    error = nccl.ncclSend((char *)me->x + at, part, ncclBfloat16, (int)g, me->comm, stream);
    if (error == 0)
      error = nccl.ncclRecv((char *)me->out + at, part, ncclBfloat16, (int)g, me->comm, stream);
  }
  return error;
}

static int
call_peers(gpu *me, const point *p) {
  const oct_cuda_all_reduce call = {.type = OCT_CUDA_BF16,
                                    .residual_type = OCT_CUDA_F32,
                                    .n = p->rows,
                                    .width = p->width,
                                    .x = me->x,
                                    .residual =
                                        p->kind == BENCH_SUM_NORM_FUSED ? me->residual : NULL,
                                    .weight = me->weight,
                                    .eps = 1e-5f,
                                    .out = me->out,
                                    .way = p->way};
  return oct_cuda_all_reduce_norm(&me->queue, &me->peers, &call);
}

/* Rows of which every rank has a part of the columns, whole on every rank. */
static int
call_columns(gpu *me, const point *p) {
  const uint32_t part = p->width * 2 / n_gpus;
  const oct_cuda_gather_parts call = {
      .n = p->rows,
      .row_bytes = part,
      .x = me->x,
      .n_pieces = 1,
      .pieces = {{.at = 0, .bytes = part, .out = me->out, .pitch = (size_t)p->width * 2}}};
  return oct_cuda_gather_columns(&me->queue, &me->peers, &call);
}

static int
call_norm(gpu *me, const point *p) {
  const oct_cuda_norm call = {.type = OCT_CUDA_BF16,
                              .residual_type = OCT_CUDA_F32,
                              .n = p->rows,
                              .width = p->width,
                              .x = me->out,
                              .x_stride = p->width,
                              .residual = me->residual,
                              .residual_stride = p->width,
                              .weight = me->weight,
                              .eps = 1e-5f,
                              .out = me->out,
                              .out_stride = p->width};
  return oct_cuda_rms_norm(&me->queue, &call);
}

/* The same call on every GPU; nonzero: no such kernel. */
static int
call_all(const point *p) {
  int error = 0;
  if (p->way == OCT_CUDA_REDUCE_NONE) {
    error = nccl.ncclGroupStart();
    for (unsigned g = 0; g < n_gpus && error == 0; g++)
      error = call_nccl(&gpus[g], p);
    int ended = nccl.ncclGroupEnd();
    bench_check(error != 0 ? error : ended, "NCCL");
  }
  for (unsigned g = 0; g < n_gpus && error == 0; g++) {
    use(g);
    if (p->kind == BENCH_COLUMNS)
      error = call_columns(&gpus[g], p);
    else if (p->way != OCT_CUDA_REDUCE_NONE)
      error = call_peers(&gpus[g], p);
    if (p->kind == BENCH_SUM_NORM && error == 0)
      error = call_norm(&gpus[g], p);
  }
  return error;
}

static void
capture(const point *p, unsigned calls) {
  for (unsigned g = 0; g < n_gpus; g++) {
    use(g);
    bench_check((int)cudaStreamBeginCapture(gpus[g].queue.stream, cudaStreamCaptureModeThreadLocal),
                "capture");
  }
  for (unsigned i = 0; i < calls; i++)
    bench_check(call_all(p), "capture");
  /* Nothing is instantiated while a stream captures. */
  cudaGraph_t graphs[OCT_CUDA_PEERS_MAX];
  for (unsigned g = 0; g < n_gpus; g++) {
    use(g);
    bench_check((int)cudaStreamEndCapture(gpus[g].queue.stream, &graphs[g]), "capture");
  }
  for (unsigned g = 0; g < n_gpus; g++) {
    use(g);
    bench_check((int)cudaGraphInstantiate(&gpus[g].graph, graphs[g], 0), "graph");
    cudaGraphDestroy(graphs[g]);
  }
}

static int
compare(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

static float
pass(void) {
  float ms;
  for (unsigned g = 0; g < n_gpus; g++) {
    use(g);
    cudaEventRecord(gpus[g].start, gpus[g].queue.stream);
    bench_check((int)cudaGraphLaunch(gpus[g].graph, gpus[g].queue.stream), "graph");
    cudaEventRecord(gpus[g].end, gpus[g].queue.stream);
  }
  for (unsigned g = 0; g < n_gpus; g++)
    bench_check((int)cudaEventSynchronize(gpus[g].end), "pass");
  bench_check((int)cudaEventElapsedTime(&ms, gpus[n_gpus - 1].start, gpus[n_gpus - 1].end), "time");
  return ms;
}

static double
measure(const point *p) {
  unsigned calls = p->bytes >= ((size_t)4 << 20) ? 8 : 64;
  float ms[PASSES];
  if (p->way == OCT_CUDA_REDUCE_NONE && !nccl.there)
    return -1;
  if (call_all(p) != OCT_CUDA_OK) /* also loads modules and connects NCCL */
    return -1;
  for (unsigned g = 0; g < n_gpus; g++) {
    use(g);
    bench_check((int)cudaStreamSynchronize(gpus[g].queue.stream), "first call");
  }
  capture(p, calls);
  (void)pass();
  for (unsigned i = 0; i < PASSES; i++)
    ms[i] = pass();
  for (unsigned g = 0; g < n_gpus; g++)
    cudaGraphExecDestroy(gpus[g].graph);
  qsort(ms, PASSES, sizeof *ms, compare);
  return ms[PASSES / 2] / 1e3 / calls;
}

double
bench_collective(bench_collective_kind kind, oct_cuda_reduce_way way, size_t bytes) {
  point p = {.bytes = bytes, .way = way, .kind = kind};
  bool fused = kind == BENCH_SUM_NORM_FUSED, sum = kind <= BENCH_SUM_NORM;
  if (bytes < 1024 || bytes > BYTES_MAX || (fused && way == OCT_CUDA_REDUCE_NONE) ||
      (!sum && kind != BENCH_COLUMNS && way != OCT_CUDA_REDUCE_NONE) ||
      (kind == BENCH_COLUMNS && way == OCT_CUDA_REDUCE_NONE))
    return -1;
  p.width = bytes / 2 < WIDTH_MAX ? (uint32_t)(bytes / 2) : WIDTH_MAX;
  p.rows = (uint32_t)(bytes / 2 / p.width);
  double seconds = measure(&p);
  use(0);
  return seconds;
}

/* ---------------------------------------------------------------- tables */

static const char *const way_names[] = {"NCCL", "packets", "one shot", "two shots"};
static const char *const kind_names[] = {
    "all-reduce", "all-reduce + norm, fused", "all-reduce + norm", "all-gather", "reduce-scatter",
    "all-to-all", "gathered columns"};

static void
run_point(bench *b, bench_collective_kind kind, oct_cuda_reduce_way way, size_t bytes) {
  char name[96];
  snprintf(name, sizeof name, "%s, %u GPUs, %zu bytes, %s", kind_names[kind], n_gpus, bytes,
           way_names[way]);
  if (!bench_wants(b, name))
    return;
  double seconds = bench_collective(kind, way, bytes);
  if (seconds < 0) {
    printf("%-64s not done\n", name);
    return;
  }
  /* Bytes that a GPU has to send at least, by the best known way. */
  double share = (double)(n_gpus - 1) / n_gpus * (kind <= BENCH_SUM_NORM ? 2 : 1);
  double sent = (double)bytes * share;
  printf("%-64s %9.2f us %7.1f GB/s\n", name, seconds * 1e6, sent / seconds / 1e9);
  if (b->csv != NULL)
    fprintf(b->csv, "\"%s\",%.3f,%.0f,0,,link\n", name, seconds * 1e6, sent);
  fflush(stdout);
}

static void
run_sizes(bench *b) {
  for (size_t bytes = 1024; bytes <= BYTES_MAX; bytes *= 4) {
    for (int way = OCT_CUDA_REDUCE_NONE; way <= OCT_CUDA_REDUCE_TWO_SHOT; way++)
      for (int kind = BENCH_SUM; kind <= BENCH_SUM_NORM; kind++)
        if (way != OCT_CUDA_REDUCE_NONE || kind != BENCH_SUM_NORM_FUSED)
          run_point(b, (bench_collective_kind)kind, (oct_cuda_reduce_way)way, bytes);
    for (int kind = BENCH_GATHER; kind <= BENCH_ALL_TO_ALL; kind++)
      run_point(b, (bench_collective_kind)kind, OCT_CUDA_REDUCE_NONE, bytes);
    run_point(b, BENCH_COLUMNS, OCT_CUDA_REDUCE_ONE_SHOT, bytes);
  }
}

void
bench_collectives(bench *b) {
  int there = 0;
  bench_check((int)cudaGetDeviceCount(&there), "devices");
  if (there < 2)
    printf("collectives: skipped: %d GPU, two are needed\n", there);
  for (unsigned n = 2; n <= (unsigned)there && n <= OCT_CUDA_PEERS_MAX; n *= 2) {
    if (!bench_group_open(n)) {
      printf("collectives: skipped: some of %u GPUs cannot reach each other's memory\n", n);
      break;
    }
    if (!nccl.there)
      printf("NCCL cannot be loaded: its figures are left out\n");
    run_sizes(b);
    bench_group_close();
  }
}
