/* A ring that its producer cannot overflow: what does not fit waits on the producer's side, in
 * order, until oct_outbox_flush(). For hand-overs that are bounded by what is live (a command per
 * generation, a mask per choice), so that neither side ever waits for the other.
 *
 * The producer pushes and flushes, the consumer pops.
 */
#ifndef OCT_SERVE_OUTBOX_H
#define OCT_SERVE_OUTBOX_H

#include "engine/base/ring.h"

typedef struct oct_outbox oct_outbox;

/* Life cycle. As oct_ring_new(). */
oct_outbox *oct_outbox_new(guint32 n_records, gsize record_bytes);
void oct_outbox_free(oct_outbox *box); /* accepts NULL */

/* Producer. */
void oct_outbox_push(oct_outbox *box, const void *record);
/* Moves what waits into the ring. FALSE: some still waits. */
gboolean oct_outbox_flush(oct_outbox *box);
/* Consumer. FALSE: empty. */
gboolean oct_outbox_pop(oct_outbox *box, void *record) G_GNUC_WARN_UNUSED_RESULT;
/* Consumer: records in the ring, a moment old. */
guint32 oct_outbox_count(const oct_outbox *box);

#endif
