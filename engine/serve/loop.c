/* The engine thread: takes commands, turns engines, waits for the world, hands notes to the front.
 *
 * It never waits for the front: what it has to say is gathered in a batch, which is handed over by
 * pointer when there is room for one, and goes on growing when there is not. It asks for the time
 * once per event, to know how the world's clock and the service's are apart.
 */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/serve/bulletin.h"
#include "engine/serve/guides.h"
#include "engine/serve/internal.h"

/* How long what found a full ring waits before it is tried again. */
#define RETRY_NS 1000000

/* ---------------------------------------------------------------- notes */

void *
oct_loop_note(oct_service *s, oct_note_kind kind, oct_generation *g, guint32 choice, guint32 n,
              gsize payload) {
  gsize bytes = sizeof(oct_note) + (payload + 7) / 8 * 8;
  guint at = s->batch->len;
  g_byte_array_set_size(s->batch, at + (guint)bytes);
  oct_note *note = (oct_note *)(void *)(s->batch->data + at);
  *note = (oct_note){.bytes = (guint32)bytes,
                     .kind = kind,
                     .choice = choice,
                     .n = n,
                     .generation = g,
                     .time_ns = s->now + s->offset_ns};
  return note + 1;
}

void
oct_loop_flush(oct_service *s) {
  if (s->batch->len == 0)
    return;
  oct_bulletin_publish(s->bulletin, s);
  if (!oct_ring_push(s->batches, &s->batch))
    return; /* the front is behind: it gets a longer one later */
  if (!oct_ring_pop(s->spares, &s->batch))
    s->batch = g_byte_array_new();
  oct_service_notify(s);
}

/* ---------------------------------------------------------------- what engines say */

static void
on_tokens(void *user, oct_request_id id, void *request_user, guint32 choice, const guint32 *ids,
          const oct_logprob *logprobs, guint32 n, oct_time now) {
  oct_service *s = ((oct_replica *)user)->service;
  oct_generation *g = request_user;
  (void)id, (void)now;
  if (n == 0)
    return;
  guint32 each = logprobs != NULL ? 1 + g->sampling.n_logprobs : 0;
  gsize id_bytes = ((gsize)n * sizeof *ids + 7) / 8 * 8;
  gsize size = (gsize)n * each * sizeof *logprobs;
  guint at = s->batch->len;
  guint8 *to = oct_loop_note(s, OCT_NOTE_TOKENS, g, choice, n, id_bytes + size);
  ((oct_note *)(void *)(s->batch->data + at))->each = each;
  memcpy(to, ids, n * sizeof *ids);
  if (size > 0)
    memcpy(to + id_bytes, logprobs, size);
  if (g->sampling.guided)
    oct_guides_tokens(s->guides, g, choice, ids, n);
}

static void
on_prompt_logprobs(void *user, oct_request_id id, void *request_user, guint32 first,
                   const oct_logprob *logprobs, guint32 n, oct_time now) {
  oct_service *s = ((oct_replica *)user)->service;
  oct_generation *g = request_user;
  (void)id, (void)now;
  gsize size = (gsize)n * (1u + g->sampling.n_prompt_logprobs) * sizeof *logprobs;
  memcpy(oct_loop_note(s, OCT_NOTE_PROMPT_LOGPROBS, g, first, n, size), logprobs, size);
}

static void
on_pooled(void *user, oct_request_id id, void *request_user, const float *values, guint32 n,
          oct_time now) {
  oct_service *s = ((oct_replica *)user)->service;
  (void)id, (void)now;
  gsize size = n * sizeof *values;
  memcpy(oct_loop_note(s, OCT_NOTE_POOLED, request_user, 0, n, size), values, size);
}

static void
on_mask(void *user, oct_request_id id, void *request_user, guint32 choice, guint32 n_output,
        oct_time now) {
  (void)id, (void)now;
  oct_guides_ask(((oct_replica *)user)->service->guides, request_user, choice, n_output);
}

static void
unlink_generation(oct_service *s, oct_generation *g) {
  if (g->engine_previous != NULL)
    g->engine_previous->engine_next = g->engine_next;
  else
    s->engine_first = g->engine_next;
  if (g->engine_next != NULL)
    g->engine_next->engine_previous = g->engine_previous;
  g->id = 0;
}

/* The engine's reference goes to the front with the note. */
static void
on_ended(void *user, const oct_request_record *record) {
  oct_replica *replica = user;
  oct_service *s = replica->service;
  oct_generation *g = record->user;
  unlink_generation(s, g);
  oct_bulletin_left(s->bulletin, replica->number);
  if (g->sampling.guided)
    oct_guides_left(s->guides, g);
  oct_request_record out = *record;
  oct_time *const times[] = {&out.arrival_ns, &out.admitted_ns, &out.first_token_ns,
                             &out.last_token_ns, &out.ended_ns};
  for (gsize i = 0; i < G_N_ELEMENTS(times); i++)
    if (*times[i] >= 0)
      *times[i] += s->offset_ns;
  memcpy(oct_loop_note(s, OCT_NOTE_ENDED, g, 0, 0, sizeof out), &out, sizeof out);
}

