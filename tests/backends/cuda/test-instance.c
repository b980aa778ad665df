/* Instances and the threads of their ranks, without a GPU (script.h): what is told, when, and of
 * whom, while ranks stand still; and that nothing is raced for while steps, masks, copies, pulls,
 * losses and closings overlap. */
#include <string.h>

#include "backends/cuda/cuda.h"
#include "tests/backends/cuda/script.h"
#include "tests/contract/rig.h"

#define NS_PER_MS   ((gint64)1000000)
#define DEADLINE_NS (200 * NS_PER_MS)
#define LONG_NS     (5000 * NS_PER_MS) /* nothing here takes so long, unless it never ends */
#define STUCK_NS    (2000 * NS_PER_MS) /* that a call is held which nobody releases */

static oct_instance_config
config_of(guint32 tensor, guint32 pipeline, guint32 data) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.tensor = tensor;
  parallel.pipeline = pipeline;
  parallel.data = data;
  oct_instance_config config = fixture_config(fixture_dense(), parallel);
  config.check_tags = FALSE;
  return config;
}

static void
run(const oct_instance_config *config, gint64 deadline_ns, void (*fn)(rig *r)) {
  g_autoptr(GError) error = NULL;
  oct_cuda_options options;
  oct_cuda_options_default(&options);
  options.deadline_ns = deadline_ns;
  options.devices = 16;
  script_reset();
  oct_world *world = oct_cuda_world_new(&options, &error);
  g_assert_no_error(error);
  rig_run_closed(world, config, fn);
  g_assert_cmpint(script_events(), ==, 0);
}

static gint64
now_ns(void) {
  return g_get_monotonic_time() * 1000;
}

/* The next event that is no progress of an opening; TIMER when none comes within ns. */
static void
within(rig *r, gint64 ns, oct_event *event) {
  g_assert_true(rig_next(r, 0, event));
  for (oct_time until = event->time_ns + ns;
       event->kind == OCT_EVENT_TIMER || event->kind == OCT_EVENT_OPEN_PROGRESS;) {
    if (event->kind == OCT_EVENT_TIMER && event->time_ns >= until)
      return;
    g_assert_true(rig_next(r, until, event));
  }
}

static void
expect(rig *r, gint64 ns, oct_event_kind kind, oct_event *event) {
  within(r, ns, event);
  g_assert_cmpstr(oct_event_name(event->kind), ==, oct_event_name(kind));
}

/* A prompt in slot 0. */
static void
prompt(rig *r, guint32 flags) {
  rig_begin(r);
  rig_sequence(r, 0, 5, 10, 0);
  rig_prefill(r, 0, 0, 10, OCT_SAMPLE_LAST)->flags |= (guint16)flags;
  rig_submit(r);
}

/* FALSE: the instance, or its peer, is lost, which has not been told yet. */
static gboolean
is_taken(gboolean taken, const GError *error) {
  if (!taken)
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
  return taken;
}

static void
beside(rig *r, guint64 ticket, guint32 n) {
  g_autoptr(GError) error = NULL;
  oct_copy copies[64];
  g_assert_cmpuint(n, <=, G_N_ELEMENTS(copies));
  for (guint32 i = 0; i < n; i++)
    copies[i] = (oct_copy){.kind = OCT_COPY_PAGE,
                           .order = OCT_COPY_BESIDE,
                           .to_tier = OCT_TIER_HOST,
                           .from = 40 + i % 16,
                           .to = i % 32};
  oct_submit answer = oct_world_copy(r->world, r->instance, ticket, copies, n, &error);
  (void)is_taken(answer == OCT_SUBMIT_OK, error);
}

static void
pull(rig *r, const rig *peer, guint64 ticket) {
  g_autoptr(GError) error = NULL;
  const oct_copy copy = {.kind = OCT_COPY_PAGE, .order = OCT_COPY_BESIDE, .from = 3, .to = 50};
  oct_submit answer =
      oct_world_pull(r->world, r->instance, peer->instance, 0, ticket, &copy, 1, &error);
  (void)is_taken(answer == OCT_SUBMIT_OK, error);
}

/* ---------------------------------------------------------------- deadlines */

