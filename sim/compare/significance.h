/* Is a difference between two runs more than chance?
 *
 * Requests of one run are not independent: neighbours share a queue. So the sample is cut into
 * blocks of neighbours in order of arrival, long against the memory of the queue, and a statistic's
 * error is found by leaving out one block after the other (delete-a-block jackknife); for a mean
 * this is the method of batch means. Runs of the same requests are compared in pairs, block by
 * block, which takes the luck of the traffic out of the difference; else each run has blocks of its
 * own and their variances add, with Welch's degrees of freedom.
 *
 * Pure functions; sizes are bounded by the caller.
 */
#ifndef OCT_SIM_COMPARE_SIGNIFICANCE_H
#define OCT_SIM_COMPARE_SIGNIFICANCE_H

#include <glib.h>

#define OCT_COMPARE_BLOCKS_MAX 10
#define OCT_COMPARE_VALUES_MIN 200u /* of a run: fewer are not compared */
#define OCT_COMPARE_ALPHA      0.05

/* Blocks of a sample of n: 5, and 10 from 2,000 values on. Twice as long a block forgets the queue
 * before it better, which counts for more than the freedom of ten while blocks are short. */
guint oct_compare_blocks(gsize n);

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
  double above;  /* chance that a request takes longer in b than in a (pairs: than itself), ties
                    half;  0.5 = no effect */
  guint freedom; /* degrees of freedom, rounded down */
} oct_difference;

/* a[n], b[n]: the same requests in order of arrival. FALSE: fewer than OCT_COMPARE_VALUES_MIN. */
gboolean oct_compare_paired(const double *a, const double *b, gsize n, oct_statistic statistic,
                            oct_difference *out);
/* Each in order of arrival. */
gboolean oct_compare_unpaired(const double *a, gsize n_a, const double *b, gsize n_b,
                              oct_statistic statistic, oct_difference *out);

/* Holm's: values of n tests that are looked at together, so that the chance of any false alarm
 * stays OCT_COMPARE_ALPHA. adjusted[i] belongs to p[i]. */
void oct_compare_holm(const double *p, gsize n, double *adjusted);

/* Student's t with `freedom` > 0: chance of a larger |t|, and the t that is exceeded with chance
 * `p`. */
double oct_student_tail(double t, double freedom);
double oct_student_quantile(double p, double freedom);

#endif
