/* How answers end, over HTTP with reasoning and tools: stop strings wherever tokens end, and
 * exactly one end of each stream. Each byte is a token, so that a stop string of n bytes lies
 * across n of them; what is said is forced by a constraint that allows one text. */
#include <string.h>

#include "backends/fault/fault.h"
#include "backends/mock/mock.h"
#include "tests/engine/api/mock-front.h"

#define HI "'messages':[{'role':'user','content':'Hi'}],'max_tokens':400"
#define TOOL                                                                                       \
  ",'tools':[{'type':'function','function':{'name':'go','parameters':{'type':'object',"            \
  "'properties':{'way':{'enum':['up','down']}},'required':['way'],'additionalProperties':false}}}" \
  "]"
#define THINKS "'guided_regex':'<think>\\n?alpha beta</think>one two three'"
#define CALLS                                                                                      \
  "'guided_regex':'Sure\\\\.\\n<tool_call>\\n\\\\{\\\"name\\\": \\\"go\\\", \\\"arguments\\\": "   \
  "\\\\{\\\"way\\\": \\\"up\\\"\\\\}\\\\}\\n</tool_call>'" TOOL

/* Of the whole answer; NULL: none. */
typedef struct row {
  const char *fields, *stop, *finish, *reasoning, *content, *arguments;
} row;

static const row rows[] = {
    {THINKS, "", "stop", "alpha beta", "one two three", NULL},
    {THINKS, "w", "stop", "alpha beta", "one t", NULL},
    {THINKS, "tw", "stop", "alpha beta", "one ", NULL},
    {THINKS, "thr", "stop", "alpha beta", "one two ", NULL},
    {THINKS, " two", "stop", "alpha beta", "one", NULL},
    {THINKS, "three", "stop", "alpha beta", "one two ", NULL},
    {THINKS, "threx", "stop", "alpha beta", "one two three", NULL}, /* all but its last byte */
    {THINKS, "b", "stop", "alpha ", NULL, NULL},
    {THINKS, "a bet", "stop", "alph", NULL, NULL},
    {THINKS, "</thi", "stop", "alpha beta", NULL, NULL},
    {THINKS, "k>one", "stop", NULL, NULL, NULL}, /* within the mark: what is kept is not decided */
    {CALLS, "", "tool_calls", NULL, "Sure.", "{\"way\": \"up\"}"},
    {CALLS, "re.", "stop", NULL, "Su", NULL},
    {CALLS, "S", "stop", NULL, NULL, NULL},
    {CALLS, "up", "stop", NULL, "Sure.\n{\"name\": \"go\", \"arguments\": {\"way\": \"",
     NULL},                                             /* a call cut short is text */
    {CALLS, "ol_ca", "stop", NULL, "Sure.\n<to", NULL}, /* within the mark of a call */
    {CALLS, "never", "tool_calls", NULL, "Sure.", "{\"way\": \"up\"}"},
};

static char *
body_of(const row *r, gboolean stream) {
  g_autofree char *stop =
      r->stop[0] != '\0' ? g_strdup_printf(",'stop':['%s']", r->stop) : g_strdup("");
  return g_strdup_printf("{%s" HI ",'temperature':0,%s%s}", stream ? "'stream':true," : "",
                         r->fields, stop);
}

/* "" for none. */
static const char *
text_at(const json_t *value, const char *path) {
  const char *text = rig_text(value, path);
  return text != NULL ? text : "";
}

static void
check_whole(const row *r, const json_t *answer) {
  const char *content = text_at(answer, "choices.0.message.content");
  const char *reasoning = text_at(answer, "choices.0.message.reasoning_content");
  g_assert_cmpstr(rig_text(answer, "choices.0.finish_reason"), ==, r->finish);
  if (r->content != NULL)
    g_assert_cmpstr(content, ==, r->content);
  if (r->reasoning != NULL)
    g_assert_cmpstr(reasoning, ==, r->reasoning);
  g_assert_cmpstr(rig_text(answer, "choices.0.message.tool_calls.0.function.arguments"), ==,
                  r->arguments);
  if (r->stop[0] != '\0') {
    g_assert_null(strstr(content, r->stop));
    g_assert_null(strstr(reasoning, r->stop));
  }
}

static void
check_same(const json_t *answer, const json_t *frames) {
  static const char *const parts[] = {"content", "reasoning_content",
                                      "tool_calls.0.function.arguments"};
  for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
    g_autofree char *whole = g_strconcat("choices.0.message.", parts[i], NULL);
    g_autofree char *piece = g_strconcat("choices.0.delta.", parts[i], NULL);
    g_autofree char *joined = rig_join(frames, piece);
    g_assert_cmpstr(joined, ==, text_at(answer, whole));
  }
}

