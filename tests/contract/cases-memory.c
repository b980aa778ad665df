/* Rules 23 to 28: tables, state, copies. Every step here carries tags, so that a simulated backend
 * compares what a sequence reads with its own tokens; on others the tokens show it. */
#include <string.h>

#include "tests/contract/contract.h"

static void
done(rig *r) {
  rig_until(r, OCT_EVENT_STEP_DONE, 0, NULL);
}

static void
submit_decode(rig *r, guint32 slot, guint32 position) {
  rig_begin(r);
  rig_decode(r, slot, position);
  rig_submit(r);
}

static void
prompt(rig *r, guint32 slot, guint64 key, guint32 n) {
  rig_begin(r);
  rig_sequence(r, slot, key, n, 0);
  rig_prefill(r, slot, 0, n, OCT_SAMPLE_LAST);
  rig_submit(r);
  done(r);
}

/* The tokens that a sequence with this key and prompt gets, computed alone in slot 7. */
static void
reference(rig *r, guint64 key, guint32 n_prompt, guint32 n, guint32 *tokens) {
  prompt(r, 7, key, n_prompt);
  for (guint32 i = 1; i < n; i++) {
    submit_decode(r, 7, n_prompt + i - 1);
    done(r);
  }
  memcpy(tokens, &g_array_index(r->ids[7], guint32, n_prompt), n * sizeof *tokens);
}

static void
assert_tokens(const rig *r, guint32 slot, guint32 from, const guint32 *wanted, guint32 n) {
  g_assert_cmpuint(r->ids[slot]->len, >=, from + n);
  g_assert_cmpmem(&g_array_index(r->ids[slot], guint32, from), n * sizeof *wanted, wanted,
                  n * sizeof *wanted);
}

static void
beside(rig *r, guint64 ticket, const oct_copy *copies, guint32 n) {
  g_autoptr(GError) error = NULL;
  g_assert_cmpint(oct_world_copy(r->world, r->instance, ticket, copies, n, &error), ==,
                  OCT_SUBMIT_OK);
  g_assert_no_error(error);
}

/* ---------------------------------------------------------------- tables */

static void
tables_carry_changes_only(rig *r) {
  guint32 wanted[24];
  reference(r, 5, 10, 24, wanted);
  rig_begin(r);
  rig_slot(r, 0, 5, 10, 0);
  rig_pages(r, 0, 0, 0, 1, 3);
  rig_prefill(r, 0, 0, 10, OCT_SAMPLE_LAST);
  rig_submit(r);
  done(r);
  for (guint32 p = 10; p < 33; p++) {
    rig_begin(r);
    if (p == 16)
      rig_pages(r, 0, 0, 1, 1, 9); /* one page when it is needed, and what was stays */
    if (p == 30)
      rig_pages(r, 0, 0, 2, 1, 1); /* before it is needed */
    rig_decode(r, 0, p);
    rig_submit(r);
    done(r);
  }
  assert_tokens(r, 0, 10, wanted, 24);
}

static void
windows_give_pages_up(rig *r) {
  guint32 wanted[64];
  reference(r, 5, 40, 64, wanted);
  prompt(r, 0, 5, 40);
  for (guint32 p = 40; p < 103; p++) {
    rig_begin(r);
    /* Token p sees p - 31 and on. Pages below go back, and come again further up. */
    guint32 live = (p - 31) / 16;
    if (p % 16 == 15) {
      rig_first_live(r, 0, FIXTURE_WINDOW, live);
      if (live > 0)
        rig_pages(r, 0, FIXTURE_WINDOW, live + 3, 1, (live - 1) % 8);
    }
    rig_decode(r, 0, p);
    rig_submit(r);
    done(r);
  }
  assert_tokens(r, 0, 40, wanted, 64);
}

/* ---------------------------------------------------------------- state */

static void
first_token_starts_from_empty_state(rig *r) {
  guint32 wanted[4];
  reference(r, 5, 10, 4, wanted);
  /* Slot 0 has a state that another sequence used. */
  prompt(r, 0, 6, 20);
  prompt(r, 0, 5, 10);
  for (guint32 p = 10; p < 13; p++) {
    submit_decode(r, 0, p);
    done(r);
  }
  assert_tokens(r, 0, 10, wanted, 4);
}

