/* The worker's loop: take requests, call the inner world, pass its events on, show life.
 *
 * One thread makes all calls, as the inner world wants it. It waits in oct_world_next(), so a
 * second one waits for the front's bell and wakes it. Requests are checked as if they came from a
 * network; one that is malformed means that the front, or the memory between, is not what it should
 * be: the worker says so and exits.
 */
#include "backends/remote/worker.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/flat.h"
#include "engine/base/assert.h"

#define NS_PER_S 1000000000

typedef struct entry {
  guint32 front, inner; /* the instance's number on either side */
  oct_flat_config *config;
} entry;

typedef struct worker {
  const worker_start *start;
  oct_channel *channel;
  oct_world *inner;
  gint64 offset_ns;  /* from the inner world's time to the front's */
  GArray *instances; /* entry */
  GByteArray *flat;
  guint8 *result;
  gsize result_room;
  gboolean corrupt, stop;
} worker;

gint64
oct_worker_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (gint64)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static void
show_life(worker *w) {
  atomic_fetch_add(&oct_channel_status(w->channel)->heartbeat, 1);
}

/* ---------------------------------------------------------------- to the front */

static void
say(worker *w, channel_kind kind, const void *body, guint32 bytes) {
  channel_message m = {.kind = kind, .bytes = bytes};
  if (kind == CHANNEL_STARTED)
    m.b = oct_world_can_pull(w->inner);
  static const struct timespec moment = {.tv_nsec = 50000};
  if (bytes > CHANNEL_BODY_MAX) {
    w->corrupt = w->stop = TRUE; /* no event is so long */
    return;
  }
  /* The front is slow or stopped: wait for room, alive. */
  while (oct_channel_push(w->channel, CHANNEL_TO_FRONT, &m, body) == CHANNEL_NONE) {
    show_life(w);
    nanosleep(&moment, NULL);
  }
}

static void
say_event(worker *w, const oct_event *event) {
  g_byte_array_set_size(w->flat, 0);
  oct_flat_event_write(w->flat, event);
  say(w, CHANNEL_EVENT, w->flat->data, w->flat->len);
}

static oct_time
front_now(const worker *w) {
  return oct_worker_now() - w->start->epoch_ns;
}

static void
say_fault(worker *w, guint32 front, oct_event_kind kind, oct_severity severity, const char *what) {
  oct_fault fault = {.severity = severity, .device = OCT_NO_INDEX};
  g_strlcpy(fault.message, what, sizeof fault.message);
  say_event(
      w, &(oct_event){.kind = kind, .instance = front, .time_ns = front_now(w), .fault = &fault});
}

/* A request that cannot be: says so and ends the worker. */
static void
malformed(worker *w, guint32 front, const char *request, const GError *error) {
  g_autofree char *what =
      g_strdup_printf("malformed %s: %s", request, error != NULL ? error->message : "wrong size");
  say_fault(w, front, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, what);
  w->corrupt = w->stop = TRUE;
}

/* ---------------------------------------------------------------- requests */

static entry *
by_front(worker *w, guint32 front) {
  for (guint i = 0; i < w->instances->len; i++)
    if (g_array_index(w->instances, entry, i).front == front)
      return &g_array_index(w->instances, entry, i);
  return NULL;
}

static void
take_open(worker *w, const channel_message *m, const guint8 *body) {
  g_autoptr(GError) error = NULL;
  oct_flat_config *config = oct_flat_config_read(body, m->bytes, &error);
  if (config == NULL || by_front(w, m->instance) != NULL) {
    oct_flat_config_free(config);
    malformed(w, m->instance, "open", error);
    return;
  }
  entry e = {.front = m->instance, .config = config};
  if (!oct_world_open(w->inner, oct_flat_config_get(config), &e.inner, &error)) {
    say_fault(w, m->instance, OCT_EVENT_OPEN_FAILED, OCT_SEVERITY_INSTANCE,
              error != NULL ? error->message : "refused");
    oct_flat_config_free(config);
    return;
  }
  g_array_append_val(w->instances, e);
}

static void
drop_entry(worker *w, entry *e) {
  oct_flat_config_free(e->config);
  g_array_remove_index_fast(w->instances, (guint)(e - (entry *)(void *)w->instances->data));
}

static void
take_close(worker *w, const channel_message *m) {
  entry *e = by_front(w, m->instance);
  if (e == NULL)
    return; /* its opening failed, which the front had not heard yet */
  oct_world_close(w->inner, e->inner);
  drop_entry(w, e);
}

