#include "backends/cpu/instance.h"

#include <string.h>

#include "backends/cpu/world.h"
#include "engine/base/assert.h"

/* ---------------------------------------------------------------- opening */

/* A loader's report; FALSE stops it. Not with the lock held. */
static gboolean
note_progress(void *user, double fraction) {
  oct_cpu_instance *in = user;
  pthread_mutex_lock(&in->world->lock);
  in->fraction = MAX(in->fraction, fraction);
  in->progress_due = TRUE;
  pthread_cond_signal(&in->world->changed);
  pthread_mutex_unlock(&in->world->lock);
  return !__atomic_load_n(&in->closing, __ATOMIC_ACQUIRE);
}

static guint32
threads_of(const oct_cpu_options *o) {
  guint32 n = o->threads != 0 ? o->threads : g_get_num_processors();
  return CLAMP(n, 1, OCT_TEAM_THREADS_MAX);
}

/* A start-up line, as other backends have it. Mapped weights are read by the steps that use them.
 */
static void
tell_weights(const oct_cpu_model *m, gint64 began_us) {
  static const char *const how[] = {[OCT_CPU_WEIGHTS_MAPPED] = "mapped",
                                    [OCT_CPU_WEIGHTS_COPIED] = "copied",
                                    [OCT_CPU_WEIGHTS_FLOAT32] = "turned into float32"};
  const double seconds = (double)MAX(g_get_monotonic_time() - began_us, 1) * 1e-6;
  const double gigabytes = (double)oct_cpu_model_stored(m) * 1e-9;
  if (m->files != NULL && m->how == OCT_CPU_WEIGHTS_MAPPED)
    g_message("cpu: %.2f GB of weights mapped in %.1f s, to be read as steps use them", gigabytes,
              seconds);
  else
    g_message("cpu: %.2f GB of weights %s in %.1f s, %.2f GB/s", gigabytes,
              m->files != NULL ? how[m->how] : "made up", seconds, gigabytes / seconds);
}

static oct_cpu_runner *
make_runner(oct_cpu_instance *in, GError **error) {
  const oct_cpu_options *o = &in->world->options;
  const char *own = in->config.weights;
  const oct_cpu_model_options model = {.path = own != NULL ? own : o->model,
                                       .format = o->format,
                                       .spec = in->config.spec,
                                       .seed = o->seed,
                                       .weights = o->weights};
  const gint64 began_us = g_get_monotonic_time();
  in->model = oct_cpu_model_load(&model, note_progress, in, error);
  if (in->model == NULL)
    return NULL;
  tell_weights(in->model, began_us);
  const oct_cpu_runner_options runner = {.config = &in->config,
                                         .model = in->model,
                                         .kv = o->kv,
                                         .threads = threads_of(o),
                                         .expanded_latents = o->expanded_latents};
  return oct_cpu_runner_new(&runner, error);
}

static void
fill_capabilities(oct_cpu_instance *in) {
  const oct_instance_config *config = &in->config;
  oct_capabilities *c = &in->capabilities;
  *c = (oct_capabilities){.depth = config->depth,
                          .n_groups = config->memory.n_groups,
                          .token_ids = TRUE,
                          .masks = TRUE,
                          .speculation = TRUE,
                          .host_tier = TRUE,
                          .pooling = TRUE,
                          .clock = in->world->options.clock};
  for (guint32 g = 0; g < c->n_groups; g++) {
    c->page_bytes[g] = oct_cpu_memory_unit_bytes(oct_cpu_runner_memory(in->runner), g);
    c->fits[g] = config->memory.groups[g].n_device;
  }
}

void
oct_cpu_instance_load(oct_cpu_instance *in) {
  g_autoptr(GError) error = NULL;
  (void)note_progress(in, 0);
  oct_cpu_runner *runner = make_runner(in, &error);
  pthread_mutex_lock(&in->world->lock);
  in->runner = runner;
  in->open = runner != NULL;
  in->failed = runner == NULL;
  if (in->open)
    fill_capabilities(in);
  else
    g_strlcpy(in->why, error->message, sizeof in->why);
  pthread_cond_signal(&in->world->changed);
  pthread_mutex_unlock(&in->world->lock);
}

/* ---------------------------------------------------------------- flights */

oct_cpu_flight *
oct_cpu_instance_flight(oct_cpu_instance *in, guint32 i) {
  oct_assert(i < in->n);
  return &in->flights[(in->first + i) % in->room];
}

