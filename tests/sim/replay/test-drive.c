/* The loop: conservation, order, kinds of load, several engines, what it writes. On mock. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/replay/bed.h"

static void
must_run(bed *b, const char *trace) {
  g_autoptr(GError) error = NULL;
  gboolean good = bed_run(b, trace, &error);
  g_assert_no_error(error);
  g_assert_true(good);
}

static double
relative(double a, double b) {
  return fabs(a - b) / MAX(fabs(a), fabs(b));
}

/* ---------------------------------------------------------------- theory */

/* Arrivals during a step wait for its end and all go into the next; PASTA and a uniform rest give
 * W = P(busy) x tau / 2, P(busy) = tau e^(l tau) / (tau e^(l tau) + 1 / l). */
static void
test_batch_server(void) {
  static const double loads[] = {0.2, 1, 3};
  for (guint i = 0; i < G_N_ELEMENTS(loads); i++) {
    const double tau = 1e6, lambda = loads[i] / tau; /* ns, per ns */
    bed b;
    bed_init(&b);
    b.mock.fixed_ns = (gint64)tau;
    b.mock.token_ns = b.mock.sequence_ns = 0;
    b.mock.context_ns = 0;
    b.drive.engine.max_num_seqs = 4096;
    b.drive.engine.max_num_batched_tokens = 8192;
    b.drive.engine.run_ahead = 0;
    g_autofree char *trace = g_strdup_printf(
        "gen:rate=%.17g,input=1,output=1,requests=200000,seed=%u", lambda * 1e9, i + 1);
    must_run(&b, trace);
    double sum = 0, means[40] = {0}, variance = 0;
    guint n = b.outcomes->len;
    for (guint k = 0; k < n; k++) {
      double wait = (double)bed_outcome(&b, k)->value_ns[OCT_LATENCY_TTFT] - tau;
      sum += wait / n;
      means[k * 40 / n] += wait / (n / 40.0);
    }
    for (guint k = 0; k < 40; k++)
      variance += (means[k] - sum) * (means[k] - sum) / 39;
    double long_arm = tau * exp(lambda * tau);
    double wanted = long_arm / (long_arm + 1 / lambda) * tau / 2, error = sqrt(variance / 40);
    g_test_message("load %.1f: mean wait %.1f us, theory %.1f us, standard error %.2f us", loads[i],
                   sum / 1e3, wanted / 1e3, error / 1e3);
    g_assert_cmpfloat(fabs(sum - wanted), <=, 3 * error);
    bed_clear(&b);
  }
}

/* L = lambda W: the integral of the number in the system against the sum of residence times. */
static void
test_little(void) {
  static const char *const traces[] = {
      "gen:rate=40,input=uniform:10:3000,output=uniform:1:200,requests=3000",
      "gen:rate=5,input=500,output=uniform:1:100,turns=geometric:4,think=0.3,requests=2000",
      "gen:concurrency=16,input=uniform:10:3000,output=uniform:1:200,requests=2000"};
  for (guint i = 0; i < G_N_ELEMENTS(traces); i++) {
    bed b;
    bed_init(&b);
    must_run(&b, traces[i]);
    g_assert_cmpuint(b.result.ended, ==, b.result.sent);
    double span = (double)b.result.span_ns / 1e9, n = (double)b.result.ended;
    double l = b.result.integral_request_s / span;
    double lambda_w = n / span * (b.result.residence_sum_s / n);
    g_test_message("L = %.9f, lambda W = %.9f", l, lambda_w);
    g_assert_cmpfloat(l, >, 0.5);
    g_assert_cmpfloat(relative(l, lambda_w), <=, 1e-9);
    bed_clear(&b);
  }
}

/* ---------------------------------------------------------------- kinds of load */

static void
test_closed_loop(void) {
  bed b;
  bed_init(&b);
  must_run(&b, "gen:concurrency=7,input=100,output=50,requests=700");
  g_assert_true(b.result.closed_loop);
  g_assert_cmpuint(b.result.concurrency, ==, 7);
  g_assert_cmpint(b.result.measured.verdict, ==, OCT_VERDICT_CLOSED);
  /* Seven at a time, always. */
  double l = b.result.integral_request_s / ((double)b.result.span_ns / 1e9);
  g_assert_cmpfloat(l, >, 6.9);
  g_assert_cmpfloat(l, <=, 7 + 1e-9);
  bed_clear(&b);
}

