/* When each request of a trace is sent: by its time, after its parent, or when a slot gets free.
 *
 * The feed holds what it must: one row with a time ahead of the clock, turns whose parent has not
 * ended, and an entry for each request that is out. Its driver asks when the next one is due, takes
 * it, and says when each has ended. traces/trace.h defines the kinds of arrival.
 *
 *   - A row with a time is due then.
 *   - A dependent turn is due think_ns after its parent's end, however the parent ended (a client
 * that was refused comes back as one that was answered does); at once when it is read too late for
 * that.
 *   - A row without either takes a slot when one is free and is due think_ns after that. Its
 * session's turns keep the slot; it gets free when the last of them that has been read has ended.
 *
 * Requests due at the same time come in the order in which they became known. One thread.
 */
#ifndef OCT_SIM_REPLAY_FEED_H
#define OCT_SIM_REPLAY_FEED_H

#include "engine/backend.h"
#include "sim/replay/rows.h"

typedef struct oct_feed oct_feed;
typedef struct oct_feed_entry oct_feed_entry;

typedef struct oct_feed_request {
  const oct_trace_request *row; /* borrowed until the next take */
  oct_time due_ns;
  guint64 salt;          /* of oct_rows_next() */
  oct_feed_entry *entry; /* for oct_feed_ended() */
} oct_feed_request;

/* Life cycle. Rows are borrowed. concurrency: slots of a closed loop, 0 = what the trace states. */
oct_feed *oct_feed_new(oct_rows *rows, guint32 concurrency);
void oct_feed_free(oct_feed *feed); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_feed, oct_feed_free)

/* Use.
 * Reads ahead as far as `now` allows and tells when the next request is due (never before the last
 * taken one's `now`): OCT_TIME_NEVER when that depends on an end, or nothing is left. FALSE:
 * *error. */
gboolean oct_feed_due(oct_feed *feed, oct_time now, oct_time *due,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The request that oct_feed_due() told of. */
void oct_feed_take(oct_feed *feed, oct_feed_request *out);
/* A taken request has ended, in whatever way, as its client saw it at `at`. Once each. */
void oct_feed_ended(oct_feed *feed, oct_feed_entry *entry, oct_time at);

/* Inspect. Nothing is left that could be sent; requests may still be out. Valid after
 * oct_feed_due(). */
gboolean oct_feed_is_exhausted(const oct_feed *feed);
gboolean
oct_feed_is_closed_loop(const oct_feed *feed); /* a row without time or parent has been read */
guint32 oct_feed_concurrency(const oct_feed *feed);

#endif