/* A snapshot of the state at 32, taken after the step that ends there; a second sequence with the
 * same prompt has its pages, restores the state and goes on from 32. */
static void
snapshot_is_where_its_step_ended(rig *r) {
  guint32 wanted[4];
  reference(r, 5, 40, 4, wanted);
  rig_begin(r);
  rig_sequence(r, 0, 5, 40, 0);
  rig_prefill(r, 0, 0, 32, OCT_SAMPLE_NONE);
  rig_copy(r, OCT_COPY_STATE, OCT_COPY_AFTER, FIXTURE_STATE, 0, 60);
  rig_submit(r);
  rig_begin(r); /* the state moves on, the snapshot does not */
  rig_prefill(r, 0, 32, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  done(r);
  done(r);
  rig_begin(r);
  rig_slot(r, 1, 5, 40, 0);
  rig_state(r, 1, FIXTURE_STATE, 1);
  rig_copy(r, OCT_COPY_STATE, OCT_COPY_BEFORE, FIXTURE_STATE, 60, 1);
  for (guint32 g = FIXTURE_PAGES; g <= FIXTURE_WINDOW; g++) {
    rig_pages(r, 1, g, 0, 2, 0);
    rig_pages(r, 1, g, 2, 1, 8);
  }
  rig_prefill(r, 1, 32, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  done(r);
  for (guint32 p = 40; p < 43; p++) {
    submit_decode(r, 1, p);
    done(r);
  }
  assert_tokens(r, 1, 40, wanted, 4);
}

/* ---------------------------------------------------------------- copies */

static void
copy_before_is_seen_by_the_step(rig *r) {
  guint32 wanted[3];
  reference(r, 5, 20, 3, wanted);
  prompt(r, 0, 5, 20);
  /* A second sequence shares the full page and has a copy of the partial one, which both write. */
  rig_begin(r);
  rig_slot(r, 1, 5, 20, 0);
  rig_pages(r, 1, 0, 0, 1, 0);
  rig_pages(r, 1, 0, 1, 1, 8);
  rig_copy(r, OCT_COPY_PAGE, OCT_COPY_BEFORE, 0, 1, 8);
  rig_decode(r, 0, 20);
  rig_prefill(r, 1, 19, 1, OCT_SAMPLE_LAST);
  rig_submit(r);
  done(r);
  for (guint32 p = 20; p < 22; p++) {
    rig_begin(r);
    rig_decode(r, 0, p + 1);
    rig_decode(r, 1, p);
    rig_submit(r);
    done(r);
  }
  assert_tokens(r, 0, 20, wanted, 3);
  assert_tokens(r, 1, 20, wanted, 3);
}

static void
copy_after_takes_what_the_step_wrote(rig *r) {
  guint32 wanted[3];
  reference(r, 5, 20, 3, wanted);
  rig_begin(r);
  rig_sequence(r, 0, 5, 20, 0);
  rig_prefill(r, 0, 0, 20, OCT_SAMPLE_LAST);
  rig_copy(r, OCT_COPY_PAGE, OCT_COPY_AFTER, 0, 0, 20);
  rig_copy(r, OCT_COPY_PAGE, OCT_COPY_AFTER, 0, 1, 21);
  rig_submit(r);
  rig_begin(r); /* runs when they are done, and writes the source */
  rig_decode(r, 0, 20);
  rig_submit(r);
  done(r);
  done(r);
  rig_begin(r);
  rig_slot(r, 1, 5, 20, 0);
  rig_pages(r, 1, 0, 0, 2, 20);
  rig_prefill(r, 1, 19, 1, OCT_SAMPLE_LAST);
  rig_submit(r);
  done(r);
  for (guint32 p = 20; p < 22; p++) {
    submit_decode(r, 1, p);
    done(r);
  }
  assert_tokens(r, 1, 20, wanted, 3);
}

static void
ticket_comes_once_after_all_its_copies(rig *r) {
  oct_event event;
  oct_copy copies[4];
  for (guint32 i = 0; i < 4; i++)
    copies[i] = (oct_copy){.order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST, .from = i, .to = i};
  beside(r, 77, copies, 3);
  beside(r, 78, copies + 3, 1);
  guint seen[2] = {0};
  for (int i = 0; i < 2; i++) {
    g_assert_true(rig_next(r, OCT_TIME_NEVER, &event));
    g_assert_cmpstr(oct_event_name(event.kind), ==, "COPY_DONE");
    g_assert_cmpuint(event.failed, ==, 0);
    g_assert_true(event.number == 77 || event.number == 78);
    seen[event.number - 77]++;
  }
  g_assert_cmpuint(seen[0], ==, 1);
  g_assert_cmpuint(seen[1], ==, 1);
  g_assert_true(rig_next(r, r->world->now_ns + 5000000, &event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "TIMER");
}

static void
wrong_copies_are_refused(rig *r) {
  oct_copy copy = {.order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST};
  const struct {
    oct_copy copy;
    const char *what;
  } bad[] = {
      {{.order = OCT_COPY_AFTER, .to_tier = OCT_TIER_HOST}, "copies[0].order"},
      {{.order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST, .from = 64}, "copies[0].from"},
      {{.order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST, .to = 32}, "copies[0].to"},
      {{.order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST, .group = 1}, "copies[0].group"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_cmpint(oct_world_copy(r->world, r->instance, 1, &bad[i].copy, 1, &error), ==,
                    OCT_SUBMIT_REFUSED);
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD);
    g_assert_nonnull(strstr(error->message, bad[i].what));
  }
  beside(r, 1, &copy, 1);
  g_autoptr(GError) error = NULL;
  g_assert_cmpint(oct_world_copy(r->world, r->instance, 1, &copy, 1, &error), ==,
                  OCT_SUBMIT_REFUSED); /* the ticket is in flight */
  rig_until(r, OCT_EVENT_COPY_DONE, 1, NULL);
}

/* Out to the host, the device's pages given to another, back to other places; and on. */
static void
offload_and_reload_keep_content(rig *r) {
  guint32 wanted[6], n = 0;
  oct_copy copies[7];
  reference(r, 5, 40, 6, wanted);
  prompt(r, 5, 9, 60); /* leaves its own behind in pages 40 to 43 */
  prompt(r, 0, 5, 40);
  submit_decode(r, 0, 40);
  done(r);
  copies[n++] = (oct_copy){.kind = OCT_COPY_STATE, .group = FIXTURE_STATE, .from = 0, .to = 4};
  for (guint16 g = FIXTURE_PAGES; g <= FIXTURE_WINDOW; g++)
    for (guint32 i = 0; i < 3; i++)
      copies[n++] = (oct_copy){.kind = OCT_COPY_PAGE, .group = g, .from = i, .to = 10 + i};
  for (guint32 i = 0; i < n; i++) {
    copies[i].order = OCT_COPY_BESIDE;
    copies[i].to_tier = OCT_TIER_HOST;
  }
  beside(r, 1, copies, n);
  rig_until(r, OCT_EVENT_COPY_DONE, 1, NULL);
  g_autoptr(GArray) ids = g_array_copy(r->ids[0]);
  prompt(r, 0, 6, 60); /* another takes the slot, its pages and its state */
  for (guint32 i = 0; i < n; i++) {
    oct_copy *c = &copies[i];
    c->from_tier = OCT_TIER_HOST;
    c->to_tier = OCT_TIER_DEVICE;
    c->from = c->to;
    c->to = c->kind == OCT_COPY_STATE ? 40 : 30 + c->from;
  }
  beside(r, 2, copies, n);
  rig_until(r, OCT_EVENT_COPY_DONE, 2, NULL);
  rig_begin(r);
  rig_slot(r, 3, 5, 40, 0);
  rig_state(r, 3, FIXTURE_STATE, 40);
  rig_pages(r, 3, FIXTURE_PAGES, 0, 3, 40);
  rig_pages(r, 3, FIXTURE_WINDOW, 0, 3, 40);
  g_array_set_size(r->ids[3], 0);
  g_array_append_vals(r->ids[3], ids->data, ids->len);
  rig_prefill(r, 3, 41, 1, OCT_SAMPLE_LAST)->flags = 0; /* the token it had accepted last */
  rig_submit(r);
  done(r);
  for (guint32 p = 42; p < 45; p++) {
    submit_decode(r, 3, p);
    done(r);
  }
  assert_tokens(r, 3, 40, wanted, 6);
}

/* ---------------------------------------------------------------- what an engine must never do */

static void
expect_fatal(rig *r) {
  oct_event event;
  rig_until(r, OCT_EVENT_FAULT, 0, &event);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_FATAL);
  g_assert_cmpuint(strlen(event.fault->message), >, 10);
  g_test_message("%s", event.fault->message);
  g_autoptr(GError) error = NULL;
  rig_begin(r);
  g_assert_cmpint(oct_world_submit(r->world, r->instance, rig_end(r), &error), ==,
                  OCT_SUBMIT_REFUSED);
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
}

static void
other_tokens_are_found(rig *r) {
  prompt(r, 0, 5, 16);
  rig_begin(r);
  rig_slot(r, 1, 6, 20, 0);
  rig_pages(r, 1, 0, 0, 1, 0); /* of another prompt */
  rig_pages(r, 1, 0, 1, 1, 8);
  rig_prefill(r, 1, 16, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_fatal(r);
}

static void
stale_state_is_found(rig *r) {
  prompt(r, 0, 5, 16);
  submit_decode(r, 0, 16);
  done(r);
  rig_begin(r);
  rig_sequence(r, 1, 5, 20, 0);
  rig_state(r, 1, FIXTURE_STATE, 0);
  for (guint32 g = FIXTURE_PAGES; g <= FIXTURE_WINDOW; g++)
    rig_pages(r, 1, g, 0, 1, 0);
  rig_prefill(r, 1, 16, 4, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_fatal(r);
}

static void
double_use_is_found(rig *r) {
  prompt(r, 0, 5, 8);
  oct_copy copy = {.order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST};
  beside(r, 1, &copy, 1);
  submit_decode(r, 0, 8); /* writes the page that is being copied */
  expect_fatal(r);
}

const contract_case contract_memory_cases[] = {
    {"23-tables-carry-changes-only", CONTRACT_DENSE, 0, tables_carry_changes_only},
    {"23-windows-give-pages-up", CONTRACT_HYBRID, 0, windows_give_pages_up},
    {"24-first-token-starts-from-empty-state", CONTRACT_HYBRID, 0,
     first_token_starts_from_empty_state},
    {"24-snapshot-is-where-its-step-ended", CONTRACT_HYBRID, 0, snapshot_is_where_its_step_ended},
    {"25-copy-before-is-seen-by-the-step", CONTRACT_DENSE, 0, copy_before_is_seen_by_the_step},
    {"25-copy-after-takes-what-the-step-wrote", CONTRACT_DENSE, 0,
     copy_after_takes_what_the_step_wrote},
    {"26-ticket-comes-once-after-all-its-copies", CONTRACT_DENSE, NEEDS_HOST,
     ticket_comes_once_after_all_its_copies},
    {"26-wrong-copies-are-refused", CONTRACT_DENSE, NEEDS_HOST, wrong_copies_are_refused},
    {"27-offload-and-reload-keep-content", CONTRACT_HYBRID, NEEDS_HOST,
     offload_and_reload_keep_content},
    {"28-other-tokens-are-found", CONTRACT_DENSE, NEEDS_SIMULATED, other_tokens_are_found},
    {"28-stale-state-is-found", CONTRACT_HYBRID, NEEDS_SIMULATED, stale_state_is_found},
    {"28-double-use-is-found", CONTRACT_DENSE, NEEDS_SIMULATED | NEEDS_HOST, double_use_is_found},
    {NULL, 0, 0, NULL}};
