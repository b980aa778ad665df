/* Objectives and durations as text. */
#include "sim/replay/slo.h"

static void
test_reads(void) {
  oct_slo slo;
  g_autoptr(GError) error = NULL;
  gboolean good = oct_slo_parse(
      &slo, "ttft_p99=2s,ttft=10s,tpot_p99.9=50ms,e2e_mean=1.5min,itl_p50=250us", &error);
  g_assert_no_error(error);
  g_assert_true(good);
  g_assert_cmpuint(slo.n_items, ==, 5);
  g_assert_cmpstr(slo.items[0].name, ==, "ttft_p99");
  g_assert_cmpint(slo.items[0].latency, ==, OCT_LATENCY_TTFT);
  g_assert_cmpfloat(slo.items[0].percent, ==, 99);
  g_assert_cmpint(slo.items[0].limit_ns, ==, 2000000000);
  g_assert_cmpfloat(slo.items[1].percent, ==, 100);
  g_assert_cmpfloat(slo.items[2].percent, ==, 99.9);
  g_assert_cmpint(slo.items[2].limit_ns, ==, 50000000);
  g_assert_true(slo.items[3].is_mean);
  g_assert_cmpint(slo.items[3].limit_ns, ==, 90000000000);
  g_assert_cmpint(slo.items[4].limit_ns, ==, 250000);
  /* The smallest limit of a metric is each request's; a mean is nobody's. */
  g_assert_cmpint(slo.each_ns[OCT_LATENCY_TTFT], ==, 2000000000);
  g_assert_cmpint(slo.each_ns[OCT_LATENCY_E2E], ==, OCT_SLO_NONE);
}

static void
test_refuses(void) {
  static const char *const bad[] = {
      "",           "ttft",           "ttft_p99",     "ttft_p99=2",
      "ttft_p0=1s", "ttft_p101=1s",   "ttft_q99=1s",  "latency=1s",
      "ttft=-1s",   "ttft=0s",        "ttft=1parsec", "ttft=nans",
      "ttft=1e30h", "ttft_p99=1s,",   "ttft_p99x=1s", "ttft_=1s",
      "tt=1s",      "ttft_mean2=10s", "ttft_p9a=1s",  "ttft=1s,ttft=2s"};
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
    oct_slo slo;
    g_autoptr(GError) error = NULL;
    if (oct_slo_parse(&slo, bad[i], &error))
      g_error("\"%s\" was accepted", bad[i]);
    g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION);
  }
}

static void
test_durations(void) {
  static const struct {
    const char *text;
    gint64 ns;
  } good[] = {{"1ns", 1},
              {"1.5us", 1500},
              {"0s", 0},
              {"2min", 120000000000},
              {"1h", 3600000000000},
              {"0.25s", 250000000}};
  for (gsize i = 0; i < G_N_ELEMENTS(good); i++) {
    gint64 ns = -1;
    g_autoptr(GError) error = NULL;
    g_assert_true(oct_duration_parse("x", good[i].text, FALSE, &ns, &error));
    g_assert_cmpint(ns, ==, good[i].ns);
  }
  gint64 ns = 0;
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_duration_parse("warmup", "soon", FALSE, &ns, &error));
  g_assert_nonnull(strstr(error->message, "warmup"));
  g_assert_nonnull(strstr(error->message, "soon"));
}

static void
test_good(void) {
  oct_slo slo;
  g_assert_true(oct_slo_parse(&slo, "ttft_p99=2s,tpot_p50=50ms", NULL));
  const gint64 met[OCT_LATENCY_COUNT] = {2000000000, 50000000, -1, G_MAXINT64 - 1, -1};
  const gint64 late[OCT_LATENCY_COUNT] = {2000000001, 1, -1, 1, -1};
  const gint64 slow[OCT_LATENCY_COUNT] = {1, 50000001, -1, 1, -1};
  const gint64 one_token[OCT_LATENCY_COUNT] = {1, -1, -1, 1, -1};
  g_assert_true(oct_slo_is_good(&slo, met));
  g_assert_false(oct_slo_is_good(&slo, late));
  g_assert_false(oct_slo_is_good(&slo, slow));
  g_assert_true(oct_slo_is_good(&slo, one_token));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/replay/slo/reads-metrics-statistics-and-units", test_reads);
  g_test_add_func("/replay/slo/refuses-what-is-no-objective", test_refuses);
  g_test_add_func("/replay/slo/durations-need-a-unit", test_durations);
  g_test_add_func("/replay/slo/a-request-is-good-when-each-of-its-values-is", test_good);
  return g_test_run();
}