/* Told between the deadline and twice that, and of whom. */
static void
expect_late(rig *r, gint64 began_ns, const char *what, guint32 device) {
  oct_event event;
  expect(r, LONG_NS, OCT_EVENT_FAULT, &event);
  const gint64 took_ns = now_ns() - began_ns;
  g_test_message("told after %.3f s: %s", (double)took_ns * 1e-9, event.fault->message);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_INSTANCE);
  g_assert_nonnull(strstr(event.fault->message, what));
  g_assert_cmpuint(event.fault->device, ==, device);
  g_assert_cmpint(took_ns, >=, DEADLINE_NS - 20 * NS_PER_MS);
}

static void
stop_a_step(rig *r) {
  rig_open(r);
  script_stop(1, TRUE);
  gint64 began = now_ns();
  prompt(r, 0);
  expect_late(r, began, "GPU 1: step 1 takes longer than 0.2 s", 1);
}

static void
stop_all(rig *r) {
  rig_open(r);
  for (guint32 i = 0; i < 4; i++)
    script_stop(i, TRUE);
  gint64 began = now_ns();
  prompt(r, 0);
  expect_late(r, began, "step 1 takes longer than 0.2 s", OCT_NO_INDEX);
}

static void
a_step_has_its_deadline_and_the_gpu_that_is_late_is_named(void) {
  const oct_instance_config config = config_of(2, 2, 1);
  run(&config, DEADLINE_NS, stop_a_step);
  run(&config, DEADLINE_NS, stop_all);
}

/* Its mask is not what it waits for: it does not come so far. */
static void
hold_a_guided_step(rig *r) {
  rig_open(r);
  script_hold(2, SCRIPT_BEGIN);
  gint64 began = now_ns();
  prompt(r, OCT_SLICE_NEEDS_MASK);
  expect_late(r, began, "GPU 2: step 1 takes longer than 0.2 s", 2);
  script_release(2, SCRIPT_BEGIN);
}

static void
so_has_one_that_never_comes_to_its_masks(void) {
  const oct_instance_config config = config_of(2, 2, 1);
  run(&config, DEADLINE_NS, hold_a_guided_step);
}

static void
delay_a_mask(rig *r) {
  oct_event event;
  rig_open(r);
  prompt(r, OCT_SLICE_NEEDS_MASK);
  expect(r, LONG_NS, OCT_EVENT_MASK_WANTED, &event);
  expect(r, 3 * DEADLINE_NS, OCT_EVENT_TIMER, &event);
  rig_mask(r, 1, 0, &(guint32){SCRIPT_TOKEN}, 1);
  expect(r, LONG_NS, OCT_EVENT_STEP_DONE, &event);
}

static void
masks_may_come_late(void) {
  const oct_instance_config config = config_of(2, 2, 1);
  run(&config, DEADLINE_NS, delay_a_mask);
}

static void
hold_copies(rig *r) {
  rig_open(r);
  script_hold(1, SCRIPT_COPY);
  gint64 began = now_ns();
  beside(r, 1, 40);
  expect_late(r, began, "GPU 1: copies beside steps take longer than 0.2 s", 1);
  script_release(1, SCRIPT_COPY);
}

static void
stop_copies(rig *r) {
  rig_open(r);
  script_stop_copies(TRUE);
  gint64 began = now_ns();
  beside(r, 1, 40);
  expect_late(r, began, "a copy beside steps takes longer than the deadline", 0);
  script_stop_copies(FALSE);
}

static void
copies_have_the_deadline_enqueued_or_not(void) {
  const oct_instance_config config = config_of(2, 1, 1);
  run(&config, DEADLINE_NS, stop_copies);
  run(&config, DEADLINE_NS, hold_copies);
}

/* ---------------------------------------------------------------- others that are waited for */

/* What is stuck is let go some time. */
static void *
let_go(void *data) {
  (void)data;
  g_usleep(STUCK_NS / 1000);
  script_reset();
  return NULL;
}

static void
close_the_peer(rig *r) {
  rig peer;
  oct_event event;
  rig_open(r);
  rig_init(&peer, r->world, &r->config);
  rig_open(&peer);
  script_hold(1, SCRIPT_COPY);
  pull(r, &peer, 1);
  script_await(1, SCRIPT_COPY);
  GThread *saviour = g_thread_new("saviour", let_go, NULL);
  gint64 began = now_ns();
  rig_close(&peer);
  const gint64 took_ns = now_ns() - began;
  g_test_message("closed after %.3f s", (double)took_ns * 1e-9);
  g_assert_cmpint(took_ns, >=, DEADLINE_NS - 20 * NS_PER_MS);
  g_assert_cmpint(took_ns, <, STUCK_NS);
  expect(r, LONG_NS, OCT_EVENT_FAULT, &event);
  g_assert_cmpuint(event.instance, ==, r->instance);
  g_assert_nonnull(strstr(event.fault->message, "to be enqueued"));
  g_thread_join(saviour);
  rig_clear(&peer);
}

