/* The names that checkpoints give to weights: Hugging Face's modules and GGUF's. Private to
 * engine/model/files.
 */
#ifndef OCT_MODEL_FILES_NAMES_H
#define OCT_MODEL_FILES_NAMES_H

#include "engine/model/files/tensors.h"
#include "engine/model/kinds.h"

#define OCT_NAME_CANDIDATES 4

/* What follows a module's name. */
typedef enum oct_name_part {
  OCT_NAME_WEIGHT, /* ".weight", ".weight_packed", ".qweight"…: by how it is stored */
  OCT_NAME_BIAS,   /* ".bias" */
  OCT_NAME_BARE,   /* nothing */
} oct_name_part;

/* Where an expert's weight lies in a tensor of all experts. */
typedef enum oct_name_stack {
  OCT_STACK_NONE,
  OCT_STACK_WHOLE, /* [experts, rows, columns] */
  OCT_STACK_EVEN,  /* gpt-oss: gate and up fused, gate in the even rows… */
  OCT_STACK_ODD,   /* …and up in the odd ones */
} oct_name_stack;

typedef struct oct_name_row {
  oct_name_part part;
  /* Patterns in the order of trying: %l is the layer, %e the expert. NULL-terminated unless full.
   */
  const char *single[OCT_NAME_CANDIDATES];
  oct_name_stack stack;
  const char *stacked; /* pattern of the tensor of all experts, or NULL */
} oct_name_row;

const oct_name_row *oct_name_row_get(oct_load_format format, oct_weight_kind kind);

/* Writes prefix + pattern into out; FALSE when it does not fit. */
gboolean oct_name_expand(const char *prefix, const char *pattern, guint32 layer, guint32 expert,
                         char *out, gsize size) G_GNUC_WARN_UNUSED_RESULT;

/* Why a text model does not use a tensor that no weight claims; NULL: it is unexpected. `name` is
 * without the checkpoint's prefix. */
const char *oct_name_skipped(const char *name, guint32 n_layers, gboolean tied);

#endif
