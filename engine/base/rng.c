#include "engine/base/rng.h"

#include <math.h>

#include "engine/base/assert.h"

void
oct_rng_seed(oct_rng *rng, guint64 seed, guint64 stream) {
  guint64 x = oct_mix64(seed) ^ oct_mix64(stream ^ 0x6f637465745f726eu);
  for (int i = 0; i < 4; i++) {
    rng->s[i] = oct_mix64(x);
    x += 0x9e3779b97f4a7c15u;
  }
  rng->spare_normal = 0;
  rng->has_spare = FALSE;
}

static inline guint64
rotate_left(guint64 x, int k) {
  return (x << k) | (x >> (64 - k));
}

guint64
oct_rng_u64(oct_rng *rng) {
  guint64 *s = rng->s;
  guint64 result = rotate_left(s[1] * 5, 7) * 9;
  guint64 t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = rotate_left(s[3], 45);
  return result;
}

guint64
oct_rng_below(oct_rng *rng, guint64 bound) {
  oct_assert(bound >= 1);
  /* Numbers below `reject` would make the low residues likelier: draw again. */
  guint64 reject = (0 - bound) % bound;
  guint64 x;
  do
    x = oct_rng_u64(rng);
  while (x < reject);
  return x % bound;
}

double
oct_rng_uniform(oct_rng *rng) {
  /* 52 bits: with 53 the largest would round up to 1. */
  return ((double)(oct_rng_u64(rng) >> 12) + 0.5) * 0x1p-52;
}

double
oct_rng_exponential(oct_rng *rng, double mean) {
  return -mean * log(oct_rng_uniform(rng));
}

double
oct_rng_normal(oct_rng *rng) {
  if (rng->has_spare) {
    rng->has_spare = FALSE;
    return rng->spare_normal;
  }
  double u, v, r;
  do {
    u = 2 * oct_rng_uniform(rng) - 1;
    v = 2 * oct_rng_uniform(rng) - 1;
    r = u * u + v * v;
  } while (r >= 1 || r == 0);
  double f = sqrt(-2 * log(r) / r);
  rng->spare_normal = v * f;
  rng->has_spare = TRUE;
  return u * f;
}

double
oct_rng_gamma(oct_rng *rng, double shape, double scale) {
  oct_assert(shape > 0 && scale > 0);
  double boost = 1;
  if (shape < 1) {
    boost = pow(oct_rng_uniform(rng), 1 / shape);
    shape += 1;
  }
  double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
  for (;;) {
    double x = oct_rng_normal(rng), t = 1 + c * x;
    if (t <= 0)
      continue;
    double v = t * t * t;
    if (log(oct_rng_uniform(rng)) < 0.5 * x * x + d - d * v + d * log(v))
      return d * v * boost * scale;
  }
}

double
oct_rng_weibull(oct_rng *rng, double shape, double scale) {
  oct_assert(shape > 0 && scale > 0);
  return scale * pow(-log(oct_rng_uniform(rng)), 1 / shape);
}
