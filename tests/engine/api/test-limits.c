/* Every limit of a request's fields: just below, at and above. Fields that are ignored, refused,
 * unknown. */
#include <string.h>

#include "engine/api/plan.h"
#include "tests/engine/api/rig.h"

#define PATH "/v1/completions"
#define CHAT "/v1/chat/completions"

/* `value` for a field of either endpoint: what status it is answered with. */
static void
check(rig *r, const char *path, const char *field, const char *value, guint status) {
  g_autofree char *body = g_strdup_printf(
      "{%s,'%s':%s}",
      g_str_equal(path, PATH) ? "'prompt':'a'" : "'messages':[{'role':'user','content':'a'}]",
      field, value);
  if (status != 200) {
    rig_refuses(r, path, body, status, field);
    return;
  }
  g_auto(rig_reply) reply = rig_post(r, path, body);
  if (reply.status != 200)
    g_error("%.200s: %s", body, reply.body);
}

static void
test_numbers(void) {
  static const struct {
    const char *field, *fit, *refused; /* separated by spaces */
  } rows[] = {
      {"n", "1 7 8", "0 9 -1 2147483647 9223372036854775807 1.0 '1' true []"},
      {"max_tokens", "1 511 512", "-1 513 2147483648 1.5"},
      {"min_tokens", "0 1 16", "-1 17 513"},
      {"temperature", "0 0.5 2", "-0.01 2.01 1e308 '1'"},
      {"top_p", "0 0.5 1", "-0.01 1.01"},
      {"min_p", "0 0.5 1", "-0.01 1.01"},
      {"top_k", "-1 0 1 2147483647", "-2 2147483648 1.5"},
      {"repetition_penalty", "0.01 1 10", "0 0.009 10.01"},
      {"presence_penalty", "-2 0 2", "-2.01 2.01"},
      {"frequency_penalty", "-2 0 2", "-2.01 2.01"},
      {"length_penalty", "1", "0.5 2"},
      {"seed", "0 1 9007199254740991", "-1 9007199254740992"},
      {"priority", "-2147483648 0 2147483647", "-2147483649 2147483648"},
      {"prompt_logprobs", "0 19 20", "-1 21"},
      {"best_of", "1", "0 2 9"},
      {"logprobs", "0 19 20", "-1 21 true"},
      {"truncate_prompt_tokens", "-1", "-2 0 1"},
      {"stream", "true false null", "1 'true' []"},
      {"ignore_eos", "true false null", "0"},
  };
  g_autoptr(rig) r = rig_new(NULL);
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_auto(GStrv) fit = g_strsplit(rows[i].fit, " ", -1);
    g_auto(GStrv) refused = g_strsplit(rows[i].refused, " ", -1);
    for (guint k = 0; fit[k] != NULL; k++)
      check(r, PATH, rows[i].field, fit[k], 200);
    for (guint k = 0; refused[k] != NULL; k++)
      check(r, PATH, rows[i].field, refused[k], 400);
  }
  check(r, CHAT, "max_completion_tokens", "1", 200);
  check(r, CHAT, "max_completion_tokens", "0", 400);
  check(r, CHAT, "max_tokens", "0", 400);
  check(r, CHAT, "logprobs", "true", 200);
  check(r, CHAT, "logprobs", "1", 400);
}

/* Not finite, or no JSON at all. */
static void
test_not_numbers(void) {
  static const char *const values[] = {"1e999", "-1e999", "NaN", "Infinity", "01", "+1", "0x1"};
  g_autoptr(rig) r = rig_new(NULL);
  for (guint i = 0; i < G_N_ELEMENTS(values); i++) {
    g_autofree char *body = g_strdup_printf("{'prompt':'a','temperature':%s}", values[i]);
    rig_refuses(r, PATH, body, 400, NULL);
  }
}

