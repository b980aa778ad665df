#include "backends/record/record.h"

#include <string.h>

#include <glib/gstdio.h>

#include "backends/mock/mock.h"
#include "engine/base/rng.h"
#include "tests/contract/rig.h"

static char *path;      /* of the recording */
static guint64 variant; /* what the scenario does otherwise, 0 = nothing */

static oct_world *
mock(void) {
  oct_mock_options options;
  oct_mock_options_default(&options);
  options.copy_page_ns = 700;
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_mock_world_new(&options, &error);
  g_assert_no_error(error);
  return world;
}

/* A bit of everything; each variant differs in one call. */
static void
scenario(rig *r) {
  g_autoptr(GError) error = NULL;
  oct_event event;
  rig_begin(r);
  rig_slot(r, 0, variant == 1 ? 8 : 7, 20, 0);
  rig_pages(r, 0, 0, 0, 2, variant == 2 ? 5 : 4);
  rig_prefill(r, 0, 0, 20, OCT_SAMPLE_LAST)->n_logprobs = 2;
  rig_submit(r);
  oct_copy copy = {.order = OCT_COPY_BESIDE, .from_tier = OCT_TIER_HOST, .from = 3, .to = 30};
  if (variant == 3)
    copy.to = 31;
  (void)!oct_world_copy(r->world, r->instance, 1, &copy, 1, &error);
  rig_next(r, variant == 4 ? 501 : 500, &event);
  rig_next(r, OCT_TIME_NEVER, &event);
  rig_next(r, OCT_TIME_NEVER, &event);
  if (variant == 5)
    rig_next(r, OCT_TIME_NEVER, &event);
  /* A refusal, with its reason. */
  rig_begin(r);
  rig_decode(r, 0, 20);
  const oct_step *step = rig_end(r);
  g_autofree oct_step *wrong = g_memdup2(step, step->bytes);
  wrong->number = 9;
  g_assert_cmpint(oct_world_submit(r->world, r->instance, wrong, &error), ==, OCT_SUBMIT_REFUSED);
  if (oct_world_submit(r->world, r->instance, step, NULL) == OCT_SUBMIT_OK)
    (void)rig_next(r, OCT_TIME_NEVER, &event);
}

static char *heard; /* all that the scenario saw, as text */

static void
listen(rig *r) {
  scenario(r);
  GString *text = g_string_new(NULL);
  for (guint i = 0; i < r->ids[0]->len; i++)
    g_string_append_printf(text, "%u ", g_array_index(r->ids[0], guint32, i));
  g_string_append_printf(text, "at %" G_GINT64_FORMAT, r->world->now_ns);
  g_free(heard);
  heard = g_string_free(text, FALSE);
}

static oct_instance_config
config(void) {
  return fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
}

static void
record(void) {
  g_autoptr(GError) error = NULL;
  oct_instance_config c = config();
  variant = 0;
  oct_world *world = oct_record_world_new(mock(), &(oct_record_options){.path = path}, &error);
  g_assert_no_error(error);
  rig_run(world, &c, listen);
}

/* A rig whose submissions and events may fail: the replay has ended the world. */
static int
play(oct_world *world, void *arg) {
  const char **difference = arg;
  oct_instance_config c = config();
  rig r;
  rig_init(&r, world, &c);
  g_autoptr(GError) error = NULL;
  oct_event event;
  if (oct_world_open(world, &c, &r.instance, &error)) {
    /* Open, then the scenario's calls by hand, as far as they are answered. */
    while (oct_world_next(world, OCT_TIME_NEVER, &event) && event.kind != OCT_EVENT_OPENED &&
           event.kind != OCT_EVENT_FAULT)
      continue;
    if (oct_replay_difference(world) == NULL) {
      rig_begin(&r);
      rig_slot(&r, 0, variant == 1 ? 8 : 7, 20, 0);
      rig_pages(&r, 0, 0, 0, 2, variant == 2 ? 5 : 4);
      rig_prefill(&r, 0, 0, 20, OCT_SAMPLE_LAST)->n_logprobs = 2;
      (void)!oct_world_submit(world, r.instance, rig_end(&r), NULL);
      oct_copy copy = {.order = OCT_COPY_BESIDE, .from_tier = OCT_TIER_HOST, .from = 3, .to = 30};
      if (variant == 3)
        copy.to = 31;
      (void)!oct_world_copy(world, r.instance, 1, &copy, 1, NULL);
      (void)oct_world_next(world, variant == 4 ? 501 : 500, &event);
      for (guint i = 0; i < (variant == 5 ? 3 : 2); i++)
        (void)oct_world_next(world, OCT_TIME_NEVER, &event);
    }
    oct_world_close(world, r.instance);
  }
  rig_clear(&r);
  *difference = g_strdup(oct_replay_difference(world));
  return 0;
}

