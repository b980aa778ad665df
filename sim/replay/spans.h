/* What ran when: steps, copies and requests as spans of time, for a picture of a few seconds
 * (oct_spans_json()) and for a file that Perfetto and chrome://tracing open.
 *
 * The picture shows one stretch of at most OCT_SPANS_STRETCH_NS and OCT_SPANS_STEPS_MAX steps. It
 * begins at the last 1, 2, 4, 8 … s of the run at which a whole stretch was seen, so that without
 * knowing the length of the run it is of the second half of its load. The file has everything of
 * the window that was asked for, up to OCT_SPANS_EVENTS_MAX events, and says when there were more.
 * While either looks, engines forward no steps (the driver sees to it): the log stays the same.
 *
 * Tracks of the file: a process per GPU with its steps and, on the first GPU of a replica, its
 * copies; of a replica with pipeline stages one process, with as many lanes as steps overlap,
 * because a step's time on each stage is not known. Copies are shown from the time they were asked
 * for. Requests are asynchronous spans (queue, prefill, decode) with an arrow from each arrival to
 * the step that gave the first token.
 *
 * Memory is fixed. One thread.
 */
#ifndef OCT_SIM_REPLAY_SPANS_H
#define OCT_SIM_REPLAY_SPANS_H

#include <jansson.h>
#include <stdio.h>

#include "engine/sched/engine.h"
#include "sim/replay/tap.h"

#define OCT_SPANS_STRETCH_NS   (3 * G_GINT64_CONSTANT(1000000000))
#define OCT_SPANS_FIRST_NS     G_GINT64_CONSTANT(1000000000)
#define OCT_SPANS_STEPS_MAX    600
#define OCT_SPANS_COPIES_MAX   400
#define OCT_SPANS_REQUESTS_MAX 60
#define OCT_SPANS_EVENTS_MAX   2000000
#define OCT_SPANS_REPLICAS_MAX 64

typedef struct oct_spans_config {
  gboolean picture;
  FILE *chrome; /* borrowed; NULL = none */
  oct_time chrome_from_ns, chrome_for_ns;
  guint32 n_replicas, ranks, stages; /* ranks of a replica, of all its stages */
  const guint16 *devices;            /* [n_replicas x ranks], borrowed */
} oct_spans_config;

typedef struct oct_spans oct_spans;

/* Life cycle. */
oct_spans *oct_spans_new(const oct_spans_config *config);
void oct_spans_free(oct_spans *spans); /* accepts NULL */

/* Use. */
/* Whether every step is wanted at `now`, and when that changes next. */
gboolean oct_spans_looks(const oct_spans *spans, oct_time now);
oct_time oct_spans_next(const oct_spans *spans, oct_time now);
void oct_spans_step(oct_spans *spans, guint32 replica, const oct_tap_step *step);
void oct_spans_copy(oct_spans *spans, guint32 replica, const oct_tap_copy *copy);
/* A request was handed over, and has ended. `due_ns`: its intended arrival; `index`: in the trace.
 */
void oct_spans_arrival(oct_spans *spans, guint32 replica, guint64 index, oct_time due_ns,
                       guint32 input_tokens);
void oct_spans_request(oct_spans *spans, guint32 replica, guint64 index, oct_time due_ns,
                       const oct_request_record *record);

/* The measured window is over: a stretch that has not begun is not wanted, unless none was seen. */
void oct_spans_end_picture(oct_spans *spans, oct_time now);
/* The run is over: the file's last bytes. It is for the caller to see whether they were written. */
void oct_spans_end(oct_spans *spans, oct_time now);
/* The picture, null when nothing was seen; owned. doc/replay.md describes it. */
json_t *oct_spans_json(const oct_spans *spans);

#endif
