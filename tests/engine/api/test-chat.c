/* POST /v1/chat/completions: requests and their answers, whole and as streams. */
#include <string.h>

#include "tests/engine/api/rig.h"

#define CHAT "/v1/chat/completions"
#define HI   "'messages':[{'role':'user','content':'Hi'}]"
#define TOOL(name)                                                                                 \
  "{'type':'function','function':{'name':'" name "','parameters':{'type':'object',"                \
  "'properties':{'x':{'type':'integer'}},'required':['x']}}}"
#define CALL "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n</tool_call>"

/* Kimi K3's elements, whose markers are control tokens. */
#define O(element) "<|open|>" element "<|sep|>"
#define C(element) "<|close|>" element "<|sep|>"
#define K3_ANSWER  "So." C("think") O("response") "Yes." C("response") C("message") "<|end_of_msg|>"
#define K3_STRAY   "<|reserved_token_867|>"
#define K3_CALL                                                                                    \
  "So." C("think") O("tools") O("call tool=\"add\" index=\"1\"")                                   \
      O("argument key=\"x\" type=\"number\"") "3" C("argument") C("call") C("tools")

/* --- whole -------------------------------------------------------------------------------------
 */

static void
test_whole(void) {
  g_autoptr(rig) r = rig_new(NULL);
  g_auto(rig_reply) reply = rig_post_with(r, CHAT, "X-Request-Id: abc\r\n",
                                          "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\","
                                          "\"content\":\"Hi\"}]}");
  g_assert_nonnull(strstr(reply.head, "\r\nContent-Type: application/json"));
  g_assert_cmpstr(r->service->prompt->str, ==,
                  "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  guint32 n_prompt = 20, n_output = 12; /* as the vocabulary has it */
  g_autofree char *expected = g_strdup_printf(
      "{\"id\":\"chatcmpl-abc\",\"object\":\"chat.completion\",\"created\":1700000000,"
      "\"model\":\"tiny\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
      "\"content\":\"Hello, "
      "world.\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\","
      "\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,"
      "\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":%u},"
      "\"completion_tokens_details\":{\"reasoning_tokens\":0}}}",
      n_prompt, n_output, n_prompt + n_output, n_prompt / 2);
  g_assert_cmpstr(reply.body, ==, expected);
}

/* What a stream says adds up to the whole answer. */
static void
same(const char *chat, const char *said, const char *fields) {
  rig_options options = {.chat = chat};
  g_autoptr(rig) r = rig_new(&options);
  for (guint i = 0; i < 6; i++)
    fake_service_answer(r->service, said);
  g_autofree char *whole_body = g_strdup_printf("{%s}", fields);
  g_autofree char *stream_body = g_strdup_printf("{'stream':true,%s}", fields);
  json_t *whole = rig_json(r, 200, CHAT, whole_body);
  g_auto(rig_reply) reply = rig_post(r, CHAT, stream_body);
  g_assert_cmpuint(reply.status, ==, 200);
  json_t *frames = rig_frames(reply.body);
  const json_t *first = json_array_get(frames, 0);
  const json_t *last = json_array_get(frames, json_array_size(frames) - 1);
  g_assert_cmpstr(rig_text(first, "choices.0.delta.role"), ==, "assistant");
  g_assert_cmpstr(rig_text(first, "object"), ==, "chat.completion.chunk");
  g_assert_cmpstr(rig_text(last, "choices.0.finish_reason"), ==,
                  rig_text(whole, "choices.0.finish_reason"));
  static const char *const parts[] = {"content", "reasoning_content", "tool_calls.0.id",
                                      "tool_calls.0.function.name",
                                      "tool_calls.0.function.arguments"};
  for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
    g_autofree char *of_delta = g_strconcat("choices.0.delta.", parts[i], NULL);
    g_autofree char *of_message = g_strconcat("choices.0.message.", parts[i], NULL);
    g_autofree char *joined = rig_join(frames, of_delta);
    const char *expected = rig_text(whole, of_message);
    gboolean id = strstr(parts[i], ".id") != NULL; /* is of the request */
    if (id)
      g_assert_true((joined[0] != '\0') == (expected != NULL));
    else
      g_assert_cmpstr(joined, ==, expected != NULL ? expected : "");
  }
  gsize ends = 0;
  for (gsize i = 0; i < json_array_size(frames); i++)
    ends += rig_text(json_array_get(frames, i), "choices.0.finish_reason") != NULL;
  g_assert_cmpuint(ends, ==, 1);
  json_decref(frames);
  json_decref(whole);
}

