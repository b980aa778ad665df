#include "engine/text/chat-internal.h"

#include <string.h>

#include "engine/base/assert.h"

/* --- conversation ------------------------------------------------------------------------------
 */

static gboolean
refuse(GError **error, gsize index, const char *what, const char *value) {
  g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT,
              "messages[%" G_GSIZE_FORMAT "]: %s%s%.100s%s", index, what, value != NULL ? " '" : "",
              value != NULL ? value : "", value != NULL ? "'" : "");
  return FALSE;
}

/* Content as one string; the texts of its parts go to `parts`. */
static gboolean
read_content(const json_t *message, gsize index, json_t *to, json_t *parts, GError **error) {
  const json_t *content = json_object_get(message, "content");
  if (content == NULL || json_is_null(content)) {
    json_object_set_new(to, "content", json_null());
    return TRUE;
  }
  if (json_is_string(content)) {
    json_object_set(to, "content", (json_t *)content);
    json_array_append(parts, (json_t *)content);
    return TRUE;
  }
  if (!json_is_array(content))
    return refuse(error, index, "content is neither a string nor a list of parts", NULL);
  g_autoptr(GString) text = g_string_new(NULL);
  for (gsize i = 0; i < json_array_size(content); i++) {
    const json_t *part = json_array_get(content, i), *value = json_object_get(part, "text");
    const char *type = json_string_value(json_object_get(part, "type"));
    if (type == NULL || !g_str_equal(type, "text") || !json_is_string(value))
      return refuse(error, index,
                    "content has a part that is not text:", type == NULL ? "without type" : type);
    if (i > 0)
      g_string_append_c(text, '\n');
    g_string_append_len(text, json_string_value(value), (gssize)json_string_length(value));
    json_array_append(parts, (json_t *)value);
  }
  json_object_set_new(to, "content", json_stringn(text->str, text->len));
  return TRUE;
}

/* Arguments come as a string of JSON; templates want the object. What is not one stays a string. */
static gboolean
read_tool_calls(const json_t *message, gsize index, json_t *to, GError **error) {
  const json_t *calls = json_object_get(message, "tool_calls");
  if (calls == NULL || json_is_null(calls) || json_array_size(calls) == 0)
    return calls == NULL || json_is_null(calls) || json_is_array(calls) ||
           refuse(error, index, "tool_calls is not a list", NULL);
  json_t *list = json_array();
  json_object_set_new(to, "tool_calls", list);
  for (gsize i = 0; i < json_array_size(calls); i++) {
    const json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
    if (!json_is_string(json_object_get(function, "name")))
      return refuse(error, index, "a tool call lacks its function's name", NULL);
    json_t *copy = json_copy((json_t *)call), *inner = json_copy((json_t *)function);
    json_object_set_new(copy, "function", inner);
    json_array_append_new(list, copy);
    const json_t *arguments = json_object_get(function, "arguments");
    if (json_is_string(arguments)) {
      json_t *parsed = json_loadb(json_string_value(arguments), json_string_length(arguments),
                                  JSON_REJECT_DUPLICATES, NULL);
      if (json_is_object(parsed))
        json_object_set(inner, "arguments", parsed);
      g_clear_pointer(&parsed, json_decref);
    } else if (arguments == NULL)
      json_object_set_new(inner, "arguments", json_object());
  }
  return TRUE;
}