static void
plays_back_what_it_recorded(void) {
  record();
  g_autofree char *first = g_steal_pointer(&heard);
  g_autoptr(GError) error = NULL;
  oct_instance_config c = config();
  oct_world *world = oct_replay_world_new(path, &error);
  g_assert_no_error(error);
  g_assert_cmpint(world->ops->clock, ==, OCT_CLOCK_VIRTUAL);
  /* By hand, for a look at the end before the world is freed. */
  variant = 0;
  rig_run(world, &c, listen);
  g_assert_cmpstr(heard, ==, first);
  g_assert_nonnull(strstr(first, "at "));
}

static void
names_the_first_difference(void) {
  static const char *const wanted[] = {
      NULL,
      "call 4: submit says \"open slot 0: domain 0 key 0x8 prompt 20\", recorded \"open slot 0: "
      "domain 0 key 0x7 prompt 20\"",
      "call 4: submit says \"change slot 0 group 0: [0] = 5\", recorded \"change slot 0 group 0: "
      "[0] = 4\"",
      "call 5: copy says \"copy page, beside: domain 0 group 0, host 3 -> device 31\", recorded "
      "\"copy page, beside: domain 0 group 0, host 3 -> device 30\"",
      "call 6: next (501, 0), recorded (500, 0)",
      "call 9: next was called, recorded is submit"};
  record();
  for (variant = 1; variant < G_N_ELEMENTS(wanted); variant++) {
    g_autoptr(GError) error = NULL;
    oct_world *world = oct_replay_world_new(path, &error);
    g_assert_no_error(error);
    g_autofree char *difference = NULL;
    oct_world_run(world, play, &difference);
    g_assert_cmpstr(difference, ==, wanted[variant]);
    oct_world_free(world);
  }
  variant = 0;
}

static int
play_past_the_difference(oct_world *world, void *arg) {
  oct_event event;
  (void)arg;
  g_assert_true(oct_world_next(world, 5, &event)); /* recorded is an opening */
  g_assert_cmpint(event.kind, ==, OCT_EVENT_FAULT);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_FATAL);
  g_assert_cmpstr(event.fault->message, ==, "replay: call 1: next was called, recorded is open");
  g_assert_false(oct_world_next(world, 5, &event));
  g_autoptr(GError) error = NULL;
  oct_instance_config c = config();
  guint32 instance;
  g_assert_false(oct_world_open(world, &c, &instance, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
  return 0;
}

static void
difference_ends_the_world(void) {
  record();
  oct_world *world = oct_replay_world_new(path, NULL);
  oct_world_run(world, play_past_the_difference, NULL);
  oct_world_free(world);
}

static void
tells_when_the_recording_is_used_up(void) {
  record();
  oct_world *world = oct_replay_world_new(path, NULL);
  gboolean at_end;
  g_assert_cmpuint(oct_replay_calls(world, &at_end), ==, 0);
  g_assert_false(at_end);
  g_autofree char *difference = NULL;
  oct_world_run(world, play, &difference); /* which does not do all of it */
  oct_replay_calls(world, &at_end);
  g_assert_false(at_end);
  g_assert_cmpstr(difference, ==, "call 9: close was called, recorded is submit");
  oct_world_free(world);
}

/* ---------------------------------------------------------------- between instances */

/* Pulls a page from a second instance; a variant differs in what, or from where. */
static void
pull_scenario(rig *r) {
  rig peer;
  oct_event event = {0};
  g_autoptr(GError) error = NULL;
  rig_init(&peer, r->world, &r->config);
  rig_open(&peer);
  oct_copy copy = {.order = OCT_COPY_BESIDE, .from = 3, .to = variant == 1 ? 31 : 30};
  oct_submit answer = oct_world_pull(r->world, r->instance, peer.instance, variant == 2 ? 1 : 0, 1,
                                     &copy, 1, &error);
  if (variant == 0) {
    g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
    g_assert_cmpint(oct_world_pull(r->world, r->instance, peer.instance, 7, 2, &copy, 1, &error),
                    ==, OCT_SUBMIT_REFUSED);
    rig_expect(r, OCT_EVENT_COPY_DONE, 1, &event);
  }
  g_free(heard);
  heard = g_strdup_printf("%d %u %s", (int)event.time_ns, event.failed, error->message);
  rig_close(&peer);
  rig_clear(&peer);
  const char *difference = variant > 0 ? oct_replay_difference(r->world) : NULL;
  if (variant == 1)
    g_assert_nonnull(strstr(difference, "pull says \"copy page, beside: domain 0 group 0, device 3 "
                                        "-> device 31\", recorded"));
  if (variant == 2)
    g_assert_nonnull(strstr(difference, "pull (1, 4294967298), recorded (1, 2)"));
}

static void
plays_back_pulls(void) {
  g_autoptr(GError) error = NULL;
  oct_instance_config c = config();
  variant = 0;
  oct_world *world = oct_record_world_new(mock(), &(oct_record_options){.path = path}, &error);
  g_assert_no_error(error);
  g_assert_true(oct_world_can_pull(world));
  rig_run(world, &c, pull_scenario);
  g_autofree char *first = g_steal_pointer(&heard);
  g_assert_nonnull(strstr(first, "700 0 peer_domain is 7"));
  for (variant = 0; variant < 3; variant++) {
    world = oct_replay_world_new(path, &error);
    g_assert_no_error(error);
    g_assert_true(oct_world_can_pull(world));
    rig_run(world, &c, pull_scenario);
    if (variant == 0)
      g_assert_cmpstr(heard, ==, first);
  }
  variant = 0;
}

/* ---------------------------------------------------------------- bad files */

static int
open_and_close(oct_world *world, void *arg) {
  oct_instance_config c = config();
  guint32 instance;
  (void)arg;
  g_assert_true(oct_world_open(world, &c, &instance, NULL));
  oct_world_close(world, instance);
  return 0;
}

static void
play_file(const guint8 *bytes, gsize size, gboolean must_differ) {
  g_autofree char *bad = g_strconcat(path, ".bad", NULL);
  g_assert_true(g_file_set_contents(bad, (const char *)bytes, (gssize)size, NULL));
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_replay_world_new(bad, &error);
  g_unlink(bad);
  if (world == NULL) {
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD);
    return;
  }
  g_autofree char *difference = NULL;
  oct_world_run(world, play, &difference);
  g_assert_true(difference != NULL || !must_differ);
  oct_world_free(world);
}

