/* KV pages, state slots and the prefix index of each domain.
 *
 * Rules that the rest relies on:
 *  - All page groups cut tokens into the same pages, so a sequence has one page count.
 *  - A full page is never written again; a partial one has one holder (a fork copies it first).
 *  - The index holds full pages only, under the chain hash of all tokens up to their end, once per
 * group.
 *  - A snapshot is an indexed item of a state group's pool, under the hash of the page that ends at
 * its position. Evicting that page from the device withdraws it, unless the host keeps the page. */
#include "engine/sched/internal.h"

/* ---------------------------------------------------------------- pools */

/* The note of a page in the first page group is 1 + the snapshot that stands at its end. */
static void
page_evicted(void *user, guint32 page) {
  oct_kv_domain *d = user;
  guint32 g0 = (guint32)d->engine->first_page_group;
  oct_pool *pages = d->device[g0], *states = d->device[d->engine->first_state_group];
  guint32 note = *oct_pool_note(pages, page);
  oct_hash128 key = oct_pool_key(pages, page);
  if (note == 0 || (d->host[g0] != NULL && oct_pool_find(d->host[g0], key) != OCT_POOL_NONE))
    return;
  if (oct_pool_find(states, key) == note - 1)
    oct_pool_withdraw(states, note - 1);
}

void
oct_kv_init(oct_engine *engine) {
  const oct_memory_plan *plan = &engine->config.instance.memory;
  engine->domains = g_new0(oct_kv_domain, engine->n_domains);
  for (guint32 d = 0; d < engine->n_domains; d++) {
    oct_kv_domain *domain = &engine->domains[d];
    domain->engine = engine;
    domain->running = g_new0(oct_seq *, engine->config.max_num_seqs);
    for (guint32 g = 0; g < engine->n_groups; g++) {
      domain->device[g] = oct_pool_new(plan->groups[g].n_device);
      if (plan->groups[g].n_host > 0)
        domain->host[g] = oct_pool_new(plan->groups[g].n_host);
    }
    if (engine->first_page_group >= 0 && engine->first_state_group >= 0)
      oct_pool_on_evict(domain->device[engine->first_page_group], page_evicted, domain);
  }
}

void
oct_kv_free(oct_engine *engine) {
  for (guint32 d = 0; engine->domains != NULL && d < engine->n_domains; d++) {
    oct_kv_domain *domain = &engine->domains[d];
    for (guint32 g = 0; g < engine->n_groups; g++) {
      oct_pool_free(domain->device[g]);
      oct_pool_free(domain->host[g]);
    }
    g_free(domain->running);
    g_free(domain->queue.heap);
  }
  g_clear_pointer(&engine->domains, g_free);
}

void
oct_kv_reset_device(oct_engine *engine) {
  for (guint32 d = 0; d < engine->n_domains; d++)
    for (guint32 g = 0; g < engine->n_groups; g++)
      oct_pool_reset(engine->domains[d].device[g]);
}

void
oct_kv_complete(oct_engine *engine) {
  for (guint32 d = 0; d < engine->n_domains; d++)
    for (guint32 g = 0; g < engine->n_groups; g++)
      oct_pool_complete(engine->domains[d].device[g], engine->completed);
}

