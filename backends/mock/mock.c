/* The mock world: instances, events, the two clocks. What a step does to memory is in
 * backends/shadow.c, when it ends in timeline.c.
 *
 * Nothing is queued as an event: next() looks at each instance for what is due first (a phase of
 * opening, a mask wanted, a transfer's end, the oldest step's end). Ties go to the lower instance,
 * then to that order. There are few instances and few transfers, so this is cheaper than a heap,
 * and close() has nothing to withdraw.
 */
#include "backends/mock/mock.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "backends/mock/limits.h"
#include "backends/mock/timeline.h"
#include "engine/base/assert.h"

#define NS_PER_S 1000000000

typedef struct instance {
  guint32 id;
  oct_instance_config config; /* label, weights and devices are not kept */
  oct_shadow *shadow;
  oct_timeline *timeline;
  gboolean open, fails;
  guint32 phase;     /* while opening: the next to be told; n_phases = the outcome */
  oct_time phase_ns; /* when that is */
  gint64 open_total_ns, open_elapsed_ns;
  guint64 last_number;
  oct_capabilities capabilities;
} instance;

typedef struct mock_world {
  oct_world base;
  oct_mock_options options;
  GPtrArray *instances; /* [id - 1]; NULL when gone */
  guint32 n_open, n_opened;
  oct_time now_ns; /* virtual clock */
  struct timespec epoch;
  gboolean lost, fault_due;
  guint32 fault_instance;
  oct_fault fault;
  guint8 *result;
  gsize result_room;
  pthread_mutex_t lock; /* of woken, which any thread may set */
  pthread_cond_t changed;
  gboolean woken;
} mock_world;

static mock_world *
from_base(const oct_world *world) {
  return (mock_world *)(void *)world;
}

/* ---------------------------------------------------------------- clock */

static oct_time
now(const mock_world *w) {
  if (w->options.clock == OCT_CLOCK_VIRTUAL)
    return w->now_ns;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (oct_time)(t.tv_sec - w->epoch.tv_sec) * NS_PER_S + (t.tv_nsec - w->epoch.tv_nsec);
}

static struct timespec
to_timespec(const mock_world *w, oct_time ns) {
  oct_time sum = w->epoch.tv_nsec + ns % NS_PER_S;
  return (struct timespec){.tv_sec = w->epoch.tv_sec + ns / NS_PER_S + sum / NS_PER_S,
                           .tv_nsec = sum % NS_PER_S};
}

static void
mock_wake(oct_world *world) {
  mock_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  w->woken = TRUE;
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

static gboolean
take_wake(mock_world *w) {
  pthread_mutex_lock(&w->lock);
  gboolean woken = w->woken;
  w->woken = FALSE;
  pthread_mutex_unlock(&w->lock);
  return woken;
}

/* Real clock: until a wake-up or until_ns, whichever is first. */
static void
wait_until(mock_world *w, oct_time until_ns) {
  pthread_mutex_lock(&w->lock);
  while (!w->woken) {
    if (until_ns == OCT_TIME_NEVER) {
      pthread_cond_wait(&w->changed, &w->lock);
      continue;
    }
    struct timespec t = to_timespec(w, until_ns);
    if (pthread_cond_timedwait(&w->changed, &w->lock, &t) != 0)
      break; /* reached */
  }
  pthread_mutex_unlock(&w->lock);
}

/* ---------------------------------------------------------------- life cycle */

static int
mock_run(oct_world *world, oct_world_fn fn, void *arg) {
  return fn(world, arg);
}

static instance *
find_instance(const mock_world *w, guint32 id) {
  oct_assert(id >= 1 && id <= w->instances->len);
  return w->instances->pdata[id - 1];
}

static void
free_instance(mock_world *w, instance *in) {
  w->instances->pdata[in->id - 1] = NULL;
  /* Pulls in flight let go of their sources. */
  for (guint32 i = 0; i < oct_timeline_transfers(in->timeline); i++) {
    const oct_mock_transfer *x = oct_timeline_transfer(in->timeline, i);
    instance *peer = x->peer != 0 ? find_instance(w, x->peer) : NULL;
    if (peer != NULL)
      oct_shadow_pull_end(in->shadow, peer->shadow, x->peer_domain, x->copies, x->n);
  }
  oct_timeline_free(in->timeline);
  oct_shadow_free(in->shadow);
  g_free(in);
  w->n_open--;
}

static void
mock_free(oct_world *world) {
  mock_world *w = from_base(world);
  oct_assert(w->n_open == 0);
  g_ptr_array_unref(w->instances);
  g_free(w->result);
  pthread_mutex_destroy(&w->lock);
  pthread_cond_destroy(&w->changed);
  g_free(w);
}

/* ---------------------------------------------------------------- instances */

static gboolean
mock_open(oct_world *world, const oct_instance_config *config, guint32 *id, GError **error) {
  mock_world *w = from_base(world);
  if (w->lost) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "the world is lost: %s",
                w->fault.message);
    return FALSE;
  }
  if (!oct_mock_config_check(&w->options, config, error))
    return FALSE;
  instance *in = g_new0(instance, 1);
  in->config = *config;
  in->config.label = in->config.weights = NULL;
  in->config.devices = NULL;
  if (w->options.depth_max != 0)
    in->config.depth = MIN(in->config.depth, w->options.depth_max);
  in->shadow = oct_shadow_new(&in->config, &w->options.shadow);
  in->timeline = oct_timeline_new(&w->options, config->parallel.pipeline, in->config.depth);
  in->phase_ns = now(w);
  for (guint32 i = 0; i < w->options.n_phases; i++)
    in->open_total_ns += w->options.phases[i].ns;
  in->fails = w->n_opened++ < w->options.n_open_failures;
  in->capabilities = oct_mock_capabilities(&w->options, &in->config);
  g_ptr_array_add(w->instances, in);
  w->n_open++;
  *id = in->id = w->instances->len;
  return TRUE;
}

