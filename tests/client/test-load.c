/* Load for a server with canned answers: what is sent, what is counted, and how a run ends. */
#include <string.h>

#include "client/load.h"
#include "client/report.h"
#include "sim/replay/report.h"
#include "tests/client/canned.h"

typedef struct bed {
  canned *server;
  oct_client *client;
  oct_rows *rows;
  oct_load_config config;
  GPtrArray *kept;   /* answers and requests of the server's thread */
  GPtrArray *bodies; /* of requests */
  guint fail_every;  /* every n-th is answered by `failure`; 0 = none */
  const char *failure;
  gboolean hangs;
} bed;

#define CHUNK(text) "data: {\"choices\":[{\"index\":0,\"text\":\"" text "\"}]}\n\n"

/* As many chunks as max_tokens asks for, and the usage of as many prompt tokens as commas say. */
static char *
stream_for(const char *request) {
  const char *most = strstr(request, "\"max_tokens\":"), *prompt = strstr(request, "\"prompt\":[");
  guint64 n = g_ascii_strtoull(most + 13, NULL, 10);
  guint n_prompt = 1;
  for (const char *c = prompt; *c != ']'; c++)
    n_prompt += *c == ',';
  g_autoptr(GString) body = g_string_new(NULL);
  for (guint64 i = 0; i < n; i++)
    g_string_append(body, CHUNK("x"));
  g_string_append_printf(body,
                         "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%u,"
                         "\"completion_tokens\":%u},\"metrics\":{\"queue_time_ms\":1,"
                         "\"time_to_first_token_ms\":3,\"generation_time_ms\":5}}\n\n"
                         "data: [DONE]\n\n",
                         n_prompt, (guint)n);
  return canned_chunked("text/event-stream", body->str, 0);
}

static void
answer(void *user, const char *request, guint number, canned_step *steps) {
  bed *b = user;
  g_ptr_array_add(b->bodies, g_strdup(request));
  if (b->hangs) {
    steps[0] = (canned_step){CANNED_HANG, NULL};
    return;
  }
  gboolean fails = b->fail_every > 0 && (number + 1) % b->fail_every == 0;
  char *text = fails ? g_strdup(b->failure) : stream_for(request);
  g_ptr_array_add(b->kept, text);
  steps[0] = (canned_step){CANNED_SEND, text};
  if (fails)
    steps[1] = (canned_step){CANNED_CLOSE, NULL};
}

static void
set_up(bed *b, const char *trace) {
  memset(b, 0, sizeof *b);
  b->kept = g_ptr_array_new_with_free_func(g_free);
  b->bodies = g_ptr_array_new_with_free_func(g_free);
  b->server = canned_new(NULL, answer, b);
  oct_client_options o;
  oct_client_options_default(&o);
  o.url = canned_url(b->server);
  b->client = oct_client_new(&o, NULL);
  b->rows = oct_rows_open(&(oct_rows_options){.path = trace}, NULL);
  g_assert_nonnull(b->rows);
  b->config = (oct_load_config){.client = b->client,
                                .rows = b->rows,
                                .model = "a \"model\"",
                                .prompt = {.first_id = 5, .n_ids = 10, .seed = 1},
                                .warmup_ns = 0};
  oct_slo_init(&b->config.slo);
}

static void
tear_down(bed *b) {
  oct_client_free(b->client);
  canned_free(b->server);
  oct_rows_free(b->rows);
  g_ptr_array_unref(b->kept);
  g_ptr_array_unref(b->bodies);
}

static void
run(bed *b, oct_load_result *r) {
  g_autoptr(GError) error = NULL;
  gboolean good = oct_load_run(&b->config, r, &error);
  g_assert_no_error(error);
  g_assert_true(good);
}

/* ---------------------------------------------------------------- what is counted */

