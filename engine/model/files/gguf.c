/* One GGUF file, version 2 or 3, little-endian:
 *
 *   "GGUF"  u32 version  u64 tensors  u64 keys
 *   keys × { text key, u32 kind, value }                 text = u64 length, bytes
 *   tensors × { text name, u32 dims, u64 size[dims], u32 type, u64 offset }
 *   padding to general.alignment (32 when there is no such key), data
 *
 * Sizes list the innermost dimension first; offsets count from the start of the data and are
 * multiples of the alignment. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/files/internal.h"

#define ALIGNMENT_DEFAULT 32
#define ALIGNMENT_MIN     8 /* GGUF: a multiple of 8 */
#define DIMS_MAX          4 /* ggml's */

/* Value kinds, by GGUF's numbers. */
enum {
  KIND_UINT8,
  KIND_INT8,
  KIND_UINT16,
  KIND_INT16,
  KIND_UINT32,
  KIND_INT32,
  KIND_FLOAT32,
  KIND_BOOL,
  KIND_STRING,
  KIND_ARRAY,
  KIND_UINT64,
  KIND_INT64,
  KIND_FLOAT64,
  KIND_COUNT
};

static const struct {
  oct_meta_kind kind;
  guint8 width;
} kinds[KIND_COUNT] = {
    [KIND_UINT8] = {OCT_META_UINT, 1},   [KIND_INT8] = {OCT_META_INT, 1},
    [KIND_UINT16] = {OCT_META_UINT, 2},  [KIND_INT16] = {OCT_META_INT, 2},
    [KIND_UINT32] = {OCT_META_UINT, 4},  [KIND_INT32] = {OCT_META_INT, 4},
    [KIND_FLOAT32] = {OCT_META_REAL, 4}, [KIND_BOOL] = {OCT_META_BOOL, 1},
    [KIND_STRING] = {OCT_META_TEXT, 0},  [KIND_ARRAY] = {OCT_META_ARRAY, 0},
    [KIND_UINT64] = {OCT_META_UINT, 8},  [KIND_INT64] = {OCT_META_INT, 8},
    [KIND_FLOAT64] = {OCT_META_REAL, 8},
};

/* Where the reader is. `what` names what is being read, for messages. */
typedef struct cursor {
  oct_checkpoint *checkpoint;
  const oct_file *file;
  gsize at;
  const char *what;
  GError **error;
} cursor;

static gsize
left(const cursor *c) {
  return c->file->size - c->at;
}

static gboolean
too_short(cursor *c, const char *field, guint64 wanted) {
  return oct_file_fail(c->file, OCT_FILES_ERROR_FORMAT, c->error,
                       "%s: %s wants %" G_GUINT64_FORMAT " bytes at byte %" G_GSIZE_FORMAT
                       ", and the file has %" G_GSIZE_FORMAT " more",
                       c->what, field, wanted, c->at, left(c));
}

static gboolean
take(cursor *c, const char *field, void *out, gsize size) {
  if (size > left(c))
    return too_short(c, field, size);
  memcpy(out, c->file->bytes + c->at, size);
  c->at += size;
  return TRUE;
}

static gboolean
take_text(cursor *c, const char *field, oct_text *text) {
  guint64 size = 0;
  if (!take(c, field, &size, sizeof size))
    return FALSE;
  if (size > left(c))
    return too_short(c, field, size);
  *text = (oct_text){(const char *)c->file->bytes + c->at, size};
  c->at += size;
  return TRUE;
}

/* --- metadata ------------------------------------------------------------------------------------
 */

static gboolean
check_boolean(cursor *c, guint8 byte) {
  return byte <= 1 || oct_file_fail(c->file, OCT_FILES_ERROR_FORMAT, c->error,
                                    "%s: a boolean of %u: allowed are 0 and 1", c->what, byte);
}

