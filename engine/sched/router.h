/* The replica that takes the next request: the least loaded.
 *
 * One rule for all who send requests to replicas: the server (engine/serve), a replay (sim/replay)
 * and the dealer of a plan (sim/plan), which keeps estimated books for replicas that it does not
 * simulate. What a load is they say themselves; of an engine it is oct_engine_load_tokens().
 */
#ifndef OCT_SCHED_ROUTER_H
#define OCT_SCHED_ROUTER_H

#include <glib.h>

/* The load of a replica, 0 or more; INFINITY: it takes nothing now. */
typedef double (*oct_router_load_fn)(void *user, guint32 replica);

/* Of replicas 0 … n - 1 the one with the least load, of equals the first from `from` (below n) on,
 * after the last the first. Each is asked once. n when none takes anything. */
guint32 oct_router_least_loaded(guint32 n, guint32 from, oct_router_load_fn load, void *user);

#endif
