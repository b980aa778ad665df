#include "config.h"

#include "sim/compare/compare.h"

#include <math.h>
#include <string.h>

#include "sim/replay/measured-json.h"
#include "sim/replay/report.h"
#include "sim/replay/slo.h"

/* What is tested of each request, in order of the report. */
typedef struct metric {
  const char *name, *column;
} metric;

static const metric metrics[] = {
    {"TTFT", "ttft_s"}, {"TPOT", "tpot_s"}, {"E2E", "e2e_s"}, {"longest gap", "longest_gap_s"}};
#define METRICS   G_N_ELEMENTS(metrics)
#define E2E       2
#define TESTS_MAX (METRICS * OCT_STATISTIC_COUNT)

/* ---------------------------------------------------------------- requests of a report */

typedef struct request {
  guint64 index;
  double arrival_s, input_tokens;
  double values[METRICS]; /* NAN = it has none */
} request;

static gssize
column_of(const json_t *columns, const char *name) {
  gsize i;
  const json_t *at;
  json_array_foreach(columns, i,
                     at) if (g_strcmp0(json_string_value(at), name) == 0) return (gssize)i;
  return -1;
}

static double
number_in(const json_t *row, gssize column) {
  const json_t *value = column >= 0 ? json_array_get(row, (gsize)column) : NULL;
  return json_is_number(value) ? json_number_value(value) : NAN;
}

static int
by_arrival(gconstpointer a, gconstpointer b) {
  const request *x = a, *y = b;
  if (x->arrival_s != y->arrival_s)
    return x->arrival_s < y->arrival_s ? -1 : 1;
  return (x->index > y->index) - (x->index < y->index);
}

static const char *
label_of(const json_t *report) {
  const json_t *label = oct_report_at(report, "label");
  return json_is_string(label) ? json_string_value(label) : "a report";
}

/* The requests that the report has kept, in order of arrival. */
static GArray *
requests_of(const json_t *report, GError **error) {
  const json_t *kept = oct_report_at(report, "detail.kept_requests"), *row;
  const json_t *columns = json_object_get(kept, "columns");
  if (kept == NULL) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "%s: keeps no requests: write it again with --json", label_of(report));
    return NULL;
  }
  GArray *requests = g_array_new(FALSE, FALSE, sizeof(request));
  gsize i;
  json_array_foreach(json_object_get(kept, "rows"), i, row) {
    request r = {.index = (guint64)number_in(row, column_of(columns, "index")),
                 .arrival_s = number_in(row, column_of(columns, "arrival_s")),
                 .input_tokens = number_in(row, column_of(columns, "input_tokens"))};
    for (gsize m = 0; m < METRICS; m++)
      r.values[m] = number_in(row, column_of(columns, metrics[m].column));
    g_array_append_val(requests, r);
  }
  g_array_sort(requests, by_arrival);
  return requests;
}

/* ---------------------------------------------------------------- pairs */

typedef struct pair {
  const request *a, *b;
} pair;

/* Those that both have; in order of a's arrivals. FALSE: they are not the same requests. */
static gboolean
find_pairs(const GArray *a, const GArray *b, GArray *pairs) {
  g_autoptr(GHashTable) of_b = g_hash_table_new(g_int64_hash, g_int64_equal);
  guint n_both = 0;
  for (guint i = 0; i < b->len; i++) {
    request *r = &g_array_index(b, request, i);
    g_hash_table_insert(of_b, &r->index, r);
  }
  for (guint i = 0; i < a->len; i++) {
    const request *r = &g_array_index(a, request, i);
    const request *other = g_hash_table_lookup(of_b, &r->index);
    if (other == NULL)
      continue;
    n_both++;
    pair p = {r, other};
    /* A server counts a prompt's tokens with its own tokenizer, or not at all. */
    if (r->input_tokens == other->input_tokens || r->input_tokens == 0 || other->input_tokens == 0)
      g_array_append_val(pairs, p);
  }
  return 2 * n_both >= MIN(a->len, b->len) && pairs->len >= OCT_COMPARE_SAME_SHARE * n_both &&
         pairs->len >= OCT_COMPARE_VALUES_MIN;
}

