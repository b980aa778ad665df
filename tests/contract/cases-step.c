/* Rules 9 to 22: steps, positions, tokens. */
#include <string.h>

#include "tests/contract/contract.h"

static void
submit_prompt(rig *r, guint32 slot, guint64 key, guint32 n) {
  rig_begin(r);
  rig_sequence(r, slot, key, n, 0);
  rig_prefill(r, slot, 0, n, OCT_SAMPLE_LAST);
  rig_submit(r);
}

static void
done(rig *r, oct_event *event) {
  rig_until(r, OCT_EVENT_STEP_DONE, 0, event);
}

/* Runs a sequence in slot 0 for n outputs and copies its tokens out. */
static void
stream(rig *r, guint32 slot, guint64 key, guint32 prompt, guint32 n, guint32 *tokens) {
  submit_prompt(r, slot, key, prompt);
  done(r, NULL);
  for (guint32 i = 1; i < n; i++) {
    rig_begin(r);
    rig_decode(r, slot, prompt + i - 1);
    rig_submit(r);
    done(r, NULL);
  }
  memcpy(tokens, &g_array_index(r->ids[slot], guint32, prompt), n * sizeof *tokens);
}

/* ---------------------------------------------------------------- numbers and records */

static void
expect_refused(rig *r, const oct_step *step, const char *what) {
  g_autoptr(GError) error = NULL;
  g_assert_cmpint(oct_world_submit(r->world, r->instance, step, &error), ==, OCT_SUBMIT_REFUSED);
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD);
  g_assert_nonnull(strstr(error->message, what));
}

static void
steps_are_numbered_without_gaps(rig *r) {
  rig_begin(r);
  rig_sequence(r, 0, 1, 8, 0);
  rig_prefill(r, 0, 0, 8, OCT_SAMPLE_LAST);
  const oct_step *step = rig_end(r);
  g_autofree oct_step *wrong = g_memdup2(step, step->bytes);
  wrong->number = 2;
  expect_refused(r, wrong, "number");
  /* Nothing was taken: the right one is still the first. */
  g_assert_cmpint(oct_world_submit(r->world, r->instance, step, NULL), ==, OCT_SUBMIT_OK);
  expect_refused(r, step, "number");
  oct_event event;
  rig_until(r, OCT_EVENT_STEP_DONE, 1, &event);
  g_assert_cmpuint(event.result->n_slices, ==, 1);
}

static void
malformed_records_are_refused(rig *r) {
  rig_begin(r);
  rig_sequence(r, 0, 1, 8, 0);
  rig_prefill(r, 0, 0, 8, OCT_SAMPLE_LAST);
  const oct_step *step = rig_end(r);
  g_autofree oct_step *bad = g_memdup2(step, step->bytes);
  oct_slice *slice = (oct_slice *)(void *)((guint8 *)bad + bad->slices);
  slice->slot = r->config.max_slots;
  expect_refused(r, bad, "slices[0].slot");
  slice->slot = 0;
  oct_page_change *change = (oct_page_change *)(void *)((guint8 *)bad + bad->changes);
  guint32 page = change->page;
  change->page = r->config.memory.groups[0].n_device;
  expect_refused(r, bad, "changes[0].page");
  change->page = page;
  ((guint32 *)(void *)((guint8 *)bad + bad->tokens))[3] = FIXTURE_VOCAB;
  expect_refused(r, bad, "tokens[3]");
  g_assert_cmpint(oct_world_submit(r->world, r->instance, step, NULL), ==, OCT_SUBMIT_OK);
  rig_until(r, OCT_EVENT_STEP_DONE, 1, NULL);
}

