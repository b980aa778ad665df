#include "backends/cuda/comm.h"

#include <string.h>

#include "backends/cuda/glue.h"
#include "backends/cuda/seat.h"
#include "engine/base/assert.h"

#define EXCHANGE_BYTES ((gsize)64 << 20) /* sums of 10 MiB between two ranks, 3 among 8 */
/* Kernels wait for a peer so much longer than the host for their step: it knows more to say. */
#define LATER_NS 1000000000

/* Ranks that meet: a tensor group, or those with the same place in the groups of all domains. */
typedef struct ring {
  oct_cuda_meeting meeting;
  ncclUniqueId id;
  gboolean has_id;
  void *buffers[OCT_CUDA_PEERS_MAX];
  uint64_t *signals[OCT_CUDA_PEERS_MAX];
  guint32 *failed[OCT_CUDA_PEERS_MAX]; /* pinned: a peer did not come, or is not waited for */
  /* Ranks that share a GPU. */
  const void *sources[OCT_CUDA_PEERS_MAX];
  cudaEvent_t written[OCT_CUDA_PEERS_MAX], taken[OCT_CUDA_PEERS_MAX];
} ring;

struct oct_cuda_circle {
  oct_cuda_group *group;
  oct_cuda_circle_kind kind;
  guint32 n; /* ranks of a ring */
  ring *rings;
  guint32 n_rings;
  pthread_mutex_t lock; /* of what the rings say of failures */
  oct_cuda_seat *seats; /* [ranks] */
};

struct oct_cuda_comm {
  oct_cuda_rank *rank;
  oct_cuda_circle *circle;
  ring *ring;
  guint32 n, member;     /* of the ring; this rank's place in it */
  guint32 first, stride; /* rank of member 0, and from one to the next */
  oct_cuda_seat *seat;   /* in the ring's communicator */
  gboolean has_peers;
  oct_cuda_peers peers;
  guint32 *failed; /* of the ring */
  void *sum;       /* [elements]: what ranks of one GPU add up to */
  float *gathered; /* as NCCL leaves it: rank by rank */
};

/* ---------------------------------------------------------------- circles */

oct_cuda_circle *
oct_cuda_circle_new(oct_cuda_group *group, oct_cuda_circle_kind kind) {
  const guint32 sizes[OCT_CUDA_CIRCLES] = {group->n_tensor, group->n_domains, group->n_context};
  oct_cuda_circle *c = g_new0(oct_cuda_circle, 1);
  c->group = group;
  c->kind = kind;
  c->n = sizes[kind];
  c->n_rings = group->n_ranks / c->n;
  c->rings = g_new0(ring, c->n_rings);
  for (guint32 i = 0; i < c->n_rings; i++)
    c->rings[i].meeting.n = c->n;
  c->seats = g_new0(oct_cuda_seat, group->n_ranks);
  for (guint32 i = 0; i < group->n_ranks; i++)
    oct_cuda_seat_init(&c->seats[i]);
  pthread_mutex_init(&c->lock, NULL);
  return c;
}

void
oct_cuda_circle_free(oct_cuda_circle *c) {
  if (c == NULL)
    return;
  pthread_mutex_destroy(&c->lock);
  for (guint32 i = 0; i < c->group->n_ranks; i++)
    oct_cuda_seat_clear(&c->seats[i]);
  g_free(c->seats);
  g_free(c->rings);
  g_free(c);
}

void
oct_cuda_circle_release(oct_cuda_circle *c) {
  pthread_mutex_lock(&c->lock);
  for (guint32 i = 0; i < c->n_rings; i++)
    for (guint32 k = 0; k < c->n; k++)
      if (c->rings[i].failed[k] != NULL)
        __atomic_store_n(c->rings[i].failed[k], 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&c->lock);
}

void
oct_cuda_circle_abort(oct_cuda_circle *c) {
  for (guint32 i = 0; i < c->group->n_ranks; i++)
    oct_cuda_seat_abort(&c->seats[i]);
}

