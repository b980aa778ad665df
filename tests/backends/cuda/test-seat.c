/* Ranks in an NCCL communicator that others abort. First with a library that stands in for NCCL and
 * knows which communicators have been aborted, so that no GPU is needed; then with NCCL itself, on
 * the GPUs there are. */
#include "backends/cuda/seat.h"

#include <string.h>

#include "tests/contract/fixture.h"

#define RANKS 4

/* ---------------------------------------------------------------- in NCCL's place */

struct ncclComm {
  gint inside, aborted; /* atomic: calls that are in there; how often it was aborted */
  gint n_asked;
  gint joined;
};

static struct ncclComm comms[RANKS];
static gint n_joined, n_wrong, n_groups; /* atomic */
static gboolean never_joins, refuses;
static gulong asking_us; /* that being asked takes */

static ncclResult_t
visit(ncclComm_t comm) {
  g_atomic_int_inc(&comm->inside);
  for (guint i = 0; i < 4; i++)
    g_thread_yield();
  if (g_atomic_int_get(&comm->aborted) != 0)
    g_atomic_int_inc(&n_wrong);
  (void)g_atomic_int_dec_and_test(&comm->inside);
  return refuses ? ncclUnhandledCudaError : ncclInProgress;
}

static ncclResult_t
stub_join(ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config) {
  (void)id;
  g_assert_cmpint(n, ==, RANKS);
  g_assert_cmpint(config->blocking, ==, 0);
  *comm = &comms[rank];
  (*comm)->joined = 1;
  g_atomic_int_inc(&n_joined);
  return ncclInProgress;
}

/* Calls have ended when they are asked for the second time. */
static ncclResult_t
stub_ask(ncclComm_t comm, ncclResult_t *result) {
  (void)visit(comm);
  g_usleep(asking_us);
  *result =
      never_joins || g_atomic_int_add(&comm->n_asked, 1) % 2 == 0 ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

static ncclResult_t
stub_abort(ncclComm_t comm) {
  g_atomic_int_inc(&comm->aborted);
  if (g_atomic_int_get(&comm->inside) != 0)
    g_atomic_int_inc(&n_wrong);
  return ncclSuccess;
}

static ncclResult_t
stub_sum(const void *x, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
         cudaStream_t stream) {
  (void)x, (void)out, (void)n, (void)type, (void)op, (void)stream;
  return visit(comm);
}

static ncclResult_t
stub_gather(const void *x, void *out, size_t n, ncclDataType_t type, ncclComm_t comm,
            cudaStream_t stream) {
  (void)x, (void)out, (void)n, (void)type, (void)stream;
  return visit(comm);
}

static ncclResult_t
stub_send(const void *x, size_t n, ncclDataType_t type, int to, ncclComm_t comm,
          cudaStream_t stream) {
  (void)x, (void)n, (void)type, (void)to, (void)stream;
  return visit(comm);
}

static ncclResult_t
stub_receive(void *out, size_t n, ncclDataType_t type, int from, ncclComm_t comm,
             cudaStream_t stream) {
  (void)out, (void)n, (void)type, (void)from, (void)stream;
  return visit(comm);
}

static ncclResult_t
stub_begin(void) {
  g_atomic_int_inc(&n_groups);
  return ncclSuccess;
}

static ncclResult_t
stub_end(void) {
  (void)g_atomic_int_dec_and_test(&n_groups);
  return ncclInProgress;
}

static const char *
stub_text(ncclResult_t result) {
  return result == ncclUnhandledCudaError ? "as was wanted" : "aborted";
}

static const oct_nccl stub = {.ncclCommInitRankConfig = stub_join,
                              .ncclCommGetAsyncError = stub_ask,
                              .ncclCommAbort = stub_abort,
                              .ncclAllReduce = stub_sum,
                              .ncclAllGather = stub_gather,
                              .ncclReduceScatter = stub_sum,
                              .ncclGroupStart = stub_begin,
                              .ncclGroupEnd = stub_end,
                              .ncclSend = stub_send,
                              .ncclRecv = stub_receive,
                              .ncclGetErrorString = stub_text};

/* ---------------------------------------------------------------- ranks */

typedef struct party {
  oct_cuda_group group;
  oct_cuda_options options;
  oct_instance_config config;
  const oct_nccl *nccl;
  ncclUniqueId id;
  guint32 n; /* of the communicator */
  oct_cuda_seat seats[RANKS];
  oct_cuda_rank ranks[RANKS];
  pthread_t threads[RANKS];
  gint n_calls; /* atomic */
  float *x[RANKS];
} party;

static void
party_open(party *p, const oct_nccl *nccl, gint64 deadline_ns) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.tensor = RANKS;
  memset(p, 0, sizeof *p);
  p->options.deadline_ns = deadline_ns;
  p->config = fixture_config(fixture_dense(), parallel);
  p->nccl = nccl;
  p->n = RANKS;
  oct_cuda_group_init(&p->group, &p->config, &p->options, RANKS);
  for (guint32 i = 0; i < RANKS; i++) {
    p->ranks[i] = (oct_cuda_rank){.group = &p->group, .index = i, .device = i};
    oct_cuda_seat_init(&p->seats[i]);
  }
  memset(comms, 0, sizeof comms);
  n_joined = n_wrong = n_groups = 0;
  never_joins = refuses = FALSE;
  asking_us = 0;
}

