/* What a trace is like: counts, rates, lengths, and how much prefix there is to share.
 *
 * Rows are added one by one. Lengths and gaps take fixed memory; sessions and distinct prefix
 * blocks take about 24 bytes each.
 */
#ifndef OCT_TRACES_STATS_H
#define OCT_TRACES_STATS_H

#include <glib.h>

#include "engine/base/hist.h"
#include "traces/trace.h"

typedef struct oct_trace_stats oct_trace_stats;

typedef struct oct_trace_share { /* requests of one class, or of one priority */
  const char *class_name;        /* owned by the statistics; NULL in the list of priorities */
  gint32 priority;
  guint64 n_requests;
} oct_trace_share;

typedef struct oct_trace_summary {
  guint64 n_requests;
  guint64 n_timed;           /* with an arrival time */
  guint64 n_dependents;      /* that wait for a parent */
  guint64 n_sessions;        /* distinct; 0: the trace has none */
  double span_s;             /* first to last arrival */
  double rate;               /* n_timed / span_s; 0 when the span is 0 */
  double peak_1s, peak_60s;  /* most arrivals in a second, in a minute (per second), from 0 on */
  double gap_mean_s, gap_cv; /* between arrivals; NAN with fewer than two gaps, or mean 0 */
  guint64 input_tokens, output_tokens;
  const oct_hist *input, *output, *max_tokens; /* borrowed; max_tokens: of rows that state it */
  /* In a cache that never forgets, requests one after the other: */
  guint64 n_blocks;     /* named blocks of prompts */
  guint64 n_hit_blocks; /* those among them that begin as an earlier prompt does */
  guint64 hit_tokens;   /* prompt tokens in them */
  guint64 n_hit_blocks_outputs, hit_tokens_outputs; /* … as an earlier prompt with its output */
  guint64 n_distinct_blocks;                        /* outputs included */
} oct_trace_summary;

/* Life cycle. */
oct_trace_stats *oct_trace_stats_new(void);
void oct_trace_stats_free(oct_trace_stats *stats); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_trace_stats, oct_trace_stats_free)

/* Use. */
void oct_trace_stats_add(oct_trace_stats *stats, const oct_trace_request *request);

/* Inspect. Pointers in the summary live as long as `stats` and show what is added later. */
oct_trace_summary oct_trace_stats_summary(const oct_trace_stats *stats);
/* Class i (priority i), the most frequent first, names (numbers) rising among equals; FALSE past
 * the last. */
gboolean oct_trace_stats_class(oct_trace_stats *stats, guint i, oct_trace_share *out);
gboolean oct_trace_stats_priority(oct_trace_stats *stats, guint i, oct_trace_share *out);

#endif
