/* The heap of timers.h. */
#include "backends/simgrid/timers.h"

#include "engine/base/assert.h"

void
oct_timers_clear(oct_timers *timers) {
  g_free(timers->heap);
  *timers = (oct_timers){0};
}

static gboolean
before(const oct_timer *a, const oct_timer *b) {
  return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order);
}

static void
put(oct_timers *timers, guint32 index, oct_timer *timer) {
  timers->heap[index] = timer;
  timer->place = index + 1;
}

static void
rise(oct_timers *timers, guint32 index) {
  oct_timer *timer = timers->heap[index];
  while (index > 0 && before(timer, timers->heap[(index - 1) / 2])) {
    put(timers, index, timers->heap[(index - 1) / 2]);
    index = (index - 1) / 2;
  }
  put(timers, index, timer);
}

static void
sink(oct_timers *timers, guint32 index) {
  oct_timer *timer = timers->heap[index];
  for (;;) {
    guint32 child = 2 * index + 1;
    if (child >= timers->n)
      break;
    if (child + 1 < timers->n && before(timers->heap[child + 1], timers->heap[child]))
      child++;
    if (!before(timers->heap[child], timer))
      break;
    put(timers, index, timers->heap[child]);
    index = child;
  }
  put(timers, index, timer);
}

void
oct_timers_arm(oct_timers *timers, oct_timer *timer, oct_time at_ns) {
  oct_assert(timer->fire != NULL);
  timer->at_ns = at_ns;
  timer->order = ++timers->n_armed;
  if (timer->place == 0) {
    if (timers->n == timers->room) {
      timers->room = MAX(2 * timers->room, 64);
      timers->heap = g_renew(oct_timer *, timers->heap, timers->room);
    }
    put(timers, timers->n++, timer);
  }
  rise(timers, timer->place - 1);
  sink(timers, timer->place - 1);
}

void
oct_timers_disarm(oct_timers *timers, oct_timer *timer) {
  if (timer->place == 0)
    return;
  guint32 index = timer->place - 1;
  oct_timer *last = timers->heap[--timers->n];
  timer->place = 0;
  if (last == timer)
    return;
  put(timers, index, last);
  rise(timers, index);
  sink(timers, last->place - 1);
}

oct_timer *
oct_timers_take(oct_timers *timers) {
  oct_assert(timers->n > 0);
  oct_timer *first = timers->heap[0];
  oct_timers_disarm(timers, first);
  return first;
}
