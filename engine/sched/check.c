/* The books against one another: what swarm and debug runs ask after every step. */
#include "engine/sched/internal.h"

#define BROKEN(...)                                                                                \
  do {                                                                                             \
    g_set_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG, __VA_ARGS__);                    \
    return FALSE;                                                                                  \
  } while (0)

#define SEQ_FORMAT  "sequence %" G_GUINT64_FORMAT ".%u (%s)"
#define SEQ_ARGS(s) (s)->request->id, (s)->choice, oct_seq_state_name((s)->state)

typedef struct counts {
  guint32 *device[OCT_GROUPS], *host[OCT_GROUPS]; /* references that owners explain */
} counts;

static gboolean
add(guint32 *refs, const oct_pool *pool, guint32 item, const oct_seq *s, GError **error) {
  if (item >= oct_pool_total(pool))
    BROKEN(SEQ_FORMAT " holds item %u of a pool of %u", SEQ_ARGS(s), item, oct_pool_total(pool));
  refs[item]++;
  return TRUE;
}

/* Device items that the sequence holds: none while WAITING; an ENDED one has given back its own,
 * but for those that a transfer in flight still needs. */
static gboolean
count_seq(const oct_engine *e, const oct_seq *s, counts *c, GError **error) {
  const oct_kv_domain *d = &e->domains[s->domain];
  gboolean held = s->state == OCT_SEQ_RUNNING || s->state == OCT_SEQ_PREEMPTING ||
                  s->state == OCT_SEQ_RELOADING || s->state == OCT_SEQ_OFFLOADING ||
                  (s->state == OCT_SEQ_ENDED && (s->copies > 0 || s->exported));
  gboolean on_host = s->on_host || s->state == OCT_SEQ_OFFLOADING ||
                     (s->state == OCT_SEQ_ENDED && s->copies > 0 && s->offloading);
  for (guint32 g = 0; g < e->n_groups; g++) {
    gboolean state = e->is_state[g];
    guint32 n = state ? 1 : s->n_pages;
    for (guint32 i = state ? 0 : s->first_live[g]; i < n; i++) {
      if (held && (!state || s->has_state) &&
          !add(c->device[g], d->device[g], s->table[g][i], s, error))
        return FALSE;
      if (on_host && !add(c->host[g], d->host[g], s->host[g][i], s, error))
        return FALSE;
    }
    if (s->restore[g] != OCT_POOL_NONE && !add(c->device[g], d->device[g], s->restore[g], s, error))
      return FALSE;
  }
  return TRUE;
}

static gboolean
count_transfers(const oct_engine *e, guint32 domain, counts *c, GError **error) {
  (void)error;
  for (guint i = 0; i < e->transfers->len; i++) {
    const oct_transfer *t = g_ptr_array_index(e->transfers, i);
    if (t->ticket == 0 || t->domain != domain)
      continue;
    for (guint j = 0; j < t->items->len; j++) {
      const oct_transfer_item *it = &g_array_index(t->items, oct_transfer_item, j);
      /* Offloads: both ends are the sequence's own references. Reloads: the host end is the
       * transfer's. Spills: both. */
      if (t->kind == OCT_TRANSFER_SPILL)
        c->device[it->group][it->device]++;
      if (t->kind == OCT_TRANSFER_RELOAD || t->kind == OCT_TRANSFER_SPILL)
        c->host[it->group][it->host]++;
    }
  }
  return TRUE;
}

static gboolean
compare(const oct_engine *e, guint32 domain, const counts *c, GError **error) {
  const oct_kv_domain *d = &e->domains[domain];
  for (guint32 g = 0; g < e->n_groups; g++)
    for (int host = 0; host < 2; host++) {
      const oct_pool *pool = host ? d->host[g] : d->device[g];
      if (pool == NULL)
        continue;
      g_autoptr(GError) why = NULL;
      if (!oct_pool_check(pool, &why))
        BROKEN("domain %u group %u %s: %s", domain, g, host ? "host" : "device", why->message);
      const guint32 *refs = host ? c->host[g] : c->device[g];
      for (guint32 i = 0; i < oct_pool_total(pool); i++)
        if (oct_pool_refs(pool, i) != refs[i])
          BROKEN("domain %u group %u %s item %u has %u references, its owners explain %u", domain,
                 g, host ? "host" : "device", i, oct_pool_refs(pool, i), refs[i]);
    }
  return TRUE;
}

static gboolean
check_memory(const oct_engine *e, guint32 domain, GError **error) {
  const oct_kv_domain *d = &e->domains[domain];
  counts c = {0};
  gboolean good = TRUE;
  for (guint32 g = 0; g < e->n_groups; g++) {
    c.device[g] = g_new0(guint32, oct_pool_total(d->device[g]) + 1);
    if (d->host[g] != NULL)
      c.host[g] = g_new0(guint32, oct_pool_total(d->host[g]) + 1);
  }
  for (const oct_request *r = e->first; r != NULL && good; r = r->next)
    for (guint32 i = 0; i < r->n && good; i++)
      if (r->seqs[i] != NULL && r->seqs[i]->domain == domain)
        good = count_seq(e, r->seqs[i], &c, error);
  good = good && count_transfers(e, domain, &c, error) && compare(e, domain, &c, error);
  for (guint32 g = 0; g < e->n_groups; g++) {
    g_free(c.device[g]);
    g_free(c.host[g]);
  }
  return good;
}

