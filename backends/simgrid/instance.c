/* Instances: how their ranks lie on the node, what fits, opening and closing. */
#include "backends/simgrid/internal.h"

#include <string.h>

#include "engine/base/assert.h"

/* ---------------------------------------------------------------- units */

/* Bytes of one page or state slot on a rank of a stage, laid out as `p`. */
static double
rank_unit_bytes(const sim_instance *in, const oct_parallel *p, guint32 stage, guint32 group,
                gboolean state) {
  const oct_instance_config *c = &in->config;
  if (state)
    return (double)oct_model_rank_state_bytes(c->spec, p, stage, group);
  double tokens = (double)c->block_size * MAX(c->parallel.decode_context, 1);
  return tokens * (double)oct_model_rank_token_bytes(c->spec, p, stage, c->kv_dtype, group);
}

/* What a rank holds of a unit, and its share of what goes to the host: all ranks of a domain
 * together write each byte once. */
static void
set_units(sim_instance *in) {
  const oct_instance_config *c = &in->config;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_parallel whole = c->parallel;
  in->n_groups = oct_model_groups(c->spec, c->kv_dtype, groups);
  whole.tensor = whole.decode_context = 1;
  for (guint32 g = 0; g < in->n_groups; g++) {
    gboolean state = groups[g].kind == OCT_ATTENTION_KDA;
    for (guint32 s = 0; s < in->n_stages; s++) {
      in->unit_bytes[g][s] = rank_unit_bytes(in, &c->parallel, s, g, state);
      in->once_bytes[g][s] = rank_unit_bytes(in, &whole, s, g, state);
      in->link_bytes[g][s] = MIN(in->once_bytes[g][s] / c->parallel.tensor, in->unit_bytes[g][s]);
    }
  }
}

/* ---------------------------------------------------------------- ranks and stages */

static oct_bundle *
one_route(sim_instance *in, guint route) {
  guint16 routes[1] = {(guint16)route};
  return oct_flows_bundle(in->world->flows, routes, 1);
}

static void
set_rank(sim_instance *in, guint32 r) {
  const oct_platform *platform = in->world->platform;
  const oct_parallel *p = &in->config.parallel;
  sim_rank *rank = &in->ranks[r];
  gint socket = in->world->options.host_socket;
  rank->device = in->config.devices[r];
  rank->socket =
      (guint8)(socket < 0 ? oct_platform_gpu_socket(platform, rank->device) : (guint)socket);
  rank->h2d = one_route(in, oct_platform_route_h2d(platform, rank->socket, rank->device));
  rank->d2h = one_route(in, oct_platform_route_d2h(platform, rank->device, rank->socket));
  rank->hbm = one_route(in, oct_platform_route_hbm(platform, rank->device));
  guint32 t = r % p->tensor;
  if (p->tensor > 1 && oct_platform_switched(platform)) {
    guint32 next = in->config.devices[r - t + (t + 1) % p->tensor];
    rank->gather = one_route(in, oct_platform_route_peer(platform, rank->device, next));
  }
}

/* Every GPU of a stage sends and receives what a collective moves: as a ring, over the tensor ranks
 * of each domain, or over the domains when those have one rank each. */
static oct_bundle *
ring(sim_instance *in, const guint16 *devices) {
  const oct_parallel *p = &in->config.parallel;
  guint16 routes[OCT_PROFILE_GPUS_MAX];
  guint32 n = p->tensor > 1 ? p->tensor : p->data, rings = p->tensor > 1 ? p->data : 1, used = 0;
  if (n < 2)
    return NULL;
  for (guint32 i = 0; i < rings; i++) {
    for (guint32 k = 0; k < n; k++)
      routes[used++] = (guint16)oct_platform_route_peer(in->world->platform, devices[i * n + k],
                                                        devices[i * n + (k + 1) % n]);
  }
  return oct_flows_bundle(in->world->flows, routes, used);
}

