/* The front: a world whose calls go into a ring and whose events come out of another.
 *
 * States of the worker, as the front sees it:
 *
 *     NONE --open()--> ALIVE --garbage, silence--> DOOMED (told to be killed)
 *       ^               |                            |
 *       +-- lose_worker() once the keeper has said that it ended, and its last words are read
 *
 * Only what was read from the ring before the end counts; while DOOMED nothing is read any more.
 */
#include "config.h"

#include "backends/remote/remote.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/flat.h"
#include "backends/remote/channel.h"
#include "backends/remote/keeper.h"
#include "backends/remote/pending.h"
#include "backends/remote/worker.h"
#include "engine/base/assert.h"

#define NS_PER_MS 1000000
#define NS_PER_S  1000000000

G_STATIC_ASSERT(sizeof(oct_step) +
                    OCT_STEP_SLICES_MAX * (sizeof(oct_slice) + sizeof(oct_slot_open)) +
                    OCT_STEP_IDS_MAX * sizeof(guint32) +
                    OCT_STEP_BIASES_MAX * sizeof(oct_token_bias) +
                    OCT_STEP_CHANGES_MAX * sizeof(oct_page_change) +
                    OCT_STEP_COPIES_MAX * (sizeof(oct_copy) + sizeof(oct_expert_change)) +
                    OCT_STEP_DOMAINS_MAX * sizeof(oct_domain_part) + 64 <=
                CHANNEL_BODY_MAX);

typedef struct instance {
  guint32 id;
  oct_flat_config *config;
  oct_pending *pending;
  gboolean opening, lost;
  gboolean orphan; /* the worker that had it has ended */
} instance;

typedef struct told_fault {
  oct_event event;
  oct_fault fault;
} told_fault;

typedef enum worker_state { WORKER_NONE, WORKER_ALIVE, WORKER_DOOMED } worker_state;

typedef struct remote_world {
  oct_world base;
  oct_world_ops ops; /* the common ones, without pull() when the inner world has none */
  oct_remote_options options;
  worker_start start;
  oct_channel *channel;
  pid_t keeper;
  int socket, waker;
  worker_state worker;
  gboolean ended;       /* the keeper has said so; its last words may be in the ring */
  gboolean lost;        /* FATAL was told, or is about to be */
  char reason[96];      /* of the end: what was found first */
  guint32 restarts;     /* left */
  guint64 heartbeat;    /* seen last */
  gint64 silent_ns;     /* watched without a change of it */
  gint64 watched_ns;    /* when it was looked at last */
  GPtrArray *instances; /* [id - 1]; NULL when gone */
  GQueue faults;        /* told_fault: about to be told */
  told_fault *told;     /* whose memory the last event borrows */
  GByteArray *flat;
} remote_world;

static remote_world *
from_base(const oct_world *world) {
  return (remote_world *)(void *)world;
}

static oct_time
now(const remote_world *w) {
  return oct_worker_now() - w->start.epoch_ns;
}

void
oct_remote_options_default(oct_remote_options *options) {
  *options = (oct_remote_options){.heartbeat_ns = 50 * (gint64)NS_PER_MS,
                                  .hang_ns = 10 * (gint64)NS_PER_S,
                                  .start_ns = 60 * (gint64)NS_PER_S,
                                  .restarts = 3,
                                  .ring_bytes = 1u << 24};
}

/* ---------------------------------------------------------------- the worker's life */

static void
order_keeper(remote_world *w, keeper_order order) {
  char byte = (char)order;
  if (send(w->socket, &byte, 1, MSG_NOSIGNAL) != 1)
    w->ended = TRUE; /* the keeper is gone, and its worker with it */
}

static void
start_worker(remote_world *w) {
  oct_channel_reset(w->channel);
  w->worker = WORKER_ALIVE;
  w->ended = FALSE;
  w->reason[0] = '\0';
  w->heartbeat = atomic_load(&oct_channel_status(w->channel)->heartbeat);
  w->silent_ns = 0;
  w->watched_ns = now(w);
  order_keeper(w, KEEPER_START);
}

static void
give_reason(remote_world *w, const char *what) {
  if (w->reason[0] == '\0')
    g_strlcpy(w->reason, what, sizeof w->reason);
}

