/* A mock in a worker process, killed, stopped and corrupted in every state. */
#include "backends/remote/remote.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/registry.h"
#include "backends/remote/channel.h"
#include "tests/contract/rig.h"

#define MS 1000000

static oct_remote_options options;
static const char *inner; /* description of the inner world */

static oct_world *
make_inner(void *arg, GError **error) {
  return oct_backend_world_new(arg, error);
}

/* Steps and copies of 100 ms, so that they are in flight when something happens; openings of no
 * time. */
#define SLOW "mock:clock=real,fixed_ns=100000000,copy_page_ns=100000000"

static void
defaults(void) {
  oct_remote_options_default(&options);
  options.heartbeat_ns = 20 * MS;
  options.hang_ns = 10000 * (gint64)MS;
  inner = SLOW;
}

static oct_world *
new_world(void) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_remote_world_new(make_inner, (void *)(gsize)inner, &options, &error);
  g_assert_no_error(error);
  return world;
}

static void
run(void (*fn)(rig *r)) {
  oct_instance_config config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  rig_run(new_world(), &config, fn);
}

/* No such process, or one that nobody has reaped. */
static gboolean
is_gone(pid_t pid) {
  g_autofree char *path = g_strdup_printf("/proc/%d/stat", (int)pid);
  g_autofree char *stat = NULL;
  if (!g_file_get_contents(path, &stat, NULL, NULL))
    return TRUE;
  const char *end = strrchr(stat, ')');
  return end != NULL && end[1] == ' ' && end[2] == 'Z';
}

static void
prefill(rig *r, guint32 slot) {
  rig_begin(r);
  rig_sequence(r, slot, 100 + slot, 8, 0);
  rig_prefill(r, slot, 0, 8, OCT_SAMPLE_LAST);
}

static void
copy_out(rig *r, guint64 ticket) {
  oct_copy c = {.order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST, .from = 1, .to = 1};
  rig_beside(r, ticket, &c, 1);
}

/* On a slow machine, what was to be in flight may have ended. */
static gboolean
is_end(const oct_event *event) {
  return event->kind == OCT_EVENT_STEP_DONE || event->kind == OCT_EVENT_COPY_DONE;
}

/* Lets the worker take what was handed on. */
static void
settle(rig *r) {
  oct_event event;
  oct_time until = r->world->now_ns + 15 * MS;
  do
    g_assert_true(oct_world_next(r->world, until, &event));
  while (is_end(&event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "TIMER");
}

static void
expect_fault(rig *r, oct_event_kind kind, oct_severity severity, const char *why) {
  oct_event event;
  do
    g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
  while (is_end(&event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, oct_event_name(kind));
  g_assert_cmpuint(event.instance, ==, r->instance);
  g_assert_cmpstr(oct_severity_name(event.fault->severity), ==, oct_severity_name(severity));
  if (strstr(event.fault->message, why) == NULL) {
    g_test_message("wanted '%s' in: %s", why, event.fault->message);
    g_test_fail();
  }
}

static void
expect_silence(rig *r) {
  oct_event event;
  g_assert_true(oct_world_next(r->world, r->world->now_ns + 30 * MS, &event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "TIMER");
}

/* A process that has ended may not have been told of: then its end is the first opening's as well,
 * and not the next one's. */
static void
open_again(rig *r) {
  g_autoptr(GError) error = NULL;
  oct_event event;
  g_assert_true(oct_world_open(r->world, &r->config, &r->instance, &error));
  do
    g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
  while (event.kind == OCT_EVENT_OPEN_PROGRESS);
  if (event.kind == OCT_EVENT_OPEN_FAILED) {
    rig_open(r);
    return;
  }
  g_assert_cmpstr(oct_event_name(event.kind), ==, "OPENED");
  r->capabilities = *event.capabilities;
  r->number = r->n_flights = 0;
}

/* Another worker serves the next instance. */
static void
expect_recovery(rig *r, pid_t old) {
  g_autoptr(GError) error = NULL;
  if (r->instance != 0) {
    r->number = 0;
    prefill(r, 3);
    g_assert_cmpint(oct_world_submit(r->world, r->instance, rig_end(r), &error), ==,
                    OCT_SUBMIT_REFUSED);
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
    rig_close(r);
  }
  while (!is_gone(old))
    usleep(1000);
  open_again(r);
  g_assert_cmpint(oct_remote_worker(r->world), !=, old);
  prefill(r, 0);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, NULL);
}

/* ---------------------------------------------------------------- killed in every state */

static void
kill_idle(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  g_assert_cmpint(kill(worker, SIGKILL), ==, 0);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "worker died: Killed");
  expect_silence(r);
  expect_recovery(r, worker);
}

static void
kill_with_steps(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  prefill(r, 0);
  rig_submit(r);
  prefill(r, 1);
  rig_submit(r);
  settle(r);
  g_assert_cmpint(kill(worker, SIGKILL), ==, 0);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "worker died: Killed");
  expect_silence(r);
  expect_recovery(r, worker);
}

