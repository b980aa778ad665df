#include "engine/sched/ngram.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"

#define PLACES_MAX 16 /* looked at for one proposal */
#define TABLE_MIN  64

/* Places are ends: the run ids[end - min … end) ends at `end`, which is never 0. */
struct oct_ngram {
  guint32 min, max;
  guint32 indexed;  /* ends below this one are in the index */
  guint32 *table;   /* [size] the latest end of each run, by hash, 0 = free; linear probing */
  guint32 size;     /* a power of 2 */
  guint32 n_runs;   /* distinct ones: at most half of size */
  guint32 *earlier; /* [room] of an end: the same run's end before it, 0 = none */
  guint32 room;
};

oct_ngram *
oct_ngram_new(guint32 min, guint32 max) {
  oct_assert(min >= 1 && min <= max && max <= OCT_NGRAM_MAX);
  oct_ngram *x = g_new0(oct_ngram, 1);
  x->min = x->indexed = min;
  x->max = max;
  x->size = TABLE_MIN;
  x->table = g_new0(guint32, x->size);
  return x;
}

void
oct_ngram_free(oct_ngram *x) {
  if (x == NULL)
    return;
  g_free(x->table);
  g_free(x->earlier);
  g_free(x);
}

static gboolean
same_run(const oct_ngram *x, const guint32 *ids, guint32 a, guint32 b) {
  return memcmp(ids + a - x->min, ids + b - x->min, x->min * sizeof *ids) == 0;
}

/* Where in the table the run that ends at `end` is, or would be. */
static guint32
find(const oct_ngram *x, const guint32 *ids, guint32 end) {
  guint64 hash = 0;
  for (guint32 i = end - x->min; i < end; i++)
    hash = oct_mix64(hash ^ ids[i]);
  guint32 at = (guint32)hash & (x->size - 1);
  while (x->table[at] != 0 && !same_run(x, ids, x->table[at], end))
    at = (at + 1) & (x->size - 1);
  return at;
}

static void
grow_table(oct_ngram *x, const guint32 *ids) {
  guint32 *old = x->table, n = x->size;
  x->size *= 2;
  x->table = g_new0(guint32, x->size);
  for (guint32 i = 0; i < n; i++)
    if (old[i] != 0)
      x->table[find(x, ids, old[i])] = old[i];
  g_free(old);
}

static void
add(oct_ngram *x, const guint32 *ids, guint32 end) {
  guint32 at = find(x, ids, end);
  x->earlier[end] = x->table[at];
  x->n_runs += x->table[at] == 0;
  x->table[at] = end;
  if (2 * x->n_runs > x->size)
    grow_table(x, ids);
}

/* Tokens before both ends that agree, up to max. */
static guint32
agreement(const oct_ngram *x, const guint32 *ids, guint32 end, guint32 last) {
  guint32 n = x->min;
  while (n < x->max && n < end && ids[end - 1 - n] == ids[last - 1 - n])
    n++;
  return n;
}

guint32
oct_ngram_propose(oct_ngram *x, const guint32 *ids, guint32 n_ids, guint32 n_drafts,
                  guint32 *drafts) {
  if (n_ids <= x->min || n_drafts == 0)
    return 0;
  if (n_ids > x->room) {
    x->room = MAX(n_ids, 2 * x->room);
    x->earlier = g_renew(guint32, x->earlier, x->room);
  }
  for (; x->indexed < n_ids; x->indexed++)
    add(x, ids, x->indexed);
  guint32 best = 0, longest = 0, end = x->table[find(x, ids, n_ids)];
  for (guint32 i = 0; i < PLACES_MAX && end != 0 && longest < x->max; i++) {
    guint32 n = agreement(x, ids, end, n_ids);
    if (n > longest) {
      longest = n;
      best = end;
    }
    end = x->earlier[end];
  }
  for (guint32 i = 0; i < n_drafts && best != 0; i++)
    drafts[i] = best + i < n_ids ? ids[best + i] : drafts[best + i - n_ids];
  return best != 0 ? n_drafts : 0;
}