/* The inner world did not take what the front had checked: it is not what its capabilities say, or
 * it has failed. Its numbers no longer fit the front's, so the instance is lost. */
static void
not_taken(worker *w, guint32 front, oct_submit answer, const GError *error) {
  if (answer == OCT_SUBMIT_OK)
    return;
  say_fault(w, front, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE,
            answer == OCT_SUBMIT_FULL ? "the backend is full before its depth"
            : error != NULL           ? error->message
                                      : "refused");
}

static void
take_submit(worker *w, const channel_message *m, const entry *e, const guint8 *body) {
  g_autoptr(GError) error = NULL;
  const oct_step *step = (const oct_step *)(const void *)body;
  if (!oct_step_check(step, m->bytes, oct_flat_config_get(e->config), &error))
    malformed(w, e->front, "step", error);
  else
    not_taken(w, e->front, oct_world_submit(w->inner, e->inner, step, &error), error);
}

static void
take_copy(worker *w, const channel_message *m, const entry *e, const guint8 *body) {
  g_autoptr(GError) error = NULL;
  const oct_copy *copies = (const oct_copy *)(const void *)body;
  guint32 n = m->bytes / (guint32)sizeof *copies;
  if (m->bytes % sizeof *copies != 0 ||
      !oct_copies_check(copies, n, oct_flat_config_get(e->config), &error))
    malformed(w, e->front, "copy", error);
  else
    not_taken(w, e->front, oct_world_copy(w->inner, e->inner, m->a, copies, n, &error), error);
}

/* A peer that is gone, or was lost a moment ago, fails the pull and not the instance. */
static void
take_pull(worker *w, const channel_message *m, const entry *e, const guint8 *body) {
  g_autoptr(GError) error = NULL;
  const oct_copy *copies = (const oct_copy *)(const void *)body;
  guint32 n = m->bytes / (guint32)sizeof *copies;
  const entry *peer = by_front(w, m->b);
  if (peer != NULL && (m->bytes % sizeof *copies != 0 ||
                       !oct_pull_check(copies, n, oct_flat_config_get(e->config),
                                       oct_flat_config_get(peer->config), m->c, &error))) {
    malformed(w, e->front, "pull", error);
    return;
  }
  if (peer == NULL || oct_world_pull(w->inner, e->inner, peer->inner, m->c, m->a, copies, n,
                                     &error) != OCT_SUBMIT_OK)
    say_event(w, &(oct_event){.kind = OCT_EVENT_COPY_DONE,
                              .instance = e->front,
                              .time_ns = front_now(w),
                              .number = m->a,
                              .failed = 1});
}

static void
take_mask(worker *w, const channel_message *m, const entry *e, const guint8 *body) {
  g_autoptr(GError) error = NULL;
  guint32 n = m->bytes / (guint32)sizeof(guint64);
  if (m->bytes % sizeof(guint64) != 0 || n == 0)
    malformed(w, e->front, "mask", NULL);
  else if (!oct_world_mask(w->inner, e->inner, m->a, m->b, (const guint64 *)(const void *)body, n,
                           &error))
    not_taken(w, e->front, OCT_SUBMIT_REFUSED, error);
}

static void
take_request(worker *w, const channel_message *m, const guint8 *body) {
  const entry *e = by_front(w, m->instance);
  switch ((channel_kind)m->kind) {
  case CHANNEL_OPEN:
    take_open(w, m, body);
    break;
  case CHANNEL_CLOSE:
    take_close(w, m);
    break;
  case CHANNEL_SUBMIT:
    if (e != NULL)
      take_submit(w, m, e, body);
    break;
  case CHANNEL_COPY:
    if (e != NULL)
      take_copy(w, m, e, body);
    break;
  case CHANNEL_PULL:
    if (e != NULL)
      take_pull(w, m, e, body);
    break;
  case CHANNEL_MASK:
    if (e != NULL)
      take_mask(w, m, e, body);
    break;
  case CHANNEL_STOP:
    w->stop = TRUE;
    break;
  case CHANNEL_STARTED:
  case CHANNEL_FAILED:
  case CHANNEL_EVENT:
  case CHANNEL_KINDS:
    malformed(w, m->instance, "request", NULL);
  }
}

