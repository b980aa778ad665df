/* The highest rate that a configuration serves: bracketed by overload, narrowed by thirds.
 *
 * Every probe replays the same sessions at another rate (compressed: common random numbers), in a
 * forked child, two at a time. A rate is served when the run is stable and, with objectives, meets
 * them all; a run that cannot be judged is repeated at twice its length, and then counts as not
 * served.
 *
 *   1. Overload: the trace's own rate, doubled until a run is not served. What an overloaded run
 * completes per second is close to the capacity.
 *   2. From 0.7 and 1.1 times that, widened until the lower is served and the upper is not, two
 * probes at the thirds of the bracket (in ratio) until it is narrower than the tolerance.
 */
#ifndef OCT_SIM_REPLAY_CAPACITY_H
#define OCT_SIM_REPLAY_CAPACITY_H

#include "sim/replay/replay.h"

#define OCT_CAPACITY_TOLERANCE  0.02
#define OCT_CAPACITY_ROUNDS     24 /* of two probes; more is an error */
#define OCT_CAPACITY_LENGTH_MAX 8  /* a probe is at most so many durations long */

typedef struct oct_capacity_options {
  oct_replay_config config; /* rate ignored; borrowed */
  double own_rate;          /* where to begin, above 0 */
  double load;              /* share of the capacity of the final run, above 0 */
  void (*told)(void *user, const json_t *probe); /* each probe as it ends; may be NULL */
  void *user;
} oct_capacity_options;

/* {schema, rate, too_high, own_rate, own_ratio, criterion, probes: [{rate, served, verdict, …}],
 * at_own_rate: report, at_load: report}; owned. NULL with *error. */
json_t *oct_capacity_find(const oct_capacity_options *options,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
