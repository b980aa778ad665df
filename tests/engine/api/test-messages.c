/* POST /v1/messages and /v1/responses: requests and their answers, whole and as events. */
#include <string.h>

#include "tests/engine/api/rig.h"

#define MESSAGES  "/v1/messages"
#define RESPONSES "/v1/responses"
#define USER      "'messages':[{'role':'user','content':'Hi'}]"
#define CALL      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n</tool_call>"
#define THOUGHT   "<think>\nSo.\n</think>\n\n"

/* The events of a stream: "event: NAME" must be the data's type. */
static json_t *
events_of(const char *body) {
  json_t *events = json_array();
  g_auto(GStrv) parts = g_strsplit(body, "\n\n", -1);
  for (guint i = 0; parts[i] != NULL && parts[i][0] != '\0'; i++) {
    g_auto(GStrv) lines = g_strsplit(parts[i], "\n", -1);
    g_assert_true(g_str_has_prefix(lines[0], "event: ") && g_str_has_prefix(lines[1], "data: "));
    json_t *event = json_loads(lines[1] + strlen("data: "), JSON_REJECT_DUPLICATES, NULL);
    g_assert_nonnull(event);
    g_assert_cmpstr(rig_text(event, "type"), ==, lines[0] + strlen("event: "));
    json_array_append_new(events, event);
  }
  return events;
}

static json_t *
stream(rig *r, const char *path, const char *body) {
  g_auto(rig_reply) reply = rig_post(r, path, body);
  if (reply.status != 200)
    g_error("%s", reply.body);
  return events_of(reply.body);
}

static const json_t *
last_of(const json_t *events) {
  return json_array_get(events, json_array_size(events) - 1);
}

/* --- Anthropic's --------------------------------------------------------------------------------
 */

static void
test_message(void) {
  g_autoptr(rig) r = rig_new(NULL);
  g_auto(rig_reply) reply =
      rig_post_with(r, MESSAGES, "X-Request-Id: abc\r\n",
                    "{\"model\":\"tiny\",\"max_tokens\":20,\"system\":\"S\",\"messages\":[{"
                    "\"role\":\"user\",\"content\":\"Hi\"}]}");
  g_assert_cmpstr(reply.body, ==,
                  "{\"id\":\"msg_abc\",\"type\":\"message\",\"role\":\"assistant\",\"model\":"
                  "\"tiny\",\"content\":[{\"type\":\"text\",\"text\":\"Hello, world.\"}],"
                  "\"stop_reason\":\"end_turn\",\"stop_sequence\":null,\"usage\":{\"input_tokens\":"
                  "31,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,"
                  "\"output_tokens\":12}}");
  g_assert_cmpstr(r->service->prompt->str, ==,
                  "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>"
                  "assistant\n");
}

#define ANTHROPIC_TOOL "'tools':[{'name':'add','description':'d','input_schema':{'type':'object'}}]"

/* Events add up to the message. */
static void
test_message_events(void) {
  static const char *const said[] = {"Plain.", THOUGHT "Yes.", THOUGHT CALL, "Well: " CALL CALL,
                                     ""};
  for (guint i = 0; i < G_N_ELEMENTS(said); i++) {
    g_autoptr(rig) r = rig_new(&(rig_options){.chat = "qwen3"});
    fake_service_answer(r->service, said[i]);
    fake_service_answer(r->service, said[i]);
    json_t *a = rig_json(r, 200, MESSAGES, "{'max_tokens':99," USER "," ANTHROPIC_TOOL "}");
    json_t *events =
        stream(r, MESSAGES, "{'max_tokens':99,'stream':true," USER "," ANTHROPIC_TOOL "}");
    const json_t *content = rig_at(a, "content");
    g_assert_cmpstr(rig_text(json_array_get(events, 0), "type"), ==, "message_start");
    g_assert_cmpstr(rig_text(last_of(events), "type"), ==, "message_stop");
    const json_t *delta = json_array_get(events, json_array_size(events) - 2);
    g_assert_cmpstr(rig_text(delta, "delta.stop_reason"), ==, rig_text(a, "stop_reason"));
    g_assert_true(json_equal(rig_at(delta, "usage"), rig_at(a, "usage")));
    static const char *const keys[] = {"text", "thinking", "partial_json"};
    for (gsize b = 0; b < json_array_size(content); b++) {
      g_autoptr(GString) text = g_string_new(NULL);
      size_t k;
      json_t *event;
      json_array_foreach(events, k, event) {
        if (g_strcmp0(rig_text(event, "type"), "content_block_delta") == 0 &&
            rig_int(event, "index") == (gint64)b)
          for (guint q = 0; q < G_N_ELEMENTS(keys); q++) {
            const char *piece = json_string_value(json_object_get(rig_at(event, "delta"), keys[q]));
            g_string_append(text, piece != NULL ? piece : "");
          }
      }
      const json_t *block = json_array_get(content, b);
      if (g_strcmp0(rig_text(block, "type"), "tool_use") == 0) {
        json_t *input = json_loads(text->str, 0, NULL);
        g_assert_true(json_equal(input, rig_at(block, "input")));
        json_decref(input);
      } else
        g_assert_cmpstr(text->str, ==, rig_text(block, rig_text(block, "type")));
    }
    json_decref(events);
    json_decref(a);
  }
}

