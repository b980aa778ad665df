/* Rules 1 to 8: worlds, time, opening and closing. Rule 1 is checked by every case's run. */
#include <pthread.h>
#include <string.h>

#include "tests/contract/contract.h"

static void
submit_prompt(rig *r, guint32 slot) {
  rig_begin(r);
  rig_sequence(r, slot, 100 + slot, 8, 0);
  rig_prefill(r, slot, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
}

static void
expect_nothing_of(rig *r, guint32 instance) {
  oct_event event;
  oct_time until = r->world->now_ns + 20000000;
  while (oct_world_next(r->world, until, &event) && event.kind != OCT_EVENT_TIMER)
    g_assert_cmpuint(event.instance, !=, instance);
}

/* ---------------------------------------------------------------- time */

static void
time_never_goes_back(rig *r) {
  oct_event event;
  oct_time last = r->world->now_ns;
  submit_prompt(r, 0);
  submit_prompt(r, 1);
  for (guint done = 0; done < 2;) {
    g_assert_true(rig_next(r, last + 300000, &event));
    g_assert_cmpint(event.time_ns, >=, last);
    if (event.kind == OCT_EVENT_TIMER) {
      g_assert_cmpint(event.time_ns, >=, last + 300000);
      if (r->world->ops->clock == OCT_CLOCK_VIRTUAL)
        g_assert_cmpint(event.time_ns, ==, last + 300000);
      g_assert_cmpuint(event.instance, ==, 0);
    }
    done += event.kind == OCT_EVENT_STEP_DONE;
    last = event.time_ns;
  }
}

static void
timer_of_the_past_comes_at_once(rig *r) {
  oct_event event;
  submit_prompt(r, 0);
  rig_until(r, OCT_EVENT_STEP_DONE, 1, NULL);
  oct_time now = r->world->now_ns;
  g_assert_true(rig_next(r, now / 2, &event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "TIMER");
  g_assert_cmpint(event.time_ns, >=, now);
}

static void
what_is_due_comes_before_the_timer(rig *r) {
  oct_event event;
  submit_prompt(r, 0);
  rig_until(r, OCT_EVENT_STEP_DONE, 1, &event);
  oct_time took = event.result->end_ns - event.result->start_ns;
  submit_prompt(r, 1);
  oct_time until = r->world->now_ns + 4 * took;
  if (r->world->ops->clock == OCT_CLOCK_REAL)
    until += 10 * (oct_time)1000000000;
  g_assert_true(rig_next(r, until, &event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "STEP_DONE");
}

/* To the nanosecond: the third prompt of a kind takes what the second did. */
static void
what_is_due_at_the_timer_comes_first(rig *r) {
  oct_event event;
  oct_time took = 0;
  for (guint32 i = 0; i < 2; i++) {
    submit_prompt(r, 0);
    oct_time from = r->world->now_ns;
    rig_until(r, OCT_EVENT_STEP_DONE, 0, &event);
    took = event.time_ns - from;
  }
  submit_prompt(r, 0);
  oct_time until = r->world->now_ns + took;
  g_assert_true(rig_next(r, until, &event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "STEP_DONE");
  g_assert_cmpint(event.time_ns, ==, until);
}

static void
wakes_come_as_one(rig *r) {
  oct_event event;
  for (int i = 0; i < 3; i++)
    oct_world_wake(r->world);
  rig_until(r, OCT_EVENT_WAKE, 0, &event);
  g_assert_cmpuint(event.instance, ==, 0);
  g_assert_true(rig_next(r, r->world->now_ns + 1000, &event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "TIMER");
}

static void *
wake_from_a_thread(void *world) {
  oct_world_wake(world);
  return NULL;
}

static void
wake_comes_from_any_thread(rig *r) {
  pthread_t thread;
  oct_event event;
  gboolean real = r->world->ops->clock == OCT_CLOCK_REAL;
  for (int i = 0; i < 20; i++) {
    g_assert_cmpint(pthread_create(&thread, NULL, wake_from_a_thread, r->world), ==, 0);
    if (!real)
      pthread_join(thread, NULL); /* a virtual clock does not wait for threads */
    rig_until(r, OCT_EVENT_WAKE, 0, &event);
    if (real)
      pthread_join(thread, NULL);
  }
}

static void
rests_when_nothing_is_pending(rig *r) {
  oct_event event;
  submit_prompt(r, 0);
  rig_until(r, OCT_EVENT_STEP_DONE, 1, NULL);
  oct_time now = r->world->now_ns;
  g_assert_false(rig_next(r, OCT_TIME_NEVER, &event));
  /* And can go on. */
  submit_prompt(r, 1);
  rig_until(r, OCT_EVENT_STEP_DONE, 2, &event);
  g_assert_cmpint(event.time_ns, >, now);
}

/* ---------------------------------------------------------------- opening */

static void
opening_ends_once(rig *r) {
  guint32 last = 0;
  for (int round = 0; round < 3; round++) {
    g_autoptr(GError) error = NULL;
    guint32 instance;
    g_assert_true(oct_world_open(r->world, &r->config, &instance, &error));
    g_assert_cmpuint(instance, >, last); /* >= 1, never reused */
    last = instance;
    double fraction = 0;
    for (gboolean opened = FALSE; !opened;) {
      oct_event event;
      g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
      g_assert_cmpuint(event.instance, ==, instance);
      opened = event.kind == OCT_EVENT_OPENED;
      if (opened)
        break;
      g_assert_cmpstr(oct_event_name(event.kind), ==, "OPEN_PROGRESS");
      g_assert_true(event.fraction >= fraction && event.fraction <= 1);
      g_assert_cmpuint(strlen(event.phase), >, 0);
      fraction = event.fraction;
    }
    expect_nothing_of(r, instance);
    oct_world_close(r->world, instance);
  }
}

static void
capabilities_hold_the_plan(rig *r) {
  const oct_capabilities *c = &r->capabilities;
  g_assert_cmpuint(c->depth, >=, 1);
  g_assert_cmpuint(c->depth, <=, r->config.depth);
  g_assert_cmpuint(c->n_groups, ==, r->config.memory.n_groups);
  for (guint32 g = 0; g < c->n_groups; g++) {
    g_assert_cmpuint(c->page_bytes[g], >, 0);
    g_assert_cmpuint(c->fits[g], >=, r->config.memory.groups[g].n_device);
  }
  g_assert_cmpint(c->clock, ==, r->world->ops->clock);
  g_assert_true(!c->forward || r->world->ops->forward != NULL);
  g_assert_true(!c->masks || r->world->ops->mask != NULL);
}

static void
wrong_configs_open_nothing(rig *r) {
  oct_instance_config bad[3] = {r->config, r->config, r->config};
  bad[0].block_size = 0;
  bad[1].max_slots = 0;
  bad[2].memory.n_groups = 7;
  for (int i = 0; i < 3; i++) {
    g_autoptr(GError) error = NULL;
    guint32 instance;
    g_assert_false(oct_world_open(r->world, &bad[i], &instance, &error));
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
    g_assert_cmpuint(instance, ==, 0);
  }
  expect_nothing_of(r, 1);
}

static void
illegal_layouts_open_nothing(rig *r) {
  r->config.parallel.tensor = 3; /* of 8 heads */
  g_autoptr(GError) error = NULL;
  guint32 instance;
  oct_event event;
  if (oct_world_open(r->world, &r->config, &instance, &error)) {
    /* Or it fails as an event. */
    do
      g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
    while (event.kind == OCT_EVENT_OPEN_PROGRESS);
    g_assert_cmpstr(oct_event_name(event.kind), ==, "OPEN_FAILED");
    g_assert_cmpuint(strlen(event.fault->message), >, 0);
  } else {
    g_assert_nonnull(error);
  }
}

/* ---------------------------------------------------------------- closing */

static void
closing_while_opening_is_silent(rig *r) {
  g_autoptr(GError) error = NULL;
  guint32 instance;
  g_assert_true(oct_world_open(r->world, &r->config, &instance, &error));
  oct_world_close(r->world, instance);
  expect_nothing_of(r, instance);
}

static void
closing_with_steps_in_flight_is_silent(rig *r) {
  submit_prompt(r, 0);
  submit_prompt(r, 1);
  if (r->capabilities.host_tier) {
    oct_copy copy = {.order = OCT_COPY_BESIDE, .from_tier = OCT_TIER_HOST, .to = 60};
    g_assert_cmpint(oct_world_copy(r->world, r->instance, 5, &copy, 1, NULL), ==, OCT_SUBMIT_OK);
  }
  guint32 closed = r->instance;
  rig_close(r);
  expect_nothing_of(r, closed);
  /* Devices and memory are free for another. */
  rig_open(r);
  g_assert_cmpuint(r->instance, >, closed);
  submit_prompt(r, 0);
  rig_until(r, OCT_EVENT_STEP_DONE, 1, NULL);
}

static void
instances_share_a_clock_and_nothing_else(rig *r) {
  rig other;
  oct_event event;
  rig_init(&other, r->world, &r->config);
  rig_open(&other);
  g_assert_cmpuint(other.instance, !=, r->instance);
  submit_prompt(r, 0);
  submit_prompt(&other, 0);
  submit_prompt(r, 1);
  submit_prompt(&other, 1);
  oct_time last = 0;
  guint64 numbers[2] = {0};
  for (int i = 0; i < 4; i++) {
    do
      g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
    while (event.kind != OCT_EVENT_STEP_DONE);
    guint64 *number = &numbers[event.instance == r->instance];
    g_assert_cmpuint(event.number, ==, ++*number);
    g_assert_cmpint(event.time_ns, >=, last);
    last = event.time_ns;
  }
  g_assert_cmpuint(numbers[0], ==, 2);
  /* The second ends in the middle of a step; the first does not notice. */
  r->n_flights = other.n_flights = 0;
  submit_prompt(r, 2);
  submit_prompt(&other, 2);
  rig_close(&other);
  rig_until(r, OCT_EVENT_STEP_DONE, 3, NULL);
  rig_begin(r);
  rig_decode(r, 2, 8);
  rig_submit(r);
  rig_until(r, OCT_EVENT_STEP_DONE, 4, NULL);
  rig_clear(&other);
}

const contract_case contract_world_cases[] = {
    {"02-time-never-goes-back", CONTRACT_DENSE, 0, time_never_goes_back},
    {"02-timer-of-the-past-comes-at-once", CONTRACT_DENSE, 0, timer_of_the_past_comes_at_once},
    {"02-what-is-due-comes-before-the-timer", CONTRACT_DENSE, 0,
     what_is_due_comes_before_the_timer},
    {"02-what-is-due-at-the-timer-comes-first", CONTRACT_DENSE, NEEDS_VIRTUAL,
     what_is_due_at_the_timer_comes_first},
    {"03-wakes-come-as-one", CONTRACT_DENSE, 0, wakes_come_as_one},
    {"03-wake-comes-from-any-thread", CONTRACT_DENSE, 0, wake_comes_from_any_thread},
    {"04-rests-when-nothing-is-pending", CONTRACT_DENSE, NEEDS_VIRTUAL,
     rests_when_nothing_is_pending},
    {"05-opening-ends-once", CONTRACT_HYBRID, CLOSED, opening_ends_once},
    {"06-capabilities-hold-the-plan", CONTRACT_HYBRID, 0, capabilities_hold_the_plan},
    {"07-wrong-configs-open-nothing", CONTRACT_DENSE, CLOSED, wrong_configs_open_nothing},
    {"07-illegal-layouts-open-nothing", CONTRACT_DENSE, CLOSED, illegal_layouts_open_nothing},
    {"08-closing-while-opening-is-silent", CONTRACT_DENSE, CLOSED, closing_while_opening_is_silent},
    {"08-closing-in-flight-is-silent", CONTRACT_DENSE, 0, closing_with_steps_in_flight_is_silent},
    {"08-instances-share-a-clock-and-nothing-else", CONTRACT_DENSE, 0,
     instances_share_a_clock_and_nothing_else},
    {NULL, 0, 0, NULL}};