static void
test_counts(void) {
  bed b;
  oct_load_result r;
  set_up(&b, "gen:rate=2000,requests=100,input=20,output=4");
  run(&b, &r);
  g_assert_cmpuint(r.sent, ==, 100);
  g_assert_cmpuint(r.ended, ==, 100);
  g_assert_cmpuint(r.input_tokens, ==, 2000);
  g_assert_cmpuint(r.output_tokens, ==, 400);
  g_assert_cmpuint(r.pieces, ==, 400);
  g_assert_cmpuint(r.answers_with_usage, ==, 100);
  g_assert_cmpuint(r.short_answers, ==, 0);
  g_assert_cmpuint(r.errors->len, ==, 0);
  const oct_measured *m = &r.from_due;
  g_assert_cmpuint(m->requests, ==, 100);
  g_assert_cmpuint(m->fates[OCT_FATE_ANSWERED], ==, 100);
  g_assert_cmpuint(oct_hist_count(m->latency[OCT_LATENCY_TTFT]), ==, 100);
  /* From when it was due includes how late it was sent. */
  g_assert_cmpfloat(oct_hist_mean(m->latency[OCT_LATENCY_E2E]), >=,
                    oct_hist_mean(r.from_sent.latency[OCT_LATENCY_E2E]));
  g_assert_cmpuint(oct_hist_count(r.from_sent.latency[OCT_LATENCY_QUEUE]), ==, 100);
  g_assert_true(r.has_server);
  g_assert_cmpint(oct_hist_max(r.server.latency[OCT_LATENCY_E2E]), ==, 8000000);
  g_assert_cmpint(oct_hist_max(r.server.latency[OCT_LATENCY_TTFT]), ==, 3000000);
  g_assert_cmpint(oct_hist_max(m->latency[OCT_LATENCY_QUEUE]), ==, 1000000);
  oct_load_result_clear(&r);
  tear_down(&b);
}

static void
test_bodies(void) {
  bed b;
  oct_load_result r;
  json_t *extra = json_pack("{s:i, s:{s:s}}", "temperature", 0, "x\"y", "a", "b");
  set_up(&b, "gen:rate=1000,requests=3,input=7,output=2");
  b.config.extra = extra;
  b.config.ignore_eos = TRUE;
  run(&b, &r);
  for (guint i = 0; i < b.bodies->len; i++) {
    const char *body = strstr(b.bodies->pdata[i], "\r\n\r\n");
    json_t *root = json_loads(body, JSON_REJECT_DUPLICATES, NULL);
    g_assert_nonnull(root);
    g_assert_cmpstr(json_string_value(json_object_get(root, "model")), ==, "a \"model\"");
    g_assert_true(json_is_true(json_object_get(root, "stream")));
    g_assert_true(json_is_true(json_object_get(root, "ignore_eos")));
    g_assert_true(json_is_true(oct_report_at(root, "stream_options.include_usage")));
    g_assert_cmpint(json_integer_value(json_object_get(root, "max_tokens")), ==, 2);
    g_assert_cmpint(json_integer_value(json_object_get(root, "temperature")), ==, 0);
    g_assert_nonnull(json_object_get(root, "x\"y"));
    g_assert_cmpuint(json_array_size(json_object_get(root, "prompt")), ==, 7);
    json_decref(root);
  }
  g_assert_cmpuint(b.bodies->len, ==, 3);
  json_decref(extra);
  oct_load_result_clear(&r);
  tear_down(&b);
}

static const struct {
  const char *name, *answer, *kind;
  oct_fate fate;
  int status;
} failures[] = {
    {"busy", "HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\n\r\nno", "status", OCT_FATE_BUSY, 429},
    {"unavailable", "HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", "status", OCT_FATE_BUSY, 503},
    {"refused", "HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\nno", "status", OCT_FATE_REFUSED, 400},
    {"broken", "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno", "status", OCT_FATE_FAILED, 500},
    {"cut",
     "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\n" CHUNK("x"),
     "cut short", OCT_FATE_FAILED, 0},
    {"error-frame",
     "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" CHUNK(
         "x") "data: {\"error\":{\"message\":\"no\"}}\n\n",
     "error in the stream", OCT_FATE_FAILED, 0},
};

static void
test_failure(gconstpointer data) {
  gsize i = GPOINTER_TO_SIZE(data);
  bed b;
  oct_load_result r;
  /* One at a time: which request gets which answer does not depend on the threads. */
  set_up(&b, "gen:arrivals=closed,concurrency=1,requests=20,input=20,output=4");
  b.fail_every = 5;
  b.failure = failures[i].answer;
  run(&b, &r);
  g_assert_cmpuint(r.ended, ==, 16);
  g_assert_cmpuint(r.from_due.fates[failures[i].fate], ==, 4);
  g_assert_cmpuint(r.from_due.fates[OCT_FATE_ANSWERED], ==, 16);
  g_assert_cmpuint(r.errors->len, ==, 1);
  const oct_load_error *e = &g_array_index(r.errors, oct_load_error, 0);
  g_assert_cmpstr(oct_failure_name(e->failure), ==, failures[i].kind);
  g_assert_cmpint(e->status, ==, failures[i].status);
  g_assert_cmpuint(e->count, ==, 4);
  oct_load_result_clear(&r);
  tear_down(&b);
}