static void
set_stage(sim_instance *in, guint32 s) {
  const oct_platform *platform = in->world->platform;
  oct_flows *flows = in->world->flows;
  sim_stage *stage = &in->stages[s];
  guint32 n = in->n_ranks / in->n_stages;
  const sim_rank *ranks = &in->ranks[s * n];
  const guint16 *devices = &in->config.devices[s * n];
  guint16 routes[OCT_PROFILE_GPUS_MAX];
  stage->index = s;
  stage->instance = in;
  stage->next = 1;
  for (guint32 i = 0; i < n; i++)
    routes[i] = (guint16)oct_platform_route_sm(platform, devices[i]);
  stage->bundles[SIM_SM] = oct_flows_bundle(flows, routes, n);
  for (guint32 i = 0; i < n; i++)
    routes[i] = (guint16)oct_platform_route_hbm(platform, devices[i]);
  stage->bundles[SIM_HBM] = oct_flows_bundle(flows, routes, n);
  for (guint32 i = 0; i < n; i++)
    routes[i] = (guint16)oct_platform_route_h2d(platform, ranks[i].socket, devices[i]);
  stage->bundles[SIM_HOST] = oct_flows_bundle(flows, routes, n);
  stage->bundles[SIM_NV] = ring(in, devices);
  if (s + 1 < in->n_stages) {
    for (guint32 i = 0; i < n; i++)
      routes[i] = (guint16)oct_platform_route_peer(platform, devices[i], devices[n + i]);
    stage->send = oct_flows_bundle(flows, routes, n);
  }
}

static void
drop_bundle(sim_instance *in, oct_bundle *bundle) {
  if (bundle != NULL)
    oct_flows_unbundle(in->world->flows, bundle);
}

/* ---------------------------------------------------------------- memory */

/* Weights on a rank: all of them, or with expert slots that many experts per layer. */
static double
rank_weight_bytes(const sim_instance *in, guint32 stage) {
  const oct_instance_config *c = &in->config;
  oct_weights weights;
  oct_model_rank_weights(c->spec, &c->parallel, stage, &weights);
  double bytes = (double)oct_weights_total(&weights).bytes;
  if (c->memory.n_expert_slots == 0)
    return bytes;
  guint32 first, count;
  double slots = 0;
  oct_parallel_stage(c->spec, &c->parallel, stage, &first, &count);
  for (guint32 l = first; l < first + count; l++)
    slots += (double)oct_model_expert(c->spec, l).bytes * c->memory.n_expert_slots;
  if (!c->parallel.expert_parallel)
    slots /= c->parallel.tensor;
  return bytes - (double)weights.experts.bytes + slots;
}

static double
rank_pool_bytes(const sim_instance *in, guint32 stage) {
  double bytes = 0;
  for (guint32 g = 0; g < in->n_groups; g++)
    bytes += in->unit_bytes[g][stage] * in->config.memory.groups[g].n_device;
  return bytes;
}

/* What is free on the instance's fullest device, with other open instances on it. */
static double
free_bytes(const sim_instance *in) {
  const sim_world *world = in->world;
  double least = G_MAXDOUBLE;
  for (guint32 r = 0; r < in->n_ranks; r++) {
    guint32 stage = r / (in->n_ranks / in->n_stages);
    double left = world->options.profile->gpu.hbm_bytes - rank_weight_bytes(in, stage) -
                  rank_pool_bytes(in, stage);
    for (guint i = 0; i < world->instances->len; i++) {
      const sim_instance *other = g_ptr_array_index(world->instances, i);
      for (guint32 k = 0; other != NULL && other != in && k < other->n_ranks; k++)
        left -= other->ranks[k].device == in->ranks[r].device ? other->device_bytes : 0;
    }
    least = MIN(least, left);
  }
  return least;
}

static void
set_capabilities(sim_instance *in) {
  const oct_instance_config *c = &in->config;
  double left = free_bytes(in);
  in->capabilities = (oct_capabilities){
      .depth = c->depth,
      .n_groups = in->n_groups,
      .graph_max_batch = c->eager ? 0 : oct_cost_engine(in->cost)->graph_max_batch,
      .masks = TRUE,
      .pooling = TRUE,
      .speculation = TRUE,
      .expert_slots = TRUE,
      .host_tier = TRUE,
      /* Steps that are not seen cannot be checked, and their experts cannot be told. */
      .forward = !in->world->options.exact && !c->check_tags && !c->report_experts &&
                 c->memory.n_expert_slots == 0,
      .clock = OCT_CLOCK_VIRTUAL,
  };
  for (guint32 g = 0; g < in->n_groups; g++) {
    double unit = 0;
    for (guint32 s = 0; s < in->n_stages; s++)
      unit = MAX(unit, in->unit_bytes[g][s]);
    in->capabilities.page_bytes[g] = oct_shadow_unit_bytes(c, g);
    double more = unit > 0 ? left / unit : 0;
    in->capabilities.fits[g] =
        (guint32)CLAMP(c->memory.groups[g].n_device + MAX(more, 0), 0, (double)G_MAXUINT32);
  }
}

/* ---------------------------------------------------------------- opening */

