/* Copies: what they move, the queues they stand in, and their order.
 *
 * An *op* is what was asked for at once: the BESIDE copies of a ticket, or a step's BEFORE or AFTER
 * copies on one stage. It is cut into *parts*, one per rank and direction, each one transfer of all
 * bytes together: page tables are gathered by one kernel or a batched copy, so the latency is paid
 * once. A GPU has one queue per direction (H2D, D2H, D2D, from other GPUs), in which one part at a
 * time is in flight.
 *
 * Groups that are replicated over ranks go to the host once: each rank writes its share, and when
 * they come back each rank reads its share and gathers the rest over NVLink, where it joins all
 * ranks.
 *
 * Order. A BESIDE op waits for the last unfinished step that uses its pages (the shadow knows), for
 * the AFTER copies outstanding when it was submitted (of the peer too when it pulls), and for an
 * earlier BESIDE op that writes what it reads. A BEFORE op from the host waits for such steps, and
 * for earlier AFTER copies to the host. The other BEFORE ops and the AFTER ops begin when their
 * stage says so (step.c).
 */
#include "backends/simgrid/internal.h"

#include <string.h>

#include "engine/base/assert.h"

gint64
sim_transfer_ns(double bytes, double bytes_per_s, gint64 latency_ns) {
  return latency_ns + oct_cost_ns(bytes / bytes_per_s);
}

/* ---------------------------------------------------------------- queues */

static void part_ended(oct_job *job);

void
sim_queues_init(sim_world *world) {
  guint gpus = oct_platform_gpus(world->platform), n = gpus * SIM_DIRECTIONS;
  world->queues = g_new0(sim_queue, n);
  world->peer_links = g_new0(sim_peer_link, gpus * gpus);
  for (guint i = 0; i < n; i++) {
    world->queues[i].world = world;
    world->queues[i].direction = (sim_direction)(i % SIM_DIRECTIONS);
    world->queues[i].job.done = part_ended;
    world->queues[i].job.owner = &world->queues[i];
  }
}

static sim_queue *
queue_of(sim_world *world, guint device, sim_direction direction) {
  return &world->queues[device * SIM_DIRECTIONS + direction];
}

static double
route_rate(const sim_world *world, const oct_bundle *bundle, gint64 *latency_ns) {
  const oct_route *route = oct_platform_route(world->platform, bundle->routes[0]);
  *latency_ns = route->latency_ns;
  return route->bytes_per_s;
}

/* A copy inside a GPU reads and writes its memory; kernels that copy reach a part of its peak. */
static void
fill_d2d(sim_queue *queue, const sim_part *part, const sim_rank *rank) {
  const oct_profile *profile = queue->world->options.profile;
  double bytes = 2 * part->full_bytes;
  gint64 ns = sim_transfer_ns(bytes, profile->gpu.hbm_bytes_per_s * profile->efficiency.hbm_copy,
                              oct_cost_ns(profile->efficiency.kernel_floor_s));
  queue->job.groups[0] = (oct_job_group){.ns = ns, .amount = {bytes}};
  queue->job.bundles[0] = rank->hbm;
}

static void
fill_job(sim_queue *queue, const sim_part *part) {
  const sim_rank *rank = &part->op->instance->ranks[part->rank];
  memset(queue->job.bundles, 0, sizeof queue->job.bundles);
  queue->job.n_groups = 1;
  if (queue->direction == SIM_PEER) {
    sim_pull_fill_job(queue, part);
    return;
  }
  if (queue->direction == SIM_D2D) {
    fill_d2d(queue, part, rank);
    return;
  }
  oct_bundle *link = queue->direction == SIM_H2D ? rank->h2d : rank->d2h;
  gint64 latency_ns;
  double rate = route_rate(queue->world, link, &latency_ns);
  gint64 ns = sim_transfer_ns(part->link_bytes, rate, latency_ns);
  double gathered = part->full_bytes - part->link_bytes;
  queue->job.bundles[0] = link;
  if (gathered > 0 && rank->gather != NULL) {
    gint64 gather_latency_ns;
    double gather_rate = route_rate(queue->world, rank->gather, &gather_latency_ns);
    ns = MAX(ns, sim_transfer_ns(gathered, gather_rate, latency_ns));
    queue->job.bundles[1] = rank->gather;
    queue->job.bundles[2] = rank->hbm;
  }
  queue->job.groups[0] =
      (oct_job_group){.ns = ns, .amount = {part->link_bytes, gathered, gathered}};
}

static void
start_first(sim_queue *queue) {
  if (queue->first == NULL || queue->job.state != OCT_JOB_IDLE)
    return;
  fill_job(queue, queue->first);
  oct_flows_start(queue->world->flows, &queue->job);
}

static void
free_part(sim_world *world, sim_part *part) {
  part->next = world->free_parts;
  world->free_parts = part;
}

