#include "sim/replay/setup.h"

#include <string.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/base/limits.h"
#include "engine/model/expert-counts.h"
#include "engine/sched/placement.h"
#include "engine/sched/policy.h"
#include "sim/replay/residency.h"

/* Without a node there is no memory to count: mock gets pages for this many tokens. */
#define MOCK_CACHE_TOKENS (4u << 20)
/* Graphs that a backend without a profile is taken to have, as the profiles do. */
#define GRAPH_MAX_BATCH 512

void
oct_setup_options_default(oct_setup_options *options) {
  memset(options, 0, sizeof *options);
  oct_engine_config_default(&options->engine);
  options->engine.max_num_seqs = options->engine.max_num_batched_tokens = 0;
  options->engine.instance.parallel.tensor = 0;
  options->n_replicas = options->n_nodes = 1;
  options->nic_latency_ns = OCT_SETUP_NIC_LATENCY_NS;
  options->prefix_caching = -1;
  options->gpu_memory_utilization = 0.92;
  options->state_memory_ratio = -1;
  options->seed = 1;
}

void
oct_setup_imitate(oct_setup_options *options, const oct_engine_preset *preset) {
  options->engine_preset = *preset;
  options->engine.policy = oct_policy_find(preset->policy)->name;
  options->engine.preemption = preset->preemption;
  options->engine.run_ahead = preset->run_ahead;
  options->engine.instance.eager = !preset->graphs;
  options->gpu_memory_utilization = preset->gpu_memory_utilization;
  options->engine.max_num_seqs = preset->max_num_seqs;
  options->engine.max_num_batched_tokens = preset->max_num_batched_tokens;
}

static double
factor(double value) {
  return value > 0 ? value : 1;
}

void
oct_setup_cost_options(const oct_setup *setup, oct_cost_options *options) {
  const oct_engine_preset *preset = &setup->options.engine_preset;
  options->scale = factor(setup->options.cost_scale) * factor(preset->step_time);
  options->nccl_only = preset->nccl_only;
  options->shared_beside = preset->shared_beside;
  options->fused_norms = preset->fused_norms;
  options->whole_norms = setup->options.whole_norms;
  options->expert_time = factor(preset->expert_time);
  if (oct_dtype_int4_group(setup->spec->types.expert) > 0)
    options->expert_time *= factor(preset->expert_time_int4);
}

/* ---------------------------------------------------------------- defaults by machine and model */

/* Host times of an imitated engine stand for the profile's. */
static void
take_host_times(oct_setup *s) {
  const oct_engine_preset *preset = &s->options.engine_preset;
  if (s->profile == NULL || !preset->has_host)
    return;
  char *name = s->profile->engine.preset;
  s->profile->engine = preset->host;
  g_free(name);
  s->profile->engine.preset = g_strdup(preset->name);
}

static void
take_types(oct_setup *s) {
  oct_weight_types *types = &s->spec->types;
  if (s->options.weight_type != OCT_DTYPE_NONE) {
    types->attention = types->dense_ffn = types->shared_expert = s->options.weight_type;
    if (types->latent != OCT_DTYPE_NONE)
      types->latent = s->options.weight_type;
  }
  if (s->options.expert_type != OCT_DTYPE_NONE)
    types->expert = s->options.expert_type;
}

/* As many tensor ranks as the node has GPUs for each replica, or the next number below that the
 * model can be cut into. */
static void
choose_tensor(oct_setup *s) {
  oct_parallel *p = &s->engine.instance.parallel;
  if (p->tensor > 0)
    return;
  const oct_setup_options *o = &s->options;
  guint32 apart = o->prefill_tensor > 0 ? o->n_prefill : 0, taken = apart * o->prefill_tensor;
  guint32 others = MAX(1, p->pipeline * p->data * (o->n_replicas - MIN(apart, o->n_replicas - 1)));
  guint32 gpus = s->profile != NULL ? s->profile->gpu.count : 1;
  taken = MIN(taken * p->pipeline * p->data, gpus - 1);
  p->tensor = MAX(1, (gpus - taken) / others);
  if (s->profile != NULL) /* within a node */
    p->tensor = MIN(p->tensor, s->profile->gpu.count / s->profile->n_nodes);
  while (p->tensor > 1 && !oct_parallel_check(s->spec, p, NULL))
    p->tensor--;
}

