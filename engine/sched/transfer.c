/* The host tier: sequences and cached pages that move between device and host memory beside the
 * steps.
 *
 * A transfer leases both ends of each of its items by reference until its event, so that whatever
 * becomes of its sequence, nothing in flight is reused. A transfer that the backend cannot take yet
 * stays pending and is tried again on the next turn. */
#include "engine/sched/internal.h"

#define SPILL_AHEAD_MIN 256 /* items that can be taken without a loss: at least so many, */
#define SPILL_AHEAD     8   /* or one in so many of the device: prompts take hundreds at once; */
#define SPILL_ROOM      4   /* but of the host one in so many: what is on both is there in vain */
#define SPILL_BATCH_MAX 64  /* items of one spill: bounds how long copies queue behind it */

oct_transfer *
oct_transfer_new(oct_engine *engine, oct_transfer_kind kind, guint32 domain, oct_seq *seq) {
  oct_transfer *t = NULL;
  for (guint i = 0; i < engine->transfers->len && t == NULL; i++) {
    oct_transfer *old = g_ptr_array_index(engine->transfers, i);
    if (old->ticket == 0)
      t = old;
  }
  if (t == NULL) {
    t = g_new0(oct_transfer, 1);
    t->items = g_array_new(FALSE, FALSE, sizeof(oct_transfer_item));
    g_ptr_array_add(engine->transfers, t);
  }
  g_array_set_size(t->items, 0);
  t->ticket = engine->next_ticket++;
  t->kind = kind;
  t->domain = domain;
  t->seq = seq;
  t->pending = TRUE;
  engine->n_transfers++;
  if (seq != NULL)
    seq->copies++;
  return t;
}

void
oct_transfer_sent(oct_engine *engine) {
  if (engine->copies_out++ == 0)
    engine->copy_progress_ns = engine->now;
}

void
oct_transfer_start(oct_engine *engine, oct_transfer *t) {
  gboolean to_host = t->kind == OCT_TRANSFER_OFFLOAD || t->kind == OCT_TRANSFER_SPILL;
  g_array_set_size(engine->copies, 0);
  for (guint i = 0; i < t->items->len; i++) {
    const oct_transfer_item *it = &g_array_index(t->items, oct_transfer_item, i);
    oct_tier other = t->kind == OCT_TRANSFER_PULL ? OCT_TIER_DEVICE : OCT_TIER_HOST;
    oct_copy copy = {.kind = engine->is_state[it->group] ? OCT_COPY_STATE : OCT_COPY_PAGE,
                     .order = OCT_COPY_BESIDE,
                     .from_tier = to_host ? OCT_TIER_DEVICE : other,
                     .to_tier = to_host ? OCT_TIER_HOST : OCT_TIER_DEVICE,
                     .domain = (guint16)t->domain,
                     .group = (guint16)it->group,
                     .from = to_host ? it->device : it->host,
                     .to = to_host ? it->host : it->device};
    g_array_append_val(engine->copies, copy);
  }
  g_autoptr(GError) error = NULL;
  const oct_copy *copies = (const oct_copy *)(void *)engine->copies->data;
  oct_submit submit;
  if (t->kind == OCT_TRANSFER_PULL) {
    oct_seq *source = oct_pull_source(t->seq);
    oct_engine *from = t->seq->request->import_engine;
    if (source == NULL || from->instance == 0) { /* lost since: nothing was taken */
      oct_transfer_done(engine, t->ticket, TRUE);
      return;
    }
    submit = oct_world_pull(engine->world, engine->instance, from->instance, source->domain,
                            t->ticket, copies, engine->copies->len, &error);
  } else {
    submit = oct_world_copy(engine->world, engine->instance, t->ticket, copies, engine->copies->len,
                            &error);
  }
  t->pending = submit == OCT_SUBMIT_FULL;
  if (submit == OCT_SUBMIT_OK)
    oct_transfer_sent(engine);
  if (submit != OCT_SUBMIT_REFUSED)
    return;
  /* The peer may be lost before its engine hears of it; were it this instance, its fault says so.
   */
  if (t->kind == OCT_TRANSFER_PULL)
    oct_transfer_done(engine, t->ticket, TRUE);
  else
    oct_instance_lost(engine, error->message);
}

void
oct_transfer_retry(oct_engine *engine) {
  for (guint i = 0; i < engine->transfers->len && engine->n_transfers > 0; i++) {
    oct_transfer *t = g_ptr_array_index(engine->transfers, i);
    if (t->ticket != 0 && t->pending)
      oct_transfer_start(engine, t);
  }
}

/* ---------------------------------------------------------------- offload */

