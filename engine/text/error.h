/* Errors of engine/text: what a model's files, a template or a client's text can cause. */
#ifndef OCT_TEXT_ERROR_H
#define OCT_TEXT_ERROR_H

#include <glib.h>

#define OCT_TEXT_ERROR (oct_text_error_quark())
GQuark oct_text_error_quark(void);
typedef enum oct_text_error {
  OCT_TEXT_ERROR_FORMAT,      /* a tokenizer or template file is not what its format asks for */
  OCT_TEXT_ERROR_UNSUPPORTED, /* well-formed, but not something that Octet does; names it */
  OCT_TEXT_ERROR_LIMIT,       /* a number or an amount of work beyond its limit */
  OCT_TEXT_ERROR_INPUT,       /* the caller's text, messages or schema; HTTP 400 */
  OCT_TEXT_ERROR_TEMPLATE,    /* a chat template fails on these messages, or refuses them; 400 */
} oct_text_error;

#endif
