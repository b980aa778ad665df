/* How generations end, in virtual time: cancelled in every state, out of time, failed with their
 * engine, drained; and what the service says of its health meanwhile. */
#include <string.h>

#include "backends/fault/fault.h"
#include "backends/mock/mock.h"
#include "engine/base/rng.h"
#include "tests/engine/serve/serve-rig.h"

static oct_world *
mock(void) {
  return oct_mock_world_new(NULL, NULL);
}

static oct_world *
faulty(oct_inject kind, guint64 at) {
  oct_fault_options fault;
  oct_fault_options_default(&fault);
  fault.n_script = 1;
  fault.script[0] = (oct_inject_line){.kind = kind, .at = at};
  return oct_fault_world_new(mock(), &fault, NULL);
}

static guint64
pages_used(const serve_rig *r) {
  oct_engine_stats stats;
  guint64 used = 0;
  oct_service_get_stats(r->service, 0, &stats);
  for (guint g = 0; g < OCT_MODEL_GROUPS_MAX; g++)
    used += stats.pages_used[g];
  return used;
}

/* ---------------------------------------------------------------- cancel */

/* The text that a seeded ask gets when it is alone. */
static char *
alone(void) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Tell me");
  a->params.seeded = TRUE;
  a->params.sampling.max_tokens = 60;
  serve_run(&r);
  char *text = g_strdup(a->choices[0].text->str);
  serve_rig_clear(&r);
  return text;
}

/* One is cancelled at `at` after its start, beside one that goes on and ends as if it were alone.
 */
static void
check_cancel(const char *wanted, oct_time at, const char *text, gboolean forgets) {
  serve_rig r;
  serve_rig_init(&r, mock());
  serve_ask *goes = serve_add(&r, 100, text);
  serve_ask *stays = serve_add(&r, 90, "Tell me");
  goes->params.sampling.max_tokens = 1500;
  goes->params.sampling.n = 2;
  goes->cancel_ns = goes->at_ns + at;
  goes->forgets = forgets;
  stays->params.seeded = TRUE;
  stays->params.sampling.max_tokens = 60;
  serve_run(&r);
  g_assert_no_error(r.error);
  g_assert_cmpstr(stays->choices[0].text->str, ==, wanted);
  g_assert_cmpuint(goes->n_ends, ==, forgets ? 0 : 1);
  if (!forgets) {
    g_assert_cmpuint(oct_service_error_status(goes->error), ==, 499);
    g_assert_cmpint(goes->ended_ns, ==, 100 + MAX(at, 0));
  }
  g_assert_cmpuint(pages_used(&r), ==, 0);
  serve_rig_clear(&r);
}

static void
test_cancel_in_every_state(void) {
  g_autofree char *wanted = alone();
  g_autofree char *long_text =
      g_strnfill(3500, 'x'); /* two prefill chunks, and encoded elsewhere */
  /* Encoding or queued, in the first chunk, in the second, decoding. */
  static const oct_time times[] = {1, 1000, 500000, 2500000, 4500000, 9000000, 31000000};
  for (guint i = 0; i < G_N_ELEMENTS(times); i++)
    for (guint forgets = 0; forgets < 2; forgets++) {
      check_cancel(wanted, times[i], long_text, forgets);
      check_cancel(wanted, times[i], "short", forgets);
    }
}

/* Queued behind a full batch; the queue's head goes on. */
static void
test_cancel_queued(void) {
  serve_rig r;
  serve_rig_init(&r, mock());
  r.config.engine.max_num_seqs = 2;
  for (guint i = 0; i < 8; i++) {
    serve_ask *a = serve_add(&r, i, "Tell me");
    a->cancel_ns = i >= 2 && i % 2 == 0 ? 1 * MS : 0;
  }
  serve_run(&r);
  for (guint i = 0; i < 8; i++) {
    const serve_ask *a = r.asks->pdata[i];
    gboolean gone = i >= 2 && i % 2 == 0;
    g_assert_true((a->error != NULL) == gone);
    g_assert_cmpuint(a->choices[0].ids->len, ==, gone ? 0 : 16);
  }
  serve_rig_clear(&r);
}

