/* Opening a checkpoint: which files it has, and what must hold of all tensors together. The readers
 * of single files are safetensors.c, shards.c and gguf.c. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/model/files/internal.h"

G_DEFINE_QUARK(oct - files - error - quark, oct_files_error)

/* A header costs its reader at most some 16 bytes of memory per byte: 104 per tensor, whose entry
 * takes at least 33, in arrays that double. */
#define BUDGET_PER_BYTE 16
#define BUDGET_BASE     (1u << 20)
#define ARENA_BLOCK     65536

struct oct_arena_block {
  oct_arena_block *next;
  gsize used, size;
  char bytes[];
};

gboolean
oct_file_fail(const oct_file *file, int code, GError **error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *message = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  g_set_error(error, OCT_FILES_ERROR, code, "%s: %s", file->path, message);
  return FALSE;
}

/* --- memory --------------------------------------------------------------------------------------
 */

char *
oct_checkpoint_keep(oct_checkpoint *checkpoint, gsize size, GError **error) {
  oct_arena_block *block = checkpoint->names;
  if (block == NULL || size > block->size - block->used) {
    gsize room = MAX(size, ARENA_BLOCK), total;
    if (!g_size_checked_add(&total, room, sizeof *block))
      total = G_MAXSIZE; /* refused by the budget */
    block = oct_budget_alloc(checkpoint->budget, total, 1, error);
    if (block == NULL)
      return NULL;
    block->size = room;
    block->next = checkpoint->names;
    checkpoint->names = block;
  }
  char *memory = block->bytes + block->used;
  block->used += size;
  return memory;
}

const char *
oct_checkpoint_name(oct_checkpoint *checkpoint, const oct_file *file, const char *what,
                    oct_text text, gsize max, GError **error) {
  if (text.size == 0 || text.size > max) {
    oct_file_fail(file, OCT_FILES_ERROR_LIMIT, error,
                  "a %s of %" G_GSIZE_FORMAT " bytes: allowed are 1 to %" G_GSIZE_FORMAT, what,
                  text.size, max);
    return NULL;
  }
  if (!g_utf8_validate_len(text.bytes, text.size, NULL)) {
    g_autofree char *shown = g_utf8_make_valid(text.bytes, (gssize)MIN(text.size, 80));
    oct_file_fail(file, OCT_FILES_ERROR_FORMAT, error,
                  "%s '%s' is not UTF-8, or has a NUL character", what, shown);
    return NULL;
  }
  char *name = oct_checkpoint_keep(checkpoint, text.size + 1, error);
  if (name != NULL) {
    memcpy(name, text.bytes, text.size);
    name[text.size] = '\0';
  }
  return name;
}

/* Room for one more element in an array that doubles. */
static gboolean
grow(oct_checkpoint *checkpoint, void *array, guint n, guint *size, gsize element, GError **error) {
  void **memory = array;
  if (n < *size)
    return TRUE;
  guint wanted = MAX(16, *size * 2);
  void *bigger = oct_budget_resize(checkpoint->budget, *memory, wanted, element, error);
  if (bigger == NULL)
    return FALSE;
  *memory = bigger;
  *size = wanted;
  return TRUE;
}

/* --- files ---------------------------------------------------------------------------------------
 */

static gboolean
io_error(const char *path, int number, GError **error) {
  int code = number == ENOENT ? OCT_FILES_ERROR_NOT_FOUND : OCT_FILES_ERROR_IO;
  g_set_error(error, OCT_FILES_ERROR, code, "%s: %s", path, g_strerror(number));
  return FALSE;
}

gboolean
oct_file_map(const char *path, const guint8 **bytes, gsize *size, GError **error) {
  struct stat status;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return io_error(path, errno, error);
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0) {
    close(fd);
    g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_FORMAT,
                "%s: not a regular file with something in it", path);
    return FALSE;
  }
  void *memory = mmap(NULL, (gsize)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  int number = errno;
  close(fd);
  if (memory == MAP_FAILED)
    return io_error(path, number, error);
  *bytes = memory;
  *size = (gsize)status.st_size;
  return TRUE;
}