void
oct_loop_listen(oct_replica *replica, oct_listener *listener) {
  *listener = (oct_listener){.user = replica,
                             .tokens = on_tokens,
                             .ended = on_ended,
                             .prompt_logprobs = on_prompt_logprobs,
                             .mask = on_mask,
                             .pooled = on_pooled};
}

/* ---------------------------------------------------------------- what the front wants */

/* The living replica with the fewest tokens to compute (equal: the lowest number); NULL: none. */
static oct_replica *
least_loaded(oct_service *s) {
  oct_replica *best = NULL;
  guint64 least = G_MAXUINT64;
  for (guint32 i = 0; i < s->n_replicas; i++) {
    oct_engine_stats stats;
    oct_engine_get_stats(s->replicas[i].engine, &stats);
    guint64 load = oct_engine_load_tokens(s->replicas[i].engine);
    if (stats.state != OCT_ENGINE_DEAD && load < least) {
      least = load;
      best = &s->replicas[i];
    }
  }
  return best;
}

static void
refuse(oct_service *s, oct_generation *g, guint32 status, const char *why) {
  if (g->sampling.guided)
    oct_guides_left(s->guides, g);
  gsize size = strlen(why) + 1;
  memcpy(oct_loop_note(s, OCT_NOTE_REFUSED, g, status, 0, size), why, size);
}

static oct_service_error
refusal_code(const GError *why) {
  if (g_error_matches(why, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_BUSY))
    return OCT_SERVICE_ERROR_BUSY;
  if (g_error_matches(why, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_DOWN))
    return OCT_SERVICE_ERROR_DOWN;
  return OCT_SERVICE_ERROR_INPUT;
}

static void
submit(oct_service *s, oct_generation *g) {
  oct_replica *replica = least_loaded(s);
  if (replica == NULL) {
    refuse(s, g, OCT_SERVICE_ERROR_DOWN, oct_engine_down_reason(s->replicas[0].engine));
    return;
  }
  oct_request_params params = g->sampling;
  params.user = g;
  params.arrival_ns = s->now;
  if (g->timeout_ns > 0)
    params.deadline_ns = MAX(g->received_ns + g->timeout_ns - s->offset_ns, 1);
  params.prompt_tokens = g->prompt->len;
  params.prompt_ids = (const guint32 *)(const void *)g->prompt->data;
  g_autoptr(GError) why = NULL;
  if (!oct_engine_submit(replica->engine, &params, &g->id, &why)) {
    g->id = 0;
    refuse(s, g, refusal_code(why), why->message);
    return;
  }
  g->replica = replica->number;
  g->engine_previous = NULL;
  g->engine_next = s->engine_first;
  if (s->engine_first != NULL)
    s->engine_first->engine_previous = g;
  s->engine_first = g;
  oct_bulletin_entered(s->bulletin, replica->number, s->now + s->offset_ns);
  replica->dirty = TRUE;
}

void
oct_loop_command(oct_service *s, const oct_command *command) {
  oct_generation *g = command->generation;
  oct_engine *engine = g->id != 0 ? s->replicas[g->replica].engine : NULL;
  switch (command->kind) {
  case OCT_COMMAND_SUBMIT:
    submit(s, g);
    return; /* the reference is the engine's */
  case OCT_COMMAND_CANCEL:
    if (engine != NULL && oct_engine_cancel(engine, g->id, s->now))
      s->replicas[g->replica].dirty = TRUE;
    break;
  case OCT_COMMAND_STOP:
    if (engine != NULL && oct_engine_stop(engine, g->id, command->choice, s->now))
      s->replicas[g->replica].dirty = TRUE;
    break;
  }
  oct_generation_unref(g);
}

static void
take_commands(oct_service *s) {
  oct_command command;
  guint32 taken = 0;
  while (oct_outbox_pop(s->commands, &command)) {
    oct_loop_command(s, &command);
    taken++;
  }
  if (taken == 0)
    return;
  oct_bulletin_took(s->bulletin, taken);
  /* What did not fit waits on the front's side, which must be told that there is room. */
  if (taken >= OCT_COMMANDS_IN_RING)
    oct_service_notify(s);
}

static void
take_masks(oct_service *s) {
  oct_guide_answer answer;
  while (oct_guides_answer(s->guides, &answer)) {
    oct_generation *g = answer.generation;
    oct_engine *engine = g->id != 0 ? s->replicas[g->replica].engine : NULL;
    if (engine != NULL && answer.bits == NULL)
      oct_engine_cancel(engine, g->id, s->now); /* the front has been told why */
    else if (engine != NULL)
      oct_engine_mask(engine, g->id, answer.choice, answer.n_output, answer.bits, answer.n_words,
                      s->now);
    if (engine != NULL)
      s->replicas[g->replica].dirty = TRUE;
    oct_guide_answer_clear(&answer);
  }
}

/* ---------------------------------------------------------------- the loop */