static void
doom_worker(remote_world *w, const char *why) {
  if (w->worker != WORKER_ALIVE)
    return;
  give_reason(w, why);
  w->worker = WORKER_DOOMED;
  order_keeper(w, KEEPER_KILL);
}

/* What the keeper has to say, without waiting. */
static void
hear_keeper(remote_world *w) {
  keeper_notice notice;
  ssize_t n;
  while ((n = recv(w->socket, &notice, sizeof notice, MSG_DONTWAIT)) > 0) {
    if (n != sizeof notice || w->worker == WORKER_NONE)
      continue;
    char what[sizeof w->reason];
    if (notice.failure != 0)
      g_snprintf(what, sizeof what, "worker not forked: %s", g_strerror(notice.failure));
    else if (WIFSIGNALED(notice.status))
      g_snprintf(what, sizeof what, "worker died: %s", strsignal(WTERMSIG(notice.status)));
    else
      g_snprintf(what, sizeof what, "worker exited with status %d%s", WEXITSTATUS(notice.status),
                 /* its fault that says so may come later, or never, on a ring that is malformed */
                 WEXITSTATUS(notice.status) == WORKER_CORRUPT ? ": malformed ring" : "");
    give_reason(w, what);
    w->ended = TRUE;
  }
  if (n == 0 && w->socket >= 0) { /* end of file: it died */
    give_reason(w, "the worker's keeper is gone");
    w->restarts = 0;
    w->ended = TRUE;
  }
}

static void
queue_fault(remote_world *w, guint32 id, oct_event_kind kind, oct_severity severity) {
  told_fault *t = g_new0(told_fault, 1);
  t->event = (oct_event){.kind = kind, .instance = id};
  t->fault = (oct_fault){.severity = severity, .device = OCT_NO_INDEX};
  g_strlcpy(t->fault.message, w->reason, sizeof t->fault.message);
  g_queue_push_tail(&w->faults, t);
}

static void
free_instance(remote_world *w, instance *in) {
  w->instances->pdata[in->id - 1] = NULL;
  oct_pending_free(in->pending);
  oct_flat_config_free(in->config);
  g_free(in);
}

/* The worker has ended and has said all that it will: every instance is lost. */
static void
lose_worker(remote_world *w) {
  w->worker = WORKER_NONE;
  w->lost |= w->restarts == 0;
  for (guint32 i = 0; i < w->instances->len; i++) {
    instance *in = w->instances->pdata[i];
    if (in != NULL)
      in->orphan = TRUE;
    if (in == NULL || in->lost)
      continue;
    guint32 id = in->id;
    gboolean opening = in->opening;
    in->lost = TRUE;
    if (opening)
      free_instance(w, in);
    queue_fault(w, id, opening ? OCT_EVENT_OPEN_FAILED : OCT_EVENT_FAULT,
                w->lost ? OCT_SEVERITY_FATAL : OCT_SEVERITY_INSTANCE);
  }
}

/* Silence counts only while it is watched: a front that slept learns nothing from it. */
static void
watch_heartbeat(remote_world *w) {
  oct_time t = now(w);
  guint64 heartbeat = atomic_load(&oct_channel_status(w->channel)->heartbeat);
  gint64 passed = MIN(t - w->watched_ns, w->options.heartbeat_ns);
  w->watched_ns = t;
  if (heartbeat != w->heartbeat) {
    w->heartbeat = heartbeat;
    w->silent_ns = 0;
    return;
  }
  w->silent_ns += passed;
  if (w->worker != WORKER_ALIVE || w->silent_ns < w->options.hang_ns)
    return;
  char what[64];
  g_snprintf(what, sizeof what, "worker hung: silent for %" G_GINT64_FORMAT " ms",
             w->silent_ns / NS_PER_MS);
  doom_worker(w, what);
}

/* ---------------------------------------------------------------- calls */

/* Hands a request on; waits a moment for room, the longer the more the worker may have to copy out:
 * it is there unless the worker has stopped reading. */
static gboolean
request(remote_world *w, const channel_message *m, const void *body, GError **error) {
  static const struct timespec moment = {.tv_nsec = 100000};
  if (m->bytes > CHANNEL_BODY_MAX) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "remote: a record of %u bytes, limit %u", m->bytes, CHANNEL_BODY_MAX);
    return FALSE;
  }
  for (guint32 tries = 0; tries < 100 + m->bytes / 65536; tries++) {
    channel_answer answer = oct_channel_push(w->channel, CHANNEL_TO_WORKER, m, body);
    if (answer == CHANNEL_OK)
      return TRUE;
    if (answer == CHANNEL_CORRUPT)
      break;
    nanosleep(&moment, NULL);
  }
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE,
              "remote: the worker takes no requests");
  return FALSE;
}