static void
test_message_tools(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.chat = "qwen2.5"});
  fake_service_answer(r->service, "Well: " CALL);
  json_t *a = rig_json(r, 200, MESSAGES, "{'max_tokens':99," USER "," ANTHROPIC_TOOL "}");
  g_assert_cmpstr(rig_text(a, "stop_reason"), ==, "tool_use");
  g_assert_cmpstr(rig_text(a, "content.1.name"), ==, "add");
  g_assert_cmpint(rig_int(a, "content.1.input.x"), ==, 1);
  json_decref(a);
  json_decref(rig_json(
      r, 200, MESSAGES,
      "{'max_tokens':9,'system':[{'type':'text','text':'A','cache_control':{'type':'ephemeral'}}],"
      "'messages':[{'role':'user','content':[{'type':'text','text':'Q'}]},{'role':'assistant',"
      "'content':[{'type':'thinking','thinking':'T','signature':''},{'type':'text','text':'B'},"
      "{'type':'tool_use','id':'t1','name':'add','input':{'x':2}}]},{'role':'user','content':[{"
      "'type':'tool_result','tool_use_id':'t1','content':[{'type':'text','text':'three'}]},{'type':"
      "'text','text':'and?'}]}]}"));
  static const char *const parts[] = {"system\nA", "user\nQ", "B", "\"x\": 2", "three", "and?"};
  const char *at = r->service->prompt->str;
  for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
    at = strstr(at, parts[i]);
    g_assert_nonnull(at);
  }
  fake_service_answer(r->service, "{\"name\": \"add\", \"parameters\": {}}");
  a = rig_json(r, 200, MESSAGES,
               "{'max_tokens':99,'tool_choice':{'type':'any'}," USER "," ANTHROPIC_TOOL "}");
  g_assert_cmpstr(rig_text(a, "content.0.type"), ==, "tool_use");
  json_decref(a);
}

static void
message_refuses(rig *r, const char *body, guint status, const char *type, const char *word) {
  json_t *a = rig_json(r, status, MESSAGES, body);
  g_assert_cmpstr(rig_text(a, "type"), ==, "error");
  g_assert_cmpstr(rig_text(a, "error.type"), ==, type);
  if (strstr(rig_text(a, "error.message"), word) == NULL)
    g_error("'%s' lacks '%s'", rig_text(a, "error.message"), word);
  json_decref(a);
}

static void
test_message_errors(void) {
  g_autoptr(rig) r = rig_new(NULL);
  message_refuses(r, "{" USER "}", 400, "invalid_request_error", "max_tokens");
  message_refuses(r, "{'max_tokens':0," USER "}", 400, "invalid_request_error", "max_tokens");
  message_refuses(r, "{'max_tokens':9,'messages':[]}", 400, "invalid_request_error", "messages");
  message_refuses(r, "{'max_tokens':9,'model':'x'," USER "}", 404, "not_found_error", "model");
  message_refuses(r, "{'max_tokens':9,'container':'x'," USER "}", 400, "invalid_request_error",
                  "container");
  message_refuses(r,
                  "{'max_tokens':9,'messages':[{'role':'user','content':[{'type':'image',"
                  "'source':{}}]}]}",
                  400, "invalid_request_error", "messages[0].content[0]: blocks of type 'image'");
  message_refuses(r,
                  "{'max_tokens':9,'messages':[{'role':'user','content':[{'type':'tool_use',"
                  "'id':'a','name':'b','input':{}}]}]}",
                  400, "invalid_request_error", "'tool_use'");
  message_refuses(r, "{'max_tokens':9,'messages':[{'role':'system','content':'x'}]}", 400,
                  "invalid_request_error", "role");
  r->service->refuse_code = OCT_SERVICE_ERROR_BUSY;
  message_refuses(r, "{'max_tokens':9," USER "}", 429, "rate_limit_error", "");
  r->service->fail_code = OCT_SERVICE_ERROR_FAILED;
  r->service->fail_after = 2;
  json_t *events = stream(r, MESSAGES, "{'max_tokens':9,'stream':true," USER "}");
  g_assert_cmpstr(rig_text(last_of(events), "type"), ==, "error");
  g_assert_cmpstr(rig_text(last_of(events), "error.type"), ==, "api_error");
  json_decref(events);
}