/* Of the kept requests, how many are in the system at once: Little's law. */
static double
in_system_of(const GArray *requests) {
  double e2e_s = 0;
  guint n = 0;
  for (guint i = 0; i < requests->len; i++) {
    double value = g_array_index(requests, request, i).values[E2E];
    e2e_s += isnan(value) ? 0 : value;
    n += !isnan(value);
  }
  const double span_s = g_array_index(requests, request, requests->len - 1).arrival_s -
                        g_array_index(requests, request, 0).arrival_s;
  if (n == 0)
    return 0;
  return e2e_s < span_s * n ? e2e_s / span_s / n * requests->len : requests->len;
}

/* ---------------------------------------------------------------- tests */

typedef struct compared {
  const GArray *a, *b;
  const GArray *pairs; /* NULL = not the same requests */
  double in_a, in_b;   /* in the system at once; of pairs both are of them */
  double *left, *right;
} compared;

static oct_compare_sample
sample_of(const GArray *requests, double in_system, gsize m, double *values) {
  gsize n = 0;
  for (guint i = 0; i < requests->len; i++) {
    double value = g_array_index(requests, request, i).values[m];
    if (!isnan(value))
      values[n++] = value;
  }
  return (oct_compare_sample){values, n, in_system * (double)n / requests->len};
}

static gboolean
test(const compared *c, gsize m, oct_statistic statistic, oct_difference *out) {
  if (c->pairs == NULL) {
    const oct_compare_sample a = sample_of(c->a, c->in_a, m, c->left);
    const oct_compare_sample b = sample_of(c->b, c->in_b, m, c->right);
    return oct_compare_unpaired(&a, &b, statistic, out);
  }
  gsize n = 0;
  for (guint i = 0; i < c->pairs->len; i++) {
    const pair *p = &g_array_index(c->pairs, pair, i);
    if (isnan(p->a->values[m]) || isnan(p->b->values[m]))
      continue;
    c->left[n] = p->a->values[m];
    c->right[n++] = p->b->values[m];
  }
  const double in_system = MAX(c->in_a, c->in_b) * (double)n / c->pairs->len;
  return oct_compare_paired(c->left, c->right, n, in_system, statistic, out);
}

static json_t *
test_json(const metric *m, oct_statistic statistic, const oct_difference *d, double adjusted) {
  g_autofree char *name = g_strdup_printf("%s %s", m->name, oct_statistic_name(statistic));
  return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:o, s:f, s:f, s:f, s:b, s:b}", "name", name,
                   "a", d->a, "b", d->b, "difference", d->difference, "low", d->low, "high",
                   d->high, "relative", oct_json_real(d->relative), "p", d->p, "p_adjusted",
                   adjusted, "above", d->above, "equal", d->equal, "differs",
                   adjusted < OCT_COMPARE_ALPHA && !d->equal);
}

static json_t *
run_tests(const compared *c) {
  oct_difference found[TESTS_MAX];
  double p[TESTS_MAX], adjusted[TESTS_MAX];
  guint which[TESTS_MAX];
  gsize n = 0;
  for (guint i = 0; i < TESTS_MAX; i++)
    if (test(c, i / OCT_STATISTIC_COUNT, (oct_statistic)(i % OCT_STATISTIC_COUNT), &found[n])) {
      p[n] = found[n].p;
      which[n++] = i;
    }
  oct_compare_holm(p, n, adjusted);
  json_t *list = json_array();
  for (gsize i = 0; i < n; i++)
    json_array_append_new(list, test_json(&metrics[which[i] / OCT_STATISTIC_COUNT],
                                          (oct_statistic)(which[i] % OCT_STATISTIC_COUNT),
                                          &found[i], adjusted[i]));
  return list;
}

/* ---------------------------------------------------------------- figures of the whole runs */

