/* The keeper: a small process that forks the workers, kills them when told, and says when one has
 * ended. It has one thread and nothing but the shared memory and a socket to the front. */
#ifndef OCT_BACKENDS_REMOTE_KEEPER_H
#define OCT_BACKENDS_REMOTE_KEEPER_H

#include <sys/types.h>

#include <glib.h>

/* From the front to the keeper, one byte each. */
typedef enum keeper_order { KEEPER_START = 'S', KEEPER_KILL = 'K', KEEPER_QUIT = 'Q' } keeper_order;

/* From the keeper to the front: a worker has ended, or could not be made. */
typedef struct keeper_notice {
  pid_t worker; /* 0: there is none */
  int status;   /* of waitpid() */
  int failure;  /* errno of fork(); 0: there was one */
} keeper_notice;

/* Forks the keeper. `worker` is called in each worker and returns its exit status. On success
 * *socket is the front's end. */
pid_t oct_keeper_fork(int (*worker)(void *arg), void *arg, int *socket,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
