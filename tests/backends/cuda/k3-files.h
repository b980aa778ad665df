/* Kimi K3's checkpoint as it is released, in full shape: 96 safetensors shards with their index and
 * config.json. Headers are real, data is a hole of each file, so that 1.56 TB take what the headers
 * take (0.13 GB).
 *
 * Names, shapes and types are those of the released files; written out here, not taken from the
 * engine's tables, which are what the files are to test. Of the vision tower only the number of
 * tensors and their bytes together are known: its tensors are flat.
 */
#ifndef OCT_TESTS_K3_FILES_H
#define OCT_TESTS_K3_FILES_H

#include <glib.h>

#define K3_LAYERS       93
#define K3_EXPERTS      896
#define K3_SHARDS       96
#define K3_TENSORS      497220
#define K3_VISION       168
#define K3_BYTES        G_GUINT64_CONSTANT(1560860324864) /* of all tensors */
#define K3_TEXT_BYTES   G_GUINT64_CONSTANT(1559965606912) /* of those of the text model */
#define K3_EXPERT_BYTES 17547264

/* Bytes by what a rank of a tensor group needs of them: an equal part, or all. */
typedef struct k3_bytes {
  guint64 divided, whole, experts, padding; /* experts: all of a layer, whichever way divided */
} k3_bytes;

typedef struct k3_files {
  guint64 embedding; /* on the first stage */
  k3_bytes layer[K3_LAYERS];
  k3_bytes end; /* behind the layers, on the last stage */
} k3_files;

/* Fills an empty folder. FALSE with *error where the file system takes no such files. */
gboolean k3_files_write(const char *folder, k3_files *out, GError **error);

#endif
