/* How often each expert was chosen, counted from the results of an instance's steps and kept in a
 * file of engine/model/expert-counts.h, which `octet replay --expert-routing file:FILE` reads.
 *
 * The first instance that is opened says which model is counted; those of the same model add to
 * the same counts, also when one is opened again, and others (a draft model) are left alone. The
 * file is written when the first instance opens, then at most every OCT_ROUTING_WRITE_NS of the
 * world's time, and when an instance closes; it is whole at any time.
 */
#ifndef OCT_BACKENDS_RECORD_ROUTING_LOG_H
#define OCT_BACKENDS_RECORD_ROUTING_LOG_H

#include "engine/backend.h"

#define OCT_ROUTING_WRITE_NS ((oct_time)60 * 1000 * 1000 * 1000)

typedef struct oct_routing_log oct_routing_log;

oct_routing_log *oct_routing_log_new(const char *path);
void oct_routing_log_free(oct_routing_log *log); /* accepts NULL */

/* Before an instance is opened: TRUE in *counted when its results are to report experts. FALSE with
 * *error (CONFIG): the first model has none, or the file cannot be written. */
gboolean oct_routing_log_opens(oct_routing_log *log, const oct_instance_config *config,
                               gboolean *counted, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* An instance that is counted is open. Its spec is borrowed until it is closed. */
void oct_routing_log_opened(oct_routing_log *log, guint32 instance, const oct_model_spec *spec);
/* FALSE from these two: the file could not be written. */
gboolean oct_routing_log_closes(oct_routing_log *log, guint32 instance);
gboolean oct_routing_log_event(oct_routing_log *log, const oct_event *event, oct_time now_ns);

#endif
