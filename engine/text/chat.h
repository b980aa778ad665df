/* From a conversation to a prompt.
 *
 * A conversation is JSON in the shape of the OpenAI API: messages with role, content (a string,
 * null, or parts of type text), tool_calls, tool_call_id, name, reasoning_content; tools as
 * functions. It is checked and brought into the form that templates expect, then written by a
 * renderer: one of the families below in C, or the model's own template (engine/text/jinja.h).
 * Everything that a client wrote is marked as text from outside.
 */
#ifndef OCT_TEXT_CHAT_H
#define OCT_TEXT_CHAT_H

#include <glib.h>
#include <jansson.h>

#include "engine/text/prompt.h"
#include "engine/text/tokenizer.h"

/* Limits. */
#define OCT_CHAT_TOOLS_MAX    128u
#define OCT_CHAT_MESSAGES_MAX 65536u

/* --- conversation ----------------------------------------------------------------------------- */

typedef struct oct_chat oct_chat;

/* Life cycle. `messages` and `tools` (NULL or null: none) are borrowed and not kept. NULL with
 * *error (INPUT) that names the message, the field and the value: no messages, an unknown role,
 * content that is not text, a tool call without a name, a tool that is not a function. */
oct_chat *oct_chat_new(const json_t *messages, const json_t *tools,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_chat_free(oct_chat *chat); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_chat, oct_chat_free)

typedef struct oct_chat_options {
  gboolean generation_prompt;    /* ends where the assistant begins to write */
  gboolean no_thinking;          /* models that think are told not to */
  const char *effort;            /* "low", "medium", "high", "max", or NULL */
  const char *tool_choice;       /* "required", "none", or NULL */
  const json_t *response_format; /* as in the API, or NULL; only Kimi K3 writes it out */
  const json_t *variables;       /* more variables for the model's own template, or NULL */
  gint64 now_s;                  /* seconds since 1970, for templates that write the date */
} oct_chat_options;

/* --- renderers ----------------------------------------------------------------------------------
 */

typedef enum oct_chat_family {
  OCT_CHAT_TEMPLATE, /* the model's own template */
  OCT_CHAT_CHATML,
  OCT_CHAT_LLAMA3,
  OCT_CHAT_MISTRAL,
  OCT_CHAT_QWEN25,
  OCT_CHAT_QWEN3,
  OCT_CHAT_KIMI_K2,
  OCT_CHAT_KIMI_K3,
  OCT_CHAT_FAMILY_COUNT
} oct_chat_family;

/* "chatml", "llama3", "mistral", "qwen2.5", "qwen3", "kimi-k2", "kimi-k3"; static. */
const char *oct_chat_family_name(oct_chat_family family);

typedef struct oct_chat_renderer oct_chat_renderer;

/* Life cycle. `choice` is a family's name, or the text of a template (which has a '{'), or NULL for
 * the model's own: then a template whose SHA-256 is known is rendered in C, any other by the
 * interpreter, and a tokenizer with Kimi K3's markers and no template by its family. `tokenizer` is
 * borrowed and outlives the renderer. NULL with *error: UNSUPPORTED names what and
 * --chat-template. */
oct_chat_renderer *oct_chat_renderer_new(const oct_tokenizer *tokenizer, const char *choice,
                                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_chat_renderer_free(oct_chat_renderer *renderer); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_chat_renderer, oct_chat_renderer_free)
oct_chat_family oct_chat_renderer_family(const oct_chat_renderer *renderer);

/* Appends the prompt. BOS is part of it where the family begins with one: do not add it again.
 * FALSE with *error: TEMPLATE, INPUT, LIMIT. Any thread. */
gboolean oct_chat_render(const oct_chat_renderer *renderer, const oct_chat *chat,
                         const oct_chat_options *options, oct_prompt *prompt,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
