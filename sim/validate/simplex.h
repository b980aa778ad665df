/* Minimises a function of a few variables without its derivative: the downhill simplex of Nelder
 * and Mead with the coefficients of Gao and Han, which depend on the number of variables, begun
 * again from what it found until that helps no more. Deterministic. One thread.
 */
#ifndef OCT_SIM_VALIDATE_SIMPLEX_H
#define OCT_SIM_VALIDATE_SIMPLEX_H

#include <glib.h>

#define OCT_SIMPLEX_DIMENSIONS_MAX 12

typedef double (*oct_simplex_fn)(const double *x, gpointer user);

typedef struct oct_simplex_options {
  guint n;            /* variables, at most OCT_SIMPLEX_DIMENSIONS_MAX */
  const double *low;  /* [n]; points are moved to the nearest within */
  const double *high; /* [n] */
  double step;        /* of the first simplex, as a share of high - low */
  guint evaluations_max;
} oct_simplex_options;

/* x[n]: where to begin, and then the best point found. Returns its value. */
double oct_simplex(const oct_simplex_options *options, oct_simplex_fn fn, gpointer user, double *x);

#endif
