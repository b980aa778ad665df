/* How checkpoints store numbers: element types, and GGUF's blocks of quantized ones.
 *
 * A stored type is a property of one tensor of a file. Formats that spread a weight over several
 * tensors (codes, scales, zeros) are layouts of a logical weight: engine/model/files/map.h. All are
 * little-endian, as is every host that Octet builds on. The table is constant: any thread.
 */
#ifndef OCT_MODEL_FILES_FORMATS_H
#define OCT_MODEL_FILES_FORMATS_H

#include <glib.h>

typedef enum oct_stored_type {
  OCT_STORED_F64,
  OCT_STORED_F32,
  OCT_STORED_F16,
  OCT_STORED_BF16,
  OCT_STORED_F8_E4M3, /* 1-4-3, bias 7, no infinity, NaN is 0x7f and 0xff; largest 448 */
  OCT_STORED_F8_E5M2,
  OCT_STORED_F8_E8M0, /* a power of two: 2^(byte - 127), 0xff is NaN */
  OCT_STORED_I64,
  OCT_STORED_I32,
  OCT_STORED_I16,
  OCT_STORED_I8,
  OCT_STORED_U64,
  OCT_STORED_U32,
  OCT_STORED_U16,
  OCT_STORED_U8,
  OCT_STORED_BOOL,
  /* Blocks along a row. */
  OCT_STORED_Q4_0, /* 32: f16 scale */
  OCT_STORED_Q4_1, /* 32: f16 scale and minimum */
  OCT_STORED_Q5_0,
  OCT_STORED_Q5_1,
  OCT_STORED_Q8_0,
  OCT_STORED_Q4_K, /* 256: f16 scale and minimum, 6-bit scale and minimum per 32 */
  OCT_STORED_Q5_K,
  OCT_STORED_Q6_K,  /* 256: f16 scale, 8-bit scale per 16 */
  OCT_STORED_MXFP4, /* 32: e8m0 scale */
  OCT_STORED_COUNT
} oct_stored_type;

typedef struct oct_stored_info {
  const char *name;        /* "F32", "Q4_K": static */
  guint16 block, bytes;    /* elements of a block, and what it takes; block 1 for plain elements */
  guint16 alignment;       /* of its widest field, bytes */
  gboolean is_float;       /* oct_dequant_row() reads it */
  gint gguf;               /* ggml's number, or -1 */
  const char *safetensors; /* name in a safetensors header, or NULL */
} oct_stored_info;

const oct_stored_info *oct_stored_get(oct_stored_type type);
/* FALSE when there is no such type, or Octet cannot read it. */
gboolean oct_stored_from_gguf(guint32 number, oct_stored_type *type) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_stored_from_safetensors(const char *name,
                                     oct_stored_type *type) G_GNUC_WARN_UNUSED_RESULT;
/* ggml's name of a number that oct_stored_from_gguf() refused, for a message; NULL when ggml has no
 * such type either. Static. */
const char *oct_stored_gguf_name(guint32 number);

/* Bytes of `n` elements, a whole number of blocks; FALSE when n is not one, or on overflow. */
gboolean oct_stored_bytes(oct_stored_type type, guint64 n,
                          guint64 *bytes) G_GNUC_WARN_UNUSED_RESULT;

#endif