static void
test_same(void) {
  same(NULL, "Hello \xf0\x9f\x98\x80 world", HI);
  same("qwen3", "<think>\nSo.\n</think>\n\nHi \xe6\xbc\xa2", HI);
  same("qwen3", "<think>\nUse it.\n</think>\n\n" CALL, HI ",'tools':[" TOOL("add") "]");
  same("qwen3", "Well: " CALL, HI ",'tools':[" TOOL("add") "]");
  same(NULL, "{\"name\": \"add\", \"parameters\": {\"x\": 12}}",
       HI ",'tools':[" TOOL("add") "],'tool_choice':'required'");
  same(NULL, "", HI);
  same(NULL, "one two three four", HI ",'max_tokens':2");
  same("kimi-k3", K3_ANSWER, HI);
  same("kimi-k3", K3_CALL, HI ",'tools':[" TOOL("add") "]");
}

static void
test_reasoning(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.chat = "qwen3"});
  fake_service_answer(r->service, "<think>\nSo be it.\n</think>\n\nYes.");
  json_t *a = rig_json(r, 200, CHAT, "{" HI "}");
  g_assert_cmpstr(rig_text(a, "choices.0.message.content"), ==, "Yes.");
  g_assert_cmpstr(rig_text(a, "choices.0.message.reasoning_content"), ==, "So be it.");
  g_assert_cmpint(rig_int(a, "usage.completion_tokens_details.reasoning_tokens"), >, 0);
  json_decref(a);
  fake_service_answer(r->service, "<think>\nSo be it.\n</think>\n\nYes.");
  a = rig_json(r, 200, CHAT, "{" HI ",'include_reasoning':false}");
  g_assert_null(rig_at(a, "choices.0.message.reasoning_content"));
  g_assert_cmpstr(rig_text(a, "choices.0.message.content"), ==, "Yes.");
  json_decref(a);
  static const char *const off[] = {"'reasoning_effort':'none'",
                                    "'chat_template_kwargs':{'enable_thinking':false}",
                                    "'response_format':{'type':'json_object'}"};
  for (guint i = 0; i < G_N_ELEMENTS(off); i++) {
    g_autofree char *body = g_strdup_printf("{" HI ",%s}", off[i]);
    json_decref(rig_json(r, 200, CHAT, body));
    g_assert_true(g_str_has_suffix(r->service->prompt->str, "<think>\n\n</think>\n\n"));
  }
}

