/* POST /v1/messages, Anthropic's API: the request, brought into the shape of OpenAI's chat. */
#include "engine/api/plan.h"

#include <string.h>

#include "engine/api/json-in.h"

typedef struct message_fields {
  const char *model;
  const json_t *messages, *system, *stop_sequences, *tools, *tool_choice, *thinking;
  gint64 max_tokens, top_k;
  double temperature, top_p;
  gboolean stream;
} message_fields;

#define FIELD(member, kind, ...) OCT_FIELD(message_fields, member, kind, __VA_ARGS__)
static const oct_field fields[] = {
    FIELD(model, STRING, 0, 0, NULL),
    FIELD(messages, ARRAY, 0, 0, NULL),
    FIELD(system, VALUE, 0, 0, NULL),
    FIELD(max_tokens, INT, 1, G_MAXINT32, NULL),
    FIELD(stop_sequences, ARRAY, 0, 0, NULL),
    FIELD(stream, BOOL, 0, 0, NULL),
    FIELD(temperature, NUMBER, 0, 2, NULL),
    FIELD(top_p, NUMBER, 0, 1, NULL),
    FIELD(top_k, INT, -1, G_MAXINT32, NULL),
    FIELD(tools, ARRAY, 0, OCT_CHAT_TOOLS_MAX, NULL),
    FIELD(tool_choice, OBJECT, 0, 0, NULL),
    FIELD(thinking, OBJECT, 0, 0, NULL),
    OCT_FIELD_IGNORE("metadata"),
    OCT_FIELD_IGNORE("service_tier"),
    OCT_FIELD_IGNORE("inference_geo"),
    OCT_FIELD_IGNORE("cache_control"),
    OCT_FIELD_REFUSE("container", NULL),
    OCT_FIELD_REFUSE("context_management", NULL),
    OCT_FIELD_REFUSE("mcp_servers", NULL),
    OCT_FIELD_REFUSE("output_config", NULL),
    OCT_FIELD_REFUSE("output_format", NULL),
};

/* --- content -----------------------------------------------------------------------------------
 */

/* Text of a string or of text blocks; NULL with a fault for any other. Owned. */
static char *
text_of(const json_t *content, const char *param, oct_api_fault *fault) {
  if (json_is_string(content))
    return g_strdup(json_string_value(content));
  g_autoptr(GString) out = g_string_new(NULL);
  for (gsize i = 0; i < json_array_size(content); i++) {
    const json_t *block = json_array_get(content, i), *text = json_object_get(block, "text");
    const char *type = json_string_value(json_object_get(block, "type"));
    if (g_strcmp0(type, "text") != 0 || !json_is_string(text)) {
      g_autofree char *place = g_strdup_printf("%s[%" G_GSIZE_FORMAT "]", param, i);
      oct_api_refuse(fault, 400, place, "%s: blocks of type '%.64s' are not supported here", place,
                     type != NULL ? type : "");
      return NULL;
    }
    g_string_append_printf(out, "%s%s", i > 0 ? "\n" : "", json_string_value(text));
  }
  if (content == NULL || json_is_array(content))
    return g_string_free(g_steal_pointer(&out), FALSE);
  oct_api_refuse(fault, 400, param, "%s: is neither a string nor a list of blocks", param);
  return NULL;
}

/* The message being made: parts of text, calls, reasoning. */
typedef struct draft {
  json_t *message, *parts, *calls;
  GString *reasoning;
} draft;

static void
draft_begin(draft *d, const char *role) {
  *d = (draft){.message = json_pack("{s:s}", "role", role),
               .parts = json_array(),
               .calls = json_array(),
               .reasoning = g_string_new(NULL)};
}

/* Adds what there is of it to the list, and forgets it. */
static void
draft_end(draft *d, json_t *to) {
  gboolean any = json_array_size(d->parts) > 0 || json_array_size(d->calls) > 0;
  if (json_array_size(d->parts) > 0)
    json_object_set(d->message, "content", d->parts);
  if (json_array_size(d->calls) > 0)
    json_object_set(d->message, "tool_calls", d->calls);
  if (d->reasoning->len > 0)
    json_object_set_new(d->message, "reasoning_content",
                        json_stringn(d->reasoning->str, d->reasoning->len));
  if (any)
    json_array_append(to, d->message);
  json_decref(d->message);
  json_decref(d->parts);
  json_decref(d->calls);
  g_string_free(d->reasoning, TRUE);
}

