/* Who has to be looked at next: a heap of moments. Internal to engine/http.
 *
 * An entry may be early, never late: its owner moves it forward only when it asks for an earlier
 * moment or is looked at. So an owner whose moment moves away with every byte costs nothing per
 * byte. Memory: grows to the most entries there ever were, from the budget. */
#ifndef OCT_HTTP_TIMERS_H
#define OCT_HTTP_TIMERS_H

#include <glib.h>

#include "engine/base/budget.h"

/* Embedded in its owner; `place` is 0 while it is in no heap. */
typedef struct oct_http_timer {
  gint64 at_ns;
  gsize place;
} oct_http_timer;

typedef struct oct_http_timers {
  oct_budget *budget;
  oct_http_timer **entries; /* [1 … n] */
  gsize n, size;
} oct_http_timers;

/* Room for one more. FALSE with *error (MEMORY). */
gboolean oct_http_timers_reserve(oct_http_timers *timers, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Puts an entry in (there must be room) or moves it. */
void oct_http_timers_set(oct_http_timers *timers, oct_http_timer *timer, gint64 at_ns);
void oct_http_timers_remove(oct_http_timers *timers, oct_http_timer *timer);
/* The earliest, or NULL. */
oct_http_timer *oct_http_timers_first(const oct_http_timers *timers);
void oct_http_timers_clear(oct_http_timers *timers);

#endif
