#include "engine/serve/measures.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/obs/metrics.h"

typedef enum oct_series {
  TTFT,
  ITL,
  TPOT,
  E2E,
  QUEUE,
  INFERENCE,
  PREFILL,
  DECODE,
  PROMPT_TOKENS,
  GENERATION_TOKENS,
  MAX_GENERATION_TOKENS,
  PARAM_N,
  PARAM_MAX_TOKENS,
  COMPUTED_TOKENS,
  ITERATION_TOKENS,
  N_SERIES
} oct_series;

/* Of histograms, the buckets that vLLM has. */
static const double ttft_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                     0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                     20,    40,    80,   160,  640,  2560};
/* From 10 ms on vLLM's; below, so that a fast model's gaps can be told apart. */
static const double itl_bounds[] = {0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.0075, 0.01,
                                    0.025,  0.05,  0.075, 0.1,   0.15,  0.2,   0.3,   0.4,    0.5,
                                    0.75,   1,     2.5,   5,     7.5,   10,    20,    40,     80};
static const double e2e_bounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                    30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double n_bounds[] = {1, 2, 5, 10, 20};
static const double iteration_bounds[] = {1,   2,   4,    8,    16,   32,   64,   128,
                                          256, 512, 1024, 2048, 4096, 8192, 16384};

typedef struct oct_series_info {
  const char *name, *help;
  const double *bounds; /* NULL: 1, 2, 5 … max_model_len */
  guint n_bounds;
} oct_series_info;

#define BOUNDS(array) array, G_N_ELEMENTS(array)
static const oct_series_info infos[N_SERIES] = {
    [TTFT] = {"vllm:time_to_first_token_seconds", "Time to the first token of a request.",
              BOUNDS(ttft_bounds)},
    [ITL] = {"vllm:inter_token_latency_seconds", "Time between two tokens of a choice.",
             BOUNDS(itl_bounds)},
    [TPOT] = {"vllm:request_time_per_output_token_seconds",
              "Mean time per output token of a request after its first.", BOUNDS(itl_bounds)},
    [E2E] = {"vllm:e2e_request_latency_seconds", "From arrival to end of a request.",
             BOUNDS(e2e_bounds)},
    [QUEUE] = {"vllm:request_queue_time_seconds", "Time of a request in the engine's queue.",
               BOUNDS(e2e_bounds)},
    [INFERENCE] = {"vllm:request_inference_time_seconds",
                   "From admission to last token of a request.", BOUNDS(e2e_bounds)},
    [PREFILL] = {"vllm:request_prefill_time_seconds", "From admission to first token of a request.",
                 BOUNDS(e2e_bounds)},
    [DECODE] = {"vllm:request_decode_time_seconds", "From first to last token of a request.",
                BOUNDS(e2e_bounds)},
    [PROMPT_TOKENS] = {"vllm:request_prompt_tokens", "Prompt tokens of a request.", NULL, 0},
    [GENERATION_TOKENS] = {"vllm:request_generation_tokens", "Output tokens of a request.", NULL,
                           0},
    [MAX_GENERATION_TOKENS] = {"vllm:request_max_num_generation_tokens",
                               "Output tokens of a request's longest choice.", NULL, 0},
    [PARAM_N] = {"vllm:request_params_n", "Choices asked for.", BOUNDS(n_bounds)},
    [PARAM_MAX_TOKENS] = {"vllm:request_params_max_tokens", "max_tokens asked for.", NULL, 0},
    [COMPUTED_TOKENS] = {"vllm:request_prefill_kv_computed_tokens",
                         "Prompt tokens of a request that no cache had.", NULL, 0},
    [ITERATION_TOKENS] = {"vllm:iteration_tokens_total", "Tokens computed and sampled by a step.",
                          BOUNDS(iteration_bounds)},
};

typedef enum oct_outcome_kind {
  OUTCOME_STOP,
  OUTCOME_LENGTH,
  OUTCOME_ABORT,
  OUTCOME_ERROR,
  N_OUTCOMES
} oct_outcome_kind;
static const char *const outcomes[N_OUTCOMES] = {"stop", "length", "abort", "error"};

