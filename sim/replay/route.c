/* Which replica a request is sent to. */
#include "sim/replay/route.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/sched/router.h"
#include "sim/replay/drive-internal.h"

static const char *const names[OCT_ROUTE_COUNT] = {"least-loaded", "round-robin",
                                                   "prefix-affinity"};

const char *
oct_routing_rule_name(oct_routing_rule router) {
  oct_assert(router < OCT_ROUTE_COUNT);
  return names[router];
}

gboolean
oct_routing_rule_find(const char *name, oct_routing_rule *router) {
  for (guint i = 0; i < OCT_ROUTE_COUNT; i++)
    if (strcmp(names[i], name) == 0) {
      *router = (oct_routing_rule)i;
      return TRUE;
    }
  return FALSE;
}

/* What the prefix router remembers; beyond it forgets all and begins anew. */
#define SEEN_PAGES_MAX (1u << 20)
/* The replica with the longest prefix may have so many times the least work, and a prompt more. */
#define PREFIX_LOAD_FACTOR 2

static gboolean
is_up(const oct_replica *replica) {
  return replica->engine != NULL && !replica->draining && replica->down_ns < 0;
}

/* Replicas that compute this part of the request. */
static void
pool_of(const oct_driver *d, const oct_live *live, guint32 *first, guint32 *end) {
  *first = live->prefill ? 0 : d->config->n_prefill;
  *end = live->prefill ? d->config->n_prefill : d->n_replicas;
}

typedef struct pool {
  const oct_driver *driver;
  guint32 first;
} pool;

/* Tokens that the replica has to compute. */
static double
load_of(void *user, guint32 i) {
  const pool *p = user;
  const oct_replica *replica = &p->driver->replicas[p->first + i];
  return is_up(replica) ? (double)oct_engine_load_tokens(replica->engine) : INFINITY;
}

static oct_replica *
least_loaded(oct_driver *d, guint32 first, guint32 end) {
  pool p = {d, first};
  if (end - first == 1) /* which need not be asked for its load */
    return is_up(&d->replicas[first]) ? &d->replicas[first] : NULL;
  const guint32 i = oct_router_least_loaded(end - first, 0, load_of, &p);
  return i < end - first ? &d->replicas[first + i] : NULL;
}

static oct_replica *
round_robin(oct_driver *d, guint32 first, guint32 end) {
  for (guint32 i = first; i < end; i++) {
    oct_replica *replica = &d->replicas[first + d->next_robin++ % (end - first)];
    if (is_up(replica))
      return replica;
  }
  return NULL;
}

/* How many leading pages of the prompt a replica has been sent. */
static guint32
pages_seen(const oct_driver *d, const oct_live *live, guint32 replica) {
  for (guint32 p = 0; p < live->n_page_ids; p++) {
    const guint64 *bits = g_hash_table_lookup(d->seen_pages, &live->page_ids[p]);
    if (bits == NULL || !(*bits & G_GUINT64_CONSTANT(1) << replica))
      return p;
  }
  return live->n_page_ids;
}

static void
remember_pages(oct_driver *d, const oct_live *live, guint32 replica) {
  if (g_hash_table_size(d->seen_pages) > SEEN_PAGES_MAX)
    g_hash_table_remove_all(d->seen_pages);
  for (guint32 p = 0; p < live->n_page_ids; p++) {
    guint64 *bits = g_hash_table_lookup(d->seen_pages, &live->page_ids[p]);
    if (bits == NULL) {
      bits = g_new0(guint64, 1);
      g_hash_table_insert(d->seen_pages, g_memdup2(&live->page_ids[p], sizeof(guint64)), bits);
    }
    *bits |= G_GUINT64_CONSTANT(1) << replica;
  }
}

static oct_replica *
by_prefix(oct_driver *d, const oct_live *live, guint32 first, guint32 end) {
  oct_replica *best = least_loaded(d, first, end);
  if (best == NULL || live->n_page_ids == 0)
    return best;
  const guint64 least = end - first == 1 ? G_MAXUINT64 : oct_engine_load_tokens(best->engine);
  if (d->seen_pages == NULL)
    d->seen_pages = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
  guint32 most = pages_seen(d, live, best->number);
  for (guint32 i = first; i < end; i++) {
    oct_replica *replica = &d->replicas[i];
    if (!is_up(replica))
      continue;
    guint32 seen = pages_seen(d, live, i);
    guint64 load = oct_engine_load_tokens(replica->engine);
    if (seen <= most || load > PREFIX_LOAD_FACTOR * least + live->input_tokens)
      continue;
    most = seen;
    best = replica;
  }
  remember_pages(d, live, best->number);
  return best;
}

oct_replica *
oct_driver_route(oct_driver *d, const oct_live *live) {
  guint32 first, end;
  pool_of(d, live, &first, &end);
  switch (d->config->router) {
  case OCT_ROUTE_ROUND_ROBIN:
    return round_robin(d, first, end);
  case OCT_ROUTE_PREFIX:
    return by_prefix(d, live, first, end);
  case OCT_ROUTE_LEAST_LOADED:
  case OCT_ROUTE_COUNT:
    break;
  }
  return least_loaded(d, first, end);
}
