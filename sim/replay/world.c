/* The worlds that a setup's engines run in: simgrid where it is built in, mock everywhere. */
#include "config.h"

#include <string.h>

#include "backends/mock/mock.h"
#include "backends/registry.h"
#include "engine/sched/replan.h"
#include "sim/replay/metrics.h"
#include "sim/replay/setup.h"
#ifdef HAVE_SIMGRID
#include "backends/simgrid/simgrid.h"
#endif

/* Tokens of a trace are not known, so drafts are accepted by chance. */
static void
set_shadow(const oct_setup *setup, oct_shadow_options *shadow) {
  const oct_speculative *s = &setup->speculative;
  shadow->track_pages = !setup->options.unchecked || setup->options.n_prefill > 0;
  shadow->n_accept_at = s->n_acceptance;
  memcpy(shadow->accept_at, s->acceptance, s->n_acceptance * sizeof *s->acceptance);
  shadow->n_count_layers = setup->spec->n_layers;
  shadow->n_count_experts = setup->n_routing_weights;
  shadow->expert_counts = setup->routing_counts;
}

static oct_world *
mock_world(const oct_setup *setup, GError **error) {
  oct_mock_options options;
  oct_mock_options_default(&options);
  options.shadow.seed = setup->options.seed;
  options.trust_records = TRUE;
  set_shadow(setup, &options.shadow);
  if (setup->profile != NULL)
    options.host_ns = setup->profile->engine.step_host_ns;
  return oct_mock_world_new(&options, error);
}

#ifdef HAVE_SIMGRID
static oct_world *
simgrid_world(const oct_setup *setup, GError **error) {
  oct_simgrid_options options = OCT_SIMGRID_OPTIONS_DEFAULT;
  oct_shadow_options shadow;
  oct_shadow_options_default(&shadow);
  set_shadow(setup, &shadow);
  options.shadow = &shadow;
  options.profile = setup->profile;
  options.seed = setup->options.seed;
  options.exact = setup->options.exact;
  options.trust_records = setup->options.unchecked;
  options.moe_kernel = setup->options.moe_kernel;
  options.routing_alpha = setup->options.routing_alpha;
  options.routing_balanced = setup->options.routing_balanced;
  options.routing_weights = setup->routing_weights;
  options.n_routing_weights = setup->n_routing_weights;
  oct_cost_options imitated = OCT_COST_OPTIONS_DEFAULT;
  oct_setup_cost_options(setup, &imitated);
  options.cost_scale = imitated.scale;
  options.nccl_only = imitated.nccl_only;
  options.shared_beside = imitated.shared_beside;
  options.fused_norms = imitated.fused_norms;
  options.whole_norms = imitated.whole_norms;
  options.expert_time = imitated.expert_time;
  options.expert_miss = setup->options.expert_load ? OCT_EXPERT_MISS_LOAD : OCT_EXPERT_MISS_READ;
  if (setup->scenario != NULL) {
    options.load_weights = setup->scenario->cold_start;
    options.reload_weights = TRUE;
    options.load_bytes_per_s = setup->scenario->load_rate;
  }
  return oct_simgrid_world_new(&options, error);
}

static gboolean
act(void *user, oct_world *world, const oct_action *action, GError **error) {
  const oct_setup *setup = user;
  const oct_time now = 0; /* at once */
  switch (action->kind) {
  case OCT_ACTION_SCALE:
    return oct_simgrid_scale(world, oct_platform_resource(setup->platform, action->index)->name,
                             action->factor, now, error);
  case OCT_ACTION_LOSE:
    return oct_simgrid_lose(world, action->index, now, error);
  case OCT_ACTION_ISOLATE:
    return oct_simgrid_isolate(world, action->index, now, error);
  case OCT_ACTION_RESTORE:
    return oct_simgrid_restore(world, action->index, now, error);
  case OCT_ACTION_CAP: /* the clock that it leaves is an action of its own */
  case OCT_ACTION_DRAIN:
  case OCT_ACTION_TELL:
    break;
  }
  return TRUE;
}

static void
read_use(oct_world *world, guint *n, double *moved, gint64 *delayed_ns) {
  *n = MIN(oct_simgrid_resources(world), OCT_METRICS_RESOURCES_MAX);
  for (guint i = 0; i < *n; i++) {
    oct_simgrid_use use;
    oct_simgrid_usage(world, i, &use);
    moved[i] = use.moved;
    delayed_ns[i] = use.delayed_ns;
  }
}
#endif

oct_world *
oct_setup_world(const oct_setup *setup, GError **error) {
  if (setup->speculative.method != OCT_DRAFT_NONE && setup->speculative.n_acceptance == 0 &&
      setup->options.description == NULL) {
    g_set_error(
        error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
        "speculative-config: acceptance is missing: a trace has no tokens to compare drafts "
        "with. A number from 0 to 1, one for each place, or a file with a server's metrics");
    return NULL;
  }
  if (setup->options.description != NULL)
    return oct_backend_world_new(setup->options.description, error);
  if (setup->options.backend == OCT_REPLAY_MOCK)
    return mock_world(setup, error);
#ifdef HAVE_SIMGRID
  return simgrid_world(setup, error);
#else
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
              "backend: simgrid is not built in; mock is");
  return NULL;
#endif
}

static gboolean
replan(void *user, const gboolean taken[OCT_NODE_DEVICES_MAX], guint32 ranks,
       oct_engine_config *engine, guint16 *devices, GError **error) {
  const oct_setup *setup = user;
  oct_node_shape node;
  oct_replan plan;
  oct_setup_node_shape(setup->profile, &node);
  memcpy(node.taken, taken, sizeof node.taken);
  oct_ledger_config config = setup->ledger.config;
  config.max_model_len = setup->options.engine.max_model_len;
  if (setup->draft_spec != NULL) { /* its cache stays as it is */
    config.num_gpu_blocks_override = setup->options.num_gpu_blocks_override;
    config.gpu_memory_utilization -= (double)setup->draft_cache_bytes / (double)config.device_bytes;
  }
  if (!oct_replan_make(&config, &node, ranks, &plan, error))
    return FALSE;
  oct_parallel *draft = &engine->speculation.draft.parallel;
  if (draft->tensor > oct_parallel_world(&plan.parallel))
    draft->tensor = 1;
  guint64 holds = plan.ledger.cache_tokens > 0 ? plan.ledger.cache_tokens : G_MAXUINT32;
  engine->instance.parallel = plan.parallel;
  engine->instance.memory = plan.ledger.plan;
  engine->max_model_len = (guint32)MIN(setup->engine.max_model_len, holds);
  memcpy(devices, plan.devices, oct_parallel_world(&plan.parallel) * sizeof *devices);
  return TRUE;
}

gboolean
oct_setup_machine(oct_setup *setup, oct_machine *machine) {
  *machine = (oct_machine){0};
#ifdef HAVE_SIMGRID
  if (setup->options.backend != OCT_REPLAY_SIMGRID || setup->options.description != NULL)
    return FALSE;
  *machine = (oct_machine){.user = setup,
                           .act = act,
                           .replan = replan,
                           .n_gpus = setup->profile->gpu.count,
                           .idle_w = setup->profile->thermal.idle_w,
                           .limit_w = setup->profile->thermal.tdp_w};
  return TRUE;
#else
  (void)setup;
  (void)replan;
  return FALSE;
#endif
}

oct_read_use_fn
oct_setup_read_use(const oct_setup *setup) {
#ifdef HAVE_SIMGRID
  if (setup->options.backend == OCT_REPLAY_SIMGRID)
    return read_use;
#endif
  (void)setup;
  return NULL;
}