/* Markers that are control tokens reach the parser, and nobody else. */
static void
test_kimi(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.chat = "kimi-k3"});
  fake_service_answer(r->service, K3_ANSWER);
  json_t *a = rig_json(r, 200, CHAT, "{" HI "}");
  g_assert_cmpstr(rig_text(a, "choices.0.message.content"), ==, "Yes.");
  g_assert_cmpstr(rig_text(a, "choices.0.message.reasoning_content"), ==, "So.");
  json_decref(a);
  fake_service_answer(r->service, K3_CALL);
  a = rig_json(r, 200, CHAT, "{" HI ",'tools':[" TOOL("add") "]}");
  g_assert_cmpstr(rig_text(a, "choices.0.message.tool_calls.0.function.arguments"), ==,
                  "{\"x\": 3}");
  g_assert_cmpstr(rig_text(a, "choices.0.finish_reason"), ==, "tool_calls");
  json_decref(a);
  g_assert_cmpuint(r->service->params.n_markers, >, 0);
  g_assert_false(r->service->params.keep_special);
  json_decref(
      rig_json(r, 200, CHAT, "{" HI ",'tool_choice':'required','tools':[" TOOL("add") "]}"));
  g_assert_cmpuint(r->service->params.n_markers, ==, 0);
  /* Control tokens that are no markers are nobody's text, unless they are asked for. */
  fake_service_answer(r->service, "So" K3_STRAY "." C("think") O("response") "Y" K3_STRAY "es.");
  a = rig_json(r, 200, CHAT, "{" HI "}");
  g_assert_cmpstr(rig_text(a, "choices.0.message.content"), ==, "Yes.");
  g_assert_cmpstr(rig_text(a, "choices.0.message.reasoning_content"), ==, "So.");
  json_decref(a);
  fake_service_answer(r->service, C("think") O("response") "Y" K3_STRAY "es.");
  a = rig_json(r, 200, CHAT, "{" HI ",'skip_special_tokens':false}");
  g_assert_cmpstr(rig_text(a, "choices.0.message.content"), ==, "Y" K3_STRAY "es.");
  json_decref(a);
}

/* --- tools -------------------------------------------------------------------------------------
 */

static void
test_tools(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.chat = "qwen2.5"});
  fake_service_answer(r->service, CALL CALL);
  json_t *a = rig_json(r, 200, CHAT, "{" HI ",'tools':[" TOOL("add") "]}");
  g_assert_cmpstr(rig_text(a, "choices.0.finish_reason"), ==, "tool_calls");
  g_assert_true(json_is_null(rig_at(a, "choices.0.message.content")));
  g_assert_cmpuint(json_array_size(rig_at(a, "choices.0.message.tool_calls")), ==, 2);
  g_assert_cmpstr(rig_text(a, "choices.0.message.tool_calls.1.type"), ==, "function");
  g_assert_cmpstr(rig_text(a, "choices.0.message.tool_calls.1.function.arguments"), ==,
                  "{\"x\": 1}");
  g_assert_true(g_str_has_prefix(rig_text(a, "choices.0.message.tool_calls.0.id"), "call_"));
  g_assert_cmpstr(rig_text(a, "choices.0.message.tool_calls.0.id"), !=,
                  rig_text(a, "choices.0.message.tool_calls.1.id"));
  g_assert_nonnull(strstr(r->service->prompt->str, "\"add\""));
  json_decref(a);

  fake_service_answer(r->service, CALL CALL);
  a = rig_json(r, 200, CHAT, "{" HI ",'parallel_tool_calls':false,'tools':[" TOOL("add") "]}");
  g_assert_cmpuint(json_array_size(rig_at(a, "choices.0.message.tool_calls")), ==, 1);
  json_decref(a);

  a = rig_json(r, 200, CHAT, "{" HI ",'tool_choice':'none','tools':[" TOOL("add") "]}");
  g_assert_null(strstr(r->service->prompt->str, "\"add\""));
  json_decref(a);
}

static void
test_forced(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.chat = "qwen3"});
  fake_service_answer(r->service, "{\"name\": \"add\", \"parameters\": {\"x\": 5}}");
  json_t *a = rig_json(r, 200, CHAT,
                       "{" HI ",'tool_choice':{'type':'function','function':{'name':'add'}},"
                       "'tools':[" TOOL("add") "," TOOL("sub") "]}");
  g_assert_cmpstr(rig_text(a, "choices.0.message.tool_calls.0.function.name"), ==, "add");
  g_assert_cmpstr(rig_text(a, "choices.0.message.tool_calls.0.function.arguments"), ==,
                  "{\"x\": 5}");
  g_assert_cmpint(r->service->params.constraint, ==, OCT_CONSTRAINT_SCHEMA);
  g_assert_nonnull(strstr(r->service->constraint, "\"const\":\"add\""));
  g_assert_null(strstr(r->service->constraint, "sub"));
  json_decref(a);
  a = rig_json(r, 200, CHAT,
               "{" HI ",'tool_choice':'required','tools':[" TOOL("add") "," TOOL("sub") "]}");
  g_assert_true(g_str_has_prefix(r->service->constraint, "{\"anyOf\":["));
  json_decref(a);
  rig_refuses(r, CHAT, "{" HI ",'tool_choice':'required'}", 400, "tool_choice");
  rig_refuses(r, CHAT, "{" HI ",'tool_choice':'maybe'}", 400, "tool_choice");
  rig_refuses(r, CHAT,
              "{" HI ",'tool_choice':{'type':'function','function':{'name':'mul'}},'tools':[" TOOL(
                  "add") "]}",
              400, "tool_choice");
  rig_refuses(r, CHAT,
              "{" HI ",'tool_choice':'required','guided_regex':'a','tools':[" TOOL("add") "]}", 400,
              "tool_choice");
}