/* Whether the host has room for the sequence: items it has already (by content) need none, but
 * cached ones among them stop being available. And whether one transfer can bring it back. */
static gboolean
host_has_room(oct_engine *engine, oct_seq *seq) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  guint64 items = 0;
  for (guint32 g = 0; g < engine->n_groups; g++) {
    if (d->host[g] == NULL)
      return FALSE;
    guint32 need = 0;
    guint32 n = engine->is_state[g] ? 1 : seq->n_pages;
    for (guint32 i = engine->is_state[g] ? 0 : seq->first_live[g]; i < n; i++) {
      guint32 item = seq->table[g][i];
      guint32 there = oct_pool_indexed(d->device[g], item)
                          ? oct_pool_find(d->host[g], oct_pool_key(d->device[g], item))
                          : OCT_POOL_NONE;
      need += there == OCT_POOL_NONE || oct_pool_state(d->host[g], there) == OCT_ITEM_CACHED;
    }
    items += n;
    if (need > oct_pool_available(d->host[g]) || items > OCT_STEP_COPIES_MAX)
      return FALSE;
  }
  return TRUE;
}

gboolean
oct_transfer_offload(oct_engine *engine, oct_seq *seq) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  if (!host_has_room(engine, seq))
    return FALSE;
  oct_seq_reserve_pages(engine, seq, seq->n_pages);
  oct_transfer *t = oct_transfer_new(engine, OCT_TRANSFER_OFFLOAD, seq->domain, seq);
  /* References on what is there first: taking an item may evict. */
  for (int fresh = 0; fresh < 2; fresh++)
    for (guint32 g = 0; g < engine->n_groups; g++) {
      guint32 n = engine->is_state[g] ? 1 : seq->n_pages;
      for (guint32 i = engine->is_state[g] ? 0 : seq->first_live[g]; i < n; i++) {
        guint32 item = seq->table[g][i];
        if (fresh == 0) {
          seq->host[g][i] = oct_pool_indexed(d->device[g], item)
                                ? oct_pool_find(d->host[g], oct_pool_key(d->device[g], item))
                                : OCT_POOL_NONE;
          if (seq->host[g][i] != OCT_POOL_NONE)
            oct_pool_ref(d->host[g], seq->host[g][i]);
        } else if (seq->host[g][i] == OCT_POOL_NONE) {
          seq->host[g][i] = oct_pool_take(d->host[g]);
          oct_assert(seq->host[g][i] != OCT_POOL_NONE);
          oct_transfer_item it = {.group = g, .device = item, .host = seq->host[g][i], .index = i};
          g_array_append_val(t->items, it);
        }
      }
    }
  oct_seq_set_state(seq, OCT_SEQ_OFFLOADING);
  seq->offloading = TRUE;
  engine->stats.offloads++;
  engine->stats.offloaded_pages += t->items->len;
  if (t->items->len == 0)
    oct_transfer_done(engine, t->ticket, FALSE);
  else
    oct_transfer_start(engine, t);
  return TRUE;
}

/* Device memory goes back; what the sequence holds on the host keeps its shape. */
static void
release_device_only(oct_engine *engine, oct_seq *seq) {
  guint32 n_pages = seq->n_pages, first_live[OCT_GROUPS];
  for (guint32 g = 0; g < OCT_GROUPS; g++)
    first_live[g] = seq->first_live[g];
  oct_kv_release_device(engine, seq, seq->epoch);
  seq->n_pages = n_pages;
  for (guint32 g = 0; g < OCT_GROUPS; g++)
    seq->first_live[g] = first_live[g];
}

static void
offloaded(oct_engine *engine, oct_transfer *t, gboolean failed) {
  oct_seq *seq = t->seq;
  oct_kv_domain *d = &engine->domains[seq->domain];
  failed |= seq->copies_void;
  seq->copies_void = FALSE;
  for (guint i = 0; !failed && i < t->items->len; i++) {
    const oct_transfer_item *it = &g_array_index(t->items, oct_transfer_item, i);
    guint32 end = (it->index + 1) * engine->page_tokens;
    if (engine->is_state[it->group] || end > seq->done || it->index >= seq->n_hashes ||
        !engine->config.prefix_caching)
      continue;
    (void)oct_pool_index(d->host[it->group], it->host, seq->hashes[it->index], 0);
  }
  release_device_only(engine, seq);
  seq->offloading = FALSE;
  seq->on_host = TRUE;
  if (seq->state == OCT_SEQ_ENDED || failed)
    oct_kv_release_host(engine, seq);
  if (seq->state == OCT_SEQ_ENDED)
    return;
  d->n_preempting--;
  if (failed) {
    oct_seq_restart(engine, seq);
    return;
  }
  oct_seq_set_state(seq, OCT_SEQ_WAITING);
  oct_queue_push(engine, seq, TRUE);
}

