/* A checkpoint: the tensors and metadata of a model's files, read in place.
 *
 * One interface over safetensors (one file, or shards with their index) and GGUF (version 2 and 3).
 * Files are mapped read-only and nothing is copied but names; a tensor's data points into the
 * mapping. The files are input from strangers: every size, offset, count and name is checked
 * against the file and against the others before it is used, and no allocation follows a number
 * that the file merely claims. An error names the file, the tensor or key, the value and the limit.
 *
 * A checkpoint never changes once open: any thread may read it. A file that is cut short by someone
 * else while it is mapped ends the process with SIGBUS, as with every mapped file.
 */
#ifndef OCT_MODEL_FILES_TENSORS_H
#define OCT_MODEL_FILES_TENSORS_H

#include <glib.h>

#include "engine/model/files/formats.h"

/* Limits: names and keys in bytes; tensors of a whole checkpoint, keys of a file; the header of a
 * safetensors file (the format's own limit), a model.safetensors.index.json; GGUF's alignment. */
#define OCT_FILE_DIMS_MAX      8
#define OCT_FILE_NAME_MAX      1024
#define OCT_FILE_KEY_MAX       65535
#define OCT_FILE_TENSORS_MAX   (4u << 20)
#define OCT_FILE_KEYS_MAX      65536
#define OCT_FILE_SHARDS_MAX    4096
#define OCT_FILE_HEADER_MAX    (100u * 1000 * 1000)
#define OCT_FILE_INDEX_MAX     (256u << 20)
#define OCT_FILE_ALIGNMENT_MAX 65536

#define OCT_FILES_ERROR (oct_files_error_quark())
GQuark oct_files_error_quark(void);
typedef enum oct_files_error {
  OCT_FILES_ERROR_NOT_FOUND,   /* no such file, or a folder without a checkpoint */
  OCT_FILES_ERROR_IO,          /* a file cannot be read or mapped */
  OCT_FILES_ERROR_FORMAT,      /* the bytes are not what the format asks for */
  OCT_FILES_ERROR_LIMIT,       /* a number beyond its limit */
  OCT_FILES_ERROR_UNSUPPORTED, /* well-formed, but not something that Octet reads */
  OCT_FILES_ERROR_TENSOR,      /* a tensor is missing, unexpected, or has the wrong shape */
  OCT_FILES_ERROR_KEY,         /* a metadata key is missing, or of another type or range */
} oct_files_error;

/* Bytes of text, not NUL-terminated. */
typedef struct oct_text {
  const char *bytes;
  gsize size;
} oct_text;

typedef struct oct_file_tensor {
  const char *name;   /* UTF-8, NUL-terminated */
  const guint8 *data; /* into the mapping, aligned for its type; valid until close */
  guint64 bytes;
  guint64 shape[OCT_FILE_DIMS_MAX]; /* outermost first (GGUF lists them innermost first) */
  oct_stored_type type;
  guint16 n_dims; /* 0: a scalar */
  guint16 file;   /* for oct_checkpoint_file() */
} oct_file_tensor;

/* A tensor's elements: the product of its shape, which fits. */
guint64 oct_file_tensor_elements(const oct_file_tensor *tensor);
/* "[64, 128]"; owned. */
char *oct_file_tensor_shape(const oct_file_tensor *tensor);

typedef enum oct_load_format {
  OCT_LOAD_AUTO,
  OCT_LOAD_SAFETENSORS,
  OCT_LOAD_GGUF,
  OCT_LOAD_DUMMY, /* no files: engine/model/files/model.h */
} oct_load_format;

/* "auto", "safetensors", "gguf", "dummy": FALSE for anything else. */
gboolean oct_load_format_parse(const char *name, oct_load_format *format) G_GNUC_WARN_UNUSED_RESULT;

typedef struct oct_checkpoint oct_checkpoint;

/* Life cycle.
 * `path` is a .safetensors or .gguf file, a model.safetensors.index.json, or a folder that holds
 * model.safetensors, else model.safetensors.index.json, else one .gguf file (in this order; a
 * `format` other than AUTO narrows it; DUMMY is asserted against). Shards are files of the index's
 * folder. Blocks on the disk for the headers only. */
