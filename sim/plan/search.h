/* The highest rate that is served: bracketed from a guess, then bisected in ratio.
 *
 * The search knows nothing of layouts: a probe says whether a rate is served. Every probe uses the
 * same stream of sessions, scaled, so that neighbouring rates and competing layouts meet the same
 * luck (common random numbers). Each probe runs in a forked child: a process has one simulated
 * world. The probes asked depend on the answers alone, never on time.
 */
#ifndef OCT_SIM_PLAN_SEARCH_H
#define OCT_SIM_PLAN_SEARCH_H

#include <jansson.h>

#include <glib.h>

#define OCT_PLAN_PROBES_MAX 24

/* In the child: {"served": bool, "undecided": bool, "too_short": bool, …} of `rate` at `stretch`
 * times the usual horizon; too short: its length is why it is not served. Owned. NULL with *error.
 */
typedef json_t *(*oct_plan_probe_fn)(void *user, double rate, double stretch, GError **error);

typedef struct oct_plan_search_options {
  oct_plan_probe_fn probe;
  void *user;
  double guess;     /* above 0 */
  double least;     /* a layout that does not serve this much is not searched further; 0 = none */
  double widen;     /* ratio of the first steps away from it, above 1 */
  double tolerance; /* the bracket is narrowed until its ratio is below 1 + this */
  /* An undecided probe is repeated at twice the horizon up to so much, one that is too short up to
   * the other, which then is the usual horizon of the probes that follow; 1 = not. */
  double stretch_max, stretch_short_max;
} oct_plan_search_options;

/* {"rate": highest served, 0 = none, "too_high": lowest not served, null = none found, "probes": n,
 * "at": the probe at rate, null = none, "unjudged": the probe at too_high where that was too
 * short, or, where nothing was served, the first that could not be judged: `rate` is then only one
 * that is served, or none; null = it is the highest}; owned. NULL with *error. */
json_t *oct_plan_search(const oct_plan_search_options *options,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
