#include "tests/backends/simgrid/sim-rig.h"

#include <string.h>

#include "tests/backends/simgrid/child.h"

/* ---------------------------------------------------------------- life cycle */

void
sim_rig_init(sim_rig *rig, oct_world *world, const sim_rig_options *o) {
  g_autoptr(GError) error = NULL;
  memset(rig, 0, sizeof *rig);
  rig->world = world;
  rig->spec = oct_model_spec_load(o->model, NULL, &error);
  g_assert_no_error(error);
  for (guint i = 0; i < OCT_PROFILE_GPUS_MAX; i++)
    rig->devices[i] = (guint16)(o->first_device + i);
  guint32 slots = o->slots > 0 ? o->slots : 64, tokens = o->tokens > 0 ? o->tokens : 4096;
  rig->config = (oct_instance_config){
      .label = o->model,
      .spec = rig->spec,
      .parallel = o->parallel.tensor > 0 ? o->parallel : OCT_PARALLEL_DEFAULT,
      .devices = rig->devices,
      .kv_dtype = OCT_DTYPE_BF16,
      .block_size = 64,
      .depth = o->depth > 0 ? o->depth : 2,
      .max_slots = slots,
      .max_batched_tokens = 16384,
  };
  rig->n_groups = oct_model_groups(rig->spec, OCT_DTYPE_BF16, rig->groups);
  guint32 page = 64 * MAX(rig->config.parallel.decode_context, 1);
  rig->pages_per_slot = (tokens + page - 1) / page;
  rig->config.memory.n_groups = rig->n_groups;
  for (guint32 g = 0; g < rig->n_groups; g++) {
    gboolean state = rig->groups[g].kind == OCT_ATTENTION_KDA;
    rig->has_state |= state;
    rig->config.memory.groups[g] =
        (oct_pool_plan){.n_device = state ? slots + 8 : slots * rig->pages_per_slot + 8,
                        .n_host = o->host_pages > 0 ? o->host_pages : 64};
  }
  rig->builder = oct_step_builder_new();
}

void
sim_rig_open(sim_rig *rig) {
  g_autoptr(GError) error = NULL;
  oct_event event;
  gboolean taken = oct_world_open(rig->world, &rig->config, &rig->instance, &error);
  g_assert_no_error(error);
  g_assert_true(taken);
  do {
    g_assert_true(oct_world_next(rig->world, OCT_TIME_NEVER, &event));
    if (event.kind == OCT_EVENT_OPEN_FAILED)
      g_error("open failed: %s", event.fault->message);
  } while (event.kind != OCT_EVENT_OPENED || event.instance != rig->instance);
  rig->capabilities = *event.capabilities;
  rig->now = event.time_ns;
}

void
sim_rig_close(sim_rig *rig) {
  oct_world_close(rig->world, rig->instance);
  rig->instance = 0;
}

void
sim_rig_clear(sim_rig *rig) {
  oct_step_builder_free(rig->builder);
  oct_model_spec_free(rig->spec);
}

/* ---------------------------------------------------------------- steps */

void
sim_rig_begin(sim_rig *rig) {
  oct_step_begin(rig->builder, ++rig->number, (guint16)rig->config.parallel.data);
}

guint32
sim_rig_page(const sim_rig *rig, guint32 slot, guint32 i) {
  return slot * rig->pages_per_slot + i;
}

/* Slots are spread over the domains in equal runs. */
static guint16
domain_of(const sim_rig *rig, guint32 slot) {
  return (guint16)(slot * rig->config.parallel.data / rig->config.max_slots);
}

void
sim_rig_slot(sim_rig *rig, guint32 slot, guint32 prompt, guint32 output) {
  oct_slot_open *open = oct_step_add_open(rig->builder);
  open->slot = slot;
  open->domain = domain_of(rig, slot);
  open->key = 1000 + slot;
  open->prompt_tokens = prompt;
  open->oracle_tokens = output;
  open->eos_token = 1;
  rig->position[slot] = 0;
  for (guint32 g = 0; g < rig->n_groups; g++) {
    gboolean state = rig->groups[g].kind == OCT_ATTENTION_KDA;
    for (guint32 i = 0; i < (state ? 1 : rig->pages_per_slot); i++) {
      oct_page_change *change = oct_step_add_change(rig->builder);
      change->slot = slot;
      change->group = (guint16)g;
      change->op = OCT_PAGE_SET;
      change->index = i;
      change->page = state ? slot : sim_rig_page(rig, slot, i);
    }
  }
}

static oct_slice *
add_slice(sim_rig *rig, guint32 slot, guint32 n, gboolean sample) {
  oct_slice *slice = oct_step_add_slice(rig->builder);
  slice->slot = slot;
  slice->domain = domain_of(rig, slot);
  slice->source = OCT_SOURCE_ABSENT;
  slice->sample = sample ? OCT_SAMPLE_LAST : OCT_SAMPLE_NONE;
  slice->n_tokens = n;
  slice->position = rig->position[slot];
  slice->state_position = rig->has_state ? slice->position : OCT_NO_INDEX;
  rig->position[slot] += n;
  return slice;
}

oct_slice *
sim_rig_prefill(sim_rig *rig, guint32 slot, guint32 n, gboolean last) {
  oct_slice *slice = add_slice(rig, slot, n, last);
  slice->flags = OCT_SLICE_PREFILL;
  return slice;
}