static const struct {
  const char *name, *path;
  gboolean needs_slo; /* means nothing without objectives */
} figures[] = {
    {"requests/s", "throughput.requests_per_s", FALSE},
    {"good requests/s", "throughput.good_requests_per_s", TRUE},
    {"output tokens/s", "throughput.output_tokens_per_s", FALSE},
    {"within every limit", "slo.attainment", TRUE},
    {"refused as busy", "requests.busy", FALSE},
    {"preemptions", "scheduler.preemptions", FALSE},
    {"sequences a step", "steps.sequences.mean", FALSE},
    {"step mean s", "steps.time.mean", FALSE},
    {"KV pages used", "use.kv_used.mean", FALSE},
    {"prefix hits", "scheduler.prefix_hit_share", FALSE},
};

static json_t *
figures_json(const json_t *a, const json_t *b) {
  json_t *list = json_array();
  for (gsize i = 0; i < G_N_ELEMENTS(figures); i++) {
    double of_a = oct_report_number(a, figures[i].path);
    double of_b = oct_report_number(b, figures[i].path);
    if (isnan(of_a) || isnan(of_b) || (figures[i].needs_slo && oct_report_at(a, "slo.met") == NULL))
      continue;
    json_array_append_new(list,
                          json_pack("{s:s, s:f, s:f, s:f, s:o}", "name", figures[i].name, "a", of_a,
                                    "b", of_b, "difference", of_b - of_a, "relative",
                                    of_a != 0 ? oct_json_real((of_b - of_a) / of_a) : json_null()));
  }
  return list;
}

/* ---------------------------------------------------------------- the whole */

/* A run of fewer residences has not the blocks that it should. */
#define RESIDENCES_MIN (OCT_COMPARE_BLOCKS_MIN * OCT_COMPARE_BLOCK_LENGTH)

/* How often its mean residence a run lasts, or the shorter of both. */
static double
residences_of(const compared *c) {
  const gsize n_a = c->pairs != NULL ? c->pairs->len : c->a->len;
  const gsize n_b = c->pairs != NULL ? c->pairs->len : c->b->len;
  return MIN((double)n_a / MAX(c->in_a, 1e-9), (double)n_b / MAX(c->in_b, 1e-9));
}

static void
add_caveats(json_t *list, const compared *c) {
  const double residences = residences_of(c);
  g_autofree char *brief = g_strdup_printf(
      "the shorter run is %.0f mean residences long, %d are needed: only large differences are "
      "told from chance; a longer run says more",
      residences, RESIDENCES_MIN);
  if (residences < RESIDENCES_MIN)
    json_array_append_new(list, json_string(brief));
  g_autofree char *small =
      g_strdup_printf("equal: the difference is less than %g %%, which is not told from none",
                      100 * OCT_COMPARE_MATTERS);
  json_array_append_new(list, json_string(small));
}

static json_t *
notes_json(const json_t *a, const json_t *b, const compared *c, gsize n_tests) {
  const gboolean paired = c->pairs != NULL;
  json_t *list = json_array();
  add_caveats(list, c);
  g_autofree char *many = g_strdup_printf(
      "%" G_GSIZE_FORMAT " tests are looked at together (Holm, at %.0f %%): of runs that do not "
      "differ at most about one comparison in %.0f calls anything different (doc/compare.md)",
      n_tests, 100 * OCT_COMPARE_ALPHA, 1 / OCT_COMPARE_ALPHA);
  json_array_append_new(list, json_string(many));
  json_array_append_new(
      list, json_string("a difference that is not shown may exist: its interval says how large it "
                        "could be"));
  if (!paired)
    json_array_append_new(list, json_string("the runs do not have the same requests: the luck of "
                                            "the traffic is in every difference; equal seeds or "
                                            "one trace tell far smaller ones"));
  json_array_append_new(
      list, json_string("chance is all that is judged: an error of the model that both runs share "
                        "is in neither interval"));
  const json_t *reports[] = {a, b};
  for (gsize i = 0; i < 2; i++) {
    const json_t *kept = oct_report_at(reports[i], "detail.kept_requests");
    double answered = oct_report_number(kept, "answered");
    gsize rows = json_array_size(json_object_get(kept, "rows"));
    g_autofree char *text =
        g_strdup_printf("%s: %" G_GSIZE_FORMAT " of %.0f answered requests, a uniform sample",
                        i == 0 ? "A" : "B", rows, answered);
    if ((double)rows < answered)
      json_array_append_new(list, json_string(text));
    if (oct_report_at(reports[i], "latency_s.at_s") != NULL)
      json_array_append_new(list, json_string(i == 0 ? "A is saturated: its latencies grow with "
                                                       "the length of the run"
                                                     : "B is saturated: its latencies grow with "
                                                       "the length of the run"));
  }
  return list;
}

