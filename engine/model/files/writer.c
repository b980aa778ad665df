/* Offsets are known before the first byte of a tensor is, because types and shapes are. Within a
 * file tensors stand by falling alignment, then by name: then none needs padding, and the format
 * allows no gap. */
#include "engine/model/files/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/assert.h"

typedef struct entry {
  char *name;
  oct_stored_type type;
  guint n_dims;
  guint64 shape[OCT_FILE_DIMS_MAX];
  guint64 bytes, begin, written; /* begin: in the data of its file */
  guint file;
} entry;

typedef struct output {
  char *name, *path, *temporary; /* final name and path; path until then */
  int fd;                        /* -1: closed */
  guint64 data_start, bytes;
} output;

struct oct_safetensors_writer {
  char *folder;
  guint64 shard_bytes, bytes;
  GArray *entries;   /* of entry */
  GHashTable *names; /* borrowed from entries: a set */
  GArray *files;     /* of output; empty until begin() */
};

static gboolean
fail_io(const char *path, const char *what, GError **error) {
  g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_IO, "%s: cannot be %s: %s", path, what,
              g_strerror(errno));
  return FALSE;
}

static entry *
entry_at(const oct_safetensors_writer *w, guint i) {
  oct_assert(i < w->entries->len);
  return &g_array_index(w->entries, entry, i);
}

static output *
file_at(const oct_safetensors_writer *w, guint i) {
  oct_assert(i < w->files->len);
  return &g_array_index(w->files, output, i);
}

/* --- life cycle ----------------------------------------------------------------------------------
 */

oct_safetensors_writer *
oct_safetensors_writer_new(const char *folder, guint64 shard_bytes) {
  oct_safetensors_writer *w = g_new0(oct_safetensors_writer, 1);
  w->folder = g_strdup(folder);
  w->shard_bytes = shard_bytes;
  w->entries = g_array_new(FALSE, FALSE, sizeof(entry));
  w->names = g_hash_table_new(g_str_hash, g_str_equal);
  w->files = g_array_new(FALSE, FALSE, sizeof(output));
  return w;
}

void
oct_safetensors_writer_free(oct_safetensors_writer *w) {
  if (w == NULL)
    return;
  for (guint i = 0; i < w->files->len; i++) {
    output *f = file_at(w, i);
    if (f->fd >= 0)
      (void)close(f->fd);
    if (f->temporary != NULL)
      (void)g_unlink(f->temporary);
    g_free(f->name);
    g_free(f->path);
    g_free(f->temporary);
  }
  g_hash_table_unref(w->names);
  for (guint i = 0; i < w->entries->len; i++)
    g_free(entry_at(w, i)->name);
  g_array_unref(w->entries);
  g_array_unref(w->files);
  g_free(w->folder);
  g_free(w);
}

/* --- names, types and shapes ---------------------------------------------------------------------
 */

static gboolean
check_name(const oct_safetensors_writer *w, const char *name, GError **error) {
  gsize size = strlen(name);
  const char *why = NULL;
  int code = OCT_FILES_ERROR_FORMAT;
  if (size == 0 || size > OCT_FILE_NAME_MAX || w->entries->len == OCT_FILE_TENSORS_MAX)
    code = OCT_FILES_ERROR_LIMIT;
  if (size == 0)
    why = "a name has at least one byte";
  else if (size > OCT_FILE_NAME_MAX)
    why = "the name is longer than " G_STRINGIFY(OCT_FILE_NAME_MAX) " bytes";
  else if (w->entries->len == OCT_FILE_TENSORS_MAX)
    why = "there are too many tensors before it";
  else if (!g_utf8_validate(name, (gssize)size, NULL))
    why = "the name is not UTF-8";
  else if (g_str_equal(name, "__metadata__") || g_hash_table_contains(w->names, name))
    why = "the name is taken";
  if (why == NULL)
    return TRUE;
  g_set_error(error, OCT_FILES_ERROR, code, "tensor %.100s: %s", name, why);
  return FALSE;
}

