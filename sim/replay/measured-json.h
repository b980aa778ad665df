/* What was measured, as JSON: the parts of a report that a replay and a benchmark of a server have
 * in common. doc/replay.md describes each field; a field that means nothing in a run is null.
 *
 * Everything returned is owned. Any thread.
 */
#ifndef OCT_SIM_REPLAY_MEASURED_JSON_H
#define OCT_SIM_REPLAY_MEASURED_JSON_H

#include <jansson.h>

#include "sim/replay/metrics.h"
#include "sim/replay/rows.h"

/* ---- values */
json_t *oct_json_count(guint64 value);
json_t *oct_json_real(double value); /* null when it is not finite */
json_t *oct_json_seconds(gint64 ns);
json_t *oct_json_share(double part, double whole); /* null when there is no whole */
json_t *oct_json_text(const char *text);           /* null for NULL */
/* Mean and percentiles in units of `unit`; null when nothing was recorded. */
json_t *oct_json_distribution(const oct_hist *hist, double unit);

/* ---- the run's traffic */
typedef struct oct_traffic {
  const char *name;
  const oct_trace_facts *facts;
  double rate, own_rate; /* 0 = not asked for, not known */
  oct_rate_mode rate_mode;
  guint64 sent; /* in the whole run */
  gboolean closed_loop;
  guint32 concurrency;
} oct_traffic;
json_t *oct_traffic_json(const oct_traffic *traffic);

/* ---- what came of it */
/* Of the whole run: from its first event to its last, the emptying at the end included, which is
 * what a benchmark that sends everything at once reports. */
typedef struct oct_whole_run {
  oct_time span_ns, load_end_ns;
  guint64 sent, ended;
  guint64 input_tokens, output_tokens;
  const char *first_refusal; /* "" = none */
  guint n_gpus;              /* 0 = not known */
} oct_whole_run;

json_t *oct_window_json(const oct_measured *m, const oct_whole_run *run);
json_t *oct_verdict_json(const oct_measured *m);
json_t *oct_requests_json(const oct_measured *m, const oct_whole_run *run);
json_t *oct_latency_json(const oct_measured *m);
json_t *oct_throughput_json(const oct_measured *m, const oct_whole_run *run);
json_t *oct_slo_json(const oct_slo *slo, const oct_measured *m);
json_t *oct_series_json(const oct_measured *m);

/* ---- what pictures and comparisons are made of (measured-detail.c) */
json_t *oct_cdf_json(const oct_measured *m);
json_t *oct_course_json(const oct_measured *m);
json_t *oct_batch_sizes_json(const oct_measured *m);
json_t *oct_kept_json(const oct_measured *m); /* null when none was kept */

#endif
