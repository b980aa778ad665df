#include "engine/base/worker.h"

#include "engine/base/ring.h"

typedef struct relay {
  oct_ring *in, *out;
  oct_bell *bell, *back;
  guint32 last;
} relay;

/* Sends on what it gets, until it got the last. */
static void
run(void *data) {
  relay *r = data;
  for (;;) {
    guint32 value = 0;
    while (oct_ring_pop(r->in, &value)) {
      g_assert_true(oct_ring_push(r->out, &value));
      oct_bell_ring(r->back);
      if (value == r->last)
        return;
    }
    oct_bell_wait(r->bell);
  }
}

static void
hands_over(void) {
  relay r = {.in = oct_ring_new(1024, sizeof(guint32)),
             .out = oct_ring_new(1024, sizeof(guint32)),
             .bell = oct_bell_new(),
             .back = oct_bell_new(),
             .last = 1000};
  g_autoptr(oct_worker) worker = oct_worker_new("a name that is too long to show", run, &r, NULL);
  g_assert_nonnull(worker);
  guint32 wanted = 1, value;
  for (guint32 i = 1; i <= r.last; i++) {
    g_assert_true(oct_ring_push(r.in, &i));
    oct_bell_ring(r.bell);
  }
  while (wanted <= r.last) {
    oct_bell_wait(r.back);
    while (oct_ring_pop(r.out, &value))
      g_assert_cmpuint(value, ==, wanted++);
  }
  g_clear_pointer(&worker, oct_worker_free);
  oct_ring_free(r.in);
  oct_ring_free(r.out);
  oct_bell_free(r.bell);
  oct_bell_free(r.back);
}

/* Rung before anyone waits, any number of times: one wait returns at once. */
static void
early_rings_count_once(void) {
  g_autoptr(oct_bell) bell = oct_bell_new();
  oct_bell_ring(bell);
  oct_bell_ring(bell);
  oct_bell_wait(bell);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/worker/hands-over-in-order", hands_over);
  g_test_add_func("/worker/early-rings-are-not-lost", early_rings_count_once);
  return g_test_run();
}