static void
a_peer_closes_at_the_deadline_whatever_pulls_from_it(void) {
  const oct_instance_config config = config_of(2, 1, 1);
  run(&config, DEADLINE_NS, close_the_peer);
}

static void
fail_to_open(rig *r) {
  g_autoptr(GError) error = NULL;
  oct_event event;
  script_fail_opening(1);
  script_hold(0, SCRIPT_OPEN);
  GThread *saviour = g_thread_new("saviour", let_go, NULL);
  gint64 began = now_ns();
  g_assert_true(oct_world_open(r->world, &r->config, &r->instance, &error));
  expect(r, LONG_NS, OCT_EVENT_OPEN_FAILED, &event);
  const gint64 took_ns = now_ns() - began;
  g_test_message("told after %.3f s: %s", (double)took_ns * 1e-9, event.fault->message);
  g_assert_cmpstr(event.fault->message, ==, "as was wanted");
  g_assert_cmpuint(event.instance, ==, r->instance);
  g_assert_cmpint(took_ns, <, STUCK_NS);
  r->instance = 0;
  g_thread_join(saviour);
  /* What comes behind it is as before. */
  rig_open(r);
  prompt(r, 0);
  expect(r, LONG_NS, OCT_EVENT_STEP_DONE, &event);
}

static void
a_failed_opening_is_told_before_it_is_cleared_away(void) {
  const oct_instance_config config = config_of(2, 1, 1);
  run(&config, DEADLINE_NS, fail_to_open);
}

/* ---------------------------------------------------------------- what peers may write */

/* Rank 1 is at work for a while, and then no more. How many have closed meanwhile. */
static void *
rest_late(void *data) {
  gint *n_closed = data;
  script_await(1, SCRIPT_REST);
  g_usleep(50 * 1000);
  *n_closed = script_closed();
  script_release(1, SCRIPT_REST);
  return NULL;
}

static void
close_late(rig *r) {
  gint n_closed = -1;
  script_hold(1, SCRIPT_REST);
  GThread *device = g_thread_new("device", rest_late, &n_closed);
  rig_close(r);
  g_thread_join(device);
  g_assert_cmpint(n_closed, ==, 0);
  g_assert_cmpint(script_closed(), ==, 4);
}

static void
close_one_that_is_lost(rig *r) {
  rig_open(r);
  script_stop(1, TRUE);
  gint64 began = now_ns();
  prompt(r, 0);
  expect_late(r, began, "GPU 1: step 1 takes longer than 0.2 s", 1);
  close_late(r);
  g_assert_cmpint(script_kept(), ==, 0);
}

/* What failed to open is cleared away by the next call. */
static void
clear_one_away(rig *r) {
  g_autoptr(GError) error = NULL;
  oct_event event;
  gint n_closed = -1;
  script_fail_opening(0);
  script_hold(1, SCRIPT_REST);
  g_assert_true(oct_world_open(r->world, &r->config, &r->instance, &error));
  expect(r, LONG_NS, OCT_EVENT_OPEN_FAILED, &event);
  GThread *device = g_thread_new("device", rest_late, &n_closed);
  g_assert_true(rig_next(r, 0, &event));
  g_thread_join(device);
  g_assert_cmpint(n_closed, ==, 0);
  g_assert_cmpint(script_closed(), ==, 4);
  r->instance = 0;
}

static void
close_a_restless_one(rig *r) {
  rig_open(r);
  script_unrest(2);
  rig_close(r);
  g_assert_cmpint(script_closed(), ==, 4);
  g_assert_cmpint(script_kept(), ==, 4);
}

static void
no_rank_gives_memory_back_before_all_rest(void) {
  const oct_instance_config config = config_of(2, 2, 1);
  run(&config, DEADLINE_NS, close_one_that_is_lost);
  run(&config, DEADLINE_NS, clear_one_away);
  run(&config, DEADLINE_NS, close_a_restless_one);
}