/* Why the instance cannot open, or FALSE. */
static gboolean
refusal(const sim_instance *in, oct_fault *fault) {
  *fault = (oct_fault){.severity = OCT_SEVERITY_INSTANCE, .device = OCT_NO_INDEX};
  for (guint32 r = 0; r < in->n_ranks; r++) {
    if (in->world->lost[in->ranks[r].device]) {
      fault->device = in->ranks[r].device;
      g_snprintf(fault->message, sizeof fault->message, "GPU %u is lost", fault->device);
      return TRUE;
    }
    if (in->n_ranks > 1 && in->world->isolated[in->ranks[r].device]) {
      fault->device = in->ranks[r].device;
      g_snprintf(fault->message, sizeof fault->message, "GPU %u reaches no other GPU",
                 fault->device);
      return TRUE;
    }
  }
  double left = free_bytes(in);
  if (left < 0) {
    g_snprintf(fault->message, sizeof fault->message,
               "weights and pools need %.2f GB more than the %.2f GB of a GPU", -left * 1e-9,
               in->world->options.profile->gpu.hbm_bytes * 1e-9);
    return TRUE;
  }
  return FALSE;
}

static void
opened(oct_timer *timer) {
  sim_instance *in = timer->owner;
  in->opened = TRUE;
  (void)sim_emit(in, OCT_EVENT_OPENED);
}

/* Its weights have come over PCIe: it is open once storage has sent them all, too. */
void
sim_instance_opened(sim_instance *in) {
  if (in->loaded_ns <= in->world->now_ns) {
    opened(&in->open_timer);
    return;
  }
  in->open_timer.fire = opened;
  oct_timers_arm(&in->world->timers, &in->open_timer, in->loaded_ns);
}

static void
start_opening(oct_timer *timer) {
  sim_instance *in = timer->owner;
  oct_fault fault;
  if (refusal(in, &fault)) {
    in->lost = TRUE;
    sim_emit(in, OCT_EVENT_OPEN_FAILED)->fault = fault;
    return;
  }
  set_capabilities(in);
  const oct_simgrid_options *options = &in->world->options;
  if (!options->load_weights && !(options->reload_weights && in->world->now_ns > 0)) {
    sim_instance_opened(in);
    return;
  }
  double total = 0;
  sim_event *event = sim_emit(in, OCT_EVENT_OPEN_PROGRESS);
  event->phase = "weights";
  sim_op *op = sim_op_new(in, SIM_OP_WEIGHTS);
  for (guint32 r = 0; r < in->n_ranks; r++) {
    double bytes = rank_weight_bytes(in, r / (in->n_ranks / in->n_stages));
    sim_op_add(op, r, SIM_H2D, bytes, bytes);
    total += bytes;
  }
  if (options->load_bytes_per_s > 0)
    in->loaded_ns = in->world->now_ns + oct_cost_ns(total / options->load_bytes_per_s);
  sim_op_queue(op);
}

/* Jobs that an instance may have at one time, without copies. */
static guint32
job_count(const oct_instance_config *config) {
  guint32 stages = config->parallel.pipeline;
  return stages + (stages > 1 ? config->depth : 0);
}

static gboolean
check_config(const sim_world *world, const oct_instance_config *config, GError **error) {
  guint gpus = oct_platform_gpus(world->platform);
  guint32 ranks = oct_parallel_world(&config->parallel);
  for (guint32 r = 0; r < ranks; r++) {
    for (guint32 k = 0; k < r; k++) {
      if (config->devices[k] == config->devices[r]) {
        g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                    "ranks %u and %u are both on GPU %u", k, r, config->devices[r]);
        return FALSE;
      }
    }
    if (config->devices[r] >= gpus) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                  "rank %u is on GPU %u: the node has %u", r, config->devices[r], gpus);
      return FALSE;
    }
  }
  if (world->n_jobs + job_count(config) > SIM_JOBS_MAX) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "stages and steps of all instances would be %u, limit %d",
                world->n_jobs + job_count(config), SIM_JOBS_MAX);
    return FALSE;
  }
  return TRUE;
}

static oct_cost *
make_cost(const sim_world *world, const oct_instance_config *config, GError **error) {
  oct_cost_options options = {.kv_dtype = config->kv_dtype,
                              .moe_kernel = world->options.moe_kernel,
                              .routing_alpha = world->options.routing_alpha,
                              .routing_balanced = world->options.routing_balanced,
                              .routing_weights = world->options.routing_weights,
                              .n_routing_weights = world->options.n_routing_weights,
                              .scale = world->options.cost_scale,
                              .nccl_only = world->options.nccl_only,
                              .expert_time = world->options.expert_time,
                              .shared_beside = world->options.shared_beside,
                              .fused_norms = world->options.fused_norms,
                              .whole_norms = world->options.whole_norms,
                              .eager = config->eager};
  return oct_cost_new(config->spec, &config->parallel, config->devices, world->options.profile,
                      &options, error);
}

