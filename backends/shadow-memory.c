/* Pages and state slots of the shadow: tables, contents, leases.
 *
 * A page knows the position of its first token, how many tokens it holds and, with check_tags, the
 * chain before its first token and after each one; so a page that was shared, copied, rolled back
 * or overwritten can be compared at any length. A state slot knows how many tokens it has absorbed.
 */
#include <stdarg.h>
#include <string.h>

#include "backends/shadow-internal.h"
#include "engine/base/assert.h"

gboolean
shadow_breach(oct_fault *fault, guint64 number, const char *format, ...) {
  *fault = (oct_fault){.severity = OCT_SEVERITY_FATAL, .device = OCT_NO_INDEX, .number = number};
  va_list args;
  va_start(args, format);
  int at =
      g_snprintf(fault->message, sizeof fault->message, "step %" G_GUINT64_FORMAT ": ", number);
  g_vsnprintf(fault->message + at, sizeof fault->message - (gsize)at, format, args);
  va_end(args);
  return FALSE;
}

/* ---------------------------------------------------------------- pools */

static gboolean
is_state(const oct_shadow *s, guint32 group) {
  return s->groups[group].kind == OCT_ATTENTION_KDA;
}

unit_pool *
shadow_pool(const oct_shadow *s, oct_tier tier, guint32 domain, guint32 group) {
  return &s->pools[((guint32)tier * s->n_domains + domain) * s->n_groups + group];
}

void
shadow_pools_new(oct_shadow *s) {
  s->pools = g_new0(unit_pool, 2 * s->n_domains * s->n_groups);
  s->tracks_pages = s->options.track_pages || s->config.check_tags;
  for (guint32 g = 0; g < s->n_groups; g++)
    s->tracks_pages |= s->config.memory.groups[g].n_host > 0;
  for (guint32 d = 0; d < s->n_domains; d++)
    for (guint32 g = 0; g < s->n_groups; g++)
      for (int tier = OCT_TIER_DEVICE; tier <= OCT_TIER_HOST; tier++) {
        const oct_pool_plan *plan = &s->config.memory.groups[g];
        unit_pool *pool = shadow_pool(s, (oct_tier)tier, d, g);
        pool->n = tier == OCT_TIER_DEVICE ? plan->n_device : plan->n_host;
        pool->units = g_new0(unit, pool->n);
        if (s->config.check_tags && !is_state(s, g))
          pool->chains = g_new0(guint64, (gsize)pool->n * s->page_tokens);
      }
}

void
shadow_pools_free(oct_shadow *s) {
  for (guint32 i = 0; i < 2 * s->n_domains * s->n_groups; i++) {
    g_free(s->pools[i].units);
    g_free(s->pools[i].chains);
  }
  g_free(s->pools);
}

static guint64 *
unit_chains(const oct_shadow *s, const unit_pool *pool, const unit *u) {
  return pool->chains == NULL ? NULL : pool->chains + (gsize)(u - pool->units) * s->page_tokens;
}

/* ---------------------------------------------------------------- double use */

/* Step `number` writes the unit for `owner`. Whoever else may still use it makes that a breach: a
 * copy in flight, an unfinished step of another sequence, or another slice of this step. */
static gboolean
claim(oct_shadow *s, guint64 number, unit *u, guint32 owner, const char *what, guint32 group,
      guint32 index, oct_fault *fault) {
  if (s->options.check_leases) {
    if (u->reading > 0 || u->writing > 0)
      return shadow_breach(fault, number, "writes %s %u of group %u, which a copy in flight %s",
                           what, index, group, u->writing > 0 ? "writes" : "reads");
    gboolean busy = u->toucher > s->last_done && u->owner != owner &&
                    (u->toucher < number || u->writer == number);
    /* What a copy of this or an earlier step put there is what a slice goes on writing: a fork's
     * child may run its first slice a step later than its copies. */
    if (busy && u->owner != SHADOW_NO_OWNER)
      return shadow_breach(
          fault, number,
          "writes %s %u of group %u, in use by another since step %" G_GUINT64_FORMAT, what, index,
          group, u->toucher);
  }
  u->writer = u->toucher = number;
  u->owner = owner;
  return TRUE;
}

