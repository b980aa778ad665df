/* The world that goes wrong. fault.h says how.
 *
 * Each instance keeps its unfinished steps in order, with what is to become of each. A step that is
 * to fail waits here until those before it have ended; every step submitted behind it before its
 * fault is told fails with it. What must come later than the inner world says, or was never there,
 * is held as an event with a time of its own, and next() gives whichever is first.
 */
#include "backends/fault/fault.h"

#include <string.h>

#include "backends/fault/fate.h"
#include "backends/fault/held.h"
#include "engine/base/assert.h"
#include "engine/base/rng.h"

#define DEPTH_MAX 64

typedef struct pending_step {
  guint64 number, inner_number; /* inner 0: it was not handed on */
  oct_inject fate;              /* OCT_INJECT_COUNT = none */
  guint32 slice;
  oct_time fails_ns; /* not handed on: not before this */
  gboolean ended;    /* its STEP_DONE is held */
} pending_step;

typedef struct pull_in_flight {
  guint64 ticket;
  guint32 peer;
} pull_in_flight;

typedef struct instance {
  guint32 id;
  oct_instance_config config; /* label, weights and devices are not kept */
  guint16 first_device;
  guint32 depth;
  guint64 last_number, last_inner;
  guint64 n_copies, full_at; /* full_at: the step that was answered FULL */
  pending_step steps[DEPTH_MAX];
  guint32 n_steps;
  oct_time held_until_ns; /* of the latest held STEP_DONE */
  gboolean dead, hung;
  GArray *late_tickets; /* guint64: of copies whose event is to be late */
  GArray *pulls;        /* pull_in_flight */
} instance;

typedef struct fault_world {
  oct_world base;
  oct_world_ops ops;
  oct_world *inner;
  oct_fault_options options;
  GPtrArray *instances; /* [id - 1], NULL when gone */
  fault_held held;
  held_event *told; /* whose memory the last event borrows */
  guint64 n_opens;
  gboolean lost;
  guint64 counts[OCT_INJECT_COUNT];
  guint8 *record; /* a renumbered step */
  gsize record_room;
  oct_fault inner_fault;
} fault_world;

static fault_world *
from_base(const oct_world *world) {
  return (fault_world *)(void *)world;
}

/* ---------------------------------------------------------------- fates */

static gboolean
fails_step(oct_inject fate) {
  return fate == OCT_INJECT_STEP || fate == OCT_INJECT_STEP_FINAL;
}

static gboolean
loses_instance(oct_inject fate) {
  return fate == OCT_INJECT_INSTANCE || fate == OCT_INJECT_DEVICE || fate == OCT_INJECT_FATAL;
}

/* ---------------------------------------------------------------- instances */

static instance *
find(const fault_world *w, guint32 id) {
  return id >= 1 && id <= w->instances->len ? w->instances->pdata[id - 1] : NULL;
}

static void
free_instance(fault_world *w, instance *in) {
  w->instances->pdata[in->id - 1] = NULL;
  g_array_unref(in->late_tickets);
  g_array_unref(in->pulls);
  g_free(in);
}

static gboolean
refuse_lost(const fault_world *w, guint32 id, GError **error) {
  const instance *in = find(w, id);
  if (!w->lost && (in == NULL || !in->dead))
    return FALSE;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "injected: %s is lost",
              w->lost ? "the world" : "the instance");
  return TRUE;
}

static gboolean
fault_open(oct_world *world, const oct_instance_config *config, guint32 *id, GError **error) {
  fault_world *w = from_base(world);
  if (refuse_lost(w, 0, error) || !oct_world_open(w->inner, config, id, error))
    return FALSE;
  while (w->instances->len < *id)
    g_ptr_array_add(w->instances, NULL);
  if (fault_fate(&w->options, FAULT_OF_OPEN, *id, ++w->n_opens) == OCT_INJECT_OPEN) {
    w->counts[OCT_INJECT_OPEN]++;
    oct_world_close(w->inner, *id);
    fault_hold_fault(&w->held, *id, OCT_SEVERITY_INSTANCE, 0, 0, FALSE,
                     world->now_ns + w->options.delay_ns, "opening failed");
    held_event *h = w->held.events->pdata[w->held.events->len - 1];
    h->event.kind = OCT_EVENT_OPEN_FAILED;
    return TRUE;
  }
  instance *in = g_new0(instance, 1);
  in->id = *id;
  in->config = *config;
  in->config.label = in->config.weights = NULL;
  in->first_device = config->devices[0];
  in->config.devices = NULL;
  in->late_tickets = g_array_new(FALSE, FALSE, sizeof(guint64));
  in->pulls = g_array_new(FALSE, FALSE, sizeof(pull_in_flight));
  w->instances->pdata[*id - 1] = in;
  return TRUE;
}