static void
test_stops(void) {
  const guint n = G_N_ELEMENTS(rows);
  const char *paths[2 * G_N_ELEMENTS(rows)], *bodies[2 * G_N_ELEMENTS(rows)];
  g_autoptr(GPtrArray) owned = g_ptr_array_new_with_free_func(g_free);
  for (guint i = 0; i < 2 * n; i++) {
    g_ptr_array_add(owned, body_of(&rows[i / 2], i % 2 == 1));
    paths[i] = "/v1/chat/completions";
    bodies[i] = g_ptr_array_index(owned, i);
  }
  front f;
  front_run(&f, oct_mock_world_new(NULL, NULL), paths, bodies, 2 * n, "qwen3", 0);
  for (guint i = 0; i < n; i++) {
    const rig_reply *whole = &f.asks[2 * i].reply, *stream = &f.asks[2 * i + 1].reply;
    if (whole->status != 200 || stream->status != 200)
      g_error("%s: %s %s", bodies[2 * i], whole->body, stream->body);
    g_test_message("%s: %s", bodies[2 * i], whole->body);
    json_t *answer = json_loads(whole->body, JSON_ALLOW_NUL, NULL);
    json_t *frames = rig_frames(stream->body);
    check_whole(&rows[i], answer);
    check_same(answer, frames);
    json_decref(answer);
    json_decref(frames);
  }
  front_clear(&f);
}

/* --- ends ---------------------------------------------------------------------------------- */

static const char *const streams[] = {
    "'max_tokens':8,'ignore_eos':true",
    "'max_tokens':150,'ignore_eos':true",
    "'max_tokens':150,'ignore_eos':true,'n':3",
    "'max_tokens':400,'guided_regex':'<think>[a-c]{300}</think>[x-z]{3,9}'",
    "'max_tokens':400,'guided_regex':'<think>[a-c]{3,9}</think>[x-z]{3,9}'",
    "'max_tokens':400,'tool_choice':'required'" TOOL,
    "'max_tokens':60,'stop':['e']",
    "'max_tokens':150,'ignore_eos':true,'stream_options':{'include_usage':true}",
};

/* Ends of choices and error frames; [DONE] is asserted by rig_frames() to be the last and one. */
static void
check_ends(const char *request, const char *body, guint n_choices, guint *failed) {
  json_t *frames = rig_frames(body);
  guint ends = 0, errors = 0;
  for (gsize i = 0; i < json_array_size(frames); i++) {
    const json_t *frame = json_array_get(frames, i);
    errors += rig_at(frame, "error") != NULL;
    ends += rig_text(frame, "choices.0.finish_reason") != NULL;
    if (errors > 0 && i + 1 < json_array_size(frames))
      g_error("%s: more behind an error: %s", request, body);
  }
  if (errors > 1 || (errors == 0 && ends != n_choices) || (errors == 1 && ends >= n_choices))
    g_error("%s: %u ends of %u choices, %u errors", request, ends, n_choices, errors);
  *failed += errors;
  json_decref(frames);
}

/* All streams in a world that may fail, aborted at `abort_ns`. How many failed. */
static guint
run_ends(oct_world *world, oct_time abort_ns) {
  const guint n = G_N_ELEMENTS(streams);
  const char *paths[G_N_ELEMENTS(streams)], *bodies[G_N_ELEMENTS(streams)];
  g_autoptr(GPtrArray) owned = g_ptr_array_new_with_free_func(g_free);
  guint failed = 0;
  for (guint i = 0; i < n; i++) {
    g_ptr_array_add(owned, g_strdup_printf("{'messages':[{'role':'user','content':'Hi'}],'stream':"
                                           "true,'seed':1,%s}",
                                           streams[i]));
    paths[i] = "/v1/chat/completions";
    bodies[i] = g_ptr_array_index(owned, i);
  }
  front f;
  front_run(&f, world, paths, bodies, n, "qwen3", abort_ns);
  for (guint i = 0; i < n; i++) {
    const rig_reply *reply = &f.asks[i].reply;
    if (reply->status != 200) { /* before its first byte: a status of its own */
      g_assert_cmpuint(reply->status, >=, 500);
      failed++;
    } else
      check_ends(bodies[i], reply->body, strstr(bodies[i], "'n':3") != NULL ? 3 : 1, &failed);
  }
  front_clear(&f);
  return failed;
}

static void
test_ends_well(void) {
  g_assert_cmpuint(run_ends(oct_mock_world_new(NULL, NULL), 0), ==, 0);
}

static void
test_ends_aborted(void) {
  guint least = G_MAXUINT, most = 0;
  for (guint ms = 1; ms < 1000; ms += ms) {
    guint failed = run_ends(oct_mock_world_new(NULL, NULL), ms * MS);
    least = MIN(least, failed);
    most = MAX(most, failed);
  }
  g_assert_cmpuint(most, ==, G_N_ELEMENTS(streams)); /* all of them, at the earliest */
  g_assert_cmpuint(least, <, most);
}

/* The instance is lost again and again until requests have no retry left. */
static void
test_ends_by_faults(void) {
  oct_fault_options fault;
  oct_fault_options_default(&fault);
  fault.rate = 0.05;
  fault.kinds = 1u << OCT_INJECT_INSTANCE | 1u << OCT_INJECT_REQUEST;
  guint failed = run_ends(oct_fault_world_new(oct_mock_world_new(NULL, NULL), &fault, NULL), 0);
  g_assert_cmpuint(failed, >, 0);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/api/stops/a-stop-string-across-tokens-in-reasoning-and-tools", test_stops);
  g_test_add_func("/api/stops/one-end-of-each-stream", test_ends_well);
  g_test_add_func("/api/stops/one-end-of-each-stream-when-aborted", test_ends_aborted);
  g_test_add_func("/api/stops/one-end-of-each-stream-by-faults", test_ends_by_faults);
  return g_test_run();
}