gboolean
oct_kv_can_take(const oct_engine *engine, guint32 domain, guint32 pages, guint32 states) {
  const oct_kv_domain *d = &engine->domains[domain];
  for (guint32 g = 0; g < engine->n_groups; g++) {
    guint32 need = engine->is_state[g] ? states : pages;
    if (need > 0 && oct_pool_available(d->device[g]) < need)
      return FALSE;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- a sequence's memory */

gboolean
oct_kv_grow(oct_engine *engine, oct_seq *seq, guint32 tokens) {
  guint32 want = (tokens + engine->page_tokens - 1) / engine->page_tokens;
  if (want <= seq->n_pages)
    return TRUE;
  if (!oct_kv_can_take(engine, seq->domain, want - seq->n_pages, 0))
    return FALSE;
  oct_seq_reserve_pages(engine, seq, want);
  oct_kv_domain *d = &engine->domains[seq->domain];
  for (; seq->n_pages < want; seq->n_pages++)
    for (guint32 g = 0; g < engine->n_groups; g++) {
      if (engine->is_state[g])
        continue;
      guint32 page = oct_pool_take(d->device[g]);
      oct_assert(page != OCT_POOL_NONE);
      seq->table[g][seq->n_pages] = page;
    }
  return TRUE;
}

void
oct_kv_take_live(oct_engine *engine, oct_seq *seq, guint32 tokens) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  guint32 n_pages = (tokens + engine->page_tokens - 1) / engine->page_tokens;
  oct_assert(seq->n_pages == 0);
  oct_seq_reserve_pages(engine, seq, n_pages);
  for (guint32 g = 0; g < engine->n_groups; g++) {
    if (engine->is_state[g])
      continue;
    seq->first_live[g] = oct_kv_first_seen(engine, g, tokens);
    for (guint32 i = seq->first_live[g]; i < n_pages; i++) {
      seq->table[g][i] = oct_pool_take(d->device[g]);
      oct_assert(seq->table[g][i] != OCT_POOL_NONE);
    }
  }
  seq->n_pages = n_pages;
}

gboolean
oct_kv_take_state(oct_engine *engine, oct_seq *seq) {
  if (seq->has_state || engine->first_state_group < 0)
    return TRUE;
  if (!oct_kv_can_take(engine, seq->domain, 0, 1))
    return FALSE;
  oct_kv_domain *d = &engine->domains[seq->domain];
  for (guint32 g = 0; g < engine->n_groups; g++)
    if (engine->is_state[g]) {
      seq->table[g][0] = oct_pool_take(d->device[g]);
      oct_assert(seq->table[g][0] != OCT_POOL_NONE);
    }
  seq->has_state = TRUE;
  return TRUE;
}

void
oct_kv_release_device(oct_engine *engine, oct_seq *seq, guint64 epoch) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  for (guint32 g = 0; g < engine->n_groups; g++) {
    if (engine->is_state[g]) {
      if (seq->restore[g] != OCT_POOL_NONE)
        oct_pool_unref(d->device[g], seq->restore[g], epoch);
      seq->restore[g] = OCT_POOL_NONE;
      if (seq->has_state)
        oct_pool_unref(d->device[g], seq->table[g][0], epoch);
      continue;
    }
    for (guint32 i = seq->n_pages; i-- > seq->first_live[g];)
      oct_pool_unref(d->device[g], seq->table[g][i], epoch);
    seq->first_live[g] = 0;
  }
  seq->has_state = FALSE;
  seq->n_pages = 0;
  seq->announced = 0;
  seq->n_indexed = 0;
  d->blocked = FALSE;
}

void
oct_kv_release_host(oct_engine *engine, oct_seq *seq) {
  if (!seq->on_host)
    return;
  oct_kv_domain *d = &engine->domains[seq->domain];
  for (guint32 g = 0; g < engine->n_groups; g++) {
    guint32 n = engine->is_state[g] ? 1 : seq->n_pages;
    for (guint32 i = n; i-- > (engine->is_state[g] ? 0 : seq->first_live[g]);) {
      oct_pool_unref(d->host[g], seq->host[g][i], 0);
    }
    seq->first_live[g] = 0;
  }
  seq->on_host = FALSE;
  seq->n_pages = 0;
}

guint32
oct_kv_first_seen(const oct_engine *engine, guint32 g, guint64 position) {
  guint32 window = engine->groups[g].window;
  /* The token at `position` sees itself and the window - 1 before it. */
  return window == 0 || position < window
             ? 0
             : (guint32)((position - window + 1) / engine->page_tokens);
}

void
oct_kv_slide(oct_engine *engine, oct_seq *seq, guint32 position) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  for (guint32 g = 0; g < engine->n_groups; g++) {
    guint32 live = oct_kv_first_seen(engine, g, position);
    if (live <= seq->first_live[g])
      continue;
    for (guint32 i = seq->first_live[g]; i < live; i++)
      oct_pool_unref(d->device[g], seq->table[g][i], seq->epoch);
    seq->first_live[g] = live;
    d->blocked = FALSE;
  }
}

void
oct_kv_trim(oct_engine *engine, oct_seq *seq, guint32 tokens) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  guint32 keep = oct_kv_pages(engine, tokens);
  if (seq->n_pages <= keep)
    return;
  for (guint32 g = 0; g < engine->n_groups; g++)
    for (guint32 i = seq->n_pages; i-- > keep && !engine->is_state[g];)
      oct_pool_unref(d->device[g], seq->table[g][i], seq->epoch);
  seq->stale_pages = MAX(seq->stale_pages, seq->announced);
  seq->n_pages = keep;
  seq->announced = MIN(seq->announced, keep);
  d->blocked = FALSE;
}