/* ---------------------------------------------------------------- ops */

sim_op *
sim_op_new(sim_instance *instance, sim_op_kind kind) {
  sim_world *world = instance->world;
  sim_op *op = world->free_ops;
  if (op == NULL)
    op = g_new0(sim_op, 1);
  else
    world->free_ops = op->next;
  oct_copy *copies = op->copies;
  guint32 room = op->copies_room;
  *op = (sim_op){.kind = kind,
                 .instance = instance,
                 .serial = ++world->op_serial,
                 .copies = copies,
                 .copies_room = room};
  sim_op **last = &instance->ops;
  while (*last != NULL)
    last = &(*last)->next;
  *last = op;
  return op;
}

void
sim_op_free(sim_op *op) {
  sim_world *world = op->instance->world;
  world->n_pulls -= op->peer != NULL;
  sim_op **at = &op->instance->ops;
  while (*at != op)
    at = &(*at)->next;
  *at = op->next;
  while (op->parts != NULL) {
    sim_part *part = op->parts;
    op->parts = part->next;
    free_part(world, part);
  }
  op->next = world->free_ops;
  world->free_ops = op;
}

/* The queue of a part is told by its rank's device and the direction, kept in a list per op until
 * the op is queued. Parts of one rank, direction and source are one transfer. */
static void
add_part(sim_op *op, guint32 rank, sim_direction direction, guint16 source, double link_bytes,
         double full_bytes) {
  sim_world *world = op->instance->world;
  guint32 key = rank * SIM_DIRECTIONS + direction;
  sim_part **at = &op->parts;
  while (*at != NULL && ((*at)->rank < key || ((*at)->rank == key && (*at)->source < source)))
    at = &(*at)->next;
  if (*at == NULL || (*at)->rank != key || (*at)->source != source) {
    sim_part *part = world->free_parts;
    if (part == NULL)
      part = g_new0(sim_part, 1);
    else
      world->free_parts = part->next;
    *part = (sim_part){.next = *at, .op = op, .rank = key, .source = source};
    *at = part;
    op->n_left++;
    op->writes_host |= direction == SIM_D2H;
  }
  (*at)->link_bytes += link_bytes;
  (*at)->full_bytes += full_bytes;
}

void
sim_op_add(sim_op *op, guint32 rank, sim_direction direction, double link_bytes,
           double full_bytes) {
  add_part(op, rank, direction, 0, link_bytes, full_bytes);
}

void
sim_op_add_from(sim_op *op, guint32 rank, guint16 source, double bytes) {
  add_part(op, rank, SIM_PEER, source, 0, bytes);
}

static void
op_ended(sim_op *op) {
  sim_instance *instance = op->instance;
  switch (op->kind) {
  case SIM_OP_BESIDE:
    if (op->peer != NULL)
      oct_shadow_pull_end(instance->shadow, op->peer->shadow, op->peer_domain, op->copies,
                          op->n_copies);
    else
      oct_shadow_copy_end(instance->shadow, op->copies, op->n_copies, FALSE);
    sim_emit(instance, OCT_EVENT_COPY_DONE)->number = op->ticket;
    sim_op_free(op);
    sim_ops_try(instance);
    return;
  case SIM_OP_BEFORE:
    sim_step_before_ended(op);
    break;
  case SIM_OP_AFTER: {
    sim_stage *stage = &instance->stages[op->stage];
    oct_assert(stage->after == op);
    stage->after = NULL;
    sim_op_free(op);
    sim_ops_try(instance);
    sim_pulls_try(instance);
    sim_stage_try(stage);
    return;
  }
  case SIM_OP_WEIGHTS:
    sim_instance_opened(instance);
    break;
  default:
    oct_assert(FALSE);
  }
  sim_op_free(op);
}

void
sim_op_queue(sim_op *op) {
  sim_world *world = op->instance->world;
  oct_assert(!op->queued);
  op->queued = TRUE;
  if (op->parts == NULL) {
    op_ended(op);
    return;
  }
  while (op->parts != NULL) {
    sim_part *part = op->parts;
    op->parts = part->next;
    sim_direction direction = (sim_direction)(part->rank % SIM_DIRECTIONS);
    part->rank /= SIM_DIRECTIONS;
    part->next = NULL;
    sim_queue *queue = queue_of(world, op->instance->ranks[part->rank].device, direction);
    if (queue->first == NULL)
      queue->first = part;
    else
      queue->last->next = part;
    queue->last = part;
    start_first(queue);
  }
}

static void
part_ended(oct_job *job) {
  sim_queue *queue = job->owner;
  sim_part *part = queue->first;
  sim_op *op = part->op;
  queue->first = part->next;
  free_part(queue->world, part);
  start_first(queue);
  if (--op->n_left == 0)
    op_ended(op);
}

