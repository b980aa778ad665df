/* A histogram of non-negative integers (nanoseconds, tokens, bytes) in fixed memory.
 *
 * Log-linear: each octave has 512 buckets of equal width, values below 1024 are exact, and a
 * percentile is the middle of its bucket, so it is within 1/1024 < 0.1 % of the value that sorting
 * would find (nearest rank: the smallest recorded value with at least p % of all at or below it).
 * Count, sum, minimum and maximum are exact. 220 KiB each, allocated by oct_hist_new() only. One
 * thread at a time each.
 */
#ifndef OCT_BASE_HIST_H
#define OCT_BASE_HIST_H

#include <glib.h>

typedef struct oct_hist oct_hist;

/* Life cycle. */
oct_hist *oct_hist_new(void);
void oct_hist_free(oct_hist *hist); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_hist, oct_hist_free)
void oct_hist_reset(oct_hist *hist);

/* Use. Values are >= 0. */
void oct_hist_add(oct_hist *hist, gint64 value);
/* The same as adding `value` `times` times. */
void oct_hist_add_times(oct_hist *hist, gint64 value, guint64 times);
/* Adds all that `from` holds; equal to having recorded both in one. */
void oct_hist_merge(oct_hist *hist, const oct_hist *from);

/* Inspect. */
guint64 oct_hist_count(const oct_hist *hist);
/* Of what was recorded; -1 when nothing was. */
gint64 oct_hist_min(const oct_hist *hist);
gint64 oct_hist_max(const oct_hist *hist);
/* The exact sum divided once; NAN when nothing was recorded. */
double oct_hist_mean(const oct_hist *hist);
/* Nearest-rank percentile, 0 <= percent <= 100, of which six decimals count (99.9, 99.999);
 * 0 gives the minimum, 100 the maximum. -1 when nothing was recorded. */
gint64 oct_hist_percentile(const oct_hist *hist, double percent);

/* A bucket: `count` values in [low, high], high included. */
typedef struct oct_hist_bucket {
  gint64 low, high;
  guint64 count;
} oct_hist_bucket;

/* Walks the buckets that hold something, in ascending order. *cursor begins as 0. FALSE at the end.
 */
gboolean oct_hist_next(const oct_hist *hist, guint *cursor, oct_hist_bucket *bucket);

#endif
