/* The pool against a naive model that keeps every list in order and looks everything up by
 * scanning: random operations by seed, states, references, order of eviction and index compared
 * after each. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/rng.h"
#include "engine/sched/pool.h"

#define ITEMS_MAX 64
#define KEYS      96 /* few, so that keys collide with what is indexed */

typedef struct model_item {
  oct_item_state state;
  guint32 refs;
  guint64 epoch, writer;
  gboolean indexed, copied;
  guint32 key;
  guint32 note;
} model_item;

typedef struct model {
  oct_pool *pool;
  oct_rng rng;
  guint32 n;
  model_item items[ITEMS_MAX];
  guint32 cached[ITEMS_MAX], n_cached;     /* oldest first */
  guint32 draining[ITEMS_MAX], n_draining; /* in order of release */
  guint64 step, completed;
  guint32 evicted; /* what the callback told, OCT_POOL_NONE = not called */
  guint64 evictions, drained;
} model;

static oct_hash128
key_of(guint32 key) {
  /* Few low bits: the index has to probe. */
  return (oct_hash128){.lo = key % 7, .hi = key};
}

static void
on_evict(void *user, guint32 item) {
  model *m = user;
  m->evicted = item;
  g_assert_cmpuint(oct_pool_find(m->pool, key_of(m->items[item].key)), ==, item);
}

static void
list_remove(guint32 *list, guint32 *n, guint32 item) {
  guint32 at = 0;
  while (at < *n && list[at] != item)
    at++;
  g_assert_cmpuint(at, <, *n);
  memmove(list + at, list + at + 1, (*n - at - 1) * sizeof *list);
  (*n)--;
}

static void
set_state(model *m, guint32 i, oct_item_state state) {
  model_item *it = &m->items[i];
  it->copied = FALSE;
  if (it->state == OCT_ITEM_CACHED)
    list_remove(m->cached, &m->n_cached, i);
  if (it->state == OCT_ITEM_DRAINING)
    list_remove(m->draining, &m->n_draining, i);
  it->state = state;
  if (state == OCT_ITEM_CACHED)
    m->cached[m->n_cached++] = i;
  if (state == OCT_ITEM_DRAINING)
    m->draining[m->n_draining++] = i;
}

static void
settle(model *m, guint32 i) {
  model_item *it = &m->items[i];
  if (it->epoch > m->completed)
    set_state(m, i, OCT_ITEM_DRAINING);
  else
    set_state(m, i, it->indexed ? OCT_ITEM_CACHED : OCT_ITEM_FREE);
}

static guint32
find(const model *m, guint32 key) {
  for (guint32 i = 0; i < m->n; i++)
    if (m->items[i].indexed && m->items[i].key == key)
      return i;
  return OCT_POOL_NONE;
}

/* A random item in a state that `wanted` (a mask of 1 << state) allows. */
static guint32
random_item(model *m, guint wanted) {
  guint32 start = (guint32)oct_rng_below(&m->rng, m->n);
  for (guint32 k = 0; k < m->n; k++) {
    guint32 i = (start + k) % m->n;
    if (wanted & (1u << m->items[i].state))
      return i;
  }
  return OCT_POOL_NONE;
}

static void
do_take(model *m) {
  gboolean any_free = FALSE;
  for (guint32 i = 0; i < m->n; i++)
    any_free |= m->items[i].state == OCT_ITEM_FREE;
  guint32 oldest = m->n_cached > 0 ? m->cached[0] : OCT_POOL_NONE;
  m->evicted = OCT_POOL_NONE;
  guint32 got = oct_pool_take(m->pool);
  if (any_free) {
    g_assert_cmpuint(got, <, m->n);
    g_assert_cmpuint(m->items[got].state, ==, OCT_ITEM_FREE);
    g_assert_cmpuint(m->evicted, ==, OCT_POOL_NONE);
  } else {
    g_assert_cmpuint(got, ==, oldest);
    g_assert_cmpuint(m->evicted, ==, oldest);
    m->evictions += got != OCT_POOL_NONE;
  }
  if (got == OCT_POOL_NONE)
    return;
  set_state(m, got, OCT_ITEM_HELD);
  m->items[got] = (model_item){.state = OCT_ITEM_HELD, .refs = 1};
  if (oct_rng_below(&m->rng, 2) == 0)
    *oct_pool_note(m->pool, got) = m->items[got].note = (guint32)oct_rng_u64(&m->rng);
}

