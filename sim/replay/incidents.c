/* What happens to replicas on the way: actions of a scenario, engines that die, layouts that are
 * left, replicas that are drained and opened again.
 *
 * An engine whose GPU is lost tries to reopen as often as it is allowed to and is dead then; its
 * requests have failed, and submit.c has put them in the list of those that go on elsewhere. Here
 * its replica gets an engine on the GPUs that are left, in the layout that the engine's own rule
 * chooses (engine/sched/replan.h), or none. It is up again when its weights have come. */
#include <string.h>

#include "engine/base/assert.h"
#include "sim/replay/drive-internal.h"

static void
incident_clear(gpointer data) {
  g_free(((oct_incident *)data)->text);
}

void
oct_incidents_init(oct_driver *d) {
  const oct_drive_config *c = d->config;
  d->again = g_sequence_new(NULL);
  g_queue_init(&d->parked);
  d->retired = g_ptr_array_new();
  d->roll_from = -1;
  d->trouble = c->scenario != NULL; /* engines have yet to open */
  d->keeps = c->scenario != NULL || c->client.retries > 0 || c->n_prefill > 0;
  if (c->scenario == NULL)
    return;
  d->result->incidents.events = g_array_new(FALSE, FALSE, sizeof(oct_incident));
  g_array_set_clear_func(d->result->incidents.events, incident_clear);
}

void
oct_incidents_clear(oct_driver *d) {
  for (guint i = 0; i < d->retired->len; i++)
    oct_engine_free(g_ptr_array_index(d->retired, i));
  g_ptr_array_unref(d->retired);
  for (int h = 0; h < OCT_HIST_COUNT; h++)
    oct_hist_free(d->retired_hists[h]);
  for (GSequenceIter *i = g_sequence_get_begin_iter(d->again); !g_sequence_iter_is_end(i);
       i = g_sequence_iter_next(i))
    oct_live_free(d, g_sequence_get(i));
  g_sequence_free(d->again);
  for (oct_live *live; (live = g_queue_pop_head(&d->parked)) != NULL;)
    oct_live_free(d, live);
  g_clear_pointer(&d->seen_pages, g_hash_table_unref);
}

/* ---------------------------------------------------------------- telling */

static void tell(oct_driver *d, const char *format, ...) G_GNUC_PRINTF(2, 3);

static void
tell(oct_driver *d, const char *format, ...) {
  va_list args;
  va_start(args, format);
  oct_incident incident = {d->now, g_strdup_vprintf(format, args)};
  va_end(args);
  oct_log *log = d->config->engine.log;
  if (log != NULL)
    oct_log_printf(log, "%" G_GINT64_FORMAT " scenario %s", d->now, incident.text);
  g_array_append_val(d->result->incidents.events, incident);
}

static char *
layout_text(const oct_parallel *p) {
  return g_strdup_printf("TP%u PP%u DP%u", p->tensor, p->pipeline, p->data);
}

/* ---------------------------------------------------------------- energy */

/* Since the last count every GPU of a replica has drawn its idle power, and up to its limit while
 * arithmetic bound a step (low) or while any step ran (high). */
static void
count_replica(oct_driver *d, const oct_replica *replica, double *low_j, double *high_j) {
  const oct_machine *m = d->config->machine;
  oct_engine_stats now, *was = &d->energy_stats[replica->number];
  oct_engine_get_stats(replica->engine, &now);
  if (now.busy_ns < was->busy_ns) /* another engine than then */
    memset(was, 0, sizeof *was);
  double parts = 0,
         compute = (double)(now.part_ns[OCT_PART_COMPUTE] - was->part_ns[OCT_PART_COMPUTE]);
  double busy_s = (double)(now.busy_ns - was->busy_ns) / 1e9;
  for (int p = 0; p < OCT_PART_COUNT; p++)
    parts += (double)(now.part_ns[p] - was->part_ns[p]);
  double share = parts > 0 ? compute / parts : 0;
  guint32 ranks = oct_parallel_world(&replica->config.instance.parallel);
  for (guint32 r = 0; r < ranks; r++) {
    guint gpu = replica->devices[r];
    double limit = d->cap_w[gpu] > 0 ? d->cap_w[gpu] : m->limit_w;
    *low_j += (limit - m->idle_w) * share * busy_s;
    *high_j += (limit - m->idle_w) * busy_s;
  }
  *was = now;
}

void
oct_incidents_count_energy(oct_driver *d) {
  const oct_machine *m = d->config->machine;
  if (m == NULL || m->limit_w <= 0)
    return;
  double idle = m->idle_w * m->n_gpus * (double)(d->now - d->energy_at) / 1e9;
  double low = idle, high = idle;
  for (guint32 i = 0; i < d->n_replicas; i++)
    if (d->replicas[i].engine != NULL)
      count_replica(d, &d->replicas[i], &low, &high);
  d->result->incidents.energy_low_j += low;
  d->result->incidents.energy_high_j += high;
  d->energy_at = d->now;
}

