/* Items live in one array and are linked into lists by index: FREE (a stack, below which lie those
 * that were never taken, in order and not linked: their memory is not touched), CACHED (oldest
 * first) and DRAINING (in order of release). The index is open addressing with linear probing and
 * backward-shift deletion, at most half full. */
#include "engine/sched/pool.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/sched/engine.h"

typedef struct item {
  oct_hash128 key;
  guint64 epoch;  /* last step that may touch it */
  guint64 writer; /* step that fills it, of an indexed item */
  guint32 refs;
  guint32 prev, next;
  guint32 note;
  guint8 state;
  guint8 indexed; /* item_index */
  guint8 copied;  /* cached, and there is a copy elsewhere */
} item;

/* UNNAMED: key is its mark, and no slot has it. */
typedef enum item_index { NOT_INDEXED, INDEXED, UNNAMED } item_index;

typedef struct list {
  guint32 head, tail, count;
} list;

/* The low half of the key stands beside the item, so that probing reads no other item than the
 * right one. */
typedef struct index_slot {
  guint32 item; /* item + 1, 0 = empty */
  guint32 hash;
} index_slot;

struct oct_pool {
  item *items;
  guint32 n;
  guint32 fresh;            /* items from here on were never taken */
  list lists[4];            /* by oct_item_state; HELD only counts */
  guint32 n_copied, cursor; /* cached items up to the cursor, itself too, are copied */
  guint64 completed;
  index_slot *slots;
  guint32 mask;
  oct_pool_evicted_fn evicted;
  void *evicted_user;
};

static void
list_append(oct_pool *pool, oct_item_state state, guint32 i) {
  list *l = &pool->lists[state];
  item *it = &pool->items[i];
  it->state = (guint8)state;
  l->count++;
  if (state == OCT_ITEM_HELD)
    return;
  if (state == OCT_ITEM_FREE && l->head != OCT_POOL_NONE) {
    /* The last one freed is taken first: it is still in the processor's cache. */
    it->prev = OCT_POOL_NONE;
    it->next = l->head;
    pool->items[l->head].prev = i;
    l->head = i;
    return;
  }
  it->prev = l->tail;
  it->next = OCT_POOL_NONE;
  if (l->tail == OCT_POOL_NONE)
    l->head = i;
  else
    pool->items[l->tail].next = i;
  l->tail = i;
}

static void
list_remove(oct_pool *pool, guint32 i) {
  item *it = &pool->items[i];
  list *l = &pool->lists[it->state];
  oct_assert(l->count > 0);
  l->count--;
  if (it->state == OCT_ITEM_HELD)
    return;
  pool->n_copied -= it->copied;
  it->copied = FALSE;
  if (pool->cursor == i)
    pool->cursor = it->prev;
  if (it->prev == OCT_POOL_NONE)
    l->head = it->next;
  else
    pool->items[it->prev].next = it->next;
  if (it->next == OCT_POOL_NONE)
    l->tail = it->prev;
  else
    pool->items[it->next].prev = it->prev;
}

static void
move(oct_pool *pool, guint32 i, oct_item_state to) {
  list_remove(pool, i);
  list_append(pool, to, i);
}

static void
clear_lists(oct_pool *pool) {
  for (int s = 0; s < 4; s++)
    pool->lists[s] = (list){OCT_POOL_NONE, OCT_POOL_NONE, 0};
  pool->lists[OCT_ITEM_FREE].count = pool->n;
  pool->n_copied = 0;
  pool->cursor = OCT_POOL_NONE;
  pool->fresh = 0;
  pool->completed = 0;
}

oct_pool *
oct_pool_new(guint32 n_items) {
  oct_pool *pool = g_new0(oct_pool, 1);
  pool->n = n_items;
  pool->items = g_new0(item, MAX(n_items, 1));
  guint32 slots = 16;
  while (slots < 2 * (guint64)n_items)
    slots *= 2;
  pool->slots = g_new0(index_slot, slots);
  pool->mask = slots - 1;
  clear_lists(pool);
  return pool;
}