/* Two clients, one of which leaves at any moment, a thousand times. */
static void
test_abort_races(void) {
  oct_rng rng;
  oct_rng_seed(&rng, 11, 0);
  g_autofree char *wanted = alone();
  for (guint round = 0; round < 10; round++) {
    serve_rig r;
    serve_rig_init(&r, mock());
    for (guint i = 0; i < 100; i++) {
      oct_time at = (oct_time)i * 100 * MS;
      serve_ask *stays = serve_add(&r, at, "Tell me"), *goes = serve_add(&r, at + 1, "Go");
      stays->params.seeded = TRUE;
      stays->params.sampling.max_tokens = 60;
      goes->params.sampling.max_tokens = 1000;
      goes->params.sampling.n = 1 + (guint32)oct_rng_below(&rng, 3);
      goes->cancel_ns = goes->at_ns + 1 + (oct_time)oct_rng_below(&rng, 70 * MS);
      goes->forgets = oct_rng_below(&rng, 2) == 0;
      if (oct_rng_below(&rng, 4) == 0) {
        goes->params.constraint = OCT_CONSTRAINT_REGEX;
        goes->params.constraint_text = "[a-z ]*";
      }
    }
    serve_run(&r);
    g_assert_no_error(r.error);
    for (guint i = 0; i < 200; i += 2) {
      const serve_ask *stays = r.asks->pdata[i];
      g_assert_cmpstr(stays->choices[0].text->str, ==, wanted);
    }
    g_assert_cmpuint(pages_used(&r), ==, 0);
    serve_rig_clear(&r);
  }
}

/* A client that leaves has its pages back within 100 ms, while others go on. */
static gboolean
watch_pages(serve_rig *r, oct_time now, oct_time *next) {
  oct_time *back = r->user;
  const serve_ask *goes = r->asks->pdata[0];
  if (goes->at_ns < 0 && goes->cancel_ns == 0 && *back == 0 && pages_used(r) <= 4)
    *back = now;
  *next = MIN(*next, now + MS);
  return TRUE;
}

static void
test_pages_are_back(void) {
  serve_rig r;
  oct_time back = 0;
  serve_rig_init(&r, mock());
  g_autofree char *text = g_strnfill(1000, 'x'); /* 63 pages */
  serve_ask *goes = serve_add(&r, 0, text), *stays = serve_add(&r, 0, "short");
  goes->params.sampling.max_tokens = 1000;
  goes->cancel_ns = 20 * MS;
  goes->forgets = TRUE;
  stays->params.sampling.max_tokens = 50;
  r.config.engine.prefix_caching = FALSE;
  r.each = watch_pages;
  r.user = &back;
  serve_run(&r);
  g_assert_cmpint(back, >=, 20 * MS);
  g_assert_cmpint(back, <, 30 * MS);
  g_assert_cmpuint(stays->choices[0].ids->len, ==, 50);
  serve_rig_clear(&r);
}

/* ---------------------------------------------------------------- limits */

static void
test_deadline(void) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Hello");
  a->params.sampling.max_tokens = 1000;
  a->params.timeout_ns = 10 * MS;
  serve_run(&r);
  g_assert_cmpuint(oct_service_error_status(a->error), ==, 504);
  g_assert_cmpuint(a->choices[0].ids->len, >, 0);
  g_assert_cmpint(a->ended_ns, >=, 10 * MS);
  g_assert_cmpint(a->ended_ns, <, 15 * MS);
  g_assert_false(a->choices[0].finished);
  serve_rig_clear(&r);
}

static void
test_busy(void) {
  serve_rig r;
  serve_rig_init(&r, mock());
  r.config.generations_max = 3;
  for (guint i = 0; i < 4; i++)
    serve_add(&r, i, "Hello");
  serve_ask *later = serve_add(&r, 500 * MS, "Hello");
  serve_run(&r);
  for (guint i = 0; i < 4; i++) {
    const serve_ask *a = r.asks->pdata[i];
    g_assert_true(a->refused == (i == 3));
    if (i == 3)
      g_assert_cmpuint(oct_service_error_status(a->error), ==, 429);
  }
  g_assert_no_error(later->error);
  serve_rig_clear(&r);

  /* The engine's own queue: the refusal comes as an end. */
  serve_rig_init(&r, mock());
  r.config.engine.queue_max = 2;
  r.config.engine.max_num_seqs = 1;
  for (guint i = 0; i < 8; i++)
    serve_add(&r, 0, "Hello");
  serve_run(&r);
  guint busy = 0;
  for (guint i = 0; i < 8; i++) {
    const serve_ask *a = r.asks->pdata[i];
    g_assert_cmpuint(a->n_ends, ==, 1);
    busy += a->error != NULL && oct_service_error_status(a->error) == 429;
  }
  g_assert_cmpuint(busy, >=, 4);
  serve_rig_clear(&r);
}