/* ---------------------------------------------------------------- replicas down and up */

static void
set_down(oct_driver *d, oct_replica *replica) {
  if (replica->down_ns < 0)
    replica->down_ns = d->now;
}

/* GPUs that the replica cannot have. */
static void
find_taken(const oct_driver *d, const oct_replica *replica, gboolean taken[OCT_NODE_DEVICES_MAX]) {
  memcpy(taken, d->gone, OCT_NODE_DEVICES_MAX * sizeof *taken);
  for (guint32 i = 0; i < d->n_replicas; i++) {
    const oct_replica *other = &d->replicas[i];
    if (other == replica || other->engine == NULL)
      continue;
    guint32 ranks = oct_parallel_world(&other->config.instance.parallel);
    for (guint32 r = 0; r < ranks; r++)
      taken[other->devices[r]] = TRUE;
  }
}

static gboolean
has_all(const oct_driver *d, const oct_replica *replica) {
  guint32 ranks = oct_parallel_world(&replica->config.instance.parallel);
  for (guint32 r = 0; r < ranks; r++)
    if (d->gone[replica->devices[r]])
      return FALSE;
  return ranks == replica->ranks;
}

/* Chooses what the replica runs on, and opens it. FALSE only when the run cannot go on. */
static gboolean
reopen(oct_driver *d, oct_replica *replica) {
  const oct_machine *m = d->config->machine;
  g_autofree char *was = layout_text(&replica->config.instance.parallel);
  replica->engine = NULL;
  replica->draining = FALSE;
  if (m != NULL && !has_all(d, replica)) {
    gboolean taken[OCT_NODE_DEVICES_MAX];
    g_autoptr(GError) why = NULL;
    find_taken(d, replica, taken);
    if (!m->replan(m->user, taken, replica->ranks, &replica->config, replica->devices, &why)) {
      tell(d, "replica %u is out: %s", replica->number, why->message);
      return TRUE;
    }
  }
  g_autofree char *is = layout_text(&replica->config.instance.parallel);
  if (!oct_driver_open(d, replica))
    return FALSE;
  tell(d, "replica %u opens as %s (was %s)", replica->number, is, was);
  return TRUE;
}

/* Those that waited go to whoever is up. */
static void
unpark(oct_driver *d) {
  for (oct_live *live; (live = g_queue_pop_head(&d->parked)) != NULL;)
    oct_driver_again(d, live, d->now);
}

static gboolean
revive_dead(oct_driver *d, oct_replica *replica) {
  set_down(d, replica);
  oct_driver_add_retired(d, replica->engine);
  g_ptr_array_add(d->retired, replica->engine);
  replica->n_exports = 0;
  return reopen(d, replica);
}

static gboolean
reopen_drained(oct_driver *d, oct_replica *replica) {
  set_down(d, replica);
  oct_driver_add_retired(d, replica->engine);
  oct_engine_free(replica->engine);
  return reopen(d, replica);
}

static void
drain(oct_driver *d, oct_replica *replica) {
  if (replica->engine == NULL || replica->draining)
    return;
  tell(d, "replica %u drains", replica->number);
  replica->draining = TRUE;
  d->trouble = TRUE;
}

/* The next replica of a rolling reload. */
static void
roll_on(oct_driver *d) {
  while (d->roll_from >= 0) {
    if (d->roll_from == d->n_replicas) {
      d->roll_from = -1;
      return;
    }
    oct_replica *replica = &d->replicas[d->roll_from++];
    drain(d, replica);
    if (replica->draining)
      return;
  }
}

static gboolean
look_after(oct_driver *d, oct_replica *replica, gboolean *unsettled) {
  oct_engine_stats stats;
  if (replica->engine == NULL)
    return TRUE;
  oct_engine_get_stats(replica->engine, &stats);
  if (stats.state == OCT_ENGINE_DEAD)
    return revive_dead(d, replica);
  if (replica->draining) {
    gboolean empty = stats.running == 0 && stats.waiting == 0 && stats.unfinished_steps == 0 &&
                     replica->n_exports == 0;
    *unsettled = TRUE;
    return empty ? reopen_drained(d, replica) : TRUE;
  }
  if (stats.state != OCT_ENGINE_SERVING) {
    set_down(d, replica);
    *unsettled = TRUE;
  } else if (replica->down_ns >= 0) {
    d->result->incidents.down_ns += d->now - replica->down_ns;
    if (d->now > replica->down_ns)
      tell(d, "replica %u serves after %.3f s", replica->number,
           (double)(d->now - replica->down_ns) / 1e9);
    replica->down_ns = -1;
    unpark(d);
    roll_on(d);
  }
  return TRUE;
}