/* A schema's own definitions are where its references look for them. */
static void
test_definitions(void) {
  g_autoptr(rig) r = rig_new(NULL);
#define WITH_DEFS(name, type)                                                                      \
  "{'type':'function','function':{'name':'" name "','parameters':{'type':'object','properties':{"  \
  "'p':{'$ref':'#/$defs/P'}},'$defs':{'P':{'type':'" type "'}}}}}"
  json_decref(rig_json(r, 200, CHAT,
                       "{" HI ",'tool_choice':'required','tools':[" WITH_DEFS(
                           "a", "string") "," WITH_DEFS("b", "string") "]}"));
  json_t *schema = json_loads(r->service->constraint, 0, NULL);
  g_assert_cmpstr(rig_text(schema, "$defs.P.type"), ==, "string");
  g_assert_null(rig_at(schema, "anyOf.0.properties.parameters.$defs"));
  json_decref(schema);
  rig_refuses(r, CHAT,
              "{" HI ",'tool_choice':'required','tools':[" WITH_DEFS("a", "string") "," WITH_DEFS(
                  "b", "integer") "]}",
              400, "tools");
}

/* --- logprobs, choices, usage ------------------------------------------------------------------
 */

static void
test_logprobs(void) {
  g_autoptr(rig) r = rig_new(NULL);
  json_t *a = rig_json(r, 200, CHAT, "{" HI ",'logprobs':true,'top_logprobs':3}");
  const json_t *content = rig_at(a, "choices.0.logprobs.content");
  g_assert_cmpuint(json_array_size(content), ==, 12);
  g_autofree char *text = rig_join(content, "token");
  g_assert_cmpstr(text, ==, "Hello, world.");
  g_assert_cmpuint(json_array_size(rig_at(content, "0.top_logprobs")), ==, 3);
  g_assert_cmpfloat(json_real_value(rig_at(content, "0.logprob")), ==, -0.25);
  g_assert_cmpfloat(json_real_value(rig_at(content, "0.top_logprobs.2.logprob")), ==, -0.75);
  g_assert_cmpint(rig_int(content, "0.bytes.0"), ==, 'H');
  g_auto(rig_reply) reply =
      rig_post(r, CHAT, "{" HI ",'logprobs':true,'top_logprobs':3,'stream':true}");
  json_t *frames = rig_frames(reply.body), *all = json_array();
  for (gsize i = 0; i < json_array_size(frames); i++)
    json_array_extend(all,
                      (json_t *)rig_at(json_array_get(frames, i), "choices.0.logprobs.content"));
  g_assert_true(json_equal(all, content));
  json_decref(all);
  json_decref(frames);
  json_decref(a);
  a = rig_json(r, 200, CHAT, "{" HI ",'logprobs':true,'return_tokens_as_token_ids':true}");
  g_assert_true(g_str_has_prefix(rig_text(a, "choices.0.logprobs.content.0.token"), "token_id:"));
  g_assert_cmpuint(json_array_size(rig_at(a, "choices.0.logprobs.content.0.top_logprobs")), ==, 0);
  json_decref(a);
  rig_refuses(r, CHAT, "{" HI ",'top_logprobs':3}", 400, "top_logprobs");
}

