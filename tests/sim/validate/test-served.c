/* Served requests against their twin: what holds, what is missed, and reports that do not fit. */
#include <string.h>

#include "sim/validate/report.h"
#include "sim/validate/served.h"
#include "sim/validate/validate.h"

/* A report whose TTFT has this median and ten times that as its 99th percentile, in seconds. */
static json_t *
report(double p50, double rate) {
  return json_pack("{s{si} s{s{sf sf}} s{s{sf}} s{sf}}", "requests", "measured", 100, "latency_s",
                   "ttft", "p50", p50, "p99", 10 * p50, "throughput", "whole_run", "requests_per_s",
                   rate, "verdict", "backlog_tokens_per_s", 7.0);
}

static json_t *
validate(double predicted_p50, const double *p50, guint n, GError **error) {
  json_t *twin = report(predicted_p50, 10), *measured = json_array();
  for (guint i = 0; i < n; i++)
    json_array_append_new(measured, report(p50[i], 10.2));
  json_t *part = oct_validate_served(twin, measured, error);
  json_decref(twin);
  json_decref(measured);
  return part;
}

static json_t *
row(const json_t *part, guint i) {
  const json_t *table = json_array_get(json_object_get(part, "tables"), 0);
  return json_array_get(json_object_get(table, "rows"), i);
}

static void
is_row(const json_t *part, guint i, const char *name, double median, double off,
       const char *verdict) {
  json_t *cells = row(part, i);
  g_assert_cmpstr(json_string_value(json_array_get(cells, 0)), ==, name);
  g_assert_cmpfloat_with_epsilon(json_number_value(json_array_get(cells, 2)), median, 1e-9);
  g_assert_cmpfloat_with_epsilon(json_number_value(json_array_get(cells, 5)), off, 1e-6);
  g_assert_cmpstr(json_string_value(json_array_get(cells, 7)), ==, verdict);
}

static void
errors_are_from_the_median(void) {
  g_autoptr(GError) error = NULL;
  static const double repeats[] = {0.100, 0.130, 0.110, 0.105};
  json_t *part = validate(0.1161, repeats, 4, &error);
  g_assert_no_error(error);
  /* 8 % off the median of 107.5 ms: within 10 % of the p99, and between the repeats for the p50. */
  is_row(part, 0, "TTFT p50, ms", 107.5, 8, "held: between the repeats");
  is_row(part, 1, "TTFT p99, ms", 1075, 8, "held");
  is_row(part, 2, "requests/s, whole run", 10.2, (10 / 10.2 - 1) * 100, "held");
  is_row(part, 3, "backlog, tokens/s", 7, 0, "");
  g_assert_null(row(part, 4));
  json_decref(part);
}

static void
two_runs_are_no_interval(void) {
  g_autoptr(GError) error = NULL;
  static const double repeats[] = {0.100, 0.140};
  json_t *part = validate(0.1, repeats, 2, &error);
  g_assert_no_error(error);
  is_row(part, 0, "TTFT p50, ms", 120, (100.0 / 120 - 1) * 100, "MISSED");
  json_decref(part);
}

static void
other_requests_are_refused(void) {
  g_autoptr(GError) error = NULL;
  json_t *twin = report(0.1, 1), *measured = json_array(), *other = report(0.1, 1);
  json_object_set_new(json_object_get(other, "requests"), "measured", json_integer(99));
  json_array_append_new(measured, report(0.1, 1));
  json_array_append_new(measured, other);
  g_assert_null(oct_validate_served(twin, measured, &error));
  g_assert_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA);
  g_assert_nonnull(strstr(error->message, "measured report 2"));
  g_assert_nonnull(strstr(error->message, "99"));
  g_clear_error(&error);
  json_object_del(twin, "latency_s");
  g_assert_null(oct_validate_served(twin, measured, &error));
  g_assert_nonnull(strstr(error->message, "the prediction has no latencies"));
  json_decref(twin);
  json_decref(measured);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/validate/served/errors-are-from-the-repeats-median",
                  errors_are_from_the_median);
  g_test_add_func("/sim/validate/served/two-runs-are-no-interval", two_runs_are_no_interval);
  g_test_add_func("/sim/validate/served/other-requests-are-refused", other_requests_are_refused);
  return g_test_run();
}
