/* POST /v1/completions: requests and their answers, whole and as streams. */
#include <string.h>

#include "tests/engine/api/rig.h"

#define PATH "/v1/completions"

static void
test_whole(void) {
  g_autoptr(rig) r = rig_new(NULL);
  g_auto(rig_reply) reply = rig_post_with(r, PATH, "X-Request-Id: abc\r\n", "{\"prompt\":\"Hi\"}");
  g_assert_cmpstr(reply.body, ==,
                  "{\"id\":\"cmpl-abc\",\"object\":\"text_completion\",\"created\":1700000000,"
                  "\"model\":\"tiny\",\"choices\":[{\"index\":0,\"text\":\"Hello, world.\","
                  "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":{"
                  "\"prompt_tokens\":2,\"completion_tokens\":12,\"total_tokens\":14,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":1},\"completion_tokens_details\":{"
                  "\"reasoning_tokens\":0}}}");
  g_assert_cmpuint(r->service->params.sampling.max_tokens, ==, 16);
  g_assert_true(r->service->params.plain);
}

static void
test_prompts(void) {
  g_autoptr(rig) r = rig_new(NULL);
  json_decref(rig_json(r, 200, PATH, "{'prompt':[1,2,3],'add_special_tokens':false}"));
  g_assert_cmpuint(r->service->params.n_prompt_ids, ==, 3);
  g_assert_false(r->service->params.plain);
  fake_service_answer(r->service, "one");
  fake_service_answer(r->service, "two");
  fake_service_answer(r->service, "three");
  fake_service_answer(r->service, "four");
  json_t *a = rig_json(r, 200, PATH, "{'prompt':['a','b'],'n':2}");
  static const char *const texts[] = {"one", "two", "three", "four"};
  g_autofree char *all = rig_join(rig_at(a, "choices"), "text");
  g_assert_cmpstr(all, ==, "onetwothreefour");
  for (guint i = 0; i < 4; i++) {
    const json_t *choice = json_array_get(rig_at(a, "choices"), i);
    g_assert_cmpstr(rig_text(choice, "text"), ==, texts[i]);
    g_assert_cmpint(rig_int(choice, "index"), ==, i);
  }
  json_decref(a);
  json_decref(rig_json(r, 200, PATH, "{'prompt':[[1],[2,3]]}"));
  json_decref(rig_json(r, 200, PATH, "{'prompt':[1,2,3],'truncate_prompt_tokens':2}"));
  g_assert_cmpuint(r->service->params.n_prompt_ids, ==, 2);
  rig_refuses(r, PATH, "{}", 400, "prompt");
  rig_refuses(r, PATH, "{'prompt':null}", 400, "prompt");
  rig_refuses(r, PATH, "{'prompt':[]}", 400, "prompt");
  rig_refuses(r, PATH, "{'prompt':[[]]}", 400, "prompt[0]");
  rig_refuses(r, PATH, "{'prompt':['a',1]}", 400, "prompt[1]");
  rig_refuses(r, PATH, "{'prompt':[1,'a']}", 400, "prompt");
  rig_refuses(r, PATH, "{'prompt':[1,-1]}", 400, "prompt");
  rig_refuses(r, PATH, "{'prompt':[1,1e0]}", 400, "prompt");
  rig_refuses(r, PATH, "{'prompt':[[1],[99999999]]}", 400, "prompt[1]");
  rig_refuses(r, PATH, "{'prompt':{}}", 400, "prompt");
  rig_refuses(r, PATH, "{'prompt':'a','truncate_prompt_tokens':2}", 400, "truncate_prompt_tokens");
}

static void
check_ids(rig *r, guint n, guint status) {
  g_autoptr(GString) body = g_string_new("{'prompt':[");
  for (guint i = 0; i < n; i++)
    g_string_append(body, i > 0 ? ",1" : "1");
  g_string_append(body, "]}");
  json_t *a = rig_json(r, status, PATH, body->str);
  if (status != 200)
    g_assert_cmpstr(rig_text(a, "error.code"), ==, "context_length_exceeded");
  json_decref(a);
}

static void
test_context(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.context = 100});
  check_ids(r, 99, 200);
  check_ids(r, 100, 200); /* the service has the last word */
  check_ids(r, 101, 400);
}

static void
test_stream(void) {
  g_autoptr(rig) r = rig_new(NULL);
  g_auto(rig_reply) reply =
      rig_post(r, PATH,
               "{'prompt':'Hi','stream':true,'stream_options':{'include_usage':true,"
               "'continuous_usage_stats':true}}");
  g_assert_nonnull(strstr(reply.head, "\r\nContent-Type: text/event-stream"));
  json_t *frames = rig_frames(reply.body);
  g_autofree char *text = rig_join(frames, "choices.0.text");
  g_assert_cmpstr(text, ==, "Hello, world.");
  for (gsize i = 0; i < json_array_size(frames); i++) {
    g_assert_cmpstr(rig_text(json_array_get(frames, i), "object"), ==, "text_completion");
    g_assert_cmpint(rig_int(json_array_get(frames, i), "usage.prompt_tokens"), ==, 2);
  }
  g_assert_cmpint(rig_int(json_array_get(frames, 0), "usage.completion_tokens"), ==, 1);
  json_decref(frames);
}

