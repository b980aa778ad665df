/* Rule 40: copies between instances of a world. The rig that a case gets is the one that pulls; the
 * peer is a second rig on another device. */
#include <string.h>

#include "tests/contract/contract.h"

/* Opens the peer with r's config, changed by `change`. */
static void
open_peer(rig *r, rig *peer, void (*change)(oct_instance_config *config)) {
  static const guint16 devices[] = {4, 5};
  oct_instance_config config = r->config;
  config.devices = devices;
  if (change != NULL)
    change(&config);
  rig_init(peer, r->world, &config);
  peer->simulated = r->simulated;
  rig_open(peer);
}

static void
end_peer(rig *peer) {
  if (peer->instance != 0)
    rig_close(peer);
  rig_clear(peer);
}

static void
done(rig *r) {
  rig_until(r, OCT_EVENT_STEP_DONE, 0, NULL);
}

static void
prompt(rig *r, guint32 slot, guint64 key, guint32 n) {
  rig_begin(r);
  rig_sequence(r, slot, key, n, 0);
  rig_prefill(r, slot, 0, n, OCT_SAMPLE_LAST);
  rig_submit(r);
  done(r);
}

static void
decode(rig *r, guint32 slot, guint32 position) {
  rig_begin(r);
  rig_decode(r, slot, position);
  rig_submit(r);
  done(r);
}

/* Copies of the first 3 pages in each group, and the state, of the peer's slot 0. */
static guint32
slot_copies(const rig *r, oct_copy *copies, guint32 to_page, guint32 to_state) {
  guint32 n = 0;
  for (guint16 g = 0; g < r->n_groups; g++) {
    gboolean state = r->groups[g].kind == OCT_ATTENTION_KDA;
    for (guint32 i = 0; i < (state ? 1 : 3); i++)
      copies[n++] = (oct_copy){.kind = state ? OCT_COPY_STATE : OCT_COPY_PAGE,
                               .order = OCT_COPY_BESIDE,
                               .group = g,
                               .from = i,
                               .to = state ? to_state : to_page + i};
  }
  return n;
}

static void
pull(rig *r, const rig *peer, guint32 peer_domain, guint64 ticket, const oct_copy *copies,
     guint32 n) {
  g_autoptr(GError) error = NULL;
  oct_submit answer =
      oct_world_pull(r->world, r->instance, peer->instance, peer_domain, ticket, copies, n, &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
}

/* One page of group 0, from the peer's page 0. */
static void
pull_page(rig *r, const rig *peer, guint64 ticket, guint32 to) {
  oct_copy copy = {.kind = OCT_COPY_PAGE, .order = OCT_COPY_BESIDE, .to = to};
  pull(r, peer, 0, ticket, &copy, 1);
}

static void
expect_copy(rig *r, guint64 ticket, guint32 failed) {
  oct_event event;
  rig_until(r, OCT_EVENT_COPY_DONE, ticket, &event);
  g_assert_cmpuint(event.failed, ==, failed);
}

static void
expect_fatal(rig *r) {
  oct_event event;
  do
    g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &event));
  while (event.kind != OCT_EVENT_FAULT);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_FATAL);
  g_assert_cmpuint(strlen(event.fault->message), >, 10);
  g_test_message("%s", event.fault->message);
}

/* Slot `slot` of r goes on from the peer's slot 0, whose prompt had n tokens, at the token that it
 * was given last: its pages from to_page on, its state in to_state. */
static void
submit_next(rig *r, const rig *peer, guint32 slot, guint64 key, guint32 n, guint32 to_page,
            guint32 to_state) {
  rig_begin(r);
  rig_slot(r, slot, key, n, 0);
  g_array_set_size(r->ids[slot], 0);
  g_array_append_vals(r->ids[slot], peer->ids[0]->data, peer->ids[0]->len);
  for (guint32 g = 0; g < r->n_groups; g++) {
    if (r->groups[g].kind == OCT_ATTENTION_KDA)
      rig_state(r, slot, g, to_state);
    else
      rig_pages(r, slot, g, 0, 3, to_page);
  }
  rig_prefill(r, slot, n, 1, OCT_SAMPLE_LAST);
  rig_submit(r);
}