/* ---------------------------------------------------------------- reload */

gboolean
oct_transfer_reload(oct_engine *engine, oct_seq *seq) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  oct_transfer *t = oct_transfer_new(engine, OCT_TRANSFER_RELOAD, seq->domain, seq);
  gboolean has_state = oct_kv_take_state(engine, seq);
  oct_assert(has_state);
  for (guint32 g = 0; g < engine->n_groups; g++) {
    gboolean state = engine->is_state[g];
    guint32 n = state ? 1 : seq->n_pages;
    for (guint32 i = state ? 0 : seq->first_live[g]; i < n; i++) {
      if (!state)
        seq->table[g][i] = oct_pool_take(d->device[g]);
      oct_assert(seq->table[g][i] != OCT_POOL_NONE);
      oct_transfer_item it = {
          .group = g, .device = seq->table[g][i], .host = seq->host[g][i], .index = i};
      g_array_append_val(t->items, it);
    }
  }
  /* From here on the transfer's items hold the host references. */
  seq->on_host = FALSE;
  oct_seq_set_state(seq, OCT_SEQ_RELOADING);
  oct_seq_enter(engine, seq, seq->request->forked ? 1 : seq->request->n);
  d->n_reloading++;
  engine->stats.reloads++;
  oct_transfer_start(engine, t);
  return TRUE;
}

static void
reloaded(oct_engine *engine, oct_transfer *t, gboolean failed) {
  oct_seq *seq = t->seq;
  oct_kv_domain *d = &engine->domains[seq->domain];
  for (guint i = 0; i < t->items->len; i++) {
    const oct_transfer_item *it = &g_array_index(t->items, oct_transfer_item, i);
    oct_pool_unref(d->host[it->group], it->host, 0);
  }
  engine->stats.reloaded_pages += failed ? 0 : t->items->len;
  if (seq->state == OCT_SEQ_ENDED) {
    oct_kv_release_device(engine, seq, seq->epoch);
    return;
  }
  d->n_reloading--;
  if (failed || seq->copies_void) {
    seq->copies_void = FALSE;
    oct_seq_leave(engine, seq);
    oct_kv_release_device(engine, seq, seq->epoch);
    oct_seq_restart(engine, seq);
    if (seq->retries++ >= engine->config.retries_max)
      oct_request_end(engine, seq->request, OCT_END_FAILED);
    return;
  }
  oct_seq_set_state(seq, OCT_SEQ_RUNNING);
  seq->n_indexed = 0;
  oct_kv_index(engine, seq, seq->done, 0);
}

/* ---------------------------------------------------------------- spill */

/* Whether the host has a place for one more cached item: a free one, or one whose content is no
 * longer on the device. To push out what is there as well would only move copies round and round.
 */
static gboolean
host_takes(const oct_pool *host, const oct_pool *device) {
  if (oct_pool_count(host, OCT_ITEM_FREE) > 0)
    return TRUE;
  guint32 oldest = oct_pool_oldest(host);
  return oldest != OCT_POOL_NONE &&
         oct_pool_find(device, oct_pool_key(host, oldest)) == OCT_POOL_NONE;
}

/* Free items are so few, or will be once `taken` more have been taken, that cached ones should have
 * a copy on the host before they are evicted. */
static gboolean
runs_low(const oct_pool *device, guint32 taken) {
  return oct_pool_count(device, OCT_ITEM_FREE) < oct_pool_total(device) / SPILL_AHEAD + taken;
}

static guint32
spill_ahead(const oct_pool *host, const oct_pool *device) {
  const guint32 room = oct_pool_total(host) / SPILL_ROOM;
  return MAX(MIN(oct_pool_total(device) / SPILL_AHEAD, room), SPILL_AHEAD_MIN);
}