static void
translate_swap_space(oct_setup *s) {
  guint32 ranks = oct_parallel_world(&s->engine.instance.parallel);
  if (s->options.swap_space_bytes == 0 || s->options.kv_offloading_bytes > 0)
    return;
  s->options.kv_offloading_bytes = s->options.swap_space_bytes * ranks;
  g_ptr_array_add(s->warnings,
                  g_strdup_printf("swap-space is the host tier's old name, per GPU: taken as "
                                  "kv-offloading-size %.6g GiB for %u GPUs",
                                  (double)s->options.kv_offloading_bytes / 1073741824.0, ranks));
}

static void
fill_defaults(oct_setup *s) {
  oct_engine_config *e = &s->engine;
  const double device_bytes =
      s->profile != NULL ? s->profile->gpu.hbm_bytes : (double)s->options.device_bytes;
  gboolean large = device_bytes >= OCT_SETUP_LARGE_GPU_BYTES;
  guint32 seqs = large ? OCT_SETUP_LARGE_MAX_NUM_SEQS
                       : (guint32)oct_limit_get(OCT_LIMIT_MAX_NUM_SEQS)->standard;
  guint32 tokens = large ? OCT_SETUP_LARGE_MAX_BATCHED_TOKENS
                         : (guint32)oct_limit_get(OCT_LIMIT_MAX_NUM_BATCHED_TOKENS)->standard;
  if (e->max_num_seqs == 0)
    e->max_num_seqs = e->max_num_batched_tokens > 0 ? MIN(seqs, e->max_num_batched_tokens) : seqs;
  if (e->max_num_batched_tokens == 0)
    e->max_num_batched_tokens = MAX(tokens, e->max_num_seqs);
  e->prefix_caching = s->options.prefix_caching >= 0 ? s->options.prefix_caching > 0
                                                     : !oct_model_has_state(s->spec);
  if (s->profile != NULL)
    e->submit_lead_ns = s->profile->engine.submit_lead_ns;
  e->no_forward |= s->options.exact;
}