gboolean
oct_safetensors_writer_add(oct_safetensors_writer *w, const char *name, oct_stored_type type,
                           guint n_dims, const guint64 *shape, GError **error) {
  oct_assert(oct_stored_get(type)->safetensors != NULL && n_dims <= OCT_FILE_DIMS_MAX);
  oct_assert(w->files->len == 0);
  if (!check_name(w, name, error))
    return FALSE;
  entry e = {.type = type, .n_dims = n_dims};
  guint64 n = 1, all = 0;
  gboolean fits = TRUE;
  for (guint i = 0; i < n_dims; i++) {
    e.shape[i] = shape[i];
    fits = fits && g_uint64_checked_mul(&n, n, shape[i]);
  }
  fits = fits && oct_stored_bytes(type, n, &e.bytes) && e.bytes <= G_MAXINT64 &&
         g_uint64_checked_add(&all, w->bytes, e.bytes) && all <= G_MAXINT64;
  if (!fits) {
    g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_LIMIT, "tensor %s: its bytes overflow",
                name);
    return FALSE;
  }
  w->bytes = all;
  e.name = g_strdup(name);
  g_array_append_val(w->entries, e);
  g_hash_table_add(w->names, e.name);
  return TRUE;
}

/* --- files ---------------------------------------------------------------------------------------
 */

/* Which tensor is in which file. */
static guint
assign_files(oct_safetensors_writer *w) {
  guint64 used = 0;
  guint file = 0;
  for (guint i = 0; i < w->entries->len; i++) {
    entry *e = entry_at(w, i);
    if (used > 0 && e->bytes > w->shard_bytes - MIN(used, w->shard_bytes)) {
      file++;
      used = 0;
    }
    e->file = file;
    used += e->bytes;
  }
  return file + 1;
}

static int
by_place(const void *a, const void *b) {
  const entry *x = *(entry *const *)a, *y = *(entry *const *)b;
  guint ax = oct_stored_get(x->type)->alignment, ay = oct_stored_get(y->type)->alignment;
  if (x->file != y->file)
    return x->file < y->file ? -1 : 1;
  if (ax != ay)
    return ax > ay ? -1 : 1;
  return strcmp(x->name, y->name);
}

/* All tensors in the order of files and offsets, which are set. Owned. */
static GPtrArray *
place_tensors(oct_safetensors_writer *w) {
  GPtrArray *order = g_ptr_array_sized_new(w->entries->len);
  for (guint i = 0; i < w->entries->len; i++)
    g_ptr_array_add(order, entry_at(w, i));
  if (order->len > 0)
    qsort(order->pdata, order->len, sizeof *order->pdata, by_place);
  for (guint i = 0; i < order->len; i++) {
    entry *e = g_ptr_array_index(order, i);
    output *f = file_at(w, e->file);
    e->begin = f->bytes;
    f->bytes += e->bytes;
  }
  return order;
}

static void
append_quoted(GString *text, const char *string) {
  json_t *value = json_string(string);
  char *quoted = json_dumps(value, JSON_ENCODE_ANY);
  g_string_append(text, quoted);
  free(quoted);
  json_decref(value);
}

static void
append_entry(GString *text, const entry *e) {
  append_quoted(text, e->name);
  g_string_append_printf(text, ":{\"dtype\":\"%s\",\"shape\":[",
                         oct_stored_get(e->type)->safetensors);
  for (guint i = 0; i < e->n_dims; i++)
    g_string_append_printf(text, "%s%" G_GUINT64_FORMAT, i > 0 ? "," : "", e->shape[i]);
  g_string_append_printf(text, "],\"data_offsets\":[%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT "]}",
                         e->begin, e->begin + e->bytes);
}

static gboolean
write_at(const output *f, guint64 offset, const void *bytes, gsize size, GError **error) {
  const guint8 *from = bytes;
  while (size > 0) {
    ssize_t n = pwrite(f->fd, from, size, (off_t)offset);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return fail_io(f->path, "written", error);
    from += n;
    size -= (gsize)n;
    offset += (guint64)n;
  }
  return TRUE;
}

/* The header of file `i`, whose tensors are the `n` from `first` on. */
static gboolean
write_header(oct_safetensors_writer *w, guint i, entry *const *first, guint n, GError **error) {
  output *f = file_at(w, i);
  g_autoptr(GString) text = g_string_new("{\"__metadata__\":{\"format\":\"pt\"}");
  for (guint k = 0; k < n; k++) {
    g_string_append_c(text, ',');
    append_entry(text, first[k]);
  }
  g_string_append_c(text, '}');
  while (text->len % 8 != 0)
    g_string_append_c(text, ' ');
  if (text->len > OCT_FILE_HEADER_MAX) {
    g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_LIMIT,
                "%s: a header of %" G_GSIZE_FORMAT " bytes, at most %u are allowed", f->path,
                text->len, OCT_FILE_HEADER_MAX);
    return FALSE;
  }
  guint64 size = text->len;
  f->data_start = sizeof size + size;
  return write_at(f, 0, &size, sizeof size, error) &&
         write_at(f, sizeof size, text->str, text->len, error);
}

