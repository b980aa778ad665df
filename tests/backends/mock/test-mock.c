#include "backends/mock/mock.h"

#include <string.h>

#include "engine/base/rng.h"
#include "tests/contract/rig.h"

static oct_world *
new_world(const oct_mock_options *options) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_mock_world_new(options, &error);
  g_assert_no_error(error);
  return world;
}

static oct_instance_config
dense(void) {
  return fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
}

static oct_instance_config
hybrid(void) {
  return fixture_config(fixture_hybrid(), OCT_PARALLEL_DEFAULT);
}

/* Slot `slot` of the dense model starts a sequence with `prompt` tokens, its pages from page 4 x
 * slot on, enough for 64 tokens. */
static void
start_dense(rig *r, guint32 slot, guint32 prompt, guint32 output) {
  rig_slot(r, slot, 100 + slot, prompt, output);
  rig_pages(r, slot, 0, 0, 4, 4 * slot);
}

/* ---------------------------------------------------------------- tokens */

static void
decode_to_the_end(rig *r) {
  oct_event event;
  rig_begin(r);
  start_dense(r, 0, 20, 5);
  rig_prefill(r, 0, 0, 20, OCT_SAMPLE_LAST);
  rig_submit(r);
  for (guint32 i = 0; i < 5; i++) {
    rig_expect(r, OCT_EVENT_STEP_DONE, r->number, &event);
    guint32 n;
    const guint32 *token = rig_accepted(&event, 0, &n);
    g_assert_cmpuint(n, ==, 1);
    if (i < 4)
      g_assert_cmpuint(token[0], ==, oct_mock_token(r->world, r->instance, 100, 0, 20 + i));
    else
      g_assert_cmpuint(token[0], ==, FIXTURE_EOS);
    rig_begin(r);
    rig_decode(r, 0, 20 + i);
    rig_submit(r);
  }
  /* The sixth rode along after the end. */
  rig_expect(r, OCT_EVENT_STEP_DONE, r->number, &event);
}

static void
ends_where_the_oracle_says(void) {
  oct_instance_config config = dense();
  rig_run(new_world(NULL), &config, decode_to_the_end);
}

static void
many_tokens(rig *r) {
  guint32 seen = 0;
  for (guint32 key = 0; key < 20; key++)
    for (guint32 p = 0; p < 4000; p++) {
      guint32 token = oct_mock_token(r->world, r->instance, key, 0, p);
      g_assert_cmpuint(token, <, FIXTURE_VOCAB);
      g_assert_cmpuint(token, !=, FIXTURE_EOS);
      seen += token == 7;
    }
  /* 80,000 draws out of 999: about 80 of each. */
  g_assert_cmpuint(seen, >, 40);
  g_assert_cmpuint(seen, <, 130);
}

static void
never_samples_an_end_by_chance(void) {
  oct_instance_config config = dense();
  rig_run(new_world(NULL), &config, many_tokens);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/mock/tokens/end-where-the-oracle-says", ends_where_the_oracle_says);
  g_test_add_func("/mock/tokens/never-sample-an-end-by-chance", never_samples_an_end_by_chance);
  (void)hybrid;
  return g_test_run();
}
