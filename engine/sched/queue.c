/* The waiting queue of a KV domain: a binary heap in the policy's order. */
#include "engine/sched/internal.h"

gboolean
oct_seq_before(const oct_seq *a, const oct_seq *b) {
  if (a->rank_class != b->rank_class)
    return a->rank_class < b->rank_class;
  if (a->rank != b->rank)
    return a->rank < b->rank;
  if (a->request->order != b->request->order)
    return a->request->order < b->request->order;
  return a->choice < b->choice;
}

static void
place(oct_queue *q, guint32 i, oct_seq *seq) {
  q->heap[i] = seq;
  seq->heap_index = i;
}

static void
sift_up(oct_queue *q, guint32 i) {
  oct_seq *seq = q->heap[i];
  for (; i > 0 && oct_seq_before(seq, q->heap[(i - 1) / 2]); i = (i - 1) / 2)
    place(q, i, q->heap[(i - 1) / 2]);
  place(q, i, seq);
}

static void
sift_down(oct_queue *q, guint32 i) {
  oct_seq *seq = q->heap[i];
  for (;;) {
    guint32 child = 2 * i + 1;
    if (child >= q->n)
      break;
    if (child + 1 < q->n && oct_seq_before(q->heap[child + 1], q->heap[child]))
      child++;
    if (!oct_seq_before(q->heap[child], seq))
      break;
    place(q, i, q->heap[child]);
    i = child;
  }
  place(q, i, seq);
}

void
oct_queue_push(oct_engine *engine, oct_seq *seq, gboolean requeued) {
  oct_assert(seq->state == OCT_SEQ_WAITING && seq->heap_index == OCT_NO_INDEX);
  oct_kv_domain *d = &engine->domains[seq->domain];
  oct_queue *q = &d->queue;
  engine->policy->rank(engine, seq, requeued);
  if (q->n == q->capacity) {
    q->capacity = MAX(64, q->capacity * 2);
    q->heap = g_renew(oct_seq *, q->heap, q->capacity);
  }
  place(q, q->n++, seq);
  sift_up(q, q->n - 1);
  engine->queued_requests++;
  engine->queued_tokens += seq->request->prompt;
  if (q->heap[0] == seq)
    d->blocked = FALSE;
}

void
oct_queue_remove(oct_engine *engine, oct_seq *seq) {
  oct_queue *q = &engine->domains[seq->domain].queue;
  guint32 i = seq->heap_index;
  oct_assert(i < q->n && q->heap[i] == seq);
  oct_seq *last = q->heap[--q->n];
  seq->heap_index = OCT_NO_INDEX;
  if (last != seq) {
    place(q, i, last);
    sift_up(q, i);
    sift_down(q, last->heap_index);
  }
  oct_kv_domain *d = &engine->domains[seq->domain];
  if (i == 0)
    d->blocked = FALSE;
  if (d->waiter == seq)
    d->waiter = NULL;
  engine->queued_requests--;
  engine->queued_tokens -= seq->request->prompt;
}

oct_seq *
oct_queue_head(const oct_queue *queue) {
  return queue->n > 0 ? queue->heap[0] : NULL;
}