static gboolean
take_scalar(cursor *c, guint32 kind, oct_meta *meta) {
  guint8 bytes[8] = {0};
  guint width = kinds[kind].width, shift = 64 - 8 * width;
  if (!take(c, "its value", bytes, width))
    return FALSE;
  guint64 raw;
  float narrow;
  memcpy(&raw, bytes, sizeof raw);
  memcpy(&narrow, bytes, sizeof narrow);
  switch (meta->kind) {
  case OCT_META_UINT:
    meta->u64 = raw;
    return TRUE;
  case OCT_META_INT:
    meta->i64 = (gint64)(raw << shift) >> shift;
    return TRUE;
  case OCT_META_REAL:
    meta->real = (double)narrow;
    if (width == sizeof meta->real)
      memcpy(&meta->real, bytes, sizeof meta->real);
    return TRUE;
  case OCT_META_BOOL:
    meta->boolean = bytes[0] != 0;
    return check_boolean(c, bytes[0]);
  case OCT_META_TEXT:
  case OCT_META_ARRAY:
    break;
  }
  oct_assert_failed(__FILE__, __LINE__, "a scalar kind");
}

/* Notes where each text of an array begins. The file can hold no more texts than it has room for
 * lengths, which is checked before memory is asked for. */
static gboolean
take_texts(cursor *c, guint64 count, oct_meta *meta) {
  gsize start = c->at;
  guint64 *starts;
  starts =
      (guint64 *)(void *)oct_checkpoint_keep(c->checkpoint, (count + 1) * sizeof *starts, c->error);
  if (starts == NULL)
    return FALSE;
  /* The checkpoint's memory is not aligned: the array begins at the next multiple of 8. */
  starts = (guint64 *)(((gsize)starts + 7) & ~(gsize)7);
  for (guint64 i = 0; i < count; i++) {
    oct_text text;
    starts[i] = c->at - start;
    if (!take_text(c, "a text of its array", &text))
      return FALSE;
  }
  meta->array.items = c->file->bytes + start;
  meta->array.starts = starts;
  return TRUE;
}

static gboolean
take_array(cursor *c, oct_meta *meta) {
  guint32 kind;
  guint64 count;
  if (!take(c, "its element kind", &kind, sizeof kind) ||
      !take(c, "its length", &count, sizeof count))
    return FALSE;
  if (kind >= KIND_COUNT || kind == KIND_ARRAY)
    return oct_file_fail(c->file, OCT_FILES_ERROR_UNSUPPORTED, c->error,
                         "%s: an array of elements of kind %u: allowed are 0 to %d without %d",
                         c->what, kind, KIND_COUNT - 1, KIND_ARRAY);
  guint width = kind == KIND_STRING ? (guint)sizeof(guint64) : kinds[kind].width;
  if (count > left(c) / width)
    return oct_file_fail(c->file, OCT_FILES_ERROR_FORMAT, c->error,
                         "%s: an array of %" G_GUINT64_FORMAT
                         " elements of at least %u bytes, and the file has %" G_GSIZE_FORMAT
                         " bytes more",
                         c->what, count, width, left(c));
  meta->array.element = kinds[kind].kind;
  meta->array.count = count;
  meta->array.width = kinds[kind].width;
  if (kind == KIND_STRING)
    return take_texts(c, count, meta);
  meta->array.items = c->file->bytes + c->at;
  c->at += count * width;
  for (guint64 i = 0; kind == KIND_BOOL && i < count; i++)
    if (!check_boolean(c, meta->array.items[i]))
      return FALSE;
  return TRUE;
}

static gboolean
take_key(cursor *c) {
  oct_meta meta = {0};
  oct_text key;
  guint32 kind;
  c->what = "a metadata key";
  if (!take_text(c, "its text", &key))
    return FALSE;
  meta.key =
      oct_checkpoint_name(c->checkpoint, c->file, "metadata key", key, OCT_FILE_KEY_MAX, c->error);
  if (meta.key == NULL)
    return FALSE;
  c->what = meta.key;
  if (!take(c, "its kind", &kind, sizeof kind))
    return FALSE;
  if (kind >= KIND_COUNT)
    return oct_file_fail(c->file, OCT_FILES_ERROR_FORMAT, c->error,
                         "%s: a value of kind %u: allowed are 0 to %d", c->what, kind,
                         KIND_COUNT - 1);
  meta.kind = kinds[kind].kind;
  gboolean ok = meta.kind == OCT_META_TEXT    ? take_text(c, "its value", &meta.text)
                : meta.kind == OCT_META_ARRAY ? take_array(c, &meta)
                                              : take_scalar(c, kind, &meta);
  return ok && oct_checkpoint_add_meta(c->checkpoint, &meta, c->error);
}

