/* The report of a replay as JSON. doc/replay.md describes each field; a field that means nothing in
 * a run is null. Everything but "run" is the same in every run of equal configurations. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "sim/replay/replay.h"
#include "sim/replay/residency.h"
#include "sim/replay/step-times.h"

static json_t *
count(guint64 value) {
  return json_integer((json_int_t)value);
}

static json_t *
real(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

static json_t *
seconds(gint64 ns) {
  return json_real((double)ns / 1e9);
}

static json_t *
share(double part, double whole) {
  return whole > 0 ? json_real(part / whole) : json_null();
}

static json_t *
text(const char *value) {
  return value != NULL ? json_string(value) : json_null();
}

/* Mean and percentiles in units of `unit`. */
static json_t *
distribution(const oct_hist *hist, double unit) {
  if (oct_hist_count(hist) == 0)
    return json_null();
  static const struct {
    const char *name;
    double percent;
  } points[] = {{"min", 0}, {"p50", 50}, {"p90", 90}, {"p95", 95}, {"p99", 99}, {"max", 100}};
  json_t *out = json_object();
  json_object_set_new(out, "count", count(oct_hist_count(hist)));
  json_object_set_new(out, "mean", real(oct_hist_mean(hist) / unit));
  for (gsize i = 0; i < G_N_ELEMENTS(points); i++)
    json_object_set_new(out, points[i].name,
                        json_real((double)oct_hist_percentile(hist, points[i].percent) / unit));
  return out;
}

/* ---------------------------------------------------------------- what ran */

static json_t *
trace_json(const oct_replay_config *c, const oct_replay_result *r) {
  const oct_trace_facts *f = &r->facts;
  json_t *out = json_object();
  json_object_set_new(out, "name", text(r->trace_name));
  json_object_set_new(out, "format", text(oct_trace_format_name(f->format)));
  json_object_set_new(out, "requests_sent", count(r->drive.sent));
  json_object_set_new(out, "rows_skipped", count(f->n_skipped));
  json_object_set_new(out, "rate", c->rows.rate > 0 ? json_real(c->rows.rate) : json_null());
  json_object_set_new(out, "own_rate", r->own_rate > 0 ? json_real(r->own_rate) : json_null());
  json_object_set_new(out, "rate_mode",
                      c->rows.rate <= 0
                          ? json_null()
                          : text(c->rows.mode == OCT_RATE_SUPERPOSE ? "superpose" : "compress"));
  json_object_set_new(out, "closed_loop", json_boolean(r->drive.closed_loop));
  json_object_set_new(out, "concurrency",
                      r->drive.closed_loop ? count(r->drive.concurrency) : json_null());
  json_object_set_new(out, "prefix_ids", json_boolean(f->has_hash_ids));
  json_object_set_new(out, "hash_block_size", count(f->block_size));
  json_object_set_new(out, "sessions", json_boolean(f->has_sessions));
  json_object_set_new(out, "quantised", json_boolean(f->quantised));
  json_object_set_new(out, "spread", json_boolean(f->spread));
  return out;
}

static json_t *
parallel_json(const oct_parallel *p) {
  return json_pack("{s:I, s:I, s:I, s:I, s:b}", "tensor_parallel_size", (json_int_t)p->tensor,
                   "pipeline_parallel_size", (json_int_t)p->pipeline, "data_parallel_size",
                   (json_int_t)p->data, "decode_context_parallel_size",
                   (json_int_t)p->decode_context, "enable_expert_parallel", p->expert_parallel);
}