gboolean
oct_incidents_may_return(const oct_driver *d) {
  for (guint32 i = 0; i < d->n_replicas; i++)
    if (d->replicas[i].engine != NULL)
      return TRUE;
  const oct_scenario *scenario = d->config->scenario;
  for (guint i = d->next_action; scenario != NULL && i < scenario->actions->len; i++)
    if (g_array_index(scenario->actions, oct_action, i).kind == OCT_ACTION_RESTORE)
      return TRUE;
  return FALSE;
}

/* ---------------------------------------------------------------- actions */

static void
tell_action(oct_driver *d, const oct_action *a) {
  switch (a->kind) {
  case OCT_ACTION_SCALE:
    tell(d, "%s: capacity x %.4g", a->event, a->factor);
    break;
  case OCT_ACTION_LOSE:
    tell(d, "%s: GPU %u is lost", a->event, a->index);
    break;
  case OCT_ACTION_ISOLATE:
    tell(d, "%s: GPU %u reaches no other GPU", a->event, a->index);
    break;
  case OCT_ACTION_RESTORE:
    tell(d, "%s: GPU %u is back", a->event, a->index);
    break;
  case OCT_ACTION_TELL:
    tell(d, "%s: arrivals change", a->event);
    break;
  case OCT_ACTION_CAP:
  case OCT_ACTION_DRAIN:
    break;
  }
}

/* A GPU is back: replicas that lack ranks are opened anew with it. */
static gboolean
use_restored(oct_driver *d) {
  for (guint32 i = 0; i < d->n_replicas; i++) {
    oct_replica *replica = &d->replicas[i];
    if (replica->engine == NULL) {
      if (!reopen(d, replica))
        return FALSE;
    } else if (!has_all(d, replica)) {
      drain(d, replica);
    }
  }
  return TRUE;
}

static gboolean
act(oct_driver *d, const oct_action *a) {
  const oct_machine *m = d->config->machine;
  if (a->first || a->kind == OCT_ACTION_LOSE || a->kind == OCT_ACTION_ISOLATE)
    tell_action(d, a);
  if (a->kind == OCT_ACTION_DRAIN) {
    if (a->index != OCT_ACTION_ALL) {
      drain(d, &d->replicas[a->index]);
    } else if (d->roll_from < 0) {
      d->roll_from = 0;
      roll_on(d);
    }
    return TRUE;
  }
  if (a->kind == OCT_ACTION_TELL)
    return TRUE;
  oct_assert(m != NULL);
  oct_incidents_count_energy(d);
  if (a->kind == OCT_ACTION_CAP)
    d->cap_w[a->index] = a->watts;
  if (a->kind == OCT_ACTION_LOSE || a->kind == OCT_ACTION_ISOLATE)
    d->gone[a->index] = TRUE;
  if (a->kind == OCT_ACTION_RESTORE)
    d->gone[a->index] = FALSE;
  d->trouble = TRUE;
  return m->act(m->user, d->given, a, &d->error) &&
         (a->kind != OCT_ACTION_RESTORE || use_restored(d));
}

oct_time
oct_incidents_next(const oct_driver *d) {
  const oct_scenario *scenario = d->config->scenario;
  if (scenario == NULL || d->next_action >= scenario->actions->len)
    return OCT_TIME_NEVER;
  return g_array_index(scenario->actions, oct_action, d->next_action).at_ns;
}

void
oct_incidents_note(oct_driver *d, const oct_event *event) {
  if (d->config->scenario != NULL)
    d->trouble |= event->kind == OCT_EVENT_FAULT || event->kind == OCT_EVENT_OPEN_FAILED ||
                  event->kind == OCT_EVENT_OPENED;
}

gboolean
oct_incidents_take(oct_driver *d, gboolean may_act) {
  const oct_scenario *scenario = d->config->scenario;
  if (scenario == NULL)
    return TRUE;
  while (may_act && oct_incidents_next(d) <= d->now)
    if (!act(d, &g_array_index(scenario->actions, oct_action, d->next_action++)))
      return FALSE;
  if (!d->trouble)
    return TRUE;
  gboolean unsettled = FALSE;
  for (guint32 i = 0; i < d->n_replicas; i++)
    if (!look_after(d, &d->replicas[i], &unsettled))
      return FALSE;
  d->trouble = unsettled;
  /* Nobody will come back for them. */
  while (d->parked.head != NULL && !oct_incidents_may_return(d))
    oct_driver_give_up(d, g_queue_pop_head(&d->parked), OCT_FATE_FAILED);
  return TRUE;
}
