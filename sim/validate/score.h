/* Errors of predictions, as a list: mean, median and 90th percentile of |predicted / measured - 1|,
 * and the median with its sign. One thread.
 */
#ifndef OCT_SIM_VALIDATE_SCORE_H
#define OCT_SIM_VALIDATE_SCORE_H

#include <glib.h>

/* Zeroed = empty. */
typedef struct oct_score {
  GArray *errors; /* double, signed, in order of arrival; owned; NULL = none yet */
} oct_score;

/* Both above 0 and finite. */
void oct_score_add(oct_score *score, double predicted, double measured);
/* An error as it is: 0.1 is 10 % too much. */
void oct_score_add_error(oct_score *score, double error);
void oct_score_clear(oct_score *score);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(oct_score, oct_score_clear)

guint oct_score_n(const oct_score *score);
/* Fractions; NaN of an empty score. Quantiles are nearest-rank. */
double oct_score_mean(const oct_score *score);
double oct_score_quantile(const oct_score *score, double q); /* of the size of errors */
double oct_score_bias(const oct_score *score);               /* median of signed errors */

/* Nearest-rank quantile of values[n], which it sorts; NaN when there is none. */
double oct_quantile(double *values, guint n, double q);

#endif
