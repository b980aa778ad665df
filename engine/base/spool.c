#include "engine/base/spool.h"

#include <stdatomic.h>

#include "engine/base/ring.h"
#include "engine/base/worker.h"

typedef struct oct_spooled {
  void *item;
  gsize bytes;
} oct_spooled;

struct oct_spool {
  oct_spool_config config;
  oct_ring *ring; /* oct_spooled */
  oct_bell *bell;
  oct_worker *worker;
  atomic_bool quit, through;
  _Atomic gsize bytes; /* that wait, the one being written among them */
  _Atomic guint64 n_pushed, n_written, n_dropped;
};

static void
tell_dropped(oct_spool *s, guint64 *told) {
  guint64 dropped = atomic_load(&s->n_dropped);
  if (dropped > *told && s->config.dropped != NULL)
    s->config.dropped(s->config.user, dropped - *told);
  *told = dropped;
}

static void
write_all(oct_spool *s, guint64 *told) {
  oct_spooled one;
  while (oct_ring_pop(s->ring, &one)) {
    tell_dropped(s, told);
    s->config.write(s->config.user, one.item);
    s->config.discard(one.item);
    atomic_fetch_sub(&s->bytes, one.bytes);
    atomic_fetch_add(&s->n_written, 1);
  }
  tell_dropped(s, told);
}

static void
run(void *data) {
  oct_spool *s = data;
  guint64 told = 0;
  gboolean over;
  do {
    oct_bell_wait(s->bell);
    /* Asked before the ring is emptied: what was pushed before the end is among it. */
    over = atomic_load(&s->quit);
    write_all(s, &told);
  } while (!over);
  atomic_store(&s->through, TRUE);
}

oct_spool *
oct_spool_new(const oct_spool_config *config, GError **error) {
  oct_spool *s = g_new0(oct_spool, 1);
  s->config = *config;
  s->ring = oct_ring_new(config->items_max, sizeof(oct_spooled));
  s->bell = oct_bell_new();
  s->worker = oct_worker_new(config->name, run, s, error);
  if (s->worker != NULL)
    return s;
  oct_spool_free(s);
  return NULL;
}

void
oct_spool_end(oct_spool *s) {
  atomic_store(&s->quit, TRUE);
  oct_bell_ring(s->bell);
}

void
oct_spool_free(oct_spool *s) {
  if (s == NULL)
    return;
  oct_spool_end(s);
  oct_worker_free(s->worker);
  oct_ring_free(s->ring);
  oct_bell_free(s->bell);
  g_free(s);
}

gboolean
oct_spool_push(oct_spool *s, void *item, gsize bytes) {
  gboolean room = atomic_load(&s->bytes) + bytes <= s->config.bytes_max;
  if (room) {
    atomic_fetch_add(&s->bytes, bytes);
    atomic_fetch_add(&s->n_pushed, 1);
    if (oct_ring_push(s->ring, &(oct_spooled){item, bytes})) {
      oct_bell_ring(s->bell);
      return TRUE;
    }
    atomic_fetch_sub(&s->n_pushed, 1);
    atomic_fetch_sub(&s->bytes, bytes);
  }
  atomic_fetch_add(&s->n_dropped, 1);
  s->config.discard(item);
  return FALSE;
}

gboolean
oct_spool_is_idle(const oct_spool *s) {
  if (atomic_load(&s->quit))
    return atomic_load(&s->through);
  return atomic_load(&s->n_written) == atomic_load(&s->n_pushed);
}

guint64
oct_spool_dropped(const oct_spool *s) {
  return atomic_load(&s->n_dropped);
}