static void
party_close(party *p) {
  for (guint32 i = 0; i < RANKS; i++)
    oct_cuda_seat_clear(&p->seats[i]);
  oct_cuda_group_clear(&p->group);
  g_assert_cmpint(n_wrong, ==, 0);
  g_assert_cmpint(n_groups, ==, 0);
}

static gboolean
join(party *p, guint32 i) {
  return oct_cuda_seat_join(&p->seats[i], &p->ranks[i], p->nccl, &p->id, p->n, i);
}

static gboolean
meet(party *p, guint32 i, oct_cuda_meet_kind kind) {
  oct_cuda_meet m = {kind, ncclFloat32, 1024, p->x[i], p->x[i], "a sum"};
  if (kind == OCT_CUDA_MEET_EXCHANGE)
    m.type = ncclInt8;
  return oct_cuda_seat_meet(&p->seats[i], &p->ranks[i], &m);
}

typedef struct guest {
  party *party;
  guint32 index;
} guest;

/* Calls of all kinds until one fails. */
static void *
use(void *data) {
  const guest *g = data;
  party *p = g->party;
  for (guint i = 0, fine = join(p, g->index); fine; i++) {
    fine = meet(p, g->index, (oct_cuda_meet_kind)(i % (OCT_CUDA_MEET_EXCHANGE + 1)));
    g_atomic_int_inc(&p->n_calls);
  }
  return NULL;
}

static void
start(party *p, guest *guests, guint32 n) {
  for (guint32 i = 0; i < n; i++) {
    guests[i] = (guest){p, i};
    g_assert_cmpint(pthread_create(&p->threads[i], NULL, use, &guests[i]), ==, 0);
  }
}

static void
end(party *p, guint32 n) {
  for (guint32 i = 0; i < n; i++) {
    pthread_join(p->threads[i], NULL);
    g_assert_true(p->ranks[i].failed);
    g_assert_null(p->seats[i].comm);
  }
}

static void
nobody_calls_what_was_aborted(void) {
  guest guests[RANKS];
  for (guint round = 0; round < 60; round++) {
    party p;
    party_open(&p, &stub, G_MAXINT64);
    start(&p, guests, RANKS);
    while (g_atomic_int_get(&p.n_calls) < (gint)round)
      g_thread_yield();
    if (round % 2 == 0)
      oct_cuda_group_break(&p.group, 2, "rank 2 is lost");
    for (guint32 i = 0; i < RANKS; i++)
      oct_cuda_seat_abort(&p.seats[i]);
    end(&p, RANKS);
    if (round % 2 == 0)
      g_assert_cmpstr(p.group.message, ==, "rank 2 is lost");
    party_close(&p);
    /* A rank whose seat was aborted first has not joined. */
    for (guint32 i = 0; i < RANKS; i++)
      g_assert_cmpint(comms[i].aborted, ==, comms[i].joined);
  }
}