static void
survives_torn_and_damaged_files(void) {
  record();
  g_autofree char *text = NULL;
  gsize size;
  g_assert_true(g_file_get_contents(path, &text, &size, NULL));
  guint8 *bytes = (guint8 *)text;
  for (gsize n = 0; n < size; n += 1 + n / 16)
    play_file(bytes, n, TRUE);
  oct_rng rng;
  oct_rng_seed(&rng, 11, 0);
  for (int i = 0; i < 300; i++) {
    gsize at = oct_rng_below(&rng, size);
    guint8 old = bytes[at];
    bytes[at] ^= (guint8)(1 + oct_rng_below(&rng, 255));
    play_file(bytes, size, FALSE);
    bytes[at] = old;
  }
}

static void
refuses_what_is_no_recording(void) {
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_replay_world_new("/nonexistent/recording", &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  g_clear_error(&error);
  g_assert_null(oct_record_world_new(
      mock(), &(oct_record_options){.path = "/nonexistent/recording"}, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  g_clear_error(&error);
  g_assert_true(g_file_set_contents(path, "something else entirely, but long enough", -1, NULL));
  g_assert_null(oct_replay_world_new(path, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD);
}

static void
says_when_the_file_is_incomplete(void) {
  if (!g_file_test("/dev/full", G_FILE_TEST_EXISTS)) {
    g_test_skip("no /dev/full");
    return;
  }
  g_autoptr(GError) error = NULL;
  oct_world *world =
      oct_record_world_new(mock(), &(oct_record_options){.path = "/dev/full"}, &error);
  g_assert_no_error(error);
  g_assert_true(oct_record_world_check(world, &error));
  oct_world_run(world, open_and_close, NULL);
  g_assert_false(oct_record_world_check(world, &error));
  g_assert_nonnull(strstr(error->message, "incomplete"));
  oct_world_free(world);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_autofree char *folder = g_dir_make_tmp("octet-record-XXXXXX", NULL);
  path = g_build_filename(folder, "recording", NULL);
  g_test_add_func("/record/replay/plays-back-what-was-recorded", plays_back_what_it_recorded);
  g_test_add_func("/record/replay/names-the-first-difference", names_the_first_difference);
  g_test_add_func("/record/replay/difference-ends-the-world", difference_ends_the_world);
  g_test_add_func("/record/replay/tells-when-the-recording-is-used-up",
                  tells_when_the_recording_is_used_up);
  g_test_add_func("/record/replay/plays-back-pulls", plays_back_pulls);
  g_test_add_func("/record/file/torn-or-damaged-is-survived", survives_torn_and_damaged_files);
  g_test_add_func("/record/file/other-ones-are-refused", refuses_what_is_no_recording);
  g_test_add_func("/record/file/incomplete-is-told", says_when_the_file_is_incomplete);
  int failed = g_test_run();
  g_unlink(path);
  g_rmdir(folder);
  g_free(path);
  g_free(heard);
  return failed;
}
