/* What stages send each other: by copies into the receiver's memory, each followed by an event that
 * the receiver's stream waits for. On the host the receiver waits until the event was recorded,
 * which is soon: enqueuing waits for no device. */
#include "backends/cuda/stepper-internal.h"

/* One direction between two ranks; the buffers are the receiver's. */
typedef struct lane {
  void **buffers;      /* [ring] */
  cudaEvent_t *events; /* [ring]: the sender's */
  /* Guarded by the group's lock. */
  guint64 sent;   /* the latest step that was enqueued */
  gboolean ended; /* the sender sends no more */
} lane;

struct oct_cuda_mail {
  oct_cuda_group *group;
  guint32 ring;
  lane *hidden; /* [ranks]: to this rank, from the stage before */
  lane *tokens; /* [ranks]: to this rank, from the last stage */
};

static lane *
new_lanes(guint32 n, guint32 ring) {
  lane *lanes = g_new0(lane, n);
  for (guint32 i = 0; i < n; i++) {
    lanes[i].buffers = g_new0(void *, ring);
    lanes[i].events = g_new0(cudaEvent_t, ring);
  }
  return lanes;
}

static void
free_lanes(lane *lanes, guint32 n, guint32 ring) {
  for (guint32 i = 0; i < n; i++) {
    for (guint32 k = 0; k < ring; k++)
      if (lanes[i].events[k] != NULL)
        (void)cudaEventDestroy(lanes[i].events[k]);
    g_free(lanes[i].buffers);
    g_free(lanes[i].events);
  }
  g_free(lanes);
}

oct_cuda_mail *
oct_cuda_mail_new(oct_cuda_group *group, guint32 ring) {
  oct_cuda_mail *m = g_new0(oct_cuda_mail, 1);
  m->group = group;
  m->ring = ring;
  m->hidden = new_lanes(group->n_ranks, ring);
  m->tokens = new_lanes(group->n_ranks, ring);
  return m;
}

void
oct_cuda_mail_free(oct_cuda_mail *m) {
  if (m == NULL)
    return;
  free_lanes(m->hidden, m->group->n_ranks, m->ring);
  free_lanes(m->tokens, m->group->n_ranks, m->ring);
  g_free(m);
}

/* The rank of another stage with the same domain and tensor place. */
static guint32
rank_at(const oct_cuda_stepper *s, guint32 stage) {
  const oct_cuda_group *g = s->rank.group;
  return s->rank.index + (stage - s->rank.stage) * g->n_domains * g->n_tensor;
}

gboolean
oct_cuda_mail_join(oct_cuda_mail *m, oct_cuda_stepper *s) {
  oct_cuda_rank *r = &s->rank;
  lane *hidden = &m->hidden[r->index], *tokens = &m->tokens[r->index];
  const oct_cuda_snapshots snapshots = oct_cuda_forward_snapshots(s->forward);
  gsize bytes = s->max_tokens *
                (s->model.spec->hidden * sizeof(float) + snapshots.n_found * snapshots.token_bytes);
  for (guint32 i = 0; i < m->ring; i++) {
    if (!r->is_first)
      hidden->buffers[i] = oct_cuda_alloc(r, bytes, "hidden states of stages");
    if (!r->is_last)
      tokens->buffers[i] = oct_cuda_alloc(r, s->max_tokens * sizeof(guint32), "tokens of stages");
    /* Events belong to the sender's device. */
    if (!r->is_last)
      m->hidden[rank_at(s, r->stage + 1)].events[i] = oct_cuda_event_new(r);
    for (guint32 stage = 0; r->is_last && stage < r->stage; stage++)
      m->tokens[rank_at(s, stage)].events[i] = oct_cuda_event_new(r);
  }
  return !oct_cuda_has_failed(r) && oct_cuda_group_meet(r->group);
}

static gboolean
move(oct_cuda_stepper *s, void *to, const void *from, gsize bytes) {
  return bytes == 0 ||
         oct_cuda_note(&s->rank,
                       cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->rank.compute),
                       "a send between stages");
}