static void
do_ref(model *m) {
  guint32 i = random_item(m, 1u << OCT_ITEM_HELD | 1u << OCT_ITEM_CACHED | 1u << OCT_ITEM_DRAINING);
  if (i == OCT_POOL_NONE || (m->items[i].state != OCT_ITEM_HELD && !m->items[i].indexed))
    return;
  oct_pool_ref(m->pool, i);
  set_state(m, i, OCT_ITEM_HELD);
  m->items[i].refs++;
}

static void
do_unref(model *m, gboolean first) {
  guint32 i = random_item(m, 1u << OCT_ITEM_HELD);
  if (i == OCT_POOL_NONE)
    return;
  model_item *it = &m->items[i];
  /* From long completed to a few steps ahead. */
  guint64 epoch = m->completed + oct_rng_below(&m->rng, 6);
  epoch = epoch > 2 ? epoch - 2 : 0;
  m->step = MAX(m->step, epoch);
  if (first)
    oct_pool_unref_first(m->pool, i, epoch);
  else
    oct_pool_unref(m->pool, i, epoch);
  it->epoch = MAX(it->epoch, epoch);
  if (--it->refs > 0)
    return;
  settle(m, i);
  if (first && it->state == OCT_ITEM_CACHED) {
    it->copied = TRUE;
    list_remove(m->cached, &m->n_cached, i);
    memmove(m->cached + 1, m->cached, m->n_cached * sizeof *m->cached);
    m->cached[0] = i;
    m->n_cached++;
  }
}

static void
do_complete(model *m) {
  m->completed += oct_rng_below(&m->rng, 3);
  oct_pool_complete(m->pool, m->completed);
  guint32 order[ITEMS_MAX], n = m->n_draining;
  memcpy(order, m->draining, n * sizeof *order);
  for (guint32 k = 0; k < n; k++)
    if (m->items[order[k]].epoch <= m->completed) {
      settle(m, order[k]);
      m->drained++;
    }
}

static void
do_index(model *m) {
  guint32 i = random_item(m, 1u << OCT_ITEM_HELD), key = (guint32)oct_rng_below(&m->rng, KEYS);
  if (i == OCT_POOL_NONE || m->items[i].indexed)
    return;
  guint64 writer = oct_rng_below(&m->rng, 2) * (m->completed + 1);
  gboolean done = oct_pool_index(m->pool, i, key_of(key), writer);
  g_assert_cmpint(done, ==, find(m, key) == OCT_POOL_NONE);
  if (!done)
    return;
  m->items[i].indexed = TRUE;
  m->items[i].key = key;
  m->items[i].writer = writer;
}

static void
do_withdraw(model *m) {
  guint32 i = (guint32)oct_rng_below(&m->rng, m->n);
  oct_pool_withdraw(m->pool, i);
  if (m->items[i].indexed && m->items[i].state == OCT_ITEM_CACHED)
    set_state(m, i, OCT_ITEM_FREE);
  m->items[i].indexed = FALSE;
}

static void
do_touch(model *m) {
  guint32 i = (guint32)oct_rng_below(&m->rng, m->n);
  oct_pool_touch(m->pool, i);
  if (m->items[i].state == OCT_ITEM_CACHED)
    set_state(m, i, OCT_ITEM_CACHED);
}

static guint32
oldest_uncopied(const model *m) {
  for (guint32 k = 0; k < m->n_cached; k++)
    if (!m->items[m->cached[k]].copied)
      return m->cached[k];
  return OCT_POOL_NONE;
}

static void
do_set_copied(model *m) {
  guint32 i = oldest_uncopied(m);
  g_assert_cmpuint(oct_pool_oldest_uncopied(m->pool), ==, i);
  if (i == OCT_POOL_NONE)
    return;
  oct_pool_set_copied(m->pool);
  m->items[i].copied = TRUE;
}

