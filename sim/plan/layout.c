#include "sim/plan/layout.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/sched/replan.h"

/* Without a node (mock) there are so many devices. */
#define MOCK_DEVICES 8

const char *
oct_plan_fate_name(oct_plan_fate fate) {
  static const char *const names[OCT_PLAN_FATE_COUNT] = {"illegal", "bounded", "outpaced",
                                                         "simulated", "finalist"};
  oct_assert(fate < OCT_PLAN_FATE_COUNT);
  return names[fate];
}

void
oct_plan_layout_clear(gpointer layout) {
  oct_plan_layout *l = layout;
  g_clear_pointer(&l->label, g_free);
  g_clear_pointer(&l->why, g_free);
  g_clear_pointer(&l->after_loss, g_free);
}

/* ---------------------------------------------------------------- one layout */

double
oct_plan_layout_residence_s(const oct_plan_layout *l, const oct_plan_workload *w, double rate) {
  const double requests = rate / l->run.n_replicas * w->requests_per_start;
  return w->mean_output * oct_plan_pace_token_s(&l->bound.pace, w, requests);
}

static char *
label_of(const oct_setup_options *options, const char *knobs) {
  const oct_parallel *p = &options->engine.instance.parallel;
  GString *text = g_string_new(NULL);
  g_string_append_printf(text, "TP%u", p->tensor);
  if (p->pipeline > 1)
    g_string_append_printf(text, " PP%u", p->pipeline);
  if (p->data > 1)
    g_string_append_printf(text, " DP%u", p->data);
  if (p->expert_parallel)
    g_string_append(text, " EP");
  if (p->decode_context > 1)
    g_string_append_printf(text, " DCP%u", p->decode_context);
  g_string_append_printf(text, " x%u", options->n_replicas);
  if (*knobs != '\0')
    g_string_append_printf(text, ", %s", knobs);
  return g_string_free(text, FALSE);
}

/* The last sentence of a memory ledger's refusal says enough; a list keeps one line of it. */
static char *
first_line(const char *text) {
  return g_strndup(text, strcspn(text, "\n"));
}

typedef struct space {
  const oct_plan_variant *variant;
  guint number;
  guint32 gpus;
  gboolean has_experts;
  const oct_slo *slo;
  const oct_plan_workload *workload;
  GArray *layouts;
} space;

/* What goes on of the layout, whose setup is given, when one of its GPUs is lost: there are no
 * spare ones beside it. */
static gboolean
lose_one(const oct_setup *setup, oct_setup_options *run, GError **error) {
  oct_node_shape node;
  oct_replan plan;
  if (run->n_replicas > 1) {
    run->n_replicas--;
    return TRUE;
  }
  if (setup->profile == NULL) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "no node is known on which the only replica could go on");
    return FALSE;
  }
  const guint32 ranks = oct_parallel_world(&run->engine.instance.parallel) - 1;
  if (ranks == 0) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "it has no other");
    return FALSE;
  }
  oct_setup_node_shape(setup->profile, &node);
  node.taken[setup->devices[0]] = TRUE;
  oct_ledger_config config = setup->ledger.config;
  config.max_model_len = run->engine.max_model_len;
  if (!oct_replan_make(&config, &node, ranks, &plan, error))
    return FALSE;
  run->engine.instance.parallel = plan.parallel;
  return TRUE;
}

/* Bounds of what is simulated: `setup` is its own. */
static void
bound_layout(const space *s, const oct_setup *setup, oct_plan_layout *l) {
  g_autoptr(GError) why = NULL;
  if (!oct_plan_bound_of(setup, s->slo, s->workload, &l->bound, &why)) {
    l->fate = OCT_PLAN_FATE_ILLEGAL;
    l->why = first_line(why->message);
  } else if (l->bound.misses) {
    l->fate = OCT_PLAN_FATE_BOUNDED;
    l->why = g_strdup(l->bound.why);
  }
}

/* It has to serve whole, and with what is left: neither may do better than the other's bound. */
static void
bound_after_loss(const space *s, const oct_setup *whole, oct_plan_layout *l) {
  g_autoptr(GError) why = NULL;
  oct_setup setup;
  bound_layout(s, whole, l);
  const oct_plan_bound all = l->bound;
  if (l->fate != OCT_PLAN_FATE_OUTPACED)
    return;
  if (!lose_one(whole, &l->run, &why) || !oct_setup_make(&l->run, &setup, &why)) {
    g_autofree char *line = first_line(why->message);
    l->fate = OCT_PLAN_FATE_BOUNDED;
    l->why = g_strdup_printf("with one GPU lost nothing goes on: %s", line);
    return;
  }
  l->after_loss = label_of(&l->run, "");
  bound_layout(s, &setup, l);
  l->bound.rate_most = MIN(l->bound.rate_most, all.rate_most);
  l->bound.rate_guess = MIN(l->bound.rate_guess, all.rate_guess);
  oct_setup_clear(&setup);
}

