#include "tests/engine/model/files/maker.h"

#include <glib/gstdio.h>
#include <string.h>

maker *
maker_new(void) {
  maker *m = g_new0(maker, 1);
  m->bytes = g_byte_array_new();
  m->marks = g_array_new(FALSE, FALSE, sizeof(maker_mark));
  return m;
}

void
maker_free(maker *m) {
  for (guint i = 0; i < m->marks->len; i++)
    g_free(g_array_index(m->marks, maker_mark, i).name);
  g_array_free(m->marks, TRUE);
  g_byte_array_free(m->bytes, TRUE);
  g_free(m);
}

void
maker_raw(maker *m, const void *bytes, gsize size) {
  if (size > 0)
    g_byte_array_append(m->bytes, bytes, (guint)size);
}

static void
number(maker *m, const char *name, const void *value, guint width) {
  if (name != NULL) {
    maker_mark mark = {.name = g_strdup(name), .at = m->bytes->len, .width = width};
    g_array_append_val(m->marks, mark);
  }
  maker_raw(m, value, width);
}

void
maker_u32(maker *m, const char *name, guint32 value) {
  number(m, name, &value, sizeof value);
}

void
maker_u64(maker *m, const char *name, guint64 value) {
  number(m, name, &value, sizeof value);
}

void
maker_pad(maker *m, gsize alignment) {
  while (m->bytes->len % alignment != 0)
    maker_raw(m, "", 1);
}

/* --- GGUF ----------------------------------------------------------------------------------------
 */

void
maker_gguf(maker *m, guint32 version, guint64 n_tensors, guint64 n_keys) {
  maker_raw(m, "GGUF", 4);
  maker_u32(m, "version", version);
  maker_u64(m, "tensors", n_tensors);
  maker_u64(m, "keys", n_keys);
}

void
maker_text(maker *m, const char *name, const char *text) {
  maker_u64(m, name, strlen(text));
  maker_raw(m, text, strlen(text));
}

void
maker_key(maker *m, const char *key, guint32 kind) {
  g_autofree char *length = g_strdup_printf("key %s: length", key);
  g_autofree char *its_kind = g_strdup_printf("key %s: kind", key);
  maker_text(m, length, key);
  maker_u32(m, its_kind, kind);
}

void
maker_key_u32(maker *m, const char *key, guint32 value) {
  g_autofree char *name = g_strdup_printf("key %s: value", key);
  maker_key(m, key, 4);
  maker_u32(m, name, value);
}

void
maker_key_u64(maker *m, const char *key, guint64 value) {
  g_autofree char *name = g_strdup_printf("key %s: value", key);
  maker_key(m, key, 10);
  maker_u64(m, name, value);
}

void
maker_key_f32(maker *m, const char *key, float value) {
  maker_key(m, key, 6);
  maker_raw(m, &value, sizeof value);
}

void
maker_key_text(maker *m, const char *key, const char *text) {
  g_autofree char *name = g_strdup_printf("key %s: text length", key);
  maker_key(m, key, 8);
  maker_text(m, name, text);
}

void
maker_key_bool(maker *m, const char *key, gboolean value) {
  guint8 byte = (guint8)value;
  maker_key(m, key, 7);
  maker_raw(m, &byte, 1);
}

void
maker_key_array(maker *m, const char *key, guint32 element, guint64 count) {
  g_autofree char *its_kind = g_strdup_printf("key %s: element kind", key);
  g_autofree char *its_count = g_strdup_printf("key %s: count", key);
  maker_key(m, key, 9);
  maker_u32(m, its_kind, element);
  maker_u64(m, its_count, count);
}

void
maker_tensor(maker *m, const char *name, guint32 type, guint64 offset, const guint64 *sizes,
             guint n_sizes) {
  g_autofree char *length = g_strdup_printf("tensor %s: name length", name);
  g_autofree char *dims = g_strdup_printf("tensor %s: dimensions", name);
  g_autofree char *its_type = g_strdup_printf("tensor %s: type", name);
  g_autofree char *its_offset = g_strdup_printf("tensor %s: offset", name);
  maker_text(m, length, name);
  maker_u32(m, dims, n_sizes);
  for (guint i = 0; i < n_sizes; i++) {
    g_autofree char *size = g_strdup_printf("tensor %s: size %u", name, i);
    maker_u64(m, size, sizes[i]);
  }
  maker_u32(m, its_type, type);
  maker_u64(m, its_offset, offset);
}

/* --- safetensors ---------------------------------------------------------------------------------
 */

void
maker_safetensors(maker *m, const char *header, gsize n_data) {
  g_autofree guint8 *zeros = g_malloc0(MAX(n_data, 1));
  maker_u64(m, "header size", strlen(header));
  maker_raw(m, header, strlen(header));
  maker_raw(m, zeros, n_data);
}

/* --- use -----------------------------------------------------------------------------------------
 */

oct_checkpoint *
maker_open(const maker *m, void **copy, GError **error) {
  *copy = g_memdup2(m->bytes->data, m->bytes->len);
  return oct_checkpoint_open_bytes("test", *copy, m->bytes->len, error);
}

void
maker_refused(const maker *m, int code, const char *part) {
  g_autoptr(GError) error = NULL;
  g_autofree void *copy = NULL;
  g_assert_null(maker_open(m, &copy, &error));
  g_assert_error(error, OCT_FILES_ERROR, code);
  if (strstr(error->message, part) == NULL || !g_str_has_prefix(error->message, "test: "))
    g_error("'%s' does not contain '%s'", error->message, part);
}

guint64
maker_get(const maker *m, const maker_mark *mark) {
  guint64 value = 0;
  memcpy(&value, m->bytes->data + mark->at, mark->width);
  return value;
}

void
maker_set(maker *m, const maker_mark *mark, guint64 value) {
  memcpy(m->bytes->data + mark->at, &value, mark->width);
}

const maker_mark *
maker_find(const maker *m, const char *name) {
  for (guint i = 0; i < m->marks->len; i++)
    if (g_str_equal(g_array_index(m->marks, maker_mark, i).name, name))
      return &g_array_index(m->marks, maker_mark, i);
  g_error("no number is called '%s'", name);
}

/* --- folders -------------------------------------------------------------------------------------
 */

char *
scratch_new(void) {
  g_autoptr(GError) error = NULL;
  char *folder = g_dir_make_tmp("octet-files-XXXXXX", &error);
  g_assert_no_error(error);
  return folder;
}

void
scratch_remove(char *folder) {
  g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
  for (const char *name; (name = g_dir_read_name(dir)) != NULL;) {
    g_autofree char *path = g_build_filename(folder, name, NULL);
    g_assert_cmpint(g_unlink(path), ==, 0);
  }
  g_assert_cmpint(g_rmdir(folder), ==, 0);
  g_free(folder);
}

void
scratch_write(const char *folder, const char *name, const void *bytes, gssize size) {
  g_autoptr(GError) error = NULL;
  g_autofree char *path = g_build_filename(folder, name, NULL);
  g_file_set_contents(path, bytes, size, &error);
  g_assert_no_error(error);
}
