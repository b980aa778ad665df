/* Generated traffic follows its laws, repeats by seed, and shares what it says. */
#include <math.h>
#include <string.h>

#include <glib.h>

#include "tests/stats.h"
#include "tests/traces/fixture.h"
#include "traces/arrivals.h"
#include "traces/blocks.h"
#include "traces/gen.h"
#include "traces/presets.h"

#define ROW(rows, i)   ((const oct_trace_request *)g_ptr_array_index(rows, i))
#define GAPS           10000
#define KS_OF_ONE_IN_K 1.95

static oct_trace *
open_gen(const char *text) {
  g_auto(oct_trace_gen_spec) spec;
  GError *error = NULL;
  oct_trace_gen_spec_init(&spec);
  g_assert_true(oct_trace_gen_parse(&spec, text, &error));
  oct_trace *trace = oct_trace_gen_open(&spec, &error);
  g_assert_no_error(error);
  return trace;
}

static GPtrArray *
read_gen(const char *text) {
  g_autoptr(oct_trace) trace = open_gen(text);
  return oct_test_read_all(trace);
}

/* The gaps between the first GAPS arrivals, in seconds. */
static double *
gaps_of(const char *text) {
  g_autofree char *with_count = g_strdup_printf("%s,requests=%d", text, GAPS);
  g_autoptr(oct_trace) trace = open_gen(with_count);
  double *gaps = g_new(double, GAPS);
  oct_trace_request row;
  GError *error = NULL;
  gint64 last_ns = 0;
  for (int i = 0; i < GAPS; i++) {
    g_assert_true(oct_trace_next(trace, &row, &error));
    gaps[i] = (double)(row.arrival_ns - last_ns) / 1e9;
    last_ns = row.arrival_ns;
  }
  g_assert_false(oct_trace_next(trace, &row, &error));
  g_assert_no_error(error);
  return gaps;
}

/* --- laws ------------------------------------------------------------------------------------- */

static void
test_poisson(void) {
  static const char *const texts[] = {"rate=5", "rate=0.01,seed=2", "rate=150,seed=3"};
  static const double means[] = {0.2, 100, 1.0 / 150};
  for (gsize i = 0; i < G_N_ELEMENTS(texts); i++) {
    g_autofree double *gaps = gaps_of(texts[i]);
    g_assert_cmpfloat(oct_test_ks(gaps, GAPS, oct_test_cdf_exponential, means[i], 0), <,
                      KS_OF_ONE_IN_K);
  }
}

static void
test_gamma(void) {
  static const double shapes[] = {0.25, 1, 4};
  for (gsize i = 0; i < G_N_ELEMENTS(shapes); i++) {
    g_autofree char *text = g_strdup_printf("rate=2,burstiness=%g", shapes[i]);
    g_autofree double *gaps = gaps_of(text);
    g_assert_cmpfloat(oct_test_ks(gaps, GAPS, oct_test_cdf_gamma, shapes[i], 0.5 / shapes[i]), <,
                      KS_OF_ONE_IN_K);
  }
}

static void
test_weibull(void) {
  static const double shapes[] = {0.5, 1, 2.5};
  for (gsize i = 0; i < G_N_ELEMENTS(shapes); i++) {
    g_autofree char *text = g_strdup_printf("rate=2,weibull-shape=%g", shapes[i]);
    g_autofree double *gaps = gaps_of(text);
    double scale = 0.5 / tgamma(1 + 1 / shapes[i]);
    g_assert_cmpfloat(oct_test_ks(gaps, GAPS, oct_test_cdf_weibull, shapes[i], scale), <,
                      KS_OF_ONE_IN_K);
  }
}

/* A law is told from its neighbours: the test above can fail. */
static void
test_laws_differ(void) {
  g_autofree double *gaps = gaps_of("rate=2,burstiness=0.8");
  g_assert_cmpfloat(oct_test_ks(gaps, GAPS, oct_test_cdf_exponential, 0.5, 0), >, 3);
}

