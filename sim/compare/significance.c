#include "sim/compare/significance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"

const char *
oct_statistic_name(oct_statistic statistic) {
  static const char *const names[OCT_STATISTIC_COUNT] = {"mean", "p50", "p99"};
  oct_assert(statistic < OCT_STATISTIC_COUNT);
  return names[statistic];
}

/* ---------------------------------------------------------------- Student's t */

/* The continued fraction of the incomplete beta function, by Lentz' method. */
static double
beta_fraction(double x, double a, double b) {
  const double tiny = 1e-300;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (fabs(d) < tiny ? tiny : d);
  double h = d;
  for (int m = 1; m <= 500; m++) {
    double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    for (int k = 0; k < 2; k++) {
      double term = k == 0 ? even : odd;
      d = 1 + term * d;
      c = 1 + term / c;
      d = 1 / (fabs(d) < tiny ? tiny : d);
      c = fabs(c) < tiny ? tiny : c;
      h *= d * c;
    }
    if (fabs(d * c - 1) < 1e-15)
      break;
  }
  return h;
}

/* Regularised: I_x(a, b). */
static double
incomplete_beta(double x, double a, double b) {
  if (x <= 0 || x >= 1)
    return x <= 0 ? 0 : 1;
  double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
  if (x < (a + 1) / (a + b + 2))
    return front * beta_fraction(x, a, b) / a;
  return 1 - front * beta_fraction(1 - x, b, a) / b;
}

double
oct_student_tail(double t, double freedom) {
  oct_assert(freedom > 0);
  if (!isfinite(t))
    return 0;
  return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5);
}

double
oct_student_quantile(double p, double freedom) {
  double low = 0, high = 1e6;
  for (int i = 0; i < 200; i++) {
    double middle = (low + high) / 2;
    if (oct_student_tail(middle, freedom) > p)
      low = middle;
    else
      high = middle;
  }
  return (low + high) / 2;
}

/* ---------------------------------------------------------------- statistics without a block */

typedef struct ranked {
  double value;
  guint block;
} ranked;

static int
by_value(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  return (x->value > y->value) - (x->value < y->value);
}

/* The values in order, each with its block, and what each block holds. */
typedef struct sorted {
  gsize n;
  guint n_blocks;
  ranked *values; /* owned */
  gsize counts[OCT_COMPARE_BLOCKS_MAX];
  double sums[OCT_COMPARE_BLOCKS_MAX], sum;
} sorted;

guint
oct_compare_blocks(gsize n) {
  return n < 2000 ? 5 : OCT_COMPARE_BLOCKS_MAX;
}

static void
sort_blocks(const double *values, gsize n, sorted *s) {
  memset(s, 0, sizeof *s);
  s->n = n;
  s->n_blocks = oct_compare_blocks(n);
  s->values = g_new(ranked, n);
  for (gsize i = 0; i < n; i++) {
    guint block = (guint)(i * s->n_blocks / n);
    s->values[i] = (ranked){values[i], block};
    s->counts[block]++;
    s->sums[block] += values[i];
  }
  for (guint k = 0; k < s->n_blocks; k++)
    s->sum += s->sums[k];
  qsort(s->values, n, sizeof *s->values, by_value);
}

/* Over all values but those of `without` (n_blocks = none). A percentile is interpolated
 * between its two neighbours: what leaving out a block moves should not jump. */
static double
statistic_of(const sorted *s, oct_statistic statistic, guint without) {
  gboolean all = without == s->n_blocks;
  gsize n = s->n - (all ? 0 : s->counts[without]);
  if (statistic == OCT_STATISTIC_MEAN)
    return (s->sum - (all ? 0 : s->sums[without])) / (double)n;
  double place = (statistic == OCT_STATISTIC_P50 ? 0.5 : 0.99) * (double)(n - 1);
  gsize before = (gsize)place, k = 0;
  double low = NAN;
  for (gsize i = 0; i < s->n; i++) {
    if (s->values[i].block == without)
      continue;
    if (k == before)
      low = s->values[i].value;
    if (k == before + 1)
      return low + (place - (double)before) * (s->values[i].value - low);
    k++;
  }
  return low;
}

/* ---------------------------------------------------------------- differences */

/* Of pseudo-values: their variance, and that of their mean. */
static double
variance_of_mean(const double *pseudo, guint n) {
  double mean = 0, squares = 0;
  for (guint k = 0; k < n; k++)
    mean += pseudo[k] / n;
  for (guint k = 0; k < n; k++)
    squares += (pseudo[k] - mean) * (pseudo[k] - mean);
  return squares / (n - 1) / n;
}

static void
pseudo_values(const sorted *s, oct_statistic statistic, double whole, double *pseudo) {
  const double n = s->n_blocks;
  for (guint k = 0; k < s->n_blocks; k++)
    pseudo[k] = n * whole - (n - 1) * statistic_of(s, statistic, k);
}