/* The instance if calls for it may be handed on, else NULL with *error. */
static instance *
usable(const remote_world *w, guint32 id, GError **error) {
  oct_assert(id >= 1 && id <= w->instances->len);
  instance *in = w->instances->pdata[id - 1];
  if (in != NULL && !in->lost && !w->lost)
    return in;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "remote: instance %u is %s", id,
              in == NULL ? "closed" : "lost");
  return NULL;
}

static gboolean
remote_open(oct_world *world, const oct_instance_config *config, guint32 *id, GError **error) {
  remote_world *w = from_base(world);
  hear_keeper(w);
  if (w->worker == WORKER_NONE && !w->lost && w->restarts > 0) {
    w->restarts--;
    start_worker(w);
  }
  if (w->lost || w->worker == WORKER_NONE) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "remote: no worker: %s",
                w->reason);
    return FALSE;
  }
  g_byte_array_set_size(w->flat, 0);
  oct_flat_config_write(w->flat, config);
  oct_flat_config *copy = oct_flat_config_read(w->flat->data, w->flat->len, error);
  if (copy == NULL)
    return FALSE;
  channel_message m = {
      .kind = CHANNEL_OPEN, .bytes = w->flat->len, .instance = w->instances->len + 1};
  /* A worker that is doomed takes nothing: its end will be this opening's as well. */
  if (w->worker == WORKER_ALIVE && !request(w, &m, w->flat->data, error)) {
    oct_flat_config_free(copy);
    return FALSE;
  }
  instance *in = g_new0(instance, 1);
  in->config = copy;
  in->pending = oct_pending_new(oct_flat_config_get(copy));
  in->opening = TRUE;
  g_ptr_array_add(w->instances, in);
  *id = in->id = w->instances->len;
  return TRUE;
}

static void
remote_close(oct_world *world, guint32 id) {
  remote_world *w = from_base(world);
  oct_assert(id >= 1 && id <= w->instances->len);
  for (GList *l = w->faults.head; l != NULL;) {
    GList *next = l->next;
    told_fault *t = l->data;
    if (t->event.instance == id) {
      g_queue_delete_link(&w->faults, l);
      g_free(t);
    }
    l = next;
  }
  instance *in = w->instances->pdata[id - 1];
  if (in == NULL)
    return;
  if (!in->orphan && w->worker == WORKER_ALIVE) {
    channel_message m = {.kind = CHANNEL_CLOSE, .instance = id};
    if (!request(w, &m, NULL, NULL))
      doom_worker(w, "the worker takes no requests");
  }
  free_instance(w, in);
}

static oct_submit
remote_submit(oct_world *world, guint32 id, const oct_step *step, GError **error) {
  remote_world *w = from_base(world);
  instance *in = usable(w, id, error);
  if (in == NULL)
    return OCT_SUBMIT_REFUSED;
  if (oct_pending_is_full(in->pending))
    return OCT_SUBMIT_FULL;
  channel_message m = {.kind = CHANNEL_SUBMIT, .bytes = step->bytes, .instance = id};
  if (!oct_pending_check_step(in->pending, step, error) || !request(w, &m, step, error))
    return OCT_SUBMIT_REFUSED;
  oct_pending_add_step(in->pending, step);
  return OCT_SUBMIT_OK;
}

static oct_submit
remote_copy(oct_world *world, guint32 id, guint64 ticket, const oct_copy *copies, guint32 n_copies,
            GError **error) {
  remote_world *w = from_base(world);
  instance *in = usable(w, id, error);
  if (in == NULL || !oct_pending_check_copy(in->pending, ticket, copies, n_copies, error))
    return OCT_SUBMIT_REFUSED;
  channel_message m = {.kind = CHANNEL_COPY,
                       .bytes = n_copies * (guint32)sizeof *copies,
                       .instance = id,
                       .a = ticket};
  if (!request(w, &m, copies, error))
    return OCT_SUBMIT_REFUSED;
  oct_pending_add_copy(in->pending, ticket);
  return OCT_SUBMIT_OK;
}

