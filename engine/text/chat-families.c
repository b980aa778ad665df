/* The families that publish a Jinja template, written out: ChatML, Qwen, Llama 3, Mistral, Kimi K2.
 * tests/golden/text/chats.py holds the templates, and test-chat wants the same prompts. */
#include <string.h>

#include "engine/text/chat-internal.h"

static gsize
n_messages(const oct_chat_writer *w) {
  return json_array_size(w->chat->messages);
}

static const json_t *
message_at(const oct_chat_writer *w, gsize index) {
  return json_array_get(w->chat->messages, index);
}

static void
own(oct_chat_writer *w, const char *text) {
  oct_prompt_own(w->prompt, text);
}

static void
outside(oct_chat_writer *w, const char *text) {
  oct_prompt_outside(w->prompt, text);
}

static void
between(oct_chat_writer *w, const char *before, const char *text, const char *after) {
  own(w, before);
  outside(w, text);
  own(w, after);
}

/* --- ChatML and Qwen ----------------------------------------------------------------------------
 */

void
oct_chat_write_chatml(oct_chat_writer *w) {
  for (gsize i = 0; i < n_messages(w); i++) {
    const json_t *message = message_at(w, i);
    if (i == 0 && w->default_system != NULL && !oct_chat_has_role(message, "system")) {
      own(w, "<|im_start|>system\n");
      own(w, w->default_system);
      own(w, "<|im_end|>\n");
    }
    between(w, "<|im_start|>", oct_chat_text(message, "role"), "\n");
    between(w, "", oct_chat_text(message, "content"), "<|im_end|>\n");
  }
  if (w->options->generation_prompt)
    own(w, "<|im_start|>assistant\n");
}