/* A front that is behind gets several tokens at once: they count, and are told, one by one. */
static void
test_many_at_once(void) {
  g_autoptr(rig) r = rig_new(NULL);
  json_t *one = rig_json(r, 200, PATH, "{'prompt':'Hi','logprobs':2,'return_token_ids':true}");
  r->service->tokens_of_delta = 5;
  json_t *many = rig_json(r, 200, PATH, "{'prompt':'Hi','logprobs':2,'return_token_ids':true}");
  g_assert_true(json_equal(rig_at(one, "choices"), rig_at(many, "choices")));
  g_assert_true(json_equal(rig_at(one, "usage"), rig_at(many, "usage")));
  json_decref(one);
  json_decref(many);
  g_auto(rig_reply) reply =
      rig_post(r, PATH, "{'prompt':'Hi','stream':true,'stream_options':{'include_usage':true}}");
  json_t *frames = rig_frames(reply.body);
  const json_t *last = json_array_get(frames, json_array_size(frames) - 1);
  g_assert_cmpint(rig_int(last, "usage.completion_tokens"), ==, 12);
  json_decref(frames);
}

static void
test_logprobs(void) {
  g_autoptr(rig) r = rig_new(NULL);
  json_t *a = rig_json(r, 200, PATH, "{'prompt':'Hi','logprobs':2}");
  const json_t *l = rig_at(a, "choices.0.logprobs");
  static const char *const lists[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
  for (guint i = 0; i < G_N_ELEMENTS(lists); i++)
    g_assert_cmpuint(json_array_size(rig_at(l, lists[i])), ==, 12);
  g_assert_cmpint(rig_int(l, "text_offset.11"), ==, 12);
  g_assert_cmpuint(json_object_size(rig_at(l, "top_logprobs.0")), ==, 2);
  g_auto(rig_reply) reply = rig_post(r, PATH, "{'prompt':'Hi','logprobs':2,'stream':true}");
  json_t *frames = rig_frames(reply.body);
  for (guint i = 0; i < G_N_ELEMENTS(lists); i++) {
    json_t *all = json_array();
    g_autofree char *path = g_strconcat("choices.0.logprobs.", lists[i], NULL);
    for (gsize k = 0; k < json_array_size(frames); k++)
      json_array_extend(all, (json_t *)rig_at(json_array_get(frames, k), path));
    g_assert_true(json_equal(all, rig_at(l, lists[i])));
    json_decref(all);
  }
  json_decref(frames);
  json_decref(a);
}

static void
test_echo(void) {
  g_autoptr(rig) r = rig_new(NULL);
  json_t *a = rig_json(r, 200, PATH, "{'prompt':'Hi you','echo':true}");
  g_assert_cmpstr(rig_text(a, "choices.0.text"), ==, "Hi youHello, world.");
  json_decref(a);
  a = rig_json(r, 200, PATH, "{'prompt':'Hi','echo':true,'logprobs':0,'n':2}");
  g_assert_cmpint(r->service->params.sampling.n_prompt_logprobs, ==, 1);
  for (guint c = 0; c < 2; c++) {
    const json_t *l = json_object_get(json_array_get(rig_at(a, "choices"), c), "logprobs");
    g_autofree char *first = g_strconcat(rig_text(l, "tokens.0"), rig_text(l, "tokens.1"), NULL);
    g_assert_cmpstr(first, ==, "Hi");
    g_assert_true(json_is_null(rig_at(l, "token_logprobs.0")));
    g_assert_true(json_is_real(rig_at(l, "token_logprobs.1")));
    g_assert_cmpuint(json_array_size(rig_at(l, "tokens")), ==, 14);
    g_assert_cmpint(rig_int(l, "text_offset.2"), ==, 2);
  }
  json_decref(a);
  /* Scoring: a prompt, and nothing behind it. */
  a = rig_json(r, 200, PATH, "{'prompt':[40],'echo':true,'logprobs':1,'max_tokens':0}");
  g_assert_cmpuint(json_array_size(rig_at(a, "choices.0.logprobs.tokens")), ==, 1);
  g_assert_cmpint(rig_int(a, "usage.completion_tokens"), ==, 0);
  json_decref(a);
  rig_refuses(r, PATH, "{'prompt':'Hi','max_tokens':0}", 400, "max_tokens");
}

/* One of several prompts fails: one answer, and the others are let go. */
static void
test_failure(void) {
  g_autoptr(rig) r = rig_new(NULL);
  r->service->fail_code = OCT_SERVICE_ERROR_FAILED;
  r->service->fail_after = 2;
  json_decref(rig_json(r, 500, PATH, "{'prompt':['a','b','c']}"));
  g_assert_cmpuint(r->service->n_forgotten, ==, 2);
  g_assert_cmpuint(r->service->live->len, ==, 0);
}

/* What a field says reaches the service. */
static void
test_passed_on(void) {
  g_autoptr(rig) r = rig_new(NULL);
  const oct_generation_params *p = &r->service->params;
  json_decref(rig_json(
      r, 200, PATH,
      "{'prompt':'Hi','temperature':0.5,'top_p':0.25,'top_k':7,'min_p':0.125,"
      "'repetition_penalty':1.5,'presence_penalty':-1,'frequency_penalty':2,'seed':0,"
      "'max_tokens':9,'min_tokens':3,'ignore_eos':true,'stop_token_ids':[5,6],"
      "'logit_bias':{'11':-100},'skip_special_tokens':false,'include_stop_str_in_output':true,"
      "'priority':-3,'cache_salt':'s','prompt_logprobs':0,'best_of':1}"));
  g_assert_cmpfloat(p->sampling.temperature, ==, 0.5);
  g_assert_cmpfloat(p->sampling.top_p, ==, 0.25);
  g_assert_cmpint(p->sampling.top_k, ==, 7);
  g_assert_cmpfloat(p->sampling.min_p, ==, 0.125);
  g_assert_cmpfloat(p->sampling.repetition_penalty, ==, 1.5);
  g_assert_cmpfloat(p->sampling.presence_penalty, ==, -1);
  g_assert_cmpfloat(p->sampling.frequency_penalty, ==, 2);
  g_assert_true(p->seeded && p->sampling.seed == 0);
  g_assert_cmpuint(p->sampling.max_tokens, ==, 9);
  g_assert_cmpuint(p->sampling.min_tokens, ==, 3);
  g_assert_true(p->sampling.ignore_eos && p->keep_special && p->include_stop);
  g_assert_cmpuint(p->sampling.n_stop_tokens, ==, 2);
  g_assert_cmpuint(p->sampling.stop_tokens[1], ==, 6);
  g_assert_cmpuint(r->service->logit_bias_token, ==, 11);
  g_assert_cmpint(p->sampling.priority, ==, -3);
  g_assert_cmpuint(p->sampling.salt, !=, 0);
  g_assert_cmpint(p->n_logprobs, ==, -1);
  static const struct {
    const char *field, *text;
    oct_constraint kind;
  } constraints[] = {
      {"'guided_regex':'a+'", "a+", OCT_CONSTRAINT_REGEX},
      {"'guided_choice':['a','b']", "[\"a\",\"b\"]", OCT_CONSTRAINT_CHOICE},
      {"'guided_json':{'type':'object'}", "{\"type\":\"object\"}", OCT_CONSTRAINT_SCHEMA},
      {"'guided_json':'{}'", "{}", OCT_CONSTRAINT_SCHEMA},
      {"'response_format':{'type':'json_object'}", NULL, OCT_CONSTRAINT_JSON},
      {"'response_format':{'type':'text'}", NULL, OCT_CONSTRAINT_NONE},
      {"'response_format':{'type':'json_schema','json_schema':{'name':'n','strict':true,'schema':"
       "{'type':'array'}}}",
       "{\"type\":\"array\"}", OCT_CONSTRAINT_SCHEMA},
      {"'structured_outputs':{'regex':'b'}", "b", OCT_CONSTRAINT_REGEX},
      {"'structured_outputs':{'choice':['c']}", "[\"c\"]", OCT_CONSTRAINT_CHOICE},
      {"'structured_outputs':{'json':{}}", "{}", OCT_CONSTRAINT_SCHEMA},
      {"'structured_outputs':{'json_object':true}", NULL, OCT_CONSTRAINT_JSON},
  };
  for (guint i = 0; i < G_N_ELEMENTS(constraints); i++) {
    g_autofree char *body = g_strdup_printf("{'prompt':'a',%s}", constraints[i].field);
    json_decref(rig_json(r, 200, PATH, body));
    g_assert_cmpint(p->constraint, ==, constraints[i].kind);
    g_assert_cmpstr(r->service->constraint, ==, constraints[i].text);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/api/completions/answers-byte-for-byte", test_whole);
  g_test_add_func("/api/completions/prompts-come-in-four-shapes", test_prompts);
  g_test_add_func("/api/completions/token-ids-fit-the-context", test_context);
  g_test_add_func("/api/completions/streams", test_stream);
  g_test_add_func("/api/completions/tokens-that-come-together-count", test_many_at_once);
  g_test_add_func("/api/completions/logprobs-are-those-of-the-tokens", test_logprobs);
  g_test_add_func("/api/completions/echoes", test_echo);
  g_test_add_func("/api/completions/fails-as-one", test_failure);
  g_test_add_func("/api/completions/fields-reach-the-service", test_passed_on);
  return g_test_run();
}