static json_t *
configuration_json(const oct_replay_config *c, const oct_replay_result *r) {
  const oct_setup *s = &r->setup;
  const oct_engine_config *e = &s->engine;
  json_t *out = parallel_json(&e->instance.parallel);
  json_object_set_new(out, "model", text(s->spec->name));
  json_object_set_new(out, "node", text(s->profile != NULL ? s->profile->name : NULL));
  json_object_set_new(out, "backend",
                      text(s->options.description != NULL          ? s->options.description
                           : s->options.backend == OCT_REPLAY_MOCK ? "mock"
                                                                   : "simgrid"));
  json_object_set_new(out, "engine_preset",
                      text(s->profile != NULL ? s->profile->engine.preset : NULL));
  json_object_set_new(out, "replicas", count(s->options.n_replicas));
  json_object_set_new(out, "policy", text(e->policy));
  json_object_set_new(out, "max_num_seqs", count(e->max_num_seqs));
  json_object_set_new(out, "max_num_batched_tokens", count(e->max_num_batched_tokens));
  json_object_set_new(out, "max_model_len", count(e->max_model_len));
  json_object_set_new(out, "max_queued_requests", count(e->queue_max));
  json_object_set_new(out, "block_size", count(e->instance.block_size));
  json_object_set_new(out, "kv_cache_dtype", text(oct_dtype_name(e->instance.kv_dtype)));
  json_object_set_new(out, "prefix_caching", json_boolean(e->prefix_caching));
  json_object_set_new(out, "async_scheduling", json_boolean(e->run_ahead > 0));
  json_object_set_new(out, "enforce_eager", json_boolean(e->instance.eager));
  json_object_set_new(out, "long_prefill_token_threshold", count(e->long_prefill_threshold));
  json_object_set_new(out, "state_snapshot_interval", count(e->state_snapshot_interval));
  json_object_set_new(out, "gpu_memory_utilization", real(s->options.gpu_memory_utilization));
  json_object_set_new(out, "moe_kernel",
                      text(s->options.moe_kernel == OCT_MOE_KERNEL_TARGET ? "target" : "measured"));
  json_object_set_new(out, "exact_lengths", json_boolean(c->exact_lengths));
  json_object_set_new(out, "seed", count(s->options.seed));
  json_object_set_new(out, "simulation",
                      text(s->options.exact ? "exact"
                           : e->no_forward  ? "stepped"
                                            : "fast-forward"));
  return out;
}

static json_t *
host_json(const oct_setup *s) {
  if (s->profile == NULL)
    return json_null();
  const oct_engine_times *t = &s->profile->engine;
  return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "step_s", seconds(t->step_host_ns),
                   "step_per_sequence_s", seconds(t->step_host_per_seq_ns), "request_in_s",
                   seconds(t->request_in_ns), "request_out_per_token_s",
                   seconds(t->request_out_per_token_ns), "submit_lead_s",
                   seconds(t->submit_lead_ns), "graph_max_batch", count(t->graph_max_batch));
}

static json_t *
stage_json(const oct_ledger *l, guint32 stage) {
  const oct_ledger_stage *s = &l->stages[stage];
  json_t *out = json_object();
  json_object_set_new(out, "first_layer", count(s->first_layer));
  json_object_set_new(out, "layers", count(s->n_layers));
  for (int t = 0; t < OCT_LEDGER_TERMS; t++)
    json_object_set_new(out, oct_ledger_term_name((oct_ledger_term)t), count(s->terms[t]));
  return out;
}

static json_t *
memory_json(const oct_setup *s) {
  json_t *out = json_object(), *pools = json_array(), *stages = json_array();
  const oct_memory_plan *plan = &s->engine.instance.memory;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  static const char *const kinds[OCT_ATTENTION_COUNT] = {"gqa", "window", "mla", "kda"};
  guint n = oct_model_groups(s->spec, s->engine.instance.kv_dtype, groups);
  for (guint g = 0; g < n; g++)
    json_array_append_new(pools, json_pack("{s:s, s:o, s:o}", "kind", kinds[groups[g].kind],
                                           "device", count(plan->groups[g].n_device), "host",
                                           count(plan->groups[g].n_host)));
  json_object_set_new(out, "pools", pools);
  json_object_set_new(out, "expert_slots",
                      plan->n_expert_slots > 0 ? count(plan->n_expert_slots) : json_null());
  if (s->has_ledger) {
    for (guint32 i = 0; i < s->ledger.n_stages; i++)
      json_array_append_new(stages, stage_json(&s->ledger, i));
    json_object_set_new(out, "cache_tokens", count(s->ledger.cache_tokens));
    json_object_set_new(out, "gpu_bytes", count(s->ledger.config.device_bytes));
    json_object_set_new(out, "weight_bytes", count(oct_ledger_weights(&s->ledger, 0)));
  }
  json_object_set_new(out, "stages", stages);
  return out;
}

/* ---------------------------------------------------------------- what came of it */

