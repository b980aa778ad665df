#include "backends/cuda/instance.h"

#include <string.h>

#include "backends/cuda/world.h"
#include "engine/base/assert.h"

#define NAP_NS 100000

/* ---------------------------------------------------------------- flights */

oct_cuda_flight *
oct_cuda_instance_flight(oct_cuda_instance *in, guint32 i) {
  oct_assert(i < in->n);
  return &in->flights[(in->first + i) % in->room];
}

static void
prepare_masks(oct_cuda_instance *in, oct_cuda_flight *f) {
  guint32 n = f->record->n_slices;
  gsize words = (in->config.spec->vocab + 63) / 64;
  if (n > f->slices_room) {
    f->slices_room = 2 * (gsize)n;
    f->masks = g_renew(const guint64 *, f->masks, f->slices_room);
    f->mask_index = g_renew(guint32, f->mask_index, f->slices_room);
  }
  f->n_masks = f->next_wanted = 0;
  for (guint32 i = 0; i < n; i++) {
    gboolean needs = (oct_step_slices(f->record)[i].flags & OCT_SLICE_NEEDS_MASK) != 0;
    f->mask_index[i] = needs ? f->n_masks++ : OCT_NO_INDEX;
    f->masks[i] = NULL;
  }
  f->n_missing = f->n_masks;
  if (f->n_masks * words > f->bits_room) {
    f->bits_room = f->n_masks * words;
    f->mask_bits = g_renew(guint64, f->mask_bits, f->bits_room);
  }
}

void
oct_cuda_instance_add_flight(oct_cuda_instance *in, const oct_step *step, oct_time now) {
  oct_assert(in->n + 1 < in->room);
  in->n++;
  oct_cuda_flight *f = oct_cuda_instance_flight(in, in->n - 1);
  if (step->bytes > f->record_room) {
    f->record_room = 2 * (gsize)step->bytes;
    f->record = g_realloc(f->record, f->record_room);
  }
  memcpy(f->record, step, step->bytes);
  f->state = OCT_CUDA_WAITING;
  f->number = step->number;
  f->n_begun = f->n_at_masks = f->n_enqueued = 0;
  f->submit_ns = f->start_ns = now;
  f->enqueued_ns = f->sampling_ns = f->mask_ns = 0;
  f->next_failed = 0;
  g_array_set_size(f->failed, 0);
  prepare_masks(in, f);
  in->last_number = step->number;
  pthread_cond_broadcast(&in->work);
}

void
oct_cuda_instance_pop(oct_cuda_instance *in) {
  oct_cuda_flight *f = oct_cuda_instance_flight(in, 0);
  oct_assert(f->state == OCT_CUDA_DONE);
  in->told_number = f->number;
  in->first = (in->first + 1) % in->room;
  in->n--;
}

/* ---------------------------------------------------------------- masks */

static gboolean
allows_something(const guint64 *bits, guint32 vocab) {
  for (guint32 w = 0; w < vocab / 64; w++)
    if (bits[w] != 0)
      return TRUE;
  guint32 rest = vocab % 64;
  return rest > 0 && (bits[vocab / 64] & (((guint64)1 << rest) - 1)) != 0;
}

gboolean
oct_cuda_instance_mask(oct_cuda_instance *in, guint64 number, guint32 slice, const guint64 *bits,
                       guint32 n_words, oct_time now, GError **error) {
  const guint32 vocab = in->config.spec->vocab, words = (vocab + 63) / 64;
  if (number == 0 || number > in->last_number || n_words != words ||
      !allows_something(bits, vocab)) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "mask for step %" G_GUINT64_FORMAT " of %u words: steps up to %" G_GUINT64_FORMAT
                " were submitted, it must have %u words and allow a token",
                number, n_words, in->last_number, words);
    return FALSE;
  }
  for (guint32 i = 0; i < in->n; i++) {
    oct_cuda_flight *f = oct_cuda_instance_flight(in, i);
    if (f->number != number)
      continue;
    if (slice >= f->record->n_slices || f->mask_index[slice] == OCT_NO_INDEX) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                  "mask for step %" G_GUINT64_FORMAT " slice %u, which needs none", number, slice);
      return FALSE;
    }
    if (f->masks[slice] != NULL || f->state == OCT_CUDA_DONE)
      return TRUE;
    guint64 *to = f->mask_bits + (gsize)f->mask_index[slice] * words;
    memcpy(to, bits, words * sizeof *to);
    f->masks[slice] = to;
    f->mask_ns = now;
    if (--f->n_missing == 0)
      pthread_cond_broadcast(&in->work);
  }
  return TRUE; /* of a step that has ended: too late for anybody */
}

