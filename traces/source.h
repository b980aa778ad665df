/* What stands behind an oct_trace: a reader of rows or a generator; internal to traces/.
 *
 * A source yields requests that are final but for `index`, which oct_trace_next() counts, and keeps
 * the ids it lends until its next call. It writes the facts that only it knows; oct_trace_next()
 * writes those that the requests show.
 */
#ifndef OCT_TRACES_SOURCE_H
#define OCT_TRACES_SOURCE_H

#include "traces/trace.h"

typedef struct oct_trace_source_ops {
  /* FALSE at the end, or with error. */
  gboolean (*next)(void *source, oct_trace_facts *facts, oct_trace_request *out, GError **error);
  void (*free)(void *source);
} oct_trace_source_ops;

/* Takes `source`. `facts` is a starting value, copied; limit 0: none. */
oct_trace *oct_trace_new(const char *name, const oct_trace_source_ops *ops, void *source,
                         const oct_trace_facts *facts, guint64 limit);

#endif
