/* Cancel, stop and deadline in every state that a request can be in: it ends once, as what it was
 * told, its memory is back when the steps and copies in flight have ended, and nobody else notices.
 */
#include <string.h>

#include "tests/engine/sched/scene.h"

typedef enum moment {
  WAITING,      /* never admitted */
  WAITING_BACK, /* preempted, to be computed again */
  ON_HOST,      /* preempted, its pages on the host */
  RELOADING,    /* back from the host */
  HOST_HIT,     /* its first pages from the host */
  PREFILL,      /* a chunk of its prompt in flight, more to come */
  DECODE,       /* a token in flight */
  DECODE_TWO,   /* two */
  IDLE,         /* running without a step in flight */
  PREEMPTING,   /* chosen to leave, a step in flight */
  OFFLOADING,   /* its pages on their way to the host */
  UNFORKED,     /* n = 4, before the fork */
  FORKED,       /* and after */
  MOMENTS
} moment;

static const char *const moment_names[MOMENTS] = {
    "waiting",    "waiting again",   "on the host",     "reloading",    "loading a hit",
    "prefill",    "decode",          "two steps ahead", "running idle", "preempting",
    "offloading", "before the fork", "forked"};

static gboolean
is_at(const oct_request *r, moment m) {
  const oct_seq *t = r->seqs[0];
  switch (m) {
  case WAITING:
    return t->state == OCT_SEQ_WAITING && !t->counted;
  case WAITING_BACK:
    return t->state == OCT_SEQ_WAITING && t->counted && !t->on_host;
  case ON_HOST:
    return t->state == OCT_SEQ_WAITING && t->on_host;
  case RELOADING:
    return t->state == OCT_SEQ_RELOADING && r->preemptions > 0;
  case HOST_HIT:
    return t->state == OCT_SEQ_RELOADING && r->preemptions == 0;
  case PREFILL:
    return t->state == OCT_SEQ_RUNNING && t->sched < t->target && t->sched > 0 &&
           t->unfinished > 0 && r->n == 1;
  case DECODE:
    return t->state == OCT_SEQ_RUNNING && t->n_out > 2 && t->unfinished == 1 && r->n == 1;
  case DECODE_TWO:
    return t->state == OCT_SEQ_RUNNING && t->n_out > 2 && t->unfinished == 2 && r->n == 1;
  case IDLE:
    return t->state == OCT_SEQ_RUNNING && t->unfinished == 0;
  case PREEMPTING:
    return t->state == OCT_SEQ_PREEMPTING;
  case OFFLOADING:
    return t->state == OCT_SEQ_OFFLOADING;
  case UNFORKED:
    return r->n == 4 && !r->forked && t->state == OCT_SEQ_RUNNING && t->sched > 0;
  case FORKED:
    return r->n == 4 && r->forked && t->n_out > 1;
  case MOMENTS:
    break;
  }
  g_assert_not_reached();
}

typedef enum how { BY_CANCEL, BY_DEADLINE, BY_STOP, HOWS } how;

static scene *now_on;
static moment at;
static how by;
static rig_request *done_to; /* the first that was at the moment */
static guint64 steps_then;   /* submitted by then */
static gboolean ended_then;  /* a deadline passes later; a stop may leave other choices */

/* Ends the first request that is at the moment; then sees that it is gone when it should be. */
static void
strike(rig *r, void *user) {
  (void)user;
  oct_engine *e = r->engines[0];
  if (done_to != NULL) {
    const oct_request *left = scene_find(now_on, done_to);
    if (done_to->n_ends == 1 && ended_then && left != NULL && e->completed >= steps_then &&
        e->n_transfers == 0)
      g_error("%s: the request is still there after step %" G_GUINT64_FORMAT, moment_names[at],
              steps_then);
    return;
  }
  for (oct_request *q = e->first; q != NULL; q = q->next) {
    if (q->n_ended == q->n || !is_at(q, at))
      continue;
    rig_request *mine = q->user;
    steps_then = e->next_number - 1;
    done_to = mine;
    if (by == BY_CANCEL)
      g_assert_true(oct_engine_cancel(e, q->id, r->now));
    else if (by == BY_STOP)
      mine->stopped = oct_engine_stop(e, q->id, 0, r->now);
    else {
      q->deadline_ns = r->now + 1;
      oct_deadline_add(e, q);
      mine->params.deadline_ns = r->now + 1;
    }
    ended_then = mine->n_ends > 0;
    return;
  }
}

