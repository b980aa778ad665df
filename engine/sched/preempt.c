/* Who gives up memory, and how: a preempted sequence leaves its unfinished steps, then goes to the
 * host or is computed again. When anybody has to is decided in plan.c. */
#include "engine/sched/internal.h"

gboolean
oct_memory_coming(const oct_engine *engine, guint32 domain, guint32 pages, guint32 states) {
  const oct_kv_domain *d = &engine->domains[domain];
  if (d->n_preempting > 0)
    return TRUE;
  /* Only what drains where something is missing: a state that drains is no page. */
  for (guint32 g = 0; engine->n_flights > 0 && g < engine->n_groups; g++)
    if ((engine->is_state[g] ? states : pages) > oct_pool_available(d->device[g]) &&
        oct_pool_count(d->device[g], OCT_ITEM_DRAINING) > 0)
      return TRUE;
  return FALSE;
}

void
oct_seq_rewind(oct_seq *seq) {
  const oct_request *r = seq->request;
  seq->sched = seq->done = seq->in_flight_out = seq->verifying = 0;
  seq->target = r->forked ? r->prompt + seq->n_out : r->prompt - 1;
  seq->depends_on = 0;
}

void
oct_seq_restart(oct_engine *engine, oct_seq *seq) {
  oct_seq_rewind(seq);
  oct_seq_set_state(seq, OCT_SEQ_WAITING);
  oct_queue_push(engine, seq, TRUE);
}

void
oct_preempt(oct_engine *engine, oct_seq *seq) {
  oct_seq_set_state(seq, OCT_SEQ_PREEMPTING);
  seq->request->preemptions++;
  engine->stats.preemptions++;
  engine->plan_preempted = TRUE;
  engine->domains[seq->domain].n_preempting++;
  if (engine->config.log != NULL)
    oct_log_printf(engine->config.log, "%" G_GINT64_FORMAT " preempt %" G_GUINT64_FORMAT ".%u",
                   engine->now, seq->request->id, seq->choice);
  if (seq->unfinished == 0)
    oct_preempt_finish(engine, seq);
}

/* Whether what the sequence holds is worth copying to the host: it is what a step has computed. A
 * snapshot that has not been restored into the sequence's own state yet stays in the prefix cache
 * anyway. */
static gboolean
may_offload(const oct_engine *engine, const oct_seq *seq) {
  gboolean restores =
      engine->first_state_group >= 0 && seq->restore[engine->first_state_group] != OCT_POOL_NONE;
  /* Copies begin at once: nothing that they read may be written by a step not submitted yet. */
  oct_assert(seq->epoch < engine->next_number);
  /* A mean of hidden states goes with the slot. */
  return engine->config.preemption != OCT_PREEMPT_RECOMPUTE && !engine->policy->always_recompute &&
         !seq->no_offload && !restores && seq->sched > 0 &&
         seq->request->pooling != OCT_POOLING_MEAN;
}

void
oct_preempt_finish(oct_engine *engine, oct_seq *seq) {
  oct_assert(seq->state == OCT_SEQ_PREEMPTING && seq->unfinished == 0 && seq->in_flight_out == 0);
  oct_seq_leave(engine, seq);
  if (may_offload(engine, seq) && oct_transfer_offload(engine, seq))
    return;
  engine->domains[seq->domain].n_preempting--;
  seq->no_offload = FALSE;
  oct_kv_name(engine, seq);
  oct_kv_release_device(engine, seq, seq->epoch);
  oct_seq_restart(engine, seq);
}

oct_seq *
oct_victim_youngest(oct_engine *engine, guint32 domain, oct_seq *needs) {
  (void)needs;
  const oct_kv_domain *d = &engine->domains[domain];
  oct_seq *worst = NULL;
  for (guint32 i = d->n_running; i-- > 0;) {
    oct_seq *s = d->running[i];
    if (!oct_plan_may_leave(engine, s))
      continue;
    if (worst == NULL || s->request->priority > worst->request->priority)
      worst = s;
  }
  return worst;
}