static json_t *
compare(json_t *a, json_t *b, const compared *c) {
  json_t *tests = run_tests(c);
  const gboolean paired = c->pairs != NULL;
  const gsize n_a = paired ? c->pairs->len : c->a->len, n_b = paired ? n_a : c->b->len;
  const double in_pairs = MAX(c->in_a, c->in_b);
  const guint blocks_a = oct_compare_blocks(n_a, paired ? in_pairs : c->in_a, paired);
  const guint blocks_b = oct_compare_blocks(n_b, paired ? in_pairs : c->in_b, paired);
  g_autofree char *method =
      paired ? g_strdup_printf("the same requests in both: %" G_GSIZE_FORMAT
                               " pairs in %u blocks by arrival, jackknife and spread of blocks' "
                               "differences, Student's t",
                               n_a, blocks_a)
             : g_strdup_printf("different requests: %" G_GSIZE_FORMAT
                               " in %u blocks and %" G_GSIZE_FORMAT
                               " in %u by arrival, jackknife and spread of blocks, Welch's t",
                               n_a, blocks_a, n_b, blocks_b);
  return json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:i, s:f, s:o, s:o, s:o, s:[O, O]}", "schema",
                   OCT_COMPARE_SCHEMA, "octet", PACKAGE_VERSION, "method", method, "paired", paired,
                   "requests_a", (json_int_t)n_a, "requests_b", (json_int_t)n_b, "blocks",
                   (int)MIN(blocks_a, blocks_b), "alpha", OCT_COMPARE_ALPHA, "notes",
                   notes_json(a, b, c, json_array_size(tests)), "tests", tests, "figures",
                   figures_json(a, b), "reports", a, b);
}

json_t *
oct_compare_make(json_t *a, json_t *b, GError **error) {
  g_autoptr(GArray) of_a = requests_of(a, error);
  g_autoptr(GArray) of_b = of_a != NULL ? requests_of(b, error) : NULL;
  if (of_b == NULL)
    return NULL;
  const guint least = OCT_COMPARE_VALUES_MIN;
  if (MIN(of_a->len, of_b->len) < least) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "%s: %u answered requests in the measured window are too few, %u are needed",
                label_of(of_a->len < least ? a : b), MIN(of_a->len, of_b->len), least);
    return NULL;
  }
  g_autoptr(GArray) pairs = g_array_new(FALSE, FALSE, sizeof(pair));
  gboolean paired = find_pairs(of_a, of_b, pairs);
  g_autofree double *left = g_new(double, of_a->len), *right = g_new(double, of_b->len);
  double share_a = paired ? (double)pairs->len / of_a->len : 1;
  double share_b = paired ? (double)pairs->len / of_b->len : 1;
  const compared c = {.a = of_a,
                      .b = of_b,
                      .pairs = paired ? pairs : NULL,
                      .in_a = share_a * in_system_of(of_a),
                      .in_b = share_b * in_system_of(of_b),
                      .left = left,
                      .right = right};
  json_t *found = compare(a, b, &c);
  if (json_array_size(json_object_get(found, "tests")) > 0)
    return found;
  json_decref(found);
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
              "%s and %s: no latency is there for %u requests of both", label_of(a), label_of(b),
              least);
  return NULL;
}
