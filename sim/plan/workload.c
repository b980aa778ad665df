#include "sim/plan/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int
by_size(const void *a, const void *b) {
  guint32 x = *(const guint32 *)a, y = *(const guint32 *)b;
  return (x > y) - (x < y);
}

guint32
oct_plan_quantile(const guint32 *sorted, guint n, double share) {
  if (n == 0)
    return 0;
  double rank = ceil(CLAMP(share, 0, 1) * n);
  return sorted[(guint)CLAMP(rank, 1, n) - 1];
}

static gboolean
read_rows(oct_rows *rows, gboolean endless, oct_plan_workload *w, GError **error) {
  double input = 0, output = 0, context = 0;
  guint starts = 0;
  for (guint64 total = 0; !endless || total < OCT_PLAN_SAMPLE_ROWS; total++) {
    oct_trace_request row;
    guint64 salt;
    GError *failed = NULL;
    if (!oct_rows_next(rows, &row, &salt, &failed)) {
      if (failed == NULL)
        break;
      g_propagate_error(error, failed);
      return FALSE;
    }
    w->n_total = endless ? 0 : total + 1;
    if (w->n == OCT_PLAN_SAMPLE_ROWS)
      continue;
    double in = row.input_tokens, out = row.output_tokens;
    w->inputs[w->n] = row.input_tokens;
    w->outputs[w->n++] = row.output_tokens;
    input += in;
    output += out;
    context += out * in + out * out / 2;
    starts += row.parent == 0;
  }
  if (w->n == 0) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "%s: the trace has no request",
                oct_rows_name(rows));
    return FALSE;
  }
  w->mean_input = input / w->n;
  w->mean_output = output / w->n;
  w->decode_context = context / output;
  w->requests_per_start = (double)w->n / MAX(1, starts);
  return TRUE;
}

gboolean
oct_plan_workload_read(const oct_rows_options *options, gboolean endless, oct_plan_workload *w,
                       GError **error) {
  memset(w, 0, sizeof *w);
  oct_rows_options asked = *options;
  oct_trace_options trace;
  if (options->trace != NULL)
    trace = *options->trace;
  else
    oct_trace_options_init(&trace);
  if (endless)
    trace.limit = OCT_PLAN_SAMPLE_ROWS;
  asked.trace = &trace;
  asked.rate = 1; /* for the own rate to be looked for */
  g_autoptr(oct_rows) rows = oct_rows_open(&asked, error);
  if (rows == NULL)
    return FALSE;
  w->inputs = g_new0(guint32, OCT_PLAN_SAMPLE_ROWS);
  w->outputs = g_new0(guint32, OCT_PLAN_SAMPLE_ROWS);
  if (!read_rows(rows, endless, w, error)) {
    oct_plan_workload_clear(w);
    return FALSE;
  }
  const oct_trace_facts *facts = oct_rows_facts(rows);
  w->own_rate = oct_rows_own_rate(rows);
  w->has_prefix_ids = facts->has_hash_ids;
  w->generated = facts->format == OCT_TRACE_FORMAT_GENERATED;
  qsort(w->inputs, w->n, sizeof *w->inputs, by_size);
  qsort(w->outputs, w->n, sizeof *w->outputs, by_size);
  return TRUE;
}

void
oct_plan_workload_clear(oct_plan_workload *w) {
  g_free(w->inputs);
  g_free(w->outputs);
  memset(w, 0, sizeof *w);
}