/* ---------------------------------------------------------------- prefix index */

/* Whether pages of the sequence that are its request's own (engine.h: page_ids) are of interest to
 * nobody but itself, and to it only when it comes back to the queue: they are not named before. */
static gboolean
keeps_to_itself(const oct_engine *engine, const oct_seq *seq) {
  const oct_request *r = seq->request;
  return !engine->config.carry_ids && !engine->has_host && engine->first_state_group < 0 &&
         r->n == 1 && !r->export_cache && r->import_id == 0 && !seq->named;
}

static oct_hash128
page_mark(const oct_seq *seq, guint32 page) {
  return (oct_hash128){seq->request->id, page};
}

void
oct_kv_name(oct_engine *engine, oct_seq *seq) {
  if (!engine->config.prefix_caching || !keeps_to_itself(engine, seq))
    return;
  const oct_kv_domain *d = &engine->domains[seq->domain];
  seq->named = TRUE;
  for (guint32 i = seq->request->n_page_ids; i < seq->n_indexed; i++) {
    oct_hash128 hash;
    if (!oct_seq_hash(engine, seq, i, &hash))
      return;
    for (guint32 g = 0; g < engine->n_groups; g++) /* those that its windows have left too */
      oct_pool_name(d->device[g], seq->table[g][i], page_mark(seq, i), hash);
  }
}

void
oct_kv_index(oct_engine *engine, oct_seq *seq, guint32 tokens, guint64 step) {
  if (!engine->config.prefix_caching)
    return;
  oct_kv_domain *d = &engine->domains[seq->domain];
  guint32 full = MIN(tokens / engine->page_tokens, seq->n_pages);
  if (seq->n_indexed >= full)
    return;
  const guint32 own_from = keeps_to_itself(engine, seq) ? seq->request->n_page_ids : OCT_NO_INDEX;
  for (; seq->n_indexed < full; seq->n_indexed++) {
    const guint32 i = seq->n_indexed;
    if (i >= own_from) {
      for (guint32 g = 0; g < engine->n_groups; g++)
        if (i >= seq->first_live[g] && !oct_pool_indexed(d->device[g], seq->table[g][i]))
          oct_pool_index_unnamed(d->device[g], seq->table[g][i], page_mark(seq, i), step);
      continue;
    }
    oct_hash128 hash;
    if (!oct_seq_hash(engine, seq, i, &hash))
      return;
    for (guint32 g = 0; g < engine->n_groups; g++) {
      if (engine->is_state[g] || seq->n_indexed < seq->first_live[g])
        continue;
      guint32 page = seq->table[g][seq->n_indexed];
      if (!oct_pool_indexed(d->device[g], page))
        (void)oct_pool_index(d->device[g], page, hash, step);
    }
  }
}

void
oct_kv_withdraw_from(oct_engine *engine, guint64 step) {
  for (guint32 d = 0; d < engine->n_domains; d++)
    for (guint32 g = 0; g < engine->n_groups; g++)
      oct_pool_withdraw_from(engine->domains[d].device[g], step);
}

void
oct_kv_withdraw(oct_engine *engine, oct_seq *seq, guint32 from) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  for (guint32 g = 0; g < engine->n_groups; g++) {
    if (engine->is_state[g])
      continue;
    for (guint32 i = MAX(from / engine->page_tokens, seq->first_live[g]); i < seq->n_pages; i++) {
      oct_pool_withdraw(d->device[g], seq->table[g][i]);
      oct_hash128 hash;
      if (engine->first_state_group < 0 || !oct_seq_hash(engine, seq, i, &hash))
        continue;
      guint32 snapshot = oct_pool_find(d->device[engine->first_state_group], hash);
      if (snapshot != OCT_POOL_NONE)
        oct_pool_withdraw(d->device[engine->first_state_group], snapshot);
    }
  }
}

static gboolean
found(const oct_kv_domain *d, guint32 g, oct_hash128 hash, gboolean *on_host) {
  *on_host = FALSE;
  guint32 item = oct_pool_find(d->device[g], hash);
  /* What the step being built writes is visible to later steps only. */
  if (item != OCT_POOL_NONE)
    return oct_pool_writer(d->device[g], item) < d->engine->next_number;
  *on_host = d->host[g] != NULL && oct_pool_find(d->host[g], hash) != OCT_POOL_NONE;
  return *on_host;
}

