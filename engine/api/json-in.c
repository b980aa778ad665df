#include "engine/api/json-in.h"

#include <string.h>

#define SHOWN_BYTES_MAX 60u

/* The scan: brackets and commas outside strings. Whether it is JSON is jansson's to say; where the
 * two could differ the text is refused anyway. */
typedef struct scan {
  gsize items[OCT_JSON_DEPTH_MAX]; /* commas so far, of the open arrays and objects */
  char kinds[OCT_JSON_DEPTH_MAX];
  guint depth;
} scan;

static gsize
skip_string(const char *bytes, gsize size, gsize at) {
  for (at++; at < size && bytes[at] != '"'; at++)
    if (bytes[at] == '\\')
      at++;
  return at;
}

static gboolean
count_comma(scan *s, gsize items_max, oct_api_fault *fault) {
  if (s->depth == 0)
    return TRUE;
  gboolean array = s->kinds[s->depth - 1] == '[';
  gsize limit = array ? items_max : OCT_JSON_KEYS_MAX;
  if (++s->items[s->depth - 1] < limit)
    return TRUE;
  return oct_api_refuse(fault, 400, NULL,
                        array ? "the body has an array of more than %" G_GSIZE_FORMAT " items"
                              : "the body has an object of more than %" G_GSIZE_FORMAT " keys",
                        limit);
}

static gboolean
check_amounts(const char *bytes, gsize size, gsize items_max, oct_api_fault *fault) {
  scan s = {.depth = 0};
  for (gsize i = 0; i < size; i++)
    switch (bytes[i]) {
    case '"':
      i = skip_string(bytes, size, i);
      break;
    case '{':
    case '[':
      if (s.depth == OCT_JSON_DEPTH_MAX)
        return oct_api_refuse(fault, 400, NULL, "the body has values nested more than %u deep",
                              OCT_JSON_DEPTH_MAX);
      s.kinds[s.depth] = bytes[i];
      s.items[s.depth++] = 0;
      break;
    case '}':
    case ']':
      if (s.depth > 0)
        s.depth--;
      break;
    case ',':
      if (!count_comma(&s, items_max, fault))
        return FALSE;
      break;
    default:
      break;
    }
  return TRUE;
}

json_t *
oct_json_read(const char *bytes, gsize size, gsize items_max, oct_api_fault *fault) {
  if (!check_amounts(bytes, size, MAX(items_max, OCT_JSON_ITEMS_MAX), fault))
    return NULL;
  json_error_t error;
  json_t *value =
      json_loadb(size > 0 ? bytes : "", size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
  if (value != NULL)
    return value;
  /* jansson's texts quote what it met; the place is enough. */
  const char *what = "not valid JSON";
  switch (json_error_code(&error)) {
  case json_error_duplicate_key:
    what = "JSON with a key twice in an object";
    break;
  case json_error_invalid_utf8:
    what = "not valid UTF-8";
    break;
  case json_error_null_character:
  case json_error_null_byte_in_key:
    what = "JSON with the character U+0000";
    break;
  case json_error_numeric_overflow:
    what = "JSON with a number that is too large";
    break;
  case json_error_unknown:
  case json_error_out_of_memory:
  case json_error_stack_overflow:
  case json_error_cannot_open_file:
  case json_error_invalid_argument:
  case json_error_premature_end_of_input:
  case json_error_end_of_input_expected:
  case json_error_invalid_syntax:
  case json_error_invalid_format:
  case json_error_wrong_type:
  case json_error_null_value:
  case json_error_item_not_found:
  case json_error_index_out_of_range:
  default:
    break;
  }
  oct_api_refuse(fault, 400, NULL, "the body is %s (line %d, column %d)", what, error.line,
                 error.column);
  return NULL;
}

json_t *
oct_json_read_object(const char *bytes, gsize size, gsize items_max, oct_api_fault *fault) {
  json_t *value = oct_json_read(bytes, size, items_max, fault);
  if (value == NULL || json_is_object(value))
    return value;
  oct_api_refuse(fault, 400, NULL, "the body is %s, expected an object", oct_json_type_name(value));
  json_decref(value);
  return NULL;
}

guint
oct_json_depth(const char *text) {
  guint depth = 0, deepest = 0;
  gboolean inside = FALSE; /* a string */
  for (; *text != '\0'; text++) {
    if (*text == '\\' && inside)
      text++;
    else if (*text == '"')
      inside = !inside;
    else if (!inside && (*text == '{' || *text == '['))
      depth++;
    else if (!inside && (*text == '}' || *text == ']'))
      depth--;
    deepest = MAX(deepest, depth);
  }
  return deepest;
}

const char *
oct_json_type_name(const json_t *value) {
  switch (json_typeof(value)) {
  case JSON_OBJECT:
    return "an object";
  case JSON_ARRAY:
    return "an array";
  case JSON_STRING:
    return "a string";
  case JSON_INTEGER:
    return "an integer";
  case JSON_REAL:
    return "a number";
  case JSON_TRUE:
  case JSON_FALSE:
    return "a boolean";
  case JSON_NULL:
  default:
    return "null";
  }
}

char *
oct_json_show(const json_t *value) {
  if (json_is_object(value) || json_is_array(value))
    return g_strdup(oct_json_type_name(value));
  if (!json_is_string(value)) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    char *shown = g_strdup(text != NULL ? text : "?");
    free(text);
    return shown;
  }
  const char *text = json_string_value(value);
  gsize size = strlen(text);
  if (size <= SHOWN_BYTES_MAX)
    return g_strdup_printf("\"%s\"", text);
  const char *end = text + SHOWN_BYTES_MAX;
  end = g_utf8_find_prev_char(text, end + 1);
  return g_strdup_printf("\"%.*s…\"", (int)(end - text), text);
}
