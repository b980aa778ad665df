/* Reads a request's object by tables: what each field is, its limits, and where it goes.
 *
 * Every field that a request may have stands in a table, also those that Octet ignores or refuses,
 * so that a field that no table has is refused by name. null is as good as absent. A table writes
 * into one struct, which its owner has filled with the defaults; strings and values are borrowed
 * from the object.
 */
#ifndef OCT_API_FIELDS_H
#define OCT_API_FIELDS_H

#include <jansson.h>

#include "engine/api/fault.h"

typedef enum oct_field_kind {
  OCT_FIELD_BOOL,    /* gboolean */
  OCT_FIELD_INT,     /* gint64 within min … max */
  OCT_FIELD_NUMBER,  /* double within min … max */
  OCT_FIELD_STRING,  /* const char *; at most max bytes when max > 0 */
  OCT_FIELD_OBJECT,  /* const json_t * */
  OCT_FIELD_ARRAY,   /* const json_t *; at most max items when max > 0 */
  OCT_FIELD_VALUE,   /* const json_t *: checked by whoever reads it */
  OCT_FIELD_IGNORED, /* nothing is done with it, as OpenAI's own servers need not */
  OCT_FIELD_REFUSED, /* 400 unless it asks for nothing: null, false, 0, "", [] or {} */
} oct_field_kind;

typedef struct oct_field {
  const char *name;
  oct_field_kind kind;
  gsize offset; /* in the struct */
  double min, max;
  const char *why; /* REFUSED: what it would need, or what to use; NULL: "is not supported" */
} oct_field;

typedef struct oct_field_table {
  const oct_field *fields;
  gsize n;
  void *to; /* the struct; may be NULL for tables without values */
} oct_field_table;

#define OCT_FIELD(type, member, kind, ...)                                                         \
  { #member, OCT_FIELD_##kind, G_STRUCT_OFFSET(type, member), __VA_ARGS__ }
#define OCT_FIELD_IGNORE(field)                                                                    \
  { (field), OCT_FIELD_IGNORED, 0, 0, 0, NULL }
#define OCT_FIELD_REFUSE(field, why)                                                               \
  { (field), OCT_FIELD_REFUSED, 0, 0, 0, (why) }

/* FALSE with a fault (400) whose param is `prefix` (may be "") and the field. */
gboolean oct_fields_read(const json_t *object, const char *prefix, const oct_field_table *tables,
                         gsize n_tables, oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;

#endif