/* ---------------------------------------------------------------- faults */

/* Whatever happens to the engine, each generation ends once: with all its choices or an error. */
static void
test_faults(void) {
  for (oct_inject kind = OCT_INJECT_REQUEST; kind < OCT_INJECT_COUNT; kind++)
    for (guint64 at = 1; at <= 9; at += 4) {
      serve_rig r;
      serve_rig_init(&r, faulty(kind, at));
      r.config.engine.step_deadline_ns = 50 * MS;
      for (guint i = 0; i < 6; i++)
        serve_add(&r, i * MS, "Hello")->params.sampling.n = 1 + i % 2;
      serve_run(&r);
      g_assert_no_error(r.error);
      for (guint i = 0; i < 6; i++)
        g_assert_cmpuint(((serve_ask *)r.asks->pdata[i])->n_ends, ==, 1);
      g_assert_cmpuint(pages_used(&r), ==, 0);
      serve_rig_clear(&r);
    }
}

static void
test_engine_death(void) {
  serve_rig r;
  serve_rig_init(&r, faulty(OCT_INJECT_FATAL, 5));
  for (guint i = 0; i < 6; i++)
    serve_add(&r, 0, "Hello")->params.sampling.max_tokens = 500;
  serve_ask *late = serve_add(&r, 1000 * MS, "Hello");
  serve_run(&r);
  g_assert_no_error(r.error);
  for (guint i = 0; i < 6; i++) {
    const serve_ask *a = r.asks->pdata[i];
    g_assert_cmpuint(a->n_ends, ==, 1);
    g_assert_cmpuint(oct_service_error_status(a->error), ==, 500);
  }
  g_assert_cmpuint(oct_service_error_status(late->error), ==, 503);
  g_assert_cmpstr(late->error->message, ==, "no engine serves"); /* not what happened to it */
  oct_service_status status;
  oct_service_get_status(r.service, &status);
  g_assert_cmpint(status.health, ==, OCT_HEALTH_DEAD);
  g_assert_false(status.ready);
  g_assert_cmpstr(status.reason, !=, "");
  serve_rig_clear(&r);
}

/* ---------------------------------------------------------------- health */

typedef struct health_script {
  oct_health seen[64];
  guint n;
} health_script;

static gboolean
watch_health(serve_rig *r, oct_time now, oct_time *next) {
  health_script *h = r->user;
  oct_service_status status;
  oct_service_get_status(r->service, &status);
  if (h->n == 0 || h->seen[h->n - 1] != status.health)
    h->seen[h->n++] = status.health;
  g_assert_cmpuint(h->n, <, G_N_ELEMENTS(h->seen));
  *next = MIN(*next, now + 100 * MS);
  if (status.health == OCT_HEALTH_STALLED)
    oct_service_set_phase(r->service, OCT_SERVICE_ABORTED);
  return status.health != OCT_HEALTH_STALLED || r->n_running > 0;
}

static void
test_health_of_a_hang(void) {
  serve_rig r;
  health_script h = {.n = 0};
  serve_rig_init(&r, faulty(OCT_INJECT_HANG, 3));
  serve_ask *a = serve_add(&r, 2000 * MS, "Hello");
  r.each = watch_health;
  r.user = &h;
  r.config.engine.step_deadline_ns = 0;
  serve_run(&r);
  /* Idle is ok however long; what hangs is busy at first, and stalled also when nobody waits. */
  g_assert_cmpuint(h.n, ==, 4);
  g_assert_cmpint(h.seen[0], ==, OCT_HEALTH_OPENING);
  g_assert_cmpint(h.seen[1], ==, OCT_HEALTH_OK);
  g_assert_cmpint(h.seen[2], ==, OCT_HEALTH_BUSY);
  g_assert_cmpint(h.seen[3], ==, OCT_HEALTH_STALLED);
  g_assert_cmpint(a->ended_ns, >=, 32000 * (oct_time)MS);
  g_assert_cmpuint(a->n_ends, ==, 1);
  serve_rig_clear(&r);
}