/* ---------------------------------------------------------------- how many at once */

static void
test_closed_loop(void) {
  bed b;
  oct_load_result r;
  set_up(&b, "gen:arrivals=closed,concurrency=3,requests=30,input=5,output=2");
  run(&b, &r);
  g_assert_true(r.closed_loop);
  g_assert_cmpuint(r.concurrency, ==, 3);
  g_assert_cmpuint(r.ended, ==, 30);
  g_assert_cmpint(r.from_due.verdict, ==, OCT_VERDICT_CLOSED);
  g_assert_cmpuint(canned_n_connections(b.server), <=, 3);
  oct_load_result_clear(&r);
  tear_down(&b);
}

/* What may not be sent waits, and its waiting counts. */
static void
test_cap(void) {
  bed b;
  oct_load_result r;
  set_up(&b, "gen:rate=inf,requests=50,input=5,output=2");
  b.config.max_concurrency = 2;
  run(&b, &r);
  g_assert_cmpuint(r.ended, ==, 50);
  g_assert_cmpuint(canned_n_connections(b.server), <=, 2);
  const oct_hist *late = r.from_sent.latency[OCT_LATENCY_QUEUE];
  g_assert_cmpint(oct_hist_max(late), >, oct_hist_percentile(late, 2));
  g_assert_cmpint(oct_hist_max(r.from_due.latency[OCT_LATENCY_E2E]), >=, oct_hist_max(late));
  oct_load_result_clear(&r);
  tear_down(&b);
}

/* ---------------------------------------------------------------- how it ends */

static void
test_warm_up(void) {
  bed b;
  oct_load_result r;
  set_up(&b, "gen:rate=inf,requests=5,input=5,output=2");
  b.config.n_warmups = 3;
  run(&b, &r);
  g_assert_cmpuint(canned_n_requests(b.server), ==, 8);
  g_assert_cmpuint(r.sent, ==, 5);
  g_assert_cmpuint(r.from_due.requests, ==, 5);
  oct_load_result_clear(&r);
  tear_down(&b);
}

static void
test_failed_warm_up(void) {
  bed b;
  oct_load_result r;
  g_autoptr(GError) error = NULL;
  set_up(&b, "gen:rate=inf,requests=5,input=5,output=2");
  b.config.n_warmups = 2;
  b.fail_every = 2;
  b.failure = "HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno";
  g_assert_false(oct_load_run(&b.config, &r, &error));
  g_assert_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER);
  g_assert_nonnull(strstr(error->message, "warm-up"));
  tear_down(&b);
}

static void
test_interrupted(void) {
  static volatile sig_atomic_t stop = 1;
  bed b;
  oct_load_result r;
  set_up(&b, "gen:rate=inf,requests=5,input=5,output=2");
  b.hangs = TRUE;
  b.config.stop = &stop;
  run(&b, &r);
  g_assert_true(r.interrupted);
  g_assert_cmpuint(r.unfinished, ==, 5);
  g_assert_cmpuint(r.ended, ==, 0);
  oct_load_result_clear(&r);
  tear_down(&b);
}

/* Without a --duration of its own the trace's end is the end; with one, nothing is sent after it.
 */
static void
test_duration(void) {
  bed b;
  oct_load_result r;
  set_up(&b, "gen:arrivals=constant,rate=1000,requests=100000,input=5,output=1");
  b.config.duration_ns = 50000000;
  run(&b, &r);
  g_assert_cmpint(r.load_end_ns, <, 50000000);
  g_assert_cmpuint(r.sent, <=, 50);
  g_assert_cmpuint(r.ended, ==, r.sent);
  g_assert_cmpint(r.from_due.end_ns, >=, 50000000);
  oct_load_result_clear(&r);
  tear_down(&b);
}

/* ---------------------------------------------------------------- prompts */

static char *
prompt(const oct_trace_request *row, guint64 seed, gboolean as_text) {
  const oct_prompt_options o = {.as_text = as_text, .first_id = 100, .n_ids = 1000, .seed = seed};
  GString *out = g_string_new(NULL);
  oct_prompt_append(out, row, 0, &o);
  return g_string_free(out, FALSE);
}

/* The text up to its n-th comma or blank. */
static gsize
tokens_long(const char *text, guint n) {
  const char *c = text;
  for (; *c != '\0' && n > 0; c++)
    n -= *c == ',' || *c == ' ';
  return (gsize)(c - text);
}

