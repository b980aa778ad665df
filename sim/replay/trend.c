#include "sim/replay/trend.h"

#include <math.h>

#include "engine/base/assert.h"

/* Student's t, two-sided 95 %, by degrees of freedom. */
static const double t95[OCT_TREND_BATCHES_MAX - 1] = {0,     12.706, 4.303, 3.182, 2.776,
                                                      2.571, 2.447,  2.365, 2.306, 2.262,
                                                      2.228, 2.201,  2.179, 2.160, 2.145};

double
oct_trend_student(guint degrees) {
  oct_assert(degrees >= 1 && degrees <= OCT_TREND_DEGREES_MAX);
  return t95[degrees];
}

oct_trend
oct_trend_of(const double *x, const double *y, gsize n) {
  oct_trend trend = {0};
  guint n_batches = (guint)MIN(n / 2, OCT_TREND_BATCHES_MAX);
  if (n_batches < OCT_TREND_BATCHES_MIN)
    return trend;
  double bx[OCT_TREND_BATCHES_MAX] = {0}, by[OCT_TREND_BATCHES_MAX] = {0};
  double mean_x = 0, mean_y = 0;
  for (guint b = 0; b < n_batches; b++) {
    gsize from = n * b / n_batches, to = n * (b + 1) / n_batches;
    for (gsize i = from; i < to; i++) {
      bx[b] += x[i] / (double)(to - from);
      by[b] += y[i] / (double)(to - from);
    }
    mean_x += bx[b] / n_batches;
    mean_y += by[b] / n_batches;
  }
  double sxx = 0, sxy = 0, rest = 0;
  for (guint b = 0; b < n_batches; b++) {
    sxx += (bx[b] - mean_x) * (bx[b] - mean_x);
    sxy += (bx[b] - mean_x) * (by[b] - mean_y);
  }
  if (sxx <= 0)
    return trend;
  trend.slope = sxy / sxx;
  for (guint b = 0; b < n_batches; b++) {
    double off = by[b] - mean_y - trend.slope * (bx[b] - mean_x);
    rest += off * off;
  }
  double half = t95[n_batches - 2] * sqrt(rest / (n_batches - 2) / sxx);
  trend.n_batches = n_batches;
  trend.low = trend.slope - half;
  trend.high = trend.slope + half;
  trend.mean = mean_y;
  return trend;
}

const char *
oct_verdict_name(oct_verdict verdict) {
  static const char *const verdicts[] = {"stable", "saturated", "undecided", "closed loop"};
  oct_assert(verdict <= OCT_VERDICT_CLOSED);
  return verdicts[verdict];
}

oct_verdict
oct_trend_verdict(const oct_trend *trend, double offered) {
  if (trend->n_batches == 0 || offered <= 0)
    return OCT_VERDICT_UNDECIDED;
  if (trend->low > OCT_UNSERVED_SATURATED * offered)
    return OCT_VERDICT_SATURATED;
  if (trend->high < OCT_UNSERVED_STABLE * offered)
    return OCT_VERDICT_STABLE;
  return OCT_VERDICT_UNDECIDED;
}