static json_t *
window_json(const oct_measured *m, const oct_drive_result *d) {
  json_t *out = json_object();
  json_object_set_new(out, "from_s", seconds(m->from_ns));
  json_object_set_new(out, "end_s", seconds(m->end_ns));
  json_object_set_new(out, "warmup",
                      text(m->extended       ? "none, all was sent within one residence time"
                           : m->warmup_given ? "given"
                           : m->too_short ? "10 %: the run is too short for 5 mean residence times"
                                          : "max(5 mean residence times, 10 %)"));
  json_object_set_new(out, "extended", json_boolean(m->extended));
  json_object_set_new(out, "residence_mean_s", real(m->residence_mean_s));
  json_object_set_new(out, "load_end_s", seconds(d->load_end_ns));
  json_object_set_new(out, "span_s", seconds(d->span_ns));
  return out;
}

static json_t *
verdict_json(const oct_measured *m) {
  double length = (double)(m->end_ns - m->from_ns) / 1e9;
  double offered = (double)(m->at_end.sent_tokens - m->at_from.sent_tokens) / length;
  const oct_trend *t = &m->backlog;
  gboolean known = t->n_batches > 0;
  json_t *out = json_object();
  json_object_set_new(out, "verdict", text(oct_verdict_name(m->verdict)));
  json_object_set_new(out, "offered_tokens_per_s", real(offered));
  json_object_set_new(out, "backlog_mean_tokens", known ? real(t->mean) : json_null());
  json_object_set_new(out, "backlog_tokens_per_s", known ? real(t->slope) : json_null());
  json_object_set_new(out, "backlog_tokens_per_s_low", known ? real(t->low) : json_null());
  json_object_set_new(out, "backlog_tokens_per_s_high", known ? real(t->high) : json_null());
  json_object_set_new(out, "unserved_share", known ? share(t->slope, offered) : json_null());
  return out;
}

static json_t *
requests_json(const oct_measured *m, const oct_drive_result *d) {
  json_t *out = json_object();
  json_object_set_new(out, "sent", count(d->sent));
  json_object_set_new(out, "measured", count(m->requests));
  for (int f = 0; f < OCT_FATE_COUNT; f++)
    json_object_set_new(out, oct_fate_name((oct_fate)f), count(m->fates[f]));
  json_object_set_new(out, "cut", count(m->cut));
  json_object_set_new(out, "good", count(m->good));
  json_object_set_new(out, "first_refusal",
                      *d->first_refusal ? text(d->first_refusal) : json_null());
  return out;
}

static json_t *
latency_json(const oct_measured *m) {
  json_t *out = json_object();
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    json_object_set_new(out, oct_latency_name((oct_latency)i), distribution(m->latency[i], 1e9));
  json_object_set_new(out, "longest_gap", distribution(m->longest_gap, 1e9));
  /* The percentiles of a run that falls behind grow with its length. */
  json_object_set_new(out, "at_s",
                      m->verdict == OCT_VERDICT_SATURATED ? seconds(m->end_ns) : json_null());
  return out;
}

/* From the first event to the last, the emptying at the end included: what a benchmark that sends
 * everything at once reports. */
static json_t *
whole_run_json(const oct_drive_result *d) {
  double length = (double)d->span_ns / 1e9;
  double input = (double)(d->stats.prompt_tokens + d->stats.cached_prompt_tokens);
  json_t *out = json_object();
  json_object_set_new(out, "requests_per_s", share((double)d->ended, length));
  json_object_set_new(out, "input_tokens_per_s", share(input, length));
  json_object_set_new(out, "output_tokens_per_s", share((double)d->stats.generated_tokens, length));
  return out;
}

