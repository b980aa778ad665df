/* Distributions of token counts, gaps and pauses, written as short text.
 *
 *   N | fixed:N                  always N
 *   uniform:A:B                  whole numbers A … B, each equally likely
 *   exponential:MEAN             memoryless
 *   lognormal:MEAN:P99           log-normal of that mean and 99th percentile …
 *   lognormal:MEAN:SIGMA         … or of that mean and standard deviation of the logarithm: the
 *                                last number is a P99 when it is above MEAN ("p99=V" and "sigma=V"
 *                                say which)
 *   geometric:MEAN               1, 2, 3 … with that mean: numbers of turns
 *   hist:FILE                    lines "value weight" (blank or comma between, # comments)
 *   quantiles:P=V,P=V,…          straight lines between quantiles; P from 0 to 1
 *   true | true*K                K times the true output length, rounded up (max_tokens only)
 *
 * "min=V" and "max=V" may follow any of them, after ":": draws are clamped. A draw of tokens is
 * rounded to the nearest whole number and is at least 1 unless min says otherwise.
 *
 * A distribution does not change once made; any thread may draw with its own rng.
 */
#ifndef OCT_TRACES_DIST_H
#define OCT_TRACES_DIST_H

#include <glib.h>

#include "engine/base/rng.h"

#define OCT_DIST_POINTS_MAX (1u << 20) /* lines of a histogram, points of a quantile table */

typedef struct oct_dist oct_dist;

typedef struct oct_dist_point {
  double probability, value; /* both rising */
} oct_dist_point;

/* Life cycle. Errors are OCT_TRACE_ERROR_OPTION, or _IO, _SYNTAX, _VALUE with file and line. */
oct_dist *oct_dist_parse(const char *text, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* From n >= 2 points that start at probability 0 and end at 1; copied. */
oct_dist *oct_dist_from_quantiles(const oct_dist_point *points, gsize n);
/* From n >= 1 weights (>= 0, sum > 0) of values; copied. */
oct_dist *oct_dist_from_weights(const double *values, const double *weights, gsize n);
oct_dist *oct_dist_ref(oct_dist *dist);
void oct_dist_unref(oct_dist *dist); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_dist, oct_dist_unref)

/* Use. */
double oct_dist_draw(const oct_dist *dist, oct_rng *rng); /* not for "true*K" */
/* Tokens: rounded, within [1, OCT_TRACE_TOKENS_MAX]. true_tokens is what "true" stands for. */
guint32 oct_dist_draw_tokens(const oct_dist *dist, oct_rng *rng, guint32 true_tokens);

/* Inspect. */
/* The mean of oct_dist_draw() without min and max; 0 for "true*K". */
double oct_dist_mean(const oct_dist *dist);
gboolean oct_dist_is_true(const oct_dist *dist); /* "true" or "true*K" */
const char *oct_dist_text(const oct_dist *dist); /* as parsed; a name for the made ones */

#endif