static void
test_constant_and_gaps(void) {
  g_autofree double *gaps = gaps_of("rate=4,arrivals=constant");
  for (int i = 0; i < GAPS; i++)
    g_assert_cmpfloat_with_epsilon(gaps[i], 0.25, 1.1e-9);
  g_autofree double *table = gaps_of("rate=10,gaps=uniform:0:100");
  double sum = 0;
  for (int i = 0; i < GAPS; i++) {
    sum += table[i];
    g_assert_cmpfloat(table[i], <=, 0.2 + 1e-9);
  }
  g_assert_cmpfloat_with_epsilon(sum / GAPS, 0.1, 0.002);
}

/* Under a ramp the gaps are exponential in unit time, and the unit time is the rate's integral. */
static void
test_ramps(void) {
  static const char *const texts[] = {
      "ramp=linear,start-rate=0,end-rate=20,duration=1000",
      "ramp=linear,start-rate=30,end-rate=3,duration=700",
      "ramp=exponential,start-rate=1,end-rate=64,duration=1000",
      "ramp=exponential,start-rate=40,end-rate=2,requests=9000",
  };
  for (gsize k = 0; k < G_N_ELEMENTS(texts); k++) {
    g_auto(oct_trace_gen_spec) spec;
    oct_trace_gen_spec_init(&spec);
    g_assert_true(oct_trace_gen_parse(&spec, texts[k], NULL));
    oct_arrivals clock;
    oct_arrivals_init(&clock, &spec, 1);
    g_autoptr(oct_trace) trace = open_gen(texts[k]);
    g_autoptr(GArray) gaps = g_array_new(FALSE, FALSE, sizeof(double));
    oct_trace_request row;
    double last = 0;
    while (oct_trace_next(trace, &row, NULL)) {
      double unit = oct_arrivals_unit_at(&clock, (double)row.arrival_ns / 1e9), gap = unit - last;
      g_array_append_val(gaps, gap);
      last = unit;
    }
    g_assert_cmpuint(gaps->len, >, 5000);
    g_assert_cmpfloat(
        oct_test_ks((double *)(void *)gaps->data, gaps->len, oct_test_cdf_exponential, 1, 0), <,
        KS_OF_ONE_IN_K);
  }
}

/* The integral of the rate, by hand and by differences. */
static void
test_ramp_integral(void) {
  g_auto(oct_trace_gen_spec) spec;
  oct_trace_gen_spec_init(&spec);
  g_assert_true(
      oct_trace_gen_parse(&spec, "ramp=linear,start-rate=2,end-rate=10,duration=100", NULL));
  oct_arrivals clock;
  oct_arrivals_init(&clock, &spec, 1);
  g_assert_cmpfloat_with_epsilon(oct_arrivals_unit_at(&clock, 50), 200, 1e-9);
  g_assert_cmpfloat_with_epsilon(oct_arrivals_unit_at(&clock, 100), 600, 1e-9);
  g_assert_cmpfloat_with_epsilon(oct_arrivals_unit_at(&clock, 101), 610, 1e-9);
  spec.ramp = OCT_TRACE_RAMP_EXPONENTIAL;
  oct_arrivals_init(&clock, &spec, 1);
  for (double t = 0; t < 100; t += 12.5) {
    double rate = 2 * pow(5, (t + 0.0005) / 100);
    double slope =
        (oct_arrivals_unit_at(&clock, t + 0.001) - oct_arrivals_unit_at(&clock, t)) * 1e3;
    g_assert_cmpfloat_with_epsilon(slope, rate, rate * 1e-6);
  }
}

static void
test_infinite_rate(void) {
  g_autoptr(GPtrArray) rows = read_gen("rate=inf,requests=50");
  g_assert_cmpuint(rows->len, ==, 50);
  g_assert_cmpint(ROW(rows, 49)->arrival_ns, ==, 0);
}

static void
test_duration(void) {
  g_autoptr(GPtrArray) rows = read_gen("rate=100,duration=10,arrivals=constant");
  g_assert_cmpuint(rows->len, ==, 999); /* at 0.01, 0.02 … 9.99 */
  g_autoptr(GPtrArray) both = read_gen("rate=100,duration=10,requests=7");
  g_assert_cmpuint(both->len, ==, 7);
}

