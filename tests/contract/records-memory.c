/* Pages, states and copies: hits, forks, preemption, cancellation. */
#include "tests/contract/records.h"

static oct_instance_config
dense(void) {
  return fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
}

static oct_instance_config
hybrid(void) {
  return fixture_config(fixture_hybrid(), OCT_PARALLEL_DEFAULT);
}

/* Page groups of the hybrid model get equal pages here; that is not a rule. */
static void
hybrid_pages(rig *r, guint32 slot, guint32 index, guint32 n, guint32 first_page) {
  rig_pages(r, slot, FIXTURE_PAGES, index, n, first_page);
  rig_pages(r, slot, FIXTURE_WINDOW, index, n, first_page);
}

static void
hit_from_snapshot(rig *r) {
  oct_event event;
  rig_open(r);
  /* The chunk is cut at 16, the prompt's last page boundary, and the state there is kept in
   * slot 50. */
  rig_begin(r);
  rig_slot(r, 0, 0xa, 20, 0);
  rig_state(r, 0, FIXTURE_STATE, 0);
  hybrid_pages(r, 0, 0, 2, 0);
  rig_prefill(r, 0, 0, 16, OCT_SAMPLE_NONE);
  rig_copy(r, OCT_COPY_STATE, OCT_COPY_AFTER, FIXTURE_STATE, 0, 50);
  rig_submit(r);
  rig_begin(r);
  rig_prefill(r, 0, 16, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  /* The same prompt again: page 0 of both groups is shared, the state restored, 16 tokens saved. */
  rig_begin(r);
  rig_slot(r, 1, 0xa, 20, 0);
  rig_state(r, 1, FIXTURE_STATE, 1);
  rig_copy(r, OCT_COPY_STATE, OCT_COPY_BEFORE, FIXTURE_STATE, 50, 1);
  hybrid_pages(r, 1, 0, 1, 0);
  hybrid_pages(r, 1, 1, 1, 4);
  rig_prefill(r, 1, 16, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 3, &event);
  g_assert_cmpuint(g_array_index(r->ids[0], guint32, 20), ==,
                   g_array_index(r->ids[1], guint32, 20));
  rig_close(r);
}

static void
fork_of_four(rig *r) {
  oct_event event;
  rig_open(r);
  /* The trunk runs the prompt but for its last token. */
  rig_begin(r);
  rig_slot(r, 0, 0xa, 20, 0);
  rig_state(r, 0, FIXTURE_STATE, 0);
  hybrid_pages(r, 0, 0, 2, 0);
  rig_prefill(r, 0, 0, 19, OCT_SAMPLE_NONE);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  /* Each choice runs that token for itself: page 0 is shared, page 1 is partial and is copied, and
   * so is the state. The trunk goes on as the first choice. */
  rig_begin(r);
  for (guint32 slot = 1; slot < 4; slot++) {
    rig_slot(r, slot, 0xa, 20, 0)->key = 0xa0 + slot;
    rig_state(r, slot, FIXTURE_STATE, slot);
    rig_copy(r, OCT_COPY_STATE, OCT_COPY_BEFORE, FIXTURE_STATE, 0, slot);
    hybrid_pages(r, slot, 0, 1, 0);
    hybrid_pages(r, slot, 1, 1, 1 + slot);
    for (guint32 g = FIXTURE_PAGES; g <= FIXTURE_WINDOW; g++)
      rig_copy(r, OCT_COPY_PAGE, OCT_COPY_BEFORE, g, 1, 1 + slot);
  }
  for (guint32 slot = 0; slot < 4; slot++)
    rig_prefill(r, slot, 19, 1, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  for (guint32 slot = 1; slot < 4; slot++)
    g_assert_cmpuint(g_array_index(r->ids[slot], guint32, 20), !=,
                     g_array_index(r->ids[0], guint32, 20));
  rig_begin(r);
  for (guint32 slot = 0; slot < 4; slot++)
    rig_decode(r, slot, 20);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 3, &event);
  rig_close(r);
}

static void
preemption_by_offload(rig *r) {
  oct_event event;
  oct_copy copies[2];
  for (guint32 i = 0; i < 2; i++)
    copies[i] =
        (oct_copy){.order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST, .from = 2 + i, .to = i};
  rig_open(r);
  rig_begin(r);
  for (guint32 slot = 0; slot < 2; slot++) {
    rig_slot(r, slot, 0xa + slot, 20, 0);
    rig_pages(r, slot, 0, 0, 2, 2 * slot);
    rig_prefill(r, slot, 0, 20, OCT_SAMPLE_LAST);
  }
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  rig_begin(r);
  rig_decode(r, 0, 20);
  rig_decode(r, 1, 20);
  rig_submit(r);
  /* Slot 1 is to go. It is in step 2, so it is left out of step 3 and waits for the end of 2. */
  rig_begin(r);
  rig_decode(r, 0, 21);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  rig_beside(r, 1, copies, 2);
  rig_expect(r, OCT_EVENT_COPY_DONE, 1, &event); /* beside step 3, which still runs */
  rig_expect(r, OCT_EVENT_STEP_DONE, 3, &event);
  /* Its slot and pages are another's meanwhile; then it comes back elsewhere, and goes on. */
  g_autoptr(GArray) ids = g_array_copy(r->ids[1]);
  rig_begin(r);
  rig_slot(r, 1, 0xc, 8, 0);
  rig_pages(r, 1, 0, 0, 1, 2);
  rig_prefill(r, 1, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 4, &event);
  for (guint32 i = 0; i < 2; i++)
    copies[i] =
        (oct_copy){.order = OCT_COPY_BESIDE, .from_tier = OCT_TIER_HOST, .from = i, .to = 8 + i};
  rig_beside(r, 2, copies, 2);
  rig_expect(r, OCT_EVENT_COPY_DONE, 2, &event);
  rig_begin(r);
  rig_slot(r, 2, 0xb, 20, 0);
  g_array_set_size(r->ids[2], 0);
  g_array_append_vals(r->ids[2], ids->data, ids->len);
  rig_pages(r, 2, 0, 0, 2, 8);
  rig_prefill(r, 2, 21, 1, OCT_SAMPLE_LAST)->flags = 0; /* the token that it had accepted last */
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 5, &event);
  rig_close(r);
}

