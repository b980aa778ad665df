/* A conversation into a prompt: what all the endpoints that chat have in common. */
#include "engine/api/plan.h"

#include <string.h>

#include "engine/api/json-in.h"

/* --- messages --------------------------------------------------------------------------------- */

/* Parts that are not text are refused by their place and type: nothing is fetched, nothing seen. */
static gboolean
check_parts(const json_t *content, const char *param, oct_api_fault *fault) {
  for (gsize i = 0; i < json_array_size(content); i++) {
    const json_t *part = json_array_get(content, i);
    const char *type = json_string_value(json_object_get(part, "type"));
    g_autofree char *place = g_strdup_printf("%s[%" G_GSIZE_FORMAT "]", param, i);
    if (type == NULL)
      return oct_api_refuse(fault, 400, place, "%s: is not a part with a type", place);
    if (!g_str_equal(type, "text"))
      return oct_api_refuse(fault, 400, place,
                            "%s: parts of type '%.64s' are not supported, only text", place, type);
    if (!json_is_string(json_object_get(part, "text")))
      return oct_api_refuse(fault, 400, place, "%s: lacks its text", place);
  }
  return TRUE;
}

static gboolean
check_message(const json_t *message, const char *param, oct_api_fault *fault) {
  struct message {
    const char *role, *name, *tool_call_id;
    const json_t *content, *tool_calls, *reasoning, *reasoning_content;
  } m = {.role = NULL};
#define MESSAGE(member, kind) OCT_FIELD(struct message, member, kind, 0, 0, NULL)
  static const oct_field fields[] = {
      MESSAGE(role, STRING),
      MESSAGE(name, STRING),
      MESSAGE(tool_call_id, STRING),
      MESSAGE(content, VALUE),
      MESSAGE(tool_calls, ARRAY),
      MESSAGE(reasoning, VALUE),
      MESSAGE(reasoning_content, VALUE),
      OCT_FIELD_IGNORE("annotations"),
      OCT_FIELD_IGNORE("refusal"),
      OCT_FIELD_REFUSE("audio", NULL),
      OCT_FIELD_REFUSE("function_call", "is not supported: use tool_calls"),
      OCT_FIELD_REFUSE("tools", NULL),
  };
#undef MESSAGE
  const oct_field_table tables[] = {{fields, G_N_ELEMENTS(fields), &m}};
  if (!json_is_object(message))
    return oct_api_refuse(fault, 400, param, "%s: %s is not an object", param,
                          oct_json_type_name(message));
  g_autofree char *prefix = g_strconcat(param, ".", NULL);
  g_autofree char *content = g_strconcat(prefix, "content", NULL);
  return oct_fields_read(message, prefix, tables, 1, fault) &&
         check_parts(m.content, content, fault);
}

static gboolean
check_messages(const oct_plan_chat *chat, oct_api_fault *fault) {
  if (chat->messages == NULL)
    return oct_api_refuse(fault, 400, "messages", "messages: is needed");
  gsize n = json_array_size(chat->messages);
  if (n == 0 || n > OCT_CHAT_MESSAGES_MAX)
    return oct_api_refuse(fault, 400, "messages",
                          "messages: %" G_GSIZE_FORMAT " entries, from 1 to %u are possible", n,
                          OCT_CHAT_MESSAGES_MAX);
  for (gsize i = 0; i < n; i++) {
    g_autofree char *param = g_strdup_printf("messages[%" G_GSIZE_FORMAT "]", i);
    if (!check_message(json_array_get(chat->messages, i), param, fault))
      return FALSE;
  }
  return TRUE;
}

/* --- tools ------------------------------------------------------------------------------------ */

static gboolean
name_is_valid(const char *name) {
  gsize n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/");
  return n > 0 && n <= OCT_API_NAME_BYTES_MAX && name[n] == '\0';
}

static gboolean
check_size(const json_t *tool, const char *param, oct_api_fault *fault) {
  char *text = json_dumps(tool, JSON_COMPACT);
  gsize size = strlen(text);
  guint depth = oct_json_depth(text);
  free(text);
  if (size > OCT_API_TOOL_BYTES_MAX)
    return oct_api_refuse(fault, 400, param,
                          "%s: %" G_GSIZE_FORMAT " bytes are above the limit of %u", param, size,
                          OCT_API_TOOL_BYTES_MAX);
  return depth <= OCT_API_TOOL_DEPTH_MAX ||
         oct_api_refuse(fault, 400, param, "%s: is nested more than %u deep", param,
                        OCT_API_TOOL_DEPTH_MAX);
}