/* A turn is sent think time after the client has had its parent's last token. */
static void
test_think_times(void) {
  bed b;
  bed_init(&b);
  b.drive.request_out_per_token_ns = 3000;
  must_run(&b, "gen:rate=1,input=100,output=20,turns=5,think=0.75,requests=5");
  for (guint i = 1; i < 5; i++) {
    const oct_outcome *parent = bed_outcome(&b, i - 1), *turn = bed_outcome(&b, i);
    g_assert_cmpint(turn->arrival_ns, ==,
                    parent->arrival_ns + parent->value_ns[OCT_LATENCY_E2E] + 750000000);
  }
  bed_clear(&b);
}

static void
test_host_times(void) {
  bed b, without;
  bed_init(&b);
  bed_init(&without);
  const char *trace = "gen:rate=0.5,input=100,output=20,requests=5"; /* alone in the engine */
  must_run(&without, trace);
  b.drive.request_in_ns = 500000;
  b.drive.request_out_per_token_ns = 7000;
  must_run(&b, trace);
  for (guint i = 0; i < 5; i++) {
    const oct_outcome *a = bed_outcome(&without, i), *o = bed_outcome(&b, i);
    g_assert_cmpint(o->arrival_ns, ==, a->arrival_ns);
    g_assert_cmpint(o->value_ns[OCT_LATENCY_TTFT], ==, a->value_ns[OCT_LATENCY_TTFT] + 507000);
    g_assert_cmpint(o->value_ns[OCT_LATENCY_E2E], ==, a->value_ns[OCT_LATENCY_E2E] + 507000);
    g_assert_cmpint(o->value_ns[OCT_LATENCY_TPOT], ==, a->value_ns[OCT_LATENCY_TPOT]);
    g_assert_cmpint(o->value_ns[OCT_LATENCY_QUEUE], ==, a->value_ns[OCT_LATENCY_QUEUE]);
  }
  bed_clear(&b);
  bed_clear(&without);
}

/* TPOT is what is left of E2E behind the first token, over the gaps. */
static void
test_tpot(void) {
  bed b;
  bed_init(&b);
  must_run(&b, "gen:rate=100,input=uniform:1:2000,output=uniform:1:50,requests=1000");
  for (guint i = 0; i < 1000; i++) {
    const oct_outcome *o = bed_outcome(&b, i);
    gint64 rest = o->value_ns[OCT_LATENCY_E2E] - o->value_ns[OCT_LATENCY_TTFT];
    g_assert_cmpint(rest, >=, 0);
    if (o->output_tokens < 2) {
      g_assert_cmpint(o->value_ns[OCT_LATENCY_TPOT], ==, -1);
      continue;
    }
    g_assert_cmpint(o->value_ns[OCT_LATENCY_TPOT], ==, rest / (o->output_tokens - 1));
    g_assert_cmpint(o->value_ns[OCT_LATENCY_ITL], >=, o->value_ns[OCT_LATENCY_TPOT]);
  }
  bed_clear(&b);
}

/* What arrives until the end is measured, and load goes on until it has ended. */
static void
test_duration(void) {
  bed b;
  bed_init(&b);
  b.drive.duration_ns = 2000000000;
  must_run(&b, "gen:arrivals=constant,rate=50,input=100,output=400,requests=1000000");
  guint measured = 0;
  for (guint i = 0; i < b.outcomes->len; i++) {
    const oct_outcome *o = bed_outcome(&b, i);
    if (o->arrival_ns < 0)
      continue;
    g_assert_cmpint(o->arrival_ns, <, 2000000000);
    g_assert_cmpint(o->fate, ==, OCT_FATE_ANSWERED);
    measured++;
  }
  g_assert_cmpuint(measured, >=, 99);
  g_assert_cmpuint(measured, <=, 100);
  g_assert_cmpint(b.result.measured.end_ns, ==, 2000000000);
  g_assert_cmpuint(b.result.sent, >, measured + 10); /* the load that went on */
  g_assert_cmpuint(b.result.sent, <, measured + 200);
  bed_clear(&b);
}

/* ---------------------------------------------------------------- lengths and refusals */