/* Options that this model or this backend has no use for. */
static void
warn_of_unused(oct_setup *s) {
  const oct_setup_options *o = &s->options;
  const oct_expert_options *e = &o->engine.experts;
  gboolean experts = oct_model_has_experts(s->spec);
  const struct {
    gboolean unused;
    const char *what;
  } checks[] = {
      {!experts && (o->moe_kernel == OCT_MOE_KERNEL_TARGET || o->routing_alpha > 0 ||
                    o->routing_balanced || o->routing_file != NULL),
       "moe-kernel, expert-routing: no effect, the model has no experts"},
      {o->expert_cache_bytes == 0 &&
           (e->policy != OCT_EXPERT_LRU || o->expert_load || e->warmup != OCT_EXPERT_WARM_UNIFORM ||
            o->expert_histogram != NULL),
       "expert-policy, expert-warmup, expert-miss: no effect without expert-cache-size"},
      {!oct_model_has_state(s->spec) && o->state_memory_ratio >= 0,
       "state-memory-ratio: no effect, the model has no recurrent state"},
      {o->n_nodes <= 1 && o->nic_latency_ns != OCT_SETUP_NIC_LATENCY_NS,
       "nic-latency: no effect without several nodes"},
      {o->n_replicas <= 1 && o->router != OCT_ROUTE_LEAST_LOADED,
       "router: no effect with one replica"},
      {o->backend == OCT_REPLAY_MOCK && o->exact, "sim-exact: no effect without backend simgrid"},
      {o->backend == OCT_REPLAY_MOCK && o->node == NULL && experts &&
           (o->moe_kernel != OCT_MOE_KERNEL_MEASURED || o->routing_alpha > 0),
       "moe-kernel, expert-routing: no effect without a simulated node"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(checks); i++)
    if (checks[i].unused)
      g_ptr_array_add(s->warnings, g_strdup(checks[i].what));
}

/* ---------------------------------------------------------------- drafts */

/* All of speculation but the draft model's memory. */
static gboolean
read_speculation(oct_setup *s, GError **error) {
  const oct_speculative *from = &s->speculative;
  oct_speculation *to = &s->engine.speculation;
  if (s->options.speculative == NULL)
    return TRUE;
  if (!oct_speculative_parse(s->options.speculative, &s->speculative, error))
    return FALSE;
  to->method = from->method;
  to->n_tokens = from->n_tokens;
  to->ngram_min = from->ngram_min;
  to->ngram_max = from->ngram_max;
  to->seqs_max = from->seqs_max;
  to->acceptance_min = from->acceptance_min;
  to->proposal_rate = from->proposal_rate >= 0 ? from->proposal_rate : 1;
  if (from->method != OCT_DRAFT_MODEL)
    return TRUE;
  const char *model = s->options.draft_model != NULL ? s->options.draft_model : from->model;
  s->draft_spec = oct_model_spec_load(model, s->options.zoo_dir, error);
  if (s->draft_spec == NULL) {
    g_prefix_error(error, "speculative-config: ");
    return FALSE;
  }
  to->draft = s->engine.instance;
  to->draft.spec = s->draft_spec;
  to->draft.parallel = (oct_parallel)OCT_PARALLEL_DEFAULT;
  to->draft.parallel.tensor = from->tensor > 0 ? from->tensor : s->engine.instance.parallel.tensor;
  return TRUE;
}

/* Pages of every group of the draft model: as many tokens as `pages` pages of the model hold, but
 * no more than the sequences of a step can have. */
static void
plan_draft_pages(oct_setup *s, guint32 pages) {
  const oct_engine_config *e = &s->engine;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_memory_plan *plan = &s->engine.speculation.draft.memory;
  guint32 tokens = e->max_model_len > 0 ? e->max_model_len : s->spec->max_position;
  guint64 useful =
      (guint64)e->instance.parallel.data * e->max_num_seqs * (tokens / e->instance.block_size + 2);
  memset(plan, 0, sizeof *plan);
  plan->n_groups = oct_model_groups(s->draft_spec, e->instance.kv_dtype, groups);
  for (guint32 g = 0; g < plan->n_groups; g++)
    plan->groups[g].n_device = (guint32)MIN(pages, useful);
}

/* What a rank of the draft model takes of its GPU besides pages, and of a page. */
static gboolean
measure_draft(const oct_setup *s, const oct_ledger_config *own, guint64 *fixed, guint64 *page,
              GError **error) {
  oct_ledger ledger;
  oct_ledger_config c = *own;
  c.spec = s->draft_spec;
  c.parallel = s->engine.speculation.draft.parallel;
  c.num_gpu_blocks_override = 0;
  c.expert_cache_bytes = c.kv_offloading_bytes = 0;
  c.max_model_len = 0;
  c.depth = s->engine.speculation.n_tokens;
  if (!oct_ledger_make(&c, &ledger, error)) {
    g_prefix_error(error, "draft model %s: ", s->draft_spec->name);
    return FALSE;
  }
  *fixed = oct_ledger_fixed(&ledger, 0) - ledger.stages[0].terms[OCT_LEDGER_CONTEXT];
  *page = 0;
  for (guint32 g = 0; g < ledger.plan.n_groups; g++)
    *page += ledger.stages[0].unit_bytes[g];
  return TRUE;
}

/* ---------------------------------------------------------------- memory */

/* The draft model's weights and workspace come off the GPU's memory, and its pages off the model's:
 * both caches hold as many tokens. */
static gboolean
share_with_draft(oct_setup *s, oct_ledger_config *c, GError **error) {
  guint64 fixed, page;
  if (!measure_draft(s, c, &fixed, &page, error))
    return FALSE;
  c->gpu_memory_utilization -= (double)fixed / (double)c->device_bytes;
  if (c->gpu_memory_utilization <= 0) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "draft model %s: its weights and workspace of %.3f GB leave nothing of a GPU of "
                "%.3f GB",
                s->draft_spec->name, (double)fixed / 1e9, (double)c->device_bytes / 1e9);
    return FALSE;
  }
  if (!oct_ledger_make(c, &s->ledger, error))
    return FALSE;
  guint32 full = 0;
  guint64 unit = 0;
  for (guint32 g = 0; g < s->ledger.plan.n_groups; g++)
    if (s->ledger.groups[g].kind != OCT_ATTENTION_KDA && s->ledger.groups[g].window == 0) {
      full = s->ledger.plan.groups[g].n_device;
      unit = s->ledger.stages[s->ledger.tightest].unit_bytes[g];
    }
  if (c->num_gpu_blocks_override == 0 && full > 0) {
    c->num_gpu_blocks_override = (guint32)MAX(1, full * (double)unit / (double)(unit + page));
    if (!oct_ledger_make(c, &s->ledger, error))
      return FALSE;
    full = c->num_gpu_blocks_override;
  }
  plan_draft_pages(s, full * s->engine.instance.parallel.decode_context);
  s->draft_cache_bytes = page * s->engine.speculation.draft.memory.groups[0].n_device;
  return TRUE;
}

static guint64
host_bytes(void) {
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? (guint64)pages * (guint64)size : 0;
}