/* Pages below `pages` that group g needs for a continuation at page `pages`: [first, pages). */
static guint32
first_needed(const oct_engine *engine, guint32 g, guint32 pages) {
  return oct_kv_first_seen(engine, g, (guint64)pages * engine->page_tokens);
}

/* What taking the hit costs each pool: items to load from the host, and cached ones that will be
 * held. */
static void
count_items(oct_engine *engine, oct_seq *seq, oct_hit *hit) {
  const oct_kv_domain *d = &engine->domains[seq->domain];
  for (guint32 g = 0; g < engine->n_groups; g++) {
    guint32 first = engine->is_state[g] ? hit->pages - 1 : first_needed(engine, g, hit->pages);
    for (guint32 i = first; i < hit->pages; i++) {
      guint32 item = oct_pool_find(d->device[g], seq->hashes[i]);
      if (item == OCT_POOL_NONE)
        hit->load[g]++;
      else
        hit->cached[g] += oct_pool_state(d->device[g], item) == OCT_ITEM_CACHED;
    }
  }
}

static void
longest_hit(oct_engine *engine, oct_seq *seq, oct_hit *hit) {
  const oct_kv_domain *d = &engine->domains[seq->domain];
  guint32 limit =
      (seq->target - (seq->target == seq->request->prompt || seq->n_out > 0)) / engine->page_tokens;
  const oct_request *r = seq->request;
  /* What is wanted of the prompt is computed: a mean of all of it; logprobs, of which the next is
   * that of token n_scored, after token n_scored - 1. */
  if (r->pooling == OCT_POOLING_MEAN)
    return;
  if (seq->choice == 0 && r->n_scored < r->prompt)
    limit = MIN(limit, (r->n_scored - 1) / engine->page_tokens);
  guint32 run[OCT_GROUPS] = {0}; /* consecutive pages of the group that end here */
  for (guint32 i = 0; i < limit; i++) {
    oct_hash128 hash;
    gboolean on_host, whole = TRUE;
    if (!oct_seq_hash(engine, seq, i, &hash))
      break;
    for (guint32 g = 0; g < engine->n_groups; g++) {
      if (engine->is_state[g])
        continue;
      run[g] = found(d, g, hash, &on_host) ? run[g] + 1 : 0;
      if (run[g] == 0 && engine->groups[g].window == 0)
        return; /* no longer prefix can be whole */
      whole &= run[g] >= i + 1 - first_needed(engine, g, i + 1);
    }
    if (!whole)
      continue;
    hit->pages_bound = i + 1;
    for (guint32 g = 0; g < engine->n_groups; g++)
      whole &= !engine->is_state[g] || found(d, g, hash, &on_host);
    if (whole)
      hit->pages = i + 1;
  }
}

void
oct_kv_lookup(oct_engine *engine, oct_seq *seq, oct_hit *hit) {
  *hit = (oct_hit){0};
  if (!engine->config.prefix_caching ||
      (seq->request->n_page_ids == 0 && keeps_to_itself(engine, seq)))
    return;
  longest_hit(engine, seq, hit);
  if (hit->pages > 0)
    count_items(engine, seq, hit);
  guint64 loads = 0;
  for (guint32 g = 0; g < engine->n_groups; g++)
    loads += hit->load[g];
  if (loads > OCT_STEP_COPIES_MAX) /* more than one transfer takes: it is computed */
    *hit = (oct_hit){0};
}

static void
take_page(oct_engine *engine, oct_seq *seq, guint32 g, guint32 i, oct_transfer **transfer) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  oct_pool *pool = d->device[g];
  guint32 item = oct_pool_find(pool, seq->hashes[i]);
  if (item != OCT_POOL_NONE) {
    oct_pool_ref(pool, item);
    seq->depends_on = MAX(seq->depends_on, oct_pool_writer(pool, item));
  } else {
    guint32 host = oct_pool_find(d->host[g], seq->hashes[i]);
    item = oct_pool_take(pool);
    oct_assert(host != OCT_POOL_NONE && item != OCT_POOL_NONE);
    oct_pool_ref(d->host[g], host);
    if (*transfer == NULL)
      *transfer = oct_transfer_new(engine, OCT_TRANSFER_RELOAD, seq->domain, seq);
    oct_transfer_item it = {.group = g, .device = item, .host = host, .index = i};
    g_array_append_val((*transfer)->items, it);
  }
  if (!engine->is_state[g])
    seq->table[g][i] = item;
}

