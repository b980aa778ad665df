/* Each thing that an engine must never do, done once on the mock: the world must end with a FATAL
 * fault that names it. And each thing beside it that is allowed. */
#include "backends/mock/mock.h"

#include <string.h>

#include "tests/contract/rig.h"

typedef void (*rig_fn)(rig *r);

static void
run_on_mock(const oct_instance_config *config, rig_fn fn) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_mock_world_new(NULL, &error);
  g_assert_no_error(error);
  rig_run(world, config, fn);
}

static void
dense(rig_fn fn) {
  oct_instance_config config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  run_on_mock(&config, fn);
}

static void
hybrid(rig_fn fn) {
  oct_instance_config config = fixture_config(fixture_hybrid(), OCT_PARALLEL_DEFAULT);
  run_on_mock(&config, fn);
}

/* The next event is the end of the world, for this reason. */
static void
expect_breach(rig *r, const char *why) {
  oct_event event;
  rig_expect(r, OCT_EVENT_FAULT, 0, &event);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_FATAL);
  if (strstr(event.fault->message, why) == NULL) {
    g_test_message("wanted '%s' in: %s", why, event.fault->message);
    g_test_fail();
  }
  g_assert_false(oct_world_next(r->world, OCT_TIME_NEVER, &event));
}

static void
expect_done(rig *r) {
  rig_expect(r, OCT_EVENT_STEP_DONE, 0, NULL);
}

static void
copy(rig *r, guint64 ticket, oct_copy_kind kind, guint32 group, oct_tier from_tier, guint32 from,
     oct_tier to_tier, guint32 to) {
  oct_copy c = {.kind = (guint8)kind,
                .order = OCT_COPY_BESIDE,
                .from_tier = (guint8)from_tier,
                .to_tier = (guint8)to_tier,
                .group = (guint16)group,
                .from = from,
                .to = to};
  g_autoptr(GError) error = NULL;
  g_assert_cmpint(oct_world_copy(r->world, r->instance, ticket, &c, 1, &error), ==, OCT_SUBMIT_OK);
  g_assert_no_error(error);
}

/* Slot 0 runs a prompt of n tokens in pages 0, 1 … of the dense model's group. */
static void
prefill_dense(rig *r, guint32 slot, guint64 key, guint32 n, guint32 first_page) {
  rig_begin(r);
  rig_slot(r, slot, key, n, 0);
  rig_pages(r, slot, 0, 0, (n + 15) / 16, first_page);
  rig_prefill(r, slot, 0, n, OCT_SAMPLE_LAST);
  rig_submit(r);
}

/* ---------------------------------------------------------------- positions and tables */

static void
past_its_pages(rig *r) {
  rig_begin(r);
  rig_slot(r, 0, 1, 17, 0);
  rig_pages(r, 0, 0, 0, 1, 0);
  rig_prefill(r, 0, 0, 17, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "slot 0 group 0: pages [0, 1) are set");
}

static void
gap_in_its_pages(rig *r) {
  rig_begin(r);
  rig_slot(r, 0, 1, 48, 0);
  rig_pages(r, 0, 0, 0, 1, 0);
  rig_pages(r, 0, 0, 2, 1, 2);
  rig_prefill(r, 0, 0, 48, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "pages [2, 3) are set");
}

static void
pages_of_the_one_before(rig *r) {
  prefill_dense(r, 0, 1, 16, 0);
  expect_done(r);
  rig_begin(r);
  rig_slot(r, 0, 2, 8, 0); /* another sequence, which names no pages */
  rig_prefill(r, 0, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "slot 0 group 0: pages [0, 0) are set");
}

static void
slot_not_open(rig *r) {
  g_array_set_size(r->ids[5], 4);
  memset(r->ids[5]->data, 0, 4 * sizeof(guint32));
  rig_begin(r);
  rig_prefill(r, 5, 0, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "slot 5 is not open in domain 0");
}

static void
change_of_closed_slot(rig *r) {
  rig_begin(r);
  rig_pages(r, 9, 0, 0, 1, 0);
  rig_submit(r);
  expect_breach(r, "slot 9 is not open");
}

static void
after_nothing(rig *r) {
  rig_begin(r);
  rig_slot(r, 0, 1, 4, 0);
  rig_pages(r, 0, 0, 0, 1, 0);
  rig_decode(r, 0, OCT_POSITION_AFTER);
  rig_submit(r);
  expect_breach(r, "has run nothing");
}

