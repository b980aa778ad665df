/* Kimi K3's XTML. Structure is control tokens, everything else is text that is encoded piece by
 * piece: each piece begins with a cut, so that no token spans two. */
#include <string.h>

#include "engine/text/chat-internal.h"

static void
control(oct_chat_writer *w, const char *token) {
  oct_prompt_add(w->prompt, token, strlen(token), OCT_MARK_CUT);
}

/* Pieces are encoded without control tokens, the family's own words too. */
static void
piece(oct_chat_writer *w, const char *text) {
  if (text != NULL)
    oct_prompt_add(w->prompt, text, strlen(text), OCT_MARK_OUTSIDE | OCT_MARK_CUT);
}

/* Attributes are pairs of key and value; the last key is NULL. Only & and " are escaped. */
static void
open_tag(oct_chat_writer *w, const char *tag, const char *const *attributes) {
  control(w, "<|open|>");
  piece(w, tag);
  for (; attributes != NULL && attributes[0] != NULL; attributes += 2) {
    g_autofree char *key = g_strconcat(" ", attributes[0], NULL);
    g_autoptr(GString) value = g_string_new(attributes[1]);
    g_string_replace(value, "&", "&amp;", 0);
    g_string_replace(value, "\"", "&quot;", 0);
    piece(w, key);
    piece(w, "=\"");
    piece(w, value->str);
    piece(w, "\"");
  }
  control(w, "<|sep|>");
}

static void
close_tag(oct_chat_writer *w, const char *tag) {
  control(w, "<|close|>");
  piece(w, tag);
  control(w, "<|sep|>");
}

static void
end_message(oct_chat_writer *w) {
  close_tag(w, "message");
  control(w, "<|end_of_msg|>");
}

/* JSON as one piece, or part of one: a prompt of its own gives the text. */
static char *
json_text(oct_chat_writer *w, const json_t *value, const char *how) {
  g_autoptr(oct_prompt) apart = oct_prompt_new();
  oct_prompt *prompt = w->prompt;
  w->prompt = apart;
  oct_chat_json(w, value, how);
  w->prompt = prompt;
  return g_strndup(apart->text->len == 0 ? "" : (const char *)apart->text->data, apart->text->len);
}

static void
system_message(oct_chat_writer *w, const char *type, const char *body) {
  const char *const attributes[] = {"role", "system", "type", type, NULL};
  open_tag(w, "message", attributes);
  piece(w, body);
  end_message(w);
}

static void
declare_tools(oct_chat_writer *w, const json_t *tools, gboolean more) {
  g_autofree char *json = json_text(w, tools, "separators=(',', ':'), sort_keys=true");
  g_autofree char *body = g_strconcat(
      more ? "## New Tools Available\nThe system dynamically extends the toolset via "
             "lazy-loading.\nYou have access to all existing and extended tools.\nHere are the "
             "specs for the extended tools.\n\n```json\n"
           : "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n",
      json, "\n```", NULL);
  system_message(w, "tool-declare", body);
}

static void
thinking_effort(oct_chat_writer *w) {
  static const char *const efforts[] = {"low", "medium", "high", "max"};
  const char *effort = w->options->effort;
  gboolean known = FALSE;
  if (effort == NULL || w->options->no_thinking)
    return;
  for (guint i = 0; i < G_N_ELEMENTS(efforts); i++)
    known = known || g_str_equal(effort, efforts[i]);
  if (!known) {
    oct_chat_fail(w, "the reasoning effort is not low, medium, high or max");
    return;
  }
  g_autofree char *body = g_strconcat(
      "`thinking_effort` guides on how much to think in your thinking channel (not including the "
      "response channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the "
      "system is invoked with `thinking_effort=",
      effort, "`.", NULL);
  system_message(w, "thinking-effort", body);
}

static void
content(oct_chat_writer *w, gsize index) {
  const json_t *parts = json_array_get(w->chat->parts, index);
  for (gsize i = 0; i < json_array_size(parts); i++)
    piece(w, json_string_value(json_array_get(parts, i)));
}

