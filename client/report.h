/* The report of a benchmark: the schema of a replay's (sim/replay/replay.h), so that both stand
 * side by side, and a section "client" of what only a client sees. doc/bench.md describes that.
 */
#ifndef OCT_CLIENT_REPORT_H
#define OCT_CLIENT_REPORT_H

#include <stdio.h>

#include <jansson.h>

#include "client/load.h"

/* What ran; plain data, borrowed. */
typedef struct oct_bench_facts {
  const char *label; /* NULL = alone */
  const char *url, *model, *trace_name;
  const oct_load_config *config;
  const oct_trace_facts *trace;
  double rate, own_rate; /* 0 = not asked for, not known */
  oct_rate_mode rate_mode;
  double time_scale; /* 1 = as recorded */
  guint64 seed;
  double cpu_s;
  guint64 peak_rss_bytes;
} oct_bench_facts;

/* Owned. */
json_t *oct_bench_json(const oct_bench_facts *facts, const oct_load_result *result);
/* For people. `only`: rows of latencies (sim/replay/report.h). */
void oct_bench_print(FILE *out, const json_t *report, const char *const *only);

#endif
