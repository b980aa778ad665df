/* What goes into a page: data that cannot break out of it, nothing that changes from run to run,
 * and a clear word where the plot library is missing. */
#include <glib/gstdio.h>
#include <string.h>

#include "sim/page/page.h"
#include "sim/replay/slo.h"

static char *library; /* a file that stands for the plot library */

static json_t *
report(double wall_s) {
  return json_pack("{s:s, s:s, s:{s:f}}", "schema", "octet-replay-1", "label",
                   "</script><b>/*DATA*/", "run", "wall_s", wall_s);
}

static void
test_whole(void) {
  g_autoptr(GError) error = NULL;
  json_t *a = report(1);
  g_autofree char *page = oct_page_make(a, &error);
  g_assert_no_error(error);
  g_assert_nonnull(strstr(page, "/* stands for a library */"));
  g_assert_nonnull(strstr(page, "prefers-color-scheme: dark"));
  g_assert_nonnull(strstr(page, "\\u003c/script>\\u003cb>"));
  g_assert_null(strstr(page, "</script><b>"));
  /* Every mark has been replaced: all that is left stands in the label. */
  static const char *const marks[] = {"/*STYLE*/", "/*LIBRARY*/", "/*DRAW*/", "/*PAGE*/"};
  for (gsize i = 0; i < G_N_ELEMENTS(marks); i++)
    g_assert_null(strstr(page, marks[i]));
  json_decref(a);
}

static void
test_equal(void) {
  json_t *a = report(1), *b = report(2);
  g_autofree char *page_a = oct_page_make(a, NULL), *page_b = oct_page_make(b, NULL);
  g_assert_cmpstr(page_a, ==, page_b);
  json_t *many = json_pack("{s:s, s:[o]}", "schema", "octet-comparison-1", "reports", a);
  g_autofree char *page = oct_page_make(many, NULL);
  g_assert_null(strstr(page, "wall_s"));
  json_decref(many);
  json_decref(b);
}

static void
test_missing(void) {
  g_autoptr(GError) error = NULL;
  json_t *a = report(1);
  g_setenv("OCT_CHART_JS", "/nowhere/chart.min.js", TRUE);
  g_assert_false(oct_page_check(&error));
  g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION);
  g_assert_nonnull(strstr(error->message, "libjs-chart.js"));
  g_assert_nonnull(strstr(error->message, "/nowhere/chart.min.js"));
  g_clear_error(&error);
  g_assert_null(oct_page_make(a, &error));
  g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION);
  g_setenv("OCT_CHART_JS", library, TRUE);
  json_decref(a);
}

static void
test_hostile_library(void) {
  g_autoptr(GError) error = NULL;
  json_t *a = report(1);
  g_assert_true(g_file_set_contents(library, "x = '</script>'", -1, NULL));
  g_assert_null(oct_page_make(a, &error));
  g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_IO);
  json_decref(a);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_autofree char *folder = g_dir_make_tmp("octet-page-XXXXXX", NULL);
  library = g_build_filename(folder, "chart.min.js", NULL);
  g_assert_true(g_file_set_contents(library, "/* stands for a library */", -1, NULL));
  g_setenv("OCT_CHART_JS", library, TRUE);
  g_test_add_func("/page/is-whole-and-its-data-stays-data", test_whole);
  g_test_add_func("/page/equal-runs-give-equal-pages", test_equal);
  g_test_add_func("/page/a-missing-library-is-named-with-its-package", test_missing);
  g_test_add_func("/page/a-library-that-ends-the-script-is-refused", test_hostile_library);
  int status = g_test_run();
  (void)g_remove(library);
  (void)g_rmdir(folder);
  g_free(library);
  return status;
}
