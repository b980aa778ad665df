/* A change of pace: how many times faster than usual requests arrive, over time.
 *
 * The usual traffic runs on a clock of its own, which goes g(t) times as fast as the run's: its
 * time u comes at t(u) with the integral of g up to t(u) equal to u. So the same sessions come, in
 * the same order, and a Poisson process of rate r becomes one of rate r g(t). g is a product of
 * factors, each in a stretch of time, and of one period 1 + a cos(2 pi (t - peak) / period).
 * Never changes once used: any thread may read it.
 */
#ifndef OCT_SIM_SCENARIO_WARP_H
#define OCT_SIM_SCENARIO_WARP_H

#include <glib.h>

#define OCT_WARP_FACTOR_MAX 1000.0

typedef struct oct_warp oct_warp;

oct_warp *oct_warp_new(void);
void oct_warp_free(oct_warp *warp); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_warp, oct_warp_free)

/* From start to end (ns; G_MAXINT64 = for ever, then above 0) arrivals are `factor` times as many.
 */
void oct_warp_add(oct_warp *warp, gint64 start_ns, gint64 end_ns, double factor);
/* 0 <= amplitude <= 1; once. */
void oct_warp_set_period(oct_warp *warp, gint64 period_ns, double amplitude, gint64 peak_ns);
gboolean oct_warp_has_period(const oct_warp *warp);

/* When what usually comes at `usual_ns` comes now. Rises with it. */
gint64 oct_warp_at(const oct_warp *warp, gint64 usual_ns);
/* The integral of g from 0 to t, in ns of the usual clock. */
double oct_warp_integral(const oct_warp *warp, gint64 t_ns);

#endif
