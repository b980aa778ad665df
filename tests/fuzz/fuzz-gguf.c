/* Fuzz target: any bytes as a GGUF file ("GGUF" is put in front). What is accepted is read whole,
 * as a model too when its keys make one. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/files/model.h"
#include "tests/fuzz/replay.h"
#include "tests/fuzz/weights.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  g_autoptr(GError) error = NULL;
  g_autofree guint8 *bytes = g_malloc(size + 4);
  memcpy(bytes, "GGUF", 4);
  if (size > 0)
    memcpy(bytes + 4, data, size);
  g_autoptr(oct_checkpoint) checkpoint = oct_checkpoint_open_bytes("fuzz", bytes, size + 4, &error);
  oct_assert((checkpoint == NULL) == (error != NULL));
  if (checkpoint == NULL)
    return 0;
  fuzz_checkpoint(checkpoint, bytes, size + 4);
  g_autoptr(oct_model_spec) spec = oct_model_spec_from_gguf(checkpoint, &error);
  oct_assert((spec == NULL) == (error != NULL));
  if (spec != NULL)
    fuzz_weights(spec, checkpoint);
  return 0;
}
