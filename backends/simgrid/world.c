/* The simulated world: its table, its loop, scenario and accounting (simgrid.h, internal.h).
 *
 * Time. The world's clock is an int64 of nanoseconds. next() takes whatever comes first: a timer of
 * its own heap, the end of an activity in the solver, or `until`. While nothing is in the solver,
 * SimGrid's clock stands still and is caught up with before the next activity starts. While
 * something is, both clocks move together: the solver is never asked to go beyond the next timer.
 */
#include "backends/simgrid/internal.h"

#include <string.h>

#include "engine/base/assert.h"

static const oct_world_ops simgrid_ops;

/* For the calls that only a world of this backend takes. */
static const sim_world *
const_world(const oct_world *world) {
  oct_assert(world->ops == &simgrid_ops);
  return (const sim_world *)world;
}

static sim_world *
own_world(oct_world *world) {
  oct_assert(world->ops == &simgrid_ops);
  return sim_world_of(world);
}

/* ---------------------------------------------------------------- events */

sim_event *
sim_emit(sim_instance *instance, oct_event_kind kind) {
  sim_world *w = instance->world;
  if (w->events_n == w->events_room) {
    guint32 room = MAX(2 * w->events_room, 64);
    sim_event *events = g_new0(sim_event, room);
    for (guint32 i = 0; i < w->events_n; i++)
      events[i] = w->events[(w->events_first + i) % w->events_room];
    g_free(w->events);
    w->events = events;
    w->events_first = 0;
    w->events_room = room;
  }
  sim_event *event = &w->events[(w->events_first + w->events_n++) % w->events_room];
  memset(event, 0, sizeof *event);
  event->kind = kind;
  event->instance = instance;
  event->instance_id = instance->id;
  return event;
}

void
sim_forget_events(sim_instance *instance) {
  sim_world *w = instance->world;
  guint32 kept = 0;
  for (guint32 i = 0; i < w->events_n; i++) {
    sim_event *event = &w->events[(w->events_first + i) % w->events_room];
    if (event->instance != instance)
      w->events[(w->events_first + kept++) % w->events_room] = *event;
  }
  w->events_n = kept;
}

sim_instance *
sim_instance_of(const sim_world *world, guint32 id) {
  if (id < 1 || id > world->instances->len)
    return NULL;
  return g_ptr_array_index(world->instances, id - 1);
}

sim_instance *
sim_usable(const sim_world *world, guint32 id, GError **error) {
  sim_instance *instance = sim_instance_of(world, id);
  const char *why = NULL;
  if (world->dead)
    why = "in a world that is lost";
  else if (instance == NULL)
    why = "closed";
  else if (instance->lost)
    why = "lost";
  else if (!instance->opened)
    why = "not open yet";
  if (why == NULL)
    return instance;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "instance %u is %s", id, why);
  return NULL;
}

void
sim_lose(sim_instance *instance, const oct_fault *fault) {
  sim_world *w = instance->world;
  for (guint i = 0; i < w->instances->len; i++) {
    sim_instance *other = g_ptr_array_index(w->instances, i);
    if (other != NULL)
      sim_instance_stop(other);
  }
  w->dead = TRUE;
  sim_emit(instance, OCT_EVENT_FAULT)->fault = *fault;
}

/* Hands out the first event that waits. */
static void
fetch(sim_world *w, oct_event *out) {
  sim_event *event = &w->events[w->events_first];
  w->events_first = (w->events_first + 1) % w->events_room;
  w->events_n--;
  w->fault = event->fault;
  *out = (oct_event){.kind = event->kind,
                     .instance = event->instance_id,
                     .time_ns = w->now_ns,
                     .number = event->number,
                     .slice = event->slice,
                     .failed = event->failed,
                     .fraction = event->fraction,
                     .phase = event->phase};
  if (event->kind == OCT_EVENT_STEP_DONE)
    out->result = sim_step_fetched(event->step);
  else if (event->kind == OCT_EVENT_OPENED)
    out->capabilities = &event->instance->capabilities;
  else if (event->kind == OCT_EVENT_FAULT || event->kind == OCT_EVENT_OPEN_FAILED)
    out->fault = &w->fault;
  if (event->kind == OCT_EVENT_OPEN_FAILED) /* the instance is gone */
    sim_close(&w->base, event->instance_id);
}

