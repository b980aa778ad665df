#include "engine/text/prompt.h"

#include <string.h>

oct_prompt *
oct_prompt_new(void) {
  oct_prompt *prompt = g_new(oct_prompt, 1);
  prompt->text = g_byte_array_new();
  prompt->marks = g_byte_array_new();
  return prompt;
}

void
oct_prompt_free(oct_prompt *prompt) {
  if (prompt == NULL)
    return;
  g_byte_array_unref(prompt->text);
  g_byte_array_unref(prompt->marks);
  g_free(prompt);
}

void
oct_prompt_add(oct_prompt *prompt, const char *bytes, gsize size, guint8 marks) {
  if (size == 0)
    return;
  guint at = prompt->marks->len;
  g_byte_array_append(prompt->text, (const guint8 *)bytes, (guint)size);
  g_byte_array_set_size(prompt->marks, at + (guint)size);
  memset(prompt->marks->data + at, marks & ~OCT_MARK_CUT, size);
  prompt->marks->data[at] |= marks & OCT_MARK_CUT;
}

void
oct_prompt_own(oct_prompt *prompt, const char *text) {
  oct_prompt_add(prompt, text, strlen(text), 0);
}

void
oct_prompt_outside(oct_prompt *prompt, const char *text) {
  if (text != NULL)
    oct_prompt_add(prompt, text, strlen(text), OCT_MARK_OUTSIDE);
}

gboolean
oct_prompt_encode(const oct_prompt *prompt, const oct_tokenizer *tokenizer, GArray *ids,
                  GError **error) {
  if (prompt->text->len == 0)
    return TRUE;
  return oct_tokenizer_encode_marked(tokenizer, (const char *)prompt->text->data,
                                     prompt->marks->data, prompt->text->len, ids, error);
}
