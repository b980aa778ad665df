/* The cpu world: the table of functions, the clocks, and which event comes next. What a step does
 * is in runner.c, who does it when in instance.c. */
#include "backends/cpu/world.h"

#include <string.h>

#include "backends/arithmetic.h"
#include "engine/base/assert.h"

#define NS_PER_S 1000000000
#define HOUR_NS  (3600 * (gint64)NS_PER_S)

static oct_cpu_world *
from_base(const oct_world *world) {
  return (oct_cpu_world *)(void *)world;
}

static gboolean
is_virtual(const oct_cpu_world *w) {
  return w->options.clock == OCT_CLOCK_VIRTUAL;
}

/* ---------------------------------------------------------------- clock */

oct_time
oct_cpu_world_now(const oct_cpu_world *w) {
  if (is_virtual(w))
    return w->now_ns;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (oct_time)(t.tv_sec - w->epoch.tv_sec) * NS_PER_S + (t.tv_nsec - w->epoch.tv_nsec);
}

static void
cpu_wake(oct_world *world) {
  oct_cpu_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  w->woken = TRUE;
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

/* Until something changes, or until_ns. With the lock held. */
static void
wait_until(oct_cpu_world *w, oct_time until_ns) {
  if (until_ns == OCT_TIME_NEVER) {
    pthread_cond_wait(&w->changed, &w->lock);
    return;
  }
  oct_time sum = w->epoch.tv_nsec + until_ns % NS_PER_S;
  struct timespec t = {.tv_sec = w->epoch.tv_sec + until_ns / NS_PER_S + sum / NS_PER_S,
                       .tv_nsec = sum % NS_PER_S};
  pthread_cond_timedwait(&w->changed, &w->lock, &t);
}

/* ---------------------------------------------------------------- life cycle */

static int
cpu_run(oct_world *world, oct_world_fn fn, void *arg) {
  return fn(world, arg);
}

static void
cpu_free(oct_world *world) {
  oct_cpu_world *w = from_base(world);
  oct_assert(w->n_open == 0);
  g_ptr_array_unref(w->instances);
  pthread_mutex_destroy(&w->lock);
  pthread_cond_destroy(&w->changed);
  g_free(w->model);
  g_free(w);
}

static oct_cpu_instance *
find_instance(const oct_cpu_world *w, guint32 id) {
  oct_assert(id >= 1 && id <= w->instances->len);
  return w->instances->pdata[id - 1];
}

void
oct_cpu_world_lose(oct_cpu_world *w, guint32 instance, const oct_fault *fault) {
  if (w->lost)
    return;
  w->lost = w->fault_due = TRUE;
  w->fault_instance = instance;
  w->fault = *fault;
  pthread_cond_signal(&w->changed);
}

static gboolean
cpu_open(oct_world *world, const oct_instance_config *config, guint32 *id, GError **error) {
  oct_cpu_world *w = from_base(world);
  if (w->lost) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "the world is lost: %s",
                w->fault.message);
    return FALSE;
  }
  if (!oct_parallel_check(config->spec, &config->parallel, error) ||
      !oct_arithmetic_check(config->spec, error))
    return FALSE;
  oct_cpu_instance *in = oct_cpu_instance_new(w, config, w->instances->len + 1);
  if (!is_virtual(w) && !oct_cpu_instance_start(in, error)) {
    oct_cpu_instance_free(in);
    return FALSE;
  }
  pthread_mutex_lock(&w->lock);
  g_ptr_array_add(w->instances, in);
  w->n_open++;
  pthread_mutex_unlock(&w->lock);
  *id = in->id;
  return TRUE;
}