static char *
list_of(const char *item, guint n) {
  GString *out = g_string_new("[");
  for (guint i = 0; i < n; i++)
    g_string_append_printf(out, "%s%s", i > 0 ? "," : "", item);
  g_string_append_c(out, ']');
  return g_string_free(out, FALSE);
}

static char *
string_of(gsize n) {
  char *out = g_strnfill(n + 2, 'x');
  out[0] = out[n + 1] = '\'';
  return out;
}

static void
check_owned(rig *r, const char *path, const char *field, char *value, guint status) {
  check(r, path, field, value, status);
  g_free(value);
}

static void
test_lists(void) {
  g_autoptr(rig) r = rig_new(NULL);
  for (guint n = 15; n <= 17; n++) {
    check_owned(r, PATH, "stop", list_of("'s'", n), n <= 16 ? 200 : 400);
    check_owned(r, PATH, "stop_token_ids", list_of("1", n), n <= 16 ? 200 : 400);
  }
  for (gsize n = 255; n <= 257; n++) {
    check_owned(r, PATH, "stop", string_of(n), n <= 256 ? 200 : 400);
    check_owned(r, PATH, "cache_salt", string_of(n), n <= 256 ? 200 : 400);
  }
  check(r, PATH, "stop", "''", 400);
  check(r, PATH, "stop", "[1]", 400);
  check(r, PATH, "stop", "[]", 200);
  check(r, PATH, "stop_token_ids", "[-1]", 400);
  check(r, PATH, "stop_token_ids", "['1']", 400);
  check(r, PATH, "stop_token_ids", "1", 400);
  for (guint n = 1023; n <= 1025; n++)
    check_owned(r, PATH, "guided_choice", list_of("'c'", n), n <= 1024 ? 200 : 400);
  check(r, PATH, "guided_choice", "[]", 400);
  check(r, PATH, "guided_choice", "['']", 400);
  for (guint n = 1023; n <= 1025; n++) {
    g_autofree char *prompts = list_of("'p'", n);
    g_autofree char *body = g_strdup_printf("{'prompt':%s}", prompts);
    if (n <= OCT_API_PROMPTS_MAX)
      json_decref(rig_json(r, 200, PATH, body));
    else
      rig_refuses(r, PATH, body, 400, "prompt");
  }
}

static void
test_bias(void) {
  g_autoptr(rig) r = rig_new(NULL);
  guint32 n = RIG_TOKENS;
  check(r, PATH, "logit_bias", "{'0':-100,'1':100,'2':0.5}", 200);
  check(r, PATH, "logit_bias", "{'0':-100.01}", 400);
  check(r, PATH, "logit_bias", "{'0':100.01}", 400);
  check(r, PATH, "logit_bias", "{'0':'1'}", 400);
  check(r, PATH, "logit_bias", "{'01':1}", 400);
  check(r, PATH, "logit_bias", "{'-1':1}", 400);
  check(r, PATH, "logit_bias", "{'a':1}", 400);
  check(r, PATH, "logit_bias", "{'':1}", 400);
  check(r, PATH, "logit_bias", "{'99999999999':1}", 400);
  check_owned(r, PATH, "logit_bias", g_strdup_printf("{'%u':1}", n - 1), 200);
  check_owned(r, PATH, "logit_bias", g_strdup_printf("{'%u':1}", n), 400);
  for (guint count = 1023; count <= 1025; count++) {
    g_autoptr(GString) all = g_string_new("{");
    for (guint i = 0; i < count; i++)
      g_string_append_printf(all, "%s'%u':1", i > 0 ? "," : "", i);
    g_string_append_c(all, '}');
    g_autofree char *body = g_strdup_printf("{'prompt':'a','logit_bias':%s}", all->str);
    if (count <= 1024)
      json_decref(rig_json(r, 200, PATH, body));
    else /* as any object with so many keys */
      rig_refuses(r, PATH, body, 400, NULL);
  }
}

