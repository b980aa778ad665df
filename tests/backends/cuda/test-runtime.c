/* A rank on a runtime that stands in for CUDA's, so that no GPU is needed: what it asks for is
 * given back whatever happens, and its waits have an end. */
#include <string.h>

#include "backends/cuda/pinned.h"
#include "backends/cuda/rank.h"

#define DEADLINE_NS ((gint64)200000000)
#define CLOSE_S     5 /* that closing waits for what was enqueued */

/* ---------------------------------------------------------------- in the runtime's place */

typedef enum kind { BLOCK, STREAM, EVENT, KINDS } kind;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static GPtrArray *made[KINDS]; /* and not given back; under the lock */
static gint moves;             /* atomic: streams come to rest */
static oct_cuda_group *breaks; /* broken while memory is being zeroed; or NULL */

static void *
make(kind what, gsize bytes) {
  void *it = g_malloc(bytes);
  pthread_mutex_lock(&lock);
  if (made[what] == NULL)
    made[what] = g_ptr_array_new();
  g_ptr_array_add(made[what], it);
  pthread_mutex_unlock(&lock);
  return it;
}

static cudaError_t
give_back(kind what, void *it) {
  pthread_mutex_lock(&lock);
  g_assert_true(g_ptr_array_remove_fast(made[what], it));
  pthread_mutex_unlock(&lock);
  g_free(it);
  return cudaSuccess;
}

static guint
left(kind what) {
  return made[what] != NULL ? made[what]->len : 0;
}

cudaError_t
cudaMalloc(void **block, size_t bytes) {
  *block = make(BLOCK, bytes);
  return cudaSuccess;
}

cudaError_t
cudaFree(void *block) {
  return give_back(BLOCK, block);
}

cudaError_t
cudaHostAlloc(void **block, size_t bytes, unsigned flags) {
  (void)flags;
  return cudaMalloc(block, bytes);
}

cudaError_t
cudaFreeHost(void *block) {
  return cudaFree(block);
}

cudaError_t
cudaMemset(void *block, int value, size_t bytes) {
  memset(block, value, bytes);
  if (breaks != NULL)
    oct_cuda_group_break(breaks, 1, "rank 1 is lost");
  return cudaSuccess;
}

cudaError_t
cudaGetLastError(void) {
  return cudaSuccess;
}

cudaError_t
cudaStreamQuery(cudaStream_t stream) {
  return stream == cudaStreamPerThread || g_atomic_int_get(&moves) ? cudaSuccess
                                                                   : cudaErrorNotReady;
}

cudaError_t
cudaEventQuery(cudaEvent_t event) {
  (void)event;
  return g_atomic_int_get(&moves) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t
cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  (void)flags;
  *event = make(EVENT, 1);
  return cudaSuccess;
}

cudaError_t
cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  (void)flags;
  *stream = make(STREAM, 1);
  return cudaSuccess;
}

cudaError_t
cudaStreamDestroy(cudaStream_t stream) {
  return give_back(STREAM, stream);
}

cudaError_t
cudaSetDevice(int device) {
  (void)device;
  return cudaSuccess;
}

cudaError_t
cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
  (void)g_snprintf(text, (gulong)bytes, "ffff:ff:1f.%d", device);
  return cudaSuccess;
}

cudaError_t
cudaMemGetInfo(size_t *left, size_t *total) {
  *left = *total = (size_t)1 << 30;
  return cudaSuccess;
}

cudaError_t
cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int device) {
  (void)what, (void)device;
  *value = 2000000;
  return cudaSuccess;
}

cudaError_t
cudaDeviceCanAccessPeer(int *can, int from, int to) {
  *can = from != to;
  return cudaSuccess;
}

cudaError_t
cudaDeviceEnablePeerAccess(int to, unsigned flags) {
  (void)to, (void)flags;
  return cudaSuccess;
}

/* ---------------------------------------------------------------- and in the kernels' */

int
oct_cuda_queue_init(oct_cuda_queue *queue, struct CUstream_st *stream, uint32_t flags) {
  *queue = (oct_cuda_queue){.stream = stream, .flags = flags};
  return 0;
}

oct_cuda_blas *
oct_cuda_blas_new(void *workspace, size_t bytes) {
  (void)bytes;
  return workspace;
}

/* The library waits for the device. */
void
oct_cuda_blas_free(oct_cuda_blas *blas) {
  (void)blas;
  g_assert_true(g_atomic_int_get(&moves));
}

int
oct_cuda_blas_status(const oct_cuda_blas *blas) {
  (void)blas;
  return 0;
}

const char *
oct_cuda_error_text(int error) {
  return error == 0 ? "no error" : "an error";
}

void *
oct_pinned_new(gsize bytes) {
  (void)bytes;
  return NULL;
}

void
oct_pinned_free(void *block, gsize bytes) {
  (void)bytes;
  g_free(block);
}

/* ---------------------------------------------------------------- a rank */

typedef struct fixture {
  oct_model_spec spec;
  oct_instance_config config;
  oct_cuda_options options;
  guint16 devices[2];
  oct_cuda_group group;
  oct_cuda_rank rank;
} fixture;

static void
set_up(fixture *f) {
  memset(f, 0, sizeof *f);
  f->spec.n_layers = 1;
  f->devices[1] = 1;
  f->config = (oct_instance_config){
      .spec = &f->spec, .parallel = OCT_PARALLEL_DEFAULT, .devices = f->devices};
  f->config.parallel.tensor = 2;
  f->options.deadline_ns = DEADLINE_NS;
  g_atomic_int_set(&moves, 1);
  breaks = NULL;
  oct_cuda_group_init(&f->group, &f->config, &f->options, 2);
  g_assert_true(oct_cuda_rank_open(&f->rank, &f->group, 0));
}

