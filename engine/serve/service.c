/* Life cycle of the service, dispatch, and what can be seen of it. */
#include "engine/serve/service.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/serve/bulletin.h"
#include "engine/serve/guides.h"
#include "engine/serve/internal.h"
#include "engine/serve/measures.h"
#include "engine/serve/recorder.h"
#include "engine/serve/workers.h"
#include "engine/text/error.h"

#define GENERATIONS_STANDARD 8192u
#define WORKERS_STANDARD     2u
#define BUSY_STANDARD_NS     1000000000
#define STALL_STANDARD_NS    30000000000
#define BATCHES_IN_RING      1024u

GQuark
oct_service_error_quark(void) {
  return g_quark_from_static_string("oct-service-error-quark");
}

guint
oct_service_error_status(const GError *error) {
  static const guint own[] = {400, 429, 503, 500, 504, 499, 400};
  static const guint engine[] = {500, 400, 400, 429, 503};
  if (error->domain == OCT_SERVICE_ERROR && (guint)error->code < G_N_ELEMENTS(own))
    return own[error->code];
  if (error->domain == OCT_ENGINE_ERROR && (guint)error->code < G_N_ELEMENTS(engine))
    return engine[error->code];
  return error->domain == OCT_TEXT_ERROR ? 400 : 500;
}

const char *
oct_health_name(oct_health health) {
  static const char *const names[] = {"opening", "ok", "busy", "stalled", "dead"};
  oct_assert((guint)health < G_N_ELEMENTS(names));
  return names[health];
}

void
oct_generation_params_default(oct_generation_params *params) {
  *params = (oct_generation_params){.n_logprobs = -1};
  oct_request_params_default(&params->sampling);
  params->sampling.max_tokens = 0;
}

gint64
oct_service_now(const oct_service *s) {
  return s->is_virtual ? s->now : s->config.now_ns(s->config.clock);
}

void
oct_service_notify(oct_service *s) {
  if (s->config.notify != NULL)
    s->config.notify(s->config.user);
}

/* ---------------------------------------------------------------- life cycle */

/* The tokenizer's ends that the engine does not know from the model's spec. */
static void
find_ends(oct_service *s) {
  s->ends = g_array_new(FALSE, FALSE, sizeof(guint32));
  guint n = 0;
  const oct_model_spec *spec = s->config.engine.instance.spec;
  const guint32 *ends =
      s->config.tokenizer != NULL ? oct_tokenizer_ends(s->config.tokenizer, &n) : NULL;
  for (guint i = 0; i < n; i++) {
    gboolean known = ends[i] >= spec->vocab;
    for (guint32 k = 0; k < spec->n_eos_tokens; k++)
      known = known || spec->eos_tokens[k] == ends[i];
    if (!known)
      g_array_append_val(s->ends, ends[i]);
  }
}

static gboolean
check_config(const oct_service_config *c, GError **error) {
  const char *wrong = NULL;
  if (!c->engine.carry_ids)
    wrong = "engines that serve carry token ids";
  else if (c->n_replicas > OCT_SERVICE_REPLICAS_MAX)
    wrong = "more replicas than 64";
  else if (c->n_workers > OCT_WORKERS_MAX)
    wrong = "more text threads than 64";
  if (wrong != NULL)
    g_set_error_literal(error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_INPUT, wrong);
  return wrong == NULL;
}

static void
set_defaults(oct_service_config *c) {
  c->n_replicas = MAX(c->n_replicas, 1);
  c->generations_max = c->generations_max != 0 ? c->generations_max : GENERATIONS_STANDARD;
  c->n_workers = c->n_workers != 0 ? c->n_workers : WORKERS_STANDARD;
  c->busy_ns = c->busy_ns != 0 ? c->busy_ns : BUSY_STANDARD_NS;
  c->stall_ns = c->stall_ns != 0 ? c->stall_ns : STALL_STANDARD_NS;
}

oct_service *
oct_service_new(const oct_service_config *config, GError **error) {
  oct_assert((config->world != NULL) != (config->make_world != NULL));
  oct_assert(config->engine.instance.spec != NULL);
  if (!check_config(config, error))
    return NULL;
  oct_service *s = g_new0(oct_service, 1);
  s->config = *config;
  set_defaults(&s->config);
  s->is_virtual = config->world != NULL && config->world->ops->clock == OCT_CLOCK_VIRTUAL;
  oct_assert(s->is_virtual || config->now_ns != NULL);
  s->ranks = oct_parallel_world(&config->engine.instance.parallel);
  s->devices =
      g_memdup2(config->devices, (gsize)s->config.n_replicas * s->ranks * sizeof *s->devices);
  find_ends(s);
  s->due = g_ptr_array_new();
  s->text = g_string_new(NULL);
  s->piece = g_string_new(NULL);
  s->measures = oct_measures_new(&s->config);
  s->config.model_name = NULL;
  if (config->record != NULL)
    s->recorder = oct_recorder_new(&s->config);
  s->commands = oct_outbox_new(OCT_COMMANDS_IN_RING, sizeof(oct_command));
  s->batches = oct_ring_new(BATCHES_IN_RING, sizeof(GByteArray *));
  s->spares = oct_ring_new(BATCHES_IN_RING, sizeof(GByteArray *));
  s->batch = g_byte_array_new();
  s->bulletin = oct_bulletin_new(s->config.n_replicas);
  s->workers = oct_workers_new(s, s->config.n_workers);
  if (config->tokenizer != NULL)
    s->guides = oct_guides_new(s, config->tokenizer, config->engine.instance.spec->vocab);
  s->started = oct_bell_new();
  s->released = oct_bell_new();
  return s;
}

