/* Timing, buffers and the card's limits; bench.h says how figures are made. */
#include "kernels/bench/bench.h"

#include <stdlib.h>
#include <string.h>

#define PASSES     15 /* where b->passes does not say */
#define LONG_MS    20 /* a pass of a long kernel */
#define PASSES_MAX 64
#define ROOMS_MAX  4096

const char *bench_program = "bench-cuda";

static void *rooms[ROOMS_MAX];
static unsigned n_rooms;
static uint32_t seed;

void
bench_check(int error, const char *what) {
  if (error == OCT_CUDA_OK)
    return;
  fprintf(stderr, "%s: %s: %s\n", bench_program, what, oct_cuda_error_text(error));
  exit(1);
}

void *
bench_room(size_t bytes) {
  void *room = NULL;
  bench_check((int)cudaMalloc(&room, bytes < 16 ? 16 : bytes), "memory");
  if (n_rooms == ROOMS_MAX)
    bench_check((int)cudaErrorMemoryAllocation, "too many buffers");
  rooms[n_rooms++] = room;
  return room;
}

void
bench_free_all(void) {
  while (n_rooms > 0)
    cudaFree(rooms[--n_rooms]);
}

void *
bench_random(const bench *b, oct_cuda_type type, size_t n, float scale) {
  void *room = bench_room(n * oct_cuda_type_bytes(type));
  bench_check(bench_fill(&b->queue, type, room, n, scale, ++seed), "fill");
  return room;
}

void *
bench_bytes(const bench *b, size_t n, unsigned low, unsigned high) {
  void *room = bench_room(n);
  bench_check(bench_fill_bytes(&b->queue, room, n, low, high, ++seed), "fill");
  return room;
}

void *
bench_copy(const void *from, size_t bytes) {
  void *room = bench_room(bytes);
  bench_check((int)cudaMemcpy(room, from, bytes, cudaMemcpyHostToDevice), "copy");
  /* Of pageable memory it returns before all has come, and the queue's stream waits for no other.
   */
  bench_check((int)cudaDeviceSynchronize(), "copy");
  return room;
}

unsigned
bench_sets(double bytes) {
  double wanted = 256e6 / bytes;
  return wanted < 1 ? 1 : wanted > 64 ? 64 : (unsigned)wanted + 1;
}

bool
bench_wants(const bench *b, const char *name) {
  return b->only == NULL || strstr(name, b->only) != NULL;
}

/* ---------------------------------------------------------------- timing */