/* ---------------------------------------------------------------- transfers */

static void
free_transfer(gpointer data) {
  oct_cuda_transfer *t = data;
  g_free(t->copies);
  g_free(t->events);
  g_free(t);
}

oct_cuda_transfer *
oct_cuda_instance_add_transfer(oct_cuda_instance *in, guint64 ticket, const oct_copy *copies,
                               guint32 n) {
  oct_cuda_transfer *t = g_new0(oct_cuda_transfer, 1);
  t->ticket = ticket;
  t->after = in->last_number;
  t->copies = g_memdup2(copies, n * sizeof *copies);
  t->n = n;
  t->events = g_new0(cudaEvent_t, in->group.n_ranks);
  g_ptr_array_add(in->transfers, t);
  pthread_cond_broadcast(&in->work);
  return t;
}

void
oct_cuda_instance_drop_transfer(oct_cuda_instance *in, guint32 i) {
  oct_cuda_transfer *t = in->transfers->pdata[i];
  for (guint32 r = 0; r < in->group.n_ranks; r++) {
    if (t->events[r] != NULL)
      (void)cudaEventDestroy(t->events[r]);
    /* Every rank has enqueued it: it is before where each of them goes on. */
    in->workers[r].transfers--;
  }
  g_ptr_array_remove_index(in->transfers, i);
}

/* Until what is on the stream has ended, or end_ns. */
static void
rest(const oct_cuda_instance *in, cudaStream_t stream, oct_time end_ns) {
  const struct timespec nap = {.tv_nsec = NAP_NS};
  while (cudaStreamQuery(stream) == cudaErrorNotReady && oct_cuda_world_now(in->world) < end_ns)
    nanosleep(&nap, NULL);
}

void
oct_cuda_instance_fail_pulls(struct oct_cuda_world *world, guint32 peer) {
  for (guint i = 0; i < world->instances->len; i++) {
    oct_cuda_instance *in = world->instances->pdata[i];
    for (guint k = 0; in != NULL && k < in->transfers->len; k++) {
      oct_cuda_transfer *t = in->transfers->pdata[k];
      t->failed |= t->peer == peer;
    }
  }
}

/* No rank begins copies of a transfer that has failed; what has begun is waited for. */
static void
await_pull(oct_cuda_instance *in, const oct_cuda_transfer *t, oct_time end_ns) {
  pthread_mutex_lock(&in->world->lock);
  while (t->n_busy > 0 && oct_cuda_world_now(in->world) < end_ns)
    oct_cuda_world_wait(in->world, end_ns);
  pthread_mutex_unlock(&in->world->lock);
  for (guint32 r = 0; r < in->group.n_ranks; r++)
    rest(in, oct_cuda_stepper_rank(in->steppers[r])->copy_in, end_ns);
}

void
oct_cuda_instance_await_pulls(struct oct_cuda_world *world, guint32 peer) {
  const oct_time end_ns = oct_cuda_world_now(world) + world->options.deadline_ns;
  for (guint i = 0; i < world->instances->len; i++) {
    oct_cuda_instance *in = world->instances->pdata[i];
    for (guint k = 0; in != NULL && k < in->transfers->len; k++) {
      const oct_cuda_transfer *t = in->transfers->pdata[k];
      if (t->peer == peer)
        await_pull(in, t, end_ns);
    }
  }
}

/* ---------------------------------------------------------------- polling */