static void
token_never_sampled(rig *r) {
  rig_begin(r);
  rig_slot(r, 0, 1, 8, 0);
  rig_pages(r, 0, 0, 0, 1, 0);
  rig_prefill(r, 0, 0, 8, OCT_SAMPLE_NONE);
  rig_submit(r);
  rig_begin(r);
  rig_decode(r, 0, 8);
  rig_submit(r);
  expect_breach(r, "has accepted no token");
}

static void
position_skipped(rig *r) {
  rig_begin(r);
  rig_slot(r, 0, 1, 16, 0);
  rig_pages(r, 0, 0, 0, 1, 0);
  rig_prefill(r, 0, 0, 8, OCT_SAMPLE_NONE);
  rig_submit(r);
  rig_begin(r);
  rig_prefill(r, 0, 9, 7, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "slot 0 is at 8, the slice at 9");
}

/* ---------------------------------------------------------------- chains */

static void
pages_of_another(rig *r) {
  prefill_dense(r, 0, 1, 32, 0);
  expect_done(r);
  prefill_dense(r, 1, 2, 32, 2);
  expect_done(r);
  /* Slot 2 has the first page of slot 0's prompt, then the second of slot 1's. */
  rig_begin(r);
  rig_slot(r, 2, 1, 40, 0);
  rig_pages(r, 2, 0, 0, 1, 0);
  rig_pages(r, 2, 0, 1, 1, 3);
  rig_pages(r, 2, 0, 2, 1, 4);
  rig_prefill(r, 2, 32, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "page 3 (index 1) follows other tokens");
}

static void
last_page_of_another(rig *r) {
  prefill_dense(r, 0, 1, 16, 0);
  expect_done(r);
  rig_begin(r);
  rig_slot(r, 1, 2, 20, 0);
  rig_pages(r, 1, 0, 0, 2, 0);
  rig_prefill(r, 1, 16, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "page 0 (index 0) has other tokens below 16");
}

static void
pages_in_the_wrong_order(rig *r) {
  prefill_dense(r, 0, 1, 32, 0);
  expect_done(r);
  rig_begin(r);
  rig_slot(r, 1, 1, 40, 0);
  rig_pages(r, 1, 0, 0, 1, 1);
  rig_pages(r, 1, 0, 1, 1, 0);
  rig_pages(r, 1, 0, 2, 1, 2);
  rig_prefill(r, 1, 32, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "page 1 (index 0) has [16, 32), not [0, 16)");
}

static void
page_not_full(rig *r) {
  prefill_dense(r, 0, 1, 12, 0);
  expect_done(r);
  rig_begin(r);
  rig_slot(r, 1, 1, 20, 0);
  rig_pages(r, 1, 0, 0, 2, 0);
  rig_prefill(r, 1, 16, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "page 0 (index 0) has [0, 12), not [0, 16)");
}

static void
other_tokens_than_the_tag(rig *r) {
  prefill_dense(r, 0, 1, 16, 0);
  expect_done(r);
  rig_begin(r);
  rig_pages(r, 0, 0, 1, 1, 1);
  rig_decode(r, 0, 16)->tag ^= 1;
  rig_submit(r);
  expect_breach(r, "slot 0 ran other tokens than its tag's");
}

static void
rejected_drafts(rig *r) {
  const guint32 drafts[3] = {3, 4, 5}; /* none is the stream's */
  oct_event event;
  guint32 n;
  prefill_dense(r, 0, 1, 14, 0);
  expect_done(r);
  rig_begin(r);
  rig_pages(r, 0, 0, 1, 1, 1);
  rig_verify(r, 0, 14, drafts, 4);
  rig_submit(r);
  rig_expect(r, OCT_EVENT_STEP_DONE, 2, &event);
  rig_accepted(&event, 0, &n);
  g_assert_cmpuint(n, ==, 1);
  /* The page after the accepted token holds nothing that counts: the next one goes there. */
  for (guint32 i = 0; i < 4; i++) {
    rig_begin(r);
    rig_decode(r, 0, 15 + i);
    rig_submit(r);
    expect_done(r);
  }
}

