/* What a step waits for, misses and loses. */
#include "tests/contract/records.h"

static oct_instance_config
dense(void) {
  return fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
}

static oct_instance_config
experts(void) {
  oct_instance_config config = fixture_config(fixture_hybrid(), OCT_PARALLEL_DEFAULT);
  config.memory.n_expert_slots = 4;
  config.report_experts = TRUE;
  return config;
}

static void
prompt(rig *r, guint32 slot, guint64 key, guint32 n) {
  rig_slot(r, slot, key, n, 0);
  rig_pages(r, slot, 0, 0, 1, slot);
  rig_prefill(r, slot, 0, n, OCT_SAMPLE_LAST);
}

static void
late_mask(rig *r) {
  static const guint32 allowed[] = {17, 400, 801};
  oct_event event;
  rig_open(r);
  rig_begin(r);
  prompt(r, 0, 0xa, 6);
  prompt(r, 1, 0xb, 6);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  /* The first mask comes before its slice gets to sampling, the second does not. */
  rig_begin(r);
  rig_decode(r, 0, 6)->flags |= OCT_SLICE_NEEDS_MASK;
  rig_decode(r, 1, 6)->flags |= OCT_SLICE_NEEDS_MASK;
  rig_submit(r);
  rig_mask(r, 2, 0, allowed, 3);
  rig_expect(r, OCT_EVENT_MASK_WANTED, 2, &event);
  g_assert_cmpuint(event.slice, ==, 1);
  oct_time wanted = event.time_ns;
  g_assert_true(rig_next(r, wanted + 3000, &event));
  rig_mask(r, 2, 1, allowed, 3);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  g_assert_cmpint(event.result->part_ns[OCT_PART_WAIT], ==, 3000);
  for (guint32 i = 0; i < 2; i++) {
    guint32 n, token = rig_accepted(&event, i, &n)[0];
    g_assert_true(token == 17 || token == 400 || token == 801);
  }
  rig_close(r);
}

static void
expert_miss(rig *r) {
  oct_event event;
  oct_copy load[2];
  rig_open(r);
  rig_begin(r);
  rig_slot(r, 0, 0xa, 2, 0);
  rig_state(r, 0, FIXTURE_STATE, 0);
  rig_pages(r, 0, FIXTURE_PAGES, 0, 1, 0);
  rig_pages(r, 0, FIXTURE_WINDOW, 0, 1, 0);
  rig_prefill(r, 0, 0, 1, OCT_SAMPLE_NONE);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  /* One token uses two experts in each of the seven layers that have them; none is resident. */
  g_assert_cmpuint(event.result->n_experts, ==, 14);
  guint32 seen = 0;
  for (guint32 i = 0; i < event.result->n_experts; i++) {
    const oct_expert_use *use = &oct_result_experts(event.result)[i];
    g_assert_cmpuint(use->missed, ==, 1);
    if (use->layer == 2) {
      load[seen] = (oct_copy){.kind = OCT_COPY_EXPERT,
                              .order = OCT_COPY_BESIDE,
                              .from_tier = OCT_TIER_HOST,
                              .group = 2,
                              .from = use->expert,
                              .to = seen};
      seen++;
    }
  }
  g_assert_cmpuint(seen, ==, 2);
  /* Layer 2's two are loaded beside a step; the step after it is told where they are. */
  rig_beside(r, 1, load, 2);
  rig_expect(r, OCT_EVENT_COPY_DONE, 1, &event);
  rig_begin(r);
  for (guint32 i = 0; i < 2; i++) {
    oct_expert_change *change = oct_step_add_expert(r->builder);
    change->layer = 2;
    change->expert = load[i].from;
    change->slot = load[i].to;
  }
  rig_slot(r, 1, 0xa, 2, 0); /* the same token, again */
  rig_state(r, 1, FIXTURE_STATE, 1);
  rig_pages(r, 1, FIXTURE_PAGES, 0, 1, 1);
  rig_pages(r, 1, FIXTURE_WINDOW, 0, 1, 1);
  rig_prefill(r, 1, 0, 1, OCT_SAMPLE_NONE);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  for (guint32 i = 0; i < event.result->n_experts; i++) {
    const oct_expert_use *use = &oct_result_experts(event.result)[i];
    g_assert_cmpuint(use->missed, ==, use->layer != 2);
  }
  rig_close(r);
}

static void
device_loss(rig *r) {
  oct_event event;
  rig_open(r);
  rig_begin(r);
  prompt(r, 0, 0xa, 6);
  rig_submit(r);
  rig_begin(r);
  rig_decode(r, 0, 6);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  rig_expect(r, OCT_EVENT_FAULT, 0, &event);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_INSTANCE);
  g_assert_cmpuint(event.fault->device, ==, 0);
  /* Nothing more comes of it, and nothing more is taken. */
  rig_begin(r);
  rig_decode(r, 0, 7);
  g_autoptr(GError) error = NULL;
  g_assert_cmpint(oct_world_submit(r->world, r->instance, rig_end(r), &error), ==,
                  OCT_SUBMIT_REFUSED);
  g_string_append_printf(r->log, "submit to instance 1: step 3: REFUSED, \"%s\"\n", error->message);
  g_assert_false(oct_world_next(r->world, OCT_TIME_NEVER, &event));
  rig_close(r);
  /* The sequence starts again on a new instance, from the tokens that are known. */
  rig_open(r);
  g_assert_cmpuint(r->instance, ==, 2);
  rig_begin(r);
  guint32 last = g_array_index(r->ids[0], guint32, 6);
  rig_slot(r, 0, 0xa, 6, 0);
  g_array_append_val(r->ids[0], last);
  rig_pages(r, 0, 0, 0, 1, 0);
  rig_prefill(r, 0, 0, 7, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  rig_close(r);
}

#define TABLE "fixed_ns=1000,token_ns=100,sequence_ns=10,copy_page_ns=500,copy_state_ns=700"

const record_case record_cases_faults[] = {
    {"late-mask", "mock:" TABLE, dense, late_mask},
    {"expert-miss", "mock:copy_expert_ns=400,expert_miss_ns=300," TABLE, experts, expert_miss},
    /* Seed 1 loses the instance when step 2 should end. */
    {"device-loss", "fault:script=device/2/1,seed=1@mock:" TABLE, dense, device_loss},
    {NULL, NULL, NULL, NULL}};