/* ---------------------------------------------------------------- content */

/* The peer computes a prompt; the other goes on from its pages and state, as one alone would. */
static void
content_arrives(rig *r) {
  rig peer;
  oct_copy copies[8];
  open_peer(r, &peer, NULL);
  prompt(&peer, 0, 5, 40);
  guint32 n = slot_copies(r, copies, 30, 40);
  pull(r, &peer, 0, 9, copies, n);
  expect_copy(r, 9, 0);
  rig_close(&peer); /* nothing of it is needed any more */
  submit_next(r, &peer, 1, 5, 40, 30, 40);
  done(r);
  for (guint32 p = 41; p < 44; p++)
    decode(r, 1, p);
  prompt(r, 3, 5, 40);
  for (guint32 p = 40; p < 44; p++)
    decode(r, 3, p);
  g_assert_cmpuint(r->ids[1]->len, ==, 45);
  g_assert_cmpmem(r->ids[1]->data, 45 * sizeof(guint32), r->ids[3]->data, 45 * sizeof(guint32));
  end_peer(&peer);
}

/* From the peer's second domain into the first. */
static void
domains_are_each_its_own(rig *r) {
  static const guint16 devices[] = {4, 5};
  rig peer;
  oct_copy copies[8];
  oct_instance_config config = r->config;
  config.devices = devices;
  rig_init(&peer, r->world, &config);
  rig_open(&peer);
  rig_begin(&peer);
  rig_slot(&peer, 0, 6, 40, 0); /* the same pages of domain 0 hold something else */
  rig_pages(&peer, 0, 0, 0, 3, 0);
  rig_prefill(&peer, 0, 0, 40, OCT_SAMPLE_LAST);
  rig_slot(&peer, 16, 5, 40, 0);
  rig_pages(&peer, 16, 0, 0, 3, 0);
  rig_prefill(&peer, 16, 0, 40, OCT_SAMPLE_LAST);
  rig_submit(&peer);
  done(&peer);
  guint32 n = slot_copies(r, copies, 30, 0);
  pull(r, &peer, 1, 9, copies, n);
  expect_copy(r, 9, 0);
  g_array_set_size(peer.ids[0], 0);
  g_array_append_vals(peer.ids[0], peer.ids[16]->data, peer.ids[16]->len);
  submit_next(r, &peer, 1, 5, 40, 30, 0);
  done(r);
  end_peer(&peer);
}

/* ---------------------------------------------------------------- leases */

static void
sources_are_leased(rig *r) {
  rig peer;
  open_peer(r, &peer, NULL);
  prompt(&peer, 0, 5, 8);
  pull_page(r, &peer, 1, 3);
  rig_begin(&peer); /* writes the page that is being pulled */
  rig_decode(&peer, 0, 8);
  rig_submit(&peer);
  expect_fatal(r);
  end_peer(&peer);
}

