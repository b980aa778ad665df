/* The n-gram index against one that looks everywhere. */
#include <string.h>

#include "engine/base/rng.h"
#include "engine/sched/ngram.h"

#define TEXT   600
#define PLACES 16 /* as ngram.c: how many places a proposal looks at */

/* Of the latest PLACES earlier ends of the last `min` tokens the one that agrees furthest back. */
static guint32
slow_propose(guint32 min, guint32 max, const guint32 *ids, guint32 n, guint32 n_drafts,
             guint32 *drafts) {
  guint32 best = 0, longest = 0, seen = 0;
  for (guint32 end = n - 1; n > min && end >= min && seen < PLACES && longest < max; end--) {
    guint32 k = 0;
    while (k < max && k < end && ids[end - 1 - k] == ids[n - 1 - k])
      k++;
    if (k < min)
      continue;
    seen++;
    if (k > longest) {
      longest = k;
      best = end;
    }
  }
  for (guint32 i = 0; i < n_drafts && best != 0; i++)
    drafts[i] = best + i < n ? ids[best + i] : drafts[best + i - n];
  return best != 0 ? n_drafts : 0;
}

static void
proposes_as_the_slow_one(void) {
  static const struct {
    guint32 alphabet, min, max;
  } kinds[] = {{2, 1, 1}, {2, 3, 6}, {3, 2, 4}, {5, 1, 8}, {20, 1, 3}, {50, 2, 2}, {3, 32, 32}};
  guint32 proposed = 0;
  for (guint64 seed = 1; seed <= 40; seed++) {
    oct_rng rng;
    oct_rng_seed(&rng, seed, 1);
    guint32 ids[TEXT], kind = (guint32)seed % G_N_ELEMENTS(kinds);
    g_autoptr(oct_ngram) index = oct_ngram_new(kinds[kind].min, kinds[kind].max);
    for (guint32 n = 0; n < TEXT;) {
      /* It grows by a few tokens, now and then by a copy of what was there. */
      guint32 more = 1 + (guint32)oct_rng_below(&rng, 6);
      guint32 from =
          n > 40 && oct_rng_below(&rng, 3) == 0 ? (guint32)oct_rng_below(&rng, n - 8) : 0;
      for (guint32 k = 0; k < more && n < TEXT; k++, n++)
        ids[n] = from > 0 ? ids[from + k] : (guint32)oct_rng_below(&rng, kinds[kind].alphabet);
      guint32 want[8], got[8], drafts = (guint32)oct_rng_below(&rng, 9);
      guint32 n_want =
          drafts == 0 ? 0 : slow_propose(kinds[kind].min, kinds[kind].max, ids, n, drafts, want);
      guint32 n_got = oct_ngram_propose(index, ids, n, drafts, got);
      g_assert_cmpuint(n_got, ==, n_want);
      g_assert_cmpmem(got, n_got * sizeof *got, want, n_want * sizeof *want);
      proposed += n_got > 0;
    }
  }
  g_assert_cmpuint(proposed, >, 1000);
}

/* What repeats itself is proposed to go on doing so, further than it has gone. */
static void
goes_on_repeating(void) {
  static const guint32 ids[] = {9, 8, 1, 2, 3, 1, 2, 3};
  static const guint32 want[] = {1, 2, 3, 1, 2, 3, 1};
  guint32 drafts[7];
  g_autoptr(oct_ngram) index = oct_ngram_new(2, 4);
  g_assert_cmpuint(oct_ngram_propose(index, ids, G_N_ELEMENTS(ids), 7, drafts), ==, 7);
  g_assert_cmpmem(drafts, sizeof drafts, want, sizeof want);
}

static void
finds_nothing_in_what_is_new(void) {
  guint32 ids[100], drafts[4];
  g_autoptr(oct_ngram) index = oct_ngram_new(1, 3);
  for (guint32 n = 1; n <= 100; n++) {
    ids[n - 1] = n;
    g_assert_cmpuint(oct_ngram_propose(index, ids, n, 4, drafts), ==, 0);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/ngram/proposes-as-the-slow-one", proposes_as_the_slow_one);
  g_test_add_func("/sched/ngram/goes-on-repeating", goes_on_repeating);
  g_test_add_func("/sched/ngram/finds-nothing-in-what-is-new", finds_nothing_in_what_is_new);
  return g_test_run();
}
