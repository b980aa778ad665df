/* A checkpoint's metadata: finding a key, and reading it with its kind and range checked. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/files/internal.h"

guint
oct_checkpoint_n_meta(const oct_checkpoint *checkpoint) {
  return checkpoint->n_meta;
}

const oct_meta *
oct_checkpoint_meta_at(const oct_checkpoint *checkpoint, guint position) {
  oct_assert(position < checkpoint->n_meta);
  return &checkpoint->meta[position];
}

static int
by_key(const void *a, const void *b) {
  return strcmp(((const oct_meta *)a)->key, ((const oct_meta *)b)->key);
}

const oct_meta *
oct_checkpoint_meta(const oct_checkpoint *checkpoint, const char *key) {
  const oct_meta wanted = {.key = key};
  if (checkpoint->n_meta == 0)
    return NULL;
  return bsearch(&wanted, checkpoint->meta, checkpoint->n_meta, sizeof wanted, by_key);
}

const char *
oct_meta_kind_name(oct_meta_kind kind) {
  static const char *const names[] = {
      [OCT_META_UINT] = "an integer", [OCT_META_INT] = "an integer", [OCT_META_REAL] = "a number",
      [OCT_META_BOOL] = "a boolean",  [OCT_META_TEXT] = "text",      [OCT_META_ARRAY] = "an array",
  };
  oct_assert((guint)kind < G_N_ELEMENTS(names));
  return names[kind];
}

static gboolean fail(const oct_checkpoint *checkpoint, const char *key, GError **error,
                     const char *format, ...) G_GNUC_PRINTF(4, 5);

static gboolean
fail(const oct_checkpoint *checkpoint, const char *key, GError **error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *message = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_KEY, "%s: metadata key %s %s",
              checkpoint->path, key, message);
  return FALSE;
}

/* The key, which must be there. */
static const oct_meta *
required(const oct_checkpoint *checkpoint, const char *key, const char *wanted, GError **error) {
  const oct_meta *meta = oct_checkpoint_meta(checkpoint, key);
  if (meta == NULL)
    fail(checkpoint, key, error, "is missing: wanted is %s", wanted);
  return meta;
}

static gboolean
wrong_kind(const oct_checkpoint *checkpoint, const oct_meta *meta, const char *wanted,
           GError **error) {
  return fail(checkpoint, meta->key, error, "is %s: wanted is %s", oct_meta_kind_name(meta->kind),
              wanted);
}

gboolean
oct_checkpoint_uint(const oct_checkpoint *checkpoint, const char *key, guint64 min, guint64 max,
                    guint64 *value, GError **error) {
  const oct_meta *meta = required(checkpoint, key, "an integer", error);
  if (meta == NULL)
    return FALSE;
  if (meta->kind != OCT_META_UINT && meta->kind != OCT_META_INT)
    return wrong_kind(checkpoint, meta, "an integer", error);
  if (meta->kind == OCT_META_INT && meta->i64 < 0)
    return fail(checkpoint, key, error,
                "is %" G_GINT64_FORMAT ": allowed are %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT,
                meta->i64, min, max);
  guint64 found = meta->kind == OCT_META_INT ? (guint64)meta->i64 : meta->u64;
  if (found < min || found > max)
    return fail(checkpoint, key, error,
                "is %" G_GUINT64_FORMAT ": allowed are %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT,
                found, min, max);
  *value = found;
  return TRUE;
}

gboolean
oct_checkpoint_real(const oct_checkpoint *checkpoint, const char *key, double min, double max,
                    double *value, GError **error) {
  const oct_meta *meta = required(checkpoint, key, "a number", error);
  if (meta == NULL)
    return FALSE;
  double found;
  if (meta->kind == OCT_META_REAL)
    found = meta->real;
  else if (meta->kind == OCT_META_UINT)
    found = (double)meta->u64;
  else if (meta->kind == OCT_META_INT)
    found = (double)meta->i64;
  else
    return wrong_kind(checkpoint, meta, "a number", error);
  if (!(found >= min && found <= max)) /* also refuses NaN */
    return fail(checkpoint, key, error, "is %g: allowed are %g to %g", found, min, max);
  *value = found;
  return TRUE;
}

