/* Figures in fixed memory: batches, samples, windows, the difference of histograms. */
#include <string.h>

#include "engine/base/rng.h"
#include "sim/replay/metrics.h"

/* A source whose counters grow linearly in time: what a window must find is plain. */
typedef struct source {
  oct_time now;
  guint64 tokens_per_s;
  double backlog_per_s;
  double busy_share; /* of what is sent */
  oct_fate fate;     /* of every request */
  oct_hist *gaps;
} source;

static void
sample(void *user, oct_gauges *gauges) {
  const source *s = user;
  gauges->running = 3;
  gauges->backlog_tokens = s->backlog_per_s * (double)s->now / 1e9;
}

static void
counters(void *user, oct_counters *out) {
  const source *s = user;
  out->sent = (guint64)s->now / 1000000000;
  out->sent_tokens = out->sent * 1000;
  out->busy = (guint64)(s->busy_share * (double)out->sent);
  out->stats.generated_tokens = (guint64)s->now / 1000000000 * s->tokens_per_s;
  for (int h = 0; h < OCT_HIST_COUNT; h++)
    out->hists[h] = oct_hist_new();
  oct_hist_merge(out->hists[OCT_HIST_ITL], s->gaps);
}

static oct_metrics *
new_metrics(source *s, oct_time warmup_ns) {
  oct_metrics_options options = {.warmup_ns = warmup_ns, .source = {s, sample, counters, NULL}};
  oct_slo_init(&options.slo);
  *s = (source){.tokens_per_s = 50, .backlog_per_s = 0, .gaps = oct_hist_new()};
  return oct_metrics_new(&options);
}

/* One arrival a second whose latencies are `e2e(i)`; the run ends at n seconds. */
static void
play(oct_metrics *m, source *s, guint n, gint64 (*e2e)(guint i)) {
  for (guint i = 0; i < n; i++) {
    oct_time now = (oct_time)i * 1000000000;
    for (oct_time t = s->now; t < now; t += 10000000) { /* as a loop of events would */
      s->now = t;
      oct_metrics_advance(m, t);
    }
    s->now = now;
    oct_metrics_advance(m, now);
    oct_hist_add(s->gaps, 1000 + i);
    oct_outcome o = {.fate = s->fate, .arrival_ns = now, .input_tokens = 10, .output_tokens = 5};
    for (int l = 0; l < OCT_LATENCY_COUNT; l++)
      o.value_ns[l] = e2e(i);
    oct_metrics_add(m, &o);
  }
  s->now = (oct_time)n * 1000000000;
  oct_metrics_advance(m, s->now);
  oct_metrics_end_window(m, s->now);
}

static gint64
short_e2e(guint i) {
  return 1000000 + i;
}

static gint64
long_e2e(guint i) {
  return 20000000000 + i;
}

static gint64
longer_e2e(guint i) {
  return 90000000000 + i;
}

/* 10 %, to the next border: batches of 1/32 to 1/16 of the run. */
static void
test_tenth(void) {
  source s;
  oct_metrics *m = new_metrics(&s, -1);
  oct_measured *out = g_new0(oct_measured, 1);
  play(m, &s, 1000, short_e2e);
  oct_metrics_measure(m, out);
  g_assert_cmpint(out->from_ns, >=, 100000000000);
  g_assert_cmpint(out->from_ns, <=, 165000000000);
  g_assert_cmpint(out->end_ns, ==, 1000000000000);
  guint first = (guint)((out->from_ns + 999999999) / 1000000000);
  g_assert_cmpuint(out->requests, ==, 1000 - first);
  g_assert_cmpuint(out->good, ==, 1000 - first);
  g_assert_cmpuint(out->output_tokens, ==, 5 * (1000 - first));
  const oct_hist *e2e = out->latency[OCT_LATENCY_E2E];
  g_assert_cmpuint(oct_hist_count(e2e), ==, 1000 - first);
  g_assert_cmpint(oct_hist_min(e2e), ==, short_e2e(first));
  g_assert_cmpint(oct_hist_max(e2e), ==, short_e2e(999));
  g_assert_cmpfloat_with_epsilon(oct_hist_mean(e2e), 1000000 + (first + 999) / 2.0, 1e-6);
  guint64 tokens = out->at_end.stats.generated_tokens - out->at_from.stats.generated_tokens;
  g_assert_cmpuint(tokens, >=, 50 * (1000 - first - 1));
  g_assert_cmpuint(tokens, <=, 50 * (1000 - first + 1));
  g_assert_cmpuint(oct_hist_count(out->steps[OCT_HIST_ITL]), <=, 1000 - first + 1);
  g_assert_cmpuint(oct_hist_count(out->steps[OCT_HIST_ITL]), >=, 1000 - first - 1);
  g_assert_cmpint(out->verdict, ==, OCT_VERDICT_STABLE);
  oct_measured_clear(out);
  oct_metrics_free(m);
  oct_hist_free(s.gaps);
  g_free(out);
}

