/* The cuda world: the table of functions, the clock, and which event comes next. Who does what when
 * is in instance.c and worker.c. */
#include "backends/cuda/world.h"

#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "engine/base/assert.h"

#define NS_PER_S  1000000000
#define HOUR_NS   (3600 * (gint64)NS_PER_S)
#define AWAKE_NS  50000 /* next() looks at the devices without a pause for so long, */
#define NAP_NS    20000 /* then with pauses */
#define SLACK_NS  1000ul
#define EXIT_LOST 71

static oct_cuda_world *
from_base(const oct_world *world) {
  return (oct_cuda_world *)(void *)world;
}

/* ---------------------------------------------------------------- clock */

oct_time
oct_cuda_world_now(const oct_cuda_world *w) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (oct_time)(t.tv_sec - w->epoch.tv_sec) * NS_PER_S + (t.tv_nsec - w->epoch.tv_nsec);
}

static void
cuda_wake(oct_world *world) {
  oct_cuda_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  w->woken = TRUE;
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

void
oct_cuda_world_wait(oct_cuda_world *w, oct_time until_ns) {
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
cuda_run(oct_world *world, oct_world_fn fn, void *arg) {
  (void)prctl(PR_SET_TIMERSLACK, SLACK_NS); /* naps of next() are short */
  return fn(world, arg);
}

/* What failed to open may take long to go: that is told before. */
static void
clear_away(oct_cuda_world *w) {
  if (w->leaving != NULL)
    oct_cuda_instance_free(w->leaving);
  w->leaving = NULL;
}

static void
cuda_free(oct_world *world) {
  oct_cuda_world *w = from_base(world);
  oct_assert(w->n_open == 0);
  clear_away(w);
  g_ptr_array_unref(w->instances);
  pthread_mutex_destroy(&w->lock);
  pthread_cond_destroy(&w->changed);
  g_free(w->model);
  g_free(w);
}

static oct_cuda_instance *
find_instance(const oct_cuda_world *w, guint32 id) {
  oct_assert(id >= 1 && id <= w->instances->len);
  return w->instances->pdata[id - 1];
}

void
oct_cuda_world_lose(oct_cuda_world *w, guint32 instance, const oct_fault *fault) {
  if (w->lost)
    return;
  w->lost = w->fault_due = TRUE;
  w->fault_instance = instance;
  w->fault = *fault;
  pthread_cond_signal(&w->changed);
}

/* Ranks to devices of this world. */
static gboolean
check_devices(const oct_cuda_world *w, const oct_instance_config *c, GError **error) {
  for (guint32 r = 0; r < oct_parallel_world(&c->parallel); r++)
    if (c->devices[r] >= w->options.devices) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                  "rank %u is on device %u, the world has %u", r, c->devices[r],
                  w->options.devices);
      return FALSE;
    }
  return TRUE;
}

/* What was told of it has gone its way: a call comes after the event has been passed on. */
static void
leave_if_spoiled(const oct_cuda_world *w) {
  if (!__atomic_load_n(&w->spoiled, __ATOMIC_ACQUIRE) || !w->options.exit_on_loss)
    return;
  g_printerr("octet: cuda: %s; what is wrong stays with the process, which ends\n", w->spoilt_by);
  _exit(EXIT_LOST);
}

static gboolean
cuda_open(oct_world *world, const oct_instance_config *config, guint32 *id, GError **error) {
  oct_cuda_world *w = from_base(world);
  clear_away(w);
  leave_if_spoiled(w);
  if (w->lost) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "the world is lost: %s",
                w->fault.message);
    return FALSE;
  }
  if (!check_devices(w, config, error) || !oct_cuda_model_supports(config, error))
    return FALSE;
  oct_cuda_instance *in = oct_cuda_instance_new(w, config, w->instances->len + 1);
  if (!oct_cuda_instance_start(in, error)) {
    oct_cuda_instance_free(in);
    return FALSE;
  }
  pthread_mutex_lock(&w->lock);
  g_ptr_array_add(w->instances, in);
  w->n_open++;
  pthread_mutex_unlock(&w->lock);
  *id = in->id;
  return TRUE;
}