/* --- assistant ----------------------------------------------------------------------------------
 */

static const char *
type_name(const json_t *value) {
  switch (json_typeof(value)) {
  case JSON_STRING:
    return "string";
  case JSON_INTEGER:
  case JSON_REAL:
    return "number";
  case JSON_TRUE:
  case JSON_FALSE:
    return "boolean";
  case JSON_NULL:
    return "null";
  case JSON_OBJECT:
    return "object";
  case JSON_ARRAY:
  default:
    return "array";
  }
}

static void
argument(oct_chat_writer *w, const char *key, const json_t *value) {
  const char *const attributes[] = {"key", key, "type", type_name(value), NULL};
  open_tag(w, "argument", attributes);
  if (json_is_string(value))
    piece(w, json_string_value(value));
  else {
    g_autofree char *json = json_text(w, value, "");
    piece(w, json);
  }
  close_tag(w, "argument");
}

static void
call(oct_chat_writer *w, const json_t *function, gsize index) {
  g_autofree char *number = g_strdup_printf("%" G_GSIZE_FORMAT, index + 1);
  const char *const attributes[] = {"tool", oct_chat_text(function, "name"), "index", number, NULL};
  const char *const object[] = {"type", "object", NULL};
  json_t *arguments = json_object_get(function, "arguments"), *value;
  const char *key;
  open_tag(w, "call", attributes);
  if (json_is_object(arguments))
    json_object_foreach(arguments, key, value) argument(w, key, value);
  else if (json_is_string(arguments)) {
    g_autofree char *bare = g_strstrip(g_strdup(json_string_value(arguments)));
    if (*bare != 0) {
      open_tag(w, "json", object);
      piece(w, json_string_value(arguments));
      close_tag(w, "json");
    }
  }
  close_tag(w, "call");
}

static void
assistant(oct_chat_writer *w, const json_t *message, gsize index) {
  const char *reasoning = oct_chat_text(message, "reasoning_content");
  const json_t *calls = json_object_get(message, "tool_calls");
  if (!w->options->no_thinking) {
    g_autofree char *bare = reasoning == NULL ? NULL : g_strstrip(g_strdup(reasoning));
    open_tag(w, "think", NULL);
    if (bare != NULL && *bare != 0)
      piece(w, reasoning);
    close_tag(w, "think");
  }
  open_tag(w, "response", NULL);
  content(w, index);
  close_tag(w, "response");
  if (calls == NULL)
    return;
  open_tag(w, "tools", NULL);
  for (gsize i = 0; i < json_array_size(calls); i++)
    call(w, oct_chat_function(json_array_get(calls, i)), i);
  close_tag(w, "tools");
}

/* --- tool results
 * ---------------------------------------------------------------------------------- */

/* The call that a result answers: its place, or the number of calls when none has its id. */
static gsize
call_of(const json_t *calls, const json_t *result) {
  const char *id = oct_chat_text(result, "tool_call_id");
  for (gsize i = 0; i < json_array_size(calls); i++)
    if (id != NULL && g_strcmp0(oct_chat_text(json_array_get(calls, i), "id"), id) == 0)
      return i;
  return json_array_size(calls);
}

static void
tool_result(oct_chat_writer *w, gsize index, const char *name, gsize number) {
  g_autofree char *text = g_strdup_printf("%" G_GSIZE_FORMAT, number);
  if (name == NULL) {
    oct_chat_fail(w, "a tool message names no tool and follows no call that it could answer");
    return;
  }
  const char *const attributes[] = {"role", "tool", "tool", name, "index", text, NULL};
  open_tag(w, "message", attributes);
  content(w, index);
  end_message(w);
}

/* Results from `begin` to `end` answer `calls`: in the order of the calls when each answers one,
 * else as they come, by name or place. `number`: results before them since the assistant spoke. */
