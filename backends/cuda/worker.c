/* A rank's thread: opening, then flights and copies in the order they were submitted. */
#include "backends/cuda/instance.h"

#include "backends/cuda/nvml.h"
#include "backends/cuda/world.h"

#define COPIES_AT_ONCE 16

/* ---------------------------------------------------------------- opening */

/* A loader's report; FALSE stops it. Not with the lock held. */
static gboolean
note_progress(void *user, double fraction) {
  oct_cuda_instance *in = user;
  pthread_mutex_lock(&in->world->lock);
  in->fraction = MAX(in->fraction, fraction);
  in->progress_due = TRUE;
  pthread_cond_signal(&in->world->changed);
  pthread_mutex_unlock(&in->world->lock);
  return !__atomic_load_n(&in->closing, __ATOMIC_ACQUIRE);
}

/* Rank 0 opens the files for all. */
static gboolean
open_source(oct_cuda_instance *in, guint32 index) {
  g_autoptr(GError) error = NULL;
  oct_cuda_options options = *in->group.options;
  if (in->config.weights != NULL)
    options.model = in->config.weights;
  if (index == 0 && !oct_cuda_source_open(&in->source, &options, in->config.spec, &error))
    oct_cuda_group_break(&in->group, OCT_NO_INDEX, error->message);
  return oct_cuda_group_meet(&in->group);
}

static gboolean
open_stepper(oct_cuda_worker *w) {
  oct_cuda_instance *in = w->in;
  const oct_cuda_stepper_options options = {.group = &in->group,
                                            .index = w->index,
                                            .circles = in->circles,
                                            .mail = in->mail,
                                            .source = &in->source,
                                            .slots = &in->slots,
                                            .steppers = in->steppers,
                                            .ring = in->room,
                                            .progress = note_progress,
                                            .user = in};
  in->steppers[w->index] = oct_cuda_stepper_new(&options);
  return open_source(in, w->index) && oct_cuda_stepper_open(in->steppers[w->index]) &&
         oct_cuda_group_meet(&in->group);
}

static guint32
most_that_fit(oct_cuda_instance *in, guint32 group, guint64 left) {
  guint64 unit = 0;
  for (guint32 i = 0; i < in->group.n_ranks; i++)
    unit = MAX(unit, oct_cuda_stepper_memory(in->steppers[i])->pools[group].unit_bytes);
  guint64 more = in->config.memory.n_groups == 1 && unit > 0 ? left / unit : 0;
  return (guint32)MIN(in->config.memory.groups[group].n_device + more, G_MAXUINT32);
}

/* The driver's figures beside what was asked for: a start-up line per rank. */
static void
tell_ledger(oct_cuda_instance *in) {
  for (guint32 i = 0; i < in->group.n_ranks; i++) {
    oct_cuda_rank *r = oct_cuda_stepper_rank(in->steppers[i]);
    oct_nvml_health health;
    (void)oct_nvml_health_read(r->bus_id, &health);
    g_autofree char *state = oct_nvml_state_text(&health);
    g_message(
        "cuda: rank %u: %.2f GiB asked for, the driver had %.2f free before and has %.2f now; %s",
        i, (double)r->used / (1u << 30), (double)r->free_before / (1u << 30),
        (double)oct_cuda_stepper_free_bytes(in->steppers[i]) / (1u << 30), state);
  }
}

static void
fill_capabilities(oct_cuda_instance *in, guint64 left) {
  const oct_instance_config *config = &in->config;
  oct_capabilities *c = &in->capabilities;
  gboolean recurrent = FALSE;
  *c = (oct_capabilities){.depth = config->depth,
                          .n_groups = config->memory.n_groups,
                          .graph_max_batch = oct_cuda_stepper_graph_most(in->steppers[0]),
                          .token_ids = TRUE,
                          .masks = TRUE,
                          .expert_slots = TRUE,
                          .host_tier = TRUE,
                          .pooling = TRUE,
                          .clock = OCT_CLOCK_REAL};
  for (guint32 g = 0; g < c->n_groups; g++) {
    for (guint32 i = 0; i < in->group.n_ranks; i++)
      if (oct_cuda_stepper_rank(in->steppers[i])->domain == 0)
        c->page_bytes[g] += oct_cuda_stepper_memory(in->steppers[i])->pools[g].unit_bytes;
    c->fits[g] = most_that_fit(in, g, left);
    recurrent |= in->slots.groups[g].kind == OCT_ATTENTION_KDA;
  }
  /* A rejected draft cannot be taken out of a recurrent state. */
  c->speculation = !recurrent;
}

