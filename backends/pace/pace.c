#include "backends/pace/pace.h"

#include <pthread.h>
#include <time.h>

#include "engine/base/assert.h"

#define NS_PER_S 1000000000

/* What an instance has under way: as long as there is anything, time must be looked at. */
typedef struct under_way {
  gboolean opening;
  guint32 steps, copies;
} under_way;

typedef struct pace_world {
  oct_world base;
  oct_world_ops ops;
  oct_world *inner;
  GArray *instances; /* under_way, [id - 1] */
  oct_capabilities capabilities;
  struct timespec epoch;
  pthread_mutex_t lock; /* of woken */
  pthread_cond_t changed;
  gboolean woken;
} pace_world;

static pace_world *
from_base(const oct_world *world) {
  return (pace_world *)(void *)world;
}

/* ---------------------------------------------------------------- the machine's clock */

static oct_time
wall(const pace_world *w) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (oct_time)(t.tv_sec - w->epoch.tv_sec) * NS_PER_S + (t.tv_nsec - w->epoch.tv_nsec);
}

static void
pace_wake(oct_world *world) {
  pace_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  w->woken = TRUE;
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

static gboolean
take_wake(pace_world *w) {
  pthread_mutex_lock(&w->lock);
  gboolean woken = w->woken;
  w->woken = FALSE;
  pthread_mutex_unlock(&w->lock);
  return woken;
}

/* Until `until_ns`, or until woken. */
static void
wait_until(pace_world *w, oct_time until_ns) {
  oct_time sum = w->epoch.tv_nsec + until_ns % NS_PER_S;
  struct timespec t = {.tv_sec = w->epoch.tv_sec + until_ns / NS_PER_S + sum / NS_PER_S,
                       .tv_nsec = sum % NS_PER_S};
  pthread_mutex_lock(&w->lock);
  while (!w->woken) {
    if (until_ns == OCT_TIME_NEVER)
      pthread_cond_wait(&w->changed, &w->lock);
    else if (pthread_cond_timedwait(&w->changed, &w->lock, &t) != 0)
      break;
  }
  pthread_mutex_unlock(&w->lock);
}

/* ---------------------------------------------------------------- what is under way */

static under_way *
instance_of(pace_world *w, guint32 id) {
  oct_assert(id >= 1);
  if (w->instances->len < id)
    g_array_set_size(w->instances, id);
  return &g_array_index(w->instances, under_way, id - 1);
}

static gboolean
is_idle(const pace_world *w) {
  for (guint i = 0; i < w->instances->len; i++) {
    const under_way *in = &g_array_index(w->instances, under_way, i);
    if (in->opening || in->steps > 0 || in->copies > 0)
      return FALSE;
  }
  return TRUE;
}

static void
note_fault(pace_world *w, const oct_event *event) {
  switch (event->fault->severity) {
  case OCT_SEVERITY_REQUEST:
    break;
  case OCT_SEVERITY_STEP: {
    under_way *in = instance_of(w, event->instance);
    in->steps -= in->steps > 0;
    break;
  }
  case OCT_SEVERITY_INSTANCE:
    *instance_of(w, event->instance) = (under_way){0};
    break;
  case OCT_SEVERITY_FATAL:
    g_array_set_size(w->instances, 0);
    break;
  }
}

static void
note_event(pace_world *w, oct_event *event) {
  under_way *in = event->instance != 0 ? instance_of(w, event->instance) : NULL;
  switch (event->kind) {
  case OCT_EVENT_OPENED:
    in->opening = FALSE;
    w->capabilities = *event->capabilities;
    w->capabilities.clock = OCT_CLOCK_REAL;
    w->capabilities.forward = FALSE;
    event->capabilities = &w->capabilities;
    break;
  case OCT_EVENT_OPEN_FAILED:
    *in = (under_way){0};
    break;
  case OCT_EVENT_STEP_DONE:
    in->steps -= in->steps > 0;
    break;
  case OCT_EVENT_COPY_DONE:
    in->copies -= in->copies > 0;
    break;
  case OCT_EVENT_FAULT:
    note_fault(w, event);
    break;
  case OCT_EVENT_TIMER:
  case OCT_EVENT_WAKE:
  case OCT_EVENT_OPEN_PROGRESS:
  case OCT_EVENT_MASK_WANTED:
    break;
  }
}

/* ---------------------------------------------------------------- events */

static gboolean
pace_next(oct_world *world, oct_time until_ns, oct_event *event) {
  pace_world *w = from_base(world);
  for (;;) {
    oct_time now = MAX(wall(w), w->inner->now_ns);
    /* Asked before the inner world is: what it then has comes first, and the wake-up after it. */
    gboolean woken = take_wake(w);
    if (!oct_world_next(w->inner, MAX(MIN(until_ns, now), w->inner->now_ns), event))
      return FALSE;
    if (event->kind != OCT_EVENT_TIMER) {
      note_event(w, event);
      if (woken)
        pace_wake(world);
      return TRUE;
    }
    if (woken)
      event->kind = OCT_EVENT_WAKE;
    if (woken || until_ns <= now)
      return TRUE;
    wait_until(w, is_idle(w) ? until_ns : MIN(until_ns, now + OCT_PACE_SLICE_NS));
  }
}

/* ---------------------------------------------------------------- calls */

typedef struct run_call {
  pace_world *w;
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
pace_run(oct_world *world, oct_world_fn fn, void *arg) {
  pace_world *w = from_base(world);
  run_call call = {w, fn, arg};
  return oct_world_run(w->inner, run_inner, &call);
}

static gboolean
pace_open(oct_world *world, const oct_instance_config *config, guint32 *id, GError **error) {
  pace_world *w = from_base(world);
  if (!oct_world_open(w->inner, config, id, error))
    return FALSE;
  instance_of(w, *id)->opening = TRUE;
  return TRUE;
}

static void
pace_close(oct_world *world, guint32 id) {
  pace_world *w = from_base(world);
  oct_world_close(w->inner, id);
  *instance_of(w, id) = (under_way){0};
}

static oct_submit
pace_submit(oct_world *world, guint32 id, const oct_step *step, GError **error) {
  pace_world *w = from_base(world);
  oct_submit outcome = oct_world_submit(w->inner, id, step, error);
  instance_of(w, id)->steps += outcome == OCT_SUBMIT_OK;
  return outcome;
}

static oct_submit
pace_copy(oct_world *world, guint32 id, guint64 ticket, const oct_copy *copies, guint32 n_copies,
          GError **error) {
  pace_world *w = from_base(world);
  oct_submit outcome = oct_world_copy(w->inner, id, ticket, copies, n_copies, error);
  instance_of(w, id)->copies += outcome == OCT_SUBMIT_OK;
  return outcome;
}

static oct_submit
pace_pull(oct_world *world, guint32 id, guint32 peer, guint32 peer_domain, guint64 ticket,
          const oct_copy *copies, guint32 n_copies, GError **error) {
  pace_world *w = from_base(world);
  oct_submit outcome =
      oct_world_pull(w->inner, id, peer, peer_domain, ticket, copies, n_copies, error);
  instance_of(w, id)->copies += outcome == OCT_SUBMIT_OK;
  return outcome;
}

static gboolean
pace_mask(oct_world *world, guint32 id, guint64 number, guint32 slice, const guint64 *bits,
          guint32 n_words, GError **error) {
  return oct_world_mask(from_base(world)->inner, id, number, slice, bits, n_words, error);
}

/* ---------------------------------------------------------------- life cycle */

static void
pace_free(oct_world *world) {
  pace_world *w = from_base(world);
  oct_world_free(w->inner);
  g_array_unref(w->instances);
  pthread_mutex_destroy(&w->lock);
  pthread_cond_destroy(&w->changed);
  g_free(w);
}

oct_world *
oct_pace_world_new(oct_world *inner, GError **error) {
  if (inner->ops->clock != OCT_CLOCK_VIRTUAL) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "pace: the clock of %s is real already", inner->ops->name);
    oct_world_free(inner);
    return NULL;
  }
  pace_world *w = g_new0(pace_world, 1);
  w->ops = (oct_world_ops){
      .name = "pace",
      .abi = OCT_BACKEND_ABI,
      .clock = OCT_CLOCK_REAL,
      .free = pace_free,
      .run = pace_run,
      .wake = pace_wake,
      .open = pace_open,
      .close = pace_close,
      .submit = pace_submit,
      .copy = pace_copy,
      .pull = oct_world_can_pull(inner) ? pace_pull : NULL,
      .mask = inner->ops->mask != NULL ? pace_mask : NULL,
      .next = pace_next,
  };
  oct_world_init(&w->base, &w->ops);
  w->inner = inner;
  w->instances = g_array_new(FALSE, TRUE, sizeof(under_way));
  clock_gettime(CLOCK_MONOTONIC, &w->epoch);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  return &w->base;
}