void
oct_pool_free(oct_pool *pool) {
  if (pool == NULL)
    return;
  g_free(pool->items);
  g_free(pool->slots);
  g_free(pool);
}

void
oct_pool_reset(oct_pool *pool) {
  memset(pool->slots, 0, sizeof(index_slot) * ((gsize)pool->mask + 1));
  memset(pool->items, 0, pool->fresh * sizeof *pool->items);
  clear_lists(pool);
}

void
oct_pool_on_evict(oct_pool *pool, oct_pool_evicted_fn fn, void *user) {
  pool->evicted = fn;
  pool->evicted_user = user;
}

/* The slot that holds the key, or the empty one where it would go. */
static guint32
probe(const oct_pool *pool, oct_hash128 key) {
  const guint32 hash = (guint32)key.lo;
  guint32 at = hash & pool->mask;
  while (pool->slots[at].item != 0 &&
         (pool->slots[at].hash != hash ||
          !oct_hash128_equal(pool->items[pool->slots[at].item - 1].key, key)))
    at = (at + 1) & pool->mask;
  return at;
}

static void
unindex(oct_pool *pool, guint32 i) {
  const guint8 indexed = pool->items[i].indexed;
  pool->items[i].indexed = NOT_INDEXED;
  if (indexed != INDEXED)
    return;
  guint32 hole = probe(pool, pool->items[i].key);
  oct_assert(pool->slots[hole].item == i + 1);
  pool->slots[hole].item = 0;
  for (guint32 at = (hole + 1) & pool->mask; pool->slots[at].item != 0;
       at = (at + 1) & pool->mask) {
    guint32 home = pool->slots[at].hash & pool->mask;
    /* Move back what the hole has cut off from its home. */
    if (((at - home) & pool->mask) >= ((at - hole) & pool->mask)) {
      pool->slots[hole] = pool->slots[at];
      pool->slots[at].item = 0;
      hole = at;
    }
  }
}

guint32
oct_pool_take(oct_pool *pool) {
  guint32 i = pool->lists[OCT_ITEM_FREE].head;
  if (i != OCT_POOL_NONE) {
    move(pool, i, OCT_ITEM_HELD);
  } else if (pool->fresh < pool->n) {
    i = pool->fresh++;
    pool->lists[OCT_ITEM_FREE].count--;
    list_append(pool, OCT_ITEM_HELD, i);
  } else {
    i = pool->lists[OCT_ITEM_CACHED].head;
    if (i == OCT_POOL_NONE)
      return OCT_POOL_NONE;
    if (pool->evicted != NULL)
      pool->evicted(pool->evicted_user, i);
    unindex(pool, i);
    move(pool, i, OCT_ITEM_HELD);
  }
  item *it = &pool->items[i];
  it->refs = 1;
  it->note = 0;
  it->epoch = 0;
  it->writer = 0;
  return i;
}

/* Where an item without references belongs. */
static void
settle(oct_pool *pool, guint32 i) {
  const item *it = &pool->items[i];
  if (it->epoch > pool->completed)
    move(pool, i, OCT_ITEM_DRAINING);
  else
    move(pool, i, it->indexed ? OCT_ITEM_CACHED : OCT_ITEM_FREE);
}

void
oct_pool_ref(oct_pool *pool, guint32 i) {
  oct_assert(i < pool->n);
  item *it = &pool->items[i];
  oct_assert(it->state == OCT_ITEM_HELD || it->indexed);
  if (it->state != OCT_ITEM_HELD)
    move(pool, i, OCT_ITEM_HELD);
  it->refs++;
}

void
oct_pool_unref(oct_pool *pool, guint32 i, guint64 epoch) {
  oct_assert(i < pool->n);
  item *it = &pool->items[i];
  oct_assert(it->state == OCT_ITEM_HELD && it->refs > 0);
  it->epoch = MAX(it->epoch, epoch);
  if (--it->refs == 0)
    settle(pool, i);
}