static json_t *
throughput_json(const oct_drive_result *d, const oct_setup *s) {
  const oct_measured *m = &d->measured;
  const oct_counters *a = &m->at_from, *b = &m->at_end;
  double length = (double)(b->time_ns - a->time_ns) / 1e9;
  double gpus = oct_parallel_world(&s->engine.instance.parallel) * s->options.n_replicas;
  double computed = (double)(b->stats.prompt_tokens - a->stats.prompt_tokens);
  double cached = (double)(b->stats.cached_prompt_tokens - a->stats.cached_prompt_tokens);
  double output = (double)(b->stats.generated_tokens - a->stats.generated_tokens);
  json_t *out = json_object();
  json_object_set_new(out, "offered_requests_per_s", share((double)(b->sent - a->sent), length));
  json_object_set_new(out, "requests_per_s", share((double)(b->ended - a->ended), length));
  json_object_set_new(out, "good_requests_per_s", share((double)m->good, length));
  json_object_set_new(out, "input_tokens_per_s", share(computed + cached, length));
  json_object_set_new(out, "computed_input_tokens_per_s", share(computed, length));
  json_object_set_new(out, "output_tokens_per_s", share(output, length));
  json_object_set_new(out, "output_tokens_per_s_per_gpu", share(output, length * gpus));
  json_object_set_new(out, "whole_run", whole_run_json(d));
  return out;
}

static double
slo_value(const oct_measured *m, const oct_slo_item *item) {
  const oct_hist *hist = m->latency[item->latency];
  if (item->is_mean)
    return oct_hist_mean(hist);
  return oct_hist_count(hist) > 0 ? (double)oct_hist_percentile(hist, item->percent) : NAN;
}

static json_t *
slo_json(const oct_slo *slo, const oct_measured *m) {
  json_t *out = json_object(), *list = json_array();
  gboolean all = TRUE;
  for (guint i = 0; i < slo->n_items; i++) {
    const oct_slo_item *item = &slo->items[i];
    double value = slo_value(m, item);
    gboolean met = value <= (double)item->limit_ns;
    all &= met;
    json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:b}", "name", item->name, "limit_s",
                                          seconds(item->limit_ns), "value_s", real(value / 1e9),
                                          "met", met));
  }
  json_object_set_new(out, "objectives", list);
  json_object_set_new(out, "met", slo->n_items > 0 ? json_boolean(all) : json_null());
  json_object_set_new(out, "attainment", share((double)m->good, (double)m->requests));
  return out;
}

static json_t *
scheduler_json(const oct_measured *m, const oct_replay_result *r) {
  const oct_engine_stats *a = &m->at_from.stats, *b = &m->at_end.stats;
  double computed = (double)(b->prompt_tokens - a->prompt_tokens);
  double again = (double)(b->recomputed_tokens - a->recomputed_tokens);
  double cached = (double)(b->cached_prompt_tokens - a->cached_prompt_tokens);
  double asked = (double)(b->queried_prompt_tokens - a->queried_prompt_tokens);
  double host = (double)(b->host_hit_tokens - a->host_hit_tokens);
  gboolean prefixes = r->facts.has_hash_ids && r->setup.engine.prefix_caching;
  json_t *out = json_object();
  json_object_set_new(out, "steps", count(b->steps - a->steps));
  json_object_set_new(out, "preemptions", count(b->preemptions - a->preemptions));
  json_object_set_new(out, "offloads", count(b->offloads - a->offloads));
  json_object_set_new(out, "reloads", count(b->reloads - a->reloads));
  json_object_set_new(out, "recomputed_share", share(again, computed + again));
  json_object_set_new(out, "prefix_hit_share", prefixes ? share(cached, asked) : json_null());
  json_object_set_new(out, "prefix_host_share", prefixes ? share(host, asked) : json_null());
  json_object_set_new(out, "snapshots_taken", count(b->snapshots_taken - a->snapshots_taken));
  json_object_set_new(out, "snapshot_hits", count(b->snapshot_hits - a->snapshot_hits));
  json_object_set_new(out, "hits_bound_by_state",
                      count(b->hits_bound_by_state - a->hits_bound_by_state));
  json_object_set_new(out, "zombie_slices", count(b->zombie_slices - a->zombie_slices));
  return out;
}

static const char *const part_names[OCT_PART_COUNT] = {"compute", "memory", "collective",
                                                       "fixed",   "copy",   "wait"};

