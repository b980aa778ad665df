/* A prompt as text: bytes, and for each a mark that says who wrote it (OCT_MARK_… of tokenizer.h).
 * Templates write prompts, oct_tokenizer_encode_marked() reads them. */
#ifndef OCT_TEXT_PROMPT_H
#define OCT_TEXT_PROMPT_H

#include <glib.h>

#include "engine/text/tokenizer.h"

typedef struct oct_prompt {
  GByteArray *text, *marks; /* of equal length */
} oct_prompt;

oct_prompt *oct_prompt_new(void);
void oct_prompt_free(oct_prompt *prompt); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_prompt, oct_prompt_free)

/* Appends bytes that all have these marks. */
void oct_prompt_add(oct_prompt *prompt, const char *bytes, gsize size, guint8 marks);
/* The template's own text; NUL-terminated. */
void oct_prompt_own(oct_prompt *prompt, const char *text);
/* Text from outside; NUL-terminated, NULL is empty. */
void oct_prompt_outside(oct_prompt *prompt, const char *text);
/* Appends the prompt's ids. */
gboolean oct_prompt_encode(const oct_prompt *prompt, const oct_tokenizer *tokenizer, GArray *ids,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
