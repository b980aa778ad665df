/* The step log: one line of JSON for each step that a world finished, with what it computed and
 * when. `octet validate --steps` prices the same steps with the cost model and compares.
 *
 * The file is text, a JSON object a line; keys that a reader does not know are to be skipped.
 *
 *   {"octet_steps":1,"clock":"real"}                                     first line: the version
 *   {"opened":1,"tensor":1,"pipeline":1,"data":1,"decode_context":1,"expert_parallel":false,
 *    "kv_dtype":"bfloat16","block_size":16,"eager":false,"graph_max_batch":256,"label":"…"}
 *   {"step":7,"instance":1,"known_ns":…,"start_ns":…,"end_ns":…,"gap_ns":…,
 *    "domains":[{"rows":2,"prefill":[[512,0]],"decode":[1024,980],"verify":[[4,77]]}]}
 *
 * Times are nanoseconds since the world began. start_ns: when the step began, or its predecessor
 * ended where that is later; end_ns: when its tokens were known to the host; known_ns: the last
 * event that the engine had seen when it submitted the step; gap_ns: from the end of the step
 * before to start_ns, the time in which nothing ran (0 for the first). A domain's slices by kind:
 * [tokens, position of the first] of prompts and of drafts that are verified, and of plain decodes
 * the position alone; `rows`: positions that were sampled. An empty list is left out. A step that
 * failed has no line. Where results tell of experts, "used":[205,190] behind the domains: by
 * pipeline stage, experts that the step used, over its layers; and "missed":[12,7], those of them
 * that were not on the device, where it does not hold all.
 */
#ifndef OCT_BACKENDS_RECORD_STEP_LOG_H
#define OCT_BACKENDS_RECORD_STEP_LOG_H

#include "engine/backend.h"

#define OCT_STEP_LOG_VERSION 1

typedef struct oct_step_log oct_step_log;

/* `path` is created or emptied. NULL with *error (CONFIG). */
oct_step_log *oct_step_log_new(const char *path, oct_clock_kind clock,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_step_log_free(oct_step_log *log); /* accepts NULL */

/* What a world's caller did: an instance was opened, a step was taken after the event of
 * `known_ns`; and what it was told. The config is read at once, the spec's name kept. */
void oct_step_log_opened(oct_step_log *log, guint32 instance, const oct_instance_config *config);
void oct_step_log_closed(oct_step_log *log, guint32 instance);
void oct_step_log_submitted(oct_step_log *log, guint32 instance, const oct_step *step,
                            oct_time known_ns);
void oct_step_log_event(oct_step_log *log, const oct_event *event);

/* Writes out what is held back; errno of the first write that failed, 0 = none. */
int oct_step_log_flush(oct_step_log *log);

#endif
