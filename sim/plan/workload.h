/* What a plan must know of its traffic before anything is simulated: lengths, from the first rows
 * of one stream. The bounds of bound.h and the horizon of a probe come from it.
 *
 * Plain data; one thread.
 */
#ifndef OCT_SIM_PLAN_WORKLOAD_H
#define OCT_SIM_PLAN_WORKLOAD_H

#include "sim/replay/rows.h"

#define OCT_PLAN_SAMPLE_ROWS 2000

typedef struct oct_plan_workload {
  guint64 n_total;           /* rows of the trace; 0 = it has no end */
  guint n;                   /* rows that were read, at most OCT_PLAN_SAMPLE_ROWS */
  guint32 *inputs, *outputs; /* [n] each, sorted, owned: quantiles */
  double mean_input, mean_output;
  double decode_context;     /* tokens that an output token attends to, in the mean over them */
  double requests_per_start; /* rows for each session start, 1 and more */
  double own_rate;           /* session starts per second of the trace itself */
  gboolean has_prefix_ids;   /* prompts may be cached: their length is no floor of the work */
  gboolean generated;        /* another seed is another stream */
} oct_plan_workload;

/* An endless trace is not read to its end. FALSE with *error: of the trace; a closed loop has no
 * rate to look for. */
gboolean oct_plan_workload_read(const oct_rows_options *rows, gboolean endless,
                                oct_plan_workload *workload,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_plan_workload_clear(oct_plan_workload *workload);

/* The value that `share` (0..1) of the sorted ones do not exceed. */
guint32 oct_plan_quantile(const guint32 *sorted, guint n, double share);

#endif