static void
mock_close(oct_world *world, guint32 id) {
  mock_world *w = from_base(world);
  instance *in = find_instance(w, id);
  if (in != NULL)
    free_instance(w, in);
}

/* The instance if it takes calls, else NULL with *error. */
static instance *
usable(const mock_world *w, guint32 id, GError **error) {
  instance *in = find_instance(w, id);
  if (w->lost)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "the world is lost: %s",
                w->fault.message);
  else if (in == NULL || !in->open)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "instance %u is %s", id,
                in == NULL ? "closed" : "not open yet");
  return w->lost || in == NULL || !in->open ? NULL : in;
}

/* The engine has broken the contract: the world ends with *fault. */
static void
lose_world(mock_world *w, guint32 id) {
  w->lost = w->fault_due = TRUE;
  w->fault_instance = id;
}

/* ---------------------------------------------------------------- steps and copies */

static gboolean
supports(const instance *in, const oct_step *step, GError **error) {
  const oct_slice *slices = oct_step_slices(step);
  const oct_capabilities *c = &in->capabilities;
  for (guint32 i = 0; i < step->n_slices; i++) {
    const char *what = NULL;
    if ((slices[i].flags & OCT_SLICE_NEEDS_MASK) != 0 && !c->masks)
      what = "masks";
    else if ((slices[i].flags & OCT_SLICE_VERIFY) != 0 && !c->speculation)
      what = "speculation";
    else if (slices[i].pooling != OCT_POOLING_NONE && !c->pooling)
      what = "pooling";
    else if (slices[i].adapter != 0 && !c->adapters)
      what = "adapters";
    if (what != NULL) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_UNSUPPORTED,
                  "slices[%u] needs %s, which this instance lacks", i, what);
      return FALSE;
    }
  }
  return TRUE;
}

/* What the time table needs of a step. */
static void
fill_flight(const mock_world *w, instance *in, const oct_step *step, oct_mock_flight *f) {
  const oct_mock_options *o = &w->options;
  f->number = step->number;
  f->submit_ns = now(w);
  const oct_copy *copies = oct_step_copies(step);
  for (guint32 i = 0; i < step->n_copies; i++) {
    const oct_copy *c = &copies[i];
    gint64 ns = c->kind == OCT_COPY_PAGE    ? o->copy_page_ns
                : c->kind == OCT_COPY_STATE ? o->copy_state_ns
                                            : o->copy_expert_ns;
    gboolean before = c->order == OCT_COPY_BEFORE;
    if (c->from_tier == OCT_TIER_HOST) {
      *(before ? &f->in_before_ns : &f->in_after_ns) += ns;
      f->waits_for = MAX(f->waits_for, oct_shadow_copy_waits_for(in->shadow, c));
    } else if (c->to_tier == OCT_TIER_HOST) {
      *(before ? &f->out_before_ns : &f->out_after_ns) += ns;
    } else {
      *(before ? &f->own_before_ns : &f->own_after_ns) += ns;
    }
  }
  for (guint32 s = 0; o->step_time != NULL && s < in->config.parallel.pipeline; s++) {
    f->custom_ns[s] = o->step_time(step, s, o->user);
    oct_assert(f->custom_ns[s] >= 0);
  }
}