/* --- seeds ------------------------------------------------------------------------------------ */

static gboolean
equal_rows(const oct_trace_request *a, const oct_trace_request *b) {
  return a->arrival_ns == b->arrival_ns && a->think_ns == b->think_ns &&
         a->input_tokens == b->input_tokens && a->output_tokens == b->output_tokens &&
         a->max_tokens == b->max_tokens && a->session == b->session && a->parent == b->parent &&
         a->n_hash_ids == b->n_hash_ids && a->n_output_hash_ids == b->n_output_hash_ids &&
         memcmp(a->hash_ids, b->hash_ids, a->n_hash_ids * sizeof(guint64)) == 0 &&
         memcmp(a->output_hash_ids, b->output_hash_ids, a->n_output_hash_ids * sizeof(guint64)) ==
             0;
}

#define BUSY                                                                                       \
  "rate=3,requests=400,input=lognormal:300:1500,output=geometric:50,turns=geometric:3,"            \
  "think=exponential:4,prefix-tokens=128,prefix-count=5,prefix-zipf=1,block-size=16,"              \
  "max-tokens=true*2"

static void
test_seeds(void) {
  g_autoptr(GPtrArray) a = read_gen(BUSY ",seed=9"), b = read_gen(BUSY ",seed=9");
  g_autoptr(GPtrArray) c = read_gen(BUSY ",seed=10");
  guint n_equal = 0;
  for (guint i = 0; i < 400; i++) {
    g_assert_true(equal_rows(ROW(a, i), ROW(b, i)));
    n_equal += equal_rows(ROW(a, i), ROW(c, i));
  }
  g_assert_cmpuint(n_equal, <, 5);
}

/* Each purpose has its own stream: other lengths leave the arrivals alone. */
static void
test_streams(void) {
  g_autoptr(GPtrArray) a = read_gen("rate=3,requests=100");
  g_autoptr(GPtrArray) b = read_gen("rate=3,requests=100,input=exponential:9,max-tokens=true");
  for (guint i = 0; i < 100; i++)
    g_assert_cmpint(ROW(a, i)->arrival_ns, ==, ROW(b, i)->arrival_ns);
}

/* --- sessions and prefixes -------------------------------------------------------------------- */

static void
test_sessions(void) {
  g_autoptr(GPtrArray) rows = read_gen(BUSY);
  guint n_turns = 0, n_roots = 0;
  for (guint i = 0; i < rows->len; i++) {
    const oct_trace_request *r = ROW(rows, i);
    g_assert_cmpuint(r->max_tokens, ==, 2 * r->output_tokens);
    n_roots += r->parent == 0;
    if (r->parent == 0) {
      g_assert_cmpint(r->arrival_ns, >=, 0);
      continue;
    }
    const oct_trace_request *before = ROW(rows, i - 1);
    n_turns++;
    g_assert_cmpuint(r->parent, ==, i); /* right behind its parent */
    g_assert_cmpuint(r->session, ==, before->session);
    g_assert_cmpint(r->arrival_ns, ==, -1);
    g_assert_cmpuint(r->input_tokens, >, before->input_tokens + before->output_tokens);
    /* The next turn begins with all that the one before it left, in full blocks. */
    guint64 left = (before->input_tokens + before->output_tokens) / 16;
    g_assert_cmpuint(oct_trace_known_tokens(before), ==, left * 16);
    for (guint64 p = 0; p < left; p++)
      g_assert_cmpuint(oct_trace_page_id(r, p, 16), ==, oct_trace_page_id(before, p, 16));
  }
  g_assert_cmpuint(n_turns, >, 200);
  g_assert_cmpfloat_with_epsilon((double)rows->len / n_roots, 3, 0.5);
}

/* Turns have no time of their own: many of them to a start are no sign of coarse ticks. */
static void
test_no_ticks(void) {
  g_autoptr(oct_trace) trace = open_gen("rate=0.1,arrivals=constant,requests=60,turns=4");
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(rows->len, ==, 60);
  const oct_trace_facts *facts = oct_trace_get_facts(trace);
  g_assert_cmpuint(facts->n_requests, ==, 60);
  g_assert_cmpuint(facts->n_timed, ==, 15);
  g_assert_false(facts->quantised);
}