static void
shared_prefix(rig *r) {
  prefill_dense(r, 0, 1, 32, 0);
  /* Read in a later step while the one that writes it is unfinished. */
  rig_begin(r);
  rig_slot(r, 1, 1, 40, 0);
  rig_pages(r, 1, 0, 0, 2, 0);
  rig_pages(r, 1, 0, 2, 1, 2);
  rig_prefill(r, 1, 32, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_done(r);
  expect_done(r);
}

/* Kernels may read what earlier steps wrote before this one's begin to write. */
static void
shared_within_a_step(rig *r) {
  rig_begin(r);
  rig_slot(r, 0, 1, 16, 0);
  rig_pages(r, 0, 0, 0, 1, 0);
  rig_prefill(r, 0, 0, 16, OCT_SAMPLE_LAST);
  rig_slot(r, 1, 1, 20, 0);
  rig_pages(r, 1, 0, 0, 2, 0);
  rig_prefill(r, 1, 16, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "reads page 0 of group 0, which another slice of the step writes");
}

/* ---------------------------------------------------------------- state and windows */

/* Slot 0 of the hybrid model runs n tokens: state 0, pages and window pages from 0. */
static void
prefill_hybrid(rig *r, guint32 n) {
  rig_begin(r);
  rig_slot(r, 0, 1, n, 0);
  rig_state(r, 0, FIXTURE_STATE, 0);
  rig_pages(r, 0, FIXTURE_PAGES, 0, n / 16 + 1, 0);
  rig_pages(r, 0, FIXTURE_WINDOW, 0, n / 16 + 1, 0);
  rig_prefill(r, 0, 0, n, OCT_SAMPLE_LAST);
  rig_submit(r);
}

static void
no_state(rig *r) {
  rig_begin(r);
  rig_slot(r, 0, 1, 8, 0);
  rig_pages(r, 0, FIXTURE_PAGES, 0, 1, 0);
  rig_pages(r, 0, FIXTURE_WINDOW, 0, 1, 0);
  rig_prefill(r, 0, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "slot 0 has no state of group 0");
}

static void
stale_state(rig *r) {
  prefill_hybrid(r, 16);
  expect_done(r);
  /* A prefix hit on pages of 16 tokens with a state that is further on. */
  rig_begin(r);
  rig_decode(r, 0, 16);
  rig_submit(r);
  expect_done(r);
  rig_begin(r);
  rig_slot(r, 1, 1, 20, 0);
  rig_state(r, 1, FIXTURE_STATE, 0);
  rig_pages(r, 1, FIXTURE_PAGES, 0, 1, 0);
  rig_pages(r, 1, FIXTURE_PAGES, 1, 1, 5);
  rig_pages(r, 1, FIXTURE_WINDOW, 0, 1, 0);
  rig_pages(r, 1, FIXTURE_WINDOW, 1, 1, 5);
  rig_prefill(r, 1, 16, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "state 0 is at 17, the slice at 16");
}

static void
state_of_other_tokens(rig *r) {
  prefill_hybrid(r, 16);
  expect_done(r);
  rig_begin(r);
  rig_slot(r, 1, 2, 16, 0);
  rig_state(r, 1, FIXTURE_STATE, 1);
  rig_pages(r, 1, FIXTURE_PAGES, 0, 2, 2);
  rig_pages(r, 1, FIXTURE_WINDOW, 0, 2, 2);
  rig_prefill(r, 1, 0, 16, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_done(r);
  rig_begin(r);
  rig_state(r, 1, FIXTURE_STATE, 0);
  rig_decode(r, 1, 16);
  rig_submit(r);
  expect_breach(r, "state 0 at 16 is of other tokens");
}

static void
state_is_checked_without_tags(rig *r) {
  r->no_tags = TRUE;
  stale_state(r);
}

static void
window_given_up_early(rig *r) {
  prefill_hybrid(r, 64);
  expect_done(r);
  rig_begin(r);
  rig_first_live(r, 0, FIXTURE_WINDOW, 3);
  rig_decode(r, 0, 64);
  rig_submit(r);
  expect_breach(r, "first live page 3 is in the window of token 64");
}

static void
window_given_up_in_time(rig *r) {
  prefill_hybrid(r, 64);
  expect_done(r);
  /* Token 64 sees 32 tokens: 33 to 64, the first of them in page 2. */
  rig_begin(r);
  rig_first_live(r, 0, FIXTURE_WINDOW, 2);
  rig_decode(r, 0, 64);
  rig_submit(r);
  expect_done(r);
}

static void
pages_given_up_without_window(rig *r) {
  prefill_hybrid(r, 64);
  expect_done(r);
  rig_begin(r);
  rig_first_live(r, 0, FIXTURE_PAGES, 1);
  rig_decode(r, 0, 64);
  rig_submit(r);
  expect_breach(r, "gives up pages of group 1, which has no window");
}

/* ---------------------------------------------------------------- double use */

static void
writes_under_a_copy_out(rig *r) {
  prefill_dense(r, 0, 1, 8, 0);
  expect_done(r);
  copy(r, 1, OCT_COPY_PAGE, 0, OCT_TIER_DEVICE, 0, OCT_TIER_HOST, 0);
  rig_begin(r);
  rig_decode(r, 0, 8);
  rig_submit(r);
  expect_breach(r, "writes page 0 of group 0, which a copy in flight reads");
}

static void
reads_under_a_copy_in(rig *r) {
  prefill_dense(r, 0, 1, 16, 0);
  expect_done(r);
  copy(r, 1, OCT_COPY_PAGE, 0, OCT_TIER_DEVICE, 0, OCT_TIER_HOST, 0);
  rig_expect(r, OCT_EVENT_COPY_DONE, 1, NULL);
  copy(r, 2, OCT_COPY_PAGE, 0, OCT_TIER_HOST, 0, OCT_TIER_DEVICE, 1);
  rig_begin(r);
  rig_slot(r, 1, 1, 20, 0);
  rig_pages(r, 1, 0, 0, 2, 1);
  rig_prefill(r, 1, 16, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "reads page 1 of group 0, which a copy in flight writes");
}

static void
reads_after_a_copy_in(rig *r) {
  prefill_dense(r, 0, 1, 16, 0);
  expect_done(r);
  copy(r, 1, OCT_COPY_PAGE, 0, OCT_TIER_DEVICE, 0, OCT_TIER_HOST, 0);
  copy(r, 2, OCT_COPY_PAGE, 0, OCT_TIER_HOST, 0, OCT_TIER_DEVICE, 1); /* waits for the first */
  rig_expect(r, OCT_EVENT_COPY_DONE, 1, NULL);
  rig_expect(r, OCT_EVENT_COPY_DONE, 2, NULL);
  rig_begin(r);
  rig_slot(r, 1, 1, 20, 0);
  rig_pages(r, 1, 0, 0, 2, 1);
  rig_prefill(r, 1, 16, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_done(r);
}

static void
copies_over_an_unfinished_step(rig *r) {
  prefill_dense(r, 0, 1, 16, 0);
  expect_done(r);
  copy(r, 1, OCT_COPY_PAGE, 0, OCT_TIER_DEVICE, 0, OCT_TIER_HOST, 0);
  rig_expect(r, OCT_EVENT_COPY_DONE, 1, NULL);
  prefill_dense(r, 1, 2, 16, 5);
  copy(r, 2, OCT_COPY_PAGE, 0, OCT_TIER_HOST, 0, OCT_TIER_DEVICE, 5);
  expect_breach(r, "copy to page 5 of group 0, in use by step 2");
}

static void
two_copies_to_one_page(rig *r) {
  prefill_dense(r, 0, 1, 16, 0);
  expect_done(r);
  copy(r, 1, OCT_COPY_PAGE, 0, OCT_TIER_DEVICE, 0, OCT_TIER_HOST, 3);
  copy(r, 2, OCT_COPY_PAGE, 0, OCT_TIER_DEVICE, 0, OCT_TIER_HOST, 3);
  expect_breach(r, "copy to page 3 of group 0, which a copy writes");
}

static void
two_copies_from_one_page(rig *r) {
  prefill_dense(r, 0, 1, 16, 0);
  expect_done(r);
  copy(r, 1, OCT_COPY_PAGE, 0, OCT_TIER_DEVICE, 0, OCT_TIER_HOST, 3);
  copy(r, 2, OCT_COPY_PAGE, 0, OCT_TIER_DEVICE, 0, OCT_TIER_HOST, 4);
  rig_expect(r, OCT_EVENT_COPY_DONE, 1, NULL);
  rig_expect(r, OCT_EVENT_COPY_DONE, 2, NULL);
}

/* Two choices of one prompt whose last page is shared and partial. */
static void
fork_pages(rig *r, gboolean copy_on_write) {
  prefill_dense(r, 0, 1, 20, 0);
  expect_done(r);
  rig_begin(r);
  rig_slot(r, 1, 1, 21, 0);
  rig_pages(r, 1, 0, 0, 1, 0);
  rig_pages(r, 1, 0, 1, 1, copy_on_write ? 2 : 1);
  if (copy_on_write)
    rig_copy(r, OCT_COPY_PAGE, OCT_COPY_BEFORE, 0, 1, 2);
  rig_decode(r, 0, 20);
  rig_prefill(r, 1, 20, 1, OCT_SAMPLE_LAST);
  rig_submit(r);
}

static void
fork_without_copy(rig *r) {
  fork_pages(r, FALSE);
  expect_breach(r, "reads page 1 of group 0, which another slice of the step writes");
}

static void
fork_with_copy(rig *r) {
  fork_pages(r, TRUE);
  expect_done(r);
  for (guint32 i = 0; i < 3; i++) {
    rig_begin(r);
    rig_decode(r, 0, 21 + i);
    rig_decode(r, 1, 21 + i);
    rig_submit(r);
    expect_done(r);
  }
}

static void
reuses_a_page_too_early(rig *r) {
  prefill_dense(r, 0, 1, 16, 0);
  prefill_dense(r, 1, 2, 16, 0);
  expect_breach(r, "writes page 0 of group 0, in use by another since step 1");
}

static void
reuses_a_page_in_time(rig *r) {
  prefill_dense(r, 0, 1, 16, 0);
  expect_done(r);
  prefill_dense(r, 1, 2, 16, 0);
  expect_done(r);
}

static void
failed_copy_holds_nothing(rig *r) {
  /* A host page that nothing was ever written to. */
  copy(r, 1, OCT_COPY_PAGE, 0, OCT_TIER_HOST, 0, OCT_TIER_DEVICE, 0);
  rig_expect(r, OCT_EVENT_COPY_DONE, 1, NULL);
  rig_begin(r);
  rig_slot(r, 1, 1, 20, 0);
  rig_pages(r, 1, 0, 0, 2, 0);
  rig_prefill(r, 1, 16, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_breach(r, "page 0 (index 0) has [0, 0), not [0, 16)");
}

/* ---------------------------------------------------------------- experts */

static void
with_slots(rig_fn fn) {
  oct_instance_config config = fixture_config(fixture_hybrid(), OCT_PARALLEL_DEFAULT);
  config.memory.n_expert_slots = 4;
  run_on_mock(&config, fn);
}

static void
change_expert(rig *r, guint32 layer, guint32 expert, guint32 slot) {
  oct_expert_change *e = oct_step_add_expert(r->builder);
  e->layer = (guint16)layer;
  e->expert = expert;
  e->slot = slot;
}

static void
load(rig *r, guint64 ticket, guint32 layer, guint32 expert, guint32 slot) {
  copy(r, ticket, OCT_COPY_EXPERT, layer, OCT_TIER_HOST, expert, OCT_TIER_DEVICE, slot);
}

static void
maps_what_is_not_loaded(rig *r) {
  load(r, 1, 2, 7, 0);
  rig_begin(r);
  change_expert(r, 2, 7, 0);
  rig_submit(r);
  expect_breach(r, "layer 2 slot 0 does not hold expert 7 yet");
}

static void
loads_over_a_mapped_expert(rig *r) {
  load(r, 1, 2, 7, 0);
  rig_expect(r, OCT_EVENT_COPY_DONE, 1, NULL);
  rig_begin(r);
  change_expert(r, 2, 7, 0);
  rig_submit(r);
  expect_done(r);
  load(r, 2, 2, 8, 0);
  expect_breach(r, "expert copy to layer 2 slot 0, which is mapped");
}

static void
loads_over_one_that_is_read(rig *r) {
  load(r, 1, 2, 7, 0);
  rig_expect(r, OCT_EVENT_COPY_DONE, 1, NULL);
  rig_begin(r);
  change_expert(r, 2, 7, 0);
  rig_submit(r);
  rig_begin(r);
  change_expert(r, 2, 7, OCT_NO_INDEX);
  rig_submit(r);
  load(r, 2, 2, 8, 0); /* step 1 may still read expert 7 */
  expect_breach(r, "expert copy to layer 2 slot 0, read by steps up to 1");
}

static void
replaces_an_expert(rig *r) {
  load(r, 1, 2, 7, 0);
  rig_expect(r, OCT_EVENT_COPY_DONE, 1, NULL);
  rig_begin(r);
  change_expert(r, 2, 7, 0);
  rig_submit(r);
  expect_done(r);
  rig_begin(r);
  change_expert(r, 2, 7, OCT_NO_INDEX);
  rig_submit(r);
  load(r, 2, 2, 8, 0);
  rig_expect(r, OCT_EVENT_COPY_DONE, 2, NULL);
  expect_done(r);
  rig_begin(r);
  change_expert(r, 2, 8, 0);
  rig_submit(r);
  expect_done(r);
}

typedef struct shadow_case {
  const char *path;
  void (*model)(rig_fn fn);
  rig_fn fn;
} shadow_case;

static const shadow_case cases[] = {
    {"/shadow/finds/slice-past-its-pages", dense, past_its_pages},
    {"/shadow/finds/gap-in-the-pages", dense, gap_in_its_pages},
    {"/shadow/finds/pages-of-the-slot's-last-sequence", dense, pages_of_the_one_before},
    {"/shadow/finds/slot-that-is-not-open", dense, slot_not_open},
    {"/shadow/finds/change-of-a-slot-that-is-not-open", dense, change_of_closed_slot},
    {"/shadow/finds/position-after-nothing", dense, after_nothing},
    {"/shadow/finds/token-that-was-never-sampled", dense, token_never_sampled},
    {"/shadow/finds/position-that-skips-tokens", dense, position_skipped},
    {"/shadow/finds/page-of-another-sequence", dense, pages_of_another},
    {"/shadow/finds/last-page-of-another-sequence", dense, last_page_of_another},
    {"/shadow/finds/pages-in-the-wrong-order", dense, pages_in_the_wrong_order},
    {"/shadow/finds/page-that-is-not-full", dense, page_not_full},
    {"/shadow/finds/other-tokens-than-the-tag", dense, other_tokens_than_the_tag},
    {"/shadow/allows/decode-over-rejected-drafts", dense, rejected_drafts},
    {"/shadow/allows/prefix-shared-while-its-step-runs", dense, shared_prefix},
    {"/shadow/finds/prefix-shared-within-a-step", dense, shared_within_a_step},
    {"/shadow/finds/missing-state", hybrid, no_state},
    {"/shadow/finds/state-at-another-position", hybrid, stale_state},
    {"/shadow/finds/state-of-other-tokens", hybrid, state_of_other_tokens},
    {"/shadow/finds/window-given-up-early", hybrid, window_given_up_early},
    {"/shadow/allows/window-given-up-in-time", hybrid, window_given_up_in_time},
    {"/shadow/finds/pages-given-up-without-window", hybrid, pages_given_up_without_window},
    {"/shadow/finds/write-under-a-copy-out", dense, writes_under_a_copy_out},
    {"/shadow/finds/read-under-a-copy-in", dense, reads_under_a_copy_in},
    {"/shadow/allows/read-after-chained-copies", dense, reads_after_a_copy_in},
    {"/shadow/finds/copy-over-an-unfinished-step", dense, copies_over_an_unfinished_step},
    {"/shadow/finds/two-copies-to-one-page", dense, two_copies_to_one_page},
    {"/shadow/allows/two-copies-from-one-page", dense, two_copies_from_one_page},
    {"/shadow/finds/fork-without-copy-on-write", dense, fork_without_copy},
    {"/shadow/allows/fork-with-copy-on-write", dense, fork_with_copy},
    {"/shadow/finds/page-reused-before-its-step-ended", dense, reuses_a_page_too_early},
    {"/shadow/allows/page-reused-after-its-step-ended", dense, reuses_a_page_in_time},
    {"/shadow/finds/read-of-a-page-that-holds-nothing", dense, failed_copy_holds_nothing},
    {"/shadow/finds/expert-mapped-before-it-is-loaded", with_slots, maps_what_is_not_loaded},
    {"/shadow/finds/expert-loaded-over-a-mapped-one", with_slots, loads_over_a_mapped_expert},
    {"/shadow/finds/expert-loaded-over-one-being-read", with_slots, loads_over_one_that_is_read},
    {"/shadow/allows/expert-replaced-in-order", with_slots, replaces_an_expert},
};

static void
run_case(gconstpointer data) {
  const shadow_case *c = data;
  c->model(c->fn);
}

static void
state_without_tags(void) {
  oct_instance_config config = fixture_config(fixture_hybrid(), OCT_PARALLEL_DEFAULT);
  config.check_tags = FALSE;
  run_on_mock(&config, state_is_checked_without_tags);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(cases); i++)
    g_test_add_data_func(cases[i].path, &cases[i], run_case);
  g_test_add_func("/shadow/finds/state-at-another-position-without-tags", state_without_tags);
  return g_test_run();
}