static gboolean
read_message(oct_chat *chat, const json_t *message, gsize index, GError **error) {
  static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
  const char *role = json_string_value(json_object_get(message, "role"));
  gboolean known = FALSE;
  for (guint i = 0; role != NULL && i < G_N_ELEMENTS(roles); i++)
    known = known || g_str_equal(role, roles[i]);
  if (!known)
    return refuse(error, index, "role is not system, developer, user, assistant or tool:",
                  role == NULL ? "absent" : role);
  json_t *to = json_object(), *parts = json_array();
  json_array_append_new(chat->messages, to);
  json_array_append_new(chat->parts, parts);
  json_object_set_new(to, "role", json_string(g_str_equal(role, "developer") ? "system" : role));
  static const char *const strings[] = {"name", "tool_call_id", "reasoning_content"};
  for (guint i = 0; i < G_N_ELEMENTS(strings); i++) {
    json_t *value = json_object_get(message, strings[i]);
    if (value == NULL && g_str_equal(strings[i], "reasoning_content"))
      value = json_object_get(message, "reasoning");
    if (value == NULL || json_is_null(value))
      continue;
    if (!json_is_string(value))
      return refuse(error, index, "this field is not a string:", strings[i]);
    json_object_set(to, strings[i], value);
  }
  json_t *tools = json_object_get(message, "tools");
  if (json_is_array(tools))
    json_object_set(to, "tools", tools);
  return read_content(message, index, to, parts, error) &&
         read_tool_calls(message, index, to, error);
}

static gboolean
read_tools(oct_chat *chat, const json_t *tools, GError **error) {
  if (tools == NULL || json_is_null(tools) || json_array_size(tools) == 0)
    return TRUE;
  if (json_array_size(tools) > OCT_CHAT_TOOLS_MAX) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT,
                "%" G_GSIZE_FORMAT " tools: at most %u", json_array_size(tools),
                OCT_CHAT_TOOLS_MAX);
    return FALSE;
  }
  for (gsize i = 0; i < json_array_size(tools); i++)
    if (!json_is_string(
            json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"))) {
      g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT,
                  "tools[%" G_GSIZE_FORMAT "] is not a function with a name", i);
      return FALSE;
    }
  chat->tools = json_incref((json_t *)tools);
  return TRUE;
}

oct_chat *
oct_chat_new(const json_t *messages, const json_t *tools, GError **error) {
  gsize n = json_array_size(messages);
  if (n == 0 || n > OCT_CHAT_MESSAGES_MAX) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT,
                "messages has %" G_GSIZE_FORMAT " entries: 1 to %u are possible", n,
                OCT_CHAT_MESSAGES_MAX);
    return NULL;
  }
  g_autoptr(oct_chat) chat = g_new0(oct_chat, 1);
  chat->messages = json_array();
  chat->parts = json_array();
  for (gsize i = 0; i < n; i++)
    if (!read_message(chat, json_array_get(messages, i), i, error))
      return NULL;
  return read_tools(chat, tools, error) ? g_steal_pointer(&chat) : NULL;
}

void
oct_chat_free(oct_chat *chat) {
  if (chat == NULL)
    return;
  json_decref(chat->messages);
  json_decref(chat->parts);
  g_clear_pointer(&chat->tools, json_decref);
  g_free(chat);
}

/* --- what renderers share ------------------------------------------------------------------------
 */

const char *
oct_chat_text(const json_t *message, const char *field) {
  return json_string_value(json_object_get(message, field));
}

gboolean
oct_chat_has_role(const json_t *message, const char *role) {
  return g_strcmp0(oct_chat_text(message, "role"), role) == 0;
}

const json_t *
oct_chat_function(const json_t *call) {
  return json_object_get(call, "function");
}

void
oct_chat_fail(oct_chat_writer *w, const char *message) {
  if (!w->failed)
    g_set_error(w->error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_TEMPLATE, "%s", message);
  w->failed = TRUE;
}

void
oct_chat_json(oct_chat_writer *w, const json_t *value, const char *how) {
  g_autofree char *source = g_strdup_printf("{{ x|tojson(%s) }}", how);
  g_autoptr(oct_template) dump = oct_template_new(source, strlen(source), NULL);
  json_t *variables = json_object();
  json_object_set(variables, "x", (json_t *)value);
  oct_template_input input = {.outside = variables};
  if (!w->failed && !oct_template_render(dump, &input, w->prompt, w->error))
    w->failed = TRUE;
  json_decref(variables);
}

