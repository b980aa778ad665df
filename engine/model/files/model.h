/* A model with its weights: what a path, a zoo name and a load format mean together.
 *
 *   format       spec from                          weights from
 *   safetensors  config.json beside the files       the files
 *   gguf         the file's metadata                the file
 *   auto         whichever of both is there         the files
 *   dummy        config.json, GGUF or the zoo       random numbers of a seed
 */
#ifndef OCT_MODEL_FILES_MODEL_H
#define OCT_MODEL_FILES_MODEL_H

#include "engine/model/files/map.h"

typedef struct oct_model_files {
  oct_model_spec *spec;
  oct_checkpoint *checkpoint; /* NULL for dummies */
  oct_weight_map *map;
} oct_model_files;

/* Life cycle. `name` is a checkpoint (a file or a folder: oct_checkpoint_open()), or for dummies
 * anything that oct_model_spec_load() takes. Every weight is found and checked before it returns.
 * NULL with *error; `report` as in oct_weight_map_new(). */
oct_model_files *oct_model_files_open(const char *name, const char *zoo_dir, oct_load_format format,
                                      guint64 seed, oct_map_report *report,
                                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_model_files_close(oct_model_files *files); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_model_files, oct_model_files_close)

/* The spec of an open checkpoint: a GGUF file's own, or the config.json beside the files. Owned. */
oct_model_spec *oct_model_spec_of(const oct_checkpoint *checkpoint,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The spec that a GGUF file's metadata and tensors describe: architectures llama (and mixtures of
 * it), qwen2, qwen3, qwen3moe and gpt-oss. Owned. Types are those that most bytes of a class have.
 */
oct_model_spec *oct_model_spec_from_gguf(const oct_checkpoint *checkpoint,
                                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The config.json that a GGUF file's metadata stands for, without `architectures`. Owned. */
char *oct_model_config_from_gguf(const oct_checkpoint *checkpoint,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