/* A key of this file by name, among keys that are not sorted yet. */
static const oct_meta *
find_key(const cursor *c, const char *name) {
  for (guint i = 0; i < c->checkpoint->n_meta; i++)
    if (g_str_equal(c->checkpoint->meta[i].key, name))
      return &c->checkpoint->meta[i];
  return NULL;
}

static gboolean
find_alignment(const cursor *c, guint64 *alignment) {
  const oct_meta *meta = find_key(c, "general.alignment");
  *alignment = ALIGNMENT_DEFAULT;
  if (meta == NULL)
    return TRUE;
  if (meta->kind != OCT_META_UINT || meta->u64 < ALIGNMENT_MIN ||
      meta->u64 > OCT_FILE_ALIGNMENT_MAX || (meta->u64 & (meta->u64 - 1)) != 0)
    return oct_file_fail(
        c->file, OCT_FILES_ERROR_LIMIT, c->error,
        "general.alignment is %s %" G_GUINT64_FORMAT ": allowed are powers of two from %d to %d",
        oct_meta_kind_name(meta->kind), meta->kind == OCT_META_UINT ? meta->u64 : 0, ALIGNMENT_MIN,
        OCT_FILE_ALIGNMENT_MAX);
  *alignment = meta->u64;
  return TRUE;
}

/* A model in several files says so in each of them. */
static gboolean
check_split(const cursor *c) {
  const oct_meta *meta = find_key(c, "split.count");
  return meta == NULL || meta->kind != OCT_META_UINT || meta->u64 <= 1 ||
         oct_file_fail(c->file, OCT_FILES_ERROR_UNSUPPORTED, c->error,
                       "one of %" G_GUINT64_FORMAT
                       " files of a model: merge them, several GGUF files are not read",
                       meta->u64);
}

/* --- tensors -------------------------------------------------------------------------------------
 * Their descriptions are read twice: first for the place where they end, which the offsets count
 * from, and then to add them. */

static gboolean
take_dims(cursor *c, oct_file_tensor *tensor) {
  guint32 n;
  if (!take(c, "its number of dimensions", &n, sizeof n))
    return FALSE;
  if (n < 1 || n > DIMS_MAX)
    return oct_file_fail(c->file, OCT_FILES_ERROR_LIMIT, c->error,
                         "tensor %s: %u dimensions: allowed are 1 to %d", c->what, n, DIMS_MAX);
  tensor->n_dims = (guint16)n;
  for (guint32 i = 0; i < n; i++)
    if (!take(c, "a dimension", &tensor->shape[n - 1 - i], sizeof tensor->shape[0]))
      return FALSE;
  return TRUE;
}

static gboolean
take_tensor(cursor *c, oct_file_tensor *tensor, guint64 *offset) {
  guint32 type;
  if (!take_dims(c, tensor) || !take(c, "its type", &type, sizeof type) ||
      !take(c, "its offset", offset, sizeof *offset))
    return FALSE;
  if (oct_stored_from_gguf(type, &tensor->type))
    return TRUE;
  const char *name = oct_stored_gguf_name(type);
  return oct_file_fail(c->file, OCT_FILES_ERROR_UNSUPPORTED, c->error,
                       "tensor %s: type %u%s%s is not one that Octet reads", c->what, type,
                       name != NULL ? ", " : "", name != NULL ? name : "");
}

static gboolean
skip_tensors(cursor *c, guint64 n) {
  for (guint64 i = 0; i < n; i++) {
    oct_file_tensor tensor = {0};
    oct_text name;
    guint64 offset;
    c->what = "a tensor";
    if (!take_text(c, "its name", &name))
      return FALSE;
    g_autofree char *shown = g_utf8_make_valid(name.bytes, (gssize)MIN(name.size, 80));
    c->what = shown;
    if (!take_tensor(c, &tensor, &offset))
      return FALSE;
  }
  return TRUE;
}

