/* Files of fitted constants: sim/profiles/fits/NAME.ini, which node profiles are based on, so that
 * each constant stands in one place. `octet validate --fit DIR` writes them.
 */
#ifndef OCT_SIM_VALIDATE_FIT_FILE_H
#define OCT_SIM_VALIDATE_FIT_FILE_H

#include <jansson.h>

#include "sim/validate/laws.h"

/* The transfer fit's file: constants of H100 and H200 alone, for machines without measurements. */
#define OCT_FIT_TRANSFER "hopper"

/* Whose rows the constants of a law are from in the file `name`. For a machine of which nothing was
 * measured, experts in FP8 have those of FP8 in blocks: the kernel that scales by tensor reaches a
 * fifth of the bandwidth on H100 and H200, where those of all other types reach four fifths of the
 * same memory. That is how good a kernel is, no property of machines. Else the law's own. */
oct_law_id oct_fit_rows_of(const char *name, oct_law_id id);

/* Fits every law and writes one file per system and one of the transfer fit into the folder `dir`.
 * Appends a table of what was fitted to `part` (sim/validate/report.h). */
gboolean oct_fit_files_write(const oct_law_rows *rows, const char *dir, json_t *part,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Writes the constants of fits/`name`.ini, where they are found beside the profiles, over those of
 * `profile`: all laws that the file has. */
gboolean oct_fit_file_apply(const char *name, oct_profile *profile,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Copies of the four systems' profiles, to be written over: [OCT_MEASURED_SYSTEMS], each owned by
 * oct_profile_free(). FALSE with *error. */
gboolean oct_fit_profiles_load(oct_profile **profiles, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_fit_profiles_free(oct_profile **profiles);

#endif
