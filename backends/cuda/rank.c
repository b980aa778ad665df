#include "backends/cuda/rank.h"

#include <string.h>
#include <time.h>

#include "backends/cuda/numa.h"
#include "backends/cuda/pinned.h"
#include "engine/base/assert.h"

#define NS_PER_S 1000000000
#define NAP_NS   20000
#define CLOSE_NS ((gint64)5 * NS_PER_S) /* what was enqueued may end */

/* ---------------------------------------------------------------- failures */

void
oct_cuda_fail(oct_cuda_rank *r, const char *message) {
  __atomic_store_n(&r->failed, TRUE, __ATOMIC_RELAXED);
  oct_cuda_group_break(r->group, r->device, message);
}

gboolean
oct_cuda_note(oct_cuda_rank *r, int result, const char *what) {
  if (G_LIKELY(result == 0))
    return TRUE;
  char message[96];
  if (result == OCT_CUDA_BLAS)
    (void)g_snprintf(message, sizeof message, "GPU %u: %s: cuBLASLt status %d", r->device, what,
                     oct_cuda_blas_status(r->blas));
  else
    (void)g_snprintf(message, sizeof message, "GPU %u: %s: %s", r->device, what,
                     oct_cuda_error_text(result));
  oct_cuda_fail(r, message);
  return FALSE;
}

/* ---------------------------------------------------------------- memory */

typedef struct large_block {
  void *at;
  gsize bytes;
} large_block;

/* NULL: it has to come from the driver. */
static void *
allocate_large(oct_cuda_rank *r, guint64 bytes) {
  large_block block = {bytes >= OCT_PINNED_LARGE ? oct_pinned_new(bytes) : NULL, bytes};
  if (block.at != NULL)
    g_array_append_val(r->large, block);
  return block.at;
}

static void
release_large(oct_cuda_rank *r, const void *block) {
  for (guint i = 0; i < r->large->len; i++) {
    large_block it = g_array_index(r->large, large_block, i);
    if (it.at != block)
      continue;
    oct_pinned_free(it.at, it.bytes);
    g_array_remove_index_fast(r->large, i);
    return;
  }
}

static void *
allocate(oct_cuda_rank *r, guint64 bytes, gboolean pinned, gboolean zeroed, const char *what) {
  void *block = NULL;
  gsize size = (gsize)MAX(bytes, 256);
  if (pinned && (block = allocate_large(r, bytes)) != NULL)
    return block;
  cudaError_t result =
      pinned ? cudaHostAlloc(&block, size, cudaHostAllocPortable) : cudaMalloc(&block, size);
  if (result != cudaSuccess) {
    char message[96];
    (void)cudaGetLastError(); /* running out of memory is not sticky */
    (void)g_snprintf(message, sizeof message, "GPU %u: %s of %s: %.1f GiB: %s", r->device,
                     pinned ? "pinned memory" : "memory", what, (double)bytes / (1u << 30),
                     oct_cuda_error_text(result));
    oct_cuda_fail(r, message);
    return NULL;
  }
  g_ptr_array_add(pinned ? r->pinned : r->blocks, block); /* the rank's, whatever comes of it */
  r->used += pinned ? 0 : size;
  if (pinned && zeroed)
    memset(block, 0, size);
  else if (!pinned &&
           (!oct_cuda_note(r, cudaMemset(block, 0, size), what) || !oct_cuda_drain(r, NULL, what)))
    return NULL; /* the rank's streams do not wait for the default one: this thread does */
  return block;
}

void *
oct_cuda_alloc(oct_cuda_rank *r, guint64 bytes, const char *what) {
  return allocate(r, bytes, FALSE, TRUE, what);
}

void *
oct_cuda_alloc_pinned(oct_cuda_rank *r, guint64 bytes, const char *what) {
  return allocate(r, bytes, TRUE, TRUE, what);
}

void *
oct_cuda_alloc_pinned_unset(oct_cuda_rank *r, guint64 bytes, const char *what) {
  return allocate(r, bytes, TRUE, FALSE, what);
}

void
oct_cuda_release(oct_cuda_rank *r, void *block) {
  const cudaStream_t streams[] = {r->compute, r->copy_in, r->copy_out};
  if (block == NULL)
    return;
  for (gsize i = 0; i < G_N_ELEMENTS(streams); i++)
    if (!oct_cuda_drain(r, streams[i], "memory to be given back"))
      return;
  if (g_ptr_array_remove_fast(r->blocks, block))
    (void)cudaFree(block);
  else if (g_ptr_array_remove_fast(r->pinned, block))
    (void)cudaFreeHost(block);
  else
    release_large(r, block);
}

