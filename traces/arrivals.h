/* Times of session starts in open loop; internal to traces/. The laws are those of traces/gen.h. */
#ifndef OCT_TRACES_ARRIVALS_H
#define OCT_TRACES_ARRIVALS_H

#include "engine/base/rng.h"
#include "traces/gen.h"

typedef struct oct_arrivals {
  const oct_trace_gen_spec *spec; /* borrowed */
  oct_rng rng;
  double unit_time;     /* sum of the unit-mean gaps so far */
  double weibull_scale; /* gives a unit mean */
  double ramp_s;        /* length of the ramp */
  double ramp_unit;     /* unit time at its end */
} oct_arrivals;

void oct_arrivals_init(oct_arrivals *arrivals, const oct_trace_gen_spec *spec, guint64 seed);
/* Seconds of the next start. */
double oct_arrivals_next(oct_arrivals *arrivals);
/* A gap of mean 1. */
double oct_arrivals_unit_gap(oct_arrivals *arrivals);
/* The unit time that has passed at second t: the integral of the rate. */
double oct_arrivals_unit_at(const oct_arrivals *arrivals, double t);

#endif
