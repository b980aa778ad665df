/* Reading the fields of a JSON object, each with its type and range checked.
 *
 * An oct_fields is one object of a document together with the place where the first error goes.
 * Once an error is set every further read returns its fallback or zero at once, so that a parser
 * reads straight through its fields and looks at the error once, at the end. Every message names
 * the document, the field with its path, the value found and what is allowed.
 *
 * Used on one thread, during loading only. Private to engine/model.
 */
#ifndef OCT_MODEL_FIELDS_H
#define OCT_MODEL_FIELDS_H

#include <glib.h>
#include <jansson.h>

/* Limits of a document. Real configs have some 5 levels and, with long lists of modules, 100 KiB.
 */
#define OCT_FIELDS_BYTES_MAX (1024 * 1024)
#define OCT_FIELDS_DEPTH_MAX 64

typedef struct oct_fields {
  const char *label;    /* borrowed: the document's name in messages */
  char path[128];       /* "" or the object's own path with a dot, e.g. "text_config." */
  const json_t *object; /* borrowed */
  GError **error;       /* never NULL; shared by an object and its children */
} oct_fields;

/* Life cycle.
 * Parses `size` bytes as one JSON object: at most OCT_FIELDS_BYTES_MAX bytes and
 * OCT_FIELDS_DEPTH_MAX levels, UTF-8, no key twice. Returns an owned value (json_decref()) or NULL
 * with *error, which says where; `error` must not be NULL. */
json_t *oct_fields_parse(const char *label, const char *text, gsize size,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Starts reading `object`, borrowed as long as `fields` is used. */
void oct_fields_init(oct_fields *fields, const char *label, const json_t *object, GError **error);

/* Use.
 * TRUE once an error is set. */
gboolean oct_fields_failed(const oct_fields *fields);
/* TRUE when the field is there and not null. */
gboolean oct_fields_has(const oct_fields *fields, const char *name);
/* Integers. The first form requires the field; the second gives `fallback` when it is absent or
 * null. */
guint32 oct_fields_u32(oct_fields *fields, const char *name, guint32 min, guint32 max);
guint32 oct_fields_u32_or(oct_fields *fields, const char *name, guint32 min, guint32 max,
                          guint32 fallback);
/* Numbers, integer or real. */
double oct_fields_real(oct_fields *fields, const char *name, double min, double max);
double oct_fields_real_or(oct_fields *fields, const char *name, double min, double max,
                          double fallback);
gboolean oct_fields_bool_or(oct_fields *fields, const char *name, gboolean fallback);
/* Borrowed from the document. */
const char *oct_fields_string(oct_fields *fields, const char *name);
const char *oct_fields_string_or(oct_fields *fields, const char *name, const char *fallback);
/* An array of at most `max` elements, borrowed; NULL when absent or null (and, for the first form,
 * an error). */
const json_t *oct_fields_array(oct_fields *fields, const char *name, gsize max);
const json_t *oct_fields_array_or(oct_fields *fields, const char *name, gsize max);
/* An integer element of an array field. */
guint32 oct_fields_element_u32(oct_fields *fields, const char *name, const json_t *array,
                               gsize position, guint32 min, guint32 max);
/* A string element of an array field; "" after an error. */
const char *oct_fields_element_string(oct_fields *fields, const char *name, const json_t *array,
                                      gsize position);
/* Starts reading a nested object. The first form requires it; both return FALSE when there is none.
 */
gboolean oct_fields_object(oct_fields *fields, const char *name, oct_fields *child);
gboolean oct_fields_object_or(oct_fields *fields, const char *name, oct_fields *child);
/* Sets the error (unless one is set) to "LABEL: field PATH …", with the field's value when it is
 * there: "field a.b is 5, <rest>", or "field a.b is missing, <rest>". */
void oct_fields_fail(oct_fields *fields, const char *name, int code, const char *format, ...)
    G_GNUC_PRINTF(4, 5);

#endif
