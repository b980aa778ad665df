/* GGUF's blocks of quantised weights to float32, for weights that are read while they are used:
 * the same values, bit by bit, as engine/model/files/dequant.h gives, by vectors of the processor
 * that is there. A block's layout is told there. Plain C without GLib, any thread.
 */
#ifndef OCT_KERNELS_REFERENCE_BLOCKS_H
#define OCT_KERNELS_REFERENCE_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

typedef enum oct_block_format {
  OCT_BLOCK_Q4_0, /* 32 weights in 18 bytes */
  OCT_BLOCK_Q4_1, /* 32 in 20 */
  OCT_BLOCK_Q5_0, /* 32 in 22 */
  OCT_BLOCK_Q5_1, /* 32 in 24 */
  OCT_BLOCK_Q8_0, /* 32 in 34 */
  OCT_BLOCK_Q4_K, /* 256 in 144 */
  OCT_BLOCK_Q5_K, /* 256 in 176 */
  OCT_BLOCK_Q6_K, /* 256 in 210 */
  OCT_BLOCK_FORMATS
} oct_block_format;

/* Weights and bytes of a block. */
size_t oct_ref_block_weights(oct_block_format format);
size_t oct_ref_block_bytes(oct_block_format format);
/* n blocks, which need no alignment. */
void oct_ref_expand_blocks(oct_block_format format, const uint8_t *blocks, size_t n, float *out);

#endif