static oct_submit
remote_pull(oct_world *world, guint32 id, guint32 peer_id, guint32 peer_domain, guint64 ticket,
            const oct_copy *copies, guint32 n_copies, GError **error) {
  remote_world *w = from_base(world);
  instance *in = usable(w, id, error);
  const instance *peer = in != NULL ? usable(w, peer_id, error) : NULL;
  if (peer == NULL || !oct_pending_check_pull(in->pending, peer->pending, peer_domain, ticket,
                                              copies, n_copies, error))
    return OCT_SUBMIT_REFUSED;
  channel_message m = {.kind = CHANNEL_PULL,
                       .bytes = n_copies * (guint32)sizeof *copies,
                       .instance = id,
                       .a = ticket,
                       .b = peer_id,
                       .c = peer_domain};
  if (!request(w, &m, copies, error))
    return OCT_SUBMIT_REFUSED;
  oct_pending_add_copy(in->pending, ticket);
  return OCT_SUBMIT_OK;
}

static gboolean
remote_mask(oct_world *world, guint32 id, guint64 number, guint32 slice, const guint64 *bits,
            guint32 n_words, GError **error) {
  remote_world *w = from_base(world);
  instance *in = usable(w, id, error);
  gboolean awaited;
  if (in == NULL ||
      !oct_pending_check_mask(in->pending, number, slice, bits, n_words, &awaited, error))
    return FALSE;
  channel_message m = {.kind = CHANNEL_MASK,
                       .bytes = n_words * (guint32)sizeof *bits,
                       .instance = id,
                       .a = number,
                       .b = slice};
  if (!awaited)
    return TRUE;
  if (!request(w, &m, bits, error))
    return FALSE;
  oct_pending_add_mask(in->pending, number, slice);
  return TRUE;
}

/* ---------------------------------------------------------------- events */

static void
remote_wake(oct_world *world) {
  guint64 one = 1;
  while (write(from_base(world)->waker, &one, sizeof one) < 0 && errno == EINTR)
    continue;
}

static gboolean
take_wake(remote_world *w) {
  guint64 count;
  return read(w->waker, &count, sizeof count) == sizeof count;
}

/* An event of the worker: TRUE when *event goes to the engine. */
static gboolean
take_event(remote_world *w, const channel_message *m, const guint8 *body, oct_event *event) {
  g_autoptr(GError) error = NULL;
  if (!oct_flat_event_read(body, m->bytes, event, &error)) {
    doom_worker(w, error->message);
    return FALSE;
  }
  if (event->kind == OCT_EVENT_FAULT && event->instance == 0) {
    doom_worker(w, event->fault->message);
    return FALSE;
  }
  if (event->instance == 0 || event->instance > w->instances->len) {
    doom_worker(w, "garbage: an event of no instance");
    return FALSE;
  }
  instance *in = w->instances->pdata[event->instance - 1];
  if (in == NULL || in->lost)
    return FALSE; /* said before it heard of the end */
  if (!oct_pending_take_event(in->pending, event, &error)) {
    char what[96];
    g_snprintf(what, sizeof what, "garbage: %s", error->message);
    doom_worker(w, what);
    return FALSE;
  }
  event->time_ns = now(w);
  if (event->kind == OCT_EVENT_STEP_DONE) {
    /* In our own copy. Two clocks were compared, with an error of some microseconds. */
    oct_step_result *r = (oct_step_result *)(void *)(gsize)event->result;
    r->end_ns = MIN(r->end_ns, event->time_ns);
    r->start_ns = MIN(r->start_ns, r->end_ns);
  }
  if (event->kind == OCT_EVENT_OPENED)
    in->opening = FALSE;
  if (event->kind == OCT_EVENT_OPEN_FAILED)
    free_instance(w, in);
  if (event->kind == OCT_EVENT_FAULT && event->fault->severity >= OCT_SEVERITY_INSTANCE)
    in->lost = TRUE;
  if (event->kind == OCT_EVENT_FAULT && event->fault->severity == OCT_SEVERITY_FATAL) {
    w->lost = TRUE;
    give_reason(w, event->fault->message);
  }
  return TRUE;
}