/* ---------------------------------------------------------------- NCCL */

static gboolean
join_nccl(oct_cuda_comm *c) {
  g_autoptr(GError) error = NULL;
  const oct_nccl *nccl = oct_nccl_get(&error);
  if (nccl == NULL) {
    oct_cuda_fail(c->rank, error->message);
    return FALSE;
  }
  if (c->member == 0)
    c->ring->has_id = nccl->ncclGetUniqueId(&c->ring->id) == ncclSuccess;
  if (!oct_cuda_group_meet_some(c->rank->group, &c->ring->meeting))
    return FALSE;
  if (!c->ring->has_id) {
    oct_cuda_fail(c->rank, "NCCL gives no id for a communicator");
    return FALSE;
  }
  return oct_cuda_seat_join(c->seat, c->rank, nccl, &c->ring->id, c->n, c->member);
}

static gboolean
meet(oct_cuda_comm *c, const oct_cuda_meet *m) {
  return oct_cuda_seat_meet(c->seat, c->rank, m);
}

static ncclDataType_t
sum_type(const oct_cuda_comm *c) {
  return oct_cuda_rank_type(c->rank) == OCT_CUDA_F32 ? ncclFloat32 : ncclBfloat16;
}

/* ---------------------------------------------------------------- peers */

/* Whether every GPU of the ring can write every other's memory. */
static gboolean
all_reach(const oct_cuda_comm *c) {
  const oct_cuda_group *g = c->rank->group;
  for (guint32 a = 0; a < c->n; a++)
    for (guint32 b = 0; b < c->n; b++) {
      int can = 0, from = (int)oct_cuda_group_gpu(g, g->config->devices[c->first + a * c->stride]),
          to = (int)oct_cuda_group_gpu(g, g->config->devices[c->first + b * c->stride]);
      if (a != b && (cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess || !can))
        return FALSE;
    }
  return TRUE;
}

static gboolean
is_fixed(const oct_cuda_comm *c) {
  return (c->rank->queue.flags & OCT_CUDA_FIXED_ORDER) != 0;
}

static gboolean
join_peers(oct_cuda_comm *c) {
  oct_cuda_rank *r = c->rank;
  c->ring->buffers[c->member] = oct_cuda_alloc(r, EXCHANGE_BYTES, "buffers of sums");
  c->ring->signals[c->member] = oct_cuda_alloc(r, OCT_CUDA_SIGNAL_BYTES, "signals of sums");
  c->failed = oct_cuda_alloc_pinned(r, sizeof *c->failed, "signals of sums");
  if (oct_cuda_has_failed(r))
    return FALSE;
  pthread_mutex_lock(&c->circle->lock);
  c->ring->failed[c->member] = c->failed;
  pthread_mutex_unlock(&c->circle->lock);
  if (!oct_cuda_group_meet_some(r->group, &c->ring->meeting))
    return FALSE;
  gint64 wait_ns = r->group->options->deadline_ns + LATER_NS;
  c->peers = (oct_cuda_peers){.rank = c->member,
                              .n = c->n,
                              .buffer_bytes = EXCHANGE_BYTES,
                              .failed = c->failed,
                              .timeout_cycles = oct_cuda_rank_cycles(r, wait_ns)};
  memcpy(c->peers.buffers, c->ring->buffers, sizeof c->peers.buffers);
  memcpy(c->peers.signals, c->ring->signals, sizeof c->peers.signals);
  c->has_peers = all_reach(c);
  /* NCCL's order is not known. Of two terms there is one. */
  if (!c->has_peers && is_fixed(c) && c->n > 2)
    oct_cuda_fail(r,
                  "a fixed order over more than two GPUs needs each to reach the others' memory");
  return !oct_cuda_has_failed(r);
}

/* ---------------------------------------------------------------- life cycle */