static void
test_choices(void) {
  g_autoptr(rig) r = rig_new(NULL);
  fake_service_answer(r->service, "one");
  fake_service_answer(r->service, "two");
  json_t *a = rig_json(r, 200, CHAT, "{" HI ",'n':2}");
  g_assert_cmpstr(rig_text(a, "choices.1.message.content"), ==, "two");
  g_assert_cmpint(rig_int(a, "choices.1.index"), ==, 1);
  json_decref(a);
  fake_service_answer(r->service, "one");
  fake_service_answer(r->service, "two");
  g_auto(rig_reply) reply =
      rig_post(r, CHAT, "{" HI ",'n':2,'stream':true,'stream_options':{'include_usage':true}}");
  json_t *frames = rig_frames(reply.body);
  const json_t *last = json_array_get(frames, json_array_size(frames) - 1);
  g_assert_cmpuint(json_array_size(rig_at(last, "choices")), ==, 0);
  g_assert_cmpint(rig_int(last, "usage.total_tokens"), ==,
                  rig_int(last, "usage.prompt_tokens") + rig_int(last, "usage.completion_tokens"));
  for (gsize i = 0; i + 1 < json_array_size(frames); i++)
    g_assert_true(json_is_null(rig_at(json_array_get(frames, i), "usage")));
  json_decref(frames);
}

static void
test_metrics(void) {
  g_autoptr(rig) r = rig_new(NULL);
  json_t *a = rig_json(r, 200, CHAT, "{" HI "}");
  g_assert_null(rig_at(a, "metrics"));
  json_decref(a);
  a = rig_json(r, 200, CHAT, "{" HI ",'return_metrics':true}");
  char *text = json_dumps(rig_at(a, "metrics"), JSON_COMPACT | JSON_REAL_PRECISION(6));
  g_assert_cmpstr(text, ==,
                  "{\"queue\":1e-6,\"prefill_start\":2e-6,\"decode_start\":0.001,"
                  "\"response_end\":0.012,\"time_to_first_token_ms\":1,\"generation_time_ms\":11,"
                  "\"queue_time_ms\":0.002,\"mean_itl_ms\":1,\"tokens_per_second\":1000}");
  free(text);
  json_decref(a);
  g_auto(rig_reply) reply = rig_post(r, CHAT, "{" HI ",'return_metrics':true,'stream':true}");
  json_t *frames = rig_frames(reply.body);
  g_assert_nonnull(
      rig_at(json_array_get(frames, json_array_size(frames) - 1), "metrics.response_end"));
  json_decref(frames);
}

static void
test_token_ids(void) {
  g_autoptr(rig) r = rig_new(NULL);
  json_t *a = rig_json(r, 200, CHAT, "{" HI ",'return_token_ids':true,'prompt_logprobs':1}");
  gint64 n = rig_int(a, "usage.prompt_tokens");
  g_assert_cmpuint(json_array_size(rig_at(a, "choices.0.token_ids")), ==, 12);
  g_assert_cmpuint(json_array_size(rig_at(a, "choices.0.prompt_token_ids")), ==, n);
  g_assert_cmpuint(json_array_size(rig_at(a, "choices.0.prompt_logprobs")), ==, n);
  g_assert_true(json_is_null(rig_at(a, "choices.0.prompt_logprobs.0")));
  g_assert_cmpuint(json_object_size(rig_at(a, "choices.0.prompt_logprobs.1")), ==, 2);
  json_decref(a);
}

/* --- errors ------------------------------------------------------------------------------------
 */

