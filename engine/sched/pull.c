/* Prefill and decode pools: a sequence's cache moves from the engine that computed it to the one
 * that goes on.
 *
 * The exporting engine keeps the memory of an ended sequence, held like any other. The importing
 * one takes pages and a state slot of its own, has the backend copy into them beside its steps, and
 * lets the export go when the copies have ended, however they did. All of it happens in the one
 * thread that drives both engines. */
#include "engine/sched/internal.h"

gboolean
oct_engine_release_export(oct_engine *engine, oct_request_id id) {
  oct_seq *seq = g_hash_table_lookup(engine->exports, &id);
  if (seq == NULL)
    return FALSE;
  oct_engine_enter(engine);
  g_hash_table_remove(engine->exports, &id);
  seq->exported = FALSE;
  oct_kv_release_device(engine, seq, seq->epoch);
  oct_request_reap(engine, seq->request);
  oct_engine_leave(engine);
  return TRUE;
}

void
oct_pull_forget(oct_request *r) {
  if (r->import_engine != NULL)
    (void)oct_engine_release_export(r->import_engine, r->import_id);
  r->import_engine = NULL;
}

oct_seq *
oct_pull_source(const oct_seq *seq) {
  const oct_request *r = seq->request;
  if (r->import_engine == NULL || seq->on_host || seq->n_out > 0)
    return NULL;
  oct_seq *source = g_hash_table_lookup(r->import_engine->exports, &r->import_id);
  /* At least one token is left to compute here: it is what the next one is sampled from. */
  return source != NULL && source->done > 0 && source->done < seq->target ? source : NULL;
}

void
oct_pull_start(oct_engine *engine, oct_seq *seq, oct_seq *source, guint32 weight) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  gboolean taken = oct_kv_take_state(engine, seq);
  oct_assert(taken);
  oct_kv_take_live(engine, seq, source->done);
  oct_transfer *t = oct_transfer_new(engine, OCT_TRANSFER_PULL, seq->domain, seq);
  for (guint32 g = 0; g < engine->n_groups; g++) {
    gboolean state = engine->is_state[g];
    for (guint32 i = state ? 0 : seq->first_live[g]; i < (state ? 1 : seq->n_pages); i++) {
      oct_transfer_item it = {
          .group = g, .device = seq->table[g][i], .host = source->table[g][i], .index = i};
      g_array_append_val(t->items, it);
    }
  }
  seq->sched = seq->done = source->done;
  oct_seq_set_state(seq, OCT_SEQ_RELOADING);
  oct_seq_enter(engine, seq, weight);
  d->n_reloading++;
  engine->stats.pulls++;
  engine->stats.pulled_pages += t->items->len;
  oct_transfer_start(engine, t);
}

void
oct_pull_done(oct_engine *engine, oct_transfer *t, gboolean failed) {
  oct_seq *seq = t->seq;
  oct_pull_forget(seq->request);
  if (seq->state == OCT_SEQ_ENDED) {
    oct_kv_release_device(engine, seq, seq->epoch);
    return;
  }
  engine->domains[seq->domain].n_reloading--;
  if (failed) {
    oct_seq_leave(engine, seq);
    oct_kv_release_device(engine, seq, seq->epoch);
    oct_seq_restart(engine, seq);
    return;
  }
  seq->computed_max = seq->done; /* by the other engine */
  oct_seq_set_state(seq, OCT_SEQ_RUNNING);
  oct_kv_index(engine, seq, seq->done, 0);
}