static gboolean
check_tool(const json_t *tool, const char *param, oct_api_fault *fault) {
  struct tool {
    const char *type, *name, *description;
    const json_t *function, *parameters;
    gboolean strict;
  } t = {.type = NULL};
#define TOOL(member, kind) OCT_FIELD(struct tool, member, kind, 0, 0, NULL)
  static const oct_field outer[] = {TOOL(type, STRING), TOOL(function, OBJECT)};
  static const oct_field inner[] = {TOOL(name, STRING), TOOL(description, STRING),
                                    TOOL(parameters, OBJECT), TOOL(strict, BOOL)};
#undef TOOL
  const oct_field_table outer_table = {outer, G_N_ELEMENTS(outer), &t};
  const oct_field_table inner_table = {inner, G_N_ELEMENTS(inner), &t};
  g_autofree char *prefix = g_strconcat(param, ".", NULL);
  g_autofree char *inside = g_strconcat(param, ".function.", NULL);
  if (!json_is_object(tool))
    return oct_api_refuse(fault, 400, param, "%s: %s is not an object", param,
                          oct_json_type_name(tool));
  if (!oct_fields_read(tool, prefix, &outer_table, 1, fault))
    return FALSE;
  if (g_strcmp0(t.type, "function") != 0 || t.function == NULL)
    return oct_api_refuse(fault, 400, param, "%s: is not of type function", param);
  if (!oct_fields_read(t.function, inside, &inner_table, 1, fault))
    return FALSE;
  if (t.name == NULL || !name_is_valid(t.name))
    return oct_api_refuse(fault, 400, param,
                          "%s.function.name: is not 1 to %u letters, digits and _-.:/", param,
                          OCT_API_NAME_BYTES_MAX);
  return check_size(tool, param, fault);
}

static gboolean
check_tools(const oct_plan_chat *chat, oct_api_fault *fault) {
  gsize n = json_array_size(chat->tools);
  if (n > OCT_CHAT_TOOLS_MAX)
    return oct_api_refuse(fault, 400, "tools",
                          "tools: %" G_GSIZE_FORMAT " items are above the limit of %u", n,
                          OCT_CHAT_TOOLS_MAX);
  for (gsize i = 0; i < n; i++) {
    g_autofree char *param = g_strdup_printf("tools[%" G_GSIZE_FORMAT "]", i);
    if (!check_tool(json_array_get(chat->tools, i), param, fault))
      return FALSE;
  }
  return TRUE;
}

/* --- tool choice ------------------------------------------------------------------------------ */

typedef enum choice { CHOICE_AUTO, CHOICE_NONE, CHOICE_REQUIRED, CHOICE_NAMED } choice;

