/* A simulated node that serves, its world made by the engine thread, where it stays. */
#include <time.h>

#include "backends/registry.h"
#include "engine/base/worker.h"
#include "tests/engine/serve/serve-rig.h"

static oct_bell *bell;

static gint64
now_ns(void *clock) {
  struct timespec t;
  (void)clock;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (gint64)t.tv_sec * 1000000000 + t.tv_nsec;
}

static oct_world *
make_world(void *user, GError **error) {
  (void)user;
  return oct_backend_world_new("pace@simgrid:node=b300-hgx8", error);
}

static void
notify(void *user) {
  (void)user;
  oct_bell_ring(bell);
}

/* The world is the process's only one of SimGrid. */
static void
test_simgrid(void) {
  serve_rig r;
  bell = oct_bell_new();
  serve_rig_init(&r, NULL);
  r.config.make_world = make_world;
  r.config.now_ns = now_ns;
  r.config.notify = notify;
  r.config.log = NULL;
  r.service = oct_service_new(&r.config, &r.error);
  g_assert_no_error(r.error);
  g_assert_true(oct_service_start(r.service, &r.error));
  for (guint i = 0; i < 6; i++) {
    serve_ask *a = serve_add(&r, 0, "Hello");
    a->params.sampling.max_tokens = 40;
    serve_submit(a);
  }
  while (oct_service_active(r.service) > 0) {
    oct_bell_wait(bell);
    oct_service_dispatch(r.service);
  }
  for (guint i = 0; i < 6; i++) {
    const serve_ask *a = r.asks->pdata[i];
    g_assert_no_error(a->error);
    g_assert_cmpuint(a->choices[0].ids->len, ==, 40);
    g_assert_cmpint(a->end.last_token_ns, >, a->end.first_token_ns);
  }
  serve_rig_clear(&r);
  oct_bell_free(bell);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/serve/paced/a-simulated-node-serves", test_simgrid);
  return g_test_run();
}
