/* Checked reading of JSON fields, over jansson. jansson refuses bad UTF-8, trailing text, numbers
 * out of range and keys that appear twice; the length and nesting are checked here beforehand, by a
 * scan without recursion, because jansson itself descends 2048 levels of stack.
 */
#include "engine/model/fields.h"

#include <stdarg.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/spec.h"

/* Longest value shown in a message. */
#define SHOWN_MAX 60

/* TRUE when brackets outside strings nest at most OCT_FIELDS_DEPTH_MAX deep. Text that is not JSON
 * may pass: the parser decides about that. */
static gboolean
depth_is_legal(const char *text, gsize size) {
  gboolean in_string = FALSE;
  guint depth = 0;
  for (gsize i = 0; i < size; i++) {
    char c = text[i];
    if (in_string) {
      if (c == '\\')
        i++;
      else if (c == '"')
        in_string = FALSE;
    } else if (c == '"') {
      in_string = TRUE;
    } else if (c == '[' || c == '{') {
      if (++depth > OCT_FIELDS_DEPTH_MAX)
        return FALSE;
    } else if ((c == ']' || c == '}') && depth > 0) {
      depth--;
    }
  }
  return TRUE;
}

/* For a value that jansson cannot read, of which it tells the place only: ", in field KEY", with
 * the value too when `shown` is FALSE. "" when no key leads to that place. Owned. */
static char *
field_before(const char *text, gsize position, gboolean shown) {
  gsize value = position;
  while (value > 0 && strchr(":,{}[]", text[value - 1]) == NULL)
    value--;
  if (value == 0 || text[value - 1] != ':')
    return g_strdup("");
  gsize end = value - 1;
  while (end > 0 && g_ascii_isspace(text[end - 1]))
    end--;
  if (end == 0 || text[end - 1] != '"')
    return g_strdup("");
  gsize start = --end;
  while (start > 0 && text[start - 1] != '"')
    start--;
  if (start == 0 || end - start > 100)
    return g_strdup("");
  g_autofree char *key = g_strndup(text + start, end - start);
  g_autofree char *found = g_strndup(text + value, MIN(position - value, SHOWN_MAX));
  g_autofree char *raw = shown ? g_strdup_printf(", in field %s", key)
                               : g_strdup_printf(", in field %s: %s", key, g_strstrip(found));
  return g_utf8_make_valid(raw, -1);
}

json_t *
oct_fields_parse(const char *label, const char *text, gsize size, GError **error) {
  if (size > OCT_FIELDS_BYTES_MAX) {
    g_set_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_PARSE,
                "%s: %" G_GSIZE_FORMAT " bytes, at most %d are read", label, size,
                OCT_FIELDS_BYTES_MAX);
    return NULL;
  }
  if (!depth_is_legal(text, size)) {
    g_set_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_PARSE, "%s: nested deeper than %d levels",
                label, OCT_FIELDS_DEPTH_MAX);
    return NULL;
  }
  json_error_t where;
  json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
  if (root == NULL) {
    g_autofree char *valid = g_utf8_make_valid(where.text, -1);
    gsize position = where.position > 0 ? MIN((gsize)where.position, size) : 0;
    g_autofree char *field = field_before(text, position, strstr(valid, " near ") != NULL);
    g_set_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_PARSE, "%s:%d:%d: %s%s", label, where.line,
                where.column, valid, field);
    return NULL;
  }
  if (!json_is_object(root)) {
    json_decref(root);
    g_set_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_PARSE, "%s: not a JSON object", label);
    return NULL;
  }
  return root;
}

void
oct_fields_init(oct_fields *fields, const char *label, const json_t *object, GError **error) {
  oct_assert(error != NULL && json_is_object(object));
  *fields = (oct_fields){.label = label, .object = object, .error = error};
}

gboolean
oct_fields_failed(const oct_fields *fields) {
  return *fields->error != NULL;
}