static void
who_is_joining_is_aborted_too(void) {
  guest guests[RANKS];
  party p;
  party_open(&p, &stub, G_MAXINT64);
  never_joins = TRUE;
  start(&p, guests, RANKS);
  while (g_atomic_int_get(&n_joined) < RANKS)
    g_thread_yield();
  for (guint32 i = 0; i < RANKS; i++)
    oct_cuda_seat_abort(&p.seats[i]);
  end(&p, RANKS);
  party_close(&p);
  for (guint32 i = 0; i < RANKS; i++)
    g_assert_cmpint(comms[i].aborted, ==, 1);
}

static void
an_aborted_seat_is_not_taken(void) {
  party p;
  party_open(&p, &stub, G_MAXINT64);
  oct_cuda_seat_abort(&p.seats[0]);
  g_assert_false(join(&p, 0));
  g_assert_true(p.ranks[0].failed);
  g_assert_cmpint(n_joined, ==, 0);
  party_close(&p);
}

static void
joining_has_the_deadline(void) {
  party p;
  party_open(&p, &stub, 100000000);
  never_joins = TRUE;
  asking_us = 5000; /* counts, too */
  gint64 began_us = g_get_monotonic_time();
  g_assert_false(join(&p, 3));
  gint64 took_us = g_get_monotonic_time() - began_us;
  g_test_message("given up after %.3f s", (double)took_us * 1e-6);
  g_assert_cmpint(took_us, >=, 100000);
  g_assert_cmpint(took_us, <, 2000000);
  g_assert_cmpstr(p.group.message, ==, "GPU 3: NCCL: joining: takes longer than the deadline");
  party_close(&p);
  g_assert_cmpint(comms[3].aborted, ==, 1);
}

static void
what_nccl_refuses_is_told(void) {
  for (guint kind = 0; kind <= OCT_CUDA_MEET_EXCHANGE; kind++) {
    party p;
    party_open(&p, &stub, G_MAXINT64);
    g_assert_true(join(&p, 1));
    refuses = TRUE;
    g_assert_false(meet(&p, 1, (oct_cuda_meet_kind)kind));
    g_assert_cmpstr(p.group.message, ==, "GPU 1: NCCL: a sum: as was wanted");
    g_assert_cmpuint(p.group.device, ==, 1);
    party_close(&p);
  }
}

/* ---------------------------------------------------------------- NCCL itself */

/* NULL: skipped. */
static const oct_nccl *
real_nccl(int n_gpus) {
  g_autoptr(GError) error = NULL;
  const oct_nccl *nccl = oct_nccl_get(&error);
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < n_gpus) {
    (void)cudaGetLastError();
    g_test_skip(count == 0 ? "no GPU" : "needs two GPUs");
    return NULL;
  }
  if (nccl == NULL)
    g_test_skip(error->message);
  return nccl;
}

static void
real_open(party *p, const oct_nccl *nccl, guint32 n, guint32 here) {
  party_open(p, nccl, 600 * (gint64)1000000000);
  p->n = n;
  g_assert_cmpint(nccl->ncclGetUniqueId(&p->id), ==, ncclSuccess);
  for (guint32 i = 0; i < here; i++) {
    g_assert_cmpint(cudaSetDevice((int)i), ==, cudaSuccess);
    g_assert_cmpint(cudaMalloc((void **)&p->x[i], 1 << 20), ==, cudaSuccess);
    g_assert_cmpint(cudaStreamCreateWithFlags(&p->ranks[i].compute, cudaStreamNonBlocking), ==,
                    cudaSuccess);
  }
}

/* The GPU has work to do afterwards, as before. */
static void
real_close(party *p, guint32 here) {
  party_close(p);
  for (guint32 i = 0; i < here; i++) {
    g_assert_cmpint(cudaSetDevice((int)i), ==, cudaSuccess);
    g_assert_cmpint(cudaStreamSynchronize(p->ranks[i].compute), ==, cudaSuccess);
    g_assert_cmpint(cudaMemset(p->x[i], 0, 1 << 20), ==, cudaSuccess);
    g_assert_cmpint(cudaDeviceSynchronize(), ==, cudaSuccess);
    cudaStreamDestroy(p->ranks[i].compute);
    cudaFree(p->x[i]);
  }
}