void
oct_pool_unref_first(oct_pool *pool, guint32 i, guint64 epoch) {
  oct_pool_unref(pool, i, epoch);
  item *it = &pool->items[i];
  list *l = &pool->lists[OCT_ITEM_CACHED];
  if (it->state != OCT_ITEM_CACHED)
    return;
  if (l->head != i) {
    list_remove(pool, i);
    it->prev = OCT_POOL_NONE;
    it->next = l->head;
    pool->items[l->head].prev = i;
    l->head = i;
    l->count++;
  }
  it->copied = TRUE;
  pool->n_copied++;
}

guint32
oct_pool_copied(const oct_pool *pool) {
  return pool->n_copied;
}

guint32
oct_pool_oldest_uncopied(oct_pool *pool) {
  guint32 i = pool->cursor == OCT_POOL_NONE ? pool->lists[OCT_ITEM_CACHED].head
                                            : pool->items[pool->cursor].next;
  for (; i != OCT_POOL_NONE && pool->items[i].copied; i = pool->items[i].next)
    pool->cursor = i;
  return i;
}

void
oct_pool_set_copied(oct_pool *pool) {
  guint32 i = oct_pool_oldest_uncopied(pool);
  oct_assert(i != OCT_POOL_NONE);
  pool->items[i].copied = TRUE;
  pool->n_copied++;
  pool->cursor = i;
}

void
oct_pool_complete(oct_pool *pool, guint64 completed) {
  oct_assert(completed >= pool->completed);
  pool->completed = completed;
  /* Short: only what the last few steps' ends have released. */
  for (guint32 i = pool->lists[OCT_ITEM_DRAINING].head, next; i != OCT_POOL_NONE; i = next) {
    next = pool->items[i].next;
    if (pool->items[i].epoch <= completed)
      settle(pool, i);
  }
}

gboolean
oct_pool_index(oct_pool *pool, guint32 i, oct_hash128 key, guint64 step) {
  oct_assert(i < pool->n && pool->items[i].state == OCT_ITEM_HELD && !pool->items[i].indexed);
  guint32 at = probe(pool, key);
  if (pool->slots[at].item != 0)
    return FALSE;
  pool->slots[at] = (index_slot){i + 1, (guint32)key.lo};
  pool->items[i].key = key;
  pool->items[i].writer = step;
  pool->items[i].indexed = INDEXED;
  return TRUE;
}

void
oct_pool_index_unnamed(oct_pool *pool, guint32 i, oct_hash128 mark, guint64 step) {
  oct_assert(i < pool->n && pool->items[i].state == OCT_ITEM_HELD && !pool->items[i].indexed);
  pool->items[i].key = mark;
  pool->items[i].writer = step;
  pool->items[i].indexed = UNNAMED;
}

void
oct_pool_name(oct_pool *pool, guint32 i, oct_hash128 mark, oct_hash128 key) {
  oct_assert(i < pool->n);
  item *it = &pool->items[i];
  if (it->indexed != UNNAMED || !oct_hash128_equal(it->key, mark))
    return;
  guint32 at = probe(pool, key);
  if (pool->slots[at].item != 0)
    return;
  pool->slots[at] = (index_slot){i + 1, (guint32)key.lo};
  it->key = key;
  it->indexed = INDEXED;
}

void
oct_pool_withdraw(oct_pool *pool, guint32 i) {
  oct_assert(i < pool->n);
  if (!pool->items[i].indexed)
    return;
  unindex(pool, i);
  if (pool->items[i].state == OCT_ITEM_CACHED)
    move(pool, i, OCT_ITEM_FREE);
}

void
oct_pool_withdraw_from(oct_pool *pool, guint64 step) {
  for (guint32 i = 0; i < pool->n; i++)
    if (pool->items[i].indexed && pool->items[i].writer >= step)
      oct_pool_withdraw(pool, i);
}

guint32
oct_pool_find(const oct_pool *pool, oct_hash128 key) {
  guint32 at = probe(pool, key);
  return pool->slots[at].item == 0 ? OCT_POOL_NONE : pool->slots[at].item - 1;
}

