/* What goes wrong, by severity: a request, a step, the instance, the world.
 *
 * After a failed step all that it and the steps behind it were to write is withdrawn from the
 * prefix index, also what a sequence that has ended since has left there. Its sequences are void:
 * results of steps in flight that still name them are dropped, and they start again from their
 * first token (the tokens already handed out stay). So are sequences that took from the index what
 * the failed step was to write, wherever they are: running, loading or on their way to the host.
 * Others go on: one bad request never kills another (invariant 5). */
#include <string.h>

#include "engine/sched/internal.h"

/* ---------------------------------------------------------------- steps */

static void
make_void(oct_engine *engine, oct_seq *seq, gboolean retry) {
  if (!retry || seq->retries >= engine->config.retries_max) {
    oct_request_end(engine, seq->request, OCT_END_FAILED);
    return;
  }
  oct_mask_release(engine, seq);
  seq->retries++;
  seq->void_until = seq->last_step;
  seq->in_flight_out = 0;
  seq->no_offload = TRUE;
  if (seq->state == OCT_SEQ_RUNNING) {
    oct_seq_set_state(seq, OCT_SEQ_PREEMPTING);
    engine->domains[seq->domain].n_preempting++;
  }
  if (seq->state == OCT_SEQ_PREEMPTING && seq->unfinished == 0)
    oct_preempt_finish(engine, seq);
}

/* What waits on the host was copied from what was never written: back to its first token. It keeps
 * its place in the queue. */
static void
forget_host(oct_engine *engine, oct_seq *seq) {
  oct_kv_release_host(engine, seq);
  oct_seq_rewind(seq);
  engine->domains[seq->domain].blocked = FALSE;
}

/* Sequences that took from the index what step `number` or a later one was to write: what later
 * steps write may rest on it. Copies in flight end first. */
static void
void_dependents(oct_engine *engine, guint64 number) {
  for (oct_request *r = engine->first; r != NULL; r = r->next) {
    for (guint32 c = 0; c < r->n; c++) {
      oct_seq *seq = r->seqs[c];
      if (seq == NULL || seq->depends_on < number || seq->void_until >= number)
        continue;
      if (seq->state == OCT_SEQ_RUNNING || seq->state == OCT_SEQ_PREEMPTING)
        make_void(engine, seq, TRUE);
      else if (seq->state == OCT_SEQ_RELOADING || seq->state == OCT_SEQ_OFFLOADING)
        seq->copies_void = TRUE;
      else if (seq->state == OCT_SEQ_WAITING && seq->on_host)
        forget_host(engine, seq);
    }
    oct_request_reap(engine, r);
  }
}

static void
step_failed(oct_engine *engine, const oct_fault *fault) {
  oct_flight *f = engine->n_flights > 0 ? oct_flight_at(engine, 0) : NULL;
  if (f == NULL || f->number != fault->number) {
    oct_instance_lost(engine, "a step failed that is not the oldest in flight");
    return;
  }
  engine->first_flight = (engine->first_flight + 1) % OCT_DEPTH_MAX;
  engine->n_flights--;
  engine->completed = f->number;
  oct_kv_withdraw_from(engine, f->number);
  oct_kv_complete(engine);
  oct_residency_step_failed(engine, f->number);
  engine->last_done_ns = engine->now;
  for (guint32 i = 0; i < f->n_slices; i++) {
    oct_seq *seq = f->slices[i].seq;
    seq->unfinished--;
    oct_mask_step_ended(engine, seq, f->number);
    if (seq->state == OCT_SEQ_ENDED)
      oct_seq_leave(engine, seq);
    else if (f->number > seq->void_until)
      make_void(engine, seq, fault->retryable != 0);
    else if (seq->state == OCT_SEQ_PREEMPTING && seq->unfinished == 0)
      oct_preempt_finish(engine, seq);
    oct_request_reap(engine, seq->request);
  }
  void_dependents(engine, f->number);
}

/* ---------------------------------------------------------------- the instance */

void
oct_instance_lost(oct_engine *engine, const char *why) {
  if (engine->lost[0] == '\0')
    g_strlcpy(engine->lost, why[0] != '\0' ? why : "lost", sizeof engine->lost);
}

