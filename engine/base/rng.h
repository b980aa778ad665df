/* Seeded random numbers: the only source of randomness in Octet.
 *
 * xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64. One generator per purpose, told
 * apart by `stream`, so that drawing more numbers for one purpose never shifts another's. Equal
 * (seed, stream) give equal numbers on every machine; the continuous laws below use libm and are
 * equal for equal libm. Not for secrets. Plain data, no ownership; one thread at a time each.
 */
#ifndef OCT_BASE_RNG_H
#define OCT_BASE_RNG_H

#include <glib.h>

typedef struct oct_rng {
  guint64 s[4];
  double spare_normal; /* second value of the last polar pair */
  gboolean has_spare;
} oct_rng;

/* Life cycle. */
void oct_rng_seed(oct_rng *rng, guint64 seed, guint64 stream);

/* Use. */
guint64 oct_rng_u64(oct_rng *rng);
/* Uniform in [0, bound), without bias; bound >= 1. */
guint64 oct_rng_below(oct_rng *rng, guint64 bound);
/* Uniform in (0, 1): never 0, never 1, 52 bits. */
double oct_rng_uniform(oct_rng *rng);
/* Exponential with the given mean (> 0). */
double oct_rng_exponential(oct_rng *rng, double mean);
/* Standard normal (polar method). */
double oct_rng_normal(oct_rng *rng);
/* Gamma with shape (> 0) and scale (> 0): Marsaglia and Tsang 2000, boosted below shape 1. */
double oct_rng_gamma(oct_rng *rng, double shape, double scale);
/* Weibull with shape (> 0) and scale (> 0), by inversion. */
double oct_rng_weibull(oct_rng *rng, double shape, double scale);

/* Stateless: a well-mixed 64-bit value of its argument (splitmix64's finaliser). */
static inline guint64
oct_mix64(guint64 x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

#endif