void
oct_chat_trimmed(oct_chat_writer *w, const char *text) {
  if (text == NULL)
    return;
  const char *end = text + strlen(text);
  while (text < end && g_unichar_isspace(g_utf8_get_char(text)))
    text = g_utf8_next_char(text);
  while (end > text) {
    const char *last = g_utf8_prev_char(end);
    if (!g_unichar_isspace(g_utf8_get_char(last)))
      break;
    end = last;
  }
  oct_prompt_add(w->prompt, text, (gsize)(end - text), OCT_MARK_OUTSIDE);
}

/* --- renderers
 * ------------------------------------------------------------------------------------ */

struct oct_chat_renderer {
  const oct_tokenizer *tokenizer;
  oct_chat_family family;
  oct_template *own;
  const char *default_system;
  char *bos, *eos;
};

static const char *const family_names[] = {"template", "chatml", "llama3",  "mistral",
                                           "qwen2.5",  "qwen3",  "kimi-k2", "kimi-k3"};
G_STATIC_ASSERT(G_N_ELEMENTS(family_names) == OCT_CHAT_FAMILY_COUNT);

/* Templates as their models publish them. */
static const struct {
  const char *sha256, *default_system;
  oct_chat_family family;
} known[] = {
    /* SmolLM2 */
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face", OCT_CHAT_CHATML},
    /* ChatML as transformers documents it, with newlines and with their escapes */
    {"153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3", NULL, OCT_CHAT_CHATML},
    {"fcf7a096fe99a48fd9ad2b250bf9237e96e8f48bffec1c7ea4d3f225176cd40e", NULL, OCT_CHAT_CHATML},
};

const char *
oct_chat_family_name(oct_chat_family family) {
  oct_assert(family < OCT_CHAT_FAMILY_COUNT);
  return family_names[family];
}

static char *
role_text(const oct_tokenizer *tokenizer, oct_token_role role) {
  guint32 id = oct_tokenizer_role(tokenizer, role);
  oct_text text = oct_tokenizer_bytes(tokenizer, id);
  return g_strndup(text.bytes, text.size);
}

/* FALSE: the text's hash is not known. */
static gboolean
choose_by_hash(oct_chat_renderer *renderer, const char *text) {
  g_autofree char *sha256 = g_compute_checksum_for_string(G_CHECKSUM_SHA256, text, -1);
  for (guint i = 0; i < G_N_ELEMENTS(known); i++)
    if (g_str_equal(sha256, known[i].sha256)) {
      renderer->family = known[i].family;
      renderer->default_system = known[i].default_system;
      return TRUE;
    }
  return FALSE;
}

static gboolean
choose(oct_chat_renderer *renderer, const char *choice, GError **error) {
  for (guint i = OCT_CHAT_CHATML; choice != NULL && i < OCT_CHAT_FAMILY_COUNT; i++)
    if (g_str_equal(choice, family_names[i])) {
      renderer->family = (oct_chat_family)i;
      return TRUE;
    }
  if (choice != NULL && strchr(choice, '{') == NULL) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_UNSUPPORTED,
                "'%.100s' is neither a family nor a template: the families are "
                "chatml, llama3, mistral, qwen2.5, qwen3, kimi-k2 and kimi-k3",
                choice);
    return FALSE;
  }
  const char *text = choice != NULL ? choice : oct_tokenizer_chat_template(renderer->tokenizer);
  /* Kimi K3 comes with no template, or with one that holds nothing. */
  gboolean k3 = oct_tokenizer_find_added(renderer->tokenizer, "<|open|>") != OCT_NO_TOKEN &&
                oct_tokenizer_find_added(renderer->tokenizer, "<|end_of_msg|>") != OCT_NO_TOKEN;
  if (k3 && (text == NULL || strstr(text, "messages") == NULL)) {
    renderer->family = OCT_CHAT_KIMI_K3;
    return TRUE;
  }
  if (text == NULL) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_UNSUPPORTED,
                "the model has no chat template; give one with --chat-template");
    return FALSE;
  }
  if (choose_by_hash(renderer, text))
    return TRUE;
  renderer->own = oct_template_new(text, strlen(text), error);
  return renderer->own != NULL;
}

