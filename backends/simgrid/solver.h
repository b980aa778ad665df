/* SimGrid, as the world uses it: activities that share resources, and the time at which each ends.
 * The only file of Octet that includes a SimGrid header is solver.c.
 *
 * An *activity* is one parallel task (model ptask_L07): `ns` on a private lane host, which bounds
 * it to its time alone, plus an amount on every route that it uses. Alone it takes exactly `ns`;
 * where a resource is claimed by more than it has, SimGrid shares it in equal parts (max-min).
 *
 * SimGrid's clock is a double in seconds and never runs by itself: it is caught up with engine time
 * (int64 ns) before the first activity starts, and moves with it while activities live.
 * All functions but new and free are called inside oct_solver_run(). One per process, ever: SimGrid
 * has one engine, one platform and one clock.
 */
#ifndef OCT_BACKENDS_SIMGRID_SOLVER_H
#define OCT_BACKENDS_SIMGRID_SOLVER_H

#include <glib.h>

#include "sim/platform/platform.h"

/* An amount on a route: bytes, or nanoseconds of SMs. */
typedef struct oct_move {
  guint32 route;
  double amount;
} oct_move;

typedef struct oct_solver oct_solver;

/* Life cycle. `platform` is borrowed until the solver is freed. NULL with *error when this process
 * has had a solver already. */
oct_solver *oct_solver_new(const oct_platform *platform, guint n_lanes,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_solver_free(oct_solver *solver);

/* Runs fn(arg) as a SimGrid actor and returns its value. May be called again. Every activity must
 * be cancelled before fn returns. SIGINT and SIGSEGV keep the handlers they had. */
int oct_solver_run(oct_solver *solver, int (*fn)(void *arg), void *arg);

/* Use. Starts an activity at engine time `now_ns` (the same for all starts until the next wait).
 * Returns its lane, or -1 when all lanes are taken. `owner` comes back from oct_solver_wait(). */
gint oct_solver_start(oct_solver *solver, gint64 now_ns, double ns, const oct_move *moves,
                      guint n_moves, gpointer owner);
/* The part of an activity that is left, 0..1. */
double oct_solver_left(oct_solver *solver, gint lane);
void oct_solver_cancel(oct_solver *solver, gint lane);
/* Capacity of a resource from here on. */
void oct_solver_set_capacity(oct_solver *solver, guint resource, double per_s);

/* Waits until an activity ends or engine time `limit_ns` is reached. Returns the owner of the ended
 * activity (its lane is free again), or NULL at the limit; *now_ns is the time. At least one
 * activity lives, or the limit is not G_MAXINT64. */
gpointer oct_solver_wait(oct_solver *solver, gint64 limit_ns, gint64 *now_ns);

/* Inspect. */
guint oct_solver_live(const oct_solver *solver);
guint64 oct_solver_started(const oct_solver *solver); /* activities so far */

#endif