static void *
use_gpu(void *data) {
  const guest *g = data;
  g_assert_cmpint(cudaSetDevice((int)g->index), ==, cudaSuccess);
  return use(data);
}

/* The second rank of the communicator never comes. */
static void
a_rank_that_joins_alone_comes_back(void) {
  const oct_nccl *nccl = real_nccl(1);
  if (nccl == NULL)
    return;
  party p;
  guest g = {&p, 0};
  real_open(&p, nccl, 2, 1);
  g_assert_cmpint(pthread_create(&p.threads[0], NULL, use_gpu, &g), ==, 0);
  for (gboolean taken = FALSE; !taken;) {
    pthread_mutex_lock(&p.seats[0].lock);
    taken = p.seats[0].comm != NULL;
    pthread_mutex_unlock(&p.seats[0].lock);
  }
  oct_cuda_group_break(&p.group, 1, "rank 1 is lost");
  oct_cuda_seat_abort(&p.seats[0]);
  end(&p, 1);
  g_assert_cmpint(p.n_calls, ==, 0);
  real_close(&p, 1);
}

/* Calls of every kind, by one rank alone and by two, of which another thread makes an end. */
static void
ranks_at_work_are_aborted(void) {
  for (guint32 n = 1; n <= 2; n++) {
    const oct_nccl *nccl = real_nccl((int)n);
    if (nccl == NULL)
      return;
    party p;
    guest guests[2];
    real_open(&p, nccl, n, n);
    for (guint32 i = 0; i < n; i++) {
      guests[i] = (guest){&p, i};
      g_assert_cmpint(pthread_create(&p.threads[i], NULL, use_gpu, &guests[i]), ==, 0);
    }
    while (g_atomic_int_get(&p.n_calls) < 100)
      g_thread_yield();
    oct_cuda_group_break(&p.group, 1, "rank 1 is lost");
    for (guint32 i = 0; i < n; i++)
      oct_cuda_seat_abort(&p.seats[i]);
    end(&p, n);
    real_close(&p, n);
  }
}

/* As many as last as long. */
static void
cycles_are_those_of_the_time(void) {
  if (real_nccl(1) == NULL)
    return;
  party p;
  party_open(&p, &stub, 1);
  guint64 second = oct_cuda_rank_cycles(&p.ranks[0], 1000000000);
  guint64 hour = oct_cuda_rank_cycles(&p.ranks[0], 3600 * (gint64)1000000000);
  g_test_message("%.3f GHz", (double)second * 1e-9);
  g_assert_cmpuint(second, >, 500000000);
  g_assert_cmpuint(second, <, 5000000000);
  g_assert_cmpfloat_with_epsilon((double)hour / (double)second, 3600, 0.1);
  g_assert_false(p.ranks[0].failed);
  party_close(&p);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/seat/nobody-calls-what-was-aborted", nobody_calls_what_was_aborted);
  g_test_add_func("/cuda/seat/who-is-joining-is-aborted-too", who_is_joining_is_aborted_too);
  g_test_add_func("/cuda/seat/an-aborted-seat-is-not-taken", an_aborted_seat_is_not_taken);
  g_test_add_func("/cuda/seat/joining-has-the-deadline", joining_has_the_deadline);
  g_test_add_func("/cuda/seat/what-nccl-refuses-is-told", what_nccl_refuses_is_told);
  g_test_add_func("/cuda/seat/a-rank-that-joins-alone-comes-back",
                  a_rank_that_joins_alone_comes_back);
  g_test_add_func("/cuda/seat/ranks-at-work-are-aborted", ranks_at_work_are_aborted);
  g_test_add_func("/cuda/seat/cycles-are-those-of-the-time", cycles_are_those_of_the_time);
  return g_test_run();
}
