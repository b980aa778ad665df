/* Steps, copies and requests as spans: the file that Perfetto opens, and the picture. */
#include <stdlib.h>
#include <string.h>

#include "sim/replay/spans.h"
#include "tests/sim/replay/bed.h"

#define SECOND G_GINT64_CONSTANT(1000000000)

/* A run with its file; the file's events in *events, owned by the result. */
static json_t *
run_traced(bed *b, const char *trace, oct_time from_ns, oct_time for_ns) {
  g_autoptr(GError) error = NULL;
  char *text = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&text, &size);
  b->drive.chrome = file;
  b->drive.chrome_from_ns = from_ns;
  b->drive.chrome_for_ns = for_ns;
  g_assert_true(bed_run(b, trace, &error));
  g_assert_no_error(error);
  g_assert_cmpint(fclose(file), ==, 0);
  b->drive.chrome = NULL;
  json_error_t where;
  json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
  g_assert_nonnull(root);
  free(text);
  return root;
}

static const char *
text_of(const json_t *event, const char *name) {
  const char *text = json_string_value(json_object_get(event, name));
  return text != NULL ? text : "";
}

/* Microseconds with three decimals into ns. */
static gint64
ns_of(const json_t *event, const char *name) {
  double us = json_number_value(json_object_get(event, name));
  return (gint64)(us * 1000 + 0.5);
}

static void
init(bed *b) {
  bed_init(b);
  b->mock.fixed_ns = 5000000;
  b->mock.token_ns = 10000;
  b->drive.engine.max_num_seqs = 16;
}

typedef struct span {
  gint64 track, from, to;
} span;

static int
by_track(const void *a, const void *b) {
  const span *x = a, *y = b;
  if (x->track != y->track)
    return x->track < y->track ? -1 : 1;
  return x->from != y->from ? (x->from < y->from ? -1 : 1) : (x->to > y->to ? -1 : 1);
}

/* Spans of one track follow one another or lie within each other. */
static guint
check_nesting(const json_t *events) {
  g_autoptr(GArray) spans = g_array_new(FALSE, FALSE, sizeof(span));
  gsize i;
  const json_t *e;
  json_array_foreach(events, i, e) {
    if (strcmp(text_of(e, "ph"), "X") != 0 || strcmp(text_of(e, "cat"), "arrival") == 0)
      continue;
    span s = {json_integer_value(json_object_get(e, "pid")) * 100000 +
                  json_integer_value(json_object_get(e, "tid")),
              ns_of(e, "ts"), ns_of(e, "ts") + ns_of(e, "dur")};
    g_array_append_val(spans, s);
  }
  qsort(spans->data, spans->len, sizeof(span), by_track);
  for (guint k = 1; k < spans->len; k++) {
    const span *before = &g_array_index(spans, span, k - 1), *s = &g_array_index(spans, span, k);
    g_assert_true(before->track != s->track || s->from >= before->to || s->to <= before->to);
  }
  return spans->len;
}

/* Times of one request's phase, -1 where it is not there. */
static span
phase_of(const json_t *events, const char *name, guint64 id) {
  span s = {0, -1, -1};
  gsize i;
  const json_t *e;
  json_array_foreach(events, i,
                     e) if (strcmp(text_of(e, "cat"), "request") == 0 &&
                            strcmp(text_of(e, "name"), name) == 0 &&
                            (guint64)json_integer_value(json_object_get(e, "id")) == id) *
      (text_of(e, "ph")[0] == 'b' ? &s.from : &s.to) = ns_of(e, "ts");
  return s;
}

static void
test_file(void) {
  bed b;
  init(&b);
  json_t *root =
      run_traced(&b, "gen:rate=40,requests=60,input=200,output=30,seed=3", 0, 60 * SECOND);
  const json_t *events = json_object_get(root, "traceEvents"), *e;
  guint n_steps = 0;
  gsize i;
  g_assert_cmpuint(check_nesting(events), >, 100);
  gint64 busy = 0;
  json_array_foreach(events, i, e) if (strcmp(text_of(e, "cat"), "step") == 0) {
    n_steps++;
    busy += ns_of(e, "dur");
    g_assert_cmpint(ns_of(e, "ts") + ns_of(e, "dur"), <=, b.result.span_ns);
  }
  g_assert_cmpuint(n_steps, ==, b.result.stats.steps);
  g_assert_cmpint(busy, <=, b.result.span_ns);
  for (guint64 id = 0; id < 60; id++) {
    const oct_outcome *o = bed_outcome(&b, id);
    span whole = phase_of(events, "request", id), queue = phase_of(events, "queue", id);
    span prefill = phase_of(events, "prefill", id), decode = phase_of(events, "decode", id);
    g_assert_cmpint(whole.from, ==, o->arrival_ns);
    g_assert_cmpint(whole.to, ==, o->arrival_ns + o->value_ns[OCT_LATENCY_E2E]);
    g_assert_cmpint(queue.from, ==, whole.from);
    g_assert_cmpint(queue.to, ==, prefill.from);
    g_assert_cmpint(prefill.to, ==, decode.from);
    g_assert_cmpint(decode.from, ==, o->arrival_ns + o->value_ns[OCT_LATENCY_TTFT]);
    g_assert_cmpint(decode.to, ==, whole.to);
  }
  json_decref(root);
  bed_clear(&b);
}

