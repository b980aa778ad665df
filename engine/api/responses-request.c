/* POST /v1/responses, without state: the request, brought into the shape of OpenAI's chat. */
#include "engine/api/plan.h"

#include <string.h>

#include "engine/api/json-in.h"

typedef struct response_fields {
  const char *model, *instructions, *truncation;
  const json_t *input, *text, *tools, *tool_choice, *reasoning, *include;
  gint64 max_output_tokens, top_k, seed, priority;
  double temperature, top_p;
  gboolean stream, store, parallel_tool_calls;
  const char *cache_salt;
  const json_t *stream_options;
} response_fields;

#define FIELD(member, kind, ...) OCT_FIELD(response_fields, member, kind, __VA_ARGS__)
#define NO_STATE                 "answers are not stored: send the whole conversation as input"
static const oct_field fields[] = {
    FIELD(model, STRING, 0, 0, NULL),
    FIELD(input, VALUE, 0, 0, NULL),
    FIELD(instructions, STRING, 0, 0, NULL),
    FIELD(max_output_tokens, INT, 1, G_MAXINT32, NULL),
    FIELD(temperature, NUMBER, 0, 2, NULL),
    FIELD(top_p, NUMBER, 0, 1, NULL),
    FIELD(top_k, INT, -1, G_MAXINT32, NULL),
    FIELD(seed, INT, 0, OCT_API_SAFE_INT_MAX, NULL),
    FIELD(priority, INT, G_MININT32, G_MAXINT32, NULL),
    FIELD(cache_salt, STRING, 0, 256, NULL),
    FIELD(stream, BOOL, 0, 0, NULL),
    FIELD(stream_options, OBJECT, 0, 0, NULL),
    FIELD(store, BOOL, 0, 0, NULL),
    FIELD(text, OBJECT, 0, 0, NULL),
    FIELD(tools, ARRAY, 0, OCT_CHAT_TOOLS_MAX, NULL),
    FIELD(tool_choice, VALUE, 0, 0, NULL),
    FIELD(parallel_tool_calls, BOOL, 0, 0, NULL),
    FIELD(reasoning, OBJECT, 0, 0, NULL),
    FIELD(include, ARRAY, 0, 0, NULL),
    FIELD(truncation, STRING, 0, 0, NULL),
    OCT_FIELD_IGNORE("metadata"),
    OCT_FIELD_IGNORE("prompt_cache_key"),
    OCT_FIELD_IGNORE("prompt_cache_retention"),
    OCT_FIELD_IGNORE("request_id"),
    OCT_FIELD_IGNORE("safety_identifier"),
    OCT_FIELD_IGNORE("service_tier"),
    OCT_FIELD_IGNORE("user"),
    OCT_FIELD_REFUSE("background", NO_STATE),
    OCT_FIELD_REFUSE("context_management", NULL),
    OCT_FIELD_REFUSE("conversation", NO_STATE),
    OCT_FIELD_REFUSE("max_tool_calls", "there are no tools of the server's own"),
    OCT_FIELD_REFUSE("previous_response_id", NO_STATE),
    OCT_FIELD_REFUSE("prompt", "there are no stored prompts"),
    OCT_FIELD_REFUSE("top_logprobs", "is not supported: use /v1/chat/completions"),
};

/* --- items of the input ------------------------------------------------------------------------
 */

/* The last message of `to` when it is the assistant's and lacks `field` (NULL: whatever it has),
 * for what belongs to the same turn; else a new one. */
static json_t *
assistant(json_t *to, const char *field) {
  json_t *last = json_array_get(to, json_array_size(to) - 1);
  if (g_strcmp0(json_string_value(json_object_get(last, "role")), "assistant") == 0 &&
      (field == NULL || json_object_get(last, field) == NULL))
    return last;
  json_array_append_new(to, json_pack("{s:s}", "role", "assistant"));
  return json_array_get(to, json_array_size(to) - 1);
}

/* The text of a string, or of parts of the types that are text; NULL with a fault. Owned. */
static char *
text_of(const json_t *content, const char *param, oct_api_fault *fault) {
  static const char *const types[] = {"input_text", "output_text", "text", "summary_text",
                                      "reasoning_text"};
  if (json_is_string(content))
    return g_strdup(json_string_value(content));
  if (!json_is_array(content)) {
    oct_api_refuse(fault, 400, param, "%s: is neither a string nor a list of parts", param);
    return NULL;
  }
  g_autoptr(GString) out = g_string_new(NULL);
  for (gsize i = 0; i < json_array_size(content); i++) {
    const json_t *part = json_array_get(content, i), *text = json_object_get(part, "text");
    const char *type = json_string_value(json_object_get(part, "type"));
    gboolean known = FALSE;
    for (guint k = 0; type != NULL && k < G_N_ELEMENTS(types); k++)
      known = known || g_str_equal(type, types[k]);
    if (!known || !json_is_string(text)) {
      g_autofree char *place = g_strdup_printf("%s[%" G_GSIZE_FORMAT "]", param, i);
      oct_api_refuse(fault, 400, place, "%s: parts of type '%.64s' are not supported, only text",
                     place, type != NULL ? type : "");
      return NULL;
    }
    g_string_append_printf(out, "%s%s", i > 0 ? "\n" : "", json_string_value(text));
  }
  return g_string_free(g_steal_pointer(&out), FALSE);
}