static void
unfinished_sources_are_found(rig *r) {
  rig peer;
  open_peer(r, &peer, NULL);
  rig_begin(&peer);
  rig_sequence(&peer, 0, 5, 8, 0);
  rig_prefill(&peer, 0, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(&peer);
  pull_page(r, &peer, 1, 3);
  expect_fatal(r);
  end_peer(&peer);
}

static void
targets_are_leased(rig *r) {
  rig peer;
  open_peer(r, &peer, NULL);
  prompt(&peer, 0, 5, 8);
  pull_page(r, &peer, 1, 3);
  rig_begin(r); /* writes where it is being pulled to */
  rig_slot(r, 0, 6, 8, 0);
  rig_pages(r, 0, 0, 0, 1, 3);
  rig_prefill(r, 0, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  expect_fatal(r);
  end_peer(&peer);
}

/* Both may do all else meanwhile, and what was leased is free when the copy has ended. */
static void
steps_of_both_go_on_beside(rig *r) {
  rig peer;
  open_peer(r, &peer, NULL);
  prompt(&peer, 0, 5, 8);
  prompt(&peer, 1, 6, 8);
  prompt(r, 1, 6, 8);
  pull_page(r, &peer, 1, 3);
  rig_begin(&peer);
  rig_decode(&peer, 1, 8);
  rig_submit(&peer);
  rig_begin(r);
  rig_decode(r, 1, 8);
  rig_submit(r);
  guint left = 3;
  while (left-- > 0) { /* in whatever order they end */
    oct_event event;
    do
      g_assert_true(rig_next(r, OCT_TIME_NEVER, &event));
    while (event.kind != OCT_EVENT_STEP_DONE && event.kind != OCT_EVENT_COPY_DONE);
    g_assert_cmpuint(event.failed, ==, 0);
  }
  peer.n_flights = 0;
  decode(&peer, 0, 8);
  end_peer(&peer);
}

/* ---------------------------------------------------------------- refusals */

static void
refuse(rig *r, guint32 peer, guint32 peer_domain, const oct_copy *copy, int code) {
  g_autoptr(GError) error = NULL;
  g_assert_cmpint(oct_world_pull(r->world, r->instance, peer, peer_domain, 1, copy, 1, &error), ==,
                  OCT_SUBMIT_REFUSED);
  g_assert_error(error, OCT_BACKEND_ERROR, code);
  g_assert_cmpuint(strlen(error->message), >, 10);
}

static void
wrong_pulls_are_refused(rig *r) {
  static const oct_copy good = {.order = OCT_COPY_BESIDE};
  static const oct_copy bad[] = {
      {.order = OCT_COPY_AFTER},
      {.order = OCT_COPY_BESIDE, .from_tier = OCT_TIER_HOST},
      {.order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST},
      {.order = OCT_COPY_BESIDE, .kind = OCT_COPY_STATE},
      {.order = OCT_COPY_BESIDE, .kind = OCT_COPY_EXPERT},
      {.order = OCT_COPY_BESIDE, .group = 1},
      {.order = OCT_COPY_BESIDE, .domain = 1},
      {.order = OCT_COPY_BESIDE, .from = 64},
      {.order = OCT_COPY_BESIDE, .to = 64},
  };
  rig peer;
  open_peer(r, &peer, NULL);
  prompt(&peer, 0, 5, 8);
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++)
    refuse(r, peer.instance, 0, &bad[i], OCT_BACKEND_ERROR_RECORD);
  refuse(r, peer.instance, 1, &good, OCT_BACKEND_ERROR_RECORD);
  pull_page(r, &peer, 1, 3);
  refuse(r, peer.instance, 0, &good, OCT_BACKEND_ERROR_RECORD); /* the ticket is in flight */
  expect_copy(r, 1, 0);
  /* What was refused has changed nothing; who is closed has nothing. */
  decode(&peer, 0, 8);
  guint32 closed = peer.instance;
  rig_close(&peer);
  refuse(r, closed, 0, &good, OCT_BACKEND_ERROR_DEVICE);
  end_peer(&peer);
}

static void
larger_blocks(oct_instance_config *config) {
  config->block_size = 32;
}

static void
smaller_keys(oct_instance_config *config) {
  config->kv_dtype = OCT_DTYPE_FP8;
}

static void
another_model(oct_instance_config *config) {
  guint16 *devices = (guint16 *)(gsize)config->devices;
  *config = fixture_config(fixture_latent(), OCT_PARALLEL_DEFAULT); /* one group, as the dense */
  config->devices = devices;
}

static void
other_shapes_are_refused(rig *r) {
  static void (*const changes[])(oct_instance_config *) = {larger_blocks, smaller_keys,
                                                           another_model};
  static const oct_copy good = {.order = OCT_COPY_BESIDE};
  for (gsize i = 0; i < G_N_ELEMENTS(changes); i++) {
    rig peer;
    open_peer(r, &peer, changes[i]);
    prompt(&peer, 0, 5, 8);
    refuse(r, peer.instance, 0, &good, OCT_BACKEND_ERROR_RECORD);
    end_peer(&peer);
  }
}

/* ---------------------------------------------------------------- who is closed */

/* The copy fails, and its target can be used at once. */
static void
closed_peer_fails_it(rig *r) {
  rig peer;
  open_peer(r, &peer, NULL);
  prompt(&peer, 0, 5, 8);
  pull_page(r, &peer, 1, 0);
  rig_close(&peer);
  expect_copy(r, 1, 1);
  prompt(r, 0, 6, 8);
  decode(r, 0, 8);
  end_peer(&peer);
}

/* What was there is not taken for what should have come. */
static void
failed_pull_brings_nothing(rig *r) {
  rig peer;
  oct_copy copies[8];
  open_peer(r, &peer, NULL);
  prompt(&peer, 0, 5, 40);
  guint32 n = slot_copies(r, copies, 30, 40);
  pull(r, &peer, 0, 1, copies, n);
  expect_copy(r, 1, 0);
  pull(r, &peer, 0, 2, copies, n);
  rig_close(&peer);
  expect_copy(r, 2, 1);
  submit_next(r, &peer, 1, 5, 40, 30, 40);
  expect_fatal(r);
  end_peer(&peer);
}

/* Nothing is heard of the copy, and the peer may write its sources again. */
static void
closed_target_frees_the_sources(rig *r) {
  rig peer;
  open_peer(r, &peer, NULL);
  prompt(&peer, 0, 5, 8);
  pull_page(r, &peer, 1, 3);
  rig_close(r);
  decode(&peer, 0, 8);
  oct_event event;
  g_assert_true(oct_world_next(r->world, r->world->now_ns + 3000000, &event));
  g_assert_cmpstr(oct_event_name(event.kind), ==, "TIMER");
  end_peer(&peer);
}

const contract_case contract_pull_cases[] = {
    {"40-content-arrives", CONTRACT_HYBRID, NEEDS_PULL, content_arrives},
    {"40-domains-are-each-its-own", CONTRACT_DATA2, NEEDS_PULL, domains_are_each_its_own},
    {"40-sources-are-leased", CONTRACT_DENSE, NEEDS_PULL | NEEDS_SIMULATED, sources_are_leased},
    {"40-unfinished-sources-are-found", CONTRACT_DENSE, NEEDS_PULL | NEEDS_SIMULATED,
     unfinished_sources_are_found},
    {"40-targets-are-leased", CONTRACT_DENSE, NEEDS_PULL | NEEDS_SIMULATED, targets_are_leased},
    {"40-steps-of-both-go-on-beside", CONTRACT_DENSE, NEEDS_PULL, steps_of_both_go_on_beside},
    {"40-wrong-pulls-are-refused", CONTRACT_DENSE, NEEDS_PULL, wrong_pulls_are_refused},
    {"40-other-shapes-are-refused", CONTRACT_DENSE, NEEDS_PULL, other_shapes_are_refused},
    /* Where copies take what they take, they may have ended before the peer is closed. */
    {"40-a-closed-peer-fails-it", CONTRACT_DENSE, NEEDS_PULL | NEEDS_SIMULATED,
     closed_peer_fails_it},
    {"40-a-failed-pull-brings-nothing", CONTRACT_HYBRID, NEEDS_PULL | NEEDS_SIMULATED,
     failed_pull_brings_nothing},
    {"40-a-closed-target-frees-the-sources", CONTRACT_DENSE, NEEDS_PULL,
     closed_target_frees_the_sources},
    {NULL, 0, 0, NULL}};