gboolean
oct_checkpoint_boolean(const oct_checkpoint *checkpoint, const char *key, gboolean *value,
                       GError **error) {
  const oct_meta *meta = required(checkpoint, key, "a boolean", error);
  if (meta == NULL)
    return FALSE;
  if (meta->kind != OCT_META_BOOL)
    return wrong_kind(checkpoint, meta, "a boolean", error);
  *value = meta->boolean;
  return TRUE;
}

gboolean
oct_checkpoint_text(const oct_checkpoint *checkpoint, const char *key, oct_text *value,
                    GError **error) {
  const oct_meta *meta = required(checkpoint, key, "text", error);
  if (meta == NULL)
    return FALSE;
  if (meta->kind != OCT_META_TEXT)
    return wrong_kind(checkpoint, meta, "text", error);
  *value = meta->text;
  return TRUE;
}

static gboolean
is_integer(oct_meta_kind kind) {
  return kind == OCT_META_UINT || kind == OCT_META_INT;
}

const oct_meta *
oct_checkpoint_array(const oct_checkpoint *checkpoint, const char *key, oct_meta_kind element,
                     guint64 max, GError **error) {
  const oct_meta *meta = required(checkpoint, key, "an array", error);
  if (meta == NULL)
    return NULL;
  if (meta->kind != OCT_META_ARRAY) {
    wrong_kind(checkpoint, meta, "an array", error);
    return NULL;
  }
  oct_meta_kind found = meta->array.element;
  if (found != element && !(is_integer(found) && is_integer(element))) {
    fail(checkpoint, key, error, "is an array whose elements are %s each: wanted is %s",
         oct_meta_kind_name(found), oct_meta_kind_name(element));
    return NULL;
  }
  if (meta->array.count > max) {
    fail(checkpoint, key, error,
         "has %" G_GUINT64_FORMAT " elements, at most %" G_GUINT64_FORMAT " are allowed",
         meta->array.count, max);
    return NULL;
  }
  return meta;
}

/* --- elements ------------------------------------------------------------------------------------
 */

/* Where an element of a plain array is. */
static const guint8 *
item_at(const oct_meta *array, guint64 position) {
  oct_assert(array->kind == OCT_META_ARRAY && position < array->array.count);
  return array->array.items + position * array->array.width;
}

oct_text
oct_meta_item_text(const oct_meta *array, guint64 position) {
  oct_assert(array->kind == OCT_META_ARRAY && array->array.element == OCT_META_TEXT &&
             position < array->array.count);
  const guint8 *start = array->array.items + array->array.starts[position];
  guint64 size;
  memcpy(&size, start, sizeof size);
  return (oct_text){(const char *)start + sizeof size, size};
}

static guint64
load_unsigned(const guint8 *bytes, guint width) {
  guint64 value = 0;
  memcpy(&value, bytes, width); /* little-endian */
  return value;
}

gint64
oct_meta_item_int(const oct_meta *array, guint64 position) {
  const guint8 *bytes = item_at(array, position);
  guint width = array->array.width;
  guint64 value = load_unsigned(bytes, width);
  if (array->array.element == OCT_META_UINT)
    return value > G_MAXINT64 ? G_MAXINT64 : (gint64)value;
  oct_assert(array->array.element == OCT_META_INT);
  guint shift = 64 - 8 * width;
  return (gint64)(value << shift) >> shift;
}

double
oct_meta_item_real(const oct_meta *array, guint64 position) {
  if (array->array.element != OCT_META_REAL)
    return (double)oct_meta_item_int(array, position);
  const guint8 *bytes = item_at(array, position);
  float narrow;
  double wide;
  if (array->array.width == sizeof wide) {
    memcpy(&wide, bytes, sizeof wide);
    return wide;
  }
  memcpy(&narrow, bytes, sizeof narrow);
  return (double)narrow;
}

gboolean
oct_meta_item_bool(const oct_meta *array, guint64 position) {
  oct_assert(array->array.element == OCT_META_BOOL);
  return *item_at(array, position) != 0;
}