/* By rank 0, when all are open; by whoever comes first, when one is not. */
static void
tell_opened(oct_cuda_worker *w, gboolean fine) {
  oct_cuda_instance *in = w->in;
  guint64 left = G_MAXUINT64;
  if (fine && w->index == 0)
    tell_ledger(in);
  for (guint32 i = 0; fine && w->index == 0 && i < in->group.n_ranks; i++)
    left = MIN(left, oct_cuda_stepper_free_bytes(in->steppers[i]));
  pthread_mutex_lock(&in->world->lock);
  if (fine && w->index == 0) {
    fill_capabilities(in, left);
    in->open = TRUE;
  } else if (!fine && !in->open && !in->failed) {
    in->failed = TRUE;
    g_strlcpy(in->why, in->group.message, sizeof in->why);
  }
  pthread_cond_signal(&in->world->changed);
  pthread_mutex_unlock(&in->world->lock);
}

/* ---------------------------------------------------------------- a flight */

/* The next one, when it may be begun. When the instance is closing, only what another rank has
 * begun: ranks of a group need each other. */
static oct_cuda_flight *
next_flight(oct_cuda_worker *w) {
  oct_cuda_instance *in = w->in;
  for (guint32 i = 0; i < in->n; i++) {
    oct_cuda_flight *f = oct_cuda_instance_flight(in, i);
    if (f->number != w->number + 1)
      continue;
    gboolean ready = w->index == 0 || f->state != OCT_CUDA_WAITING;
    return ready && (!in->closing || f->n_begun > 0) ? f : NULL;
  }
  return NULL;
}

/* Until every mask is there; FALSE: the instance closes. With the lock held on entry and return. */
static gboolean
await_masks(oct_cuda_worker *w, oct_cuda_flight *f) {
  oct_cuda_instance *in = w->in;
  oct_cuda_stepper *s = in->steppers[w->index];
  if (f->n_missing == 0 || !oct_cuda_stepper_rank(s)->is_last)
    return TRUE;
  pthread_mutex_unlock(&in->world->lock);
  gboolean there = oct_cuda_stepper_wait_logits(s);
  pthread_mutex_lock(&in->world->lock);
  w->at_masks = there ? f->number : 0;
  if (there && ++f->n_at_masks == in->group.n_tensor * in->group.n_domains) {
    f->state = OCT_CUDA_SAMPLING;
    f->sampling_ns = oct_cuda_world_now(in->world);
    pthread_cond_signal(&in->world->changed);
  }
  while (there && f->n_missing > 0 && !in->closing && !in->lost)
    pthread_cond_wait(&in->work, &in->world->lock);
  return there && f->n_missing == 0;
}

/* With the lock held on entry and return, not in between. FALSE: nothing more is to be done. */
static gboolean
run_flight(oct_cuda_worker *w, oct_cuda_flight *f) {
  oct_cuda_instance *in = w->in;
  oct_cuda_stepper *s = in->steppers[w->index];
  guint32 at = (guint32)(f->number % in->room);
  oct_fault fault;
  if (f->state == OCT_CUDA_WAITING) {
    if (!oct_cuda_plan_make(f->plan, &in->slots, f->record, oct_cuda_stepper_padding(s), &fault)) {
      oct_cuda_world_lose(in->world, in->id, &fault);
      return FALSE;
    }
    f->start_ns = oct_cuda_world_now(in->world);
    f->state = OCT_CUDA_PLANNED;
    pthread_cond_broadcast(&in->work);
  }
  f->n_begun++;
  pthread_mutex_unlock(&in->world->lock);
  gboolean fine = oct_cuda_stepper_begin(s, f->plan, at);
  pthread_mutex_lock(&in->world->lock);
  if (!fine || !await_masks(w, f))
    return FALSE;
  pthread_mutex_unlock(&in->world->lock);
  fine = oct_cuda_stepper_finish(s, f->plan, at, f->masks);
  pthread_mutex_lock(&in->world->lock);
  w->number = f->number;
  if (fine && ++f->n_enqueued == in->group.n_ranks)
    f->enqueued_ns = oct_cuda_world_now(in->world);
  return fine;
}

/* ---------------------------------------------------------------- a copy */

/* The next one, if the steps before it have been enqueued. */
static oct_cuda_transfer *
next_transfer(const oct_cuda_worker *w) {
  const oct_cuda_instance *in = w->in;
  if (w->transfers >= in->transfers->len || in->closing)
    return NULL;
  oct_cuda_transfer *t = in->transfers->pdata[w->transfers];
  return t->after <= w->number ? t : NULL;
}

/* The memory of the peer's rank in the same place. */
static const oct_cuda_memory *
peer_memory(const oct_cuda_worker *w, const oct_cuda_transfer *t) {
  const oct_cuda_instance *peer = w->in->world->instances->pdata[t->peer - 1];
  const oct_cuda_rank *r = oct_cuda_stepper_rank(w->in->steppers[w->index]);
  guint32 index = (r->stage * peer->group.n_domains + t->peer_domain) * peer->group.n_tensor;
  return oct_cuda_stepper_memory(peer->steppers[index + r->tensor]);
}

