/* Structured output through the service: what comes fits, whatever else happens. */
#include <jansson.h>
#include <string.h>

#include "backends/fault/fault.h"
#include "backends/mock/mock.h"
#include "tests/engine/serve/serve-rig.h"

#define SCHEMA                                                                                     \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":8},"           \
  "\"age\":{\"type\":\"integer\"}},\"required\":[\"name\",\"age\"],"                               \
  "\"additionalProperties\":false}"

static void
constrain(serve_ask *a, oct_constraint kind, const char *text) {
  a->params.constraint = kind;
  a->params.constraint_text = text;
  a->params.sampling.max_tokens = 300;
}

static void
check_object(const serve_ask *a, guint c) {
  g_assert_no_error(a->error);
  if (a->choices[c].finish.reason == OCT_FINISH_LENGTH)
    return; /* an integer may be as long as it likes */
  json_error_t problem;
  json_t *value = json_loads(a->choices[c].text->str, 0, &problem);
  g_assert_nonnull(value);
  g_assert_true(json_is_string(json_object_get(value, "name")));
  g_assert_true(json_is_integer(json_object_get(value, "age")) ||
                json_is_real(json_object_get(value, "age")));
  json_decref(value);
}

static void
test_kinds(void) {
  serve_rig r;
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  serve_ask *regex = serve_add(&r, 0, "a"), *choice = serve_add(&r, 0, "b");
  serve_ask *json = serve_add(&r, 0, "c"), *schema = serve_add(&r, 0, "dd");
  constrain(regex, OCT_CONSTRAINT_REGEX, "(yes|no) [0-9]{3}");
  constrain(choice, OCT_CONSTRAINT_CHOICE, "[\"left\",\"right\"]");
  constrain(json, OCT_CONSTRAINT_JSON, NULL);
  constrain(schema, OCT_CONSTRAINT_SCHEMA, SCHEMA);
  schema->params.sampling.n = 8;
  serve_run(&r);
  g_assert_no_error(r.error);
  g_assert_true(g_regex_match_simple("^(yes|no) [0-9]{3}$", regex->choices[0].text->str, 0, 0));
  g_assert_true(g_regex_match_simple("^(left|right)$", choice->choices[0].text->str, 0, 0));
  g_assert_no_error(json->error);
  g_assert_cmpint(json->choices[0].text->str[0], ==, '{');
  for (guint c = 0; c < 8; c++)
    check_object(schema, c);
  serve_rig_clear(&r);
}

static void
test_refused(void) {
  static const struct {
    oct_constraint kind;
    const char *text;
  } wrong[] = {{OCT_CONSTRAINT_REGEX, "(a"},
               {OCT_CONSTRAINT_REGEX, "a(?=b)"},
               {OCT_CONSTRAINT_CHOICE, "[]"},
               {OCT_CONSTRAINT_CHOICE, "[1]"},
               {OCT_CONSTRAINT_CHOICE, "not JSON"},
               {OCT_CONSTRAINT_SCHEMA, "{\"type\":\"what\"}"},
               {OCT_CONSTRAINT_SCHEMA, "{\"uniqueItems\":true}"},
               {OCT_CONSTRAINT_SCHEMA, "{"},
               {OCT_CONSTRAINT_SCHEMA, "7"}};
  serve_rig r;
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  for (guint i = 0; i < G_N_ELEMENTS(wrong); i++)
    constrain(serve_add(&r, i, "Hello"), wrong[i].kind, wrong[i].text);
  serve_ask *fine = serve_add(&r, 0, "Hello");
  serve_run(&r);
  for (guint i = 0; i < G_N_ELEMENTS(wrong); i++) {
    const serve_ask *a = r.asks->pdata[i];
    g_assert_cmpuint(a->n_ends, ==, 1);
    g_assert_cmpuint(oct_service_error_status(a->error), ==, 400);
    g_assert_cmpuint(a->n_deltas, ==, 0);
  }
  g_assert_no_error(fine->error);
  serve_rig_clear(&r);
}

/* Memory for a few: they preempt one another, and are asked for their masks again. */
static void
test_preempted(void) {
  serve_rig r;
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  r.config.engine.max_model_len = 512;
  r.config.engine.instance.memory.groups[0].n_device = 40;
  r.config.engine.policy = "vllm-v1"; /* admits by the current chunk only */
  for (guint i = 0; i < 24; i++) {
    serve_ask *a = serve_add(&r, i * MS, "Tell me of it in an object");
    constrain(a, OCT_CONSTRAINT_SCHEMA, SCHEMA);
    if (i % 2 == 0)
      constrain(a, OCT_CONSTRAINT_REGEX, "[a-z ]{200,210}");
  }
  serve_run(&r);
  g_assert_no_error(r.error);
  oct_engine_stats stats;
  oct_service_get_stats(r.service, 0, &stats);
  g_assert_cmpuint(stats.preemptions, >, 0);
  for (guint i = 0; i < 24; i++) {
    const serve_ask *a = r.asks->pdata[i];
    if (i % 2 == 1)
      check_object(a, 0);
    else
      g_assert_true(g_regex_match_simple("^[a-z ]{200,210}$", a->choices[0].text->str, 0, 0));
  }
  serve_rig_clear(&r);
}