static void
prepare_masks(oct_cpu_instance *in, oct_cpu_flight *f) {
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

/* The latest unfinished step whose tokens or positions a slice of `step` needs. */
static guint64
find_feeds_on(oct_cpu_instance *in, const oct_step *step) {
  guint64 latest = 0;
  for (guint32 i = 0; i < step->n_slices; i++) {
    const oct_slice *s = &oct_step_slices(step)[i];
    if (s->source != OCT_SOURCE_DEVICE && s->position != OCT_POSITION_AFTER)
      continue;
    for (guint32 k = 0; k < in->n; k++) {
      const oct_step *other = oct_cpu_instance_flight(in, k)->record;
      for (guint32 j = 0; j < other->n_slices; j++)
        if (oct_step_slices(other)[j].slot == s->slot)
          latest = MAX(latest, other->number);
    }
  }
  return latest;
}

void
oct_cpu_instance_add_flight(oct_cpu_instance *in, const oct_step *step, oct_time now) {
  oct_assert(in->n + 1 < in->room);
  guint64 feeds_on = in->world->options.clock == OCT_CLOCK_VIRTUAL ? find_feeds_on(in, step) : 0;
  in->n++;
  oct_cpu_flight *f = oct_cpu_instance_flight(in, in->n - 1);
  if (step->bytes > f->record_room) {
    f->record_room = 2 * (gsize)step->bytes;
    f->record = g_realloc(f->record, f->record_room);
  }
  memcpy(f->record, step, step->bytes);
  f->state = OCT_FLIGHT_WAITING;
  f->number = step->number;
  f->submit_ns = now;
  f->mask_ns = 0;
  f->n_failed = f->next_failed = 0;
  f->feeds_on = feeds_on;
  f->placed = f->known = FALSE;
  prepare_masks(in, f);
  in->last_number = step->number;
  pthread_cond_broadcast(&in->work);
}

void
oct_cpu_instance_pop(oct_cpu_instance *in) {
  oct_assert(in->n > 0 && oct_cpu_instance_flight(in, 0)->state == OCT_FLIGHT_DONE);
  in->first = (in->first + 1) % in->room;
  in->n--;
}

oct_cpu_outcome
oct_cpu_instance_begin(oct_cpu_instance *in, oct_cpu_flight *f, oct_fault *fault) {
  return oct_cpu_runner_begin(in->runner, f->record, &in->closing, fault);
}

/* With a real clock the caller has set start_ns, sampling_ns and mask_ns; end_ns is taken here. */
void
oct_cpu_instance_finish(oct_cpu_instance *in, oct_cpu_flight *f) {
  oct_cpu_runner_finish(in->runner, f->masks);
  const guint32 *failed = oct_cpu_runner_failed(in->runner, &f->n_failed, &f->reason);
  if (f->n_failed > f->failed_room) {
    f->failed_room = 2 * (gsize)f->n_failed;
    f->failed = g_renew(guint32, f->failed, f->failed_room);
  }
  for (guint32 i = 0; i < f->n_failed; i++)
    f->failed[i] = failed[i];
  oct_step_result *r = oct_cpu_runner_result(in->runner, &f->result, &f->result_room);
  if (in->world->options.clock == OCT_CLOCK_REAL)
    f->end_ns = oct_cpu_world_now(in->world);
  r->start_ns = f->start_ns;
  r->end_ns = f->end_ns;
  r->part_ns[OCT_PART_WAIT] = f->n_masks > 0 ? MAX(f->mask_ns - f->sampling_ns, 0) : 0;
  r->part_ns[OCT_PART_COMPUTE] = f->end_ns - f->start_ns - r->part_ns[OCT_PART_WAIT];
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
oct_cpu_instance_mask(oct_cpu_instance *in, guint64 number, guint32 slice, const guint64 *bits,
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
    oct_cpu_flight *f = oct_cpu_instance_flight(in, i);
    if (f->number != number)
      continue;
    if (slice >= f->record->n_slices || f->mask_index[slice] == OCT_NO_INDEX) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                  "mask for step %" G_GUINT64_FORMAT " slice %u, which needs none", number, slice);
      return FALSE;
    }
    if (f->masks[slice] != NULL || f->state == OCT_FLIGHT_DONE)
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

void
oct_cpu_instance_add_transfer(oct_cpu_instance *in, const oct_cpu_transfer *about,
                              const oct_copy *copies, guint32 n) {
  oct_cpu_transfer *t = g_new(oct_cpu_transfer, 1);
  *t = *about;
  t->after = in->last_number;
  t->copies = g_memdup2(copies, n * sizeof *copies);
  t->n = n;
  g_ptr_array_add(in->transfers, t);
  pthread_cond_broadcast(&in->work);
}

static void
free_transfer(gpointer data) {
  oct_cpu_transfer *t = data;
  g_free(t->copies);
  g_free(t);
}

void
oct_cpu_instance_drop_transfer(oct_cpu_instance *in, guint32 i) {
  g_ptr_array_remove_index(in->transfers, i);
}

void
oct_cpu_instance_copy(const oct_cpu_instance *in, const oct_cpu_instance *peer,
                      const oct_cpu_transfer *t) {
  const oct_cpu_memory *memory = oct_cpu_runner_memory(in->runner);
  for (guint32 i = 0; i < t->n; i++)
    if (peer == NULL)
      oct_cpu_memory_copy(memory, &t->copies[i]);
    else
      oct_cpu_memory_pull(memory, oct_cpu_runner_memory(peer->runner), t->peer_domain,
                          &t->copies[i]);
}

/* ---------------------------------------------------------------- threads of a real clock */

/* Runs a flight; the lock is held on entry and return, not in between. */
static void
run_flight(oct_cpu_instance *in, oct_cpu_flight *f) {
  oct_cpu_world *w = in->world;
  oct_fault fault;
  f->state = OCT_FLIGHT_RUNNING;
  pthread_mutex_unlock(&w->lock);
  f->start_ns = oct_cpu_world_now(w);
  oct_cpu_outcome outcome = oct_cpu_instance_begin(in, f, &fault);
  f->sampling_ns = oct_cpu_world_now(w);
  pthread_mutex_lock(&w->lock);
  if (outcome == OCT_CPU_BREACH)
    oct_cpu_world_lose(w, in->id, &fault);
  if (outcome != OCT_CPU_DONE)
    return;
  f->state = OCT_FLIGHT_SAMPLING;
  if (f->n_missing > 0)
    pthread_cond_signal(&w->changed);
  while (f->n_missing > 0 && !in->closing)
    pthread_cond_wait(&in->work, &w->lock);
  if (in->closing)
    return;
  pthread_mutex_unlock(&w->lock);
  oct_cpu_instance_finish(in, f);
  pthread_mutex_lock(&w->lock);
  f->state = OCT_FLIGHT_DONE;
  in->done_number = f->number;
  pthread_cond_signal(&w->changed);
  pthread_cond_broadcast(&in->work);
}

static oct_cpu_flight *
next_flight(oct_cpu_instance *in) {
  for (guint32 i = 0; i < in->n && !in->world->lost; i++)
    if (oct_cpu_instance_flight(in, i)->state == OCT_FLIGHT_WAITING)
      return oct_cpu_instance_flight(in, i);
  return NULL;
}

static void *
run_steps(void *data) {
  oct_cpu_instance *in = data;
  oct_cpu_instance_load(in);
  pthread_mutex_lock(&in->world->lock);
  while (!in->closing) {
    oct_cpu_flight *f = next_flight(in);
    if (f != NULL)
      run_flight(in, f);
    else
      pthread_cond_wait(&in->work, &in->world->lock);
  }
  pthread_mutex_unlock(&in->world->lock);
  return NULL;
}

/* The first that is not done, if the steps before it are. */
static oct_cpu_transfer *
next_transfer(oct_cpu_instance *in) {
  for (guint i = 0; i < in->transfers->len && !in->world->lost; i++) {
    oct_cpu_transfer *t = in->transfers->pdata[i];
    if (!t->done)
      return t->after <= in->done_number || t->failed ? t : NULL;
  }
  return NULL;
}

static void *
run_copies(void *data) {
  oct_cpu_instance *in = data;
  oct_cpu_world *w = in->world;
  pthread_mutex_lock(&w->lock);
  while (!in->closing) {
    oct_cpu_transfer *t = next_transfer(in);
    if (t == NULL) {
      pthread_cond_wait(&in->work, &w->lock);
      continue;
    }
    if (!t->failed) {
      const oct_cpu_instance *peer = t->peer != 0 ? w->instances->pdata[t->peer - 1] : NULL;
      t->reading = TRUE;
      pthread_mutex_unlock(&w->lock);
      oct_cpu_instance_copy(in, peer, t);
      pthread_mutex_lock(&w->lock);
      t->reading = FALSE;
    }
    t->done = TRUE;
    pthread_cond_signal(&w->changed);
    pthread_cond_broadcast(&in->work);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

/* ---------------------------------------------------------------- virtual clock */

static oct_time
end_of(oct_cpu_instance *in, guint64 number) {
  for (guint32 i = 0; i < in->n; i++) {
    const oct_cpu_flight *f = oct_cpu_instance_flight(in, i);
    if (f->number == number)
      return f->known ? f->end_ns : OCT_TIME_NEVER;
  }
  return 0; /* it has been told */
}

/* C[s][n] = max(C[s-1][n], C[s][n-1]) + t, up to where the last stage samples. */
static void
place_forward(oct_cpu_instance *in, oct_cpu_flight *f) {
  const oct_cpu_options *o = &in->world->options;
  guint32 stages = in->config.parallel.pipeline, last = stages - 1, tokens = 0;
  for (guint32 i = 0; i < f->record->n_slices; i++)
    tokens += oct_step_slices(f->record)[i].n_tokens;
  gint64 each = (o->fixed_ns + o->token_ns * tokens) / stages;
  oct_time at = MAX(f->submit_ns, end_of(in, f->feeds_on));
  for (guint32 s = 0; s < stages; s++) {
    oct_time begin = MAX(at, in->stage_free_ns[s]);
    if (s == 0)
      f->start_ns = begin;
    at = begin + each;
    if (s < last)
      in->stage_free_ns[s] = at;
  }
  f->sampling_ns = at;
  f->placed = TRUE;
}

void
oct_cpu_instance_place(oct_cpu_instance *in) {
  for (guint32 i = 0; i < in->n; i++) {
    oct_cpu_flight *f = oct_cpu_instance_flight(in, i);
    if (!f->placed)
      place_forward(in, f);
    if (!f->known && f->n_missing > 0)
      return;
    if (!f->known) {
      f->end_ns = MAX(f->sampling_ns, f->mask_ns);
      in->stage_free_ns[in->config.parallel.pipeline - 1] = f->end_ns;
      f->known = TRUE;
    }
  }
}

/* ---------------------------------------------------------------- life cycle */

oct_cpu_instance *
oct_cpu_instance_new(oct_cpu_world *world, const oct_instance_config *config, guint32 id) {
  oct_cpu_instance *in = g_new0(oct_cpu_instance, 1);
  in->world = world;
  in->id = id;
  in->config = *config;
  in->config.label = NULL;
  in->config.weights = g_strdup(config->weights);
  in->config.devices = NULL;
  in->open_ns = oct_cpu_world_now(world);
  in->room = config->depth + 1;
  in->flights = g_new0(oct_cpu_flight, in->room);
  in->transfers = g_ptr_array_new_with_free_func(free_transfer);
  pthread_cond_init(&in->work, NULL);
  return in;
}

gboolean
oct_cpu_instance_start(oct_cpu_instance *in, GError **error) {
  in->has_stepper = pthread_create(&in->stepper, NULL, run_steps, in) == 0;
  in->has_copier = in->has_stepper && pthread_create(&in->copier, NULL, run_copies, in) == 0;
  if (!in->has_copier)
    g_set_error_literal(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE,
                        "no thread for the instance");
  return in->has_copier;
}

static void
free_flight(oct_cpu_flight *f) {
  g_free(f->record);
  g_free(f->masks);
  g_free(f->mask_index);
  g_free(f->mask_bits);
  g_free(f->failed);
  g_free(f->result);
}

void
oct_cpu_instance_free(oct_cpu_instance *in) {
  pthread_mutex_lock(&in->world->lock);
  __atomic_store_n(&in->closing, TRUE, __ATOMIC_RELEASE);
  pthread_cond_broadcast(&in->work);
  pthread_mutex_unlock(&in->world->lock);
  if (in->has_stepper)
    pthread_join(in->stepper, NULL);
  if (in->has_copier)
    pthread_join(in->copier, NULL);
  oct_cpu_runner_free(in->runner);
  oct_cpu_model_free(in->model);
  for (guint32 i = 0; i < in->room; i++)
    free_flight(&in->flights[i]);
  g_free(in->flights);
  g_ptr_array_unref(in->transfers);
  pthread_cond_destroy(&in->work);
  g_free((char *)in->config.weights);
  g_free(in);
}
