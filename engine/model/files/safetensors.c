/* One safetensors file:
 *
 *   u64 n   n bytes of JSON, padded with spaces   data
 *
 *   {"__metadata__": {"key": "text"…},
 *    "name": {"dtype": "BF16", "shape": [64, 128], "data_offsets": [begin, end]}…}
 *
 * Offsets count from the start of the data. As the format's own library asks, the tensors fill the
 * data exactly: no gap, no overlap, nothing behind the last. */
#include <string.h>

#include "engine/model/files/internal.h"
#include "engine/model/files/scan.h"

#define FIELD_TEXT_MAX 32 /* longest dtype or field name that can be right */

/* A tensor's entry while its fields, which come in any order, are read. */
typedef struct entry {
  oct_file_tensor tensor;
  guint64 begin, end;
  gboolean has_dtype, has_shape, has_offsets;
} entry;

/* A string that is compared with known ones, NUL-terminated. */
static gboolean
short_string(oct_scan *scan, char out[FIELD_TEXT_MAX + 1]) {
  gsize size;
  if (!oct_scan_string(scan, out, FIELD_TEXT_MAX, &size))
    return FALSE;
  out[size] = '\0';
  return TRUE;
}

static gboolean
read_shape(oct_scan *scan, entry *e) {
  gboolean more = TRUE;
  if (!oct_scan_char(scan, '['))
    return FALSE;
  if (oct_scan_next_is(scan, ']'))
    return oct_scan_char(scan, ']');
  while (more) {
    if (e->tensor.n_dims == OCT_FILE_DIMS_MAX)
      return oct_scan_fail(scan, OCT_FILES_ERROR_LIMIT,
                           "tensor %s: a shape of more than %d dimensions", e->tensor.name,
                           OCT_FILE_DIMS_MAX);
    if (!oct_scan_u64(scan, &e->tensor.shape[e->tensor.n_dims++]) ||
        !oct_scan_more(scan, ']', &more))
      return FALSE;
  }
  return TRUE;
}

static gboolean
read_dtype(oct_scan *scan, entry *e) {
  char name[FIELD_TEXT_MAX + 1];
  if (!short_string(scan, name))
    return FALSE;
  return oct_stored_from_safetensors(name, &e->tensor.type) ||
         oct_scan_fail(scan, OCT_FILES_ERROR_UNSUPPORTED,
                       "tensor %s: dtype \"%s\" is not one that Octet reads", e->tensor.name, name);
}

static gboolean
read_field(oct_scan *scan, entry *e) {
  char field[FIELD_TEXT_MAX + 1];
  gboolean *seen;
  if (!short_string(scan, field) || !oct_scan_char(scan, ':'))
    return FALSE;
  if (g_str_equal(field, "dtype"))
    seen = &e->has_dtype;
  else if (g_str_equal(field, "shape"))
    seen = &e->has_shape;
  else if (g_str_equal(field, "data_offsets"))
    seen = &e->has_offsets;
  else
    return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "tensor %s: an unknown field '%s'",
                         e->tensor.name, field);
  if (*seen)
    return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "tensor %s: %s is there twice",
                         e->tensor.name, field);
  *seen = TRUE;
  if (seen == &e->has_dtype)
    return read_dtype(scan, e);
  if (seen == &e->has_shape)
    return read_shape(scan, e);
  return oct_scan_char(scan, '[') && oct_scan_u64(scan, &e->begin) && oct_scan_char(scan, ',') &&
         oct_scan_u64(scan, &e->end) && oct_scan_char(scan, ']');
}

static gboolean
read_entry(oct_checkpoint *checkpoint, oct_scan *scan, entry *e) {
  const oct_file *file = &checkpoint->files[checkpoint->n_files - 1];
  gboolean more = TRUE;
  if (!oct_scan_char(scan, '{'))
    return FALSE;
  while (more)
    if (!read_field(scan, e) || !oct_scan_more(scan, '}', &more))
      return FALSE;
  if (!e->has_dtype || !e->has_shape || !e->has_offsets)
    return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "tensor %s: it has no %s", e->tensor.name,
                         !e->has_dtype   ? "dtype"
                         : !e->has_shape ? "shape"
                                         : "data_offsets");
  if (e->begin > e->end)
    return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT,
                         "tensor %s: data_offsets %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT
                         " run backwards",
                         e->tensor.name, e->begin, e->end);
  if (!oct_checkpoint_add_tensor(checkpoint, &e->tensor, e->begin, scan->error))
    return FALSE;
  guint64 bytes = checkpoint->tensors[checkpoint->n_tensors - 1].bytes;
  return e->end - e->begin == bytes ||
         oct_file_fail(file, OCT_FILES_ERROR_FORMAT, scan->error,
                       "tensor %s: data_offsets %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT
                       " for a shape that takes %" G_GUINT64_FORMAT " bytes",
                       e->tensor.name, e->begin, e->end, bytes);
}

