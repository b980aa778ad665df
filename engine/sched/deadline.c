/* Requests that may run out of time: a heap by their deadlines. One that has ended before stays in
 * it until its time comes, or until such ones are the most. */
#include "engine/sched/internal.h"

/* Entries of ended requests are not worth looking for among fewer. */
#define SWEEP_MIN 64

typedef struct entry {
  oct_time at;
  oct_request_id id;
} entry;

static entry *
entries_of(oct_engine *engine) {
  return (entry *)(void *)engine->deadlines->data;
}

static gboolean
before(const entry *a, const entry *b) {
  return a->at != b->at ? a->at < b->at : a->id < b->id;
}

static void
push(oct_engine *engine, entry e) {
  g_array_append_val(engine->deadlines, e);
  entry *heap = entries_of(engine);
  guint i = engine->deadlines->len - 1;
  for (; i > 0 && before(&e, &heap[(i - 1) / 2]); i = (i - 1) / 2)
    heap[i] = heap[(i - 1) / 2];
  heap[i] = e;
}

static void
pop(oct_engine *engine) {
  entry *heap = entries_of(engine);
  const guint n = engine->deadlines->len - 1;
  const entry last = heap[n];
  guint i = 0;
  for (guint child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && before(&heap[child + 1], &heap[child]))
      child++;
    if (!before(&heap[child], &last))
      break;
    heap[i] = heap[child];
  }
  heap[i] = last;
  g_array_set_size(engine->deadlines, n);
}

/* Leaves the live ones alone, when they are fewer than half. */
static void
sweep(oct_engine *engine) {
  if (engine->deadlines->len < SWEEP_MIN ||
      engine->deadlines->len < 2 * g_hash_table_size(engine->by_id))
    return;
  g_autoptr(GArray) old = engine->deadlines;
  engine->deadlines = g_array_new(FALSE, FALSE, sizeof(entry));
  for (guint i = 0; i < old->len; i++) {
    const entry e = g_array_index(old, entry, i);
    if (g_hash_table_contains(engine->by_id, &e.id))
      push(engine, e);
  }
}

void
oct_deadlines_init(oct_engine *engine) {
  engine->deadlines = g_array_new(FALSE, FALSE, sizeof(entry));
}

void
oct_deadlines_free(oct_engine *engine) {
  g_clear_pointer(&engine->deadlines, g_array_unref);
}

void
oct_deadline_add(oct_engine *engine, const oct_request *request) {
  if (request->deadline_ns == 0)
    return;
  sweep(engine);
  push(engine, (entry){request->deadline_ns, request->id});
}

static int
by_id(gconstpointer a, gconstpointer b) {
  const oct_request_id x = *(const oct_request_id *)a, y = *(const oct_request_id *)b;
  return (x > y) - (x < y);
}

oct_time
oct_deadlines_take(oct_engine *engine) {
  if (engine->deadlines->len == 0 || entries_of(engine)[0].at > engine->now)
    return engine->deadlines->len == 0 ? OCT_TIME_NEVER : entries_of(engine)[0].at;
  g_autoptr(GArray) due = g_array_new(FALSE, FALSE, sizeof(oct_request_id));
  while (engine->deadlines->len > 0 && entries_of(engine)[0].at <= engine->now) {
    g_array_append_val(due, entries_of(engine)[0].id);
    pop(engine);
  }
  g_array_sort(due, by_id); /* they end in the order of their arrival */
  for (guint i = 0; i < due->len; i++) {
    oct_request *r = g_hash_table_lookup(engine->by_id, &g_array_index(due, oct_request_id, i));
    if (r == NULL)
      continue;
    oct_request_end(engine, r, OCT_END_TIMED_OUT);
    oct_request_reap(engine, r);
  }
  return engine->deadlines->len == 0 ? OCT_TIME_NEVER : entries_of(engine)[0].at;
}