static gboolean
open_file(output *f, GError **error) {
  f->temporary = g_strconcat(f->path, ".partial", NULL);
  f->fd = g_open(f->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (f->fd >= 0)
    return TRUE;
  g_clear_pointer(&f->temporary, g_free);
  return fail_io(f->path, "made", error);
}

gboolean
oct_safetensors_writer_begin(oct_safetensors_writer *w, GError **error) {
  oct_assert(w->files->len == 0);
  guint n_files = assign_files(w);
  if (n_files > OCT_FILE_SHARDS_MAX) {
    g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_LIMIT,
                "%u shards of %" G_GUINT64_FORMAT " bytes, at most %u are allowed", n_files,
                w->shard_bytes, OCT_FILE_SHARDS_MAX);
    return FALSE;
  }
  for (guint i = 0; i < n_files; i++) {
    output f = {.fd = -1};
    f.name = n_files == 1 ? g_strdup("model.safetensors")
                          : g_strdup_printf("model-%05u-of-%05u.safetensors", i + 1, n_files);
    f.path = g_build_filename(w->folder, f.name, NULL);
    g_array_append_val(w->files, f);
  }
  GPtrArray *order = place_tensors(w);
  gboolean ok = TRUE;
  guint first = 0;
  for (guint i = 0; ok && i < n_files; i++) {
    guint end = first;
    while (end < order->len && ((entry *)g_ptr_array_index(order, end))->file == i)
      end++;
    ok = open_file(file_at(w, i), error) &&
         write_header(w, i, (entry *const *)(gpointer)order->pdata + first, end - first, error);
    first = end;
  }
  g_ptr_array_unref(order);
  return ok;
}

gboolean
oct_safetensors_writer_append(oct_safetensors_writer *w, guint tensor, const void *bytes,
                              gsize size, GError **error) {
  entry *e = entry_at(w, tensor);
  oct_assert(w->files->len > 0 && size <= e->bytes - e->written);
  const output *f = file_at(w, e->file);
  if (!write_at(f, f->data_start + e->begin + e->written, bytes, size, error))
    return FALSE;
  e->written += size;
  return TRUE;
}

/* --- the end -------------------------------------------------------------------------------------
 */

static gboolean
close_file(output *f, GError **error) {
  int fd = f->fd;
  f->fd = -1;
  gboolean synced = fsync(fd) == 0;
  if (close(fd) != 0 || !synced)
    return fail_io(f->path, "written", error);
  if (g_rename(f->temporary, f->path) != 0)
    return fail_io(f->path, "named", error);
  g_clear_pointer(&f->temporary, g_free);
  return TRUE;
}

static gboolean
write_index(const oct_safetensors_writer *w, GError **error) {
  g_autofree char *path = g_build_filename(w->folder, "model.safetensors.index.json", NULL);
  g_autoptr(GString) text = g_string_new(NULL);
  g_string_append_printf(
      text, "{\n  \"metadata\": {\"total_size\": %" G_GUINT64_FORMAT "},\n  \"weight_map\": {",
      w->bytes);
  for (guint i = 0; i < w->entries->len; i++) {
    g_string_append(text, i > 0 ? ",\n    " : "\n    ");
    append_quoted(text, entry_at(w, i)->name);
    g_string_append(text, ": ");
    append_quoted(text, file_at(w, entry_at(w, i)->file)->name);
  }
  g_string_append(text, "\n  }\n}\n");
  if (text->len <= OCT_FILE_INDEX_MAX)
    return g_file_set_contents(path, text->str, (gssize)text->len, error);
  g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_LIMIT,
              "%s: %" G_GSIZE_FORMAT " bytes, at most %u are allowed", path, text->len,
              OCT_FILE_INDEX_MAX);
  return FALSE;
}

gboolean
oct_safetensors_writer_finish(oct_safetensors_writer *w, GError **error) {
  for (guint i = 0; i < w->entries->len; i++)
    oct_assert(entry_at(w, i)->written == entry_at(w, i)->bytes);
  for (guint i = 0; i < w->files->len; i++)
    if (!close_file(file_at(w, i), error))
      return FALSE;
  return w->files->len == 1 || write_index(w, error);
}

guint
oct_safetensors_writer_n_files(const oct_safetensors_writer *w) {
  return w->files->len;
}

guint64
oct_safetensors_writer_bytes(const oct_safetensors_writer *w) {
  return w->bytes;
}
