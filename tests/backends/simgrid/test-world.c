/* Opening, closing, loss, errors and the two sides of a world's life. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/backends/simgrid/child.h"
#include "tests/backends/simgrid/sim-rig.h"

static oct_parallel
tensor(guint32 n) {
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = n;
  return p;
}

static void
submit_prefill(sim_rig *rig, guint32 slot, guint32 n) {
  sim_rig_begin(rig);
  sim_rig_slot(rig, slot, n, 0);
  (void)sim_rig_prefill(rig, slot, n, TRUE);
  sim_rig_submit(rig);
}

/* ---------------------------------------------------------------- opening */

static void
opens_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  sim_rig_options options = {.model = "kimi-k3", .parallel = tensor(8), .slots = 16};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  const oct_capabilities *c = &rig.capabilities;
  g_assert_cmpuint(c->depth, ==, 2);
  g_assert_cmpuint(c->n_groups, ==, 2);
  g_assert_cmpuint(c->graph_max_batch, ==, 512);
  g_assert_false(c->token_ids);
  g_assert_false(c->adapters);
  g_assert_true(c->masks && c->speculation && c->expert_slots && c->host_tier && c->forward);
  g_assert_cmpint(c->clock, ==, OCT_CLOCK_VIRTUAL);
  /* 195 GB of weights leave some 90 GB a GPU. */
  double unit =
      (double)oct_model_rank_token_bytes(rig.spec, &rig.config.parallel, 0, OCT_DTYPE_BF16, 1) * 64;
  g_assert_cmpuint(c->fits[1], >, rig.config.memory.groups[1].n_device);
  g_assert_cmpfloat(c->fits[1] * unit, >, 60e9);
  g_assert_cmpfloat(c->fits[1] * unit, <, 95e9);
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
}

static void
test_opens(void) {
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, opens_body, NULL, 0);
}

/* Waits for the outcome of an open that must fail, and returns what it says. */
static char *
open_failure(sim_rig *rig) {
  g_autoptr(GError) error = NULL;
  oct_event event;
  gboolean taken = oct_world_open(rig->world, &rig->config, &rig->instance, &error);
  g_assert_no_error(error);
  g_assert_true(taken);
  g_assert_true(oct_world_next(rig->world, OCT_TIME_NEVER, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_OPEN_FAILED);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_INSTANCE);
  char *message = g_strdup(event.fault->message); /* the instance is gone: nothing to close */
  rig->instance = 0;
  return message;
}

static void
too_big_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig, second;
  sim_rig_options options = {.model = "llama-3.1-405b", .parallel = tensor(2)};
  sim_rig_init(&rig, world, &options);
  g_autofree char *message = open_failure(&rig);
  g_assert_nonnull(strstr(message, "GB more than the 150.75 GB of a GPU"));
  sim_rig_clear(&rig);
  /* What another instance has is not free. */
  options = (sim_rig_options){.model = "llama-3.1-70b", .parallel = tensor(2)};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  options.first_device = 1;
  sim_rig_init(&second, world, &options);
  g_autofree char *other = open_failure(&second);
  g_assert_nonnull(strstr(other, "GB more"));
  second.devices[0] = 2;
  second.devices[1] = 3;
  sim_rig_open(&second);
  sim_rig_close(&second);
  sim_rig_clear(&second);
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
}

static void
test_too_big(void) {
  sim_rig_world world = {.profile = "h200-hgx8"};
  sim_rig_run(&world, too_big_body, NULL, 0);
}

static void
refuse_open(sim_rig *rig, const char *why) {
  g_autoptr(GError) error = NULL;
  guint32 id;
  g_assert_false(oct_world_open(rig->world, &rig->config, &id, &error));
  g_assert_nonnull(error);
  g_assert_nonnull(strstr(error->message, why));
}

static void
config_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  sim_rig_options options = {.model = "llama-3.1-8b", .parallel = tensor(2)};
  sim_rig_init(&rig, world, &options);
  rig.devices[1] = 9;
  refuse_open(&rig, "rank 1 is on GPU 9: the node has 8");
  rig.devices[1] = 0;
  refuse_open(&rig, "ranks 0 and 1 are both on GPU 0");
  rig.devices[1] = 1;
  rig.config.parallel.tensor = 3;
  refuse_open(&rig, "3");
  /* So many pipelines that the solver could run out of lanes. */
  guint32 ids[5];
  rig.config.parallel = tensor(1);
  rig.config.parallel.pipeline = 2;
  rig.config.depth = 60;
  for (guint i = 0; i < 4; i++) {
    g_autoptr(GError) error = NULL;
    gboolean taken = oct_world_open(world, &rig.config, &ids[i], &error);
    g_assert_no_error(error);
    g_assert_true(taken);
  }
  refuse_open(&rig, "would be 310, limit 256");
  oct_world_close(world, ids[0]);
  gboolean taken = oct_world_open(world, &rig.config, &ids[4], NULL);
  g_assert_true(taken);
  for (guint i = 1; i < 5; i++)
    oct_world_close(world, ids[i]);
  sim_rig_clear(&rig);
}

