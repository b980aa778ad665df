#include "tests/stats.h"

#include <math.h>
#include <stdlib.h>

double
oct_test_cdf_uniform(double x, double low, double high) {
  return CLAMP((x - low) / (high - low), 0, 1);
}

double
oct_test_cdf_exponential(double x, double mean, double unused G_GNUC_UNUSED) {
  return x <= 0 ? 0 : -expm1(-x / mean);
}

double
oct_test_cdf_normal(double x, double mean, double deviation) {
  return 0.5 * erfc(-(x - mean) / (deviation * M_SQRT2));
}

/* Regularised lower incomplete gamma P(a, x): its power series below a + 1, else one minus its
 * continued fraction (Lentz), as in Abramowitz and Stegun 6.5.29 and 6.5.31. */
static double
incomplete_gamma(double a, double x) {
  if (x <= 0)
    return 0;
  double front = exp(a * log(x) - x - lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (int i = 1; i < 10000 && term > sum * 1e-16; i++) {
      term *= x / (a + i);
      sum += term;
    }
    return front * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int i = 1; i < 10000; i++) {
    double an = -i * (i - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= d * c;
    if (fabs(d * c - 1) < 1e-15)
      break;
  }
  return 1 - front * h;
}

double
oct_test_cdf_gamma(double x, double shape, double scale) {
  return incomplete_gamma(shape, x / scale);
}

double
oct_test_cdf_weibull(double x, double shape, double scale) {
  return x <= 0 ? 0 : -expm1(-pow(x / scale, shape));
}

static int
compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double
oct_test_ks(double *sample, gsize n, oct_test_cdf cdf, double a, double b) {
  qsort(sample, n, sizeof *sample, compare_doubles);
  double distance = 0;
  for (gsize i = 0; i < n; i++) {
    double f = cdf(sample[i], a, b);
    distance = MAX(distance, MAX(f - (double)i / (double)n, (double)(i + 1) / (double)n - f));
  }
  return distance * sqrt((double)n);
}

double
oct_test_chi2_equal(const guint64 *seen, gsize n_cells) {
  double total = 0, sum = 0;
  for (gsize i = 0; i < n_cells; i++)
    total += (double)seen[i];
  double wanted = total / (double)n_cells;
  for (gsize i = 0; i < n_cells; i++)
    sum += ((double)seen[i] - wanted) * ((double)seen[i] - wanted) / wanted;
  return sum;
}

double
oct_test_chi2_tail(double x, double freedom) {
  return 1 - incomplete_gamma(freedom / 2, x / 2);
}