/* A recorded trace of fewer session starts for each replica is not dealt out. */
#define DEALT_STARTS_MIN 200

/* Whether the replicas of the layout, which is made, have nothing in common but the router: no link
 * that their steps or copies cross, no host tier, no cache that the router looks at. */
static gboolean
shares_nothing(const space *s, const oct_setup *setup) {
  const oct_setup_options *o = &setup->options;
  const oct_plan_workload *w = s->workload;
  const gboolean one_gpu = oct_parallel_world(&setup->engine.instance.parallel) == 1;
  if (o->n_nodes > 1 || o->n_prefill > 0 || o->scenarios != NULL || o->router == OCT_ROUTE_PREFIX)
    return FALSE;
  /* Turns of a session go each its own way, and find a cache there or not. */
  if (w->has_prefix_ids && w->requests_per_start > 1)
    return FALSE;
  if (o->kv_offloading_bytes > 0 || o->swap_space_bytes > 0 || o->expert_cache_bytes > 0)
    return FALSE;
  if (setup->profile != NULL && setup->profile->nvlink.topology != OCT_NVLINK_SWITCH && !one_gpu)
    return FALSE;
  return w->n_total == 0 ||
         (double)w->n_total / w->requests_per_start >= (double)DEALT_STARTS_MIN * o->n_replicas;
}

/* FALSE when it is illegal. */
static gboolean
add_layout(const space *s, const oct_parallel *parallel, guint32 replicas) {
  oct_plan_layout l = {.variant = s->number, .options = s->variant->options};
  g_autoptr(GError) why = NULL;
  oct_setup setup;
  l.options.engine.instance.parallel = *parallel;
  l.options.n_replicas = replicas;
  l.gpus = oct_parallel_world(parallel) * replicas;
  l.label = label_of(&l.options, s->variant->label);
  l.fate = OCT_PLAN_FATE_OUTPACED;
  if (!oct_setup_make(&l.options, &setup, &why)) {
    l.fate = OCT_PLAN_FATE_ILLEGAL;
    l.why = first_line(why->message);
  } else {
    l.options.engine.max_num_seqs = setup.engine.max_num_seqs;
    l.options.engine.max_num_batched_tokens = setup.engine.max_num_batched_tokens;
    l.run = l.options;
    l.alone = shares_nothing(s, &setup);
    if (s->variant->survive_loss)
      bound_after_loss(s, &setup, &l);
    else
      bound_layout(s, &setup, &l);
    oct_setup_clear(&setup);
  }
  g_array_append_val(s->layouts, l);
  return l.fate != OCT_PLAN_FATE_ILLEGAL;
}

/* ---------------------------------------------------------------- all of them */

static gboolean
is_wanted(guint32 fixed, guint32 size) {
  return fixed <= 1 || fixed == size;
}

static void
add_replicas(const space *s, const oct_parallel *p) {
  guint32 most = s->gpus / oct_parallel_world(p), fixed = s->variant->options.n_replicas;
  gboolean legal = TRUE;
  /* What one replica may not, several may not either. */
  for (guint32 n = 1; legal && n <= most && n <= 64; n++)
    if (is_wanted(fixed, n))
      legal = add_layout(s, p, n);
}

static void
add_context(const space *s, oct_parallel *p) {
  const oct_parallel *fixed = &s->variant->options.engine.instance.parallel;
  for (guint32 dcp = 1; dcp <= p->tensor; dcp++)
    if (p->tensor % dcp == 0 && is_wanted(fixed->decode_context, dcp)) {
      p->decode_context = dcp;
      add_replicas(s, p);
    }
}

static void
add_experts(const space *s, oct_parallel *p) {
  const oct_parallel *fixed = &s->variant->options.engine.instance.parallel;
  gboolean both = s->has_experts && p->tensor * p->data > 1;
  for (int on = fixed->expert_parallel; on <= (both || fixed->expert_parallel); on++) {
    p->expert_parallel = on;
    add_context(s, p);
  }
}

static void
add_all(const space *s) {
  const oct_parallel *fixed = &s->variant->options.engine.instance.parallel;
  for (guint32 tensor = 1; tensor <= s->gpus; tensor++)
    for (guint32 pipeline = 1; tensor * pipeline <= s->gpus; pipeline++)
      for (guint32 data = 1; tensor * pipeline * data <= s->gpus; data++) {
        oct_parallel p = *fixed;
        p.tensor = tensor;
        p.pipeline = pipeline;
        p.data = data;
        if ((fixed->tensor == 0 || fixed->tensor == tensor) &&
            is_wanted(fixed->pipeline, pipeline) && is_wanted(fixed->data, data))
          add_experts(s, &p);
      }
}

