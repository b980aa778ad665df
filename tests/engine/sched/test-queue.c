/* The waiting queue against a sorted list. */
#include <stdlib.h>
#include <string.h>

#include "engine/sched/internal.h"

#define SEQS 300

typedef struct rig {
  oct_engine engine;
  oct_kv_domain domain;
  oct_policy policy;
  oct_request requests[SEQS];
  oct_seq seqs[SEQS];
  oct_rng rng;
} rig;

/* Few classes and ranks, so that ties are common. */
static void
rank(oct_engine *engine, oct_seq *seq, gboolean requeued) {
  (void)engine;
  seq->rank_class = requeued ? -1 : (gint32)(seq->key >> 8 & 3);
  seq->rank = (gint64)(seq->key & 7);
}

static rig *
rig_new(guint64 seed) {
  rig *r = g_new0(rig, 1);
  oct_rng_seed(&r->rng, seed, 1);
  r->policy.rank = rank;
  r->engine.policy = &r->policy;
  r->engine.domains = &r->domain;
  r->engine.n_domains = 1;
  for (guint32 i = 0; i < SEQS; i++) {
    /* Two sequences of a request share its arrival order. */
    r->requests[i].order = i / 2;
    r->requests[i].prompt = 1 + i;
    r->seqs[i].request = &r->requests[i];
    r->seqs[i].choice = i % 2;
    r->seqs[i].heap_index = OCT_NO_INDEX;
    r->seqs[i].key = oct_rng_u64(&r->rng);
  }
  return r;
}

static void
rig_free(rig *r) {
  g_free(r->domain.queue.heap);
  g_free(r);
}

static int
compare(gconstpointer a, gconstpointer b) {
  const oct_seq *x = *(oct_seq *const *)a, *y = *(oct_seq *const *)b;
  return oct_seq_before(x, y) ? -1 : oct_seq_before(y, x) ? 1 : 0;
}

/* Head, books and every entry's index, against all that wait, sorted. */
static void
check(const rig *r) {
  const oct_seq *waiting[SEQS];
  guint32 n = 0;
  guint64 tokens = 0;
  for (guint32 i = 0; i < SEQS; i++)
    if (r->seqs[i].heap_index != OCT_NO_INDEX) {
      waiting[n++] = &r->seqs[i];
      tokens += r->seqs[i].request->prompt;
      g_assert_true(r->domain.queue.heap[r->seqs[i].heap_index] == &r->seqs[i]);
    }
  qsort(waiting, n, sizeof *waiting, compare);
  g_assert_cmpuint(r->domain.queue.n, ==, n);
  g_assert_cmpuint(r->engine.queued_requests, ==, n);
  g_assert_cmpuint(r->engine.queued_tokens, ==, tokens);
  g_assert_true(oct_queue_head(&r->domain.queue) == (n > 0 ? waiting[0] : NULL));
}

static void
test_random(void) {
  rig *r = rig_new(1);
  for (int op = 0; op < 20000; op++) {
    oct_seq *seq = &r->seqs[oct_rng_below(&r->rng, SEQS)];
    r->domain.blocked = TRUE;
    const oct_seq *head = oct_queue_head(&r->domain.queue);
    if (seq->heap_index == OCT_NO_INDEX) {
      oct_queue_push(&r->engine, seq, oct_rng_below(&r->rng, 4) == 0);
      /* Another head may fit where the old one did not. */
      g_assert_cmpint(r->domain.blocked, ==, oct_queue_head(&r->domain.queue) == head);
    } else {
      oct_queue_remove(&r->engine, seq);
      g_assert_cmpuint(seq->heap_index, ==, OCT_NO_INDEX);
      g_assert_cmpint(r->domain.blocked, ==, seq != head);
    }
    check(r);
  }
  rig_free(r);
}

static void
test_drain(void) {
  rig *r = rig_new(2);
  for (guint32 i = 0; i < SEQS; i++)
    oct_queue_push(&r->engine, &r->seqs[i], FALSE);
  oct_seq *last = NULL;
  for (guint32 i = 0; i < SEQS; i++) {
    oct_seq *head = oct_queue_head(&r->domain.queue);
    g_assert_true(last == NULL || oct_seq_before(last, head));
    oct_queue_remove(&r->engine, head);
    last = head;
  }
  g_assert_null(oct_queue_head(&r->domain.queue));
  g_assert_cmpuint(r->engine.queued_tokens, ==, 0);
  rig_free(r);
}

/* Class, then rank, then arrival, then choice. */
static void
test_order(void) {
  rig *r = rig_new(3);
  oct_seq *a = &r->seqs[0], *b = &r->seqs[1], *c = &r->seqs[2];
  a->rank_class = b->rank_class = c->rank_class = 0;
  a->rank = b->rank = c->rank = 5;
  g_assert_true(oct_seq_before(a, b)); /* same request order, choice 0 before 1 */
  g_assert_true(oct_seq_before(b, c)); /* earlier arrival */
  g_assert_false(oct_seq_before(c, a));
  c->rank = 4;
  g_assert_true(oct_seq_before(c, a));
  a->rank_class = -1;
  g_assert_true(oct_seq_before(a, c));
  g_assert_false(oct_seq_before(a, a));
  rig_free(r);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/queue/has-the-first-of-a-sorted-list-at-its-head", test_random);
  g_test_add_func("/sched/queue/drains-in-order", test_drain);
  g_test_add_func("/sched/queue/orders-by-class-rank-arrival-choice", test_order);
  return g_test_run();
}
