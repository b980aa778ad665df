#include "sim/replay/tap.h"

#include "engine/base/assert.h"

typedef struct oct_tap {
  oct_world base;
  oct_world_ops ops; /* without what the inner world has not */
  oct_world *inner;
  oct_tap_listener listener;
  GArray *steps, *copies; /* oct_tap_step, oct_tap_copy that have not ended; a few */
} oct_tap;

const char *
oct_tap_way_name(oct_tap_way way) {
  static const char *const names[OCT_TAP_WAYS] = {"to device", "to host", "from peer", "experts"};
  oct_assert(way < OCT_TAP_WAYS);
  return names[way];
}

static oct_tap *
tap_of(oct_world *world) {
  return (oct_tap *)world;
}

/* ---------------------------------------------------------------- in */

static void
count_slices(const oct_step *step, oct_tap_step *out) {
  const oct_slice *slices = oct_step_slices(step);
  out->n_slices = step->n_slices;
  for (guint32 i = 0; i < step->n_slices; i++) {
    gboolean prefill = (slices[i].flags & OCT_SLICE_PREFILL) != 0;
    out->n_tokens += slices[i].n_tokens;
    out->n_prefills += prefill;
    out->n_prefill_tokens += prefill ? slices[i].n_tokens : 0;
  }
}

static oct_submit
submit(oct_world *world, guint32 instance, const oct_step *step, GError **error) {
  oct_tap *tap = tap_of(world);
  oct_submit answer = oct_world_submit(tap->inner, instance, step, error);
  if (answer != OCT_SUBMIT_OK)
    return answer;
  oct_tap_step note = {.instance = instance,
                       .number = step->number,
                       .submit_ns = tap->inner->now_ns,
                       .n_copies = step->n_copies};
  count_slices(step, &note);
  g_array_append_val(tap->steps, note);
  return answer;
}

static void
note_copy(oct_tap *tap, guint32 instance, guint64 ticket, oct_tap_way way, guint32 n) {
  oct_tap_copy note = {.instance = instance,
                       .ticket = ticket,
                       .way = way,
                       .submit_ns = tap->inner->now_ns,
                       .n_items = n};
  g_array_append_val(tap->copies, note);
}

static oct_submit
copy(oct_world *world, guint32 instance, guint64 ticket, const oct_copy *copies, guint32 n,
     GError **error) {
  oct_tap *tap = tap_of(world);
  oct_submit answer = oct_world_copy(tap->inner, instance, ticket, copies, n, error);
  if (answer == OCT_SUBMIT_OK && n > 0)
    note_copy(tap, instance, ticket,
              copies[0].kind == OCT_COPY_EXPERT    ? OCT_TAP_EXPERTS
              : copies[0].to_tier == OCT_TIER_HOST ? OCT_TAP_TO_HOST
                                                   : OCT_TAP_TO_DEVICE,
              n);
  return answer;
}

static oct_submit
pull(oct_world *world, guint32 instance, guint32 peer, guint32 peer_domain, guint64 ticket,
     const oct_copy *copies, guint32 n, GError **error) {
  oct_tap *tap = tap_of(world);
  oct_submit answer =
      oct_world_pull(tap->inner, instance, peer, peer_domain, ticket, copies, n, error);
  if (answer == OCT_SUBMIT_OK)
    note_copy(tap, instance, ticket, OCT_TAP_FROM_PEER, n);
  return answer;
}

/* ---------------------------------------------------------------- out */

static void
step_done(oct_tap *tap, const oct_event *event) {
  for (guint i = 0; i < tap->steps->len; i++) {
    oct_tap_step *note = &g_array_index(tap->steps, oct_tap_step, i);
    if (note->instance != event->instance || note->number != event->number)
      continue;
    note->start_ns = event->result->start_ns;
    note->end_ns = event->result->end_ns;
    for (int p = 0; p < OCT_PART_COUNT; p++)
      note->part_ns[p] = event->result->part_ns[p];
    tap->listener.step(tap->listener.user, note);
    g_array_remove_index(tap->steps, i);
    return;
  }
}

static void
copy_done(oct_tap *tap, const oct_event *event) {
  for (guint i = 0; i < tap->copies->len; i++) {
    oct_tap_copy *note = &g_array_index(tap->copies, oct_tap_copy, i);
    if (note->instance != event->instance || note->ticket != event->number)
      continue;
    note->end_ns = event->time_ns;
    note->failed = event->failed != 0;
    tap->listener.copy(tap->listener.user, note);
    g_array_remove_index(tap->copies, i);
    return;
  }
}