/* The value, or NULL when it is absent or null. */
static const json_t *
lookup(const oct_fields *fields, const char *name) {
  const json_t *value = json_object_get(fields->object, name);
  return json_is_null(value) ? NULL : value;
}

gboolean
oct_fields_has(const oct_fields *fields, const char *name) {
  return lookup(fields, name) != NULL;
}

/* The value as JSON, cut to SHOWN_MAX; owned. */
static char *
show(const json_t *value) {
  char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
  if (dump == NULL)
    return g_strdup("unprintable");
  g_autofree char *cut = g_strndup(dump, SHOWN_MAX);
  char *shown = g_strconcat(cut, strlen(dump) > SHOWN_MAX ? "…" : "", NULL);
  free(dump);
  return shown;
}

static void
fail_value(oct_fields *fields, const char *name, const json_t *value, int code, const char *rest) {
  if (oct_fields_failed(fields))
    return;
  if (value == NULL) {
    g_set_error(fields->error, OCT_MODEL_ERROR, code, "%s: field %s%s is missing%s%s",
                fields->label, fields->path, name, *rest != '\0' ? ", " : "", rest);
    return;
  }
  g_autofree char *shown = show(value);
  g_set_error(fields->error, OCT_MODEL_ERROR, code, "%s: field %s%s is %s, %s", fields->label,
              fields->path, name, shown, rest);
}

void
oct_fields_fail(oct_fields *fields, const char *name, int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *rest = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  fail_value(fields, name, lookup(fields, name), code, rest);
}

/* The required value, or NULL with the error set. */
static const json_t *
require(oct_fields *fields, const char *name) {
  if (oct_fields_failed(fields))
    return NULL;
  const json_t *value = lookup(fields, name);
  if (value == NULL)
    fail_value(fields, name, NULL, OCT_MODEL_ERROR_FIELD, "");
  return value;
}

static guint32
checked_u32(oct_fields *fields, const char *name, const json_t *value, guint32 min, guint32 max) {
  if (!json_is_integer(value)) {
    fail_value(fields, name, value, OCT_MODEL_ERROR_PARSE, "expected an integer");
    return 0;
  }
  json_int_t number = json_integer_value(value);
  if (number < (json_int_t)min || number > (json_int_t)max) {
    g_autofree char *rest = g_strdup_printf("allowed are %u to %u", min, max);
    fail_value(fields, name, value, OCT_MODEL_ERROR_FIELD, rest);
    return 0;
  }
  return (guint32)number;
}

guint32
oct_fields_u32(oct_fields *fields, const char *name, guint32 min, guint32 max) {
  const json_t *value = require(fields, name);
  return value != NULL ? checked_u32(fields, name, value, min, max) : 0;
}

guint32
oct_fields_u32_or(oct_fields *fields, const char *name, guint32 min, guint32 max,
                  guint32 fallback) {
  const json_t *value = oct_fields_failed(fields) ? NULL : lookup(fields, name);
  return value != NULL ? checked_u32(fields, name, value, min, max) : fallback;
}

static double
checked_real(oct_fields *fields, const char *name, const json_t *value, double min, double max) {
  if (!json_is_number(value)) {
    fail_value(fields, name, value, OCT_MODEL_ERROR_PARSE, "expected a number");
    return 0;
  }
  double number = json_number_value(value);
  if (!(number >= min && number <= max)) {
    g_autofree char *rest = g_strdup_printf("allowed are %g to %g", min, max);
    fail_value(fields, name, value, OCT_MODEL_ERROR_FIELD, rest);
    return 0;
  }
  return number;
}

double
oct_fields_real(oct_fields *fields, const char *name, double min, double max) {
  const json_t *value = require(fields, name);
  return value != NULL ? checked_real(fields, name, value, min, max) : 0;
}

double
oct_fields_real_or(oct_fields *fields, const char *name, double min, double max, double fallback) {
  const json_t *value = oct_fields_failed(fields) ? NULL : lookup(fields, name);
  return value != NULL ? checked_real(fields, name, value, min, max) : fallback;
}