/* What was put into a lane's buffer is there for the receiver. */
static gboolean
tell(oct_cuda_mail *m, oct_cuda_stepper *s, lane *to, guint64 number, guint32 at) {
  gboolean fine =
      oct_cuda_note(&s->rank, cudaEventRecord(to->events[at], s->rank.compute), "an event");
  pthread_mutex_lock(&m->group->lock);
  to->sent = number;
  pthread_cond_broadcast(&m->group->moved);
  pthread_mutex_unlock(&m->group->lock);
  return fine;
}

static void
end_lane(oct_cuda_mail *m, lane *to) {
  pthread_mutex_lock(&m->group->lock);
  to->ended = TRUE;
  pthread_cond_broadcast(&m->group->moved);
  pthread_mutex_unlock(&m->group->lock);
}

/* The ranks of a stage leave after the same step, so that those of another find the same steps
 * sent: none of them goes on where the others cannot. */
void
oct_cuda_mail_leave(oct_cuda_mail *m, const oct_cuda_stepper *s) {
  const oct_cuda_rank *r = &s->rank;
  if (!r->is_last)
    end_lane(m, &m->hidden[rank_at(s, r->stage + 1)]);
  for (guint32 stage = 0; r->is_last && stage < r->stage; stage++)
    end_lane(m, &m->tokens[rank_at(s, stage)]);
}

static gboolean
receive_from(oct_cuda_mail *m, oct_cuda_stepper *s, lane *from, guint64 number, guint32 at) {
  pthread_mutex_lock(&m->group->lock);
  while (from->sent < number && !from->ended && !m->group->broken)
    pthread_cond_wait(&m->group->moved, &m->group->lock);
  gboolean there = from->sent >= number;
  pthread_mutex_unlock(&m->group->lock);
  return there && oct_cuda_note(&s->rank, cudaStreamWaitEvent(s->rank.compute, from->events[at], 0),
                                "an event");
}

/* In a buffer: the residual stream of the step's tokens, and behind it their snapshots. */
gboolean
oct_cuda_mail_receive(oct_cuda_mail *m, oct_cuda_stepper *s, guint64 number, guint32 at,
                      guint32 n_tokens) {
  lane *from = &m->hidden[s->rank.index];
  const oct_cuda_snapshots snapshots = oct_cuda_forward_snapshots(s->forward);
  gsize bytes = (gsize)n_tokens * s->model.spec->hidden * sizeof(float);
  return receive_from(m, s, from, number, at) &&
         move(s, oct_cuda_forward_residual(s->forward), from->buffers[at], bytes) &&
         move(s, snapshots.data, (const guint8 *)from->buffers[at] + bytes,
              n_tokens * snapshots.n_found * snapshots.token_bytes);
}

gboolean
oct_cuda_mail_send(oct_cuda_mail *m, oct_cuda_stepper *s, guint64 number, guint32 at,
                   guint32 n_tokens) {
  lane *to = &m->hidden[rank_at(s, s->rank.stage + 1)];
  const oct_cuda_snapshots snapshots = oct_cuda_forward_snapshots(s->forward);
  gsize bytes = (gsize)n_tokens * s->model.spec->hidden * sizeof(float);
  gboolean fine = move(s, to->buffers[at], oct_cuda_forward_residual(s->forward), bytes) &&
                  move(s, (guint8 *)to->buffers[at] + bytes, snapshots.data,
                       n_tokens * snapshots.n_left * snapshots.token_bytes);
  return tell(m, s, to, number, at) && fine;
}

gboolean
oct_cuda_mail_send_tokens(oct_cuda_mail *m, oct_cuda_stepper *s, guint64 number, guint32 at,
                          guint32 n_rows) {
  const oct_cuda_inputs *inputs = oct_cuda_stepper_inputs(s, at);
  for (guint32 stage = 0; stage < s->rank.stage; stage++) {
    lane *to = &m->tokens[rank_at(s, stage)];
    gboolean fine = move(s, to->buffers[at], inputs->tokens, n_rows * sizeof(guint32));
    if (!tell(m, s, to, number, at) || !fine)
      return FALSE;
  }
  return TRUE;
}

const guint32 *
oct_cuda_mail_tokens(oct_cuda_mail *m, oct_cuda_stepper *s, guint64 number, guint32 at) {
  lane *from = &m->tokens[s->rank.index];
  return receive_from(m, s, from, number, at) ? from->buffers[at] : NULL;
}
