/* Invariants:
 * 1. `pushed` and `popped` count records since the start and wrap at 2^32; pushed - popped is what
 * is inside, 0 … capacity. Capacity is a power of two, so that the wrap keeps slots in order.
 * 2. Only the producer writes `pushed` (release, after the record), only the consumer `popped`
 *    (release, after it has copied the record out).
 * 3. Each side keeps the other's counter as it last saw it and reads it again only when that view
 *    says full or empty: in a busy ring the counters' cache lines seldom travel.
 */
#include "engine/base/ring.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"

#define CACHE_LINE 64

struct oct_ring {
  gsize record_bytes;
  guint32 capacity;
  guint8 *records; /* [capacity][record_bytes] */
  _Alignas(CACHE_LINE) _Atomic guint32 pushed;
  guint32 popped_seen; /* producer's view */
  _Alignas(CACHE_LINE) _Atomic guint32 popped;
  guint32 pushed_seen; /* consumer's view */
};

oct_ring *
oct_ring_new(guint32 n_records, gsize record_bytes) {
  oct_assert(n_records >= 1 && n_records <= OCT_RING_RECORDS_MAX && record_bytes >= 1);
  guint32 capacity = 1;
  while (capacity < n_records)
    capacity *= 2;
  oct_ring *ring = aligned_alloc(CACHE_LINE, sizeof *ring);
  oct_assert(ring != NULL);
  memset(ring, 0, sizeof *ring);
  ring->record_bytes = record_bytes;
  ring->capacity = capacity;
  ring->records = g_malloc_n(capacity, record_bytes);
  atomic_init(&ring->pushed, 0);
  atomic_init(&ring->popped, 0);
  return ring;
}

void
oct_ring_free(oct_ring *ring) {
  if (!ring)
    return;
  g_free(ring->records);
  free(ring);
}

static inline guint8 *
record_at(const oct_ring *ring, guint32 counter) {
  return ring->records + (counter & (ring->capacity - 1)) * ring->record_bytes;
}

gboolean
oct_ring_push(oct_ring *ring, const void *record) {
  guint32 pushed = atomic_load_explicit(&ring->pushed, memory_order_relaxed);
  if (pushed - ring->popped_seen == ring->capacity) {
    ring->popped_seen = atomic_load_explicit(&ring->popped, memory_order_acquire);
    if (pushed - ring->popped_seen == ring->capacity)
      return FALSE;
  }
  memcpy(record_at(ring, pushed), record, ring->record_bytes);
  atomic_store_explicit(&ring->pushed, pushed + 1, memory_order_release);
  return TRUE;
}

gboolean
oct_ring_pop(oct_ring *ring, void *record) {
  guint32 popped = atomic_load_explicit(&ring->popped, memory_order_relaxed);
  if (popped == ring->pushed_seen) {
    ring->pushed_seen = atomic_load_explicit(&ring->pushed, memory_order_acquire);
    if (popped == ring->pushed_seen)
      return FALSE;
  }
  memcpy(record, record_at(ring, popped), ring->record_bytes);
  atomic_store_explicit(&ring->popped, popped + 1, memory_order_release);
  return TRUE;
}

guint32
oct_ring_capacity(const oct_ring *ring) {
  return ring->capacity;
}

guint32
oct_ring_count(const oct_ring *ring) {
  guint32 popped = atomic_load_explicit(&ring->popped, memory_order_acquire);
  guint32 pushed = atomic_load_explicit(&ring->pushed, memory_order_acquire);
  return MIN(pushed - popped, ring->capacity);
}
