/* Rules 29 to 39: masks, drafts, adapters, experts, fast-forward. */
#include <string.h>

#include "tests/contract/contract.h"

#define MASK_WORDS ((FIXTURE_VOCAB + 63) / 64)

static void
done(rig *r, oct_event *event) {
  rig_until(r, OCT_EVENT_STEP_DONE, 0, event);
}

static void
prompt(rig *r, guint32 slot, guint64 key, guint32 n) {
  rig_begin(r);
  rig_sequence(r, slot, key, n, 0);
  rig_prefill(r, slot, 0, n, OCT_SAMPLE_LAST);
  rig_submit(r);
  done(r, NULL);
}

static void
stream(rig *r, guint32 slot, guint64 key, guint32 n_prompt, guint32 n, guint32 *tokens) {
  prompt(r, slot, key, n_prompt);
  for (guint32 i = 1; i < n; i++) {
    rig_begin(r);
    rig_decode(r, slot, n_prompt + i - 1);
    rig_submit(r);
    done(r, NULL);
  }
  memcpy(tokens, &g_array_index(r->ids[slot], guint32, n_prompt), n * sizeof *tokens);
}

/* ---------------------------------------------------------------- masks */

static gboolean
mask(rig *r, guint64 number, guint32 slice, const guint32 *tokens, guint32 n, GError **error) {
  guint64 bits[MASK_WORDS] = {0};
  for (guint32 i = 0; i < n; i++)
    bits[tokens[i] / 64] |= (guint64)1 << (tokens[i] % 64);
  return oct_world_mask(r->world, r->instance, number, slice, bits, MASK_WORDS, error);
}

static void
early_mask_is_obeyed(rig *r) {
  static const guint32 allowed[] = {11, 222, 999};
  g_autoptr(GError) error = NULL;
  oct_event event;
  rig_begin(r);
  rig_sequence(r, 0, 5, 10, 0);
  rig_sequence(r, 1, 6, 10, 0);
  rig_prefill(r, 0, 0, 10, OCT_SAMPLE_LAST);
  rig_prefill(r, 1, 0, 10, OCT_SAMPLE_LAST)->flags |= OCT_SLICE_NEEDS_MASK;
  rig_submit(r);
  g_assert_true(mask(r, 1, 1, allowed, 3, &error));
  g_assert_no_error(error);
  g_assert_true(rig_next(r, OCT_TIME_NEVER, &event));
  if (r->world->ops->clock == OCT_CLOCK_VIRTUAL) /* no time has passed: it never waited */
    g_assert_cmpstr(oct_event_name(event.kind), ==, "STEP_DONE");
  if (event.kind != OCT_EVENT_STEP_DONE)
    done(r, &event);
  guint32 n;
  guint32 token = rig_accepted(&event, 1, &n)[0];
  g_assert_true(token == 11 || token == 222 || token == 999);
}

