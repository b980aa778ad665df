/* Finding one weight in a checkpoint: which tensors it is stored in, and how. Private to
 * engine/model/files.
 */
#ifndef OCT_MODEL_FILES_FIND_H
#define OCT_MODEL_FILES_FIND_H

#include "engine/model/files/map.h"

typedef struct oct_finder {
  const oct_model_spec *spec;
  const oct_checkpoint *checkpoint;
  const char *prefix;     /* of every tensor's name: "" or "language_model." */
  guint8 *used;           /* [tensors]: claimed by a weight */
  oct_map_report *report; /* never NULL */
} oct_finder;

void oct_map_list_add(oct_map_list *list, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* Fills in the layout and parts of a weight whose kind, layer, expert, rows and columns are set; or
 * adds to the report why not and returns FALSE. */
gboolean oct_finder_find(oct_finder *finder, oct_weight *weight) G_GNUC_WARN_UNUSED_RESULT;
/* A tensor by its name without the prefix, marked as used; NULL when there is none. */
const oct_file_tensor *oct_finder_tensor(oct_finder *finder, const char *name, const char *suffix);

#endif