static gboolean
check_seq(const oct_engine *e, const oct_seq *s, GError **error) {
  const oct_kv_domain *d = &e->domains[s->domain];
  const oct_request *r = s->request;
  gboolean waits = s->state == OCT_SEQ_WAITING, runs = s->run_index != OCT_NO_INDEX;
  if (s->exported && g_hash_table_lookup(e->exports, &r->id) != s)
    BROKEN(SEQ_FORMAT " is exported and cannot be found", SEQ_ARGS(s));
  if (waits != (s->heap_index != OCT_NO_INDEX))
    BROKEN(SEQ_FORMAT " is%s in the queue", SEQ_ARGS(s), waits ? " not" : "");
  if (waits && d->queue.heap[s->heap_index] != s)
    BROKEN(SEQ_FORMAT " is not where its queue index says", SEQ_ARGS(s));
  if (runs != (s->state == OCT_SEQ_RUNNING || s->state == OCT_SEQ_PREEMPTING ||
               s->state == OCT_SEQ_RELOADING))
    BROKEN(SEQ_FORMAT " is%s in the running list", SEQ_ARGS(s), runs ? "" : " not");
  if (runs && (s->run_index >= d->n_running || d->running[s->run_index] != s))
    BROKEN(SEQ_FORMAT " is not where its running index says", SEQ_ARGS(s));
  if ((s->slot != OCT_NO_INDEX) != (runs || s->unfinished > 0))
    BROKEN(SEQ_FORMAT " has slot %u with %u unfinished steps", SEQ_ARGS(s), s->slot, s->unfinished);
  if (s->n_masks > s->unfinished || (s->n_masks > 0 && s->state == OCT_SEQ_ENDED))
    BROKEN(SEQ_FORMAT " waits for %u masks with %u unfinished steps", SEQ_ARGS(s), s->n_masks,
           s->unfinished);
  if (s->verifying > 0 && s->state == OCT_SEQ_RUNNING && s->in_flight_out != s->verifying + 1)
    BROKEN(SEQ_FORMAT " verifies %u drafts with %u tokens in flight", SEQ_ARGS(s), s->verifying,
           s->in_flight_out);
  if (s->unfinished > 1 + e->config.run_ahead)
    BROKEN(SEQ_FORMAT " is in %u unfinished steps", SEQ_ARGS(s), s->unfinished);
  /* A void one counts afresh once it has left its steps. */
  gboolean is_void = s->no_offload && s->state == OCT_SEQ_PREEMPTING;
  if (s->state != OCT_SEQ_ENDED && !is_void &&
      (s->done > s->sched || s->n_out + s->in_flight_out > s->max_out ||
       s->sched > r->prompt + s->n_out + s->in_flight_out))
    BROKEN(SEQ_FORMAT ": done %u, sched %u, out %u + %u of %u", SEQ_ARGS(s), s->done, s->sched,
           s->n_out, s->in_flight_out, s->max_out);
  return TRUE;
}

static gboolean
check_lists(const oct_engine *e, GError **error) {
  guint64 queued = 0, queued_tokens = 0;
  guint32 slots = 0;
  for (const oct_request *r = e->first; r != NULL; r = r->next)
    for (guint32 i = 0; i < r->n; i++) {
      const oct_seq *s = r->seqs[i];
      if (s == NULL)
        continue;
      if (!check_seq(e, s, error))
        return FALSE;
      slots += s->slot != OCT_NO_INDEX;
      queued += s->state == OCT_SEQ_WAITING;
      queued_tokens += s->state == OCT_SEQ_WAITING ? r->prompt : 0;
    }
  if (queued != e->queued_requests || queued_tokens != e->queued_tokens)
    BROKEN("%" G_GUINT64_FORMAT " sequences wait, the engine counts %" G_GUINT64_FORMAT, queued,
           e->queued_requests);
  if (slots + e->n_free_slots != e->n_slots)
    BROKEN("%u slots are held and %u free, of %u", slots, e->n_free_slots, e->n_slots);
  for (guint32 d = 0; d < e->n_domains; d++) {
    guint32 weight = 0, lacking = 0;
    for (guint32 i = 0; i < e->domains[d].n_running; i++) {
      weight += e->domains[d].running[i]->weight;
      lacking += e->domains[d].running[i]->lacks != FALSE;
    }
    if (lacking != e->domains[d].n_lacking)
      BROKEN("in domain %u %u sequences lack memory, counted are %u", d, lacking,
             e->domains[d].n_lacking);
    if (weight != e->domains[d].weight || weight > e->config.max_num_seqs)
      BROKEN("domain %u runs %u sequences, counts %u, of %u", d, weight, e->domains[d].weight,
             e->config.max_num_seqs);
  }
  return TRUE;
}

/* Accepted = ended + live, each once. */
static gboolean
check_requests(const oct_engine *e, GError **error) {
  guint64 live = 0, ended = 0, fresh = 0;
  for (const oct_request *r = e->first; r != NULL; r = r->next) {
    live += r->n_ended < r->n;
    fresh += r->seqs[0]->state == OCT_SEQ_WAITING && !r->seqs[0]->counted;
  }
  for (int i = 0; i < OCT_END_COUNT; i++)
    ended += e->stats.ended[i];
  if (live + ended != e->stats.accepted)
    BROKEN("%" G_GUINT64_FORMAT " requests live and %" G_GUINT64_FORMAT " ended, %" G_GUINT64_FORMAT
           " were accepted",
           live, ended, e->stats.accepted);
  if (fresh > e->config.queue_max)
    BROKEN("%" G_GUINT64_FORMAT " requests wait that were never admitted, the limit is %u", fresh,
           e->config.queue_max);
  return TRUE;
}

gboolean
oct_engine_check(const oct_engine *e, GError **error) {
  if (!check_lists(e, error) || !check_requests(e, error) || !oct_residency_check(e, error) ||
      (e->drafter != NULL && !oct_draft_check(e, error)))
    return FALSE;
  for (guint32 d = 0; d < e->n_domains; d++)
    if (!check_memory(e, d, error))
      return FALSE;
  return TRUE;
}
