/* From a config to the numerics of its spec. Private to engine/model. */
#ifndef OCT_MODEL_NUMERICS_READER_H
#define OCT_MODEL_NUMERICS_READER_H

#include "engine/model/fields.h"
#include "engine/model/spec.h"

/* Sets spec->numerics; everything of spec but its storage types must be set. Errors go to `fields`.
 */
void oct_numerics_read(oct_fields *fields, oct_model_spec *spec);

#endif