static void
kill_with_copy(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  copy_out(r, 1);
  settle(r);
  g_assert_cmpint(kill(worker, SIGKILL), ==, 0);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "worker died: Killed");
  expect_silence(r);
  expect_recovery(r, worker);
}

static void
kill_with_mask(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  rig_begin(r);
  rig_sequence(r, 0, 5, 8, 0);
  rig_prefill(r, 0, 0, 8, OCT_SAMPLE_LAST)->flags |= OCT_SLICE_NEEDS_MASK;
  rig_submit(r);
  rig_expect(r, OCT_EVENT_MASK_WANTED, 1, NULL);
  g_assert_cmpint(kill(worker, SIGKILL), ==, 0);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "worker died: Killed");
  /* The mask comes for a step that is lost. */
  guint64 bits[(FIXTURE_VOCAB + 63) / 64] = {1};
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_world_mask(r->world, r->instance, 1, 0, bits, G_N_ELEMENTS(bits), &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
  expect_recovery(r, worker);
}

static void
kill_while_opening(rig *r) {
  g_autoptr(GError) error = NULL;
  pid_t worker = oct_remote_worker(r->world);
  oct_event event;
  g_assert_true(oct_world_open(r->world, &r->config, &r->instance, &error));
  rig_expect(r, OCT_EVENT_OPEN_PROGRESS, 0, &event);
  g_assert_cmpint(kill(worker, SIGKILL), ==, 0);
  expect_fault(r, OCT_EVENT_OPEN_FAILED, OCT_SEVERITY_INSTANCE, "worker died: Killed");
  r->instance = 0; /* it is gone */
  expect_silence(r);
  expect_recovery(r, worker);
}

static void
kill_while_closing(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  prefill(r, 0);
  rig_submit(r);
  rig_close(r);
  g_assert_cmpint(kill(worker, SIGKILL), ==, 0);
  expect_silence(r);
  expect_recovery(r, worker);
}

static void
kill_under_two(rig *r) {
  rig other;
  pid_t worker = oct_remote_worker(r->world);
  rig_init(&other, r->world, &r->config);
  rig_open(&other);
  prefill(r, 0);
  rig_submit(r);
  settle(r);
  g_assert_cmpint(kill(worker, SIGKILL), ==, 0);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "worker died: Killed");
  expect_fault(&other, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "worker died: Killed");
  expect_silence(r);
  rig_close(&other);
  rig_clear(&other);
  expect_recovery(r, worker);
}

/* A step that ends, and nobody listens. */
static void
end_unheard(rig *r, guint32 slot) {
  const oct_channel *channel = oct_remote_channel(r->world);
  guint64 before = oct_channel_unread(channel, CHANNEL_TO_FRONT);
  prefill(r, slot);
  rig_submit(r);
  while (oct_channel_unread(channel, CHANNEL_TO_FRONT) <= before)
    usleep(1000);
}

/* What it had said before it died counts. */
static void
kill_after_the_end(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  end_unheard(r, 0);
  end_unheard(r, 1);
  g_assert_cmpint(kill(worker, SIGKILL), ==, 0);
  while (!is_gone(worker))
    usleep(1000);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, NULL);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, NULL);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "worker died: Killed");
  expect_recovery(r, worker);
}

static void
survives_a_killed_worker(gconstpointer fn) {
  defaults();
  run((void (*)(rig *))(gsize)fn);
}

static void
last_words_count(void) {
  defaults();
  inner = "mock:clock=real";
  run(kill_after_the_end);
}

static void
survives_while_opening(void) {
  defaults();
  inner = SLOW ",open_ns=1000000000";
  oct_instance_config config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  rig_run_closed(new_world(), &config, kill_while_opening);
}

/* ---------------------------------------------------------------- hung */

#define HANG_NS ((gint64)2000 * MS) /* that a slow machine keeps no worker from running */

/* How long it takes to the next one is the machine's matter. */
static void
await_sign_of_life(rig *r) {
  const channel_status *status = oct_channel_status(oct_remote_channel(r->world));
  guint64 before = atomic_load(&status->heartbeat);
  do
    settle(r);
  while (atomic_load(&status->heartbeat) == before);
}