/* No call and no event is of it any more. With the lock held. */
static void
detach(oct_cuda_world *w, const oct_cuda_instance *in) {
  w->instances->pdata[in->id - 1] = NULL;
  w->n_open--;
}

static void
remove_instance(oct_cuda_world *w, oct_cuda_instance *in) {
  if (in->lost && w->options.exit_on_loss) {
    g_printerr("octet: cuda: %s; the process ends\n", in->fault.message);
    _exit(EXIT_LOST);
  }
  pthread_mutex_lock(&w->lock);
  oct_cuda_instance_fail_pulls(w, in->id);
  pthread_mutex_unlock(&w->lock);
  oct_cuda_instance_await_pulls(w, in->id);
  pthread_mutex_lock(&w->lock);
  detach(w, in);
  pthread_mutex_unlock(&w->lock);
  oct_cuda_instance_free(in);
}

static void
cuda_close(oct_world *world, guint32 id) {
  oct_cuda_world *w = from_base(world);
  oct_cuda_instance *in = find_instance(w, id);
  if (in != NULL)
    remove_instance(w, in);
}

/* The instance if it takes calls, else NULL with *error. With the lock held. */
static oct_cuda_instance *
usable(const oct_cuda_world *w, guint32 id, GError **error) {
  oct_cuda_instance *in = find_instance(w, id);
  gboolean fine = !w->lost && in != NULL && in->open_told && !in->lost;
  if (fine)
    return in;
  if (w->lost)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "the world is lost: %s",
                w->fault.message);
  else if (in != NULL && in->lost)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "instance %u is lost: %s", id,
                in->fault.message);
  else
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "instance %u is %s", id,
                in == NULL ? "closed" : "not open yet");
  return NULL;
}

/* ---------------------------------------------------------------- steps */

/* What of the step this instance lacks; NULL = nothing. */
static const char *
lacks(const oct_cuda_instance *in, const oct_step *step) {
  if (step->n_experts > 0 && in->config.memory.n_expert_slots == 0)
    return "expert slots";
  for (guint32 i = 0; i < step->n_opens; i++)
    if (oct_step_opens(step)[i].n_stops > OCT_CUDA_STOPS_MAX)
      return "more suppressed ids of a sequence than 64";
  for (guint32 i = 0; i < step->n_slices; i++) {
    const oct_slice *s = &oct_step_slices(step)[i];
    if (s->adapter != 0)
      return "adapters";
    if (s->source == OCT_SOURCE_ABSENT)
      return "tokens that are not there";
    if (s->n_logprobs > OCT_CUDA_LOGPROBS_MAX || s->n_prompt_logprobs > OCT_CUDA_LOGPROBS_MAX)
      return "more logprobs of a token than 128";
    if ((s->flags & OCT_SLICE_VERIFY) != 0 && !in->capabilities.speculation)
      return "verification of drafts";
  }
  return NULL;
}

static gboolean
supports(const oct_cuda_instance *in, const oct_step *step, GError **error) {
  const char *what = lacks(in, step);
  if (what == NULL)
    return TRUE;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_UNSUPPORTED,
              "step %" G_GUINT64_FORMAT " needs %s, which this instance lacks", step->number, what);
  return FALSE;
}

static oct_submit
submit(oct_cuda_world *w, guint32 id, const oct_step *step, GError **error) {
  oct_cuda_instance *in = usable(w, id, error);
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
  if (!supports(in, step, error))
    return OCT_SUBMIT_REFUSED;
  oct_cuda_instance_add_flight(in, step, oct_cuda_world_now(w));
  return OCT_SUBMIT_OK;
}

static oct_submit
cuda_submit(oct_world *world, guint32 id, const oct_step *step, GError **error) {
  oct_cuda_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  oct_submit answer = submit(w, id, step, error);
  pthread_mutex_unlock(&w->lock);
  return answer;
}

