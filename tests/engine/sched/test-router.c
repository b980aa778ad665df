/* The replica that takes the next request. */
#include "engine/sched/router.h"

#include <math.h>

#include "engine/base/rng.h"

#define REPLICAS 7

typedef struct books {
  double load[REPLICAS];
  guint asked[REPLICAS];
} books;

static double
load_of(void *user, guint32 i) {
  books *b = user;
  b->asked[i]++;
  return b->load[i];
}

static void
test_least(void) {
  oct_rng rng;
  oct_rng_seed(&rng, 11, 0);
  for (guint round = 0; round < 5000; round++) {
    books b = {0};
    const guint32 n = 1 + oct_rng_below(&rng, REPLICAS), from = oct_rng_below(&rng, n);
    for (guint32 i = 0; i < n; i++)
      b.load[i] = oct_rng_below(&rng, 5) == 0 ? INFINITY : oct_rng_below(&rng, 4);
    const guint32 chosen = oct_router_least_loaded(n, from, load_of, &b);
    for (guint32 i = 0; i < n; i++)
      g_assert_cmpuint(b.asked[i], ==, 1);
    if (chosen == n) {
      for (guint32 i = 0; i < n; i++)
        g_assert_true(isinf(b.load[i]));
      continue;
    }
    for (guint32 i = 0; i < n; i++) {
      g_assert_cmpfloat(b.load[chosen], <=, b.load[i]);
      if (b.load[i] == b.load[chosen]) /* of equals the first in turn */
        g_assert_cmpuint((chosen + n - from) % n, <=, (i + n - from) % n);
    }
  }
}

static void
test_none(void) {
  books b = {.load = {INFINITY, INFINITY, INFINITY}};
  g_assert_cmpuint(oct_router_least_loaded(3, 1, load_of, &b), ==, 3);
  b.load[2] = 1e15;
  g_assert_cmpuint(oct_router_least_loaded(3, 1, load_of, &b), ==, 2);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/router/the-least-loaded-and-of-equals-the-first-in-turn", test_least);
  g_test_add_func("/sched/router/nobody-where-nobody-takes-anything", test_none);
  return g_test_run();
}
