/* Does a backlog grow? A straight line through batch means, with its 95 % confidence interval.
 *
 * Samples of a queue are correlated, so the interval comes from the means of batches, not from the
 * samples: least squares through up to 16 batch means, Student's t with n - 2 degrees. The batches
 * still correlate when the queue's memory is longer than one of them; a verdict must therefore also
 * ask whether the growth matters (sim/replay/README.md says how it is used).
 *
 * Pure functions; any thread.
 */
#ifndef OCT_SIM_REPLAY_TREND_H
#define OCT_SIM_REPLAY_TREND_H

#include <glib.h>

#define OCT_TREND_BATCHES_MAX 16
#define OCT_TREND_BATCHES_MIN 4

typedef struct oct_trend {
  guint n_batches;         /* 0: fewer than two samples a batch, nothing else is set */
  double slope, low, high; /* per unit of x; interval of 95 % */
  double mean;             /* of y */
} oct_trend;

/* x rising. */
oct_trend oct_trend_of(const double *x, const double *y, gsize n);

/* Student's t, two-sided 95 %, of 1 … OCT_TREND_DEGREES_MAX degrees of freedom. */
#define OCT_TREND_DEGREES_MAX (OCT_TREND_BATCHES_MAX - 2)
double oct_trend_student(guint degrees);

typedef enum oct_verdict {
  OCT_VERDICT_STABLE,
  OCT_VERDICT_SATURATED,
  OCT_VERDICT_UNDECIDED,
  OCT_VERDICT_CLOSED, /* closed loop: the load follows the service */
} oct_verdict;
const char *oct_verdict_name(oct_verdict verdict); /* static */

/* The backlog's growth (slope with its interval, tokens per second) against the tokens that arrive
 * per second: saturated when surely more than OCT_UNSERVED_SATURATED of them stay unserved, stable
 * when surely less than OCT_UNSERVED_STABLE do. */
#define OCT_UNSERVED_SATURATED 0.005
#define OCT_UNSERVED_STABLE    0.02
oct_verdict oct_trend_verdict(const oct_trend *trend, double offered);

#endif