static void
test_lengths(void) {
  bed b;
  bed_init(&b);
  b.drive.exact_lengths = FALSE;
  must_run(&b, "gen:rate=20,input=100,output=uniform:1:300,max-tokens=200,requests=500");
  for (guint i = 0; i < 500; i++) /* the generator's client gets what it allowed */
    g_assert_cmpuint(bed_outcome(&b, i)->output_tokens, <=, 200);
  g_assert_cmpuint(b.result.measured.cut, ==, 0);
  g_assert_cmpuint(b.result.unsized, ==, 0);
  /* Without a word of the trace: the distribution, or what the context leaves. */
  const char *trace = "gen:rate=20,input=100,output=uniform:1:300,requests=500";
  must_run(&b, trace);
  g_assert_cmpuint(b.result.unsized, ==, 500);
  g_assert_cmpuint(b.result.measured.cut, ==, 0);
  g_autoptr(oct_dist) dist = oct_dist_parse("100", NULL);
  b.drive.assume_max_tokens = dist;
  must_run(&b, trace);
  guint cut = 0;
  for (guint i = 0; i < 500; i++) {
    const oct_outcome *o = bed_outcome(&b, i);
    g_assert_true(o->cut ? o->output_tokens == 100 : o->output_tokens <= 100);
    cut += o->cut;
  }
  g_assert_cmpuint(cut, >, 250);
  bed_clear(&b);
}

static void
test_refused(void) {
  bed b;
  bed_init(&b);
  b.drive.engine.max_model_len = 1000;
  b.drive.engine.queue_max = 5;
  b.drive.engine.max_num_seqs = 2;
  b.drive.warmup_ns = 0;
  must_run(&b, "gen:rate=inf,input=uniform:500:1500,output=10,requests=40");
  const oct_measured *m = &b.result.measured;
  g_assert_cmpuint(m->fates[OCT_FATE_REFUSED], >, 5); /* too long */
  g_assert_cmpuint(m->fates[OCT_FATE_BUSY], >, 5);
  g_assert_cmpuint(m->fates[OCT_FATE_ANSWERED], >=, 5);
  g_assert_cmpuint(m->requests, ==, 40);
  g_assert_cmpuint(m->good, ==, m->fates[OCT_FATE_ANSWERED]);
  g_assert_nonnull(strstr(b.result.first_refusal, "max-model-len 1000"));
  bed_clear(&b);
}

/* ---------------------------------------------------------------- several engines */

static void
test_replicas(void) {
  bed one, two;
  bed_init(&one);
  bed_init(&two);
  const char *trace = "gen:rate=60,input=uniform:100:2000,output=uniform:10:300,requests=4000";
  one.mock.sequence_ns = two.mock.sequence_ns = 50000;
  two.drive.n_replicas = 2;
  two.digest_log = TRUE;
  must_run(&one, trace);
  must_run(&two, trace);
  g_assert_cmpuint(two.result.ended, ==, 4000);
  double single = oct_hist_mean(one.result.measured.latency[OCT_LATENCY_E2E]);
  double shared = oct_hist_mean(two.result.measured.latency[OCT_LATENCY_E2E]);
  g_test_message("mean E2E: one engine %.1f ms, two %.1f ms", single / 1e6, shared / 1e6);
  g_assert_cmpfloat(shared, <, 0.8 * single);
  oct_hash128 digest = two.digest;
  must_run(&two, trace);
  g_assert_true(oct_hash128_equal(digest, two.digest));
  bed_clear(&one);
  bed_clear(&two);
}

/* Of two idle engines the first is taken, then the other: never one that has more to do. */
static void
test_least_loaded(void) {
  bed b;
  bed_init(&b);
  b.drive.n_replicas = 3;
  char *text = NULL;
  size_t size = 0;
  b.drive.requests = open_memstream(&text, &size);
  must_run(&b, "gen:rate=inf,input=1000,output=50,requests=6");
  fclose(b.drive.requests);
  guint per_replica[3] = {0};
  for (const char *at = text; (at = strstr(at, "\"replica\":")) != NULL; at++)
    per_replica[at[10] - '0']++;
  for (int i = 0; i < 3; i++)
    g_assert_cmpuint(per_replica[i], ==, 2);
  free(text);
  bed_clear(&b);
}

/* ---------------------------------------------------------------- determinism */

static const char *const mixed[] = {
    "gen:rate=30,input=uniform:10:3000,output=uniform:1:300,requests=2000",
    "gen:rate=4,input=500,output=uniform:1:200,turns=geometric:4,think=0.1,requests=1500",
    "gen:concurrency=3,input=100,output=uniform:100:900,requests=300"};

static void
same_log(bed *a, bed *b, const char *trace) {
  a->digest_log = b->digest_log = TRUE;
  must_run(a, trace);
  must_run(b, trace);
  g_assert_cmpuint(a->log_lines, >, 1000);
  g_assert_cmpuint(a->log_lines, ==, b->log_lines);
  g_assert_true(oct_hash128_equal(a->digest, b->digest));
}