/* Pulls from it fail; the one that is being made ends first. With the lock held. */
static void
end_pulls_from(oct_cpu_world *w, guint32 id) {
  for (guint i = 0; i < w->instances->len; i++) {
    oct_cpu_instance *other = w->instances->pdata[i];
    for (guint k = 0; other != NULL && k < other->transfers->len; k++) {
      oct_cpu_transfer *t = other->transfers->pdata[k];
      if (t->peer != id || t->done)
        continue;
      t->failed = TRUE;
      while (t->reading)
        pthread_cond_wait(&other->work, &w->lock);
      pthread_cond_broadcast(&other->work);
    }
  }
}

static void
remove_instance(oct_cpu_world *w, oct_cpu_instance *in) {
  pthread_mutex_lock(&w->lock);
  end_pulls_from(w, in->id);
  w->instances->pdata[in->id - 1] = NULL;
  w->n_open--;
  pthread_mutex_unlock(&w->lock);
  oct_cpu_instance_free(in);
}

static void
cpu_close(oct_world *world, guint32 id) {
  oct_cpu_world *w = from_base(world);
  oct_cpu_instance *in = find_instance(w, id);
  if (in != NULL)
    remove_instance(w, in);
}

/* The instance if it takes calls, else NULL with *error. With the lock held. */
static oct_cpu_instance *
usable(const oct_cpu_world *w, guint32 id, GError **error) {
  oct_cpu_instance *in = find_instance(w, id);
  if (w->lost)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "the world is lost: %s",
                w->fault.message);
  else if (in == NULL || !in->open_told)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "instance %u is %s", id,
                in == NULL ? "closed" : "not open yet");
  return w->lost || in == NULL || !in->open_told ? NULL : in;
}

/* ---------------------------------------------------------------- steps */

static gboolean
supports(const oct_step *step, GError **error) {
  const char *what = step->n_experts > 0 ? "expert slots" : NULL;
  for (guint32 i = 0; i < step->n_copies; i++)
    if (oct_step_copies(step)[i].kind == OCT_COPY_EXPERT)
      what = "expert slots";
  for (guint32 i = 0; i < step->n_slices; i++) {
    const oct_slice *s = &oct_step_slices(step)[i];
    if (s->adapter != 0)
      what = "adapters";
    else if (s->source == OCT_SOURCE_ABSENT)
      what = "tokens that are not there";
  }
  if (what == NULL)
    return TRUE;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_UNSUPPORTED,
              "step %" G_GUINT64_FORMAT " needs %s, which this backend lacks", step->number, what);
  return FALSE;
}

static oct_submit
submit(oct_cpu_world *w, guint32 id, const oct_step *step, GError **error) {
  oct_cpu_instance *in = usable(w, id, error);
  if (in == NULL)
    return OCT_SUBMIT_REFUSED;
  if (in->n == in->config.depth)
    return OCT_SUBMIT_FULL;
  if (!oct_step_check(step, step->bytes, &in->config, error))
    return OCT_SUBMIT_REFUSED;
  if (step->number != in->last_number + 1) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "step.number is %" G_GUINT64_FORMAT ", must be %" G_GUINT64_FORMAT, step->number,
                in->last_number + 1);
    return OCT_SUBMIT_REFUSED;
  }
  if (!supports(step, error))
    return OCT_SUBMIT_REFUSED;
  oct_cpu_instance_add_flight(in, step, oct_cpu_world_now(w));
  return OCT_SUBMIT_OK;
}

static oct_submit
cpu_submit(oct_world *world, guint32 id, const oct_step *step, GError **error) {
  oct_cpu_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  oct_submit answer = submit(w, id, step, error);
  pthread_mutex_unlock(&w->lock);
  return answer;
}

static gboolean
cpu_mask(oct_world *world, guint32 id, guint64 number, guint32 slice, const guint64 *bits,
         guint32 n_words, GError **error) {
  oct_cpu_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  oct_cpu_instance *in = usable(w, id, error);
  gboolean taken = in != NULL && oct_cpu_instance_mask(in, number, slice, bits, n_words,
                                                       oct_cpu_world_now(w), error);
  pthread_mutex_unlock(&w->lock);
  return taken;
}

/* ---------------------------------------------------------------- copies */