/* ---------------------------------------------------------------- what a copy moves */

static void
add_unit(sim_op *op, const oct_copy *copy, guint32 stage) {
  const sim_instance *instance = op->instance;
  const oct_parallel *p = &instance->config.parallel;
  double full = instance->unit_bytes[copy->group][stage];
  double link = instance->link_bytes[copy->group][stage];
  if (!(full > 0))
    return; /* the stage has no layer of this group */
  for (guint32 t = 0; t < p->tensor; t++) {
    guint32 rank = oct_cost_rank(p, stage, copy->domain, t);
    if (copy->from_tier == OCT_TIER_DEVICE && copy->to_tier == OCT_TIER_DEVICE)
      sim_op_add(op, rank, SIM_D2D, 0, full);
    else if (copy->to_tier == OCT_TIER_HOST)
      sim_op_add(op, rank, SIM_D2H, link, link);
    else
      sim_op_add(op, rank, SIM_H2D, instance->ranks[rank].gather != NULL ? link : full, full);
  }
}

static guint32
layer_stage(const sim_instance *instance, guint32 layer) {
  guint32 first, count;
  for (guint32 s = 0; s + 1 < instance->n_stages; s++) {
    oct_parallel_stage(instance->config.spec, &instance->config.parallel, s, &first, &count);
    if (layer < first + count)
      return s;
  }
  return instance->n_stages - 1;
}

static void
add_expert(sim_op *op, const oct_copy *copy, guint32 stage) {
  const sim_instance *instance = op->instance;
  const oct_parallel *p = &instance->config.parallel;
  const oct_model_spec *spec = instance->config.spec;
  double bytes = (double)oct_model_expert(spec, copy->group).bytes;
  guint32 n = p->tensor * p->data, first = oct_cost_rank(p, stage, 0, 0);
  if (p->expert_parallel) {
    guint32 experts = spec->ffn[spec->layers[copy->group].ffn].n_experts;
    sim_op_add(op, first + (guint32)((guint64)copy->from * n / experts), SIM_H2D, bytes, bytes);
    return;
  }
  for (guint32 r = 0; r < n; r++)
    sim_op_add(op, first + r, SIM_H2D, bytes / p->tensor, bytes / p->tensor);
}

static void
add_copy(sim_op *op, const oct_copy *copy, guint32 stage) {
  if (copy->kind != OCT_COPY_EXPERT)
    add_unit(op, copy, stage);
  else if (layer_stage(op->instance, copy->group) == stage)
    add_expert(op, copy, stage);
}

/* ---------------------------------------------------------------- copies of a step */

static sim_op *
step_op(sim_op **where, sim_step *step, sim_op_kind kind, guint32 stage, guint64 after_op) {
  if (*where == NULL) {
    *where = sim_op_new(step->instance, kind);
    (*where)->step = step;
    (*where)->stage = stage;
    (*where)->after_op = after_op;
    (*where)->held = TRUE;
  }
  return *where;
}

void
sim_step_copies(sim_step *step, const oct_copy *copies, guint32 n_copies, guint64 after_step) {
  guint64 before = step->instance->world->op_serial;
  for (guint32 s = 0; s < step->instance->n_stages; s++) {
    for (guint32 i = 0; i < n_copies; i++) {
      gboolean leaves = copies[i].from_tier == OCT_TIER_DEVICE;
      if (copies[i].order == OCT_COPY_AFTER)
        add_copy(step_op(&step->after[s], step, SIM_OP_AFTER, s, before), &copies[i], s);
      else if (leaves)
        add_copy(step_op(&step->before_own[s], step, SIM_OP_BEFORE, s, before), &copies[i], s);
      else
        add_copy(step_op(&step->before_in[s], step, SIM_OP_BEFORE, s, before), &copies[i], s);
    }
    if (step->before_in[s] != NULL)
      step->before_in[s]->after_step = after_step;
  }
}

/* ---------------------------------------------------------------- BESIDE copies */

/* Whether an AFTER op of the instance that was submitted earlier than `op` holds it: any holds a
 * BESIDE op, one that writes host memory holds a BEFORE op, which may read it. */
static gboolean
held_by_after(const sim_op *op, const sim_instance *instance) {
  for (const sim_op *o = instance->ops; o != NULL && o->serial <= op->after_op; o = o->next) {
    if (o->kind == SIM_OP_AFTER && (o->writes_host || op->kind == SIM_OP_BESIDE))
      return TRUE;
  }
  return FALSE;
}

static gboolean
same_end(const oct_copy *source, const oct_copy *target) {
  return source->kind == target->kind && source->domain == target->domain &&
         source->group == target->group && source->from_tier == target->to_tier &&
         source->from == target->to;
}