static void
compare(model *m) {
  guint32 counts[4] = {0}, copied = 0;
  for (guint32 i = 0; i < m->n; i++) {
    const model_item *it = &m->items[i];
    counts[it->state]++;
    copied += it->copied;
    g_assert_cmpuint(oct_pool_state(m->pool, i), ==, it->state);
    g_assert_cmpuint(oct_pool_refs(m->pool, i), ==, it->refs);
    g_assert_cmpuint(oct_pool_indexed(m->pool, i), ==, it->indexed);
    g_assert_cmpuint(*oct_pool_note(m->pool, i), ==, it->note);
    if (!it->indexed)
      continue;
    g_assert_true(oct_hash128_equal(oct_pool_key(m->pool, i), key_of(it->key)));
    g_assert_cmpuint(oct_pool_writer(m->pool, i), ==, it->writer);
  }
  for (int s = 0; s < 4; s++)
    g_assert_cmpuint(oct_pool_count(m->pool, (oct_item_state)s), ==, counts[s]);
  g_assert_cmpuint(oct_pool_available(m->pool), ==,
                   counts[OCT_ITEM_FREE] + counts[OCT_ITEM_CACHED]);
  guint32 item = oct_pool_oldest(m->pool);
  for (guint32 k = 0; k < m->n_cached; k++) {
    g_assert_cmpuint(item, ==, m->cached[k]);
    item = oct_pool_next_oldest(m->pool, item);
  }
  g_assert_cmpuint(item, ==, OCT_POOL_NONE);
  g_assert_cmpuint(oct_pool_copied(m->pool), ==, copied);
  /* Now and then only: a place that is found late is found too. */
  if (oct_rng_below(&m->rng, 4) == 0)
    g_assert_cmpuint(oct_pool_oldest_uncopied(m->pool), ==, oldest_uncopied(m));
  guint32 key = (guint32)oct_rng_below(&m->rng, KEYS);
  g_assert_cmpuint(oct_pool_find(m->pool, key_of(key)), ==, find(m, key));
}

static void
operate(model *m) {
  switch (oct_rng_below(&m->rng, 13)) {
  case 0:
  case 1:
  case 2:
    do_take(m);
    break;
  case 3:
    do_ref(m);
    break;
  case 4:
  case 5:
  case 6:
    do_unref(m, FALSE);
    break;
  case 7:
    do_unref(m, TRUE);
    break;
  case 8:
    do_complete(m);
    break;
  case 9:
    do_index(m);
    break;
  case 10:
    do_withdraw(m);
    break;
  case 11:
    do_set_copied(m);
    break;
  default:
    do_touch(m);
  }
}

static void
run(guint64 seed, guint32 n_items, guint32 n_ops) {
  model m = {.n = n_items, .pool = oct_pool_new(n_items)};
  oct_rng_seed(&m.rng, seed, 1);
  oct_pool_on_evict(m.pool, on_evict, &m);
  g_test_message("seed %" G_GUINT64_FORMAT ", %u items", seed, n_items);
  for (guint32 op = 0; op < n_ops; op++) {
    operate(&m);
    compare(&m);
    if (op % 997 != 0)
      continue;
    g_autoptr(GError) error = NULL;
    g_assert_true(oct_pool_check(m.pool, &error));
    g_assert_no_error(error);
  }
  if (n_items > 2) {
    g_assert_cmpuint(m.evictions, >, n_ops / 1000);
    g_assert_cmpuint(m.drained, >, n_ops / 1000);
  }
  oct_pool_reset(m.pool);
  g_assert_cmpuint(oct_pool_count(m.pool, OCT_ITEM_FREE), ==, n_items);
  for (guint32 key = 0; key < KEYS; key++)
    g_assert_cmpuint(oct_pool_find(m.pool, key_of(key)), ==, OCT_POOL_NONE);
  oct_pool_free(m.pool);
}

static void
test_model(void) {
  static const guint32 sizes[] = {1, 2, 5, 17, ITEMS_MAX};
  for (guint i = 0; i < G_N_ELEMENTS(sizes); i++)
    run(i + 1, sizes[i], 20000);
}

/* Invariant 2: what a step in flight may touch is not handed out, also when nothing else is left.
 */
