/* JSON from clients, within limits.
 *
 * One pass over the bytes counts depth, keys and items before anything is built, so that what is
 * too much costs a scan and no memory. Then jansson reads it: UTF-8 only, U+0000 refused, numbers
 * that are not finite or do not fit 64 bits refused, and each key once in an object.
 */
#ifndef OCT_API_JSON_IN_H
#define OCT_API_JSON_IN_H

#include <jansson.h>

#include "engine/api/fault.h"

#define OCT_JSON_DEPTH_MAX 64u
#define OCT_JSON_ITEMS_MAX 65536u /* of an array, unless the context is longer */
#define OCT_JSON_KEYS_MAX  1024u  /* of an object */

/* The value in `bytes`, owned, or NULL with a fault (400). `items_max` replaces OCT_JSON_ITEMS_MAX
 * where larger: the length of a context, for prompts of token ids. */
json_t *oct_json_read(const char *bytes, gsize size, gsize items_max,
                      oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;

/* A request's body: an object. */
json_t *oct_json_read_object(const char *bytes, gsize size, gsize items_max,
                             oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;

/* How deep the values of a text are nested that is JSON. */
guint oct_json_depth(const char *text);

/* A value as text for messages, at most about 60 bytes; owned. */
char *oct_json_show(const json_t *value);
/* "an object", "null" …; static. */
const char *oct_json_type_name(const json_t *value);

#endif