static gboolean
join_shared(oct_cuda_comm *c, gsize elements) {
  oct_cuda_rank *r = c->rank;
  c->sum = oct_cuda_alloc(r, elements * oct_cuda_type_bytes(oct_cuda_rank_type(r)), "sums");
  c->ring->written[c->member] = oct_cuda_event_new(r);
  c->ring->taken[c->member] = oct_cuda_event_new(r);
  return !oct_cuda_has_failed(r) && oct_cuda_group_meet_some(r->group, &c->ring->meeting);
}

/* Rank (stage, domain, tensor) in its ring. */
static void
place(oct_cuda_comm *c) {
  const oct_cuda_rank *r = c->rank;
  gboolean domains = c->circle->kind == OCT_CUDA_CIRCLE_DOMAINS;
  guint32 before = r->stage * r->group->n_tensor; /* rings of domains in earlier stages */
  c->n = c->circle->n;
  c->member = domains ? r->domain : r->tensor % c->n;
  c->stride = domains ? r->group->n_tensor : 1;
  c->first = r->index - c->member * c->stride;
  c->ring = &c->circle->rings[domains ? before + r->tensor : r->index / c->n];
}

oct_cuda_comm *
oct_cuda_comm_new(oct_cuda_rank *r, oct_cuda_circle *circle, gsize sum_elements,
                  gsize gathered_elements) {
  oct_cuda_comm *c = g_new0(oct_cuda_comm, 1);
  c->rank = r;
  c->circle = circle;
  c->seat = &circle->seats[r->index];
  place(c);
  gboolean fine = c->n == 1;
  if (c->n > 1 && r->group->shared_gpus) {
    fine = join_shared(c, sum_elements);
  } else if (c->n > 1) {
    c->gathered = oct_cuda_alloc(r, gathered_elements * sizeof(float), "gathered logits");
    fine = c->gathered != NULL && join_nccl(c) &&
           (circle->kind != OCT_CUDA_CIRCLE_TENSOR || join_peers(c));
  }
  if (!fine)
    g_clear_pointer(&c, oct_cuda_comm_free);
  return c;
}

void
oct_cuda_comm_free(oct_cuda_comm *c) {
  if (c == NULL)
    return;
  oct_cuda_seat_abort(c->seat);
  pthread_mutex_lock(&c->circle->lock);
  c->ring->failed[c->member] = NULL;
  pthread_mutex_unlock(&c->circle->lock);
  if (c->ring->written[c->member] != NULL)
    (void)cudaEventDestroy(c->ring->written[c->member]);
  if (c->ring->taken[c->member] != NULL)
    (void)cudaEventDestroy(c->ring->taken[c->member]);
  g_free(c);
}

gboolean
oct_cuda_comm_is_lost(const oct_cuda_comm *c) {
  return c->failed != NULL && __atomic_load_n(c->failed, __ATOMIC_ACQUIRE) != 0;
}

gboolean
oct_cuda_comm_has_graphs(const oct_cuda_comm *c) {
  return c->n == 1 || !c->rank->group->shared_gpus;
}

/* ---------------------------------------------------------------- ranks of one GPU */

/* Everybody's array is written, and stays until everybody has taken it. */
static gboolean
begin_shared(oct_cuda_comm *c, const void *x) {
  oct_cuda_rank *r = c->rank;
  c->ring->sources[c->member] = x;
  if (!oct_cuda_note(r, cudaEventRecord(c->ring->written[c->member], r->compute), "an event") ||
      !oct_cuda_group_meet_some(r->group, &c->ring->meeting))
    return FALSE;
  for (guint32 i = 0; i < c->n; i++)
    if (!oct_cuda_note(r, cudaStreamWaitEvent(r->compute, c->ring->written[i], 0), "an event"))
      return FALSE;
  return TRUE;
}

