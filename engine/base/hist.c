#include "engine/base/hist.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"

/* Bucket i < 2 * PER_OCTAVE holds the one value i. After that octave e (e = 1, 2, …) covers
 * [PER_OCTAVE << e, PER_OCTAVE << (e + 1)) with PER_OCTAVE buckets of width 1 << e. */
#define OCTAVE_BITS 9
#define PER_OCTAVE  (1u << OCTAVE_BITS)
#define N_BUCKETS   ((63 - OCTAVE_BITS + 1) * PER_OCTAVE)

struct oct_hist {
  guint64 count;
  gint64 min, max;
  unsigned __int128 sum;
  guint64 buckets[N_BUCKETS];
};

static inline guint
bucket_of(gint64 value) {
  if (value < PER_OCTAVE)
    return (guint)value;
  guint shift = (guint)(63 - OCTAVE_BITS - __builtin_clzll((guint64)value));
  return shift * PER_OCTAVE + (guint)(value >> shift);
}

static inline guint
shift_of(guint bucket) {
  return bucket < PER_OCTAVE ? 0 : bucket / PER_OCTAVE - 1;
}

static inline gint64
low_of(guint bucket) {
  guint shift = shift_of(bucket);
  return (gint64)(bucket - shift * PER_OCTAVE) << shift;
}

static inline gint64
high_of(guint bucket) {
  return low_of(bucket) + ((G_GINT64_CONSTANT(1) << shift_of(bucket)) - 1);
}

oct_hist *
oct_hist_new(void) {
  /* Zeroed by the allocator: buckets that are never used take no memory. */
  oct_hist *hist = g_new0(oct_hist, 1);
  hist->min = -1;
  hist->max = -1;
  return hist;
}

void
oct_hist_free(oct_hist *hist) {
  g_free(hist);
}

void
oct_hist_reset(oct_hist *hist) {
  memset(hist, 0, sizeof *hist);
  hist->min = -1;
  hist->max = -1;
}

void
oct_hist_add_times(oct_hist *hist, gint64 value, guint64 times) {
  oct_assert(value >= 0);
  if (times == 0)
    return;
  hist->buckets[bucket_of(value)] += times;
  hist->sum += (unsigned __int128)value * times;
  if (hist->count == 0 || value < hist->min)
    hist->min = value;
  if (value > hist->max)
    hist->max = value;
  hist->count += times;
}

void
oct_hist_add(oct_hist *hist, gint64 value) {
  oct_hist_add_times(hist, value, 1);
}

void
oct_hist_merge(oct_hist *hist, const oct_hist *from) {
  if (from->count == 0)
    return;
  for (guint i = bucket_of((guint64)from->min); i <= bucket_of((guint64)from->max); i++)
    hist->buckets[i] += from->buckets[i];
  if (hist->count == 0 || from->min < hist->min)
    hist->min = from->min;
  hist->max = MAX(hist->max, from->max);
  hist->sum += from->sum;
  hist->count += from->count;
}

guint64
oct_hist_count(const oct_hist *hist) {
  return hist->count;
}

gint64
oct_hist_min(const oct_hist *hist) {
  return hist->min;
}

gint64
oct_hist_max(const oct_hist *hist) {
  return hist->max;
}

double
oct_hist_mean(const oct_hist *hist) {
  return hist->count ? (double)hist->sum / (double)hist->count : NAN;
}

gint64
oct_hist_percentile(const oct_hist *hist, double percent) {
  oct_assert(percent >= 0 && percent <= 100);
  if (hist->count == 0)
    return -1;
  /* In integers: 99.9 % of 1000 is rank 999, which 0.999 * 1000 in doubles may step over. */
  guint64 millionths = (guint64)llround(percent * 1e6);
  unsigned __int128 scaled = (unsigned __int128)millionths * hist->count;
  guint64 rank = (guint64)((scaled + 99999999u) / 100000000u);
  if (rank <= 1)
    return hist->min;
  if (rank >= hist->count)
    return hist->max;
  guint64 seen = 0;
  guint i = 0;
  while (seen + hist->buckets[i] < rank)
    seen += hist->buckets[i++];
  gint64 middle = low_of(i) + (high_of(i) - low_of(i)) / 2;
  return CLAMP(middle, hist->min, hist->max);
}

gboolean
oct_hist_next(const oct_hist *hist, guint *cursor, oct_hist_bucket *bucket) {
  for (guint i = *cursor; i < N_BUCKETS; i++) {
    if (hist->buckets[i] == 0)
      continue;
    *bucket = (oct_hist_bucket){low_of(i), high_of(i), hist->buckets[i]};
    *cursor = i + 1;
    return TRUE;
  }
  *cursor = N_BUCKETS;
  return FALSE;
}