static void
take_requests(worker *w) {
  channel_message m;
  const guint8 *body;
  channel_answer answer;
  while (!w->stop &&
         (answer = oct_channel_pop(w->channel, CHANNEL_TO_WORKER, &m, &body)) != CHANNEL_NONE) {
    if (answer == CHANNEL_CORRUPT)
      malformed(w, 0, "ring", NULL);
    else
      take_request(w, &m, body);
    show_life(w);
  }
}

/* ---------------------------------------------------------------- events */

/* Passes an event of the inner world on, in the front's time and under its number. */
static void
pass_on(worker *w, oct_event *event) {
  if (event->kind == OCT_EVENT_WAKE || event->kind == OCT_EVENT_TIMER)
    return;
  entry *e = NULL;
  for (guint i = 0; i < w->instances->len && e == NULL; i++)
    if (g_array_index(w->instances, entry, i).inner == event->instance)
      e = &g_array_index(w->instances, entry, i);
  if (e == NULL)
    return;
  event->instance = e->front;
  event->time_ns = MAX(event->time_ns + w->offset_ns, 0);
  if (event->kind == OCT_EVENT_STEP_DONE) {
    const oct_step_result *r = event->result;
    if (r->bytes > w->result_room) {
      w->result_room = MAX(r->bytes, 2 * w->result_room);
      w->result = g_realloc(w->result, w->result_room);
    }
    memcpy(w->result, r, r->bytes);
    oct_step_result *moved = (oct_step_result *)(void *)w->result;
    moved->start_ns = MAX(moved->start_ns + w->offset_ns, 0);
    moved->end_ns = MAX(moved->end_ns + w->offset_ns, moved->start_ns);
    event->result = moved;
  }
  say_event(w, event);
  if (event->kind == OCT_EVENT_OPEN_FAILED)
    drop_entry(w, e);
}

/* The smallest of a few measurements: what a delay in between adds is not taken for an offset. */
static void
measure_offset(worker *w) {
  w->offset_ns = G_MAXINT64;
  for (int i = 0; i < 8; i++) {
    oct_event event;
    (void)oct_world_next(w->inner, 0, &event);
    w->offset_ns = MIN(w->offset_ns, front_now(w) - event.time_ns);
  }
}

static int
loop(oct_world *inner, void *arg) {
  worker *w = arg;
  measure_offset(w);
  say(w, CHANNEL_STARTED, NULL, 0);
  while (!w->stop) {
    oct_event event;
    take_requests(w);
    show_life(w);
    oct_time until = front_now(w) - w->offset_ns + w->start->heartbeat_ns / 2;
    if (!w->stop && oct_world_next(inner, until, &event))
      pass_on(w, &event);
  }
  for (guint i = 0; i < w->instances->len; i++)
    oct_world_close(inner, g_array_index(w->instances, entry, i).inner);
  return 0;
}

static void *
listen_for_the_bell(void *arg) {
  const worker *w = arg;
  for (;;) {
    oct_channel_hush(w->channel, CHANNEL_TO_WORKER, TRUE);
    oct_world_wake(w->inner);
  }
  return NULL;
}

int
oct_worker_main(void *arg) {
  const worker_start *start = arg;
  /* Never freed: the listener uses it until the process is no more. */
  worker *w = g_new0(worker, 1);
  w->start = start;
  w->channel = start->channel;
  w->instances = g_array_new(FALSE, FALSE, sizeof(entry));
  w->flat = g_byte_array_new();
  atomic_store(&oct_channel_status(w->channel)->worker, (int)getpid());
  show_life(w);
  g_autoptr(GError) error = NULL;
  w->inner = start->make(start->arg, &error);
  if (w->inner != NULL && w->inner->ops->clock != OCT_CLOCK_REAL) {
    g_set_error(&error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "remote: %s has a virtual clock, a worker needs a real one", w->inner->ops->name);
    g_clear_pointer(&w->inner, oct_world_free);
  }
  if (w->inner == NULL) {
    const char *why = error != NULL ? error->message : "no world";
    say(w, CHANNEL_FAILED, why, (guint32)strlen(why) + 1);
    return WORKER_FAILED;
  }
  pthread_t listener;
  if (pthread_create(&listener, NULL, listen_for_the_bell, w) != 0)
    return WORKER_FAILED;
  (void)oct_world_run(w->inner, loop, w);
  /* What is left goes with the process; a world that hangs in its own end would keep us here. */
  return w->corrupt ? WORKER_CORRUPT : WORKER_STOPPED;
}