/* What is told of a replica: label engine. */
typedef struct oct_replica_measures {
  oct_histogram *series[N_SERIES];
  guint64 ended[N_OUTCOMES];
} oct_replica_measures;

struct oct_measures {
  char *model_name;
  guint64 refused;
  guint32 n_replicas;
  oct_replica_measures replicas[];
};

oct_measures *
oct_measures_new(const oct_service_config *config) {
  guint32 n_replicas = MAX(config->n_replicas, 1);
  oct_measures *m = g_malloc0(sizeof *m + n_replicas * sizeof m->replicas[0]);
  double bounds[OCT_HISTOGRAM_BOUNDS_MAX];
  guint n = oct_histogram_bounds_125(bounds, config->engine.max_model_len);
  m->model_name = g_strdup(config->model_name != NULL ? config->model_name : "");
  m->n_replicas = n_replicas;
  for (guint32 r = 0; r < n_replicas; r++)
    for (guint i = 0; i < N_SERIES; i++)
      m->replicas[r].series[i] = infos[i].bounds != NULL
                                     ? oct_histogram_new(infos[i].bounds, infos[i].n_bounds)
                                     : oct_histogram_new(bounds, n);
  return m;
}

void
oct_measures_free(oct_measures *m) {
  if (m == NULL)
    return;
  for (guint32 r = 0; r < m->n_replicas; r++)
    for (guint i = 0; i < N_SERIES; i++)
      oct_histogram_free(m->replicas[r].series[i]);
  g_free(m->model_name);
  g_free(m);
}

/* ---------------------------------------------------------------- feeding */

static void
add_time(oct_replica_measures *m, oct_series which, gint64 from_ns, gint64 to_ns) {
  if (from_ns >= 0 && to_ns >= from_ns)
    oct_histogram_add(m->series[which], (double)(to_ns - from_ns) / 1e9, 1);
}

void
oct_measures_tokens(oct_measures *measures, guint32 replica, oct_choice *choice, guint32 n,
                    gint64 now_ns) {
  oct_replica_measures *m = &measures->replicas[replica];
  if (choice->last_ns >= 0) {
    add_time(m, ITL, choice->last_ns, now_ns);
    if (n > 1)
      oct_histogram_add(m->series[ITL], 0, n - 1);
  }
  choice->last_ns = now_ns;
}

void
oct_measures_step(oct_measures *m, guint32 replica, guint32 n_tokens) {
  oct_histogram_add(m->replicas[replica].series[ITERATION_TOKENS], n_tokens, 1);
}

static oct_outcome_kind
outcome_of(const oct_generation *g) {
  if (g->error == NULL)
    return g->reason == OCT_END_LENGTH ? OUTCOME_LENGTH : OUTCOME_STOP;
  return g_error_matches(g->error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_CANCELLED) ? OUTCOME_ABORT
                                                                                   : OUTCOME_ERROR;
}

void
oct_measures_ended(oct_measures *measures, const oct_generation *g) {
  oct_replica_measures *m = &measures->replicas[g->measured_at];
  const oct_generation_end *e = &g->end;
  m->ended[outcome_of(g)]++;
  add_time(m, E2E, e->received_ns, e->ended_ns);
  oct_histogram_add(m->series[PARAM_N], g->n_choices, 1);
  oct_histogram_add(m->series[PARAM_MAX_TOKENS], g->sampling.max_tokens, 1);
  oct_histogram_add(m->series[PROMPT_TOKENS], e->prompt_tokens, 1);
  oct_histogram_add(m->series[GENERATION_TOKENS], e->output_tokens, 1);
  guint32 longest = 0;
  for (guint32 c = 0; c < g->n_choices; c++)
    longest = MAX(longest, g->choices[c].n_out);
  oct_histogram_add(m->series[MAX_GENERATION_TOKENS], longest, 1);
  add_time(m, QUEUE, e->queued_ns, e->admitted_ns);
  if (e->first_token_ns < 0)
    return;
  add_time(m, TTFT, e->received_ns, e->first_token_ns);
  add_time(m, PREFILL, e->admitted_ns, e->first_token_ns);
  add_time(m, DECODE, e->first_token_ns, e->last_token_ns);
  add_time(m, INFERENCE, e->admitted_ns, e->last_token_ns);
  oct_histogram_add(m->series[COMPUTED_TOKENS],
                    e->prompt_tokens - MIN(e->cached_tokens, e->prompt_tokens), 1);
  if (longest >= 2)
    oct_histogram_add(m->series[TPOT],
                      (double)(e->last_token_ns - e->first_token_ns) / 1e9 / (longest - 1), 1);
}

