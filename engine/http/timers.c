#include "engine/http/timers.h"

#include "engine/base/assert.h"

#define FIRST_ENTRIES 64

static void
put(oct_http_timers *t, gsize place, oct_http_timer *timer) {
  t->entries[place] = timer;
  timer->place = place;
}

/* Moves the entry of that place to where it belongs. */
static void
settle(oct_http_timers *t, gsize place) {
  oct_http_timer *timer = t->entries[place];
  while (place > 1 && t->entries[place / 2]->at_ns > timer->at_ns) {
    put(t, place, t->entries[place / 2]);
    place /= 2;
  }
  for (gsize child; (child = 2 * place) <= t->n; place = child) {
    if (child < t->n && t->entries[child + 1]->at_ns < t->entries[child]->at_ns)
      child++;
    if (t->entries[child]->at_ns >= timer->at_ns)
      break;
    put(t, place, t->entries[child]);
  }
  put(t, place, timer);
}

gboolean
oct_http_timers_reserve(oct_http_timers *timers, GError **error) {
  if (timers->n + 1 < timers->size)
    return TRUE;
  gsize size = MAX(2 * timers->size, FIRST_ENTRIES);
  oct_http_timer **grown =
      oct_budget_resize(timers->budget, timers->entries, size, sizeof *grown, error);
  if (grown == NULL)
    return FALSE;
  timers->entries = grown;
  timers->size = size;
  return TRUE;
}

void
oct_http_timers_set(oct_http_timers *timers, oct_http_timer *timer, gint64 at_ns) {
  timer->at_ns = at_ns;
  if (timer->place == 0) {
    oct_assert(timers->n + 1 < timers->size);
    put(timers, ++timers->n, timer);
  }
  settle(timers, timer->place);
}

void
oct_http_timers_remove(oct_http_timers *timers, oct_http_timer *timer) {
  if (timer->place == 0)
    return;
  gsize place = timer->place;
  oct_http_timer *last = timers->entries[timers->n--];
  timer->place = 0;
  if (last == timer)
    return;
  put(timers, place, last);
  settle(timers, place);
}

oct_http_timer *
oct_http_timers_first(const oct_http_timers *timers) {
  return timers->n > 0 ? timers->entries[1] : NULL;
}

void
oct_http_timers_clear(oct_http_timers *timers) {
  oct_budget_release(timers->budget, timers->entries);
  timers->entries = NULL;
  timers->n = timers->size = 0;
}
