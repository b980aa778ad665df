#include "cli/serve-loop.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/cli.h"

#define S       G_GINT64_CONSTANT(1000000000)
#define TICK_NS S         /* health is looked at as often, if nothing else happens */
#define OPEN_NS (S / 100) /* and while engines open */
#define LAST_NS S         /* for the last bytes of what was aborted */
#define STOP_NS (3 * S)   /* for the engine to let go of its device */

typedef enum stage { SERVING, LAME, DRAINING, ABORTING, STOPPING, STOPPED } stage;

typedef struct state {
  const oct_serve_loop *loop;
  stage stage;
  gint64 since_ns;                        /* of the stage */
  gint64 signal_ns;                       /* of the first signal */
  gboolean ready;                         /* was said */
  gboolean complete;                      /* nothing was aborted, and no engine died */
  guint64 lost[OCT_SERVICE_REPLICAS_MAX]; /* instances, that were told of */
  gboolean down[OCT_SERVICE_REPLICAS_MAX];
} state;

static gint64
now(const state *s) {
  return s->loop->now_ns(NULL);
}

static void
G_GNUC_PRINTF(2, 3) say(const state *s, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *line = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  s->loop->say(s->loop->user, line);
}

/* --- stages ----------------------------------------------------------------------------------- */

static void
enter(state *s, stage next) {
  const oct_serve_loop *l = s->loop;
  guint active = oct_service_active(l->service);
  guint exchanges = oct_http_server_counts(l->server).exchanges;
  s->stage = next;
  s->since_ns = now(s);
  switch (next) {
  case LAME:
    s->signal_ns = s->since_ns;
    oct_service_set_phase(l->service, OCT_SERVICE_LAME);
    break;
  case DRAINING:
    say(s, "draining: %u requests are being answered, %u generations run", exchanges, active);
    oct_service_set_phase(l->service, OCT_SERVICE_DRAINING);
    oct_http_server_drain(l->server);
    break;
  case ABORTING:
    if (active > 0 || exchanges > 0) {
      say(s, "aborting %u requests and %u generations", exchanges, active);
      s->complete = FALSE;
    }
    oct_service_set_phase(l->service, OCT_SERVICE_ABORTED);
    break;
  case STOPPING:
    oct_http_server_abort(l->server);
    oct_service_stop(l->service);
    break;
  case SERVING:
  case STOPPED:
    break;
  }
}

static void
on_signal(state *s) {
  struct signalfd_siginfo info;
  if (read(s->loop->signal_fd, &info, sizeof info) != sizeof info)
    return;
  const char *name = info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM";
  if (s->stage == SERVING) {
    say(s, "%s: shutting down, within %.0f s; a second one exits at once", name,
        (double)(s->loop->grace_ns + s->loop->shutdown_ns) / 1e9);
    enter(s, LAME);
    return;
  }
  if (now(s) - s->signal_ns < OCT_CLI_ECHO_NS)
    return;
  say(s, "%s again: exits", name);
  s->loop->flush(s->loop->user);
  if (s->loop->uds != NULL)
    (void)unlink(s->loop->uds);
  _exit(OCT_EXIT_FAILED);
}

/* Devices that were lost, and what took their place. */
static void
tell_losses(state *s) {
  for (guint32 i = 0; i < s->loop->n_replicas; i++) {
    char why[128];
    oct_engine_stats stats;
    guint64 lost = oct_service_lost(s->loop->service, i, why, sizeof why);
    oct_service_get_stats(s->loop->service, i, &stats);
    if (lost > s->lost[i]) {
      say(s, "engine %u: lost what it computes with: %s", i, why);
      s->down[i] = TRUE;
    }
    s->lost[i] = lost;
    if (s->down[i] && stats.state == OCT_ENGINE_SERVING) {
      say(s, "engine %u: open again; what was under way is computed again", i);
      s->down[i] = FALSE;
    }
  }
}

/* Health, while serving. */
static void
watch(state *s) {
  oct_service_status status;
  tell_losses(s);
  oct_service_get_status(s->loop->service, &status);
  if (status.health == OCT_HEALTH_DEAD) {
    say(s, "no engine lives: %s", status.reason);
    s->complete = FALSE;
    s->signal_ns = now(s);
    enter(s, DRAINING);
  } else if (!s->ready && status.ready) {
    s->ready = TRUE;
    s->loop->ready(s->loop->user);
  }
}

static gboolean
is_quiet(const state *s) {
  return oct_service_active(s->loop->service) == 0 &&
         oct_http_server_counts(s->loop->server).connections == 0;
}

/* Goes on to the next stage when it is time. */
static void
move(state *s) {
  const oct_serve_loop *l = s->loop;
  gint64 at = now(s);
  if (s->stage == SERVING)
    watch(s);
  if (s->stage == LAME && at >= s->since_ns + l->grace_ns)
    enter(s, DRAINING);
  if (s->stage == DRAINING && is_quiet(s))
    enter(s, STOPPING);
  if (s->stage == DRAINING && at >= s->since_ns + l->shutdown_ns)
    enter(s, ABORTING);
  if (s->stage == ABORTING && (is_quiet(s) || at >= s->since_ns + LAST_NS))
    enter(s, STOPPING);
  if (s->stage == STOPPING && oct_service_is_stopped(l->service))
    s->stage = STOPPED;
  if (s->stage == STOPPING && at >= s->since_ns + STOP_NS) {
    say(s, "an engine does not let go of its device: exits without it");
    l->flush(l->user);
    _exit(OCT_EXIT_FAILED);
  }
}

static gint64
stage_deadline(const state *s) {
  const gint64 length[] = {
      [SERVING] = G_MAXINT64, [LAME] = s->loop->grace_ns, [DRAINING] = s->loop->shutdown_ns,
      [ABORTING] = LAST_NS,   [STOPPING] = STOP_NS,       [STOPPED] = 0,
  };
  return length[s->stage] == G_MAXINT64 ? G_MAXINT64 : s->since_ns + length[s->stage];
}

/* --- the loop --------------------------------------------------------------------------------- */

static int
poll_ms(const state *s) {
  gint64 at = now(s), until = at + (s->ready ? TICK_NS : OPEN_NS);
  until = MIN(until, oct_http_server_deadline(s->loop->server));
  until = MIN(until, oct_api_deadline(s->loop->api));
  until = MIN(until, stage_deadline(s));
  return until <= at ? 0 : (int)((until - at + 999999) / 1000000);
}

static void
turn(state *s) {
  const oct_serve_loop *l = s->loop;
  struct pollfd fds[] = {{.fd = oct_http_server_fd(l->server), .events = POLLIN},
                         {.fd = l->notify_fd, .events = POLLIN},
                         {.fd = l->signal_fd, .events = POLLIN}};
  guint64 notes;
  (void)poll(fds, G_N_ELEMENTS(fds), poll_ms(s));
  if (fds[2].revents & POLLIN)
    on_signal(s);
  if (fds[1].revents & POLLIN) {
    (void)!read(l->notify_fd, &notes, sizeof notes);
    oct_service_dispatch(l->service);
  }
  if (oct_api_deadline(l->api) <= now(s))
    oct_api_turn(l->api);
  /* Behind the others, so that what they wrote leaves in this turn. */
  if (fds[0].revents & POLLIN || oct_http_server_deadline(l->server) <= now(s))
    oct_http_server_turn(l->server);
  move(s);
}

gboolean
oct_serve_loop_run(const oct_serve_loop *loop) {
  state s = {.loop = loop, .complete = TRUE};
  s.since_ns = now(&s);
  while (s.stage != STOPPED)
    turn(&s);
  return s.complete;
}
