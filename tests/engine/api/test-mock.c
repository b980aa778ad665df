/* The API on the real service and a mock world, in virtual time: all requests at once. With one
 * seed a stream says what the whole answer says, at every endpoint. */
#include <string.h>

#include "backends/mock/mock.h"
#include "tests/engine/api/mock-front.h"

/* --- stream = whole ----------------------------------------------------------------------------
 */

#define HI "'messages':[{'role':'user','content':'Hi'}]"
#define TOOL                                                                                       \
  "'tools':[{'type':'function','function':{'name':'go','parameters':{'type':'object',"             \
  "'properties':{'way':{'enum':['up','down']}},'required':['way'],'additionalProperties':false}}}" \
  "]"

typedef struct pair {
  const char *path, *fields; /* `seed` or temperature 0 among them */
  const char *whole, *piece; /* where the text is, in an answer and in a frame */
} pair;

static const pair pairs[] = {
    {"/v1/completions", "'prompt':'Hi','seed':1,'max_tokens':30", "choices.0.text",
     "choices.0.text"},
    {"/v1/completions", "'prompt':'Hi','seed':1,'max_tokens':60,'stop':['e','th',' o']",
     "choices.0.text", "choices.0.text"},
    {"/v1/completions", "'prompt':'Hi','seed':2,'max_tokens':30,'echo':true,'logprobs':2",
     "choices.0.text", "choices.0.text"},
    {"/v1/completions", "'prompt':[240,159],'seed':2,'max_tokens':30", "choices.0.text",
     "choices.0.text"},
    {"/v1/chat/completions", HI ",'seed':3,'max_tokens':40", "choices.0.message.content",
     "choices.0.delta.content"},
    {"/v1/chat/completions",
     HI ",'seed':3,'max_tokens':40,'guided_regex':'<think>[a-c]{3,9}"
        "</think>[x-z]{3,9}'",
     "choices.0.message.reasoning_content", "choices.0.delta.reasoning_content"},
    {"/v1/chat/completions",
     HI ",'seed':3,'max_tokens':40,'guided_regex':'<think>[a-c]{3,9}"
        "</think>[x-z]{3,9}'",
     "choices.0.message.content", "choices.0.delta.content"},
    {"/v1/chat/completions", HI ",'seed':4,'max_tokens':400,'tool_choice':'required'," TOOL,
     "choices.0.message.tool_calls.0.function.arguments",
     "choices.0.delta.tool_calls.0.function.arguments"},
    {"/v1/messages", HI ",'temperature':0,'max_tokens':30", "content.0.text", "delta.text"},
    {"/v1/responses", "'input':'Hi','seed':5,'max_output_tokens':30", "output.0.content.0.text",
     "delta"},
};

static void
test_same(void) {
  const guint n = G_N_ELEMENTS(pairs);
  const char *paths[2 * G_N_ELEMENTS(pairs)], *bodies[2 * G_N_ELEMENTS(pairs)];
  g_autoptr(GPtrArray) owned = g_ptr_array_new_with_free_func(g_free);
  for (guint i = 0; i < n; i++) {
    paths[2 * i] = paths[2 * i + 1] = pairs[i].path;
    g_ptr_array_add(owned, g_strdup_printf("{%s}", pairs[i].fields));
    g_ptr_array_add(owned, g_strdup_printf("{'stream':true,%s}", pairs[i].fields));
    bodies[2 * i] = g_ptr_array_index(owned, 2 * i);
    bodies[2 * i + 1] = g_ptr_array_index(owned, 2 * i + 1);
  }
  front f;
  front_run(&f, oct_mock_world_new(NULL, NULL), paths, bodies, 2 * n, NULL, 0);
  for (guint i = 0; i < n; i++) {
    const rig_reply *whole = &f.asks[2 * i].reply, *stream = &f.asks[2 * i + 1].reply;
    if (whole->status != 200 || stream->status != 200)
      g_error("%s: %s %s", bodies[2 * i], whole->body, stream->body);
    json_t *answer = json_loads(whole->body, JSON_ALLOW_NUL, NULL),
           *frames = front_frames(stream->body);
    const char *text = rig_text(answer, pairs[i].whole);
    g_autofree char *joined = rig_join(frames, pairs[i].piece);
    if (text == NULL || text[0] == '\0')
      g_error("%s: no text: %s", bodies[2 * i], whole->body);
    g_assert_cmpstr(joined, ==, text);
    json_decref(answer);
    json_decref(frames);
  }
  front_clear(&f);
}

