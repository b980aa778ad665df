#include "sim/replay/measured-json.h"

#include <math.h>

/* ---------------------------------------------------------------- values */

json_t *
oct_json_count(guint64 value) {
  return json_integer((json_int_t)value);
}

json_t *
oct_json_real(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

json_t *
oct_json_seconds(gint64 ns) {
  return json_real((double)ns / 1e9);
}

json_t *
oct_json_share(double part, double whole) {
  return whole > 0 ? json_real(part / whole) : json_null();
}

json_t *
oct_json_text(const char *value) {
  return value != NULL ? json_string(value) : json_null();
}

/* Mean and percentiles in units of `unit`. */
json_t *
oct_json_distribution(const oct_hist *hist, double unit) {
  if (oct_hist_count(hist) == 0)
    return json_null();
  static const struct {
    const char *name;
    double percent;
  } points[] = {{"min", 0}, {"p50", 50}, {"p90", 90}, {"p95", 95}, {"p99", 99}, {"max", 100}};
  json_t *out = json_object();
  json_object_set_new(out, "count", oct_json_count(oct_hist_count(hist)));
  json_object_set_new(out, "mean", oct_json_real(oct_hist_mean(hist) / unit));
  for (gsize i = 0; i < G_N_ELEMENTS(points); i++)
    json_object_set_new(out, points[i].name,
                        json_real((double)oct_hist_percentile(hist, points[i].percent) / unit));
  return out;
}

/* ---------------------------------------------------------------- the run's traffic */

json_t *
oct_traffic_json(const oct_traffic *t) {
  const oct_trace_facts *f = t->facts;
  gboolean superposed = t->rate_mode == OCT_RATE_SUPERPOSE;
  json_t *out = json_object();
  json_object_set_new(out, "name", oct_json_text(t->name));
  json_object_set_new(out, "format", oct_json_text(oct_trace_format_name(f->format)));
  json_object_set_new(out, "requests_sent", oct_json_count(t->sent));
  json_object_set_new(out, "rows_skipped", oct_json_count(f->n_skipped));
  json_object_set_new(out, "rate", t->rate > 0 ? json_real(t->rate) : json_null());
  json_object_set_new(out, "own_rate", t->own_rate > 0 ? json_real(t->own_rate) : json_null());
  json_object_set_new(out, "rate_mode",
                      t->rate <= 0 ? json_null()
                                   : oct_json_text(superposed ? "superpose" : "compress"));
  json_object_set_new(out, "closed_loop", json_boolean(t->closed_loop));
  json_object_set_new(out, "concurrency",
                      t->closed_loop ? oct_json_count(t->concurrency) : json_null());
  json_object_set_new(out, "prefix_ids", json_boolean(f->has_hash_ids));
  json_object_set_new(out, "hash_block_size", oct_json_count(f->block_size));
  json_object_set_new(out, "sessions", json_boolean(f->has_sessions));
  json_object_set_new(out, "quantised", json_boolean(f->quantised));
  json_object_set_new(out, "spread", json_boolean(f->spread));
  return out;
}

/* ---------------------------------------------------------------- what came of it */

json_t *
oct_window_json(const oct_measured *m, const oct_whole_run *run) {
  json_t *out = json_object();
  json_object_set_new(out, "from_s", oct_json_seconds(m->from_ns));
  json_object_set_new(out, "end_s", oct_json_seconds(m->end_ns));
  json_object_set_new(out, "warmup",
                      oct_json_text(m->extended ? "none, all was sent within one residence time"
                                    : m->warmup_given ? "given"
                                    : m->too_short
                                        ? "10 %: the run is too short for 5 mean residence times"
                                        : "max(5 mean residence times, 10 %)"));
  json_object_set_new(out, "extended", json_boolean(m->extended));
  json_object_set_new(out, "too_short", json_boolean(m->too_short));
  json_object_set_new(out, "residence_mean_s", oct_json_real(m->residence_mean_s));
  json_object_set_new(out, "load_end_s", oct_json_seconds(run->load_end_ns));
  json_object_set_new(out, "span_s", oct_json_seconds(run->span_ns));
  return out;
}

json_t *
oct_verdict_json(const oct_measured *m) {
  double length = (double)(m->end_ns - m->from_ns) / 1e9;
  double offered = (double)(m->at_end.sent_tokens - m->at_from.sent_tokens) / length;
  const oct_trend *t = &m->backlog;
  gboolean known = t->n_batches > 0;
  json_t *out = json_object();
  json_object_set_new(out, "verdict", oct_json_text(oct_verdict_name(m->verdict)));
  json_object_set_new(out, "offered_tokens_per_s", oct_json_real(offered));
  json_object_set_new(out, "backlog_mean_tokens", known ? oct_json_real(t->mean) : json_null());
  json_object_set_new(out, "backlog_tokens_per_s", known ? oct_json_real(t->slope) : json_null());
  json_object_set_new(out, "backlog_tokens_per_s_low", known ? oct_json_real(t->low) : json_null());
  json_object_set_new(out, "backlog_tokens_per_s_high",
                      known ? oct_json_real(t->high) : json_null());
  json_object_set_new(out, "unserved_share",
                      known ? oct_json_share(t->slope, offered) : json_null());
  return out;
}

json_t *
oct_requests_json(const oct_measured *m, const oct_whole_run *run) {
  json_t *out = json_object();
  json_object_set_new(out, "sent", oct_json_count(run->sent));
  json_object_set_new(out, "measured", oct_json_count(m->requests));
  for (int f = 0; f < OCT_FATE_COUNT; f++)
    json_object_set_new(out, oct_fate_name((oct_fate)f), oct_json_count(m->fates[f]));
  json_object_set_new(out, "cut", oct_json_count(m->cut));
  json_object_set_new(out, "good", oct_json_count(m->good));
  json_object_set_new(out, "first_refusal",
                      *run->first_refusal ? oct_json_text(run->first_refusal) : json_null());
  return out;
}

json_t *
oct_latency_json(const oct_measured *m) {
  json_t *out = json_object();
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    json_object_set_new(out, oct_latency_name((oct_latency)i),
                        oct_json_distribution(m->latency[i], 1e9));
  json_object_set_new(out, "longest_gap", oct_json_distribution(m->longest_gap, 1e9));
  /* The percentiles of a run that falls behind grow with its length. */
  json_object_set_new(
      out, "at_s", m->verdict == OCT_VERDICT_SATURATED ? oct_json_seconds(m->end_ns) : json_null());
  return out;
}

static json_t *
whole_run_json(const oct_whole_run *run) {
  double length = (double)run->span_ns / 1e9;
  json_t *out = json_object();
  json_object_set_new(out, "requests_per_s", oct_json_share((double)run->ended, length));
  json_object_set_new(out, "input_tokens_per_s", oct_json_share((double)run->input_tokens, length));
  json_object_set_new(out, "output_tokens_per_s",
                      oct_json_share((double)run->output_tokens, length));
  return out;
}

json_t *
oct_throughput_json(const oct_measured *m, const oct_whole_run *run) {
  const oct_counters *a = &m->at_from, *b = &m->at_end;
  double length = (double)(b->time_ns - a->time_ns) / 1e9;
  double computed = (double)(b->stats.prompt_tokens - a->stats.prompt_tokens);
  double cached = (double)(b->stats.cached_prompt_tokens - a->stats.cached_prompt_tokens);
  double output = (double)(b->stats.generated_tokens - a->stats.generated_tokens);
  double good = (double)m->good;
  json_t *out = json_object();
  json_object_set_new(out, "offered_requests_per_s",
                      oct_json_share((double)(b->sent - a->sent), length));
  json_object_set_new(out, "requests_per_s", oct_json_share((double)(b->ended - a->ended), length));
  json_object_set_new(out, "good_requests_per_s", oct_json_share(good, length));
  json_object_set_new(out, "input_tokens_per_s", oct_json_share(computed + cached, length));
  json_object_set_new(out, "computed_input_tokens_per_s", oct_json_share(computed, length));
  json_object_set_new(out, "output_tokens_per_s", oct_json_share(output, length));
  json_object_set_new(out, "output_tokens_per_s_per_gpu",
                      oct_json_share(output, length * run->n_gpus));
  json_object_set_new(out, "whole_run", whole_run_json(run));
  return out;
}

static double
slo_value(const oct_measured *m, const oct_slo_item *item) {
  const oct_hist *hist = m->latency[item->latency];
  if (item->is_mean)
    return oct_hist_mean(hist);
  return oct_hist_count(hist) > 0 ? (double)oct_hist_percentile(hist, item->percent) : NAN;
}

json_t *
oct_slo_json(const oct_slo *slo, const oct_measured *m) {
  json_t *out = json_object(), *list = json_array();
  gboolean all = TRUE;
  for (guint i = 0; i < slo->n_items; i++) {
    const oct_slo_item *item = &slo->items[i];
    double value = slo_value(m, item);
    gboolean met = value <= (double)item->limit_ns;
    all &= met;
    json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:b}", "name", item->name, "limit_s",
                                          oct_json_seconds(item->limit_ns), "value_s",
                                          oct_json_real(value / 1e9), "met", met));
  }
  json_object_set_new(out, "objectives", list);
  json_object_set_new(out, "met", slo->n_items > 0 ? json_boolean(all) : json_null());
  json_object_set_new(out, "attainment", oct_json_share((double)m->good, (double)m->requests));
  return out;
}

json_t *
oct_series_json(const oct_measured *m) {
  json_t *list = json_array();
  for (guint i = 0; i < m->n_samples; i++) {
    const oct_gauges *g = &m->samples[i];
    json_array_append_new(list, json_pack("[o, i, i, f, f, f]", oct_json_seconds(g->time_ns),
                                          (int)g->running, (int)g->waiting, g->backlog_tokens,
                                          (double)g->kv_used, (double)g->state_used));
  }
  return json_pack("{s:[s, s, s, s, s, s], s:o}", "columns", "time_s", "running", "waiting",
                   "backlog_tokens", "kv_used", "state_used", "rows", list);
}