/* Takes a sequence off the lost instance, as if it had never been admitted; its tokens stay. */
static void
unhook(oct_engine *engine, oct_seq *seq) {
  seq->unfinished = seq->n_masks = seq->verifying = 0;
  oct_seq_leave(engine, seq);
  seq->n_pages = seq->announced = seq->n_indexed = 0;
  memset(seq->first_live, 0, sizeof seq->first_live);
  seq->has_state = seq->on_host = seq->offloading = FALSE;
  seq->no_offload = seq->copies_void = FALSE;
  for (guint32 g = 0; g < OCT_GROUPS; g++)
    seq->restore[g] = OCT_POOL_NONE;
  seq->last_step = seq->epoch = seq->depends_on = seq->void_until = 0;
  seq->exported = FALSE;
  if (seq->state == OCT_SEQ_ENDED)
    return;
  if (seq->state == OCT_SEQ_WAITING) { /* its queue entry stays */
    oct_seq_rewind(seq);
    return;
  }
  seq->retries++;
  oct_seq_restart(engine, seq);
}

void
oct_instance_recover(oct_engine *engine, gboolean fatal) {
  if (engine->config.log != NULL)
    oct_log_printf(engine->config.log, "%" G_GINT64_FORMAT " lost %s", engine->now, engine->lost);
  engine->stats.lost++;
  memcpy(engine->down_reason, engine->lost, sizeof engine->lost);
  engine->lost[0] = 0;
  if (engine->instance != 0)
    oct_world_close(engine->world, engine->instance);
  engine->instance = 0;
  engine->is_open = FALSE;
  if (engine->drafter != NULL)
    oct_draft_close(engine);
  engine->n_flights = 0;
  engine->copies_out = 0;
  engine->mask_due_ns = OCT_TIME_NEVER;
  engine->next_number = 1;
  engine->completed = 0;
  engine->decode_step_ns = 0;
  engine->mixed_ns_per_token = 0;
  oct_transfer_drop_all(engine);
  g_hash_table_remove_all(engine->exports);
  oct_residency_reset(engine);
  for (oct_request *r = engine->first; r != NULL; r = r->next)
    for (guint32 c = 0; c < r->n; c++)
      if (r->seqs[c] != NULL)
        unhook(engine, r->seqs[c]);
  for (guint32 d = 0; d < engine->n_domains; d++) {
    oct_kv_domain *domain = &engine->domains[d];
    domain->n_preempting = domain->n_reloading = 0;
    domain->blocked = FALSE;
    domain->waiter = NULL;
    for (guint32 g = 0; g < engine->n_groups; g++) {
      oct_pool_reset(domain->device[g]);
      if (domain->host[g] != NULL)
        oct_pool_reset(domain->host[g]);
    }
  }
  g_autoptr(GError) error = NULL;
  /* Once more than a request is run again: one that takes its instance down each time is out of it
   * by then, and the others go on. */
  engine->reopen_attempts++;
  fatal |= engine->reopen_attempts > (guint64)engine->config.retries_max + 1;
  engine->state = OCT_ENGINE_RECOVERING;
  if (fatal || !oct_instance_open(engine, &error))
    engine->state = OCT_ENGINE_DEAD;
  for (oct_request *r = engine->first; r != NULL; r = r->next) {
    gboolean spent = engine->state == OCT_ENGINE_DEAD;
    for (guint32 c = 0; c < r->n; c++)
      spent |= r->seqs[c] != NULL && r->seqs[c]->retries > engine->config.retries_max;
    if (spent && r->n_ended < r->n)
      oct_request_end(engine, r, OCT_END_FAILED);
    oct_request_reap(engine, r);
  }
}

gboolean
oct_instance_open(oct_engine *engine, GError **error) {
  engine->open_progress_ns = engine->now;
  return oct_world_open(engine->world, &engine->config.instance, &engine->instance, error) &&
         (engine->drafter == NULL || oct_draft_open(engine, error));
}

void
oct_fault_handle(oct_engine *engine, const oct_fault *fault) {
  engine->stats.faults[MIN(fault->severity, OCT_SEVERITY_FATAL)]++;
  if (engine->config.log != NULL)
    oct_log_printf(engine->config.log, "%" G_GINT64_FORMAT " fault %u %s", engine->now,
                   fault->severity, fault->message);
  switch (fault->severity) {
  case OCT_SEVERITY_REQUEST:
    break; /* the step's result marks the slice */
  case OCT_SEVERITY_STEP:
    step_failed(engine, fault);
    break;
  case OCT_SEVERITY_INSTANCE:
    oct_instance_lost(engine, fault->message);
    break;
  case OCT_SEVERITY_FATAL:
    oct_instance_lost(engine, fault->message);
    engine->lost_fatal = TRUE;
    break;
  }
}