static const char *
tool_name(const json_t *tool) {
  return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static gboolean
read_choice(const oct_plan_chat *chat, choice *which, const char **name, oct_api_fault *fault) {
  const char *param = "tool_choice", *word = json_string_value(chat->tool_choice);
  static const char *const words[] = {"auto", "none", "required"};
  *which = CHOICE_AUTO;
  *name = NULL;
  if (chat->tool_choice == NULL || json_is_null(chat->tool_choice))
    return TRUE;
  if (word != NULL) {
    for (guint i = 0; i < G_N_ELEMENTS(words); i++)
      if (g_str_equal(word, words[i])) {
        *which = (choice)i;
        return *which != CHOICE_REQUIRED || json_array_size(chat->tools) > 0 ||
               oct_api_refuse(fault, 400, param, "tool_choice: 'required' without tools");
      }
    return oct_api_refuse(fault, 400, param,
                          "tool_choice: '%.64s' is not none, auto, required or a function", word);
  }
  const char *type = json_string_value(json_object_get(chat->tool_choice, "type"));
  *name = tool_name(chat->tool_choice);
  if (g_strcmp0(type, "function") != 0 || *name == NULL)
    return oct_api_refuse(fault, 400, param,
                          "tool_choice: is not none, auto, required or a function");
  *which = CHOICE_NAMED;
  for (gsize i = 0; i < json_array_size(chat->tools); i++)
    if (g_str_equal(tool_name(json_array_get(chat->tools, i)), *name))
      return TRUE;
  return oct_api_refuse(fault, 400, param, "tool_choice: no tool has the name '%.128s'", *name);
}

/* {"name": …, "parameters": …} of one tool. The schema's own definitions move to the whole
 * schema's root, where "#/$defs/…" points. FALSE: two tools define the same word differently. */
static gboolean
call_schema(const json_t *tool, json_t *root, json_t **schema) {
  static const char *const words[] = {"$defs", "definitions"};
  const json_t *parameters = json_object_get(json_object_get(tool, "function"), "parameters");
  json_t *inner = json_is_object(parameters) ? json_copy((json_t *)parameters)
                                             : json_pack("{s:s}", "type", "object");
  gboolean agreed = TRUE;
  for (guint i = 0; i < G_N_ELEMENTS(words); i++) {
    const char *key;
    json_t *value, *definitions = json_object_get(inner, words[i]);
    if (!json_is_object(definitions))
      continue;
    json_t *all = json_object_get(root, words[i]);
    if (all == NULL) {
      all = json_object();
      json_object_set_new(root, words[i], all);
    }
    json_object_foreach(definitions, key, value) {
      json_t *other = json_object_get(all, key);
      agreed = agreed && (other == NULL || json_equal(other, value));
      json_object_set(all, key, value);
    }
    json_object_del(inner, words[i]);
  }
  *schema = json_pack("{s:s,s:{s:{s:s},s:o},s:[s,s],s:b}", "type", "object", "properties", "name",
                      "const", tool_name(tool), "parameters", inner, "required", "name",
                      "parameters", "additionalProperties", 0);
  return agreed;
}

/* A call is forced by a constraint on the answer, in the form that the Llama family reads. */
static gboolean
force_call(oct_plan *plan, const oct_plan_chat *chat, const char *name, oct_api_fault *fault) {
  json_t *root = json_object(), *any = json_array();
  gboolean agreed = TRUE;
  for (gsize i = 0; i < json_array_size(chat->tools); i++) {
    const json_t *tool = json_array_get(chat->tools, i);
    json_t *one = NULL;
    if (name != NULL && !g_str_equal(tool_name(tool), name))
      continue;
    agreed = call_schema(tool, root, &one) && agreed;
    json_array_append_new(any, one);
  }
  if (json_array_size(any) == 1)
    json_object_update(root, json_array_get(any, 0));
  else
    json_object_set(root, "anyOf", any);
  json_decref(any);
  char *text = json_dumps(root, JSON_COMPACT);
  json_decref(root);
  plan->sampling.constraint_text = g_strdup(text);
  free(text);
  plan->sampling.constraint = OCT_CONSTRAINT_SCHEMA;
  plan->sampling.constraint_param = g_strdup("tools");
  plan->family = OCT_PARSE_LLAMA3;
  return agreed || oct_api_refuse(fault, 400, "tools",
                                  "tools: two of them define the same name in $defs differently");
}

/* --- rendering -------------------------------------------------------------------------------- */

/* The variables of templates that a request may set. */
static gboolean
read_kwargs(const oct_plan_chat *chat, oct_chat_options *options, oct_api_fault *fault) {
  struct kwargs {
    gboolean enable_thinking, thinking;
    const char *reasoning_effort;
  } kwargs = {.enable_thinking = TRUE, .thinking = TRUE};
  static const oct_field fields[] = {
      OCT_FIELD(struct kwargs, enable_thinking, BOOL, 0, 0, NULL),
      OCT_FIELD(struct kwargs, thinking, BOOL, 0, 0, NULL),
      OCT_FIELD(struct kwargs, reasoning_effort, STRING, 0, 16, NULL),
  };
  const oct_field_table table = {fields, G_N_ELEMENTS(fields), &kwargs};
  if (chat->template_kwargs != NULL &&
      !oct_fields_read(chat->template_kwargs, "chat_template_kwargs.", &table, 1, fault))
    return FALSE;
  options->no_thinking = chat->no_thinking || !kwargs.enable_thinking || !kwargs.thinking;
  options->variables = chat->template_kwargs;
  options->effort = chat->effort != NULL ? chat->effort : kwargs.reasoning_effort;
  return TRUE;
}

static gboolean
read_effort(oct_chat_options *options, const char *param, oct_api_fault *fault) {
  static const struct {
    const char *word, *effort; /* NULL: no thinking */
  } words[] = {{"none", NULL},   {"minimal", "low"}, {"low", "low"}, {"medium", "medium"},
               {"high", "high"}, {"xhigh", "max"},   {"max", "max"}};
  const char *asked = options->effort;
  for (guint i = 0; asked != NULL && i < G_N_ELEMENTS(words); i++)
    if (g_str_equal(asked, words[i].word)) {
      options->effort = words[i].effort;
      options->no_thinking = options->no_thinking || words[i].effort == NULL;
      return TRUE;
    }
  return asked == NULL ||
         oct_api_refuse(fault, 400, param,
                        "%s: '%.32s' is not none, minimal, low, medium, high, xhigh or max", param,
                        asked);
}

/* TRUE when the prompt ends inside the reasoning: behind the mark that the family begins it with.
 */
static gboolean
ends_in_thinking(const oct_prompt *prompt, oct_parse_family family) {
  const char *mark = family == OCT_PARSE_KIMI_K3 ? "<|open|>think<|sep|>" : "<think>";
  const char *text = (const char *)prompt->text->data;
  gsize n = prompt->text->len, size = strlen(mark);
  while (n > 0 && g_ascii_isspace(text[n - 1]))
    n--;
  if (n < size || memcmp(text + n - size, mark, size) != 0)
    return FALSE;
  return (prompt->marks->data[n - 1] & OCT_MARK_OUTSIDE) == 0;
}

/* The messages but the last, whose text goes on behind the prompt; NULL with a fault. */
static json_t *
without_last(const oct_plan_chat *chat, const char **text, oct_api_fault *fault) {
  gsize n = json_array_size(chat->messages);
  const json_t *last = json_array_get(chat->messages, n - 1);
  const char *role = json_string_value(json_object_get(last, "role"));
  *text = json_string_value(json_object_get(last, "content"));
  if (n < 2 || g_strcmp0(role, "assistant") != 0 || *text == NULL) {
    oct_api_refuse(fault, 400, "continue_final_message",
                   "continue_final_message: the last of at least two messages is not an "
                   "assistant's with a string as content");
    return NULL;
  }
  json_t *rest = json_copy((json_t *)chat->messages);
  json_array_remove(rest, n - 1);
  return rest;
}

static gboolean
render(oct_plan *plan, const oct_api_model *model, const oct_plan_chat *chat, const json_t *tools,
       const oct_chat_options *options, oct_api_fault *fault) {
  const char *goes_on = NULL;
  json_t *rest = NULL;
  if (chat->continue_final && (rest = without_last(chat, &goes_on, fault)) == NULL)
    return FALSE;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_chat) talk = oct_chat_new(rest != NULL ? rest : chat->messages, tools, &error);
  g_clear_pointer(&rest, json_decref);
  g_autoptr(oct_prompt) prompt = oct_prompt_new();
  if (talk == NULL || !oct_chat_render(model->renderer, talk, options, prompt, &error))
    return oct_api_refuse_error(fault, "messages", g_steal_pointer(&error));
  plan->begins_in_thinking = ends_in_thinking(prompt, model->family) && goes_on == NULL;
  oct_prompt_outside(prompt, goes_on);
  oct_plan_add_prompt(plan, g_steal_pointer(&prompt));
  return TRUE;
}

