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
                     .replica = g != NULL ? g->replica : 0,
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

/* ---------------------------------------------------------------- what the front wants */

static void
take_commands(oct_service *s) {
  oct_command command;
  guint32 taken = 0;
  while (oct_outbox_pop(s->commands, &command)) {
    oct_requests_command(s, &command);
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
    oct_requests_mask(s, &answer);
    oct_guide_answer_clear(&answer);
  }
}

/* ---------------------------------------------------------------- the loop */

static gboolean
open_replica(oct_service *s, guint32 number) {
  oct_replica *replica = &s->replicas[number];
  oct_engine_config config = s->config.engine;
  *replica = (oct_replica){.service = s, .number = number, .wake = OCT_TIME_NEVER, .dirty = TRUE};
  oct_requests_listen(replica, &config.listener);
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
  guint at = s->batch->len;
  oct_loop_note(s, OCT_NOTE_STEP, NULL, 0, (guint32)MIN(now, G_MAXUINT32), 0);
  ((oct_note *)(void *)(s->batch->data + at))->replica = replica->number;
}

static void
hand_over(oct_service *s, const oct_event *event) {
  for (guint32 i = 0; i < s->n_replicas; i++) {
    oct_replica *replica = &s->replicas[i];
    if (!oct_engine_owns(replica->engine, event->instance))
      continue;
    /* A draft model's step brings nothing by itself. */
    gboolean own = oct_engine_instance(replica->engine) == event->instance;
    oct_bulletin_progress(s->bulletin, i, oct_service_now(s), event);
    oct_engine_event(replica->engine, event);
    replica->dirty = TRUE;
    if (event->kind == OCT_EVENT_STEP_DONE && !own)
      return;
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
      oct_requests_refuse(s, command.generation, OCT_SERVICE_ERROR_DOWN,
                          "the server is shutting down");
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
