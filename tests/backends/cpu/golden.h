/* Checkpoints of tests/golden/hf with what they should compute. */
#ifndef OCT_TESTS_CPU_GOLDEN_H
#define OCT_TESTS_CPU_GOLDEN_H

#include "engine/model/files/tensors.h"
#include "engine/model/spec.h"

#define GOLDEN_PROMPT    41
#define GOLDEN_GENERATED 24

/* Names of the folders, NULL-terminated. */
extern const char *const golden_names[];

typedef struct golden {
  char *folder;
  oct_model_spec *spec;
  oct_checkpoint *file;
  guint32 prompt[GOLDEN_PROMPT], generated[GOLDEN_GENERATED];
} golden;

void golden_open(golden *g, const char *name);
void golden_close(golden *g);
/* Borrowed: "logits" [41, vocab], "hidden.3" [41, hidden], "generated_logits" [24, vocab]. Fails
 * the test unless it has `n` elements. */
const float *golden_floats(const golden *g, const char *name, gsize n);
/* Path of a file or folder of tests/golden; owned. */
char *golden_path(const char *name);

/* |a - b| / |b| over n elements, in float64. */
double golden_error(const float *a, const float *b, gsize n);

#endif
