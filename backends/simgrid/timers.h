/* What is due: a binary heap of timers, ordered by time and, at one time, by the order of arming.
 * A timer lives inside the struct that it belongs to, so arming allocates nothing once the heap's
 * array has reached its largest size.
 */
#ifndef OCT_BACKENDS_SIMGRID_TIMERS_H
#define OCT_BACKENDS_SIMGRID_TIMERS_H

#include "engine/backend.h"

typedef struct oct_timer oct_timer;
typedef void (*oct_timer_fn)(oct_timer *timer);

struct oct_timer {
  oct_time at_ns;
  guint64 order;     /* of arming */
  guint32 place;     /* index in the heap + 1; 0 = not armed */
  oct_timer_fn fire; /* called with the timer disarmed */
  gpointer owner;
};

typedef struct oct_timers {
  oct_timer **heap;
  guint32 n, room;
  guint64 n_armed;
} oct_timers;

void oct_timers_clear(oct_timers *timers); /* frees the array, not the timers */
/* Arms, or moves when armed. `fire` and `owner` are the caller's to set. */
void oct_timers_arm(oct_timers *timers, oct_timer *timer, oct_time at_ns);
void oct_timers_disarm(oct_timers *timers, oct_timer *timer); /* no effect when not armed */
/* Removes and returns the first; at least one is armed. */
oct_timer *oct_timers_take(oct_timers *timers);

static inline oct_time
oct_timers_next(const oct_timers *timers) {
  return timers->n > 0 ? timers->heap[0]->at_ns : OCT_TIME_NEVER;
}

/* The earliest time of all timers but the first. */
static inline oct_time
oct_timers_second(const oct_timers *timers) {
  if (timers->n < 2)
    return OCT_TIME_NEVER;
  oct_time left = timers->heap[1]->at_ns;
  return timers->n > 2 ? MIN(left, timers->heap[2]->at_ns) : left;
}

static inline gboolean
oct_timer_armed(const oct_timer *timer) {
  return timer->place != 0;
}

#endif