static gboolean
end_shared(oct_cuda_comm *c) {
  oct_cuda_rank *r = c->rank;
  if (!oct_cuda_note(r, cudaEventRecord(c->ring->taken[c->member], r->compute), "an event") ||
      !oct_cuda_group_meet_some(r->group, &c->ring->meeting))
    return FALSE;
  for (guint32 i = 0; i < c->n; i++)
    if (!oct_cuda_note(r, cudaStreamWaitEvent(r->compute, c->ring->taken[i], 0), "an event"))
      return FALSE;
  /* Nobody records its events again before all have enqueued their waits for them. */
  return oct_cuda_group_meet_some(r->group, &c->ring->meeting);
}

/* ---------------------------------------------------------------- use */

static gboolean
norm(oct_cuda_comm *c, const oct_cuda_sum *call, const void *x) {
  const oct_cuda_norm n = {.type = oct_cuda_rank_type(c->rank),
                           .residual_type = OCT_CUDA_F32,
                           .n = call->n,
                           .width = call->width,
                           .x = x,
                           .x_stride = call->width,
                           .parts = call->parts,
                           .residual = call->residual,
                           .residual_stride = call->width,
                           .weight = call->weight,
                           .eps = call->eps,
                           .out = call->out,
                           .out_stride = call->width,
                           .narrow = c->n == 1 ? call->narrow : NULL,
                           .narrow_scale = call->narrow_scale};
  return oct_cuda_note(c->rank, oct_cuda_rms_norm(&c->rank->queue, &n), "a norm");
}

/* What is done with a complete sum x. */
static gboolean
finish(oct_cuda_comm *c, const oct_cuda_sum *call, const void *x) {
  gsize bytes = (gsize)call->n * call->width * oct_cuda_type_bytes(oct_cuda_rank_type(c->rank));
  if (call->residual != NULL || call->weight != NULL)
    return norm(c, call, x);
  return x == call->out ||
         oct_cuda_note(
             c->rank,
             cudaMemcpyAsync(call->out, x, bytes, cudaMemcpyDeviceToDevice, c->rank->compute),
             "a sum over ranks");
}

/* Rows [first, first + n), by a kernel over peers' memory. */
static int
sum_rows(oct_cuda_comm *c, const oct_cuda_sum *call, guint32 first, guint32 n,
         oct_cuda_reduce_way way) {
  oct_cuda_type type = oct_cuda_rank_type(c->rank);
  gsize at = (gsize)first * call->width, bytes = at * oct_cuda_type_bytes(type);
  const oct_cuda_all_reduce a = {.type = type,
                                 .residual_type = OCT_CUDA_F32,
                                 .n = n,
                                 .width = call->width,
                                 .x = (guint8 *)call->x + bytes,
                                 .residual = call->residual != NULL ? call->residual + at : NULL,
                                 .weight = call->weight,
                                 .eps = call->eps,
                                 .out = call->out != NULL ? (guint8 *)call->out + bytes : NULL,
                                 .way = way};
  return oct_cuda_all_reduce_norm(&c->rank->queue, &c->peers, &a);
}

/* FALSE: too large, or there is no such kernel; nothing was done. In a fixed order some rows at a
 * time: other ways round a sum once more, or add up in an order that their number gives. */
static gboolean
sum_by_peers(oct_cuda_comm *c, const oct_cuda_sum *call, gboolean *fine) {
  gsize row_bytes = call->width * oct_cuda_type_bytes(oct_cuda_rank_type(c->rank));
  if (!c->has_peers || (call->out == NULL && !is_fixed(c)))
    return FALSE;
  for (guint32 first = 0, n = 0; first < call->n; first += n) {
    n = call->n - first;
    oct_cuda_reduce_way way = is_fixed(c) ? oct_cuda_all_reduce_fixed(&c->peers, &n, row_bytes)
                                          : oct_cuda_all_reduce_way(&c->peers, n, row_bytes);
    int result =
        way == OCT_CUDA_REDUCE_NONE ? OCT_CUDA_UNSUPPORTED : sum_rows(c, call, first, n, way);
    if (result == OCT_CUDA_UNSUPPORTED && first == 0)
      return FALSE;
    *fine = oct_cuda_note(c->rank, result, "a sum over ranks");
    if (!*fine)
      break;
  }
  return TRUE;
}