static json_t *
steps_json(const oct_measured *m, const oct_setup *s) {
  const oct_counters *a = &m->at_from, *b = &m->at_end;
  double sum = 0, length = (double)(b->time_ns - a->time_ns) * s->options.n_replicas;
  int most = 0;
  gint64 part[OCT_PART_COUNT];
  for (int p = 0; p < OCT_PART_COUNT; p++) {
    part[p] = b->stats.part_ns[p] - a->stats.part_ns[p];
    sum += (double)part[p];
    most = part[p] > part[most] ? p : most;
  }
  json_t *out = json_object(), *parts = json_object();
  for (int p = 0; p < OCT_PART_COUNT; p++)
    json_object_set_new(parts, part_names[p], share((double)part[p], sum));
  json_object_set_new(out, "time", distribution(m->steps[OCT_HIST_STEP], 1e9));
  json_object_set_new(out, "sequences", distribution(m->steps[OCT_HIST_BATCH_SEQS], 1));
  json_object_set_new(out, "tokens", distribution(m->steps[OCT_HIST_BATCH_TOKENS], 1));
  json_object_set_new(out, "busy_share",
                      share((double)(b->stats.busy_ns - a->stats.busy_ns), length));
  json_object_set_new(out, "parts", parts);
  json_object_set_new(out, "bound_by", sum > 0 ? text(part_names[most]) : json_null());
  return out;
}

/* ---------------------------------------------------------------- gauges and resources */

static json_t *
use_json(const oct_measured *m, gsize offset) {
  double sum = 0, most = 0;
  guint n = 0;
  for (guint i = m->first_sample; i < m->end_sample; i++, n++) {
    float value;
    memcpy(&value, (const guint8 *)&m->samples[i] + offset, sizeof value);
    sum += (double)value;
    most = MAX(most, (double)value);
  }
  if (n == 0)
    return json_null();
  return json_pack("{s:f, s:f}", "mean", sum / n, "max", most);
}

static json_t *
gauges_json(const oct_measured *m, const oct_drive_result *d) {
  json_t *out = json_object();
  double running = 0, waiting = 0;
  guint32 most_running = 0, most_waiting = 0;
  guint n = m->end_sample - m->first_sample;
  for (guint i = m->first_sample; i < m->end_sample; i++) {
    running += m->samples[i].running;
    waiting += m->samples[i].waiting;
    most_running = MAX(most_running, m->samples[i].running);
    most_waiting = MAX(most_waiting, m->samples[i].waiting);
  }
  json_object_set_new(out, "running",
                      n == 0
                          ? json_null()
                          : json_pack("{s:f, s:i}", "mean", running / n, "max", (int)most_running));
  json_object_set_new(out, "waiting",
                      n == 0
                          ? json_null()
                          : json_pack("{s:f, s:i}", "mean", waiting / n, "max", (int)most_waiting));
  gboolean state = FALSE, host = FALSE;
  double peak = 0;
  for (guint g = 0; g < d->n_groups; g++) {
    state |= d->is_state[g];
    host |= d->stats.host_total[g] > 0;
    if (!d->is_state[g] && d->stats.pages_total[g] > 0)
      peak = MAX(peak, (double)d->stats.pages_peak[g] / d->stats.pages_total[g]);
  }
  json_object_set_new(out, "kv_used", use_json(m, G_STRUCT_OFFSET(oct_gauges, kv_used)));
  json_object_set_new(out, "kv_cached", use_json(m, G_STRUCT_OFFSET(oct_gauges, kv_cached)));
  json_object_set_new(out, "kv_peak", peak > 0 ? real(peak) : json_null());
  json_object_set_new(out, "state_used",
                      state ? use_json(m, G_STRUCT_OFFSET(oct_gauges, state_used)) : json_null());
  json_object_set_new(out, "state_cached",
                      state ? use_json(m, G_STRUCT_OFFSET(oct_gauges, state_cached)) : json_null());
  json_object_set_new(out, "host_used",
                      host ? use_json(m, G_STRUCT_OFFSET(oct_gauges, host_used)) : json_null());
  return out;
}

static json_t *
resources_json(const oct_measured *m, const oct_setup *s) {
  json_t *list = json_array();
  const oct_counters *a = &m->at_from, *b = &m->at_end;
  double length = (double)(b->time_ns - a->time_ns) / 1e9;
  for (guint i = 0; s->platform != NULL && i < b->n_resources; i++) {
    const oct_resource *resource = oct_platform_resource(s->platform, i);
    double moved = b->moved[i] - (a->n_resources > i ? a->moved[i] : 0);
    gint64 late = b->delayed_ns[i] - (a->n_resources > i ? a->delayed_ns[i] : 0);
    json_array_append_new(list, json_pack("{s:s, s:s, s:f, s:f, s:o, s:o}", "name", resource->name,
                                          "kind", oct_setup_resource_kind(resource->kind),
                                          "capacity_per_s", resource->per_s, "moved", moved,
                                          "utilisation", share(moved, resource->per_s * length),
                                          "delayed_s", seconds(late)));
  }
  return list;
}