static void
test_prompts(gconstpointer data) {
  gboolean as_text = data != NULL;
  const guint64 shared[2] = {77, 78};
  oct_trace_request a = {.input_tokens = 100,
                         .output_tokens = 1,
                         .block_size = 32,
                         .n_hash_ids = 2,
                         .hash_ids = shared,
                         .index = 1};
  oct_trace_request b = a;
  b.index = 2;
  b.input_tokens = 90;
  g_autofree char *of_a = prompt(&a, 1, as_text), *again = prompt(&a, 1, as_text);
  g_autofree char *of_b = prompt(&b, 1, as_text), *other = prompt(&a, 2, as_text);
  g_assert_cmpstr(of_a, ==, again);
  g_assert_cmpstr(of_a, !=, other);
  /* 64 tokens are shared, the next ones are each request's own. */
  gsize n = tokens_long(of_a, 64), more = tokens_long(of_a, 80);
  g_assert_cmpint(strncmp(of_a, of_b, n), ==, 0);
  g_assert_cmpint(strncmp(of_a, of_b, more), !=, 0);
  json_t *root = json_loads(of_a, JSON_DECODE_ANY, NULL);
  if (as_text) {
    g_auto(GStrv) words = g_strsplit(json_string_value(root), " ", -1);
    g_assert_cmpuint(g_strv_length(words), ==, 100);
  } else {
    g_assert_cmpuint(json_array_size(root), ==, 100);
    for (gsize i = 0; i < 100; i++) {
      json_int_t id = json_integer_value(json_array_get(root, i));
      g_assert_true(id >= 100 && id < 1100);
    }
  }
  json_decref(root);
}

/* ---------------------------------------------------------------- the report */

static void
test_report(void) {
  bed b;
  oct_load_result r;
  set_up(&b, "gen:rate=2000,requests=40,input=20,output=4");
  b.fail_every = 10;
  b.failure = "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno";
  run(&b, &r);
  const oct_bench_facts facts = {.url = "http://h",
                                 .model = "m",
                                 .trace_name = "t",
                                 .config = &b.config,
                                 .trace = oct_rows_facts(b.rows),
                                 .time_scale = 1,
                                 .seed = 1};
  json_t *report = oct_bench_json(&facts, &r);
  g_assert_cmpfloat(oct_report_number(report, "requests.answered"), ==, 36);
  g_assert_cmpfloat(oct_report_number(report, "requests.failed"), ==, 4);
  g_assert_cmpfloat(oct_report_number(report, "latency_s.ttft.count"), ==, 36);
  g_assert_cmpfloat(oct_report_number(report, "client.server.e2e.max"), ==, 0.008);
  g_assert_cmpfloat(oct_report_number(report, "client.tokens_per_chunk"), ==, 1);
  const json_t *error = json_array_get(oct_report_at(report, "client.errors"), 0);
  g_assert_cmpfloat(oct_report_number(error, "count"), ==, 4);
  g_assert_cmpfloat(oct_report_number(error, "status"), ==, 500);
  g_autofree char *text = NULL;
  size_t n;
  FILE *file = open_memstream(&text, &n);
  oct_bench_print(file, report, NULL);
  json_t *both[2] = {report, report};
  oct_report_print_comparison(file, both, 2);
  fclose(file);
  g_assert_nonnull(strstr(text, "m at http://h/v1/completions\n"));
  g_assert_nonnull(strstr(text, "4 x status 500: no"));
  g_assert_nonnull(strstr(text, "sent late"));
  json_decref(report);
  oct_load_result_clear(&r);
  tear_down(&b);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/load/all-is-counted", test_counts);
  g_test_add_func("/load/bodies-are-as-asked", test_bodies);
  for (gsize i = 0; i < G_N_ELEMENTS(failures); i++) {
    g_autofree char *path = g_strconcat("/load/failure/", failures[i].name, NULL);
    g_test_add_data_func(path, GSIZE_TO_POINTER(i), test_failure);
  }
  g_test_add_func("/load/closed-loop-has-its-slots", test_closed_loop);
  g_test_add_func("/load/max-concurrency-holds-back", test_cap);
  g_test_add_func("/load/warm-up-is-not-counted", test_warm_up);
  g_test_add_func("/load/warm-up-that-fails-ends-it", test_failed_warm_up);
  g_test_add_func("/load/interrupted-tells-what-was-out", test_interrupted);
  g_test_add_func("/load/duration-ends-sending", test_duration);
  g_test_add_data_func("/load/prompts/token-ids", NULL, test_prompts);
  g_test_add_data_func("/load/prompts/words", "x", test_prompts);
  g_test_add_func("/load/report", test_report);
  return g_test_run();
}
