/* A spool whose writer is held: who pushes goes on, what finds no room is counted and told. */
#include <string.h>

#include "engine/base/spool.h"
#include "engine/base/worker.h"

typedef struct fixture {
  oct_spool *spool;
  oct_bell *begun, *go; /* of the first write */
  GString *out;
  guint n_written;
} fixture;

static guint n_discarded;

static void
write_item(void *user, void *item) {
  fixture *f = user;
  if (f->n_written++ == 0) {
    oct_bell_ring(f->begun);
    oct_bell_wait(f->go);
  }
  g_string_append(f->out, item);
}

static void
on_dropped(void *user, guint64 n) {
  g_string_append_printf(((fixture *)user)->out, "<%" G_GUINT64_FORMAT ">", n);
}

static void
discard(void *item) {
  g_free(item);
  n_discarded++;
}

/* The first item is being written when this returns. */
static void
set_up(fixture *f, guint items, gsize bytes) {
  g_autoptr(GError) error = NULL;
  n_discarded = 0;
  *f = (fixture){.begun = oct_bell_new(), .go = oct_bell_new(), .out = g_string_new(NULL)};
  const oct_spool_config config = {.name = "test-spool",
                                   .items_max = items,
                                   .bytes_max = bytes,
                                   .write = write_item,
                                   .dropped = on_dropped,
                                   .discard = discard,
                                   .user = f};
  f->spool = oct_spool_new(&config, &error);
  g_assert_no_error(error);
  g_assert_true(oct_spool_is_idle(f->spool));
  g_assert_true(oct_spool_push(f->spool, g_strdup("a"), 1));
  oct_bell_wait(f->begun);
  g_assert_false(oct_spool_is_idle(f->spool));
}

/* Lets the writer go on; what it wrote. */
static void
tear_down(fixture *f, const char *expected, guint n_items) {
  oct_spool_end(f->spool);
  g_assert_false(oct_spool_is_idle(f->spool));
  oct_bell_ring(f->go);
  oct_spool_free(f->spool);
  g_assert_cmpstr(f->out->str, ==, expected);
  g_assert_cmpuint(n_discarded, ==, n_items);
  oct_bell_free(f->begun);
  oct_bell_free(f->go);
  g_string_free(f->out, TRUE);
}

static void
test_order(void) {
  fixture f;
  set_up(&f, 8, 100);
  g_assert_true(oct_spool_push(f.spool, g_strdup("b"), 1));
  g_assert_true(oct_spool_push(f.spool, g_strdup("c"), 1));
  g_assert_cmpuint(oct_spool_dropped(f.spool), ==, 0);
  tear_down(&f, "abc", 3);
}

static void
test_full(void) {
  fixture f;
  set_up(&f, 2, 100);
  g_assert_true(oct_spool_push(f.spool, g_strdup("b"), 1));
  g_assert_true(oct_spool_push(f.spool, g_strdup("c"), 1));
  g_assert_false(oct_spool_push(f.spool, g_strdup("x"), 1));
  g_assert_false(oct_spool_push(f.spool, g_strdup("y"), 1));
  g_assert_cmpuint(oct_spool_dropped(f.spool), ==, 2);
  tear_down(&f, "a<2>bc", 5);
}

static void
test_bytes(void) {
  fixture f;
  set_up(&f, 8, 10);
  g_assert_false(oct_spool_push(f.spool, g_strdup("x"), 10)); /* one is being written */
  g_assert_true(oct_spool_push(f.spool, g_strdup("b"), 9));
  g_assert_false(oct_spool_push(f.spool, g_strdup("y"), 1));
  tear_down(&f, "a<2>b", 4);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/base/spool/writes-all-in-order-before-its-end", test_order);
  g_test_add_func("/base/spool/one-more-than-it-takes-is-dropped-and-told", test_full);
  g_test_add_func("/base/spool/bytes-that-wait-are-bounded", test_bytes);
  return g_test_run();
}