static void
test_count(void) {
  g_autoptr(rig) r = rig_new(NULL);
  json_t *a = rig_json(r, 200, MESSAGES "/count_tokens", "{" USER ",'system':'S'}");
  g_assert_cmpint(rig_int(a, "input_tokens"), ==, 31);
  json_decref(a);
}

/* --- OpenAI's -----------------------------------------------------------------------------------
 */

#define RESPONSE_TOOL "'tools':[{'type':'function','name':'add','parameters':{'type':'object'}}]"

static void
test_response(void) {
  g_autoptr(rig) r = rig_new(NULL);
  json_t *a = rig_json(r, 200, RESPONSES,
                       "{'model':'tiny','input':'Hi','instructions':'S','metadata':{'k':'v'}}");
  g_assert_cmpstr(r->service->prompt->str, ==,
                  "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>"
                  "assistant\n");
  g_assert_cmpstr(rig_text(a, "object"), ==, "response");
  g_assert_cmpstr(rig_text(a, "status"), ==, "completed");
  g_assert_cmpstr(rig_text(a, "output.0.type"), ==, "message");
  g_assert_cmpstr(rig_text(a, "output.0.content.0.type"), ==, "output_text");
  g_assert_cmpstr(rig_text(a, "output.0.content.0.text"), ==, "Hello, world.");
  g_assert_cmpint(rig_int(a, "usage.output_tokens"), ==, 12);
  g_assert_cmpint(rig_int(a, "usage.input_tokens_details.cached_tokens"), ==, 15);
  g_assert_cmpstr(rig_text(a, "instructions"), ==, "S");
  g_assert_cmpstr(rig_text(a, "metadata.k"), ==, "v");
  g_assert_true(json_is_false(rig_at(a, "store")));
  json_decref(a);
  a = rig_json(r, 200, RESPONSES, "{'input':'Hi','max_output_tokens':3}");
  g_assert_cmpstr(rig_text(a, "status"), ==, "incomplete");
  g_assert_cmpstr(rig_text(a, "output.0.status"), ==, "incomplete");
  g_assert_cmpstr(rig_text(a, "incomplete_details.reason"), ==, "max_output_tokens");
  json_decref(a);
}

/* The last event has the whole answer, and the deltas add up to it. */
static void
test_response_events(void) {
  static const char *const said[] = {"Plain.", THOUGHT "Yes.", THOUGHT CALL, "Well: " CALL CALL,
                                     ""};
  for (guint i = 0; i < G_N_ELEMENTS(said); i++) {
    g_autoptr(rig) r = rig_new(&(rig_options){.chat = "qwen3"});
    fake_service_answer(r->service, said[i]);
    json_t *events = stream(r, RESPONSES, "{'input':'Hi','stream':true," RESPONSE_TOOL "}");
    const json_t *output = rig_at(last_of(events), "response.output");
    g_assert_cmpstr(rig_text(json_array_get(events, 0), "type"), ==, "response.created");
    g_assert_cmpstr(rig_text(last_of(events), "type"), ==, "response.completed");
    for (gsize k = 0; k < json_array_size(events); k++)
      g_assert_cmpint(rig_int(json_array_get(events, k), "sequence_number"), ==, (gint64)k);
    for (gsize b = 0; b < json_array_size(output); b++) {
      const json_t *item = json_array_get(output, b);
      g_autoptr(GString) text = g_string_new(NULL);
      size_t k;
      json_t *event;
      gboolean done = FALSE;
      json_array_foreach(events, k, event) {
        const char *type = rig_text(event, "type");
        if (rig_at(event, "output_index") == NULL || rig_int(event, "output_index") != (gint64)b)
          continue;
        if (g_str_has_suffix(type, ".delta"))
          g_string_append(text, rig_text(event, "delta"));
        if (g_str_equal(type, "response.output_item.done")) {
          done = TRUE;
          g_assert_true(json_equal(rig_at(event, "item"), item));
        }
      }
      g_assert_true(done);
      const char *arguments = rig_text(item, "arguments");
      g_assert_cmpstr(text->str, ==,
                      arguments != NULL ? arguments : rig_text(item, "content.0.text"));
    }
    json_decref(events);
  }
}