static gboolean
open_replica(oct_service *s, guint32 number) {
  oct_replica *replica = &s->replicas[number];
  oct_engine_config config = s->config.engine;
  *replica = (oct_replica){.service = s, .number = number, .wake = OCT_TIME_NEVER, .dirty = TRUE};
  oct_loop_listen(replica, &config.listener);
  config.instance.devices = s->devices + (gsize)number * s->ranks;
  config.seed = s->config.engine.seed + number;
  replica->engine = oct_engine_new(s->config.world, &config, &s->start_error);
  s->n_replicas += replica->engine != NULL;
  return replica->engine != NULL;
}

static void
turn_engines(oct_service *s) {
  for (guint32 i = 0; i < s->n_replicas; i++) {
    oct_replica *replica = &s->replicas[i];
    if (!replica->dirty && replica->wake > s->now)
      continue;
    /* Within it listeners may run: what they make dirty is turned again. */
    replica->dirty = FALSE;
    replica->wake = oct_engine_turn(replica->engine, s->now, s->now);
  }
}

static void
note_step(oct_service *s, oct_replica *replica) {
  oct_engine_stats stats;
  oct_engine_get_stats(replica->engine, &stats);
  guint64 tokens = stats.prompt_tokens + stats.recomputed_tokens + stats.generated_tokens;
  guint64 now = tokens - replica->step_tokens;
  replica->step_tokens = tokens;
  oct_loop_note(s, OCT_NOTE_STEP, NULL, replica->number, (guint32)MIN(now, G_MAXUINT32), 0);
}

static void
hand_over(oct_service *s, const oct_event *event) {
  for (guint32 i = 0; i < s->n_replicas; i++) {
    oct_replica *replica = &s->replicas[i];
    if (oct_engine_instance(replica->engine) != event->instance)
      continue;
    oct_bulletin_progress(s->bulletin, i, oct_service_now(s), event);
    oct_engine_event(replica->engine, event);
    replica->dirty = TRUE;
    if (event->kind == OCT_EVENT_STEP_DONE)
      note_step(s, replica);
    else /* what the state has become is told, whatever else there is to tell */
      oct_bulletin_publish(s->bulletin, s);
    return;
  }
}

static void
take_time(oct_service *s, oct_time now) {
  s->now = now;
  if (!s->is_virtual)
    s->offset_ns = MIN(s->offset_ns, s->config.now_ns(s->config.clock) - now);
}

static oct_time
next_wake(oct_service *s) {
  oct_time until = s->front != NULL ? s->front_next : OCT_TIME_NEVER;
  for (guint32 i = 0; i < s->n_replicas; i++)
    until = MIN(until, s->replicas[i].dirty ? s->now : s->replicas[i].wake);
  gboolean waits = s->batch->len > 0 || (s->guides != NULL && !oct_guides_flush(s->guides));
  if (waits)
    until = MIN(until, s->now + RETRY_NS);
  return MAX(until, s->now);
}

static void
loop(oct_service *s) {
  while (!atomic_load(&s->quit)) {
    take_commands(s);
    if (s->guides != NULL)
      take_masks(s);
    turn_engines(s);
    oct_loop_flush(s);
    if (s->front != NULL) {
      gboolean again = FALSE;
      if (!oct_service_front_turn(s, &again))
        return;
      if (again)
        continue;
    }
    oct_event event;
    if (!oct_world_next(s->config.world, next_wake(s), &event)) {
      g_set_error(&s->start_error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_FAILED,
                  "at %.3f s nothing more will happen, and %u generations are left",
                  (double)s->now / 1e9, s->n_live);
      return;
    }
    take_time(s, event.time_ns);
    if (event.instance != 0)
      hand_over(s, &event);
  }
}

/* Ends what is left and takes what still comes, so that every reference is back. */
static void
close_down(oct_service *s) {
  for (guint32 i = 0; i < s->n_replicas; i++)
    oct_engine_free(g_steal_pointer(&s->replicas[i].engine));
  oct_command command;
  while (oct_outbox_pop(s->commands, &command)) {
    if (command.kind == OCT_COMMAND_SUBMIT)
      refuse(s, command.generation, OCT_SERVICE_ERROR_DOWN, "the server is shutting down");
    else
      oct_generation_unref(command.generation);
  }
  if (s->batch->len > 0 && oct_ring_push(s->batches, &s->batch))
    s->batch = g_byte_array_new();
}

int
oct_service_loop(oct_world *world, void *arg) {
  oct_service *s = arg;
  (void)world;
  gboolean good = TRUE;
  s->offset_ns = s->is_virtual ? 0 : G_MAXINT64;
  for (guint32 i = 0; good && i < MAX(s->config.n_replicas, 1); i++)
    good = open_replica(s, i);
  /* What is due already tells the time, and sends nothing that an engine would miss. */
  if (good && s->threaded)
    oct_bell_ring(s->started);
  if (good) {
    if (!s->is_virtual)
      s->offset_ns = oct_service_now(s); /* until the first event says better */
    loop(s);
  }
  close_down(s);
  atomic_store(&s->engine_ended, TRUE);
  if (!good && s->threaded)
    oct_bell_ring(s->started);
  if (s->threaded)
    oct_service_notify(s);
  return good && s->start_error == NULL ? 0 : 1;
}