static void
fault_close(oct_world *world, guint32 id) {
  fault_world *w = from_base(world);
  instance *in = find(w, id);
  fault_held_drop(&w->held, id);
  if (in == NULL)
    return;
  free_instance(w, in);
  oct_world_close(w->inner, id);
}

/* ---------------------------------------------------------------- steps */

static void
lose(fault_world *w, instance *in, oct_inject fate, oct_time time_ns) {
  oct_severity severity = fate == OCT_INJECT_FATAL ? OCT_SEVERITY_FATAL : OCT_SEVERITY_INSTANCE;
  w->lost |= fate == OCT_INJECT_FATAL;
  if (w->lost)
    g_ptr_array_set_size(w->held.events, 0);
  fault_held_drop(&w->held, in->id);
  fault_hold_fault(&w->held, in->id, severity, 0, 0, FALSE, time_ns,
                   fate == OCT_INJECT_DEVICE  ? "device lost"
                   : fate == OCT_INJECT_FATAL ? "world lost"
                                              : "instance lost");
  if (fate == OCT_INJECT_DEVICE)
    ((held_event *)w->held.events->pdata[w->held.events->len - 1])->fault.device = in->first_device;
  in->dead = TRUE;
  in->n_steps = 0;
}

/* Hands the step on under the inner world's number. */
static oct_submit
hand_on(fault_world *w, instance *in, const oct_step *step, GError **error) {
  if (step->number == in->last_inner + 1)
    return oct_world_submit(w->inner, in->id, step, error);
  if (step->bytes > w->record_room) {
    w->record_room = MAX(step->bytes, 2 * w->record_room);
    w->record = g_realloc(w->record, w->record_room);
  }
  memcpy(w->record, step, step->bytes);
  oct_step *renumbered = (oct_step *)(void *)w->record;
  renumbered->number = in->last_inner + 1;
  return oct_world_submit(w->inner, in->id, renumbered, error);
}

/* A step that is not handed on would not be looked at by the inner world: it is here. */
static gboolean
check_step(const instance *in, const oct_step *step, GError **error) {
  if (step->number != in->last_number + 1) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "step.number is %" G_GUINT64_FORMAT ", must be %" G_GUINT64_FORMAT, step->number,
                in->last_number + 1);
    return FALSE;
  }
  return oct_step_check(step, step->bytes, &in->config, error);
}

static oct_submit
fault_submit(oct_world *world, guint32 id, const oct_step *step, GError **error) {
  fault_world *w = from_base(world);
  instance *in = find(w, id);
  if (refuse_lost(w, id, error))
    return OCT_SUBMIT_REFUSED;
  if (in == NULL || in->depth == 0)
    return oct_world_submit(w->inner, id, step, error); /* which says what is wrong */
  if (in->n_steps >= in->depth)
    return OCT_SUBMIT_FULL;
  if (!check_step(in, step, error))
    return OCT_SUBMIT_REFUSED;
  oct_inject fate = fault_fate(&w->options, FAULT_OF_STEP, id, step->number);
  if (fate == OCT_INJECT_FULL) {
    if (in->n_steps > 0 && in->full_at != step->number) {
      in->full_at = step->number;
      w->counts[fate]++;
      return OCT_SUBMIT_FULL;
    }
    fate = OCT_INJECT_COUNT;
  }
  pending_step *last = in->n_steps > 0 ? &in->steps[in->n_steps - 1] : NULL;
  gboolean behind_failure = last != NULL && last->inner_number == 0;
  if (behind_failure || (fate == OCT_INJECT_REQUEST && step->n_slices == 0))
    fate = OCT_INJECT_COUNT;
  pending_step next = {.number = step->number, .fate = fate};
  if (behind_failure) {
    next.fate = OCT_INJECT_STEP;
    next.fails_ns = last->fails_ns;
  } else if (fails_step(fate)) {
    next.fails_ns = world->now_ns + w->options.delay_ns;
  } else {
    oct_submit answer = hand_on(w, in, step, error);
    if (answer != OCT_SUBMIT_OK)
      return answer;
    next.inner_number = ++in->last_inner;
  }
  in->last_number++;
  if (fate != OCT_INJECT_COUNT)
    w->counts[fate]++;
  if (fate == OCT_INJECT_REQUEST)
    next.slice = (guint32)(oct_mix64(w->options.seed + step->number) % step->n_slices);
  in->steps[in->n_steps++] = next;
  in->hung |= fate == OCT_INJECT_HANG;
  if (fate == OCT_INJECT_NUMBER)
    (void)fault_hold(&w->held, id, OCT_EVENT_STEP_DONE, step->number + 1000, world->now_ns);
  /* Half of the losses come at once, half when the step should end. */
  if (loses_instance(fate) && oct_mix64(w->options.seed + step->number) % 2 == 0)
    lose(w, in, fate, world->now_ns);
  return OCT_SUBMIT_OK;
}

