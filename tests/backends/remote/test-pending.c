/* Events that cannot be, one by one: the front must not believe them. */
#include "backends/remote/pending.h"

#include <string.h>

#include "tests/contract/rig.h"

static oct_instance_config config;
static const oct_capabilities capabilities = {
    .depth = 2, .n_groups = 1, .masks = TRUE, .clock = OCT_CLOCK_REAL};

/* An open instance with step 1 in flight: a prompt with 2 logprobs, a verify slice of 3, one under
 * a mask; and copy 7. */
static oct_pending *
new_pending(void) {
  static const guint32 drafts[2] = {5, 6};
  config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  oct_pending *p = oct_pending_new(&config);
  oct_event opened = {.kind = OCT_EVENT_OPENED, .capabilities = &capabilities};
  g_assert_true(oct_pending_take_event(p, &opened, NULL));
  rig r;
  rig_init(&r, NULL, &config);
  rig_begin(&r);
  rig_sequence(&r, 0, 1, 8, 0);
  rig_sequence(&r, 1, 2, 8, 0);
  rig_sequence(&r, 2, 3, 8, 0);
  rig_prefill(&r, 0, 0, 8, OCT_SAMPLE_LAST)->n_logprobs = 2;
  rig_verify(&r, 1, 8, drafts, 3);
  rig_prefill(&r, 2, 0, 8, OCT_SAMPLE_LAST)->flags |= OCT_SLICE_NEEDS_MASK;
  oct_pending_add_step(p, rig_end(&r));
  oct_pending_add_copy(p, 7);
  rig_clear(&r);
  return p;
}

typedef struct result {
  oct_step_result head;
  oct_slice_result slices[3];
  guint32 tokens[4];
  oct_logprob logprobs[3];
  oct_expert_use experts[1];
} result;

static result
good_result(void) {
  return (result){
      .head = {.bytes = offsetof(result, experts),
               .n_slices = 3,
               .slices = offsetof(result, slices),
               .n_tokens = 4,
               .tokens = offsetof(result, tokens),
               .n_logprobs = 3,
               .logprobs = offsetof(result, logprobs),
               .experts = offsetof(result, experts),
               .floats = offsetof(result, experts),
               .end_ns = 10},
      .slices = {{.n_accepted = 1, .tokens = 0, .logprobs = 0, .floats = OCT_NO_INDEX},
                 {.n_accepted = 2, .tokens = 1, .logprobs = OCT_NO_INDEX, .floats = OCT_NO_INDEX},
                 {.n_accepted = 1, .tokens = 3, .logprobs = OCT_NO_INDEX, .floats = OCT_NO_INDEX}},
      .tokens = {11, 12, 13, 14},
  };
}

static void
assert_event(const oct_event *event, const char *why) {
  oct_pending *p = new_pending();
  g_autoptr(GError) error = NULL;
  gboolean taken = oct_pending_take_event(p, event, &error);
  if (why == NULL) {
    g_assert_no_error(error);
    g_assert_true(taken);
  } else if (taken) {
    g_test_message("accepted: %s", why);
    g_test_fail();
  } else if (strstr(error->message, why) == NULL) {
    g_test_message("wanted '%s' in: %s", why, error->message);
    g_test_fail();
  }
  oct_pending_free(p);
}

static void
assert_result(const result *r, const char *why) {
  oct_event event = {.kind = OCT_EVENT_STEP_DONE, .number = 1, .result = &r->head};
  assert_event(&event, why);
}

static void
right_events_are_believed(void) {
  result r = good_result();
  assert_result(&r, NULL);
  assert_event(&(oct_event){.kind = OCT_EVENT_COPY_DONE, .number = 7}, NULL);
  assert_event(&(oct_event){.kind = OCT_EVENT_MASK_WANTED, .number = 1, .slice = 2}, NULL);
  r.slices[0] = (oct_slice_result){
      .flags = OCT_RESULT_FAILED, .logprobs = OCT_NO_INDEX, .floats = OCT_NO_INDEX};
  assert_result(&r, NULL);
}