static gboolean
cuda_mask(oct_world *world, guint32 id, guint64 number, guint32 slice, const guint64 *bits,
          guint32 n_words, GError **error) {
  oct_cuda_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  oct_cuda_instance *in = usable(w, id, error);
  gboolean taken = in != NULL && oct_cuda_instance_mask(in, number, slice, bits, n_words,
                                                        oct_cuda_world_now(w), error);
  pthread_mutex_unlock(&w->lock);
  return taken;
}

/* ---------------------------------------------------------------- copies */

static gboolean
is_new(const oct_cuda_instance *in, guint64 ticket, GError **error) {
  for (guint i = 0; i < in->transfers->len; i++)
    if (((const oct_cuda_transfer *)in->transfers->pdata[i])->ticket == ticket) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                  "copy: ticket %" G_GUINT64_FORMAT " is in flight", ticket);
      return FALSE;
    }
  return TRUE;
}

static gboolean
takes_copies(const oct_cuda_instance *in, guint64 ticket, const oct_copy *copies, guint32 n,
             GError **error) {
  return oct_copies_check(copies, n, &in->config, error) && is_new(in, ticket, error);
}

static oct_submit
cuda_copy(oct_world *world, guint32 id, guint64 ticket, const oct_copy *copies, guint32 n_copies,
          GError **error) {
  oct_cuda_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  oct_cuda_instance *in = usable(w, id, error);
  gboolean fine = in != NULL && takes_copies(in, ticket, copies, n_copies, error);
  if (fine)
    (void)oct_cuda_instance_add_transfer(in, ticket, copies, n_copies);
  pthread_mutex_unlock(&w->lock);
  return fine ? OCT_SUBMIT_OK : OCT_SUBMIT_REFUSED;
}

/* Rank takes from rank: what a page is on each must be the same. */
static gboolean
same_ranks(const oct_cuda_instance *in, const oct_cuda_instance *peer, GError **error) {
  const oct_parallel *a = &in->config.parallel, *b = &peer->config.parallel;
  if (a->tensor == b->tensor && a->pipeline == b->pipeline &&
      memcmp(a->stage_layers, b->stage_layers, sizeof a->stage_layers) == 0)
    return TRUE;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_UNSUPPORTED,
              "pull: the peer has tensor parallel size %u and %u stages, this instance %u and %u: "
              "pages are not cut anew",
              b->tensor, b->pipeline, a->tensor, a->pipeline);
  return FALSE;
}

static oct_submit
cuda_pull(oct_world *world, guint32 id, guint32 peer_id, guint32 peer_domain, guint64 ticket,
          const oct_copy *copies, guint32 n_copies, GError **error) {
  oct_cuda_world *w = from_base(world);
  pthread_mutex_lock(&w->lock);
  oct_cuda_instance *in = usable(w, id, error);
  oct_cuda_instance *peer = in != NULL ? usable(w, peer_id, error) : NULL;
  gboolean fine =
      peer != NULL &&
      oct_pull_check(copies, n_copies, &in->config, &peer->config, peer_domain, error) &&
      same_ranks(in, peer, error) && is_new(in, ticket, error);
  if (fine) {
    oct_cuda_transfer *t = oct_cuda_instance_add_transfer(in, ticket, copies, n_copies);
    t->peer = peer_id;
    t->peer_domain = peer_domain;
  }
  pthread_mutex_unlock(&w->lock);
  return fine ? OCT_SUBMIT_OK : OCT_SUBMIT_REFUSED;
}

/* ---------------------------------------------------------------- what comes next */

/* Whether the flight waits for a mask that has not been asked for; moves past the others. */
static gboolean
wants_mask(oct_cuda_flight *f) {
  for (; f->next_wanted < f->record->n_slices; f->next_wanted++)
    if (f->mask_index[f->next_wanted] != OCT_NO_INDEX && f->masks[f->next_wanted] == NULL)
      return TRUE;
  return FALSE;
}