static void
stop(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  await_sign_of_life(r);
  oct_time from = r->world->now_ns;
  g_assert_cmpint(kill(worker, SIGSTOP), ==, 0);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "worker hung: silent for ");
  g_assert_cmpint(r->world->now_ns - from, >=, HANG_NS - 100 * MS);
  expect_recovery(r, worker);
}

static void
stop_with_steps(rig *r) {
  prefill(r, 0);
  rig_submit(r);
  stop(r);
}

static void
stop_and_go(rig *r) {
  oct_event event;
  pid_t worker = oct_remote_worker(r->world);
  /* Shorter than what is taken for death; and longer, while nobody watches. */
  await_sign_of_life(r);
  kill(worker, SIGSTOP);
  g_assert_true(oct_world_next(r->world, r->world->now_ns + 60 * MS, &event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "TIMER");
  kill(worker, SIGCONT);
  await_sign_of_life(r);
  kill(worker, SIGSTOP);
  usleep((guint)(HANG_NS / 1000 * 5 / 4));
  kill(worker, SIGCONT);
  prefill(r, 0);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  g_assert_cmpint(oct_remote_worker(r->world), ==, worker);
}

static void
kills_a_hung_worker(gconstpointer fn) {
  defaults();
  options.hang_ns = HANG_NS;
  run((void (*)(rig *))(gsize)fn);
}

/* ---------------------------------------------------------------- ends of its own */

static oct_world_ops ending_ops;
static const oct_world_ops *mock_ops;
static char ending;

static oct_submit
end_on_submit(oct_world *world, guint32 instance, const oct_step *step, GError **error) {
  switch (ending) {
  case 'x':
    _exit(7);
  case 's':
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
    break;
  case 'h':
    for (;;)
      pause();
  case 'a':
    abort();
  default:
    break;
  }
  return mock_ops->submit(world, instance, step, error);
}

/* A mock whose submit() is the end of it. */
static oct_world *
make_ending(void *arg, GError **error) {
  (void)arg;
  oct_world *world = oct_backend_world_new(SLOW, error);
  mock_ops = world->ops;
  ending_ops = *mock_ops;
  ending_ops.submit = end_on_submit;
  world->ops = &ending_ops;
  return world;
}

static const char *ending_reason;

static void
submit_once(rig *r) {
  prefill(r, 0);
  rig_submit(r);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, ending_reason);
}

static void
says_how_it_ended(void) {
  static const struct {
    char how;
    const char *reason;
  } endings[] = {{'x', "worker exited with status 7"},
                 {'s', "worker died: Segmentation fault"},
                 {'h', "worker hung: silent for "}};
  for (gsize i = 0; i < G_N_ELEMENTS(endings); i++) {
    defaults();
    if (endings[i].how == 'h')
      options.hang_ns = HANG_NS;
    ending = endings[i].how;
    ending_reason = endings[i].reason;
    g_autoptr(GError) error = NULL;
    oct_world *world = oct_remote_world_new(make_ending, NULL, &options, &error);
    g_assert_no_error(error);
    oct_instance_config config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
    rig_run(world, &config, submit_once);
  }
}

/* ---------------------------------------------------------------- garbage */

static void
step_that_never_was(rig *r) {
  prefill(r, 0);
  rig_submit(r);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "garbage: event 5 number 1001");
}

static void
copy_that_never_was(rig *r) {
  copy_out(r, 1);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "garbage: event 6 number");
}

static void
corrupt_ring(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  settle(r);
  oct_channel_corrupt(oct_remote_channel(r->world), CHANNEL_TO_FRONT);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "garbage: the ring is corrupt");
  expect_recovery(r, worker);
}

static void
corrupt_requests(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  settle(r);
  oct_channel_corrupt(oct_remote_channel(r->world), CHANNEL_TO_WORKER);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "malformed ring");
  expect_recovery(r, worker);
}

static void
believes_no_garbage(void) {
  defaults();
  inner = "fault:script=number/1/1@" SLOW;
  run(step_that_never_was);
  inner = "fault:script=ticket/1@" SLOW;
  run(copy_that_never_was);
  inner = SLOW;
  run(corrupt_ring);
  run(corrupt_requests);
}

