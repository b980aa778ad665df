#include "sim/validate/measured.h"

#include <math.h>
#include <string.h>

#include "engine/base/file.h"
#include "sim/validate/validate.h"

G_DEFINE_QUARK(oct - validate - error - quark, oct_validate_error)

const oct_measured_system oct_measured_systems[OCT_MEASURED_SYSTEMS] = {
    {"h100_sxm", "h100-hgx8", "H100", TRUE},
    {"h200_sxm", "h200-hgx8", "H200", TRUE},
    {"b200_sxm", "b200-hgx8", "B200", FALSE},
    {"b300_sxm", "b300-hgx8", "B300", FALSE},
};

guint
oct_measured_system_find(const char *recorded) {
  guint s = 0;
  while (s < OCT_MEASURED_SYSTEMS && strcmp(oct_measured_systems[s].recorded, recorded) != 0)
    s++;
  return s;
}

double
oct_measured_number(const char *cell) {
  char *end;
  double value = g_ascii_strtod(cell, &end);
  return end != cell && *end == '\0' ? value : NAN;
}

/* Cuts a line at its commas, in place. */
static guint
cut(char *line, char **cells) {
  guint n = 0;
  for (char *at = line; at != NULL && n < OCT_MEASURED_COLUMNS_MAX;) {
    cells[n++] = at;
    at = strchr(at, ',');
    if (at != NULL)
      *at++ = '\0';
  }
  return n;
}

static char *
next_line(char **rest) {
  char *line = *rest, *end = line != NULL ? strchr(line, '\n') : NULL;
  *rest = NULL;
  if (end != NULL) {
    *end = '\0';
    *rest = end + 1;
  }
  return line != NULL ? g_strchomp(line) : NULL;
}

static gboolean
find_columns(const char *path, char *header, const char *const *columns, guint *at, guint *n_cells,
             GError **error) {
  char *cells[OCT_MEASURED_COLUMNS_MAX];
  *n_cells = header != NULL ? cut(header, cells) : 0;
  for (guint c = 0; columns[c] != NULL; c++) {
    for (at[c] = 0; at[c] < *n_cells && strcmp(cells[at[c]], columns[c]) != 0;)
      at[c]++;
    if (at[c] == *n_cells) {
      g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA, "%s: no column '%s'", path,
                  columns[c]);
      return FALSE;
    }
  }
  return TRUE;
}

gboolean
oct_measured_read(const char *folder, const char *name, const char *const *columns,
                  oct_measured_fn fn, gpointer user, GError **error) {
  g_autofree char *path = g_build_filename(folder, name, NULL);
  g_autofree char *text = NULL;
  g_autoptr(GError) reason = NULL;
  if (!oct_file_read(path, OCT_MEASURED_FILE_MAX, &text, NULL, &reason)) {
    g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA, "%s: %s", path,
                reason->message);
    return FALSE;
  }
  guint at[OCT_MEASURED_COLUMNS_MAX], n_cells, number = 1;
  char *rest = text, *line = next_line(&rest);
  if (!find_columns(path, line, columns, at, &n_cells, error))
    return FALSE;
  while ((line = next_line(&rest)) != NULL) {
    char *cells[OCT_MEASURED_COLUMNS_MAX], *wanted[OCT_MEASURED_COLUMNS_MAX];
    number++;
    if (*line == '\0')
      continue;
    if (cut(line, cells) != n_cells) {
      g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA,
                  "%s:%u: not as many cells as the header's %u", path, number, n_cells);
      return FALSE;
    }
    for (guint c = 0; columns[c] != NULL; c++)
      wanted[c] = cells[at[c]];
    if (!fn(wanted, user, error)) {
      g_prefix_error(error, "%s:%u: ", path, number);
      return FALSE;
    }
  }
  return TRUE;
}
