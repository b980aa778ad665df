/* priority: the most urgent class first, tenants within a class in fair shares.
 *
 * Smaller priorities are more urgent, as in vLLM. Within one priority tenants share by start-time
 * fair queueing (Goyal, Vin and Cheng 1996): a request's rank is the virtual time at which its
 * tenant's previous request would be served, counted in prompt + expected output tokens, and
 * virtual time is the rank of what the class admitted last. What is expected is the tenant's own
 * mean. When a request ends, its tenant's time is put right by what it really got: later requests
 * make up for it, those that wait already keep their rank. A tenant that sends ten times as much
 * waits longer; one that sends little passes by. The victim of preemption is the youngest of the
 * least urgent.
 *
 * engine->shares holds an entry per (tenant, priority), and one per priority for its virtual time.
 * Entries whose tenant has caught up say nothing any more and are swept out when there are many. */
#include "engine/sched/policy/policies.h"

#define SHARES_MAX 4096

typedef struct share {
  guint64 tenant;
  gint32 priority;
  gboolean is_class; /* the priority's virtual time */
  gint64 time;
  double mean_output; /* running mean of its choices' outputs, once it has had some */
  guint32 n_outputs;
} share;

#define OUTPUTS_MIN 4   /* from so many on its own mean says more than everybody's */
#define OUTPUTS_MAX 100 /* the mean is over about so many */

static guint
share_hash(gconstpointer p) {
  const share *s = p;
  return (guint)oct_mix64(s->tenant ^ ((guint64)(guint32)s->priority << 32) ^
                          (guint64)s->is_class << 16);
}

static gboolean
share_equal(gconstpointer a, gconstpointer b) {
  const share *x = a, *y = b;
  return x->tenant == y->tenant && x->priority == y->priority && x->is_class == y->is_class;
}

static share *
find_share(oct_engine *engine, share key) {
  if (engine->shares == NULL)
    engine->shares = g_hash_table_new_full(share_hash, share_equal, g_free, NULL);
  share *s = g_hash_table_lookup(engine->shares, &key);
  if (s == NULL) {
    s = g_memdup2(&key, sizeof key);
    s->time = 0;
    g_hash_table_add(engine->shares, s);
  }
  return s;
}

static gboolean
has_caught_up(gpointer key, gpointer value, gpointer engine) {
  (void)value;
  const share *s = key;
  const share class_key = {.priority = s->priority, .is_class = TRUE};
  const share *of_class = g_hash_table_lookup(((oct_engine *)engine)->shares, &class_key);
  return !s->is_class && of_class != NULL && s->time <= of_class->time;
}

static void
rank(oct_engine *engine, oct_seq *seq, gboolean requeued) {
  const oct_request *r = seq->request;
  seq->rank_class = r->priority;
  if (requeued)
    return; /* keeps its place */
  if (engine->shares != NULL && g_hash_table_size(engine->shares) > SHARES_MAX)
    g_hash_table_foreach_remove(engine->shares, has_caught_up, engine);
  gint64 now = find_share(engine, (share){.priority = r->priority, .is_class = TRUE})->time;
  share *s = find_share(engine, (share){.tenant = r->tenant, .priority = r->priority});
  seq->rank = MAX(now, s->time);
  double expected = s->n_outputs >= OUTPUTS_MIN ? s->mean_output : oct_expected_output(engine);
  seq->request->charged = r->n * (guint64)MIN((double)seq->max_out, expected);
  s->time = seq->rank + r->prompt + (gint64)r->charged;
}

static void
ended(oct_engine *engine, const oct_request *r) {
  share *s = find_share(engine, (share){.tenant = r->tenant, .priority = r->priority});
  guint64 used = 0;
  for (guint32 c = 0; c < r->n; c++)
    used += r->seqs[c] != NULL ? r->seqs[c]->n_out : 0;
  if (r->reason == OCT_END_STOP || r->reason == OCT_END_LENGTH) {
    s->n_outputs = MIN(s->n_outputs + 1, OUTPUTS_MAX);
    s->mean_output += ((double)used / r->n - s->mean_output) / s->n_outputs;
  }
  s->time += (gint64)used - (gint64)r->charged;
  if (r->admitted_ns < 0)
    s->time -= r->prompt;
}

static void
admitted(oct_engine *engine, oct_seq *seq) {
  share *s = find_share(engine, (share){.priority = seq->request->priority, .is_class = TRUE});
  s->time = MAX(s->time, seq->rank);
}

const oct_policy oct_policy_priority = {
    .name = "priority",
    .summary = "smaller priority first, tenants of one priority in fair shares",
    .rank = rank,
    .admitted = admitted,
    .ended = ended,
    .plan = oct_plan_decode_first,
    .victim = oct_victim_youngest,
};