/* Two sessions share exactly the blocks of a common prefix. */
static void
test_prefixes(void) {
  g_autoptr(GPtrArray) rows = read_gen(BUSY ",turns=1");
  guint seen[5] = {0};
  for (guint i = 0; i < rows->len; i++) {
    const oct_trace_request *r = ROW(rows, i);
    guint64 prefix = r->hash_ids[0] / 8;
    g_assert_cmpuint(prefix, <, 5);
    seen[prefix]++;
    for (guint32 k = 0; k < 8; k++)
      g_assert_cmpuint(r->hash_ids[k], ==, prefix * 8 + k);
    for (guint32 k = 8; k < r->n_hash_ids; k++)
      g_assert_cmpuint(r->hash_ids[k], >=, 40);
    if (i > 0 && r->n_hash_ids > 8 && ROW(rows, i - 1)->n_hash_ids > 8)
      g_assert_cmpuint(r->hash_ids[8], !=, ROW(rows, i - 1)->hash_ids[8]);
  }
  /* Zipf with exponent 1 over 5: 1/H, 1/2H … with H = 137/60. */
  for (guint k = 0; k < 5; k++)
    g_assert_cmpfloat_with_epsilon(seen[k] / 400.0, 60.0 / 137 / (k + 1), 0.08);
  g_assert_cmpuint(seen[0], >, seen[4]);
}

static void
test_max_context(void) {
  g_autoptr(GPtrArray) rows = read_gen(
      "requests=500,turns=50,input=exponential:500,output=exponential:100,max-context=1000");
  guint n_roots = 0;
  for (guint i = 0; i < rows->len; i++) {
    g_assert_cmpuint(ROW(rows, i)->input_tokens + ROW(rows, i)->output_tokens, <=, 1000);
    n_roots += ROW(rows, i)->parent == 0;
  }
  g_assert_cmpuint(n_roots, >, 50);
  g_assert_cmpuint(n_roots, <, 500);
}

static void
test_max_tokens_cut(void) {
  g_autoptr(GPtrArray) rows = read_gen("requests=300,output=uniform:1:100,max-tokens=40");
  for (guint i = 0; i < rows->len; i++) {
    g_assert_cmpuint(ROW(rows, i)->output_tokens, <=, 40);
    g_assert_cmpuint(ROW(rows, i)->max_tokens, ==, 40);
  }
}

static void
test_closed(void) {
  g_autoptr(oct_trace) trace = open_gen("concurrency=8,requests=20,think=exponential:2");
  g_assert_cmpuint(oct_trace_get_facts(trace)->concurrency, ==, 8); /* before the first row */
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(rows->len, ==, 20);
  g_assert_true(oct_trace_get_facts(trace)->has_closed_loop);
  for (guint i = 0; i < 20; i++) {
    g_assert_cmpint(ROW(rows, i)->arrival_ns, ==, -1);
    g_assert_cmpuint(ROW(rows, i)->parent, ==, 0);
    g_assert_cmpint(ROW(rows, i)->think_ns, >, 0);
  }
}

/* --- parameters ------------------------------------------------------------------------------- */