gboolean
oct_checkpoint_add_file(oct_checkpoint *checkpoint, const char *path, const void *bytes, gsize size,
                        GError **error) {
  oct_file file = {.path = (char *)path, .bytes = bytes, .size = size, .mapped = bytes == NULL};
  if (checkpoint->n_files == OCT_FILE_SHARDS_MAX)
    return oct_file_fail(&file, OCT_FILES_ERROR_LIMIT, error, "more than %d files",
                         OCT_FILE_SHARDS_MAX);
  if (!grow(checkpoint, &checkpoint->files, checkpoint->n_files, &checkpoint->files_size,
            sizeof file, error))
    return FALSE;
  if (file.mapped && !oct_file_map(path, &file.bytes, &file.size, error))
    return FALSE;
  oct_assert((gsize)file.bytes % 8 == 0);
  file.path = g_strdup(path);
  checkpoint->files[checkpoint->n_files++] = file;
  return TRUE;
}

/* --- tensors -------------------------------------------------------------------------------------
 */

guint64
oct_file_tensor_elements(const oct_file_tensor *tensor) {
  guint64 n = 1;
  for (guint i = 0; i < tensor->n_dims; i++)
    n *= tensor->shape[i];
  return n;
}

char *
oct_file_tensor_shape(const oct_file_tensor *tensor) {
  GString *text = g_string_new("[");
  for (guint i = 0; i < tensor->n_dims; i++)
    g_string_append_printf(text, "%s%" G_GUINT64_FORMAT, i > 0 ? ", " : "", tensor->shape[i]);
  g_string_append_c(text, ']');
  return g_string_free(text, FALSE);
}

/* Elements and bytes of a tensor's shape and type. The product of the non-zero dimensions must fit
 * too, so that no partial product of a shape with a zero overflows. */
static gboolean
measure(const oct_file *file, const oct_file_tensor *tensor, guint64 *bytes, GError **error) {
  const oct_stored_info *info = oct_stored_get(tensor->type);
  g_autofree char *shape = oct_file_tensor_shape(tensor);
  guint64 elements = 1, nonzero = 1;
  gboolean fits = TRUE;
  for (guint i = 0; i < tensor->n_dims; i++) {
    fits = fits && g_uint64_checked_mul(&nonzero, nonzero, MAX(tensor->shape[i], 1));
    elements = fits ? elements * tensor->shape[i] : 0;
  }
  if (!fits || nonzero > G_MAXINT64 / 16)
    return oct_file_fail(file, OCT_FILES_ERROR_LIMIT, error,
                         "tensor %s: its shape %s has more elements than any file", tensor->name,
                         shape);
  guint64 row = tensor->n_dims > 0 ? tensor->shape[tensor->n_dims - 1] : 1;
  if (row % info->block != 0)
    return oct_file_fail(file, OCT_FILES_ERROR_FORMAT, error,
                         "tensor %s: rows of %" G_GUINT64_FORMAT
                         " elements are not a whole number of %s blocks of %u",
                         tensor->name, row, info->name, info->block);
  if (!oct_stored_bytes(tensor->type, elements, bytes))
    return oct_file_fail(file, OCT_FILES_ERROR_LIMIT, error, "tensor %s: shape %s of %s overflows",
                         tensor->name, shape, info->name);
  return TRUE;
}

gboolean
oct_checkpoint_add_tensor(oct_checkpoint *checkpoint, const oct_file_tensor *tensor, guint64 offset,
                          GError **error) {
  oct_assert(checkpoint->n_files > 0);
  const oct_file *file = &checkpoint->files[checkpoint->n_files - 1];
  oct_file_tensor added = *tensor;
  guint64 section = file->size - file->data_start;
  if (checkpoint->n_tensors == OCT_FILE_TENSORS_MAX)
    return oct_file_fail(file, OCT_FILES_ERROR_LIMIT, error, "more than %u tensors",
                         OCT_FILE_TENSORS_MAX);
  if (!measure(file, &added, &added.bytes, error))
    return FALSE;
  if (offset > section || added.bytes > section - offset)
    return oct_file_fail(file, OCT_FILES_ERROR_FORMAT, error,
                         "tensor %s: %" G_GUINT64_FORMAT " bytes at offset %" G_GUINT64_FORMAT
                         " reach past the end of the data section of %" G_GUINT64_FORMAT " bytes",
                         added.name, added.bytes, offset, section);
  guint alignment = oct_stored_get(added.type)->alignment;
  added.data = file->bytes + file->data_start + offset;
  if ((file->data_start + offset) % alignment != 0)
    return oct_file_fail(file, OCT_FILES_ERROR_UNSUPPORTED, error,
                         "tensor %s: its data begins at byte %" G_GUINT64_FORMAT
                         " of the file, which is not a multiple of the %u that %s needs: write the "
                         "file again with a current library",
                         added.name, file->data_start + offset, alignment,
                         oct_stored_get(added.type)->name);
  added.file = (guint16)(checkpoint->n_files - 1);
  if (!grow(checkpoint, &checkpoint->tensors, checkpoint->n_tensors, &checkpoint->tensors_size,
            sizeof added, error))
    return FALSE;
  checkpoint->tensors[checkpoint->n_tensors++] = added;
  checkpoint->bytes += added.bytes;
  return TRUE;
}