gboolean
oct_plan_chat_prompt(oct_plan *plan, const oct_api_model *model, const oct_plan_chat *chat,
                     oct_api_fault *fault) {
  choice which;
  const char *name;
  if (model->renderer == NULL)
    return oct_api_refuse(fault, 400, "messages", "messages: %s",
                          model->no_chat != NULL ? model->no_chat
                                                 : "the model has no chat template");
  if (!check_messages(chat, fault) || !check_tools(chat, fault) ||
      !read_choice(chat, &which, &name, fault))
    return FALSE;
  oct_chat_options options = {.generation_prompt = chat->generation_prompt || chat->continue_final,
                              .response_format = chat->response_format,
                              .now_s = model->now_s};
  const char *param =
      chat->effort != NULL ? chat->effort_param : "chat_template_kwargs.reasoning_effort";
  if (!read_kwargs(chat, &options, fault) || !read_effort(&options, param, fault))
    return FALSE;
  plan->parsed = TRUE;
  plan->family = model->family;
  plan->tools = which != CHOICE_NONE && json_array_size(chat->tools) > 0;
  if (which >= CHOICE_REQUIRED) {
    options.tool_choice = "required";
    options.no_thinking = TRUE; /* the constraint begins with the answer's first token */
    if (plan->sampling.constraint != OCT_CONSTRAINT_NONE)
      return oct_api_refuse(fault, 400, "tool_choice",
                            "tool_choice: a call cannot be forced with another constraint");
    if (!force_call(plan, chat, name, fault))
      return FALSE;
  } else if (which == CHOICE_NONE)
    options.tool_choice = "none";
  if (plan->sampling.constraint != OCT_CONSTRAINT_NONE)
    options.no_thinking = TRUE;
  return render(plan, model, chat, plan->tools ? chat->tools : NULL, &options, fault);
}
