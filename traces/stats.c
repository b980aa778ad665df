/* Gaps are summed by Welford's recurrence; prefixes are chained hashes of block ids in a set. */
#include "traces/stats.h"

#include <math.h>
#include <string.h>

#include "engine/base/rng.h"
#include "traces/idmap.h"

#define PEAKS 2

struct oct_trace_stats {
  oct_trace_summary sum; /* of what is counted on the way; the rest is computed when asked */
  oct_hist *input, *output, *max_tokens;
  oct_idmap *sessions, *prefixes;
  gint64 first_ns, last_ns;
  double gap_mean_s, gap_squares; /* Welford's mean and sum of squares */
  guint64 n_gaps;
  gint64 peak_slot[PEAKS];
  guint64 peak_count[PEAKS], peak_most[PEAKS];
  GArray *classes, *priorities; /* oct_trace_share */
};

static const gint64 peak_ns[PEAKS] = {1000000000, 60000000000};

static void
clear_share(gpointer data) {
  oct_trace_share *share = data;
  g_free((char *)share->class_name);
}

oct_trace_stats *
oct_trace_stats_new(void) {
  oct_trace_stats *stats = g_new0(oct_trace_stats, 1);
  stats->input = oct_hist_new();
  stats->output = oct_hist_new();
  stats->max_tokens = oct_hist_new();
  stats->sessions = oct_idmap_new();
  stats->prefixes = oct_idmap_new();
  stats->classes = g_array_new(FALSE, FALSE, sizeof(oct_trace_share));
  stats->priorities = g_array_new(FALSE, FALSE, sizeof(oct_trace_share));
  g_array_set_clear_func(stats->classes, clear_share);
  return stats;
}

void
oct_trace_stats_free(oct_trace_stats *stats) {
  if (stats == NULL)
    return;
  oct_hist_free(stats->input);
  oct_hist_free(stats->output);
  oct_hist_free(stats->max_tokens);
  oct_idmap_free(stats->sessions);
  oct_idmap_free(stats->prefixes);
  g_array_unref(stats->classes);
  g_array_unref(stats->priorities);
  g_free(stats);
}

static void
add_arrival(oct_trace_stats *stats, gint64 at_ns) {
  if (stats->sum.n_timed++ == 0) {
    stats->first_ns = at_ns;
  } else {
    double gap_s = (double)(at_ns - stats->last_ns) / 1e9;
    double off = gap_s - stats->gap_mean_s;
    stats->n_gaps++;
    stats->gap_mean_s += off / (double)stats->n_gaps;
    stats->gap_squares += off * (gap_s - stats->gap_mean_s);
  }
  stats->last_ns = at_ns;
  for (int i = 0; i < PEAKS; i++) {
    gint64 slot = at_ns / peak_ns[i];
    stats->peak_count[i] = slot == stats->peak_slot[i] ? stats->peak_count[i] + 1 : 1;
    stats->peak_slot[i] = slot;
    stats->peak_most[i] = MAX(stats->peak_most[i], stats->peak_count[i]);
  }
}

/* What a prefix is known from; a prompt is the stronger. */
enum { SEEN_NOT, SEEN_OUTPUT, SEEN_PROMPT };

/* Marks a prefix and returns how it was known before. */
static guint64
see(oct_trace_stats *stats, guint64 prefix, guint64 as) {
  guint64 seen = SEEN_NOT;
  oct_idmap_get(stats->prefixes, prefix, &seen);
  if (as > seen)
    oct_idmap_set(stats->prefixes, prefix, as);
  return seen;
}

static guint64
link_of(guint64 chain, guint64 id) {
  return oct_mix64(chain ^ oct_mix64(id));
}