static void
full_at_the_depth(rig *r) {
  guint32 depth = r->capabilities.depth;
  for (guint32 i = 0; i < depth; i++)
    submit_prompt(r, i, i + 1, 8);
  rig_begin(r);
  rig_sequence(r, depth, 99, 8, 0);
  rig_prefill(r, depth, 0, 8, OCT_SAMPLE_LAST);
  const oct_step *step = rig_end(r);
  g_autoptr(GError) error = NULL;
  g_assert_cmpint(oct_world_submit(r->world, r->instance, step, &error), ==, OCT_SUBMIT_FULL);
  g_assert_no_error(error);
  rig_until(r, OCT_EVENT_STEP_DONE, 1, NULL);
  g_assert_cmpint(oct_world_submit(r->world, r->instance, step, &error), ==, OCT_SUBMIT_OK);
  for (guint32 i = 2; i <= depth; i++)
    rig_until(r, OCT_EVENT_STEP_DONE, i, NULL);
  oct_event event;
  g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
  g_assert_cmpuint(event.number, ==, depth + 1);
}

static void
steps_end_once_and_in_order(rig *r) {
  oct_event event;
  oct_time start = 0, end = 0;
  guint64 ended = 0;
  for (guint64 submitted = 0; ended < 12;) {
    for (; submitted < 12 && submitted - ended < r->capabilities.depth; submitted++)
      submit_prompt(r, submitted % 4, submitted, 8 + (guint32)submitted);
    rig_until(r, OCT_EVENT_STEP_DONE, ++ended, &event);
    const oct_step_result *result = event.result;
    g_assert_cmpuint(result->n_slices, ==, 1);
    g_assert_cmpint(result->start_ns, >=, start);
    g_assert_cmpint(result->end_ns, >=, result->start_ns);
    g_assert_cmpint(result->end_ns, >=, end);
    g_assert_cmpint(event.time_ns, >=, result->end_ns);
    start = result->start_ns;
    end = result->end_ns;
    gint64 sum = 0;
    for (int i = 0; i < OCT_PART_COUNT; i++) {
      g_assert_cmpint(result->part_ns[i], >=, 0);
      sum += result->part_ns[i];
    }
    g_assert_cmpint(sum, <=, end - start);
  }
}

/* ---------------------------------------------------------------- tokens */

static void
samples_what_was_asked(rig *r) {
  oct_event event;
  rig_begin(r);
  for (guint32 slot = 0; slot < 3; slot++) {
    rig_sequence(r, slot, slot + 1, 8, 0);
    rig_prefill(r, slot, 0, 8,
                slot == 0   ? OCT_SAMPLE_NONE
                : slot == 1 ? OCT_SAMPLE_LAST
                            : OCT_SAMPLE_ALL);
  }
  rig_submit(r);
  done(r, &event);
  static const guint32 wanted[3] = {0, 1, 8};
  for (guint32 i = 0; i < 3; i++) {
    guint32 n;
    const guint32 *tokens = rig_accepted(&event, i, &n);
    g_assert_cmpuint(n, ==, wanted[i]);
    for (guint32 k = 0; k < n; k++)
      g_assert_cmpuint(tokens[k], <, FIXTURE_VOCAB);
  }
}

static void
token_on_the_device_is_the_id_told(rig *r) {
  guint32 by_device[6];
  stream(r, 0, 7, 10, 6, by_device);
  /* The same, with each token handed back by its id. */
  submit_prompt(r, 1, 7, 10);
  done(r, NULL);
  for (guint32 i = 1; i < 6; i++) {
    rig_begin(r);
    rig_prefill(r, 1, 10 + i - 1, 1, OCT_SAMPLE_LAST)->flags = 0;
    rig_submit(r);
    done(r, NULL);
  }
  g_assert_cmpmem(by_device, sizeof by_device, &g_array_index(r->ids[1], guint32, 10),
                  sizeof by_device);
}

static void
after_is_the_next_position(rig *r) {
  guint32 by_number[6];
  stream(r, 0, 7, 10, 6, by_number);
  submit_prompt(r, 1, 7, 10);
  guint64 ended = r->number - 1;
  for (guint32 i = 1; i < 6; i++) {
    if (r->number - ended == r->capabilities.depth)
      rig_until(r, OCT_EVENT_STEP_DONE, ++ended, NULL);
    rig_begin(r);
    rig_decode(r, 1, OCT_POSITION_AFTER);
    rig_submit(r);
  }
  while (ended < r->number)
    rig_until(r, OCT_EVENT_STEP_DONE, ++ended, NULL);
  g_assert_cmpmem(by_number, sizeof by_number, &g_array_index(r->ids[1], guint32, 10),
                  sizeof by_number);
}