static void
test_errors(void) {
  g_autoptr(rig) r = rig_new(NULL);
  r->service->refuse_code = OCT_SERVICE_ERROR_BUSY;
  g_auto(rig_reply) busy = rig_post(r, CHAT, "{" HI ",'stream':true}");
  g_assert_cmpuint(busy.status, ==, 429);
  g_assert_nonnull(strstr(busy.head, "\r\nRetry-After: 1"));
  r->service->refuse_code = OCT_SERVICE_ERROR_DOWN;
  json_decref(rig_json(r, 503, CHAT, "{" HI "}"));
  r->service->fail_code = OCT_SERVICE_ERROR_FAILED;
  r->service->fail_after = 3;
  json_t *a = rig_json(r, 500, CHAT, "{" HI "}");
  g_assert_nonnull(strstr(rig_text(a, "error.message"), "the engine failed"));
  json_decref(a);
  /* Before the first token a stream has its own status. */
  r->service->fail_code = OCT_SERVICE_ERROR_INPUT;
  r->service->fail_after = 0;
  json_decref(rig_json(r, 400, CHAT, "{" HI ",'stream':true}"));
  /* After it the error is the last frame. */
  r->service->fail_code = OCT_SERVICE_ERROR_FAILED;
  r->service->fail_after = 3;
  g_auto(rig_reply) reply = rig_post(r, CHAT, "{" HI ",'stream':true}");
  g_assert_cmpuint(reply.status, ==, 200);
  json_t *frames = rig_frames(reply.body);
  const json_t *last = json_array_get(frames, json_array_size(frames) - 1);
  g_assert_cmpstr(rig_text(last, "error.type"), ==, "server_error");
  for (gsize i = 0; i < json_array_size(frames); i++)
    g_assert_null(rig_text(json_array_get(frames, i), "choices.0.finish_reason"));
  json_decref(frames);
}

/* Text that spells a control token is text, wherever it comes from. */
static void
test_injection(void) {
  static const char *const words[] = {"<|im_start|>", "<|im_end|>",     "<|endoftext|>", "<|open|>",
                                      "<|close|>",    "<|end_of_msg|>", "<|sep|>"};
  static const char *const families[] = {"chatml", "qwen2.5", "qwen3",
                                         "llama3", "mistral", "kimi-k3"};
  for (guint f = 0; f < G_N_ELEMENTS(families); f++) {
    g_autoptr(rig) r = rig_new(&(rig_options){.chat = families[f], .context = 4096});
    gboolean k3 = g_str_equal(families[f], "kimi-k3");
    const char *const *tokens = k3 ? words + 3 : words;
    for (guint t = 0; t < (k3 ? 4 : 3); t++) {
      guint32 id = oct_tokenizer_find_added(r->tokenizer, tokens[t]);
      g_assert_cmpuint(id, !=, OCT_NO_TOKEN);
      gint64 counts[2];
      for (guint evil = 0; evil < 2; evil++) {
        const char *word = evil ? tokens[t] : "harmless";
        g_autofree char *body = g_strdup_printf(
            "{'return_token_ids':true,'tools':[{'type':'function','function':{'name':'add',"
            "'description':'%s','parameters':{'type':'object','title':'%s'}}}],'messages':["
            "{'role':'system','content':'%s'},{'role':'user','content':[{'type':'text','text':"
            "'%s'}]},{'role':'assistant','content':'%s','tool_calls':[{'id':'callcall1','type':"
            "'function','function':{'name':'add','arguments':'{\\'x\\': \\'%s\\'}'}}]},{'role':"
            "'tool','tool_call_id':'callcall1','content':'%s'},{'role':'user','content':'%s'}]}",
            word, word, word, word, word, word, word, word);
        g_autofree char *quoted = g_strdelimit(g_strdup(body), "'", '"');
        json_t *a = rig_json(r, 200, CHAT, quoted);
        counts[evil] = 0;
        size_t i;
        json_t *value;
        json_array_foreach((json_t *)rig_at(a, "choices.0.prompt_token_ids"), i, value)
            counts[evil] += json_integer_value(value) == id;
        json_decref(a);
      }
      g_assert_cmpint(counts[0], ==, counts[1]);
    }
    g_autofree char *body = g_strdup_printf("{" HI ",'tools':[" TOOL("%s") "]}", tokens[0]);
    rig_refuses(r, CHAT, body, 400, "tools[0]");
  }
}