static gboolean
touch(oct_shadow *s, guint64 number, unit *u, guint32 owner, guint32 group, guint32 page,
      oct_fault *fault) {
  if (s->options.check_leases && u->writing > 0)
    return shadow_breach(fault, number, "reads page %u of group %u, which a copy in flight writes",
                         page, group);
  if (s->options.check_leases && u->writer == number && u->owner != owner &&
      u->owner != SHADOW_NO_OWNER)
    return shadow_breach(fault, number,
                         "reads page %u of group %u, which another slice of the step writes", page,
                         group);
  if (u->writer != number) {
    u->toucher = number;
    u->owner = owner;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- tables */

static void
table_set(page_table *t, guint32 index, guint32 page) {
  if (index >= t->room) {
    t->room = MAX(index + 1, MAX(2 * t->room, 8));
    t->pages = g_renew(guint32, t->pages, t->room);
  }
  t->pages[index] = page;
  if (index > t->n || t->n == 0)
    t->first_set = index; /* what lies between is a gap: only what follows it is set */
  else if (index + 1 == t->first_set)
    t->first_set = index;
  t->n = MAX(t->n, index + 1);
}

gboolean
shadow_apply_changes(oct_shadow *s, const oct_step *step, oct_fault *fault) {
  const oct_page_change *changes = oct_step_changes(step);
  for (guint32 i = 0; i < step->n_changes; i++) {
    const oct_page_change *c = &changes[i];
    if (!s->slots[c->slot].open)
      return shadow_breach(fault, step->number, "change %u: slot %u is not open", i, c->slot);
    page_table *t = &s->tables[c->slot * s->n_groups + c->group];
    if (c->op == OCT_PAGE_SET) {
      table_set(t, c->index, c->page);
      continue;
    }
    if (s->groups[c->group].window == 0)
      return shadow_breach(fault, step->number,
                           "change %u: slot %u gives up pages of group %u, which has no window", i,
                           c->slot, c->group);
    if (c->index < t->first_live || c->index > t->n)
      return shadow_breach(fault, step->number,
                           "change %u: slot %u group %u first live page %u, not %u to %u", i,
                           c->slot, c->group, c->index, t->first_live, t->n);
    t->first_live = c->index;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- slices: reading */

/* The chain must be the one expected; a side that is not known adopts the other. */
static gboolean
same_chain(guint64 *expected, guint64 *found) {
  if (*expected == 0)
    *expected = *found;
  else if (*found == 0)
    *found = *expected;
  return *expected == *found;
}

static gboolean
check_state(oct_shadow *s, guint64 number, guint32 slot_id, guint32 group, guint32 position,
            guint64 *chain, oct_fault *fault) {
  const slot *sl = &s->slots[slot_id];
  const page_table *t = &s->tables[slot_id * s->n_groups + group];
  if (t->n == 0)
    return shadow_breach(fault, number, "slot %u has no state of group %u", slot_id, group);
  unit *u = &shadow_pool(s, OCT_TIER_DEVICE, sl->domain, group)->units[t->pages[0]];
  if (s->options.check_leases && u->writing > 0)
    return shadow_breach(fault, number, "slot %u reads state %u, which a copy in flight writes",
                         slot_id, t->pages[0]);
  if (position == 0) {
    /* A sequence's first token starts from the empty state, whatever the slot held. */
    u->filled = 0;
    u->chain = OCT_TAG_EMPTY;
  }
  if (u->filled != position)
    return shadow_breach(fault, number, "slot %u group %u: state %u is at %u, the slice at %u",
                         slot_id, group, t->pages[0], u->filled, position);
  if (s->config.check_tags && !same_chain(chain, &u->chain))
    return shadow_breach(fault, number, "slot %u group %u: state %u at %u is of other tokens",
                         slot_id, group, t->pages[0], position);
  return TRUE;
}

/* Walks the pages that hold [first live, position): each must be the one of its place, filled as
 * far as is read, and begin with the chain that the one before ends with. */
static gboolean
check_chain(oct_shadow *s, guint64 number, guint32 slot_id, guint32 group, guint32 position,
            guint64 *chain, oct_fault *fault) {
  const slot *sl = &s->slots[slot_id];
  const page_table *t = &s->tables[slot_id * s->n_groups + group];
  unit_pool *pool = shadow_pool(s, OCT_TIER_DEVICE, sl->domain, group);
  guint64 before = t->first_live == 0 ? OCT_TAG_EMPTY : 0;
  for (guint32 i = t->first_live; (guint64)i * s->page_tokens < position; i++) {
    unit *u = &pool->units[t->pages[i]];
    guint32 first = i * s->page_tokens, n = MIN(position - first, s->page_tokens);
    if (!touch(s, number, u, sl->owner, group, t->pages[i], fault))
      return FALSE;
    if (u->first != first || u->filled < n)
      return shadow_breach(
          fault, number, "slot %u group %u: page %u (index %u) has [%u, %u), not [%u, %u)", slot_id,
          group, t->pages[i], i, u->first, u->first + u->filled, first, first + n);
    if (!same_chain(&before, &u->chain))
      return shadow_breach(fault, number,
                           "slot %u group %u: page %u (index %u) follows other tokens", slot_id,
                           group, t->pages[i], i);
    guint64 *chains = unit_chains(s, pool, u);
    if (first + n == position) {
      if (!same_chain(chain, &chains[n - 1]))
        return shadow_breach(fault, number,
                             "slot %u group %u: page %u (index %u) has other tokens below %u",
                             slot_id, group, t->pages[i], i, position);
    }
    before = chains[n - 1];
  }
  return TRUE;
}

static gboolean
check_pages(oct_shadow *s, guint64 number, guint32 slot_id, guint32 group, guint32 position,
            guint32 n, oct_fault *fault) {
  const page_table *t = &s->tables[slot_id * s->n_groups + group];
  guint32 needed = (position + n + s->page_tokens - 1) / s->page_tokens;
  if (t->n < needed || t->first_set > t->first_live)
    return shadow_breach(
        fault, number, "slot %u group %u: pages [%u, %u) are set, tokens [%u, %u) need [%u, %u)",
        slot_id, group, t->first_set, t->n, position, position + n, t->first_live, needed);
  guint32 window = s->groups[group].window;
  if (window > 0 && (guint64)t->first_live * s->page_tokens + window > (guint64)position + 1 &&
      t->first_live > 0)
    return shadow_breach(fault, number,
                         "slot %u group %u: first live page %u is in the window of token %u",
                         slot_id, group, t->first_live, position);
  return TRUE;
}

gboolean
shadow_check_slice(oct_shadow *s, guint64 number, guint32 slot_id, guint32 position, guint32 n,
                   guint64 *chain, oct_fault *fault) {
  for (guint32 g = 0; g < s->n_groups; g++) {
    if (is_state(s, g)) {
      if (!check_state(s, number, slot_id, g, position, chain, fault))
        return FALSE;
      continue;
    }
    if (!check_pages(s, number, slot_id, g, position, n, fault))
      return FALSE;
    if (s->config.check_tags && !check_chain(s, number, slot_id, g, position, chain, fault))
      return FALSE;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- slices: writing */

static gboolean
write_page(oct_shadow *s, guint64 number, guint32 slot_id, guint32 group, guint32 index,
           guint32 position, guint32 end, guint32 kept_end, const guint64 *chains,
           guint64 chain_before, oct_fault *fault) {
  const slot *sl = &s->slots[slot_id];
  guint32 page = s->tables[slot_id * s->n_groups + group].pages[index];
  unit_pool *pool = shadow_pool(s, OCT_TIER_DEVICE, sl->domain, group);
  unit *u = &pool->units[page];
  if (!claim(s, number, u, sl->owner, "page", group, page, fault))
    return FALSE;
  guint32 first = index * s->page_tokens;
  guint32 from = MAX(position, first), to = MIN(end, first + s->page_tokens);
  u->first = first;
  u->filled = kept_end > first ? MIN(kept_end, to) - first : 0;
  guint64 *page_chains = unit_chains(s, pool, u);
  if (page_chains == NULL)
    return TRUE;
  if (from == first)
    u->chain = first == position ? chain_before : chains[first - position - 1];
  for (guint32 p = from; p < to; p++)
    page_chains[p - first] = chains[p - position];
  return TRUE;
}

gboolean
shadow_write_slice(oct_shadow *s, guint64 number, guint32 slot_id, guint32 position, guint32 n,
                   guint32 kept, const guint64 *chains, oct_fault *fault) {
  slot *sl = &s->slots[slot_id];
  guint64 before = sl->chain;
  guint32 last = (position + n - 1) / s->page_tokens;
  for (guint32 g = 0; g < s->n_groups; g++) {
    if (is_state(s, g)) {
      guint32 id = s->tables[slot_id * s->n_groups + g].pages[0];
      unit *u = &shadow_pool(s, OCT_TIER_DEVICE, sl->domain, g)->units[id];
      if (!claim(s, number, u, sl->owner, "state", g, id, fault))
        return FALSE;
      u->filled = position + kept;
      u->chain = chains == NULL ? 0 : chains[kept - 1];
      continue;
    }
    for (guint32 i = position / s->page_tokens; i <= last && s->tracks_pages; i++)
      if (!write_page(s, number, slot_id, g, i, position, position + n, position + kept, chains,
                      before, fault))
        return FALSE;
  }
  sl->chain = chains == NULL ? 0 : chains[kept - 1];
  return TRUE;
}

void
shadow_advance_state(oct_shadow *s, guint64 number, guint32 slot_id, guint32 tokens) {
  const slot *sl = &s->slots[slot_id];
  for (guint32 g = 0; g < s->n_groups; g++) {
    const page_table *t = &s->tables[slot_id * s->n_groups + g];
    unit *units = shadow_pool(s, OCT_TIER_DEVICE, sl->domain, g)->units;
    guint32 index = is_state(s, g) ? 0 : (sl->position - 1) / s->page_tokens;
    if (!is_state(s, g) && !s->tracks_pages)
      continue;
    if (index >= t->n)
      continue; /* a page taken in the stretch: it is named with the next step */
    unit *u = &units[t->pages[index]];
    u->writer = u->toucher = number;
    u->owner = sl->owner;
    if (is_state(s, g))
      u->filled += tokens;
  }
}

/* ---------------------------------------------------------------- copies */

static unit *
copy_end(const oct_shadow *s, const oct_copy *c, gboolean to) {
  oct_tier tier = (oct_tier)(to ? c->to_tier : c->from_tier);
  return &shadow_pool(s, tier, c->domain, c->group)->units[to ? c->to : c->from];
}

/* Where the copy reads: a place of this shadow, or with a peer of the peer's device. */
static unit *
source_unit(const oct_shadow *s, const oct_shadow *peer, guint32 peer_domain, const oct_copy *c,
            unit_pool **pool) {
  *pool = peer != NULL ? shadow_pool(peer, OCT_TIER_DEVICE, (guint16)peer_domain, c->group)
                       : shadow_pool(s, (oct_tier)c->from_tier, c->domain, c->group);
  return &(*pool)->units[c->from];
}

static void
copy_content(oct_shadow *s, const oct_shadow *peer, guint32 peer_domain, const oct_copy *c) {
  unit_pool *source, *target = shadow_pool(s, (oct_tier)c->to_tier, c->domain, c->group);
  const unit *from = source_unit(s, peer, peer_domain, c, &source);
  unit *to = copy_end(s, c, TRUE);
  to->first = from->first;
  to->filled = from->filled;
  to->chain = from->chain;
  if (source->chains != NULL && target->chains != NULL)
    memcpy(unit_chains(s, target, to), unit_chains(s, source, from),
           s->page_tokens * sizeof(guint64));
}

static const char *
copy_noun(const oct_copy *c) {
  return c->kind == OCT_COPY_STATE ? "state" : "page";
}

gboolean
shadow_step_copies(oct_shadow *s, const oct_step *step, oct_copy_order order, oct_fault *fault) {
  const oct_copy *copies = oct_step_copies(step);
  for (guint32 i = 0; i < step->n_copies; i++) {
    const oct_copy *c = &copies[i];
    if (c->order != order)
      continue;
    if (c->kind == OCT_COPY_EXPERT) {
      if (!shadow_expert_copy_begin(s, step->number, c, fault))
        return FALSE;
      shadow_expert_copy_end(s, c, FALSE);
      continue;
    }
    if (s->options.check_leases && copy_end(s, c, FALSE)->writing > 0)
      return shadow_breach(fault, step->number, "copies %s %u of group %u, which a copy writes",
                           copy_noun(c), c->from, c->group);
    if (!claim(s, step->number, copy_end(s, c, TRUE), SHADOW_NO_OWNER, copy_noun(c), c->group,
               c->to, fault))
      return FALSE;
    copy_content(s, NULL, 0, c);
  }
  return TRUE;
}

/* The destination of a copy outside a step: nobody else may use it. */
static gboolean
lease_target(oct_shadow *s, const oct_copy *c, oct_fault *fault) {
  unit *to = copy_end(s, c, TRUE);
  if (s->options.check_leases && (to->reading > 0 || to->writing > 0))
    return shadow_breach(fault, s->last_number, "copy to %s %u of group %u, which a copy %s",
                         copy_noun(c), c->to, c->group, to->writing > 0 ? "writes" : "reads");
  if (s->options.check_leases && to->toucher > s->last_done)
    return shadow_breach(fault, s->last_number,
                         "copy to %s %u of group %u, in use by step %" G_GUINT64_FORMAT,
                         copy_noun(c), c->to, c->group, to->toucher);
  to->writing++;
  return TRUE;
}

gboolean
oct_shadow_copy_begin(oct_shadow *s, const oct_copy *copies, guint32 n, oct_fault *fault) {
  for (guint32 i = 0; i < n; i++) {
    const oct_copy *c = &copies[i];
    if (c->kind == OCT_COPY_EXPERT) {
      if (!shadow_expert_copy_begin(s, s->last_number, c, fault))
        return FALSE;
      continue;
    }
    if (!lease_target(s, c, fault))
      return FALSE;
    copy_end(s, c, FALSE)->reading++;
  }
  return TRUE;
}

gboolean
oct_shadow_pull_begin(oct_shadow *s, oct_shadow *peer, guint32 peer_domain, const oct_copy *copies,
                      guint32 n, oct_fault *fault) {
  for (guint32 i = 0; i < n; i++) {
    unit_pool *pool;
    unit *from = source_unit(s, peer, peer_domain, &copies[i], &pool);
    if (peer->options.check_leases && (from->writing > 0 || from->writer > peer->last_done))
      return shadow_breach(fault, s->last_number, "pulls %s %u of group %u, which is being written",
                           copy_noun(&copies[i]), copies[i].from, copies[i].group);
    if (!lease_target(s, &copies[i], fault))
      return FALSE;
    from->reading++;
  }
  return TRUE;
}

void
oct_shadow_pull_end(oct_shadow *s, oct_shadow *peer, guint32 peer_domain, const oct_copy *copies,
                    guint32 n) {
  for (guint32 i = 0; i < n; i++) {
    unit *to = copy_end(s, &copies[i], TRUE);
    oct_assert(to->writing > 0);
    to->writing--;
    to->filled = 0;
    if (peer == NULL)
      continue;
    unit_pool *pool;
    source_unit(s, peer, peer_domain, &copies[i], &pool)->reading--;
    copy_content(s, peer, peer_domain, &copies[i]);
  }
}

void
oct_shadow_copy_end(oct_shadow *s, const oct_copy *copies, guint32 n, gboolean failed) {
  for (guint32 i = 0; i < n; i++) {
    const oct_copy *c = &copies[i];
    if (c->kind == OCT_COPY_EXPERT) {
      shadow_expert_copy_end(s, c, failed);
      continue;
    }
    unit *from = copy_end(s, c, FALSE), *to = copy_end(s, c, TRUE);
    oct_assert(from->reading > 0 && to->writing > 0);
    from->reading--;
    to->writing--;
    if (failed)
      to->filled = 0;
    else
      copy_content(s, NULL, 0, c);
  }
}

guint64
oct_shadow_copy_waits_for(const oct_shadow *s, const oct_copy *c) {
  if (c->kind == OCT_COPY_EXPERT)
    return 0;
  guint64 number = MAX(copy_end(s, c, FALSE)->writer, copy_end(s, c, TRUE)->toucher);
  return number > s->last_done ? number : 0;
}

gboolean
oct_shadow_copy_is_chained(const oct_shadow *s, const oct_copy *c) {
  return c->kind != OCT_COPY_EXPERT && copy_end(s, c, FALSE)->writing > 0;
}