/* What it needs of the outcome. */
static void
fill_loads(oct_mock_flight *f, const oct_step *step, oct_shadow_step *outcome) {
  const oct_domain_part *parts = oct_step_domains(step);
  f->step = outcome;
  f->n_loads = step->n_domains;
  for (guint32 d = 0; d < step->n_domains; d++) {
    f->loads[d].n_slices = parts[d].n_slices;
    f->loads[d].n_tokens = parts[d].n_tokens;
    for (guint32 i = 0; i < parts[d].n_slices; i++) {
      const oct_shadow_slice *sl = &outcome->slices[parts[d].first_slice + i];
      f->loads[d].context += sl->position + sl->n_tokens;
      f->feeds_on = MAX(f->feeds_on, sl->feeds_on);
    }
  }
}

static oct_submit
mock_submit(oct_world *world, guint32 id, const oct_step *step, GError **error) {
  mock_world *w = from_base(world);
  instance *in = usable(w, id, error);
  if (in == NULL)
    return OCT_SUBMIT_REFUSED;
  if (oct_timeline_flights(in->timeline) == in->config.depth)
    return OCT_SUBMIT_FULL;
  if (!w->options.trust_records && !oct_step_check(step, step->bytes, &in->config, error))
    return OCT_SUBMIT_REFUSED;
  if (step->number != in->last_number + 1) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "step.number is %" G_GUINT64_FORMAT ", must be %" G_GUINT64_FORMAT, step->number,
                in->last_number + 1);
    return OCT_SUBMIT_REFUSED;
  }
  if (!supports(in, step, error))
    return OCT_SUBMIT_REFUSED;
  in->last_number++;
  oct_mock_flight *f = oct_timeline_next_flight(in->timeline);
  fill_flight(w, in, step, f);
  oct_shadow_step *outcome;
  if (!oct_shadow_submit(in->shadow, step, &outcome, &w->fault)) {
    lose_world(w, id);
    return OCT_SUBMIT_OK; /* it was taken; the fault says what came of it */
  }
  fill_loads(f, step, outcome);
  oct_timeline_add_flight(in->timeline, f);
  return OCT_SUBMIT_OK;
}

static gboolean
ticket_is_new(const instance *in, guint64 ticket, GError **error) {
  for (guint32 i = 0; i < oct_timeline_transfers(in->timeline); i++)
    if (oct_timeline_transfer(in->timeline, i)->ticket == ticket) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                  "copy: ticket %" G_GUINT64_FORMAT " is in flight", ticket);
      return FALSE;
    }
  return TRUE;
}

static oct_submit
mock_copy(oct_world *world, guint32 id, guint64 ticket, const oct_copy *copies, guint32 n_copies,
          GError **error) {
  mock_world *w = from_base(world);
  instance *in = usable(w, id, error);
  if (in == NULL || !oct_copies_check(copies, n_copies, &in->config, error) ||
      !ticket_is_new(in, ticket, error))
    return OCT_SUBMIT_REFUSED;
  oct_mock_transfer about = {.ticket = ticket, .submit_ns = now(w)};
  for (guint32 i = 0; i < n_copies; i++) {
    about.waits_for = MAX(about.waits_for, oct_shadow_copy_waits_for(in->shadow, &copies[i]));
    about.chained |= oct_shadow_copy_is_chained(in->shadow, &copies[i]);
  }
  if (!oct_shadow_copy_begin(in->shadow, copies, n_copies, &w->fault)) {
    lose_world(w, id);
    return OCT_SUBMIT_OK;
  }
  oct_timeline_add_transfer(in->timeline, &about, copies, n_copies);
  return OCT_SUBMIT_OK;
}

