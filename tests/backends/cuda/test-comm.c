/* What the ranks of a tensor group find out about each other when they open, without a GPU: CUDA's
 * runtime and NCCL say what the test wants. */
#include "backends/cuda/comm.h"

#include <string.h>

#include "backends/cuda/libraries.h"
#include "tests/contract/fixture.h"

#define RANKS 4

/* ---------------------------------------------------------------- in the libraries' place */

struct ncclComm {
  guint32 rank;
};

static struct ncclComm comms[RANKS];
static guint32 from_gpu, to_gpu; /* which does not reach which; the same: all reach all */

/* The runtime is one object file: what this replaces is called by the linker's --wrap. */
cudaError_t __wrap_cudaDeviceCanAccessPeer(int *can, int from, int to);

cudaError_t
__wrap_cudaDeviceCanAccessPeer(int *can, int from, int to) {
  *can = from_gpu == to_gpu || (guint32)from != from_gpu || (guint32)to != to_gpu;
  return cudaSuccess;
}

static ncclResult_t
give_id(ncclUniqueId *id) {
  memset(id, 0, sizeof *id);
  return ncclSuccess;
}

static ncclResult_t
join(ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config) {
  (void)n, (void)id, (void)config;
  *comm = &comms[rank];
  return ncclSuccess;
}

static ncclResult_t
leave(ncclComm_t comm) {
  (void)comm;
  return ncclSuccess;
}

const oct_nccl *
oct_nccl_get(GError **error) {
  static const oct_nccl nccl = {
      .ncclGetUniqueId = give_id, .ncclCommInitRankConfig = join, .ncclCommAbort = leave};
  (void)error;
  return &nccl;
}

/* ---------------------------------------------------------------- in the ranks' */

void
oct_cuda_fail(oct_cuda_rank *r, const char *message) {
  __atomic_store_n(&r->failed, TRUE, __ATOMIC_RELAXED);
  oct_cuda_group_break(r->group, r->device, message);
}

gboolean
oct_cuda_note(oct_cuda_rank *r, int result, const char *what) {
  if (result != 0)
    oct_cuda_fail(r, what);
  return result == 0;
}

void *
oct_cuda_alloc(oct_cuda_rank *r, guint64 bytes, const char *what) {
  (void)bytes, (void)what;
  void *block = g_malloc0(256); /* nobody looks into it */
  g_ptr_array_add(r->blocks, block);
  return block;
}

void *
oct_cuda_alloc_pinned(oct_cuda_rank *r, guint64 bytes, const char *what) {
  return oct_cuda_alloc(r, bytes, what);
}

cudaEvent_t
oct_cuda_event_new(oct_cuda_rank *r) {
  (void)r;
  g_assert_not_reached();
}

guint64
oct_cuda_rank_cycles(oct_cuda_rank *r, gint64 ns) {
  (void)r;
  return (guint64)ns;
}

oct_cuda_type
oct_cuda_rank_type(const oct_cuda_rank *r) {
  (void)r;
  return OCT_CUDA_BF16;
}

/* ---------------------------------------------------------------- opening */

typedef struct party {
  oct_cuda_group group;
  oct_cuda_options options;
  oct_instance_config config;
  guint16 devices[RANKS];
  oct_cuda_circle *circle;
  oct_cuda_rank ranks[RANKS];
  oct_cuda_comm *comms[RANKS];
} party;

typedef struct guest {
  party *party;
  guint32 index;
} guest;

static void *
open_comm(void *data) {
  const guest *g = data;
  g->party->comms[g->index] =
      oct_cuda_comm_new(&g->party->ranks[g->index], g->party->circle, 256, 256);
  return NULL;
}

/* Whether ranks on GPUs of their own open; *why: of the group that does not. */
static gboolean
opens(guint32 n, gboolean fixed, char *why, gsize bytes) {
  party p = {.options = {.deadline_ns = G_MAXINT32}};
  pthread_t threads[RANKS];
  guest guests[RANKS];
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  guint n_open = 0;
  parallel.tensor = n;
  p.config = fixture_config(fixture_dense(), parallel);
  p.config.devices = p.devices;
  for (guint32 i = 0; i < n; i++)
    p.devices[i] = (guint16)i;
  oct_cuda_group_init(&p.group, &p.config, &p.options, RANKS);
  p.circle = oct_cuda_circle_new(&p.group, OCT_CUDA_CIRCLE_TENSOR);
  for (guint32 i = 0; i < n; i++) {
    p.ranks[i] = (oct_cuda_rank){
        .group = &p.group, .index = i, .tensor = i, .device = i, .blocks = g_ptr_array_new()};
    g_ptr_array_set_free_func(p.ranks[i].blocks, g_free);
    p.ranks[i].queue.flags = fixed ? OCT_CUDA_FIXED_ORDER : 0;
    guests[i] = (guest){&p, i};
    g_assert_cmpint(pthread_create(&threads[i], NULL, open_comm, &guests[i]), ==, 0);
  }
  for (guint32 i = 0; i < n; i++)
    pthread_join(threads[i], NULL);
  for (guint32 i = 0; i < n; i++) {
    n_open += p.comms[i] != NULL;
    oct_cuda_comm_free(p.comms[i]);
    g_ptr_array_unref(p.ranks[i].blocks);
  }
  g_assert_cmpint(oct_cuda_group_is_broken(&p.group), ==, n_open < n);
  g_strlcpy(why, p.group.message, bytes);
  oct_cuda_circle_free(p.circle);
  oct_cuda_group_clear(&p.group);
  g_assert_true(n_open == n || n_open == 0);
  return n_open == n;
}

/* Not at the first sum: by then the instance serves. */
static void
a_fixed_order_that_cannot_be_is_refused_at_opening(void) {
  char why[96];
  for (guint i = 0; i < 30; i++) {
    from_gpu = to_gpu = 0;
    g_assert_true(opens(RANKS, TRUE, why, sizeof why));
    g_assert_true(opens(RANKS, FALSE, why, sizeof why));
    from_gpu = (guint32)g_test_rand_int_range(0, RANKS);
    to_gpu = (from_gpu + (guint32)g_test_rand_int_range(1, RANKS)) % RANKS;
    g_assert_true(opens(RANKS, FALSE, why, sizeof why));
    g_assert_false(opens(RANKS, TRUE, why, sizeof why));
    g_assert_cmpstr(why, ==,
                    "a fixed order over more than two GPUs needs each to reach the others' memory");
    from_gpu = i % 2;
    to_gpu = 1 - from_gpu;
    g_assert_true(opens(2, TRUE, why, sizeof why));
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/comm/a-fixed-order-that-cannot-be-is-refused-at-opening",
                  a_fixed_order_that_cannot_be_is_refused_at_opening);
  return g_test_run();
}
