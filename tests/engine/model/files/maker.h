/* Writes small model files for tests, remembering where each number of a header stands, so that a
 * test can put any other value there. */
#ifndef OCT_TESTS_MAKER_H
#define OCT_TESTS_MAKER_H

#include "engine/model/files/tensors.h"

typedef struct maker_mark {
  char *name; /* "tensor a: offset" */
  gsize at;
  guint width; /* bytes */
} maker_mark;

typedef struct maker {
  GByteArray *bytes;
  GArray *marks; /* of maker_mark */
} maker;

/* Life cycle. Asserts on misuse; freeing is the caller's. */
maker *maker_new(void);
void maker_free(maker *m);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(maker, maker_free)

/* Raw pieces; a number is marked under `name` unless it is NULL. */
void maker_raw(maker *m, const void *bytes, gsize size);
void maker_u32(maker *m, const char *name, guint32 value);
void maker_u64(maker *m, const char *name, guint64 value);
void maker_pad(maker *m, gsize alignment);

/* GGUF: head, then n_keys keys, then n_tensors tensors, then maker_pad() and data. */
void maker_gguf(maker *m, guint32 version, guint64 n_tensors, guint64 n_keys);
void maker_text(maker *m, const char *name, const char *text); /* length and bytes */
void maker_key(maker *m, const char *key, guint32 kind);
void maker_key_u32(maker *m, const char *key, guint32 value);
void maker_key_u64(maker *m, const char *key, guint64 value);
void maker_key_f32(maker *m, const char *key, float value);
void maker_key_text(maker *m, const char *key, const char *text);
void maker_key_bool(maker *m, const char *key, gboolean value);
void maker_key_array(maker *m, const char *key, guint32 element, guint64 count);
/* Sizes as GGUF has them: innermost first, ended by 0 (so none is 0). */
void maker_tensor(maker *m, const char *name, guint32 type, guint64 offset, const guint64 *sizes,
                  guint n_sizes);

/* A safetensors file of a header and `n_data` zero bytes. */
void maker_safetensors(maker *m, const char *header, gsize n_data);

/* Opens the bytes, copied into memory of exactly their size; *copy is to be freed after the
 * checkpoint. */
oct_checkpoint *maker_open(const maker *m, void **copy, GError **error);
/* Fails the test unless the bytes are refused with `code` and a message that has `part`. */
void maker_refused(const maker *m, int code, const char *part);
/* The value at a mark. */
guint64 maker_get(const maker *m, const maker_mark *mark);
void maker_set(maker *m, const maker_mark *mark, guint64 value);
const maker_mark *maker_find(const maker *m, const char *name);

/* A scratch folder, removed by the second call with the files that are in it. */
char *scratch_new(void);
void scratch_remove(char *folder);
void scratch_write(const char *folder, const char *name, const void *bytes, gssize size);

#endif