static gboolean
tell_opening(oct_cuda_world *w, oct_cuda_instance *in, oct_event *event) {
  event->instance = in->id;
  if (in->progress_due) {
    in->progress_due = FALSE;
    event->kind = OCT_EVENT_OPEN_PROGRESS;
    event->phase = "weights";
    event->fraction = in->fraction;
    return TRUE;
  }
  in->open_told = in->open || in->failed;
  if (in->open) {
    event->kind = OCT_EVENT_OPENED;
    event->capabilities = &in->capabilities;
  } else if (in->failed) {
    event->kind = OCT_EVENT_OPEN_FAILED;
    w->told = (oct_fault){.severity = OCT_SEVERITY_INSTANCE, .device = in->group.device};
    g_strlcpy(w->told.message, in->why, sizeof w->told.message);
    event->fault = &w->told;
    detach(w, in);
    w->leaving = in;
  }
  return in->open_told;
}

static gboolean
tell_masks(oct_cuda_instance *in, oct_event *event) {
  for (guint32 i = 0; i < in->n; i++) {
    oct_cuda_flight *f = oct_cuda_instance_flight(in, i);
    if (f->state != OCT_CUDA_SAMPLING || f->n_missing == 0 || !wants_mask(f))
      continue;
    event->kind = OCT_EVENT_MASK_WANTED;
    event->number = f->number;
    event->slice = f->next_wanted++;
    return TRUE;
  }
  return FALSE;
}

static void
tell_step(oct_cuda_world *w, oct_cuda_instance *in, oct_event *event) {
  oct_cuda_flight *f = oct_cuda_instance_flight(in, 0);
  event->number = f->number;
  if (f->next_failed < f->failed->len) {
    w->told = (oct_fault){.severity = OCT_SEVERITY_REQUEST,
                          .device = OCT_NO_INDEX,
                          .number = f->number,
                          .slice = g_array_index(f->failed, guint32, f->next_failed++)};
    g_strlcpy(w->told.message, "sampling: a logit is not a number, or the mask leaves nothing",
              sizeof w->told.message);
    event->kind = OCT_EVENT_FAULT;
    event->fault = &w->told;
    return;
  }
  event->kind = OCT_EVENT_STEP_DONE;
  event->result = (const oct_step_result *)(const void *)f->result;
  oct_cuda_instance_pop(in);
}

/* What the instance has to tell. FALSE: nothing now. */
static gboolean
tell_instance(oct_cuda_world *w, oct_cuda_instance *in, oct_event *event) {
  if (!in->open_told)
    return tell_opening(w, in, event);
  event->instance = in->id;
  oct_cuda_instance_poll(in, event->time_ns);
  if (in->fault_due) {
    in->fault_due = FALSE;
    event->kind = OCT_EVENT_FAULT;
    event->fault = &in->fault;
    return TRUE;
  }
  if (in->lost)
    return FALSE;
  if (tell_masks(in, event))
    return TRUE;
  if (in->n > 0 && oct_cuda_instance_flight(in, 0)->state == OCT_CUDA_DONE) {
    tell_step(w, in, event);
    return TRUE;
  }
  for (guint32 i = 0; i < in->transfers->len; i++)
    if (oct_cuda_instance_transfer_is_done(in, i, event->time_ns)) {
      event->kind = OCT_EVENT_COPY_DONE;
      event->number = ((const oct_cuda_transfer *)in->transfers->pdata[i])->ticket;
      event->failed = ((const oct_cuda_transfer *)in->transfers->pdata[i])->failed;
      oct_cuda_instance_drop_transfer(in, i);
      return TRUE;
    }
  return FALSE;
}

static gboolean
find_event(oct_cuda_world *w, oct_event *event) {
  if (w->woken) {
    w->woken = FALSE;
    event->kind = OCT_EVENT_WAKE;
    return TRUE;
  }
  if (w->fault_due) {
    w->fault_due = FALSE;
    event->kind = OCT_EVENT_FAULT;
    event->instance = w->fault_instance;
    event->fault = &w->fault;
    return TRUE;
  }
  for (guint i = 0; !w->lost && i < w->instances->len; i++)
    if (w->instances->pdata[i] != NULL && tell_instance(w, w->instances->pdata[i], event))
      return TRUE;
  *event = (oct_event){.time_ns = event->time_ns};
  return FALSE;
}

