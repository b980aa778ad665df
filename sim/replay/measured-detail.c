/* The finer parts of what was measured: distributions whole, the course of a run, requests. */
#include "sim/replay/measured-json.h"

/* Shares at which a distribution is told: every percent, and finer where tails are. */
static const double tail_shares[] = {0.995, 0.998, 0.999, 0.9999};

static json_t *
quantiles(const oct_hist *hist) {
  if (oct_hist_count(hist) == 0)
    return json_null();
  json_t *list = json_array();
  for (guint i = 0; i < 100; i++)
    json_array_append_new(list, oct_json_seconds(oct_hist_percentile(hist, i)));
  for (gsize i = 0; i < G_N_ELEMENTS(tail_shares); i++)
    json_array_append_new(list, oct_json_seconds(oct_hist_percentile(hist, 100 * tail_shares[i])));
  json_array_append_new(list, oct_json_seconds(oct_hist_max(hist)));
  return list;
}

json_t *
oct_cdf_json(const oct_measured *m) {
  json_t *out = json_object(), *shares = json_array();
  for (guint i = 0; i < 100; i++)
    json_array_append_new(shares, json_real(i / 100.0));
  for (gsize i = 0; i < G_N_ELEMENTS(tail_shares); i++)
    json_array_append_new(shares, json_real(tail_shares[i]));
  json_array_append_new(shares, json_real(1));
  json_object_set_new(out, "shares", shares);
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    json_object_set_new(out, oct_latency_name((oct_latency)i), quantiles(m->latency[i]));
  return out;
}

static json_t *
seconds_or_null(gint64 ns) {
  return ns >= 0 ? oct_json_seconds(ns) : json_null();
}

json_t *
oct_course_json(const oct_measured *m) {
  json_t *rows = json_array();
  for (guint i = 0; i < m->n_batches; i++) {
    const oct_batch_summary *b = &m->batches[i];
    json_array_append_new(
        rows, json_pack("[o, o, I, o, o, o, o, o, o]", oct_json_seconds(b->from_ns),
                        oct_json_seconds(b->end_ns), (json_int_t)b->answered,
                        seconds_or_null(b->ttft_p50_ns), seconds_or_null(b->ttft_p99_ns),
                        seconds_or_null(b->tpot_p50_ns), seconds_or_null(b->tpot_p99_ns),
                        seconds_or_null(b->itl_p50_ns), seconds_or_null(b->itl_p99_ns)));
  }
  return json_pack("{s:[s, s, s, s, s, s, s, s, s], s:o}", "columns", "from_s", "end_s", "answered",
                   "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "itl_p50_s", "itl_p99_s",
                   "rows", rows);
}

/* Widths of bins so that there are at most so many. */
#define BINS_MAX 48

json_t *
oct_batch_sizes_json(const oct_measured *m) {
  const oct_hist *hist = m->steps[OCT_HIST_BATCH_SEQS];
  if (hist == NULL || oct_hist_count(hist) == 0)
    return json_null();
  gint64 width = (oct_hist_max(hist) + BINS_MAX) / BINS_MAX;
  guint64 counts[BINS_MAX + 1] = {0};
  guint cursor = 0;
  oct_hist_bucket bucket;
  while (oct_hist_next(hist, &cursor, &bucket))
    counts[MIN(bucket.low / width, BINS_MAX)] += bucket.count;
  json_t *list = json_array();
  for (guint i = 0; i <= oct_hist_max(hist) / width && i <= BINS_MAX; i++)
    json_array_append_new(list, oct_json_count(counts[i]));
  return json_pack("{s:I, s:o}", "width", (json_int_t)width, "steps_in_bin", list);
}

json_t *
oct_kept_json(const oct_measured *m) {
  if (m->kept == NULL)
    return json_null();
  json_t *rows = json_array();
  for (guint i = 0; i < m->n_kept; i++) {
    const oct_kept_request *k = &m->kept[i];
    json_t *row = json_pack("[I, o, I, I]", (json_int_t)k->index, oct_json_seconds(k->arrival_ns),
                            (json_int_t)k->input_tokens, (json_int_t)k->output_tokens);
    for (int l = 0; l < OCT_LATENCY_COUNT; l++)
      json_array_append_new(row, seconds_or_null(k->value_ns[l]));
    json_array_append_new(rows, row);
  }
  json_t *columns =
      json_pack("[s, s, s, s]", "index", "arrival_s", "input_tokens", "output_tokens");
  for (int l = 0; l < OCT_LATENCY_COUNT; l++) {
    g_autofree char *name = l == OCT_LATENCY_ITL
                                ? g_strdup("longest_gap_s")
                                : g_strdup_printf("%s_s", oct_latency_name((oct_latency)l));
    json_array_append_new(columns, json_string(name));
  }
  return json_pack("{s:I, s:o, s:o}", "answered", (json_int_t)m->fates[OCT_FATE_ANSWERED],
                   "columns", columns, "rows", rows);
}
