/* From a config's quantization_config to the storage type of each class of weight. Private to
 * engine/model.
 */
#ifndef OCT_MODEL_QUANT_H
#define OCT_MODEL_QUANT_H

#include "engine/model/fields.h"
#include "engine/model/spec.h"

/* Sets spec->types from `fields`' quantization_config (or compression_config), all classes `base`
 * where it is absent. spec's layers must be set. Errors go to `fields`. */
void oct_quant_read(oct_fields *fields, oct_dtype base, oct_model_spec *spec);

#endif
