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

/* ---------------------------------------------------------------- blocks */

/* Residences in which the queue forgets. Of equal replays of Kimi K3 in windows of 9 residences
 * 10 % are called different with one, 6 % with two. */
#define MEMORY 2.0

guint
oct_compare_blocks(gsize n, double in_system, gboolean paired) {
  const double fit = (double)n / MAX(OCT_COMPARE_BLOCK_LENGTH * in_system, 1);
  const guint least = paired ? OCT_COMPARE_BLOCKS_MIN_PAIRS : OCT_COMPARE_BLOCKS_MIN;
  return (guint)CLAMP(fit, least, OCT_COMPARE_BLOCKS_MAX);
}

/* Of a process of variance 1 whose correlation fades as exp(-t / memory): the variance of its mean
 * over 1 / r memories. */
static double
variance_of_span(double r) {
  return 2 * r * (1 - r * -expm1(-1 / r));
}

double
oct_compare_inflation(gsize n, double in_system, guint n_blocks) {
  /* More than all at once tells no more, and loses digits. */
  const double r = MEMORY * MIN(in_system / (double)n, 1);
  if (r < 1e-6)
    return 1;
  const double whole = variance_of_span(r), block = variance_of_span(r * n_blocks);
  return whole * (n_blocks - 1) / (block - whole);
}

/* ---------------------------------------------------------------- blocks' statistics */

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

static void
sort_blocks(const double *values, gsize n, guint n_blocks, sorted *s) {
  memset(s, 0, sizeof *s);
  s->n = n;
  s->n_blocks = n_blocks;
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

/* Which values a statistic is of. */
typedef enum part { PART_ALL, PART_WITHOUT, PART_BLOCK } part;

/* A percentile is interpolated between its two neighbours: what leaving out a block moves should
 * not jump. */
static double
statistic_of(const sorted *s, oct_statistic statistic, part of, guint block) {
  const gsize n_block = s->counts[block];
  const gsize n = of == PART_ALL ? s->n : of == PART_BLOCK ? n_block : s->n - n_block;
  if (statistic == OCT_STATISTIC_MEAN) {
    const double sum = s->sums[block];
    return (of == PART_ALL ? s->sum : of == PART_BLOCK ? sum : s->sum - sum) / (double)n;
  }
  double place = (statistic == OCT_STATISTIC_P50 ? 0.5 : 0.99) * (double)(n - 1);
  gsize before = (gsize)place, k = 0;
  double low = NAN;
  for (gsize i = 0; i < s->n; i++) {
    if (of != PART_ALL && (s->values[i].block == block) != (of == PART_BLOCK))
      continue;
    if (k == before)
      low = s->values[i].value;
    if (k == before + 1)
      return low + (place - (double)before) * (s->values[i].value - low);
    k++;
  }
  return low;
}

/* What blocks say of a statistic: of each, its pseudo-value (jackknife) and its own. */
typedef struct views {
  double whole;
  double pseudo[OCT_COMPARE_BLOCKS_MAX], own[OCT_COMPARE_BLOCKS_MAX];
} views;

static void
view(const sorted *s, oct_statistic statistic, views *v) {
  const double n = s->n_blocks;
  v->whole = statistic_of(s, statistic, PART_ALL, 0);
  for (guint k = 0; k < s->n_blocks; k++) {
    v->pseudo[k] = n * v->whole - (n - 1) * statistic_of(s, statistic, PART_WITHOUT, k);
    v->own[k] = statistic_of(s, statistic, PART_BLOCK, k);
  }
}

/* ---------------------------------------------------------------- differences */

/* Of the statistic of the whole, if blocks were independent. */
static double
variance_of(const views *v, guint n) {
  double mean = 0, jackknife = 0, sections = 0;
  for (guint k = 0; k < n; k++)
    mean += v->pseudo[k] / n;
  for (guint k = 0; k < n; k++) {
    jackknife += (v->pseudo[k] - mean) * (v->pseudo[k] - mean);
    sections += (v->own[k] - v->whole) * (v->own[k] - v->whole);
  }
  return MAX(jackknife, sections) / (n - 1) / n;
}

static void
conclude(double a, double b, double variance, double freedom, gboolean paired,
         oct_difference *out) {
  const double error = sqrt(variance), larger = MAX(fabs(a), fabs(b));
  out->a = a;
  out->b = b;
  out->difference = b - a;
  out->relative = a != 0 ? (b - a) / a : NAN;
  out->equal = fabs(b - a) <= OCT_COMPARE_MATTERS * larger;
  out->freedom = (guint)freedom;
  /* What a clock of nanoseconds cannot tell apart is equal. */
  const double least = 1e-9 * larger;
  if (error <= least) {
    const double half = paired ? 0 : fabs(b - a);
    out->low = out->difference - half;
    out->high = out->difference + half;
    out->p = paired && fabs(b - a) > least ? 0 : 1;
    return;
  }
  const double half = oct_student_quantile(OCT_COMPARE_ALPHA, freedom) * error;
  out->low = out->difference - half;
  out->high = out->difference + half;
  out->p = oct_student_tail(out->difference / error, freedom);
}

gboolean
oct_compare_paired(const double *a, const double *b, gsize n, double in_system,
                   oct_statistic statistic, oct_difference *out) {
  const guint n_blocks = oct_compare_blocks(n, in_system, TRUE);
  sorted of_a, of_b;
  views left, right;
  memset(out, 0, sizeof *out);
  if (n < OCT_COMPARE_VALUES_MIN)
    return FALSE;
  sort_blocks(a, n, n_blocks, &of_a);
  sort_blocks(b, n, n_blocks, &of_b);
  view(&of_a, statistic, &left);
  view(&of_b, statistic, &right);
  views moved = {.whole = right.whole - left.whole};
  for (guint k = 0; k < n_blocks; k++) {
    moved.pseudo[k] = right.pseudo[k] - left.pseudo[k];
    moved.own[k] = right.own[k] - left.own[k];
  }
  conclude(left.whole, right.whole,
           variance_of(&moved, n_blocks) * oct_compare_inflation(n, in_system, n_blocks),
           n_blocks - 1, TRUE, out);
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
oct_compare_unpaired(const oct_compare_sample *a, const oct_compare_sample *b,
                     oct_statistic statistic, oct_difference *out) {
  const oct_compare_sample *samples[2] = {a, b};
  sorted of[2];
  views v[2];
  double variance[2], both = 0, weight = 0;
  memset(out, 0, sizeof *out);
  if (MIN(a->n, b->n) < OCT_COMPARE_VALUES_MIN)
    return FALSE;
  for (int i = 0; i < 2; i++) {
    const oct_compare_sample *s = samples[i];
    const guint n_blocks = oct_compare_blocks(s->n, s->in_system, FALSE);
    sort_blocks(s->values, s->n, n_blocks, &of[i]);
    view(&of[i], statistic, &v[i]);
    variance[i] =
        variance_of(&v[i], n_blocks) * oct_compare_inflation(s->n, s->in_system, n_blocks);
    both += variance[i];
    weight += variance[i] * variance[i] / (n_blocks - 1);
  }
  const double freedom = weight > 0 ? both * both / weight : of[0].n_blocks - 1;
  conclude(v[0].whole, v[1].whole, both, freedom, FALSE, out);
  out->above = share_above(&of[0], &of[1]);
  g_free(of[0].values);
  g_free(of[1].values);
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