void
oct_measures_refused(oct_measures *m) {
  m->refused++;
}

/* ---------------------------------------------------------------- writing */

typedef struct oct_scrape {
  GString *out;
  guint32 n;
  oct_engine_stats stats[OCT_SERVICE_REPLICAS_MAX];
  GString *labels[OCT_SERVICE_REPLICAS_MAX];
} oct_scrape;

static double
cache_use(const oct_engine_stats *s) {
  double most = 0;
  for (guint g = 0; g < OCT_MODEL_GROUPS_MAX; g++)
    if (s->pages_total[g] > 0)
      most = MAX(most, (double)s->pages_used[g] / s->pages_total[g]);
  return most;
}

/* What a family's sample of a replica is. */
#define FIGURE(name, expression)                                                                   \
  static double name(const oct_engine_stats *s) {                                                  \
    return (double)(expression);                                                                   \
  }
FIGURE(get_running, s->running)
FIGURE(get_waiting, s->waiting)
FIGURE(get_prompt, s->prompt_tokens + s->cached_prompt_tokens)
FIGURE(get_cached, s->cached_prompt_tokens)
FIGURE(get_generated, s->generated_tokens)
FIGURE(get_preemptions, s->preemptions)
FIGURE(get_queries, s->queried_prompt_tokens)
FIGURE(get_recomputed, s->recomputed_tokens)
FIGURE(get_steps, s->steps)
FIGURE(get_busy, (double)s->busy_ns / 1e9)
FIGURE(get_lost, s->lost)
FIGURE(get_expert_uses, s->experts.uses)
FIGURE(get_expert_hits, s->experts.hits)
FIGURE(get_expert_loads, s->experts.loads)
FIGURE(get_expert_bytes, s->experts.loaded_bytes)
FIGURE(get_drafts, s->speculation.drafts)
FIGURE(get_draft_tokens, s->speculation.draft_tokens)
FIGURE(get_accepted, s->speculation.accepted)
FIGURE(get_pauses, s->speculation.pauses)
FIGURE(get_undrafted, s->speculation.undrafted)
FIGURE(get_model_steps, s->speculation.model_steps)
FIGURE(get_model_lost, s->speculation.model_lost)
#undef FIGURE