void
oct_pool_touch(oct_pool *pool, guint32 i) {
  if (pool->items[i].state == OCT_ITEM_CACHED)
    move(pool, i, OCT_ITEM_CACHED);
}

guint32
oct_pool_total(const oct_pool *pool) {
  return pool->n;
}

guint32
oct_pool_count(const oct_pool *pool, oct_item_state state) {
  return pool->lists[state].count;
}

guint32
oct_pool_available(const oct_pool *pool) {
  return pool->lists[OCT_ITEM_FREE].count + pool->lists[OCT_ITEM_CACHED].count;
}

oct_item_state
oct_pool_state(const oct_pool *pool, guint32 i) {
  return pool->items[i].state;
}

guint32
oct_pool_refs(const oct_pool *pool, guint32 i) {
  return pool->items[i].refs;
}

gboolean
oct_pool_indexed(const oct_pool *pool, guint32 i) {
  return pool->items[i].indexed;
}

oct_hash128
oct_pool_key(const oct_pool *pool, guint32 i) {
  return pool->items[i].key;
}

guint64
oct_pool_writer(const oct_pool *pool, guint32 i) {
  return pool->items[i].writer;
}

guint32
oct_pool_oldest(const oct_pool *pool) {
  return pool->lists[OCT_ITEM_CACHED].head;
}

guint32
oct_pool_next_oldest(const oct_pool *pool, guint32 i) {
  return pool->items[i].next;
}

guint32 *
oct_pool_note(oct_pool *pool, guint32 i) {
  return &pool->items[i].note;
}

#define BROKEN(...)                                                                                \
  do {                                                                                             \
    g_set_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG, __VA_ARGS__);                    \
    return FALSE;                                                                                  \
  } while (0)

gboolean
oct_pool_check(const oct_pool *pool, GError **error) {
  guint32 counts[4] = {0}, indexed = 0, found = 0, copied = 0;
  for (guint32 i = 0; i < pool->n; i++) {
    const item *it = &pool->items[i];
    counts[it->state]++;
    indexed += it->indexed == INDEXED;
    if ((it->state == OCT_ITEM_HELD) != (it->refs > 0))
      BROKEN("item %u is in state %u with %u references", i, it->state, it->refs);
    if (it->indexed == INDEXED && oct_pool_find(pool, it->key) != i)
      BROKEN("item %u is indexed but not found under its key", i);
    if (it->state == OCT_ITEM_CACHED && !it->indexed)
      BROKEN("item %u is cached but not indexed", i);
    if (it->state == OCT_ITEM_FREE && it->indexed)
      BROKEN("item %u is indexed and free", i);
    copied += it->copied;
    if (it->copied && it->state != OCT_ITEM_CACHED)
      BROKEN("item %u has a copy and is not cached", i);
    if ((it->state == OCT_ITEM_FREE || it->state == OCT_ITEM_CACHED) && it->epoch > pool->completed)
      BROKEN("item %u may still be touched by step %" G_GUINT64_FORMAT, i, it->epoch);
  }
  for (guint32 at = 0; at <= pool->mask; at++)
    found += pool->slots[at].item != 0;
  if (copied != pool->n_copied)
    BROKEN("%u items have copies but %u are counted", copied, pool->n_copied);
  if (found != indexed)
    BROKEN("the index has %u entries for %u indexed items", found, indexed);
  for (int s = 0; s < 4; s++) {
    if (counts[s] != pool->lists[s].count)
      BROKEN("state %d has %u items but counts %u", s, counts[s], pool->lists[s].count);
    guint32 linked = s == OCT_ITEM_FREE ? pool->n - pool->fresh : 0;
    for (guint32 i = pool->lists[s].head; s != OCT_ITEM_HELD && i != OCT_POOL_NONE;
         i = pool->items[i].next)
      linked++;
    if (s != OCT_ITEM_HELD && linked != counts[s])
      BROKEN("state %d has %u items but links %u", s, counts[s], linked);
  }
  return TRUE;
}
