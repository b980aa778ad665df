/* Gaps of mean 1 are summed; the sum is turned into seconds by the inverse of the rate's integral.
 *
 *   no ramp      U(t) = r t
 *   linear       U(t) = s t + (e - s) t^2 / 2D          t = 2u / (s + sqrt(s^2 + 2 (e - s) u / D))
 *   exponential  U(t) = s (exp(kt) - 1) / k, k = ln(e/s)/D   t = log1p(u k / s) / k
 *   after the ramp, t > D: U(t) = U(D) + e (t - D)
 */
#include "traces/arrivals.h"

#include <math.h>

static gboolean
is_flat(const oct_trace_gen_spec *spec) {
  return spec->ramp == OCT_TRACE_RAMP_NONE || spec->start_rate == spec->end_rate;
}

static double
flat_rate(const oct_trace_gen_spec *spec) {
  return spec->ramp == OCT_TRACE_RAMP_NONE ? spec->rate : spec->end_rate;
}

double
oct_arrivals_unit_at(const oct_arrivals *a, double t) {
  const oct_trace_gen_spec *spec = a->spec;
  double s = spec->start_rate, e = spec->end_rate, d = a->ramp_s;
  if (is_flat(spec))
    return flat_rate(spec) * t;
  if (t > d)
    return a->ramp_unit + e * (t - d);
  if (spec->ramp == OCT_TRACE_RAMP_LINEAR)
    return s * t + (e - s) * t * t / (2 * d);
  double k = log(e / s) / d;
  return s * expm1(k * t) / k;
}

static double
time_of(const oct_arrivals *a, double u) {
  const oct_trace_gen_spec *spec = a->spec;
  double s = spec->start_rate, e = spec->end_rate, d = a->ramp_s;
  if (is_flat(spec))
    return u / flat_rate(spec);
  if (u > a->ramp_unit)
    return d + (u - a->ramp_unit) / e;
  if (spec->ramp == OCT_TRACE_RAMP_LINEAR)
    return 2 * u / (s + sqrt(MAX(s * s + 2 * (e - s) * u / d, 0)));
  double k = log(e / s) / d;
  return log1p(u * k / s) / k;
}

void
oct_arrivals_init(oct_arrivals *a, const oct_trace_gen_spec *spec, guint64 seed) {
  enum { STREAM_ARRIVALS = 1 };
  a->spec = spec;
  a->unit_time = 0;
  a->weibull_scale = spec->weibull_shape > 0 ? 1 / tgamma(1 + 1 / spec->weibull_shape) : 1;
  a->ramp_s = spec->duration_s;
  a->ramp_unit = INFINITY;
  oct_rng_seed(&a->rng, seed, STREAM_ARRIVALS);
  if (is_flat(spec))
    return;
  double s = spec->start_rate, e = spec->end_rate;
  double mean = spec->ramp == OCT_TRACE_RAMP_LINEAR ? (s + e) / 2 : (e - s) / log(e / s);
  if (a->ramp_s == 0)
    a->ramp_s = (double)spec->n_requests / mean;
  a->ramp_unit = mean * a->ramp_s;
}

double
oct_arrivals_unit_gap(oct_arrivals *a) {
  const oct_trace_gen_spec *spec = a->spec;
  switch (spec->arrivals) {
  case OCT_TRACE_ARRIVALS_GAMMA:
    return oct_rng_gamma(&a->rng, spec->burstiness, 1 / spec->burstiness);
  case OCT_TRACE_ARRIVALS_WEIBULL:
    return oct_rng_weibull(&a->rng, spec->weibull_shape, a->weibull_scale);
  case OCT_TRACE_ARRIVALS_GAPS:
    return oct_dist_draw(spec->gaps, &a->rng) / oct_dist_mean(spec->gaps);
  case OCT_TRACE_ARRIVALS_CONSTANT:
    return 1;
  case OCT_TRACE_ARRIVALS_POISSON:
  case OCT_TRACE_ARRIVALS_CLOSED:
  case OCT_TRACE_ARRIVALS_SERVEGEN:
    break;
  }
  return oct_rng_exponential(&a->rng, 1);
}

double
oct_arrivals_next(oct_arrivals *a) {
  a->unit_time += oct_arrivals_unit_gap(a);
  return time_of(a, a->unit_time);
}
