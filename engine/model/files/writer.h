/* Writing safetensors: one file, or shards and their index, as the format's own library lays them
 * out and engine/model/files/tensors.h reads them back.
 *
 * All tensors are named first, then filled in any order and in pieces. Files grow under temporary
 * names in their folder and get their own when everything is there: a reader never sees half of
 * one. The limits are those of the reader. One thread at a time.
 */
#ifndef OCT_MODEL_FILES_WRITER_H
#define OCT_MODEL_FILES_WRITER_H

#include "engine/model/files/tensors.h"

typedef struct oct_safetensors_writer oct_safetensors_writer;

/* Life cycle. `folder` exists. A tensor that would make a file larger than shard_bytes begins the
 * next one; one file has no index. Freeing before finish() leaves nothing behind. */
oct_safetensors_writer *oct_safetensors_writer_new(const char *folder, guint64 shard_bytes);
void oct_safetensors_writer_free(oct_safetensors_writer *writer); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_safetensors_writer, oct_safetensors_writer_free)

/* Use. Tensors are numbered from 0 in the order of adding; `type` has a safetensors name
 * (asserted). FALSE with *error: FORMAT (a name that is taken or cannot be), LIMIT. */
gboolean oct_safetensors_writer_add(oct_safetensors_writer *writer, const char *name,
                                    oct_stored_type type, guint n_dims, const guint64 *shape,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* After the last add(): makes the files with their headers. */
gboolean oct_safetensors_writer_begin(oct_safetensors_writer *writer,
                                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Appends to a tensor's bytes; more than it has is asserted against. */
gboolean oct_safetensors_writer_append(oct_safetensors_writer *writer, guint tensor,
                                       const void *bytes, gsize size,
                                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Every tensor is complete (asserted): writes the files through to the disk and names them. */
gboolean oct_safetensors_writer_finish(oct_safetensors_writer *writer,
                                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Inspect: files and bytes of tensors; after begin(). */
guint oct_safetensors_writer_n_files(const oct_safetensors_writer *writer);
guint64 oct_safetensors_writer_bytes(const oct_safetensors_writer *writer);

#endif