static sim_instance *
make_instance(sim_world *world, const oct_instance_config *config, oct_cost *cost) {
  sim_instance *in = g_new0(sim_instance, 1);
  in->world = world;
  in->cost = cost;
  in->config = *config;
  in->n_ranks = oct_parallel_world(&config->parallel);
  in->n_stages = config->parallel.pipeline;
  in->config.label = g_strdup(config->label);
  in->config.weights = NULL;
  in->config.devices = g_memdup2(config->devices, in->n_ranks * sizeof *config->devices);
  in->shadow = oct_shadow_new(&in->config, &world->shadow_options);
  in->window = oct_cost_window(config->spec);
  in->ranks = g_new0(sim_rank, in->n_ranks);
  in->stages = g_new0(sim_stage, in->n_stages);
  in->steps = g_new0(sim_step, config->depth);
  set_units(in);
  for (guint32 r = 0; r < in->n_ranks; r++)
    set_rank(in, r);
  for (guint32 s = 0; s < in->n_stages; s++)
    set_stage(in, s);
  for (guint32 i = 0; i < config->depth; i++)
    sim_step_init(&in->steps[i], in);
  for (guint32 s = 0; s < in->n_stages; s++)
    in->device_bytes = MAX(in->device_bytes, rank_weight_bytes(in, s) + rank_pool_bytes(in, s));
  return in;
}

gboolean
sim_open(oct_world *base, const oct_instance_config *config, guint32 *instance, GError **error) {
  sim_world *world = sim_world_of(base);
  if (world->dead) {
    g_set_error_literal(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "the world is lost");
    return FALSE;
  }
  if (!oct_parallel_check(config->spec, &config->parallel, error) ||
      !check_config(world, config, error))
    return FALSE;
  oct_cost *cost = make_cost(world, config, error);
  if (cost == NULL)
    return FALSE;
  sim_instance *in = make_instance(world, config, cost);
  g_ptr_array_add(world->instances, in);
  in->id = world->instances->len;
  world->n_jobs += job_count(config);
  in->open_timer.fire = start_opening;
  in->open_timer.owner = in;
  oct_timers_arm(&world->timers, &in->open_timer, world->now_ns);
  *instance = in->id;
  return TRUE;
}

/* ---------------------------------------------------------------- closing */

void
sim_instance_stop(sim_instance *in) {
  oct_timers_disarm(&in->world->timers, &in->open_timer);
  sim_forget_events(in);
  sim_steps_stop(in);
  sim_ops_stop(in);
  sim_pulls_fail(in);
}

void
sim_instance_fail(sim_instance *in, const oct_fault *fault) {
  sim_instance_stop(in);
  in->lost = TRUE;
  sim_emit(in, OCT_EVENT_FAULT)->fault = *fault;
}

void
sim_instance_free(sim_instance *in) {
  for (guint32 r = 0; r < in->n_ranks; r++) {
    drop_bundle(in, in->ranks[r].h2d);
    drop_bundle(in, in->ranks[r].d2h);
    drop_bundle(in, in->ranks[r].hbm);
    drop_bundle(in, in->ranks[r].gather);
  }
  for (guint32 s = 0; s < in->n_stages; s++) {
    for (guint b = 0; b < OCT_JOB_BUNDLES; b++)
      drop_bundle(in, in->stages[s].bundles[b]);
    drop_bundle(in, in->stages[s].send);
  }
  for (guint32 i = 0; i < in->config.depth; i++)
    g_free(in->steps[i].slices);
  oct_shadow_free(in->shadow);
  oct_cost_free(in->cost);
  g_free((char *)in->config.label);
  g_free((guint16 *)in->config.devices);
  g_free(in->ranks);
  g_free(in->stages);
  g_free(in->steps);
  g_free(in->result);
  g_free(in);
}

void
sim_close(oct_world *base, guint32 instance) {
  sim_world *world = sim_world_of(base);
  sim_instance *in = sim_instance_of(world, instance);
  if (in == NULL)
    return;
  sim_instance_stop(in);
  world->n_jobs -= job_count(&in->config);
  g_ptr_array_index(world->instances, instance - 1) = NULL;
  sim_instance_free(in);
}