static void
pop_step(instance *in) {
  in->n_steps--;
  memmove(&in->steps[0], &in->steps[1], in->n_steps * sizeof in->steps[0]);
}

static gboolean
has_held_fault(const fault_world *w, guint32 id) {
  for (guint32 i = 0; i < w->held.events->len; i++) {
    const held_event *h = w->held.events->pdata[i];
    if (h->instance == id && h->event.kind == OCT_EVENT_FAULT)
      return TRUE;
  }
  return FALSE;
}

/* Oldest steps that are to fail, and whose time has come: one at a time, since until the engine has
 * been told of it, a step that it submits may go on from a failed one and has to fail behind it. */
static void
fail_steps(fault_world *w, oct_time now) {
  for (guint32 i = 0; i < w->instances->len; i++) {
    instance *in = w->instances->pdata[i];
    if (in != NULL && in->n_steps > 0 && in->steps[0].inner_number == 0 &&
        in->steps[0].fails_ns <= now && !has_held_fault(w, in->id)) {
      gboolean retryable = in->steps[0].fate == OCT_INJECT_STEP;
      fault_hold_fault(&w->held, in->id, OCT_SEVERITY_STEP, in->steps[0].number, 0, retryable, now,
                       retryable ? "step failed" : "step failed for good");
      pop_step(in);
    }
  }
}

static oct_time
next_failure(const fault_world *w) {
  oct_time first = OCT_TIME_NEVER;
  for (guint32 i = 0; i < w->instances->len; i++) {
    const instance *in = w->instances->pdata[i];
    if (in != NULL && in->n_steps > 0 && in->steps[0].inner_number == 0)
      first = MIN(first, in->steps[0].fails_ns);
  }
  return first;
}

/* ---------------------------------------------------------------- copies and masks */

/* From where a copy comes: another instance, or this one when peer is 0. */
typedef struct copy_source {
  guint32 peer, domain;
} copy_source;

static oct_submit
hand_on_copy(fault_world *w, guint32 id, copy_source from, guint64 ticket, const oct_copy *copies,
             guint32 n, GError **error) {
  if (from.peer == 0)
    return oct_world_copy(w->inner, id, ticket, copies, n, error);
  return oct_world_pull(w->inner, id, from.peer, from.domain, ticket, copies, n, error);
}

static gboolean
check_copy(const instance *in, const instance *peer, guint32 peer_domain, const oct_copy *copies,
           guint32 n, GError **error) {
  return peer == NULL ? oct_copies_check(copies, n, &in->config, error)
                      : oct_pull_check(copies, n, &in->config, &peer->config, peer_domain, error);
}

static oct_submit
copy_from(fault_world *w, guint32 id, copy_source from, guint64 ticket, const oct_copy *copies,
          guint32 n, GError **error) {
  instance *in = find(w, id), *peer = find(w, from.peer);
  if (refuse_lost(w, id, error) || (from.peer != 0 && refuse_lost(w, from.peer, error)))
    return OCT_SUBMIT_REFUSED;
  if (in == NULL || (from.peer != 0 && peer == NULL))
    return hand_on_copy(w, id, from, ticket, copies, n, error); /* which says what is wrong */
  oct_inject fate = fault_fate(&w->options, FAULT_OF_COPY, id, in->n_copies + 1);
  if (fate == OCT_INJECT_COPY) {
    if (!check_copy(in, peer, from.domain, copies, n, error))
      return OCT_SUBMIT_REFUSED;
    held_event *h =
        fault_hold(&w->held, id, OCT_EVENT_COPY_DONE, ticket, w->base.now_ns + w->options.delay_ns);
    h->event.failed = 1;
  } else {
    oct_submit answer = hand_on_copy(w, id, from, ticket, copies, n, error);
    if (answer != OCT_SUBMIT_OK)
      return answer;
    pull_in_flight pull = {ticket, from.peer};
    if (from.peer != 0)
      g_array_append_val(in->pulls, pull);
  }
  in->n_copies++;
  if (fate != OCT_INJECT_COUNT)
    w->counts[fate]++;
  if (fate == OCT_INJECT_COPY_LATE)
    g_array_append_val(in->late_tickets, ticket);
  if (fate == OCT_INJECT_TICKET)
    (void)fault_hold(&w->held, id, OCT_EVENT_COPY_DONE, ticket ^ (guint64)1 << 63, w->base.now_ns);
  return OCT_SUBMIT_OK;
}

