#include "engine/api/fields.h"

#include <string.h>

#include "engine/api/json-in.h"

/* Numbers as a person would write them. */
static char *
number_text(double value) {
  char digits[G_ASCII_DTOSTR_BUF_SIZE];
  return g_strdup(g_ascii_formatd(digits, sizeof digits, "%.17g", value));
}

static gboolean
refuse_type(const char *param, const json_t *value, const char *expected, oct_api_fault *fault) {
  g_autofree char *shown = oct_json_show(value);
  return oct_api_refuse(fault, 400, param, "%s: %s is not %s", param, shown, expected);
}

static gboolean
check_range(const oct_field *field, const char *param, const json_t *value, oct_api_fault *fault) {
  double number = json_number_value(value);
  gboolean low = number < field->min;
  if (!low && number <= field->max)
    return TRUE;
  g_autofree char *shown = oct_json_show(value);
  g_autofree char *limit = number_text(low ? field->min : field->max);
  return oct_api_refuse(fault, 400, param, "%s: %s is %s the limit of %s", param, shown,
                        low ? "below" : "above", limit);
}

static gboolean
asks_for_nothing(const json_t *value) {
  return json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
         (json_is_string(value) && json_string_length(value) == 0) ||
         (json_is_array(value) && json_array_size(value) == 0) ||
         (json_is_object(value) && json_object_size(value) == 0);
}

static gboolean
read_string(const oct_field *field, const char *param, const json_t *value, const char **to,
            oct_api_fault *fault) {
  if (!json_is_string(value))
    return refuse_type(param, value, "a string", fault);
  *to = json_string_value(value);
  gsize size = json_string_length(value);
  if (field->max == 0 || (double)size <= field->max)
    return TRUE;
  return oct_api_refuse(fault, 400, param,
                        "%s: %" G_GSIZE_FORMAT " bytes are above the limit of %.0f", param, size,
                        field->max);
}

static gboolean
read_array(const oct_field *field, const char *param, const json_t *value, const json_t **to,
           oct_api_fault *fault) {
  if (!json_is_array(value))
    return refuse_type(param, value, "a list", fault);
  *to = value;
  if (field->max == 0 || (double)json_array_size(value) <= field->max)
    return TRUE;
  return oct_api_refuse(fault, 400, param,
                        "%s: %" G_GSIZE_FORMAT " items are above the limit of %.0f", param,
                        json_array_size(value), field->max);
}

static gboolean
read_field(const oct_field *field, const char *param, const json_t *value, void *to,
           oct_api_fault *fault) {
  switch (field->kind) {
  case OCT_FIELD_BOOL:
    if (!json_is_boolean(value))
      return refuse_type(param, value, "a boolean", fault);
    *(gboolean *)to = json_is_true(value);
    return TRUE;
  case OCT_FIELD_INT:
    if (!json_is_integer(value))
      return refuse_type(param, value, "an integer", fault);
    *(gint64 *)to = json_integer_value(value);
    return check_range(field, param, value, fault);
  case OCT_FIELD_NUMBER:
    if (!json_is_number(value))
      return refuse_type(param, value, "a number", fault);
    *(double *)to = json_number_value(value);
    return check_range(field, param, value, fault);
  case OCT_FIELD_STRING:
    return read_string(field, param, value, to, fault);
  case OCT_FIELD_OBJECT:
    if (!json_is_object(value))
      return refuse_type(param, value, "an object", fault);
    *(const json_t **)to = value;
    return TRUE;
  case OCT_FIELD_ARRAY:
    return read_array(field, param, value, to, fault);
  case OCT_FIELD_VALUE:
    *(const json_t **)to = value;
    return TRUE;
  case OCT_FIELD_IGNORED:
    return TRUE;
  case OCT_FIELD_REFUSED:
  default:
    return asks_for_nothing(value) ||
           oct_api_refuse(fault, 400, param, "%s: %s", param,
                          field->why != NULL ? field->why : "is not supported");
  }
}

static const oct_field *
find(const char *name, const oct_field_table *tables, gsize n_tables, void **to) {
  for (gsize t = 0; t < n_tables; t++)
    for (gsize i = 0; i < tables[t].n; i++)
      if (g_str_equal(tables[t].fields[i].name, name)) {
        if (tables[t].to != NULL)
          *to = (char *)tables[t].to + tables[t].fields[i].offset;
        return &tables[t].fields[i];
      }
  return NULL;
}

gboolean
oct_fields_read(const json_t *object, const char *prefix, const oct_field_table *tables,
                gsize n_tables, oct_api_fault *fault) {
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)object, name, value) {
    void *to = NULL;
    const oct_field *field = find(name, tables, n_tables, &to);
    if (field == NULL) {
      /* The name is the client's: no longer than what Octet would have named itself. */
      g_autofree char *param = g_strdup_printf("%s%.64s", prefix, name);
      return oct_api_refuse(fault, 400, param, "%s: unknown field", param);
    }
    if (json_is_null(value))
      continue;
    g_autofree char *param = g_strconcat(prefix, name, NULL);
    if (!read_field(field, param, value, to, fault))
      return FALSE;
  }
  return TRUE;
}