/* Empty tensors first at each place, so that they overlap nothing. */
static int
by_place(const void *a, const void *b) {
  const oct_file_tensor *x = a, *y = b;
  if (x->data != y->data)
    return x->data < y->data ? -1 : 1;
  return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

gboolean
oct_checkpoint_check_ranges(oct_checkpoint *checkpoint, guint n, gboolean packed, GError **error) {
  oct_assert(n <= checkpoint->n_tensors);
  const oct_file *file = &checkpoint->files[checkpoint->n_files - 1];
  const guint8 *data = file->bytes + file->data_start, *at = data;
  oct_file_tensor *tensors = NULL;
  if (n > 0) {
    tensors = checkpoint->tensors + (checkpoint->n_tensors - n);
    qsort(tensors, n, sizeof *tensors, by_place);
  }
  for (guint i = 0; i < n; i++) {
    if (tensors[i].data < at)
      return oct_file_fail(file, OCT_FILES_ERROR_FORMAT, error,
                           "tensors %s and %s overlap: the second begins at %" G_GSIZE_FORMAT
                           ", the first ends at %" G_GSIZE_FORMAT,
                           tensors[i - 1].name, tensors[i].name, (gsize)(tensors[i].data - data),
                           (gsize)(at - data));
    if (packed && tensors[i].data > at)
      return oct_file_fail(file, OCT_FILES_ERROR_FORMAT, error,
                           "tensor %s begins at %" G_GSIZE_FORMAT
                           ", and no tensor has the %" G_GSIZE_FORMAT " bytes before it",
                           tensors[i].name, (gsize)(tensors[i].data - data),
                           (gsize)(tensors[i].data - at));
    at = tensors[i].data + tensors[i].bytes;
  }
  if (packed && at < file->bytes + file->size)
    return oct_file_fail(file, OCT_FILES_ERROR_FORMAT, error,
                         "%" G_GSIZE_FORMAT " bytes at the end belong to no tensor",
                         (gsize)(file->bytes + file->size - at));
  return TRUE;
}

gboolean
oct_checkpoint_add_meta(oct_checkpoint *checkpoint, const oct_meta *meta, GError **error) {
  const oct_file *file = &checkpoint->files[checkpoint->n_files - 1];
  if (checkpoint->n_meta == OCT_FILE_KEYS_MAX)
    return oct_file_fail(file, OCT_FILES_ERROR_LIMIT, error, "more than %d metadata keys",
                         OCT_FILE_KEYS_MAX);
  if (!grow(checkpoint, &checkpoint->meta, checkpoint->n_meta, &checkpoint->meta_size, sizeof *meta,
            error))
    return FALSE;
  checkpoint->meta[checkpoint->n_meta++] = *meta;
  return TRUE;
}

/* --- the whole -----------------------------------------------------------------------------------
 */

static int
by_name(const void *a, const void *b) {
  return strcmp(((const oct_file_tensor *)a)->name, ((const oct_file_tensor *)b)->name);
}

static int
by_key(const void *a, const void *b) {
  return strcmp(((const oct_meta *)a)->key, ((const oct_meta *)b)->key);
}

/* Sorts, and refuses what is there twice. */
static gboolean
finish(oct_checkpoint *c, GError **error) {
  if (c->n_tensors > 0)
    qsort(c->tensors, c->n_tensors, sizeof *c->tensors, by_name);
  for (guint i = 1; i < c->n_tensors; i++)
    if (strcmp(c->tensors[i - 1].name, c->tensors[i].name) == 0) {
      const char *other = c->files[c->tensors[i - 1].file].path;
      return oct_file_fail(&c->files[c->tensors[i].file], OCT_FILES_ERROR_FORMAT, error,
                           "tensor %s is there twice (also in %s)", c->tensors[i].name, other);
    }
  if (c->n_meta > 0)
    qsort(c->meta, c->n_meta, sizeof *c->meta, by_key);
  for (guint i = 1; i < c->n_meta; i++)
    if (strcmp(c->meta[i - 1].key, c->meta[i].key) == 0)
      return oct_file_fail(&c->files[0], OCT_FILES_ERROR_FORMAT, error,
                           "metadata key %s is there twice", c->meta[i].key);
  return TRUE;
}

/* `header_bytes`: of everything that will be parsed, at most. */
static oct_checkpoint *
checkpoint_new(const char *path, gsize header_bytes) {
  gsize max;
  if (!g_size_checked_mul(&max, header_bytes, BUDGET_PER_BYTE) ||
      !g_size_checked_add(&max, max, BUDGET_BASE))
    max = G_MAXSIZE;
  oct_checkpoint *checkpoint = g_new0(oct_checkpoint, 1);
  checkpoint->path = g_strdup(path);
  checkpoint->budget = oct_budget_new("checkpoint", max);
  return checkpoint;
}

/* The newest file, by its first bytes. */
static gboolean
read_file(oct_checkpoint *checkpoint, oct_load_format format, GError **error) {
  const oct_file *file = &checkpoint->files[checkpoint->n_files - 1];
  gboolean gguf = file->size >= 4 && memcmp(file->bytes, "GGUF", 4) == 0;
  oct_load_format found = gguf ? OCT_LOAD_GGUF : OCT_LOAD_SAFETENSORS;
  if (format != OCT_LOAD_AUTO && format != found)
    return oct_file_fail(file, OCT_FILES_ERROR_FORMAT, error, "this is %sa GGUF file",
                         gguf ? "" : "not ");
  checkpoint->format = found;
  return gguf ? oct_gguf_read(checkpoint, error) : oct_safetensors_read(checkpoint, error);
}

/* Closes the checkpoint unless `ok` and all its tensors pass. */
static oct_checkpoint *
finished(oct_checkpoint *checkpoint, gboolean ok, GError **error) {
  if (ok && finish(checkpoint, error))
    return checkpoint;
  oct_checkpoint_close(checkpoint);
  return NULL;
}

oct_checkpoint *
oct_checkpoint_open_bytes(const char *label, const void *bytes, gsize size, GError **error) {
  oct_checkpoint *checkpoint = checkpoint_new(label, size);
  gboolean ok = oct_checkpoint_add_file(checkpoint, label, bytes, size, error) &&
                read_file(checkpoint, OCT_LOAD_AUTO, error);
  return finished(checkpoint, ok, error);
}

static oct_checkpoint *
open_file(const char *path, oct_load_format format, GError **error) {
  struct stat status;
  gsize size = stat(path, &status) == 0 && status.st_size > 0 ? (gsize)status.st_size : 0;
  oct_checkpoint *checkpoint = checkpoint_new(path, size);
  gboolean ok = oct_checkpoint_add_file(checkpoint, path, NULL, 0, error) &&
                read_file(checkpoint, format, error);
  return finished(checkpoint, ok, error);
}

static oct_checkpoint *
open_index(const char *path, GError **error) {
  const guint8 *bytes;
  gsize size;
  if (!oct_file_map(path, &bytes, &size, error))
    return NULL;
  if (size > OCT_FILE_INDEX_MAX) {
    munmap((void *)bytes, size);
    g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_LIMIT,
                "%s: an index of %" G_GSIZE_FORMAT " bytes, at most %u are allowed", path, size,
                OCT_FILE_INDEX_MAX);
    return NULL;
  }
  g_autofree char *folder = g_path_get_dirname(path);
  oct_checkpoint *checkpoint =
      checkpoint_new(path, (gsize)OCT_FILE_SHARDS_MAX * OCT_FILE_HEADER_MAX + size);
  checkpoint->format = OCT_LOAD_SAFETENSORS;
  gboolean ok =
      oct_shards_read(checkpoint, path, folder, (oct_text){(const char *)bytes, size}, error);
  munmap((void *)bytes, size);
  return finished(checkpoint, ok, error);
}

