/* Text threads that encode prompts and do other long work, so that the front does not.
 *
 * A ring of jobs and a ring of results for each thread; a job goes to the thread that has the
 * fewest. Everything but the jobs themselves is called by the front.
 */
#ifndef OCT_SERVE_WORKERS_H
#define OCT_SERVE_WORKERS_H

#include "engine/serve/internal.h"

#define OCT_WORKERS_MAX      64
#define OCT_WORKERS_JOBS_MAX 1024 /* of one thread; more are BUSY */

oct_workers *oct_workers_new(oct_service *service, guint32 n);
gboolean oct_workers_start(oct_workers *workers, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Ends the threads after the job that each is at. */
void oct_workers_stop(oct_workers *workers);
/* Calls done() of what no thread has taken, without its work. Stopped, or never started. */
void oct_workers_drop(oct_workers *workers);
/* The same first. Accepts NULL. */
void oct_workers_free(oct_workers *workers);

/* work(user) on a thread, then done(user) from dispatch. FALSE with *error (BUSY). */
gboolean oct_workers_post(oct_workers *workers, void (*work)(void *user), void (*done)(void *user),
                          void *user, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* TRUE: something was done. */
gboolean oct_workers_dispatch(oct_workers *workers);
/* Without threads: does what has been posted. */
void oct_workers_turn(oct_workers *workers);

#endif