static gboolean
ticket_is_new(const oct_cpu_instance *in, guint64 ticket, GError **error) {
  for (guint i = 0; i < in->transfers->len; i++) {
    const oct_cpu_transfer *t = in->transfers->pdata[i];
    if (t->ticket != ticket)
      continue;
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "copy: ticket %" G_GUINT64_FORMAT " is in flight", ticket);
    return FALSE;
  }
  return TRUE;
}

static gboolean
copies_supported(const oct_copy *copies, guint32 n, GError **error) {
  for (guint32 i = 0; i < n; i++)
    if (copies[i].kind == OCT_COPY_EXPERT) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_UNSUPPORTED,
                  "copies[%u] loads an expert: this backend has no expert slots", i);
      return FALSE;
    }
  return TRUE;
}

static oct_submit
cpu_copy(oct_world *world, guint32 id, guint64 ticket, const oct_copy *copies, guint32 n_copies,
         GError **error) {
  oct_cpu_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  oct_cpu_instance *in = usable(w, id, error);
  gboolean fine = in != NULL && oct_copies_check(copies, n_copies, &in->config, error) &&
                  copies_supported(copies, n_copies, error) && ticket_is_new(in, ticket, error);
  const oct_cpu_transfer about = {.ticket = ticket, .submit_ns = oct_cpu_world_now(w)};
  if (fine)
    oct_cpu_instance_add_transfer(in, &about, copies, n_copies);
  pthread_mutex_unlock(&w->lock);
  return fine ? OCT_SUBMIT_OK : OCT_SUBMIT_REFUSED;
}

static oct_submit
cpu_pull(oct_world *world, guint32 id, guint32 peer_id, guint32 peer_domain, guint64 ticket,
         const oct_copy *copies, guint32 n_copies, GError **error) {
  oct_cpu_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  oct_cpu_instance *in = usable(w, id, error);
  oct_cpu_instance *peer = in != NULL ? usable(w, peer_id, error) : NULL;
  gboolean fine =
      peer != NULL &&
      oct_pull_check(copies, n_copies, &in->config, &peer->config, peer_domain, error) &&
      ticket_is_new(in, ticket, error);
  const oct_cpu_transfer about = {.ticket = ticket,
                                  .peer = peer_id,
                                  .peer_domain = peer_domain,
                                  .submit_ns = oct_cpu_world_now(w)};
  if (fine)
    oct_cpu_instance_add_transfer(in, &about, copies, n_copies);
  pthread_mutex_unlock(&w->lock);
  return fine ? OCT_SUBMIT_OK : OCT_SUBMIT_REFUSED;
}

/* ---------------------------------------------------------------- what comes next */

typedef enum due_kind {
  DUE_NOTHING,
  DUE_FAULT,
  DUE_PROGRESS,
  DUE_OPENED,
  DUE_MASK,
  DUE_STEP,
  DUE_TRANSFER
} due_kind;

typedef struct due {
  due_kind kind;
  oct_time time_ns; /* virtual clock; with a real one all that is there is due */
  oct_cpu_instance *in;
  guint32 index; /* of the flight or transfer */
} due;

static void
consider(due *best, due_kind kind, oct_time time_ns, oct_cpu_instance *in, guint32 index) {
  if (best->kind == DUE_NOTHING || time_ns < best->time_ns)
    *best = (due){kind, time_ns, in, index};
}

/* Whether the flight waits for a mask that has not been asked for; moves past the others. */
static gboolean
wants_mask(oct_cpu_flight *f) {
  for (; f->next_wanted < f->record->n_slices; f->next_wanted++)
    if (f->mask_index[f->next_wanted] != OCT_NO_INDEX && f->masks[f->next_wanted] == NULL)
      return TRUE;
  return FALSE;
}

static void
consider_opening(oct_cpu_instance *in, due *best) {
  if (in->progress_due || (is_virtual(in->world) && !in->open && !in->failed))
    consider(best, DUE_PROGRESS, in->open_ns, in, 0);
  else if (in->open || in->failed)
    consider(best, DUE_OPENED, in->open_ns, in, 0);
}

