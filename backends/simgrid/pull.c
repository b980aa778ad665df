/* Copies between instances of the world: from the GPUs of a peer to those of the one that pulls.
 *
 * A pull is a BESIDE op (copy.c) whose parts come from other GPUs: one part per rank that receives
 * and GPU that sends, over the route between the two, read from one memory and written to the
 * other. Parts stand in the queue of the GPU that receives, so what one GPU receives comes one part
 * after another, and what it sends is shared by those that ask for it.
 *
 * What each rank sends. Along the layers the content of a unit is cut into stages, along heads
 * (state: along its heads; DCP: along its tokens) into parts of one size, each held by one rank or
 * by several alike. A rank that receives asks for what its own cut covers of each, so ranks of
 * equal layouts pair up, and with other tensor or pipeline sizes every rank sends and receives
 * alike. Those that hold the same part give it by turns: a group that every rank holds whole (MLA
 * without DCP) comes once to each rank, from as many as there are.
 */
#include "backends/simgrid/internal.h"

#include <string.h>

#include "engine/base/assert.h"

/* ---------------------------------------------------------------- jobs */

static const sim_peer_link *
link_between(sim_world *world, guint from, guint to) {
  sim_peer_link *link = &world->peer_links[from * oct_platform_gpus(world->platform) + to];
  if (link->route == NULL) {
    guint16 route = (guint16)oct_platform_route_peer(world->platform, from, to);
    guint16 memories[2] = {(guint16)oct_platform_route_hbm(world->platform, from),
                           (guint16)oct_platform_route_hbm(world->platform, to)};
    link->route = oct_flows_bundle(world->flows, &route, 1);
    link->memories = oct_flows_bundle(world->flows, memories, 2);
  }
  return link;
}

void
sim_pull_fill_job(sim_queue *queue, const sim_part *part) {
  sim_world *world = queue->world;
  guint to = part->op->instance->ranks[part->rank].device;
  const sim_peer_link *link = link_between(world, part->source, to);
  const oct_route *route = oct_platform_route(world->platform, link->route->routes[0]);
  gint64 ns = sim_transfer_ns(part->full_bytes, route->bytes_per_s, route->latency_ns);
  queue->job.bundles[0] = link->route;
  queue->job.bundles[1] = link->memories;
  queue->job.groups[0] = (oct_job_group){.ns = ns, .amount = {part->full_bytes, part->full_bytes}};
}

/* ---------------------------------------------------------------- who sends what */

/* How many unlike parts the tensor ranks of a stage hold of a unit. */
static guint32
part_count(const sim_instance *in, guint32 group, guint32 stage) {
  double unit = in->unit_bytes[group][stage];
  if (!(unit > 0))
    return 1;
  return (guint32)CLAMP(in->once_bytes[group][stage] / unit + 0.5, 1, in->config.parallel.tensor);
}

/* The tensor rank that gives part `part` of `n_parts` to rank `asking`: those that hold it take
 * turns, so that in equal layouts it is the one in the same place. */
static guint32
holder(guint32 n_ranks, guint32 n_parts, guint32 part, guint32 asking) {
  guint32 first = (part * n_ranks + n_parts - 1) / n_parts;
  guint32 end = ((part + 1) * n_ranks + n_parts - 1) / n_parts;
  return first + asking % (end - first);
}

/* What a pull moves of one group. */
typedef struct share {
  sim_op *op;
  guint32 group, domain;
  guint32 stage, peer_stage; /* that receives, that sends */
  double bytes;              /* to each tensor rank of `stage` from `peer_stage` */
} share;

/* Adds what tensor rank `t` gets of the share. */
static void
add_rank(const share *s, guint32 t) {
  const sim_instance *in = s->op->instance, *peer = s->op->peer;
  const oct_parallel *p = &in->config.parallel, *from = &peer->config.parallel;
  guint32 n = part_count(in, s->group, s->stage);
  guint32 n_from = part_count(peer, s->group, s->peer_stage);
  guint32 rank = oct_cost_rank(p, s->stage, s->domain, t), own = t * n / p->tensor;
  /* Both cuts in units of 1 / (n n_from) of the whole: the rank's own is n_from long. */
  for (guint32 i = 0; i < n_from; i++) {
    guint32 begin = MAX(own * n_from, i * n), end = MIN((own + 1) * n_from, (i + 1) * n);
    if (begin >= end)
      continue;
    guint32 sender = holder(from->tensor, n_from, i, t);
    sender = oct_cost_rank(from, s->peer_stage, s->op->peer_domain, sender);
    guint16 source = peer->ranks[sender].device;
    double bytes = s->bytes * (end - begin) / n_from;
    if (source == in->ranks[rank].device)
      sim_op_add(s->op, rank, SIM_D2D, 0, bytes);
    else
      sim_op_add_from(s->op, rank, source, bytes);
  }
}