gboolean
oct_cuda_comm_sum(oct_cuda_comm *c, const oct_cuda_sum *call) {
  oct_cuda_type type = oct_cuda_rank_type(c->rank);
  gsize elements = (gsize)call->n * call->width;
  gboolean fine = FALSE;
  oct_assert(call->parts == 0 || (c->n == 1 && call->residual != NULL));
  if (c->n == 1)
    return finish(c, call, call->x);
  if (c->rank->group->shared_gpus)
    return begin_shared(c, call->x) &&
           oct_cuda_note(
               c->rank,
               oct_glue_sum(c->rank->compute, type, c->ring->sources, c->n, elements, c->sum),
               "a sum over ranks") &&
           end_shared(c) && finish(c, call, c->sum);
  if (sum_by_peers(c, call, &fine))
    return fine;
  /* Of two terms there is one order. */
  if (is_fixed(c) && c->n > 2)
    return oct_cuda_note(c->rank, OCT_CUDA_UNSUPPORTED, "a sum over ranks in a fixed order");
  return meet(c, &(oct_cuda_meet){OCT_CUDA_MEET_SUM, sum_type(c), elements, call->x, call->x,
                                  "a sum"}) &&
         finish(c, call, call->x);
}

/* Columns of one rank into their place. */
static gboolean
place_columns(oct_cuda_comm *c, const float *from, guint32 n, guint32 width, guint32 rank,
              float *out) {
  gsize row = width * sizeof *out;
  return oct_cuda_note(c->rank,
                       cudaMemcpy2DAsync(out + (gsize)rank * width, row * c->n, from, row, row, n,
                                         cudaMemcpyDefault, c->rank->compute),
                       "gathered columns");
}

static gboolean
gather_shared(oct_cuda_comm *c, const float *x, guint32 n, guint32 width, float *out) {
  if (!begin_shared(c, x))
    return FALSE;
  for (guint32 i = 0; i < c->n; i++)
    if (!place_columns(c, c->ring->sources[i], n, width, i, out))
      return FALSE;
  return end_shared(c);
}

gboolean
oct_cuda_comm_gather(oct_cuda_comm *c, const float *x, guint32 n, guint32 width, float *out) {
  gsize each = (gsize)n * width;
  if (c->n == 1)
    return place_columns(c, x, n, width, 0, out);
  if (c->rank->group->shared_gpus)
    return gather_shared(c, x, n, width, out);
  if (!meet(c,
            &(oct_cuda_meet){OCT_CUDA_MEET_GATHER, ncclFloat32, each, x, c->gathered, "gathering"}))
    return FALSE;
  for (guint32 i = 0; i < c->n; i++)
    if (!place_columns(c, c->gathered + i * each, n, width, i, out))
      return FALSE;
  return TRUE;
}

/* Where NCCL leaves the rows of all ranks. */
static gboolean
gather_rows(oct_cuda_comm *c, const oct_cuda_gather_parts *call, const void **sources) {
  gsize bytes = (gsize)call->n * call->row_bytes;
  for (guint32 i = 0; i < c->n; i++)
    sources[i] = (const guint8 *)c->gathered + i * bytes;
  return meet(c, &(oct_cuda_meet){OCT_CUDA_MEET_GATHER, ncclInt8, bytes, call->x, c->gathered,
                                  "gathering"});
}