gboolean
oct_plan_layouts(const oct_plan_variant *variant, guint number, guint32 gpus_max,
                 const oct_slo *slo, const oct_plan_workload *workload, GArray *layouts,
                 GError **error) {
  const oct_setup_options *o = &variant->options;
  space s = {variant, number, MOCK_DEVICES, FALSE, slo, workload, layouts};
  oct_model_spec *spec = oct_model_spec_load(o->model, o->zoo_dir, error);
  if (spec == NULL)
    return FALSE;
  s.has_experts = oct_model_has_experts(spec);
  oct_model_spec_free(spec);
  if (o->node != NULL) {
    oct_profile *profile = oct_profile_load(o->node, NULL, o->preset, error);
    if (profile == NULL)
      return FALSE;
    s.gpus = profile->gpu.count * MAX(1, o->n_nodes);
    oct_profile_free(profile);
  }
  if (gpus_max > s.gpus) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "max-gpus %u: %s has %u GPUs; more nodes are --max-nodes", gpus_max,
                o->node != NULL ? o->node : "mock", s.gpus);
    return FALSE;
  }
  if (gpus_max > 0)
    s.gpus = gpus_max;
  add_all(&s);
  return TRUE;
}

/* ---------------------------------------------------------------- the command */

static void
add_count(GString *line, const char *flag, guint64 value, guint64 standard) {
  if (value != standard)
    g_string_append_printf(line, " --%s %" G_GUINT64_FORMAT, flag, value);
}

/* Knobs of memory and scheduling that are not as they stand. */
static void
add_knobs(GString *line, const oct_setup_options *o, const oct_setup_options *standard) {
  static const char *const preemptions[] = {"auto", "recompute", "offload"};
  const oct_engine_config *e = &o->engine;
  if (o->gpu_memory_utilization != standard->gpu_memory_utilization)
    g_string_append_printf(line, " --gpu-memory-utilization %.6g", o->gpu_memory_utilization);
  if (e->policy != NULL && g_strcmp0(e->policy, standard->engine.policy) != 0)
    g_string_append_printf(line, " --policy %s", e->policy);
  if (e->preemption != standard->engine.preemption)
    g_string_append_printf(line, " --preemption %s", preemptions[e->preemption]);
  if (e->run_ahead < standard->engine.run_ahead)
    g_string_append(line, " --no-async-scheduling");
  if (e->instance.eager)
    g_string_append(line, " --enforce-eager");
  add_count(line, "num-gpu-blocks-override", o->num_gpu_blocks_override,
            standard->num_gpu_blocks_override);
  add_count(line, "long-prefill-token-threshold", e->long_prefill_threshold,
            standard->engine.long_prefill_threshold);
}

/* Replicas are what a server makes of a data parallel size, as vLLM does, unless it is told that
 * those are domains of one engine: by expert parallelism, or by a number of replicas. */
static void
add_layout_flags(GString *line, const oct_setup_options *o) {
  const oct_parallel *p = &o->engine.instance.parallel;
  const gboolean says_replicas = p->expert_parallel ? o->n_replicas > 1 : p->data > 1;
  add_count(line, "tensor-parallel-size", p->tensor, 0); /* unsaid, a twin takes all GPUs */
  add_count(line, "pipeline-parallel-size", p->pipeline, 1);
  add_count(line, "data-parallel-size",
            p->data == 1 && !p->expert_parallel ? o->n_replicas : p->data, 1);
  if (says_replicas)
    add_count(line, "replicas", o->n_replicas, 0);
  add_count(line, "decode-context-parallel-size", p->decode_context, 1);
  if (p->expert_parallel)
    g_string_append(line, " --enable-expert-parallel");
}

char *
oct_plan_serve_command(const oct_plan_layout *layout) {
  const oct_setup_options *o = &layout->options;
  const oct_engine_config *e = &o->engine;
  oct_setup_options standard;
  oct_setup_options_default(&standard);
  GString *line = g_string_new("octet serve ");
  g_string_append(line, o->model);
  g_string_append(line, " --backend cuda"); /* what a node has; a server's own default is cpu */
  add_layout_flags(line, o);
  add_count(line, "max-num-seqs", e->max_num_seqs, 0);
  add_count(line, "max-num-batched-tokens", e->max_num_batched_tokens, 0);
  add_count(line, "max-model-len", e->max_model_len, 0);
  add_count(line, "block-size", e->instance.block_size, standard.engine.instance.block_size);
  if (e->instance.kv_dtype == OCT_DTYPE_FP8)
    g_string_append(line, " --kv-cache-dtype fp8");
  if (o->kv_offloading_bytes > 0)
    g_string_append_printf(line, " --kv-offloading-size %.6g",
                           (double)o->kv_offloading_bytes / 1073741824.0);
  add_knobs(line, o, &standard);
  if (o->prefix_caching >= 0)
    g_string_append(line,
                    o->prefix_caching ? " --enable-prefix-caching" : " --no-enable-prefix-caching");
  g_autofree char *drafts =
      o->speculative != NULL ? oct_speculative_of_server(o->speculative) : NULL;
  if (drafts != NULL)
    g_string_append_printf(line, " --speculative-config '%s'", drafts);
  return g_string_free(line, FALSE);
}