static gboolean
plan_memory(oct_setup *s, GError **error) {
  const oct_setup_options *o = &s->options;
  const oct_engine_config *e = &s->engine;
  oct_ledger_config c;
  oct_ledger_config_default(&c);
  c.spec = s->spec;
  c.parallel = e->instance.parallel;
  c.kv_dtype = e->instance.kv_dtype;
  c.block_size = e->instance.block_size;
  c.max_num_seqs = e->max_num_seqs;
  c.max_num_batched_tokens = e->max_num_batched_tokens;
  c.max_model_len = e->max_model_len;
  c.depth = e->instance.parallel.pipeline + e->run_ahead;
  c.graph_max_batch = s->profile != NULL ? s->profile->engine.graph_max_batch : GRAPH_MAX_BATCH;
  if (e->instance.eager)
    c.graph_max_batch = 0;
  c.prefix_caching = e->prefix_caching;
  c.device_bytes =
      s->profile != NULL ? (guint64)s->profile->gpu.hbm_bytes : s->options.device_bytes;
  c.gpu_memory_utilization = o->gpu_memory_utilization;
  c.num_gpu_blocks_override = o->num_gpu_blocks_override;
  c.state_memory_ratio = o->state_memory_ratio;
  c.expert_cache_bytes = o->expert_cache_bytes;
  c.kv_offloading_bytes = o->kv_offloading_bytes;
  c.host_bytes = s->profile != NULL ? (guint64)s->profile->host.memory_bytes : host_bytes();
  if (!(s->draft_spec != NULL ? share_with_draft(s, &c, error)
                              : oct_ledger_make(&c, &s->ledger, error)))
    return FALSE;
  s->has_ledger = TRUE;
  s->engine.instance.memory = s->ledger.plan;
  if (s->engine.max_model_len == 0) {
    guint64 fits = s->ledger.cache_tokens > 0 ? s->ledger.cache_tokens : G_MAXUINT32;
    s->engine.max_model_len = (guint32)MIN(fits, s->spec->max_position);
  }
  return TRUE;
}

static void
plan_mock_memory(oct_setup *s) {
  oct_engine_config *e = &s->engine;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_memory_plan *plan = &e->instance.memory;
  guint32 page = e->instance.block_size * e->instance.parallel.decode_context;
  guint32 pages = s->options.num_gpu_blocks_override;
  memset(plan, 0, sizeof *plan);
  pages = pages > 0 ? pages : MAX(1, MOCK_CACHE_TOKENS / page);
  plan->n_groups = oct_model_groups(s->spec, e->instance.kv_dtype, groups);
  for (guint32 g = 0; g < plan->n_groups; g++)
    plan->groups[g].n_device = groups[g].kind == OCT_ATTENTION_KDA ? 2 * e->max_num_seqs : pages;
  if (s->draft_spec != NULL)
    plan_draft_pages(s, pages * e->instance.parallel.decode_context);
  if (e->max_model_len == 0)
    e->max_model_len = (guint32)MIN((guint64)pages * page, s->spec->max_position);
}

/* ---------------------------------------------------------------- placement */

void
oct_setup_node_shape(const oct_profile *profile, oct_node_shape *node) {
  memset(node, 0, sizeof *node);
  node->n_devices = profile->gpu.count;
  node->memory_bytes = (guint64)profile->gpu.hbm_bytes;
  for (guint32 d = 0; d < profile->gpu.count; d++) {
    node->socket[d] = profile->topology.gpu_socket[d];
    node->pcie_switch[d] = profile->topology.gpu_switch[d];
    switch (profile->nvlink.topology) {
    case OCT_NVLINK_SWITCH:
      node->nvlink_group[d] = (guint8)oct_profile_node_of(profile, d);
      break;
    case OCT_NVLINK_PAIRS:
      node->nvlink_group[d] = (guint8)MIN(d, profile->nvlink.gpu_pair[d]);
      break;
    case OCT_NVLINK_NONE:
      node->nvlink_group[d] = (guint8)d;
      break;
    }
  }
}