static void
test_same_seed(void) {
  for (guint i = 0; i < G_N_ELEMENTS(mixed); i++) {
    bed a, b;
    bed_init(&a);
    bed_init(&b);
    same_log(&a, &b, mixed[i]);
    bed_clear(&a);
    bed_clear(&b);
  }
}

static void
test_forward(void) {
  for (guint replicas = 1; replicas <= 2; replicas++)
    for (guint i = 0; i < G_N_ELEMENTS(mixed); i++) {
      bed forward, step;
      bed_init(&forward);
      bed_init(&step);
      step.drive.engine.no_forward = TRUE;
      forward.drive.n_replicas = step.drive.n_replicas = replicas;
      forward.drive.engine.submit_lead_ns = step.drive.engine.submit_lead_ns = 300000 * (i % 2);
      same_log(&forward, &step, mixed[i]);
      const oct_drive_result *f = &forward.result, *s = &step.result;
      g_assert_cmpuint(s->stats.forwarded_steps, ==, 0);
      if (replicas == 1)
        g_assert_cmpuint(f->stats.forwarded_steps, >, f->stats.steps / 10);
      g_assert_cmpuint(f->stats.steps, ==, s->stats.steps);
      g_assert_cmpint(f->span_ns, ==, s->span_ns);
      /* Samples too: gauges at the same times. */
      g_assert_cmpuint(f->measured.n_samples, ==, s->measured.n_samples);
      g_assert_cmpmem(f->measured.samples, f->measured.n_samples * sizeof(oct_gauges),
                      s->measured.samples, s->measured.n_samples * sizeof(oct_gauges));
      bed_clear(&forward);
      bed_clear(&step);
    }
}

/* Watching changes nothing: other samples, a time line, a file of requests. */
static void
test_watched(void) {
  bed plain, watched;
  bed_init(&plain);
  bed_init(&watched);
  char *requests = NULL, *timeline = NULL;
  size_t n_requests = 0, n_timeline = 0;
  watched.drive.sample_ns = 1234567;
  watched.drive.timeline_ns = 100000000;
  watched.drive.requests = open_memstream(&requests, &n_requests);
  watched.drive.timeline = open_memstream(&timeline, &n_timeline);
  same_log(&plain, &watched, mixed[0]);
  fclose(watched.drive.requests);
  fclose(watched.drive.timeline);
  guint lines = 0, rows = 0;
  for (const char *c = requests; *c != '\0'; c++)
    lines += *c == '\n';
  for (const char *c = timeline; *c != '\0'; c++)
    rows += *c == '\n';
  g_assert_cmpuint(lines, ==, 2000);
  g_assert_cmpuint(rows, ==, 1 + (guint)((watched.result.span_ns - 1) / 100000000));
  g_assert_true(g_str_has_prefix(requests, "{\"index\":"));
  g_assert_true(g_str_has_prefix(timeline, "time_s,running,"));
  free(requests);
  free(timeline);
  bed_clear(&plain);
  bed_clear(&watched);
}

/* ---------------------------------------------------------------- policies */

/* Long prompts among decodes: prefill first holds up decodes by as much as it is allowed. */
static void
test_decode_gap(void) {
  const char *trace = "gen:rate=8,input=uniform:4000:8000,output=200,requests=600";
  bed decode, stage;
  bed_init(&decode);
  bed_init(&stage);
  stage.drive.engine.policy = "stage-aware";
  stage.drive.engine.decode_gap_max_ns = decode.drive.engine.decode_gap_max_ns = 100000000;
  decode.drive.engine.max_num_batched_tokens = stage.drive.engine.max_num_batched_tokens = 2048;
  must_run(&decode, trace);
  must_run(&stage, trace);
  gint64 a = oct_hist_percentile(decode.result.measured.longest_gap, 99);
  gint64 b = oct_hist_percentile(stage.result.measured.longest_gap, 99);
  g_test_message("longest decode gap, p99: decode-first %.1f ms, stage-aware %.1f ms",
                 (double)a / 1e6, (double)b / 1e6);
  g_assert_cmpint(b, >, 3 * a);
  /* The bound, and the step that was under way. */
  g_assert_cmpint(oct_hist_max(stage.result.measured.longest_gap), <, 110000000);
  gint64 first_a = oct_hist_percentile(decode.result.measured.latency[OCT_LATENCY_TTFT], 50);
  gint64 first_b = oct_hist_percentile(stage.result.measured.latency[OCT_LATENCY_TTFT], 50);
  g_assert_cmpint(first_b, <=, first_a); /* what it buys */
  bed_clear(&decode);
  bed_clear(&stage);
}

