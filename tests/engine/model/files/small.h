/* Small models for tests of storage: specs from a few numbers, and checkpoints of dummies. */
#ifndef OCT_TESTS_FILES_SMALL_H
#define OCT_TESTS_FILES_SMALL_H

#include "tests/engine/model/files/writer.h"

/* One layer, hidden 256, 3 heads of 8 (so q is [24, 256]), FFN 256, vocabulary 32. */
oct_model_spec *small_llama(void);
/* gpt-oss: 2 layers, hidden 64, 4 heads of 16, 2 KV heads, 3 experts of 32, top-2. */
oct_model_spec *small_gpt_oss(void);
oct_model_spec *small_spec(const char *json);

/* All weights of a materialised dummy map under their first published names. */
writer *small_write(const oct_weight_map *map);
/* The published name of a weight's module. */
char *small_module(const oct_weight *weight);

/* Maps what the writer has, which must be complete. */
typedef struct small_map {
  guint8 *memory;
  oct_checkpoint *checkpoint;
  oct_weight_map *map;
} small_map;
small_map *small_open(const oct_model_spec *spec, const writer *w);
void small_close(small_map *m);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(small_map, small_close)
/* Fails unless it is refused with a message that has `part`. */
void small_refused(const oct_model_spec *spec, const writer *w, const char *part);

#endif
