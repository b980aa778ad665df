/* GGUF's blocks of 256, one block at a time. Private to engine/model/files. */
#ifndef OCT_MODEL_FILES_KQUANT_H
#define OCT_MODEL_FILES_KQUANT_H

#include <glib.h>

/* in: 144, 176 or 210 bytes; out[256]. */
void oct_block_q4_k(const guint8 *restrict in, float *restrict out);
void oct_block_q5_k(const guint8 *restrict in, float *restrict out);
void oct_block_q6_k(const guint8 *restrict in, float *restrict out);

#endif
