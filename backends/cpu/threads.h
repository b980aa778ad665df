/* A team of threads that share out the items of one loop at a time.
 *
 * oct_team_run() calls fn for every item in [0, n), on the caller's thread and the helpers', and
 * returns when all are done. Which thread takes which item is not defined, so an item may only
 * write what is its own: then the result does not depend on the number of threads. Helpers wait
 * awake for a moment after a loop, then asleep, so that a team that has nothing to do costs
 * nothing.
 */
#ifndef OCT_BACKENDS_CPU_THREADS_H
#define OCT_BACKENDS_CPU_THREADS_H

#include <glib.h>

#define OCT_TEAM_THREADS_MAX 256

typedef struct oct_team oct_team;
/* `thread` is in [0, n_threads): for scratch memory. */
typedef void (*oct_team_fn)(void *context, guint32 item, guint32 thread);

/* Life cycle. n_threads counts the caller: 1 … OCT_TEAM_THREADS_MAX. The machine may give fewer:
 * oct_team_threads() says how many there are. */
oct_team *oct_team_new(guint32 n_threads);
void oct_team_free(oct_team *team); /* accepts NULL; not inside a run */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_team, oct_team_free)

/* Use: one thread at a time. */
void oct_team_run(oct_team *team, oct_team_fn fn, void *context, guint32 n);

/* Inspect. */
guint32 oct_team_threads(const oct_team *team);

#endif
