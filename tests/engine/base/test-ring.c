#include "engine/base/ring.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "engine/base/rng.h"

static void
full_and_empty(void) {
  g_autoptr(oct_ring) ring = oct_ring_new(3, sizeof(guint64));
  guint64 out = 99;
  g_assert_cmpuint(oct_ring_capacity(ring), ==, 4);
  g_assert_false(oct_ring_pop(ring, &out));
  g_assert_cmpuint(out, ==, 99);
  for (guint64 i = 0; i < 4; i++) {
    g_assert_cmpuint(oct_ring_count(ring), ==, i);
    g_assert_true(oct_ring_push(ring, &i));
  }
  g_assert_false(oct_ring_push(ring, &out));
  g_assert_cmpuint(oct_ring_count(ring), ==, 4);
  for (guint64 i = 0; i < 4; i++) {
    g_assert_true(oct_ring_pop(ring, &out));
    g_assert_cmpuint(out, ==, i);
  }
  g_assert_false(oct_ring_pop(ring, &out));
}

static void
one_record(void) {
  g_autoptr(oct_ring) ring = oct_ring_new(1, 3);
  char out[4] = "";
  for (int i = 0; i < 5; i++) {
    g_assert_true(oct_ring_push(ring, "abc"));
    g_assert_false(oct_ring_push(ring, "xyz"));
    g_assert_true(oct_ring_pop(ring, out));
    g_assert_cmpstr(out, ==, "abc");
    g_assert_false(oct_ring_pop(ring, out));
  }
}

/* Any interleaving of pushes and pops behaves as a queue does. */
static void
random_like_a_queue(void) {
  g_autoptr(oct_ring) ring = oct_ring_new(8, sizeof(guint32));
  oct_rng rng;
  oct_rng_seed(&rng, 4, 4);
  guint32 pushed = 0, popped = 0;
  for (int i = 0; i < 100000; i++) {
    guint32 out;
    if (oct_rng_u64(&rng) & 1) {
      gboolean room = pushed - popped < 8;
      g_assert_cmpint(oct_ring_push(ring, &pushed), ==, room);
      pushed += room;
    } else if (oct_ring_pop(ring, &out)) {
      g_assert_cmpuint(out, ==, popped++);
    } else {
      g_assert_cmpuint(pushed, ==, popped);
    }
    g_assert_cmpuint(oct_ring_count(ring), ==, pushed - popped);
  }
}

#define N_RECORDS 200000u

typedef struct record {
  guint64 number;
  guint64 body[5]; /* each a function of the number: a torn record shows */
} record;

static void *
produce(void *data) {
  oct_ring *ring = data;
  for (guint64 i = 0; i < N_RECORDS; i++) {
    record r = {.number = i};
    for (guint k = 0; k < 5; k++)
      r.body[k] = oct_mix64(i + k);
    while (!oct_ring_push(ring, &r))
      sched_yield();
  }
  return NULL;
}

static void
across_threads(gconstpointer capacity) {
  g_autoptr(oct_ring) ring = oct_ring_new(GPOINTER_TO_UINT(capacity), sizeof(record));
  pthread_t producer;
  g_assert_cmpint(pthread_create(&producer, NULL, produce, ring), ==, 0);
  guint64 wrong = 0;
  for (guint64 i = 0; i < N_RECORDS; i++) {
    record r;
    while (!oct_ring_pop(ring, &r))
      sched_yield();
    wrong += r.number != i;
    for (guint k = 0; k < 5; k++)
      wrong += r.body[k] != oct_mix64(i + k);
    wrong += oct_ring_count(ring) > oct_ring_capacity(ring);
  }
  g_assert_cmpint(pthread_join(producer, NULL), ==, 0);
  g_assert_cmpuint(wrong, ==, 0);
  g_assert_cmpuint(oct_ring_count(ring), ==, 0);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/base/ring/says-when-full-or-empty", full_and_empty);
  g_test_add_func("/base/ring/may-hold-one-record", one_record);
  g_test_add_func("/base/ring/is-a-queue-in-any-interleaving", random_like_a_queue);
  g_test_add_data_func("/base/ring/keeps-order-and-content-across-threads/2", GUINT_TO_POINTER(2),
                       across_threads);
  g_test_add_data_func("/base/ring/keeps-order-and-content-across-threads/1024",
                       GUINT_TO_POINTER(1024), across_threads);
  return g_test_run();
}
