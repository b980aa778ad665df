#include "engine/obs/metrics.h"

#include <math.h>
#include <string.h>

static void
test_format(void) {
  g_autoptr(GString) out = g_string_new(NULL), labels = g_string_new(NULL);
  oct_metrics_label(labels, "model", "a\\b\"c\nd");
  oct_metrics_label(labels, "engine", "0");
  oct_metrics_family(out, "x_total", OCT_METRIC_COUNTER, "Things.");
  oct_metrics_sample(out, "x_total", labels->str, 12345678901234.0);
  oct_metrics_family(out, "y", OCT_METRIC_GAUGE, "A share.");
  oct_metrics_sample(out, "y", "", 0.1);
  g_assert_cmpstr(out->str, ==,
                  "# HELP x_total Things.\n# TYPE x_total counter\n"
                  "x_total{model=\"a\\\\b\\\"c\\nd\",engine=\"0\"} 12345678901234\n"
                  "# HELP y A share.\n# TYPE y gauge\ny 0.1\n");
}

static void
test_numbers(void) {
  static const double values[] = {0, 1, -1, 0.3, 1e300, 123456.789, 1.0 / 3, 2560, 1e-9};
  for (guint i = 0; i < G_N_ELEMENTS(values); i++) {
    g_autoptr(GString) out = g_string_new(NULL);
    oct_metrics_sample(out, "x", "", values[i]);
    g_assert_true(g_ascii_strtod(out->str + 2, NULL) == values[i]);
  }
}

static void
test_histogram(void) {
  static const double bounds[] = {0.5, 1, 10};
  g_autoptr(oct_histogram) h = oct_histogram_new(bounds, 3);
  g_autoptr(GString) out = g_string_new(NULL);
  oct_histogram_add(h, 0.5, 1); /* a bound is in its bucket */
  oct_histogram_add(h, 0.75, 3);
  oct_histogram_add(h, 11, 2);
  g_assert_cmpuint(oct_histogram_count(h), ==, 6);
  oct_histogram_write(h, out, "t", "a=\"b\"");
  g_assert_cmpstr(out->str, ==,
                  "t_bucket{a=\"b\",le=\"0.5\"} 1\nt_bucket{a=\"b\",le=\"1\"} 4\n"
                  "t_bucket{a=\"b\",le=\"10\"} 4\nt_bucket{a=\"b\",le=\"+Inf\"} 6\n"
                  "t_sum{a=\"b\"} 24.75\nt_count{a=\"b\"} 6\n");
}

static void
test_bounds(void) {
  double bounds[OCT_HISTOGRAM_BOUNDS_MAX];
  g_assert_cmpuint(oct_histogram_bounds_125(bounds, 100), ==, 7);
  g_assert_true(bounds[0] == 1 && bounds[1] == 2 && bounds[2] == 5 && bounds[6] == 100);
  g_assert_cmpuint(oct_histogram_bounds_125(bounds, 1e300), ==, OCT_HISTOGRAM_BOUNDS_MAX);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/obs/metrics/format", test_format);
  g_test_add_func("/obs/metrics/numbers-read-back", test_numbers);
  g_test_add_func("/obs/metrics/histogram-buckets-add-up", test_histogram);
  g_test_add_func("/obs/metrics/bounds", test_bounds);
  return g_test_run();
}