static void
late_mask_stalls_its_step(rig *r) {
  static const guint32 allowed[] = {123};
  oct_event event;
  rig_begin(r);
  rig_sequence(r, 0, 5, 10, 0);
  rig_prefill(r, 0, 0, 10, OCT_SAMPLE_LAST)->flags |= OCT_SLICE_NEEDS_MASK;
  rig_submit(r);
  rig_until(r, OCT_EVENT_MASK_WANTED, 1, &event);
  g_assert_cmpuint(event.slice, ==, 0);
  oct_time wanted = event.time_ns;
  /* Told once. */
  g_assert_true(rig_next(r, wanted + 3000000, &event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "TIMER");
  oct_time given = event.time_ns;
  g_autoptr(GError) error = NULL;
  g_assert_true(mask(r, 1, 0, allowed, 1, &error));
  rig_until(r, OCT_EVENT_STEP_DONE, 1, &event);
  guint32 n;
  g_assert_cmpuint(rig_accepted(&event, 0, &n)[0], ==, 123);
  g_assert_cmpint(event.time_ns, >=, given);
  g_assert_cmpint(event.result->part_ns[OCT_PART_WAIT], >=, given - wanted);
  /* The token counts: the next step feeds on it. */
  rig_begin(r);
  rig_decode(r, 0, 10);
  rig_submit(r);
  done(r, NULL);
}

static void
wrong_masks_are_refused(rig *r) {
  static const guint32 allowed[] = {123};
  g_autoptr(GError) error = NULL;
  guint64 bits[MASK_WORDS] = {0};
  rig_begin(r);
  rig_sequence(r, 0, 5, 10, 0);
  rig_sequence(r, 1, 5, 10, 0);
  rig_prefill(r, 0, 0, 10, OCT_SAMPLE_LAST);
  rig_prefill(r, 1, 0, 10, OCT_SAMPLE_LAST)->flags |= OCT_SLICE_NEEDS_MASK;
  rig_submit(r);
  /* Nothing allowed; too short; not a slice that waits; not a step that was submitted. */
  g_assert_false(oct_world_mask(r->world, r->instance, 1, 1, bits, MASK_WORDS, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD);
  g_clear_error(&error);
  g_assert_false(oct_world_mask(r->world, r->instance, 1, 1, bits, 1, &error));
  g_clear_error(&error);
  g_assert_false(mask(r, 1, 0, allowed, 1, &error));
  g_clear_error(&error);
  g_assert_false(mask(r, 2, 0, allowed, 1, &error));
  g_clear_error(&error);
  g_assert_true(mask(r, 1, 1, allowed, 1, &error));
  g_assert_no_error(error);
  done(r, NULL);
  /* Too late for anybody, and no error. */
  g_assert_true(mask(r, 1, 1, allowed, 1, &error));
  g_assert_no_error(error);
}

/* ---------------------------------------------------------------- drafts */

static void
drafts_are_accepted_as_far_as_right(rig *r) {
  guint32 wanted[12];
  stream(r, 0, 5, 14, 12, wanted);
  prompt(r, 1, 5, 14);
  guint32 have = 1; /* outputs so far */
  for (guint32 right = 0; right < 4 && have + 4 < 12; right++) {
    oct_event event;
    guint32 drafts[3], n;
    for (guint32 i = 0; i < 3; i++) {
      drafts[i] = wanted[have + i];
      if (i == right)
        drafts[i] = drafts[i] == 5 ? 6 : 5;
    }
    rig_begin(r);
    rig_verify(r, 1, right == 0 ? 14 + have - 1 : OCT_POSITION_AFTER, drafts, 4);
    rig_submit(r);
    done(r, &event);
    const guint32 *tokens = rig_accepted(&event, 0, &n);
    g_assert_cmpuint(n, >=, 1);
    g_assert_cmpuint(n, <=, 4);
    g_assert_cmpuint(n, ==, right + 1);
    g_assert_cmpmem(tokens, n * sizeof *tokens, wanted + have, n * sizeof *tokens);
    have += n;
  }
  g_assert_cmpuint(have, >=, 7);
  /* What was rejected is not there: plain decoding goes on from what was accepted. */
  while (have < 12) {
    rig_begin(r);
    rig_decode(r, 1, 14 + have - 1);
    rig_submit(r);
    done(r, NULL);
    have++;
  }
  g_assert_cmpmem(&g_array_index(r->ids[1], guint32, 14), sizeof wanted, wanted, sizeof wanted);
}

static void
nothing_is_accepted_past_the_end(rig *r) {
  guint32 wanted[6];
  stream(r, 0, 5, 14, 6, wanted);
  oct_event event;
  guint32 n;
  rig_begin(r);
  rig_sequence(r, 1, 5, 14, 3); /* ends with its third output */
  rig_prefill(r, 1, 0, 14, OCT_SAMPLE_LAST);
  rig_submit(r);
  done(r, NULL);
  guint32 drafts[3] = {wanted[1], FIXTURE_EOS, wanted[3]};
  rig_begin(r);
  rig_verify(r, 1, 14, drafts, 4);
  rig_submit(r);
  done(r, &event);
  const guint32 *tokens = rig_accepted(&event, 0, &n);
  g_assert_cmpuint(n, ==, 2);
  g_assert_cmpuint(tokens[1], ==, FIXTURE_EOS);
}

/* ---------------------------------------------------------------- adapters and experts */

static void
adapters_make_a_difference(rig *r) {
  oct_event event;
  guint32 n, tokens[3]; /* plain, adapted, plain again */
  for (int round = 0; round < 3; round++) {
    rig_begin(r);
    rig_sequence(r, 0, 5, 14, 0);
    rig_prefill(r, 0, 0, 14, OCT_SAMPLE_LAST)->adapter = round == 1 ? 3 : 0;
    rig_submit(r);
    done(r, &event);
    tokens[round] = rig_accepted(&event, 0, &n)[0];
  }
  g_assert_cmpuint(tokens[0], ==, tokens[2]);
  if (r->simulated)
    g_assert_cmpuint(tokens[0], !=, tokens[1]);
}

static void
missed_experts_are_told_until_loaded(rig *r) {
  oct_event event;
  guint32 layer = 0, expert = 0, n_used[FIXTURE_EXPERTS] = {0};
  rig_begin(r);
  rig_sequence(r, 0, 5, 20, 0);
  rig_prefill(r, 0, 0, 20, OCT_SAMPLE_LAST);
  rig_submit(r);
  done(r, &event);
  g_assert_cmpuint(event.result->n_experts, >, 0);
  for (guint32 i = 0; i < event.result->n_experts; i++) {
    const oct_expert_use *use = &oct_result_experts(event.result)[i];
    g_assert_cmpuint(use->missed, ==, 1); /* nothing was ever loaded */
    g_assert_cmpuint(use->tokens, >=, 1);
    if (use->layer == 2 && use->tokens > n_used[expert]) {
      layer = use->layer;
      expert = use->expert;
      n_used[expert] = use->tokens;
    }
  }
  g_assert_cmpuint(layer, ==, 2);
  oct_copy copy = {.kind = OCT_COPY_EXPERT,
                   .order = OCT_COPY_BESIDE,
                   .from_tier = OCT_TIER_HOST,
                   .group = 2,
                   .from = expert,
                   .to = 6};
  g_assert_cmpint(oct_world_copy(r->world, r->instance, 1, &copy, 1, NULL), ==, OCT_SUBMIT_OK);
  rig_until(r, OCT_EVENT_COPY_DONE, 1, NULL);
  for (int round = 0; round < 2; round++) {
    rig_begin(r);
    rig_sequence(r, 0, 5, 20, 0);
    rig_prefill(r, 0, 0, 20, OCT_SAMPLE_LAST);
    oct_expert_change *change = oct_step_add_expert(r->builder);
    change->layer = 2;
    change->expert = expert;
    change->slot = round == 0 ? 6 : OCT_NO_INDEX;
    rig_submit(r);
    done(r, &event);
    gboolean seen = FALSE;
    for (guint32 i = 0; i < event.result->n_experts; i++) {
      const oct_expert_use *use = &oct_result_experts(event.result)[i];
      if (use->layer != 2 || use->expert != expert)
        continue;
      seen = TRUE;
      g_assert_cmpuint(use->missed, ==, round);
    }
    g_assert_true(seen);
  }
}

/* ---------------------------------------------------------------- fast-forward */

static void
start_three(rig *r) {
  rig_begin(r);
  for (guint32 i = 0; i < 3; i++) {
    rig_sequence(r, i, 20 + i, 10, i == 1 ? 9 : 0);
    rig_prefill(r, i, 0, 10, OCT_SAMPLE_LAST);
  }
  rig_submit(r);
  done(r, NULL);
  rig_begin(r);
  for (guint32 i = 0; i < 3; i++)
    rig_decode(r, i, 10);
  rig_submit(r);
}

/* Slot 1 ends with its ninth output, which step 9 samples: m = 2 to 8 can be retired unseen. */
static void
forward_stops_before_an_end(rig *r) {
  oct_event event;
  oct_forwarded retired = {0};
  start_three(r);
  oct_time last = r->world->now_ns;
  guint32 n = 0;
  while (oct_world_forward(r->world, r->instance,
                           &(oct_forward){.limit_ns = OCT_TIME_NEVER, .submit_ns = last},
                           &retired)) {
    g_assert_cmpint(retired.start_ns, >=, last);
    g_assert_cmpint(retired.end_ns, >, retired.start_ns);
    last = retired.end_ns;
    n++;
    g_assert_cmpuint(n, <, 100);
  }
  g_assert_cmpuint(n, ==, 7);
  /* It is as late as the last of them ended. */
  g_assert_true(oct_world_next(r->world, last / 2, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_TIMER);
  g_assert_cmpint(event.time_ns, ==, last);
  g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_STEP_DONE);
  g_assert_cmpuint(event.number, ==, 9);
  g_assert_cmpint(event.result->end_ns, >, last);
  guint32 count;
  g_assert_cmpuint(rig_accepted(&event, 1, &count)[0], ==, FIXTURE_EOS);
  guint32 token = rig_accepted(&event, 0, &count)[0];
  /* The others go on where they are, and get what they get step by step. */
  r->n_flights = 0;
  r->number = 9;
  rig_begin(r);
  rig_decode(r, 0, 18);
  rig_submit(r);
  done(r, &event);
  guint32 wanted[10];
  stream(r, 5, 20, 10, 10, wanted);
  g_assert_cmpuint(token, ==, wanted[8]);
}

static void
forward_changes_nothing_when_refused(rig *r) {
  oct_event event;
  oct_forwarded retired;
  start_three(r);
  oct_time now = r->world->now_ns;
  /* A limit before the end; a submission after it. */
  g_assert_false(oct_world_forward(r->world, r->instance,
                                   &(oct_forward){.limit_ns = now, .submit_ns = now}, &retired));
  g_assert_false(oct_world_forward(
      r->world, r->instance,
      &(oct_forward){.limit_ns = OCT_TIME_NEVER, .submit_ns = now + (oct_time)1000000000},
      &retired));
  /* A wake-up that waits. */
  oct_world_wake(r->world);
  g_assert_false(oct_world_forward(r->world, r->instance,
                                   &(oct_forward){.limit_ns = OCT_TIME_NEVER, .submit_ns = now},
                                   &retired));
  rig_until(r, OCT_EVENT_WAKE, 0, NULL);
  /* A copy that ends first. */
  if (r->capabilities.host_tier) {
    oct_copy copy = {.order = OCT_COPY_BESIDE, .from_tier = OCT_TIER_HOST, .to = 60};
    g_assert_cmpint(oct_world_copy(r->world, r->instance, 1, &copy, 1, NULL), ==, OCT_SUBMIT_OK);
    g_assert_false(oct_world_forward(r->world, r->instance,
                                     &(oct_forward){.limit_ns = OCT_TIME_NEVER, .submit_ns = now},
                                     &retired));
    rig_expect(r, OCT_EVENT_COPY_DONE, 1, NULL);
  }
  rig_until(r, OCT_EVENT_STEP_DONE, 2, &event);
  /* Two steps in flight, if it takes two. */
  g_assert_cmpuint(event.result->n_slices, ==, 3);
  if (r->capabilities.depth < 2)
    return;
  for (guint32 i = 0; i < 2; i++) {
    rig_begin(r);
    rig_decode(r, 0, 11 + i);
    rig_submit(r);
  }
  now = r->world->now_ns;
  g_assert_false(oct_world_forward(r->world, r->instance,
                                   &(oct_forward){.limit_ns = OCT_TIME_NEVER, .submit_ns = now},
                                   &retired));
  rig_until(r, OCT_EVENT_STEP_DONE, 3, NULL);
  rig_until(r, OCT_EVENT_STEP_DONE, 4, NULL);
}

static void
forward_stops_for_another_instance(rig *r) {
  oct_event event;
  oct_forwarded retired;
  rig other;
  rig_init(&other, r->world, &r->config);
  rig_open(&other);
  start_three(r);
  rig_begin(&other); /* ends no later: it has less to do, and devices of its own or the same */
  rig_sequence(&other, 0, 5, 4, 0);
  rig_prefill(&other, 0, 0, 1, OCT_SAMPLE_NONE);
  rig_submit(&other);
  oct_time now = r->world->now_ns;
  guint32 n = 0;
  oct_time last = now;
  while (oct_world_forward(r->world, r->instance,
                           &(oct_forward){.limit_ns = OCT_TIME_NEVER, .submit_ns = last},
                           &retired)) {
    last = retired.end_ns;
    n++;
  }
  /* Whatever was retired ended before the other's step, of which the event is still to come. */
  do
    g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
  while (event.instance != other.instance);
  g_assert_cmpint(event.kind, ==, OCT_EVENT_STEP_DONE);
  g_assert_cmpint(event.time_ns, >=, last);
  g_assert_cmpuint(n, <, 7); /* and not the whole stretch */
  rig_close(&other);
  rig_clear(&other);
}

static void
forward_wants_plain_decodes(rig *r) {
  oct_forwarded retired;
  rig_begin(r);
  rig_sequence(r, 0, 5, 10, 0);
  rig_prefill(r, 0, 0, 9, OCT_SAMPLE_NONE);
  rig_submit(r);
  g_assert_false(oct_world_forward(r->world, r->instance,
                                   &(oct_forward){.limit_ns = OCT_TIME_NEVER}, &retired));
  done(r, NULL);
}

const contract_case contract_extra_cases[] = {
    {"29-early-mask-is-obeyed", CONTRACT_DENSE, NEEDS_MASKS, early_mask_is_obeyed},
    {"30-late-mask-stalls-its-step", CONTRACT_DENSE, NEEDS_MASKS, late_mask_stalls_its_step},
    {"31-wrong-masks-are-refused", CONTRACT_DENSE, NEEDS_MASKS, wrong_masks_are_refused},
    {"32-drafts-are-accepted-as-far-as-right", CONTRACT_HYBRID, NEEDS_SPECULATION,
     drafts_are_accepted_as_far_as_right},
    {"32-nothing-is-accepted-past-the-end", CONTRACT_HYBRID, NEEDS_SPECULATION | NEEDS_SIMULATED,
     nothing_is_accepted_past_the_end},
    {"33-adapters-make-a-difference", CONTRACT_DENSE, NEEDS_ADAPTERS, adapters_make_a_difference},
    {"34-missed-experts-are-told-until-loaded", CONTRACT_EXPERTS, NEEDS_EXPERTS,
     missed_experts_are_told_until_loaded},
    {"39-forward-stops-before-an-end", CONTRACT_BARE, NEEDS_FORWARD | NEEDS_SIMULATED,
     forward_stops_before_an_end},
    {"39-forward-changes-nothing-when-refused", CONTRACT_BARE, NEEDS_FORWARD | NEEDS_SIMULATED,
     forward_changes_nothing_when_refused},
    {"39-forward-stops-for-another-instance", CONTRACT_BARE, NEEDS_FORWARD | NEEDS_SIMULATED,
     forward_stops_for_another_instance},
    {"39-forward-wants-plain-decodes", CONTRACT_BARE, NEEDS_FORWARD | NEEDS_SIMULATED,
     forward_wants_plain_decodes},
    {NULL, 0, 0, NULL}};