static void *
abort_communicators(void *data) {
  oct_cuda_instance *in = data;
  for (guint i = 0; i < OCT_CUDA_CIRCLES; i++)
    if (in->circles[i] != NULL)
      oct_cuda_circle_abort(in->circles[i]);
  return NULL;
}

/* The engine is told before what hangs on the devices has come back. */
static void
lose(oct_cuda_instance *in) {
  oct_cuda_group *g = &in->group;
  if (in->lost || !in->open)
    return;
  in->lost = in->fault_due = TRUE;
  in->fault = (oct_fault){.severity = OCT_SEVERITY_INSTANCE, .device = g->device};
  if (in->n > 0)
    in->fault.number = oct_cuda_instance_flight(in, 0)->number;
  g_strlcpy(in->fault.message, g->message, sizeof in->fault.message);
  oct_cuda_instance_fail_pulls(in->world, in->id);
  for (guint i = 0; i < OCT_CUDA_CIRCLES; i++)
    if (in->circles[i] != NULL)
      oct_cuda_circle_release(in->circles[i]);
  in->aborting = pthread_create(&in->aborter, NULL, abort_communicators, in) == 0;
  pthread_cond_broadcast(&in->work);
}

static gboolean
is_late(const oct_cuda_instance *in, oct_time since, oct_time now) {
  return now - since > in->group.options->deadline_ns;
}

/* Whether the rank has done what it could of the flight. */
static gboolean
is_through(oct_cuda_instance *in, const oct_cuda_flight *f, guint32 r) {
  const oct_cuda_worker *w = &in->workers[r];
  if (w->number < f->number)
    return f->n_missing > 0 && w->at_masks == f->number;
  return oct_cuda_stepper_has_ended(in->steppers[r], (guint32)(f->number % in->room));
}

/* How many ranks are not; *last: one of them. Every one is asked: the first may wait for another
 * that has failed. */
static guint32
unended(oct_cuda_instance *in, const oct_cuda_flight *f, guint32 *last) {
  guint32 n = 0;
  for (guint32 r = 0; r < in->group.n_ranks; r++)
    if (!is_through(in, f, r)) {
      *last = r;
      n++;
    }
  return n;
}

/* The longest that a step is waited for begins when the step before it has ended. Of ranks that
 * wait for each other it is not known which of them is late. */
static void
check_deadline(oct_cuda_instance *in, const oct_cuda_flight *f, oct_time now) {
  oct_time since = MAX(MAX(f->submit_ns, f->mask_ns), in->free_ns);
  const gboolean awaits_masks = f->state == OCT_CUDA_SAMPLING && f->n_missing > 0;
  guint32 rank = 0;
  if (awaits_masks || !is_late(in, since, now))
    return;
  const guint32 device = unended(in, f, &rank) == 1 ? in->config.devices[rank] : OCT_NO_INDEX;
  char message[96], who[24] = "";
  if (device != OCT_NO_INDEX)
    (void)g_snprintf(who, sizeof who, "GPU %u: ", device);
  (void)g_snprintf(message, sizeof message, "%sstep %" G_GUINT64_FORMAT " takes longer than %.1f s",
                   who, f->number, (double)in->group.options->deadline_ns / 1e9);
  oct_cuda_group_break(&in->group, device, message);
}

/* Enqueuing waits for the device once there is no more room for what it has to do. */
static void
check_copying(oct_cuda_instance *in, oct_time now) {
  for (guint32 r = 0; r < in->group.n_ranks; r++) {
    const oct_time since = in->workers[r].copying_ns;
    const guint32 device = in->config.devices[r];
    char message[96];
    if (since == 0 || !is_late(in, MAX(since, in->free_ns), now))
      continue;
    (void)g_snprintf(message, sizeof message,
                     "GPU %u: copies beside steps take longer than %.1f s to be enqueued", device,
                     (double)in->group.options->deadline_ns / 1e9);
    oct_cuda_group_break(&in->group, device, message);
  }
}

/* How long the device had nothing to do between the step before, of this instance, and a step. */
static gint64
idle_before(oct_cuda_instance *in, const oct_cuda_output *output) {
  const oct_cuda_span *span = output->span;
  gint64 idle = in->device_ns > 0 ? (gint64)(span->begin - in->device_ns) : 0;
  in->device_ns = span->end;
  return MAX(idle, 0);
}