static void
qwen_system(oct_chat_writer *w, const char *system, gboolean thinks) {
  const char *standard = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
  if (w->chat->tools == NULL) {
    if (system == NULL && thinks)
      return;
    own(w, "<|im_start|>system\n");
    if (system == NULL)
      own(w, standard);
    between(w, "", system, "<|im_end|>\n");
    return;
  }
  own(w, "<|im_start|>system\n");
  if (system == NULL && !thinks)
    own(w, standard);
  outside(w, system);
  if (system != NULL || !thinks)
    own(w, "\n\n");
  own(w, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
         "You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
  for (gsize i = 0; i < json_array_size(w->chat->tools); i++) {
    own(w, "\n");
    oct_chat_json(w, json_array_get(w->chat->tools, i), "");
  }
  own(w, "\n</tools>\n\nFor each function call, return a json object with function name and "
         "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
         "<function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n");
}

static void
qwen_calls(oct_chat_writer *w, const json_t *message, gboolean newline_first) {
  const json_t *calls = json_object_get(message, "tool_calls");
  for (gsize i = 0; i < json_array_size(calls); i++) {
    const json_t *function = oct_chat_function(json_array_get(calls, i));
    const json_t *arguments = json_object_get(function, "arguments");
    if (i > 0 || newline_first)
      own(w, "\n");
    between(w, "<tool_call>\n{\"name\": \"", oct_chat_text(function, "name"),
            "\", \"arguments\": ");
    if (json_is_string(arguments))
      outside(w, json_string_value(arguments));
    else
      oct_chat_json(w, arguments, "");
    own(w, "}\n</tool_call>");
  }
}

/* The last message of a user that is not a tool's answer in disguise: reasoning before it is not
 * repeated. */
static gsize
last_query(const oct_chat_writer *w) {
  for (gsize i = n_messages(w); i > 0; i--) {
    const char *content = oct_chat_text(message_at(w, i - 1), "content");
    if (oct_chat_has_role(message_at(w, i - 1), "user") && content != NULL &&
        !(g_str_has_prefix(content, "<tool_response>") &&
          g_str_has_suffix(content, "</tool_response>")))
      return i - 1;
  }
  return n_messages(w) - 1;
}

/* Text between two places, without newlines on the sides asked for. */
static char *
cut(const char *begin, const char *end, gboolean left, gboolean right) {
  while (left && begin < end && *begin == '\n')
    begin++;
  while (right && end > begin && end[-1] == '\n')
    end--;
  return g_strndup(begin, (gsize)(end - begin));
}

static const char *
last_of(const char *text, const char *what) {
  return g_strrstr(text, what);
}

static void
qwen3_assistant(oct_chat_writer *w, const json_t *message, gsize index, gsize query) {
  const char *content = oct_chat_text(message, "content");
  const char *reasoning = oct_chat_text(message, "reasoning_content");
  content = content == NULL ? "" : content;
  g_autofree char *found = NULL, *rest = NULL;
  const char *end = strstr(content, "</think>");
  if (reasoning == NULL && end != NULL) {
    g_autofree char *head = cut(content, end, FALSE, TRUE);
    const char *begin = last_of(head, "<think>");
    begin = begin == NULL ? head : begin + strlen("<think>");
    found = cut(begin, begin + strlen(begin), TRUE, FALSE);
    const char *tail = last_of(content, "</think>") + strlen("</think>");
    rest = cut(tail, tail + strlen(tail), TRUE, FALSE);
    reasoning = found;
    content = rest;
  }
  own(w, "<|im_start|>assistant\n");
  gboolean written =
      index > query && (index + 1 == n_messages(w) || (reasoning != NULL && *reasoning != 0));
  if (written) {
    g_autofree char *bare = reasoning == NULL
                                ? g_strdup("")
                                : cut(reasoning, reasoning + strlen(reasoning), TRUE, TRUE);
    between(w, "<think>\n", bare, "\n</think>\n\n");
    g_autofree char *text = cut(content, content + strlen(content), TRUE, FALSE);
    outside(w, text);
  } else
    outside(w, content);
  qwen_calls(w, message, *content != 0);
  own(w, "<|im_end|>\n");
}

static void
qwen_message(oct_chat_writer *w, gsize index, gsize query, gboolean thinks) {
  const json_t *message = message_at(w, index);
  const char *content = oct_chat_text(message, "content");
  if (oct_chat_has_role(message, "tool")) {
    if (index == 0 || !oct_chat_has_role(message_at(w, index - 1), "tool"))
      own(w, "<|im_start|>user");
    between(w, "\n<tool_response>\n", content, "\n</tool_response>");
    if (index + 1 == n_messages(w) || !oct_chat_has_role(message_at(w, index + 1), "tool"))
      own(w, "<|im_end|>\n");
  } else if (oct_chat_has_role(message, "assistant") && thinks)
    qwen3_assistant(w, message, index, query);
  else if (json_object_get(message, "tool_calls") != NULL) {
    own(w, "<|im_start|>assistant");
    if (content != NULL && *content != 0)
      between(w, "\n", content, "");
    qwen_calls(w, message, TRUE);
    own(w, "<|im_end|>\n");
  } else {
    between(w, "<|im_start|>", oct_chat_text(message, "role"), "\n");
    between(w, "", content, "<|im_end|>\n");
  }
}

void
oct_chat_write_qwen(oct_chat_writer *w, gboolean thinks) {
  const json_t *first = message_at(w, 0);
  gboolean system = oct_chat_has_role(first, "system");
  gsize query = last_query(w);
  const char *text = oct_chat_text(first, "content");
  qwen_system(w, system ? (text == NULL ? "" : text) : NULL, thinks);
  for (gsize i = system ? 1 : 0; i < n_messages(w) && !w->failed; i++)
    qwen_message(w, i, query, thinks);
  if (!w->options->generation_prompt)
    return;
  own(w, "<|im_start|>assistant\n");
  if (thinks && w->options->no_thinking)
    own(w, "<think>\n\n</think>\n\n");
}

/* --- Llama 3
 * -------------------------------------------------------------------------------------- */

static void
llama3_header(oct_chat_writer *w, const char *role) {
  between(w, "<|start_header_id|>", role, "<|end_header_id|>\n\n");
}

static void
llama3_first_user(oct_chat_writer *w, const json_t *message) {
  llama3_header(w, "user");
  own(w, "Given the following functions, please respond with a JSON for a function call with its "
         "proper arguments that best answers the given prompt.\n\nRespond in the format {\"name\": "
         "function name, \"parameters\": dictionary of argument name and its value}."
         "Do not use variables.\n\n");
  for (gsize i = 0; i < json_array_size(w->chat->tools); i++) {
    oct_chat_json(w, json_array_get(w->chat->tools, i), "indent=4");
    own(w, "\n\n");
  }
  oct_chat_trimmed(w, oct_chat_text(message, "content"));
  own(w, "<|eot_id|>");
}

static void
llama3_message(oct_chat_writer *w, const json_t *message) {
  const json_t *calls = json_object_get(message, "tool_calls");
  if (calls != NULL) {
    if (json_array_size(calls) != 1)
      oct_chat_fail(w, "This model only supports single tool-calls at once!");
    const json_t *function = oct_chat_function(json_array_get(calls, 0));
    llama3_header(w, "assistant");
    between(w, "{\"name\": \"", oct_chat_text(function, "name"), "\", \"parameters\": ");
    oct_chat_json(w, json_object_get(function, "arguments"), "");
    own(w, "}<|eot_id|>");
  } else if (oct_chat_has_role(message, "tool")) {
    llama3_header(w, "ipython");
    oct_chat_json(w, json_object_get(message, "content"), "");
    own(w, "<|eot_id|>");
  } else {
    llama3_header(w, oct_chat_text(message, "role"));
    oct_chat_trimmed(w, oct_chat_text(message, "content"));
    own(w, "<|eot_id|>");
  }
}

/* Llama 3.1's: the date is the template's own, so that equal requests give equal prompts. */
void
oct_chat_write_llama3(oct_chat_writer *w, const char *bos) {
  gsize i = 0;
  own(w, bos);
  llama3_header(w, "system");
  if (w->chat->tools != NULL)
    own(w, "Environment: ipython\n");
  own(w, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
  if (oct_chat_has_role(message_at(w, 0), "system"))
    oct_chat_trimmed(w, oct_chat_text(message_at(w, i++), "content"));
  own(w, "<|eot_id|>");
  if (w->chat->tools != NULL) {
    if (i == n_messages(w)) {
      oct_chat_fail(w, "Cannot put tools in the first user message when there's no first user "
                       "message!");
      return;
    }
    llama3_first_user(w, message_at(w, i++));
  }
  for (; i < n_messages(w) && !w->failed; i++)
    llama3_message(w, message_at(w, i));
  if (w->options->generation_prompt)
    llama3_header(w, "assistant");
}

/* --- Mistral
 * ---------------------------------------------------------------------------------------- */

static gsize
last_user(const oct_chat_writer *w) {
  for (gsize i = n_messages(w); i > 0; i--)
    if (oct_chat_has_role(message_at(w, i - 1), "user"))
      return i - 1;
  return n_messages(w);
}

static void
mistral_calls(oct_chat_writer *w, const json_t *calls, const char *eos) {
  own(w, "[TOOL_CALLS] [");
  for (gsize i = 0; i < json_array_size(calls); i++) {
    const json_t *call = json_array_get(calls, i), *function = oct_chat_function(call);
    const char *id = oct_chat_text(call, "id");
    if (id == NULL || strlen(id) != 9)
      oct_chat_fail(w, "Tool call IDs should be alphanumeric strings with length 9!");
    if (i > 0)
      own(w, ", ");
    between(w, "{\"name\": \"", oct_chat_text(function, "name"), "\", \"arguments\": ");
    oct_chat_json(w, json_object_get(function, "arguments"), "");
    between(w, ", \"id\": \"", id, "\"}");
  }
  own(w, "]");
  own(w, eos);
}

/* Version 3 of the tokenizer (Mistral 7B Instruct v0.3): system text and tools stand with the last
 * message of the user. */
void
oct_chat_write_mistral(oct_chat_writer *w, const char *bos, const char *eos) {
  gboolean system = oct_chat_has_role(message_at(w, 0), "system");
  gsize last = last_user(w);
  own(w, bos);
  for (gsize i = system ? 1 : 0; i < n_messages(w) && !w->failed; i++) {
    const json_t *message = message_at(w, i), *calls = json_object_get(message, "tool_calls");
    const char *content = oct_chat_text(message, "content");
    if (oct_chat_has_role(message, "user")) {
      if (i == last && w->chat->tools != NULL) {
        own(w, "[AVAILABLE_TOOLS] ");
        oct_chat_json(w, w->chat->tools, "");
        own(w, "[/AVAILABLE_TOOLS]");
      }
      own(w, "[INST] ");
      if (i == last && system)
        between(w, "", oct_chat_text(message_at(w, 0), "content"), "\n\n");
      between(w, "", content, "[/INST]");
    } else if (calls != NULL)
      mistral_calls(w, calls, eos);
    else if (oct_chat_has_role(message, "assistant")) {
      own(w, " ");
      oct_chat_trimmed(w, content);
      own(w, eos);
    } else if (oct_chat_has_role(message, "tool")) {
      const char *id = oct_chat_text(message, "tool_call_id");
      if (id == NULL || strlen(id) != 9)
        oct_chat_fail(w, "Tool call IDs should be alphanumeric strings with length 9!");
      between(w, "[TOOL_RESULTS] {\"content\": ", content, "");
      between(w, ", \"call_id\": \"", id, "\"}[/TOOL_RESULTS]");
    } else
      oct_chat_fail(w, "Only user and assistant roles are supported, with the exception of an "
                       "initial optional system message!");
  }
}

/* --- Kimi K2
 * ------------------------------------------------------------------------------------------ */

static void
kimi_k2_calls(oct_chat_writer *w, const json_t *calls) {
  own(w, "<|tool_calls_section_begin|>");
  for (gsize i = 0; i < json_array_size(calls); i++) {
    const json_t *call = json_array_get(calls, i), *function = oct_chat_function(call);
    const json_t *arguments = json_object_get(function, "arguments");
    between(w, "<|tool_call_begin|>", oct_chat_text(call, "id"), "<|tool_call_argument_begin|>");
    if (json_is_string(arguments))
      outside(w, json_string_value(arguments));
    else
      oct_chat_json(w, arguments, "");
    own(w, "<|tool_call_end|>");
  }
  own(w, "<|tool_calls_section_end|>");
}

void
oct_chat_write_kimi_k2(oct_chat_writer *w) {
  if (w->chat->tools != NULL) {
    own(w, "<|im_system|>tool_declare<|im_middle|>");
    oct_chat_json(w, w->chat->tools, "");
    own(w, "<|im_end|>");
  }
  for (gsize i = 0; i < n_messages(w) && !w->failed; i++) {
    const json_t *message = message_at(w, i), *calls = json_object_get(message, "tool_calls");
    const char *role = oct_chat_text(message, "role"), *name = oct_chat_text(message, "name");
    if (i == 0 && !oct_chat_has_role(message, "system"))
      own(w, "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI."
             "<|im_end|>");
    own(w, oct_chat_has_role(message, "user")        ? "<|im_user|>"
           : oct_chat_has_role(message, "assistant") ? "<|im_assistant|>"
                                                     : "<|im_system|>");
    between(w, "", name != NULL && *name != 0 ? name : role, "<|im_middle|>");
    if (oct_chat_has_role(message, "tool"))
      between(w, "## Return of ", oct_chat_text(message, "tool_call_id"), "\n");
    outside(w, oct_chat_text(message, "content"));
    if (calls != NULL)
      kimi_k2_calls(w, calls);
    own(w, "<|im_end|>");
  }
  if (w->options->generation_prompt)
    own(w, "<|im_assistant|>assistant<|im_middle|>");
}
