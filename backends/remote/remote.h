/* The remote backend: runs any real-clock world in a worker process, and survives its death.
 *
 *     front process                 keeper                worker
 *     engine -> this world          forks, kills and      the inner world, in its own
 *        |         |                reaps workers         thread; a second one rings it awake
 *        |         +---- socket ------ + ---------------- fork, SIGKILL
 *        +---- two rings of flat records in shared memory, two bells ----+
 *
 * The keeper is forked when this world is made, before the process has threads or a CUDA context,
 * so that a new worker never comes from a process that has them. It ends when its socket closes.
 *
 * Neither side believes the other. The worker checks each record as if it came from a network; the
 * front checks each event against what it submitted. What goes wrong becomes faults:
 *
 *     the worker dies (signal, exit)     INSTANCE for each, after what it had still said
 *     it is silent for hang_ns           the same; it is killed
 *     it says what cannot be (garbage)   the same; it is killed
 *     no restarts left, or no keeper     FATAL
 *
 * An instance that was opening gets OPEN_FAILED. The next oct_world_open() starts another worker.
 */
#ifndef OCT_BACKENDS_REMOTE_REMOTE_H
#define OCT_BACKENDS_REMOTE_REMOTE_H

#include <sys/types.h>

#include "engine/backend.h"

typedef struct oct_remote_options {
  gint64 heartbeat_ns; /* the worker shows life at least this often; > 0 */
  gint64 hang_ns;      /* silence that is taken for death; >= 4 heartbeats */
  gint64 start_ns;     /* longest time to make the inner world */
  guint32 restarts;    /* workers after the first */
  guint32 ring_bytes;  /* of each direction, a power of two >= 64 KiB. What is more than half of it
                          goes beside it, one at a time */
} oct_remote_options;

/* Heartbeat 50 ms, hang 10 s, start 60 s, 3 restarts, rings of 16 MiB. */
void oct_remote_options_default(oct_remote_options *options);

/* Makes the inner world, in the worker. It has a real clock. */
typedef oct_world *(*oct_remote_make_fn)(void *arg, GError **error);

/* Forks, makes the inner world and waits until it is there. `arg` is used in the worker, as it is
 * now. NULL with *error (CONFIG: options, or what `make` said; DEVICE: no process, no memory). */
oct_world *oct_remote_world_new(oct_remote_make_fn make, void *arg,
                                const oct_remote_options *options,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- inspect, for tests */

/* The worker's process, 0 while there is none; and the keeper's. */
pid_t oct_remote_worker(const oct_world *world);
pid_t oct_remote_keeper(const oct_world *world);
/* The shared memory between them (backends/remote/channel.h): a test writes garbage there. */
struct oct_channel *oct_remote_channel(const oct_world *world);

#endif