static void
consider_real(oct_cpu_instance *in, due *best) {
  for (guint32 i = 0; i < in->n; i++) {
    oct_cpu_flight *f = oct_cpu_instance_flight(in, i);
    if (f->state == OCT_FLIGHT_SAMPLING && f->n_missing > 0 && wants_mask(f))
      consider(best, DUE_MASK, 0, in, i);
  }
  if (in->n > 0 && oct_cpu_instance_flight(in, 0)->state == OCT_FLIGHT_DONE)
    consider(best, DUE_STEP, 0, in, 0);
  for (guint32 i = 0; i < in->transfers->len; i++)
    if (((oct_cpu_transfer *)in->transfers->pdata[i])->done)
      consider(best, DUE_TRANSFER, 0, in, i);
}

static void
consider_virtual(oct_cpu_instance *in, due *best) {
  oct_cpu_instance_place(in);
  for (guint32 i = 0; i < in->n; i++) {
    oct_cpu_flight *f = oct_cpu_instance_flight(in, i);
    if (f->placed && f->n_missing > 0 && wants_mask(f))
      consider(best, DUE_MASK, f->sampling_ns, in, i);
  }
  if (in->n > 0 && oct_cpu_instance_flight(in, 0)->known)
    consider(best, DUE_STEP, oct_cpu_instance_flight(in, 0)->end_ns, in, 0);
  /* Transfers come one after another, each after the steps before it. */
  oct_time before = 0;
  for (guint32 i = 0; i < in->transfers->len; i++) {
    oct_cpu_transfer *t = in->transfers->pdata[i];
    oct_time ready = MAX(t->submit_ns, before);
    for (guint32 k = 0; k < in->n; k++) {
      const oct_cpu_flight *f = oct_cpu_instance_flight(in, k);
      if (f->number <= t->after)
        ready = f->known ? MAX(ready, f->end_ns) : OCT_TIME_NEVER;
    }
    if (ready == OCT_TIME_NEVER)
      return;
    if (t->end_ns == 0)
      t->end_ns = ready + t->n * in->world->options.copy_ns;
    before = t->end_ns;
    consider(best, DUE_TRANSFER, t->end_ns, in, i);
  }
}

static due
find_due(oct_cpu_world *w) {
  due best = {.kind = DUE_NOTHING};
  if (w->fault_due)
    consider(&best, DUE_FAULT, 0, NULL, 0);
  for (guint i = 0; !w->lost && i < w->instances->len; i++) {
    oct_cpu_instance *in = w->instances->pdata[i];
    if (in == NULL)
      continue;
    if (!in->open_told)
      consider_opening(in, &best);
    else if (is_virtual(w))
      consider_virtual(in, &best);
    else
      consider_real(in, &best);
  }
  return best;
}

/* ---------------------------------------------------------------- telling */

static void
tell_progress(oct_cpu_world *w, oct_cpu_instance *in, oct_event *event) {
  event->kind = OCT_EVENT_OPEN_PROGRESS;
  event->phase = "weights";
  event->fraction = in->fraction;
  if (is_virtual(w) && !in->open && !in->failed) {
    pthread_mutex_unlock(&w->lock);
    oct_cpu_instance_load(in);
    pthread_mutex_lock(&w->lock);
  }
  in->progress_due = FALSE;
}

/* The instance of a failed opening is gone: TRUE, it is to be removed. */
static gboolean
tell_opened(oct_cpu_world *w, oct_cpu_instance *in, oct_event *event) {
  in->open_told = TRUE;
  if (in->open) {
    event->kind = OCT_EVENT_OPENED;
    event->capabilities = &in->capabilities;
    return FALSE;
  }
  event->kind = OCT_EVENT_OPEN_FAILED;
  w->told = (oct_fault){.severity = OCT_SEVERITY_INSTANCE, .device = OCT_NO_INDEX};
  g_strlcpy(w->told.message, in->why, sizeof w->told.message);
  event->fault = &w->told;
  return TRUE;
}