static void
tool_results(oct_chat_writer *w, gsize begin, gsize end, const json_t *calls, gsize number) {
  gsize n = json_array_size(calls), matched = 0;
  for (gsize i = begin; i < end; i++)
    matched += call_of(calls, json_array_get(w->chat->messages, i)) < n;
  gboolean ordered = matched == end - begin;
  for (gsize place = 0; place < (ordered ? n : 1) && !w->failed; place++)
    for (gsize i = begin; i < end; i++) {
      const json_t *message = json_array_get(w->chat->messages, i);
      if (ordered && call_of(calls, message) != place)
        continue;
      const json_t *by_place = json_array_get(calls, ordered ? place : number);
      const char *fallback = oct_chat_text(oct_chat_function(by_place), "name");
      const char *name = ordered ? fallback : oct_chat_text(message, "name");
      tool_result(w, i, name != NULL ? name : fallback, ++number);
    }
}

/* --- the whole
 * --------------------------------------------------------------------------------------- */

static void
message_at(oct_chat_writer *w, gsize index) {
  const json_t *message = json_array_get(w->chat->messages, index);
  const json_t *tools = json_object_get(message, "tools");
  const char *role = oct_chat_text(message, "role"), *name = oct_chat_text(message, "name");
  if (g_str_equal(role, "system") && json_array_size(tools) > 0) {
    declare_tools(w, tools, TRUE);
    return;
  }
  const char *const attributes[] = {"role", role, name != NULL && *name != 0 ? "name" : NULL, name,
                                    NULL};
  open_tag(w, "message", attributes);
  if (g_str_equal(role, "assistant"))
    assistant(w, message, index);
  else
    content(w, index);
  end_message(w);
}

static void
response_format(oct_chat_writer *w) {
  const json_t *format = w->options->response_format;
  const char *type = oct_chat_text(format, "type");
  if (g_strcmp0(type, "json_object") == 0)
    system_message(w, "response-format",
                   "The system is invoked with `response_format=json_object`.\nYour response must "
                   "be raw JSON data without markdown code blocks (```json) or any additional "
                   "formatting.");
  if (g_strcmp0(type, "json_schema") != 0)
    return;
  const json_t *wrapper = json_object_get(format, "json_schema");
  const json_t *schema = json_object_get(wrapper, "schema");
  g_autofree char *json =
      json_text(w, schema != NULL ? schema : wrapper, "separators=(',', ':'), sort_keys=true");
  g_autofree char *body = g_strconcat(
      "The system is invoked with `response_format=json_schema`.\nYour response must be raw JSON "
      "data without markdown code blocks (```json) or any additional formatting.\nThe JSON data "
      "must match the following schema:\n```json\n",
      json, "\n```", NULL);
  system_message(w, "response-format", body);
}

void
oct_chat_write_kimi_k3(oct_chat_writer *w) {
  const json_t *messages = w->chat->messages, *calls = NULL;
  gsize n = json_array_size(messages), number = 0;
  if (w->chat->tools != NULL)
    declare_tools(w, w->chat->tools, FALSE);
  thinking_effort(w);
  for (gsize i = 0; i < n && !w->failed;) {
    const json_t *message = json_array_get(messages, i);
    if (!oct_chat_has_role(message, "tool")) {
      if (oct_chat_has_role(message, "assistant")) {
        calls = json_object_get(message, "tool_calls");
        number = 0;
      }
      message_at(w, i++);
      continue;
    }
    gsize end = i;
    while (end < n && oct_chat_has_role(json_array_get(messages, end), "tool"))
      end++;
    tool_results(w, i, end, calls, number);
    number += end - i;
    i = end;
  }
  const char *choice = w->options->tool_choice;
  if (g_strcmp0(choice, "required") == 0)
    system_message(w, "tool-choice",
                   "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the "
                   "next message.");
  else if (g_strcmp0(choice, "none") == 0)
    system_message(w, "tool-choice",
                   "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in "
                   "the next message.");
  response_format(w);
  if (w->options->generation_prompt) {
    const char *const attributes[] = {"role", "assistant", NULL};
    open_tag(w, "message", attributes);
    open_tag(w, w->options->no_thinking ? "response" : "think", NULL);
  }
}
