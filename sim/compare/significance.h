/* Is a difference between two runs more than chance?
 *
 * Requests of one run are not independent: neighbours share a queue. So the sample is cut into
 * blocks of neighbours in order of arrival, long against the memory of the queue, and a statistic's
 * variance is the larger of two: from leaving out one block after the other (delete-a-block
 * jackknife), and from how far each block's own statistic is from that of the whole (sectioning).
 * For a mean both are the method of batch means. A percentile on a plateau (one long step hits many
 * requests alike) does not move when a block is left out: its jackknife says nothing, the blocks'
 * own percentiles do. What blocks share of the queue's memory is added (oct_compare_inflation).
 * Runs of the same requests are compared in pairs, block by block, which takes the luck of the
 * traffic out of the difference; else each run has blocks of its own and their variances add, with
 * Welch's degrees of freedom.
 *
 * Pure functions; sizes are bounded by the caller.
 */
#ifndef OCT_SIM_COMPARE_SIGNIFICANCE_H
#define OCT_SIM_COMPARE_SIGNIFICANCE_H

#include <glib.h>

#define OCT_COMPARE_BLOCKS_MIN 3 /* of each run */
/* Differences of pairs remember less, and freedom counts more. */
#define OCT_COMPARE_BLOCKS_MIN_PAIRS 5
#define OCT_COMPARE_BLOCKS_MAX       10
#define OCT_COMPARE_VALUES_MIN       200u /* of a run: fewer are not compared */
#define OCT_COMPARE_ALPHA            0.05
/* A block is so many times as long as the requests that are in the system at once. */
#define OCT_COMPARE_BLOCK_LENGTH 5
/* What is less of the larger value does not matter: such runs are equal, however sure it is. */
#define OCT_COMPARE_MATTERS 1e-3

/* `in_system` is, here and below, how many of the sample's requests are in the system at once on
 * average: mean residence x sampled arrivals per second (Little's law); 0 = no memory. */

/* Of a sample of n: as many as OCT_COMPARE_BLOCK_LENGTH allows, within the limits. */
guint oct_compare_blocks(gsize n, double in_system, gboolean paired);

/* The variance of a sample's mean, over what its `n_blocks` show of it: neighbouring blocks share
 * what the queue remembers. For a memory that fades exponentially in two mean residences: requests
 * mix with those before them, and load with itself (chosen on replays, doc/compare.md). >= 1. */
double oct_compare_inflation(gsize n, double in_system, guint n_blocks);

typedef enum oct_statistic {
  OCT_STATISTIC_MEAN,
  OCT_STATISTIC_P50,
  OCT_STATISTIC_P99,
  OCT_STATISTIC_COUNT
} oct_statistic;
const char *oct_statistic_name(oct_statistic statistic); /* "mean", "p50", "p99"; static */

typedef struct oct_difference {
  double a, b;                  /* the statistic of each run */
  double difference, low, high; /* b - a, and its interval of 95 % */
  double relative;              /* difference / a; NAN for a = 0 */
  double p;                     /* chance of one so large between runs that do not differ */
  double above;   /* chance that a request takes longer in b than in a (pairs: than itself), ties
                     half; 0.5 = no effect */
  gboolean equal; /* the difference is too small to matter: OCT_COMPARE_MATTERS */
  guint freedom;  /* degrees of freedom, rounded down */
} oct_difference;

/* a[n], b[n]: the same requests in order of arrival. Blocks that all move alike have no variance:
 * the move is real (p = 0). FALSE: fewer than OCT_COMPARE_VALUES_MIN. */
gboolean oct_compare_paired(const double *a, const double *b, gsize n, double in_system,
                            oct_statistic statistic, oct_difference *out);

typedef struct oct_compare_sample {
  const double *values; /* in order of arrival */
  gsize n;
  double in_system;
} oct_compare_sample;
/* Without any variance a difference cannot be told from chance: p = 1, and the interval reaches to
 * 0. FALSE: as above. */
gboolean oct_compare_unpaired(const oct_compare_sample *a, const oct_compare_sample *b,
                              oct_statistic statistic, oct_difference *out);

/* Holm's: values of n tests that are looked at together, so that the chance of any false alarm
 * stays OCT_COMPARE_ALPHA. adjusted[i] belongs to p[i]. */
void oct_compare_holm(const double *p, gsize n, double *adjusted);

/* Student's t with `freedom` > 0: chance of a larger |t|, and the t that is exceeded with chance
 * `p`. */
double oct_student_tail(double t, double freedom);
double oct_student_quantile(double p, double freedom);

#endif
