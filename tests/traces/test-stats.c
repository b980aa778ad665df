/* What info computes, on a trace small enough to count by hand. */
#include <math.h>

#include <glib.h>

#include "tests/traces/fixture.h"
#include "traces/stats.h"

static oct_trace_stats *
stats_of(const char *text) {
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  oct_trace_stats *stats = oct_trace_stats_new();
  oct_trace_request row;
  GError *error = NULL;
  while (oct_trace_next(trace, &row, &error))
    oct_trace_stats_add(stats, &row);
  g_assert_no_error(error);
  return stats;
}

static void
test_arrivals(void) {
  g_autoptr(oct_trace_stats) stats =
      stats_of("{\"arrival_us\":0,\"input_tokens\":10,\"output_tokens\":1}\n"
               "{\"arrival_us\":500000,\"input_tokens\":20,\"output_tokens\":2}\n"
               "{\"arrival_us\":2000000,\"input_tokens\":30,\"output_tokens\":3}\n"
               "{\"input_tokens\":40,\"output_tokens\":4,\"parent\":2,\"session\":9}\n"
               "{\"arrival_us\":62000000,\"input_tokens\":50,\"output_tokens\":5}\n");
  oct_trace_summary s = oct_trace_stats_summary(stats);
  g_assert_cmpuint(s.n_requests, ==, 5);
  g_assert_cmpuint(s.n_timed, ==, 4);
  g_assert_cmpuint(s.n_dependents, ==, 1);
  g_assert_cmpuint(s.n_sessions, ==, 1);
  g_assert_cmpfloat(s.span_s, ==, 62);
  g_assert_cmpfloat_with_epsilon(s.rate, 4.0 / 62, 1e-12);
  g_assert_cmpfloat(s.peak_1s, ==, 2);
  g_assert_cmpfloat_with_epsilon(s.peak_60s, 3.0 / 60, 1e-12);
  /* Gaps 0.5, 1.5, 60: mean 62/3, population deviation by definition. */
  double mean = 62.0 / 3;
  double squares = (pow(0.5 - mean, 2) + pow(1.5 - mean, 2) + pow(60 - mean, 2)) / 3;
  g_assert_cmpfloat_with_epsilon(s.gap_mean_s, mean, 1e-9);
  g_assert_cmpfloat_with_epsilon(s.gap_cv, sqrt(squares) / mean, 1e-9);
  g_assert_cmpuint(s.input_tokens, ==, 150);
  g_assert_cmpuint(s.output_tokens, ==, 15);
  g_assert_cmpint(oct_hist_percentile(s.input, 50), ==, 30);
}

static void
test_prefixes(void) {
#define ROW_OF(ids, more)                                                                          \
  "{\"arrival_us\":0,\"input_tokens\":40,\"output_tokens\":30,\"block_size\":16,\"hash_ids\":" ids \
      more "}\n"
  /* The third shares its second block's id with the first, but not its prefix. */
  g_autoptr(oct_trace_stats) stats =
      stats_of(ROW_OF("[1,2,3]", ",\"output_hash_ids\":[4,5]") ROW_OF("[1,2,9]", "")
                   ROW_OF("[8,2,3]", "") ROW_OF("[1,2,4]", "") ROW_OF("[1,2,3]", ""));
  oct_trace_summary s = oct_trace_stats_summary(stats);
  g_assert_cmpuint(s.n_blocks, ==, 15);
  /* Second: 1 2. Fourth: 1 2, and 4 as the output of the first. Fifth: all, 40 tokens. */
  g_assert_cmpuint(s.n_hit_blocks, ==, 2 + 2 + 3);
  g_assert_cmpuint(s.hit_tokens, ==, 32 + 32 + 40);
  g_assert_cmpuint(s.n_hit_blocks_outputs, ==, 2 + 3 + 3);
  g_assert_cmpuint(s.n_distinct_blocks, ==, 9);
}

static void
test_shares(void) {
#define CLASS(name, priority)                                                                      \
  "{\"arrival_us\":0,\"input_tokens\":1,\"output_tokens\":1,\"class\":\"" name                     \
  "\",\"priority\":" #priority "}\n"
  g_autoptr(oct_trace_stats) stats =
      stats_of(CLASS("b", 1) CLASS("a", 1) CLASS("c", 0) CLASS("c", -4) CLASS("", 0) CLASS("c", 1));
  static const char *const classes[] = {"c", "", "a", "b"};
  static const gint32 priorities[] = {1, 0, -4};
  oct_trace_share share;
  for (guint i = 0; i < 4; i++) {
    g_assert_true(oct_trace_stats_class(stats, i, &share));
    g_assert_cmpstr(share.class_name, ==, classes[i]);
    g_assert_cmpuint(share.n_requests, ==, i == 0 ? 3 : 1);
  }
  g_assert_false(oct_trace_stats_class(stats, 4, &share));
  for (guint i = 0; i < 3; i++) {
    g_assert_true(oct_trace_stats_priority(stats, i, &share));
    g_assert_cmpint(share.priority, ==, priorities[i]);
  }
  g_assert_false(oct_trace_stats_priority(stats, 3, &share));
}

static void
test_empty(void) {
  g_autoptr(oct_trace_stats) stats = oct_trace_stats_new();
  oct_trace_summary s = oct_trace_stats_summary(stats);
  g_assert_cmpuint(s.n_requests, ==, 0);
  g_assert_cmpfloat(s.rate, ==, 0);
  g_assert_true(isnan(s.gap_cv));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/traces/stats/arrivals-agree-with-counting", test_arrivals);
  g_test_add_func("/traces/stats/prefix-hits-want-the-whole-prefix", test_prefixes);
  g_test_add_func("/traces/stats/classes-and-priorities-by-frequency", test_shares);
  g_test_add_func("/traces/stats/of-nothing-are-nothing", test_empty);
  return g_test_run();
}