/* ---------------------------------------------------------------- waiting */

static gint64
now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (gint64)t.tv_sec * NS_PER_S + t.tv_nsec;
}

cudaEvent_t
oct_cuda_event_new(oct_cuda_rank *r) {
  cudaEvent_t event = NULL;
  (void)oct_cuda_note(r, cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
  return event;
}

/* `query` says cudaSuccess, cudaErrorNotReady, or what went wrong. */
static gboolean
wait_for(oct_cuda_rank *r, cudaError_t (*query)(void *), void *of, const char *what) {
  gint64 end = now_ns() + r->group->options->deadline_ns;
  const struct timespec nap = {.tv_nsec = NAP_NS};
  for (;;) {
    cudaError_t state = query(of);
    if (state == cudaSuccess)
      return TRUE;
    if (state != cudaErrorNotReady)
      return oct_cuda_note(r, state, what);
    if (oct_cuda_group_is_broken(r->group))
      return FALSE;
    if (now_ns() > end) {
      char message[96];
      (void)g_snprintf(message, sizeof message, "GPU %u: %s takes longer than %.1f s", r->device,
                       what, (double)r->group->options->deadline_ns / NS_PER_S);
      oct_cuda_fail(r, message);
      return FALSE;
    }
    nanosleep(&nap, NULL);
  }
}

static cudaError_t
query_event(void *event) {
  return cudaEventQuery(event);
}

static cudaError_t
query_stream(void *stream) {
  return cudaStreamQuery(stream);
}

gboolean
oct_cuda_wait(oct_cuda_rank *r, cudaEvent_t event, const char *what) {
  return wait_for(r, query_event, event, what);
}

gboolean
oct_cuda_drain(oct_cuda_rank *r, cudaStream_t stream, const char *what) {
  return wait_for(r, query_stream, stream, what);
}

guint64
oct_cuda_rank_cycles(oct_cuda_rank *r, gint64 ns) {
  int khz = 0; /* the highest */
  if (!oct_cuda_note(r, cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, r->gpu), "its clock"))
    return 0;
  return ((guint64)ns / 1000 + 1) * (guint64)khz / 1000 + 1;
}

oct_cuda_type
oct_cuda_rank_type(const oct_cuda_rank *r) {
  return r->group->options->float32 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
}

/* ---------------------------------------------------------------- life cycle */

static void
place(oct_cuda_rank *r, oct_cuda_group *group, guint32 index) {
  memset(r, 0, sizeof *r);
  r->group = group;
  r->index = index;
  r->tensor = index % group->n_tensor;
  r->domain = index / group->n_tensor % group->n_domains;
  r->stage = index / group->n_tensor / group->n_domains;
  r->is_first = r->stage == 0;
  r->is_last = r->stage + 1 == group->n_stages;
  r->device = group->config->devices[index];
  r->gpu = (int)oct_cuda_group_gpu(group, r->device);
  r->numa_node = -1;
  oct_parallel_stage(group->config->spec, &group->config->parallel, r->stage, &r->first_layer,
                     &r->n_layers);
  r->blocks = g_ptr_array_new();
  r->pinned = g_ptr_array_new();
  r->large = g_array_new(FALSE, FALSE, sizeof(large_block));
}

static void
bind(oct_cuda_rank *r) {
  gint node = oct_numa_node_of(r->bus_id);
  if (oct_numa_bind(node))
    r->numa_node = node;
  g_message("cuda: rank %u on GPU %d (%s), NUMA node %d%s", r->index, r->gpu, r->bus_id, node,
            r->numa_node < 0 ? ", not bound" : "");
}

/* Ranks write into each other's memory: pipeline sends, one-shot sums. */
static void
map_peers(oct_cuda_rank *r) {
  for (guint32 i = 0; i < r->group->n_ranks; i++) {
    int other = (int)oct_cuda_group_gpu(r->group, r->group->config->devices[i]), can = 0;
    if (other == r->gpu || cudaDeviceCanAccessPeer(&can, r->gpu, other) != cudaSuccess || !can)
      continue;
    (void)cudaDeviceEnablePeerAccess(other, 0);
    (void)cudaGetLastError(); /* it may be mapped already */
  }
}

