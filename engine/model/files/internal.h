/* What the readers of engine/model/files share: a checkpoint under construction.
 *
 * A reader gets one file's bytes and adds its tensors and metadata; checkpoint.c then checks what
 * concerns all tensors together. Private to engine/model/files.
 */
#ifndef OCT_MODEL_FILES_INTERNAL_H
#define OCT_MODEL_FILES_INTERNAL_H

#include "engine/base/budget.h"
#include "engine/model/files/tensors.h"

/* A file of the checkpoint. Its data section is what tensors may lie in. */
typedef struct oct_file {
  char *path;          /* owned; for messages */
  const guint8 *bytes; /* mapped, or borrowed */
  gsize size;
  gsize data_start;
  gboolean mapped;
} oct_file;

typedef struct oct_arena_block oct_arena_block;

struct oct_checkpoint {
  oct_load_format format;
  char *path;
  oct_budget *budget;     /* everything below that a header made necessary */
  oct_arena_block *names; /* NUL-terminated texts */
  oct_file *files;
  guint n_files, files_size;
  oct_file_tensor *tensors; /* sorted by name once open */
  guint n_tensors, tensors_size;
  oct_meta *meta; /* sorted by key once open */
  guint n_meta, meta_size;
  guint64 bytes;
};

/* Sets *error to "PATH: " and the message; returns FALSE. */
gboolean oct_file_fail(const oct_file *file, int code, GError **error, const char *format, ...)
    G_GNUC_PRINTF(4, 5);

/* `size` bytes of the checkpoint's own memory, freed with it. */
char *oct_checkpoint_keep(oct_checkpoint *checkpoint, gsize size,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* A NUL-terminated copy of a name: not empty, UTF-8, without NUL, at most `max` bytes. `what`
 * ("tensor name", "key") is for messages. */
const char *oct_checkpoint_name(oct_checkpoint *checkpoint, const oct_file *file, const char *what,
                                oct_text text, gsize max, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Adds a file, which must be there before its tensors. Takes nothing; maps when bytes are NULL. */
gboolean oct_checkpoint_add_file(oct_checkpoint *checkpoint, const char *path, const void *bytes,
                                 gsize size, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Adds a tensor of the newest file: name, type and shape are set; its data begins `offset` bytes
 * into the file's data section. Checks the shape, the size and the range, and sets the rest. */
gboolean oct_checkpoint_add_tensor(oct_checkpoint *checkpoint, const oct_file_tensor *tensor,
                                   guint64 offset, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_checkpoint_add_meta(oct_checkpoint *checkpoint, const oct_meta *meta,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Checks that no tensors of the newest file, the last n of the list, overlap; `packed`: that they
 * also leave no gap in its data section. Reorders them. */
gboolean oct_checkpoint_check_ranges(oct_checkpoint *checkpoint, guint n, gboolean packed,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The readers: parse the newest file. */
gboolean oct_safetensors_read(oct_checkpoint *checkpoint, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_gguf_read(oct_checkpoint *checkpoint, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Parses an index (`label` names it; `text` is its bytes), then adds and reads every shard, which
 * lie in `folder`. */
gboolean oct_shards_read(oct_checkpoint *checkpoint, const char *label, const char *folder,
                         oct_text text, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Maps a whole regular file for reading; munmap() it. Never blocks on a pipe or a device. */
gboolean oct_file_map(const char *path, const guint8 **bytes, gsize *size,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
