/* Writes safetensors files for tests, tensor by tensor. */
#ifndef OCT_TESTS_FILES_WRITER_H
#define OCT_TESTS_FILES_WRITER_H

#include "engine/model/files/map.h"

typedef struct writer writer;

writer *writer_new(void);
void writer_free(writer *w);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(writer, writer_free)

/* Shape ended by -1. Copies `data`, which has as many bytes as the shape takes (NULL: zeros). */
void writer_add(writer *w, const char *name, oct_stored_type type, const void *data, ...);
void writer_add_shape(writer *w, const char *name, oct_stored_type type, const void *data,
                      const gint64 *shape);
/* Leaves a tensor out again, or gives it another name. */
void writer_drop(writer *w, const char *name);
void writer_rename(writer *w, const char *name, const char *other);
guint writer_n(const writer *w);
const char *writer_name(const writer *w, guint position);

/* The file: owned bytes, aligned; data of larger alignment first. */
guint8 *writer_bytes(const writer *w, gsize *size);
/* Opens what writer_bytes() gives, in *memory, to be freed after the checkpoint. */
oct_checkpoint *writer_open(const writer *w, guint8 **memory);

/* Adds a weight's tensors under the names that safetensors have for it, as it is stored: a plain
 * checkpoint of a dummy map. All parts must be there. */
void writer_add_weight(writer *w, const char *module, const oct_weight *weight);

#endif