static gboolean
add_tool_use(draft *d, const json_t *block, const char *param, oct_api_fault *fault) {
  const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name");
  const json_t *input = json_object_get(block, "input");
  if (!json_is_string(id) || !json_is_string(name) || !json_is_object(input))
    return oct_api_refuse(fault, 400, param, "%s: lacks its id, name or input", param);
  char *arguments = json_dumps(input, JSON_COMPACT);
  json_array_append_new(d->calls, json_pack("{s:O,s:s,s:{s:O,s:s}}", "id", id, "type", "function",
                                            "function", "name", name, "arguments", arguments));
  free(arguments);
  return TRUE;
}

/* A tool's result is a message of its own, before what the user says beside it. */
static gboolean
add_tool_result(json_t *to, const json_t *block, const char *param, oct_api_fault *fault) {
  const json_t *id = json_object_get(block, "tool_use_id");
  g_autofree char *inner = g_strconcat(param, ".content", NULL);
  if (!json_is_string(id))
    return oct_api_refuse(fault, 400, param, "%s: lacks its tool_use_id", param);
  g_autofree char *text = text_of(json_object_get(block, "content"), inner, fault);
  if (text == NULL)
    return FALSE;
  json_array_append_new(
      to, json_pack("{s:s,s:O,s:s}", "role", "tool", "tool_call_id", id, "content", text));
  return TRUE;
}

static gboolean
add_block(draft *d, json_t *to, const json_t *block, gboolean assistant, const char *param,
          oct_api_fault *fault) {
  const char *type = json_string_value(json_object_get(block, "type"));
  const json_t *text = json_object_get(block, "text");
  const char *thought = json_string_value(json_object_get(block, "thinking"));
  if (g_strcmp0(type, "text") == 0 && json_is_string(text)) {
    json_array_append_new(d->parts, json_pack("{s:s,s:O}", "type", "text", "text", text));
    return TRUE;
  }
  if (assistant && g_strcmp0(type, "tool_use") == 0)
    return add_tool_use(d, block, param, fault);
  if (assistant && g_strcmp0(type, "thinking") == 0 && thought != NULL) {
    g_string_append(d->reasoning, thought);
    return TRUE;
  }
  if (assistant && g_strcmp0(type, "redacted_thinking") == 0)
    return TRUE;
  if (!assistant && g_strcmp0(type, "tool_result") == 0)
    return add_tool_result(to, block, param, fault);
  return oct_api_refuse(fault, 400, param, "%s: blocks of type '%.64s' are not supported here",
                        param, type != NULL ? type : "");
}

static gboolean
add_message(json_t *to, const json_t *message, const char *param, oct_api_fault *fault) {
  const char *role = json_string_value(json_object_get(message, "role"));
  const json_t *content = json_object_get(message, "content");
  gboolean assistant = g_strcmp0(role, "assistant") == 0;
  if (!assistant && g_strcmp0(role, "user") != 0)
    return oct_api_refuse(fault, 400, param, "%s.role: is not user or assistant", param);
  if (json_is_string(content)) {
    json_array_append_new(to, json_pack("{s:s,s:O}", "role", role, "content", content));
    return TRUE;
  }
  if (!json_is_array(content))
    return oct_api_refuse(fault, 400, param, "%s.content: is neither a string nor a list of blocks",
                          param);
  draft d;
  gboolean good = TRUE;
  draft_begin(&d, role);
  for (gsize i = 0; good && i < json_array_size(content); i++) {
    g_autofree char *place = g_strdup_printf("%s.content[%" G_GSIZE_FORMAT "]", param, i);
    good = add_block(&d, to, json_array_get(content, i), assistant, place, fault);
  }
  draft_end(&d, to);
  return good;
}

static gboolean
add_messages(json_t *to, const message_fields *f, oct_api_fault *fault) {
  if (f->system != NULL) {
    g_autofree char *text = text_of(f->system, "system", fault);
    if (text == NULL)
      return FALSE;
    json_array_append_new(to, json_pack("{s:s,s:s}", "role", "system", "content", text));
  }
  if (json_array_size(f->messages) == 0)
    return oct_api_refuse(fault, 400, "messages", "messages: at least 1 is needed");
  for (gsize i = 0; i < json_array_size(f->messages); i++) {
    g_autofree char *param = g_strdup_printf("messages[%" G_GSIZE_FORMAT "]", i);
    if (!add_message(to, json_array_get(f->messages, i), param, fault))
      return FALSE;
  }
  return TRUE;
}

/* --- tools -------------------------------------------------------------------------------------
 */

