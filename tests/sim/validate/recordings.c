#include "tests/sim/validate/recordings.h"

#include <math.h>

#include "sim/errors.h"
#include "sim/validate/report.h"

char *
recordings_or_skip(void) {
  const char *root = g_getenv("OCT_SHARED"), *tests = g_getenv("G_TEST_SRCDIR");
  g_autofree char *beside =
      g_build_filename(tests != NULL ? tests : ".", "..", "..", "shared", NULL);
  char *folder = g_build_filename(root != NULL ? root : beside, "groundtruth", NULL);
  if (g_file_test(folder, G_FILE_TEST_IS_DIR))
    return folder;
  g_free(folder);
  g_test_skip("no groundtruth: set OCT_SHARED to the folder of recordings");
  return NULL;
}

void
recordings_judge(const json_t *part, const char *what, double bound) {
  double got = oct_validate_got(part, what);
  g_test_message("%s: %.1f %%, at most %.1f %%", what, 100 * got, 100 * bound);
  g_assert_false(isnan(got));
  g_assert_cmpfloat(got, <=, bound);
}

/* One digit behind the point, and room for other compilers' arithmetic. */
#define QUOTED 0.11

void
recordings_equal_quoted(const json_t *part, guint n_least) {
  const char *name = json_string_value(json_object_get(part, "name"));
  const json_t *aims = json_object_get(part, "aims");
  gsize i;
  json_t *aim;
  g_assert_cmpuint(json_array_size(aims), >=, n_least);
  json_array_foreach(aims, i, aim) {
    const char *what = json_string_value(json_object_get(aim, "what"));
    const double got = 100 * oct_validate_got(part, what), quoted = oct_errors_get(name, what);
    g_test_message("%s, %s: %.2f %%, quoted %.1f", name, what, got, quoted);
    g_assert_false(isnan(quoted));
    g_assert_cmpfloat_with_epsilon(got, quoted, QUOTED);
  }
}