static void
equal_keys_sample_equal_tokens(rig *r) {
  guint32 alone[4];
  stream(r, 0, 7, 10, 4, alone);
  /* In another slot, among others, the prompt in three chunks. */
  static const guint32 cuts[4] = {0, 3, 4, 10};
  for (guint32 chunk = 0; chunk < 3; chunk++) {
    rig_begin(r);
    if (chunk == 0) {
      rig_sequence(r, 1, 50, 12, 0);
      rig_sequence(r, 2, 7, 10, 0);
      rig_prefill(r, 1, 0, 12, OCT_SAMPLE_LAST);
    } else {
      rig_decode(r, 1, 12 + chunk - 1);
    }
    rig_prefill(r, 2, cuts[chunk], cuts[chunk + 1] - cuts[chunk],
                chunk == 2 ? OCT_SAMPLE_LAST : OCT_SAMPLE_NONE);
    rig_submit(r);
    done(r, NULL);
  }
  for (guint32 i = 1; i < 4; i++) {
    rig_begin(r);
    rig_decode(r, 2, 10 + i - 1);
    rig_submit(r);
    done(r, NULL);
  }
  g_assert_cmpmem(alone, sizeof alone, &g_array_index(r->ids[2], guint32, 10), sizeof alone);
}

static void
ends_where_the_oracle_says(rig *r) {
  oct_event event;
  rig_begin(r);
  rig_sequence(r, 0, 7, 10, 3);
  rig_sequence(r, 1, 8, 10, 0);
  rig_prefill(r, 0, 0, 10, OCT_SAMPLE_LAST);
  rig_prefill(r, 1, 0, 10, OCT_SAMPLE_LAST);
  rig_submit(r);
  for (guint32 i = 0; i < 6; i++) {
    done(r, &event);
    for (guint32 k = 0; k < 2; k++) {
      guint32 n;
      guint32 token = rig_accepted(&event, k, &n)[0];
      if (k == 0 && i == 2)
        g_assert_cmpuint(token, ==, FIXTURE_EOS);
      else
        g_assert_cmpuint(token, !=, FIXTURE_EOS);
    }
    rig_begin(r);
    rig_decode(r, 0, 10 + i); /* past its end: it rides along, and nobody minds */
    rig_decode(r, 1, 10 + i);
    rig_submit(r);
  }
  done(r, NULL);
}

static void
reopening_replaces(rig *r) {
  guint32 first[4], second[4], again[4];
  stream(r, 0, 7, 10, 4, first);
  stream(r, 0, 8, 10, 4, second);
  stream(r, 0, 7, 10, 4, again);
  g_assert_cmpmem(first, sizeof first, again, sizeof again);
  g_assert_true(memcmp(first, second, sizeof first) != 0);
}

static void
runs_ahead(rig *r) {
  oct_event event;
  if (r->capabilities.depth < 2) {
    g_test_skip("depth is 1");
    return;
  }
  guint32 serial[8];
  stream(r, 0, 7, 10, 8, serial);
  submit_prompt(r, 1, 7, 10);
  guint64 first = r->number;
  for (guint32 i = 1; i < 8; i++) {
    rig_begin(r);
    rig_decode(r, 1, 10 + i - 1); /* its token is not known here yet */
    rig_submit(r);
    rig_until(r, OCT_EVENT_STEP_DONE, first + i - 1, &event);
  }
  rig_until(r, OCT_EVENT_STEP_DONE, first + 7, &event);
  g_assert_cmpmem(serial, sizeof serial, &g_array_index(r->ids[1], guint32, 10), sizeof serial);
}