/* --- what the service refuses --------------------------------------------------------------------
 */

static void
test_refused(void) {
  static const struct {
    const char *path, *body, *param;
    guint status;
  } rows[] = {
      {"/v1/completions", "{'prompt':'Hi','guided_regex':'(?=a)'}", "guided_regex", 400},
      {"/v1/completions", "{'prompt':'Hi','stream':true,'guided_regex':'('}", "guided_regex", 400},
      {"/v1/chat/completions",
       "{" HI ",'response_format':{'type':'json_schema','json_schema':{'name':'n','schema':{"
       "'patternProperties':{}}}}}",
       "response_format.json_schema.schema", 400},
      {"/v1/chat/completions",
       "{" HI ",'tool_choice':'required','tools':[{'type':'function','function':{'name':'a',"
       "'parameters':{'not':{}}}}]}",
       "tools", 400},
      {"/v1/completions", "{'prompt':''}", NULL, 400},
      {"/v1/completions", "{'prompt':'Hi','top_p':0}", NULL, 200},
      {"/v1/completions", "{'prompt':'Hi','top_p':1e-31}", NULL, 200},
      /* Nothing to fit. */
      {"/v1/chat/completions",
       "{" HI ",'max_tokens':200,'tool_choice':'required','tools':[{'type':'function','function':{"
       "'name':'a','parameters':null}}]}",
       NULL, 200},
  };
  const char *paths[G_N_ELEMENTS(rows)], *bodies[G_N_ELEMENTS(rows)];
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
    paths[i] = rows[i].path;
    bodies[i] = rows[i].body;
  }
  front f;
  front_run(&f, oct_mock_world_new(NULL, NULL), paths, bodies, G_N_ELEMENTS(rows), NULL, 0);
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
    const rig_reply *reply = &f.asks[i].reply;
    if (reply->status != rows[i].status)
      g_error("%s: %u %s", bodies[i], reply->status, reply->body);
    json_t *answer = json_loads(reply->body, 0, NULL);
    g_assert_cmpstr(rig_text(answer, "error.param"), ==, rows[i].param);
    json_decref(answer);
  }
  front_clear(&f);
}

/* Clients look at the code: to cut their history and ask again. */
static void
test_too_long(void) {
  g_autofree char *text = g_strnfill(6000, 'a');
  const struct {
    const char *path, *before, *after;
  } rows[] = {{"/v1/completions", "{'prompt':'", "'}"},
              {"/v1/completions", "{'stream':true,'prompt':'", "'}"},
              {"/v1/completions", "{'prompt':['a','", "']}"},
              {"/v1/chat/completions", "{'messages':[{'role':'user','content':'", "'}]}"},
              {"/v1/responses", "{'input':'", "'}"}};
  const char *paths[G_N_ELEMENTS(rows)], *bodies[G_N_ELEMENTS(rows)];
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
    paths[i] = rows[i].path;
    bodies[i] = g_strconcat(rows[i].before, text, rows[i].after, NULL);
  }
  front f;
  front_run(&f, oct_mock_world_new(NULL, NULL), paths, bodies, G_N_ELEMENTS(rows), NULL, 0);
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_assert_cmpuint(f.asks[i].reply.status, ==, 400);
    json_t *answer = json_loads(f.asks[i].reply.body, 0, NULL);
    g_assert_cmpstr(rig_text(answer, "error.code"), ==, "context_length_exceeded");
    json_decref(answer);
    g_free((char *)bodies[i]);
  }
  front_clear(&f);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/api/mock/a-stream-says-what-the-whole-says", test_same);
  g_test_add_func("/api/mock/what-is-refused-is-named-and-only-that", test_refused);
  g_test_add_func("/api/mock/what-is-too-long-has-its-code", test_too_long);
  return g_test_run();
}
