/* Recorded measurements: CSV files with a header row, read column by name. The folder's files and
 * their sources are listed in doc/simulation.md. */
#ifndef OCT_SIM_VALIDATE_MEASURED_H
#define OCT_SIM_VALIDATE_MEASURED_H

#include <glib.h>

#define OCT_MEASURED_COLUMNS_MAX 64
#define OCT_MEASURED_FILE_MAX    (64 << 20)

/* Systems that the recordings know, and the profiles that describe them. */
typedef struct oct_measured_system {
  const char *recorded;   /* "h100_sxm" */
  const char *node;       /* "h100-hgx8" */
  const char *short_name; /* "H100" */
  gboolean fitted;        /* constants of the transfer fit may see its rows */
} oct_measured_system;
#define OCT_MEASURED_SYSTEMS 4
extern const oct_measured_system oct_measured_systems[OCT_MEASURED_SYSTEMS];
/* Its index; OCT_MEASURED_SYSTEMS when there is none of that name. */
guint oct_measured_system_find(const char *recorded);

/* Calls fn for each data row with its cells in the order of `columns` (NULL-terminated), borrowed
 * until it returns; FALSE from fn with *error set ends the reading. FALSE with *error: no such
 * file, a column is missing, a row is too short. Quoted cells are not understood: the recordings
 * have none. */
typedef gboolean (*oct_measured_fn)(char **cells, gpointer user, GError **error);
gboolean oct_measured_read(const char *folder, const char *name, const char *const *columns,
                           oct_measured_fn fn, gpointer user,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A cell's number; NaN when it is none. */
double oct_measured_number(const char *cell);

#endif