static void
idle_domain_takes_part(rig *r) {
  oct_event event;
  rig_begin(r);
  rig_slot(r, 16, 7, 10, 0);
  rig_pages(r, 16, 0, 0, 2, 0);
  rig_prefill(r, 16, 0, 10, OCT_SAMPLE_LAST);
  const oct_step *step = rig_end(r);
  g_assert_cmpuint(oct_step_domains(step)[0].n_slices, ==, 0);
  g_assert_cmpint(oct_world_submit(r->world, r->instance, step, NULL), ==, OCT_SUBMIT_OK);
  g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_STEP_DONE);
  g_assert_cmpuint(event.result->n_slices, ==, 1);
  g_array_append_vals(r->ids[16], oct_result_tokens(event.result), 1);
  /* Both at once; pages 0 and 1 are each domain's own. */
  rig_begin(r);
  rig_slot(r, 0, 8, 10, 0);
  rig_pages(r, 0, 0, 0, 2, 0);
  rig_prefill(r, 0, 0, 10, OCT_SAMPLE_LAST);
  rig_decode(r, 16, 10);
  rig_submit(r);
  rig_until(r, OCT_EVENT_STEP_DONE, 2, &event);
  g_assert_cmpuint(event.result->n_slices, ==, 2);
}

/* Pairs of tokens and experts that a step reports of each layer with experts. */
static void
expect_pairs(const rig *r, const oct_event *event, guint32 n_tokens) {
  const oct_model_spec *spec = r->config.spec;
  const oct_expert_use *used = oct_result_experts(event->result);
  for (guint32 l = 0; l < spec->n_layers; l++) {
    guint32 pairs = 0;
    for (guint32 i = 0; i < event->result->n_experts; i++)
      pairs += used[i].layer == l ? used[i].tokens : 0;
    g_assert_cmpuint(pairs, ==, n_tokens * spec->ffn[spec->layers[l].ffn].top_k);
  }
}

/* A slot with a table of 2 pages in every group. */
static void
open_small(rig *r, guint32 slot, guint64 key, guint32 prompt) {
  for (guint32 g = 0; g < r->n_groups; g++)
    if (r->groups[g].kind == OCT_ATTENTION_KDA)
      rig_state(r, slot, g, slot);
    else
      rig_pages(r, slot, g, 0, 2, 2 * slot);
  rig_slot(r, slot, key, prompt, 0);
  rig_prefill(r, slot, 0, prompt, OCT_SAMPLE_LAST);
}

/* Experts are shared out over both domains: those of an idle one take part. */
static void
idle_domain_has_its_experts(rig *r) {
  oct_event event;
  rig_begin(r);
  open_small(r, 16, 7, 10);
  rig_submit(r);
  done(r, &event);
  expect_pairs(r, &event, 10);
  rig_begin(r);
  open_small(r, 0, 8, 20);
  rig_decode(r, 16, 10);
  rig_submit(r);
  rig_until(r, OCT_EVENT_STEP_DONE, 2, &event);
  g_assert_cmpuint(event.result->n_slices, ==, 2);
  expect_pairs(r, &event, 21);
}