static gboolean
make_queue(oct_cuda_rank *r) {
  const oct_cuda_options *o = r->group->options;
  guint32 flags = (o->fixed_order ? OCT_CUDA_FIXED_ORDER : 0) | (o->overlap ? OCT_CUDA_OVERLAP : 0);
  gboolean fine =
      oct_cuda_note(r, cudaStreamCreateWithFlags(&r->compute, cudaStreamNonBlocking), "a stream") &&
      oct_cuda_note(r, cudaStreamCreateWithFlags(&r->copy_in, cudaStreamNonBlocking), "a stream") &&
      oct_cuda_note(r, cudaStreamCreateWithFlags(&r->copy_out, cudaStreamNonBlocking),
                    "a stream") &&
      oct_cuda_note(r, oct_cuda_queue_init(&r->queue, r->compute, flags), "the kernels");
  if (!fine)
    return FALSE;
  r->queue.launches = o->launches;
  void *workspace = oct_cuda_alloc(r, OCT_CUDA_BLAS_WORKSPACE, "cuBLASLt's workspace");
  if (workspace == NULL)
    return FALSE;
  r->blas = oct_cuda_blas_new(workspace, OCT_CUDA_BLAS_WORKSPACE);
  if (r->blas == NULL)
    oct_cuda_fail(r, "cuBLASLt cannot be used on this machine");
  return r->blas != NULL;
}

gboolean
oct_cuda_rank_open(oct_cuda_rank *r, oct_cuda_group *group, guint32 index) {
  place(r, group, index);
  gsize total = 0, left = 0;
  if (!oct_cuda_note(r, cudaSetDevice(r->gpu), "the device") ||
      !oct_cuda_note(r, cudaDeviceGetPCIBusId(r->bus_id, sizeof r->bus_id, r->gpu), "its bus id"))
    return FALSE;
  bind(r);
  map_peers(r);
  if (!oct_cuda_note(r, cudaMemGetInfo(&left, &total), "its memory"))
    return FALSE;
  r->free_before = left;
  return make_queue(r);
}

/* Whether the stream comes to rest before then. An error is rest, too: nothing runs any more. */
static gboolean
is_idle(cudaStream_t stream, gint64 end_ns) {
  const struct timespec nap = {.tv_nsec = NAP_NS};
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    if (now_ns() > end_ns)
      return FALSE;
    nanosleep(&nap, NULL);
  }
  return TRUE;
}

/* What is wrong with a context stays: the next call meets it again. */
static gboolean
is_usable(void) {
  (void)cudaGetLastError();
  cudaError_t state = cudaStreamQuery(cudaStreamPerThread);
  (void)cudaGetLastError();
  return state == cudaSuccess || state == cudaErrorNotReady || state == cudaErrorMemoryAllocation;
}

gboolean
oct_cuda_rank_rest(oct_cuda_rank *r) {
  if (r->group == NULL)
    return TRUE;
  cudaStream_t streams[] = {r->compute, r->copy_in, r->copy_out};
  /* For all streams together: a process that shows no life is taken for dead. The default stream
   * has memory that is being zeroed. */
  const gint64 end_ns = now_ns() + CLOSE_NS;
  gboolean idle = r->blocks->len == 0 || is_idle(NULL, end_ns);
  for (gsize i = 0; i < G_N_ELEMENTS(streams); i++)
    idle &= streams[i] == NULL || is_idle(streams[i], end_ns);
  return idle;
}

/* All of this waits for the device: one that hangs keeps it until the process ends. */
static void
give_all_back(oct_cuda_rank *r) {
  cudaStream_t streams[] = {r->compute, r->copy_in, r->copy_out};
  oct_cuda_blas_free(r->blas);
  for (guint i = 0; i < r->blocks->len; i++)
    (void)cudaFree(r->blocks->pdata[i]);
  for (guint i = 0; i < r->pinned->len; i++)
    (void)cudaFreeHost(r->pinned->pdata[i]);
  for (guint i = 0; i < r->large->len; i++)
    oct_pinned_free(g_array_index(r->large, large_block, i).at,
                    g_array_index(r->large, large_block, i).bytes);
  for (gsize i = 0; i < G_N_ELEMENTS(streams); i++)
    if (streams[i] != NULL)
      (void)cudaStreamDestroy(streams[i]);
}

gboolean
oct_cuda_rank_close(oct_cuda_rank *r, gboolean give_back) {
  if (r->group == NULL)
    return TRUE;
  if (give_back)
    give_all_back(r);
  g_ptr_array_unref(r->blocks);
  g_ptr_array_unref(r->pinned);
  g_array_unref(r->large);
  r->group = NULL;
  return is_usable();
}
