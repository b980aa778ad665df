/* Instances that end, fail to open, or are lost, while others wait for them. With a GPU. */
#include <string.h>
#include <unistd.h>

#include "backends/registry.h"
#include "backends/remote/remote.h"
#include "tests/contract/rig.h"

#define NS_PER_S  ((oct_time)1000000000)
#define NS_PER_MS ((oct_time)1000000)
#define HANG_S    60 /* a close that takes so long never ends */

static oct_instance_config
config_of(guint32 pipeline) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.pipeline = pipeline;
  oct_instance_config config = fixture_config(fixture_dense(), parallel);
  config.check_tags = FALSE;
  return config;
}

/* NULL: skipped. */
static oct_world *
make(const char *text) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_backend_world_new(text, &error);
  if (world == NULL)
    g_test_skip(error->message);
  return world;
}

static void
decode(rig *r) {
  rig_begin(r);
  rig_decode(r, 0, 8 + (guint32)r->number);
  rig_submit(r);
}

static void
prompt(rig *r, guint32 flags) {
  rig_begin(r);
  rig_sequence(r, 0, 5, 10, 0);
  rig_prefill(r, 0, 0, 10, OCT_SAMPLE_LAST)->flags |= (guint16)flags;
  rig_submit(r);
}

/* Nothing happens for so long. */
static void
idle(rig *r, oct_time ns) {
  oct_event event;
  g_assert_true(rig_next(r, 0, &event));
  while (event.kind != OCT_EVENT_TIMER)
    g_assert_true(rig_next(r, 0, &event));
  g_assert_true(rig_next(r, event.time_ns + ns, &event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "TIMER");
}

static void
pull(rig *r, const rig *peer, guint64 ticket) {
  g_autoptr(GError) error = NULL;
  const oct_copy copy = {.kind = OCT_COPY_PAGE, .order = OCT_COPY_BESIDE, .to = 9};
  oct_submit answer =
      oct_world_pull(r->world, r->instance, peer->instance, 0, ticket, &copy, 1, &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
}

/* ---------------------------------------------------------------- a peer that is lost */

/* The peer hangs, and a second later the instance that pulls from it: its pull waits for a step
 * that ends long after the peer is given up. */
static void
lose_the_peer(rig *r) {
  static const guint16 devices[] = {1};
  rig peer;
  oct_instance_config config = r->config;
  oct_event event;
  config.devices = devices;
  rig_init(&peer, r->world, &config);
  rig_open(&peer);
  rig *const both[] = {r, &peer};
  for (guint i = 0; i < 2; i++) {
    prompt(both[i], 0);
    rig_until(both[i], OCT_EVENT_STEP_DONE, 1, NULL);
    decode(both[i]);
    rig_until(both[i], OCT_EVENT_STEP_DONE, 2, NULL);
  }
  pull(r, &peer, 1);
  rig_until(r, OCT_EVENT_COPY_DONE, 1, NULL);
  gint64 began = g_get_monotonic_time();
  decode(&peer);
  idle(&peer, NS_PER_S);
  decode(r);
  pull(r, &peer, 2);
  do
    g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
  while (event.kind != OCT_EVENT_FAULT);
  double told_s = (double)(g_get_monotonic_time() - began) * 1e-6;
  g_test_message("told after %.3f s: %s", told_s, event.fault->message);
  g_assert_cmpuint(event.instance, ==, peer.instance);
  g_assert_nonnull(strstr(event.fault->message, "takes longer than 2.0 s"));
  g_assert_cmpfloat(told_s, <, 2.8);
  rig_close(&peer);
  rig_clear(&peer);
}

static void
a_lost_peer_of_a_pull_is_told_at_its_deadline(void) {
  const oct_instance_config config = config_of(1);
  oct_world *world = make("remote:hang_ns=1000000000@cuda:exit_on_loss=1,fault_step=3,fault_hang=1,"
                          "devices=2,deadline_ns=2000000000");
  if (world != NULL)
    rig_run(world, &config, lose_the_peer);
}

/* ---------------------------------------------------------------- an opening that fails */

static void
open_in_vain(rig *r, char *message, gsize bytes) {
  g_autoptr(GError) error = NULL;
  oct_event event;
  g_assert_true(oct_world_open(r->world, &r->config, &r->instance, &error));
  do
    g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
  while (event.kind == OCT_EVENT_OPEN_PROGRESS);
  g_assert_cmpstr(oct_event_name(event.kind), ==, "OPEN_FAILED");
  g_strlcpy(message, event.fault->message, bytes);
  g_test_message("process %d: %s", (int)oct_remote_worker(r->world), message);
  r->instance = 0;
}

/* The opening behind it may still meet the worker that is about to end. */
static void
fail_to_open(rig *r) {
  char message[96];
  open_in_vain(r, message, sizeof message);
  g_assert_nonnull(strstr(message, "illegal memory access"));
  const pid_t first = oct_remote_worker(r->world);
  guint tries = 0;
  do
    open_in_vain(r, message, sizeof message);
  while (strstr(message, "worker exited") != NULL && ++tries < 2);
  g_assert_nonnull(strstr(message, "illegal memory access"));
  g_assert_cmpint(oct_remote_worker(r->world), !=, first);
}

static void
a_failed_opening_leaves_no_broken_process(void) {
  const oct_instance_config config = config_of(1);
  oct_world *world = make("remote@cuda:exit_on_loss=1,fault_open=1");
  if (world != NULL)
    rig_run_closed(world, &config, fail_to_open);
}

/* ---------------------------------------------------------------- a device that hangs */

/* One instance is closed while its device stands still, which nobody knows yet: the process that
 * closes it shows life again before it is taken for dead, and another instance goes on. */
static void
close_what_hangs(rig *r) {
  rig other;
  rig_init(&other, r->world, &r->config);
  rig_open(&other);
  prompt(&other, 0);
  rig_until(&other, OCT_EVENT_STEP_DONE, 1, NULL);
  prompt(r, 0);
  rig_until(r, OCT_EVENT_STEP_DONE, 1, NULL);
  decode(r);
  rig_until(r, OCT_EVENT_STEP_DONE, 2, NULL);
  const pid_t worker = oct_remote_worker(r->world);
  decode(r);
  idle(r, 50 * NS_PER_MS);
  gint64 began = g_get_monotonic_time();
  rig_close(r);
  decode(&other);
  rig_until(&other, OCT_EVENT_STEP_DONE, 2, NULL);
  g_test_message("served on after %.3f s", (double)(g_get_monotonic_time() - began) * 1e-6);
  g_assert_cmpint(oct_remote_worker(r->world), ==, worker);
  rig_close(&other);
  rig_clear(&other);
}

static void
a_device_that_hangs_in_closing_takes_no_other_instance_along(void) {
  const oct_instance_config config = config_of(1);
  oct_world *world = make("remote:hang_ns=6500000000@cuda:fault_step=3,fault_hang=1,"
                          "deadline_ns=7000000000");
  if (world != NULL)
    rig_run(world, &config, close_what_hangs);
}

/* ---------------------------------------------------------------- stages */

/* The first stage has begun a step that feeds on one whose mask never comes. */
static void
close_in_the_middle(rig *r) {
  for (guint i = 0; i < 2; i++) {
    if (i > 0)
      rig_open(r);
    prompt(r, OCT_SLICE_NEEDS_MASK);
    decode(r);
    rig_until(r, OCT_EVENT_MASK_WANTED, 1, NULL);
    idle(r, 50 * NS_PER_MS);
    gint64 began = g_get_monotonic_time();
    (void)alarm(HANG_S);
    rig_close(r);
    (void)alarm(0);
    g_test_message("closed in %.3f s", (double)(g_get_monotonic_time() - began) * 1e-6);
  }
}

static void
stages_close_while_a_mask_is_awaited(void) {
  const oct_instance_config config = config_of(2);
  oct_world *world = make("cuda:devices=2");
  if (world != NULL)
    rig_run(world, &config, close_in_the_middle);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  /* In the process the last: one that has used a GPU cannot start another that does. */
  g_test_add_func("/cuda/loss/a-lost-peer-of-a-pull-is-told-at-its-deadline",
                  a_lost_peer_of_a_pull_is_told_at_its_deadline);
  g_test_add_func("/cuda/loss/a-failed-opening-leaves-no-broken-process",
                  a_failed_opening_leaves_no_broken_process);
  g_test_add_func("/cuda/loss/a-device-that-hangs-in-closing-takes-no-other-instance-along",
                  a_device_that_hangs_in_closing_takes_no_other_instance_along);
  g_test_add_func("/cuda/loss/stages-close-while-a-mask-is-awaited",
                  stages_close_while_a_mask_is_awaited);
  return g_test_run();
}