oct_chat_renderer *
oct_chat_renderer_new(const oct_tokenizer *tokenizer, const char *choice, GError **error) {
  g_autoptr(oct_chat_renderer) renderer = g_new0(oct_chat_renderer, 1);
  renderer->tokenizer = tokenizer;
  renderer->bos = role_text(tokenizer, OCT_ROLE_BOS);
  renderer->eos = role_text(tokenizer, OCT_ROLE_EOS);
  return choose(renderer, choice, error) ? g_steal_pointer(&renderer) : NULL;
}

void
oct_chat_renderer_free(oct_chat_renderer *renderer) {
  if (renderer == NULL)
    return;
  oct_template_free(renderer->own);
  g_free(renderer->bos);
  g_free(renderer->eos);
  g_free(renderer);
}

oct_chat_family
oct_chat_renderer_family(const oct_chat_renderer *renderer) {
  return renderer->family;
}

static gboolean
render_own(const oct_chat_renderer *renderer, const oct_chat *chat, const oct_chat_options *options,
           oct_prompt *prompt, GError **error) {
  json_t *own = json_object(), *outside = json_object();
  json_object_set_new(own, "bos_token", json_string(renderer->bos));
  json_object_set_new(own, "eos_token", json_string(renderer->eos));
  json_object_set_new(own, "add_generation_prompt", json_boolean(options->generation_prompt));
  if (options->no_thinking) {
    json_object_set_new(own, "enable_thinking", json_false());
    json_object_set_new(own, "thinking", json_false());
  }
  if (options->effort != NULL)
    json_object_set_new(own, "reasoning_effort", json_string(options->effort));
  if (options->variables != NULL)
    json_object_update(outside, (json_t *)options->variables);
  json_object_set(outside, "messages", chat->messages);
  json_object_set_new(outside, "tools",
                      chat->tools != NULL ? json_incref(chat->tools) : json_null());
  json_object_set_new(outside, "documents", json_null());
  oct_template_input input = {.own = own, .outside = outside, .now_s = options->now_s};
  gboolean ok = oct_template_render(renderer->own, &input, prompt, error);
  json_decref(own);
  json_decref(outside);
  return ok;
}

gboolean
oct_chat_render(const oct_chat_renderer *renderer, const oct_chat *chat,
                const oct_chat_options *options, oct_prompt *prompt, GError **error) {
  oct_chat_writer w = {.chat = chat,
                       .options = options,
                       .prompt = prompt,
                       .default_system = renderer->default_system,
                       .error = error};
  switch (renderer->family) {
  case OCT_CHAT_TEMPLATE:
    return render_own(renderer, chat, options, prompt, error);
  case OCT_CHAT_CHATML:
    oct_chat_write_chatml(&w);
    break;
  case OCT_CHAT_LLAMA3:
    oct_chat_write_llama3(&w, renderer->bos);
    break;
  case OCT_CHAT_MISTRAL:
    oct_chat_write_mistral(&w, renderer->bos, renderer->eos);
    break;
  case OCT_CHAT_QWEN25:
  case OCT_CHAT_QWEN3:
    oct_chat_write_qwen(&w, renderer->family == OCT_CHAT_QWEN3);
    break;
  case OCT_CHAT_KIMI_K2:
    oct_chat_write_kimi_k2(&w);
    break;
  case OCT_CHAT_KIMI_K3:
    oct_chat_write_kimi_k3(&w);
    break;
  case OCT_CHAT_FAMILY_COUNT:
  default:
    oct_assert(FALSE);
  }
  return !w.failed;
}