/* The one .gguf file of a folder, or NULL with how many there are; owned. */
static char *
only_gguf(const char *path, guint *n) {
  g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
  char *found = NULL;
  const char *name;
  *n = 0;
  while (dir != NULL && (name = g_dir_read_name(dir)) != NULL)
    if (g_str_has_suffix(name, ".gguf") && (*n)++ == 0)
      found = g_build_filename(path, name, NULL);
  if (*n != 1)
    g_clear_pointer(&found, g_free);
  return found;
}

gboolean
oct_checkpoint_has_gguf(const char *folder) {
  guint n;
  g_autofree char *path = only_gguf(folder, &n);
  return path != NULL;
}

static oct_checkpoint *
open_folder(const char *path, oct_load_format format, GError **error) {
  guint n_gguf = 0;
  g_autofree char *single = g_build_filename(path, "model.safetensors", NULL);
  g_autofree char *index = g_build_filename(path, "model.safetensors.index.json", NULL);
  if (format != OCT_LOAD_GGUF && g_file_test(single, G_FILE_TEST_EXISTS))
    return open_file(single, OCT_LOAD_SAFETENSORS, error);
  if (format != OCT_LOAD_GGUF && g_file_test(index, G_FILE_TEST_EXISTS))
    return open_index(index, error);
  g_autofree char *gguf = format != OCT_LOAD_SAFETENSORS ? only_gguf(path, &n_gguf) : NULL;
  if (gguf != NULL)
    return open_file(gguf, OCT_LOAD_GGUF, error);
  const char *wanted = format == OCT_LOAD_GGUF ? "one .gguf file"
                       : format == OCT_LOAD_SAFETENSORS
                           ? "model.safetensors or model.safetensors.index.json"
                           : "model.safetensors, model.safetensors.index.json or one .gguf file";
  g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_NOT_FOUND,
              "%s: no checkpoint in this folder: wanted is %s%s", path, wanted,
              n_gguf > 1 ? " (there are several: name one)" : "");
  return NULL;
}

