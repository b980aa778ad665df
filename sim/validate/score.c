#include "sim/validate/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"

void
oct_score_add_error(oct_score *score, double error) {
  oct_assert(isfinite(error));
  if (score->errors == NULL)
    score->errors = g_array_new(FALSE, FALSE, sizeof(double));
  g_array_append_val(score->errors, error);
}

void
oct_score_add(oct_score *score, double predicted, double measured) {
  oct_assert(predicted > 0 && measured > 0);
  oct_score_add_error(score, predicted / measured - 1);
}

void
oct_score_clear(oct_score *score) {
  g_clear_pointer(&score->errors, g_array_unref);
}

guint
oct_score_n(const oct_score *score) {
  return score->errors != NULL ? score->errors->len : 0;
}

double
oct_score_mean(const oct_score *score) {
  const guint n = oct_score_n(score);
  double sum = 0;
  for (guint i = 0; i < n; i++)
    sum += fabs(g_array_index(score->errors, double, i));
  return n > 0 ? sum / n : NAN;
}

static int
compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double
oct_quantile(double *values, guint n, double q) {
  if (n == 0)
    return NAN;
  qsort(values, n, sizeof *values, compare);
  double rank = ceil(q * n);
  return values[CLAMP((gint64)rank - 1, 0, (gint64)n - 1)];
}

static double
quantile_of(const oct_score *score, double q, gboolean sized) {
  const guint n = oct_score_n(score);
  g_autofree double *values = g_new(double, n + 1);
  for (guint i = 0; i < n; i++) {
    double error = g_array_index(score->errors, double, i);
    values[i] = sized ? fabs(error) : error;
  }
  return oct_quantile(values, n, q);
}

double
oct_score_quantile(const oct_score *score, double q) {
  return quantile_of(score, q, TRUE);
}

double
oct_score_bias(const oct_score *score) {
  return quantile_of(score, 0.5, FALSE);
}
