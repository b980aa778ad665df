/* What a request costs beside its step, asked of a server with a mock whose steps have a known
 * length; times are of the clock, so that only what can never be is refused. */
#include "cli/calibrate-served.h"

#include "sim/calibrate/drive.h"

/* Of this build, from make check and by hand. Owned. */
static char *
octet_program(void) {
  char *path = g_test_build_filename(G_TEST_BUILT, "..", "octet", NULL);
  if (g_file_test(path, G_FILE_TEST_IS_EXECUTABLE))
    return path;
  g_free(path);
  return g_test_build_filename(G_TEST_BUILT, "..", "..", "octet", NULL);
}

/* Seconds beside a step of so many ms. */
static double
beside_step_of(guint step_ms) {
  g_autoptr(GError) error = NULL;
  g_autofree char *octet = octet_program();
  g_autofree char *backend = g_strdup_printf("mock:fixed_ns=%u000000,clock=real", step_ms);
  const oct_calibrate_server how = {
      .program = octet, .model = "smollm2-135m", .backend = backend, .gpus = 1};
  double seconds = -1;
  gboolean fine = oct_calibrate_request(&how, &seconds, &error);
  g_assert_no_error(error);
  g_assert_true(fine);
  return seconds;
}

/* The step is not in it: it is shorter than a step, of which a slow machine needs a longer one. */
static void
is_what_the_step_leaves(void) {
  guint step_ms = 150;
  double seconds = beside_step_of(step_ms);
  while (seconds * 1000 >= step_ms && step_ms < 2000)
    seconds = beside_step_of(step_ms *= 2);
  g_assert_cmpfloat(seconds, >, 0);
  g_assert_cmpfloat(seconds * 1000, <, step_ms);
}

static void
says_why_there_is_no_server(void) {
  g_autoptr(GError) error = NULL;
  g_autofree char *octet = octet_program();
  const oct_calibrate_server how = {
      .program = octet, .model = "smollm2-135m", .backend = "mock:no_such_key=1", .gpus = 1};
  double seconds = -1;
  g_assert_false(oct_calibrate_request(&how, &seconds, &error));
  g_assert_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_WORLD);
  g_assert_nonnull(strstr(error->message, "no_such_key"));
  g_assert_cmpfloat(seconds, ==, -1);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cli/calibrate/a-request-costs-what-its-step-leaves", is_what_the_step_leaves);
  g_test_add_func("/cli/calibrate/says-why-there-is-no-server", says_why_there_is_no_server);
  return g_test_run();
}