static void
cancel_during_reload(rig *r) {
  oct_event event;
  oct_copy out = {.order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST};
  oct_copy in = {.order = OCT_COPY_BESIDE, .from_tier = OCT_TIER_HOST, .to = 6};
  rig_open(r);
  rig_begin(r);
  rig_slot(r, 0, 0xa, 16, 0);
  rig_pages(r, 0, 0, 0, 1, 0);
  rig_prefill(r, 0, 0, 16, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  rig_beside(r, 1, &out, 1);
  rig_expect(r, OCT_EVENT_COPY_DONE, 1, &event);
  rig_beside(r, 2, &in, 1);
  /* Cancelled here. Nothing is told to the backend: both ends stay leased until the copy's event,
   * and only then does page 6 go to another. */
  g_string_append(r->log, "cancel: nothing is called\n");
  rig_begin(r);
  rig_slot(r, 1, 0xb, 8, 0);
  rig_pages(r, 1, 0, 0, 1, 7);
  rig_prefill(r, 1, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_COPY_DONE, 2, &event);
  rig_begin(r);
  rig_slot(r, 2, 0xc, 8, 0);
  rig_pages(r, 2, 0, 0, 1, 6);
  rig_prefill(r, 2, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  rig_expect(r, OCT_EVENT_STEP_DONE, 3, &event);
  rig_close(r);
}

#define TABLE "fixed_ns=1000,token_ns=100,sequence_ns=10,copy_page_ns=500,copy_state_ns=700"

const record_case record_cases_memory[] = {
    {"hit-from-snapshot", "mock:" TABLE, hybrid, hit_from_snapshot},
    {"fork-of-four-with-state", "mock:" TABLE, hybrid, fork_of_four},
    {"preemption-by-offload", "mock:" TABLE, dense, preemption_by_offload},
    {"cancel-during-reload", "mock:" TABLE, dense, cancel_during_reload},
    {NULL, NULL, NULL, NULL}};