gboolean
oct_fields_bool_or(oct_fields *fields, const char *name, gboolean fallback) {
  const json_t *value = oct_fields_failed(fields) ? NULL : lookup(fields, name);
  if (value == NULL)
    return fallback;
  if (!json_is_boolean(value)) {
    fail_value(fields, name, value, OCT_MODEL_ERROR_PARSE, "expected true or false");
    return fallback;
  }
  return json_is_true(value);
}

static const char *
checked_string(oct_fields *fields, const char *name, const json_t *value) {
  if (json_is_string(value))
    return json_string_value(value);
  fail_value(fields, name, value, OCT_MODEL_ERROR_PARSE, "expected a string");
  return "";
}

const char *
oct_fields_string(oct_fields *fields, const char *name) {
  const json_t *value = require(fields, name);
  return value != NULL ? checked_string(fields, name, value) : "";
}

const char *
oct_fields_string_or(oct_fields *fields, const char *name, const char *fallback) {
  const json_t *value = oct_fields_failed(fields) ? NULL : lookup(fields, name);
  return value != NULL ? checked_string(fields, name, value) : fallback;
}

static const json_t *
checked_array(oct_fields *fields, const char *name, const json_t *value, gsize max) {
  if (!json_is_array(value)) {
    fail_value(fields, name, value, OCT_MODEL_ERROR_PARSE, "expected an array");
    return NULL;
  }
  if (json_array_size(value) > max) {
    g_autofree char *rest =
        g_strdup_printf("%" G_GSIZE_FORMAT " elements, at most %" G_GSIZE_FORMAT " are allowed",
                        json_array_size(value), max);
    fail_value(fields, name, value, OCT_MODEL_ERROR_FIELD, rest);
    return NULL;
  }
  return value;
}

const json_t *
oct_fields_array(oct_fields *fields, const char *name, gsize max) {
  const json_t *value = require(fields, name);
  return value != NULL ? checked_array(fields, name, value, max) : NULL;
}

const json_t *
oct_fields_array_or(oct_fields *fields, const char *name, gsize max) {
  const json_t *value = oct_fields_failed(fields) ? NULL : lookup(fields, name);
  return value != NULL ? checked_array(fields, name, value, max) : NULL;
}

guint32
oct_fields_element_u32(oct_fields *fields, const char *name, const json_t *array, gsize position,
                       guint32 min, guint32 max) {
  if (oct_fields_failed(fields))
    return 0;
  g_autofree char *element = g_strdup_printf("%s[%" G_GSIZE_FORMAT "]", name, position);
  return checked_u32(fields, element, json_array_get(array, position), min, max);
}

const char *
oct_fields_element_string(oct_fields *fields, const char *name, const json_t *array,
                          gsize position) {
  if (oct_fields_failed(fields))
    return "";
  g_autofree char *element = g_strdup_printf("%s[%" G_GSIZE_FORMAT "]", name, position);
  return checked_string(fields, element, json_array_get(array, position));
}

static gboolean
enter(oct_fields *fields, const char *name, const json_t *value, oct_fields *child) {
  if (value == NULL)
    return FALSE;
  if (!json_is_object(value)) {
    fail_value(fields, name, value, OCT_MODEL_ERROR_PARSE, "expected an object");
    return FALSE;
  }
  *child = (oct_fields){.label = fields->label, .object = value, .error = fields->error};
  g_snprintf(child->path, sizeof child->path, "%s%s.", fields->path, name);
  return TRUE;
}

gboolean
oct_fields_object(oct_fields *fields, const char *name, oct_fields *child) {
  return enter(fields, name, require(fields, name), child);
}

gboolean
oct_fields_object_or(oct_fields *fields, const char *name, oct_fields *child) {
  if (oct_fields_failed(fields))
    return FALSE;
  return enter(fields, name, lookup(fields, name), child);
}
