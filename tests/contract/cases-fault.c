/* Rules 35 to 38: what an engine may rely on when something goes wrong. Each world runs with one
 * injected fault (backends/fault), inside whatever wraps it. */
#include <string.h>

#include "tests/contract/contract.h"

static void
prompt(rig *r, guint32 slot) {
  rig_begin(r);
  rig_sequence(r, slot, 100 + slot, 8, 0);
  rig_prefill(r, slot, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
}

static void
expect_fault(rig *r, oct_severity severity, guint64 number, oct_event *event) {
  rig_expect(r, OCT_EVENT_FAULT, 0, event);
  g_assert_cmpstr(oct_severity_name(event->fault->severity), ==, oct_severity_name(severity));
  g_assert_cmpuint(event->fault->number, ==, number);
  g_assert_cmpuint(strlen(event->fault->message), >, 0);
}

static void
expect_refused(rig *r) {
  g_autoptr(GError) error = NULL;
  oct_copy copy = {.order = OCT_COPY_BESIDE, .from = 1, .to = 2};
  rig_begin(r);
  r->number--; /* it is not taken */
  g_assert_cmpint(oct_world_submit(r->world, r->instance, rig_end(r), &error), ==,
                  OCT_SUBMIT_REFUSED);
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
  g_clear_error(&error);
  g_assert_cmpint(oct_world_copy(r->world, r->instance, 1, &copy, 1, &error), ==,
                  OCT_SUBMIT_REFUSED);
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
}

static void
expect_silence(rig *r) {
  oct_event event;
  while (oct_world_next(r->world, r->world->now_ns + 10000000, &event) &&
         event.kind != OCT_EVENT_TIMER)
    g_assert_cmpuint(event.instance, !=, r->instance);
}

static void
request_fails_alone(rig *r) {
  oct_event event;
  rig_begin(r);
  for (guint32 slot = 0; slot < 2; slot++) {
    rig_sequence(r, slot, 100 + slot, 8, 0);
    rig_prefill(r, slot, 0, 8, OCT_SAMPLE_LAST);
  }
  rig_submit(r);
  expect_fault(r, OCT_SEVERITY_REQUEST, 1, &event);
  guint32 bad = event.fault->slice;
  g_assert_cmpuint(bad, <, 2);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  const oct_slice_result *s = oct_result_slices(event.result);
  g_assert_cmpuint(s[bad].flags & OCT_RESULT_FAILED, !=, 0);
  g_assert_cmpuint(s[bad].n_accepted, ==, 0);
  g_assert_cmpuint(s[1 - bad].flags, ==, 0);
  g_assert_cmpuint(s[1 - bad].n_accepted, ==, 1);
  rig_begin(r);
  rig_sequence(r, bad, 100 + bad, 8, 0); /* opened again, from its first token */
  if (bad == 0)
    rig_prefill(r, 0, 0, 8, OCT_SAMPLE_LAST);
  rig_decode(r, 1 - bad, 8);
  if (bad == 1)
    rig_prefill(r, 1, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  for (guint32 i = 0; i < 2; i++)
    g_assert_cmpuint(oct_result_slices(event.result)[i].n_accepted, ==, 1);
}

static void
failed_step_did_nothing(rig *r) {
  oct_event event;
  prompt(r, 0);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, NULL);
  prompt(r, 1); /* fails */
  rig_begin(r);
  rig_decode(r, 0, 8); /* behind it */
  rig_submit(r);
  expect_fault(r, OCT_SEVERITY_STEP, 2, &event);
  expect_fault(r, OCT_SEVERITY_STEP, 3, &event);
  r->n_flights = 0;
  /* Slot 0 is where it was; slot 1 was never opened, and is opened now. */
  rig_begin(r);
  g_assert_cmpuint(r->number, ==, 4); /* the numbers are spent */
  rig_decode(r, 0, 8);
  rig_sequence(r, 1, 101, 8, 0);
  rig_prefill(r, 1, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 4, &event);
  rig_begin(r);
  rig_decode(r, 0, 9);
  rig_decode(r, 1, 8);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 5, &event);
}

static void
failed_step_is_retryable(rig *r) {
  oct_event event;
  prompt(r, 0);
  expect_fault(r, OCT_SEVERITY_STEP, 1, &event);
  g_assert_cmpuint(event.fault->retryable, ==, 1);
  r->n_flights = 0;
  prompt(r, 0);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
}

static void
failed_step_is_final(rig *r) {
  oct_event event;
  prompt(r, 0);
  expect_fault(r, OCT_SEVERITY_STEP, 1, &event);
  g_assert_cmpuint(event.fault->retryable, ==, 0);
  r->n_flights = 0;
  prompt(r, 1);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
}

static void
lost_instance_is_reopened(rig *r) {
  oct_event event;
  prompt(r, 0);
  expect_fault(r, OCT_SEVERITY_INSTANCE, 0, &event);
  expect_refused(r);
  expect_silence(r);
  guint32 lost = r->instance;
  rig_close(r);
  rig_open(r);
  g_assert_cmpuint(r->instance, >, lost);
  prompt(r, 0);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
}

static void
lost_device_is_named(rig *r) {
  oct_event event;
  prompt(r, 0);
  expect_fault(r, OCT_SEVERITY_INSTANCE, 0, &event);
  g_assert_cmpuint(event.fault->device, ==, r->config.devices[0]);
}

static void
lost_world_can_be_left(rig *r) {
  oct_event event;
  prompt(r, 0);
  expect_fault(r, OCT_SEVERITY_FATAL, 0, &event);
  expect_refused(r);
  expect_silence(r);
  rig_close(r);
  g_autoptr(GError) error = NULL;
  guint32 instance;
  g_assert_false(oct_world_open(r->world, &r->config, &instance, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
}

const contract_fault_case contract_fault_cases[] = {
    {{"35-request-fails-alone", CONTRACT_HYBRID, 0, request_fails_alone}, "request/1"},
    {{"36-failed-step-did-nothing", CONTRACT_HYBRID, 0, failed_step_did_nothing}, "step/2"},
    {{"36-failed-step-is-retryable", CONTRACT_DENSE, 0, failed_step_is_retryable}, "step/1"},
    {{"36-failed-step-is-final", CONTRACT_DENSE, 0, failed_step_is_final}, "step-final/1"},
    {{"37-lost-instance-is-reopened", CONTRACT_DENSE, 0, lost_instance_is_reopened},
     "instance/1/1"},
    {{"37-lost-device-is-named", CONTRACT_DENSE, 0, lost_device_is_named}, "device/1"},
    {{"38-lost-world-can-be-left", CONTRACT_DENSE, 0, lost_world_can_be_left}, "fatal/1"},
    {{NULL, 0, 0, NULL}, NULL}};