gboolean
oct_load_format_parse(const char *name, oct_load_format *format) {
  static const char *const names[] = {"auto", "safetensors", "gguf", "dummy"};
  for (guint i = 0; i < G_N_ELEMENTS(names); i++)
    if (g_str_equal(name, names[i])) {
      *format = (oct_load_format)i;
      return TRUE;
    }
  return FALSE;
}

oct_checkpoint *
oct_checkpoint_open(const char *path, oct_load_format format, GError **error) {
  oct_assert(format != OCT_LOAD_DUMMY);
  if (g_file_test(path, G_FILE_TEST_IS_DIR))
    return open_folder(path, format, error);
  if (g_str_has_suffix(path, ".index.json") && format != OCT_LOAD_GGUF)
    return open_index(path, error);
  return open_file(path, format, error);
}

void
oct_checkpoint_close(oct_checkpoint *checkpoint) {
  if (checkpoint == NULL)
    return;
  for (guint i = 0; i < checkpoint->n_files; i++) {
    if (checkpoint->files[i].mapped)
      munmap((void *)checkpoint->files[i].bytes, checkpoint->files[i].size);
    g_free(checkpoint->files[i].path);
  }
  for (oct_arena_block *block = checkpoint->names, *next; block != NULL; block = next) {
    next = block->next;
    oct_budget_release(checkpoint->budget, block);
  }
  oct_budget_release(checkpoint->budget, checkpoint->files);
  oct_budget_release(checkpoint->budget, checkpoint->tensors);
  oct_budget_release(checkpoint->budget, checkpoint->meta);
  oct_budget_free(checkpoint->budget);
  g_free(checkpoint->path);
  g_free(checkpoint);
}

/* --- inspect -------------------------------------------------------------------------------------
 */

oct_load_format
oct_checkpoint_format(const oct_checkpoint *checkpoint) {
  return checkpoint->format;
}

const char *
oct_checkpoint_path(const oct_checkpoint *checkpoint) {
  return checkpoint->path;
}

guint
oct_checkpoint_n_tensors(const oct_checkpoint *checkpoint) {
  return checkpoint->n_tensors;
}

const oct_file_tensor *
oct_checkpoint_tensor(const oct_checkpoint *checkpoint, guint position) {
  oct_assert(position < checkpoint->n_tensors);
  return &checkpoint->tensors[position];
}

const oct_file_tensor *
oct_checkpoint_find(const oct_checkpoint *checkpoint, const char *name) {
  const oct_file_tensor key = {.name = name};
  if (checkpoint->n_tensors == 0)
    return NULL;
  return bsearch(&key, checkpoint->tensors, checkpoint->n_tensors, sizeof key, by_name);
}

guint
oct_checkpoint_n_files(const oct_checkpoint *checkpoint) {
  return checkpoint->n_files;
}

const char *
oct_checkpoint_file(const oct_checkpoint *checkpoint, guint file) {
  oct_assert(file < checkpoint->n_files);
  return checkpoint->files[file].path;
}

guint64
oct_checkpoint_bytes(const oct_checkpoint *checkpoint) {
  return checkpoint->bytes;
}