static const struct {
  const char *name, *help;
  oct_metric_kind kind;
  double (*get)(const oct_engine_stats *stats);
} families[] = {
    {"vllm:num_requests_running", "Sequences that hold a slot.", OCT_METRIC_GAUGE, get_running},
    {"vllm:num_requests_waiting", "Sequences that wait for one.", OCT_METRIC_GAUGE, get_waiting},
    {"vllm:kv_cache_usage_perc", "Share of the cache that requests hold, 0 to 1.", OCT_METRIC_GAUGE,
     cache_use},
    {"vllm:prompt_tokens_total", "Prompt tokens, computed or from a cache.", OCT_METRIC_COUNTER,
     get_prompt},
    {"vllm:prompt_tokens_cached_total", "Prompt tokens from a cache.", OCT_METRIC_COUNTER,
     get_cached},
    {"vllm:generation_tokens_total", "Tokens sampled.", OCT_METRIC_COUNTER, get_generated},
    {"vllm:num_preemptions_total", "Times a sequence was thrown out of memory.", OCT_METRIC_COUNTER,
     get_preemptions},
    {"vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
     OCT_METRIC_COUNTER, get_queries},
    {"vllm:prefix_cache_hits_total", "Those of them that were found.", OCT_METRIC_COUNTER,
     get_cached},
    {"octet:recomputed_tokens_total", "Tokens computed again after preemptions and faults.",
     OCT_METRIC_COUNTER, get_recomputed},
    {"octet:steps_total", "Steps that have ended.", OCT_METRIC_COUNTER, get_steps},
    {"octet:busy_seconds_total", "Time with at least one unfinished step.", OCT_METRIC_COUNTER,
     get_busy},
    {"octet:instance_lost_total", "Times the instance was lost.", OCT_METRIC_COUNTER, get_lost},
    {"octet:expert_uses_total", "Experts that steps used, where a part is on the device.",
     OCT_METRIC_COUNTER, get_expert_uses},
    {"octet:expert_hits_total", "Those of them that were there.", OCT_METRIC_COUNTER,
     get_expert_hits},
    {"octet:expert_loads_total", "Experts brought into slots of the device.", OCT_METRIC_COUNTER,
     get_expert_loads},
    {"octet:expert_loaded_bytes_total", "Bytes of those, over all GPUs.", OCT_METRIC_COUNTER,
     get_expert_bytes},
    {"vllm:spec_decode_num_drafts_total", "Times a sequence had drafts verified.",
     OCT_METRIC_COUNTER, get_drafts},
    {"vllm:spec_decode_num_draft_tokens_total", "Drafts verified.", OCT_METRIC_COUNTER,
     get_draft_tokens},
    {"vllm:spec_decode_num_accepted_tokens_total", "Those of them that were accepted.",
     OCT_METRIC_COUNTER, get_accepted},
    {"octet:spec_decode_pauses_total", "Times a sequence was not drafted for, after too little.",
     OCT_METRIC_COUNTER, get_pauses},
    {"octet:spec_decode_undrafted_requests_total", "Requests that drafts are not made for.",
     OCT_METRIC_COUNTER, get_undrafted},
    {"octet:draft_model_steps_total", "Steps of the draft model.", OCT_METRIC_COUNTER,
     get_model_steps},
    {"octet:draft_model_lost_total", "Times the draft model alone was lost.", OCT_METRIC_COUNTER,
     get_model_lost},
};

/* A sample with one more label. */
static void
sample_with(oct_scrape *x, guint32 replica, const char *name, const char *label, const char *value,
            double figure) {
  g_autoptr(GString) labels = g_string_new(x->labels[replica]->str);
  oct_metrics_label(labels, label, value);
  oct_metrics_sample(x->out, name, labels->str, figure);
}

static void
write_split(oct_scrape *x) {
  const char *name = "vllm:num_requests_waiting_by_reason";
  oct_metrics_family(x->out, name, OCT_METRIC_GAUGE, "Sequences that wait, by what for.");
  for (guint32 i = 0; i < x->n; i++) {
    sample_with(x, i, name, "reason", "capacity", x->stats[i].waiting);
    sample_with(x, i, name, "reason", "deferred", 0);
  }
  name = "vllm:prompt_tokens_by_source_total";
  oct_metrics_family(x->out, name, OCT_METRIC_COUNTER, "Prompt tokens, by where they came from.");
  for (guint32 i = 0; i < x->n; i++) {
    const oct_engine_stats *s = &x->stats[i];
    sample_with(x, i, name, "source", "local_compute", (double)s->prompt_tokens);
    sample_with(
        x, i, name, "source", "local_cache_hit",
        (double)(s->cached_prompt_tokens - MIN(s->host_hit_tokens, s->cached_prompt_tokens)));
    sample_with(x, i, name, "source", "external_kv_transfer", (double)s->host_hit_tokens);
  }
}

/* Of a draft's place in its slice. */
static void
write_places(oct_scrape *x, const oct_service *service) {
  const char *name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  const oct_speculation *c = &service->config.engine.speculation;
  oct_metrics_family(x->out, name, OCT_METRIC_COUNTER, "Drafts accepted, by their place.");
  for (guint32 i = 0; i < x->n && c->method != OCT_DRAFT_NONE; i++)
    for (guint32 k = 0; k < c->n_tokens; k++) {
      char place[12];
      g_snprintf(place, sizeof place, "%u", k);
      sample_with(x, i, name, "position", place, (double)x->stats[i].speculation.accepted_at[k]);
    }
}