static void
wrong_results_are_not(void) {
  result r = good_result();
  assert_event(&(oct_event){.kind = OCT_EVENT_STEP_DONE, .number = 2, .result = &r.head},
               "not the oldest step in flight");
  r.head.n_slices = 2;
  assert_result(&r, "another number of slices");
#define WRONG(change, why)                                                                         \
  r = good_result();                                                                               \
  change;                                                                                          \
  assert_result(&r, why)
  WRONG(r.slices[0].n_accepted = 0, "more or less than it can");
  WRONG(r.slices[0].n_accepted = 2, "more or less than it can");
  WRONG(r.slices[1].n_accepted = 0, "more or less than it can");
  WRONG(r.slices[1].n_accepted = 4, "more or less than it can");
  WRONG(r.slices[2].flags = OCT_RESULT_FAILED, "more or less than it can");
  WRONG(r.tokens[3] = FIXTURE_VOCAB, "outside the vocabulary");
  WRONG(r.slices[0].logprobs = OCT_NO_INDEX, "other logprobs");
  WRONG(r.slices[0].logprobs = 1, "other logprobs");
  WRONG(r.slices[1].logprobs = 0, "other logprobs");
  WRONG(r.logprobs[2].token = FIXTURE_VOCAB, "outside the vocabulary");
  WRONG(r.slices[2].floats = 0, "another pooled vector");
  WRONG((r.head.n_experts = 1, r.experts[0].layer = 4), "an expert that is not there");
  WRONG((r.head.n_experts = 1, r.experts[0].layer = 0), "an expert that is not there");
#undef WRONG
}

static void
wrong_events_are_not(void) {
  oct_fault fault = {.severity = OCT_SEVERITY_STEP, .number = 2};
  oct_capabilities deep = capabilities;
  deep.depth = 3;
  assert_event(&(oct_event){.kind = OCT_EVENT_COPY_DONE, .number = 8}, "of no copy in flight");
  assert_event(&(oct_event){.kind = OCT_EVENT_MASK_WANTED, .number = 1, .slice = 0},
               "waits for no mask");
  assert_event(&(oct_event){.kind = OCT_EVENT_MASK_WANTED, .number = 1, .slice = 3},
               "waits for no mask");
  assert_event(&(oct_event){.kind = OCT_EVENT_MASK_WANTED, .number = 2, .slice = 2},
               "waits for no mask");
  assert_event(&(oct_event){.kind = OCT_EVENT_OPENED, .capabilities = &capabilities},
               "opens it again");
  assert_event(&(oct_event){.kind = OCT_EVENT_TIMER}, "not an instance's");
  assert_event(&(oct_event){.kind = OCT_EVENT_FAULT, .fault = &fault}, "not the oldest in flight");
  fault = (oct_fault){.severity = OCT_SEVERITY_REQUEST, .number = 1, .slice = 3};
  assert_event(&(oct_event){.kind = OCT_EVENT_FAULT, .fault = &fault}, "not in flight");
  oct_pending *p = oct_pending_new(&config);
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_pending_take_event(
      p, &(oct_event){.kind = OCT_EVENT_OPENED, .capabilities = &deep}, &error));
  g_assert_nonnull(strstr(error->message, "not asked for"));
  g_clear_error(&error);
  g_assert_false(
      oct_pending_take_event(p, &(oct_event){.kind = OCT_EVENT_COPY_DONE, .number = 1}, &error));
  g_assert_nonnull(strstr(error->message, "before it is open"));
  oct_pending_free(p);
}

static void
nothing_ends_twice(void) {
  oct_pending *p = new_pending();
  result r = good_result();
  oct_event done = {.kind = OCT_EVENT_STEP_DONE, .number = 1, .result = &r.head};
  oct_event copied = {.kind = OCT_EVENT_COPY_DONE, .number = 7};
  oct_event wanted = {.kind = OCT_EVENT_MASK_WANTED, .number = 1, .slice = 2};
  g_assert_true(oct_pending_take_event(p, &wanted, NULL));
  g_assert_false(oct_pending_take_event(p, &wanted, NULL));
  g_assert_true(oct_pending_take_event(p, &copied, NULL));
  g_assert_false(oct_pending_take_event(p, &copied, NULL));
  g_assert_true(oct_pending_take_event(p, &done, NULL));
  g_assert_false(oct_pending_take_event(p, &done, NULL));
  oct_pending_free(p);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/remote/pending/right-events-are-believed", right_events_are_believed);
  g_test_add_func("/remote/pending/wrong-results-are-not", wrong_results_are_not);
  g_test_add_func("/remote/pending/wrong-events-are-not", wrong_events_are_not);
  g_test_add_func("/remote/pending/nothing-ends-twice", nothing_ends_twice);
  return g_test_run();
}