/* ---------------------------------------------------------------- a process that ends */

static void
spoil_the_process(rig *r) {
  rig_open(r);
  script_spoil(1);
  rig_close(r);
  rig_open(r);
}

/* The others have to keep their memory, but nothing else is wrong with them. */
static void
unrest_the_process(rig *r) {
  rig_open(r);
  script_unrest(1);
  rig_close(r);
  rig_open(r);
}

static void
run_spoiled(void (*fn)(rig *r)) {
  g_autoptr(GError) error = NULL;
  oct_cuda_options options;
  const oct_instance_config config = config_of(2, 1, 1);
  oct_cuda_options_default(&options);
  options.exit_on_loss = TRUE;
  options.devices = 16;
  script_reset();
  rig_run_closed(oct_cuda_world_new(&options, &error), &config, fn);
}

static void
a_process_that_ends_says_which_gpu_is_to_blame(gconstpointer fn) {
  if (g_test_subprocess()) {
    run_spoiled((void (*)(rig *))(gsize)fn);
    return;
  }
  g_test_trap_subprocess(NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
  g_test_trap_assert_failed();
  g_test_trap_assert_stderr("*octet: cuda: GPU 1 *; what is wrong stays with the process*");
}

/* ---------------------------------------------------------------- all at once */

typedef struct churn {
  rig rigs[2];
  guint32 position[2]; /* of the next token of slot 0; 0: it is opened anew */
  guint64 ticket, wanted[2];
  guint n_done, n_copied, n_faults;
} churn;

static void
take(churn *c, const oct_event *event) {
  for (guint i = 0; i < 2; i++) {
    rig *r = &c->rigs[i];
    if (r->instance == 0 || event->instance != r->instance)
      continue;
    c->n_done += event->kind == OCT_EVENT_STEP_DONE;
    c->n_copied += event->kind == OCT_EVENT_COPY_DONE;
    if (event->kind == OCT_EVENT_STEP_DONE)
      r->n_flights--;
    if (event->kind == OCT_EVENT_MASK_WANTED)
      c->wanted[i] = event->number;
    if (event->kind == OCT_EVENT_FAULT) {
      g_assert_nonnull(strstr(event->fault->message, "longer than"));
      c->n_faults++;
      rig_close(r);
    }
  }
}

static void
look(churn *c, gint64 ns) {
  oct_event event;
  g_assert_true(oct_world_next(c->rigs[0].world, 0, &event));
  oct_time until = event.time_ns + ns;
  for (gboolean more = event.kind != OCT_EVENT_TIMER || ns > 0; more;) {
    take(c, &event);
    g_assert_true(oct_world_next(c->rigs[0].world, until, &event));
    more = event.kind != OCT_EVENT_TIMER;
  }
}

static void
answer(churn *c, guint i, guint64 number) {
  g_autoptr(GError) error = NULL;
  const guint64 bits[(FIXTURE_VOCAB + 63) / 64] = {(guint64)1 << SCRIPT_TOKEN};
  rig *r = &c->rigs[i];
  if (number == 0)
    return;
  gboolean taken =
      oct_world_mask(r->world, r->instance, number, 0, bits, G_N_ELEMENTS(bits), &error);
  (void)is_taken(taken, error);
}

static void
step(churn *c, guint i) {
  g_autoptr(GError) error = NULL;
  rig *r = &c->rigs[i];
  oct_slice *s;
  const gboolean masked = g_test_rand_int_range(0, 4) == 0;
  if (r->n_flights == r->capabilities.depth || c->wanted[i] != 0)
    return;
  rig_begin(r);
  if (c->position[i] == 0 || c->position[i] == 100) {
    c->position[i] = 10;
    rig_sequence(r, 0, 5, 10, 0);
    s = rig_prefill(r, 0, 0, 10, OCT_SAMPLE_LAST);
  } else {
    s = rig_decode(r, 0, c->position[i]++);
  }
  s->flags |= masked ? OCT_SLICE_NEEDS_MASK : 0;
  oct_submit submit = oct_world_submit(r->world, r->instance, rig_end(r), &error);
  r->n_flights++;
  if (is_taken(submit == OCT_SUBMIT_OK, error) && masked && g_test_rand_int_range(0, 2) == 0)
    answer(c, i, r->number);
}

static void
act(churn *c) {
  guint i = (guint)g_test_rand_int_range(0, 2), what = (guint)g_test_rand_int_range(0, 60);
  rig *r = &c->rigs[i], *peer = &c->rigs[1 - i];
  if (r->instance == 0) {
    rig_open(r);
    c->position[i] = 0;
    c->wanted[i] = 0;
  }
  if (what < 30) {
    step(c, i);
  } else if (what < 40) {
    answer(c, i, c->wanted[i]);
    c->wanted[i] = 0;
  } else if (what < 45)
    beside(r, ++c->ticket, (guint32)g_test_rand_int_range(1, 60));
  else if (what < 50 && peer->instance != 0)
    pull(r, peer, ++c->ticket);
  else if (what < 52)
    rig_close(r);
  else if (what < 53)
    script_stop((guint32)g_test_rand_int_range(0, 4), TRUE);
  else if (what < 56)
    for (guint32 rank = 0; rank < 4; rank++)
      script_stop(rank, FALSE);
  look(c, what == 59 ? 15 * NS_PER_MS : what % 2 * NS_PER_MS / 5);
}

static void
do_all(rig *r) {
  churn c = {.ticket = 0};
  for (guint i = 0; i < 2; i++)
    rig_init(&c.rigs[i], r->world, &r->config);
  for (guint i = 0; i < 1500; i++)
    act(&c);
  for (guint i = 0; i < 2; i++) {
    if (c.rigs[i].instance != 0)
      rig_close(&c.rigs[i]);
    rig_clear(&c.rigs[i]);
  }
  g_test_message("%u steps, %u copies, %u faults", c.n_done, c.n_copied, c.n_faults);
  g_assert_cmpuint(c.n_done, >, 0);
}

static void
all_of_it_goes_on_at_once(void) {
  const guint32 layouts[][3] = {{1, 1, 1}, {4, 1, 1}, {2, 2, 1}, {1, 2, 2}, {2, 2, 2}};
  for (gsize i = 0; i < G_N_ELEMENTS(layouts); i++) {
    const oct_instance_config config = config_of(layouts[i][0], layouts[i][1], layouts[i][2]);
    run(&config, 10 * NS_PER_MS, do_all);
  }
}

/* Start-up lines of hundreds of openings. */
static void
ignore(const char *domain, GLogLevelFlags level, const char *message, gpointer user) {
  (void)domain, (void)level, (void)message, (void)user;
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  (void)g_log_set_handler(G_LOG_DOMAIN, G_LOG_LEVEL_MESSAGE, ignore, NULL);
  g_test_add_func("/cuda/instance/a-step-has-its-deadline-and-the-gpu-that-is-late-is-named",
                  a_step_has_its_deadline_and_the_gpu_that_is_late_is_named);
  g_test_add_func("/cuda/instance/so-has-one-that-never-comes-to-its-masks",
                  so_has_one_that_never_comes_to_its_masks);
  g_test_add_func("/cuda/instance/masks-may-come-late", masks_may_come_late);
  g_test_add_func("/cuda/instance/copies-have-the-deadline-enqueued-or-not",
                  copies_have_the_deadline_enqueued_or_not);
  g_test_add_func("/cuda/instance/a-peer-closes-at-the-deadline-whatever-pulls-from-it",
                  a_peer_closes_at_the_deadline_whatever_pulls_from_it);
  g_test_add_func("/cuda/instance/a-failed-opening-is-told-before-it-is-cleared-away",
                  a_failed_opening_is_told_before_it_is_cleared_away);
  g_test_add_func("/cuda/instance/no-rank-gives-memory-back-before-all-rest",
                  no_rank_gives_memory_back_before_all_rest);
  g_test_add_data_func("/cuda/instance/a-process-that-ends-says-which-gpu-is-to-blame/spoiled",
                       (gconstpointer)(gsize)spoil_the_process,
                       a_process_that_ends_says_which_gpu_is_to_blame);
  g_test_add_data_func("/cuda/instance/a-process-that-ends-says-which-gpu-is-to-blame/restless",
                       (gconstpointer)(gsize)unrest_the_process,
                       a_process_that_ends_says_which_gpu_is_to_blame);
  g_test_add_func("/cuda/instance/all-of-it-goes-on-at-once", all_of_it_goes_on_at_once);
  return g_test_run();
}