/* Adds `n` units of a group: each stage gets its layers from the stages that have them. */
static void
add_units(sim_op *op, guint32 group, guint32 domain, guint32 n) {
  const sim_instance *in = op->instance, *peer = op->peer;
  double begin = 0;
  for (guint32 s = 0; s < in->n_stages; s++) {
    double end = begin + in->once_bytes[group][s], from = 0;
    for (guint32 q = 0; q < peer->n_stages; q++) {
      double to = from + peer->once_bytes[group][q];
      double both = MIN(end, to) - MAX(begin, from);
      from = to;
      if (!(both > 0))
        continue;
      share part = {.op = op, .group = group, .domain = domain, .stage = s, .peer_stage = q};
      part.bytes = n * in->unit_bytes[group][s] * (both / in->once_bytes[group][s]);
      for (guint32 t = 0; t < in->config.parallel.tensor; t++)
        add_rank(&part, t);
    }
    begin = end;
  }
}

/* Parts of one rank follow one another, by sender. Ranks that ask the same senders begin each with
 * another: rank t of stage s with the (t + s)-th. */
static void
take_turns(sim_op *op) {
  const oct_parallel *p = &op->instance->config.parallel;
  sim_part **run = &op->parts;
  while (*run != NULL) {
    guint32 n = 0;
    sim_part **end = run;
    for (; *end != NULL && (*end)->rank == (*run)->rank; end = &(*end)->next)
      n++;
    guint32 rank = (*run)->rank / SIM_DIRECTIONS;
    guint32 by = rank % p->tensor + rank / (p->tensor * p->data);
    sim_part **turn = run, *after = *end;
    for (guint32 i = 0; i < by % n; i++)
      turn = &(*turn)->next;
    if (turn != run) { /* [run, turn) goes behind [turn, end) */
      sim_part *first = *run;
      *run = *turn;
      *end = first;
      *turn = after;
      end = turn;
    }
    run = end;
  }
}

/* Units of a group and domain go together, in one look at the layout. */
static void
add_parts(sim_op *op) {
  guint32 domains = op->instance->config.parallel.data;
  g_autofree guint32 *counts = g_new0(guint32, op->instance->n_groups * domains);
  for (guint32 i = 0; i < op->n_copies; i++)
    counts[op->copies[i].group * domains + op->copies[i].domain]++;
  for (guint32 g = 0; g < op->instance->n_groups; g++) {
    for (guint32 d = 0; d < domains; d++) {
      if (counts[g * domains + d] > 0)
        add_units(op, g, d, counts[g * domains + d]);
    }
  }
  take_turns(op);
}

/* ---------------------------------------------------------------- the call */

oct_submit
sim_pull(oct_world *world, guint32 instance, guint32 peer, guint32 peer_domain, guint64 ticket,
         const oct_copy *copies, guint32 n_copies, GError **error) {
  sim_world *w = sim_world_of(world);
  sim_instance *in = sim_usable(w, instance, error);
  sim_instance *from = in != NULL ? sim_usable(w, peer, error) : NULL;
  if (from == NULL ||
      !oct_pull_check(copies, n_copies, &in->config, &from->config, peer_domain, error) ||
      !sim_ticket_is_new(in, ticket, error))
    return OCT_SUBMIT_REFUSED;
  oct_fault fault = {.device = OCT_NO_INDEX};
  if (!oct_shadow_pull_begin(in->shadow, from->shadow, peer_domain, copies, n_copies, &fault)) {
    sim_lose(in, &fault);
    return OCT_SUBMIT_OK; /* it was taken; the fault says what came of it */
  }
  sim_op *op = sim_op_beside(in, ticket, copies, n_copies);
  op->peer = from;
  op->peer_domain = peer_domain;
  w->n_pulls++;
  add_parts(op);
  sim_ops_try(in);
  return OCT_SUBMIT_OK;
}

/* ---------------------------------------------------------------- the peer */

/* Calls `fn` for every instance that pulls from `peer`. */
static void
for_pullers(const sim_instance *peer, void (*fn)(sim_instance *in, const sim_instance *peer)) {
  const sim_world *world = peer->world;
  for (guint i = 0; world->n_pulls > 0 && i < world->instances->len; i++) {
    sim_instance *in = g_ptr_array_index(world->instances, i);
    for (const sim_op *op = in != NULL ? in->ops : NULL; op != NULL; op = op->next) {
      if (op->peer == peer) {
        fn(in, peer);
        break;
      }
    }
  }
}

static void
try_again(sim_instance *in, const sim_instance *peer G_GNUC_UNUSED) {
  sim_ops_try(in);
}

void
sim_pulls_try(sim_instance *peer) {
  for_pullers(peer, try_again);
}

static void
drop_pulls(sim_instance *in, const sim_instance *peer) {
  for (sim_op *op = in->ops; op != NULL; op = op->next)
    op->dropped |= op->peer == peer;
}

/* The targets are empty and free again; the sources are gone with the peer's memory. */
static void
end_dropped(sim_instance *in, const sim_instance *peer G_GNUC_UNUSED) {
  for (sim_op *op = in->ops, *next; op != NULL; op = next) {
    next = op->next;
    if (!op->dropped)
      continue;
    oct_shadow_pull_end(in->shadow, NULL, 0, op->copies, op->n_copies);
    sim_event *event = sim_emit(in, OCT_EVENT_COPY_DONE);
    event->number = op->ticket;
    event->failed = 1;
    sim_op_free(op);
  }
  sim_ops_try(in);
}

void
sim_pulls_fail(sim_instance *peer) {
  for_pullers(peer, drop_pulls);
  sim_ops_purge(peer->world);
  for_pullers(peer, end_dropped);
}