static gboolean
add_tensors(cursor *c, guint64 n, guint64 alignment) {
  for (guint64 i = 0; i < n; i++) {
    oct_file_tensor tensor = {0};
    oct_text name;
    guint64 offset;
    c->what = "a tensor";
    if (!take_text(c, "its name", &name))
      return FALSE;
    tensor.name = oct_checkpoint_name(c->checkpoint, c->file, "tensor name", name,
                                      OCT_FILE_NAME_MAX, c->error);
    if (tensor.name == NULL)
      return FALSE;
    c->what = tensor.name;
    if (!take_tensor(c, &tensor, &offset))
      return FALSE;
    if (offset % alignment != 0)
      return oct_file_fail(c->file, OCT_FILES_ERROR_FORMAT, c->error,
                           "tensor %s: offset %" G_GUINT64_FORMAT
                           " is not a multiple of the alignment %" G_GUINT64_FORMAT,
                           c->what, offset, alignment);
    if (!oct_checkpoint_add_tensor(c->checkpoint, &tensor, offset, c->error))
      return FALSE;
  }
  return TRUE;
}

/* The least that a key (length, one byte, kind, one byte) and a tensor (length, one byte, dims, one
 * size, type, offset) take. */
#define KEY_BYTES_MIN    14
#define TENSOR_BYTES_MIN 33

static gboolean
check_counts(cursor *c, guint64 n_tensors, guint64 n_keys) {
  const struct {
    const char *name;
    guint64 n, max, bytes;
  } counts[] = {
      {"tensors", n_tensors, OCT_FILE_TENSORS_MAX, TENSOR_BYTES_MIN},
      {"metadata keys", n_keys, OCT_FILE_KEYS_MAX, KEY_BYTES_MIN},
  };
  for (guint i = 0; i < G_N_ELEMENTS(counts); i++) {
    guint64 max = MIN(counts[i].max, left(c) / counts[i].bytes);
    if (counts[i].n > max)
      return oct_file_fail(c->file, OCT_FILES_ERROR_LIMIT, c->error,
                           "%" G_GUINT64_FORMAT " %s: at most %" G_GUINT64_FORMAT
                           " fit in this file",
                           counts[i].n, counts[i].name, max);
  }
  return TRUE;
}

gboolean
oct_gguf_read(oct_checkpoint *checkpoint, GError **error) {
  oct_file *file = &checkpoint->files[checkpoint->n_files - 1];
  cursor c = {checkpoint, file, 4, "the header", error};
  guint32 version;
  guint64 n_tensors, n_keys, alignment;
  if (!take(&c, "the version", &version, sizeof version))
    return FALSE;
  if (version != 2 && version != 3)
    return oct_file_fail(file, OCT_FILES_ERROR_UNSUPPORTED, error,
                         "GGUF version %u%s: versions 2 and 3 are read", version,
                         GUINT32_SWAP_LE_BE(version) <= 3 ? " (a big-endian file?)" : "");
  if (!take(&c, "the number of tensors", &n_tensors, sizeof n_tensors) ||
      !take(&c, "the number of keys", &n_keys, sizeof n_keys) ||
      !check_counts(&c, n_tensors, n_keys))
    return FALSE;
  for (guint64 i = 0; i < n_keys; i++)
    if (!take_key(&c))
      return FALSE;
  if (!check_split(&c) || !find_alignment(&c, &alignment))
    return FALSE;
  gsize tensors_at = c.at;
  if (!skip_tensors(&c, n_tensors))
    return FALSE;
  guint64 end = (c.at + alignment - 1) & ~(alignment - 1);
  file->data_start = MIN(end, file->size); /* without tensors a file may end before its padding */
  c.at = tensors_at;
  return add_tensors(&c, n_tensors, alignment) &&
         oct_checkpoint_check_ranges(checkpoint, (guint)n_tensors, FALSE, error);
}