oct_checkpoint *oct_checkpoint_open(const char *path, oct_load_format format,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* TRUE when the folder holds exactly one .gguf file. */
gboolean oct_checkpoint_has_gguf(const char *folder);
/* One file's bytes, borrowed until close and aligned to 8; what begins with "GGUF" is GGUF. `label`
 * is for messages, copied. */
oct_checkpoint *oct_checkpoint_open_bytes(const char *label, const void *bytes, gsize size,
                                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_checkpoint_close(oct_checkpoint *checkpoint); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_checkpoint, oct_checkpoint_close)

/* Inspect. Tensors are sorted by name (bytewise), names are unique. */
oct_load_format oct_checkpoint_format(const oct_checkpoint *checkpoint); /* never AUTO */
const char *oct_checkpoint_path(const oct_checkpoint *checkpoint);       /* as opened; borrowed */
guint oct_checkpoint_n_tensors(const oct_checkpoint *checkpoint);
const oct_file_tensor *oct_checkpoint_tensor(const oct_checkpoint *checkpoint, guint position);
const oct_file_tensor *oct_checkpoint_find(const oct_checkpoint *checkpoint,
                                           const char *name); /* NULL when there is none */
guint oct_checkpoint_n_files(const oct_checkpoint *checkpoint);
const char *oct_checkpoint_file(const oct_checkpoint *checkpoint, guint file); /* its path */
guint64 oct_checkpoint_bytes(const oct_checkpoint *checkpoint);                /* of all tensors */

/* --- metadata ------------------------------------------------------------------------------------
 * GGUF's keys, and the strings of a safetensors header's __metadata__ (of the first file that has
 * each). Sorted by key. */
typedef enum oct_meta_kind {
  OCT_META_UINT, /* GGUF's uint8 … uint64 */
  OCT_META_INT,
  OCT_META_REAL,
  OCT_META_BOOL,
  OCT_META_TEXT, /* any bytes; GGUF promises UTF-8, token texts need not be */
  OCT_META_ARRAY,
} oct_meta_kind;

typedef struct oct_meta {
  const char *key; /* NUL-terminated */
  oct_meta_kind kind;
  union {
    guint64 u64;
    gint64 i64;
    double real;
    gboolean boolean;
    oct_text text;
    struct {
      oct_meta_kind element; /* never ARRAY */
      guint8 width;          /* bytes of an element, 0 for text */
      const guint8 *items;   /* private: use oct_meta_item_…() */
      const guint64 *starts; /* private: where each text's length stands, from items */
      guint64 count;
    } array;
  };
} oct_meta;

guint oct_checkpoint_n_meta(const oct_checkpoint *checkpoint);
const oct_meta *oct_checkpoint_meta_at(const oct_checkpoint *checkpoint, guint position);
const oct_meta *oct_checkpoint_meta(const oct_checkpoint *checkpoint,
                                    const char *key); /* NULL when there is none */
const char *oct_meta_kind_name(oct_meta_kind kind);   /* "an integer"…, for messages; static */

/* Typed reading. FALSE with *error (KEY), which names file, key and value, when the key is absent,
 * of another kind, or outside [min, max]. UINT and INT are both integers; an integer is also a
 * real. */
gboolean oct_checkpoint_uint(const oct_checkpoint *checkpoint, const char *key, guint64 min,
                             guint64 max, guint64 *value, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_checkpoint_real(const oct_checkpoint *checkpoint, const char *key, double min,
                             double max, double *value, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_checkpoint_boolean(const oct_checkpoint *checkpoint, const char *key, gboolean *value,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_checkpoint_text(const oct_checkpoint *checkpoint, const char *key, oct_text *value,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* An array with elements of `element` (UINT takes INT too and the reverse); count elements at most
 * `max`. */
const oct_meta *oct_checkpoint_array(const oct_checkpoint *checkpoint, const char *key,
                                     oct_meta_kind element, guint64 max,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Elements of an array; `position` < count and the kind are asserted. O(1). An integer beyond
 * gint64 reads as G_MAXINT64. */
oct_text oct_meta_item_text(const oct_meta *array, guint64 position);
gint64 oct_meta_item_int(const oct_meta *array, guint64 position);
double oct_meta_item_real(const oct_meta *array, guint64 position); /* REAL or integers */
gboolean oct_meta_item_bool(const oct_meta *array, guint64 position);

#endif
