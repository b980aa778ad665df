/* The report of a replay as JSON. doc/replay.md describes each field; a field that means nothing in
 * a run is null. Everything but "run" is the same in every run of equal configurations. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "sim/replay/detail.h"
#include "sim/replay/measured-json.h"
#include "sim/replay/replay.h"
#include "sim/replay/residency.h"
#include "sim/replay/step-parts.h"
#include "sim/replay/step-times.h"

/* ---------------------------------------------------------------- what ran */

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
  json_object_set_new(out, "model", oct_json_text(s->spec->name));
  json_object_set_new(out, "node", oct_json_text(s->profile != NULL ? s->profile->name : NULL));
  json_object_set_new(out, "backend",
                      oct_json_text(s->options.description != NULL          ? s->options.description
                                    : s->options.backend == OCT_REPLAY_MOCK ? "mock"
                                                                            : "simgrid"));
  json_object_set_new(out, "engine_preset",
                      oct_json_text(s->profile != NULL ? s->profile->engine.preset : NULL));
  json_object_set_new(out, "replicas", oct_json_count(s->options.n_replicas));
  json_object_set_new(out, "nodes", oct_json_count(s->options.n_nodes));
  json_object_set_new(out, "prefill_replicas", oct_json_count(s->options.n_prefill));
  json_object_set_new(out, "prefill_tensor_parallel_size",
                      s->prefill_devices != NULL ? oct_json_count(s->options.prefill_tensor)
                                                 : json_null());
  json_object_set_new(out, "router", oct_json_text(oct_routing_rule_name(s->options.router)));
  json_object_set_new(out, "policy", oct_json_text(e->policy));
  json_object_set_new(out, "max_num_seqs", oct_json_count(e->max_num_seqs));
  json_object_set_new(out, "max_num_batched_tokens", oct_json_count(e->max_num_batched_tokens));
  json_object_set_new(out, "max_model_len", oct_json_count(e->max_model_len));
  json_object_set_new(out, "max_queued_requests", oct_json_count(e->queue_max));
  json_object_set_new(out, "block_size", oct_json_count(e->instance.block_size));
  json_object_set_new(out, "kv_cache_dtype", oct_json_text(oct_dtype_name(e->instance.kv_dtype)));
  json_object_set_new(out, "prefix_caching", json_boolean(e->prefix_caching));
  json_object_set_new(out, "async_scheduling", json_boolean(e->run_ahead > 0));
  json_object_set_new(out, "enforce_eager", json_boolean(e->instance.eager));
  json_object_set_new(out, "long_prefill_token_threshold",
                      oct_json_count(e->long_prefill_threshold));
  json_object_set_new(out, "state_snapshot_interval", oct_json_count(e->state_snapshot_interval));
  json_object_set_new(out, "gpu_memory_utilization",
                      oct_json_real(s->options.gpu_memory_utilization));
  json_object_set_new(out, "moe_kernel", oct_json_text(oct_moe_kernel_name(s->options.moe_kernel)));
  json_object_set_new(out, "exact_lengths", json_boolean(c->exact_lengths));
  json_object_set_new(out, "seed", oct_json_count(s->options.seed));
  json_object_set_new(out, "simulation",
                      oct_json_text(s->options.exact ? "exact"
                                    : e->no_forward  ? "stepped"
                                                     : "fast-forward"));
  return out;
}

static json_t *
host_json(const oct_setup *s) {
  if (s->profile == NULL)
    return json_null();
  const oct_engine_times *t = &s->profile->engine;
  return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "step_s", oct_json_seconds(t->step_host_ns),
                   "step_per_sequence_s", oct_json_seconds(t->step_host_per_seq_ns), "request_in_s",
                   oct_json_seconds(t->request_in_ns), "request_out_per_token_s",
                   oct_json_seconds(t->request_out_per_token_ns), "submit_lead_s",
                   oct_json_seconds(t->submit_lead_ns), "graph_max_batch",
                   oct_json_count(t->graph_max_batch));
}