gboolean
oct_cuda_comm_gather_parts(oct_cuda_comm *c, const oct_cuda_gather_parts *call) {
  const char *what = "gathered columns";
  oct_cuda_queue *queue = &c->rank->queue;
  const void *sources[OCT_CUDA_PEERS_MAX] = {call->x};
  if (c->rank->group->shared_gpus && c->n > 1)
    return begin_shared(c, call->x) &&
           oct_cuda_note(c->rank, oct_cuda_gather_place(queue, c->ring->sources, c->n, call),
                         what) &&
           end_shared(c);
  if (c->has_peers && oct_cuda_gather_can(&c->peers, call->n, call->row_bytes))
    return oct_cuda_note(c->rank, oct_cuda_gather_columns(queue, &c->peers, call), what);
  if (c->n > 1 && !gather_rows(c, call, sources))
    return FALSE;
  return oct_cuda_note(c->rank, oct_cuda_gather_place(queue, sources, c->n, call), what);
}

gboolean
oct_cuda_comm_gather_runs(oct_cuda_comm *c, const void *x, gsize bytes, void *out) {
  oct_cuda_rank *r = c->rank;
  if (!r->group->shared_gpus)
    return meet(c, &(oct_cuda_meet){OCT_CUDA_MEET_GATHER, ncclInt8, bytes, x, out, "gathering"});
  if (!begin_shared(c, x))
    return FALSE;
  for (guint32 i = 0; i < c->n; i++)
    if (!oct_cuda_note(r,
                       cudaMemcpyAsync((guint8 *)out + i * bytes, c->ring->sources[i], bytes,
                                       cudaMemcpyDefault, r->compute),
                       "gathered rows"))
      return FALSE;
  return end_shared(c);
}

/* In the order of ranks, which NCCL's sums have not. */
static gboolean
sum_exchanged(oct_cuda_comm *c, const void *x, gsize elements, void *room, void *out) {
  oct_cuda_rank *r = c->rank;
  oct_cuda_type type = oct_cuda_rank_type(r);
  gsize bytes = elements * oct_cuda_type_bytes(type);
  const void *parts[OCT_CUDA_PEERS_MAX];
  for (guint32 i = 0; i < c->n; i++)
    parts[i] = (const guint8 *)room + i * bytes;
  return oct_cuda_comm_exchange(c, x, bytes, room) &&
         oct_cuda_note(r, oct_glue_sum(r->compute, type, parts, c->n, elements, out),
                       "scattered sums");
}

gboolean
oct_cuda_comm_scatter_sums(oct_cuda_comm *c, const void *x, gsize elements, void *room, void *out) {
  oct_cuda_rank *r = c->rank;
  oct_cuda_type type = oct_cuda_rank_type(r);
  const void *parts[OCT_CUDA_PEERS_MAX];
  if (!r->group->shared_gpus && is_fixed(c))
    return sum_exchanged(c, x, elements, room, out);
  if (!r->group->shared_gpus)
    return meet(c, &(oct_cuda_meet){OCT_CUDA_MEET_SCATTER_SUMS, sum_type(c), elements, x, out,
                                    "scattered sums"});
  if (!begin_shared(c, x))
    return FALSE;
  for (guint32 i = 0; i < c->n; i++)
    parts[i] =
        (const guint8 *)c->ring->sources[i] + c->member * elements * oct_cuda_type_bytes(type);
  return oct_cuda_note(r, oct_glue_sum(r->compute, type, parts, c->n, elements, out),
                       "scattered sums") &&
         end_shared(c);
}

gboolean
oct_cuda_comm_exchange(oct_cuda_comm *c, const void *x, gsize bytes, void *out) {
  oct_cuda_rank *r = c->rank;
  if (!r->group->shared_gpus)
    return meet(c,
                &(oct_cuda_meet){OCT_CUDA_MEET_EXCHANGE, ncclInt8, bytes, x, out, "an exchange"});
  if (!begin_shared(c, x))
    return FALSE;
  for (guint32 i = 0; i < c->n; i++)
    if (!oct_cuda_note(r,
                       cudaMemcpyAsync((guint8 *)out + i * bytes,
                                       (const guint8 *)c->ring->sources[i] + c->member * bytes,
                                       bytes, cudaMemcpyDefault, r->compute),
                       "an exchange"))
      return FALSE;
  return end_shared(c);
}