static oct_submit
fault_copy(oct_world *world, guint32 id, guint64 ticket, const oct_copy *copies, guint32 n_copies,
           GError **error) {
  return copy_from(from_base(world), id, (copy_source){0, 0}, ticket, copies, n_copies, error);
}

static oct_submit
fault_pull(oct_world *world, guint32 id, guint32 peer, guint32 peer_domain, guint64 ticket,
           const oct_copy *copies, guint32 n_copies, GError **error) {
  copy_source from = {peer, peer_domain};
  return copy_from(from_base(world), id, from, ticket, copies, n_copies, error);
}

static gboolean
fault_mask(oct_world *world, guint32 id, guint64 number, guint32 slice, const guint64 *bits,
           guint32 n_words, GError **error) {
  fault_world *w = from_base(world);
  const instance *in = find(w, id);
  if (refuse_lost(w, id, error))
    return FALSE;
  for (guint32 i = 0; in != NULL && i < in->n_steps; i++)
    if (in->steps[i].number == number)
      return in->steps[i].inner_number == 0 ||
             oct_world_mask(w->inner, id, in->steps[i].inner_number, slice, bits, n_words, error);
  if (in != NULL && number <= in->last_number)
    return TRUE; /* it has ended */
  return oct_world_mask(w->inner, id, number, slice, bits, n_words, error);
}

/* ---------------------------------------------------------------- events */

static pending_step *
by_inner_number(instance *in, guint64 inner_number) {
  for (guint32 i = 0; i < in->n_steps; i++)
    if (in->steps[i].inner_number == inner_number && inner_number != 0)
      return &in->steps[i];
  return NULL;
}

/* Holds the end of a step until its time, and after those before it. */
static void
hold_step_done(fault_world *w, instance *in, pending_step *p, const oct_event *event) {
  const oct_step_result *r = event->result;
  gint64 late = p->fate == OCT_INJECT_DELAY  ? w->options.delay_ns
                : p->fate == OCT_INJECT_LATE ? w->options.late_ns
                                             : 0;
  oct_time time_ns = MAX(event->time_ns + late, in->held_until_ns);
  in->held_until_ns = time_ns;
  p->ended = TRUE;
  if (p->fate == OCT_INJECT_REQUEST)
    fault_hold_fault(&w->held, in->id, OCT_SEVERITY_REQUEST, p->number, p->slice, FALSE, time_ns,
                     "request failed");
  held_event *h = fault_hold(&w->held, in->id, OCT_EVENT_STEP_DONE, p->number, time_ns);
  h->result = g_memdup2(r, r->bytes);
  if (p->fate == OCT_INJECT_REQUEST) {
    oct_step_result *copy = (oct_step_result *)(void *)h->result;
    oct_slice_result *s = (oct_slice_result *)(void *)(h->result + copy->slices) + p->slice;
    s->flags |= OCT_RESULT_FAILED;
    s->n_accepted = 0;
    s->logprobs = s->floats = OCT_NO_INDEX;
  }
}

/* TRUE when its event is not to be late. What was pulled from an instance that is lost since then,
 * as far as the engine is to know, has failed. */
static gboolean
copy_ended(fault_world *w, instance *in, oct_event *event) {
  for (guint32 i = 0; i < in->pulls->len; i++) {
    const pull_in_flight *pull = &g_array_index(in->pulls, pull_in_flight, i);
    if (pull->ticket != event->number)
      continue;
    const instance *peer = find(w, pull->peer);
    event->failed |= peer != NULL && peer->dead;
    g_array_remove_index(in->pulls, i);
    break;
  }
  for (guint32 i = 0; i < in->late_tickets->len; i++)
    if (g_array_index(in->late_tickets, guint64, i) == event->number) {
      g_array_remove_index(in->late_tickets, i);
      held_event *h = fault_hold(&w->held, in->id, OCT_EVENT_COPY_DONE, event->number,
                                 event->time_ns + w->options.late_ns);
      h->event.failed = event->failed;
      return FALSE;
    }
  return TRUE;
}