/* Whether an earlier BESIDE op that has not ended writes what this one reads. */
static gboolean
held_by_writer(const sim_op *op) {
  for (const sim_op *o = op->instance->ops; op->chained && o != op; o = o->next) {
    for (guint32 i = 0; o->kind == SIM_OP_BESIDE && i < o->n_copies; i++) {
      for (guint32 k = 0; k < op->n_copies; k++) {
        if (same_end(&op->copies[k], &o->copies[i]))
          return TRUE;
      }
    }
  }
  return FALSE;
}

static gboolean
may_queue(const sim_op *op) {
  return op->kind != SIM_OP_AFTER && !op->queued && !op->held &&
         op->after_step <= op->instance->last_done && !held_by_after(op, op->instance) &&
         (op->peer == NULL || !held_by_after(op, op->peer)) && !held_by_writer(op);
}

void
sim_ops_try(sim_instance *instance) {
  sim_op *op = instance->ops;
  while (op != NULL) {
    if (may_queue(op)) {
      sim_op_queue(op);
      op = instance->ops; /* the list may have changed */
    } else {
      op = op->next;
    }
  }
}

gboolean
sim_ticket_is_new(const sim_instance *instance, guint64 ticket, GError **error) {
  for (const sim_op *op = instance->ops; op != NULL; op = op->next) {
    if (op->kind == SIM_OP_BESIDE && op->ticket == ticket) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                  "copy: ticket %" G_GUINT64_FORMAT " is in flight", ticket);
      return FALSE;
    }
  }
  return TRUE;
}

sim_op *
sim_op_beside(sim_instance *instance, guint64 ticket, const oct_copy *copies, guint32 n_copies) {
  guint64 serial = instance->world->op_serial;
  sim_op *op = sim_op_new(instance, SIM_OP_BESIDE);
  op->ticket = ticket;
  op->after_op = serial;
  if (op->copies_room < n_copies) {
    op->copies_room = MAX(n_copies, 2 * op->copies_room);
    op->copies = g_renew(oct_copy, op->copies, op->copies_room);
  }
  memcpy(op->copies, copies, n_copies * sizeof *copies);
  op->n_copies = n_copies;
  return op;
}

oct_submit
sim_copy(oct_world *world, guint32 instance, guint64 ticket, const oct_copy *copies,
         guint32 n_copies, GError **error) {
  sim_world *w = sim_world_of(world);
  sim_instance *in = sim_usable(w, instance, error);
  if (in == NULL || !oct_copies_check(copies, n_copies, &in->config, error) ||
      !sim_ticket_is_new(in, ticket, error))
    return OCT_SUBMIT_REFUSED;
  guint64 after_step = 0;
  gboolean chained = FALSE;
  for (guint32 i = 0; i < n_copies; i++) {
    after_step = MAX(after_step, oct_shadow_copy_waits_for(in->shadow, &copies[i]));
    chained |= oct_shadow_copy_is_chained(in->shadow, &copies[i]);
  }
  oct_fault fault = {.device = OCT_NO_INDEX};
  if (!oct_shadow_copy_begin(in->shadow, copies, n_copies, &fault)) {
    sim_lose(in, &fault);
    return OCT_SUBMIT_OK; /* it was taken; the fault says what came of it */
  }
  sim_op *op = sim_op_beside(in, ticket, copies, n_copies);
  for (guint32 s = 0; s < in->n_stages; s++) {
    for (guint32 i = 0; i < n_copies; i++)
      add_copy(op, &copies[i], s);
  }
  op->after_step = after_step;
  op->chained = chained;
  sim_ops_try(in);
  return OCT_SUBMIT_OK;
}

/* ---------------------------------------------------------------- stopping */

static void
purge_queue(sim_queue *queue) {
  sim_part **at = &queue->first;
  if (queue->first != NULL && queue->first->op->dropped)
    oct_flows_cancel(queue->world->flows, &queue->job);
  queue->last = NULL;
  while (*at != NULL) {
    sim_part *part = *at;
    if (part->op->dropped) {
      *at = part->next;
      free_part(queue->world, part);
    } else {
      queue->last = part;
      at = &part->next;
    }
  }
  start_first(queue);
}

void
sim_ops_purge(sim_world *world) {
  for (guint i = 0; i < oct_platform_gpus(world->platform) * SIM_DIRECTIONS; i++)
    purge_queue(&world->queues[i]);
}

void
sim_ops_stop(sim_instance *instance) {
  for (sim_op *op = instance->ops; op != NULL; op = op->next)
    op->dropped = TRUE;
  sim_ops_purge(instance->world);
  while (instance->ops != NULL) {
    sim_op *op = instance->ops;
    if (op->peer != NULL) /* lets go of its sources */
      oct_shadow_pull_end(instance->shadow, op->peer->shadow, op->peer_domain, op->copies,
                          op->n_copies);
    sim_op_free(op);
  }
}
