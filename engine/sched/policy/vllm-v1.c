/* vllm-v1: the rules of vLLM's V1 scheduler, as planners run them today.
 *
 * First come, first served; running sequences in order of admission, whatever each needs next;
 * admission by the memory of the current chunk only; the newest running sequence is preempted,
 * forgets its cache, and goes back to the front of the queue. Nobody is admitted in a step that
 * preempted somebody. */
#include "engine/sched/policy/policies.h"

static void
rank(oct_engine *engine, oct_seq *seq, gboolean requeued) {
  seq->rank_class = requeued ? -1 : 0;
  /* The last one preempted goes to the very front. */
  seq->rank = requeued ? -(gint64)engine->stats.preemptions : 0;
}

static void
plan(oct_engine *engine, guint32 domain) {
  if (oct_plan_running(engine, domain))
    oct_plan_admissions(engine, domain);
}

static oct_seq *
newest(oct_engine *engine, guint32 domain, oct_seq *needs) {
  (void)needs;
  const oct_kv_domain *d = &engine->domains[domain];
  for (guint32 i = d->n_running; i-- > 0;)
    if (oct_plan_may_leave(engine, d->running[i]))
      return d->running[i];
  return NULL;
}

const oct_policy oct_policy_vllm_v1 = {
    .name = "vllm-v1",
    .summary = "vLLM's rules: FCFS, admission by chunk, preempt the newest, recompute",
    .rank = rank,
    .plan = plan,
    .victim = newest,
    .admit_by_chunk = TRUE,
    .always_recompute = TRUE,
};