/* Steps that fail are run again: with the same masks. */
static void
test_faults(void) {
  oct_fault_options fault;
  oct_fault_options_default(&fault);
  fault.rate = 0.05;
  fault.kinds = 1u << OCT_INJECT_STEP | 1u << OCT_INJECT_DELAY;
  serve_rig r;
  serve_rig_init(&r, oct_fault_world_new(oct_mock_world_new(NULL, NULL), &fault, NULL));
  r.config.engine.retries_max = 100;
  for (guint i = 0; i < 12; i++)
    constrain(serve_add(&r, i * MS, "Hello"), OCT_CONSTRAINT_SCHEMA, SCHEMA);
  serve_run(&r);
  g_assert_no_error(r.error);
  for (guint i = 0; i < 12; i++)
    check_object(r.asks->pdata[i], 0);
  serve_rig_clear(&r);
}

/* What is whole and asked to go on has nothing to say but its end. */
static void
test_ignore_eos(void) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Hello");
  constrain(a, OCT_CONSTRAINT_CHOICE, "[\"left\"]");
  a->params.sampling.ignore_eos = TRUE;
  a->params.sampling.max_tokens = 12;
  serve_run(&r);
  g_assert_no_error(a->error);
  g_assert_cmpstr(a->choices[0].text->str, ==, "left");
  g_assert_cmpuint(a->choices[0].ids->len, ==, 12);
  serve_rig_clear(&r);
}

/* A hundred constraints, of which the service keeps some: those in use stay. */
static void
test_many(void) {
  serve_rig r;
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  char *texts[100];
  for (guint i = 0; i < 100; i++) {
    texts[i] = g_strdup_printf("word%u{2} [a-f]{4}", i);
    constrain(serve_add(&r, i * MS / 10, "Hello"), OCT_CONSTRAINT_REGEX, texts[i]);
  }
  serve_run(&r);
  for (guint i = 0; i < 100; i++) {
    const serve_ask *a = r.asks->pdata[i];
    g_assert_no_error(a->error);
    g_autofree char *pattern = g_strdup_printf("^%s$", texts[i]);
    g_assert_true(g_regex_match_simple(pattern, a->choices[0].text->str, 0, 0));
    g_free(texts[i]);
  }
  serve_rig_clear(&r);
}

/* Constrained or not, steps run ahead: the others' texts come at the same times. */
static void
test_others_go_on(void) {
  oct_time ended[2];
  for (guint guided = 0; guided < 2; guided++) {
    serve_rig r;
    serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
    serve_ask *plain = serve_add(&r, 0, "Hello"), *other = serve_add(&r, 0, "Hello");
    plain->params.sampling.max_tokens = 100;
    other->params.sampling.max_tokens = 100;
    if (guided)
      constrain(other, OCT_CONSTRAINT_REGEX, "[a-z ]*");
    other->params.sampling.max_tokens = 100;
    serve_run(&r);
    g_assert_no_error(other->error);
    g_assert_cmpuint(plain->choices[0].ids->len, ==, 100);
    ended[guided] = plain->ended_ns;
    serve_rig_clear(&r);
  }
  g_assert_cmpint(ended[1], <=, ended[0] + 10 * MS);
}

/* Words without end are brought to one, whatever must be around them; so are answers that nobody
 * gave a length, but not those that are asked to go on. */
static void
test_imagined(void) {
  static const char *const schemas[] = {
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"array\","
      "\"items\":{\"type\":\"string\",\"minLength\":30}}},\"required\":[\"a\",\"b\"]}",
      "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},"
      "\"minItems\":3},\"minItems\":2}",
      "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}"};
  serve_rig r;
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  r.config.imagined_tokens = 20;
  for (guint i = 0; i < 24; i++) {
    serve_ask *a = serve_add(&r, i, i % 2 == 0 ? "Tell me" : "Tell me more");
    constrain(a, OCT_CONSTRAINT_SCHEMA, schemas[i % 3]);
    if (i >= 12)
      constrain(a, OCT_CONSTRAINT_JSON, NULL);
  }
  serve_ask *free = serve_add(&r, 0, "Hello"), *same = serve_add(&r, 9 * MS, "Hello");
  serve_ask *on = serve_add(&r, 0, "Hello"), *said = serve_add(&r, 0, "Hello");
  free->params.sampling.max_tokens = same->params.sampling.max_tokens = 0;
  on->params.sampling.max_tokens = 0;
  on->params.sampling.ignore_eos = TRUE;
  said->params.sampling.max_tokens = 200;
  serve_run(&r);
  for (guint i = 0; i < 24; i++) {
    const serve_ask *a = r.asks->pdata[i];
    g_assert_no_error(a->error);
    g_assert_cmpint(a->choices[0].finish.reason, ==, OCT_FINISH_STOP);
    json_t *value = json_loads(a->choices[0].text->str, 0, NULL);
    g_assert_nonnull(value);
    json_decref(value);
  }
  g_assert_cmpint(free->choices[0].finish.reason, ==, OCT_FINISH_STOP);
  g_assert_cmpuint(free->choices[0].ids->len, <=, 40);
  g_assert_cmpuint(same->choices[0].ids->len, ==, free->choices[0].ids->len);
  g_assert_cmpint(on->choices[0].finish.reason, ==, OCT_FINISH_LENGTH);
  g_assert_cmpuint(said->choices[0].ids->len, ==, 200);
  serve_rig_clear(&r);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/serve/guided/kinds", test_kinds);
  g_test_add_func("/serve/guided/what-cannot-be-is-400", test_refused);
  g_test_add_func("/serve/guided/fits-after-preemption", test_preempted);
  g_test_add_func("/serve/guided/fits-after-faults", test_faults);
  g_test_add_func("/serve/guided/whole-and-asked-to-go-on", test_ignore_eos);
  g_test_add_func("/serve/guided/more-than-are-kept", test_many);
  g_test_add_func("/serve/guided/others-go-on", test_others_go_on);
  g_test_add_func("/serve/guided/what-is-made-up-ends", test_imagined);
  return g_test_run();
}