static json_t *
stage_json(const oct_ledger *l, guint32 stage) {
  const oct_ledger_stage *s = &l->stages[stage];
  json_t *out = json_object();
  json_object_set_new(out, "first_layer", oct_json_count(s->first_layer));
  json_object_set_new(out, "layers", oct_json_count(s->n_layers));
  for (int t = 0; t < OCT_LEDGER_TERMS; t++)
    json_object_set_new(out, oct_ledger_term_name((oct_ledger_term)t), oct_json_count(s->terms[t]));
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
                                           "device", oct_json_count(plan->groups[g].n_device),
                                           "host", oct_json_count(plan->groups[g].n_host)));
  json_object_set_new(out, "pools", pools);
  json_object_set_new(out, "expert_slots",
                      plan->n_expert_slots > 0 ? oct_json_count(plan->n_expert_slots)
                                               : json_null());
  if (s->has_ledger) {
    for (guint32 i = 0; i < s->ledger.n_stages; i++)
      json_array_append_new(stages, stage_json(&s->ledger, i));
    json_object_set_new(out, "cache_tokens", oct_json_count(s->ledger.cache_tokens));
    json_object_set_new(out, "gpu_bytes", oct_json_count(s->ledger.config.device_bytes));
    json_object_set_new(out, "weight_bytes", oct_json_count(oct_ledger_weights(&s->ledger, 0)));
  }
  json_object_set_new(out, "stages", stages);
  return out;
}

/* ---------------------------------------------------------------- what came of it */

static oct_traffic
traffic_of(const oct_replay_config *c, const oct_replay_result *r) {
  return (oct_traffic){.name = r->trace_name,
                       .facts = &r->facts,
                       .rate = c->rows.rate,
                       .own_rate = r->own_rate,
                       .rate_mode = c->rows.mode,
                       .sent = r->drive.sent,
                       .closed_loop = r->drive.closed_loop,
                       .concurrency = r->drive.concurrency};
}

static guint
gpus_of(const oct_setup *s) {
  guint32 apart = s->prefill_devices != NULL ? s->options.n_prefill : 0;
  return oct_parallel_world(&s->engine.instance.parallel) * (s->options.n_replicas - apart) +
         oct_parallel_world(&s->prefill_engine.instance.parallel) * apart;
}

static oct_whole_run
whole_run_of(const oct_replay_result *r) {
  const oct_drive_result *d = &r->drive;
  return (oct_whole_run){.span_ns = d->span_ns,
                         .load_end_ns = d->load_end_ns,
                         .sent = d->sent,
                         .ended = d->ended,
                         .input_tokens = d->stats.prompt_tokens + d->stats.cached_prompt_tokens,
                         .output_tokens = d->stats.generated_tokens,
                         .first_refusal = d->first_refusal,
                         .n_gpus = gpus_of(&r->setup)};
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
  json_object_set_new(out, "steps", oct_json_count(b->steps - a->steps));
  json_object_set_new(out, "preemptions", oct_json_count(b->preemptions - a->preemptions));
  json_object_set_new(out, "offloads", oct_json_count(b->offloads - a->offloads));
  json_object_set_new(out, "reloads", oct_json_count(b->reloads - a->reloads));
  json_object_set_new(out, "pulls", oct_json_count(b->pulls - a->pulls));
  json_object_set_new(out, "pulled_pages", oct_json_count(b->pulled_pages - a->pulled_pages));
  json_object_set_new(out, "recomputed_share", oct_json_share(again, computed + again));
  json_object_set_new(out, "prefix_hit_share",
                      prefixes ? oct_json_share(cached, asked) : json_null());
  json_object_set_new(out, "prefix_host_share",
                      prefixes ? oct_json_share(host, asked) : json_null());
  json_object_set_new(out, "snapshots_taken",
                      oct_json_count(b->snapshots_taken - a->snapshots_taken));
  json_object_set_new(out, "snapshot_hits", oct_json_count(b->snapshot_hits - a->snapshot_hits));
  json_object_set_new(out, "hits_bound_by_state",
                      oct_json_count(b->hits_bound_by_state - a->hits_bound_by_state));
  json_object_set_new(out, "zombie_slices", oct_json_count(b->zombie_slices - a->zombie_slices));
  return out;
}