/* ---------------------------------------------------------------- shutdown */

static gboolean
shut_down(serve_rig *r, oct_time now, oct_time *next) {
  oct_service_phase wanted = now >= 30 * MS   ? OCT_SERVICE_ABORTED
                             : now >= 20 * MS ? OCT_SERVICE_DRAINING
                             : now >= 10 * MS ? OCT_SERVICE_LAME
                                              : OCT_SERVICE_RUNNING;
  oct_service_set_phase(r->service, wanted);
  oct_service_status status;
  oct_service_get_status(r->service, &status);
  g_assert_true(!status.ready || wanted == OCT_SERVICE_RUNNING);
  *next = MIN(*next, (now / (10 * MS) + 1) * 10 * MS);
  return TRUE;
}

static void
test_shutdown(void) {
  serve_rig r;
  serve_rig_init(&r, mock());
  serve_ask *is_short = serve_add(&r, 1, "Hello"), *is_long = serve_add(&r, 1, "Hello");
  serve_ask *lame = serve_add(&r, 12 * MS, "Hello"), *drained = serve_add(&r, 22 * MS, "Hello");
  is_long->params.sampling.max_tokens = 4000;
  lame->params.sampling.max_tokens = 4;
  r.each = shut_down;
  serve_run(&r);
  g_assert_no_error(is_short->error);
  g_assert_no_error(lame->error);
  g_assert_true(drained->refused);
  g_assert_cmpuint(oct_service_error_status(drained->error), ==, 503);
  g_assert_cmpuint(oct_service_error_status(is_long->error), ==, 503);
  g_assert_cmpint(is_long->ended_ns, ==, 30 * MS);
  serve_rig_clear(&r);
}

/* A service that is freed in the middle ends what it has. */
static gboolean
walk_out(serve_rig *r, oct_time now, oct_time *next) {
  (void)r, (void)next;
  return now < 5 * MS;
}

static void
test_freed(void) {
  serve_rig r;
  serve_rig_init(&r, mock());
  for (guint i = 0; i < 10; i++) {
    serve_ask *a = serve_add(&r, i * MS / 2, "Hello");
    a->params.constraint = i % 2 ? OCT_CONSTRAINT_JSON : OCT_CONSTRAINT_NONE;
  }
  r.each = walk_out;
  serve_run(&r);
  oct_service_free(g_steal_pointer(&r.service));
  guint ended = 0;
  for (guint i = 0; i < 10; i++) {
    const serve_ask *a = r.asks->pdata[i];
    g_assert_true(a->at_ns >= 0 || a->n_ends == 1);
    ended += a->error != NULL && oct_service_error_status(a->error) == 503;
  }
  g_assert_cmpuint(ended, >, 5);
  serve_rig_clear(&r);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/serve/cancel/in-every-state-beside-another", test_cancel_in_every_state);
  g_test_add_func("/serve/cancel/queued", test_cancel_queued);
  g_test_add_func("/serve/cancel/a-thousand-races", test_abort_races);
  g_test_add_func("/serve/cancel/pages-are-back-at-once", test_pages_are_back);
  g_test_add_func("/serve/limits/a-deadline-ends-it", test_deadline);
  g_test_add_func("/serve/limits/too-many-are-busy", test_busy);
  g_test_add_func("/serve/faults/each-ends-once", test_faults);
  g_test_add_func("/serve/faults/a-dead-engine-ends-all", test_engine_death);
  g_test_add_func("/serve/health/of-a-hang", test_health_of_a_hang);
  g_test_add_func("/serve/shutdown/lame-drain-abort", test_shutdown);
  g_test_add_func("/serve/shutdown/freed-in-the-middle", test_freed);
  return g_test_run();
}