static void
test_prefixes(void) {
  bed on, off;
  bed_init(&on);
  bed_init(&off);
  const char *trace =
      "gen:rate=10,input=100,prefix-tokens=1024,prefix-count=4,output=50,requests=500";
  off.drive.engine.prefix_caching = FALSE;
  must_run(&on, trace);
  must_run(&off, trace);
  const oct_engine_stats *s = &on.result.stats;
  double hits = (double)s->cached_prompt_tokens / (double)s->queried_prompt_tokens;
  g_test_message("prefix hits %.1f %%", 100 * hits);
  /* 496 of 500 find 1024 of 1124 tokens, but for those that come while the first is computed. */
  g_assert_cmpfloat(hits, >, 0.85);
  g_assert_cmpfloat(hits, <=, 0.912);
  g_assert_cmpuint(off.result.stats.cached_prompt_tokens, ==, 0);
  g_assert_cmpint(oct_hist_percentile(on.result.measured.latency[OCT_LATENCY_TTFT], 50), <,
                  oct_hist_percentile(off.result.measured.latency[OCT_LATENCY_TTFT], 50));
  bed_clear(&on);
  bed_clear(&off);
}

/* Turns find what the turns before them left, outputs included. */
static void
test_turns_hit(void) {
  bed b;
  bed_init(&b);
  must_run(
      &b, "gen:rate=1,input=640,output=64,followup=64,turns=10,think=1,block-size=64,requests=100");
  const oct_engine_stats *s = &b.result.stats;
  double hits = (double)s->cached_prompt_tokens / (double)s->queried_prompt_tokens;
  /* Turn k finds all of turn k - 1 but the last token of its output: (640 + 128 (k - 1) + 48) of
   * 640 + 128 k. */
  g_test_message("turns find %.1f %% of their prompts", 100 * hits);
  g_assert_cmpfloat(hits, >, 0.80);
  bed_clear(&b);
}

/* ---------------------------------------------------------------- failures */

static void
test_failures(void) {
  bed b;
  g_autoptr(GError) error = NULL;
  bed_init(&b);
  b.mock.n_open_failures = 100;
  g_assert_false(bed_run(&b, "gen:rate=10,requests=10", &error));
  g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_STUCK);
  g_clear_error(&error);
  bed_clear(&b);
  bed_init(&b);
  b.drive.engine.max_num_seqs = 0;
  g_assert_false(bed_run(&b, "gen:rate=10,requests=10", &error));
  g_assert_nonnull(strstr(error->message, "max-num-seqs"));
  bed_clear(&b);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/replay/drive/batch-server-waits-as-theory-says", test_batch_server);
  g_test_add_func("/replay/drive/littles-law-holds", test_little);
  g_test_add_func("/replay/drive/closed-loop-keeps-its-slots-full", test_closed_loop);
  g_test_add_func("/replay/drive/turns-wait-their-think-time", test_think_times);
  g_test_add_func("/replay/drive/host-times-are-charged-to-the-client", test_host_times);
  g_test_add_func("/replay/drive/tpot-is-the-rest-over-the-gaps", test_tpot);
  g_test_add_func("/replay/drive/load-goes-on-after-the-window", test_duration);
  g_test_add_func("/replay/drive/lengths-come-from-max-tokens", test_lengths);
  g_test_add_func("/replay/drive/refused-requests-are-counted-by-reason", test_refused);
  g_test_add_func("/replay/drive/two-replicas-serve-faster-than-one", test_replicas);
  g_test_add_func("/replay/drive/the-router-takes-the-least-loaded", test_least_loaded);
  g_test_add_func("/replay/drive/one-seed-gives-one-log", test_same_seed);
  g_test_add_func("/replay/drive/fast-forward-gives-the-same-log-and-samples", test_forward);
  g_test_add_func("/replay/drive/watching-changes-nothing", test_watched);
  g_test_add_func("/replay/drive/stage-aware-holds-up-decodes-within-its-bound", test_decode_gap);
  g_test_add_func("/replay/drive/shared-prefixes-are-found", test_prefixes);
  g_test_add_func("/replay/drive/turns-find-what-earlier-turns-left", test_turns_hit);
  g_test_add_func("/replay/drive/a-run-that-cannot-go-on-says-so", test_failures);
  return g_test_run();
}