/* null without speculative decoding. */
static json_t *
speculation_json(const oct_measured *m, const oct_setup *s) {
  const oct_draft_stats *a = &m->at_from.stats.speculation, *b = &m->at_end.stats.speculation;
  const oct_speculation *c = &s->engine.speculation;
  if (c->method == OCT_DRAFT_NONE)
    return json_null();
  double drafts = (double)(b->drafts - a->drafts);
  double tokens = (double)(b->draft_tokens - a->draft_tokens);
  double accepted = (double)(b->accepted - a->accepted);
  json_t *out = json_object(), *places = json_array();
  for (guint32 i = 0; i < c->n_tokens; i++)
    json_array_append_new(places,
                          oct_json_share((double)(b->accepted_at[i] - a->accepted_at[i]), drafts));
  json_object_set_new(out, "method",
                      oct_json_text(c->method == OCT_DRAFT_NGRAM ? "ngram" : "draft_model"));
  json_object_set_new(out, "draft_model",
                      oct_json_text(s->draft_spec != NULL ? s->draft_spec->name : NULL));
  json_object_set_new(out, "num_speculative_tokens", oct_json_count(c->n_tokens));
  json_object_set_new(out, "drafts", oct_json_count(b->drafts - a->drafts));
  json_object_set_new(out, "draft_tokens", oct_json_count(b->draft_tokens - a->draft_tokens));
  json_object_set_new(out, "accepted_tokens", oct_json_count(b->accepted - a->accepted));
  json_object_set_new(out, "acceptance_share", oct_json_share(accepted, tokens));
  json_object_set_new(out, "accepted_share_by_place", places);
  json_object_set_new(out, "tokens_per_slice",
                      drafts > 0 ? oct_json_real(1 + accepted / drafts) : json_null());
  json_object_set_new(out, "pauses", oct_json_count(b->pauses - a->pauses));
  json_object_set_new(out, "draft_model_steps", oct_json_count(b->model_steps - a->model_steps));
  json_object_set_new(out, "draft_model_tokens", oct_json_count(b->model_tokens - a->model_tokens));
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
    json_object_set_new(parts, part_names[p], oct_json_share((double)part[p], sum));
  json_object_set_new(out, "time", oct_json_distribution(m->steps[OCT_HIST_STEP], 1e9));
  json_object_set_new(out, "sequences", oct_json_distribution(m->steps[OCT_HIST_BATCH_SEQS], 1));
  json_object_set_new(out, "tokens", oct_json_distribution(m->steps[OCT_HIST_BATCH_TOKENS], 1));
  json_object_set_new(out, "busy_share",
                      oct_json_share((double)(b->stats.busy_ns - a->stats.busy_ns), length));
  json_object_set_new(out, "parts", parts);
  json_object_set_new(out, "bound_by", sum > 0 ? oct_json_text(part_names[most]) : json_null());
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
  json_object_set_new(out, "kv_peak", peak > 0 ? oct_json_real(peak) : json_null());
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
    json_array_append_new(list,
                          json_pack("{s:s, s:s, s:f, s:f, s:o, s:o}", "name", resource->name,
                                    "kind", oct_setup_resource_kind(resource->kind),
                                    "capacity_per_s", resource->per_s, "moved", moved,
                                    "utilisation", oct_json_share(moved, resource->per_s * length),
                                    "delayed_s", oct_json_seconds(late)));
  }
  return list;
}

static json_t *
run_json(const oct_replay_result *r) {
  const oct_engine_stats *s = &r->drive.stats;
  double wall = r->wall_s;
  json_t *out = json_object();
  json_object_set_new(out, "wall_s", oct_json_real(wall));
  json_object_set_new(out, "cpu_s", oct_json_real(r->cpu_s));
  json_object_set_new(out, "peak_rss_bytes", oct_json_count(r->peak_rss_bytes));
  json_object_set_new(out, "steps", oct_json_count(s->steps));
  json_object_set_new(out, "forwarded_steps", oct_json_count(s->forwarded_steps));
  json_object_set_new(out, "activities", oct_json_count(r->activities));
  json_object_set_new(out, "steps_per_s", oct_json_share((double)s->steps, wall));
  json_object_set_new(out, "requests_per_s", oct_json_share((double)r->drive.sent, wall));
  json_object_set_new(out, "log_lines", oct_json_count(r->log_lines));
  if (r->log_lines > 0) {
    g_autofree char *digest = g_strdup_printf(
        "%016" G_GINT64_MODIFIER "x%016" G_GINT64_MODIFIER "x", r->log_digest.hi, r->log_digest.lo);
    json_object_set_new(out, "log_digest", oct_json_text(digest));
  }
  return out;
}