/* A page has the tokens of both ranks: 40 of them are in two pages, and go on to be. */
static void
ranks_share_a_page(rig *r) {
  oct_event event;
  rig_begin(r);
  rig_pages(r, 0, 0, 0, 2, 5);
  rig_slot(r, 0, 7, 40, 0);
  rig_prefill(r, 0, 0, 25, OCT_SAMPLE_NONE);
  rig_submit(r);
  done(r, &event);
  rig_begin(r);
  rig_prefill(r, 0, 25, 15, OCT_SAMPLE_LAST);
  rig_pages(r, 1, 0, 0, 2, 9); /* the same in one piece */
  rig_slot(r, 1, 7, 40, 0);
  rig_prefill(r, 1, 0, 40, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_until(r, OCT_EVENT_STEP_DONE, 2, &event);
  for (guint32 p = 40; p < 63; p++) {
    rig_begin(r);
    rig_decode(r, 0, p);
    rig_decode(r, 1, p);
    rig_submit(r);
    rig_until(r, OCT_EVENT_STEP_DONE, 0, &event);
  }
  g_assert_cmpmem(r->ids[0]->data, 63 * sizeof(guint32), r->ids[1]->data, 63 * sizeof(guint32));
}

static void
logprobs_name_the_chosen_first(rig *r) {
  oct_event event;
  rig_begin(r);
  rig_sequence(r, 0, 1, 8, 0);
  rig_sequence(r, 1, 2, 8, 0);
  rig_prefill(r, 0, 0, 8, OCT_SAMPLE_LAST);
  rig_prefill(r, 1, 0, 8, OCT_SAMPLE_LAST)->n_logprobs = 3;
  rig_submit(r);
  done(r, &event);
  const oct_slice_result *s = oct_result_slices(event.result);
  g_assert_cmpuint(s[0].logprobs, ==, OCT_NO_INDEX);
  g_assert_cmpuint(s[1].logprobs, !=, OCT_NO_INDEX);
  g_assert_cmpuint(s[1].logprobs + 4, <=, event.result->n_logprobs);
  const oct_logprob *l = oct_result_logprobs(event.result) + s[1].logprobs;
  guint32 n;
  g_assert_cmpuint(l[0].token, ==, rig_accepted(&event, 1, &n)[0]);
  for (guint32 i = 0; i < 4; i++) {
    g_assert_cmpuint(l[i].token, <, FIXTURE_VOCAB);
    g_assert_cmpfloat(l[i].logprob, <=, 0);
  }
  g_assert_cmpfloat(l[1].logprob, >=, l[2].logprob);
}

static void
stages_overlap(rig *r) {
  oct_event event;
  oct_time end = 0;
  submit_prompt(r, 0, 1, 64);
  submit_prompt(r, 1, 2, 64);
  submit_prompt(r, 2, 3, 64);
  for (guint64 n = 1; n <= 3; n++) {
    rig_until(r, OCT_EVENT_STEP_DONE, n, &event);
    if (n > 1) /* it began before its predecessor ended: on the stage that was free */
      g_assert_cmpint(event.result->start_ns, <, end);
    end = event.result->end_ns;
  }
}

const contract_case contract_step_cases[] = {
    {"09-steps-are-numbered-without-gaps", CONTRACT_DENSE, 0, steps_are_numbered_without_gaps},
    {"10-malformed-records-are-refused", CONTRACT_DENSE, 0, malformed_records_are_refused},
    {"11-full-at-the-depth", CONTRACT_DENSE, 0, full_at_the_depth},
    {"11-full-at-the-depth-of-a-pipeline", CONTRACT_PIPE2, 0, full_at_the_depth},
    {"12-steps-end-once-and-in-order", CONTRACT_DENSE, 0, steps_end_once_and_in_order},
    {"12-steps-of-a-pipeline-end-in-order", CONTRACT_PIPE2, 0, steps_end_once_and_in_order},
    {"13-samples-what-was-asked", CONTRACT_DENSE, 0, samples_what_was_asked},
    {"14-token-on-the-device-is-the-id-told", CONTRACT_HYBRID, 0,
     token_on_the_device_is_the_id_told},
    {"15-after-is-the-next-position", CONTRACT_HYBRID, 0, after_is_the_next_position},
    {"15-after-is-the-next-position-in-a-pipeline", CONTRACT_PIPE2, 0, after_is_the_next_position},
    {"16-equal-keys-sample-equal-tokens", CONTRACT_HYBRID, 0, equal_keys_sample_equal_tokens},
    {"17-ends-where-the-oracle-says", CONTRACT_DENSE, NEEDS_SIMULATED, ends_where_the_oracle_says},
    {"18-reopening-replaces", CONTRACT_HYBRID, 0, reopening_replaces},
    {"19-runs-ahead", CONTRACT_HYBRID, 0, runs_ahead},
    {"20-idle-domain-takes-part", CONTRACT_DATA2, 0, idle_domain_takes_part},
    {"20-idle-domain-has-its-experts", CONTRACT_JOINT, 0, idle_domain_has_its_experts},
    {"23-ranks-share-a-page", CONTRACT_CONTEXT2, 0, ranks_share_a_page},
    {"21-logprobs-name-the-chosen-first", CONTRACT_DENSE, 0, logprobs_name_the_chosen_first},
    {"22-stages-overlap", CONTRACT_PIPE2, NEEDS_VIRTUAL, stages_overlap},
    {NULL, 0, 0, NULL}};
