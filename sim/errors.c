#include "sim/errors.h"

#include <math.h>

#include "sim/profile.h"

/* NULL: there is none that can be read. */
static gpointer
read_file(gpointer unused) {
  const char *const *dirs = oct_profile_dirs();
  (void)unused;
  for (guint i = 0; dirs[i] != NULL; i++) {
    g_autofree char *path = g_build_filename(dirs[i], OCT_PROFILE_FITS, OCT_ERRORS_FILE, NULL);
    g_autoptr(GKeyFile) keys = g_key_file_new();
    if (g_key_file_load_from_file(keys, path, G_KEY_FILE_NONE, NULL))
      return g_steal_pointer(&keys);
  }
  return NULL;
}

double
oct_errors_get(const char *part, const char *figure) {
  static GOnce once = G_ONCE_INIT;
  GKeyFile *keys = g_once(&once, read_file, NULL);
  g_autoptr(GError) missing = NULL;
  double value = keys != NULL ? g_key_file_get_double(keys, part, figure, &missing) : NAN;
  return missing == NULL ? value : NAN;
}
