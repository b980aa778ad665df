#include "sim/plan/demand.h"

#include "sim/replay/measured-json.h"

gboolean
oct_plan_asks_more(const oct_plan_asked *a) {
  return a->growth > 0 || a->peak > 0 || a->window_ns > 0;
}

/* ---------------------------------------------------------------- the worst stretch */

typedef struct arrival {
  gint64 ns;
  double tokens;
  gboolean starts; /* a session */
} arrival;

typedef struct stretch {
  GArray *rows; /* arrival; those before `first` have left the window */
  guint first;
  double tokens, most; /* in the window, and in the worst one */
  guint64 starts, starts_then;
  gint64 end_ns; /* of the worst one: its last arrival */
} stretch;

static void
slide(stretch *s, const arrival *a, gint64 window_ns) {
  g_array_append_val(s->rows, *a);
  s->tokens += a->tokens;
  s->starts += a->starts;
  for (;; s->first++) {
    const arrival *old = &g_array_index(s->rows, arrival, s->first);
    if (old->ns + window_ns > a->ns)
      break;
    s->tokens -= old->tokens;
    s->starts -= old->starts;
  }
  if (s->tokens > s->most) {
    s->most = s->tokens;
    s->starts_then = s->starts;
    s->end_ns = a->ns;
  }
  if (s->first > s->rows->len / 2) { /* bounded by what a window holds */
    g_array_remove_range(s->rows, 0, s->first);
    s->first = 0;
  }
}

static gboolean
refuse(GError **error, const oct_rows *rows, const char *why) {
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "worst-window: %s: %s",
              oct_rows_name(rows), why);
  return FALSE;
}

/* Tokens in and out are what a stretch is judged by: a burst of long prompts counts as such. A turn
 * that follows an answer counts where it stands in the trace. */
static gboolean
find_stretch(const oct_rows_options *options, oct_plan_demand *d, GError **error) {
  oct_rows_options own = *options;
  own.rate = 0;
  g_autoptr(oct_rows) rows = oct_rows_open(&own, error);
  if (rows == NULL)
    return FALSE;
  g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(arrival));
  stretch s = {.rows = list};
  oct_trace_request row;
  guint64 salt, starts = 0;
  GError *failed = NULL;
  gint64 first = -1, last = 0;
  double tokens = 0;
  while (oct_rows_next(rows, &row, &salt, &failed)) {
    last = MAX(last, row.arrival_ns);
    first = first < 0 ? last : first;
    arrival a = {last, (double)row.input_tokens + (double)row.output_tokens, row.parent == 0};
    tokens += a.tokens;
    starts += a.starts;
    slide(&s, &a, d->window_ns);
  }
  if (failed != NULL) {
    g_propagate_error(error, failed);
    return FALSE;
  }
  if (last - first < d->window_ns)
    return refuse(error, rows, "the trace is shorter than that");
  const double parts = (double)(last - first) / (double)d->window_ns;
  d->peak = s.most * parts / tokens;
  d->window_starts = (double)s.starts_then * parts / (double)MAX(1, starts);
  d->window_from_s = (double)MAX(s.end_ns - d->window_ns, 0) / 1e9;
  return TRUE;
}

/* ---------------------------------------------------------------- the whole */

gboolean
oct_plan_demand_find(const oct_plan_asked *asked, const oct_rows_options *rows,
                     const oct_plan_workload *workload, oct_plan_demand *d, GError **error) {
  *d = (oct_plan_demand){.mean_rate = asked->rate,
                         .growth = asked->growth > 0 ? asked->growth : 1,
                         .peak = asked->peak > 0 ? asked->peak : 1,
                         .window_ns = asked->window_ns};
  if (!(d->mean_rate > 0) && oct_plan_asks_more(asked))
    d->mean_rate = workload->own_rate;
  if (asked->window_ns > 0 && workload->n_total == 0) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "worst-window: a trace without an end has none (--peak says how high it goes)");
    return FALSE;
  }
  if (asked->window_ns > 0 && !find_stretch(rows, d, error))
    return FALSE;
  d->rate = d->mean_rate * d->growth * d->peak;
  return TRUE;
}

json_t *
oct_plan_demand_json(const oct_plan_demand *d) {
  json_t *window = json_null();
  if (d->window_ns > 0)
    window = json_pack("{s:o, s:f, s:f}", "seconds", oct_json_seconds(d->window_ns), "from_s",
                       d->window_from_s, "session_starts", d->window_starts);
  return json_pack("{s:f, s:f, s:f, s:f, s:o}", "mean_rate", d->mean_rate, "growth", d->growth,
                   "peak", d->peak, "rate", d->rate, "worst_window", window);
}
