/* Checkpoints of tests/golden/hf and tests/golden/kimi-k3 with what they should compute. */
#ifndef OCT_TESTS_CPU_GOLDEN_H
#define OCT_TESTS_CPU_GOLDEN_H

#include "engine/model/files/tensors.h"
#include "engine/model/spec.h"

/* Of the longest; those of kimi-k3 have 37 and 16. */
#define GOLDEN_PROMPT    41
#define GOLDEN_GENERATED 24

/* Names of the folders of hf, and of those of kimi-k3. NULL-terminated. */
extern const char *const golden_names[], *const golden_k3_names[];

typedef struct golden {
  char *folder;
  oct_model_spec *spec;
  oct_checkpoint *file;
  guint32 n_prompt, n_generated;
  guint32 prompt[GOLDEN_PROMPT], generated[GOLDEN_GENERATED];
} golden;

void golden_open(golden *g, const char *name);
void golden_close(golden *g);
/* Borrowed: "logits" [n_prompt, vocab]. Fails the test unless it has `n` elements. */
const float *golden_floats(const golden *g, const char *name, gsize n);
/* [n_generated, vocab] */
const float *golden_generated_logits(const golden *g);
/* Hidden states [n_prompt, hidden] before layer 0 (index 0), after layer i - 1, and after the final
 * norm (n_layers + 1). NULL where the file has none. */
const float *golden_hidden(const golden *g, guint32 index);
/* Path of a file or folder of tests/golden; owned. */
char *golden_path(const char *name);

/* |a - b| / |b| over n elements, in float64. */
double golden_error(const float *a, const float *b, gsize n);

#endif