oct_slice *
sim_rig_decode(sim_rig *rig, guint32 slot) {
  return add_slice(rig, slot, 1, TRUE);
}

oct_copy *
sim_rig_copy(sim_rig *rig, oct_copy_order order, guint32 group, oct_tier from, oct_tier to,
             guint32 from_index, guint32 to_index) {
  oct_copy *copy = oct_step_add_copy(rig->builder);
  copy->kind = rig->groups[group].kind == OCT_ATTENTION_KDA ? OCT_COPY_STATE : OCT_COPY_PAGE;
  copy->order = (guint8)order;
  copy->from_tier = (guint8)from;
  copy->to_tier = (guint8)to;
  copy->group = (guint16)group;
  copy->from = from_index;
  copy->to = to_index;
  return copy;
}

void
sim_rig_submit(sim_rig *rig) {
  g_autoptr(GError) error = NULL;
  oct_submit answer =
      oct_world_submit(rig->world, rig->instance, oct_step_end(rig->builder), &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
}

sim_rig_done
sim_rig_wait(sim_rig *rig, guint64 number) {
  oct_event event;
  do {
    g_assert_true(oct_world_next(rig->world, OCT_TIME_NEVER, &event));
    if (event.kind == OCT_EVENT_FAULT)
      g_error("fault: %s", event.fault->message);
  } while (event.kind != OCT_EVENT_STEP_DONE || event.instance != rig->instance ||
           event.number != number);
  rig->now = event.time_ns;
  sim_rig_done done = {event.result->start_ns, event.result->end_ns, event.time_ns, {0}};
  memcpy(done.part_ns, event.result->part_ns, sizeof done.part_ns);
  return done;
}

oct_time
sim_rig_wait_copy(sim_rig *rig, guint64 ticket) {
  oct_event event;
  do {
    g_assert_true(oct_world_next(rig->world, OCT_TIME_NEVER, &event));
  } while (event.kind != OCT_EVENT_COPY_DONE || event.number != ticket);
  return rig->now = event.time_ns;
}

void
sim_rig_sleep(sim_rig *rig, oct_time until) {
  oct_event event;
  do {
    g_assert_true(oct_world_next(rig->world, until, &event));
  } while (event.kind != OCT_EVENT_TIMER);
  rig->now = event.time_ns;
}

void
sim_rig_shape(const oct_step *step, const guint32 *positions, guint32 window,
              oct_step_shape *shape) {
  const oct_slice *slices = oct_step_slices(step);
  memset(shape, 0, sizeof *shape);
  shape->n_domains = step->n_domains;
  for (guint32 i = 0; i < step->n_slices; i++)
    oct_domain_shape_add(&shape->domains[slices[i].domain], &slices[i], positions[i], window);
}

/* ---------------------------------------------------------------- accounting */

void
sim_rig_check_usage(oct_world *world) {
  for (guint i = 0; i < oct_simgrid_resources(world); i++) {
    oct_simgrid_use use;
    oct_simgrid_usage(world, i, &use);
    g_assert_cmpfloat(use.utilisation, >=, 0);
    g_assert_cmpfloat(use.utilisation, <=, 1 + 1e-9);
  }
}

double
sim_rig_moved(oct_world *world, const char *resource) {
  oct_simgrid_use use;
  gint index = oct_platform_find(oct_simgrid_platform(world), resource);
  g_assert_cmpint(index, >=, 0);
  oct_simgrid_usage(world, (guint)index, &use);
  g_assert_cmpstr(use.name, ==, resource);
  return use.moved;
}

/* ---------------------------------------------------------------- worlds */

typedef struct call {
  const sim_rig_world *options;
  sim_rig_fn body;
  gpointer out;
} call;

static oct_profile *profile;

const oct_profile *
sim_rig_profile(void) {
  return profile;
}

static int
in_world(oct_world *world, void *arg) {
  const call *c = arg;
  c->body(world, c->out);
  return 5;
}

static void
in_child(gpointer arg, gpointer out) {
  call *c = arg;
  g_autoptr(GError) error = NULL;
  c->out = out;
  profile = oct_profile_load(c->options->profile, NULL, NULL, &error);
  g_assert_no_error(error);
  if (c->options->step_host_ns > 0)
    profile->engine.step_host_ns = c->options->step_host_ns;
  if (c->options->heat.time_constant_s > 0)
    profile->heat = c->options->heat;
  oct_simgrid_options options = OCT_SIMGRID_OPTIONS_DEFAULT;
  options.profile = profile;
  options.seed = 1;
  options.exact = c->options->exact;
  options.load_weights = c->options->load_weights;
  options.host_socket = c->options->host_socket - 1;
  options.expert_miss = c->options->expert_miss;
  oct_world *world = oct_simgrid_world_new(&options, &error);
  g_assert_no_error(error);
  oct_simgrid_own_profile(world, profile);
  g_assert_cmpint(oct_world_run(world, in_world, c), ==, 5);
  oct_world_free(world);
}

void
sim_rig_run(const sim_rig_world *options, sim_rig_fn body, gpointer out, gsize out_size) {
  call c = {options, body, NULL};
  child_run(in_child, &c, out, out_size);
}