/* What is in the ring: TRUE when *event goes to the engine. */
static gboolean
read_ring(remote_world *w, oct_event *event) {
  channel_message m;
  const guint8 *body;
  while (w->worker == WORKER_ALIVE) {
    channel_answer answer = oct_channel_pop(w->channel, CHANNEL_TO_FRONT, &m, &body);
    if (answer == CHANNEL_NONE)
      return FALSE;
    if (answer == CHANNEL_CORRUPT)
      doom_worker(w, "garbage: the ring is corrupt");
    else if (m.kind == CHANNEL_EVENT && take_event(w, &m, body, event))
      return TRUE;
    else if (m.kind == CHANNEL_FAILED)
      give_reason(w, m.bytes > 0 && body[m.bytes - 1] == '\0' ? (const char *)body : "no world");
    else if (m.kind != CHANNEL_EVENT && m.kind != CHANNEL_STARTED)
      doom_worker(w, "garbage: not an event");
  }
  return FALSE;
}

/* Until something rings, or until_ns; never longer than a heartbeat. */
static void
wait_for_bells(remote_world *w, oct_time until_ns) {
  gint64 ns = MIN(until_ns - now(w), w->options.heartbeat_ns);
  if (ns <= 0)
    return;
  struct timespec t = {.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
  struct pollfd p[3] = {{.fd = oct_channel_bell(w->channel, CHANNEL_TO_FRONT), .events = POLLIN},
                        {.fd = w->waker, .events = POLLIN},
                        {.fd = w->restarts > 0 || !w->ended ? w->socket : -1, .events = POLLIN}};
  if (ppoll(p, 3, &t, NULL) > 0 && (p[0].revents & POLLIN) != 0)
    oct_channel_hush(w->channel, CHANNEL_TO_FRONT, FALSE);
}

static gboolean
remote_next(oct_world *world, oct_time until_ns, oct_event *event) {
  remote_world *w = from_base(world);
  g_clear_pointer(&w->told, g_free);
  for (;;) {
    event->time_ns = now(w);
    if (take_wake(w)) {
      event->kind = OCT_EVENT_WAKE;
      return TRUE;
    }
    hear_keeper(w);
    /* What it said before it ended comes before its end. */
    if (read_ring(w, event))
      return TRUE;
    if (w->ended && w->worker != WORKER_NONE)
      lose_worker(w);
    if (!g_queue_is_empty(&w->faults)) {
      w->told = g_queue_pop_head(&w->faults);
      *event = w->told->event;
      event->fault = &w->told->fault;
      event->time_ns = now(w);
      return TRUE;
    }
    if (w->worker == WORKER_ALIVE)
      watch_heartbeat(w);
    memset(event, 0, sizeof *event);
    event->time_ns = now(w);
    if (until_ns <= event->time_ns) {
      event->kind = OCT_EVENT_TIMER;
      return TRUE;
    }
    wait_for_bells(w, until_ns);
  }
}

/* ---------------------------------------------------------------- the world */

static int
remote_run(oct_world *world, oct_world_fn fn, void *arg) {
  return fn(world, arg);
}

/* Waits for the worker to end, up to `ns`. */
static void
await_end(remote_world *w, gint64 ns) {
  oct_time until = now(w) + ns;
  while (!w->ended && now(w) < until) {
    struct pollfd p = {.fd = w->socket, .events = POLLIN};
    (void)poll(&p, 1, 10);
    hear_keeper(w);
  }
}

static void
end_processes(remote_world *w) {
  if (w->worker == WORKER_ALIVE) {
    channel_message stop = {.kind = CHANNEL_STOP};
    if (request(w, &stop, NULL, NULL))
      await_end(w, 2 * (gint64)NS_PER_S);
    if (!w->ended)
      doom_worker(w, "it did not stop");
  }
  if (w->worker == WORKER_DOOMED)
    await_end(w, 2 * (gint64)NS_PER_S);
  order_keeper(w, KEEPER_QUIT);
  close(w->socket); /* the keeper ends by this alone, and takes a worker along */
  while (waitpid(w->keeper, NULL, 0) < 0 && errno == EINTR)
    continue;
}

static void
remote_free(oct_world *world) {
  remote_world *w = from_base(world);
  for (guint32 i = 0; i < w->instances->len; i++)
    oct_assert(w->instances->pdata[i] == NULL);
  if (w->keeper > 0)
    end_processes(w);
  oct_channel_free(w->channel);
  if (w->waker >= 0)
    close(w->waker);
  g_ptr_array_unref(w->instances);
  g_queue_clear_full(&w->faults, g_free);
  g_free(w->told);
  g_byte_array_unref(w->flat);
  g_free(w);
}

static const oct_world_ops remote_ops = {
    .name = "remote",
    .abi = OCT_BACKEND_ABI,
    .clock = OCT_CLOCK_REAL,
    .free = remote_free,
    .run = remote_run,
    .wake = remote_wake,
    .open = remote_open,
    .close = remote_close,
    .submit = remote_submit,
    .copy = remote_copy,
    .mask = remote_mask,
    .next = remote_next,
};

static gboolean
check_options(const oct_remote_options *o, GError **error) {
  if (o->heartbeat_ns > 0 && o->heartbeat_ns <= NS_PER_S && o->hang_ns >= 4 * o->heartbeat_ns &&
      o->start_ns > 0 && o->ring_bytes >= 65536 && o->ring_bytes <= 1u << 30 &&
      (o->ring_bytes & (o->ring_bytes - 1)) == 0)
    return TRUE;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
              "remote: heartbeat_ns is %" G_GINT64_FORMAT " (1 to 1e9), hang_ns %" G_GINT64_FORMAT
              " (>= 4 heartbeats), start_ns %" G_GINT64_FORMAT
              " (> 0), ring_bytes %u (a power of two, 65536 to 2^30)",
              o->heartbeat_ns, o->hang_ns, o->start_ns, o->ring_bytes);
  return FALSE;
}