static void
test_epoch(void) {
  oct_pool *pool = oct_pool_new(2);
  guint32 a = oct_pool_take(pool), b = oct_pool_take(pool);
  g_assert_true(oct_pool_index(pool, a, key_of(1), 0));
  oct_pool_unref(pool, a, 7);
  oct_pool_unref(pool, b, 8);
  g_assert_cmpuint(oct_pool_take(pool), ==, OCT_POOL_NONE);
  oct_pool_complete(pool, 6);
  g_assert_cmpuint(oct_pool_take(pool), ==, OCT_POOL_NONE);
  g_assert_cmpuint(oct_pool_find(pool, key_of(1)), ==, a);
  /* A hit on a draining item holds it, and its epoch is not forgotten. */
  oct_pool_ref(pool, a);
  oct_pool_unref(pool, a, 0);
  g_assert_cmpuint(oct_pool_state(pool, a), ==, OCT_ITEM_DRAINING);
  oct_pool_complete(pool, 7);
  g_assert_cmpuint(oct_pool_state(pool, a), ==, OCT_ITEM_CACHED);
  g_assert_cmpuint(oct_pool_state(pool, b), ==, OCT_ITEM_DRAINING);
  g_assert_cmpuint(oct_pool_take(pool), ==, a);
  oct_pool_free(pool);
}

static void
test_books(void) {
  oct_pool *pool = oct_pool_new(3);
  g_autoptr(GError) error = NULL;
  g_assert_cmpuint(oct_pool_total(pool), ==, 3);
  g_assert_cmpuint(oct_pool_oldest(pool), ==, OCT_POOL_NONE);
  for (guint32 i = 0; i < 3; i++)
    g_assert_cmpuint(oct_pool_take(pool), ==, i);
  g_assert_true(oct_pool_check(pool, &error));
  g_assert_true(oct_pool_index(pool, 0, key_of(1), 0));
  g_assert_false(oct_pool_index(pool, 1, key_of(1), 0));
  g_assert_true(oct_pool_check(pool, &error));
  g_assert_no_error(error);
  oct_pool_free(pool);
  oct_pool_free(NULL);
  oct_pool *empty = oct_pool_new(0);
  g_assert_cmpuint(oct_pool_take(empty), ==, OCT_POOL_NONE);
  g_assert_true(oct_pool_check(empty, &error));
  oct_pool_free(empty);
}

/* An item without a name is cached and evicted like others, and found only once it is named under
 * the mark that it bears. */
static void
test_unnamed(void) {
  oct_pool *pool = oct_pool_new(2);
  g_autoptr(GError) error = NULL;
  guint32 a = oct_pool_take(pool), b = oct_pool_take(pool);
  oct_pool_index_unnamed(pool, a, key_of(1), 0);
  oct_pool_index_unnamed(pool, b, key_of(2), 0);
  g_assert_cmpuint(oct_pool_find(pool, key_of(1)), ==, OCT_POOL_NONE);
  oct_pool_unref(pool, a, 0);
  oct_pool_unref(pool, b, 0);
  g_assert_cmpuint(oct_pool_count(pool, OCT_ITEM_CACHED), ==, 2);
  oct_pool_name(pool, b, key_of(1), key_of(51));
  g_assert_cmpuint(oct_pool_find(pool, key_of(51)), ==, OCT_POOL_NONE);
  oct_pool_name(pool, b, key_of(2), key_of(52));
  g_assert_cmpuint(oct_pool_find(pool, key_of(52)), ==, b);
  g_assert_true(oct_pool_check(pool, &error));
  /* The oldest goes; what bears another mark since is not named. */
  g_assert_cmpuint(oct_pool_take(pool), ==, a);
  oct_pool_index_unnamed(pool, a, key_of(3), 0);
  oct_pool_name(pool, a, key_of(1), key_of(51));
  g_assert_cmpuint(oct_pool_find(pool, key_of(51)), ==, OCT_POOL_NONE);
  oct_pool_unref(pool, a, 0);
  oct_pool_withdraw(pool, a);
  g_assert_cmpuint(oct_pool_count(pool, OCT_ITEM_FREE), ==, 1);
  g_assert_true(oct_pool_check(pool, &error));
  g_assert_no_error(error);
  oct_pool_free(pool);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/pool/does-as-a-naive-model-over-100000-operations", test_model);
  g_test_add_func("/sched/pool/hands-out-nothing-that-a-step-may-touch", test_epoch);
  g_test_add_func("/sched/pool/refuses-a-second-item-under-a-key", test_books);
  g_test_add_func("/sched/pool/finds-an-unnamed-item-once-it-is-named", test_unnamed);
  return g_test_run();
}
