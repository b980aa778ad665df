/* Requests and their answers, byte for byte: tests/golden/api/NAME.txt has the request line, the
 * body, the status and what came back. OCT_GOLDEN=1 rewrites them. */
#include <string.h>

#include "tests/engine/api/rig.h"

#define USER "'messages':[{'role':'user','content':'Hi'}]"
#define TOOL                                                                                       \
  "'tools':[{'type':'function','function':{'name':'add','parameters':{'type':'object'}}}]"
#define SAID                                                                                       \
  "<think>\nSo.\n</think>\n\nWell: <tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n"  \
  "</tool_call>"

/* A request; body NULL is GET. `said` NULL: the fake service's own words. */
typedef struct row {
  const char *name, *path, *body, *said;
} row;

static const row rows[] = {
    {"completions", "/v1/completions", "{'prompt':['a','b'],'logprobs':2,'max_tokens':2}", NULL},
    {"completions-stream", "/v1/completions",
     "{'prompt':'Hi','stream':true,'logprobs':1,'max_tokens':3,'stream_options':{'include_usage':"
     "true}}",
     NULL},
    {"completions-echo", "/v1/completions",
     "{'prompt':'Hi','echo':true,'prompt_logprobs':1,'return_token_ids':true,'max_tokens':2}",
     NULL},
    {"chat", "/v1/chat/completions", "{" USER "," TOOL ",'logprobs':true,'top_logprobs':1}",
     "<think>\nSo.\n</think>\n\nYes."},
    {"chat-tools", "/v1/chat/completions", "{" USER "," TOOL ",'return_metrics':true}", SAID},
    {"chat-stream", "/v1/chat/completions",
     "{'stream':true," USER "," TOOL ",'stream_options':{'include_usage':true}}", SAID},
    {"messages", "/v1/messages",
     "{'max_tokens':99," USER ",'tools':[{'name':'add','input_schema':{'type':'object'}}]}", SAID},
    {"messages-stream", "/v1/messages",
     "{'max_tokens':99,'stream':true," USER
     ",'tools':[{'name':'add','input_schema':{'type':'object'}}]}",
     SAID},
    {"count-tokens", "/v1/messages/count_tokens", "{" USER "}", NULL},
    {"responses", "/v1/responses",
     "{'input':'Hi','tools':[{'type':'function','name':'add','parameters':{'type':'object'}}]}",
     SAID},
    {"responses-stream", "/v1/responses",
     "{'stream':true,'input':'Hi','tools':[{'type':'function','name':'add','parameters':{'type':"
     "'object'}}]}",
     SAID},
    {"embeddings", "/v1/embeddings", "{'input':['a','b'],'dimensions':3}", NULL},
    {"tokenize", "/tokenize", "{'prompt':'Hi you','return_token_strs':true}", NULL},
    {"detokenize", "/detokenize", "{'tokens':[40,73]}", NULL},
    {"tokenizer-info", "/tokenizer_info", NULL, NULL},
    {"models", "/v1/models", NULL, NULL},
    {"model", "/v1/models/org/tiny", NULL, NULL},
    {"health", "/health", NULL, NULL},
    {"livez", "/livez", NULL, NULL},
    {"readyz", "/readyz", NULL, NULL},
    {"ping", "/ping", NULL, NULL},
    {"version", "/version", NULL, NULL},
    {"load", "/load", NULL, NULL},
    {"metrics", "/metrics", NULL, NULL},
    {"refused-value", "/v1/completions", "{'prompt':'a','temperature':3}", NULL},
    {"refused-field", "/v1/chat/completions", "{" USER ",'nonsense':1}", NULL},
    {"refused-model", "/v1/chat/completions", "{" USER ",'model':'other'}", NULL},
    {"refused-message", "/v1/messages", "{'max_tokens':9,'messages':[]}", NULL},
    {"no-path", "/v1/nothing", NULL, NULL},
};

static void
test_golden(gconstpointer data) {
  const row *w = data;
  static const rig_options options = {
      .chat = "qwen3", .pooling = OCT_API_POOL_LAST, .tokenizer_info = TRUE};
  g_autoptr(rig) r = rig_new(&options);
  if (w->said != NULL)
    fake_service_answer(r->service, w->said);
  g_autofree char *body = w->body != NULL ? rig_quote(w->body) : NULL;
  g_autofree char *get =
      g_strdup_printf("GET %s HTTP/1.1\r\nHost: a\r\nX-Request-Id: golden\r\n\r\n", w->path);
  g_auto(rig_reply) reply =
      body != NULL ? rig_post_with(r, w->path, "X-Request-Id: golden\r\n", body) : rig_send(r, get);
  g_autofree char *text =
      g_strdup_printf("%s %s\n%s\n\n%u\n%s\n", body != NULL ? "POST" : "GET", w->path,
                      body != NULL ? body : "", reply.status, reply.body);
  g_autofree char *name = g_strdup_printf("%s.txt", w->name);
  g_autofree char *path = g_test_build_filename(G_TEST_DIST, "golden", "api", name, NULL);
  g_autofree char *expected = NULL;
  g_autoptr(GError) error = NULL;
  if (g_getenv("OCT_GOLDEN") != NULL)
    g_file_set_contents(path, text, -1, &error);
  g_assert_no_error(error);
  g_file_get_contents(path, &expected, NULL, &error);
  g_assert_no_error(error);
  g_assert_cmpstr(text, ==, expected);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autofree char *path = g_strdup_printf("/api/golden/%s", rows[i].name);
    g_test_add_data_func(path, &rows[i], test_golden);
  }
  return g_test_run();
}