static oct_submit
mock_pull(oct_world *world, guint32 id, guint32 peer_id, guint32 peer_domain, guint64 ticket,
          const oct_copy *copies, guint32 n_copies, GError **error) {
  mock_world *w = from_base(world);
  instance *in = usable(w, id, error);
  instance *peer = in != NULL ? usable(w, peer_id, error) : NULL;
  if (peer == NULL ||
      !oct_pull_check(copies, n_copies, &in->config, &peer->config, peer_domain, error) ||
      !ticket_is_new(in, ticket, error))
    return OCT_SUBMIT_REFUSED;
  oct_mock_transfer about = {
      .ticket = ticket, .submit_ns = now(w), .peer = peer_id, .peer_domain = peer_domain};
  if (!oct_shadow_pull_begin(in->shadow, peer->shadow, peer_domain, copies, n_copies, &w->fault)) {
    lose_world(w, id);
    return OCT_SUBMIT_OK;
  }
  oct_timeline_add_transfer(in->timeline, &about, copies, n_copies);
  return OCT_SUBMIT_OK;
}

static gboolean
mock_mask(oct_world *world, guint32 id, guint64 number, guint32 slice, const guint64 *bits,
          guint32 n_words, GError **error) {
  mock_world *w = from_base(world);
  instance *in = usable(w, id, error);
  if (in == NULL)
    return FALSE;
  GError *why = NULL;
  gboolean taken = oct_shadow_mask(in->shadow, number, slice, bits, n_words, &why);
  if (why != NULL) {
    g_propagate_error(error, why);
    return FALSE;
  }
  for (guint32 i = 0; taken && i < oct_timeline_flights(in->timeline); i++) {
    oct_mock_flight *f = oct_timeline_flight(in->timeline, i);
    if (f->number == number)
      f->mask_ns = now(w);
  }
  oct_timeline_resolve(in->timeline);
  return TRUE;
}

/* ---------------------------------------------------------------- events */

typedef enum due_kind {
  DUE_NOTHING,
  DUE_FAULT,
  DUE_PHASE,
  DUE_MASK,
  DUE_TRANSFER,
  DUE_STEP
} due_kind;

typedef struct due {
  due_kind kind;
  oct_time time_ns;
  instance *in;
  guint32 index; /* of the transfer, or of the flight that wants a mask */
} due;

static void
consider(due *best, due_kind kind, oct_time time_ns, instance *in, guint32 index) {
  if (best->kind == DUE_NOTHING || time_ns < best->time_ns)
    *best = (due){kind, time_ns, in, index};
}

/* Whether the flight has a slice that still wants its mask; moves past those that do not. */
static gboolean
wants_mask(oct_mock_flight *f) {
  if (!f->placed || f->known)
    return FALSE;
  for (; f->mask_events < f->step->n_slices; f->mask_events++) {
    const oct_shadow_slice *sl = &f->step->slices[f->mask_events];
    if ((sl->flags & OCT_SLICE_NEEDS_MASK) != 0 && !sl->masked)
      return TRUE;
  }
  return FALSE;
}

static void
consider_instance(instance *in, due *best) {
  if (!in->open) {
    consider(best, DUE_PHASE, in->phase_ns, in, 0);
    return;
  }
  for (guint32 i = 0; i < oct_timeline_flights(in->timeline); i++) {
    oct_mock_flight *f = oct_timeline_flight(in->timeline, i);
    if (wants_mask(f))
      consider(best, DUE_MASK, f->sampling_ns, in, i);
  }
  for (guint32 i = 0; i < oct_timeline_transfers(in->timeline); i++) {
    const oct_mock_transfer *x = oct_timeline_transfer(in->timeline, i);
    if (x->known)
      consider(best, DUE_TRANSFER, x->end_ns, in, i);
  }
  if (oct_timeline_flights(in->timeline) > 0 && oct_timeline_flight(in->timeline, 0)->known)
    consider(best, DUE_STEP, oct_timeline_flight(in->timeline, 0)->end_ns, in, 0);
}

