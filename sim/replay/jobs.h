/* Work in child processes: SimGrid allows one world per process, and two of them use two cores.
 *
 * Each job runs in a forked child and hands its result back as JSON. Fork before anything has made
 * a world or a thread. A child ends with its parent.
 */
#ifndef OCT_SIM_REPLAY_JOBS_H
#define OCT_SIM_REPLAY_JOBS_H

#include <jansson.h>

#include "sim/replay/slo.h"

#define OCT_JOBS_MAX          64
#define OCT_JOBS_PARALLEL     2
#define OCT_JOBS_PARALLEL_MAX 64

#define OCT_JOBS_NONE G_MAXUINT

/* In the child: job `index`'s result, owned, or NULL with *error. */
typedef json_t *(*oct_job_fn)(void *user, guint index, GError **error);
/* The next job to start, each once; OCT_JOBS_NONE = none now: asked again when one has ended. */
typedef guint (*oct_job_pick_fn)(void *user);

/* Runs jobs 0 … n - 1, at most OCT_JOBS_PARALLEL at once, and fills results[n] (owned by the
 * caller: json_decref()). `done` (may be NULL) is told as they end. FALSE with *error
 * (OCT_REPLAY_ERROR_CHILD) when one failed, with its message and, of several, its number from 1 on;
 * the others have been ended, and nothing is handed back. */
gboolean oct_jobs_run(guint n, oct_job_fn fn, void *user, void (*done)(void *user, guint n_done),
                      json_t **results, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same for `parallel` at once, 1 … OCT_JOBS_PARALLEL_MAX. `done` may look at `results`: those
 * of jobs that have ended are set. */
gboolean oct_jobs_run_at_once(guint parallel, guint n, oct_job_fn fn, void *user,
                              void (*done)(void *user, guint n_done), json_t **results,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same for jobs of which some wait for others: `pick` chooses among 0 … n - 1 with what has
 * ended, and all is done when it has none and none runs. `done` (not NULL) is told which has ended,
 * and may look at its result. Results of jobs that were never picked are NULL. */
gboolean oct_jobs_run_picked(guint parallel, guint n, oct_job_pick_fn pick, oct_job_fn fn,
                             void *user, void (*done)(void *user, guint job), json_t **results,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