/* The host's tier is asked for what the device's does not have; without one nothing is asked. */
static void
write_host(oct_scrape *x, const oct_service *service) {
  const oct_memory_plan *memory = &service->config.engine.instance.memory;
  gboolean has_tier = FALSE;
  for (guint32 g = 0; g < memory->n_groups; g++)
    has_tier = has_tier || memory->groups[g].n_host > 0;
  const char *name = "vllm:external_prefix_cache_queries_total";
  oct_metrics_family(x->out, name, OCT_METRIC_COUNTER,
                     "Prompt tokens looked up in the host's memory.");
  for (guint32 i = 0; i < x->n; i++) {
    const oct_engine_stats *s = &x->stats[i];
    guint64 asked = s->queried_prompt_tokens - (s->cached_prompt_tokens - s->host_hit_tokens);
    oct_metrics_sample(x->out, name, x->labels[i]->str, has_tier ? (double)asked : 0);
  }
  name = "vllm:external_prefix_cache_hits_total";
  oct_metrics_family(x->out, name, OCT_METRIC_COUNTER, "Those of them that were found.");
  for (guint32 i = 0; i < x->n; i++)
    oct_metrics_sample(x->out, name, x->labels[i]->str, (double)x->stats[i].host_hit_tokens);
}

static void
write_weights(oct_scrape *x, const oct_service *service) {
  const oct_instance_config *c = &service->config.engine.instance;
  const char *name = "vllm:model_weights_memory_bytes";
  if (!service->config.has_weights)
    return;
  oct_weights weights;
  oct_model_rank_weights(c->spec, &c->parallel, 0, &weights);
  oct_metrics_family(x->out, name, OCT_METRIC_GAUGE,
                     "Weights that a device of the first stage holds.");
  for (guint32 i = 0; i < x->n; i++)
    oct_metrics_sample(x->out, name, x->labels[i]->str, (double)oct_weights_total(&weights).bytes);
}

static void
write_config(oct_scrape *x, const oct_service *service) {
  const oct_engine_config *c = &service->config.engine;
  const char *name = "vllm:cache_config_info";
  char number[24];
  oct_metrics_family(x->out, name, OCT_METRIC_GAUGE, "How the cache is set up.");
  for (guint32 i = 0; i < x->n; i++) {
    g_autoptr(GString) labels = g_string_new(x->labels[i]->str);
    g_snprintf(number, sizeof number, "%u", c->instance.block_size);
    oct_metrics_label(labels, "block_size", number);
    g_snprintf(number, sizeof number, "%u", c->instance.memory.groups[0].n_device);
    oct_metrics_label(labels, "num_gpu_blocks", number);
    g_snprintf(number, sizeof number, "%u", c->instance.memory.groups[0].n_host);
    oct_metrics_label(labels, "num_cpu_blocks", number);
    oct_metrics_label(labels, "cache_dtype", oct_dtype_name(c->instance.kv_dtype));
    oct_metrics_label(labels, "enable_prefix_caching", c->prefix_caching ? "True" : "False");
    oct_metrics_sample(x->out, name, labels->str, 1);
  }
  name = "vllm:engine_sleep_state";
  static const char *const states[] = {"awake", "weights_offloaded", "discard_all"};
  oct_metrics_family(x->out, name, OCT_METRIC_GAUGE, "Whether the engine is awake.");
  for (guint32 i = 0; i < x->n; i++)
    for (guint k = 0; k < G_N_ELEMENTS(states); k++)
      sample_with(x, i, name, "sleep_state", states[k], k == 0);
}