/* The layout and memory of prefill replicas that are not as the others. */
static gboolean
plan_prefill(oct_setup *s, GError **error) {
  const oct_setup_options *o = &s->options;
  oct_ledger ledger;
  s->prefill_engine = s->engine;
  if (o->prefill_tensor == 0)
    return TRUE;
  if (o->n_prefill == 0 || s->profile == NULL || s->draft_spec != NULL) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "prefill-tensor-parallel-size %u: of prefill replicas (--prefill-replicas) on a "
                "node, without a draft model",
                o->prefill_tensor);
    return FALSE;
  }
  s->prefill_engine.instance.parallel.tensor = o->prefill_tensor;
  oct_ledger_config c = s->ledger.config;
  c.parallel = s->prefill_engine.instance.parallel;
  if (!oct_parallel_check(s->spec, &c.parallel, error) || !oct_ledger_make(&c, &ledger, error)) {
    g_prefix_error(error, "prefill replicas: ");
    return FALSE;
  }
  s->prefill_engine.instance.memory = ledger.plan;
  s->prefill_devices =
      g_new0(guint16, (gsize)oct_parallel_world(&c.parallel) * s->options.n_prefill);
  return TRUE;
}

/* One replica's devices, which others then do not get. */
static gboolean
place_one(oct_setup *s, guint32 number, const oct_parallel *parallel, oct_node_shape *node,
          guint16 *devices, GError **error) {
  char *warning = NULL;
  if (!oct_place(s->spec, parallel, node, devices, &warning, error)) {
    if (s->options.n_replicas > 1)
      g_prefix_error(error, "replica %u of %u: ", number + 1, s->options.n_replicas);
    return FALSE;
  }
  if (warning != NULL)
    g_ptr_array_add(s->warnings, warning);
  for (guint32 r = 0; r < oct_parallel_world(parallel); r++)
    node->taken[devices[r]] = TRUE;
  return TRUE;
}

static gboolean
place(oct_setup *s, GError **error) {
  const oct_parallel *parallel = &s->engine.instance.parallel;
  const oct_parallel *prefill = &s->prefill_engine.instance.parallel;
  guint32 ranks = oct_parallel_world(parallel), others = oct_parallel_world(prefill);
  oct_node_shape node;
  s->devices = g_new0(guint16, (gsize)ranks * s->options.n_replicas);
  if (s->profile == NULL) {
    for (guint32 i = 0; i < ranks * s->options.n_replicas; i++)
      s->devices[i] = (guint16)i;
    return TRUE;
  }
  oct_setup_node_shape(s->profile, &node);
  for (guint32 i = 0; i < s->options.n_replicas; i++) {
    guint16 *devices = s->devices + (gsize)i * ranks;
    if (s->prefill_devices == NULL || i >= s->options.n_prefill) {
      if (!place_one(s, i, parallel, &node, devices, error))
        return FALSE;
      continue;
    }
    guint16 *own = s->prefill_devices + (gsize)i * others;
    if (!place_one(s, i, prefill, &node, own, error))
      return FALSE;
    for (guint32 r = 0; r < ranks; r++)
      devices[r] = own[MIN(r, others - 1)];
  }
  return TRUE;
}

/* ---------------------------------------------------------------- the whole */

static gboolean
read_histogram(oct_setup *s, GError **error) {
  if (s->options.expert_histogram == NULL)
    return TRUE;
  s->expert_histogram = oct_residency_read(s->options.expert_histogram, s->spec, error);
  s->engine.experts.histogram = s->expert_histogram;
  s->engine.experts.warmup = OCT_EXPERT_WARM_HISTOGRAM;
  return s->expert_histogram != NULL;
}

static gboolean
read_routing(oct_setup *s, GError **error) {
  g_autoptr(GError) reason = NULL;
  if (s->options.routing_file == NULL)
    return TRUE;
  s->routing_counts = oct_expert_counts_read(s->options.routing_file, s->spec, &reason);
  if (s->routing_counts != NULL) {
    s->routing_weights = oct_expert_counts_ranked(s->spec, s->routing_counts, &reason);
    g_prefix_error(&reason, "%s: ", s->options.routing_file);
  }
  s->n_routing_weights = oct_expert_counts_width(s->spec);
  if (s->routing_weights != NULL)
    return TRUE;
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "expert-routing: %s",
              reason->message);
  return FALSE;
}

static gboolean
read_scenario(oct_setup *s, GError **error) {
  const oct_setup_options *o = &s->options;
  if (o->scenarios == NULL || o->scenarios[0] == NULL)
    return TRUE;
  gboolean node = s->platform != NULL && o->description == NULL;
  const oct_scenario_options options = {.platform = node ? s->platform : NULL,
                                        .profile = node ? s->profile : NULL,
                                        .n_replicas = o->n_replicas,
                                        .seed = o->seed};
  s->scenario = oct_scenario_load(o->scenarios, &options, error);
  return s->scenario != NULL;
}