static void
conclude(double a, double b, double variance, double freedom, oct_difference *out) {
  const double error = sqrt(variance);
  out->a = a;
  out->b = b;
  out->difference = b - a;
  out->relative = a != 0 ? (b - a) / a : NAN;
  out->freedom = (guint)freedom;
  /* What a clock of nanoseconds cannot tell apart is equal. */
  const double least = 1e-9 * MAX(fabs(a), fabs(b));
  if (error <= least) {
    out->low = out->high = out->difference;
    out->p = fabs(b - a) <= least ? 1 : 0;
    return;
  }
  const double half = oct_student_quantile(OCT_COMPARE_ALPHA, freedom) * error;
  out->low = out->difference - half;
  out->high = out->difference + half;
  out->p = oct_student_tail(out->difference / error, freedom);
}

gboolean
oct_compare_paired(const double *a, const double *b, gsize n, oct_statistic statistic,
                   oct_difference *out) {
  sorted of_a, of_b;
  double pseudo_a[OCT_COMPARE_BLOCKS_MAX], pseudo_b[OCT_COMPARE_BLOCKS_MAX];
  const guint n_blocks = oct_compare_blocks(n);
  memset(out, 0, sizeof *out);
  if (n < OCT_COMPARE_VALUES_MIN)
    return FALSE;
  sort_blocks(a, n, &of_a);
  sort_blocks(b, n, &of_b);
  double whole_a = statistic_of(&of_a, statistic, n_blocks);
  double whole_b = statistic_of(&of_b, statistic, n_blocks);
  pseudo_values(&of_a, statistic, whole_a, pseudo_a);
  pseudo_values(&of_b, statistic, whole_b, pseudo_b);
  for (guint k = 0; k < n_blocks; k++)
    pseudo_b[k] -= pseudo_a[k];
  conclude(whole_a, whole_b, variance_of_mean(pseudo_b, n_blocks), n_blocks - 1, out);
  for (gsize i = 0; i < n; i++)
    out->above += b[i] > a[i] ? 1 : b[i] < a[i] ? 0 : 0.5;
  out->above /= (double)n;
  g_free(of_a.values);
  g_free(of_b.values);
  return TRUE;
}

/* Share of pairs out of both in which b is larger: Mann and Whitney's U over n_a n_b. */
static double
share_above(const sorted *a, const sorted *b) {
  double wins = 0;
  gsize below = 0, upto = 0;
  for (gsize i = 0; i < b->n; i++) {
    while (below < a->n && a->values[below].value < b->values[i].value)
      below++;
    upto = MAX(upto, below);
    while (upto < a->n && a->values[upto].value <= b->values[i].value)
      upto++;
    wins += (double)below + (double)(upto - below) / 2;
  }
  return wins / (double)a->n / (double)b->n;
}

gboolean
oct_compare_unpaired(const double *a, gsize n_a, const double *b, gsize n_b,
                     oct_statistic statistic, oct_difference *out) {
  sorted of_a, of_b;
  double pseudo[OCT_COMPARE_BLOCKS_MAX];
  memset(out, 0, sizeof *out);
  if (MIN(n_a, n_b) < OCT_COMPARE_VALUES_MIN)
    return FALSE;
  sort_blocks(a, n_a, &of_a);
  sort_blocks(b, n_b, &of_b);
  double whole_a = statistic_of(&of_a, statistic, of_a.n_blocks);
  double whole_b = statistic_of(&of_b, statistic, of_b.n_blocks);
  pseudo_values(&of_a, statistic, whole_a, pseudo);
  double of_mean_a = variance_of_mean(pseudo, of_a.n_blocks);
  pseudo_values(&of_b, statistic, whole_b, pseudo);
  double of_mean_b = variance_of_mean(pseudo, of_b.n_blocks), both = of_mean_a + of_mean_b;
  double freedom = both > 0 ? both * both /
                                  (of_mean_a * of_mean_a / (of_a.n_blocks - 1) +
                                   of_mean_b * of_mean_b / (of_b.n_blocks - 1))
                            : of_a.n_blocks - 1;
  conclude(whole_a, whole_b, both, freedom, out);
  out->above = share_above(&of_a, &of_b);
  g_free(of_a.values);
  g_free(of_b.values);
  return TRUE;
}

/* ---------------------------------------------------------------- several tests */

void
oct_compare_holm(const double *p, gsize n, double *adjusted) {
  g_autofree ranked *order = g_new(ranked, n + 1);
  for (gsize i = 0; i < n; i++)
    order[i] = (ranked){p[i], (guint)i};
  qsort(order, n, sizeof *order, by_value);
  double most = 0;
  for (gsize i = 0; i < n; i++) {
    most = MAX(most, MIN(1, order[i].value * (double)(n - i)));
    adjusted[order[i].block] = most;
  }
}
