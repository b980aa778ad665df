#include "tests/engine/model/files/folder.h"

#include <glib/gstdio.h>

char *
folder_new(void) {
  g_autoptr(GError) error = NULL;
  char *path = g_dir_make_tmp("octet-test-XXXXXX", &error);
  g_assert_no_error(error);
  return path;
}

void
folder_remove(const char *path) {
  GDir *dir = g_dir_open(path, 0, NULL);
  const char *name;
  g_assert_nonnull(dir);
  while ((name = g_dir_read_name(dir)) != NULL) {
    g_autofree char *file = g_build_filename(path, name, NULL);
    g_assert_cmpint(g_unlink(file), ==, 0);
  }
  g_dir_close(dir);
  g_assert_cmpint(g_rmdir(path), ==, 0);
}