/* After a fault steps end without a result, and an instance that is lost says nothing more. */
static void
forget(oct_tap *tap, guint32 instance) {
  for (guint i = tap->steps->len; i > 0; i--)
    if (g_array_index(tap->steps, oct_tap_step, i - 1).instance == instance)
      g_array_remove_index(tap->steps, i - 1);
  for (guint i = tap->copies->len; i > 0; i--)
    if (g_array_index(tap->copies, oct_tap_copy, i - 1).instance == instance)
      g_array_remove_index(tap->copies, i - 1);
}

static void
step_failed(oct_tap *tap, const oct_event *event) {
  for (guint i = tap->steps->len; i > 0; i--) {
    const oct_tap_step *note = &g_array_index(tap->steps, oct_tap_step, i - 1);
    if (note->instance == event->instance && note->number == event->fault->number)
      g_array_remove_index(tap->steps, i - 1);
  }
}

static gboolean
next(oct_world *world, oct_time until_ns, oct_event *event) {
  oct_tap *tap = tap_of(world);
  if (!oct_world_next(tap->inner, until_ns, event))
    return FALSE;
  if (event->kind == OCT_EVENT_STEP_DONE)
    step_done(tap, event);
  else if (event->kind == OCT_EVENT_COPY_DONE)
    copy_done(tap, event);
  else if (event->kind == OCT_EVENT_FAULT && event->fault->severity == OCT_SEVERITY_STEP)
    step_failed(tap, event);
  return TRUE;
}

/* m has become m + 1 without an event: the books follow. */
static gboolean
forward(oct_world *world, guint32 instance, const oct_forward *asked, oct_forwarded *forwarded) {
  oct_tap *tap = tap_of(world);
  if (!oct_world_forward(tap->inner, instance, asked, forwarded))
    return FALSE;
  for (guint i = 0; i < tap->steps->len; i++) {
    oct_tap_step *note = &g_array_index(tap->steps, oct_tap_step, i);
    if (note->instance != instance)
      continue;
    note->number++;
    note->submit_ns = asked->submit_ns;
    note->n_copies = 0;
  }
  return TRUE;
}

static void
close_instance(oct_world *world, guint32 instance) {
  oct_tap *tap = tap_of(world);
  forget(tap, instance);
  oct_world_close(tap->inner, instance);
}

/* ---------------------------------------------------------------- passed on */

static gboolean
open_instance(oct_world *world, const oct_instance_config *config, guint32 *instance,
              GError **error) {
  return oct_world_open(tap_of(world)->inner, config, instance, error);
}

static gboolean
mask(oct_world *world, guint32 instance, guint64 number, guint32 slice, const guint64 *bits,
     guint32 n_words, GError **error) {
  return oct_world_mask(tap_of(world)->inner, instance, number, slice, bits, n_words, error);
}

static void
wake(oct_world *world) {
  oct_world_wake(tap_of(world)->inner);
}

typedef struct call {
  oct_world *world;
  oct_world_fn fn;
  void *arg;
} call;

static int
run_within(oct_world *inner, void *arg) {
  const call *c = arg;
  (void)inner;
  return c->fn(c->world, c->arg);
}

static int
run(oct_world *world, oct_world_fn fn, void *arg) {
  call c = {world, fn, arg};
  return oct_world_run(tap_of(world)->inner, run_within, &c);
}

/* ---------------------------------------------------------------- life cycle */

static void
free_tap(oct_world *world) {
  oct_tap *tap = tap_of(world);
  g_array_unref(tap->steps);
  g_array_unref(tap->copies);
  g_free(tap);
}

oct_world *
oct_tap_new(oct_world *inner, const oct_tap_listener *listener) {
  oct_tap *tap = g_new0(oct_tap, 1);
  tap->ops = (oct_world_ops){
      .name = "tap",
      .abi = OCT_BACKEND_ABI,
      .clock = inner->ops->clock,
      .free = free_tap,
      .run = run,
      .wake = wake,
      .open = open_instance,
      .close = close_instance,
      .submit = submit,
      .copy = copy,
      .pull = oct_world_can_pull(inner) ? pull : NULL,
      .mask = inner->ops->mask != NULL ? mask : NULL,
      .next = next,
      .forward = inner->ops->forward != NULL ? forward : NULL,
  };
  oct_world_init(&tap->base, &tap->ops);
  tap->inner = inner;
  tap->listener = *listener;
  tap->steps = g_array_new(FALSE, FALSE, sizeof(oct_tap_step));
  tap->copies = g_array_new(FALSE, FALSE, sizeof(oct_tap_copy));
  return &tap->base;
}