/* n x max_tokens is at most four contexts. */
static void
test_product(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.context = 100});
  json_decref(rig_json(r, 200, PATH, "{'prompt':'a','n':8,'max_tokens':49}"));
  json_decref(rig_json(r, 200, PATH, "{'prompt':'a','n':8,'max_tokens':50}"));
  rig_refuses(r, PATH, "{'prompt':'a','n':8,'max_tokens':51}", 400, "n");
}

static void
test_schemas(void) {
  g_autoptr(rig) r = rig_new(NULL);
  for (guint depth = 15; depth <= 17; depth++) {
    g_autoptr(GString) schema = g_string_new(NULL);
    for (guint i = 1; i < depth; i++)
      g_string_append(schema, "{'items':");
    g_string_append(schema, "{}");
    for (guint i = 1; i < depth; i++)
      g_string_append_c(schema, '}');
    check(r, PATH, "guided_json", schema->str, depth <= 16 ? 200 : 400);
  }
  for (gsize n = 65535; n <= 65537; n++) {
    g_autofree char *filler = string_of(n - strlen("{'title':''}"));
    check_owned(r, PATH, "guided_json", g_strdup_printf("{'title':%s}", filler),
                n <= 65536 ? 200 : 400);
    check_owned(r, PATH, "guided_regex", string_of(n), n <= 65536 ? 200 : 400);
  }
  check(r, PATH, "guided_json", "'{'", 400);
  check(r, PATH, "guided_regex", "''", 400);
  check(r, PATH, "guided_regex", "1", 400);
  rig_refuses(r, PATH, "{'prompt':'a','guided_regex':'a','guided_choice':['a']}", 400,
              "guided_regex");
  rig_refuses(r, PATH, "{'prompt':'a','response_format':{'type':'xml'}}", 400,
              "response_format.type");
  rig_refuses(r, PATH, "{'prompt':'a','response_format':{'type':'json_schema'}}", 400,
              "response_format.json_schema.schema");
  rig_refuses(r, PATH, "{'prompt':'a','structured_outputs':{'grammar':'g'}}", 400,
              "structured_outputs.grammar");
}

static char *
tool_of(const char *name, const char *parameters) {
  return g_strdup_printf("{'type':'function','function':{'name':'%s','parameters':%s}}", name,
                         parameters);
}

static void
test_tools(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.chat = "qwen2.5"});
  g_autofree char *plain = tool_of("t", "{}");
  for (guint n = 127; n <= 129; n++)
    check_owned(r, CHAT, "tools", list_of(plain, n), n <= 128 ? 200 : 400);
  const char *const good[] = {"a", "A.b:c/d-e_9"};
  const char *const bad[] = {"", "a b", "<|im_end|>", "\xc3\xa9"};
  for (guint i = 0; i < G_N_ELEMENTS(good); i++) {
    g_autofree char *tool = tool_of(good[i], "{}");
    check_owned(r, CHAT, "tools", g_strdup_printf("[%s]", tool), 200);
  }
  for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
    g_autofree char *tool = tool_of(bad[i], "{}");
    g_autofree char *body =
        g_strdup_printf("{'messages':[{'role':'user','content':'a'}],'tools':[%s]}", tool);
    rig_refuses(r, CHAT, body, 400, "tools[0]");
  }
}

/* --- fields that nobody honours ----------------------------------------------------------------
 */

static void
test_ignored(void) {
  static const char *const both[] = {"user", "request_id", "metadata"};
  static const char *const of_chat[] = {
      "prediction", "store", "service_tier", "prompt_cache_key", "safety_identifier", "verbosity"};
  g_autoptr(rig) r = rig_new(NULL);
  for (guint i = 0; i < G_N_ELEMENTS(both); i++) {
    check(r, PATH, both[i], "'x'", 200);
    check(r, CHAT, both[i], "{'a':1}", 200);
  }
  for (guint i = 0; i < G_N_ELEMENTS(of_chat); i++) {
    check(r, CHAT, of_chat[i], "'x'", 200);
    check(r, PATH, of_chat[i], "'x'", 400);
  }
}

