/* A bounded ring of fixed-size records between two threads: one pushes, the other pops.
 *
 * No locks and no allocation after oct_ring_new(). What the producer wrote before a push is visible
 * to the consumer after the pop that returns it. Nothing here waits: a full or an empty ring says
 * so, and the caller decides. Exactly one thread pushes and exactly one pops at any time.
 */
#ifndef OCT_BASE_RING_H
#define OCT_BASE_RING_H

#include <glib.h>

#define OCT_RING_RECORDS_MAX (1u << 24)

typedef struct oct_ring oct_ring;

/* Life cycle. Room for `n_records` (1 … OCT_RING_RECORDS_MAX, rounded up to a power of two) of
 * `record_bytes` (>= 1) each. */
oct_ring *oct_ring_new(guint32 n_records, gsize record_bytes);
void oct_ring_free(oct_ring *ring); /* accepts NULL; neither thread may use it any more */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_ring, oct_ring_free)

/* Producer: copies a record in. FALSE when the ring is full. */
gboolean oct_ring_push(oct_ring *ring, const void *record) G_GNUC_WARN_UNUSED_RESULT;
/* Consumer: copies the oldest record out. FALSE when the ring is empty. */
gboolean oct_ring_pop(oct_ring *ring, void *record) G_GNUC_WARN_UNUSED_RESULT;

/* Inspect. */
guint32 oct_ring_capacity(const oct_ring *ring);
/* Records inside: exact for the consumer and the producer while the other rests, else a moment old.
 */
guint32 oct_ring_count(const oct_ring *ring);

#endif
