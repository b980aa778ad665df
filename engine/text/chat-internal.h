/* What the renderers share. Only chat*.c include this. */
#ifndef OCT_TEXT_CHAT_INTERNAL_H
#define OCT_TEXT_CHAT_INTERNAL_H

#include "engine/text/chat.h"
#include "engine/text/error.h"
#include "engine/text/jinja.h"

struct oct_chat {
  json_t *messages; /* content is a string or null; arguments are objects where they are JSON */
  json_t *parts;    /* for each message the texts of its parts */
  json_t *tools;    /* NULL: none */
};

typedef struct oct_chat_writer {
  const oct_chat *chat;
  const oct_chat_options *options;
  oct_prompt *prompt;
  const char *default_system; /* of ChatML models that have one */
  GError **error;
  gboolean failed;
} oct_chat_writer;

/* Fields of a message; NULL when absent or null. */
const char *oct_chat_text(const json_t *message, const char *field);
gboolean oct_chat_has_role(const json_t *message, const char *role);
/* The function of a tool call. */
const json_t *oct_chat_function(const json_t *call);

/* Writes a value as Python's json.dumps() does: `how` are the arguments of tojson, as in
 * "indent=4". Text from outside. */
void oct_chat_json(oct_chat_writer *w, const json_t *value, const char *how);
/* A text from outside without the white space around it. */
void oct_chat_trimmed(oct_chat_writer *w, const char *text);
void oct_chat_fail(oct_chat_writer *w, const char *message);

void oct_chat_write_chatml(oct_chat_writer *w);
void oct_chat_write_qwen(oct_chat_writer *w, gboolean thinks);
void oct_chat_write_llama3(oct_chat_writer *w, const char *bos);
void oct_chat_write_mistral(oct_chat_writer *w, const char *bos, const char *eos);
void oct_chat_write_kimi_k2(oct_chat_writer *w);
void oct_chat_write_kimi_k3(oct_chat_writer *w);

#endif