/* Some copies of it: a step that has come meanwhile does not wait for them all. */
static gboolean
run_transfer(oct_cuda_worker *w, oct_cuda_transfer *t) {
  oct_cuda_instance *in = w->in;
  oct_cuda_stepper *s = in->steppers[w->index];
  guint32 first = w->copied, n = t->failed ? t->n - first : MIN(t->n - first, COPIES_AT_ONCE);
  gboolean last = first + n == t->n, waits = first == 0 && t->after > in->told_number;
  const gboolean pulls = t->peer != 0 && !t->failed;
  const oct_cuda_memory peer = pulls ? *peer_memory(w, t) : (oct_cuda_memory){0}; /* may be freed */
  oct_cuda_beside beside = {.copies = t->copies + first,
                            .n = t->failed ? 0 : n,
                            .in = t->peer != 0 || t->copies[0].from_tier == OCT_TIER_HOST,
                            .peer = pulls ? &peer : NULL,
                            .after = waits ? (guint32)(t->after % in->room) : OCT_NO_INDEX};
  t->n_busy++;
  w->copying_ns = oct_cuda_world_now(in->world);
  pthread_mutex_unlock(&in->world->lock);
  beside.done = last ? oct_cuda_event_new(oct_cuda_stepper_rank(s)) : NULL;
  gboolean fine = (!last || beside.done != NULL) && oct_cuda_stepper_copy(s, &beside);
  pthread_mutex_lock(&in->world->lock);
  t->n_busy--;
  w->copying_ns = 0;
  w->copied = last ? 0 : first + n;
  if (!last)
    return fine;
  w->transfers++;
  t->events[w->index] = beside.done;
  if (t->n_started++ == 0)
    t->started_ns = oct_cuda_world_now(in->world);
  return fine;
}

/* ---------------------------------------------------------------- the thread */

static void
work(oct_cuda_worker *w) {
  oct_cuda_instance *in = w->in;
  gboolean fine = TRUE;
  pthread_mutex_lock(&in->world->lock);
  while (fine && !in->lost && !in->world->lost) {
    oct_cuda_flight *f = next_flight(w);
    oct_cuda_transfer *t = f == NULL ? next_transfer(w) : NULL;
    if (t != NULL)
      fine = run_transfer(w, t);
    else if (f != NULL)
      fine = run_flight(w, f);
    else if (in->closing)
      break;
    else
      pthread_cond_wait(&in->work, &in->world->lock);
    if (t != NULL || f != NULL)
      pthread_cond_signal(&in->world->changed);
  }
  pthread_mutex_unlock(&in->world->lock);
}

/* The first counts. */
static void
spoil(oct_cuda_worker *w) {
  oct_cuda_instance *in = w->in;
  oct_cuda_world *world = in->world;
  const gboolean broken = oct_cuda_group_is_broken(&in->group);
  pthread_mutex_lock(&world->lock);
  if (!world->spoiled) {
    (void)g_snprintf(world->spoilt_by, sizeof world->spoilt_by,
                     "GPU %u cannot be used any more%s%s", in->config.devices[w->index],
                     broken ? ": " : "", broken ? in->group.message : "");
    __atomic_store_n(&world->spoiled, TRUE, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&world->lock);
}

/* Ranks write into each other's memory: nobody gives his back before all are at rest, and when one
 * does not come to rest, nobody does. Of a broken group, who waits for a peer on the device is let
 * go: by each rank, for the world may not have seen that it is broken. */
static void
leave(oct_cuda_worker *w) {
  oct_cuda_instance *in = w->in;
  oct_cuda_stepper *s = in->steppers[w->index];
  for (guint i = 0; i < OCT_CUDA_CIRCLES && oct_cuda_group_is_broken(&in->group); i++)
    if (in->circles[i] != NULL) {
      oct_cuda_circle_release(in->circles[i]);
      oct_cuda_circle_abort(in->circles[i]);
    }
  const gboolean rests = oct_cuda_stepper_rest(s);
  const gboolean all_rest = oct_cuda_group_part(&in->group, rests);
  if (!oct_cuda_stepper_close(s, all_rest) || !rests)
    spoil(w);
}

void *
oct_cuda_worker_run(void *data) {
  oct_cuda_worker *w = data;
  oct_cuda_instance *in = w->in;
  gboolean fine = open_stepper(w);
  tell_opened(w, fine);
  if (fine) {
    work(w);
    oct_cuda_mail_leave(in->mail, in->steppers[w->index]);
  }
  /* Steppers stay for the polling until the instance closes. */
  pthread_mutex_lock(&in->world->lock);
  while (!in->closing)
    pthread_cond_wait(&in->work, &in->world->lock);
  pthread_mutex_unlock(&in->world->lock);
  leave(w);
  return NULL;
}
