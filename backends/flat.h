/* Events and configs as bytes: for a recording and for the ring of a worker process. Reading
 * distrusts every field, because the bytes come from a file or from a process that may have gone
 * mad.
 */
#ifndef OCT_BACKENDS_FLAT_H
#define OCT_BACKENDS_FLAT_H

#include "engine/backend.h"

#define OCT_FLAT_PHASE_MAX 64

/* ---- events */

/* Appends the event with what it points to; a multiple of 8 bytes. */
void oct_flat_event_write(GByteArray *to, const oct_event *event);
/* Reads one event from `bytes` (8-byte aligned, borrowed: *event points into it). FALSE with *error
 * (RECORD) that names what is wrong. */
gboolean oct_flat_event_read(const guint8 *bytes, gsize size, oct_event *event,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Checks a result against itself: its arrays follow the header in the order of the fields without
 * gaps, each 8-byte aligned, and every index is inside. */
gboolean oct_step_result_check(const oct_step_result *result, gsize size,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- configs */

/* A config with all that it points to. */
typedef struct oct_flat_config oct_flat_config;

void oct_flat_config_write(GByteArray *to, const oct_instance_config *config);
/* An owned copy; NULL with *error (RECORD). */
oct_flat_config *oct_flat_config_read(const guint8 *bytes, gsize size,
                                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_flat_config_free(oct_flat_config *config); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_flat_config, oct_flat_config_free)
/* Borrowed. */
const oct_instance_config *oct_flat_config_get(const oct_flat_config *config);

#endif
