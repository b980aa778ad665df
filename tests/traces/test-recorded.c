/* Recorded traces of others, read where they lie; their figures were computed independently of this
 * code (Python's csv, json and statistics). Also: what the presets generate, against them. */
#include <math.h>
#include <string.h>

#include <glib.h>

#include "tests/traces/fixture.h"
#include "traces/gen.h"
#include "traces/servegen.h"
#include "traces/stats.h"

typedef struct figures {
  guint64 n;
  double span_s, rate, gap_cv;
  double input[3], output[3]; /* mean, p50, p99 */
  double block_hits;          /* share; -1: lengths only */
} figures;

static oct_trace_stats *
stats_of(oct_trace *trace) {
  oct_trace_stats *stats = oct_trace_stats_new();
  oct_trace_request row;
  GError *error = NULL;
  while (oct_trace_next(trace, &row, &error))
    oct_trace_stats_add(stats, &row);
  g_assert_no_error(error);
  return stats;
}

static void
assert_lengths(const oct_hist *hist, const double wanted[3]) {
  g_assert_cmpfloat_with_epsilon(oct_hist_mean(hist), wanted[0], 0.005 + wanted[0] * 1e-6);
  g_assert_cmpfloat_with_epsilon((double)oct_hist_percentile(hist, 50), wanted[1],
                                 0.5 + wanted[1] * 1e-3);
  g_assert_cmpfloat_with_epsilon((double)oct_hist_percentile(hist, 99), wanted[2],
                                 0.5 + wanted[2] * 1e-3);
}

static void
check(const char *name, oct_trace_format format, const figures *f) {
  g_autofree char *path = oct_test_shared(name);
  if (path == NULL)
    return;
  GError *error = NULL;
  g_autoptr(oct_trace) trace = oct_trace_open(path, NULL, &error);
  g_assert_no_error(error);
  g_autoptr(oct_trace_stats) stats = stats_of(trace);
  oct_trace_summary s = oct_trace_stats_summary(stats);
  g_assert_cmpint(oct_trace_get_facts(trace)->format, ==, format);
  g_assert_cmpuint(s.n_requests, ==, f->n);
  g_assert_cmpfloat_with_epsilon(s.span_s, f->span_s, 0.001);
  g_assert_cmpfloat_with_epsilon(s.rate, f->rate, 0.005);
  g_assert_cmpfloat_with_epsilon(s.gap_cv, f->gap_cv, 0.005);
  assert_lengths(s.input, f->input);
  assert_lengths(s.output, f->output);
  g_assert_cmpint(oct_trace_get_facts(trace)->has_hash_ids, ==, f->block_hits >= 0);
  if (f->block_hits >= 0)
    g_assert_cmpfloat_with_epsilon((double)s.n_hit_blocks / (double)s.n_blocks, f->block_hits,
                                   1e-6);
}

static void
test_azure_conv(void) {
  static const figures f = {
      19366, 3501.722, 5.53, 1.094, {1154.698, 1020, 4142}, {211.126, 129, 601}, -1};
  check("traces/azure2023_conv.csv", OCT_TRACE_FORMAT_AZURE, &f);
}

static void
test_azure_code(void) {
  static const figures f = {
      8819, 3435.948, 2.567, 13.151, {2047.848, 1469, 7436}, {27.883, 13, 252}, -1};
  check("traces/azure2023_code.csv", OCT_TRACE_FORMAT_AZURE, &f);
}

static void
test_mooncake(void) {
  static const figures f = {12031,
                            3536.999,
                            3.401,
                            3.033,
                            {12035.061, 6909, 85401},
                            {342.619, 350, 1120},
                            0.3664124783362218};
  check("traces/mooncake_conversation.jsonl", OCT_TRACE_FORMAT_MOONCAKE, &f);
}

static void
test_sharegpt(void) {
  static const figures f = {
      300, 29.137, 10.296, 0.94, {857.463, 730, 2764}, {652.51, 631, 784}, 0.07652741186802157};
  check("traces/sharegpt300_llama31_hash16.jsonl", OCT_TRACE_FORMAT_MOONCAKE, &f);
}

/* The ticks are seen, and spreading leaves each request within its own. */
static void
test_mooncake_spread(void) {
  g_autofree char *path = oct_test_shared("traces/mooncake_conversation.jsonl");
  if (path == NULL)
    return;
  oct_trace_options options;
  oct_trace_options_init(&options);
  g_autoptr(oct_trace) recorded = oct_trace_open(path, &options, NULL);
  options.spread = TRUE;
  g_autoptr(oct_trace) spread = oct_trace_open(path, &options, NULL);
  oct_trace_request a, b;
  gint64 last_ns = -1;
  guint64 n_together = 0;
  while (oct_trace_next(recorded, &a, NULL)) {
    g_assert_true(oct_trace_next(spread, &b, NULL));
    g_assert_cmpint(b.arrival_ns, >=, a.arrival_ns);
    g_assert_cmpint(b.arrival_ns, <, a.arrival_ns + 3003000000);
    g_assert_cmpint(b.arrival_ns, >=, last_ns);
    n_together += b.arrival_ns == last_ns;
    last_ns = b.arrival_ns;
  }
  g_assert_cmpuint(n_together, ==, 0);
  g_assert_true(oct_trace_get_facts(recorded)->quantised);
  g_assert_cmpuint(oct_trace_get_facts(recorded)->n_distinct_arrivals, ==, 1180);
  g_assert_true(oct_trace_get_facts(spread)->spread);
}

