/* What the engine thread lets everyone see while it works, or hangs: how long ago the world
 * finished something, how much it has, its counters. Written by the engine thread, read by the
 * front, without locks: neither ever waits for the other. A reader that meets a writer reads again.
 */
#ifndef OCT_SERVE_BULLETIN_H
#define OCT_SERVE_BULLETIN_H

#include "engine/sched/engine.h"
#include "engine/serve/service.h"

typedef struct oct_bulletin oct_bulletin;

oct_bulletin *oct_bulletin_new(guint32 n_replicas);
void oct_bulletin_free(oct_bulletin *bulletin); /* accepts NULL */

/* ---- engine thread. Times are of the service's clock. */
void oct_bulletin_entered(oct_bulletin *bulletin, guint32 replica, gint64 now_ns);
void oct_bulletin_left(oct_bulletin *bulletin, guint32 replica);
void oct_bulletin_progress(oct_bulletin *bulletin, guint32 replica, gint64 now_ns,
                           const oct_event *event);
void oct_bulletin_took(oct_bulletin *bulletin, guint32 n_commands);
/* The engines' counters, and why an instance was lost. */
void oct_bulletin_publish(oct_bulletin *bulletin, const oct_service *service);

/* ---- front */
/* A command is on its way. */
void oct_bulletin_sent(oct_bulletin *bulletin, gint64 now_ns);
void oct_bulletin_stats(const oct_bulletin *bulletin, guint32 replica, oct_engine_stats *stats);
/* How often its instance was lost, and why the last time. */
guint64 oct_bulletin_lost(const oct_bulletin *bulletin, guint32 replica, char *reason, gsize room);
/* All but active; ready: a replica serves. `busy_ns`, `stall_ns`: from which age on. */
void oct_bulletin_status(const oct_bulletin *bulletin, gint64 now_ns, gint64 busy_ns,
                         gint64 stall_ns, oct_service_status *status);

#endif