/* Waits until the first worker has made its world. */
static gboolean
await_start(remote_world *w, GError **error) {
  oct_time until = now(w) + w->options.start_ns;
  while (now(w) < until) {
    channel_message m;
    const guint8 *body;
    hear_keeper(w);
    if (oct_channel_pop(w->channel, CHANNEL_TO_FRONT, &m, &body) == CHANNEL_OK) {
      if (m.kind == CHANNEL_STARTED) {
        w->ops.pull = m.b != 0 ? remote_pull : NULL;
        return TRUE;
      }
      gboolean text = m.kind == CHANNEL_FAILED && m.bytes > 0 && body[m.bytes - 1] == '\0';
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, "%s",
                  text ? (const char *)body : "remote: the worker made no world");
      return FALSE;
    }
    if (w->ended)
      break;
    wait_for_bells(w, until);
  }
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "remote: no worker: %s",
              w->ended ? w->reason : "it takes too long to start");
  return FALSE;
}

oct_world *
oct_remote_world_new(oct_remote_make_fn make, void *arg, const oct_remote_options *options,
                     GError **error) {
  if (!check_options(options, error))
    return NULL;
  oct_channel *channel = oct_channel_new(options->ring_bytes, error);
  if (channel == NULL)
    return NULL;
  remote_world *w = g_new0(remote_world, 1);
  w->ops = remote_ops;
  oct_world_init(&w->base, &w->ops);
  w->options = *options;
  w->channel = channel;
  w->start = (worker_start){.channel = channel,
                            .make = make,
                            .arg = arg,
                            .heartbeat_ns = options->heartbeat_ns,
                            .epoch_ns = oct_worker_now()};
  w->restarts = options->restarts;
  w->instances = g_ptr_array_new();
  w->flat = g_byte_array_new();
  g_queue_init(&w->faults);
  w->waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  w->socket = -1;
  if (w->waker < 0)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "remote: no descriptor: %s",
                g_strerror(errno));
  else
    w->keeper = oct_keeper_fork(oct_worker_main, &w->start, &w->socket, error);
  gboolean fine = w->keeper > 0;
  if (fine) {
    start_worker(w);
    fine = await_start(w, error);
  }
  if (fine)
    return &w->base;
  remote_free(&w->base);
  return NULL;
}

pid_t
oct_remote_worker(const oct_world *world) {
  const remote_world *w = from_base(world);
  return w->worker == WORKER_NONE ? 0 : atomic_load(&oct_channel_status(w->channel)->worker);
}

pid_t
oct_remote_keeper(const oct_world *world) {
  return from_base(world)->keeper;
}

oct_channel *
oct_remote_channel(const oct_world *world) {
  return from_base(world)->channel;
}