/* A fault that the inner world has by itself. One of a step comes after what is held before it. */
static gboolean
inner_fault(fault_world *w, instance *in, oct_event *event) {
  const pending_step *p = by_inner_number(in, event->fault->number);
  w->inner_fault = *event->fault;
  w->inner_fault.number = p != NULL ? p->number : 0;
  event->fault = &w->inner_fault;
  if (w->inner_fault.severity >= OCT_SEVERITY_INSTANCE) {
    fault_held_drop(&w->held, in->id);
    in->dead = TRUE;
    in->n_steps = 0;
    w->lost |= w->inner_fault.severity == OCT_SEVERITY_FATAL;
  } else if (w->inner_fault.severity == OCT_SEVERITY_STEP && p != NULL) {
    held_event *h = fault_hold(&w->held, in->id, OCT_EVENT_FAULT, p->number,
                               MAX(event->time_ns, in->held_until_ns));
    h->fault = w->inner_fault;
    h->pops = TRUE;
    in->held_until_ns = h->time_ns;
    return FALSE;
  }
  return TRUE;
}

/* The inner world's event: TRUE when it goes to the engine as it is in *event. */
static gboolean
pass_on(fault_world *w, oct_event *event) {
  instance *in = find(w, event->instance);
  if (event->kind == OCT_EVENT_WAKE || event->kind == OCT_EVENT_TIMER)
    return TRUE;
  if (w->lost || in == NULL || in->dead)
    return FALSE;
  if (event->kind == OCT_EVENT_OPENED)
    in->depth = MIN(event->capabilities->depth, DEPTH_MAX);
  if (event->kind == OCT_EVENT_OPEN_FAILED)
    free_instance(w, in);
  if (event->kind == OCT_EVENT_COPY_DONE)
    return copy_ended(w, in, event);
  if (event->kind == OCT_EVENT_FAULT)
    return inner_fault(w, in, event);
  if (event->kind != OCT_EVENT_STEP_DONE && event->kind != OCT_EVENT_MASK_WANTED)
    return TRUE;
  pending_step *p = by_inner_number(in, event->number);
  if (p == NULL || event->kind == OCT_EVENT_MASK_WANTED) {
    event->number = p != NULL ? p->number : event->number; /* none: the inner world's own breach */
    return TRUE;
  }
  /* What a hung step keeps waiting ends no more either; what was before it does. */
  for (const pending_step *q = in->steps; in->hung && q <= p; q++)
    if (q->fate == OCT_INJECT_HANG)
      return FALSE;
  if (loses_instance(p->fate)) {
    lose(w, in, p->fate, event->time_ns);
    return FALSE;
  }
  if (p->fate == OCT_INJECT_COUNT && in->held_until_ns <= event->time_ns && p == in->steps) {
    event->number = p->number;
    pop_step(in);
    return TRUE;
  }
  hold_step_done(w, in, p, event);
  return FALSE;
}

static void
tell_held(fault_world *w, guint32 index, oct_time now, oct_event *event) {
  held_event *h = g_ptr_array_steal_index(w->held.events, index);
  w->told = h;
  *event = h->event;
  event->time_ns = MAX(h->time_ns, now);
  if (h->event.kind == OCT_EVENT_FAULT || h->event.kind == OCT_EVENT_OPEN_FAILED)
    event->fault = &h->fault;
  instance *in = find(w, h->instance);
  if (h->pops)
    pop_step(in);
  if (h->event.kind != OCT_EVENT_STEP_DONE)
    return;
  if (h->result == NULL) {
    /* A step that never was: an empty result. */
    h->result = g_malloc0(sizeof(oct_step_result));
    oct_step_result *r = (oct_step_result *)(void *)h->result;
    r->bytes = r->slices = r->tokens = r->logprobs = r->experts = r->floats = sizeof *r;
    r->start_ns = r->end_ns = event->time_ns;
  } else {
    oct_assert(in != NULL && in->steps[0].number == h->event.number && in->steps[0].ended);
    pop_step(in);
  }
  event->result = (const oct_step_result *)(const void *)h->result;
}

