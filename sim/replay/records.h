/* A few numbers of every request, for what is asked of parts of a run: its worst minutes, its peak,
 * its classes. Percentiles here are exact (nearest rank).
 *
 * Kept only when somebody asks (a window, or requests with classes), 48 bytes each, and of at most
 * OCT_RECORDS_MAX requests: a longer run says so instead. One thread.
 */
#ifndef OCT_SIM_REPLAY_RECORDS_H
#define OCT_SIM_REPLAY_RECORDS_H

#include <jansson.h>

#include "sim/replay/metrics.h"

#define OCT_RECORDS_MAX         (1u << 20)
#define OCT_RECORDS_CLASSES_MAX 64u

typedef struct oct_records oct_records;

/* Limits of one class, in place of the run's. */
typedef struct oct_class_slo {
  const char *class_name; /* borrowed */
  oct_slo slo;
} oct_class_slo;

oct_records *oct_records_new(void);
void oct_records_free(oct_records *records); /* accepts NULL */

void oct_records_add(oct_records *records, const oct_outcome *outcome, const char *class_name);

/* Of windows of `length_ns` that begin every fifth of it, within what arrived in [from, end):
 * {"worst": …, "peak": …}, each {from_s, length_s, requests, attainment, ttft_p99_s, tpot_p99_s,
 * e2e_p99_s, tokens_per_s}. Worst is that with the smallest share of requests within `slo`, of
 * equals that with the longest p99 of TTFT; peak that with most tokens of prompts and answers
 * arriving. null without a request, or with "reason" when there were too many. Owned. */
json_t *oct_records_windows_json(const oct_records *records, oct_time from_ns, oct_time end_ns,
                                 gint64 length_ns, const oct_slo *slo);
/* Why the class has no line in the list below: a text, or NULL when it has one. */
const char *oct_records_lack_of(const oct_records *records, const char *class_name);
/* A list, by name: {class, requests, answered, attainment, ttft_p50_s, ttft_p99_s, tpot_p50_s,
 * tpot_p99_s, e2e_p50_s, e2e_p99_s, objectives}; null when no request has a class. Owned. */
json_t *oct_records_classes_json(const oct_records *records, oct_time from_ns, oct_time end_ns,
                                 const oct_slo *slo, const oct_class_slo *own, guint n_own);

#endif