static void
test_response_input(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.chat = "qwen3"});
  json_decref(rig_json(
      r, 200, RESPONSES,
      "{'input':[{'role':'developer','content':'D'},{'type':'message','role':'user','content':[{"
      "'type':'input_text','text':'Q'}]},{'type':'reasoning','summary':[],'content':[{'type':"
      "'reasoning_text','text':'T'}]},{'type':'message','role':'assistant','content':[{'type':"
      "'output_text','text':'B','annotations':[]}]},{'type':'function_call','call_id':'c1','name':"
      "'add','arguments':'{}'},{'type':'function_call_output','call_id':'c1','output':'three'}]"
      "," RESPONSE_TOOL "}"));
  static const char *const parts[] = {"system\nD", "user\nQ", "B", "\"name\": \"add\"", "three"};
  const char *at = r->service->prompt->str;
  for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
    const char *found = strstr(at, parts[i]);
    if (found == NULL && i == 0) /* the tools' list comes with the system's text */
      continue;
    g_assert_nonnull(found);
    at = found;
  }
  json_decref(rig_json(r, 200, RESPONSES,
                       "{'input':'Hi','text':{'format':{'type':'json_schema','name':'n','schema':{"
                       "'type':'array'}}}}"));
  g_assert_cmpstr(r->service->constraint, ==, "{\"type\":\"array\"}");
}

static void
test_response_errors(void) {
  g_autoptr(rig) r = rig_new(NULL);
  static const char *const refused[] = {"previous_response_id", "conversation", "background",
                                        "store", "top_logprobs"};
  for (guint i = 0; i < G_N_ELEMENTS(refused); i++) {
    g_autofree char *body = g_strdup_printf("{'input':'Hi','%s':%s}", refused[i],
                                            g_str_equal(refused[i], "store") ? "true" : "'x'");
    rig_refuses(r, RESPONSES, body, 400, refused[i]);
  }
  json_decref(rig_json(r, 200, RESPONSES, "{'input':'Hi','store':false,'background':false}"));
  rig_refuses(r, RESPONSES, "{}", 400, "input");
  rig_refuses(r, RESPONSES, "{'input':[{'type':'item_reference','id':'a'}]}", 400, "input[0]");
  rig_refuses(r, RESPONSES,
              "{'input':[{'role':'user','content':[{'type':'input_image','image_url':'x'}]}]}", 400,
              "input[0].content[0]");
  rig_refuses(r, RESPONSES, "{'input':'Hi','tools':[{'type':'web_search'}]}", 400, "tools[0]");
  rig_refuses(r, RESPONSES, "{'input':'Hi','truncation':'auto'}", 400, "truncation");
  rig_refuses(r, RESPONSES, "{'input':'Hi','reasoning':{'effort':'huge'}}", 400,
              "reasoning.effort");
  r->service->fail_code = OCT_SERVICE_ERROR_FAILED;
  r->service->fail_after = 2;
  json_t *events = stream(r, RESPONSES, "{'input':'Hi','stream':true}");
  g_assert_cmpstr(rig_text(last_of(events), "type"), ==, "response.failed");
  g_assert_cmpstr(rig_text(last_of(events), "response.status"), ==, "failed");
  json_decref(events);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/api/messages/answers-byte-for-byte", test_message);
  g_test_add_func("/api/messages/events-add-up-to-the-message", test_message_events);
  g_test_add_func("/api/messages/tools-are-used", test_message_tools);
  g_test_add_func("/api/messages/errors-are-in-their-shape", test_message_errors);
  g_test_add_func("/api/messages/tokens-are-counted", test_count);
  g_test_add_func("/api/responses/answers", test_response);
  g_test_add_func("/api/responses/events-add-up-to-the-response", test_response_events);
  g_test_add_func("/api/responses/items-become-a-conversation", test_response_input);
  g_test_add_func("/api/responses/what-needs-state-is-refused", test_response_errors);
  return g_test_run();
}