/* The snapshot of a hit: restored from the device before the first slice, or loaded from the host
 * straight into the sequence's own state slot. */
static void
take_snapshot(oct_engine *engine, oct_seq *seq, guint32 g, guint32 page, gboolean on_device,
              oct_transfer **transfer) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  if (on_device) {
    guint32 item = oct_pool_find(d->device[g], seq->hashes[page]);
    oct_pool_ref(d->device[g], item);
    seq->restore[g] = item;
    seq->depends_on = MAX(seq->depends_on, oct_pool_writer(d->device[g], item));
    return;
  }
  guint32 host = oct_pool_find(d->host[g], seq->hashes[page]);
  oct_assert(host != OCT_POOL_NONE && seq->has_state);
  oct_pool_ref(d->host[g], host);
  if (*transfer == NULL)
    *transfer = oct_transfer_new(engine, OCT_TRANSFER_RELOAD, seq->domain, seq);
  oct_transfer_item it = {.group = g, .device = seq->table[g][0], .host = host, .index = 0};
  g_array_append_val((*transfer)->items, it);
}

void
oct_kv_take_hit(oct_engine *engine, oct_seq *seq, const oct_hit *hit, oct_transfer **transfer) {
  *transfer = NULL;
  oct_seq_reserve_pages(engine, seq, hit->pages);
  oct_kv_domain *d = &engine->domains[seq->domain];
  /* References on what is on the device first: taking an item may evict. */
  for (int on_device = 1; on_device >= 0; on_device--) {
    if (!on_device) {
      gboolean state = oct_kv_take_state(engine, seq);
      oct_assert(state);
    }
    for (guint32 g = 0; g < engine->n_groups && hit->pages > 0; g++) {
      gboolean state = engine->is_state[g];
      guint32 first = state ? hit->pages - 1 : first_needed(engine, g, hit->pages);
      for (guint32 i = first; i < hit->pages; i++) {
        gboolean there = oct_pool_find(d->device[g], seq->hashes[i]) != OCT_POOL_NONE;
        if (there != (on_device != 0))
          continue;
        if (state)
          take_snapshot(engine, seq, g, i, on_device, transfer);
        else
          take_page(engine, seq, g, i, transfer);
      }
      if (!state)
        seq->first_live[g] = first;
    }
  }
  seq->n_pages = hit->pages;
  seq->n_indexed = hit->pages;
}

/* ---------------------------------------------------------------- snapshots of recurrent state */

guint32
oct_kv_next_cut(const oct_engine *engine, const oct_seq *seq, guint32 position) {
  if (engine->first_state_group < 0 || !engine->config.prefix_caching)
    return 0;
  guint32 page = engine->page_tokens, cut = G_MAXUINT32;
  guint32 prompt_end = (seq->request->prompt - 1) / page * page;
  if (prompt_end > position)
    cut = MIN(cut, prompt_end);
  if (seq->branch > position)
    cut = MIN(cut, seq->branch);
  guint32 interval = engine->config.state_snapshot_interval;
  if (interval > 0)
    cut = MIN(cut, (position / interval + 1) * interval);
  return cut == G_MAXUINT32 ? 0 : cut;
}

void
oct_kv_snapshot(oct_engine *engine, oct_seq *seq, guint32 position, guint64 step) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  guint32 page = position / engine->page_tokens - 1;
  oct_hash128 hash;
  guint32 gs = (guint32)engine->first_state_group;
  if (!oct_seq_hash(engine, seq, page, &hash) ||
      oct_pool_find(d->device[gs], hash) != OCT_POOL_NONE)
    return;
  guint32 snapshot = oct_pool_take(d->device[gs]);
  if (snapshot == OCT_POOL_NONE)
    return;
  gboolean indexed = oct_pool_index(d->device[gs], snapshot, hash, step);
  oct_assert(indexed);
  *oct_step_add_copy(engine->builder) = (oct_copy){.kind = OCT_COPY_STATE,
                                                   .order = OCT_COPY_AFTER,
                                                   .domain = (guint16)seq->domain,
                                                   .group = (guint16)gs,
                                                   .from = seq->table[gs][0],
                                                   .to = snapshot};
  oct_pool_unref(d->device[gs], snapshot, step);
  if (engine->first_page_group >= 0)
    *oct_pool_note(d->device[engine->first_page_group],
                   seq->table[engine->first_page_group][page]) = snapshot + 1;
  engine->stats.snapshots_taken++;
}
