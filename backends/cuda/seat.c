#include "backends/cuda/seat.h"

#include <time.h>

#define NAP_NS 100000

/* ---------------------------------------------------------------- life cycle */

void
oct_cuda_seat_init(oct_cuda_seat *s) {
  *s = (oct_cuda_seat){.comm = NULL};
  pthread_mutex_init(&s->lock, NULL);
}

void
oct_cuda_seat_clear(oct_cuda_seat *s) {
  oct_cuda_seat_abort(s);
  pthread_mutex_destroy(&s->lock);
}

void
oct_cuda_seat_abort(oct_cuda_seat *s) {
  pthread_mutex_lock(&s->lock);
  if (s->comm != NULL)
    (void)s->nccl->ncclCommAbort(s->comm);
  s->comm = NULL;
  s->aborted = TRUE;
  pthread_mutex_unlock(&s->lock);
}

/* ---------------------------------------------------------------- calls */

static gboolean
is_under_way(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

/* What has become of a call that was in progress. */
static ncclResult_t
ask(oct_cuda_seat *s) {
  ncclResult_t result = ncclInvalidUsage;
  pthread_mutex_lock(&s->lock);
  if (s->comm != NULL && s->nccl->ncclCommGetAsyncError(s->comm, &result) != ncclSuccess)
    result = ncclInternalError;
  pthread_mutex_unlock(&s->lock);
  return result;
}

/* Non-blocking calls: what is in progress is waited for, as long as the deadline says. */
static gboolean
settle(oct_cuda_seat *s, oct_cuda_rank *r, ncclResult_t result, const char *what) {
  const struct timespec nap = {.tv_nsec = NAP_NS};
  const gint64 began_us = g_get_monotonic_time(), most_us = r->group->options->deadline_ns / 1000;
  while (result == ncclInProgress && !oct_cuda_group_is_broken(r->group) &&
         g_get_monotonic_time() - began_us <= most_us) {
    nanosleep(&nap, NULL);
    result = ask(s);
  }
  if (result == ncclSuccess)
    return TRUE;
  /* Of a broken group this is not the first failure, and not told. */
  char message[96];
  (void)g_snprintf(message, sizeof message, "GPU %u: NCCL: %s: %s", r->device, what,
                   result == ncclInProgress ? "takes longer than the deadline"
                                            : s->nccl->ncclGetErrorString(result));
  oct_cuda_fail(r, message);
  return FALSE;
}

gboolean
oct_cuda_seat_join(oct_cuda_seat *s, oct_cuda_rank *r, const oct_nccl *nccl, const ncclUniqueId *id,
                   guint32 n, guint32 member) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = NULL;
  ncclResult_t result = ncclInvalidUsage;
  config.blocking = 0;
  pthread_mutex_lock(&s->lock);
  s->nccl = nccl;
  s->n = n;
  if (!s->aborted)
    result = nccl->ncclCommInitRankConfig(&comm, (int)n, *id, (int)member, &config);
  if (is_under_way(result))
    s->comm = comm;
  pthread_mutex_unlock(&s->lock);
  return settle(s, r, result, "joining");
}

/* Of bytes. */
static ncclResult_t
exchange(const oct_cuda_seat *s, cudaStream_t stream, const oct_cuda_meet *m) {
  ncclResult_t result = s->nccl->ncclGroupStart();
  for (guint32 i = 0; i < s->n && is_under_way(result); i++) {
    const guint8 *x = (const guint8 *)m->x + i * m->count;
    guint8 *out = (guint8 *)m->out + i * m->count;
    result = s->nccl->ncclSend(x, m->count, ncclInt8, (int)i, s->comm, stream);
    if (is_under_way(result))
      result = s->nccl->ncclRecv(out, m->count, ncclInt8, (int)i, s->comm, stream);
  }
  ncclResult_t ended = s->nccl->ncclGroupEnd();
  return is_under_way(result) ? ended : result;
}

static ncclResult_t
enqueue(const oct_cuda_seat *s, cudaStream_t stream, const oct_cuda_meet *m) {
  const oct_nccl *nccl = s->nccl;
  switch (m->kind) {
  case OCT_CUDA_MEET_SUM:
    return nccl->ncclAllReduce(m->x, m->out, m->count, m->type, ncclSum, s->comm, stream);
  case OCT_CUDA_MEET_GATHER:
    return nccl->ncclAllGather(m->x, m->out, m->count, m->type, s->comm, stream);
  case OCT_CUDA_MEET_SCATTER_SUMS:
    return nccl->ncclReduceScatter(m->x, m->out, m->count, m->type, ncclSum, s->comm, stream);
  case OCT_CUDA_MEET_EXCHANGE:
    return exchange(s, stream, m);
  default:
    return ncclInvalidArgument;
  }
}

gboolean
oct_cuda_seat_meet(oct_cuda_seat *s, oct_cuda_rank *r, const oct_cuda_meet *m) {
  pthread_mutex_lock(&s->lock);
  ncclResult_t result = s->comm != NULL ? enqueue(s, r->compute, m) : ncclInvalidUsage;
  pthread_mutex_unlock(&s->lock);
  return settle(s, r, result, m->what);
}