/* The string that comes next, kept with the checkpoint. */
static gboolean
keep_string(oct_checkpoint *checkpoint, oct_scan *scan, oct_text *text) {
  gsize raw;
  if (!oct_scan_string_size(scan, &raw))
    return FALSE;
  char *memory = oct_checkpoint_keep(checkpoint, raw + 1, scan->error);
  if (memory == NULL || !oct_scan_string(scan, memory, raw, &text->size))
    return FALSE;
  memory[text->size] = '\0';
  text->bytes = memory;
  return TRUE;
}

/* __metadata__: of shards, the first one's key counts. */
static gboolean
read_metadata(oct_checkpoint *checkpoint, oct_scan *scan) {
  gboolean more = TRUE;
  if (!oct_scan_char(scan, '{'))
    return FALSE;
  if (oct_scan_next_is(scan, '}'))
    return oct_scan_char(scan, '}');
  while (more) {
    oct_meta meta = {.kind = OCT_META_TEXT};
    oct_text key;
    if (!keep_string(checkpoint, scan, &key))
      return FALSE;
    if (key.size > OCT_FILE_KEY_MAX)
      return oct_scan_fail(scan, OCT_FILES_ERROR_LIMIT, "a metadata key of more than %d bytes",
                           OCT_FILE_KEY_MAX);
    meta.key = key.bytes;
    if (!oct_scan_char(scan, ':') || !keep_string(checkpoint, scan, &meta.text) ||
        (checkpoint->n_files == 1 && !oct_checkpoint_add_meta(checkpoint, &meta, scan->error)) ||
        !oct_scan_more(scan, '}', &more))
      return FALSE;
  }
  return TRUE;
}

static gboolean
read_header(oct_checkpoint *checkpoint, oct_scan *scan) {
  const oct_file *file = &checkpoint->files[checkpoint->n_files - 1];
  gboolean more = TRUE, has_metadata = FALSE;
  char name[OCT_FILE_NAME_MAX];
  if (!oct_scan_char(scan, '{'))
    return FALSE;
  if (oct_scan_next_is(scan, '}'))
    return oct_scan_char(scan, '}') && oct_scan_end(scan);
  while (more) {
    entry e = {0};
    oct_text text = {.bytes = name};
    if (!oct_scan_string(scan, name, sizeof name, &text.size) || !oct_scan_char(scan, ':'))
      return FALSE;
    if (text.size == strlen("__metadata__") && memcmp(name, "__metadata__", text.size) == 0) {
      if (has_metadata)
        return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "__metadata__ is there twice");
      has_metadata = TRUE;
      if (!read_metadata(checkpoint, scan))
        return FALSE;
    } else {
      e.tensor.name = oct_checkpoint_name(checkpoint, file, "tensor name", text, OCT_FILE_NAME_MAX,
                                          scan->error);
      if (e.tensor.name == NULL || !read_entry(checkpoint, scan, &e))
        return FALSE;
    }
    if (!oct_scan_more(scan, '}', &more))
      return FALSE;
  }
  return oct_scan_end(scan);
}

gboolean
oct_safetensors_read(oct_checkpoint *checkpoint, GError **error) {
  oct_file *file = &checkpoint->files[checkpoint->n_files - 1];
  guint64 header_size;
  if (file->size < sizeof header_size)
    return oct_file_fail(file, OCT_FILES_ERROR_FORMAT, error,
                         "%" G_GSIZE_FORMAT " bytes: too short for a safetensors or GGUF file",
                         file->size);
  memcpy(&header_size, file->bytes, sizeof header_size);
  if (header_size > OCT_FILE_HEADER_MAX)
    return oct_file_fail(file, OCT_FILES_ERROR_LIMIT, error,
                         "a header of %" G_GUINT64_FORMAT " bytes, at most %u are allowed (is this "
                         "a safetensors or GGUF file?)",
                         header_size, OCT_FILE_HEADER_MAX);
  if (header_size > file->size - sizeof header_size)
    return oct_file_fail(file, OCT_FILES_ERROR_FORMAT, error,
                         "a header of %" G_GUINT64_FORMAT " bytes in a file of %" G_GSIZE_FORMAT,
                         header_size, file->size);
  file->data_start = sizeof header_size + header_size;
  GError *first = NULL;
  oct_scan scan = {.label = file->path,
                   .text = (const char *)file->bytes + sizeof header_size,
                   .size = header_size,
                   .error = &first};
  guint before = checkpoint->n_tensors;
  if (!read_header(checkpoint, &scan)) {
    g_propagate_error(error, first);
    return FALSE;
  }
  return oct_checkpoint_check_ranges(checkpoint, checkpoint->n_tensors - before, TRUE, error);
}