static void
test_config(void) {
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, config_body, NULL, 0);
}

/* ---------------------------------------------------------------- loss */

static void
loss_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig, other;
  oct_event event;
  g_autoptr(GError) error = NULL;
  sim_rig_options options = {.model = "llama-3.1-8b", .parallel = tensor(2)};
  sim_rig_init(&rig, world, &options);
  options.first_device = 2;
  sim_rig_init(&other, world, &options);
  sim_rig_open(&rig);
  sim_rig_open(&other);
  submit_prefill(&rig, 0, 4000);
  submit_prefill(&other, 0, 4000);
  oct_time when = rig.now + 5000000;
  gboolean taken = oct_simgrid_lose(world, 1, when, &error);
  g_assert_no_error(error);
  g_assert_true(taken);
  g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_FAULT);
  g_assert_cmpuint(event.instance, ==, rig.instance);
  g_assert_cmpint(event.time_ns, ==, when);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_INSTANCE);
  g_assert_cmpuint(event.fault->device, ==, 1);
  /* Nothing more comes of it, and it takes nothing more; the other goes on. */
  sim_rig_begin(&rig);
  (void)sim_rig_decode(&rig, 0);
  g_assert_cmpint(oct_world_submit(world, rig.instance, oct_step_end(rig.builder), &error), ==,
                  OCT_SUBMIT_REFUSED);
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
  (void)sim_rig_wait(&other, 1);
  g_assert_false(oct_world_next(world, OCT_TIME_NEVER, &event));
  sim_rig_close(&rig);
  rig.number = 0;
  g_autofree char *message = open_failure(&rig);
  g_assert_cmpstr(message, ==, "GPU 1 is lost");
  rig.devices[1] = 4;
  sim_rig_open(&rig);
  submit_prefill(&rig, 0, 100);
  (void)sim_rig_wait(&rig, 1);
  g_clear_error(&error);
  g_assert_false(oct_simgrid_lose(world, 8, 0, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  sim_rig_check_usage(world);
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
  sim_rig_close(&other);
  sim_rig_clear(&other);
}

static void
test_loss(void) {
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, loss_body, NULL, 0);
  world.exact = TRUE;
  sim_rig_run(&world, loss_body, NULL, 0);
}

/* ---------------------------------------------------------------- closing */

/* In any state: while opening, with steps, sends and copies in flight. */
static void
close_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  oct_event event;
  g_autoptr(GError) error = NULL;
  for (guint i = 0; i < 6; i++) {
    sim_rig rig;
    sim_rig_options options = {.model = "llama-3.1-8b", .depth = 4};
    options.parallel = tensor(2);
    options.parallel.pipeline = 2;
    sim_rig_init(&rig, world, &options);
    if (i == 0) {
      gboolean taken = oct_world_open(world, &rig.config, &rig.instance, &error);
      g_assert_true(taken);
      g_assert_true(oct_world_next(world, 1000, &event)); /* progress */
    } else {
      sim_rig_open(&rig);
      submit_prefill(&rig, 0, 3000);
      submit_prefill(&rig, 1, 2000);
      sim_rig_begin(&rig);
      (void)sim_rig_decode(&rig, 0);
      (void)sim_rig_copy(&rig, OCT_COPY_AFTER, 0, OCT_TIER_DEVICE, OCT_TIER_HOST,
                         sim_rig_page(&rig, 0, 0), 1);
      sim_rig_submit(&rig);
      oct_copy copy = {.kind = OCT_COPY_PAGE,
                       .order = OCT_COPY_BESIDE,
                       .from_tier = OCT_TIER_HOST,
                       .from = 2,
                       .to = rig.config.memory.groups[0].n_device - 1};
      oct_submit answer = oct_world_copy(world, rig.instance, 1, &copy, 1, &error);
      g_assert_no_error(error);
      g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
      sim_rig_sleep(&rig, rig.now + (oct_time)i * i * 3000000);
    }
    oct_world_close(world, rig.instance);
    sim_rig_clear(&rig);
    g_assert_false(oct_world_next(world, OCT_TIME_NEVER, &event));
  }
  sim_rig_check_usage(world);
}

static void
test_close(void) {
  sim_rig_world world = {.profile = "b300-hgx8", .load_weights = TRUE};
  sim_rig_run(&world, close_body, NULL, 0);
  world.exact = TRUE;
  sim_rig_run(&world, close_body, NULL, 0);
}

/* ---------------------------------------------------------------- waking, rest, breach */

static void *
wake_it(void *world) {
  oct_world_wake(world);
  return NULL;
}