static int
compare(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

/* Median seconds of a pass. */
static double
time_graph(const bench *b, cudaGraphExec_t graph) {
  cudaEvent_t start, end;
  float ms[PASSES_MAX];
  int passes = b->passes > 0 && b->passes <= PASSES_MAX ? b->passes : PASSES;
  bench_check((int)cudaEventCreate(&start), "event");
  bench_check((int)cudaEventCreate(&end), "event");
  for (int i = -2; i < passes; i++) {
    cudaEventRecord(start, b->queue.stream);
    cudaGraphLaunch(graph, b->queue.stream);
    cudaEventRecord(end, b->queue.stream);
    bench_check((int)cudaEventSynchronize(end), "pass");
    if (i < 0)
      continue;
    cudaEventElapsedTime(&ms[i], start, end);
    if (i == 0 && ms[0] > LONG_MS && b->long_passes > 0)
      passes = b->long_passes;
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  qsort(ms, passes, sizeof *ms, compare);
  return ms[passes / 2] / 1e3;
}

/* Seconds of a call, negative: no kernel for it. */
static double
measure(const bench *b, const bench_item *item) {
  int error = item->call(b, item->context, 0); /* plans, attributes, module */
  if (error == OCT_CUDA_UNSUPPORTED || error == OCT_CUDA_BLAS ||
      (b->quiet && error != OCT_CUDA_OK)) {
    (void)cudaGetLastError();
    return -1;
  }
  bench_check(error, item->name);
  bench_check((int)cudaStreamSynchronize(b->queue.stream), item->name);
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  bench_check((int)cudaStreamBeginCapture(b->queue.stream, cudaStreamCaptureModeThreadLocal),
              "capture");
  for (unsigned i = 0; i < item->calls; i++)
    bench_check(item->call(b, item->context, i % item->sets), item->name);
  bench_check((int)cudaStreamEndCapture(b->queue.stream, &graph), item->name);
  bench_check((int)cudaGraphInstantiate(&ready, graph, 0), item->name);
  double seconds = time_graph(b, ready) / item->calls;
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  return seconds;
}

double
bench_run(bench *b, const bench_item *item) {
  double seconds = measure(b, item);
  if (b->quiet)
    return seconds;
  if (seconds < 0) {
    printf("%-56s not built\n", item->name);
    return seconds;
  }
  double by_bytes = b->read_rate > 0 ? item->bytes / b->read_rate : 0;
  double by_flops = item->rate > 0 ? item->flops / item->rate : 0;
  double floor = by_bytes > by_flops ? by_bytes : by_flops;
  printf("%-56s %9.2f us %7.0f GB/s %7.1f TF/s %5.1f %% of the %s limit\n", item->name,
         seconds * 1e6, item->bytes / seconds / 1e9, item->flops / seconds / 1e12,
         floor / seconds * 100, by_bytes > by_flops ? "read" : "arithmetic");
  if (b->csv != NULL)
    fprintf(b->csv, "\"%s\",%.3f,%.0f,%.0f,%.4f,%s\n", item->name, seconds * 1e6, item->bytes,
            item->flops, floor / seconds, by_bytes > by_flops ? "read" : "arithmetic");
  fflush(stdout);
  return seconds;
}

/* ---------------------------------------------------------------- ceilings */

typedef struct ceiling {
  void *from;
  size_t bytes;
  float *out;
  oct_cuda_matmul product;
} ceiling;

static int
call_read(const bench *b, void *context, unsigned set) {
  const ceiling *c = context;
  (void)set;
  return bench_read(&b->queue, c->from, c->bytes, c->out);
}

static int
call_product(const bench *b, void *context, unsigned set) {
  const ceiling *c = context;
  (void)set;
  return oct_cuda_multiply(&b->queue, b->blas, &c->product);
}

static double
measure_product(bench *b, oct_cuda_type type, unsigned side, const char *name) {
  size_t n = (size_t)side * side;
  void *scale = bench_random(b, OCT_CUDA_F32, side, 1); /* of rows, for fp8 */
  oct_cuda_format format = type == OCT_CUDA_F32    ? OCT_CUDA_MATRIX_F32
                           : type == OCT_CUDA_BF16 ? OCT_CUDA_MATRIX_BF16
                                                   : OCT_CUDA_MATRIX_FP8;
  oct_cuda_type y = type == OCT_CUDA_F32 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
  ceiling c = {.product = {.weight = {.format = format,
                                      .rows = side,
                                      .columns = side,
                                      .data = bench_random(b, type, n, 1),
                                      .scales = scale},
                           .path = OCT_CUDA_PATH_BLAS,
                           .x_type = type,
                           .y_type = y,
                           .m = side,
                           .x = bench_random(b, type, n, 1),
                           .x_stride = side,
                           .x_scale = scale,
                           .y = bench_room(n * oct_cuda_type_bytes(y)),
                           .y_stride = side}};
  bench_item item = {
      .flops = 2.0 * side * n, .sets = 1, .calls = 5, .call = call_product, .context = &c};
  snprintf(item.name, sizeof item.name, "ceiling: %s product of side %u", name, side);
  double seconds = bench_run(b, &item);
  bench_free_all();
  return seconds > 0 ? item.flops / seconds : 0;
}

void
bench_limits(bench *b) {
  ceiling c = {.bytes = (size_t)4 << 30, .out = bench_room(16)};
  c.from = bench_bytes(b, c.bytes, 0, 255);
  bench_item item = {.name = "ceiling: read",
                     .bytes = (double)c.bytes,
                     .sets = 1,
                     .calls = 4,
                     .call = call_read,
                     .context = &c};
  double seconds = bench_run(b, &item);
  b->read_rate = item.bytes / seconds;
  bench_free_all();
  b->bf16_rate = measure_product(b, OCT_CUDA_BF16, 8192, "bf16");
}

void
bench_ceilings(bench *b) {
  bench_limits(b);
  b->fp8_rate = measure_product(b, OCT_CUDA_FP8, 8192, "fp8");
  b->f32_rate = measure_product(b, OCT_CUDA_F32, 4096, "float32");
}

/* ---------------------------------------------------------------- the device */

void
bench_open(bench *b) {
  struct CUstream_st *stream;
  bench_check((int)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  bench_check(oct_cuda_queue_init(&b->queue, stream, OCT_CUDA_OVERLAP), "device");
  bench_check((int)cudaMalloc(&b->workspace, OCT_CUDA_BLAS_WORKSPACE), "workspace");
  b->blas = oct_cuda_blas_new(b->workspace, OCT_CUDA_BLAS_WORKSPACE);
}

void
bench_close(bench *b) {
  bench_free_all();
  oct_cuda_blas_free(b->blas);
  cudaFree(b->workspace);
  cudaStreamDestroy(b->queue.stream);
}