/* Each arrow ends within a step of the file, just before the step's end. */
static void
test_arrows(void) {
  bed b;
  init(&b);
  json_t *root =
      run_traced(&b, "gen:rate=40,requests=40,input=200,output=10,seed=4", 0, 60 * SECOND);
  const json_t *events = json_object_get(root, "traceEvents"), *e, *step;
  guint starts = 0, ends = 0;
  gsize i, k;
  json_array_foreach(events, i, e) {
    starts += strcmp(text_of(e, "ph"), "s") == 0;
    if (strcmp(text_of(e, "ph"), "f") != 0)
      continue;
    gboolean within = FALSE;
    json_array_foreach(events, k, step) within |=
        strcmp(text_of(step, "cat"), "step") == 0 &&
        json_equal(json_object_get(step, "pid"), json_object_get(e, "pid")) &&
        ns_of(step, "ts") <= ns_of(e, "ts") &&
        ns_of(e, "ts") + 1 == ns_of(step, "ts") + ns_of(step, "dur");
    g_assert_true(within);
    ends++;
  }
  g_assert_cmpuint(starts, ==, 40);
  g_assert_cmpuint(ends, ==, 40);
  json_decref(root);
  bed_clear(&b);
}

/* Two seconds out of the middle: what touches them, and nothing else. */
static void
test_window(void) {
  bed b;
  init(&b);
  json_t *root =
      run_traced(&b, "gen:rate=20,requests=200,input=100,output=20,seed=5", 3 * SECOND, 2 * SECOND);
  const json_t *events = json_object_get(root, "traceEvents"), *e;
  guint n = 0;
  gsize i;
  json_array_foreach(events, i, e) if (strcmp(text_of(e, "cat"), "step") == 0) {
    n++;
    g_assert_cmpint(ns_of(e, "ts") + ns_of(e, "dur"), >, 3 * SECOND);
    g_assert_cmpint(ns_of(e, "ts"), <, 5 * SECOND);
  }
  g_assert_cmpuint(n, >, 100);
  g_assert_cmpuint(n, <, b.result.stats.steps / 2);
  json_decref(root);
  bed_clear(&b);
}

/* Who looks changes nothing: the log is that of a run which nobody watches. */
static void
test_log(void) {
  bed b;
  init(&b);
  const char *trace = "gen:rate=10,requests=150,input=100,output=200,seed=6";
  b.digest_log = TRUE;
  g_assert_true(bed_run(&b, trace, NULL));
  oct_hash128 alone = b.digest;
  guint64 forwarded = b.result.stats.forwarded_steps;
  g_assert_cmpuint(forwarded, >, 0);
  b.drive.picture = b.drive.detail = TRUE;
  json_t *root = run_traced(&b, trace, 2 * SECOND, 3 * SECOND);
  g_assert_cmpuint(b.result.stats.forwarded_steps, <, forwarded);
  g_assert_cmpuint(b.result.stats.forwarded_steps, >, 0);
  g_assert_true(alone.hi == b.digest.hi && alone.lo == b.digest.lo);
  json_decref(root);
  bed_clear(&b);
}

/* The stretch lies in the second half of the load and holds all of its steps. */
static void
test_picture(void) {
  bed b;
  init(&b);
  b.drive.picture = TRUE;
  g_assert_true(bed_run(&b, "gen:rate=20,requests=1000,input=100,output=20,seed=7", NULL));
  const json_t *picture = b.result.picture;
  double from = json_number_value(json_object_get(picture, "from_s"));
  double until = json_number_value(json_object_get(picture, "until_s"));
  g_assert_cmpfloat(from, ==, 32);
  g_assert_cmpfloat(until - from, <=, 3);
  const json_t *steps = json_object_get(json_object_get(picture, "steps"), "rows"), *row;
  gsize i;
  double end = 0;
  g_assert_cmpuint(json_array_size(steps), >, 100);
  g_assert_cmpuint(json_array_size(steps), <=, OCT_SPANS_STEPS_MAX);
  json_array_foreach(steps, i, row) {
    g_assert_cmpfloat(json_number_value(json_array_get(row, 1)), >=, end - 1e-9);
    end = json_number_value(json_array_get(row, 2));
  }
  const json_t *requests = json_object_get(json_object_get(picture, "requests"), "rows");
  g_assert_cmpuint(json_array_size(requests), >, 20);
  json_array_foreach(requests, i, row) {
    const oct_outcome *o = bed_outcome(&b, (guint64)json_integer_value(json_array_get(row, 0)));
    g_assert_cmpfloat_with_epsilon(json_number_value(json_array_get(row, 2)),
                                   (double)o->arrival_ns / 1e9, 1e-9);
    g_assert_cmpfloat_with_epsilon(json_number_value(json_array_get(row, 4)),
                                   (double)(o->arrival_ns + o->value_ns[OCT_LATENCY_TTFT]) / 1e9,
                                   1e-9);
  }
  bed_clear(&b);
}

/* A run of less than a second has no stretch, one of two seconds has what there is. */
static void
test_short(void) {
  bed b;
  init(&b);
  b.drive.picture = TRUE;
  g_assert_true(bed_run(&b, "gen:rate=100,requests=20,input=10,output=5,seed=8", NULL));
  g_assert_true(json_is_null(b.result.picture));
  g_assert_true(bed_run(&b, "gen:rate=100,requests=200,input=10,output=5,seed=8", NULL));
  g_assert_true(json_is_object(b.result.picture));
  bed_clear(&b);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/spans/file-has-every-step-and-the-phases-of-every-request", test_file);
  g_test_add_func("/spans/arrows-end-in-the-step-of-the-first-token", test_arrows);
  g_test_add_func("/spans/window-holds-what-touches-it", test_window);
  g_test_add_func("/spans/log-does-not-change-when-somebody-looks", test_log);
  g_test_add_func("/spans/picture-is-of-the-second-half", test_picture);
  g_test_add_func("/spans/short-runs-have-what-there-is", test_short);
  return g_test_run();
}