/* ---------------------------------------------------------------- the loop */

static void
fire_next(sim_world *w) {
  oct_timer *timer = oct_timers_take(&w->timers);
  oct_assert(timer->at_ns >= w->now_ns);
  w->now_ns = timer->at_ns;
  timer->fire(timer);
}

/* Moves time to the next thing that happens, at most to `until`. FALSE at `until`. */
static gboolean
advance(sim_world *w, oct_time until) {
  oct_time next = oct_timers_next(&w->timers);
  if (oct_solver_live(w->solver) == 0) {
    if (next > until || next == OCT_TIME_NEVER)
      return FALSE;
    fire_next(w);
    return TRUE;
  }
  oct_time limit = MIN(next, until), now;
  oct_job *job = oct_solver_wait(w->solver, limit, &now);
  if (job == NULL && next > until) /* what ends at `until` too comes before its TIMER */
    job = oct_solver_wait(w->solver, limit, &now);
  w->now_ns = MAX(w->now_ns, now);
  if (job != NULL)
    oct_flows_group_ended(w->flows, job);
  else if (next <= until)
    fire_next(w);
  else
    return FALSE;
  return TRUE;
}

static gboolean
next(oct_world *world, oct_time until_ns, oct_event *event) {
  sim_world *w = sim_world_of(world);
  if (g_atomic_int_compare_and_exchange(&w->woken, 1, 0)) {
    *event = (oct_event){.kind = OCT_EVENT_WAKE, .time_ns = w->now_ns};
    return TRUE;
  }
  oct_time until = MAX(until_ns, w->now_ns);
  while (w->events_n == 0) {
    if (advance(w, until))
      continue;
    if (until == OCT_TIME_NEVER)
      return FALSE;
    w->now_ns = until;
    *event = (oct_event){.kind = OCT_EVENT_TIMER, .time_ns = until};
    return TRUE;
  }
  fetch(w, event);
  return TRUE;
}

static void
wake(oct_world *world) {
  g_atomic_int_set(&sim_world_of(world)->woken, 1);
}

static int
run_inside(void *arg) {
  sim_world *w = arg;
  oct_flows_resume(w->flows);
  int value = w->run_fn(&w->base, w->run_arg);
  oct_flows_park(w->flows);
  return value;
}

static int
run(oct_world *world, oct_world_fn fn, void *arg) {
  sim_world *w = sim_world_of(world);
  w->run_fn = fn;
  w->run_arg = arg;
  return oct_solver_run(w->solver, run_inside, w);
}

/* ---------------------------------------------------------------- life cycle */

static void
free_list(gpointer first, gsize next_offset) {
  while (first != NULL) {
    gpointer after = G_STRUCT_MEMBER(gpointer, first, next_offset);
    g_free(first);
    first = after;
  }
}

static void
free_world(oct_world *world) {
  sim_world *w = sim_world_of(world);
  for (guint i = 0; i < w->instances->len; i++)
    oct_assert(g_ptr_array_index(w->instances, i) == NULL);
  for (guint i = 0; i < w->transfers->len; i++) {
    sim_transfer *transfer = g_ptr_array_index(w->transfers, i);
    oct_flows_cancel(w->flows, &transfer->job);
  }
  oct_flows_free(w->flows);
  oct_solver_free(w->solver);
  oct_timers_clear(&w->timers);
  oct_platform_free(w->platform);
  g_ptr_array_unref(w->instances);
  g_ptr_array_unref(w->transfers);
  g_ptr_array_unref(w->scenario);
  for (sim_op *op = w->free_ops; op != NULL; op = op->next)
    g_free(op->copies);
  free_list(w->free_ops, G_STRUCT_OFFSET(sim_op, next));
  free_list(w->free_parts, G_STRUCT_OFFSET(sim_part, next));
  g_free(w->queues);
  g_free(w->peer_links);
  g_free(w->lost);
  g_free(w->isolated);
  g_free(w->events);
  oct_profile_free(w->owned_profile);
  g_free(w);
}