/* Five mean residence times where that is more; 10 % again where it is more than half. */
static void
test_residence(void) {
  source s;
  oct_metrics *m = new_metrics(&s, -1);
  oct_measured *out = g_new0(oct_measured, 1);
  play(m, &s, 400, long_e2e);
  oct_metrics_measure(m, out);
  g_assert_cmpfloat_with_epsilon(out->residence_mean_s, 20, 1e-3);
  g_assert_cmpint(out->from_ns, >=, 100000000000);
  g_assert_cmpint(out->from_ns, <=, 125000000000);
  g_assert_false(out->too_short);
  oct_measured_clear(out);
  oct_metrics_free(m);
  oct_hist_free(s.gaps);
  m = new_metrics(&s, -1);
  play(m, &s, 400, longer_e2e);
  oct_metrics_measure(m, out);
  g_assert_true(out->too_short);
  g_assert_cmpint(out->from_ns, >=, 40000000000);
  g_assert_cmpint(out->from_ns, <=, 70000000000);
  g_assert_cmpint(out->verdict, ==, OCT_VERDICT_UNDECIDED); /* no backlog, but too short to say */
  oct_measured_clear(out);
  oct_metrics_free(m);
  oct_hist_free(s.gaps);
  g_free(out);
}

static void
test_given(void) {
  source s;
  oct_metrics *m = new_metrics(&s, 123000000000);
  oct_measured *out = g_new0(oct_measured, 1);
  play(m, &s, 400, short_e2e);
  oct_metrics_measure(m, out);
  g_assert_cmpint(out->from_ns, ==, 123000000000);
  g_assert_cmpuint(out->requests, ==, 400 - 123);
  oct_measured_clear(out);
  oct_metrics_free(m);
  oct_hist_free(s.gaps);
  g_free(out);
}

/* A window that was given is long enough from five mean residence times on. */
static void
test_given_short(void) {
  static const guint ends[] = {123 + 99, 123 + 101};
  for (gsize i = 0; i < G_N_ELEMENTS(ends); i++) {
    source s;
    oct_metrics *m = new_metrics(&s, 123000000000);
    oct_measured *out = g_new0(oct_measured, 1);
    play(m, &s, ends[i], long_e2e); /* 20 s */
    oct_metrics_measure(m, out);
    g_assert_cmpint(out->too_short, ==, i == 0);
    g_assert_cmpint(out->verdict, ==, i == 0 ? OCT_VERDICT_UNDECIDED : OCT_VERDICT_STABLE);
    oct_measured_clear(out);
    oct_metrics_free(m);
    oct_hist_free(s.gaps);
    g_free(out);
  }
}

static void
test_saturated(void) {
  source s;
  oct_metrics *m = new_metrics(&s, -1);
  oct_measured *out = g_new0(oct_measured, 1);
  s.backlog_per_s = 100; /* of 1000 tokens that arrive */
  play(m, &s, 400, short_e2e);
  oct_metrics_measure(m, out);
  g_assert_cmpint(out->verdict, ==, OCT_VERDICT_SATURATED);
  g_assert_cmpfloat_with_epsilon(out->backlog.slope, 100, 1);
  oct_measured_clear(out);
  oct_metrics_free(m);
  oct_hist_free(s.gaps);
  g_free(out);
}