static void
test_refuses(void) {
  static const char *const bad[] = {
      "",
      "rate=0,requests=1",
      "rate=-1,requests=1",
      "rate=nan,requests=1",
      "rate=x,requests=1",
      "requests=0",
      "requests=1.5",
      "rate=1", /* no end */
      "rate=inf,duration=5",
      "concurrency=4,duration=5",
      "arrivals=closed,requests=5",
      "arrivals=poison,requests=5",
      "arrivals=gaps,requests=5",
      "gaps=0,requests=5",
      "concurrency=4,requests=5,ramp=linear,end-rate=4",
      "ramp=linear,requests=5",
      "ramp=exponential,end-rate=4,requests=5",
      "burstiness=0,requests=5",
      "input=true,requests=5",
      "turns=true*2,requests=5",
      "turns=0,requests=5",
      "input=0,requests=5",
      "output=0.4,requests=5",
      "turns=2,followup=0,requests=5",
      "input=uniform:9:1,requests=5",
      "prefix-count=4,requests=5",
      "prefix-tokens=100,max-context=101,requests=5",
      "priority=2147483648,requests=5",
      "seed=-1,requests=5",
      "speed=9,requests=5",
      "requests",
      "chat-150,requests=5,fast",
      "servegen=/nonexistent-trace.csv",
      "servegen=/nonexistent.csv",
      "class=12345678901234567890123456789012345678901234567890123456789012345,requests=1",
  };
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
    g_auto(oct_trace_gen_spec) spec;
    g_autoptr(GError) error = NULL;
    oct_trace_gen_spec_init(&spec);
    if (oct_trace_gen_parse(&spec, bad[i], &error)) {
      g_autoptr(oct_trace) trace = oct_trace_gen_open(&spec, &error);
      if (trace != NULL)
        g_error("\"%s\" was taken", bad[i]);
    }
    g_assert_nonnull(error);
    g_assert_true(error->domain == OCT_TRACE_ERROR);
  }
}

static void
test_too_late(void) {
  g_autoptr(oct_trace) trace = open_gen("rate=1e-9,requests=1000,arrivals=constant");
  oct_trace_request row;
  g_autoptr(GError) error = NULL;
  while (oct_trace_next(trace, &row, &error))
    g_assert_cmpint(row.arrival_ns, <=, OCT_TRACE_TIME_MAX_NS);
  g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_LIMIT);
}

/* Every key is documented and is a key. */
static void
test_keys(void) {
  const oct_trace_gen_key *key;
  gsize n = 0;
  for (; (key = oct_trace_gen_key_at(n)) != NULL; n++) {
    g_assert_true(key->help[0] != 0 && key->value_name[0] != 0);
    g_auto(oct_trace_gen_spec) spec;
    g_autoptr(GError) error = NULL;
    oct_trace_gen_spec_init(&spec);
    if (!oct_trace_gen_set(&spec, key->key, "?", &error))
      g_assert_null(strstr(error->message, "no parameter"));
  }
  g_assert_cmpuint(n, >, 20);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/traces/gen/poisson-gaps-are-exponential", test_poisson);
  g_test_add_func("/traces/gen/gamma-gaps-are-gamma", test_gamma);
  g_test_add_func("/traces/gen/weibull-gaps-are-weibull", test_weibull);
  g_test_add_func("/traces/gen/laws-are-told-apart", test_laws_differ);
  g_test_add_func("/traces/gen/constant-and-tabled-gaps-have-their-mean", test_constant_and_gaps);
  g_test_add_func("/traces/gen/ramped-gaps-are-exponential-in-unit-time", test_ramps);
  g_test_add_func("/traces/gen/unit-time-is-the-integral-of-the-rate", test_ramp_integral);
  g_test_add_func("/traces/gen/an-infinite-rate-starts-all-at-once", test_infinite_rate);
  g_test_add_func("/traces/gen/duration-and-requests-both-end-it", test_duration);
  g_test_add_func("/traces/gen/equal-seeds-give-equal-requests", test_seeds);
  g_test_add_func("/traces/gen/each-purpose-has-its-own-stream", test_streams);
  g_test_add_func("/traces/gen/turns-continue-what-the-one-before-left", test_sessions);
  g_test_add_func("/traces/gen/turns-are-no-ticks", test_no_ticks);
  g_test_add_func("/traces/gen/sessions-share-prefixes-by-popularity", test_prefixes);
  g_test_add_func("/traces/gen/no-turn-passes-the-longest-context", test_max_context);
  g_test_add_func("/traces/gen/max-tokens-cuts-the-output", test_max_tokens_cut);
  g_test_add_func("/traces/gen/a-closed-loop-has-slots-and-no-times", test_closed);
  g_test_add_func("/traces/gen/refuses-parameters-that-make-no-sense", test_refuses);
  g_test_add_func("/traces/gen/refuses-arrivals-past-the-limit-of-time", test_too_late);
  g_test_add_func("/traces/gen/documents-every-parameter", test_keys);
  return g_test_run();
}
