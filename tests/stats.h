/* Statistics for tests: is this sample of that law?
 *
 * All functions are pure. A test picks its seed, so that its verdict is the same in every run.
 */
#ifndef OCT_TESTS_STATS_H
#define OCT_TESTS_STATS_H

#include <glib.h>

/* A law's distribution function F(x); a, b: its parameters. */
typedef double (*oct_test_cdf)(double x, double a, double b);

double oct_test_cdf_uniform(double x, double low, double high);
double oct_test_cdf_exponential(double x, double mean, double unused);
double oct_test_cdf_normal(double x, double mean, double deviation);
double oct_test_cdf_gamma(double x, double shape, double scale);
double oct_test_cdf_weibull(double x, double shape, double scale);

/* Kolmogorov-Smirnov: the largest distance between the sample's distribution and F, times
 * sqrt(n). Sorts `sample` in place. For n >= 100 a true sample exceeds 1.63 once in 100 seeds, 1.95
 * once in 1,000, 2.23 once in 10,000 (2 exp(-2 d^2)). */
double oct_test_ks(double *sample, gsize n, oct_test_cdf cdf, double a, double b);

/* Pearson's sum over cells of (seen - wanted)^2 / wanted, equal wanted counts. */
double oct_test_chi2_equal(const guint64 *seen, gsize n_cells);
/* Chance that chi-squared with `freedom` degrees exceeds x. */
double oct_test_chi2_tail(double x, double freedom);

#endif