/* Virtual clock: the work of the step whose end has come. FALSE: the world is lost. */
static gboolean
compute(oct_cpu_world *w, oct_cpu_instance *in, oct_cpu_flight *f) {
  oct_fault fault;
  if (oct_cpu_instance_begin(in, f, &fault) == OCT_CPU_BREACH) {
    oct_cpu_world_lose(w, in->id, &fault);
    return FALSE;
  }
  oct_cpu_instance_finish(in, f);
  f->state = OCT_FLIGHT_DONE;
  in->done_number = f->number;
  return TRUE;
}

static gboolean
tell_step(oct_cpu_world *w, oct_cpu_instance *in, oct_event *event) {
  oct_cpu_flight *f = oct_cpu_instance_flight(in, 0);
  if (f->state != OCT_FLIGHT_DONE && !compute(w, in, f))
    return FALSE;
  event->number = f->number;
  if (f->next_failed < f->n_failed) {
    w->told = (oct_fault){.severity = OCT_SEVERITY_REQUEST,
                          .device = OCT_NO_INDEX,
                          .number = f->number,
                          .slice = f->failed[f->next_failed++]};
    g_strlcpy(w->told.message, f->reason, sizeof w->told.message);
    event->kind = OCT_EVENT_FAULT;
    event->fault = &w->told;
    return TRUE;
  }
  event->kind = OCT_EVENT_STEP_DONE;
  event->result = (const oct_step_result *)(const void *)f->result;
  oct_cpu_instance_pop(in);
  return TRUE;
}

static void
tell_transfer(oct_cpu_world *w, oct_cpu_instance *in, guint32 index, oct_event *event) {
  oct_cpu_transfer *t = in->transfers->pdata[index];
  if (is_virtual(w) && !t->failed)
    oct_cpu_instance_copy(in, t->peer != 0 ? find_instance(w, t->peer) : NULL, t);
  event->kind = OCT_EVENT_COPY_DONE;
  event->number = t->ticket;
  event->failed = t->failed;
  oct_cpu_instance_drop_transfer(in, index);
}

/* Fills the event in. FALSE: it turned out otherwise, look again. *gone is to be removed. */
static gboolean
tell(oct_cpu_world *w, const due *d, oct_event *event, oct_cpu_instance **gone) {
  event->instance = d->in != NULL ? d->in->id : w->fault_instance;
  switch (d->kind) {
  case DUE_FAULT:
    w->fault_due = FALSE;
    event->kind = OCT_EVENT_FAULT;
    event->fault = &w->fault;
    return TRUE;
  case DUE_PROGRESS:
    tell_progress(w, d->in, event);
    return TRUE;
  case DUE_OPENED:
    if (tell_opened(w, d->in, event))
      *gone = d->in;
    return TRUE;
  case DUE_MASK: {
    oct_cpu_flight *f = oct_cpu_instance_flight(d->in, d->index);
    event->kind = OCT_EVENT_MASK_WANTED;
    event->number = f->number;
    event->slice = f->next_wanted++;
    return TRUE;
  }
  case DUE_STEP:
    return tell_step(w, d->in, event);
  case DUE_TRANSFER:
    tell_transfer(w, d->in, d->index, event);
    return TRUE;
  case DUE_NOTHING:
    break;
  }
  oct_assert_failed(__FILE__, __LINE__, "something is due");
}