static gboolean
add_tools(json_t *to, const json_t *tools, oct_api_fault *fault) {
  for (gsize i = 0; i < json_array_size(tools); i++) {
    const json_t *tool = json_array_get(tools, i), *schema = json_object_get(tool, "input_schema");
    const json_t *name = json_object_get(tool, "name");
    const json_t *description = json_object_get(tool, "description");
    const char *type = json_string_value(json_object_get(tool, "type"));
    g_autofree char *param = g_strdup_printf("tools[%" G_GSIZE_FORMAT "]", i);
    if (type != NULL && !g_str_equal(type, "custom"))
      return oct_api_refuse(fault, 400, param, "%s: tools of type '%.64s' are not supported", param,
                            type);
    if (!json_is_string(name) || !json_is_object(schema))
      return oct_api_refuse(fault, 400, param, "%s: lacks its name or input_schema", param);
    json_t *function = json_pack("{s:O,s:O}", "name", name, "parameters", schema);
    if (json_is_string(description))
      json_object_set(function, "description", (json_t *)description);
    json_array_append_new(to, json_pack("{s:s,s:o}", "type", "function", "function", function));
  }
  return TRUE;
}

/* A new reference, NULL with a fault. */
static json_t *
choice_of(oct_plan *plan, const json_t *choice, oct_api_fault *fault) {
  const char *type = json_string_value(json_object_get(choice, "type"));
  const json_t *name = json_object_get(choice, "name");
  plan->one_call = json_is_true(json_object_get(choice, "disable_parallel_tool_use"));
  if (choice == NULL || g_strcmp0(type, "auto") == 0)
    return json_string("auto");
  if (g_strcmp0(type, "none") == 0)
    return json_string("none");
  if (g_strcmp0(type, "any") == 0)
    return json_string("required");
  if (g_strcmp0(type, "tool") == 0 && json_is_string(name))
    return json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", name);
  oct_api_refuse(fault, 400, "tool_choice", "tool_choice: is not auto, any, none or a tool");
  return NULL;
}

static gboolean
read_thinking(const json_t *thinking, gboolean *off, oct_api_fault *fault) {
  const char *type = json_string_value(json_object_get(thinking, "type"));
  *off = g_strcmp0(type, "disabled") == 0;
  return thinking == NULL || *off || g_strcmp0(type, "enabled") == 0 ||
         g_strcmp0(type, "adaptive") == 0 ||
         oct_api_refuse(fault, 400, "thinking.type",
                        "thinking.type: is not enabled, adaptive or disabled");
}

/* --- the request -------------------------------------------------------------------------------
 */

static gboolean
read_fields(oct_plan *plan, const oct_api_model *model, const message_fields *f, gboolean counts,
            oct_api_fault *fault) {
  oct_sampling *s = &plan->sampling;
  if (f->max_tokens < 0 && !counts)
    return oct_api_refuse(fault, 400, "max_tokens", "max_tokens: is needed");
  s->max_tokens = f->max_tokens;
  s->stream = f->stream;
  s->temperature = f->temperature;
  s->top_p = f->top_p;
  s->top_k = f->top_k;
  return oct_sampling_check(s, model->n_tokens, model->context, fault) &&
         oct_sampling_read_stops(s, "stop_sequences", f->stop_sequences, fault);
}

static gboolean
read_any(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size, gboolean counts,
         oct_api_fault *fault) {
  message_fields f = {.max_tokens = -1, .top_k = -1, .temperature = 1, .top_p = 1};
  const oct_field_table table = {fields, G_N_ELEMENTS(fields), &f};
  gboolean no_thinking;
  if (!oct_plan_body(plan, model, bytes, size, fault) ||
      !oct_fields_read(plan->root, "", &table, 1, fault) ||
      !oct_plan_model(plan, model, f.model, fault) ||
      !read_fields(plan, model, &f, counts, fault) ||
      !read_thinking(f.thinking, &no_thinking, fault))
    return FALSE;
  json_t *messages = json_array(), *tools = json_array();
  json_t *choice = choice_of(plan, f.tool_choice, fault);
  plan->made = json_pack("{s:o,s:o}", "messages", messages, "tools", tools);
  if (choice == NULL)
    return FALSE;
  json_object_set_new(plan->made, "tool_choice", choice);
  if (!add_messages(messages, &f, fault) || !add_tools(tools, f.tools, fault))
    return FALSE;
  const oct_plan_chat chat = {.messages = messages,
                              .tools = tools,
                              .tool_choice = choice,
                              .generation_prompt = TRUE,
                              .no_thinking = no_thinking};
  return oct_plan_chat_prompt(plan, model, &chat, fault);
}

gboolean
oct_messages_read(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size,
                  oct_api_fault *fault) {
  return read_any(plan, model, bytes, size, FALSE, fault);
}

gboolean
oct_count_tokens_read(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size,
                      oct_api_fault *fault) {
  return read_any(plan, model, bytes, size, TRUE, fault);
}