/* Chains the blocks of prompt and output; those of the prompt count. */
static void
add_prefix(oct_trace_stats *stats, const oct_trace_request *r) {
  guint64 chain = r->block_size, at_output = chain, hits[2] = {0, 0};
  guint32 output_from = r->block_size > 0 ? r->input_tokens / r->block_size : 0;
  guint64 best = SEEN_PROMPT; /* of all blocks so far: the weakest */
  for (guint32 k = 0; k < r->n_hash_ids; k++) {
    chain = link_of(chain, r->hash_ids[k]);
    guint64 seen = see(stats, chain, SEEN_PROMPT);
    best = MIN(best, seen);
    hits[0] += best == SEEN_PROMPT;
    hits[1] += best != SEEN_NOT;
    if (k + 1 == output_from)
      at_output = chain;
  }
  for (guint32 k = 0; k < r->n_output_hash_ids && r->n_hash_ids >= output_from; k++) {
    at_output = link_of(at_output, r->output_hash_ids[k]);
    see(stats, at_output, SEEN_OUTPUT);
  }
  stats->sum.n_blocks += r->n_hash_ids;
  stats->sum.n_hit_blocks += hits[0];
  stats->sum.hit_tokens += MIN(hits[0] * r->block_size, r->input_tokens);
  stats->sum.n_hit_blocks_outputs += hits[1];
  stats->sum.hit_tokens_outputs += MIN(hits[1] * r->block_size, r->input_tokens);
}

/* Counts one more in the list, which is short: a linear search. */
static void
add_share(GArray *list, const char *class_name, gint32 priority) {
  for (guint i = 0; i < list->len; i++) {
    oct_trace_share *share = &g_array_index(list, oct_trace_share, i);
    if (share->priority == priority &&
        (class_name == NULL || strcmp(share->class_name, class_name) == 0)) {
      share->n_requests++;
      return;
    }
  }
  oct_trace_share share = {g_strdup(class_name), priority, 1};
  g_array_append_val(list, share);
}

void
oct_trace_stats_add(oct_trace_stats *stats, const oct_trace_request *r) {
  stats->sum.n_requests++;
  if (r->arrival_ns >= 0)
    add_arrival(stats, r->arrival_ns);
  else
    stats->sum.n_dependents += r->parent > 0;
  if (r->session != 0)
    oct_idmap_set(stats->sessions, r->session, 1);
  oct_hist_add(stats->input, r->input_tokens);
  oct_hist_add(stats->output, r->output_tokens);
  if (r->max_tokens > 0)
    oct_hist_add(stats->max_tokens, r->max_tokens);
  stats->sum.input_tokens += r->input_tokens;
  stats->sum.output_tokens += r->output_tokens;
  add_prefix(stats, r);
  add_share(stats->classes, r->class_name, 0);
  add_share(stats->priorities, NULL, r->priority);
}

oct_trace_summary
oct_trace_stats_summary(const oct_trace_stats *stats) {
  oct_trace_summary s = stats->sum;
  s.n_sessions = oct_idmap_count(stats->sessions);
  s.span_s = (double)(stats->last_ns - stats->first_ns) / 1e9;
  s.rate = s.span_s > 0 ? (double)s.n_timed / s.span_s : 0;
  s.peak_1s = (double)stats->peak_most[0];
  s.peak_60s = (double)stats->peak_most[1] / 60;
  s.gap_mean_s = s.gap_cv = NAN;
  if (stats->n_gaps >= 1)
    s.gap_mean_s = stats->gap_mean_s;
  if (stats->n_gaps >= 2 && s.gap_mean_s > 0)
    s.gap_cv = sqrt(stats->gap_squares / (double)stats->n_gaps) / s.gap_mean_s;
  s.input = stats->input;
  s.output = stats->output;
  s.max_tokens = stats->max_tokens;
  s.n_distinct_blocks = oct_idmap_count(stats->prefixes);
  return s;
}

static gint
compare_shares(gconstpointer a, gconstpointer b) {
  const oct_trace_share *x = a, *y = b;
  if (x->n_requests != y->n_requests)
    return x->n_requests > y->n_requests ? -1 : 1;
  if (x->class_name != NULL)
    return strcmp(x->class_name, y->class_name);
  return (x->priority > y->priority) - (x->priority < y->priority);
}

static gboolean
share_at(GArray *list, guint i, oct_trace_share *out) {
  if (i >= list->len)
    return FALSE;
  g_array_sort(list, compare_shares);
  *out = g_array_index(list, oct_trace_share, i);
  return TRUE;
}

gboolean
oct_trace_stats_class(oct_trace_stats *stats, guint i, oct_trace_share *out) {
  return share_at(stats->classes, i, out);
}

gboolean
oct_trace_stats_priority(oct_trace_stats *stats, guint i, oct_trace_share *out) {
  return share_at(stats->priorities, i, out);
}