/* FALSE: a virtual clock at rest. With the lock held. */
static gboolean
next_event(oct_cpu_world *w, oct_time until_ns, oct_event *event, oct_cpu_instance **gone) {
  for (;;) {
    if (w->woken) {
      w->woken = FALSE;
      *event = (oct_event){.kind = OCT_EVENT_WAKE, .time_ns = oct_cpu_world_now(w)};
      return TRUE;
    }
    due d = find_due(w);
    oct_time first = d.kind != DUE_NOTHING ? d.time_ns : OCT_TIME_NEVER;
    if (is_virtual(w) && MIN(first, until_ns) == OCT_TIME_NEVER)
      return FALSE;
    if (is_virtual(w))
      w->now_ns = MAX(w->now_ns, MIN(first, until_ns));
    *event = (oct_event){.time_ns = oct_cpu_world_now(w)};
    if (d.kind != DUE_NOTHING && first <= until_ns) {
      if (tell(w, &d, event, gone))
        return TRUE;
      continue;
    }
    if (until_ns <= event->time_ns) {
      event->kind = OCT_EVENT_TIMER;
      return TRUE;
    }
    if (!is_virtual(w))
      wait_until(w, until_ns);
  }
}

static gboolean
cpu_next(oct_world *world, oct_time until_ns, oct_event *event) {
  oct_cpu_world *w = from_base(world);
  oct_cpu_instance *gone = NULL;
  pthread_mutex_lock(&w->lock);
  gboolean found = next_event(w, until_ns, event, &gone);
  pthread_mutex_unlock(&w->lock);
  if (gone != NULL)
    remove_instance(w, gone);
  return found;
}

/* ---------------------------------------------------------------- construction */

static const oct_world_ops real_ops = {
    .name = "cpu",
    .abi = OCT_BACKEND_ABI,
    .clock = OCT_CLOCK_REAL,
    .free = cpu_free,
    .run = cpu_run,
    .wake = cpu_wake,
    .open = cpu_open,
    .close = cpu_close,
    .submit = cpu_submit,
    .copy = cpu_copy,
    .pull = cpu_pull,
    .mask = cpu_mask,
    .next = cpu_next,
};

static const oct_world_ops virtual_ops = {
    .name = "cpu",
    .abi = OCT_BACKEND_ABI,
    .clock = OCT_CLOCK_VIRTUAL,
    .free = cpu_free,
    .run = cpu_run,
    .wake = cpu_wake,
    .open = cpu_open,
    .close = cpu_close,
    .submit = cpu_submit,
    .copy = cpu_copy,
    .pull = cpu_pull,
    .mask = cpu_mask,
    .next = cpu_next,
};

void
oct_cpu_options_default(oct_cpu_options *options) {
  *options = (oct_cpu_options){
      .seed = 1, .clock = OCT_CLOCK_REAL, .fixed_ns = 1000000, .token_ns = 10000, .copy_ns = 10000};
}

static gboolean
check_options(const oct_cpu_options *o, GError **error) {
  const struct {
    const char *name;
    gint64 value, low, high;
  } ranges[] = {{"threads", o->threads, 0, OCT_TEAM_THREADS_MAX},
                {"fixed_ns", o->fixed_ns, 1, HOUR_NS},
                {"token_ns", o->token_ns, 0, NS_PER_S},
                {"copy_ns", o->copy_ns, 1, NS_PER_S}};
  for (gsize i = 0; i < G_N_ELEMENTS(ranges); i++)
    if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                  "cpu: %s is %" G_GINT64_FORMAT ", must be %" G_GINT64_FORMAT
                  " to %" G_GINT64_FORMAT,
                  ranges[i].name, ranges[i].value, ranges[i].low, ranges[i].high);
      return FALSE;
    }
  return TRUE;
}

oct_world *
oct_cpu_world_new(const oct_cpu_options *options, GError **error) {
  oct_cpu_options defaults;
  oct_cpu_options_default(&defaults);
  if (options == NULL)
    options = &defaults;
  if (!check_options(options, error))
    return NULL;
  oct_cpu_world *w = g_new0(oct_cpu_world, 1);
  oct_world_init(&w->base, options->clock == OCT_CLOCK_REAL ? &real_ops : &virtual_ops);
  w->options = *options;
  w->options.model = w->model = g_strdup(options->model);
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