/* When a step began: once there was work for the device and it was done with the step before. Of
 * several stages, which work on several steps, the device's own gap says nothing of that. */
static oct_time
start_of(oct_cuda_instance *in, const oct_cuda_flight *f, const oct_cuda_output *output,
         oct_time now) {
  const gint64 idle = idle_before(in, output);
  const oct_time known = MAX(f->start_ns, in->free_ns);
  if (in->free_ns == 0 || in->group.n_stages > 1)
    return MIN(known, now);
  return MIN(MAX(known, in->free_ns + idle), now);
}

static void
finish(oct_cuda_instance *in, oct_cuda_flight *f, oct_time now) {
  const oct_cuda_group *g = &in->group;
  guint32 at = (guint32)(f->number % in->room), n = g->n_stages * g->n_domains;
  const oct_cuda_output *outputs[OCT_PARALLEL_STAGES_MAX * OCT_STEP_DOMAINS_MAX];
  for (guint32 i = 0; i < n; i++)
    outputs[i] = oct_cuda_stepper_output(in->steppers[i * g->n_tensor], at);
  const oct_cuda_reading reading = {.config = &in->config,
                                    .plan = f->plan,
                                    .outputs = outputs,
                                    .n_stages = g->n_stages,
                                    .n_domains = g->n_domains};
  oct_step_result *r =
      oct_cuda_result_make(&reading, &in->slots, f->failed, &f->result, &f->result_room);
  f->end_ns = now;
  r->start_ns = start_of(in, f, outputs[n - g->n_domains], now);
  r->end_ns = now;
  gint64 wait = f->sampling_ns > 0 ? MAX(f->mask_ns - f->sampling_ns, 0) : 0;
  gint64 all = now - r->start_ns;
  r->part_ns[OCT_PART_WAIT] = MIN(wait, all);
  r->part_ns[OCT_PART_COMPUTE] = all - r->part_ns[OCT_PART_WAIT];
  in->free_ns = now;
  f->state = OCT_CUDA_DONE;
}

void
oct_cuda_instance_poll(oct_cuda_instance *in, oct_time now) {
  guint32 rank = 0;
  for (guint32 i = 0; i < in->n && !in->lost; i++) {
    oct_cuda_flight *f = oct_cuda_instance_flight(in, i);
    if (f->state == OCT_CUDA_DONE)
      continue;
    if (f->n_enqueued == in->group.n_ranks && unended(in, f, &rank) == 0)
      finish(in, f, now);
    else
      check_deadline(in, f, now);
    if (f->state != OCT_CUDA_DONE)
      break;
  }
  check_copying(in, now);
  if (oct_cuda_group_is_broken(&in->group))
    lose(in);
}

gboolean
oct_cuda_instance_transfer_is_done(oct_cuda_instance *in, guint32 i, oct_time now) {
  const oct_cuda_transfer *t = in->transfers->pdata[i];
  if (t->n_started < in->group.n_ranks)
    return FALSE;
  for (guint32 r = 0; r < in->group.n_ranks; r++) {
    oct_cuda_rank *rank = oct_cuda_stepper_rank(in->steppers[r]);
    cudaError_t state = cudaEventQuery(t->events[r]);
    if (state == cudaErrorNotReady && is_late(in, MAX(t->started_ns, in->free_ns), now))
      oct_cuda_fail(rank, "a copy beside steps takes longer than the deadline");
    if (state == cudaErrorNotReady || !oct_cuda_note(rank, state, "a copy beside steps"))
      return FALSE;
  }
  return TRUE;
}

gboolean
oct_cuda_instance_is_busy(const oct_cuda_instance *in) {
  return in->open && !in->lost && (in->n > 0 || in->transfers->len > 0);
}

/* ---------------------------------------------------------------- life cycle */

