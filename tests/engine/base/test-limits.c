#include "engine/base/limits.h"

#include <string.h>

#include "engine/base/error.h"

static void
refuses(oct_limit which, gint64 value, gint64 limit) {
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_limit_check(which, value, &error));
  g_assert_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_LIMIT);
  g_autofree char *value_text = g_strdup_printf("%" G_GINT64_FORMAT " ", value);
  g_autofree char *limit_text = g_strdup_printf("limit of %" G_GINT64_FORMAT, limit);
  g_assert_nonnull(strstr(error->message, oct_limit_get(which)->flag));
  g_assert_nonnull(strstr(error->message, value_text));
  g_assert_nonnull(strstr(error->message, limit_text));
}

static void
accepts(oct_limit which, gint64 value) {
  g_autoptr(GError) error = NULL;
  gboolean accepted = oct_limit_check(which, value, &error);
  g_assert_no_error(error);
  g_assert_true(accepted);
}

static void
edges(void) {
  for (guint i = 0; i < OCT_LIMIT_COUNT; i++) {
    const oct_limit_row *row = oct_limit_get(i);
    refuses(i, row->min - 1, row->min);
    accepts(i, row->min);
    accepts(i, row->standard);
    accepts(i, row->max);
    refuses(i, row->max + 1, row->max);
    refuses(i, G_MININT64, row->min);
    refuses(i, G_MAXINT64, row->max);
  }
}

static void
promised(void) {
  g_assert_cmpint(oct_limit_get(OCT_LIMIT_MAX_NUM_SEQS)->max, ==, 4096);
  g_assert_cmpint(oct_limit_get(OCT_LIMIT_QUEUE_REQUESTS)->standard, ==, 4096);
  g_assert_cmpint(oct_limit_get(OCT_LIMIT_QUEUE_TOKENS)->standard, ==, 64 << 20);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/base/limits/just-below-at-and-above-each", edges);
  g_test_add_func("/base/limits/are-those-promised", promised);
  return g_test_run();
}