static gboolean
check_pools(const oct_setup *s, GError **error) {
  if (s->options.n_prefill == 0 || s->options.n_prefill < s->options.n_replicas)
    return TRUE;
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
              "prefill-replicas %u: of %u replicas at least one must decode", s->options.n_prefill,
              s->options.n_replicas);
  return FALSE;
}

static gboolean
make(oct_setup *s, GError **error) {
  const oct_setup_options *o = &s->options;
  s->spec = oct_model_spec_load(o->model, o->zoo_dir, error);
  if (s->spec == NULL)
    return FALSE;
  if (o->node != NULL && (s->profile = oct_profile_load(o->node, NULL, o->preset, error)) == NULL)
    return FALSE;
  if (s->profile != NULL &&
      !oct_profile_join(s->profile, o->n_nodes, (double)o->nic_latency_ns / 1e9, error))
    return FALSE;
  take_host_times(s);
  take_types(s);
  if (!read_histogram(s, error) || !read_routing(s, error))
    return FALSE;
  if (s->profile == NULL && o->backend == OCT_REPLAY_SIMGRID) {
    g_set_error(
        error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
        "node: which machine is to be simulated? A profile such as h200-hgx8, or an .ini file");
    return FALSE;
  }
  s->engine.instance.spec = s->spec;
  s->engine.instance.label = s->spec->name;
  choose_tensor(s);
  if (!oct_parallel_check(s->spec, &s->engine.instance.parallel, error))
    return FALSE;
  if (!read_speculation(s, error))
    return FALSE;
  translate_swap_space(s);
  warn_of_unused(s);
  fill_defaults(s);
  if (s->profile == NULL && o->device_bytes == 0)
    plan_mock_memory(s);
  else if (!plan_memory(s, error))
    return FALSE;
  if (o->backend == OCT_REPLAY_SIMGRID) {
    s->platform = oct_platform_new(s->profile, error);
    if (s->platform == NULL)
      return FALSE;
  }
  return check_pools(s, error) && plan_prefill(s, error) && place(s, error) &&
         read_scenario(s, error);
}

gboolean
oct_setup_make(const oct_setup_options *options, oct_setup *setup, GError **error) {
  memset(setup, 0, sizeof *setup);
  setup->options = *options;
  setup->engine = options->engine;
  setup->warnings = g_ptr_array_new_with_free_func(g_free);
  if (make(setup, error))
    return TRUE;
  oct_setup_clear(setup);
  return FALSE;
}

void
oct_setup_clear(oct_setup *setup) {
  oct_model_spec_free(setup->spec);
  oct_model_spec_free(setup->draft_spec);
  oct_speculative_clear(&setup->speculative);
  oct_profile_free(setup->profile);
  oct_platform_free(setup->platform);
  g_free(setup->devices);
  g_free(setup->prefill_devices);
  g_free(setup->expert_histogram);
  g_free(setup->routing_weights);
  g_free(setup->routing_counts);
  oct_scenario_free(setup->scenario);
  g_clear_pointer(&setup->warnings, g_ptr_array_unref);
  memset(setup, 0, sizeof *setup);
}

const char *
oct_setup_resource_kind(oct_resource_kind kind) {
  static const char *const names[OCT_RESOURCE_KIND_COUNT] = {
      [OCT_RESOURCE_SM] = "sm",
      [OCT_RESOURCE_HBM] = "hbm",
      [OCT_RESOURCE_NV_UP] = "nvlink-out",
      [OCT_RESOURCE_NV_DOWN] = "nvlink-in",
      [OCT_RESOURCE_PCIE_UP] = "pcie-out",
      [OCT_RESOURCE_PCIE_DOWN] = "pcie-in",
      [OCT_RESOURCE_PCIE_DUPLEX] = "pcie-duplex",
      [OCT_RESOURCE_SWITCH_UP] = "switch-up",
      [OCT_RESOURCE_SWITCH_DOWN] = "switch-down",
      [OCT_RESOURCE_SWITCH_DUPLEX] = "switch-duplex",
      [OCT_RESOURCE_ROOT_UP] = "root-up",
      [OCT_RESOURCE_ROOT_DOWN] = "root-down",
      [OCT_RESOURCE_DRAM] = "dram",
      [OCT_RESOURCE_SOCKET] = "socket-link",
      [OCT_RESOURCE_NIC_UP] = "nic-out",
      [OCT_RESOURCE_NIC_DOWN] = "nic-in",
  };
  oct_assert(kind < OCT_RESOURCE_KIND_COUNT && names[kind] != NULL);
  return names[kind];
}
