#include "sim/validate/simplex.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"

#define N OCT_SIMPLEX_DIMENSIONS_MAX
/* A simplex whose values differ by less than this share has arrived. */
#define SMALL      1e-6
#define ROUNDS_MAX 40
/* So many rounds in a row that gain less than GAIN end the search. */
#define IDLE_MAX 3
#define GAIN     5e-4

typedef struct simplex {
  const oct_simplex_options *options;
  oct_simplex_fn fn;
  gpointer user;
  guint used; /* evaluations */
  double x[N + 1][N];
  double value[N + 1]; /* rising */
} simplex;

static double
evaluate(simplex *s, double *x) {
  const oct_simplex_options *o = s->options;
  for (guint i = 0; i < o->n; i++)
    x[i] = CLAMP(x[i], o->low[i], o->high[i]);
  s->used++;
  return s->fn(x, s->user);
}

/* Puts a vertex where its value belongs; those before it are in order. */
static void
sift(simplex *s, guint at) {
  double x[N], value = s->value[at];
  memcpy(x, s->x[at], sizeof x);
  for (; at > 0 && s->value[at - 1] > value; at--) {
    memcpy(s->x[at], s->x[at - 1], sizeof x);
    s->value[at] = s->value[at - 1];
  }
  memcpy(s->x[at], x, sizeof x);
  s->value[at] = value;
}

static void
begin(simplex *s, const double *x, double step) {
  const guint n = s->options->n;
  for (guint v = 0; v <= n; v++) {
    memcpy(s->x[v], x, n * sizeof *x);
    if (v > 0) {
      double low = s->options->low[v - 1], high = s->options->high[v - 1];
      double move = step * (high - low);
      gboolean outside = x[v - 1] + move > high || x[v - 1] + move < low;
      s->x[v][v - 1] += outside ? -move : move;
    }
    s->value[v] = evaluate(s, s->x[v]);
    sift(s, v);
  }
}

/* centre + factor x (worst - centre). */
static double
probe(simplex *s, const double *centre, double factor, double *x) {
  const guint n = s->options->n;
  for (guint i = 0; i < n; i++)
    x[i] = centre[i] + factor * (s->x[n][i] - centre[i]);
  return evaluate(s, x);
}

static void
take(simplex *s, const double *x, double value) {
  const guint n = s->options->n;
  memcpy(s->x[n], x, n * sizeof *x);
  s->value[n] = value;
  sift(s, n);
}

static void
shrink(simplex *s, double factor) {
  const guint n = s->options->n;
  for (guint v = 1; v <= n; v++) {
    for (guint i = 0; i < n; i++)
      s->x[v][i] = s->x[0][i] + factor * (s->x[v][i] - s->x[0][i]);
    s->value[v] = evaluate(s, s->x[v]);
    sift(s, v);
  }
}

static void
move(simplex *s) {
  const guint n = s->options->n;
  const double wide = 1 + 2.0 / n, narrow = 0.75 - 0.5 / n;
  double centre[N] = {0}, x[N], y[N];
  for (guint v = 0; v < n; v++)
    for (guint i = 0; i < n; i++)
      centre[i] += s->x[v][i] / n;
  double reflected = probe(s, centre, -1, x);
  if (reflected < s->value[0]) {
    double expanded = probe(s, centre, -wide, y);
    take(s, expanded < reflected ? y : x, MIN(expanded, reflected));
  } else if (reflected < s->value[n - 1]) {
    take(s, x, reflected);
  } else {
    double contracted = probe(s, centre, reflected < s->value[n] ? -narrow : narrow, y);
    if (contracted < MIN(reflected, s->value[n]))
      take(s, y, contracted);
    else
      shrink(s, 1 - 1.0 / n);
  }
}

double
oct_simplex(const oct_simplex_options *options, oct_simplex_fn fn, gpointer user, double *x) {
  simplex s = {.options = options, .fn = fn, .user = user};
  const guint n = options->n;
  oct_assert(n >= 2 && n <= N);
  static const double sizes[] = {1, 4, 16};
  double best = INFINITY;
  guint idle = 0;
  for (guint round = 0; round < ROUNDS_MAX && idle < IDLE_MAX && s.used < options->evaluations_max;
       round++) {
    /* Wide and narrow by turns, and first to one side, then to the other. */
    begin(&s, x, options->step * (round % 2 == 0 ? 1 : -1) / sizes[round % 3]);
    while (s.used < options->evaluations_max && s.value[n] - s.value[0] > SMALL * s.value[0])
      move(&s);
    memcpy(x, s.x[0], n * sizeof *x);
    idle = s.value[0] < best * (1 - GAIN) ? 0 : idle + 1;
    best = MIN(best, s.value[0]);
  }
  return best;
}
