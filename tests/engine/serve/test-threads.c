/* The service with its threads, on real-clock mocks whose steps are short. What a client sees is
 * asserted by the rig's listener; here also that nothing is left when all have ended. Clean under
 * ThreadSanitizer (configure --enable-sanitizer=thread; threads.supp says how).
 */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/fault/fault.h"
#include "backends/mock/mock.h"
#include "engine/base/rng.h"
#include "engine/base/worker.h"
#include "tests/engine/serve/serve-rig.h"

typedef struct fixture {
  serve_rig rig;
  oct_bell *bell;
} fixture;

static gint64
now_ns(void *clock) {
  struct timespec t;
  (void)clock;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (gint64)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void
notify(void *user) {
  oct_bell_ring(((fixture *)user)->bell);
}

static oct_world *
real_mock(void) {
  oct_mock_options options;
  oct_mock_options_default(&options);
  options.clock = OCT_CLOCK_REAL;
  options.fixed_ns = 100000;
  options.token_ns = 10;
  options.sequence_ns = 100;
  oct_world *world = oct_mock_world_new(&options, NULL);
  g_assert_nonnull(world);
  return world;
}

static void
set_up(fixture *f, oct_world *world) {
  serve_rig_init(&f->rig, world);
  f->bell = oct_bell_new();
  f->rig.config.now_ns = now_ns;
  f->rig.config.notify = notify;
  f->rig.config.user = f;
  f->rig.config.log = NULL;
}

static void
start(fixture *f) {
  serve_rig *r = &f->rig;
  r->service = oct_service_new(&r->config, &r->error);
  g_assert_no_error(r->error);
  g_assert_true(oct_service_start(r->service, &r->error));
  g_assert_no_error(r->error);
}

static void
tear_down(fixture *f) {
  oct_service_free(g_steal_pointer(&f->rig.service));
  for (guint i = 0; i < f->rig.asks->len; i++) {
    const serve_ask *a = f->rig.asks->pdata[i];
    g_assert_true(a->n_ends == 1 || a->refused || (a->forgets && a->n_ends == 0));
  }
  serve_rig_clear(&f->rig);
  oct_bell_free(f->bell);
}

/* Until the service has nothing left. */
static void
drain(fixture *f) {
  while (oct_service_active(f->rig.service) > 0) {
    oct_bell_wait(f->bell);
    oct_service_dispatch(f->rig.service);
  }
}

static void
test_one(void) {
  fixture f;
  set_up(&f, real_mock());
  serve_ask *a = serve_add(&f.rig, 0, "Hello");
  start(&f);
  serve_submit(a);
  drain(&f);
  g_assert_no_error(a->error);
  g_assert_cmpuint(a->choices[0].ids->len, ==, 16);
  g_assert_cmpint(a->end.queued_ns, >=, a->end.received_ns);
  g_assert_cmpint(a->end.first_token_ns, >, a->end.queued_ns);
  g_assert_cmpint(a->end.ended_ns, >=, a->end.last_token_ns);
  tear_down(&f);
}

/* ---------------------------------------------------------------- everything at once */

static void
draw_ask(serve_rig *r, oct_rng *rng, const char *long_text) {
  serve_ask *a = serve_add(r, 0, oct_rng_below(rng, 8) == 0 ? long_text : "Tell me");
  a->params.sampling.n = 1 + (guint32)oct_rng_below(rng, 3);
  a->params.sampling.max_tokens = 1 + (guint32)oct_rng_below(rng, 60);
  a->params.n_logprobs = (int)oct_rng_below(rng, 4) - 1;
  if (oct_rng_below(rng, 3) == 0)
    a->stops[0] = "th";
  switch (oct_rng_below(rng, 6)) {
  case 0:
    a->params.constraint = OCT_CONSTRAINT_REGEX;
    a->params.constraint_text = "[a-z ]{3,90}";
    break;
  case 1:
    a->params.constraint = OCT_CONSTRAINT_SCHEMA;
    a->params.constraint_text = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
                                "\"integer\"}},\"required\":[\"a\"]}";
    break;
  case 2:
    a->params.constraint = OCT_CONSTRAINT_SCHEMA;
    a->params.constraint_text = "{\"type\":\"what\"}";
    break;
  default:
    break;
  }
  if (oct_rng_below(rng, 3) == 0) {
    a->cancel_at_delta = 1 + (guint)oct_rng_below(rng, 20);
    a->forgets = oct_rng_below(rng, 2) == 0;
  }
}

static void
test_stress(void) {
  static const guint16 devices[2] = {0, 1};
  fixture f;
  oct_rng rng;
  oct_rng_seed(&rng, 3, 0);
  g_autofree char *long_text = g_strnfill(3000, 'a');
  set_up(&f, real_mock());
  f.rig.config.n_replicas = 2;
  f.rig.config.devices = devices;
  for (guint i = 0; i < 400; i++)
    draw_ask(&f.rig, &rng, long_text);
  start(&f);
  for (guint i = 0; i < f.rig.asks->len; i++) {
    serve_submit(f.rig.asks->pdata[i]);
    if (i % 5 == 0)
      oct_service_dispatch(f.rig.service);
    serve_ask *other = f.rig.asks->pdata[oct_rng_below(&rng, i + 1)];
    if (i % 7 == 0 && other->generation != NULL && !other->forgets)
      oct_generation_cancel(other->generation);
  }
  drain(&f);
  tear_down(&f);
}

/* ---------------------------------------------------------------- ends of the service */

static void
test_freed_while_busy(void) {
  for (guint round = 0; round < 20; round++) {
    fixture f;
    set_up(&f, real_mock());
    g_autofree char *long_text = g_strnfill(3000, 'a');
    oct_rng rng;
    oct_rng_seed(&rng, round, 1);
    for (guint i = 0; i < 40; i++)
      draw_ask(&f.rig, &rng, long_text);
    start(&f);
    for (guint i = 0; i < 40; i++)
      serve_submit(f.rig.asks->pdata[i]);
    for (guint i = 0; i < round && oct_service_active(f.rig.service) > 0; i++) {
      oct_bell_wait(f.bell);
      oct_service_dispatch(f.rig.service);
    }
    tear_down(&f); /* each ends once */
  }
}

static void
test_stop_is_told(void) {
  fixture f;
  set_up(&f, real_mock());
  serve_ask *a = serve_add(&f.rig, 0, "Hello");
  a->params.sampling.max_tokens = 4000;
  start(&f);
  serve_submit(a);
  oct_service_stop(f.rig.service);
  while (!oct_service_is_stopped(f.rig.service))
    oct_bell_wait(f.bell);
  oct_service_dispatch(f.rig.service);
  g_assert_cmpuint(a->n_ends, ==, 1);
  g_assert_cmpuint(oct_service_error_status(a->error), ==, 503);
  serve_ask *late = serve_add(&f.rig, 0, "Hello");
  serve_submit(late);
  g_assert_true(late->refused);
  g_assert_cmpuint(oct_service_error_status(late->error), ==, 503);
  tear_down(&f);
}

static void
test_engine_that_cannot_be(void) {
  fixture f;
  set_up(&f, real_mock());
  f.rig.config.engine.policy = "none";
  f.rig.service = oct_service_new(&f.rig.config, &f.rig.error);
  g_assert_no_error(f.rig.error);
  g_assert_false(oct_service_start(f.rig.service, &f.rig.error));
  g_assert_nonnull(strstr(f.rig.error->message, "policy"));
  tear_down(&f);
}

static oct_world *
no_world(void *user, GError **error) {
  (void)user;
  g_set_error_literal(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, "no such node");
  return NULL;
}

static oct_world *
virtual_world(void *user, GError **error) {
  (void)user;
  return oct_mock_world_new(NULL, error);
}

static oct_world *
real_world(void *user, GError **error) {
  (void)user, (void)error;
  return real_mock();
}

static void
test_worlds_of_the_thread(void) {
  oct_world *(*const makers[])(void *, GError **) = {no_world, virtual_world, real_world};
  static const char *const messages[] = {"no such node", "virtual clock", NULL};
  for (guint i = 0; i < G_N_ELEMENTS(makers); i++) {
    fixture f;
    set_up(&f, NULL);
    f.rig.config.make_world = makers[i];
    f.rig.service = oct_service_new(&f.rig.config, &f.rig.error);
    gboolean started = oct_service_start(f.rig.service, &f.rig.error);
    g_assert_true(started == (messages[i] == NULL));
    if (started) {
      serve_ask *a = serve_add(&f.rig, 0, "Hello");
      serve_submit(a);
      drain(&f);
      g_assert_cmpuint(a->choices[0].ids->len, ==, 16);
    } else
      g_assert_nonnull(strstr(f.rig.error->message, messages[i]));
    tear_down(&f);
  }
}

/* ---------------------------------------------------------------- cancel */

/* Client gone in whatever state: its pages are back while another goes on. */
static void
test_gone(void) {
  fixture f;
  set_up(&f, real_mock());
  serve_ask *stays = serve_add(&f.rig, 0, "Hello");
  stays->params.sampling.max_tokens = 600;
  start(&f);
  serve_submit(stays);
  for (guint i = 0; i < 200; i++) {
    serve_ask *a = serve_add(&f.rig, 0, "Tell me a long story");
    a->params.sampling.max_tokens = 2000;
    a->forgets = TRUE;
    a->cancel_at_delta = i % 2 == 0 ? 1 + i % 5 : 0;
    serve_submit(a);
    if (a->cancel_at_delta == 0) {
      oct_generation_forget(g_steal_pointer(&a->generation));
      f.rig.n_running--;
    }
    oct_service_dispatch(f.rig.service);
  }
  drain(&f);
  g_assert_no_error(stays->error);
  g_assert_cmpuint(stays->choices[0].ids->len, ==, 600);
  tear_down(&f);
}

/* One leaves while another's prompt is computed, a thousand times at any moment: the other is
 * answered whole each time, and the service still ends when it is told to. A hang is a failure: the
 * alarm ends the test. */
static void
test_abort_races(void) {
  fixture f;
  oct_rng rng;
  oct_rng_seed(&rng, 9, 0);
  g_autofree char *long_text = g_strnfill(600, 'b');
  set_up(&f, real_mock());
  f.rig.config.engine.max_num_seqs = 8;
  f.rig.config.engine.max_num_batched_tokens = 64; /* so that a prompt takes ten steps */
  start(&f);
  (void)alarm(120);
  for (guint round = 0; round < 1000; round++) {
    serve_ask *a = serve_add(&f.rig, 0, round % 2 == 0 ? "Hello" : long_text);
    serve_ask *b = serve_add(&f.rig, 0, long_text);
    a->params.sampling.max_tokens = 300;
    b->params.sampling.max_tokens = 2;
    a->forgets = round % 3 == 0;
    serve_submit(round % 5 == 0 ? b : a);
    serve_submit(round % 5 == 0 ? a : b);
    for (guint64 turns = oct_rng_below(&rng, 6); turns > 0 && b->n_ends == 0; turns--) {
      oct_bell_wait(f.bell);
      oct_service_dispatch(f.rig.service);
    }
    if (a->forgets && a->n_ends == 0) {
      oct_generation_forget(g_steal_pointer(&a->generation));
      f.rig.n_running--;
    } else if (a->n_ends == 0) {
      oct_generation_cancel(a->generation);
    }
    drain(&f);
    g_assert_no_error(b->error);
    g_assert_cmpuint(b->choices[0].ids->len, ==, 2);
  }
  oct_service_stop(f.rig.service);
  while (!oct_service_is_stopped(f.rig.service))
    oct_bell_wait(f.bell);
  (void)alarm(0);
  tear_down(&f);
}

/* ---------------------------------------------------------------- a hung engine */

static void
test_hung(void) {
  fixture f;
  oct_fault_options fault;
  oct_fault_options_default(&fault);
  fault.n_script = 1;
  fault.script[0] = (oct_inject_line){.kind = OCT_INJECT_HANG, .at = 3};
  set_up(&f, oct_fault_world_new(real_mock(), &fault, NULL));
  f.rig.config.busy_ns = 1;
  f.rig.config.stall_ns = 50 * MS;
  serve_ask *a = serve_add(&f.rig, 0, "Hello"), *b = serve_add(&f.rig, 0, "Hello");
  start(&f);
  serve_submit(a);
  oct_service_status status;
  do {
    oct_service_dispatch(f.rig.service);
    oct_service_get_status(f.rig.service, &status);
  } while (status.health != OCT_HEALTH_STALLED);
  g_assert_false(status.ready);
  g_assert_nonnull(strstr(status.reason, "no step has ended"));
  g_assert_cmpuint(a->choices[0].ids->len, <, 16);
  /* A client is told of its end although the engine says nothing. */
  serve_submit(b);
  oct_service_set_phase(f.rig.service, OCT_SERVICE_ABORTED);
  oct_service_dispatch(f.rig.service);
  g_assert_cmpuint(a->n_ends, ==, 1);
  g_assert_cmpuint(b->n_ends, ==, 1);
  g_assert_cmpuint(oct_service_error_status(a->error), ==, 503);
  tear_down(&f);
}

/* The engine's end and its cause come from two threads, in this order or that: it is the cause that
 * the client gets. */
static void
test_nothing_fits(void) {
  fixture f;
  oct_engine_stats stats;
  set_up(&f, real_mock());
  for (guint i = 0; i < 100; i++)
    serve_add(&f.rig, 0, "Hello");
  start(&f);
  for (guint i = 0; i < f.rig.asks->len; i++) {
    serve_ask *a = f.rig.asks->pdata[i];
    a->params.constraint = OCT_CONSTRAINT_REGEX;
    a->params.constraint_text = "\\ud800";
    serve_submit(a);
    oct_bell_wait(f.bell);
    oct_service_dispatch(f.rig.service); /* compiled: to the engine */
    /* Most often both have come before the front looks; not where the bell was the last one's. */
    for (guint k = 0; k < 100000; k++) {
      oct_service_get_stats(f.rig.service, 0, &stats);
      if (stats.ended[OCT_END_CANCELLED] > i)
        break;
    }
    drain(&f);
    g_assert_cmpuint(a->n_ends, ==, 1);
    g_assert_cmpuint(oct_service_error_status(a->error), ==, 400);
  }
  tear_down(&f);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/serve/threads/one", test_one);
  g_test_add_func("/serve/threads/everything-at-once", test_stress);
  g_test_add_func("/serve/threads/freed-while-busy-each-ends-once", test_freed_while_busy);
  g_test_add_func("/serve/threads/stopped-is-told", test_stop_is_told);
  g_test_add_func("/serve/threads/an-engine-that-cannot-be-is-an-error",
                  test_engine_that_cannot_be);
  g_test_add_func("/serve/threads/a-world-of-the-thread", test_worlds_of_the_thread);
  g_test_add_func("/serve/threads/clients-that-leave-disturb-nobody", test_gone);
  g_test_add_func("/serve/threads/a-thousand-races-of-an-abort-and-a-prompt", test_abort_races);
  g_test_add_func("/serve/threads/a-hung-engine-is-stalled-and-its-clients-are-told", test_hung);
  g_test_add_func("/serve/threads/what-nothing-fits-is-400", test_nothing_fits);
  return g_test_run();
}