/* The oldest cached items of a pool that the host does not have yet, into *t (made when needed). */
static void
collect_spill(oct_engine *engine, guint32 domain, guint32 g, oct_transfer **t, gboolean *wanted) {
  oct_kv_domain *d = &engine->domains[domain];
  oct_pool *device = d->device[g], *host = d->host[g];
  if (host == NULL || !runs_low(device, 0))
    return;
  const guint32 ahead = spill_ahead(host, device);
  guint32 n_sent = 0, item;
  while (oct_pool_count(device, OCT_ITEM_FREE) + oct_pool_copied(device) + n_sent < ahead &&
         (item = oct_pool_oldest_uncopied(device)) != OCT_POOL_NONE) {
    if (oct_pool_find(host, oct_pool_key(device, item)) != OCT_POOL_NONE) {
      oct_pool_set_copied(device);
      continue;
    }
    if (!host_takes(host, device))
      return;
    *wanted = TRUE;
    if (t == NULL || (*t != NULL && (*t)->items->len >= SPILL_BATCH_MAX))
      return;
    guint32 to = oct_pool_take(host);
    if (*t == NULL)
      *t = oct_transfer_new(engine, OCT_TRANSFER_SPILL, domain, NULL);
    oct_pool_ref(device, item);
    oct_transfer_item it = {.group = g, .device = item, .host = to, .index = OCT_NO_INDEX};
    g_array_append_val((*t)->items, it);
    n_sent++;
  }
}

gboolean
oct_transfer_spill_wanted(const oct_engine *engine, guint32 taken) {
  gboolean wanted = FALSE;
  for (guint32 d = 0; d < engine->n_domains && !wanted; d++)
    for (guint32 g = 0; g < engine->n_groups && !wanted; g++) {
      const oct_kv_domain *domain = &engine->domains[d];
      if (domain->spill_ticket != 0 || domain->host[g] == NULL)
        continue;
      /* What is taken may evict, and what is evicted here makes room there. */
      wanted = taken > 0 && runs_low(domain->device[g], taken);
      if (!wanted)
        collect_spill((oct_engine *)engine, d, g, NULL, &wanted);
    }
  return wanted;
}

void
oct_transfer_spill(oct_engine *engine) {
  for (guint32 d = 0; d < engine->n_domains; d++) {
    if (engine->domains[d].spill_ticket != 0)
      continue;
    oct_transfer *t = NULL;
    gboolean wanted = FALSE;
    for (guint32 g = 0; g < engine->n_groups; g++)
      collect_spill(engine, d, g, &t, &wanted);
    if (t == NULL)
      continue;
    engine->domains[d].spill_ticket = t->ticket;
    engine->stats.offloaded_pages += t->items->len;
    oct_transfer_start(engine, t);
  }
}

static void
spilled(oct_engine *engine, oct_transfer *t, gboolean failed) {
  oct_kv_domain *d = &engine->domains[t->domain];
  d->spill_ticket = 0;
  for (guint i = 0; i < t->items->len; i++) {
    const oct_transfer_item *it = &g_array_index(t->items, oct_transfer_item, i);
    if (!failed && oct_pool_indexed(d->device[it->group], it->device))
      (void)oct_pool_index(d->host[it->group], it->host,
                           oct_pool_key(d->device[it->group], it->device), 0);
    oct_pool_unref(d->host[it->group], it->host, 0);
    if (failed)
      oct_pool_unref(d->device[it->group], it->device, 0);
    else
      oct_pool_unref_first(d->device[it->group], it->device, 0);
  }
}

/* ---------------------------------------------------------------- ends */

void
oct_transfer_done(oct_engine *engine, guint64 ticket, gboolean failed) {
  oct_transfer *t = NULL;
  for (guint i = 0; i < engine->transfers->len && t == NULL; i++) {
    oct_transfer *candidate = g_ptr_array_index(engine->transfers, i);
    if (candidate->ticket == ticket && ticket != 0)
      t = candidate;
  }
  if (t == NULL) {
    oct_instance_lost(engine, "a copy ended that is not in flight");
    return;
  }
  oct_seq *seq = t->seq;
  if (seq != NULL)
    seq->copies--;
  switch (t->kind) {
  case OCT_TRANSFER_OFFLOAD:
    offloaded(engine, t, failed);
    break;
  case OCT_TRANSFER_RELOAD:
    reloaded(engine, t, failed);
    break;
  case OCT_TRANSFER_SPILL:
    spilled(engine, t, failed);
    break;
  case OCT_TRANSFER_PULL:
    oct_pull_done(engine, t, failed);
    break;
  }
  t->ticket = 0;
  t->seq = NULL;
  engine->n_transfers--;
  engine->domains[t->domain].blocked = FALSE;
  if (seq != NULL)
    oct_request_reap(engine, seq->request);
}

void
oct_transfer_drop_all(oct_engine *engine) {
  for (guint i = 0; i < engine->transfers->len; i++) {
    oct_transfer *t = g_ptr_array_index(engine->transfers, i);
    if (t->ticket != 0 && t->seq != NULL)
      t->seq->copies--;
    t->ticket = 0;
    t->seq = NULL;
  }
  engine->n_transfers = 0;
  for (guint32 d = 0; d < engine->n_domains; d++)
    engine->domains[d].spill_ticket = 0;
}
