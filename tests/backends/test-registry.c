#include "config.h"

#include "backends/registry.h"

#include <string.h>

#include <glib/gstdio.h>

#include "tests/contract/rig.h"

static void
assert_refused(const char *description, const char *what) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_backend_world_new(description, &error);
  if (world != NULL) {
    g_test_message("accepted: %s", description);
    g_test_fail();
    oct_world_free(world);
    return;
  }
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  if (strstr(error->message, what) == NULL) {
    g_test_message("wanted '%s' in: %s", what, error->message);
    g_test_fail();
  }
}

static void
unknown_names_are_refused(void) {
  assert_refused("mok", "no backend \"mok\"; there are: mock");
  assert_refused("", "no backend \"\"");
  assert_refused("mock:fixed=1", "mock: option \"fixed=1\" is not known; there are: clock seed");
  assert_refused("mock:seed", "option \"seed\" has no value");
  assert_refused("mock:seed=1,", "option \"\" is not known");
  assert_refused("mock:seed=1,seed=2", "option \"seed=2\" is given twice");
}

/* The same, and of every world inside: without making one. */
static void
a_check_makes_no_world(void) {
  static const char *const good[] = {"mock", "mock:clock=wall", "replay:file=/nonexistent/file",
                                     "fault:rate=2@record:file=/nonexistent/file@mock:seed=1"};
  static const char *const bad[][2] = {
      {"mok", "no backend \"mok\""},
      {"fault@remote@mok", "no backend \"mok\""},
      {"fault", "fault wraps another backend"},
      {"fault@mock:fixed=1", "mock: option \"fixed=1\" is not known"},
      {"fault:rat=1@mock", "fault: option \"rat=1\" is not known"},
      {"fault@fault@fault@fault@fault@fault@fault@fault@mock", "with 8 \"@\""},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(good); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_true(oct_backend_check(good[i], &error));
    g_assert_no_error(error);
  }
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_false(oct_backend_check(bad[i][0], &error));
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
    g_assert_nonnull(strstr(error->message, bad[i][1]));
  }
}

/* A key that is wrong is said first, as it is wherever the program is built. */
static void
what_is_not_built_in_is_said(void) {
  assert_refused("cuda:nvl=1", "cuda: option \"nvl=1\" is not known");
#ifndef HAVE_CUDA
  static const char *const texts[] = {"cuda", "remote@cuda:nvls=1"};
  for (gsize i = 0; i < G_N_ELEMENTS(texts); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_false(oct_backend_check(texts[i], &error));
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
    g_assert_nonnull(strstr(error->message, "built without CUDA: configure --with-cuda=DIR"));
  }
#endif
}

static void
wrong_values_are_refused(void) {
  assert_refused("mock:clock=wall", "mock: clock is \"wall\", must be virtual or real");
  assert_refused("mock:fixed_ns=-1", "fixed_ns is \"-1\", must be an integer from 0");
  assert_refused("mock:fixed_ns=1ms", "fixed_ns is \"1ms\"");
  assert_refused("mock:fixed_ns=99999999999999999999", "fixed_ns is");
  assert_refused("mock:accept_rate=2", "accept_rate is \"2\", must be a number from 0 to 1");
  assert_refused("mock:accept_rate=nan", "accept_rate is \"nan\"");
  assert_refused("mock:accept_script=2+0", "accept_script is \"2+0\", must be at most 16 counts");
  assert_refused("mock:seed=-1", "seed is \"-1\", must be an unsigned integer");
  assert_refused("fault:kinds=step+boom@mock", "kinds is \"step+boom\", must be of kinds request");
  assert_refused("fault:script=hang@mock", "script is \"hang\"");
  assert_refused("fault:script=hang/0@mock", "script is \"hang/0\"");
  assert_refused("replay", "replay needs file=PATH");
  assert_refused("replay:file=/nonexistent/file", "/nonexistent/file");
}

static void
wrong_nesting_is_refused(void) {
  assert_refused("fault", "fault wraps another backend: fault@NAME");
  assert_refused("mock@mock", "mock wraps nothing");
  assert_refused("fault@nothing", "no backend \"nothing\"");
  assert_refused("fault@fault@fault@fault@fault@fault@fault@fault@mock", "with 8 \"@\", limits");
}

static void
decode_twice(rig *r) {
  rig_begin(r);
  rig_slot(r, 0, 1, 8, 0);
  rig_pages(r, 0, 0, 0, 1, 0);
  rig_prefill(r, 0, 0, 8, OCT_SAMPLE_LAST);
  rig_submit(r);
  oct_event event;
  rig_expect(r, OCT_EVENT_STEP_DONE, 1, &event);
  g_assert_cmpint(event.result->end_ns, ==, 2000 + 8 * 3);
}

static void
options_reach_the_world(void) {
  g_autofree char *folder = g_dir_make_tmp("octet-registry-XXXXXX", NULL);
  g_autofree char *file = g_build_filename(folder, "run.oct", NULL);
  g_autofree char *text = g_strdup_printf(
      "record:file=%s,flush=1@fault:rate=0@mock:fixed_ns=2000,token_ns=3,sequence_ns=0", file);
  g_autofree char *again = g_strdup_printf("replay:file=%s", file);
  const char *descriptions[] = {text, again};
  oct_instance_config config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  for (int i = 0; i < 2; i++) {
    g_autoptr(GError) error = NULL;
    oct_world *world = oct_backend_world_new(descriptions[i], &error);
    g_assert_no_error(error);
    g_assert_cmpstr(world->ops->name, ==, i == 0 ? "record" : "replay");
    rig_run(world, &config, decode_twice);
  }
  g_unlink(file);
  g_rmdir(folder);
}

static void
faults_come_by_script(void) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_backend_world_new(
      "fault:script=step/1+hang/9/2,kinds=step+request,delay_ns=5,late_ns=7@mock:clock=real",
      &error);
  g_assert_no_error(error);
  g_assert_cmpint(world->ops->clock, ==, OCT_CLOCK_REAL);
  oct_world_free(world);
}

static void
every_backend_says_what_it_takes(void) {
  guint n = 0;
  for (const oct_backend_info *info; (info = oct_backend_info_at(n)) != NULL; n++) {
    g_assert_cmpuint(strlen(info->summary), >, 10);
    for (const oct_backend_key *k = info->keys; k->name != NULL; k++)
      g_assert_cmpuint(strlen(k->meaning), >, 10);
  }
  g_assert_cmpuint(n, >=, 4);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/registry/refuses/unknown-names", unknown_names_are_refused);
  g_test_add_func("/registry/refuses/without-making-a-world", a_check_makes_no_world);
  g_test_add_func("/registry/refuses/what-is-not-built-in", what_is_not_built_in_is_said);
  g_test_add_func("/registry/refuses/wrong-values", wrong_values_are_refused);
  g_test_add_func("/registry/refuses/wrong-nesting", wrong_nesting_is_refused);
  g_test_add_func("/registry/makes/options-reach-the-world", options_reach_the_world);
  g_test_add_func("/registry/makes/faults-by-script", faults_come_by_script);
  g_test_add_func("/registry/inspect/every-backend-says-what-it-takes",
                  every_backend_says_what_it_takes);
  return g_test_run();
}