oct_cuda_instance *
oct_cuda_instance_new(struct oct_cuda_world *world, const oct_instance_config *config, guint32 id) {
  oct_cuda_instance *in = g_new0(oct_cuda_instance, 1);
  guint32 n = oct_parallel_world(&config->parallel);
  in->world = world;
  in->id = id;
  in->config = *config;
  in->config.label = NULL;
  in->config.weights = g_strdup(config->weights);
  in->devices = g_memdup2(config->devices, n * sizeof *config->devices);
  in->config.devices = in->devices;
  in->room = config->depth + 1;
  in->flights = g_new0(oct_cuda_flight, in->room);
  for (guint32 i = 0; i < in->room; i++) {
    in->flights[i].plan = oct_cuda_plan_new(&in->config);
    in->flights[i].failed = g_array_new(FALSE, FALSE, sizeof(guint32));
  }
  in->transfers = g_ptr_array_new_with_free_func(free_transfer);
  oct_cuda_group_init(&in->group, &in->config, &world->options, world->n_gpus);
  const gboolean needed[OCT_CUDA_CIRCLES] = {TRUE, in->group.joint, in->group.n_context > 1};
  for (guint i = 0; i < OCT_CUDA_CIRCLES; i++)
    in->circles[i] = needed[i] ? oct_cuda_circle_new(&in->group, (oct_cuda_circle_kind)i) : NULL;
  in->mail = oct_cuda_mail_new(&in->group, in->room);
  in->steppers = g_new0(oct_cuda_stepper *, n);
  in->workers = g_new0(oct_cuda_worker, n);
  oct_cuda_slots_open(&in->slots, &in->config);
  pthread_cond_init(&in->work, NULL);
  return in;
}

gboolean
oct_cuda_instance_start(oct_cuda_instance *in, GError **error) {
  for (guint32 i = 0; i < in->group.n_ranks; i++) {
    oct_cuda_worker *w = &in->workers[i];
    *w = (oct_cuda_worker){.in = in, .index = i};
    w->running = pthread_create(&w->thread, NULL, oct_cuda_worker_run, w) == 0;
    if (!w->running) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "no thread for rank %u", i);
      oct_cuda_group_break(&in->group, OCT_NO_INDEX, "a rank has no thread");
      oct_cuda_group_miss(&in->group, in->group.n_ranks - i);
      return FALSE;
    }
  }
  return TRUE;
}

static void
free_flight(oct_cuda_flight *f) {
  oct_cuda_plan_free(f->plan);
  g_array_unref(f->failed);
  g_free(f->record);
  g_free(f->masks);
  g_free(f->mask_index);
  g_free(f->mask_bits);
  g_free(f->result);
}

void
oct_cuda_instance_free(oct_cuda_instance *in) {
  pthread_mutex_lock(&in->world->lock);
  __atomic_store_n(&in->closing, TRUE, __ATOMIC_RELEASE);
  pthread_cond_broadcast(&in->work);
  pthread_mutex_unlock(&in->world->lock);
  for (guint32 i = 0; i < in->group.n_ranks; i++)
    if (in->workers[i].running)
      pthread_join(in->workers[i].thread, NULL);
  for (guint32 i = 0; i < in->transfers->len; i++) {
    oct_cuda_transfer *t = in->transfers->pdata[i];
    for (guint32 r = 0; r < in->group.n_ranks; r++)
      if (t->events[r] != NULL)
        (void)cudaEventDestroy(t->events[r]);
  }
  g_ptr_array_unref(in->transfers);
  if (in->aborting)
    pthread_join(in->aborter, NULL);
  for (guint i = 0; i < OCT_CUDA_CIRCLES; i++)
    oct_cuda_circle_free(in->circles[i]);
  oct_cuda_mail_free(in->mail);
  oct_cuda_source_close(&in->source);
  oct_cuda_slots_close(&in->slots);
  oct_cuda_group_clear(&in->group);
  for (guint32 i = 0; i < in->room; i++)
    free_flight(&in->flights[i]);
  pthread_cond_destroy(&in->work);
  g_free(in->flights);
  g_free(in->steppers);
  g_free(in->workers);
  g_free(in->devices);
  g_free((char *)in->config.weights);
  g_free(in);
}
