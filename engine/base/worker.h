/* Threads, and the bell that wakes one. The only way to a thread in engine/: what threads hand to
 * one another goes through rings (engine/base/ring.h); a bell tells that there is something in one.
 * POSIX threads: their calls are what the thread sanitizer understands.
 */
#ifndef OCT_BASE_WORKER_H
#define OCT_BASE_WORKER_H

#include <glib.h>

typedef struct oct_worker oct_worker;

/* Life cycle. Runs run(arg) on a thread of its own; `name` is what tools show, up to 15 bytes. It
 * takes no signals. NULL with *error (MEMORY): the machine gives no more threads. */
oct_worker *oct_worker_new(const char *name, void (*run)(void *arg), void *arg,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Waits for run() to return. Accepts NULL. */
void oct_worker_free(oct_worker *worker);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_worker, oct_worker_free)

typedef struct oct_bell oct_bell;

oct_bell *oct_bell_new(void);
void oct_bell_free(oct_bell *bell); /* accepts NULL; nobody may wait */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_bell, oct_bell_free)
/* Any thread. What it wrote before is seen by the one that wait() lets go. */
void oct_bell_ring(oct_bell *bell);
/* One thread: until it has been rung since the last wait() returned; any number of rings is one. */
void oct_bell_wait(oct_bell *bell);

#endif