static void
malformed_requests(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  prefill(r, 0);
  const oct_step *step = rig_end(r);
  g_autofree oct_step *bad = g_memdup2(step, step->bytes);
  ((oct_slice *)(void *)((guint8 *)bad + bad->slices))->slot = 9999;
  channel_message m = {.kind = CHANNEL_SUBMIT, .bytes = bad->bytes, .instance = r->instance};
  g_assert_cmpint(oct_channel_push(oct_remote_channel(r->world), CHANNEL_TO_WORKER, &m, bad), ==,
                  CHANNEL_OK);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "malformed step: slices[0].slot is 9999");
  while (!is_gone(worker))
    usleep(1000);
  expect_silence(r);
  expect_recovery(r, worker);
  /* And one that is cut short. */
  worker = oct_remote_worker(r->world);
  m = (channel_message){.kind = CHANNEL_SUBMIT, .bytes = 40, .instance = r->instance};
  g_assert_cmpint(oct_channel_push(oct_remote_channel(r->world), CHANNEL_TO_WORKER, &m, bad), ==,
                  CHANNEL_OK);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "malformed step: step.bytes");
}

static void
worker_checks_its_requests(void) {
  defaults();
  run(malformed_requests);
}

/* ---------------------------------------------------------------- the end of everything */

static void
kill_twice(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  kill(worker, SIGKILL);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_INSTANCE, "worker died: Killed");
  rig_close(r);
  rig_open(r);
  kill(oct_remote_worker(r->world), SIGKILL);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_FATAL, "worker died: Killed");
  rig_close(r);
  g_autoptr(GError) error = NULL;
  guint32 instance;
  g_assert_false(oct_world_open(r->world, &r->config, &instance, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
}

static void
fatal_without_restarts(void) {
  defaults();
  options.restarts = 1;
  run(kill_twice);
}

static void
kill_keeper(rig *r) {
  pid_t worker = oct_remote_worker(r->world);
  kill(oct_remote_keeper(r->world), SIGKILL);
  expect_fault(r, OCT_EVENT_FAULT, OCT_SEVERITY_FATAL, "the worker's keeper is gone");
  while (!is_gone(worker)) /* it does not outlive its keeper */
    usleep(1000);
  expect_silence(r);
}

static void
fatal_without_keeper(void) {
  defaults();
  run(kill_keeper);
}

static void
leaves_no_process_behind(void) {
  defaults();
  oct_world *world = new_world();
  pid_t worker = oct_remote_worker(world), keeper = oct_remote_keeper(world);
  g_assert_false(is_gone(worker) || is_gone(keeper));
  oct_world_free(world);
  g_assert_true(is_gone(worker) && is_gone(keeper));
}

/* ---------------------------------------------------------------- making, and back pressure */

static void
says_why_it_cannot_be_made(void) {
  g_autoptr(GError) error = NULL;
  defaults();
  inner = "mock:clock=real,fixed_ns=-1";
  g_assert_null(oct_remote_world_new(make_inner, (void *)(gsize)inner, &options, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  g_assert_nonnull(strstr(error->message, "fixed_ns is \"-1\""));
  g_clear_error(&error);
  inner = "mock";
  g_assert_null(oct_remote_world_new(make_inner, (void *)(gsize)inner, &options, &error));
  g_assert_nonnull(strstr(error->message, "virtual clock"));
  g_clear_error(&error);
  options.ring_bytes = 100000;
  g_assert_null(oct_remote_world_new(make_inner, (void *)(gsize)inner, &options, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
}

#define N_COPIES 3000

static void
many_copies(rig *r) {
  oct_event event;
  for (guint64 ticket = 1; ticket <= N_COPIES; ticket++) {
    oct_copy c = {.order = OCT_COPY_BESIDE, .from_tier = OCT_TIER_HOST, .to = ticket % 64};
    g_autoptr(GError) error = NULL;
    /* Each page once at a time: wait for the copy that has it. */
    if (ticket > 64)
      rig_expect(r, OCT_EVENT_COPY_DONE, ticket - 64, &event);
    g_assert_cmpint(oct_world_copy(r->world, r->instance, ticket, &c, 1, &error), ==,
                    OCT_SUBMIT_OK);
    g_assert_no_error(error);
  }
  usleep(50 * 1000);
  for (guint64 ticket = N_COPIES - 63; ticket <= N_COPIES; ticket++)
    rig_expect(r, OCT_EVENT_COPY_DONE, ticket, &event);
}

static void
goes_round_its_rings(void) {
  defaults();
  options.ring_bytes = 65536;
  inner = "mock:clock=real,copy_page_ns=1000";
  run(many_copies);
}

/* ---------------------------------------------------------------- what it needs */

static guint
count_descriptors(void) {
  guint n = 0;
  g_autoptr(GDir) folder = g_dir_open("/proc/self/fd", 0, NULL);
  while (g_dir_read_name(folder) != NULL)
    n++;
  return n;
}

/* With no more descriptors than there are, one more, and so on, until there are enough. */
static void
leaves_nothing_behind_where_it_cannot_be_made(void) {
  struct rlimit all, few;
  oct_world *world = NULL;
  defaults();
  g_assert_cmpint(getrlimit(RLIMIT_NOFILE, &all), ==, 0);
  const guint before = count_descriptors();
  for (few = all, few.rlim_cur = 3; world == NULL; few.rlim_cur++) {
    g_autoptr(GError) error = NULL;
    g_assert_cmpuint(few.rlim_cur, <, 100);
    g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &few), ==, 0);
    world = oct_remote_world_new(make_inner, (void *)(gsize)inner, &options, &error);
    g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &all), ==, 0);
    if (world != NULL)
      break;
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
    g_assert_cmpuint(count_descriptors(), ==, before);
    g_assert_cmpint(waitpid(-1, NULL, WNOHANG), ==, -1);
    g_assert_cmpint(errno, ==, ECHILD);
  }
  oct_world_free(world);
  g_assert_cmpuint(count_descriptors(), ==, before);
}

#define N_CHANGES 10000

/* Two steps, each of more bytes than a ring has: page changes of many sequences that begin behind
 * long prefixes, say. */
static void
submit_large(rig *r) {
  for (guint32 slot = 0; slot < 2; slot++) {
    prefill(r, slot);
    g_assert_cmpuint(N_CHANGES * sizeof(oct_page_change), >, 2 * options.ring_bytes);
    for (guint32 i = 0; i < N_CHANGES; i++)
      rig_pages(r, slot, 0, i % 8, 1, 8 * slot + i % 8);
    rig_submit(r);
  }
  for (guint64 number = 1; number <= 2; number++)
    rig_until(r, OCT_EVENT_STEP_DONE, number, NULL);
}

static void
takes_records_larger_than_its_rings(void) {
  defaults();
  inner = "mock:clock=real,fixed_ns=1000000";
  options.ring_bytes = 65536;
  run(submit_large);
}

int
main(int argc, char **argv) {
  static const struct {
    const char *path;
    void (*fn)(rig *r);
  } kills[] = {{"/remote/killed/idle", kill_idle},
               {"/remote/killed/with-steps-in-flight", kill_with_steps},
               {"/remote/killed/with-a-copy-in-flight", kill_with_copy},
               {"/remote/killed/with-a-mask-pending", kill_with_mask},
               {"/remote/killed/while-closing", kill_while_closing},
               {"/remote/killed/under-two-instances", kill_under_two}};
  g_test_init(&argc, &argv, NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(kills); i++)
    g_test_add_data_func(kills[i].path, (gconstpointer)(gsize)kills[i].fn,
                         survives_a_killed_worker);
  g_test_add_func("/remote/killed/its-last-words-count", last_words_count);
  g_test_add_func("/remote/killed/while-opening", survives_while_opening);
  g_test_add_data_func("/remote/hung/idle", (gconstpointer)(gsize)stop, kills_a_hung_worker);
  g_test_add_data_func("/remote/hung/with-steps-in-flight", (gconstpointer)(gsize)stop_with_steps,
                       kills_a_hung_worker);
  g_test_add_data_func("/remote/hung/not-for-a-moment-nor-unwatched",
                       (gconstpointer)(gsize)stop_and_go, kills_a_hung_worker);
  g_test_add_func("/remote/ended/says-how", says_how_it_ended);
  g_test_add_func("/remote/garbage/is-not-believed", believes_no_garbage);
  g_test_add_func("/remote/garbage/requests-are-checked", worker_checks_its_requests);
  g_test_add_func("/remote/end/fatal-without-restarts", fatal_without_restarts);
  g_test_add_func("/remote/end/fatal-without-keeper", fatal_without_keeper);
  g_test_add_func("/remote/end/leaves-no-process-behind", leaves_no_process_behind);
  g_test_add_func("/remote/make/says-why-it-cannot-be", says_why_it_cannot_be_made);
  g_test_add_func("/remote/ring/goes-round", goes_round_its_rings);
  g_test_add_func("/remote/ring/takes-records-larger-than-it-is",
                  takes_records_larger_than_its_rings);
  g_test_add_func("/remote/make/leaves-nothing-behind-where-it-cannot-be",
                  leaves_nothing_behind_where_it_cannot_be_made);
  return g_test_run();
}