/* --- presets ---------------------------------------------------------------------------------- */

typedef struct fit {
  const char *source;
  double rate, gap_cv, input, output, turns, hits; /* means, shares; -1: not compared */
  double tolerance;                                /* relative, of rate and means */
} fit;

/* Sources, see traces/presets.c. What a preset assumes is not compared. Rates are of sessions. */
static const fit fits[] = {
    {"gen:chat-150,requests=40000", 150, 1, 1200, 800, -1, -1, 0.02},
    {"gen:azure-conv-2023,requests=40000", 5.53, 1.094, 1154.7, 211.1, -1, -1, 0.03},
    {"gen:azure-code-2023,requests=200000", 2.567, 13.15, 2047.8, 27.9, -1, -1, 0.05},
    {"gen:mooncake-conversation,requests=40000", 2.282, 1, 12035, 342.6, 1.49, 0.366, 0.1},
    {"gen:sharegpt,requests=20000", 9.2, 1, 857.5, 652.5, 1.12, 0.0765, 0.05},
    {"gen:agentic,requests=40000", -1, -1, 46000, 350, 34, 0.942, 0.12},
};

static void
assert_near(double value, double wanted, double tolerance) {
  if (wanted > 0)
    g_assert_cmpfloat_with_epsilon(value, wanted, wanted * tolerance);
}

static void
test_presets(void) {
  for (gsize i = 0; i < G_N_ELEMENTS(fits); i++) {
    const fit *f = &fits[i];
    GError *error = NULL;
    g_autoptr(oct_trace) trace = oct_trace_open(f->source, NULL, &error);
    g_assert_no_error(error);
    g_autoptr(oct_trace_stats) stats = stats_of(trace);
    oct_trace_summary s = oct_trace_stats_summary(stats);
    g_test_message("%s: rate %.3f cv %.2f input %.1f output %.1f", f->source, s.rate, s.gap_cv,
                   oct_hist_mean(s.input), oct_hist_mean(s.output));
    assert_near(s.rate, f->rate, f->tolerance);
    assert_near(s.gap_cv, f->gap_cv, 0.05);
    assert_near(oct_hist_mean(s.input), f->input, f->tolerance);
    assert_near(oct_hist_mean(s.output), f->output, f->tolerance);
    if (f->turns > 0)
      assert_near((double)s.n_requests / (double)s.n_sessions, f->turns, f->tolerance);
    if (f->hits > 0)
      g_assert_cmpfloat_with_epsilon((double)s.n_hit_blocks / (double)s.n_blocks, f->hits, 0.035);
  }
}

/* --- servegen --------------------------------------------------------------------------------- */

static void
test_servegen(void) {
  g_autofree char *path = oct_test_shared("traces/servegen/language/m-small/chunk-18-trace.csv");
  if (path == NULL)
    return;
  char *paths[] = {path, NULL};
  GError *error = NULL;
  /* What the recorded rates of this client expect from 18:00 to 19:00 of the first day. */
  g_autofree char *text = NULL;
  double wanted = 0;
  g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  for (gsize i = 0; lines[i] != NULL; i++) {
    double from = g_ascii_strtod(lines[i], NULL);
    if (from >= 64800 && from < 68400)
      wanted += 600 * g_ascii_strtod(strchr(lines[i], ',') + 1, NULL);
  }
  g_autoptr(oct_servegen) client = oct_servegen_new(paths, 64800, 3600, 0, 1, &error);
  g_assert_no_error(error);
  oct_servegen_event event;
  guint64 n = 0;
  gint64 last_ns = 0;
  while (oct_servegen_next(client, &event)) {
    g_assert_cmpint(event.arrival_ns, >=, last_ns);
    g_assert_cmpint(event.arrival_ns, <, 3600 * G_GINT64_CONSTANT(1000000000));
    g_assert_cmpuint(event.input_tokens, >=, 1);
    g_assert_cmpstr(event.client, ==, "chunk-18");
    last_ns = event.arrival_ns;
    n++;
  }
  g_assert_cmpuint(n, >, 1000);
  g_assert_cmpfloat_with_epsilon((double)n, wanted, wanted * 0.03);
  /* A given rate scales it. */
  g_autoptr(oct_servegen) scaled = oct_servegen_new(paths, 64800, 3600, 5, 1, &error);
  for (n = 0; oct_servegen_next(scaled, &event);)
    n++;
  g_assert_cmpfloat_with_epsilon((double)n, 18000, 18000 * 0.06);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/traces/recorded/azure-conversation-2023-has-its-figures", test_azure_conv);
  g_test_add_func("/traces/recorded/azure-code-2023-has-its-figures", test_azure_code);
  g_test_add_func("/traces/recorded/mooncake-conversation-has-its-figures", test_mooncake);
  g_test_add_func("/traces/recorded/mooncake-ticks-are-spread", test_mooncake_spread);
  g_test_add_func("/traces/recorded/sharegpt-has-its-figures", test_sharegpt);
  g_test_add_func("/traces/presets/have-the-figures-of-their-sources", test_presets);
  g_test_add_func("/traces/recorded/servegen-clients-keep-their-rates", test_servegen);
  return g_test_run();
}
