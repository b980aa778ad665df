/* The team of threads: every item once, whatever the number of threads and the length of loops. */
#include "backends/cpu/threads.h"

#define ITEMS_MAX 5000

typedef struct tally {
  guint32 seen[ITEMS_MAX]; /* each written by the thread that has the item */
  guint32 n_threads;
} tally;

static void
count_item(void *context, guint32 item, guint32 thread) {
  tally *t = context;
  g_assert_cmpuint(thread, <, t->n_threads);
  t->seen[item]++;
}

static void
every_item_once(void) {
  static const guint32 threads[] = {1, 2, 3, 8};
  static const guint32 lengths[] = {0, 1, 2, 3, 17, ITEMS_MAX};
  for (gsize i = 0; i < G_N_ELEMENTS(threads); i++) {
    g_autoptr(oct_team) team = oct_team_new(threads[i]);
    g_assert_cmpuint(oct_team_threads(team), ==, threads[i]);
    g_autofree tally *t = g_new0(tally, 1);
    guint32 wanted[ITEMS_MAX] = {0};
    t->n_threads = threads[i];
    for (guint round = 0; round < 200; round++) {
      guint32 n = round < 12 ? lengths[round % 6] : (guint32)g_test_rand_int_range(0, 40);
      oct_team_run(team, count_item, t, n);
      for (guint32 k = 0; k < n; k++)
        wanted[k]++;
    }
    g_assert_cmpmem(t->seen, sizeof t->seen, wanted, sizeof wanted);
  }
}

/* Helpers that have gone to sleep wake up again; a team that never ran ends. */
static void
sleepers_wake(void) {
  oct_team_free(oct_team_new(4));
  g_autoptr(oct_team) team = oct_team_new(4);
  g_autofree tally *t = g_new0(tally, 1);
  t->n_threads = 4;
  for (guint32 round = 1; round <= 5; round++) {
    oct_team_run(team, count_item, t, 100);
    for (volatile guint i = 0; i < 3000000; i++) {
      /* some milliseconds, so that they sleep */
    }
    for (guint32 k = 0; k < 100; k++)
      g_assert_cmpuint(t->seen[k], ==, round);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cpu/threads/every-item-once", every_item_once);
  g_test_add_func("/cpu/threads/sleepers-wake", sleepers_wake);
  return g_test_run();
}