/* Traffic that goes through all the moments: short memory, a host tier with slow copies, shared
 * prompts, choices. */
static void
set_scene(scene *s, const char *kind, guint32 pages, guint32 host, guint32 run_ahead) {
  scene_init(s, kind, pages, host);
  s->config.run_ahead = run_ahead;
  s->mock.copy_page_ns = s->mock.copy_state_ns = 700000;
  s->mock.host_ns = 100000;
  for (guint i = 0; i < 14; i++) {
    rig_request *q = scene_ask(s, i % 4, 30 + 19 * (i % 7), 50);
    q->params.arrival_ns = i * 9 * MS;
    q->params.n = i % 5 == 4 ? 4 : 1;
    q->params.ignore_eos = FALSE;
    q->params.oracle_tokens = 30 + i;
  }
}

static guint
strike_all(const char *kind, how with, guint32 pages, guint32 host, guint32 run_ahead) {
  guint reached = 0;
  scene plain;
  set_scene(&plain, kind, 4000, 0, run_ahead);
  scene_run(&plain);
  for (guint m = 0; m < MOMENTS; m++) {
    scene s;
    set_scene(&s, kind, pages, host, run_ahead);
    now_on = &s;
    at = (moment)m;
    by = with;
    done_to = NULL;
    s.rig.on_turn = strike;
    scene_run(&s);
    if (done_to != NULL)
      reached |= 1u << m;
    for (guint i = 0; i < 14; i++) {
      const rig_request *q = rig_request_at(&s.rig, i), *p = rig_request_at(&plain.rig, i);
      g_assert_cmpuint(q->n_ends, ==, 1);
      if (q == done_to && with == BY_CANCEL)
        g_assert_cmpint(q->record.reason, ==, OCT_END_CANCELLED);
      else if (q == done_to && with == BY_DEADLINE && q->record.ended_ns >= q->params.deadline_ns)
        g_assert_cmpint(q->record.reason, ==, OCT_END_TIMED_OUT);
      else if (q != done_to)
        g_assert_true(q->record.reason == OCT_END_STOP && scene_same_tokens(q, p));
    }
    scene_clear(&s);
  }
  scene_clear(&plain);
  return reached;
}

static void
strike_everywhere(how with) {
  static const char *const kinds[] = {"llama", "hybrid", "window"};
  guint reached = 0;
  for (guint k = 0; k < G_N_ELEMENTS(kinds); k++)
    for (guint32 run_ahead = 0; run_ahead < 2; run_ahead++) {
      reached |= strike_all(kinds[k], with, 26, 0, run_ahead);
      reached |= strike_all(kinds[k], with, 26, 200, run_ahead);
    }
  for (guint m = 0; m < MOMENTS; m++)
    if ((reached >> m & 1) == 0)
      g_error("no request was ever %s", moment_names[m]);
}

static void
test_cancel(void) {
  strike_everywhere(BY_CANCEL);
}

static void
test_deadline(void) {
  strike_everywhere(BY_DEADLINE);
}

static void
test_stop(void) {
  strike_everywhere(BY_STOP);
}

/* Everybody at once, in every pair of states: nothing is left. */
static guint events_before;

static void
cancel_everybody(rig *r, void *user) {
  (void)user;
  if (events_before-- != 0)
    return;
  for (guint i = 0; i < r->requests->len; i++) {
    const rig_request *q = rig_request_at(r, i);
    if (q->id != 0 && q->n_ends == 0)
      g_assert_true(oct_engine_cancel(r->engines[0], q->id, r->now));
  }
}