static due
find_due(mock_world *w) {
  due best = {.kind = DUE_NOTHING};
  if (w->fault_due)
    consider(&best, DUE_FAULT, 0, NULL, 0);
  for (guint32 i = 0; !w->lost && i < w->instances->len; i++)
    if (w->instances->pdata[i] != NULL)
      consider_instance(w->instances->pdata[i], &best);
  return best;
}

static void
deliver_phase(mock_world *w, instance *in, oct_event *event) {
  static const oct_mock_phase quick = {"weights", 0};
  const oct_mock_options *o = &w->options;
  guint32 n_phases = MAX(o->n_phases, 1);
  if (in->phase < n_phases) {
    const oct_mock_phase *phase = o->n_phases > 0 ? &o->phases[in->phase] : &quick;
    event->kind = OCT_EVENT_OPEN_PROGRESS;
    event->phase = phase->name;
    event->fraction =
        in->open_total_ns > 0 ? (double)in->open_elapsed_ns / (double)in->open_total_ns : 0;
    in->open_elapsed_ns += phase->ns;
    in->phase_ns += phase->ns;
    in->phase++;
    return;
  }
  if (in->fails) {
    w->fault = (oct_fault){.severity = OCT_SEVERITY_INSTANCE, .device = OCT_NO_INDEX};
    g_strlcpy(w->fault.message, "opening was told to fail", sizeof w->fault.message);
    event->kind = OCT_EVENT_OPEN_FAILED;
    event->fault = &w->fault;
    free_instance(w, in);
    return;
  }
  in->open = TRUE;
  event->kind = OCT_EVENT_OPENED;
  event->capabilities = &in->capabilities;
}

static void
deliver_step(mock_world *w, instance *in, oct_event *event) {
  const oct_mock_flight *f = oct_timeline_flight(in->timeline, 0);
  oct_step_result *r = oct_shadow_result(in->shadow, f->step, &w->result, &w->result_room);
  r->start_ns = f->start_ns;
  r->end_ns = f->end_ns;
  memcpy(r->part_ns, f->part_ns, sizeof r->part_ns);
  event->kind = OCT_EVENT_STEP_DONE;
  event->number = f->number;
  event->result = r;
  oct_shadow_step_done(in->shadow, f->number);
  oct_timeline_pop_flight(in->timeline);
}

static void
deliver(mock_world *w, const due *d, oct_event *event) {
  event->instance = d->in != NULL ? d->in->id : w->fault_instance;
  switch (d->kind) {
  case DUE_FAULT:
    w->fault_due = FALSE;
    event->kind = OCT_EVENT_FAULT;
    event->fault = &w->fault;
    break;
  case DUE_PHASE:
    deliver_phase(w, d->in, event);
    break;
  case DUE_MASK: {
    oct_mock_flight *f = oct_timeline_flight(d->in->timeline, d->index);
    event->kind = OCT_EVENT_MASK_WANTED;
    event->number = f->number;
    event->slice = f->mask_events++;
    break;
  }
  case DUE_TRANSFER: {
    const oct_mock_transfer *x = oct_timeline_take_transfer(d->in->timeline, d->index);
    if (x->peer != 0) {
      instance *peer = find_instance(w, x->peer);
      oct_shadow_pull_end(d->in->shadow, peer != NULL ? peer->shadow : NULL, x->peer_domain,
                          x->copies, x->n);
      event->failed = peer == NULL;
    } else {
      oct_shadow_copy_end(d->in->shadow, x->copies, x->n, FALSE);
    }
    event->kind = OCT_EVENT_COPY_DONE;
    event->number = x->ticket;
    break;
  }
  case DUE_STEP:
    deliver_step(w, d->in, event);
    break;
  case DUE_NOTHING:
    oct_assert(FALSE);
  }
}

static gboolean
mock_next(oct_world *world, oct_time until_ns, oct_event *event) {
  mock_world *w = from_base(world);
  gboolean is_virtual = w->options.clock == OCT_CLOCK_VIRTUAL;
  for (;;) {
    if (take_wake(w)) {
      event->kind = OCT_EVENT_WAKE;
      event->time_ns = now(w);
      return TRUE;
    }
    due d = find_due(w);
    oct_time first = d.kind != DUE_NOTHING ? d.time_ns : OCT_TIME_NEVER;
    oct_time wanted = MIN(first, until_ns);
    if (is_virtual && wanted == OCT_TIME_NEVER)
      return FALSE;
    if (is_virtual)
      w->now_ns = MAX(w->now_ns, wanted);
    event->time_ns = now(w);
    if (d.kind != DUE_NOTHING && first <= until_ns && first <= event->time_ns) {
      deliver(w, &d, event);
      return TRUE;
    }
    if (until_ns <= event->time_ns) {
      event->kind = OCT_EVENT_TIMER;
      return TRUE;
    }
    wait_until(w, wanted);
  }
}

