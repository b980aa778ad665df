/* Goldens of the dequantisers: tests/golden/dequant/NAME.safetensors. */
#ifndef OCT_TESTS_FILES_GOLDEN_H
#define OCT_TESTS_FILES_GOLDEN_H

#include "engine/model/files/tensors.h"

oct_checkpoint *golden_open(const char *name);
/* A tensor's data, which must be there, of this type and with this many elements (0: any). */
const void *golden_data(const oct_checkpoint *golden, const char *name, oct_stored_type type,
                        guint64 n);
guint64 golden_dim(const oct_checkpoint *golden, const char *name, guint dim);
/* Fails unless both are equal in every value: zeros of either sign and any NaN count as equal. */
void assert_same(const float *found, const float *wanted, guint64 n);

#endif
