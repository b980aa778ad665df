#include "sim/replay/feed.h"

#include "engine/base/assert.h"

/* A closed loop's slot while a session (or a lone row) holds it. */
typedef struct unit {
  guint32 n_open; /* its entries that have not ended */
} unit;

/* A request from the time it is read until it has ended. */
struct oct_feed_entry {
  guint64 index, session, order;
  oct_time due_ns;
  gint64 think_ns;
  guint64 salt;
  gboolean timed;
  unit *slot;             /* NULL in an open loop */
  oct_trace_request *row; /* until it is taken */
  oct_feed_entry *child;  /* first of the turns that wait for its end */
  oct_feed_entry *next_sibling;
};

struct oct_feed {
  oct_rows *rows;
  guint32 concurrency; /* slots */
  gboolean closed;
  GQueue free_since; /* oct_time *, in order: when each free slot got free */
  GPtrArray *due;    /* heap of entries, the earliest on top */
  guint64 next_order;
  guint32 n_timed;   /* in the heap */
  guint64 n_waiting; /* entries that wait for a parent */
  gboolean ended, has_ahead;
  oct_trace_request ahead; /* read and not yet placed; borrowed from the rows */
  guint64 ahead_salt;
  GHashTable *open;      /* index -> entry that has not ended (key inside the entry) */
  GHashTable *last_ends; /* session -> end of its last request, for files: turns come anywhere */
  oct_trace_request *given;
};

/* ---------------------------------------------------------------- life cycle */

oct_feed *
oct_feed_new(oct_rows *rows, guint32 concurrency) {
  oct_feed *feed = g_new0(oct_feed, 1);
  feed->rows = rows;
  feed->concurrency = concurrency;
  g_queue_init(&feed->free_since);
  feed->due = g_ptr_array_new();
  feed->open = g_hash_table_new(g_int64_hash, g_int64_equal);
  feed->last_ends = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
  return feed;
}

static void
close_entry(oct_feed *feed, oct_feed_entry *entry) {
  g_hash_table_remove(feed->open, &entry->index);
  if (entry->slot != NULL && --entry->slot->n_open == 0)
    g_free(entry->slot);
  oct_trace_request_free(entry->row);
  g_free(entry);
}

void
oct_feed_free(oct_feed *feed) {
  if (feed == NULL)
    return;
  GHashTableIter all;
  gpointer entry;
  g_hash_table_iter_init(&all, feed->open);
  while (g_hash_table_iter_next(&all, NULL, &entry)) {
    g_hash_table_iter_steal(&all);
    close_entry(feed, entry);
  }
  g_hash_table_unref(feed->open);
  g_hash_table_unref(feed->last_ends);
  g_queue_clear_full(&feed->free_since, g_free);
  g_ptr_array_unref(feed->due);
  oct_trace_request_free(feed->given);
  g_free(feed);
}

/* ---------------------------------------------------------------- what is due */

static gboolean
is_before(const oct_feed_entry *a, const oct_feed_entry *b) {
  return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void
push(oct_feed *feed, oct_feed_entry *entry, oct_time due_ns) {
  entry->due_ns = due_ns;
  entry->order = feed->next_order++;
  feed->n_timed += entry->timed;
  g_ptr_array_add(feed->due, entry);
  gpointer *at = feed->due->pdata;
  guint i = feed->due->len - 1;
  for (; i > 0 && is_before(entry, at[(i - 1) / 2]); i = (i - 1) / 2)
    at[i] = at[(i - 1) / 2];
  at[i] = entry;
}

static oct_feed_entry *
pop(oct_feed *feed) {
  gpointer *at = feed->due->pdata;
  oct_feed_entry *top = at[0], *last = at[feed->due->len - 1];
  guint n = feed->due->len - 1, i = 0;
  for (guint child = 1; child < n; child = 2 * i + 1) {
    child += child + 1 < n && is_before(at[child + 1], at[child]);
    if (is_before(last, at[child]))
      break;
    at[i] = at[child];
    i = child;
  }
  at[i] = last;
  g_ptr_array_set_size(feed->due, (gint)n);
  feed->n_timed -= top->timed;
  return top;
}

/* ---------------------------------------------------------------- reading ahead */

static oct_feed_entry *
new_entry(oct_feed *feed) {
  oct_feed_entry *entry = g_new0(oct_feed_entry, 1);
  const oct_trace_request *row = &feed->ahead;
  entry->index = row->index;
  entry->session = row->session;
  entry->think_ns = row->think_ns;
  entry->timed = row->arrival_ns >= 0;
  entry->salt = feed->ahead_salt;
  entry->row = oct_trace_request_copy(row);
  g_hash_table_insert(feed->open, &entry->index, entry);
  feed->has_ahead = FALSE;
  return entry;
}

static void
place_dependent(oct_feed *feed, oct_time now) {
  guint64 parent_index = feed->ahead.parent - 1;
  oct_feed_entry *parent = g_hash_table_lookup(feed->open, &parent_index);
  oct_feed_entry *entry = new_entry(feed);
  if (parent != NULL && parent != entry) {
    entry->slot = parent->slot;
    if (entry->slot != NULL)
      entry->slot->n_open++;
    oct_feed_entry **tail = &parent->child;
    while (*tail != NULL)
      tail = &(*tail)->next_sibling;
    *tail = entry;
    feed->n_waiting++;
    return;
  }
  const oct_time *end = g_hash_table_lookup(feed->last_ends, &entry->session);
  push(feed, entry, end != NULL ? MAX(now, *end + entry->think_ns) : now);
}

static gboolean
place_closed(oct_feed *feed, GError **error) {
  if (!feed->closed) {
    guint32 stated = oct_rows_facts(feed->rows)->concurrency;
    feed->closed = TRUE;
    feed->concurrency = feed->concurrency > 0 ? feed->concurrency : stated;
    if (feed->concurrency == 0) {
      g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                  "concurrency: %s has rows without arrival times and does not state its slots",
                  oct_rows_name(feed->rows));
      return FALSE;
    }
    for (guint32 i = 0; i < feed->concurrency; i++)
      g_queue_push_tail(&feed->free_since, g_new0(oct_time, 1));
  }
  return TRUE;
}