static const oct_world_ops simgrid_ops = {
    .name = "simgrid",
    .abi = OCT_BACKEND_ABI,
    .clock = OCT_CLOCK_VIRTUAL,
    .free = free_world,
    .run = run,
    .wake = wake,
    .open = sim_open,
    .close = sim_close,
    .submit = sim_submit,
    .copy = sim_copy,
    .pull = sim_pull,
    .mask = sim_mask,
    .next = next,
    .forward = sim_forward,
};

static void
set_shadow_options(sim_world *w) {
  if (w->options.shadow != NULL)
    w->shadow_options = *w->options.shadow;
  else
    oct_shadow_options_default(&w->shadow_options);
  w->shadow_options.seed = w->options.seed;
  /* The shadow draws expert n u^(1 + skew) of n, which is popularity ~ rank^-alpha with
   * alpha = skew / (1 + skew); it has no alpha of 1 and above. */
  double alpha = MIN(w->options.routing_alpha, 0.95);
  w->shadow_options.expert_skew = alpha / (1 - alpha);
}

oct_world *
oct_simgrid_world_new(const oct_simgrid_options *options, GError **error) {
  g_autoptr(oct_platform) platform = oct_platform_new(options->profile, error);
  if (platform == NULL)
    return NULL;
  if (options->host_socket >= (gint)oct_platform_sockets(platform)) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "host buffers on socket %d: the node has %u", options->host_socket,
                oct_platform_sockets(platform));
    return NULL;
  }
  oct_solver *solver = oct_solver_new(platform, SIM_LANES, error);
  if (solver == NULL)
    return NULL;
  sim_world *w = g_new0(sim_world, 1);
  oct_world_init(&w->base, &simgrid_ops);
  w->options = *options;
  set_shadow_options(w);
  w->platform = g_steal_pointer(&platform);
  w->solver = solver;
  w->flows = oct_flows_new(w->platform, solver, &w->timers, &w->now_ns, options->exact);
  w->instances = g_ptr_array_new();
  w->scenario = g_ptr_array_new_with_free_func(g_free);
  w->transfers = g_ptr_array_new_with_free_func(g_free);
  w->lost = g_new0(gboolean, oct_platform_gpus(w->platform));
  w->isolated = g_new0(gboolean, oct_platform_gpus(w->platform));
  sim_queues_init(w);
  return &w->base;
}

void
oct_simgrid_own_profile(oct_world *world, oct_profile *profile) {
  sim_world *w = own_world(world);
  oct_assert(w->owned_profile == NULL);
  w->owned_profile = profile;
}

/* ---------------------------------------------------------------- scenario */

/* A change that comes at its time. */
typedef struct change {
  oct_timer timer;
  sim_world *world;
  guint resource; /* scale */
  double factor;
  guint gpu; /* lose */
} change;

static change *
plan(sim_world *w, oct_time at_ns, oct_timer_fn fire) {
  change *c = g_new0(change, 1);
  c->world = w;
  c->timer.owner = c;
  c->timer.fire = fire;
  g_ptr_array_add(w->scenario, c);
  oct_timers_arm(&w->timers, &c->timer, MAX(at_ns, w->now_ns));
  return c;
}

static void
scale_now(oct_timer *timer) {
  change *c = timer->owner;
  oct_flows_scale(c->world->flows, c->resource, c->factor);
}

gboolean
oct_simgrid_scale(oct_world *world, const char *resource, double factor, oct_time at_ns,
                  GError **error) {
  sim_world *w = own_world(world);
  gint index = oct_platform_find(w->platform, resource);
  if (index < 0 || !(factor > 0 && factor <= 1)) {
    if (index < 0)
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                  "the node has no resource \"%s\"", resource);
    else
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                  "%s: factor %g is not in (0, 1]", resource, factor);
    return FALSE;
  }
  change *c = plan(w, at_ns, scale_now);
  c->resource = (guint)index;
  c->factor = factor;
  return TRUE;
}

static gboolean
uses_gpu(const sim_instance *in, guint gpu) {
  for (guint32 r = 0; r < in->n_ranks; r++) {
    if (in->ranks[r].device == gpu)
      return TRUE;
  }
  return FALSE;
}