static gboolean
fault_next(oct_world *world, oct_time until_ns, oct_event *event) {
  fault_world *w = from_base(world);
  if (w->told != NULL)
    fault_held_free(w->told);
  w->told = NULL;
  for (;;) {
    /* Never back in time, whatever the inner world did meanwhile. */
    oct_time now = MAX(world->now_ns, w->inner->now_ns);
    fail_steps(w, now);
    guint32 first = fault_held_first(&w->held);
    oct_time due = next_failure(w);
    if (first < w->held.events->len)
      due = MIN(due, ((held_event *)w->held.events->pdata[first])->time_ns);
    if (first < w->held.events->len && due <= now && due <= until_ns) {
      tell_held(w, first, now, event);
      return TRUE;
    }
    memset(event, 0, sizeof *event);
    if (!oct_world_next(w->inner, MIN(until_ns, due), event))
      return FALSE;
    if (event->kind == OCT_EVENT_TIMER && due <= until_ns && due <= event->time_ns)
      continue; /* something of ours is due, and comes before the timer */
    if (pass_on(w, event))
      return TRUE;
  }
}

static gboolean
fault_forward(oct_world *world, guint32 id, const oct_forward *forward, oct_forwarded *forwarded) {
  fault_world *w = from_base(world);
  instance *in = find(w, id);
  if (w->lost || in == NULL || in->dead || in->n_steps != 1 || w->held.events->len > 0 ||
      in->steps[0].inner_number == 0 || in->steps[0].fate != OCT_INJECT_COUNT || in->hung ||
      next_failure(w) != OCT_TIME_NEVER)
    return FALSE;
  if (fault_fate(&w->options, FAULT_OF_STEP, id, in->steps[0].number + 1) != OCT_INJECT_COUNT)
    return FALSE;
  if (!oct_world_forward(w->inner, id, forward, forwarded))
    return FALSE;
  in->steps[0].number++;
  in->steps[0].inner_number++;
  in->last_number++;
  in->last_inner++;
  return TRUE;
}

/* ---------------------------------------------------------------- the world */

typedef struct run_call {
  fault_world *w;
  oct_world_fn fn;
  void *arg;
} run_call;

static int
run_inner(oct_world *inner, void *arg) {
  run_call *call = arg;
  (void)inner;
  return call->fn(&call->w->base, call->arg);
}

static int
fault_run(oct_world *world, oct_world_fn fn, void *arg) {
  fault_world *w = from_base(world);
  run_call call = {w, fn, arg};
  return oct_world_run(w->inner, run_inner, &call);
}

static void
fault_wake(oct_world *world) {
  oct_world_wake(from_base(world)->inner);
}

static void
fault_free(oct_world *world) {
  fault_world *w = from_base(world);
  for (guint32 i = 0; i < w->instances->len; i++)
    oct_assert(w->instances->pdata[i] == NULL);
  oct_world_free(w->inner);
  g_ptr_array_unref(w->instances);
  fault_held_clear(&w->held);
  if (w->told != NULL)
    fault_held_free(w->told);
  g_free(w->record);
  g_free(w);
}

oct_world *
oct_fault_world_new(oct_world *inner, const oct_fault_options *options, GError **error) {
  if (!fault_options_check(options, error)) {
    oct_world_free(inner);
    return NULL;
  }
  fault_world *w = g_new0(fault_world, 1);
  w->ops = (oct_world_ops){
      .name = "fault",
      .abi = OCT_BACKEND_ABI,
      .clock = inner->ops->clock,
      .free = fault_free,
      .run = fault_run,
      .wake = fault_wake,
      .open = fault_open,
      .close = fault_close,
      .submit = fault_submit,
      .copy = fault_copy,
      .pull = oct_world_can_pull(inner) ? fault_pull : NULL,
      .mask = inner->ops->mask != NULL ? fault_mask : NULL,
      .next = fault_next,
      .forward = inner->ops->forward != NULL ? fault_forward : NULL,
  };
  oct_world_init(&w->base, &w->ops);
  w->inner = inner;
  w->options = *options;
  w->instances = g_ptr_array_new();
  fault_held_init(&w->held);
  return &w->base;
}

guint64
oct_fault_world_count(const oct_world *world, oct_inject kind) {
  oct_assert(kind < OCT_INJECT_COUNT);
  return from_base(world)->counts[kind];
}
