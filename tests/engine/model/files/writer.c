#include "tests/engine/model/files/writer.h"

#include <string.h>

typedef struct entry {
  char *name;
  oct_stored_type type;
  gint64 shape[OCT_FILE_DIMS_MAX + 1];
  guint8 *data;
  gsize bytes;
} entry;

struct writer {
  GPtrArray *entries;
};

static void
entry_free(gpointer data) {
  entry *e = data;
  g_free(e->name);
  g_free(e->data);
  g_free(e);
}

writer *
writer_new(void) {
  writer *w = g_new0(writer, 1);
  w->entries = g_ptr_array_new_with_free_func(entry_free);
  return w;
}

void
writer_free(writer *w) {
  g_ptr_array_free(w->entries, TRUE);
  g_free(w);
}

void
writer_add_shape(writer *w, const char *name, oct_stored_type type, const void *data,
                 const gint64 *shape) {
  entry *e = g_new0(entry, 1);
  guint64 elements = 1, bytes = 0;
  guint n = 0;
  e->name = g_strdup(name);
  e->type = type;
  for (; shape[n] >= 0; n++) {
    g_assert_cmpuint(n, <, OCT_FILE_DIMS_MAX);
    e->shape[n] = shape[n];
    elements *= (guint64)shape[n];
  }
  e->shape[n] = -1;
  g_assert_true(oct_stored_bytes(type, elements, &bytes));
  e->bytes = bytes;
  e->data = g_malloc0(MAX(bytes, 1));
  if (data != NULL && bytes > 0)
    memcpy(e->data, data, bytes);
  g_ptr_array_add(w->entries, e);
}

void
writer_add(writer *w, const char *name, oct_stored_type type, const void *data, ...) {
  gint64 shape[OCT_FILE_DIMS_MAX + 1];
  guint n = 0;
  va_list sizes;
  va_start(sizes, data);
  do
    shape[n] = va_arg(sizes, int);
  while (shape[n++] >= 0);
  va_end(sizes);
  writer_add_shape(w, name, type, data, shape);
}

static guint
place_of(const writer *w, const char *name) {
  for (guint i = 0; i < w->entries->len; i++)
    if (g_str_equal(((entry *)g_ptr_array_index(w->entries, i))->name, name))
      return i;
  g_error("no tensor is called '%s'", name);
}

void
writer_drop(writer *w, const char *name) {
  g_ptr_array_remove_index(w->entries, place_of(w, name));
}

void
writer_rename(writer *w, const char *name, const char *other) {
  entry *e = g_ptr_array_index(w->entries, place_of(w, name));
  g_free(e->name);
  e->name = g_strdup(other);
}

guint
writer_n(const writer *w) {
  return w->entries->len;
}

const char *
writer_name(const writer *w, guint position) {
  return ((entry *)g_ptr_array_index(w->entries, position))->name;
}

guint8 *
writer_bytes(const writer *w, gsize *size) {
  g_autoptr(GString) header = g_string_new("{");
  g_autoptr(GByteArray) data = g_byte_array_new();
  for (guint alignment = 8; alignment > 0; alignment /= 2)
    for (guint i = 0; i < w->entries->len; i++) {
      const entry *e = g_ptr_array_index(w->entries, i);
      const oct_stored_info *info = oct_stored_get(e->type);
      if (info->alignment != alignment)
        continue;
      g_string_append_printf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                             header->len > 1 ? "," : "", e->name, info->safetensors);
      for (guint k = 0; e->shape[k] >= 0; k++)
        g_string_append_printf(header, "%s%" G_GINT64_FORMAT, k > 0 ? "," : "", e->shape[k]);
      g_string_append_printf(header, "],\"data_offsets\":[%u,%" G_GSIZE_FORMAT "]}", data->len,
                             data->len + e->bytes);
      g_byte_array_append(data, e->data, (guint)e->bytes);
    }
  g_string_append_c(header, '}');
  while (header->len % 8 != 0)
    g_string_append_c(header, ' ');
  guint64 length = header->len;
  guint8 *bytes = g_malloc(8 + header->len + data->len);
  memcpy(bytes, &length, 8);
  memcpy(bytes + 8, header->str, header->len);
  if (data->len > 0)
    memcpy(bytes + 8 + header->len, data->data, data->len);
  *size = 8 + header->len + data->len;
  return bytes;
}

oct_checkpoint *
writer_open(const writer *w, guint8 **memory) {
  g_autoptr(GError) error = NULL;
  gsize size;
  *memory = writer_bytes(w, &size);
  oct_checkpoint *checkpoint = oct_checkpoint_open_bytes("test", *memory, size, &error);
  g_assert_no_error(error);
  return checkpoint;
}

static void
add_part(writer *w, const char *module, const char *suffix, oct_stored_type type, const void *data,
         guint64 rows, guint64 columns) {
  g_autofree char *name = g_strconcat(module, suffix, NULL);
  const gint64 shape[] = {(gint64)rows, columns > 1 ? (gint64)columns : -1, -1};
  writer_add_shape(w, name, type, data, shape);
}

void
writer_add_weight(writer *w, const char *module, const oct_weight *weight) {
  guint64 rows = weight->rows, columns = weight->columns;
  g_assert_nonnull(weight->codes);
  switch (weight->layout) {
  case OCT_LAYOUT_ROWS:
    add_part(w, module, ".weight", weight->type, weight->codes, rows, columns);
    return;
  case OCT_LAYOUT_FP8:
    add_part(w, module, ".weight", weight->type, weight->codes, rows, columns);
    add_part(w, module, ".weight_scale", weight->scale_type, weight->scales, 1, 1);
    return;
  case OCT_LAYOUT_FP8_BLOCK:
    add_part(w, module, ".weight", weight->type, weight->codes, rows, columns);
    add_part(w, module, ".weight_scale_inv", weight->scale_type, weight->scales, (rows + 127) / 128,
             (columns + 127) / 128);
    return;
  case OCT_LAYOUT_MXFP4:
    add_part(w, module, ".weight_packed", weight->type, weight->codes, rows, columns / 2);
    add_part(w, module, ".weight_scale", weight->scale_type, weight->scales, rows,
             (columns + 31) / 32);
    return;
  case OCT_LAYOUT_NVFP4:
    add_part(w, module, ".weight", weight->type, weight->codes, rows, columns / 2);
    add_part(w, module, ".weight_scale", weight->scale_type, weight->scales, rows,
             (columns + 15) / 16);
    add_part(w, module, ".weight_scale_2", OCT_STORED_F32, &weight->factor, 1, 1);
    return;
  case OCT_LAYOUT_AWQ:
    add_part(w, module, ".qweight", weight->type, weight->codes, columns, rows / 8);
    add_part(w, module, ".qzeros", OCT_STORED_I32, weight->zeros, columns / weight->group,
             rows / 8);
    add_part(w, module, ".scales", weight->scale_type, weight->scales, columns / weight->group,
             rows);
    return;
  case OCT_LAYOUT_COLUMNS:
  case OCT_LAYOUT_GPTQ:
  case OCT_LAYOUT_INT4_PACKED:
  case OCT_LAYOUT_COUNT:
    break;
  }
  g_assert_not_reached();
}