/* Instances on the GPU, of more than `ranks` ranks, are lost for this reason. */
static void
fail_on_gpu(sim_world *w, guint gpu, guint32 ranks, const char *why) {
  oct_fault fault = {.severity = OCT_SEVERITY_INSTANCE, .device = gpu};
  g_snprintf(fault.message, sizeof fault.message, "GPU %u %s", gpu, why);
  for (guint i = 0; i < w->instances->len; i++) {
    sim_instance *in = g_ptr_array_index(w->instances, i);
    if (in == NULL || in->lost || in->n_ranks <= ranks || !uses_gpu(in, gpu))
      continue;
    gboolean opened = in->opened;
    sim_instance_fail(in, &fault);
    if (!opened) /* a FAULT concerns what is open */
      w->events[(w->events_first + w->events_n - 1) % w->events_room].kind = OCT_EVENT_OPEN_FAILED;
  }
}

static void
lose_now(oct_timer *timer) {
  change *c = timer->owner;
  c->world->lost[c->gpu] = TRUE;
  fail_on_gpu(c->world, c->gpu, 0, "is lost");
}

static void
isolate_now(oct_timer *timer) {
  change *c = timer->owner;
  c->world->isolated[c->gpu] = TRUE;
  fail_on_gpu(c->world, c->gpu, 1, "reaches no other GPU");
}

static void
restore_now(oct_timer *timer) {
  change *c = timer->owner;
  c->world->lost[c->gpu] = c->world->isolated[c->gpu] = FALSE;
}

static gboolean
plan_gpu(oct_world *world, guint gpu, oct_time at_ns, oct_timer_fn fire, GError **error) {
  sim_world *w = own_world(world);
  if (gpu >= oct_platform_gpus(w->platform)) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, "GPU %u: the node has %u", gpu,
                oct_platform_gpus(w->platform));
    return FALSE;
  }
  plan(w, at_ns, fire)->gpu = gpu;
  return TRUE;
}

gboolean
oct_simgrid_lose(oct_world *world, guint gpu, oct_time at_ns, GError **error) {
  return plan_gpu(world, gpu, at_ns, lose_now, error);
}

gboolean
oct_simgrid_isolate(oct_world *world, guint gpu, oct_time at_ns, GError **error) {
  return plan_gpu(world, gpu, at_ns, isolate_now, error);
}

gboolean
oct_simgrid_restore(oct_world *world, guint gpu, oct_time at_ns, GError **error) {
  return plan_gpu(world, gpu, at_ns, restore_now, error);
}

static void
transfer_ended(oct_job *job) {
  sim_transfer *transfer = job->owner;
  transfer->took_ns = transfer->world->now_ns - job->start_ns;
  transfer->world->n_transferring--;
}

static void
transfer_now(oct_timer *timer) {
  sim_transfer *transfer = timer->owner;
  sim_world *w = transfer->world;
  if (w->n_transferring == SIM_TRANSFERS_MAX) { /* waits for another to end */
    oct_timers_arm(&w->timers, timer, w->now_ns + 1000000);
    return;
  }
  const oct_route *route = oct_platform_route(w->platform, transfer->route);
  w->n_transferring++;
  transfer->job.n_groups = 1;
  transfer->job.groups[0] =
      (oct_job_group){.ns = sim_transfer_ns(transfer->bytes, route->bytes_per_s, route->latency_ns),
                      .amount = {transfer->bytes, transfer->bytes}};
  oct_flows_start(w->flows, &transfer->job);
}

/* The route between two places, or -1; *memory is the route of the HBM that it does not include. */
static gint
find_route(const oct_platform *p, oct_simgrid_place from, oct_simgrid_place to) {
  guint gpus = oct_platform_gpus(p), sockets = oct_platform_sockets(p);
  gboolean from_gpu = from.kind == OCT_PLACE_GPU, to_gpu = to.kind == OCT_PLACE_GPU;
  if (from.index >= (from_gpu ? gpus : sockets) || to.index >= (to_gpu ? gpus : sockets) ||
      (from_gpu && to_gpu && from.index == to.index) || (!from_gpu && !to_gpu))
    return -1;
  if (from_gpu && to_gpu)
    return (gint)oct_platform_route_peer(p, from.index, to.index);
  return (gint)(from_gpu ? oct_platform_route_d2h(p, from.index, to.index)
                         : oct_platform_route_h2d(p, from.index, to.index));
}