static json_t *
series_json(const oct_measured *m) {
  json_t *list = json_array();
  for (guint i = 0; i < m->n_samples; i++) {
    const oct_gauges *g = &m->samples[i];
    json_array_append_new(list, json_pack("[o, i, i, f, f, f]", seconds(g->time_ns),
                                          (int)g->running, (int)g->waiting, g->backlog_tokens,
                                          (double)g->kv_used, (double)g->state_used));
  }
  return json_pack("{s:[s, s, s, s, s, s], s:o}", "columns", "time_s", "running", "waiting",
                   "backlog_tokens", "kv_used", "state_used", "rows", list);
}

static json_t *
run_json(const oct_replay_result *r) {
  const oct_engine_stats *s = &r->drive.stats;
  double wall = r->wall_s;
  json_t *out = json_object();
  json_object_set_new(out, "wall_s", real(wall));
  json_object_set_new(out, "cpu_s", real(r->cpu_s));
  json_object_set_new(out, "peak_rss_bytes", count(r->peak_rss_bytes));
  json_object_set_new(out, "steps", count(s->steps));
  json_object_set_new(out, "forwarded_steps", count(s->forwarded_steps));
  json_object_set_new(out, "activities", count(r->activities));
  json_object_set_new(out, "steps_per_s", share((double)s->steps, wall));
  json_object_set_new(out, "requests_per_s", share((double)r->drive.sent, wall));
  json_object_set_new(out, "log_lines", count(r->log_lines));
  if (r->log_lines > 0) {
    g_autofree char *digest = g_strdup_printf(
        "%016" G_GINT64_MODIFIER "x%016" G_GINT64_MODIFIER "x", r->log_digest.hi, r->log_digest.lo);
    json_object_set_new(out, "log_digest", text(digest));
  }
  return out;
}

json_t *
oct_replay_json(const oct_replay_config *config, const oct_replay_result *r) {
  const oct_measured *m = &r->drive.measured;
  json_t *out = json_object(), *assumptions = json_array(), *warnings = json_array();
  for (guint i = 0; i < r->setup.warnings->len; i++)
    json_array_append_new(warnings, text(r->setup.warnings->pdata[i]));
  oct_replay_assumptions(config, r, assumptions);
  json_object_set_new(out, "schema", text(OCT_REPLAY_SCHEMA));
  json_object_set_new(out, "octet", text(PACKAGE_VERSION));
  json_object_set_new(out, "label", text(config->label));
  json_object_set_new(out, "trace", trace_json(config, r));
  json_object_set_new(out, "configuration", configuration_json(config, r));
  json_object_set_new(out, "memory", memory_json(&r->setup));
  json_object_set_new(out, "host_times", host_json(&r->setup));
  json_object_set_new(out, "assumptions", assumptions);
  json_object_set_new(out, "warnings", warnings);
  json_object_set_new(out, "verdict", verdict_json(m));
  json_object_set_new(out, "window", window_json(m, &r->drive));
  json_object_set_new(out, "requests", requests_json(m, &r->drive));
  json_object_set_new(out, "latency_s", latency_json(m));
  json_object_set_new(out, "throughput", throughput_json(&r->drive, &r->setup));
  json_object_set_new(out, "slo", slo_json(&config->slo, m));
  json_object_set_new(out, "scheduler", scheduler_json(m, r));
  json_object_set_new(out, "steps", steps_json(m, &r->setup));
  json_object_set_new(out, "use", gauges_json(m, &r->drive));
  json_object_set_new(out, "experts", oct_residency_json(r));
  json_object_set_new(out, "resources", resources_json(m, &r->setup));
  json_object_set_new(out, "step_times", oct_step_times_json(r));
  json_object_set_new(out, "series", series_json(m));
  json_object_set_new(out, "run", run_json(r));
  return out;
}