/* The verdict on a run whose backlog does not grow. */
static oct_verdict
verdict_on(double busy_share, oct_fate fate) {
  source s;
  oct_metrics *m = new_metrics(&s, -1);
  oct_measured *out = g_new0(oct_measured, 1);
  s.busy_share = busy_share;
  s.fate = fate;
  play(m, &s, 1000, short_e2e);
  oct_metrics_measure(m, out);
  oct_verdict verdict = out->verdict;
  oct_measured_clear(out);
  oct_metrics_free(m);
  oct_hist_free(s.gaps);
  g_free(out);
  return verdict;
}

/* A full queue keeps the backlog level and turns away what is too much. */
static void
test_turned_away(void) {
  g_assert_cmpint(verdict_on(0.01, OCT_FATE_ANSWERED), ==, OCT_VERDICT_SATURATED);
  g_assert_cmpint(verdict_on(0.003, OCT_FATE_ANSWERED), ==, OCT_VERDICT_STABLE);
  g_assert_cmpint(verdict_on(0, OCT_FATE_REFUSED), ==, OCT_VERDICT_UNDECIDED);
}

static void
test_fates(void) {
  source s;
  oct_metrics *m = new_metrics(&s, 0);
  oct_measured *out = g_new0(oct_measured, 1);
  for (int f = 0; f < OCT_FATE_COUNT; f++) {
    oct_outcome o = {.fate = (oct_fate)f, .arrival_ns = 5};
    for (int l = 0; l < OCT_LATENCY_COUNT; l++)
      o.value_ns[l] = f == OCT_FATE_ANSWERED ? 7 : -1;
    oct_metrics_add(m, &o);
  }
  s.now = 1000000000;
  oct_metrics_advance(m, s.now);
  oct_metrics_end_window(m, s.now);
  oct_metrics_measure(m, out);
  g_assert_cmpuint(out->requests, ==, OCT_FATE_COUNT);
  for (int f = 0; f < OCT_FATE_COUNT; f++)
    g_assert_cmpuint(out->fates[f], ==, 1);
  g_assert_cmpuint(out->good, ==, 1); /* who was not answered has missed */
  g_assert_cmpuint(oct_hist_count(out->latency[OCT_LATENCY_TTFT]), ==, 1);
  oct_measured_clear(out);
  oct_metrics_free(m);
  oct_hist_free(s.gaps);
  g_free(out);
}

static void
test_difference(void) {
  oct_hist *a = oct_hist_new(), *b = oct_hist_new(), *fresh = oct_hist_new();
  oct_rng rng;
  oct_rng_seed(&rng, 9, 9);
  for (int i = 0; i < 20000; i++) {
    gint64 value = (gint64)oct_rng_below(&rng, 1u << (1 + i % 30));
    oct_hist_add(b, value);
    oct_hist_add(i < 8000 ? a : fresh, value);
  }
  oct_hist *difference = oct_hist_difference(a, b);
  g_assert_cmpuint(oct_hist_count(difference), ==, 12000);
  for (int p = 1; p < 100; p++) {
    double got = (double)oct_hist_percentile(difference, p);
    double wanted = (double)oct_hist_percentile(fresh, p);
    g_assert_cmpfloat_with_epsilon(got, wanted, 1 + 0.001 * wanted);
  }
  g_assert_cmpfloat_with_epsilon(oct_hist_mean(difference), oct_hist_mean(fresh),
                                 0.001 * oct_hist_mean(fresh));
  oct_hist_free(a);
  oct_hist_free(b);
  oct_hist_free(fresh);
  oct_hist_free(difference);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/replay/metrics/the-window-leaves-out-a-tenth", test_tenth);
  g_test_add_func("/replay/metrics/or-five-residence-times", test_residence);
  g_test_add_func("/replay/metrics/a-given-warm-up-is-exact", test_given);
  g_test_add_func("/replay/metrics/a-given-window-has-five-residences", test_given_short);
  g_test_add_func("/replay/metrics/a-growing-backlog-is-saturation", test_saturated);
  g_test_add_func("/replay/metrics/turning-away-is-saturation-too", test_turned_away);
  g_test_add_func("/replay/metrics/refused-and-failed-requests-are-not-good", test_fates);
  g_test_add_func("/replay/metrics/histograms-can-be-subtracted", test_difference);
  return g_test_run();
}