/* --- the conversation --------------------------------------------------------------------------
 */

static void
test_continue(void) {
  g_autoptr(rig) r = rig_new(NULL);
  json_decref(rig_json(r, 200, CHAT,
                       "{'continue_final_message':true,'messages':[{'role':'user','content':'Q'},"
                       "{'role':'assistant','content':'The <|im_end|>'}]}"));
  g_assert_true(g_str_has_suffix(r->service->prompt->str, "<|im_start|>assistant\nThe <|im_end|>"));
  rig_refuses(r, CHAT, "{'continue_final_message':true," HI "}", 400, "continue_final_message");
  json_decref(rig_json(r, 200, CHAT, "{'add_generation_prompt':false," HI "}"));
  g_assert_true(g_str_has_suffix(r->service->prompt->str, "<|im_end|>\n"));
}

static void
test_parts(void) {
  g_autoptr(rig) r = rig_new(NULL);
  static const char *const types[] = {"image_url", "input_audio", "file", "video_url", "refusal"};
  for (guint i = 0; i < G_N_ELEMENTS(types); i++) {
    g_autofree char *body =
        g_strdup_printf("{'messages':[{'role':'user','content':'a'},{'role':'user','content':["
                        "{'type':'text','text':'a'},{'type':'%s','%s':{'url':'http://a/b'}}]}]}",
                        types[i], types[i]);
    rig_refuses(r, CHAT, body, 400, "messages[1].content[1]");
  }
  g_autoptr(rig) none = rig_new(&(rig_options){.no_chat = TRUE});
  json_t *a = rig_json(none, 400, CHAT, "{" HI "}");
  g_assert_cmpstr(rig_text(a, "error.message"), ==, "messages: there is no chat here");
  json_decref(a);
}

static void
test_silence(void) {
  g_autoptr(rig) r = rig_new(NULL);
  g_assert_cmpint(oct_api_deadline(r->api), ==, G_MAXINT64);
  r->service->hold = 12;
  g_auto(rig_reply) reply = rig_post(r, CHAT, "{" HI ",'stream':true}");
  g_auto(GStrv) parts = g_strsplit(reply.body, ": keep-alive\n\n", -1);
  g_assert_cmpuint(g_strv_length(parts), ==, 3);
  json_t *frames = rig_frames(reply.body);
  g_autofree char *text = rig_join(frames, "choices.0.delta.content");
  g_assert_cmpstr(text, ==, "Hello, world.");
  json_decref(frames);
  g_assert_cmpint(oct_api_deadline(r->api), ==, G_MAXINT64);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/api/chat/answers-byte-for-byte", test_whole);
  g_test_add_func("/api/chat/a-stream-adds-up-to-the-whole", test_same);
  g_test_add_func("/api/chat/reasoning-is-apart", test_reasoning);
  g_test_add_func("/api/chat/kimi-k3-is-read", test_kimi);
  g_test_add_func("/api/chat/tools-are-called", test_tools);
  g_test_add_func("/api/chat/a-call-is-forced", test_forced);
  g_test_add_func("/api/chat/definitions-of-tools-are-found", test_definitions);
  g_test_add_func("/api/chat/logprobs-are-those-of-the-tokens", test_logprobs);
  g_test_add_func("/api/chat/choices-have-their-index", test_choices);
  g_test_add_func("/api/chat/metrics-are-there-on-request", test_metrics);
  g_test_add_func("/api/chat/token-ids-are-there-on-request", test_token_ids);
  g_test_add_func("/api/chat/errors-have-their-place", test_errors);
  g_test_add_func("/api/chat/text-never-becomes-a-control-token", test_injection);
  g_test_add_func("/api/chat/a-message-is-continued", test_continue);
  g_test_add_func("/api/chat/parts-that-are-not-text-are-refused", test_parts);
  g_test_add_func("/api/chat/silent-streams-are-kept-alive", test_silence);
  return g_test_run();
}
