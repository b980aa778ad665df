/* What the fuzz targets of model files do with a file that was accepted. */
#ifndef OCT_TESTS_FUZZ_WEIGHTS_H
#define OCT_TESTS_FUZZ_WEIGHTS_H

#include "engine/model/files/map.h"

/* Everything that a checkpoint offers: tensors inside [bytes, bytes + size), metadata readable. */
void fuzz_checkpoint(const oct_checkpoint *checkpoint, const void *bytes, size_t size);
/* Looks for every weight of the model, and reads all of each that is found. */
void fuzz_weights(const oct_model_spec *spec, const oct_checkpoint *checkpoint);

#endif
