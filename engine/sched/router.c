#include "engine/sched/router.h"

#include <math.h>

#include "engine/base/assert.h"

guint32
oct_router_least_loaded(guint32 n, guint32 from, oct_router_load_fn load, void *user) {
  oct_assert(from < n);
  guint32 best = n;
  double least = INFINITY;
  for (guint32 k = 0; k < n; k++) {
    const guint32 i = (from + k) % n;
    const double tokens = load(user, i);
    if (tokens < least) {
      least = tokens;
      best = i;
    }
  }
  return best;
}