static gboolean
is_busy(const oct_cuda_world *w) {
  for (guint i = 0; !w->lost && i < w->instances->len; i++)
    if (w->instances->pdata[i] != NULL && oct_cuda_instance_is_busy(w->instances->pdata[i]))
      return TRUE;
  return FALSE;
}

/* With the lock held. Devices that are at work are looked at again and again. */
static void
next_event(oct_cuda_world *w, oct_time until_ns, oct_event *event) {
  oct_time began = oct_cuda_world_now(w);
  for (;;) {
    *event = (oct_event){.time_ns = oct_cuda_world_now(w)};
    if (find_event(w, event))
      return;
    if (until_ns <= event->time_ns) {
      event->kind = OCT_EVENT_TIMER;
      return;
    }
    if (!is_busy(w)) {
      oct_cuda_world_wait(w, until_ns);
    } else if (event->time_ns - began < AWAKE_NS) {
      pthread_mutex_unlock(&w->lock);
      sched_yield(); /* workers want the lock, too */
      pthread_mutex_lock(&w->lock);
    } else {
      oct_cuda_world_wait(w, MIN(until_ns, event->time_ns + NAP_NS));
    }
  }
}

static gboolean
cuda_next(oct_world *world, oct_time until_ns, oct_event *event) {
  oct_cuda_world *w = from_base(world);
  clear_away(w);
  leave_if_spoiled(w);
  pthread_mutex_lock(&w->lock);
  next_event(w, until_ns, event);
  pthread_mutex_unlock(&w->lock);
  return TRUE;
}

/* ---------------------------------------------------------------- construction */

static const oct_world_ops ops = {
    .name = "cuda",
    .abi = OCT_BACKEND_ABI,
    .clock = OCT_CLOCK_REAL,
    .free = cuda_free,
    .run = cuda_run,
    .wake = cuda_wake,
    .open = cuda_open,
    .close = cuda_close,
    .submit = cuda_submit,
    .copy = cuda_copy,
    .pull = cuda_pull,
    .mask = cuda_mask,
    .next = cuda_next,
};

void
oct_cuda_options_default(oct_cuda_options *options) {
  *options = (oct_cuda_options){.seed = 1,
                                .overlap = 64,
                                .expand = 256,
                                .expand_keys = 8192,
                                .deadline_ns = 30 * (gint64)NS_PER_S};
}

/* NCCL reads it when it is first used, by one of many threads. */
static void
set_environment(const oct_cuda_options *options) {
  if (!options->nvls)
    (void)g_setenv("NCCL_NVLS_ENABLE", "0", TRUE);
}

gboolean
oct_cuda_count_gpus(guint32 *n, GError **error) {
  int count = 0, driver = 0;
  cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count > 0) {
    *n = (guint32)count;
    return TRUE;
  }
  /* Without a driver the runtime says that it is too old. */
  gboolean has_driver = cudaDriverGetVersion(&driver) != cudaSuccess || driver > 0;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "cuda: no GPU: %s",
              !has_driver             ? "no NVIDIA driver is installed"
              : result != cudaSuccess ? cudaGetErrorString(result)
                                      : "the driver finds none");
  return FALSE;
}

oct_world *
oct_cuda_world_new(const oct_cuda_options *options, GError **error) {
  oct_cuda_options defaults;
  guint32 n_gpus;
  oct_cuda_options_default(&defaults);
  if (options == NULL)
    options = &defaults;
  if (options->devices > OCT_CUDA_DEVICES_MAX || options->deadline_ns < 1 ||
      options->deadline_ns > HOUR_NS) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "cuda: devices is %u, must be 0 to %d; deadline_ns is %" G_GINT64_FORMAT
                ", must be 1 to %" G_GINT64_FORMAT,
                options->devices, OCT_CUDA_DEVICES_MAX, options->deadline_ns, HOUR_NS);
    return NULL;
  }
  set_environment(options);
  if (!oct_cuda_count_gpus(&n_gpus, error))
    return NULL;
  oct_cuda_world *w = g_new0(oct_cuda_world, 1);
  oct_world_init(&w->base, &ops);
  w->options = *options;
  w->n_gpus = n_gpus;
  if (w->options.devices == 0)
    w->options.devices = n_gpus;
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