static void
tear_down(fixture *f) {
  g_atomic_int_set(&moves, 1);
  g_assert_true(oct_cuda_rank_rest(&f->rank));
  g_assert_true(oct_cuda_rank_close(&f->rank, TRUE));
  oct_cuda_group_clear(&f->group);
  for (guint i = 0; i < KINDS; i++)
    g_assert_cmpuint(left((kind)i), ==, 0);
}

static void
what_is_asked_for_is_zeroed_and_given_back(void) {
  fixture f;
  set_up(&f);
  guint8 *blocks[] = {oct_cuda_alloc(&f.rank, 1000, "a block"),
                      oct_cuda_alloc_pinned(&f.rank, 1000, "a block"),
                      oct_cuda_alloc_pinned(&f.rank, 0, "nothing")};
  for (gsize i = 0; i < G_N_ELEMENTS(blocks); i++)
    for (gsize k = 0; k < (i < 2 ? 1000 : 256); k++)
      g_assert_cmpuint(blocks[i][k], ==, 0);
  oct_cuda_release(&f.rank, blocks[0]);
  oct_cuda_release(&f.rank, blocks[2]);
  oct_cuda_release(&f.rank, NULL);
  tear_down(&f);
}

/* Another rank is lost, or the deadline passes, while the device writes zeros: they are many. */
static void
so_is_memory_that_comes_too_late(void) {
  for (guint lost = 0; lost < 2; lost++) {
    fixture f;
    set_up(&f);
    g_atomic_int_set(&moves, 0);
    breaks = lost ? &f.group : NULL;
    g_assert_null(oct_cuda_alloc(&f.rank, (guint64)1 << 20, "pages"));
    g_assert_cmpint(f.rank.failed, ==, !lost);
    g_test_message("%s", f.group.message);
    tear_down(&f);
  }
}

static void
closing_waits_once_for_all_streams(void) {
  fixture f;
  set_up(&f);
  g_assert_nonnull(oct_cuda_alloc(&f.rank, 1000, "a block"));
  g_atomic_int_set(&moves, 0);
  gint64 began_us = g_get_monotonic_time();
  oct_cuda_group_break(&f.group, 1, "rank 1 is lost"); /* nor does that cut it short */
  g_assert_false(oct_cuda_rank_rest(&f.rank));
  const double took_s = (double)(g_get_monotonic_time() - began_us) * 1e-6;
  g_test_message("given up after %.3f s", took_s);
  g_assert_cmpfloat(took_s, >=, CLOSE_S);
  g_assert_cmpfloat(took_s, <, 2 * CLOSE_S);
  /* The process keeps what the device may be using. */
  g_assert_true(oct_cuda_rank_close(&f.rank, FALSE));
  g_assert_cmpuint(left(BLOCK), >, 0);
  g_assert_cmpuint(left(STREAM), ==, 3);
  oct_cuda_group_clear(&f.group);
}

static void *
use(void *data) {
  fixture *f = data;
  while (oct_cuda_alloc(&f->rank, 300, "a block") != NULL && !oct_cuda_has_failed(&f->rank))
    g_thread_yield();
  return NULL;
}

/* As the world does, which looks at ranks' steps and copies. */
static void
another_thread_may_say_that_a_rank_has_failed(void) {
  for (guint i = 0; i < 20; i++) {
    fixture f;
    pthread_t thread;
    set_up(&f);
    g_assert_cmpint(pthread_create(&thread, NULL, use, &f), ==, 0);
    oct_cuda_fail(&f.rank, "a step");
    pthread_join(thread, NULL);
    g_assert_cmpstr(f.group.message, ==, "a step");
    tear_down(&f);
  }
}

static void *
part(void *data) {
  return GINT_TO_POINTER(oct_cuda_group_part(data, TRUE));
}

/* Of two ranks: both have a thread, or one has none. */
static void
ranks_part_together_or_without_who_never_came(void) {
  for (guint i = 0; i < 3; i++) {
    const gboolean comes = i > 0, rests = i > 1;
    fixture f;
    pthread_t thread;
    void *all_rest;
    set_up(&f);
    oct_cuda_group_break(&f.group, 1, "rank 1 is lost");
    g_assert_cmpint(pthread_create(&thread, NULL, part, &f.group), ==, 0);
    if (comes)
      g_assert_cmpint(oct_cuda_group_part(&f.group, rests), ==, rests);
    else
      oct_cuda_group_miss(&f.group, 1);
    pthread_join(thread, &all_rest);
    g_assert_cmpint(GPOINTER_TO_INT(all_rest), ==, rests || !comes);
    tear_down(&f);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/runtime/what-is-asked-for-is-zeroed-and-given-back",
                  what_is_asked_for_is_zeroed_and_given_back);
  g_test_add_func("/cuda/runtime/so-is-memory-that-comes-too-late",
                  so_is_memory_that_comes_too_late);
  g_test_add_func("/cuda/runtime/another-thread-may-say-that-a-rank-has-failed",
                  another_thread_may_say_that_a_rank_has_failed);
  g_test_add_func("/cuda/runtime/ranks-part-together-or-without-who-never-came",
                  ranks_part_together_or_without_who_never_came);
  /* The last: it leaves something behind. */
  g_test_add_func("/cuda/runtime/closing-waits-once-for-all-streams",
                  closing_waits_once_for_all_streams);
  return g_test_run();
}