/* Objectives of classes that nobody was measured by. */
static void
warn_of_classes(const oct_replay_config *config, const oct_records *records, json_t *warnings) {
  for (guint i = 0; i < config->n_class_slos; i++) {
    const char *name = config->class_slos[i].class_name;
    const char *why = oct_records_lack_of(records, name);
    g_autofree char *text = g_strdup_printf("class-slo %s: %s", name, why);
    if (why != NULL)
      json_array_append_new(warnings, oct_json_text(text));
  }
}

json_t *
oct_replay_brief_json(const oct_replay_config *config, const oct_replay_result *r) {
  const oct_measured *m = &r->drive.measured;
  const oct_whole_run run = whole_run_of(r);
  json_t *out = json_object();
  json_object_set_new(out, "verdict", oct_verdict_json(m));
  json_object_set_new(out, "throughput", oct_throughput_json(m, &run));
  json_object_set_new(out, "slo", oct_slo_json(&config->slo, m));
  json_object_set_new(out, "scheduler", scheduler_json(m, r));
  return out;
}

json_t *
oct_replay_json(const oct_replay_config *config, const oct_replay_result *r) {
  const oct_measured *m = &r->drive.measured;
  const oct_traffic traffic = traffic_of(config, r);
  const oct_whole_run run = whole_run_of(r);
  json_t *out = json_object(), *assumptions = json_array(), *warnings = json_array();
  json_t *errors = json_array();
  for (guint i = 0; i < r->setup.warnings->len; i++)
    json_array_append_new(warnings, oct_json_text(r->setup.warnings->pdata[i]));
  warn_of_classes(config, r->drive.records, warnings);
  oct_replay_assumptions(config, r, assumptions);
  oct_replay_errors(r, errors);
  json_object_set_new(out, "schema", oct_json_text(OCT_REPLAY_SCHEMA));
  json_object_set_new(out, "octet", oct_json_text(PACKAGE_VERSION));
  json_object_set_new(out, "label", oct_json_text(config->label));
  json_object_set_new(out, "trace", oct_traffic_json(&traffic));
  json_object_set_new(out, "configuration", configuration_json(config, r));
  json_object_set_new(out, "memory", memory_json(&r->setup));
  json_object_set_new(out, "host_times", host_json(&r->setup));
  json_object_set_new(out, "assumptions", assumptions);
  json_object_set_new(out, "errors", errors);
  json_object_set_new(out, "warnings", warnings);
  json_object_set_new(out, "verdict", oct_verdict_json(m));
  json_object_set_new(out, "window", oct_window_json(m, &run));
  json_object_set_new(out, "requests", oct_requests_json(m, &run));
  json_object_set_new(out, "latency_s", oct_latency_json(m));
  json_object_set_new(out, "throughput", oct_throughput_json(m, &run));
  json_object_set_new(out, "slo", oct_slo_json(&config->slo, m));
  json_object_set_new(out, "windows",
                      oct_records_windows_json(r->drive.records, m->from_ns, m->end_ns,
                                               config->worst_window_ns, &config->slo));
  json_object_set_new(out, "classes",
                      oct_records_classes_json(r->drive.records, m->from_ns, m->end_ns,
                                               &config->slo, config->class_slos,
                                               config->n_class_slos));
  json_object_set_new(out, "scheduler", scheduler_json(m, r));
  json_object_set_new(out, "speculation", speculation_json(m, &r->setup));
  json_object_set_new(out, "steps", steps_json(m, &r->setup));
  json_object_set_new(out, "incidents", oct_incidents_json(config, r));
  json_object_set_new(out, "use", gauges_json(m, &r->drive));
  json_object_set_new(out, "experts", oct_residency_json(r));
  json_object_set_new(out, "resources", resources_json(m, &r->setup));
  json_object_set_new(out, "step_times", oct_step_times_json(r));
  json_object_set_new(out, "step_parts", oct_step_parts_json(config, r));
  json_object_set_new(out, "series", oct_series_json(m));
  json_object_set_new(out, "detail", config->detail ? oct_detail_json(r) : json_null());
  json_object_set_new(out, "run", run_json(r));
  return out;
}