static void
test_everybody(void) {
  for (guint events = 2; events < 600; events += 23) {
    scene s;
    set_scene(&s, "hybrid", 26, 40, 1);
    s.rig.on_turn = cancel_everybody;
    events_before = events;
    scene_run(&s);
    scene_clear(&s);
  }
}

/* The engine goes while everything is in flight: each request is told so, once. */
static void
test_engine_goes(void) {
  for (guint at_event = 1; at_event < 500; at_event += 37) {
    scene s;
    set_scene(&s, "hybrid", 26, 40, 1);
    s.rig.stop_at = at_event;
    s.keeps = TRUE;
    scene_run(&s);
    for (guint i = 0; i < 14; i++) {
      const rig_request *q = rig_request_at(&s.rig, i);
      g_assert_cmpuint(q->n_ends, ==, q->id != 0);
    }
    scene_clear(&s);
  }
}

/* Nobody waits past a deadline for an instance that opens, is full, or has hung. */
static void
test_deadline_is_kept(void) {
  for (int why = 0; why < 3; why++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    s.config.max_num_seqs = 1;
    if (why == 0) {
      s.mock.n_phases = 1;
      s.mock.phases[0] = (oct_mock_phase){"weights", 500 * MS};
    }
    rig_request *first = scene_ask(&s, 1, 20, why == 1 ? 400 : 4), *q = scene_ask(&s, 2, 20, 4);
    q->params.deadline_ns = 123456789;
    if (why == 2) {
      s.fault.script[s.fault.n_script++] = (oct_inject_line){OCT_INJECT_HANG, 1, 2};
      s.config.step_deadline_ns = 300 * MS;
    }
    scene_run(&s);
    g_assert_cmpint(first->record.reason, ==, OCT_END_LENGTH);
    g_assert_cmpint(q->record.reason, ==, OCT_END_TIMED_OUT);
    g_assert_cmpint(q->record.ended_ns, ==, 123456789);
    scene_clear(&s);
  }
}

/* Many deadlines in any order, among many that are never reached: each is kept. */
static void
test_many_deadlines(void) {
  scene s;
  rig_request *late[150], *early[150];
  scene_init(&s, "llama", 64, 0);
  for (guint i = 0; i < 150; i++) {
    early[i] = scene_ask(&s, 2 * i, 10, 2);
    early[i]->params.arrival_ns = i * 5 * MS;
    early[i]->params.deadline_ns = 3600000 * MS;
    late[i] = scene_ask(&s, 2 * i + 1, 900, 100);
    late[i]->params.arrival_ns = i * 5 * MS;
    late[i]->params.deadline_ns = late[i]->params.arrival_ns + (1 + i * 7 % 5) * MS;
  }
  scene_run(&s);
  for (guint i = 0; i < 150; i++) {
    g_assert_cmpint(early[i]->record.reason, ==, OCT_END_LENGTH);
    g_assert_cmpint(late[i]->record.reason, ==, OCT_END_TIMED_OUT);
    g_assert_cmpint(late[i]->record.ended_ns, ==, late[i]->params.deadline_ns);
  }
  scene_clear(&s);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/cancel/in-every-state", test_cancel);
  g_test_add_func("/sched/cancel/times-out-in-every-state", test_deadline);
  g_test_add_func("/sched/cancel/stops-in-every-state", test_stop);
  g_test_add_func("/sched/cancel/everybody-at-once", test_everybody);
  g_test_add_func("/sched/cancel/the-engine-goes", test_engine_goes);
  g_test_add_func("/sched/cancel/a-deadline-is-kept-to-the-nanosecond", test_deadline_is_kept);
  g_test_add_func("/sched/cancel/many-deadlines-are-kept", test_many_deadlines);
  return g_test_run();
}