static gboolean
add_message(json_t *to, const json_t *item, const char *param, oct_api_fault *fault) {
  const char *role = json_string_value(json_object_get(item, "role"));
  g_autofree char *inner = g_strconcat(param, ".content", NULL);
  if (role == NULL)
    return oct_api_refuse(fault, 400, param, "%s: lacks its role", param);
  g_autofree char *text = text_of(json_object_get(item, "content"), inner, fault);
  if (text == NULL)
    return FALSE;
  if (g_str_equal(role, "assistant"))
    json_object_set_new(assistant(to, "content"), "content", json_string(text));
  else
    json_array_append_new(to, json_pack("{s:s,s:s}", "role", role, "content", text));
  return TRUE;
}

static gboolean
add_call(json_t *to, const json_t *item, const char *param, oct_api_fault *fault) {
  const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
  const json_t *arguments = json_object_get(item, "arguments");
  if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
    return oct_api_refuse(fault, 400, param, "%s: lacks its call_id, name or arguments", param);
  json_t *message = assistant(to, NULL), *calls = json_object_get(message, "tool_calls");
  if (calls == NULL) {
    calls = json_array();
    json_object_set_new(message, "tool_calls", calls);
  }
  json_array_append_new(calls, json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function",
                                         "function", "name", name, "arguments", arguments));
  return TRUE;
}

static gboolean
add_output(json_t *to, const json_t *item, const char *param, oct_api_fault *fault) {
  const json_t *id = json_object_get(item, "call_id");
  g_autofree char *inner = g_strconcat(param, ".output", NULL);
  if (!json_is_string(id))
    return oct_api_refuse(fault, 400, param, "%s: lacks its call_id", param);
  g_autofree char *text = text_of(json_object_get(item, "output"), inner, fault);
  if (text == NULL)
    return FALSE;
  json_array_append_new(
      to, json_pack("{s:s,s:O,s:s}", "role", "tool", "tool_call_id", id, "content", text));
  return TRUE;
}

/* Reasoning that was shown goes back to the model; what is encrypted is nobody's here. */
static gboolean
add_reasoning(json_t *to, const json_t *item, const char *param, oct_api_fault *fault) {
  const json_t *content = json_object_get(item, "content");
  g_autofree char *inner = g_strconcat(param, ".content", NULL);
  if (content == NULL || json_is_null(content))
    return TRUE;
  g_autofree char *text = text_of(content, inner, fault);
  if (text == NULL)
    return FALSE;
  json_array_append_new(to, json_pack("{s:s,s:s}", "role", "assistant", "reasoning_content", text));
  return TRUE;
}

static gboolean
add_item(json_t *to, const json_t *item, const char *param, oct_api_fault *fault) {
  const char *type = json_string_value(json_object_get(item, "type"));
  if (!json_is_object(item))
    return oct_api_refuse(fault, 400, param, "%s: is not an object", param);
  if (type == NULL || g_str_equal(type, "message"))
    return add_message(to, item, param, fault);
  if (g_str_equal(type, "function_call"))
    return add_call(to, item, param, fault);
  if (g_str_equal(type, "function_call_output"))
    return add_output(to, item, param, fault);
  if (g_str_equal(type, "reasoning"))
    return add_reasoning(to, item, param, fault);
  return oct_api_refuse(fault, 400, param, "%s: items of type '%.64s' are not supported", param,
                        type);
}

static gboolean
add_input(json_t *to, const response_fields *f, oct_api_fault *fault) {
  if (f->instructions != NULL)
    json_array_append_new(to, json_pack("{s:s,s:s}", "role", "system", "content", f->instructions));
  if (json_is_string(f->input)) {
    json_array_append_new(to, json_pack("{s:s,s:O}", "role", "user", "content", f->input));
    return TRUE;
  }
  if (json_array_size(f->input) == 0)
    return oct_api_refuse(fault, 400, "input", "input: is neither a string nor a list of items");
  for (gsize i = 0; i < json_array_size(f->input); i++) {
    g_autofree char *param = g_strdup_printf("input[%" G_GSIZE_FORMAT "]", i);
    if (!add_item(to, json_array_get(f->input, i), param, fault))
      return FALSE;
  }
  return TRUE;
}

/* --- tools and options -------------------------------------------------------------------------
 */

