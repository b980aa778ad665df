/* The file of sim/errors.h, written from what a validation found. */
#ifndef OCT_SIM_VALIDATE_ERRORS_FILE_H
#define OCT_SIM_VALIDATE_ERRORS_FILE_H

#include <jansson.h>

#include <glib.h>

/* Writes the aims and figures of the report's parts, one group for each, and keeps the groups of
 * parts that it has not. Not of quick runs or samples: the caller sees to it. */
gboolean oct_errors_file_write(const char *path, const json_t *report,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What whole runs were simulated with: SHA-256 over the engine presets and the fits in the source
 * tree, in the order of their names. Owned; NULL when the folders cannot be read. */
char *oct_errors_presets_sha256(void);
#define OCT_ERRORS_PRESETS "presets_sha256"

#endif