static void
test_refused(void) {
  static const char *const both[] = {"use_beam_search",  "bad_words",          "allowed_token_ids",
                                     "vllm_xargs",       "kv_transfer_params", "guided_grammar",
                                     "logits_processors"};
  static const char *const of_chat[] = {"functions",     "function_call",       "audio",
                                        "chat_template", "mm_processor_kwargs", "documents",
                                        "echo",          "web_search_options"};
  static const char *const nothing[] = {"null", "false", "''", "[]", "{}", "0"};
  g_autoptr(rig) r = rig_new(NULL);
  for (guint i = 0; i < G_N_ELEMENTS(both); i++) {
    check(r, PATH, both[i], "'x'", 400);
    check(r, CHAT, both[i], "[1]", 400);
    for (guint k = 0; k < G_N_ELEMENTS(nothing); k++)
      check(r, PATH, both[i], nothing[k], 200);
  }
  for (guint i = 0; i < G_N_ELEMENTS(of_chat); i++)
    check(r, CHAT, of_chat[i], "{'a':1}", 400);
  check(r, PATH, "suffix", "'x'", 400);
  check(r, PATH, "prompt_embeds", "'x'", 400);
}

static void
test_unknown(void) {
  g_autoptr(rig) r = rig_new(NULL);
  check(r, PATH, "temprature", "1", 400);
  check(r, CHAT, "temprature", "null", 400);
  check(r, CHAT, "prompt", "'a'", 400);
  check(r, PATH, "messages", "[]", 400);
  check(r, PATH, "", "1", 400);
  rig_refuses(r, PATH, "{'prompt':'a','stream':true,'stream_options':{'x':1}}", 400,
              "stream_options.x");
  rig_refuses(r, PATH, "{'prompt':'a','stream_options':{}}", 400, "stream_options");
  rig_refuses(r, CHAT, "{'messages':[{'role':'user','content':'a','x':1}]}", 400, "messages[0].x");
  rig_refuses(r, CHAT,
              "{'messages':[{'role':'user','content':'a'}],'chat_template_kwargs':{'x':1}}", 400,
              "chat_template_kwargs.x");
  rig_refuses(r, CHAT, "{'messages':[]}", 400, "messages");
  rig_refuses(r, CHAT, "{'messages':'a'}", 400, "messages");
  rig_refuses(r, CHAT, "{'messages':['a']}", 400, "messages[0]");
  rig_refuses(r, CHAT, "{'messages':[{'role':'king','content':'a'}]}", 400, "messages");
  rig_refuses(r, CHAT, "[]", 400, NULL);
  rig_refuses(r, CHAT, "", 400, NULL);
  json_t *a = rig_json(r, 404, PATH, "{'prompt':'a','model':'other'}");
  g_assert_cmpstr(rig_text(a, "error.code"), ==, "model_not_found");
  g_assert_nonnull(strstr(rig_text(a, "error.message"), "'tiny', 'org/tiny'"));
  json_decref(a);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/api/limits/numbers-are-in-their-range", test_numbers);
  g_test_add_func("/api/limits/what-is-no-number-is-refused", test_not_numbers);
  g_test_add_func("/api/limits/lists-and-strings-are-short", test_lists);
  g_test_add_func("/api/limits/biases-are-of-tokens", test_bias);
  g_test_add_func("/api/limits/choices-times-tokens", test_product);
  g_test_add_func("/api/limits/schemas-are-small", test_schemas);
  g_test_add_func("/api/limits/tools-are-few-and-named", test_tools);
  g_test_add_func("/api/limits/some-fields-are-ignored", test_ignored);
  g_test_add_func("/api/limits/some-fields-are-refused-unless-they-ask-for-nothing", test_refused);
  g_test_add_func("/api/limits/unknown-fields-are-named", test_unknown);
  return g_test_run();
}