/* Places the row ahead if it can be placed; FALSE when it must wait. */
static gboolean
place(oct_feed *feed, oct_time now) {
  if (feed->ahead.arrival_ns < 0 && feed->ahead.parent > 0) {
    place_dependent(feed, now);
    return TRUE;
  }
  if (feed->ahead.arrival_ns >= 0) {
    if (feed->n_timed > 0)
      return FALSE;
    oct_feed_entry *entry = new_entry(feed);
    push(feed, entry, MAX(feed->ahead.arrival_ns, 0));
    return TRUE;
  }
  oct_time *since = g_queue_pop_head(&feed->free_since);
  if (since == NULL)
    return FALSE;
  oct_feed_entry *entry = new_entry(feed);
  entry->slot = g_new0(unit, 1);
  entry->slot->n_open = 1;
  push(feed, entry, *since + entry->think_ns);
  g_free(since);
  return TRUE;
}

gboolean
oct_feed_due(oct_feed *feed, oct_time now, oct_time *due, GError **error) {
  for (;;) {
    GError *failed = NULL;
    if (!feed->has_ahead && !feed->ended) {
      feed->has_ahead = oct_rows_next(feed->rows, &feed->ahead, &feed->ahead_salt, &failed);
      feed->ended = !feed->has_ahead;
    }
    if (failed != NULL) {
      g_propagate_error(error, failed);
      return FALSE;
    }
    if (!feed->has_ahead)
      break;
    if (feed->ahead.arrival_ns < 0 && feed->ahead.parent == 0 && !place_closed(feed, error))
      return FALSE;
    if (!place(feed, now))
      break;
  }
  *due = feed->due->len > 0 ? ((oct_feed_entry *)feed->due->pdata[0])->due_ns : OCT_TIME_NEVER;
  return TRUE;
}

/* ---------------------------------------------------------------- use */

void
oct_feed_take(oct_feed *feed, oct_feed_request *out) {
  oct_assert(feed->due->len > 0);
  oct_feed_entry *entry = pop(feed);
  oct_trace_request_free(feed->given);
  feed->given = g_steal_pointer(&entry->row);
  *out = (oct_feed_request){feed->given, entry->due_ns, entry->salt, entry};
}

static void
remember_end(oct_feed *feed, const oct_feed_entry *entry, oct_time at) {
  /* A generator's turns stand right behind their parent: they are read before it ends. */
  if (entry->session == 0 || oct_rows_facts(feed->rows)->format == OCT_TRACE_FORMAT_GENERATED)
    return;
  oct_time *end = g_hash_table_lookup(feed->last_ends, &entry->session);
  if (end == NULL) {
    end = g_new(oct_time, 1);
    g_hash_table_insert(feed->last_ends, g_memdup2(&entry->session, sizeof entry->session), end);
  }
  *end = at;
}

void
oct_feed_ended(oct_feed *feed, oct_feed_entry *entry, oct_time at) {
  remember_end(feed, entry, at);
  for (oct_feed_entry *child = entry->child, *next; child != NULL; child = next) {
    next = child->next_sibling;
    child->next_sibling = NULL;
    feed->n_waiting--;
    push(feed, child, at + child->think_ns);
  }
  if (entry->slot != NULL && entry->slot->n_open == 1) {
    oct_time *since = g_new(oct_time, 1);
    *since = at;
    g_queue_push_tail(&feed->free_since, since);
  }
  close_entry(feed, entry);
}

/* ---------------------------------------------------------------- inspect */

gboolean
oct_feed_is_exhausted(const oct_feed *feed) {
  return feed->ended && !feed->has_ahead && feed->due->len == 0 && feed->n_waiting == 0;
}

gboolean
oct_feed_is_closed_loop(const oct_feed *feed) {
  return feed->closed;
}

guint32
oct_feed_concurrency(const oct_feed *feed) {
  return feed->concurrency;
}