static gboolean
check_clock(const oct_world *world, GError **error) {
  if (world->ops->clock == OCT_CLOCK_REAL)
    return TRUE;
  g_set_error(error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_INPUT,
              "%s has a virtual clock: it cannot serve unless it is paced (pace@…)",
              world->ops->name);
  return FALSE;
}

static gboolean
make_world(oct_service *s) {
  s->config.world = s->config.make_world(s->config.user, &s->start_error);
  if (s->config.world != NULL && !check_clock(s->config.world, &s->start_error))
    g_clear_pointer(&s->config.world, oct_world_free);
  return s->config.world != NULL;
}

static void
run_engines(void *data) {
  oct_service *s = data;
  if (s->config.make_world != NULL && !make_world(s)) {
    atomic_store(&s->engine_ended, TRUE);
    oct_bell_ring(s->started);
    return;
  }
  oct_world_run(s->config.world, oct_service_loop, s);
  if (s->config.make_world == NULL)
    return;
  oct_bell_wait(s->released); /* others may wake it until then */
  oct_world_free(s->config.world);
}

gboolean
oct_service_start(oct_service *s, GError **error) {
  oct_assert(!s->threaded);
  if (s->config.world != NULL && !check_clock(s->config.world, error))
    return FALSE;
  s->threaded = TRUE;
  if (!oct_workers_start(s->workers, error) ||
      (s->guides != NULL && !oct_guides_start(s->guides, error)))
    return FALSE;
  s->engine_worker = oct_worker_new("octet-engine", run_engines, s, error);
  if (s->engine_worker == NULL)
    return FALSE;
  oct_bell_wait(s->started);
  if (!atomic_load(&s->engine_ended))
    return TRUE;
  g_propagate_error(error, g_steal_pointer(&s->start_error));
  return FALSE;
}

void
oct_service_stop(oct_service *s) {
  atomic_store(&s->quit, TRUE);
  if (s->threaded && s->config.world != NULL)
    oct_world_wake(s->config.world);
}

gboolean
oct_service_is_stopped(const oct_service *s) {
  return s->engine_worker == NULL || atomic_load(&s->engine_ended);
}

static void
free_batches(oct_ring *ring) {
  GByteArray *batch;
  while (oct_ring_pop(ring, &batch))
    g_byte_array_unref(batch);
  oct_ring_free(ring);
}

void
oct_service_free(oct_service *s) {
  if (s == NULL)
    return;
  oct_assert(!s->dispatching);
  oct_service_stop(s);
  oct_workers_stop(s->workers);
  if (s->guides != NULL)
    oct_guides_stop(s->guides);
  oct_bell_ring(s->released);
  g_clear_pointer(&s->engine_worker, oct_worker_free);
  atomic_store(&s->engine_ended, TRUE);
  s->phase = OCT_SERVICE_ABORTED;
  /* Until nothing is left: text threads have ended, so that what they have is given back here. */
  do {
    oct_service_dispatch(s);
    oct_workers_drop(s->workers);
    if (s->guides != NULL)
      oct_guides_turn(s->guides);
  } while (s->first != NULL || s->due->len > 0);
  oct_workers_free(s->workers);
  oct_guides_free(s->guides);
  oct_recorder_free(s->recorder);
  oct_measures_free(s->measures);
  oct_bulletin_free(s->bulletin);
  free_batches(s->batches);
  free_batches(s->spares);
  g_byte_array_unref(s->batch);
  oct_outbox_free(s->commands);
  oct_bell_free(s->started);
  oct_bell_free(s->released);
  g_clear_error(&s->start_error);
  g_ptr_array_unref(s->due);
  g_array_unref(s->ends);
  g_string_free(s->text, TRUE);
  g_string_free(s->piece, TRUE);
  g_free(s->devices);
  g_free(s);
}

/* ---------------------------------------------------------------- dispatch */

static gboolean
read_batches(oct_service *s) {
  GByteArray *batch;
  gboolean any = FALSE;
  while (oct_ring_pop(s->batches, &batch)) {
    any = TRUE;
    for (guint at = 0; at < batch->len;) {
      const oct_note *note = (const oct_note *)(const void *)(batch->data + at);
      oct_front_note(s, note);
      at += note->bytes;
    }
    g_byte_array_set_size(batch, 0);
    if (!oct_ring_push(s->spares, &batch))
      g_byte_array_unref(batch);
  }
  return any;
}