guint
oct_simgrid_send(oct_world *world, oct_simgrid_place from, oct_simgrid_place to, double bytes,
                 oct_time at_ns, GError **error) {
  sim_world *w = own_world(world);
  gint route = find_route(w->platform, from, to);
  if (route < 0 || !(bytes >= 0)) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "no transfer of %g bytes from %s %u to %s %u", bytes,
                from.kind == OCT_PLACE_GPU ? "GPU" : "memory", from.index,
                to.kind == OCT_PLACE_GPU ? "GPU" : "memory", to.index);
    return 0;
  }
  sim_transfer *transfer = g_new0(sim_transfer, 1);
  guint16 routes[2] = {(guint16)route};
  transfer->world = w;
  transfer->took_ns = -1;
  transfer->route = (guint16)route;
  transfer->bytes = bytes;
  transfer->job.owner = transfer;
  transfer->job.done = transfer_ended;
  transfer->job.bundles[0] = oct_flows_bundle(w->flows, routes, 1);
  if (from.kind == OCT_PLACE_GPU &&
      to.kind == OCT_PLACE_GPU) { /* reads one HBM, writes the other */
    routes[0] = (guint16)oct_platform_route_hbm(w->platform, from.index);
    routes[1] = (guint16)oct_platform_route_hbm(w->platform, to.index);
    transfer->job.bundles[1] = oct_flows_bundle(w->flows, routes, 2);
  }
  transfer->timer.owner = transfer;
  transfer->timer.fire = transfer_now;
  g_ptr_array_add(w->transfers, transfer);
  oct_timers_arm(&w->timers, &transfer->timer, MAX(at_ns, w->now_ns));
  return w->transfers->len;
}

gint64
oct_simgrid_sent(const oct_world *world, guint transfer) {
  const sim_world *w = const_world(world);
  oct_assert(transfer >= 1 && transfer <= w->transfers->len);
  return ((const sim_transfer *)g_ptr_array_index(w->transfers, transfer - 1))->took_ns;
}

/* ---------------------------------------------------------------- accounting */

guint
oct_simgrid_resources(const oct_world *world) {
  return oct_platform_resource_count(const_world(world)->platform);
}

void
oct_simgrid_usage(const oct_world *world, guint resource, oct_simgrid_use *use) {
  const sim_world *w = const_world(world);
  const oct_resource *r = oct_platform_resource(w->platform, resource);
  oct_flows_use counted;
  oct_flows_usage(w->flows, resource, &counted);
  *use = (oct_simgrid_use){.name = r->name,
                           .kind = r->kind,
                           .index = r->index,
                           .capacity_per_s = r->per_s,
                           .moved = counted.moved,
                           .busy_s = counted.moved / r->per_s,
                           .utilisation = counted.could > 0 ? counted.moved / counted.could : 0,
                           .delayed_ns = counted.delayed_ns};
}

void
oct_simgrid_parts(const oct_world *world, guint32 instance, gint64 part_ns[OCT_PART_COUNT]) {
  const sim_instance *in = sim_instance_of(const_world(world), instance);
  oct_assert(in != NULL);
  memcpy(part_ns, in->part_ns, sizeof in->part_ns);
}

guint
oct_simgrid_binding_part(const oct_world *world, guint32 instance) {
  gint64 part_ns[OCT_PART_COUNT];
  guint most = 0;
  oct_simgrid_parts(world, instance, part_ns);
  for (guint p = 1; p < OCT_PART_COUNT; p++) {
    if (part_ns[p] > part_ns[most])
      most = p;
  }
  return most;
}

guint64
oct_simgrid_activities(const oct_world *world) {
  return oct_solver_started(const_world(world)->solver);
}

const oct_platform *
oct_simgrid_platform(const oct_world *world) {
  return const_world(world)->platform;
}