static void
wake_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  oct_event event;
  pthread_t thread;
  g_assert_false(oct_world_next(world, OCT_TIME_NEVER, &event)); /* at rest for ever */
  g_assert_cmpint(pthread_create(&thread, NULL, wake_it, world), ==, 0);
  pthread_join(thread, NULL);
  g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_WAKE);
  g_assert_cmpuint(event.instance, ==, 0);
  g_assert_true(oct_world_next(world, 5000, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_TIMER);
  g_assert_cmpint(event.time_ns, ==, 5000);
  g_assert_true(oct_world_next(world, 100, &event)); /* time never runs backwards */
  g_assert_cmpint(event.time_ns, ==, 5000);
}

static void
test_wake(void) {
  sim_rig_world world = {.profile = "h200x1"};
  sim_rig_run(&world, wake_body, NULL, 0);
}

static void
breach_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  oct_event event;
  g_autoptr(GError) error = NULL;
  sim_rig_options options = {.model = "llama-3.1-8b"};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  submit_prefill(&rig, 0, 100);
  rig.position[0] = 150; /* where nothing has been computed */
  sim_rig_begin(&rig);
  (void)sim_rig_decode(&rig, 0);
  sim_rig_submit(&rig);
  g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_FAULT);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_FATAL);
  g_assert_cmpuint(event.fault->number, ==, 2);
  g_assert_false(oct_world_next(world, OCT_TIME_NEVER, &event));
  guint32 id;
  g_assert_false(oct_world_open(world, &rig.config, &id, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
}

static void
test_breach(void) {
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, breach_body, NULL, 0);
}

/* ---------------------------------------------------------------- run, and run again */

static sim_rig twice;

static int
first_run(oct_world *world, void *arg G_GNUC_UNUSED) {
  sim_rig_options options = {.model = "llama-3.1-8b"};
  sim_rig_init(&twice, world, &options);
  sim_rig_open(&twice);
  submit_prefill(&twice, 0, 4000);
  sim_rig_sleep(&twice, 10000000);
  return 1;
}

static int
second_run(oct_world *world, void *arg G_GNUC_UNUSED) {
  sim_rig_done done = sim_rig_wait(&twice, 1);
  g_assert_cmpint(done.end_ns, >, 10000000);
  gint64 parts[OCT_PART_COUNT], sum = 0;
  oct_simgrid_parts(world, twice.instance, parts);
  for (guint p = 0; p < OCT_PART_COUNT; p++)
    sum += parts[p];
  g_assert_cmpint(sum, ==, done.end_ns - done.start_ns);
  sim_rig_close(&twice);
  sim_rig_clear(&twice);
  return 2;
}

static void
runs_body(gpointer arg, gpointer out G_GNUC_UNUSED) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) profile = oct_profile_load("h200x1", NULL, NULL, &error);
  g_assert_no_error(error);
  oct_simgrid_options options = OCT_SIMGRID_OPTIONS_DEFAULT;
  options.profile = profile;
  options.exact = GPOINTER_TO_INT(arg);
  oct_world *world = oct_simgrid_world_new(&options, &error);
  g_assert_no_error(error);
  g_assert_null(oct_simgrid_world_new(&options, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  g_clear_error(&error);
  gboolean scaled = oct_simgrid_scale(world, "gpu0-sm", 0.5, 1000, &error);
  g_assert_no_error(error);
  g_assert_true(scaled);
  g_assert_false(oct_simgrid_scale(world, "gpu1-sm", 0.5, 0, &error));
  g_assert_nonnull(strstr(error->message, "no resource \"gpu1-sm\""));
  g_clear_error(&error);
  g_assert_false(oct_simgrid_scale(world, "gpu0-sm", 0, 0, &error));
  g_assert_nonnull(strstr(error->message, "factor 0"));
  g_assert_cmpint(oct_world_run(world, first_run, NULL), ==, 1);
  g_assert_cmpint(oct_world_run(world, second_run, NULL), ==, 2);
  g_assert_cmpuint(oct_simgrid_activities(world), >, 0);
  oct_world_free(world);
}

static void
test_runs(void) {
  child_run(runs_body, GINT_TO_POINTER(0), NULL, 0);
  child_run(runs_body, GINT_TO_POINTER(1), NULL, 0);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/simgrid/world/opens-with-what-the-instance-can-do", test_opens);
  g_test_add_func("/simgrid/world/what-does-not-fit-fails-to-open", test_too_big);
  g_test_add_func("/simgrid/world/refuses-devices-and-layouts-that-are-not-there", test_config);
  g_test_add_func("/simgrid/world/a-lost-gpu-ends-its-instances", test_loss);
  g_test_add_func("/simgrid/world/closes-in-any-state", test_close);
  g_test_add_func("/simgrid/world/wakes-rests-and-tells-the-time", test_wake);
  g_test_add_func("/simgrid/world/a-breach-of-the-contract-ends-it", test_breach);
  g_test_add_func("/simgrid/world/runs-again-and-only-one-per-process", test_runs);
  return g_test_run();
}