/* A function stands inside "function" in chats, and beside its type here. */
static gboolean
add_tools(json_t *to, const json_t *tools, oct_api_fault *fault) {
  for (gsize i = 0; i < json_array_size(tools); i++) {
    const json_t *tool = json_array_get(tools, i);
    const char *type = json_string_value(json_object_get(tool, "type"));
    g_autofree char *param = g_strdup_printf("tools[%" G_GSIZE_FORMAT "]", i);
    if (g_strcmp0(type, "function") != 0)
      return oct_api_refuse(fault, 400, param, "%s: tools of type '%.64s' are not supported", param,
                            type != NULL ? type : "");
    json_t *function = json_object();
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)tool, key, value) {
      if (!g_str_equal(key, "type") && !json_is_null(value))
        json_object_set(function, key, value);
    }
    json_array_append_new(to, json_pack("{s:s,s:o}", "type", "function", "function", function));
  }
  return TRUE;
}

static json_t *
choice_of(const json_t *choice) {
  const json_t *name = json_object_get(choice, "name");
  const char *type = json_string_value(json_object_get(choice, "type"));
  if (g_strcmp0(type, "function") == 0 && json_is_string(name))
    return json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", name);
  return choice != NULL ? json_incref((json_t *)choice) : json_string("auto");
}

static gboolean
read_text(oct_plan *plan, const json_t *text, oct_api_fault *fault) {
  struct text {
    const json_t *format;
  } t = {NULL};
  static const oct_field rows[] = {OCT_FIELD(struct text, format, OBJECT, 0, 0, NULL),
                                   OCT_FIELD_IGNORE("verbosity")};
  const oct_field_table table = {rows, G_N_ELEMENTS(rows), &t};
  return text == NULL ||
         (oct_fields_read(text, "text.", &table, 1, fault) &&
          oct_sampling_format(&plan->sampling, "text.format", t.format, FALSE, fault));
}

static gboolean
read_reasoning(const json_t *reasoning, const char **effort, oct_api_fault *fault) {
  struct reasoning {
    const char *effort;
  } r = {NULL};
  static const oct_field rows[] = {OCT_FIELD(struct reasoning, effort, STRING, 0, 16, NULL),
                                   OCT_FIELD_IGNORE("summary"),
                                   OCT_FIELD_IGNORE("generate_summary")};
  const oct_field_table table = {rows, G_N_ELEMENTS(rows), &r};
  if (reasoning != NULL && !oct_fields_read(reasoning, "reasoning.", &table, 1, fault))
    return FALSE;
  *effort = r.effort;
  return TRUE;
}

static gboolean
read_options(oct_plan *plan, const oct_api_model *model, const response_fields *f,
             oct_api_fault *fault) {
  oct_sampling *s = &plan->sampling;
  s->max_tokens = f->max_output_tokens;
  s->temperature = f->temperature;
  s->top_p = f->top_p;
  s->top_k = f->top_k;
  s->seed = f->seed;
  s->priority = f->priority;
  s->cache_salt = f->cache_salt;
  s->stream = f->stream;
  s->stream_options = f->stream_options;
  plan->one_call = !f->parallel_tool_calls;
  for (gsize i = 0; i < json_array_size(f->include); i++)
    if (g_strcmp0(json_string_value(json_array_get(f->include, i)),
                  "reasoning.encrypted_content") != 0)
      return oct_api_refuse(fault, 400, "include",
                            "include: only reasoning.encrypted_content is taken, and ignored");
  if (f->store)
    return oct_api_refuse(fault, 400, "store", "store: " NO_STATE);
  if (f->truncation != NULL && !g_str_equal(f->truncation, "disabled"))
    return oct_api_refuse(fault, 400, "truncation", "truncation: only 'disabled' is supported");
  return oct_sampling_check(s, model->n_tokens, model->context, fault) &&
         read_text(plan, f->text, fault);
}

gboolean
oct_responses_read(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size,
                   oct_api_fault *fault) {
  response_fields f = {.max_output_tokens = -1,
                       .top_k = -1,
                       .seed = -1,
                       .temperature = 1,
                       .top_p = 1,
                       .parallel_tool_calls = TRUE};
  const oct_field_table table = {fields, G_N_ELEMENTS(fields), &f};
  const char *effort;
  if (!oct_plan_body(plan, model, bytes, size, fault) ||
      !oct_fields_read(plan->root, "", &table, 1, fault) ||
      !oct_plan_model(plan, model, f.model, fault) || !read_options(plan, model, &f, fault) ||
      !read_reasoning(f.reasoning, &effort, fault))
    return FALSE;
  json_t *messages = json_array(), *tools = json_array(), *choice = choice_of(f.tool_choice);
  plan->made = json_pack("{s:o,s:o,s:o}", "messages", messages, "tools", tools, "choice", choice);
  if (!add_input(messages, &f, fault) || !add_tools(tools, f.tools, fault))
    return FALSE;
  const oct_plan_chat chat = {.messages = messages,
                              .tools = tools,
                              .tool_choice = choice,
                              .effort = effort,
                              .effort_param = "reasoning.effort",
                              .generation_prompt = TRUE};
  return oct_plan_chat_prompt(plan, model, &chat, fault);
}