static void
write_service(oct_measures *m, oct_scrape *x, const oct_service *service) {
  const char *name = "vllm:request_success_total";
  oct_metrics_family(x->out, name, OCT_METRIC_COUNTER, "Requests that have ended, by how.");
  for (guint32 r = 0; r < x->n; r++)
    for (guint i = 0; i < N_OUTCOMES; i++)
      sample_with(x, r, name, "finished_reason", outcomes[i], (double)m->replicas[r].ended[i]);
  name = "vllm:admission_rejections_total";
  oct_metrics_family(x->out, name, OCT_METRIC_COUNTER,
                     "Requests that were refused at once, or found no room in a queue.");
  oct_metrics_sample(x->out, name, x->labels[0]->str, (double)m->refused);
  oct_service_status status;
  oct_service_get_status(service, &status);
  name = "octet:health";
  oct_metrics_family(x->out, name, OCT_METRIC_GAUGE, "Which state the health is in.");
  for (oct_health h = OCT_HEALTH_OPENING; h <= OCT_HEALTH_DEAD; h++)
    sample_with(x, 0, name, "state", oct_health_name(h), status.health == h);
  name = "octet:generations_active";
  oct_metrics_family(x->out, name, OCT_METRIC_GAUGE, "Generations that hold anything.");
  oct_metrics_sample(x->out, name, x->labels[0]->str, status.active);
}

void
oct_measures_write(oct_measures *m, const oct_service *service, GString *out) {
  oct_scrape x = {.out = out, .n = MAX(service->config.n_replicas, 1)};
  for (guint32 i = 0; i < x.n; i++) {
    char number[12];
    g_snprintf(number, sizeof number, "%u", i);
    x.labels[i] = g_string_new(NULL);
    oct_metrics_label(x.labels[i], "model_name", m->model_name);
    oct_metrics_label(x.labels[i], "engine", number);
    oct_service_get_stats(service, i, &x.stats[i]);
  }
  for (guint f = 0; f < G_N_ELEMENTS(families); f++) {
    oct_metrics_family(out, families[f].name, families[f].kind, families[f].help);
    for (guint32 i = 0; i < x.n; i++)
      oct_metrics_sample(out, families[f].name, x.labels[i]->str, families[f].get(&x.stats[i]));
  }
  write_split(&x);
  write_places(&x, service);
  write_host(&x, service);
  write_weights(&x, service);
  write_config(&x, service);
  write_service(m, &x, service);
  for (guint i = 0; i < N_SERIES; i++) {
    oct_metrics_family(out, infos[i].name, OCT_METRIC_HISTOGRAM, infos[i].help);
    for (guint32 r = 0; r < x.n; r++)
      oct_histogram_write(m->replicas[r].series[i], out, infos[i].name, x.labels[r]->str);
  }
  for (guint32 i = 0; i < x.n; i++)
    g_string_free(x.labels[i], TRUE);
}

/* ---------------------------------------------------------------- the log */

static void
append_phase(GString *line, const char *name, gint64 from_ns, gint64 to_ns) {
  if (from_ns >= 0 && to_ns >= from_ns)
    g_string_append_printf(line, " %s_ms=%.3f", name, (double)(to_ns - from_ns) / 1e6);
}

char *
oct_measures_line(const oct_generation *g) {
  const oct_generation_end *e = &g->end;
  GString *line = g_string_new("request");
  g_string_append_printf(line, " id=%s outcome=%s prompt=%u cached=%u output=%u",
                         g->request_id != NULL ? g->request_id : "-", outcomes[outcome_of(g)],
                         e->prompt_tokens, e->cached_tokens, e->output_tokens);
  if (g->n_choices > 1)
    g_string_append_printf(line, " n=%u", g->n_choices);
  if (e->preemptions > 0)
    g_string_append_printf(line, " preemptions=%u", e->preemptions);
  if (e->draft_tokens > 0)
    g_string_append_printf(line, " drafts=%u accepted=%u", e->draft_tokens, e->accepted_tokens);
  append_phase(line, "encode", e->received_ns, e->queued_ns);
  append_phase(line, "queue", e->queued_ns, e->admitted_ns);
  append_phase(line, "prefill", e->admitted_ns, e->first_token_ns);
  append_phase(line, "decode", e->first_token_ns, e->last_token_ns);
  append_phase(line, "total", e->received_ns, e->ended_ns);
  if (g->error != NULL) {
    g_autofree char *shown = g_strescape(g->error->message, NULL);
    g_string_append_printf(line, " error=\"%s\"", shown);
  }
  return g_string_free(line, FALSE);
}
