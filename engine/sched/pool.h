/* A pool of equal items of one kind: the pages, or the state slots, of one layer group in one KV
 * domain and one tier (device or host), with its reference counts, its LRU of cached items and its
 * index by content.
 *
 * An item is always in exactly one of four states, and free + cached + held + draining = total:
 *
 *            take()           unref() to 0
 *     FREE ---------> HELD ------------------> DRAINING ---+ complete(), not indexed
 *      ^               ^ |                        |        v
 *      |               | +-- epoch has passed -+  +----> FREE
 *      |      ref()    |                       v  | complete(), indexed
 *      |               +-------------------- CACHED <------
 *      +--- withdraw() -----------------------+  | evicted by take(): HELD again
 *
 * Epochs (invariant 2): unref() says which step is the last that may touch the item; until it has
 * completed the item drains and cannot be taken. An indexed item is found by oct_pool_find() in
 * every state from oct_pool_index() on until it is withdrawn or evicted, also while it drains. One
 * thread. Nothing is allocated after oct_pool_new().
 */
#ifndef OCT_SCHED_POOL_H
#define OCT_SCHED_POOL_H

#include <glib.h>

#include "engine/base/hash.h"

#define OCT_POOL_NONE G_MAXUINT32

typedef enum oct_item_state {
  OCT_ITEM_FREE,
  OCT_ITEM_CACHED,
  OCT_ITEM_HELD,
  OCT_ITEM_DRAINING
} oct_item_state;

typedef struct oct_pool oct_pool;

/* ---- life cycle */
oct_pool *oct_pool_new(guint32 n_items);
void oct_pool_free(oct_pool *pool); /* accepts NULL */
/* Forgets everything: all items free, none indexed, for a reopened instance. */
void oct_pool_reset(oct_pool *pool);

/* ---- use */

/* One item with one reference: a free one, else the least recently used cached one, which is
 * evicted. OCT_POOL_NONE when there is neither. */
guint32 oct_pool_take(oct_pool *pool);
/* What the last take() evicted is told to this callback (item, before its index entry goes). */
typedef void (*oct_pool_evicted_fn)(void *user, guint32 item);
void oct_pool_on_evict(oct_pool *pool, oct_pool_evicted_fn fn, void *user);
/* One more reference to an item that is HELD or indexed. */
void oct_pool_ref(oct_pool *pool, guint32 item);
/* One less; `epoch` is the last step that may read or write it on this holder's behalf. */
void oct_pool_unref(oct_pool *pool, guint32 item, guint64 epoch);
/* The same for an item that has been copied elsewhere: if it is cached now, it becomes the first to
 * be evicted, and counts as copied. */
void oct_pool_unref_first(oct_pool *pool, guint32 item, guint64 epoch);
/* Steps up to `completed` have ended: their items stop draining. */
void oct_pool_complete(oct_pool *pool, guint64 completed);
/* Makes a HELD item findable under `key`; `step` is the step that writes it (0 = already written).
 * FALSE, nothing changed, when the key is taken by another item. */
gboolean oct_pool_index(oct_pool *pool, guint32 item, oct_hash128 key, guint64 step);
/* The same for an item that nobody will look for before it is named, which costs no place in the
 * index until then: `mark` tells it from what else the item may come to hold. */
void oct_pool_index_unnamed(oct_pool *pool, guint32 item, oct_hash128 mark, guint64 step);
/* Makes the item findable under `key` if it still bears the mark and the key is free. */
void oct_pool_name(oct_pool *pool, guint32 item, oct_hash128 mark, oct_hash128 key);
/* The item can no longer be found; a CACHED one becomes free. */
void oct_pool_withdraw(oct_pool *pool, guint32 item);
/* The same for every item that step `step` or a later one was to write: they failed. O(items). */
void oct_pool_withdraw_from(oct_pool *pool, guint64 step);
guint32 oct_pool_find(const oct_pool *pool, oct_hash128 key);

/* ---- copies elsewhere: which cached items have been copied, oldest first. It is forgotten when
 * the item leaves its place in the LRU, and not when the copy goes. What these cost is paid once
 * for each item, not once a call. */
guint32 oct_pool_copied(const oct_pool *pool); /* how many */
/* The least recently used cached item of which no copy is known; OCT_POOL_NONE. */
guint32 oct_pool_oldest_uncopied(oct_pool *pool);
void oct_pool_set_copied(oct_pool *pool); /* that item has one; there must be one */
/* Most recently used end of the LRU, for a CACHED item that a lookup used without taking. */
void oct_pool_touch(oct_pool *pool, guint32 item);

/* ---- inspect */
guint32 oct_pool_total(const oct_pool *pool);
guint32 oct_pool_count(const oct_pool *pool, oct_item_state state);
/* What take() can give: free + cached. */
guint32 oct_pool_available(const oct_pool *pool);
oct_item_state oct_pool_state(const oct_pool *pool, guint32 item);
guint32 oct_pool_refs(const oct_pool *pool, guint32 item);
gboolean oct_pool_indexed(const oct_pool *pool, guint32 item);
oct_hash128 oct_pool_key(const oct_pool *pool, guint32 item);
/* The step that writes an indexed item, 0 = written before it was indexed. */
guint64 oct_pool_writer(const oct_pool *pool, guint32 item);
/* Least recently used cached item, and the next after it (OCT_POOL_NONE at the end). */
guint32 oct_pool_oldest(const oct_pool *pool);
guint32 oct_pool_next_oldest(const oct_pool *pool, guint32 item);
/* Free-form word of the owner for each item, 0 at first, kept across states and zeroed by take().
 */
guint32 *oct_pool_note(oct_pool *pool, guint32 item);
/* Books against one another: lists, counts, index. FALSE with *error. */
gboolean oct_pool_check(const oct_pool *pool, GError **error);

#endif