/* The engine thread has ended and its notes are read: nobody will answer what is left. */
static void
give_up(oct_service *s) {
  /* A batch that found no room is read here: the thread that filled it is gone. */
  if (s->batch->len > 0) {
    oct_assert(oct_ring_push(s->batches, &s->batch));
    s->batch = g_byte_array_new();
    read_batches(s);
  }
  oct_command command;
  do
    while (oct_outbox_pop(s->commands, &command))
      oct_generation_unref(command.generation);
  while (!oct_outbox_flush(s->commands) || oct_outbox_count(s->commands) > 0);
  oct_front_end_all(s, "the engine has stopped");
  for (oct_generation *g = s->first, *next; g != NULL; g = next) {
    next = g->next;
    if (g->stage != OCT_STAGE_SUBMITTED || g->done)
      continue;
    if (g->sampling.guided)
      oct_guides_drop(s->guides, oct_generation_ref(g));
    oct_front_done(g);
  }
}

static gboolean
dispatch(oct_service *s) {
  oct_assert(!s->dispatching);
  s->dispatching = TRUE;
  /* Asked before the notes are read: what was written before it was set is among them. */
  gboolean over = atomic_load(&s->engine_ended);
  gboolean any = read_batches(s);
  any = oct_workers_dispatch(s->workers) || any;
  any = (s->guides != NULL && oct_guides_dispatch(s->guides)) || any;
  oct_outbox_flush(s->commands);
  if (over)
    give_up(s);
  any = oct_front_end_due(s) || any;
  s->dispatching = FALSE;
  return any;
}

void
oct_service_dispatch(oct_service *s) {
  (void)dispatch(s);
}

/* ---------------------------------------------------------------- virtual clocks */

gboolean
oct_service_front_turn(oct_service *s, gboolean *again) {
  oct_workers_turn(s->workers);
  gboolean any = s->guides != NULL && oct_guides_turn(s->guides);
  any = dispatch(s) || any;
  if ((any || s->front_next <= s->now) && !s->front(s->front_user, s->now, &s->front_next))
    return FALSE;
  *again = any || oct_outbox_count(s->commands) > 0;
  return TRUE;
}

gboolean
oct_service_run(oct_service *s, oct_service_front front, void *user, GError **error) {
  oct_assert(s->is_virtual && s->front == NULL && !atomic_load(&s->engine_ended));
  s->front = front;
  s->front_user = user;
  s->front_next = 0;
  oct_world_run(s->config.world, oct_service_loop, s);
  if (s->start_error == NULL)
    return TRUE;
  g_propagate_error(error, g_steal_pointer(&s->start_error));
  return FALSE;
}

/* ---------------------------------------------------------------- shutdown */

oct_service_phase
oct_service_get_phase(const oct_service *s) {
  return s->phase;
}

void
oct_service_set_phase(oct_service *s, oct_service_phase phase) {
  if (phase <= s->phase)
    return;
  s->phase = phase;
  if (phase == OCT_SERVICE_ABORTED)
    oct_front_end_all(s, "the server is shutting down");
}

guint32
oct_service_active(const oct_service *s) {
  return s->n_active;
}

/* ---------------------------------------------------------------- inspect */

void
oct_service_get_status(const oct_service *s, oct_service_status *status) {
  const oct_service_config *c = &s->config;
  oct_bulletin_status(s->bulletin, oct_service_now(s), c->busy_ns, c->stall_ns, status);
  if (atomic_load(&s->engine_ended)) {
    status->health = OCT_HEALTH_DEAD;
    g_strlcpy(status->reason, "the engine thread has ended", sizeof status->reason);
  }
  status->active = s->n_active;
  status->ready = status->ready && s->phase == OCT_SERVICE_RUNNING &&
                  s->n_active < c->generations_max &&
                  (status->health == OCT_HEALTH_OK || status->health == OCT_HEALTH_BUSY);
}

void
oct_service_write_metrics(oct_service *s, GString *out) {
  oct_measures_write(s->measures, s, out);
}

void
oct_service_get_stats(const oct_service *s, guint32 replica, oct_engine_stats *stats) {
  oct_bulletin_stats(s->bulletin, replica, stats);
}

guint64
oct_service_lost(const oct_service *s, guint32 replica, char *reason, gsize room) {
  return oct_bulletin_lost(s->bulletin, replica, reason, room);
}

const oct_tokenizer *
oct_service_tokenizer(const oct_service *s) {
  return s->config.tokenizer;
}

guint32
oct_service_max_model_len(const oct_service *s) {
  return s->config.engine.max_model_len;
}

/* ---------------------------------------------------------------- work */

gboolean
oct_service_offload(oct_service *s, void (*work)(void *user), void (*done)(void *user), void *user,
                    GError **error) {
  return oct_workers_post(s->workers, work, done, user, error);
}