static gboolean
mock_forward(oct_world *world, guint32 id, const oct_forward *forward, oct_forwarded *forwarded) {
  mock_world *w = from_base(world);
  instance *in = find_instance(w, id);
  if (w->lost || in == NULL || !in->open || !in->capabilities.forward ||
      oct_timeline_flights(in->timeline) != 1)
    return FALSE;
  oct_mock_flight *f = oct_timeline_flight(in->timeline, 0);
  if (!f->step->plain || f->step->forward_left == 0 || f->end_ns > forward->limit_ns ||
      forward->submit_ns > f->end_ns)
    return FALSE;
  /* Another event at or before the end makes the stretch eventful. */
  for (guint32 i = 0; i < oct_timeline_transfers(in->timeline); i++)
    if (oct_timeline_transfer(in->timeline, i)->end_ns <= f->end_ns)
      return FALSE;
  due other = {.kind = DUE_NOTHING};
  for (guint32 i = 0; i < w->instances->len; i++)
    if (w->instances->pdata[i] != NULL && w->instances->pdata[i] != in)
      consider_instance(w->instances->pdata[i], &other);
  if (other.kind != DUE_NOTHING && other.time_ns <= f->end_ns)
    return FALSE;
  pthread_mutex_lock(&w->lock);
  gboolean woken = w->woken;
  pthread_mutex_unlock(&w->lock);
  if (woken)
    return FALSE;
  *forwarded = (oct_forwarded){.start_ns = f->start_ns, .end_ns = f->end_ns};
  memcpy(forwarded->part_ns, f->part_ns, sizeof forwarded->part_ns);
  w->now_ns = MAX(w->now_ns, f->end_ns);
  in->last_number++;
  oct_shadow_forward(in->shadow, f->step);
  oct_timeline_forward(in->timeline, forward->submit_ns);
  return TRUE;
}

/* ---------------------------------------------------------------- construction */

static const oct_world_ops virtual_ops = {
    .name = "mock",
    .abi = OCT_BACKEND_ABI,
    .clock = OCT_CLOCK_VIRTUAL,
    .free = mock_free,
    .run = mock_run,
    .wake = mock_wake,
    .open = mock_open,
    .close = mock_close,
    .submit = mock_submit,
    .copy = mock_copy,
    .pull = mock_pull,
    .mask = mock_mask,
    .next = mock_next,
    .forward = mock_forward,
};

static const oct_world_ops real_ops = {
    .name = "mock",
    .abi = OCT_BACKEND_ABI,
    .clock = OCT_CLOCK_REAL,
    .free = mock_free,
    .run = mock_run,
    .wake = mock_wake,
    .open = mock_open,
    .close = mock_close,
    .submit = mock_submit,
    .copy = mock_copy,
    .pull = mock_pull,
    .mask = mock_mask,
    .next = mock_next,
};

oct_world *
oct_mock_world_new(const oct_mock_options *options, GError **error) {
  oct_mock_options defaults;
  oct_mock_options_default(&defaults);
  if (options == NULL)
    options = &defaults;
  if (!oct_mock_options_check(options, error))
    return NULL;
  mock_world *w = g_new0(mock_world, 1);
  oct_world_init(&w->base, options->clock == OCT_CLOCK_REAL ? &real_ops : &virtual_ops);
  w->options = *options;
  w->instances = g_ptr_array_new();
  clock_gettime(CLOCK_MONOTONIC, &w->epoch);
  pthread_mutex_init(&w->lock, NULL);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&w->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  return &w->base;
}

guint32
oct_mock_token(const oct_world *world, guint32 id, guint64 key, guint32 adapter, guint32 position) {
  const instance *in = find_instance(from_base(world), id);
  oct_assert(in != NULL);
  return oct_shadow_token(in->shadow, key, adapter, position);
}
